//! The table of segments: state, generation, live and dirty bits, checksums.
//!
//! Invariants: `live`, `dirty`, `retained` and `held_blocks` count the bits; a dirty block is live
//! or, in an ordered volume, retained: superseded in a later flush epoch, and still owed to the
//! origin; a free segment has neither. The bits are shared with a checkpoint that is being written
//! and copied when they change (rule 6).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::bit_runs::{has_run, set_run};
use crate::defects::{Defect, has_defect};
use crate::flush_group::FlushNumber;
use crate::format::checkpoint::{Bits, bit, clear_bit, set_bit};
use crate::format::summary::PlacedEntry;
use crate::log::MOSTLY_DEAD_DIVISOR;
use crate::policy::Queue;
use crate::prefetch::prefetch;
use crate::slab::Key;
use crate::units::{CacheBlock, Crc32c, Generation, SequenceNumber, Time, Version, VolumeSlot};

/// Checksums in what a processor loads at a time.
const CRCS_PER_LINE: usize = 64 / size_of::<Crc32c>();

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentState {
    Free,
    /// A stream appends to it.
    Open,
    Closed,
    /// Its blocks are being moved or forgotten.
    Reclaiming,
    /// Nothing of it counts; it is free once a checkpoint cut at or behind this record is durable,
    /// and no reader is in it.
    Dropped(SequenceNumber),
    /// Being discarded on the device.
    Discarding,
}

/// What becomes of a copy that something newer takes the place of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Superseded {
    Dead,
    /// If it is dirty, the origin of its ordered volume needs it all the same.
    Retained,
}

pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    pub(crate) generation: Generation,
    /// Blocks that its records take, the one that is being built included.
    pub(crate) used_blocks: u32,
    /// Blocks of its summary; zero until that is on the device.
    pub(crate) summary_blocks: u32,
    pub(crate) is_summary_under_way: bool,
    /// What is in it: while the device has no summary.
    pub(crate) entries: Vec<PlacedEntry>,
    pub(crate) bits: Arc<Bits>,
    pub(crate) live: u32,
    pub(crate) dirty: u32,
    /// Dirty blocks that are not the newest copy.
    pub(crate) retained: u32,
    /// The lowest version of what was dirty when it was appended, by ordered volume.
    pub(crate) lowest: Vec<(VolumeSlot, Version)>,
    /// Blocks (or blank records) that the complete index points at.
    pub(crate) mapped: u32,
    /// Records that are not complete, in order.
    pub(crate) in_flight: VecDeque<Key>,
    /// A write failed: what follows is written elsewhere.
    pub(crate) is_sealed: bool,
    /// Reclaim could not empty it.
    pub(crate) was_spared: bool,
    pub(crate) last_sequence: SequenceNumber,
    pub(crate) flush_needed: FlushNumber,
    pub(crate) open_order: u64,
    /// Its turn at reclaim, among the clean ones: mostly when it was opened.
    pub(crate) queue_order: u64,
    /// One more than the keeper's epoch in which it was full of pinned blocks; zero if in none.
    pub(crate) held_whole_as_of: u64,
    /// The lap of reclaim in which it went to the end of the queue as it was.
    pub(crate) passed_in_lap: u64,
    /// Nothing dirty in it is older.
    pub(crate) opened_at: Time,
    /// Nothing in it is older, and clean copies that were moved here are as old as they were.
    pub(crate) oldest_at: Time,
    /// What is in it may be older than that: it was found at the start.
    pub(crate) is_found: bool,
    /// A durable checkpoint no longer counts on it.
    pub(crate) is_reusable: bool,
}

/// What a hit needs of a segment. It stands apart from the rest, so that all of these lie close
/// together: what a hit waits for is then the checksum itself.
#[derive(Clone, Default)]
struct ReadState {
    stretch: Stretch,
    /// By block; none of a free segment.
    crcs: Box<[Crc32c]>,
    /// Reads under way.
    pins: u32,
}

/// Where a segment stands in the queues of replacement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) queue: Queue,
    /// Blocks that had been appended to the queue when it was opened.
    pub(crate) first_number: u64,
    /// The same when it was closed; `None` if it is open.
    pub(crate) last_number: Option<u64>,
    /// Blocks that its records took when it was closed.
    pub(crate) blocks: u32,
}

impl Default for Stretch {
    /// Of what was found at the start: deep in its queue.
    fn default() -> Self {
        Stretch { queue: Queue::Main, first_number: 0, last_number: Some(0), blocks: 1 }
    }
}

pub(crate) struct SegmentTable {
    segments: Vec<Segment>,
    /// By segment.
    read_states: Vec<ReadState>,
    free: VecDeque<u32>,
    segment_blocks: u32,
    dirty_blocks: u64,
    held_blocks: u64,
    no_bits: Arc<Bits>,
}

