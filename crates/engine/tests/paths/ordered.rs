//! Writeback in order (promise 4): one flush epoch after the other, each as it was at its end.

use forebay_engine::event::{Command, CommandError};
use forebay_engine::format::record::EntryKind;
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_engine::units::VolumeSlot;

use crate::harness::{self, BLOCK, Content, Held, Keep, Setup, World, cache, origin};

const SLOT: VolumeSlot = VolumeSlot(0);
/// What the origin holds before anybody writes.
const ORIGINAL: Content = Content::Tag(harness::ORIGINAL);

/// A volume in order whose dirty blocks go home when `writeback_percent` of the cache are dirty.
fn ordered(writeback_percent: u8) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.order = WritebackOrder::Ordered;
    setup.writeback_percent = writeback_percent;
    setup.start()
}

/// Writes that wait in the log, each in an epoch of its own.
fn in_epochs(world: &mut World, writes: &[(u64, u64)]) {
    for (block, tag) in writes {
        world.write_now(0, *block, 1, *tag);
        world.flush_now(0);
    }
}

/// Begins to write home, and stops at whatever `keeps` names.
fn begin_drain(world: &mut World, keeps: impl Fn(&Held) -> bool) -> u64 {
    let drain = world.drain(0);
    world.idle_except(1_000, keeps);
    drain
}

fn is_mark(held: &Held) -> bool {
    held.record().is_some_and(|record| {
        record.entries.iter().any(|entry| matches!(entry.kind, EntryKind::Mark { .. }))
    })
}

fn look(world: &World, blocks: &[u64]) -> Vec<Content> {
    blocks.iter().map(|block| world.on_origin(0, *block)).collect()
}

#[test]
fn an_epoch_goes_home_only_when_the_one_before_is_durable_and_marked() {
    let mut world = ordered(100);
    in_epochs(&mut world, &[(10, 1), (20, 2)]);
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL]);
    let flush = world.the(origin::flush(0));
    world.complete(flush);
    world.idle_except(1_000, is_mark);
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL], "the mark is not written");
    let mark = world.the(is_mark);
    world.complete(mark);
    world.idle_except(1_000, cache::flush);
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL], "the mark is not durable");
    world.idle();
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), Content::Tag(2)]);
    assert_eq!(world.dirty(0), 0);
}

#[test]
fn of_each_epoch_the_origin_gets_its_own_version() {
    let mut world = ordered(100);
    in_epochs(&mut world, &[(10, 1), (10, 2)]);
    world.write_now(0, 20, 1, 3);
    assert_eq!(world.read_now(0, 10), Ok(Content::Tag(2)));
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL], "the first");
    let flush = world.the(origin::flush(0));
    world.complete(flush);
    world.idle_except(1_000, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), ORIGINAL], "the second");
    world.idle();
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), Content::Tag(3)]);
}

#[test]
fn within_an_epoch_only_the_last_version_goes_home() {
    let mut world = ordered(100);
    world.write_now(0, 10, 1, 1);
    world.write_now(0, 10, 1, 2);
    world.flush_now(0);
    let mark = world.mark();
    world.clean(0);
    assert_eq!(world.on_origin(0, 10), Content::Tag(2));
    let writes = world.counters(0).writeback_blocks;
    assert_eq!(writes, 1, "{} operations", world.origin_ios_since(mark));
}

#[test]
fn a_write_with_forced_unit_access_ends_an_epoch() {
    let mut world = ordered(100);
    let write = world.write_fua(0, 10, 1, 1);
    world.finish(&[write]);
    world.write_now(0, 10, 1, 2);
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(world.on_origin(0, 10), Content::Tag(1));
}

#[test]
fn without_any_flush_everything_goes_home_all_the_same() {
    let mut world = ordered(0);
    world.write_now(0, 10, 4, 1);
    world.idle_for(2_000);
    assert_eq!((world.dirty(0), world.on_origin(0, 12)), (0, Content::Tag(1)));
}

#[test]
fn superseded_copies_outlive_a_kill_as_long_as_the_origin_needs_them() {
    let mut world = ordered(100);
    in_epochs(&mut world, &[(10, 1), (10, 2), (20, 3)]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL]);
    world.idle();
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), Content::Tag(3)]);
}

/// A mark that is durable, and the origin has part of the next epoch.
#[test]
fn what_was_marked_is_never_written_again() {
    let mut world = ordered(100);
    in_epochs(&mut world, &[(10, 1), (10, 2), (20, 3)]);
    begin_drain(&mut world, origin::flush(0));
    let flush = world.the(origin::flush(0));
    world.complete(flush);
    world.idle_except(1_000, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), ORIGINAL], "the second is under way");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    let before = world.counters(0).writeback_blocks;
    begin_drain(&mut world, |held| origin::write(0)(held) && held.overlaps(20 * 4096, 4096));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), ORIGINAL]);
    assert_eq!(world.counters(0).writeback_blocks - before, 2, "the second again, and the third");
    world.idle();
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(2), Content::Tag(3)]);
}

