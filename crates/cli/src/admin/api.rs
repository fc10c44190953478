//! What travels over the admin socket: JSON with stable names in snake case, units last.
//!
//! `forebay status --json` prints [`Status`] as it is, so a name that was once here stays.

use std::collections::BTreeMap;

use forebay_engine::options::VolumeSettings;
use serde::{Deserialize, Serialize};

use crate::names;

/// State of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Version of the daemon.
    pub(crate) version: String,
    /// Process id of the daemon.
    pub(crate) pid: u32,
    /// `recovering`, `serving`, `failed` or `bare`.
    pub(crate) state: String,
    pub(crate) uptime_ms: u64,
    pub(crate) cache_set: Option<CacheSet>,
    pub(crate) exports: Vec<Export>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) devices: Vec<Device>,
    pub(crate) payload_memory: PayloadMemory,
}

/// A device at work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) device: String,
    pub(crate) is_cache: bool,
    pub(crate) operations_in_flight: u32,
    /// Age of the oldest of them.
    pub(crate) oldest_ms: u64,
    /// Those under way for longer than `--io-timeout`.
    pub(crate) late_in_flight: u32,
    /// All that ever took longer.
    pub(crate) late_count: u64,
    /// Reads and writes since it was opened.
    #[serde(default)]
    pub(crate) read_count: u64,
    #[serde(default)]
    pub(crate) read_bytes: u64,
    #[serde(default)]
    pub(crate) write_count: u64,
    #[serde(default)]
    pub(crate) written_bytes: u64,
}

/// A cache set in service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CacheSet {
    pub(crate) set_id: String,
    pub(crate) label: String,
    pub(crate) cache_device: String,
    /// Where this host keeps what it knows of the set.
    #[serde(default)]
    pub(crate) state_file: Option<String>,
    /// `good`, `degraded` or `failed`.
    pub(crate) cache_health: String,
    /// Why it is not good, and what to do.
    pub(crate) cache_trouble: Option<String>,
    pub(crate) is_cache_failed: bool,
    pub(crate) recovery_error: Option<String>,
    pub(crate) segment_bytes: u64,
    pub(crate) segment_count: u32,
    pub(crate) free_segment_count: u32,
    pub(crate) cached_bytes: u64,
    /// What pinned ranges and `share_min` of all volumes may come to.
    pub(crate) kept_bytes_max: u64,
    pub(crate) dirty_bytes: u64,
    /// How fast dirty data went home when writeback was last under way.
    pub(crate) writeback_bytes_per_second: Option<u64>,
    /// Share of the segments that hold data.
    pub(crate) occupancy: f64,
    /// Memory of index, checksums and bits.
    pub(crate) memory_bytes: u64,
    pub(crate) memory_floor_bytes: u64,
    /// Absent if there is no bound.
    pub(crate) memory_max_bytes: Option<u64>,
    pub(crate) discard_freed_segments: bool,
    pub(crate) dirty_soft_percent: u8,
    pub(crate) dirty_hard_percent: u8,
    /// Zero is no bound.
    pub(crate) cache_write_budget_bytes_per_day: u64,
    pub(crate) policy: String,
    pub(crate) recovery_ms: u64,
    pub(crate) recovery_cpu_ms: f64,
    pub(crate) recovered_record_count: u64,
    pub(crate) recovery_segments_done: u32,
    pub(crate) recovery_segments_total: u32,
    /// Bytes written to the cache device, without relocation, per byte of clients' writes and
    /// promotions.
    pub(crate) write_amplification: Option<f64>,
    /// Bytes moved at reclaim per byte of clients' writes and promotions.
    pub(crate) relocation_amplification: Option<f64>,
    /// Flushes, and writes with forced unit access, of all volumes.
    pub(crate) client_flush_count: u64,
    /// Flushes of the cache device, also those of the engine's own, per flush of a client.
    pub(crate) cache_flushes_per_client_flush: Option<f64>,
    /// Caches of half, once, twice and four times the size.
    pub(crate) what_if: Vec<WhatIf>,
    pub(crate) counters: SetCounters,
}

