//! Clients and operators: requests, commands, and what can be seen from outside.

use forebay_engine::event::{Command, CommandId, Event};
use forebay_engine::io::Device;
use forebay_engine::options::CacheMode;
use forebay_engine::payload::BufferRange;
use forebay_engine::request::{Durability, Reply, Request, RequestError, RequestId, RequestKind};
use forebay_engine::status::{BlockState, BypassReason, CacheHealth, SetStatus, VolumeCounters};
use forebay_engine::units::{OriginBlock, OriginExtent, VolumeSlot};

use super::held::{Held, What, cache, origin};
use super::world::{Asked, CommandResult, World};
use super::{BLOCK, Content, block_bytes, content_of};

impl World {
    fn ask(&mut self, request: Request, asked: Asked) -> u64 {
        let id = request.id.0;
        self.asked.insert(id, asked);
        let now = self.time();
        let (engine, buffers) = self.engine();
        engine.handle_request(now, request, buffers);
        id
    }

    /// A request with a buffer, holding `bytes` if it is a write. Nothing is polled.
    fn ask_with_buffer(
        &mut self,
        (slot, offset, length): (u16, u64, u64),
        bytes: Option<(&[u8], Durability)>,
    ) -> u64 {
        let skipped = offset % BLOCK;
        let buffer = self.buffers.place((skipped + length).next_multiple_of(BLOCK) as usize);
        let to_u32 = |value: u64| u32::try_from(value).expect("small");
        let (skipped, short) = (to_u32(skipped), to_u32(length));
        let kind = match bytes {
            Some((bytes, durability)) => {
                let range = BufferRange { buffer, offset: skipped, length: short };
                self.buffers.bytes_mut(range).copy_from_slice(bytes);
                RequestKind::Write { buffer, durability }
            }
            None => RequestKind::Read { buffer },
        };
        let request = self.request(slot, offset, length, kind);
        let is_read = bytes.is_none();
        self.ask(request, Asked { buffer: Some(buffer), skipped, length: short, is_read })
    }

    fn request(&mut self, slot: u16, offset: u64, length: u64, kind: RequestKind) -> Request {
        self.next_id += 1;
        Request {
            id: RequestId(self.next_id),
            volume: VolumeSlot(slot),
            offset_bytes: offset,
            length_bytes: length,
            kind,
        }
    }

    fn ask_bare(&mut self, slot: u16, (offset, length): (u64, u64), kind: RequestKind) -> u64 {
        let request = self.request(slot, offset, length, kind);
        self.ask(request, Asked { buffer: None, skipped: 0, length: 0, is_read: false })
    }

    /// Hands in a read of whole blocks (cut at the end of the volume) and polls.
    pub(crate) fn read(&mut self, slot: u16, block: u64, block_count: u64) -> u64 {
        let end = ((block + block_count) * BLOCK).min(self.setup.origin_bytes);
        let id = self.ask_with_buffer((slot, block * BLOCK, end - block * BLOCK), None);
        self.poll();
        id
    }

    pub(crate) fn read_bytes(&mut self, slot: u16, offset: u64, length: u64) -> u64 {
        let id = self.ask_with_buffer((slot, offset, length), None);
        self.poll();
        id
    }

    /// Hands in a write of whole blocks with a tag and polls.
    pub(crate) fn write(&mut self, slot: u16, block: u64, block_count: u64, tag: u64) -> u64 {
        let id = self.hand_in_write(slot, block, block_count, tag);
        self.poll();
        id
    }

    /// Hands in a write and does not poll: what is handed in together may share a record.
    pub(crate) fn hand_in_write(&mut self, slot: u16, block: u64, count: u64, tag: u64) -> u64 {
        let bytes = block_bytes(tag, slot, block, count);
        let range = (slot, block * BLOCK, count * BLOCK);
        self.ask_with_buffer(range, Some((&bytes, Durability::Completed)))
    }

    pub(crate) fn write_fua(&mut self, slot: u16, block: u64, block_count: u64, tag: u64) -> u64 {
        let bytes = block_bytes(tag, slot, block, block_count);
        let range = (slot, block * BLOCK, block_count * BLOCK);
        let id = self.ask_with_buffer(range, Some((&bytes, Durability::ForcedUnitAccess)));
        self.poll();
        id
    }

