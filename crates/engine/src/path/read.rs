//! Reads: hits, partial hits, and the search for what is missing.

use crate::admission::Outcome;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::index::{BlankKind, Piece, Place};
use crate::io::{Device, IoError, IoKind, IoResult, Slices};
use crate::payload::{BufferId, BufferRange, Payload};
use crate::request::{RequestError, RequestKind};
use crate::slab::Key;
use crate::status::BypassReason;
use crate::units::{BLOCK_BYTES, CacheBlock, EXTENT_BLOCKS_MAX, VolumeSlot};

/// Times that a block is looked up again because it moved or was overwritten under a read, or read
/// again because its checksum was wrong.
const ATTEMPTS_MAX: u8 = 4;

/// Cached blocks that are being read for a request.
#[derive(Clone, Copy)]
pub(crate) struct ReadPart {
    pub(crate) operation: Key,
    pub(crate) slot: VolumeSlot,
    pub(crate) start: u64,
    pub(crate) block_count: u32,
    pub(crate) position: CacheBlock,
    pub(crate) target: BufferRange,
    pub(crate) attempts: u8,
}

/// Blocks that are wanted, and the bytes where they go.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) target: BufferRange,
}

impl Span {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.block_count
    }

    pub(crate) fn has(&self, block: u64) -> bool {
        self.start <= block && block < self.end()
    }

    /// The part from `start` to `end`, which lie within the span.
    pub(crate) fn part(&self, start: u64, end: u64) -> Span {
        let target = blocks_of(self.target, self.start, start, end - start);
        Span { start, block_count: end - start, target }
    }
}

/// The part of a request's buffer that holds `block_count` blocks from `start` on.
pub(crate) fn blocks_of(
    range: BufferRange,
    first: u64,
    start: u64,
    block_count: u64,
) -> BufferRange {
    let to_u32 = |blocks: u64| u32::try_from(blocks * BLOCK_BYTES as u64).expect("32 MiB at most");
    range.slice(to_u32(start - first), to_u32(block_count))
}

impl Engine {
    pub(crate) fn start_read(&mut self, key: Key, buffer: BufferId, payload: &mut dyn Payload) {
        let operation = self.operations[key];
        let (start, block_count) = operation.blocks();
        let slot = operation.request.volume;
        let length = u32::try_from(block_count * BLOCK_BYTES as u64).expect("32 MiB at most");
        let target = BufferRange { buffer, offset: 0, length };
        let (offset_bytes, length_bytes) =
            (operation.request.offset_bytes, operation.request.length_bytes);
        let volume = self.volume_mut(slot);
        let stream_bytes = volume.sequential.observe(offset_bytes, length_bytes);
        let admission = self.admit_read(slot, (start, block_count), stream_bytes);
        self.operations[key].admission = admission;
        let span = Span { start, block_count, target };
        let missed = self.read_blocks(key, span, admission.err(), 0, payload);
        let counters = &mut self.volume_mut(slot).counters;
        let missed_bytes = (missed * BLOCK_BYTES as u64).min(length_bytes);
        counters.read_miss_bytes += missed_bytes;
        counters.read_hit_bytes += length_bytes - missed_bytes;
        match missed {
            0 => counters.read_hits += 1,
            missed if missed == block_count => counters.read_misses += 1,
            _ => counters.read_partial_hits += 1,
        }
    }

    /// Reads blocks into `target`, from wherever they are; returns how many have to come from the
    /// origin.
    pub(crate) fn read_blocks(
        &mut self,
        key: Key,
        span: Span,
        reject: Option<BypassReason>,
        attempts: u8,
        payload: &mut dyn Payload,
    ) -> u64 {
        let slot = self.operations[key].request.volume;
        let mut pieces = core::mem::take(&mut self.scratch.lookup);
        pieces.clear();
        self.volume(slot).index.complete.pieces(span.start, span.end(), &mut pieces);
        let (mut at, mut missed) = (span.start, 0);
        for piece in &pieces {
            if piece.place == Place::Absent {
                continue;
            }
            if at < piece.start {
                missed += piece.start - at;
                self.read_missing(key, span.part(at, piece.start), reject, payload);
            }
            let range = span.part(piece.start, piece.end()).target;
            self.read_cached(key, piece, range, attempts, payload);
            at = piece.end();
        }
        if at < span.end() {
            missed += span.end() - at;
            self.read_missing(key, span.part(at, span.end()), reject, payload);
        }
        self.scratch.lookup = pieces;
        if missed > 0 {
            self.operations[key].used_origin = true;
        }
        missed
    }

