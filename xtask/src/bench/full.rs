//! Writes past a full cache, on slow origins: what is left of the cache when it is full of dirty
//! data, and what it costs to write it home in order.
//!
//! Each phase begins with an empty log and writes far more than fits. Within each
//! repetition the bare origin and the cached one take turns.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job, Timeline};
use super::forebay::Order;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes, mean};
use super::spread::Spread;

const BLOCK_BYTES: u64 = 4096;
const DEPTH: u32 = 32;
/// As in the measurements of the kernel's caches that these are to be compared with: the origin is
/// almost three times as large as the cache.
pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 2 << 30, fill: Fill::Written(2 << 30), cache_bytes: 768 << 20 };
/// A client that waits for each flush would not fill that cache in time.
pub(super) const FLUSHED_CACHE_BYTES: u64 = 128 << 20;
/// Seconds of the windows of which none should be slow.
const WINDOW_SECONDS: usize = 5;
/// The bare origin does the same all the time: it need not be watched for longer.
const BARE_SECONDS_MAX: u64 = 10;
/// No phase with the cache is shorter, unless that is asked for: it would be over before the cache
/// is full.
const SECONDS_MIN: u64 = 20;
/// What it takes to prepare a phase on an ordinary machine.
const PHASE_SECONDS: u64 = 2;
/// The last part of a phase, which shows what is left in the long run.
const STEADY_DIVISOR: usize = 3;

const SKEWED: &[&str] = &[fio::REPEATS[0], "--random_distribution=zipf:1.2"];
const WRITE_FLUSH: &[&str] = &[fio::REPEATS[0], fio::FLUSH_EACH[0]];
const MOSTLY_READS: &[&str] = &[fio::REPEATS[0], "--rwmixread=70"];

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    Uniform,
    Zipf,
    Mixed,
    FlushEach,
}

impl Work {
    pub(super) const ALL: [Work; 4] = [Work::Uniform, Work::Zipf, Work::Mixed, Work::FlushEach];

    pub(super) fn title(self) -> &'static str {
        match self {
            Work::Uniform => "writes, uniform",
            Work::Zipf => "writes, Zipf 1.2",
            Work::Mixed => "70 % reads, 30 % writes, uniform",
            Work::FlushEach => "write + fsync, one at a time, uniform",
        }
    }

    fn sizes(self) -> Sizes {
        match self {
            Work::Uniform | Work::Zipf | Work::Mixed => SIZES,
            Work::FlushEach => Sizes { cache_bytes: FLUSHED_CACHE_BYTES, ..SIZES },
        }
    }

    /// Of a phase with the cache.
    fn seconds(self, order: Order, plan: Plan) -> u64 {
        let full = plan.full_seconds;
        let parts = match (self, order) {
            (Work::Uniform, Order::Coalescing) => 1,
            // Has no bound, so its end need not be that of the longest.
            (Work::Uniform, Order::Ordered) => 3,
            // Long enough to come to rest; the bounds speak of the course, not of its end.
            (Work::Zipf | Work::Mixed | Work::FlushEach, _) => 5,
        };
        full.div_ceil(parts).max(SECONDS_MIN).min(full)
    }

    fn bare_seconds(self, plan: Plan) -> u64 {
        self.seconds(Order::Coalescing, plan).min(BARE_SECONDS_MAX)
    }

    /// How often an order of writeback is measured. Only what has a bound is repeated.
    fn repetitions(self, order: Order, plan: Plan) -> u32 {
        match (self, order) {
            (Work::Uniform | Work::Zipf | Work::Mixed, Order::Coalescing) => plan.repetitions,
            (_, Order::Ordered) | (Work::FlushEach, _) => 1,
        }
    }

    fn job(self, seconds: u64) -> Job {
        let (pattern, more) = match self {
            Work::Uniform => ("randwrite", fio::REPEATS),
            Work::Zipf => ("randwrite", SKEWED),
            Work::Mixed => ("randrw", MOSTLY_READS),
            Work::FlushEach => ("randwrite", WRITE_FLUSH),
        };
        let depth = if self == Work::FlushEach { 1 } else { DEPTH };
        Job {
            pattern,
            block_bytes: BLOCK_BYTES,
            depth,
            start_bytes: 0,
            span_bytes: SIZES.origin_bytes,
            end: End::Time { seconds },
            more,
        }
    }
}

/// The bare origin and the cached one, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) bare: Timeline,
    pub(super) coalescing: Timeline,
    /// Only in the first repetitions.
    pub(super) ordered: Option<Timeline>,
}

impl Sample {
    /// The cached origin with that order of writeback.
    pub(super) fn cached(&self, order: Order) -> Option<&Timeline> {
        match order {
            Order::Coalescing => Some(&self.coalescing),
            Order::Ordered => self.ordered.as_ref(),
        }
    }

    /// Requests a second in the last third, over those of the bare origin.
    pub(super) fn steady_over_bare(&self, cached: &Timeline) -> f64 {
        let seconds = &cached.per_second;
        let last = &seconds[seconds.len() - seconds.len() / STEADY_DIVISOR..];
        mean(last) / self.bare.figures.iops
    }

