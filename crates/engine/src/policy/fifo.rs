//! FIFO with one reference bit: segments go in the order in which they were opened; a block that
//! was hit since it was placed gets a second round.

use alloc::vec;
use alloc::vec::Vec;

use super::Policy;
use crate::format::checkpoint::{clear_bit, set_bit};
use crate::units::CacheBlock;

pub(crate) struct Fifo {
    referenced: Vec<u64>,
}

impl Fifo {
    pub(crate) fn new(cache_blocks: u64) -> Fifo {
        let words =
            usize::try_from(cache_blocks.div_ceil(64)).expect("bounded by CACHE_BLOCKS_MAX");
        Fifo { referenced: vec![0; words] }
    }
}

impl Policy for Fifo {
    fn on_placed(&mut self, position: CacheBlock, block_count: u32) {
        for block in position.0..position.0 + block_count {
            clear_bit(&mut self.referenced, block);
        }
    }

    fn on_hit(&mut self, position: CacheBlock, block_count: u32) {
        for block in position.0..position.0 + block_count {
            set_bit(&mut self.referenced, block);
        }
    }

    fn keeps(&mut self, position: CacheBlock) -> bool {
        clear_bit(&mut self.referenced, position.0)
    }

    fn memory_bytes(&self) -> usize {
        self.referenced.len() * 8
    }
}
