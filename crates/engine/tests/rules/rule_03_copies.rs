//! Rule 3: a copy exists from the submission of its record until it is durably void.

use forebay_engine::format::record::EntryKind;
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::request::Served;
use forebay_engine::status::{BlockState, CacheHealth};

use crate::harness::{BLOCK, Content, Held, Keep, ORIGINAL, SET_ID, Setup, What, cache, origin};

/// A block of which the newest copy lies in a dropped segment is absent; the copy before it, in a
/// segment that is still there, does not take its place.
#[test]
fn a_drop_of_the_newest_copy_brings_no_older_one_back() {
    let mut setup = Setup::of(&[CacheMode::Writeback; 2]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    // The first segment has the old copy and, for good, a dirty block of another volume.
    world.fails = Some(Box::new(|held| origin::write(1)(held).then_some(IoError::Media)));
    let old = [world.hand_in_write(0, 5, 1, 1), world.hand_in_write(1, 0, 1, 9)];
    world.poll();
    world.finish(&old);
    world.idle_for(3_000);
    for part in 0..4 {
        world.write_now(0, 100 + part * 15, 15, 2);
    }
    world.write_now(0, 5, 1, 3);
    world.idle_for(3_000);
    assert_eq!((world.dirty(0), world.dirty(1)), (0, 1));
    assert_eq!(world.on_origin(0, 5), Content::Tag(3));
    // Reclaim takes the later segment. The checkpoint that would tell of it never lands.
    world.fill_until(300, cache::checkpoint);
    let drops: Vec<u32> = world
        .records_since(0)
        .flat_map(|header| &header.entries)
        .filter_map(|entry| match entry.kind {
            EntryKind::Drop { segment, .. } => Some(segment),
            _ => None,
        })
        .collect();
    let first = world.records_since(0).next().expect("records were written").segment;
    assert!(!drops.is_empty() && !drops.contains(&first), "{drops:?}");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 5), Ok(Content::Tag(3)));
    assert_eq!(world.read_now(1, 0), Ok(Content::Tag(9)));
}

/// A drop record that is durable while a superseding record is not would lose the flushed copy that
/// both of them void.
#[test]
fn a_drop_waits_until_what_supersedes_its_blocks_is_durable() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    for part in 0..3 {
        world.write_now(0, part * 15, 15, 1);
    }
    world.clean(0);
    world.write_now(0, 50, 1, 2);
    world.flush_now(0);
    // From here on nothing becomes durable, and the cache fills up until writes have to wait.
    let is_kept = |held: &Held| cache::flush(held) || cache::drop_record(held);
    world.write_now(0, 200, 15, 3);
    world.write_now(0, 50, 1, 4);
    let mut chunk = 0;
    loop {
        let write = world.write(0, 300 + chunk * 15, 15, 500 + chunk);
        world.idle_except(100, is_kept);
        if world.is_pending(write) {
            break;
        }
        chunk += 1;
    }
    assert_eq!(world.find(cache::drop_record), []);
    let flush = world.the(cache::flush);
    world.complete(flush);
    world.settle_except(cache::drop_record);
    let dropped = world.the(cache::drop_record);
    let bytes = world.held.iter().find(|held| held.id == dropped).expect("held").bytes.clone();
    world.kill(|held| if held.id == dropped { Keep::All } else { Keep::Nothing });
    world.cut_power(|device, write| device == Device::Cache && write.bytes == bytes);
    world.restart().expect("nothing is damaged");
    let seen = world.read_now(0, 50);
    assert!([Ok(Content::Tag(2)), Ok(Content::Tag(4))].contains(&seen), "{seen:?}");
}

/// Until its drop is durable a block has a copy: what writes around the log must not overlook it.
/// (The first blocks of an origin are no example: recovery compares their clean copies.)
#[test]
fn the_index_forgets_a_block_only_when_its_drop_is_durable() {
    let mut world = Setup::of(&[CacheMode::Writearound]).start();
    world.read_until_drop(0);
    let block = 20;
    let write = world.write(0, block, 1, 7);
    world.settle_except(cache::drop_record);
    let written = if world.is_done(write) { Content::Tag(7) } else { Content::Tag(ORIGINAL) };
    assert_eq!(world.on_origin(0, block), written);
    world.kill(|_| Keep::Nothing);
    // The read waits for recovery: right afterwards the same segments are reclaimed again.
    world.begin_restart(&[]);
    let read = world.read(0, block, 1);
    world.finish_restart().expect("nothing is damaged");
    assert_eq!(world.seen(read, 0, block), written, "no copy that the origin outran");
}

