//! Records: the unit of the log. A header block of 4 KiB and its payload blocks, written in one go.
//!
//! The header guards its own bytes by a checksum, and the payload by one checksum a block. It
//! carries what recovery needs to tell a record of this life of this segment from anything else
//! that may stand there: set, segment, position, segment generation, recovery epoch, and the
//! sequence number of the record before it in the segment.

use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{COUNTER_MAX, SetId, VERSION_MAX, crc32c};
use crate::error::{Corrupt, Place};
use crate::units::{
    BLOCK_BYTES, Crc32c, EXTENT_BLOCKS_MAX, FlushEpoch, Generation, RecoveryEpoch, SequenceNumber,
    Version, VolumeId,
};

/// Most payload blocks in one record (1 MiB): the largest single device write of the log.
pub const RECORD_BLOCKS_MAX: u32 = EXTENT_BLOCKS_MAX;
/// Bytes of a header block that entries and block checksums share.
const BODY_BYTES: usize = BLOCK_BYTES - size_of::<RawHeader>();
/// Most blocks in an entry without payload. Bounds what one range of zeroes can cover (8 TiB).
pub const BLANK_BLOCKS_MAX: u64 = 1 << 31;

/// Most earlier sequence numbers of one record: each stands for a failed write.
pub const REPLACES_MAX: usize = 8;

const MAGIC: [u8; 4] = *b"fbr1";
const FLAG_DIRTY: u8 = 1;
const FLAG_MAY_UNMAP: u8 = 2;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawHeader {
    /// CRC32C of the header block behind this field.
    crc: U32,
    magic: [u8; 4],
    set_id: [u8; 16],
    /// Generation of the segment; an older one is a record of an earlier use.
    generation: U64,
    /// An older one is a record of a life that ended in a crash.
    recovery_epoch: U64,
    sequence: U64,
    /// Sequence number of the record before it in this segment; zero for the first.
    previous: U64,
    /// Sequence numbers under which the record was written before, if those writes failed; else
    /// zero.
    replaces: [U64; REPLACES_MAX],
    /// All records up to this one were durable when this one was written.
    durable_through: U64,
    /// Where the record stands; guards against misdirected writes.
    segment: U32,
    /// Block of the header within the segment.
    block: U32,
    payload_blocks: U32,
    entry_count: U32,
}

impl RawHeader {
    /// Whether the numbers are in their ranges.
    fn check_numbers(&self, place: Place) -> Result<(), Corrupt> {
        let sequence = self.sequence.get();
        Corrupt::unless_at_least(place, "sequence", 1, sequence)?;
        Corrupt::unless_at_most(place, "sequence", COUNTER_MAX, sequence)?;
        Corrupt::unless_at_most(place, "generation", COUNTER_MAX, self.generation.get())?;
        Corrupt::unless_at_most(place, "recovery epoch", COUNTER_MAX, self.recovery_epoch.get())?;
        // What was before it has a lower number, and nothing is durable before it is written.
        Corrupt::unless_at_most(place, "previous", sequence - 1, self.previous.get())?;
        let durable_through = self.durable_through.get();
        Corrupt::unless_at_most(place, "durable through", sequence - 1, durable_through)
    }

