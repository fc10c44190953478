//! Read-ahead: when a miss fetches more than was asked, and what must not come of it.

use forebay_engine::event::Command;
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, SetSettings};
use forebay_engine::request::Served;
use forebay_engine::status::BypassReason;

use crate::harness::{BLOCK, Content, ORIGINAL, Setup, World, content_of, origin};

const WINDOW: u64 = 16;
/// Windows from here on were read to learn how slow the origin is.
const LEARNING: u64 = 1024;

fn setup() -> Setup {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.read_ahead_bytes = 64 << 10;
    setup
}

/// Reads one block of eight windows, each in so much time.
fn learn(world: &mut World, trip_ns: u64) {
    for trip in 0..8 {
        let read = world.read(0, LEARNING + trip * WINDOW, 1);
        world.now += trip_ns;
        world.finish(&[read]);
    }
}

fn on_slow_origin() -> World {
    on_slow_origin_of(setup().origin_bytes / BLOCK)
}

fn on_slow_origin_of(blocks: u64) -> World {
    let mut setup = setup();
    setup.origin_bytes = blocks * BLOCK;
    let mut world = setup.start();
    learn(&mut world, 8_000_000);
    world
}

/// Asks for a block and tells which blocks the origin is asked for.
fn asked_for(world: &mut World, block: u64) -> Vec<(u64, u64)> {
    let mark = world.read(0, block, 1);
    let reads: Vec<_> = world
        .held
        .iter()
        .filter(|held| origin::read(0)(held))
        .map(|held| (held.offset / BLOCK, held.length / BLOCK))
        .collect();
    world.finish(&[mark]);
    assert_eq!(world.seen(mark, 0, block), Content::Tag(ORIGINAL));
    reads
}

#[test]
fn a_small_miss_on_a_slow_origin_fetches_its_window() {
    let mut world = on_slow_origin();
    let before = world.counters(0);
    assert_eq!(asked_for(&mut world, 37), [(32, 16)]);
    let after = world.counters(0);
    assert_eq!(after.promoted_blocks - before.promoted_blocks, 16);
    assert_eq!(after.read_ahead_blocks, 15);
    assert_eq!(after.read_miss_bytes - before.read_miss_bytes, BLOCK, "only one was a miss");
    for block in 32..48 {
        let read = world.read(0, block, 1);
        world.finish(&[read]);
        assert_eq!(world.seen(read, 0, block), Content::Tag(ORIGINAL));
        assert_eq!(world.reply(read).expect("answered").served, Served::Cache);
    }
    assert_eq!(world.counters(0).read_ahead_used_blocks, 15);
}

#[test]
fn nothing_more_is_fetched_from_a_fast_origin_or_when_it_is_switched_off() {
    let mut world = setup().start();
    learn(&mut world, 100_000);
    assert_eq!(asked_for(&mut world, 37), [(37, 1)]);
    let mut setup = setup();
    setup.read_ahead_bytes = 0;
    let mut world = setup.start();
    learn(&mut world, 8_000_000);
    assert_eq!(asked_for(&mut world, 37), [(37, 1)]);
}

#[test]
fn beyond_the_budget_nothing_more_is_fetched() {
    let mut setup = setup();
    setup.segments = 64;
    setup.origin_bytes = 8192 * BLOCK;
    setup.cache_write_budget = 1;
    let mut world = setup.start();
    learn(&mut world, 8_000_000);
    assert_eq!(asked_for(&mut world, 37), [(32, 16)]);
    // The bucket holds 1,024 blocks.
    for part in 0..16 {
        let read = world.read(0, 4096 + part * 64, 64);
        world.finish(&[read]);
    }
    for block in [101, 205, 309] {
        assert_eq!(asked_for(&mut world, block), [(block, 1)]);
        let before = world.counters(0).promoted_blocks;
        assert_eq!(asked_for(&mut world, block), [(block, 1)], "what lies around was not missed");
        assert_eq!(world.counters(0).promoted_blocks, before + 1, "it was missed before");
    }
    let settings = SetSettings::default();
    world.command_now(Command::SetCacheSet { settings }).expect("durable");
    assert_eq!(asked_for(&mut world, 405), [(400, 16)], "without a budget");
}

