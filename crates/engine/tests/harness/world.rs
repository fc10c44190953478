//! The engine between its devices and clients.

use std::collections::BTreeMap;

use forebay_engine::Engine;
use forebay_engine::error::RecoveryError;
use forebay_engine::event::{CommandError, Event, SavedMark};
use forebay_engine::format::checkpoint::{Checkpoint, SegmentUse};
use forebay_engine::format::record::RecordHeader;
use forebay_engine::format::superblock::{Geometry, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::io::{Device, Io, IoError, IoId, IoKind, IoResult};
use forebay_engine::options::{CacheFacts, HostMark, OriginOpening};
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Reply, Request};
use forebay_engine::units::{Time, VolumeSlot};

use super::disk::Unflushed;
use super::held::{Held, What};
use super::setup::{SET_ID, Setup};
use super::{BLOCK, Buffers, Disk};

/// Steps after which a test that waits for the engine is given up.
const STEPS_MAX: usize = 200_000;

type Failing = Box<dyn Fn(&Held) -> Option<IoError>>;
pub(crate) type CommandResult = Result<Option<VolumeSlot>, CommandError>;

/// What a crash leaves of a write that was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    Nothing,
    All,
    /// So many blocks from its start.
    First(usize),
}

/// A request that was handed in.
pub(crate) struct Asked {
    pub(super) buffer: Option<BufferId>,
    /// Where the range begins in the buffer, and how long it is.
    pub(super) skipped: u32,
    pub(super) length: u32,
    pub(super) is_read: bool,
}

/// The answer to a request, with what a read delivered.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) geometry: Geometry,
    pub(crate) facts: CacheFacts,
    pub(crate) now: u64,
    pub(crate) engine: Option<Engine>,
    pub(crate) buffers: Buffers,
    pub(crate) cache: Disk,
    pub(crate) origins: Vec<Disk>,
    /// Operations that the test has not completed, in the order in which they were submitted.
    pub(crate) held: Vec<Held>,
    /// All operations ever submitted.
    pub(crate) submitted: Vec<(Device, What)>,
    /// Which operations fail when `settle` completes them.
    pub(crate) fails: Option<Failing>,
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) answers: BTreeMap<u64, Answer>,
    pub(super) commands: BTreeMap<u64, CommandResult>,
    pub(crate) events: Vec<Event>,
    /// Whether the host state file is written as soon as the engine asks.
    pub(crate) saves_marks: bool,
    pub(super) next_id: u64,
}

impl World {
    pub(crate) fn time(&self) -> Time {
        Time(self.now)
    }

    pub(crate) fn engine(&mut self) -> (&mut Engine, &mut Buffers) {
        (self.engine.as_mut().expect("the process lives"), &mut self.buffers)
    }

    pub(crate) fn disk(&mut self, device: Device) -> &mut Disk {
        match device {
            Device::Cache => &mut self.cache,
            Device::Origin(slot) => &mut self.origins[usize::from(slot.0)],
        }
    }

    /// Takes everything out that the engine has for its host.
    pub(crate) fn poll(&mut self) {
        for _ in 0..STEPS_MAX {
            let mut is_quiet = true;
            while let Some(io) = {
                let (engine, buffers) = self.engine();
                engine.poll_io(buffers)
            } {
                self.submit(&io);
                is_quiet = false;
            }
            while let Some(reply) = self.engine().0.poll_reply() {
                self.on_reply(reply);
                is_quiet = false;
            }
            while let Some(event) = self.engine().0.poll_event() {
                self.on_event(event);
                is_quiet = false;
            }
            if is_quiet {
                return;
            }
        }
        panic!("polls never end");
    }

