//! How fast writeback gives log back, and how full of dirty data the log is.
//!
//! Segments become reclaimable all at once, when a window is home. To slow writers down smoothly
//! something smoother is needed: a window counts as given back in proportion to its blocks that
//! were written, long before its segments are.

use crate::engine::Engine;
use crate::units::Time;

/// Milliseconds of a measurement.
const SAMPLE_MS: u64 = 100;
/// Of an average, what a new measurement counts: one part in so many.
const SMOOTHING: u64 = 8;
/// Segments of one window at least, if so many have dirty blocks.
const WINDOW_SEGMENTS_MIN: usize = 16;
/// Blocks of the segments of a larger window at most: 512 MiB. It bounds the memory of the plan.
pub(super) const WINDOW_BLOCKS_MAX: u64 = 1 << 17;
/// Of the log between the soft and the hard mark, what a window takes while writers wait, and what
/// is left free when it is home.
const WINDOW_PERCENT: u64 = 60;
const MARGIN_PERCENT: u64 = 10;
/// What [`Engine::dirty_excess`] is a share of.
pub(crate) const EXCESS_FULL: u64 = 1_000;

/// What the windows of writeback give back.
#[derive(Debug, Default)]
pub(crate) struct DrainRate {
    /// Blocks of the log a second; zero while it is not known.
    blocks_per_second: u64,
    /// Dirty blocks a second that go home.
    dirty_per_second: u64,
    /// Blocks of the log that the window under way gives back in all.
    window_blocks: u64,
    /// Dirty blocks of the window, and those of them whose runs have ended.
    planned: u64,
    done: u64,
    /// The youngest of its segments: what was opened later is in use again for something else.
    last_order: u64,
    /// Of what the log holds at the last measurement, what counts as given back.
    credit: u64,
    /// Beginning of the measurement under way, and `done` at that time.
    since: (Time, u64),
}

impl DrainRate {
    fn given_back(&self, done: u64) -> u64 {
        (self.window_blocks * done).checked_div(self.planned).unwrap_or(0)
    }
}

/// The average a second when so many blocks more were counted.
fn averaged(before: u64, blocks: u64, elapsed_ns: u64) -> u64 {
    let sample = u128::from(blocks) * 1_000_000_000 / u128::from(elapsed_ns);
    let sample = u64::try_from(sample).expect("blocks of a log");
    if before == 0 { sample } else { (before * (SMOOTHING - 1) + sample) / SMOOTHING }
}

impl Engine {
    /// A window begins that writes so many blocks.
    pub(super) fn begin_measuring(&mut self, planned: u64) {
        self.writeback.rate.last_order = self.last_order_of_window();
        let window_blocks = self.held_by_window();
        let since = (self.now, 0);
        let rate = &mut self.writeback.rate;
        let DrainRate { blocks_per_second, dirty_per_second, last_order, .. } = *rate;
        *rate = DrainRate {
            blocks_per_second,
            dirty_per_second,
            window_blocks,
            planned,
            done: 0,
            last_order,
            credit: 0,
            since,
        };
    }

    /// A run of so many blocks has ended.
    pub(super) fn measure(&mut self, blocks: u64) {
        let now = self.now;
        let rate = &mut self.writeback.rate;
        // In order a record of zeroes may go home in pieces.
        rate.done = (rate.done + blocks).min(rate.planned);
        let elapsed_ns = now.nanoseconds_since(rate.since.0);
        if elapsed_ns < SAMPLE_MS * 1_000_000 {
            return;
        }
        let given_back = rate.given_back(rate.done) - rate.given_back(rate.since.1);
        rate.blocks_per_second = averaged(rate.blocks_per_second, given_back, elapsed_ns);
        let home = rate.done - rate.since.1;
        rate.dirty_per_second = averaged(rate.dirty_per_second, home, elapsed_ns);
        rate.since = (now, rate.done);
        let remains = rate.window_blocks - rate.given_back(rate.done);
        self.writeback.rate.credit = self.held_by_window().saturating_sub(remains);
    }

