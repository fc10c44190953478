//! A cache device that fails again and again, but not for good: it is used for what it holds, and
//! nothing new is entrusted to it.
//!
//! Degraded means: nothing is promoted; a write goes around the log wherever rule 4 lets it, so
//! only blocks that are dirty already are written there again; dirty data goes home as fast as it
//! can; reclaim keeps no clean blocks. Hits are still served. It ends with the daemon: whoever
//! looked after the device starts it anew.

use crate::engine::{Engine, IoPurpose};
use crate::event::Event;
use crate::failure::CacheFailure;
use crate::io::IoError;
use crate::status::CacheErrors;
use crate::units::Time;

/// Failed operations from which on the device is degraded. Linux md gives a disk up after as many
/// read errors (`MD_DEFAULT_MAX_CORRECTED_READ_ERRORS`).
const ERRORS_MAX: u32 = 20;
/// After so many milliseconds half of what was counted is forgotten: an hour, as in md.
const HALF_LIFE_MS: u64 = 3_600_000;

/// What a failed operation was to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheAccess {
    Read,
    /// Writes and flushes.
    Write,
}

/// Failed operations of the cache device, older ones counting less.
#[derive(Default)]
pub(crate) struct ErrorLevel {
    recent: CacheErrors,
    halved_at: Time,
    /// What had come together when the device became degraded.
    degraded: Option<CacheErrors>,
}

impl ErrorLevel {
    /// Counts one. Whether it is the one that makes the device degraded.
    fn count(&mut self, now: Time, access: CacheAccess) -> bool {
        let halvings = now.nanoseconds_since(self.halved_at) / (HALF_LIFE_MS * 1_000_000);
        if halvings > 0 {
            self.halved_at = self.halved_at.after_ms(halvings * HALF_LIFE_MS);
            let shift = u32::try_from(halvings).unwrap_or(u32::MAX);
            self.recent.reads = self.recent.reads.checked_shr(shift).unwrap_or(0);
            self.recent.writes = self.recent.writes.checked_shr(shift).unwrap_or(0);
        }
        match access {
            CacheAccess::Read => self.recent.reads += 1,
            CacheAccess::Write => self.recent.writes += 1,
        }
        let is_new = self.degraded.is_none() && self.recent.total() >= ERRORS_MAX;
        if is_new {
            self.degraded = Some(self.recent);
        }
        is_new
    }
}

impl IoPurpose {
    /// How the operation uses the cache device, if it does. A failed discard does no harm.
    pub(crate) fn cache_access(&self) -> Option<CacheAccess> {
        match self {
            IoPurpose::ReadHit { .. }
            | IoPurpose::UnitOld { position: Some(_), .. }
            | IoPurpose::LoadSummary { .. }
            | IoPurpose::ReadHeader { .. }
            | IoPurpose::ReclaimRead { .. }
            | IoPurpose::WritebackRead { .. }
            | IoPurpose::Recovery { .. } => Some(CacheAccess::Read),
            IoPurpose::Record(_)
            | IoPurpose::Summary { .. }
            | IoPurpose::CacheFlush
            | IoPurpose::Checkpoint { .. }
            | IoPurpose::Superblock { .. } => Some(CacheAccess::Write),
            IoPurpose::Miss { .. }
            | IoPurpose::UnitOld { position: None, .. }
            | IoPurpose::UnitOrigin { .. }
            | IoPurpose::OriginFlush(_)
            | IoPurpose::WritebackGaps { .. }
            | IoPurpose::WritebackWrite { .. }
            | IoPurpose::DiscardSegment(_)
            | IoPurpose::OriginHead { .. } => None,
        }
    }
}

impl Engine {
    /// An operation of the cache device failed.
    pub(crate) fn note_cache_error(&mut self, purpose: &IoPurpose, error: IoError) {
        let Some(access) = purpose.cache_access() else { return };
        self.set_counters.cache_errors += 1;
        if self.is_cache_failed() {
            return;
        }
        // Recovery tries again, and refuses the device if that does not help.
        let is_tried_again = matches!(purpose, IoPurpose::Recovery { .. });
        if error == IoError::Gone && !is_tried_again {
            self.fail_cache(CacheFailure::Gone);
        } else if self.error_level.count(self.now, access) {
            self.events.push_back(Event::CacheDegraded);
            self.go_on();
        }
    }

    /// Whether nothing new is to be entrusted to the cache device.
    pub(crate) fn is_degraded(&self) -> bool {
        self.error_level.degraded.is_some()
    }

    /// The failures that made it so.
    pub(crate) fn degraded_by(&self) -> Option<CacheErrors> {
        self.error_level.degraded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_hour(hours: u64) -> Time {
        Time::default().after_ms(hours * HALF_LIFE_MS)
    }

    #[test]
    fn many_errors_in_a_short_time_degrade_once() {
        let mut level = ErrorLevel::default();
        for _ in 1..ERRORS_MAX {
            assert!(!level.count(at_hour(5), CacheAccess::Read));
        }
        assert!(level.count(at_hour(5), CacheAccess::Write));
        assert_eq!(level.degraded, Some(CacheErrors { reads: ERRORS_MAX - 1, writes: 1 }));
        assert!(!level.count(at_hour(5), CacheAccess::Write));
    }

    #[test]
    fn the_same_errors_over_days_do_not() {
        let mut level = ErrorLevel::default();
        for hour in 0..10 * u64::from(ERRORS_MAX) {
            assert!(!level.count(at_hour(hour), CacheAccess::Read));
        }
        assert!(!level.count(at_hour(1 << 40), CacheAccess::Write));
        assert_eq!(level.recent, CacheErrors { reads: 0, writes: 1 });
    }
}
