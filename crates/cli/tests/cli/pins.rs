//! Pinned ranges, and shares of volumes.

use serde_json::Value;

use crate::client::NbdClient;
use crate::support::Scratch;

const MIB: u64 = 1 << 20;
/// Requests of the tests that fill the cache.
const PIECE: usize = 64 << 10;
/// Looks at a status that is to change by itself.
const LOOKS_MAX: usize = 1000;

/// Reads a part of the volume in pieces, in an order without streams.
fn read_all(client: &mut NbdClient, from: u64, to: u64) {
    let pieces = (to - from) / PIECE as u64;
    for step in 0..pieces {
        // 7919 has no divisor in common with the number of pieces, so each is met once.
        let piece = step * 7919 % pieces;
        client.read(from + piece * PIECE as u64, &mut [0; PIECE]).unwrap();
    }
}

/// The volume when something holds of it, or at last.
fn volume_once(scratch: &Scratch, is_it: impl Fn(&Value) -> bool) -> Value {
    let looks = std::iter::repeat_with(|| scratch.volume()).take(LOOKS_MAX);
    let mut last = Value::Null;
    for volume in looks {
        last = volume;
        if is_it(&last) {
            break;
        }
    }
    last
}

fn extents(volume: &Value) -> Vec<(u64, u64)> {
    let extents = volume["pinned_extents"].as_array().unwrap().iter();
    let number = |value: &Value| value.as_u64().unwrap();
    extents.map(|e| (number(&e["offset_bytes"]), number(&e["length_bytes"]))).collect()
}

#[test]
fn a_pinned_range_is_fetched_and_stays_through_load_and_kill() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    scratch.run(&["set", "vol", "sequential_policy=never"]).expect(0);
    let pinned = scratch.run(&["pin", "vol", "8M", "4M"]).expect(0);
    pinned.says("4 MiB at byte 8388608").says("is cached, and stays");
    let cached = |name: &str| scratch.volume()[name].as_u64().unwrap();
    assert_eq!((cached("pinned_bytes"), cached("pinned_cached_bytes")), (4 * MIB, 4 * MIB));
    // More than the cache holds, twice: everything else has its turn.
    for _ in 0..2 {
        read_all(&mut server.client(), 16 * MIB, 64 * MIB);
    }
    assert_eq!(cached("pinned_cached_bytes"), 4 * MIB);
    let counters = scratch.volume()["counters"].clone();
    assert_eq!(counters["pinned_dropped_block_count"], 0);
    server.kill();
    let server = scratch.serve();
    assert_eq!(extents(&scratch.volume()), [(8 * MIB, 4 * MIB)]);
    read_all(&mut server.client(), 16 * MIB, 64 * MIB);
    assert_eq!(cached("pinned_cached_bytes"), 4 * MIB);
    scratch.run(&["status"]).expect(0).says("pinned      4 MiB, 4 MiB of it cached");
    let kept = scratch.run(&["explain", "vol", "9M", "--json"]).expect(0).json();
    assert_eq!((&kept["is_cached"], &kept["is_kept"]), (&true.into(), &true.into()));
    scratch.run(&["unpin", "vol", "9M", "1M"]).expect(0).says("not pinned any more");
    assert_eq!(extents(&scratch.volume()), [(8 * MIB, MIB), (10 * MIB, 2 * MIB)]);
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(extents(&shown["volumes"][0]), [(8 * MIB, MIB), (10 * MIB, 2 * MIB)]);
    scratch.run(&["check", "cache.img"]).expect(0);
}

#[test]
fn what_is_pinned_is_promoted_whatever_the_settings_say() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writethrough");
    let server = scratch.serve();
    scratch.run(&["pin", "vol", "10000", "1", "--no-fetch"]).expect(0).says("once it is cached");
    assert_eq!(extents(&scratch.volume()), [(8192, 4096)], "whole blocks");
    assert_eq!(scratch.volume()["pinned_cached_bytes"], 0);
    scratch.run(&["set", "vol", "promote_on_read=off"]).expect(0);
    server.client().read(0, &mut [0; 32768]).unwrap();
    // The copy is made behind the answer, and the two figures are not of one moment.
    let volume = volume_once(&scratch, |volume| {
        volume["pinned_cached_bytes"] == 4096 && volume["cached_bytes"] == 4096
    });
    assert_eq!(
        (&volume["pinned_cached_bytes"], &volume["cached_bytes"]),
        (&4096.into(), &4096.into())
    );
    assert_eq!(volume["counters"]["admitted_block_counts"]["pinned"], 1);
    assert_eq!(volume["counters"]["bypassed_block_counts"]["promote_on_read"], 7);
    scratch.run(&["set", "vol", "promote_on_write=off"]).expect(0);
    scratch.run(&["pin", "vol", "1M", "4K", "--no-fetch"]).expect(0);
    server.client().write(MIB, &[1; 4096]).unwrap();
    server.client().write(2 * MIB, &[1; 4096]).unwrap();
    assert_eq!(scratch.volume()["cached_bytes"], 8192);
    // A volume without its origin's blocks in the cache keeps its pins for later.
    scratch.run(&["set", "vol", "cache_mode=passthrough"]).expect(0);
    scratch.run(&["pin", "vol", "4M", "1M"]).expect(2).says("--no-fetch");
    assert_eq!(scratch.volume()["pinned_bytes"], 8192);
    assert_eq!(scratch.volume()["pinned_cached_bytes"], 0);
}

