//! Rule 8 tells damage from a torn tail by what later headers vouch for; after a pause a record
//! without entries vouches for the last ones.

use forebay_engine::error::RecoveryError;
use forebay_engine::format::record::RecordHeader;
use forebay_engine::options::CacheMode;

use crate::harness::{BLOCK, Content, Held, Keep, Setup, World, cache, origin};

const LONG_PAUSE_MS: u64 = 60_000;

fn start() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

fn idle_marks(world: &World, mark: usize) -> Vec<RecordHeader> {
    world.records_since(mark).filter(|header| header.entries.is_empty()).cloned().collect()
}

/// Dirty data stays: nothing but a mark is written in a pause.
fn pause(world: &mut World) {
    world.idle_except(LONG_PAUSE_MS, origin::any(0));
}

#[test]
fn after_a_pause_one_mark_vouches_for_what_was_written_last() {
    let mut world = start();
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    assert_eq!(idle_marks(&world, mark), []);
    pause(&mut world);
    let marks = idle_marks(&world, mark);
    assert_eq!(marks.len(), 1);
    let written = world.records_since(mark).next().expect("the write");
    assert_eq!(marks[0].durable_through, written.sequence);
    assert_eq!(world.cache_flushes_since(mark), 1, "before the mark, and none for the mark");
    assert_eq!(world.status().counters.idle_marks, 1);
    pause(&mut world);
    assert_eq!(idle_marks(&world, mark).len(), 1);
    world.write_now(0, 1, 1, 2);
    pause(&mut world);
    assert_eq!(idle_marks(&world, mark).len(), 2);
}

/// A promotion that was lost with the mark would be no loss; a write would.
#[test]
fn a_mark_stands_beside_promotions() {
    let mut world = start();
    world.read_now(0, 100).expect("readable");
    let promotion = world.records_since(0).next().expect("promoted").clone();
    world.write_now(0, 0, 1, 1);
    pause(&mut world);
    let marks = idle_marks(&world, 0);
    assert_eq!(marks.len(), 1);
    assert_eq!(marks[0].segment, promotion.segment);
}

#[test]
fn the_last_record_before_a_pause_is_missed_if_it_is_gone() {
    let mut world = start();
    world.write_now(0, 0, 1, 1);
    world.write_now(0, 0, 1, 2);
    pause(&mut world);
    let header = world.place_of(0) - BLOCK;
    world.kill(|_| Keep::Nothing);
    world.cache.damage(header, &[0; BLOCK as usize]);
    let error = world.restart().expect_err("it was answered and durable");
    assert!(matches!(error, RecoveryError::RecordMissing { .. }), "{error}");
}

/// The same without the pause: it looks like a write that was under way.
#[test]
fn without_a_pause_the_last_record_cannot_be_told_from_a_torn_tail() {
    let mut world = start();
    world.write_now(0, 0, 1, 1);
    world.write_now(0, 0, 1, 2);
    let header = world.place_of(0) - BLOCK;
    world.kill(|_| Keep::Nothing);
    world.cache.damage(header, &[0; BLOCK as usize]);
    world.restart().expect("a torn tail is no damage");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_mark_outlives_a_power_cut_or_says_nothing() {
    for survives in [false, true] {
        let mut world = start();
        world.write_now(0, 0, 1, 1);
        pause(&mut world);
        world.cut_power(|_, _| survives);
        world.restart().expect("nothing is damaged");
        assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)), "the pause flushed it");
    }
}

#[test]
fn a_mark_is_written_only_when_the_flush_has_ended() {
    let mut world = start();
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    let keeps = |held: &Held| cache::flush(held) || origin::any(0)(held);
    world.idle_except(LONG_PAUSE_MS, keeps);
    assert_eq!(idle_marks(&world, mark), []);
    world.complete(world.the(cache::flush));
    pause(&mut world);
    assert_eq!(idle_marks(&world, mark).len(), 1);
}

#[test]
fn a_write_during_the_flush_begins_another_pause() {
    let mut world = start();
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    let keeps = |held: &Held| cache::flush(held) || origin::any(0)(held);
    world.idle_except(LONG_PAUSE_MS, keeps);
    let flush = world.the(cache::flush);
    let write = world.write(0, 1, 1, 2);
    world.settle_except(keeps);
    assert!(world.is_done(write));
    world.complete(flush);
    world.settle_except(keeps);
    assert_eq!(idle_marks(&world, mark), []);
    pause(&mut world);
    let marks = idle_marks(&world, mark);
    assert_eq!(marks.len(), 1);
    let second = world.records_since(mark).filter(|header| !header.entries.is_empty()).nth(1);
    assert_eq!(marks[0].durable_through, second.expect("the second write").sequence);
}

#[test]
fn a_checkpoint_vouches_as_well() {
    let mut world = start();
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    let mark = world.mark();
    pause(&mut world);
    assert_eq!(idle_marks(&world, mark), []);
}

#[test]
fn a_mark_that_the_device_fails_to_write_is_written_elsewhere() {
    let mut world = start();
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    world.idle_except(LONG_PAUSE_MS, |held| cache::record(held) || origin::any(0)(held));
    world.fail(world.the(cache::record), forebay_engine::io::IoError::Media, Keep::Nothing);
    pause(&mut world);
    let marks = idle_marks(&world, mark);
    assert_eq!(marks.len(), 2);
    assert_eq!(marks[1].replaces, [marks[0].sequence]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is missing");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

/// Wherever the log ends: there is a mark, or there is no room and nothing is tried again and
/// again.
#[test]
fn a_pause_ends_in_silence_however_full_the_log_is() {
    let mut pauses_without_mark = 0;
    for block_count in 1..=15 {
        let mut world = start();
        for number in 0..100 {
            let write = world.write(0, number * 15, block_count, number);
            world.settle_except(origin::any(0));
            if !world.is_done(write) {
                break;
            }
            let mark = world.mark();
            pause(&mut world);
            pauses_without_mark += u32::from(idle_marks(&world, mark).is_empty());
            let quiet = world.mark();
            pause(&mut world);
            assert_eq!(world.records_since(quiet).count(), 0, "{block_count}, {number}");
        }
    }
    assert!(pauses_without_mark > 0, "a segment was full, and none was free");
}