    /// Writes sectors of a tag.
    pub(crate) fn write_sectors(&mut self, slot: u16, sector: u64, count: u64, tag: u64) -> u64 {
        let bytes: Vec<u8> =
            (sector..sector + count).flat_map(|at| super::sector_bytes(tag, slot, at)).collect();
        let range = (slot, sector * 512, count * 512);
        let id = self.ask_with_buffer(range, Some((&bytes, Durability::Completed)));
        self.poll();
        id
    }

    pub(crate) fn hand_in_flush(&mut self, slot: u16) -> u64 {
        self.ask_bare(slot, (0, 0), RequestKind::Flush)
    }

    pub(crate) fn flush(&mut self, slot: u16) -> u64 {
        let id = self.hand_in_flush(slot);
        self.poll();
        id
    }

    pub(crate) fn zero_bytes(&mut self, slot: u16, offset: u64, length: u64) -> u64 {
        let durability = Durability::Completed;
        let kind = RequestKind::WriteZeroes { durability, may_unmap: true };
        let id = self.ask_bare(slot, (offset, length), kind);
        self.poll();
        id
    }

    pub(crate) fn zero(&mut self, slot: u16, block: u64, block_count: u64) -> u64 {
        self.zero_bytes(slot, block * BLOCK, block_count * BLOCK)
    }

    pub(crate) fn discard(&mut self, slot: u16, block: u64, block_count: u64) -> u64 {
        let kind = RequestKind::Discard { durability: Durability::Completed };
        let id = self.ask_bare(slot, (block * BLOCK, block_count * BLOCK), kind);
        self.poll();
        id
    }

    pub(crate) fn prefetch(&mut self, slot: u16, block: u64, block_count: u64) -> u64 {
        let range = (block * BLOCK, block_count * BLOCK);
        let id = self.ask_bare(slot, range, RequestKind::Prefetch);
        self.poll();
        id
    }

    pub(crate) fn reply(&self, id: u64) -> Option<Reply> {
        self.answers.get(&id).map(|answer| answer.reply)
    }

    pub(crate) fn result(&self, id: u64) -> Option<Result<(), RequestError>> {
        self.reply(id).map(|reply| reply.result)
    }

    pub(crate) fn is_pending(&self, id: u64) -> bool {
        assert!(self.asked.contains_key(&id) != self.answers.contains_key(&id));
        self.asked.contains_key(&id)
    }

