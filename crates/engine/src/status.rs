//! Counters and states, for people and monitoring. Plain integers; a host may reset counters.

use alloc::vec::Vec;

pub use crate::admission::{Access, Decision, Outcome};
use crate::io::IoError;
use crate::options::{CacheMode, SetSettings, VolumeSettings, WritebackOrder};
use crate::units::{OriginExtent, VolumeSlot};

/// Why a read that missed was not promoted, or a write went around the log (promise 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BypassReason {
    /// Part of a long sequential stream.
    Sequential,
    /// The cache mode does not promote reads, or writes around.
    Mode,
    /// The log has no room for promotions now.
    NoRoom,
    /// The memory bound is reached, or a prefetch found no buffer.
    Memory,
    /// A write to the block came while the origin was read.
    Overwritten,
    /// The block was written around the log and the origin was not flushed since.
    OriginNotFlushed,
    /// A larger read around it failed on the origin.
    OriginError,
    /// Going around took less time than waiting for room in a log that is full of dirty data.
    LogFull,
    /// The cache device failed repeatedly.
    CacheDegraded,
    /// The cache device failed.
    CacheFailed,
    /// The volume promotes nothing on reads.
    PromoteOnRead,
    /// The volume promotes nothing on writes, and nothing of the blocks was cached.
    PromoteOnWrite,
    /// The blocks were not missed often enough yet.
    PromotionNhit,
    /// The budget of writes is used up, and the blocks were not missed before.
    CacheWriteBudget,
    /// The volume has as much of the cache as it may have.
    ShareMax,
}

/// Why blocks went to the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmitReason {
    /// No setting limits it.
    NoLimit,
    /// The budget of writes was not used up.
    WithinBudget,
    /// They were missed before, as often as it takes.
    SeenBefore,
    /// The client asked for them to be cached.
    Prefetch,
    /// They replace copies that were bad.
    Repair,
    /// They were written through, and were cached.
    Cached,
    /// They were written, and may be on the cache device only.
    Dirty,
    /// They are pinned, and a setting would have kept them out.
    Pinned,
}

impl AdmitReason {
    /// All reasons, in the order of [`VolumeCounters::admissions`].
    pub const ALL: [AdmitReason; 8] = [
        AdmitReason::NoLimit,
        AdmitReason::WithinBudget,
        AdmitReason::SeenBefore,
        AdmitReason::Prefetch,
        AdmitReason::Repair,
        AdmitReason::Cached,
        AdmitReason::Dirty,
        AdmitReason::Pinned,
    ];

    /// Stable name for metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AdmitReason::NoLimit => "no_limit",
            AdmitReason::WithinBudget => "within_budget",
            AdmitReason::SeenBefore => "seen_before",
            AdmitReason::Prefetch => "prefetch",
            AdmitReason::Repair => "repair",
            AdmitReason::Cached => "cached",
            AdmitReason::Dirty => "dirty",
            AdmitReason::Pinned => "pinned",
        }
    }

    /// Its place in [`AdmitReason::ALL`].
    pub(crate) fn index(self) -> usize {
        AdmitReason::ALL.iter().position(|other| *other == self).expect("ALL has all")
    }
}

impl BypassReason {
    /// All reasons, in the order of [`VolumeCounters::bypasses`].
    pub const ALL: [BypassReason; 15] = [
        BypassReason::Sequential,
        BypassReason::Mode,
        BypassReason::NoRoom,
        BypassReason::Memory,
        BypassReason::Overwritten,
        BypassReason::OriginNotFlushed,
        BypassReason::OriginError,
        BypassReason::LogFull,
        BypassReason::CacheDegraded,
        BypassReason::CacheFailed,
        BypassReason::PromoteOnRead,
        BypassReason::PromoteOnWrite,
        BypassReason::PromotionNhit,
        BypassReason::CacheWriteBudget,
        BypassReason::ShareMax,
    ];