    /// Its earlier numbers: first those that there are, then zeroes.
    fn replaces(&self, place: Place) -> Result<Vec<SequenceNumber>, Corrupt> {
        let count = self.replaces.iter().take_while(|number| number.get() > 0).count();
        let (numbers, rest) = self.replaces.split_at(count);
        for number in numbers {
            let limit = self.sequence.get() - 1;
            Corrupt::unless_at_most(place, "replaced numbers", limit, number.get())?;
        }
        for number in rest {
            Corrupt::unless_equal(place, "replaced numbers", 0, number.get())?;
        }
        Ok(numbers.iter().map(|number| SequenceNumber(number.get())).collect())
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawEntry {
    volume_id: U64,
    volume_generation: U64,
    /// First origin block; the segment of a drop.
    start: U64,
    /// Version; the generation of a drop; the epoch of a mark.
    version: U64,
    epoch: U64,
    block_count: U32,
    kind: u8,
    flags: u8,
    reserved: U16,
}

const _: () = assert!(size_of::<RawHeader>() == 144);
const _: () = assert!(size_of::<RawEntry>() == 48);
/// Bytes of an entry in a header or a summary.
pub(crate) const ENTRY_BYTES: usize = size_of::<RawEntry>();

/// What an entry says of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// Their content is the payload.
    Data,
    /// They read as zeroes.
    Zeroes {
        /// Whether the origin may deallocate them.
        may_unmap: bool,
    },
    /// Their content is undefined; they read as zeroes while the entry lives.
    Discard,
    /// Their content was lost: reading them is an error until they are written (rule 12).
    Poison,
    /// No copy of them exists in the log.
    Invalidate,
    /// The payload of a segment is void (rule 3).
    Drop {
        /// The segment.
        segment: u32,
        /// Its generation.
        generation: Generation,
    },
    /// An ordered volume is drained through a flush epoch.
    Mark {
        /// The epoch.
        drained_through: FlushEpoch,
    },
}

impl EntryKind {
    /// Whether the entry is a copy of blocks without payload.
    #[must_use]
    pub fn is_blank(self) -> bool {
        matches!(self, EntryKind::Zeroes { .. } | EntryKind::Discard | EntryKind::Poison)
    }
}

/// One entry of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it says.
    pub kind: EntryKind,
    /// The volume; zero for a drop.
    pub volume: VolumeId,
    /// Generation of the volume; an older one voids the entry.
    pub volume_generation: Generation,
    /// First origin block.
    pub start: u64,
    /// Number of blocks.
    pub block_count: u32,
    /// Order among the copies of a block.
    pub version: Version,
    /// Flush epoch of the volume in which the blocks were written.
    pub epoch: FlushEpoch,
    /// Whether the origin did not have it when the record was written.
    pub is_dirty: bool,
}

impl Entry {
    /// Payload blocks of the entry.
    #[must_use]
    pub fn payload_blocks(&self) -> u32 {
        if self.kind == EntryKind::Data { self.block_count } else { 0 }
    }

    pub(crate) fn to_raw(self) -> RawEntry {
        let mut flags = if self.is_dirty { FLAG_DIRTY } else { 0 };
        let (kind, start, version) = match self.kind {
            EntryKind::Data => (1, self.start, self.version.0),
            EntryKind::Zeroes { may_unmap } => {
                flags |= if may_unmap { FLAG_MAY_UNMAP } else { 0 };
                (2, self.start, self.version.0)
            }
            EntryKind::Discard => (3, self.start, self.version.0),
            EntryKind::Poison => (4, self.start, self.version.0),
            EntryKind::Invalidate => (5, self.start, self.version.0),
            EntryKind::Drop { segment, generation } => (6, u64::from(segment), generation.0),
            EntryKind::Mark { drained_through } => (7, self.start, drained_through.0),
        };
        RawEntry {
            volume_id: self.volume.0.into(),
            volume_generation: self.volume_generation.0.into(),
            start: start.into(),
            version: version.into(),
            epoch: self.epoch.0.into(),
            block_count: self.block_count.into(),
            kind,
            flags,
            reserved: U16::ZERO,
        }
    }

    pub(crate) fn from_raw(place: Place, raw: &RawEntry) -> Result<Entry, Corrupt> {
        let (start, version) = (raw.start.get(), raw.version.get());
        let kind = match raw.kind {
            1 => EntryKind::Data,
            2 => EntryKind::Zeroes { may_unmap: raw.flags & FLAG_MAY_UNMAP != 0 },
            3 => EntryKind::Discard,
            4 => EntryKind::Poison,
            5 => EntryKind::Invalidate,
            6 => {
                Corrupt::unless_at_most(place, "dropped segment", u32::MAX.into(), start)?;
                let segment = u32::try_from(start).expect("checked above");
                EntryKind::Drop { segment, generation: Generation(version) }
            }
            7 => EntryKind::Mark { drained_through: FlushEpoch(version) },
            found => {
                let (field, found) = ("entry kind", found.into());
                return Err(Corrupt { place, field, expected: 7, found });
            }
        };
        let entry = Entry {
            kind,
            volume: VolumeId(raw.volume_id.get()),
            volume_generation: Generation(raw.volume_generation.get()),
            start,
            block_count: raw.block_count.get(),
            version: Version(version),
            epoch: FlushEpoch(raw.epoch.get()),
            is_dirty: raw.flags & FLAG_DIRTY != 0,
        };
        Corrupt::unless_equal(place, "entry reserved", 0, raw.reserved.get().into())?;
        let may_unmap = matches!(kind, EntryKind::Zeroes { .. });
        let known = FLAG_DIRTY | if may_unmap { FLAG_MAY_UNMAP } else { 0 };
        Corrupt::unless_equal(place, "entry flags", 0, (raw.flags & !known).into())?;
        entry.check_numbers(place)?;
        Ok(entry)
    }