    /// Nothing was to be written for a while: what was measured before counts, this does not.
    pub(super) fn skip_measuring(&mut self) {
        let rate = &mut self.writeback.rate;
        rate.since = (self.now, rate.done);
    }

    fn held_by_window(&self) -> u64 {
        let last_order = self.writeback.rate.last_order;
        let is_its = |id: &&u32| self.log.segments.get(**id).open_order <= last_order;
        let segments = self.writeback.segments.iter().filter(is_its);
        segments.map(|id| self.log.segments.held_blocks_of(*id)).sum()
    }

    /// The window is home: its segments hold nothing, or it was given up.
    pub(super) fn end_measuring(&mut self) {
        self.writeback.rate.credit = 0;
    }

    /// Blocks of the log that writeback gives back a second; `None` if nobody knows.
    pub(crate) fn drain_rate(&self) -> Option<u64> {
        Some(self.writeback.rate.blocks_per_second).filter(|rate| *rate > 0)
    }

    /// Dirty blocks a second that go home; `None` if nobody knows.
    pub(crate) fn writeback_rate(&self) -> Option<u64> {
        Some(self.writeback.rate.dirty_per_second).filter(|rate| *rate > 0)
    }

    pub(super) fn dirty_limit(&self, percent: u8) -> u64 {
        self.log.segments.block_count() * u64::from(percent) / 100
    }

    fn soft_mark(&self) -> u64 {
        self.dirty_limit(self.settings.dirty_soft_percent)
    }

    fn hard_mark(&self) -> u64 {
        self.dirty_limit(self.settings.dirty_hard_percent)
    }

    /// Blocks of the log that a window is to take while writers wait: most of what lies between the
    /// marks.
    fn window_blocks_wanted(&self) -> u64 {
        let span = self.hard_mark().saturating_sub(self.soft_mark());
        (span * WINDOW_PERCENT / 100).min(WINDOW_BLOCKS_MAX)
    }

    /// Where a writer that never pauses comes to rest. What is written while a window goes home has
    /// room from here to the hard mark: as much as the window gives back, and a margin.
    fn rest_mark(&self) -> u64 {
        let (soft, hard) = (self.soft_mark(), self.hard_mark());
        let span = hard.saturating_sub(soft);
        let window = self.window_blocks_wanted();
        (soft + span / 2).min(hard.saturating_sub(window + span * MARGIN_PERCENT / 100))
    }

    /// How far the log is on its way from the soft mark, through where writers come to rest, which
    /// is half of it, to the hard mark, which is [`EXCESS_FULL`].
    pub(crate) fn dirty_excess(&self) -> u64 {
        let held = self.log.segments.held_blocks();
        if held >= self.hard_mark() {
            return EXCESS_FULL;
        }
        let at = held.saturating_sub(self.writeback.rate.credit);
        let (soft, rest, hard) = (self.soft_mark(), self.rest_mark(), self.hard_mark());
        let half = EXCESS_FULL / 2;
        let part = |at: u64, from: u64, to: u64| {
            at.saturating_sub(from) * half / to.saturating_sub(from).max(1)
        };
        let excess = if at < rest { part(at, soft, rest) } else { half + part(at, rest, hard) };
        excess.min(EXCESS_FULL - 1)
    }

    /// Segments of a window at most. The larger it is, the less the origin has to seek. Nothing of
    /// it is given back before it is home, so it is no larger than the room for what is written
    /// meanwhile; or, where more is dirty than there should be, than that room when it is over.
    pub(super) fn window_segments_max(&self) -> usize {
        let room = self.hard_mark().saturating_sub(self.log.segments.held_blocks());
        let blocks = room.max(self.window_blocks_wanted()).min(WINDOW_BLOCKS_MAX);
        let segments = blocks / u64::from(self.log.segments.segment_blocks());
        usize::try_from(segments).expect("counted in u32").max(WINDOW_SEGMENTS_MIN)
    }
}
