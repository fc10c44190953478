//! FLUSH and FUA: what they cost, who shares them, and that a failed one never becomes a success.

use forebay_engine::event::{Command, CommandError};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Keep, Setup, What, World, cache, origin};

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

fn origin_flushes_since(world: &World, mark: usize) -> usize {
    world.count_since(mark, |device, what| *device != Device::Cache && *what == What::Flush)
}

#[test]
fn a_flush_in_writeback_costs_one_cache_flush_and_none_of_the_origin() {
    for mode in [CacheMode::Writeback, CacheMode::Writeonly] {
        let mut world = of(mode);
        world.write_now(0, 0, 4, 1);
        let mark = world.mark();
        world.flush_now(0);
        assert_eq!(world.cache_flushes_since(mark), 1, "{mode:?}");
        assert_eq!(origin_flushes_since(&world, mark), 0, "{mode:?}");
        assert_eq!(world.mark() - mark, 1, "and nothing else");
    }
}

#[test]
fn a_flush_in_writethrough_and_writearound_flushes_both() {
    for mode in [CacheMode::Writethrough, CacheMode::Writearound] {
        let mut world = of(mode);
        world.write_now(0, 0, 4, 1);
        let mark = world.mark();
        world.flush_now(0);
        assert_eq!(world.cache_flushes_since(mark), 1, "{mode:?}");
        assert_eq!(origin_flushes_since(&world, mark), 1, "{mode:?}");
    }
}

/// A disk that has to empty its cache after every few writes can sort nothing.
#[test]
fn a_drain_flushes_the_origin_once() {
    let mut world = of(CacheMode::Writeback);
    for block in 0..40 {
        world.write_now(0, 3 * block, 1, 1);
    }
    let mark = world.mark();
    world.command_now(Command::Drain { volume: VolumeSlot(0) }).expect("nothing keeps it");
    let is_write = |device: &Device, what: &What| *device != Device::Cache && *what == What::Write;
    assert_eq!(world.count_since(mark, is_write), 40);
    assert_eq!(origin_flushes_since(&world, mark), 1);
}

#[test]
fn a_flush_in_passthrough_flushes_the_origin_alone() {
    let mut world = of(CacheMode::Passthrough);
    world.write_now(0, 0, 4, 1);
    let mark = world.mark();
    world.flush_now(0);
    assert_eq!(world.cache_flushes_since(mark), 0);
    assert_eq!(origin_flushes_since(&world, mark), 1);
}

#[test]
fn flushes_that_arrive_together_share_one_device_flush() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let mark = world.mark();
    let ids: Vec<u64> = (0..16).map(|_| world.hand_in_flush(0)).collect();
    world.finish(&ids);
    assert_eq!(world.cache_flushes_since(mark), 1);
}

#[test]
fn flushes_that_arrive_during_one_share_the_next() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let mark = world.mark();
    let mut ids = vec![world.flush(0)];
    ids.extend((0..16).map(|_| world.flush(0)));
    assert_eq!(world.find(cache::flush).len(), 1, "one at a time");
    world.finish(&ids);
    assert_eq!(world.cache_flushes_since(mark), 2);
}

#[test]
fn writes_that_are_handed_in_together_share_one_device_write() {
    let mut world = of(CacheMode::Writeback);
    let mark = world.mark();
    let ids: Vec<u64> = (0..8).map(|block| world.hand_in_write(0, block * 2, 1, block)).collect();
    world.finish(&ids);
    assert_eq!(world.records_since(mark).count(), 1);
}

#[test]
fn a_device_without_volatile_cache_is_not_flushed() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.has_volatile_cache = false;
    let mut world = setup.start();
    world.write_now(0, 0, 1, 1);
    let mark = world.mark();
    world.flush_now(0);
    assert_eq!(world.cache_flushes_since(mark), 0);
}

#[test]
fn what_was_flushed_survives_a_power_cut_in_every_mode() {
    for mode in crate::modes::ALL {
        let mut world = of(mode);
        world.write_now(0, 0, 20, 1);
        world.write_now(0, 5, 1, 2);
        world.flush_now(0);
        world.write_now(0, 6, 1, 3);
        world.cut_power(|_, _| false);
        world.restart().expect("nothing is damaged");
        assert_eq!(world.look(0, 4..6), [1, 2].map(Content::Tag), "{mode:?}");
        let later = world.read_now(0, 6).expect("readable");
        assert!([Content::Tag(1), Content::Tag(3)].contains(&later), "{mode:?}: {later:?}");
    }
}

#[test]
fn fua_is_durable_when_it_is_answered_in_every_mode() {
    for mode in crate::modes::ALL {
        let mut world = of(mode);
        world.write_now(0, 0, 1, 1);
        let write = world.write_fua(0, 3, 2, 2);
        world.finish(&[write]);
        world.cut_power(|_, _| false);
        world.restart().expect("nothing is damaged");
        assert_eq!(world.look(0, 3..5), [Content::Tag(2); 2], "{mode:?}");
    }
}

#[test]
fn fua_in_writeback_flushes_the_cache_device_alone() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let mark = world.mark();
    let write = world.write_fua(0, 3, 2, 2);
    world.finish(&[write]);
    assert_eq!(world.cache_flushes_since(mark), 1);
    assert_eq!(world.origin_ios_since(mark), 0);
    assert_eq!(world.counters(0).fua_writes, 1);
}

