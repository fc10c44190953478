//! What goes to the cache though it need not: settings, the budget of writes, and the counters.

use forebay_engine::event::{Command, CommandError};
use forebay_engine::options::{CacheMode, SequentialPolicy, SetSettings, VolumeSettings};
use forebay_engine::status::{AdmitReason, BypassReason};
use forebay_engine::units::VolumeSlot;

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, World, origin};

const HOUR_NS: u64 = 3_600_000_000_000;
/// Blocks that the smallest bucket holds: 4 MiB.
const BUCKET_BLOCKS: u64 = 1024;

fn admitted(world: &mut World, reason: AdmitReason) -> u64 {
    let index = AdmitReason::ALL.iter().position(|other| *other == reason);
    world.counters(0).admissions[index.expect("ALL has all")]
}

fn read(world: &mut World, block: u64, block_count: u64) {
    let read = world.read(0, block, block_count);
    world.finish(&[read]);
}

/// A day's budget that is as good as nothing, and a bucket that is empty.
fn exhausted(mode: CacheMode) -> World {
    let mut setup = Setup::of(&[mode]);
    setup.segments = 64;
    setup.cache_write_budget = 1;
    let mut world = setup.start();
    for part in 0..=BUCKET_BLOCKS / 64 {
        read(&mut world, part * 64, 64);
    }
    world
}

/// Where nothing was read yet.
const FRESH: u64 = BUCKET_BLOCKS + 64;

#[test]
fn without_settings_everything_is_admitted_at_once() {
    let mut world = Setup::of(&[CacheMode::Writethrough]).start();
    read(&mut world, 0, 8);
    world.write_now(0, 100, 4, 1);
    world.write_now(0, 0, 2, 1);
    assert_eq!(admitted(&mut world, AdmitReason::NoLimit), 8 + 4);
    assert_eq!(admitted(&mut world, AdmitReason::Cached), 2);
    world.prefetch(0, 200, 3);
    world.settle();
    assert_eq!(admitted(&mut world, AdmitReason::Prefetch), 3);
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    world.write_now(0, 0, 4, 1);
    assert_eq!(admitted(&mut world, AdmitReason::Dirty), 4);
}

#[test]
fn beyond_the_budget_only_what_was_missed_before_is_promoted() {
    let mut world = exhausted(CacheMode::Writeback);
    assert_eq!(admitted(&mut world, AdmitReason::WithinBudget), BUCKET_BLOCKS);
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), 64);
    read(&mut world, FRESH, 4);
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), 68);
    read(&mut world, FRESH, 4);
    assert_eq!(admitted(&mut world, AdmitReason::SeenBefore), 4);
    let mark = world.mark();
    read(&mut world, FRESH, 4);
    assert_eq!(world.origin_ios_since(mark), 0);
}

#[test]
fn the_budget_comes_back_with_time() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 64;
    setup.cache_write_budget = (24 * 4) << 20;
    let mut world = setup.start();
    for part in 0..BUCKET_BLOCKS / 64 {
        read(&mut world, part * 64, 64);
    }
    read(&mut world, FRESH, 1);
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), 1);
    world.now += HOUR_NS;
    read(&mut world, FRESH + 64, 1);
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), 1);
    assert_eq!(admitted(&mut world, AdmitReason::WithinBudget), BUCKET_BLOCKS + 1);
}

#[test]
fn a_request_half_of_which_is_known_is_promoted_as_a_whole() {
    let mut world = exhausted(CacheMode::Writeback);
    read(&mut world, FRESH, 4);
    read(&mut world, FRESH, 8);
    assert_eq!(admitted(&mut world, AdmitReason::SeenBefore), 8);
    read(&mut world, FRESH + 100, 3);
    let before = world.bypassed(0, BypassReason::CacheWriteBudget);
    read(&mut world, FRESH + 100, 8);
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), before + 8);
}

#[test]
fn dirty_data_goes_to_the_log_whatever_the_budget() {
    let mut world = exhausted(CacheMode::Writeback);
    let mark = world.mark();
    world.write_now(0, FRESH, 4, 1);
    assert_eq!((world.records_since(mark).count(), world.origin_ios_since(mark)), (1, 0));
    assert_eq!(world.dirty(0), 4);
}

