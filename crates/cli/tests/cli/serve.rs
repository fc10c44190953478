//! serve: bare and cached, with foreign clients, bad clients, and a second daemon.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::client::NbdClient;
use crate::support::{Scratch, Server, foreign, has_tool, skip};

#[test]
fn a_bare_device_is_served_to_foreign_clients() {
    let test = "a_bare_device_is_served_to_foreign_clients";
    if !has_tool(test, "nbdinfo") || !has_tool(test, "qemu-io") {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("disk", 16 << 20);
    let server = scratch.serve_what(&["--bare", "disk=disk"]);
    let size = foreign("nbdinfo", &["--size", &server.uri]);
    assert_eq!(size.trim(), (16 << 20).to_string());
    let write = ["-f", "raw", "-c", "write -P 7 1M 64k", "-c", "flush", &server.uri];
    foreign("qemu-io", &write);
    let read = foreign("qemu-io", &["-f", "raw", "-c", "read -P 7 1M 64k", &server.uri]);
    assert!(!read.contains("verification failed"), "{read}");
    assert_eq!(server.terminate(), Some(0));
    let content = std::fs::read(scratch.path("disk")).unwrap();
    assert!(content[1 << 20..(1 << 20) + 65536].iter().all(|byte| *byte == 7));
}

#[test]
fn a_volume_is_served_to_foreign_clients() {
    let test = "a_volume_is_served_to_foreign_clients";
    if !has_tool(test, "nbdinfo") || !has_tool(test, "qemu-io") {
        return;
    }
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let size = foreign("nbdinfo", &["--size", &server.uri]);
    assert_eq!(size.trim(), (64 << 20).to_string());
    let commands = ["write -P 7 1M 64k", "write -P 8 1000k 512", "flush", "read -P 7 1M 64k"];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&server.uri);
    let output = foreign("qemu-io", &arguments);
    assert!(!output.contains("verification failed"), "{output}");
    assert_eq!(server.terminate(), Some(0));
}

#[cfg(target_env = "gnu")]
#[test]
fn the_daemon_asks_for_huge_pages_unless_the_administrator_says_otherwise() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let tunables = |server: Server| {
        let environment = server.environment();
        environment.into_iter().find(|variable| variable.starts_with("GLIBC_TUNABLES="))
    };
    let wanted = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
    assert_eq!(tunables(scratch.serve()).as_deref(), Some(wanted));
    let none = Path::new("glibc.malloc.hugetlb=0");
    let server = scratch.serve_with(&["cache.img"], &[("GLIBC_TUNABLES", none)]);
    assert_eq!(tunables(server).as_deref(), Some("GLIBC_TUNABLES=glibc.malloc.hugetlb=0"));
}

#[cfg(target_env = "gnu")]
#[test]
fn a_daemon_whose_file_is_gone_has_huge_pages_all_the_same() {
    let mut scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    scratch.file("bare.img", 1 << 20);
    scratch.run_from_copy("forebay");
    let first = scratch.serve_what(&["--bare", "bare=bare.img"]);
    // As a build does it.
    std::fs::remove_file(scratch.path("forebay")).expect("it is there");
    std::fs::write(scratch.path("forebay"), "another build").expect("written");
    scratch.run_from(format!("/proc/{}/exe", first.pid()).into());
    let second = scratch.serve_at("second.nbd", &["cache.img"]);
    let wanted = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1".to_owned();
    assert!(second.environment().contains(&wanted), "{:?}", second.environment());
    drop(first);
    assert_eq!(second.terminate(), Some(0));
}

#[test]
fn the_engine_has_as_much_memory_as_those_who_model_a_daemon_give_it() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    let engine = &status["daemons"][0]["payload_memory"]["engine"];
    assert_eq!(engine["total_bytes"], forebay_engine::payload::ENGINE_BYTES_DEFAULT);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn sigterm_ends_a_daemon_with_0_and_removes_its_sockets() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let socket = server.socket.clone();
    server.client().write(0, &[3; 8192]).unwrap();
    assert_eq!(server.terminate(), Some(0));
    assert!(!socket.exists());
    assert_eq!(std::fs::read_dir(scratch.path("run")).unwrap().count(), 0);
    scratch.run(&["check", "cache.img"]).expect(0);
    let again = scratch.serve();
    let mut bytes = [0; 8192];
    again.client().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [3; 8192]);
}