    /// The slowest five seconds, over the mean of the bare origin.
    pub(super) fn slowest_over_bare(&self, cached: &Timeline) -> f64 {
        let means = cached.per_second.windows(WINDOW_SECONDS).map(mean);
        means.fold(f64::INFINITY, f64::min) / self.bare.figures.iops
    }
}

/// A kind of work on an origin, with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) origin: Origin,
    pub(super) work: Work,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    /// Of the samples that have the cached origin with that order of writeback.
    pub(super) fn spread_of(
        &self,
        order: Order,
        value: impl Fn(&Sample, &Timeline) -> f64,
    ) -> Option<Spread> {
        let samples = self.samples.iter();
        Spread::of(samples.filter_map(|sample| Some(value(sample, sample.cached(order)?))))
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let of = |work: &Work| {
        let cached = |order| {
            let count = u64::from(work.repetitions(order, plan));
            count * (work.seconds(order, plan) + PHASE_SECONDS)
        };
        let bare_count = u64::from(work.repetitions(Order::Coalescing, plan));
        bare_count * (work.bare_seconds(plan) + PHASE_SECONDS)
            + Order::ALL.into_iter().map(cached).sum::<u64>()
    };
    Origin::ALL.len() as u64 * Work::ALL.iter().map(of).sum::<u64>()
}

/// All kinds of work on all origins.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("full of dirty data: {} MiB of cache, {DEPTH} at a time", SIZES.cache_bytes >> 20);
    let mut rows = Vec::new();
    for origin in Origin::ALL {
        for work in Work::ALL {
            let mut row = Row { origin, work, samples: Vec::new() };
            for repetition in 0..work.repetitions(Order::Coalescing, plan) {
                let name = format!("full/{origin:?}/{work:?}/{repetition}");
                let measure = || sample(bench, (origin, work), repetition, plan);
                row.samples.push(progress.sample(&name, measure)?);
            }
            print_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn print_row(row: &Row) {
    for order in Order::ALL {
        let Some(steady) = row.spread_of(order, Sample::steady_over_bare) else { continue };
        let slowest = row.spread_of(order, Sample::slowest_over_bare);
        println!(
            "  {:<24} {:<38} {:<10} steady {}x  slowest five seconds {}x",
            row.origin.title(),
            row.work.title(),
            order.name(),
            steady.text(2),
            slowest.map(|spread| spread.text(2)).unwrap_or_default(),
        );
    }
}

fn sample(
    bench: Bench<'_>,
    (origin, work): (Origin, Work),
    repetition: u32,
    plan: Plan,
) -> anyhow::Result<Sample> {
    let bare = run_bare(bench, origin, &work.job(work.bare_seconds(plan)))?;
    let run = |order| {
        let job = work.job(work.seconds(order, plan));
        run_cached(bench, (origin, order), work.sizes(), &job)
    };
    let coalescing = run(Order::Coalescing)?;
    let ordered = (repetition < work.repetitions(Order::Ordered, plan))
        .then(|| run(Order::Ordered))
        .transpose()?;
    Ok(Sample { bare, coalescing, ordered })
}

fn run_bare(bench: Bench<'_>, origin: Origin, job: &Job) -> anyhow::Result<Timeline> {
    let (server, uri) = bench.serve_bare(origin, SIZES)?;
    let timeline = fio::run_with_timeline(job, &uri, bench.ram.folder())?;
    server.stop()?;
    Ok(timeline)
}

fn run_cached(
    bench: Bench<'_>,
    (origin, order): (Origin, Order),
    sizes: Sizes,
    job: &Job,
) -> anyhow::Result<Timeline> {
    interrupt::check()?;
    let daemon = bench.serve_cached(origin, order, sizes)?;
    let timeline = fio::run_with_timeline(job, &daemon.uri, bench.ram.folder())?;
    // What is still dirty would only be written home: the set is made anew for the next phase.
    daemon.server.kill()?;
    Ok(timeline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_slowest_window_and_of_the_end() {
        let cached = [900.0, 800.0, 100.0, 0.0, 100.0, 100.0, 200.0, 300.0, 500.0];
        let (bare, coalescing) = (Timeline::of(&[100.0, 100.0]), Timeline::of(&cached));
        let sample = Sample { bare, coalescing, ordered: Some(Timeline::of(&[50.0; 9])) };
        let row = Row { origin: Origin::HardDisk, work: Work::Uniform, samples: vec![sample] };
        let median = |order, value: fn(&Sample, &Timeline) -> f64| {
            row.spread_of(order, value).expect("it is there").median
        };
        assert_eq!(median(Order::Coalescing, Sample::slowest_over_bare), 1.0);
        let steady = median(Order::Coalescing, Sample::steady_over_bare);
        assert!((steady - 10.0 / 3.0).abs() < 1e-9);
        assert_eq!(median(Order::Ordered, Sample::steady_over_bare), 0.5);
    }
}
