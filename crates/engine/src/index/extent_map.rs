//! A map of disjoint extents by origin block: a B+ tree whose leaves are runs of packed extents.
//!
//! What a lookup costs is cache misses that wait for each other. So beside the pointer to the items
//! of a node stand their number and marks that tell, before the items are touched, which few of
//! them are to be looked at ([`Marks`]). A level costs one miss, and of an index of 100 million
//! extents only the leaves and, at worst, the level above them lie outside the processor's caches.
//!
//! Invariants: extents do not overlap; all leaves are equally deep; no node but the root is empty;
//! a root that is no leaf has two children or more; marks are those of their node. Leaves grow by
//! small steps and branches are as long as what they hold, so that little memory is spare: about
//! 16.4 bytes an extent in all.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::extent::{Extent, PackedExtent};
use super::marks::Begins;
use super::node::{Items, Node, change_branch};

pub(crate) struct ExtentMap {
    root: Node,
    extent_count: usize,
    block_count: u64,
    /// Of all nodes.
    bytes: usize,
}

impl Default for ExtentMap {
    fn default() -> Self {
        let root = Node::new(Items::Leaf(Vec::new()));
        ExtentMap { root, extent_count: 0, block_count: 0, bytes: 0 }
    }
}

impl ExtentMap {
    pub(crate) fn extent_count(&self) -> usize {
        self.extent_count
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.block_count
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of each level, the root's first. Looks at all nodes.
    pub(crate) fn level_bytes(&self) -> Vec<usize> {
        let mut levels = Vec::new();
        self.root.items.add_level_bytes(&mut levels, 0);
        levels
    }

    /// The leaf where an extent stands that begins at `block`, how many of its extents begin at or
    /// before that, and the first block of the leaf behind it; the largest number if there is none.
    fn leaf(&self, block: u64) -> (&[PackedExtent], usize, u64) {
        let (mut node, mut next_leaf) = (&self.root, u64::MAX);
        loop {
            match &node.items {
                Items::Leaf(extents) => {
                    return (extents, node.marks.rank(extents, block), next_leaf);
                }
                Items::Branch(children) => {
                    let index = node.marks.rank(children, block).saturating_sub(1);
                    next_leaf = children.get(index + 1).map_or(next_leaf, Begins::first);
                    node = &children[index];
                }
            }
        }
    }

    /// Extents that overlap `start..end`, in order, whole.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Extent> + '_ {
        let (leaf, rank, mut next_leaf) = self.leaf(start);
        // Only the last that begins at or before the start can reach into the range.
        let mut extents = leaf[rank.saturating_sub(1)..].iter();
        core::iter::from_fn(move || {
            loop {
                let Some(extent) = extents.next() else {
                    if next_leaf >= end {
                        return None;
                    }
                    let (leaf, _, next) = self.leaf(next_leaf);
                    (extents, next_leaf) = (leaf.iter(), next);
                    continue;
                };
                if extent.start() >= end {
                    return None;
                }
                if extent.end() > start {
                    return Some(extent.unpack());
                }
            }
        })
    }