#[test]
fn the_window_ends_at_what_is_cached_and_at_the_end_of_the_volume() {
    let mut world = on_slow_origin();
    world.write_now(0, 34, 1, 1);
    world.write_now(0, 40, 2, 2);
    assert_eq!(asked_for(&mut world, 37), [(35, 5)]);
    assert_eq!(world.read_now(0, 34), Ok(Content::Tag(1)));
    assert_eq!(world.read_now(0, 41), Ok(Content::Tag(2)));

    let mut setup = setup();
    setup.origin_bytes = 2043 * BLOCK - 512;
    let mut world = setup.start();
    learn(&mut world, 8_000_000);
    let read = world.read(0, 2041, 1);
    let lengths: Vec<_> =
        world.held.iter().filter(|held| origin::read(0)(held)).map(|held| held.length).collect();
    assert_eq!(lengths, [11 * BLOCK - 512]);
    world.finish(&[read]);
    let tail = world.read_bytes(0, 2042 * BLOCK, BLOCK - 512);
    world.finish(&[tail]);
    assert_eq!(content_of(world.delivered(tail), 0, 2042 * 8), Content::Tag(ORIGINAL));
    assert_eq!(world.reply(tail).expect("answered").served, Served::Cache);
}

#[test]
fn a_read_of_the_window_joins() {
    let mut world = on_slow_origin();
    let reads = [world.read(0, 37, 1), world.read(0, 40, 2), world.read(0, 46, 4)];
    assert_eq!(world.find(origin::read(0)).len(), 2, "the last one leaves the window");
    world.finish(&reads);
    for (read, block) in reads.into_iter().zip([37, 40, 46]) {
        assert_eq!(world.seen(read, 0, block), Content::Tag(ORIGINAL));
    }
    let of_windows = [16 - 1 - 2 - 2, 16 - 2];
    assert_eq!(world.counters(0).read_ahead_blocks, of_windows.iter().sum());
}

/// Rule 9: a write to a block that is being fetched ahead.
#[test]
fn a_write_into_the_window_cancels_the_promotion_and_stays() {
    let mut world = on_slow_origin();
    let promoted = world.counters(0).promoted_blocks;
    let read = world.read(0, 37, 1);
    let write = world.write(0, 44, 1, 1);
    world.settle_except(origin::read(0));
    assert!(world.is_done(write));
    world.finish(&[read]);
    assert_eq!(world.seen(read, 0, 37), Content::Tag(ORIGINAL));
    assert_eq!(world.counters(0).promoted_blocks, promoted);
    assert_eq!(world.bypassed(0, BypassReason::Overwritten), 16);
    assert_eq!(world.read_now(0, 44), Ok(Content::Tag(1)));
}

/// Rule 9: a miss that begins while a write to a block of its window is under way.
#[test]
fn a_write_under_way_keeps_the_window_from_being_fetched() {
    let mut world = on_slow_origin();
    let write = world.write(0, 44, 1, 1);
    assert_eq!(asked_for(&mut world, 37), [(37, 1)]);
    world.finish(&[write]);
    assert_eq!(world.read_now(0, 44), Ok(Content::Tag(1)));
}

/// Rule 4: what was written around the log may still be lost by the origin.
#[test]
fn what_was_written_around_is_not_fetched_ahead_before_the_origin_is_flushed() {
    let mut world = on_slow_origin();
    world.switch(0, CacheMode::Writearound);
    learn(&mut world, 8_000_000);
    world.write_now(0, 44, 1, 1);
    assert_eq!(asked_for(&mut world, 37), [(37, 1)]);
    assert_eq!(world.counters(0).read_ahead_blocks, 0);
    world.flush_now(0);
    assert_eq!(asked_for(&mut world, 39), [(38, 10)]);
    assert_eq!(world.read_now(0, 44), Ok(Content::Tag(1)));
}

#[test]
fn a_bad_place_that_nobody_asked_for_fails_nobody() {
    let mut world = on_slow_origin();
    let reads = [world.read(0, 37, 1), world.read(0, 40, 2)];
    let is_bad =
        |held: &crate::harness::Held| origin::read(0)(held) && held.overlaps(45 * BLOCK, BLOCK);
    world.fails = Some(Box::new(move |held| is_bad(held).then_some(IoError::Media)));
    world.finish(&reads);
    for (read, block) in reads.into_iter().zip([37, 40]) {
        assert_eq!(world.seen(read, 0, block), Content::Tag(ORIGINAL));
    }
    assert_eq!(world.bypassed(0, BypassReason::OriginError), 3);
    assert_eq!(world.counters(0).origin_errors, 1);
}

