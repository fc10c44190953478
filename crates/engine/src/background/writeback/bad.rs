//! Blocks that an origin did not take.
//!
//! An error of a write is of all blocks in it. So blocks whose write failed go home one by one from
//! then on, until each for itself was written: a bad block keeps nothing but itself from going
//! home, and it is known which one it is. They come last in a window, those first that failed
//! longest ago; and after a few failures the rest of the volume waits for the next window, or an
//! origin that takes nothing would keep the others waiting.

use alloc::vec::Vec;

use crate::index::Piece;
use crate::units::{OriginBlock, OriginExtent, VolumeSlot};

/// Failed runs of a volume in one window, until the rest of it is left for the next.
pub(super) const FAILED_RUNS_MAX: u32 = 8;
/// Extents that are remembered of a volume. Of more the oldest is forgotten; its blocks are written
/// together again, and come back if that fails.
const EXTENTS_MAX: usize = 64;

/// Extents whose last write failed, as start and end; no two have a block in common.
#[derive(Clone, Debug, Default)]
pub(crate) struct BadExtents(Vec<(u64, u64)>);

impl BadExtents {
    pub(super) fn contains(&self, block: u64) -> bool {
        self.rank(block).is_some()
    }

    /// The turn of a bad block: the longer ago its last failure, the lower. `None` for a good one.
    pub(super) fn rank(&self, block: u64) -> Option<usize> {
        self.0.iter().position(|(start, end)| (*start..*end).contains(&block))
    }

    /// Writing `start..end` failed.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        self.remove(start, end);
        if self.0.len() >= EXTENTS_MAX {
            self.0.remove(0);
        }
        self.0.push((start, end));
    }

    /// The origin took `start..end`.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if !self.0.iter().any(|(from, to)| *from < end && start < *to) {
            return;
        }
        // In their turns.
        for (from, to) in core::mem::take(&mut self.0) {
            let outside = [(from, to.min(start)), (from.max(end), to)];
            self.0.extend(outside.into_iter().filter(|(from, to)| from < to));
        }
    }

    /// The piece, with each of its bad blocks for itself.
    pub(super) fn cut(&self, piece: &Piece) -> Vec<Piece> {
        let mut parts = Vec::new();
        let mut from = piece.start;
        while from < piece.end() {
            let is_bad = self.contains(from);
            let next_bad = (from + 1..piece.end()).find(|block| is_bad || self.contains(*block));
            let to = next_bad.unwrap_or(piece.end());
            parts.push(piece.clip(from, to));
            from = to;
        }
        parts
    }

    /// All of them, in order.
    pub(crate) fn extents(&self, volume: VolumeSlot) -> Vec<OriginExtent> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let extent = |(start, end)| OriginExtent {
            volume,
            start: OriginBlock(start),
            block_count: end - start,
        };
        sorted.into_iter().map(extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Place;
    use crate::units::{CacheBlock, Version};

    fn extents(bad: &BadExtents) -> Vec<(u64, u64)> {
        let extents = bad.extents(VolumeSlot(0));
        extents.iter().map(|extent| (extent.start.0, extent.end().0)).collect()
    }

    fn parts(bad: &BadExtents, start: u64, block_count: u64) -> Vec<(u64, u64)> {
        let place = Place::Data(CacheBlock(7));
        let piece = Piece { start, block_count, version: Version(1), place };
        bad.cut(&piece).iter().map(|part| (part.start, part.end())).collect()
    }

    #[test]
    fn bad_blocks_are_cut_out_one_by_one() {
        let mut bad = BadExtents::default();
        assert_eq!(parts(&bad, 10, 5), [(10, 15)]);
        bad.add(12, 14);
        assert_eq!(parts(&bad, 10, 5), [(10, 12), (12, 13), (13, 14), (14, 15)]);
        assert_eq!(parts(&bad, 13, 1), [(13, 14)]);
    }

    #[test]
    fn what_was_written_is_bad_no_longer() {
        let mut bad = BadExtents::default();
        bad.add(10, 20);
        bad.remove(12, 15);
        bad.remove(30, 40);
        assert_eq!(extents(&bad), [(10, 12), (15, 20)]);
        bad.add(11, 16);
        assert_eq!(extents(&bad), [(10, 11), (11, 16), (16, 20)]);
    }

    #[test]
    fn of_too_many_the_oldest_is_forgotten() {
        let mut bad = BadExtents::default();
        for start in 0..=EXTENTS_MAX as u64 {
            bad.add(10 * start, 10 * start + 1);
        }
        assert!(!bad.contains(0));
        assert_eq!(extents(&bad).len(), EXTENTS_MAX);
    }
}
