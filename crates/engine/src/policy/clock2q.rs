//! Three queues, in the manner of S3-FIFO (Yang et al., SOSP 2023) and Clock2Q+ (arXiv 2511.21958).
//!
//! New blocks enter a small queue of 5 % of the cache. One that was hit before it reaches the end
//! moves to the main queue, a ring with one reference bit; else it is demoted and remembered as a
//! fingerprint, for as many demotions as .9 of the cache has blocks. A remembered block that comes
//! back goes to the main queue at once. Hits in the young half of the small queue set no bit: in
//! front of a block device they are mostly one access of several requests.
//!
//! With these shares it misses less than LRU on each of the traces that the advisor is tested with
//! (`crates/advisor/tests/published.rs`).

use super::ghost::Ghost;
use super::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing};
use crate::block_bits::BlockBits;
use crate::units::CacheBlock;

/// Share of the cache that the small queue has.
const SMALL_PERCENT: u64 = 5;
/// Demoted blocks that are remembered, as a share of the blocks of the cache.
const GHOST_PERCENT: u64 = 90;
/// Part of the small queue, its young end, in which a hit does not count.
const CORRELATED_DIVISOR: u64 = 2;

/// A small queue, a ring and a ghost.
pub struct Clock2q {
    referenced: BlockBits,
    ghost: Ghost,
    small_blocks: u64,
}

impl Clock2q {
    /// For a cache of so many blocks, which is also how many positions there are.
    pub fn new(cache_blocks: u64) -> Clock2q {
        Clock2q {
            referenced: BlockBits::new(cache_blocks),
            ghost: Ghost::new(cache_blocks * GHOST_PERCENT / 100),
            small_blocks: (cache_blocks * SMALL_PERCENT / 100).max(1),
        }
    }
}

impl Policy for Clock2q {
    fn queue_of_new(&mut self, key: BlockKey) -> Queue {
        if self.ghost.take(key) { Queue::Main } else { Queue::Small }
    }

    fn on_placed(&mut self, position: CacheBlock, block_count: u32, standing: Standing) {
        match standing {
            Standing::New => self.referenced.clear_run(position, block_count),
            Standing::Proven => self.referenced.set_run(position, block_count),
        }
    }

    fn on_hit(&mut self, hit: &Hit) -> OnHit {
        let is_correlated =
            hit.queue == Queue::Small && hit.depth_blocks < self.small_blocks / CORRELATED_DIVISOR;
        if !is_correlated {
            self.referenced.set_run(hit.position, hit.block_count);
        }
        OnHit::Stay
    }

    fn victim_queue(&self, lengths: &Lengths) -> Queue {
        if lengths.small_blocks > self.small_blocks || lengths.main_blocks == 0 {
            Queue::Small
        } else {
            Queue::Main
        }
    }

    fn keeps(&mut self, position: CacheBlock) -> bool {
        self.referenced.take(position)
    }

    fn on_demoted(&mut self, key: BlockKey, from: Queue) {
        if from == Queue::Small {
            self.ghost.insert(key);
        }
    }

    fn memory_bytes(&self) -> usize {
        self.referenced.memory_bytes() + self.ghost.memory_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> BlockKey {
        BlockKey { volume: 0, block }
    }

    fn hit(position: u32, queue: Queue, depth_blocks: u64) -> Hit {
        Hit { position: CacheBlock(position), block_count: 1, queue, depth_blocks }
    }

    /// A small queue of 50 blocks, in the young half of which hits do not count.
    fn policy() -> Clock2q {
        Clock2q::new(1_000)
    }

    #[test]
    fn what_is_hit_later_than_right_away_is_kept_once() {
        let mut policy = policy();
        policy.on_placed(CacheBlock(3), 2, Standing::New);
        assert_eq!(policy.on_hit(&hit(3, Queue::Small, 24)), OnHit::Stay);
        assert!(!policy.keeps(CacheBlock(3)), "it was correlated");
        assert_eq!(policy.on_hit(&hit(3, Queue::Small, 25)), OnHit::Stay);
        assert_eq!(policy.on_hit(&hit(4, Queue::Main, 0)), OnHit::Stay);
        for position in [3, 4] {
            assert!(policy.keeps(CacheBlock(position)));
            assert!(!policy.keeps(CacheBlock(position)), "it had its turn");
        }
    }

    #[test]
    fn what_is_placed_is_judged_anew_unless_it_is_proven() {
        let mut policy = policy();
        policy.on_hit(&hit(7, Queue::Main, 0));
        policy.on_placed(CacheBlock(7), 1, Standing::New);
        assert!(!policy.keeps(CacheBlock(7)));
        policy.on_placed(CacheBlock(7), 1, Standing::Proven);
        assert!(policy.keeps(CacheBlock(7)));
    }

    #[test]
    fn what_comes_back_from_the_small_queue_has_proven_itself() {
        let mut policy = policy();
        policy.on_demoted(key(1), Queue::Small);
        policy.on_demoted(key(2), Queue::Main);
        assert_eq!(policy.queue_of_new(key(1)), Queue::Main);
        assert_eq!(policy.queue_of_new(key(1)), Queue::Small, "it was remembered once");
        assert_eq!(policy.queue_of_new(key(2)), Queue::Small);
    }

    #[test]
    fn the_small_queue_gives_up_what_it_has_too_much_of() {
        let policy = policy();
        let named =
            |small_blocks, main_blocks| policy.victim_queue(&Lengths { small_blocks, main_blocks });
        assert_eq!(named(51, 900), Queue::Small);
        assert_eq!(named(50, 900), Queue::Main);
        assert_eq!(named(10, 0), Queue::Small, "the other one is empty");
    }
}
