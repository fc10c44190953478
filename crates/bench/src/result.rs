//! What came out.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::Clock;

/// Percentiles of latencies that results have.
pub const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.95, 99.99];

/// Where a percentile stands among [`PERCENTILES`]; `None` if it is none of them.
#[must_use]
pub fn percentile_place(percent: f64) -> Option<usize> {
    PERCENTILES.iter().position(|known| *known == percent)
}

/// Raised when the form of results changes.
pub const VERSION: u32 = 1;

/// One repetition of one target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TargetResult {
    /// [`VERSION`].
    pub version: u32,
    /// Name of the target in its plan.
    pub target: String,
    /// From 1.
    pub repetition: u32,
    /// Which time passed.
    pub clock: Clock,
    /// How long this took, in seconds of this machine.
    pub wall_s: f64,
    /// Phases in their order.
    pub phases: Vec<PhaseResult>,
}

/// One phase.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Its name in the plan.
    pub name: String,
    /// It only made ready.
    pub is_preparation: bool,
    /// How long it lasted, in seconds of the clock.
    pub seconds: f64,
    /// What each job saw.
    pub jobs: Vec<JobResult>,
    /// How long each run of its program took, in seconds of the clock.
    #[serde(default)]
    pub runs_s: Vec<f64>,
    /// Second by second, at its end.
    pub samples: Vec<Sample>,
    /// What the cache did; bare devices have none.
    pub cache: Option<CacheCounts>,
    /// What a cache of somebody else says of its reads.
    #[serde(default)]
    pub hit_counts: Option<HitCounts>,
    /// What the devices did, by name.
    pub devices: Vec<DeviceCounts>,
    /// Processor time of the daemon, or of the whole machine if the plan wants that, in seconds; in
    /// virtual time that of the plan.
    pub cpu_s: f64,
}

/// What one client saw.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobResult {
    /// Its name in the plan.
    pub name: String,
    /// Reads that ended.
    pub reads: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Latency of reads; `None` if there was none.
    pub read_latency: Option<Latency>,
    /// Latency of writes.
    pub write_latency: Option<Latency>,
    /// Those with one number do alike work for the same time; `None` if it ends with its work.
    #[serde(default)]
    pub group: Option<u32>,
}

/// Latencies, in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Largest.
    pub max_us: f64,
    /// Those of [`PERCENTILES`].
    pub percentiles_us: Vec<f64>,
}

impl Latency {
    /// Of a histogram of nanoseconds; `None` if it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let percentile = |percent: &f64| histogram.value_at_quantile(percent / 100.0) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Latency {
            mean_us: histogram.mean() / 1e3,
            max_us: histogram.max() as f64 / 1e3,
            percentiles_us: PERCENTILES.iter().map(percentile).collect(),
        })
    }
}

/// A second of a phase.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Since the phase began, at the end of this second.
    pub second: u64,
    /// Requests that ended in it.
    pub requests: u64,
    /// Of its blocks read, the share that came from the cache; `None` if none was read, or there is
    /// no cache.
    pub hit_ratio: Option<f64>,
    /// Newer than the origin.
    pub dirty_bytes: u64,
}

/// What the cache did.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Bytes that clients read from the cache.
    pub read_hit_bytes: u64,
    /// Bytes that clients read from the origin.
    pub read_miss_bytes: u64,
    /// Bytes that clients wrote.
    pub write_bytes: u64,
    /// Bytes copied from the origin to the cache.
    pub promoted_bytes: u64,
    /// Bytes appended again at reclaim.
    pub relocated_bytes: u64,
    /// All bytes written to the cache device.
    pub cache_written_bytes: u64,
    /// Bytes in the cache at the end.
    pub cached_bytes: u64,
    /// Newer than the origin at the end.
    pub dirty_bytes: u64,
}

impl CacheCounts {
    /// What was done since `before`, and what the cache holds now.
    #[must_use]
    pub fn since(&self, before: &CacheCounts) -> CacheCounts {
        CacheCounts {
            read_hit_bytes: self.read_hit_bytes - before.read_hit_bytes,
            read_miss_bytes: self.read_miss_bytes - before.read_miss_bytes,
            write_bytes: self.write_bytes - before.write_bytes,
            promoted_bytes: self.promoted_bytes - before.promoted_bytes,
            relocated_bytes: self.relocated_bytes - before.relocated_bytes,
            cache_written_bytes: self.cache_written_bytes - before.cache_written_bytes,
            ..*self
        }
    }

    /// Of the bytes that were read, the share from the cache; `None` if none was.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        let bytes = self.read_hit_bytes + self.read_miss_bytes;
        (bytes > 0).then(|| self.read_hit_bytes as f64 / bytes as f64)
    }
}

/// Reads by whether they came from the cache, in requests or in bytes: whatever the cache counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HitCounts {
    /// Those that did.
    pub hits: u64,
    /// Those that did not.
    pub misses: u64,
}

impl HitCounts {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(self, before: HitCounts) -> HitCounts {
        HitCounts {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
        }
    }

    /// The share of hits; `None` if nothing was read.
    fn ratio(self) -> Option<f64> {
        let all = self.hits as f64 + self.misses as f64;
        (all > 0.0).then(|| self.hits as f64 / all)
    }
}

