//! What the hit ratio would be if the cache were smaller or larger, while it works.
//!
//! Miniatures of half, once, twice and four times the size of the cache are fed with the requests
//! of clients. Nearly all blocks are in no sample, so the first step decides most: one addition and
//! one comparison for each block, after one multiplication for each request.
//!
//! Invariants: memory is taken at the beginning, and does not depend on the size of the cache; the
//! counts keep to recent requests.

use std::ops::Range;

use forebay_engine::policy::{BlockKey, Clock2q};

use super::{Rate, sample_hash};
use crate::replay::{Key, Queues};
use crate::trace::{Operation, Request};

/// Blocks of a miniature, unless the cache has fewer: as many as a table of 2^14 places is for.
const MINIATURE_BLOCKS: u64 = 10_900;
/// The sizes looked at, in halves of the cache.
const HALVES: [u64; 4] = [1, 2, 4, 8];
/// Blocks that pass the first step for each one that is sampled. It is a plain multiplication,
/// which spreads neighbours well and may resonate with strides; the hash behind it chooses at
/// random.
const PASSING_BLOCKS: u64 = 8;
/// Sampled blocks of the smallest size after which all counts are halved.
const COUNTED_MAX: u64 = 1 << 20;
/// Sampled blocks before which no miniature, however small, says anything.
const EVIDENCE_BLOCKS_MIN: u64 = 1_000;
/// 2^64 / golden ratio, made odd (Knuth's multiplicative hashing).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
/// Keeps the same block of two volumes apart; from the digits of pi.
const VOLUME_MULTIPLIER: u64 = 0x2437_54a8_885a_308d;

/// What a client did to the blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientOperation {
    /// It read or wrote them: from then on they are cached.
    Use,
    /// It discarded them: from then on they are not.
    Discard,
}

/// Blocks of a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientRequest {
    /// What tells the volume from others. It may be any number.
    pub volume: u32,
    /// First block.
    pub first_block: u64,
    /// How many, one behind the other.
    pub block_count: u64,
    /// What is done.
    pub operation: ClientOperation,
}

impl ClientRequest {
    /// A request for `bytes` of a volume: a use is of all blocks that it touches, a discard of
    /// those that it covers.
    pub fn of_bytes(
        volume: u32,
        operation: ClientOperation,
        bytes: Range<u64>,
        block_bytes: u64,
    ) -> ClientRequest {
        let (first_block, end) = match operation {
            ClientOperation::Use => (bytes.start / block_bytes, bytes.end.div_ceil(block_bytes)),
            ClientOperation::Discard => {
                (bytes.start.div_ceil(block_bytes), bytes.end / block_bytes)
            }
        };
        let block_count = end.saturating_sub(first_block);
        ClientRequest { volume, first_block, block_count, operation }
    }

    /// A recorded request.
    pub fn recorded(request: &Request, block_bytes: u32) -> ClientRequest {
        let operation = match request.operation {
            Operation::Read | Operation::Write => ClientOperation::Use,
            Operation::Discard => ClientOperation::Discard,
        };
        let bytes = request.offset_bytes..request.offset_bytes + request.length_bytes;
        ClientRequest::of_bytes(request.device, operation, bytes, block_bytes.into())
    }
}

/// What a cache of some size would find.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Its size in blocks.
    pub cache_blocks: u64,
    /// Part of the blocks of recent requests that it would have had. None until its miniature has
    /// seen about as many blocks as it has room for.
    pub hit_ratio: Option<f64>,
    /// Part of the blocks that its miniature sees.
    pub sampling_rate: f64,
}

/// A block, known by its sample hash alone, which takes less memory than volume and number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SampledBlock(u64);

impl Key for SampledBlock {
    /// The low bits: the high ones are those that a sample is chosen by.
    fn table_hash(self) -> u32 {
        self.0 as u32
    }

    fn block_key(self) -> BlockKey {
        BlockKey { volume: 0, block: self.0 }
    }
}

struct Size {
    cache_blocks: u64,
    /// Part of the blocks that passed the first step.
    rate: Rate,
    /// Part of all blocks.
    part: f64,
    queues: Queues<SampledBlock, Clock2q>,
    simulated_blocks: u64,
    /// Sampled blocks that were used ever.
    evidence_blocks: u64,
    /// Recent ones, and how many of these were misses.
    counted: u64,
    missed: u64,
}

