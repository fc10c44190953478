//! What figures have to be.

use serde::{Deserialize, Serialize};

use super::check::{known, require};
use super::{Phase, Plan, PlanError, Target, Work};

/// What a figure of a run has to be.
///
/// Its value is the figure `of` a phase; over that of other phases, if `over` has any, or over what
/// others published, if there is an `over_value`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// What the report calls it.
    pub text: String,
    /// The figure.
    pub of: Measure,
    /// The ratio is taken over the largest of these: the best of several caches.
    #[serde(default)]
    pub over: Vec<Measure>,
    /// The ratio is taken over this: what others published, in the unit of the figure.
    #[serde(default)]
    pub over_value: Option<f64>,
    /// The least that the value may be. There is this limit or the other, not both.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// The most that it may be.
    #[serde(default)]
    pub at_most: Option<f64>,
}

/// A figure of a phase of a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Name of the target.
    pub target: String,
    /// Name of the phase, which is the target's own if others have one of that name.
    pub phase: String,
    /// Which figure.
    pub figure: Figure,
    /// Only the seconds after so many.
    #[serde(default)]
    pub from_second: Option<u32>,
    /// Only so many seconds at the beginning of the phase.
    #[serde(default)]
    pub first_seconds: Option<u32>,
    /// Only so many seconds at its end.
    #[serde(default)]
    pub last_seconds: Option<u32>,
}

/// A figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Requests a second of all jobs.
    Iops,
    /// Kilobytes of 1,024 bytes a second of all jobs, as fio has them.
    KbPerSecond,
    /// Requests of the slowest job over those of the fastest, among jobs that do alike work.
    Fairness,
    /// The median of latencies of reads in microseconds, of the job that fared worst.
    ReadP50Us,
    /// The 90th percentile of the same.
    ReadP90Us,
    /// The 99th percentile of the same.
    ReadP99Us,
    /// Of what was read, the share from the cache.
    HitRatio,
    /// How long the phase lasted, in seconds of its clock.
    Seconds,
    /// Requests in the slowest second over those of a mean one: 1 if there is no dip.
    SlowestSecondOverMean,
}

impl Figure {
    /// As plans have it.
    fn name(self) -> &'static str {
        match self {
            Figure::Iops => "iops",
            Figure::KbPerSecond => "kb_per_second",
            Figure::Fairness => "fairness",
            Figure::ReadP50Us => "read_p50_us",
            Figure::ReadP90Us => "read_p90_us",
            Figure::ReadP99Us => "read_p99_us",
            Figure::HitRatio => "hit_ratio",
            Figure::Seconds => "seconds",
            Figure::SlowestSecondOverMean => "slowest_second_over_mean",
        }
    }

    /// Whether it is known for some of the seconds of a phase.
    fn has_seconds(self) -> bool {
        matches!(self, Figure::Iops | Figure::KbPerSecond | Figure::SlowestSecondOverMean)
    }

    /// Whether a phase of a target has it.
    fn is_of(self, target: &Target, phase: &Phase) -> bool {
        let has_reads = phase.jobs.iter().any(|job| job.work != Work::Write);
        match self {
            Figure::Iops | Figure::KbPerSecond | Figure::SlowestSecondOverMean => {
                !phase.jobs.is_empty()
            }
            Figure::Fairness => {
                let groups = phase.groups();
                let are_alike = |(index, group): (usize, &Option<u32>)| {
                    group.is_some() && groups[..index].contains(group)
                };
                groups.iter().enumerate().any(are_alike)
            }
            Figure::ReadP50Us | Figure::ReadP90Us | Figure::ReadP99Us => has_reads,
            Figure::HitRatio => {
                let is_counted = target.forebay.is_some() || !target.hit_counts.is_empty();
                // What a program does nobody knows.
                is_counted && (has_reads || !phase.program.is_empty())
            }
            Figure::Seconds => true,
        }
    }
}

/// On which side of a limit a value has to be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The least that it may be.
    AtLeast(f64),
    /// The most.
    AtMost(f64),
}

