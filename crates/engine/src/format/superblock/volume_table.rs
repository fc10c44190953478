//! Slots of the volume table.

use alloc::string::String;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::COUNTER_MAX;
use super::{KeepsTooMuch, PinnedRanges, VOLUMES_MAX, decode_text};
use crate::error::{Corrupt, Place};
use crate::options::{
    CacheMode, DIRTY_SECONDS_MAX, ORIGIN_TIMEOUT_S, ORIGIN_TIMEOUT_S_MAX, PROMOTION_NHIT_MAX,
    READ_AHEAD_BYTES_MAX, SequentialPolicy, VolumeSettings, WRITEBACK_IOS_MAX, WRITEBACK_RATE_MAX,
    WritebackOrder,
};
use crate::units::{BLOCK_BYTES, Generation, SECTOR_BYTES, VolumeId};

/// Longest volume name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest size of a volume, in bytes: 4 PiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 52;
/// Longest origin path or device spec, in bytes.
pub const ORIGIN_PATH_BYTES_MAX: usize = 320;

pub(super) const SLOT_BYTES: usize = 512;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Slot {
    /// Volume id; zero in a free slot.
    id: U64,
    /// Raised to void every older record of the volume.
    generation: U64,
    /// Bytes of the volume: those of the origin when it was attached, or when the volume was last
    /// grown. The origin may have more.
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
    writeback_delay_s: U32,
    writeback_rate_min_bytes: U64,
    writeback_rate_max_bytes: U64,
    dirty_age_max_s: U32,
    writeback_ios_max: U16,
    /// 1: writeback waits until the origin is in use.
    writeback_idle_only: u8,
    /// Seconds, exclusive or the default: zero in tables that know nothing of it.
    origin_timeout: U32,
    /// 0 full, 1 always, 2 never.
    sequential_policy: u8,
    /// 1: what reads miss is not promoted.
    no_promotion_on_read: u8,
    /// 1: what is written is not promoted.
    no_promotion_on_write: u8,
    /// Misses before the one that promotes: zero in tables that know nothing of it.
    promotion_misses: u8,
    /// Percent of the cache of which clean blocks are not dropped.
    share_min_percent: u8,
    /// 100 less the percent of the cache beyond which nothing is promoted: zero in tables that know
    /// nothing of it.
    share_max_rest: u8,
    reserved: [u8; 39],
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

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
    /// Order of writeback to start with.
    pub writeback_order: WritebackOrder,
    /// Settings to start with.
    pub settings: VolumeSettings,
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
    /// Bytes of the volume; its origin has as many or more.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// Cache mode.
    pub mode: CacheMode,
    /// Writeback order.
    pub writeback_order: WritebackOrder,
    /// Settings.
    pub settings: VolumeSettings,
    /// What is to stay in the cache.
    pub pins: PinnedRanges,
    /// CRC32C of the first 64 KiB of the origin, if it was taken at a clean stop and the volume was
    /// not served since.
    pub fingerprint: Option<u32>,
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
    /// Larger than a volume can be, or no whole sectors.
    #[error(
        "a volume has whole sectors of {SECTOR_BYTES} bytes, and at most {} PiB",
        VOLUME_BYTES_MAX >> 50
    )]
    BadSize,
    /// Its `share_min` does not fit beside what is kept for others.
    #[error(transparent)]
    KeepsTooMuch(#[from] KeepsTooMuch),
}

/// Whether a volume may be of this size: a table with any other could not be read again.
pub(crate) fn is_volume_size(size_bytes: u64) -> bool {
    size_bytes.is_multiple_of(SECTOR_BYTES as u64) && size_bytes <= VOLUME_BYTES_MAX
}

impl Volume {
    /// Blocks of the volume; the last one may be partial.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }
}

