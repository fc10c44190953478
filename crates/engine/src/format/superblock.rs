//! Superblock and volume table: what is on the device, where, and whose.
//!
//! The region is 64 KiB long: a header block and fifteen blocks of volume slots. It stands at the
//! start of the device and, as a copy, at its end. An update raises the serial number and writes
//! one place, flushes, writes the other, flushes; so at every moment one place is whole, and the
//! valid one with the higher serial number decides. Generations and volume ids live here because
//! they must be durable before they are used (rule 10).

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{COUNTER_MAX, FORMAT_VERSION, SetId, crc32c};
use crate::error::{Corrupt, Place};
use crate::options::{CacheMode, READ_AHEAD_BYTES_MAX, SetSettings, VolumeSettings};
use crate::units::{BLOCK_BYTES, Generation, VolumeId, VolumeSlot};

/// Bytes of the superblock region and of its copy.
pub const SUPERBLOCK_BYTES: usize = 64 * 1024;
/// Most volumes on one cache device: what fits in the region.
pub const VOLUMES_MAX: usize = (SUPERBLOCK_BYTES - BLOCK_BYTES) / SLOT_BYTES;
/// Longest volume name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest origin path or device spec, in bytes.
pub const ORIGIN_PATH_BYTES_MAX: usize = 320;
/// Longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// First bytes of a forebay cache device, behind the checksum.
pub const MAGIC: [u8; 8] = *b"forebay\x01";
/// Smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
/// Largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Fewest segments that leave room for clients beside open segments, spares and reserve.
pub const SEGMENTS_MIN: u64 = 24;
/// Blocks live in `u32` positions, which bounds the segments' total size (16 TiB).
pub const CACHE_BLOCKS_MAX: u64 = u32::MAX as u64;

const SLOT_BYTES: usize = 512;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    /// CRC32C of the region behind this field. Guards against torn and rotten regions.
    crc: U32,
    /// Format version.
    version: U32,
    magic: [u8; 8],
    /// Set identity, in every structure of the device.
    set_id: [u8; 16],
    /// Raised by one at each update; the valid region with the higher one decides.
    serial: U64,
    /// Bytes of the device at format. A smaller device is truncated.
    device_bytes: U64,
    /// Byte offset of the first segment.
    segments_offset: U64,
    /// Bytes of a segment: a power of two.
    segment_bytes: U64,
    segment_count: U64,
    /// Byte offset of checkpoint area A; area B follows it.
    checkpoint_offset: U64,
    /// Bytes of one checkpoint area.
    checkpoint_bytes: U64,
    /// Byte offset of the superblock copy.
    copy_offset: U64,
    /// The next volume id; ids below it were given out once and never come again.
    next_volume_id: U64,
    /// Bound on the engine's memory, bytes.
    memory_max_bytes: U64,
    /// 1: discard freed segments.
    discard_freed_segments: u8,
    reserved: [u8; 7],
    label: [u8; LABEL_BYTES_MAX],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Slot {
    /// Volume id; zero in a free slot.
    id: U64,
    /// Raised to void every older record of the volume.
    generation: U64,
    /// Bytes of the origin when it was attached or last grown.
    size_bytes: U64,
    sequential_cutoff_bytes: U64,
    /// Smallest unit a client may address: 512 or 4096.
    logical_block_bytes: U32,
    /// CRC32C of the first 64 KiB of the origin at the last clean stop.
    fingerprint: U32,
    /// See `mode_to_byte`.
    mode: u8,
    /// 0 coalescing, 1 ordered.
    writeback_order: u8,
    /// 1: `fingerprint` was taken at a clean stop and the volume was not served since.
    has_fingerprint: u8,
    writeback_percent: u8,
    name_bytes: U16,
    origin_path_bytes: U16,
    name: [u8; NAME_BYTES_MAX],
    origin_path: [u8; ORIGIN_PATH_BYTES_MAX],
    read_ahead_bytes: U32,
    reserved: [u8; 76],
}

