//! Every size of an LRU cache at once: reuse distances of a sample (SHARDS, fixed size).
//!
//! A block is found in an LRU cache if fewer other blocks than it has room for were used since.
//! Distances in the sample are those of the trace times its rate. The rate gives way so that the
//! sample keeps its size; what was counted before counts as much as it did (`SHARDS_s_max`), and
//! the difference between the accesses that were sampled and those that were to be expected is put
//! right at the smallest distance (`SHARDS_adj`).

use super::histogram::Histogram;
use super::stack::{Slot, Stack};
use super::{Access, Accesses, BoundedSample, Discarded, Rate, SAMPLED_BLOCKS_MAX};
use crate::replay::Options;
use crate::trace::{Operation, Request};

/// The curve of an LRU cache that promotes everything.
///
/// A discarded block leaves its place to the deeper ones, as if they had never been demoted; a
/// cache has a free place instead. So after discards the ratios are an upper bound.
pub struct LruCurve {
    /// Where each sampled block is in the order of use; none where it was discarded.
    sample: BoundedSample<Option<Slot>>,
    stack: Stack,
    histogram: Histogram,
    accesses: Accesses,
    access_count: u64,
    /// Sum of the weights of sampled accesses: what the sample takes `access_count` for.
    weighed_count: f64,
}

impl LruCurve {
    /// Nothing was used yet.
    pub fn new(options: &Options) -> LruCurve {
        LruCurve::with_sample(options, SAMPLED_BLOCKS_MAX)
    }

    /// The same with at most so many sampled blocks, at least 1.
    pub fn with_sample(options: &Options, blocks_max: usize) -> LruCurve {
        LruCurve::of_sample(options, BoundedSample::new(blocks_max), blocks_max)
    }

    /// The same at this rate from the beginning; beyond [`SAMPLED_BLOCKS_MAX`] it gives way, too.
    pub fn at_rate(options: &Options, rate: Rate) -> LruCurve {
        let sample = BoundedSample::at_rate(rate, SAMPLED_BLOCKS_MAX);
        LruCurve::of_sample(options, sample, SAMPLED_BLOCKS_MAX)
    }

    fn of_sample(
        options: &Options,
        sample: BoundedSample<Option<Slot>>,
        blocks_max: usize,
    ) -> LruCurve {
        LruCurve {
            sample,
            // One more: a block enters before another one leaves.
            stack: Stack::new(blocks_max + 1),
            histogram: Histogram::default(),
            accesses: Accesses::new(options),
            access_count: 0,
            weighed_count: 0.0,
        }
    }

    /// The next request of the trace.
    pub fn request(&mut self, request: &Request) {
        if request.operation == Operation::Discard {
            self.accesses.discarded(request).for_each(|block| self.discard(&block));
            return;
        }
        let step = self.accesses.step(request);
        self.accesses.of(request, step).for_each(|access| self.access(&access));
    }

    /// A block is used.
    pub fn access(&mut self, access: &Access) {
        self.access_count += 1;
        if !self.sample.rate().holds(access.hash) {
            return;
        }
        if self.stack.is_used_up() {
            let new_slot = self.stack.renumber();
            for slot in self.sample.values_mut().flatten() {
                *slot = new_slot(*slot);
            }
        }
        let rate = self.sample.rate().value();
        self.weighed_count += 1.0 / rate;
        let Some(known) = self.sample.get_mut(access.hash) else {
            let slot = self.stack.push();
            let stack = &mut self.stack;
            self.sample.add(access.hash, Some(slot), |left| {
                left.into_iter().for_each(|slot| stack.remove(slot));
            });
            return;
        };
        if let Some(before) = known.take() {
            let newer_count = self.stack.newer_count(before);
            self.stack.remove(before);
            let distance = (newer_count as f64 / rate).round() as u64 + 1;
            self.histogram.add(distance, 1.0 / rate);
        }
        *known = Some(self.stack.push());
    }

    /// A block is given up: its next use finds nothing.
    pub fn discard(&mut self, block: &Discarded) {
        let slot = self.sample.get_mut(block.hash).and_then(Option::take);
        slot.into_iter().for_each(|slot| self.stack.remove(slot));
    }

