//! Rule 8: recovery believes what is whole, reports what is missing, and serves only then.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::error::RecoveryError;
use forebay_engine::event::{Command, CommandError, DirtyFate, Event};
use forebay_engine::format::checkpoint::{Bits, Checkpoint, SegmentUse};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::{CacheMode, HostMark, SetSettings};
use forebay_engine::units::{Generation, SequenceNumber, VolumeSlot};

use crate::harness::{
    BLOCK, Content, Held, Keep, ORIGINAL, SET_ID, Setup, What, World, cache, origin,
};

const SLOT: VolumeSlot = VolumeSlot(0);

fn of(mode: CacheMode) -> World {
    Setup::of(&[mode]).start()
}

#[test]
fn a_torn_record_ends_its_segment() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.write(0, 0, 8, 2);
    world.write(0, 20, 1, 3);
    // Header and half of the payload; the record behind it is whole.
    world.kill(|held| if cache::record_of(0)(held) { Keep::First(5) } else { Keep::All });
    world.restart().expect("a torn tail is no damage");
    assert_eq!(world.look(0, 0..2), [Content::Tag(1), Content::Tag(ORIGINAL)]);
    assert_eq!(world.read_now(0, 20), Ok(Content::Tag(ORIGINAL)));
    // And it stays so.
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..2), [Content::Tag(1), Content::Tag(ORIGINAL)]);
}

/// A record of this life behind a checkpoint of the last one would look like what is left of a
/// lost checkpoint.
#[test]
fn a_life_writes_no_record_before_its_checkpoint() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 40;
    let mut world = setup.start();
    for part in 0..80 {
        world.write_now(0, part * 16, 16, 1);
    }
    // Over the memory bound from the start: reclaim has something to do as soon as it may.
    let memory_max_bytes = world.status().memory_floor_bytes;
    let settings = SetSettings { memory_max_bytes, ..SetSettings::default() };
    let set = world.command(Command::SetCacheSet { settings });
    world.settle_except(|held| cache::record(held) || origin::write(0)(held));
    assert_eq!(world.command_result(set), Some(Ok(None)));
    world.kill(|_| Keep::Nothing);
    world.begin_restart(&[]);
    let mark = world.mark();
    world.idle_except(1_000, cache::checkpoint);
    assert!(!world.find(cache::checkpoint).is_empty());
    assert_eq!(world.records_since(mark).count(), 0);
    world.finish_restart().expect("nothing is damaged");
    world.idle();
    assert!(world.records_since(mark).count() > 0, "reclaim had something to do");
    assert_eq!(world.read_now(0, 5), Ok(Content::Tag(1)));
}

/// A flushed write and, in another segment, a promotion whose header says that it was flushed.
fn flushed_and_vouched_for() -> World {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    world.read_now(0, 100).expect("readable");
    let promotion = world.records_since(0).last().expect("promoted");
    assert_eq!(promotion.durable_through, SequenceNumber(1));
    world
}

#[test]
fn a_record_that_was_durable_and_is_gone_is_reported_and_nothing_is_written() {
    let mut world = flushed_and_vouched_for();
    let header = world.place_of(0) - BLOCK;
    world.kill(|_| Keep::Nothing);
    world.cache.damage(header, &[0; BLOCK as usize]);
    let mark = world.mark();
    let expected = RecoveryError::RecordMissing {
        missing: SequenceNumber(1),
        durable_through: SequenceNumber(1),
    };
    assert_eq!(world.restart(), Err(expected));
    let writes = world.count_since(mark, |_, what| *what != What::Read);
    assert_eq!(writes, 0);
    let read = world.read(0, 0, 1);
    world.settle();
    assert!(world.result(read).expect("answered").is_err());
}

