//! The log: segments filled front to back with records.
//!
//! `segments` is the table of segments with their bits and checksums. `append` puts entries into
//! records, `complete` makes them visible, `rewrite` moves what a failed write took along.

pub(crate) mod append;
mod complete;
mod rewrite;
pub(crate) mod segments;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::failure::hand_over::Unflushed;
use crate::flush_group::{FlushGroup, FlushNumber};
use crate::format::SetId;
use crate::format::record::Entry;
use crate::format::superblock::Geometry;
use crate::index::{BlankKind, Piece, Place};
use crate::payload::{BufferId, BufferRange};
use crate::slab::{Key, Slab};
use crate::units::{CacheBlock, RecoveryEpoch, SequenceNumber, Version, VolumeSlot};
use crate::wake::Waiter;
use segments::SegmentTable;

/// Streams with an open segment each, so that lifetimes do not mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// Client writes.
    Client,
    /// Promotions.
    Promote,
    /// Relocations, drops, invalidations, marks, poison: what the reserve is for (rule 11).
    Relocate,
}

pub(crate) const STREAMS: [Stream; 3] = [Stream::Client, Stream::Promote, Stream::Relocate];
/// Segments that only failed writes may open: one for each open segment (rule 11).
pub(crate) const SPARE_SEGMENTS: u32 = 3;
/// Segments that only `Stream::Relocate` may open.
pub(crate) const RESERVE_SEGMENTS: u32 = 3;
/// Blocks of the log that the drops of one round of reclaim take at most (rule 11).
pub(crate) const DROPS_OF_ROUND: u32 = 8;
/// A segment of which at most one of so many blocks is alive is mostly dead: it pays to move them.
pub(crate) const MOSTLY_DEAD_DIVISOR: u32 = 4;
/// Segments that promotions leave to writes, so that fills never slow writes.
pub(crate) const PROMOTE_MARGIN_SEGMENTS: u32 = 2;
/// Free segments below which segments are reclaimed, of so many.
pub(crate) fn free_low(segments: u32) -> u32 {
    RESERVE_SEGMENTS + SPARE_SEGMENTS + (segments / 32).max(4)
}

/// Free segments at which reclaim rests.
pub(crate) fn free_target(segments: u32) -> u32 {
    free_low(segments) + (segments / 64).max(2)
}

/// Records of a stream under way before further writes wait to share the next one. Enough to keep
/// an SSD busy, few enough to gather batches.
pub(crate) const RECORDS_IN_FLIGHT_MAX: usize = 4;
/// Failed record writes in a row after which the cache device counts as failed.
pub(crate) const WRITE_FAILURES_MAX: u32 = 8;

/// An entry of a record under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordEntry {
    /// `None` for drops.
    pub(crate) slot: Option<VolumeSlot>,
    pub(crate) entry: Entry,
    /// First payload block within the segment; for entries without payload the header's block.
    pub(crate) block: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordState {
    /// Takes entries.
    Building,
    /// Has its sequence number, waits to be handed to the host.
    Closed,
    /// At the device.
    Writing,
    /// Written; complete once all earlier records of the segment are.
    Written,
    /// The device failed to write it.
    Failed,
}

pub(crate) struct Record {
    pub(crate) stream: Stream,
    pub(crate) state: RecordState,
    pub(crate) segment: u32,
    /// Block of the header within the segment.
    pub(crate) block: u32,
    pub(crate) payload_blocks: u32,
    /// Those of them that are promoted.
    pub(crate) promoted_blocks: u32,
    /// Entries of what is moved from elsewhere in the log, where it still is.
    pub(crate) moved_entries: usize,
    pub(crate) entries: Vec<RecordEntry>,
    pub(crate) slices: Vec<BufferRange>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) sequence: SequenceNumber,
    /// Numbers under which writing it failed (rule 2).
    pub(crate) replaces: Vec<SequenceNumber>,
    pub(crate) previous: SequenceNumber,
    /// What its header says to be durable.
    pub(crate) vouches_for: SequenceNumber,
    pub(crate) header: Option<BufferId>,
}

impl Record {
    /// The number under which it was first written; those who wait for an old number wait for this.
    pub(crate) fn first_sequence(&self) -> SequenceNumber {
        self.replaces.first().copied().unwrap_or(self.sequence)
    }
}

#[derive(Default)]
pub(crate) struct StreamState {
    pub(crate) open: Option<u32>,
    pub(crate) building: Option<Key>,
    pub(crate) in_flight: usize,
}

/// A record of zeroes, a discard or poison that is in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlankRecord {
    pub(crate) slot: VolumeSlot,
    pub(crate) kind: BlankKind,
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) version: Version,
    /// Blocks of it that nothing appended later has superseded.
    pub(crate) live_blocks: u64,
    /// Blocks of it that the complete index points at.
    pub(crate) mapped_blocks: u64,
}

