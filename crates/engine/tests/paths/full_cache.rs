//! A full cache is the normal state.

use std::collections::BTreeMap;

use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::status::BypassReason;

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, What, World, cache, origin};

#[test]
fn reclaim_keeps_dirty_data_and_drops_clean() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 15, 1);
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    for chunk in 0..200 {
        let read = world.read(0, 100 + chunk % 120 * 15, 15);
        world.idle_for(50);
        assert!(world.is_done(read));
    }
    assert!(world.status().counters.dropped_blocks > 0);
    assert_eq!(world.dirty(0), 15);
    assert_eq!(world.look(0, 0..15), [Content::Tag(1); 15]);
    world.kill(|_| Keep::Nothing);
    world.fails = None;
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..15), [Content::Tag(1); 15]);
}

/// The origin answers nothing: whatever is freed is freed by moving what is still dirty.
#[test]
fn work_that_overwrites_its_own_dirty_data_does_not_wait_for_the_origin() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let before = world.status();
    let log_blocks = u64::from(before.segments * before.segment_blocks);
    let mut newest = BTreeMap::new();
    for tag in 1..log_blocks / 2 * 3 {
        // One of 16 is written once: it stays alive where all around it is dead.
        let block = if tag % 16 == 0 { 1000 + tag / 16 } else { tag * 37 % 40 };
        let write = world.write(0, block, 1, tag);
        world.idle_except(0, origin::any(0));
        assert!(world.is_done(write), "write {tag}: {}", world.engine().0.describe_waiting());
        newest.insert(block, tag);
    }
    assert!(world.status().counters.relocated_bytes > 0);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    for (block, tag) in newest {
        assert_eq!(world.read_now(0, block), Ok(Content::Tag(tag)));
    }
}

/// The same with dirty blocks in some segments that the cache device does not return.
#[test]
fn segments_that_cannot_be_emptied_do_not_keep_the_others_waiting() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let log_blocks = u64::from(world.status().segments * world.status().segment_blocks);
    let mut bad_places = Vec::new();
    for tag in 1..log_blocks / 2 * 3 {
        // The first of each of three segments: not enough errors to call the device degraded.
        let is_cold = tag <= 96 && tag % 32 == 1;
        let block = match tag {
            _ if is_cold => 1000 + tag,
            _ if tag > 96 && tag % 16 == 0 => 500 + tag / 16,
            _ => tag * 37 % 40,
        };
        let write = world.write(0, block, 1, tag);
        world.idle_except(0, origin::any(0));
        assert!(world.is_done(write), "write {tag}: {}", world.engine().0.describe_waiting());
        if is_cold {
            bad_places.push(world.place_of(block));
            let places = bad_places.clone();
            world.fails = Some(Box::new(move |held| {
                let is_bad = places.iter().any(|place| held.overlaps(*place, BLOCK));
                (cache::read(held) && is_bad).then_some(IoError::Media)
            }));
        }
    }
    assert_eq!(bad_places.len(), 3);
    world.fails = None;
    for tag in (1..=96).filter(|tag| tag % 32 == 1) {
        assert_eq!(world.read_now(0, 1000 + tag), Ok(Content::Tag(tag)), "it is still dirty");
    }
}

/// Each segment has a dirty block that the device does not return, and the origin takes nothing.
/// They are tried again now and then, and not all the time.
#[test]
fn segments_that_cannot_be_emptied_are_not_tried_all_the_time() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let (mut ids, mut bad) = (Vec::new(), Vec::new());
    while ids.iter().all(|id| world.is_done(*id)) {
        let cold = 1000 + bad.len() as u64;
        ids.push(world.write(0, cold, 1, 7));
        world.idle_except(0, origin::any(0));
        if world.is_done(ids[ids.len() - 1]) {
            bad.push(world.place_of(cold));
        }
        let places = bad.clone();
        world.fails = Some(Box::new(move |held| {
            let is_bad = places.iter().any(|place| held.overlaps(*place, BLOCK));
            (cache::read(held) && is_bad || origin::write(0)(held)).then_some(IoError::Media)
        }));
        ids.extend((0..3).map(|part| world.write(0, part * 15, 15, 1)));
        world.idle_except(0, origin::any(0));
    }
    world.idle_for(10_000);
    let mark = world.mark();
    world.idle_for(10_000);
    let is_read = |device: &Device, what: &What| *device == Device::Cache && *what == What::Read;
    let reads = world.count_since(mark, is_read);
    assert!((1..1_000).contains(&reads), "{reads} in ten seconds");
    world.fails = None;
    world.idle();
    assert!(!ids.iter().any(|id| world.is_pending(*id)));
    assert_eq!(world.look(0, 1000..1003), [Content::Tag(7); 3]);
}

