//! Parts of blocks, and origins whose size is no multiple of a block.

use forebay_engine::options::CacheMode;

use crate::harness::{BLOCK, Content, Keep, ORIGINAL, Setup, World, content_of};
use crate::modes::ALL;

/// An origin with three sectors in its last block.
fn odd(mode: CacheMode) -> World {
    let mut setup = Setup::of(&[mode]);
    setup.origin_bytes = 100 * BLOCK + 3 * 512;
    setup.start()
}

/// Sector by sector what clients see of a block.
fn sectors(world: &mut World, block: u64) -> Vec<Content> {
    let read = world.read(0, block, 1);
    world.finish(&[read]);
    let bytes = world.delivered(read);
    (block * 8..).zip(bytes.chunks_exact(512)).map(|(at, b)| content_of(b, 0, at)).collect()
}

#[test]
fn the_tail_is_read_and_written_exactly() {
    for mode in ALL {
        let mut world = odd(mode);
        assert_eq!(sectors(&mut world, 100), [Content::Tag(ORIGINAL); 3], "{mode:?}");
        let one = world.write_sectors(0, 801, 1, 1);
        world.finish(&[one]);
        let expected = [ORIGINAL, 1, ORIGINAL].map(Content::Tag);
        assert_eq!(sectors(&mut world, 100), expected, "{mode:?}");
        let tail = world.write_sectors(0, 799, 4, 2);
        world.finish(&[tail]);
        assert_eq!(sectors(&mut world, 100), [Content::Tag(2); 3], "{mode:?}");
        assert_eq!(sectors(&mut world, 99)[6..], [ORIGINAL, 2].map(Content::Tag), "{mode:?}");
        world.flush_now(0);
        world.cut_power(|_, _| false);
        world.restart().expect("nothing is damaged");
        assert_eq!(sectors(&mut world, 100), [Content::Tag(2); 3], "{mode:?}");
        world.switch(0, CacheMode::Passthrough);
        assert_eq!(world.on_origin(0, 100), Content::Tag(2), "{mode:?}");
    }
}

#[test]
fn a_cached_tail_passes_its_checksum() {
    let mut world = odd(CacheMode::Writeback);
    for _ in 0..2 {
        assert_eq!(sectors(&mut world, 100), [Content::Tag(ORIGINAL); 3]);
    }
    assert_eq!(world.counters(0).read_hits, 1);
    assert_eq!(world.counters(0).repaired_blocks, 0);
    let place = world.place_of(100);
    world.cache.rot(place, 512);
    assert_eq!(sectors(&mut world, 100), [Content::Tag(ORIGINAL); 3]);
    assert_eq!(world.counters(0).repaired_blocks, 1);
}

#[test]
fn zeroes_reach_to_the_very_end() {
    for mode in ALL {
        let mut world = odd(mode);
        let zero = world.zero_bytes(0, 99 * BLOCK + 512, BLOCK + 2 * 512);
        world.finish(&[zero]);
        let (before, tail) = (sectors(&mut world, 99), sectors(&mut world, 100));
        assert_eq!(before[..2], [Content::Tag(ORIGINAL), Content::Zeroes], "{mode:?}");
        assert_eq!(tail, [Content::Zeroes; 3], "{mode:?}");
        world.switch(0, CacheMode::Passthrough);
        assert_eq!(world.on_origin(0, 100), Content::Zeroes, "{mode:?}");
    }
}

#[test]
fn a_write_that_starts_and_ends_within_blocks_touches_nothing_else() {
    for mode in ALL {
        let mut world = odd(mode);
        world.write_now(0, 10, 4, 1);
        let write = world.write_sectors(0, 10 * 8 + 3, 18, 2);
        world.finish(&[write]);
        let seen: Vec<Content> = (10..14).flat_map(|block| sectors(&mut world, block)).collect();
        let expected: Vec<Content> =
            (0..32).map(|at| Content::Tag(if (3..21).contains(&at) { 2 } else { 1 })).collect();
        assert_eq!(seen, expected, "{mode:?}");
        world.kill(|_| Keep::Nothing);
        world.restart().expect("nothing is damaged");
        let seen: Vec<Content> = (10..14).flat_map(|block| sectors(&mut world, block)).collect();
        assert_eq!(seen, expected, "{mode:?}");
    }
}

#[test]
fn reads_of_sectors_deliver_those_sectors() {
    let mut world = odd(CacheMode::Writeback);
    for _ in 0..2 {
        let read = world.read_bytes(0, 9 * 512, 9 * 512);
        world.finish(&[read]);
        assert_eq!(content_of(world.delivered(read), 0, 9), Content::Tag(ORIGINAL));
    }
    assert_eq!(world.counters(0).read_hits, 1);
}

#[test]
fn a_discard_of_part_of_a_block_leaves_the_rest() {
    let mut world = odd(CacheMode::Writeback);
    world.write_now(0, 10, 4, 1);
    let discard = world.discard(0, 11, 2);
    world.finish(&[discard]);
    world.clean(0);
    assert_eq!(world.look(0, [10, 13].into_iter()), [Content::Tag(1); 2]);
    assert_eq!(world.on_origin(0, 10), Content::Tag(1));
}