    fn read_cached(
        &mut self,
        key: Key,
        piece: &Piece,
        target: BufferRange,
        attempts: u8,
        payload: &mut dyn Payload,
    ) {
        match piece.place {
            Place::Data(position) => {
                let block_count = u32::try_from(piece.block_count).expect("data pieces are small");
                let slot = self.operations[key].request.volume;
                self.prefetch_for_hit(position, block_count);
                self.operations[key].parts += 1;
                let part = ReadPart {
                    operation: key,
                    slot,
                    start: piece.start,
                    block_count,
                    position,
                    target,
                    attempts,
                };
                self.submit_read_part(part);
            }
            Place::Blank { kind: BlankKind::Zeroes { .. } | BlankKind::Discard, .. } => {
                payload.zero(target);
            }
            // Rule 12: never the data of before.
            Place::Blank { kind: BlankKind::Poison, .. } => {
                self.operations[key].error.get_or_insert(RequestError::Io);
            }
            Place::Absent => unreachable!("the caller takes it for missing"),
        }
    }

    /// What [`Engine::on_read_hit_complete`] wants of memory, so that it need not wait for it: in a
    /// large index it would, as long as for a node of the index.
    fn prefetch_for_hit(&self, position: CacheBlock, block_count: u32) {
        self.log.segments.prefetch_crcs(position, block_count);
        self.ahead.prefetch(position);
        self.replacement.policy.prefetch(position);
    }

    /// Tells the policy. The first read of a block that was fetched ahead is what the miss is for
    /// others: no sign yet that it is read again.
    fn note_hit(&mut self, slot: VolumeSlot, position: CacheBlock, block_count: u32) {
        if !self.ahead.any(position, block_count) {
            self.note_use(position, block_count);
            return;
        }
        let mut first_reads = 0;
        for block in position.0..position.0 + block_count {
            if self.ahead.take(CacheBlock(block)) {
                first_reads += 1;
            } else {
                self.note_use(CacheBlock(block), 1);
            }
        }
        let volume = self.volume_mut(slot);
        volume.read_ahead.on_used(first_reads);
        volume.counters.read_ahead_used_blocks += u64::from(first_reads);
    }

    fn submit_read_part(&mut self, part: ReadPart) {
        let offset_bytes = self.cache_offset(part.position);
        let kind = IoKind::Read { offset_bytes, slices: Slices::One(part.target) };
        self.pin(part.position);
        let part = self.read_parts.insert(part);
        self.submit(Device::Cache, kind, IoPurpose::ReadHit { part });
    }

    /// Rule 6: a segment with a reader in it is not reused.
    pub(crate) fn pin(&mut self, position: CacheBlock) {
        let (segment, _) = self.log.segments.locate(position);
        self.log.segments.pin(segment);
    }

    pub(crate) fn unpin(&mut self, position: CacheBlock) {
        let (segment, _) = self.log.segments.locate(position);
        self.log.segments.unpin(segment);
    }

    pub(crate) fn on_read_hit_complete(
        &mut self,
        part: Key,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let part = self.read_parts.remove(part).expect("it was under way");
        let (mut bad_from, mut bad_count) = (0, 0);
        for index in 0..part.block_count {
            let is_good =
                result.is_ok() && self.is_block_good(part.position, part.target, index, payload);
            if !is_good {
                if bad_count == 0 {
                    bad_from = index;
                }
                bad_count = index + 1 - bad_from;
            }
        }
        if part.attempts == 0 {
            self.note_hit(part.slot, part.position, part.block_count);
        }
        self.unpin(part.position);
        if bad_count > 0 {
            let bad = ReadPart {
                start: part.start + u64::from(bad_from),
                block_count: bad_count,
                position: CacheBlock(part.position.0 + bad_from),
                target: blocks_of(part.target, 0, bad_from.into(), bad_count.into()),
                attempts: part.attempts + 1,
                ..part
            };
            self.read_again(bad, result.err(), payload);
        }
        self.end_part(part.operation, Ok(()));
    }

