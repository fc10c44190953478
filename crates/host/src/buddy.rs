//! A buddy allocator over numbered units; the memory itself is somebody else's.
//!
//! A block is a run of `1 << order` units that starts at a multiple of its length. Invariants: free
//! and allocated blocks cover all units without overlap; of two free buddies at least one is split
//! (else they would be one block). All operations take at most [`ORDER_COUNT`] steps and allocate
//! nothing.

/// Orders of blocks. The largest block has 2^14 units: in units of 4 KiB 64 MiB, room for a request
/// of 32 MiB that begins and ends within a unit.
pub(crate) const ORDER_COUNT: usize = 15;

/// Units in the largest block.
pub(crate) const LARGEST_BLOCK_UNITS: u32 = 1 << (ORDER_COUNT - 1);

/// End of a list.
const NONE: u32 = u32::MAX;

/// What is known of the first unit of a block; inner units are `INNER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnitState {
    Inner,
    Free(u8),
    Allocated(u8),
}

/// The allocator.
#[derive(Debug)]
pub(crate) struct Buddy {
    states: Vec<UnitState>,
    /// Doubly linked lists of free blocks, by first unit.
    next: Vec<u32>,
    previous: Vec<u32>,
    heads: [u32; ORDER_COUNT],
}

impl Buddy {
    /// All of `unit_count` units free.
    pub(crate) fn new(unit_count: u32) -> Buddy {
        let count = unit_count as usize;
        let mut buddy = Buddy {
            states: vec![UnitState::Inner; count],
            next: vec![NONE; count],
            previous: vec![NONE; count],
            heads: [NONE; ORDER_COUNT],
        };
        let mut unit = 0;
        while unit < unit_count {
            let aligned = if unit == 0 { u32::MAX } else { unit & unit.wrapping_neg() };
            let mut order = ORDER_COUNT - 1;
            while 1 << order > aligned || 1 << order > unit_count - unit {
                order -= 1;
            }
            buddy.push_free(unit, order);
            unit += 1 << order;
        }
        buddy
    }

    /// Units in all.
    fn unit_count(&self) -> u32 {
        self.states.len() as u32
    }

    /// Takes a block of `1 << order` units; `None` if no free block is large enough.
    pub(crate) fn allocate(&mut self, order: usize) -> Option<u32> {
        assert!(order < ORDER_COUNT);
        let found = (order..ORDER_COUNT).find(|order| self.heads[*order] != NONE)?;
        let unit = self.heads[found];
        self.remove_free(unit, found);
        for smaller in (order..found).rev() {
            self.push_free(unit + (1 << smaller), smaller);
        }
        self.states[unit as usize] = UnitState::Allocated(order as u8);
        Some(unit)
    }

    /// Gives an allocated block back.
    pub(crate) fn free(&mut self, unit: u32) {
        let UnitState::Allocated(order) = self.states[unit as usize] else {
            panic!("unit {unit} is freed but is no allocated block");
        };
        let mut order = usize::from(order);
        let mut start = unit;
        self.states[start as usize] = UnitState::Inner;
        while order + 1 < ORDER_COUNT {
            let buddy = start ^ (1 << order);
            if buddy >= self.unit_count()
                || self.states[buddy as usize] != UnitState::Free(order as u8)
            {
                break;
            }
            self.remove_free(buddy, order);
            start = start.min(buddy);
            order += 1;
        }
        self.push_free(start, order);
    }

    fn push_free(&mut self, unit: u32, order: usize) {
        let head = self.heads[order];
        self.next[unit as usize] = head;
        self.previous[unit as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = unit;
        }
        self.heads[order] = unit;
        self.states[unit as usize] = UnitState::Free(order as u8);
    }

    fn remove_free(&mut self, unit: u32, order: usize) {
        let (next, previous) = (self.next[unit as usize], self.previous[unit as usize]);
        match previous {
            NONE => self.heads[order] = next,
            _ => self.next[previous as usize] = next,
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.states[unit as usize] = UnitState::Inner;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Buddy {
        /// Checks the invariants by walking over all blocks; returns the free units.
        fn assert_invariants(&self) -> u32 {
            let mut unit = 0;
            let mut free_units = 0;
            while unit < self.unit_count() {
                let order = match self.states[unit as usize] {
                    UnitState::Free(order) => {
                        free_units += 1 << order;
                        let buddy = unit ^ (1 << order);
                        let is_split = usize::from(order) + 1 == ORDER_COUNT
                            || buddy >= self.unit_count()
                            || self.states[buddy as usize] != UnitState::Free(order);
                        assert!(is_split, "buddies {unit} and {buddy} are both free");
                        order
                    }
                    UnitState::Allocated(order) => order,
                    UnitState::Inner => panic!("unit {unit} belongs to no block"),
                };
                assert!(unit.is_multiple_of(1 << order));
                unit += 1 << order;
            }
            assert_eq!(unit, self.unit_count());
            free_units
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Allocate(usize),
        Free(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step =
            prop_oneof![(0..8usize).prop_map(Step::Allocate), any::<usize>().prop_map(Step::Free),];
        prop::collection::vec(step, 1..300)
    }

    proptest! {
        #[test]
        fn blocks_are_aligned_disjoint_and_come_back(unit_count in 1..700u32, steps in steps()) {
            let mut buddy = Buddy::new(unit_count);
            prop_assert_eq!(buddy.assert_invariants(), unit_count);
            let mut owned: Vec<(u32, usize)> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(order) => {
                        if let Some(unit) = buddy.allocate(order) {
                            let end = unit + (1 << order);
                            prop_assert!(unit.is_multiple_of(1 << order) && end <= unit_count);
                            for (other, other_order) in &owned {
                                prop_assert!(end <= *other || other + (1 << other_order) <= unit);
                            }
                            owned.push((unit, order));
                        }
                    }
                    Step::Free(index) if !owned.is_empty() => {
                        let (unit, _) = owned.swap_remove(index % owned.len());
                        buddy.free(unit);
                    }
                    Step::Free(_) => {}
                }
                let used: u32 = owned.iter().map(|(_, order)| 1u32 << order).sum();
                prop_assert_eq!(buddy.assert_invariants() + used, unit_count);
            }
            for (unit, _) in owned {
                buddy.free(unit);
            }
            prop_assert_eq!(buddy.assert_invariants(), unit_count);
        }
    }

    #[test]
    fn the_largest_block_is_whole_again_after_the_smallest_were_taken() {
        let mut buddy = Buddy::new(LARGEST_BLOCK_UNITS);
        let units: Vec<u32> = std::iter::from_fn(|| buddy.allocate(0)).collect();
        assert_eq!(units.len(), LARGEST_BLOCK_UNITS as usize);
        for unit in units {
            buddy.free(unit);
        }
        assert_eq!(buddy.allocate(ORDER_COUNT - 1), Some(0));
    }

    #[test]
    #[should_panic(expected = "is no allocated block")]
    fn freeing_twice_is_a_mistake() {
        let mut buddy = Buddy::new(4);
        let unit = buddy.allocate(0).unwrap();
        buddy.free(unit);
        buddy.free(unit);
    }
}
