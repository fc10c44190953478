//! Rule 7: write zeroes and discard have no payload, and are dirty like data all the same.

use forebay_engine::format::checkpoint::BLANK_PIECES_MAX;
use forebay_engine::io::{Device, IoError};
use forebay_engine::options::CacheMode;
use forebay_engine::request::RequestError;
use forebay_engine::status::BlockState;

use crate::harness::{BLOCK, Content, Held, Keep, ORIGINAL, Setup, What, World, cache, origin};

fn writeback() -> World {
    Setup::of(&[CacheMode::Writeback]).start()
}

/// Stops, which writes a checkpoint, and starts again.
fn stop_and_start(world: &mut World) {
    let result = world.command_now(forebay_engine::event::Command::Stop);
    assert_eq!(result, Ok(None));
    world.kill(|_| Keep::Nothing);
    world.restart().expect("a clean stop leaves no damage");
}

#[test]
fn zeroes_are_dirty_until_the_origin_has_them() {
    let mut world = writeback();
    let mark = world.mark();
    let zero = world.zero(0, 10, 100);
    world.finish(&[zero]);
    assert_eq!(world.origin_ios_since(mark), 0);
    assert_eq!(world.dirty(0), 100);
    assert_eq!(world.state(0, 50), BlockState::Dirty);
    assert_eq!(world.look(0, 9..12), [Content::Tag(ORIGINAL), Content::Zeroes, Content::Zeroes]);
    world.drain(0);
    world.settle_except(origin::flush(0));
    assert_eq!(world.dirty(0), 100, "complete is not durable");
    world.idle();
    assert_eq!(world.dirty(0), 0);
    for block in [10, 109] {
        assert_eq!(world.on_origin(0, block), Content::Zeroes);
    }
    assert_eq!(world.on_origin(0, 110), Content::Tag(ORIGINAL));
}

#[test]
fn zeroes_survive_a_kill_and_a_checkpoint() {
    let mut world = writeback();
    let zero = world.zero(0, 10, 100);
    world.finish(&[zero]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.read_now(0, 60), Ok(Content::Zeroes));
    stop_and_start(&mut world);
    assert_eq!(world.dirty(0), 100);
    assert_eq!(world.look(0, [10, 60, 109].into_iter()), [Content::Zeroes; 3]);
    world.clean(0);
    assert_eq!(world.on_origin(0, 60), Content::Zeroes);
}

/// One bit stands for the whole record: a checkpoint has to name the pieces that are left.
#[test]
fn partly_overwritten_zeroes_survive_checkpoint_and_recovery() {
    let mut world = writeback();
    let zero = world.zero(0, 0, 40);
    world.finish(&[zero]);
    world.write_now(0, 10, 5, 1);
    world.write_now(0, 30, 1, 2);
    let expected = |world: &mut World| {
        let seen = world.look(0, [9, 10, 14, 15, 29, 30, 31, 39].into_iter());
        let (zero, one, two) = (Content::Zeroes, Content::Tag(1), Content::Tag(2));
        assert_eq!(seen, [zero, one, one, zero, zero, two, zero, zero]);
    };
    expected(&mut world);
    for _ in 0..2 {
        stop_and_start(&mut world);
        expected(&mut world);
        assert_eq!(world.dirty(0), 40);
    }
    world.clean(0);
    expected(&mut world);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    expected(&mut world);
    for (block, content) in [(9, Content::Zeroes), (10, Content::Tag(1)), (31, Content::Zeroes)] {
        assert_eq!(world.on_origin(0, block), content);
    }
}

