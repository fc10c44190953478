//! Rule 5: write-ahead, and when a block is clean.

use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::status::BlockState;

use crate::harness::{Content, Keep, ORIGINAL, Setup, What, World, cache, origin};

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

#[test]
fn a_dirty_block_goes_home_only_after_its_record_is_durable() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.drain(0);
    world.settle_except(cache::flush);
    assert_eq!(world.find(origin::write(0)), [], "its record may still be lost");
    let flush = world.the(cache::flush);
    world.complete(flush);
    world.settle_except(origin::write(0));
    world.the(origin::write(0));
}

#[test]
fn a_flush_that_began_before_the_record_was_complete_is_not_enough() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.flush(0);
    let early = world.the(cache::flush);
    world.write(0, 1, 1, 2);
    let record = world.the(cache::record);
    world.complete(record);
    world.drain(0);
    world.settle_except(cache::flush);
    world.complete(early);
    world.settle_except(cache::flush);
    let is_of_second =
        |held: &crate::harness::Held| origin::write(0)(held) && held.overlaps(4096, 4096);
    assert_eq!(world.find(is_of_second), []);
    world.settle();
    assert_eq!(world.on_origin(0, 1), Content::Tag(2));
}

#[test]
fn a_block_is_clean_only_after_a_flush_of_the_origin_behind_its_write() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.drain(0);
    world.settle_except(origin::flush(0));
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
    assert_eq!((world.dirty(0), world.state(0, 0)), (1, BlockState::Dirty));
    world.settle();
    assert_eq!((world.dirty(0), world.state(0, 0)), (0, BlockState::Clean));
}

#[test]
fn a_power_cut_before_the_flush_of_the_origin_loses_nothing() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    world.drain(0);
    world.settle_except(origin::flush(0));
    world.cut_power(|device, _| device == Device::Cache);
    assert_eq!(world.on_origin(0, 0), Content::Tag(ORIGINAL));
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    world.clean(0);
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
}

#[test]
fn an_origin_flush_under_way_does_not_make_clean_what_is_written_behind_it() {
    let mut world = of(CacheMode::Writethrough);
    world.flush(0);
    world.settle_except(origin::flush(0));
    let early = world.the(origin::flush(0));
    let write = world.write(0, 0, 1, 1);
    world.settle_except(origin::flush(0));
    assert!(world.is_done(write));
    world.complete(early);
    world.settle_except(origin::flush(0));
    assert_eq!(world.state(0, 0), BlockState::Dirty);
    world.flush_now(0);
    assert_eq!(world.state(0, 0), BlockState::Clean);
}

#[test]
fn writethrough_over_a_copy_makes_the_record_durable_first() {
    let mut world = of(CacheMode::Writethrough);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    let write = world.write(0, 0, 1, 2);
    world.origin_waits_for(0, cache::record);
    let to_origin = world.the(origin::write(0));
    world.complete(to_origin);
    assert!(world.is_done(write));
}

#[test]
fn writethrough_without_a_copy_writes_both_devices_at_once() {
    let mut world = of(CacheMode::Writethrough);
    let write = world.write(0, 0, 1, 1);
    let (record, to_origin) = (world.the(cache::record), world.the(origin::write(0)));
    world.complete(to_origin);
    assert!(world.is_pending(write), "answered when both have it");
    world.complete(record);
    assert!(world.is_done(write));
}

#[test]
fn writethrough_over_a_copy_survives_a_cut_at_each_step() {
    for step in 0..4 {
        let mut world = of(CacheMode::Writethrough);
        world.write_now(0, 0, 1, 1);
        world.flush_now(0);
        let write = world.write(0, 0, 1, 2);
        world.complete_oldest(step);
        let was_answered = world.is_done(write);
        // Everything that went to the origin lands, nothing unflushed of the cache device does.
        world.kill(|held| if held.device == Device::Cache { Keep::Nothing } else { Keep::All });
        world.cut_power(|device, _| device != Device::Cache);
        world.restart().expect("nothing is damaged");
        let answered = was_answered.then_some(Content::Tag(2));
        world.assert_agrees_with_origin((0, 0), answered, &format!("step {step}"));
    }
}

/// The write was complete on the origin when a flush failed, which may have lost it; the record
/// was not, so nothing was known to be home yet.
#[test]
fn a_flush_that_failed_before_the_record_was_complete_makes_nothing_clean_later() {
    let mut world = Setup::of(&[CacheMode::Writethrough]).start();
    let write = world.write(0, 0, 1, 1);
    world.settle_except(cache::record);
    let flush = world.flush(0);
    world.settle_except(|held| cache::record(held) || origin::flush(0)(held));
    world.fail(world.the(origin::flush(0)), IoError::Media, Keep::Nothing);
    world.settle();
    assert!(world.is_done(write));
    assert!(world.result(flush).expect("answered").is_err());
    let mark = world.mark();
    world.idle();
    let again =
        world.count_since(mark, |device, what| *device != Device::Cache && *what == What::Write);
    assert_eq!(again, 1, "it is written home once more");
    assert_eq!(world.dirty(0), 0);
}
