//! Blocks that were demoted a short while ago, as fingerprints.
//!
//! A table of buckets, each with room for sixteen entries: a tag of 16 bits, and the time of the
//! entry in 4, counted in insertions and coarsely. Two blocks are confused once in some 300
//! questions or less, which costs a copy that was not worth it and nothing else. An entry lives for
//! as many further insertions as the ghost has entries, a sixteenth more or less; then it counts
//! as gone. Buckets are swept in turn, so that an old entry is gone before its time comes round
//! again.
//!
//! The table is small at first and grows with what is remembered, by linear hashing (Litwin, VLDB
//! 1980): one bucket is split at a time, so there is never a long pause, and a cache that demotes
//! nothing spends next to nothing. It grows while buckets are nearly full, and doubles four times,
//! so that full-grown all buckets have an equal share.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::BlockKey;

/// Entries of a bucket: 40 bytes with their times.
const WAYS: usize = 16;
/// Entries of a bucket that the size of the full-grown table counts with: full buckets lose their
/// oldest entry early, at this load one of thirty.
const WAYS_USED: u64 = 13;
/// Living entries of the bucket that an entry comes to, beyond which a bucket is split.
const WAYS_BEFORE_SPLIT: usize = 14;
/// Bits of the tag that splits use up: the table doubles as often.
const GROWTH_BITS: u32 = 4;
/// Buckets that are allocated at a time, 40 KiB: nothing is moved when the table grows.
const CHUNK_BUCKETS: usize = 1_024;
const TIME_BITS: u32 = 4;
/// Steps of the clock that an entry lives at least, and one less than it lives at most; the clock
/// has about twice as many.
const STEPS_OF_LIFE: u64 = 8;
/// Insertions after which the next bucket is swept: all of them within 8/13 of a life, so that no
/// entry is older than 15 steps.
const INSERTIONS_PER_SWEEP: u64 = 8;
/// No entry: tags are at least 1.
const EMPTY: u16 = 0;

#[derive(Clone, Copy)]
struct Bucket {
    tags: [u16; WAYS],
    /// Two to a byte, the even way in the low bits.
    times: [u8; WAYS / 2],
}

impl Bucket {
    const NEW: Bucket = Bucket { tags: [EMPTY; WAYS], times: [0; WAYS / 2] };

    fn way_of(&self, tag: u16) -> Option<usize> {
        self.tags.iter().position(|known| *known == tag)
    }

    /// Steps since the entry was made.
    fn age(&self, way: usize, now: u64) -> u64 {
        let time = self.times[way / 2] >> Self::shift(way);
        now.wrapping_sub(time.into()) & ((1 << TIME_BITS) - 1)
    }

    fn is_alive(&self, way: usize, now: u64) -> bool {
        self.age(way, now) <= STEPS_OF_LIFE
    }

    fn living(&self, now: u64) -> usize {
        (0..WAYS).filter(|way| self.tags[*way] != EMPTY && self.is_alive(*way, now)).count()
    }

    fn set(&mut self, way: usize, tag: u16, now: u64) {
        const TIME: u8 = (1 << TIME_BITS) - 1;
        #[expect(clippy::cast_possible_truncation, reason = "the clock goes round")]
        let time = now as u8 & TIME;
        let both = &mut self.times[way / 2];
        *both = *both & !(TIME << Self::shift(way)) | time << Self::shift(way);
        self.tags[way] = tag;
    }

    fn shift(way: usize) -> u32 {
        if way.is_multiple_of(2) { 0 } else { TIME_BITS }
    }

    /// The way to write to: an empty one, or that of the oldest entry.
    fn way_to_fill(&self, now: u64) -> usize {
        let age = |way: &usize| match self.tags[*way] {
            EMPTY => u64::MAX,
            _ => self.age(*way, now),
        };
        (0..WAYS).max_by_key(age).expect("there are some")
    }

    /// Empties what has outlived its time.
    fn sweep(&mut self, now: u64) {
        for way in 0..WAYS {
            if !self.is_alive(way, now) {
                self.tags[way] = EMPTY;
            }
        }
    }
}

