//! Every request is answered once, every buffer comes back, and the counters say what happened.

use forebay_engine::event::Command;
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;
use forebay_engine::status::{BypassReason, SetCounters, VolumeCounters};

use crate::harness::{BLOCK, Setup, World};
use crate::modes::ALL;

/// Some of everything, handed in before anything is completed. That nothing is answered twice is
/// checked by the harness.
fn burst(world: &mut World) -> Vec<u64> {
    let mut ids = Vec::new();
    for round in 0..8 {
        ids.push(world.hand_in_write(0, round * 3, 5, round));
        ids.push(world.write_sectors(0, round * 24 + 3, 7, round));
        ids.push(world.read(0, round * 2, 9));
        ids.push(world.hand_in_flush(0));
        ids.push(world.zero_bytes(0, round * 3 * BLOCK + 512, 9000 / 512 * 512));
        ids.push(world.discard(0, 40 + round, 3));
        ids.push(world.write_fua(0, 60 + round, 2, round));
        ids.push(world.prefetch(0, 50, 30));
    }
    world.poll();
    ids
}

#[test]
fn every_request_is_answered_once_in_every_mode() {
    for mode in ALL {
        let mut world = Setup::of(&[mode]).start();
        let ids = burst(&mut world);
        world.idle();
        assert_eq!(world.unanswered(), 0, "{mode:?}");
        assert!(ids.iter().all(|id| world.is_done(*id)), "{mode:?}");
        assert_eq!(world.buffers.held_count(), 0, "{mode:?}: a buffer is not released");
    }
}

#[test]
fn every_request_is_answered_when_operations_complete_in_reverse() {
    for mode in ALL {
        let mut world = Setup::of(&[mode]).start();
        let ids = burst(&mut world);
        while let Some(held) = world.held.last() {
            let id = held.id;
            world.complete(id);
        }
        world.idle();
        assert!(ids.iter().all(|id| world.is_done(*id)), "{mode:?}");
        assert_eq!(world.buffers.held_count(), 0, "{mode:?}: a buffer is not released");
    }
}

#[test]
fn every_request_is_answered_over_a_mode_switch_and_a_stop() {
    for mode in ALL {
        let mut world = Setup::of(&[CacheMode::Writeback]).start();
        let mut ids = burst(&mut world);
        world.set_mode(0, mode);
        ids.extend(burst(&mut world));
        let stop = world.command(Command::Stop);
        let late = world.read(0, 0, 1);
        world.idle();
        assert_eq!(world.unanswered(), 0, "{mode:?}");
        assert_eq!(world.result(late), Some(Err(RequestError::Shutdown)));
        assert_eq!(world.command_result(stop), Some(Ok(None)), "{mode:?}");
        assert!(world.held.is_empty() && ids.iter().all(|id| world.result(*id).is_some()));
        assert_eq!(world.buffers.held_count(), 0, "{mode:?}: a buffer is not released");
    }
}

#[test]
fn requests_that_come_during_recovery_wait_and_are_answered() {
    let mut world = Setup::of(&[CacheMode::Writeback]).format();
    world.begin_restart(&[]);
    let ids = burst(&mut world);
    assert!(ids.iter().all(|id| world.is_pending(*id)));
    world.idle();
    assert!(ids.iter().all(|id| world.is_done(*id)));
}

#[test]
fn requests_are_counted_by_kind() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    burst(&mut world);
    world.idle();
    let counters = world.counters(0);
    assert_eq!((counters.writes, counters.flushes), (24, 8));
    assert_eq!((counters.write_zeroes, counters.discards), (8, 8));
    assert_eq!((counters.fua_writes, counters.prefetches), (8, 8));
    assert_eq!(counters.write_bytes, 8 * (5 * BLOCK + 7 * 512 + 2 * BLOCK));
    assert_eq!(counters.errors, 0);
    let reads = counters.read_hits + counters.read_misses + counters.read_partial_hits;
    assert_eq!(reads, 8);
    assert_eq!(counters.read_hit_bytes + counters.read_miss_bytes, 8 * 9 * BLOCK);
    world.engine().0.reset_counters();
    assert_eq!(world.counters(0), VolumeCounters::default());
    assert_eq!(world.status().counters, SetCounters::default());
}

#[test]
fn what_goes_to_the_cache_device_is_counted_by_purpose() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.engine().0.reset_counters();
    world.write_now(0, 0, 10, 1);
    world.read_now(0, 100).expect("readable");
    world.flush_now(0);
    let counters = world.status().counters;
    assert_eq!(counters.records, 2);
    assert_eq!(counters.client_bytes, 10 * BLOCK);
    assert_eq!(counters.promoted_bytes, BLOCK);
    assert_eq!(counters.relocated_bytes, 0);
    assert_eq!(counters.metadata_bytes, 2 * BLOCK);
    assert_eq!(counters.cache_flushes, 1);
    assert_eq!(counters.cache_written_bytes(), 13 * BLOCK);
}

#[test]
fn each_reason_has_a_name_of_its_own() {
    let mut names: Vec<&str> = BypassReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), BypassReason::ALL.len());
}
