//! An origin that stalls, or fails in a way that may pass: who waits, how long, and who goes on.

use forebay_engine::ORIGIN_LATE_BYTES_MAX;
use forebay_engine::event::{Command, CommandError, CommandId};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::{CacheMode, ORIGIN_TIMEOUT_S, VolumeSettings, WritebackOrder};
use forebay_engine::request::RequestError;
use forebay_engine::status::{OriginState, OriginStatus, VolumeStatus};
use forebay_engine::units::VolumeSlot;

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, What, World, origin};
use crate::modes::ALL;

const LIMIT_MS: u64 = ORIGIN_TIMEOUT_S as u64 * 1000;

fn start(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

fn volume(world: &mut World) -> VolumeStatus {
    let now = world.time();
    world.engine().0.volume_status(now, VolumeSlot(0)).expect("it is known")
}

fn status(world: &mut World) -> OriginStatus {
    volume(world).origin
}

/// All that the origin is asked for fails from now on, or nothing any more.
fn fail_origin(world: &mut World, error: Option<IoError>) {
    world.fails = error.map(|error| -> Box<dyn Fn(&_) -> Option<IoError>> {
        Box::new(move |held| origin::any(0)(held).then_some(error))
    });
}

fn set_timeout(world: &mut World, seconds: u32) {
    let settings = VolumeSettings { origin_timeout_s: seconds, ..volume(world).settings };
    let command = world.command(Command::SetVolume { volume: VolumeSlot(0), settings });
    world.settle_except(origin::any(0));
    assert!(matches!(world.command_result(command), Some(Ok(_))));
}

fn origin_reads(world: &World) -> usize {
    let is_it = |(device, what): &&(Device, What)| {
        *device == Device::Origin(VolumeSlot(0)) && *what == What::Read
    };
    world.submitted.iter().filter(is_it).count()
}

#[test]
fn while_an_origin_stalls_hits_and_absorbed_writes_go_on() {
    let mut world = start(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    let miss = world.read(0, 100, 1);
    world.settle_except(origin::any(0));
    world.idle_except(6_000, origin::any(0));
    let hit = world.read(0, 0, 1);
    let write = world.write(0, 1, 4, 2);
    let flush = world.flush(0);
    world.settle_except(origin::any(0));
    for id in [hit, write, flush] {
        assert_eq!(world.result(id), Some(Ok(())));
    }
    assert!(world.is_pending(miss));
    let seen = status(&mut world);
    assert_eq!((seen.state, seen.requests_waiting), (OriginState::Stalled, 1));
    assert!(seen.oldest_wait_ms >= 6_000 && seen.state_ms >= 6_000);
    // It comes back within the limit.
    world.settle();
    assert_eq!(world.result(miss), Some(Ok(())));
    let seen = status(&mut world);
    assert_eq!((seen.state, seen.requests_waiting, seen.oldest_wait_ms), (OriginState::Ok, 0, 0));
}

#[test]
fn a_read_of_a_stalled_origin_fails_when_the_limit_has_passed() {
    let mut world = start(CacheMode::Writeback);
    let first = world.read(0, 100, 1);
    world.idle_except(LIMIT_MS / 2, origin::any(0));
    let second = world.read(0, 100, 1);
    world.idle_except(LIMIT_MS / 2 - 1, origin::any(0));
    assert!(world.is_pending(first));
    world.idle_except(1, origin::any(0));
    assert_eq!(world.result(first), Some(Err(RequestError::Io)));
    assert!(world.is_pending(second), "it has waited half as long");
    assert_eq!(status(&mut world).last_error.map(|(error, _)| error), Some(IoError::TimedOut));
    assert_eq!(volume(&mut world).counters.origin_timeouts, 1);
    world.settle();
    assert_eq!(world.result(second), Some(Ok(())), "the read ends well after all");
    assert_eq!(volume(&mut world).requests_in_flight, 0);
    assert_eq!(world.read_now(0, 100), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_write_that_was_answered_late_is_not_overtaken_by_itself() {
    let mut world = start(CacheMode::Writearound);
    let stuck = world.write(0, 5, 1, 1);
    world.poll();
    let behind = world.write(0, 5, 1, 2);
    world.idle_except(LIMIT_MS, origin::any(0));
    for id in [stuck, behind] {
        assert_eq!(world.result(id), Some(Err(RequestError::Io)));
    }
    assert_eq!((status(&mut world).requests_waiting, status(&mut world).requests_late), (0, 2));
    let newer = world.write(0, 5, 1, 3);
    world.settle_except(origin::any(0));
    assert!(world.is_pending(newer), "the range is locked as long as the first write may land");
    assert_eq!(status(&mut world).requests_waiting, 1);
    let writes = world.find(origin::write(0));
    assert_eq!(writes.len(), 1);
    world.complete(writes[0]);
    world.settle();
    assert_eq!(world.result(newer), Some(Ok(())));
    assert_eq!(world.read_now(0, 5), Ok(Content::Tag(3)));
    // What had not begun when its client was told that it failed never did.
    let is_write = |(device, what): &&(Device, What)| {
        *device == Device::Origin(VolumeSlot(0)) && *what == What::Write
    };
    assert_eq!(world.submitted.iter().filter(is_write).count(), 2);
}

#[test]
fn a_flush_of_a_stalled_origin_fails_when_the_limit_has_passed() {
    let mut world = start(CacheMode::Writethrough);
    world.write_now(0, 0, 1, 1);
    let flush = world.flush(0);
    world.idle_except(LIMIT_MS, origin::any(0));
    assert_eq!(world.result(flush), Some(Err(RequestError::Io)));
    // The flush under way ends well: nothing is lost, and the next one may say so.
    world.settle();
    let next = world.flush(0);
    world.settle();
    assert_eq!(world.result(next), Some(Ok(())));
}

#[test]
fn an_error_that_passes_is_ridden_through() {
    for mode in [CacheMode::Writearound, CacheMode::Writethrough, CacheMode::Passthrough] {
        for error in [IoError::Transient, IoError::TimedOut, IoError::Gone] {
            let mut world = start(mode);
            fail_origin(&mut world, Some(error));
            let read = world.read(0, 100, 1);
            let write = world.write(0, 5, 1, 1);
            let part = world.write_sectors(0, 9 * 8 + 1, 1, 2);
            world.idle_for(LIMIT_MS / 2);
            assert!([read, write, part].iter().all(|id| world.is_pending(*id)), "{mode:?}");
            let seen = status(&mut world);
            assert_eq!((seen.state, seen.requests_waiting), (OriginState::Retrying, 3));
            assert!(seen.state_ms >= LIMIT_MS / 2);
            assert_eq!(seen.last_error.map(|(error, _)| error), Some(error));
            fail_origin(&mut world, None);
            world.idle_for(6_000);
            for id in [read, write, part] {
                assert_eq!(world.result(id), Some(Ok(())), "{mode:?} {error:?}");
            }
            assert_eq!(status(&mut world).state, OriginState::Ok);
            assert_eq!(volume(&mut world).counters.errors, 0);
            assert_eq!(world.read_now(0, 5), Ok(Content::Tag(1)));
        }
    }
}

#[test]
fn tries_become_rarer_and_end_with_the_limit() {
    let mut world = start(CacheMode::Writeback);
    fail_origin(&mut world, Some(IoError::Transient));
    let read = world.read(0, 100, 1);
    world.idle_for(0);
    let (began, mut tries) = (world.now, vec![]);
    while world.is_pending(read) {
        let before = origin_reads(&world);
        world.idle_for(10);
        if origin_reads(&world) > before {
            tries.push((world.now - began) / 1_000_000);
        }
        assert!(world.now - began <= (LIMIT_MS + 10) * 1_000_000, "it waits for ever");
    }
    assert_eq!(world.result(read), Some(Err(RequestError::Io)));
    assert!((8..=14).contains(&tries.len()), "{tries:?}");
    let waits: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] < waits[1] && waits[1] < waits[2], "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 5_020), "{waits:?}");
    let reads = origin_reads(&world);
    world.idle_for(60_000);
    assert_eq!(origin_reads(&world), reads, "nobody wants it any more");
    assert_eq!(volume(&mut world).requests_in_flight, 0);
    assert_eq!(status(&mut world).state, OriginState::Ok);
}

#[test]
fn what_cannot_pass_is_answered_at_once() {
    for (error, answer) in
        [(IoError::Media, RequestError::Io), (IoError::NoSpace, RequestError::NoSpace)]
    {
        let mut world = start(CacheMode::Writearound);
        fail_origin(&mut world, Some(error));
        let write = world.write(0, 5, 1, 1);
        world.settle();
        assert_eq!(world.result(write), Some(Err(answer)));
    }
}

#[test]
fn an_error_that_stays_while_the_origin_works_is_one_of_the_place() {
    let mut world = start(CacheMode::Passthrough);
    world.fails = Some(Box::new(|held| {
        (origin::any(0)(held) && held.offset == 100 * 4096).then_some(IoError::Transient)
    }));
    let bad = world.read(0, 100, 1);
    for _ in 0..30 {
        world.idle_for(100);
        assert_eq!(world.read_now(0, 7), Ok(Content::Tag(ORIGINAL)));
    }
    assert_eq!(world.result(bad), Some(Err(RequestError::Io)));
}

#[test]
fn without_a_limit_errors_are_answered_and_stalls_are_waited_for() {
    let mut world = start(CacheMode::Writearound);
    set_timeout(&mut world, 0);
    let stuck = world.read(0, 100, 1);
    world.idle_except(100 * LIMIT_MS, origin::any(0));
    assert!(world.is_pending(stuck));
    fail_origin(&mut world, Some(IoError::TimedOut));
    world.settle();
    assert_eq!(world.result(stuck), Some(Err(RequestError::Io)));
}

#[test]
fn a_shorter_limit_holds_for_those_who_wait() {
    let mut world = start(CacheMode::Writearound);
    let stuck = world.read(0, 100, 1);
    world.idle_except(2_000, origin::any(0));
    set_timeout(&mut world, 1);
    world.idle_except(0, origin::any(0));
    assert_eq!(world.result(stuck), Some(Err(RequestError::Io)));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(volume(&mut world).settings.origin_timeout_s, 1, "it is durable");
}

#[test]
fn writeback_is_tried_for_ever_and_goes_home() {
    let mut world = start(CacheMode::Writeback);
    world.write_now(0, 0, 8, 1);
    fail_origin(&mut world, Some(IoError::Transient));
    let drain = world.command(Command::Drain { volume: VolumeSlot(0) });
    world.idle_for(0);
    assert!(matches!(world.command_result(drain), Some(Err(_))));
    let settings = VolumeSettings { writeback_percent: 0, ..volume(&mut world).settings };
    let command = world.command(Command::SetVolume { volume: VolumeSlot(0), settings });
    world.idle_for(100 * LIMIT_MS);
    assert!(matches!(world.command_result(command), Some(Ok(_))));
    let seen = volume(&mut world);
    assert_eq!((seen.dirty_blocks, seen.origin.state), (8, OriginState::Retrying));
    assert!(seen.origin.writeback_retry_ms.is_some_and(|wait_ms| wait_ms <= 5_000));
    fail_origin(&mut world, None);
    world.idle_for(20_000);
    let seen = volume(&mut world);
    assert_eq!((seen.dirty_blocks, seen.origin.state), (0, OriginState::Ok));
    assert_eq!(seen.origin.writeback_retry_ms, None);
}

#[test]
fn a_success_of_before_the_link_went_down_makes_no_bad_place() {
    let mut world = start(CacheMode::Writeback);
    let first = world.read(0, 100, 1);
    let second = world.read(0, 200, 1);
    world.poll();
    let [failing, good] = world.find(origin::read(0))[..] else { panic!("both are read") };
    world.fail(failing, IoError::Transient, Keep::Nothing);
    world.idle_except(1, origin::any(0));
    world.complete(good);
    // Nothing works for ten seconds.
    fail_origin(&mut world, Some(IoError::Transient));
    world.idle_for(10_000);
    assert!(world.is_done(second) && world.is_pending(first));
    fail_origin(&mut world, None);
    world.idle_for(6_000);
    assert_eq!(world.result(first), Some(Ok(())));
}

#[test]
fn a_large_discard_is_answered_when_the_limit_has_passed() {
    let mut setup = Setup::of(&[CacheMode::Writearound]);
    setup.origin_bytes = ORIGIN_LATE_BYTES_MAX + 8192 * BLOCK;
    let mut world = setup.start();
    let discard = world.discard(0, 0, ORIGIN_LATE_BYTES_MAX / BLOCK + 1);
    world.idle_except(LIMIT_MS, origin::any(0));
    assert_eq!(world.result(discard), Some(Err(RequestError::Io)));
    assert_eq!((status(&mut world).requests_late, status(&mut world).late_bytes), (1, 0));
    world.settle();
    assert_eq!(volume(&mut world).requests_in_flight, 0);
}

#[test]
fn a_read_rides_through_the_failure_of_a_prefetch_that_it_joined() {
    let mut world = start(CacheMode::Writeback);
    world.prefetch(0, 100, 1);
    let read = world.read(0, 100, 1);
    world.poll();
    let held = world.the(origin::read(0));
    world.fail(held, IoError::Transient, Keep::Nothing);
    world.idle_for(6_000);
    assert_eq!(world.result(read), Some(Ok(())));
}

/// A volume with a hit in block 0 and a write of block 5 that its origin does not end.
fn with_a_stuck_write() -> (World, u64) {
    let mut world = start(CacheMode::Writearound);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(ORIGINAL)));
    let stuck = world.write(0, 5, 1, 1);
    world.poll();
    (world, stuck)
}

fn is_hit_served(world: &mut World) -> bool {
    let hit = world.read(0, 0, 1);
    world.settle_except(origin::any(0));
    world.is_done(hit)
}

/// What holds all requests of a volume back until those under way have ended.
fn gating() -> Vec<Command> {
    let volume = VolumeSlot(0);
    let order = WritebackOrder::Ordered;
    let mut commands = vec![Command::Drain { volume }, Command::Invalidate { volume }];
    commands.push(Command::SetOrder { volume, order });
    commands.extend(ALL.map(|mode| Command::SetMode { volume, mode }));
    commands
}

#[test]
fn no_command_makes_hits_wait_for_a_request_that_was_answered_late() {
    for command in gating() {
        let (mut world, stuck) = with_a_stuck_write();
        world.idle_except(LIMIT_MS, origin::any(0));
        assert_eq!(world.result(stuck), Some(Err(RequestError::Io)));
        let given = [world.command(command.clone()), world.command(command.clone())];
        for _ in 0..3 {
            assert!(is_hit_served(&mut world), "{command:?}");
            world.idle_except(LIMIT_MS, origin::any(0));
        }
        assert_eq!(world.command_result(given[0]), None, "{command:?}");
        assert_eq!(world.command_result(given[1]), Some(Err(CommandError::Busy)));
        world.engine().0.cancel_command(CommandId(given[0]));
        world.poll();
        assert_eq!(world.command_result(given[0]), Some(Err(CommandError::Cancelled)));
        assert!(is_hit_served(&mut world), "{command:?}");
        world.settle();
        let again = world.command_now(command);
        assert_eq!(again, Ok(Some(VolumeSlot(0))), "the origin is back");
    }
}

#[test]
fn a_command_lets_requests_go_when_its_origin_hangs() {
    for command in gating() {
        let (mut world, stuck) = with_a_stuck_write();
        let given = world.command(command.clone());
        let hit = world.read(0, 0, 1);
        world.idle_except(4_900, origin::any(0));
        assert!(world.is_pending(hit), "{command:?}: it may end soon");
        world.idle_except(200, origin::any(0));
        assert!(world.is_done(hit) && is_hit_served(&mut world), "{command:?}");
        assert_eq!(world.command_result(given), None, "{command:?}");
        world.idle_for(10_000);
        assert!(world.is_done(stuck), "{command:?}");
        assert_eq!(world.command_result(given), Some(Ok(Some(VolumeSlot(0)))), "{command:?}");
        assert!(is_hit_served(&mut world) || command_voids(&command), "{command:?}");
        assert_eq!(world.read_now(0, 5), Ok(Content::Tag(1)));
    }
}

fn command_voids(command: &Command) -> bool {
    let passthrough = CacheMode::Passthrough;
    let to_passthrough = Command::SetMode { volume: VolumeSlot(0), mode: passthrough };
    matches!(command, Command::Invalidate { .. }) || *command == to_passthrough
}

#[test]
fn without_a_limit_no_command_makes_hits_wait_either() {
    let mut world = start(CacheMode::Writearound);
    set_timeout(&mut world, 0);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(ORIGINAL)));
    let stuck = world.write(0, 5, 1, 1);
    world.idle_except(5_000, origin::any(0));
    let command = world.drain(0);
    assert!(is_hit_served(&mut world));
    world.idle_for(10_000);
    assert!(world.is_done(stuck));
    assert_eq!(world.command_result(command), Some(Ok(Some(VolumeSlot(0)))));
}

