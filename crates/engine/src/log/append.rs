//! Appending entries to records, and handing records to the device.
//!
//! An entry is appended in one step: it gets its place, its blocks become the winning copies (their
//! live bits are set, those of the copies they supersede are cleared), and from now on a copy
//! exists (rule 3). That the device gets the record a little later, with other entries, changes
//! nothing: all decisions were taken in the step that appended.

use alloc::vec::Vec;

use super::{
    DROPS_OF_ROUND, PROMOTE_MARGIN_SEGMENTS, RECORDS_IN_FLIGHT_MAX, RESERVE_SEGMENTS, Record,
    RecordEntry, RecordState, SPARE_SEGMENTS, STREAMS, Stream,
};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::engine::IoPurpose;
use crate::format::record::{self, Entry, EntryKind, RecordHeader};
use crate::format::summary::{PlacedEntry, Summary, summary_blocks};
use crate::index::{BlankKind, Piece, Place};
use crate::io::{Device, IoKind, Slices};
use crate::log::BlankRecord;
use crate::log::segments::{SegmentState, Stretch, Superseded};
use crate::payload::{BufferRange, Payload};
use crate::policy::Standing;
use crate::replacement::queue_of;
use crate::slab::Key;
use crate::units::{
    BLOCK_BYTES, CacheBlock, FlushEpoch, Generation, SequenceNumber, Version, VolumeId, VolumeSlot,
};
use crate::wake::Waiter;

/// Free segments that a drop leaves: it may take the spares, too.
const KEPT_BY_DROPS: u32 = 0;

/// What is to be appended for a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewEntry {
    pub(crate) slot: VolumeSlot,
    pub(crate) kind: EntryKind,
    pub(crate) start: u64,
    pub(crate) block_count: u32,
    pub(crate) version: Version,
    pub(crate) is_dirty: bool,
    /// What replacement is to know of the blocks; `None` if that follows from what they supersede.
    pub(crate) standing: Option<Standing>,
}

/// Whether an entry may stand in a record with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sharing {
    Shared,
    Alone,
}

/// Where the checksums of payload come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Checksums {
    /// Taken from the bytes.
    Compute,
    /// Those of the copy at this position, which were verified (rule 1: never recomputed).
    Keep(CacheBlock),
}

/// There is no buffer now.
struct NoMemory;

impl Engine {
    /// Most blocks of payload in one entry: a quarter of a segment, so that segments fill up well.
    pub(crate) fn unit_blocks_max(&self) -> u32 {
        (self.log.segments.segment_blocks() / 4).clamp(16, record::RECORD_BLOCKS_MAX)
    }

    /// Whether an entry with so many payload blocks can be appended now, without waiting.
    pub(crate) fn has_room(&self, stream: Stream, payload_blocks: u32) -> bool {
        self.has_room_keeping(stream, payload_blocks, self.kept_segments(stream))
    }

    /// The same, with so many segments left free.
    fn has_room_keeping(&self, stream: Stream, payload_blocks: u32, kept: u32) -> bool {
        if self.is_cache_failed() {
            return false;
        }
        let state = self.log.stream(stream);
        if state.open.is_some_and(|open| self.fits_into(open, 1 + payload_blocks)) {
            return true;
        }
        self.log.segments.free_count() > kept
    }

    /// Whether an entry of `Stream::Relocate` that is no drop can be appended now. Rule 11: what is
    /// moved, voided or poisoned leaves room for the drops of a round of reclaim. Had it used that
    /// up, not even clean segments could become free.
    pub(crate) fn has_room_beside_drops(&self, payload_blocks: u32) -> bool {
        self.has_room(Stream::Relocate, payload_blocks + DROPS_OF_ROUND)
    }

    /// Whether a drop can be appended now. Rule 11: a crash takes the room that was left for drops
    /// in the open segment, since nothing is appended to it any more. So a drop may open a spare
    /// segment: what it drops gives back as much at least.
    pub(crate) fn has_room_for_drop(&self) -> bool {
        self.has_room_keeping(Stream::Relocate, 0, KEPT_BY_DROPS)
    }

