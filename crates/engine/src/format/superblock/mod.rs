//! Superblock and volume table: what is on the device, where, and whose.
//!
//! The region is 64 KiB long: a header block, with the pinned ranges of all volumes in its rest,
//! and fifteen blocks of volume slots. It stands at the
//! start of the device and, as a copy, at its end. An update raises the serial number and writes
//! one place, flushes, writes the other, flushes; so at every moment one place is whole, and the
//! valid one with the higher serial number decides. Generations and volume ids live here because
//! they must be durable before they are used (rule 10).

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{COUNTER_MAX, FORMAT_VERSION, SetId, crc32c};
use crate::error::{Corrupt, Place};
use crate::options::{CACHE_WRITE_BUDGET_MAX, DIRTY_HARD_PERCENT_MAX, SetSettings};
use crate::policy::PolicyKind;
use crate::units::{BLOCK_BYTES, Generation, VolumeId, VolumeSlot};

mod geometry;
mod keep;
mod pins;
mod volume_table;

pub use geometry::{
    CACHE_BLOCKS_MAX, Geometry, GeometryError, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN,
};
pub use keep::{KEPT_PERCENT_MAX, Keeping, KeepsTooMuch};
use pins::{PIN_TABLE_OFFSET, decode_pins, encode_pins};
pub use pins::{PINNED_RANGES_MAX, PinnedRanges};
pub(crate) use volume_table::is_volume_size;
pub use volume_table::{
    AddVolumeError, NAME_BYTES_MAX, NewVolume, ORIGIN_PATH_BYTES_MAX, VOLUME_BYTES_MAX, Volume,
};
use volume_table::{SLOT_BYTES, assert_is_new, decode_slot, encode_slot, good_name_bytes};

/// Bytes of the superblock region and of its copy.
pub const SUPERBLOCK_BYTES: usize = 64 * 1024;
/// Most volumes on one cache device: what fits in the region.
pub const VOLUMES_MAX: usize = (SUPERBLOCK_BYTES - BLOCK_BYTES) / SLOT_BYTES;
/// Longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// First bytes of a forebay cache device, behind the checksum.
pub const MAGIC: [u8; 8] = *b"forebay\x01";

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
    /// Below the hard mark; both in percent.
    dirty_soft_percent: u8,
    dirty_hard_percent: u8,
    /// Replacement: 0 clock2q, as in older superblocks, 1 lru, 2 fifo.
    policy: u8,
    reserved: [u8; 4],
    label: [u8; LABEL_BYTES_MAX],
    /// Bytes a day for what need not be in the log; zero, as in older superblocks: no bound.
    cache_write_budget: U64,
}

const _: () = assert!(size_of::<Header>() == 192 && 192 <= PIN_TABLE_OFFSET);

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

impl Superblock {
    /// A new, empty cache set.
    #[must_use]
    pub fn new(set_id: SetId, geometry: Geometry, label: &str) -> Superblock {
        assert!(label.len() <= LABEL_BYTES_MAX);
        let log_bytes = u64::from(geometry.segment_count) * geometry.segment_bytes;
        Superblock {
            set_id,
            serial: 1,
            geometry,
            label: label.to_string(),
            next_volume_id: 1,
            settings: SetSettings::for_log(log_bytes),
            volumes: vec![None; VOLUMES_MAX],
            read_from: Place::SuperblockCopy,
        }
    }

    /// Adds a volume in the first free slot, with a new id. The caller makes the table durable
    /// before the volume is used.
    ///
    /// # Errors
    /// If the table is full, or name, path or size do not fit.
    pub fn add_volume(&mut self, new: &NewVolume) -> Result<VolumeSlot, AddVolumeError> {
        self.add_volume_where(new, |_| true)
    }

    /// The same, but only in a slot that `is_usable`: an engine may still hold a volume of which
    /// the table knows nothing any more.
    pub(crate) fn add_volume_where(
        &mut self,
        new: &NewVolume,
        is_usable: impl Fn(VolumeSlot) -> bool,
    ) -> Result<VolumeSlot, AddVolumeError> {
        let name = new.name.as_bytes();
        if name.len() > NAME_BYTES_MAX || good_name_bytes(name) < name.len().max(1) {
            return Err(AddVolumeError::BadName);
        }
        if new.origin_path.len() > ORIGIN_PATH_BYTES_MAX {
            return Err(AddVolumeError::PathTooLong);
        }
        if !is_volume_size(new.size_bytes) {
            return Err(AddVolumeError::BadSize);
        }
        if self.volumes.iter().flatten().any(|volume| volume.name == new.name) {
            return Err(AddVolumeError::NameTaken);
        }
        let slot = self.free_slots().find(|slot| is_usable(*slot));
        let slot = slot.ok_or(AddVolumeError::TableFull)?;
        self.check_keeping(slot, Keeping::of(&new.settings, 0))?;
        self.volumes[usize::from(slot.0)] = Some(Volume {
            id: VolumeId(self.next_volume_id),
            generation: Generation(1),
            name: new.name.clone(),
            origin_path: new.origin_path.clone(),
            size_bytes: new.size_bytes,
            logical_block_bytes: new.logical_block_bytes,
            mode: new.mode,
            writeback_order: new.writeback_order,
            settings: new.settings,
            pins: PinnedRanges::default(),
            fingerprint: None,
        });
        self.next_volume_id += 1;
        Ok(slot)
    }

