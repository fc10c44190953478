//! Whether dirty data is to go home now, and whether it can.

use alloc::collections::BTreeSet;

use crate::engine::{Engine, Phase};
use crate::index::BlankKind;
use crate::units::VolumeSlot;
use crate::volume::Service;
use crate::wake::Waiter;

/// Whose dirty data a window takes home.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Turn {
    /// That of all volumes in coalescing order.
    Coalescing,
    /// That of this one, in order.
    Ordered(VolumeSlot),
}

impl Engine {
    /// Whether dirty data of the volume can be written home now.
    pub(crate) fn is_writable(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        let is_paused = self.writeback.pauses.is_paused(slot, self.now);
        volume.facts.is_some() && volume.service == Service::Cached && !is_paused
    }

    /// Whether waiting for writeback may free a segment.
    pub(crate) fn can_writeback_help(&self) -> bool {
        !self.writeback.is_idle()
            || self.slots().any(|slot| {
                self.is_writable(slot)
                    && self.volume(slot).dirty_blocks > self.poisoned_blocks(slot)
            })
    }

    pub(crate) fn poisoned_blocks(&self, slot: VolumeSlot) -> u64 {
        let poisoned = self
            .log
            .blanks
            .values()
            .filter(|blank| blank.slot == slot && blank.kind == BlankKind::Poison);
        poisoned.map(|blank| blank.live_blocks).sum()
    }

    /// Which window is due, if any: of the volumes in coalescing order together, or of one in
    /// order. They take turns.
    pub(super) fn next_turn(&mut self) -> Option<Turn> {
        let turns = self.turns();
        let last = self.writeback.last_turn;
        let next = turns.iter().find(|turn| Some(**turn) > last).or(turns.first()).copied();
        self.writeback.last_turn = next.or(last);
        next
    }

    fn turns(&self) -> BTreeSet<Turn> {
        let is_allowed = match &self.phase {
            Phase::Serving => self.has_clients(),
            // Rule 8: nothing goes home before the flushes and the checkpoint of recovery.
            Phase::Recovering(recovery) => recovery.is_draining(),
            _ => false,
        };
        let rests = self.writeback.rests_until > self.now;
        if !is_allowed || rests || self.wants_rest() || self.log.segments.dirty_count() == 0 {
            return BTreeSet::new();
        }
        let is_serving = matches!(self.phase, Phase::Serving);
        let is_wanted = |slot: VolumeSlot| {
            let volume = self.volume(slot);
            let poisoned = self.poisoned_blocks(slot);
            let dirty = volume.dirty_blocks.saturating_sub(poisoned);
            // What was written home and waits for a flush needs no second write.
            dirty > 0
                && volume.homed.is_empty()
                && self.is_writable(slot)
                && self.owes_writeback(slot)
                && (self.is_over_target(slot)
                    || self.has_idle_turn(slot)
                    || self.writeback.is_urgent
                    || self.is_degraded()
                    || volume.is_leaving()
                    || volume.needs_writeback
                    || self.is_short_of_blanks())
        };
        let turn = |slot: VolumeSlot| {
            if self.volume(slot).is_ordered() { Turn::Ordered(slot) } else { Turn::Coalescing }
        };
        let turns = self.slots().filter(|slot| is_wanted(*slot)).map(turn);
        turns.filter(|turn| *turn == Turn::Coalescing || is_serving).collect()
    }

    /// Whether dirty blocks of the volume wait for writeback. In the other modes a dirty block is
    /// one that its own write is bringing home just now, unless that failed.
    pub(super) fn owes_writeback(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        volume.mode.keeps_dirty() || volume.needs_writeback
    }

    /// Asks for the origin flushes that would make blocks clean that are home already. A window
    /// that writes to the origin flushes it at its end: a disk that had to empty its cache all the
    /// time meanwhile could sort nothing.
    pub(super) fn hurry_homed(&mut self) {
        let is_hurried = self.writeback.is_urgent || self.is_recovering() || self.is_degraded();
        for (slot, volume) in (0u16..).map(VolumeSlot).zip(&mut self.volumes) {
            let Some(volume) = volume else { continue };
            if self.writeback.touched.contains(&slot) {
                continue;
            }
            let waits = !volume.homed.is_empty() && !volume.flushes.is_under_way();
            if waits && (is_hurried || volume.is_leaving()) && !volume.flushes.is_due() {
                volume.flushes.join(Waiter::Nobody);
            }
            if volume.dirty_blocks == 0 {
                volume.needs_writeback = false;
            }
        }
    }
}
