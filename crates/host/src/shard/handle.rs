//! The admin side's grip on a running shard: messages through a channel, answers by callback.
//!
//! A handle never blocks on the shard except in the methods named `*_wait`. Each question gets
//! exactly one answer; if the shard ends first, the answer is [`ShardGone`]. Callbacks run on the
//! shard's thread, so they only hand the answer on (a channel, a oneshot of an async runtime).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use forebay_engine::error::RecoveryError;
use forebay_engine::event::{CommandError, CommandId, DirtyFate, PinChange};
use forebay_engine::explain::Explanation;
use forebay_engine::format::superblock::PINNED_RANGES_MAX;
use forebay_engine::options::{CacheMode, SetSettings, VolumeSettings, WritebackOrder};
use forebay_engine::request::RequestError;
use forebay_engine::status::BlockState;
use thiserror::Error;

use super::comeback::Returned;
use super::resize::Measured;
use super::status::ShardStatus;
use super::takeover::Commit;
use crate::device::OpenedDevice;
use crate::device_spec::DeviceSpec;
use crate::frontend::ClientSize;
use crate::frontend::ublk::UblkReport;
use crate::probe::OpenError;
use crate::ring::WakeUp;
use crate::takeover::{HandedOver, TakeoverError, TakeoverTicket};

/// The shard ended before it answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the server has stopped")]
pub struct ShardGone;

/// What an operator may ask of a running shard. Volumes are named by their export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminCommand {
    /// Attach an origin as a new volume.
    Attach {
        /// Name of the volume and of its export.
        name: String,
        /// The origin; its path is made absolute.
        origin: DeviceSpec,
        /// Cache mode.
        mode: CacheMode,
        /// Order of writeback.
        order: WritebackOrder,
        /// 512 or 4096.
        logical_block_bytes: u32,
        /// Settings to start with.
        settings: Box<VolumeSettings>,
    },
    /// Write everything back, or throw it away, and remove the volume. Refused while clients are
    /// connected.
    Detach {
        /// The volume.
        volume: String,
        /// What becomes of its dirty data.
        dirty: DirtyFate,
    },
    /// Change the cache mode.
    SetMode {
        /// The volume.
        volume: String,
        /// The new mode.
        mode: CacheMode,
    },
    /// Change the order of writeback; writes everything back first.
    SetOrder {
        /// The volume.
        volume: String,
        /// The new order.
        order: WritebackOrder,
    },
    /// Write everything back and stay clean.
    Drain {
        /// The volume.
        volume: String,
    },
    /// Make a volume as long as its origin is now.
    Resize {
        /// The volume.
        volume: String,
    },
    /// Forget all clean copies.
    Invalidate {
        /// The volume.
        volume: String,
    },
    /// Change settings of a volume.
    SetVolume {
        /// The volume.
        volume: String,
        /// All settings, also the unchanged ones.
        settings: VolumeSettings,
    },
    /// Pin blocks of a volume, or unpin them.
    Pin {
        /// The volume.
        volume: String,
        /// The blocks.
        blocks: Range<u64>,
        /// Which of the two.
        change: PinChange,
    },
    /// Change settings of the set.
    SetCacheSet {
        /// All settings, also the unchanged ones.
        settings: SetSettings,
    },
    /// Finish what is in flight and end the shard. Dirty data stays on the cache device.
    Stop,
}