impl Size {
    fn new(cache_blocks: u64, passing_part: f64, passing: Rate) -> Size {
        let simulated_blocks = cache_blocks.min(MINIATURE_BLOCKS);
        let wanted = simulated_blocks as f64 / cache_blocks as f64;
        // Of what passed; the first step passes at least as much as any size needs.
        let rate = if passing == Rate::ALL {
            Rate::part_of(simulated_blocks, cache_blocks)
        } else {
            Rate::part_of((wanted / passing_part * 2f64.powi(40)) as u64, 1 << 40)
        };
        let blocks = u32::try_from(simulated_blocks).expect("a few thousand");
        Size {
            cache_blocks,
            rate,
            part: rate.value() * passing_part,
            queues: Queues::preallocated(Box::new(Clock2q::new(simulated_blocks)), blocks),
            simulated_blocks,
            evidence_blocks: 0,
            counted: 0,
            missed: 0,
        }
    }

    fn access(&mut self, hash: u64) {
        self.evidence_blocks += 1;
        self.counted += 1;
        self.missed += u64::from(!self.queues.access(SampledBlock(hash)));
    }

    fn hit_ratio(&self, block_count: u64) -> Option<f64> {
        let enough = self.simulated_blocks.max(EVIDENCE_BLOCKS_MIN);
        if self.evidence_blocks < enough {
            return None;
        }
        // As for `MissCounts`: a miss stands for others, what is no miss is a hit.
        let misses = self.missed as f64 / self.part;
        Some((1.0 - misses / block_count.max(1) as f64).clamp(0.0, 1.0))
    }
}

/// Caches of other sizes beside the one at work.
pub struct WhatIf {
    sizes: [Size; HALVES.len()],
    /// Part of the blocks that pass the first step.
    passing: Rate,
    /// Recent blocks of requests, sampled or not.
    block_count: u64,
}

impl WhatIf {
    /// Beside a cache of so many blocks, at least 1.
    pub fn new(cache_blocks: u64) -> WhatIf {
        assert!(cache_blocks > 0);
        let least = (cache_blocks * HALVES[0] / 2).max(1);
        let passing = Rate::part_of(MINIATURE_BLOCKS * PASSING_BLOCKS, least);
        let part = passing.value();
        let size = |halves: u64| Size::new((cache_blocks * halves / 2).max(1), part, passing);
        WhatIf { sizes: HALVES.map(size), passing, block_count: 0 }
    }

    /// Notes a request of a client.
    #[inline]
    pub fn note(&mut self, request: &ClientRequest) {
        if request.operation == ClientOperation::Use {
            self.block_count += request.block_count;
        }
        let volume = u64::from(request.volume).wrapping_mul(VOLUME_MULTIPLIER);
        let mut mixed = request.first_block.wrapping_add(volume).wrapping_mul(MULTIPLIER);
        for index in 0..request.block_count {
            if self.passing.holds(mixed) {
                self.note_passing(request, request.first_block + index);
            }
            mixed = mixed.wrapping_add(MULTIPLIER);
        }
    }

    fn note_passing(&mut self, request: &ClientRequest, block: u64) {
        let hash = sample_hash(BlockKey { volume: request.volume, block });
        // Rates fall with the size: what one leaves out, all larger ones do.
        for size in &mut self.sizes {
            if !size.rate.holds(hash) {
                break;
            }
            match request.operation {
                ClientOperation::Use => size.access(hash),
                ClientOperation::Discard => size.queues.invalidate(SampledBlock(hash)),
            }
        }
        if self.sizes[0].counted >= COUNTED_MAX {
            self.block_count /= 2;
            for size in &mut self.sizes {
                size.counted /= 2;
                size.missed /= 2;
            }
        }
    }

