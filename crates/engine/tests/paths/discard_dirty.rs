//! A detach that throws dirty data away: needs nothing of the origin, is durable, takes nothing of
//! other volumes along.

use forebay_engine::event::{Command, CommandError, DirtyFate, Event};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_engine::request::RequestError;
use forebay_engine::status::VolumeState;
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Held, Keep, ORIGINAL, Setup, World, cache, origin};

const SLOT: VolumeSlot = VolumeSlot(0);
const GIVE_UP: Command = Command::Detach { volume: SLOT, dirty: DirtyFate::Discarded };

/// Two volumes with three dirty blocks each.
fn dirty(order: WritebackOrder) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]);
    setup.order = order;
    let mut world = setup.start();
    for block in 0..3 {
        world.write_now(0, block, 1, block + 1);
        world.write_now(1, block, 1, block + 11);
    }
    world
}

fn discarded(block_count: u64) -> Event {
    Event::DirtyDiscarded { volume: SLOT, block_count }
}

/// Volume 0 is gone, volume 1 has all of its data, and the books agree.
fn look_at_the_rest(world: &mut World) {
    for block in 0..3 {
        assert_eq!(world.read_now(1, block), Ok(Content::Tag(block + 11)));
        assert_eq!(world.on_origin(0, block), Content::Tag(ORIGINAL));
    }
    assert!(world.stored_superblock().volume(SLOT).is_none());
    assert_eq!(world.engine().0.audit(), Ok(()));
}

/// A window that was under way may have brought part of volume 0 home.
fn look_at_the_rest_of_a_window(world: &mut World) {
    for block in 0..3 {
        assert_eq!(world.read_now(1, block), Ok(Content::Tag(block + 11)));
    }
    assert_eq!(world.engine().0.audit(), Ok(()));
}

/// Blocks with a dirty bit in the newest checkpoint.
fn dirty_in_checkpoint(world: &World) -> u32 {
    let checkpoint = world.durable_checkpoint().expect("there is one");
    let bits = checkpoint.segments.iter().filter_map(|line| line.bits.as_ref());
    let count = |dirty: &Vec<u64>| dirty.iter().map(|word| word.count_ones()).sum::<u32>();
    bits.map(|bits| count(&bits.dirty)).sum()
}

#[test]
fn nothing_goes_home_and_all_is_given_back() {
    let mut world = dirty(WritebackOrder::Coalescing);
    let mark = world.mark();
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    assert!(world.has_event(&discarded(3)));
    assert!(world.has_event(&Event::DirtyEnded { volume: SLOT }));
    assert_eq!(world.origin_ios_since(mark), 0);
    assert_eq!(dirty_in_checkpoint(&world), 3, "those of the other volume");
    look_at_the_rest(&mut world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    look_at_the_rest(&mut world);
}

#[test]
fn the_same_origin_comes_back_as_it_is() {
    let mut world = dirty(WritebackOrder::Coalescing);
    let old = world.stored_superblock().volume(SLOT).expect("in the table").id;
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    assert_eq!(world.command_now(Command::Attach { volume, facts }), Ok(Some(SLOT)));
    assert!(world.stored_superblock().volume(SLOT).expect("in the table").id > old);
    for _ in 0..2 {
        assert_eq!(world.read_now(0, 1), Ok(Content::Tag(ORIGINAL)));
        assert_eq!(world.dirty(0), 0);
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
    }
}

#[test]
fn a_cut_at_any_step_leaves_all_of_it_or_nothing() {
    let mut ends = [false; 2];
    for step in 0..40 {
        let mut world = dirty(WritebackOrder::Coalescing);
        let command = world.command(GIVE_UP);
        world.complete_oldest(step);
        let is_answered = world.command_result(command).is_some();
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
        let is_there = world.stored_superblock().volume(SLOT).is_some();
        assert!(!(is_answered && is_there), "step {step}");
        ends[usize::from(is_there)] = true;
        if is_there {
            assert_eq!(world.dirty(0), 3, "step {step}");
            for block in 0..3 {
                assert_eq!(world.read_now(0, block), Ok(Content::Tag(block + 1)), "step {step}");
            }
        } else {
            look_at_the_rest(&mut world);
        }
    }
    assert_eq!(ends, [true; 2]);
}

#[test]
fn it_ends_a_drain_that_waits_for_the_origin() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.fails = Some(Box::new(|held: &Held| {
        (held.device == Device::Origin(SLOT)).then_some(IoError::Media)
    }));
    let command = Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack };
    let detach = world.command(command);
    let mark = world.mark();
    let discard = world.command(GIVE_UP);
    world.idle_for(100);
    assert_eq!(world.command_result(detach), Some(Err(CommandError::Cancelled)));
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    assert_eq!(world.count_since(mark, |device, _| *device == Device::Origin(SLOT)), 0);
    look_at_the_rest(&mut world);
}

