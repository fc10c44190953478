//! What clients and operators see of the engine: reads, modes, flushes, parts of blocks, repair,
//! a full cache, and the counters that explain it all.

#[path = "../harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "each test target uses its part of the harness")]
mod harness;

mod accounting;
mod admission;
mod commands;
mod degraded;
mod discard_dirty;
mod explain;
mod flushes;
mod full_cache;
mod gathered;
mod grow;
mod hand_over;
mod modes;
mod odd_sizes;
mod ordered;
mod origin_stalls;
mod pace;
mod pacing;
mod pins;
mod quiesced;
mod read_ahead;
mod reads;
mod repair;
mod replacement;
mod takeover;