const _: () = assert!(size_of::<Header>() == 184);
const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// Where things are on the cache device. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of the device at format.
    pub device_bytes: u64,
    /// Start of the first segment.
    pub segments_offset: u64,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Start of checkpoint area A.
    pub checkpoint_offset: u64,
    /// Size of one checkpoint area.
    pub checkpoint_bytes: u64,
    /// Start of the superblock copy.
    pub copy_offset: u64,
}

/// A device too small or too large, or a segment size that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// Too small.
    #[error(
        "{device_bytes} bytes are too few: segments of {segment_bytes} bytes need {needed_bytes}"
    )]
    TooSmall {
        /// Given.
        device_bytes: u64,
        /// Needed.
        needed_bytes: u64,
        /// Segment size.
        segment_bytes: u64,
    },
    /// Larger than positions can address.
    #[error("{device_bytes} bytes are too many: positions address 16 TiB of cache")]
    TooLarge {
        /// Given.
        device_bytes: u64,
    },
    /// Not a power of two in range.
    #[error("a segment of {segment_bytes} bytes is not a power of two between 256 KiB and 16 MiB")]
    SegmentSize {
        /// Given.
        segment_bytes: u64,
    },
}

impl Geometry {
    /// Lays out a device of `device_bytes`; the segment size is about a thousandth of it unless
    /// given.
    ///
    /// # Errors
    /// If fewer than [`SEGMENTS_MIN`] segments fit or the segment size is out of range.
    pub fn new(device_bytes: u64, segment_bytes: Option<u64>) -> Result<Geometry, GeometryError> {
        let block = BLOCK_BYTES as u64;
        let device_bytes = device_bytes / block * block;
        let segment_bytes = segment_bytes.unwrap_or_else(|| {
            (device_bytes / 1000).next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        });
        if !segment_bytes.is_power_of_two()
            || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
        {
            return Err(GeometryError::SegmentSize { segment_bytes });
        }
        let superblock = SUPERBLOCK_BYTES as u64;
        let mut segment_count = device_bytes / segment_bytes;
        if segment_count > CACHE_BLOCKS_MAX {
            return Err(GeometryError::TooLarge { device_bytes });
        }
        loop {
            let checkpoint_bytes =
                super::checkpoint::area_bytes(segment_count, segment_bytes / block);
            let segments_offset = superblock + 2 * checkpoint_bytes;
            let needed = segments_offset + segment_count * segment_bytes + superblock;
            if segment_count < SEGMENTS_MIN {
                let needed_bytes = 2 * superblock
                    + 2 * super::checkpoint::area_bytes(SEGMENTS_MIN, segment_bytes / block)
                    + SEGMENTS_MIN * segment_bytes;
                return Err(GeometryError::TooSmall { device_bytes, needed_bytes, segment_bytes });
            }
            if needed > device_bytes {
                segment_count -= 1;
                continue;
            }
            if segment_count * (segment_bytes / block) > CACHE_BLOCKS_MAX {
                return Err(GeometryError::TooLarge { device_bytes });
            }
            return Ok(Geometry {
                device_bytes,
                segments_offset,
                segment_bytes,
                segment_count: u32::try_from(segment_count).expect("bounded by CACHE_BLOCKS_MAX"),
                checkpoint_offset: superblock,
                checkpoint_bytes,
                copy_offset: device_bytes - superblock,
            });
        }
    }

    /// Blocks of a segment.
    #[must_use]
    pub fn segment_blocks(&self) -> u32 {
        u32::try_from(self.segment_bytes / BLOCK_BYTES as u64).expect("segments are small")
    }
}

/// Order in which dirty data reaches the origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritebackOrder {
    /// By origin position; superseded blocks are skipped.
    Coalescing,
    /// By flush epoch.
    Ordered,
}

