//! show, check, wipe and serve on devices that are not what they should be.

use std::fs;
use std::path::Path;

use crate::support::Scratch;

/// Turns bits over.
fn flip(path: &Path, offset: usize) {
    let mut content = fs::read(path).unwrap();
    content[offset] ^= 0x5a;
    fs::write(path, content).unwrap();
}

/// Every command that reads a cache device ends with 5, says why, and writes nothing.
fn refused_everywhere(scratch: &Scratch, cache: &Path, why: &str) {
    let before = fs::read(cache).unwrap();
    let name = cache.file_name().unwrap().to_str().unwrap();
    scratch.run(&["show", name]).expect(5).says(why);
    scratch.run(&["check", name]).expect(5).says(why);
    scratch.run(&["wipe", name]).expect(5).says(why);
    scratch.file("spare", 1 << 20);
    scratch.run(&["serve", name, "--state-dir", "state"]).expect(5).says(why);
    assert_eq!(fs::read(cache).unwrap(), before);
}

#[test]
fn a_zeroed_device_is_no_cache_device() {
    let scratch = Scratch::new();
    let cache = scratch.file("zeroes", 32 << 20);
    refused_everywhere(&scratch, &cache, "magic");
}

#[test]
fn a_foreign_device_is_no_cache_device() {
    let scratch = Scratch::new();
    let cache = scratch.file("text", 32 << 20);
    let mut content = fs::read(&cache).unwrap();
    content.iter_mut().zip(b"forebay? no. ".iter().cycle()).for_each(|(to, from)| *to = *from);
    fs::write(&cache, content).unwrap();
    refused_everywhere(&scratch, &cache, "magic");
}

#[test]
fn a_truncated_device_is_refused() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    fs::File::options().write(true).open(&cache).unwrap().set_len(31 << 20).unwrap();
    refused_everywhere(&scratch, &cache, "formatted with");
}

#[test]
fn missing_and_wrong_objects_are_named() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    for command in ["show", "check", "wipe"] {
        scratch.run(&[command, "nowhere"]).expect(4).says("nowhere");
        scratch.run(&[command, "dir"]).expect(1).says("neither");
    }
    scratch.file("tiny", 4096);
    scratch.run(&["show", "tiny"]).expect(5);
    scratch.run(&["check", "tiny"]).expect(5);
    scratch.run(&["serve", "tiny", "--state-dir", "state"]).expect(5);
    scratch.run(&["serve", "nowhere", "--state-dir", "state"]).expect(4);
}

#[test]
fn one_superblock_is_enough_to_serve_and_check_tells() {
    for offset in [100, (32 << 20) - 1000] {
        let scratch = Scratch::new();
        let cache = scratch.cache_with_volume("writeback");
        flip(&cache, offset);
        scratch.run(&["show", "cache.img"]).expect(0).says("DAMAGED");
        scratch.run(&["check", "cache.img"]).expect(5).says("damage: superblock");
        let server = scratch.serve();
        server.client().write(0, &[1; 4096]).unwrap();
        assert_eq!(server.terminate(), Some(0));
    }
}

#[test]
fn without_a_superblock_nothing_works() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    flip(&cache, 100);
    flip(&cache, (32 << 20) - 1000);
    refused_everywhere(&scratch, &cache, "checksum");
}

#[test]
fn one_checkpoint_is_enough_and_none_is_not() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let geometry = scratch.run(&["show", "cache.img", "--json"]).json()["geometry"].clone();
    let number = |name: &str| usize::try_from(geometry[name].as_u64().unwrap()).unwrap();
    let (offset, length) = (number("checkpoint_offset_bytes"), number("checkpoint_bytes"));
    flip(&cache, offset + 60);
    scratch.run(&["check", "cache.img"]).expect(0).says("note: checkpoint A");
    assert_eq!(scratch.serve().terminate(), Some(0));
    scratch.run(&["check", "cache.img"]).expect(0);
    flip(&cache, offset + 60);
    flip(&cache, offset + length + 60);
    scratch.run(&["check", "cache.img"]).expect(5).says("damage: checkpoint B");
    scratch
        .run(&["serve", "cache.img", "--state-dir", "state"])
        .expect(5)
        .says("neither checkpoint");
}

#[test]
fn a_flipped_payload_is_found() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[7; 65536]).unwrap();
    assert_eq!(server.terminate(), Some(0));
    let checked = scratch.run(&["check", "cache.img", "--json"]).expect(0).json();
    assert!(checked["verified_block_count"].as_u64().unwrap() >= 16, "{checked:#}");
    let content = fs::read(&cache).unwrap();
    let place = content.windows(4096).position(|window| window == [7; 4096]).unwrap();
    flip(&cache, place + 5000);
    scratch.run(&["check", "cache.img"]).expect(5).says("damage: payload at segment");
    let server = scratch.serve();
    let mut block = [0; 4096];
    // The dirty block is lost; that is an error for it and not for its neighbours.
    assert!(server.client().read(4096, &mut block).is_err());
    server.client().read(3 * 4096, &mut block).unwrap();
    assert_eq!(block, [7; 4096]);
}

#[test]
fn a_wiped_device_is_plain_again() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writethrough");
    scratch.run(&["wipe", "cache.img", "--state-dir", "state"]).expect(0);
    scratch.run(&["show", "cache.img"]).expect(5);
    scratch.run(&["format", "cache.img"]).expect(0);
    assert_eq!(fs::metadata(&cache).unwrap().len(), 32 << 20);
}

#[test]
fn dirty_data_is_not_wiped() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).unwrap();
    scratch.run(&["wipe", "cache.img", "--state-dir", "state"]).expect(3).says("in service");
    assert_eq!(server.terminate(), Some(0));
    let before = fs::read(&cache).unwrap();
    scratch.run(&["wipe", "cache.img", "--state-dir", "state"]).expect(3).says("state file");
    // Without the state file, the device itself tells.
    scratch.run(&["wipe", "cache.img", "--state-dir", "elsewhere"]).expect(3).says("dirty blocks");
    assert_eq!(fs::read(&cache).unwrap(), before);
    scratch.run(&["wipe", "cache.img", "--state-dir", "state", "--force"]).expect(0);
    scratch.run(&["status", "--state-dir", "state"]).expect(4);
}
