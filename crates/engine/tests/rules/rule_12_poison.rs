//! Rule 12: a dirty block that cannot be read is an error until it is overwritten, and never old
//! data.

use forebay_engine::event::{Command, CommandError, Event};
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;
use forebay_engine::units::VolumeSlot;

use crate::harness::{
    BLOCK, Content, Held, Keep, ORIGINAL, Setup, World, block_bytes, cache, origin,
};

/// Three dirty blocks, the middle one rotten.
fn rotten() -> World {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 10, 3, 1);
    world.flush_now(0);
    let place = world.place_of(11);
    world.cache.rot(place, BLOCK);
    world
}

#[test]
fn only_the_bad_block_is_an_error() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 10), Ok(Content::Tag(1)));
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    assert_eq!(world.read_now(0, 12), Ok(Content::Tag(1)));
    let all = world.read(0, 10, 3);
    world.settle();
    assert_eq!(world.result(all), Some(Err(RequestError::Io)));
    assert_eq!(world.counters(0).poisoned_blocks, 1);
}

#[test]
fn a_poisoned_block_stays_an_error_over_recovery_and_checkpoints() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    for _ in 0..2 {
        world.kill(|_| Keep::Nothing);
        world.restart().expect("poison is no damage");
        assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
        assert_eq!(world.look(0, [10, 12].into_iter()), [Content::Tag(1); 2]);
    }
    assert_eq!(world.command_now(Command::Stop), Ok(None));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("poison is no damage");
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
}

#[test]
fn writeback_of_a_rotten_block_never_writes_it_home() {
    let mut world = rotten();
    let result = world.command_now(Command::Drain { volume: VolumeSlot(0) });
    assert_eq!(result, Err(CommandError::Poisoned));
    assert_eq!(world.on_origin(0, 12), Content::Tag(1), "the others are home");
    assert_eq!(world.on_origin(0, 11), Content::Tag(ORIGINAL));
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    assert_eq!(world.read_now(0, 12), Ok(Content::Tag(1)));
}

/// A writethrough volume whose origin was not flushed when the process died. The place of block 11
/// on the cache device comes with it.
fn writethrough_to_be_drained() -> (World, u64) {
    let mut world = Setup::of(&[CacheMode::Writethrough]).start();
    world.write_now(0, 10, 3, 1);
    let place = world.place_of(11);
    world.flush(0);
    world.settle_except(origin::flush(0));
    // The header of the next record vouches for what is durable.
    world.write(0, 50, 1, 2);
    world.settle_except(origin::flush(0));
    world.kill(|_| Keep::Nothing);
    world.origins[0].damage(11 * BLOCK, &block_bytes(ORIGINAL, 0, 11, 1));
    (world, place)
}

#[test]
fn recovery_serves_a_writethrough_volume_with_a_rotten_dirty_block() {
    let (mut world, place) = writethrough_to_be_drained();
    world.cache.rot(place, BLOCK);
    world.restart().expect("an error of one block");
    assert_eq!(world.status().dirty_blocks, 1, "the poison");
    assert_eq!(world.look(0, [10, 12].into_iter()), [Content::Tag(1); 2]);
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
}

/// Without the cache device its poison would be forgotten, and what the origin has be served.
#[test]
fn a_writethrough_volume_with_poison_is_not_served_without_its_cache() {
    let (mut world, place) = writethrough_to_be_drained();
    world.cache.rot(place, BLOCK);
    world.restart().expect("an error of one block");
    world.write(0, 30, 1, 3);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    assert!(world.has_event(&Event::CacheFailed { clean_volumes: vec![] }));
    let read = world.read(0, 11, 1);
    world.idle_for(60_000);
    assert_eq!(world.result(read), Some(Err(RequestError::Io)));
}

#[test]
fn a_dirty_block_that_the_device_does_not_return_is_brought_home_when_it_does() {
    let (mut world, place) = writethrough_to_be_drained();
    let is_bad = move |held: &Held| cache::read(held) && held.overlaps(place, BLOCK);
    // Summaries and headers are read apart from it.
    world.fails = Some(Box::new(move |held| {
        (is_bad(held) && held.length == 3 * BLOCK || is_bad(held) && held.length == BLOCK)
            .then_some(IoError::Media)
    }));
    world.restart().expect("an error of one block");
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    assert_eq!(world.dirty(0), 1, "the others are home, so what can be read the origin has");
    assert_eq!([10, 12].map(|block| world.on_origin(0, block)), [Content::Tag(1); 2]);
    let result = world.command_now(Command::Drain { volume: VolumeSlot(0) });
    assert_eq!(result, Err(CommandError::Unreadable));
    world.fails = None;
    assert_eq!(world.read_now(0, 11), Ok(Content::Tag(1)));
    world.idle();
    assert_eq!(world.dirty(0), 0);
    assert_eq!(world.on_origin(0, 11), Content::Tag(1));
}

#[test]
fn a_write_ends_the_error() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    world.write_now(0, 11, 1, 2);
    assert_eq!(world.look(0, 10..13), [1, 2, 1].map(Content::Tag));
    world.clean(0);
    assert_eq!(world.on_origin(0, 11), Content::Tag(2));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 10..13), [1, 2, 1].map(Content::Tag));
}

