//! An origin that stalls or fails for a while under a running daemon: a file of nbdfuse, which is
//! held, or told to answer with errors.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Scratch, Server, has_tool};

const ORIGIN_BYTES: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
const TOOLS: [&str; 3] = ["nbdfuse", "nbdkit", "fusermount3"];

/// `origin.img`, a file that can be held or broken.
struct Origin {
    child: Child,
    path: PathBuf,
    /// While this file is there, everything but flushes fails with `EIO`.
    fails: PathBuf,
}

impl Origin {
    fn new(scratch: &Scratch) -> Origin {
        let (path, fails) = (scratch.file("origin.img", 0), scratch.path("fails"));
        let child = Command::new("nbdfuse")
            .arg(&path)
            .args(["--command", "nbdkit", "-s", "--filter=error", "file"])
            .arg(scratch.file("origin.raw", ORIGIN_BYTES))
            .args(["error=EIO", "error-rate=100%"])
            .arg(format!("error-file={}", fails.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(scratch.path("nbdfuse.log")).expect("a file"))
            .spawn()
            .expect("nbdfuse starts");
        let origin = Origin { child, path, fails };
        let is_there = |path| fs::metadata(path).is_ok_and(|file| file.len() == ORIGIN_BYTES);
        await_that("the origin is there", || is_there(&origin.path));
        origin
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id is positive"), signal).expect("it is our child");
    }

    fn begin_to_fail(&self) {
        File::create(&self.fails).expect("a file");
    }

    fn end_to_fail(&self) {
        fs::remove_file(&self.fails).expect("it was there");
    }
}

impl Drop for Origin {
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

/// A volume in writeback on such an origin, with a dirty block.
fn site() -> (Scratch, Origin, Server) {
    let scratch = Scratch::new();
    let origin = Origin::new(&scratch);
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    let attach = ["attach", "cache.img", "origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).expect("served");
    (scratch, origin, server)
}

fn read(server: &Server, offset_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    server.client().read(offset_bytes, &mut bytes).map(|()| bytes)
}

/// Hits, and writes that the log absorbs.
#[track_caller]
fn assert_goes_on(server: &Server, offset_bytes: u64) {
    assert_eq!(read(server, 0).expect("it is cached"), [1; 4096]);
    server.client().write(offset_bytes, &[2; 4096]).expect("there is room");
    server.client().flush().expect("the cache device is well");
}

#[test]
fn an_origin_that_fails_for_a_while_is_ridden_through() {
    let test = "origin_stalls::an_origin_that_fails_for_a_while_is_ridden_through";
    if !TOOLS.iter().all(|tool| has_tool(test, tool)) {
        return;
    }
    let (scratch, origin, server) = site();
    scratch.run(&["set", "vol", "origin_timeout=3600s"]).expect(0);
    origin.begin_to_fail();
    thread::scope(|scope| {
        let miss = scope.spawn(|| read(&server, 32 << 20));
        await_that("the miss waits", || {
            let origin = &scratch.volume()["origin"];
            origin["state"] == "retrying" && origin["requests_waiting"] == 1
        });
        assert_eq!(scratch.volume()["origin"]["last_error"], "I/O error");
        assert_goes_on(&server, 4096);
        scratch.run(&["status"]).expect(0).says("retrying for").says("1 requests wait");
        scratch.run(&["drain", "vol"]).expect(1).says("not taken");
        await_that("writeback waits", || {
            scratch.volume()["origin"]["writeback_retry_ms"].is_number()
        });
        origin.end_to_fail();
        assert_eq!(miss.join().expect("no panic").expect("it waited"), [0; 4096]);
    });
    scratch.run(&["drain", "vol"]).expect(0);
    assert_eq!(scratch.volume()["origin"]["state"], "ok");
    assert_eq!(scratch.volume()["counters"]["error_count"], 0);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn requests_of_an_origin_that_does_not_answer_fail_after_the_limit() {
    let test = "origin_stalls::requests_of_an_origin_that_does_not_answer_fail_after_the_limit";
    if !TOOLS.iter().all(|tool| has_tool(test, tool)) {
        return;
    }
    let (scratch, origin, server) = site();
    scratch.run(&["set", "vol", "origin_timeout=1"]).expect(0);
    origin.signal(Signal::STOP);
    assert!(read(&server, 32 << 20).is_err());
    assert_goes_on(&server, 4096);
    await_that("status tells", || scratch.volume()["origin"]["state"] == "stalled");
    let volume = scratch.volume();
    assert_eq!(volume["origin"]["last_error"], "no answer in time");
    assert_eq!(volume["counters"]["origin_timeout_count"], 1);
    scratch.run(&["status"]).expect(0).says("stalled for");
    origin.signal(Signal::CONT);
    await_that("it is well again", || scratch.volume()["origin"]["state"] == "ok");
    assert_eq!(read(&server, 32 << 20).expect("it is back"), [0; 4096]);
    scratch.run(&["drain", "vol"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
}
