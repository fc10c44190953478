//! Buffers of the simulated host, with a watch on how the engine uses them.
//!
//! Buffers hold real bytes. Host and engine count their references apart, so that a release too
//! many by the engine is seen even while the host still holds the buffer. A freed buffer is
//! scribbled over and its id is not given out again soon: what reads it later finds rubbish, what
//! names it panics.

use std::cell::RefCell;

use forebay_engine::format::crc32c;
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::units::{BLOCK_BYTES, Crc32c, SECTOR_BYTES};

use crate::random::Random;

/// Most buffers at once; the lower bits of a [`BufferId`] are the slot, the upper ones say how
/// often the slot was used.
const SLOT_BITS: u32 = 16;
/// Most powers of two of a block that one buffer may have (32 MiB and the blocks around it).
const SIZE_CLASSES: usize = 15;
/// Byte that fills what was never written.
const RUBBISH: u8 = 0xA5;
/// Most memory that pools leave to those that come after them.
const LEFT_BYTES_MAX: usize = 32 << 20;

/// Memory by power of two of blocks.
type Spare = [Vec<Vec<u8>>; SIZE_CLASSES];

thread_local! {
    /// Of pools that are gone. To ask the system for memory anew for each of many short lives takes
    /// longer than these lives.
    static LEFT: RefCell<Spare> = const { RefCell::new([const { Vec::new() }; SIZE_CLASSES]) };
}

/// Limits on what the engine may allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolLimits {
    /// Bytes of the engine's share.
    pub engine_bytes_max: u64,
    /// How often an allocation is refused for no reason.
    pub refusal_permille: u64,
}

struct Slot {
    bytes: Vec<u8>,
    uses: u32,
    engine_references: u32,
    host_references: u32,
    /// Whether the bytes count against the engine's share.
    is_charged: bool,
}

/// All buffers of a host.
pub struct BufferPool {
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    /// Memory for reuse.
    spare: Spare,
    limits: PoolLimits,
    engine_bytes: u64,
    random: Random,
}

impl BufferPool {
    /// An empty pool.
    #[must_use]
    pub fn new(limits: PoolLimits, random: Random) -> BufferPool {
        let spare = Spare::default();
        let (slots, free_slots) = (Vec::new(), Vec::new());
        BufferPool { slots, free_slots, spare, limits, engine_bytes: 0, random }
    }

    /// A buffer for a client request, with one reference of the host.
    pub fn host_allocate(&mut self, bytes: usize) -> BufferId {
        let id = self.place(bytes);
        self.slot_mut(id).host_references = 1;
        id
    }

    /// Drops the host's reference.
    pub fn host_release(&mut self, id: BufferId) {
        let slot = self.slot_mut(id);
        assert!(slot.host_references > 0);
        slot.host_references -= 1;
        self.free_if_unused(id);
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn bytes(&self, range: BufferRange) -> &[u8] {
        let slot = self.slot(range.buffer);
        let (start, end) = bounds(range, slot.bytes.len());
        &slot.bytes[start..end]
    }

    /// Bytes of a buffer, to be changed.
    pub fn bytes_mut(&mut self, range: BufferRange) -> &mut [u8] {
        let slot = self.slot_mut(range.buffer);
        let (start, end) = bounds(range, slot.bytes.len());
        &mut slot.bytes[start..end]
    }

    /// Buffers that the engine still refers to: id, bytes and references of each.
    #[must_use]
    pub fn held_by_engine(&self) -> Vec<(BufferId, usize, u32)> {
        let ids = self.slots.iter().enumerate();
        ids.filter(|(_, slot)| slot.engine_references > 0)
            .map(|(index, slot)| {
                (id_of(index, slot.uses), slot.bytes.len(), slot.engine_references)
            })
            .collect()
    }

    /// Buffers of clients among those the engine still refers to.
    #[must_use]
    pub fn client_buffers_held_by_engine(&self) -> usize {
        self.slots.iter().filter(|slot| slot.engine_references > 0 && !slot.is_charged).count()
    }

    /// Takes back what an engine held that died alone. Buffers of clients stay with them.
    pub fn take_from_engine(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.engine_references > 0 {
                slot.engine_references = 0;
                let id = id_of(index, slot.uses);
                self.free_if_unused(id);
            }
        }
    }

