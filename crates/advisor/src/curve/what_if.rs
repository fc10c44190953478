//! What the hit ratio would be if the cache were smaller or larger, while it works.
//!
//! Miniatures of half, once, twice and four times the size of the cache are fed with the requests
//! of clients. Nearly all blocks are in no sample, so the first step decides most: one addition and
//! one comparison for each block, after one multiplication for each request.
//!
//! Small caches are simulated nearly whole, for miniatures of some hundred blocks would be wrong by
//! more than .02. So it is time that is divided where the load is heavy: slices, in which all is
//! done, and rests, in which nothing is. A slice is long against what the largest of the caches
//! needs to fill, and does not count before the miniatures had as much to make up for the rest, so
//! what it finds is what they would have found without one, as long as the load stays the same.
//!
//! Invariants: memory is taken at the beginning, and does not depend on the size of the cache; nor
//! does the work of a second; the counts keep to recent requests.

use std::ops::Range;

use forebay_engine::policy::{BlockKey, Clock2q};
use forebay_engine::units::Time;

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
const PASSING_BLOCKS: u64 = 4;
/// Time after which all counts are halved: loads have the rhythm of a day, so less would show the
/// night's or the day's.
const FADING_NS: u64 = 24 * 3_600 * 1_000_000_000;
/// Simulated blocks behind a rest that do not count. Where each size has half of the rate of the
/// one before it, the largest sees one of 15: four times as many as it has room for.
const WARM_UP_BLOCKS: u64 = 60 * MINIATURE_BLOCKS;
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
    /// Sampled blocks that were counted ever.
    evidence_blocks: u64,
    /// Recent ones of these, and how many of them were misses.
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

    fn use_block(&mut self, hash: u64, stage: Stage) {
        let is_hit = self.queues.access(SampledBlock(hash));
        if stage == Stage::Counting {
            self.evidence_blocks += 1;
            self.counted += 1;
            self.missed += u64::from(!is_hit);
        }
    }

    /// Sampled blocks that must be counted before it says anything.
    fn evidence_needed(&self) -> u64 {
        self.simulated_blocks.max(EVIDENCE_BLOCKS_MIN)
    }

    fn hit_ratio(&self, block_count: u64) -> Option<f64> {
        if self.evidence_blocks < self.evidence_needed() {
            return None;
        }
        // As for `MissCounts`: a miss stands for others, what is no miss is a hit.
        let misses = self.missed as f64 / self.part;
        Some((1.0 - misses / block_count.max(1) as f64).clamp(0.0, 1.0))
    }
}

/// What becomes of requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// They are simulated and count.
    Counting,
    /// They are simulated, to make up for a rest.
    WarmingUp,
    /// They are passed over.
    Resting,
}

/// Caches of other sizes beside the one at work.
pub struct WhatIf {
    sizes: [Size; HALVES.len()],
    /// Part of the blocks that pass the first step.
    passing: Rate,
    /// Recent blocks of requests, sampled or not; while it warms up, with some that do not count.
    block_count: u64,
    /// What it was when the last slice ended.
    block_count_before: u64,
    stage: Stage,
    /// The end of the last rest, or of the present one.
    rest_until: Time,
    /// Beginning of the slice, and blocks that were simulated in it.
    slice_from: Time,
    slice_blocks: u64,
    halved_at: Time,
}

impl WhatIf {
    /// Simulated blocks of a slice, of all sizes together. One takes some 50 ns.
    pub const SLICE_BLOCKS: u64 = 1 << 22;
    /// The least time from the beginning of a slice to that of the next: what is simulated takes
    /// a ninth of a percent of a processor at most.
    pub const SLICE_NS: u64 = 180_000_000_000;

    /// Beside a cache of so many blocks, at least 1.
    pub fn new(cache_blocks: u64) -> WhatIf {
        assert!(cache_blocks > 0);
        let least = (cache_blocks * HALVES[0] / 2).max(1);
        let passing = Rate::part_of(MINIATURE_BLOCKS * PASSING_BLOCKS, least);
        let part = passing.value();
        let size = |halves: u64| Size::new((cache_blocks * halves / 2).max(1), part, passing);
        WhatIf {
            sizes: HALVES.map(size),
            passing,
            block_count: 0,
            block_count_before: 0,
            stage: Stage::Counting,
            rest_until: Time(0),
            slice_from: Time(0),
            slice_blocks: 0,
            halved_at: Time(0),
        }
    }

    /// Notes a request of a client. `now` never goes back.
    #[inline]
    pub fn note(&mut self, now: Time, request: &ClientRequest) {
        if now < self.rest_until {
            return;
        }
        if request.operation == ClientOperation::Use {
            self.block_count += request.block_count;
        }
        let volume = u64::from(request.volume).wrapping_mul(VOLUME_MULTIPLIER);
        let mut mixed = request.first_block.wrapping_add(volume).wrapping_mul(MULTIPLIER);
        for index in 0..request.block_count {
            if self.passing.holds(mixed) {
                self.note_passing(now, request, request.first_block + index);
            }
            mixed = mixed.wrapping_add(MULTIPLIER);
        }
    }