impl BlankRecord {
    /// All that it covers, as one piece; `header` is where it is.
    pub(crate) fn whole(&self, header: CacheBlock) -> Piece {
        Piece {
            start: self.start,
            block_count: self.block_count,
            version: self.version,
            place: Place::Blank { kind: self.kind, header },
        }
    }

    /// Part of it was superseded: one bit cannot say which.
    pub(crate) fn is_in_pieces(&self) -> bool {
        0 < self.live_blocks && self.live_blocks < self.block_count
    }
}

/// State of the log. Its flows are methods of the engine, since they touch the index as well.
pub(crate) struct Log {
    pub(crate) set_id: SetId,
    pub(crate) segments: SegmentTable,
    pub(crate) streams: [StreamState; 3],
    pub(crate) records: Slab<Record>,
    /// Records with a sequence number, waiting to be handed to the host.
    pub(crate) submit_queue: VecDeque<Key>,
    pub(crate) last_sequence: SequenceNumber,
    pub(crate) next_version: Version,
    pub(crate) recovery_epoch: RecoveryEpoch,
    /// First sequence numbers of records that are not complete.
    pub(crate) incomplete: BTreeSet<u64>,
    /// All records up to this one are durable.
    pub(crate) durable_through: SequenceNumber,
    pub(crate) flushes: FlushGroup,
    /// What the flush under way will make durable.
    pub(crate) flush_covers: SequenceNumber,
    /// Dirty entries of complete records, in the order of completion, that no flush has covered:
    /// what a device that goes and comes back may lack.
    pub(crate) unflushed: VecDeque<Unflushed>,
    /// By position of the header.
    pub(crate) blanks: BTreeMap<u32, BlankRecord>,
    /// Tombstones in the complete maps, oldest first.
    pub(crate) tombstones: VecDeque<Tombstone>,
    /// Flows that wait until all records up to a number are complete.
    pub(crate) frontier_waiters: Vec<(u64, Waiter)>,
    pub(crate) write_failures: u32,
    /// Order in which segments were opened.
    pub(crate) next_open_order: u64,
    /// Closed segments whose summary is not on its way yet.
    pub(crate) without_summary: Vec<u32>,
}

/// What says in a complete map that copies were voided. It goes once every record up to `after` is
/// complete, so that no copy comes that it voids, and the flush `needs` has ended, so that no crash
/// brings one back (rule 3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) after: SequenceNumber,
    pub(crate) needs: FlushNumber,
    pub(crate) slot: VolumeSlot,
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) version: Version,
}

impl Log {
    /// An empty log.
    pub(crate) fn new(set_id: SetId, geometry: &Geometry) -> Log {
        Log {
            set_id,
            segments: SegmentTable::new(geometry.segment_count, geometry.segment_blocks()),
            streams: [StreamState::default(), StreamState::default(), StreamState::default()],
            records: Slab::default(),
            submit_queue: VecDeque::new(),
            last_sequence: SequenceNumber(0),
            next_version: Version(1),
            recovery_epoch: RecoveryEpoch(0),
            incomplete: BTreeSet::new(),
            durable_through: SequenceNumber(0),
            flushes: FlushGroup::default(),
            flush_covers: SequenceNumber(0),
            unflushed: VecDeque::new(),
            blanks: BTreeMap::new(),
            tombstones: VecDeque::new(),
            frontier_waiters: Vec::new(),
            write_failures: 0,
            next_open_order: 1,
            without_summary: Vec::new(),
        }
    }

    pub(crate) fn stream(&self, stream: Stream) -> &StreamState {
        &self.streams[stream as usize]
    }

    pub(crate) fn stream_mut(&mut self, stream: Stream) -> &mut StreamState {
        &mut self.streams[stream as usize]
    }

    /// All records up to this one are complete.
    pub(crate) fn complete_through(&self) -> SequenceNumber {
        self.incomplete.first().map_or(self.last_sequence, |first| SequenceNumber(first - 1))
    }

    /// The device flush that makes the records of a segment durable that are complete now.
    pub(crate) fn segment_flush(&self, segment: u32) -> FlushNumber {
        self.segments.get(segment).flush_needed
    }

    /// The highest version that was taken.
    pub(crate) fn last_version(&self) -> Version {
        Version(self.next_version.0 - 1)
    }

    pub(crate) fn take_version(&mut self) -> Version {
        let version = self.next_version;
        assert!(version.0 + 1 < crate::index::VERSION_LIMIT);
        self.next_version.0 += 1;
        version
    }

    pub(crate) fn position(&self, segment: u32, block: u32) -> CacheBlock {
        CacheBlock(segment * self.segments.segment_blocks() + block)
    }
}
