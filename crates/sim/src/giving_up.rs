//! Volumes that are detached with their dirty data thrown away.
//!
//! Which of them, is drawn beside the stream of the run: worlds in which nobody gives anything up
//! stay as they are. From the command on the oracle waits for the table: as long as the volume is
//! in it, all of its data must be there; when it is out, durably or by the engine's answer, any
//! earlier content of a sector may be on the origin, but nothing else, and that of an ordered
//! volume is a crash state. When the origin is attached again, what it holds then is what the
//! volume is: dirty data of its earlier life does not come back.

use forebay_engine::event::{Command, DirtyFate};
use forebay_engine::request::Durability;
use forebay_engine::units::{SECTOR_BYTES, VolumeSlot};

use crate::behind::Behind;
use crate::oracle::WriteKind;
use crate::random::Random;
use crate::world::{Due, Halt, TableEntry, World, violation};

/// Share of detaches that throw dirty data away.
const DETACHES_PERCENT: u64 = 35;
/// Share of an administrator's looks at a volume that is not served after which it is given up.
const LOST_CAUSES_PERCENT: u64 = 5;
/// Until an attach is tried again whose origin is still in use.
const ATTACH_AGAIN_NS: u64 = 100_000_000;

impl World<'_> {
    /// A draw of its own, which leaves the stream of the run where it is.
    fn draw_beside(&self, percent: u64) -> bool {
        Random::new(self.random.clone().bits()).percent(percent)
    }

    /// What a detach does with dirty data.
    pub(crate) fn choose_fate(&self) -> DirtyFate {
        if self.draw_beside(DETACHES_PERCENT) {
            DirtyFate::Discarded
        } else {
            DirtyFate::WrittenBack
        }
    }

    /// A volume whose origin is missing, or went another way, may be given up.
    pub(crate) fn maybe_give_up(&mut self, index: usize) {
        let volume = &self.volumes[index];
        let is_free = volume.is_missing && volume.entry == TableEntry::Known;
        let Some(volume) = volume.slot.filter(|_| is_free) else { return };
        if self.life.is_serving && self.draw_beside(LOST_CAUSES_PERCENT) {
            let command = Command::Detach { volume, dirty: DirtyFate::Discarded };
            self.command(command, Some(index));
        }
    }

    /// The command is given.
    pub(crate) fn before_giving_up(&mut self, index: usize) {
        self.note_lost_order();
        let is_in_order = self.is_in_order(index);
        let volume = &mut self.volumes[index];
        // A second one does not know any more.
        volume.was_in_order |= is_in_order && !volume.is_given_up;
        volume.is_given_up = true;
    }

    /// The engine says that it is done.
    pub(crate) fn on_given_up(&mut self, index: usize) -> Result<(), Halt> {
        let volume = &mut self.volumes[index];
        let slot = volume.slot.take();
        volume.entry = TableEntry::Known;
        volume.is_marked_dirty = false;
        volume.has_lost_writes = false;
        self.leave_origin(index, slot)?;
        self.stats.given_up += 1;
        self.accept_origin(index)?;
        self.plan_attach(index);
        Ok(())
    }

    /// The volume is out of the table: its origin is all that is left of it.
    pub(crate) fn accept_origin(&mut self, index: usize) -> Result<(), Halt> {
        if std::mem::take(&mut self.volumes[index].was_in_order) {
            self.check_order(index, "ordered origin of a volume that was given up")?;
        }
        for run in self.oracle.touched(index, 2048) {
            let (kind, durability) = (WriteKind::Discard, Durability::ForcedUnitAccess);
            let write = self.oracle.submit_write(run, kind, durability);
            self.oracle.acknowledge_write(write);
        }
        let volume = &mut self.volumes[index];
        volume.is_order_lost = true;
        volume.is_origin_whole = false;
        volume.behind = Behind::Untouched;
        volume.awaits_warning = false;
        self.check_origin(index, "origin of a volume that was given up")
    }

    /// The volume is detached. Unless the engine still has it, for what is under way at the origin
    /// may end later, nothing is.
    pub(crate) fn leave_origin(
        &mut self,
        index: usize,
        slot: Option<VolumeSlot>,
    ) -> Result<(), Halt> {
        let is_known = |slot: &VolumeSlot| {
            let engine = self.engine.as_ref();
            engine.is_some_and(|engine| engine.volume_status(self.time(), *slot).is_some())
        };
        let lingers = slot.filter(is_known);
        let volume = &mut self.volumes[index];
        volume.lingers_in = lingers;
        if lingers.is_none() && volume.origin.in_flight() > 0 {
            return violation("I/O to a detached origin is under way", format!("volume {index}"));
        }
        Ok(())
    }

    /// The engine needs the origin no longer.
    pub(crate) fn on_origin_released(&mut self, slot: VolumeSlot) -> Result<(), Halt> {
        let index = self.volumes.iter().position(|volume| volume.lingers_in == Some(slot));
        let Some(index) = index else {
            return violation("an origin was released that nobody gave up", format!("{slot:?}"));
        };
        let volume = &mut self.volumes[index];
        volume.lingers_in = None;
        if volume.origin.in_flight() > 0 {
            return violation("I/O to a released origin is under way", format!("volume {index}"));
        }
        Ok(())
    }

    /// Whether the origin is free to be attached; looks again later if it is not.
    pub(crate) fn is_origin_free(&mut self, index: usize) -> bool {
        let is_free = self.volumes[index].lingers_in.is_none();
        if !is_free {
            self.agenda.push(self.now + ATTACH_AGAIN_NS, Due::Attach(index));
        }
        is_free
    }

    /// The volume is attached anew, and the origin was flushed before: what it holds is certain,
    /// unless operations fail, for what a failed write left may come and go.
    pub(crate) fn on_attached_again(&mut self, index: usize) {
        let was_given_up = std::mem::take(&mut self.volumes[index].is_given_up);
        if !was_given_up || self.has_failures() {
            return;
        }
        let mut bytes = Vec::new();
        for run in self.oracle.touched(index, 2048) {
            bytes.resize(run.count as usize * SECTOR_BYTES, 0);
            self.volumes[index].origin.media().read(run.first, &mut bytes);
            self.oracle.start_from(run, &bytes);
        }
    }
}