    fn note_passing(&mut self, now: Time, request: &ClientRequest, block: u64) {
        let hash = sample_hash(BlockKey { volume: request.volume, block });
        // Rates fall with the size: what one leaves out, all larger ones do.
        for size in &mut self.sizes {
            if !size.rate.holds(hash) {
                break;
            }
            self.slice_blocks += 1;
            match request.operation {
                ClientOperation::Use => size.use_block(hash, self.stage),
                ClientOperation::Discard => size.queues.invalidate(SampledBlock(hash)),
            }
        }
        self.turn(now);
    }

    /// Behind blocks that may have been simulated.
    fn turn(&mut self, now: Time) {
        match self.stage {
            Stage::Resting if now >= self.rest_until => {
                self.stage = Stage::WarmingUp;
                self.slice_from = now;
            }
            Stage::WarmingUp if self.slice_blocks >= WARM_UP_BLOCKS => {
                self.stage = Stage::Counting;
                self.block_count = self.block_count_before;
            }
            Stage::Counting if self.slice_blocks >= WhatIf::SLICE_BLOCKS => self.end_slice(now),
            Stage::Counting => self.fade(now),
            Stage::WarmingUp | Stage::Resting => {}
        }
    }

    fn end_slice(&mut self, now: Time) {
        let next = Time(self.slice_from.0 + WhatIf::SLICE_NS);
        (self.slice_blocks, self.slice_from) = (0, now);
        if now < next {
            self.stage = Stage::Resting;
            self.rest_until = next;
            self.block_count_before = self.block_count;
        }
    }

    fn fade(&mut self, now: Time) {
        // What is left must say something still.
        let [.., largest] = &self.sizes;
        let is_due = now.nanoseconds_since(self.halved_at) >= FADING_NS;
        if is_due && largest.counted >= largest.evidence_needed() {
            self.halve(now);
        }
    }

    /// Lets what was counted before count half.
    fn halve(&mut self, now: Time) {
        self.halved_at = now;
        self.block_count /= 2;
        for size in &mut self.sizes {
            size.counted /= 2;
            size.missed /= 2;
        }
    }