    /// All extents in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.overlapping(0, u64::MAX)
    }

    /// Adds an extent that overlaps no other.
    pub(crate) fn insert(&mut self, extent: Extent) {
        self.extent_count += 1;
        self.block_count += u64::from(extent.block_count);
        if let Some(right) = self.root.insert(PackedExtent::pack(extent), &mut self.bytes) {
            let left = mem::replace(&mut self.root, Node::new(Items::Leaf(Vec::new())));
            self.root = Node::new(Items::Branch(Box::new([left, right])));
            self.bytes += self.root.items.bytes();
        }
    }

    /// Adds the first extents of `sorted`, as many as can be added at once: those in front of
    /// `limit` that go into the same leaf, as far as they overlap nothing; tells how many. It may
    /// be none, which says nothing of the first.
    pub(super) fn insert_run(&mut self, sorted: &[PackedExtent], limit: u64) -> usize {
        let count = self.root.insert_run(sorted, limit, &mut self.bytes);
        self.extent_count += count;
        let blocks = sorted[..count].iter().map(|extent| extent.end() - extent.start());
        self.block_count += blocks.sum::<u64>();
        count
    }

    /// Puts an extent in the place of the one that covers exactly the same blocks; `false` if there
    /// is none.
    pub(crate) fn overwrite(&mut self, extent: Extent) -> bool {
        let mut node = &mut self.root;
        let old = loop {
            match &mut node.items {
                Items::Leaf(leaf) => {
                    let index = node.marks.rank(leaf, extent.start).checked_sub(1);
                    break index.map(|index| &mut leaf[index]);
                }
                Items::Branch(children) => {
                    let index = node.marks.rank(children, extent.start).saturating_sub(1);
                    node = &mut children[index];
                }
            }
        };
        match old {
            Some(old) if old.start() == extent.start && old.end() == extent.end() => {
                *old = PackedExtent::pack(extent);
                true
            }
            _ => false,
        }
    }

    fn remove_exact(&mut self, extent: &Extent) {
        self.root.remove(extent.start, &mut self.bytes);
        self.extent_count -= 1;
        self.block_count -= u64::from(extent.block_count);
        while let Items::Branch(children) = &mut self.root.items
            && children.len() == 1
        {
            let only = change_branch(children, &mut self.bytes, Vec::pop);
            self.root = only.expect("there is one");
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::node::LEAF_SPARE_MAX;
    use crate::units::{CacheBlock, Version};
    use proptest::prelude::*;

    fn extent(start: u64, block_count: u32, stamp: u32) -> Extent {
        let (version, position) = (Version(stamp.into()), CacheBlock(stamp * 1000));
        Extent { start, block_count, version, position }
    }

    /// What a walk through a node finds.
    #[derive(Default, PartialEq, Debug)]
    struct Found {
        extents: usize,
        blocks: u64,
        bytes: usize,
        leaf_depth: Option<usize>,
        end: u64,
    }

    impl Found {
        fn walk(&mut self, node: &Node, depth: usize) {
            self.bytes += node.items.bytes();
            assert!(node.items.len() <= node.items.len_max());
            assert_eq!(node.marks, node.items.marks());
            match &node.items {
                Items::Leaf(extents) => {
                    assert_eq!(*self.leaf_depth.get_or_insert(depth), depth);
                    assert!(extents.capacity() <= extents.len() + LEAF_SPARE_MAX);
                    for packed in extents {
                        assert!(packed.start() >= self.end);
                        self.end = packed.end();
                        self.extents += 1;
                        self.blocks += packed.end() - packed.start();
                    }
                }
                Items::Branch(children) => {
                    assert!(depth > 0 || children.len() >= 2);
                    for child in children {
                        assert!(child.items.len() > 0);
                        self.walk(child, depth + 1);
                    }
                }
            }
        }
    }

    impl ExtentMap {
        /// Asserts what the head of this file says; tells the depth of the leaves.
        pub(in crate::index) fn assert_invariants(&self) -> usize {
            let mut found = Found::default();
            found.walk(&self.root, 0);
            assert_eq!(found.extents, self.extent_count);
            assert_eq!(found.blocks, self.block_count);
            assert_eq!(found.bytes, self.bytes);
            found.leaf_depth.expect("there is a leaf")
        }

        fn bytes_per_extent(&self) -> f64 {
            self.memory_bytes() as f64 / self.extent_count() as f64
        }
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

        /// A map that is deep, grows, is thinned out and goes, against a sorted map of the library.
        #[test]
        fn behaves_like_a_sorted_map_at_any_depth(
            phases in prop::collection::vec((0u64..40_000, 1u64..8_000, 0u64..5), 1..12),
            stride in prop::sample::select(alloc::vec![1u64, 3, 7_919, 1_000_003])) {
            let mut map = ExtentMap::default();
            let mut model = alloc::collections::BTreeMap::new();
            let mut deepest = 0;
            for (stamp, (from, count, kept)) in (0u32..).zip(phases) {
                for index in 0..count {
                    // Odd blocks stay empty.
                    let block = (from + index * stride) % 40_000 * 2;
                    if kept > 0 && index % 5 >= kept {
                        map.remove(block, block + 1);
                        model.remove(&block);
                    } else if kept == 0 {
                        map.remove(block, block + 3);
                        model.remove(&block);
                        model.remove(&(block + 2));
                    } else if !map.overwrite(extent(block, 1, stamp)) {
                        map.insert(extent(block, 1, stamp));
                        model.insert(block, stamp);
                    } else {
                        prop_assert!(model.insert(block, stamp).is_some());
                    }
                }
                deepest = deepest.max(map.assert_invariants());
                let all = map.iter().map(|extent| (extent.start, extent.position.0 / 1000));
                prop_assert!(all.eq(model.iter().map(|(block, stamp)| (*block, *stamp))));
                let part = map.overlapping(from, from + 999).map(|extent| extent.start);
                prop_assert!(part.eq(model.range(from..from + 999).map(|(block, _)| *block)));
            }
            map.remove(0, u64::MAX);
            prop_assert_eq!(map.assert_invariants(), 0);
            prop_assert_eq!((map.extent_count(), map.block_count()), (0, 0));
        }
    }

    /// Blocks in no order, of which none is met twice soon.
    fn scattered() -> impl Iterator<Item = u64> {
        let mut state = 1u64;
        core::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 30
        })
    }

    #[test]
    fn an_extent_costs_at_most_seventeen_bytes_in_a_large_map() {
        let mut map = ExtentMap::default();
        for start in scattered().take(100_000) {
            if map.overlapping(start, start + 1).next().is_none() {
                map.insert(extent(start, 1, 7));
            }
        }
        assert_eq!(map.assert_invariants(), 2);
        let per_extent = map.bytes_per_extent();
        assert!(per_extent < 17.0, "{per_extent}");
    }

    #[test]
    fn an_extent_costs_little_more_after_most_others_went() {
        let mut map = ExtentMap::default();
        let starts: Vec<u64> = (0..100_000).map(|index| index * 7_919 % 100_000 * 2).collect();
        starts.iter().for_each(|start| map.insert(extent(*start, 1, 7)));
        for start in &starts[..95_000] {
            map.remove(*start, start + 1);
        }
        map.assert_invariants();
        let per_extent = map.bytes_per_extent();
        assert!(per_extent < 19.0, "{per_extent}");
    }

    #[test]
    fn an_extent_costs_little_more_while_others_come_and_go() {
        let mut map = ExtentMap::default();
        let mut cached = alloc::collections::VecDeque::new();
        for start in scattered().take(400_000) {
            if map.overlapping(start, start + 1).next().is_none() {
                map.insert(extent(start, 1, 7));
                cached.push_back(start);
            }
            if cached.len() > 50_000 {
                let oldest = cached.pop_front().expect("it has some");
                map.remove(oldest, oldest + 1);
            }
        }
        map.assert_invariants();
        let per_extent = map.bytes_per_extent();
        assert!(per_extent < 17.5, "{per_extent}");
    }

    #[test]
    fn what_is_filled_in_order_is_full() {
        let mut map = ExtentMap::default();
        (0..10_000).for_each(|index| map.insert(extent(2 * index, 1, 7)));
        let per_extent = map.bytes_per_extent();
        assert!(per_extent < 16.5, "{per_extent}");
        let levels = map.level_bytes();
        assert_eq!(levels.len(), 2, "ten thousand extents are leaves of one root");
        assert_eq!(levels.iter().sum::<usize>(), map.memory_bytes());
    }
}
