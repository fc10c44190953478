//! Misses, promotions and repairs: origin reads, who waits for them, and whether a copy is kept.
//!
//! A miss is answered as soon as the origin answers; the copy into the log happens behind it. Rule
//! 9 decides what may be promoted: nothing that a write touched while the origin was read.

mod promote;

use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::failure::ride::Attempt;
use crate::format::record::EntryKind;
use crate::index::Place;
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::Stream;
use crate::log::append::NewEntry;
use crate::path::Operation;
use crate::path::read::{Span, blocks_of};
use crate::payload::{BufferRange, Payload};
use crate::range_lock::{LockKind, LockOwner};
use crate::request::{RequestError, RequestKind};
use crate::slab::Key;
use crate::status::BypassReason;
use crate::units::{BLOCK_BYTES, CacheBlock, EXTENT_BLOCKS_MAX, Time, Version, VolumeSlot};

/// Reads of the origin that are no larger than this tell how long a trip takes: 64 KiB.
const TRIP_BLOCKS_MAX: u64 = 16;

/// A request that waits for an origin read that fetches more, or is another's.
struct JoinedRead {
    operation: Key,
    span: Span,
}

/// An origin read under way.
pub(crate) struct Miss {
    pub(crate) slot: VolumeSlot,
    start: u64,
    block_count: u64,
    target: BufferRange,
    /// Taken before the origin is read, so that any write since has a higher one (rule 1).
    version: Version,
    /// Later readers do not join: a write came, or was under way when the miss began (rule 9).
    is_detached: bool,
    /// Why the blocks will not be promoted.
    rejected: Option<BypassReason>,
    pub(crate) operation: Key,
    joined: Vec<JoinedRead>,
    /// The bad copy that is being repaired.
    repairs: Option<CacheBlock>,
    /// More is fetched than was asked, into a buffer of the engine. Those who asked are `joined`.
    is_widened: bool,
    started: Time,
}

impl Engine {
    /// Reads blocks that no complete copy exists of, joining reads of them that are under way.
    pub(crate) fn read_missing(
        &mut self,
        key: Key,
        span: Span,
        reject: Option<BypassReason>,
        payload: &mut dyn Payload,
    ) {
        let slot = self.operations[key].request.volume;
        let mut at = span.start;
        while at < span.end() {
            match self.joinable_miss(slot, at, span.end()) {
                Some((miss, from, to)) if from <= at => {
                    let span = span.part(at, to);
                    self.operations[key].parts += 1;
                    self.volume_mut(slot).counters.coalesced_misses += 1;
                    self.note_needs_origin(key);
                    payload.retain(span.target.buffer);
                    self.misses[miss].joined.push(JoinedRead { operation: key, span });
                    at = to;
                }
                next => {
                    let limit = next.map_or(span.end(), |(_, from, _)| from);
                    let to = limit.min(at + u64::from(EXTENT_BLOCKS_MAX));
                    let (to, reject) = self.reject_of_run(slot, (at, to), reject);
                    self.start_miss(key, span.part(at, to), reject, payload);
                    at = to;
                }
            }
        }
    }

    /// The first miss that later readers may join and that has blocks of `start..end`: its key and
    /// what it has of them.
    fn joinable_miss(&self, slot: VolumeSlot, start: u64, end: u64) -> Option<(Key, u64, u64)> {
        self.volume(slot)
            .misses
            .iter()
            .filter_map(|key| {
                let miss = &self.misses[*key];
                let from = miss.start.max(start);
                let to = (miss.start + miss.block_count).min(end);
                (!miss.is_detached && from < to).then_some((*key, from, to))
            })
            .min_by_key(|(_, from, _)| *from)
    }

