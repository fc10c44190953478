//! What the engine is told about its devices, its volumes and the operator's wishes.

use crate::policy::PolicyKind;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS_MAX, VolumeSlot};

/// How a volume uses the cache. See `docs/durability.md` for what can be lost in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// A write is answered when the log has it.
    Writeback,
    /// A write is answered when the log and the origin have it.
    Writethrough,
    /// A write goes to the origin; the cached copy is invalidated.
    Writearound,
    /// Writeback that never promotes reads.
    Writeonly,
    /// Everything goes to the origin; the cache holds nothing of the volume.
    Passthrough,
}

impl CacheMode {
    /// Whether dirty data stays in the log in this mode.
    #[must_use]
    pub fn keeps_dirty(self) -> bool {
        matches!(self, CacheMode::Writeback | CacheMode::Writeonly)
    }
}

/// The cache device, as the host found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheFacts {
    /// Usable size.
    pub size_bytes: u64,
    /// Whether completed writes can be lost in a power cut. Always true for files.
    pub has_volatile_cache: bool,
    /// Whether discards reach something that profits.
    pub supports_discard: bool,
}

/// An origin, as the host found it. It is at least as large as its volume, whose size stands in the
/// volume table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginFacts {
    /// Preferred I/O size (full stripe of a RAID); zero if the device states none.
    pub optimal_io_bytes: u32,
    /// Whether distance costs time.
    pub is_rotational: bool,
    /// Whether completed writes can be lost in a power cut. Always true for files.
    pub has_volatile_cache: bool,
    /// Whether discards reach something that profits.
    pub supports_discard: bool,
}

/// What the host state file says of a volume at start (rule 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostMark {
    /// Nothing is known that the cache device does not know itself.
    #[default]
    None,
    /// The volume was written without its cache: the cache device is outdated for it.
    ServedWithoutCache,
}

/// One volume at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginOpening {
    /// Slot in the volume table.
    pub slot: VolumeSlot,
    /// `None` if the origin could not be opened: the volume is then not served and its data is
    /// kept.
    pub facts: Option<OriginFacts>,
    /// From the host state file.
    pub mark: HostMark,
}

/// Settings of a cache set that may change at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetSettings {
    /// Bound on the engine's memory for index, checksums and bits, in bytes.
    pub memory_max_bytes: u64,
    /// Whether freed segments are discarded on the cache device.
    pub discard_freed_segments: bool,
    /// Share of the log that may hold dirty data before writers are slowed down, in percent.
    pub dirty_soft_percent: u8,
    /// Share that dirty data should not exceed, in percent; more than the soft one. It leaves room
    /// for clean data.
    pub dirty_hard_percent: u8,
    /// Bytes a day that are appended for what need not be on the cache device: promotions, and
    /// writes in writethrough, each with a header. What reclaim moves later is not among them.
    /// Beyond them only what was seen before is cached. Zero is no bound;
    /// at most [`CACHE_WRITE_BUDGET_MAX`].
    pub cache_write_budget_bytes_per_day: u64,
    /// Which clean blocks stay.
    pub policy: PolicyKind,
}

impl SetSettings {
    /// Whether every value is within its range.
    #[must_use]
    pub fn are_valid(&self) -> bool {
        SetSettings::are_marks(self.dirty_soft_percent, self.dirty_hard_percent)
            && self.cache_write_budget_bytes_per_day <= CACHE_WRITE_BUDGET_MAX
    }

    /// Whether a soft and a hard mark can be kept.
    #[must_use]
    pub fn are_marks(soft_percent: u8, hard_percent: u8) -> bool {
        soft_percent > 0 && soft_percent < hard_percent && hard_percent <= DIRTY_HARD_PERCENT_MAX
    }
}

/// Largest hard mark: what is behind it is for clean data and for reclaim.
pub const DIRTY_HARD_PERCENT_MAX: u8 = 95;
/// Largest `cache_write_budget_bytes_per_day`: 1 PiB, 13 GB a second.
pub const CACHE_WRITE_BUDGET_MAX: u64 = 1 << 50;

