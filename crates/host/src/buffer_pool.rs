//! Payload memory: one mapped region, cut into buffers with reference counts.
//!
//! The region has two shares, the engine's and the clients', each with an allocator of its own, so
//! neither can take or fragment what is the other's. A buffer's id is its first 4 KiB unit in the
//! region, so finding its memory is one multiplication. Behind the shares lies a stretch of zeroes
//! that nobody writes, for devices that cannot write zeroes themselves.
//!
//! Invariants: a unit that starts a buffer has a reference count above zero, all others have zero;
//! every range handed in lies within its buffer's memory. Small buffers that were just freed are
//! kept aside and handed out again first: their memory is still in the processor's cache, and the
//! allocator need not merge and split for each request.
//!
//! What the pool does not know: who writes to a buffer when. The engine's contract (see
//! [`Payload`]) and the front ends keep transfers and accesses to the same bytes apart.

use std::ptr::NonNull;

use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::units::{BLOCK_BYTES, Crc32c};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::buddy::{Buddy, LARGEST_BLOCK_UNITS, ORDER_COUNT};
use crate::shard::status::{MemoryReport, ShareReport};
use crate::shard::{MemoryOptions, ShardError};

/// Bytes in a unit, the smallest buffer.
const UNIT_BYTES: usize = BLOCK_BYTES;
/// Bytes of zeroes for devices that cannot write zeroes.
pub(crate) const ZERO_BYTES: usize = 1 << 20;
/// Alignment of the region, so that the kernel can back it with huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Largest share. Keeps unit numbers and registered buffer numbers small.
const SHARE_BYTES_MAX: u64 = 256 << 30;
/// Orders of which freed blocks are kept aside: up to 64 KiB.
const KEPT_ORDERS: usize = 5;
/// Freed blocks kept aside of each such order: two full queues of the usual depth.
const KEPT_BLOCKS: usize = 64;

/// Whose memory a buffer is taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The engine.
    Engine,
    /// The front ends.
    Clients,
}

/// The mapped memory.
struct Region {
    mapping: NonNull<u8>,
    mapping_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the region is plain memory that belongs to this value alone; no thread is special to it.
unsafe impl Send for Region {}

impl Region {
    fn map(bytes: usize) -> Result<Region, ShardError> {
        let mapping_bytes = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
        let mapping = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapping_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let mapping = mapping.map_err(|errno| ShardError::Memory {
            bytes: mapping_bytes as u64,
            source: errno.into(),
        })?;
        let mapping = NonNull::new(mapping.cast::<u8>()).expect("the kernel maps no null page");
        let skipped = mapping.as_ptr().align_offset(HUGE_PAGE_BYTES);
        assert!(skipped <= HUGE_PAGE_BYTES);
        // SAFETY: `skipped` is within the mapping, which is larger by a huge page.
        let base = unsafe { mapping.add(skipped) };
        // SAFETY: the advice concerns memory of this mapping only and does not change its content.
        // A kernel without huge pages refuses it, which costs speed only.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(Region { mapping, mapping_bytes, base, bytes })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` and is unmapped once. The ring, which may name it,
        // is dropped before the pool in `Shard::run`.
        let result = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapping_bytes) };
        assert!(result.is_ok(), "an own mapping can be unmapped");
    }
}

/// A share of the region.
struct Share {
    first_unit: u32,
    unit_count: u32,
    buddy: Buddy,
    kept: [Vec<u32>; KEPT_ORDERS],
    used_units: u32,
    refused: u64,
}

impl Share {
    fn new(first_unit: u32, unit_count: u32) -> Share {
        Share {
            first_unit,
            unit_count,
            buddy: Buddy::new(unit_count),
            kept: std::array::from_fn(|_| Vec::with_capacity(KEPT_BLOCKS)),
            used_units: 0,
            refused: 0,
        }
    }

    /// Takes a block; its number is that of the region.
    fn allocate(&mut self, order: usize) -> Option<u32> {
        let kept = self.kept.get_mut(order).and_then(Vec::pop);
        let unit = kept.or_else(|| self.buddy.allocate(order)).or_else(|| {
            for unit in self.kept.iter_mut().flat_map(|kept| kept.drain(..)) {
                self.buddy.free(unit);
            }
            self.buddy.allocate(order)
        });
        match unit {
            Some(unit) => {
                self.used_units += 1 << order;
                Some(self.first_unit + unit)
            }
            None => {
                self.refused += 1;
                None
            }
        }
    }