#[test]
fn an_origin_that_never_answers_is_not_waited_for() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.drain(0);
    world.idle_except(50, origin::any(0));
    assert!(!world.find(origin::write(0)).is_empty());
    let discard = world.command(GIVE_UP);
    world.idle_except(1000, origin::any(0));
    assert_eq!(world.command_result(discard), None, "it may end soon");
    let state = world.engine().0.volume_status(forebay_engine::units::Time(0), SLOT);
    assert_eq!(state.expect("known").state, VolumeState::Discarding);
    world.idle_except(1500, origin::any(0));
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    assert!(world.has_event(&discarded(3)));
    assert!(world.stored_superblock().volume(SLOT).is_none());
    assert!(!world.has_event(&Event::OriginReleased { volume: SLOT }));
    // It does, much later.
    world.idle_for(10_000);
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
    look_at_the_rest_of_a_window(&mut world);
}

#[test]
fn a_kill_while_the_origin_hangs_brings_nothing_back() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.drain(0);
    world.idle_except(50, origin::any(0));
    let discard = world.command(GIVE_UP);
    world.idle_except(2500, origin::any(0));
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    look_at_the_rest(&mut world);
}

#[test]
fn it_takes_a_volume_whose_origin_is_missing() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.kill(|_| Keep::Nothing);
    world.setup.missing = vec![0];
    world.restart().expect("nothing is damaged");
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    assert!(world.has_event(&discarded(3)));
    look_at_the_rest(&mut world);
}

#[test]
fn what_order_kept_is_given_back_and_only_that() {
    let mut world = dirty(WritebackOrder::Ordered);
    for (slot, tag) in [(0, 21), (1, 11)] {
        world.flush_now(slot);
        world.write_now(slot, 0, 1, tag);
    }
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    assert!(world.has_event(&discarded(3)), "of each block once");
    assert_eq!(dirty_in_checkpoint(&world), 4);
    look_at_the_rest(&mut world);
    world.clean(1);
    assert_eq!(world.on_origin(1, 2), Content::Tag(13));
}

#[test]
fn an_ordered_origin_stays_at_a_flush_point() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.order = WritebackOrder::Ordered;
    let mut world = setup.start();
    for (block, tag) in [(0, 1), (1, 2), (2, 3)] {
        world.write_now(0, block, 1, tag);
        world.flush_now(0);
    }
    world.drain(0);
    world.idle_except(1000, origin::flush(0));
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
    world.command(GIVE_UP);
    world.idle();
    let on_origin: Vec<Content> = (0..3).map(|block| world.on_origin(0, block)).collect();
    assert_eq!(on_origin, [1, ORIGINAL, ORIGINAL].map(Content::Tag));
}

#[test]
fn a_clean_volume_may_be_given_up_as_well() {
    let mut world = Setup::of(&[CacheMode::Writethrough]).start();
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    assert!(world.has_event(&discarded(0)));
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
    assert_eq!(world.command_now(GIVE_UP), Err(CommandError::NoSuchVolume));
}

#[test]
fn a_cache_device_that_goes_meanwhile_fails_it() {
    let mut world = dirty(WritebackOrder::Coalescing);
    let discard = world.command(GIVE_UP);
    let first = world.find(cache::superblock)[0];
    world.fail(first, IoError::Gone, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(discard), Some(Err(CommandError::CacheFailed)));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!((world.dirty(0), world.read_now(0, 2)), (3, Ok(Content::Tag(3))));
}

/// The cache device goes with the next record.
fn lose_the_cache(world: &mut World) {
    world.write(1, 9, 1, 9);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle_except(origin::any(0));
    assert!(world.is_cache_failed());
}

/// The table without the volume is durable, so it is gone whatever becomes of the device: a host
/// that is told otherwise offers it again.
#[test]
fn a_cache_device_that_goes_after_the_table_was_durable_fails_nothing() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.drain(0);
    world.idle_except(50, origin::any(0));
    let discard = world.command(GIVE_UP);
    world.idle_except(100, origin::any(0));
    assert!(world.has_event(&discarded(3)));
    assert_eq!(world.command_result(discard), None);
    lose_the_cache(&mut world);
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    assert!(world.has_event(&Event::DirtyEnded { volume: SLOT }));
    let read = world.read(0, 0, 1);
    assert!(!world.has_event(&Event::OriginReleased { volume: SLOT }), "it hangs");
    world.idle_for(5_000);
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
    assert_eq!(world.result(read), Some(Err(RequestError::Shutdown)), "nobody serves it");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    look_at_the_rest_of_a_window(&mut world);
}

#[test]
fn a_cache_device_that_goes_after_the_answer_keeps_no_origin() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.drain(0);
    world.idle_except(50, origin::any(0));
    let discard = world.command(GIVE_UP);
    world.idle_except(2_500, origin::any(0));
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    lose_the_cache(&mut world);
    world.idle_for(5_000);
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
}