#[test]
fn two_daemons_on_one_device_are_refused() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let nbd = format!("unix:{}", scratch.path("second.nbd").display());
    let second = ["serve", "cache.img", "--nbd", &nbd, "--state-dir", "state"];
    scratch.run(&second).expect(3).says("locked");
    scratch.run(&["check", "cache.img"]).expect(3).says("in service");
    scratch.run(&["format", "cache.img", "--force"]).expect(3).says("locked");
    // Its origin is locked as well.
    scratch.run(&["serve", "--bare", "a=origin.img", "--nbd", &nbd]).expect(3).says("locked");
    scratch.run(&["show", "cache.img"]).expect(0).says("in service");
    server.client().flush().unwrap();
}

#[test]
fn a_socket_in_use_is_not_taken() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    scratch.file("disk", 1 << 20);
    let nbd = format!("unix:{}", server.socket.display());
    scratch.run(&["serve", "--bare", "a=disk", "--nbd", &nbd]).expect(3).says("another server");
    server.client().flush().unwrap();
}

#[test]
fn a_client_that_sends_garbage_disturbs_nobody() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let mut good = server.client();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 4096]] {
        let mut bad = UnixStream::connect(&server.socket).unwrap();
        bad.write_all(garbage).unwrap();
        // The server hangs up; what it says before does not matter.
        let mut answer = Vec::new();
        let _ = bad.read_to_end(&mut answer);
    }
    // One that leaves in the middle of its handshake, and one that asks for what is not there.
    drop(UnixStream::connect(&server.socket).unwrap());
    assert!(NbdClient::connect(&server.socket, "nothing").is_err());
    good.write(4096, &[5; 4096]).unwrap();
    let mut bytes = [0; 4096];
    good.read(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 4096]);
    drop(good);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_missing_origin_keeps_its_volume_out_and_the_others_in() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    scratch.file("second.img", 1 << 20);
    scratch.run(&["attach", "cache.img", "second.img", "--name", "second"]).expect(0);
    std::fs::rename(scratch.path("second.img"), scratch.path("gone.img")).unwrap();
    let server = scratch.serve();
    assert!(server.uri.contains("/vol?"));
    server.client().write(0, &[1; 4096]).unwrap();
    assert!(NbdClient::connect(&server.socket, "second").is_err());
    scratch.run(&["status"]).expect(0).says("origin_missing");
    assert!(server.log().contains("second.img"), "{}", server.log());
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn volumes_are_served_without_a_lost_cache_device() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writethrough");
    let server = scratch.serve();
    server.client().write(0, &[1; 8192]).unwrap();
    assert_eq!(server.terminate(), Some(0));
    let away = scratch.path("away.img");
    std::fs::rename(&cache, &away).unwrap();
    let mut bytes = [0; 8192];
    let server = scratch.serve_what(&["--without-cache", "cache.img"]);
    server.client().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 8192]);
    server.client().write(0, &[2; 4096]).unwrap();
    assert_eq!(server.terminate(), Some(0));
    // The device comes back: its copies are older than the origin and are not believed.
    std::fs::rename(&away, &cache).unwrap();
    let server = scratch.serve();
    server.client().read(0, &mut bytes).unwrap();
    assert_eq!((&bytes[..4096], &bytes[4096..]), (&[2; 4096][..], &[1; 4096][..]));
}

#[test]
fn dirty_data_on_a_lost_cache_device_is_given_up_by_name_only() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).unwrap();
    server.kill();
    std::fs::remove_file(&cache).unwrap();
    let nbd = format!("unix:{}", scratch.path("client.nbd").display());
    let serve = ["serve", "--without-cache", "cache.img", "--nbd", &nbd, "--state-dir", "state"];
    scratch.run(&serve).expect(3).says("vol").says("--accept-loss");
    let other = ["serve", "--without-cache", "other.img", "--nbd", &nbd, "--state-dir", "state"];
    scratch.run(&other).expect(4).says("forebay status");
    let server = scratch.serve_what(&["--without-cache", "cache.img", "--accept-loss", "vol"]);
    let mut bytes = [9; 4096];
    server.client().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_block_device_needs_the_driver() {
    let test = "a_block_device_needs_the_driver";
    if Path::new("/dev/ublk-control").exists() {
        return skip(test, "the ublk driver is there");
    }
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let ended = scratch.run(&["serve", "cache.img", "--state-dir", "state", "--ublk", "vol"]);
    ended.expect(4).says("modprobe ublk_drv");
    scratch.run(&["serve", "cache.img", "--ublk", "vol=x"]).expect(2).says("no number");
    scratch.run(&["serve", "cache.img", "--ublk-depth", "0"]).expect(2);
    // Nothing has happened to the set.
    let server = scratch.serve();
    assert_eq!(server.terminate(), Some(0));
}
