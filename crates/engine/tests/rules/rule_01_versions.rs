//! Rule 1: the highest version of a block is its content.

use forebay_engine::format::record::{Entry, EntryKind};
use forebay_engine::options::CacheMode;

use crate::harness::{BLOCK, Content, Held, Setup, World, cache};

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
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
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
