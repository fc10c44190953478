//! Which segments are reclaimed next.

use alloc::vec::Vec;

use super::keep::KeepLevel;
use super::{State, VICTIMS_MAX, Victim};
use crate::engine::Engine;
use crate::log::segments::{Segment, SegmentState};
use crate::log::{DROPS_OF_ROUND, MOSTLY_DEAD_DIVISOR, RESERVE_SEGMENTS, SPARE_SEGMENTS};

/// A closed segment that could be reclaimed.
pub(crate) struct Candidate {
    order: u64,
    pub(crate) id: u32,
    pub(crate) live: u32,
    dirty: u32,
    retained: u32,
    was_spared: bool,
}

/// Log that moving so many blocks takes at most: each in a record of its own, and the drop.
fn room_to_move(blocks: u32) -> u32 {
    2 * blocks + 2
}

/// Milliseconds without a segment that could be reclaimed after which writeback is taken to be
/// stuck: each of them has blocks that their origin refuses, though it takes others.
pub(super) const IN_VAIN_MS: u64 = 30_000;
/// Then segments are emptied of which at most one of so many blocks is dirty.
const STUCK_DIVISOR: u32 = 2;

impl Engine {
    /// Segments that could be reclaimed, in the order of their turns.
    fn candidates(&self) -> Vec<Candidate> {
        let closed = self.log.segments.iter();
        let closed =
            closed.filter(|(_, s)| s.state == SegmentState::Closed && s.in_flight.is_empty());
        let candidate = |(id, s): (u32, &Segment)| Candidate {
            order: s.queue_order,
            id,
            live: s.live,
            dirty: s.dirty,
            retained: s.retained,
            was_spared: s.was_spared,
        };
        let mut candidates: Vec<Candidate> = closed.map(candidate).collect();
        candidates.sort_unstable_by_key(|candidate| candidate.order);
        candidates
    }

    pub(super) fn choose_victims(&mut self) {
        let target = self.reclaim_target();
        let soon = self.log.segments.free_count() + self.dropped_count();
        let for_memory = self.excess_segments().saturating_sub(self.dropped_count());
        let wanted = (target.saturating_sub(soon).max(for_memory) as usize).min(VICTIMS_MAX);
        if wanted == 0 {
            return;
        }
        let candidates = self.candidates();
        let mut chosen = self.mostly_dead(&candidates, wanted);
        let clean = candidates.iter().filter(|candidate| candidate.dirty == 0);
        let (held, clean): (Vec<&Candidate>, Vec<&Candidate>) =
            clean.partition(|candidate| self.is_held_whole(candidate.id));
        let left = self.left_in_lap(&clean);
        let is_vain = self.is_keeping_vain(left.len());
        if is_vain && self.rests_with_what_it_keeps() {
            return;
        }
        let is_needed = self.is_short_of_segments() || for_memory > 0;
        let is_stuck = chosen.is_empty() && (clean.is_empty() || is_vain);
        if is_needed && is_stuck && !self.can_writeback_help() {
            let all = clean.len() + held.len();
            if self.packs_closer(all) {
                self.go_on();
                return;
            }
        }
        let clean = if is_vain { &clean } else { &left };
        chosen.extend(self.next_victims(clean, wanted - chosen.len()));
        let has_dirty = candidates.iter().any(|candidate| candidate.dirty > 0);
        if chosen.len() < wanted && (self.is_short_of_segments() || has_dirty) {
            self.writeback.is_urgent = true;
        }
        let is_hopeless = !self.can_writeback_help();
        // As long as no write waits for it, room is not worth what is to be kept.
        let keeps_nothing = chosen.is_empty() && self.is_room_exhausted() && is_hopeless;
        if keeps_nothing {
            chosen = held.iter().take(wanted).map(|candidate| candidate.id).collect();
        }
        if chosen.is_empty() && self.is_short_of_segments() {
            let since = *self.reclaim.in_vain_since.get_or_insert(self.now);
            let is_stuck = since.after_ms(IN_VAIN_MS) <= self.now;
            if is_stuck || is_hopeless {
                let divisor = if is_stuck { STUCK_DIVISOR } else { MOSTLY_DEAD_DIVISOR };
                chosen = self.least_dirty(&candidates, divisor);
            }
        } else {
            self.reclaim.in_vain_since = None;
        }
        self.reclaim.found_nothing = chosen.is_empty();
        if chosen.is_empty() {
            return;
        }
        self.begin_keeping(left.len());
        if keeps_nothing {
            self.reclaim.keeper.level = KeepLevel::Nothing;
        }
        self.reclaim.keep_budget = if for_memory == 0 { self.affordable_copies() } else { 0 };
        for segment in chosen {
            self.log.segments.get_mut(segment).state = SegmentState::Reclaiming;
            let victim = Victim { segment, is_loaded: false, ranges: Vec::new(), is_spared: false };
            self.reclaim.victims.push(victim);
        }
        self.reclaim.state = State::Loading;
        self.go_on();
    }

