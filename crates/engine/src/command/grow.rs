//! Growing a volume: its origin has become longer, and clients are to have what is new.
//!
//! The size of a volume stands in the volume table alone. A request behind the old end is accepted,
//! and the host told that it may announce the new one, only when the table with the new size is
//! durable in both places: recovery passes over what the log has behind the end that the table
//! names, so a write there that was answered before could be lost. A crash in between leaves the
//! old or the new size, and nothing was written behind the old one.
//!
//! Of what is new the cache holds nothing, since a volume never becomes smaller: the first read of
//! it comes from the origin. The exception is a last block that was cut short by the old end. Its
//! copies hold the bytes up to that end and padding behind it; if they counted for the longer
//! block, readers would get padding for what the origin has there, and writeback would put it over
//! that. So such a volume first goes the way of a drain and an invalidation: what is dirty goes
//! home up to the old end, and with the new size the table gets a higher generation, which voids
//! every copy. That takes longer and costs the warm cache, for the rare volume of no whole blocks.
//!
//! Nothing is written to the origin but what was dirty. What is under way goes on: ranges of
//! requests lie before the old end, and mean the same bytes before and after.

use crate::command::{Goal, Stage};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::event::{CommandError, CommandId};
use crate::format::superblock::is_volume_size;
use crate::units::{BLOCK_BYTES, VolumeSlot};

/// What the old end of a volume makes of its last block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OldTail {
    /// It is as long as all others.
    Whole,
    /// It is shorter, and its copies are.
    Partial,
}

impl Engine {
    pub(super) fn grow(&mut self, id: CommandId, slot: VolumeSlot, size_bytes: u64) {
        let Some(old_bytes) = self.find_volume(slot).map(|volume| volume.size_bytes) else {
            self.end_command(id, Err(CommandError::NoSuchVolume));
            return;
        };
        if size_bytes <= old_bytes {
            let is_same = size_bytes == old_bytes;
            let result = if is_same { Ok(Some(slot)) } else { Err(CommandError::WouldShrink) };
            self.end_command(id, result);
            return;
        }
        if !is_volume_size(size_bytes) {
            self.end_command(id, Err(CommandError::Invalid));
            return;
        }
        let is_whole = old_bytes.is_multiple_of(BLOCK_BYTES as u64);
        let old_tail = if is_whole || has_defect(Defect::GrownTailBelieved) {
            OldTail::Whole
        } else {
            OldTail::Partial
        };
        self.start_volume_command(id, slot, Goal::Grow { size_bytes, old_tail });
        if !self.is_command_of(id, slot) || old_tail == OldTail::Partial {
            // Refused, or it waits until nothing is dirty and no request is under way.
            return;
        }
        self.store_grown(slot, size_bytes);
        if has_defect(Defect::GrowNotDurable) {
            self.set_stage(slot, Stage::Done);
        } else {
            self.enter_superblock_stage(slot);
        }
    }

    /// Puts the new size into the table that is to be written. The volume in service follows when
    /// that is durable.
    pub(super) fn store_grown(&mut self, slot: VolumeSlot, size_bytes: u64) {
        let old_bytes = self.volume(slot).size_bytes;
        assert!(size_bytes > old_bytes, "a volume never becomes smaller");
        let has_partial_tail = !old_bytes.is_multiple_of(BLOCK_BYTES as u64);
        if has_partial_tail && !has_defect(Defect::GrownTailBelieved) {
            self.void_volume(slot);
        }
        self.stored_volume(slot).size_bytes = size_bytes;
    }
}
