//! Which blocks a closed segment holds: from memory, from its summary, or, if that is damaged, from
//! the index.

use alloc::vec::Vec;

use crate::engine::{Engine, IoPurpose, SummaryUser};
use crate::format::record::EntryKind;
use crate::format::summary::{PlacedEntry, Summary};
use crate::index::{Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::payload::{BufferId, BufferRange, Payload};
use crate::units::{BLOCK_BYTES, OriginBlock, OriginExtent, VolumeSlot};

/// A run of blocks of which a segment has, or once had, a copy.
pub(crate) type SegmentRange = OriginExtent;

impl Engine {
    /// Finds out what is in `segment`; the answer comes to the user's `on_entries_loaded`, at once
    /// or after a read. `false` if there is no buffer for the read now.
    pub(crate) fn load_entries(
        &mut self,
        segment: u32,
        user: SummaryUser,
        payload: &mut dyn Payload,
    ) -> bool {
        let state = self.log.segments.get_mut(segment);
        if state.summary_blocks == 0 {
            let entries = core::mem::take(&mut state.entries);
            self.on_entries_loaded(segment, user, Some(&entries));
            let state = self.log.segments.get_mut(segment);
            assert!(state.entries.is_empty());
            state.entries = entries;
            return true;
        }
        let bytes = state.summary_blocks as usize * BLOCK_BYTES;
        let block = state.used_blocks;
        let Some(buffer) = payload.allocate(bytes) else {
            self.wait_for_memory();
            return false;
        };
        self.log.segments.pin(segment);
        let bytes = u32::try_from(bytes).expect("a summary is smaller than its segment");
        let slices = Slices::One(BufferRange { buffer, offset: 0, length: bytes });
        let offset_bytes = self.cache_offset(self.log.position(segment, block));
        let purpose = IoPurpose::LoadSummary { segment, buffer, bytes, user };
        self.submit(Device::Cache, IoKind::Read { offset_bytes, slices }, purpose);
        true
    }

    pub(crate) fn on_summary_loaded(
        &mut self,
        segment: u32,
        read: (BufferId, u32),
        user: SummaryUser,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        self.log.segments.unpin(segment);
        let range = BufferRange { buffer: read.0, offset: 0, length: read.1 };
        let state = self.log.segments.get(segment);
        let (generation, used_blocks) = (state.generation, state.used_blocks);
        let summary = match result {
            Ok(()) => {
                let bytes = payload.metadata(range);
                Summary::decode(&self.log.set_id, segment, generation, used_blocks, bytes).ok()
            }
            Err(_) => None,
        };
        payload.release(read.0);
        if result.is_err() && user == SummaryUser::Writeback && self.is_ordered_window() {
            self.on_ordered_unread(segment);
            return;
        }
        let entries = summary.as_ref().map(|summary| &summary.entries[..]);
        self.on_entries_loaded(segment, user, entries);
    }

    /// `None` if they cannot be read.
    fn on_entries_loaded(
        &mut self,
        segment: u32,
        user: SummaryUser,
        entries: Option<&[PlacedEntry]>,
    ) {
        if user == SummaryUser::Writeback && self.is_ordered_window() {
            self.on_ordered_entries(segment, entries);
            return;
        }
        if let SummaryUser::Discard(slot) = user {
            self.on_discarded_entries(segment, slot, entries);
            return;
        }
        let ranges = match entries {
            Some(entries) => self.ranges_of(entries),
            // Slow and rare: every extent is looked at.
            None => self.ranges_by_index(segment),
        };
        match user {
            SummaryUser::Reclaim => self.on_reclaim_entries(segment, &ranges),
            SummaryUser::Writeback => self.on_writeback_entries(segment, &ranges),
            SummaryUser::Discard(_) => unreachable!("answered above"),
        }
    }

    fn ranges_of(&self, entries: &[PlacedEntry]) -> Vec<SegmentRange> {
        let slots = self.volume_slots();
        let mut ranges = Vec::with_capacity(entries.len());
        for PlacedEntry { entry, .. } in entries {
            let is_copy = entry.kind == EntryKind::Data || entry.kind.is_blank();
            let slot = slots.iter().find(|slot| self.volume(**slot).id == entry.volume);
            if let (true, Some(slot)) = (is_copy, slot) {
                ranges.push(OriginExtent {
                    volume: *slot,
                    start: OriginBlock(entry.start),
                    block_count: entry.block_count.into(),
                });
            }
        }
        ranges
    }

    fn ranges_by_index(&self, segment: u32) -> Vec<SegmentRange> {
        let mut ranges = Vec::new();
        for slot in self.volume_slots() {
            for piece in self.volume(slot).index.complete.all_pieces() {
                if self.piece_segment(&piece) == Some(segment) {
                    let start = OriginBlock(piece.start);
                    ranges.push(OriginExtent {
                        volume: slot,
                        start,
                        block_count: piece.block_count,
                    });
                }
            }
        }
        ranges
    }

    /// The segment that holds a piece.
    pub(crate) fn piece_segment(&self, piece: &Piece) -> Option<u32> {
        match piece.place {
            Place::Data(at) | Place::Blank { header: at, .. } => {
                Some(self.log.segments.locate(at).0)
            }
            Place::Absent => None,
        }
    }

    /// The complete copies that `segment` holds of `ranges`, each block once.
    pub(crate) fn pieces_in_segment(
        &self,
        segment: u32,
        ranges: &[SegmentRange],
    ) -> Vec<(VolumeSlot, Piece)> {
        let mut ranges = ranges.to_vec();
        ranges.sort_unstable_by_key(|range| (range.volume, range.start));
        let mut found = Vec::new();
        let mut pieces = Vec::new();
        let mut looked_up = (VolumeSlot(0), 0);
        for range in ranges {
            // Still there: a detach ends only while neither reclaim nor writeback is at work.
            let volume = self.volume(range.volume);
            // A block that was written twice into the segment is in two ranges.
            let mut from = range.start.0;
            if looked_up.0 == range.volume {
                from = from.max(looked_up.1);
            }
            if from >= range.end().0 {
                continue;
            }
            looked_up = (range.volume, range.end().0);
            pieces.clear();
            volume.index.complete.pieces(from, range.end().0, &mut pieces);
            for piece in &pieces {
                if self.piece_segment(piece) == Some(segment) {
                    found.push((range.volume, *piece));
                }
            }
        }
        found
    }
}
