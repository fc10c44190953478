//! What is written to the cache device for each byte that clients write, by the product's counters.
//!
//! Each phase begins with an empty log. A batch is what shares a record of the log: its length
//! depends on how much comes at a time, so it is measured and not set.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job, REPEATS};
use super::forebay::{Order, Program, Set};
use super::ground::Ground;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::spread::Spread;

const BLOCK_BYTES: u64 = 4096;
const CACHE_BYTES: u64 = 1 << 30;
/// Less than the product's `writeback_percent` (10) of the cache, so that nothing is written back.
const SPAN_BYTES: u64 = 96 << 20;
/// What a phase writes at most, so that the log is not wrapped around.
const WRITE_BYTES_MAX: u64 = 384 << 20;
const SECONDS: u64 = 1;
/// For the phase that wraps the log around: a log, and a volume that does not fit in it.
const SMALL_CACHE_BYTES: u64 = 256 << 20;
const LARGE_SPAN_BYTES: u64 = 1 << 30;
const WRAP_SECONDS: u64 = 4;
/// What it takes to write the files, and to prepare a phase, on an ordinary machine.
const FILE_SECONDS: u64 = 10;
const PHASE_SECONDS: u64 = 1;

/// A kind of writes.
#[derive(Clone, Copy, Debug)]
struct Kind {
    title: &'static str,
    pattern: &'static str,
    block_bytes: u64,
    depth: u32,
    more: &'static [&'static str],
    log: Log,
}

/// Whether the log is larger than what is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Log {
    HasRoom,
    WrapsAround,
}

impl Log {
    fn seconds(self) -> u64 {
        match self {
            Log::HasRoom => SECONDS,
            Log::WrapsAround => WRAP_SECONDS,
        }
    }
}

const FLUSHED: &[&str] = &[REPEATS[0], fio::FLUSH_EACH[0]];
/// Some blocks are read and written more often than others, so that reclaim finds what to keep.
const SKEWED: &[&str] = &[REPEATS[0], "--random_distribution=zipf:1.1"];

const KINDS: [Kind; 8] = [
    kind("4 KiB + fsync, QD1", 4 << 10, 1, FLUSHED),
    kind("4 KiB, QD1", 4 << 10, 1, REPEATS),
    kind("4 KiB, QD8", 4 << 10, 8, REPEATS),
    kind("4 KiB, QD32", 4 << 10, 32, REPEATS),
    kind("32 KiB, QD1", 32 << 10, 1, REPEATS),
    kind("64 KiB, QD1", 64 << 10, 1, REPEATS),
    kind("1 MiB, QD1", 1 << 20, 1, REPEATS),
    Kind {
        title: "4 KiB, QD32, half of it reads, Zipf 1.1, log wraps around",
        pattern: "randrw",
        block_bytes: 4 << 10,
        depth: 32,
        more: SKEWED,
        log: Log::WrapsAround,
    },
];

const fn kind(
    title: &'static str,
    block_bytes: u64,
    depth: u32,
    more: &'static [&'static str],
) -> Kind {
    Kind { title, pattern: "randwrite", block_bytes, depth, more, log: Log::HasRoom }
}

/// One phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Blocks of a record, on average.
    pub(super) batch_blocks: f64,
    /// Bytes written to the cache device, what was relocated left out, for each byte of clients'
    /// writes and promotions.
    pub(super) written_per_byte: f64,
    /// Bytes relocated at reclaim, likewise.
    pub(super) relocated_per_byte: f64,
    pub(super) client_bytes: u64,
}

/// A kind of writes with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) title: String,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Bytes that the medium must have room for.
pub(super) fn ground_bytes() -> u64 {
    2 * (CACHE_BYTES + SMALL_CACHE_BYTES + LARGE_SPAN_BYTES)
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let phases: u64 = KINDS.iter().map(|kind| kind.log.seconds() + PHASE_SECONDS).sum();
    FILE_SECONDS + phases * u64::from(plan.repetitions)
}

/// All kinds.
pub(super) fn measure(
    program: &Program,
    ground: &Ground,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("SSD bytes per client byte, {}", ground.medium.title());
    let mut rows = Vec::new();
    for kind in KINDS {
        let mut row = Row { title: kind.title.to_owned(), samples: Vec::new() };
        for repetition in 0..plan.repetitions {
            interrupt::check()?;
            let name = format!("ssd-bytes/{}/{repetition}", kind.title);
            row.samples.push(progress.sample(&name, || measure_kind(program, ground, kind))?);
        }
        println!(
            "  {:<58} batch {:>6} blocks  written {}  relocated {}",
            row.title,
            row.spread(|sample| sample.batch_blocks).map_or(0.0, |spread| spread.median) as u64,
            row.spread(|sample| sample.written_per_byte).map(|s| s.text(2)).unwrap_or_default(),
            row.spread(|sample| sample.relocated_per_byte).map(|s| s.text(2)).unwrap_or_default(),
        );
        rows.push(row);
    }
    Ok(rows)
}

fn measure_kind(program: &Program, ground: &Ground, kind: Kind) -> anyhow::Result<Sample> {
    let (cache, volume, cache_bytes, span_bytes, end) = match kind.log {
        Log::HasRoom => {
            let end = End::TimeOrBytes { seconds: kind.log.seconds(), bytes: WRITE_BYTES_MAX };
            ("cache.img", "volume.img", CACHE_BYTES, SPAN_BYTES, end)
        }
        Log::WrapsAround => {
            let end = End::Time { seconds: kind.log.seconds() };
            ("small-cache.img", "large-volume.img", SMALL_CACHE_BYTES, LARGE_SPAN_BYTES, end)
        }
    };
    let cache = ground.path(cache);
    let origin = ground.file(volume, span_bytes)?;
    let (bytes, order) = (cache_bytes, Order::Coalescing);
    program.make_set(Set { cache: &cache, origin: &origin, bytes, order })?;
    let daemon = program.serve(&cache, ground)?;
    program.reset_counters(&daemon)?;
    let Kind { pattern, block_bytes, depth, more, .. } = kind;
    let job = Job { pattern, block_bytes, depth, start_bytes: 0, span_bytes, end, more };
    fio::run_over_nbd(&job, &daemon.uri, ground.folder())?;
    let counters = program.status(&daemon)?.cache_set.counters;
    daemon.server.stop()?;
    let wanted = (counters.client_bytes + counters.promoted_bytes) as f64;
    let written = counters.cache_written_bytes - counters.relocated_bytes;
    Ok(Sample {
        batch_blocks: wanted / BLOCK_BYTES as f64 / counters.record_count as f64,
        written_per_byte: written as f64 / wanted,
        relocated_per_byte: counters.relocated_bytes as f64 / wanted,
        client_bytes: counters.client_bytes,
    })
}