    fn start_miss(
        &mut self,
        key: Key,
        span: Span,
        reject: Option<BypassReason>,
        payload: &mut dyn Payload,
    ) {
        let slot = self.operations[key].request.volume;
        // Rule 9: a write under way, in the log or around it, may land before or after this read.
        let has_writer = self.volume(slot).locks.has_client_write(span.start, span.end())
            && !has_defect(Defect::MissDuringWriteShared);
        let rejected = if has_writer { Some(BypassReason::Overwritten) } else { reject };
        let version = self.log.take_version();
        self.note_needs_origin(key);
        self.operations[key].parts += 1;
        payload.retain(span.target.buffer);
        let mut joined = Vec::new();
        let window = if rejected.is_none() { self.widen(key, &span, payload) } else { None };
        if window.is_some() {
            self.operations[key].parts += 1;
            joined.push(JoinedRead { operation: key, span });
        }
        let whole = window.unwrap_or(span);
        let miss = self.misses.insert(Miss {
            slot,
            start: whole.start,
            block_count: whole.block_count,
            target: whole.target,
            version,
            is_detached: has_writer,
            rejected,
            operation: key,
            joined,
            repairs: None,
            is_widened: window.is_some(),
            started: self.now,
        });
        self.volume_mut(slot).misses.push(miss);
        self.submit_origin_read(slot, whole, IoPurpose::Miss { miss }, payload);
    }

    /// Whether the blocks from the start of a range on are promoted, and up to where that is so.
    fn reject_of_run(
        &self,
        slot: VolumeSlot,
        (start, end): (u64, u64),
        reject: Option<BypassReason>,
    ) -> (u64, Option<BypassReason>) {
        if !reject.is_some_and(BypassReason::yields_to_pins) {
            return (end, reject);
        }
        let (end, is_pinned) = self.superblock.pins(slot).run(start, end);
        (end, reject.filter(|_| !is_pinned))
    }

    /// The window to fetch instead of `span`, in a buffer of the engine, if read-ahead is worth it.
    fn widen(&mut self, key: Key, span: &Span, payload: &mut dyn Payload) -> Option<Span> {
        let Operation { request, admission, .. } = self.operations[key];
        // What is promoted only for being pinned takes nothing else along.
        let is_admitted = admission.is_ok() && self.admits_read_ahead(request.volume);
        if request.kind == RequestKind::Prefetch || !is_admitted {
            return None;
        }
        let (start, end) = self.window_around(request.volume, span)?;
        if !self.volume_mut(request.volume).read_ahead.widens_next() {
            return None;
        }
        let bytes = usize::try_from(end - start).expect("a window") * BLOCK_BYTES;
        let buffer = payload.allocate_spare(bytes)?;
        let length = u32::try_from(bytes).expect("1 MiB at most");
        let target = BufferRange { buffer, offset: 0, length };
        Some(Span { start, block_count: end - start, target })
    }

    /// The blocks around a small miss that lie in the same aligned window and could be promoted
    /// with it: up to the nearest block of which a copy exists or that is being read already.
    /// `None` if there is no such block, or no promotion now.
    fn window_around(&self, slot: VolumeSlot, span: &Span) -> Option<(u64, u64)> {
        let volume = self.volume(slot);
        let window = u64::from(volume.settings.read_ahead_bytes) / BLOCK_BYTES as u64;
        if span.block_count >= window || !volume.promotes() {
            return None;
        }
        let mut start = span.start / window * window;
        let mut end = (start + window).min(volume.block_count());
        let blocks = u32::try_from(window).expect("1 MiB at most");
        // Rules 4 and 9: what could not be promoted must not take the asked blocks along.
        let is_hindered = span.end() > end
            || volume.is_around(start, end)
            || volume.locks.has_client_write(start, end)
            || self.is_memory_full()
            || !self.has_room(Stream::Promote, blocks);
        if is_hindered {
            return None;
        }
        let mut copies = Vec::new();
        self.winners(slot, start, end, &mut copies);
        let copies = copies.iter().filter(|piece| piece.place != Place::Absent);
        let misses = volume.misses.iter().map(|miss| &self.misses[*miss]);
        let known = copies
            .map(|piece| (piece.start, piece.end()))
            .chain(misses.map(|miss| (miss.start, miss.start + miss.block_count)));
        for (from, to) in known {
            if to <= span.start {
                start = start.max(to);
            } else if from >= span.end() {
                end = end.min(from);
            } else {
                return None;
            }
        }
        (start < span.start || span.end() < end).then_some((start, end))
    }

    /// Reads whole blocks from the origin; what lies behind its end reads as zeroes.
    pub(crate) fn submit_origin_read(
        &mut self,
        slot: VolumeSlot,
        span: Span,
        purpose: IoPurpose,
        payload: &mut dyn Payload,
    ) {
        let (offset_bytes, length_bytes) =
            self.volume(slot).byte_range(span.start, span.block_count);
        let length = u32::try_from(length_bytes).expect("an extent");
        if length < span.target.length {
            payload.zero(span.target.slice(length, span.target.length - length));
        }
        let slices = Slices::One(span.target.slice(0, length));
        self.submit(Device::Origin(slot), IoKind::Read { offset_bytes, slices }, purpose);
    }

