//! Volumes that grow with their origins.

use forebay_engine::event::{Command, CommandError, PinChange};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_engine::units::{OriginBlock, OriginExtent, VolumeSlot};

use crate::harness::{
    BLOCK, Content, Keep, ORIGINAL, Setup, What, World, block_bytes, cache, origin,
};
use crate::modes::ALL;

const SLOT: VolumeSlot = VolumeSlot(0);
const OLD_BLOCKS: u64 = 100;
const NEW_BLOCKS: u64 = 200;
/// The first block behind the old end.
const BEHIND: u64 = OLD_BLOCKS;

/// A volume of so many bytes, and an origin that was just made longer.
fn extended(mode: CacheMode, old_bytes: u64, order: WritebackOrder) -> World {
    let mut setup = Setup::of(&[mode]);
    (setup.origin_bytes, setup.order) = (old_bytes, order);
    let mut world = setup.start();
    extend_origin(&mut world);
    world
}

fn whole(mode: CacheMode) -> World {
    extended(mode, OLD_BLOCKS * BLOCK, WritebackOrder::Coalescing)
}

fn extend_origin(world: &mut World) {
    let old = usize::try_from(world.setup.origin_bytes).expect("small");
    let all = block_bytes(ORIGINAL, 0, 0, NEW_BLOCKS);
    world.origins[0].extend(&all[old..]);
    world.setup.origin_bytes = NEW_BLOCKS * BLOCK;
}

fn grow(size_bytes: u64) -> Command {
    Command::Grow { volume: SLOT, size_bytes }
}

fn size(world: &mut World) -> u64 {
    world.engine().0.volume_size_bytes(SLOT).expect("the volume is served")
}

fn stored_size(world: &World) -> u64 {
    world.stored_superblock().volume(SLOT).expect("in the table").size_bytes
}

#[test]
fn what_is_behind_the_old_end_is_read_written_and_kept_in_every_mode() {
    for mode in ALL {
        let mut world = whole(mode);
        world.write_now(0, 99, 1, 1);
        let before = world.mark();
        assert_eq!(world.command_now(grow(NEW_BLOCKS * BLOCK)), Ok(Some(SLOT)), "{mode:?}");
        let writes = |device: &Device, what: &What| {
            *device != Device::Cache && !matches!(what, What::Read | What::Flush)
        };
        assert_eq!(world.count_since(before, writes), 0, "{mode:?}");
        assert_eq!(size(&mut world), NEW_BLOCKS * BLOCK);
        assert_eq!(world.read_now(0, BEHIND), Ok(Content::Tag(ORIGINAL)), "{mode:?}");
        world.write_now(0, BEHIND - 1, 3, 2);
        world.write_now(0, NEW_BLOCKS - 1, 1, 3);
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
        assert_eq!(size(&mut world), NEW_BLOCKS * BLOCK, "{mode:?}");
        let seen = world.look(0, [98, 99, 100, 101, 102, 199].into_iter());
        let tags = [ORIGINAL, 2, 2, 2, ORIGINAL, 3].map(Content::Tag);
        assert_eq!(seen, tags, "{mode:?}");
        world.switch(0, CacheMode::Passthrough);
        assert_eq!(world.on_origin(0, 101), Content::Tag(2), "{mode:?}");
        assert_eq!(world.on_origin(0, 199), Content::Tag(3), "{mode:?}");
    }
}

/// The old size until the new one is durable in both places of the table; from the first write on
/// a crash may leave the new one, which is right as well.
#[test]
fn the_new_size_counts_when_the_table_is_durable() {
    for landed in 0..2 {
        let mut world = whole(CacheMode::Writeback);
        world.write_now(0, 10, 1, 1);
        let command = world.command(grow(NEW_BLOCKS * BLOCK));
        for _ in 0..landed {
            world.settle_except(cache::superblock);
            let write = world.the(cache::superblock);
            world.complete(write);
        }
        world.settle_except(cache::superblock);
        assert_eq!(world.command_result(command), None);
        assert_eq!(size(&mut world), OLD_BLOCKS * BLOCK, "not yet");
        // Clients go on meanwhile.
        world.write(0, 11, 1, 2);
        world.settle_except(cache::superblock);
        assert_eq!(world.peek(0, 11), Content::Tag(2));
        world.kill(|_| Keep::Nothing);
        world.restart().expect("one place is whole");
        let expected = [OLD_BLOCKS, NEW_BLOCKS][landed] * BLOCK;
        assert_eq!(size(&mut world), expected, "after {landed} places");
        assert_eq!(world.look(0, 10..12), [1, 2].map(Content::Tag));
        assert_eq!(world.command_now(grow(NEW_BLOCKS * BLOCK)), Ok(Some(SLOT)));
        assert_eq!(stored_size(&world), NEW_BLOCKS * BLOCK);
        assert_eq!(world.read_now(0, BEHIND), Ok(Content::Tag(ORIGINAL)));
    }
}

#[test]
fn a_size_that_is_none_changes_nothing() {
    let mut world = whole(CacheMode::Writeback);
    let serial = world.stored_superblock().serial;
    let sizes = [
        (OLD_BLOCKS * BLOCK, Ok(Some(SLOT))),
        (OLD_BLOCKS * BLOCK - 512, Err(CommandError::WouldShrink)),
        (0, Err(CommandError::WouldShrink)),
        (OLD_BLOCKS * BLOCK + 1, Err(CommandError::Invalid)),
        (1 << 53, Err(CommandError::Invalid)),
    ];
    for (size_bytes, result) in sizes {
        assert_eq!(world.command_now(grow(size_bytes)), result, "{size_bytes}");
        assert_eq!(size(&mut world), OLD_BLOCKS * BLOCK);
    }
    assert_eq!(world.stored_superblock().serial, serial);
    let nobody = Command::Grow { volume: VolumeSlot(1), size_bytes: NEW_BLOCKS * BLOCK };
    assert_eq!(world.command_now(nobody), Err(CommandError::NoSuchVolume));
}

