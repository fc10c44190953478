//! Zeroes and discards on their way out of the log.
//!
//! A blank record is one bit in a header, however many blocks it covers. When later writes
//! supersede part of it, a checkpoint has to name the live pieces one by one, and their number is
//! bounded: beyond half the bound, writes wait while such records are written back. Once the origin
//! durably has the zeroes, the record serves nobody: an invalidation with its own version voids it
//! (of equal versions the later sequence number counts), and the index forgets it when that is
//! complete.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::engine::Engine;
use crate::format::checkpoint::BLANK_PIECES_MAX;
use crate::format::record::EntryKind;
use crate::index::{BlankKind, Piece, Place};
use crate::log::Stream;
use crate::log::append::NewEntry;
use crate::units::{CacheBlock, VolumeSlot};

/// Room for what one write may add beyond what is counted of it.
const PIECES_MARGIN: usize = 64;

impl Engine {
    /// Whether a blank record may be added without breaking the bound of a checkpoint. What is
    /// under way counts with all the pieces that it may cut from complete ones: data one more, a
    /// blank record itself and one more.
    pub(crate) fn has_blank_room(&self) -> bool {
        let under_way: usize = self
            .volumes
            .iter()
            .flatten()
            .map(|v| v.index.pending.extent_count() + v.index.pending.blank_piece_count())
            .sum();
        self.blank_pieces_at_most() + under_way + PIECES_MARGIN < BLANK_PIECES_MAX
    }

    /// Whether these blocks may be written without breaking that bound: data over the middle of
    /// zeroes leaves two pieces of them.
    pub(crate) fn may_cut_blanks(&self, slot: VolumeSlot, start: u64, end: u64) -> bool {
        let index = &self.volume(slot).index;
        let has_none = index.complete.blank_piece_count() + index.pending.blank_piece_count() == 0;
        if has_none || self.has_blank_room() {
            return true;
        }
        let mut pieces = Vec::new();
        index.complete.pieces(start, end, &mut pieces);
        index.pending.pieces(start, end, &mut pieces);
        !pieces.iter().any(|piece| matches!(piece.place, Place::Blank { .. }))
    }

    /// Whether blank records should be written back before anything else.
    pub(crate) fn is_short_of_blanks(&self) -> bool {
        self.blank_pieces_at_most() > BLANK_PIECES_MAX / 2
    }

    fn blank_pieces_at_most(&self) -> usize {
        let quick: usize = self
            .volumes
            .iter()
            .flatten()
            .map(|v| v.index.complete.blank_piece_count() + v.index.pending.blank_piece_count())
            .sum();
        if quick + PIECES_MARGIN < BLANK_PIECES_MAX / 2 {
            return quick;
        }
        // Poisoned blocks are single and never split; they do not count.
        let poisoned =
            self.log.blanks.values().filter(|blank| blank.kind == BlankKind::Poison).count();
        quick.saturating_sub(poisoned)
    }

    /// What of `start..end` still stands for the blank record at `header`, in order.
    pub(crate) fn live_pieces(
        &self,
        slot: VolumeSlot,
        start: u64,
        end: u64,
        header: CacheBlock,
    ) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.winners(slot, start, end, &mut pieces);
        pieces
            .retain(|piece| matches!(piece.place, Place::Blank { header: at, .. } if at == header));
        pieces.sort_unstable_by_key(|piece| piece.start);
        pieces
    }

    /// Segments with a blank record of which part was superseded.
    pub(crate) fn segments_with_blanks_in_pieces(&self) -> BTreeSet<u32> {
        self.log
            .blanks
            .iter()
            .filter(|(_, blank)| blank.is_in_pieces())
            .map(|(header, _)| self.log.segments.locate(CacheBlock(*header)).0)
            .collect()
    }

    /// Voids blank records that the origin durably has.
    pub(crate) fn forget_clean_blanks(&mut self) {
        while let Some(header) = self.writeback.clean_blanks.front().copied() {
            if !self.may_append() || !self.has_room_beside_drops(0) {
                return;
            }
            self.writeback.clean_blanks.pop_front();
            self.forget_clean_blank(header);
        }
    }

    fn forget_clean_blank(&mut self, header: CacheBlock) {
        let Some(blank) = self.log.blanks.get(&header.0).copied() else { return };
        let is_clean = !self.log.segments.is_dirty(header) && blank.live_blocks > 0;
        if !is_clean {
            return;
        }
        // Newer versions in between are not touched.
        let end = blank.start + blank.block_count;
        for piece in self.live_pieces(blank.slot, blank.start, end, header) {
            if !self.has_room_beside_drops(0) {
                self.writeback.clean_blanks.push_front(header);
                return;
            }
            let new = NewEntry {
                slot: blank.slot,
                kind: EntryKind::Invalidate,
                start: piece.start,
                block_count: u32::try_from(piece.block_count).expect("BLANK_BLOCKS_MAX"),
                version: blank.version,
                is_dirty: false,
                standing: None,
            };
            self.append_bare(Stream::Relocate, new);
        }
    }
}
