//! What writes of writeback cost at an origin: so much for each, and so much for each block.
//!
//! Both are measured, as the device does not tell (the kernel calls every loop device rotational):
//! short and long writes have a mean duration each, and the line through the two is the model. The
//! writes that are under way at the same time make all of them longer alike, which changes no
//! comparison.

use super::depth::LEAST;
use crate::mean;

/// Blocks of a short write at most: its transfer is small against the way to it.
pub(super) const SHORT_BLOCKS_MAX: u64 = 8;
/// Blocks of a long write at least.
const LONG_BLOCKS_MIN: u64 = 64;
/// Short writes that are measured before the model says anything.
const SHORT_WRITES_MIN: u32 = 8;
/// Duration of a block while no long write was measured: 100 MB/s, an old disk.
const BLOCK_NS_UNMEASURED: u64 = 40_000;
/// The mean of blocks is kept in parts of a block.
const BLOCK_PARTS: u64 = 256;
/// While gathering does not pay, one region of so many is tried, so that long writes are known.
const TRY_EVERY: u32 = 64;
/// Share of the blocks of such a region that must be dirty: one in so many. DESIGN section 4 names
/// the density.
pub(super) const DENSE_ONE_IN: u64 = 16;

/// Mean size and duration of writes of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u32,
    block_parts: u64,
    nanoseconds: u64,
}

impl Mean {
    fn add(&mut self, blocks: u64, nanoseconds: u64) {
        let parts = blocks * BLOCK_PARTS;
        if self.count == 0 {
            (self.block_parts, self.nanoseconds) = (parts, nanoseconds);
        } else {
            self.block_parts = mean::moved(self.block_parts, parts);
            self.nanoseconds = mean::moved(self.nanoseconds, nanoseconds);
        }
        self.count = self.count.saturating_add(1);
    }
}

/// What a volume has learned about writes of its origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct OriginCost {
    short: Mean,
    long: Mean,
    untried: u32,
}

/// Writes that do the same work in different ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transfers {
    pub(super) count: u64,
    pub(super) blocks: u64,
}

impl OriginCost {
    /// A write of so many blocks took so long.
    pub(super) fn on_written(&mut self, blocks: u64, nanoseconds: u64) {
        if blocks <= SHORT_BLOCKS_MAX {
            self.short.add(blocks, nanoseconds);
        } else if blocks >= LONG_BLOCKS_MIN {
            self.long.add(blocks, nanoseconds);
        }
    }

    /// Nanoseconds of a block.
    fn block_ns(&self) -> u64 {
        if self.long.count == 0 {
            return BLOCK_NS_UNMEASURED;
        }
        let more_ns = self.long.nanoseconds.saturating_sub(self.short.nanoseconds);
        more_ns * BLOCK_PARTS / (self.long.block_parts - self.short.block_parts)
    }

    /// Nanoseconds of these transfers, one after the other; `None` while nothing is known.
    fn nanoseconds(&self, transfers: Transfers) -> Option<u64> {
        if self.short.count < SHORT_WRITES_MIN {
            return None;
        }
        let block_ns = self.block_ns();
        let of_blocks = self.short.block_parts * block_ns / BLOCK_PARTS;
        let transfer_ns = self.short.nanoseconds.saturating_sub(of_blocks);
        Some(transfers.count * transfer_ns + transfers.blocks * block_ns)
    }

    /// Nanoseconds for which a write of so many blocks keeps the origin busy; `None` while nobody
    /// knows. What is measured is how long it takes beside three others.
    pub(crate) fn write_ns(&self, blocks: u64) -> Option<u64> {
        let among = self.nanoseconds(Transfers { count: 1, blocks })?;
        Some(among / u64::from(LEAST))
    }

    /// Whether `few` long transfers take less time than `many` short ones that write `many.blocks`
    /// dirty blocks.
    pub(super) fn pays(&mut self, few: Transfers, many: Transfers, span_blocks: u64) -> bool {
        let (Some(few_ns), Some(many_ns)) = (self.nanoseconds(few), self.nanoseconds(many)) else {
            return false;
        };
        if few_ns < many_ns {
            return true;
        }
        let is_unknown = self.long.count == 0 && many.blocks * DENSE_ONE_IN >= span_blocks;
        self.untried += u32::from(is_unknown);
        let is_tried = is_unknown && self.untried >= TRY_EVERY;
        if is_tried {
            self.untried = 0;
        }
        is_tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    fn measured(transfer_ns: u64, block_ns: u64) -> OriginCost {
        let mut cost = OriginCost::default();
        for blocks in [1, 2, 4, 8, 1, 2, 4, 8, 256, 128] {
            cost.on_written(blocks, transfer_ns + blocks * block_ns);
        }
        cost
    }

    /// Dirty blocks, each for itself, of a region of 1 MiB that is read and written whole.
    fn is_gathered(cost: &mut OriginCost, dirty: u64) -> bool {
        let few = Transfers { count: 2, blocks: 512 };
        cost.pays(few, Transfers { count: dirty, blocks: dirty }, 256)
    }

    #[test]
    fn a_disk_gathers_regions_that_a_flash_device_does_not() {
        let mut disk = measured(4 * MILLISECOND, 30_000);
        assert!(!is_gathered(&mut disk, 3));
        assert!(is_gathered(&mut disk, 16));
        let mut flash = measured(MILLISECOND / 5, 10_000);
        assert!(!is_gathered(&mut flash, 16));
        assert!(is_gathered(&mut flash, 64));
    }

    #[test]
    fn an_origin_that_counts_transfers_alone_gathers_three() {
        let mut counted = measured(4 * MILLISECOND, 0);
        assert!(!is_gathered(&mut counted, 2));
        assert!(is_gathered(&mut counted, 3));
    }

    #[test]
    fn a_write_keeps_the_origin_busy_for_its_share_of_the_time_that_it_takes() {
        let cost = measured(4 * MILLISECOND, 40_000);
        let write_ns = cost.write_ns(100).expect("it was measured");
        assert!(write_ns.abs_diff(2 * MILLISECOND) < MILLISECOND / 10, "{write_ns}");
        assert_eq!(OriginCost::default().write_ns(1), None);
    }

    #[test]
    fn nothing_is_gathered_before_anything_is_known() {
        let mut cost = OriginCost::default();
        assert!(!is_gathered(&mut cost, 128));
    }

    #[test]
    fn without_long_writes_one_is_tried_now_and_then() {
        let mut cost = OriginCost::default();
        for _ in 0..SHORT_WRITES_MIN {
            cost.on_written(1, MILLISECOND / 10);
        }
        let gathered = (0..10 * TRY_EVERY).filter(|_| is_gathered(&mut cost, 16)).count();
        assert_eq!(gathered, 10);
        assert!((0..10 * TRY_EVERY).all(|_| !is_gathered(&mut cost, 15)), "not dense enough");
    }
}