    /// Part of the blocks used that a cache of this many blocks would have had; 0 if none was used.
    pub fn hit_ratio(&self, cache_blocks: u64) -> f64 {
        if self.access_count == 0 || cache_blocks == 0 {
            return 0.0;
        }
        let missing_count = self.access_count as f64 - self.weighed_count;
        let hit_count = self.histogram.sum_up_to(cache_blocks) + missing_count;
        (hit_count / self.access_count as f64).clamp(0.0, 1.0)
    }

    /// Blocks of a cache beyond which more of them change nothing.
    pub fn reach_blocks(&self) -> u64 {
        self.histogram.distance_max()
    }

    /// Part of the blocks that the sample ended with.
    pub fn rate(&self) -> f64 {
        self.sample.rate().value()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: Options = Options { block_bytes: 4096, sequential_cutoff_bytes: 0 };

    fn block_request(operation: Operation, block: u64) -> Request {
        let offset_bytes = block * 4096;
        Request { time_ns: None, device: 0, operation, offset_bytes, length_bytes: 4096 }
    }

    proptest! {
        /// Against a plain list, while the sample holds everything. The stack is small, so that its
        /// slots are used up several times.
        #[test]
        fn a_whole_sample_is_exact(
            steps in prop::collection::vec((0u64..40, 0u32..10), 1..800),
        ) {
            let mut curve = LruCurve::with_sample(&OPTIONS, 40);
            let mut used: Vec<u64> = Vec::new();
            let mut depths = Vec::new();
            let mut count = 0;
            for (block, kind) in steps {
                let at = used.iter().rev().position(|known| *known == block);
                if let Some(at) = at {
                    used.remove(used.len() - 1 - at);
                }
                if kind == 0 {
                    curve.request(&block_request(Operation::Discard, block));
                    continue;
                }
                curve.request(&block_request(Operation::Read, block));
                used.push(block);
                count += 1;
                depths.extend(at);
            }
            for cache_blocks in 1..45u64 {
                let hits = depths.iter().filter(|depth| (**depth as u64) < cache_blocks).count();
                let expected = if count == 0 { 0.0 } else { hits as f64 / f64::from(count) };
                prop_assert!((curve.hit_ratio(cache_blocks) - expected).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn a_loop_is_found_at_its_length_and_not_before() {
        // 20 blocks of the loop to each of the sample.
        let mut curve = LruCurve::with_sample(&OPTIONS, 2_000);
        for _ in 0..5 {
            for block in 0..40_000 {
                curve.request(&block_request(Operation::Read, block));
            }
        }
        assert!(curve.rate() < 0.06);
        assert!(curve.hit_ratio(36_000) < 0.02);
        assert!((curve.hit_ratio(44_000) - 0.8).abs() < 0.02, "{}", curve.hit_ratio(44_000));
        assert!(curve.reach_blocks() < 44_000);
    }

    #[test]
    fn a_fixed_rate_stays_and_finds_the_loop() {
        let mut curve = LruCurve::at_rate(&OPTIONS, Rate::one_in(20));
        for _ in 0..5 {
            for block in 0..40_000 {
                curve.request(&block_request(Operation::Read, block));
            }
        }
        assert!((curve.rate() * 20.0 - 1.0).abs() < 1e-12);
        assert!(curve.hit_ratio(36_000) < 0.02);
        assert!((curve.hit_ratio(44_000) - 0.8).abs() < 0.02, "{}", curve.hit_ratio(44_000));
    }

    #[test]
    fn one_very_busy_block_does_not_mislead() {
        let mut curve = LruCurve::with_sample(&OPTIONS, 500);
        for block in 0..100_000 {
            curve.request(&block_request(Operation::Read, 1_000_000));
            curve.request(&block_request(Operation::Read, block));
        }
        // Half of the accesses are to one block, the others to blocks of one use each.
        assert!((curve.hit_ratio(1_000) - 0.5).abs() < 0.03, "{}", curve.hit_ratio(1_000));
    }
}
