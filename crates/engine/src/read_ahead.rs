//! Read-ahead: a small miss on a slow origin fetches the window around it, while that proves
//! useful.
//!
//! On a hard disk or a remote volume the trip is what costs: a transfer of 64 KiB adds a few per
//! cent to a seek of milliseconds. Two measurements decide, not what the device says of itself (the
//! kernel's `rotational` flag is true of every loop device): how long small reads of the origin
//! take, and how many of the blocks that were fetched ahead were read before the cache dropped
//! them. Free space costs nothing, so until the cache is full everything counts as useful.

use crate::mean;

/// A trip to the origin that takes this long makes a window worth its transfer: between a busy SATA
/// SSD (.2 to .4 ms) and a hard disk or a remote volume (1 ms and more).
const SLOW_TRIP_NS: u64 = 1_000_000;
/// Trips that are measured before the first window is fetched.
const TRIPS_MIN: u32 = 8;
/// One miss of so many is left as it was asked, so that the measured trips stay those of small
/// reads.
const MEASURE_EVERY: u32 = 16;
/// Dropped unread for each one that was read: with 15 blocks fetched ahead on a miss of 4 KiB, one
/// read of 16 means that each window saved about one trip. The density at which writeback fills
/// gaps, too (DESIGN section 4).
const WASTED_PER_USED_MAX: u32 = 16;
/// Blocks dropped unread before they count against read-ahead at all.
const WASTED_MIN: u32 = 1024;
/// While it does not pay, one miss of so many is tried, so that a change of the work is noticed.
const TRY_EVERY: u32 = 64;
/// Both counts are halved when their sum exceeds this, so that old times are forgotten.
const HISTORY_BLOCKS: u32 = 16 * 1024;

/// What a volume has learned about its origin and its clients.
#[derive(Default)]
pub(crate) struct ReadAhead {
    mean_trip_ns: u64,
    trips: u32,
    misses: u32,
    used_blocks: u32,
    wasted_blocks: u32,
}

impl ReadAhead {
    /// Notes a read of the origin that was not widened.
    pub(crate) fn on_trip(&mut self, nanoseconds: u64) {
        if self.trips == 0 {
            self.mean_trip_ns = nanoseconds;
        } else {
            self.mean_trip_ns = mean::moved(self.mean_trip_ns, nanoseconds);
        }
        self.trips = self.trips.saturating_add(1);
    }

    /// Blocks fetched ahead were read.
    pub(crate) fn on_used(&mut self, blocks: u32) {
        self.used_blocks += blocks;
        self.forget_old();
    }

    /// Blocks fetched ahead were dropped unread.
    pub(crate) fn on_wasted(&mut self, blocks: u32) {
        self.wasted_blocks += blocks;
        self.forget_old();
    }

    fn forget_old(&mut self) {
        if self.used_blocks + self.wasted_blocks > HISTORY_BLOCKS {
            self.used_blocks /= 2;
            self.wasted_blocks /= 2;
        }
    }

    /// Whether the next miss fetches its window. Asked once for each miss that could.
    pub(crate) fn widens_next(&mut self) -> bool {
        self.misses = self.misses.wrapping_add(1);
        let is_slow = self.trips >= TRIPS_MIN && self.mean_trip_ns >= SLOW_TRIP_NS;
        let pays = self.wasted_blocks < WASTED_MIN
            || self.wasted_blocks <= WASTED_PER_USED_MAX * self.used_blocks;
        if pays {
            is_slow && !self.misses.is_multiple_of(MEASURE_EVERY)
        } else {
            is_slow && self.misses.is_multiple_of(TRY_EVERY)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widened_of(read_ahead: &mut ReadAhead, misses: u32) -> usize {
        (0..misses).filter(|_| read_ahead.widens_next()).count()
    }

    fn on_slow_origin() -> ReadAhead {
        let mut read_ahead = ReadAhead::default();
        for _ in 0..TRIPS_MIN {
            read_ahead.on_trip(8_000_000);
        }
        read_ahead
    }

    #[test]
    fn only_a_slow_origin_is_asked_for_more() {
        assert_eq!(widened_of(&mut ReadAhead::default(), 64), 0, "nothing is known yet");
        let mut fast = ReadAhead::default();
        for _ in 0..100 {
            fast.on_trip(100_000);
        }
        assert_eq!(widened_of(&mut fast, 64), 0);
        assert_eq!(widened_of(&mut on_slow_origin(), 64), 60, "four are left to measure");
    }

    #[test]
    fn an_origin_that_becomes_fast_is_noticed() {
        let mut read_ahead = on_slow_origin();
        for _ in 0..64 {
            read_ahead.on_trip(100_000);
        }
        assert_eq!(widened_of(&mut read_ahead, 64), 0);
    }

    #[test]
    fn waste_stops_it_and_use_starts_it_again() {
        let mut read_ahead = on_slow_origin();
        read_ahead.on_used(WASTED_MIN / WASTED_PER_USED_MAX - 1);
        read_ahead.on_wasted(WASTED_MIN);
        assert_eq!(widened_of(&mut read_ahead, 6400), 100, "one of 64 is tried");
        read_ahead.on_used(1);
        assert_eq!(widened_of(&mut read_ahead, 64), 60);
    }

    #[test]
    fn old_waste_is_forgotten() {
        let mut read_ahead = on_slow_origin();
        read_ahead.on_wasted(HISTORY_BLOCKS);
        assert_eq!(widened_of(&mut read_ahead, 64), 1);
        for _ in 0..HISTORY_BLOCKS / 8 {
            read_ahead.on_used(1);
        }
        assert_eq!(widened_of(&mut read_ahead, 64), 60);
    }
}
