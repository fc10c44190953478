//! Random blocks as people use them: few of them often. A Zipf distribution over a region, in the
//! manner of fio's `random_distribution=zipf:1.2`: rank `r` is drawn in proportion to `1 / r^1.2`,
//! and the ranks are scattered over the region.

use forebay_device_model::Random;

/// The exponent.
pub(crate) const EXPONENT: f64 = 1.2;

/// A generator of blocks.
pub(crate) struct Zipf {
    /// Up to rank `i`, the share of all draws.
    cumulative: Vec<f64>,
    /// The block of a rank.
    blocks: Vec<u32>,
    random: Random,
}

impl Zipf {
    /// Over `block_count` blocks.
    pub(crate) fn new(block_count: u32, seed: u64) -> Zipf {
        assert!(block_count > 0);
        let mut random = Random::new(seed);
        let mut blocks: Vec<u32> = (0..block_count).collect();
        for last in (1..blocks.len()).rev() {
            let other = random.below(last as u64 + 1) as usize;
            blocks.swap(last, other);
        }
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = (1..=block_count)
            .map(|rank| {
                sum += f64::from(rank).powf(-EXPONENT);
                sum
            })
            .collect();
        for share in &mut cumulative {
            *share /= sum;
        }
        Zipf { cumulative, blocks, random }
    }

    /// The next block.
    pub(crate) fn next(&mut self) -> u64 {
        // 53 bits are what a float between zero and one can tell apart.
        let draw = (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let rank = self.cumulative.partition_point(|share| *share < draw);
        u64::from(self.blocks[rank.min(self.blocks.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_blocks_get_most_draws() {
        let mut zipf = Zipf::new(16384, 1);
        let mut counts = vec![0u32; 16384];
        for _ in 0..100_000 {
            counts[zipf.next() as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The sum of r^-1.2 for r to 16384 is 4.87: the first rank has .205, the first hundred .74.
        assert!((19_500..21_600).contains(&counts[0]), "{}", counts[0]);
        let hundred: u32 = counts[..100].iter().sum();
        assert!((69_000..79_000).contains(&hundred), "{hundred}");
    }

    #[test]
    fn same_seed_same_blocks() {
        let draw = |seed| {
            let mut zipf = Zipf::new(100, seed);
            (0..50).map(|_| zipf.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