#[test]
fn commands_of_a_volume_that_grows_are_refused_until_it_has() {
    let mut world = whole(CacheMode::Writeback);
    let first = world.command(grow(NEW_BLOCKS * BLOCK));
    world.settle_except(cache::superblock);
    let second = world.command(grow(NEW_BLOCKS * BLOCK));
    assert_eq!(world.command_result(second), Some(Err(CommandError::Busy)));
    let extent = OriginExtent { volume: SLOT, start: OriginBlock(BEHIND), block_count: 1 };
    let pin = world.command(Command::Pin { extent, change: PinChange::Pin });
    assert_eq!(world.command_result(pin), Some(Err(CommandError::Busy)));
    world.settle();
    assert_eq!(world.command_result(first), Some(Ok(Some(SLOT))));
    let pinned = world.command_now(Command::Pin { extent, change: PinChange::Pin });
    assert_eq!(pinned, Ok(Some(SLOT)), "it is in the volume now");
}

#[test]
fn a_volume_whose_cache_device_goes_keeps_its_size() {
    let mut world = whole(CacheMode::Writethrough);
    let command = world.command(grow(NEW_BLOCKS * BLOCK));
    world.settle_except(cache::superblock);
    let write = world.the(cache::superblock);
    world.fail(write, IoError::Gone, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(command), Some(Err(CommandError::CacheFailed)));
    assert_eq!(size(&mut world), OLD_BLOCKS * BLOCK);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(size(&mut world), OLD_BLOCKS * BLOCK);
}

/// The old end is in the middle of a block that is cached, or dirty: what is behind it belongs to
/// the origin, before and after.
#[test]
fn a_last_block_that_was_cut_short_becomes_whole() {
    const TAIL: u64 = BEHIND;
    const FIRST: u64 = TAIL * 8;
    let orders = [WritebackOrder::Coalescing, WritebackOrder::Ordered];
    for (mode, order) in ALL.into_iter().flat_map(|mode| orders.map(|order| (mode, order))) {
        let mut world = extended(mode, TAIL * BLOCK + 3 * 512, order);
        world.write_now(0, 50, 2, 7);
        let write = world.write_sectors(0, FIRST, 3, 1);
        world.finish(&[write]);
        let read = world.read_bytes(0, FIRST * 512, 3 * 512);
        world.finish(&[read]);
        assert_eq!(world.command_now(grow(NEW_BLOCKS * BLOCK)), Ok(Some(SLOT)), "{mode:?}");
        assert_eq!(world.volume_mode(0), mode);
        for _ in 0..2 {
            let read = world.read(0, TAIL, 1);
            world.finish(&[read]);
            let bytes = world.delivered(read).to_vec();
            let behind = &block_bytes(ORIGINAL, 0, TAIL, 1)[3 * 512..];
            assert!(bytes[..3 * 512] == block_bytes(1, 0, TAIL, 1)[..3 * 512], "{mode:?}");
            assert!(bytes[3 * 512..] == *behind, "{mode:?} {order:?}");
            world.kill(|_| Keep::Nothing);
            world.restart().expect("nothing is damaged");
        }
        let write = world.write_sectors(0, FIRST + 2, 6, 2);
        world.finish(&[write]);
        world.flush_now(0);
        world.switch(0, CacheMode::Passthrough);
        let bytes = world.origins[0].range(TAIL * BLOCK, BLOCK);
        assert!(bytes[..2 * 512] == block_bytes(1, 0, TAIL, 1)[..2 * 512], "{mode:?}");
        assert!(bytes[2 * 512..] == block_bytes(2, 0, TAIL, 1)[2 * 512..], "{mode:?}");
        assert_eq!(world.look(0, 50..52), [7, 7].map(Content::Tag));
    }
}

/// Requests that come while a last block is made whole wait, and are served with the new size.
#[test]
fn a_last_block_that_was_cut_short_goes_home_first() {
    let mut world =
        extended(CacheMode::Writeback, OLD_BLOCKS * BLOCK + 512, WritebackOrder::Coalescing);
    let write = world.write_sectors(0, OLD_BLOCKS * 8, 1, 1);
    world.finish(&[write]);
    let command = world.command(grow(NEW_BLOCKS * BLOCK));
    world.idle_except(1_000, origin::write(0));
    let home = world.the(origin::write(0));
    assert_eq!(world.held.iter().find(|held| held.id == home).expect("held").length, 512);
    assert_eq!(world.command_result(command), None);
    world.complete(home);
    world.idle();
    assert_eq!(world.command_result(command), Some(Ok(Some(SLOT))));
    assert_eq!(world.dirty(0), 0);
}

/// An origin that is longer than its volume, which nobody has grown, is served with the old size,
/// and what is behind the end stays as it is.
#[test]
fn an_origin_that_is_longer_is_not_used_behind_the_end() {
    for mode in ALL {
        let mut world = extended(mode, OLD_BLOCKS * BLOCK + 512, WritebackOrder::Coalescing);
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
        assert_eq!(size(&mut world), OLD_BLOCKS * BLOCK + 512, "{mode:?}");
        let write = world.write_sectors(0, OLD_BLOCKS * 8, 1, 1);
        world.finish(&[write]);
        world.clean(0);
        let behind = world.origins[0].range(OLD_BLOCKS * BLOCK + 512, BLOCK - 512);
        assert!(*behind == block_bytes(ORIGINAL, 0, OLD_BLOCKS, 1)[512..], "{mode:?}");
    }
}
