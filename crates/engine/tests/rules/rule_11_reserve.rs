//! Rule 11: a cache full of dirty data always makes progress.

use std::cell::Cell;

use forebay_engine::event::Command;
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;

use crate::harness::{BLOCK, Content, Held, Keep, Setup, World, cache, content_of, origin};

const CHUNKS: u64 = 128;
const KEPT: u64 = 960;
const COPIES: u64 = 1000;

fn writeback() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

/// Twice what the cache holds; the origin refuses writes.
fn overfull() -> (World, Vec<u64>) {
    let mut world = writeback();
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    let ids: Vec<u64> = (0..CHUNKS).map(|chunk| world.write(0, chunk * 16, 16, chunk)).collect();
    world.idle_for(20_000);
    (world, ids)
}

#[test]
fn writes_wait_while_the_origin_refuses_and_all_end_when_it_is_back() {
    let (mut world, ids) = overfull();
    let waiting = ids.iter().filter(|id| world.is_pending(**id)).count();
    assert!(waiting > 0, "not all of it fits");
    let free = world.status().free_segments;
    assert!(free >= 3, "the spares are kept: {free}");
    world.fails = None;
    world.idle();
    for (chunk, id) in (0..CHUNKS).zip(ids) {
        assert!(world.is_done(id), "chunk {chunk}");
        assert_eq!(world.read_now(0, chunk * 16 + 15), Ok(Content::Tag(chunk)));
    }
}

#[test]
fn reads_go_on_while_writes_wait() {
    let (mut world, ids) = overfull();
    assert!(ids.iter().any(|id| world.is_pending(*id)));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(0)));
    let flush = world.flush(0);
    world.settle();
    assert!(world.is_done(flush));
}

#[test]
fn everything_that_was_answered_survives_a_kill_of_a_full_cache() {
    let (mut world, ids) = overfull();
    let done: Vec<bool> = ids.iter().map(|id| world.is_done(*id)).collect();
    world.kill(|_| Keep::Nothing);
    world.fails = None;
    world.restart().expect("nothing is damaged");
    for (chunk, was_done) in (0..CHUNKS).zip(done) {
        let seen = world.read_now(0, chunk * 16).expect("readable");
        assert!(!was_done || seen == Content::Tag(chunk), "chunk {chunk}: {seen:?}");
    }
    world.clean(0);
}

/// Record writes fail now and then while the log is full: what they take along finds the spares.
#[test]
fn failing_record_writes_of_a_full_log_do_not_deadlock() {
    let mut world = writeback();
    let count = Cell::new(0);
    world.fails = Some(Box::new(move |held| {
        count.set(count.get() + 1);
        (cache::record(held) && count.get() % 23 == 0).then_some(IoError::Media)
    }));
    let mut expected = Vec::new();
    for chunk in 0..3 * CHUNKS {
        let block = chunk % CHUNKS * 16;
        let id = world.write(0, block, 16, chunk);
        world.idle_for(100);
        expected.push((block, chunk, id));
    }
    world.idle();
    assert!(!world.is_cache_failed());
    for (_, chunk, id) in &expected {
        assert!(world.is_done(*id), "chunk {chunk}");
    }
    for (block, chunk, _) in &expected[2 * CHUNKS as usize..] {
        assert_eq!(world.read_now(0, *block), Ok(Content::Tag(*chunk)));
    }
}

/// A unit that waits for space holds no lock: writeback of the very blocks it is to overwrite goes
/// on.
#[test]
fn a_write_that_waits_for_space_does_not_hold_up_writeback_of_its_blocks() {
    let (mut world, ids) = overfull();
    let over: Vec<u64> =
        (0..32).map(|chunk| world.write(0, chunk * 16, 16, 1000 + chunk)).collect();
    // Merges exclude writeback: these touch every run that it could write.
    let mut parts = Vec::new();
    for chunk in 32..CHUNKS {
        parts.push(world.write_sectors(0, (chunk * 16 + 8) * 8, 8, 1000 + chunk));
        parts.push(world.write_sectors(0, (chunk * 16 + 4) * 8, 1, 5));
    }
    world.idle_for(1_000);
    assert!(over.iter().any(|id| world.is_pending(*id)));
    world.fails = None;
    world.idle();
    for id in ids.iter().chain(&over).chain(&parts) {
        assert!(world.is_done(*id), "{}", world.engine().0.describe_waiting());
    }
    let part = world.read_bytes(0, (40 * 16 + 4) * BLOCK, 512);
    world.finish(&[part]);
    assert_eq!(content_of(world.delivered(part), 0, (40 * 16 + 4) * 8), Content::Tag(5));
    assert_eq!(world.read_now(0, 16), Ok(Content::Tag(1001)));
}

#[test]
fn drain_of_a_full_cache_ends() {
    let mut world = writeback();
    let ids: Vec<u64> = (0..CHUNKS).map(|chunk| world.write(0, chunk * 16, 16, chunk)).collect();
    world.idle();
    assert!(ids.iter().all(|id| world.is_done(*id)));
    world.clean(0);
    for chunk in 0..CHUNKS {
        assert_eq!(world.on_origin(0, chunk * 16), Content::Tag(chunk));
    }
}