#[test]
fn beyond_the_budget_writethrough_writes_only_what_is_cached_or_known_to_the_log() {
    let mut world = exhausted(CacheMode::Writethrough);
    let mark = world.mark();
    world.write_now(0, FRESH, 4, 1);
    assert_eq!((world.records_since(mark).count(), world.origin_ios_since(mark)), (0, 1));
    assert_eq!(world.on_origin(0, FRESH), Content::Tag(1));
    let mark = world.mark();
    world.write_now(0, FRESH, 4, 2);
    assert_eq!(world.records_since(mark).count(), 1, "it was missed before");
    let mark = world.mark();
    world.write_now(0, 0, 4, 3);
    assert_eq!(world.records_since(mark).count(), 1, "it is cached");
    assert_eq!(world.look(0, [0, FRESH].into_iter()), [3, 2].map(Content::Tag));
}

#[test]
fn a_block_is_promoted_at_the_miss_that_the_volume_asks_for() {
    for nhit in [1, 2, 3, 15] {
        let mut setup = Setup::of(&[CacheMode::Writeback]);
        setup.promotion_nhit = nhit;
        setup.read_ahead_bytes = 64 << 10;
        let mut world = setup.start();
        for miss in 1..=nhit {
            assert_eq!(world.counters(0).promoted_blocks, 0, "before miss {miss} of {nhit}");
            read(&mut world, 5, 1);
        }
        assert_eq!(world.counters(0).promoted_blocks, 1, "{nhit}");
        assert_eq!(world.bypassed(0, BypassReason::PromotionNhit), u64::from(nhit) - 1);
    }
}

#[test]
fn reads_are_not_promoted_where_that_is_off() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.promote_on_read = false;
    let mut world = setup.start();
    read(&mut world, 0, 4);
    assert_eq!(world.counters(0).promoted_blocks, 0);
    assert_eq!(world.bypassed(0, BypassReason::PromoteOnRead), 4);
    world.write_now(0, 0, 1, 1);
    let mark = world.mark();
    assert_eq!(world.read_now(0, 0), Ok(Content::Tag(1)));
    assert_eq!(world.origin_ios_since(mark), 0, "what is cached is served");
    world.prefetch(0, 8, 4);
    world.settle();
    assert_eq!(world.counters(0).promoted_blocks, 4, "a prefetch asks for it");
}

fn unpromoted_writes() -> World {
    let mut setup = Setup::of(&[CacheMode::Writethrough]);
    setup.promote_on_write = false;
    setup.start()
}

#[test]
fn writes_are_not_promoted_where_that_is_off() {
    let mut world = unpromoted_writes();
    let mark = world.mark();
    world.write_now(0, 0, 4, 1);
    let zero = world.zero(0, 10, 4);
    world.finish(&[zero]);
    assert_eq!((world.records_since(mark).count(), world.origin_ios_since(mark)), (0, 2));
    assert_eq!(world.bypassed(0, BypassReason::PromoteOnWrite), 8);
    assert_eq!(world.look(0, [3, 4, 13].into_iter())[..2], [1, ORIGINAL].map(Content::Tag));
    assert_eq!(world.on_origin(0, 13), Content::Zeroes);
}

#[test]
fn what_is_cached_stays_and_has_what_was_written() {
    let mut world = unpromoted_writes();
    read(&mut world, 0, 4);
    world.write_now(0, 2, 4, 1);
    let mark = world.mark();
    let seen = world.look(0, 0..6);
    assert_eq!(seen, [ORIGINAL, ORIGINAL, 1, 1, 1, 1].map(Content::Tag));
    assert_eq!(world.origin_ios_since(mark), 0);
    world.cut_power(|_, _| true);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..6), seen);
}

#[test]
fn a_promotion_under_way_does_not_outlive_a_write_that_goes_around_it() {
    let mut world = unpromoted_writes();
    let read = world.read(0, 0, 4);
    let write = world.write(0, 2, 1, 1);
    world.finish(&[read, write]);
    assert_eq!(world.look(0, 0..4), [ORIGINAL, ORIGINAL, 1, ORIGINAL].map(Content::Tag));
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 2..3), [Content::Tag(1)]);
}

#[test]
fn an_invalidated_copy_does_not_come_back_under_a_write_that_went_around() {
    let mut world = unpromoted_writes();
    read(&mut world, 3, 1);
    let invalidate = world.set_mode(0, CacheMode::Writearound);
    world.idle();
    assert!(matches!(world.command_result(invalidate), Some(Ok(_))));
    world.write_now(0, 3, 1, 1);
    world.switch(0, CacheMode::Writethrough);
    world.write_now(0, 3, 1, 2);
    world.flush_now(0);
    world.cut_power(|device, _| device != forebay_engine::io::Device::Cache);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(2)));
}