pub(super) fn encode_slot(volume: &Volume) -> Slot {
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
        writeback_delay_s: volume.settings.writeback_delay_s.into(),
        writeback_rate_min_bytes: volume.settings.writeback_rate_min_bytes.into(),
        writeback_rate_max_bytes: volume.settings.writeback_rate_max_bytes.into(),
        dirty_age_max_s: volume.settings.dirty_age_max_s.into(),
        writeback_ios_max: volume.settings.writeback_ios_max.into(),
        writeback_idle_only: u8::from(volume.settings.writeback_idle_only),
        origin_timeout: (volume.settings.origin_timeout_s ^ ORIGIN_TIMEOUT_S).into(),
        sequential_policy: match volume.settings.sequential_policy {
            SequentialPolicy::Full => 0,
            SequentialPolicy::Always => 1,
            SequentialPolicy::Never => 2,
        },
        no_promotion_on_read: u8::from(!volume.settings.promote_on_read),
        no_promotion_on_write: u8::from(!volume.settings.promote_on_write),
        promotion_misses: volume.settings.promotion_nhit - 1,
        share_min_percent: volume.settings.share_min_percent,
        share_max_rest: 100 - volume.settings.share_max_percent,
        reserved: [0; 39],
    }
}

pub(super) fn decode_slot(
    slot: u16,
    bytes: &[u8],
    next_id: u64,
) -> Result<Option<Volume>, Corrupt> {
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
    Corrupt::unless_equal(place, "size remainder", 0, raw.size_bytes.get() % 512)?;
    Corrupt::unless_at_most(place, "size", VOLUME_BYTES_MAX, raw.size_bytes.get())?;
    let logical = raw.logical_block_bytes.get();
    if logical != 512 {
        Corrupt::unless_equal(place, "logical block size", 4096, logical.into())?;
    }
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
        settings: decode_settings(place, &raw)?,
        // They stand elsewhere.
        pins: PinnedRanges::default(),
        fingerprint: (raw.has_fingerprint == 1).then(|| raw.fingerprint.get()),
    }))
}

fn decode_settings(place: Place, raw: &Slot) -> Result<VolumeSettings, Corrupt> {
    Corrupt::unless_at_most(place, "writeback percent", 100, raw.writeback_percent.into())?;
    let read_ahead_bytes = raw.read_ahead_bytes.get();
    let most = READ_AHEAD_BYTES_MAX.into();
    Corrupt::unless_at_most(place, "read-ahead", most, read_ahead_bytes.into())?;
    let remainder = u64::from(read_ahead_bytes) % BLOCK_BYTES as u64;
    Corrupt::unless_equal(place, "read-ahead remainder", 0, remainder)?;
    let (delay, age) = (raw.writeback_delay_s.get(), raw.dirty_age_max_s.get());
    let most = DIRTY_SECONDS_MAX.into();
    Corrupt::unless_at_most(place, "writeback delay", most, delay.into())?;
    Corrupt::unless_at_most(place, "largest age of dirty data", most, age.into())?;
    let (rate_min, rate_max) =
        (raw.writeback_rate_min_bytes.get(), raw.writeback_rate_max_bytes.get());
    Corrupt::unless_at_most(place, "highest writeback rate", WRITEBACK_RATE_MAX, rate_max)?;
    let most = if rate_max == 0 { WRITEBACK_RATE_MAX } else { rate_max };
    Corrupt::unless_at_most(place, "lowest writeback rate", most, rate_min)?;
    let ios_max = raw.writeback_ios_max.get();
    let most = WRITEBACK_IOS_MAX.into();
    Corrupt::unless_at_most(place, "transfers of writeback", most, ios_max.into())?;
    Corrupt::unless_at_most(place, "idle-only flag", 1, raw.writeback_idle_only.into())?;
    // So that the zeroes of older versions are the default, and each value has one form.
    let timeout = raw.origin_timeout.get() ^ ORIGIN_TIMEOUT_S;
    let most = ORIGIN_TIMEOUT_S_MAX.into();
    Corrupt::unless_at_most(place, "origin timeout", most, timeout.into())?;
    let (on_read, on_write) = (raw.no_promotion_on_read, raw.no_promotion_on_write);
    Corrupt::unless_at_most(place, "promotion on read flag", 1, on_read.into())?;
    Corrupt::unless_at_most(place, "promotion on write flag", 1, on_write.into())?;
    let most = (PROMOTION_NHIT_MAX - 1).into();
    Corrupt::unless_at_most(place, "misses before promotion", most, raw.promotion_misses.into())?;
    Corrupt::unless_at_most(place, "largest share", 99, raw.share_max_rest.into())?;
    let share_max_percent = 100 - raw.share_max_rest;
    let most = share_max_percent.into();
    Corrupt::unless_at_most(place, "smallest share", most, raw.share_min_percent.into())?;
    Ok(VolumeSettings {
        sequential_cutoff_bytes: raw.sequential_cutoff_bytes.get(),
        sequential_policy: decode_sequential_policy(place, raw.sequential_policy)?,
        promote_on_read: on_read == 0,
        promote_on_write: on_write == 0,
        promotion_nhit: raw.promotion_misses + 1,
        writeback_percent: raw.writeback_percent,
        read_ahead_bytes,
        writeback_delay_s: delay,
        writeback_rate_min_bytes: rate_min,
        writeback_rate_max_bytes: rate_max,
        writeback_ios_max: ios_max,
        writeback_idle_only: raw.writeback_idle_only == 1,
        dirty_age_max_s: age,
        origin_timeout_s: timeout,
        share_min_percent: raw.share_min_percent,
        share_max_percent,
    })
}