    fn on_reply(&mut self, reply: Reply) {
        let asked = self.asked.remove(&reply.id.0).expect("a request gets one reply");
        let mut bytes = Vec::new();
        if let Some(buffer) = asked.buffer {
            if asked.is_read {
                let range = BufferRange { buffer, offset: asked.skipped, length: asked.length };
                bytes = self.buffers.bytes(range).to_vec();
            }
            self.buffers.release(buffer);
        }
        self.answers.insert(reply.id.0, super::world::Answer { reply, bytes });
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::CommandComplete { command, result } => {
                let before = self.commands.insert(command.0, result);
                assert!(before.is_none(), "a command ends once");
            }
            Event::DirtyBegins { volume } if self.saves_marks => {
                self.save_mark(volume.0, SavedMark::DirtyPossible);
            }
            _ => {}
        }
        self.events.push(event);
    }

    /// The host state file says so now.
    pub(crate) fn save_mark(&mut self, slot: u16, mark: SavedMark) {
        let now = self.time();
        self.engine().0.handle_host_state_saved(now, VolumeSlot(slot), mark);
    }

    fn submit(&mut self, io: &Io) {
        let (offset, length, slices) = match &io.kind {
            IoKind::Read { offset_bytes, slices } | IoKind::Write { offset_bytes, slices } => {
                (*offset_bytes, slices.total_bytes(), Some(slices.clone()))
            }
            IoKind::Flush => (0, 0, None),
            IoKind::Discard { offset_bytes, length_bytes }
            | IoKind::WriteZeroes { offset_bytes, length_bytes, .. } => {
                (*offset_bytes, *length_bytes, None)
            }
        };
        let size = self.disk(io.device).seen.len() as u64;
        assert!(offset + length <= size, "{io:?} leaves its device");
        let bytes = match &io.kind {
            IoKind::Write { slices, .. } => self.gather(slices.as_slice()),
            IoKind::WriteZeroes { .. } => vec![0; usize::try_from(length).expect("small")],
            // What is discarded is rubbish afterwards.
            IoKind::Discard { .. } => vec![0xDD; usize::try_from(length).expect("small")],
            IoKind::Read { .. } | IoKind::Flush => Vec::new(),
        };
        let what = self.classify(io, offset, &bytes);
        let flush_mark = self.disk(io.device).flush_mark();
        let held =
            Held { id: io.id, device: io.device, what, offset, length, bytes, slices, flush_mark };
        self.check(&held);
        self.submitted.push((held.device, held.what.clone()));
        self.held.push(held);
    }

    fn gather(&self, slices: &[BufferRange]) -> Vec<u8> {
        slices.iter().flat_map(|range| self.buffers.bytes(*range).to_vec()).collect()
    }

    fn classify(&self, io: &Io, offset: u64, bytes: &[u8]) -> What {
        let geometry = &self.geometry;
        match io.kind {
            IoKind::Read { .. } => What::Read,
            IoKind::Flush => What::Flush,
            IoKind::Discard { .. } => What::Discard,
            IoKind::WriteZeroes { .. } => What::WriteZeroes,
            IoKind::Write { .. } if io.device != Device::Cache => What::Write,
            IoKind::Write { .. } if offset == 0 || offset >= geometry.copy_offset => {
                What::Superblock
            }
            IoKind::Write { .. } if offset < geometry.segments_offset => What::Checkpoint,
            IoKind::Write { .. } => {
                let block = (offset - geometry.segments_offset) / BLOCK;
                let blocks = u64::from(geometry.segment_blocks());
                let to_u32 = |value: u64| u32::try_from(value).expect("small");
                let (segment, block) = (to_u32(block / blocks), to_u32(block % blocks));
                let first = &bytes[..BLOCK as usize];
                let header = RecordHeader::decode(&SET_ID, segment, block, first);
                header.map_or(What::Summary, What::Record)
            }
        }
    }

    /// What holds whatever the test does.
    fn check(&self, new: &Held) {
        if !new.is_write() {
            return;
        }
        for other in self.held.iter().filter(|other| other.device == new.device) {
            let may_meet = new.device != Device::Cache && !other.is_write();
            let meets = other.length > 0 && other.overlaps(new.offset, new.length);
            assert!(may_meet || !meets, "{:?} meets {:?}", new.what, other.what);
        }
        let opened = new.record().filter(|header| header.block == 0);
        if let Some(header) = opened {
            // Rule 6: reused only when a checkpoint cut after its drop is durable.
            let checkpoint = self.durable_checkpoint().expect("one is durable at all times");
            let line = &checkpoint.segments[header.segment as usize];
            assert_eq!(line.segment_use, SegmentUse::Free, "segment {} is used", header.segment);
            assert_eq!(line.generation.0 + 1, header.generation.0);
        }
    }

    /// The checkpoints that recovery would find after a power cut.
    pub(crate) fn durable_checkpoints(&self) -> impl Iterator<Item = Checkpoint> {
        let geometry = &self.geometry;
        (0u8..2).filter_map(|area| {
            let from = geometry.checkpoint_offset + u64::from(area) * geometry.checkpoint_bytes;
            let range = from as usize..(from + geometry.checkpoint_bytes) as usize;
            Checkpoint::decode(&SET_ID, geometry, area, &self.cache.durable()[range]).ok()
        })
    }

    /// The one that it would begin with.
    pub(crate) fn durable_checkpoint(&self) -> Option<Checkpoint> {
        self.durable_checkpoints().max_by_key(|checkpoint| checkpoint.id)
    }

    fn take(&mut self, id: IoId) -> Held {
        let index = self.held.iter().position(|held| held.id == id).expect("it is held");
        self.held.remove(index)
    }

    /// Ends an operation well, and lets the engine go on.
    pub(crate) fn complete(&mut self, id: IoId) {
        let held = self.take(id);
        match (&held.what, &held.slices) {
            (What::Read, Some(slices)) => {
                let mut at = held.offset;
                for range in slices.as_slice() {
                    let bytes = self.disk(held.device).range(at, range.length.into()).to_vec();
                    self.buffers.bytes_mut(*range).copy_from_slice(&bytes);
                    at += u64::from(range.length);
                }
            }
            (What::Flush, _) => self.disk(held.device).flush(held.flush_mark),
            (_, slices) => {
                if let Some(slices) = slices {
                    let now = self.gather(slices.as_slice());
                    assert!(now == held.bytes, "a buffer changed while it was written");
                }
                self.disk(held.device).write(held.offset, held.bytes);
            }
        }
        self.hand_in(id, Ok(()));
    }

    /// Ends an operation badly; a write leaves `landed` behind.
    pub(crate) fn fail(&mut self, id: IoId, error: IoError, landed: Keep) {
        let held = self.take(id);
        self.land(&held, landed);
        self.hand_in(id, Err(error));
    }

    fn hand_in(&mut self, id: IoId, result: IoResult) {
        let now = self.time();
        let (engine, buffers) = self.engine();
        engine.handle_io_complete(now, id, result, buffers);
        self.poll();
    }

    fn land(&mut self, held: &Held, landed: Keep) {
        let length = match landed {
            Keep::Nothing => 0,
            Keep::All => held.bytes.len(),
            Keep::First(blocks) => (blocks * BLOCK as usize).min(held.bytes.len()),
        };
        if length > 0 {
            self.disk(held.device).write(held.offset, held.bytes[..length].to_vec());
        }
    }

    /// Held operations that `is_it` names.
    pub(crate) fn find(&self, is_it: impl Fn(&Held) -> bool) -> Vec<IoId> {
        self.held.iter().filter(|held| is_it(held)).map(|held| held.id).collect()
    }

    /// The one held operation that `is_it` names.
    pub(crate) fn the(&self, is_it: impl Fn(&Held) -> bool) -> IoId {
        let found = self.find(is_it);
        assert_eq!(found.len(), 1, "held: {}", self.describe_held());
        found[0]
    }

    pub(crate) fn describe_held(&self) -> String {
        let line = |held: &Held| {
            format!("{:?} {:?} {}+{}\n", held.device, held.what, held.offset, held.length)
        };
        self.held.iter().map(line).collect()
    }

    /// Completes whatever comes up, first come, first served, but for what `keeps` names.
    pub(crate) fn settle_except(&mut self, keeps: impl Fn(&Held) -> bool) {
        self.poll();
        for _ in 0..STEPS_MAX {
            let Some(held) = self.held.iter().find(|held| !keeps(held)) else {
                self.engine().0.audit().expect("the books agree");
                return;
            };
            let id = held.id;
            match self.fails.as_ref().and_then(|fails| fails(held)) {
                Some(error) => self.fail(id, error, Keep::Nothing),
                None => self.complete(id),
            }
        }
        let waiting = self.engine().0.describe_waiting();
        panic!("never settles\n{}\n{waiting}", self.describe_held());
    }

    pub(crate) fn settle(&mut self) {
        self.settle_except(|_| false);
    }

    /// Settles, and lets time pass from one wake-up to the next, so many milliseconds at most.
    pub(crate) fn idle_for(&mut self, milliseconds: u64) {
        self.idle_except(milliseconds, |_| false);
    }

    pub(crate) fn idle_except(&mut self, milliseconds: u64, keeps: impl Fn(&Held) -> bool) {
        let end = self.now + milliseconds * 1_000_000;
        self.settle_except(&keeps);
        while let Some(Time(next)) = self.engine().0.poll_wakeup() {
            if next > end {
                break;
            }
            self.now = self.now.max(next) + 1;
            let now = self.time();
            let (engine, buffers) = self.engine();
            engine.handle_time(now, buffers);
            self.settle_except(&keeps);
        }
        self.now = self.now.max(end);
    }

    /// Until nothing is left to do.
    pub(crate) fn idle(&mut self) {
        self.idle_for(20_000);
    }

    /// The process dies: what completed stays, and of what was under way what `keep` says.
    pub(crate) fn kill(&mut self, keep: impl Fn(&Held) -> Keep) {
        self.engine = None;
        for held in std::mem::take(&mut self.held) {
            if held.is_write() {
                let landed = keep(&held);
                self.land(&held, landed);
            }
        }
        self.buffers.clear();
        self.asked.clear();
        self.answers.clear();
        self.commands.clear();
        self.events.clear();
    }

    /// The power goes: what is durable stays, and of what no flush covered what `keeps` names. For
    /// parts
    /// of unfinished writes, `kill` first.
    pub(crate) fn cut_power(&mut self, mut keeps: impl FnMut(Device, &Unflushed) -> bool) {
        if self.engine.is_some() {
            self.kill(|_| Keep::Nothing);
        }
        self.cache.cut_power(|write| keeps(Device::Cache, write));
        for (slot, disk) in (0u16..).zip(&mut self.origins) {
            disk.cut_power(|write| keeps(Device::Origin(VolumeSlot(slot)), write));
        }
    }

    /// The superblock that the device has now.
    pub(crate) fn stored_superblock(&self) -> Superblock {
        let bytes = SUPERBLOCK_BYTES as u64;
        let start = self.cache.range(0, bytes);
        let copy = self.cache.range(self.geometry.copy_offset, bytes);
        Superblock::choose(start, copy).expect("one of the two is whole")
    }

    fn openings(&self, superblock: &Superblock, marks: &[HostMark]) -> Vec<OriginOpening> {
        let facts = self.setup.origin_facts();
        superblock
            .slots()
            .map(|(slot, _)| OriginOpening {
                slot,
                facts: (!self.setup.missing.contains(&slot.0)).then_some(facts),
                mark: marks.get(usize::from(slot.0)).copied().unwrap_or_default(),
            })
            .collect()
    }

    /// Starts the engine on what the devices hold; recovery is under way.
    pub(crate) fn begin_restart(&mut self, marks: &[HostMark]) {
        let superblock = self.stored_superblock();
        let openings = self.openings(&superblock, marks);
        self.engine = Some(Engine::recover(Time(self.now), superblock, self.facts, &openings));
        self.poll();
    }

    /// Completes recovery, and says how it ended.
    pub(crate) fn finish_restart(&mut self) -> Result<(), RecoveryError> {
        self.idle_for(10_000);
        let end = self.events.iter().find_map(|event| match event {
            Event::Serving => Some(Ok(())),
            Event::RecoveryFailed(error) => Some(Err(*error)),
            _ => None,
        });
        end.expect("recovery ends")
    }

    pub(crate) fn restart(&mut self) -> Result<(), RecoveryError> {
        self.begin_restart(&[]);
        self.finish_restart()
    }
}