    /// Stable name for metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BypassReason::Sequential => "sequential",
            BypassReason::Mode => "mode",
            BypassReason::NoRoom => "no_room",
            BypassReason::Memory => "memory",
            BypassReason::Overwritten => "overwritten",
            BypassReason::OriginNotFlushed => "origin_not_flushed",
            BypassReason::OriginError => "origin_error",
            BypassReason::LogFull => "log_full",
            BypassReason::CacheDegraded => "cache_degraded",
            BypassReason::CacheFailed => "cache_failed",
            BypassReason::PromoteOnRead => "promote_on_read",
            BypassReason::PromoteOnWrite => "promote_on_write",
            BypassReason::PromotionNhit => "promotion_nhit",
            BypassReason::CacheWriteBudget => "cache_write_budget",
            BypassReason::ShareMax => "share_max",
        }
    }

    /// Its place in [`BypassReason::ALL`].
    pub(crate) fn index(self) -> usize {
        BypassReason::ALL.iter().position(|other| *other == self).expect("ALL has all")
    }

    /// Whether a copy was wanted and could not be kept; otherwise going around was meant.
    #[must_use]
    pub fn is_reject(self) -> bool {
        !matches!(
            self,
            BypassReason::Sequential
                | BypassReason::Mode
                | BypassReason::LogFull
                | BypassReason::PromoteOnRead
                | BypassReason::PromoteOnWrite
                | BypassReason::PromotionNhit
                | BypassReason::CacheWriteBudget
                | BypassReason::ShareMax
        )
    }

    /// Whether pinned blocks are promoted all the same: it is a choice, not a need.
    pub(crate) fn yields_to_pins(self) -> bool {
        matches!(
            self,
            BypassReason::Sequential
                | BypassReason::PromoteOnRead
                | BypassReason::PromoteOnWrite
                | BypassReason::PromotionNhit
                | BypassReason::CacheWriteBudget
                | BypassReason::ShareMax
        )
    }
}

/// Counters of one volume since start or reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeCounters {
    /// Read requests of which every block was cached.
    pub read_hits: u64,
    /// Read requests of which no block was cached.
    pub read_misses: u64,
    /// Read requests of which some blocks were cached.
    pub read_partial_hits: u64,
    /// Bytes read by clients, from the cache.
    pub read_hit_bytes: u64,
    /// Bytes read by clients, from the origin.
    pub read_miss_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// Writes, discards and write zeroes with FUA.
    pub fua_writes: u64,
    /// Discard requests.
    pub discards: u64,
    /// Write zeroes requests.
    pub write_zeroes: u64,
    /// Prefetch requests.
    pub prefetches: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Reads that waited for another's origin read instead of issuing one.
    pub coalesced_misses: u64,
    /// Blocks copied from origin to cache.
    pub promoted_blocks: u64,
    /// Blocks of these that nobody had asked for: read-ahead.
    pub read_ahead_blocks: u64,
    /// Blocks of these that were read later.
    pub read_ahead_used_blocks: u64,
    /// Blocks not promoted, or written around, by reason; see [`BypassReason::ALL`].
    pub bypasses: [u64; BypassReason::ALL.len()],
    /// Blocks promoted, or written to the log, by reason; see [`AdmitReason::ALL`].
    pub admissions: [u64; AdmitReason::ALL.len()],
    /// Clean blocks that reclaim appended again since they are pinned.
    pub pinned_kept_blocks: u64,
    /// The same for `share_min_percent`.
    pub share_kept_blocks: u64,
    /// Clean pinned blocks that reclaim dropped all the same: nothing else was left to drop.
    pub pinned_dropped_blocks: u64,
    /// Clean blocks that reclaim dropped though the volume had no more than `share_min_percent`.
    pub share_dropped_blocks: u64,
    /// Clean blocks with a bad checksum that were read from the origin instead.
    pub repaired_blocks: u64,
    /// Dirty blocks that could not be read and are errors until overwritten.
    pub poisoned_blocks: u64,
    /// Older copies of blocks that writeback in order owed to the origin, and that could not be
    /// read: the origin alone was no crash state for a while.
    pub order_lost_blocks: u64,
    /// Blocks that were answered and not flushed, and that a cache device which went and came back
    /// did not have.
    pub lost_blocks: u64,
    /// Dirty blocks written back.
    pub writeback_blocks: u64,
    /// Blocks between them that were written along, as the origin held them.
    pub writeback_gap_blocks: u64,
    /// Device writes that wrote them.
    pub writeback_ios: u64,
    /// Blocks of origins read so that what lies between dirty blocks could be written along.
    pub writeback_read_blocks: u64,
    /// Device reads that read them.
    pub writeback_reads: u64,
    /// Failed origin operations.
    pub origin_errors: u64,
    /// Operations of these that were to be tried again for a request.
    pub origin_retries: u64,
    /// Requests that were answered with an error because the origin took too long.
    pub origin_timeouts: u64,
    /// Origin flushes.
    pub origin_flushes: u64,
}

