//! Who continues when something has ended. Flows never call each other back: what ends puts a wake
//! into a queue, and the engine works the queue off before it returns to its host.

use crate::slab::Key;
use crate::units::VolumeSlot;

/// A flow that waits for a record, a flush or a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// Nobody.
    Nobody,
    /// A unit of a client write.
    Unit(Key),
    /// A client request that waits for flushes.
    Operation(Key),
    /// A run of the writeback window that got its lock.
    WritebackRun(Key),
    /// The writeback window.
    Writeback,
    /// A repair that got its lock.
    Repair(Key),
    /// Reclaim.
    Reclaim,
    /// The checkpoint under way.
    Checkpoint,
    /// The idle mark.
    IdleMark,
    /// The writer of the superblock.
    Superblock,
    /// Recovery.
    Recovery,
    /// A command of the whole set.
    SetCommand,
    /// The last checkpoint of a stop.
    Stop,
    /// The checkpoint of an engine that another one takes over from.
    Takeover,
    /// The command of a volume.
    Command(VolumeSlot),
    /// A volume that is given up, for the table without it. Not its command: that is woken by the
    /// last of its requests as well.
    Discard(VolumeSlot),
}

/// How it ended. Failure of the log is final for the operation that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Well,
    Failed,
}

/// A flow to continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wake {
    pub(crate) waiter: Waiter,
    pub(crate) ended: Ended,
}
