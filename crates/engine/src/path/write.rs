//! Writes, write zeroes and discards.
//!
//! A request is cut into units: a partial block at either end, and runs of whole blocks in between.
//! Each unit takes its lock, decides its route in that step, and ends on its own; the request ends
//! with its last unit. No unit waits for log space while it holds a lock that background work may
//! want (rule 9): it lets go and starts over.

use crate::admission::{Outcome, Verdict};
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::failure::ride::Attempt;
use crate::format::record::{BLANK_BLOCKS_MAX, EntryKind};
use crate::index::{BlankKind, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::Stream;
use crate::log::append::{Checksums, NewEntry};
use crate::options::CacheMode;
use crate::path::miss::one_block;
use crate::path::read::{Span, blocks_of};
use crate::path::room::Ticket;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::range_lock::{LockKind, LockOwner};
use crate::request::{RequestError, RequestKind};
use crate::slab::Key;
use crate::status::AdmitReason;
use crate::units::{BLOCK_BYTES, CacheBlock, Version, VolumeSlot};
use crate::volume::{HostMarkState, Service};
use crate::wake::{Ended, Waiter};

/// What a unit writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnitKind {
    /// Blocks of a buffer. With `part`, the bytes of one block: offset and length within it.
    Data { source: BufferRange, part: Option<(u32, u32)> },
    /// Zeroes in part of a block; the buffer comes once the unit starts.
    ZeroPart { offset: u32, length: u32 },
    /// Zeroes over whole blocks.
    Zeroes { may_unmap: bool },
    /// A discard of whole blocks.
    Discard,
}

/// Where the data of a unit goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Log,
    /// Log and origin.
    Through,
    /// Origin; copies are invalidated.
    Around,
}

/// What a unit waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnitState {
    /// Host state file, or a buffer.
    Starting,
    Lock,
    OldBlock,
    Room,
    /// The record in the log; with it the unit ends.
    Record,
    /// Writethrough over an earlier copy: the record, its flush, then the origin.
    RecordFirst,
    RecordFlush,
    /// The invalidation, its flush, then the origin.
    Invalidation,
    InvalidationFlush,
    /// The origin, and with `waits` the record beside it.
    Origin,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub(crate) operation: Key,
    pub(crate) slot: VolumeSlot,
    pub(crate) kind: UnitKind,
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) route: Route,
    pub(crate) state: UnitState,
    pub(crate) version: Version,
    /// A buffer of the engine's: the zeroes of a partial block.
    own_buffer: Option<BufferId>,
    old_block: Option<BufferId>,
    /// Ends outstanding in `UnitState::Origin`.
    pub(crate) waits: u8,
    /// Failed flushes of the origin when the write to it began.
    pub(crate) failed_flushes: u64,
    /// The origin reads or writes for it, or failed to and is to do it again.
    pub(crate) is_at_origin: bool,
    pub(crate) error: Option<RequestError>,
    /// It was slowed down, if need be.
    pub(crate) is_paced: bool,
    /// Its place among those that wait for room, once it had to wait.
    pub(crate) ticket: Option<Ticket>,
    /// Log that is kept for it.
    pub(crate) claimed_blocks: u32,
    /// Whether a write through goes to the log as well, once that was asked.
    pub(crate) admission: Option<Verdict>,
}

impl Unit {
    /// Log that it takes: its payload and a header. A part of a block becomes the whole block.
    pub(crate) fn log_blocks(&self) -> u32 {
        match self.kind {
            UnitKind::Data { .. } => 1 + u32::try_from(self.block_count).expect("a unit"),
            UnitKind::ZeroPart { .. } => 2,
            UnitKind::Zeroes { .. } | UnitKind::Discard => 1,
        }
    }
}

impl Engine {
    pub(crate) fn start_write(&mut self, key: Key, payload: &mut dyn Payload) {
        let request = self.operations[key].request;
        let block = BLOCK_BYTES as u64;
        let (from, to) = (request.offset_bytes, request.offset_bytes + request.length_bytes);
        let (first, _) = self.operations[key].blocks();
        let size = self.volume(request.volume).size_bytes;
        // The last block of an odd-sized origin is whole if the request reaches the origin's end.
        let (whole_from, whole_to) =
            (from.div_ceil(block), if to == size { to.div_ceil(block) } else { to / block });
        if let (RequestKind::Write { buffer, .. }, true) = (request.kind, to == size) {
            // Bytes behind the origin's end are in the last block's checksum: make them zero.
            let (from, end) = (to - first * block, to.div_ceil(block) * block - first * block);
            let to_u32 = |bytes: u64| u32::try_from(bytes).expect("32 MiB at most");
            let (offset, length) = (to_u32(from), to_u32(end - from));
            payload.zero(BufferRange { buffer, offset, length });
        }
        if whole_from > whole_to {
            self.start_part(key, first, (from % block, to - from), payload);
            return;
        }
        if from % block != 0 {
            let length = whole_from * block - from;
            self.start_part(key, first, (from % block, length.min(to - from)), payload);
        }
        let mut at = whole_from;
        while at < whole_to {
            let (kind, limit) = self.whole_kind(key, first, at, whole_to);
            let count = (whole_to - at).min(limit);
            self.start_unit(key, kind, at, count, payload);
            at += count;
        }
        if to > whole_to * block {
            self.start_part(key, whole_to, (0, to - whole_to * block), payload);
        }
    }

