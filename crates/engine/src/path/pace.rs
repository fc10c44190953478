//! Writers are slowed down before the log is full of dirty data.
//!
//! Otherwise they would run at the speed of the cache device until it is full and then stand still
//! until a window of writeback is home, again and again. From the soft mark on each block waits a
//! part of the time that writeback takes to give a block of the log back: with `x` nothing at the
//! soft mark and half where a writer that never pauses is to come to rest, `x / (1 - x)` of it. So
//! it is as fast as writeback there, and ever slower beyond. It comes to rest so far below the hard
//! mark that what is written while a window goes home has room.
//!
//! Those that wait go on in groups, half of them at a time: what is appended at once shares the
//! header of a record, which takes as much of the log as a block does.
//!
//! Where nothing goes home, since the origin is away or dirty data is to stay, nobody is slowed
//! down: that would not help.
//!
//! A write of blocks that are not cached need not wait: when that would take longer than to write
//! them to the origin, behind those that go there already, they go around the log, as they do at
//! the hard mark in any case. So a full cache is never much slower than none. In order nothing goes
//! around.

use alloc::collections::VecDeque;

use crate::background::writeback::rate::EXCESS_FULL;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::path::write::{Route, UnitKind};
use crate::slab::Key;
use crate::units::{Time, VolumeSlot};
use crate::wake::{Ended, Waiter};

/// Longest wait that one part of a request adds, in nanoseconds. Whatever is measured wrongly, each
/// writer goes on.
const STEP_NS_MAX: u64 = 1_000_000_000;
/// Up to here waits grow: a writer goes on at an eighth of the speed of writeback at least, also in
/// order and at the hard mark, so that it does not stand still until a window is home.
const EXCESS_MAX: u64 = EXCESS_FULL * 8 / 9;
/// Where a writer stands at least while its volume drains in order: at half the speed of writeback.
const DRAINING_EXCESS: u64 = EXCESS_FULL * 2 / 3;
/// What the first window is taken to give back until that was measured, in blocks a second: a log
/// that fills up within a second is not to be full by then.
const RATE_UNKNOWN: u64 = 1_000;
/// Waits shorter than this are left out until they have added up: a timer costs more.
const SLACK_NS: u64 = 1_000_000;
/// Milliseconds that a group makes those behind it wait at most, but for its last unit: things may
/// be better by then.
const GROUP_MS_MAX: u64 = 1_000;
/// Units that go on together at most: more would share one record with little gain.
const GROUP_UNITS_MAX: usize = 16;

/// Whether a unit goes on alone, or shares the record of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Header {
    Own,
    Shared,
}

/// Writers that are slowed down.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the next one may go on.
    next_at: Time,
    /// Units, in order, and since when they wait.
    waiting: VecDeque<(Key, Time)>,
}

/// How long so many blocks keep others waiting, so far between the marks, if writeback gives `rate`
/// blocks a second back.
fn step_ns(blocks: u64, excess: u64, rate: u64) -> u64 {
    let excess = excess.min(EXCESS_MAX);
    let wait = u128::from(blocks) * 1_000_000_000 * u128::from(excess)
        / (u128::from(rate) * u128::from(EXCESS_FULL - excess));
    u64::try_from(wait).unwrap_or(u64::MAX).min(STEP_NS_MAX)
}

impl Engine {
    /// Whether the unit may go on; if not, it waits for its turn.
    pub(crate) fn is_paced(&mut self, key: Key) -> bool {
        let unit = self.units[key];
        if unit.route != Route::Log || unit.is_paced {
            return true;
        }
        let now = self.now;
        if self.pace.waiting.is_empty() && self.pace.next_at.nanoseconds_since(now) <= SLACK_NS {
            self.pass(key, Header::Own);
            return true;
        }
        self.pace.waiting.push_back((key, now));
        false
    }

    /// The unit goes on, and those behind it the later.
    fn pass(&mut self, key: Key, header: Header) {
        self.units[key].is_paced = true;
        let unit = &self.units[key];
        let shared = u32::from(header == Header::Shared);
        let blocks = (unit.log_blocks() - shared).max(1);
        let step = self.step_ns(unit.slot, blocks.into());
        let from = self.pace.next_at.max(self.now);
        self.pace.next_at = if step == 0 { self.now } else { Time(from.0 + step) };
    }

