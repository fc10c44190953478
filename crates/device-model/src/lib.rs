//! How long storage devices take: hard disk, SSD, remote volume, and a device with a fixed I/O
//! rate.
//!
//! A [`ModelDevice`] holds no data and does no I/O. Requests go in with the time, completions come
//! out with theirs; the host delays real transfers by it, the simulator lives by it.
//!
//! ```
//! use forebay_device_model::{HardDisk, Model, ModelDevice, Request, RequestKind, Token};
//!
//! let model = Model::HardDisk(HardDisk::server_7200());
//! let mut disk = ModelDevice::new(&model, 128 << 20, 42);
//! let request = Request { kind: RequestKind::Read, offset_bytes: 0, length_bytes: 4096 };
//! disk.push(0, Token(7), request);
//! let due_ns = disk.next_event_ns().expect("a request is outstanding");
//! // The head may have got there, but not yet be done: then there is a next event.
//! assert!(disk.poll(due_ns).is_none_or(|completion| completion.token == Token(7)));
//! ```
//!
//! Invariants:
//! - Same model, length, seed and pushes: same completions at the same times.
//! - Completion times depend on the pushes alone, never on when or how often the device is polled.
//! - Every request completes, exactly once, and a bounded number of requests may overtake it.
//!
//! The crate deliberately knows no clock, no path lookup and no failure: errors and lost power are
//! the simulator's part.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod closed_loop;
mod device;
mod fixed_rate;
mod hard_disk;
mod random;
mod remote;
mod request;
mod schedule;
mod spec;
mod ssd;

pub use device::{Model, ModelDevice, REQUESTS_MAX};
pub use fixed_rate::FixedRate;
pub use hard_disk::{HardDisk, Placement};
pub use random::Random;
pub use remote::Remote;
pub use request::{Completion, Request, RequestKind, Token};
pub use spec::{DeviceSpec, SpecError};
pub use ssd::Ssd;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;
/// Nanoseconds in a millisecond.
const MILLISECOND_NS: u64 = 1_000_000;
/// Nanoseconds in a microsecond.
const MICROSECOND_NS: u64 = 1_000;

/// Time that `length_bytes` take at `bytes_per_second`, rounded down.
fn transfer_ns(length_bytes: u64, bytes_per_second: u64) -> u64 {
    let nanoseconds =
        u128::from(length_bytes) * u128::from(SECOND_NS) / u128::from(bytes_per_second);
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}
