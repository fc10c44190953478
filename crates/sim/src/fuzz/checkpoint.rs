//! Checkpoints.

use std::sync::Arc;

use forebay_engine::format::checkpoint::{
    Bits, BlankPiece, Checkpoint, SegmentLine, SegmentUse, VolumeLine,
};
use forebay_engine::format::superblock::Geometry;
use forebay_engine::policy::Queue;
use forebay_engine::units::{
    FlushEpoch, Generation, RecoveryEpoch, SequenceNumber, Version, VolumeId,
};

use super::bytes::{damage, seal};
use super::{Reached, Target, judge};
use crate::random::Random;

const SET_ID: [u8; 16] = *b"checkpoints, set";
const SEGMENT_BYTES: u64 = 256 * 1024;

pub(super) const TARGET: Target = Target {
    name: "checkpoint",
    about: "a checkpoint with its segment table",
    test_cases: 60_000,
    must_reach: &[
        "whole",
        "checksum",
        "magic",
        "set identity",
        "id",
        "length",
        "header",
        "sequence",
        "next version",
        "recovery epoch",
        "segments",
        "segment blocks",
        "volumes",
        "pieces",
        "remaining length",
        "bytes behind the table",
        "reserved bytes",
        "flush epoch",
        "drained through",
        "piece",
        "piece length",
        "generation",
        "last sequence",
        "used blocks",
        "segment use",
    ],
    case,
};

fn case(random: &mut Random, reached: &mut Reached) -> Result<(), String> {
    let geometry = Geometry::new(SEGMENT_BYTES * 26, Some(SEGMENT_BYTES)).expect("a good size");
    let checkpoint = sample(&geometry, random);
    let padded = checkpoint.encode(&SET_ID, &geometry);
    let body_bytes = u64::from_le_bytes(padded[32..40].try_into().expect("8 bytes")) as usize;
    let mut bytes = padded;
    bytes.truncate(body_bytes);
    if random.percent(90) {
        let header_and_lines = 80 + checkpoint.volumes.len() * 32 + checkpoint.pieces.len() * 16;
        let first = (header_and_lines + 64).min(body_bytes);
        for _ in 0..random.between(1..=3) {
            let length = *random.pick(&[80, first, body_bytes]);
            damage(&mut bytes, length, random);
        }
        if random.percent(85) {
            seal(&mut bytes);
        }
    }
    if random.percent(5) {
        bytes.truncate(random.index(body_bytes));
    } else if random.percent(5) {
        // A length that stands for fewer bytes than there are.
        let fewer = random.below(body_bytes as u64 + 1) as usize;
        bytes[32..40].copy_from_slice(&(fewer as u64).to_le_bytes());
        if fewer >= 40 {
            seal(&mut bytes[..fewer]);
            bytes.truncate(fewer);
        }
    }
    let parsed = Checkpoint::decode(&SET_ID, &geometry, 0, &bytes);
    let write = |checkpoint: &Checkpoint| {
        let mut written = checkpoint.encode(&SET_ID, &geometry);
        written.truncate(bytes.len());
        written
    };
    judge(parsed, &bytes, write, reached)
}

fn sample(geometry: &Geometry, random: &mut Random) -> Checkpoint {
    let blocks = geometry.segment_blocks();
    let sequence = random.between(1000..=1 << 40);
    let mut segment = || {
        let segment_use = *random.pick(&[SegmentUse::Free, SegmentUse::Open, SegmentUse::Closed]);
        let mut bits = Bits::new(blocks);
        bits.live.fill_with(|| random.bits());
        let is_used = segment_use != SegmentUse::Free;
        let words = bits.live.len();
        let bits = is_used.then(|| Arc::new(bits));
        let queue = *random.pick(&[Queue::Small, Queue::Main]);
        let references =
            (is_used && random.percent(50)).then(|| (0..words).map(|_| random.bits()).collect());
        SegmentLine {
            generation: Generation(random.below(1 << 30)),
            last_sequence: SequenceNumber(random.below(1000)),
            used_blocks: random.below(61) as u32,
            summary_blocks: random.below(4) as u32,
            segment_use,
            bits,
            queue: if is_used { queue } else { Queue::Main },
            references,
        }
    };
    let segments = (0..geometry.segment_count).map(|_| segment()).collect();
    let cache_blocks = u64::from(geometry.segment_count * blocks);
    Checkpoint {
        id: random.between(1..=1 << 40),
        sequence: SequenceNumber(sequence),
        next_version: Version(random.between(1..=1 << 40)),
        recovery_epoch: RecoveryEpoch(random.between(1..=1 << 20)),
        volumes: (0..random.below(5))
            .map(|index| VolumeLine {
                id: VolumeId(index + 1),
                epoch: FlushEpoch(random.below(1 << 40)),
                drained_through: FlushEpoch(0),
            })
            .collect(),
        segments,
        pieces: (0..random.below(10))
            .map(|_| BlankPiece {
                position: random.below(cache_blocks) as u32,
                start: random.below(1 << 39),
                block_count: random.between(1..=1 << 20) as u32,
            })
            .collect(),
    }
}