    /// Blocks that `Stream::Relocate` can still take without touching the spare segments.
    pub(crate) fn relocation_room(&self) -> u32 {
        self.room(Stream::Relocate, self.usable_blocks())
    }

    /// Most blocks of an entry of `Stream::Relocate` that is to fill the open segment up.
    pub(crate) fn relocation_unit_blocks(&self) -> u32 {
        let most = self.unit_blocks_max();
        let open = self.log.stream(Stream::Relocate).open;
        let fitting = open.and_then(|open| {
            // Its record may take a header.
            (1..=most).rev().find(|blocks| self.fits_into(open, 1 + blocks))
        });
        fitting.unwrap_or(most)
    }

    /// Blocks that `Stream::Client` can take for certain, in entries of any size: an entry that
    /// does not fit any more leaves the rest of a segment empty.
    pub(crate) fn client_room(&self) -> u32 {
        self.room(Stream::Client, self.usable_blocks().saturating_sub(self.unit_blocks_max()))
    }

    fn room(&self, stream: Stream, blocks_of_segment: u32) -> u32 {
        let kept = self.kept_segments(stream);
        let free = self.log.segments.free_count().saturating_sub(kept);
        let used = |open| self.log.segments.get(open).used_blocks;
        let open = self.log.stream(stream).open;
        let rest = open.map_or(0, |open| blocks_of_segment.saturating_sub(used(open)));
        rest + free * blocks_of_segment
    }

    /// Blocks of a segment without its summary, however its records are cut.
    pub(crate) fn usable_blocks(&self) -> u32 {
        let segment_blocks = self.log.segments.segment_blocks();
        segment_blocks - summary_blocks(segment_blocks as usize / 2, segment_blocks)
    }

    fn kept_segments(&self, stream: Stream) -> u32 {
        match stream {
            Stream::Client if has_defect(Defect::NoReserve) => 0,
            Stream::Client => RESERVE_SEGMENTS + SPARE_SEGMENTS,
            Stream::Promote => RESERVE_SEGMENTS + SPARE_SEGMENTS + PROMOTE_MARGIN_SEGMENTS,
            Stream::Relocate => SPARE_SEGMENTS,
        }
    }

    fn fits_into(&self, segment: u32, blocks: u32) -> bool {
        let state = self.log.segments.get(segment);
        let used = state.used_blocks + blocks;
        let summary = summary_blocks(state.entries.len() + 1, used);
        !state.is_sealed && used + summary <= self.log.segments.segment_blocks()
    }

    /// Appends blocks with payload; returns where they will be. The caller has checked for room.
    pub(crate) fn append_data(
        &mut self,
        stream: Stream,
        new: NewEntry,
        source: BufferRange,
        checksums: Checksums,
        payload: &mut dyn Payload,
    ) -> (Key, CacheBlock) {
        assert_eq!(new.kind, EntryKind::Data);
        assert_eq!(source.length as usize, new.block_count as usize * BLOCK_BYTES);
        let kept = self.kept_segments(stream);
        let key = self.record_for(stream, new.block_count, Sharing::Shared, kept);
        payload.retain(source.buffer);
        let record = &mut self.log.records[key];
        let block = record.block + 1 + record.payload_blocks;
        record.moved_entries += usize::from(matches!(checksums, Checksums::Keep(_)));
        record.payload_blocks += new.block_count;
        if matches!(checksums, Checksums::Compute) && stream != Stream::Client {
            record.promoted_blocks += new.block_count;
        }
        match record.slices.last_mut() {
            Some(last)
                if last.buffer == source.buffer && last.offset + last.length == source.offset =>
            {
                // One piece of payload, one reference.
                last.length += source.length;
                payload.release(source.buffer);
            }
            _ => record.slices.push(source),
        }
        let segment = record.segment;
        let position = self.log.position(segment, block);
        for index in 0..new.block_count {
            let crc = match checksums {
                Checksums::Compute => {
                    let offset = index * BLOCK_BYTES as u32;
                    payload.checksum(source.slice(offset, BLOCK_BYTES as u32))
                }
                Checksums::Keep(from) => self.log.segments.crc(CacheBlock(from.0 + index)),
            };
            self.log.segments.set_crc(CacheBlock(position.0 + index), crc);
        }
        self.push_entry(key, new, block);
        self.place(new, Place::Data(position));
        // Whatever stream placed them: nothing of before counts.
        self.ahead.clear_run(position, new.block_count);
        (key, position)
    }