    /// Rule 9: a write detaches later readers from a miss under way and cancels its promotion.
    pub(crate) fn cancel_misses(&mut self, slot: VolumeSlot, start: u64, end: u64) {
        let volume = self.volumes[usize::from(slot.0)].as_ref().expect("the slot is in use");
        for key in &volume.misses {
            let miss = &mut self.misses[*key];
            if miss.start < end && start < miss.start + miss.block_count {
                miss.is_detached |= !has_defect(Defect::ReaderJoinsOverwrittenMiss);
                if !has_defect(Defect::PromotionIgnoresWrite) {
                    miss.rejected = Some(BypassReason::Overwritten);
                }
            }
        }
    }

    /// Cancels the promotion of every miss of a volume: its mode or generation changes.
    pub(crate) fn cancel_all_misses(&mut self, slot: VolumeSlot) {
        self.cancel_misses(slot, 0, u64::MAX);
    }

    pub(crate) fn on_miss_complete(
        &mut self,
        key: Key,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let miss = &self.misses[key];
        // A larger read may have met a bad place that nobody asked for; see `read_as_asked`.
        if !miss.is_widened && self.tries_again(miss.operation, Attempt::Miss(key), result) {
            return;
        }
        let miss = self.misses.remove(key).expect("it was under way");
        let slot = miss.slot;
        self.volume_mut(slot).misses.retain(|other| *other != key);
        let answer = result.map_err(|_| RequestError::Io);
        if result.is_err() {
            self.volume_mut(slot).counters.origin_errors += 1;
        } else if !miss.is_widened && miss.block_count <= TRIP_BLOCKS_MAX {
            let trip_ns = self.now.nanoseconds_since(miss.started);
            self.volume_mut(slot).read_ahead.on_trip(trip_ns);
        }
        if result.is_err() && miss.is_widened {
            self.read_as_asked(&miss, payload);
            return;
        }
        // Whom it was read for has no time left, or does not wait; those who came later have.
        let reader = &self.operations[miss.operation];
        let is_too_late =
            result.is_err() && (reader.is_answered || reader.request.kind == RequestKind::Prefetch);
        for joined in &miss.joined {
            if is_too_late && !self.operations[joined.operation].is_answered {
                self.read_for_joined(joined, payload);
                continue;
            }
            if result.is_ok() {
                let wanted = &joined.span;
                let from = blocks_of(miss.target, miss.start, wanted.start, wanted.block_count);
                payload.copy(from, wanted.target);
            }
            payload.release(joined.span.target.buffer);
            self.operations[joined.operation].used_origin = true;
            self.end_part(joined.operation, answer);
        }
        if result.is_ok() {
            match miss.rejected {
                Some(reason) => self.note_rejected(&miss, reason),
                None => self.promote(&miss, payload),
            }
        }
        if miss.repairs.is_some() {
            if result.is_ok() {
                self.volume_mut(slot).counters.repaired_blocks += 1;
            }
            self.unlock(slot, LockOwner::Repair(key));
        }
        self.end_part(miss.operation, answer);
        payload.release(miss.target.buffer);
    }

    /// The bad place may be one that nobody asked for: reads again what each reader wants.
    fn read_as_asked(&mut self, miss: &Miss, payload: &mut dyn Payload) {
        for reader in &miss.joined {
            self.read_for_joined(reader, payload);
        }
        self.end_part(miss.operation, Ok(()));
        payload.release(miss.target.buffer);
    }

    fn read_for_joined(&mut self, reader: &JoinedRead, payload: &mut dyn Payload) {
        let reject = Some(BypassReason::OriginError);
        let since = self.operations[reader.operation].origin_since;
        self.read_missing(reader.operation, reader.span, reject, payload);
        // It is the same wait.
        self.operations[reader.operation].origin_since = since;
        payload.release(reader.span.target.buffer);
        self.end_part(reader.operation, Ok(()));
    }

    /// The origin failed to read a miss; now it may.
    pub(crate) fn read_miss_again(&mut self, key: Key, payload: &mut dyn Payload) {
        let miss = &self.misses[key];
        let Miss { slot, start, block_count, target, .. } = *miss;
        let span = Span { start, block_count, target };
        self.submit_origin_read(slot, span, IoPurpose::Miss { miss: key }, payload);
    }