#[test]
fn an_epoch_that_failed_is_written_again_before_the_next_one() {
    let mut world = ordered(100);
    in_epochs(&mut world, &[(10, 1), (20, 2)]);
    let drain = begin_drain(&mut world, origin::write(0));
    let write = world.the(origin::write(0));
    world.fail(write, IoError::Media, Keep::Nothing);
    world.settle_except(origin::any(0));
    assert_eq!(world.command_result(drain), Some(Err(CommandError::OriginFailed)));
    assert_eq!(world.failed_extents(0), [(10, 11)]);
    assert_eq!(look(&world, &[10, 20]), [ORIGINAL, ORIGINAL]);
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), ORIGINAL]);
    world.idle();
    assert_eq!(look(&world, &[10, 20]), [Content::Tag(1), Content::Tag(2)]);
    assert_eq!(world.failed_extents(0), []);
}

#[test]
fn while_it_drains_in_order_writes_go_into_the_log() {
    let mut world = ordered(100);
    let blocks: Vec<(u64, u64)> = (0..80).map(|n| (2 * n, n + 1)).collect();
    in_epochs(&mut world, &blocks);
    let drain = begin_drain(&mut world, origin::any(0));
    let late = world.hand_in_write(0, 300, 1, 900);
    world.settle_except(origin::any(0));
    assert!(world.is_done(late), "it waits for no origin");
    assert_eq!(world.on_origin(0, 300), ORIGINAL);
    world.idle();
    assert_eq!(world.command_result(drain), Some(Ok(Some(SLOT))));
    assert_eq!(world.on_origin(0, 300), Content::Tag(900));
    assert_eq!(world.volume_mode(0), CacheMode::Writethrough);
}

#[test]
fn a_change_of_order_writes_everything_home_first() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 100;
    let mut world = setup.start();
    world.write_now(0, 10, 1, 1);
    let order = WritebackOrder::Ordered;
    let set = world.command_now(Command::SetOrder { volume: SLOT, order });
    assert_eq!(set, Ok(Some(SLOT)));
    assert_eq!((world.dirty(0), world.on_origin(0, 10)), (0, Content::Tag(1)));
    assert_eq!(world.stored_superblock().volume(SLOT).expect("it is there").writeback_order, order);
    in_epochs(&mut world, &[(10, 2), (10, 3)]);
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(world.on_origin(0, 10), Content::Tag(2), "in order from now on");
    world.idle();
    world.switch(0, CacheMode::Writeback);
    in_epochs(&mut world, &[(10, 4), (10, 5)]);
    let order = WritebackOrder::Coalescing;
    let set = world.command_now(Command::SetOrder { volume: SLOT, order });
    assert_eq!(set, Ok(Some(SLOT)));
    assert_eq!(world.on_origin(0, 10), Content::Tag(5));
}

/// Zeroes are one bit in the log, whatever becomes of their parts.
#[test]
fn zeroes_of_an_ended_epoch_go_home_whole_although_part_was_overwritten() {
    let mut world = ordered(100);
    let zero = world.zero(0, 8, 8);
    world.finish(&[zero]);
    world.flush_now(0);
    in_epochs(&mut world, &[(10, 1)]);
    begin_drain(&mut world, origin::flush(0));
    assert_eq!(look(&world, &[8, 10, 15]), [Content::Zeroes, Content::Zeroes, Content::Zeroes]);
    world.idle();
    assert_eq!(look(&world, &[8, 10, 15]), [Content::Zeroes, Content::Tag(1), Content::Zeroes]);
}

/// What is known of a segment with a damaged summary comes in pieces; its zeroes are one record.
#[test]
fn zeroes_in_pieces_go_home_without_the_summary_of_their_segment() {
    let mut world = ordered(100);
    let zero = world.zero(0, 8, 8);
    world.finish(&[zero]);
    in_epochs(&mut world, &[(10, 1)]);
    for part in 0..5 {
        world.hand_in_write(0, 100 + part * 15, 15, 2);
    }
    world.settle_except(cache::summary);
    let summary = world.held.iter().find(|held| cache::summary(held)).expect("one closed").offset;
    world.idle();
    world.cache.rot(summary, BLOCK);
    world.clean(0);
    let contents = [Content::Zeroes, Content::Tag(1), Content::Zeroes, Content::Tag(2)];
    assert_eq!(look(&world, &[8, 10, 15, 100]), contents);
    assert_eq!(world.counters(0).order_lost_blocks, 0, "nothing was older than the newest");
}
