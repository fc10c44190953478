//! `forebay resize`: volumes that grow with their origins while they are served.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::client::NbdClient;
use crate::support::{Scratch, Server, foreign, has_tool};

const OLD_BYTES: u64 = 64 << 20;
const NEW_BYTES: u64 = 96 << 20;

/// Makes the origin as long as that.
fn extend(scratch: &Scratch, bytes: u64) {
    let origin = File::options().write(true).open(scratch.path("origin.img")).expect("it is there");
    origin.set_len(bytes).expect("a file");
}

fn size(scratch: &Scratch) -> serde_json::Value {
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    status["daemons"][0]["exports"][0].clone()
}

/// A second connection, which learns the size anew.
fn size_for_newcomers(server: &Server) -> u64 {
    server.client().size_bytes()
}

#[test]
fn a_volume_grows_under_its_writers_and_outlives_a_kill() {
    for mode in ["writeback", "writethrough", "writearound", "passthrough"] {
        let scratch = Scratch::new();
        scratch.cache_with_volume(mode);
        let server = scratch.serve();
        let mut old = server.client();
        let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let mut writer = server.client();
            let (is_over, written) = (&is_over, &written);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let block = written.load(Ordering::Relaxed);
                    writer.write(block % 4096 * 4096, &[block as u8; 4096]).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
            let wait_for = |count| {
                while written.load(Ordering::Relaxed) < count {
                    thread::yield_now();
                }
            };
            wait_for(10);
            extend(&scratch, NEW_BYTES);
            assert_eq!(size_for_newcomers(&server), OLD_BYTES, "nobody has grown it");
            let resized = scratch.run(&["resize", "vol", "--json"]).expect(0).json();
            wait_for(written.load(Ordering::Relaxed) + 10);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(resized["old_size_bytes"], OLD_BYTES);
            assert_eq!(resized["size_bytes"], NEW_BYTES);
            let clients = resized["clients"].as_array().unwrap();
            assert!(clients.len() >= 2, "{resized}");
            assert!(clients.iter().all(|client| client["sees_size"] == "after_reconnect"));
        });
        old.write(OLD_BYTES - 4096, &[6; 4096]).unwrap();
        let mut new = server.client();
        new.write(OLD_BYTES - 4096, &[7; 8192]).unwrap();
        new.write(NEW_BYTES - 4096, &[8; 4096]).unwrap();
        server.kill();
        let server = scratch.serve();
        assert_eq!(size_for_newcomers(&server), NEW_BYTES, "{mode}");
        let mut bytes = [0; 8192];
        server.client().read(OLD_BYTES - 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8192], "{mode}");
        scratch.run(&["drain", "vol"]).expect(0);
        assert_eq!(server.terminate(), Some(0));
        let origin = std::fs::read(scratch.path("origin.img")).unwrap();
        assert!(origin[OLD_BYTES as usize..][..4096] == [7; 4096], "{mode}");
        assert!(origin[NEW_BYTES as usize - 4096..] == [8; 4096], "{mode}");
        let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
        assert_eq!(shown["volumes"][0]["size_bytes"], NEW_BYTES);
        scratch.run(&["check", "cache.img"]).expect(0);
    }
}

#[test]
fn a_start_does_not_grow_a_volume_but_tells() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    extend(&scratch, NEW_BYTES);
    let server = scratch.serve();
    assert_eq!(size_for_newcomers(&server), OLD_BYTES);
    let log = server.log();
    assert!(log.contains("`forebay resize vol` makes it as long as its origin"), "{log}");
    scratch.run(&["status"]).expect(0).says("the origin has 32 MiB more: `forebay resize vol`");
    let shown = size(&scratch);
    assert_eq!(
        (&shown["size_bytes"], &shown["origin_size_bytes"]),
        (&OLD_BYTES.into(), &NEW_BYTES.into())
    );
    scratch.run(&["resize", "vol"]).expect(0).says("has grown from 64 MiB to 96 MiB");
    let _client = server.client();
    let same = scratch.run(&["resize", "vol"]).expect(0);
    same.says("has the size of its origin already").says("sees this size\n");
    assert_eq!(size(&scratch)["size_bytes"], NEW_BYTES);
    assert_eq!(server.terminate(), Some(0));
    let server = scratch.serve();
    assert!(!server.log().contains("forebay resize"), "{}", server.log());
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_volume_never_becomes_smaller() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writethrough");
    // So that a start has something to serve without it.
    scratch.file("other.img", 1 << 20);
    scratch.run(&["attach", "cache.img", "other.img", "--name", "other"]).expect(0);
    scratch.run(&["resize", "vol"]).expect(4).says("no daemon runs");
    let server = scratch.serve();
    server.client().write(0, &[1; 4096]).unwrap();
    scratch.run(&["resize", "nobody"]).expect(4).says("nobody");
    extend(&scratch, OLD_BYTES / 2);
    let refused = scratch.run(&["resize", "vol"]).expect(3);
    let refused = refused.says("33554432 bytes").says("67108864").says("cannot become smaller");
    refused.says("make the origin as long as that again");
    scratch.run(&["status"]).expect(0).says("the origin lacks 32 MiB");
    assert_eq!(size_for_newcomers(&server), OLD_BYTES);
    let mut bytes = [0; 4096];
    server.client().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4096]);
    assert_eq!(server.terminate(), Some(0));
    // So it is refused at the next start, until it is as long as before.
    let server = scratch.serve();
    assert!(server.log().contains("make it as long as that again"), "{}", server.log());
    assert_eq!(server.terminate(), Some(0));
    extend(&scratch, OLD_BYTES);
    let server = scratch.serve();
    server.client().read(OLD_BYTES - 4096, &mut bytes).unwrap();
    assert_eq!(server.terminate(), Some(0));
}

