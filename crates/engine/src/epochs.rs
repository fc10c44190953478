//! Flush epochs of a volume in ordered writeback (promise 4).
//!
//! A completed flush, or a write with forced unit access, ends an epoch. What was written in one
//! epoch reaches the origin before anything of the next one. Versions only grow, so an epoch is the
//! stretch of versions between two ends, and the version of a copy tells its epoch, wherever the
//! copy is by now.

use alloc::collections::VecDeque;

use crate::options::WritebackOrder;
use crate::units::{FlushEpoch, Version};

/// The end of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    pub(crate) epoch: FlushEpoch,
    /// No copy with a higher version is of this epoch or an earlier one.
    pub(crate) last: Version,
}

/// The epochs of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Epochs {
    pub(crate) order: WritebackOrder,
    /// The epoch under way.
    current: FlushEpoch,
    /// Blocks and zeroes that were appended in it.
    appended: u64,
    /// Those that ended and are not on the origin yet, oldest first.
    ended: VecDeque<Cut>,
    /// The last one that ended.
    last_ended: Version,
    /// The origin durably has everything through this one.
    drained: Cut,
}

impl Epochs {
    /// After `drained`, with nothing in the log that is not on the origin.
    pub(crate) fn new(order: WritebackOrder, drained: Cut) -> Epochs {
        Epochs {
            order,
            current: FlushEpoch(drained.epoch.0 + 1),
            appended: 0,
            ended: VecDeque::new(),
            last_ended: drained.last,
            drained,
        }
    }

    /// The origin has all that was written up to now.
    pub(crate) fn begin(&mut self, last: Version) {
        self.drained = Cut { epoch: self.current, last };
        self.current.0 += 1;
        self.last_ended = last;
        self.ended.clear();
        self.appended = 0;
    }

    /// Nothing of it is dirty.
    pub(crate) fn set_order(&mut self, order: WritebackOrder) {
        if order != self.order {
            self.order = order;
            self.ended.clear();
        }
    }

    pub(crate) fn current(&self) -> FlushEpoch {
        self.current
    }

    /// The origin durably has everything through this epoch.
    pub(crate) fn drained(&self) -> Cut {
        self.drained
    }

    /// Epochs that ended and are not on the origin yet, oldest first.
    pub(crate) fn ended(&self) -> &VecDeque<Cut> {
        &self.ended
    }

    pub(crate) fn appended(&self) -> u64 {
        self.appended
    }

    /// So many dirty blocks were appended.
    pub(crate) fn on_appended(&mut self, blocks: u64) {
        self.appended += blocks;
    }

    /// Ends the epoch under way if anything was written in it; `last` is the highest version.
    pub(crate) fn end(&mut self, last: Version) {
        if self.appended == 0 || self.order == WritebackOrder::Coalescing {
            return;
        }
        self.ended.push_back(Cut { epoch: self.current, last });
        self.last_ended = last;
        self.current.0 += 1;
        self.appended = 0;
    }

    /// Whether a copy was written in an epoch that has ended.
    pub(crate) fn has_ended(&self, version: Version) -> bool {
        version <= self.last_ended
    }

    /// The epoch in which a copy was written. One that has long been drained counts as of the last
    /// that was.
    pub(crate) fn of(&self, version: Version) -> FlushEpoch {
        if version <= self.drained.last {
            return self.drained.epoch;
        }
        let index = self.ended.partition_point(|cut| cut.last < version);
        self.ended.get(index).map_or(self.current, |cut| cut.epoch)
    }

    /// The origin durably has everything through the oldest epoch that ended.
    pub(crate) fn drain_oldest(&mut self) {
        self.drained = self.ended.pop_front().expect("it was written home");
    }

    /// What recovery found: the last epoch that is on the origin, the ends of those that are not,
    /// in order, and the highest version and the highest epoch of all.
    pub(crate) fn recover(
        &mut self,
        drained: Cut,
        ended: VecDeque<Cut>,
        last: Version,
        highest: FlushEpoch,
    ) {
        self.drained = drained;
        self.ended = ended;
        self.last_ended = last;
        self.current = FlushEpoch(highest.0 + 1);
        self.appended = 0;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.ended.capacity() * size_of::<Cut>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered() -> Epochs {
        let drained = Cut { epoch: FlushEpoch(4), last: Version(100) };
        Epochs::new(WritebackOrder::Ordered, drained)
    }

    #[test]
    fn the_version_tells_the_epoch() {
        let mut epochs = ordered();
        for last in [110, 111, 130] {
            epochs.on_appended(1);
            epochs.end(Version(last));
        }
        let of = |version| epochs.of(Version(version)).0;
        assert_eq!([of(7), of(100), of(101), of(110)], [4, 4, 5, 5]);
        assert_eq!([of(111), of(112), of(130), of(131), of(999)], [6, 7, 7, 8, 8]);
        assert!(epochs.has_ended(Version(130)) && !epochs.has_ended(Version(131)));
    }

    #[test]
    fn an_epoch_without_writes_does_not_end() {
        let mut epochs = ordered();
        epochs.end(Version(110));
        assert!(epochs.ended().is_empty());
        assert_eq!(epochs.current(), FlushEpoch(5));
    }

    #[test]
    fn epochs_are_drained_oldest_first() {
        let mut epochs = ordered();
        for last in [110, 120] {
            epochs.on_appended(1);
            epochs.end(Version(last));
        }
        epochs.drain_oldest();
        assert_eq!(epochs.drained(), Cut { epoch: FlushEpoch(5), last: Version(110) });
        assert_eq!(epochs.of(Version(105)), FlushEpoch(5));
        assert_eq!(epochs.of(Version(115)), FlushEpoch(6));
    }

    #[test]
    fn in_coalescing_order_no_epoch_ends() {
        let drained = Cut { epoch: FlushEpoch(0), last: Version(0) };
        let mut epochs = Epochs::new(WritebackOrder::Coalescing, drained);
        epochs.on_appended(9);
        epochs.end(Version(9));
        assert!(epochs.ended().is_empty());
    }
}