#[test]
fn write_zeroes_and_discard_end_the_error() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    let zero = world.zero(0, 11, 1);
    world.finish(&[zero]);
    assert_eq!(world.read_now(0, 11), Ok(Content::Zeroes));
    world.clean(0);
    assert_eq!(world.on_origin(0, 11), Content::Zeroes);
}

#[test]
fn part_of_a_poisoned_block_cannot_be_written() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    let part = world.write_sectors(0, 11 * 8, 1, 2);
    world.settle();
    assert_eq!(world.result(part), Some(Err(RequestError::Io)), "the rest of it is lost");
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
}

/// The error entry is moved when its segment is reclaimed, and still there after a crash.
#[test]
fn poison_outlives_the_segment_it_was_written_to() {
    let mut world = rotten();
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    assert!(world.find(cache::poison).is_empty(), "the entry is complete");
    for chunk in 0..200 {
        world.write_now(0, 100 + chunk % 100 * 15, 15, chunk);
        world.idle_for(2_000);
    }
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("poison is no damage");
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io));
    assert_eq!(world.read_now(0, 10), Ok(Content::Tag(1)));
}

/// Poison of an older version never comes over what was written since.
#[test]
fn a_rotten_block_that_is_overwritten_while_it_is_read_does_not_become_poison() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    let write = world.write(0, 11, 1, 1);
    world.settle_except(cache::read);
    assert!(world.is_done(write));
    let place = world.place_of(11);
    world.cache.rot(place, BLOCK);
    let of_block = move |held: &Held| cache::read(held) && held.overlaps(place, BLOCK);
    for _ in 0..2 {
        world.idle_except(20_000, of_block);
        let read = world.the(of_block);
        world.complete(read);
    }
    world.idle_except(20_000, of_block);
    let last = world.the(of_block);
    // Over it, and not complete: the index still points at the rotten copy.
    let write = world.write(0, 11, 1, 2);
    world.complete(last);
    assert!(world.find(cache::poison).is_empty());
    world.settle();
    assert!(world.is_done(write));
    assert_eq!(world.counters(0).poisoned_blocks, 0);
    world.idle();
    assert_eq!(world.dirty(0), 0);
    assert_eq!(world.on_origin(0, 11), Content::Tag(2));
    assert_eq!(world.read_now(0, 11), Ok(Content::Tag(2)));
}

/// Work that overwrites its own dirty data moves what is left of a segment without the origin. A
/// rotten block among that is an error from then on; the others are moved as they are.
#[test]
fn a_rotten_block_that_reclaim_moves_becomes_poison() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    for block in 1000..1003 {
        world.write_now(0, block, 1, 1);
    }
    let place = world.place_of(1001);
    world.cache.rot(place, BLOCK);
    let log_blocks = u64::from(world.status().segments * world.status().segment_blocks);
    for tag in 0..log_blocks {
        // No other segment dies as a whole, or has less to be moved.
        let is_cold = tag > 32 && tag % 8 == 0;
        let block = if is_cold { 200 + tag / 8 } else { tag * 37 % 39 };
        let write = world.write(0, block, 1, 2 + tag);
        world.idle_except(0, origin::any(0));
        assert!(world.is_done(write), "{}", world.engine().0.describe_waiting());
    }
    assert_eq!(world.counters(0).poisoned_blocks, 1, "without a read of a client");
    for _ in 0..2 {
        assert_eq!(world.read_now(0, 1001), Err(RequestError::Io));
        assert_eq!(world.look(0, [1000, 1002].into_iter()), [Content::Tag(1); 2]);
        world.kill(|_| Keep::Nothing);
        world.restart().expect("poison is no damage");
    }
    assert_eq!(world.on_origin(0, 1001), Content::Tag(ORIGINAL), "and never goes home");
}

/// A dirty block is home, and rots before the origin is flushed. Once the origin durably has it,
/// its poison is still one of the dirty blocks: as a clean one it would stand for another, which
/// then never goes home.
#[test]
fn poison_of_a_block_that_is_home_keeps_nothing_else_from_going_home() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 11, 1, 1);
    world.drain(0);
    world.settle_except(origin::flush(0));
    assert_eq!(world.on_origin(0, 11), Content::Tag(1));
    let place = world.place_of(11);
    world.cache.rot(place, BLOCK);
    let read = world.read(0, 11, 1);
    world.settle_except(origin::flush(0));
    assert_eq!(world.result(read), Some(Err(RequestError::Io)));
    world.idle();
    assert_eq!(world.dirty(0), 1, "the poison");
    world.write_now(0, 20, 1, 2);
    let drain = Command::Drain { volume: VolumeSlot(0) };
    assert_eq!(world.command_now(drain.clone()), Err(CommandError::Poisoned));
    assert_eq!(world.on_origin(0, 20), Content::Tag(2));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("poison is no damage");
    assert_eq!(world.look(0, [20].into_iter()), [Content::Tag(2)]);
    assert_eq!(world.read_now(0, 11), Err(RequestError::Io), "until it is overwritten");
    world.write_now(0, 11, 1, 3);
    world.clean(0);
    assert_eq!(world.on_origin(0, 11), Content::Tag(3));
}
