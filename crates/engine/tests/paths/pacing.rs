//! When dirty data goes home and how fast, while clients use the origin and while they do not.

use forebay_engine::event::Command;
use forebay_engine::options::{CacheMode, VolumeSettings};

use crate::harness::{BLOCK, Setup, World, origin};

const STEP: u64 = 3;

/// Two segments of scattered dirty blocks, and settings of the volume.
fn dirty(change: impl Fn(&mut VolumeSettings)) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 100;
    setup.writeback_delay_s = 30;
    let mut world = setup.start();
    let mut settings = VolumeSettings {
        sequential_cutoff_bytes: 0,
        read_ahead_bytes: 0,
        writeback_percent: 100,
        ..VolumeSettings::default()
    };
    change(&mut settings);
    world.command_now(Command::SetVolume { volume: slot(), settings }).expect("they are valid");
    for n in 0..120 {
        world.write_now(0, n * STEP, 1, n);
    }
    world
}

fn slot() -> forebay_engine::units::VolumeSlot {
    forebay_engine::units::VolumeSlot(0)
}

fn set(world: &mut World, change: impl Fn(&mut VolumeSettings)) {
    let mut settings = world.stored_superblock().volumes[0].as_ref().unwrap().settings;
    change(&mut settings);
    let id = world.command(Command::SetVolume { volume: slot(), settings });
    world.settle_except(origin::write(0));
    assert!(matches!(world.command_result(id), Some(Ok(_))));
}

/// A read that misses; each of another block.
fn miss(world: &mut World, n: u64) {
    let read = world.read(0, 1_000 + n, 1);
    world.idle_for(1);
    assert!(world.is_done(read));
}