    /// Appends an entry without payload, in a record of its own if it is a copy of blocks: the bits
    /// of the header stand for it (rule 7).
    pub(crate) fn append_bare(&mut self, stream: Stream, new: NewEntry) -> Key {
        let blank = BlankKind::of(new.kind);
        assert!(blank.is_some() || new.kind == EntryKind::Invalidate);
        let sharing = if blank.is_some() { Sharing::Alone } else { Sharing::Shared };
        let key = self.record_for(stream, 0, sharing, self.kept_segments(stream));
        let record = &self.log.records[key];
        let (segment, block) = (record.segment, record.block);
        self.push_entry(key, new, block);
        let Some(kind) = blank else {
            self.place(new, Place::Absent);
            return key;
        };
        let header = self.log.position(segment, block);
        let record = BlankRecord {
            slot: new.slot,
            kind,
            start: new.start,
            block_count: u64::from(new.block_count),
            version: new.version,
            live_blocks: 0,
            mapped_blocks: 0,
        };
        self.log.blanks.insert(header.0, record);
        self.place(new, Place::Blank { kind, header });
        self.close_record(stream);
        key
    }

    /// Appends a drop of a whole segment (rule 3).
    pub(crate) fn append_drop(&mut self, segment: u32) -> Key {
        let generation = self.log.segments.get(segment).generation;
        let key = self.record_for(Stream::Relocate, 0, Sharing::Shared, KEPT_BY_DROPS);
        let entry = Entry {
            kind: EntryKind::Drop { segment, generation },
            volume: VolumeId(0),
            volume_generation: Generation(0),
            start: 0,
            block_count: 0,
            version: Version(0),
            epoch: FlushEpoch(0),
            is_dirty: false,
        };
        self.push_of_no_blocks(key, entry);
        key
    }

    /// Appends a mark: the origin of an ordered volume has everything through an epoch.
    pub(crate) fn append_mark(&mut self, slot: VolumeSlot, drained_through: FlushEpoch) -> Key {
        let key = self.record_for(
            Stream::Relocate,
            0,
            Sharing::Shared,
            self.kept_segments(Stream::Relocate),
        );
        let (volume, volume_generation) = (self.volume(slot).id, self.volume(slot).generation);
        let entry = Entry {
            kind: EntryKind::Mark { drained_through },
            volume,
            volume_generation,
            start: 0,
            block_count: 0,
            version: Version(0),
            epoch: drained_through,
            is_dirty: false,
        };
        self.push_of_no_blocks(key, entry);
        key
    }

    fn push_of_no_blocks(&mut self, key: Key, entry: Entry) {
        let record = &mut self.log.records[key];
        record.entries.push(RecordEntry { slot: None, entry, block: record.block });
        let (in_segment, block) = (record.segment, record.block);
        self.log.segments.get_mut(in_segment).entries.push(PlacedEntry { entry, block });
    }

    /// Appends a record without entries, for what its header says of the records before it.
    pub(crate) fn append_empty_record(&mut self, stream: Stream) {
        self.record_for(stream, 0, Sharing::Alone, self.kept_segments(stream));
        self.close_record(stream);
    }

    /// Whether anything was appended that has no sequence number yet.
    pub(crate) fn is_record_building(&self) -> bool {
        STREAMS.iter().any(|stream| self.log.stream(*stream).building.is_some())
    }

    pub(crate) fn wait_for_record(&mut self, record: Key, waiter: Waiter) {
        self.log.records[record].waiters.push(waiter);
    }

