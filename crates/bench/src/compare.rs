//! Two folders of results side by side: what changed, and whether it is more than noise.

use serde::Serialize;

use crate::plan::{Phase, Plan};
use crate::summary::{FIRST_SECONDS, PhaseSummary, Spread, Summary, TargetSummary, percentile};

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
    /// A side has fewer than [`REPETITIONS_MIN`], which do not tell how much is noise.
    Unknown,
}

/// Repetitions that each side must have. Of so few, one figure in ten is better or worse throughout
/// by chance: of the 20 ways to choose three of six, two have all of one side above the other.
pub const REPETITIONS_MIN: u32 = 3;

/// What is better of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Better {
    More,
    Less,
}

/// Whether repetitions on both sides tell how much is noise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Noise {
    Known,
    Unknown,
}

/// A figure that is compared.
struct Figure {
    name: &'static str,
    value: fn(&PhaseSummary) -> Option<Spread>,
    better: Better,
}

const fn more(name: &'static str, value: fn(&PhaseSummary) -> Option<Spread>) -> Figure {
    Figure { name, value, better: Better::More }
}

const fn less(name: &'static str, value: fn(&PhaseSummary) -> Option<Spread>) -> Figure {
    Figure { name, value, better: Better::Less }
}

const FIGURES: [Figure; 18] = [
    less("mean run, s", |phase| phase.run_s),
    less("first run, s", |phase| phase.first_run_s),
    more("IOPS", |phase| phase.iops),
    more(FIRST_IOPS, |phase| phase.first_iops),
    more("IOPS, last tenth", |phase| phase.last_iops),
    less("read p50, us", |phase| percentile(&phase.read_us, 50.0)),
    less("read p90, us", |phase| percentile(&phase.read_us, 90.0)),
    less("read p99, us", |phase| percentile(&phase.read_us, 99.0)),
    less("read p99.9, us", |phase| percentile(&phase.read_us, 99.9)),
    less("read p99.99, us", |phase| percentile(&phase.read_us, 99.99)),
    less("write p50, us", |phase| percentile(&phase.write_us, 50.0)),
    less("write p90, us", |phase| percentile(&phase.write_us, 90.0)),
    less("write p99, us", |phase| percentile(&phase.write_us, 99.0)),
    less("write p99.99, us", |phase| percentile(&phase.write_us, 99.99)),
    more("hit ratio", |phase| phase.hit_ratio),
    more("fairness", |phase| phase.fairness),
    less("write amplification", |phase| phase.write_amplification),
    less("CPU a request, us", |phase| phase.cpu_us),
];

/// Of a phase that has a given time. More work in it moves more bytes, which is no worse: so they
/// are over the requests.
const OF_GIVEN_TIME: [Figure; 2] = [
    less("origin, bytes a request", |phase| phase.origin_bytes_a_request),
    less("SSD written, bytes a request", |phase| phase.cache_written_bytes_a_request),
];

/// Of a phase that has given work.
const OF_GIVEN_WORK: [Figure; 3] = [
    less("duration, s", |phase| phase.seconds),
    less("origin, MiB", |phase| Some(over(phase.origin_bytes?, MEBIBYTE))),
    less("SSD written, MiB", |phase| Some(over(phase.cache_written_bytes?, MEBIBYTE))),
];

const MEBIBYTE: f64 = (1_u64 << 20) as f64;

const FIRST_IOPS: &str = "IOPS, first 30 s";
const _: () = assert!(FIRST_SECONDS == 30, "it is in the name");

fn over(spread: Spread, divisor: f64) -> Spread {
    let Spread { median, min, max } = spread;
    Spread { median: median / divisor, min: min / divisor, max: max / divisor }
}

/// Figures that both have, in the order of the second, whose plan this is. Of phases that have one
/// name, the first stands beside the first, the second beside the second.
#[must_use]
pub fn compare(before: &Summary, after: &Summary, plan: &Plan) -> Vec<Change> {
    let mut changes = Vec::new();
    for target in &after.targets {
        let old = before.targets.iter().find(|other| other.name == target.name);
        let Some(old) = old else { continue };
        let is_known = old.measured.min(target.measured) >= REPETITIONS_MIN;
        let noise = if is_known { Noise::Known } else { Noise::Unknown };
        let of_plan = measured_phases(plan, target);
        for (place, phase) in target.phases.iter().enumerate() {
            let Some(old) = counterpart(old, &target.phases[..=place]) else { continue };
            let has_given_work = of_plan.get(place).is_some_and(|phase| phase.ends_with_its_work());
            let others = if has_given_work { &OF_GIVEN_WORK[..] } else { &OF_GIVEN_TIME };
            for figure in FIGURES.iter().chain(others) {
                let values = ((figure.value)(old), (figure.value)(phase));
                let (Some(before), Some(after)) = values else { continue };
                changes.push(Change {
                    target: target.title.clone(),
                    phase: phase.name.clone(),
                    figure: figure.name,
                    before,
                    after,
                    ratio: (before.median != 0.0).then(|| after.median / before.median),
                    verdict: verdict(before, after, noise, figure.better),
                });
            }
        }
    }
    changes
}

