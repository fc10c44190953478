//! How many transfers of writeback are under way at an origin at once.
//!
//! An origin that is far away, or has many parts, does several in the time of one; a disk does not,
//! and there whoever comes next only waits the longer. Latency tells: it is measured with the least
//! that are always allowed, and there may be one more after each round in which transfers took
//! hardly longer than that; a quarter fewer after one in which they took twice as long. Only short
//! ones count, which are alike.

/// Where it begins, and what it never goes below unless the operator asks for less.
pub(super) const LEAST: u16 = 4;
/// Most that the engine chooses by itself: what a SATA disk sorts (NCQ).
const CHOSEN_MAX: u16 = 32;

/// Transfers under way at an origin at most, as its latency allows.
#[derive(Debug)]
pub(crate) struct RunDepth {
    limit: u16,
    /// Mean time of a transfer with the least under way; zero while nobody knows.
    least_ns: u64,
    /// The round under way: transfers that ended, and how long they took together.
    ended: u16,
    sum_ns: u64,
}

impl Default for RunDepth {
    fn default() -> Self {
        RunDepth { limit: LEAST, least_ns: 0, ended: 0, sum_ns: 0 }
    }
}

impl RunDepth {
    /// Transfers under way at most; `most` is the operator's setting, zero if it is ours.
    pub(super) fn limit(&self, most: u16) -> u16 {
        if most == 0 { self.limit.min(CHOSEN_MAX) } else { self.limit.min(most) }
    }

    /// A transfer ended, which was one of so many under way.
    pub(super) fn on_written(&mut self, took_ns: u64, under_way: usize, most: u16) {
        self.ended += 1;
        self.sum_ns += took_ns;
        if self.ended < self.limit {
            return;
        }
        let mean_ns = self.sum_ns / u64::from(self.ended);
        (self.ended, self.sum_ns) = (0, 0);
        if self.limit == LEAST {
            let known = if self.least_ns == 0 { mean_ns } else { self.least_ns };
            self.least_ns = (known * 7 + mean_ns) / 8;
        }
        let most = if most == 0 { CHOSEN_MAX } else { most };
        let is_full = under_way >= usize::from(self.limit);
        if mean_ns > 2 * self.least_ns {
            self.limit = (self.limit - self.limit / 4).max(LEAST);
        } else if is_full && mean_ns <= self.least_ns + self.least_ns / 4 {
            self.limit = (self.limit + 1).min(most).max(LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// The limit of an origin whose transfers take so long, each, and so much longer for each one
    /// that is under way.
    fn settled(base_ms: u64, each_ms: u64, most: u16) -> u16 {
        let mut depth = RunDepth::default();
        for _ in 0..10_000 {
            let under_way = depth.limit(most);
            let took_ns = (base_ms + each_ms * u64::from(under_way)) * MILLISECOND;
            depth.on_written(took_ns, under_way.into(), most);
        }
        depth.limit(most)
    }

    #[test]
    fn what_is_far_away_gets_as_many_as_there_may_be() {
        assert_eq!(settled(20, 0, 0), CHOSEN_MAX);
        assert_eq!(settled(20, 0, 100), 100);
        assert_eq!(settled(20, 0, 2), 2);
    }

    #[test]
    fn what_does_one_after_the_other_gets_hardly_more_than_the_least() {
        let depth = settled(0, 4, 0);
        assert!((LEAST..=LEAST + 2).contains(&depth), "{depth}");
    }

    #[test]
    fn what_does_eight_at_once_gets_about_so_many() {
        let mut depth = RunDepth::default();
        for _ in 0..10_000 {
            let under_way = depth.limit(0);
            let took_ns = 10 * MILLISECOND * u64::from(under_way.max(8)) / 8;
            depth.on_written(took_ns, under_way.into(), 0);
        }
        assert!((9..=12).contains(&depth.limit(0)), "{}", depth.limit(0));
    }

    #[test]
    fn when_it_becomes_slow_there_are_fewer() {
        let mut depth = RunDepth::default();
        let mut write = |milliseconds: u64| {
            depth.on_written(milliseconds * MILLISECOND, depth.limit(0).into(), 0);
            depth.limit(0)
        };
        assert_eq!((0..1_000).map(|_| write(10)).max(), Some(CHOSEN_MAX));
        assert_eq!((0..1_000).map(|_| write(50)).min(), Some(LEAST));
    }

    #[test]
    fn what_was_never_under_way_says_nothing() {
        let mut depth = RunDepth::default();
        for _ in 0..1_000 {
            depth.on_written(MILLISECOND, 1, 0);
        }
        assert_eq!(depth.limit(0), LEAST);
    }
}
