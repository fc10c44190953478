//! Experiments on block caches.
//!
//! A [`plan::Plan`] is read from a TOML file: devices, targets on them, phases of work. It is run
//! in one of two clocks. In *virtual* time the engine itself works on models of devices
//! ([`virtual_time`]): half an hour on a hard disk takes a minute, and every figure comes out the
//! same again. In *real* time fio asks devices, the daemon, or other servers on this machine
//! ([`real_time`]). Either way a target's [`result::TargetResult`] has the same form.
//!
//! Invariants:
//! - A figure is what a client saw, or a counter of the engine or of a device. Nothing is
//!   estimated.
//! - In virtual time the same plan gives the same figures.
//! - A result says which clock it is of.
//! - What figures have to be is in the plan, and whether they are follows from the results alone
//!   ([`bounds`]).
//!
//! Deliberately absent: a run that fails because a bound is missed. It has measured what it should.

pub mod bounds;
pub mod compare;
pub mod folder;
pub mod machine;
pub mod plan;
pub mod plans;
pub mod progress;
pub mod real_time;
pub mod report;
pub mod result;
pub mod size;
pub mod summary;
pub mod virtual_time;
