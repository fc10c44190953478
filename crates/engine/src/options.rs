//! What the engine is told about its devices, its volumes and the operator's wishes.

use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS_MAX, VolumeSlot};

/// How a volume uses the cache. See `docs/durability.md` for what can be lost in each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// A write is answered when the log has it.
    Writeback,
    /// A write is answered when the log and the origin have it.
    Writethrough,
    /// A write goes to the origin; the cached copy is invalidated.
    Writearound,
    /// Writeback that never promotes reads.
    Writeonly,
    /// Everything goes to the origin; the cache holds nothing of the volume.
    Passthrough,
}

impl CacheMode {
    /// Whether dirty data stays in the log in this mode.
    #[must_use]
    pub fn keeps_dirty(self) -> bool {
        matches!(self, CacheMode::Writeback | CacheMode::Writeonly)
    }
}

/// The cache device, as the host found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheFacts {
    /// Usable size.
    pub size_bytes: u64,
    /// Whether completed writes can be lost in a power cut. Always true for files.
    pub has_volatile_cache: bool,
    /// Whether discards reach something that profits.
    pub supports_discard: bool,
}

/// An origin, as the host found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginFacts {
    /// Size; a multiple of 512.
    pub size_bytes: u64,
    /// Preferred I/O size (full stripe of a RAID); zero if the device states none.
    pub optimal_io_bytes: u32,
    /// Whether distance costs time.
    pub is_rotational: bool,
    /// Whether completed writes can be lost in a power cut. Always true for files.
    pub has_volatile_cache: bool,
    /// Whether discards reach something that profits.
    pub supports_discard: bool,
}

/// What the host state file says of a volume at start (rule 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostMark {
    /// Nothing is known that the cache device does not know itself.
    #[default]
    None,
    /// The volume was written without its cache: the cache device is outdated for it.
    ServedWithoutCache,
}

/// One volume at start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OriginOpening {
    /// Slot in the volume table.
    pub slot: VolumeSlot,
    /// `None` if the origin could not be opened: the volume is then not served and its data is
    /// kept.
    pub facts: Option<OriginFacts>,
    /// From the host state file.
    pub mark: HostMark,
}

/// Settings of a cache set that may change at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetSettings {
    /// Bound on the engine's memory for index, checksums and bits, in bytes.
    pub memory_max_bytes: u64,
    /// Whether freed segments are discarded on the cache device.
    pub discard_freed_segments: bool,
}

impl Default for SetSettings {
    fn default() -> Self {
        SetSettings { memory_max_bytes: u64::MAX, discard_freed_segments: true }
    }
}

/// Order in which dirty data reaches the origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WritebackOrder {
    /// By origin position; superseded blocks are skipped. The origin alone is a state of the volume
    /// only when nothing is dirty.
    #[default]
    Coalescing,
    /// By flush epoch: the origin alone is always a state that a crash could have left.
    Ordered,
}

/// Settings of a volume that may change at run time; durable in the volume table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeSettings {
    /// A read stream longer than this is not promoted. Zero switches the rule off.
    pub sequential_cutoff_bytes: u64,
    /// Share of the cache that may be dirty before writeback starts, in percent.
    pub writeback_percent: u8,
    /// Bytes that a small miss on a slow origin may fetch in all: the aligned window around it.
    /// Whole blocks, at most [`READ_AHEAD_BYTES_MAX`]. Zero switches read-ahead off.
    pub read_ahead_bytes: u32,
}

/// Largest window of read-ahead: one extent.
pub const READ_AHEAD_BYTES_MAX: u32 = EXTENT_BLOCKS_MAX * BLOCK_BYTES as u32;

impl Default for VolumeSettings {
    /// 1 MiB is Open CAS's default; 10 % is bcache's `writeback_percent`; at 64 KiB a hard disk
    /// of 150 MB/s transfers for .4 ms of a trip of 8 ms.
    fn default() -> Self {
        VolumeSettings {
            sequential_cutoff_bytes: 1 << 20,
            writeback_percent: 10,
            read_ahead_bytes: 64 << 10,
        }
    }
}
