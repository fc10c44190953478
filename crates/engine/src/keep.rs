//! Shares of volumes, and ranges that are pinned: what admission and status ask.
//!
//! Reclaim's part stands in `background/reclaim/keep.rs`; how ranges change in `command/pins.rs`.
//! A share is counted in blocks with payload, dirty ones included. Those of which a record is under
//! way count as well, so that promotions which overlap do not pass `share_max` together.

use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::units::{OriginBlock, OriginExtent, VolumeSlot};

impl Engine {
    /// Blocks in the log of a volume; one that is being overwritten counts twice meanwhile.
    fn share_of(&self, slot: VolumeSlot) -> u64 {
        let index = &self.volume(slot).index;
        index.complete.data_block_count() + index.pending.data_block_count()
    }

    /// Whether the volume has as much of the cache as it may have.
    pub(crate) fn is_at_share_max(&self, slot: VolumeSlot) -> bool {
        self.is_beyond_share_max(slot, 1)
    }

    /// Whether the volume would have more than that with so many blocks more.
    pub(crate) fn is_beyond_share_max(&self, slot: VolumeSlot, block_count: u64) -> bool {
        let percent = self.volume(slot).settings.share_max_percent;
        let most = self.superblock.geometry.share_blocks(percent.into());
        percent < 100
            && self.share_of(slot) + block_count > most
            && !has_defect(Defect::ShareMaxIgnored)
    }

    /// Pinned ranges of a volume.
    pub(crate) fn pinned_extents(&self, slot: VolumeSlot) -> Vec<OriginExtent> {
        let ranges = self.superblock.pins(slot).iter();
        let extent = |(start, end)| OriginExtent {
            volume: slot,
            start: OriginBlock(start),
            block_count: end - start,
        };
        ranges.map(extent).collect()
    }
}