#[test]
fn a_command_lets_requests_go_when_its_flush_of_the_origin_hangs() {
    let mut world = start(CacheMode::Writearound);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(ORIGINAL)));
    world.write_now(0, 5, 1, 1);
    let command = world.set_mode(0, CacheMode::Writethrough);
    let hit = world.read(0, 0, 1);
    world.settle_except(origin::any(0));
    world.the(origin::flush(0));
    assert!(world.is_pending(hit));
    world.idle_except(5_000, origin::any(0));
    assert!(world.is_done(hit) && is_hit_served(&mut world));
    assert_eq!(world.command_result(command), None);
    world.idle_for(10_000);
    assert_eq!(world.command_result(command), Some(Ok(Some(VolumeSlot(0)))));
}

/// Writeback is one job: what hangs in it at one origin holds the gate of another volume up.
#[test]
fn a_command_lets_requests_go_when_writeback_hangs_at_another_origin() {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]);
    setup.order = WritebackOrder::Ordered;
    let mut world = setup.start();
    for slot in [0, 1] {
        world.write_now(slot, 0, 1, 1);
        world.flush_now(slot);
    }
    world.drain(0);
    world.idle_except(50, origin::any(0));
    assert!(!world.find(origin::write(0)).is_empty());
    // Nearly clean, so that the rest goes home while clients wait.
    let command = world.drain(1);
    let hit = world.read(1, 0, 1);
    world.idle_except(5_000, origin::any(0));
    assert_eq!(world.command_result(command), None);
    assert_eq!(world.result(hit), Some(Ok(())));
    world.idle_for(20_000);
    assert_eq!(world.command_result(command), Some(Ok(Some(VolumeSlot(1)))));
}

#[test]
fn a_command_lets_requests_go_while_errors_of_the_origin_may_pass() {
    let (mut world, stuck) = with_a_stuck_write();
    fail_origin(&mut world, Some(IoError::Transient));
    let command = world.drain(0);
    world.idle_for(6_000);
    assert!(is_hit_served(&mut world) && world.is_pending(stuck));
    fail_origin(&mut world, None);
    world.idle_for(10_000);
    assert_eq!(world.command_result(command), Some(Ok(Some(VolumeSlot(0)))));
    assert!(world.is_done(stuck));
}

#[test]
fn a_read_that_hangs_at_another_origin_holds_no_command_up() {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]);
    setup.order = WritebackOrder::Ordered;
    let mut world = setup.start();
    world.read(0, 100, 1);
    world.idle_except(LIMIT_MS, origin::any(0));
    let write = world.write(1, 0, 1, 1);
    world.settle_except(origin::any(0));
    assert!(world.is_done(write));
    let command = world.drain(1);
    world.idle_except(10_000, origin::any(0));
    assert_eq!(world.command_result(command), Some(Ok(Some(VolumeSlot(1)))));
}
