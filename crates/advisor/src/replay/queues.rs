//! A policy alone: its queues as they would be without a log, one block at a time.
//!
//! What a log adds (segments that go as a whole, copies that cost, dirty blocks that must stay) is
//! left out. It shows what a policy is worth, and is what published miss ratios are measured on.
//!
//! Slots are linked to lists, and a table finds them by their keys: 16 bytes a block and its key,
//! and 12 to 24 of the table, beside the policy's own. Both grow with the blocks that are
//! cached, unless all memory is taken at the beginning.

use std::hash::{Hash, Hasher};

use forebay_engine::policy::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use forebay_engine::units::CacheBlock;

use crate::curve::BlockHasher;

/// No slot: the end of a list, and a free place of the table.
const NONE: u32 = u32::MAX;
/// Bit of a number that says that its slot is in the main queue; the others count.
const IS_MAIN: u64 = 1 << 63;
/// Places of a table at first.
const PLACES_MIN: usize = 16;

/// What a block is known by.
pub trait Key: Copy + Eq {
    /// Places it in a table: numbers of different keys must be as good as random.
    fn table_hash(self) -> u32;

    /// What the policy knows the block by.
    fn block_key(self) -> BlockKey;
}

impl Key for BlockKey {
    fn table_hash(self) -> u32 {
        let mut hasher = BlockHasher::default();
        self.hash(&mut hasher);
        hasher.finish() as u32
    }

    fn block_key(self) -> BlockKey {
        self
    }
}

struct Slot<K> {
    key: K,
    /// Appended to the queue just before and just after this one; `newer` also links free slots.
    older: u32,
    newer: u32,
    /// Blocks that had been appended to the queue when this one was, and which queue it is.
    number: u64,
}

/// A place of the table. With the hash beside it, the slots of other blocks need not be looked at.
#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    hash: u32,
}

impl Place {
    const FREE: Place = Place { slot: NONE, hash: 0 };
}

/// A queue in order of appending.
struct Line {
    oldest: u32,
    newest: u32,
    block_count: u32,
    appended: u64,
}

impl Line {
    const EMPTY: Line = Line { oldest: NONE, newest: NONE, block_count: 0, appended: 0 };
}

/// A cache of blocks under a policy.
pub struct Queues<K, P: ?Sized> {
    capacity_blocks: u32,
    slots: Vec<Slot<K>>,
    /// Slots by key, with linear probing; a power of two of them, at most two thirds full.
    table: Vec<Place>,
    free: u32,
    small: Line,
    main: Line,
    policy: Box<P>,
}

impl<K: Key, P: Policy + ?Sized> Queues<K, P> {
    /// An empty cache of `capacity_blocks`, which must not be 0, for which the policy was made.
    pub fn new(policy: Box<P>, capacity_blocks: u32) -> Queues<K, P> {
        assert!(capacity_blocks > 0);
        Queues {
            capacity_blocks,
            slots: Vec::new(),
            table: vec![Place::FREE; PLACES_MIN],
            free: NONE,
            small: Line::EMPTY,
            main: Line::EMPTY,
            policy,
        }
    }

    /// The same, with all memory taken now: it never grows.
    pub fn preallocated(policy: Box<P>, capacity_blocks: u32) -> Queues<K, P> {
        let mut queues = Queues::new(policy, capacity_blocks);
        let blocks = capacity_blocks as usize;
        queues.slots.reserve_exact(blocks);
        queues.table = vec![Place::FREE; places(blocks)];
        queues
    }

    /// Whether the block is cached.
    pub fn contains(&self, key: K) -> bool {
        self.find(key, key.table_hash()).is_some()
    }

    /// Whether no further block fits.
    pub fn is_full(&self) -> bool {
        self.free == NONE && self.slots.len() == self.capacity_blocks as usize
    }

    /// Reads or writes a block; tells whether it was cached. Now it is.
    pub fn access(&mut self, key: K) -> bool {
        let hash = key.table_hash();
        if let Some(place) = self.find(key, hash) {
            self.hit(self.table[place].slot);
            return true;
        }
        let queue = self.policy.queue_of_new(key.block_key(), 1);
        if self.is_full() {
            self.demote_one();
        }
        let slot = self.take_slot(key);
        self.enter(Place { slot, hash });
        self.policy.on_placed(CacheBlock(slot), 1, Standing::New);
        self.append(slot, queue);
        false
    }