    /// What the sizes would find, the smallest first: half, once, twice and four times the cache.
    pub fn estimates(&self) -> [Estimate; HALVES.len()] {
        self.sizes.each_ref().map(|size| Estimate {
            cache_blocks: size.cache_blocks,
            hit_ratio: size.hit_ratio(self.block_count),
            sampling_rate: size.part,
        })
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let queues: usize = self.sizes.iter().map(|size| size.queues.memory_bytes()).sum();
        queues + size_of::<WhatIf>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(first_block: u64, block_count: u64) -> ClientRequest {
        ClientRequest { volume: 3, first_block, block_count, operation: ClientOperation::Use }
    }

    fn ratios(what_if: &WhatIf) -> [Option<f64>; 4] {
        what_if.estimates().map(|estimate| estimate.hit_ratio)
    }

    #[test]
    fn a_loop_is_found_by_the_sizes_that_hold_it() {
        // A million blocks; the loop has one and a half as many.
        let mut what_if = WhatIf::new(1_000_000);
        assert_eq!(ratios(&what_if), [None; 4]);
        for _ in 0..8 {
            for block in 0..1_500_000 / 4 {
                what_if.note(&request(block * 4, 4));
            }
        }
        let found = ratios(&what_if).map(|ratio| ratio.expect("evidence"));
        assert!(found[0] < 0.3, "{found:?}");
        assert!(found[1] > found[0] && found[1] < 0.75, "{found:?}");
        assert!((found[2] - 0.875).abs() < 0.02, "{found:?}");
        assert!((found[3] - 0.875).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn a_block_is_used_by_any_of_its_bytes_and_gone_with_all_of_them() {
        let blocks = |operation, bytes| {
            let request = ClientRequest::of_bytes(3, operation, bytes, 4_096);
            (request.first_block, request.block_count)
        };
        let bytes = 4_096 - 512..3 * 4_096 - 512;
        assert_eq!(blocks(ClientOperation::Use, bytes.clone()), (0, 3));
        assert_eq!(blocks(ClientOperation::Discard, bytes), (1, 1));
        assert_eq!(blocks(ClientOperation::Discard, 4_096 - 512..4_096).1, 0);
    }

    #[test]
    fn larger_sizes_take_longer_to_know() {
        let mut what_if = WhatIf::new(1_000_000);
        for block in 0..700_000 {
            what_if.note(&request(block, 1));
        }
        assert_eq!(ratios(&what_if).map(|ratio| ratio.is_some()), [true, false, false, false]);
        // 10,900 blocks stand for half a million, a million, two and four.
        let rates = what_if.estimates().map(|estimate| estimate.sampling_rate);
        for (rate, expected) in rates.into_iter().zip([0.0218, 0.0109, 0.00545, 0.002725]) {
            assert!((rate / expected - 1.0).abs() < 1e-6, "{rates:?}");
        }
        assert!(ratios(&what_if)[0].expect("evidence") < 0.03, "all are new");
    }

    #[test]
    fn recent_requests_count_most() {
        // Small enough for all blocks to be sampled.
        let mut what_if = WhatIf::new(2_000);
        for block in 0..2 * COUNTED_MAX {
            what_if.note(&request(block, 1));
        }
        for n in 0..6 * COUNTED_MAX {
            what_if.note(&request(n % 500, 1));
        }
        assert!(ratios(&what_if).iter().all(|ratio| ratio.expect("evidence") > 0.98));
    }

    #[test]
    fn what_is_discarded_is_missed() {
        let mut what_if = WhatIf::new(2_000);
        for _ in 0..40 {
            for block in 0..500 {
                what_if.note(&request(block, 1));
            }
            let operation = ClientOperation::Discard;
            what_if.note(&ClientRequest { operation, ..request(0, 500) });
        }
        assert!(ratios(&what_if)[0].expect("evidence") < 1e-9);
    }

    #[test]
    fn memory_does_not_grow_with_the_cache() {
        for cache_blocks in [1, 1_000, 1 << 20, 1 << 34] {
            let memory = WhatIf::new(cache_blocks).memory_bytes();
            assert!(memory < 2 << 20, "{cache_blocks} blocks: {memory} bytes");
        }
    }

    #[test]
    fn strides_and_volumes_are_sampled_as_they_should() {
        for stride in [1, 2, 3, 8, 256, 4_096, 1 << 20] {
            let mut what_if = WhatIf::new(1 << 22);
            let count = 3_000_000u64;
            for n in 0..count {
                what_if.note(&request(n * stride, 1));
            }
            let size = &what_if.sizes[0];
            let part = size.evidence_blocks as f64 / count as f64;
            assert!((part / size.part - 1.0).abs() < 0.05, "stride {stride}: {part}");
        }
    }
}