    fn push_entry(&mut self, key: Key, new: NewEntry, block: u32) {
        let volume = self.volume(new.slot);
        let entry = Entry {
            kind: new.kind,
            volume: volume.id,
            volume_generation: volume.generation,
            start: new.start,
            block_count: new.block_count,
            version: new.version,
            epoch: if has_defect(Defect::MovedIntoNewEpoch) {
                volume.epochs.current()
            } else {
                volume.epochs.of(new.version)
            },
            is_dirty: new.is_dirty,
        };
        let record = &mut self.log.records[key];
        record.entries.push(RecordEntry { slot: Some(new.slot), entry, block });
        let segment = record.segment;
        self.log.segments.get_mut(segment).entries.push(PlacedEntry { entry, block });
        self.note_ordered(segment, new.slot, &entry);
    }

    /// Remembers that writeback in order has to look for an entry in the segment.
    pub(crate) fn note_ordered(&mut self, segment: u32, slot: VolumeSlot, entry: &Entry) {
        if entry.is_dirty && self.volume(slot).is_ordered() {
            self.log.segments.note_lowest(segment, slot, entry.version);
        }
    }

    /// Makes the entry the winner of its blocks.
    fn place(&mut self, new: NewEntry, place: Place) {
        let piece = Piece {
            start: new.start,
            block_count: u64::from(new.block_count),
            version: new.version,
            place,
        };
        let mut losers = core::mem::take(&mut self.scratch.winners);
        self.winners(new.slot, piece.start, piece.end(), &mut losers);
        for loser in &losers {
            // Rule 1: nothing is appended below a version that has been submitted.
            assert!(loser.version <= new.version);
        }
        if let Place::Data(position) = place {
            self.note_placed(&new, position, &losers);
        }
        for loser in &losers {
            let superseded = self.becomes(new.slot, loser, new.version);
            self.retire(new.slot, loser, superseded);
        }
        losers.clear();
        self.scratch.winners = losers;
        match place {
            Place::Data(position) => {
                self.log.segments.set_live(position, new.block_count);
                if new.is_dirty {
                    self.log.segments.set_dirty(position, new.block_count);
                }
            }
            Place::Blank { header, .. } => {
                self.log.segments.set_live(header, 1);
                // All of them are: zeroes and discards until they are home, poison for good.
                if !has_defect(Defect::BlankNeverDirty) {
                    self.log.segments.set_dirty(header, 1);
                }
                let blank = self.log.blanks.get_mut(&header.0).expect("inserted by the caller");
                blank.live_blocks = piece.block_count;
            }
            Place::Absent => {}
        }
        if new.is_dirty {
            self.add_dirty(new.slot, piece.block_count);
        }
        let (mut removed, mut inserted) = self.scratch.take_pieces();
        let pending = &mut self.volume_mut(new.slot).index.pending;
        pending.replace(piece, &mut removed, &mut inserted);
        assert_eq!(inserted.len(), 1);
        self.scratch.put_pieces(removed, inserted);
    }

    /// The copies of `start..end` that will win once everything appended is complete.
    pub(crate) fn winners(&self, slot: VolumeSlot, start: u64, end: u64, out: &mut Vec<Piece>) {
        let index = &self.volume(slot).index;
        let first = out.len();
        index.pending.pieces(start, end, out);
        let last = out.len();
        if last == first {
            index.complete.pieces(start, end, out);
            return;
        }
        let mut at = start;
        for position in first..last {
            let piece = out[position];
            if at < piece.start {
                index.complete.pieces(at, piece.start, out);
            }
            at = piece.end();
        }
        if at < end {
            index.complete.pieces(at, end, out);
        }
    }

    /// The origin of an ordered volume may need a copy though a newer one supersedes it: what was
    /// written in an epoch that has ended goes home as it was at its end (promise 4).
    fn becomes(&self, slot: VolumeSlot, old: &Piece, superseder: Version) -> Superseded {
        let volume = self.volume(slot);
        let is_moved = old.version == superseder;
        // The origin never gets poison.
        let is_owed = !is_moved && !old.is_poison() && volume.epochs.has_ended(old.version);
        if is_owed && volume.is_ordered() && !has_defect(Defect::SupersededNotRetained) {
            Superseded::Retained
        } else {
            Superseded::Dead
        }
    }

