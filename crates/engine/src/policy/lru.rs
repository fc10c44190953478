//! Least recently used: a hit brings the block back to the front.
//!
//! Where that waits for the block's turn, as in a log, this is CLOCK: one queue with a reference
//! bit.

use super::{BlockKey, Hit, Lengths, OnHit, Policy, Queue, Standing, Worth};
use crate::block_bits::BlockBits;
use crate::units::CacheBlock;

/// One queue in order of use.
pub struct Lru {
    referenced: BlockBits,
}

impl Lru {
    /// For a cache of so many blocks.
    pub fn new(cache_blocks: u64) -> Lru {
        Lru { referenced: BlockBits::new(cache_blocks) }
    }
}

impl Policy for Lru {
    fn queue_of_new(&mut self, _: BlockKey, _: u32) -> Queue {
        Queue::Main
    }

    fn on_placed(&mut self, position: CacheBlock, block_count: u32, _: Standing) {
        self.referenced.clear_run(position, block_count);
    }

    fn on_hit(&mut self, hit: &Hit) -> OnHit {
        self.referenced.set_run(hit.position, hit.block_count);
        OnHit::Append
    }

    fn victim_queue(&self, _: &Lengths) -> Queue {
        Queue::Main
    }

    fn turn(&mut self, position: CacheBlock, _: Queue) -> Worth {
        if self.referenced.take(position) { Worth::Used } else { Worth::Nothing }
    }

    fn would_keep(&self, position: CacheBlock, block_count: u32) -> bool {
        self.referenced.any(position, block_count)
    }

    fn references(&self, position: CacheBlock) -> u64 {
        self.referenced.word(position)
    }

    fn restore(&mut self, position: CacheBlock, references: u64) {
        self.referenced.set_word(position, references);
    }

    fn prefetch(&self, position: CacheBlock) {
        self.referenced.prefetch(position);
    }

    fn on_demoted(&mut self, _: BlockKey, _: u32, _: Queue) {}

    fn memory_bytes(&self) -> usize {
        self.referenced.memory_bytes()
    }
}
