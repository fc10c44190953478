//! Checkpoints: the segment table and two bits a block, as of a sequence number (rule 6).
//!
//! The last one of a clean stop has a third bit a block: which of them were used, so that the cache
//! is as warm after the next start as it was.
//!
//! A checkpoint describes exactly the records up to its sequence number. The index is not in it:
//! recovery builds it from the summaries of the segments that have live blocks. A checksum over the
//! whole body makes a half-written checkpoint invalid; the other area then holds the one before.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::superblock::{Geometry, VOLUMES_MAX};
use super::{COUNTER_MAX, SetId, VERSION_MAX, crc32c};
use crate::error::{Corrupt, Place};
use crate::policy::Queue;
use crate::units::{
    BLOCK_BYTES, FlushEpoch, Generation, RecoveryEpoch, SequenceNumber, Version, VolumeId,
};

/// Most pieces of partly superseded zeroes and discards that a checkpoint can carry; the engine
/// writes such extents back before there are more.
pub const BLANK_PIECES_MAX: usize = 4096;

const MAGIC: [u8; 4] = *b"fbc1";
/// Flag of a segment: it is part of the small queue of replacement.
const IN_SMALL_QUEUE: u32 = 1;
/// Flag of a segment: it says which blocks were used.
const HAS_REFERENCES: u32 = 2;
/// Bits a block that a segment can have.
const BITS_MAX: u64 = 3;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawHeader {
    /// CRC32C of the checkpoint behind this field, up to `body_bytes`.
    crc: U32,
    magic: [u8; 4],
    set_id: [u8; 16],
    /// Raised by one each time; the valid area with the higher one decides.
    id: U64,
    /// Bytes of the checkpoint, header included.
    body_bytes: U64,
    sequence: U64,
    next_version: U64,
    recovery_epoch: U64,
    segment_count: U32,
    segment_blocks: U32,
    volume_count: U32,
    piece_count: U32,
}

impl RawHeader {
    /// Whether the numbers are in their ranges.
    fn check_numbers(&self, place: Place) -> Result<(), Corrupt> {
        Corrupt::unless_at_most(place, "id", COUNTER_MAX, self.id.get())?;
        Corrupt::unless_at_most(place, "sequence", COUNTER_MAX, self.sequence.get())?;
        Corrupt::unless_at_most(place, "next version", VERSION_MAX, self.next_version.get())?;
        Corrupt::unless_at_most(place, "recovery epoch", COUNTER_MAX, self.recovery_epoch.get())
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawVolume {
    id: U64,
    epoch: U64,
    drained_through: U64,
    reserved: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawSegment {
    generation: U64,
    /// Sequence number of the last record up to the checkpoint's.
    last_sequence: U64,
    used_blocks: U32,
    summary_blocks: U32,
    /// See `SegmentUse`.
    segment_use: U32,
    /// [`IN_SMALL_QUEUE`], [`HAS_REFERENCES`]; zero if it is free.
    flags: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawPiece {
    /// Position of the header of the blank record, in blocks of the segment area.
    position: U32,
    block_count: U32,
    /// First origin block of the piece.
    start: U64,
}

const _: () = assert!(size_of::<RawHeader>() == 80);
const _: () = assert!(size_of::<RawVolume>() == 32);
const _: () = assert!(size_of::<RawSegment>() == 32);
const _: () = assert!(size_of::<RawPiece>() == 16);

/// What a checkpoint says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentUse {
    /// Nothing of it counts. Records of the next generation may follow the checkpoint.
    Free,
    /// Records may follow behind `used_blocks`.
    Open,
    /// Nothing follows; a summary stands behind the records if `summary_blocks` is not zero.
    Closed,
}

/// Live and dirty bits of the blocks of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bits {
    /// The block is the newest copy of its origin block (for headers: of a blank entry).
    pub live: Vec<u64>,
    /// The origin may not have it.
    pub dirty: Vec<u64>,
}

impl Bits {
    /// All zero.
    #[must_use]
    pub fn new(blocks: u32) -> Bits {
        let words = blocks.div_ceil(64) as usize;
        Bits { live: vec![0; words], dirty: vec![0; words] }
    }
}

/// The state of a bit.
#[must_use]
pub fn bit(words: &[u64], index: u32) -> bool {
    words[(index / 64) as usize] >> (index % 64) & 1 == 1
}

/// Sets a bit; tells whether it was clear before.
pub fn set_bit(words: &mut [u64], index: u32) -> bool {
    let was = bit(words, index);
    words[(index / 64) as usize] |= 1 << (index % 64);
    !was
}

/// Clears a bit; tells whether it was set before.
pub fn clear_bit(words: &mut [u64], index: u32) -> bool {
    let was = bit(words, index);
    words[(index / 64) as usize] &= !(1 << (index % 64));
    was
}

/// One line of the segment table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentLine {
    /// Generation.
    pub generation: Generation,
    /// Last record up to the checkpoint's sequence number.
    pub last_sequence: SequenceNumber,
    /// Blocks that the records take. What lies behind and is no newer than the checkpoint is no
    /// record.
    pub used_blocks: u32,
    /// Blocks of the summary behind the records; zero if there is none.
    pub summary_blocks: u32,
    /// Use.
    pub segment_use: SegmentUse,
    /// Bits; shared with the engine until it changes them.
    pub bits: Option<Arc<Bits>>,
    /// The queue of replacement that it is part of.
    pub queue: Queue,
    /// Which blocks were used since they were placed, at a clean stop; else `None`. As many words
    /// as there are of other bits.
    pub references: Option<Vec<u64>>,
}

impl SegmentLine {
    /// Whether no block is live or dirty: nobody needs anything of the segment.
    #[must_use]
    pub fn has_nothing_alive(&self) -> bool {
        let is_zero = |words: &[u64]| words.iter().all(|word| *word == 0);
        self.bits.as_ref().is_none_or(|bits| is_zero(&bits.live) && is_zero(&bits.dirty))
    }
}

/// Per volume state of ordered writeback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeLine {
    /// The volume.
    pub id: VolumeId,
    /// Flush epoch under way.
    pub epoch: FlushEpoch,
    /// The origin has everything through this epoch.
    pub drained_through: FlushEpoch,
}