    fn step_ns(&self, slot: VolumeSlot, blocks: u64) -> u64 {
        // In order writes go into the log while it drains: they must not outrun that.
        let volume = self.volume(slot);
        let is_draining = volume.is_ordered() && volume.is_leaving();
        let least = if is_draining { DRAINING_EXCESS } else { 0 };
        let excess = self.dirty_excess().max(least);
        // With no window under way nothing becomes better by waiting.
        if excess == 0 || self.writeback.is_idle() {
            return 0;
        }
        step_ns(blocks, excess, self.drain_rate().unwrap_or(RATE_UNKNOWN))
    }

    /// Whether a write that would go into the log goes around it, since the log is full of dirty
    /// data and nothing of it is cached. Decided again under its lock, whether it is cached.
    pub(crate) fn is_better_around(&self, key: Key) -> bool {
        let unit = &self.units[key];
        let UnitKind::Data { part: None, .. } = unit.kind else { return false };
        let excess = self.dirty_excess();
        // An origin that fails or is away is not asked for more.
        let is_ordered = self.volume(unit.slot).is_ordered() && !has_defect(Defect::AroundInOrder);
        if excess == 0 || is_ordered || !self.is_writable(unit.slot) {
            return false;
        }
        if self.has_copies(unit.slot, unit.start, unit.start + unit.block_count) {
            return false;
        }
        let wait_ns = self.step_ns(unit.slot, unit.log_blocks().into());
        let volume = self.volume(unit.slot);
        // Those that go around share the origin: without them a moment in which it is quick, as
        // after a flush, would send all writers there at once.
        let is_sooner = |write_ns| wait_ns / (volume.around_under_way_count() + 1) > write_ns;
        let write_ns = volume.origin_cost.write_ns(unit.block_count);
        excess == EXCESS_FULL || write_ns.is_some_and(is_sooner)
    }

    /// Writers whose time has come go on: half of those that wait, and the next ones the later.
    pub(crate) fn advance_pace(&mut self) {
        if self.pace.waiting.is_empty() {
            return;
        }
        // What they waited for is over when the log is below its soft mark, or nothing goes home.
        let is_over = self.is_cache_failed()
            || self.stopping.is_some()
            || self.takeover.is_begun()
            || self.dirty_excess() == 0
            || self.writeback.is_idle();
        while !self.pace.waiting.is_empty() && (is_over || self.pace.next_at <= self.now) {
            let group = self.pace.waiting.len().div_ceil(2).min(GROUP_UNITS_MAX);
            let mut header = Header::Own;
            let latest = self.now.after_ms(GROUP_MS_MAX);
            for _ in 0..group {
                if header == Header::Shared && self.pace.next_at > latest {
                    break;
                }
                let Some((key, since)) = self.pace.waiting.pop_front() else { break };
                self.set_counters.throttled_writes += 1;
                self.set_counters.throttled_us += self.now.nanoseconds_since(since) / 1_000;
                self.pass(key, header);
                header = Header::Shared;
                self.wake(Waiter::Unit(key), Ended::Well);
            }
        }
    }

    /// When the next writer may go on.
    pub(crate) fn pace_wakeup(&self) -> Option<Time> {
        self.pace.waiting.front().map(|_| self.pace.next_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_way_a_writer_is_as_fast_as_writeback() {
        assert_eq!(step_ns(10, EXCESS_FULL / 2, 1_000), 10_000_000);
        assert_eq!(step_ns(10, EXCESS_FULL / 5, 1_000), 2_500_000);
        assert_eq!(step_ns(10, EXCESS_FULL * 4 / 5, 1_000), 40_000_000);
        assert_eq!(step_ns(10, 0, 1_000), 0);
    }

    #[test]
    fn nobody_waits_longer_than_a_second() {
        assert_eq!(step_ns(64, EXCESS_FULL, 1), STEP_NS_MAX);
    }
}
