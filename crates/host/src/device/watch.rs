//! Watches for device operations that do not end.
//!
//! It only tells. An operation that the kernel holds cannot be taken back in general, and its
//! buffer belongs to the device until it ends, so whoever waits for it waits on.
//!
//! Operations are looked at only when the first of them may be late, so that watching costs a
//! comparison per operation.

use forebay_engine::units::Time;

/// Nanoseconds of a millisecond.
const MILLISECOND_NS: u64 = 1_000_000;

/// When operations are late, and when to look.
#[derive(Debug)]
pub(super) struct Watch {
    limit_ms: u64,
    /// No operation becomes late before.
    look_at: Option<Time>,
}

impl Watch {
    /// Operations are late after so many milliseconds.
    pub(super) fn new(limit_ms: u64) -> Watch {
        Watch { limit_ms, look_at: None }
    }

    pub(super) fn limit_ms(&self) -> u64 {
        self.limit_ms
    }

    /// An operation goes to a device.
    pub(super) fn handle_started(&mut self, now: Time) {
        self.look_at.get_or_insert_with(|| now.after_ms(self.limit_ms));
    }

    pub(super) fn next_look(&self) -> Option<Time> {
        self.look_at
    }

    /// Whether it is time to ask [`Watch::is_late`] of each operation; then [`Watch::end_look`].
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.look_at.is_some_and(|at| at <= now)
    }

    pub(super) fn is_late(&self, started: Time, now: Time) -> bool {
        now.nanoseconds_since(started) >= self.limit_ms.saturating_mul(MILLISECOND_NS)
    }

    /// All were looked at; `oldest` is when the oldest of those began that are not late yet.
    pub(super) fn end_look(&mut self, oldest: Option<Time>) {
        self.look_at = oldest.map(|started| started.after_ms(self.limit_ms));
    }
}

/// Whole milliseconds from one time to another.
pub(super) fn milliseconds_since(now: Time, earlier: Time) -> u64 {
    now.nanoseconds_since(earlier) / MILLISECOND_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_when_the_first_may_be_late_and_not_before() {
        let mut watch = Watch::new(1000);
        let start = Time::default().after_ms(5);
        assert_eq!(watch.next_look(), None);
        watch.handle_started(start);
        watch.handle_started(start.after_ms(700));
        assert_eq!(watch.next_look(), Some(start.after_ms(1000)));
        assert!(!watch.is_due(start.after_ms(999)));
        let now = start.after_ms(1000);
        assert!(watch.is_due(now));
        assert!(watch.is_late(start, now) && !watch.is_late(start.after_ms(700), now));
        watch.end_look(Some(start.after_ms(700)));
        assert_eq!(watch.next_look(), Some(start.after_ms(1700)));
        watch.end_look(None);
        assert_eq!(watch.next_look(), None);
    }
}
