//! The simulator that judges the forebay engine.
//!
//! A seed becomes a world: a cache device and origins with volatile caches, clients and
//! administrators, crashes and failures, all in virtual time. An oracle knows which content each
//! sector may have. A run is a function of its seed and options; nothing here reads a clock.
//!
//! - [`run::run`] makes one run, [`hunt::hunt`] many, [`sweep`] fails or cuts at each operation in
//!   turn, with the [`survivors`] that a crash may have.
//! - [`event_hash`] is what equal runs have in common; `hang.rs` says who waits for what.
//! - `device.rs` and `media.rs` hold the fault model, `oracle.rs` and `ordered.rs` the promises.
//! - `cores.rs` lets many independent pieces of work run at a time, each in one thread.
//! - `behind.rs` is somebody who uses an origin while nobody serves.
//! - `strike.rs` lets a life end soon after a write that orders others; `pursuit.rs` sends clients
//!   where the engine is just giving something up.
//! - `pace.rs` decides how long an operation of a device lasts.
//! - `faults.rs` decides what fails at a device; `silent.rs` what fails without a word, and who
//!   must notice.
//! - `world.rs` is the host around the engine, `client.rs` and `administrator.rs` those who use it,
//!   `crash.rs` and `check.rs` what happens between and after, `giving_up.rs` what becomes of dirty
//!   data that is thrown away.
//! - [`fuzz`] hands damaged bytes to whatever reads a cache device.
//! - [`response`] and [`shares`] are no tests by chance: how writeback answers a burst and a steady
//!   writer, and what two clients get of one origin. `modelled_host.rs` is the host around both.
//! - `reference.rs` is a pass-through engine with faults on request: the judge must find them.
//!
//! Deliberately absent: real devices, threads, and, but for the fuzzers and `silent.rs`, any
//! knowledge of the engine's format beyond the superblock that a host writes at format.

mod administrator;
mod behind;
mod caught;
mod check;
mod client;
mod comeback;
pub mod config;
mod cores;
mod crash;
pub mod device;
pub mod event_hash;
mod explaining;
pub mod faults;
pub mod fuzz;
mod giving_up;
mod growing;
mod hang;
pub mod hunt;
pub mod media;
mod modelled_host;
pub mod models;
pub mod oracle;
mod ordered;
pub mod pace;
pub mod payload;
mod pins;
#[cfg(feature = "planted-defects")]
pub mod planted;
mod pursuit;
pub mod random;
pub mod reference;
pub mod response;
pub mod run;
pub mod shares;
pub mod silent;
pub mod stamp;
mod strike;
pub mod survivors;
pub mod sweep;
mod takeover;
pub mod trace;
pub mod under_test;
mod warm;
pub mod workload;
mod world;

pub use run::{CrashKind, Outcome, Plan, PlannedCrash, RunOptions, run};
pub use trace::TraceMode;
pub use world::Violation;