/// The header that vouches stands behind the one that is gone, where no walk through the segment
/// gets to.
#[test]
fn a_durable_record_that_is_gone_is_missed_by_a_header_behind_it() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.write_now(0, 0, 1, 2);
    world.flush_now(0);
    let header = world.place_of(0) - BLOCK;
    world.write_now(0, 1, 1, 3);
    let last = world.records_since(0).last().expect("the third write");
    assert_eq!((last.block, last.durable_through), (4, SequenceNumber(2)));
    world.kill(|_| Keep::Nothing);
    world.cache.damage(header, &[0; BLOCK as usize]);
    let (missing, durable_through) = (SequenceNumber(2), SequenceNumber(2));
    let expected = RecoveryError::RecordMissing { missing, durable_through };
    assert_eq!(world.restart(), Err(expected));
}

/// What stands behind a torn record says nothing of it, and is not believed.
#[test]
fn a_header_behind_a_torn_record_does_not_make_it_missing() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.flush_now(0);
    world.write(0, 0, 1, 2);
    world.write(0, 1, 1, 3);
    let torn = cache::record_of(0);
    world.kill(|held| if torn(held) { Keep::Nothing } else { Keep::All });
    world.restart().expect("a torn tail is no damage");
    assert_eq!(world.look(0, 0..2), [Content::Tag(1), Content::Tag(ORIGINAL)]);
}

#[test]
fn a_durable_record_with_rotten_payload_is_an_error_of_its_blocks_alone() {
    let mut world = flushed_and_vouched_for();
    world.write_now(0, 1, 1, 2);
    let place = world.place_of(0);
    world.kill(|_| Keep::Nothing);
    world.cache.rot(place, BLOCK);
    world.restart().expect("the header is whole");
    assert!(world.read_now(0, 0).is_err(), "flushed data never falls back to older data");
    assert_eq!(world.read_now(0, 1), Ok(Content::Tag(2)));
}

#[test]
fn origins_are_flushed_and_a_checkpoint_is_durable_before_requests_are_served() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::Nothing);
    let before = world.durable_checkpoint().expect("one is durable");
    world.begin_restart(&[]);
    let read = world.read(0, 0, 1);
    let is_origin_flush = origin::flush(0);
    world.settle_except(&is_origin_flush);
    assert!(world.is_pending(read));
    let flush = world.the(is_origin_flush);
    assert_eq!(world.find(cache::checkpoint), []);
    world.complete(flush);
    world.settle_except(cache::checkpoint);
    assert!(world.is_pending(read) && !world.has_event(&Event::Serving));
    world.settle();
    assert!(world.has_event(&Event::Serving));
    assert_eq!(world.seen(read, 0, 0), Content::Tag(1));
    let after = world.durable_checkpoint().expect("one is durable");
    assert!(after.id > before.id && after.recovery_epoch > before.recovery_epoch);
}

/// What an earlier recovery did not see must not appear in a later one.
#[test]
fn an_origin_that_cannot_be_flushed_is_not_served_whoever_resets_counters() {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writeback]).start();
    world.kill(|_| Keep::All);
    world.begin_restart(&[]);
    world.settle_except(|held| origin::flush(0)(held) || origin::flush(1)(held));
    let flush = world.the(origin::flush(0));
    world.fail(flush, IoError::Media, Keep::Nothing);
    world.engine().0.reset_counters();
    world.finish_restart().expect("nothing is damaged");
    assert!(world.read_now(0, 0).is_err(), "what went around the log may be lost");
    assert_eq!(world.read_now(1, 0), Ok(Content::Tag(ORIGINAL)));
}

#[test]
fn a_record_that_recovery_did_not_see_stays_unseen() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.write(0, 0, 1, 2);
    let (late, bytes) = {
        let held = world.held.iter().find(|held| cache::record(held)).expect("a record");
        (held.offset, held.bytes.clone())
    };
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    // The write of the dead process lands after all.
    world.cache.damage(late, &bytes);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn no_segment_that_was_open_is_appended_to() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    let mark = world.mark();
    world.write_now(0, 1, 1, 2);
    let header = world.records_since(mark).next().expect("a record");
    assert_eq!(header.block, 0);
}

