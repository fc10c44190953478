//! What a trace says about a cache: is it worth it, how large, in which mode, and how sure that is.
//!
//! An [`Advisor`] is given the requests of a trace and ends with a [`Report`]. Everything in it is
//! computed in one pass over the trace, in bounded memory.

mod confidence;
mod cost;
mod recommendation;

use serde::Serialize;

use crate::curve::{
    Accesses, LruCurve, Miniature, MiniatureCurve, MissCounts, SizeLadder, Step, Totals,
};
use crate::profile::{Profile, Profiler};
use crate::replay::Options as ReplayOptions;
use crate::trace::{Operation, Request};
pub use confidence::{Confidence, Doubt};
pub use cost::{DeviceFigures, Mode};
pub use recommendation::{Choice, Recommendation, Verdict};

/// Requests between two looks at which sizes still matter.
const REQUESTS_PER_NARROWING: u64 = 4_096;
const DAY_S: f64 = 86_400.0;

/// What advice depends on beside the trace.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Blocks and sequential cut-off of the cache.
    pub replay: ReplayOptions,
    /// How fast the devices are.
    pub figures: DeviceFigures,
    /// Sizes of the cache in blocks, rising; none: those that suit the working set.
    pub cache_blocks: Vec<u32>,
}

/// What one mode makes of a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ModeOutcome {
    /// Mean time of a read, in microseconds.
    pub read_us: f64,
    /// Mean time of a write, in microseconds.
    pub write_us: f64,
    /// Time of all requests without a cache, divided by that with it.
    pub speedup: f64,
    /// Bytes written to the cache device in the whole trace.
    pub cache_written_bytes: u64,
    /// The same for each day and byte of the cache: its drive writes per day. None without times.
    pub drive_writes_per_day: Option<f64>,
    /// Part of the trace's time that the origin works, at most: writeback sorts and merges what it
    /// writes. None without times.
    pub origin_busy_ratio: Option<f64>,
}

/// What a cache of one size does.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SizeOutcome {
    /// The size.
    pub cache_bytes: u64,
    /// Part of the blocks that are found, reads and writes alike, under the default policy.
    pub hit_ratio: f64,
    /// The same of reads alone.
    pub read_hit_ratio: f64,
    /// The same of reads and writes under LRU, to compare with.
    pub lru_hit_ratio: f64,
    /// Part of the bytes read that is kept out of the cache as long streams.
    pub bypassed_ratio: f64,
    /// Part of the blocks that were simulated.
    pub sampling_rate: f64,
    /// Reads and writes go to the cache, writes later to the origin.
    pub writeback: ModeOutcome,
    /// Reads and writes go to the cache, writes to the origin at once, too.
    pub writethrough: ModeOutcome,
    /// Only writes go to the cache.
    pub writeonly: ModeOutcome,
}

impl SizeOutcome {
    /// What a mode makes of the size.
    pub fn mode(&self, mode: Mode) -> &ModeOutcome {
        match mode {
            Mode::Writeback => &self.writeback,
            Mode::Writethrough => &self.writethrough,
            Mode::Writeonly => &self.writeonly,
        }
    }
}

/// Mean times without a cache, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Uncached {
    /// Of a read.
    pub read_us: f64,
    /// Of a write.
    pub write_us: f64,
    /// Part of the trace's time that the origin works, one request after another; above 1 if it
    /// cannot keep up so. None without times.
    pub origin_busy_ratio: Option<f64>,
}

/// All that is said about a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Streams of reads beyond this are not promoted once the cache is full; 0: all are.
    pub sequential_cutoff_bytes: u64,
    /// The device figures that times are computed with.
    pub figures: DeviceFigures,
    /// What the workload is like.
    pub profile: Profile,
    /// Without a cache.
    pub uncached: Uncached,
    /// Caches, the smallest first; at least one.
    pub sizes: Vec<SizeOutcome>,
    /// What to do.
    pub recommendation: Recommendation,
}

/// Collects a [`Report`].
pub struct Advisor {
    options: Options,
    accesses: Accesses,
    profiler: Profiler,
    lru: LruCurve,
    miniatures: MiniatureCurve,
    request_count: u64,
}

