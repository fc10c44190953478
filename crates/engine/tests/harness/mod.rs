//! A host for the engine in which the test is the scheduler: every device operation is held until
//! the test completes it, and a crash keeps exactly what the test chooses.
//!
//! Deliberately not here: randomness, time of its own, and any opinion on what is a good order.
//! Three things are checked whatever the test does: each request gets one reply; no write overlaps
//! another operation at the same place; a segment is written from its start only if a durable
//! checkpoint has it free.

mod buffers;
mod client;
mod content;
mod disk;
mod held;
mod setup;
mod world;

pub(crate) use buffers::Buffers;
pub(crate) use content::{Content, ORIGINAL, block_bytes, content_of, sector_bytes};
pub(crate) use disk::Disk;
pub(crate) use held::{Held, What, cache, origin};
pub(crate) use setup::{SET_ID, Setup};
pub(crate) use world::{Keep, World};

pub(crate) const BLOCK: u64 = 4096;