/// A checkpoint has room for so many pieces of zeroes. The origin does not take the zeroes at
/// first, so that their pieces become no fewer: what would cut them further waits.
#[test]
fn pieces_of_zeroes_never_outgrow_a_checkpoint_and_writes_wait_for_them() {
    let pieces_max = BLANK_PIECES_MAX as u64;
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.segments = 300;
    setup.origin_bytes = (2 * pieces_max + 1000) * BLOCK;
    let mut world = setup.start();
    world.fails = Some(Box::new(|held| (held.what == What::WriteZeroes).then_some(IoError::Media)));
    for part in 0..2 * pieces_max / 256 + 2 {
        let zero = world.zero(0, part * 256, 256);
        world.finish(&[zero]);
    }
    let cut = |world: &mut World| -> Vec<u64> {
        (0..pieces_max + 100).map(|n| world.write(0, 2 * n + 1, 1, n)).collect()
    };
    let writes = cut(&mut world);
    world.idle_for(1_000);
    let waiting = writes.iter().filter(|id| world.is_pending(**id)).count();
    assert!((1..writes.len() / 2).contains(&waiting), "{waiting} writes wait");
    let outside = 2 * pieces_max + 800;
    world.write_now(0, outside, 1, 7);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("its checkpoint has room for all pieces");
    assert_eq!(
        world.look(0, [0, 1, 2].into_iter()),
        [Content::Zeroes, Content::Tag(0), Content::Zeroes]
    );
    let again = cut(&mut world);
    world.idle_for(1_000);
    assert!(again.iter().any(|id| world.is_pending(*id)));
    world.fails = None;
    world.idle();
    assert!(again.iter().all(|id| world.is_done(*id)), "the zeroes are home");
    assert_eq!(world.read_now(0, 2 * pieces_max - 1), Ok(Content::Tag(pieces_max - 1)));
    stop_and_start(&mut world);
}

/// The overwriting blocks go home and are dropped, while the origin refuses the zeroes: these must
/// not come over what the origin has.
#[test]
fn zeroes_do_not_cover_what_was_written_over_them_and_left_the_cache() {
    let mut setup = Setup::of(&[CacheMode::Writeback]);
    setup.writeback_percent = 0;
    let mut world = setup.start();
    world.fails = Some(Box::new(|held| (held.what == What::WriteZeroes).then_some(IoError::Media)));
    let zero = world.zero(0, 0, 40);
    world.finish(&[zero]);
    // The zeroes' segment is full; what overwrites them goes to another one.
    for part in 0..4 {
        world.write_now(0, 100 + part * 15, 15, 9);
    }
    world.write_now(0, 10, 5, 1);
    let mut chunk = 0;
    while world.is_cached(0, 10) {
        world.write_now(0, 200 + chunk % 100 * 15, 15, 9);
        world.idle_for(6_000);
        chunk += 1;
        assert!(chunk < 200, "it is never dropped");
    }
    assert_eq!(world.on_origin(0, 10), Content::Tag(1));
    assert_eq!(world.dirty(0), 35);
    stop_and_start(&mut world);
    let seen = world.look(0, [9, 10, 14, 15].into_iter());
    assert_eq!(seen, [Content::Zeroes, Content::Tag(1), Content::Tag(1), Content::Zeroes]);
    world.fails = None;
    world.clean(0);
    assert_eq!(world.on_origin(0, 10), Content::Tag(1));
    assert_eq!(world.on_origin(0, 15), Content::Zeroes);
}

/// The origin refuses everything, so that reclaim has to move what is dirty, zeroes among it.
#[test]
fn zeroes_are_relocated_while_the_origin_cannot_take_them() {
    let mut world = writeback();
    for part in 0..3 {
        world.write_now(0, 100 + part * 15, 15, 1);
    }
    world.clean(0);
    let zero = world.zero(0, 0, 40);
    world.finish(&[zero]);
    world.fails = Some(Box::new(|held| origin::write(0)(held).then_some(IoError::Media)));
    // Overwritten again and again, all but the first segment is dead; that one is moved or kept.
    for round in 0..300 {
        world.write_now(0, 200, 15, round);
        world.idle_for(50);
    }
    assert_eq!(world.read_now(0, 39), Ok(Content::Zeroes));
    world.kill(|_| Keep::Nothing);
    world.fails = None;
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, [0, 39].into_iter()), [Content::Zeroes; 2]);
    assert_eq!(world.read_now(0, 214), Ok(Content::Tag(299)));
    world.clean(0);
    assert_eq!(world.on_origin(0, 20), Content::Zeroes);
}

