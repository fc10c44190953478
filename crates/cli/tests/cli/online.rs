//! Commands that speak to a daemon.

use rustix::process::{Pid, Signal, kill_process};

use crate::fuse::stop_all_threads;
use crate::support::Scratch;

#[test]
fn status_without_a_daemon_tells_what_is_known() {
    let scratch = Scratch::new();
    let status = ["status", "--state-dir", "state"];
    scratch.run(&status).expect(4).says("no daemon runs");
    for command in ["drain", "detach", "invalidate"] {
        scratch.run(&[command, "vol"]).expect(4).says("no daemon runs");
    }
    scratch.run(&["stop"]).expect(4).says("forebay serve");
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).unwrap();
    server.kill();
    scratch.run(&status).expect(0).says("dirty data may exist");
    let known = scratch.run(&["status", "--state-dir", "state", "--json"]).expect(0).json();
    assert_eq!(known["known_sets"][0]["volumes"][0]["dirty_possible"], true);
    scratch.run(&["status", "elsewhere.img", "--state-dir", "state"]).expect(4);
}

#[test]
fn a_daemon_that_answers_nothing_is_given_up() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let pid = Pid::from_raw(server.pid().try_into().expect("a pid"));
    stop_all_threads(server.pid());
    let extra = scratch.file("extra.img", 64 << 20).display().to_string();
    // What it serves it does not say, but the lock tells that somebody has the device.
    let attach = ["attach", "cache.img", &extra, "--name", "extra"];
    for command in [&["status"][..], &["set", "vol", "read_ahead=128K"], &attach] {
        scratch.run(command).expect(1).says("has not answered for 10 s").says("stopped or stuck");
    }
    // Another cache is nothing to it.
    scratch.run(&["format", "other.img", "--size", "32M"]).expect(0);
    scratch.run(&["attach", "other.img", &extra, "--name", "extra"]).expect(0);
    kill_process(pid.expect("not 0"), Signal::CONT).expect("it is our child");
    scratch.run(&["status"]).expect(0).says("vol");
    scratch.run(&["stop"]).expect(0);
}

#[test]
fn status_counts_and_is_reset() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let mut client = server.client();
    client.write(0, &[1; 8192]).unwrap();
    client.read(0, &mut [0; 8192]).unwrap();
    client.read(1 << 20, &mut [0; 4096]).unwrap();
    client.flush().unwrap();
    let volume = scratch.volume();
    assert_eq!(volume["counters"]["read_hit_count"], 1);
    assert_eq!(volume["counters"]["read_miss_count"], 1);
    assert_eq!(volume["hit_ratio_requests"], 0.5);
    assert_eq!(volume["dirty_bytes"], 8192);
    assert_eq!(volume["counters"]["write_bytes"], 8192);
    scratch.run(&["status"]).expect(0).says("50.00 % of 2 reads").says("clients     1");
    scratch.run(&["status", "cache.img", "--reset"]).expect(0);
    assert_eq!(scratch.volume()["counters"]["read_hit_count"], 0);
    assert_eq!(scratch.volume()["dirty_bytes"], 8192);
}

#[test]
fn settings_change_and_last() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    scratch.run(&["set", "vol", "sequential_cutoff=4M", "writeback_percent=20"]).expect(0);
    scratch.run(&["set", "vol", "read_ahead=128K"]).expect(0);
    scratch.run(&["set", "vol", "read_ahead=2M"]).expect(2).says("multiple of 4K");
    scratch.run(&["set", "memory_max=64M", "discard=off"]).expect(0);
    scratch.run(&["set", "nobody", "writeback_percent=20"]).expect(4).says("nobody");
    scratch.run(&["set", "vol", "memory_max=1M"]).expect(2).says("cache set");
    scratch.run(&["set", "memory_max=1K"]).expect(2).says("with nothing cached");
    scratch.run(&["set", "vol", "cache_mode=quick"]).expect(2).says("writearound");
    let volume = scratch.volume();
    assert_eq!(volume["sequential_cutoff_bytes"], 4 << 20);
    assert_eq!(volume["writeback_percent"], 20);
    for mode in ["writearound", "writeonly", "passthrough", "writethrough", "writeback"] {
        scratch.run(&["set", "vol", &format!("cache_mode={mode}")]).expect(0);
        assert_eq!(scratch.volume()["cache_mode"], mode);
        server.client().write(0, &[1; 4096]).unwrap();
    }
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(shown["volumes"][0]["sequential_cutoff_bytes"], 4 << 20);
    assert_eq!(shown["volumes"][0]["read_ahead_bytes"], 128 << 10);
    assert_eq!(shown["memory_max_bytes"], 64 << 20);
    assert_eq!(shown["discard_freed_segments"], false);
}