/// Bytes of a large log over which writers are slowed down: room for four of the largest windows of
/// writeback. With more a full cache would be no faster, and take less of a burst.
const SLOWING_BYTES: u64 = 2 << 30;

impl SetSettings {
    /// Those of a new cache set whose log holds so many bytes: the soft mark of a large one is
    /// higher than that of [`SetSettings::default`].
    #[must_use]
    pub fn for_log(log_bytes: u64) -> SetSettings {
        let settings = SetSettings::default();
        let span_percent = (SLOWING_BYTES * 100).div_ceil(log_bytes.max(1)).min(100);
        let span_percent = u8::try_from(span_percent).expect("a percentage");
        let highest = settings.dirty_hard_percent.saturating_sub(span_percent);
        SetSettings { dirty_soft_percent: settings.dirty_soft_percent.max(highest), ..settings }
    }
}

impl Default for SetSettings {
    /// A writer that never pauses comes to rest half way between the marks, and what is left from
    /// there is the size of windows: the lower the soft mark, the faster a full cache is in the
    /// long run, and the less of a burst it takes. bcache begins to let writes go around at 40 %.
    fn default() -> Self {
        SetSettings {
            memory_max_bytes: u64::MAX,
            discard_freed_segments: true,
            dirty_soft_percent: 40,
            dirty_hard_percent: 90,
            cache_write_budget_bytes_per_day: 0,
            policy: PolicyKind::Clock2q,
        }
    }
}

/// Order in which dirty data reaches the origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WritebackOrder {
    /// By origin position; superseded blocks are skipped. The origin alone is a state of the volume
    /// only when nothing is dirty.
    #[default]
    Coalescing,
    /// By flush epoch: the origin alone is always a state that a crash could have left.
    Ordered,
}

/// When `sequential_cutoff_bytes` is heeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SequentialPolicy {
    /// Once the cache is full: a stream costs nothing while nothing has to go for it.
    #[default]
    Full,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Settings of a volume that may change at run time; durable in the volume table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeSettings {
    /// A read stream longer than this is not promoted, when `sequential_policy` says so. Zero
    /// switches the rule off.
    pub sequential_cutoff_bytes: u64,
    /// When that holds.
    pub sequential_policy: SequentialPolicy,
    /// Whether what reads miss is copied to the cache.
    pub promote_on_read: bool,
    /// Whether what is written in writethrough goes to the cache if it was not there. In writeback
    /// and writeonly dirty data goes there in any case.
    pub promote_on_write: bool,
    /// At which of its misses a block is promoted: 1 to [`PROMOTION_NHIT_MAX`].
    pub promotion_nhit: u8,
    /// Share of the cache that may be dirty before writeback starts, in percent.
    pub writeback_percent: u8,
    /// Bytes that a small miss on a slow origin may fetch in all: the aligned window around it.
    /// Whole blocks, at most [`READ_AHEAD_BYTES_MAX`]. Zero switches read-ahead off.
    pub read_ahead_bytes: u32,
    /// Seconds that dirty data rests before it goes home while the origin is idle.
    pub writeback_delay_s: u32,
    /// Bytes a second that go home at least while clients use the origin, if more is dirty than
    /// `writeback_percent`.
    pub writeback_rate_min_bytes: u64,
    /// Bytes a second that go home at most; zero is no bound.
    pub writeback_rate_max_bytes: u64,
    /// Transfers of writeback under way at most; zero leaves the choice to the engine.
    pub writeback_ios_max: u16,
    /// Whether dirty data waits until the origin is in use anyway, or `dirty_age_max_s` has passed:
    /// for disks that sleep.
    pub writeback_idle_only: bool,
    /// Seconds after which dirty data goes home even if that wakes the origin.
    pub dirty_age_max_s: u32,
    /// Seconds for which a request waits for an origin that does not answer, or answers with errors
    /// that may pass. Zero: its errors are answered as they come, and it may take its time.
    pub origin_timeout_s: u32,
    /// Percent of the log: clean blocks of a volume that has no more cached are not dropped. At
    /// most `share_max_percent`.
    pub share_min_percent: u8,
    /// Percent of the log: a volume that has as much cached promotes no more. 1 to 100; 100 is no
    /// bound.
    pub share_max_percent: u8,
}

