//! Promotion: what a miss read from the origin is appended as clean copies.
//!
//! Only what nothing else is known of by then (rules 4 and 9), and only as far as there is room.

use alloc::vec::Vec;
use core::ops::Range;

use super::Miss;
use crate::admission::Outcome;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::format::record::EntryKind;
use crate::index::{Piece, Place};
use crate::log::append::{Checksums, NewEntry};
use crate::path::read::{Span, blocks_of};
use crate::payload::Payload;
use crate::policy::Standing;
use crate::status::{AdmitReason, BypassReason};
use crate::units::{CacheBlock, VolumeSlot};

impl Engine {
    pub(super) fn note_rejected(&mut self, miss: &Miss, reason: BypassReason) {
        let blocks = (miss.start, miss.block_count);
        self.note_outcome(miss.operation, blocks, Outcome::Bypassed(reason));
    }

    /// Appends what was read, as far as no copy exists by now.
    pub(super) fn promote(&mut self, miss: &Miss, payload: &mut dyn Payload) {
        let (slot, end) = (miss.slot, miss.start + miss.block_count);
        if self.is_cache_failed() {
            self.note_rejected(miss, BypassReason::CacheFailed);
            return;
        }
        if !self.volume(slot).promotes() {
            self.note_rejected(miss, BypassReason::Mode);
            return;
        }
        if self.is_degraded() {
            self.note_rejected(miss, BypassReason::CacheDegraded);
            return;
        }
        // Rule 4: the origin may still lose what was written around the log.
        if self.volume(slot).is_around(miss.start, end) && !has_defect(Defect::PromotionOfUnflushed)
        {
            self.note_rejected(miss, BypassReason::OriginNotFlushed);
            return;
        }
        if self.is_memory_full() {
            self.note_rejected(miss, BypassReason::Memory);
            return;
        }
        let mut winners = Vec::new();
        self.winners(slot, miss.start, end, &mut winners);
        winners.retain(|piece| !miss.may_replace(piece));
        winners.sort_unstable_by_key(|piece| piece.start);
        let mut at = miss.start;
        let ends = winners.iter().map(|piece| (piece.start, piece.end())).chain([(end, end)]);
        for (from, to) in ends {
            while at < from {
                let limit = from.min(at + u64::from(self.unit_blocks_max()));
                let (end, _) = self.superblock.pins(slot).run(at, limit);
                self.promote_run(miss, at..end, payload);
                at = end;
            }
            at = at.max(to);
        }
    }

    /// Appends blocks that are all pinned, or none of them. Of a window, what was asked for is what
    /// the policy may remember: it goes where it belongs alone, unless most of all is remembered.
    fn promote_run(&mut self, miss: &Miss, run: Range<u64>, payload: &mut dyn Payload) {
        let asked = miss.asked_of(&run);
        if asked == run || self.remembers_run(miss.slot, &run) {
            let standing = self.standing_of_run(miss.slot, &run);
            self.promote_as(miss, run, standing, payload);
            return;
        }
        if asked.is_empty() || self.standing_of_run(miss.slot, &asked) == Standing::New {
            self.promote_as(miss, run, Standing::New, payload);
            return;
        }
        let (before, after) = (run.start..asked.start, asked.end..run.end);
        let parts = [(before, Standing::New), (asked, Standing::Proven), (after, Standing::New)];
        for (part, standing) in parts {
            if !part.is_empty() {
                self.promote_as(miss, part, standing, payload);
            }
        }
    }

    fn remembers_run(&self, slot: VolumeSlot, run: &Range<u64>) -> bool {
        let key = self.policy_key(slot, run.start);
        self.replacement.policy.remembers(key, blocks_in(run))
    }

    fn standing_of_run(&mut self, slot: VolumeSlot, run: &Range<u64>) -> Standing {
        self.standing_of_new(slot, run.start, blocks_in(run))
    }

    fn promote_as(
        &mut self,
        miss: &Miss,
        run: Range<u64>,
        standing: Standing,
        payload: &mut dyn Payload,
    ) {
        let (start, count) = (run.start, run.end - run.start);
        let block_count = u32::try_from(count).expect("a unit");
        // What takes the place of a bad copy adds nothing, if that is still there.
        let is_repair = miss.repairs.is_some_and(|at| self.is_at(miss.slot, start, at));
        let is_bounded = !is_repair && !self.superblock.pins(miss.slot).has(start);
        if is_bounded && self.is_beyond_share_max(miss.slot, count) {
            let outcome = Outcome::Bypassed(BypassReason::ShareMax);
            self.note_outcome(miss.operation, (start, count), outcome);
            return;
        }
        let (stream, standing) = self.promotion_stream(standing, block_count);
        if !self.has_room(stream, block_count) {
            let outcome = Outcome::Bypassed(BypassReason::NoRoom);
            self.note_outcome(miss.operation, (start, count), outcome);
            return;
        }
        let new = NewEntry {
            slot: miss.slot,
            kind: EntryKind::Data,
            start,
            block_count,
            version: miss.version,
            is_dirty: false,
            standing: Some(standing),
        };
        let source = blocks_of(miss.target, miss.start, start, count);
        let (_, position) = self.append_data(stream, new, source, Checksums::Compute, payload);
        self.volume_mut(miss.slot).counters.promoted_blocks += count;
        self.take_from_budget(count);
        let admission = self.operations[miss.operation].admission;
        let reason = match miss.repairs {
            // A repair does not ask.
            Some(_) => AdmitReason::Repair,
            None => admission.unwrap_or(AdmitReason::Pinned),
        };
        let outcome = Outcome::Admitted(reason);
        self.note_outcome(miss.operation, (start, count), outcome);
        if miss.is_widened {
            for (block, at) in (start..start + count).zip(position.0..) {
                if !miss.joined.iter().any(|reader| reader.span.has(block)) {
                    self.ahead.set(CacheBlock(at));
                    self.volume_mut(miss.slot).counters.read_ahead_blocks += 1;
                }
            }
        }
    }
}

impl Miss {
    /// Of blocks that were read, those that were asked for, in one piece; maybe none.
    fn asked_of(&self, run: &Range<u64>) -> Range<u64> {
        if !self.is_widened {
            return run.clone();
        }
        let spans = || self.joined.iter().map(|reader| &reader.span);
        let start = spans().map(|span| span.start).min().unwrap_or(run.start).max(run.start);
        let end = spans().map(Span::end).max().unwrap_or(run.end).min(run.end);
        start..end.max(start)
    }

    /// Whether the promotion may take the place of this copy: of none, and of the bad one.
    fn may_replace(&self, piece: &Piece) -> bool {
        if piece.version >= self.version {
            return false;
        }
        match piece.place {
            Place::Absent => true,
            Place::Data(position) => self.repairs == Some(position),
            Place::Blank { .. } => false,
        }
    }
}

fn blocks_in(run: &Range<u64>) -> u32 {
    u32::try_from(run.end - run.start).expect("a unit")
}
