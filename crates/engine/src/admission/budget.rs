//! A budget of bytes a day, as a token bucket.
//!
//! Tokens come evenly, and the bucket holds an hour's worth, so that a burst is admitted and the
//! rest of a day is not waited for. What is appended although the bucket is empty puts it into
//! debt, of an hour's worth at most, so that the mean stays near what was asked for.

use crate::units::Time;

const SECONDS_PER_DAY: u64 = 86_400;
const NANOSECONDS_PER_DAY: u128 = SECONDS_PER_DAY as u128 * 1_000_000_000;
/// What the bucket holds of a day's budget: an hour's worth.
const DEPTH_DIVISOR: u64 = 24;
/// It holds this much in any case: four promotions of the largest size.
const DEPTH_BYTES_MIN: u64 = 4 << 20;

#[derive(Default)]
pub(crate) struct WriteBudget {
    bytes_per_day: u64,
    /// Tokens, in bytes times the nanoseconds of a day, so that nothing is lost in rounding.
    level: i128,
    refilled_at: Time,
}

fn depth(bytes_per_day: u64) -> i128 {
    let bytes = (bytes_per_day / DEPTH_DIVISOR).max(DEPTH_BYTES_MIN);
    tokens(bytes)
}

fn tokens(bytes: u64) -> i128 {
    (u128::from(bytes) * NANOSECONDS_PER_DAY).cast_signed()
}

impl WriteBudget {
    /// Brings tokens up to date with the time and the setting. A new budget begins with a full
    /// bucket; one that changes keeps what it has.
    fn refill(&mut self, now: Time, bytes_per_day: u64) {
        let elapsed_ns = now.nanoseconds_since(self.refilled_at);
        self.refilled_at = now;
        let depth = depth(bytes_per_day);
        if self.bytes_per_day == 0 {
            self.level = depth;
        } else {
            let new = u128::from(elapsed_ns) * u128::from(self.bytes_per_day);
            self.level = (self.level + new.cast_signed()).clamp(-depth, depth);
        }
        self.bytes_per_day = bytes_per_day;
    }

    /// Whether there are tokens; always, if there is no bound.
    pub(crate) fn has_tokens(&mut self, now: Time, bytes_per_day: u64) -> bool {
        self.refill(now, bytes_per_day);
        bytes_per_day == 0 || self.level > 0
    }

    /// Bytes are appended.
    pub(crate) fn take(&mut self, now: Time, bytes_per_day: u64, bytes: u64) {
        self.refill(now, bytes_per_day);
        self.level = (self.level - tokens(bytes)).max(-depth(bytes_per_day));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn an_hours_worth_is_there_at_first_and_comes_back_in_an_hour() {
        let a_day = 24 * 100 * MIB;
        let mut budget = WriteBudget::default();
        let start = Time(5_000_000_000);
        budget.take(start, a_day, 100 * MIB - 1);
        assert!(budget.has_tokens(start, a_day));
        budget.take(start, a_day, 1);
        assert!(!budget.has_tokens(start, a_day));
        assert!(budget.has_tokens(start.after_ms(1), a_day));
        let later = start.after_ms(7_200_000);
        budget.take(later, a_day, 100 * MIB);
        assert!(!budget.has_tokens(later, a_day), "no more than an hour's worth is kept");
    }

    #[test]
    fn debt_is_paid_back_and_has_a_bound() {
        let a_day = 24 * 100 * MIB;
        let mut budget = WriteBudget::default();
        budget.take(Time(0), a_day, 1 << 45);
        assert!(!budget.has_tokens(Time(0).after_ms(3_599_000), a_day));
        assert!(budget.has_tokens(Time(0).after_ms(3_601_000), a_day));
    }

    #[test]
    fn a_tiny_budget_holds_a_few_promotions() {
        let mut budget = WriteBudget::default();
        budget.take(Time(0), 1, 4 * MIB - 1);
        assert!(budget.has_tokens(Time(0), 1));
        budget.take(Time(0), 1, 2);
        let later = Time(0).after_ms(86_000_000);
        assert!(!budget.has_tokens(later, 1), "a byte is to be paid back first");
        assert!(budget.has_tokens(later.after_ms(500_000), 1));
    }

    #[test]
    fn a_budget_that_is_set_anew_begins_with_a_full_bucket() {
        let mut budget = WriteBudget::default();
        budget.take(Time(0), 1, 4 * MIB);
        assert!(!budget.has_tokens(Time(0), 1));
        assert!(budget.has_tokens(Time(0), 0), "off");
        assert!(budget.has_tokens(Time(0), 1));
    }

    #[test]
    fn the_largest_budget_fits_in_numbers() {
        let most = crate::options::CACHE_WRITE_BUDGET_MAX;
        let mut budget = WriteBudget::default();
        budget.take(Time(0), most, u64::MAX);
        assert!(budget.has_tokens(Time(u64::MAX), most));
    }
}
