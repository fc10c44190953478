//! Figures of a plan's targets over all repetitions: what tables and charts are made of.

use serde::Serialize;

use crate::bounds::{Judged, judge};
use crate::folder::{Folder, FolderError, Outcome};
use crate::plan::{Clock, Plan, Published};
use crate::result::{
    JobResult, Latency, PERCENTILES, PhaseResult, Sample, TargetResult, percentile_place,
};

/// The values of all repetitions.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The one in the middle; of an even number, the mean of the two there.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// `None` if there is no value.
    #[must_use]
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let upper = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[upper],
            _ => f64::midpoint(values[upper - 1], values[upper]),
        };
        Some(Spread { median, min, max })
    }
}

/// All figures of a plan that was run, or has been so far.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// One line of the plan.
    pub about: String,
    /// Whose experiment it repeats.
    pub source: String,
    /// Repetitions that were asked for.
    pub repetitions: u32,
    /// What others published.
    pub published: Vec<Published>,
    /// Targets in the order of the plan.
    pub targets: Vec<TargetSummary>,
    /// How the bounds of the plan stand, in its order.
    pub bounds: Vec<Judged>,
}

/// A target.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct TargetSummary {
    /// Its name in the plan.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Which time passed; `None` if nothing was measured.
    pub clock: Option<Clock>,
    /// Repetitions that were measured.
    pub measured: u32,
    /// Why others were not.
    pub failures: Vec<String>,
    /// Phases that were measured, without those that make ready.
    pub phases: Vec<PhaseSummary>,
}

/// A phase of a target.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PhaseSummary {
    /// Its name in the plan.
    pub name: String,
    /// How long it lasted, in seconds of the clock.
    pub seconds: Option<Spread>,
    /// Mean time of a run of its program, in seconds.
    pub run_s: Option<Spread>,
    /// The same of the first run.
    pub first_run_s: Option<Spread>,
    /// Requests a second of all jobs.
    pub iops: Option<Spread>,
    /// The same in the first 30 seconds.
    pub first_iops: Option<Spread>,
    /// The same in the last tenth.
    pub last_iops: Option<Spread>,
    /// Latencies of reads in microseconds, one for each of [`PERCENTILES`]; of the worst job.
    pub read_us: Vec<Option<Spread>>,
    /// The same of writes.
    pub write_us: Vec<Option<Spread>>,
    /// Of what was read, the share from the cache.
    pub hit_ratio: Option<Spread>,
    /// Requests of the slowest job over those of the fastest, of jobs that do alike work.
    pub fairness: Option<Spread>,
    /// Bytes that the origin, or the bare device, read and wrote.
    pub origin_bytes: Option<Spread>,
    /// Bytes written to the cache device.
    pub cache_written_bytes: Option<Spread>,
    /// Of the origin's bytes, how many there were for a request.
    pub origin_bytes_a_request: Option<Spread>,
    /// The same of those written to the cache device.
    pub cache_written_bytes_a_request: Option<Spread>,
    /// These, over what clients wrote and what was promoted.
    pub write_amplification: Option<Spread>,
    /// Processor time for a request, in microseconds.
    pub cpu_us: Option<Spread>,
    /// Second by second, of the first repetition.
    pub samples: Vec<Sample>,
}

/// One of a list that has a value for each of [`PERCENTILES`].
pub(crate) fn percentile(latencies: &[Option<Spread>], percent: f64) -> Option<Spread> {
    *latencies.get(percentile_place(percent)?)?
}

/// Seconds at the beginning of a phase that have a figure of their own.
pub const FIRST_SECONDS: usize = 30;

impl Summary {
    /// What a folder has so far.
    ///
    /// # Errors
    ///
    /// If a file of it cannot be read.
    pub fn of(folder: &Folder, plan: &Plan) -> Result<Summary, FolderError> {
        let (mut targets, mut all_results) = (Vec::new(), Vec::new());
        for target in &plan.targets {
            let (mut results, mut failures) = (Vec::new(), Vec::new());
            for repetition in 1..=plan.repetitions {
                match folder.outcome(target, repetition)? {
                    Outcome::Measured(result) => results.push(result),
                    Outcome::Failed(why) => failures.push(why),
                    Outcome::Missing => {}
                }
            }
            let (cache, _) = target.parts();
            let is_whole = failures.is_empty();
            targets.push(TargetSummary {
                name: target.name.clone(),
                title: target.title().to_owned(),
                clock: results.first().map(|result| result.clock),
                measured: u32::try_from(results.len()).expect("as many as were asked for"),
                failures,
                phases: phases(&results, cache),
            });
            // A median of those that did not fail would say that it keeps what it did not keep.
            all_results.push(if is_whole { results } else { Vec::new() });
        }
        Ok(Summary {
            about: plan.about.clone(),
            source: plan.source.clone(),
            repetitions: plan.repetitions,
            published: plan.published.clone(),
            targets,
            bounds: judge(plan, &all_results),
        })
    }

