//! Random reads that miss, on the emulated hard disk, without and with writeback beside them.
//!
//! Nothing of what is read is cached, and the volume's mode promotes nothing, so each read is one
//! of the origin. The other half of the volume is filled with dirty data before, less than the soft
//! mark: writeback is paced, since clients come first at an origin. Within each repetition it rests
//! at first, and then it is under way; that it was is told by the product's counters.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Figures, Job};
use super::forebay::{Daemon, Order, Program};
use super::interrupt;
use super::plan::{Pace, Plan};
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes};
use super::spread::Spread;

const BLOCK_BYTES: u64 = 4096;
pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 4 << 30, fill: Fill::Holes, cache_bytes: 1 << 30 };
/// An eighth of the cache: far from the soft mark, and more than can go home meanwhile.
pub(super) const DIRTY_BYTES: u64 = 128 << 20;
const FILL_DEPTH: u32 = 32;
pub(super) const DEPTHS: [u32; 2] = [1, 4];
/// What it takes to prepare a repetition on an ordinary machine, and to make the cache.
const PHASE_SECONDS: u64 = 5;
const CACHE_SECONDS: u64 = 3;
/// Nothing goes home before it has rested for so long, in the phases without writeback.
const NO_WRITEBACK: [&str; 2] = ["writeback_percent=100", "writeback_delay=3600"];
/// As long as anything is dirty.
const WRITEBACK: &str = "writeback_percent=0";

/// Reads, and what went home meanwhile.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) figures: Figures,
    pub(super) written_back_bytes: u64,
}

/// One repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) without: Phase,
    pub(super) with: Phase,
}

impl Sample {
    /// Mean latency with writeback over that without.
    pub(super) fn mean_ratio(&self) -> f64 {
        self.with.figures.mean_us / self.without.figures.mean_us
    }

    /// The same of the 99th percentile.
    pub(super) fn p99_ratio(&self) -> f64 {
        self.with.figures.latency.p99_us / self.without.figures.latency.p99_us
    }
}

/// A queue depth with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) depth: u32,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Of each phase.
pub(super) fn phase_seconds(plan: Plan) -> u64 {
    match plan.pace {
        Pace::Thorough => 6,
        Pace::Quick => 4,
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let phases = 2 * DEPTHS.len() as u64 * phase_seconds(plan);
    CACHE_SECONDS + u64::from(plan.repetitions) * (phases + PHASE_SECONDS)
}

/// All depths.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("reads that miss beside writeback: {} MiB of dirty data", DIRTY_BYTES >> 20);
    let mut rows = DEPTHS.map(|depth| Row { depth, samples: Vec::new() });
    for repetition in 0..plan.repetitions {
        let name = format!("misses/{repetition}");
        let samples = progress.sample(&name, || samples(bench, plan))?;
        for (row, sample) in rows.iter_mut().zip(samples) {
            row.samples.push(sample);
        }
    }
    for row in &rows {
        println!(
            "  QD{}  with writeback over without: mean {}x  p99 {}x",
            row.depth,
            row.spread(Sample::mean_ratio).map(|s| s.text(2)).unwrap_or_default(),
            row.spread(Sample::p99_ratio).map(|s| s.text(2)).unwrap_or_default(),
        );
    }
    Ok(rows.into())
}

/// One repetition of each depth, on a set that is made anew.
fn samples(bench: Bench<'_>, plan: Plan) -> anyhow::Result<Vec<Sample>> {
    interrupt::check()?;
    let program = bench.program;
    let daemon = bench.serve_cached(Origin::HardDisk, Order::Coalescing, SIZES)?;
    program.set(&daemon, "cache_mode=writeonly")?;
    for setting in NO_WRITEBACK {
        program.set(&daemon, setting)?;
    }
    let fill = Job {
        pattern: "randwrite",
        block_bytes: BLOCK_BYTES,
        depth: FILL_DEPTH,
        start_bytes: SIZES.origin_bytes / 2,
        span_bytes: SIZES.origin_bytes / 2,
        end: End::Bytes(DIRTY_BYTES),
        more: &[],
    };
    fio::run_over_nbd(&fill, &daemon.uri, bench.ram.folder())?;
    let read = |depth| read(bench, &daemon, depth, plan);
    let without = DEPTHS.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    program.set(&daemon, WRITEBACK)?;
    let with = DEPTHS.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    daemon.server.kill()?;
    let pairs = without.into_iter().zip(with);
    Ok(pairs.map(|(without, with)| Sample { without, with }).collect())
}

fn read(bench: Bench<'_>, daemon: &Daemon, depth: u32, plan: Plan) -> anyhow::Result<Phase> {
    let job = Job {
        pattern: "randread",
        block_bytes: BLOCK_BYTES,
        depth,
        start_bytes: 0,
        span_bytes: SIZES.origin_bytes / 2,
        end: End::Time { seconds: phase_seconds(plan) },
        more: fio::REPEATS,
    };
    let before = written_back(bench.program, daemon)?;
    let figures = fio::run_over_nbd(&job, &daemon.uri, bench.ram.folder())?;
    let written_back_bytes = written_back(bench.program, daemon)? - before;
    Ok(Phase { figures, written_back_bytes })
}

fn written_back(program: &Program, daemon: &Daemon) -> anyhow::Result<u64> {
    Ok(program.status(daemon)?.volume()?.counters.writeback_block_count * BLOCK_BYTES)
}
