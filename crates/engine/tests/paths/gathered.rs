//! Dense regions of an origin go home whole.

use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;

use crate::harness::{Content, Held, Keep, ORIGINAL, Setup, What, World, origin};

/// Blocks of a region.
const REGION: u64 = 256;
/// The region of the tests; the one before it taught the engine what the origin costs.
const FIRST: u64 = REGION;
/// Dirty blocks of it, each with a gap behind it.
const DIRTY: u64 = 20;
const STEP: u64 = 5;
const TRANSFER_NS: u64 = 5_000_000;

/// Lets every read and write of the origin take five milliseconds, until everything is home. Those
/// that `is_bad` names fail.
fn serve_slowly_but(world: &mut World, is_bad: impl Fn(&Held) -> bool) {
    let is_slow = |held: &Held| origin::read(0)(held) || origin::write(0)(held);
    for _ in 0..10_000 {
        world.idle_except(5, is_slow);
        world.now += TRANSFER_NS;
        for id in world.find(|held| is_slow(held) && is_bad(held)) {
            world.fail(id, IoError::Media, Keep::Nothing);
        }
        for id in world.find(|held| is_slow(held) && !is_bad(held)) {
            world.complete(id);
        }
        if world.dirty(0) == 0 && world.find(is_slow).is_empty() {
            return;
        }
    }
    panic!("not everything goes home: {}", world.describe_held());
}

fn serve_slowly(world: &mut World) {
    serve_slowly_but(world, |_| false);
}

/// A volume whose dirty blocks go home at once, on an origin that is known to be slow.
fn on_a_slow_origin() -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    for block in 0..10 {
        world.hand_in_write(0, block * 8, 1, 1);
        serve_slowly(&mut world);
    }
    world
}

fn write_densely(world: &mut World) {
    let writes: Vec<u64> =
        (0..DIRTY).map(|n| world.hand_in_write(0, FIRST + n * STEP, 1, 100 + n)).collect();
    world.settle_except(origin::any(0));
    assert!(writes.iter().all(|write| world.is_done(*write)));
}

fn expect_all_home(world: &World) {
    for block in FIRST..FIRST + DIRTY * STEP {
        let (n, is_gap) = ((block - FIRST) / STEP, !(block - FIRST).is_multiple_of(STEP));
        let expected = if is_gap { ORIGINAL } else { 100 + n };
        assert_eq!(world.on_origin(0, block), Content::Tag(expected), "block {block}");
    }
}

/// Reads and writes of the origin since then.
fn transfers(world: &World, mark: usize) -> (usize, usize) {
    let is_origin = |device: &_| matches!(device, forebay_engine::io::Device::Origin(_));
    let reads = world.count_since(mark, |device, what| is_origin(device) && *what == What::Read);
    let writes = world.count_since(mark, |device, what| is_origin(device) && *what == What::Write);
    (reads, writes)
}

#[test]
fn a_dense_region_is_read_and_written_whole() {
    let mut world = on_a_slow_origin();
    let mark = world.mark();
    write_densely(&mut world);
    serve_slowly(&mut world);
    expect_all_home(&world);
    let (reads, writes) = transfers(&world, mark);
    assert!(reads >= 1 && reads + writes < DIRTY as usize / 2, "{reads} reads, {writes} writes");
    let counters = world.counters(0);
    assert_eq!(counters.writeback_blocks, 10 + DIRTY);
    assert!(counters.writeback_gap_blocks > 0);
}

#[test]
fn what_is_cached_between_dirty_blocks_is_not_read_from_the_origin() {
    let mut world = on_a_slow_origin();
    for block in FIRST..FIRST + DIRTY * STEP {
        let read = world.read(0, block, 1);
        world.idle_for(1);
        assert!(world.is_done(read));
    }
    let mark = world.mark();
    write_densely(&mut world);
    serve_slowly(&mut world);
    expect_all_home(&world);
    let (reads, writes) = transfers(&world, mark);
    assert_eq!(reads, 0);
    assert!(writes < DIRTY as usize / 2, "{writes} writes");
}

#[test]
fn a_bad_block_between_dirty_ones_keeps_none_of_them_from_going_home() {
    let bad = (FIRST + 7 * STEP + 2) * 4096;
    let mut world = on_a_slow_origin();
    write_densely(&mut world);
    serve_slowly_but(&mut world, |held| held.overlaps(bad, 4096));
    expect_all_home(&world);
    assert!(world.counters(0).writeback_reads > 0, "it was tried");
}

/// It can be read, and not be written: only a write of it shows.
#[test]
fn after_a_failed_write_of_a_region_its_blocks_go_home_one_by_one() {
    let bad = (FIRST + 7 * STEP + 2) * 4096;
    let mut world = on_a_slow_origin();
    write_densely(&mut world);
    serve_slowly_but(&mut world, |held| origin::write(0)(held) && held.overlaps(bad, 4096));
    expect_all_home(&world);
    assert!(world.counters(0).writeback_gap_blocks > 0, "it was tried");
}

#[test]
fn a_write_that_comes_while_its_region_goes_home_stays_dirty_and_wins() {
    let mut world = on_a_slow_origin();
    write_densely(&mut world);
    world.idle_except(2_000, origin::any(0));
    for id in world.find(origin::write(0)) {
        world.complete(id);
    }
    world.idle_except(2_000, |held| origin::read(0)(held) || origin::write(0)(held));
    let read = world.the(origin::read(0));
    world.complete(read);
    world.settle_except(origin::any(0));
    // One into a gap, one over a dirty block that is on its way.
    let late = [world.hand_in_write(0, FIRST + 1, 1, 7), world.hand_in_write(0, FIRST, 1, 8)];
    world.settle_except(origin::any(0));
    assert!(late.iter().all(|write| world.is_done(*write)), "they go into the log");
    serve_slowly(&mut world);
    assert_eq!(world.on_origin(0, FIRST + 1), Content::Tag(7));
    assert_eq!(world.on_origin(0, FIRST), Content::Tag(8));
}

/// An error of a write is of all blocks in it.
#[test]
fn a_bad_block_keeps_only_itself_from_going_home() {
    let mut world = on_a_slow_origin();
    let write = world.hand_in_write(0, FIRST, 10, 100);
    let bad = (FIRST + 3) * 4096;
    let is_bad = |held: &Held| origin::write(0)(held) && held.overlaps(bad, 4096);
    for _ in 0..100 {
        world.idle_except(500, is_bad);
        for id in world.find(is_bad) {
            world.fail(id, IoError::Media, Keep::Nothing);
        }
    }
    assert!(world.is_done(write));
    assert_eq!(world.dirty(0), 1);
    assert_eq!(world.failed_extents(0), [(FIRST + 3, FIRST + 4)]);
    for block in (0..10).filter(|block| *block != 3) {
        assert_eq!(world.on_origin(0, FIRST + block), Content::Tag(100), "block {block}");
    }
    serve_slowly(&mut world);
    assert_eq!(world.on_origin(0, FIRST + 3), Content::Tag(100), "it is tried until it is home");
    assert_eq!(world.failed_extents(0), []);
}
