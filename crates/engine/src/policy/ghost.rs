//! Blocks that were demoted a short while ago, as fingerprints.
//!
//! A table of buckets, each with room for sixteen entries: a tag of 16 bits, and the time of the
//! entry in 4, counted in insertions and coarsely. Two blocks are confused once in some 300
//! questions or less, which costs a copy that was not worth it and nothing else. An entry lives for
//! as many further insertions as the ghost has entries, a sixteenth more or less; then it counts
//! as gone. Buckets are swept in turn, so that an old entry is gone before its time comes round
//! again.
//!
//! Blocks that go together are remembered together: of a run that covers at least half of a region
//! of 64 KiB the region is one entry, which lives no longer for that. So extents of 64 KiB take a
//! sixteenth of what as many single blocks take.
//!
//! The table is small at first and grows with what is remembered, by linear hashing (Litwin, VLDB
//! 1980): one bucket is split at a time, so there is never a long pause, and a cache that demotes
//! nothing spends next to nothing. It grows while more than one entry of 32 is lost early, in a
//! bucket that is full, and doubles four times at most, less often where it is small, so that
//! full-grown all buckets have an equal share.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use super::BlockKey;

/// Entries of a bucket: 40 bytes with their times.
const WAYS: usize = 16;
/// Entries of a bucket that the size of the full-grown table counts with: full buckets lose their
/// oldest entry early, at this load some of a hundred, late in their life.
const WAYS_USED: u64 = 12;
/// Buckets of the smallest table, 5 KiB. In a small cache a block that is confused takes a large
/// share; there so much room is spent that it happens once in some hundred thousand questions.
const BUCKETS_MIN: usize = 128;
/// Bits of the tag that splits use up: the table doubles as often.
const GROWTH_BITS: u32 = 4;
/// Buckets that are allocated at a time, 40 KiB: nothing is moved when the table grows.
const CHUNK_BUCKETS: usize = 1_024;
const TIME_BITS: u32 = 4;
/// Steps of the clock that an entry lives at least, and one less than it lives at most; the clock
/// has about twice as many.
const STEPS_OF_LIFE: u64 = 8;
/// All buckets are swept within 2/3 of a life, so that no entry is older than 15 steps.
const SWEEPS_PER_LIFE: (u64, u64) = (3, 2);
/// Steps of the clock before which an entry that is overwritten counts as lost.
const STEPS_TO_LOSE: u64 = 6;
/// Entries of which one may be lost early without making the table grow.
const ENTRIES_PER_LOSS: u64 = 32;
/// What `losses` comes to at most. Five in a row, beyond that share, make the table grow.
const LOSSES_MAX: u64 = 5 * ENTRIES_PER_LOSS;
/// Blocks of a region, as a power of two.
const REGION_SHIFT: u32 = 4;
const REGION_BLOCKS: u64 = 1 << REGION_SHIFT;
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

/// A run, cut at the borders of regions: where each part begins, and its blocks.
fn parts(key: BlockKey, block_count: u32) -> impl Iterator<Item = (BlockKey, u64)> {
    let end = key.block + u64::from(block_count);
    let regions = key.block >> REGION_SHIFT..end.div_ceil(REGION_BLOCKS);
    regions.map(move |region| {
        let first = key.block.max(region << REGION_SHIFT);
        let last = end.min((region + 1) << REGION_SHIFT);
        (BlockKey { block: first, ..key }, last - first)
    })
}

/// Whether so many blocks of a region are most of it.
fn is_most(blocks: u64) -> bool {
    2 * blocks >= REGION_BLOCKS
}

/// What of a run a hash is asked for.
enum Blocks {
    FewOfRegion,
    MostOfRegion,
    One,
}

/// Blocks of a run that are known: with their region, or else each for itself.
fn count_known(
    key: BlockKey,
    block_count: u32,
    mut is_known: impl FnMut(u64, Blocks) -> bool,
) -> u32 {
    let mut known = 0;
    for (first, blocks) in parts(key, block_count) {
        let of_region = if is_most(blocks) { Blocks::MostOfRegion } else { Blocks::FewOfRegion };
        if is_known(first.region_hash(REGION_SHIFT), of_region) {
            known += blocks;
            continue;
        }
        for block in first.block..first.block + blocks {
            known += u64::from(is_known(BlockKey { block, ..first }.hash(), Blocks::One));
        }
    }
    u32::try_from(known).expect("no more than were asked for")
}

