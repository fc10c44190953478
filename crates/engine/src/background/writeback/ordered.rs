//! Writeback in order: the origin alone is always a state that a crash could have left of the
//! volume (promise 4).
//!
//! A window takes the oldest flush epochs that have ended, and writes one after the other. An epoch
//! goes home as it was at its end: of each block the last version of that epoch, which the log
//! keeps although newer ones exist. Only when the origin is flushed and a mark says so durably
//! ("drained through"), the next epoch begins: so whatever happens, what the origin holds is
//! everything up to the end of one epoch, and some of what was written in the next. The mark comes
//! first, since recovery must not write anything of an epoch again of which the next one has begun.
//!
//! Before a window, all records are complete, so that none of an epoch is missing; and none of its
//! data goes home before it is durable in the log (rule 5). An epoch of which anything could not be
//! written is planned again as a whole.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::demand::Turn;
use super::rate::WINDOW_BLOCKS_MAX;
use super::{EPOCHS_OF_WINDOW_MAX, REST_MS, State};
use crate::background::writeback::pause::PauseCause;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::epochs::Cut;
use crate::format::record::EntryKind;
use crate::format::summary::PlacedEntry;
use crate::index::{BlockMap, Piece, Place};
use crate::log::segments::SegmentState;
use crate::units::{CacheBlock, FlushEpoch, Generation, Version, VolumeSlot};
use crate::volume::Homed;
use crate::wake::{Ended, Waiter};

/// A window of one ordered volume.
pub(super) struct OrderedWindow {
    pub(super) slot: VolumeSlot,
    /// Ends of its epochs; the one under way is the first.
    cuts: VecDeque<Cut>,
    /// What is dirty of them.
    planned: BTreeMap<FlushEpoch, Vec<Piece>>,
    /// Generations of the segments when they were read: positions are good as long as they last.
    generations: BTreeMap<u32, Generation>,
    /// Something of the epoch under way is not home.
    has_missed: bool,
    /// An epoch went home.
    has_drained: bool,
    /// Failed flushes of the origin when the epoch began.
    failed_flushes: u64,
}

impl Engine {
    /// Blocks of an epoch at most: then the engine ends it, so that neither its plan nor what it
    /// holds of the log grows without bound.
    fn epoch_blocks_max(&self) -> u64 {
        (self.log.segments.block_count() / 16).clamp(1, WINDOW_BLOCKS_MAX)
    }

    /// A client's write of so many blocks was appended.
    pub(crate) fn note_in_epoch(&mut self, slot: VolumeSlot, blocks: u64) {
        self.volume_mut(slot).epochs.on_appended(blocks);
        if self.volume(slot).epochs.appended() >= self.epoch_blocks_max() {
            self.end_epoch(slot);
        }
    }

    /// Whatever is appended from now on goes home after all that was before.
    pub(crate) fn end_epoch(&mut self, slot: VolumeSlot) {
        let last = self.log.last_version();
        let volume = self.volume_mut(slot);
        if volume.is_ordered() {
            volume.epochs.end(last);
        }
    }

    /// Begins a window of an ordered volume; goes on when all records are complete.
    pub(super) fn start_ordered_window(&mut self, slot: VolumeSlot) {
        if self.volume(slot).epochs.ended().is_empty() {
            // Nobody flushes: all that was written up to now is a state of the volume as well.
            self.end_epoch(slot);
        }
        self.writeback.ordered = Some(OrderedWindow {
            slot,
            cuts: VecDeque::new(),
            planned: BTreeMap::new(),
            generations: BTreeMap::new(),
            has_missed: false,
            has_drained: false,
            failed_flushes: 0,
        });
        // Only these: all their records are complete when the wait is over.
        self.writeback.has_taken_all = true;
        let ended = self.volume(slot).epochs.ended().iter();
        self.ordered().cuts = ended.take(EPOCHS_OF_WINDOW_MAX).copied().collect();
        self.writeback.state = State::Completing;
        self.wait_for_frontier(Waiter::Writeback);
    }

    /// All records are complete: chooses epochs, and the segments that may hold something of them.
    pub(super) fn choose_epochs(&mut self) {
        let slot = self.ordered().slot;
        let lowest_of = |id: u32| {
            let lowest = &self.log.segments.get(id).lowest;
            lowest.iter().find(|(other, _)| *other == slot).map(|(_, version)| *version)
        };
        let mut segments: Vec<(Version, u32)> = self
            .log
            .segments
            .iter()
            .filter(|(_, segment)| segment.dirty > 0)
            .filter_map(|(id, _)| Some((lowest_of(id)?, id)))
            .collect();
        segments.sort_unstable();
        let beyond = segments
            .get(self.window_segments_max())
            .map_or(Version(u64::MAX), |(lowest, _)| *lowest);
        let mut cuts = core::mem::take(&mut self.ordered().cuts);
        let within = cuts.iter().take_while(|cut| cut.last < beyond).count();
        cuts.truncate(within.max(1));
        let last = cuts.back().map_or(self.volume(slot).epochs.drained().last, |cut| cut.last);
        let segments = segments.into_iter().filter(|(lowest, _)| *lowest <= last);
        let segments = segments.map(|(_, id)| id).collect();
        self.ordered().cuts = cuts;
        self.begin_loading(segments);
    }