    /// A clean block is bad on the cache device: reads it from the origin, answers with that, and
    /// puts it in the place of the bad copy. Under the range lock, so that the origin stands still.
    pub(crate) fn start_repair(
        &mut self,
        key: Key,
        block: u64,
        position: CacheBlock,
        target: BufferRange,
        payload: &mut dyn Payload,
    ) {
        let slot = self.operations[key].request.volume;
        self.operations[key].parts += 1;
        self.operations[key].used_origin = true;
        self.note_needs_origin(key);
        payload.retain(target.buffer);
        let miss = self.misses.insert(Miss {
            slot,
            start: block,
            block_count: 1,
            target,
            version: Version(0),
            is_detached: true,
            rejected: None,
            operation: key,
            joined: Vec::new(),
            repairs: Some(position),
            is_widened: false,
            started: self.now,
        });
        let owner = LockOwner::Repair(miss);
        let locks = &mut self.volume_mut(slot).locks;
        if locks.acquire(block, block + 1, LockKind::Origin, owner) {
            self.on_repair_locked(miss, payload);
        }
    }

    /// Whether the origin has what a bad copy should have.
    pub(crate) fn is_repairable(&self, position: CacheBlock) -> bool {
        self.log.segments.is_clean(position) || has_defect(Defect::DirtyRepairedFromOrigin)
    }

    pub(crate) fn on_repair_locked(&mut self, key: Key, payload: &mut dyn Payload) {
        let miss = &self.misses[key];
        let (slot, block, target) = (miss.slot, miss.start, miss.target);
        let position = miss.repairs.expect("only repairs wait for locks");
        let is_unchanged = self.is_at(slot, block, position) && self.is_repairable(position);
        if !is_unchanged {
            // Written meanwhile: read what is there now.
            let miss = self.misses.remove(key).expect("it was waiting");
            self.unlock(slot, LockOwner::Repair(key));
            let span = Span { start: block, block_count: 1, target };
            let reject = self.operations[miss.operation].admission.err();
            self.read_blocks(miss.operation, span, reject, 1, payload);
            self.end_part(miss.operation, Ok(()));
            payload.release(target.buffer);
            return;
        }
        let has_writer = self.volume(slot).locks.has_client_write(block, block + 1);
        let version = self.log.take_version();
        let miss = &mut self.misses[key];
        miss.version = version;
        if has_writer {
            miss.rejected = Some(BypassReason::Overwritten);
        }
        self.volume_mut(slot).misses.push(key);
        let span = Span { start: block, block_count: 1, target };
        self.submit_origin_read(slot, span, IoPurpose::Miss { miss: key }, payload);
    }

    /// Rule 12: a dirty block that cannot be read becomes an error entry of the same version. Tells
    /// whether it did: not if it was overwritten meanwhile, or there is no room.
    pub(crate) fn poison(&mut self, slot: VolumeSlot, block: u64, position: CacheBlock) -> bool {
        let mut winners = Vec::new();
        self.winners(slot, block, block + 1, &mut winners);
        let is_newest = winners.first().is_some_and(|p| p.place == Place::Data(position));
        if !is_newest || !self.has_room_beside_drops(0) {
            return false;
        }
        self.append_poison(slot, block, 1, winners[0].version);
        true
    }

    /// Rule 12: blocks that are lost are read as errors until they are written again. The caller
    /// has seen that there is room.
    pub(crate) fn append_poison(
        &mut self,
        slot: VolumeSlot,
        start: u64,
        block_count: u32,
        version: Version,
    ) {
        let new = NewEntry {
            slot,
            kind: EntryKind::Poison,
            start,
            block_count,
            version,
            is_dirty: true,
            standing: None,
        };
        self.append_bare(Stream::Relocate, new);
        self.volume_mut(slot).counters.poisoned_blocks += u64::from(block_count);
    }
}

impl Miss {
    /// Requests that wait for it.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Key> {
        self.joined.iter().map(|joined| joined.operation).chain([self.operation])
    }
}

/// A block's worth of a buffer of the engine.
pub(crate) fn one_block(buffer: crate::payload::BufferId) -> BufferRange {
    BufferRange { buffer, offset: 0, length: BLOCK_BYTES as u32 }
}
