//! MIN: what a cache that knew the future would miss (Belady 1966; Mattson et al. 1970).

use std::collections::{BTreeSet, HashMap};

use forebay_engine::policy::BlockKey;

/// Never used again.
const NEVER: u64 = u64::MAX;

/// Whether each of `accesses` is a hit in a cache of `capacity_blocks` that demotes the block whose
/// next use is farthest away. Every block that is used enters the cache.
pub fn min_hits(accesses: &[BlockKey], capacity_blocks: u32) -> Vec<bool> {
    assert!(capacity_blocks > 0);
    let mut next_use = vec![NEVER; accesses.len()];
    let mut last: HashMap<BlockKey, usize> = HashMap::new();
    for (index, key) in accesses.iter().enumerate() {
        if let Some(before) = last.insert(*key, index) {
            next_use[before] = index as u64;
        }
    }
    // Cached blocks by their next use. Blocks without one are told apart by their last.
    let mut cached: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut current: HashMap<BlockKey, (u64, usize)> = HashMap::new();
    let access = |(index, key): (usize, &BlockKey)| {
        let entry = (next_use[index], index);
        let before = current.insert(*key, entry);
        let is_hit = before.is_some_and(|before| cached.remove(&before));
        if !is_hit && cached.len() == capacity_blocks as usize {
            cached.pop_last();
        }
        cached.insert(entry);
        is_hit
    };
    accesses.iter().enumerate().map(access).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(blocks: &[u64]) -> Vec<BlockKey> {
        blocks.iter().map(|block| BlockKey { volume: 0, block: *block }).collect()
    }

    fn hit_count(blocks: &[u64], capacity: u32) -> usize {
        min_hits(&keys(blocks), capacity).iter().filter(|hit| **hit).count()
    }

    /// The best of all choices, by trying them.
    fn best(blocks: &[u64], capacity: usize, cached: &[u64]) -> usize {
        let Some((block, rest)) = blocks.split_first() else { return 0 };
        if cached.contains(block) {
            return 1 + best(rest, capacity, cached);
        }
        let with = |kept: Vec<u64>| best(rest, capacity, &[kept.as_slice(), &[*block]].concat());
        if cached.len() < capacity {
            return with(cached.to_vec());
        }
        let without = |victim: &u64| cached.iter().copied().filter(|b| b != victim).collect();
        cached.iter().map(|victim| with(without(victim))).max().expect("some are cached")
    }

    #[test]
    fn a_loop_keeps_what_fits() {
        let blocks: Vec<u64> = (0..10).flat_map(|_| 0..5).collect();
        // Of five blocks in turn, four fit: each round but the first hits three.
        assert_eq!(hit_count(&blocks, 4), 9 * 15 / 4 + 1);
    }

    proptest! {
        #[test]
        fn nothing_does_better(
            blocks in prop::collection::vec(0u64..5, 1..12),
            capacity in 1usize..4,
        ) {
            let capacity_blocks = u32::try_from(capacity).expect("small");
            prop_assert_eq!(hit_count(&blocks, capacity_blocks), best(&blocks, capacity, &[]));
        }
    }
}