/// What a cache of another size would find of what clients read and write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WhatIf {
    pub(crate) cache_size_bytes: u64,
    /// Part of the blocks of recent requests. Absent before there is evidence.
    pub(crate) hit_ratio_blocks: Option<f64>,
}

/// Counters of a cache set since start or reset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SetCounters {
    pub(crate) record_count: u64,
    pub(crate) idle_mark_count: u64,
    pub(crate) client_bytes: u64,
    pub(crate) promoted_bytes: u64,
    pub(crate) relocated_bytes: u64,
    pub(crate) metadata_bytes: u64,
    pub(crate) cache_written_bytes: u64,
    pub(crate) cache_flush_count: u64,
    pub(crate) cache_error_count: u64,
    pub(crate) checkpoint_count: u64,
    pub(crate) reclaimed_segment_count: u64,
    pub(crate) dropped_block_count: u64,
    pub(crate) space_wait_count: u64,
    pub(crate) throttled_write_count: u64,
    pub(crate) throttled_us: u64,
}

/// An export: a volume, or a bare device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Export {
    pub(crate) name: String,
    /// Spec of the origin or the bare device.
    pub(crate) device: String,
    pub(crate) size_bytes: u64,
    /// Size of the origin of a volume now: more if it was extended and the volume was not.
    #[serde(default)]
    pub(crate) origin_size_bytes: Option<u64>,
    pub(crate) logical_block_bytes: u32,
    pub(crate) is_read_only: bool,
    /// Why it cannot be connected to, if it cannot.
    pub(crate) unavailable: Option<String>,
    /// The block device that the daemon itself serves it as, if it does.
    #[serde(default)]
    pub(crate) block_device: Option<String>,
    /// The socket of virtual machines that it is served at, if it is.
    #[serde(default)]
    pub(crate) vhost_user: Option<String>,
    /// Absent for a bare device.
    pub(crate) volume: Option<Volume>,
    pub(crate) latency: Latency,
}

/// A stretch of a volume.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

/// Settings of a volume, as `status` and `show` print them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) sequential_cutoff_bytes: u64,
    /// `full`, `always` or `never`.
    pub(crate) sequential_policy: String,
    pub(crate) promote_on_read: bool,
    pub(crate) promote_on_write: bool,
    pub(crate) promotion_nhit: u8,
    pub(crate) read_ahead_bytes: u32,
    pub(crate) writeback_percent: u8,
    pub(crate) writeback_delay_s: u32,
    pub(crate) writeback_rate_min_bytes: u64,
    pub(crate) writeback_rate_max_bytes: u64,
    pub(crate) writeback_ios_max: u16,
    pub(crate) writeback_idle_only: bool,
    pub(crate) dirty_age_max_s: u32,
    pub(crate) origin_timeout_s: u32,
    /// Of the cache.
    pub(crate) share_min_percent: u8,
    /// Of the cache; 100 is no bound.
    pub(crate) share_max_percent: u8,
}

impl From<&VolumeSettings> for Settings {
    fn from(settings: &VolumeSettings) -> Settings {
        Settings {
            sequential_cutoff_bytes: settings.sequential_cutoff_bytes,
            sequential_policy: names::sequential_policy_name(settings.sequential_policy).to_owned(),
            promote_on_read: settings.promote_on_read,
            promote_on_write: settings.promote_on_write,
            promotion_nhit: settings.promotion_nhit,
            read_ahead_bytes: settings.read_ahead_bytes,
            writeback_percent: settings.writeback_percent,
            writeback_delay_s: settings.writeback_delay_s,
            writeback_rate_min_bytes: settings.writeback_rate_min_bytes,
            writeback_rate_max_bytes: settings.writeback_rate_max_bytes,
            writeback_ios_max: settings.writeback_ios_max,
            writeback_idle_only: settings.writeback_idle_only,
            dirty_age_max_s: settings.dirty_age_max_s,
            origin_timeout_s: settings.origin_timeout_s,
            share_min_percent: settings.share_min_percent,
            share_max_percent: settings.share_max_percent,
        }
    }
}

