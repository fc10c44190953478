//! How much of a run of a plan is still to come, and how long that may take.
//!
//! What a phase took in an earlier measurement it will take again. One that was not seen yet takes
//! the seconds that the plan gives it, at the pace of the clock so far; one without an end in time
//! nobody knows, and all that can be said is how long the rest takes *at least*.
//!
//! Deliberately absent: the time. It comes in with each call, since the run began.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_bench::plan::{Plan, Target};

/// A phase that is to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// In the plan.
    place: usize,
    /// Seconds of the clock that it lasts, if the plan says so.
    seconds: Option<u64>,
}

impl Step {
    /// Those of a target.
    pub(super) fn all(plan: &Plan, target: &Target) -> VecDeque<Step> {
        let mine = plan.phases.iter().enumerate().filter(|(_, phase)| phase.is_for(target));
        mine.map(|(place, phase)| Step { place, seconds: phase.lasts_s() }).collect()
    }
}

/// The phase that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Current {
    step: Step,
    since: Duration,
    /// Of the clock, in it.
    second: u64,
}

/// What is left of a measurement.
struct Ahead {
    /// Phases that have not begun.
    steps: VecDeque<Step>,
    current: Option<Current>,
}

/// How long something takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    /// Of this machine's time.
    pub(super) time: Duration,
    /// There is more, of which nobody knows how long it takes.
    pub(super) is_at_least: bool,
}

/// The phases of a run on their way.
pub(super) struct Course {
    /// Measurements that have not ended, by their numbers.
    measurements: BTreeMap<usize, Ahead>,
    /// How many of them go on at once.
    jobs: u32,
    /// How long phases took, by their place.
    took: BTreeMap<usize, Vec<Duration>>,
    /// Seconds of the clock in phases that have ended, and how long these took.
    passed: (u64, Duration),
}

impl Course {
    /// Of measurements to come, each by its number and its phases, `jobs` of them at once.
    pub(super) fn new(
        measurements: impl Iterator<Item = (usize, VecDeque<Step>)>,
        jobs: u32,
    ) -> Course {
        let ahead = measurements.map(|(number, steps)| (number, Ahead { steps, current: None }));
        Course {
            measurements: ahead.collect(),
            jobs,
            took: BTreeMap::new(),
            passed: (0, Duration::ZERO),
        }
    }

    /// So many seconds of the phase at `place` have passed in a measurement.
    pub(super) fn hear(&mut self, number: usize, place: usize, second: u64, now: Duration) {
        let Some(ahead) = self.measurements.get_mut(&number) else { return };
        if let Some(current) = &mut ahead.current
            && current.step.place == place
        {
            current.second = second;
            return;
        }
        let index = ahead.steps.iter().position(|step| step.place == place);
        let begun = index.and_then(|index| ahead.steps.drain(..=index).next_back());
        let next = begun.map(|step| Current { step, since: now, second });
        let ended = std::mem::replace(&mut ahead.current, next);
        self.note_ended(ended, now);
    }

    /// A measurement has ended well.
    pub(super) fn measured(&mut self, number: usize, now: Duration) {
        let ended = self.measurements.remove(&number).and_then(|ahead| ahead.current);
        self.note_ended(ended, now);
    }

    /// One has failed: how long its last phase would have taken is not known.
    pub(super) fn failed(&mut self, number: usize) {
        self.measurements.remove(&number);
    }

    fn note_ended(&mut self, ended: Option<Current>, now: Duration) {
        let Some(Current { step, since, .. }) = ended else { return };
        let took = now.saturating_sub(since);
        self.took.entry(step.place).or_default().push(took);
        if let Some(seconds) = step.seconds {
            self.passed = (self.passed.0 + seconds, self.passed.1 + took);
        }
    }

    /// How long the rest takes, the phases that go on and all behind them: no less than the longest
    /// measurement, and as if the rest could be shared out.
    pub(super) fn left(&self, now: Duration) -> Left {
        let pace = self.pace(now);
        let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
        let mut is_at_least = false;
        for Ahead { steps, current } in self.measurements.values() {
            let times = current.iter().map(|current| self.left_of(*current, pace, now));
            let times = times.chain(steps.iter().map(|step| self.expected(*step, pace)));
            let mut time = Duration::ZERO;
            for one in times {
                is_at_least |= one.is_none();
                time += one.unwrap_or_default();
            }
            sum += time;
            longest = longest.max(time);
        }
        Left { time: (sum / self.jobs).max(longest), is_at_least }
    }

    /// How long a second of the clock takes; `None` until one has passed.
    fn pace(&self, now: Duration) -> Option<f64> {
        let (mut seconds, mut time) = self.passed;
        for current in self.measurements.values().filter_map(|ahead| ahead.current) {
            // Until its first second is over nothing can be said of a phase.
            if current.step.seconds.is_some() && current.second > 0 {
                seconds += current.second;
                time += now.saturating_sub(current.since);
            }
        }
        (seconds > 0).then(|| time.as_secs_f64() / seconds as f64)
    }

    /// How long a phase takes that has not begun.
    fn expected(&self, step: Step, pace: Option<f64>) -> Option<Duration> {
        if let Some(took) = self.took.get(&step.place) {
            let count = u32::try_from(took.len()).expect("fewer than repetitions of targets");
            return Some(took.iter().sum::<Duration>() / count);
        }
        Some(Duration::from_secs_f64(step.seconds? as f64 * pace?))
    }

