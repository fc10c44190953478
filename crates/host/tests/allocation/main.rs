//! No allocation on a hit, of the engine alone and of a whole shard: an allocator that counts for
//! the threads that are told to.

mod disk;
#[path = "../../../engine/tests/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "each test target uses its part of the harness")]
mod harness;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::io::{IoKind, Slices};
use forebay_engine::options::CacheMode;
use forebay_engine::payload::BufferId;
use forebay_engine::request::{Request, RequestId, RequestKind, Served};
use forebay_engine::units::VolumeSlot;

use harness::{BLOCK, Content, Setup, World, content_of};

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    /// What this thread allocates is counted here; another thread may look.
    static ALLOCATIONS: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// Counts what a thread allocates while it is told to.
struct Counting;

fn note() {
    if COUNTS.get()
        && let Some(allocations) = ALLOCATIONS.get()
    {
        allocations.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is left to the system's allocator; the counting allocates nothing, since the
// thread-local cells need neither initialization nor destruction.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the pointer came from `System` above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What the engine allocates in `work`.
fn counted<T>(work: impl FnOnce() -> T) -> T {
    COUNTS.set(true);
    let result = work();
    COUNTS.set(false);
    result
}

/// Reads `block_count` cached blocks; the device is a copy from one vector to another.
fn hit(world: &mut World, buffer: BufferId, id: u64, (block, block_count): (u64, u64)) {
    let request = Request {
        id: RequestId(id),
        volume: VolumeSlot(0),
        offset_bytes: block * BLOCK,
        length_bytes: block_count * BLOCK,
        kind: RequestKind::Read { buffer },
    };
    let now = world.time();
    let cache = &world.cache;
    let engine = world.engine.as_mut().expect("alive");
    let buffers = &mut world.buffers;
    counted(|| engine.handle_request(now, request, buffers));
    while let Some(io) = counted(|| engine.poll_io(buffers)) {
        let IoKind::Read { offset_bytes, slices: Slices::One(range) } = io.kind else {
            panic!("a hit reads, in one piece: {io:?}");
        };
        let bytes = cache.range(offset_bytes, range.length.into());
        buffers.bytes_mut(range).copy_from_slice(bytes);
        counted(|| engine.handle_io_complete(now, io.id, Ok(()), buffers));
    }
    let reply = counted(|| engine.poll_reply()).expect("it is answered");
    assert_eq!((reply.id, reply.result), (RequestId(id), Ok(())));
    assert_eq!(reply.served, Served::Cache);
    assert!(counted(|| engine.poll_event()).is_none());
}

fn allocations_of_hits(pieces: u64, allocations: &'static AtomicU64) -> u64 {
    ALLOCATIONS.set(Some(allocations));
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    for at in 0..64 / pieces {
        // Apart, so that a read of several blocks has several pieces.
        world.write_now(0, 128 - (at + 1) * pieces, pieces, 1);
        world.write_now(0, at * pieces, pieces, 1);
    }
    let buffer = world.buffers.place(8 * BLOCK as usize);
    let sizes = [1, 4, 8];
    for round in 0..2_000u64 {
        if round == 1_000 {
            allocations.store(0, Ordering::Relaxed);
        }
        let count = sizes[(round % 3) as usize];
        let block = round * 7 % (64 - count);
        hit(&mut world, buffer, 1_000 + round, (block, count));
        let range = forebay_engine::payload::BufferRange { buffer, offset: 0, length: 4096 };
        assert_eq!(content_of(world.buffers.bytes(range), 0, block * 8), Content::Tag(1));
    }
    allocations.load(Ordering::Relaxed)
}

#[test]
fn a_hit_allocates_nothing() {
    static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
    assert_eq!(allocations_of_hits(8, &ALLOCATIONS), 0);
}

#[test]
fn a_hit_of_many_pieces_allocates_nothing() {
    static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
    assert_eq!(allocations_of_hits(1, &ALLOCATIONS), 0);
}