    /// Takes a block out without its turn: it was discarded.
    pub fn invalidate(&mut self, key: K) {
        if let Some(place) = self.find(key, key.table_hash()) {
            self.forget(place);
        }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<K>>()
            + self.table.capacity() * size_of::<Place>()
            + self.policy.memory_bytes()
    }

    fn hit(&mut self, slot: u32) {
        let number = self.slots[slot as usize].number;
        let queue = queue_of(number);
        let depth_blocks = self.line(queue).appended - (number & !IS_MAIN);
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
            let key = self.slots[slot as usize].key;
            let place = self.find(key, key.table_hash());
            let place = place.expect("what is in a queue is in the table");
            self.forget(place);
            self.policy.on_demoted(key.block_key(), 1, queue);
            return;
        }
    }

    /// A slot for a block that is not cached, where not all are used.
    fn take_slot(&mut self, key: K) -> u32 {
        if self.free != NONE {
            let slot = self.free;
            self.free = self.slots[slot as usize].newer;
            self.slots[slot as usize].key = key;
            return slot;
        }
        let slot = u32::try_from(self.slots.len()).expect("capacity is u32");
        self.slots.push(Slot { key, older: NONE, newer: NONE, number: 0 });
        if places(self.slots.len()) > self.table.len() {
            self.grow_table();
        }
        slot
    }

    fn grow_table(&mut self) {
        let grown = vec![Place::FREE; 2 * self.table.len()];
        let table = std::mem::replace(&mut self.table, grown);
        let used = table.into_iter().filter(|place| place.slot != NONE);
        used.for_each(|place| self.enter(place));
    }

    /// Frees the slot at a place of the table.
    fn forget(&mut self, place: usize) {
        let slot = self.table[place].slot;
        self.unlink(slot);
        self.leave(place);
        self.slots[slot as usize].newer = self.free;
        self.free = slot;
    }

    fn append(&mut self, slot: u32, queue: Queue) {
        let line = self.line(queue);
        line.appended += 1;
        line.block_count += 1;
        let (number, before) = (line.appended, line.newest);
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

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    /// The place of a block in the table.
    fn find(&self, key: K, hash: u32) -> Option<usize> {
        let mut place = self.home(hash);
        loop {
            let found = self.table[place];
            if found.slot == NONE {
                return None;
            }
            if found.hash == hash && self.slots[found.slot as usize].key == key {
                return Some(place);
            }
            place = (place + 1) & (self.table.len() - 1);
        }
    }

    fn enter(&mut self, entry: Place) {
        let mut place = self.home(entry.hash);
        while self.table[place].slot != NONE {
            place = (place + 1) & (self.table.len() - 1);
        }
        self.table[place] = entry;
    }

    /// Empties a place, and moves up what stands behind it because of it.
    fn leave(&mut self, mut empty: usize) {
        let mask = self.table.len() - 1;
        let mut place = empty;
        loop {
            place = (place + 1) & mask;
            let entry = self.table[place];
            if entry.slot == NONE {
                break;
            }
            // It may stand at `empty` if its home is not between that and where it stands.
            let home = self.home(entry.hash);
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(empty) & mask {
                self.table[empty] = entry;
                empty = place;
            }
        }
        self.table[empty] = Place::FREE;
    }
}

/// Places of a table for so many blocks.
fn places(block_count: usize) -> usize {
    (block_count * 3 / 2 + 1).next_power_of_two().max(PLACES_MIN)
}

fn queue_of(number: u64) -> Queue {
    if number & IS_MAIN != 0 { Queue::Main } else { Queue::Small }
}