impl Limit {
    /// Whether a value is on the right side, or the limit itself.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtLeast(limit) => value >= limit,
            Limit::AtMost(limit) => value <= limit,
        }
    }
}

impl Bound {
    /// What its value has to be.
    ///
    /// # Panics
    ///
    /// If it has no limit; plans are checked for that.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let most = || Limit::AtMost(self.at_most.expect("a plan that was checked"));
        self.at_least.map_or_else(most, Limit::AtLeast)
    }

    pub(super) fn check(&self, plan: &Plan) -> Result<(), PlanError> {
        let place = format!("bound {}", self.text);
        require(!self.text.trim().is_empty(), &place, "text: what is it about?")?;
        let one = "exactly one of `at_least` and `at_most`";
        require(self.at_least.is_some() != self.at_most.is_some(), &place, one)?;
        let limits = self.at_least.iter().chain(&self.at_most);
        require(limits.clone().all(|limit| limit.is_finite()), &place, "a limit is a number")?;
        let one = "not both of `over` and `over_value`";
        require(self.over.is_empty() || self.over_value.is_none(), &place, one)?;
        let is_divisor = self.over_value.is_none_or(|value| value.is_finite() && value > 0.0);
        require(is_divisor, &place, "over_value: above 0")?;
        for measure in [&self.of].into_iter().chain(&self.over) {
            measure.check(plan, &place)?;
        }
        Ok(())
    }
}