#[test]
fn a_failed_origin_flush_is_never_retried_as_a_success() {
    for mode in [CacheMode::Writethrough, CacheMode::Writearound, CacheMode::Passthrough] {
        let mut world = of(mode);
        world.write_now(0, 0, 1, 1);
        let first = world.flush(0);
        world.settle_except(origin::flush(0));
        let io = world.the(origin::flush(0));
        world.fail(io, IoError::Media, Keep::Nothing);
        world.settle();
        assert_eq!(world.result(first), Some(Err(RequestError::Io)), "{mode:?}");
        let second = world.flush(0);
        world.settle();
        assert_eq!(world.result(second), Some(Err(RequestError::Io)), "{mode:?}");
    }
}

/// Fails the origin flush that is under way.
fn fail_origin_flush(world: &mut World) {
    let io = world.the(origin::flush(0));
    world.fail(io, IoError::Media, Keep::Nothing);
}

/// The flush that failed may have lost the first part of the write; the next one, for which the
/// write waits, does not tell.
#[test]
fn fua_that_waited_across_a_failed_flush_is_no_success() {
    for mode in [CacheMode::Writearound, CacheMode::Passthrough] {
        let mut world = of(mode);
        world.write_now(0, 100, 1, 1);
        let write = world.write_fua(0, 0, 32, 2);
        let parts = world.find(origin::write(0));
        assert_eq!(parts.len(), 2, "{mode:?}: {}", world.describe_held());
        world.complete(parts[0]);
        let flush = world.flush(0);
        let is_origin_flush = origin::flush(0);
        world.settle_except(|held| held.id == parts[1] || is_origin_flush(held));
        world.complete(parts[1]);
        fail_origin_flush(&mut world);
        assert!(world.is_pending(write), "{mode:?}");
        world.settle();
        assert_eq!(world.result(flush), Some(Err(RequestError::Io)), "{mode:?}");
        assert_eq!(world.result(write), Some(Err(RequestError::Io)), "{mode:?}");
    }
}

/// Two flushes: the first one fails, and with it what both were to cover. The second begins
/// afterwards and goes well.
#[test]
fn a_flush_that_waited_across_a_failed_one_is_no_success() {
    for mode in [CacheMode::Writearound, CacheMode::Passthrough] {
        let mut world = of(mode);
        world.write_now(0, 0, 1, 1);
        let first = world.flush(0);
        world.settle_except(origin::flush(0));
        let second = world.flush(0);
        world.settle_except(origin::flush(0));
        fail_origin_flush(&mut world);
        world.settle();
        for id in [first, second] {
            assert_eq!(world.result(id), Some(Err(RequestError::Io)), "{mode:?}");
        }
    }
}

#[test]
fn a_failed_cache_flush_fails_all_who_share_it() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let ids = [world.hand_in_flush(0), world.hand_in_flush(0)];
    world.poll();
    let io = world.the(cache::flush);
    world.fail(io, IoError::Media, Keep::Nothing);
    world.settle();
    for id in ids {
        assert_eq!(world.result(id), Some(Err(RequestError::Io)));
    }
    let later = world.flush(0);
    world.settle();
    assert_eq!(world.result(later), Some(Err(RequestError::Io)));
}

/// It is tried again with pauses, and commands that wait for it end. Zeroes too: an origin without
/// discards is not even written for them.
#[test]
fn an_origin_that_cannot_flush_is_not_written_in_a_loop() {
    let mut setup = Setup::of(&[CacheMode::Writeback; 2]);
    setup.origin_discards = false;
    let mut world = setup.start();
    world.write_now(0, 0, 4, 1);
    let discard = world.discard(1, 0, 4);
    world.finish(&[discard]);
    world.fails = Some(Box::new(|held| {
        (origin::flush(0)(held) || origin::flush(1)(held)).then_some(IoError::Gone)
    }));
    for slot in 0..2 {
        let mark = world.mark();
        let drain = Command::Drain { volume: VolumeSlot(slot) };
        assert_eq!(world.command_now(drain), Err(CommandError::OriginFailed));
        assert_eq!(world.dirty(slot), 4);
        let tries = world.origin_ios_since(mark);
        assert!((1..50).contains(&tries), "{tries} in ten seconds");
    }
    world.fails = None;
    world.clean(0);
    world.clean(1);
    assert_eq!(world.on_origin(0, 3), Content::Tag(1));
    assert_eq!(world.command_now(Command::Stop), Ok(None));
}

/// One flush for each origin that fails, and not one after the other as long as the stop waits for
/// the other one.
#[test]
fn a_stop_does_not_flush_an_origin_again_that_failed() {
    let mut world = Setup::of(&[CacheMode::Passthrough; 2]).start();
    world.write_now(0, 0, 1, 1);
    world.write_now(1, 0, 1, 1);
    world.fails = Some(Box::new(|held| origin::flush(0)(held).then_some(IoError::Gone)));
    let mark = world.mark();
    let stop = world.command(Command::Stop);
    world.settle_except(origin::flush(1));
    assert_eq!(origin_flushes_since(&world, mark), 2);
    world.settle();
    assert_eq!(world.command_result(stop), Some(Err(CommandError::OriginFailed)));
}