#[test]
fn settings_of_writeback_change_and_last() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let settings = ["writeback_delay=5", "writeback_ios_max=8", "writeback_idle_only=on"];
    scratch.run(&[&["set", "vol"], &settings[..]].concat()).expect(0);
    scratch
        .run(&["set", "vol", "writeback_rate_max=1M", "dirty_age_max=60", "origin_timeout=45s"])
        .expect(0);
    scratch.run(&["set", "vol", "writeback_rate_min=2M"]).expect(2).says("set both at once");
    scratch.run(&["set", "dirty_soft_percent=30", "dirty_hard_percent=60"]).expect(0);
    scratch.run(&["set", "dirty_soft_percent=60"]).expect(2).says("not below");
    assert_eq!(scratch.volume()["writeback_ios_max"], 8);
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    let volume = &shown["volumes"][0];
    assert_eq!(volume["writeback_delay_s"], 5);
    assert_eq!(volume["writeback_rate_max_bytes"], 1 << 20);
    assert_eq!(volume["writeback_rate_min_bytes"], 4096);
    assert_eq!(volume["writeback_idle_only"], true);
    assert_eq!(volume["dirty_age_max_s"], 60);
    assert_eq!(volume["origin_timeout_s"], 45);
    assert_eq!(
        (&shown["dirty_soft_percent"], &shown["dirty_hard_percent"]),
        (&30.into(), &60.into())
    );
}

/// The order holds when the command answers, so everything is home by then.
#[test]
fn the_order_of_writeback_changes_while_the_volume_is_served() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).unwrap();
    scratch.run(&["set", "vol", "writeback_order=random"]).expect(2).says("coalescing or ordered");
    scratch.run(&["set", "vol", "writeback_order=ordered"]).expect(0);
    assert_eq!(scratch.volume()["writeback_order"], "ordered");
    assert_eq!(scratch.volume()["dirty_bytes"], 0);
    scratch.run(&["status"]).expect(0).says("writeback ordered");
    server.client().write(0, &[2; 4096]).unwrap();
    server.client().flush().unwrap();
    server.client().write(0, &[3; 4096]).unwrap();
    assert_eq!(scratch.volume()["epochs_waiting"], 1);
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(shown["volumes"][0]["writeback_order"], "ordered");
    let server = scratch.serve();
    scratch.run(&["set", "vol", "writeback_order=coalescing"]).expect(0);
    let origin = std::fs::read(scratch.path("origin.img")).unwrap();
    assert_eq!(origin[..4096], [3; 4096]);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_drained_volume_is_on_its_origin() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(1 << 20, &[9; 256 << 10]).unwrap();
    scratch.run(&["invalidate", "vol"]).expect(3).says("drain it first");
    scratch.run(&["drain", "vol"]).expect(0).says("clean");
    assert_eq!(scratch.volume()["dirty_bytes"], 0);
    assert_eq!(scratch.volume()["cache_mode"], "writethrough");
    let origin = std::fs::read(scratch.path("origin.img")).unwrap();
    assert!(origin[1 << 20..(1 << 20) + (256 << 10)].iter().all(|byte| *byte == 9));
    scratch.run(&["invalidate", "vol"]).expect(0);
    assert_eq!(scratch.volume()["cached_bytes"], 0);
    let mut bytes = [0; 4096];
    server.client().read(1 << 20, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 4096]);
    assert_eq!(server.terminate(), Some(0));
    scratch.run(&["wipe", "cache.img", "--state-dir", "state"]).expect(0);
}

