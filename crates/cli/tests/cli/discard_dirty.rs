//! `forebay detach --discard-dirty`, with a daemon and without one.

use crate::support::{Ended, Scratch};

const DISCARD: [&str; 3] = ["detach", "vol", "--discard-dirty"];
const OFFLINE: [&str; 4] = ["--cache", "cache.img", "--state-dir", "state"];

fn discard(scratch: &Scratch, more: &[&str]) -> Ended {
    scratch.run(&[&DISCARD, more].concat())
}

/// A volume with two dirty blocks; clients are gone.
fn dirty(scratch: &Scratch) -> crate::support::Server {
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let mut client = server.client();
    client.write(0, &[7; 8192]).unwrap();
    // The second version of a block is no second block.
    client.write(0, &[8; 4096]).unwrap();
    client.flush().unwrap();
    server
}

/// The server may not have seen yet that its client is gone.
fn when_free(mut run: impl FnMut() -> Ended) -> Ended {
    for _ in 0..100 {
        let ended = run();
        if ended.code != Some(3) {
            return ended;
        }
    }
    run()
}

/// The origin has nothing, and the volume is nowhere.
fn look(scratch: &Scratch) {
    let origin = std::fs::read(scratch.path("origin.img")).unwrap();
    assert!(origin[..8192].iter().all(|byte| *byte == 0));
    scratch.run(&["check", "cache.img"]).expect(0).says(" 0 dirty");
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(shown["volumes"].as_array().unwrap().len(), 0);
    // Attached again it is what the origin holds.
    let attach = ["attach", "cache.img", "origin.img", "--name", "vol"];
    scratch.run(&attach).expect(0);
    let server = scratch.serve();
    let mut bytes = [1; 8192];
    server.client().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8192]);
    assert_eq!(scratch.volume()["dirty_bytes"], 0);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_daemon_throws_dirty_data_away() {
    let scratch = Scratch::new();
    let server = dirty(&scratch);
    let client = server.client();
    discard(&scratch, &["--accept-loss", "vol"]).expect(3).says("in use by");
    drop(client);
    discard(&scratch, &[]).expect(3).says("--accept-loss vol").says("8 KiB");
    discard(&scratch, &["--accept-loss", "other"]).expect(3).says("nothing was changed");
    assert_eq!(scratch.volume()["dirty_bytes"], 8192);
    let unknown = ["detach", "nobody", "--discard-dirty", "--accept-loss", "nobody"];
    scratch.run(&unknown).expect(4).says("nobody");
    when_free(|| discard(&scratch, &["--accept-loss", "vol"])).expect(0).says("8 KiB");
    assert_eq!(server.terminate(), Some(0));
    look(&scratch);
}

#[test]
fn json_says_how_much() {
    let scratch = Scratch::new();
    let server = dirty(&scratch);
    let json =
        when_free(|| discard(&scratch, &["--accept-loss", "vol", "--json"])).expect(0).json();
    assert_eq!(json["name"], "vol");
    assert_eq!(json["discarded_bytes"], 8192);
    server.kill();
    look(&scratch);
}

#[test]
fn without_a_daemon_the_table_is_written() {
    let scratch = Scratch::new();
    dirty(&scratch).kill();
    scratch.run(&[&DISCARD[..], &OFFLINE].concat()).expect(3).says("--accept-loss vol");
    let wrong = [&DISCARD[..], &OFFLINE, &["--accept-loss", "VOL"]].concat();
    scratch.run(&wrong).expect(3).says("is not the name");
    scratch.run(&["check", "cache.img"]).expect(0);
    scratch.run(&["status", "--state-dir", "state"]).expect(0).says("dirty data may exist");
    let right = [&DISCARD[..], &OFFLINE, &["--accept-loss", "vol", "--json"]].concat();
    let json = scratch.run(&right).expect(0).json();
    assert_eq!(json["discarded_bytes"], 8192);
    scratch.run(&right).expect(4).says("vol");
    let known = scratch.run(&["status", "--state-dir", "state", "--json"]).expect(0).json();
    assert_eq!(known["known_sets"][0]["volumes"].as_array().unwrap().len(), 0);
    look(&scratch);
    scratch.run(&["wipe", "cache.img", "--state-dir", "state"]).expect(0);
}

#[test]
fn a_volume_whose_origin_is_gone_can_be_given_up() {
    let scratch = Scratch::new();
    dirty(&scratch).kill();
    scratch.file("second.img", 1 << 20);
    scratch.run(&["attach", "cache.img", "second.img", "--name", "second"]).expect(0);
    std::fs::rename(scratch.path("origin.img"), scratch.path("away.img")).unwrap();
    let server = scratch.serve_what(&["cache.img"]);
    scratch.run(&["status"]).expect(0).says("cannot open");
    scratch.run(&["detach", "vol"]).expect(4);
    discard(&scratch, &["--accept-loss", "vol"]).expect(0).says("8 KiB");
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    assert_eq!(shown["volumes"][0]["name"], "second", "it is not lost");
    let away = std::fs::read(scratch.path("away.img")).unwrap();
    assert!(away[..8192].iter().all(|byte| *byte == 0));
}

#[test]
fn a_clean_volume_loses_nothing() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writethrough");
    let server = scratch.serve();
    let mut client = server.client();
    client.write(0, &[5; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    when_free(|| discard(&scratch, &["--accept-loss", "vol"])).expect(0).says("0 ");
    assert_eq!(server.terminate(), Some(0));
    assert_eq!(std::fs::read(scratch.path("origin.img")).unwrap()[..4096], [5; 4096]);
}
