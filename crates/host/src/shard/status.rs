//! What a shard tells the admin side about itself: plain data, taken in one step of the loop.

use std::path::PathBuf;
use std::time::Duration;

use forebay_advisor::curve::Estimate;
use forebay_engine::format::SetId;
use forebay_engine::status::{SetStatus, VolumeStatus};

/// A snapshot of a shard.
#[derive(Clone, PartialEq, Debug)]
pub struct ShardStatus {
    /// Milliseconds since the shard started.
    pub uptime_ms: u64,
    /// Whether all block devices that are to be served can be used.
    pub is_ready: bool,
    /// The cache set, if the shard serves one.
    pub set: Option<SetReport>,
    /// All exports: volumes of the cache set by slot, then bare devices.
    pub exports: Vec<ExportReport>,
    /// Connected clients.
    pub connections: Vec<ConnectionReport>,
    /// Devices at work.
    pub devices: Vec<DeviceReport>,
    /// Memory for payload.
    pub memory: MemoryReport,
}

/// One device, and what it has under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// Its spec.
    pub device: String,
    /// Whether it is the cache device.
    pub is_cache: bool,
    /// Operations that have not ended.
    pub operations_in_flight: u32,
    /// Milliseconds since the oldest of them began; zero if there is none.
    pub oldest_ms: u64,
    /// How many of them have lasted longer than the limit.
    pub late_in_flight: u32,
    /// Operations that lasted longer than the limit, ended or not, since the device was opened.
    pub late_count: u64,
    /// What it was asked for.
    pub asked: Transfers,
}

/// Reads and writes, begun since a device was opened; also those that have not ended, or failed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Transfers {
    /// Reads.
    pub read_count: u64,
    /// Bytes that they are of.
    pub read_bytes: u64,
    /// Writes; discards and zeroes without payload are none.
    pub write_count: u64,
    /// Bytes that they are of.
    pub written_bytes: u64,
}

/// The cache set of a shard.
#[derive(Clone, PartialEq, Debug)]
pub struct SetReport {
    /// Identity.
    pub set_id: SetId,
    /// Label given at format.
    pub label: String,
    /// Cache device spec.
    pub cache_device: String,
    /// Where this host keeps what it knows of the set.
    pub state_file: PathBuf,
    /// Why recovery failed; such a set is not served.
    pub recovery_error: Option<forebay_engine::error::RecoveryError>,
    /// What the engine says.
    pub status: SetStatus,
    /// Processor time that the thread of the set used during the last recovery.
    pub recovery_cpu: Duration,
    /// What smaller and larger caches would find of the requests since the start, of late more than
    /// before; the smallest first.
    pub what_if: Vec<Estimate>,
}

/// One export.
#[derive(Clone, PartialEq, Debug)]
pub struct ExportReport {
    /// Name that clients ask for.
    pub name: String,
    /// Spec of the origin, or of the bare device.
    pub device: String,
    /// Size of the volume or the device.
    pub size_bytes: u64,
    /// Size of the origin of a volume now, if it is open and the kernel knows.
    pub origin_size_bytes: Option<u64>,
    /// Smallest unit that clients may address.
    pub logical_block_bytes: u32,
    /// Whether clients may write.
    pub is_read_only: bool,
    /// Why the origin is not open, if it is not.
    pub unavailable: Option<String>,
    /// The block device that it is served as, if it is.
    pub block_device: Option<String>,
    /// The vhost-user socket that it is served at, if it is.
    pub vhost_user: Option<PathBuf>,
    /// What the engine says of the volume; `None` for a bare device.
    pub volume: Option<VolumeStatus>,
    /// Time from the arrival of a request to its reply.
    pub latency: LatencyReport,
}

/// Latency by class of request. Reads of a bare device count as misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LatencyReport {
    /// Reads served from the cache alone.
    pub read_hit: Percentiles,
    /// Reads that needed the origin.
    pub read_miss: Percentiles,
    /// Writes, discards and write zeroes.
    pub write: Percentiles,
    /// Flushes.
    pub flush: Percentiles,
}

/// Distribution of a latency, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Percentiles {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99 of 100 are at most this slow.
    pub p99_ns: u64,
    /// 999 of 1000 are at most this slow.
    pub p999_ns: u64,
    /// The slowest.
    pub max_ns: u64,
}

/// One connected client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionReport {
    /// Number of the connection, never reused within a run.
    pub id: u64,
    /// Address, or process and user of the peer of a Unix socket.
    pub peer: String,
    /// Process that connected, where the peer of a Unix socket tells. It may have ended.
    pub peer_pid: Option<u32>,
    /// Export in use; `None` while it is negotiated.
    pub export: Option<String>,
    /// Requests received and not yet answered.
    pub requests_in_flight: u32,
    /// Bytes of payload memory in use.
    pub buffer_bytes: u64,
    /// Requests answered.
    pub requests: u64,
    /// Milliseconds since it connected.
    pub age_ms: u64,
}

/// Memory for payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// The engine's share.
    pub engine: ShareReport,
    /// The clients' share.
    pub clients: ShareReport,
}

/// One share of the payload memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShareReport {
    /// Size.
    pub total_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Allocations that had to wait since the start or the last reset.
    pub refused: u64,
}
