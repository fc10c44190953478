//! The nodes of the map of extents: leaves, which are runs of packed extents, and branches.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use super::extent::PackedExtent;
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
pub(super) const LEAF_SPARE_MAX: usize = 16;
const LEAF_SPARE_KEPT: usize = 8;
/// A node that has less than such a part of its most is joined with a neighbor, if together they
/// have at most two such parts: no join follows a split closely, and no split a join.
const JOIN_DIVISOR: usize = 3;

pub(super) enum Items {
    Leaf(Vec<PackedExtent>),
    Branch(Box<[Node]>),
}

/// A leaf or a branch, and what is known of its items without touching them: a cache line.
#[repr(align(64))]
pub(super) struct Node {
    pub(super) marks: Marks,
    pub(super) items: Items,
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
pub(super) fn change_branch<R>(
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
    pub(super) fn len(&self) -> usize {
        match self {
            Items::Leaf(extents) => extents.len(),
            Items::Branch(children) => children.len(),
        }
    }

    pub(super) fn len_max(&self) -> usize {
        match self {
            Items::Leaf(_) => LEAF_EXTENTS_MAX,
            Items::Branch(_) => BRANCH_CHILDREN_MAX,
        }
    }

    /// Bytes of memory without those of children's items.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Items::Leaf(extents) => extents.capacity() * size_of::<PackedExtent>(),
            Items::Branch(children) => children.len() * size_of::<Node>(),
        }
    }

    pub(super) fn marks(&self) -> Marks {
        match self {
            Items::Leaf(extents) => Marks::of(extents),
            Items::Branch(children) => Marks::of(children),
        }
    }

    /// Adds the bytes of the items to those of their level, and of all below to theirs.
    pub(super) fn add_level_bytes(&self, levels: &mut Vec<usize>, level: usize) {
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
    pub(super) fn new(items: Items) -> Node {
        Node { marks: items.marks(), items }
    }

    /// Adds an extent. A node that was full keeps its first part; the other is returned.
    pub(super) fn insert(&mut self, packed: PackedExtent, bytes: &mut usize) -> Option<Node> {
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

    /// Adds those of `sorted`, from the first on, that lie within one leaf and in front of `limit`,
    /// as far as that leaf has room and none overlaps another; tells how many.
    pub(super) fn insert_run(
        &mut self,
        sorted: &[PackedExtent],
        limit: u64,
        bytes: &mut usize,
    ) -> usize {
        let start = sorted[0].start();
        match &mut self.items {
            Items::Leaf(leaf) => {
                let rank = self.marks.rank(leaf, start);
                let count = merge_into_leaf(leaf, rank, sorted, limit, bytes);
                if count > 0 {
                    self.marks = Marks::of(leaf);
                }
                count
            }
            Items::Branch(branch) => {
                let index = self.marks.rank(branch, start).saturating_sub(1);
                let limit = branch.get(index + 1).map_or(limit, |next| next.first().min(limit));
                // The marks tell where children begin, which does not change.
                branch[index].insert_run(sorted, limit, bytes)
            }
        }
    }

    /// Takes out the extent that begins at `start`.
    pub(super) fn remove(&mut self, start: u64, bytes: &mut usize) {
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

/// Adds those of `sorted`, from the first on, that end before `limit`, as far as the leaf has room
/// and none overlaps another; tells how many. None goes in front of the first extent of the leaf.
/// `rank` extents of the leaf begin at or before the first of `sorted`.
fn merge_into_leaf(
    leaf: &mut Vec<PackedExtent>,
    rank: usize,
    sorted: &[PackedExtent],
    limit: u64,
    bytes: &mut usize,
) -> usize {
    let room = LEAF_EXTENTS_MAX - leaf.len();
    let last = rank.checked_sub(1);
    let count =
        last.map_or(0, |last| mergeable(&leaf[last..], &sorted[..room.min(sorted.len())], limit));
    if count == 0 {
        return 0;
    }
    let mut kept = leaf.len();
    change_leaf(leaf, bytes, |leaf| {
        if leaf.capacity() < leaf.len() + count {
            leaf.reserve_exact(count + LEAF_GROWTH);
        }
        leaf.extend_from_slice(&sorted[..count]);
    });
    // From the last on, so that what is there moves once.
    for added in (0..count).rev() {
        let new = sorted[added];
        while kept > 0 && leaf[kept - 1].start() > new.start() {
            leaf[kept + added] = leaf[kept - 1];
            kept -= 1;
        }
        leaf[kept + added] = new;
    }
    count
}

/// How many of `sorted` lie free behind the first of `extents`, from the first of them on.
fn mergeable(extents: &[PackedExtent], sorted: &[PackedExtent], limit: u64) -> usize {
    let mut behind = extents[1..].iter().peekable();
    // Where what stands in front ends.
    let mut end = extents[0].end();
    let fits = |new: &&PackedExtent| {
        while let Some(old) = behind.next_if(|old| old.start() <= new.start()) {
            end = old.end();
        }
        let is_free = end <= new.start()
            && behind.peek().is_none_or(|next| new.end() <= next.start())
            && new.end() <= limit;
        end = new.end();
        is_free
    };
    sorted.iter().take_while(fits).count()
}