/// What a device did.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceCounts {
    /// Its name in the plan.
    pub name: String,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl PhaseResult {
    /// Whether there is something to be measured in it, and not only a pause.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.jobs.is_empty() || !self.runs_s.is_empty()
    }

    /// Whether it has figures: there was work in it, and not only to make ready.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !self.is_preparation && self.has_work()
    }

    /// Requests of all jobs that ended.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.jobs.iter().map(|job| job.reads + job.writes).sum()
    }

    /// Requests a second of all jobs.
    #[must_use]
    pub fn iops(&self) -> f64 {
        if self.seconds > 0.0 { self.requests() as f64 / self.seconds } else { 0.0 }
    }

    /// Mean time of a run of its program, in seconds; `None` if there is none.
    #[must_use]
    pub fn run_s(&self) -> Option<f64> {
        let sum: f64 = self.runs_s.iter().sum();
        (!self.runs_s.is_empty()).then(|| sum / self.runs_s.len() as f64)
    }

    /// Requests a second in the last tenth of the phase, a second at least; `None` without jobs, or
    /// if no sample was taken.
    #[must_use]
    pub fn last_iops(&self) -> Option<f64> {
        let count = (self.samples.len() / 10).max(1);
        let last = self.samples.iter().rev().take(count);
        let requests: u64 = last.map(|sample| sample.requests).sum();
        let is_known = !self.samples.is_empty() && !self.jobs.is_empty();
        is_known.then(|| requests as f64 / count as f64)
    }

    /// The share of reads that came from the cache; `None` if nobody counted, or nothing was read.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        match &self.cache {
            Some(counts) => counts.hit_ratio(),
            None => self.hit_counts?.ratio(),
        }
    }

    /// Requests of the slowest job over those of the fastest, among those that do alike work; of
    /// several such groups the worst. `None` if no two do.
    #[must_use]
    pub fn fairness(&self) -> Option<f64> {
        let of = |group: u32| {
            let jobs = self.jobs.iter().filter(|job| job.group == Some(group));
            let counts = jobs.map(|job| job.reads + job.writes);
            let (least, most) = (counts.clone().min()?, counts.clone().max()?);
            (counts.count() > 1 && most > 0).then(|| least as f64 / most as f64)
        };
        let last = self.jobs.iter().filter_map(|job| job.group).max()?;
        (0..=last).filter_map(of).reduce(f64::min)
    }

    /// Processor time for a request, in microseconds.
    #[must_use]
    pub fn cpu_us_per_request(&self) -> Option<f64> {
        let requests = self.requests();
        (requests > 0).then(|| self.cpu_s * 1e6 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(reads: u64) -> JobResult {
        JobResult {
            name: String::new(),
            reads,
            writes: 0,
            bytes: 0,
            read_latency: None,
            write_latency: None,
            group: Some(0),
        }
    }

    fn phase(jobs: Vec<JobResult>, requests: &[u64]) -> PhaseResult {
        let second = |(index, requests): (usize, &u64)| Sample {
            second: index as u64 + 1,
            requests: *requests,
            ..Sample::default()
        };
        PhaseResult {
            seconds: requests.len() as f64,
            jobs,
            runs_s: vec![3.0, 1.0, 2.0],
            samples: requests.iter().enumerate().map(second).collect(),
            cpu_s: 0.5,
            ..PhaseResult::default()
        }
    }

    #[test]
    fn rates_are_of_all_jobs_and_fairness_is_between_them() {
        let phase = phase(vec![job(30), job(10)], &[4; 10]);
        assert_eq!((phase.iops(), phase.fairness()), (4.0, Some(10.0 / 30.0)));
        assert_eq!(phase.cpu_us_per_request(), Some(0.5e6 / 40.0));
        assert_eq!(phase.last_iops(), Some(4.0));
        assert_eq!(phase.run_s(), Some(2.0));
    }

    #[test]
    fn only_jobs_that_do_alike_work_are_held_against_each_other() {
        let of = |reads, group| JobResult { group, ..job(reads) };
        let fairness = |jobs| phase(jobs, &[1]).fairness();
        let unlike = vec![of(1, Some(0)), of(30, Some(1))];
        assert_eq!(fairness(unlike.clone()), None);
        let more = [of(20, Some(1)), of(4, Some(0)), of(7, None), of(700, None)];
        assert_eq!(fairness([unlike, more.to_vec()].concat()), Some(0.25));
        assert_eq!(fairness(vec![of(7, None), of(700, None)]), None);
    }

    #[test]
    fn the_last_tenth_is_a_second_at_least() {
        assert_eq!(phase(vec![job(1)], &[1, 9]).last_iops(), Some(9.0));
        let mut requests = [1; 20];
        requests[18..].copy_from_slice(&[5, 7]);
        assert_eq!(phase(vec![job(1)], &requests).last_iops(), Some(6.0));
        assert_eq!(phase(vec![], &[]).last_iops(), None);
    }

    #[test]
    fn the_hit_ratio_is_that_of_whoever_counted() {
        let mut phase = phase(vec![job(1)], &[1]);
        assert_eq!(phase.hit_ratio(), None);
        let counts = |hits, misses| HitCounts { hits, misses };
        phase.hit_counts = Some(counts(130, 20).since(counts(100, 10)));
        assert_eq!(phase.hit_ratio(), Some(0.75));
        phase.hit_counts = Some(counts(100, 10).since(counts(100, 10)));
        assert_eq!(phase.hit_ratio(), None);
        let (read_hit_bytes, read_miss_bytes) = (1, 1);
        let ours = CacheCounts { read_hit_bytes, read_miss_bytes, ..CacheCounts::default() };
        phase.cache = Some(ours);
        assert_eq!(phase.hit_ratio(), Some(0.5));
    }

    #[test]
    fn a_histogram_without_values_has_no_latency() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        assert_eq!(Latency::of(&histogram), None);
        histogram.record(2_000).unwrap();
        let latency = Latency::of(&histogram).unwrap();
        assert_eq!((latency.mean_us, latency.percentiles_us.len()), (2.0, PERCENTILES.len()));
    }
}