#[cfg(test)]
mod tests {
    use forebay_engine::policy::{Clock2q, Fifo, Lru};
    use proptest::prelude::*;

    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 0, block }
    }

    /// Keys with homes close to each other, so that the table has runs to take apart.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Crowded(u64);

    impl Key for Crowded {
        fn table_hash(self) -> u32 {
            self.0 as u32 % 7
        }

        fn block_key(self) -> BlockKey {
            key(self.0)
        }
    }

    /// The same cache with plain lists, oldest first, in which everything is looked for.
    struct Plain<P> {
        policy: P,
        /// Blocks of the small and of the main queue, with the number that each one has in it.
        lines: [Vec<(u64, u64)>; 2],
        appended: [u64; 2],
        /// Blocks by their positions.
        positions: Vec<Option<u64>>,
    }

    impl<P: Policy> Plain<P> {
        fn new(policy: P, capacity_blocks: u32) -> Plain<P> {
            let positions = vec![None; capacity_blocks as usize];
            Plain { policy, lines: Default::default(), appended: [0; 2], positions }
        }

        fn position(&self, content: Option<u64>) -> Option<u32> {
            let position = self.positions.iter().position(|block| *block == content)?;
            Some(u32::try_from(position).expect("a small cache"))
        }

        fn append(&mut self, block: u64, queue: Queue) {
            self.appended[queue as usize] += 1;
            self.lines[queue as usize].push((block, self.appended[queue as usize]));
        }

        fn access(&mut self, block: u64) -> bool {
            let Some(position) = self.position(Some(block)) else {
                self.miss(block);
                return false;
            };
            let in_line = |queue: Queue| self.lines[queue as usize].iter().find(|e| e.0 == block);
            let found = [Queue::Small, Queue::Main].map(|queue| (queue, in_line(queue)));
            let (queue, number) =
                found.iter().find_map(|(q, e)| e.map(|e| (*q, e.1))).expect("in one of them");
            let depth_blocks = self.appended[queue as usize] - number;
            let position = CacheBlock(position);
            let hit = Hit { position, block_count: 1, queue, depth_blocks };
            if self.policy.on_hit(&hit) == OnHit::Append {
                self.policy.on_placed(position, 1, Standing::New);
                self.lines[queue as usize].retain(|entry| entry.0 != block);
                self.append(block, queue);
            }
            true
        }

        fn miss(&mut self, block: u64) {
            let queue = self.policy.queue_of_new(key(block), 1);
            if self.position(None).is_none() {
                self.demote_one();
            }
            let position = self.position(None).expect("there is room now");
            self.positions[position as usize] = Some(block);
            self.policy.on_placed(CacheBlock(position), 1, Standing::New);
            self.append(block, queue);
        }

        fn demote_one(&mut self) {
            loop {
                let [small_blocks, main_blocks] = self.lines.each_ref().map(|l| l.len() as u64);
                let queue = self.policy.victim_queue(&Lengths { small_blocks, main_blocks });
                let block = self.lines[queue as usize].remove(0).0;
                let position = self.position(Some(block)).expect("it is cached");
                if self.policy.turn(CacheBlock(position), queue) > Worth::Nothing {
                    self.append(block, Queue::Main);
                    continue;
                }
                self.positions[position as usize] = None;
                self.policy.on_demoted(key(block), 1, queue);
                return;
            }
        }

        fn invalidate(&mut self, block: u64) {
            if let Some(position) = self.position(Some(block)) {
                self.positions[position as usize] = None;
                self.lines.iter_mut().for_each(|line| line.retain(|entry| entry.0 != block));
            }
        }
    }

    /// Accesses, and discards where the second says so; all caches say the same.
    fn same_as_plain<P: Policy>(policy: fn(u64) -> P, capacity: u32, steps: &[(u64, bool)]) {
        let policy = || policy(capacity.into());
        let mut plain = Plain::new(policy(), capacity);
        let mut grown = Queues::new(Box::new(policy()), capacity);
        let mut crowded = Queues::preallocated(Box::new(policy()), capacity);
        let memory_bytes = crowded.slots.capacity() + crowded.table.capacity();
        for (index, (block, is_discard)) in steps.iter().enumerate() {
            if *is_discard {
                plain.invalidate(*block);
                grown.invalidate(key(*block));
                crowded.invalidate(Crowded(*block));
            } else {
                let expected = plain.access(*block);
                assert_eq!(grown.access(key(*block)), expected, "access {index}");
                assert_eq!(crowded.access(Crowded(*block)), expected, "access {index}");
            }
        }
        assert_eq!(crowded.slots.capacity() + crowded.table.capacity(), memory_bytes);
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
        fn it_does_what_plain_lists_do(
            steps in prop::collection::vec((0u64..80, prop::bool::weighted(0.1)), 1..1_500),
            capacity in 1u32..50,
        ) {
            same_as_plain(Clock2q::new, capacity, &steps);
            same_as_plain(Lru::new, capacity, &steps);
        }

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
                let counted = queues.small.block_count + queues.main.block_count;
                prop_assert!(counted <= capacity);
                let found = queues.table.iter().filter(|place| place.slot != NONE).count();
                prop_assert_eq!(found, counted as usize);
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
