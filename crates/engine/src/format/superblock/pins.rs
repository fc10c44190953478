//! Pinned ranges, and where they stand in the superblock region.
//!
//! The rest of the header block holds one table for all volumes, so that a volume may have many
//! ranges or none. Entries are sorted by slot and block, ranges of a volume neither overlap nor
//! touch, and behind the last entry all bytes are zero: each set of ranges has one form. A table of
//! zeroes, as older superblocks have it, pins nothing.

use alloc::vec::Vec;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Volume;
use crate::error::{Corrupt, Place};
use crate::units::VolumeSlot;

/// Byte of the header block at which the table begins.
pub(super) const PIN_TABLE_OFFSET: usize = 256;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;
/// Most pinned ranges of all volumes of a cache device: what fits behind the header.
pub const PINNED_RANGES_MAX: usize = (crate::units::BLOCK_BYTES - PIN_TABLE_OFFSET) / ENTRY_BYTES;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Entry {
    /// First block of the range.
    start: U64,
    /// Number of blocks; zero in a free entry.
    block_count: [u8; 6],
    /// Volume.
    slot: U16,
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

/// Ranges of blocks of a volume, in order, neither overlapping nor touching.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PinnedRanges {
    /// First block, and the one behind the last.
    ranges: Vec<(u64, u64)>,
}

impl PinnedRanges {
    /// First block of each range, and the one behind its last.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// Number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether nothing is pinned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Blocks in all ranges.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// Whether a block is pinned.
    #[must_use]
    pub fn has(&self, block: u64) -> bool {
        self.run(block, block + 1).1
    }

    /// Whether any block of `start..end` is pinned.
    #[must_use]
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.1 <= start);
        self.ranges.get(next).is_some_and(|range| range.0 < end)
    }

    /// Where the blocks from `start` on, below `limit`, cease to be alike, and whether they are
    /// pinned.
    #[must_use]
    pub fn run(&self, start: u64, limit: u64) -> (u64, bool) {
        let next = self.ranges.partition_point(|range| range.1 <= start);
        match self.ranges.get(next) {
            Some((from, to)) if *from <= start => (limit.min(*to), true),
            Some((from, _)) => (limit.min(*from), false),
            None => (limit, false),
        }
    }

    /// Pins `start..end`.
    pub fn insert(&mut self, start: u64, end: u64) {
        assert!(start < end);
        // What overlaps or touches becomes part of the new range.
        let first = self.ranges.partition_point(|range| range.1 < start);
        let behind = self.ranges.partition_point(|range| range.0 <= end);
        let joined = &self.ranges[first..behind];
        let from = joined.first().map_or(start, |range| range.0.min(start));
        let to = joined.last().map_or(end, |range| range.1.max(end));
        self.ranges.splice(first..behind, [(from, to)]);
    }

    /// Unpins `start..end`, which may be part of ranges.
    pub fn remove(&mut self, start: u64, end: u64) {
        assert!(start < end);
        let first = self.ranges.partition_point(|range| range.1 <= start);
        let behind = self.ranges.partition_point(|range| range.0 < end);
        let cut = &self.ranges[first..behind];
        let head = cut.first().filter(|range| range.0 < start).map(|range| (range.0, start));
        let tail = cut.last().filter(|range| range.1 > end).map(|range| (end, range.1));
        self.ranges.splice(first..behind, head.into_iter().chain(tail));
    }
}

/// Writes the ranges of all volumes into the header block, which has zeroes there.
pub(super) fn encode_pins(volumes: &[Option<Volume>], block: &mut [u8]) {
    let volumes = (0u16..).zip(volumes);
    let pins = volumes.filter_map(|(slot, volume)| Some((slot, &volume.as_ref()?.pins)));
    let ranges = pins.flat_map(|(slot, pins)| pins.iter().map(move |range| (slot, range)));
    let mut table = block[PIN_TABLE_OFFSET..].chunks_exact_mut(ENTRY_BYTES);
    for (slot, (start, end)) in ranges {
        let mut block_count = [0; 6];
        block_count.copy_from_slice(&(end - start).to_le_bytes()[..6]);
        let entry = Entry { start: start.into(), block_count, slot: slot.into() };
        let place = table.next().expect("commands keep to PINNED_RANGES_MAX");
        place.copy_from_slice(entry.as_bytes());
    }
}

