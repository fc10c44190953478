//! A policy's queues over sampled blocks, in little memory: some 31 bytes a block with its place in
//! the table, beside the policy's own.
//!
//! It does exactly what [`crate::replay::Queues`] does. Blocks are known by their sample hash
//! alone, slots are linked to lists, and all memory is taken at the beginning.

use forebay_engine::policy::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use forebay_engine::units::CacheBlock;

/// No slot: the end of a list, and a free place of the table.
const NONE: u32 = u32::MAX;
/// Bit of a number that says that its slot is in the main queue; the others count.
const IS_MAIN: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    /// Appended to the queue just before and just after this one; `newer` also links free slots.
    older: u32,
    newer: u32,
    /// Blocks that had been appended to the queue when this one was, modulo 2^31, and the queue.
    number: u32,
}

struct Line {
    oldest: u32,
    newest: u32,
    appended: u32,
    block_count: u32,
}

impl Line {
    const EMPTY: Line = Line { oldest: NONE, newest: NONE, appended: 0, block_count: 0 };
}

/// A cache of sampled blocks under a policy.
pub(super) struct CompactQueues<P> {
    policy: P,
    slots: Vec<Slot>,
    /// Slots by hash, with linear probing; a power of two of them, at most two thirds full.
    table: Vec<u32>,
    free: u32,
    small: Line,
    main: Line,
}

impl<P: Policy> CompactQueues<P> {
    /// An empty cache of `capacity_blocks`, from 1 to 2^28, for which the policy was made.
    pub(super) fn new(policy: P, capacity_blocks: u32) -> CompactQueues<P> {
        assert!((1..=1 << 28).contains(&capacity_blocks));
        let slot = |index| Slot { hash: 0, older: NONE, newer: index + 1, number: 0 };
        let mut slots: Vec<Slot> = (0..capacity_blocks).map(slot).collect();
        slots.last_mut().expect("at least one").newer = NONE;
        let places = (slots.len() * 3 / 2 + 1).next_power_of_two();
        let table = vec![NONE; places];
        CompactQueues { policy, slots, table, free: 0, small: Line::EMPTY, main: Line::EMPTY }
    }

    /// Reads or writes a block; tells whether it was cached. Now it is.
    pub(super) fn access(&mut self, hash: u64) -> bool {
        if let Some(place) = self.find(hash) {
            self.hit(self.table[place]);
            return true;
        }
        let queue = self.policy.queue_of_new(key(hash), 1);
        if self.free == NONE {
            self.demote_one();
        }
        let slot = self.free;
        self.free = self.slots[slot as usize].newer;
        self.slots[slot as usize].hash = hash;
        self.enter(slot);
        self.policy.on_placed(CacheBlock(slot), 1, Standing::New);
        self.append(slot, queue);
        false
    }

    /// Takes a block out without its turn: it was discarded.
    pub(super) fn invalidate(&mut self, hash: u64) {
        if let Some(place) = self.find(hash) {
            self.forget(place);
        }
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.table.capacity() * size_of::<u32>()
            + self.policy.memory_bytes()
    }

    fn hit(&mut self, slot: u32) {
        let number = self.slots[slot as usize].number;
        let queue = queue_of(number);
        let depth = self.line(queue).appended.wrapping_sub(number) & !IS_MAIN;
        let depth_blocks = u64::from(depth);
        let hit = Hit { position: CacheBlock(slot), block_count: 1, queue, depth_blocks };
        if self.policy.on_hit(&hit) == OnHit::Append {
            self.policy.on_placed(CacheBlock(slot), 1, Standing::New);
            self.unlink(slot);
            self.append(slot, queue);
        }
    }

    /// Gives blocks their turn until one is not kept.
    fn demote_one(&mut self) {
        loop {
            let lengths = Lengths {
                small_blocks: self.small.block_count.into(),
                main_blocks: self.main.block_count.into(),
            };
            let queue = self.policy.victim_queue(&lengths);
            let slot = self.line(queue).oldest;
            assert!(slot != NONE, "the policy names a queue with blocks");
            if self.policy.turn(CacheBlock(slot), queue) > Worth::Nothing {
                self.unlink(slot);
                self.append(slot, Queue::Main);
                continue;
            }
            let hash = self.slots[slot as usize].hash;
            let place = self.find(hash).expect("what is in a queue is in the table");
            self.forget(place);
            self.policy.on_demoted(key(hash), 1, queue);
            return;
        }
    }

