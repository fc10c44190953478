//! Reclaim: making segments free again (rules 3, 6 and 11).
//!
//! Segments of which nothing is left are simply dropped. Else victims are taken in the order in
//! which they were opened. What is dirty, and what the policy keeps, is appended again; when that
//! and everything that superseded blocks of the victims is durable, one drop record a victim is
//! written; when that is durable the index forgets what is left. The segments are free after the
//! next checkpoint.
//!
//! The order matters: a drop that is durable while a superseding record is not would, after a
//! crash, make the block absent, and the dirty data that it had before would be lost.

use alloc::vec::Vec;

use crate::background::segment_entries::SegmentRange;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose, SummaryUser};
use crate::format::record::EntryKind;
use crate::index::{Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::append::{Checksums, NewEntry};
use crate::log::segments::{SegmentState, Superseded};
use crate::log::{
    BlankRecord, DROPS_OF_ROUND, MOSTLY_DEAD_DIVISOR, RESERVE_SEGMENTS, SPARE_SEGMENTS, Stream,
};
use crate::path::read::blocks_of;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::policy::Queue;
use crate::units::{BLOCK_BYTES, CacheBlock, Time, VolumeSlot};
use crate::wake::{Ended, Waiter};

/// Victims of one round: they share two flushes and a checkpoint, and each takes a drop.
const VICTIMS_MAX: usize = DROPS_OF_ROUND as usize;
/// Milliseconds until another round, after one with segments that cannot be emptied now either.
const REST_MS: u64 = 100;
/// Reads of blocks to be kept that are under way at once.
const READS_MAX: usize = 8;
/// Times that a dirty block is read before it counts as lost.
const READ_ATTEMPTS_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Finds out what the victims hold.
    Loading,
    /// Appends again what is kept.
    Relocating,
    /// Waits until that, and what superseded blocks, is complete, then durable.
    Completing,
    Flushing,
    /// Waits until the drops are complete, then durable.
    DropCompleting,
    DropFlushing,
}

struct Victim {
    segment: u32,
    is_loaded: bool,
    ranges: Vec<SegmentRange>,
    /// Something dirty could not be appended again: the victim stays.
    is_spared: bool,
}

/// A closed segment that could be reclaimed.
struct Candidate {
    order: u64,
    id: u32,
    live: u32,
    dirty: u32,
    retained: u32,
    was_spared: bool,
}

/// Log that moving so many blocks takes at most: each in a record of its own, and the drop.
fn room_to_move(blocks: u32) -> u32 {
    2 * blocks + 2
}

/// Blocks that are appended again.
#[derive(Clone, Copy)]
struct Item {
    slot: VolumeSlot,
    piece: Piece,
    attempts: u8,
}

#[derive(Default)]
pub(crate) struct ReclaimJob {
    state: State,
    victims: Vec<Victim>,
    items: Vec<Item>,
    next_item: usize,
    reads_in_flight: usize,
    /// Clean blocks that may still be kept in this round.
    keep_budget: u32,
    /// The last search found no segment that could be emptied.
    found_nothing: bool,
    /// After a round in vain.
    rests_until: Time,
}

impl core::fmt::Debug for ReclaimJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (victims, items) = (self.victims.len(), self.items.len());
        write!(f, "{:?} ({victims} victims, item {} of {items}", self.state, self.next_item)?;
        write!(f, ", {} reads)", self.reads_in_flight)
    }
}

impl ReclaimJob {
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether the drop of this segment is written, and the index is about to forget it.
    pub(crate) fn is_dropping(&self, segment: u32) -> bool {
        matches!(self.state, State::DropCompleting | State::DropFlushing)
            && self.victims.iter().any(|victim| victim.segment == segment && !victim.is_spared)
    }
}

impl Engine {
    fn low_segments(&self) -> u32 {
        RESERVE_SEGMENTS + SPARE_SEGMENTS + (self.log.segments.len() / 32).max(4)
    }

    /// Whether segments have to be reclaimed.
    pub(crate) fn is_short_of_segments(&self) -> bool {
        self.log.segments.free_count() < self.low_segments()
    }

    /// Free segments at which reclaim rests.
    pub(crate) fn reclaim_target(&self) -> u32 {
        self.low_segments() + (self.log.segments.len() / 64).max(2)
    }

    /// Whether reclaim has something to do: for space, or for memory.
    fn is_reclaim_due(&self) -> bool {
        self.may_append()
            && self.has_clients()
            && !self.wants_rest()
            && (self.is_short_of_segments() || self.excess_memory_bytes() > 0)
    }