/// A live piece of a blank record that is partly superseded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlankPiece {
    /// Header of its record.
    pub position: u32,
    /// First origin block.
    pub start: u64,
    /// Number of blocks.
    pub block_count: u32,
}

/// A checkpoint in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Raised by one each time.
    pub id: u64,
    /// All records up to this one count, none after it.
    pub sequence: SequenceNumber,
    /// The next version to give out.
    pub next_version: Version,
    /// Records that follow carry this one.
    pub recovery_epoch: RecoveryEpoch,
    /// Volumes.
    pub volumes: Vec<VolumeLine>,
    /// Segments.
    pub segments: Vec<SegmentLine>,
    /// Pieces of partly superseded blank records. A blank record that is not named here and has
    /// its live bit set is live as a whole.
    pub pieces: Vec<BlankPiece>,
}

/// Bytes of one checkpoint area for so many segments of so many blocks.
#[must_use]
pub fn area_bytes(segment_count: u64, segment_blocks: u64) -> u64 {
    let fixed = size_of::<RawHeader>()
        + VOLUMES_MAX * size_of::<RawVolume>()
        + BLANK_PIECES_MAX * size_of::<RawPiece>();
    let segment = size_of::<RawSegment>() as u64 + BITS_MAX * segment_blocks.div_ceil(64) * 8;
    (fixed as u64 + segment_count * segment).next_multiple_of(BLOCK_BYTES as u64)
}

impl Checkpoint {
    /// The first checkpoint of a fresh device.
    #[must_use]
    pub fn empty(geometry: &Geometry) -> Checkpoint {
        let line = SegmentLine {
            generation: Generation(0),
            last_sequence: SequenceNumber(0),
            used_blocks: 0,
            summary_blocks: 0,
            segment_use: SegmentUse::Free,
            bits: None,
            queue: Queue::Main,
            references: None,
        };
        Checkpoint {
            id: 1,
            sequence: SequenceNumber(0),
            next_version: Version(1),
            recovery_epoch: RecoveryEpoch(1),
            volumes: Vec::new(),
            segments: vec![line; geometry.segment_count as usize],
            pieces: Vec::new(),
        }
    }

