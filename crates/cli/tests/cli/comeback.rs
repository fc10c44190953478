//! A cache device that goes and comes back under a running daemon: a file of nbdfuse, which is
//! killed and started again.

use std::thread;

use crate::fuse::{FuseFile, await_that, has_fuse};
use crate::support::{Scratch, Server};

const CACHE_BYTES: u64 = 32 << 20;

/// `cache.img`, until it is dropped.
fn plug_in(scratch: &Scratch) -> FuseFile {
    let raw = scratch.path("cache.raw").display().to_string();
    FuseFile::new(scratch, ("cache.img", CACHE_BYTES), &["file", &raw])
}

/// A cache device that can be pulled out, with a volume in writeback.
fn site() -> (Scratch, FuseFile) {
    let scratch = Scratch::new();
    scratch.file("cache.raw", CACHE_BYTES);
    scratch.file("cache.img", 0);
    let cache = plug_in(&scratch);
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
    if !has_fuse(test) {
        return;
    }
    let (scratch, cache) = site();
    let server = scratch.serve_what(&["cache.img", "--cache-timeout", "3600"]);
    make_dirty(&server);
    let mut client = server.client();
    drop(cache);
    let cache = thread::scope(|scope| {
        let write = scope.spawn(|| {
            client.write(8192, &[3; 4096])?;
            client.flush()
        });
        await_that("the write waits", || scratch.volume()["requests_waiting"] == 1);
        assert_eq!(scratch.volume()["state"], "quiesced");
        scratch.run(&["status"]).expect(0).says("the cache device is gone").says("  waiting ");
        let cache = plug_in(&scratch);
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
    if !has_fuse(test) {
        return;
    }
    let (scratch, cache) = site();
    let server = scratch.serve_what(&["cache.img", "--cache-timeout", "0"]);
    make_dirty(&server);
    drop(cache);
    assert!(server.client().write(0, &[9; 4096]).is_err(), "nobody waits");
    assert!(read(&server, 0).is_err());
    let _cache = plug_in(&scratch);
    await_that("it is served again", || read(&server, 0).is_ok());
    // The failed write left the old content or the new.
    assert!([1, 9].map(|byte| vec![byte; 4096]).contains(&read(&server, 0).expect("served")));
    assert_eq!(read(&server, 4096).expect("served"), [2; 4096]);
    assert_eq!(server.terminate(), Some(0));
}