/// Counters of the cache set since start or reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetCounters {
    /// Records appended.
    pub records: u64,
    /// Of them those without entries, which say that what was written before a pause is durable.
    pub idle_marks: u64,
    /// Bytes of client payload written to the log.
    pub client_bytes: u64,
    /// Bytes of promotions written to the log.
    pub promoted_bytes: u64,
    /// Bytes appended again at reclaim.
    pub relocated_bytes: u64,
    /// Bytes of headers, summaries, checkpoints and superblocks.
    pub metadata_bytes: u64,
    /// Flushes of the cache device.
    pub cache_flushes: u64,
    /// Failed cache device operations.
    pub cache_errors: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Segments made free.
    pub reclaimed_segments: u64,
    /// Clean blocks dropped at reclaim.
    pub dropped_blocks: u64,
    /// Writes that waited for log space.
    pub space_waits: u64,
    /// Writes that were slowed down, since the log was filling up with dirty data.
    pub throttled_writes: u64,
    /// Microseconds for which they were, in all.
    pub throttled_us: u64,
}

impl SetCounters {
    /// All bytes written to the cache device.
    #[must_use]
    pub fn cache_written_bytes(&self) -> u64 {
        self.client_bytes + self.promoted_bytes + self.relocated_bytes + self.metadata_bytes
    }
}

/// Whether a volume is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeState {
    /// The origin could not be opened; data is kept.
    OriginMissing,
    /// Served.
    Serving,
    /// Served while a mode change, drain or detach writes dirty data back.
    Draining,
    /// Served from the origin alone, because the cache device failed.
    WithoutCache,
    /// Not served: the cache device failed and holds dirty data.
    Quiesced,
    /// Not served: it is being detached, and its dirty data thrown away.
    Discarding,
}

/// How an origin does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OriginState {
    /// It does what it is asked for.
    Ok,
    /// Something failed and is tried again.
    Retrying,
    /// An operation has been under way for five seconds and more.
    Stalled,
}

/// How an origin does, and what waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginStatus {
    /// State.
    pub state: OriginState,
    /// Milliseconds for which it is in this state: since the first failure, or for which the oldest
    /// operation is under way. Zero if it is well.
    pub state_ms: u64,
    /// Requests that wait for it, and were not answered.
    pub requests_waiting: u64,
    /// Requests that were answered with an error since it took too long, and have not ended there.
    pub requests_late: u64,
    /// Bytes of such requests, of all volumes; at most [`crate::ORIGIN_LATE_BYTES_MAX`].
    pub late_bytes: u64,
    /// Milliseconds for which the oldest of the first waits.
    pub oldest_wait_ms: u64,
    /// Milliseconds until what it did not take is written home again.
    pub writeback_retry_ms: Option<u64>,
    /// Why an operation failed last, and how many milliseconds ago.
    pub last_error: Option<(IoError, u64)>,
}