/// What the operator says of a volume that is attached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewVolume {
    /// Name, also of its export. At most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Absolute path or device spec. At most [`ORIGIN_PATH_BYTES_MAX`] bytes.
    pub origin_path: String,
    /// Size of the origin.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// Mode to start with.
    pub mode: CacheMode,
}

/// A volume of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Volume {
    /// Never reused.
    pub id: VolumeId,
    /// Records with a lower one are void.
    pub generation: Generation,
    /// Name, also of its export.
    pub name: String,
    /// Absolute path or device spec.
    pub origin_path: String,
    /// Bytes of the origin.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// Cache mode.
    pub mode: CacheMode,
    /// Writeback order.
    pub writeback_order: WritebackOrder,
    /// Settings.
    pub settings: VolumeSettings,
    /// CRC32C of the first 64 KiB of the origin, if it was taken at a clean stop and the volume was
    /// not served since.
    pub fingerprint: Option<u32>,
}

/// The superblock in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Identity of the cache set.
    pub set_id: SetId,
    /// Raised at each update.
    pub serial: u64,
    /// Layout.
    pub geometry: Geometry,
    /// Free text of the operator.
    pub label: String,
    /// Next volume id.
    pub next_volume_id: u64,
    /// Settings of the set.
    pub settings: SetSettings,
    /// Volumes by slot.
    pub volumes: Vec<Option<Volume>>,
    /// Where it was read from, so the place that is known to be whole; not part of the encoding.
    /// The next update goes to the other place first.
    pub read_from: Place,
}

/// Why a volume cannot be added to the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AddVolumeError {
    /// All slots are taken.
    #[error("the volume table is full ({VOLUMES_MAX} volumes)")]
    TableFull,
    /// The name is taken.
    #[error("the name is taken")]
    NameTaken,
    /// Empty, too long, or with other characters than letters, digits, dot, dash, underscore.
    #[error(
        "a name has 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-` or `_`, not `.` or `-` first"
    )]
    BadName,
    /// The path is too long.
    #[error("the origin's path is longer than {ORIGIN_PATH_BYTES_MAX} bytes; use a symbolic link")]
    PathTooLong,
}

impl Superblock {
    /// A new, empty cache set.
    #[must_use]
    pub fn new(set_id: SetId, geometry: Geometry, label: &str) -> Superblock {
        assert!(label.len() <= LABEL_BYTES_MAX);
        Superblock {
            set_id,
            serial: 1,
            geometry,
            label: label.to_string(),
            next_volume_id: 1,
            settings: SetSettings::default(),
            volumes: vec![None; VOLUMES_MAX],
            read_from: Place::SuperblockCopy,
        }
    }

    /// Adds a volume in the first free slot, with a new id. The caller makes the table durable
    /// before the volume is used.
    ///
    /// # Errors
    /// If the table is full, or name or path do not fit.
    pub fn add_volume(&mut self, new: &NewVolume) -> Result<VolumeSlot, AddVolumeError> {
        let name = new.name.as_bytes();
        if name.len() > NAME_BYTES_MAX || good_name_bytes(name) < name.len().max(1) {
            return Err(AddVolumeError::BadName);
        }
        if new.origin_path.len() > ORIGIN_PATH_BYTES_MAX {
            return Err(AddVolumeError::PathTooLong);
        }
        if self.volumes.iter().flatten().any(|volume| volume.name == new.name) {
            return Err(AddVolumeError::NameTaken);
        }
        let slot = self.free_slot().ok_or(AddVolumeError::TableFull)?;
        self.volumes[usize::from(slot.0)] = Some(Volume {
            id: VolumeId(self.next_volume_id),
            generation: Generation(1),
            name: new.name.clone(),
            origin_path: new.origin_path.clone(),
            size_bytes: new.size_bytes,
            logical_block_bytes: new.logical_block_bytes,
            mode: new.mode,
            writeback_order: WritebackOrder::Coalescing,
            settings: VolumeSettings::default(),
            fingerprint: None,
        });
        self.next_volume_id += 1;
        Ok(slot)
    }

