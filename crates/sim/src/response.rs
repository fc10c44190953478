//! How writeback answers a step: a burst beyond `writeback_percent`, a steady writer, and its end,
//! while another client keeps the origin in use.
//!
//! The engine is the real one; its origin is the model of a hard disk, its cache device that of an
//! SSD, and time is virtual. A response is a function of its [`Step`].
//!
//! Invariants:
//! - A client of the origin reads what is not cached, and pauses for less than the half second
//!   after which an origin counts as idle: writeback is paced all the time.
//! - Each write is to a block that was not written before, so that what becomes dirty in a second
//!   is what is written in it.
//!
//! Deliberately absent: failures, flushes and a full log; [`crate::run()`] has them.

use std::ops::RangeInclusive;

use forebay_device_model::{HardDisk, Model};
use forebay_engine::units::BLOCK_BYTES;

use crate::modelled_host::{Host, Setup, Wish};
use crate::random::Random;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;
const ORIGIN_BYTES: u64 = 2 << 30;
/// A target of 20 MiB in a log of fifty times that: the soft mark is out of reach, also if each
/// write is a record of its own, and writeback in order of the origin leaves something dirty in
/// each segment. Beyond the mark writeback would not be paced.
const CACHE_BYTES: u64 = 1 << 30;
const WRITEBACK_PERCENT: u8 = 2;
/// Blocks that are written to: the first half of the origin. The other half is read.
const WRITTEN_BLOCKS: u64 = ORIGIN_BYTES / BLOCK / 2;
/// Spreads successive writes over these. Odd, so that each block is met once.
const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;
/// Writes a second of the burst: what an SSD takes easily.
const BURST_PER_SECOND: u64 = 4_000;
/// Pauses of the client that reads, in milliseconds.
const PAUSE_MS: RangeInclusive<u64> = 50..=150;
/// Seconds before the burst.
const LEAD_SECONDS: u64 = 10;
/// Around the target, what counts as being there: so many percent of the step.
const SETTLED_PERCENT: u64 = 5;

/// What is answered to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Decides where is read and written, and when.
    pub seed: u64,
    /// What the burst makes dirty beyond the target.
    pub burst_bytes: u64,
    /// What is written a second after the burst.
    pub stream_bytes_per_second: u64,
    /// For how long.
    pub stream_seconds: u64,
    /// How long nothing is written then.
    pub rest_seconds: u64,
}

impl Step {
    /// Most that can be written, in bytes: each block of the written half once.
    pub const WRITTEN_BYTES_MAX: u64 = WRITTEN_BLOCKS * BLOCK;

    /// The one that the documents show.
    #[must_use]
    pub fn usual(seed: u64) -> Step {
        Step {
            seed,
            burst_bytes: 8 << 20,
            stream_bytes_per_second: 48 << 10,
            stream_seconds: 900,
            rest_seconds: 300,
        }
    }

    /// All that is written, about: nothing is dirty before.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        let stream = self.stream_bytes_per_second.saturating_mul(self.stream_seconds);
        let target_bytes = CACHE_BYTES / 100 * u64::from(WRITEBACK_PERCENT);
        target_bytes.saturating_add(self.burst_bytes).saturating_add(stream)
    }
}

/// A second of the response, at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Since the engine serves.
    pub second: u64,
    /// Newer than the origin.
    pub dirty_bytes: u64,
    /// What `writeback_percent` allows of it.
    pub target_bytes: u64,
    /// The rate that the controller set last, in bytes a second.
    pub rate_bytes: u64,
    /// Written by the client in this second.
    pub written_bytes: u64,
    /// Written home in this second.
    pub written_back_bytes: u64,
}

impl Sample {
    /// Dirty bytes beyond the target; fewer than it, if negative.
    #[must_use]
    pub fn excess_bytes(&self) -> i64 {
        self.dirty_bytes.cast_signed() - self.target_bytes.cast_signed()
    }
}

/// What the step came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// Second by second.
    pub samples: Vec<Sample>,
    /// The second in which the burst was over and the stream began.
    pub stream_begins: u64,
    /// The second in which the stream was over.
    pub stream_ends: u64,
    /// Blocks that were written, are not dirty, and are not on the origin: none.
    pub lost_blocks: u64,
}

impl Response {
    /// The most that was dirty beyond the target.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        let most = self.samples.iter().map(Sample::excess_bytes).max().unwrap_or(0);
        u64::try_from(most).unwrap_or(0)
    }

    /// How far below its target dirty data came after the step.
    #[must_use]
    pub fn overshoot_bytes(&self) -> u64 {
        let after = self.samples.iter().filter(|sample| sample.second >= self.stream_begins);
        let least = after.map(Sample::excess_bytes).min().unwrap_or(0);
        u64::try_from(-least).unwrap_or(0)
    }

    /// What counts as being at the target: so far from it.
    #[must_use]
    pub fn band_bytes(&self) -> u64 {
        self.step_bytes() * SETTLED_PERCENT / 100
    }

    fn is_settled(&self, sample: &Sample) -> bool {
        sample.excess_bytes().unsigned_abs() <= self.band_bytes()
    }

    /// Seconds from the end of the burst until dirty data stays at its target as long as the stream
    /// lasts; `None` if it never does.
    #[must_use]
    pub fn settled_after(&self) -> Option<u64> {
        let during = self.stream_begins..self.stream_ends;
        let mut stream = self.samples.iter().filter(|sample| during.contains(&sample.second));
        let last = stream.rfind(|sample| !self.is_settled(sample)).map(|sample| sample.second);
        let first = last.map_or(self.stream_begins, |second| second + 1);
        (first < self.stream_ends).then(|| first - self.stream_begins)
    }

    /// How often dirty data went from above its target to below, or back, after it had settled,
    /// by more than what counts as being there.
    #[must_use]
    pub fn swings_after_settling(&self) -> usize {
        let Some(after) = self.settled_after() else { return usize::MAX };
        let from = self.stream_begins + after;
        let settled = self.samples.iter().filter(|sample| sample.second >= from);
        let outside = settled.filter(|sample| !self.is_settled(sample));
        let sides: Vec<i64> = outside.map(|sample| sample.excess_bytes().signum()).collect();
        sides.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }
}

