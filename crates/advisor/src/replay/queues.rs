//! A policy alone: its queues as they would be without a log, one block at a time.
//!
//! What a log adds (segments that go as a whole, copies that cost, dirty blocks that must stay) is
//! left out. It shows what a policy is worth, and is what published miss ratios are measured on.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use forebay_engine::policy::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use forebay_engine::units::CacheBlock;

use crate::curve::BlockHasher;

/// Entries of a queue beyond twice the blocks of the cache after which it is tidied: a block that
/// is appended again leaves its old entry behind.
const STALE_SLACK: usize = 1_024;

#[derive(Clone, Copy)]
struct Slot {
    key: BlockKey,
    queue: Queue,
    /// Blocks that had been appended to the queue when this one was.
    number: u64,
}

/// A queue in order of appending; entries whose number is not their slot's are stale.
#[derive(Default)]
struct Line {
    entries: VecDeque<(u32, u64)>,
    appended: u64,
    block_count: u64,
}

/// A cache of blocks under a policy.
pub struct Queues {
    policy: Box<dyn Policy>,
    capacity_blocks: u32,
    index: HashMap<BlockKey, u32, BuildHasherDefault<BlockHasher>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    small: Line,
    main: Line,
}

impl Queues {
    /// An empty cache of `capacity_blocks`, which must not be 0.
    pub fn new(policy: Box<dyn Policy>, capacity_blocks: u32) -> Queues {
        assert!(capacity_blocks > 0);
        Queues {
            policy,
            capacity_blocks,
            index: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            small: Line::default(),
            main: Line::default(),
        }
    }

    /// Whether the block is cached.
    pub fn contains(&self, key: BlockKey) -> bool {
        self.index.contains_key(&key)
    }

    /// Whether no further block fits.
    pub fn is_full(&self) -> bool {
        self.index.len() == self.capacity_blocks as usize
    }

