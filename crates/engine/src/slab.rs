//! A slab: values under small keys that are used again. A key carries a count of its uses, so that
//! a stale key is noticed and never reaches another value.

use alloc::vec::Vec;

/// Key of a value in a slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    index: u32,
    uses: u32,
}

impl Key {
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.uses) << 32 | u64::from(self.index)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves are cut out")]
    pub(crate) fn from_u64(value: u64) -> Key {
        Key { index: value as u32, uses: (value >> 32) as u32 }
    }
}

pub(crate) struct Slab<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).expect("requests are bounded")
        });
        let slot = &mut self.slots[index as usize];
        assert!(slot.1.is_none());
        slot.1 = Some(value);
        Key { index, uses: slot.0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.0 == key.uses { slot.1.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.0 == key.uses { slot.1.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.0 != key.uses {
            return None;
        }
        let value = slot.1.take()?;
        slot.0 = slot.0.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| {
            slot.1.as_ref().map(|value| (Key { index, uses: slot.0 }, value))
        })
    }
}

impl<T> core::ops::Index<Key> for Slab<T> {
    type Output = T;

    fn index(&self, key: Key) -> &T {
        self.get(key).expect("the key is in use")
    }
}

impl<T> core::ops::IndexMut<Key> for Slab<T> {
    fn index_mut(&mut self, key: Key) -> &mut T {
        self.get_mut(key).expect("the key is in use")
    }
}
