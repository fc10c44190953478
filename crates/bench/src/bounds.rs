//! How the bounds of a plan stand.
//!
//! Invariants:
//! - A verdict follows from results of the same folder, and from nothing else.
//! - A bound of which any figure is missing is neither met nor missed, nor is one of a target that
//!   failed in any repetition. So the best of several caches is only known when all of them were
//!   measured.

use serde::Serialize;

use crate::plan::{Bound, Figure, Limit, Measure, Plan};
use crate::result::{PhaseResult, TargetResult, percentile_place};
use crate::summary::{Spread, worst_read_us};

/// A bound, and how it stands.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    /// What the plan calls it.
    pub text: String,
    /// What the value has to be.
    pub limit: Limit,
    /// The value: of each figure the median of the repetitions. `None` if one of them is missing.
    pub value: Option<f64>,
    /// What follows from these.
    pub verdict: Verdict,
}

/// Whether a bound is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The value is within the limit.
    Met,
    /// It is not.
    Missed,
    /// There is no value.
    NotMeasured,
}

/// All bounds of a plan, in their order, by the results of its targets, in theirs.
#[must_use]
pub fn judge(plan: &Plan, results: &[Vec<TargetResult>]) -> Vec<Judged> {
    let judged = |bound: &Bound| {
        let limit = bound.limit();
        // Over nothing there is no ratio.
        let value = bound_value(bound, plan, results).filter(|value| value.is_finite());
        let verdict = match value {
            None => Verdict::NotMeasured,
            Some(value) if limit.holds(value) => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        Judged { text: bound.text.clone(), limit, value, verdict }
    };
    plan.bounds.iter().map(judged).collect()
}

fn bound_value(bound: &Bound, plan: &Plan, results: &[Vec<TargetResult>]) -> Option<f64> {
    let median = |measure: &Measure| {
        let place = plan.targets.iter().position(|target| target.name == measure.target)?;
        let phases = results.get(place)?.iter().filter_map(|result| {
            result.phases.iter().find(|phase| phase.name == measure.phase && phase.is_measured())
        });
        Spread::of(phases.filter_map(|phase| value(phase, measure))).map(|spread| spread.median)
    };
    let of = median(&bound.of)?;
    let others: Vec<f64> = bound.over.iter().map(median).collect::<Option<_>>()?;
    let largest = others.into_iter().reduce(f64::max);
    Some(of / largest.or(bound.over_value).unwrap_or(1.0))
}

/// A figure in one repetition.
fn value(phase: &PhaseResult, measure: &Measure) -> Option<f64> {
    let percentile = |percent: f64| worst_read_us(phase, percentile_place(percent)?);
    match measure.figure {
        Figure::Iops => iops(phase, measure),
        Figure::KbPerSecond => {
            let bytes: u64 = phase.jobs.iter().map(|job| job.bytes).sum();
            let request_bytes = bytes as f64 / phase.requests().max(1) as f64;
            Some(iops(phase, measure)? * request_bytes / 1024.0)
        }
        Figure::Fairness => phase.fairness(),
        Figure::ReadP50Us => percentile(50.0),
        Figure::ReadP90Us => percentile(90.0),
        Figure::ReadP99Us => percentile(99.0),
        Figure::HitRatio => phase.hit_ratio(),
        Figure::Seconds => Some(phase.seconds),
        Figure::SlowestSecondOverMean => {
            let seconds = seconds(phase, measure);
            let (slowest, mean) = (seconds.iter().copied().reduce(f64::min)?, mean(&seconds)?);
            Some(if mean > 0.0 { slowest / mean } else { 0.0 })
        }
    }
}

/// Requests a second, of the whole phase or of the seconds that are asked for.
fn iops(phase: &PhaseResult, measure: &Measure) -> Option<f64> {
    let Measure { from_second, first_seconds, last_seconds, .. } = measure;
    match from_second.or(*first_seconds).or(*last_seconds) {
        None => Some(phase.iops()),
        Some(_) => mean(&seconds(phase, measure)),
    }
}

/// Requests in each of the seconds that are asked for; a phase that was shorter has fewer of them.
fn seconds(phase: &PhaseResult, measure: &Measure) -> Vec<f64> {
    let all = phase.samples.iter().map(|sample| sample.requests as f64);
    let count = |seconds: Option<u32>| seconds.map(|seconds| seconds as usize);
    let from = count(measure.from_second)
        .or_else(|| Some(all.len().saturating_sub(count(measure.last_seconds)?)));
    all.take(count(measure.first_seconds).unwrap_or(usize::MAX))
        .skip(from.unwrap_or_default())
        .collect()
}

fn mean(seconds: &[f64]) -> Option<f64> {
    (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
}

#[cfg(test)]
mod tests;