#[test]
fn a_writethrough_volume_is_drained_before_it_is_served() {
    let mut world = of(CacheMode::Writethrough);
    world.write(0, 0, 1, 1);
    world.kill(|held| if held.device == Device::Cache { Keep::All } else { Keep::Nothing });
    assert_eq!(world.on_origin(0, 0), Content::Tag(ORIGINAL));
    world.begin_restart(&[]);
    world.settle_except(origin::write(0));
    assert!(!world.has_event(&Event::Serving));
    world.finish_restart().expect("nothing is damaged");
    assert_eq!(world.on_origin(0, 0), Content::Tag(1));
    assert_eq!((world.dirty(0), world.read_now(0, 0)), (0, Ok(Content::Tag(1))));
}

/// Closes a segment, so that it has a summary, and writes a checkpoint that says so.
fn with_summary() -> (World, u64) {
    let mut world = of(CacheMode::Writeback);
    let ids: Vec<u64> = (0..5).map(|part| world.write(0, part * 15, 15, part)).collect();
    world.settle_except(cache::summary);
    let summary = world.held.iter().find(|held| cache::summary(held)).expect("one closed").offset;
    world.finish(&ids);
    assert_eq!(world.command_now(forebay_engine::event::Command::Stop), Ok(None));
    world.kill(|_| Keep::Nothing);
    (world, summary)
}

/// Without one, recovery reads the segment whole, and its entries stay in memory.
#[test]
fn a_segment_that_is_closed_when_nothing_of_it_is_under_way_gets_a_summary() {
    let mut world = of(CacheMode::Writeback);
    let mark = world.mark();
    for part in 0..20 {
        world.write_now(0, part * 15, 15, part);
    }
    world.idle();
    let summaries = world.count_since(mark, |_, what| *what == What::Summary);
    assert!(summaries >= 4, "{summaries} summaries of 6 closed segments");
}

#[test]
fn a_damaged_summary_is_made_good_from_the_headers() {
    let (mut world, summary) = with_summary();
    world.cache.rot(summary, BLOCK);
    let is_whole = move |held: &Held| held.what == What::Read && held.length > BLOCK;
    world.begin_restart(&[]);
    world.settle_except(is_whole);
    world.finish_restart().expect("the headers say the same");
    for part in 0..5 {
        assert_eq!(world.read_now(0, part * 15 + 14), Ok(Content::Tag(part)));
    }
    world.clean(0);
    assert_eq!(world.on_origin(0, 0), Content::Tag(0));
}

#[test]
fn a_damaged_summary_and_header_below_the_checkpoint_are_reported() {
    let (mut world, summary) = with_summary();
    world.cache.rot(summary, BLOCK);
    let header = world.place_of(0) - BLOCK;
    world.cache.rot(header, BLOCK);
    let mark = world.mark();
    assert!(matches!(world.restart(), Err(RecoveryError::Log(_))));
    assert_eq!(world.count_since(mark, |_, what| *what != What::Read), 0);
}

#[test]
fn a_damaged_newest_checkpoint_falls_back_to_the_older_one() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    // A checkpoint now, and nothing after it that would use a segment again.
    let result = world.command_now(forebay_engine::event::Command::Stop);
    assert_eq!(result, Ok(None));
    world.kill(|_| Keep::Nothing);
    let newest = world.durable_checkpoint().expect("one is durable").id;
    lose_newest_checkpoint(&mut world);
    assert_eq!(world.durable_checkpoint().expect("the older one").id, newest - 1);
    world.restart().expect("the older one does");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

/// A latent read error is the common form of damage.
#[test]
fn a_checkpoint_or_a_summary_that_cannot_be_read_counts_as_damaged() {
    let errors = [IoError::Media, IoError::Transient];
    for (area, error) in (0..2).flat_map(|area| errors.map(|error| (area, error))) {
        let (mut world, summary) = with_summary();
        let geometry = world.geometry;
        let bad = geometry.checkpoint_offset + area * geometry.checkpoint_bytes;
        world.fails = Some(Box::new(move |held| {
            let is_bad = cache::read(held) && [bad, summary].contains(&held.offset);
            is_bad.then_some(error)
        }));
        world.restart().expect("the other checkpoint and the headers say the same");
        for part in 0..5 {
            assert_eq!(world.read_now(0, part * 15 + 14), Ok(Content::Tag(part)));
        }
    }
}

