//! An origin that stalls or fails for a while under a running daemon: a file of nbdfuse, which is
//! held, or told to answer with errors.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::thread;

use crate::fuse::{FuseFile, await_that, has_fuse};
use crate::support::{Scratch, Server};

const ORIGIN_BYTES: u64 = 64 << 20;

/// `origin.img`, a file that can be held or broken.
pub(crate) struct Origin {
    file: FuseFile,
    /// While this file is there, everything but flushes fails with `EIO`.
    fails: PathBuf,
}

impl Origin {
    fn new(scratch: &Scratch) -> Origin {
        scratch.file("origin.img", 0);
        let (raw, fails) = (scratch.file("origin.raw", ORIGIN_BYTES), scratch.path("fails"));
        let raw = raw.display().to_string();
        let error_file = format!("error-file={}", fails.display());
        let errors = ["error=EIO", "error-rate=100%", &error_file];
        let nbdkit = [&["--filter=error", "file", &raw], &errors[..]].concat();
        Origin { file: FuseFile::new(scratch, ("origin.img", ORIGIN_BYTES), &nbdkit), fails }
    }

    pub(crate) fn begin_to_fail(&self) {
        File::create(&self.fails).expect("a file");
    }

    pub(crate) fn end_to_fail(&self) {
        fs::remove_file(&self.fails).expect("it was there");
    }
}

/// A volume in writeback on such an origin.
pub(crate) fn volume(scratch: &Scratch) -> Origin {
    let origin = Origin::new(scratch);
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    let attach = ["attach", "cache.img", "origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    origin
}

/// One that is served, with a dirty block.
fn site() -> (Scratch, Origin, Server) {
    let scratch = Scratch::new();
    let origin = volume(&scratch);
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
    if !has_fuse(test) {
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
    if !has_fuse(test) {
        return;
    }
    let (scratch, origin, server) = site();
    scratch.run(&["set", "vol", "origin_timeout=1"]).expect(0);
    origin.file.hold();
    let error = read(&server, 32 << 20).expect_err("nobody answers");
    assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "the daemon does: {error}");
    assert_goes_on(&server, 4096);
    await_that("status tells", || scratch.volume()["origin"]["state"] == "stalled");
    let volume = scratch.volume();
    assert_eq!(volume["origin"]["last_error"], "no answer in time");
    assert_eq!(volume["counters"]["origin_timeout_count"], 1);
    scratch.run(&["status"]).expect(0).says("stalled for");
    origin.file.let_go();
    await_that("it is well again", || scratch.volume()["origin"]["state"] == "ok");
    assert_eq!(read(&server, 32 << 20).expect("it is back"), [0; 4096]);
    scratch.run(&["drain", "vol"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
}
