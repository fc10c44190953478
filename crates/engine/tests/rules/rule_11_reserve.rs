//! Rule 11: a cache full of dirty data always makes progress.

use std::cell::Cell;

use forebay_engine::event::{Command, Event, SavedMark};
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, HostMark};
use forebay_engine::policy::PolicyKind;
use forebay_engine::request::RequestError;
use forebay_engine::status::BlockState;
use forebay_engine::units::{OriginBlock, VolumeSlot};

use crate::harness::{
    BLOCK, Content, Held, Keep, ORIGINAL, Setup, World, cache, content_of, origin,
};

const CHUNKS: u64 = 128;
const KEPT: u64 = 960;
const COPIES: u64 = 1000;
/// Pieces of zeroes with one block each: more entries than a record has room for.
const PIECES: u64 = 100;
const ZEROES: u64 = 1600;
/// More than have room, as each takes a record.
const WRITES_MAX: usize = 272;

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

/// The origin of volume 0 refuses writes.
fn with_copies() -> World {
    let mut world = Setup::of(&[CacheMode::Writeback; 3]).start();
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    world
}

/// Reads of the 16 blocks from `place` of the cache device on.
fn reads_at(place: u64) -> impl Fn(&Held) -> bool + Copy {
    move |held: &Held| cache::read(held) && held.overlaps(place, 16 * BLOCK)
}

/// Each segment holds dirty data of volume 0 and clean copies of volume 1, which is written around
/// the log, but for the one from `KEPT` on, of which the first 17 blocks are written already. This
/// is about to be emptied: reclaim reads what it keeps of it, whose place is given back.
fn go_on_until_emptied(world: &mut World, chunks: u64) -> u64 {
    for part in 1..3 {
        world.write_now(0, KEPT + part * 16, 16, 1);
    }
    let place = world.place_of(KEPT);
    for chunk in 0..chunks {
        world.write_now(0, chunk * 32, 16, chunk);
        world.write_now(0, chunk * 32 + 16, 16, chunk);
        world.write_now(1, COPIES + chunk * 16, 16, chunk);
    }
    world.switch(1, CacheMode::Writearound);
    for part in 1..3 {
        let write = world.write(0, KEPT + part * 16, 16, 2);
        world.idle_except(10, reads_at(place));
        assert!(world.is_done(write));
    }
    assert_ne!(world.find(reads_at(place)), []);
    place
}

/// The same, and the first 16 blocks from `KEPT` on are kept.
fn about_to_be_emptied() -> (World, u64) {
    let mut world = with_copies();
    world.write_now(0, KEPT, 16, 1);
    let place = go_on_until_emptied(&mut world, 17);
    world.the(reads_at(place));
    (world, place)
}

/// Writes around the log, each of which voids a copy, and poison here and there that lets no
/// segment of it die, until there is no more room but for the drops of a round, or there were so
/// many. The writes, of which the last waits for room, and how many blocks are lost, the first of
/// each chunk.
fn use_up_reserve(
    world: &mut World,
    writes_max: usize,
    keeps: impl Fn(&Held) -> bool + Copy,
) -> (Vec<u64>, u64) {
    let (mut around, mut lost) = (Vec::new(), 0);
    while around.len() < writes_max {
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
        around.push(write);
        if world.is_pending(write) {
            break;
        }
    }
    (around, lost)
}

