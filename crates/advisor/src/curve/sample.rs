//! Which blocks are in a sample.

use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use forebay_engine::policy::BlockKey;

/// Part of the blocks that is in a sample.
///
/// A block is in it if its [`sample_hash`] is at most a threshold, so a sample of a lower rate is
/// part of every one of a higher rate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rate {
    highest: u64,
}

impl Rate {
    /// Every block.
    pub const ALL: Rate = Rate { highest: u64::MAX };

    /// One of `divisor` blocks, which must not be 0.
    pub fn one_in(divisor: u64) -> Rate {
        assert!(divisor > 0);
        Rate { highest: u64::MAX / divisor }
    }

    /// `part` of `whole` blocks, all of them if it is more. `whole` must not be 0.
    pub fn part_of(part: u64, whole: u64) -> Rate {
        assert!(whole > 0);
        if part >= whole {
            return Rate::ALL;
        }
        let highest = u128::from(u64::MAX) * u128::from(part) / u128::from(whole);
        Rate { highest: u64::try_from(highest).expect("less than all") }
    }

    /// The blocks with a hash below this one.
    fn below(hash: u64) -> Rate {
        Rate { highest: hash.saturating_sub(1) }
    }

    /// Whether the block with this [`sample_hash`] is in the sample.
    #[inline]
    pub fn holds(self, hash: u64) -> bool {
        hash <= self.highest
    }

    /// The part as a number, above 0 and at most 1.
    pub fn value(self) -> f64 {
        (self.highest as f64 + 1.0) / (u64::MAX as f64 + 1.0)
    }
}

/// Hash of a block that decides whether it is in a sample: the finaliser of MurmurHash3 (A.
/// Appleby, public domain) over block and volume.
///
/// It is another one than the engine's hash of blocks: the policies place blocks in tables by that,
/// and a sample that was chosen by it would crowd into a corner of them.
#[inline]
pub fn sample_hash(key: BlockKey) -> u64 {
    // 2^64 / golden ratio, made odd; keeps the same block of two volumes apart.
    let volume = u64::from(key.volume).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Zero is a fixed point of the finaliser; block 0 must not be in every sample.
    let value = (key.block ^ volume).wrapping_add(0x2545_f491_4f6c_dd1d);
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// Hashes blocks and sample hashes for tables: multiplication by 2^64 / golden ratio, and the high
/// bits of the product added to the low ones. All hashes in a sample begin with zeroes, so they
/// could not be taken as they are. A trace made for it can slow a table down, and nothing else.
#[derive(Default)]
pub(crate) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A table by sample hash. Two blocks of one hash of 64 bits are taken for one.
pub(crate) type HashTable<V> = HashMap<u64, V, BuildHasherDefault<BlockHasher>>;

/// A value for each block of a sample that has a largest size: beyond it the rate is lowered, and
/// the blocks with the highest hashes leave (the fixed-size variant of SHARDS).
pub(crate) struct BoundedSample<V> {
    rate: Rate,
    blocks_max: usize,
    values: HashTable<V>,
    hashes: BinaryHeap<u64>,
}

impl<V> BoundedSample<V> {
    /// Of at most `blocks_max` blocks, at first of all.
    pub(crate) fn new(blocks_max: usize) -> BoundedSample<V> {
        BoundedSample::at_rate(Rate::ALL, blocks_max)
    }

    /// Of at most `blocks_max` blocks, at this rate or a lower one.
    pub(crate) fn at_rate(rate: Rate, blocks_max: usize) -> BoundedSample<V> {
        assert!(blocks_max > 0);
        BoundedSample { rate, blocks_max, values: HashTable::default(), hashes: BinaryHeap::new() }
    }

    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    /// Estimate of the different blocks that were added.
    pub(crate) fn distinct_blocks(&self) -> f64 {
        self.values.len() as f64 / self.rate.value()
    }

    pub(crate) fn get_mut(&mut self, hash: u64) -> Option<&mut V> {
        if self.rate.holds(hash) { self.values.get_mut(&hash) } else { None }
    }

    /// Adds a block that is not in it and whose hash the rate holds. What had to leave for it is
    /// handed to `leaves`; that may be the new one.
    pub(crate) fn add(&mut self, hash: u64, value: V, mut leaves: impl FnMut(V)) {
        debug_assert!(self.rate.holds(hash));
        self.values.insert(hash, value);
        self.hashes.push(hash);
        while self.values.len() > self.blocks_max {
            let highest = self.hashes.pop().expect("as many as there are values");
            self.rate = Rate::below(highest);
            leaves(self.values.remove(&highest).expect("each hash has a value"));
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.values.values_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(block: u64) -> u64 {
        sample_hash(BlockKey { volume: 0, block })
    }

    #[test]
    fn a_sample_has_the_share_that_its_rate_says() {
        for divisor in [1, 4, 32, 128] {
            let rate = Rate::one_in(divisor);
            // Blocks side by side, and blocks at a large power of two from one another.
            for stride in [1, 1 << 8, 1 << 20] {
                let held = (0..1 << 18).filter(|n| rate.holds(hash(n * stride))).count();
                let part = held as f64 / f64::from(1 << 18);
                let error = (part * divisor as f64 - 1.0).abs();
                assert!(error < 0.08, "one in {divisor} at {stride}: {part}");
            }
        }
        assert_eq!(Rate::one_in(1), Rate::ALL);
        assert_eq!(Rate::part_of(7, 3), Rate::ALL);
        assert!((Rate::part_of(3, 7).value() - 3.0 / 7.0).abs() < 1e-12);
        assert!((Rate::one_in(128).value() * 128.0 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn volumes_are_sampled_apart() {
        let rate = Rate::one_in(16);
        let held = |volume| {
            let is_held = |block: &u64| rate.holds(sample_hash(BlockKey { volume, block: *block }));
            (0..10_000).filter(is_held).collect::<Vec<u64>>()
        };
        assert_ne!(held(0), held(1));
    }

    #[test]
    fn a_bounded_sample_counts_what_it_could_not_keep() {
        let mut sample = BoundedSample::new(1_000);
        let mut left = 0;
        for block in 0..100_000 {
            let hash = hash(block);
            if sample.rate().holds(hash) && sample.get_mut(hash).is_none() {
                sample.add(hash, block, |_| left += 1);
            }
            assert!(sample.values().count() <= 1_000);
        }
        let estimate = sample.distinct_blocks();
        assert!((estimate / 100_000.0 - 1.0).abs() < 0.1, "{estimate}");
        assert!(left > 1_000, "more entered than stayed");
        let rate = sample.rate();
        assert!(
            (0..100_000)
                .all(|block| sample.get_mut(hash(block)).is_some() == rate.holds(hash(block)))
        );
    }
}
