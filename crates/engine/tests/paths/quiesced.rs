//! A cache device that is gone with dirty data on it: requests wait for it, up to a limit.

use forebay_engine::CACHE_TIMEOUT_MS;
use forebay_engine::event::Command;
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::request::{RequestError, RequestId};
use forebay_engine::status::{CacheFailure, CacheHealth, VolumeState, VolumeStatus};
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Keep, Setup, World, cache};

/// A volume with a dirty block.
fn dirty() -> World {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    world
}

/// Writes, and the device is gone when it comes to the record.
fn lose(world: &mut World) -> u64 {
    let write = world.write(0, 1, 1, 2);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    write
}

fn volume(world: &mut World) -> VolumeStatus {
    let now = world.time();
    world.engine().0.volume_status(now, VolumeSlot(0)).expect("it is known")
}

#[test]
fn requests_wait_and_fail_when_the_limit_has_passed() {
    let mut world = dirty();
    let write = lose(&mut world);
    assert_eq!(world.status().cache_health, CacheHealth::Failed(CacheFailure::Gone));
    let waiting = [write, world.read(0, 0, 1), world.flush(0), world.write(0, 2, 1, 3)];
    world.idle_for(CACHE_TIMEOUT_MS - 1);
    assert!(waiting.iter().all(|id| world.is_pending(*id)));
    let status = volume(&mut world);
    assert_eq!((status.state, status.requests_waiting), (VolumeState::Quiesced, 4));
    assert!(status.return_wait_ms.is_some_and(|left| left < CACHE_TIMEOUT_MS));
    world.idle_for(10);
    assert!(waiting.iter().all(|id| world.result(*id) == Some(Err(RequestError::Io))));
    assert_eq!(volume(&mut world).return_wait_ms, None);
    let late = world.read(0, 0, 1);
    assert_eq!(world.result(late), Some(Err(RequestError::Io)), "it has waited enough");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_read_under_way_waits_as_well() {
    let mut world = dirty();
    let read = world.read(0, 0, 1);
    world.fails = Some(Box::new(|held| cache::any(held).then_some(IoError::Gone)));
    world.settle();
    assert!(world.is_pending(read));
    assert_eq!(volume(&mut world).requests_waiting, 1);
    assert_eq!(volume(&mut world).counters.errors, 0);
}

#[test]
fn a_limit_of_zero_fails_at_once() {
    let mut world = dirty();
    world.engine().0.set_cache_timeout_ms(0);
    let write = lose(&mut world);
    let read = world.read(0, 0, 1);
    for id in [write, read] {
        assert_eq!(world.result(id), Some(Err(RequestError::Io)));
    }
}

#[test]
fn nobody_waits_after_a_failed_flush() {
    let mut world = dirty();
    let flush = world.flush(0);
    world.fails = Some(Box::new(|held| cache::flush(held).then_some(IoError::Media)));
    world.settle();
    assert_eq!(world.result(flush), Some(Err(RequestError::Io)));
    assert_eq!(world.status().cache_health, CacheHealth::Failed(CacheFailure::Flush));
    let read = world.read(0, 0, 1);
    assert_eq!(world.result(read), Some(Err(RequestError::Io)));
}

#[test]
fn a_client_that_goes_takes_its_requests_along() {
    let mut world = dirty();
    let write = lose(&mut world);
    let read = world.read(0, 0, 1);
    let now = world.time();
    world.engine().0.handle_forget(now, RequestId(write));
    world.poll();
    assert_eq!(world.result(write), Some(Err(RequestError::Shutdown)));
    assert!(world.is_pending(read));
    assert_eq!(volume(&mut world).requests_waiting, 1);
}

#[test]
fn forgetting_a_request_that_does_not_wait_changes_nothing() {
    let mut world = dirty();
    let write = world.write(0, 1, 1, 2);
    let now = world.time();
    world.engine().0.handle_forget(now, RequestId(write));
    world.finish(&[write]);
}

#[test]
fn a_stop_does_not_wait() {
    let mut world = dirty();
    let write = lose(&mut world);
    world.command(Command::Stop);
    world.settle();
    assert_eq!(world.result(write), Some(Err(RequestError::Shutdown)));
}
