//! A daemon that is killed while a block device carries out a transfer of it: the transfer keeps
//! lock and claim of the device until it ends, and the next daemon waits for that.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::client::NbdClient;
use crate::fuse::{FuseFile, await_that, has_fuse};
use crate::support::{Scratch, Server, foreign, has_block_devices};

const ORIGIN_BYTES: u64 = 64 << 20;
const CACHE_BYTES: u64 = 32 << 20;

/// A loop device that can be held, until it is dropped.
struct SlowDevice {
    file: FuseFile,
    path: String,
}

impl SlowDevice {
    fn new(scratch: &Scratch, bytes: u64) -> SlowDevice {
        scratch.file("slow.img", 0);
        let raw = scratch.file("slow.raw", bytes).display().to_string();
        let file = FuseFile::new(scratch, ("slow.img", bytes), &["file", &raw]);
        let path = scratch.path("slow.img").display().to_string();
        let path = foreign("losetup", &["--find", "--show", &path]).trim().to_owned();
        // Who looks at all loop devices must not stumble over it while it is held.
        file.lose_name();
        SlowDevice { file, path }
    }

    /// Whether a transfer is under way.
    fn is_busy(&self) -> bool {
        let name = Path::new(&self.path).file_name().expect("a device");
        let counts = fs::read_to_string(Path::new("/sys/block").join(name).join("inflight"));
        counts.expect("text").split_whitespace().any(|count| count != "0")
    }
}

impl Drop for SlowDevice {
    fn drop(&mut self) {
        self.file.let_go();
        let _ = Command::new("losetup").args(["--detach", &self.path]).output();
    }
}

/// Lets a device go on when it is dropped, also in a test that fails: nobody who has a transfer of
/// it ends before.
struct Held<'a>(&'a SlowDevice);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.file.let_go();
    }
}

fn has_slow_devices(test: &str) -> bool {
    has_fuse(test) && has_block_devices(test)
}

/// Kills the daemon while the device carries out what `request` asks for. What is left of it ends
/// with that.
fn kill_amid(
    server: Server,
    slow: &SlowDevice,
    request: impl FnOnce(&mut NbdClient) -> std::io::Result<()> + Send + 'static,
) -> Server {
    let mut client = server.client();
    slow.file.hold();
    // It hears of the end of its daemon only when the transfer has ended.
    thread::spawn(move || request(&mut client));
    await_that("the transfer is under way", || slow.is_busy());
    server.begin_to_kill();
    server
}

/// Starts the next daemon, lets the device go on when it waits for that, and waits until it serves.
#[track_caller]
fn serve_again(scratch: &Scratch, slow: &SlowDevice, killed: Server, what: &[&str]) -> Server {
    let held = Held(slow);
    let server = scratch.begin(what);
    let waits = format!("waiting for transfers of an ended process device={}", slow.path);
    let has_looked = |log: String| log.contains(&waits) || log.contains("is in use");
    await_that("it waits", || has_looked(server.log()));
    assert!(server.log().contains(&waits), "{}", server.log());
    drop(held);
    drop(killed);
    let is_there = || NbdClient::connect(&server.socket, "vol").is_ok();
    await_that("it serves", is_there);
    server
}

#[track_caller]
fn assert_holds(server: &Server, byte: u8) {
    let mut bytes = vec![0; 4096];
    server.client().read(0, &mut bytes).expect("it is served");
    assert_eq!(bytes, [byte; 4096]);
}

#[test]
fn a_cache_device_is_waited_for() {
    if !has_slow_devices("claims::a_cache_device_is_waited_for") {
        return;
    }
    let scratch = Scratch::new();
    let slow = SlowDevice::new(&scratch, CACHE_BYTES);
    scratch.file("origin.img", ORIGIN_BYTES);
    scratch.run(&["format", &slow.path]).expect(0);
    let attach = ["attach", &slow.path, "origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    let server = scratch.serve_what(&[&slow.path]);
    server.client().write(0, &[1; 4096]).expect("it is served");
    let killed = kill_amid(server, &slow, |client| {
        client.write(1 << 20, &[2; 4096])?;
        client.flush()
    });
    let server = serve_again(&scratch, &slow, killed, &[&slow.path]);
    assert_holds(&server, 1);
    assert_eq!(server.terminate(), Some(0));
}

/// A volume on a device that can be held, whose daemon was killed amid a read of it.
fn killed_amid_read() -> (Scratch, SlowDevice, Server) {
    let scratch = Scratch::new();
    let slow = SlowDevice::new(&scratch, ORIGIN_BYTES);
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    let attach = ["attach", "cache.img", &slow.path, "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writethrough"]].concat()).expect(0);
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).expect("it is served");
    let killed = kill_amid(server, &slow, |client| client.read(32 << 20, &mut [0; 4096]));
    (scratch, slow, killed)
}

#[test]
fn an_origin_is_waited_for() {
    if !has_slow_devices("claims::an_origin_is_waited_for") {
        return;
    }
    let (scratch, slow, killed) = killed_amid_read();
    // The killed daemon's ring keeps its cache device as long as the origin; a copy is free.
    fs::copy(scratch.path("cache.img"), scratch.path("copy.img")).expect("room");
    let server = serve_again(&scratch, &slow, killed, &["copy.img"]);
    assert_holds(&server, 1);
    assert_eq!(scratch.volume()["state"], "serving");
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn an_origin_is_waited_for_without_its_cache() {
    if !has_slow_devices("claims::an_origin_is_waited_for_without_its_cache") {
        return;
    }
    let (scratch, slow, killed) = killed_amid_read();
    fs::remove_file(scratch.path("cache.img")).expect("a file");
    let server = serve_again(&scratch, &slow, killed, &["--without-cache", "cache.img"]);
    assert_holds(&server, 1);
    assert_eq!(server.terminate(), Some(0));
}

/// Who has a claim and no lock is no daemon, and may have it for ever.
#[test]
fn the_claim_of_somebody_else_is_refused() {
    use std::os::unix::fs::OpenOptionsExt;
    if !has_slow_devices("claims::the_claim_of_somebody_else_is_refused") {
        return;
    }
    let scratch = Scratch::new();
    let slow = SlowDevice::new(&scratch, CACHE_BYTES);
    scratch.run(&["format", &slow.path]).expect(0);
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let claim = fs::OpenOptions::new().read(true).custom_flags(exclusive).open(&slow.path);
    let refused = scratch.run(&["serve", &slow.path, "--state-dir", "state"]).expect(3);
    let refused = refused.says("is in use (by the kernel or another process, exclusively)");
    assert!(!refused.stderr.contains("waiting for"), "{refused:#?}");
    drop(claim.expect("it is free"));
}
