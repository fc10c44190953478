//! How long a start takes after a crash, and how much memory the index needs, against the size of
//! the log.
//!
//! A log is filled by random reads of one size, each promoted as an extent of its own, and the
//! daemon is killed. Then it is started and killed again as often as is measured. Written data
//! would do as well, but so much dirty data at a time waits for the origin.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job};
use super::forebay::{Order, Program, Set};
use super::ground::Ground;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::spread::Spread;

/// Sizes of the log.
const CACHE_BYTES: [u64; 3] = [1 << 30, 4 << 30, 16 << 30];
/// Lengths of the extents: the smallest that there are, and what the bounds speak of.
const EXTENT_BYTES: [u64; 2] = [4 << 10, 64 << 10];
/// Of the size of the log, how much is read. The rest is for headers, and for what the product
/// keeps free: a log without room would be reclaimed.
const FILL_PERCENT: u64 = 85;
/// The volume is larger than the log by this factor, so that neighbours are seldom both cached.
const VOLUME_FACTOR: u64 = 16;
const FILL_DEPTH: u32 = 32;
/// What making and filling all logs takes on an ordinary machine.
const FILL_SECONDS: u64 = 180;
/// For the measurement of the device's own rate.
const READ_RATE_SECONDS: u64 = 2;
/// What the bounds assume of a device, in bytes a second.
pub(super) const ASSUMED_RATE: f64 = 1e9;
const TIB: f64 = (1u64 << 40) as f64;

/// One start after a crash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// As the product counts it.
    pub(super) recovery_seconds: f64,
    /// Of the processor, likewise: without the memory that a start takes from the system whatever
    /// the log holds, which costs more the longer that system has been without it.
    pub(super) cpu_seconds: f64,
    /// From the start of the process until it serves.
    pub(super) ready_seconds: f64,
    /// From block devices; zero on a RAM file system.
    pub(super) read_bytes: u64,
    pub(super) resident_bytes: u64,
}

/// One size of log with one length of extents.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) extent_bytes: u64,
    pub(super) cache_bytes: u64,
    /// Share of the log that is in use.
    pub(super) occupancy: f64,
    pub(super) cached_bytes: u64,
    pub(super) extents: u64,
    /// Of index, checksums and bits, as the product counts it.
    pub(super) memory_bytes: u64,
    /// The same with an empty log.
    pub(super) empty_memory_bytes: u64,
    /// Resident memory of the process with an empty log.
    pub(super) empty_resident_bytes: u64,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }

    /// Memory of an extent, the tables of an empty log left out.
    pub(super) fn memory_per_extent(&self) -> f64 {
        self.memory_bytes.saturating_sub(self.empty_memory_bytes) as f64 / self.extents as f64
    }

    /// Memory of an extent, all told.
    pub(super) fn whole_memory_per_extent(&self) -> f64 {
        self.memory_bytes as f64 / self.extents as f64
    }

    /// What a log of a TiB would take by proportion, at the rate of this device.
    pub(super) fn seconds_per_tib(&self) -> Option<Spread> {
        self.spread(|sample| sample.recovery_seconds * TIB / self.cache_bytes as f64)
    }

    /// Likewise on a device with [`ASSUMED_RATE`], as if reading and computing took turns.
    pub(super) fn seconds_per_tib_at_assumed_rate(&self) -> Option<Spread> {
        self.spread(|sample| {
            let seconds = sample.read_bytes as f64 / ASSUMED_RATE + sample.cpu_seconds;
            seconds * TIB / self.cache_bytes as f64
        })
    }
}

/// All rows, with what they were measured on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recovery {
    /// Bytes a second that the cache file is read with in long pieces.
    pub(super) read_rate: f64,
    pub(super) rows: Vec<Row>,
}

/// Bytes that the medium must have room for: one log at a time; volumes are holes.
pub(super) fn ground_bytes() -> u64 {
    CACHE_BYTES.iter().max().expect("there are sizes") / 4 * 5
}

/// About what it takes; making and filling the logs is most of it.
pub(super) fn seconds(plan: Plan) -> u64 {
    let starts = (CACHE_BYTES.len() * EXTENT_BYTES.len()) as u64 * u64::from(plan.repetitions);
    FILL_SECONDS + starts
}