    /// The slot that the next volume gets.
    #[must_use]
    pub fn free_slot(&self) -> Option<VolumeSlot> {
        let slot = self.volumes.iter().position(Option::is_none)?;
        Some(VolumeSlot(u16::try_from(slot).expect("VOLUMES_MAX fits")))
    }

    /// The volume in `slot`.
    #[must_use]
    pub fn volume(&self, slot: VolumeSlot) -> Option<&Volume> {
        self.volumes.get(usize::from(slot.0)).and_then(Option::as_ref)
    }

    /// Slots in use, in order.
    pub fn slots(&self) -> impl Iterator<Item = (VolumeSlot, &Volume)> {
        (0u16..)
            .map(VolumeSlot)
            .zip(&self.volumes)
            .filter_map(|(slot, volume)| volume.as_ref().map(|volume| (slot, volume)))
    }

    /// Offsets of the two places, in the order in which an update writes them: a crash may tear the
    /// first one, so that is never the only one that is whole.
    #[must_use]
    pub fn write_order(&self) -> [u64; 2] {
        let copy_offset = self.geometry.copy_offset;
        match self.read_from {
            Place::Superblock => [copy_offset, 0],
            _ => [0, copy_offset],
        }
    }

    /// The region as bytes, [`SUPERBLOCK_BYTES`] long.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0u8; SUPERBLOCK_BYTES];
        let geometry = &self.geometry;
        let mut label = [0u8; LABEL_BYTES_MAX];
        label[..self.label.len()].copy_from_slice(self.label.as_bytes());
        let header = Header {
            crc: U32::ZERO,
            version: FORMAT_VERSION.into(),
            magic: MAGIC,
            set_id: self.set_id,
            serial: self.serial.into(),
            device_bytes: geometry.device_bytes.into(),
            segments_offset: geometry.segments_offset.into(),
            segment_bytes: geometry.segment_bytes.into(),
            segment_count: u64::from(geometry.segment_count).into(),
            checkpoint_offset: geometry.checkpoint_offset.into(),
            checkpoint_bytes: geometry.checkpoint_bytes.into(),
            copy_offset: geometry.copy_offset.into(),
            next_volume_id: self.next_volume_id.into(),
            memory_max_bytes: self.settings.memory_max_bytes.into(),
            discard_freed_segments: u8::from(self.settings.discard_freed_segments),
            reserved: [0; 7],
            label,
        };
        bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        let slots = bytes[BLOCK_BYTES..].chunks_exact_mut(SLOT_BYTES);
        for (volume, slot) in self.volumes.iter().zip(slots) {
            if let Some(volume) = volume {
                slot.copy_from_slice(encode_slot(volume).as_bytes());
            }
        }
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.0.to_le_bytes());
        bytes
    }

    /// Reads one region.
    ///
    /// # Errors
    /// If anything about it is wrong; the message names the field.
    pub fn decode(place: Place, bytes: &[u8]) -> Result<Superblock, Corrupt> {
        Corrupt::unless_equal(place, "length", SUPERBLOCK_BYTES as u64, bytes.len() as u64)?;
        let (header, _) = Header::read_from_prefix(bytes).expect("the region is longer");
        let magic = u64::from_le_bytes(MAGIC);
        Corrupt::unless_equal(place, "magic", magic, u64::from_le_bytes(header.magic))?;
        let version = header.version.get();
        Corrupt::unless_equal(place, "version", FORMAT_VERSION.into(), version.into())?;
        let crc = crc32c(&bytes[4..]);
        Corrupt::unless_equal(place, "checksum", crc.0.into(), header.crc.get().into())?;
        Corrupt::unless_zero(place, "reserved bytes", &bytes[size_of::<Header>()..BLOCK_BYTES])?;
        Corrupt::unless_zero(place, "reserved bytes", &header.reserved)?;
        Corrupt::unless_at_most(place, "serial", COUNTER_MAX, header.serial.get())?;
        Corrupt::unless_at_most(place, "next volume id", COUNTER_MAX, header.next_volume_id.get())?;
        Corrupt::unless_at_most(place, "discard", 1, header.discard_freed_segments.into())?;
        let geometry = decode_geometry(place, &header)?;
        let mut volumes: Vec<Option<Volume>> = Vec::with_capacity(VOLUMES_MAX);
        for (slot, bytes) in (0u16..).zip(bytes[BLOCK_BYTES..].chunks_exact(SLOT_BYTES)) {
            let volume = decode_slot(slot, bytes, header.next_volume_id.get())?;
            if let Some(volume) = &volume {
                assert_is_new(slot, volume, &volumes)?;
            }
            volumes.push(volume);
        }
        let label_bytes = header.label.iter().position(|byte| *byte == 0);
        let (label, rest) = header.label.split_at(label_bytes.unwrap_or(LABEL_BYTES_MAX));
        Corrupt::unless_zero(place, "bytes behind the label", rest)?;
        Ok(Superblock {
            set_id: header.set_id,
            serial: header.serial.get(),
            geometry,
            label: decode_text(place, "label", label)?,
            next_volume_id: header.next_volume_id.get(),
            settings: SetSettings {
                memory_max_bytes: header.memory_max_bytes.get(),
                discard_freed_segments: header.discard_freed_segments != 0,
            },
            volumes,
            read_from: place,
        })
    }

    /// Chooses between the region at the start of a device and its copy: the valid one with the
    /// higher serial number.
    ///
    /// # Errors
    /// If neither is valid; the error is that of the first region.
    pub fn choose(start: &[u8], copy: &[u8]) -> Result<Superblock, Corrupt> {
        let first = Superblock::decode(Place::Superblock, start);
        let second = Superblock::decode(Place::SuperblockCopy, copy);
        match (first, second) {
            (Ok(a), Ok(b)) if a.set_id == b.set_id && b.serial > a.serial => Ok(b),
            (Ok(a), _) => Ok(a),
            (Err(_), Ok(b)) => Ok(b),
            (Err(error), Err(_)) => Err(error),
        }
    }
}

