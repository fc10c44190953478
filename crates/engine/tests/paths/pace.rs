//! Writers are slowed down before the log is full of dirty data, and never for good.

use forebay_engine::event::{Command, SavedMark};
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::{CacheMode, HostMark, WritebackOrder};
use forebay_engine::request::RequestError;
use forebay_engine::status::BypassReason;
use forebay_engine::units::{Time, VolumeSlot};

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, What, World, cache, origin};

/// A write of its own run of blocks.
fn write(world: &mut World, chunk: u64) -> u64 {
    let id = world.write(0, chunk * 32, 16, chunk);
    world.settle_except(origin::any(0));
    id
}

/// So many chunks are dirty, and writeback has begun. One of its writes to the origin has ended
/// after .6 s, so that its speed is known; the others are under way.
fn filled(chunks: u64) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback, CacheMode::Writethrough]);
    setup.writeback_percent = 25;
    let mut world = setup.start();
    for chunk in 0..chunks {
        let id = write(&mut world, chunk);
        // Nobody knows yet how fast writeback is.
        world.idle_except(50, origin::any(0));
        assert!(world.is_done(id));
    }
    world.idle_except(600, origin::any(0));
    let writes = world.find(origin::write(0));
    world.complete(writes[0]);
    world.settle_except(origin::any(0));
    world
}

/// One write has gone ahead, and this one waits behind it.
fn waiting(world: &mut World) -> u64 {
    let first = write(world, 50);
    assert!(world.is_done(first));
    let second = write(world, 51);
    assert!(world.is_pending(second));
    second
}

#[test]
fn a_writer_waits_between_the_marks_and_goes_on_by_itself() {
    let mut world = filled(38);
    let second = waiting(&mut world);
    assert_eq!(world.status().counters.throttled_writes, 0, "counted when it goes on");
    world.idle_except(1_000, origin::any(0));
    assert!(world.is_done(second));
    let counters = world.status().counters;
    assert_eq!((counters.throttled_writes, counters.space_waits), (1, 0));
    assert!((1_000..1_000_000).contains(&counters.throttled_us), "{}", counters.throttled_us);
}

#[test]
fn who_comes_later_waits_behind_who_waits() {
    let mut world = filled(38);
    let second = waiting(&mut world);
    let Some(Time(next)) = world.engine().0.poll_wakeup() else { panic!("it goes on by itself") };
    world.now = next - 1_000;
    let third = write(&mut world, 52);
    assert!(world.is_pending(second) && world.is_pending(third));
}

#[test]
fn half_of_those_that_wait_go_on_together() {
    let mut world = filled(38);
    let mut writers = vec![waiting(&mut world)];
    writers.extend((52..59).map(|chunk| world.write(0, chunk * 32, 2, chunk)));
    world.settle_except(origin::any(0));
    let done = |world: &World| writers.iter().filter(|id| world.is_done(**id)).count();
    assert_eq!(done(&world), 0);
    let mark = world.mark();
    while done(&world) == 0 {
        world.idle_except(1, origin::any(0));
    }
    assert_eq!(done(&world), 4);
    let records = world.count_since(mark, |_, what| matches!(what, What::Record(_)));
    assert_eq!(records, 1, "of all four");
}

#[test]
fn writes_through_to_the_origin_do_not_wait() {
    let mut world = filled(38);
    waiting(&mut world);
    let through = world.write(1, 0, 16, 1);
    world.settle_except(origin::any(0));
    assert!(world.is_done(through));
}

#[test]
fn nobody_waits_below_the_soft_mark() {
    let mut world = filled(27);
    for chunk in 50..53 {
        let id = write(&mut world, chunk);
        assert!(world.is_done(id));
    }
}

#[test]
fn the_fuller_the_log_the_longer_they_wait() {
    let times = [36, 38].map(|chunks| {
        let mut world = filled(chunks);
        let second = waiting(&mut world);
        let begin = world.time();
        while world.is_pending(second) {
            world.idle_except(1, origin::any(0));
        }
        world.time().nanoseconds_since(begin)
    });
    assert!(times[0] < times[1], "{times:?}");
}

#[test]
fn nobody_waits_for_an_origin_that_is_away() {
    let mut world = filled(38);
    let second = waiting(&mut world);
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    world.idle_for(1_000);
    assert!(world.is_done(second));
    // Writeback pauses.
    for chunk in 52..55 {
        let id = write(&mut world, chunk);
        assert!(world.is_done(id));
    }
}

#[test]
fn a_stop_does_not_wait_for_them() {
    let mut world = filled(38);
    let second = waiting(&mut world);
    let stop = world.command(Command::Stop);
    world.settle_except(origin::write(0));
    assert!(world.is_done(second), "it was accepted, so it is done");
    world.settle();
    assert!(matches!(world.command_result(stop), Some(Ok(_))));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 51 * 32), Ok(Content::Tag(51)));
}

#[test]
fn they_end_with_the_cache_device_and_are_done_again_when_it_is_back() {
    let mut world = filled(38);
    let second = waiting(&mut world);
    let third = world.write(0, 52 * 32, 16, 52);
    let read = world.read(0, 0, 1);
    let held = world.the(cache::read);
    world.fail(held, IoError::Gone, Keep::Nothing);
    world.settle();
    assert!(world.is_cache_failed());
    world.save_mark(1, SavedMark::ServedWithoutCache);
    world.come_back(Keep::All, &[HostMark::None, HostMark::ServedWithoutCache]);
    world.idle();
    assert!([second, third, read].iter().all(|id| world.is_done(*id)));
}