    fn free(&mut self, unit: u32, order: usize) {
        self.used_units -= 1 << order;
        let unit = unit - self.first_unit;
        match self.kept.get_mut(order) {
            Some(kept) if kept.len() < KEPT_BLOCKS => kept.push(unit),
            _ => self.buddy.free(unit),
        }
    }

    fn report(&self) -> ShareReport {
        let bytes = |units: u32| u64::from(units) * UNIT_BYTES as u64;
        ShareReport {
            total_bytes: bytes(self.unit_count),
            used_bytes: bytes(self.used_units),
            refused: self.refused,
        }
    }
}

/// Buffers are powers of two of units: the power that holds `bytes`.
fn order_of(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES).max(1).next_power_of_two().trailing_zeros() as usize
}

/// What is known of the buffer that starts at a unit.
#[derive(Clone, Copy, Default)]
struct Unit {
    references: u32,
    order: u8,
}

/// All payload memory of a shard.
pub(crate) struct BufferPool {
    region: Region,
    units: Vec<Unit>,
    engine: Share,
    clients: Share,
}

/// A client (a connection, a disk) may have this part of the clients' memory.
const CLIENT_PARTS: u64 = 4;

impl BufferPool {
    /// Maps the memory. The clients' share must hold the largest request; the engine's share may be
    /// empty, if there is no engine.
    pub(crate) fn new(options: MemoryOptions) -> Result<BufferPool, ShardError> {
        let unit_bytes = UNIT_BYTES as u64;
        let check = |share, bytes: u64, least_bytes: u64| {
            if (least_bytes..=SHARE_BYTES_MAX).contains(&bytes) {
                Ok((bytes / unit_bytes) as u32)
            } else {
                Err(ShardError::MemoryShare {
                    share,
                    bytes,
                    least_bytes,
                    most_bytes: SHARE_BYTES_MAX,
                })
            }
        };
        let least_bytes = u64::from(LARGEST_BLOCK_UNITS) * unit_bytes;
        let engine_units = check("engine", options.engine_bytes, 0)?;
        let client_units = check("client", options.client_bytes, least_bytes)?;
        let unit_count = (engine_units + client_units) as usize;
        let region = Region::map(unit_count * UNIT_BYTES + ZERO_BYTES)?;
        Ok(BufferPool {
            region,
            units: vec![Unit::default(); unit_count],
            engine: Share::new(0, engine_units),
            clients: Share::new(engine_units, client_units),
        })
    }