/// Longest `origin_timeout_s`: a day.
pub const ORIGIN_TIMEOUT_S_MAX: u32 = 24 * 3600;
/// What `origin_timeout_s` is until it is set: as long as Linux waits for a SCSI disk
/// (`SD_TIMEOUT`).
pub const ORIGIN_TIMEOUT_S: u32 = 30;

/// Largest `promotion_nhit`: what the memory of misses counts to.
pub const PROMOTION_NHIT_MAX: u8 = 15;
/// Largest `writeback_ios_max`.
pub const WRITEBACK_IOS_MAX: u16 = 256;
/// Longest `writeback_delay_s` and `dirty_age_max_s`: a week.
pub const DIRTY_SECONDS_MAX: u32 = 7 * 24 * 3600;
/// Largest bound on the rate of writeback, bytes a second.
pub const WRITEBACK_RATE_MAX: u64 = 1 << 40;

impl VolumeSettings {
    /// Whether every value is within its range.
    #[must_use]
    pub fn are_valid(&self) -> bool {
        let (least, most) = (self.writeback_rate_min_bytes, self.writeback_rate_max_bytes);
        self.writeback_percent <= 100
            && (1..=PROMOTION_NHIT_MAX).contains(&self.promotion_nhit)
            && self.read_ahead_bytes <= READ_AHEAD_BYTES_MAX
            && self.read_ahead_bytes.is_multiple_of(BLOCK_BYTES as u32)
            && self.writeback_delay_s <= DIRTY_SECONDS_MAX
            && self.dirty_age_max_s <= DIRTY_SECONDS_MAX
            && self.origin_timeout_s <= ORIGIN_TIMEOUT_S_MAX
            && self.writeback_ios_max <= WRITEBACK_IOS_MAX
            && most <= WRITEBACK_RATE_MAX
            && least <= if most == 0 { WRITEBACK_RATE_MAX } else { most }
            && (1..=100).contains(&self.share_max_percent)
            && self.share_min_percent <= self.share_max_percent
    }
}

/// Largest window of read-ahead: one extent.
pub const READ_AHEAD_BYTES_MAX: u32 = EXTENT_BLOCKS_MAX * BLOCK_BYTES as u32;

impl Default for VolumeSettings {
    /// 1 MiB is Open CAS's default; 10 % is bcache's `writeback_percent`, and 30 s its
    /// `writeback_delay`; at 64 KiB a hard disk of 150 MB/s transfers for .4 ms of a trip of 8 ms.
    /// A block a second brings everything home some day.
    fn default() -> Self {
        VolumeSettings {
            sequential_cutoff_bytes: 1 << 20,
            sequential_policy: SequentialPolicy::Full,
            promote_on_read: true,
            promote_on_write: true,
            promotion_nhit: 1,
            writeback_percent: 10,
            read_ahead_bytes: 64 << 10,
            writeback_delay_s: 30,
            writeback_rate_min_bytes: BLOCK_BYTES as u64,
            writeback_rate_max_bytes: 0,
            writeback_ios_max: 0,
            writeback_idle_only: false,
            dirty_age_max_s: 600,
            origin_timeout_s: ORIGIN_TIMEOUT_S,
            share_min_percent: 0,
            share_max_percent: 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_log_takes_a_larger_burst() {
        let soft = |gib: u64| SetSettings::for_log(gib << 30).dirty_soft_percent;
        assert_eq!((soft(0), soft(1), soft(4)), (40, 40, 40));
        // 2 GiB below nine tenths.
        assert_eq!((soft(5), soft(8), soft(16), soft(64)), (50, 65, 77, 86));
        for log_bytes in [0, 99, 1 << 20, 1 << 30, 1 << 34, 1 << 40, 1 << 50] {
            let settings = SetSettings::for_log(log_bytes);
            assert!(settings.are_valid(), "{log_bytes}: {settings:?}");
        }
    }
}