/// Why a command was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The shard ended first.
    #[error(transparent)]
    ShardGone(#[from] ShardGone),
    /// The shard serves bare devices only.
    #[error("this server has no cache set")]
    NoCacheSet,
    /// No export has this name.
    #[error("no volume is named `{name}`")]
    NoSuchVolume {
        /// As given.
        name: String,
    },
    /// The volume has no such byte.
    #[error("volume `{volume}` ends at byte {size_bytes}: there is no byte {offset_bytes}")]
    BehindEnd {
        /// The volume.
        volume: String,
        /// Its size.
        size_bytes: u64,
        /// As given.
        offset_bytes: u64,
    },
    /// Clients use the volume.
    #[error("volume `{volume}` is in use by {}; disconnect them first", peers.join(", "))]
    ClientsConnected {
        /// The volume.
        volume: String,
        /// Who is connected.
        peers: Vec<String>,
    },
    /// The origin cannot be opened.
    #[error(transparent)]
    Origin(#[from] OpenError),
    /// The origin cannot be used as asked.
    #[error(transparent)]
    UnsuitableOrigin(#[from] crate::set::OriginError),
    /// The size of an origin cannot be looked at.
    #[error("the size of the origin of volume `{volume}` cannot be looked at: {source}")]
    OriginSize {
        /// The volume.
        volume: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A volume would have to become smaller.
    #[error(
        "{device} has {found_bytes} bytes, and volume `{volume}` {size_bytes}: a volume cannot \
         become smaller. It goes on with its size, and fails where the origin ends; make the \
         origin as long as that again"
    )]
    OriginSmaller {
        /// The volume.
        volume: String,
        /// Its origin.
        device: String,
        /// Size of the origin.
        found_bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// The table is full, or name or path do not fit.
    #[error("cannot attach `{name}`: {reason}")]
    BadVolume {
        /// Name of the volume.
        name: String,
        /// Why.
        reason: forebay_engine::format::superblock::AddVolumeError,
    },
    /// Blocks could not be brought into the cache.
    #[error("blocks could not be read from the origin ({error:?})")]
    Fetch {
        /// Why.
        error: RequestError,
    },
    /// The engine refused or failed.
    #[error("{}", command_error_text(*.0))]
    Engine(CommandError),
}

fn command_error_text(error: CommandError) -> String {
    let text = match error {
        CommandError::NoSuchVolume => "the volume does not exist or its origin is not open",
        CommandError::Busy => "another command of this volume is under way",
        CommandError::TableFull => "the volume table is full",
        CommandError::NameTaken => "the name is taken",
        CommandError::OriginFailed => {
            "the origin failed; what could not be written stays dirty in the cache, and a new \
             volume is not attached"
        }
        CommandError::CacheFailed => "the cache device failed",
        CommandError::Poisoned => {
            "dirty blocks were lost on the cache device; write or discard them first \
             (they read as errors)"
        }
        CommandError::Unreadable => {
            "dirty data cannot be read from the cache device; it stays dirty: see the log of the \
             device, try again, or overwrite these blocks"
        }
        CommandError::Dirty => "the volume has dirty data; drain it first",
        CommandError::Cancelled => "cancelled",
        CommandError::Invalid => {
            "a setting or a size is out of range, or a range outside of the volume"
        }
        CommandError::WouldShrink => "a volume cannot become smaller: its end may be in the cache",
        CommandError::KeepsTooMuch(error) => return error.to_string(),
        CommandError::TooManyRanges => {
            return format!(
                "the cache device has room for {PINNED_RANGES_MAX} pinned ranges of all volumes, \
                 and more would be needed"
            );
        }
    };
    text.to_owned()
}

pub(super) type BlockAnswer = Answer<BlockReport, AdminError>;

/// What is known of a block, and where its segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockReport {
    /// What the engine says.
    pub explanation: Explanation,
    /// Byte of the cache device at which the segment of the copy begins; zero without a copy.
    pub segment_offset_bytes: u64,
}

/// Names a command, to cancel it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub(crate) CommandId);

/// What a command did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandDone {
    /// Bytes of dirty data that it threw away.
    pub discarded_bytes: u64,
    /// What became of a size, if it was about one.
    pub resized: Option<Resized>,
}

/// A volume is as long as its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resized {
    /// Size before, in bytes.
    pub old_bytes: u64,
    /// Size now, in bytes: no less.
    pub new_bytes: u64,
    /// Clients that were there, and when they see it.
    pub clients: Vec<ClientSize>,
}

/// How a command ended.
pub type CommandOutcome = Result<CommandDone, AdminError>;

/// A run of blocks: first block, number of blocks, state.
pub type BlockRun = (u64, u64, BlockState);

type Callback<T, E> = Box<dyn FnOnce(Result<T, E>) + Send>;

/// A promise to call back exactly once.
pub(crate) struct Answer<T, E: From<ShardGone>> {
    callback: Option<Callback<T, E>>,
}

