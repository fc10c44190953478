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
use super::marks::{Begins, Marks};

/// Extents in a leaf before it is split: 6 KiB, of which a lookup sees 192 bytes. With fewer, the
/// levels above would be larger and more often missed: with 256 the second one above the leaves of
/// 134 million extents outgrows the second-level cache of a core, too.
const LEAF_EXTENTS_MAX: usize = 384;
/// Children of a branch before it is split.
const BRANCH_CHILDREN_MAX: usize = 64;
/// Spare room that a leaf gets when it is full.
const LEAF_GROWTH: usize = 8;
/// Most spare room of a leaf, and what it keeps of it when it has more.
const LEAF_SPARE_MAX: usize = 16;
const LEAF_SPARE_KEPT: usize = 8;
/// A node that has less than such a part of its most is joined with a neighbor, if together they
/// have at most two such parts: no join follows a split closely, and no split a join.
const JOIN_DIVISOR: usize = 3;

enum Items {
    Leaf(Vec<PackedExtent>),
    Branch(Box<[Node]>),
}

/// A leaf or a branch, and what is known of its items without touching them: a cache line.
#[repr(align(64))]
struct Node {
    marks: Marks,
    items: Items,
}

impl Begins for PackedExtent {
    fn first(&self) -> u64 {
        self.start()
    }
}

impl Begins for Node {
    fn first(&self) -> u64 {
        self.marks.first()
    }
}

/// Changes a leaf, and with it the count of bytes.
fn change_leaf<R>(
    leaf: &mut Vec<PackedExtent>,
    bytes: &mut usize,
    change: impl FnOnce(&mut Vec<PackedExtent>) -> R,
) -> R {
    let before = leaf.capacity();
    let result = change(leaf);
    *bytes += leaf.capacity() * size_of::<PackedExtent>();
    *bytes -= before * size_of::<PackedExtent>();
    result
}

/// Changes the number of children of a branch, and with it the count of bytes.
fn change_branch<R>(
    branch: &mut Box<[Node]>,
    bytes: &mut usize,
    change: impl FnOnce(&mut Vec<Node>) -> R,
) -> R {
    let before = branch.len();
    let mut children = mem::take(branch).into_vec();
    let result = change(&mut children);
    *branch = children.into_boxed_slice();
    *bytes += branch.len() * size_of::<Node>();
    *bytes -= before * size_of::<Node>();
    result
}

/// Where too many items are split. Those that grew at their end are being filled in order: the
/// first part stays full.
fn split_at(len: usize, grown_at: usize) -> usize {
    if grown_at + 1 == len { len - 1 } else { len / 2 }
}

impl Items {
    fn len(&self) -> usize {
        match self {
            Items::Leaf(extents) => extents.len(),
            Items::Branch(children) => children.len(),
        }
    }

    fn len_max(&self) -> usize {
        match self {
            Items::Leaf(_) => LEAF_EXTENTS_MAX,
            Items::Branch(_) => BRANCH_CHILDREN_MAX,
        }
    }

    /// Bytes of memory without those of children's items.
    fn bytes(&self) -> usize {
        match self {
            Items::Leaf(extents) => extents.capacity() * size_of::<PackedExtent>(),
            Items::Branch(children) => children.len() * size_of::<Node>(),
        }
    }

    fn marks(&self) -> Marks {
        match self {
            Items::Leaf(extents) => Marks::of(extents),
            Items::Branch(children) => Marks::of(children),
        }
    }

    /// Adds the bytes of the items to those of their level, and of all below to theirs.
    fn add_level_bytes(&self, levels: &mut Vec<usize>, level: usize) {
        if levels.len() == level {
            levels.push(0);
        }
        levels[level] += self.bytes();
        if let Items::Branch(children) = self {
            children.iter().for_each(|child| child.items.add_level_bytes(levels, level + 1));
        }
    }

    /// Takes up all items of the node that follows.
    fn join(&mut self, right: Items, bytes: &mut usize) {
        *bytes -= right.bytes();
        match (self, right) {
            (Items::Leaf(left), Items::Leaf(right)) => change_leaf(left, bytes, |left| {
                left.reserve_exact(right.len());
                left.extend_from_slice(&right);
            }),
            (Items::Branch(left), Items::Branch(right)) => change_branch(left, bytes, |left| {
                left.reserve_exact(right.len());
                left.extend(right);
            }),
            _ => unreachable!("neighbors are equally deep"),
        }
    }
}

