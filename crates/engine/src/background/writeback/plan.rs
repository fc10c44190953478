//! What a window writes, and in which order: one sweep in origin order, merged into runs.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::runs::Run;
use crate::engine::Engine;
use crate::index::{Piece, Place};
use crate::units::{CacheBlock, EXTENT_BLOCKS_MAX, VolumeSlot};

impl Engine {
    /// The dirty parts of a piece, those that the origin did not take one by one. Poison is none.
    pub(super) fn dirty_parts(&self, slot: VolumeSlot, piece: &Piece) -> Vec<Piece> {
        let Place::Data(position) = piece.place else {
            let is_due = !piece.is_poison() && self.is_piece_dirty(piece);
            return is_due.then_some(*piece).into_iter().collect();
        };
        let mut parts = Vec::new();
        let mut start = None;
        for offset in 0..=piece.block_count {
            let is_dirty = offset < piece.block_count && {
                let skipped = u32::try_from(offset).expect("data pieces are small");
                self.log.segments.is_dirty(CacheBlock(position.0 + skipped))
            };
            match (is_dirty, start) {
                (true, None) => start = Some(piece.start + offset),
                (false, Some(from)) => {
                    let part = piece.clip(from, piece.start + offset);
                    parts.extend(self.volume(slot).bad_extents.cut(&part));
                    start = None;
                }
                _ => {}
            }
        }
        parts
    }

    /// One sweep in origin order: sorted, and merged up to 1 MiB. What the origin did not take
    /// comes last, and is not merged.
    pub(super) fn sweep(&self, mut pieces: Vec<(VolumeSlot, Piece)>) -> VecDeque<Run> {
        let rank = |slot: VolumeSlot, block| self.volume(slot).bad_extents.rank(block);
        pieces.sort_unstable_by_key(|(slot, piece)| (rank(*slot, piece.start), *slot, piece.start));
        let mut queue: VecDeque<Run> = VecDeque::new();
        let mut blank_headers = BTreeSet::new();
        for (slot, piece) in pieces {
            if let Place::Blank { header, .. } = piece.place {
                // All live pieces of a blank record go home together; in order, each for itself.
                if blank_headers.insert(header) || self.is_ordered_window() {
                    queue.push_back(Run::new(slot, piece));
                }
                continue;
            }
            match queue.back_mut() {
                Some(run)
                    if run.slot == slot
                        && run.end() == piece.start
                        && run.has_data()
                        && rank(slot, run.start()).is_none()
                        && rank(slot, piece.start).is_none()
                        && piece.end() - run.start() <= u64::from(EXTENT_BLOCKS_MAX) =>
                {
                    run.push(piece);
                }
                _ => queue.push_back(Run::new(slot, piece)),
            }
        }
        queue
    }
}
