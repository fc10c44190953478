//! The rate at which dirty data goes home while clients use the origin.
//!
//! A proportional-integral controller on what is dirty beyond `writeback_percent`. With the two
//! constants of bcache (commit 1d316e65, October 2017: a fortieth of the excess a second, and a
//! ten-thousandth of its integral) a log that fills evenly is a system with two real poles, at 50
//! and 200 seconds: it comes to its target without swinging.

use crate::units::Time;

/// The rate that an excess asks for by itself takes it away in so many seconds.
const PROPORTIONAL_SECONDS: i64 = 40;
/// What the integral of the excess, in block seconds, is divided by.
const INTEGRAL_SECONDS: i64 = 10_000;
/// Nanoseconds between two steps.
const STEP_NS: u64 = 1_000_000_000;
/// Longest time that one step counts for: a pause says nothing of the rate that is needed.
const STEP_NS_MAX: u64 = 5 * STEP_NS;

/// Rate of writeback of a volume.
#[derive(Debug, Default)]
pub(crate) struct RateController {
    /// Of the excess over time, in block seconds.
    integral: i64,
    /// Blocks a second.
    rate: u64,
    stepped_at: Option<Time>,
    /// Since the last step, the origin and not the rate was what writeback waited for.
    is_held_up: bool,
}

/// Lowest and highest rate, in blocks a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RateBounds {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl RateController {
    /// The rate now, in blocks a second, with so many blocks dirty beyond the target (fewer than
    /// it, if negative).
    pub(super) fn rate(&mut self, now: Time, excess: i64, bounds: RateBounds) -> u64 {
        let elapsed_ns = match self.stepped_at {
            None => STEP_NS,
            Some(at) => now.nanoseconds_since(at),
        };
        if elapsed_ns >= STEP_NS {
            self.step(elapsed_ns.min(STEP_NS_MAX), excess, bounds);
            self.stepped_at = Some(now);
        }
        self.rate.clamp(bounds.least, bounds.most)
    }

    fn step(&mut self, elapsed_ns: u64, excess: i64, bounds: RateBounds) {
        let milliseconds = i64::try_from(elapsed_ns / 1_000_000).expect("seconds");
        // Anti-windup: an integral that grows while nothing can go faster anyway would take as long
        // to shrink again.
        let is_at_its_end = self.is_held_up || self.rate >= bounds.most;
        if excess < 0 || !is_at_its_end {
            self.integral = (self.integral + excess * milliseconds / 1_000).max(0);
        }
        self.is_held_up = false;
        let wanted = excess / PROPORTIONAL_SECONDS + self.integral / INTEGRAL_SECONDS;
        self.rate = u64::try_from(wanted).unwrap_or(0).clamp(bounds.least, bounds.most);
    }

    /// The rate as it was set last, in blocks a second.
    pub(super) fn set_last(&self) -> u64 {
        self.rate
    }

    /// A transfer had to wait for the origin longer than for the rate.
    pub(super) fn on_held_up(&mut self) {
        self.is_held_up = true;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const BOUNDS: RateBounds = RateBounds { least: 1, most: u64::MAX };

    /// Dirty blocks beyond the target, second by second, of a client that writes so many new blocks
    /// a second.
    fn response(writes: impl Fn(u64) -> i64, origin_max: u64, seconds: u64) -> Vec<i64> {
        let mut controller = RateController::default();
        let mut dirty: i64 = 0;
        let mut excess = Vec::new();
        for second in 0..seconds {
            let wanted = controller.rate(Time(second * STEP_NS), dirty, BOUNDS);
            let done = wanted.min(origin_max);
            if done < wanted {
                controller.on_held_up();
            }
            dirty += writes(second) - i64::try_from(done).unwrap();
            excess.push(dirty);
        }
        excess
    }

    #[test]
    fn a_steady_writer_is_brought_to_the_target_without_swinging() {
        let excess = response(|_| 1_000, 100_000, 3_000);
        let most = *excess.iter().max().unwrap();
        assert!((15_000..40_000).contains(&most), "{most}");
        assert!(excess[1_500..].iter().all(|dirty| dirty.abs() < most / 50));
        assert!(excess.iter().all(|dirty| *dirty > -most / 50), "never far below it");
        let turns =
            excess.windows(3).filter(|w| (w[1] - w[0]).signum() * (w[2] - w[1]).signum() < 0);
        assert!(turns.count() < 10, "up once, down once, then nothing but rounding");
    }

    #[test]
    fn an_origin_that_cannot_follow_leaves_no_debt_behind() {
        // Ten minutes of more than the origin takes, then nothing.
        let excess = response(|second| if second < 600 { 1_000 } else { 0 }, 500, 3_000);
        let end = excess.iter().position(|dirty| *dirty < 0).unwrap_or(excess.len());
        assert!(excess[end..].iter().all(|dirty| *dirty > -60_000));
        let below = excess[end..].iter().filter(|dirty| **dirty < -100).count();
        assert!(below == 0 || end > 1_100, "{end}");
    }

    #[test]
    fn it_keeps_its_bounds() {
        let bounds = RateBounds { least: 10, most: 50 };
        let mut controller = RateController::default();
        assert_eq!(controller.rate(Time(0), 1_000_000, bounds), 50);
        assert_eq!(controller.rate(Time(10 * STEP_NS), -1_000_000, bounds), 10);
    }

    #[test]
    fn a_new_bound_holds_at_once() {
        let mut controller = RateController::default();
        assert_eq!(controller.rate(Time(0), 40_000, BOUNDS), 1_004);
        let bounds = RateBounds { least: 1, most: 300 };
        assert_eq!(controller.rate(Time(1), 40_000, bounds), 300);
    }
}