impl<T, E: From<ShardGone>> Answer<T, E> {
    pub(super) fn new(callback: impl FnOnce(Result<T, E>) + Send + 'static) -> Self {
        Answer { callback: Some(Box::new(callback)) }
    }

    /// Delivers the answer.
    pub(crate) fn send(mut self, result: Result<T, E>) {
        let callback = self.callback.take().expect("an answer is sent once");
        callback(result);
    }
}

impl<T, E: From<ShardGone>> Drop for Answer<T, E> {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            callback(Err(ShardGone.into()));
        }
    }
}

/// Why a set is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum NotServing {
    /// The shard ended first.
    #[error(transparent)]
    ShardGone(#[from] ShardGone),
    /// The cache device cannot be used.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
}

/// A command as the shard sees it: what takes long or may block was done by the sender.
pub(crate) enum ShardCommand {
    /// The origin is open, probed and locked.
    Attach {
        name: String,
        device: Box<OpenedDevice>,
        mode: CacheMode,
        order: WritebackOrder,
        logical_block_bytes: u32,
        settings: Box<VolumeSettings>,
    },
    /// All others.
    Plain(AdminCommand),
}

/// Where the outcome of a command goes.
pub(super) type CommandAnswer = Answer<CommandDone, AdminError>;

/// What travels to the shard.
pub(crate) enum Message {
    Status(Answer<ShardStatus, ShardGone>),
    Serving(Answer<(), NotServing>),
    Command {
        id: CommandId,
        command: Box<ShardCommand>,
        answer: CommandAnswer,
    },
    Cancel(CommandId),
    /// The size of an origin was looked at.
    Measured(Box<Measured>),
    /// The cache device that was gone is found.
    Returned(Box<Returned>),
    /// Another process is to go on with what is served.
    BeginTakeover(Answer<HandedOver, TakeoverError>),
    /// It is ready.
    CommitTakeover(TakeoverTicket, Commit),
    /// It is not coming.
    CancelTakeover(TakeoverTicket),
    /// Somebody waits until a shard that takes over has read everything.
    WhenRead(Answer<(), NotServing>),
    /// The predecessor of this shard is gone.
    TakeOver(Answer<(), ShardGone>),
    /// A ublk device is further.
    Ublk(Box<UblkReport>),
    ResetCounters(Answer<(), ShardGone>),
    BlockMap {
        volume: String,
        blocks: Range<u64>,
        answer: Answer<Vec<BlockRun>, AdminError>,
    },
    Explain {
        id: CommandId,
        volume: String,
        offset_bytes: u64,
        answer: BlockAnswer,
    },
    Fetch {
        volume: String,
        blocks: Range<u64>,
        answer: Answer<(), AdminError>,
    },
}

/// The admin side's grip on a running shard.
#[derive(Clone)]
pub struct ShardHandle {
    sender: Sender<Message>,
    wake_up: Arc<WakeUp>,
    next_command: Arc<AtomicU64>,
}

impl ShardHandle {
    /// A handle and the shard's end of it.
    pub(crate) fn new(wake_up: Arc<WakeUp>) -> (ShardHandle, Receiver<Message>) {
        let (sender, receiver) = mpsc::channel();
        (ShardHandle { sender, wake_up, next_command: Arc::new(AtomicU64::new(1)) }, receiver)
    }

    pub(crate) fn send(&self, message: Message) {
        // If the shard is gone, the message comes back and its answer says so when it is dropped.
        if self.sender.send(message).is_ok() {
            self.wake_up.wake();
        }
    }

    /// Asks for a snapshot.
    pub fn status(&self, answer: impl FnOnce(Result<ShardStatus, ShardGone>) + Send + 'static) {
        self.send(Message::Status(Answer::new(answer)));
    }

    /// Asks to be told when recovery is done, or why it failed. At once for bare devices.
    pub fn serving(&self, answer: impl FnOnce(Result<(), NotServing>) + Send + 'static) {
        self.send(Message::Serving(Answer::new(answer)));
    }