    /// Takes everything back: the process is dead.
    pub fn reset(&mut self) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.engine_references + slot.host_references > 0 {
                slot.engine_references = 0;
                slot.host_references = 0;
                let id = id_of(index, slot.uses);
                self.free_if_unused(id);
            }
        }
        assert_eq!(self.engine_bytes, 0);
    }

    /// Sets new limits; buffers that exist stay.
    pub fn set_limits(&mut self, limits: PoolLimits) {
        self.limits = limits;
    }

    fn place(&mut self, bytes: usize) -> BufferId {
        let capacity_bytes = capacity_bytes(bytes);
        let class = size_class(capacity_bytes);
        assert!(class < SIZE_CLASSES);
        let memory = self.spare[class].pop().unwrap_or_else(|| fresh(class));
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                bytes: Vec::new(),
                uses: 0,
                engine_references: 0,
                host_references: 0,
                is_charged: false,
            });
            self.slots.len() as u32 - 1
        });
        assert!(index < 1 << SLOT_BITS);
        let slot = &mut self.slots[index as usize];
        slot.bytes = memory;
        slot.uses = (slot.uses + 1) & 0xFFFF;
        slot.is_charged = false;
        id_of(index as usize, slot.uses)
    }

    fn slot(&self, id: BufferId) -> &Slot {
        let slot = &self.slots[(id.0 & ((1 << SLOT_BITS) - 1)) as usize];
        assert_eq!(slot.uses, id.0 >> SLOT_BITS, "{id:?} is used after it was freed");
        assert!(slot.engine_references + slot.host_references > 0 || !slot.bytes.is_empty());
        slot
    }

    fn slot_mut(&mut self, id: BufferId) -> &mut Slot {
        let slot = &mut self.slots[(id.0 & ((1 << SLOT_BITS) - 1)) as usize];
        assert_eq!(slot.uses, id.0 >> SLOT_BITS, "{id:?} is used after it was freed");
        assert!(slot.engine_references + slot.host_references > 0 || !slot.bytes.is_empty());
        slot
    }

    fn free_if_unused(&mut self, id: BufferId) {
        let index = id.0 & ((1 << SLOT_BITS) - 1);
        let slot = &mut self.slots[index as usize];
        if slot.engine_references + slot.host_references > 0 {
            return;
        }
        let mut memory = std::mem::take(&mut slot.bytes);
        if slot.is_charged {
            self.engine_bytes -= memory.len() as u64;
        }
        // A word of rubbish in each sector spoils its stamp.
        for sector in memory.chunks_exact_mut(SECTOR_BYTES) {
            sector[..8].fill(RUBBISH);
        }
        slot.uses = (slot.uses + 1) & 0xFFFF;
        self.spare[size_class(memory.len())].push(memory);
        self.free_slots.push(index);
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let memory = self.slots.drain(..).map(|slot| slot.bytes);
        let memory = memory.chain(self.spare.iter_mut().flat_map(std::mem::take));
        LEFT.with_borrow_mut(|left| {
            let mut left_bytes: usize = left.iter().flatten().map(Vec::len).sum();
            for bytes in memory.filter(|bytes| !bytes.is_empty()) {
                left_bytes += bytes.len();
                if left_bytes > LEFT_BYTES_MAX {
                    break;
                }
                left[size_class(bytes.len())].push(bytes);
            }
        });
    }
}

/// Gives back to the system what pools of this thread have left.
pub(crate) fn release_left() {
    LEFT.take();
}

/// Memory with nothing in it: a run must not depend on those before it.
fn fresh(class: usize) -> Vec<u8> {
    match LEFT.with_borrow_mut(|left| left[class].pop()) {
        Some(mut memory) => {
            memory.fill(RUBBISH);
            memory
        }
        None => vec![RUBBISH; BLOCK_BYTES << class],
    }
}

/// What a buffer for so many bytes takes up: a power of two of blocks.
fn capacity_bytes(bytes: usize) -> usize {
    assert!(bytes > 0);
    bytes.div_ceil(BLOCK_BYTES).next_power_of_two() * BLOCK_BYTES
}

fn size_class(capacity_bytes: usize) -> usize {
    (capacity_bytes / BLOCK_BYTES).trailing_zeros() as usize
}

fn id_of(index: usize, uses: u32) -> BufferId {
    BufferId(uses << SLOT_BITS | index as u32)
}

fn bounds(range: BufferRange, length: usize) -> (usize, usize) {
    let start = range.offset as usize;
    let end = start + range.length as usize;
    assert!(end <= length, "{range:?} leaves its buffer of {length} bytes");
    (start, end)
}

