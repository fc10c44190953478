//! Rule 10: identity of volumes, generations, and the host state file.

use forebay_engine::CACHE_TIMEOUT_MS;
use forebay_engine::event::{Command, DirtyFate, Event, SavedMark};
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, HostMark};
use forebay_engine::status::VolumeState;
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Keep, ORIGINAL, Setup, World, cache, origin};

const SLOT: VolumeSlot = VolumeSlot(0);

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

fn generation(world: &World) -> u64 {
    world.stored_superblock().volume(SLOT).expect("in the table").generation.0
}

#[test]
fn no_dirty_write_before_the_host_state_file_says_so() {
    let mut world = of(CacheMode::Writeback);
    world.saves_marks = false;
    let write = world.write(0, 0, 1, 1);
    world.settle();
    assert!(world.has_event(&Event::DirtyBegins { volume: SLOT }));
    assert!(world.is_pending(write));
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.dirty(0), 0, "nothing dirty was written without the mark");
    let write = world.write(0, 0, 1, 1);
    world.save_mark(0, SavedMark::DirtyPossible);
    world.finish(&[write]);
}

#[test]
fn the_mark_goes_when_the_clean_state_is_durable() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let drain = world.drain(0);
    world.settle_except(cache::checkpoint);
    assert!(!world.has_event(&Event::DirtyEnded { volume: SLOT }));
    world.idle();
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
    assert!(world.has_event(&Event::DirtyEnded { volume: SLOT }));
}

#[test]
fn passthrough_raises_the_generation_before_anything_goes_around() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.clean(0);
    let before = generation(&world);
    let switch = world.set_mode(0, CacheMode::Passthrough);
    world.settle_except(cache::superblock);
    let write = world.write(0, 0, 1, 2);
    assert_eq!(world.find(origin::write(0)), [], "an older copy would come back after a crash");
    world.settle_except(cache::flush);
    assert_eq!(world.find(origin::write(0)), []);
    world.finish(&[write]);
    assert!(matches!(world.command_result(switch), Some(Ok(_))));
    assert_eq!(generation(&world), before + 1);
    assert_eq!(world.on_origin(0, 0), Content::Tag(2));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    world.switch(0, CacheMode::Writeback);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

#[test]
fn a_cut_at_any_step_into_passthrough_shows_what_the_origin_has() {
    for step in 0..40 {
        let mut world = of(CacheMode::Writeback);
        world.write_now(0, 0, 1, 1);
        world.clean(0);
        world.set_mode(0, CacheMode::Passthrough);
        let write = world.write(0, 0, 1, 2);
        world.complete_oldest(step);
        let was_answered = world.is_done(write);
        world.cut_power(|device, _| device != forebay_engine::io::Device::Cache);
        world.restart().expect("nothing is damaged");
        let answered = was_answered.then_some(Content::Tag(2));
        world.assert_agrees_with_origin((0, 0), answered, &format!("step {step}"));
    }
}