    fn ordered(&mut self) -> &mut OrderedWindow {
        self.writeback.ordered.as_mut().expect("a window in order is under way")
    }

    /// What a segment holds; `None` if its summary is damaged: then of what it has only the newest
    /// copies are known.
    pub(crate) fn on_ordered_entries(&mut self, segment: u32, entries: Option<&[PlacedEntry]>) {
        self.writeback.loads -= 1;
        let generation = self.log.segments.get(segment).generation;
        self.ordered().generations.insert(segment, generation);
        let slot = self.ordered().slot;
        let Some(entries) = entries else {
            self.plan_without_entries(segment);
            return;
        };
        let volume = self.volume(slot);
        let (id, generation) = (volume.id, volume.generation);
        let is_ours = |placed: &&PlacedEntry| {
            let is_copy = placed.entry.kind == EntryKind::Data || placed.entry.kind.is_blank();
            is_copy && placed.entry.volume == id && placed.entry.volume_generation == generation
        };
        for PlacedEntry { entry, block } in entries.iter().filter(is_ours) {
            let position = self.log.position(segment, *block);
            self.plan_piece(&Piece::of(entry, position).expect("only copies are left"));
        }
    }

    /// The summary of a segment could not be read now: the window is planned again later. After a
    /// few times it counts as damaged.
    pub(crate) fn on_ordered_unread(&mut self, segment: u32) {
        let slot = self.ordered().slot;
        if self.is_lastingly_unreadable(slot) {
            self.on_ordered_entries(segment, None);
            return;
        }
        self.writeback.loads -= 1;
        self.note_missed();
        self.pause_writeback(slot, PauseCause::Unreadable);
    }

    /// Nobody knows any more where the older versions are that this segment holds: the order of
    /// these is lost, not the data.
    fn plan_without_entries(&mut self, segment: u32) {
        let slot = self.ordered().slot;
        let blocks = self.log.segments.segment_blocks();
        let first = segment * blocks;
        let owners = self.log.segments.get(segment).lowest.clone();
        for position in (first..first + blocks).map(CacheBlock) {
            if self.log.segments.is_retained(position) {
                self.log.segments.clear_dirty(position);
                // Whose it was, nobody knows either.
                for (owner, _) in &owners {
                    let owner = self.volumes[usize::from(owner.0)].as_mut();
                    owner.into_iter().for_each(|owner| owner.counters.order_lost_blocks += 1);
                }
            }
        }
        let is_data_here = |piece: &Piece| {
            matches!(piece.place, Place::Data(_)) && self.piece_segment(piece) == Some(segment)
        };
        let data = self.volume(slot).index.complete.all_pieces().filter(is_data_here);
        // A record without payload goes home as a whole, since one bit stands for all of it. The
        // index has what is left of it, in pieces.
        let blanks = self.log.blanks.range(first..first + blocks);
        let blanks = blanks.filter(|(_, blank)| blank.slot == slot);
        let blanks = blanks.map(|(header, blank)| blank.whole(CacheBlock(*header)));
        let pieces: Vec<Piece> = data.chain(blanks).collect();
        for piece in &pieces {
            self.plan_piece(piece);
        }
    }

    /// Takes the dirty parts of a copy into the plan of its epoch.
    fn plan_piece(&mut self, piece: &Piece) {
        let slot = self.ordered().slot;
        let epochs = &self.volume(slot).epochs;
        let epoch = epochs.of(piece.version);
        if !self.ordered().cuts.iter().any(|cut| cut.epoch == epoch) {
            return;
        }
        // Poison goes nowhere; it hides what is older.
        let parts =
            if piece.is_poison() { alloc::vec![*piece] } else { self.dirty_parts(slot, piece) };
        self.ordered().planned.entry(epoch).or_default().extend(parts);
    }

    /// All segments are read: counts what the window writes, and waits until it is durable.
    pub(super) fn plan_epochs(&mut self) {
        let planned = self.ordered().planned.values().flatten();
        let blocks = planned.map(Piece::log_blocks).sum();
        self.begin_measuring(blocks);
        self.writeback.plain_region = None;
        self.wait_until_durable();
    }

