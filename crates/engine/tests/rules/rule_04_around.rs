//! Rule 4: the log never claims a clean copy that the origin may have outrun.

use forebay_engine::options::CacheMode;
use forebay_engine::request::Served;
use forebay_engine::status::BypassReason;

use crate::harness::{Content, Keep, ORIGINAL, Setup, World, cache, origin};

fn writearound() -> World {
    Setup::of(&[CacheMode::Writearound]).start()
}

#[test]
fn a_write_around_a_clean_copy_waits_until_the_invalidation_is_durable() {
    let mut world = writearound();
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(ORIGINAL)));
    let write = world.write(0, 3, 1, 1);
    world.origin_waits_for(0, cache::invalidation);
    let to_origin = world.the(origin::write(0));
    assert!(world.is_pending(write));
    world.complete(to_origin);
    assert!(world.is_done(write));
    world.cut_power(|device, _| device != forebay_engine::io::Device::Cache);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(1)));
}

#[test]
fn a_promotion_under_way_is_a_copy_too() {
    let mut world = writearound();
    let read = world.read(0, 3, 1);
    world.settle_except(cache::record);
    assert!(world.is_done(read));
    let write = world.write(0, 3, 1, 1);
    assert_eq!(world.find(origin::write(0)), [], "the promotion may land in any moment");
    let promotion = world.the(cache::record_of(3));
    world.settle_except(|held| held.id == promotion);
    // Whatever came first, a crash in which the promotion lands shows the origin's content.
    let was_answered = world.is_done(write);
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    let answered = was_answered.then_some(Content::Tag(1));
    world.assert_agrees_with_origin((0, 3), answered, "the promotion landed");
}

#[test]
fn a_write_around_no_copy_waits_for_nothing() {
    let mut world = writearound();
    let mark = world.mark();
    let write = world.write(0, 3, 1, 1);
    let to_origin = world.the(origin::write(0));
    world.complete(to_origin);
    assert!(world.is_done(write));
    assert_eq!(world.records_since(mark).count(), 0);
    assert_eq!(world.bypassed(0, BypassReason::Mode), 1);
}

#[test]
fn what_was_written_around_is_not_promoted_before_a_flush_of_the_origin() {
    let mut world = writearound();
    world.write_now(0, 3, 1, 1);
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(1)));
    assert_eq!(world.bypassed(0, BypassReason::OriginNotFlushed), 1);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    // The power goes: the origin may fall back, and the cache agrees with whatever it shows.
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_flush_of_the_origin_lets_it_be_promoted() {
    let mut world = writearound();
    world.write_now(0, 3, 1, 1);
    world.flush_now(0);
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(1)));
    assert_eq!(world.counters(0).promoted_blocks, 1);
    let read = world.read(0, 3, 1);
    world.settle();
    assert_eq!(world.reply(read).expect("answered").served, Served::Cache);
}

#[test]
fn a_flush_that_began_before_the_write_completed_does_not_count() {
    let mut world = writearound();
    let write = world.write(0, 3, 1, 1);
    let to_origin = world.the(origin::write(0));
    let flush = world.flush(0);
    let under_way = world.the(origin::flush(0));
    world.complete(to_origin);
    assert!(world.is_done(write));
    world.complete(under_way);
    world.finish(&[flush]);
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(1)));
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::OriginNotFlushed), 1);
}

#[test]
fn an_invalidation_outlives_the_mark_of_an_earlier_one_of_the_same_block() {
    let mut world = writearound();
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(ORIGINAL)));
    // An older record that is not complete: the first invalidation is not forgotten before it is.
    let other = world.read(0, 40, 1);
    world.settle_except(cache::record);
    assert!(world.is_done(other));
    let older = world.the(cache::record_of(40));
    let first = world.write(0, 3, 1, 1);
    world.settle_except(|held| held.id == older);
    assert!(world.is_done(first));
    let flush = world.flush(0);
    world.settle_except(|held| held.id == older);
    assert!(world.is_done(flush));
    let read = world.read(0, 3, 1);
    world.settle_except(cache::record);
    assert!(world.is_done(read));
    let copy = world.the(cache::record_of(3));
    // The second one voids a copy that is under way.
    let second = world.write(0, 3, 1, 2);
    world.settle_except(|held| [older, copy].contains(&held.id));
    world.complete(older);
    world.settle_except(|held| held.id == copy);
    let was_answered = world.is_done(second);
    world.complete(copy);
    world.settle();
    assert!(world.is_done(second));
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(2)), "answered before: {was_answered}");
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(2)));
}