    /// Start and length of the region, to be registered with the ring.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.region.base.as_ptr(), self.region.bytes)
    }

    /// Has the kernel give all of the memory now: it would when the ring pins it, and whoever waits
    /// for the ring would wait for that as well.
    pub(crate) fn populate(&mut self) {
        let (start, bytes) = self.memory();
        // SAFETY: the advice concerns the pool's own mapping only and does not change its content.
        // A kernel that does not know it gives the memory later, which costs time only.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
    }

    /// A buffer of at least `bytes` bytes with one reference; `None` if the share is used up.
    pub(crate) fn allocate_for(&mut self, owner: Owner, bytes: usize) -> Option<BufferId> {
        let order = order_of(bytes);
        if order >= ORDER_COUNT {
            return None;
        }
        let share = match owner {
            Owner::Engine => &mut self.engine,
            Owner::Clients => &mut self.clients,
        };
        let unit = share.allocate(order)?;
        let found = &mut self.units[unit as usize];
        assert!(found.references == 0, "a free unit has no references");
        *found = Unit { references: 1, order: order as u8 };
        Some(BufferId(unit))
    }

    /// Bytes that a buffer takes up.
    pub(crate) fn capacity_bytes(&self, buffer: BufferId) -> usize {
        let unit = self.units[buffer.0 as usize];
        assert!(unit.references > 0);
        UNIT_BYTES << unit.order
    }

    /// Byte offset of a range in the region. Panics unless the range lies within its buffer.
    pub(crate) fn region_offset(&self, range: BufferRange) -> usize {
        let (offset, length) = (range.offset as usize, range.length as usize);
        assert!(offset + length <= self.capacity_bytes(range.buffer));
        range.buffer.0 as usize * UNIT_BYTES + offset
    }

    /// The memory of a range, for a transfer.
    pub(crate) fn pointer(&self, range: BufferRange) -> *mut u8 {
        let offset = self.region_offset(range);
        // SAFETY: `region_offset` is within a buffer, and buffers are within the region.
        unsafe { self.region.base.add(offset) }.as_ptr()
    }

    /// The stretch of zeroes: its offset in the region. It is [`ZERO_BYTES`] long.
    pub(crate) fn zeroes(&self) -> (usize, *mut u8) {
        let offset = self.region.bytes - ZERO_BYTES;
        // SAFETY: the zeroes are the end of the region.
        (offset, unsafe { self.region.base.add(offset) }.as_ptr())
    }

    /// Bytes of a range.
    pub(crate) fn slice(&self, range: BufferRange) -> &[u8] {
        // SAFETY: the range is within the region (asserted), which is mapped and initialised (zero
        // pages) for as long as the pool lives. The engine's contract keeps transfers by the kernel
        // off ranges that are looked at; the front ends do the same for theirs.
        unsafe { std::slice::from_raw_parts(self.pointer(range), range.length as usize) }
    }

    /// Bytes of a range, to be written.
    pub(crate) fn slice_mut(&mut self, range: BufferRange) -> &mut [u8] {
        // SAFETY: as in `slice`; and `&mut self` keeps other slices of the pool from existing.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(range), range.length as usize) }
    }

    /// How much is in use.
    pub(crate) fn report(&self) -> MemoryReport {
        MemoryReport { engine: self.engine.report(), clients: self.clients.report() }
    }

    /// Whether a client that holds so much may have so much more: a part of the clients' memory,
    /// and one request in any case. What one client waits for may take as long as it likes, and
    /// others need memory meanwhile.
    pub(crate) fn may_hold(&self, held_bytes: u64, wanted_bytes: u64) -> bool {
        let most = u64::from(self.clients.unit_count) * UNIT_BYTES as u64 / CLIENT_PARTS;
        held_bytes == 0 || held_bytes + wanted_bytes <= most
    }

    /// Sets the counters of refused allocations to zero.
    pub(crate) fn reset_counters(&mut self) {
        self.engine.refused = 0;
        self.clients.refused = 0;
    }
}