/// The phases of the plan that a summary has of a target.
fn measured_phases<'a>(plan: &'a Plan, target: &TargetSummary) -> Vec<&'a Phase> {
    let Some(target) = plan.targets.iter().find(|other| other.name == target.name) else {
        return Vec::new();
    };
    plan.phases.iter().filter(|phase| phase.is_for(target) && phase.is_measured()).collect()
}

/// What stands beside the last of these phases: the one as far down among those of its name.
fn counterpart<'a>(old: &'a TargetSummary, until: &[PhaseSummary]) -> Option<&'a PhaseSummary> {
    let (phase, earlier) = until.split_last()?;
    let number = earlier.iter().filter(|other| other.name == phase.name).count();
    old.phases.iter().filter(|other| other.name == phase.name).nth(number)
}

fn verdict(before: Spread, after: Spread, noise: Noise, better: Better) -> Verdict {
    let when_more = if after == before {
        return Verdict::WithinNoise;
    } else if noise == Noise::Unknown {
        return Verdict::Unknown;
    } else if after.min > before.max {
        Better::More
    } else if after.max < before.min {
        Better::Less
    } else {
        return Verdict::WithinNoise;
    };
    if when_more == better { Verdict::Better } else { Verdict::Worse }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;
    use crate::machine::Machine;
    use crate::plan::Clock;
    use crate::result::{
        CacheCounts, DeviceCounts, JobResult, Latency, PERCENTILES, PhaseResult, Sample,
        TargetResult, VERSION,
    };

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
            // Of several repetitions, too, all may be the same.
            (spread(12.0, 12.0, 12.0), Verdict::Better, Verdict::Worse),
        ] {
            assert_eq!(verdict(before, after, Noise::Known, Better::More), more);
            assert_eq!(verdict(before, after, Noise::Known, Better::Less), less);
            assert_eq!(verdict(before, after, Noise::Unknown, Better::More), Verdict::Unknown);
        }
        assert_eq!(verdict(before, before, Noise::Unknown, Better::More), Verdict::WithinNoise);
    }

    /// A phase with given work that stands twice, and one of a given time.
    const PLAN: &str = r#"