impl Payload for BufferPool {
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let charged = capacity_bytes(bytes) as u64;
        if self.engine_bytes + charged > self.limits.engine_bytes_max
            || self.random.permille(self.limits.refusal_permille)
        {
            return None;
        }
        let id = self.place(bytes);
        let slot = self.slot_mut(id);
        slot.engine_references = 1;
        slot.is_charged = true;
        self.engine_bytes += charged;
        Some(id)
    }

    fn allocate_spare(&mut self, bytes: usize) -> Option<BufferId> {
        let charged = capacity_bytes(bytes) as u64;
        let is_spare = self.engine_bytes + charged <= self.limits.engine_bytes_max / 2;
        if is_spare { self.allocate(bytes) } else { None }
    }

    fn retain(&mut self, buffer: BufferId) {
        self.slot_mut(buffer).engine_references += 1;
    }

    fn release(&mut self, buffer: BufferId) {
        let slot = self.slot_mut(buffer);
        assert!(slot.engine_references > 0, "{buffer:?} is released more often than retained");
        slot.engine_references -= 1;
        self.free_if_unused(buffer);
    }

    fn checksum(&self, block: BufferRange) -> Crc32c {
        assert_eq!(block.length as usize, BLOCK_BYTES);
        crc32c(self.bytes(block))
    }

    fn copy(&mut self, from: BufferRange, to: BufferRange) {
        assert_eq!(from.length, to.length);
        assert_eq!(from.length as usize % SECTOR_BYTES, 0);
        if from.buffer == to.buffer {
            let (start, end) = bounds(from, self.slot(from.buffer).bytes.len());
            let (to_start, to_end) = bounds(to, self.slot(to.buffer).bytes.len());
            assert!(to_end <= start || to_start >= end, "{from:?} and {to:?} overlap");
            self.slot_mut(to.buffer).bytes.copy_within(start..end, to_start);
            return;
        }
        // Taken out for the moment: two buffers of one pool cannot be borrowed at once.
        let taken = std::mem::take(&mut self.slot_mut(from.buffer).bytes);
        let (start, end) = bounds(from, taken.len());
        self.bytes_mut(to).copy_from_slice(&taken[start..end]);
        self.slots[(from.buffer.0 & ((1 << SLOT_BITS) - 1)) as usize].bytes = taken;
    }

    fn zero(&mut self, range: BufferRange) {
        assert_eq!(range.offset as usize % SECTOR_BYTES, 0);
        assert_eq!(range.length as usize % SECTOR_BYTES, 0);
        self.bytes_mut(range).fill(0);
    }

    fn metadata(&self, range: BufferRange) -> &[u8] {
        self.bytes(range)
    }

    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8] {
        self.bytes_mut(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufferPool {
        let limits = PoolLimits { engine_bytes_max: 1 << 20, refusal_permille: 0 };
        BufferPool::new(limits, Random::new(1))
    }

    fn range(buffer: BufferId, offset: u32, length: u32) -> BufferRange {
        BufferRange { buffer, offset, length }
    }

    #[test]
    fn the_bound_holds_and_memory_comes_back() {
        let mut pool = pool();
        let ids: Vec<_> = (0..256).map(|_| pool.allocate(4096).expect("room")).collect();
        assert_eq!(pool.allocate(1), None);
        for id in ids {
            pool.release(id);
        }
        assert!(pool.held_by_engine().is_empty());
        assert!(pool.allocate(1 << 20).is_some());
    }

    #[test]
    fn a_client_buffer_lives_until_both_sides_let_go() {
        let mut pool = pool();
        let id = pool.host_allocate(8192);
        pool.retain(id);
        pool.host_release(id);
        assert_eq!(pool.client_buffers_held_by_engine(), 1);
        pool.bytes_mut(range(id, 0, 8192)).fill(3);
        pool.release(id);
        assert_eq!(pool.client_buffers_held_by_engine(), 0);
    }

    #[test]
    #[should_panic(expected = "after it was freed")]
    fn use_after_free_panics() {
        let mut pool = pool();
        let id = pool.allocate(4096).expect("room");
        pool.release(id);
        let _ = pool.checksum(range(id, 0, 4096));
    }

    #[test]
    #[should_panic(expected = "more often than retained")]
    fn the_engine_cannot_release_the_reference_of_the_host() {
        let mut pool = pool();
        let id = pool.host_allocate(4096);
        pool.release(id);
    }

    #[test]
    fn bytes_are_copied_between_buffers_and_within_one() {
        let mut pool = pool();
        let (a, b) = (pool.allocate(8192).expect("room"), pool.allocate(4096).expect("room"));
        pool.zero(range(a, 0, 8192));
        pool.bytes_mut(range(a, 512, 512)).fill(7);
        pool.copy(range(a, 512, 512), range(b, 1024, 512));
        assert_eq!(pool.bytes(range(b, 1024, 512)), [7; 512]);
        pool.copy(range(a, 512, 512), range(a, 4096, 512));
        assert_eq!(pool.bytes(range(a, 4096, 512)), [7; 512]);
    }
}
