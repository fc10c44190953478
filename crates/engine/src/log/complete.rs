//! Completion: what the device has written becomes visible, in order (rule 2).

use super::{RecordEntry, RecordState, Tombstone};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::failure::hand_over::{UNFLUSHED_MAX, Unflushed};
use crate::index::{Piece, Place};
use crate::io::IoResult;
use crate::payload::{BufferId, Payload};
use crate::slab::Key;
use crate::units::{CacheBlock, Generation, SequenceNumber, VolumeSlot};
use crate::wake::{Ended, Waiter};

impl Engine {
    pub(crate) fn on_record_complete(
        &mut self,
        key: Key,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let record = &mut self.log.records[key];
        assert_eq!(record.state, RecordState::Writing);
        let result = if has_defect(Defect::FailedWriteIgnored) { Ok(()) } else { result };
        let segment = record.segment;
        payload.release(record.header.take().expect("it was submitted with one"));
        match result {
            Ok(()) => {
                record.state = RecordState::Written;
                self.log.write_failures = 0;
            }
            Err(_) => {
                record.state = RecordState::Failed;
                self.seal_segment(segment);
                self.count_write_failure();
            }
        }
        if self.is_cache_failed() {
            self.needs_failure_cleanup = true;
            return;
        }
        self.complete_records(segment, payload);
        self.rewrite_failed(segment);
    }

    /// Rule 2: a record is complete when it is written and all earlier ones of its segment are.
    fn complete_records(&mut self, segment: u32, payload: &mut dyn Payload) {
        if has_defect(Defect::AnswerBeforeEarlierRecord) {
            let in_flight = self.log.segments.get_mut(segment).in_flight.make_contiguous();
            in_flight.sort_by_key(|key| self.log.records[*key].state != RecordState::Written);
        }
        while let Some(key) = self.log.segments.get(segment).in_flight.front().copied() {
            if self.log.records[key].state != RecordState::Written {
                break;
            }
            self.log.segments.get_mut(segment).in_flight.pop_front();
            self.complete_record(key, payload);
        }
    }

    fn complete_record(&mut self, key: Key, payload: &mut dyn Payload) {
        let record = self.log.records.remove(key).expect("it was in flight");
        for slice in &record.slices {
            payload.release(slice.buffer);
        }
        self.log.stream_mut(record.stream).in_flight -= 1;
        self.log.segments.get_mut(record.segment).flush_needed = self.log.flushes.next_number();
        for placed in &record.entries {
            self.complete_entry(record.segment, placed);
        }
        self.idle_mark.on_vouched(record.vouches_for);
        let was_incomplete = self.log.incomplete.remove(&record.first_sequence().0);
        assert!(was_incomplete);
        for waiter in record.waiters {
            self.wake(waiter, Ended::Well);
        }
        self.on_frontier_moved();
    }

    fn complete_entry(&mut self, segment: u32, placed: &RecordEntry) {
        let entry = &placed.entry;
        let Some(slot) = placed.slot else { return };
        let header = self.log.position(segment, placed.block);
        let piece = Piece::of(entry, header).expect("drops and marks are of no volume");
        // Rule 10: a generation raised since voids the entry.
        if self.volume(slot).generation != entry.volume_generation {
            if entry.kind.is_blank() {
                self.forget_dead_blank(header);
            }
            return;
        }
        if entry.is_dirty {
            self.note_unflushed(slot, &piece);
        }
        let (mut removed, mut inserted) = self.scratch.take_pieces();
        let index = &mut self.volume_mut(slot).index;
        index.pending.remove_parts(&piece, &mut removed);
        removed.clear();
        if has_defect(Defect::LateCompletionWins) {
            index.complete.pieces(piece.start, piece.end(), &mut removed);
            index.complete.remove(piece.start, piece.end());
        }
        // Rule 1: versions are compared when a record completes, so a late completion never wins.
        index.complete.replace(piece, &mut removed, &mut inserted);
        for old in &removed {
            self.unmap(old);
        }
        for new in &inserted {
            self.map_piece(slot, new);
        }
        if let Place::Blank { header, .. } = piece.place {
            self.forget_dead_blank(header);
        }
        self.scratch.put_pieces(removed, inserted);
    }

    /// Remembers what a device that goes and comes back may lack.
    fn note_unflushed(&mut self, slot: VolumeSlot, piece: &Piece) {
        let needs = self.log.flushes.next_number();
        let Piece { start, block_count, version, .. } = *piece;
        self.log.unflushed.push_back(Unflushed { slot, start, block_count, version, needs });
        let is_asked = self.log.flushes.is_under_way() || self.log.flushes.is_due();
        if self.log.unflushed.len() >= UNFLUSHED_MAX && !is_asked {
            self.log.flushes.join(Waiter::Nobody);
        }
    }