    /// Whether nothing that the engine can do frees space: all of it is dirty data that cannot go
    /// home, of volumes that are not served; or no more pieces of zeroes have room in a checkpoint,
    /// and these cannot go home.
    pub(crate) fn is_full_for_good(&self) -> bool {
        let is_full_of_data = self.reclaim.is_idle()
            && self.reclaim.found_nothing
            && self.is_short_of_segments()
            && self.dropped_count() == 0;
        (is_full_of_data || !self.has_blank_room()) && !self.can_writeback_help()
    }

    /// Segments that will be free once a checkpoint is durable.
    fn dropped_count(&self) -> u32 {
        let dropped = self.log.segments.iter().filter(|(_, segment)| {
            matches!(segment.state, SegmentState::Dropped(_) | SegmentState::Discarding)
        });
        u32::try_from(dropped.count()).expect("segments are counted in u32")
    }

    /// When segments are looked at again after a round in vain.
    pub(crate) fn reclaim_wakeup(&self) -> Option<Time> {
        Some(self.reclaim.rests_until).filter(|at| *at > self.now)
    }

    pub(crate) fn advance_reclaim(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            return;
        }
        match self.reclaim.state {
            State::Idle if self.is_reclaim_due() => {
                self.free_segments();
                self.drop_dead_segments();
                if self.reclaim.rests_until <= self.now {
                    self.choose_victims();
                }
            }
            State::Loading => self.load_victims(payload),
            State::Relocating => self.relocate(payload),
            _ => {}
        }
    }

    /// Rule 3: a segment of which the index forgets nothing needs no drop record.
    fn drop_dead_segments(&mut self) {
        let now = self.log.last_sequence;
        for id in 0..self.log.segments.len() {
            let segment = self.log.segments.get(id);
            let is_dead = segment.state == SegmentState::Closed
                && segment.live == 0
                && segment.dirty == 0
                && segment.mapped == 0
                && segment.in_flight.is_empty();
            if is_dead {
                self.log.segments.get_mut(id).state = SegmentState::Dropped(now);
                self.go_on();
            }
        }
    }

    fn choose_victims(&mut self) {
        let target = self.reclaim_target();
        let soon = self.log.segments.free_count() + self.dropped_count();
        let for_memory = self.excess_segments().saturating_sub(self.dropped_count());
        let wanted = (target.saturating_sub(soon).max(for_memory) as usize).min(VICTIMS_MAX);
        if wanted == 0 {
            return;
        }
        let mut candidates: Vec<Candidate> = self
            .log
            .segments
            .iter()
            .filter(|(_, s)| s.state == SegmentState::Closed && s.in_flight.is_empty())
            .map(|(id, s)| Candidate {
                order: s.open_order,
                id,
                live: s.live,
                dirty: s.dirty,
                retained: s.retained,
                was_spared: s.was_spared,
            })
            .collect();
        candidates.sort_unstable_by_key(|candidate| candidate.order);
        let mut chosen = self.mostly_dead(&candidates, wanted);
        let clean = candidates.iter().filter(|candidate| candidate.dirty == 0).map(|c| c.id);
        let others: Vec<u32> = clean.filter(|id| !chosen.contains(id)).collect();
        chosen.extend(others.into_iter().take(wanted - chosen.len()));
        let has_dirty = candidates.iter().any(|candidate| candidate.dirty > 0);
        if chosen.len() < wanted && (self.is_short_of_segments() || has_dirty) {
            self.writeback.is_urgent = true;
        }
        if chosen.is_empty() && self.is_short_of_segments() && !self.can_writeback_help() {
            chosen = self.least_dirty(&candidates);
        }
        self.reclaim.found_nothing = chosen.is_empty();
        if chosen.is_empty() {
            return;
        }
        // Rule 11: begins only if what must be appended fits; clean blocks are kept with half of
        // the rest. Over the memory bound none is kept: dirty entries always fit, clean ones go.
        self.reclaim.keep_budget = if self.log.segments.free_count()
            > RESERVE_SEGMENTS + SPARE_SEGMENTS
            && for_memory == 0
            && !self.is_degraded()
        {
            self.relocation_room() / 2
        } else {
            0
        };
        for segment in chosen {
            self.log.segments.get_mut(segment).state = SegmentState::Reclaiming;
            let victim = Victim { segment, is_loaded: false, ranges: Vec::new(), is_spared: false };
            self.reclaim.victims.push(victim);
        }
        self.reclaim.state = State::Loading;
        self.go_on();
    }

    /// Segments with dirty data of which little is alive: moving that gains most of a segment each,
    /// at the speed of the cache device, so that work which overwrites its own dirty data does not
    /// wait for the origin. Least alive first, as far as it fits. One that could not be emptied
    /// before (a dirty block that cannot be read) is left to writeback: it would be the first
    /// choice each time; so is one with zeroes or discards in pieces, each of which takes a record,
    /// and one with copies that only writeback in order needs.
    fn mostly_dead(&self, candidates: &[Candidate], wanted: usize) -> Vec<u32> {
        let limit = self.log.segments.segment_blocks() / MOSTLY_DEAD_DIVISOR;
        let is_mostly_dead =
            |c: &&Candidate| c.dirty > 0 && c.live <= limit && c.retained == 0 && !c.was_spared;
        let mut dead: Vec<&Candidate> = candidates.iter().filter(is_mostly_dead).collect();
        let in_pieces = self.segments_with_blanks_in_pieces();
        dead.retain(|candidate| !in_pieces.contains(&candidate.id));
        dead.sort_unstable_by_key(|candidate| (candidate.live, candidate.order));
        // Rule 11: clients may open segments down to the reserve while the round is under way, and
        // each victim needs its drop.
        let free = self.log.segments.free_count().saturating_sub(SPARE_SEGMENTS);
        let usable = self.usable_blocks();
        let mut room = (free.min(RESERVE_SEGMENTS) * usable).saturating_sub(DROPS_OF_ROUND);
        let mut chosen = Vec::new();
        for candidate in dead.into_iter().take(wanted) {
            let Some(left) = room.checked_sub(room_to_move(candidate.live)) else { break };
            room = left;
            chosen.push(candidate.id);
        }
        chosen
    }

    /// When the origin cannot take dirty data: the segment with least of it, if moving that gains
    /// space and fits.
    fn least_dirty(&self, candidates: &[Candidate]) -> Vec<u32> {
        let room = self.relocation_room().saturating_sub(DROPS_OF_ROUND);
        let limit = self.log.segments.segment_blocks() / MOSTLY_DEAD_DIVISOR;
        candidates
            .iter()
            // Nobody moves what waits for its flush epoch; it must not hide what can be moved.
            .filter(|candidate| candidate.retained == 0)
            .min_by_key(|candidate| (candidate.was_spared, candidate.dirty, candidate.order))
            .filter(|c| room_to_move(c.dirty) <= room && c.dirty <= limit)
            .map(|candidate| candidate.id)
            .into_iter()
            .collect()
    }

    fn load_victims(&mut self, payload: &mut dyn Payload) {
        for index in 0..self.reclaim.victims.len() {
            let victim = &mut self.reclaim.victims[index];
            if victim.is_loaded {
                continue;
            }
            let segment = victim.segment;
            self.reclaim.reads_in_flight += 1;
            if !self.load_entries(segment, SummaryUser::Reclaim, payload) {
                self.reclaim.reads_in_flight -= 1;
                return;
            }
            self.reclaim.victims[index].is_loaded = true;
        }
        self.start_relocation();
    }

    pub(crate) fn on_reclaim_entries(&mut self, segment: u32, ranges: &[SegmentRange]) {
        let victims = &mut self.reclaim.victims;
        let victim = victims.iter_mut().find(|victim| victim.segment == segment);
        victim.expect("it asked").ranges = ranges.to_vec();
        self.reclaim.reads_in_flight -= 1;
    }

    fn start_relocation(&mut self) {
        if self.reclaim.reads_in_flight > 0 {
            return;
        }
        for index in 0..self.reclaim.victims.len() {
            let segment = self.reclaim.victims[index].segment;
            let ranges = core::mem::take(&mut self.reclaim.victims[index].ranges);
            for (slot, piece) in self.pieces_in_segment(segment, &ranges) {
                self.choose_kept(slot, &piece);
            }
            self.reclaim.victims[index].ranges = ranges;
        }
        self.reclaim.state = State::Relocating;
        self.go_on();
    }

    /// Cuts a piece into runs that are kept and runs that are not.
    fn choose_kept(&mut self, slot: VolumeSlot, piece: &Piece) {
        let Place::Data(position) = piece.place else {
            if self.is_piece_dirty(piece) && !has_defect(Defect::BlankNotRelocated) {
                self.reclaim.items.push(Item { slot, piece: *piece, attempts: 0 });
            }
            return;
        };
        let mut run: Option<u64> = None;
        let mut never_read = 0;
        for offset in 0..piece.block_count {
            let at = CacheBlock(position.0 + u32::try_from(offset).expect("data pieces are small"));
            let is_winner = self.log.segments.is_live(at);
            let is_dirty = self.log.segments.is_dirty(at);
            let is_kept = is_winner && (is_dirty || self.keeps_clean(at));
            if is_winner && !is_kept && self.ahead.take(at) {
                never_read += 1;
            }
            let block = piece.start + offset;
            match (is_kept, run) {
                (true, None) => run = Some(block),
                (false, Some(start)) => {
                    let piece = piece.clip(start, block);
                    self.reclaim.items.push(Item { slot, piece, attempts: 0 });
                    run = None;
                }
                _ => {}
            }
        }
        if let Some(start) = run {
            let piece = piece.clip(start, piece.end());
            self.reclaim.items.push(Item { slot, piece, attempts: 0 });
        }
        self.volume_mut(slot).read_ahead.on_wasted(never_read);
    }

    fn keeps_clean(&mut self, position: CacheBlock) -> bool {
        if self.reclaim.keep_budget == 0 || !self.policy.keeps(position, Queue::Main) {
            return false;
        }
        self.reclaim.keep_budget -= 1;
        true
    }

    fn relocate(&mut self, payload: &mut dyn Payload) {
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
        let mut run = 0;
        while at + run < count && run < self.unit_blocks_max() {
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
        if !is_dirty && is_at_reserve {
            // Rule 11: the reserve is not for clean data.
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
        };
        let (_, to) =
            self.append_data(Stream::Relocate, new, source, Checksums::Keep(from), payload);
        if is_dirty {
            // It is no younger for having been moved.
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
            self.reclaim.items.push(Item { slot: item.slot, piece, attempts });
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

    pub(crate) fn on_reclaim_woken(&mut self, ended: Ended) {
        if ended == Ended::Failed {
            return;
        }
        match self.reclaim.state {
            State::Completing => {
                self.reclaim.state = State::Flushing;
                self.join_cache_flush(Waiter::Reclaim);
            }
            State::Flushing => self.append_drops(),
            State::DropCompleting => {
                self.reclaim.state = State::DropFlushing;
                self.join_cache_flush(Waiter::Reclaim);
            }
            State::DropFlushing => self.forget_victims(),
            State::Idle | State::Loading | State::Relocating => unreachable!("nothing is awaited"),
        }
    }

    /// What supersedes and relocates blocks of the victims is durable: now their drops.
    fn append_drops(&mut self) {
        let mut has_drops = false;
        for index in 0..self.reclaim.victims.len() {
            let victim = &mut self.reclaim.victims[index];
            let segment = victim.segment;
            let state = self.log.segments.get(segment);
            let needs_drop = state.mapped > 0 && !has_defect(Defect::ForgottenWithoutDrop);
            // Superseded since it was chosen, in a later epoch: nobody moves that.
            victim.is_spared |= state.retained > 0;
            if victim.is_spared || !needs_drop {
                continue;
            }
            if self.has_room_for_drop() {
                self.append_drop(segment);
                has_drops = true;
            } else {
                self.reclaim.victims[index].is_spared = true;
            }
        }
        if has_drops && !has_defect(Defect::ForgottenBeforeDrop) {
            self.reclaim.state = State::DropCompleting;
            self.wait_for_frontier(Waiter::Reclaim);
        } else {
            self.forget_victims();
        }
    }

    /// Rule 3: the drops are durable; the index may forget.
    fn forget_victims(&mut self) {
        let victims = core::mem::take(&mut self.reclaim.victims);
        let is_in_vain =
            |victim: &Victim| victim.is_spared && self.log.segments.get(victim.segment).was_spared;
        if victims.iter().all(is_in_vain) {
            self.reclaim.rests_until = self.now.after_ms(REST_MS);
        }
        for victim in victims {
            if victim.is_spared {
                let segment = self.log.segments.get_mut(victim.segment);
                segment.state = SegmentState::Closed;
                segment.was_spared = true;
                continue;
            }
            for (slot, piece) in self.pieces_in_segment(victim.segment, &victim.ranges) {
                self.forget_piece(slot, &piece);
            }
            let now = self.log.last_sequence;
            let segment = self.log.segments.get_mut(victim.segment);
            assert_eq!(segment.mapped, 0);
            assert_eq!(segment.live, 0);
            segment.state = SegmentState::Dropped(now);
        }
        self.reclaim.items.clear();
        self.reclaim.next_item = 0;
        self.reclaim.state = State::Idle;
    }

    fn forget_piece(&mut self, slot: VolumeSlot, piece: &Piece) {
        match piece.place {
            Place::Data(_) => {
                for position in piece.positions() {
                    // Never dirty: that was appended again, or its superseder is durable.
                    assert!(!self.log.segments.is_dirty(position));
                    self.log.segments.clear_live(position);
                }
                self.set_counters.dropped_blocks += piece.block_count;
            }
            Place::Blank { header, .. } => {
                assert!(
                    !self.log.segments.is_dirty(header) || has_defect(Defect::BlankNotRelocated)
                );
                // Of a part something newer may have been appended since the drop was.
                for live in self.live_pieces(slot, piece.start, piece.end(), header) {
                    self.retire(slot, &live, Superseded::Dead);
                }
            }
            Place::Absent => unreachable!("it lies in no segment"),
        }
        let index = &mut self.volume_mut(slot).index;
        index.complete.remove(piece.start, piece.end());
        self.unmap(piece);
    }
}