fn decode_geometry(place: Place, header: &Header) -> Result<Geometry, Corrupt> {
    let device_bytes = header.device_bytes.get();
    let segment_bytes = header.segment_bytes.get();
    // The layout is a function of the device's size and the segment size: anything else is damage.
    let geometry = Geometry::new(device_bytes, Some(segment_bytes)).map_err(|error| {
        let (field, expected, found) = match error {
            GeometryError::SegmentSize { segment_bytes } => {
                let nearest = segment_bytes.checked_next_power_of_two().unwrap_or(u64::MAX);
                let nearest = nearest.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
                ("segment size", nearest, segment_bytes)
            }
            GeometryError::TooSmall { needed_bytes, .. } => {
                ("device size", needed_bytes, device_bytes)
            }
            GeometryError::TooLarge { .. } => {
                ("device size", CACHE_BLOCKS_MAX * BLOCK_BYTES as u64, device_bytes)
            }
        };
        Corrupt { place, field, expected, found }
    })?;
    let count = u64::from(geometry.segment_count);
    Corrupt::unless_equal(place, "device size", geometry.device_bytes, device_bytes)?;
    Corrupt::unless_equal(place, "segment count", count, header.segment_count.get())?;
    let fields = [
        ("segments offset", geometry.segments_offset, header.segments_offset),
        ("checkpoint offset", geometry.checkpoint_offset, header.checkpoint_offset),
        ("checkpoint size", geometry.checkpoint_bytes, header.checkpoint_bytes),
        ("copy offset", geometry.copy_offset, header.copy_offset),
    ];
    for (field, expected, found) in fields {
        Corrupt::unless_equal(place, field, expected, found.get())?;
    }
    Ok(geometry)
}

