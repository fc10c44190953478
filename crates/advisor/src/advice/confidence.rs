//! How far a trace carries a recommendation.

use serde::Serialize;

use crate::profile::{Axis, Profile};

/// Fewer requests than this are an example rather than a workload.
const REQUESTS_FEW: u64 = 10_000;
/// Fewer than this say something about small caches only.
const REQUESTS_SOME: u64 = 100_000;
/// A trace shorter than a day, in seconds, has seen no night and no backup.
const DURATION_SHORT_S: f64 = 86_400.0;
/// One shorter than this is a moment.
const DURATION_MOMENT_S: f64 = 600.0;
/// Above this part of first touches, hit ratios depend on where the trace begins.
const FIRST_TOUCH_MUCH: f64 = 0.5;
/// A working set that grows by more than this part in the last quarter is not complete.
const GROWTH_MUCH: f64 = 0.15;

/// How sure a recommendation is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// A first impression.
    Low,
    /// It holds for more of the same.
    Medium,
    /// The trace is long, and comes back to what it used.
    High,
}

impl Confidence {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
        }
    }
}

/// Why a recommendation may be wrong.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Doubt {
    /// A sentence.
    pub text: String,
    /// The best that can still be said of the recommendation.
    pub confidence: Confidence,
}

fn doubt(confidence: Confidence, text: String) -> Doubt {
    Doubt { text, confidence }
}

/// Part of the working set that was touched first in the last quarter of the trace.
fn late_growth(profile: &Profile) -> Option<f64> {
    let windows = &profile.windows;
    if windows.len() < 8 {
        return None;
    }
    let before = windows[windows.len() * 3 / 4 - 1].cumulative_bytes as f64;
    let all = windows.last()?.cumulative_bytes as f64;
    (all > 0.0).then(|| 1.0 - before / all)
}

/// What speaks against relying on the trace.
pub(super) fn doubts(profile: &Profile) -> Vec<Doubt> {
    let mut doubts = Vec::new();
    let count = profile.reads.request_count + profile.writes.request_count;
    if count < REQUESTS_FEW {
        doubts.push(doubt(
            Confidence::Low,
            format!("The trace has only {count} requests: this is an example, not a workload."),
        ));
    } else if count < REQUESTS_SOME {
        doubts.push(doubt(
            Confidence::Medium,
            format!("The trace has {count} requests; some 100,000 or more would say more."),
        ));
    }
    if let Some(duration_s) = profile.duration_s.filter(|s| *s < DURATION_SHORT_S) {
        let short =
            if duration_s < DURATION_MOMENT_S { Confidence::Low } else { Confidence::Medium };
        doubts.push(doubt(
            short,
            format!(
                "The trace is {} long: what comes less often, such as backups, is not in it.",
                span(duration_s)
            ),
        ));
    }
    if profile.first_touch_ratio > FIRST_TOUCH_MUCH {
        doubts.push(doubt(
            Confidence::Medium,
            format!(
                "{:.0} % of the accesses are the first ones to their block, which no cache can \
                 find. A longer trace may find more of them used again.",
                100.0 * profile.first_touch_ratio
            ),
        ));
    }
    if let Some(growth) = late_growth(profile).filter(|growth| *growth > GROWTH_MUCH) {
        doubts.push(doubt(
            Confidence::Medium,
            format!(
                "The working set is still growing: {:.0} % of it came in the last quarter of the \
                 trace. The size that pays may be larger than what is seen here.",
                100.0 * growth
            ),
        ));
    }
    if profile.axis == Axis::Requests {
        doubts.push(doubt(
            Confidence::High,
            "The trace has no times, so nothing is said about wear and about overwriting within a \
             delay."
                .to_owned(),
        ));
    }
    doubts
}

/// What the doubts leave; three of medium weight make it low.
pub(super) fn confidence(doubts: &[Doubt]) -> Confidence {
    let least = doubts.iter().map(|doubt| doubt.confidence).min().unwrap_or(Confidence::High);
    let medium = doubts.iter().filter(|doubt| doubt.confidence == Confidence::Medium).count();
    if medium >= 3 { Confidence::Low } else { least }
}

/// A time span for people.
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
    }
}