#[test]
fn reads_are_hits_until_the_drop_is_durable() {
    let mut world = Setup::of(&[CacheMode::Writearound]).start();
    world.read_until_drop(0);
    let before = world.counters(0).read_hits;
    world.peek(0, 0);
    assert_eq!(world.counters(0).read_hits, before + 1);
}

#[test]
fn a_full_log_frees_dead_segments_without_a_drop() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    for round in 0..300 {
        world.write_now(0, 0, 15, round);
    }
    let has_drop = world.records_since(0).any(|header| {
        header.entries.iter().any(|entry| matches!(entry.kind, EntryKind::Drop { .. }))
    });
    assert!(!has_drop);
    assert!(world.status().counters.reclaimed_segments > 24);
    assert_eq!(world.counters(0).writeback_blocks, 0, "nothing has to go home for it");
    assert_eq!(world.read_now(0, 14), Ok(Content::Tag(299)));
}

/// A drop names the generation of its segment; one of another is not for what is in it now.
#[test]
fn a_drop_of_another_generation_is_not_believed() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 4, 1);
    world.clean(0);
    world.fill_until(100, cache::drop_record);
    let dropped = world.the(cache::drop_record);
    let held = world.held.iter().find(|held| held.id == dropped).expect("held");
    let (offset, mut header) = (held.offset, held.record().expect("a record").clone());
    world.kill(|held| if held.id == dropped { Keep::All } else { Keep::Nothing });
    for entry in &mut header.entries {
        if let EntryKind::Drop { generation, .. } = &mut entry.kind {
            generation.0 += 1;
        }
    }
    let mut block = vec![0; 4096];
    header.encode(&SET_ID, &mut block);
    world.cache.damage(offset, &block);
    // The read waits for recovery: right afterwards the same segments are reclaimed again.
    world.begin_restart(&[]);
    let read = world.read(0, 0, 1);
    world.finish_restart().expect("it is not for these segments");
    assert_eq!(world.seen(read, 0, 0), Content::Tag(1));
    assert_eq!(world.reply(read).expect("answered").served, Served::Cache);
}

/// Zeroes that are home are voided in the log, and the index forgets them. Until that is durable,
/// recovery could find them: what is written around them would be under them.
#[test]
fn a_write_around_zeroes_that_went_home_waits_until_they_are_voided_durably() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 1, 1);
    world.clean(0);
    let zero = world.zero(0, 10, 4);
    world.finish(&[zero]);
    world.write_now(0, 20, 1, 1);
    world.flush_now(0);
    // The cache device gets degraded, so that writes go around, while the origin takes no zeroes;
    // nor does it take block 20 later, which keeps the volume from being served without the cache.
    let is_refused = |held: &Held| origin::write(0)(held) && held.overlaps(20 * BLOCK, BLOCK);
    world.fails = Some(Box::new(move |held| {
        let is_early = cache::read(held) || held.what == What::WriteZeroes;
        (is_early || is_refused(held)).then_some(IoError::Media)
    }));
    while world.status().cache_health == CacheHealth::Good {
        world.read_now(0, 0).expect("the origin has it");
    }
    world.fails = Some(Box::new(move |held| is_refused(held).then_some(IoError::Media)));
    world.idle_except(10_000, |held| cache::flush(held) || cache::invalidation(held));
    let invalidation = world.the(cache::invalidation);
    world.complete(invalidation);
    assert_eq!((world.dirty(0), world.state(0, 10)), (1, BlockState::NotCached));
    let write = world.write(0, 11, 1, 2);
    assert_eq!(world.find(origin::write(0)), [], "what is voided in the log may come back");
    world.settle();
    assert!(world.is_done(write));
    // The device goes, and comes back without what it had not flushed.
    world.write(0, 20, 1, 3);
    let record = world.the(cache::record);
    world.fail(record, IoError::Gone, Keep::Nothing);
    world.settle();
    world.come_back(Keep::Nothing, &[]);
    assert_eq!(world.read_now(0, 11), Ok(Content::Tag(2)));
}