fn encode_slot(volume: &Volume) -> Slot {
    let mut name = [0u8; NAME_BYTES_MAX];
    name[..volume.name.len()].copy_from_slice(volume.name.as_bytes());
    let mut origin_path = [0u8; ORIGIN_PATH_BYTES_MAX];
    origin_path[..volume.origin_path.len()].copy_from_slice(volume.origin_path.as_bytes());
    let length = |text: &str| U16::new(u16::try_from(text.len()).expect("bounded at attach"));
    Slot {
        id: volume.id.0.into(),
        generation: volume.generation.0.into(),
        size_bytes: volume.size_bytes.into(),
        sequential_cutoff_bytes: volume.settings.sequential_cutoff_bytes.into(),
        logical_block_bytes: volume.logical_block_bytes.into(),
        fingerprint: volume.fingerprint.unwrap_or(0).into(),
        mode: mode_to_byte(volume.mode),
        writeback_order: match volume.writeback_order {
            WritebackOrder::Coalescing => 0,
            WritebackOrder::Ordered => 1,
        },
        has_fingerprint: u8::from(volume.fingerprint.is_some()),
        writeback_percent: volume.settings.writeback_percent,
        name_bytes: length(&volume.name),
        origin_path_bytes: length(&volume.origin_path),
        name,
        origin_path,
        read_ahead_bytes: volume.settings.read_ahead_bytes.into(),
        reserved: [0; 76],
    }
}

fn decode_slot(slot: u16, bytes: &[u8], next_id: u64) -> Result<Option<Volume>, Corrupt> {
    let place = Place::VolumeTable { slot };
    let raw = Slot::read_from_bytes(bytes).expect("a slot has SLOT_BYTES");
    if raw.id.get() == 0 {
        Corrupt::unless_zero(place, "bytes of a free slot", bytes)?;
        return Ok(None);
    }
    Corrupt::unless_zero(place, "reserved bytes", &raw.reserved)?;
    Corrupt::unless_at_most(place, "volume id", next_id.saturating_sub(1), raw.id.get())?;
    Corrupt::unless_at_most(place, "generation", COUNTER_MAX, raw.generation.get())?;
    Corrupt::unless_at_most(place, "fingerprint flag", 1, raw.has_fingerprint.into())?;
    if raw.has_fingerprint == 0 {
        Corrupt::unless_equal(place, "fingerprint", 0, raw.fingerprint.get().into())?;
    }
    Corrupt::unless_at_most(place, "writeback percent", 100, raw.writeback_percent.into())?;
    Corrupt::unless_equal(place, "size remainder", 0, raw.size_bytes.get() % 512)?;
    Corrupt::unless_at_most(place, "size", 1 << 52, raw.size_bytes.get())?;
    let logical = raw.logical_block_bytes.get();
    if logical != 512 {
        Corrupt::unless_equal(place, "logical block size", 4096, logical.into())?;
    }
    let read_ahead_bytes = raw.read_ahead_bytes.get();
    let most = READ_AHEAD_BYTES_MAX.into();
    Corrupt::unless_at_most(place, "read-ahead", most, read_ahead_bytes.into())?;
    let remainder = u64::from(read_ahead_bytes) % BLOCK_BYTES as u64;
    Corrupt::unless_equal(place, "read-ahead remainder", 0, remainder)?;
    let writeback_order = match raw.writeback_order {
        0 => WritebackOrder::Coalescing,
        1 => WritebackOrder::Ordered,
        found => {
            let (field, found) = ("writeback order", found.into());
            return Err(Corrupt { place, field, expected: 1, found });
        }
    };
    let (name, path) = decode_names(place, &raw)?;
    Ok(Some(Volume {
        id: VolumeId(raw.id.get()),
        generation: Generation(raw.generation.get()),
        name,
        origin_path: path,
        size_bytes: raw.size_bytes.get(),
        logical_block_bytes: logical,
        mode: mode_from_byte(place, raw.mode)?,
        writeback_order,
        settings: VolumeSettings {
            sequential_cutoff_bytes: raw.sequential_cutoff_bytes.get(),
            writeback_percent: raw.writeback_percent,
            read_ahead_bytes,
        },
        fingerprint: (raw.has_fingerprint == 1).then(|| raw.fingerprint.get()),
    }))
}

