//! A cache device that goes and comes back under a running daemon: a file of nbdfuse, which is
//! killed and started again.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Scratch, Server, has_tool};

const CACHE_BYTES: u64 = 32 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
const TOOLS: [&str; 3] = ["nbdfuse", "nbdkit", "fusermount3"];

/// `cache.img`, a file that can be taken away.
struct Removable {
    child: Child,
    path: PathBuf,
}

impl Removable {
    fn plug_in(scratch: &Scratch) -> Removable {
        let path = scratch.path("cache.img");
        let child = Command::new("nbdfuse")
            .arg(&path)
            .args(["--command", "nbdkit", "-s", "file"])
            .arg(scratch.path("cache.raw"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(scratch.path("nbdfuse.log")).expect("a file"))
            .spawn()
            .expect("nbdfuse starts");
        let removable = Removable { child, path };
        let is_there = |path| fs::metadata(path).is_ok_and(|file| file.len() == CACHE_BYTES);
        await_that("the cache file is there", || is_there(&removable.path));
        removable
    }

    fn pull_out(self) {
        drop(self);
    }
}

impl Drop for Removable {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.path).output();
    }
}

#[track_caller]
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(PAUSE);
    }
}

/// A cache device that can be pulled out, with a volume in writeback.
fn site() -> (Scratch, Removable) {
    let scratch = Scratch::new();
    scratch.file("cache.raw", CACHE_BYTES);
    scratch.file("cache.img", 0);
    let cache = Removable::plug_in(&scratch);
    scratch.run(&["format", "cache.img"]).expect(0);
    scratch.file("origin.img", 64 << 20);
    let attach = ["attach", "cache.img", "origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    (scratch, cache)
}

/// Writes one flushed block and one that is not.
fn make_dirty(server: &Server) {
    let mut client = server.client();
    client.write(0, &[1; 4096]).expect("served");
    client.flush().expect("served");
    client.write(4096, &[2; 4096]).expect("served");
}

fn read(server: &Server, offset_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    server.client().read(offset_bytes, &mut bytes).map(|()| bytes)
}

#[test]
fn requests_wait_for_the_device_and_nothing_is_lost() {
    let test = "comeback::requests_wait_for_the_device_and_nothing_is_lost";
    if !TOOLS.iter().all(|tool| has_tool(test, tool)) {
        return;
    }
    let (scratch, cache) = site();
    let server = scratch.serve_what(&["cache.img", "--cache-timeout", "3600"]);
    make_dirty(&server);
    let mut client = server.client();
    cache.pull_out();
    let cache = thread::scope(|scope| {
        let write = scope.spawn(|| {
            client.write(8192, &[3; 4096])?;
            client.flush()
        });
        await_that("the write waits", || scratch.volume()["requests_waiting"] == 1);
        assert_eq!(scratch.volume()["state"], "quiesced");
        scratch.run(&["status"]).expect(0).says("the cache device is gone").says("  waiting ");
        let cache = Removable::plug_in(&scratch);
        write.join().expect("no panic").expect("it waited, and was done");
        cache
    });
    for (block, byte) in [(0, 1), (1, 2), (2, 3)] {
        assert_eq!(read(&server, block * 4096).expect("served"), [byte; 4096], "block {block}");
    }
    let volume = scratch.volume();
    assert_eq!(
        (&volume["state"], &volume["counters"]["lost_block_count"]),
        (&"serving".into(), &0.into())
    );
    assert_eq!(server.terminate(), Some(0));
    drop(cache);
}

#[test]
fn a_device_that_comes_back_after_the_limit_is_served_again() {
    let test = "comeback::a_device_that_comes_back_after_the_limit_is_served_again";
    if !TOOLS.iter().all(|tool| has_tool(test, tool)) {
        return;
    }
    let (scratch, cache) = site();
    let server = scratch.serve_what(&["cache.img", "--cache-timeout", "0"]);
    make_dirty(&server);
    cache.pull_out();
    assert!(server.client().write(0, &[9; 4096]).is_err(), "nobody waits");
    assert!(read(&server, 0).is_err());
    let _cache = Removable::plug_in(&scratch);
    await_that("it is served again", || read(&server, 0).is_ok());
    // The failed write left the old content or the new.
    assert!([1, 9].map(|byte| vec![byte; 4096]).contains(&read(&server, 0).expect("served")));
    assert_eq!(read(&server, 4096).expect("served"), [2; 4096]);
    assert_eq!(server.terminate(), Some(0));
}
