//! What recovery finds of ordered writeback: which copies the origin still needs, and in which
//! order.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::build::Building;
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::epochs::Cut;
use crate::format::checkpoint::{Checkpoint, bit, clear_bit};
use crate::format::record::{Entry, EntryKind};
use crate::index::{Piece, Place};
use crate::log::segments::SegmentState;
use crate::units::{CacheBlock, FlushEpoch, Version, VolumeId, VolumeSlot};

/// A copy in an ordered volume that was dirty when the checkpoint was cut, or appended since.
struct Owed {
    slot: VolumeSlot,
    epoch: FlushEpoch,
    piece: Piece,
}

/// What is gathered while the log is read.
#[derive(Default)]
pub(super) struct FoundEpochs {
    owed: Vec<Owed>,
    /// Highest epoch of what was found, by volume.
    highest: BTreeMap<VolumeSlot, FlushEpoch>,
    /// By marks behind the checkpoint.
    drained: BTreeMap<VolumeId, FlushEpoch>,
}

impl FoundEpochs {
    pub(super) fn on_mark(&mut self, volume: VolumeId, drained_through: FlushEpoch) {
        let drained = self.drained.entry(volume).or_insert(drained_through);
        *drained = drained_through.max(*drained);
    }
}

impl Engine {
    /// Notes an entry of an ordered volume. Of data, `is_dirty` says which blocks are.
    pub(super) fn note_owed(
        &self,
        slot: VolumeSlot,
        (entry, position): (&Entry, CacheBlock),
        is_dirty: impl Fn(u32) -> bool,
        found: &mut FoundEpochs,
    ) {
        if !self.volume(slot).is_ordered() {
            return;
        }
        let highest = found.highest.entry(slot).or_insert(entry.epoch);
        *highest = entry.epoch.max(*highest);
        let Some(whole) = Piece::of(entry, position) else { return };
        // An error stays one, whatever the origin has.
        if whole.is_poison() || whole.place == Place::Absent {
            return;
        }
        let mut push = |piece| found.owed.push(Owed { slot, epoch: entry.epoch, piece });
        if entry.kind != EntryKind::Data {
            if is_dirty(0) {
                push(whole);
            }
            return;
        }
        let mut from = 0;
        while from < entry.block_count {
            let end = (from..entry.block_count).find(|offset| !is_dirty(*offset));
            let to = end.unwrap_or(entry.block_count);
            if from < to {
                let at = |offset: u32| entry.start + u64::from(offset);
                push(whole.clip(at(from), at(to)));
            }
            from = to + 1;
        }
    }

    /// What a mark or the checkpoint says is drained is clean: nothing below is ever written again
    /// (promise 4), for the origin may have something of the next epoch.
    pub(super) fn recover_epochs(&mut self, checkpoint: &Checkpoint, building: &mut Building) {
        for slot in self.volume_slots() {
            let id = self.volume(slot).id;
            let line = checkpoint.volumes.iter().find(|line| line.id == id);
            let none = FlushEpoch(0);
            let (current, drained) =
                line.map_or((none, none), |line| (line.epoch, line.drained_through));
            let mark = building.epochs.drained.get(&id).copied().unwrap_or(none);
            let mark = if has_defect(Defect::MarksNotBelieved) { none } else { mark };
            let seen = building.epochs.highest.get(&slot).copied().unwrap_or(none);
            let drained = drained.max(mark);
            let mut cuts: BTreeMap<FlushEpoch, Version> = BTreeMap::new();
            let mut below = Version(0);
            for owed in building.epochs.owed.iter().filter(|owed| owed.slot == slot) {
                let version = owed.piece.version;
                if owed.epoch <= drained {
                    below = below.max(version);
                } else {
                    let last = cuts.entry(owed.epoch).or_insert(version);
                    *last = version.max(*last);
                }
            }
            let ended: VecDeque<Cut> =
                cuts.into_iter().map(|(epoch, last)| Cut { epoch, last }).collect();
            let last = self.log.last_version();
            let highest = current.max(seen).max(drained);
            let drained = Cut { epoch: drained, last: below };
            self.volume_mut(slot).epochs.recover(drained, ended, last, highest);
        }
        let owed = core::mem::take(&mut building.epochs.owed);
        for owed in &owed {
            if owed.epoch <= self.volume(owed.slot).epochs.drained().epoch {
                self.clear_drained(&owed.piece, building);
            }
        }
        building.epochs.owed = owed;
    }

    fn clear_drained(&self, piece: &Piece, building: &mut Building) {
        for position in piece.positions() {
            let (segment, block) = self.log.segments.locate(position);
            if let Some(bits) = &mut building.dirty[segment as usize]
                && bit(bits, block)
            {
                clear_bit(bits, block);
            }
        }
    }

    /// Copies that something newer has superseded, and that the origin still needs. The index, and
    /// the bits of what it points at, are there already.
    pub(super) fn retain_owed(&mut self, found: FoundEpochs) {
        // Of two copies with one version (one was moved) the later is kept.
        let mut kept: BTreeMap<(VolumeSlot, u64, Version), CacheBlock> = BTreeMap::new();
        for Owed { slot, epoch, piece } in found.owed {
            if epoch <= self.volume(slot).epochs.drained().epoch {
                continue;
            }
            let mut newest = Vec::new();
            self.volume(slot).index.complete.pieces(piece.start, piece.end(), &mut newest);
            for (position, block) in piece.positions().zip(piece.start..) {
                let (segment, _) = self.log.segments.locate(position);
                if self.log.segments.get(segment).state != SegmentState::Closed {
                    continue;
                }
                self.log.segments.note_lowest(segment, slot, piece.version);
                // Of one that was moved the index has the later place.
                let is_newer = |newer: &Piece| {
                    newer.version > piece.version && newer.start <= block && block < newer.end()
                };
                let is_superseded = match piece.place {
                    Place::Data(_) => newest.iter().any(is_newer),
                    _ => newest.iter().all(|newer| newer.version > piece.version),
                };
                if self.log.segments.is_live(position) || !is_superseded {
                    continue;
                }
                self.log.segments.set_retained(position);
                if let Some(earlier) = kept.insert((slot, block, piece.version), position) {
                    self.log.segments.clear_dirty(earlier);
                }
            }
        }
    }
}
