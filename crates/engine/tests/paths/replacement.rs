//! Which clean blocks stay in a full log.

use forebay_engine::event::Command;
use forebay_engine::options::{CacheMode, SetSettings};
use forebay_engine::policy::PolicyKind;
use forebay_engine::status::BlockState;

use crate::harness::{BLOCK, Setup, World};

/// Blocks of a request of a scan.
const READ: u64 = 32;
/// Blocks that are read again and again.
const HOT: u64 = 64;
/// Blocks that are read once between two rounds.
const ROUND: u64 = 320;

fn served(policy: PolicyKind) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.policy = policy;
    setup.origin_bytes = 8192 * BLOCK;
    setup.start()
}

fn read(world: &mut World, start: u64, block_count: u64) {
    for block in (start..start + block_count).step_by(READ as usize) {
        let read = world.read(0, block, READ);
        world.finish(&[read]);
        world.settle();
    }
}

/// Hot blocks that are still cached after rounds of them among others, and a scan at the end.
fn kept_beside_scans(world: &mut World) -> usize {
    let mut next = HOT;
    for _ in 0..8 {
        read(world, 0, HOT);
        read(world, next, ROUND);
        next += ROUND;
    }
    let blocks = 3 * world.log_blocks();
    read(world, next, blocks);
    (0..HOT).filter(|block| world.is_cached(0, *block)).count()
}

#[test]
fn what_is_used_again_and_again_outlasts_a_scan_under_the_default_policy_alone() {
    assert_eq!(kept_beside_scans(&mut served(PolicyKind::Clock2q)), HOT as usize);
    assert_eq!(kept_beside_scans(&mut served(PolicyKind::Lru)), 0);
    assert_eq!(kept_beside_scans(&mut served(PolicyKind::Fifo)), 0);
}

/// A quarter of the log is read in a circle, and beside it what is read once. Without a bound each
/// block that comes would cost two copies of those that are used.
#[test]
fn copies_of_what_is_kept_are_bounded() {
    let mut world = served(PolicyKind::Lru);
    let log_blocks = world.log_blocks();
    let circle = log_blocks / 4 / READ * READ;
    for number in 0..4 * log_blocks / READ {
        read(&mut world, circle + number * READ, READ);
        for step in [0, 1] {
            read(&mut world, (2 * number + step) * READ % circle, READ);
        }
    }
    let counters = world.status().counters;
    let most = counters.promoted_bytes / 2 + log_blocks / 16 * BLOCK;
    let relocated = counters.relocated_bytes;
    assert!(relocated > most * 3 / 4, "{relocated} of {most} bytes");
    assert!(relocated <= most, "{relocated} of {most} bytes");
}

#[test]
fn a_block_that_comes_back_soon_is_promoted_to_the_main_queue() {
    let mut world = served(PolicyKind::Clock2q);
    let log_blocks = world.log_blocks();
    read(&mut world, 0, READ);
    let mut next = READ;
    while world.is_cached(0, 0) {
        read(&mut world, next, READ);
        next += READ;
    }
    read(&mut world, 0, READ);
    // What is new is gone as soon as the small queue has had its turn; this is not, unused.
    let (first, before) = (next, world.status().counters.relocated_bytes);
    read(&mut world, next, log_blocks / 2);
    assert_eq!(world.state(0, first), BlockState::NotCached);
    assert_ne!(world.state(0, 0), BlockState::NotCached);
    assert_eq!(world.status().counters.relocated_bytes, before, "it took no copy");
}

#[test]
fn the_policy_can_be_changed_while_it_is_at_work() {
    let mut world = served(PolicyKind::Clock2q);
    let settings = SetSettings { policy: PolicyKind::Fifo, ..world.status().settings };
    assert_eq!(world.command_now(Command::SetCacheSet { settings }), Ok(None));
    assert_eq!(kept_beside_scans(&mut world), 0);
    assert_eq!(world.status().counters.relocated_bytes, 0);
    world.kill(|_| crate::harness::Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.status().settings.policy, PolicyKind::Fifo, "it is durable");
    let settings = SetSettings { policy: PolicyKind::Clock2q, ..world.status().settings };
    assert_eq!(world.command_now(Command::SetCacheSet { settings }), Ok(None));
    assert_eq!(kept_beside_scans(&mut world), HOT as usize);
}

/// Blocks that are read one by one come in records of their own, each with a header beside it.
/// Those that are kept are gathered.
#[test]
fn what_is_kept_shares_its_headers() {
    let mut world = served(PolicyKind::Lru);
    let hot: Vec<u64> = (0..HOT).map(|number| 4 * number).collect();
    let read_hot = |world: &mut World| {
        for block in &hot {
            let read = world.read(0, *block, 1);
            world.finish(&[read]);
        }
    };
    read_hot(&mut world);
    read_hot(&mut world);
    let before = world.status().counters;
    let mut next = 4 * HOT;
    while world.status().counters.relocated_bytes < HOT * BLOCK {
        read(&mut world, next, READ);
        next += READ;
    }
    let after = world.status().counters;
    let scanned = (next - 4 * HOT) / READ;
    let records = after.records - before.records;
    assert!(records < scanned + HOT / 2, "{records} records for {scanned} reads and {HOT} blocks");
}
