//! What a workload is like, whatever cache stands in front of it: its mix, sizes, streams, working
//! set over time, and how soon what it writes is overwritten.
//!
//! Counts of requests and bytes are exact. What is said about different blocks and about
//! overwriting comes from a sample of the blocks that keeps its size, so memory is bounded.

mod clock;
mod overwrites;
mod timeline;

use serde::Serialize;

use crate::curve::{Access, BoundedSample, Discarded, SAMPLED_BLOCKS_MAX, Step, Totals};
use crate::replay::Options;
use crate::trace::{Operation, Request};
use clock::Clock;
use overwrites::Overwrites;
pub use overwrites::{Absorption, DELAYS_S};
pub use timeline::{Axis, Window};
use timeline::{Moment, Seen, Timeline};

/// Classes of request sizes: up to 512 bytes, up to 1 KiB, and so on; the last one holds the rest.
pub const SIZE_CLASSES: usize = 16;
/// Largest size of the first class.
const FIRST_CLASS_BYTES: u64 = 512;

/// Requests of one kind.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Kind {
    /// Requests.
    pub request_count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, the bytes of requests that go on where an earlier one of their kind ended.
    pub continued_bytes: u64,
    /// Of these, the bytes beyond the cut-off of their stream.
    pub long_stream_bytes: u64,
    /// Requests of up to 512 bytes, up to 1 KiB, and so on.
    pub size_classes: [u64; SIZE_CLASSES],
}

impl Kind {
    fn add(&mut self, length_bytes: u64, step: Step) {
        self.request_count += 1;
        self.bytes += length_bytes;
        if step != Step::Jump {
            self.continued_bytes += length_bytes;
        }
        if step == Step::LongStream {
            self.long_stream_bytes += length_bytes;
        }
        let class = (length_bytes.div_ceil(FIRST_CLASS_BYTES)).next_power_of_two().ilog2();
        self.size_classes[(class as usize).min(SIZE_CLASSES - 1)] += 1;
    }
}

/// What is known of a workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Profile {
    /// Reads.
    pub reads: Kind,
    /// Writes.
    pub writes: Kind,
    /// Discards.
    pub discards: Kind,
    /// Time from the first request to the last, if the trace has times.
    pub duration_s: Option<f64>,
    /// Bytes in different blocks that were read or written, estimated.
    pub working_set_bytes: u64,
    /// Bytes in different blocks that were written, estimated.
    pub written_set_bytes: u64,
    /// Part of the accesses to blocks that were the first to theirs: no cache finds these.
    pub first_touch_ratio: f64,
    /// What one step of the timeline is.
    pub axis: Axis,
    /// Equal parts of the trace in turn.
    pub windows: Vec<Window>,
    /// How much of what is written need not go to the origin if it waits a while. Empty if nothing
    /// was written, or the trace has no times.
    pub absorption: Vec<Absorption>,
}

/// Collects a [`Profile`].
pub struct Profiler {
    block_bytes: u32,
    clock: Clock,
    kinds: [Kind; 3],
    totals: Totals,
    timeline: Timeline,
    overwrites: Overwrites,
    sample: BoundedSample<Seen>,
    now: Moment,
}

impl Profiler {
    /// Nothing was seen yet.
    pub fn new(options: &Options) -> Profiler {
        Profiler {
            block_bytes: options.block_bytes,
            clock: Clock::default(),
            kinds: Default::default(),
            totals: Totals::default(),
            timeline: Timeline::default(),
            overwrites: Overwrites::default(),
            sample: BoundedSample::new(SAMPLED_BLOCKS_MAX),
            now: Moment::default(),
        }
    }

    /// The next request begins; its blocks follow.
    pub fn request(&mut self, request: &Request, step: Step) {
        self.now = self.clock.next(request.time_ns);
        for _ in 0..self.timeline.fit(self.now, self.clock.axis()) {
            self.sample.values_mut().for_each(Seen::halve);
        }
        self.timeline.add(self.now, request);
        let kind = match request.operation {
            Operation::Read => 0,
            Operation::Write => 1,
            Operation::Discard => 2,
        };
        self.kinds[kind].add(request.length_bytes, step);
        if request.operation != Operation::Discard {
            let size = u64::from(self.block_bytes);
            let end = (request.offset_bytes + request.length_bytes).div_ceil(size);
            self.totals.add(request.operation, step, end - request.offset_bytes / size);
        }
    }

    /// A block of the request is read or written.
    pub fn access(&mut self, access: &Access) {
        if !self.sample.rate().holds(access.hash) {
            return;
        }
        let rate = self.sample.rate().value();
        let window = self.timeline.window_of(self.now);
        let is_write = access.operation == Operation::Write;
        let note = |seen: &mut Seen, overwrites: &mut Overwrites| {
            seen.touched |= 1 << window;
            if is_write {
                seen.written |= 1 << window;
                overwrites.write(seen.last_write_ns, self.now.time_ns, 1.0 / rate);
                seen.last_write_ns = self.now.time_ns;
            }
        };
        if let Some(seen) = self.sample.get_mut(access.hash) {
            note(seen, &mut self.overwrites);
        } else {
            let mut seen = Seen::default();
            note(&mut seen, &mut self.overwrites);
            self.sample.add(access.hash, seen, |_| {});
        }
    }

    /// A block of the request is given up.
    pub fn discard(&mut self, block: &Discarded) {
        let rate = self.sample.rate().value();
        if let Some(seen) = self.sample.get_mut(block.hash) {
            self.overwrites.discard(seen.last_write_ns.take(), self.now.time_ns, 1.0 / rate);
        }
    }

    /// Estimate of the different blocks so far.
    pub fn distinct_blocks(&self) -> f64 {
        self.sample.distinct_blocks()
    }

    /// What was accessed so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The trace has ended.
    pub fn finish(self) -> Profile {
        let scale = 1.0 / self.sample.rate().value();
        let block_bytes = f64::from(self.block_bytes);
        let duration_s = self.clock.duration_s();
        let written = self.sample.values().filter(|seen| seen.written != 0).count();
        let distinct = self.sample.distinct_blocks();
        let blocks = self.totals.blocks();
        let first = if blocks == 0 { 0.0 } else { distinct / blocks as f64 };
        let absorption = match duration_s {
            Some(duration_s) => self.overwrites.absorption(self.totals.write_blocks, duration_s),
            None => Vec::new(),
        };
        let windows = self.timeline.windows(self.sample.values(), scale * block_bytes);
        let [reads, writes, discards] = self.kinds;
        Profile {
            reads,
            writes,
            discards,
            duration_s,
            working_set_bytes: (distinct * block_bytes) as u64,
            written_set_bytes: (written as f64 * scale * block_bytes) as u64,
            first_touch_ratio: first.min(1.0),
            axis: self.clock.axis(),
            windows,
            absorption,
        }
    }
}

#[cfg(test)]
mod tests;
