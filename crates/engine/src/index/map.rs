//! A map from origin blocks to places in the log, with versions.
//!
//! Data lives in packed extents. Copies without payload (zeroes, discards, poison) and tombstones
//! may cover any number of blocks and are few; they live in an ordinary ordered map beside them. A
//! block is in at most one of the two.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::extent::Extent;
use super::extent_map::ExtentMap;
use crate::defects::{Defect, has_defect};
use crate::format::record::{Entry, EntryKind};
use crate::units::{CacheBlock, Version};

/// A copy without payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlankKind {
    Zeroes { may_unmap: bool },
    Discard,
    Poison,
}

impl BlankKind {
    /// `None` if an entry of this kind is no copy without payload.
    pub(crate) fn of(kind: EntryKind) -> Option<BlankKind> {
        match kind {
            EntryKind::Zeroes { may_unmap } => Some(BlankKind::Zeroes { may_unmap }),
            EntryKind::Discard => Some(BlankKind::Discard),
            EntryKind::Poison => Some(BlankKind::Poison),
            EntryKind::Data
            | EntryKind::Invalidate
            | EntryKind::Drop { .. }
            | EntryKind::Mark { .. } => None,
        }
    }

    pub(crate) fn entry_kind(self) -> EntryKind {
        match self {
            BlankKind::Zeroes { may_unmap } => EntryKind::Zeroes { may_unmap },
            BlankKind::Discard => EntryKind::Discard,
            BlankKind::Poison => EntryKind::Poison,
        }
    }
}

/// Where a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Payload from this position on.
    Data(CacheBlock),
    /// No payload; the header of its record.
    Blank { kind: BlankKind, header: CacheBlock },
    /// Nowhere: an invalidation, kept while older records may still complete.
    Absent,
}

impl Place {
    /// Where the blocks of an entry are whose payload, or else header, is at `position`; `None` if
    /// it is of no blocks.
    pub(crate) fn of(kind: EntryKind, position: CacheBlock) -> Option<Place> {
        match kind {
            EntryKind::Data => Some(Place::Data(position)),
            EntryKind::Invalidate => Some(Place::Absent),
            _ => BlankKind::of(kind).map(|kind| Place::Blank { kind, header: position }),
        }
    }
}

/// A run of blocks with one version at one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) version: Version,
    pub(crate) place: Place,
}

impl Piece {
    /// Whether this piece stays where `new` comes (rule 1): it has the higher version, or it voids
    /// that version. What is voided was appended before, but its record may complete later, or be
    /// written again under a later number.
    fn stands_against(&self, new: &Piece) -> bool {
        let voids = self.place == Place::Absent
            && new.place != Place::Absent
            && !has_defect(Defect::VoidedCopyReturns);
        self.version > new.version || self.version == new.version && voids
    }

    /// The copy that an entry is whose payload, or else header, is at `position`; `None` if it is
    /// of no blocks.
    pub(crate) fn of(entry: &Entry, position: CacheBlock) -> Option<Piece> {
        Some(Piece {
            start: entry.start,
            block_count: u64::from(entry.block_count),
            version: entry.version,
            place: Place::of(entry.kind, position)?,
        })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.block_count
    }

    /// Whether `part`, of blocks of this piece, is part of the same copy. The place alone does not
    /// tell: data behind the header of a copy without payload is another one's.
    fn has_part(&self, part: &Piece) -> bool {
        self.version == part.version && self.clip(part.start, part.end()).place == part.place
    }

    /// Whether its blocks are lost (rule 12).
    pub(crate) fn is_poison(&self) -> bool {
        matches!(self.place, Place::Blank { kind: BlankKind::Poison, .. })
    }

    /// Blocks of the log that stand for it: of zeroes and discards, the header.
    pub(crate) fn log_blocks(&self) -> u64 {
        if matches!(self.place, Place::Data(_)) { self.block_count } else { 1 }
    }

    /// These blocks of the log.
    pub(crate) fn positions(&self) -> impl Iterator<Item = CacheBlock> + use<> {
        let (first, count) = match self.place {
            Place::Data(position) => {
                (position.0, u32::try_from(self.block_count).expect("data pieces are small"))
            }
            Place::Blank { header, .. } => (header.0, 1),
            Place::Absent => (0, 0),
        };
        (first..first + count).map(CacheBlock)
    }

