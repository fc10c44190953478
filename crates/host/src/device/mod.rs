//! Devices: opened and locked in `open`, operated in `table`, made slow in `slow_device`; what is
//! written to them is written down in `recorder` if somebody asks for it.
//!
//! The descriptor that carries the lock is the one that does the I/O, so the lock lasts exactly as
//! long as the device can be written through it.

mod open;
mod operation;
mod recorder;
mod table;
#[cfg(test)]
mod tests;
mod watch;

pub(crate) use open::Role;
pub use open::{Access, OpenedDevice, Signatures};
pub(crate) use recorder::Recorder;
pub(crate) use table::{DeviceId, DeviceTable, Finished, IoOwner, Surroundings};