    /// Promise 6: whether a block that was read has the checksum that the index knows.
    pub(crate) fn is_block_good(
        &self,
        position: CacheBlock,
        data: BufferRange,
        index: u32,
        payload: &dyn Payload,
    ) -> bool {
        let block = data.slice(index * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        has_defect(Defect::ChecksumNotCompared)
            || payload.checksum(block) == self.log.segments.crc(CacheBlock(position.0 + index))
    }

    /// Cached blocks could not be read or had a wrong checksum. Block by block: what was
    /// overwritten or moved meanwhile is looked up again, what is clean is repaired from the
    /// origin, what is dirty is read once more, unless the device is lost as a whole, and then an
    /// error.
    fn read_again(&mut self, part: ReadPart, error: Option<IoError>, payload: &mut dyn Payload) {
        for index in 0..part.block_count {
            let start = part.start + u64::from(index);
            let position = CacheBlock(part.position.0 + index);
            let target = blocks_of(part.target, 0, index.into(), 1);
            let key = part.operation;
            if !self.is_at(part.slot, start, position) {
                if part.attempts > ATTEMPTS_MAX {
                    self.operations[key].error.get_or_insert(RequestError::Io);
                } else {
                    let span = Span { start, block_count: 1, target };
                    let reject = self.operations[key].admission.err();
                    self.read_blocks(key, span, reject, part.attempts, payload);
                }
            } else if self.is_repairable(position) {
                self.start_repair(key, start, position, target, payload);
            } else if self.is_cache_failed() {
                self.operations[key].error.get_or_insert(RequestError::Io);
            } else if part.attempts < ATTEMPTS_MAX {
                self.operations[key].parts += 1;
                self.submit_read_part(ReadPart { start, block_count: 1, position, target, ..part });
            } else {
                self.operations[key].error.get_or_insert(RequestError::Io);
                if error.is_none() && self.log.segments.is_dirty(position) {
                    self.poison(part.slot, start, position);
                }
            }
        }
    }

    /// Whether the complete index has the block at this position.
    pub(crate) fn is_at(&self, slot: VolumeSlot, block: u64, position: CacheBlock) -> bool {
        self.complete_piece(slot, block).is_some_and(|piece| piece.place == Place::Data(position))
    }

    /// The complete copy of one block.
    pub(crate) fn complete_piece(&self, slot: VolumeSlot, block: u64) -> Option<Piece> {
        let mut pieces = alloc::vec::Vec::with_capacity(1);
        self.volume(slot).index.complete.pieces(block, block + 1, &mut pieces);
        pieces.first().copied().filter(|piece| piece.place != Place::Absent)
    }

    /// Prefetch: brings what is missing into the cache, in buffers of the engine; what finds no
    /// buffer or no room is left out, since nothing depends on it, and counted.
    pub(crate) fn start_prefetch(&mut self, key: Key, payload: &mut dyn Payload) {
        let operation = self.operations[key];
        assert_eq!(operation.request.kind, RequestKind::Prefetch);
        let slot = operation.request.volume;
        let mut refusal = self.refusal_of_prefetch(slot);
        let (start, block_count) = operation.blocks();
        let mut pieces = alloc::vec::Vec::new();
        self.winners(slot, start, start + block_count, &mut pieces);
        pieces.sort_unstable_by_key(|piece| piece.start);
        let mut at = start;
        let end = start + block_count;
        let gaps = pieces.iter().map(|piece| (piece.start, piece.end())).chain([(end, end)]);
        for (from, to) in gaps {
            while at < from {
                let limit = from.min(at + u64::from(EXTENT_BLOCKS_MAX));
                let (limit, is_pinned) = self.superblock.pins(slot).run(at, limit);
                let count = limit - at;
                let is_wanted = is_pinned && refusal == Some(BypassReason::ShareMax);
                if let Some(reason) = refusal.filter(|_| !is_wanted) {
                    self.note_outcome(key, (at, count), Outcome::Bypassed(reason));
                    at = limit;
                    continue;
                }
                let bytes = count as usize * BLOCK_BYTES;
                let Some(buffer) = payload.allocate_spare(bytes) else {
                    refusal = Some(BypassReason::Memory);
                    continue;
                };
                let length = u32::try_from(bytes).expect("1 MiB");
                let range = BufferRange { buffer, offset: 0, length };
                let span = Span { start: at, block_count: count, target: range };
                self.read_missing(key, span, None, payload);
                payload.release(buffer);
                at += count;
            }
            at = at.max(to);
        }
    }

    /// Why nothing is prefetched but what is pinned, or with [`BypassReason::Mode`] and
    /// [`BypassReason::CacheDegraded`] nothing at all.
    fn refusal_of_prefetch(&self, slot: VolumeSlot) -> Option<BypassReason> {
        if !self.volume(slot).promotes() {
            Some(BypassReason::Mode)
        } else if self.is_degraded() {
            Some(BypassReason::CacheDegraded)
        } else {
            self.is_at_share_max(slot).then_some(BypassReason::ShareMax)
        }
    }
}
