//! The idle mark: a record without entries that vouches for what was written last.
//!
//! Recovery tells damage from a torn tail by "durable through" in a later header (rule 8), so the
//! last records before a pause have nobody to vouch for them: if they rot before the next start,
//! answered and flushed writes would be taken for writes that were under way, silently. Therefore,
//! when nothing was appended for a while, the cache device is flushed, and one more header says
//! that all before it was durable. A checkpoint vouches as well, and makes the mark needless.
//!
//! A mark takes no room that others need: where there is none to spare, there is no mark.

use crate::engine::Engine;
use crate::log::Stream;
use crate::units::{SequenceNumber, Time};
use crate::wake::{Ended, Waiter};

/// Milliseconds without a record after which a mark is due: long beside the pauses of clients that
/// are at work, short beside the time in which flash loses what it held.
const IDLE_MS: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Waits for a flush that covers all records up to this one.
    Flushing(SequenceNumber),
}

#[derive(Default)]
pub(crate) struct IdleMark {
    state: State,
    /// The last record that holds something, and when it was closed.
    last: SequenceNumber,
    last_at: Time,
    /// A header or a checkpoint on the device says that all up to this one were durable.
    vouched_through: SequenceNumber,
    /// The record for which there was no room to write a mark.
    given_up: SequenceNumber,
}

impl IdleMark {
    /// A record that holds something got its number.
    pub(crate) fn on_record_closed(&mut self, sequence: SequenceNumber, now: Time) {
        self.last = sequence;
        self.last_at = now;
    }

    /// The device has a header or a checkpoint that says so.
    pub(crate) fn on_vouched(&mut self, through: SequenceNumber) {
        self.vouched_through = self.vouched_through.max(through);
    }

    fn is_wanted(&self) -> bool {
        self.state == State::Idle && self.last > self.vouched_through.max(self.given_up)
    }

    fn due_at(&self) -> Time {
        self.last_at.after_ms(IDLE_MS)
    }
}

impl Engine {
    /// Whether a mark is only a question of time. What is under way moves the time by its end.
    fn is_idle_mark_ahead(&self) -> bool {
        self.idle_mark.is_wanted()
            && self.log.incomplete.is_empty()
            && !self.is_record_building()
            && !self.is_recovering()
            && self.may_append()
            && !self.is_cache_failed()
            && self.stopping.is_none()
            && !self.takeover.is_begun()
    }

    pub(crate) fn idle_mark_wakeup(&self) -> Option<Time> {
        self.is_idle_mark_ahead().then(|| self.idle_mark.due_at())
    }

    pub(crate) fn advance_idle_mark(&mut self) {
        if self.is_idle_mark_ahead() && self.idle_mark.due_at() <= self.now {
            self.idle_mark.state = State::Flushing(self.log.last_sequence);
            if self.log.durable_through >= self.log.last_sequence {
                self.wake(Waiter::IdleMark, Ended::Well);
            } else {
                self.join_cache_flush(Waiter::IdleMark);
            }
        }
    }

    pub(crate) fn on_idle_mark_flushed(&mut self, ended: Ended) {
        let State::Flushing(covered) = core::mem::take(&mut self.idle_mark.state) else {
            unreachable!("only then it waits")
        };
        // A record that came meanwhile begins another pause, or makes a mark needless.
        let is_quiet = covered == self.log.last_sequence && self.is_idle_mark_ahead();
        if ended == Ended::Failed || !is_quiet {
            return;
        }
        assert!(self.log.durable_through >= covered);
        // Beside promotions: a damaged header hides what follows it in its segment, and there only
        // clean copies can be hidden with the mark. Not beside relocations: reclaim has counted on
        // the room there (rule 11).
        let streams = [Stream::Promote, Stream::Client];
        match streams.into_iter().find(|stream| self.has_room(*stream, 0)) {
            Some(stream) => {
                self.append_empty_record(stream);
                self.set_counters.idle_marks += 1;
            }
            None => self.idle_mark.given_up = self.idle_mark.last,
        }
    }
}
