//! Hit ratios of caches of many sizes, from a sample of the blocks.
//!
//! A trace is replayed for a part of its blocks only, chosen by a hash of their place: a block is
//! in the sample with all of its requests or with none. A cache scaled down by the same part
//! behaves towards the sample as the whole cache towards the whole trace (Waldspurger, Park,
//! Garthwaite, Ahmad: Efficient MRC Construction with SHARDS, FAST 2015; Waldspurger, Saemundsson,
//! Ahmad, Park: Cache Modeling and Optimization using Miniature Simulations, ATC 2017).
//!
//! [`LruCurve`] measures reuse distances and knows every size of an LRU cache at once.
//! [`MiniatureCurve`] runs the default policy itself, in a small cache for each size.
//! [`WhatIf`] does so beside a cache at work, for a few sizes around its own.
//!
//! Invariants:
//! - Memory is bounded by constants, whatever the trace holds; the sampling rate gives way.
//! - Equal requests give equal results: the hash has no secret seed.
//! - A request that spans several blocks counts block by block. Discards take blocks out.

mod accesses;
mod histogram;
mod ladder;
mod lru;
mod miniature;
mod sample;
mod stack;
mod what_if;

pub use accesses::{Access, Accesses, Discarded, Step};
pub use ladder::SizeLadder;
pub use lru::LruCurve;
pub use miniature::{Miniature, MiniatureCurve, MissCounts, Totals};
pub(crate) use sample::{BlockHasher, BoundedSample};
pub use sample::{Rate, sample_hash};
pub use what_if::{ClientOperation, ClientRequest, Estimate, WhatIf};

/// Blocks that one structure keeps of a sample before it lowers its rate. SHARDS shows errors below
/// .01 from 8,192 on; four times as many halve them.
pub const SAMPLED_BLOCKS_MAX: usize = 32_768;
