//! Caches of given sizes under the default policy, each simulated by a smaller one on a sample.
//!
//! The miniature of a cache of `n` blocks at rate `R` has `n * R` blocks and sees the sampled
//! blocks only. A miss of the sample stands for `1 / R` misses, and what is not a miss is a hit:
//! that is the correction of SHARDS (`SHARDS_adj`), since a sample that caught more or fewer of the
//! busy blocks than it should differs in its hits and not in its misses.

use forebay_engine::policy::{BlockKey, Clock2q};

use super::{Access, Accesses, Discarded, Rate, SizeLadder, Step};
use crate::replay::{Options, Queues};
use crate::trace::{Operation, Request};

/// A size to simulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miniature {
    /// Blocks of the cache, at least 1.
    pub cache_blocks: u32,
    /// Part of the blocks that are simulated.
    pub rate: Rate,
}

impl Miniature {
    /// Blocks of the miniature of a large cache. Chosen: on the traces of the tests the error is
    /// then below .01 (`tests/curves.rs`), and all sizes together take some tens of MiB.
    pub const BLOCKS: u32 = 16_384;

    /// A size at a rate that leaves its miniature [`Miniature::BLOCKS`], or all of its own if it
    /// has fewer.
    pub fn of(cache_blocks: u32) -> Miniature {
        let rate = Rate::part_of(Miniature::BLOCKS.into(), cache_blocks.into());
        Miniature { cache_blocks, rate }
    }

    /// Blocks of the small cache, at least 1.
    fn simulated_blocks(&self) -> u32 {
        let blocks = (f64::from(self.cache_blocks) * self.rate.value()).round();
        (blocks as u32).max(1)
    }
}

/// What was accessed, counted in full.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Blocks of reads.
    pub read_blocks: u64,
    /// Blocks of writes.
    pub write_blocks: u64,
    /// Reads.
    pub read_requests: u64,
    /// Reads that do not continue a stream.
    pub jumping_read_requests: u64,
    /// Writes.
    pub write_requests: u64,
    /// Writes that do not continue a stream.
    pub jumping_write_requests: u64,
}

impl Totals {
    /// Blocks of reads and writes.
    pub fn blocks(&self) -> u64 {
        self.read_blocks + self.write_blocks
    }

    /// Counts a request of so many blocks.
    pub fn add(&mut self, operation: Operation, step: Step, block_count: u64) {
        let is_jump = u64::from(step == Step::Jump);
        if operation == Operation::Write {
            self.write_blocks += block_count;
            self.write_requests += 1;
            self.jumping_write_requests += is_jump;
        } else {
            self.read_blocks += block_count;
            self.read_requests += 1;
            self.jumping_read_requests += is_jump;
        }
    }
}

/// What a cache of one size misses, estimated for the whole trace.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct MissCounts {
    /// Blocks of the cache.
    pub cache_blocks: u32,
    /// Part of the blocks that were simulated.
    pub rate: f64,
    /// Blocks of reads that are not cached.
    pub read_blocks: f64,
    /// Of these, the blocks that are not promoted either: long streams past a full cache.
    pub bypassed_blocks: f64,
    /// Reads that are not cached; one of which half the blocks are counts half.
    pub read_requests: f64,
    /// Of these, the reads that do not continue a stream: what a disk has to seek for.
    pub jumping_read_requests: f64,
    /// Blocks of writes that are not cached.
    pub write_blocks: f64,
}

impl MissCounts {
    /// Part of the blocks of reads and writes that are cached; 0 of none.
    pub fn hit_ratio_blocks(&self, totals: &Totals) -> f64 {
        hit_ratio(self.read_blocks + self.write_blocks, totals.blocks())
    }

    /// Part of the blocks of reads that are cached; 0 of none.
    pub fn hit_ratio_reads(&self, totals: &Totals) -> f64 {
        hit_ratio(self.read_blocks, totals.read_blocks)
    }

    fn add(&mut self, access: &Access) {
        if access.operation == Operation::Write {
            self.write_blocks += 1.0;
            return;
        }
        self.read_blocks += 1.0;
        self.read_requests += access.request_part;
        if access.step == Step::Jump {
            self.jumping_read_requests += access.request_part;
        }
    }