    /// The part from `start` to `end`, which lie within the piece.
    pub(crate) fn clip(&self, start: u64, end: u64) -> Piece {
        let from = start.max(self.start);
        let to = end.min(self.end());
        assert!(from < to);
        let place = match self.place {
            Place::Data(position) => {
                let skipped = u32::try_from(from - self.start).expect("data pieces are small");
                Place::Data(CacheBlock(position.0 + skipped))
            }
            other => other,
        };
        Piece { start: from, block_count: to - from, version: self.version, place }
    }
}

#[derive(Clone, Copy)]
struct Blank {
    end: u64,
    version: Version,
    place: Place,
}

#[derive(Default)]
pub(crate) struct BlockMap {
    pub(super) data: ExtentMap,
    blanks: BTreeMap<u64, Blank>,
}

impl BlockMap {
    /// Blocks with payload.
    pub(crate) fn data_block_count(&self) -> u64 {
        self.data.block_count()
    }

    pub(crate) fn extent_count(&self) -> usize {
        self.data.extent_count() + self.blanks.len()
    }

    /// Bytes of each level of the tree, the root's first. Looks at all nodes.
    pub(crate) fn level_bytes(&self) -> Vec<usize> {
        self.data.level_bytes()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.data.memory_bytes() + self.blanks.len() * 64
    }

    pub(crate) fn blank_piece_count(&self) -> usize {
        self.blanks.len()
    }

    /// Pieces without payload, tombstones included.
    pub(crate) fn blank_pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.blanks.iter().map(|(start, blank)| Piece {
            start: *start,
            block_count: blank.end - start,
            version: blank.version,
            place: blank.place,
        })
    }

    /// What ends behind `block` and has no payload, in order.
    fn blanks_behind(&self, block: u64) -> impl Iterator<Item = (&u64, &Blank)> {
        let before = self.blanks.range(..block).next_back().filter(|(_, blank)| blank.end > block);
        before.into_iter().chain(self.blanks.range(block..))
    }

    /// Where the next copy without payload begins that ends behind `block`.
    pub(super) fn blank_ahead(&self, block: u64) -> Option<u64> {
        self.blanks_behind(block).next().map(|(start, _)| *start)
    }

    /// All pieces, data first.
    pub(crate) fn all_pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.data.iter().map(data_piece).chain(self.blank_pieces())
    }

    /// Appends to `out` the pieces of `start..end`, clipped to it, in order.
    pub(crate) fn pieces(&self, start: u64, end: u64, out: &mut Vec<Piece>) {
        let first = out.len();
        for extent in self.data.overlapping(start, end) {
            out.push(data_piece(extent.clip(start, end)));
        }
        if self.blanks.is_empty() {
            return;
        }
        for (blank_start, blank) in self.blanks_behind(start).take_while(|(at, _)| **at < end) {
            let piece = Piece {
                start: *blank_start,
                block_count: blank.end - blank_start,
                version: blank.version,
                place: blank.place,
            };
            out.push(piece.clip(start, end));
        }
        out[first..].sort_unstable_by_key(|piece| piece.start);
    }

    /// Puts `piece` in, except where a copy with a higher version is, or what voids its version.
    /// What it took the place of is appended to `removed`, the parts that went in to `inserted`. Of
    /// equal versions the copy that comes later wins: it is the same content in a newer place (rule
    /// 1).
    pub(crate) fn replace(
        &mut self,
        piece: Piece,
        removed: &mut Vec<Piece>,
        inserted: &mut Vec<Piece>,
    ) {
        let first = removed.len();
        self.pieces(piece.start, piece.end(), removed);
        if !removed[first..].iter().any(|old| old.stands_against(&piece)) {
            if !self.overwrite(&piece, &removed[first..]) {
                if removed.len() > first {
                    self.remove(piece.start, piece.end());
                }
                self.insert(piece);
            }
            inserted.push(piece);
            return;
        }
        let old: Vec<Piece> = removed.drain(first..).collect();
        let mut at = piece.start;
        for other in &old {
            if other.stands_against(&piece) {
                self.insert_part(piece, at, other.start, inserted);
                at = other.end();
            } else {
                self.remove(other.start, other.end());
                removed.push(*other);
            }
        }
        self.insert_part(piece, at, piece.end(), inserted);
    }

    /// The quick way where data takes the place of data of exactly the same blocks.
    fn overwrite(&mut self, piece: &Piece, old: &[Piece]) -> bool {
        let [Piece { start, block_count, place: Place::Data(_), .. }] = old else { return false };
        let Place::Data(position) = piece.place else { return false };
        (*start, *block_count) == (piece.start, piece.block_count)
            && self.data.overwrite(data_extent(piece, position))
    }

    fn insert_part(&mut self, piece: Piece, start: u64, end: u64, inserted: &mut Vec<Piece>) {
        if start < end {
            let part = piece.clip(start, end);
            self.insert(part);
            inserted.push(part);
        }
    }

    /// Puts a piece in where nothing is.
    pub(crate) fn insert(&mut self, piece: Piece) {
        match piece.place {
            Place::Data(position) => self.data.insert(data_extent(&piece, position)),
            place => {
                let blank = Blank { end: piece.end(), version: piece.version, place };
                let old = self.blanks.insert(piece.start, blank);
                assert!(old.is_none());
            }
        }
    }

    /// Takes out whatever is in `start..end`.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        self.data.remove(start, end);
        while let Some((at, blank)) =
            self.blanks.range(..end).next_back().map(|(at, blank)| (*at, *blank))
        {
            if blank.end <= start {
                return;
            }
            self.blanks.remove(&at);
            if blank.end > end {
                self.blanks.insert(end, blank);
            }
            if at < start {
                self.blanks.insert(at, Blank { end: start, ..blank });
            }
        }
    }

    /// Takes out what is left of a piece, and appends it to `removed`: something newer may have
    /// taken the place of parts of it.
    pub(crate) fn remove_parts(&mut self, piece: &Piece, removed: &mut Vec<Piece>) {
        let first = removed.len();
        self.pieces(piece.start, piece.end(), removed);
        let mut kept = first;
        for index in first..removed.len() {
            let part = removed[index];
            if piece.has_part(&part) {
                self.remove(part.start, part.end());
                removed[kept] = part;
                kept += 1;
            }
        }
        removed.truncate(kept);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = BlockMap::default();
    }
}

