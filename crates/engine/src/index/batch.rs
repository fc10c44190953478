//! Pieces that go into a map together.
//!
//! In the order of their blocks neighbors go to the same leaf, which is found and changed once for
//! all of them, and memory is walked through once.

use alloc::vec::Vec;

use super::extent::{Extent, PackedExtent};
use super::map::{BlockMap, data_piece};

/// Extents in any order: 16 bytes each.
#[derive(Default)]
pub(crate) struct Batch {
    extents: Vec<PackedExtent>,
}

impl Batch {
    pub(crate) fn push(&mut self, extent: Extent) {
        self.extents.push(PackedExtent::pack(extent));
    }
}

impl BlockMap {
    /// Puts all pieces in, each as [`BlockMap::replace`] does. Where they have blocks in common
    /// with each other, it is open which of equal versions comes last.
    pub(crate) fn put_batch(&mut self, batch: Batch) {
        let mut extents = batch.extents;
        extents.sort_unstable_by_key(|extent| extent.start());
        let mut rest = &extents[..];
        while let Some(first) = rest.first() {
            let limit = self.blank_ahead(first.start()).unwrap_or(u64::MAX);
            let mut count = self.data.insert_run(rest, limit);
            if count == 0 {
                let piece = data_piece(first.unpack());
                self.replace(piece, &mut Vec::new(), &mut Vec::new());
                count = 1;
            }
            rest = &rest[count..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::{BlankKind, Piece, Place};
    use crate::units::{CacheBlock, Version};

    fn pieces_of(map: &BlockMap) -> Vec<Piece> {
        let mut pieces = Vec::new();
        map.pieces(0, u64::MAX >> 24, &mut pieces);
        pieces
    }

    fn extent(start: u64, block_count: u32, stamp: u32) -> Extent {
        let (version, position) = (Version(stamp.into()), CacheBlock(stamp * 1000));
        Extent { start, block_count, version, position }
    }

    proptest! {
        /// Into a map that has something, blanks as well, with overlaps in some of the cases.
        #[test]
        fn a_batch_is_what_its_pieces_are_one_by_one(
            range in prop::sample::select(alloc::vec![2_000u64, 100_000, 1 << 24]),
            before in prop::collection::vec((any::<u64>(), 1u32..20), 0..600),
            blanks in prop::collection::vec((any::<u64>(), 1u64..200), 0..4),
            batches in prop::collection::vec(
                prop::collection::vec((any::<u64>(), 1u32..20), 0..900), 1..4),
        ) {
            let (mut quick, mut slow) = (BlockMap::default(), BlockMap::default());
            let mut stamp = 1;
            let put = |map: &mut BlockMap, piece| {
                map.replace(piece, &mut Vec::new(), &mut Vec::new());
            };
            for (at, block_count) in blanks {
                let header = CacheBlock(stamp);
                let place = Place::Blank { kind: BlankKind::Discard, header };
                let version = Version(stamp.into());
                let piece = Piece { start: at % range, block_count, version, place };
                put(&mut quick, piece);
                put(&mut slow, piece);
                stamp += 1;
            }
            for (at, block_count) in before {
                let piece = data_piece(extent(at % range, block_count, stamp));
                put(&mut quick, piece);
                put(&mut slow, piece);
                stamp += 1;
            }
            for pieces in batches {
                let mut batch = Batch::default();
                for (at, block_count) in pieces {
                    let new = extent(at % range, block_count, stamp);
                    batch.push(new);
                    put(&mut slow, data_piece(new));
                    stamp += 1;
                }
                quick.put_batch(batch);
                quick.data.assert_invariants();
                prop_assert_eq!(quick.data_block_count(), slow.data_block_count());
                prop_assert_eq!(quick.extent_count(), slow.extent_count());
            }
            prop_assert_eq!(pieces_of(&quick), pieces_of(&slow));
        }
    }
}
