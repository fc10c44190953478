//! Things under way, by small number. Numbers are used again; memory is not given back.

/// A table with holes.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Empty.
    pub(crate) fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Adds a thing and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(value);
            return index;
        }
        let index = u32::try_from(self.entries.len()).expect("what is under way is bounded");
        self.entries.push(Some(value));
        index
    }

    /// Takes a thing out. Panics if there is none of this number.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let value = self.entries[index as usize].take().expect("the entry is in use");
        self.free.push(index);
        value
    }

    /// The thing of this number, if there is one.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize).and_then(Option::as_mut)
    }

    /// The thing of this number, if there is one.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize).and_then(Option::as_ref)
    }

    /// How many things there are.
    pub(crate) fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// All things with their numbers, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..)
            .zip(&self.entries)
            .filter_map(|(index, entry)| entry.as_ref().map(|value| (index, value)))
    }

    /// All numbers ever used are below this.
    pub(crate) fn bound(&self) -> u32 {
        self.entries.len() as u32
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index).expect("the entry is in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("the entry is in use")
    }
}