#[test]
fn pins_and_shares_have_a_bound() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let _server = scratch.serve();
    scratch.run(&["pin", "vol", "0", "30M"]).expect(2).says("30 MiB").says("may be kept");
    scratch.run(&["pin", "vol", "0", "16M", "--no-fetch"]).expect(0);
    scratch.run(&["set", "vol", "share_min=50"]).expect(2).says("share_min (15.8 MiB)");
    scratch.run(&["set", "vol", "share_min=10"]).expect(0);
    scratch.run(&["set", "vol", "share_max=5"]).expect(2).says("do not fit together");
    scratch.run(&["set", "vol", "share_max=40"]).expect(0);
    scratch.run(&["status"]).expect(0).says("share       10 to 40 % of the cache");
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    let most = status["daemons"][0]["cache_set"]["kept_bytes_max"].as_u64().unwrap();
    assert!((20 * MIB..26 * MIB).contains(&most), "{most}");
    scratch.file("other.img", 64 * MIB);
    let attach = ["attach", "cache.img", "other.img", "--name", "other"];
    scratch.run(&[&attach[..], &["--share-min", "50"]].concat()).expect(2).says("may be kept");
    scratch.run(&[&attach[..], &["--share-max", "10"]].concat()).expect(0);
    scratch.run(&["pin", "other", "0", "8M"]).expect(2).says("pinned ranges (24 MiB)");
    // What is lowered is never refused, and detach gives back what was pinned.
    scratch.run(&["unpin", "vol", "1M", "1M"]).expect(0);
    scratch.run(&["set", "vol", "share_min=9"]).expect(0);
    scratch.run(&["detach", "vol"]).expect(0);
    scratch.run(&["pin", "other", "0", "8M"]).expect(0);
}

#[test]
fn ranges_that_are_none_are_refused() {
    let scratch = Scratch::new();
    scratch.run(&["pin", "vol", "0", "4K"]).expect(4).says("no daemon runs");
    scratch.cache_with_volume("writeback");
    let _server = scratch.serve();
    scratch.run(&["pin", "vol", "60M", "5M"]).expect(2).says("67108864 bytes");
    scratch.run(&["unpin", "vol", "64M", "1"]).expect(2).says("within the volume");
    scratch.run(&["pin", "vol", "0", "0"]).expect(2).says("no bytes");
    scratch.run(&["pin", "vol", "0", "much"]).expect(2);
    scratch.run(&["pin", "nobody", "0", "4K"]).expect(4).says("nobody");
    for block in 0..240 {
        let offset = (block * 8192).to_string();
        scratch.run(&["pin", "vol", &offset, "4K", "--no-fetch"]).expect(0);
    }
    scratch.run(&["pin", "vol", "60M", "4K", "--no-fetch"]).expect(2).says("240 pinned ranges");
    scratch.run(&["pin", "vol", "0", "8K", "--no-fetch"]).expect(0);
    assert_eq!(extents(&scratch.volume()).len(), 239, "ranges that touch become one");
}

#[test]
fn fetching_can_be_cancelled_and_leaves_the_range_pinned() {
    let scratch = Scratch::new();
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    scratch.file("origin.img", 64 * MIB);
    scratch.run(&["attach", "cache.img", "iops:4:origin.img", "--name", "vol"]).expect(0);
    let _server = scratch.serve();
    let has_begun = || {
        let volume = scratch.volume();
        volume["pinned_bytes"] != 0 && volume["pinned_cached_bytes"] != 0
    };
    let ended = scratch.run_and_interrupt(&["pin", "vol", "0", "20M"], &mut { has_begun });
    ended.expect(6).says("the range is pinned");
    let volume = scratch.volume();
    assert_eq!(volume["pinned_bytes"], 20 * MIB);
    assert!(volume["pinned_cached_bytes"].as_u64().unwrap() < 20 * MIB, "{volume}");
}

#[test]
fn a_volume_at_its_largest_share_promotes_no_more() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writearound");
    let server = scratch.serve();
    scratch.run(&["set", "vol", "share_max=10", "sequential_policy=never"]).expect(0);
    read_all(&mut server.client(), 0, 8 * MIB);
    let most = 32 * MIB / 10;
    // Copies are made behind the answers, and counted when they are complete.
    let volume = volume_once(&scratch, |v| v["cached_bytes"].as_u64().unwrap() > most - MIB);
    let cached = volume["cached_bytes"].as_u64().unwrap();
    assert!(cached <= most && cached > most - MIB, "{cached} of {most}");
    let counts = &volume["counters"]["bypassed_block_counts"];
    assert!(counts["share_max"].as_u64().unwrap() > 1000, "{counts}");
    // Where no stream is: the last piece that was read.
    let last = (8 * MIB / PIECE as u64 - 1) * 7919 % (8 * MIB / PIECE as u64) * PIECE as u64;
    let found = scratch.run(&["explain", "vol", &last.to_string(), "--json"]).expect(0).json();
    assert_eq!(found["last_decision"]["reason"], "share_max", "{found}");
    scratch.run(&["pin", "vol", "7M", "512K"]).expect(0);
    assert_eq!(scratch.volume()["pinned_cached_bytes"], MIB / 2, "a pin is more than a share");
}