/// What is voided while reclaim reads, and poison here and there that lets no segment of it die,
/// takes all the room that there is, but for the drops.
#[test]
fn voided_copies_and_poison_leave_room_to_drop_what_is_clean() {
    let (mut world, place) = about_to_be_emptied();
    let keeps = reads_at(place);
    let (around, lost) = use_up_reserve(&mut world, WRITES_MAX, keeps);
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

/// As many blocks as reclaim reads at once, each for itself, and as many records of zeroes, which
/// it turns to when a read has ended. The place of the blocks comes with it.
fn about_to_move_zeroes() -> (World, u64) {
    let mut world = with_copies();
    let ids: Vec<u64> = (0..8).map(|n| world.hand_in_write(0, KEPT + 2 * n, 1, 1)).collect();
    world.finish(&ids);
    for n in 0..8 {
        let zero = world.zero(0, ZEROES + n * 40, 40);
        world.finish(&[zero]);
    }
    let place = go_on_until_emptied(&mut world, 17);
    assert_eq!(world.find(reads_at(place)).len(), 8);
    (world, place)
}

/// Rule 1: what was overwritten between choice and copy is not moved over the newer data.
#[test]
fn zeroes_that_are_overwritten_before_they_are_moved_cover_nothing() {
    let (mut world, place) = about_to_move_zeroes();
    let (whole, part) = (ZEROES, ZEROES + 40);
    for (block, count) in [(whole, 16), (whole + 16, 16), (whole + 32, 8), (part + 20, 1)] {
        let write = world.write(0, block, count, 7);
        world.settle_except(reads_at(place));
        assert!(world.is_done(write));
    }
    assert_eq!(world.status().counters.reclaimed_segments, 0);
    world.idle();
    assert_eq!(world.status().counters.reclaimed_segments, 1, "nothing is left of it");
    let blocks = [whole, whole + 39, part, part + 20, part + 39, part + 40];
    let expected = [Some(7), Some(7), None, Some(7), None, None]
        .map(|tag| tag.map_or(Content::Zeroes, Content::Tag));
    for _ in 0..2 {
        assert_eq!(world.look(0, blocks.into_iter()), expected);
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
    }
    world.fails = None;
    world.clean(0);
    let home = blocks.map(|block| world.on_origin(0, block));
    assert_eq!(home, expected);
}

/// The segment stays as it is; with the origin back all of it goes home, and space comes back.
#[test]
fn zeroes_stay_where_they_are_if_there_is_no_room_to_move_them() {
    let (mut world, place) = about_to_move_zeroes();
    // Nothing else keeps the segment.
    for n in 0..8 {
        let write = world.write(0, KEPT + 2 * n, 1, 7);
        world.settle_except(reads_at(place));
        assert!(world.is_done(write));
    }
    let (around, lost) = use_up_reserve(&mut world, WRITES_MAX, reads_at(place));
    world.idle_for(5_000);
    assert!(around.iter().any(|id| world.is_pending(*id)), "no room");
    let seen = |world: &mut World| {
        let zeroes = world.look(0, (0..8).map(|n| ZEROES + n * 40 + 39));
        let blocks = world.look(0, (0..8).map(|n| KEPT + 2 * n));
        assert_eq!((zeroes, blocks), (vec![Content::Zeroes; 8], vec![Content::Tag(7); 8]));
    };
    seen(&mut world);
    world.fails = None;
    world.idle();
    assert!(around.iter().all(|id| world.is_done(*id)), "clean segments are dropped");
    assert_eq!(world.dirty(0), lost, "the poison");
    seen(&mut world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    seen(&mut world);
    assert_eq!(world.read_now(1, COPIES), Ok(Content::Tag(900)));
}

/// Volume 2 has zeroes in pieces, `neighbours` dirty runs of volume 0 beside their record, and what
/// cut them in other segments. It has brought all of that home after so many writes around the log,
/// which it gives back.
fn zeroes_are_home(neighbours: u64, writes_max: usize) -> (World, Vec<u64>, u64) {
    let mut world = with_copies();
    world.fails = Some(Box::new(|held| {
        (origin::write(0)(held) || origin::write(2)(held)).then_some(IoError::Media)
    }));
    let zero = world.zero(2, 0, 256);
    world.finish(&[zero]);
    for part in 0..neighbours {
        world.write_now(0, ZEROES + part * 16, 16, 3);
    }
    let cuts: Vec<u64> = (0..PIECES).map(|n| world.hand_in_write(2, 2 * n + 1, 1, 5)).collect();
    world.finish(&cuts);
    let mut pad = 300;
    // Three runs fill a segment.
    while pad == 300 || world.segment_of(pad - 16).1 != 35 {
        world.write_now(2, pad, 16, 5);
        pad += 16;
    }
    world.write_now(0, KEPT, 16, 1);
    let place = go_on_until_emptied(&mut world, 15 - neighbours / 2);
    let (around, _) = use_up_reserve(&mut world, writes_max, reads_at(place));
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    let drain = world.drain(2);
    world.idle_except(10_000, reads_at(place));
    assert_eq!(world.command_result(drain), Some(Ok(Some(VolumeSlot(2)))));
    (world, around, place)
}

/// How many pieces of the zeroes the cache knows.
fn pieces_left(world: &mut World) -> u64 {
    (0..PIECES).map(|n| u64::from(world.state(2, 2 * n) == BlockState::Clean)).sum()
}

fn assert_zeroes_are_seen(world: &mut World) {
    for n in [0, PIECES / 2, PIECES - 1] {
        let seen = world.look(2, [2 * n, 2 * n + 1].into_iter());
        assert_eq!(seen, [Content::Zeroes, Content::Tag(5)]);
        assert_eq!(world.on_origin(2, 2 * n), Content::Zeroes);
    }
}

/// Zeroes that are home keep their record until it is voided. That takes room: where it ends, be it
/// in the midst of one record, the others wait. Other segments are dropped, and there is room.
#[test]
fn zeroes_that_are_home_are_voided_when_there_is_room_again() {
    let (mut world, around, _) = zeroes_are_home(2, WRITES_MAX);
    assert!(world.is_pending(around[around.len() - 1]));
    assert_eq!(pieces_left(&mut world), PIECES, "no room for any");
    let mut stopped = 0;
    for less in 2..4 {
        let (mut world, around, _) = zeroes_are_home(2, around.len() - less);
        let left = pieces_left(&mut world);
        stopped += u64::from(0 < left && left < PIECES);
        assert_voided_at_last(&mut world, &around);
    }
    assert!(stopped > 0, "some of the pieces were voided");
    assert_voided_at_last(&mut world, &around);
}

/// A checkpoint names them as they are, and the next life goes on with it.
#[test]
fn zeroes_that_are_home_are_voided_by_the_next_life() {
    let (mut world, _, place) = zeroes_are_home(2, WRITES_MAX);
    // Waits for a checkpoint.
    let switch = world.set_mode(2, CacheMode::Writearound);
    world.idle_except(1_000, reads_at(place));
    assert_eq!(world.command_result(switch), Some(Ok(Some(VolumeSlot(2)))));
    assert_eq!(pieces_left(&mut world), PIECES, "no room for any");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    world.idle();
    assert_eq!(pieces_left(&mut world), 0);
    assert_zeroes_are_seen(&mut world);
}

fn assert_voided_at_last(world: &mut World, around: &[u64]) {
    world.idle();
    assert!(around.iter().all(|id| world.is_done(*id)));
    assert_eq!(pieces_left(world), 0);
    assert_zeroes_are_seen(world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(pieces_left(world), 0);
    assert_zeroes_are_seen(world);
}

/// Zeroes that are home, and not voided yet, go with their segment. A checkpoint that is cut
/// between its drop and the end of that does not name their pieces: the segment is gone.
#[test]
fn zeroes_that_are_home_go_with_their_segment() {
    let (mut world, around, _) = zeroes_are_home(0, WRITES_MAX);
    world.idle_except(10, cache::drop_record);
    let dropped = world.the(cache::drop_record);
    assert_eq!(pieces_left(&mut world), PIECES, "not before the drop is durable");
    // Waits for a checkpoint, which is cut here.
    world.set_mode(2, CacheMode::Writearound);
    world.settle_except(cache::drop_record);
    world.complete(dropped);
    world.settle_except(cache::checkpoint);
    assert_eq!(pieces_left(&mut world), 0);
    let first = world.the(cache::checkpoint);
    world.complete(first);
    // Durable, and no checkpoint behind it.
    world.settle_except(cache::checkpoint);
    let answered: Vec<bool> = around.iter().map(|id| world.is_done(*id)).collect();
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_zeroes_are_seen(&mut world);
    for (block, was_answered) in (0..).zip(answered) {
        let seen = world.read_now(1, COPIES + block).expect("readable");
        assert!(!was_answered || seen == Content::Tag(900), "{block}: {seen:?}");
    }
}

/// What is overwritten between the drop of a segment and its end is not the segment's any more.
#[test]
fn zeroes_that_are_overwritten_while_their_segment_is_dropped_are_not_counted_twice() {
    let (mut world, _, _) = zeroes_are_home(0, WRITES_MAX);
    world.idle_except(10, cache::drop_record);
    let dropped = world.the(cache::drop_record);
    // One of the last 56 blocks, which are one piece.
    let over = world.write(2, 230, 1, 8);
    world.complete(dropped);
    world.settle_except(cache::record_of(230));
    assert!(world.is_pending(over));
    world.settle();
    assert!(world.is_done(over));
    let expected = [Content::Zeroes, Content::Tag(8), Content::Zeroes];
    assert_eq!(world.look(2, 229..232), expected);
    assert_zeroes_are_seen(&mut world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(2, 229..232), expected);
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
    world.begin_hand_over();
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

/// What a returned device lacks becomes poison, and that takes room. A volume whose losses cannot
/// be recorded is not served: older data would be read where newer data was answered.
#[test]
fn a_volume_whose_losses_find_no_room_is_not_served() {
    let (mut world, place) = about_to_be_emptied();
    let keeps = reads_at(place);
    use_up_reserve(&mut world, WRITES_MAX, keeps);
    let flush = world.flush(0);
    world.settle_except(keeps);
    assert!(world.is_done(flush));
    let write = world.write(0, KEPT + 40, 1, 8);
    world.settle_except(keeps);
    assert!(world.is_done(write), "it is answered, and not flushed");
    let read = world.the(keeps);
    world.fail(read, IoError::Gone, Keep::Nothing);
    world.settle();
    for slot in 1..3 {
        world.save_mark(slot, SavedMark::ServedWithoutCache);
    }
    let without = HostMark::ServedWithoutCache;
    world.come_back(Keep::Nothing, &[HostMark::None, without, without]);
    let extents = vec![(OriginBlock(KEPT + 40), 1)];
    assert!(world.has_event(&Event::WritesLost { volume: VolumeSlot(0), extents }));
    assert_eq!(world.read_now(0, KEPT + 40), Err(RequestError::Io));
    assert_eq!(world.read_now(0, KEPT), Err(RequestError::Io), "as a whole");
    assert_eq!(world.read_now(1, COPIES), Ok(Content::Tag(900)), "the others are");
}

/// Clean copies that were to be kept are not, once dirty data has taken the room meanwhile.
#[test]
fn clean_copies_are_not_moved_into_the_reserve() {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writearound]);
    setup.policy = PolicyKind::Lru;
    let mut world = setup.start();
    for _ in 0..3 {
        assert_eq!(world.read_now(1, 0), Ok(Content::Tag(ORIGINAL)));
    }
    let keeps = |place| move |held: &Held| reads_at(place)(held) || origin::any(0)(held);
    let place = world.place_of(0);
    for chunk in 1.. {
        let read = world.read(1, chunk * 15, 15);
        world.settle_except(keeps(place));
        if !world.find(reads_at(place)).is_empty() {
            break;
        }
        assert!(world.is_done(read));
    }
    let before = world.status().counters.relocated_bytes;
    let mut chunk = 0;
    while world.status().free_segments > 6 {
        let write = world.write(0, chunk * 16, 16, chunk);
        world.settle_except(keeps(place));
        assert!(world.is_done(write));
        chunk += 1;
    }
    assert_eq!(world.status().counters.relocated_bytes, before, "it still reads");
    world.settle_except(origin::any(0));
    assert_eq!(world.status().counters.relocated_bytes, before);
    assert_eq!(world.state(1, 0), BlockState::NotCached, "it went with its segment");
    assert_eq!(world.read_now(1, 0), Ok(Content::Tag(ORIGINAL)));
    assert_eq!(world.read_now(0, chunk * 16 - 1), Ok(Content::Tag(chunk - 1)));
}
