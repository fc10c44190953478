//! What is kept of a victim is read, verified and appended again.

use super::State;
use super::keep::Hold;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::format::record::EntryKind;
use crate::index::{Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::append::{Checksums, NewEntry};
use crate::log::{BlankRecord, RESERVE_SEGMENTS, SPARE_SEGMENTS, Stream};
use crate::path::read::blocks_of;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::units::{BLOCK_BYTES, CacheBlock, VolumeSlot};
use crate::wake::Waiter;

/// Reads of blocks to be kept that are under way at once.
const READS_MAX: usize = 8;
/// Times that a dirty block is read before it counts as lost.
const READ_ATTEMPTS_MAX: u8 = 3;

/// Blocks that are appended again.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) slot: VolumeSlot,
    pub(super) piece: Piece,
    pub(super) attempts: u8,
    /// Of what is clean; dirty blocks are never dropped.
    pub(super) hold: Hold,
}

impl Engine {
    pub(super) fn relocate(&mut self, payload: &mut dyn Payload) {
        while self.reclaim.next_item < self.reclaim.items.len()
            && self.reclaim.reads_in_flight < READS_MAX
        {
            let index = self.reclaim.next_item;
            let item = self.reclaim.items[index];
            let Place::Data(position) = item.piece.place else {
                self.relocate_blank(&item);
                self.reclaim.next_item += 1;
                continue;
            };
            let bytes = item.piece.block_count as usize * BLOCK_BYTES;
            let Some(buffer) = payload.allocate(bytes) else {
                self.wait_for_memory();
                return;
            };
            self.reclaim.next_item += 1;
            self.reclaim.reads_in_flight += 1;
            self.pin(position);
            let length = u32::try_from(bytes).expect("an extent");
            let slices = Slices::One(BufferRange { buffer, offset: 0, length });
            let offset_bytes = self.cache_offset(position);
            let purpose = IoPurpose::ReclaimRead { item: index, buffer };
            self.submit(Device::Cache, IoKind::Read { offset_bytes, slices }, purpose);
        }
        let is_done = self.reclaim.next_item == self.reclaim.items.len();
        if is_done && self.reclaim.reads_in_flight == 0 {
            if has_defect(Defect::DropBeforeSuperseders) {
                self.append_drops();
                return;
            }
            self.reclaim.state = State::Completing;
            self.wait_for_frontier(Waiter::Reclaim);
        }
    }

    /// Blocks that are to be appended again are on their way. (What tells which these are is read
    /// before, when there is no record with any of them.)
    pub(crate) fn is_reading_what_is_kept(&self) -> bool {
        self.reclaim.reads_in_flight > 0
    }

    pub(crate) fn on_reclaim_read(
        &mut self,
        index: usize,
        buffer: BufferId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let item = self.reclaim.items[index];
        let Place::Data(position) = item.piece.place else { unreachable!("it was read") };
        self.reclaim.reads_in_flight -= 1;
        self.unpin(position);
        let count = u32::try_from(item.piece.block_count).expect("data pieces are small");
        let length = count * BLOCK_BYTES as u32;
        let data = BufferRange { buffer, offset: 0, length };
        let mut at = 0;
        while at < count {
            let from = CacheBlock(position.0 + at);
            if result.is_err() || !self.is_block_good(position, data, at, payload) {
                self.on_unreadable(&item, at, result);
                at += 1;
                continue;
            }
            let run = self.relocatable_run(&item, position, at, data, payload);
            if run == 0 {
                at += 1;
                continue;
            }
            let piece = item
                .piece
                .clip(item.piece.start + u64::from(at), item.piece.start + u64::from(at + run));
            let source = blocks_of(data, 0, at.into(), run.into());
            self.relocate_data(&item, &piece, from, source, payload);
            at += run;
        }
        payload.release(buffer);
    }

    /// Blocks from `at` on that are good, still the newest copy, and all dirty or all clean.
    fn relocatable_run(
        &self,
        item: &Item,
        position: CacheBlock,
        at: u32,
        data: BufferRange,
        payload: &dyn Payload,
    ) -> u32 {
        let count = u32::try_from(item.piece.block_count).expect("data pieces are small");
        let is_dirty = self.log.segments.is_dirty(CacheBlock(position.0 + at));
        // To the end of the open segment, so that what is kept lies close together.
        let most = self.relocation_unit_blocks();
        let mut run = 0;
        while at + run < count && run < most {
            let here = CacheBlock(position.0 + at + run);
            // Rule 1: checked in the step that appends; a block of which something newer has been
            // appended has lost its live bit.
            let is_newest =
                self.log.segments.is_live(here) || has_defect(Defect::RelocationTakesNewVersion);
            let is_same = is_newest
                && self.log.segments.is_dirty(here) == is_dirty
                && self.is_block_good(position, data, at + run, payload);
            if !is_same {
                break;
            }
            run += 1;
        }
        run
    }