/// What else was under way at the device ends later, one after the other.
#[test]
fn the_end_of_another_record_does_not_end_it_again() {
    let mut world = dirty(WritebackOrder::Coalescing);
    let discard = world.command(GIVE_UP);
    for block in 9..11 {
        world.write(1, block, 1, block);
    }
    let records = world.find(cache::record);
    assert_eq!(records.len(), 2, "each has a record of its own");
    let is_held = |held: &Held| cache::record(held) || cache::checkpoint(held);
    world.idle_except(100, is_held);
    assert!(world.has_event(&discarded(3)));
    for record in records {
        world.fail(record, IoError::Gone, Keep::Nothing);
        world.settle_except(is_held);
    }
    assert_eq!(world.command_result(discard), Some(Ok(Some(SLOT))));
    let ended = world.events.iter().filter(|e| **e == Event::DirtyEnded { volume: SLOT });
    assert_eq!(ended.count(), 1);
    world.settle();
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
}

#[test]
fn a_detach_whose_table_is_durable_ends_well_without_the_cache_device() {
    let mut world = dirty(WritebackOrder::Coalescing);
    let detach = world.command(Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack });
    world.idle_except(5_000, cache::checkpoint);
    assert!(world.stored_superblock().volume(SLOT).is_none());
    assert_eq!(world.command_result(detach), None, "a checkpoint is to say so");
    let checkpoint = world.find(cache::checkpoint)[0];
    world.fail(checkpoint, IoError::Gone, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(detach), Some(Ok(Some(SLOT))));
    let goes_on = |event: &Event| match event {
        Event::CacheFailed { clean_volumes } => clean_volumes.contains(&SLOT),
        _ => false,
    };
    assert!(!world.events.iter().any(goes_on));
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
}

#[test]
fn a_slot_whose_origin_never_answers_keeps_no_other_volume_out() {
    let mut world = dirty(WritebackOrder::Coalescing);
    world.drain(0);
    world.idle_except(50, origin::any(0));
    assert_eq!(give_up_while_hanging(&mut world), Ok(Some(SLOT)));
    let origin = world.setup.fresh_origin(2);
    world.origins.push(origin);
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = world.command(Command::Attach { volume, facts });
    world.idle_except(100, origin::any(0));
    let other = VolumeSlot(2);
    assert_eq!(world.command_result(attach), Some(Ok(Some(other))), "slot 0 is not free");
    let (write, read) = (world.write(2, 0, 1, 5), world.read(2, 1, 1));
    world.idle_except(100, origin::any(0));
    assert!(world.is_done(write) && world.is_done(read));
    world.idle_for(10_000);
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
    assert_eq!(world.read_now(2, 0), Ok(Content::Tag(5)));
    look_at_the_rest_of_a_window(&mut world);
}

fn give_up_while_hanging(world: &mut World) -> Result<Option<VolumeSlot>, CommandError> {
    let discard = world.command(GIVE_UP);
    world.idle_except(2_500, origin::any(0));
    world.command_result(discard).expect("it does not wait for the origin")
}

#[test]
fn it_ends_an_attach_that_waits_for_the_origin() {
    let mut world = dirty(WritebackOrder::Coalescing);
    assert_eq!(world.command_now(GIVE_UP), Ok(Some(SLOT)));
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = world.command(Command::Attach { volume, facts });
    world.idle_except(10_000, origin::any(0));
    assert_eq!(world.command_result(attach), None);
    assert_eq!(give_up_while_hanging(&mut world), Ok(Some(SLOT)));
    assert_eq!(world.command_result(attach), Some(Err(CommandError::Cancelled)));
    world.idle_for(10_000);
    assert!(world.has_event(&Event::OriginReleased { volume: SLOT }));
    look_at_the_rest(&mut world);
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    assert_eq!(world.command_now(Command::Attach { volume, facts }), Ok(Some(SLOT)));
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(ORIGINAL)));
}

/// Two volumes; a write to volume 0 waits until it is tried again, for some seconds.
fn retrying() -> (World, u64) {
    let mut world = Setup::of(&[CacheMode::Writearound, CacheMode::Writeback]).start();
    world.fails = Some(Box::new(|held: &Held| {
        (held.device == Device::Origin(SLOT)).then_some(IoError::Transient)
    }));
    let write = world.write(0, 5, 1, 1);
    world.idle_for(5_000);
    assert!(world.is_pending(write));
    (world, write)
}

#[test]
fn what_waits_to_be_tried_again_ends_at_once() {
    for command in [GIVE_UP, Command::Stop] {
        let (mut world, write) = retrying();
        let given = world.command(command);
        world.idle_for(10);
        assert_eq!(world.result(write).map(|result| result.is_err()), Some(true));
        assert!(world.command_result(given).is_some());
    }
}
