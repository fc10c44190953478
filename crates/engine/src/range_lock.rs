//! Range locks of one volume: who may touch which blocks on the origin, and in what order (rule 9).
//!
//! Three kinds of holder: whole-block writes to the log, which may overlap each other since
//! versions order them; merges of part of a block, which exclude everything on their block; and
//! writers of the origin (client, writeback, repair), which exclude each other and merges. Requests
//! are granted in the order in which they came, so nobody starves. Linear search: the number of
//! holders is bounded by the requests in flight.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::slab::Key;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// Whole blocks are appended to the log.
    LogWrite,
    /// Part of a block is merged with the rest of it.
    Merge,
    /// The origin is written.
    Origin,
}

impl LockKind {
    fn excludes(self, other: LockKind) -> bool {
        match (self, other) {
            (LockKind::Merge, _) | (_, LockKind::Merge) => true,
            (LockKind::Origin, LockKind::Origin) => true,
            (LockKind::LogWrite, _) | (_, LockKind::LogWrite) => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockOwner {
    Unit(Key),
    WritebackRun(Key),
    Repair(Key),
}

#[derive(Clone, Copy, Debug)]
struct Lock {
    start: u64,
    end: u64,
    kind: LockKind,
    owner: LockOwner,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        let overlaps = self.start < other.end && other.start < self.end;
        overlaps && self.kind.excludes(other.kind) && !has_defect(Defect::RangeLockLeftOut)
    }
}

#[derive(Default, Debug)]
pub(crate) struct RangeLocks {
    held: Vec<Lock>,
    waiting: VecDeque<Lock>,
}

impl RangeLocks {
    /// Locks `start..end`, now (`true`) or later: then `release` of another names the owner.
    pub(crate) fn acquire(
        &mut self,
        start: u64,
        end: u64,
        kind: LockKind,
        owner: LockOwner,
    ) -> bool {
        let lock = Lock { start, end, kind, owner };
        let is_free = !self.held.iter().chain(&self.waiting).any(|other| lock.conflicts(other));
        if is_free {
            self.held.push(lock);
        } else {
            self.waiting.push_back(lock);
        }
        is_free
    }

    /// Unlocks, and appends to `granted` the owners whose turn it is now.
    pub(crate) fn release(&mut self, owner: LockOwner, granted: &mut Vec<LockOwner>) {
        let index = self.held.iter().position(|lock| lock.owner == owner);
        self.held.swap_remove(index.expect("only held locks are released"));
        let mut index = 0;
        while index < self.waiting.len() {
            let lock = self.waiting[index];
            let earlier = self.waiting.iter().take(index);
            if self.held.iter().chain(earlier).any(|other| lock.conflicts(other)) {
                index += 1;
            } else {
                self.waiting.remove(index);
                self.held.push(lock);
                granted.push(lock.owner);
            }
        }
    }

    /// Whether a client write (or a merge) to part of `start..end` is under way or waiting.
    pub(crate) fn has_client_write(&self, start: u64, end: u64) -> bool {
        self.held.iter().chain(&self.waiting).any(|lock| {
            lock.start < end && start < lock.end && matches!(lock.owner, LockOwner::Unit(_))
        })
    }

    /// Who has locked part of `start..end`, or waits for it.
    pub(crate) fn holders(&self, start: u64, end: u64) -> impl Iterator<Item = LockOwner> {
        let locks = self.held.iter().chain(&self.waiting);
        let meets = move |lock: &&Lock| lock.start < end && start < lock.end;
        locks.filter(meets).map(|lock| lock.owner)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    fn owners(count: usize) -> Vec<LockOwner> {
        let mut slab = Slab::default();
        (0..count).map(|_| LockOwner::Unit(slab.insert(()))).collect()
    }

    #[test]
    fn log_writes_share_and_wait_for_a_merge() {
        let mut locks = RangeLocks::default();
        let owner = owners(4);
        assert!(locks.acquire(0, 8, LockKind::LogWrite, owner[0]));
        assert!(locks.acquire(4, 12, LockKind::LogWrite, owner[1]));
        assert!(!locks.acquire(7, 8, LockKind::Merge, owner[2]));
        // A later log write may not overtake the merge that waits.
        assert!(!locks.acquire(7, 9, LockKind::LogWrite, owner[3]));
        let mut granted = Vec::new();
        locks.release(owner[0], &mut granted);
        assert!(granted.is_empty());
        locks.release(owner[1], &mut granted);
        assert_eq!(granted, [owner[2]]);
        granted.clear();
        locks.release(owner[2], &mut granted);
        assert_eq!(granted, [owner[3]]);
    }

    #[test]
    fn writers_of_the_origin_exclude_each_other_only_where_they_overlap() {
        let mut locks = RangeLocks::default();
        let owner = owners(3);
        assert!(locks.acquire(0, 8, LockKind::Origin, owner[0]));
        assert!(locks.acquire(8, 16, LockKind::Origin, owner[1]));
        assert!(!locks.acquire(7, 9, LockKind::Origin, owner[2]));
        let mut granted = Vec::new();
        locks.release(owner[1], &mut granted);
        assert!(granted.is_empty());
        locks.release(owner[0], &mut granted);
        assert_eq!(granted, [owner[2]]);
        assert!(locks.has_client_write(8, 9));
        assert!(!locks.has_client_write(9, 10));
    }
}
