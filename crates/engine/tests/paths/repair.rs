//! Promise 6: a cached bit flip is never served.

use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::request::{RequestError, Served};
use forebay_engine::status::BlockState;

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, World, cache, content_of, origin};

fn clean_copies() -> World {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 4, 1);
    world.clean(0);
    world
}

#[test]
fn a_bad_clean_block_is_read_from_the_origin_and_repaired() {
    let mut world = clean_copies();
    let place = world.place_of(2);
    world.cache.rot(place, BLOCK);
    let mark = world.mark();
    let read = world.read(0, 0, 4);
    world.finish(&[read]);
    assert_eq!(world.seen(read, 0, 0), Content::Tag(1));
    assert_eq!(world.reply(read).expect("answered").served, Served::Origin);
    assert_eq!(world.origin_ios_since(mark), 1, "one block of the four");
    assert_eq!(world.counters(0).repaired_blocks, 1);
    let mark = world.mark();
    assert_eq!(world.look(0, 0..4), [Content::Tag(1); 4]);
    assert_eq!(world.origin_ios_since(mark), 0, "the copy is good again");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..4), [Content::Tag(1); 4]);
}

#[test]
fn a_clean_block_that_cannot_be_read_is_repaired_too() {
    let mut world = clean_copies();
    let place = world.place_of(0);
    let is_it = move |held: &crate::harness::Held| cache::read(held) && held.overlaps(place, BLOCK);
    world.fails = Some(Box::new(move |held| is_it(held).then_some(IoError::Media)));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    assert_eq!(world.status().counters.cache_errors, 1);
}

#[test]
fn a_bad_clean_block_of_a_failing_origin_is_an_error_and_not_rot() {
    let mut world = clean_copies();
    let place = world.place_of(2);
    world.cache.rot(place, BLOCK);
    world.fails = Some(Box::new(|held| origin::read(0)(held).then_some(IoError::Media)));
    assert_eq!(world.read_now(0, 2), Err(RequestError::Io));
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(1)));
    world.fails = None;
    assert_eq!(world.read_now(0, 2), Ok(Content::Tag(1)));
}

#[test]
fn a_merge_over_a_bad_clean_block_takes_the_rest_from_the_origin() {
    let mut world = clean_copies();
    let place = world.place_of(2);
    world.cache.rot(place, BLOCK);
    let write = world.write_sectors(0, 2 * 8, 8, 2);
    let part = world.write_sectors(0, 3 * 8 + 1, 1, 3);
    world.finish(&[write, part]);
    assert_eq!(world.read_now(0, 2), Ok(Content::Tag(2)));
    let place = world.place_of(1);
    world.cache.rot(place, BLOCK);
    let part = world.write_sectors(0, 8, 1, 1);
    world.finish(&[part]);
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(1)));
}

#[test]
fn a_merge_over_a_bad_dirty_block_is_an_error() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 2, 1);
    let place = world.place_of(0);
    world.cache.rot(place, BLOCK);
    let part = world.write_sectors(0, 3, 1, 2);
    world.settle();
    assert_eq!(world.result(part), Some(Err(RequestError::Io)));
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(1)));
}

#[test]
fn a_rotten_promotion_is_read_again_from_the_origin() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.read_now(0, 7).expect("readable");
    let place = world.place_of(7);
    world.cache.rot(place, BLOCK);
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn checksums_survive_recovery() {
    let mut world = clean_copies();
    let place = world.place_of(1);
    world.kill(|_| Keep::Nothing);
    world.cache.rot(place, BLOCK);
    world.restart().expect("payload is not read at recovery");
    assert_eq!(world.look(0, 0..4), [Content::Tag(1); 4]);
    assert_eq!(world.counters(0).repaired_blocks, 1);
}

/// What the repair puts into the log would be older than the write by the time it is there.
#[test]
fn a_repair_that_a_write_waits_for_answers_and_leaves_no_copy() {
    let mut world = clean_copies();
    let place = world.place_of(2);
    world.cache.rot(place, BLOCK);
    let reads = [world.read(0, 2, 1), world.read(0, 2, 1)];
    world.settle_except(origin::read(0));
    let part = world.write_sectors(0, 2 * 8, 4, 2);
    world.settle_except(origin::read(0));
    assert!(world.is_pending(part), "a merge waits for those who read the origin for a copy");
    let first = world.the(origin::read(0));
    world.fail(first, IoError::Media, Keep::Nothing);
    assert_eq!(world.result(reads[0]), Some(Err(RequestError::Io)));
    let mark = world.mark();
    world.settle_except(|held| origin::read(0)(held) || cache::record(held));
    let second = world.the(origin::read(0));
    world.complete(second);
    assert_eq!(world.seen(reads[1], 0, 2), Content::Tag(1));
    assert_eq!(world.records_since(mark).count(), 0, "not promoted");
    world.finish(&[part]);
    let halves =
        [world.read_bytes(0, 2 * BLOCK, BLOCK / 2), world.read_bytes(0, 5 * BLOCK / 2, BLOCK / 2)];
    world.finish(&halves);
    let half = |id: u64, sector: u64| content_of(world.delivered(id), 0, sector);
    assert_eq!([half(halves[0], 16), half(halves[1], 20)], [2, 1].map(Content::Tag));
}

/// The segment of a bad block is dropped while the origin is read for it, and the block is cached
/// anew, elsewhere: that copy stays, and the repair only answers.
#[test]
fn a_repair_does_not_replace_a_copy_that_came_meanwhile() {
    let mut world = Setup::of(&[CacheMode::Writearound]).start();
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(ORIGINAL)));
    let place = world.place_of(7);
    world.cache.rot(place, BLOCK);
    let repaired = world.read(0, 7, 1);
    world.settle_except(origin::read(0));
    let slow = world.the(origin::read(0));
    for chunk in 1..60 {
        let read = world.read(0, chunk * 15, 15);
        world.idle_except(100, |held| held.id == slow);
        assert!(world.is_done(read));
    }
    assert_eq!(world.state(0, 7), BlockState::NotCached, "its segment was dropped");
    let again = world.read(0, 7, 1);
    world.settle_except(|held| held.id == slow);
    assert_eq!(world.seen(again, 0, 7), Content::Tag(ORIGINAL));
    let promoted = world.counters(0).promoted_blocks;
    world.finish(&[repaired]);
    assert_eq!(world.seen(repaired, 0, 7), Content::Tag(ORIGINAL));
    assert_eq!(world.counters(0).promoted_blocks, promoted, "it is cached already");
    let mark = world.mark();
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(ORIGINAL)));
    assert_eq!(world.origin_ios_since(mark), 0);
}
