//! format and attach: what is made, and what is refused.

use std::fs;

use crate::support::Scratch;

const COMMANDS: [&str; 14] = [
    "format",
    "attach",
    "serve",
    "status",
    "set",
    "drain",
    "detach",
    "invalidate",
    "stop",
    "show",
    "check",
    "wipe",
    "replay",
    "demo",
];

#[test]
fn every_command_has_help_with_an_example() {
    let scratch = Scratch::new();
    scratch.run(&["--help"]).expect(0).says("Exit codes:");
    for command in COMMANDS {
        scratch.run(&[command, "--help"]).expect(0).says(&format!("  forebay {command}"));
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    let scratch = Scratch::new();
    let wrong: [&[&str]; 11] = [
        &[],
        &["frobnicate"],
        &["format"],
        &["format", "x", "--frobnicate"],
        &["format", "x", "--size", "much"],
        &["format", "x", "--size", "32M", "--label", &"x".repeat(65)],
        &["attach", "x", "y"],
        &["attach", "x", "y", "--name", "n", "--cache-mode", "fast"],
        &["attach", "x", "iops:0:y", "--name", "n"],
        &["serve"],
        &["serve", "--bare", "nothing"],
    ];
    for arguments in wrong {
        scratch.run(arguments).expect(2);
    }
    assert!(!scratch.path("x").exists());
}

#[test]
fn a_cache_is_formatted_and_shown() {
    let scratch = Scratch::new();
    scratch
        .run(&["format", "c", "--size", "32M", "--label", "two words"])
        .expect(0)
        .says("cache set");
    assert_eq!(fs::metadata(scratch.path("c")).unwrap().len(), 32 << 20);
    scratch.run(&["show", "c"]).expect(0).says("two words");
    let shown = scratch.run(&["show", "c", "--json"]).expect(0).json();
    assert_eq!(shown["geometry"]["segment_bytes"], 256 << 10);
    assert_eq!(shown["checkpoint"]["live_bytes"], 0);
    scratch.run(&["check", "c"]).expect(0).says("no damage");
    let checked = scratch.run(&["check", "c", "--json"]).expect(0).json();
    assert_eq!((&checked["is_clean"], &checked["note_count"]), (&true.into(), &0.into()));
}

#[test]
fn what_cannot_hold_a_cache_is_refused_and_named() {
    let scratch = Scratch::new();
    scratch.run(&["format", "nowhere"]).expect(4).says("nowhere");
    fs::create_dir(scratch.path("dir")).unwrap();
    scratch.run(&["format", "dir"]).expect(1).says("neither a block device nor a regular file");
    scratch.file("empty", 0);
    scratch.run(&["format", "empty"]).expect(1).says("empty");
    scratch.file("tiny", 64 << 10);
    scratch.run(&["format", "tiny"]).expect(1).says("too few");
    assert_eq!(fs::read(scratch.path("tiny")).unwrap(), vec![0; 64 << 10]);
    scratch.run(&["format", "new", "--size", "1M"]).expect(1).says("new");
    assert!(!scratch.path("new").exists(), "what is of no use is removed");
    scratch.run(&["format", "tiny", "--size", "32M"]).expect(2).says("--size is for a new file");
    scratch.file("plain", 32 << 20);
    scratch.run(&["format", "plain", "--segment-size", "300K"]).expect(1).says("power of two");
}

#[test]
fn data_of_others_is_not_overwritten() {
    let scratch = Scratch::new();
    let path = scratch.file("disk", 32 << 20);
    let mut content = fs::read(&path).unwrap();
    // The magic number of ext4.
    content[1080..1082].copy_from_slice(&[0x53, 0xef]);
    fs::write(&path, &content).unwrap();
    scratch.run(&["format", "disk"]).expect(3).says("signature");
    assert_eq!(fs::read(&path).unwrap(), content);
    scratch.run(&["format", "disk", "--force"]).expect(0);
    scratch.file("origin", 1 << 20);
    scratch.run(&["attach", "disk", "origin", "--name", "precious"]).expect(0);
    scratch.run(&["format", "disk"]).expect(3).says("precious");
    scratch.run(&["format", "disk", "--force"]).expect(0);
    assert_eq!(scratch.run(&["show", "disk", "--json"]).json()["volumes"], serde_json::json!([]));
}

#[test]
fn volumes_are_attached_with_absolute_paths() {
    let scratch = Scratch::new();
    scratch.run(&["format", "c", "--size", "32M"]).expect(0);
    scratch.file("o", 1 << 20);
    scratch.file("p", 1 << 20);
    scratch.run(&["attach", "c", "iops:250:o", "--name", "first"]).expect(0);
    scratch.run(&["attach", "c", "./p", "--name", "second", "--cache-mode", "writeback"]).expect(0);
    let volumes = scratch.run(&["show", "c", "--json"]).expect(0).json()["volumes"].clone();
    let origin = format!("iops:250:{}", scratch.path("o").display());
    assert_eq!(volumes[0]["origin"], origin.as_str());
    assert_eq!(volumes[0]["cache_mode"], "writethrough");
    assert_eq!(volumes[1]["cache_mode"], "writeback");
    assert_eq!(volumes[1]["size_bytes"], 1 << 20);
}

#[test]
fn what_cannot_be_attached_is_refused_and_named() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let before = fs::read(&cache).unwrap();
    let attach =
        |origin: &str, name: &str| scratch.run(&["attach", "cache.img", origin, "--name", name]);
    attach("nowhere", "a").expect(4).says("nowhere");
    attach("cache.img", "a").expect(2).says("cache device itself");
    attach("origin.img", "a").expect(3).says("`vol`");
    scratch.file("other", 1 << 20);
    attach("other", "vol").expect(2).says("taken");
    attach("other", ".hidden").expect(2).says("letters");
    attach("/", "a").expect(1).says("neither");
    scratch.run(&["attach", "other", "origin.img", "--name", "a"]).expect(5).says("magic");
    scratch.run(&["attach", "nowhere", "origin.img", "--name", "a"]).expect(4);
    assert_eq!(fs::read(&cache).unwrap(), before);
}