impl SegmentTable {
    pub(crate) fn new(count: u32, segment_blocks: u32) -> SegmentTable {
        let no_bits = Arc::new(Bits::new(0));
        let segments = (0..count)
            .map(|_| Segment {
                state: SegmentState::Free,
                generation: Generation(0),
                used_blocks: 0,
                summary_blocks: 0,
                is_summary_under_way: false,
                entries: Vec::new(),
                bits: no_bits.clone(),
                live: 0,
                dirty: 0,
                retained: 0,
                lowest: Vec::new(),
                mapped: 0,
                in_flight: VecDeque::new(),
                is_sealed: false,
                was_spared: false,
                last_sequence: SequenceNumber(0),
                flush_needed: 0,
                open_order: 0,
                queue_order: 0,
                held_whole_as_of: 0,
                passed_in_lap: 0,
                opened_at: Time(0),
                oldest_at: Time(0),
                is_found: false,
                is_reusable: false,
            })
            .collect();
        let read_states = vec![ReadState::default(); count as usize];
        SegmentTable {
            segments,
            read_states,
            free: (0..count).collect(),
            segment_blocks,
            dirty_blocks: 0,
            held_blocks: 0,
            no_bits,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.segments.len()).expect("counted in u32")
    }

    pub(crate) fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// Blocks of all segments.
    pub(crate) fn block_count(&self) -> u64 {
        u64::from(self.len()) * u64::from(self.segment_blocks)
    }

    pub(crate) fn free_count(&self) -> u32 {
        u32::try_from(self.free.len()).expect("counted in u32")
    }

