//! Reads: hits, misses, partial hits, joined misses, promotion and what cancels it.

use forebay_engine::event::Command;
use forebay_engine::io::IoError;
use forebay_engine::options::{CacheMode, SetSettings};
use forebay_engine::request::{RequestError, Served};
use forebay_engine::status::BypassReason;

use crate::harness::{
    BLOCK, Content, Keep, ORIGINAL, Setup, What, World, cache, content_of, origin,
};

fn writeback() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

#[test]
fn a_miss_is_promoted_and_then_a_hit() {
    let mut world = writeback();
    let miss = world.read(0, 3, 2);
    world.finish(&[miss]);
    assert_eq!(world.seen(miss, 0, 3), Content::Tag(ORIGINAL));
    assert_eq!(world.reply(miss).expect("answered").served, Served::Origin);
    let mark = world.mark();
    let hit = world.read(0, 3, 2);
    world.finish(&[hit]);
    assert_eq!(world.seen(hit, 0, 3), Content::Tag(ORIGINAL));
    assert_eq!(world.reply(hit).expect("answered").served, Served::Cache);
    assert_eq!(world.origin_ios_since(mark), 0);
    let counters = world.counters(0);
    assert_eq!((counters.read_misses, counters.read_hits), (1, 1));
    assert_eq!((counters.read_miss_bytes, counters.read_hit_bytes), (2 * BLOCK, 2 * BLOCK));
    assert_eq!(counters.promoted_blocks, 2);
}

#[test]
fn a_miss_is_answered_before_its_copy_is_written() {
    let mut world = writeback();
    let read = world.read(0, 3, 1);
    world.settle_except(cache::record);
    assert!(world.is_done(read));
    world.the(cache::record);
}

#[test]
fn a_partial_hit_reads_only_what_is_missing() {
    let mut world = writeback();
    world.write_now(0, 4, 2, 1);
    let read = world.read(0, 2, 6);
    let misses = world.find(origin::read(0));
    let bytes: u64 =
        world.held.iter().filter(|held| misses.contains(&held.id)).map(|held| held.length).sum();
    assert_eq!(bytes, 4 * BLOCK);
    world.finish(&[read]);
    let delivered = world.delivered(read);
    assert_eq!(content_of(&delivered[..8192], 0, 16), Content::Tag(ORIGINAL));
    assert_eq!(content_of(&delivered[8192..16384], 0, 32), Content::Tag(1));
    assert_eq!(content_of(&delivered[16384..], 0, 48), Content::Tag(ORIGINAL));
    let counters = world.counters(0);
    assert_eq!(counters.read_partial_hits, 1);
    assert_eq!((counters.read_hit_bytes, counters.read_miss_bytes), (2 * BLOCK, 4 * BLOCK));
}

#[test]
fn several_reads_of_a_missing_block_share_one_origin_read() {
    let mut world = writeback();
    let reads = [world.read(0, 0, 4), world.read(0, 1, 2), world.read(0, 3, 3)];
    let ios = world.find(origin::read(0));
    assert_eq!(ios.len(), 2, "the third needs two blocks of its own");
    world.finish(&reads);
    for (read, block) in reads.into_iter().zip([0, 1, 3]) {
        assert_eq!(world.seen(read, 0, block), Content::Tag(ORIGINAL));
    }
    assert_eq!(world.counters(0).coalesced_misses, 2);
    assert_eq!(world.counters(0).promoted_blocks, 6);
}

#[test]
fn all_who_share_a_failed_origin_read_get_the_error() {
    let mut world = writeback();
    let reads = [world.read(0, 0, 4), world.read(0, 1, 2)];
    world.fails = Some(Box::new(|held| origin::read(0)(held).then_some(IoError::Media)));
    world.settle();
    for read in reads {
        assert_eq!(world.result(read), Some(Err(RequestError::Io)));
    }
    assert_eq!(world.counters(0).errors, 2);
    world.fails = None;
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(ORIGINAL)), "nothing bad was promoted");
}

#[test]
fn a_write_cancels_the_promotion_of_what_it_touches() {
    let mut world = writeback();
    let read = world.read(0, 0, 4);
    let write = world.write(0, 2, 1, 1);
    world.finish(&[read, write]);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::Overwritten), 4);
    assert_eq!(world.read_now(0, 2), Ok(Content::Tag(1)));
}

#[test]
fn a_long_stream_is_not_promoted_and_counted() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.sequential_cutoff_bytes = 64 * BLOCK;
    let mut world = setup.start();
    for part in 0..16 {
        let read = world.read(0, part * 8, 8);
        world.finish(&[read]);
    }
    assert_eq!(world.counters(0).promoted_blocks, 64);
    assert_eq!(world.bypassed(0, BypassReason::Sequential), 64);
    let mark = world.mark();
    world.read_now(0, 5).expect("readable");
    assert_eq!(world.origin_ios_since(mark), 0, "what is resident is served from the cache");
}

