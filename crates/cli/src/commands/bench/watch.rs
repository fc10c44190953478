//! What an operator sees of a run while it goes on: a line for each measurement, and how long the
//! whole run still takes.

use std::collections::BTreeMap;
use std::time::Instant;

use forebay_bench::plan::{Phase, Plan};
use indicatif::{HumanDuration, MultiProgress};

use super::course::{Course, Left, Step};
use super::run::Measurement;
use crate::progress::{Progress, Unit};

/// A run on its way.
pub(super) struct Watch<'a> {
    plan: &'a Plan,
    /// Measurements, with those of earlier runs.
    total: usize,
    course: Course,
    started: Instant,
    lines: MultiProgress,
    /// Measurements that go on, by their numbers.
    current: BTreeMap<usize, Line>,
}

/// Of a measurement.
struct Line {
    progress: Progress,
    /// The phase that was heard of last.
    place: usize,
    /// Seconds in the phases before it, and in it. Phases without an end in time do not count.
    before: u64,
    last: u64,
}

impl<'a> Watch<'a> {
    /// Of a run of so many measurements, of which some are pending, `jobs` of them at once.
    pub(super) fn new(
        plan: &'a Plan,
        total: usize,
        pending: &[Measurement],
        jobs: u32,
    ) -> Watch<'a> {
        let steps = |one: &Measurement| (one.number, Step::all(plan, one.target(plan)));
        Watch {
            plan,
            total,
            course: Course::new(pending.iter().map(steps), jobs),
            started: Instant::now(),
            lines: MultiProgress::new(),
            current: BTreeMap::new(),
        }
    }

    /// A measurement begins.
    pub(super) fn begin(&mut self, measurement: Measurement) {
        let label = label(measurement, self.plan, self.total);
        let target = measurement.target(self.plan);
        let phases = self.plan.phases.iter().filter(|phase| phase.is_for(target));
        let total = phases.filter_map(Phase::lasts_s).sum();
        let progress = Progress::start_beside(&self.lines, &label, Unit::Seconds, total);
        let line = Line { progress, place: 0, before: 0, last: 0 };
        self.current.insert(measurement.number, line);
    }

    /// So many seconds of the phase at `place` have passed in a measurement.
    pub(super) fn hear(&mut self, number: usize, place: usize, second: u64) {
        let time = self.started.elapsed();
        self.course.hear(number, place, second, time);
        let outlook = outlook(self.course.left(time));
        // Of the whole run: once is enough.
        if let Some(mut oldest) = self.current.first_entry() {
            oldest.get_mut().progress.set_outlook(&outlook);
        }
        let Some(line) = self.current.get_mut(&number) else { return };
        if line.place != place {
            line.before += std::mem::take(&mut line.last);
            line.place = place;
        }
        let phase = &self.plan.phases[place];
        if phase.lasts_s().is_some() {
            line.last = second;
            line.progress.set(line.before + line.last);
        } else {
            line.progress.set_stage(&phase.name, second);
        }
    }

    /// A measurement has ended well.
    pub(super) fn measured(&mut self, number: usize) {
        self.course.measured(number, self.started.elapsed());
        self.end_line(number);
    }

    /// One has ended without a result.
    pub(super) fn failed(&mut self, number: usize) {
        self.course.failed(number);
        self.end_line(number);
    }

    fn end_line(&mut self, number: usize) {
        if let Some(line) = self.current.remove(&number) {
            line.progress.finish();
        }
    }

    /// Prints something beside the lines.
    pub(super) fn say(&self, text: &str) {
        self.lines.suspend(|| eprintln!("{text}"));
    }
}

/// Which of a run it is.
fn label(measurement: Measurement, plan: &Plan, total: usize) -> String {
    let Measurement { repetition, number, .. } = measurement;
    let again = match plan.repetitions {
        1 => String::new(),
        _ => format!(", repetition {repetition}"),
    };
    format!("{number} of {total}: {}{again}", measurement.target(plan).name)
}

/// How long the whole run still takes.
fn outlook(left: Left) -> String {
    if left.is_at_least && left.time.is_zero() {
        return "whole run: time left not known yet".to_owned();
    }
    let at_least = if left.is_at_least { "at least " } else { "" };
    format!("whole run: {at_least}{} left", HumanDuration(left.time))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::run::measurements;
    use super::*;

    const PLAN: &str = "
about = 'x'
clock = 'virtual'
repetitions = 2
device = [{ name = 'disk', preset = 'hdd', size = '1M' }]
target = [{ name = 'a', device = 'disk' }, { name = 'b', device = 'disk' }]
phase = [{ name = 'pause', seconds = 1 }]
";

    #[test]
    fn a_run_has_each_target_as_often_as_it_is_repeated() {
        let plan = Plan::parse(PLAN).expect("a plan");
        let labels = |only: &[String]| -> Vec<String> {
            let all = measurements(&plan, only);
            all.iter().map(|one| label(*one, &plan, all.len())).collect()
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
        assert_eq!(label(measurements(&once, &[])[0], &once, 2), "1 of 2: a");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let left = Left { time: Duration::from_secs(300), is_at_least: false };
        assert_eq!(outlook(left), "whole run: 5 minutes left");
        let left = Left { is_at_least: true, ..left };
        assert_eq!(outlook(left), "whole run: at least 5 minutes left");
        let left = Left { time: Duration::ZERO, ..left };
        assert_eq!(outlook(left), "whole run: time left not known yet");
    }
}
