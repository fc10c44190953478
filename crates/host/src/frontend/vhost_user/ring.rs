//! A split virtqueue: what the driver makes available, and what is given back as used.
//!
//! The ring is the guest's memory, which it may fill with anything at any time. Each field is read
//! once, and the copy is judged. A chain is walked into segments of guest memory that were checked
//! from end to end; a chain that cannot be walked says nothing of where its answer belongs, so it
//! is a [`RingFault`], which stops the ring.
//!
//! Bounds: a chain has at most [`SEGMENTS_MAX`] descriptors, direct or not, which also ends loops.

use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};

use super::abi::{Descriptor, NO_INTERRUPT, NO_NOTIFY, descriptor_flag, feature};
use super::memory::{Memory, OutOfMemory, Segment};

/// Largest ring. QEMU allows 1024, and 128 is usual.
pub(super) const RING_SIZE_MAX: u16 = 1024;
/// Most descriptors in a chain: as many as the largest ring could hold.
pub(super) const SEGMENTS_MAX: usize = RING_SIZE_MAX as usize;

const DESCRIPTOR_BYTES: u64 = 16;
const USED_ENTRY_BYTES: u64 = 8;
/// Bytes before the entries of the available and the used ring: flags and index.
const RING_HEADER_BYTES: u64 = 4;
const INDEX_OFFSET: u64 = 2;

/// What is wrong with a ring. For people: it goes into the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingFault {
    OutsideOfMemory,
    Misaligned,
    AvailableIndex,
    HeadOutOfRange,
    HeadTwice,
    IndirectTwice,
    IndirectLength,
    NextOutOfRange,
    ChainTooLong,
    WritableBeforeReadable,
    SegmentOutsideOfMemory,
    NoStatus,
}

impl RingFault {
    pub(super) fn text(self) -> &'static str {
        match self {
            RingFault::OutsideOfMemory => "the ring is not in guest memory",
            RingFault::Misaligned => "the ring is not aligned",
            RingFault::AvailableIndex => "more requests are available than the ring has room for",
            RingFault::HeadOutOfRange => "a request begins behind the end of the ring",
            RingFault::HeadTwice => "a request was made available twice",
            RingFault::IndirectTwice => "a table of descriptors is within another one",
            RingFault::IndirectLength => "a table of descriptors has an odd length",
            RingFault::NextOutOfRange => "a descriptor points behind the end of its table",
            RingFault::ChainTooLong => "a chain of descriptors is too long or a loop",
            RingFault::WritableBeforeReadable => "what is to be read follows what is to be written",
            RingFault::SegmentOutsideOfMemory => "a descriptor points out of guest memory",
            RingFault::NoStatus => "a request has no room for its status",
        }
    }
}

impl From<OutOfMemory> for RingFault {
    fn from(_: OutOfMemory) -> RingFault {
        RingFault::OutsideOfMemory
    }
}

/// Where the parts of a ring are, in guest memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Places {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// The segments of a request, in the order of the chain.
#[derive(Debug, Default)]
pub(super) struct Chain {
    pub(super) readable: Vec<Segment>,
    pub(super) writable: Vec<Segment>,
}

impl Chain {
    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }

    fn push(&mut self, descriptor: &Descriptor) -> Result<(), RingFault> {
        let segment = Segment { address: descriptor.address.get(), bytes: descriptor.bytes.get() };
        if descriptor.flags.get() & descriptor_flag::WRITABLE != 0 {
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(RingFault::WritableBeforeReadable);
        }
        Ok(())
    }
}

/// A ring at work.
#[derive(Debug)]
pub(super) struct SplitRing {
    size: u16,
    places: Places,
    has_event_index: bool,
    next_available: Wrapping<u16>,
    next_used: Wrapping<u16>,
    /// Used entries up to here were told of.
    signalled: Wrapping<u16>,
}

impl SplitRing {
    /// A ring that begins where `next_available` says. What is used stands in its own memory.
    pub(super) fn start(
        memory: &Memory,
        size: u16,
        places: Places,
        features: u64,
    ) -> Result<SplitRing, RingFault> {
        assert!(size.is_power_of_two() && size <= RING_SIZE_MAX);
        let next = Wrapping(0);
        let mut ring = SplitRing {
            size,
            places,
            has_event_index: features & feature::EVENT_INDEX != 0,
            next_available: next,
            next_used: next,
            signalled: next,
        };
        ring.check(memory)?;
        ring.next_used = Wrapping(load(memory, places.used + INDEX_OFFSET)?);
        ring.signalled = ring.next_used;
        Ok(ring)
    }

    /// Moves to where the same ring is in another table of regions.
    pub(super) fn move_to(&mut self, memory: &Memory, places: Places) -> Result<(), RingFault> {
        self.places = places;
        self.check(memory)
    }

    fn check(&self, memory: &Memory) -> Result<(), RingFault> {
        let Places { descriptors, available, used } = self.places;
        let is_aligned =
            descriptors.is_multiple_of(16) && available.is_multiple_of(2) && used.is_multiple_of(4);
        if !is_aligned {
            return Err(RingFault::Misaligned);
        }
        let size = usize::from(self.size);
        // Two bytes behind the entries are for the event index.
        memory.check(descriptors, size * DESCRIPTOR_BYTES as usize)?;
        memory.check(available, size * 2 + RING_HEADER_BYTES as usize + 2)?;
        memory.check(used, size * USED_ENTRY_BYTES as usize + RING_HEADER_BYTES as usize + 2)?;
        Ok(())
    }