#[test]
fn a_stream_in_between_others_is_still_a_stream() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.sequential_cutoff_bytes = 32 * BLOCK;
    let mut world = setup.start();
    for part in 0..8 {
        let reads = [world.read(0, part * 8, 8), world.read(0, 1000 + part * 24, 1)];
        world.finish(&reads);
    }
    assert_eq!(world.bypassed(0, BypassReason::Sequential), 32);
    assert_eq!(world.counters(0).promoted_blocks, 32 + 8);
}

#[test]
fn memory_max_stops_promotion_and_fails_no_request() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.memory_max_bytes = 1;
    let mut world = setup.start();
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(ORIGINAL)));
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::Memory), 1);
    world.write_now(0, 0, 4, 1);
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)), "dirty entries always fit");
}

#[test]
fn a_lower_memory_bound_drops_clean_data_and_brings_dirty_data_home() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 40;
    let mut world = setup.start();
    for part in 0..112 {
        world.write_now(0, part * 16, 16, 1);
    }
    let before = world.status();
    let memory_max_bytes = before.memory_floor_bytes + 2048;
    assert!(before.memory_bytes > memory_max_bytes + 1024);
    let settings = SetSettings { memory_max_bytes, ..SetSettings::default() };
    world.command_now(Command::SetCacheSet { settings }).expect("durable");
    world.idle();
    let after = world.status();
    assert!(after.memory_bytes <= memory_max_bytes, "{after:?}");
    assert_eq!(world.look(0, 0..112 * 16), vec![Content::Tag(1); 112 * 16]);
    assert!(world.status().memory_bytes <= memory_max_bytes, "what was read is not promoted");
}

#[test]
fn a_prefetch_brings_in_what_is_missing_and_delivers_nothing() {
    let mut world = writeback();
    world.write_now(0, 4, 1, 1);
    let prefetch = world.prefetch(0, 0, 8);
    world.finish(&[prefetch]);
    assert_eq!(world.counters(0).promoted_blocks, 7);
    let mark = world.mark();
    let seen = world.look(0, 3..6);
    assert_eq!(seen, [ORIGINAL, 1, ORIGINAL].map(Content::Tag));
    assert_eq!(world.origin_ios_since(mark), 0);
}

#[test]
fn a_prefetch_without_memory_of_the_host_is_left_out_and_counted() {
    let mut world = writeback();
    world.write_now(0, 4, 1, 1);
    world.buffers.refuses = true;
    let prefetch = world.prefetch(0, 0, 8);
    world.finish(&[prefetch]);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::Memory), 7);
}

#[test]
fn a_read_without_memory_of_the_host_goes_on_later() {
    let mut world = writeback();
    world.write_now(0, 0, 1, 1);
    world.buffers.refuses = true;
    let part = world.write_sectors(0, 0, 1, 2);
    world.settle();
    assert!(world.is_pending(part), "a merge needs a buffer");
    world.buffers.refuses = false;
    world.idle_for(100);
    assert!(world.is_done(part));
}

/// Each block of each read would otherwise be asked for again, to be told the same.
#[test]
fn what_fails_because_the_cache_device_is_gone_is_not_read_again() {
    let mut world = writeback();
    world.write_now(0, 0, 8, 1);
    let reads = [world.read(0, 0, 8), world.read(0, 0, 4)];
    let under_way = world.find(cache::read);
    assert_eq!(under_way.len(), reads.len());
    let mark = world.mark();
    for io in under_way {
        world.fail(io, IoError::Gone, Keep::Nothing);
    }
    world.settle();
    assert!(world.is_cache_failed());
    assert_eq!(world.count_since(mark, |_, what| *what == What::Read), 0);
    world.idle_for(60_000);
    for id in reads {
        assert_eq!(world.result(id), Some(Err(RequestError::Io)), "the origin has older data");
    }
}

/// Each time that the cache device fails to return a block, it has been written anew meanwhile.
#[test]
fn a_read_of_a_block_that_moves_again_and_again_ends() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 7, 1, 1);
    let read = world.read(0, 7, 1);
    let mut tag = 1;
    while world.is_pending(read) {
        let held = world.the(cache::read);
        tag += 1;
        let write = world.write(0, 7, 1, tag);
        world.settle_except(cache::read);
        assert!(world.is_done(write));
        world.fail(held, IoError::Media, Keep::Nothing);
        assert!(tag < 100, "it gives up at last");
    }
    assert!(tag > 3, "it was looked up again");
    assert_eq!(world.result(read), Some(Err(RequestError::Io)));
    assert_eq!(world.counters(0).poisoned_blocks, 0);
    assert_eq!(world.read_now(0, 7), Ok(Content::Tag(tag)), "nothing is lost");
}