/// A volume of a cache set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// `serving`, `draining`, `origin_missing`, `without_cache` or `quiesced`.
    pub(crate) state: String,
    pub(crate) cache_mode: String,
    /// `coalescing` or `ordered`.
    pub(crate) writeback_order: String,
    /// Flush epochs that have ended and are not on the origin yet.
    pub(crate) epochs_waiting: u64,
    #[serde(flatten)]
    pub(crate) settings: Settings,
    pub(crate) cached_bytes: u64,
    pub(crate) cached_extent_count: u64,
    /// What is to stay in the cache, in order.
    pub(crate) pinned_extents: Vec<Extent>,
    /// Bytes of these.
    pub(crate) pinned_bytes: u64,
    /// Bytes of these that are cached.
    pub(crate) pinned_cached_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) dirty_age_ms: u64,
    /// What the origin did not take the last time it was written home; it stays dirty.
    pub(crate) failed_extents: Vec<Extent>,
    pub(crate) requests_in_flight: u64,
    /// Those of them that wait for a command or for the cache device.
    pub(crate) requests_waiting: u64,
    /// How long they still wait for a cache device that is gone.
    pub(crate) cache_wait_ms: Option<u64>,
    pub(crate) origin: Origin,
    /// Reads served whole from the cache, of all reads.
    pub(crate) hit_ratio_requests: Option<f64>,
    /// Bytes read from the cache, of all bytes read.
    pub(crate) hit_ratio_bytes: Option<f64>,
    pub(crate) counters: VolumeCounters,
}

/// How an origin does, and what waits for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// `ok`, `retrying` or `stalled`.
    pub(crate) state: String,
    /// For how long it is in that state; zero if `ok`.
    pub(crate) state_ms: u64,
    pub(crate) requests_waiting: u64,
    pub(crate) oldest_wait_ms: u64,
    /// Answered with an error and not over.
    pub(crate) requests_late: u64,
    /// When what it did not take is written home again.
    pub(crate) writeback_retry_ms: Option<u64>,
    pub(crate) last_error: Option<String>,
    /// How long ago that was.
    pub(crate) last_error_ms: Option<u64>,
}

/// Counters of a volume since start or reset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct VolumeCounters {
    pub(crate) read_hit_count: u64,
    pub(crate) read_miss_count: u64,
    pub(crate) read_partial_hit_count: u64,
    pub(crate) read_hit_bytes: u64,
    pub(crate) read_miss_bytes: u64,
    pub(crate) write_count: u64,
    pub(crate) write_bytes: u64,
    pub(crate) flush_count: u64,
    pub(crate) fua_write_count: u64,
    pub(crate) discard_count: u64,
    pub(crate) write_zeroes_count: u64,
    pub(crate) prefetch_count: u64,
    pub(crate) error_count: u64,
    pub(crate) coalesced_miss_count: u64,
    pub(crate) promoted_block_count: u64,
    /// Blocks of these that nobody had asked for.
    pub(crate) read_ahead_block_count: u64,
    /// Blocks of these that were read later.
    pub(crate) read_ahead_used_block_count: u64,
    /// Blocks that were promoted or written to the log, by reason.
    #[serde(default)]
    pub(crate) admitted_block_counts: BTreeMap<String, u64>,
    /// Blocks that were meant to go around the cache, by reason.
    pub(crate) bypassed_block_counts: BTreeMap<String, u64>,
    /// Blocks that should have been promoted and could not, by reason.
    pub(crate) rejected_block_counts: BTreeMap<String, u64>,
    /// Clean blocks that were kept at reclaim since they are pinned.
    pub(crate) pinned_kept_block_count: u64,
    /// Clean blocks that were kept at reclaim for `share_min`.
    pub(crate) share_kept_block_count: u64,
    /// Clean pinned blocks that were dropped all the same, for want of room.
    pub(crate) pinned_dropped_block_count: u64,
    /// The same of `share_min`.
    pub(crate) share_dropped_block_count: u64,
    pub(crate) repaired_block_count: u64,
    pub(crate) poisoned_block_count: u64,
    pub(crate) order_lost_block_count: u64,
    pub(crate) lost_block_count: u64,
    pub(crate) writeback_block_count: u64,
    pub(crate) writeback_io_count: u64,
    /// Blocks between dirty ones that were written along, as the origin held them.
    pub(crate) writeback_gap_block_count: u64,
    /// Blocks of the origin that were read for that, and the transfers that it took.
    pub(crate) writeback_read_block_count: u64,
    pub(crate) writeback_read_io_count: u64,
    pub(crate) origin_error_count: u64,
    /// Operations of these that were to be tried again for a request.
    pub(crate) origin_retry_count: u64,
    /// Requests that failed because the origin took longer than `origin_timeout`.
    pub(crate) origin_timeout_count: u64,
    pub(crate) origin_flush_count: u64,
}

