//! A cache device that fails again and again: it serves and gives back what it holds, and gets
//! nothing new.

use forebay_engine::event::Event;
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;
use forebay_engine::status::{BlockState, BypassReason, CacheErrors, CacheHealth};

use crate::harness::{Content, Held, Keep, ORIGINAL, Setup, World, cache, origin};

/// A world of which the cache device failed to read often enough, with its dirty data still there:
/// the origin takes no writes until the test lets it.
fn degraded(mode: CacheMode) -> World {
    let mut world = Setup::of(&[mode]).start();
    world.write_now(0, 0, 4, 1);
    world.clean(0);
    world.write_now(0, 10, 4, 2);
    let mut failed = 0;
    while world.status().cache_health == CacheHealth::Good {
        world.fails = Some(Box::new(|held| {
            (cache::read(held) || origin::write(0)(held)).then_some(IoError::Media)
        }));
        assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)), "clean data is on the origin");
        failed += 1;
        assert!(failed < 1000, "it gets degraded at last");
    }
    world
}

#[test]
fn repeated_errors_are_told_once_with_their_number() {
    let mut world = degraded(CacheMode::Writeback);
    let CacheHealth::Degraded(CacheErrors { reads, writes }) = world.status().cache_health else {
        panic!("{:?}", world.status().cache_health);
    };
    let counted = world.status().counters.cache_errors;
    assert!(reads > 1 && writes == 0);
    assert!(u64::from(reads) <= counted, "{reads} reads of {counted} errors");
    world.read_now(0, 0).expect("clean");
    let told = world.events.iter().filter(|event| **event == Event::CacheDegraded);
    assert_eq!(told.count(), 1);
}

#[test]
fn nothing_more_is_promoted_and_that_is_counted() {
    let mut world = degraded(CacheMode::Writeback);
    world.fails = None;
    let before = world.counters(0).promoted_blocks;
    let rejected = world.bypassed(0, BypassReason::CacheDegraded);
    assert_eq!(world.read_now(0, 100), Ok(Content::Tag(ORIGINAL)));
    let prefetch = world.prefetch(0, 200, 4);
    world.finish(&[prefetch]);
    assert_eq!(world.counters(0).promoted_blocks, before);
    assert_eq!(world.bypassed(0, BypassReason::CacheDegraded), rejected + 1 + 4);
    let hits = world.counters(0).read_hits;
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(1)));
    assert_eq!(world.counters(0).read_hits, hits + 1, "what is there is still served");
}

#[test]
fn dirty_data_goes_home_unasked() {
    let mut world = degraded(CacheMode::Writeback);
    assert_eq!(world.dirty(0), 4);
    world.fails = None;
    world.idle();
    assert_eq!(world.dirty(0), 0);
    assert_eq!(world.on_origin(0, 13), Content::Tag(2));
}

#[test]
fn a_write_goes_around_unless_a_dirty_copy_is_in_its_way() {
    let mut world = degraded(CacheMode::Writeback);
    world.fails = Some(Box::new(|_| None));
    // No copy; a clean one; a dirty one.
    for (block, records, home) in [(50, 0, 1), (0, 1, 1), (10, 1, 0)] {
        let mark = world.mark();
        let write = world.write(0, block, 1, 9);
        world.settle_except(|held| origin::write(0)(held) && !held.overlaps(block * 4096, 4096));
        assert!(world.is_done(write), "block {block}");
        assert_eq!(world.records_since(mark).count(), records, "block {block}");
        let written = u64::from(world.on_origin(0, block) == Content::Tag(9));
        assert_eq!(written, home, "block {block}");
    }
    assert_eq!(world.state(0, 0), BlockState::NotCached);
    let flush = world.flush(0);
    world.settle_except(origin::flush(0));
    assert!(world.is_pending(flush), "what went around needs the origin's flush");
    world.finish(&[flush]);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, [0, 1, 10, 11, 50].into_iter()), [9, 1, 9, 2, 9].map(Content::Tag));
    assert_eq!(world.status().cache_health, CacheHealth::Good, "a restart tries again");
}

#[test]
fn in_writethrough_the_origin_has_every_write_that_was_answered() {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writethrough]).start();
    world.write_now(0, 0, 1, 1);
    world.clean(0);
    // Home, but the origin was not flushed since: still dirty.
    world.write_now(1, 5, 1, 2);
    world.fails = Some(Box::new(|held| cache::read(held).then_some(IoError::Media)));
    while world.status().cache_health == CacheHealth::Good {
        let read = world.read(0, 0, 1);
        world.settle_except(origin::flush(1));
        assert!(world.is_done(read));
    }
    world.fails = None;
    assert_eq!(world.dirty(1), 1);
    for (block, records) in [(5, 1), (6, 0)] {
        let mark = world.mark();
        let write = world.write(1, block, 1, 3);
        world.settle_except(origin::flush(1));
        assert!(world.is_done(write));
        assert_eq!(world.records_since(mark).count(), records, "block {block}");
        assert_eq!(world.on_origin(1, block), Content::Tag(3));
        assert_eq!(world.read_now(1, block), Ok(Content::Tag(3)));
    }
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(1, 5..7), [Content::Tag(3); 2]);
}

