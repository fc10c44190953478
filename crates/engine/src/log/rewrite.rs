//! What a failed record write takes along (rule 2).
//!
//! The segment is sealed. The failed record and all that followed it in the segment are written
//! again elsewhere, with their versions, under new sequence numbers that name the ones they
//! replace: the failed record may have landed, and of equal copies the last one decides. Spare
//! segments are kept for this (rule 11).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Record, RecordState};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::failure::CacheFailure;
use crate::format::record::{Entry, EntryKind};
use crate::format::summary::PlacedEntry;
use crate::index::Piece;
use crate::log::segments::SegmentState;
use crate::payload::Payload;
use crate::slab::Key;
use crate::units::{CacheBlock, VolumeSlot};
use crate::wake::Ended;

impl Engine {
    /// Nothing more is appended to a segment with a failed write.
    pub(crate) fn seal_segment(&mut self, segment: u32) {
        for stream in super::STREAMS {
            if self.log.stream(stream).open == Some(segment) {
                self.close_segment(stream);
            }
        }
        self.log.segments.get_mut(segment).is_sealed = true;
    }

    /// Writes again what a failed write took along, once nothing of it is at the device any more.
    pub(crate) fn rewrite_failed(&mut self, segment: u32) {
        let in_flight = &self.log.segments.get(segment).in_flight;
        let Some(first) =
            in_flight.iter().position(|key| self.log.records[*key].state == RecordState::Failed)
        else {
            return;
        };
        let moved: Vec<Key> = in_flight.iter().skip(first).copied().collect();
        if moved.iter().any(|key| self.log.records[*key].state == RecordState::Writing) {
            return;
        }
        let has_too_many = moved.iter().any(|key| {
            self.log.records[*key].replaces.len() == crate::format::record::REPLACES_MAX
        });
        if has_too_many {
            self.fail_cache(CacheFailure::Writes);
        }
        if self.is_cache_failed() {
            return;
        }
        let order = self.log.next_open_order;
        self.log.next_open_order += 1;
        let Some(to) = self.log.segments.open(order, self.now) else {
            self.fail_cache(CacheFailure::Writes);
            return;
        };
        let stream = self.log.records[moved[0]].stream;
        self.enqueue_segment(to, stream);
        // A checkpoint cut that counts on the old place is taken again (rule 2).
        self.checkpoint.cut_is_void = !has_defect(Defect::VoidCutKept);
        let from_block = self.log.records[moved[0]].block;
        self.log.submit_queue.retain(|key| !moved.contains(key));
        let old = self.log.segments.get_mut(segment);
        old.in_flight.truncate(first);
        old.used_blocks = from_block;
        old.entries.retain(|placed| placed.block < from_block);
        for key in moved {
            self.move_record(key, to);
        }
        let is_needed = self.log.stream(stream).open.is_none();
        let target = self.log.segments.get_mut(to);
        if is_needed {
            target.state = SegmentState::Open;
            self.log.stream_mut(stream).open = Some(to);
        } else {
            target.state = SegmentState::Closed;
            self.end_stretch(to);
            self.log.without_summary.push(to);
        }
    }

    fn move_record(&mut self, key: Key, to: u32) {
        let from = self.log.records[key].segment;
        let new_block = self.log.segments.get(to).used_blocks;
        self.log.last_sequence.0 += 1;
        let sequence = self.log.last_sequence;
        let record = &mut self.log.records[key];
        let old_block = record.block;
        let blocks = 1 + record.payload_blocks;
        record.segment = to;
        record.block = new_block;
        record.replaces.push(record.sequence);
        record.sequence = sequence;
        record.state = RecordState::Closed;
        let entries = record.entries.clone();
        for placed in &mut record.entries {
            placed.block = placed.block - old_block + new_block;
        }
        let target = self.log.segments.get_mut(to);
        record.previous = target.last_sequence;
        target.last_sequence = sequence;
        target.used_blocks += blocks;
        target.in_flight.push_back(key);
        for placed in &record.entries {
            target.entries.push(PlacedEntry { entry: placed.entry, block: placed.block });
        }
        for placed in &entries {
            if let Some(slot) = placed.slot {
                self.note_ordered(to, slot, &placed.entry);
            }
        }
        for offset in 1..blocks {
            let crc = self.log.segments.crc(self.log.position(from, old_block + offset));
            let position = self.log.position(to, new_block + offset);
            self.log.segments.set_crc(position, crc);
        }
        for placed in &entries {
            let Some(slot) = placed.slot else { continue };
            let old = self.log.position(from, placed.block);
            let new = self.log.position(to, placed.block - old_block + new_block);
            if placed.entry.kind == EntryKind::Data {
                self.move_standing(old, new, placed.entry.block_count);
                for offset in 0..placed.entry.block_count {
                    self.move_bits(CacheBlock(old.0 + offset), CacheBlock(new.0 + offset));
                }
            } else if placed.entry.kind.is_blank() {
                self.move_bits(old, new);
                if let Some(blank) = self.log.blanks.remove(&old.0) {
                    self.log.blanks.insert(new.0, blank);
                }
            }
            self.move_pending(slot, &placed.entry, old, new);
        }
        self.log.submit_queue.push_back(key);
    }

    fn move_bits(&mut self, old: CacheBlock, new: CacheBlock) {
        if self.log.segments.is_live(old) {
            let is_dirty = self.log.segments.clear_live(old);
            self.log.segments.set_live(new, 1);
            if is_dirty {
                self.log.segments.set_dirty(new, 1);
            }
        } else if self.log.segments.is_retained(old) {
            self.log.segments.clear_dirty(old);
            self.log.segments.set_retained(new);
        }
    }

    fn move_pending(&mut self, slot: VolumeSlot, entry: &Entry, old: CacheBlock, new: CacheBlock) {
        let piece = Piece::of(entry, old).expect("drops and marks are of no volume");
        let moved = Piece::of(entry, new).expect("it is the same entry");
        let (mut removed, inserted) = self.scratch.take_pieces();
        // The volume is still there: a detach ends with a checkpoint, which waits for its records.
        let volume = self.volume_mut(slot);
        volume.index.pending.remove_parts(&piece, &mut removed);
        for part in &removed {
            volume.index.pending.insert(moved.clip(part.start, part.end()));
        }
        self.scratch.put_pieces(removed, inserted);
    }

    /// The cache device is given up: everything that waits for the log fails.
    pub(crate) fn fail_records(&mut self, payload: &mut dyn Payload) {
        self.log.submit_queue.clear();
        for stream in super::STREAMS {
            self.log.stream_mut(stream).building = None;
        }
        let idle: Vec<Key> = self
            .log
            .records
            .iter()
            .filter(|(_, record)| record.state != RecordState::Writing)
            .map(|(key, _)| key)
            .collect();
        for key in idle {
            let record: Record = self.log.records.remove(key).expect("listed above");
            for slice in &record.slices {
                payload.release(slice.buffer);
            }
            let in_flight: &mut VecDeque<Key> =
                &mut self.log.segments.get_mut(record.segment).in_flight;
            in_flight.retain(|other| *other != key);
            for waiter in record.waiters {
                self.wake(waiter, Ended::Failed);
            }
        }
    }
}