impl Node {
    fn new(items: Items) -> Node {
        Node { marks: items.marks(), items }
    }

    /// Adds an extent. A node that was full keeps its first part; the other is returned.
    fn insert(&mut self, packed: PackedExtent, bytes: &mut usize) -> Option<Node> {
        let start = packed.start();
        let right = match &mut self.items {
            Items::Leaf(leaf) => {
                let index = self.marks.rank(leaf, start);
                insert_in_leaf(leaf, index, packed, bytes).map(Items::Leaf)
            }
            Items::Branch(branch) => {
                let index = self.marks.rank(branch, start).saturating_sub(1);
                let first = branch[index].first();
                let right = branch[index].insert(packed, bytes);
                if right.is_none() && branch[index].first() == first {
                    // Nothing that the marks tell has changed.
                    return None;
                }
                let right = right.and_then(|node| insert_in_branch(branch, index + 1, node, bytes));
                right.map(Items::Branch)
            }
        };
        self.marks = self.items.marks();
        right.map(Node::new)
    }

    /// Takes out the extent that begins at `start`.
    fn remove(&mut self, start: u64, bytes: &mut usize) {
        match &mut self.items {
            Items::Leaf(leaf) => {
                let index = self.marks.rank(leaf, start).checked_sub(1);
                let index = index.expect("the extent is in the map");
                assert!(leaf[index].start() == start);
                leaf.remove(index);
                if leaf.capacity() > leaf.len() + LEAF_SPARE_MAX {
                    change_leaf(leaf, bytes, |leaf| leaf.shrink_to(leaf.len() + LEAF_SPARE_KEPT));
                }
            }
            Items::Branch(branch) => {
                let index = self.marks.rank(branch, start).checked_sub(1);
                let index = index.expect("the extent is in the map");
                branch[index].remove(start, bytes);
                if branch[index].items.len() == 0 {
                    let empty = change_branch(branch, bytes, |children| children.remove(index));
                    *bytes -= empty.items.bytes();
                } else {
                    join_small(branch, index, bytes);
                }
            }
        }
        self.marks = self.items.marks();
    }
}

fn insert_in_leaf(
    leaf: &mut Vec<PackedExtent>,
    index: usize,
    packed: PackedExtent,
    bytes: &mut usize,
) -> Option<Vec<PackedExtent>> {
    if leaf.len() == leaf.capacity() {
        change_leaf(leaf, bytes, |leaf| leaf.reserve_exact(LEAF_GROWTH));
    }
    leaf.insert(index, packed);
    (leaf.len() > LEAF_EXTENTS_MAX).then(|| {
        let at = split_at(leaf.len(), index);
        let right = leaf[at..].to_vec();
        *bytes += right.capacity() * size_of::<PackedExtent>();
        change_leaf(leaf, bytes, |leaf| {
            leaf.truncate(at);
            leaf.shrink_to_fit();
        });
        right
    })
}

fn insert_in_branch(
    branch: &mut Box<[Node]>,
    index: usize,
    child: Node,
    bytes: &mut usize,
) -> Option<Box<[Node]>> {
    let right = change_branch(branch, bytes, |children| {
        children.reserve_exact(1);
        children.insert(index, child);
        let is_over = children.len() > BRANCH_CHILDREN_MAX;
        is_over.then(|| children.split_off(split_at(children.len(), index)).into_boxed_slice())
    })?;
    *bytes += right.len() * size_of::<Node>();
    Some(right)
}

/// Joins the child at `index` with a neighbor, if it has become small and there is one with room.
fn join_small(branch: &mut Box<[Node]>, index: usize, bytes: &mut usize) {
    let len_max = branch[index].items.len_max();
    if branch[index].items.len() >= len_max / JOIN_DIVISOR {
        return;
    }
    let fits = |left: usize| {
        let pair = branch.get(left..left + 2)?;
        let len = pair[0].items.len() + pair[1].items.len();
        (len <= 2 * (len_max / JOIN_DIVISOR)).then_some(left)
    };
    let left = fits(index).or_else(|| fits(index.checked_sub(1)?));
    if let Some(left) = left {
        let right = change_branch(branch, bytes, |children| children.remove(left + 1));
        let left = &mut branch[left];
        left.items.join(right.items, bytes);
        left.marks = left.items.marks();
    }
}

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
        fn assert_invariants(&self) -> usize {
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