#[test]
fn dirty_data_goes_home_while_nobody_uses_the_origin() {
    let mut world = dirty(|_| {});
    world.idle_for(29_000);
    assert_eq!(world.dirty(0), 120, "it rests for the delay");
    world.idle_for(3_000);
    assert_eq!(world.dirty(0), 0);
    // What comes later rests as long.
    world.write_now(0, 5, 1, 7);
    world.idle_for(29_000);
    assert_eq!(world.dirty(0), 1);
    world.idle_for(3_000);
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn it_waits_as_long_as_clients_use_the_origin() {
    let mut world = dirty(|settings| settings.writeback_delay_s = 0);
    for n in 0..20 {
        miss(&mut world, n);
        world.idle_for(400);
    }
    assert_eq!(world.dirty(0), 120);
    world.idle_for(1_000);
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn it_begins_nothing_more_when_a_client_comes() {
    let mut world = dirty(|settings| settings.writeback_delay_s = 0);
    world.idle_except(1_000, origin::write(0));
    let under_way = world.find(origin::write(0));
    assert_eq!(under_way.len(), 4, "as many as are known to make sense");
    let read = world.read(0, 1_000, 1);
    world.idle_except(1, origin::write(0));
    assert!(world.is_done(read));
    for write in under_way {
        world.complete(write);
    }
    world.settle_except(origin::write(0));
    assert!(world.find(origin::write(0)).is_empty());
    world.idle_for(400);
    assert_eq!(world.dirty(0), 116);
    world.idle_for(1_000);
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn beyond_the_target_clients_have_two_thirds_of_the_time_of_the_origin() {
    let mut world = dirty(|settings| settings.writeback_rate_min_bytes = 1 << 30);
    miss(&mut world, 0);
    set(&mut world, |settings| settings.writeback_percent = 0);
    world.settle_except(origin::write(0));
    for n in 1..10 {
        let writes = world.find(origin::write(0));
        assert_eq!(writes.len(), 1, "one at a time");
        world.now += 10_000_000;
        world.complete(writes[0]);
        world.settle_except(origin::write(0));
        let read = world.read(0, 1_000 + n, 1);
        world.idle_except(18, origin::write(0));
        assert!(world.is_done(read));
        assert!(world.find(origin::write(0)).is_empty(), "it took 10 ms at least");
        while world.find(origin::write(0)).is_empty() {
            world.idle_except(1, origin::write(0));
        }
    }
}

#[test]
fn what_is_dirty_beyond_the_target_goes_home_at_the_rate_of_the_controller() {
    let mut world = dirty(|_| {});
    miss(&mut world, 0);
    set(&mut world, |settings| settings.writeback_percent = 0);
    // A fortieth of 120 a second, and no transfer takes any time.
    for n in 1..41 {
        miss(&mut world, n);
        world.idle_for(249);
    }
    let home = 120 - world.dirty(0);
    assert!((20..45).contains(&home), "{home}");
}

#[test]
fn the_operator_sets_a_ceiling() {
    let ceiling = 8 * BLOCK;
    let mut world = dirty(|settings| {
        (settings.writeback_rate_min_bytes, settings.writeback_rate_max_bytes) = (0, ceiling);
        settings.writeback_delay_s = 0;
    });
    world.idle_for(5_500);
    let home = 120 - world.dirty(0);
    assert!((30..50).contains(&home), "{home}");
    world.idle_for(12_000);
    assert_eq!(world.dirty(0), 0);
}

/// The one whose origin is in use comes first in each window.
#[test]
fn a_volume_in_use_does_not_keep_another_from_going_home() {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]);
    setup.segments = 100;
    setup.writeback_delay_s = 0;
    let mut world = setup.start();
    for n in 0..20 {
        world.write(0, n * STEP, 1, n);
        world.write(1, n * STEP, 1, n);
    }
    world.settle();
    for n in 0..30 {
        miss(&mut world, n);
        world.idle_for(100);
    }
    assert_eq!((world.dirty(0), world.dirty(1)), (20, 0));
}

#[test]
fn a_drain_does_not_wait_for_clients() {
    let mut world = dirty(|_| {});
    miss(&mut world, 0);
    let drain = world.drain(0);
    world.settle();
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
}

#[test]
fn a_disk_that_sleeps_is_woken_when_dirty_data_is_old() {
    let mut world = dirty(|settings| {
        (settings.writeback_idle_only, settings.dirty_age_max_s) = (true, 60);
        settings.writeback_percent = 0;
    });
    world.idle_for(58_000);
    assert_eq!(world.dirty(0), 120);
    world.idle_for(3_000);
    assert_eq!(world.dirty(0), 0, "all of it at once");
}

#[test]
fn a_disk_that_is_awake_gets_dirty_data_at_once() {
    let mut world = dirty(|settings| {
        (settings.writeback_idle_only, settings.dirty_age_max_s) = (true, 60);
        settings.writeback_percent = 0;
    });
    world.idle_for(20_000);
    assert_eq!(world.dirty(0), 120);
    miss(&mut world, 0);
    world.idle_for(400);
    assert_eq!(world.dirty(0), 120, "clients may need it");
    world.idle_for(200);
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn the_operator_says_how_many_transfers_there_may_be_at_once() {
    let mut world = dirty(|settings| {
        (settings.writeback_ios_max, settings.writeback_delay_s) = (2, 0);
    });
    world.idle_except(1_000, origin::write(0));
    assert_eq!(world.find(origin::write(0)).len(), 2);
}

#[test]
fn where_nothing_waits_there_are_more_transfers_at_once() {
    let mut world = dirty(|settings| settings.writeback_delay_s = 0);
    world.idle_except(1_000, origin::write(0));
    let mut most = 0;
    while let Some(write) = world.find(origin::write(0)).first().copied() {
        most = most.max(world.find(origin::write(0)).len());
        world.now += 1_000_000;
        world.complete(write);
        world.settle_except(origin::write(0));
    }
    assert!(most > 4, "{most}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let mut world = dirty(|_| {});
    let settings = world.stored_superblock().volumes[0].as_ref().unwrap().settings;
    let bad = [
        VolumeSettings { writeback_rate_max_bytes: 1, ..settings },
        VolumeSettings { writeback_ios_max: 300, ..settings },
        VolumeSettings { writeback_delay_s: u32::MAX, ..settings },
    ];
    for settings in bad {
        let refused = world.command_now(Command::SetVolume { volume: slot(), settings });
        assert!(refused.is_err(), "{settings:?}");
    }
}
