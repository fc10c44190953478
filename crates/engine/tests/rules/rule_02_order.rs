//! Rule 2: order within a segment, failed writes, and what durable means.

use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;

use crate::harness::{BLOCK, Content, Keep, Setup, World, cache};

fn writeback() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

#[test]
fn a_write_is_answered_only_when_the_earlier_records_of_its_segment_are_complete() {
    let mut world = writeback();
    let (first, second) = (world.write(0, 0, 1, 1), world.write(0, 1, 1, 2));
    let records = world.find(cache::record);
    assert_eq!(records.len(), 2);
    world.complete(records[1]);
    assert!(world.is_pending(second), "a crash now would lose it behind the gap");
    world.complete(records[0]);
    assert!(world.is_done(first) && world.is_done(second));
}

#[test]
fn what_was_answered_survives_a_kill_that_loses_all_that_was_not() {
    let mut world = writeback();
    let ids: Vec<u64> = (0..4).map(|block| world.write(0, block, 1, 10 + block)).collect();
    let records = world.find(cache::record);
    for index in [2, 0, 3] {
        world.complete(records[index]);
    }
    let answered: Vec<bool> = ids.iter().map(|id| world.is_done(*id)).collect();
    assert_eq!(answered, [true, false, false, false]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("a gap that was not durable is no damage");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(10)));
}

#[test]
fn a_failed_record_and_its_followers_are_written_again_and_name_their_old_numbers() {
    let mut world = writeback();
    let (first, second) = (world.write(0, 0, 1, 1), world.write(0, 1, 1, 2));
    let records = world.find(cache::record);
    let mark = world.mark();
    // It failed and landed all the same.
    world.fail(records[0], IoError::Media, Keep::All);
    assert!(world.is_pending(first));
    world.complete(records[1]);
    assert!(world.is_pending(first) && world.is_pending(second), "the segment ends before them");
    let replaced: Vec<Vec<u64>> = world
        .records_since(mark)
        .map(|header| header.replaces.iter().map(|sequence| sequence.0).collect())
        .collect();
    assert_eq!(replaced, [[1], [2]]);
    world.finish(&[first, second]);
    // A flush, and a header that says so: the old numbers count as found.
    world.flush_now(0);
    world.write_now(0, 2, 1, 3);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("no number is missing");
    assert_eq!(world.look(0, 0..3), [1, 2, 3].map(Content::Tag));
}

#[test]
fn a_write_over_a_failed_record_that_landed_wins_after_a_crash() {
    let mut world = writeback();
    let first = world.write(0, 0, 1, 1);
    let record = world.the(cache::record);
    world.fail(record, IoError::Media, Keep::All);
    world.finish(&[first]);
    world.write_now(0, 0, 1, 2);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

/// A record of zeroes has no payload. Behind its header are the blocks of others, and at a distance
/// that is the number of a block within the zeroes may be the newer copy of just that block.
#[test]
fn zeroes_that_are_written_again_take_no_newer_copy_along() {
    let mut world = writeback();
    let offset = |world: &World, record| {
        world.held.iter().find(|held| held.id == record).expect("it is under way").offset / BLOCK
    };
    let (zero, follower) = (world.zero(0, 0, 200), world.write(0, 300, 1, 1));
    let records = world.find(cache::record);
    let header = offset(&world, records[0]);
    world.fail(records[0], IoError::Media, Keep::Nothing);
    // In the next segment, since this one is sealed. Its follower is still under way in the old.
    let probe = world.write(0, 301, 1, 2);
    let record = world.the(cache::record_of(301));
    // Header and payload of the probe, and the next header.
    let position = offset(&world, record) + 3;
    let block = position - header;
    let newer = world.write(0, block, 1, 3);
    let record = world.the(cache::record_of(block));
    assert_eq!(offset(&world, record) + 1, position);
    world.complete(records[1]);
    world.finish(&[zero, follower, probe, newer]);
    let expected = [Content::Zeroes, Content::Tag(3), Content::Zeroes];
    assert_eq!(world.look(0, block - 1..block + 2), expected);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, block - 1..block + 2), expected);
    world.clean(0);
    assert_eq!(world.on_origin(0, block), Content::Tag(3));
}

#[test]
fn a_flush_under_way_does_not_count_for_what_completes_behind_it() {
    let mut world = writeback();
    world.write_now(0, 0, 1, 1);
    let early = world.flush(0);
    let under_way = world.the(cache::flush);
    let write = world.write(0, 1, 1, 2);
    let record = world.the(cache::record);
    world.complete(record);
    assert!(world.is_done(write));
    let late = world.flush(0);
    world.complete(under_way);
    assert!(world.is_done(early));
    assert!(world.is_pending(late), "the flush began before the write completed");
    world.finish(&[late]);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
}

#[test]
fn fua_waits_for_a_flush_that_begins_after_its_record_is_complete() {
    let mut world = writeback();
    let plain = world.write(0, 0, 1, 1);
    let fua = world.write_fua(0, 1, 1, 2);
    assert_eq!(world.find(cache::flush), [], "nothing is complete yet");
    let records = world.find(cache::record);
    world.complete(records[1]);
    assert_eq!(world.find(cache::flush), [], "the record before it is under way");
    world.complete(records[0]);
    assert!(world.is_done(plain) && world.is_pending(fua));
    let flush = world.the(cache::flush);
    world.complete(flush);
    assert!(world.is_done(fua));
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..2), [1, 2].map(Content::Tag));
}

#[test]
fn a_checkpoint_whose_cut_has_a_failed_record_is_cut_again() {
    let mut world = writeback();
    let read = world.read(0, 7, 1);
    world.settle_except(cache::record);
    assert!(world.is_done(read), "a promotion happens behind the answer");
    let drain = world.drain(0);
    world.settle_except(cache::record);
    assert_eq!(world.command_result(drain), None, "the cut waits for the promotion");
    let record = world.the(cache::record);
    world.fail(record, IoError::Media, Keep::Nothing);
    world.settle();
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
    world.cut_power(|_, _| false);
    world.restart().expect("the checkpoint counts on nothing that is not there");
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(crate::harness::ORIGINAL)));
}