/// Where a block belongs.
#[derive(Clone, Copy)]
struct Place {
    bucket: usize,
    tag: u16,
}

/// Recently demoted blocks.
pub(super) struct Ghost {
    /// Buckets by number, [`CHUNK_BUCKETS`] to a chunk but for the last.
    chunks: Vec<Box<[Bucket]>>,
    bucket_count: usize,
    /// Buckets at first; a number modulo this says where a block was then.
    first_buckets: usize,
    /// Buckets when the table had last doubled.
    doubled_buckets: usize,
    /// Entries it remembers; none if 0.
    entries_max: u64,
    insertions: u64,
    swept: usize,
}

impl Ghost {
    /// For so many blocks.
    pub(super) fn new(entries_max: u64) -> Ghost {
        let first_buckets = entries_max.div_ceil(WAYS_USED << GROWTH_BITS);
        let first_buckets = usize::try_from(first_buckets).expect("fits memory");
        let mut ghost = Ghost {
            chunks: Vec::new(),
            bucket_count: first_buckets,
            first_buckets,
            doubled_buckets: first_buckets,
            entries_max,
            insertions: 0,
            swept: 0,
        };
        ghost.provide();
        ghost
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
        let Place { bucket, tag } = self.place(key);
        let bucket = self.bucket_mut(bucket);
        let way = bucket.way_of(tag).unwrap_or_else(|| bucket.way_to_fill(now));
        bucket.set(way, tag, now);
        let is_crowded = bucket.living(now) > WAYS_BEFORE_SPLIT;
        if is_crowded && self.bucket_count < self.first_buckets << GROWTH_BITS {
            self.split();
        }
    }