    fn whole_kind(&self, key: Key, first: u64, at: u64, end: u64) -> (UnitKind, u64) {
        match self.operations[key].request.kind {
            RequestKind::Write { buffer, .. } => {
                let count = (end - at).min(self.unit_blocks_max().into());
                let all = BufferRange { buffer, offset: 0, length: u32::MAX };
                let source = blocks_of(all, first, at, count);
                (UnitKind::Data { source, part: None }, count)
            }
            RequestKind::WriteZeroes { may_unmap, .. } => {
                (UnitKind::Zeroes { may_unmap }, BLANK_BLOCKS_MAX)
            }
            RequestKind::Discard { .. } => (UnitKind::Discard, BLANK_BLOCKS_MAX),
            RequestKind::Read { .. } | RequestKind::Flush | RequestKind::Prefetch => unreachable!(),
        }
    }

    /// Part of one block, given as offset and length within it.
    fn start_part(&mut self, key: Key, block: u64, part: (u64, u64), payload: &mut dyn Payload) {
        let (first, _) = self.operations[key].blocks();
        let to_u32 = |bytes: u64| u32::try_from(bytes).expect("within a block");
        let (offset, length) = (to_u32(part.0), to_u32(part.1));
        let kind = match self.operations[key].request.kind {
            RequestKind::Write { buffer, .. } => {
                let all = BufferRange { buffer, offset: 0, length: u32::MAX };
                let source = blocks_of(all, first, block, 1);
                UnitKind::Data { source, part: Some((offset, length)) }
            }
            RequestKind::WriteZeroes { .. } => UnitKind::ZeroPart { offset, length },
            // A discard of part of a block may do nothing.
            _ => return,
        };
        self.start_unit(key, kind, block, 1, payload);
    }

    fn start_unit(
        &mut self,
        key: Key,
        kind: UnitKind,
        start: u64,
        block_count: u64,
        payload: &mut dyn Payload,
    ) {
        self.operations[key].parts += 1;
        let slot = self.operations[key].request.volume;
        let unit = self.units.insert(Unit {
            operation: key,
            slot,
            kind,
            start,
            block_count,
            route: self.route(slot),
            state: UnitState::Starting,
            version: Version(0),
            own_buffer: None,
            old_block: None,
            waits: 0,
            failed_flushes: 0,
            is_at_origin: false,
            error: None,
            is_paced: false,
            ticket: None,
            claimed_blocks: 0,
            admission: None,
        });
        self.prepare_unit(unit, payload);
    }

    /// Where a write of the volume goes now. On a degraded cache device a write in writeback tries
    /// to go around the log; one in writethrough decides that when it has its lock.
    pub(crate) fn route(&self, slot: VolumeSlot) -> Route {
        match self.effective_mode(slot) {
            // Nothing goes around the log, also on the way out of writeback: it would be on the
            // origin before what was written before it.
            CacheMode::Writeback | CacheMode::Writeonly if self.volume(slot).is_ordered() => {
                Route::Log
            }
            CacheMode::Writeback | CacheMode::Writeonly if self.volume(slot).is_leaving() => {
                Route::Through
            }
            CacheMode::Writeback | CacheMode::Writeonly if self.is_degraded() => Route::Around,
            CacheMode::Writeback | CacheMode::Writeonly => Route::Log,
            CacheMode::Writethrough => Route::Through,
            CacheMode::Writearound | CacheMode::Passthrough => Route::Around,
        }
    }

    /// A unit without a lock goes where it can go now.
    fn refresh_route(&mut self, key: Key) {
        let route = self.route(self.units[key].slot);
        if self.is_cache_failed() || self.is_degraded() {
            self.units[key].route = route;
        } else if route == Route::Log && self.units[key].route != Route::Through {
            let is_around = self.is_better_around(key);
            self.units[key].route = if is_around { Route::Around } else { Route::Log };
            if is_around {
                self.settle_claim(key);
            }
        }
    }