    /// What the sizes would find, the smallest first: half, once, twice and four times the cache.
    pub fn estimates(&self) -> [Estimate; HALVES.len()] {
        let block_count = match self.stage {
            Stage::Counting => self.block_count,
            Stage::WarmingUp | Stage::Resting => self.block_count_before,
        };
        self.sizes.each_ref().map(|size| Estimate {
            cache_blocks: size.cache_blocks,
            hit_ratio: size.hit_ratio(block_count),
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

    /// With a clock.
    struct Live {
        what_if: WhatIf,
        now: Time,
        /// Nanoseconds from one request to the next.
        pace_ns: u64,
    }

    impl Live {
        /// Under a load that takes no rest.
        fn light(cache_blocks: u64) -> Live {
            Live { what_if: WhatIf::new(cache_blocks), now: Time(0), pace_ns: 1_000_000 }
        }

        /// Under one of which much is passed over.
        fn heavy(cache_blocks: u64) -> Live {
            Live { pace_ns: 10_000, ..Live::light(cache_blocks) }
        }

        /// Tells whether it was in a sample.
        fn note(&mut self, request: &ClientRequest) -> bool {
            self.now.0 += self.pace_ns;
            let before = self.what_if.slice_blocks;
            self.what_if.note(self.now, request);
            self.what_if.slice_blocks != before
        }

        /// Notes requests by number until a rest begins.
        fn note_until_rest(&mut self, next: impl Fn(u64) -> ClientRequest) {
            for n in 0..10_000_000 {
                self.note(&next(n));
                if self.what_if.stage == Stage::Resting {
                    return;
                }
            }
            panic!("no rest");
        }
    }

    fn ratios(what_if: &WhatIf) -> [Option<f64>; 4] {
        what_if.estimates().map(|estimate| estimate.hit_ratio)
    }

    #[test]
    fn a_loop_is_found_by_the_sizes_that_hold_it() {
        // A million blocks; the loop has one and a half as many.
        let mut live = Live::light(1_000_000);
        assert_eq!(ratios(&live.what_if), [None; 4]);
        for _ in 0..8 {
            for block in 0..1_500_000 / 4 {
                live.note(&request(block * 4, 4));
            }
        }
        let found = ratios(&live.what_if).map(|ratio| ratio.expect("evidence"));
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
        let mut live = Live::light(1_000_000);
        for block in 0..700_000 {
            live.note(&request(block, 1));
        }
        assert_eq!(ratios(&live.what_if).map(|ratio| ratio.is_some()), [true, false, false, false]);
        // 10,900 blocks stand for half a million, a million, two and four.
        let rates = live.what_if.estimates().map(|estimate| estimate.sampling_rate);
        for (rate, expected) in rates.into_iter().zip([0.0218, 0.0109, 0.00545, 0.002725]) {
            assert!((rate / expected - 1.0).abs() < 1e-6, "{rates:?}");
        }
        assert!(ratios(&live.what_if)[0].expect("evidence") < 0.03, "all are new");
    }

    #[test]
    fn requests_of_the_last_day_count_most() {
        let day_requests = 20_000;
        // Small enough for all blocks to be sampled.
        let mut live = Live::light(2_000);
        live.pace_ns = FADING_NS / day_requests;
        for block in 0..5 * day_requests {
            live.note(&request(block, 1));
        }
        for n in 0..5 * day_requests {
            live.note(&request(n % 500, 1));
        }
        // Of what was before, a part of 1 in 32 counts still.
        let expected = 1.0 - 1.0 / 32.0;
        for ratio in ratios(&live.what_if) {
            assert!((ratio.expect("evidence") - expected).abs() < 0.01, "{ratio:?}");
        }
    }

    #[test]
    fn what_is_seldom_used_does_not_fade_away() {
        let mut live = Live::light(2_000);
        live.pace_ns = FADING_NS;
        for n in 0..20_000 {
            live.note(&request(n % 4_000, 1));
        }
        let counted = live.what_if.sizes[3].counted;
        assert!((8_000 / 2..=8_000).contains(&counted), "{counted}");
    }

    #[test]
    fn a_heavy_load_is_passed_over_for_most_of_the_time() {
        let mut live = Live::heavy(16_384);
        let requests = 3 * WhatIf::SLICE_NS / live.pace_ns;
        let seen = (0..requests).filter(|n| live.note(&request(n % 10_000, 1))).count();
        // Each block is in 2.3 samples; its rates are 1, .67, .33 and .17.
        let part = seen as f64 / requests as f64;
        let expected = 3.0 * WhatIf::SLICE_BLOCKS as f64 / 2.33 / requests as f64;
        assert!((part / expected - 1.0).abs() < 0.1, "{part} where {expected}");
    }

    #[test]
    fn rests_change_nothing_under_an_even_load() {
        let (mut light, mut heavy) = (Live::light(16_384), Live::heavy(16_384));
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 80_000
        };
        // Low numbers are busier.
        let mut next = || request(random() * random() / 80_000, 1);
        for _ in 0..3 * WhatIf::SLICE_NS / heavy.pace_ns {
            heavy.note(&next());
        }
        for _ in 0..3 * WhatIf::SLICE_BLOCKS / 2 {
            light.note(&next());
        }
        let [heavy, light] = [&heavy, &light].map(|live| ratios(&live.what_if));
        for (heavy, light) in heavy.into_iter().zip(light) {
            let (heavy, light) = (heavy.expect("evidence"), light.expect("evidence"));
            assert!((heavy - light).abs() < 0.01, "{heavy} where {light}");
        }
    }

    #[test]
    fn what_changes_during_a_rest_does_not_count_as_missed() {
        let mut live = Live::light(1_000_000);
        live.pace_ns = 1_000;
        live.note_until_rest(|n| request(n * 64 % 400_000, 64));
        live.now.0 += WhatIf::SLICE_NS;
        let counted = |live: &Live| {
            let size = &live.what_if.sizes[0];
            (size.evidence_blocks, size.missed)
        };
        let (evidence_blocks, missed) = counted(&live);
        live.note_until_rest(|n| request(1_000_000 + n * 64 % 100_000, 64));
        let (evidence_after, missed_after) = counted(&live);
        assert!(evidence_after > evidence_blocks + WhatIf::SLICE_BLOCKS / 4, "{evidence_after}");
        assert!(missed_after < missed + 10, "{missed} and later {missed_after}");
    }

    #[test]
    fn what_is_discarded_is_missed() {
        let mut live = Live::light(2_000);
        for _ in 0..40 {
            for block in 0..500 {
                live.note(&request(block, 1));
            }
            let operation = ClientOperation::Discard;
            live.note(&ClientRequest { operation, ..request(0, 500) });
        }
        assert!(ratios(&live.what_if)[0].expect("evidence") < 1e-9);
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
            let mut live = Live::light(1 << 22);
            let count = 3_000_000u64;
            for n in 0..count {
                live.note(&request(n * stride, 1));
            }
            let size = &live.what_if.sizes[0];
            let part = size.evidence_blocks as f64 / count as f64;
            assert!((part / size.part - 1.0).abs() < 0.05, "stride {stride}: {part}");
        }
    }
}
