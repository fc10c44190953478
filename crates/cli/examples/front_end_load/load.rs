//! What a queue is to do, and how long each request took.

use std::time::Instant;

use clap::ValueEnum;
use forebay_device_model::Random;
use hdrhistogram::Histogram;

/// Bytes of a request.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Longest latency that is told from longer ones: a minute, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Three digits of a latency are kept.
const DIGITS: u8 = 3;

/// What is done with blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Work {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

/// An empty histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("the bounds make sense")
}

/// What a [`Load`] is made of.
pub(crate) struct Options {
    pub(crate) work: Work,
    pub(crate) depth: u16,
    /// Blocks of the volume.
    pub(crate) block_count: u64,
    /// After so many requests no more are begun.
    pub(crate) request_count_max: u64,
    /// From then on, neither.
    pub(crate) until: Instant,
    pub(crate) seed: u64,
}

/// The requests of one queue.
pub(crate) struct Load {
    options: Options,
    random: Random,
    /// When the request of each slot began.
    began: Vec<Instant>,
    begun_count: u64,
    in_flight: u16,
    pub(crate) latencies: Histogram<u64>,
}

impl Load {
    pub(crate) fn new(options: Options) -> Load {
        Load {
            random: Random::new(options.seed),
            began: vec![Instant::now(); options.depth.into()],
            begun_count: 0,
            in_flight: 0,
            latencies: histogram(),
            options,
        }
    }

    pub(crate) fn work(&self) -> Work {
        self.options.work
    }

    pub(crate) fn depth(&self) -> u16 {
        self.options.depth
    }

    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The block of the next request of a slot, unless it is over.
    pub(crate) fn begin(&mut self, slot: u16, now: Instant) -> Option<u64> {
        let Options { block_count, request_count_max, until, .. } = self.options;
        if now >= until || self.begun_count >= request_count_max {
            return None;
        }
        self.began[usize::from(slot)] = now;
        self.begun_count += 1;
        self.in_flight += 1;
        Some(self.random.below(block_count))
    }

    /// The request of a slot has ended.
    pub(crate) fn end(&mut self, slot: u16, now: Instant) {
        let nanoseconds = (now - self.began[usize::from(slot)]).as_nanos();
        self.latencies.saturating_record(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        self.in_flight -= 1;
    }
}
