//! Client requests and their replies.

use crate::payload::BufferId;
use crate::units::VolumeSlot;

/// Names a request from [`crate::Engine::handle_request`] to its reply. Chosen by the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub u64);

/// Whether a write must be durable before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Answered when every device it must reach has completed it.
    Completed,
    /// Answered when it is on stable storage (FUA).
    ForcedUnitAccess,
}

/// What the client wants.
///
/// The buffer of a read or write covers the whole blocks around the range: byte `i` of the buffer
/// is byte `first_block * 4096 + i` of the volume, so the range starts `offset_bytes % 4096` bytes
/// into it. The engine may use the rest of the buffer as it likes. It takes references of its own
/// for as long as it needs the content; the host keeps its reference until the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Fill the buffer.
    Read {
        /// See above.
        buffer: BufferId,
    },
    /// Write the buffer. The host leaves the content alone until the reply.
    Write {
        /// See above.
        buffer: BufferId,
        /// FUA or not.
        durability: Durability,
    },
    /// Make durable what was answered before this request.
    Flush,
    /// The content of the range is undefined from now on.
    Discard {
        /// FUA or not.
        durability: Durability,
    },
    /// The range reads as zeroes from now on.
    WriteZeroes {
        /// FUA or not.
        durability: Durability,
        /// Whether the origin may deallocate the range.
        may_unmap: bool,
    },
    /// Bring the range into the cache and deliver nothing.
    Prefetch,
}

/// A validated request: within the volume, offset and length multiples of the volume's logical
/// block (512 at least), length not zero except for a flush, at most 32 MiB for reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Handed back with the reply.
    pub id: RequestId,
    /// The volume.
    pub volume: VolumeSlot,
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub length_bytes: u64,
    /// What to do.
    pub kind: RequestKind,
}

/// Why a request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// A device failed and no good copy of the data exists (EIO).
    Io,
    /// A device ran out of space behind the volume (ENOSPC).
    NoSpace,
    /// The volume is stopping or detached (ESHUTDOWN).
    Shutdown,
    /// The volume cannot be written (EPERM).
    ReadOnly,
}

/// Where the blocks of a read came from, for latency statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// All from the cache device (or known to be zero).
    Cache,
    /// At least one from the origin.
    Origin,
    /// Not a read.
    NoRead,
}

/// The answer to a request. Each request gets exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// As given in the request.
    pub id: RequestId,
    /// How it ended.
    pub result: Result<(), RequestError>,
    /// Where a read was served from.
    pub served: Served,
}
