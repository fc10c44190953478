//! How long and how often things are measured, and what all of it will take.

use std::fmt::Write;

use serde::Serialize;

/// How thorough a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pace {
    /// For the document.
    Thorough,
    /// For daily use: once each, and less of everything.
    Quick,
}

/// Lengths of phases and numbers of repetitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Plan {
    pub(super) pace: Pace,
    /// Of each phase over NBD.
    pub(super) seconds: u64,
    /// Of the longest phases past a full cache.
    pub(super) full_seconds: u64,
    pub(super) repetitions: u32,
}

impl Plan {
    /// The usual lengths of `pace`.
    pub(super) fn of(pace: Pace) -> Plan {
        match pace {
            Pace::Thorough => Plan { pace, seconds: 3, full_seconds: 120, repetitions: 3 },
            Pace::Quick => Plan { pace, seconds: 1, full_seconds: 20, repetitions: 1 },
        }
    }
}

/// What a part will take, by the lengths of its phases.
#[derive(Clone, Debug)]
pub(super) struct Estimate {
    pub(super) part: String,
    pub(super) seconds: u64,
}

/// Says what to expect of a run.
pub(super) fn describe(estimates: &[Estimate]) -> String {
    let mut parts = String::new();
    for Estimate { part, seconds } in estimates {
        let comma = if parts.is_empty() { "" } else { ", " };
        let _ = write!(parts, "{comma}{part} {}", minutes(*seconds));
    }
    let whole: u64 = estimates.iter().map(|estimate| estimate.seconds).sum();
    format!("this will take about {} min, after the build ({parts})", minutes(whole))
}

/// Whole minutes, at least one.
fn minutes(seconds: u64) -> u64 {
    seconds.div_ceil(60).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_expect_is_told_whole_and_by_part() {
        let estimate = |part: &str, seconds| Estimate { part: part.to_owned(), seconds };
        assert_eq!(
            describe(&[estimate("engine", 10), estimate("full", 125)]),
            "this will take about 3 min, after the build (engine 1, full 3)"
        );
    }
}