    /// Dirty bits in all segments; a blank record counts as one.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.dirty_blocks
    }

    /// Blocks of the log that only writeback gives back: those of segments with dirty blocks. Of a
    /// segment that is mostly dead, what moving its blocks takes and more the fewer they are.
    pub(crate) fn held_blocks(&self) -> u64 {
        self.held_blocks
    }

    /// The same for one segment.
    pub(crate) fn held_blocks_of(&self, segment: u32) -> u64 {
        let Segment { dirty, retained, .. } = *self.get(segment);
        if retained > 0 {
            // Nobody moves it.
            return self.segment_blocks.into();
        }
        u64::from(dirty.min(self.segment_blocks / MOSTLY_DEAD_DIVISOR) * MOSTLY_DEAD_DIVISOR)
    }

    pub(crate) fn get(&self, segment: u32) -> &Segment {
        &self.segments[segment as usize]
    }

    pub(crate) fn get_mut(&mut self, segment: u32) -> &mut Segment {
        &mut self.segments[segment as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0u32..).zip(&self.segments)
    }

    /// Segment and block within it.
    pub(crate) fn locate(&self, position: CacheBlock) -> (u32, u32) {
        (position.0 / self.segment_blocks, position.0 % self.segment_blocks)
    }

    /// Takes a free segment into use with its next generation.
    pub(crate) fn open(&mut self, order: u64, now: Time) -> Option<u32> {
        let id = self.free.pop_front()?;
        let blocks = self.segment_blocks;
        let segment = &mut self.segments[id as usize];
        assert_eq!(segment.state, SegmentState::Free);
        assert_eq!((segment.live, segment.dirty, segment.mapped), (0, 0, 0));
        let read_state = &mut self.read_states[id as usize];
        assert!(read_state.pins == 0 || has_defect(Defect::ReuseUnderReaders));
        read_state.crcs = no_checksums(blocks);
        segment.state = SegmentState::Open;
        segment.generation.0 += 1;
        segment.used_blocks = 0;
        segment.summary_blocks = 0;
        segment.is_sealed = false;
        segment.lowest.clear();
        segment.was_spared = false;
        segment.is_reusable = false;
        segment.last_sequence = SequenceNumber(0);
        segment.open_order = order;
        segment.queue_order = order;
        segment.held_whole_as_of = 0;
        segment.passed_in_lap = 0;
        segment.opened_at = now;
        segment.oldest_at = now;
        segment.is_found = false;
        segment.bits = Arc::new(Bits::new(blocks));
        Some(id)
    }

    /// Puts a segment back among the free ones.
    pub(crate) fn release(&mut self, id: u32) {
        let no_bits = self.no_bits.clone();
        let segment = &mut self.segments[id as usize];
        assert_eq!((segment.live, segment.dirty, segment.mapped), (0, 0, 0));
        let read_state = &mut self.read_states[id as usize];
        assert!(read_state.pins == 0 || has_defect(Defect::ReuseUnderReaders));
        assert!(segment.in_flight.is_empty());
        segment.state = SegmentState::Free;
        segment.bits = no_bits;
        if !has_defect(Defect::ReuseUnderReaders) {
            read_state.crcs = Box::default();
        }
        segment.entries = Vec::new();
        segment.used_blocks = 0;
        segment.summary_blocks = 0;
        self.free.push_back(id);
    }

    /// At recovery: takes `id` into use, to be filled from what the device holds. To be followed by
    /// [`SegmentTable::collect_free`].
    pub(crate) fn adopt(&mut self, id: u32, generation: Generation, now: Time) {
        let blocks = self.segment_blocks;
        let segment = &mut self.segments[id as usize];
        assert_eq!(segment.state, SegmentState::Free);
        segment.state = SegmentState::Closed;
        segment.generation = generation;
        segment.opened_at = now;
        segment.oldest_at = now;
        segment.is_found = true;
        segment.bits = Arc::new(Bits::new(blocks));
        self.read_states[id as usize].crcs = no_checksums(blocks);
    }

    /// What was at `from` is at `to` now, and no younger for having been moved.
    pub(crate) fn keep_age(&mut self, from: CacheBlock, to: CacheBlock) {
        let Segment { oldest_at, is_found, .. } = *self.get(self.locate(from).0);
        let target = self.locate(to).0;
        let segment = self.get_mut(target);
        segment.oldest_at = segment.oldest_at.min(oldest_at);
        segment.is_found |= is_found;
    }

    /// The same of something dirty.
    pub(crate) fn keep_dirty_age(&mut self, from: CacheBlock, to: CacheBlock) {
        self.keep_age(from, to);
        let opened_at = self.get(self.locate(from).0).opened_at;
        let target = self.locate(to).0;
        let segment = self.get_mut(target);
        segment.opened_at = segment.opened_at.min(opened_at);
    }

    /// At recovery: makes the list of free segments what the table says.
    pub(crate) fn collect_free(&mut self) {
        let is_free = |id: &u32| self.segments[*id as usize].state == SegmentState::Free;
        self.free = (0..self.len()).filter(is_free).collect();
    }

    pub(crate) fn crc(&self, position: CacheBlock) -> Crc32c {
        let (segment, block) = self.locate(position);
        self.read_states[segment as usize].crcs[block as usize]
    }

    pub(crate) fn set_crc(&mut self, position: CacheBlock, crc: Crc32c) {
        let (segment, block) = self.locate(position);
        self.read_states[segment as usize].crcs[block as usize] = crc;
    }

    /// Checksums of the blocks of a segment from its first one on.
    pub(crate) fn set_crcs(&mut self, segment: u32, crcs: &[Crc32c]) {
        self.read_states[segment as usize].crcs[..crcs.len()].copy_from_slice(crcs);
    }

    /// Checksums of all blocks of a segment that is not free.
    pub(crate) fn crcs(&self, segment: u32) -> &[Crc32c] {
        &self.read_states[segment as usize].crcs
    }

    /// Has the checksums of a run loaded, which will be wanted.
    pub(crate) fn prefetch_crcs(&self, position: CacheBlock, block_count: u32) {
        let (segment, block) = self.locate(position);
        let run = &self.crcs(segment)[block as usize..][..block_count as usize];
        run.chunks(CRCS_PER_LINE).for_each(|line| prefetch(&line[0]));
    }

    /// The stretch of a queue that a segment is.
    pub(crate) fn stretch(&self, segment: u32) -> &Stretch {
        &self.read_states[segment as usize].stretch
    }

    pub(crate) fn stretch_mut(&mut self, segment: u32) -> &mut Stretch {
        &mut self.read_states[segment as usize].stretch
    }

    /// A read of the segment began.
    pub(crate) fn pin(&mut self, segment: u32) {
        self.read_states[segment as usize].pins += 1;
    }

    /// A read of the segment ended.
    pub(crate) fn unpin(&mut self, segment: u32) {
        self.read_states[segment as usize].pins -= 1;
    }

    /// Reads of the segment under way.
    pub(crate) fn pins(&self, segment: u32) -> u32 {
        self.read_states[segment as usize].pins
    }

    pub(crate) fn is_dirty(&self, position: CacheBlock) -> bool {
        let (segment, block) = self.locate(position);
        bit(&self.segments[segment as usize].bits.dirty, block)
    }

    /// Whether the origin has the same. A copy that has been superseded may have been dirty: its
    /// bits are gone, and it counts as neither.
    pub(crate) fn is_clean(&self, position: CacheBlock) -> bool {
        self.is_live(position) && !self.is_dirty(position)
    }

    pub(crate) fn is_live(&self, position: CacheBlock) -> bool {
        let (segment, block) = self.locate(position);
        bit(&self.segments[segment as usize].bits.live, block)
    }

    /// The blocks of a run are the newest copies of what they hold.
    pub(crate) fn set_live(&mut self, position: CacheBlock, block_count: u32) {
        let (id, block) = self.locate(position);
        let segment = &mut self.segments[id as usize];
        segment.live += set_run(&mut Arc::make_mut(&mut segment.bits).live, block, block_count);
    }

    /// The origin may not have the blocks of a run, which are the newest copies.
    pub(crate) fn set_dirty(&mut self, position: CacheBlock, block_count: u32) {
        let (id, block) = self.locate(position);
        let before = self.held_blocks_of(id);
        let segment = &mut self.segments[id as usize];
        assert!(has_run(&segment.bits.live, block, block_count));
        let added = set_run(&mut Arc::make_mut(&mut segment.bits).dirty, block, block_count);
        segment.dirty += added;
        self.dirty_blocks += u64::from(added);
        self.held_blocks += self.held_blocks_of(id) - before;
    }

    /// The block is no longer the newest copy. Tells whether it was dirty.
    pub(crate) fn clear_live(&mut self, position: CacheBlock) -> bool {
        let was_dirty = self.clear_dirty(position);
        let (id, block) = self.locate(position);
        let segment = &mut self.segments[id as usize];
        if bit(&segment.bits.live, block) {
            clear_bit(&mut Arc::make_mut(&mut segment.bits).live, block);
            segment.live -= 1;
        }
        was_dirty
    }

    /// Something newer was appended. Tells whether the copy was dirty.
    pub(crate) fn supersede(&mut self, position: CacheBlock, old: Superseded) -> bool {
        if old == Superseded::Dead || !self.is_live(position) || !self.is_dirty(position) {
            return self.clear_live(position);
        }
        let (id, block) = self.locate(position);
        let before = self.held_blocks_of(id);
        let segment = &mut self.segments[id as usize];
        clear_bit(&mut Arc::make_mut(&mut segment.bits).live, block);
        segment.live -= 1;
        segment.retained += 1;
        self.held_blocks += self.held_blocks_of(id) - before;
        true
    }

    /// A copy that is not the newest, and that the origin needs.
    pub(crate) fn set_retained(&mut self, position: CacheBlock) {
        assert!(!self.is_live(position));
        let (id, block) = self.locate(position);
        let before = self.held_blocks_of(id);
        let segment = &mut self.segments[id as usize];
        if set_bit(&mut Arc::make_mut(&mut segment.bits).dirty, block) {
            segment.dirty += 1;
            segment.retained += 1;
            self.dirty_blocks += 1;
            self.held_blocks += self.held_blocks_of(id) - before;
        }
    }

    /// Whether it is not the newest copy, and the origin needs it.
    pub(crate) fn is_retained(&self, position: CacheBlock) -> bool {
        self.is_dirty(position) && !self.is_live(position)
    }

    /// The origin has the block. Tells whether it was dirty and the newest copy.
    pub(crate) fn clear_dirty(&mut self, position: CacheBlock) -> bool {
        if !self.is_dirty(position) {
            return false;
        }
        let is_live = self.is_live(position);
        let (id, block) = self.locate(position);
        let before = self.held_blocks_of(id);
        let segment = &mut self.segments[id as usize];
        clear_bit(&mut Arc::make_mut(&mut segment.bits).dirty, block);
        segment.dirty -= 1;
        segment.retained -= u32::from(!is_live);
        self.dirty_blocks -= 1;
        self.held_blocks -= before - self.held_blocks_of(id);
        is_live
    }

    /// Something of an ordered volume, dirty, was appended to the segment.
    pub(crate) fn note_lowest(&mut self, id: u32, slot: VolumeSlot, version: Version) {
        let lowest = &mut self.segments[id as usize].lowest;
        match lowest.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, least)) => *least = version.min(*least),
            None => lowest.push((slot, version)),
        }
    }

    /// Bytes of memory for checksums and bits.
    pub(crate) fn memory_bytes(&self) -> usize {
        let used = self.segments.len() - self.free.len();
        self.table_bytes() + used * self.bytes_per_segment()
    }

    /// Bytes of memory that a segment with data takes for its checksums and bits.
    pub(crate) fn bytes_per_segment(&self) -> usize {
        let bits = 2 * self.segment_blocks.div_ceil(64) as usize * 8;
        self.segment_blocks as usize * size_of::<Crc32c>() + bits
    }

    /// Bytes of memory of the table alone.
    pub(crate) fn table_bytes(&self) -> usize {
        self.segments.len() * (size_of::<Segment>() + size_of::<ReadState>())
    }
}

fn no_checksums(blocks: u32) -> Box<[Crc32c]> {
    vec![Crc32c(0); blocks as usize].into_boxed_slice()
}
