//! The superblock region.

use forebay_engine::error::Place;
use forebay_engine::format::superblock::{Geometry, NewVolume, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::options::{CacheMode, VolumeSettings, WritebackOrder};

use super::bytes::{damage, damage_structure, seal};
use super::{Reached, Target, judge};
use crate::random::Random;

/// Header block and the first slots, which are the ones in use here.
const USED_BYTES: usize = 4096 + 4 * 512;
/// Numbers of a slot, before its texts.
const SLOT_FIELDS_BYTES: usize = 48;
/// The header's fields.
const HEADER_BYTES: usize = 192;
/// Where pinned ranges stand, and what of that is in use here.
const PINS_OFFSET: usize = 256;
const PINS_BYTES: usize = 24 * 16;
/// Shares of the cache in a slot.
const SHARES_OFFSET: usize = 471;

pub(super) const TARGET: Target = Target {
    name: "superblock",
    about: "the superblock region with its volume table",
    test_cases: 40_000,
    must_reach: &[
        "whole",
        "checksum",
        "magic",
        "version",
        "reserved bytes",
        "segment size",
        "device size",
        "segment count",
        "segments offset",
        "checkpoint offset",
        "checkpoint size",
        "copy offset",
        "serial",
        "next volume id",
        "discard",
        "label",
        "bytes behind the label",
        "volume id",
        "volume id of another slot",
        "name of another slot",
        "generation",
        "size",
        "size remainder",
        "logical block size",
        "cache mode",
        "writeback order",
        "writeback percent",
        "read-ahead",
        "read-ahead remainder",
        "fingerprint flag",
        "fingerprint",
        "length of the name",
        "length of the origin path",
        "name",
        "bytes behind the name",
        "bytes behind the origin path",
        "bytes of a free slot",
        "budget of writes",
        "smallest share",
        "largest share",
        "volume of a pinned range",
        "start of a pinned range",
        "end of a pinned range",
        "bytes behind the pinned ranges",
    ],
    case,
};

fn case(random: &mut Random, reached: &mut Reached) -> Result<(), String> {
    let mut bytes = sample(random).encode();
    if random.percent(40) {
        // A slot, or the name of one, on top of another one or of a free one.
        let (from, to) = (4096 + random.index(4) * 512, 4096 + random.index(5) * 512);
        let part = if random.percent(50) { 0..512 } else { 44..112 };
        bytes.copy_within(from + part.start..from + part.end, to + part.start);
        seal(&mut bytes);
    }
    if random.percent(30) {
        let slot = 4096 + random.index(2) * 512;
        damage(&mut bytes[slot..slot + SLOT_FIELDS_BYTES], SLOT_FIELDS_BYTES, random);
        seal(&mut bytes);
    }
    if random.percent(20) {
        damage(&mut bytes[PINS_OFFSET..PINS_OFFSET + PINS_BYTES], PINS_BYTES, random);
        seal(&mut bytes);
    }
    if random.percent(10) {
        let at = 4096 + random.index(4) * 512 + SHARES_OFFSET;
        bytes[at + random.index(2)] = random.bits() as u8;
        seal(&mut bytes);
    }
    let length = if random.percent(40) { HEADER_BYTES } else { USED_BYTES };
    damage_structure(&mut bytes, length, random);
    if random.percent(2) {
        bytes.truncate(random.index(SUPERBLOCK_BYTES));
    }
    let parsed = Superblock::decode(Place::Superblock, &bytes);
    judge(parsed, &bytes, Superblock::encode, reached)
}

fn sample(random: &mut Random) -> Superblock {
    let segment_bytes = (256 * 1024) << random.below(7);
    let device_bytes = segment_bytes * random.between(30..=3000);
    let geometry = Geometry::new(device_bytes, Some(segment_bytes)).expect("a good size");
    let set_id = [random.bits() as u8; 16];
    let label = if random.percent(50) { "label" } else { "" };
    let mut superblock = Superblock::new(set_id, geometry, label);
    let modes = [
        CacheMode::Writeback,
        CacheMode::Writethrough,
        CacheMode::Writearound,
        CacheMode::Writeonly,
        CacheMode::Passthrough,
    ];
    for index in 0..random.below(5) {
        let new = NewVolume {
            name: format!("volume-{index}"),
            origin_path: format!("/dev/disk/by-id/{index}"),
            size_bytes: 512 * random.below(1 << 40),
            logical_block_bytes: *random.pick(&[512, 4096]),
            mode: *random.pick(&modes),
            writeback_order: *random.pick(&[WritebackOrder::Coalescing, WritebackOrder::Ordered]),
            settings: VolumeSettings::default(),
        };
        superblock.add_volume(&new).expect("the table has room");
        let volume = superblock.volumes[index as usize].as_mut().expect("just added");
        volume.fingerprint = random.percent(50).then(|| random.bits() as u32);
        (volume.settings.share_min_percent, volume.settings.share_max_percent) =
            *random.pick(&[(0, 100), (0, 1), (20, 100), (100, 100), (30, 30)]);
        let blocks = volume.block_count();
        for _ in 0..if blocks > 0 { random.below(5) } else { 0 } {
            let start = random.below(blocks);
            let block_count = random.between(1..=*random.clone().pick(&[1, 64, 1 << 47]));
            volume.pins.insert(start, (start + block_count).min(blocks));
        }
    }
    superblock
}
