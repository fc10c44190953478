//! Two folders of results side by side: what changed, and whether it is more than noise.

use serde::Serialize;

use crate::summary::{PhaseSummary, Spread, Summary};

/// One figure in both.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Change {
    /// What the target is called.
    pub target: String,
    /// Name of the phase.
    pub phase: String,
    /// Name and unit of the figure.
    pub figure: &'static str,
    /// In the first folder.
    pub before: Spread,
    /// In the second.
    pub after: Spread,
    /// Median after, over the one before; `None` if that is zero.
    pub ratio: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
}

/// Whether a figure changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All repetitions after are better than all before.
    Better,
    /// All are worse.
    Worse,
    /// They overlap: no more than noise.
    WithinNoise,
    /// There is one repetition on a side, and no telling how much is noise.
    Unknown,
}

/// What is better of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Better {
    More,
    Less,
}

/// A figure that is compared.
struct Figure {
    name: &'static str,
    value: fn(&PhaseSummary) -> Option<Spread>,
    better: Better,
}

/// Place of the 50th, 99th and 99.9th of [`crate::result::PERCENTILES`].
const P50: usize = 0;
const P99: usize = 4;
const P999: usize = 5;

const FIGURES: [Figure; 13] = [
    Figure { name: "mean run, s", value: |phase| phase.run_s, better: Better::Less },
    Figure { name: "first run, s", value: |phase| phase.first_run_s, better: Better::Less },
    Figure { name: "IOPS", value: |phase| phase.iops, better: Better::More },
    Figure { name: "IOPS, last tenth", value: |phase| phase.last_iops, better: Better::More },
    Figure { name: "read p50, us", value: |phase| phase.read_us[P50], better: Better::Less },
    Figure { name: "read p99, us", value: |phase| phase.read_us[P99], better: Better::Less },
    Figure { name: "read p99.9, us", value: |phase| phase.read_us[P999], better: Better::Less },
    Figure { name: "write p50, us", value: |phase| phase.write_us[P50], better: Better::Less },
    Figure { name: "write p99, us", value: |phase| phase.write_us[P99], better: Better::Less },
    Figure { name: "hit ratio", value: |phase| phase.hit_ratio, better: Better::More },
    Figure { name: "fairness", value: |phase| phase.fairness, better: Better::More },
    Figure {
        name: "write amplification",
        value: |phase| phase.write_amplification,
        better: Better::Less,
    },
    Figure { name: "CPU a request, us", value: |phase| phase.cpu_us, better: Better::Less },
];

/// Figures that both have, in the order of the second.
#[must_use]
pub fn compare(before: &Summary, after: &Summary) -> Vec<Change> {
    let mut changes = Vec::new();
    for target in &after.targets {
        let old = before.targets.iter().find(|other| other.name == target.name);
        for phase in &target.phases {
            let old = old.and_then(|old| old.phases.iter().find(|other| other.name == phase.name));
            let Some(old) = old else { continue };
            for figure in &FIGURES {
                let (Some(before), Some(after)) = ((figure.value)(old), (figure.value)(phase))
                else {
                    continue;
                };
                changes.push(Change {
                    target: target.title.clone(),
                    phase: phase.name.clone(),
                    figure: figure.name,
                    before,
                    after,
                    ratio: (before.median != 0.0).then(|| after.median / before.median),
                    verdict: verdict(before, after, figure.better),
                });
            }
        }
    }
    changes
}

fn verdict(before: Spread, after: Spread, better: Better) -> Verdict {
    let is_single = |spread: Spread| spread.min == spread.max;
    if before == after {
        Verdict::WithinNoise
    } else if is_single(before) && is_single(after) {
        Verdict::Unknown
    } else if after.min > before.max {
        if better == Better::More { Verdict::Better } else { Verdict::Worse }
    } else if after.max < before.min {
        if better == Better::More { Verdict::Worse } else { Verdict::Better }
    } else {
        Verdict::WithinNoise
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { median, min, max }
    }

    #[test]
    fn only_what_does_not_overlap_has_changed() {
        let before = spread(9.0, 10.0, 11.0);
        for (after, more, less) in [
            (spread(12.0, 13.0, 14.0), Verdict::Better, Verdict::Worse),
            (spread(6.0, 7.0, 8.0), Verdict::Worse, Verdict::Better),
            (spread(8.0, 9.0, 10.0), Verdict::WithinNoise, Verdict::WithinNoise),
        ] {
            assert_eq!(verdict(before, after, Better::More), more);
            assert_eq!(verdict(before, after, Better::Less), less);
        }
        let single = spread(1.0, 1.0, 1.0);
        assert_eq!(verdict(single, spread(2.0, 2.0, 2.0), Better::More), Verdict::Unknown);
        assert_eq!(verdict(single, single, Better::More), Verdict::WithinNoise);
    }
}