    /// Whether the numbers are in their ranges.
    fn check_numbers(&self, place: Place) -> Result<(), Corrupt> {
        let (start, version) = (self.start, self.version.0);
        let count = u64::from(self.block_count);
        let (shortest, longest) = match self.kind {
            EntryKind::Data => (1, u64::from(RECORD_BLOCKS_MAX)),
            EntryKind::Drop { .. } | EntryKind::Mark { .. } => (0, 0),
            _ => (1, BLANK_BLOCKS_MAX),
        };
        Corrupt::unless_at_least(place, "entry length", shortest, count)?;
        Corrupt::unless_at_most(place, "entry length", longest, count)?;
        Corrupt::unless_at_most(place, "entry start", 1 << 40, start)?;
        Corrupt::unless_at_most(place, "entry end", 1 << 40, start + count)?;
        Corrupt::unless_at_most(place, "entry epoch", COUNTER_MAX, self.epoch.0)?;
        let generation = self.volume_generation.0;
        Corrupt::unless_at_most(place, "entry volume generation", COUNTER_MAX, generation)?;
        let is_counter = matches!(self.kind, EntryKind::Drop { .. } | EntryKind::Mark { .. });
        let limit = if is_counter { COUNTER_MAX } else { VERSION_MAX };
        Corrupt::unless_at_most(place, "entry version", limit, version)?;
        if matches!(self.kind, EntryKind::Drop { .. }) {
            let others = self.volume.0 | generation | self.epoch.0 | u64::from(self.is_dirty);
            Corrupt::unless_equal(place, "fields of a drop", 0, others)?;
        }
        Ok(())
    }
}

/// A record's header in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Generation of its segment.
    pub generation: Generation,
    /// Recovery epoch of the life that wrote it.
    pub recovery_epoch: RecoveryEpoch,
    /// Its place in the order of the log.
    pub sequence: SequenceNumber,
    /// The record before it in its segment; zero for the first.
    pub previous: SequenceNumber,
    /// Its earlier sequence numbers, under which writing it failed. At most [`REPLACES_MAX`].
    pub replaces: Vec<SequenceNumber>,
    /// All records up to this one were durable.
    pub durable_through: SequenceNumber,
    /// Its segment.
    pub segment: u32,
    /// Its first block within the segment.
    pub block: u32,
    /// Payload blocks behind the header.
    pub payload_blocks: u32,
    /// The entries, in the order of their payload.
    pub entries: Vec<Entry>,
    /// Checksums of the payload blocks.
    pub crcs: Vec<Crc32c>,
}

/// Whether so many entries and payload blocks fit into one record.
#[must_use]
pub fn fits(entry_count: usize, payload_blocks: u32) -> bool {
    payload_blocks <= RECORD_BLOCKS_MAX
        && entry_count * ENTRY_BYTES + payload_blocks as usize * 4 <= BODY_BYTES
}