impl World {
    /// The cache device that was gone is back: another engine takes over. Returns the requests that
    /// waited, which are not handed in yet. Recovery is under way.
    pub(crate) fn replace_engine(&mut self, marks: &[HostMark]) -> Vec<Request> {
        let mut lost_by = self.engine.take().expect("the process lives");
        assert!(lost_by.is_ready_to_hand_over(), "{}", lost_by.describe_waiting());
        let (requests, inheritance) = lost_by.hand_over();
        let superblock = self.stored_superblock();
        let openings = self.openings(&superblock, marks);
        let (now, facts) = (self.time(), self.facts);
        let successor = Engine::recover_returned(now, superblock, facts, &openings, inheritance);
        self.engine = Some(successor);
        self.events.clear();
        self.poll();
        requests
    }

    /// Starts another engine beside the silent one, which is returned.
    pub(crate) fn begin_beside(&mut self) -> Engine {
        let predecessor = self.engine.take().expect("the process lives");
        assert!(predecessor.is_ready_for_takeover(), "{}", predecessor.describe_waiting());
        let superblock = self.stored_superblock();
        let openings = self.openings(&superblock, &[]);
        let (now, facts) = (self.time(), self.facts);
        self.engine = Some(Engine::recover_beside(now, superblock, facts, &openings));
        self.events.clear();
        self.poll();
        predecessor
    }

    /// The cache device is back: the engine that lost it is to be replaced.
    pub(crate) fn begin_hand_over(&mut self) {
        let now = self.time();
        self.engine().0.begin_hand_over(now);
    }

    /// The cache device comes back, with what it had not flushed or without, and another engine
    /// takes over.
    pub(crate) fn come_back(&mut self, keeps: Keep, marks: &[HostMark]) {
        self.begin_hand_over();
        self.settle();
        self.cache.cut_power(|_| keeps == Keep::All);
        let requests = self.replace_engine(marks);
        self.finish_restart().expect("nothing is damaged");
        self.hand_in_again(requests);
    }

    /// Hands in requests that waited.
    pub(crate) fn hand_in_again(&mut self, requests: Vec<Request>) {
        let now = self.time();
        for request in requests {
            let (engine, buffers) = self.engine();
            engine.handle_request(now, request, buffers);
        }
        self.poll();
    }
}