    /// Whether the block is remembered; from now on it is not.
    pub(super) fn take(&mut self, key: BlockKey) -> bool {
        if self.entries_max == 0 {
            return false;
        }
        let now = self.now();
        let Place { bucket, tag } = self.place(key);
        let bucket = self.bucket_mut(bucket);
        let Some(way) = bucket.way_of(tag) else { return false };
        bucket.tags[way] = EMPTY;
        bucket.is_alive(way, now)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| size_of_val(&**chunk)).sum()
    }

    /// Time in steps of the clock. A life is 8.5 of them on an average.
    fn now(&self) -> u64 {
        self.insertions / (self.entries_max * 2).div_ceil(2 * STEPS_OF_LIFE + 1)
    }

    fn place(&self, key: BlockKey) -> Place {
        let hash = key.hash();
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are the tag")]
        let tag = (hash as u16).max(1);
        let first = ((hash >> 32) * self.first_buckets as u64) >> 32;
        let first = usize::try_from(first).expect("below the number of buckets");
        Place { bucket: self.bucket_of(first, tag), tag }
    }

    /// The bucket, in the table as it is, of a tag that was in bucket `first` at first.
    fn bucket_of(&self, first: usize, tag: u16) -> usize {
        let among = |buckets: usize| {
            let splits = buckets / self.first_buckets;
            first + self.first_buckets * (usize::from(tag) & (splits - 1))
        };
        let bucket = among(2 * self.doubled_buckets);
        if bucket < self.bucket_count { bucket } else { among(self.doubled_buckets) }
    }

    fn bucket_mut(&mut self, number: usize) -> &mut Bucket {
        &mut self.chunks[number / CHUNK_BUCKETS][number % CHUNK_BUCKETS]
    }

    /// Makes one bucket more, and moves to it what belongs there from the one that had it.
    fn split(&mut self) {
        let new = self.bucket_count;
        let old = new - self.doubled_buckets;
        self.bucket_count += 1;
        self.provide();
        let from = *self.bucket_mut(old);
        for (way, tag) in from.tags.into_iter().enumerate() {
            let first = old % self.first_buckets;
            if tag != EMPTY && self.bucket_of(first, tag) == new {
                let to = self.bucket_mut(new);
                (to.tags[way], to.times) = (tag, from.times);
                self.bucket_mut(old).tags[way] = EMPTY;
            }
        }
        if self.bucket_count == 2 * self.doubled_buckets {
            self.doubled_buckets = self.bucket_count;
        }
    }

    /// Allocates what the buckets need: chunks as a whole but in a table that is never so large.
    fn provide(&mut self) {
        while self.chunks.len() * CHUNK_BUCKETS < self.bucket_count {
            let most = self.first_buckets << GROWTH_BITS;
            let length = (most - self.chunks.len() * CHUNK_BUCKETS).min(CHUNK_BUCKETS);
            self.chunks.push(vec![Bucket::NEW; length].into_boxed_slice());
        }
    }

    /// Empties what has outlived its time in the next bucket.
    fn sweep(&mut self) {
        let now = self.now();
        self.bucket_mut(self.swept).sweep(now);
        self.swept = (self.swept + 1) % self.bucket_count;
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
        // The time of each entry in steps, by where it was at first and its tag; the ages that
        // entries show are true ones.
        let mut entered = std::collections::BTreeMap::new();
        for block in 0..20_000 {
            ghost.insert(key(block));
            let Place { bucket, tag } = ghost.place(key(block));
            entered.insert((bucket % ghost.first_buckets, tag), ghost.now());
            if !block.is_multiple_of(97) {
                continue;
            }
            let now = ghost.now();
            for (number, bucket) in ghost.chunks.iter().flatten().enumerate() {
                for way in (0..WAYS).filter(|way| bucket.tags[*way] != EMPTY) {
                    let (first, tag) = (number % ghost.first_buckets, bucket.tags[way]);
                    assert_eq!(bucket.age(way, now), now - entered[&(first, tag)]);
                    assert_eq!(ghost.bucket_of(first, tag), number);
                }
            }
        }
    }

    #[test]
    fn an_entry_lives_for_as_many_insertions_as_there_are_entries() {
        let mut ghost = Ghost::new(10_000);
        (0..30_000).for_each(|block| ghost.insert(key(block)));
        // The step of the clock is 1,177 insertions, a life between 8 and 9 of them.
        let young = known(&mut ghost, 30_000 - 9_400..30_000 - 8_400);
        assert!(young > 850, "{young} of 1,000");
        let old = known(&mut ghost, 30_000 - 11_600..30_000 - 10_600);
        assert!(old < 20, "{old} of 1,000");
    }

    #[test]
    fn the_table_grows_one_bucket_at_a_time_and_forgets_little() {
        let mut ghost = Ghost::new(100_000);
        let (first, most) = (ghost.bucket_count, ghost.first_buckets << GROWTH_BITS);
        let mut lost = 0;
        for block in 0..60_000 {
            let before = ghost.bucket_count;
            ghost.insert(key(block));
            assert!(ghost.bucket_count <= before + 1);
            lost += usize::from(block % 3 == 2 && !ghost.take(key(block / 3)));
        }
        assert!(lost < 2_000, "{lost} of 20,000");
        assert!(ghost.bucket_count > 2 * first, "{} of {first}", ghost.bucket_count);
        assert!(ghost.bucket_count < most * 3 / 4, "40,000 of 100,000 are left");
        (0..400_000).for_each(|block| ghost.insert(key(block)));
        assert_eq!(ghost.bucket_count, most);
    }

    #[test]
    fn memory_is_what_the_entries_need() {
        let mut ghost = Ghost::new(1 << 20);
        let at_first = ghost.memory_bytes();
        assert!(at_first < (4 << 20) / 16 + (64 << 10), "{at_first}");
        (0..4 << 20).for_each(|block| ghost.insert(key(block)));
        let per_entry = ghost.memory_bytes() as f64 / f64::from(1 << 20);
        assert!(per_entry < 3.2, "{per_entry} bytes an entry");
        assert!(Ghost::new(100).memory_bytes() <= 16 * 40);
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut ghost = Ghost::new(0);
        ghost.insert(key(1));
        assert!(!ghost.take(key(1)));
        assert_eq!(ghost.memory_bytes(), 0);
    }
}
