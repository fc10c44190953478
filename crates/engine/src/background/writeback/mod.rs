//! Writeback: dirty data goes home.
//!
//! A window is the oldest stretch of the log that has dirty blocks. Its blocks are sorted by origin
//! position, merged into runs of up to 1 MiB, read from the cache device, written under the range
//! lock, and the origin is flushed; then they are clean. Rule 5 stands over it: a block is written
//! home only after its record is durable on the cache device, for otherwise a power cut could leave
//! on the origin what the volume never durably had, in an order that no flush allowed.
//!
//! That is the coalescing order. `ordered` makes windows of flush epochs for volumes that ask for
//! it; the two kinds take turns.
//!
//! `demand` says whether a window is due, `plan` what it writes and in which order, `gather` makes
//! one run of those that lie close together where that pays by the `cost` of the origin, `pacing`
//! says how fast they may go, with the rate of the `controller` and as many at once as `depth`
//! allows, `runs` writes them, `bad` remembers what an origin did not take, and `pause` leaves a
//! volume alone for a while whose writeback failed.

pub(crate) mod bad;
pub(crate) mod controller;
pub(crate) mod cost;
mod demand;
pub(crate) mod depth;
mod gather;
mod ordered;
pub(crate) mod pacing;
pub(crate) mod pause;
mod plan;
pub(crate) mod rate;
mod runs;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use self::demand::Turn;
use self::ordered::OrderedWindow;
use self::pause::Pauses;
use self::rate::DrainRate;
use self::runs::Run;
use crate::background::segment_entries::SegmentRange;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, SummaryUser};
use crate::index::Piece;
use crate::log::segments::SegmentState;
use crate::payload::Payload;
use crate::slab::Slab;
use crate::units::{CacheBlock, Time, VolumeSlot};
use crate::wake::{Ended, Waiter};

/// Epochs of one window of an ordered volume at most, so that others get their turn.
const EPOCHS_OF_WINDOW_MAX: usize = 64;
/// Milliseconds until another search, if one found nothing to write.
const REST_MS: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// In order: waits until all records are complete.
    Completing,
    /// Finds out what the segments hold.
    Loading,
    /// Waits until the records are durable.
    Ahead,
    /// Writes runs.
    Writing,
    /// Waits for the origins' flushes.
    Flushing,
    /// In order: waits until the mark is written, then until it is durable.
    Marking,
    MarkFlushing,
}

#[derive(Default)]
pub(crate) struct WritebackJob {
    state: State,
    segments: Vec<u32>,
    next_segment: usize,
    loads: usize,
    pieces: Vec<(VolumeSlot, Piece)>,
    queue: VecDeque<Run>,
    runs: Slab<Run>,
    /// A region whose runs go home one by one.
    plain_region: Option<(VolumeSlot, u64)>,
    flushes: usize,
    touched: BTreeSet<VolumeSlot>,
    /// Runs of the window that failed, by volume.
    failed_runs: BTreeMap<VolumeSlot, u32>,
    /// A window in order, if one is under way.
    ordered: Option<OrderedWindow>,
    last_turn: Option<Turn>,
    /// Volumes of which a gathered run failed, and the windows until runs are gathered again.
    plain: BTreeMap<VolumeSlot, u32>,
    /// Reclaim needs clean segments.
    pub(crate) is_urgent: bool,
    /// It did when the window began.
    was_urgent: bool,
    /// Windows that have to end before one may be cut short, so that each other one at least comes
    /// to its end.
    uncut_windows: u32,
    /// Blank records that the origin durably has.
    pub(crate) clean_blanks: VecDeque<CacheBlock>,
    pub(crate) pauses: Pauses,
    rate: DrainRate,
    /// Segments opened up to this one hold nothing that may be written home now.
    after_order: u64,
    /// When the window began.
    began_at: Time,
    /// When it came to the volume that it writes.
    volume_began_at: Time,
    /// It takes everything home that was dirty then.
    has_taken_all: bool,
    /// After a vain search through all segments.
    rests_until: Time,
    /// Dirty blocks that had a wrong checksum, and how often.
    suspects: BTreeMap<CacheBlock, u8>,
}