    /// A copy is no longer the newest: its bits go. What it is still good for, reads of the
    /// complete index, does not look at them.
    pub(crate) fn retire(&mut self, slot: VolumeSlot, piece: &Piece, superseded: Superseded) {
        let mut cleared = 0;
        match piece.place {
            Place::Data(_) => {
                for position in piece.positions() {
                    cleared += u64::from(self.log.segments.supersede(position, superseded));
                }
            }
            Place::Blank { header, .. } => {
                let blank = self.log.blanks.get_mut(&header.0).expect("a live blank is known");
                blank.live_blocks -= piece.block_count;
                let is_dead = blank.live_blocks == 0;
                if self.log.segments.is_dirty(header) {
                    cleared = piece.block_count;
                }
                if is_dead {
                    self.log.segments.supersede(header, superseded);
                    self.forget_dead_blank(header);
                }
            }
            Place::Absent => {}
        }
        self.subtract_dirty(slot, cleared);
    }

    /// Drops the memory of a blank record that nothing refers to any more.
    pub(crate) fn forget_dead_blank(&mut self, header: CacheBlock) {
        if let Some(blank) = self.log.blanks.get(&header.0) {
            let is_pending = {
                let (segment, _) = self.log.segments.locate(header);
                self.log.segments.get(segment).in_flight.iter().any(|key| {
                    let record = &self.log.records[*key];
                    self.log.position(record.segment, record.block) == header
                })
            };
            if blank.live_blocks == 0 && blank.mapped_blocks == 0 && !is_pending {
                self.log.blanks.remove(&header.0);
            }
        }
    }

    /// The record that takes the next entry: the one being built, or a new one, in the open segment
    /// or a new one, if `kept` segments stay free.
    fn record_for(
        &mut self,
        stream: Stream,
        payload_blocks: u32,
        sharing: Sharing,
        kept: u32,
    ) -> Key {
        assert!(self.may_append(), "rule 8");
        if let Some(key) = self.log.stream(stream).building {
            let record = &self.log.records[key];
            let entries = record.entries.len() + 1;
            let fits = record::fits(entries, record.payload_blocks + payload_blocks);
            if fits && sharing == Sharing::Shared && self.fits_into(record.segment, payload_blocks)
            {
                let segment = record.segment;
                self.log.segments.get_mut(segment).used_blocks += payload_blocks;
                return key;
            }
            self.close_record(stream);
        }
        let open = self.log.stream(stream).open;
        let segment = match open {
            Some(open) if self.fits_into(open, 1 + payload_blocks) => open,
            _ => self.open_segment(stream, kept),
        };
        let state = self.log.segments.get_mut(segment);
        let block = state.used_blocks;
        state.used_blocks += 1 + payload_blocks;
        let key = self.log.records.insert(Record {
            stream,
            state: RecordState::Building,
            segment,
            block,
            payload_blocks: 0,
            promoted_blocks: 0,
            moved_entries: 0,
            entries: Vec::new(),
            slices: Vec::new(),
            waiters: Vec::new(),
            sequence: SequenceNumber(0),
            replaces: Vec::new(),
            previous: SequenceNumber(0),
            vouches_for: SequenceNumber(0),
            header: None,
        });
        self.log.segments.get_mut(segment).in_flight.push_back(key);
        self.log.stream_mut(stream).building = Some(key);
        key
    }

    fn open_segment(&mut self, stream: Stream, kept: u32) -> u32 {
        self.close_segment(stream);
        // Rule 11: the caller asked for room, which keeps the reserve and the spares.
        assert!(self.log.segments.free_count() > kept);
        let order = self.log.next_open_order;
        self.log.next_open_order += 1;
        let segment = self.log.segments.open(order, self.now).expect("counted above");
        self.enqueue_segment(segment, stream);
        self.log.stream_mut(stream).open = Some(segment);
        segment
    }

