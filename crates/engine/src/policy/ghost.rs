//! Blocks that were demoted a short while ago, as fingerprints.
//!
//! A table of buckets, each with room for sixteen entries of two bytes: a tag of 12 bits and the
//! time of the entry, counted in insertions and coarsely. Two blocks are confused once in some 300
//! questions, which costs a copy that was not worth it and nothing else. An entry lives for
//! as many further insertions as the ghost has entries, an eighth more or less; then it counts as
//! gone. Buckets are swept in turn, so that an old entry is gone before its time comes round again.
//!
//! The size of Clock2Q+'s ghost, .9 of the cache, is also S3-FIFO's (Yang et al., SOSP 2023).

use alloc::vec;
use alloc::vec::Vec;

use super::BlockKey;

/// Entries of a bucket: 32 bytes, half a cache line.
const WAYS: usize = 16;
/// Entries of a bucket that the size of the table counts with: full buckets lose their oldest
/// entry early, at this load one of thirty.
const WAYS_USED: usize = 13;
const TIME_BITS: u32 = 4;
/// Steps of the clock in the life of an entry; the clock has twice as many.
const STEPS_OF_LIFE: u64 = 8;
/// Insertions after which the next bucket is swept: all of them within 8/13 of a life, so that no
/// entry is older than 13 steps.
const INSERTIONS_PER_SWEEP: u64 = 8;
/// No entry: tags are at least 1.
const EMPTY: Entry = Entry(0);

/// Tag in the high bits, time in the low ones.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u16);

impl Entry {
    fn new(tag: u16, now: u64) -> Entry {
        #[expect(clippy::cast_possible_truncation, reason = "the clock goes round")]
        Entry(tag << TIME_BITS | now as u16 & ((1 << TIME_BITS) - 1))
    }

    fn tag(self) -> u16 {
        self.0 >> TIME_BITS
    }

    /// Steps since it was entered.
    fn age(self, now: u64) -> u64 {
        now.wrapping_sub(self.0.into()) & ((1 << TIME_BITS) - 1)
    }
}

/// Recently demoted blocks.
pub(super) struct Ghost {
    buckets: Vec<[Entry; WAYS]>,
    /// Entries it remembers; none if 0.
    entries_max: u64,
    insertions: u64,
    swept: usize,
}

impl Ghost {
    /// For so many blocks.
    pub(super) fn new(entries_max: u64) -> Ghost {
        let buckets = usize::try_from(entries_max).expect("fits memory").div_ceil(WAYS_USED);
        Ghost { buckets: vec![[EMPTY; WAYS]; buckets], entries_max, insertions: 0, swept: 0 }
    }

    /// Remembers a block.
    pub(super) fn insert(&mut self, key: BlockKey) {
        if self.entries_max == 0 {
            return;
        }
        self.insertions += 1;
        if self.insertions.is_multiple_of(INSERTIONS_PER_SWEEP) {
            self.sweep();
        }
        let now = self.now();
        let (bucket, tag) = self.place(key);
        let bucket = &mut self.buckets[bucket];
        let same = bucket.iter().position(|entry| entry.tag() == tag);
        let age = |way: usize| if bucket[way] == EMPTY { u64::MAX } else { bucket[way].age(now) };
        let oldest = (0..WAYS).max_by_key(|way| age(*way)).expect("there are some");
        bucket[same.unwrap_or(oldest)] = Entry::new(tag, now);
    }

    /// Whether the block is remembered; from now on it is not.
    pub(super) fn take(&mut self, key: BlockKey) -> bool {
        if self.entries_max == 0 {
            return false;
        }
        let now = self.now();
        let (bucket, tag) = self.place(key);
        let found = self.buckets[bucket].iter_mut().find(|entry| entry.tag() == tag);
        let Some(entry) = found else { return false };
        core::mem::replace(entry, EMPTY).age(now) <= STEPS_OF_LIFE
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.buckets.len() * size_of::<[Entry; WAYS]>()
    }

    /// Time in steps of the clock.
    fn now(&self) -> u64 {
        self.insertions / self.entries_max.div_ceil(STEPS_OF_LIFE)
    }

    fn place(&self, key: BlockKey) -> (usize, u16) {
        let hash = key.hash();
        let bucket = ((hash >> 32) * self.buckets.len() as u64) >> 32;
        let tag = hash & (u64::from(u16::MAX) >> TIME_BITS);
        #[expect(clippy::cast_possible_truncation, reason = "both are small")]
        (bucket as usize, (tag as u16).max(1))
    }

    /// Empties what has outlived its time in the next bucket.
    fn sweep(&mut self) {
        let now = self.now();
        for entry in &mut self.buckets[self.swept] {
            if entry.age(now) > STEPS_OF_LIFE {
                *entry = EMPTY;
            }
        }
        self.swept = (self.swept + 1) % self.buckets.len();
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 0, block }
    }

    fn known(ghost: &mut Ghost, blocks: core::ops::Range<u64>) -> usize {
        blocks.filter(|block| ghost.take(key(*block))).count()
    }

    #[test]
    fn the_latest_blocks_are_remembered_and_older_ones_are_not() {
        let mut ghost = Ghost::new(10_000);
        (0..50_000).for_each(|block| ghost.insert(key(block)));
        let latest = known(&mut ghost, 41_000..50_000);
        assert!(latest > 8_500, "{latest} of 9,000");
        let before = known(&mut ghost, 30_000..38_000);
        assert!(before < 80, "{before} of 8,000");
        let never = known(&mut ghost, 100_000..200_000);
        assert!(never < 600, "{never} of 100,000 were confused");
    }

    #[test]
    fn asking_takes_the_block_out() {
        let mut ghost = Ghost::new(100);
        ghost.insert(key(7));
        assert!(ghost.take(key(7)));
        assert!(!ghost.take(key(7)));
        ghost.insert(key(7));
        ghost.insert(key(7));
        assert!(ghost.take(key(7)));
        assert!(!ghost.take(key(7)), "it was there once");
    }

    #[test]
    fn blocks_of_two_volumes_are_two() {
        let mut ghost = Ghost::new(1_000);
        (0..500).for_each(|block| ghost.insert(BlockKey { volume: 1, block }));
        let confused = known(&mut ghost, 0..500);
        assert!(confused < 10, "{confused}");
    }

    #[test]
    fn no_entry_outlives_a_round_of_the_clock() {
        let mut ghost = Ghost::new(1_000);
        // The time of each entry in insertions, by place; the ages that it shows are true ones.
        let mut entered = std::collections::BTreeMap::new();
        for block in 0..20_000 {
            ghost.insert(key(block));
            let (bucket, tag) = ghost.place(key(block));
            entered.insert((bucket, tag), ghost.now());
            if !block.is_multiple_of(97) {
                continue;
            }
            for (number, bucket) in ghost.buckets.iter().enumerate() {
                for entry in bucket.iter().filter(|entry| **entry != EMPTY) {
                    let age = ghost.now() - entered[&(number, entry.tag())];
                    assert_eq!(entry.age(ghost.now()), age);
                }
            }
        }
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut ghost = Ghost::new(0);
        ghost.insert(key(1));
        assert!(!ghost.take(key(1)));
        assert_eq!(ghost.memory_bytes(), 0);
    }
}
