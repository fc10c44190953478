//! A map of disjoint extents by origin block: sorted leaves of packed extents under a B-tree of
//! leaves.
//!
//! Invariants: extents do not overlap; a leaf is never empty; all starts in a leaf lie between its
//! key and the next leaf's key. Leaves grow by small steps, so that little memory is spare: about
//! 18 bytes an extent in all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

use super::extent::{Extent, PackedExtent};

/// Extents in a leaf before it is split: 2 KiB, a few cache lines to search.
const LEAF_EXTENTS_MAX: usize = 128;
/// Spare room that a leaf gets when it is full.
const LEAF_GROWTH: usize = 8;
/// Memory of a leaf beside its extents: its share of a B-tree node and its vector's header.
const LEAF_OVERHEAD_BYTES: usize = 48;

#[derive(Default)]
pub(crate) struct ExtentMap {
    leaves: BTreeMap<u64, Vec<PackedExtent>>,
    extent_count: usize,
    block_count: u64,
    capacity: usize,
}

impl ExtentMap {
    pub(crate) fn extent_count(&self) -> usize {
        self.extent_count
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.block_count
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.capacity * size_of::<PackedExtent>() + self.leaves.len() * LEAF_OVERHEAD_BYTES
    }

    /// Extents that overlap `start..end`, in order, whole. One search of the tree, if the leaf that
    /// it finds tells all.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
        let mut leaves = self.leaves.range(..=start);
        let mut before = None;
        let mut head: &[PackedExtent] = &[];
        let mut after = Bound::Included(start);
        if let Some((key, leaf)) = leaves.next_back() {
            let index = leaf.partition_point(|extent| extent.start() <= start);
            head = &leaf[index.saturating_sub(1)..];
            after = Bound::Excluded(*key);
            if index == 0 {
                // Extents that were at the front of the leaf are gone.
                before = leaves.next_back().and_then(|(_, leaf)| leaf.last());
            }
        }
        // Of the next leaf everything starts behind the last extent of this one.
        let is_all = head.last().is_some_and(|extent| extent.end() >= end);
        let others =
            (!is_all && start < end).then(|| self.leaves.range((after, Bound::Excluded(end))));
        before
            .into_iter()
            .chain(head)
            .chain(others.into_iter().flatten().flat_map(|(_, leaf)| leaf))
            .take_while(move |extent| extent.start() < end)
            .filter(move |extent| extent.end() > start)
            .map(|extent| extent.unpack())
    }

    /// All extents in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.leaves.values().flatten().map(|extent| extent.unpack())
    }

    /// Adds an extent that overlaps no other.
    pub(crate) fn insert(&mut self, extent: Extent) {
        self.extent_count += 1;
        self.block_count += u64::from(extent.block_count);
        let packed = PackedExtent::pack(extent);
        let found = self.leaves.range_mut(..=extent.start).next_back();
        let Some((key, leaf)) = found.map(|(key, leaf)| (*key, leaf)) else {
            self.insert_before_all(packed);
            return;
        };
        let index = leaf.partition_point(|other| other.start() < extent.start);
        if leaf.len() == leaf.capacity() {
            leaf.reserve_exact(LEAF_GROWTH);
            self.capacity += LEAF_GROWTH;
        }
        leaf.insert(index, packed);
        if leaf.len() > LEAF_EXTENTS_MAX {
            self.split(key);
        }
    }

    /// Puts an extent in the place of the one that covers exactly the same blocks; `false` if there
    /// is none.
    pub(crate) fn overwrite(&mut self, extent: Extent) -> bool {
        let Some((_, leaf)) = self.leaves.range_mut(..=extent.start).next_back() else {
            return false;
        };
        let index = leaf.partition_point(|other| other.start() < extent.start);
        match leaf.get_mut(index) {
            Some(old) if old.start() == extent.start && old.end() == extent.end() => {
                *old = PackedExtent::pack(extent);
                true
            }
            _ => false,
        }
    }

    fn insert_before_all(&mut self, packed: PackedExtent) {
        let mut leaf = Vec::new();
        if let Some(entry) = self.leaves.first_entry()
            && entry.get().len() < LEAF_EXTENTS_MAX
        {
            leaf = entry.remove();
        }
        if leaf.len() == leaf.capacity() {
            leaf.reserve_exact(LEAF_GROWTH);
            self.capacity += LEAF_GROWTH;
        }
        leaf.insert(0, packed);
        self.leaves.insert(packed.start(), leaf);
    }

    fn split(&mut self, key: u64) {
        let leaf = self.leaves.get_mut(&key).expect("only leaves are split");
        self.capacity -= leaf.capacity();
        // A leaf that grows at its end is being filled in order: leave it full.
        let at = if leaf.len() == leaf.capacity() { leaf.len() / 2 } else { leaf.len() * 3 / 4 };
        let mut right = Vec::with_capacity(leaf.len() - at + LEAF_GROWTH);
        right.extend_from_slice(&leaf[at..]);
        leaf.truncate(at);
        leaf.shrink_to(at + LEAF_GROWTH);
        self.capacity += leaf.capacity() + right.capacity();
        self.leaves.insert(right[0].start(), right);
    }

    fn remove_exact(&mut self, extent: &Extent) {
        let (key, leaf) = self
            .leaves
            .range_mut(..=extent.start)
            .next_back()
            .expect("the extent is in the map, so its leaf is");
        let key = *key;
        let index = leaf.partition_point(|other| other.start() < extent.start);
        assert!(leaf[index].start() == extent.start);
        leaf.remove(index);
        self.extent_count -= 1;
        self.block_count -= u64::from(extent.block_count);
        if leaf.is_empty() {
            self.capacity -= leaf.capacity();
            self.leaves.remove(&key);
        } else if leaf.capacity() > leaf.len() + 4 * LEAF_GROWTH {
            self.capacity -= leaf.capacity();
            leaf.shrink_to(leaf.len() + LEAF_GROWTH);
            self.capacity += leaf.capacity();
        }
    }

    /// Removes `start..end` from every extent that has part of it.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        loop {
            let Some(extent) = self.overlapping(start, end).next() else { return };
            self.remove_exact(&extent);
            if extent.start < start {
                self.insert(extent.clip(extent.start, start));
            }
            if extent.end() > end {
                self.insert(extent.clip(end, extent.end()));
            }
        }
    }

    #[cfg(test)]
    fn assert_invariants(&self) {
        let (mut previous_end, mut extents, mut blocks, mut capacity) = (0, 0, 0, 0);
        let keys: Vec<u64> = self.leaves.keys().copied().collect();
        for (index, (key, leaf)) in self.leaves.iter().enumerate() {
            assert!(!leaf.is_empty());
            capacity += leaf.capacity();
            for packed in leaf {
                let extent = packed.unpack();
                assert!(extent.start >= *key);
                assert!(keys.get(index + 1).is_none_or(|next| extent.start < *next));
                assert!(extent.start >= previous_end);
                previous_end = extent.end();
                extents += 1;
                blocks += u64::from(extent.block_count);
            }
        }
        assert_eq!(extents, self.extent_count);
        assert_eq!(blocks, self.block_count);
        assert_eq!(capacity, self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{CacheBlock, Version};
    use proptest::prelude::*;

    fn extent(start: u64, block_count: u32, stamp: u32) -> Extent {
        let (version, position) = (Version(stamp.into()), CacheBlock(stamp * 1000));
        Extent { start, block_count, version, position }
    }

    proptest! {
        /// The map against an array that names for each block what covers it.
        #[test]
        fn behaves_like_an_array(steps in prop::collection::vec(
            (0u64..2000, 1u32..=64, prop::bool::weighted(0.8)), 1..600)) {
            let mut map = ExtentMap::default();
            let mut model: Vec<Option<(u64, u32)>> = alloc::vec![None; 2100];
            for (stamp, (start, count, insert)) in (0u32..).zip(steps) {
                let end = start + u64::from(count);
                let was_overwritten = insert && map.overwrite(extent(start, count, stamp));
                if !was_overwritten {
                    map.remove(start, end);
                }
                for block in start..end {
                    model[block as usize] = None;
                }
                if insert {
                    if !was_overwritten {
                        map.insert(extent(start, count, stamp));
                    }
                    for block in start..end {
                        let position = stamp * 1000 + (block - start) as u32;
                        model[block as usize] = Some((u64::from(stamp), position));
                    }
                }
                map.assert_invariants();
            }
            for from in [0u64, 1, 63, 500, 1999] {
                let mut seen: Vec<Option<(u64, u32)>> = alloc::vec![None; 2100];
                for extent in map.overlapping(from, 2100) {
                    for block in extent.start..extent.end() {
                        let position = extent.position.0 + (block - extent.start) as u32;
                        seen[block as usize] = Some((extent.version.0, position));
                    }
                }
                prop_assert_eq!(&seen[from as usize..], &model[from as usize..]);
            }
        }
    }

    #[test]
    fn an_extent_costs_at_most_twenty_bytes_in_a_large_map() {
        let mut map = ExtentMap::default();
        let mut state = 1u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = state >> 30;
            if map.overlapping(start, start + 1).next().is_none() {
                map.insert(extent(start, 1, 7));
            }
        }
        let per_extent = map.memory_bytes() as f64 / map.extent_count() as f64;
        assert!(per_extent < 20.0, "{per_extent}");
    }
}
