//! The order in which sampled blocks were used last, with the number of blocks above each.
//!
//! A binary indexed tree (Fenwick 1994) over slots; each use takes the next one. When the slots are
//! used up, those that are taken are numbered anew.

/// Slots in order of time, some of them taken.
pub(crate) struct Stack {
    /// Sums over ranges of slots, from index 1 on.
    tree: Vec<u32>,
    is_taken: Vec<bool>,
    next: usize,
    taken_count: usize,
}

/// A slot of the stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Slot(usize);

impl Stack {
    /// With room for `blocks_max` taken slots.
    pub(crate) fn new(blocks_max: usize) -> Stack {
        let slots = 2 * blocks_max + 2;
        Stack { tree: vec![0; slots + 1], is_taken: vec![false; slots], next: 0, taken_count: 0 }
    }

    /// Whether [`Stack::renumber`] has to be called before the next slot is taken.
    pub(crate) fn is_used_up(&self) -> bool {
        self.next == self.is_taken.len()
    }

    /// Takes the newest slot.
    pub(crate) fn push(&mut self) -> Slot {
        let slot = Slot(self.next);
        self.next += 1;
        self.taken_count += 1;
        self.is_taken[slot.0] = true;
        self.change(slot, |sum| *sum += 1);
        slot
    }

    /// Gives a slot up.
    pub(crate) fn remove(&mut self, slot: Slot) {
        assert!(self.is_taken[slot.0]);
        self.is_taken[slot.0] = false;
        self.taken_count -= 1;
        self.change(slot, |sum| *sum -= 1);
    }

    /// Taken slots that are newer than this one.
    pub(crate) fn newer_count(&self, slot: Slot) -> usize {
        let mut index = slot.0 + 1;
        let mut up_to = 0;
        while index > 0 {
            up_to += self.tree[index] as usize;
            index &= index - 1;
        }
        self.taken_count - up_to
    }

    /// Numbers the taken slots anew from the oldest on, and tells the new slot of each old one.
    pub(crate) fn renumber(&mut self) -> impl Fn(Slot) -> Slot + use<> {
        let mut new = vec![usize::MAX; self.is_taken.len()];
        let taken = self.is_taken.iter().enumerate().filter(|(_, is_taken)| **is_taken);
        for (number, (old, _)) in taken.enumerate() {
            new[old] = number;
        }
        let count = self.taken_count;
        *self = Stack::new((self.is_taken.len() - 2) / 2);
        for _ in 0..count {
            self.push();
        }
        move |slot| {
            assert!(new[slot.0] != usize::MAX, "only taken slots have a number");
            Slot(new[slot.0])
        }
    }

    fn change(&mut self, slot: Slot, by_one: impl Fn(&mut u32)) {
        let mut index = slot.0 + 1;
        while index < self.tree.len() {
            by_one(&mut self.tree[index]);
            index += index & index.wrapping_neg();
        }
    }
}