impl core::fmt::Debug for WritebackJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (runs, queued) = (self.runs.len(), self.queue.len());
        write!(f, "{:?} ({runs} runs, {queued} queued, {} flushes", self.state, self.flushes)?;
        write!(f, ", urgent {})", self.is_urgent)
    }
}

impl WritebackJob {
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }
}

impl Engine {
    pub(crate) fn advance_writeback(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            return;
        }
        self.forget_clean_blanks();
        self.wake_blank_waiters();
        self.hurry_homed();
        match self.writeback.state {
            State::Idle => self.start_window(),
            State::Loading => self.load_window(payload),
            State::Writing => self.start_runs(payload),
            State::Completing
            | State::Ahead
            | State::Flushing
            | State::Marking
            | State::MarkFlushing => {}
        }
        if self.writeback.state == State::Loading {
            self.load_window(payload);
        }
    }

    /// When a volume whose origin failed is tried again.
    pub(crate) fn writeback_wakeup(&self) -> Option<Time> {
        let pauses = self.writeback.pauses.ends();
        let times = pauses.chain([self.writeback.rests_until]).chain(self.pacing_wakeup());
        times.filter(|at| *at > self.now).min()
    }

    fn start_window(&mut self) {
        match self.next_turn() {
            None => return,
            Some(Turn::Coalescing) => {}
            Some(Turn::Ordered(slot)) => {
                self.start_ordered_window(slot);
                return;
            }
        }
        let mut dirty: Vec<(u64, u32)> = self
            .log
            .segments
            .iter()
            .filter(|(_, segment)| {
                segment.dirty > 0
                    && segment.open_order > self.writeback.after_order
                    && matches!(
                        segment.state,
                        SegmentState::Open | SegmentState::Closed | SegmentState::Reclaiming
                    )
            })
            .map(|(id, segment)| (segment.open_order, id))
            .collect();
        if dirty.is_empty() {
            // Looked at everything and found nothing to write.
            self.writeback.after_order = 0;
            self.writeback.rests_until = self.now.after_ms(REST_MS);
            return;
        }
        dirty.sort_unstable();
        let length = self.window_segments_max();
        self.writeback.has_taken_all = dirty.len() <= length && self.writeback.after_order == 0;
        dirty.truncate(length);
        self.begin_loading(dirty.into_iter().map(|(_, id)| id).collect());
    }

    /// Whether a window of twice the size could begin now: one that began when little was dirty
    /// would hold up the others for long, since it seeks more for each block.
    fn is_outgrown(&self) -> bool {
        if self.is_ordered_window() || self.writeback.uncut_windows > 0 {
            return false;
        }
        let twice = 2 * self.writeback.segments.len();
        if self.window_segments_max() < twice {
            return false;
        }
        let slots = self.slots().filter(|slot| self.goes_home_coalesced(*slot));
        let dirty: u64 = slots.map(|slot| self.volume(slot).dirty_blocks).sum();
        dirty / u64::from(self.log.segments.segment_blocks()) >= twice as u64
    }

    /// Whether windows that mix volumes take dirty data of this one.
    fn goes_home_coalesced(&self, slot: VolumeSlot) -> bool {
        !self.volume(slot).is_ordered() && self.is_writable(slot) && self.owes_writeback(slot)
    }

    /// Begins a window of these segments: finds out what they hold.
    fn begin_loading(&mut self, segments: Vec<u32>) {
        self.writeback.segments = segments;
        self.writeback.began_at = self.now;
        self.writeback.next_segment = 0;
        self.writeback.was_urgent = core::mem::take(&mut self.writeback.is_urgent);
        self.writeback.failed_runs.clear();
        self.writeback.state = State::Loading;
        self.go_on();
    }

    fn load_window(&mut self, payload: &mut dyn Payload) {
        while self.writeback.next_segment < self.writeback.segments.len() {
            let segment = self.writeback.segments[self.writeback.next_segment];
            self.writeback.loads += 1;
            if !self.load_entries(segment, SummaryUser::Writeback, payload) {
                self.writeback.loads -= 1;
                return;
            }
            self.writeback.next_segment += 1;
        }
        if self.writeback.loads == 0 {
            if self.is_ordered_window() {
                self.plan_epochs();
            } else {
                self.plan_runs();
            }
        }
    }

    pub(crate) fn on_writeback_entries(&mut self, segment: u32, ranges: &[SegmentRange]) {
        self.writeback.loads -= 1;
        let goes_home =
            |slot: &VolumeSlot| self.goes_home_coalesced(*slot) && !self.is_resting(*slot);
        let slots: BTreeSet<VolumeSlot> = self.slots().filter(goes_home).collect();
        for (slot, piece) in self.pieces_in_segment(segment, ranges) {
            if slots.contains(&slot) {
                let parts = self.dirty_parts(slot, &piece);
                self.writeback.pieces.extend(parts.into_iter().map(|part| (slot, part)));
            }
        }
    }

    /// What is dirty in the segments, in one sweep; begins when its records are durable (rule 5).
    fn plan_runs(&mut self) {
        let pieces = core::mem::take(&mut self.writeback.pieces);
        let queue = self.sweep(pieces);
        if queue.is_empty() {
            self.end_empty_window();
            return;
        }
        self.writeback.after_order = 0;
        self.begin_measuring(queue.iter().map(Run::log_blocks).sum());
        self.writeback.queue = queue;
        self.writeback.plain_region = None;
        self.wait_until_durable();
    }

    /// Rule 5: nothing goes home before its record is durable.
    fn wait_until_durable(&mut self) {
        let needed = self.writeback.segments.iter().map(|id| self.log.segment_flush(*id)).max();
        if self.log.flushes.is_finished(needed.unwrap_or(0))
            || has_defect(Defect::WriteAheadSkipped)
        {
            self.start_writing();
        } else {
            self.writeback.state = State::Ahead;
            self.join_cache_flush(Waiter::Writeback);
        }
    }

    fn start_writing(&mut self) {
        self.writeback.state = State::Writing;
        self.writeback.volume_began_at = self.now;
        if self.is_ordered_window() {
            self.start_epoch();
        }
        self.go_on();
    }

    /// The segments held nothing that may be written home now: dirty blocks of other volumes, or of
    /// records under way. The next window begins behind them.
    fn end_empty_window(&mut self) {
        self.writeback.after_order = self.last_order_of_window();
        self.writeback.state = State::Idle;
        self.go_on();
    }

    pub(super) fn last_order_of_window(&self) -> u64 {
        let orders = self.writeback.segments.iter().map(|id| self.log.segments.get(*id).open_order);
        orders.max().unwrap_or(0)
    }

    pub(crate) fn on_writeback_woken(&mut self, ended: Ended) {
        match self.writeback.state {
            State::Completing if ended == Ended::Well => self.choose_epochs(),
            State::Ahead if ended == Ended::Well => self.start_writing(),
            State::Flushing if self.is_ordered_window() => {
                self.on_epoch_flushed(ended);
            }
            State::Marking if ended == Ended::Well => self.flush_mark(),
            State::MarkFlushing if ended == Ended::Well => self.on_epoch_drained(),
            State::Flushing => {
                self.writeback.flushes -= 1;
                if self.writeback.flushes == 0 {
                    self.note_window_home(Turn::Coalescing);
                    self.end_window();
                }
            }
            _ => assert_eq!(ended, Ended::Failed),
        }
    }

    fn end_window(&mut self) {
        self.end_measuring();
        self.writeback.uncut_windows = self.writeback.uncut_windows.saturating_sub(1);
        self.writeback.state = State::Idle;
    }

    fn flush_window(&mut self) {
        if self.is_ordered_window() {
            self.flush_epoch();
            return;
        }
        let touched = core::mem::take(&mut self.writeback.touched);
        self.writeback.flushes = touched.len();
        self.writeback.plain.retain(|slot, windows| {
            *windows -= u32::from(touched.contains(slot));
            *windows > 0
        });
        self.go_on();
        if touched.is_empty() {
            // Nothing of it is home: what its origin refuses, perhaps. The next window begins
            // behind it, or younger blocks that could go home would never have their turn.
            self.writeback.after_order = self.last_order_of_window();
            self.writeback.rests_until = self.now.after_ms(REST_MS);
            self.end_window();
            return;
        }
        self.writeback.state = State::Flushing;
        for slot in touched {
            self.join_origin_flush(slot, Waiter::Writeback);
        }
    }
}
