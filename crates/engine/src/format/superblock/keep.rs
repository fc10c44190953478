//! How much may be kept: the bound on pinned ranges and `share_min` of all volumes together.
//!
//! What they keep is not there for anybody else, nor for reclaim to choose from. So they leave a
//! fifth of what the log can hold, which is its segments but for those that reclaim keeps free. The
//! bound is looked at only when something is raised: a table that breaks it (the geometry of a
//! device never changes, so only one that another program wrote) is served as it is.

use super::{Geometry, PINNED_RANGES_MAX, Superblock};
use crate::log::free_target;
use crate::options::VolumeSettings;
use crate::units::VolumeSlot;

/// Share of what the log can hold that may be kept, in percent.
pub const KEPT_PERCENT_MAX: u64 = 80;

/// What is kept for a volume, or for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Keeping {
    /// Blocks of pinned ranges.
    pub pinned_blocks: u64,
    /// `share_min`, in percent of the log.
    pub share_percent: u64,
}

impl Keeping {
    pub(crate) fn of(settings: &VolumeSettings, pinned_blocks: u64) -> Keeping {
        Keeping { pinned_blocks, share_percent: settings.share_min_percent.into() }
    }
}

/// More would be kept than the bound allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "pinned ranges ({pinned_blocks} blocks) and share_min ({share_blocks} blocks) of all volumes \
     would come to more than the {allowed_blocks} blocks that may be kept in this cache"
)]
pub struct KeepsTooMuch {
    /// Blocks of pinned ranges there would be, of all volumes.
    pub pinned_blocks: u64,
    /// Blocks of all `share_min` there would be.
    pub share_blocks: u64,
    /// How many may be kept together.
    pub allowed_blocks: u64,
}

impl Geometry {
    /// Blocks of all segments.
    #[must_use]
    pub fn log_blocks(&self) -> u64 {
        u64::from(self.segment_count) * u64::from(self.segment_blocks())
    }

    /// Blocks that a share of so many percent stands for.
    #[must_use]
    pub fn share_blocks(&self, percent: u64) -> u64 {
        self.log_blocks() * percent / 100
    }

    /// Blocks that pinned ranges and all `share_min` may come to.
    #[must_use]
    pub fn kept_blocks_max(&self) -> u64 {
        let used = self.segment_count.saturating_sub(free_target(self.segment_count));
        u64::from(used) * u64::from(self.segment_blocks()) * KEPT_PERCENT_MAX / 100
    }
}

impl Superblock {
    /// What is kept for a volume.
    #[must_use]
    pub fn keeping(&self, slot: VolumeSlot) -> Keeping {
        let volume = self.volume(slot);
        let keeping = volume.map(|v| Keeping::of(&v.settings, v.pins.block_count()));
        keeping.unwrap_or_default()
    }

    /// Whether `new` may take the place of what is kept for a volume.
    ///
    /// # Errors
    /// If it is more, and all would come to more than the bound.
    pub fn check_keeping(&self, slot: VolumeSlot, new: Keeping) -> Result<(), KeepsTooMuch> {
        let old = self.keeping(slot);
        let is_raised =
            new.pinned_blocks > old.pinned_blocks || new.share_percent > old.share_percent;
        let others = self.slots().filter(|(other, _)| *other != slot);
        let others = others.map(|(other, _)| self.keeping(other));
        let all = others.fold(new, |sum, volume| Keeping {
            pinned_blocks: sum.pinned_blocks + volume.pinned_blocks,
            share_percent: sum.share_percent + volume.share_percent,
        });
        let pinned_blocks = all.pinned_blocks;
        let share_blocks = self.geometry.share_blocks(all.share_percent);
        let allowed_blocks = self.geometry.kept_blocks_max();
        if is_raised && pinned_blocks + share_blocks > allowed_blocks {
            return Err(KeepsTooMuch { pinned_blocks, share_blocks, allowed_blocks });
        }
        Ok(())
    }

    /// Whether the ranges of all volumes fit into the table if a volume has so many.
    #[must_use]
    pub fn has_room_for_ranges(&self, slot: VolumeSlot, count: usize) -> bool {
        let others = self.slots().filter(|(other, _)| *other != slot);
        let others: usize = others.map(|(_, volume)| volume.pins.len()).sum();
        others + count <= PINNED_RANGES_MAX
    }
}