#[test]
fn zeroes_void_older_copies_also_after_they_are_clean() {
    let mut world = writeback();
    world.write_now(0, 0, 5, 1);
    let zero = world.zero(0, 0, 5);
    world.finish(&[zero]);
    world.clean(0);
    world.cut_power(|device, _| device == Device::Cache);
    world.restart().expect("nothing is damaged");
    assert_eq!(world.look(0, 0..5), [Content::Zeroes; 5]);
}

#[test]
fn a_discard_is_sent_home_and_never_shows_older_data_of_the_log() {
    let mut world = writeback();
    world.write_now(0, 0, 5, 1);
    let discard = world.discard(0, 0, 5);
    world.finish(&[discard]);
    world.kill(|_| Keep::Nothing);
    world.restart().expect("nothing is damaged");
    let stays = world.look(0, 0..5);
    assert_eq!(world.look(0, 0..5), stays);
    world.write_now(0, 2, 1, 3);
    world.clean(0);
    assert_eq!(world.on_origin(0, 2), Content::Tag(3));
    assert_eq!(world.read_now(0, 2), Ok(Content::Tag(3)));
}

#[test]
fn zeroes_over_part_of_a_block_are_merged() {
    let mut world = writeback();
    world.write_now(0, 0, 2, 1);
    let zero = world.zero_bytes(0, 512, 4096);
    world.finish(&[zero]);
    let read = world.read(0, 0, 2);
    world.finish(&[read]);
    let bytes = world.delivered(read).to_vec();
    let part =
        |from: usize, to: usize| crate::harness::content_of(&bytes[from..to], 0, from as u64 / 512);
    assert_eq!(part(0, 512), Content::Tag(1));
    assert_eq!(part(512, 4608), Content::Zeroes);
    assert_eq!(part(4608, 8192), Content::Tag(1));
}

#[test]
fn zeroes_cannot_be_taken_for_written_before_their_record_is_complete() {
    let mut world = writeback();
    let zero = world.zero(0, 0, 5);
    assert!(world.is_pending(zero));
    assert_eq!(world.peek(0, 0), Content::Tag(ORIGINAL));
    let record = world.the(cache::record);
    world.complete(record);
    assert_eq!(world.result(zero), Some(Ok::<(), RequestError>(())));
    assert_eq!(world.read_now(0, 0), Ok(Content::Zeroes));
}

/// A write of zeroes goes through to the origin while the volume is drained, and writeback takes
/// its record, too: one flush makes it clean, and it is voided before the next says the same.
#[test]
fn zeroes_that_go_home_twice_are_counted_once() {
    let mut world = writeback();
    world.write_now(0, 0, 1, 1);
    let drain = world.drain(0);
    world.settle_except(origin::any(0));
    let zeroes = world.zero(0, 16, 4);
    world.settle_except(origin::any(0));
    // While an earlier record is under way, it is remembered that the zeroes are void.
    let late = world.write(0, 40, 1, 2);
    let is_late = cache::record_of(40);
    // The window ends; the next one waits for the lock of the client's write.
    let is_zeroes = |held: &Held| origin::any(0)(held) && held.what == What::WriteZeroes;
    let is_held = |held: &Held| is_zeroes(held) || is_late(held);
    world.settle_except(is_held);
    let by_client = world.the(is_zeroes);
    world.complete(by_client);
    world.settle_except(is_held);
    assert!(world.is_done(zeroes));
    let by_writeback = world.the(is_zeroes);
    world.idle_except(2_000, is_held);
    assert_eq!(world.dirty(0), 1, "the origin has the zeroes");
    world.complete(by_writeback);
    world.idle_except(2_000, is_held);
    assert_eq!(world.dirty(0), 1);
    world.finish(&[late]);
    world.idle();
    assert!(matches!(world.command_result(drain), Some(Ok(_))));
    assert_eq!((world.dirty(0), world.on_origin(0, 16)), (0, Content::Zeroes));
    assert_eq!(world.look(0, 15..17), [Content::Tag(ORIGINAL), Content::Zeroes]);
}
