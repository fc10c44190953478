//! Rule 6: when a checkpoint is what it says, and when a segment may be used again. That no segment
//! is used before a durable checkpoint has it free is checked by the harness in every test.

use forebay_engine::options::CacheMode;

use crate::harness::{BLOCK, Content, Held, Keep, Setup, World, cache};

fn writeback() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

/// A volume without dirty data that is told to drain: all that is left to do is a checkpoint.
fn until_checkpoint(world: &mut World, keeps: impl Fn(&Held) -> bool) -> u64 {
    let drain = world.drain(0);
    world.settle_except(keeps);
    drain
}

#[test]
fn the_body_waits_for_the_records_of_the_cut_and_a_flush_behind_them() {
    let mut world = writeback();
    world.read(0, 0, 1);
    world.settle_except(cache::record);
    let drain = until_checkpoint(&mut world, cache::record);
    assert_eq!(world.find(cache::checkpoint), [], "a record of the cut is under way");
    let record = world.the(cache::record);
    world.complete(record);
    assert_eq!(world.find(cache::checkpoint), [], "the record may still be lost");
    let flush = world.the(cache::flush);
    world.complete(flush);
    let body = world.the(cache::checkpoint);
    world.complete(body);
    assert_eq!(world.command_result(drain), None, "the body may still be lost");
    let flush = world.the(cache::flush);
    world.complete(flush);
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
}

#[test]
fn the_body_goes_where_the_last_checkpoint_is_not() {
    let mut world = writeback();
    for round in 0..4 {
        // The older one has to survive the newer one's being written.
        let last = world.durable_checkpoint().expect("one is durable").id;
        world.write_now(0, 0, 1, round);
        until_checkpoint(&mut world, cache::checkpoint);
        let body = world.the(cache::checkpoint);
        let offset = world.held.iter().find(|held| held.id == body).expect("held").offset;
        world.kill(|_| Keep::Nothing);
        // As if it had landed in part.
        world.cache.rot(offset, BLOCK);
        let found = world.durable_checkpoint().expect("a torn body leaves the other one whole");
        assert_eq!(found.id, last);
        world.restart().expect("the other area is whole");
        assert_eq!(world.read_now(0, 0), Ok(Content::Tag(round)));
        world.switch(0, CacheMode::Writeback);
    }
}

/// Writes through the whole cache, again and again.
fn churn(world: &mut World, chunks: u64, keeps: impl Fn(&Held) -> bool) {
    for chunk in 0..chunks {
        let write = world.write(0, 100 + chunk % 120 * 15, 15, chunk);
        world.idle_except(2_000, &keeps);
        assert!(world.is_done(write), "{}", world.engine().0.describe_waiting());
    }
}

#[test]
fn a_segment_with_a_reader_in_it_is_not_used_again() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    world.write_now(0, 0, 1, 1);
    world.idle();
    let read = world.read(0, 0, 1);
    let under_way = world.the(cache::read);
    churn(&mut world, 240, |held| held.id == under_way);
    let reclaimed = world.status().counters.reclaimed_segments;
    assert!(reclaimed > 24, "the others go round: {reclaimed}");
    assert!(world.is_pending(read));
    world.finish(&[read]);
    assert_eq!(world.seen(read, 0, 0), Content::Tag(1));
}

#[test]
fn a_segment_is_not_used_again_before_its_trim_has_ended() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    let mut pending = Vec::new();
    for chunk in 0..120 {
        pending.push((chunk, world.write(0, 100 + chunk * 15, 15, chunk)));
        world.idle_except(2_000, cache::discard);
    }
    assert!(pending.iter().any(|(_, id)| world.is_pending(*id)), "space is short without TRIM");
    world.idle();
    for (chunk, id) in pending {
        assert!(world.is_done(id));
        assert_eq!(world.read_now(0, 100 + chunk * 15), Ok(Content::Tag(chunk)));
    }
}

#[test]
fn reuse_survives_a_power_cut_at_any_checkpoint() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    let mut content = std::collections::BTreeMap::new();
    for round in 0..6 {
        for chunk in 0..40 {
            let (block, tag) = (100 + (round * 40 + chunk) % 120 * 15, round * 1000 + chunk);
            world.write_now(0, block, 15, tag);
            content.insert(block, tag);
            world.idle_for(1_500);
        }
        world.flush_now(0);
        world.cut_power(|_, write| (write.offset / BLOCK).is_multiple_of(2));
        world.restart().expect("nothing is damaged");
        for (block, tag) in &content {
            assert_eq!(world.read_now(0, *block), Ok(Content::Tag(*tag)), "block {block}");
        }
    }
}

/// The drop has a number that the checkpoint counts as complete, so recovery will not look at it:
/// the checkpoint itself must say that nothing of the segment counts.
#[test]
fn a_checkpoint_cut_between_a_drop_and_its_end_says_that_the_segment_is_gone() {
    let mut world = Setup::of(&[CacheMode::Writearound, CacheMode::Writearound]).start();
    world.read_until_drop(0);
    // Another volume's command asks for a checkpoint: it is cut here.
    world.drain(1);
    world.settle_except(cache::drop_record);
    let dropped = world.the(cache::drop_record);
    world.complete(dropped);
    world.settle_except(cache::checkpoint);
    world.the(cache::checkpoint);
    // The index has forgotten block 20, so this goes around the log at once. (What is changed in
    // the first blocks would be noticed at the start.)
    let write = world.write(0, 20, 1, 7);
    world.settle_except(cache::checkpoint);
    assert!(world.is_done(write));
    let flush = world.flush(0);
    world.settle_except(cache::checkpoint);
    assert!(world.is_done(flush));
    // Durable, and nothing behind it.
    let first = world.the(cache::checkpoint);
    world.complete(first);
    world.settle_except(cache::checkpoint);
    world.kill(|_| Keep::Nothing);
    world.cut_power(|_, _| false);
    // Before the next round of reclaim would drop it anew.
    world.begin_restart(&[]);
    world.idle_except(1_000, cache::drop_record);
    let read = world.read(0, 20, 1);
    world.settle_except(cache::drop_record);
    assert_eq!(world.seen(read, 0, 20), Content::Tag(7));
}
