//! Reclaim: making segments free again (rules 3, 6 and 11).
//!
//! Segments of which nothing is left are simply dropped. Else `victims` are chosen, by the queues
//! of replacement, and it is the `turn` of their blocks. What is dirty, and what the policy keeps,
//! is appended again; when that and everything that superseded blocks of the victims is durable,
//! one drop record a victim is written; when that is durable the index forgets what is left. The
//! segments are free after the next checkpoint.
//!
//! The order matters: a drop that is durable while a superseding record is not would, after a
//! crash, make the block absent, and the dirty data that it had before would be lost.

mod keep;
mod relocate;
mod turn;
mod victims;

use alloc::vec::Vec;

use crate::background::segment_entries::SegmentRange;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, SummaryUser};
use crate::index::{Piece, Place};
use crate::log::segments::{SegmentState, Superseded};
use crate::log::{DROPS_OF_ROUND, free_low, free_target};
use crate::payload::Payload;
use crate::units::{Time, VolumeSlot};
use crate::wake::{Ended, Waiter};
use keep::Keeper;
use relocate::Item;
pub(crate) use victims::Candidate;

/// Victims of one round: they share two flushes and a checkpoint, and each takes a drop.
const VICTIMS_MAX: usize = DROPS_OF_ROUND as usize;
/// Milliseconds until another round, after one with segments that cannot be emptied now either.
const REST_MS: u64 = 100;
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Finds out what the victims hold.
    Loading,
    /// Appends again what is kept.
    Relocating,
    /// Waits until that, and what superseded blocks, is complete, then durable.
    Completing,
    Flushing,
    /// Waits until the drops are complete, then durable.
    DropCompleting,
    DropFlushing,
}

pub(super) struct Victim {
    pub(super) segment: u32,
    is_loaded: bool,
    pub(super) ranges: Vec<SegmentRange>,
    /// Something dirty could not be appended again: the victim stays.
    is_spared: bool,
}

#[derive(Default)]
pub(crate) struct ReclaimJob {
    state: State,
    pub(super) victims: Vec<Victim>,
    items: Vec<Item>,
    next_item: usize,
    reads_in_flight: usize,
    /// Clean blocks that may still be kept in this round.
    keep_budget: u32,
    /// The last search found no segment that could be emptied.
    found_nothing: bool,
    /// After a round in vain.
    rests_until: Time,
    /// When segments were first short, of late, and none could be reclaimed.
    in_vain_since: Option<Time>,
    /// What is kept beside what the policy keeps.
    pub(super) keeper: Keeper,
}

impl core::fmt::Debug for ReclaimJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (victims, items) = (self.victims.len(), self.items.len());
        write!(f, "{:?} ({victims} victims, item {} of {items}", self.state, self.next_item)?;
        write!(f, ", {} reads)", self.reads_in_flight)
    }
}

impl ReclaimJob {
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether it rests with what it keeps, until a write waits for room or more was appended.
    pub(crate) fn is_resting(&self) -> bool {
        self.keeper.is_resting()
    }

    /// Whether the drop of this segment is written, and the index is about to forget it.
    pub(crate) fn is_dropping(&self, segment: u32) -> bool {
        matches!(self.state, State::DropCompleting | State::DropFlushing)
            && self.victims.iter().any(|victim| victim.segment == segment && !victim.is_spared)
    }
}

