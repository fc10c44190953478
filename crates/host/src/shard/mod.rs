//! A shard: one thread that owns one ring, its devices, the client sockets, and at most one engine.

mod admin;
mod bare;
mod comeback;
pub(crate) mod exports;
mod fetch;
pub(crate) mod handle;
pub(crate) mod latency;
mod resize;
mod run;
mod served_set;
pub(crate) mod status;
mod takeover;
mod ublk;
mod what_if;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use forebay_engine::payload::ENGINE_BYTES_DEFAULT;
use thiserror::Error;

use crate::buffer_pool::BufferPool;
use crate::device::{Access, OpenedDevice, Recorder};
use crate::device_spec::DeviceSpec;
use crate::frontend::ublk::{UblkError, UblkOptions};
use crate::frontend::vhost_user::{self, VhostUserError, VhostUserOptions};
use crate::listen::{ListenAddress, ListenError, Listener};
use crate::probe::OpenError;
use crate::recording::RecordingError;
use crate::ring::{RingError, WakeUp};
use crate::set::OpenedSet;
use crate::state_file::StateFileError;
use crate::takeover::HandedListeners;
use handle::{Message, ShardHandle};

/// Memory for payload, allocated and pinned when the shard starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// The engine's share: promotions, writeback, reclaim, metadata.
    pub engine_bytes: u64,
    /// The clients' share: requests under way.
    pub client_bytes: u64,
}

impl Default for MemoryOptions {
    /// 128 MiB each: the clients' share holds one request of the largest size and a thousand small
    /// ones; the engine's share is [`ENGINE_BYTES_DEFAULT`].
    fn default() -> Self {
        MemoryOptions { engine_bytes: ENGINE_BYTES_DEFAULT, client_bytes: 128 << 20 }
    }
}

/// Default of [`ShardOptions::io_timeout_ms`]: as long as Linux waits for a SCSI disk
/// (`SD_TIMEOUT`) and for an NVMe device (`nvme_core.io_timeout`).
const IO_TIMEOUT_MS: u64 = 30_000;

/// What a shard is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardOptions {
    /// Where clients connect.
    pub listen: Vec<ListenAddress>,
    /// Exports that are to be block devices of this machine.
    pub ublk: Vec<UblkOptions>,
    /// Exports that are to be disks of virtual machines, each with a socket.
    pub vhost_user: Vec<VhostUserOptions>,
    /// Memory for payload. The engine's share is not allocated for bare devices.
    pub memory: MemoryOptions,
    /// Most clients at once; more are refused.
    pub connections_max: u32,
    /// Milliseconds for which requests wait for a cache device that is gone with dirty data.
    pub cache_timeout_ms: u64,
    /// Milliseconds after which a device operation that has not ended is told of.
    pub io_timeout_ms: u64,
    /// A new file into which everything is written down that goes to the devices, see
    /// [`crate::recording`]. For tests.
    pub record_writes: Option<PathBuf>,
}

impl Default for ShardOptions {
    /// 64 clients: a virtual machine opens one or a few, `nbd-client -C` up to 16.
    fn default() -> Self {
        ShardOptions {
            listen: Vec::new(),
            ublk: Vec::new(),
            vhost_user: Vec::new(),
            memory: MemoryOptions::default(),
            connections_max: 64,
            cache_timeout_ms: forebay_engine::CACHE_TIMEOUT_MS,
            io_timeout_ms: IO_TIMEOUT_MS,
            record_writes: None,
        }
    }
}

/// A device to be served as it is, without a cache.
#[derive(Debug)]
pub struct BareExport {
    /// Name that clients ask for.
    pub(crate) name: String,
    pub(crate) device: OpenedDevice,
    pub(crate) access: Access,
    /// Names what is served, over restarts.
    pub(crate) identity: u64,
}