#[test]
fn blocks_that_were_hit_stay_longer_than_those_that_were_not() {
    let mut world = Setup::of(&[CacheMode::Writearound]).start();
    for chunk in 0..300 {
        let reads = [world.read(0, 0, 8), world.read(0, 20 + chunk % 120 * 15, 15)];
        world.finish(&reads);
    }
    let counters = world.counters(0);
    assert!(counters.read_hits > 280, "{} hits", counters.read_hits);
    assert!(world.status().counters.relocated_bytes > 0);
}

#[test]
fn promotions_leave_room_for_writes_and_say_so() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    for chunk in 0..128 {
        world.write(0, chunk * 16, 16, chunk);
    }
    world.idle_for(100);
    let missing = (0..2048).find(|block| {
        let state = world.state(0, *block);
        state == forebay_engine::status::BlockState::NotCached
    });
    let missing = missing.expect("not all of it fits");
    let read = world.read(0, missing, 1);
    world.settle();
    assert!(world.is_done(read));
    let refused =
        world.bypassed(0, BypassReason::NoRoom) + world.bypassed(0, BypassReason::Overwritten);
    assert_eq!(refused, 1);
}

/// Writes until one has to wait for room; returns all of them, that one last.
fn write_until_full(world: &mut World, tag: u64) -> Vec<u64> {
    let mut ids = Vec::new();
    for chunk in 0..125 {
        ids.push(world.write(0, chunk * 16, 16, tag));
        world.settle_except(origin::any(0));
        if world.is_pending(ids[ids.len() - 1]) {
            return ids;
        }
    }
    panic!("the origin is larger than the cache");
}

/// Room that becomes free while a write waits for its blocks is not given to those that came later.
#[test]
fn a_write_that_waited_for_room_keeps_it_while_it_waits_for_its_lock() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.marks = (94, 95);
    let mut world = setup.start();
    let full = write_until_full(&mut world, 1);
    let patient = world.write(0, 2000, 1, 2);
    let part = world.write_sectors(0, 2000 * 8, 1, 3);
    // Writeback makes room; the lock stays with the part, whose old block is on its way.
    world.idle_except(50, origin::read(0));
    assert!(full.iter().all(|id| world.is_done(*id)));
    assert!(world.is_pending(patient) && world.is_pending(part));
    write_until_full(&mut world, 4);
    let old = world.the(origin::read(0));
    world.complete(old);
    world.settle_except(origin::any(0));
    assert!(world.is_done(patient), "{}", world.engine().0.describe_waiting());
    world.finish(&[part]);
    assert_ne!(world.read_now(0, 2000), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_long_mixture_with_crashes_loses_nothing() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 20;
    let mut world = setup.start();
    let mut content: BTreeMap<u64, Content> = BTreeMap::new();
    let mut state = 1u64;
    for step in 0..600 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let (block, count) = ((state >> 33) % 2000, 1 + (state >> 50) % 16);
        match state >> 60 {
            0..=9 => {
                world.write_now(0, block, count, step);
                content.extend((block..block + count).map(|at| (at, Content::Tag(step))));
            }
            10 | 11 => {
                let zero = world.zero(0, block, count);
                world.finish(&[zero]);
                content.extend((block..block + count).map(|at| (at, Content::Zeroes)));
            }
            _ => compare(&mut world, &content, block, count),
        }
        world.idle_for(30);
        if step % 60 == 59 {
            world.kill(|_| Keep::Nothing);
            world.restart().expect("nothing is damaged");
        }
    }
    compare(&mut world, &content, 0, 2048);
    world.clean(0);
    for block in 0..2048 {
        let expected = content.get(&block).copied().unwrap_or(Content::Tag(ORIGINAL));
        assert_eq!(world.on_origin(0, block), expected, "block {block}");
    }
}

fn compare(world: &mut World, content: &BTreeMap<u64, Content>, block: u64, count: u64) {
    for at in block..block + count {
        let expected = content.get(&at).copied().unwrap_or(Content::Tag(ORIGINAL));
        assert_eq!(world.read_now(0, at), Ok(expected), "block {at}");
    }
}