impl Engine {
    /// Whether segments have to be reclaimed.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.log.segments.free_count() < free_low(self.log.segments.len())
    }

    /// Free segments at which reclaim rests.
    pub(crate) fn reclaim_target(&self) -> u32 {
        free_target(self.log.segments.len())
    }

    /// Whether reclaim has something to do: for space, or for memory.
    fn is_reclaim_due(&self) -> bool {
        self.may_append()
            && self.has_clients()
            && !self.wants_rest()
            && (self.is_short_of_segments() || self.excess_memory_bytes() > 0)
    }

    /// Whether nothing that the engine can do frees space: all of it is dirty data that cannot go
    /// home, of volumes that are not served; or no more pieces of zeroes have room in a checkpoint,
    /// and these cannot go home.
    pub(crate) fn is_full_for_good(&self) -> bool {
        let is_full_of_data = self.reclaim.is_idle()
            && self.reclaim.found_nothing
            && self.is_short_of_segments()
            && self.dropped_count() == 0;
        (is_full_of_data || !self.has_blank_room()) && !self.can_writeback_help()
    }

    /// Segments that will be free once a checkpoint is durable.
    pub(super) fn dropped_count(&self) -> u32 {
        let dropped = self.log.segments.iter().filter(|(_, segment)| {
            matches!(segment.state, SegmentState::Dropped(_) | SegmentState::Discarding)
        });
        u32::try_from(dropped.count()).expect("segments are counted in u32")
    }

    /// When segments are looked at again after a round in vain.
    pub(crate) fn reclaim_wakeup(&self) -> Option<Time> {
        let stuck_at = self.reclaim.in_vain_since.map(|since| since.after_ms(victims::IN_VAIN_MS));
        let times = [Some(self.reclaim.rests_until), stuck_at];
        times.into_iter().flatten().filter(|at| *at > self.now).min()
    }

    pub(crate) fn advance_reclaim(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            return;
        }
        match self.reclaim.state {
            State::Idle if self.is_reclaim_due() => {
                self.free_segments();
                self.drop_dead_segments();
                if self.ends_rest() || self.reclaim.rests_until <= self.now {
                    self.choose_victims();
                }
            }
            State::Idle => self.reclaim.in_vain_since = None,
            State::Loading => self.load_victims(payload),
            State::Relocating => self.relocate(payload),
            _ => {}
        }
    }

    /// Rule 3: a segment of which the index forgets nothing needs no drop record.
    fn drop_dead_segments(&mut self) {
        let now = self.log.last_sequence;
        for id in 0..self.log.segments.len() {
            let segment = self.log.segments.get(id);
            let is_dead = segment.state == SegmentState::Closed
                && segment.live == 0
                && segment.dirty == 0
                && segment.mapped == 0
                && segment.in_flight.is_empty();
            if is_dead {
                self.log.segments.get_mut(id).state = SegmentState::Dropped(now);
                self.go_on();
            }
        }
    }

    fn load_victims(&mut self, payload: &mut dyn Payload) {
        for index in 0..self.reclaim.victims.len() {
            let victim = &mut self.reclaim.victims[index];
            if victim.is_loaded {
                continue;
            }
            let segment = victim.segment;
            self.reclaim.reads_in_flight += 1;
            if !self.load_entries(segment, SummaryUser::Reclaim, payload) {
                self.reclaim.reads_in_flight -= 1;
                return;
            }
            self.reclaim.victims[index].is_loaded = true;
        }
        self.start_relocation();
    }

    pub(crate) fn on_reclaim_entries(&mut self, segment: u32, ranges: &[SegmentRange]) {
        let victims = &mut self.reclaim.victims;
        let victim = victims.iter_mut().find(|victim| victim.segment == segment);
        victim.expect("it asked").ranges = ranges.to_vec();
        self.reclaim.reads_in_flight -= 1;
    }

    fn start_relocation(&mut self) {
        if self.reclaim.reads_in_flight > 0 {
            return;
        }
        self.spare_held_victims();
        if self.reclaim.victims.is_empty() {
            self.reclaim.state = State::Idle;
            self.go_on();
            return;
        }
        for index in 0..self.reclaim.victims.len() {
            let segment = self.reclaim.victims[index].segment;
            let ranges = core::mem::take(&mut self.reclaim.victims[index].ranges);
            let from = self.queue_of_segment(segment);
            for (slot, piece) in self.pieces_in_segment(segment, &ranges) {
                self.choose_kept(slot, &piece, from);
            }
            self.reclaim.victims[index].ranges = ranges;
        }
        self.reclaim.state = State::Relocating;
        self.go_on();
    }

    pub(crate) fn on_reclaim_woken(&mut self, ended: Ended) {
        if ended == Ended::Failed {
            return;
        }
        match self.reclaim.state {
            State::Completing => {
                self.reclaim.state = State::Flushing;
                self.join_cache_flush(Waiter::Reclaim);
            }
            State::Flushing => self.append_drops(),
            State::DropCompleting => {
                self.reclaim.state = State::DropFlushing;
                self.join_cache_flush(Waiter::Reclaim);
            }
            State::DropFlushing => self.forget_victims(),
            State::Idle | State::Loading | State::Relocating => unreachable!("nothing is awaited"),
        }
    }

    /// What supersedes and relocates blocks of the victims is durable: now their drops.
    fn append_drops(&mut self) {
        let mut has_drops = false;
        for index in 0..self.reclaim.victims.len() {
            let victim = &mut self.reclaim.victims[index];
            let segment = victim.segment;
            let state = self.log.segments.get(segment);
            let needs_drop = state.mapped > 0 && !has_defect(Defect::ForgottenWithoutDrop);
            // Superseded since it was chosen, in a later epoch: nobody moves that.
            victim.is_spared |= state.retained > 0;
            if victim.is_spared || !needs_drop {
                continue;
            }
            if self.has_room_for_drop() {
                self.append_drop(segment);
                has_drops = true;
            } else {
                self.reclaim.victims[index].is_spared = true;
            }
        }
        if has_drops && !has_defect(Defect::ForgottenBeforeDrop) {
            self.reclaim.state = State::DropCompleting;
            self.wait_for_frontier(Waiter::Reclaim);
        } else {
            self.forget_victims();
        }
    }

    /// Rule 3: the drops are durable; the index may forget.
    fn forget_victims(&mut self) {
        let victims = core::mem::take(&mut self.reclaim.victims);
        let is_in_vain =
            |victim: &Victim| victim.is_spared && self.log.segments.get(victim.segment).was_spared;
        if victims.iter().all(is_in_vain) {
            self.reclaim.rests_until = self.now.after_ms(REST_MS);
        }
        for victim in victims {
            if victim.is_spared {
                let segment = self.log.segments.get_mut(victim.segment);
                segment.state = SegmentState::Closed;
                segment.was_spared = true;
                continue;
            }
            for (slot, piece) in self.pieces_in_segment(victim.segment, &victim.ranges) {
                self.forget_piece(slot, &piece);
            }
            let now = self.log.last_sequence;
            let segment = self.log.segments.get_mut(victim.segment);
            assert_eq!(segment.mapped, 0);
            assert_eq!(segment.live, 0);
            segment.state = SegmentState::Dropped(now);
        }
        self.end_keeping();
        self.reclaim.items.clear();
        self.reclaim.next_item = 0;
        self.reclaim.state = State::Idle;
    }

    fn forget_piece(&mut self, slot: VolumeSlot, piece: &Piece) {
        self.count_forgotten(slot, piece);
        match piece.place {
            Place::Data(_) => {
                for position in piece.positions() {
                    // Never dirty: that was appended again, or its superseder is durable.
                    assert!(!self.log.segments.is_dirty(position));
                    self.log.segments.clear_live(position);
                }
                self.set_counters.dropped_blocks += piece.block_count;
            }
            Place::Blank { header, .. } => {
                assert!(
                    !self.log.segments.is_dirty(header) || has_defect(Defect::BlankNotRelocated)
                );
                // Of a part something newer may have been appended since the drop was.
                for live in self.live_pieces(slot, piece.start, piece.end(), header) {
                    self.retire(slot, &live, Superseded::Dead);
                }
            }
            Place::Absent => unreachable!("it lies in no segment"),
        }
        let index = &mut self.volume_mut(slot).index;
        index.complete.remove(piece.start, piece.end());
        self.unmap(piece);
    }
}