impl BareExport {
    /// Opens and locks a device to be served as it is.
    ///
    /// # Errors
    /// If it is no device, in use, or locked.
    pub fn open(name: &str, spec: &DeviceSpec, access: Access) -> Result<BareExport, OpenError> {
        let device = OpenedDevice::open_bare(spec, access)?;
        let identity = exports::device_identity(&spec.to_string());
        Ok(BareExport { name: name.to_owned(), device, access, identity })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &OpenedDevice {
        &self.device
    }
}

/// Why a shard cannot start, or has ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShardError {
    /// io_uring does not work.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The payload memory cannot be had.
    #[error("cannot allocate {bytes} bytes of payload memory: {source}")]
    Memory {
        /// How much.
        bytes: u64,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A share of the payload memory is too small or too large to work with.
    #[error(
        "{bytes} bytes cannot be the {share} share of the payload memory; \
         expected {least_bytes} to {most_bytes}"
    )]
    MemoryShare {
        /// Which share.
        share: &'static str,
        /// As given.
        bytes: u64,
        /// The least.
        least_bytes: u64,
        /// The most.
        most_bytes: u64,
    },
    /// The recording cannot be made.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The host state file cannot be written, so durability cannot be promised.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// Two exports have the same name, or a name or geometry that NBD cannot offer.
    #[error("export `{name}` cannot be offered: {reason}")]
    Export {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// An export cannot be a block device.
    #[error(transparent)]
    Ublk(#[from] UblkError),
    /// An export cannot be served to a virtual machine.
    #[error(transparent)]
    VhostUser(#[from] VhostUserError),
    /// Recovery found a damaged cache device.
    #[error("the cache device cannot be used: {0}")]
    Recovery(#[from] forebay_engine::error::RecoveryError),
}

/// Payload memory, allocated and pinned.
pub struct ReadyMemory {
    pool: BufferPool,
}

impl ReadyMemory {
    /// Allocates it, which takes a while: every page is touched.
    ///
    /// # Errors
    /// If there is not enough.
    pub fn allocate(options: MemoryOptions) -> Result<ReadyMemory, ShardError> {
        let mut pool = BufferPool::new(options)?;
        pool.populate();
        Ok(ReadyMemory { pool })
    }
}

/// The predecessor's socket at this address, or a new one.
fn claim(address: &ListenAddress, handed: &mut Vec<Listener>) -> Result<Listener, ListenError> {
    match handed.iter().position(|listener| listener.is_at(address)) {
        Some(place) => Ok(handed.swap_remove(place)),
        None => Listener::bind(address),
    }
}

/// A shard that is ready to run.
pub struct Shard {
    options: ShardOptions,
    set: Option<OpenedSet>,
    bare: Vec<BareExport>,
    listeners: Vec<Listener>,
    /// One for each of [`ShardOptions::vhost_user`].
    vhost_user_listeners: Vec<Listener>,
    recorder: Option<Box<Recorder>>,
    memory: Option<ReadyMemory>,
    /// Sockets of a predecessor that are not served; none if there is no predecessor.
    unclaimed: Option<Vec<Listener>>,
    wake_up: Arc<WakeUp>,
    messages: Receiver<Message>,
    handle: ShardHandle,
}

impl Shard {
    /// Binds the addresses. The shard can be moved to the thread that shall run it.
    ///
    /// # Errors
    /// If an address cannot be listened on, or the recording cannot be made.
    pub fn new(
        options: ShardOptions,
        set: Option<OpenedSet>,
        bare: Vec<BareExport>,
    ) -> Result<Shard, ShardError> {
        Shard::of(options, set, bare, &mut HandedListeners::default())
    }

    /// A shard that takes over from another process: it reads and writes nothing until
    /// [`ShardHandle::take_over_wait`]. Sockets of the predecessor that `options` names are used,
    /// others are closed when it is gone; what else is to be listened on is bound now. `memory` was
    /// allocated before, so that nobody waits for that.
    ///
    /// # Errors
    /// As [`Shard::new`].
    pub fn successor(
        options: ShardOptions,
        set: OpenedSet,
        mut listeners: HandedListeners,
        memory: ReadyMemory,
    ) -> Result<Shard, ShardError> {
        let mut shard = Shard::of(options, Some(set), Vec::new(), &mut listeners)?;
        let HandedListeners { nbd, vhost_user } = listeners;
        shard.unclaimed = Some(nbd.into_iter().chain(vhost_user).collect());
        shard.memory = Some(memory);
        Ok(shard)
    }

    fn of(
        options: ShardOptions,
        set: Option<OpenedSet>,
        bare: Vec<BareExport>,
        handed: &mut HandedListeners,
    ) -> Result<Shard, ShardError> {
        vhost_user::check_paths(&options.vhost_user)?;
        let wake_up = Arc::new(WakeUp::new()?);
        let (handle, messages) = ShardHandle::new(Arc::clone(&wake_up));
        let listeners = options.listen.iter().map(|address| claim(address, &mut handed.nbd));
        let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
        let sockets = options.vhost_user.iter().map(|option| option.path.clone());
        let vhost_user_listeners = sockets
            .map(|path| claim(&ListenAddress::Unix(path), &mut handed.vhost_user))
            .collect::<Result<Vec<_>, _>>()?;
        let recorder = options.record_writes.as_deref().map(Recorder::create).transpose()?;
        let recorder = recorder.map(Box::new);
        Ok(Shard {
            options,
            set,
            bare,
            listeners,
            vhost_user_listeners,
            recorder,
            memory: None,
            unclaimed: None,
            wake_up,
            messages,
            handle,
        })
    }

    /// A handle for the admin side.
    #[must_use]
    pub fn handle(&self) -> ShardHandle {
        self.handle.clone()
    }

    /// Where clients connect, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> Vec<ListenAddress> {
        self.listeners.iter().map(|listener| listener.address().clone()).collect()
    }
}