impl RecordHeader {
    /// Writes the header block.
    pub fn encode(&self, set_id: &SetId, block: &mut [u8]) {
        assert_eq!(block.len(), BLOCK_BYTES);
        assert!(fits(self.entries.len(), self.payload_blocks));
        assert_eq!(self.crcs.len(), self.payload_blocks as usize);
        assert!(self.replaces.len() <= REPLACES_MAX);
        block.fill(0);
        let mut replaces = [U64::ZERO; REPLACES_MAX];
        for (slot, sequence) in replaces.iter_mut().zip(&self.replaces) {
            *slot = sequence.0.into();
        }
        let raw = RawHeader {
            crc: U32::ZERO,
            magic: MAGIC,
            set_id: *set_id,
            generation: self.generation.0.into(),
            recovery_epoch: self.recovery_epoch.0.into(),
            sequence: self.sequence.0.into(),
            previous: self.previous.0.into(),
            replaces,
            durable_through: self.durable_through.0.into(),
            segment: self.segment.into(),
            block: self.block.into(),
            payload_blocks: self.payload_blocks.into(),
            entry_count: u32::try_from(self.entries.len()).expect("fits").into(),
        };
        block[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        let mut at = size_of::<RawHeader>();
        for entry in &self.entries {
            block[at..at + ENTRY_BYTES].copy_from_slice(entry.to_raw().as_bytes());
            at += ENTRY_BYTES;
        }
        for crc in &self.crcs {
            block[at..at + 4].copy_from_slice(&crc.0.to_le_bytes());
            at += 4;
        }
        let crc = crc32c(&block[4..]);
        block[..4].copy_from_slice(&crc.0.to_le_bytes());
    }

    /// Reads a header block that should stand at `block_index` of `segment`.
    ///
    /// # Errors If it is not a whole header of this set at this place. Whether it belongs to this
    /// life of the segment is the caller's question.
    pub fn decode(
        set_id: &SetId,
        segment: u32,
        block_index: u32,
        block: &[u8],
    ) -> Result<RecordHeader, Corrupt> {
        let place = Place::Record { segment, block: block_index };
        assert_eq!(block.len(), BLOCK_BYTES);
        let (raw, body) = RawHeader::read_from_prefix(block).expect("a block is longer");
        let magic = u32::from_le_bytes(raw.magic);
        Corrupt::unless_equal(place, "magic", u32::from_le_bytes(MAGIC).into(), magic.into())?;
        let crc = crc32c(&block[4..]);
        Corrupt::unless_equal(place, "checksum", crc.0.into(), raw.crc.get().into())?;
        Corrupt::unless_same_set(place, set_id, &raw.set_id)?;
        Corrupt::unless_equal(place, "segment", segment.into(), raw.segment.get().into())?;
        Corrupt::unless_equal(place, "block", block_index.into(), raw.block.get().into())?;
        raw.check_numbers(place)?;
        let (entry_count, payload) = (raw.entry_count.get() as usize, raw.payload_blocks.get());
        Corrupt::unless_at_most(place, "payload", RECORD_BLOCKS_MAX.into(), payload.into())?;
        let entries_max = (BODY_BYTES - payload as usize * 4) / ENTRY_BYTES;
        Corrupt::unless_at_most(place, "entries", entries_max as u64, entry_count as u64)?;
        let mut entries = Vec::with_capacity(entry_count);
        for bytes in body.chunks_exact(ENTRY_BYTES).take(entry_count) {
            let raw = RawEntry::read_from_bytes(bytes).expect("an entry has ENTRY_BYTES");
            entries.push(Entry::from_raw(place, &raw)?);
        }
        let blanks = entries.iter().filter(|entry| entry.kind.is_blank()).count() as u64;
        // The bits of the header block in a checkpoint stand for one entry without payload.
        if blanks > 0 {
            let count = entry_count as u64;
            Corrupt::unless_equal(place, "entries beside one without payload", 1, count)?;
        }
        let sum: u64 = entries.iter().map(|entry| u64::from(entry.payload_blocks())).sum();
        Corrupt::unless_equal(place, "payload of the entries", payload.into(), sum)?;
        let (crcs, rest) = body[entry_count * ENTRY_BYTES..].split_at(payload as usize * 4);
        Corrupt::unless_zero(place, "bytes behind the checksums", rest)?;
        let crcs = crcs
            .chunks_exact(4)
            .map(|b| Crc32c(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect();
        Ok(RecordHeader {
            generation: Generation(raw.generation.get()),
            recovery_epoch: RecoveryEpoch(raw.recovery_epoch.get()),
            sequence: SequenceNumber(raw.sequence.get()),
            previous: SequenceNumber(raw.previous.get()),
            replaces: raw.replaces(place)?,
            durable_through: SequenceNumber(raw.durable_through.get()),
            segment,
            block: block_index,
            payload_blocks: payload,
            entries,
            crcs,
        })
    }
}