/// Reads the ranges of all volumes from the header block.
pub(super) fn decode_pins(
    place: Place,
    block: &[u8],
    volumes: &mut [Option<Volume>],
) -> Result<(), Corrupt> {
    let table = &block[PIN_TABLE_OFFSET..];
    // Behind the last range: what a further one of the volume must not touch.
    let mut last = (0, None);
    for (index, bytes) in table.chunks_exact(ENTRY_BYTES).enumerate() {
        let entry = Entry::read_from_bytes(bytes).expect("an entry has ENTRY_BYTES");
        let mut block_count = [0; 8];
        block_count[..6].copy_from_slice(&entry.block_count);
        let block_count = u64::from_le_bytes(block_count);
        if block_count == 0 {
            let rest = &table[index * ENTRY_BYTES..];
            return Corrupt::unless_zero(place, "bytes behind the pinned ranges", rest);
        }
        let (slot, start) = (entry.slot.get(), entry.start.get());
        Corrupt::unless_at_least(place, "volume of a pinned range", last.0, slot.into())?;
        let in_use = volumes.iter().position(Option::is_some).unwrap_or(volumes.len());
        let of_volume = volumes.get_mut(usize::from(slot)).and_then(Option::as_mut);
        let Some(volume) = of_volume else {
            let field = "volume of a pinned range";
            return Err(Corrupt { place, field, expected: in_use as u64, found: slot.into() });
        };
        let before = last.1.filter(|_| last.0 == u64::from(slot));
        let least = before.map_or(0, |end: u64| end + 1);
        Corrupt::unless_at_least(place, "start of a pinned range", least, start)?;
        let most = volume.block_count();
        let end = start.saturating_add(block_count);
        Corrupt::unless_at_most(place, "end of a pinned range", most, end)?;
        volume.pins.insert(start, end);
        last = (slot.into(), Some(end));
    }
    Ok(())
}

impl super::Superblock {
    /// Pinned ranges of a volume; none if the slot is free.
    #[must_use]
    pub fn pins(&self, slot: VolumeSlot) -> &PinnedRanges {
        const NONE: &PinnedRanges = &PinnedRanges { ranges: Vec::new() };
        self.volume(slot).map_or(NONE, |volume| &volume.pins)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    /// Pins and unpins by a sequence without pattern, beside one flag a block.
    #[test]
    fn ranges_are_what_flags_of_blocks_say() {
        const BLOCKS: u64 = 60;
        let mut pins = PinnedRanges::default();
        let mut flags = vec![false; BLOCKS as usize];
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        for _ in 0..5_000 {
            let start = below(BLOCKS);
            let end = start + 1 + below((BLOCKS - start).min(12));
            let is_pinned = below(2) == 0;
            if is_pinned {
                pins.insert(start, end);
            } else {
                pins.remove(start, end);
            }
            flags[start as usize..end as usize].fill(is_pinned);
            for block in 0..BLOCKS {
                assert_eq!(pins.has(block), flags[block as usize], "{block} of {pins:?}");
            }
            let ranges: Vec<_> = pins.iter().collect();
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
            assert_eq!(pins.block_count(), flags.iter().filter(|flag| **flag).count() as u64);
            let (from, to) = (below(BLOCKS), BLOCKS);
            let (end, is_pinned) = pins.run(from, to);
            assert!(
                end > from && flags[from as usize..end as usize].iter().all(|f| *f == is_pinned)
            );
            assert!(end == to || flags[end as usize] != is_pinned);
            let any = flags[from as usize..end as usize].contains(&true);
            assert_eq!(pins.overlaps(from, end), any);
        }
    }
}