    /// What a sample stands for; never more than there was.
    fn scaled(&self, totals: &Totals) -> MissCounts {
        let of = |count: f64, whole: u64| (count / self.rate).min(whole as f64);
        MissCounts {
            read_blocks: of(self.read_blocks, totals.read_blocks),
            bypassed_blocks: of(self.bypassed_blocks, totals.read_blocks),
            read_requests: of(self.read_requests, totals.read_requests),
            jumping_read_requests: of(self.jumping_read_requests, totals.jumping_read_requests),
            write_blocks: of(self.write_blocks, totals.write_blocks),
            ..*self
        }
    }
}

fn hit_ratio(misses: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (1.0 - misses / whole as f64).clamp(0.0, 1.0) }
}

struct Cache {
    rate: Rate,
    queues: Queues<BlockKey, Clock2q>,
    misses: MissCounts,
}

impl Cache {
    fn new(size: &Miniature) -> Cache {
        assert!(size.cache_blocks > 0);
        let blocks = size.simulated_blocks();
        let policy = Box::new(Clock2q::new(blocks.into()));
        let misses = MissCounts {
            cache_blocks: size.cache_blocks,
            rate: size.rate.value(),
            ..MissCounts::default()
        };
        Cache { rate: size.rate, queues: Queues::new(policy, blocks), misses }
    }

    fn access(&mut self, access: &Access) {
        let is_long = access.step == Step::LongStream && access.operation == Operation::Read;
        if is_long && self.queues.is_full() && !self.queues.contains(access.key) {
            self.misses.bypassed_blocks += 1.0;
            self.misses.add(access);
        } else if !self.queues.access(access.key) {
            self.misses.add(access);
        }
    }
}

/// Caches of several sizes beside one another.
pub struct MiniatureCurve {
    caches: Vec<Cache>,
    /// Highest rate of all: a block beyond it is in no sample.
    rate_max: Rate,
    accesses: Accesses,
    totals: Totals,
}

impl MiniatureCurve {
    /// Empty caches of these sizes.
    ///
    /// # Panics
    ///
    /// If a cache or a block has no size.
    pub fn new(sizes: &[Miniature], options: &Options) -> MiniatureCurve {
        let mut curve = MiniatureCurve {
            caches: sizes.iter().map(Cache::new).collect(),
            rate_max: Rate::ALL,
            accesses: Accesses::new(options),
            totals: Totals::default(),
        };
        curve.note_rates();
        curve
    }

    /// Empty caches of all sizes that may matter; see [`SizeLadder`].
    pub fn of_all_sizes(options: &Options) -> MiniatureCurve {
        let sizes: Vec<Miniature> = SizeLadder::ALL.sizes().map(Miniature::of).collect();
        MiniatureCurve::new(&sizes, options)
    }

    fn note_rates(&mut self) {
        self.rate_max = self.caches.iter().map(|cache| cache.rate).max().unwrap_or(Rate::ALL);
    }

    /// The next request of the trace.
    pub fn request(&mut self, request: &Request) {
        if request.operation == Operation::Discard {
            self.accesses.discarded(request).for_each(|block| self.discard(&block));
            return;
        }
        let step = self.accesses.step(request);
        let blocks = self.accesses.of(request, step);
        let mut block_count = 0;
        for access in blocks {
            self.access(&access);
            block_count += 1;
        }
        self.totals.add(request.operation, step, block_count);
    }

    /// A block is used. Does not count it in the totals.
    pub fn access(&mut self, access: &Access) {
        if !self.rate_max.holds(access.hash) {
            return;
        }
        let sampled = self.caches.iter_mut().filter(|cache| cache.rate.holds(access.hash));
        sampled.for_each(|cache| cache.access(access));
    }

    /// A block is given up.
    pub fn discard(&mut self, block: &Discarded) {
        if !self.rate_max.holds(block.hash) {
            return;
        }
        let sampled = self.caches.iter_mut().filter(|cache| cache.rate.holds(block.hash));
        sampled.for_each(|cache| cache.queues.invalidate(block.key));
    }

    /// Gives up the sizes that do not matter for so many different blocks any more.
    pub fn narrow(&mut self, distinct_blocks: f64) {
        let least = SizeLadder::for_blocks(distinct_blocks).first_blocks;
        self.caches.retain(|cache| cache.misses.cache_blocks >= least);
        self.note_rates();
    }