#[test]
fn a_checkpoint_that_a_device_does_not_give_in_time_is_not_taken_for_damaged() {
    let (mut world, _) = with_summary();
    let bad = world.geometry.checkpoint_offset;
    world.fails = Some(Box::new(move |held| {
        let is_bad = cache::read(held) && held.offset == bad;
        is_bad.then_some(forebay_engine::io::IoError::TimedOut)
    }));
    assert_eq!(world.restart(), Err(RecoveryError::CacheIo));
}

fn offset_of_checkpoint(world: &World, id: u64) -> u64 {
    let geometry = world.geometry;
    (0..2)
        .map(|area| geometry.checkpoint_offset + area * geometry.checkpoint_bytes)
        .find(|at| world.cache.range(at + 24, 8) == id.to_le_bytes())
        .expect("it is in one of the areas")
}

/// Damages the newest checkpoint of a process that is dead.
fn lose_newest_checkpoint(world: &mut World) {
    let newest = world.durable_checkpoint().expect("one is durable").id;
    let at = offset_of_checkpoint(world, newest);
    world.cache.rot(at + 100, 1);
}

fn older_checkpoint(world: &World) -> Checkpoint {
    let oldest = world.durable_checkpoints().min_by_key(|checkpoint| checkpoint.id);
    oldest.expect("one is durable")
}

/// Kills the process, and starts another one when the newest checkpoint is lost and the older one
/// is this.
fn restart_by(world: &mut World, older: &Checkpoint) {
    world.kill(|_| Keep::Nothing);
    lose_newest_checkpoint(world);
    let at = offset_of_checkpoint(world, older.id);
    world.cache.damage(at, &older.encode(&SET_ID, &world.geometry));
    world.restart().expect("everything behind the older one is there");
}

/// The older checkpoint is of the life before; what the last one wrote would be cut off silently.
#[test]
fn records_of_a_life_whose_checkpoint_is_lost_are_reported() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    world.write_now(0, 0, 1, 2);
    world.flush_now(0);
    world.kill(|_| Keep::Nothing);
    lose_newest_checkpoint(&mut world);
    let mark = world.mark();
    let found = world.restart();
    let is_reported = matches!(
        found,
        Err(RecoveryError::Log(corrupt)) if corrupt.field == "recovery epoch"
    );
    assert!(is_reported, "{found:?}");
    assert_eq!(world.count_since(mark, |_, what| *what != What::Read), 0);
}

/// A segment in which nothing was alive at the older checkpoint, and which the newest one let be
/// used again: it may hold what was answered last, which nothing else vouches for.
#[test]
fn a_segment_that_was_used_again_after_the_lost_checkpoint_is_read() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    // What was freed can still be read, as far as it was not used again.
    setup.discards = false;
    let mut world = setup.start();
    let mut tag = 0;
    let (mut older, id) = loop {
        tag += 1;
        world.write_now(0, tag % 16, 1, tag);
        let (id, _) = world.segment_of(tag % 16);
        let older = older_checkpoint(&world);
        let line = &older.segments[id];
        // Used before, and again.
        if line.segment_use == SegmentUse::Free && line.generation > Generation(0) && older.id > 2 {
            break (older, id);
        }
    };
    // As if it had been cut a moment earlier, when what the segment held was moved, and its drop
    // not appended yet.
    let line = &mut older.segments[id];
    line.segment_use = SegmentUse::Closed;
    line.used_blocks = 2;
    line.bits = Some(Arc::new(Bits::new(world.geometry.segment_blocks())));
    restart_by(&mut world, &older);
    assert_eq!(world.read_now(0, tag % 16), Ok(Content::Tag(tag)));
}

