//! Another engine goes on with devices that are in order: the one is silent before the other reads,
//! and the other writes nothing before the one is given up.

use forebay_engine::TakeoverRefusal;
use forebay_engine::event::{Command, CommandError, Event};
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;

use crate::harness::{Content, Keep, Setup, World, cache, origin};

fn begin(world: &mut World) {
    let now = world.time();
    world.engine().0.begin_takeover(now).expect("nothing is in the way");
}

fn is_silent(world: &mut World) -> bool {
    world.engine().0.is_ready_for_takeover()
}

fn cancel(world: &mut World) {
    give_up(world);
    world.settle();
}

/// The same, and nothing happens at the devices.
fn give_up(world: &mut World) {
    let now = world.time();
    let (engine, buffers) = world.engine();
    engine.cancel_takeover(now, buffers);
}

#[test]
fn what_is_under_way_ends_and_what_comes_later_waits() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let write = world.write(0, 0, 1, 1);
    world.poll();
    begin(&mut world);
    let held = world.write(0, 1, 1, 2);
    world.settle_except(cache::record);
    assert!(!is_silent(&mut world), "a record is under way");
    world.settle();
    assert!(world.is_done(write) && world.is_pending(held));
    assert!(is_silent(&mut world));
    let mark = world.mark();
    world.idle_for(100_000);
    assert_eq!(world.count_since(mark, |_, _| true), 0, "whatever time it is");
    cancel(&mut world);
    assert!(world.is_done(held));
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
}

#[test]
fn the_successor_reads_and_writes_nothing_before_its_turn() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    let held = world.write(0, 1, 1, 2);
    world.settle();
    let mark = world.mark();
    let mut predecessor = world.begin_beside();
    world.settle();
    assert!(world.has_event(&Event::ReadyToTakeOver));
    world.idle_for(60_000);
    let is_write = |what: &crate::harness::What| *what != crate::harness::What::Read;
    assert_eq!(world.count_since(mark, |_, what| is_write(what)), 0);
    assert!(!world.has_event(&Event::Serving));
    let requests = predecessor.take_held_back();
    drop(predecessor);
    let now = world.time();
    world.engine().0.take_over(now);
    world.finish_restart().expect("the devices are in order");
    world.hand_in_again(requests);
    world.finish(&[held]);
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
}

#[test]
fn a_predecessor_whose_successor_dies_goes_on_and_its_writes_are_found_later() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    let held = world.write(0, 1, 1, 2);
    world.settle();
    let predecessor = world.begin_beside();
    world.settle();
    world.engine = Some(predecessor);
    cancel(&mut world);
    assert!(world.is_done(held));
    world.write_now(0, 2, 1, 3);
    world.flush_now(0);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..3), [1, 2, 3].map(Content::Tag));
}

#[test]
fn what_was_answered_and_not_flushed_is_durable_before_the_predecessor_is_silent() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    world.settle();
    assert!(is_silent(&mut world));
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..1), [Content::Tag(1)]);
}

#[test]
fn the_checkpoint_of_a_takeover_that_was_given_up_is_not_that_of_the_next() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    world.settle_except(cache::checkpoint);
    give_up(&mut world);
    let later = world.write(0, 1, 1, 2);
    world.settle_except(cache::checkpoint);
    assert!(world.is_done(later));
    begin(&mut world);
    world.poll();
    let body = world.the(cache::checkpoint);
    world.complete(body);
    world.settle_except(cache::checkpoint);
    assert!(!is_silent(&mut world), "the durable checkpoint knows nothing of the later write");
    world.settle();
    assert!(is_silent(&mut world));
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
}

#[test]
fn for_a_takeover_that_was_given_up_no_checkpoint_is_written() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    world.settle_except(cache::checkpoint);
    let first = world.the(cache::checkpoint);
    give_up(&mut world);
    begin(&mut world);
    world.poll();
    give_up(&mut world);
    world.complete(first);
    world.settle_except(cache::checkpoint);
    assert!(world.find(cache::checkpoint).is_empty(), "{}", world.describe_held());
}

#[test]
fn there_is_one_takeover_at_a_time() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    begin(&mut world);
    world.settle();
    assert!(is_silent(&mut world));
    let now = world.time();
    assert_eq!(world.engine().0.begin_takeover(now), Err(TakeoverRefusal::UnderWay));
    assert!(is_silent(&mut world), "the first one goes on");
}

#[test]
fn what_went_around_the_log_is_flushed_first() {
    let mut world = Setup::of(&[CacheMode::Writearound]).start();
    world.write_now(0, 0, 1, 1);
    begin(&mut world);
    world.settle_except(origin::flush(0));
    assert!(!is_silent(&mut world), "the origin has not flushed it");
    let flush = world.the(origin::flush(0));
    world.fail(flush, IoError::Media, Keep::Nothing);
    world.settle();
    assert!(!is_silent(&mut world), "its clients have to be told by who knows it");
    cancel(&mut world);
    let flush = world.flush(0);
    world.settle();
    assert!(world.result(flush).is_some_and(|result| result.is_err()));
    let now = world.time();
    let refusal = world.engine().0.begin_takeover(now);
    assert_eq!(refusal, Err(TakeoverRefusal::LostWrites));
}

#[test]
fn a_command_is_not_left_behind() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    let drain = world.drain(0);
    world.settle_except(origin::any(0));
    let now = world.time();
    assert_eq!(world.engine().0.begin_takeover(now), Err(TakeoverRefusal::Command));
    world.idle();
    assert!(world.command_result(drain).is_some_and(|result| result.is_ok()));
    begin(&mut world);
    world.settle();
    let late = world.command(Command::Stop);
    world.settle();
    assert_eq!(world.command_result(late), Some(Err(CommandError::Busy)));
    cancel(&mut world);
}

#[test]
fn an_engine_without_its_cache_device_hands_nothing_over() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write(0, 0, 1, 1);
    world.poll();
    begin(&mut world);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    assert!(!is_silent(&mut world));
    cancel(&mut world);
    let now = world.time();
    let refusal = world.engine().0.begin_takeover(now);
    assert_eq!(refusal, Err(TakeoverRefusal::CacheFailed));
}
