//! How fast a policy turns to other blocks, on a workload that is made for it.
//!
//! A full cache sees requests for blocks by Zipf's law, then for others, then a scan, then the
//! others again. Who holds on to what was used often in the past is slow to turn; who does not
//! loses much to the scan.

use forebay_engine::policy::BlockKey;

use super::{PolicyName, Queues};

/// Blocks of the cache.
const CACHE_BLOCKS: u32 = 10_000;
/// Different blocks of each set, the chance of the `k`th being in proportion to 1 / `k`.
const SET_BLOCKS: u32 = 40_000;
/// Requests of a phase, in cache sizes.
const PHASE_CACHES: usize = 50;
/// Blocks of the scan, in cache sizes.
const SCAN_CACHES: usize = 5;
/// Requests at the end of a phase that tell the level that the policy reaches, in cache sizes.
const LEVEL_CACHES: usize = 10;
/// The policy is back when it reaches this part of its later level ...
const RECOVERED: f64 = 0.95;
/// ... in so many requests in a row.
const WINDOW: usize = CACHE_BLOCKS as usize / 2;

/// What became of a policy when the workload changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shift {
    /// Hit ratio before, in the last tenths of the first set.
    pub level_before: f64,
    /// Hit ratio after, in the last tenths of the second set before the scan.
    pub level_after: f64,
    /// Requests, in cache sizes, until .95 of the later level was reached in a window of half a
    /// cache size; `None` if it never was.
    pub recovery_caches: Option<f64>,
    /// Hits, in cache sizes, that were lost on the way to the later level.
    pub lost_caches: f64,
    /// Hits, in cache sizes, that were lost after the scan.
    pub lost_to_scan_caches: f64,
}

/// Lets `policy` meet the change with requests drawn from `seed`; `None` for MIN.
pub fn measure(policy: PolicyName, seed: u64) -> Option<Shift> {
    let mut queues = Queues::new(policy.policy(CACHE_BLOCKS)?, CACHE_BLOCKS);
    let cache = CACHE_BLOCKS as usize;
    let mut zipf = Zipf::new(seed);
    let mut phase = |queues: &mut Queues<_, _>, set: u32| -> Vec<bool> {
        let draws = PHASE_CACHES * cache;
        (0..draws).map(|_| queues.access(BlockKey { volume: set, block: zipf.draw() })).collect()
    };
    let level = |hits: &[bool]| ratio(&hits[hits.len() - LEVEL_CACHES * cache..]);
    let lost = |hits: &[bool], level: f64| {
        let until = hits.len() - LEVEL_CACHES * cache;
        (level - ratio(&hits[..until])) * until as f64 / cache as f64
    };
    let before = phase(&mut queues, 0);
    let after = phase(&mut queues, 1);
    for block in 0..(SCAN_CACHES * cache) as u64 {
        queues.access(BlockKey { volume: 2, block });
    }
    let rest = phase(&mut queues, 1);
    let level_after = level(&after);
    Some(Shift {
        level_before: level(&before),
        level_after,
        recovery_caches: recovery(&after, RECOVERED * level_after),
        lost_caches: lost(&after, level_after),
        lost_to_scan_caches: lost(&rest, level(&rest)),
    })
}

/// Requests, in cache sizes, to the end of the first window with a hit ratio of `level`.
fn recovery(hits: &[bool], level: f64) -> Option<f64> {
    let wanted = level * WINDOW as f64;
    let mut found = hits[..WINDOW].iter().filter(|hit| **hit).count();
    for end in WINDOW..hits.len() {
        if found as f64 >= wanted {
            return Some(end as f64 / f64::from(CACHE_BLOCKS));
        }
        found += usize::from(hits[end]);
        found -= usize::from(hits[end - WINDOW]);
    }
    None
}

fn ratio(hits: &[bool]) -> f64 {
    hits.iter().filter(|hit| **hit).count() as f64 / hits.len() as f64
}

/// Draws by Zipf's law with exponent 1, from SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
struct Zipf {
    /// Sums of the chances, not normalised.
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new(seed: u64) -> Zipf {
        let mut sum = 0.0;
        let add = |rank: u32| {
            sum += 1.0 / f64::from(rank);
            sum
        };
        Zipf { sums: (1..=SET_BLOCKS).map(add).collect(), state: seed }
    }

    /// A rank, from 0.
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let value = value ^ value >> 31;
        // The 53 bits that a number between 0 and 1 has.
        let share = (value >> 11) as f64 / (1u64 << 53) as f64;
        let wanted = share * self.sums.last().expect("there are blocks");
        self.sums.partition_point(|sum| *sum <= wanted) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(policy: PolicyName, value: fn(&Shift) -> f64) -> f64 {
        let measured = (1..=3).map(|seed| measure(policy, seed).expect("it is no MIN"));
        let mut values: Vec<f64> = measured.map(|shift| value(&shift)).collect();
        values.sort_by(f64::total_cmp);
        values[1]
    }

    #[test]
    fn the_default_policy_turns_to_other_blocks_within_eight_caches() {
        let recovery = |shift: &Shift| shift.recovery_caches.expect("it comes back");
        let ours = median(PolicyName::Clock2q, recovery);
        assert!(ours <= 8.0, "{ours}");
        // What is known of LRU (its levels to three digits, the others roughly) holds here, too.
        let lru = median(PolicyName::Lru, recovery);
        assert!((2.0..3.0).contains(&lru), "{lru}");
        let level = median(PolicyName::Lru, |shift| shift.level_before);
        assert!((level - 0.825).abs() < 0.002, "{level}");
        let lost_to_scan = |policy| median(policy, |shift| shift.lost_to_scan_caches);
        let (ours, lru) = (lost_to_scan(PolicyName::Clock2q), lost_to_scan(PolicyName::Lru));
        assert!(lru > 0.25 && ours < lru / 2.0, "{ours} beside {lru}");
        assert!(median(PolicyName::Clock2q, |shift| shift.level_after) > level + 0.02);
    }

    #[test]
    fn who_comes_back_at_once_has_recovered_after_a_window() {
        let mut hits = vec![true; 50_000];
        assert_eq!(recovery(&hits, 1.0), Some(0.5));
        hits[..10_000].fill(false);
        assert_eq!(recovery(&hits, 1.0), Some(1.5));
        assert_eq!(recovery(&hits, 0.5), Some(1.25));
        assert_eq!(recovery(&[false; 50_000], 0.5), None);
    }
}
