//! Pinned ranges and shares: what stays, what comes, and that nobody waits for it.

use forebay_engine::event::{Command, CommandError, PinChange};
use forebay_engine::format::superblock::KeepsTooMuch;
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::status::{AdmitReason, BlockState, BypassReason};
use forebay_engine::units::{OriginBlock, OriginExtent, VolumeSlot};

use crate::harness::{Content, Keep, Setup, What, World, origin};

/// Blocks that are pinned: a fifth of the log.
const PINNED: u64 = 512;
/// Blocks of the origins, which do not fit into the log.
const BLOCKS: u64 = 8192;

fn setup(modes: &[CacheMode]) -> Setup {
    let mut setup = Setup::of(modes);
    setup.segments = 40;
    setup.origin_bytes = BLOCKS * 4096;
    setup
}

fn change(slot: u16, start: u64, block_count: u64, change: PinChange) -> Command {
    let (volume, start) = (VolumeSlot(slot), OriginBlock(start));
    Command::Pin { extent: OriginExtent { volume, start, block_count }, change }
}

fn pin(world: &mut World, start: u64, block_count: u64) {
    let pinned = world.command_now(change(0, start, block_count, PinChange::Pin));
    assert_eq!(pinned, Ok(Some(VolumeSlot(0))));
}

/// Reads a part of a volume in pieces that make no stream.
fn read_part(world: &mut World, slot: u16, from: u64, to: u64) {
    let pieces = (to - from) / 16;
    for step in 0..pieces {
        let read = world.read(slot, from + step * 31 % pieces * 16, 16);
        world.finish(&[read]);
        world.settle();
    }
}

fn cached(world: &mut World, blocks: std::ops::Range<u64>) -> u64 {
    blocks.filter(|block| world.is_cached(0, *block)).count() as u64
}

#[test]
fn pinned_blocks_stay_while_all_others_go_and_are_not_copied_for_ever() {
    let mut world = setup(&[CacheMode::Writeback]).start();
    read_part(&mut world, 0, 0, 2 * PINNED);
    // Every other piece, so that pinned blocks and others share segments.
    for piece in (0..2 * PINNED).step_by(64) {
        pin(&mut world, piece, 32);
    }
    let is_pinned = |block: &u64| block % 64 < 32;
    let mut relocated_bytes = Vec::new();
    for _ in 0..4 {
        read_part(&mut world, 0, 2 * PINNED, BLOCKS);
        relocated_bytes.push(world.status().counters.relocated_bytes);
    }
    for block in 0..2 * PINNED {
        let state = world.state(0, block);
        let wanted = if is_pinned(&block) { BlockState::Clean } else { BlockState::NotCached };
        assert_eq!(state, wanted, "{block}");
    }
    let counters = world.counters(0);
    assert!(counters.pinned_kept_blocks >= PINNED, "{counters:?}");
    assert_eq!(counters.pinned_dropped_blocks, 0);
    assert_eq!(relocated_bytes[1], relocated_bytes[3], "{relocated_bytes:?}");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    read_part(&mut world, 0, 2 * PINNED, BLOCKS);
    assert_eq!((0..2 * PINNED).filter(|b| world.state(0, *b) == BlockState::Clean).count(), 512);
    let taken_back = change(0, 0, 2 * PINNED, PinChange::Unpin);
    world.command_now(taken_back).expect("it is served");
    let kept = world.counters(0).pinned_kept_blocks;
    read_part(&mut world, 0, 2 * PINNED, BLOCKS);
    assert_eq!(world.counters(0).pinned_kept_blocks, kept, "nothing is held any more");
}

#[test]
fn commands_for_ranges_end_as_others_do() {
    let mut world = setup(&[CacheMode::Writeback]).start();
    let most = world.status().kept_blocks_max;
    let mut fails = |command, error| {
        assert_eq!(world.command_now(command), Err(error));
    };
    fails(change(3, 0, 1, PinChange::Pin), CommandError::NoSuchVolume);
    fails(change(0, 0, 0, PinChange::Pin), CommandError::Invalid);
    fails(change(0, BLOCKS - 1, 2, PinChange::Unpin), CommandError::Invalid);
    fails(change(0, u64::MAX, u64::MAX, PinChange::Pin), CommandError::Invalid);
    let too_much = KeepsTooMuch { pinned_blocks: most + 1, share_blocks: 0, allowed_blocks: most };
    fails(change(0, 0, most + 1, PinChange::Pin), CommandError::KeepsTooMuch(too_much));
    pin(&mut world, 0, most);
    let mut settings = world.stored_superblock().volumes[0].clone().expect("served").settings;
    settings.share_min_percent = 1;
    let set = Command::SetVolume { volume: VolumeSlot(0), settings };
    let refused = world.command_now(set);
    assert!(matches!(refused, Err(CommandError::KeepsTooMuch(_))), "{refused:?}");
    world.write_now(0, 0, 1, 1);
    let drain = world.drain(0);
    world.idle_except(10, origin::write(0));
    assert_eq!(world.command_result(drain), None);
    let busy = world.command(change(0, 5, 1, PinChange::Unpin));
    assert_eq!(world.command_result(busy), Some(Err(CommandError::Busy)));
}