/// All sizes and lengths.
pub(super) fn measure(
    program: &Program,
    ground: &Ground,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Recovery> {
    println!("recovery and memory, {}", ground.medium.title());
    let mut rows = Vec::new();
    let mut read_rate = 0.0;
    for cache_bytes in CACHE_BYTES {
        let name = format!("recovery/{cache_bytes}");
        let log = progress.sample(&name, || measure_log(program, ground, cache_bytes, plan))?;
        // That of the largest is kept.
        read_rate = log.read_rate;
        log.rows.iter().for_each(print_row);
        rows.extend(log.rows);
    }
    Ok(Recovery { read_rate, rows })
}

/// All lengths of extents with one size of the log.
fn measure_log(
    program: &Program,
    ground: &Ground,
    cache_bytes: u64,
    plan: Plan,
) -> anyhow::Result<Recovery> {
    let mut rows = Vec::new();
    for extent_bytes in EXTENT_BYTES {
        rows.push(measure_row(program, ground, (cache_bytes, extent_bytes), plan.repetitions)?);
    }
    let cache = ground.path("log.img");
    let read_rate = fio::read_rate(&cache, READ_RATE_SECONDS)?;
    std::fs::remove_file(&cache)?;
    Ok(Recovery { read_rate, rows })
}

fn measure_row(
    program: &Program,
    ground: &Ground,
    (cache_bytes, extent_bytes): (u64, u64),
    repetitions: u32,
) -> anyhow::Result<Row> {
    let (cache, origin) = (ground.path("log.img"), ground.path("volume.img"));
    let volume_bytes = cache_bytes * VOLUME_FACTOR;
    std::fs::File::create(&origin)?.set_len(volume_bytes)?;
    let (bytes, order) = (cache_bytes, Order::Coalescing);
    program.make_set(Set { cache: &cache, origin: &origin, bytes, order })?;
    let daemon = program.serve(&cache, ground)?;
    let empty_memory_bytes = program.status(&daemon)?.cache_set.memory_bytes;
    let empty_resident_bytes = daemon.server.resident_bytes()?;
    let fill = Job {
        pattern: "randread",
        block_bytes: extent_bytes,
        depth: FILL_DEPTH,
        start_bytes: 0,
        span_bytes: volume_bytes,
        end: End::Bytes(cache_bytes / 100 * FILL_PERCENT / extent_bytes * extent_bytes),
        more: &[],
    };
    fio::run_over_nbd(&fill, &daemon.uri, ground.folder())?;
    let status = program.status(&daemon)?;
    daemon.server.kill()?;
    let mut samples = Vec::new();
    for _ in 0..repetitions {
        interrupt::check()?;
        let daemon = program.serve(&cache, ground)?;
        let status = program.status(&daemon)?.cache_set;
        samples.push(Sample {
            recovery_seconds: status.recovery_ms as f64 / 1e3,
            cpu_seconds: status.recovery_cpu_ms / 1e3,
            ready_seconds: daemon.server.ready_after.as_secs_f64(),
            read_bytes: daemon.server.read_bytes()?,
            resident_bytes: daemon.server.resident_bytes()?,
        });
        daemon.server.kill()?;
    }
    let volume = status.volume()?;
    Ok(Row {
        extent_bytes,
        cache_bytes,
        occupancy: status.cache_set.occupancy,
        cached_bytes: status.cache_set.cached_bytes,
        extents: volume.cached_extent_count,
        memory_bytes: status.cache_set.memory_bytes,
        empty_memory_bytes,
        empty_resident_bytes,
        samples,
    })
}

fn print_row(row: &Row) {
    let text = row.spread(|sample| sample.recovery_seconds).map(|spread| spread.text(3));
    println!(
        "  {:>4} MiB, extents of {:>2} KiB: {} s, {:.0} % in use, {} extents, {:.1} bytes each",
        row.cache_bytes >> 20,
        row.extent_bytes >> 10,
        text.unwrap_or_default(),
        row.occupancy * 100.0,
        row.extents,
        row.whole_memory_per_extent(),
    );
}