#[test]
fn streams_are_left_out_when_the_policy_says_so() {
    for (policy, cut) in
        [(SequentialPolicy::Full, 0), (SequentialPolicy::Always, 56), (SequentialPolicy::Never, 0)]
    {
        let mut setup = Setup::of(&[CacheMode::Writeback]);
        setup.sequential_cutoff_bytes = 8 * BLOCK;
        setup.sequential_policy = policy;
        let mut world = setup.start();
        for part in 0..8 {
            read(&mut world, part * 8, 8);
        }
        assert_eq!(world.bypassed(0, BypassReason::Sequential), cut, "{policy:?}");
    }
}

#[test]
fn streams_are_left_out_once_the_cache_is_full() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.sequential_cutoff_bytes = 8 * BLOCK;
    setup.sequential_policy = SequentialPolicy::Full;
    let mut world = setup.start();
    let mut read_blocks = 0;
    while read_blocks < 2048 {
        read(&mut world, read_blocks, 16);
        read_blocks += 16;
    }
    let promoted = world.counters(0).promoted_blocks;
    let cut = world.bypassed(0, BypassReason::Sequential);
    assert_eq!(promoted + cut, 2048);
    // 24 segments of 64 blocks, of which reclaim keeps 12 free.
    assert!((500..800).contains(&promoted), "{promoted}");
    world.kill(|_| Keep::All);
    world.restart().expect("nothing is damaged");
    read(&mut world, 1000, 16);
    assert_eq!(world.bypassed(0, BypassReason::Sequential), 16, "it is still full");
}

#[test]
fn a_full_cache_stays_full_until_a_quarter_of_it_is_free_beside_what_reclaim_keeps() {
    // Reclaim keeps 12 segments free, a quarter are 16.
    const FULL: u32 = 12;
    const NO_LONGER: u32 = 28;
    let mut setup = Setup::of(&[CacheMode::Writeback; 3]);
    setup.segments = 64;
    setup.sequential_cutoff_bytes = 8 * BLOCK;
    setup.sequential_policy = SequentialPolicy::Full;
    setup.origin_bytes = 16_384 * BLOCK;
    let mut world = setup.start();
    let read = |world: &mut World, volume: u16, from: u64, to: u64| {
        for block in (from..to).step_by(16) {
            let read = world.read(volume, block, (to - block).min(16));
            world.finish(&[read]);
        }
        world.bypassed(volume, BypassReason::Sequential)
    };
    let free = |world: &mut World| world.status().free_segments;
    assert_eq!(read(&mut world, 1, 0, 7 * 64), 0);
    assert_eq!(read(&mut world, 2, 0, 20 * 64), 0);
    let mut block = 0;
    while read(&mut world, 0, block, block + 16) == 0 {
        block += 16;
    }
    assert!((FULL - 2..=FULL).contains(&free(&mut world)), "{} are free", free(&mut world));
    // Reads here and there, which are no streams, until reclaim frees what is dead.
    let mut place = 1_024;
    let mut until_freed = |world: &mut World| {
        while free(world) <= FULL {
            read(world, 0, place, place + 8);
            world.idle();
            place += 24;
            assert!(place < 6_000, "nothing is freed");
        }
        free(world)
    };
    let mut start = 6_000;
    for (volume, is_full) in [(1, true), (2, false)] {
        let volume = VolumeSlot(volume);
        world.command_now(Command::Invalidate { volume }).expect("nothing is dirty");
        let free = until_freed(&mut world);
        assert!(free > FULL + 2 && (free <= NO_LONGER) == is_full, "{free} are free");
        let before = world.bypassed(0, BypassReason::Sequential);
        let cut = read(&mut world, 0, start, start + 32) - before;
        assert_eq!(cut > 0, is_full, "{free} are free");
        // Until it is full again.
        while world.status().free_segments > FULL {
            start += 24;
            read(&mut world, 0, start, start + 8);
        }
        start += 64;
    }
}