/// The same of one that held clean copies then, and has its old summary still.
#[test]
fn a_segment_that_was_dropped_and_used_again_after_the_lost_checkpoint_is_read() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.discards = false;
    setup.origin_bytes = 40_000 * BLOCK;
    let mut world = setup.start();
    // Lines of closed segments, by number and generation, as checkpoints had them.
    let mut closed = BTreeMap::new();
    let mut tag = 0;
    let (older, id) = loop {
        tag += 1;
        assert!(tag < 2_000, "no segment was used again in that way");
        let read = world.read(0, 100 + tag * 16, 16);
        world.finish(&[read]);
        world.settle();
        world.write_now(0, tag % 16, 1, tag);
        for (id, line) in world.durable_checkpoints().flat_map(|found| (0..).zip(found.segments)) {
            let is_alive = |bits: &Arc<Bits>| bits.live.iter().any(|word| *word > 0);
            if line.bits.as_ref().is_some_and(is_alive) && line.summary_blocks > 0 {
                closed.insert((id, line.generation), line);
            }
        }
        let (id, at) = world.segment_of(tag % 16);
        let mut older = older_checkpoint(&world);
        let line = &mut older.segments[id];
        let before = closed.get(&(id, line.generation));
        let before = before.filter(|before| at < u64::from(before.used_blocks));
        if let Some(before) = before.filter(|_| line.segment_use == SegmentUse::Free) {
            // As if it had been cut before the drop.
            *line = before.clone();
            break (older, id);
        }
    };
    assert_eq!(older.segments[id].segment_use, SegmentUse::Closed);
    restart_by(&mut world, &older);
    assert_eq!(world.read_now(0, tag % 16), Ok(Content::Tag(tag)));
}

/// Nor may they come back after a start that could not see them.
#[test]
fn records_of_a_life_whose_checkpoint_is_lost_stay_unseen() {
    let mut world = of(CacheMode::Writeback);
    world.write_now(0, 0, 1, 1);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    world.write_now(0, 0, 1, 2);
    let header = world.place_of(0) - BLOCK;
    let bytes = world.cache.range(header, BLOCK).to_vec();
    world.kill(|_| Keep::Nothing);
    lose_newest_checkpoint(&mut world);
    world.cache.damage(header, &[0; BLOCK as usize]);
    world.restart().expect("nothing tells of the lost checkpoint");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    world.kill(|_| Keep::Nothing);
    world.cache.damage(header, &bytes);
    world.restart().expect("an older record is no damage");
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
}

#[test]
fn two_damaged_checkpoints_are_reported_and_nothing_is_written() {
    let mut world = of(CacheMode::Writeback);
    world.kill(|_| Keep::Nothing);
    let geometry = world.geometry;
    for area in 0..2 {
        world.cache.rot(geometry.checkpoint_offset + area * geometry.checkpoint_bytes, BLOCK);
    }
    let mark = world.mark();
    assert!(matches!(world.restart(), Err(RecoveryError::NoCheckpoint(_))));
    assert_eq!(world.count_since(mark, |_, what| *what != What::Read), 0);
}

#[test]
fn either_place_of_the_superblock_is_enough() {
    for place in 0..2 {
        let mut world = of(CacheMode::Writeback);
        world.write_now(0, 0, 1, 1);
        let settings = forebay_engine::options::SetSettings::default();
        let command = forebay_engine::event::Command::SetCacheSet { settings };
        assert_eq!(world.command_now(command), Ok(None));
        let serial = world.stored_superblock().serial;
        world.kill(|_| Keep::Nothing);
        let offset = if place == 0 { 0 } else { world.geometry.copy_offset };
        world.cache.rot(offset, BLOCK);
        assert_eq!(world.stored_superblock().serial, serial, "both have the last change");
        world.restart().expect("the other place is whole");
        assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    }
}

#[test]
fn a_failing_cache_device_refuses_to_be_recovered() {
    let mut world = of(CacheMode::Writeback);
    world.kill(|_| Keep::Nothing);
    let mark = world.mark();
    world.fails =
        Some(Box::new(|held| cache::read(held).then_some(forebay_engine::io::IoError::Media)));
    assert_eq!(world.restart(), Err(RecoveryError::CacheIo));
    assert_eq!(world.count_since(mark, |_, what| *what != What::Read), 0);
}