    pub(super) fn next_available(&self) -> u16 {
        self.next_available.0
    }

    pub(super) fn set_next_available(&mut self, next: u16) {
        self.next_available = Wrapping(next);
    }

    pub(super) fn next_used(&self) -> u16 {
        self.next_used.0
    }

    /// The head of the next available chain.
    pub(super) fn pop(&mut self, memory: &Memory) -> Result<Option<u16>, RingFault> {
        let index = Wrapping(load(memory, self.places.available + INDEX_OFFSET)?);
        let waiting = (index - self.next_available).0;
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.size {
            return Err(RingFault::AvailableIndex);
        }
        let place = u64::from(self.next_available.0 % self.size);
        let head = load(memory, self.places.available + RING_HEADER_BYTES + place * 2)?;
        if head >= self.size {
            return Err(RingFault::HeadOutOfRange);
        }
        self.next_available += 1;
        Ok(Some(head))
    }

    /// Walks the chain that begins at `head`.
    pub(super) fn walk(
        &self,
        memory: &Memory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), RingFault> {
        chain.clear();
        let mut table = self.places.descriptors;
        let mut entry_count = u64::from(self.size);
        let mut is_indirect = false;
        let mut index = u64::from(head);
        for _ in 0..=SEGMENTS_MAX {
            if index >= entry_count {
                return Err(RingFault::NextOutOfRange);
            }
            let place = table
                .checked_add(index * DESCRIPTOR_BYTES)
                .ok_or(RingFault::SegmentOutsideOfMemory)?;
            let descriptor: Descriptor =
                memory.read_struct(place).map_err(|_| RingFault::SegmentOutsideOfMemory)?;
            let flags = descriptor.flags.get();
            let (address, bytes) = (descriptor.address.get(), descriptor.bytes.get());
            memory.check(address, bytes as usize).map_err(|_| RingFault::SegmentOutsideOfMemory)?;
            if flags & descriptor_flag::INDIRECT != 0 {
                if is_indirect || flags & descriptor_flag::NEXT != 0 {
                    return Err(RingFault::IndirectTwice);
                }
                if bytes == 0 || !u64::from(bytes).is_multiple_of(DESCRIPTOR_BYTES) {
                    return Err(RingFault::IndirectLength);
                }
                is_indirect = true;
                table = address;
                entry_count = u64::from(bytes) / DESCRIPTOR_BYTES;
                index = 0;
                continue;
            }
            chain.push(&descriptor)?;
            if flags & descriptor_flag::NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next.get().into();
        }
        Err(RingFault::ChainTooLong)
    }

    /// Gives a chain back.
    pub(super) fn push_used(
        &mut self,
        memory: &Memory,
        head: u16,
        written_bytes: u32,
    ) -> Result<(), RingFault> {
        let place = u64::from(self.next_used.0 % self.size);
        let entry = self.places.used + RING_HEADER_BYTES + place * USED_ENTRY_BYTES;
        memory.store(entry, u32::from(head).to_le(), Ordering::Relaxed)?;
        memory.store(entry + 4, written_bytes.to_le(), Ordering::Relaxed)?;
        self.next_used += 1;
        let index = self.next_used.0.to_le();
        // The driver reads the entry, and what the request wrote, once it sees the index.
        memory.store(self.places.used + INDEX_OFFSET, index, Ordering::Release)?;
        Ok(())
    }

    /// Asks for no kicks while requests are being taken anyway.
    pub(super) fn disable_kicks(&self, memory: &Memory) -> Result<(), RingFault> {
        if !self.has_event_index {
            memory.store(self.places.used, NO_NOTIFY.to_le(), Ordering::Relaxed)?;
        }
        Ok(())
    }

    /// Asks for a kick at the next request. Returns whether one has come meanwhile.
    pub(super) fn enable_kicks(&self, memory: &Memory) -> Result<bool, RingFault> {
        if self.has_event_index {
            let entries = u64::from(self.size) * USED_ENTRY_BYTES;
            let place = self.places.used + RING_HEADER_BYTES + entries;
            memory.store(place, self.next_available.0.to_le(), Ordering::Relaxed)?;
        } else {
            memory.store(self.places.used, 0u16, Ordering::Relaxed)?;
        }
        // Either the driver sees this and kicks, or its request is seen here.
        fence(Ordering::SeqCst);
        let index = Wrapping(load(memory, self.places.available + INDEX_OFFSET)?);
        Ok(index != self.next_available)
    }

    /// Whether the driver wants to be told of what is used since this was asked last.
    pub(super) fn needs_call(&mut self, memory: &Memory) -> Result<bool, RingFault> {
        // What is used must be visible before it is read whether the driver waits for it.
        fence(Ordering::SeqCst);
        let old = std::mem::replace(&mut self.signalled, self.next_used);
        if self.has_event_index {
            let place = self.places.available + RING_HEADER_BYTES + u64::from(self.size) * 2;
            let event = Wrapping(load(memory, place)?);
            return Ok(self.next_used - event - Wrapping(1) < self.next_used - old);
        }
        let flags = load(memory, self.places.available)?;
        Ok(self.next_used != old && flags & NO_INTERRUPT == 0)
    }
}

fn load(memory: &Memory, address: u64) -> Result<u16, RingFault> {
    // What the driver wrote before it is seen with it.
    Ok(u16::from_le(memory.load(address, Ordering::Acquire)?))
}
