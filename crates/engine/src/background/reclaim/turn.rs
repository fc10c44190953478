//! The turn of what a victim holds: which blocks are appended again.
//!
//! Dirty blocks always are, and pinned ones; what a smallest share counts on as well
//! (`keep.rs`). Of other clean ones those that the policy keeps, as far as the round and
//! the bound on copies allow. While copies are short, only what was used again and again is kept,
//! from either queue; what was used once goes, and is remembered like what goes from the small
//! queue, so that it need not prove itself again: when it comes back it goes to the main queue
//! without a copy. What came as one extent stays one while half of it is used, else every extent
//! would end as crumbs.

use alloc::vec::Vec;

use super::Item;
use super::keep::Hold;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::index::{Piece, Place};
use crate::policy::{Queue, Worth};
use crate::units::VolumeSlot;

/// What becomes of a block of a victim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Something newer took its place.
    Gone,
    /// It is appended again.
    Kept(Hold),
    /// It was used, and would be kept if copies were free.
    Forgone,
    /// It was not used.
    Dropped,
}

impl Engine {
    /// Cuts a piece into runs that are kept and runs that are not.
    pub(super) fn choose_kept(&mut self, slot: VolumeSlot, piece: &Piece, from: Queue) {
        let Place::Data(_) = piece.place else {
            if self.is_piece_dirty(piece) && !has_defect(Defect::BlankNotRelocated) {
                let hold = Hold::Firm;
                self.reclaim.items.push(Item { slot, piece: *piece, attempts: 0, hold });
            }
            return;
        };
        let fates = self.take_turn(slot, piece, from);
        let mut start = piece.start;
        for run in fates.chunk_by(|one, next| one == next) {
            let end = start + run.len() as u64;
            let piece = piece.clip(start, end);
            match run[0] {
                Fate::Gone => {}
                Fate::Kept(hold) => {
                    self.reclaim.items.push(Item { slot, piece, attempts: 0, hold });
                }
                Fate::Forgone => self.note_dropped(slot, &piece, Queue::Small),
                Fate::Dropped => self.note_dropped(slot, &piece, from),
            }
            start = end;
        }
    }

    /// What becomes of each block of a piece. For clean ones it is their turn, unless they are
    /// pinned.
    fn take_turn(&mut self, slot: VolumeSlot, piece: &Piece, from: Queue) -> Vec<Fate> {
        let is_bounded = self.is_at_share_max(slot);
        let budget = if is_bounded { 0 } else { self.reclaim.keep_budget as usize };
        let mut clean = 0;
        // `None` for what is pinned.
        let mut worth = Vec::with_capacity(piece.positions().count());
        for (block, at) in (piece.start..).zip(piece.positions()) {
            let is_clean = self.log.segments.is_clean(at);
            if is_clean && self.holds_pinned(slot, block) {
                worth.push(None);
                continue;
            }
            clean += usize::from(is_clean);
            // Without means nothing is asked, and nothing forgotten.
            worth.push(Some(match is_clean && budget > 0 {
                true => self.replacement.policy.turn(at, from),
                false => Worth::Nothing,
            }));
        }
        if from == Queue::Small && budget > 0 && self.is_mostly_unread(piece) {
            self.value_what_was_asked_for(piece, &mut worth);
        }
        let is_saving = self.replacement.is_short_of_copies();
        let least = if is_saving { Worth::UsedOften } else { Worth::Used };
        let used = worth.iter().flatten().filter(|worth| **worth >= least).count();
        let is_whole = 2 * used >= clean && clean <= budget;
        // What a share counts on must not be lost for want of room.
        let hold = if self.has_smallest_share(slot) { Hold::Firm } else { Hold::Wanted };
        let mut left = budget;
        let mut fates = Vec::with_capacity(worth.len());
        for (at, worth) in piece.positions().zip(worth) {
            fates.push(match worth {
                _ if !self.log.segments.is_live(at) => Fate::Gone,
                None => Fate::Kept(Hold::Firm),
                Some(_) if self.log.segments.is_dirty(at) => Fate::Kept(Hold::Firm),
                Some(worth) if left > 0 && (is_whole || worth >= least) => {
                    left -= 1;
                    Fate::Kept(hold)
                }
                Some(_) if self.holds_share(slot) => Fate::Kept(Hold::Firm),
                Some(worth) if worth > Worth::Nothing => Fate::Forgone,
                Some(_) => Fate::Dropped,
            });
        }
        let copies = budget - left;
        self.reclaim.keep_budget -= u32::try_from(copies).expect("it is a part of it");
        self.replacement.take_copies(copies as u64);
        fates
    }

    /// Most of it was fetched ahead and never read.
    fn is_mostly_unread(&self, piece: &Piece) -> bool {
        let unread = piece.positions().filter(|at| self.ahead.has(*at)).count();
        2 * unread > piece.positions().count()
    }

    /// What a client asked for had less time to prove itself for each neighbour that came with it:
    /// a small queue of windows is as many times shorter as a window is larger than what was asked
    /// for. It counts as used; the rest of the window goes.
    fn value_what_was_asked_for(&self, piece: &Piece, worth: &mut [Option<Worth>]) {
        for (at, worth) in piece.positions().zip(worth) {
            if self.log.segments.is_clean(at) && !self.ahead.has(at) {
                *worth = worth.map(|worth| worth.max(Worth::Used));
            }
        }
    }

    /// Clean blocks lose their place in the cache. What was fetched ahead and never read is not
    /// worth remembering.
    pub(crate) fn note_dropped(&mut self, slot: VolumeSlot, run: &Piece, from: Queue) {
        let blocks = (run.start..).zip(run.positions());
        let blocks: Vec<_> = blocks.map(|(block, at)| (block, self.ahead.take(at))).collect();
        for same in blocks.chunk_by(|(_, one), (_, next)| one == next) {
            let block_count = u32::try_from(same.len()).expect("data pieces are small");
            let (start, was_never_read) = same[0];
            if was_never_read {
                self.volume_mut(slot).read_ahead.on_wasted(block_count);
            } else {
                let key = self.policy_key(slot, start);
                self.replacement.policy.on_demoted(key, block_count, from);
            }
        }
    }
}