/// Latency by class of request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) read_hit: Percentiles,
    pub(crate) read_miss: Percentiles,
    pub(crate) write: Percentiles,
    pub(crate) flush: Percentiles,
}

/// Distribution of a latency.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    pub(crate) mean_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
}

/// A connected client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) peer: String,
    /// Process that connected at a Unix socket; it may have ended.
    #[serde(default)]
    pub(crate) peer_pid: Option<u32>,
    pub(crate) export: Option<String>,
    pub(crate) requests_in_flight: u32,
    pub(crate) buffer_bytes: u64,
    pub(crate) request_count: u64,
    pub(crate) age_ms: u64,
}

/// Memory for payload.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PayloadMemory {
    pub(crate) engine: Share,
    pub(crate) clients: Share,
}

/// One share of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) total_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) refused_count: u64,
}

/// Attach an origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AttachRequest {
    pub(crate) name: String,
    /// Device spec with an absolute path.
    pub(crate) origin: String,
    pub(crate) cache_mode: String,
    /// `coalescing` or `ordered`.
    pub(crate) writeback_order: String,
    pub(crate) logical_block_bytes: u32,
    pub(crate) share_min_percent: u8,
    pub(crate) share_max_percent: u8,
}

/// Names a range of a volume: pin, unpin, fetch. The answer to the first two is the [`Extent`] of
/// whole blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RangeRequest {
    pub(crate) volume: String,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

/// A range was brought into the cache, as far as there was room.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Fetched {
    /// How much of its whole blocks is there.
    pub(crate) cached_bytes: u64,
}

/// Takes a volume off its cache device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DetachRequest {
    pub(crate) volume: String,
    /// Its dirty data is thrown away, not written to its origin.
    #[serde(default)]
    pub(crate) discard_dirty: bool,
}

/// A volume is off its cache device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Detached {
    /// Dirty data that was thrown away.
    #[serde(default)]
    pub(crate) discarded_bytes: u64,
}

/// Asks about a block of a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExplainRequest {
    pub(crate) volume: String,
    /// Any byte of the block.
    pub(crate) offset_bytes: u64,
}

/// What is known of a block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) volume: String,
    /// Of the block.
    pub(crate) offset_bytes: u64,
    pub(crate) is_cached: bool,
    /// `absent`, `data`, `zeroes`, `discarded` or `poison`.
    pub(crate) kind: String,
    pub(crate) is_dirty: bool,
    pub(crate) version: Option<u64>,
    pub(crate) copy: Option<Copy>,
    /// Whether it will be kept when its turn comes, if that is known.
    pub(crate) is_kept: Option<bool>,
    pub(crate) is_write_pending: bool,
    /// `null` if there was none of late.
    pub(crate) last_decision: Option<Decision>,
}