    fn relocate_data(
        &mut self,
        item: &Item,
        piece: &Piece,
        from: CacheBlock,
        source: BufferRange,
        payload: &mut dyn Payload,
    ) {
        let block_count = u32::try_from(piece.block_count).expect("a unit");
        let is_dirty = self.log.segments.is_dirty(from);
        let is_at_reserve = self.log.segments.free_count() <= RESERVE_SEGMENTS + SPARE_SEGMENTS;
        if !is_dirty && item.hold == Hold::Wanted && is_at_reserve {
            // Rule 11: the reserve is not for clean data that may go.
            return;
        }
        let is_kept_there = is_dirty && self.is_going_home_in_order(item.slot);
        if is_kept_there || !self.has_room_beside_drops(block_count) {
            self.spare_victim(piece);
            return;
        }
        // Rule 1: version, checksum and dirty state stay, and with the version the flush epoch.
        let version = if has_defect(Defect::RelocationTakesNewVersion) {
            self.log.take_version()
        } else {
            piece.version
        };
        let new = NewEntry {
            slot: item.slot,
            kind: EntryKind::Data,
            start: piece.start,
            block_count,
            version,
            is_dirty: is_dirty && !has_defect(Defect::RelocationBecomesClean),
            standing: None,
        };
        let (_, to) =
            self.append_data(Stream::Relocate, new, source, Checksums::Keep(from), payload);
        if is_dirty {
            self.log.segments.keep_dirty_age(from, to);
        } else {
            self.log.segments.keep_age(from, to);
        }
    }

    fn relocate_blank(&mut self, item: &Item) {
        let Place::Blank { kind, header } = item.piece.place else { unreachable!() };
        if !self.log.segments.is_dirty(header) {
            // Overwritten since it was chosen, or home: then it goes with the victim.
            return;
        }
        let blank = self.log.blanks.get(&header.0);
        let is_cut =
            self.volume(item.slot).is_ordered() && blank.is_some_and(BlankRecord::is_in_pieces);
        if is_cut || self.is_going_home_in_order(item.slot) {
            // What of it was superseded is still to go home with the rest, as of its epoch.
            self.spare_victim(&item.piece);
            return;
        }
        for piece in self.live_pieces(item.slot, item.piece.start, item.piece.end(), header) {
            if !self.has_room_beside_drops(0) {
                self.spare_victim(&piece);
                return;
            }
            let new = NewEntry {
                slot: item.slot,
                kind: kind.entry_kind(),
                start: piece.start,
                block_count: u32::try_from(piece.block_count).expect("BLANK_BLOCKS_MAX"),
                version: piece.version,
                is_dirty: true,
                standing: None,
            };
            self.append_bare(Stream::Relocate, new);
        }
    }

    /// A clean block that cannot be read is forgotten with its segment; a dirty one is read again,
    /// then an error from now on (rule 12).
    fn on_unreadable(&mut self, item: &Item, offset: u32, result: IoResult) {
        let block = item.piece.start + u64::from(offset);
        let piece = item.piece.clip(block, block + 1);
        let Place::Data(position) = piece.place else { unreachable!() };
        if !self.log.segments.is_dirty(position) {
            return;
        }
        if item.attempts < READ_ATTEMPTS_MAX {
            let attempts = item.attempts + 1;
            self.reclaim.items.push(Item { piece, attempts, ..*item });
            return;
        }
        if result.is_err() || !self.has_room_beside_drops(0) {
            self.spare_victim(&piece);
            return;
        }
        self.poison(item.slot, block, position);
    }

    fn spare_victim(&mut self, piece: &Piece) {
        let segment = self.piece_segment(piece);
        let mut victims = self.reclaim.victims.iter_mut();
        let victim = victims.find(|victim| Some(victim.segment) == segment);
        victim.expect("it is moved out of a victim").is_spared = true;
    }
}