/// What only the origin has of the last block must neither be hidden by a copy that ends before nor
/// be overwritten by what goes home.
#[test]
fn a_last_block_that_was_cut_short_is_what_the_origin_holds() {
    let scratch = Scratch::new();
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    let odd = (1 << 20) + 512;
    std::fs::write(scratch.path("origin.img"), vec![3; 2 << 20]).unwrap();
    extend(&scratch, odd);
    let attach = ["attach", "cache.img", "origin.img", "--name", "vol"];
    scratch.run(&[&attach[..], &["--cache-mode", "writeback"]].concat()).expect(0);
    let server = scratch.serve();
    let mut client = server.client();
    client.write(1 << 20, &[5; 512]).unwrap();
    client.read(1 << 20, &mut [0; 512]).unwrap();
    std::fs::write(scratch.path("longer.img"), vec![4; 2 << 20]).unwrap();
    let longer = std::fs::read(scratch.path("longer.img")).unwrap();
    let origin = File::options().write(true).open(scratch.path("origin.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&origin, &longer[..4096], odd).unwrap();
    scratch.run(&["resize", "vol"]).expect(0);
    let mut bytes = [0; 4096];
    server.client().read(1 << 20, &mut bytes).unwrap();
    assert_eq!((&bytes[..512], &bytes[512..]), (&[5; 512][..], &[4; 3584][..]));
    scratch.run(&["drain", "vol"]).expect(0);
    assert_eq!(server.terminate(), Some(0));
    let origin = std::fs::read(scratch.path("origin.img")).unwrap();
    assert_eq!(origin[1 << 20..][..512], [5; 512]);
    assert_eq!(origin[odd as usize..][..4096], [4; 4096]);
}

/// A file system is grown on the volume, the cache device dies, and the origin alone is sound.
#[test]
fn a_file_system_grows_and_outlives_the_cache_device() {
    let test = "a file system that grows";
    let tools = ["mkfs.ext4", "resize2fs", "e2fsck", "nbdcopy"];
    if !tools.iter().all(|tool| has_tool(test, tool)) {
        return;
    }
    let scratch = Scratch::new();
    scratch.cache_with_volume("writethrough");
    let server = scratch.serve();
    // The file system is made and grown on a copy, as there is no driver here that would do it on
    // the volume; what changes goes there through the cache.
    let image = scratch.file("image", OLD_BYTES);
    let image = image.to_str().expect("a temporary directory");
    foreign("mkfs.ext4", &["-q", "-F", image]);
    foreign("nbdcopy", &[image, &server.uri]);
    extend(&scratch, NEW_BYTES);
    scratch.run(&["resize", "vol"]).expect(0);
    foreign("nbdcopy", &[&server.uri, image]);
    assert_eq!(std::fs::metadata(image).unwrap().len(), NEW_BYTES);
    foreign("resize2fs", &[image]);
    foreign("nbdcopy", &[image, &server.uri]);
    server.kill();
    std::fs::remove_file(scratch.path("cache.img")).unwrap();
    let origin = scratch.path("origin.img");
    foreign("e2fsck", &["-fn", origin.to_str().expect("a temporary directory")]);
    let set = scratch.run(&["status", "--state-dir", "state", "--json"]).expect(0).json();
    let set = set["known_sets"][0]["set_id"].as_str().expect("it is known").to_owned();
    let server = scratch.serve_what(&["--without-cache", &set]);
    let client = NbdClient::connect(&server.socket, "vol").unwrap();
    assert_eq!(client.size_bytes(), NEW_BYTES);
}
