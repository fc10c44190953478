//! Headers of records.

use forebay_engine::format::record::{Entry, EntryKind, RecordHeader, fits};
use forebay_engine::units::{
    BLOCK_BYTES, Crc32c, FlushEpoch, Generation, RecoveryEpoch, SequenceNumber, Version, VolumeId,
};

use super::bytes::damage_structure;
use super::{Reached, Target, judge};
use crate::random::Random;

const SET_ID: [u8; 16] = *b"records of a set";
/// Fields of a header without its entries.
const FIELDS_BYTES: usize = 144;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 48;

pub(super) const TARGET: Target = Target {
    name: "record",
    about: "the header block of a record with its entries",
    test_cases: 150_000,
    must_reach: &[
        "whole",
        "checksum",
        "magic",
        "set identity",
        "segment",
        "block",
        "generation",
        "recovery epoch",
        "sequence",
        "previous",
        "durable through",
        "replaced numbers",
        "payload",
        "entries",
        "payload of the entries",
        "bytes behind the checksums",
        "entry kind",
        "entry length",
        "entry start",
        "entry end",
        "entry reserved",
        "entry flags",
        "entry version",
        "entry epoch",
        "entry volume generation",
        "dropped segment",
        "fields of a drop",
        "entries beside one without payload",
    ],
    case,
};

fn case(random: &mut Random, reached: &mut Reached) -> Result<(), String> {
    let header = sample(random);
    let mut bytes = vec![0; BLOCK_BYTES];
    header.encode(&SET_ID, &mut bytes);
    let length = FIELDS_BYTES + header.entries.len() * ENTRY_BYTES;
    damage_structure(&mut bytes, length, random);
    let parsed = RecordHeader::decode(&SET_ID, header.segment, header.block, &bytes);
    let write = |header: &RecordHeader| {
        let mut block = vec![0; BLOCK_BYTES];
        header.encode(&SET_ID, &mut block);
        block
    };
    judge(parsed, &bytes, write, reached)
}

/// A header as the engine might write it.
fn sample(random: &mut Random) -> RecordHeader {
    let mut entries = Vec::new();
    let mut payload_blocks = 0;
    if random.percent(20) {
        entries.push(blank_entry(random));
    } else {
        for _ in 0..random.between(1..=20) {
            let entry = shared_entry(random);
            if fits(entries.len() + 1, payload_blocks + entry.payload_blocks()) {
                payload_blocks += entry.payload_blocks();
                entries.push(entry);
            }
        }
    }
    let sequence = random.between(10..=1 << 50);
    RecordHeader {
        generation: Generation(random.between(1..=1 << 40)),
        recovery_epoch: RecoveryEpoch(random.between(1..=1000)),
        sequence: SequenceNumber(sequence),
        previous: SequenceNumber(random.below(sequence)),
        replaces: (0..random.below(3)).map(|index| SequenceNumber(1 + index)).collect(),
        durable_through: SequenceNumber(random.below(sequence)),
        segment: random.below(1 << 20) as u32,
        block: random.below(4096) as u32,
        payload_blocks,
        entries,
        crcs: (0..payload_blocks).map(|_| Crc32c(random.bits() as u32)).collect(),
    }
}

/// An entry that stands alone in its record.
pub(super) fn blank_entry(random: &mut Random) -> Entry {
    let kinds = [
        EntryKind::Zeroes { may_unmap: random.percent(50) },
        EntryKind::Discard,
        EntryKind::Poison,
    ];
    let kind = *random.pick(&kinds);
    let block_count = *random.pick(&[1, 100, 1 << 20]);
    Entry { kind, block_count, ..data_entry(random) }
}

/// An entry that may stand beside others.
pub(super) fn shared_entry(random: &mut Random) -> Entry {
    let entry = data_entry(random);
    match random.below(10) {
        0 => Entry { kind: EntryKind::Invalidate, is_dirty: false, ..entry },
        1 => Entry {
            kind: EntryKind::Drop {
                segment: random.below(1000) as u32,
                generation: Generation(random.between(1..=100)),
            },
            volume: VolumeId(0),
            volume_generation: Generation(0),
            start: 0,
            block_count: 0,
            version: Version(0),
            epoch: FlushEpoch(0),
            is_dirty: false,
        },
        _ => entry,
    }
}

fn data_entry(random: &mut Random) -> Entry {
    Entry {
        kind: EntryKind::Data,
        volume: VolumeId(random.between(1..=120)),
        volume_generation: Generation(random.between(1..=9)),
        start: random.below(1 << 30),
        block_count: random.between(1..=64) as u32,
        version: Version(random.between(1..=1 << 40)),
        epoch: FlushEpoch(random.below(1 << 30)),
        is_dirty: random.percent(50),
    }
}
