//! Device operations that the engine asks for, and how they end.

use alloc::vec::Vec;

use crate::payload::BufferRange;
use crate::units::VolumeSlot;

/// Names one device operation from [`crate::Engine::poll_io`] to its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IoId(pub u64);

/// A device of the cache set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Device {
    /// The fast device.
    Cache,
    /// The slow device of a volume.
    Origin(VolumeSlot),
}

/// Where the bytes of a transfer are, in order. Most transfers have one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Slices {
    /// One piece; costs no allocation.
    One(BufferRange),
    /// Several pieces.
    Many(Vec<BufferRange>),
}

impl Slices {
    /// The pieces in order.
    #[must_use]
    pub fn as_slice(&self) -> &[BufferRange] {
        match self {
            Slices::One(range) => core::slice::from_ref(range),
            Slices::Many(ranges) => ranges,
        }
    }

    /// Sum of the lengths, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.as_slice().iter().map(|range| u64::from(range.length)).sum()
    }
}

/// What to do. Offsets and lengths are bytes and multiples of 4096, but for the tail of an origin
/// whose size is no multiple of 4096 and for the sectors of a write in passthrough mode: these are
/// multiples of 512.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoKind {
    /// Fill the slices from the device.
    Read {
        /// Byte offset on the device.
        offset_bytes: u64,
        /// Destination.
        slices: Slices,
    },
    /// Write the slices to the device. No order among writes is assumed.
    Write {
        /// Byte offset on the device.
        offset_bytes: u64,
        /// Source.
        slices: Slices,
    },
    /// Make everything durable that completed before this was submitted.
    Flush,
    /// The content of the range is no longer needed (TRIM). A device without it answers success.
    Discard {
        /// Byte offset on the device.
        offset_bytes: u64,
        /// Number of bytes.
        length_bytes: u64,
    },
    /// The range reads as zeroes from now on. The host writes zeroes where the device cannot.
    WriteZeroes {
        /// Byte offset on the device.
        offset_bytes: u64,
        /// Number of bytes.
        length_bytes: u64,
        /// Whether the device may deallocate the range.
        may_unmap: bool,
    },
}

impl IoKind {
    /// First byte and number of bytes that it is about; nothing of a flush.
    #[must_use]
    pub fn extent_bytes(&self) -> (u64, u64) {
        match self {
            IoKind::Read { offset_bytes, slices } | IoKind::Write { offset_bytes, slices } => {
                (*offset_bytes, slices.total_bytes())
            }
            IoKind::Flush => (0, 0),
            IoKind::Discard { offset_bytes, length_bytes }
            | IoKind::WriteZeroes { offset_bytes, length_bytes, .. } => {
                (*offset_bytes, *length_bytes)
            }
        }
    }
}

/// A device operation. The host may run all operations it has been given at once, in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Io {
    /// To be handed back with the result.
    pub id: IoId,
    /// The device.
    pub device: Device,
    /// The operation.
    pub kind: IoKind,
}

/// Why a device operation failed. Short transfers are the host's to continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The device cannot do it for this range (ENODATA, EILSEQ, EREMOTEIO, ...).
    Media,
    /// The device does not say why, or the way to it is at fault (EIO, ENOLINK, ...): the same may
    /// end well some other time.
    Transient,
    /// No space is left behind the device: a file on a full file system, a thin volume.
    NoSpace,
    /// The device is gone (ENODEV, ENXIO, a closed connection).
    Gone,
    /// No answer within the host's limit.
    TimedOut,
}

/// How a device operation ended.
pub type IoResult = Result<(), IoError>;
