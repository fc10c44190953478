//! One bit for each block of the cache device, in memory only: lost at a restart.

use alloc::vec;
use alloc::vec::Vec;

use crate::bit_runs::{masks, set_run};
use crate::format::checkpoint::{clear_bit, set_bit};
use crate::prefetch::prefetch;
use crate::units::CacheBlock;

const WORD_BITS: u64 = u64::BITS as u64;

pub(crate) struct BlockBits {
    words: Vec<u64>,
}

impl BlockBits {
    pub(crate) fn new(cache_blocks: u64) -> BlockBits {
        let words = usize::try_from(cache_blocks.div_ceil(WORD_BITS));
        BlockBits { words: vec![0; words.expect("bounded by CACHE_BLOCKS_MAX")] }
    }

    pub(crate) fn set(&mut self, position: CacheBlock) {
        set_bit(&mut self.words, position.0);
    }

    /// Whether the bit was set; from now on it is not.
    pub(crate) fn take(&mut self, position: CacheBlock) -> bool {
        clear_bit(&mut self.words, position.0)
    }

    pub(crate) fn set_run(&mut self, position: CacheBlock, block_count: u32) {
        set_run(&mut self.words, position.0, block_count);
    }

    pub(crate) fn clear_run(&mut self, position: CacheBlock, block_count: u32) {
        for (word, mask) in masks(position.0, block_count) {
            self.words[word] &= !mask;
        }
    }

    pub(crate) fn has(&self, position: CacheBlock) -> bool {
        self.any(position, 1)
    }

    /// Whether a bit of the run is set.
    pub(crate) fn any(&self, position: CacheBlock, block_count: u32) -> bool {
        masks(position.0, block_count).any(|(word, mask)| self.words[word] & mask != 0)
    }

    /// The bits of 64 positions from a multiple of 64 on.
    pub(crate) fn word(&self, position: CacheBlock) -> u64 {
        self.words[position.0 as usize / WORD_BITS as usize]
    }

    pub(crate) fn set_word(&mut self, position: CacheBlock, bits: u64) {
        self.words[position.0 as usize / WORD_BITS as usize] = bits;
    }

    /// Has the bits of the position loaded, which will be wanted.
    pub(crate) fn prefetch(&self, position: CacheBlock) {
        prefetch(&self.words[position.0 as usize / WORD_BITS as usize]);
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_set_until_it_is_taken_or_its_run_is_cleared() {
        let mut bits = BlockBits::new(256);
        bits.set(CacheBlock(7));
        bits.set(CacheBlock(200));
        assert!(bits.take(CacheBlock(7)));
        assert!(!bits.take(CacheBlock(7)));
        bits.clear_run(CacheBlock(192), 16);
        assert!(!bits.take(CacheBlock(200)));
    }

    #[test]
    fn runs_are_what_their_bits_are_one_by_one() {
        for start in 0..130u32 {
            for block_count in 1..=130 {
                let run = start..start + block_count;
                let mut bits = BlockBits::new(320);
                bits.set_run(CacheBlock(start), block_count);
                assert!(bits.any(CacheBlock(run.end - 1), 1 + start % 5));
                assert!(bits.any(CacheBlock(0), start + 1));
                assert!(start == 0 || !bits.any(CacheBlock(0), start));
                assert!(!bits.any(CacheBlock(run.end), 320 - run.end));
                let set: Vec<u32> = (0..320).filter(|at| bits.take(CacheBlock(*at))).collect();
                assert!(set.iter().copied().eq(run.clone()), "{run:?}: {set:?}");

                bits.set_run(CacheBlock(0), 320);
                bits.clear_run(CacheBlock(start), block_count);
                assert!(!bits.any(CacheBlock(start), block_count));
                let clear = (0..320).filter(|at| !bits.take(CacheBlock(*at)));
                assert!(clear.eq(run));
            }
        }
    }
}
