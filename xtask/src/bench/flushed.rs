//! Writes that are flushed one by one, while much dirty data goes home to a slow origin.
//!
//! Within each repetition the bare fast device and the cached origin take turns. The volume's other
//! part is filled with dirty data first, and written back as fast as the origin allows. That this
//! went on during the phase is told by the product's counters.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Figures, Job};
use super::forebay::Order;
use super::interrupt;
use super::plan::{Pace, Plan};
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes};
use super::spread::Spread;

const BLOCK_BYTES: u64 = 4096;
/// What the client writes to, at the start of the volume; and the size of the bare fast device.
const CLIENT_BYTES: u64 = 192 << 20;
/// What is dirty before: with what the client adds it is less than two fifths of the log, from
/// where on writes would be slowed down on purpose.
const DIRTY_BYTES: u64 = 768 << 20;
const FILL_DEPTH: u32 = 32;
pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 4 << 30, fill: Fill::Holes, cache_bytes: 4 << 30 };
/// What it takes to prepare a phase on an ordinary machine, and to make the cache.
const PHASE_SECONDS: u64 = 8;
const CACHE_SECONDS: u64 = 15;
/// How often the ordered volume is measured; it has no bound.
pub(super) const ORDERED_REPETITIONS: u32 = 1;

const WRITE_FLUSH: &[&str] = &[fio::REPEATS[0], fio::FLUSH_EACH[0]];

/// A phase during writeback.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Busy {
    pub(super) figures: Figures,
    pub(super) dirty_before_bytes: u64,
    pub(super) dirty_after_bytes: u64,
    /// Written home during the phase.
    pub(super) written_back_bytes: u64,
}

/// One repetition.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    /// The bare fast device.
    pub(super) bare: Figures,
    pub(super) busy: Busy,
}

impl Sample {
    pub(super) fn over_bare(&self) -> f64 {
        self.busy.figures.iops / self.bare.iops
    }
}

/// An origin with an order of writeback, and its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) origin: Origin,
    pub(super) order: Order,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Bytes that the disk must have room for.
pub(super) fn disk_bytes() -> u64 {
    SIZES.disk_bytes() + CLIENT_BYTES
}

/// Of each phase. Much longer, and all would be home before its end.
pub(super) fn phase_seconds(plan: Plan) -> u64 {
    match plan.pace {
        Pace::Thorough => 10,
        Pace::Quick => 5,
    }
}

fn repetitions(order: Order, plan: Plan) -> u32 {
    match order {
        Order::Coalescing => plan.repetitions,
        Order::Ordered => ORDERED_REPETITIONS,
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let count: u32 = Order::ALL.iter().map(|order| repetitions(*order, plan)).sum();
    let repetition = 2 * phase_seconds(plan) + PHASE_SECONDS;
    CACHE_SECONDS + Origin::ALL.len() as u64 * u64::from(count) * repetition
}

/// All origins and orders.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("write + fsync during writeback: {} MiB of dirty data", DIRTY_BYTES >> 20);
    let mut rows = Vec::new();
    for origin in Origin::ALL {
        for order in Order::ALL {
            let mut row = Row { origin, order, samples: Vec::new() };
            for repetition in 0..repetitions(order, plan) {
                let name = format!("fsync/{origin:?}/{order:?}/{repetition}");
                row.samples.push(progress.sample(&name, || {
                    interrupt::check()?;
                    let bare = run_bare(bench, plan)?;
                    Ok(Sample { bare, busy: run_busy(bench, (origin, order), plan)? })
                })?);
            }
            println!(
                "  {:<24} {:<12} over the bare fast device {}x",
                origin.title(),
                order.name(),
                row.spread(Sample::over_bare).map(|s| s.text(2)).unwrap_or_default(),
            );
            rows.push(row);
        }
    }
    Ok(rows)
}

fn job(plan: Plan) -> Job {
    Job {
        pattern: "randwrite",
        block_bytes: BLOCK_BYTES,
        depth: 1,
        start_bytes: 0,
        span_bytes: CLIENT_BYTES,
        end: End::Time { seconds: phase_seconds(plan) },
        more: WRITE_FLUSH,
    }
}

fn run_bare(bench: Bench<'_>, plan: Plan) -> anyhow::Result<Figures> {
    let file = bench.disk.file("bare.img", CLIENT_BYTES)?;
    let (server, uri) = bench.serve_file(&file.display().to_string())?;
    let figures = fio::run_over_nbd(&job(plan), &uri, bench.ram.folder())?;
    server.stop()?;
    Ok(figures)
}

fn run_busy(
    bench: Bench<'_>,
    (origin, order): (Origin, Order),
    plan: Plan,
) -> anyhow::Result<Busy> {
    let program = bench.program;
    let daemon = bench.serve_cached(origin, order, SIZES)?;
    // Writeback goes on as long as anything is dirty.
    program.set(&daemon, "writeback_percent=0")?;
    let fill = Job {
        pattern: "randwrite",
        block_bytes: BLOCK_BYTES,
        depth: FILL_DEPTH,
        start_bytes: CLIENT_BYTES,
        span_bytes: SIZES.origin_bytes - CLIENT_BYTES,
        end: End::Bytes(DIRTY_BYTES),
        more: &[],
    };
    fio::run_over_nbd(&fill, &daemon.uri, bench.ram.folder())?;
    let before = program.status(&daemon)?;
    let figures = fio::run_over_nbd(&job(plan), &daemon.uri, bench.ram.folder())?;
    let after = program.status(&daemon)?;
    daemon.server.kill()?;
    let block_count = after.volume()?.counters.writeback_block_count
        - before.volume()?.counters.writeback_block_count;
    Ok(Busy {
        figures,
        dirty_before_bytes: before.cache_set.dirty_bytes,
        dirty_after_bytes: after.cache_set.dirty_bytes,
        written_back_bytes: block_count * BLOCK_BYTES,
    })
}