    /// Whether any target was measured more than once.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        self.targets.iter().any(|target| target.measured > 1)
    }
}

/// The phases of a target, whose cache device is this one.
fn phases(results: &[TargetResult], cache: Option<&str>) -> Vec<PhaseSummary> {
    let Some(first) = results.first() else { return Vec::new() };
    let places = first.phases.iter().enumerate();
    let measured = places.filter(|(_, phase)| phase.is_measured());
    measured
        .map(|(place, phase)| {
            let all: Vec<&PhaseResult> =
                results.iter().filter_map(|result| result.phases.get(place)).collect();
            summary(phase, &all, cache)
        })
        .collect()
}

fn summary(first: &PhaseResult, all: &[&PhaseResult], cache: Option<&str>) -> PhaseSummary {
    let spread = |value: &dyn Fn(&PhaseResult) -> Option<f64>| {
        Spread::of(all.iter().filter_map(|phase| value(phase)))
    };
    let latencies = |of: fn(&JobResult) -> &Option<Latency>| {
        let value = |index: usize| spread(&|phase| worst_us(phase, of, index));
        (0..PERCENTILES.len()).map(value).collect()
    };
    let cache_written = |phase: &PhaseResult| match phase.cache {
        Some(counts) => Some(counts.cache_written_bytes as f64),
        None => {
            let device = phase.devices.iter().find(|device| cache == Some(&device.name));
            device.map(|device| device.written_bytes as f64)
        }
    };
    PhaseSummary {
        name: first.name.clone(),
        seconds: spread(&|phase| Some(phase.seconds)),
        run_s: spread(&PhaseResult::run_s),
        first_run_s: spread(&|phase| phase.runs_s.first().copied()),
        iops: spread(&|phase| (!phase.jobs.is_empty()).then(|| phase.iops())),
        first_iops: spread(&first_iops),
        last_iops: spread(&PhaseResult::last_iops),
        read_us: latencies(|job| &job.read_latency),
        write_us: latencies(|job| &job.write_latency),
        hit_ratio: spread(&PhaseResult::hit_ratio),
        fairness: spread(&PhaseResult::fairness),
        origin_bytes: spread(&|phase| origin_bytes(phase, cache)),
        cache_written_bytes: spread(&cache_written),
        origin_bytes_a_request: spread(&|phase| a_request(phase, origin_bytes(phase, cache))),
        cache_written_bytes_a_request: spread(&|phase| a_request(phase, cache_written(phase))),
        write_amplification: spread(&|phase| {
            let counts = phase.cache?;
            let payload = counts.write_bytes + counts.promoted_bytes;
            (payload > 0).then(|| counts.cache_written_bytes as f64 / payload as f64)
        }),
        cpu_us: spread(&|phase| phase.cpu_us_per_request().filter(|cpu_us| *cpu_us > 0.0)),
        samples: first.samples.clone(),
    }
}

/// A percentile of reads, by its place in [`PERCENTILES`], of the job that fared worst.
pub(crate) fn worst_read_us(phase: &PhaseResult, index: usize) -> Option<f64> {
    worst_us(phase, |job| &job.read_latency, index)
}

/// A percentile of the job that fared worst.
fn worst_us(
    phase: &PhaseResult,
    of: fn(&JobResult) -> &Option<Latency>,
    index: usize,
) -> Option<f64> {
    let latencies =
        phase.jobs.iter().filter_map(|job| of(job).as_ref()?.percentiles_us.get(index).copied());
    latencies.max_by(f64::total_cmp)
}

fn first_iops(phase: &PhaseResult) -> Option<f64> {
    let first = &phase.samples[..phase.samples.len().min(FIRST_SECONDS)];
    let requests: u64 = first.iter().map(|sample| sample.requests).sum();
    (!first.is_empty() && !phase.jobs.is_empty()).then(|| requests as f64 / first.len() as f64)
}

/// `None` if nobody counted.
fn origin_bytes(phase: &PhaseResult, cache: Option<&str>) -> Option<f64> {
    let origins = phase.devices.iter().filter(|device| cache != Some(&device.name));
    let bytes = origins.map(|device| (device.read_bytes + device.written_bytes) as f64);
    bytes.reduce(|sum, bytes| sum + bytes)
}

/// Over the requests of the phase; `None` if there was none.
fn a_request(phase: &PhaseResult, bytes: Option<f64>) -> Option<f64> {
    let requests = phase.iops() * phase.seconds;
    (requests > 0.0).then_some(bytes? / requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread, Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        let spread = Spread::of([4.0, 1.0].into_iter());
        assert_eq!(spread, Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of(std::iter::empty()), None);
    }
}