#[test]
fn a_mode_switch_waits_for_the_operations_of_the_old_mode() {
    let mut world = of(CacheMode::Writearound);
    let write = world.write(0, 0, 1, 1);
    let to_origin = world.the(origin::write(0));
    let switch = world.set_mode(0, CacheMode::Writeback);
    let later = world.write(0, 0, 1, 2);
    world.settle_except(|held| held.id == to_origin);
    assert_eq!(world.command_result(switch), None);
    assert!(world.is_pending(later), "it belongs to the new mode");
    world.complete(to_origin);
    world.finish(&[write, later]);
    assert!(matches!(world.command_result(switch), Some(Ok(_))));
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

#[test]
fn detach_voids_and_ids_are_never_used_again() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let old = world.stored_superblock().volume(SLOT).expect("in the table").clone();
    let result = world.command_now(Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack });
    assert_eq!(result, Ok(Some(SLOT)));
    assert_eq!(world.on_origin(0, 0), Content::Tag(1), "the origin goes as it should be");
    assert!(world.stored_superblock().volume(SLOT).is_none());
    // Another origin under the same name and slot.
    world.origins[0] = world.setup.fresh_origin(0);
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = world.command(Command::Attach { volume, facts });
    let read = world.read(0, 0, 1);
    world.settle_except(cache::superblock);
    assert!(world.is_pending(read), "its id is not durable");
    world.settle();
    assert_eq!(world.command_result(attach), Some(Ok(Some(SLOT))));
    assert_eq!(world.seen(read, 0, 0), Content::Tag(ORIGINAL));
    let new = world.stored_superblock().volume(SLOT).expect("in the table").clone();
    assert!(new.id > old.id);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_slot_is_not_free_before_its_detach_has_ended() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let detach = world.command(Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack });
    world.settle_except(cache::superblock);
    let origin = world.setup.fresh_origin(1);
    world.origins.push(origin);
    let (mut volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = Command::Attach { volume: volume.clone(), facts };
    volume.name = "early".into();
    let early = world.command(Command::Attach { volume, facts });
    world.settle();
    assert_eq!(world.command_result(early), Some(Ok(Some(VolumeSlot(1)))));
    assert_eq!(world.command_result(detach), Some(Ok(Some(SLOT))));
    assert_eq!(world.command_now(attach), Ok(Some(SLOT)));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    assert_eq!(world.read_now(1, 0), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_volume_that_was_served_without_its_cache_loses_all_copies() {
    let mut world = of(CacheMode::Writethrough);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    let before = generation(&world);
    world.kill(|_| Keep::Nothing);
    // Somebody wrote the origin meanwhile.
    let bytes = crate::harness::block_bytes(2, 0, 0, 1);
    world.origins[0].damage(0, &bytes);
    world.begin_restart(&[HostMark::ServedWithoutCache]);
    world.finish_restart().expect("nothing is damaged");
    assert_eq!(generation(&world), before + 1);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
    // The mark is gone by then: the cache device knows.
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

#[test]
fn without_its_cache_nothing_is_written_before_the_host_state_file_says_so() {
    let mut world = of(CacheMode::Writethrough);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    let write = world.write(0, 0, 1, 2);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    assert!(world.has_event(&Event::CacheFailed { clean_volumes: vec![SLOT] }));
    assert!(world.is_pending(write));
    assert_eq!(world.find(origin::write(0)), []);
    let read = world.read(0, 0, 1);
    world.settle();
    assert!(world.is_pending(read));
    world.save_mark(0, SavedMark::ServedWithoutCache);
    world.finish(&[write, read]);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
    assert_eq!(world.on_origin(0, 0), Content::Tag(2));
    // The cache device comes back with the older copy; the mark voids it.
    world.kill(|_| Keep::Nothing);
    world.begin_restart(&[HostMark::ServedWithoutCache]);
    world.finish_restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

#[test]
fn a_volume_with_dirty_data_is_not_served_without_its_cache() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let write = world.write(0, 1, 1, 2);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    assert!(world.has_event(&Event::CacheFailed { clean_volumes: vec![] }));
    world.save_mark(0, SavedMark::ServedWithoutCache);
    let read = world.read(0, 0, 1);
    world.idle();
    assert!(world.is_pending(write) && world.is_pending(read), "the device may come back");
    world.idle();
    for id in [write, read] {
        assert!(world.result(id).expect("answered").is_err(), "the origin has older data");
    }
    let now = world.time();
    let state = world.engine().0.volume_status(now, SLOT).expect("known").state;
    assert_eq!(state, VolumeState::Quiesced);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_volume_that_could_not_be_flushed_at_start_is_not_served_without_its_cache_either() {
    let mut world = Setup::of(&[CacheMode::Writearound, CacheMode::Writearound]).start();
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::Nothing);
    world.fails = Some(Box::new(|held| origin::flush(0)(held).then_some(IoError::Media)));
    world.restart().expect("nothing is damaged");
    world.fails = Some(Box::new(|held| cache::any(held).then_some(IoError::Gone)));
    let promoted = world.read(1, 0, 1);
    world.settle();
    assert!(world.has_event(&Event::CacheFailed { clean_volumes: vec![VolumeSlot(1)] }));
    world.save_mark(0, SavedMark::ServedWithoutCache);
    let read = world.read(0, 0, 1);
    world.idle_for(CACHE_TIMEOUT_MS + 1);
    assert!(world.result(read).expect("answered").is_err(), "its origin may still lose it");
    assert_eq!(world.result(promoted), Some(Ok(())));
}