impl Payload for BufferPool {
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        self.allocate_for(Owner::Engine, bytes)
    }

    fn allocate_spare(&mut self, bytes: usize) -> Option<BufferId> {
        let wanted = 1 << order_of(bytes);
        if self.engine.used_units as usize + wanted > self.engine.unit_count as usize / 2 {
            return None;
        }
        self.allocate_for(Owner::Engine, bytes)
    }

    fn retain(&mut self, buffer: BufferId) {
        let unit = &mut self.units[buffer.0 as usize];
        assert!(unit.references > 0, "{buffer:?} is retained but free");
        unit.references += 1;
    }

    fn release(&mut self, buffer: BufferId) {
        let unit = &mut self.units[buffer.0 as usize];
        assert!(unit.references > 0, "{buffer:?} is released but free");
        unit.references -= 1;
        if unit.references == 0 {
            let order = usize::from(unit.order);
            let is_clients = buffer.0 >= self.clients.first_unit;
            let share = if is_clients { &mut self.clients } else { &mut self.engine };
            share.free(buffer.0, order);
        }
    }

    fn checksum(&self, block: BufferRange) -> Crc32c {
        assert!(block.length as usize == BLOCK_BYTES);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, self.slice(block));
        Crc32c(u32::try_from(crc).expect("a CRC32 has 32 bits"))
    }

    fn copy(&mut self, from: BufferRange, to: BufferRange) {
        assert!(from.length == to.length);
        let (source, target) = (self.pointer(from), self.pointer(to));
        let length = from.length as usize;
        let (start, end) = (source.addr(), source.addr() + length);
        assert!(target.addr() + length <= start || end <= target.addr());
        // SAFETY: both ranges are within their buffers and do not overlap (asserted).
        unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    }

    fn zero(&mut self, range: BufferRange) {
        self.slice_mut(range).fill(0);
    }

    fn metadata(&self, range: BufferRange) -> &[u8] {
        self.slice(range)
    }

    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8] {
        self.slice_mut(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn pool() -> BufferPool {
        BufferPool::new(MemoryOptions { engine_bytes: 4 * MIB, client_bytes: 64 * MIB }).unwrap()
    }

    fn whole(pool: &BufferPool, buffer: BufferId) -> BufferRange {
        BufferRange { buffer, offset: 0, length: pool.capacity_bytes(buffer) as u32 }
    }

    #[test]
    fn neither_share_can_take_what_is_the_others() {
        let mut pool = pool();
        let engine: Vec<_> = std::iter::from_fn(|| pool.allocate(4096)).collect();
        assert_eq!(engine.len(), 1024);
        let largest = pool.allocate_for(Owner::Clients, (32 << 20) + 4096).unwrap();
        assert!(pool.allocate_for(Owner::Clients, 1).is_none());
        pool.release(engine[7]);
        assert!(pool.allocate_for(Owner::Clients, 1).is_none());
        assert!(pool.allocate(1).is_some());
        pool.release(largest);
        assert_eq!(pool.report().clients.used_bytes, 0);
        assert_eq!(pool.report().clients.refused, 2);
    }

    #[test]
    fn what_nothing_depends_on_leaves_half_of_the_share() {
        let mut pool = pool();
        let spare: Vec<_> = std::iter::from_fn(|| pool.allocate_spare(65_536)).collect();
        let rest: Vec<_> = std::iter::from_fn(|| pool.allocate(65_536)).collect();
        assert!(!spare.is_empty());
        assert_eq!(spare.len(), rest.len());
        pool.release(rest[0]);
        assert_eq!(pool.allocate_spare(65_536), None);
        pool.release(spare[0]);
        pool.release(rest[1]);
        assert!(pool.allocate_spare(4096).is_none(), "less than half is free");
    }

    #[test]
    fn what_was_kept_aside_is_merged_when_a_large_buffer_is_wanted() {
        let mut pool = pool();
        let small: Vec<_> = (0..100).map(|_| pool.allocate(4096).unwrap()).collect();
        for buffer in small {
            pool.release(buffer);
        }
        assert!(pool.allocate(4 << 20).is_some());
    }

    #[test]
    fn a_buffer_is_free_with_its_last_reference() {
        let mut pool = pool();
        let buffer = pool.allocate(10_000).unwrap();
        assert_eq!(pool.capacity_bytes(buffer), 16_384);
        pool.retain(buffer);
        pool.release(buffer);
        assert_eq!(pool.report().engine.used_bytes, 16_384);
        pool.release(buffer);
        assert_eq!(pool.report().engine.used_bytes, 0);
    }

    #[test]
    fn checksum_copy_and_zero() {
        let mut pool = pool();
        let (first, second) = (pool.allocate(4096).unwrap(), pool.allocate(4096).unwrap());
        let (from, to) = (whole(&pool, first), whole(&pool, second));
        pool.slice_mut(from)[..9].copy_from_slice(b"123456789");
        pool.slice_mut(from)[9..].fill(0);
        pool.copy(from, to);
        assert_eq!(pool.metadata(to), pool.metadata(from));
        assert_eq!(pool.checksum(from), forebay_engine::format::crc32c(pool.metadata(to)));
        pool.zero(to.slice(0, 512));
        assert_eq!(pool.metadata(to)[..512], [0; 512]);
        let (_, zeroes) = pool.zeroes();
        assert!(zeroes.addr().is_multiple_of(4096));
    }

    #[test]
    fn a_client_share_below_the_largest_request_is_refused() {
        let options = MemoryOptions { engine_bytes: 0, client_bytes: 63 * MIB };
        assert!(matches!(BufferPool::new(options), Err(ShardError::MemoryShare { .. })));
    }

    proptest! {
        #[test]
        fn buffers_never_overlap(sizes in prop::collection::vec(1..300_000usize, 1..60)) {
            let mut pool = pool();
            let mut owned: Vec<BufferId> = Vec::new();
            for (step, size) in sizes.into_iter().enumerate() {
                if size % 3 == 0 && !owned.is_empty() {
                    pool.release(owned.swap_remove(step % owned.len()));
                } else if let Some(buffer) = pool.allocate(size) {
                    prop_assert!(pool.capacity_bytes(buffer) >= size);
                    owned.push(buffer);
                }
                for (index, buffer) in owned.iter().enumerate() {
                    let range = whole(&pool, *buffer);
                    pool.slice_mut(range).fill(index as u8);
                }
                for (index, buffer) in owned.iter().enumerate() {
                    let range = whole(&pool, *buffer);
                    prop_assert!(pool.metadata(range).iter().all(|byte| *byte == index as u8));
                }
            }
        }
    }
}