    /// What must be there before the unit takes its lock: the host's mark, and a buffer for zeroes.
    fn prepare_unit(&mut self, key: Key, payload: &mut dyn Payload) {
        self.refresh_route(key);
        if !self.is_paced(key) {
            return;
        }
        let unit = self.units[key];
        let keeps_dirty = self.effective_mode(unit.slot).keeps_dirty() || unit.route == Route::Log;
        if keeps_dirty && !self.is_dirty_marked(unit.slot, key) {
            return;
        }
        if let UnitKind::ZeroPart { offset, length } = unit.kind {
            let Some(buffer) = payload.allocate(BLOCK_BYTES) else {
                self.memory_waiters.push_back(Waiter::Unit(key));
                self.wait_for_memory();
                return;
            };
            payload.zero(one_block(buffer));
            let unit = &mut self.units[key];
            unit.own_buffer = Some(buffer);
            unit.kind = UnitKind::Data { source: one_block(buffer), part: Some((offset, length)) };
        }
        self.lock_unit(key, payload);
    }

    /// Rule 10: the host state file says that dirty data may exist before there is any.
    fn is_dirty_marked(&mut self, slot: VolumeSlot, unit: Key) -> bool {
        let volume = self.volume_mut(slot);
        if volume.host_mark == HostMarkState::Set {
            return true;
        }
        self.ask_for_dirty_mark(slot);
        if has_defect(Defect::DirtyBeforeMark) {
            return true;
        }
        self.volume_mut(slot).mark_waiters.push(Waiter::Unit(unit));
        false
    }

    fn lock_unit(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = &mut self.units[key];
        unit.state = UnitState::Lock;
        let kind = match (unit.kind, unit.route) {
            (UnitKind::Data { part: Some(_), .. } | UnitKind::ZeroPart { .. }, _)
                if !has_defect(Defect::MergesShareBlocks) =>
            {
                LockKind::Merge
            }
            (_, Route::Log) => LockKind::LogWrite,
            (_, Route::Through | Route::Around) => LockKind::Origin,
        };
        let (slot, start, end) = (unit.slot, unit.start, unit.start + unit.block_count);
        self.cancel_misses(slot, start, end);
        let owner = LockOwner::Unit(key);
        if self.volume_mut(slot).locks.acquire(start, end, kind, owner) {
            self.on_unit_locked(key, payload);
        } else {
            let operation = self.units[key].operation;
            self.note_needs_origin(operation);
        }
    }

    fn on_unit_locked(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        // A miss that began while this unit waited saw it in the lock table; one that began before
        // was cancelled. Both at once covers a unit that let go of its lock.
        self.cancel_misses(unit.slot, unit.start, unit.start + unit.block_count);
        match unit.kind {
            UnitKind::Data { part: Some(_), .. } => self.read_old_block(key, payload),
            _ => self.write_unit(key, payload),
        }
    }

    /// Reads the block of which a part is written. The merge lock keeps every other writer away.
    fn read_old_block(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        let old = match unit.old_block {
            Some(buffer) => buffer,
            None => match payload.allocate(BLOCK_BYTES) {
                Some(buffer) => buffer,
                None => {
                    self.units[key].state = UnitState::Starting;
                    self.unlock(unit.slot, LockOwner::Unit(key));
                    self.memory_waiters.push_back(Waiter::Unit(key));
                    self.wait_for_memory();
                    return;
                }
            },
        };
        self.units[key].old_block = Some(old);
        self.units[key].state = UnitState::OldBlock;
        let target = one_block(old);
        match self.complete_piece(unit.slot, unit.start).map(|piece| piece.place) {
            Some(Place::Data(position)) => {
                self.pin(position);
                let offset_bytes = self.cache_offset(position);
                let kind = IoKind::Read { offset_bytes, slices: Slices::One(target) };
                let purpose = IoPurpose::UnitOld { unit: key, position: Some(position) };
                self.submit(Device::Cache, kind, purpose);
            }
            Some(Place::Blank { kind: BlankKind::Zeroes { .. } | BlankKind::Discard, .. }) => {
                payload.zero(target);
                self.merge(key, payload);
            }
            Some(Place::Blank { kind: BlankKind::Poison, .. }) => {
                // Rule 12: the rest of the block is lost, and stays an error.
                self.end_unit(key, Err(RequestError::Io), payload);
            }
            Some(Place::Absent) | None => {
                self.note_needs_origin(unit.operation);
                self.read_old_from_origin(key, payload);
            }
        }
    }

