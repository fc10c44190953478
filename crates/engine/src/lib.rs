//! The forebay engine: a block cache as a deterministic state machine.
//!
//! It has no I/O, clock, thread or randomness of its own. A host drives it in a loop:
//!
//! 1. hand in what happened: [`Engine::handle_request`], [`Engine::handle_io_complete`],
//!    [`Engine::handle_time`], [`Engine::handle_host_state_saved`], [`Engine::handle_command`];
//! 2. take out what is to be done: [`Engine::poll_io`] until it answers `None` (this is where the
//!    engine decides), then [`Engine::poll_reply`] and [`Engine::poll_event`] likewise; if an event
//!    made the host hand something in, once more from the start;
//! 3. sleep until the next completion, request, or [`Engine::poll_wakeup`].
//!
//! Records of the log are formed in `poll_io`, so everything handed in between two rounds shares
//! one device write, and flushes that arrive together share one device flush.

#![no_std]

extern crate alloc;

mod admission;
mod audit;
mod background;
mod bit_runs;
mod block_bits;
mod command;
pub mod defects;
mod engine;
mod epochs;
pub mod error;
pub mod event;
pub mod explain;
mod failure;
mod fingerprint;
mod flush_group;
pub mod format;
mod index;
mod inspect;
pub mod io;
mod keep;
mod log;
mod mean;
pub mod options;
mod path;
pub mod payload;
pub mod policy;
mod prefetch;
mod range_lock;
mod read_ahead;
mod recovery;
mod replacement;
pub mod request;
pub mod sequential;
mod slab;
pub mod status;
mod takeover;
pub mod units;
mod volume;
mod wake;

pub use engine::Engine;
pub use failure::hand_over::Inheritance;
pub use failure::ride::ORIGIN_LATE_BYTES_MAX;
pub use failure::waiting::CACHE_TIMEOUT_MS;
pub use takeover::TakeoverRefusal;