#[test]
fn a_write_that_had_to_wait_for_room_is_admitted_as_it_was_decided_before() {
    let mut world = Setup::of(&[CacheMode::Writeback, CacheMode::Writethrough]).start();
    let keeps = origin::write(0);
    for chunk in 0..128 {
        let write = world.write(0, chunk * 15, 15, 1);
        world.idle_except(2_000, &keeps);
        if world.is_pending(write) {
            break;
        }
    }
    let mark = world.mark();
    let write = world.write(1, 5, 1, 7);
    world.settle_except(&keeps);
    assert!(world.is_pending(write), "the log is full");
    assert_eq!(world.find(origin::write(1)), []);
    let settings = VolumeSettings { promote_on_write: false, ..VolumeSettings::default() };
    let volume = VolumeSlot(1);
    let command = world.command(Command::SetVolume { volume, settings });
    world.settle_except(&keeps);
    assert!(matches!(world.command_result(command), Some(Ok(_))));
    world.idle();
    assert!(world.is_done(write));
    let is_it = |record: &&forebay_engine::format::record::RecordHeader| {
        record.entries.iter().any(|entry| (entry.start, entry.block_count) == (5, 1))
    };
    assert!(world.records_since(mark).any(|record| is_it(&record)), "it went to the log");
    assert_eq!(world.counters(1).bypasses.iter().sum::<u64>(), 0);
    world.write_now(1, 50, 1, 8);
    assert_eq!(world.bypassed(1, BypassReason::PromoteOnWrite), 1, "a later one does not");
}

#[test]
fn streams_are_left_out_once_memory_is_short() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 64;
    setup.sequential_cutoff_bytes = 8 * BLOCK;
    setup.sequential_policy = SequentialPolicy::Full;
    let mut world = setup.start();
    let memory_max_bytes = world.status().memory_floor_bytes + 6_000;
    let settings = SetSettings { memory_max_bytes, ..SetSettings::default() };
    world.command_now(Command::SetCacheSet { settings }).expect("durable");
    (0..4).for_each(|part| read(&mut world, part * 16, 16));
    assert!(world.status().free_segments > 48, "the log is as good as empty");
    assert!(world.bypassed(0, BypassReason::Sequential) >= 32);
}

#[test]
fn writes_that_need_not_be_in_the_log_use_the_budget_up() {
    let mut setup = Setup::of(&[CacheMode::Writethrough]);
    setup.segments = 64;
    setup.cache_write_budget = 1;
    let mut world = setup.start();
    // Each of one block, and a header.
    (0..BUCKET_BLOCKS / 2).for_each(|block| world.write_now(0, 2 * block, 1, 1));
    assert_eq!(world.bypassed(0, BypassReason::CacheWriteBudget), 0);
    world.write_now(0, FRESH, 1, 1);
    world.write_now(0, FRESH + 8, 1, 1);
    assert!(world.bypassed(0, BypassReason::CacheWriteBudget) > 0);
}

#[test]
fn settings_out_of_range_are_refused_and_good_ones_last() {
    let mut world = Setup::of(&[CacheMode::Writeback]).start();
    let volume = VolumeSlot(0);
    for promotion_nhit in [0, 16] {
        let settings = VolumeSettings { promotion_nhit, ..VolumeSettings::default() };
        let result = world.command_now(Command::SetVolume { volume, settings });
        assert_eq!(result, Err(CommandError::Invalid), "{promotion_nhit}");
    }
    let too_much =
        SetSettings { cache_write_budget_bytes_per_day: (1 << 50) + 1, ..SetSettings::default() };
    let result = world.command_now(Command::SetCacheSet { settings: too_much });
    assert_eq!(result, Err(CommandError::Invalid));
    let settings = VolumeSettings {
        promotion_nhit: 15,
        promote_on_read: false,
        promote_on_write: false,
        sequential_policy: SequentialPolicy::Never,
        ..VolumeSettings::default()
    };
    world.command_now(Command::SetVolume { volume, settings }).expect("durable");
    let of_set =
        SetSettings { cache_write_budget_bytes_per_day: 1 << 50, ..SetSettings::default() };
    world.command_now(Command::SetCacheSet { settings: of_set }).expect("durable");
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    let stored = world.stored_superblock();
    assert_eq!(stored.settings, of_set);
    assert_eq!(stored.volume(volume).expect("attached").settings, settings);
    assert_eq!(world.status().settings, of_set);
    let mark = world.mark();
    world.write_now(0, 0, 1, 1);
    assert_eq!(world.find(origin::write(0)), [], "writeback does not ask");
    assert_eq!(world.records_since(mark).count(), 1);
}