/// A device that goes at the end of a recovery: it is refused, and nothing of it is lost.
#[test]
fn a_device_that_goes_while_recovery_writes_to_it_is_recovered_again() {
    for is_it in [cache::superblock as fn(&Held) -> bool, cache::checkpoint] {
        let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writearound]).start();
        world.write_now(0, 0, 4, 1);
        world.flush_now(0);
        assert_eq!(world.read_now(1, 5), Ok(Content::Tag(ORIGINAL)));
        world.kill(|_| Keep::Nothing);
        let marks = [HostMark::None, HostMark::ServedWithoutCache];
        world.fails = Some(Box::new(move |held| is_it(held).then_some(IoError::Gone)));
        world.begin_restart(&marks);
        assert_eq!(world.finish_restart(), Err(RecoveryError::CacheIo));
        world.kill(|_| Keep::Nothing);
        world.fails = None;
        world.begin_restart(&marks);
        world.finish_restart().expect("nothing is damaged");
        assert_eq!(world.look(0, 0..4), [Content::Tag(1); 4]);
        assert_eq!(world.read_now(1, 5), Ok(Content::Tag(ORIGINAL)));
    }
}

/// What somebody wrote to an origin and did not flush is not cached as clean before it is durable.
#[test]
fn the_origin_of_a_new_volume_is_flushed_before_it_is_served() {
    let mut world = of(CacheMode::Writearound);
    assert_eq!(
        world.command_now(Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack }),
        Ok(Some(SLOT))
    );
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let attach = world.command(Command::Attach { volume, facts });
    let flush = world.the(origin::flush(0));
    let mark = world.mark();
    world.settle_except(origin::flush(0));
    assert_eq!(world.command_result(attach), None);
    assert_eq!(world.count_since(mark, |_, _| true), 0, "the table comes later");
    world.complete(flush);
    world.settle();
    assert_eq!(world.command_result(attach), Some(Ok(Some(SLOT))));
}

#[test]
fn a_new_volume_whose_origin_cannot_be_flushed_is_not_attached() {
    let mut world = of(CacheMode::Writearound);
    assert_eq!(
        world.command_now(Command::Detach { volume: SLOT, dirty: DirtyFate::WrittenBack }),
        Ok(Some(SLOT))
    );
    let (volume, facts) = (world.setup.new_volume(0), world.setup.origin_facts());
    let command = Command::Attach { volume, facts };
    let attach = world.command(command.clone());
    let flush = world.the(origin::flush(0));
    // Another command writes the table meanwhile.
    let settings = SetSettings::default();
    let other = world.command(Command::SetCacheSet { settings });
    world.settle_except(origin::flush(0));
    assert_eq!(world.command_result(other), Some(Ok(None)));
    assert!(world.stored_superblock().volume(SLOT).is_some());
    world.fail(flush, IoError::Media, Keep::Nothing);
    world.settle();
    assert_eq!(world.command_result(attach), Some(Err(CommandError::OriginFailed)));
    assert!(world.stored_superblock().volume(SLOT).is_none());
    assert_eq!(world.command_now(command), Ok(Some(SLOT)));
}

/// Recovery reads a segment without a summary as a whole, at each start.
#[test]
fn a_summary_for_which_there_was_no_memory_is_written_later() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    for block in 0..30 {
        world.write_now(0, block, 1, 1);
    }
    let held = world.write(0, 40, 1, 1);
    world.settle_except(cache::record);
    // The next one takes another segment, and the first is complete when there is no memory.
    let next = world.write(0, 41, 1, 1);
    world.settle_except(cache::record);
    let mark = world.mark();
    world.buffers.refuses = true;
    world.settle();
    let summary = |device: &Device, what: &What| *device == Device::Cache && *what == What::Summary;
    assert_eq!(world.count_since(mark, summary), 0);
    world.buffers.refuses = false;
    world.finish(&[held, next]);
    world.write_now(0, 42, 1, 1);
    assert_eq!(world.count_since(mark, summary), 1);
}