/// State of one volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeStatus {
    /// Slot.
    pub slot: VolumeSlot,
    /// State.
    pub state: VolumeState,
    /// Mode in force.
    pub mode: CacheMode,
    /// Order of writeback in force.
    pub order: WritebackOrder,
    /// Flush epochs that have ended and are not on the origin yet; zero in coalescing order.
    pub epochs_waiting: u64,
    /// Settings in force.
    pub settings: VolumeSettings,
    /// Blocks in the cache.
    pub cached_blocks: u64,
    /// Extents in the index.
    pub cached_extents: u64,
    /// Pinned ranges, in order.
    pub pinned: Vec<OriginExtent>,
    /// Blocks newer than the origin.
    pub dirty_blocks: u64,
    /// Milliseconds since the oldest dirty block still there was written (or recovered); zero if
    /// none.
    pub dirty_age_ms: u64,
    /// What the origin did not take the last time it was written home, in order: at most 64
    /// extents. It stays dirty and is written again.
    pub failed_extents: Vec<OriginExtent>,
    /// Requests under way or waiting.
    pub requests_in_flight: u64,
    /// Requests that wait for a command or for the cache device; part of those in flight.
    pub requests_waiting: u64,
    /// Milliseconds for which requests still wait for a cache device that is gone.
    pub return_wait_ms: Option<u64>,
    /// How the origin does, and what waits for it.
    pub origin: OriginStatus,
    /// Counters.
    pub counters: VolumeCounters,
}

/// How writeback of a volume is paced while clients use its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritebackPace {
    /// Dirty blocks that `writeback_percent` allows.
    pub target_blocks: u64,
    /// The rate that the controller set last; zero if it never had to.
    pub blocks_per_second: u64,
}

/// Failed operations of the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheErrors {
    /// Reads.
    pub reads: u32,
    /// Writes and flushes.
    pub writes: u32,
}

impl CacheErrors {
    /// All of them.
    #[must_use]
    pub fn total(self) -> u32 {
        self.reads + self.writes
    }
}

/// Why the cache device was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheFailure {
    /// It is gone.
    Gone,
    /// Writes failed again and again.
    Writes,
    /// A flush failed.
    Flush,
}

/// How far the cache device can be relied upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheHealth {
    /// Without reserve.
    Good,
    /// It failed repeatedly: what it holds is served and written back, nothing new is cached. Has
    /// what came together within about an hour.
    Degraded(CacheErrors),
    /// It is not used any more.
    Failed(CacheFailure),
}

/// State of the cache set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetStatus {
    /// Whether recovery is done and requests are served.
    pub is_serving: bool,
    /// Whether the cache device works.
    pub cache_health: CacheHealth,
    /// Segments on the device.
    pub segments: u32,
    /// Segments without data.
    pub free_segments: u32,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Blocks that pinned ranges and all `share_min` may come to.
    pub kept_blocks_max: u64,
    /// Blocks the index points at.
    pub cached_blocks: u64,
    /// Blocks newer than their origin.
    pub dirty_blocks: u64,
    /// Dirty blocks a second that went home when writeback was last under way.
    pub writeback_blocks_per_second: Option<u64>,
    /// Bytes of memory of index, checksums and bits.
    pub memory_bytes: u64,
    /// Bytes of these that the set needs with nothing cached: a lower bound cannot be kept.
    pub memory_floor_bytes: u64,
    /// Settings in force.
    pub settings: SetSettings,
    /// Milliseconds that recovery took.
    pub recovery_ms: u64,
    /// Records read at recovery.
    pub recovered_records: u64,
    /// Progress of recovery: segments read so far and in all.
    pub recovery_segments: (u32, u32),
    /// Counters.
    pub counters: SetCounters,
}

/// State of a run of blocks, for maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// Only on the origin.
    NotCached,
    /// In the cache and the same on the origin.
    Clean,
    /// In the cache and newer than the origin.
    Dirty,
}
