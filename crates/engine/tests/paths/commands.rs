//! Commands end, and do not wait for background work that is not theirs.

use forebay_engine::event::{Command, CommandError, DirtyFate};
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, SetSettings};
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Held, Keep, Setup, World, cache, origin};

/// Runs of a writeback window that are under way at once.
const RUNS_IN_FLIGHT: usize = 4;
const SCATTERED: u64 = 60;

/// Volume 0 has begun to write scattered dirty blocks home; its first origin writes are held.
fn in_a_long_window(modes: &[CacheMode]) -> World {
    let mut setup = Setup::of(modes);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    let writes: Vec<u64> =
        (0..SCATTERED).map(|n| world.hand_in_write(0, n * 8, 1, n + 1)).collect();
    world.idle_except(50, origin::write(0));
    assert!(writes.iter().all(|write| world.is_done(*write)));
    // The first window may have begun with the first write; the second has all others.
    let first = world.find(origin::write(0));
    if first.len() < RUNS_IN_FLIGHT {
        first.into_iter().for_each(|id| world.complete(id));
        world.idle_except(50, origin::write(0));
    }
    assert_eq!(world.find(origin::write(0)).len(), RUNS_IN_FLIGHT);
    world
}

fn look_at_all(world: &mut World) {
    for n in 0..SCATTERED {
        assert_eq!(world.read_now(0, n * 8), Ok(Content::Tag(n + 1)));
    }
}

fn complete_those(world: &mut World, is_it: impl Fn(&Held) -> bool) {
    world.find(is_it).into_iter().for_each(|id| world.complete(id));
}

#[test]
fn a_stop_does_not_wait_for_the_rest_of_a_window() {
    let mut world = in_a_long_window(&[CacheMode::Writeback]);
    let stop = world.command(Command::Stop);
    complete_those(&mut world, origin::write(0));
    world.settle_except(origin::write(0));
    assert_eq!(world.command_result(stop), Some(Ok(None)), "{:?}", world.describe_held());
    world.restart().expect("a clean stop");
    look_at_all(&mut world);
}

#[test]
fn a_detach_does_not_wait_for_the_window_of_another_volume() {
    let mut world = in_a_long_window(&[CacheMode::Writeback, CacheMode::Writethrough]);
    let detach =
        world.command(Command::Detach { volume: VolumeSlot(1), dirty: DirtyFate::WrittenBack });
    complete_those(&mut world, origin::write(0));
    world.idle_except(50, origin::write(0));
    assert_eq!(world.command_result(detach), Some(Ok(Some(VolumeSlot(1)))));
    let held = world.find(origin::write(0));
    assert!(!held.is_empty(), "volume 0 goes on with its own");
    world.idle();
    assert_eq!(world.dirty(0), 0);
    look_at_all(&mut world);
}

#[test]
fn settings_of_a_set_whose_device_goes_are_refused() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    let before = world.stored_superblock().settings;
    let settings = SetSettings { memory_max_bytes: before.memory_max_bytes - 1, ..before };
    let set = world.command(Command::SetCacheSet { settings });
    let first = world.find(cache::superblock)[0];
    world.fail(first, IoError::Gone, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(set), Some(Err(CommandError::CacheFailed)));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.stored_superblock().settings, before);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}