    pub(crate) fn read_old_from_origin(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = &mut self.units[key];
        unit.is_at_origin = true;
        let unit = *unit;
        let target = one_block(unit.old_block.expect("it is there when the block is locked"));
        let purpose = IoPurpose::UnitOld { unit: key, position: None };
        let span = Span { start: unit.start, block_count: 1, target };
        self.submit_origin_read(unit.slot, span, purpose, payload);
    }

    pub(crate) fn on_old_block_read(
        &mut self,
        key: Key,
        position: Option<CacheBlock>,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let unit = self.units[key];
        let target = one_block(unit.old_block.expect("it was read into"));
        let Some(position) = position else {
            if self.tries_again(unit.operation, Attempt::OldBlock(key), result) {
                return;
            }
            self.units[key].is_at_origin = false;
            match result {
                Ok(()) if self.is_too_late(key) => {
                    self.end_unit(key, Err(RequestError::Io), payload);
                }
                Ok(()) => self.merge(key, payload),
                Err(_) => {
                    self.volume_mut(unit.slot).counters.origin_errors += 1;
                    self.end_unit(key, Err(RequestError::Io), payload);
                }
            }
            return;
        };
        self.unpin(position);
        if result.is_ok() && self.is_block_good(position, target, 0, payload) {
            self.merge(key, payload);
        } else if !self.log.segments.is_clean(position) {
            self.end_unit(key, Err(RequestError::Io), payload);
        } else {
            // Promise 6: a bad clean block is read from the origin.
            self.volume_mut(unit.slot).counters.repaired_blocks += 1;
            self.note_needs_origin(unit.operation);
            self.read_old_from_origin(key, payload);
        }
    }

    /// Fills the unit's block around its own part with the old content.
    fn merge(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        let UnitKind::Data { source, part: Some((offset, length)) } = unit.kind else {
            unreachable!("only parts are merged")
        };
        let old = one_block(unit.old_block.expect("it was read"));
        let end = offset + length;
        for (from, to) in [(0, offset), (end, BLOCK_BYTES as u32)] {
            if from < to {
                payload.copy(old.slice(from, to - from), source.slice(from, to - from));
            }
        }
        self.write_unit(key, payload);
    }

    /// The unit has its lock and its content: writes it where it belongs.
    fn write_unit(&mut self, key: Key, payload: &mut dyn Payload) {
        if self.is_cache_failed() && self.volume(self.units[key].slot).waits_for_host() {
            self.unlock(self.units[key].slot, LockOwner::Unit(key));
            self.wait_for_host(key);
            return;
        }
        match self.units[key].route {
            Route::Log => self.write_log(key, payload),
            Route::Through => self.write_through(key, payload),
            Route::Around => self.write_around(key, payload),
        }
    }

    /// Appends the unit, dirty; returns its record.
    pub(crate) fn append_unit(&mut self, key: Key, payload: &mut dyn Payload) -> Key {
        let version = self.log.take_version();
        let unit = &mut self.units[key];
        unit.version = version;
        let unit = *unit;
        self.operations[unit.operation].used_log = true;
        let kind = match unit.kind {
            UnitKind::Data { .. } => EntryKind::Data,
            UnitKind::Zeroes { may_unmap } => EntryKind::Zeroes { may_unmap },
            UnitKind::Discard => EntryKind::Discard,
            UnitKind::ZeroPart { .. } => unreachable!("it became data"),
        };
        let new = NewEntry {
            slot: unit.slot,
            kind,
            start: unit.start,
            block_count: u32::try_from(unit.block_count).expect("BLANK_BLOCKS_MAX"),
            version,
            is_dirty: kind == EntryKind::Data || !has_defect(Defect::BlankNeverDirty),
            standing: None,
        };
        let record = match unit.kind {
            UnitKind::Data { source, .. } => {
                self.append_data(Stream::Client, new, source, Checksums::Compute, payload).0
            }
            _ => self.append_bare(Stream::Client, new),
        };
        self.note_in_epoch(unit.slot, u64::from(unit.log_blocks()));
        self.settle_claim(key);
        record
    }

    fn write_log(&mut self, key: Key, payload: &mut dyn Payload) {
        if self.has_unit_room(key, payload) {
            let record = self.append_unit(key, payload);
            self.note_appended(key, AdmitReason::Dirty);
            self.units[key].state = UnitState::Record;
            self.wait_for_record(record, Waiter::Unit(key));
        }
    }