/// Makes the step and watches.
///
/// # Panics
///
/// If more is written than [`Step::WRITTEN_BYTES_MAX`].
#[must_use]
pub fn respond(step: &Step) -> Response {
    Watch::new(step).run()
}

/// Who does what next.
struct Watch<'a> {
    step: &'a Step,
    host: Host,
    random: Random,
    /// When the engine began to serve.
    began: u64,
    /// Blocks written so far.
    written: u64,
    /// When the next write is due.
    write_at: u64,
    /// When the next read is; `None` while one is under way.
    read_at: Option<u64>,
    /// Dirty data is beyond the target by as much as it shall be.
    burst_ended: Option<u64>,
    samples: Vec<Sample>,
    /// Blocks written and written home at the last sample.
    sampled: (u64, u64),
}

impl Watch<'_> {
    fn new(step: &Step) -> Watch<'_> {
        let setup = Setup {
            cache_bytes: CACHE_BYTES,
            origin_bytes: ORIGIN_BYTES,
            origin: Model::HardDisk(HardDisk::server_7200()),
            writeback_percent: WRITEBACK_PERCENT,
        };
        let host = Host::serve(setup, step.seed);
        let began = host.now();
        Watch {
            step,
            host,
            random: Random::new(!step.seed),
            began,
            written: 0,
            write_at: began + LEAD_SECONDS * SECOND_NS,
            read_at: Some(began),
            burst_ended: None,
            samples: Vec::new(),
            sampled: (0, 0),
        }
    }

    fn stream_ends(&self) -> Option<u64> {
        Some(self.burst_ended? + self.step.stream_seconds * SECOND_NS)
    }

    fn run(mut self) -> Response {
        loop {
            let sample_at = self.began + (self.samples.len() as u64 + 1) * SECOND_NS;
            let events = [self.host.next_event(), self.read_at, self.next_write()];
            let then = events.into_iter().flatten().min().unwrap_or(sample_at).min(sample_at);
            let wishes = self.wishes(then);
            for answered in self.host.advance(then, &wishes) {
                if matches!(answered, Wish::Read { .. }) {
                    let pause_ms = self.random.between(PAUSE_MS);
                    self.read_at = Some(self.host.now() + pause_ms * MILLISECOND_NS);
                }
            }
            if then == sample_at {
                self.sample();
                let end = self.stream_ends().map(|end| end + self.step.rest_seconds * SECOND_NS);
                if end.is_some_and(|end| end <= then) {
                    return self.response();
                }
            }
        }
    }

    fn next_write(&self) -> Option<u64> {
        let is_over = self.stream_ends().is_some_and(|end| self.write_at >= end);
        (!is_over && self.step.stream_bytes_per_second > 0 || self.burst_ended.is_none())
            .then_some(self.write_at)
    }

    /// What the clients want at a time.
    fn wishes(&mut self, now: u64) -> Vec<Wish> {
        let mut wishes = Vec::new();
        if self.read_at.is_some_and(|at| at <= now) {
            self.read_at = None;
            let block = WRITTEN_BLOCKS + self.random.below(WRITTEN_BLOCKS);
            wishes.push(Wish::Read { client: 0, block, block_count: 1 });
        }
        if self.next_write().is_some_and(|at| at <= now) {
            wishes.push(Wish::Write(self.block(self.written)));
            self.written += 1;
            let (status, pace) = self.host.status();
            let peak_blocks = pace.target_blocks + self.step.burst_bytes / BLOCK;
            if self.burst_ended.is_none() && status.dirty_blocks >= peak_blocks {
                self.burst_ended = Some(now);
            }
            let per_second = match self.burst_ended {
                None => BURST_PER_SECOND,
                Some(_) => (self.step.stream_bytes_per_second / BLOCK).max(1),
            };
            self.write_at += SECOND_NS / per_second;
        }
        wishes
    }

    /// The block of a write, by its number.
    fn block(&self, number: u64) -> u64 {
        assert!(number < WRITTEN_BLOCKS, "each block is written once");
        number.wrapping_add(self.step.seed).wrapping_mul(STRIDE) % WRITTEN_BLOCKS
    }

    fn sample(&mut self) {
        let (status, pace) = self.host.status();
        let written_back = status.counters.writeback_blocks;
        let (written_before, back_before) = self.sampled;
        self.samples.push(Sample {
            second: self.samples.len() as u64 + 1,
            dirty_bytes: status.dirty_blocks * BLOCK,
            target_bytes: pace.target_blocks * BLOCK,
            rate_bytes: pace.blocks_per_second * BLOCK,
            written_bytes: (self.written - written_before) * BLOCK,
            written_back_bytes: (written_back - back_before) * BLOCK,
        });
        self.sampled = (self.written, written_back);
    }

    fn response(self) -> Response {
        let second = |at: Option<u64>| (at.expect("it is over") - self.began).div_ceil(SECOND_NS);
        let blocks = (0..self.written).map(|number| self.block(number));
        let away = blocks.filter(|block| !self.host.is_home(*block)).count() as u64;
        let dirty = self.host.status().0.dirty_blocks;
        Response {
            stream_begins: second(self.burst_ended),
            stream_ends: second(self.stream_ends()),
            lost_blocks: away.saturating_sub(dirty),
            samples: self.samples,
        }
    }
}
