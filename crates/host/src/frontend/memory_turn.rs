//! Whose turn it is when front ends compete for the memory of clients.
//!
//! A front end lets its own requests wait in the order in which they came. Among front ends, one
//! request of each is given memory in turn. The one whose turn it is keeps it until there is enough
//! for its request: nobody starves, neither who wants much while others want little, nor who comes
//! rarely while others always wait.

use std::collections::VecDeque;

use crate::buffer_pool::{BufferPool, Owner};
use forebay_engine::payload::BufferId;

/// A front end as one that wants memory. Numbers are its place among all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Claimant {
    Nbd,
    Ublk,
    VhostUser,
}

impl Claimant {
    pub(super) const COUNT: usize = 3;
}

/// Who waits for memory, and whose turn it is.
pub(crate) struct MemoryTurn {
    /// Each front end at most once. It is the turn of the first.
    waiting: VecDeque<Claimant>,
    /// Somebody got memory while others waited, or has gone before them.
    has_moved: bool,
}

impl MemoryTurn {
    /// Nobody waits.
    pub(crate) fn new() -> MemoryTurn {
        MemoryTurn { waiting: VecDeque::with_capacity(Claimant::COUNT), has_moved: false }
    }

    /// Memory for a request. `None`: the request has to wait, and its front end is in the queue.
    pub(super) fn allocate(
        &mut self,
        claimant: Claimant,
        pool: &mut BufferPool,
        bytes: usize,
    ) -> Option<BufferId> {
        let is_its_turn = self.waiting.front().is_none_or(|first| *first == claimant);
        let buffer = if is_its_turn { pool.allocate_for(Owner::Clients, bytes) } else { None };
        if buffer.is_none() {
            if !self.waiting.contains(&claimant) {
                self.waiting.push_back(claimant);
            }
        } else if let Some(first) = self.waiting.pop_front() {
            self.waiting.push_back(first);
            self.has_moved = true;
        }
        buffer
    }

    /// Forgets front ends of which nothing waits any more. Until then, one that has gone holds the
    /// others up.
    pub(super) fn forget(&mut self, waits: [bool; Claimant::COUNT]) {
        let first = self.waiting.front().copied();
        self.waiting.retain(|claimant| waits[*claimant as usize]);
        let next = self.waiting.front();
        self.has_moved |= next.is_some() && next.copied() != first;
    }

    /// Whether it may be the turn of another since this was asked last: somebody got memory, or has
    /// gone.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::MemoryOptions;
    use Claimant::{Nbd, Ublk, VhostUser};
    use forebay_engine::payload::Payload;

    const MIB: usize = 1 << 20;

    /// A pool of which 32 MiB are left.
    fn pool() -> BufferPool {
        let memory = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
        let mut pool = BufferPool::new(memory).unwrap();
        pool.allocate_for(Owner::Clients, 32 * MIB).unwrap();
        pool
    }

    #[test]
    fn who_waits_gets_memory_in_turn_with_the_others() {
        let (mut pool, mut turn) = (pool(), MemoryTurn::new());
        let mut held: Vec<_> =
            (0..32).map(|_| turn.allocate(Ublk, &mut pool, MIB).unwrap()).collect();
        assert!(!turn.take_moved(), "nobody waited");
        for claimant in [Ublk, VhostUser, Nbd] {
            assert_eq!(turn.allocate(claimant, &mut pool, MIB), None);
        }
        let mut served = Vec::new();
        for _ in 0..6 {
            pool.release(held.pop().unwrap());
            // The same one always comes first.
            for claimant in [Ublk, Nbd, VhostUser] {
                if turn.allocate(claimant, &mut pool, MIB).is_some() {
                    served.push(claimant);
                    assert!(turn.take_moved());
                }
            }
        }
        assert_eq!(served, [Ublk, VhostUser, Nbd, Ublk, VhostUser, Nbd]);
    }

    #[test]
    fn who_wants_much_is_not_overtaken() {
        let (mut pool, mut turn) = (pool(), MemoryTurn::new());
        let held: Vec<_> = (0..32).map(|_| turn.allocate(Ublk, &mut pool, MIB).unwrap()).collect();
        assert_eq!(turn.allocate(VhostUser, &mut pool, 16 * MIB), None);
        for buffer in held.into_iter().take(31) {
            pool.release(buffer);
            if turn.allocate(VhostUser, &mut pool, 16 * MIB).is_some() {
                return;
            }
            assert_eq!(turn.allocate(Ublk, &mut pool, MIB), None);
        }
        panic!("what is free is not given out");
    }

    #[test]
    fn who_has_gone_holds_nobody_up() {
        let (mut pool, mut turn) = (pool(), MemoryTurn::new());
        let all = turn.allocate(Nbd, &mut pool, 32 * MIB).unwrap();
        assert_eq!(turn.allocate(VhostUser, &mut pool, MIB), None);
        pool.release(all);
        assert_eq!(turn.allocate(Ublk, &mut pool, MIB), None, "it is not its turn");
        assert!(!turn.take_moved());
        turn.forget([false, true, false]);
        assert!(turn.take_moved(), "it is the turn of another");
        assert!(turn.allocate(Ublk, &mut pool, MIB).is_some());
        turn.forget([false; Claimant::COUNT]);
        assert!(turn.allocate(Nbd, &mut pool, MIB).is_some());
    }
}
