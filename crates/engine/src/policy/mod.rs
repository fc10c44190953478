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

use alloc::boxed::Box;

use crate::units::CacheBlock;

/// The policies there are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PolicyKind {
    /// [`Clock2q`].
    #[default]
    Clock2q,
    /// [`Lru`].
    Lru,
    /// [`Fifo`].
    Fifo,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::Clock2q, PolicyKind::Lru, PolicyKind::Fifo];

    /// Its name, as settings and reports have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Clock2q => "clock2q",
            PolicyKind::Lru => "lru",
            PolicyKind::Fifo => "fifo",
        }
    }

    /// The policy of a name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// One that knows nothing yet, for a cache of so many blocks at most, which is also how many
    /// positions there are.
    #[must_use]
    pub fn make(self, cache_blocks: u64) -> Box<dyn Policy + Send> {
        match self {
            PolicyKind::Clock2q => Box::new(Clock2q::new(cache_blocks)),
            PolicyKind::Lru => Box::new(Lru::new(cache_blocks)),
            PolicyKind::Fifo => Box::new(Fifo),
        }
    }
}

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

    /// The same of the region of `1 << shift` blocks that the block is in: another hash than those
    /// of its blocks.
    pub(crate) fn region_hash(self, shift: u32) -> u64 {
        mixed(self.block >> shift ^ mixed(1 << 32 | u64::from(self.volume)))
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

/// What a block is worth whose turn has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Worth {
    /// It was not used: it goes.
    Nothing,
    /// It was used and stays, unless keeping costs more than there is.
    Used,
    /// It was used again and again: it goes last.
    UsedOften,
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
    /// Whether it tells new blocks from proven ones. If not, all blocks stand in one queue, and
    /// whatever it is asked or told is of [`Queue::Main`].
    fn has_small_queue(&self) -> bool {
        false
    }
    /// The queue of blocks that are not cached and are about to be: `block_count` of them from
    /// `key` on, which are read or written as one.
    fn queue_of_new(&mut self, key: BlockKey, block_count: u32) -> Queue;
    /// Whether [`Policy::queue_of_new`] would send them to the main queue for being remembered.
    /// Asking changes nothing.
    fn remembers(&self, _key: BlockKey, _block_count: u32) -> bool {
        false
    }
    /// Blocks were placed at `position`: whatever was known about it is void.
    fn on_placed(&mut self, position: CacheBlock, block_count: u32, standing: Standing);
    /// Cached blocks were read or overwritten by a client.
    fn on_hit(&mut self, hit: &Hit) -> OnHit;
    /// The queue that loses its oldest block. It must not be empty unless both are.
    fn victim_queue(&self, lengths: &Lengths) -> Queue;
    /// Whether the oldest block of the queue `from` is to be kept, by appending it to the main
    /// queue. Asking counts as the block's turn: its record of use starts anew.
    fn turn(&mut self, position: CacheBlock, from: Queue) -> Worth;
    /// Blocks, `block_count` from `key` on, left the cache because they were not kept.
    fn on_demoted(&mut self, key: BlockKey, block_count: u32, from: Queue);
    /// Whether a block of a run would be kept were it its turn now. Asking changes nothing.
    fn would_keep(&self, _position: CacheBlock, _block_count: u32) -> bool {
        false
    }
    /// From now on the cache holds about so many blocks when it is full; never more than there are
    /// positions.
    fn resize(&mut self, _cache_blocks: u64) {}
    /// Which of the 64 blocks from `position` on would be kept, the first in the lowest bit; what
    /// [`Policy::restore`] takes after a restart. `position` is a multiple of 64.
    fn references(&self, _position: CacheBlock) -> u64 {
        0
    }
    /// Takes back what `references` told, for blocks that were not used since.
    fn restore(&mut self, _position: CacheBlock, _references: u64) {}
    /// A hit at `position` is about to be told: what that needs of memory is loaded.
    fn prefetch(&self, _position: CacheBlock) {}
    /// Bytes of memory.
    fn memory_bytes(&self) -> usize;
}
