//! Of what a run consists: repetitions of targets.

use forebay_bench::plan::{Plan, Target};

/// A repetition of a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurement {
    /// The target's place in the plan.
    place: usize,
    /// From 1.
    pub(super) repetition: u32,
    /// Its place in the run, from 1.
    pub(super) number: usize,
}

impl Measurement {
    pub(super) fn target(self, plan: &Plan) -> &Target {
        &plan.targets[self.place]
    }

    /// Which of a run of so many it is.
    pub(super) fn label(self, plan: &Plan, total: usize) -> String {
        let Measurement { repetition, number, .. } = self;
        let again = match plan.repetitions {
            1 => String::new(),
            _ => format!(", repetition {repetition}"),
        };
        format!("{number} of {total}: {}{again}", self.target(plan).name)
    }
}

/// All of a run: each target once, then each a second time.
pub(super) fn measurements(plan: &Plan, only: &[String]) -> Vec<Measurement> {
    let is_chosen = |target: &Target| only.is_empty() || only.contains(&target.name);
    let places = 0..plan.targets.len();
    let chosen: Vec<usize> = places.filter(|place| is_chosen(&plan.targets[*place])).collect();
    let once = |repetition| chosen.iter().map(move |place| (*place, repetition));
    let all = (1..=plan.repetitions).flat_map(once).zip(1..);
    all.map(|((place, repetition), number)| Measurement { place, repetition, number }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "
about = 'x'
clock = 'virtual'
repetitions = 2
device = [{ name = 'disk', preset = 'hdd', size = '1M' }]
target = [{ name = 'a', device = 'disk' }, { name = 'b', device = 'disk' }]
[[phase]]
name = 'run'
seconds = 1
job = [{ name = 'a', work = 'read', pattern = 'uniform', size = '1M' }]
";

    #[test]
    fn a_run_has_each_target_as_often_as_it_is_repeated() {
        let plan = Plan::parse(PLAN).expect("a plan");
        let labels = |only: &[String]| -> Vec<String> {
            let all = measurements(&plan, only);
            all.iter().map(|one| one.label(&plan, all.len())).collect()
        };
        let all = [
            "1 of 4: a, repetition 1",
            "2 of 4: b, repetition 1",
            "3 of 4: a, repetition 2",
            "4 of 4: b, repetition 2",
        ];
        assert_eq!(labels(&[]), all);
        let one = ["1 of 2: b, repetition 1", "2 of 2: b, repetition 2"];
        assert_eq!(labels(&["b".to_owned()]), one);
        let once = Plan { repetitions: 1, ..plan };
        assert_eq!(measurements(&once, &[])[0].label(&once, 2), "1 of 2: a");
    }
}
