//! Replacement: which clean blocks stay in the cache.
//!
//! The contract is narrow. Blocks stand in queues, in the order in which they were appended.
//! Whoever keeps the queues tells the policy what happened to positions, and asks: what queue takes
//! a new block, what queue loses its oldest, is this block kept. A policy decides nothing about
//! dirty blocks; they are always kept.

mod clock2q;
mod fifo;
mod ghost;
mod lru;

pub use clock2q::Clock2q;
pub use fifo::Fifo;
pub use lru::Lru;

use crate::units::CacheBlock;

/// Where a block stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Queue {
    /// What is new and has to prove itself.
    Small,
    /// What has; and everything, for a policy with one queue.
    Main,
}

/// A block of a volume, whether cached or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockKey {
    /// Number of the volume.
    pub volume: u32,
    /// Block of the volume.
    pub block: u64,
}

impl BlockKey {
    /// A hash of 64 bits, the same in every run: two rounds of the finaliser of SplitMix64
    /// (Steele, Lea, Flood, OOPSLA 2014).
    pub(crate) fn hash(self) -> u64 {
        mixed(self.block ^ mixed(u64::from(self.volume)))
    }
}

fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// What is known of blocks when they are placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Nothing: they have to prove themselves.
    New,
    /// They would stay, were it their turn: remembered from before, or overwritten ones that were
    /// used.
    Proven,
}

/// Cached blocks that a client read or overwrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The first of them.
    pub position: CacheBlock,
    /// How many, side by side.
    pub block_count: u32,
    /// Where they stand.
    pub queue: Queue,
    /// Blocks that were appended to the queue after them.
    pub depth_blocks: u64,
}

/// What becomes of blocks that were hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnHit {
    /// They stay where they are.
    Stay,
    /// They are to be appended to their queue again, which places them anew.
    Append,
}

/// Blocks in the queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// In the small one.
    pub small_blocks: u64,
    /// In the main one.
    pub main_blocks: u64,
}

/// What a policy must answer.
pub trait Policy {
    /// The queue of a block that is not cached and is about to be.
    fn queue_of_new(&mut self, key: BlockKey) -> Queue;
    /// Blocks were placed at `position`: whatever was known about it is void.
    fn on_placed(&mut self, position: CacheBlock, block_count: u32, standing: Standing);
    /// Cached blocks were read or overwritten by a client.
    fn on_hit(&mut self, hit: &Hit) -> OnHit;
    /// The queue that loses its oldest block. It must not be empty unless both are.
    fn victim_queue(&self, lengths: &Lengths) -> Queue;
    /// Whether the oldest block of the queue `from` is kept, by appending it to the main queue.
    /// Asking counts as the block's turn: its record of use starts anew.
    fn keeps(&mut self, position: CacheBlock, from: Queue) -> bool;
    /// A block left the cache because it was not kept.
    fn on_demoted(&mut self, key: BlockKey, from: Queue);
    /// Whether a block would be kept were it its turn now, as far as that is known without asking.
    fn would_keep(&self, _position: CacheBlock) -> Option<bool> {
        None
    }
    /// Bytes of memory.
    fn memory_bytes(&self) -> usize;
}