    /// The checkpoint as bytes: a whole number of blocks.
    #[must_use]
    pub fn encode(&self, set_id: &SetId, geometry: &Geometry) -> Vec<u8> {
        assert!(self.pieces.len() <= BLANK_PIECES_MAX);
        assert_eq!(self.segments.len(), geometry.segment_count as usize);
        let area = usize::try_from(geometry.checkpoint_bytes).expect("fits in memory");
        let mut bytes = Vec::with_capacity(area);
        let header = RawHeader {
            crc: U32::ZERO,
            magic: MAGIC,
            set_id: *set_id,
            id: self.id.into(),
            body_bytes: U64::ZERO,
            sequence: self.sequence.0.into(),
            next_version: self.next_version.0.into(),
            recovery_epoch: self.recovery_epoch.0.into(),
            segment_count: geometry.segment_count.into(),
            segment_blocks: geometry.segment_blocks().into(),
            volume_count: u32::try_from(self.volumes.len()).expect("VOLUMES_MAX").into(),
            piece_count: u32::try_from(self.pieces.len()).expect("BLANK_PIECES_MAX").into(),
        };
        bytes.extend_from_slice(header.as_bytes());
        for volume in &self.volumes {
            let raw = RawVolume {
                id: volume.id.0.into(),
                epoch: volume.epoch.0.into(),
                drained_through: volume.drained_through.0.into(),
                reserved: U64::ZERO,
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        for piece in &self.pieces {
            let raw = RawPiece {
                position: piece.position.into(),
                block_count: piece.block_count.into(),
                start: piece.start.into(),
            };
            bytes.extend_from_slice(raw.as_bytes());
        }
        for segment in &self.segments {
            encode_segment(segment, geometry.segment_blocks(), &mut bytes);
        }
        let body_bytes = bytes.len() as u64;
        assert!(body_bytes <= geometry.checkpoint_bytes);
        bytes[32..40].copy_from_slice(&body_bytes.to_le_bytes());
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.0.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    /// Reads a checkpoint from the bytes of an area.
    ///
    /// # Errors
    /// If it is not a whole checkpoint of this set.
    pub fn decode(
        set_id: &SetId,
        geometry: &Geometry,
        area: u8,
        bytes: &[u8],
    ) -> Result<Checkpoint, Corrupt> {
        let place = Place::Checkpoint { area };
        let Ok((raw, _)) = RawHeader::read_from_prefix(bytes) else {
            let (expected, found) = (size_of::<RawHeader>() as u64, bytes.len() as u64);
            return Err(Corrupt { place, field: "length", expected, found });
        };
        let magic = u32::from_le_bytes(raw.magic);
        Corrupt::unless_equal(place, "magic", u32::from_le_bytes(MAGIC).into(), magic.into())?;
        Corrupt::unless_same_set(place, set_id, &raw.set_id)?;
        let body_bytes = raw.body_bytes.get();
        Corrupt::unless_at_most(place, "length", bytes.len() as u64, body_bytes)?;
        let body = &bytes[..usize::try_from(body_bytes).expect("checked above")];
        Corrupt::unless_at_least(place, "header", size_of::<RawHeader>() as u64, body_bytes)?;
        let crc = crc32c(&body[4..]);
        Corrupt::unless_equal(place, "checksum", crc.0.into(), raw.crc.get().into())?;
        raw.check_numbers(place)?;
        let count = u64::from(geometry.segment_count);
        Corrupt::unless_equal(place, "segments", count, raw.segment_count.get().into())?;
        let blocks = geometry.segment_blocks();
        let found = raw.segment_blocks.get();
        Corrupt::unless_equal(place, "segment blocks", blocks.into(), found.into())?;
        let mut reader = Reader { place, bytes: &body[size_of::<RawHeader>()..] };
        let limit = VOLUMES_MAX as u64;
        Corrupt::unless_at_most(place, "volumes", limit, raw.volume_count.get().into())?;
        let limit = BLANK_PIECES_MAX as u64;
        Corrupt::unless_at_most(place, "pieces", limit, raw.piece_count.get().into())?;
        let mut volumes = Vec::new();
        for _ in 0..raw.volume_count.get() {
            let volume: RawVolume = reader.next()?;
            Corrupt::unless_equal(place, "reserved bytes", 0, volume.reserved.get())?;
            Corrupt::unless_at_most(place, "flush epoch", COUNTER_MAX, volume.epoch.get())?;
            let (epoch, drained) = (volume.epoch.get(), volume.drained_through.get());
            Corrupt::unless_at_most(place, "drained through", epoch, drained)?;
            volumes.push(VolumeLine {
                id: VolumeId(volume.id.get()),
                epoch: FlushEpoch(volume.epoch.get()),
                drained_through: FlushEpoch(volume.drained_through.get()),
            });
        }
        let mut pieces = Vec::new();
        for _ in 0..raw.piece_count.get() {
            pieces.push(decode_piece(reader.next()?, place)?);
        }
        let mut segments = Vec::with_capacity(geometry.segment_count as usize);
        for _ in 0..geometry.segment_count {
            segments.push(decode_segment(&mut reader, blocks, raw.sequence.get())?);
        }
        Corrupt::unless_equal(place, "bytes behind the table", 0, reader.bytes.len() as u64)?;
        Ok(Checkpoint {
            id: raw.id.get(),
            sequence: SequenceNumber(raw.sequence.get()),
            next_version: Version(raw.next_version.get()),
            recovery_epoch: RecoveryEpoch(raw.recovery_epoch.get()),
            volumes,
            segments,
            pieces,
        })
    }
}

fn encode_segment(segment: &SegmentLine, blocks: u32, bytes: &mut Vec<u8>) {
    let raw = RawSegment {
        generation: segment.generation.0.into(),
        last_sequence: segment.last_sequence.0.into(),
        used_blocks: segment.used_blocks.into(),
        summary_blocks: segment.summary_blocks.into(),
        segment_use: match segment.segment_use {
            SegmentUse::Free => 0,
            SegmentUse::Open => 1,
            SegmentUse::Closed => 2,
        }
        .into(),
        flags: flags(segment).into(),
    };
    bytes.extend_from_slice(raw.as_bytes());
    if segment.segment_use == SegmentUse::Free {
        return;
    }
    let empty = Bits::new(blocks);
    let bits = segment.bits.as_deref().unwrap_or(&empty);
    let references = segment.references.as_deref().unwrap_or_default();
    assert!(references.is_empty() || references.len() == bits.live.len());
    for word in bits.live.iter().chain(&bits.dirty).chain(references) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

fn flags(segment: &SegmentLine) -> u32 {
    if segment.segment_use == SegmentUse::Free {
        return 0;
    }
    let queue = if segment.queue == Queue::Small { IN_SMALL_QUEUE } else { 0 };
    let references = if segment.references.is_some() { HAS_REFERENCES } else { 0 };
    queue | references
}

fn decode_piece(piece: RawPiece, place: Place) -> Result<BlankPiece, Corrupt> {
    let (start, block_count) = (piece.start.get(), piece.block_count.get());
    let end = start.saturating_add(block_count.into());
    Corrupt::unless_at_most(place, "piece", 1 << 40, end)?;
    Corrupt::unless_at_least(place, "piece length", 1, block_count.into())?;
    Ok(BlankPiece { position: piece.position.get(), start, block_count })
}

fn decode_segment(
    reader: &mut Reader<'_>,
    blocks: u32,
    sequence: u64,
) -> Result<SegmentLine, Corrupt> {
    let place = reader.place;
    let raw: RawSegment = reader.next()?;
    Corrupt::unless_at_most(place, "generation", COUNTER_MAX, raw.generation.get())?;
    Corrupt::unless_at_most(place, "last sequence", sequence, raw.last_sequence.get())?;
    let segment_use = match raw.segment_use.get() {
        0 => SegmentUse::Free,
        1 => SegmentUse::Open,
        2 => SegmentUse::Closed,
        found => {
            let (field, found) = ("segment use", found.into());
            return Err(Corrupt { place, field, expected: 2, found });
        }
    };
    let end = u64::from(raw.used_blocks.get()) + u64::from(raw.summary_blocks.get());
    Corrupt::unless_at_most(place, "used blocks", blocks.into(), end)?;
    let flags = raw.flags.get();
    let is_free = segment_use == SegmentUse::Free;
    let most = if is_free { 0 } else { IN_SMALL_QUEUE | HAS_REFERENCES };
    Corrupt::unless_at_most(place, "segment flags", most.into(), flags.into())?;
    let queue = if flags & IN_SMALL_QUEUE == 0 { Queue::Main } else { Queue::Small };
    let words = blocks.div_ceil(64) as usize;
    let bits = if is_free {
        None
    } else {
        Some(Arc::new(Bits { live: reader.words(words)?, dirty: reader.words(words)? }))
    };
    let references = if flags & HAS_REFERENCES == 0 { None } else { Some(reader.words(words)?) };
    Ok(SegmentLine {
        generation: Generation(raw.generation.get()),
        last_sequence: SequenceNumber(raw.last_sequence.get()),
        used_blocks: raw.used_blocks.get(),
        summary_blocks: raw.summary_blocks.get(),
        segment_use,
        bits,
        queue,
        references,
    })
}

struct Reader<'a> {
    place: Place,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn next<T: FromBytes>(&mut self) -> Result<T, Corrupt> {
        let (value, rest) = T::read_from_prefix(self.bytes).map_err(|_| Corrupt {
            place: self.place,
            field: "remaining length",
            expected: size_of::<T>() as u64,
            found: self.bytes.len() as u64,
        })?;
        self.bytes = rest;
        Ok(value)
    }

    fn words(&mut self, count: usize) -> Result<Vec<u64>, Corrupt> {
        let mut words = Vec::with_capacity(count);
        for _ in 0..count {
            words.push(self.next::<U64>()?.get());
        }
        Ok(words)
    }
}
