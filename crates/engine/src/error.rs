//! Errors of parsing what comes from a device. Each says where, what was expected and what was
//! found.

use thiserror::Error;

use crate::format::SetId;
use crate::units::SequenceNumber;

/// Part of the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Place {
    /// Superblock region at the start of the device.
    Superblock,
    /// Its copy at the end.
    SuperblockCopy,
    /// Entry of the volume table.
    VolumeTable {
        /// Slot.
        slot: u16,
    },
    /// Checkpoint area A or B.
    Checkpoint {
        /// 0 or 1.
        area: u8,
    },
    /// Header of a record.
    Record {
        /// Segment.
        segment: u32,
        /// Block within the segment.
        block: u32,
    },
    /// Summary of a segment.
    Summary {
        /// Segment.
        segment: u32,
    },
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Place::Superblock => write!(f, "superblock"),
            Place::SuperblockCopy => write!(f, "superblock copy"),
            Place::VolumeTable { slot } => write!(f, "volume table slot {slot}"),
            Place::Checkpoint { area } => {
                write!(f, "checkpoint {}", if *area == 0 { 'A' } else { 'B' })
            }
            Place::Record { segment, block } => {
                write!(f, "record at segment {segment} block {block}")
            }
            Place::Summary { segment } => write!(f, "summary of segment {segment}"),
        }
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{place}: {field} is {found:#x}, expected {expected:#x}")]
pub struct Corrupt {
    /// Where.
    pub place: Place,
    /// Which field.
    pub field: &'static str,
    /// What it should be (or the bound that it breaks).
    pub expected: u64,
    /// What it is.
    pub found: u64,
}

impl Corrupt {
    /// `Ok` if `found` equals `expected`.
    pub(crate) fn unless_equal(
        place: Place,
        field: &'static str,
        expected: u64,
        found: u64,
    ) -> Result<(), Corrupt> {
        if expected == found { Ok(()) } else { Err(Corrupt { place, field, expected, found }) }
    }

    /// `Ok` if the bytes are all zero; else the first that is not is named.
    pub(crate) fn unless_zero(
        place: Place,
        field: &'static str,
        bytes: &[u8],
    ) -> Result<(), Corrupt> {
        let found = bytes.iter().find(|byte| **byte != 0).copied().unwrap_or(0);
        Corrupt::unless_equal(place, field, 0, found.into())
    }

    /// `Ok` if a structure is of the set `expected`; else the half that differs is named.
    pub(crate) fn unless_same_set(
        place: Place,
        expected: &SetId,
        found: &SetId,
    ) -> Result<(), Corrupt> {
        for (expected, found) in expected.chunks_exact(8).zip(found.chunks_exact(8)) {
            let number = |half: &[u8]| u64::from_be_bytes(half.try_into().expect("8 bytes"));
            Corrupt::unless_equal(place, "set identity", number(expected), number(found))?;
        }
        Ok(())
    }

    /// `Ok` if `found` is at least `limit`.
    pub(crate) fn unless_at_least(
        place: Place,
        field: &'static str,
        limit: u64,
        found: u64,
    ) -> Result<(), Corrupt> {
        if found >= limit { Ok(()) } else { Err(Corrupt { place, field, expected: limit, found }) }
    }

    /// `Ok` if `found` is at most `limit`.
    pub(crate) fn unless_at_most(
        place: Place,
        field: &'static str,
        limit: u64,
        found: u64,
    ) -> Result<(), Corrupt> {
        if found <= limit { Ok(()) } else { Err(Corrupt { place, field, expected: limit, found }) }
    }
}

/// Why a cache device cannot be served. Nothing was written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// Neither checkpoint is valid.
    #[error("neither checkpoint is valid ({0})")]
    NoCheckpoint(Corrupt),
    /// A record that a checkpoint vouches for is damaged.
    #[error("the log is damaged: {0}")]
    Log(Corrupt),
    /// The device came back, but not as it went: somebody used it in between.
    #[error("the cache device is not as it was when it went: {0}")]
    Returned(Corrupt),
    /// A record was durable and is gone.
    #[error("record {missing:?} is missing, though all up to {durable_through:?} were durable")]
    RecordMissing {
        /// The first one missing.
        missing: SequenceNumber,
        /// What the log claims.
        durable_through: SequenceNumber,
    },
    /// The cache device fails to read or write.
    #[error("the cache device failed during recovery")]
    CacheIo,
}
