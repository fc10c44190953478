//! Where to look in a node that has not been touched yet.

use core::ops::Range;

use super::extent::ORIGIN_BLOCK_LIMIT;

/// What a processor loads at a time.
const CACHE_LINE_BYTES: usize = 64;
/// Parts of a node that are told apart.
const PARTS: usize = 32;
/// No mark of a part that there is.
const NO_PART: u8 = u8::MAX;

/// What stands in a node in the order of the blocks where it begins.
pub(super) trait Begins {
    fn first(&self) -> u64;
}

/// How many of `items` begin at or before `block`.
///
/// Counts where others would halve: each step of a binary search waits for the cache miss of the
/// one before, and the probes of a count do not.
fn rank<T: Begins>(items: &[T], block: u64) -> usize {
    let step = const { CACHE_LINE_BYTES.div_ceil(size_of::<T>()) };
    let is_before = |item: &&T| item.first() <= block;
    let lines = items.iter().step_by(step).filter(is_before).count();
    let from = lines.saturating_sub(1) * step;
    let line = &items[from..items.len().min(from + step)];
    from + line.iter().filter(is_before).count()
}

/// Where the items of a node begin. Up to 32 parts of equally many items have a mark each: a byte
/// on a scale from the first block to that of the last item. Where items crowd together within a
/// long range their marks are equal, and more than one part is looked through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Marks {
    /// The first block, and in the low byte the scale: blocks of a step, by power of two.
    first_shift: u64,
    parts: [u8; PARTS],
}

impl Marks {
    pub(super) fn of<T: Begins>(items: &[T]) -> Marks {
        let mut parts = [NO_PART; PARTS];
        let (Some(first), Some(last)) = (items.first(), items.last()) else {
            return Marks { first_shift: 0, parts };
        };
        let first = first.first();
        let range = last.first() - first;
        let mut shift = (u64::BITS - range.leading_zeros()).saturating_sub(u8::BITS);
        // The mark of the last item is below that of no part.
        shift += u32::from(range >> shift == u64::from(NO_PART));
        let items = items.iter().step_by(items.len().div_ceil(PARTS));
        for (mark, item) in parts.iter_mut().zip(items) {
            *mark = u8::try_from((item.first() - first) >> shift).expect("as the last at most");
        }
        assert!(first < ORIGIN_BLOCK_LIMIT);
        Marks { first_shift: first << 8 | u64::from(shift), parts }
    }

    /// The first block; 0 of a node without items.
    pub(super) fn first(&self) -> u64 {
        self.first_shift >> 8
    }

    /// How many of the node's `items` begin at or before `block`.
    pub(super) fn rank<T: Begins>(&self, items: &[T], block: u64) -> usize {
        let open = self.open(items.len(), block);
        open.start + rank(&items[open], block)
    }

    /// Of `len` items those of which the marks do not tell whether they begin at or before `block`:
    /// all in front of them do, and all behind them do not.
    fn open(&self, len: usize, block: u64) -> Range<usize> {
        let distance = block.saturating_sub(self.first()) >> (self.first_shift & 0x3f);
        let mark = u8::try_from(distance).unwrap_or(u8::MAX).min(NO_PART - 1);
        // Counted in bytes: the processor compares many at once.
        let before: u8 = self.parts.iter().map(|part| u8::from(*part < mark)).sum();
        let not_behind: u8 = self.parts.iter().map(|part| u8::from(*part <= mark)).sum();
        let step = len.div_ceil(PARTS);
        // The mark is that of the first item of a part.
        let from = usize::from(before).checked_sub(1).map_or(0, |last| last * step + 1);
        from..len.min(usize::from(not_behind) * step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    impl Begins for u64 {
        fn first(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn rank_is_what_a_binary_search_finds() {
        for len in 0..=70 {
            let items: Vec<u64> = (0..len).map(|index| 3 * index + 1).collect();
            for block in 0..3 * len + 4 {
                let expected = items.partition_point(|item| *item <= block);
                assert_eq!(rank(&items, block), expected, "{block} in {len}");
            }
        }
    }

    proptest! {
        /// Gaps of very different size, so that marks are equal, too.
        #[test]
        fn marks_lead_to_what_a_binary_search_finds(
            first in 0u64..1 << 39,
            gaps in prop::collection::vec((1u64..200, 0u32..24), 0..300),
            probes in prop::collection::vec((prop::num::u64::ANY, -2i64..3), 1..20),
        ) {
            let mut items = alloc::vec![first];
            for (gap, shift) in gaps {
                let next = items.last().expect("one") + (gap << (shift / 8 * 8));
                items.push(next.min(ORIGIN_BLOCK_LIMIT - 1));
            }
            let marks = Marks::of(&items);
            for (index, offset) in probes {
                let near = items[usize::try_from(index % items.len() as u64).expect("an index")];
                for block in [near.saturating_add_signed(offset), index >> 24] {
                    let expected = items.partition_point(|item| *item <= block);
                    prop_assert_eq!(marks.rank(&items, block), expected);
                }
            }
        }

        /// Where items lie evenly, one part is enough, or two beside its mark.
        #[test]
        fn few_parts_are_looked_through(len in 1u64..=256, stride in 1u64..1 << 30) {
            let items: Vec<u64> = (0..len).map(|index| 7 + stride * index).collect();
            let marks = Marks::of(&items);
            for index in 0..len {
                let open = marks.open(items.len(), items[index as usize]);
                prop_assert!(open.len() < 2 * items.len().div_ceil(PARTS), "{open:?}");
            }
        }
    }
}
