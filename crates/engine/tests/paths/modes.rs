//! The five modes, and switching between them while clients go on.

use forebay_engine::event::{Command, CommandError};
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::status::BypassReason;
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Keep, ORIGINAL, Setup, World, cache, origin};

pub(crate) const ALL: [CacheMode; 5] = [
    CacheMode::Writeback,
    CacheMode::Writethrough,
    CacheMode::Writearound,
    CacheMode::Writeonly,
    CacheMode::Passthrough,
];

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

#[test]
fn each_mode_writes_the_devices_it_says() {
    for mode in ALL {
        let mut world = of(mode);
        let mark = world.mark();
        world.write_now(0, 0, 4, 1);
        let (logged, home) = (world.records_since(mark).count(), world.origin_ios_since(mark));
        let expected = match mode {
            CacheMode::Writeback | CacheMode::Writeonly => (1, 0),
            CacheMode::Writethrough => (1, 1),
            CacheMode::Writearound | CacheMode::Passthrough => (0, 1),
        };
        assert_eq!((logged, home), expected, "{mode:?}");
        assert_eq!(world.look(0, 0..5)[3..], [1, ORIGINAL].map(Content::Tag), "{mode:?}");
    }
}

#[test]
fn each_mode_promotes_or_counts_why_not() {
    for mode in ALL {
        let mut world = of(mode);
        assert_eq!(world.read_now(0, 9), Ok(Content::Tag(ORIGINAL)));
        let promotes = !matches!(mode, CacheMode::Writeonly | CacheMode::Passthrough);
        assert_eq!(world.counters(0).promoted_blocks, u64::from(promotes), "{mode:?}");
        assert_eq!(world.bypassed(0, BypassReason::Mode), u64::from(!promotes), "{mode:?}");
    }
}

#[test]
fn what_is_written_or_prefetched_past_the_cache_is_counted_in_each_mode() {
    for mode in ALL {
        let mut world = of(mode);
        world.write_now(0, 0, 4, 1);
        let is_around = matches!(mode, CacheMode::Writearound | CacheMode::Passthrough);
        let around = if is_around { 4 } else { 0 };
        assert_eq!(world.bypassed(0, BypassReason::Mode), around, "{mode:?}");
        let prefetch = world.prefetch(0, 100, 3);
        world.finish(&[prefetch]);
        let promotes = !matches!(mode, CacheMode::Writeonly | CacheMode::Passthrough);
        let left_out = if promotes { 0 } else { 3 };
        assert_eq!(world.bypassed(0, BypassReason::Mode), around + left_out, "{mode:?}");
    }
}

/// Writes, reads and zeroes in one mode; switches; checks; the same in the other; kills; checks.
fn switch_and_compare(from: CacheMode, to: CacheMode) {
    let mut world = of(from);
    world.write_now(0, 0, 20, 1);
    world.read_now(0, 30).expect("readable");
    let zero = world.zero(0, 5, 2);
    world.finish(&[zero]);
    world.switch(0, to);
    assert_eq!(world.volume_mode(0), to);
    if !to.keeps_dirty() {
        assert_eq!(world.dirty(0), 0, "{from:?} to {to:?}");
        assert_eq!(world.on_origin(0, 19), Content::Tag(1));
        assert_eq!(world.on_origin(0, 5), Content::Zeroes);
    }
    world.write_now(0, 10, 1, 2);
    world.write_now(0, 30, 1, 3);
    let part = world.write_sectors(0, 8, 8, 4);
    world.finish(&[part]);
    let check = |world: &mut World| {
        let seen = world.look(0, [0, 1, 4, 5, 6, 7, 9, 10, 11, 29, 30].into_iter());
        let (zero, tag) = (Content::Zeroes, Content::Tag);
        let expected =
            [tag(1), tag(4), tag(1), zero, zero, tag(1), tag(1), tag(2), tag(1), tag(ORIGINAL)];
        assert_eq!(seen[..10], expected, "{from:?} to {to:?}");
        assert_eq!(seen[10], tag(3), "{from:?} to {to:?}");
    };
    check(&mut world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.volume_mode(0), to, "the mode is durable");
    check(&mut world);
    world.flush_now(0);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    check(&mut world);
    world.switch(0, CacheMode::Passthrough);
    check(&mut world);
}

#[test]
fn switching_between_all_pairs_of_modes_keeps_all_data() {
    for from in ALL {
        for to in ALL {
            switch_and_compare(from, to);
        }
    }
}

#[test]
fn writes_go_on_while_a_switch_drains() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 40, 1);
    let switch = world.set_mode(0, CacheMode::Writethrough);
    world.settle_except(origin::write(0));
    assert_eq!(world.command_result(switch), None);
    let write = world.write(0, 100, 1, 2);
    let is_drain = |held: &crate::harness::Held| origin::write(0)(held) && held.offset < 100 * 4096;
    world.settle_except(is_drain);
    assert!(world.is_done(write), "clients go on");
    assert_eq!(world.on_origin(0, 100), Content::Tag(2), "and leave nothing dirty behind");
    world.idle();
    assert!(matches!(world.command_result(switch), Some(Ok(_))));
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn a_drain_answers_only_when_the_clean_state_is_durable() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 40, 1);
    let drain = world.drain(0);
    world.settle_except(cache::checkpoint);
    assert_eq!(world.command_result(drain), None);
    world.idle();
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.dirty(0), 0, "a later start knows that it is clean");
    assert_eq!(world.on_origin(0, 39), Content::Tag(1));
}

#[test]
fn a_drain_that_the_origin_refuses_ends_and_the_data_stays_dirty() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 4, 1);
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    let result = world.command_now(Command::Drain { volume: VolumeSlot(0) });
    assert_eq!(result, Err(CommandError::OriginFailed));
    assert_eq!((world.dirty(0), world.volume_mode(0)), (4, CacheMode::Writeback));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    world.fails = None;
    world.clean(0);
    assert_eq!(world.on_origin(0, 3), Content::Tag(1));
}

#[test]
fn a_drain_can_be_cancelled() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 4, 1);
    let drain = world.drain(0);
    world.settle_except(origin::write(0));
    world.engine().0.cancel_command(forebay_engine::event::CommandId(drain));
    world.poll();
    assert_eq!(world.command_result(drain), Some(Err(CommandError::Cancelled)));
    world.idle();
    assert_eq!(world.volume_mode(0), CacheMode::Writeback);
    world.write_now(0, 0, 1, 2);
    assert_eq!(world.look(0, 0..2), [2, 1].map(Content::Tag));
}

#[test]
fn one_command_of_a_volume_at_a_time() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 4, 1);
    world.drain(0);
    let second = world.drain(0);
    assert_eq!(world.command_result(second), Some(Err(CommandError::Busy)));
    world.idle();
}

#[test]
fn invalidate_forgets_clean_copies_and_refuses_dirty_ones() {
    let mut world = of(CacheMode::Writeback);
    let invalidate = Command::Invalidate { volume: VolumeSlot(0) };
    world.write_now(0, 0, 4, 1);
    assert_eq!(world.command_now(invalidate.clone()), Err(CommandError::Dirty));
    world.clean(0);
    assert_eq!(world.command_now(invalidate), Ok(Some(VolumeSlot(0))));
    assert_eq!(world.status().cached_blocks, 0);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.status().cached_blocks, 0, "it stays so");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(1)));
}