    /// The request has ended well.
    pub(crate) fn is_done(&self, id: u64) -> bool {
        self.result(id) == Some(Ok(()))
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn delivered(&self, id: u64) -> &[u8] {
        assert!(self.is_done(id), "request {id}: {:?}", self.result(id));
        &self.answers[&id].bytes
    }

    /// What a read of one block delivered.
    pub(crate) fn seen(&self, id: u64, slot: u16, block: u64) -> Content {
        content_of(self.delivered(id), slot, block * 8)
    }

    /// Settles and expects the requests to have ended well.
    pub(crate) fn finish(&mut self, ids: &[u64]) {
        self.settle();
        for id in ids {
            assert!(self.is_done(*id), "request {id}: {:?}", self.result(*id));
        }
    }

    pub(crate) fn write_now(&mut self, slot: u16, block: u64, block_count: u64, tag: u64) {
        let id = self.write(slot, block, block_count, tag);
        self.finish(&[id]);
    }

    pub(crate) fn flush_now(&mut self, slot: u16) {
        let id = self.flush(slot);
        self.finish(&[id]);
    }

    pub(crate) fn read_now(&mut self, slot: u16, block: u64) -> Result<Content, RequestError> {
        let id = self.read(slot, block, 1);
        self.settle();
        let result = self.result(id).expect("a read is answered");
        result.map(|()| self.seen(id, slot, block))
    }

    /// What a client sees of a block, while nothing but reads that begin now is completed.
    pub(crate) fn peek(&mut self, slot: u16, block: u64) -> Content {
        let before = self.find(|_| true);
        let id = self.read(slot, block, 1);
        self.settle_except(|held| held.what != What::Read || before.contains(&held.id));
        self.seen(id, slot, block)
    }

    /// Writes chunks of 15 blocks from `first` on, until an operation is held that `keeps` names.
    pub(crate) fn fill_until(&mut self, first: u64, keeps: impl Fn(&Held) -> bool) {
        self.settle_except(&keeps);
        for chunk in 0..128 {
            if self.held.iter().any(&keeps) {
                return;
            }
            self.write(0, first + chunk * 15, 15, 500 + chunk);
            self.idle_except(2_000, &keeps);
        }
        panic!("nothing came up");
    }

    /// Reads chunks of 15 blocks from the first on until reclaim writes a drop, which is held.
    pub(crate) fn read_until_drop(&mut self, slot: u16) {
        let chunks = self.setup.origin_bytes / BLOCK / 15;
        for chunk in 0..chunks {
            if !self.find(cache::drop_record).is_empty() {
                return;
            }
            let read = self.read(slot, chunk * 15, 15);
            self.settle_except(cache::drop_record);
            assert!(self.is_done(read));
        }
        panic!("reclaim drops nothing");
    }

    /// Completes the held operation that `is_record` names and the flush behind it: until then
    /// nothing is written to the origin, and then it is.
    pub(crate) fn origin_waits_for(&mut self, slot: u16, is_record: impl Fn(&Held) -> bool) {
        let record = self.the(is_record);
        assert_eq!(self.find(origin::write(slot)), []);
        self.complete(record);
        assert_eq!(self.find(origin::write(slot)), [], "complete is not durable");
        let flush = self.the(cache::flush);
        self.complete(flush);
        self.the(origin::write(slot));
    }

    /// Completes so many operations, the oldest first.
    pub(crate) fn complete_oldest(&mut self, count: usize) {
        for _ in 0..count {
            let Some(held) = self.held.first() else { return };
            let id = held.id;
            self.complete(id);
        }
    }

    /// After a crash in the midst of a write: a read shows what the origin has, and that is the
    /// write if it was answered.
    #[track_caller]
    pub(crate) fn assert_agrees_with_origin(
        &mut self,
        (slot, block): (u16, u64),
        answered: Option<Content>,
        context: &str,
    ) {
        let seen = self.read_now(slot, block).expect("readable");
        assert_eq!(seen, self.on_origin(slot, block), "{context}");
        assert!(answered.is_none_or(|written| seen == written), "{context}: {seen:?}");
    }

    /// What clients see of some blocks, read one by one.
    pub(crate) fn look(&mut self, slot: u16, blocks: impl Iterator<Item = u64>) -> Vec<Content> {
        blocks.map(|block| self.read_now(slot, block).unwrap_or(Content::Garbage)).collect()
    }

    /// What the origin holds of a block.
    pub(crate) fn on_origin(&self, slot: u16, block: u64) -> Content {
        let end = ((block + 1) * BLOCK).min(self.setup.origin_bytes);
        let bytes = self.origins[usize::from(slot)].range(block * BLOCK, end - block * BLOCK);
        content_of(bytes, slot, block * 8)
    }

    pub(crate) fn command(&mut self, command: Command) -> u64 {
        self.next_id += 1;
        let (id, now) = (self.next_id, self.time());
        self.engine().0.handle_command(now, CommandId(id), command);
        self.poll();
        id
    }

    pub(crate) fn set_mode(&mut self, slot: u16, mode: CacheMode) -> u64 {
        self.command(Command::SetMode { volume: VolumeSlot(slot), mode })
    }

    pub(crate) fn drain(&mut self, slot: u16) -> u64 {
        self.command(Command::Drain { volume: VolumeSlot(slot) })
    }

    pub(crate) fn command_result(&self, id: u64) -> Option<CommandResult> {
        self.commands.get(&id).copied()
    }

    pub(crate) fn command_now(&mut self, command: Command) -> CommandResult {
        let id = self.command(command);
        self.idle_for(10_000);
        self.command_result(id).expect("a command ends")
    }

    pub(crate) fn switch(&mut self, slot: u16, mode: CacheMode) {
        let result = self.command_now(Command::SetMode { volume: VolumeSlot(slot), mode });
        assert_eq!(result, Ok(Some(VolumeSlot(slot))));
    }

    /// Everything goes home; the volume returns to its mode.
    pub(crate) fn clean(&mut self, slot: u16) {
        let mode = self.volume_mode(slot);
        let result = self.command_now(Command::Drain { volume: VolumeSlot(slot) });
        assert_eq!(result, Ok(Some(VolumeSlot(slot))));
        assert_eq!(self.dirty(slot), 0);
        self.switch(slot, mode);
    }

    pub(crate) fn volume_mode(&mut self, slot: u16) -> CacheMode {
        let now = self.time();
        let status = self.engine().0.volume_status(now, VolumeSlot(slot));
        status.expect("the volume is served").mode
    }

    pub(crate) fn counters(&mut self, slot: u16) -> VolumeCounters {
        let now = self.time();
        let status = self.engine().0.volume_status(now, VolumeSlot(slot));
        status.expect("the volume is served").counters
    }

    pub(crate) fn bypassed(&mut self, slot: u16, reason: BypassReason) -> u64 {
        let index = BypassReason::ALL.iter().position(|other| *other == reason);
        self.counters(slot).bypasses[index.expect("ALL has all")]
    }

    pub(crate) fn dirty(&mut self, slot: u16) -> u64 {
        let now = self.time();
        let status = self.engine().0.volume_status(now, VolumeSlot(slot));
        status.expect("the volume is served").dirty_blocks
    }

    /// What the origin did not take: first block and the one behind the last.
    pub(crate) fn failed_extents(&mut self, slot: u16) -> Vec<(u64, u64)> {
        let now = self.time();
        let status = self.engine().0.volume_status(now, VolumeSlot(slot));
        let extents = status.expect("the volume is served").failed_extents;
        extents.iter().map(|extent| (extent.start.0, extent.end().0)).collect()
    }

    pub(crate) fn is_cache_failed(&mut self) -> bool {
        matches!(self.status().cache_health, CacheHealth::Failed(_))
    }

    pub(crate) fn status(&mut self) -> SetStatus {
        let now = self.time();
        self.engine().0.status(now)
    }

    pub(crate) fn state(&mut self, slot: u16, block: u64) -> BlockState {
        let (volume, start) = (VolumeSlot(slot), OriginBlock(block));
        let extent = OriginExtent { volume, start, block_count: 1 };
        self.engine().0.map(extent)[0].2
    }

    pub(crate) fn has_event(&self, event: &Event) -> bool {
        self.events.contains(event)
    }

    /// Where the next operations will be noted.
    pub(crate) fn mark(&self) -> usize {
        self.submitted.len()
    }

    /// Operations since `mark` that `is_it` names.
    pub(crate) fn count_since(&self, mark: usize, is_it: impl Fn(&Device, &What) -> bool) -> usize {
        self.submitted[mark..].iter().filter(|(device, what)| is_it(device, what)).count()
    }

    pub(crate) fn cache_flushes_since(&self, mark: usize) -> usize {
        self.count_since(mark, |device, what| *device == Device::Cache && *what == What::Flush)
    }

    pub(crate) fn origin_ios_since(&self, mark: usize) -> usize {
        self.count_since(mark, |device, _| *device != Device::Cache)
    }

    /// Headers of the records submitted since `mark`.
    pub(crate) fn records_since(
        &self,
        mark: usize,
    ) -> impl Iterator<Item = &forebay_engine::format::record::RecordHeader> {
        self.submitted[mark..].iter().filter_map(|(_, what)| match what {
            What::Record(header) => Some(header),
            _ => None,
        })
    }

    /// Blocks of all segments.
    pub(crate) fn log_blocks(&mut self) -> u64 {
        let status = self.status();
        u64::from(status.segments * status.segment_blocks)
    }

    pub(crate) fn is_cached(&mut self, slot: u16, block: u64) -> bool {
        self.state(slot, block) != BlockState::NotCached
    }

    /// Segment of the newest record with data of a block, and where the block lies in it.
    pub(crate) fn segment_of(&self, block: u64) -> (usize, u64) {
        let blocks = u64::from(self.geometry.segment_blocks());
        let at = (self.place_of(block) - self.geometry.segments_offset) / BLOCK;
        ((at / blocks) as usize, at % blocks)
    }

    /// Where the newest record with data of a block puts it: byte offset on the cache device.
    pub(crate) fn place_of(&self, block: u64) -> u64 {
        use forebay_engine::format::record::EntryKind;
        let mut found = None;
        for header in self.records_since(0) {
            let mut at = header.block + 1;
            for entry in &header.entries {
                let end = entry.start + u64::from(entry.block_count);
                if entry.kind == EntryKind::Data && (entry.start..end).contains(&block) {
                    let in_segment = u64::from(at) + block - entry.start;
                    let blocks = u64::from(self.geometry.segment_blocks());
                    found = Some(u64::from(header.segment) * blocks + in_segment);
                }
                at += entry.payload_blocks();
            }
        }
        self.geometry.segments_offset + found.expect("the block was appended") * BLOCK
    }
}