/// Recently demoted blocks.
pub(super) struct Ghost {
    /// Buckets by number, [`CHUNK_BUCKETS`] to a chunk but for the last.
    chunks: Vec<Box<[Bucket]>>,
    bucket_count: usize,
    /// Buckets at first; a number modulo this says where a block was then.
    first_buckets: usize,
    /// Buckets at last: those at first, doubled up to [`GROWTH_BITS`] times.
    buckets_max: usize,
    /// Buckets when the table had last doubled.
    doubled_buckets: usize,
    /// Entries it remembers; none if 0.
    entries_max: u64,
    /// Time in steps of the clock, and the blocks that were inserted since the last one. A life is
    /// 8.5 steps on an average.
    now: u64,
    blocks_of_step: u64,
    /// Parts of a bucket that are to be swept.
    sweep_due: u64,
    /// Entries that were lost to others in full buckets, times [`ENTRIES_PER_LOSS`], less the
    /// entries that were made meanwhile without a loss.
    losses: u64,
    swept: usize,
}

impl Ghost {
    /// For so many blocks.
    pub(super) fn new(entries_max: u64) -> Ghost {
        let sixteenth = entries_max.div_ceil(WAYS_USED << GROWTH_BITS);
        let sixteenth = usize::try_from(sixteenth).expect("fits memory");
        let buckets_max = match sixteenth << GROWTH_BITS {
            0 => 0,
            buckets => buckets.max(BUCKETS_MIN),
        };
        let growth_bits = (0..=GROWTH_BITS).rev().find(|bits| buckets_max >> bits >= BUCKETS_MIN);
        let first_buckets = buckets_max >> growth_bits.unwrap_or(0);
        let mut ghost = Ghost {
            chunks: Vec::new(),
            bucket_count: first_buckets,
            first_buckets,
            buckets_max,
            doubled_buckets: first_buckets,
            entries_max,
            now: 0,
            blocks_of_step: 0,
            sweep_due: 0,
            losses: 0,
            swept: 0,
        };
        ghost.provide();
        ghost
    }

    /// Remembers the blocks of a run from `key` on.
    pub(super) fn insert_run(&mut self, key: BlockKey, block_count: u32) {
        for (first, blocks) in parts(key, block_count) {
            if is_most(blocks) {
                self.insert(first.region_hash(REGION_SHIFT), blocks);
                continue;
            }
            for block in first.block..first.block + blocks {
                self.insert(BlockKey { block, ..first }.hash(), 1);
            }
        }
    }

    /// How many blocks of a run are remembered; from now on they are not. A part of a region that
    /// is remembered as a whole leaves it so, if it is the smaller part: the rest may come, too.
    pub(super) fn take_run(&mut self, key: BlockKey, block_count: u32) -> u32 {
        count_known(key, block_count, |hash, blocks| match blocks {
            Blocks::FewOfRegion => self.contains(hash),
            Blocks::MostOfRegion | Blocks::One => self.take(hash),
        })
    }

    /// How many blocks of a run are remembered.
    pub(super) fn known_of_run(&self, key: BlockKey, block_count: u32) -> u32 {
        count_known(key, block_count, |hash, _| self.contains(hash))
    }

    /// Remembers what has this hash: so many blocks.
    fn insert(&mut self, hash: u64, blocks: u64) {
        if self.entries_max == 0 {
            return;
        }
        self.pass_time(blocks);
        let now = self.now;
        let Place { bucket, tag } = self.place(hash);
        let bucket = self.bucket_mut(bucket);
        let way = bucket.way_of(tag).unwrap_or_else(|| bucket.way_to_fill(now));
        let known = bucket.tags[way];
        let is_lost = known != EMPTY && known != tag && bucket.age(way, now) < STEPS_TO_LOSE;
        bucket.set(way, tag, now);
        self.losses = match is_lost {
            true => (self.losses + ENTRIES_PER_LOSS).min(LOSSES_MAX),
            false => self.losses.saturating_sub(1),
        };
        let may_grow = self.bucket_count < self.buckets_max;
        if may_grow && self.losses > LOSSES_MAX - ENTRIES_PER_LOSS {
            self.split();
        }
    }