    /// Starts a command. An attach opens the origin on the calling thread, which may block for as
    /// long as the device takes.
    pub fn command(
        &self,
        command: AdminCommand,
        answer: impl FnOnce(CommandOutcome) + Send + 'static,
    ) -> Ticket {
        let id = CommandId(self.next_command.fetch_add(1, Ordering::Relaxed));
        let answer = Answer::new(answer);
        let command = match command {
            AdminCommand::Attach { name, origin, mode, order, logical_block_bytes, settings } => {
                match OpenedDevice::open_origin(&origin) {
                    Ok(device) => ShardCommand::Attach {
                        name,
                        device: Box::new(device),
                        mode,
                        order,
                        logical_block_bytes,
                        settings,
                    },
                    Err(error) => {
                        answer.send(Err(error.into()));
                        return Ticket(id);
                    }
                }
            }
            plain => ShardCommand::Plain(plain),
        };
        self.send(Message::Command { id, command: Box::new(command), answer });
        Ticket(id)
    }

    /// Gives a command up. It ends with [`CommandError::Cancelled`], unless it ended before.
    pub fn cancel(&self, ticket: Ticket) {
        self.send(Message::Cancel(ticket.0));
    }

    /// Sets all counters and latencies to zero.
    pub fn reset_counters(&self, answer: impl FnOnce(Result<(), ShardGone>) + Send + 'static) {
        self.send(Message::ResetCounters(Answer::new(answer)));
    }

    /// Asks which blocks of a volume are cached: runs that cover `blocks`, clipped to the volume.
    pub fn block_map(
        &self,
        volume: &str,
        blocks: Range<u64>,
        answer: impl FnOnce(Result<Vec<BlockRun>, AdminError>) + Send + 'static,
    ) {
        let volume = volume.to_owned();
        self.send(Message::BlockMap { volume, blocks, answer: Answer::new(answer) });
    }

    /// Asks why the block of a volume with this byte is in the cache or not.
    pub fn explain(
        &self,
        volume: &str,
        offset_bytes: u64,
        answer: impl FnOnce(Result<BlockReport, AdminError>) + Send + 'static,
    ) {
        let volume = volume.to_owned();
        let id = CommandId(self.next_command.fetch_add(1, Ordering::Relaxed));
        self.send(Message::Explain { id, volume, offset_bytes, answer: Answer::new(answer) });
    }

    /// Brings blocks of a volume into the cache, as a client's prefetch does: 4 MiB from the first
    /// on at most. What finds no room is left out.
    pub fn fetch(
        &self,
        volume: &str,
        blocks: Range<u64>,
        answer: impl FnOnce(Result<(), AdminError>) + Send + 'static,
    ) {
        let volume = volume.to_owned();
        self.send(Message::Fetch { volume, blocks, answer: Answer::new(answer) });
    }

    /// [`ShardHandle::status`], waiting for the answer.
    ///
    /// # Errors
    /// If the shard ended.
    pub fn status_wait(&self) -> Result<ShardStatus, ShardGone> {
        wait(|answer| self.status(answer))
    }

    /// [`ShardHandle::serving`], waiting for the answer.
    ///
    /// # Errors
    /// If recovery failed or the shard ended.
    pub fn serving_wait(&self) -> Result<(), NotServing> {
        wait(|answer| self.serving(answer))
    }

    /// [`ShardHandle::command`], waiting for the answer.
    ///
    /// # Errors
    /// If the command failed.
    pub fn command_wait(&self, command: AdminCommand) -> CommandOutcome {
        wait(|answer| {
            self.command(command, answer);
        })
    }

    /// [`ShardHandle::block_map`], waiting for the answer.
    ///
    /// # Errors
    /// If there is no such volume or the shard ended.
    pub fn block_map_wait(
        &self,
        volume: &str,
        blocks: Range<u64>,
    ) -> Result<Vec<BlockRun>, AdminError> {
        wait(|answer| self.block_map(volume, blocks, answer))
    }
}

pub(super) fn wait<T, E>(ask: impl FnOnce(Callback<T, E>)) -> Result<T, E>
where
    T: Send + 'static,
    E: From<ShardGone> + Send + 'static,
{
    let (sender, receiver) = mpsc::sync_channel(1);
    ask(Box::new(move |result| {
        // The receiver waits below, so it is there.
        let _ = sender.send(result);
    }));
    receiver.recv().unwrap_or_else(|_| Err(ShardGone.into()))
}
