//! Summaries: what is in a closed segment, so that recovery and reclaim need not read its headers.
//!
//! A summary stands right behind the last record of its segment. It is a copy of the headers'
//! entries and checksums; if it is damaged, the headers are read instead.

use alloc::vec::Vec;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::record::{ENTRY_BYTES, Entry, RawEntry};
use super::{SetId, crc32c};
use crate::error::{Corrupt, Place};
use crate::units::{BLOCK_BYTES, Crc32c, Generation};

const MAGIC: [u8; 4] = *b"fbs1";

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawSummary {
    /// CRC32C of the whole summary behind this field.
    crc: U32,
    magic: [u8; 4],
    set_id: [u8; 16],
    generation: U64,
    segment: U32,
    /// Blocks that the records take, and number of checksums.
    used_blocks: U32,
    entry_count: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<RawSummary>() == 48);
/// An entry and the block of the segment where its record's header (blank) or payload (data) is.
const PLACED_BYTES: usize = ENTRY_BYTES + 8;

/// An entry and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlacedEntry {
    /// The entry.
    pub entry: Entry,
    /// First payload block of a data entry within the segment, else the block of its header.
    pub block: u32,
}

/// What is in a segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Entries in log order.
    pub entries: Vec<PlacedEntry>,
    /// Checksum of each used block; zero for headers.
    pub crcs: Vec<Crc32c>,
}

/// Blocks that a summary of so many entries and used blocks takes.
#[must_use]
pub fn summary_blocks(entry_count: usize, used_blocks: u32) -> u32 {
    let bytes = size_of::<RawSummary>() + entry_count * PLACED_BYTES + used_blocks as usize * 4;
    u32::try_from(bytes.div_ceil(BLOCK_BYTES)).expect("a summary is smaller than its segment")
}

impl Summary {
    /// Writes the summary; `bytes` is a whole number of blocks, [`summary_blocks`] of them.
    pub fn encode(&self, set_id: &SetId, segment: u32, generation: Generation, bytes: &mut [u8]) {
        let used_blocks = u32::try_from(self.crcs.len()).expect("a segment is small");
        let blocks = summary_blocks(self.entries.len(), used_blocks) as usize;
        assert_eq!(bytes.len(), blocks * BLOCK_BYTES);
        bytes.fill(0);
        let raw = RawSummary {
            crc: U32::ZERO,
            magic: MAGIC,
            set_id: *set_id,
            generation: generation.0.into(),
            segment: segment.into(),
            used_blocks: used_blocks.into(),
            entry_count: u32::try_from(self.entries.len()).expect("a segment is small").into(),
            reserved: U32::ZERO,
        };
        bytes[..size_of::<RawSummary>()].copy_from_slice(raw.as_bytes());
        let mut at = size_of::<RawSummary>();
        for placed in &self.entries {
            let raw = placed.entry.to_raw();
            bytes[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
            let block = u64::from(placed.block).to_le_bytes();
            bytes[at + ENTRY_BYTES..at + PLACED_BYTES].copy_from_slice(&block);
            at += PLACED_BYTES;
        }
        for crc in &self.crcs {
            bytes[at..at + 4].copy_from_slice(&crc.0.to_le_bytes());
            at += 4;
        }
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.0.to_le_bytes());
    }

    /// Reads the summary of this generation of `segment`, of which records take `used_blocks`.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn decode(
        set_id: &SetId,
        segment: u32,
        generation: Generation,
        used_blocks: u32,
        bytes: &[u8],
    ) -> Result<Summary, Corrupt> {
        let place = Place::Summary { segment };
        let Ok((raw, body)) = RawSummary::read_from_prefix(bytes) else {
            let (expected, found) = (size_of::<RawSummary>() as u64, bytes.len() as u64);
            return Err(Corrupt { place, field: "length", expected, found });
        };
        let magic = u32::from_le_bytes(raw.magic);
        Corrupt::unless_equal(place, "magic", u32::from_le_bytes(MAGIC).into(), magic.into())?;
        let crc = crc32c(&bytes[4..]);
        Corrupt::unless_equal(place, "checksum", crc.0.into(), raw.crc.get().into())?;
        Corrupt::unless_same_set(place, set_id, &raw.set_id)?;
        Corrupt::unless_equal(place, "segment", segment.into(), raw.segment.get().into())?;
        Corrupt::unless_equal(place, "generation", generation.0, raw.generation.get())?;
        Corrupt::unless_equal(place, "reserved", 0, raw.reserved.get().into())?;
        let used = raw.used_blocks.get();
        Corrupt::unless_equal(place, "used blocks", used_blocks.into(), used.into())?;
        let (count, used) = (raw.entry_count.get() as usize, raw.used_blocks.get() as usize);
        let (length, needed) = (body.len() as u64, count as u64 * PLACED_BYTES as u64);
        Corrupt::unless_at_most(place, "entries and checksums", length, needed + used as u64 * 4)?;
        let blocks = u64::from(summary_blocks(count, used_blocks));
        Corrupt::unless_equal(place, "length", blocks * BLOCK_BYTES as u64, bytes.len() as u64)?;
        let mut entries = Vec::with_capacity(count);
        let mut order = Order::default();
        for bytes in body.chunks_exact(PLACED_BYTES).take(count) {
            let raw = RawEntry::read_from_bytes(&bytes[..ENTRY_BYTES]).expect("ENTRY_BYTES");
            let entry = Entry::from_raw(place, &raw)?;
            let block = u64::from_le_bytes(bytes[ENTRY_BYTES..].try_into().expect("8 bytes"));
            let end = block.saturating_add(u64::from(entry.payload_blocks()));
            Corrupt::unless_at_most(place, "place of an entry", used as u64, end)?;
            let block = u32::try_from(block).expect("checked above");
            let placed = PlacedEntry { entry, block };
            order.check(place, &placed)?;
            entries.push(placed);
        }
        let (crcs, rest) = body[count * PLACED_BYTES..].split_at(used * 4);
        Corrupt::unless_zero(place, "bytes behind the checksums", rest)?;
        let crcs = crcs
            .chunks_exact(4)
            .map(|b| Crc32c(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect();
        Ok(Summary { entries, crcs })
    }
}

/// The records of a segment as its entries tell of them: one behind the other, none over another.
#[derive(Default)]
struct Order {
    /// Header of the record that the entries are of.
    header: Option<u32>,
    /// Whether its one entry has no payload, so that the bits of the header stand for it.
    is_blank: bool,
    /// First block behind what the entries have named.
    end: u32,
}

impl Order {
    fn check(&mut self, place: Place, placed: &PlacedEntry) -> Result<(), Corrupt> {
        let (block, blocks) = (placed.block, placed.entry.payload_blocks());
        let is_blank = placed.entry.kind.is_blank();
        let is_same_record = !self.is_blank
            && !is_blank
            && self
                .header
                .is_some_and(|header| if blocks > 0 { block == self.end } else { block == header });
        if !is_same_record {
            // A record begins with its header; that of one with payload stands right before it.
            let first = self.end + u32::from(blocks > 0);
            Corrupt::unless_at_least(place, "order of the entries", first.into(), block.into())?;
            self.header = Some(block - u32::from(blocks > 0));
            self.is_blank = is_blank;
            self.end = block + u32::from(blocks == 0);
        }
        if blocks > 0 {
            self.end = block + blocks;
        }
        Ok(())
    }
}
