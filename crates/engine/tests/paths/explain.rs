//! Why a block is cached or not, as operators are told.

use forebay_engine::event::{Command, CommandError, Event};
use forebay_engine::explain::{CopyKind, Explanation, RecordPlace};
use forebay_engine::format::record::RecordHeader;
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::policy::PolicyKind;
use forebay_engine::status::{Access, AdmitReason, BypassReason, Decision, Outcome};
use forebay_engine::units::{OriginBlock, VolumeSlot};

use crate::harness::{Keep, Setup, World, cache};

fn explain(world: &mut World, block: u64) -> Explanation {
    let now = world.time();
    let found = world.engine().0.explain(now, VolumeSlot(0), OriginBlock(block));
    found.expect("the volume has the block")
}

fn decision(world: &mut World, block: u64) -> Option<Decision> {
    explain(world, block).decision.map(|(decision, _)| decision)
}

const READ: Decision =
    Decision { access: Access::Read, outcome: Outcome::Admitted(AdmitReason::NoLimit) };

/// What the command says of a block, with its reads at the cache device.
fn ask(world: &mut World, block: u64) -> Explanation {
    let command =
        world.command(Command::Explain { volume: VolumeSlot(0), block: OriginBlock(block) });
    world.settle();
    assert_eq!(world.command_result(command), Some(Ok(None)));
    told(world, command).expect("it is explained")
}

fn told(world: &World, id: u64) -> Option<Explanation> {
    world.events.iter().find_map(|event| match event {
        Event::Explained { command, explanation } if command.0 == id => Some(*explanation),
        _ => None,
    })
}

fn record_of(explanation: &Explanation) -> Option<RecordPlace> {
    explanation.place.expect("it is cached").record
}

#[test]
fn a_block_that_was_never_asked_for_is_absent_without_a_reason() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let found = explain(&mut world, 7);
    assert_eq!((found.kind, found.is_dirty, found.place), (CopyKind::Absent, false, None));
    assert_eq!((found.decision, found.is_kept, found.version), (None, None, None));
}

#[test]
fn what_was_promoted_written_zeroed_and_discarded_is_told_apart() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.read_now(0, 0).expect("readable");
    world.write_now(0, 100, 1, 1);
    let zero = world.zero(0, 200, 4);
    let discard = world.discard(0, 300, 4);
    world.finish(&[zero, discard]);
    let kinds = [0, 100, 200, 300, 400].map(|block| {
        let found = explain(&mut world, block);
        (found.kind, found.is_dirty)
    });
    let expected = [
        (CopyKind::Data, false),
        (CopyKind::Data, true),
        (CopyKind::Zeroes, true),
        (CopyKind::Discarded, true),
        (CopyKind::Absent, false),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(decision(&mut world, 0), Some(READ));
    let write = Outcome::Admitted(AdmitReason::Dirty);
    assert_eq!(decision(&mut world, 100), Some(Decision { access: Access::Write, outcome: write }));
    let (first, second) = (explain(&mut world, 0), explain(&mut world, 100));
    assert!(first.version < second.version);
    assert_ne!(first.place.expect("cached").segment, second.place.expect("cached").segment);
}

#[test]
fn what_is_kept_is_what_was_read_again_or_is_dirty() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.policy = PolicyKind::Lru;
    let mut world = setup.start();
    world.read_now(0, 0).expect("readable");
    assert_eq!(explain(&mut world, 0).is_kept, Some(false));
    world.read_now(0, 0).expect("readable");
    assert_eq!(explain(&mut world, 0).is_kept, Some(true));
    assert_eq!(explain(&mut world, 0).is_kept, Some(true), "asking changes nothing");
    world.write_now(0, 1, 1, 1);
    assert_eq!(explain(&mut world, 1).is_kept, Some(true));
}