    /// Clean blocks that a round may keep. Rule 11: it begins only if what must be appended fits;
    /// clean blocks are kept with half of the rest. Over the memory bound none is kept: dirty
    /// entries always fit, clean ones go.
    fn affordable_copies(&self) -> u32 {
        let is_at_reserve = self.log.segments.free_count() <= RESERVE_SEGMENTS + SPARE_SEGMENTS;
        if is_at_reserve || self.is_degraded() {
            return 0;
        }
        let copies = u32::try_from(self.replacement.copies()).unwrap_or(u32::MAX);
        copies.min(self.relocation_room() / 2)
    }

    /// Segments with dirty data of which little is alive: moving that gains most of a segment each,
    /// at the speed of the cache device, so that work which overwrites its own dirty data does not
    /// wait for the origin. Least alive first, as far as it fits. One that could not be emptied
    /// before (a dirty block that cannot be read) is left to writeback: it would be the first
    /// choice each time; so is one with zeroes or discards in pieces, each of which takes a record,
    /// and one with copies that only writeback in order needs.
    fn mostly_dead(&self, candidates: &[Candidate], wanted: usize) -> Vec<u32> {
        let limit = self.log.segments.segment_blocks() / MOSTLY_DEAD_DIVISOR;
        let is_mostly_dead =
            |c: &&Candidate| c.dirty > 0 && c.live <= limit && c.retained == 0 && !c.was_spared;
        let mut dead: Vec<&Candidate> = candidates.iter().filter(is_mostly_dead).collect();
        let in_pieces = self.segments_with_blanks_in_pieces();
        dead.retain(|candidate| !in_pieces.contains(&candidate.id));
        dead.sort_unstable_by_key(|candidate| (candidate.live, candidate.order));
        // Rule 11: clients may open segments down to the reserve while the round is under way, and
        // each victim needs its drop.
        let free = self.log.segments.free_count().saturating_sub(SPARE_SEGMENTS);
        let usable = self.usable_blocks();
        let mut room = (free.min(RESERVE_SEGMENTS) * usable).saturating_sub(DROPS_OF_ROUND);
        let mut chosen = Vec::new();
        for candidate in dead.into_iter().take(wanted) {
            let Some(left) = room.checked_sub(room_to_move(candidate.live)) else { break };
            room = left;
            chosen.push(candidate.id);
        }
        chosen
    }

    /// When the origin cannot take dirty data: the segment with least of it, if moving that gains
    /// space and fits. At most one of `divisor` blocks may be dirty.
    fn least_dirty(&self, candidates: &[Candidate], divisor: u32) -> Vec<u32> {
        let room = self.relocation_room().saturating_sub(DROPS_OF_ROUND);
        let limit = self.log.segments.segment_blocks() / divisor;
        candidates
            .iter()
            // Nobody moves what waits for its flush epoch; it must not hide what can be moved.
            .filter(|candidate| candidate.retained == 0)
            .min_by_key(|candidate| (candidate.was_spared, candidate.dirty, candidate.order))
            .filter(|c| room_to_move(c.dirty) <= room && c.dirty <= limit)
            .map(|candidate| candidate.id)
            .into_iter()
            .collect()
    }
}