    /// Frees the slot at a place of the table.
    fn forget(&mut self, place: usize) {
        let slot = self.table[place];
        self.unlink(slot);
        self.leave(place);
        self.slots[slot as usize].newer = self.free;
        self.free = slot;
    }

    fn append(&mut self, slot: u32, queue: Queue) {
        let line = self.line(queue);
        line.appended = line.appended.wrapping_add(1);
        line.block_count += 1;
        let (number, before) = (line.appended & !IS_MAIN, line.newest);
        line.newest = slot;
        if before == NONE {
            line.oldest = slot;
        } else {
            self.slots[before as usize].newer = slot;
        }
        let mark = if queue == Queue::Main { IS_MAIN } else { 0 };
        let entry = &mut self.slots[slot as usize];
        (entry.older, entry.newer, entry.number) = (before, NONE, number | mark);
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, number, .. } = self.slots[slot as usize];
        match older {
            NONE => self.line(queue_of(number)).oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.line(queue_of(number)).newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.line(queue_of(number)).block_count -= 1;
    }

    fn line(&mut self, queue: Queue) -> &mut Line {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }

    /// The low bits: the high ones are those that a sample is chosen by.
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    /// The place of a block in the table.
    fn find(&self, hash: u64) -> Option<usize> {
        let mut place = self.home(hash);
        loop {
            match self.table[place] {
                NONE => return None,
                slot if self.slots[slot as usize].hash == hash => return Some(place),
                _ => place = (place + 1) & (self.table.len() - 1),
            }
        }
    }

    fn enter(&mut self, slot: u32) {
        let mut place = self.home(self.slots[slot as usize].hash);
        while self.table[place] != NONE {
            place = (place + 1) & (self.table.len() - 1);
        }
        self.table[place] = slot;
    }

    /// Empties a place, and moves up what stands behind it because of it.
    fn leave(&mut self, mut empty: usize) {
        let mask = self.table.len() - 1;
        let mut place = empty;
        loop {
            place = (place + 1) & mask;
            let slot = self.table[place];
            if slot == NONE {
                break;
            }
            let home = self.home(self.slots[slot as usize].hash);
            // It may stand at `empty` if its home is not between that and where it stands.
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(empty) & mask {
                self.table[empty] = slot;
                empty = place;
            }
        }
        self.table[empty] = NONE;
    }
}

fn queue_of(number: u32) -> Queue {
    if number & IS_MAIN != 0 { Queue::Main } else { Queue::Small }
}

/// What the policy knows a block by.
fn key(hash: u64) -> BlockKey {
    BlockKey { volume: 0, block: hash }
}

#[cfg(test)]
mod tests {
    use forebay_engine::policy::{Clock2q, Lru};
    use proptest::prelude::*;

    use super::*;
    use crate::replay::Queues;

    /// Hashes with homes close to each other, so that the table has runs to take apart.
    fn hash(block: u64) -> u64 {
        (block % 7) | (block << 32)
    }

    fn same_as_queues<P: Policy + 'static>(
        policies: (P, P),
        capacity_blocks: u32,
        steps: &[(u64, bool)],
    ) {
        let mut plain = Queues::new(Box::new(policies.0), capacity_blocks);
        let mut compact = CompactQueues::new(policies.1, capacity_blocks);
        for (index, (block, is_discard)) in steps.iter().enumerate() {
            let hash = hash(*block);
            if *is_discard {
                plain.invalidate(key(hash));
                compact.invalidate(hash);
            } else {
                assert_eq!(compact.access(hash), plain.access(key(hash)), "access {index}");
            }
        }
    }

    proptest! {
        #[test]
        fn it_does_what_the_queues_of_the_replay_do(
            steps in prop::collection::vec((0u64..80, prop::bool::weighted(0.1)), 1..1_500),
            capacity in 1u32..50,
        ) {
            let blocks = u64::from(capacity);
            same_as_queues((Clock2q::new(blocks), Clock2q::new(blocks)), capacity, &steps);
            same_as_queues((Lru::new(blocks), Lru::new(blocks)), capacity, &steps);
        }
    }
}