/// Each segment holds dirty data of volume 0, whose origin refuses writes, and clean copies of
/// volume 1, which is written around the log. One more segment is about to be emptied: reclaim
/// reads what it keeps of it, the first 16 blocks from `KEPT` on, whose place comes with it.
fn about_to_be_emptied() -> (World, u64) {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]).start();
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    for part in 0..3 {
        world.write_now(0, KEPT + part * 16, 16, 1);
    }
    let place = world.place_of(KEPT);
    for chunk in 0..17 {
        world.write_now(0, chunk * 32, 16, chunk);
        world.write_now(0, chunk * 32 + 16, 16, chunk);
        world.write_now(1, COPIES + chunk * 16, 16, chunk);
    }
    world.switch(1, CacheMode::Writearound);
    let keeps = move |held: &Held| cache::read(held) && held.overlaps(place, BLOCK);
    for part in 1..3 {
        let write = world.write(0, KEPT + part * 16, 16, 2);
        world.idle_except(10, keeps);
        assert!(world.is_done(write));
    }
    world.the(keeps);
    (world, place)
}

/// What is voided while reclaim reads, and poison here and there that lets no segment of it die,
/// takes all the room that there is, but for the drops.
#[test]
fn voided_copies_and_poison_leave_room_to_drop_what_is_clean() {
    let (mut world, place) = about_to_be_emptied();
    let keeps = move |held: &Held| cache::read(held) && held.overlaps(place, BLOCK);
    let mut around = Vec::new();
    let (mut lost, mut is_full) = (0, false);
    while !is_full {
        if around.len() % 30 == 0 {
            let bad = world.place_of(lost * 32);
            world.cache.rot(bad, BLOCK);
            let read = world.read(0, lost * 32, 1);
            world.settle_except(keeps);
            assert_eq!(world.result(read), Some(Err(RequestError::Io)));
            lost += 1;
        }
        let write = world.write(1, COPIES + around.len() as u64, 1, 900);
        world.settle_except(keeps);
        is_full = world.is_pending(write);
        around.push(write);
        assert!(around.len() < 272, "each takes a record");
    }
    world.idle_except(5_000, keeps);
    assert!(world.is_pending(around[around.len() - 1]));
    world.fails = None;
    world.idle();
    assert!(around.iter().all(|id| world.is_done(*id)), "clean segments are dropped");
    assert_eq!(world.dirty(0), lost, "the poison");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    for block in 0..around.len() as u64 {
        assert_eq!(world.read_now(1, COPIES + block), Ok(Content::Tag(900)));
    }
    assert_eq!(world.look(0, [KEPT, KEPT + 16].into_iter()), [1, 2].map(Content::Tag));
    assert_eq!(world.read_now(0, 0), Err(RequestError::Io));
}

/// The device goes while writes wait for room: they wait for it then, and are done when it is back.
#[test]
fn writes_that_wait_for_room_wait_for_a_device_that_goes() {
    let (mut world, ids) = overfull();
    let waiting: Vec<u64> = ids.iter().copied().filter(|id| world.is_pending(*id)).collect();
    assert!(!waiting.is_empty());
    let read = world.read(0, 0, 1);
    let held = world.find(cache::read)[0];
    world.fail(held, IoError::Gone, Keep::Nothing);
    world.settle();
    assert!(world.is_cache_failed());
    assert!(waiting.iter().all(|id| world.is_pending(*id)), "none fails");
    world.engine().0.begin_hand_over();
    world.settle();
    let requests = world.replace_engine(&[]);
    world.fails = None;
    world.finish_restart().expect("nothing is damaged");
    world.hand_in_again(requests);
    world.idle();
    assert!(ids.iter().all(|id| world.is_done(*id)));
    assert_eq!(world.seen(read, 0, 0), Content::Tag(0));
    for chunk in 0..CHUNKS {
        assert_eq!(world.read_now(0, chunk * 16 + 15), Ok(Content::Tag(chunk)));
    }
}

/// Promise 5: a stop always finishes. What it cannot bring home stays for the next start.
#[test]
fn a_stop_ends_the_writes_that_would_wait_for_room_for_ever() {
    let (mut world, ids) = overfull();
    let waiting: Vec<u64> = ids.iter().copied().filter(|id| world.is_pending(*id)).collect();
    assert!(!waiting.is_empty());
    let stopped = world.command_now(Command::Stop);
    assert_eq!(stopped, Ok(None));
    for id in &waiting {
        assert_eq!(world.result(*id), Some(Err(RequestError::Shutdown)));
    }
    world.kill(|_| Keep::Nothing);
    world.fails = None;
    world.restart().expect("a clean stop leaves no damage");
    let answered = CHUNKS - waiting.len() as u64;
    for chunk in 0..answered {
        assert_eq!(world.read_now(0, chunk * 16 + 15), Ok(Content::Tag(chunk)));
    }
}