about = "x"
clock = "virtual"
[[device]]
name = "ssd"
preset = "nvme_ssd"
size = "64M"
[[target]]
name = "ssd"
device = "ssd"
[[phase]]
name = "twice"
[[phase.job]]
name = "a"
work = "read"
pattern = "uniform"
size = "1M"
amount = "1M"
[[phase]]
name = "timed"
seconds = 128
[[phase.job]]
name = "a"
work = "read"
pattern = "uniform"
size = "1M"
[[phase]]
name = "twice"
[[phase.job]]
name = "b"
work = "read"
pattern = "uniform"
size = "2M"
amount = "2M"
"#;

    fn phase(name: &str, seconds: f64, requests: u64) -> PhaseResult {
        let percentiles_us = PERCENTILES.map(|percent| percent * seconds).to_vec();
        let latency = Latency { mean_us: 1.0, max_us: 1.0, percentiles_us };
        let job = JobResult {
            name: "a".to_owned(),
            reads: requests,
            writes: 0,
            bytes: 4096 * requests,
            read_latency: Some(latency.clone()),
            write_latency: Some(latency),
            group: None,
        };
        let mut samples = vec![Sample { requests: 7, ..Sample::default() }; FIRST_SECONDS];
        samples.push(Sample { requests: 1_000, ..Sample::default() });
        let cache_written_bytes = 2 << 20;
        PhaseResult {
            name: name.to_owned(),
            seconds,
            jobs: vec![job],
            samples,
            cache: Some(CacheCounts { cache_written_bytes, ..CacheCounts::default() }),
            devices: vec![DeviceCounts { read_bytes: 3 << 20, ..DeviceCounts::default() }],
            ..PhaseResult::default()
        }
    }

    /// Repetitions of which the phases took so long: one after the other, and the second twice.
    fn summary(repetitions: &[[f64; 2]]) -> (Summary, Plan) {
        summary_of(repetitions.iter().map(|[first, second]| {
            vec![
                phase("twice", *first, 10),
                phase("timed", 128.0, 1024),
                phase("twice", *second, 10),
            ]
        }))
    }

    /// Of repetitions with these phases.
    fn summary_of(repetitions: impl Iterator<Item = Vec<PhaseResult>>) -> (Summary, Plan) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::create(place.path(), PLAN, &[], &Machine::default()).expect("new");
        for (repetition, phases) in (1..).zip(repetitions) {
            let (target, clock) = ("ssd".to_owned(), Clock::Virtual);
            let version = VERSION;
            let result = TargetResult { version, target, repetition, clock, wall_s: 0.1, phases };
            folder.save(&result).expect("kept");
        }
        let (folder, plan, _) = Folder::open(place.path()).expect("results");
        (Summary::of(&folder, &plan).expect("a summary"), plan)
    }

    /// Medians before and after, and verdicts, of a figure of the phases that have it.
    fn changes(before: &[[f64; 2]], after: &[[f64; 2]], figure: &str) -> Vec<(f64, f64, Verdict)> {
        let (after, plan) = summary(after);
        let changes = compare(&summary(before).0, &after, &plan);
        let changes = changes.iter().filter(|change| change.figure == figure);
        changes.map(|change| (change.before.median, change.after.median, change.verdict)).collect()
    }

    #[test]
    fn phases_of_one_name_stand_beside_each_other_in_their_order() {
        let before = [[10.0, 50.0], [10.0, 50.0], [11.0, 51.0]];
        let after = [[10.0, 30.0], [10.0, 30.0], [11.0, 31.0]];
        let expected = vec![(10.0, 10.0, Verdict::WithinNoise), (50.0, 30.0, Verdict::Better)];
        assert_eq!(changes(&before, &after, "duration, s"), expected);
    }

    #[test]
    fn a_side_with_few_repetitions_does_not_tell_its_noise() {
        let (two, three) = ([[10.0, 10.0]; 2], [[20.0, 20.0]; 3]);
        let verdicts = |before: &[[f64; 2]], after: &[[f64; 2]]| -> Vec<Verdict> {
            changes(before, after, "duration, s").iter().map(|change| change.2).collect()
        };
        assert_eq!(verdicts(&two, &three), [Verdict::Unknown; 2]);
        assert_eq!(verdicts(&three, &two), [Verdict::Unknown; 2]);
        assert_eq!(verdicts(&two, &two), [Verdict::WithinNoise; 2]);
        assert_eq!(verdicts(&three, &[[10.0, 10.0]; 3]), [Verdict::Better; 2]);
    }

    #[test]
    fn what_a_request_moves_is_of_its_own_repetition() {
        // The bytes are the same, the requests twice as many.
        let phases = [1024, 2048].map(|requests| vec![phase("timed", 128.0, requests)]);
        let (summary, _) = summary_of(phases.into_iter());
        let origin = summary.targets[0].phases[0].origin_bytes_a_request;
        assert_eq!(origin, Some(spread(1536.0, 2304.0, 3072.0)));
    }

    #[test]
    fn figures_are_those_of_their_name() {
        let one = [[8.0, 8.0]];
        let of = |figure: &str| {
            let of_phase = |(before, after, _): (f64, f64, Verdict)| {
                assert_eq!(before, after);
                after
            };
            changes(&one, &one, figure).into_iter().map(of_phase).collect::<Vec<f64>>()
        };
        // The percentiles, by the seconds of the phase.
        assert_eq!(of("read p90, us"), [720.0, 11520.0, 720.0]);
        assert_eq!(of("write p99.99, us"), [799.92, 12798.72, 799.92]);
        assert_eq!(of("IOPS, first 30 s"), [7.0; 3]);
        assert_eq!(of("origin, MiB"), [3.0; 2]);
        assert_eq!(of("SSD written, MiB"), [2.0; 2]);
        assert_eq!(of("origin, bytes a request"), [3072.0]);
        assert_eq!(of("SSD written, bytes a request"), [2048.0]);
    }
}
