//! Writes past a full cache, on slow origins: what is left of the cache when it is full of dirty
//! data.
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
    Sizes { origin_bytes: 2 << 30, fill: Fill::Written, cache_bytes: 768 << 20 };
/// Seconds of the windows of which none should be slow.
const WINDOW_SECONDS: usize = 5;
/// The bare origin does the same all the time: it need not be watched for longer.
const BARE_SECONDS_MAX: u64 = 30;
/// No phase with the cache is shorter: it would be over before the cache is full.
const SECONDS_MIN: u64 = 15;
/// What it takes to prepare a phase on an ordinary machine.
const PHASE_SECONDS: u64 = 2;
/// The last part of a phase, which shows what is left in the long run.
const STEADY_DIVISOR: usize = 3;

const SKEWED: &[&str] = &[fio::REPEATS[0], "--random_distribution=zipf:1.2"];
const MOSTLY_READS: &[&str] = &[fio::REPEATS[0], "--rwmixread=70"];

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    Uniform,
    Zipf,
    Mixed,
}

impl Work {
    pub(super) const ALL: [Work; 3] = [Work::Uniform, Work::Zipf, Work::Mixed];

    pub(super) fn title(self) -> &'static str {
        match self {
            Work::Uniform => "writes, uniform",
            Work::Zipf => "writes, Zipf 1.2",
            Work::Mixed => "70 % reads, 30 % writes, uniform",
        }
    }

    /// Of a phase with the cache.
    fn seconds(self, plan: Plan) -> u64 {
        match self {
            Work::Uniform => plan.full_seconds,
            // Long enough to come to rest; the bounds speak of the course, not of its end.
            Work::Zipf | Work::Mixed => plan.full_seconds.div_ceil(2).max(SECONDS_MIN),
        }
    }

    fn bare_seconds(self, plan: Plan) -> u64 {
        self.seconds(plan).min(BARE_SECONDS_MAX)
    }

    fn job(self, seconds: u64) -> Job {
        let (pattern, more) = match self {
            Work::Uniform => ("randwrite", fio::REPEATS),
            Work::Zipf => ("randwrite", SKEWED),
            Work::Mixed => ("randrw", MOSTLY_READS),
        };
        Job {
            pattern,
            block_bytes: BLOCK_BYTES,
            depth: DEPTH,
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
    pub(super) cached: Timeline,
}

impl Sample {
    /// Requests a second in the last third, over those of the bare origin.
    pub(super) fn steady_over_bare(&self) -> f64 {
        let seconds = &self.cached.per_second;
        let last = &seconds[seconds.len() - seconds.len() / STEADY_DIVISOR..];
        mean(last) / self.bare.figures.iops
    }

    /// The slowest five seconds, over the mean of the bare origin.
    pub(super) fn slowest_over_bare(&self) -> f64 {
        let means = self.cached.per_second.windows(WINDOW_SECONDS).map(mean);
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
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let of = |work: &Work| work.seconds(plan) + work.bare_seconds(plan) + 2 * PHASE_SECONDS;
    let repetition: u64 = Work::ALL.iter().map(of).sum();
    Origin::ALL.len() as u64 * u64::from(plan.repetitions) * repetition
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
            for repetition in 0..plan.repetitions {
                let name = format!("full/{origin:?}/{work:?}/{repetition}");
                row.samples.push(progress.sample(&name, || {
                    interrupt::check()?;
                    let bare_job = work.job(work.bare_seconds(plan));
                    let bare = run_bare(bench, origin, &bare_job)?;
                    let job = work.job(work.seconds(plan));
                    let cached = run_cached(bench, origin, &job)?;
                    Ok(Sample { bare, cached })
                })?);
            }
            println!(
                "  {:<24} {:<34} steady {}x  slowest five seconds {}x",
                origin.title(),
                work.title(),
                row.spread(Sample::steady_over_bare).map(|s| s.text(2)).unwrap_or_default(),
                row.spread(Sample::slowest_over_bare).map(|s| s.text(2)).unwrap_or_default(),
            );
            rows.push(row);
        }
    }
    Ok(rows)
}

fn run_bare(bench: Bench<'_>, origin: Origin, job: &Job) -> anyhow::Result<Timeline> {
    let (server, uri) = bench.serve_bare(origin, SIZES)?;
    let timeline = fio::run_with_timeline(job, &uri, bench.ram.folder())?;
    server.stop()?;
    Ok(timeline)
}

fn run_cached(bench: Bench<'_>, origin: Origin, job: &Job) -> anyhow::Result<Timeline> {
    let daemon = bench.serve_cached(origin, Order::Coalescing, SIZES)?;
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
        let sample = Sample { bare: Timeline::of(&[100.0, 100.0]), cached: Timeline::of(&cached) };
        assert_eq!(sample.slowest_over_bare(), 1.0);
        assert!((sample.steady_over_bare() - 10.0 / 3.0).abs() < 1e-9);
    }
}