/// Where a copy is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Copy {
    pub(crate) segment: u32,
    /// Block within the segment.
    pub(crate) block: u32,
    /// Byte of the cache device.
    pub(crate) cache_offset_bytes: u64,
    /// `null` if its header could not be read.
    pub(crate) record: Option<Record>,
    /// The last record of its segment so far; its own is that or an earlier one.
    pub(crate) sequence_max: u64,
    /// It is at most as old, unless it was there at the start.
    pub(crate) age_ms_max: u64,
    pub(crate) is_recovered: bool,
}

/// The record that holds a copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) sequence: u64,
    /// Block of its header within the segment.
    pub(crate) block: u32,
    /// Byte of the cache device.
    pub(crate) cache_offset_bytes: u64,
}

/// The last decision about the 64 KiB around a block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Decision {
    /// `read` or `write`.
    pub(crate) access: String,
    pub(crate) is_admitted: bool,
    /// As in the counters of blocks admitted, bypassed and rejected.
    pub(crate) reason: String,
    pub(crate) age_ms: u64,
}

/// A volume is as long as its origin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Resized {
    pub(crate) name: String,
    pub(crate) old_size_bytes: u64,
    pub(crate) size_bytes: u64,
    /// Who used the volume when it grew.
    pub(crate) clients: Vec<ResizedClient>,
}

/// When a client sees that its volume has grown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResizedClient {
    pub(crate) client: String,
    /// `live`, `after_reconnect` or `after_restart`.
    pub(crate) sees_size: String,
}

/// Names a volume: drain, invalidate, resize.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VolumeRequest {
    pub(crate) volume: String,
}

/// Change settings; what is absent stays. With a volume, those of the volume; else those of the
/// set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetRequest {
    pub(crate) volume: Option<String>,
    pub(crate) cache_mode: Option<String>,
    pub(crate) writeback_order: Option<String>,
    pub(crate) sequential_cutoff_bytes: Option<u64>,
    /// `full`, `always` or `never`.
    pub(crate) sequential_policy: Option<String>,
    pub(crate) promote_on_read: Option<bool>,
    pub(crate) promote_on_write: Option<bool>,
    /// 1 to 15.
    pub(crate) promotion_nhit: Option<u8>,
    /// A multiple of 4096, at most 1 MiB.
    pub(crate) read_ahead_bytes: Option<u32>,
    pub(crate) writeback_percent: Option<u8>,
    /// Seconds.
    pub(crate) writeback_delay_s: Option<u32>,
    /// Bytes a second.
    pub(crate) writeback_rate_min_bytes: Option<u64>,
    /// Bytes a second; zero is no bound.
    pub(crate) writeback_rate_max_bytes: Option<u64>,
    /// Zero leaves it to the engine.
    pub(crate) writeback_ios_max: Option<u16>,
    pub(crate) writeback_idle_only: Option<bool>,
    /// Seconds.
    pub(crate) dirty_age_max_s: Option<u32>,
    /// Seconds; zero: errors are answered as they come.
    pub(crate) origin_timeout_s: Option<u32>,
    /// At most `share_max_percent`.
    pub(crate) share_min_percent: Option<u8>,
    /// 1 to 100.
    pub(crate) share_max_percent: Option<u8>,
    /// Below the hard one.
    pub(crate) dirty_soft_percent: Option<u8>,
    pub(crate) dirty_hard_percent: Option<u8>,
    /// Bytes a day; zero is no bound.
    pub(crate) cache_write_budget_bytes_per_day: Option<u64>,
    pub(crate) policy: Option<String>,
    /// The largest number means that there is no bound.
    pub(crate) memory_max_bytes: Option<u64>,
    pub(crate) discard_freed_segments: Option<bool>,
}

/// Done; there is nothing to say.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Done {}

/// Not done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ErrorReply {
    /// For people.
    pub(crate) error: String,
    /// The exit code that a command ends with.
    pub(crate) exit_code: u8,
}
