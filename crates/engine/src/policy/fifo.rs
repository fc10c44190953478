//! FIFO with one reference bit: segments go in the order in which they were opened; a block that
//! was hit since it was placed gets a second round.

use super::Policy;
use crate::block_bits::BlockBits;
use crate::units::CacheBlock;

pub(crate) struct Fifo {
    referenced: BlockBits,
}

impl Fifo {
    pub(crate) fn new(cache_blocks: u64) -> Fifo {
        Fifo { referenced: BlockBits::new(cache_blocks) }
    }
}

impl Policy for Fifo {
    fn on_placed(&mut self, position: CacheBlock, block_count: u32) {
        self.referenced.clear_run(position, block_count);
    }

    fn on_hit(&mut self, position: CacheBlock, block_count: u32) {
        self.referenced.set_run(position, block_count);
    }

    fn keeps(&mut self, position: CacheBlock) -> bool {
        self.referenced.take(position)
    }

    fn memory_bytes(&self) -> usize {
        self.referenced.memory_bytes()
    }
}
