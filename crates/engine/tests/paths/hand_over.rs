//! A cache device that was gone comes back: another engine takes over, and what the device did not
//! keep of what was answered is named.

use forebay_engine::error::RecoveryError;
use forebay_engine::event::{Command, CommandError, DirtyFate, Event, SavedMark};
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, HostMark};
use forebay_engine::request::RequestError;
use forebay_engine::status::BypassReason;
use forebay_engine::units::{OriginBlock, VolumeSlot};

use crate::harness::{Content, Keep, ORIGINAL, Setup, World, cache, origin};

/// Block 0 is durable on the cache device, blocks 1 and 2 were answered, block 3 was not when the
/// device went. Returns the write of block 3.
fn lost(modes: &[CacheMode]) -> (World, u64) {
    let mut world = Setup::of(modes).start();
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    world.write_now(0, 1, 2, 2);
    let write = world.write(0, 3, 1, 3);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    (world, write)
}

#[test]
fn what_waited_is_done_when_the_device_is_back() {
    let (mut world, write) = lost(&[CacheMode::Writeback]);
    let read = world.read(0, 1, 1);
    let flush = world.flush(0);
    world.come_back(Keep::All, &[]);
    world.finish(&[write, read, flush]);
    assert_eq!(world.seen(read, 0, 1), Content::Tag(2));
    assert_eq!(world.look(0, 0..4), [1, 2, 2, 3].map(Content::Tag));
    assert!(!world.events.iter().any(|event| matches!(event, Event::WritesLost { .. })));
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    let seen = world.look(0, 0..3);
    assert_eq!(seen, [1, 2, 2].map(Content::Tag), "the flush covered what was answered before it");
}

#[test]
fn what_the_device_did_not_keep_is_named_and_fails_flushes() {
    let (mut world, write) = lost(&[CacheMode::Writeback]);
    let flush = world.flush(0);
    world.come_back(Keep::Nothing, &[]);
    world.finish(&[write]);
    let extents = vec![(OriginBlock(1), 2)];
    assert!(world.has_event(&Event::WritesLost { volume: VolumeSlot(0), extents }));
    assert_eq!(world.counters(0).lost_blocks, 2);
    assert_eq!(world.result(flush), Some(Err(RequestError::Io)));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)), "what was flushed is there");
    assert_eq!(world.read_now(0, 1), Err(RequestError::Io), "not what was there before");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(3)));
    world.write_now(0, 1, 1, 4);
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(4)));
    let again = world.flush(0);
    world.settle();
    assert_eq!(world.result(again), Some(Err(RequestError::Io)), "block 2 is still lost");
}

#[test]
fn what_was_promised_by_a_flush_is_never_named() {
    let (mut world, _) = lost(&[CacheMode::Writeback]);
    world.begin_hand_over();
    world.settle();
    world.cache.cut_power(|_| false);
    world.replace_engine(&[]);
    world.finish_restart().expect("nothing is damaged");
    let lost = world.events.iter().find_map(|event| match event {
        Event::WritesLost { extents, .. } => Some(extents.clone()),
        _ => None,
    });
    let lost = lost.expect("something was lost");
    assert!(lost.iter().all(|(start, count)| start.0 > 0 && start.0 + count <= 3));
}

#[test]
fn a_volume_that_went_on_without_its_cache_is_served_with_it_again() {
    let (mut world, _) = lost(&[CacheMode::Writeback, CacheMode::Writethrough]);
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.write_now(1, 9, 1, 7);
    world.begin_hand_over();
    let held = world.read(1, 9, 1);
    world.settle();
    assert!(world.is_pending(held), "held back until it is known who serves");
    let requests = world.replace_engine(&[HostMark::None, HostMark::ServedWithoutCache]);
    world.finish_restart().expect("nothing is damaged");
    world.hand_in_again(requests);
    world.finish(&[held]);
    assert_eq!(world.seen(held, 1, 9), Content::Tag(7));
    let mark = world.mark();
    assert_eq!(world.read_now(1, 9), Ok(Content::Tag(7)));
    assert_eq!(world.origin_ios_since(mark), 0, "it is cached again");
}