    /// Reads or writes a block; tells whether it was cached. Now it is.
    pub fn access(&mut self, key: BlockKey) -> bool {
        if let Some(slot) = self.index.get(&key).copied() {
            self.hit(slot);
            return true;
        }
        let queue = self.policy.queue_of_new(key, 1);
        if self.is_full() {
            self.demote_one();
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.slots.len()).expect("capacity is u32");
            self.slots.push(Slot { key, queue, number: 0 });
            slot
        });
        self.slots[slot as usize].key = key;
        self.index.insert(key, slot);
        self.policy.on_placed(CacheBlock(slot), 1, Standing::New);
        self.append(slot, queue);
        false
    }

    /// Takes a block out without its turn: it was discarded.
    pub fn invalidate(&mut self, key: BlockKey) {
        if let Some(slot) = self.index.get(&key).copied() {
            self.forget(slot);
        }
    }

    /// Its entry in the queue becomes stale.
    fn forget(&mut self, slot: u32) {
        let Slot { key, queue, .. } = self.slots[slot as usize];
        self.index.remove(&key);
        self.line(queue).block_count -= 1;
        self.slots[slot as usize].number = u64::MAX;
        self.free.push(slot);
    }

    fn hit(&mut self, slot: u32) {
        let Slot { queue, number, .. } = self.slots[slot as usize];
        let depth_blocks = self.line(queue).appended - number;
        let hit = Hit { position: CacheBlock(slot), block_count: 1, queue, depth_blocks };
        if self.policy.on_hit(&hit) == OnHit::Append {
            self.policy.on_placed(CacheBlock(slot), 1, Standing::New);
            self.move_to(slot, queue);
        }
    }

    fn move_to(&mut self, slot: u32, queue: Queue) {
        let from = self.slots[slot as usize].queue;
        self.line(from).block_count -= 1;
        self.append(slot, queue);
    }

    fn append(&mut self, slot: u32, queue: Queue) {
        let line = self.line(queue);
        line.appended += 1;
        line.block_count += 1;
        let number = line.appended;
        line.entries.push_back((slot, number));
        self.slots[slot as usize].queue = queue;
        self.slots[slot as usize].number = number;
        let limit = 2 * self.capacity_blocks as usize + STALE_SLACK;
        if self.line(queue).entries.len() > limit {
            self.tidy(queue);
        }
    }

    /// Gives blocks their turn until one is not kept.
    fn demote_one(&mut self) {
        loop {
            let lengths = Lengths {
                small_blocks: self.small.block_count,
                main_blocks: self.main.block_count,
            };
            let queue = self.policy.victim_queue(&lengths);
            let entry = self.line(queue).entries.pop_front();
            let entry = entry.expect("the policy names a queue with blocks");
            if !self.is_current(queue, entry) {
                continue;
            }
            let slot = entry.0;
            let key = self.slots[slot as usize].key;
            if self.policy.turn(CacheBlock(slot), queue) > Worth::Nothing {
                self.move_to(slot, Queue::Main);
                continue;
            }
            self.forget(slot);
            self.policy.on_demoted(key, 1, queue);
            return;
        }
    }

    /// Whether an entry of the queue is that of its slot still.
    fn is_current(&self, queue: Queue, (slot, number): (u32, u64)) -> bool {
        let slot = &self.slots[slot as usize];
        slot.queue == queue && slot.number == number
    }

    fn tidy(&mut self, queue: Queue) {
        let mut entries = std::mem::take(&mut self.line(queue).entries);
        entries.retain(|entry| self.is_current(queue, *entry));
        self.line(queue).entries = entries;
    }

    fn line(&mut self, queue: Queue) -> &mut Line {
        match queue {
            Queue::Small => &mut self.small,
            Queue::Main => &mut self.main,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::policy::{Clock2q, Fifo, Lru};
    use proptest::prelude::*;

    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 0, block }
    }

    /// Whether each access was a hit.
    fn hits(policy: Box<dyn Policy>, capacity_blocks: u32, blocks: &[u64]) -> Vec<bool> {
        let mut queues = Queues::new(policy, capacity_blocks);
        blocks.iter().map(|block| queues.access(key(*block))).collect()
    }

    /// The same with a plain list, in which a hit does what `on_hit` says.
    fn plain(capacity: usize, blocks: &[u64], on_hit: OnHit) -> Vec<bool> {
        let mut cached: Vec<u64> = Vec::new();
        let access = |block: &u64| {
            let found = cached.iter().position(|known| known == block);
            match found {
                Some(at) if on_hit == OnHit::Append => {
                    cached.remove(at);
                    cached.push(*block);
                }
                Some(_) => {}
                None => {
                    if cached.len() == capacity {
                        cached.remove(0);
                    }
                    cached.push(*block);
                }
            }
            found.is_some()
        };
        blocks.iter().map(access).collect()
    }

    proptest! {
        #[test]
        fn lru_and_fifo_are_what_their_names_say(
            blocks in prop::collection::vec(0u64..40, 1..600),
            capacity in 1u32..30,
        ) {
            let lru = hits(Box::new(Lru::new(capacity.into())), capacity, &blocks);
            prop_assert_eq!(lru, plain(capacity as usize, &blocks, OnHit::Append));
            let fifo = hits(Box::new(Fifo), capacity, &blocks);
            prop_assert_eq!(fifo, plain(capacity as usize, &blocks, OnHit::Stay));
        }

        #[test]
        fn no_more_blocks_than_fit(
            blocks in prop::collection::vec((0u64..60, any::<bool>()), 1..800),
            capacity in 1u32..30,
        ) {
            let policy = Clock2q::new(u64::from(capacity));
            let mut queues = Queues::new(Box::new(policy), capacity);
            for (block, is_discard) in blocks {
                if is_discard {
                    queues.invalidate(key(block));
                    prop_assert!(!queues.contains(key(block)));
                } else {
                    queues.access(key(block));
                    prop_assert!(queues.contains(key(block)));
                }
                prop_assert!(queues.index.len() <= capacity as usize);
                let counted = queues.small.block_count + queues.main.block_count;
                prop_assert_eq!(counted, queues.index.len() as u64);
            }
        }
    }

    #[test]
    fn a_scan_leaves_what_is_used_alone() {
        let mut blocks = Vec::new();
        for round in 0..50u64 {
            blocks.extend(0..50);
            blocks.extend(1_000 + round * 75..1_000 + (round + 1) * 75);
        }
        blocks.extend(0..50);
        let hits_of_last = |policy: Box<dyn Policy>| {
            let hits = hits(policy, 100, &blocks);
            hits[hits.len() - 50..].iter().filter(|hit| **hit).count()
        };
        assert_eq!(hits_of_last(Box::new(Lru::new(100))), 0);
        assert_eq!(hits_of_last(Box::new(Clock2q::new(100))), 50);
    }
}
