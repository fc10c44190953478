//! What an operator sees of a run while it goes on: a line for each measurement, and how long the
//! whole run still takes.

use std::collections::BTreeMap;
use std::time::Instant;

use forebay_bench::plan::{Phase, Plan};
use forebay_bench::progress::Progress as Heard;
use indicatif::HumanDuration;

use super::course::{Course, Left, Step};
use super::measurement::Measurement;
use crate::progress::{Board, Progress, Unit};

/// The lines of a run, and what they are made of.
pub(super) struct Watch<'a> {
    plan: &'a Plan,
    /// Measurements, with those of earlier runs.
    total: usize,
    course: Course,
    started: Instant,
    board: Board,
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
            board: Board::new(jobs),
            current: BTreeMap::new(),
        }
    }

    /// A measurement begins.
    pub(super) fn begin(&mut self, measurement: Measurement) {
        let label = measurement.label(self.plan, self.total);
        let target = measurement.target(self.plan);
        let phases = self.plan.phases.iter().filter(|phase| phase.is_for(target));
        let total = phases.filter_map(Phase::lasts_s).sum();
        let progress = self.board.start(&label, Unit::Seconds, total);
        let line = Line { progress, place: 0, before: 0, last: 0 };
        self.current.insert(measurement.number, line);
    }

    /// A measurement has come so far.
    pub(super) fn hear(&mut self, number: usize, heard: Heard) {
        let Heard { place, second } = heard;
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

    /// Prints something that stays.
    pub(super) fn say(&self, text: &str) {
        self.board.say(text);
    }
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

    use super::*;

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