#[test]
fn prefetches_and_streams_are_read_as_they_were_asked() {
    let mut world = on_slow_origin();
    let prefetch = world.prefetch(0, 37, 1);
    let lengths: Vec<_> =
        world.held.iter().filter(|held| origin::read(0)(held)).map(|held| held.length).collect();
    assert_eq!(lengths, [BLOCK]);
    world.finish(&[prefetch]);
    let mut setup = setup();
    setup.sequential_cutoff_bytes = 2 * BLOCK;
    let mut world = setup.start();
    learn(&mut world, 8_000_000);
    asked_for(&mut world, 14);
    asked_for(&mut world, 15);
    assert_eq!(asked_for(&mut world, 16), [(16, 1)]);
}

/// A log that is always full of something newer: what is fetched ahead is dropped unread.
#[test]
fn read_ahead_that_does_not_pay_ends() {
    let mut world = on_slow_origin_of(40_000);
    let mut widened = Vec::new();
    for window in 100..2400 {
        let read = world.read(0, window * WINDOW + window % WINDOW, 1);
        let is_wide = |held: &crate::harness::Held| origin::read(0)(held) && held.length > BLOCK;
        widened.push(!world.find(is_wide).is_empty());
        world.now += 8_000_000;
        world.finish(&[read]);
        world.settle();
    }
    let count = |part: &[bool]| part.iter().filter(|is_wide| **is_wide).count();
    assert!(count(&widened[..100]) > 90, "the cache is empty at first");
    assert!(count(&widened[widened.len() - 640..]) <= 10, "one of 64 is tried");
    assert_eq!(world.counters(0).read_ahead_used_blocks, 0);
}

/// Windows fill the log, and what of them was asked for stays longer than what was not.
#[test]
fn what_was_asked_for_outlasts_the_rest_of_its_window() {
    let mut world = on_slow_origin_of(40_000);
    let asked = |window: u64| window * WINDOW + window % WINDOW;
    let first = 100;
    let mut next = first;
    while world.is_cached(0, first * WINDOW + WINDOW - 1) || next < first + 32 {
        assert_eq!(asked_for(&mut world, asked(next)).len(), 1);
        world.settle();
        next += 1;
    }
    assert!(world.is_cached(0, asked(first)));
    let rest = (first * WINDOW..(first + 1) * WINDOW).filter(|block| *block != asked(first));
    assert_eq!(rest.filter(|block| world.is_cached(0, *block)).count(), 0);
}

/// Reads on until a block has left the cache; tells where the next one would read.
fn scan_until_gone(world: &mut World, from: u64, block: u64) -> u64 {
    let mut next = from;
    while world.is_cached(0, block) {
        scan(world, next, 32);
        next += 32;
    }
    next
}

fn scan(world: &mut World, from: u64, blocks: u64) {
    for block in (from..from + blocks).step_by(32) {
        let read = world.read(0, block, 32);
        world.now += 8_000_000;
        world.finish(&[read]);
        world.settle();
    }
}

/// A block that was missed alone and is remembered comes back with its window: it goes to the main
/// queue, and takes nothing along.
#[test]
fn a_remembered_block_is_kept_apart_from_its_window() {
    let mut world = on_slow_origin_of(8192);
    // The first trip of those that taught how slow the origin is.
    let next = scan_until_gone(&mut world, 2048, LEARNING);
    assert_eq!(asked_for(&mut world, LEARNING), [(LEARNING, WINDOW)]);
    assert!(world.is_cached(0, LEARNING + 1));
    let blocks = world.log_blocks() / 2;
    scan(&mut world, next, blocks);
    assert!(world.is_cached(0, LEARNING));
    assert!(!world.is_cached(0, LEARNING + 1));
}

/// A window that is remembered as a whole comes back as a whole, if only half of it is asked for.
#[test]
fn a_remembered_window_is_kept_together() {
    let mut world = on_slow_origin_of(8192);
    let read = world.read(0, 64, WINDOW);
    world.finish(&[read]);
    let next = scan_until_gone(&mut world, 2048, 64);
    let read = world.read(0, 64, WINDOW / 2);
    assert_eq!(world.find(|held| origin::read(0)(held) && held.length == WINDOW * BLOCK).len(), 1);
    world.finish(&[read]);
    let blocks = world.log_blocks() / 2;
    scan(&mut world, next, blocks);
    for block in 64..64 + WINDOW {
        assert!(world.is_cached(0, block), "block {block}");
    }
}