#[test]
fn a_write_under_way_is_pending_until_its_record_is_complete() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let write = world.write(0, 5, 1, 1);
    world.settle_except(cache::record);
    let found = explain(&mut world, 5);
    assert!(found.is_write_pending);
    assert_eq!(found.kind, CopyKind::Absent);
    world.finish(&[write]);
    let found = explain(&mut world, 5);
    assert!(!found.is_write_pending);
    let place = found.place.expect("it is there");
    assert!(place.sequence_max.0 > 0 && !place.is_recovered);
}

#[test]
fn the_age_is_that_of_the_segment_and_ends_at_a_start() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 5, 1, 1);
    world.now += 3_000_000_000;
    let place = explain(&mut world, 5).place.expect("cached");
    assert!((3_000..4_000).contains(&place.age_ms_max), "{place:?}");
    assert!(!place.is_recovered);
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    let place = explain(&mut world, 5).place.expect("cached");
    assert!(place.is_recovered, "{place:?}");
    assert_eq!(explain(&mut world, 5).decision, None, "what was decided is not kept");
}

#[test]
fn a_bypass_says_why() {
    let mut setup = Setup::of(&[CacheMode::Writeonly]);
    setup.origin_bytes = 1 << 20;
    let mut world = setup.start();
    world.read_now(0, 9).expect("readable");
    let outcome = Outcome::Bypassed(BypassReason::Mode);
    assert_eq!(decision(&mut world, 15), Some(Decision { access: Access::Read, outcome }));
    assert_eq!(decision(&mut world, 16), None, "another 64 KiB");
}

#[test]
fn a_large_request_leaves_others_their_places() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let read = world.read(0, 0, 512);
    world.finish(&[read]);
    let known = (0..32).filter(|region| decision(&mut world, region * 16).is_some()).count();
    assert_eq!(known, 16, "of 32 regions");
}

#[test]
fn what_is_not_there_is_not_explained() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let now = world.time();
    let engine = world.engine().0;
    assert_eq!(engine.explain(now, VolumeSlot(0), OriginBlock(2048)), None);
    assert_eq!(engine.explain(now, VolumeSlot(1), OriginBlock(0)), None);
    assert!(engine.explain(now, VolumeSlot(0), OriginBlock(2047)).is_some());
}

#[test]
fn a_clean_stop_remembers_what_was_used_and_a_crash_what_was_cached() {
    for policy in [PolicyKind::Clock2q, PolicyKind::Lru] {
        let mut setup = Setup::of(&[CacheMode::Writeback]);
        setup.policy = policy;
        let mut world = setup.start();
        world.read_now(0, 0).expect("readable");
        world.read_now(0, 1).expect("readable");
        // For clock2q a use says nothing until some others have come.
        for block in (100..400).step_by(20) {
            let others = world.read(0, block, 20);
            world.finish(&[others]);
        }
        world.read_now(0, 1).expect("readable");
        let kept = |world: &mut World| [0, 1].map(|block| explain(world, block).is_kept);
        assert_eq!(kept(&mut world), [Some(false), Some(true)], "{policy:?}");
        assert_eq!(world.command_now(Command::Stop), Ok(None));
        world.restart().expect("nothing is damaged");
        assert_eq!(kept(&mut world), [Some(false), Some(true)], "{policy:?}");
        world.kill(|_| Keep::All);
        world.restart().expect("nothing is damaged");
        let expected = [Some(false), Some(false)];
        assert_eq!(kept(&mut world), expected, "both are cached still, {policy:?}");
    }
}

#[test]
fn a_copy_is_no_younger_for_having_been_moved() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.policy = PolicyKind::Lru;
    setup.origin_bytes = 8192 * 4096;
    let mut world = setup.start();
    world.read_now(0, 0).expect("readable");
    world.read_now(0, 0).expect("readable");
    world.now += 3_000_000_000;
    let segment = |world: &mut World| explain(world, 0).place.expect("cached").segment;
    let first = segment(&mut world);
    for block in (32..8192).step_by(32) {
        let read = world.read(0, block, 32);
        world.finish(&[read]);
        world.settle();
        if segment(&mut world) != first {
            break;
        }
    }
    assert_ne!(segment(&mut world), first);
    let found = explain(&mut world, 0);
    assert!(found.place.expect("cached").age_ms_max >= 3_000 && !found.is_dirty, "{found:?}");
}