    /// Points the complete index at a piece.
    pub(crate) fn map_piece(&mut self, slot: VolumeSlot, piece: &Piece) {
        match piece.place {
            Place::Data(position) => {
                let (segment, _) = self.log.segments.locate(position);
                let count = u32::try_from(piece.block_count).expect("data pieces are small");
                self.log.segments.get_mut(segment).mapped += count;
            }
            Place::Blank { header, .. } => {
                let (segment, _) = self.log.segments.locate(header);
                let blank = self.log.blanks.get_mut(&header.0).expect("it is in the log");
                if blank.mapped_blocks == 0 {
                    self.log.segments.get_mut(segment).mapped += 1;
                }
                blank.mapped_blocks += piece.block_count;
            }
            Place::Absent => {
                // An older copy may be in a record that is still being built: it counts as well.
                self.close_all_records();
                let after = self.log.last_sequence;
                let (start, block_count, version) = (piece.start, piece.block_count, piece.version);
                let needs = self.log.flushes.next_number();
                let (after, needs) = if has_defect(Defect::TombstoneRemovedEarly) {
                    (SequenceNumber(0), 0)
                } else {
                    (after, needs)
                };
                let tombstone = Tombstone { after, needs, slot, start, block_count, version };
                self.log.tombstones.push_back(tombstone);
            }
        }
    }

    /// The complete index no longer points at a piece.
    pub(crate) fn unmap(&mut self, piece: &Piece) {
        match piece.place {
            Place::Data(position) => {
                let (segment, _) = self.log.segments.locate(position);
                let count = u32::try_from(piece.block_count).expect("data pieces are small");
                self.log.segments.get_mut(segment).mapped -= count;
            }
            Place::Blank { header, .. } => {
                let (segment, _) = self.log.segments.locate(header);
                let blank = self.log.blanks.get_mut(&header.0).expect("a mapped blank is known");
                blank.mapped_blocks -= piece.block_count;
                if blank.mapped_blocks == 0 {
                    self.log.segments.get_mut(segment).mapped -= 1;
                    self.forget_dead_blank(header);
                }
            }
            Place::Absent => {}
        }
    }

    fn on_frontier_moved(&mut self) {
        let frontier = self.log.complete_through();
        self.remove_tombstones();
        let mut index = 0;
        while index < self.log.frontier_waiters.len() {
            if self.log.frontier_waiters[index].0 <= frontier.0 {
                let (_, waiter) = self.log.frontier_waiters.swap_remove(index);
                self.wake(waiter, Ended::Well);
            } else {
                index += 1;
            }
        }
    }

    /// Removes tombstones that have done their duty, and asks for the flush that the next one waits
    /// for: each takes the room of a piece without payload, and who writes around the log where one
    /// stands has to void copies again.
    pub(crate) fn remove_tombstones(&mut self) {
        let frontier = self.log.complete_through();
        while let Some(tombstone) = self.log.tombstones.front().copied() {
            if tombstone.after > frontier {
                return;
            }
            let is_durable = self.log.flushes.is_finished(tombstone.needs);
            if !is_durable && !has_defect(Defect::VoidsNotDurable) {
                if !self.log.flushes.is_asked_for(tombstone.needs) {
                    self.log.flushes.join(Waiter::Nobody);
                }
                return;
            }
            self.log.tombstones.pop_front();
            self.remove_tombstone(&tombstone);
        }
    }

    fn remove_tombstone(&mut self, tombstone: &Tombstone) {
        let (mut removed, inserted) = self.scratch.take_pieces();
        // The volume is still there: a detach ends with a checkpoint, which waits for the frontier
        // and for a flush after it.
        let volume = self.volume_mut(tombstone.slot);
        let Tombstone { start, block_count, version, .. } = *tombstone;
        let piece = Piece { start, block_count, version, place: Place::Absent };
        volume.index.complete.remove_parts(&piece, &mut removed);
        self.scratch.put_pieces(removed, inserted);
    }

    /// Wakes `waiter` when all records up to now are complete. What is being built counts.
    pub(crate) fn wait_for_frontier(&mut self, waiter: Waiter) {
        self.close_all_records();
        let target = self.log.last_sequence.0;
        if self.log.complete_through().0 >= target {
            self.wake(waiter, Ended::Well);
        } else {
            self.log.frontier_waiters.push((target, waiter));
        }
    }

    pub(crate) fn on_summary_complete(
        &mut self,
        segment: u32,
        generation: Generation,
        written: (BufferId, u32),
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        payload.release(written.0);
        let next_flush = self.log.flushes.next_number();
        let state = self.log.segments.get_mut(segment);
        // A segment is not reused while its summary is under way.
        assert_eq!(state.generation, generation);
        state.is_summary_under_way = false;
        if result.is_ok() {
            state.summary_blocks = written.1;
            state.flush_needed = next_flush;
            // From here on the device has them; a damaged summary is made good from the index.
            state.entries = alloc::vec::Vec::new();
        }
    }

    /// Position of a block on the cache device, in bytes.
    pub(crate) fn cache_offset(&self, position: CacheBlock) -> u64 {
        let geometry = &self.superblock.geometry;
        geometry.segments_offset + u64::from(position.0) * crate::units::BLOCK_BYTES as u64
    }
}
