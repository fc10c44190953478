//! Rule 1: the highest version of a block is its content.

use forebay_engine::format::record::{Entry, EntryKind};
use forebay_engine::io::Device;
use forebay_engine::options::CacheMode;
use forebay_engine::policy::PolicyKind;
use forebay_engine::status::BlockState;
use forebay_engine::units::VolumeSlot;

use crate::harness::{BLOCK, Content, Held, Keep, Setup, What, World, cache, origin};

/// Payload blocks after which the next write opens another segment.
const SEGMENT_FULL: u64 = 61;

#[test]
fn a_record_that_completes_late_does_not_win() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let mut older: Vec<u64> = (0..4).map(|part| world.hand_in_write(0, part * 15, 15, 1)).collect();
    older.push(world.hand_in_write(0, 60, SEGMENT_FULL - 60, 1));
    world.poll();
    let newer = world.write(0, 5, 1, 2);
    let records = world.find(cache::record);
    assert!(records.len() >= 2, "{}", world.describe_held());
    world.complete(*records.last().expect("two records"));
    assert!(world.is_done(newer), "another segment does not hold it up");
    assert_eq!(world.peek(0, 5), Content::Tag(2));
    world.finish(&older);
    assert_eq!(world.read_now(0, 5), Ok(Content::Tag(2)));
    assert_eq!(world.read_now(0, 6), Ok(Content::Tag(1)));
    world.kill(|_| crate::harness::Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 5), Ok(Content::Tag(2)));
}

/// Clean blocks 0 to 44 with tag 1, of which the first 15 were hit; then the cache fills up until
/// reclaim reads them to keep them. Returns which operation that is.
fn until_reclaim_reads(world: &mut World) -> impl Fn(&Held) -> bool + use<> {
    for part in 0..3 {
        world.write_now(0, part * 15, 15, 1);
    }
    world.clean(0);
    let hit = world.read(0, 0, 15);
    world.finish(&[hit]);
    let place = world.place_of(0);
    let is_read = move |held: &Held| cache::read(held) && held.overlaps(place, BLOCK);
    world.fill_until(100, is_read);
    is_read
}

/// The last appended copy of a block.
fn last_entry(world: &World, block: u64) -> (Entry, u32) {
    let mut last = None;
    for header in world.records_since(0) {
        let mut at = 0;
        for entry in &header.entries {
            let end = entry.start + u64::from(entry.block_count);
            if entry.kind == EntryKind::Data && (entry.start..end).contains(&block) {
                let index = at + u32::try_from(block - entry.start).expect("small");
                last = Some((*entry, header.crcs[index as usize].0));
            }
            at += entry.payload_blocks();
        }
    }
    last.expect("it was appended")
}

#[test]
fn a_relocation_does_not_bring_back_what_was_overwritten_while_it_was_read() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let is_read = until_reclaim_reads(&mut world);
    let newer = world.write(0, 3, 1, 2);
    world.settle_except(is_read);
    assert!(world.is_done(newer));
    world.settle();
    assert_eq!(world.look(0, 2..5), [1, 2, 1].map(Content::Tag));
    world.kill(|_| crate::harness::Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 2..5), [1, 2, 1].map(Content::Tag));
}

#[test]
fn a_relocation_keeps_version_checksum_and_state() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.policy = PolicyKind::Lru;
    let mut world = setup.start();
    let _ = until_reclaim_reads(&mut world);
    let (before, crc_before) = last_entry(&world, 0);
    let mark = world.mark();
    world.settle();
    let is_relocated = world.records_since(mark).any(|header| {
        header.entries.iter().any(|entry| entry.kind == EntryKind::Data && entry.start == 0)
    });
    assert!(is_relocated, "a block that was hit is kept");
    let (after, crc_after) = last_entry(&world, 0);
    assert_eq!((after.version, crc_after), (before.version, crc_before));
    assert!(!after.is_dirty, "the origin has it");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn a_relocation_never_gives_rotten_bytes_a_good_checksum() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let _ = until_reclaim_reads(&mut world);
    let place = world.place_of(2);
    world.cache.rot(place, BLOCK);
    world.settle();
    world.idle();
    assert_eq!(world.look(0, 1..4), [Content::Tag(1); 3]);
}