#[test]
fn volumes_come_and_go_while_others_are_served() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let client = server.client();
    scratch.file("second.img", 1 << 20);
    let attach = ["attach", "cache.img", "second.img", "--name", "second"];
    scratch.run(&attach).expect(0).says("second");
    scratch.run(&attach).expect(3).says("attached as `second`");
    let mut second = crate::client::NbdClient::connect(&server.socket, "second").unwrap();
    assert_eq!(second.size_bytes(), 1 << 20);
    second.write(0, &[4; 4096]).unwrap();
    scratch.run(&["detach", "second"]).expect(3).says("in use by");
    drop(second);
    let mut ended = scratch.run(&["detach", "second"]);
    // The server may not have seen the client leave yet.
    for _ in 0..100 {
        if ended.code != Some(3) {
            break;
        }
        ended = scratch.run(&["detach", "second"]);
    }
    ended.expect(0);
    assert_eq!(std::fs::read(scratch.path("second.img")).unwrap()[..4096], [4; 4096]);
    scratch.run(&["detach", "second"]).expect(4).says("second");
    drop(client);
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(shown["volumes"].as_array().unwrap().len(), 1);
}

#[test]
fn stop_answers_when_the_device_is_free() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[6; 4096]).unwrap();
    scratch.run(&["stop"]).expect(0).says("has stopped");
    scratch.run(&["check", "cache.img"]).expect(0).says("1 dirty");
    assert_eq!(server.ended(), Some(0));
    let server = scratch.serve();
    scratch.run(&["stop", "--drain"]).expect(0);
    assert_eq!(server.ended(), Some(0));
    scratch.run(&["check", "cache.img"]).expect(0).says("0 dirty");
    scratch.run(&["status", "--state-dir", "state"]).expect(0).says("clean");
    assert_eq!(std::fs::read(scratch.path("origin.img")).unwrap()[..4096], [6; 4096]);
}

#[test]
fn a_drain_can_be_cancelled() {
    let scratch = Scratch::new();
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    scratch.file("origin.img", 4 << 30);
    // Slow enough that the drain is not over before it is cancelled, and too far apart to be
    // gathered.
    let attach = ["attach", "cache.img", "iops:20:origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    let server = scratch.serve();
    let mut client = server.client();
    for block in 0..400 {
        client.write(block * (8 << 20), &[1; 4096]).unwrap();
    }
    assert_eq!(scratch.volume()["dirty_bytes"], 400 * 4096);
    let mut has_begun = || {
        let status = scratch.run(&["drain", "vol", "--status", "--json"]).expect(0).json();
        let dirty = status["dirty_bytes"].as_u64().unwrap();
        status["state"] == "draining" && status["seconds_left"].is_u64() && dirty < 400 * 4096
    };
    scratch.run(&["drain", "vol", "--status"]).expect(0).says("is not draining");
    scratch.run(&["drain", "none", "--status"]).expect(4).says("no volume `none`");
    scratch.run_and_interrupt(&["drain", "vol"], &mut has_begun).expect(6).says("cancelled");
    let volume = scratch.volume();
    assert_eq!(volume["cache_mode"], "writeback");
    assert!(volume["dirty_bytes"].as_u64().unwrap() > 0, "{volume:#}");
    client.write(0, &[2; 4096]).unwrap();
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn of_several_daemons_one_must_be_named() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let first = scratch.serve();
    let second = Scratch::new();
    second.cache_with_volume("writeback");
    let admin = scratch.path("run/second.admin");
    let other = second.serve_with(&["cache.img"], &[("FOREBAY_ADMIN", &admin)]);
    scratch.run(&["drain", "vol"]).expect(2).says("several daemons").says("--admin");
    let admin = admin.to_str().unwrap();
    scratch.run(&["drain", "vol", "--admin", admin]).expect(0);
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["daemons"].as_array().unwrap().len(), 2);
    let one = scratch.run(&["status", "cache.img", "--json"]).expect(0).json();
    assert_eq!(one["daemons"].as_array().unwrap().len(), 1);
    assert_eq!(other.terminate(), Some(0));
    scratch.run(&["drain", "vol"]).expect(0);
    assert_eq!(first.terminate(), Some(0));
}