/// Name and path of the origin of a slot.
fn decode_names(place: Place, raw: &Slot) -> Result<(String, String), Corrupt> {
    let (name_bytes, path_bytes) = (raw.name_bytes.get(), raw.origin_path_bytes.get());
    let limit = NAME_BYTES_MAX as u64;
    Corrupt::unless_at_most(place, "length of the name", limit, name_bytes.into())?;
    let limit = ORIGIN_PATH_BYTES_MAX as u64;
    Corrupt::unless_at_most(place, "length of the origin path", limit, path_bytes.into())?;
    let (name, rest) = raw.name.split_at(name_bytes.into());
    Corrupt::unless_zero(place, "bytes behind the name", rest)?;
    let good = good_name_bytes(name) as u64;
    Corrupt::unless_at_least(place, "name", u64::from(name_bytes).max(1), good)?;
    let (path, rest) = raw.origin_path.split_at(path_bytes.into());
    Corrupt::unless_zero(place, "bytes behind the origin path", rest)?;
    Ok((decode_text(place, "name", name)?, decode_text(place, "origin path", path)?))
}

/// How many bytes from the start may stand in a name.
fn good_name_bytes(name: &[u8]) -> usize {
    let is_first = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let good = |(at, c): &(usize, &u8)| is_first(**c) || *at > 0 && matches!(**c, b'.' | b'-');
    name.iter().enumerate().take_while(good).count()
}

/// Volumes are told apart by id and by name.
fn assert_is_new(slot: u16, volume: &Volume, earlier: &[Option<Volume>]) -> Result<(), Corrupt> {
    let place = Place::VolumeTable { slot };
    for (other, known) in (0u64..).zip(earlier) {
        let Some(known) = known else { continue };
        let field = if known.id == volume.id {
            "volume id of another slot"
        } else if known.name == volume.name {
            "name of another slot"
        } else {
            continue;
        };
        return Err(Corrupt { place, field, expected: slot.into(), found: other });
    }
    Ok(())
}

/// UTF-8; else the number of good bytes is named beside that of all.
fn decode_text(place: Place, field: &'static str, bytes: &[u8]) -> Result<String, Corrupt> {
    core::str::from_utf8(bytes).map(ToString::to_string).map_err(|error| Corrupt {
        place,
        field,
        expected: bytes.len() as u64,
        found: error.valid_up_to() as u64,
    })
}

fn mode_to_byte(mode: CacheMode) -> u8 {
    match mode {
        CacheMode::Writeback => 1,
        CacheMode::Writethrough => 2,
        CacheMode::Writearound => 3,
        CacheMode::Writeonly => 4,
        CacheMode::Passthrough => 5,
    }
}

fn mode_from_byte(place: Place, byte: u8) -> Result<CacheMode, Corrupt> {
    match byte {
        1 => Ok(CacheMode::Writeback),
        2 => Ok(CacheMode::Writethrough),
        3 => Ok(CacheMode::Writearound),
        4 => Ok(CacheMode::Writeonly),
        5 => Ok(CacheMode::Passthrough),
        found => Err(Corrupt { place, field: "cache mode", expected: 5, found: found.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_too_large_to_be_refused() {
        for device_bytes in [17 << 40, 1 << 60, u64::MAX] {
            for segment_bytes in [None, Some(SEGMENT_BYTES_MIN), Some(SEGMENT_BYTES_MAX)] {
                let layout = Geometry::new(device_bytes, segment_bytes);
                assert!(matches!(layout, Err(GeometryError::TooLarge { .. })), "{layout:?}");
            }
        }
    }
}