/// Whether it is a record with zeroes.
fn has_zeroes(held: &Held) -> bool {
    let is_zeroes = |entry: &Entry| matches!(entry.kind, EntryKind::Zeroes { .. });
    held.record().is_some_and(|header| header.entries.iter().any(is_zeroes))
}

/// Fills segments with 14 zeroes each, far apart, and data of which nothing is alive, until reclaim
/// moves the zeroes: they are home, but no origin flush says so. Returns the first and the last of
/// the segments that the moved ones are being written to.
fn until_zeroes_are_moved(world: &mut World) -> (u32, u32) {
    for block in (0..14 * 8).map(|n| 2 * n) {
        let zero = world.zero(0, block, 1);
        world.settle_except(origin::flush(0));
        assert!(world.is_done(zero));
        if block % 28 == 26 {
            for round in 0..3 {
                let write = world.write(0, 300, 15, round);
                world.settle_except(origin::flush(0));
                assert!(world.is_done(write));
            }
        }
    }
    world.idle_except(3_000, origin::flush(0));
    let is_home = |_: &Device, what: &What| *what == What::WriteZeroes;
    assert!(world.count_since(0, is_home) > 0 && world.dirty(0) > 14 * 8);
    let is_kept = |held: &Held| origin::flush(0)(held) || has_zeroes(held);
    for chunk in 0.. {
        world.write(0, 400 + chunk * 15, 15, 9);
        world.settle_except(is_kept);
        let moved: Vec<u32> =
            world.held.iter().filter_map(|held| held.record()).map(|h| h.segment).collect();
        let (Some(first), Some(last)) = (moved.first(), moved.last()) else { continue };
        if first != last {
            return (*first, *last);
        }
        world.settle_except(origin::flush(0));
    }
    unreachable!()
}

/// Zeroes that were moved while they were dirty are clean before the record of the move completes:
/// an invalidation of their own version voids them. It lies in another segment and completes first.
#[test]
fn what_voids_a_copy_that_is_being_moved_stands_against_it() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    setup.marks = (94, 95);
    let mut world = setup.start();
    let (first, last) = until_zeroes_are_moved(&mut world);
    let is_late =
        |held: &Held| has_zeroes(held) && held.record().is_some_and(|h| h.segment == first);
    assert_ne!(first, last);
    let mark = world.mark();
    world.idle_except(3_000, is_late);
    let late = world.held.iter().find(|held| is_late(held)).expect("held").record().cloned();
    let late = late.expect("a record").entries[0];
    let is_void = world.records_since(mark).any(|header| {
        header.entries.iter().any(|entry| {
            entry.kind == EntryKind::Invalidate
                && (entry.start, entry.version) == (late.start, late.version)
        })
    });
    assert!(is_void, "it is voided before it is moved");
    world.settle();
    world.engine().0.audit().expect("the books agree");
    assert_eq!(world.state(0, late.start), BlockState::NotCached);
    assert_eq!(world.read_now(0, late.start), Ok(Content::Zeroes));
}

/// The same, and the volume becomes `passthrough` before the record of the move completes: it is of
/// an older generation then, and nothing is left of it.
#[test]
fn a_copy_that_was_being_moved_when_its_generation_ended_counts_for_nothing() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    setup.marks = (94, 95);
    let mut world = setup.start();
    until_zeroes_are_moved(&mut world);
    let late = world.held.iter().find(|held| has_zeroes(held)).expect("held").id;
    world.idle_except(3_000, |held| held.id == late);
    let switch = world.set_mode(0, CacheMode::Passthrough);
    world.idle_except(3_000, |held| held.id == late);
    assert_eq!(world.command_result(switch), None, "a checkpoint waits for all records");
    world.settle();
    assert_eq!(world.command_result(switch), Some(Ok(Some(VolumeSlot(0)))));
    let write = world.write(0, 0, 1, 7);
    world.finish(&[write]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    world.switch(0, CacheMode::Writeback);
    assert_eq!(world.look(0, [0, 2].into_iter()), [Content::Tag(7), Content::Zeroes]);
}