fn decode_sequential_policy(place: Place, byte: u8) -> Result<SequentialPolicy, Corrupt> {
    match byte {
        0 => Ok(SequentialPolicy::Full),
        1 => Ok(SequentialPolicy::Always),
        2 => Ok(SequentialPolicy::Never),
        found => {
            let (field, found) = ("sequential policy", found.into());
            Err(Corrupt { place, field, expected: 2, found })
        }
    }
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
pub(super) fn good_name_bytes(name: &[u8]) -> usize {
    let is_first = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let good = |(at, c): &(usize, &u8)| is_first(**c) || *at > 0 && matches!(**c, b'.' | b'-');
    name.iter().enumerate().take_while(good).count()
}

/// Volumes are told apart by id and by name.
pub(super) fn assert_is_new(
    slot: u16,
    volume: &Volume,
    earlier: &[Option<Volume>],
) -> Result<(), Corrupt> {
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
    use alloc::string::ToString;

    use zerocopy::IntoBytes;

    use super::*;

    fn volume(settings: VolumeSettings) -> Volume {
        Volume {
            id: VolumeId(1),
            generation: Generation(1),
            name: "home".to_string(),
            origin_path: "/dev/sdb".to_string(),
            size_bytes: 4096,
            logical_block_bytes: 512,
            mode: CacheMode::Writeback,
            writeback_order: WritebackOrder::Coalescing,
            settings,
            pins: PinnedRanges::default(),
            fingerprint: None,
        }
    }

    #[test]
    fn settings_of_admission_are_zero_by_default_as_in_older_tables() {
        let slot = encode_slot(&volume(VolumeSettings::default()));
        assert_eq!(slot.as_bytes()[467..], [0; 45]);
    }

    #[test]
    fn settings_of_admission_come_back_and_others_are_refused() {
        let settings = VolumeSettings {
            sequential_policy: SequentialPolicy::Never,
            promote_on_read: false,
            promote_on_write: false,
            promotion_nhit: PROMOTION_NHIT_MAX,
            share_min_percent: 40,
            share_max_percent: 40,
            ..VolumeSettings::default()
        };
        let slot = encode_slot(&volume(settings));
        let bytes = slot.as_bytes();
        assert_eq!(bytes[467..473], [2, 1, 1, 14, 40, 60]);
        let decoded = decode_slot(0, bytes, 2).expect("as encoded").expect("in use");
        assert_eq!(decoded.settings, settings);
        let fields = [
            "sequential policy",
            "promotion on read flag",
            "promotion on write flag",
            "misses before promotion",
            "smallest share",
            "smallest share",
        ];
        for (at, field) in (467..).zip(fields) {
            let mut bytes = bytes.to_vec();
            bytes[at] += 1;
            assert_eq!(decode_slot(0, &bytes, 2).expect_err("out of range").field, field);
        }
    }
}
