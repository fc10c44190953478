//! Devices: opened and locked in `open`, operated in `table`, made slow in `slow_device`.
//!
//! The descriptor that carries the lock is the one that does the I/O, so the lock lasts exactly as
//! long as the device can be written through it.

mod open;
mod operation;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub use open::{Access, OpenedDevice, Signatures};
pub(crate) use table::{DeviceId, DeviceTable, Finished, IoOwner, Surroundings};
