//! What the engine tells its host beside I/O and replies, and what the host may command.

use crate::explain::Explanation;
use crate::format::superblock::KeepsTooMuch;
use crate::options::{CacheMode, OriginFacts, SetSettings, VolumeSettings, WritebackOrder};
use crate::units::{OriginBlock, OriginExtent, VolumeSlot};

/// Names a command until its [`Event::CommandComplete`]. Chosen by the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CommandId(pub u64);

/// What the host state file says durably now (rule 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SavedMark {
    /// Dirty data may exist only on the cache device; asked for by [`Event::DirtyBegins`].
    DirtyPossible,
    /// The volume goes on without its cache; asked for by [`Event::CacheFailed`].
    ServedWithoutCache,
}

/// What becomes of the dirty data of a volume that is detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirtyFate {
    /// The origin gets it first.
    WrittenBack,
    /// It is thrown away. Nothing waits for the origin, and another command of the volume that
    /// writes back ends with [`CommandError::Cancelled`].
    Discarded,
}

/// What an operator may ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Attach an origin under the next free slot. Its content stays as it is.
    Attach {
        /// Name, origin path and geometry, as they go into the volume table.
        volume: crate::format::superblock::NewVolume,
        /// The origin.
        facts: OriginFacts,
    },
    /// Write everything back, void the volume's generation, remove it from the table. Or remove it
    /// as it is, whatever its state and that of its origin.
    Detach {
        /// The volume.
        volume: VolumeSlot,
        /// What becomes of its dirty data.
        dirty: DirtyFate,
    },
    /// Change the cache mode; leaving a mode that keeps dirty data drains first.
    SetMode {
        /// The volume.
        volume: VolumeSlot,
        /// The new mode.
        mode: CacheMode,
    },
    /// Write everything back, stay clean: the volume goes on in writethrough. Complete when the
    /// clean state is durable.
    Drain {
        /// The volume.
        volume: VolumeSlot,
    },
    /// Forget all clean copies of a volume, without writing back. Refused while dirty data exists.
    Invalidate {
        /// The volume.
        volume: VolumeSlot,
    },
    /// Change the order of writeback; writes everything back first, in the old order.
    SetOrder {
        /// Slot.
        volume: VolumeSlot,
        /// The new order of writeback.
        order: WritebackOrder,
    },
    /// Change settings of a volume.
    SetVolume {
        /// The volume.
        volume: VolumeSlot,
        /// All settings, also the unchanged ones.
        settings: VolumeSettings,
    },
    /// Pin blocks of a volume, so that copies of them stay in the cache, or unpin them.
    Pin {
        /// The blocks, within the volume.
        extent: OriginExtent,
        /// Which of the two.
        change: PinChange,
    },
    /// Make a volume longer, since its origin is. Nothing is written to the origin for it. Ends
    /// well when the new size is durable; from then on requests up to the new end are served.
    Grow {
        /// The volume.
        volume: VolumeSlot,
        /// The new size: a multiple of 512, and no more than the origin has. The old size is no
        /// change and no error; less is [`CommandError::WouldShrink`].
        size_bytes: u64,
    },
    /// Change settings of the set.
    SetCacheSet {
        /// All settings, also the unchanged ones.
        settings: SetSettings,
    },
    /// Tell why a block is in the cache or not: [`Event::Explained`].
    Explain {
        /// The volume.
        volume: VolumeSlot,
        /// Its block.
        block: OriginBlock,
    },
    /// Finish what is in flight, checkpoint, and serve no more. New requests fail from now on.
    Stop,
}

/// What becomes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinChange {
    /// Its blocks stay once they are cached.
    Pin,
    /// They are as all others.
    Unpin,
}