#[test]
fn what_a_failed_write_left_on_the_origin_is_not_promoted_by_the_successor_either() {
    let (mut world, _) = lost(&[CacheMode::Writeback, CacheMode::Writethrough]);
    world.save_mark(1, SavedMark::ServedWithoutCache);
    let write = world.write(1, 9, 1, 7);
    let to_origin = world.the(origin::write(1));
    world.fail(to_origin, IoError::Media, Keep::All);
    world.settle();
    assert_eq!(world.result(write), Some(Err(RequestError::Io)));
    world.come_back(Keep::All, &[HostMark::None, HostMark::ServedWithoutCache]);
    assert_eq!(world.read_now(1, 9), Ok(Content::Tag(7)), "it landed, and may not stay");
    assert_eq!(world.counters(1).promoted_blocks, 0);
    assert_eq!(world.bypassed(1, BypassReason::OriginNotFlushed), 1);
}

#[test]
fn an_engine_with_operations_under_way_does_not_hand_over() {
    let (mut world, _) = lost(&[CacheMode::Writeback, CacheMode::Writethrough]);
    world.save_mark(1, SavedMark::ServedWithoutCache);
    let read = world.read(1, 5, 1);
    world.begin_hand_over();
    world.settle_except(origin::read(1));
    assert!(!world.engine().0.is_ready_to_hand_over());
    world.finish(&[read]);
    assert!(world.engine().0.is_ready_to_hand_over());
}

#[test]
fn a_device_that_somebody_else_recovered_is_refused() {
    let (mut world, _) = lost(&[CacheMode::Writeback]);
    world.begin_hand_over();
    world.settle();
    let lost_by = world.engine.take();
    world.restart().expect("nothing is damaged");
    world.engine = lost_by;
    world.replace_engine(&[]);
    let error = world.finish_restart().expect_err("it had another life");
    assert!(matches!(error, RecoveryError::Returned(_)), "{error:?}");
}

#[test]
fn when_recovery_fails_the_old_engine_goes_on() {
    let (mut world, write) = lost(&[CacheMode::Writeback, CacheMode::Writethrough]);
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.write_now(1, 9, 1, 7);
    world.begin_hand_over();
    world.settle();
    let mut lost_by = world.engine.take().expect("the process lives");
    let (requests, _) = lost_by.hand_over();
    let now = world.time();
    lost_by.handle_hand_over_failed(now);
    world.engine = Some(lost_by);
    world.hand_in_again(requests);
    assert!(world.is_pending(write), "it waits again");
    assert_eq!(world.read_now(1, 9), Ok(Content::Tag(7)));
}

#[test]
fn a_cancelled_hand_over_releases_nothing_that_waits_for_the_host() {
    let (mut world, write) = lost(&[CacheMode::Writeback, CacheMode::Writethrough]);
    world.begin_hand_over();
    let reads = [world.read(0, 0, 1), world.read(1, 9, 1)];
    let mark = world.mark();
    let now = world.time();
    let (engine, buffers) = world.engine();
    engine.cancel_hand_over(now, buffers);
    world.settle();
    assert_eq!(world.origin_ios_since(mark), 0, "its mark is not saved");
    assert!(world.is_pending(write) && world.is_pending(reads[0]), "they wait for the device");
    assert!(world.is_pending(reads[1]));
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.poll();
    world.finish(&reads[1..]);
    assert_eq!(world.seen(reads[1], 1, 9), Content::Tag(ORIGINAL));
}

/// The line is gone from the volume table, and the engine that took it out was not told so.
#[test]
fn a_volume_whose_detach_landed_as_the_device_went_is_not_there_any_more() {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]).start();
    world.write_now(1, 9, 1, 7);
    world.write_now(0, 0, 1, 1);
    let detach =
        world.command(Command::Detach { volume: VolumeSlot(1), dirty: DirtyFate::WrittenBack });
    world.idle_except(10_000, cache::superblock);
    let write = world.write(0, 1, 1, 2);
    let first = world.find(cache::superblock)[0];
    world.fail(first, IoError::Gone, Keep::All);
    world.settle();
    assert!(world.is_cache_failed());
    assert_eq!(world.command_result(detach), Some(Err(CommandError::CacheFailed)));
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.settle();
    world.come_back(Keep::All, &[]);
    let read = world.read(1, 9, 1);
    world.settle();
    assert!(world.stored_superblock().volume(VolumeSlot(1)).is_none());
    assert!(world.result(read).is_some_and(|result| result.is_err()), "{:?}", world.result(read));
    assert_eq!(world.on_origin(1, 9), Content::Tag(7), "its data went home before");
    assert!(world.is_done(write));
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
    assert!(!world.events.iter().any(|event| matches!(event, Event::WritesLost { .. })));
}

