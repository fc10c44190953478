//! Writes that go to the origin at once: writethrough and writearound.

use alloc::vec::Vec;

use crate::admission::Outcome;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::failure::ride::Attempt;
use crate::format::record::EntryKind;
use crate::index::{Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::Stream;
use crate::log::append::NewEntry;
use crate::options::CacheMode;
use crate::path::write::{Route, UnitKind, UnitState};
use crate::payload::Payload;
use crate::request::RequestError;
use crate::slab::Key;
use crate::status::{AdmitReason, BypassReason};
use crate::units::VolumeSlot;
use crate::volume::AROUND_RANGES_MAX;
use crate::wake::Waiter;

impl Engine {
    /// Writethrough: log and origin. Where a copy exists the record is durable first (rule 5): else
    /// a crash could leave the new data on the origin under an older copy that recovery takes for
    /// clean or, if dirty, writes over it.
    pub(crate) fn write_through(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        let (start, end) = (unit.start, unit.start + unit.block_count);
        let pieces = self.pieces_with_copies(unit.slot, start, end);
        let Ok(reason) = self.admit_through(key, &pieces) else {
            // Rule 4 does the rest: what recovery could find is voided first.
            self.settle_claim(key);
            self.units[key].route = Route::Around;
            self.write_around(key, payload);
            return;
        };
        if !self.has_unit_room(key, payload) {
            return;
        }
        if self.is_degraded() && !self.has_dirty_copy(unit.slot, start, end) {
            self.settle_claim(key);
            self.units[key].route = Route::Around;
            self.write_around(key, payload);
            return;
        }
        let record = self.append_unit(key, payload);
        self.note_appended(key, reason);
        if reason != AdmitReason::Dirty && matches!(unit.kind, UnitKind::Data { .. }) {
            self.take_from_budget(unit.block_count);
        }
        // Recovery could find a copy: as it was before the record.
        if !pieces.is_empty() {
            self.units[key].state = UnitState::RecordFirst;
            self.wait_for_record(record, Waiter::Unit(key));
        } else {
            self.wait_for_record(record, Waiter::Unit(key));
            self.write_unit_to_origin(key, 2, payload);
        }
    }

    /// Writearound and passthrough: the origin, and no copy in the log that is older (rule 4).
    pub(crate) fn write_around(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        let (slot, start, end) = (unit.slot, unit.start, unit.start + unit.block_count);
        if self.effective_mode(slot) == CacheMode::Passthrough {
            // The volume's generation was raised: no copy counts.
            self.write_unit_to_origin(key, 1, payload);
            return;
        }
        // Decided under the range lock: where a dirty copy exists, complete or under way, the write
        // is appended; the origin would otherwise be overwritten by older data later.
        let has_dirty = self.has_dirty_copy(slot, start, end);
        if has_dirty && self.route(slot) == Route::Through {
            // It came here because the cache device is degraded; that was before the copy.
            self.units[key].route = Route::Through;
            self.write_through(key, payload);
            return;
        }
        // A copy that is clean stays in the cache, with the new content, unless the cache device is
        // not to be written.
        if has_dirty || self.route(slot) == Route::Log && self.has_copies(slot, start, end) {
            if self.has_unit_room(key, payload) {
                let record = self.append_unit(key, payload);
                self.note_appended(key, AdmitReason::Dirty);
                self.units[key].route = Route::Log;
                self.units[key].state = UnitState::Record;
                self.wait_for_record(record, Waiter::Unit(key));
            }
            return;
        }
        let leaves_copy = has_defect(Defect::NoInvalidation)
            || has_defect(Defect::UnpromotedLeavesCopy) && self.route(slot) == Route::Through;
        let has_copy = self.may_have_copies(slot, start, end) && !leaves_copy;
        if has_copy && self.is_cache_failed() {
            // It got its lock only now, and nothing can be voided any more.
            self.end_unit(key, Err(RequestError::Io), payload);
            return;
        }
        if has_copy && !self.may_cut_blanks(slot, start, end) {
            self.wait_for_blank_room(key);
            return;
        }
        if has_copy && !self.has_room_beside_drops(0) {
            self.wait_for_a_segment(key);
            return;
        }
        let version = self.log.take_version();
        self.units[key].version = version;
        if has_copy {
            let new = NewEntry {
                slot,
                kind: EntryKind::Invalidate,
                start,
                block_count: u32::try_from(unit.block_count).expect("BLANK_BLOCKS_MAX"),
                version,
                is_dirty: false,
                standing: None,
            };
            let record = self.append_bare(Stream::Relocate, new);
            self.units[key].state = UnitState::Invalidation;
            self.wait_for_record(record, Waiter::Unit(key));
        } else {
            self.write_unit_to_origin(key, 1, payload);
        }
    }

    /// Pieces of a range of blocks that say that recovery could find a copy (rule 3): the copies,
    /// and tombstones of others that are not voided durably.
    fn pieces_with_copies(&self, slot: VolumeSlot, start: u64, end: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let index = &self.volume(slot).index;
        index.complete.pieces(start, end, &mut pieces);
        if !has_defect(Defect::CopyFromCompletion) {
            index.pending.pieces(start, end, &mut pieces);
        }
        pieces
    }

    /// Copies of a range of blocks, complete or under way.
    fn copies(&self, slot: VolumeSlot, start: u64, end: u64) -> impl Iterator<Item = Piece> {
        let pieces = self.pieces_with_copies(slot, start, end);
        pieces.into_iter().filter(|piece| piece.place != Place::Absent)
    }

    /// Whether recovery could find a copy of one of the blocks.
    fn may_have_copies(&self, slot: VolumeSlot, start: u64, end: u64) -> bool {
        !self.pieces_with_copies(slot, start, end).is_empty()
    }

    /// Whether one of the blocks has a copy.
    pub(crate) fn has_copies(&self, slot: VolumeSlot, start: u64, end: u64) -> bool {
        self.copies(slot, start, end).next().is_some()
    }

    pub(crate) fn has_dirty_copy(&self, slot: VolumeSlot, start: u64, end: u64) -> bool {
        if has_defect(Defect::AroundDirtyCopy) {
            return false;
        }
        self.copies(slot, start, end).any(|piece| self.is_piece_dirty(&piece))
    }

    pub(crate) fn is_piece_dirty(&self, piece: &Piece) -> bool {
        assert_ne!(piece.place, Place::Absent, "it is no copy");
        piece.positions().any(|position| self.log.segments.is_dirty(position))
    }

    /// Writes the unit to the origin; `waits` ends are outstanding then, this write among them.
    pub(crate) fn write_unit_to_origin(&mut self, key: Key, waits: u8, payload: &mut dyn Payload) {
        let unit = self.units[key];
        self.unit_operation_used_origin(key);
        self.units[key].state = UnitState::Origin;
        self.units[key].waits = waits;
        if unit.route == Route::Around {
            self.note_around_begins(unit.slot, unit.start, unit.block_count);
            let mode = self.effective_mode(unit.slot);
            let reason = if let Some(reason) = unit.admission.and_then(Result::err) {
                reason
            } else if matches!(mode, CacheMode::Writearound | CacheMode::Passthrough) {
                BypassReason::Mode
            } else if self.is_degraded() {
                BypassReason::CacheDegraded
            } else {
                BypassReason::LogFull
            };
            let blocks = (unit.start, unit.block_count);
            self.note_outcome(unit.operation, blocks, Outcome::Bypassed(reason));
        }
        self.submit_unit_to_origin(key, payload);
    }

    /// Writes all of the unit to the origin, for the first time or after it failed. The unit holds
    /// its lock since before the first time.
    pub(crate) fn submit_unit_to_origin(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = &mut self.units[key];
        unit.is_at_origin = true;
        let unit = *unit;
        self.units[key].failed_flushes = self.volume(unit.slot).failed_flushes;
        let volume = self.volume(unit.slot);
        let (offset_bytes, length_bytes) = volume.byte_range(unit.start, unit.block_count);
        let facts = volume.facts.expect("a volume without origin is not served");
        let kind = match unit.kind {
            UnitKind::Data { source, .. } => {
                let length = u32::try_from(length_bytes).expect("a unit");
                IoKind::Write { offset_bytes, slices: Slices::One(source.slice(0, length)) }
            }
            UnitKind::Zeroes { may_unmap } => {
                IoKind::WriteZeroes { offset_bytes, length_bytes, may_unmap }
            }
            UnitKind::Discard if facts.supports_discard => {
                IoKind::Discard { offset_bytes, length_bytes }
            }
            UnitKind::Discard => {
                self.on_unit_origin_written(key, Ok(()), payload);
                return;
            }
            UnitKind::ZeroPart { .. } => unreachable!("it became data"),
        };
        self.submit(Device::Origin(unit.slot), kind, IoPurpose::UnitOrigin { unit: key });
    }

    pub(crate) fn on_unit_origin_written(
        &mut self,
        key: Key,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let unit = self.units[key];
        if self.tries_again(unit.operation, Attempt::Write(key), result) {
            self.volume_mut(unit.slot).had_write_errors = true;
            return;
        }
        self.units[key].is_at_origin = false;
        if unit.route == Route::Around {
            self.note_around_ends(unit.slot, unit.start, unit.block_count);
        }
        if let Err(error) = result {
            let volume = self.volume_mut(unit.slot);
            volume.counters.origin_errors += 1;
            volume.had_write_errors = true;
            volume.note_unsure(unit.start, unit.block_count);
            // The log has what the origin refused: it is dirty and written back later.
            volume.needs_writeback |= unit.route == Route::Through;
            let error = match error {
                crate::io::IoError::NoSpace => RequestError::NoSpace,
                _ => RequestError::Io,
            };
            self.units[key].error.get_or_insert(error);
        }
        self.on_unit_written(key, payload);
    }

    /// One of the ends that the unit waits for.
    pub(crate) fn on_unit_written(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = &mut self.units[key];
        unit.waits -= 1;
        if unit.waits > 0 {
            return;
        }
        let unit = *unit;
        if unit.route == Route::Through && unit.error.is_none() && !self.is_cache_failed() {
            let whole = (unit.start, unit.block_count, unit.version);
            self.note_homed(unit.slot, whole, unit.failed_flushes);
        }
        let result = unit.error.map_or(Ok(()), Err);
        self.end_unit(key, result, payload);
    }

    /// Rule 4: not promoted before an origin flush that begins after the write.
    fn note_around_begins(&mut self, slot: VolumeSlot, start: u64, block_count: u64) {
        let volume = self.volume_mut(slot);
        if volume.around.len() >= AROUND_RANGES_MAX {
            // Too many to tell apart: everything counts as written around, and a flush is asked
            // for.
            volume.around.push_back((0, u64::MAX / 2, u64::MAX));
            volume.flushes.join(Waiter::Nobody);
        } else {
            volume.around.push_back((start, block_count, u64::MAX));
        }
    }

    fn note_around_ends(&mut self, slot: VolumeSlot, start: u64, block_count: u64) {
        let volume = self.volume_mut(slot);
        let needs = volume.flushes.next_number_unless(Defect::AroundFlushUnderWayCounts);
        let exact = volume
            .around
            .iter_mut()
            .find(|(at, count, number)| (*at, *count, *number) == (start, block_count, u64::MAX));
        if let Some(range) = exact {
            range.2 = needs;
            return;
        }
        let all = volume
            .around
            .iter_mut()
            .find(|(_, count, number)| *count == u64::MAX / 2 && *number == u64::MAX);
        all.expect("it was noted when the write began").2 = needs;
        volume.flushes.join(Waiter::Nobody);
    }

    pub(crate) fn join_origin_flush(&mut self, slot: VolumeSlot, waiter: Waiter) {
        self.volume_mut(slot).flushes.join(waiter);
    }
}