/// A change is in the table when it is answered, and not before.
#[test]
fn what_is_pinned_is_durable_with_the_answer() {
    let mut world = setup(&[CacheMode::Writeback]).start();
    pin(&mut world, 10, 20);
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    let ranges: Vec<_> = world.stored_superblock().pins(VolumeSlot(0)).iter().collect();
    assert_eq!(ranges, [(10, 30)]);
    let change = world.command(change(0, 15, 5, PinChange::Unpin));
    let is_flush = |held: &crate::harness::Held| {
        held.device == Device::Cache && matches!(held.what, What::Flush)
    };
    world.settle_except(is_flush);
    assert_eq!(world.command_result(change), None);
    world.settle();
    assert_eq!(world.command_result(change), Some(Ok(Some(VolumeSlot(0)))));
    let ranges: Vec<_> = world.stored_superblock().pins(VolumeSlot(0)).iter().collect();
    assert_eq!(ranges, [(10, 15), (20, 30)]);
}

#[test]
fn a_busy_volume_leaves_another_its_smallest_share() {
    let mut setup = setup(&[CacheMode::Writearound, CacheMode::Writeback]);
    setup.shares = (20, 100);
    let mut world = setup.start();
    let share = world.stored_superblock().geometry.share_blocks(20);
    read_part(&mut world, 0, 0, 2 * share);
    for _ in 0..3 {
        read_part(&mut world, 1, 0, BLOCKS);
    }
    let kept = cached(&mut world, 0..2 * share);
    assert!(kept >= share && kept < share + 64, "{kept} of {share}");
    let counters = world.counters(0);
    assert_eq!(counters.share_dropped_blocks, 0);
    // The other one has the rest.
    let other = world.status().cached_blocks - kept;
    assert!(other > share, "{other}");
}

#[test]
fn a_volume_at_its_largest_share_writes_but_does_not_promote() {
    let mut setup = setup(&[CacheMode::Writeback]);
    setup.shares = (0, 10);
    setup.read_ahead_bytes = 64 << 10;
    let mut world = setup.start();
    let share = world.stored_superblock().geometry.share_blocks(10);
    read_part(&mut world, 0, 0, 2 * share);
    let read = world.read(0, BLOCKS - 16, 1);
    world.finish(&[read]);
    world.prefetch(0, BLOCKS - 64, 16);
    world.settle();
    let promoted = world.counters(0).promoted_blocks;
    assert!(promoted <= share && promoted > share - 16, "{promoted} of {share}");
    assert!(world.bypassed(0, BypassReason::ShareMax) > share);
    assert_eq!(world.counters(0).read_ahead_blocks, 0);
    for block in 0..2 * share {
        world.write_now(0, 4096 + block, 1, block + 1);
    }
    let dirty = AdmitReason::ALL.iter().position(|reason| *reason == AdmitReason::Dirty);
    let written = world.counters(0).admissions[dirty.expect("ALL has all")];
    assert_eq!(written, 2 * share, "dirty data is never refused");
}

/// The origin is away, so what is dirty stays: pinned blocks give way to it in the end.
#[test]
fn writes_do_not_wait_for_ever_for_what_is_pinned() {
    let mut world = setup(&[CacheMode::Writeback]).start();
    let most = world.status().kept_blocks_max;
    pin(&mut world, 0, most);
    read_part(&mut world, 0, 0, most / 16 * 16);
    assert!(cached(&mut world, 0..most) > most - 32);
    let log_blocks = u64::from(world.status().segments * world.status().segment_blocks);
    world.fails = Some(Box::new(|held| origin::any(0)(held).then_some(IoError::Transient)));
    for tag in 1..=log_blocks / 2 / 8 {
        let write = world.write(0, most + tag * 8, 8, tag);
        world.idle_for(400);
        assert!(world.is_done(write), "write {tag}: {}", world.engine().0.describe_waiting());
    }
    assert!(world.counters(0).pinned_dropped_blocks > 0);
    world.fails = None;
    assert_eq!(world.read_now(0, most + 8), Ok(Content::Tag(1)));
}
