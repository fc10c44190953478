//! Group commit: all who wait for a device flush share the next one that begins.
//!
//! "Durable" means a device flush that began after completion (rule 2). A flush that is under way
//! when somebody asks does not count for him; the next one does, for him and for everybody who asks
//! until it begins.

use alloc::collections::VecDeque;

use crate::defects::{Defect, has_defect};
use crate::wake::Waiter;

/// Names a flush of one device; they begin and end in this order.
pub(crate) type FlushNumber = u64;

#[derive(Default)]
pub(crate) struct FlushGroup {
    started: FlushNumber,
    finished: FlushNumber,
    waiters: VecDeque<(FlushNumber, Waiter)>,
}

impl FlushGroup {
    /// The flush that covers what is complete now.
    pub(crate) fn next_number(&self) -> FlushNumber {
        self.started + 1
    }

    /// The same; with the defect a flush that is under way counts.
    pub(crate) fn next_number_unless(&self, defect: Defect) -> FlushNumber {
        self.next_number() - u64::from(has_defect(defect) && self.is_under_way())
    }

    /// Whether this flush has ended well.
    pub(crate) fn is_finished(&self, number: FlushNumber) -> bool {
        self.finished >= number
    }

    /// Whether this flush has begun, or somebody waits for it or a later one.
    pub(crate) fn is_asked_for(&self, number: FlushNumber) -> bool {
        self.started >= number || self.waiters.back().is_some_and(|(last, _)| *last >= number)
    }

    /// Registers `waiter` for the next flush to begin.
    pub(crate) fn join(&mut self, waiter: Waiter) {
        let number = self.next_number_unless(Defect::FlushUnderWayCounts);
        self.waiters.push_back((number, waiter));
    }

    /// Whether a flush is due: somebody waits for one that has not begun, and none is under way.
    pub(crate) fn is_due(&self) -> bool {
        self.started == self.finished
            && self.waiters.back().is_some_and(|(number, _)| *number > self.started)
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.started > self.finished
    }

    pub(crate) fn begin(&mut self) -> FlushNumber {
        assert_eq!(self.started, self.finished);
        self.started += 1;
        self.started
    }

    /// Ends the flush under way.
    pub(crate) fn end(&mut self) -> FlushNumber {
        assert_eq!(self.started, self.finished + 1);
        self.finished = self.started;
        self.finished
    }

    /// Who waits, in order.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = Waiter> {
        self.waiters.iter().map(|(_, waiter)| *waiter)
    }

    /// The next waiter whose flush has ended.
    pub(crate) fn pop_finished(&mut self) -> Option<Waiter> {
        let (number, _) = self.waiters.front()?;
        if *number > self.finished {
            return None;
        }
        self.waiters.pop_front().map(|(_, waiter)| waiter)
    }
}
