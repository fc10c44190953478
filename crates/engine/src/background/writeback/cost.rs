//! What writes of writeback cost at an origin: so much for each, and so much for each block.
//!
//! Both are measured, as the device does not tell (the kernel calls every loop device rotational):
//! short and long transfers have a mean cost each, and the line through the two is the model. There
//! are two such lines:
//!
//! - *Share*: what a transfer takes of the origin's time, from the end of the one before it (or its
//!   own beginning, if that is later) to its own end. It decides how much is written at once. How
//!   long transfers take would not do: a short one beside long ones takes as long as these.
//! - *Took*: how long a transfer takes beside three others. A client that waits compares it.

use super::depth::LEAST;
use crate::units::Time;

/// Blocks of a short write at most: its transfer is small against the way to it.
pub(super) const SHORT_BLOCKS_MAX: u64 = 8;
/// Blocks of a long transfer at least.
const LONG_BLOCKS_MIN: u64 = 64;
/// Short writes that are measured before the model says anything.
const SHORT_WRITES_MIN: u32 = 8;
/// Duration of a block while no long transfer was measured: 100 MB/s, an old disk.
const BLOCK_NS_UNMEASURED: u64 = 40_000;
/// Transfers after which older ones count half. Shares differ widely: a drive that sorts ends many
/// at once, after a while without any.
const HALVED_AFTER: u32 = 256;
/// While gathering does not pay, one region of so many is tried, so that long writes are known.
const TRY_EVERY: u32 = 64;
/// Share of the blocks of such a region that must be dirty: one in so many. DESIGN section 4 names
/// the density.
pub(super) const DENSE_ONE_IN: u64 = 16;

/// Sums over the transfers of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u32,
    blocks: u64,
    nanoseconds: u64,
}

impl Sums {
    fn add(&mut self, blocks: u64, nanoseconds: u64) {
        if self.count == HALVED_AFTER {
            let Sums { count, blocks, nanoseconds } = *self;
            *self = Sums { count: count / 2, blocks: blocks / 2, nanoseconds: nanoseconds / 2 };
        }
        self.count += 1;
        self.blocks += blocks;
        self.nanoseconds += nanoseconds;
    }

    fn mean_ns(&self) -> u64 {
        self.nanoseconds / u64::from(self.count.max(1))
    }

    /// Nanoseconds of `per_block_ns` for the blocks of a mean transfer.
    fn of_blocks_ns(&self, per_block_ns: u64) -> u64 {
        self.blocks * per_block_ns / u64::from(self.count.max(1))
    }
}

/// Cost against size.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    short: Sums,
    long: Sums,
}

impl Line {
    fn add(&mut self, blocks: u64, nanoseconds: u64) {
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
        let more_ns = self.long.mean_ns().saturating_sub(self.short.mean_ns());
        more_ns / (self.long.of_blocks_ns(1) - self.short.of_blocks_ns(1))
    }

    /// Nanoseconds of these transfers, one after the other; `None` while nothing is known. The way
    /// to each counts for `least_ns` at least.
    fn nanoseconds(&self, transfers: Transfers, least_ns: u64) -> Option<u64> {
        if self.short.count < SHORT_WRITES_MIN {
            return None;
        }
        let block_ns = self.block_ns();
        let transfer_ns = self.short.mean_ns().saturating_sub(self.short.of_blocks_ns(block_ns));
        Some(transfers.count * transfer_ns.max(least_ns) + transfers.blocks * block_ns)
    }
}

/// What a volume has learned about writes of its origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct OriginCost {
    share: Line,
    took: Line,
    untried: u32,
    /// When the last operation of the origin ended, and its share.
    ended_at: Time,
    share_ns: u64,
}

/// Writes that do the same work in different ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transfers {
    pub(super) count: u64,
    pub(super) blocks: u64,
}

impl Transfers {
    /// A read of so many blocks and a write of them.
    pub(super) fn read_and_written(blocks: u64) -> Transfers {
        Transfers { count: 2, blocks: 2 * blocks }
    }
}

impl OriginCost {
    /// An operation of the origin that began at `started` ends now, whatever it was.
    pub(crate) fn on_end(&mut self, now: Time, started: Time) {
        self.share_ns = now.nanoseconds_since(started.max(self.ended_at));
        self.ended_at = now;
    }

    /// What has just ended was a write of so many blocks, which took so long.
    pub(super) fn on_written(&mut self, blocks: u64, took_ns: u64) {
        self.share.add(blocks, self.share_ns);
        self.took.add(blocks, took_ns);
    }

    /// What has just ended was a read of so many blocks, to be written with what is dirty.
    pub(super) fn on_gaps_read(&mut self, blocks: u64) {
        if blocks >= LONG_BLOCKS_MIN {
            self.share.add(blocks, self.share_ns);
        }
    }