#[test]
fn failed_writes_count_as_well_and_their_records_arrive() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let mut tag = 0;
    while world.status().cache_health == CacheHealth::Good {
        tag += 1;
        let write = world.write(0, 7, 1, tag);
        let record = world.the(cache::record);
        world.fail(record, IoError::Media, Keep::Nothing);
        world.finish(&[write]);
        assert!(tag < 1000);
    }
    let CacheHealth::Degraded(errors) = world.status().cache_health else { panic!("not failed") };
    assert_eq!((errors.reads, u64::from(errors.writes)), (0, tag));
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(tag)));
}

/// It set out to go around the log of a writeback volume, and is to have a copy on the origin all
/// the same, since the volume leaves that mode.
#[test]
fn a_write_that_waited_while_the_mode_changes_goes_to_log_and_origin_over_a_dirty_copy() {
    let mut world = degraded(CacheMode::Writeback);
    world.fails = None;
    world.idle_except(2_000, origin::write(0));
    let home = world.the(origin::write(0));
    let write = world.write(0, 10, 1, 9);
    world.settle_except(origin::write(0));
    assert!(world.is_pending(write), "writeback has the lock");
    let switch = world.set_mode(0, CacheMode::Writethrough);
    let mark = world.mark();
    world.complete(home);
    world.settle_except(|held| origin::flush(0)(held) || cache::record(held));
    world.the(cache::record_of(10));
    assert_eq!(world.find(origin::write(0)), [], "rule 5: the record is durable first");
    world.settle_except(origin::flush(0));
    assert!(world.is_done(write));
    assert_eq!(world.records_since(mark).count(), 1);
    assert_eq!(world.on_origin(0, 10), Content::Tag(9));
    world.idle();
    assert!(world.command_result(switch).expect("it ends").is_ok());
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 10..12), [9, 2].map(Content::Tag));
}

/// The log is full of dirty data that the origin refuses: a write over some of it, which may not go
/// around the log, waits for room without holding its lock.
#[test]
fn a_write_over_a_dirty_copy_waits_for_room_in_a_full_log() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let refuses = |held: &Held| origin::write(0)(held).then_some(IoError::Media);
    world.fails = Some(Box::new(refuses));
    let ids: Vec<u64> = (0..128).map(|chunk| world.write(0, chunk * 16, 16, chunk)).collect();
    world.idle_for(5_000);
    assert!(world.is_done(ids[0]) && ids.iter().any(|id| world.is_pending(*id)));
    world.fails = Some(Box::new(move |held| {
        refuses(held).or_else(|| cache::read(held).then_some(IoError::Media))
    }));
    while world.status().cache_health == CacheHealth::Good {
        world.read_now(0, 0).expect_err("dirty data is nowhere else");
    }
    world.fails = Some(Box::new(refuses));
    let write = world.write(0, 0, 16, 900);
    world.idle_for(1_000);
    assert!(world.is_pending(write));
    assert_eq!(world.on_origin(0, 0), Content::Tag(ORIGINAL), "older dirty data would follow");
    world.fails = None;
    world.idle();
    assert!(ids.iter().all(|id| world.is_done(*id)) && world.is_done(write));
    assert_eq!(world.look(0, 15..17), [900, 1].map(Content::Tag));
    world.flush_now(0);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 15..17), [900, 1].map(Content::Tag));
}

/// A write gets its lock when the cache device has failed already: what it would have to void, it
/// cannot, and nobody is going to wake it.
#[test]
fn a_write_around_that_gets_its_lock_after_the_failure_ends() {
    let mut world = degraded(CacheMode::Writeback);
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    let first = world.hand_in_write(0, 0, 1, 8);
    let read = world.read(0, 10, 1);
    let keeps = |held: &Held| cache::record(held) || cache::read(held);
    world.settle_except(keeps);
    let second = world.hand_in_write(0, 0, 1, 9);
    world.settle_except(keeps);
    let at_device = world.the(cache::read);
    world.fail(at_device, IoError::Gone, Keep::Nothing);
    world.settle_except(cache::record);
    assert!(world.is_pending(first) && world.is_pending(second), "one has the lock");
    world.idle_for(forebay_engine::CACHE_TIMEOUT_MS + 1);
    let failed = Some(Err(RequestError::Io));
    assert_eq!([first, second, read].map(|id| world.result(id)), [failed; 3]);
}
