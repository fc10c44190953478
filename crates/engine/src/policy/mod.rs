//! Replacement: which clean blocks are worth keeping when their segment is reclaimed.
//!
//! The contract is narrow. The engine tells the policy what happened to positions of the log and
//! asks three questions: is this miss worth a copy, which segment goes next, is this block kept. A
//! policy decides nothing about dirty blocks; they are always kept.

mod fifo;

pub(crate) use fifo::Fifo;

use crate::units::CacheBlock;

/// What a policy must answer.
pub(crate) trait Policy {
    /// Blocks were placed at `position`.
    fn on_placed(&mut self, position: CacheBlock, block_count: u32);
    /// Cached blocks were read or overwritten by a client.
    fn on_hit(&mut self, position: CacheBlock, block_count: u32);
    /// Whether a block that its segment loses is kept by appending it again. Asking counts as the
    /// block's turn: its record of use starts anew.
    fn keeps(&mut self, position: CacheBlock) -> bool;
    /// Bytes of memory.
    fn memory_bytes(&self) -> usize;
}