#[test]
fn a_volume_whose_attach_the_loss_ended_holds_nothing_up() {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]).start();
    world.write_now(1, 0, 1, 1);
    world.flush_now(1);
    assert!(
        world
            .command_now(Command::Detach { volume: VolumeSlot(0), dirty: DirtyFate::WrittenBack })
            .is_ok()
    );
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = world.command(Command::Attach { volume, facts });
    let write = world.write(1, 1, 1, 2);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(attach), Some(Err(CommandError::CacheFailed)));
    assert!(world.has_event(&Event::CacheFailed { clean_volumes: vec![] }));
    world.come_back(Keep::All, &[]);
    world.finish(&[write]);
    assert_eq!(world.look(1, 0..2), [1, 2].map(Content::Tag));
}

/// Three volumes whose device is gone: one waits for it, and two are served from their origins. The
/// read of volume 1 does not end.
fn hanging() -> (World, u64) {
    let (mut world, _) =
        lost(&[CacheMode::Writeback, CacheMode::Writethrough, CacheMode::Writethrough]);
    for slot in [1, 2] {
        world.save_mark(slot, SavedMark::ServedWithoutCache);
    }
    let read = world.read(1, 5, 1);
    world.settle_except(origin::any(1));
    assert!(world.is_pending(read));
    (world, read)
}

fn is_served(world: &mut World) -> bool {
    let read = world.read(2, 0, 1);
    world.settle_except(origin::any(1));
    world.is_done(read)
}

#[test]
fn while_an_origin_hangs_no_hand_over_begins() {
    let (mut world, read) = hanging();
    world.idle_except(60_000, origin::any(1));
    assert_eq!(world.result(read), Some(Err(RequestError::Io)), "answered late");
    world.begin_hand_over();
    for _ in 0..5 {
        assert!(is_served(&mut world));
        world.idle_except(7_000, origin::any(1));
    }
    assert!(!world.engine().0.is_ready_to_hand_over());
    world.idle_for(6_000);
    assert!(world.engine().0.is_ready_to_hand_over());
    world.replace_engine(&[HostMark::None, HostMark::ServedWithoutCache, HostMark::None]);
    world.finish_restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..3), [1, 2, 2].map(Content::Tag));
}

#[test]
fn a_hand_over_is_put_off_when_an_origin_hangs() {
    let (mut world, read) = hanging();
    world.begin_hand_over();
    let other = world.read(2, 0, 1);
    world.idle_except(4_900, origin::any(1));
    assert!(world.is_pending(other), "it may be over soon");
    world.idle_except(200, origin::any(1));
    assert!(world.is_done(other) && is_served(&mut world));
    assert!(world.is_pending(read));
    // A cancelled one does not begin again.
    let now = world.time();
    let (engine, buffers) = world.engine();
    engine.cancel_hand_over(now, buffers);
    world.idle_for(20_000);
    assert!(is_served(&mut world) && world.is_done(read));
}

#[test]
fn a_hand_over_that_the_state_file_holds_up_is_put_off() {
    let (mut world, _) =
        lost(&[CacheMode::Writeback, CacheMode::Writethrough, CacheMode::Writethrough]);
    world.save_mark(2, SavedMark::ServedWithoutCache);
    world.begin_hand_over();
    let read = world.read(2, 0, 1);
    world.idle_for(29_000);
    assert!(world.is_pending(read));
    world.idle_for(2_000);
    assert!(world.is_done(read) && is_served(&mut world));
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.idle_for(6_000);
    assert!(world.engine().0.is_ready_to_hand_over());
}