#[test]
fn the_record_of_a_copy_is_named() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    world.write_now(0, 100, 8, 2);
    let zero = world.zero(0, 200, 4);
    world.finish(&[zero]);
    world.write_now(0, 300, 2, 3);
    let written: Vec<RecordHeader> = world.records_since(mark).cloned().collect();
    let named = |world: &mut World, block: u64| {
        let record = record_of(&ask(world, block)).expect("its header is whole");
        (record.sequence, record.block)
    };
    for (block, start) in [(0, 0), (100, 100), (107, 100), (202, 200), (301, 300)] {
        let is_it =
            |header: &&RecordHeader| header.entries.iter().any(|entry| entry.start == start);
        let header = written.iter().find(is_it).expect("it was written");
        assert_eq!(named(&mut world, block), (header.sequence, header.block), "block {block}");
    }
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    let header = written.iter().find(|header| header.entries[0].start == 100);
    assert_eq!(named(&mut world, 105).0, header.expect("as above").sequence);
}

#[test]
fn a_header_that_cannot_be_read_leaves_the_record_open() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 5, 1, 1);
    let record = record_of(&ask(&mut world, 5)).expect("its header is whole");
    let question = Command::Explain { volume: VolumeSlot(0), block: OriginBlock(5) };
    let command = world.command(question.clone());
    let read = world.the(cache::read);
    world.fail(read, IoError::Media, Keep::All);
    let found = told(&world, command).expect("it is explained all the same");
    assert_eq!((found.kind, record_of(&found)), (CopyKind::Data, None));
    let header = world.place_of(5) - 4096;
    world.disk(Device::Cache).rot(header, 1);
    assert_eq!(record_of(&ask(&mut world, 5)), None);
    assert!(record.block + 1 == explain(&mut world, 5).place.expect("cached").block);
}

#[test]
fn a_copy_that_moves_meanwhile_is_not_said_to_be_in_its_old_record() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 5, 1, 1);
    let old = record_of(&ask(&mut world, 5)).expect("its header is whole");
    let question = Command::Explain { volume: VolumeSlot(0), block: OriginBlock(5) };
    let command = world.command(question);
    let write = world.write(0, 5, 1, 2);
    world.settle_except(cache::read);
    assert!(world.is_done(write));
    world.settle();
    let found = told(&world, command).expect("it is explained");
    assert_eq!(record_of(&found), None);
    assert!(record_of(&ask(&mut world, 5)).expect("its header is whole").sequence > old.sequence);
}

#[test]
fn questions_have_a_bound_and_volumes_an_end() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let behind = Command::Explain { volume: VolumeSlot(0), block: OriginBlock(2048) };
    assert_eq!(world.command_now(behind), Err(CommandError::NoSuchVolume));
    let absent = ask(&mut world, 7);
    assert_eq!((absent.kind, absent.place), (CopyKind::Absent, None));
    world.kill(|_| Keep::All);
    world.begin_restart(&[]);
    let question = Command::Explain { volume: VolumeSlot(0), block: OriginBlock(7) };
    let commands: Vec<u64> = (0..100).map(|_| world.command(question.clone())).collect();
    let refused = |world: &World| {
        let is_busy = |id: &&u64| world.command_result(**id) == Some(Err(CommandError::Busy));
        commands.iter().filter(is_busy).count()
    };
    assert_eq!(refused(&world), 36, "64 wait for the end of recovery");
    world.finish_restart().expect("nothing is damaged");
    world.settle();
    assert!(commands.iter().all(|id| world.command_result(*id).is_some()));
    assert_eq!(refused(&world), 84, "16 wait for their turn");
}
