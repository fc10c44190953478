//! Everything of forebay that touches Linux: io_uring, devices, sockets, clock and state files.
//!
//! One thread runs one [`Shard`]: one io_uring, at most one cache set with its engine, and the
//! client sockets it serves. The admin side talks to it through a [`ShardHandle`].
//!
//! ```no_run
//! use forebay_host::{Access, BareExport, ListenAddress, Shard, ShardOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = BareExport::open("disk", &"/dev/sdb".parse()?, Access::ReadWrite)?;
//! let listen = vec!["unix:/run/forebay.sock".parse::<ListenAddress>()?];
//! let shard = Shard::new(ShardOptions { listen, ..Default::default() }, None, vec![disk])?;
//! let handle = shard.handle();
//! let thread = std::thread::spawn(move || shard.run());
//! println!("{:?}", handle.status_wait()?);
//! # thread.join().expect("the shard does not panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: time is read in `clock` only; payload lives in the buffer pool only; nothing on the
//! data path waits, except the host state file, which says so. The crate deliberately has no async
//! runtime and no policy of caching: that is the engine's.

/// A server without deliberate defects, or none.
const _: () = assert!(
    !forebay_engine::defects::ARE_PLANTED,
    "the feature planted-defects of forebay-engine is for the simulator: build without it"
);

mod aligned;
mod buddy;
mod buffer_pool;
mod clock;
pub mod device;
mod device_spec;
mod frontend;
mod listen;
pub mod offline;
pub mod probe;
pub mod processes;
pub mod recording;
mod ring;
pub mod set;
mod shard;
mod signature;
#[cfg(test)]
mod skip;
mod slab;
mod slow_device;
pub mod state_file;
pub mod takeover;

pub use device::{Access, OpenedDevice, Signatures};
pub use device_spec::{DeviceSpec, DeviceSpecError};
pub use frontend::ublk::{UblkError, UblkOptions, WRITE_OUT, ublk_driver, write_out_disk};
pub use frontend::vhost_user::{VhostUserError, VhostUserOptions};
pub use frontend::{ClientSize, SizeReach};
pub use listen::{ListenAddress, ListenAddressError, ListenError, Listener};
pub use ring::RingError;
pub use shard::handle::{
    AdminCommand, AdminError, BlockReport, BlockRun, CommandDone, CommandOutcome, NotServing,
    Resized, ShardGone, ShardHandle, Ticket,
};
pub use shard::status::{
    ConnectionReport, DeviceReport, ExportReport, LatencyReport, MemoryReport, Percentiles,
    SetReport, ShardStatus, ShareReport, Transfers,
};
pub use shard::{BareExport, MemoryOptions, ReadyMemory, Shard, ShardError, ShardOptions};
pub use signature::FoundSignature;