    /// What was accessed with [`MiniatureCurve::request`].
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The sizes that are left, in the order in which they were given.
    pub fn misses(&self, totals: &Totals) -> Vec<MissCounts> {
        self.caches.iter().map(|cache| cache.misses.scaled(totals)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::{Case, PolicyName, Replay};

    const OPTIONS: Options = Options { block_bytes: 4096, sequential_cutoff_bytes: 1 << 20 };

    fn request(operation: Operation, block: u64, block_count: u64) -> Request {
        let (offset_bytes, length_bytes) = (block * 4096, block_count * 4096);
        Request { time_ns: None, device: 0, operation, offset_bytes, length_bytes }
    }

    /// Requests of all kinds, of several blocks, and streams beyond the cut-off.
    fn mixture() -> Vec<Request> {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut requests = Vec::new();
        for round in 0..60_000 {
            // Low numbers are busier.
            let block = random(40_000) * random(40_000) / 40_000;
            let operation = match random(20) {
                0 => Operation::Discard,
                1..=6 => Operation::Write,
                _ => Operation::Read,
            };
            requests.push(request(operation, block, 1 + random(4)));
            if round % 1_000 == 0 {
                let start = 1_000_000 + random(40_000);
                let part = |n: u64| request(Operation::Read, start + n * 64, 64);
                requests.extend((0..20).map(part));
            }
        }
        requests
    }

    fn curve(sizes: &[Miniature], requests: &[Request]) -> MiniatureCurve {
        let mut curve = MiniatureCurve::new(sizes, &OPTIONS);
        requests.iter().for_each(|request| curve.request(request));
        curve
    }

    #[test]
    fn at_full_rate_it_is_the_replay() {
        let requests = mixture();
        let sizes = [100, 3_000, 20_000];
        let cases = sizes.map(|cache_blocks| Case { policy: PolicyName::Clock2q, cache_blocks });
        let mut replay = Replay::new(&cases, &OPTIONS);
        requests.iter().for_each(|request| replay.request(request));
        let (_, tallies) = replay.finish();
        let sizes = sizes.map(|cache_blocks| Miniature { cache_blocks, rate: Rate::ALL });
        let curve = curve(&sizes, &requests);
        for (misses, tally) in curve.misses(curve.totals()).iter().zip(tallies) {
            assert_eq!(curve.totals().blocks(), tally.block_count);
            let missed = misses.read_blocks + misses.write_blocks;
            assert_eq!(missed as u64, tally.block_count - tally.block_hit_count);
            assert_eq!(misses.bypassed_blocks as u64 * 4096, tally.bypassed_bytes);
            let written = misses.read_blocks - misses.bypassed_blocks;
            let written = (written as u64 + curve.totals().write_blocks) * 4096;
            assert_eq!(written, tally.cache_written_bytes);
            assert!(misses.jumping_read_requests < misses.read_requests);
        }
    }

    #[test]
    fn a_sample_comes_near_it() {
        let requests = mixture();
        let whole = Miniature { cache_blocks: 8_000, rate: Rate::ALL };
        let part = Miniature { cache_blocks: 8_000, rate: Rate::one_in(8) };
        let curve = curve(&[whole, part], &requests);
        let misses = curve.misses(curve.totals());
        let ratio = |of: fn(&MissCounts) -> f64| of(&misses[1]) / of(&misses[0]);
        for ratio in [
            ratio(|misses| misses.read_blocks),
            ratio(|misses| misses.read_requests),
            ratio(|misses| misses.jumping_read_requests),
            ratio(|misses| misses.write_blocks),
        ] {
            assert!((ratio - 1.0).abs() < 0.08, "{misses:#?}");
        }
    }

    #[test]
    fn sizes_too_small_to_matter_are_given_up() {
        let mut curve = MiniatureCurve::of_all_sizes(&OPTIONS);
        let count = curve.misses(&Totals::default()).len();
        curve.narrow(10.0);
        assert_eq!(curve.misses(&Totals::default()).len(), count);
        curve.narrow(1e6);
        let left = curve.misses(&Totals::default());
        assert!(left[0].cache_blocks > 1_000 && left[0].cache_blocks < 8_000, "{left:?}");
    }
}