fn data_extent(piece: &Piece, position: CacheBlock) -> Extent {
    Extent {
        start: piece.start,
        block_count: u32::try_from(piece.block_count).expect("data pieces are small"),
        version: piece.version,
        position,
    }
}

pub(super) fn data_piece(extent: Extent) -> Piece {
    Piece {
        start: extent.start,
        block_count: u64::from(extent.block_count),
        version: extent.version,
        place: Place::Data(extent.position),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(version: u64, place: Place) -> Piece {
        Piece { start: 10, block_count: 4, version: Version(version), place }
    }

    fn put(map: &mut BlockMap, piece: Piece) {
        map.replace(piece, &mut Vec::new(), &mut Vec::new());
    }

    fn place_of(map: &BlockMap) -> Vec<Place> {
        map.all_pieces().map(|piece| piece.place).collect()
    }

    #[test]
    fn a_copy_that_completes_after_what_voids_it_stays_void() {
        let blank = Place::Blank { kind: BlankKind::Discard, header: CacheBlock(7) };
        for copy in [blank, Place::Data(CacheBlock(7))] {
            let mut map = BlockMap::default();
            put(&mut map, piece(5, Place::Absent));
            put(&mut map, piece(5, copy));
            assert_eq!(place_of(&map), [Place::Absent]);
            put(&mut map, piece(6, copy));
            assert_eq!(place_of(&map), [copy]);
            put(&mut map, piece(6, Place::Absent));
            assert_eq!(place_of(&map), [Place::Absent]);
        }
    }

    #[test]
    fn of_equal_versions_the_later_copy_wins() {
        let mut map = BlockMap::default();
        put(&mut map, piece(5, Place::Data(CacheBlock(7))));
        put(&mut map, piece(5, Place::Data(CacheBlock(70))));
        assert_eq!(place_of(&map), [Place::Data(CacheBlock(70))]);
    }
}