/// Blocks that the first window of writeback writes, in a log of 100 segments, if it begins when so
/// many percent of it are dirty, with these marks.
fn first_window(percent: u8, marks: (u8, u8)) -> u64 {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 100;
    setup.origin_bytes = 8192 * BLOCK;
    setup.writeback_percent = percent;
    setup.marks = marks;
    let mut world = setup.start();
    for chunk in 0..250 {
        let id = world.write(0, chunk * 32, 16, chunk);
        world.settle_except(origin::flush(0));
        assert!(world.is_done(id));
        if !world.find(origin::flush(0)).is_empty() {
            return world.counters(0).writeback_blocks;
        }
    }
    panic!("no window");
}

#[test]
fn a_window_is_as_large_as_the_room_for_what_is_written_meanwhile() {
    // Three chunks of 16 blocks a segment, in segments of 64 blocks.
    let quarter = first_window(25, (40, 90));
    assert!((1600..1700).contains(&quarter), "all of it: {quarter}");
    // It begins at the soft mark.
    assert_eq!(first_window(60, (65, 85)), 19 * 48, "what is left to the hard mark");
    assert_eq!(first_window(80, (81, 85)), 16 * 48, "the least there is");
}

#[test]
fn a_window_that_is_outgrown_is_cut_short() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 100;
    setup.origin_bytes = 8192 * BLOCK;
    setup.writeback_percent = 10;
    let mut world = setup.start();
    // The first window begins, and the log fills up beside it.
    for chunk in 0..140 {
        world.write(0, chunk * 32, 16, chunk);
        world.settle_except(origin::any(0));
    }
    let runs = world.find(origin::write(0));
    assert!(!runs.is_empty());
    for run in runs {
        world.complete(run);
        world.settle_except(origin::any(0));
    }
    assert_eq!(world.find(origin::write(0)), [], "the rest of the window is left");
    assert_eq!(world.find(origin::flush(0)).len(), 1);
    let before = world.counters(0).writeback_blocks;
    assert!(before < 16 * 16, "{before}");
    // The next one takes all, and ends by itself.
    let held = world.the(origin::flush(0));
    world.complete(held);
    world.settle_except(origin::flush(0));
    assert!(world.counters(0).writeback_blocks > 60 * 16);
}

#[test]
fn what_a_segment_holds_that_is_in_use_again_does_not_count_as_home() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 40;
    setup.origin_bytes = 8192 * BLOCK;
    setup.writeback_percent = 10;
    let mut world = setup.start();
    // A window begins. Its blocks are written again and again, so that its segments become free and
    // are used again.
    for chunk in (0..20).cycle().take(130) {
        let id = write(&mut world, chunk);
        assert!(world.is_done(id));
    }
    // All of it is home or superseded but for two runs.
    let [window @ .., next, _] = &world.find(origin::write(0))[..] else { panic!("no window") };
    for run in window {
        world.complete(*run);
        world.settle_except(origin::any(0));
    }
    for chunk in 20..58 {
        write(&mut world, chunk);
    }
    world.idle_except(5_000, origin::any(0));
    world.complete(*next);
    world.settle_except(origin::any(0));
    write(&mut world, 60);
    let second = write(&mut world, 61);
    assert!(world.is_pending(second), "the log is beyond its soft mark");
}

/// The log is beyond its hard mark, and writeback has begun.
fn at_the_hard_mark(order: WritebackOrder) -> World {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 25;
    setup.marks = (10, 20);
    setup.order = order;
    let mut world = setup.start();
    for chunk in 0..20 {
        world.write(0, chunk * 32, 16, chunk);
    }
    world.idle_except(30_000, origin::any(0));
    world
}

/// What the next write to these blocks is answered with, and whether it went to the origin.
fn is_around(world: &mut World, block: u64, block_count: u64) -> bool {
    let before = world.find(origin::write(0)).len();
    world.write(0, block, block_count, 77);
    world.settle_except(origin::any(0));
    world.find(origin::write(0)).len() > before
}

#[test]
fn at_the_hard_mark_what_is_not_cached_goes_around() {
    let mut world = at_the_hard_mark(WritebackOrder::Coalescing);
    let before = world.bypassed(0, BypassReason::LogFull);
    assert!(is_around(&mut world, 1000, 4));
    assert_eq!(world.bypassed(0, BypassReason::LogFull), before + 4);
    assert!(!is_around(&mut world, 0, 4), "it is dirty");
    let zeroes = world.zero(0, 1200, 8);
    let mark = world.mark();
    world.idle_for(30_000);
    assert!(world.is_done(zeroes));
    // A flush covers it.
    world.flush_now(0);
    assert!(
        world.count_since(mark, |device, what| {
            *device == Device::Origin(VolumeSlot(0)) && *what == What::Flush
        }) > 0
    );
    world.cut_power(|_, _| false);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 1003), Ok(Content::Tag(77)));
    assert_eq!(world.read_now(0, 3), Ok(Content::Tag(77)));
}

#[test]
fn in_order_nothing_goes_around() {
    let mut world = at_the_hard_mark(WritebackOrder::Ordered);
    assert!(!is_around(&mut world, 1000, 4));
}

#[test]
fn a_write_around_that_fails_says_so_and_the_old_content_stays() {
    let mut world = at_the_hard_mark(WritebackOrder::Coalescing);
    let write = world.write(0, 1000, 4, 77);
    world.settle_except(origin::any(0));
    let around = world.the(|held| origin::write(0)(held) && held.offset == 1000 * BLOCK);
    world.fail(around, IoError::Media, Keep::Nothing);
    world.settle();
    assert_eq!(world.result(write), Some(Err(RequestError::Io)));
    assert_eq!(world.read_now(0, 1000), Ok(Content::Tag(ORIGINAL)));
}
