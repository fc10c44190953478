//! Quantities that must not be swapped, and the few sizes everything else is built from.

use core::fmt;

/// Bytes in a block, the unit of mapping, checksums and cache allocation.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes in a sector, the smallest unit a client may address.
pub const SECTOR_BYTES: usize = 512;
/// Most blocks in one log entry, one extent and one device transfer (1 MiB).
pub const EXTENT_BLOCKS_MAX: u32 = 256;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

quantity!(
    /// Position of a block in a volume, in blocks from its start. At most 2^40 - 1 (4 PiB).
    OriginBlock(u64)
);
quantity!(
    /// Position of a block on the cache device, in blocks from the start of its first segment.
    CacheBlock(u32)
);
quantity!(
    /// A segment of the cache device, counted from zero.
    SegmentId(u32)
);
quantity!(
    /// Order of the writes to a block: the highest version of a block is its content. 48 bits.
    Version(u64)
);
quantity!(
    /// Order of the records of the log.
    SequenceNumber(u64)
);
quantity!(
    /// Ends at a completed FLUSH or FUA of a volume.
    FlushEpoch(u64)
);
quantity!(
    /// Raised at each recovery; fences records of earlier lives.
    RecoveryEpoch(u64)
);
quantity!(
    /// Of a segment or a volume; raised to void what is older.
    Generation(u64)
);
quantity!(
    /// Durable identity of a volume on a cache set. Never reused.
    VolumeId(u64)
);
quantity!(
    /// Index of a volume in the volume table of its cache set; may be reused after a detach.
    VolumeSlot(u16)
);
quantity!(
    /// CRC32C (Castagnoli) of the bytes of one block.
    Crc32c(u32)
);
quantity!(
    /// Nanoseconds since a moment of the host's choice. Never goes backwards.
    Time(u64)
);

impl Time {
    /// The time `milliseconds` after this one.
    #[must_use]
    pub fn after_ms(self, milliseconds: u64) -> Time {
        Time(self.0.saturating_add(milliseconds.saturating_mul(1_000_000)))
    }

    /// Nanoseconds from `earlier` to this time; zero if `earlier` is later.
    #[must_use]
    pub fn nanoseconds_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A run of blocks of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginExtent {
    /// The volume.
    pub volume: VolumeSlot,
    /// First block.
    pub start: OriginBlock,
    /// Number of blocks; may be zero.
    pub block_count: u64,
}

impl OriginExtent {
    /// First block behind the extent.
    #[must_use]
    pub fn end(&self) -> OriginBlock {
        OriginBlock(self.start.0 + self.block_count)
    }

    /// The blocks that both extents have; `None` if they have none in common.
    #[must_use]
    pub fn intersection(&self, other: &OriginExtent) -> Option<OriginExtent> {
        if self.volume != other.volume {
            return None;
        }
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| OriginExtent {
            volume: self.volume,
            start,
            block_count: end.0 - start.0,
        })
    }
}