    /// A segment that was just opened is the last of its queue.
    pub(crate) fn enqueue_segment(&mut self, segment: u32, stream: Stream) {
        let queue = queue_of(stream);
        let first_number = self.replacement.appended(queue);
        *self.log.segments.stretch_mut(segment) =
            Stretch { queue, first_number, last_number: None, blocks: 0 };
    }

    /// Nothing more comes to a segment.
    pub(crate) fn end_stretch(&mut self, segment: u32) {
        let blocks = self.log.segments.get(segment).used_blocks;
        let stretch = self.log.segments.stretch_mut(segment);
        stretch.last_number = Some(self.replacement.appended(stretch.queue));
        stretch.blocks = blocks;
    }

    /// Ends the open segment of a stream; its summary follows when its records are complete.
    pub(crate) fn close_segment(&mut self, stream: Stream) {
        self.close_record(stream);
        if let Some(open) = self.log.stream_mut(stream).open.take() {
            let state = self.log.segments.get_mut(open);
            assert_eq!(state.state, SegmentState::Open);
            state.state = SegmentState::Closed;
            self.end_stretch(open);
            self.log.without_summary.push(open);
        }
    }

    /// Writes the summaries of closed segments of which every record is complete. One for which
    /// there is no memory comes later: recovery reads a segment that has none as a whole.
    pub(crate) fn write_summaries(&mut self, payload: &mut dyn Payload) {
        let mut index = 0;
        while let Some(segment) = self.log.without_summary.get(index).copied() {
            let is_complete = self.log.segments.get(segment).in_flight.is_empty();
            if is_complete && self.write_summary(segment, payload).is_ok() {
                self.log.without_summary.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Ends the record being built: it gets its sequence number.
    pub(crate) fn close_record(&mut self, stream: Stream) {
        let Some(key) = self.log.stream_mut(stream).building.take() else { return };
        self.log.last_sequence.0 += 1;
        let sequence = self.log.last_sequence;
        let record = &mut self.log.records[key];
        assert_eq!(record.state, RecordState::Building);
        record.state = RecordState::Closed;
        record.sequence = sequence;
        let segment = self.log.segments.get_mut(record.segment);
        record.previous = segment.last_sequence;
        segment.last_sequence = sequence;
        if !record.entries.is_empty() {
            self.idle_mark.on_record_closed(sequence, self.now);
        }
        self.log.incomplete.insert(sequence.0);
        self.log.submit_queue.push_back(key);
        self.log.stream_mut(stream).in_flight += 1;
    }

    pub(crate) fn close_all_records(&mut self) {
        for stream in STREAMS {
            self.close_record(stream);
        }
    }

    /// Hands records to the device: those that are closed, and those being built while few of their
    /// stream are under way, unless they wait for more.
    pub(crate) fn submit_records(&mut self, payload: &mut dyn Payload) {
        for stream in STREAMS {
            let is_due = self.log.stream(stream).in_flight < RECORDS_IN_FLIGHT_MAX;
            if is_due && !self.waits_for_more(stream) {
                self.close_record(stream);
            }
        }
        while let Some(key) = self.log.submit_queue.front().copied() {
            let Some(buffer) = payload.allocate(BLOCK_BYTES) else {
                self.wait_for_memory();
                return;
            };
            self.log.submit_queue.pop_front();
            let header = BufferRange { buffer, offset: 0, length: BLOCK_BYTES as u32 };
            self.encode_header(key, payload.metadata_mut(header));
            let record = &mut self.log.records[key];
            record.header = Some(buffer);
            record.state = RecordState::Writing;
            let slices = if record.slices.is_empty() {
                Slices::One(header)
            } else {
                let mut slices = Vec::with_capacity(1 + record.slices.len());
                slices.push(header);
                slices.extend_from_slice(&record.slices);
                Slices::Many(slices)
            };
            self.set_counters.records += 1;
            self.set_counters.metadata_bytes += BLOCK_BYTES as u64;
            let bytes = u64::from(record.payload_blocks) * BLOCK_BYTES as u64;
            let promoted_bytes = u64::from(record.promoted_blocks) * BLOCK_BYTES as u64;
            self.set_counters.promoted_bytes += promoted_bytes;
            match record.stream {
                Stream::Client => self.set_counters.client_bytes += bytes,
                Stream::Promote => {}
                Stream::Relocate => self.set_counters.relocated_bytes += bytes - promoted_bytes,
            }
            let (segment, block) = (record.segment, record.block);
            let offset_bytes = self.cache_offset(self.log.position(segment, block));
            let kind = IoKind::Write { offset_bytes, slices };
            self.submit(Device::Cache, kind, IoPurpose::Record(key));
        }
    }

    /// Whether the record being built had better take what reclaim reads at the moment: blocks that
    /// come one by one would each take a header with them, and half of the queue's room. Nobody
    /// misses them meanwhile, since the copies that they were read from are there until the drop.
    /// Whoever waits for records, or for this one, ends the wait.
    fn waits_for_more(&self, stream: Stream) -> bool {
        let Some(key) = self.log.stream(stream).building else { return false };
        let record = &self.log.records[key];
        let is_all_moved = record.moved_entries == record.entries.len();
        is_all_moved && record.waiters.is_empty() && self.is_reading_what_is_kept()
    }

    fn encode_header(&mut self, key: Key, block: &mut [u8]) {
        let record = &self.log.records[key];
        let segment = self.log.segments.get(record.segment);
        let crcs = self.log.segments.crcs(record.segment);
        let from = (record.block + 1) as usize;
        let mut header = RecordHeader {
            generation: segment.generation,
            recovery_epoch: self.log.recovery_epoch,
            sequence: record.sequence,
            previous: record.previous,
            replaces: record.replaces.clone(),
            durable_through: self.log.durable_through,
            segment: record.segment,
            block: record.block,
            payload_blocks: record.payload_blocks,
            entries: record.entries.iter().map(|placed| placed.entry).collect(),
            crcs: crcs[from..from + record.payload_blocks as usize].to_vec(),
        };
        if has_defect(Defect::RewriteNamesNothing) {
            header.replaces.clear();
        }
        if has_defect(Defect::DurableMarkTooFar) {
            header.durable_through = self.log.complete_through();
        }
        assert!(header.durable_through < record.first_sequence());
        header.encode(&self.log.set_id, block);
        self.log.records[key].vouches_for = header.durable_through;
    }

    /// Writes the summary of a closed segment whose records are all complete, if it wants one.
    fn write_summary(&mut self, segment: u32, payload: &mut dyn Payload) -> Result<(), NoMemory> {
        let state = self.log.segments.get(segment);
        let used = state.used_blocks;
        let blocks = summary_blocks(state.entries.len(), used);
        let fits = used + blocks <= self.log.segments.segment_blocks();
        let is_due = state.state == SegmentState::Closed
            && state.summary_blocks == 0
            && !state.is_summary_under_way
            && !state.is_sealed
            && state.in_flight.is_empty()
            && !state.entries.is_empty();
        if !is_due || !fits {
            return Ok(());
        }
        let buffer = payload.allocate(blocks as usize * BLOCK_BYTES).ok_or(NoMemory)?;
        let range = BufferRange { buffer, offset: 0, length: blocks * BLOCK_BYTES as u32 };
        let generation = state.generation;
        let crcs = self.log.segments.crcs(segment)[..used as usize].to_vec();
        let summary = Summary { entries: state.entries.clone(), crcs };
        summary.encode(&self.log.set_id, segment, generation, payload.metadata_mut(range));
        self.log.segments.get_mut(segment).is_summary_under_way = true;
        self.set_counters.metadata_bytes += u64::from(range.length);
        let offset_bytes = self.cache_offset(self.log.position(segment, used));
        let kind = IoKind::Write { offset_bytes, slices: Slices::One(range) };
        let purpose = IoPurpose::Summary { segment, generation, buffer, blocks };
        self.submit(Device::Cache, kind, purpose);
        Ok(())
    }
}
