//! Pinning and unpinning ranges of a volume.
//!
//! The superblock in memory is the only place where ranges are kept: admission and reclaim look
//! there, so a change holds from the step that makes it, however large the range is, and nothing
//! about blocks has to be brought up to date. The answer comes when the table is durable, and a
//! round of reclaim that chose before has ended: what is cached then stays. A crash before that may
//! leave the change out.

use crate::command::{Goal, Stage};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::event::{CommandError, CommandId, PinChange};
use crate::format::superblock::{Keeping, KeepsTooMuch, PinnedRanges};
use crate::units::OriginExtent;

impl Engine {
    pub(super) fn change_pins(&mut self, id: CommandId, extent: OriginExtent, change: PinChange) {
        let slot = extent.volume;
        let pins = match self.changed_pins(extent, change) {
            Ok(pins) => pins,
            Err(error) => {
                self.end_command(id, Err(error));
                return;
            }
        };
        self.start_volume_command(id, slot, Goal::Pins);
        if self.is_command_of(id, slot) {
            self.stored_volume(slot).pins = pins;
            self.on_pins_changed();
            if has_defect(Defect::PinNotDurable) {
                self.set_stage(slot, Stage::Done);
            } else {
                self.enter_superblock_stage(slot);
            }
        }
    }

    /// The ranges of the volume as they are to be.
    fn changed_pins(
        &self,
        extent: OriginExtent,
        change: PinChange,
    ) -> Result<PinnedRanges, CommandError> {
        let slot = extent.volume;
        let Some(volume) = self.superblock.volume(slot) else {
            // A detach has taken it out of the table and has not ended.
            let is_leaving = self.slots().any(|other| other == slot);
            return Err(if is_leaving { CommandError::Busy } else { CommandError::NoSuchVolume });
        };
        let (start, end) = (extent.start.0, extent.start.0.saturating_add(extent.block_count));
        if start >= end || end > volume.block_count() {
            return Err(CommandError::Invalid);
        }
        let mut pins = volume.pins.clone();
        match change {
            PinChange::Pin => pins.insert(start, end),
            PinChange::Unpin => pins.remove(start, end),
        }
        if pins.len() > volume.pins.len() && !self.superblock.has_room_for_ranges(slot, pins.len())
        {
            return Err(CommandError::TooManyRanges);
        }
        let keeping = Keeping::of(&volume.settings, pins.block_count());
        self.superblock.check_keeping(slot, keeping)?;
        Ok(pins)
    }
}

impl From<KeepsTooMuch> for CommandError {
    fn from(error: KeepsTooMuch) -> CommandError {
        CommandError::KeepsTooMuch(error)
    }
}
