//! How often blocks were missed of late, as fingerprints.
//!
//! A table of buckets, each with room for sixteen entries of two bytes: a tag of 12 bits and a
//! count of 4. An entry that is new, or counted again, stands first in its bucket; the last one is
//! forgotten for it. By block and not by region: what was read beside a block says little of it
//! where reads are small and scattered, which is where a cache is worth most. Two blocks are
//! confused once in some 256 questions, which costs a copy that was not worth it and nothing else.

use alloc::vec;
use alloc::vec::Vec;

use crate::options::PROMOTION_NHIT_MAX;
use crate::policy::BlockKey;

/// Entries of a bucket: 32 bytes, half a cache line.
const WAYS: usize = 16;
/// Most entries: 8 MiB of memory, for 16 GiB of misses.
const ENTRIES_MAX: u64 = 4 << 20;
const COUNT_BITS: u32 = 4;
const COUNT_MASK: u16 = (1 << COUNT_BITS) - 1;
const _: () = assert!(PROMOTION_NHIT_MAX as u16 == COUNT_MASK);

/// Misses by block. Tag in the high bits, count in the low ones; zero is no entry.
pub(crate) struct MissMemory {
    buckets: Vec<[u16; WAYS]>,
}

impl MissMemory {
    /// For as many misses as the cache has blocks, or 4 Mi.
    pub(crate) fn new(cache_blocks: u64) -> MissMemory {
        MissMemory { buckets: vec![[0; WAYS]; MissMemory::buckets_for(cache_blocks)] }
    }

    /// Bytes of memory for such a cache.
    pub(crate) fn bytes_for(cache_blocks: u64) -> usize {
        MissMemory::buckets_for(cache_blocks) * size_of::<[u16; WAYS]>()
    }

    fn buckets_for(cache_blocks: u64) -> usize {
        let entries = cache_blocks.min(ENTRIES_MAX);
        usize::try_from(entries).expect("fits memory").div_ceil(WAYS).max(1)
    }

    /// Notes a miss of a block; tells how many are remembered, this one not included: at most 15.
    pub(crate) fn note(&mut self, key: BlockKey) -> u8 {
        let hash = key.hash();
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        let bucket = &mut self.buckets[usize::try_from(bucket).expect("an index")];
        #[expect(clippy::cast_possible_truncation, reason = "cut out bit by bit")]
        let tag = hash as u16 >> COUNT_BITS;
        let found = bucket.iter().position(|entry| *entry != 0 && entry >> COUNT_BITS == tag);
        let last = found.unwrap_or(WAYS - 1);
        let before = found.map_or(0, |way| bucket[way] & COUNT_MASK);
        bucket.copy_within(..last, 1);
        bucket[0] = tag << COUNT_BITS | (before + 1).min(COUNT_MASK);
        u8::try_from(before).expect("four bits")
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<[u16; WAYS]>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 1, block }
    }

    #[test]
    fn misses_of_a_block_are_counted_up_to_fifteen() {
        let mut misses = MissMemory::new(1_000);
        let counts: Vec<u8> = (0..20).map(|_| misses.note(key(7))).collect();
        assert_eq!(counts[..16], core::array::from_fn::<u8, 16, _>(|n| n.min(15) as u8));
        assert_eq!(counts[19], 15);
        assert_eq!(misses.note(BlockKey { volume: 2, block: 7 }), 0);
    }

    #[test]
    fn the_latest_misses_are_remembered_and_older_ones_are_not() {
        let mut misses = MissMemory::new(10_000);
        (0..50_000).for_each(|block| {
            misses.note(key(block));
        });
        let mut known = |blocks: core::ops::Range<u64>| {
            blocks.filter(|block| misses.note(key(*block)) > 0).count()
        };
        // Asking is a miss, too: the questions about old blocks come last.
        let latest = known(47_000..50_000);
        assert!(latest > 2_700, "{latest} of 3,000");
        let never = known(1_000_000..1_100_000);
        assert!(never < 1_000, "{never} of 100,000 were confused");
        let before = known(0..5_000);
        assert!(before < 50, "{before} of 5,000");
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(MissMemory::new(1 << 32).memory_bytes(), 8 << 20);
        assert_eq!(MissMemory::new(1).memory_bytes(), 32);
    }
}
