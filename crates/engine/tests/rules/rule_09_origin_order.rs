//! Rule 9: one order for each block. That no two writes of an origin overlap while they are under
//! way is checked by the harness in every test.

use forebay_engine::options::CacheMode;
use forebay_engine::request::Served;
use forebay_engine::status::BypassReason;

use crate::harness::{BLOCK, Content, ORIGINAL, Setup, World, cache, content_of, origin};

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

#[test]
fn a_write_cancels_the_promotion_of_a_miss_under_way() {
    let mut world = of(CacheMode::Writeback);
    let read = world.read(0, 0, 2);
    let miss = world.the(origin::read(0));
    let write = world.write(0, 0, 1, 1);
    world.settle_except(origin::read(0));
    assert!(world.is_done(write));
    assert_eq!(world.read_now_from_cache(0), Content::Tag(1));
    world.complete(miss);
    world.finish(&[read]);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::Overwritten), 2);
    assert_eq!(world.look(0, 0..2), [Content::Tag(1), Content::Tag(ORIGINAL)]);
}

#[test]
fn a_write_around_detaches_later_readers_from_a_miss_under_way() {
    let mut world = of(CacheMode::Writearound);
    world.read(0, 0, 1);
    let early = world.the(origin::read(0));
    let write = world.write(0, 0, 1, 1);
    let to_origin = world.the(origin::write(0));
    world.complete(to_origin);
    assert!(world.is_done(write));
    let late = world.read(0, 0, 1);
    assert_eq!(world.find(origin::read(0)).len(), 2, "it does not join the read from before");
    world.settle_except(|held| held.id == early);
    assert_eq!(world.seen(late, 0, 0), Content::Tag(1));
    world.settle();
    world.flush_now(0);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_miss_that_begins_while_a_write_is_in_the_log_is_neither_joined_nor_promoted() {
    let mut world = of(CacheMode::Writeback);
    let write = world.write(0, 0, 1, 1);
    let first = world.read(0, 0, 1);
    let second = world.read(0, 0, 1);
    assert_eq!(world.find(origin::read(0)).len(), 2);
    world.settle_except(cache::record);
    assert!(world.is_done(first) && world.is_done(second));
    assert_eq!(world.counters(0).coalesced_misses, 0);
    world.finish(&[write]);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_miss_that_begins_while_a_write_goes_around_is_neither_joined_nor_promoted() {
    let mut world = of(CacheMode::Writearound);
    let write = world.write(0, 0, 1, 1);
    world.read(0, 0, 1);
    world.read(0, 0, 1);
    assert_eq!(world.find(origin::read(0)).len(), 2);
    world.settle_except(origin::write(0));
    world.finish(&[write]);
    world.flush_now(0);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn writes_to_parts_of_one_block_do_not_undo_each_other() {
    for mode in [CacheMode::Writeback, CacheMode::Writethrough, CacheMode::Writearound] {
        let mut world = of(mode);
        let ids: Vec<u64> =
            (0..8).map(|sector| world.write_sectors(0, sector, 1, sector)).collect();
        world.finish(&ids);
        let read = world.read(0, 0, 1);
        world.finish(&[read]);
        let bytes = world.delivered(read).to_vec();
        for (sector, bytes) in (0..8).zip(bytes.chunks_exact(512)) {
            assert_eq!(content_of(bytes, 0, sector), Content::Tag(sector), "{mode:?}");
        }
    }
}

#[test]
fn a_whole_block_waits_for_a_merge_of_part_of_it() {
    let mut world = of(CacheMode::Writeback);
    let part = world.write_sectors(0, 3, 1, 1);
    let old = world.the(origin::read(0));
    let whole = world.write(0, 0, 1, 2);
    assert_eq!(world.find(cache::record), [], "appended now, the merge would hide it");
    world.complete(old);
    world.finish(&[part, whole]);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

#[test]
fn a_merge_waits_for_a_whole_block_under_way() {
    let mut world = of(CacheMode::Writeback);
    let whole = world.write(0, 0, 1, 2);
    let part = world.write_sectors(0, 3, 1, 1);
    assert_eq!(world.find(origin::read(0)), [], "the old content is not the origin's");
    world.finish(&[whole, part]);
    let read = world.read(0, 0, 1);
    world.finish(&[read]);
    let bytes = world.delivered(read).to_vec();
    assert_eq!(content_of(&bytes[..1536], 0, 0), Content::Tag(2));
    assert_eq!(content_of(&bytes[1536..2048], 0, 3), Content::Tag(1));
    assert_eq!(content_of(&bytes[2048..], 0, 4), Content::Tag(2));
}

#[test]
fn writeback_and_a_merge_exclude_each_other() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.drain(0);
    world.settle_except(origin::write(0));
    let home = world.the(origin::write(0));
    let part = world.write_sectors(0, 3, 1, 2);
    world.settle_except(|held| held.id == home);
    assert!(world.is_pending(part));
    world.idle();
    assert!(world.is_done(part));
    let bytes = world.origins[0].range(0, BLOCK).to_vec();
    assert_eq!(content_of(&bytes[1536..2048], 0, 3), Content::Tag(2));
    assert_eq!(content_of(&bytes[2048..], 0, 4), Content::Tag(1));
}

#[test]
fn overlapping_writes_reach_the_origin_in_the_order_of_their_versions() {
    for mode in [CacheMode::Writethrough, CacheMode::Writearound, CacheMode::Passthrough] {
        let mut world = of(mode);
        let ids = [world.write(0, 0, 4, 1), world.write(0, 2, 4, 2), world.write(0, 3, 1, 3)];
        while let Some(held) = world.held.last() {
            let id = held.id;
            world.complete(id);
        }
        world.finish(&ids);
        assert_eq!(world.look(0, 1..6), [1, 2, 3, 2, 2].map(Content::Tag), "{mode:?}");
        let on_origin: Vec<Content> = (1..6).map(|block| world.on_origin(0, block)).collect();
        assert_eq!(on_origin, [1, 2, 3, 2, 2].map(Content::Tag), "{mode:?}");
    }
}

#[test]
fn a_repair_does_not_undo_a_write_that_comes_while_it_reads() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.clean(0);
    let place = world.place_of(0);
    world.cache.rot(place, BLOCK);
    let read = world.read(0, 0, 1);
    world.settle_except(origin::read(0));
    let repair = world.the(origin::read(0));
    let write = world.write(0, 0, 1, 2);
    world.settle_except(|held| held.id == repair);
    world.finish(&[read, write]);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
    world.idle();
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(2)));
}

impl World {
    /// A read of the block that asks the cache device alone.
    fn read_now_from_cache(&mut self, block: u64) -> Content {
        let read = self.read(0, block, 1);
        self.settle_except(origin::read(0));
        assert_eq!(self.reply(read).expect("answered").served, Served::Cache);
        self.seen(read, 0, block)
    }
}