    /// Nanoseconds for which a write of so many blocks keeps the origin busy; `None` while nobody
    /// knows. What is measured is how long it takes beside three others.
    pub(crate) fn write_ns(&self, blocks: u64) -> Option<u64> {
        let among = self.took.nanoseconds(Transfers { count: 1, blocks }, 0)?;
        Some(among / u64::from(LEAST))
    }

    /// What these transfers take of the origin's time; `None` while nobody knows. The way to each
    /// counts for `least_ns` at least.
    pub(super) fn busy_ns(&self, transfers: Transfers, least_ns: u64) -> Option<u64> {
        self.share.nanoseconds(transfers, least_ns)
    }

    /// Whether `few` long transfers take less time than `many` short ones that write `many.blocks`
    /// dirty blocks. The way to each counts for `least_ns` at least.
    pub(super) fn pays(
        &mut self,
        few: Transfers,
        many: Transfers,
        span_blocks: u64,
        least_ns: u64,
    ) -> bool {
        let of = |transfers| self.busy_ns(transfers, least_ns);
        let (Some(few_ns), Some(many_ns)) = (of(few), of(many)) else { return false };
        if few_ns < many_ns {
            return true;
        }
        let is_unknown = self.share.long.count == 0 && many.blocks * DENSE_ONE_IN >= span_blocks;
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

    /// Writes that came one after the other.
    fn write(cost: &mut OriginCost, blocks: u64, took_ns: u64) {
        let started = cost.ended_at;
        cost.on_end(Time(started.0 + took_ns), started);
        cost.on_written(blocks, took_ns);
    }

    fn measured(transfer_ns: u64, block_ns: u64) -> OriginCost {
        let mut cost = OriginCost::default();
        for blocks in [1, 2, 4, 8, 1, 2, 4, 8, 256, 128] {
            write(&mut cost, blocks, transfer_ns + blocks * block_ns);
        }
        cost
    }

    /// Dirty blocks, each for itself, of a region of 1 MiB that is read and written whole.
    fn is_gathered(cost: &mut OriginCost, dirty: u64) -> bool {
        is_gathered_beside(cost, dirty, 0)
    }

    fn is_gathered_beside(cost: &mut OriginCost, dirty: u64, least_ns: u64) -> bool {
        let few = Transfers { count: 2, blocks: 512 };
        cost.pays(few, Transfers { count: dirty, blocks: dirty }, 256, least_ns)
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

    /// A disk that takes half a millisecond for a short write in order, with eight of them and a
    /// long read and write of ten milliseconds each under way at once.
    #[test]
    fn short_writes_beside_long_ones_are_not_taken_for_long() {
        let mut cost = OriginCost::default();
        let mut now = Time(0);
        for _ in 0..100 {
            let started = now;
            for blocks in [1, 1, 1, 1, 1, 1, 1, 1, 256, 256] {
                now.0 += if blocks == 1 { MILLISECOND / 2 } else { 10 * MILLISECOND };
                cost.on_end(now, started);
                cost.on_written(blocks, now.nanoseconds_since(started));
            }
        }
        assert!(!is_gathered(&mut cost, 36));
        assert!(is_gathered(&mut cost, 44));
    }

    /// A drive that takes short writes into its cache and long ones not; clients' reads take 8 ms.
    #[test]
    fn beside_clients_a_short_write_counts_like_one_of_theirs() {
        let mut cost = measured(MILLISECOND / 10, 40_000);
        assert!(!is_gathered(&mut cost, 32));
        assert!(!is_gathered_beside(&mut cost, 4, 8 * MILLISECOND));
        assert!(is_gathered_beside(&mut cost, 5, 8 * MILLISECOND));
    }

    #[test]
    fn an_idle_origin_has_no_share() {
        let mut cost = OriginCost::default();
        cost.on_end(Time(5 * MILLISECOND), Time(3 * MILLISECOND));
        assert_eq!(cost.share_ns, 2 * MILLISECOND);
        cost.on_end(Time(9 * MILLISECOND), Time(4 * MILLISECOND));
        assert_eq!(cost.share_ns, 4 * MILLISECOND, "from the end of the one before");
        cost.on_end(Time(90 * MILLISECOND), Time(89 * MILLISECOND));
        assert_eq!(cost.share_ns, MILLISECOND);
    }

    #[test]
    fn what_was_measured_long_ago_counts_little() {
        let mut cost = measured(4 * MILLISECOND, 30_000);
        for blocks in [1, 2, 4, 8, 256, 128].into_iter().cycle().take(6_000) {
            write(&mut cost, blocks, MILLISECOND / 5 + blocks * 10_000);
        }
        assert!(!is_gathered(&mut cost, 16), "it is a flash device now");
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
            write(&mut cost, 1, MILLISECOND / 10);
        }
        let gathered = (0..10 * TRY_EVERY).filter(|_| is_gathered(&mut cost, 16)).count();
        assert_eq!(gathered, 10);
        assert!((0..10 * TRY_EVERY).all(|_| !is_gathered(&mut cost, 15)), "not dense enough");
    }
}
