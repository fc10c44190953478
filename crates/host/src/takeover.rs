//! A takeover: another process goes on with what this one serves, without a moment in which an
//! address refuses a connection or a device is unlocked.
//!
//! This file has what goes from one to the other; how it goes is up to the program. Devices go as
//! the open files themselves, so the locks that they carry go along, and no third process can come
//! between. Sockets that listen go likewise: who connects meanwhile waits in their queues. Clients
//! that are connected are cut when the predecessor ends, and come back to the same sockets. ublk
//! devices outlive their server and are taken over by number and identity, as from one that died.
//!
//! Who may write, and when, see `docs/durability.md`.

use std::os::fd::OwnedFd;
use std::time::Duration;

use forebay_engine::TakeoverRefusal;
use forebay_engine::units::VolumeSlot;
use thiserror::Error;

use crate::device_spec::DeviceSpec;
use crate::listen::Listener;
use crate::shard::handle::ShardGone;

/// How long a predecessor holds requests back for a successor, from the first to the commit. After
/// that it goes on. Chosen: far more than it takes (see `docs/operations.md`), and less than the 30
/// seconds after which clients and kernels begin to complain.
pub const TAKEOVER_MAX: Duration = Duration::from_secs(10);

/// An open device, with its lock.
#[derive(Debug)]
pub struct HandedDevice {
    /// The open file.
    pub descriptor: OwnedFd,
    /// How the operator named it.
    pub spec: DeviceSpec,
}

/// The devices of a cache set.
#[derive(Debug)]
pub struct HandedDevices {
    /// The cache device.
    pub cache: HandedDevice,
    /// Origins that are open, by slot in the volume table.
    pub origins: Vec<(VolumeSlot, HandedDevice)>,
}

/// The sockets that a shard listens on.
#[derive(Debug, Default)]
pub struct HandedListeners {
    /// For NBD clients.
    pub nbd: Vec<Listener>,
    /// For front ends of virtual machines.
    pub vhost_user: Vec<Listener>,
}

/// Names a takeover: one that is over may have been followed by another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakeoverTicket(pub(crate) u64);

/// Everything that goes over, and how long it took until nothing was under way.
#[derive(Debug)]
pub struct HandedOver {
    /// The devices.
    pub devices: HandedDevices,
    /// The sockets.
    pub listeners: HandedListeners,
    /// Names the takeover until it is committed or cancelled.
    pub ticket: TakeoverTicket,
    /// From the first request that was held back to the moment when nothing was under way and the
    /// checkpoint was durable.
    pub held_for: Duration,
}

/// Why nothing is handed over. The shard goes on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TakeoverError {
    /// It ended.
    #[error(transparent)]
    ShardGone(#[from] ShardGone),
    /// It serves bare devices only.
    #[error("it serves no cache set, and only those are handed over")]
    NoCacheSet,
    /// Another takeover is under way.
    #[error("another takeover is under way")]
    Another,
    /// It stops.
    #[error("it stops")]
    Stopping,
    /// A block device is being made or removed.
    #[error("a ublk device is being made or removed; try again when it is ready")]
    Ublk,
    /// The host state file waits to be saved.
    #[error("its host state file cannot be saved; see its log")]
    StateFile,
    /// The engine refuses.
    #[error("{0}")]
    Engine(#[from] TakeoverRefusal),
    /// What is under way did not end in time.
    #[error(
        "what is under way did not end in {} s; look for a device that hangs in `forebay status`, \
         and try again", TAKEOVER_MAX.as_secs()
    )]
    Late,
    /// A descriptor cannot be duplicated.
    #[error("a descriptor cannot be duplicated: {0}")]
    Descriptor(#[from] std::io::Error),
}