    fn contains(&self, hash: u64) -> bool {
        if self.entries_max == 0 {
            return false;
        }
        let Place { bucket, tag } = self.place(hash);
        let bucket = &self.chunks[bucket / CHUNK_BUCKETS][bucket % CHUNK_BUCKETS];
        bucket.way_of(tag).is_some_and(|way| bucket.is_alive(way, self.now))
    }

    /// Whether what has this hash is remembered; from now on it is not.
    fn take(&mut self, hash: u64) -> bool {
        if self.entries_max == 0 {
            return false;
        }
        let now = self.now;
        let Place { bucket, tag } = self.place(hash);
        let bucket = self.bucket_mut(bucket);
        let Some(way) = bucket.way_of(tag) else { return false };
        bucket.tags[way] = EMPTY;
        bucket.is_alive(way, now)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| size_of_val(&**chunk)).sum()
    }

    /// As many entries more or less as the cache became larger or smaller; at most what it was made
    /// for.
    pub(super) fn resize(&mut self, entries_max: u64) {
        self.entries_max = entries_max;
    }

    /// The clock goes by what is inserted. Before an entry would look young again it is swept.
    fn pass_time(&mut self, blocks: u64) {
        self.blocks_of_step += blocks;
        let step_blocks = (self.entries_max * 2).div_ceil(2 * STEPS_OF_LIFE + 1);
        self.now += self.blocks_of_step / step_blocks;
        self.blocks_of_step %= step_blocks;
        let (sweeps, lives) = SWEEPS_PER_LIFE;
        self.sweep_due += sweeps * blocks * self.bucket_count as u64;
        let per_bucket = lives * self.entries_max;
        for _ in 0..(self.sweep_due / per_bucket).min(self.bucket_count as u64) {
            self.sweep();
        }
        self.sweep_due %= per_bucket;
    }

    fn place(&self, hash: u64) -> Place {
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
            let length = (self.buckets_max - self.chunks.len() * CHUNK_BUCKETS).min(CHUNK_BUCKETS);
            self.chunks.push(vec![Bucket::NEW; length].into_boxed_slice());
        }
    }

    /// Empties what has outlived its time in the next bucket.
    fn sweep(&mut self) {
        let now = self.now;
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

    fn take(ghost: &mut Ghost, key: BlockKey) -> bool {
        ghost.take_run(key, 1) == 1
    }

    fn known(ghost: &mut Ghost, blocks: core::ops::Range<u64>) -> usize {
        blocks.filter(|block| take(ghost, key(*block))).count()
    }

    #[test]
    fn the_latest_blocks_are_remembered_and_older_ones_are_not() {
        let mut ghost = Ghost::new(10_000);
        (0..50_000).for_each(|block| ghost.insert_run(key(block), 1));
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
        ghost.insert_run(key(7), 1);
        assert!(take(&mut ghost, key(7)));
        assert!(!take(&mut ghost, key(7)));
        ghost.insert_run(key(7), 1);
        ghost.insert_run(key(7), 1);
        assert!(take(&mut ghost, key(7)));
        assert!(!take(&mut ghost, key(7)), "it was there once");
    }

    #[test]
    fn blocks_of_two_volumes_are_two() {
        let mut ghost = Ghost::new(1_000);
        (0..500).for_each(|block| ghost.insert_run(BlockKey { volume: 1, block }, 1));
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
            ghost.insert_run(key(block), 1);
            let Place { bucket, tag } = ghost.place(key(block).hash());
            entered.insert((bucket % ghost.first_buckets, tag), ghost.now);
            if !block.is_multiple_of(97) {
                continue;
            }
            let now = ghost.now;
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
        (0..30_000).for_each(|block| ghost.insert_run(key(block), 1));
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
            ghost.insert_run(key(block), 1);
            assert!(ghost.bucket_count <= before + 1);
            lost += usize::from(block % 3 == 2 && !take(&mut ghost, key(block / 3)));
        }
        assert!(lost < 2_000, "{lost} of 20,000");
        assert!(ghost.bucket_count > 2 * first, "{} of {first}", ghost.bucket_count);
        assert!(ghost.bucket_count < most * 3 / 4, "40,000 of 100,000 are left");
        (0..400_000).for_each(|block| ghost.insert_run(key(block), 1));
        assert_eq!(ghost.bucket_count, most);
    }

    #[test]
    fn memory_is_what_the_entries_need() {
        let mut ghost = Ghost::new(1 << 20);
        let at_first = ghost.memory_bytes();
        assert!(at_first < (4 << 20) / 16 + (64 << 10), "{at_first}");
        (0..4 << 20).for_each(|block| ghost.insert_run(key(block), 1));
        let per_entry = ghost.memory_bytes() as f64 / f64::from(1 << 20);
        assert!(per_entry < 3.4, "{per_entry} bytes an entry");
    }

    #[test]
    fn a_small_ghost_confuses_hardly_any_block_and_takes_little_memory() {
        let mut ghost = Ghost::new(40);
        assert!(ghost.memory_bytes() <= 5 << 10);
        let confused: usize = (0..200_000)
            .filter(|block| {
                ghost.insert_run(key(*block), 1);
                take(&mut ghost, key(1_000_000 + block))
            })
            .count();
        assert!(confused < 10, "{confused} of 200,000");
        assert!(ghost.memory_bytes() <= 5 << 10, "it does not grow");
    }

    #[test]
    fn a_smaller_cache_has_a_shorter_memory() {
        let mut ghost = Ghost::new(10_000);
        ghost.resize(2_000);
        (0..50_000).for_each(|block| ghost.insert_run(key(block), 1));
        let latest = known(&mut ghost, 48_200..50_000);
        assert!(latest > 1_700, "{latest} of 1,800");
        let before = known(&mut ghost, 40_000..47_000);
        assert!(before < 80, "{before} of 7,000");
    }

    #[test]
    fn what_goes_together_comes_back_together() {
        let mut ghost = Ghost::new(10_000);
        ghost.insert_run(key(16), 16);
        assert_eq!(ghost.take_run(key(16), 16), 16);
        assert_eq!(ghost.take_run(key(16), 16), 0, "it was remembered once");
        ghost.insert_run(key(40), 40);
        assert_eq!(ghost.take_run(key(70), 4), 4, "a part of a region");
        assert_eq!(ghost.take_run(key(64), 4), 4, "which is remembered still");
        assert_eq!(ghost.take_run(key(0), 128), 48, "whole regions");
        assert_eq!(ghost.take_run(key(0), 128), 0);
    }

    #[test]
    fn less_than_half_of_a_region_is_single_blocks() {
        let mut ghost = Ghost::new(10_000);
        ghost.insert_run(key(10), 7);
        assert_eq!(ghost.take_run(key(0), 10), 0);
        assert_eq!(ghost.take_run(key(0), 32), 7);
        assert_eq!(ghost.take_run(key(10), 7), 0);
    }

    #[test]
    fn a_region_lives_no_longer_than_its_blocks_and_takes_the_memory_of_one() {
        let mut ghost = Ghost::new(1 << 20);
        let empty_bytes = ghost.memory_bytes();
        (0..1 << 17).for_each(|region| ghost.insert_run(key(region * 16), 16));
        // The last 2^20 of the blocks are 2^16 regions; a sixteenth more or less.
        let remembered = |ghost: &mut Ghost, regions: core::ops::Range<u64>| {
            regions.filter(|region| ghost.take_run(key(region * 16), 16) == 16).count()
        };
        let old = remembered(&mut ghost, 0..50_000);
        assert!(old < 1_000, "{old} of 50,000");
        let young = remembered(&mut ghost, (1 << 17) - 60_000..1 << 17);
        assert!(young > 58_000, "{young} of 60,000");
        let grown = ghost.memory_bytes() - empty_bytes;
        assert!(grown < 64 << 10, "{grown} bytes more than at first");
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut ghost = Ghost::new(0);
        ghost.insert_run(key(1), 1);
        assert!(!take(&mut ghost, key(1)));
        assert_eq!(ghost.memory_bytes(), 0);
    }
}