    /// Begins with the oldest epoch of the window, or ends the window.
    pub(super) fn start_epoch(&mut self) {
        let slot = self.ordered().slot;
        let failed_flushes = self.volume(slot).failed_flushes;
        let is_over = self.ordered().cuts.is_empty()
            || self.ordered().has_missed
            || self.wants_rest()
            || !self.is_writable(slot);
        if is_over {
            self.end_ordered_window();
            return;
        }
        let count = if has_defect(Defect::EpochsMixed) { usize::MAX } else { 1 };
        let window = self.ordered();
        window.failed_flushes = failed_flushes;
        let epochs: Vec<FlushEpoch> = window.cuts.iter().take(count).map(|cut| cut.epoch).collect();
        let mut newest = BlockMap::default();
        let (mut removed, mut inserted) = (Vec::new(), Vec::new());
        for epoch in epochs {
            for piece in window.planned.get(&epoch).into_iter().flatten() {
                newest.replace(*piece, &mut removed, &mut inserted);
            }
        }
        // A lost block stays an error in the log; the origin keeps what it has.
        let pieces = newest.all_pieces().filter(|piece| !piece.is_poison());
        let pieces = pieces.flat_map(|piece| self.volume(slot).bad_extents.cut(&piece));
        let queue = self.sweep(pieces.map(|piece| (slot, piece)).collect());
        self.writeback.queue = queue;
        self.writeback.state = State::Writing;
        self.go_on();
    }

    fn end_ordered_window(&mut self) {
        if self.ordered().has_missed || !self.ordered().has_drained {
            self.writeback.rests_until = self.now.after_ms(REST_MS);
        } else {
            let slot = self.ordered().slot;
            self.note_window_home(Turn::Ordered(slot));
        }
        self.writeback.ordered = None;
        self.writeback.touched.clear();
        self.end_window();
        self.go_on();
    }

    pub(crate) fn is_ordered_window(&self) -> bool {
        self.writeback.ordered.is_some()
    }

    /// A run ended without everything of it being home.
    pub(super) fn note_missed(&mut self) {
        if let Some(window) = &mut self.writeback.ordered {
            window.has_missed = true;
        }
    }

    /// Whether a window in order plans with the dirty copies of the volume where they are: then
    /// they are not moved, or it would miss them, and their epoch count as home without them.
    pub(crate) fn is_going_home_in_order(&self, slot: VolumeSlot) -> bool {
        let mut window = self.writeback.ordered.iter();
        window.any(|window| window.slot == slot) && !has_defect(Defect::MovedUnderWindow)
    }

    /// Whether a planned copy is still where it was, and dirty.
    pub(super) fn is_still_there(&self, piece: &Piece) -> bool {
        let Some(window) = &self.writeback.ordered else { return false };
        let Some(segment) = self.piece_segment(piece) else { return false };
        let state = self.log.segments.get(segment);
        window.generations.get(&segment) == Some(&state.generation)
            && state.state != SegmentState::Free
            && piece.positions().all(|at| self.log.segments.is_dirty(at))
    }

    /// All runs of the epoch have ended: the origin is flushed if everything is there.
    pub(super) fn flush_epoch(&mut self) {
        self.writeback.touched.clear();
        let slot = self.ordered().slot;
        if self.ordered().has_missed {
            self.end_ordered_window();
            return;
        }
        if has_defect(Defect::EpochFlushSkipped) {
            self.on_epoch_flushed(Ended::Well);
            return;
        }
        self.writeback.state = State::Flushing;
        self.join_origin_flush(slot, Waiter::Writeback);
    }

    /// The origin was flushed, or could not be.
    pub(super) fn on_epoch_flushed(&mut self, ended: Ended) {
        let slot = self.ordered().slot;
        let has_failed = self.volume(slot).failed_flushes != self.ordered().failed_flushes;
        if ended == Ended::Failed || has_failed {
            self.note_missed();
            self.end_ordered_window();
            return;
        }
        self.volume_mut(slot).epochs.drain_oldest();
        self.ordered().has_drained = true;
        let drained = self.volume(slot).epochs.drained().epoch;
        if has_defect(Defect::NextEpochBeforeMark) {
            self.on_epoch_drained();
        } else if self.has_room_beside_drops(0) {
            let record = self.append_mark(slot, drained);
            self.writeback.state = State::Marking;
            self.wait_for_record(record, Waiter::Writeback);
        } else {
            // Rule 11: a checkpoint may stand in for a mark.
            self.writeback.state = State::MarkFlushing;
            self.wait_for_checkpoint(Waiter::Writeback);
        }
    }

    /// The mark is written: it counts when it is durable.
    pub(super) fn flush_mark(&mut self) {
        self.writeback.state = State::MarkFlushing;
        self.join_cache_flush(Waiter::Writeback);
    }

    /// It is durable that the origin has the epoch: its copies are clean, and the older ones among
    /// them need not be kept.
    pub(super) fn on_epoch_drained(&mut self) {
        let slot = self.ordered().slot;
        self.writeback.pauses.on_fewer(slot);
        let cut = self.ordered().cuts.pop_front().expect("it was written");
        for piece in self.ordered().planned.remove(&cut.epoch).unwrap_or_default() {
            self.release(&piece);
        }
        self.start_epoch();
    }

    /// The origin has this copy: it is dirty no longer.
    fn release(&mut self, piece: &Piece) {
        let slot = self.ordered().slot;
        let Piece { start, block_count, version, .. } = *piece;
        self.mark_clean(slot, &Homed { start, block_count, version, needs: 0 });
        if piece.is_poison() {
            return;
        }
        for position in piece.positions() {
            if self.log.segments.is_retained(position) {
                self.log.segments.clear_dirty(position);
            }
        }
    }
}