impl Measure {
    fn check(&self, plan: &Plan, place: &str) -> Result<(), PlanError> {
        let Measure { target: target_name, phase: phase_name, figure, .. } = self;
        let target = plan.targets.iter().find(|target| target.name == *target_name);
        let target = known(target, place, &format!("there is no target {target_name}"))?;
        let mut phases = plan.phases.iter().filter(|phase| {
            phase.name == *phase_name && phase.is_for(target) && phase.is_measured()
        });
        let absent = format!("target {target_name} has no phase {phase_name} that is measured");
        let phase = known(phases.next(), place, &absent)?;
        let twice = format!("target {target_name} has more than one phase {phase_name}");
        require(phases.next().is_none(), place, &twice)?;
        let figure_name = figure.name();
        let absent = format!("target {target_name} has no {figure_name} in phase {phase_name}");
        require(figure.is_of(target, phase), place, &absent)?;
        let windows = [self.from_second, self.first_seconds, self.last_seconds];
        let mut windows = windows.into_iter().flatten();
        let Some(length) = windows.next() else { return Ok(()) };
        let one = "at most one of `from_second`, `first_seconds` and `last_seconds`";
        require(windows.next().is_none(), place, one)?;
        let whole = format!("{figure_name} is of a whole phase, and not of some of its seconds");
        require(figure.has_seconds(), place, &whole)?;
        let is_inside = phase.lasts_s().is_none_or(|lasts| match self.from_second {
            Some(second) => u64::from(second) < lasts,
            None => u64::from(length) <= lasts,
        });
        let outside = format!("phase {phase_name} has no such seconds");
        require(length > 0 && is_inside, place, &outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        about = "a test"
        clock = "virtual"
        device = [
            { name = "disk", preset = "hdd", size = "1G" },
            { name = "ssd", preset = "sata_ssd", size = "1G" },
        ]
        target = [
            { name = "bare", device = "disk" },
            { name = "cached", forebay = { cache = "ssd", origin = "disk", mode = "writeback" } },
        ]
        [[phase]]
        name = "junk"
        is_preparation = true
        seconds = 10
        job = [{ name = "a", work = "read", pattern = "uniform", size = "16M" }]
        [[phase]]
        name = "pause"
        seconds = 10
        [[phase]]
        name = "reads"
        seconds = 10
        times = 2
        job = [{ name = "a", work = "read", pattern = "uniform", size = "16M", count = 2 }]
        [[phase]]
        name = "writes"
        only = ["cached"]
        seconds = 10
        job = [{ name = "a", work = "write", pattern = "uniform", size = "16M" }]
        [[phase]]
        name = "twice"
        seconds = 10
        job = [{ name = "a", work = "write", pattern = "uniform", size = "16M" }]
        [[phase]]
        name = "twice"
        seconds = 10
        job = [{ name = "a", work = "write", pattern = "uniform", size = "16M" }]
    "#;

    fn parse(bound: &str) -> Result<Plan, PlanError> {
        Plan::parse(&format!("{PLAN}\n[[bound]]\ntext = \"x\"\n{bound}"))
    }

    fn of(measure: &str) -> String {
        format!("of = {{ {measure} }}\nat_least = 1.0")
    }

    #[test]
    fn a_bound_that_makes_sense_is_read() {
        let reads = "target = \"cached\", phase = \"reads\"";
        for measure in [
            "figure = \"iops\"",
            "figure = \"iops\", first_seconds = 20",
            "figure = \"kb_per_second\", from_second = 19",
            "figure = \"slowest_second_over_mean\", last_seconds = 1",
            "figure = \"fairness\"",
            "figure = \"read_p50_us\"",
            "figure = \"read_p90_us\"",
            "figure = \"read_p99_us\"",
            "figure = \"hit_ratio\"",
            "figure = \"seconds\"",
        ] {
            let plan = parse(&of(&format!("{reads}, {measure}"))).expect(measure);
            assert_eq!(plan.bounds[0].limit(), Limit::AtLeast(1.0));
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let measure = |target: &str, phase: &str, rest: &str| {
            of(&format!("target = \"{target}\", phase = \"{phase}\", figure = {rest}"))
        };
        let good = "of = { target = \"cached\", phase = \"reads\", figure = \"iops\" }";
        let and = |more: &str| format!("{good}\n{more}");
        let over = "over = [{ target = \"tape\", phase = \"reads\", figure = \"iops\" }]";
        let cases = [
            (measure("tape", "reads", "\"iops\""), "bound x: there is no target tape"),
            (and(&format!("{over}\nat_most = 1")), "there is no target tape"),
            (measure("bare", "reeds", "\"iops\""), "bare has no phase reeds"),
            (measure("bare", "writes", "\"iops\""), "bare has no phase writes"),
            (measure("bare", "junk", "\"iops\""), "bare has no phase junk"),
            (measure("bare", "pause", "\"seconds\""), "bare has no phase pause"),
            (measure("bare", "twice", "\"iops\""), "more than one phase twice"),
            (measure("bare", "reads", "\"speed\""), "unknown variant"),
            (measure("bare", "reads", "\"hit_ratio\""), "bare has no hit_ratio in phase reads"),
            (measure("cached", "writes", "\"read_p99_us\""), "has no read_p99_us"),
            (measure("cached", "writes", "\"hit_ratio\""), "has no hit_ratio"),
            (measure("cached", "writes", "\"fairness\""), "has no fairness"),
            (measure("bare", "reads", "\"seconds\", last_seconds = 2"), "seconds is of a whole"),
            (measure("bare", "reads", "\"iops\", last_seconds = 21"), "no such seconds"),
            (measure("bare", "reads", "\"iops\", from_second = 20"), "no such seconds"),
            (measure("bare", "reads", "\"iops\", first_seconds = 0"), "no such seconds"),
            (
                measure("bare", "reads", "\"iops\", first_seconds = 1, last_seconds = 1"),
                "at most one of",
            ),
            (measure("bare", "reads", "\"iops\", second = 1"), "unknown field"),
            (good.to_owned(), "exactly one of `at_least`"),
            (and("at_least = 1\nat_most = 2"), "exactly one of `at_least`"),
            (and("at_least = nan"), "a limit is a number"),
            (and("at_least = 1\nover_value = 0"), "over_value: above 0"),
            (
                and(&format!("at_least = 1\nover_value = 2\n{}", over.replace("tape", "bare"))),
                "not both of `over`",
            ),
            (and("at_least = 1\nunit = \"s\""), "unknown field"),
        ];
        for (bound, expected) in cases {
            let error = parse(&bound).expect_err(&bound).to_string();
            assert!(error.contains(expected), "{bound}: {error}");
        }
    }
}