    fn left_of(&self, current: Current, pace: Option<f64>, now: Duration) -> Option<Duration> {
        let passed = now.saturating_sub(current.since);
        match current.step.seconds {
            Some(seconds) if current.second > 0 => {
                let left = seconds.saturating_sub(current.second);
                Some(passed.mul_f64(left as f64 / current.second as f64))
            }
            _ => Some(self.expected(current.step, pace)?.saturating_sub(passed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMED: Step = Step { place: 0, seconds: Some(100) };
    const OPEN: Step = Step { place: 1, seconds: None };
    const LATE: Step = Step { place: 2, seconds: Some(50) };

    fn course(measurements: &[&[Step]], jobs: u32) -> Course {
        Course::new(
            measurements.iter().map(|steps| steps.iter().copied().collect()).enumerate(),
            jobs,
        )
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn exactly(seconds: u64) -> Left {
        Left { time: secs(seconds), is_at_least: false }
    }

    fn at_least(seconds: u64) -> Left {
        Left { time: secs(seconds), is_at_least: true }
    }

    #[test]
    fn phases_to_come_take_their_seconds_at_the_pace_so_far() {
        let mut course = course(&[&[TIMED, LATE], &[LATE]], 1);
        assert_eq!(course.left(secs(0)), at_least(0), "of no pace nothing follows");
        course.hear(0, 0, 0, secs(5));
        assert_eq!(course.left(secs(6)), at_least(0));
        // Two seconds for each of the clock.
        course.hear(0, 0, 10, secs(25));
        assert_eq!(course.left(secs(25)), exactly(90 * 2 + 50 * 2 + 50 * 2));
        course.hear(0, 0, 100, secs(205));
        course.hear(0, 2, 0, secs(205));
        assert_eq!(course.left(secs(205)), exactly(50 * 2 + 50 * 2));
        // What goes on has its own pace, and the others that of all.
        course.hear(0, 2, 25, secs(205 + 100));
        assert_eq!(course.left(secs(305)), exactly(25 * 4 + 50 * 300 / 125));
        course.measured(0, secs(405));
        assert_eq!(course.left(secs(405)), exactly(200), "as long as the first time");
        course.measured(1, secs(500));
        assert_eq!(course.left(secs(500)), exactly(0));
    }

    #[test]
    fn a_phase_without_an_end_in_time_takes_what_it_took() {
        let mut course = course(&[&[OPEN, TIMED], &[OPEN], &[OPEN]], 1);
        course.hear(0, 1, 0, secs(0));
        course.hear(0, 1, 30, secs(30));
        assert_eq!(course.left(secs(30)), at_least(0));
        course.hear(0, 0, 0, secs(40));
        course.hear(0, 0, 50, secs(90));
        assert_eq!(course.left(secs(90)), exactly(50 + 40 + 40));
        course.measured(0, secs(140));
        course.hear(1, 1, 10, secs(150));
        assert_eq!(course.left(secs(160)), exactly(30 + 40));
        // It takes longer than ever.
        assert_eq!(course.left(secs(999)), exactly(40));
        course.measured(1, secs(150 + 60));
        assert_eq!(course.left(secs(210)), exactly(50), "the mean of both");
    }

    #[test]
    fn what_fails_says_nothing_of_those_to_come() {
        let mut course = course(&[&[OPEN, TIMED], &[OPEN]], 1);
        course.hear(0, 1, 3, secs(3));
        course.failed(0);
        assert_eq!(course.left(secs(4)), at_least(0));
        course.failed(1);
        assert_eq!(course.left(secs(5)), exactly(0));
    }

    #[test]
    fn measurements_beside_each_other_share_the_time_that_is_left() {
        let mut course = course(&[&[TIMED], &[TIMED], &[LATE]], 2);
        course.hear(0, 0, 0, secs(0));
        course.hear(1, 0, 0, secs(0));
        course.hear(0, 0, 10, secs(20));
        course.hear(1, 0, 10, secs(20));
        assert_eq!(course.left(secs(20)), exactly((180 + 180 + 100) / 2));
        course.measured(0, secs(200));
        course.hear(2, 2, 0, secs(200));
        course.hear(1, 0, 40, secs(200));
        assert_eq!(course.left(secs(200)), exactly(300), "no sooner than the slowest of them");
    }

    #[test]
    fn a_phase_of_which_nothing_was_heard_is_over_when_a_later_one_begins() {
        let mut course = course(&[&[TIMED, OPEN, LATE]], 1);
        course.hear(0, 2, 0, secs(10));
        course.hear(0, 2, 10, secs(20));
        assert_eq!(course.left(secs(20)), exactly(40));
    }

    #[test]
    fn steps_are_the_phases_of_a_target() {
        let plan = "
about = 'x'
clock = 'virtual'
device = [{ name = 'disk', preset = 'hdd', size = '1M' }]
target = [{ name = 'a', device = 'disk' }, { name = 'b', device = 'disk' }]
[[phase]]
name = 'run'
seconds = 5
times = 3
job = [{ name = 'a', work = 'read', pattern = 'uniform', size = '1M' }]
[[phase]]
name = 'pause'
seconds = 7
only = ['b']
[[phase]]
name = 'pause'
seconds = 9
only = ['a']
";
        let plan = Plan::parse(plan).expect("a plan");
        let step = |place, seconds| Step { place, seconds: Some(seconds) };
        assert_eq!(Step::all(&plan, &plan.targets[0]), [step(0, 15), step(2, 9)]);
        assert_eq!(Step::all(&plan, &plan.targets[1]), [step(0, 15), step(1, 7)]);
    }
}
