//! What the drive cache holds: extents with the data of reads, and extents yet to be written.
//!
//! Both keep the same invariant: no two of their extents overlap.

use alloc::collections::BTreeMap;

/// Bytes from `start` up to but not including `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Extent {
    pub(crate) fn length_bytes(self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn covers(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

/// Extents that were read, the least recently used dropped first.
#[derive(Clone, Debug)]
pub(crate) struct ReadCache {
    bytes_max: u64,
    count_max: usize,
    bytes: u64,
    /// End and last use by start.
    extents: BTreeMap<u64, (u64, u64)>,
    /// Start by last use.
    uses: BTreeMap<u64, u64>,
    use_count: u64,
}

impl ReadCache {
    pub(crate) fn new(bytes_max: u64, count_max: usize) -> ReadCache {
        ReadCache {
            bytes_max,
            count_max,
            bytes: 0,
            extents: BTreeMap::new(),
            uses: BTreeMap::new(),
            use_count: 0,
        }
    }

    /// Whether one extent holds all of `wanted`; it counts as used.
    pub(crate) fn hit(&mut self, wanted: Extent) -> bool {
        let Some((start, (end, last_use))) = self.extents.range_mut(..=wanted.start).next_back()
        else {
            return false;
        };
        if !(Extent { start: *start, end: *end }).covers(wanted) {
            return false;
        }
        self.uses.remove(last_use);
        self.use_count += 1;
        *last_use = self.use_count;
        self.uses.insert(self.use_count, *start);
        true
    }

    /// Up to where the bytes from `offset` on are held; `offset` itself if the bytes up to it are.
    /// `None`: neither, so a read there does not go on with a stream.
    pub(crate) fn held_until(&self, offset: u64) -> Option<u64> {
        let (_, (end, _)) = self.extents.range(..=offset).next_back()?;
        (*end >= offset).then_some(*end)
    }

    /// Takes in the end of `read`, as much as fits, in place of what it overlaps.
    pub(crate) fn insert(&mut self, read: Extent) {
        let start = read.start.max(read.end.saturating_sub(self.bytes_max));
        let read = Extent { start, ..read };
        if read.length_bytes() == 0 {
            return;
        }
        while let Some((start, (end, _))) = self.extents.range(..read.end).next_back() {
            if *end <= read.start {
                break;
            }
            self.remove(*start);
        }
        self.use_count += 1;
        self.extents.insert(read.start, (read.end, self.use_count));
        self.uses.insert(self.use_count, read.start);
        self.bytes += read.length_bytes();
        while self.bytes > self.bytes_max || self.extents.len() > self.count_max {
            let (_, oldest) = self.uses.first_key_value().expect("there are extents");
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, start: u64) {
        let (end, last_use) = self.extents.remove(&start).expect("the caller found it");
        self.uses.remove(&last_use);
        self.bytes -= end - start;
    }
}

/// Extents that were written and are not on the platter. Neighbours are merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteCache {
    bytes: u64,
    /// End by start.
    extents: BTreeMap<u64, u64>,
}

impl WriteCache {
    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether one extent holds all of `wanted`.
    pub(crate) fn covers(&self, wanted: Extent) -> bool {
        self.extents
            .range(..=wanted.start)
            .next_back()
            .is_some_and(|(start, end)| Extent { start: *start, end: *end }.covers(wanted))
    }

    pub(crate) fn insert(&mut self, written: Extent) {
        if written.length_bytes() == 0 {
            return;
        }
        let mut merged = written;
        while let Some((&start, &end)) = self.extents.range(..=merged.end).next_back() {
            if end < merged.start {
                break;
            }
            self.extents.remove(&start);
            self.bytes -= end - start;
            merged = Extent { start: merged.start.min(start), end: merged.end.max(end) };
        }
        self.extents.insert(merged.start, merged.end);
        self.bytes += merged.length_bytes();
    }

    /// Starts of the extents next to `offset`: up to `count_max` at or behind it, as many before
    /// it.
    pub(crate) fn near(&self, offset: u64, count_max: usize) -> impl Iterator<Item = u64> {
        let behind = self.extents.range(offset..).take(count_max);
        let before = self.extents.range(..offset).rev().take(count_max);
        behind.chain(before).map(|(start, _)| *start)
    }

    /// Takes out the extent at `start`, or its first `bytes_max`.
    pub(crate) fn take(&mut self, start: u64, bytes_max: u64) -> Extent {
        let end = self.extents.remove(&start).expect("the caller found it");
        let cut = end.min(start + bytes_max);
        if cut < end {
            self.extents.insert(cut, end);
        }
        self.bytes -= cut - start;
        Extent { start, end: cut }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn extent(start: u64, end: u64) -> Extent {
        Extent { start, end }
    }

    #[test]
    fn the_read_cache_drops_what_was_used_least_recently() {
        let mut cache = ReadCache::new(30, 10);
        cache.insert(extent(0, 10));
        cache.insert(extent(100, 110));
        cache.insert(extent(200, 210));
        assert!(cache.hit(extent(2, 8)));
        cache.insert(extent(300, 310));
        assert!(cache.hit(extent(0, 10)));
        assert!(!cache.hit(extent(100, 110)));
        assert!(cache.hit(extent(200, 210)));
        assert_eq!(cache.bytes, 30);
    }

    #[test]
    fn the_read_cache_holds_no_byte_twice() {
        let mut cache = ReadCache::new(1000, 10);
        cache.insert(extent(0, 50));
        cache.insert(extent(60, 90));
        cache.insert(extent(40, 70));
        assert_eq!(cache.bytes, 30);
        assert!(!cache.hit(extent(30, 50)));
        assert_eq!(cache.held_until(45), Some(70));
        assert_eq!(cache.held_until(70), Some(70));
        assert_eq!(cache.held_until(90), None);
    }

    #[test]
    fn a_read_longer_than_the_cache_leaves_its_end() {
        let mut cache = ReadCache::new(10, 10);
        cache.insert(extent(0, 100));
        assert!(cache.hit(extent(90, 100)));
        assert!(!cache.hit(extent(89, 91)));
    }

    #[test]
    fn the_read_cache_has_so_many_segments_and_no_more() {
        let mut cache = ReadCache::new(1000, 2);
        for start in [0, 100, 200] {
            cache.insert(extent(start, start + 10));
        }
        assert!(!cache.hit(extent(0, 10)));
        assert!(cache.hit(extent(100, 110)));
        assert!(cache.hit(extent(200, 210)));
    }

    #[test]
    fn the_write_cache_merges_neighbours_and_overlaps() {
        let mut cache = WriteCache::default();
        cache.insert(extent(10, 20));
        cache.insert(extent(30, 40));
        assert_eq!(cache.bytes(), 20);
        cache.insert(extent(20, 30));
        assert!(cache.covers(extent(10, 40)));
        cache.insert(extent(15, 35));
        assert_eq!(cache.bytes(), 30);
        assert_eq!(cache.take(10, 8), extent(10, 18));
        assert_eq!(cache.near(20, 4).collect::<Vec<u64>>(), [18]);
        assert_eq!(cache.take(18, 100), extent(18, 40));
        assert!(cache.is_empty());
        assert_eq!(cache.bytes(), 0);
    }
}
