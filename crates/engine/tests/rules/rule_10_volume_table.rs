//! Rule 10: the volume table, of which one of two places is whole at every moment, and the
//! fingerprints of origins in it.

use forebay_engine::event::{Command, CommandError, Event};
use forebay_engine::format::superblock::{
    AddVolumeError, SUPERBLOCK_BYTES, Superblock, VOLUME_BYTES_MAX, Volume,
};
use forebay_engine::io::IoError;
use forebay_engine::options::CacheMode;
use forebay_engine::units::VolumeSlot;

use crate::harness::{Content, Keep, Setup, World, block_bytes, cache, origin};

const SLOT: VolumeSlot = VolumeSlot(0);

fn stored(world: &World) -> Volume {
    world.stored_superblock().volume(SLOT).expect("in the table").clone()
}

fn stop(world: &mut World) {
    assert_eq!(world.command_now(Command::Stop), Ok(None));
    world.kill(|_| Keep::Nothing);
}

/// Begins an update of the table and lets so many of its writes land; the next one is torn by the
/// end of the process. Returns where that one was.
fn tear_after(world: &mut World, whole: usize) -> u64 {
    // Never the mode that the torn place has: the rest of it must not fit by chance.
    let mode = match world.volume_mode(0) {
        CacheMode::Writeback => CacheMode::Writethrough,
        _ => CacheMode::Writeonly,
    };
    world.set_mode(0, mode);
    for _ in 0..whole {
        world.settle_except(cache::superblock);
        let landed = world.the(cache::superblock);
        world.complete(landed);
    }
    world.settle_except(cache::superblock);
    let torn = world.the(cache::superblock);
    let offset = world.held.iter().find(|held| held.id == torn).expect("held").offset;
    world.kill(|held| if held.id == torn { Keep::First(1) } else { Keep::Nothing });
    offset
}

/// Either place may be the one that was torn; the next update must begin there, since the other
/// one is all that there is.
#[test]
fn an_update_of_the_table_begins_with_the_place_that_may_be_torn() {
    for whole in [0, 1] {
        let mut world = Setup::of(&[CacheMode::Writeback]).start();
        let torn = tear_after(&mut world, whole);
        let places = [0, world.geometry.copy_offset];
        let other = places[usize::from(torn == 0)];
        assert!(Superblock::choose(at(&world, torn), at(&world, torn)).is_err(), "it is torn");
        for _ in 0..3 {
            world.restart().expect("the other place is whole");
            assert_eq!(tear_after(&mut world, 0), torn, "after {whole} whole writes");
            assert!(Superblock::choose(at(&world, torn), at(&world, torn)).is_err());
            assert!(Superblock::choose(at(&world, other), at(&world, other)).is_ok());
        }
        world.restart().expect("the other place is whole");
        world.switch(0, CacheMode::Writearound);
        assert_eq!(at(&world, torn), at(&world, other), "a whole update makes both good");
    }
}

fn at(world: &World, offset: u64) -> &[u8] {
    world.cache.range(offset, SUPERBLOCK_BYTES as u64)
}

#[test]
fn an_update_of_the_table_writes_one_place_when_the_other_is_durable() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.set_mode(0, CacheMode::Writeonly);
    world.settle_except(cache::superblock);
    let first = world.the(cache::superblock);
    world.complete(first);
    world.settle_except(cache::flush);
    assert_eq!(world.find(cache::superblock), [], "a power cut could tear both");
    world.settle();
    assert_eq!(stored(&world).mode, CacheMode::Writeonly);
}

/// Stopped in order with block 0 in the cache and clean.
fn stopped() -> World {
    let mut world = Setup::of(&[CacheMode::Writethrough]).start();
    world.write_now(0, 0, 1, 1);
    stop(&mut world);
    assert!(stored(&world).fingerprint.is_some());
    world
}

#[test]
fn an_origin_that_was_written_behind_a_stopped_daemon_is_noticed() {
    let mut world = stopped();
    world.origins[0].damage(0, &block_bytes(7, 0, 0, 1));
    world.restart().expect("nothing is damaged");
    assert!(world.has_event(&Event::OriginChanged { volume: SLOT, has_dirty: false }));
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(7)));
    assert_eq!(stored(&world).fingerprint, None);
}

/// What cannot be read cannot be compared. The volume is served and written, so the fingerprint of
/// before would later say of our own writes that somebody else made them.
#[test]
fn the_fingerprint_of_an_origin_that_cannot_be_read_goes() {
    let mut world = stopped();
    world.fails = Some(Box::new(|held| origin::read(0)(held).then_some(IoError::Media)));
    world.restart().expect("the cache device is good");
    assert_eq!(stored(&world).fingerprint, None);
    world.fails = None;
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)), "it is served");
    world.write_now(0, 3, 1, 2);
    world.flush_now(0);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert!(!world.has_event(&Event::OriginChanged { volume: SLOT, has_dirty: false }));
    let mark = world.mark();
    let seen = world.look(0, [0, 3].into_iter());
    assert_eq!(seen, [1, 2].map(Content::Tag));
    assert_eq!(world.origin_ios_since(mark), 0, "its copies count");
}

/// A table that says more than a reader believes would take all other volumes along.
#[test]
fn a_volume_of_a_size_that_no_table_may_have_is_refused() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    let mut table = world.stored_superblock();
    for size_bytes in [VOLUME_BYTES_MAX + 512, VOLUME_BYTES_MAX - 1, u64::MAX] {
        let mut volume = world.setup.new_volume(0);
        volume.name = "large".into();
        volume.size_bytes = size_bytes;
        assert_eq!(table.add_volume(&volume), Err(AddVolumeError::BadSize), "{size_bytes}");
        let facts = world.setup.origin_facts();
        let attach = Command::Attach { volume, facts };
        assert_eq!(world.command_now(attach), Err(CommandError::Invalid), "{size_bytes}");
    }
    let mut volume = world.setup.new_volume(0);
    volume.name = "largest".into();
    volume.size_bytes = VOLUME_BYTES_MAX;
    let slot = table.add_volume(&volume).expect("as large as can be");
    let bytes = table.encode();
    let read = Superblock::choose(&bytes, &bytes).expect("it can be read again");
    assert_eq!(read.volume(slot).expect("in the table").size_bytes, VOLUME_BYTES_MAX);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}