    pub(crate) fn note_appended(&mut self, key: Key, reason: AdmitReason) {
        let unit = self.units[key];
        let blocks = (unit.start, unit.block_count);
        self.note_outcome(unit.operation, blocks, Outcome::Admitted(reason));
    }

    pub(crate) fn on_unit_woken(&mut self, key: Key, ended: Ended, payload: &mut dyn Payload) {
        if ended == Ended::Failed {
            self.on_unit_failed(key, payload);
            return;
        }
        match self.units[key].state {
            UnitState::Starting | UnitState::Room if self.is_too_late(key) => {
                self.release_unlocked(key, RequestError::Io, payload);
            }
            UnitState::Lock | UnitState::InvalidationFlush if self.is_too_late(key) => {
                self.end_unit(key, Err(RequestError::Io), payload);
            }
            UnitState::Starting => self.prepare_unit(key, payload),
            UnitState::Lock => self.on_unit_locked(key, payload),
            UnitState::Room => {
                self.refresh_route(key);
                self.lock_unit(key, payload);
            }
            UnitState::Record => self.end_unit(key, Ok(()), payload),
            UnitState::RecordFirst => {
                self.units[key].state = UnitState::RecordFlush;
                self.join_cache_flush_unless(Defect::ThroughBeforeRecord, Waiter::Unit(key));
            }
            UnitState::RecordFlush | UnitState::InvalidationFlush => {
                self.write_unit_to_origin(key, 1, payload);
            }
            UnitState::Invalidation => {
                self.units[key].state = UnitState::InvalidationFlush;
                self.join_cache_flush_unless(Defect::InvalidationNotAwaited, Waiter::Unit(key));
            }
            UnitState::Origin => self.on_unit_written(key, payload),
            UnitState::OldBlock => unreachable!("reads answer by themselves"),
        }
    }

    /// Rule 10: nothing goes to the origin without its cache before the host state file says so.
    /// Then the unit starts over, on the route that the volume has by then.
    fn wait_for_host(&mut self, key: Key) {
        let unit = &mut self.units[key];
        unit.state = UnitState::Starting;
        let slot = unit.slot;
        self.volume_mut(slot).mark_waiters.push(Waiter::Unit(key));
    }

    /// The log failed. What the origin has or gets anyway is not lost with it.
    fn on_unit_failed(&mut self, key: Key, payload: &mut dyn Payload) {
        let unit = self.units[key];
        match unit.state {
            UnitState::Origin => {
                let volume = self.volume(unit.slot);
                let is_served = volume.service != Service::Quiesced || volume.waits_for_host();
                if !is_served || unit.route == Route::Log {
                    self.units[key].error.get_or_insert(RequestError::Io);
                }
                self.on_unit_written(key, payload);
            }
            UnitState::Room | UnitState::Starting if self.volume(unit.slot).waits_for_host() => {
                self.wait_for_host(key);
            }
            _ if self.volume(unit.slot).waits_for_host() => {
                self.unlock(unit.slot, LockOwner::Unit(key));
                self.wait_for_host(key);
            }
            UnitState::Room | UnitState::Starting => {
                let is_stop = self.stopping.is_some() && !self.is_cache_failed();
                let is_given_up = self.volume(unit.slot).service == Service::GivenUp;
                let error =
                    if is_stop || is_given_up { RequestError::Shutdown } else { RequestError::Io };
                self.release_unlocked(key, error, payload);
            }
            _ => self.end_unit(key, Err(RequestError::Io), payload),
        }
    }

    /// Ends a unit that holds no lock.
    fn release_unlocked(&mut self, key: Key, error: RequestError, payload: &mut dyn Payload) {
        let operation = self.units[key].operation;
        self.release_unit(key, payload);
        self.end_part(operation, Err(error));
    }

    /// Ends a unit that holds its lock.
    pub(crate) fn end_unit(
        &mut self,
        key: Key,
        result: Result<(), RequestError>,
        payload: &mut dyn Payload,
    ) {
        let unit = self.units[key];
        self.unlock(unit.slot, LockOwner::Unit(key));
        self.release_unit(key, payload);
        self.end_part(unit.operation, result);
    }

    fn release_unit(&mut self, key: Key, payload: &mut dyn Payload) {
        self.settle_claim(key);
        let unit = self.units.remove(key).expect("it is under way");
        for buffer in [unit.own_buffer, unit.old_block].into_iter().flatten() {
            payload.release(buffer);
        }
    }

    pub(crate) fn unit_operation_used_origin(&mut self, key: Key) {
        let operation = self.units[key].operation;
        self.operations[operation].used_origin = true;
        self.note_needs_origin(operation);
    }
}