    /// Slots that are free, in order.
    pub fn free_slots(&self) -> impl Iterator<Item = VolumeSlot> {
        let slots = (0u16..).map(VolumeSlot).zip(&self.volumes);
        slots.filter(|(_, volume)| volume.is_none()).map(|(slot, _)| slot)
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
            dirty_soft_percent: self.settings.dirty_soft_percent,
            dirty_hard_percent: self.settings.dirty_hard_percent,
            policy: match self.settings.policy {
                PolicyKind::Clock2q => 0,
                PolicyKind::Lru => 1,
                PolicyKind::Fifo => 2,
            },
            reserved: [0; 4],
            label,
            cache_write_budget: self.settings.cache_write_budget_bytes_per_day.into(),
        };
        bytes[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        encode_pins(&self.volumes, &mut bytes[..BLOCK_BYTES]);
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
        Corrupt::unless_zero(
            place,
            "reserved bytes",
            &bytes[size_of::<Header>()..PIN_TABLE_OFFSET],
        )?;
        Corrupt::unless_zero(place, "reserved bytes", &header.reserved)?;
        Corrupt::unless_at_most(place, "serial", COUNTER_MAX, header.serial.get())?;
        Corrupt::unless_at_most(place, "next volume id", COUNTER_MAX, header.next_volume_id.get())?;
        let geometry = decode_geometry(place, &header)?;
        let mut volumes: Vec<Option<Volume>> = Vec::with_capacity(VOLUMES_MAX);
        for (slot, bytes) in (0u16..).zip(bytes[BLOCK_BYTES..].chunks_exact(SLOT_BYTES)) {
            let volume = decode_slot(slot, bytes, header.next_volume_id.get())?;
            if let Some(volume) = &volume {
                assert_is_new(slot, volume, &volumes)?;
            }
            volumes.push(volume);
        }
        decode_pins(place, &bytes[..BLOCK_BYTES], &mut volumes)?;
        let label_bytes = header.label.iter().position(|byte| *byte == 0);
        let (label, rest) = header.label.split_at(label_bytes.unwrap_or(LABEL_BYTES_MAX));
        Corrupt::unless_zero(place, "bytes behind the label", rest)?;
        Ok(Superblock {
            set_id: header.set_id,
            serial: header.serial.get(),
            geometry,
            label: decode_text(place, "label", label)?,
            next_volume_id: header.next_volume_id.get(),
            settings: decode_settings(place, &header)?,
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

fn decode_settings(place: Place, header: &Header) -> Result<SetSettings, Corrupt> {
    Corrupt::unless_at_most(place, "discard", 1, header.discard_freed_segments.into())?;
    let (soft, hard) = (header.dirty_soft_percent, header.dirty_hard_percent);
    let most = DIRTY_HARD_PERCENT_MAX.into();
    Corrupt::unless_at_most(place, "hard mark", most, hard.into())?;
    Corrupt::unless_at_least(place, "soft mark", 1, soft.into())?;
    Corrupt::unless_at_most(place, "soft mark", u64::from(hard).saturating_sub(1), soft.into())?;
    let budget = header.cache_write_budget.get();
    Corrupt::unless_at_most(place, "budget of writes", CACHE_WRITE_BUDGET_MAX, budget)?;
    let policy = match header.policy {
        0 => PolicyKind::Clock2q,
        1 => PolicyKind::Lru,
        2 => PolicyKind::Fifo,
        found => {
            let found = found.into();
            return Err(Corrupt { place, field: "policy", expected: 2, found });
        }
    };
    Ok(SetSettings {
        policy,
        cache_write_budget_bytes_per_day: budget,
        memory_max_bytes: header.memory_max_bytes.get(),
        discard_freed_segments: header.discard_freed_segments != 0,
        dirty_soft_percent: soft,
        dirty_hard_percent: hard,
    })
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

/// UTF-8; else the number of good bytes is named beside that of all.
fn decode_text(place: Place, field: &'static str, bytes: &[u8]) -> Result<String, Corrupt> {
    core::str::from_utf8(bytes).map(ToString::to_string).map_err(|error| Corrupt {
        place,
        field,
        expected: bytes.len() as u64,
        found: error.valid_up_to() as u64,
    })
}