impl Advisor {
    /// Nothing was seen yet.
    ///
    /// # Panics
    ///
    /// If blocks or a cache have no size.
    pub fn new(options: &Options) -> Advisor {
        let miniatures = if options.cache_blocks.is_empty() {
            MiniatureCurve::of_all_sizes(&options.replay)
        } else {
            let sizes = options.cache_blocks.iter().map(|blocks| Miniature::of(*blocks));
            MiniatureCurve::new(&sizes.collect::<Vec<_>>(), &options.replay)
        };
        Advisor {
            options: options.clone(),
            accesses: Accesses::new(&options.replay),
            profiler: Profiler::new(&options.replay),
            lru: LruCurve::new(&options.replay),
            miniatures,
            request_count: 0,
        }
    }

    /// The next request of the trace.
    pub fn request(&mut self, request: &Request) {
        if request.operation == Operation::Discard {
            self.profiler.request(request, Step::Jump);
            for block in self.accesses.discarded(request) {
                self.profiler.discard(&block);
                self.lru.discard(&block);
                self.miniatures.discard(&block);
            }
            return;
        }
        let step = self.accesses.step(request);
        self.profiler.request(request, step);
        for access in self.accesses.of(request, step) {
            self.profiler.access(&access);
            self.lru.access(&access);
            self.miniatures.access(&access);
        }
        self.request_count += 1;
        let is_ours = self.options.cache_blocks.is_empty();
        if is_ours && self.request_count.is_multiple_of(REQUESTS_PER_NARROWING) {
            self.miniatures.narrow(self.profiler.distinct_blocks());
        }
    }

    /// The trace has ended.
    pub fn finish(self) -> Report {
        let Options { replay, figures, cache_blocks } = self.options;
        let totals = *self.profiler.totals();
        let ladder = SizeLadder::for_blocks(self.profiler.distinct_blocks());
        let profile = self.profiler.finish();
        let mut misses = self.miniatures.misses(&totals);
        if cache_blocks.is_empty() {
            let range = ladder.first_blocks..=ladder.last_blocks;
            misses.retain(|size| range.contains(&size.cache_blocks));
        }
        let cost = cost::Cost { figures: &figures, totals: &totals, profile: &profile };
        let uncached = cost.uncached();
        let of = |misses: &MissCounts| {
            let lru_hit_ratio = self.lru.hit_ratio(misses.cache_blocks.into());
            outcome(&cost, misses, lru_hit_ratio, replay.block_bytes)
        };
        let sizes: Vec<SizeOutcome> = misses.iter().map(of).collect();
        let recommendation = recommendation::recommend(&profile, &uncached, &sizes);
        Report {
            block_bytes: replay.block_bytes,
            sequential_cutoff_bytes: replay.sequential_cutoff_bytes,
            figures,
            profile,
            uncached,
            sizes,
            recommendation,
        }
    }
}

fn outcome(
    cost: &cost::Cost<'_>,
    misses: &MissCounts,
    lru_hit_ratio: f64,
    block_bytes: u32,
) -> SizeOutcome {
    let Totals { read_blocks, .. } = *cost.totals;
    let cache_bytes = u64::from(misses.cache_blocks) * u64::from(block_bytes);
    let part = |count: f64, whole: u64| if whole == 0 { 0.0 } else { count / whole as f64 };
    let uncached_us = cost.all_uncached().total_us();
    let in_mode = |mode: Mode| {
        let times = cost.cached(mode, misses);
        let written = cost.written_blocks(mode, misses) * f64::from(block_bytes);
        let per_day = |duration_s: f64| written / cache_bytes as f64 / duration_s * DAY_S;
        ModeOutcome {
            read_us: times.mean_read_us(cost.profile),
            write_us: times.mean_write_us(cost.profile),
            speedup: if times.total_us() > 0.0 { uncached_us / times.total_us() } else { 1.0 },
            cache_written_bytes: written as u64,
            drive_writes_per_day: cost.profile.duration_s.map(per_day),
            origin_busy_ratio: cost.origin_busy_ratio(mode, misses),
        }
    };
    SizeOutcome {
        cache_bytes,
        hit_ratio: misses.hit_ratio_blocks(cost.totals),
        read_hit_ratio: misses.hit_ratio_reads(cost.totals),
        lru_hit_ratio,
        bypassed_ratio: part(misses.bypassed_blocks, read_blocks),
        sampling_rate: misses.rate,
        writeback: in_mode(Mode::Writeback),
        writethrough: in_mode(Mode::Writethrough),
        writeonly: in_mode(Mode::Writeonly),
    }
}

#[cfg(test)]
mod tests;
