//! Summaries of segments.

use forebay_engine::format::record::EntryKind;
use forebay_engine::format::summary::{PlacedEntry, Summary, summary_blocks};
use forebay_engine::units::{BLOCK_BYTES, Crc32c, Generation};

use super::bytes::damage_structure;
use super::record::{blank_entry, shared_entry};
use super::{Reached, Target, judge};
use crate::random::Random;

const SET_ID: [u8; 16] = *b"summaries of set";
/// Blocks of a small segment.
const SEGMENT_BLOCKS: u32 = 64;

pub(super) const TARGET: Target = Target {
    name: "summary",
    about: "the summary of a closed segment",
    test_cases: 150_000,
    must_reach: &[
        "whole",
        "checksum",
        "magic",
        "set identity",
        "segment",
        "generation",
        "reserved",
        "length",
        "used blocks",
        "entries and checksums",
        "bytes behind the checksums",
        "place of an entry",
        "order of the entries",
        "entry kind",
        "entry length",
        "entry start",
        "entry version",
    ],
    case,
};

fn case(random: &mut Random, reached: &mut Reached) -> Result<(), String> {
    let summary = sample(random);
    let used_blocks = summary.crcs.len() as u32;
    let (segment, generation) = (random.below(1 << 20) as u32, Generation(random.bits() >> 3));
    let write = |summary: &Summary| {
        let used_blocks = summary.crcs.len() as u32;
        let blocks = summary_blocks(summary.entries.len(), used_blocks) as usize;
        let mut bytes = vec![0; blocks * BLOCK_BYTES];
        summary.encode(&SET_ID, segment, generation, &mut bytes);
        bytes
    };
    let mut bytes = write(&summary);
    let length = 48 + summary.entries.len() * 56 + 8;
    damage_structure(&mut bytes, length.min(BLOCK_BYTES), random);
    match random.below(20) {
        0 => bytes.truncate(random.index(60)),
        1 => {
            bytes.extend(vec![0; BLOCK_BYTES]);
            super::bytes::seal(&mut bytes);
        }
        _ => {}
    }
    let parsed = Summary::decode(&SET_ID, segment, generation, used_blocks, &bytes);
    judge(parsed, &bytes, write, reached)
}

/// What a segment full of records might hold.
fn sample(random: &mut Random) -> Summary {
    let mut summary = Summary::default();
    let mut at = 0;
    while at < SEGMENT_BLOCKS {
        let header = at;
        at += 1;
        if random.percent(20) {
            summary.entries.push(PlacedEntry { entry: blank_entry(random), block: header });
            continue;
        }
        for _ in 0..random.between(1..=5) {
            let entry = shared_entry(random);
            let is_data = entry.kind == EntryKind::Data;
            if at + entry.payload_blocks() <= SEGMENT_BLOCKS {
                let block = if is_data { at } else { header };
                summary.entries.push(PlacedEntry { entry, block });
                at += entry.payload_blocks();
            }
        }
    }
    summary.crcs = (0..at).map(|_| Crc32c(random.bits() as u32)).collect();
    summary
}