/// Why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandError {
    /// The volume does not exist or its origin is not open.
    NoSuchVolume,
    /// Another command of the same volume is under way.
    Busy,
    /// The volume table is full.
    TableFull,
    /// The name is taken.
    NameTaken,
    /// Dirty data exists that could not be written to the origin; it stays dirty. Or the origin of
    /// a new volume could not be flushed; it is not attached.
    OriginFailed,
    /// The cache device failed.
    CacheFailed,
    /// Dirty blocks were lost on the cache device: they are errors until they are written or
    /// discarded.
    Poisoned,
    /// Dirty data exists that the cache device does not return; it stays dirty.
    Unreadable,
    /// Dirty data exists, which this command does not touch.
    Dirty,
    /// Cancelled by [`crate::Engine::cancel_command`].
    Cancelled,
    /// A setting or a size is out of range, or blocks lie outside of the volume.
    Invalid,
    /// A volume cannot become smaller: its end may be in the cache only.
    WouldShrink,
    /// More would have to be kept than this cache can hold.
    KeepsTooMuch(KeepsTooMuch),
    /// The table of pinned ranges is full; there are
    /// [`crate::format::superblock::PINNED_RANGES_MAX`].
    TooManyRanges,
}

/// Something the host must know or do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Recovery is done; requests are served.
    Serving,
    /// Everything is read, and nothing written: [`crate::Engine::take_over`] may come.
    ReadyToTakeOver,
    /// The cache device cannot be used; nothing was written.
    RecoveryFailed(crate::error::RecoveryError),
    /// A command ended.
    CommandComplete {
        /// As given.
        command: CommandId,
        /// How it ended; the slot for an attach.
        result: Result<Option<VolumeSlot>, CommandError>,
    },
    /// What is known of a block. Comes before the [`Event::CommandComplete`] of the question.
    Explained {
        /// As given.
        command: CommandId,
        /// What is known of it.
        explanation: Explanation,
    },
    /// The host state file must record that dirty data may exist only on the cache device. The
    /// engine answers no write of the volume before [`crate::Engine::handle_host_state_saved`].
    DirtyBegins {
        /// The volume.
        volume: VolumeSlot,
    },
    /// No dirty data exists any more and the cache device knows it; the mark may be removed.
    DirtyEnded {
        /// The volume.
        volume: VolumeSlot,
    },
    /// The cache device came back without writes that had been answered and not flushed. Their
    /// blocks are errors until they are written again, and flushes of the volume fail. Comes before
    /// [`Event::Serving`].
    WritesLost {
        /// The volume.
        volume: VolumeSlot,
        /// First block and number of blocks.
        extents: alloc::vec::Vec<(OriginBlock, u64)>,
    },
    /// An origin was written while nobody served it. Without dirty data its clean copies were
    /// dropped; with dirty data the volume is not served.
    OriginChanged {
        /// The volume.
        volume: VolumeSlot,
        /// Whether dirty data exists.
        has_dirty: bool,
    },
    /// A volume was detached without its dirty data: durably, the cache has none of it any more.
    /// Comes before the [`Event::CommandComplete`] of that detach.
    DirtyDiscarded {
        /// The volume.
        volume: VolumeSlot,
        /// Blocks that were dirty.
        block_count: u64,
    },
    /// The engine has done with the origin of a volume whose detach was answered before that, since
    /// operations of the origin were under way and did not end.
    OriginReleased {
        /// The volume.
        volume: VolumeSlot,
    },
    /// The cache device has failed for good.
    CacheFailed {
        /// Volumes that go on without it, from their origins, once the host state file says so and
        /// [`crate::Engine::handle_host_state_saved`] was called for them. Those with dirty data
        /// are not among them, since their origins are older, nor those that have no origin, nor
        /// one that is being attached.
        clean_volumes: alloc::vec::Vec<VolumeSlot>,
    },
    /// The cache device failed repeatedly: nothing new is cached from now on, dirty data is written
    /// back.
    CacheDegraded,
    /// The volume table changed (attach, detach, mode, settings) and is durable.
    TableChanged,
}
