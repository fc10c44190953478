//! Settings of admission, and the question why a block is cached or not.

use crate::support::Scratch;

#[test]
fn explain_tells_what_the_cache_has_and_why() {
    let scratch = Scratch::new();
    scratch.run(&["explain", "vol", "0"]).expect(4).says("a daemon that serves the cache");
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let mut client = server.client();
    client.write(8192, &[1; 4096]).unwrap();
    client.read(1 << 20, &mut [0; 4096]).unwrap();
    let json = |offset: &str| scratch.run(&["explain", "vol", offset, "--json"]).expect(0).json();
    let dirty = json("8200");
    assert_eq!((&dirty["offset_bytes"], &dirty["kind"]), (&8192.into(), &"data".into()));
    assert_eq!((&dirty["is_cached"], &dirty["is_dirty"]), (&true.into(), &true.into()));
    assert_eq!(dirty["is_kept"], true);
    assert_eq!(dirty["last_decision"]["access"], "write");
    assert_eq!(dirty["last_decision"]["reason"], "dirty");
    assert_eq!(dirty["copy"]["is_recovered"], false);
    assert!(dirty["version"].as_u64().unwrap() > 0);
    let offset = dirty["copy"]["cache_offset_bytes"].as_u64().unwrap();
    let record = &dirty["copy"]["record"];
    assert_eq!(record["cache_offset_bytes"], offset - 4096, "a record of one block");
    assert_eq!(record["sequence"], dirty["copy"]["sequence_max"]);
    let absent = json("2M");
    assert_eq!((&absent["is_cached"], &absent["copy"]), (&false.into(), &().into()));
    assert_eq!(absent["last_decision"], serde_json::Value::Null);
    let text = scratch.run(&["explain", "vol", "8K"]).expect(0);
    text.says("cached, dirty, data")
        .says("dirty")
        .says("record ")
        .says("header in block")
        .says(&format!("byte {offset} of"));
    scratch.run(&["explain", "vol", "2M"]).expect(0).says("not cached").says("not known any more");
    scratch.run(&["explain", "nobody", "0"]).expect(4).says("nobody");
    scratch.run(&["explain", "vol", "1T"]).expect(2).says("no byte");
    scratch.run(&["explain", "vol", "soon"]).expect(2);
    server.kill();
    let image = std::fs::read(scratch.path("cache.img")).unwrap();
    let at = usize::try_from(offset).unwrap();
    assert_eq!(image[at..at + 4096], [1; 4096], "it is where it was said to be");
}

#[test]
fn a_block_that_was_not_promoted_says_which_setting_kept_it_out() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writethrough");
    let server = scratch.serve();
    let mut client = server.client();
    let reason = |offset: &str| {
        let found = scratch.run(&["explain", "vol", offset, "--json"]).expect(0).json();
        assert_eq!(found["is_cached"], false, "{found}");
        assert_eq!(found["last_decision"]["is_admitted"], false, "{found}");
        found["last_decision"]["reason"].as_str().unwrap().to_owned()
    };
    scratch.run(&["set", "vol", "promotion_nhit=3", "promote_on_write=off"]).expect(0);
    client.read(0, &mut [0; 4096]).unwrap();
    assert_eq!(reason("0"), "promotion_nhit");
    client.write(1 << 20, &[1; 4096]).unwrap();
    assert_eq!(reason("1M"), "promote_on_write");
    scratch.run(&["set", "vol", "promote_on_read=off"]).expect(0);
    client.read(2 << 20, &mut [0; 4096]).unwrap();
    assert_eq!(reason("2M"), "promote_on_read");
    let volume = scratch.volume();
    for reason in ["promotion_nhit", "promote_on_write", "promote_on_read"] {
        assert_eq!(volume["counters"]["bypassed_block_counts"][reason], 1, "{reason}");
    }
    scratch.run(&["set", "vol", "promote_on_write=on"]).expect(0);
    client.write(3 << 20, &[1; 4096]).unwrap();
    assert_eq!(scratch.volume()["counters"]["admitted_block_counts"]["no_limit"], 1);
    scratch.run(&["status"]).expect(0).says("admitted    no_limit 1");
}

#[test]
fn settings_of_admission_change_and_last() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let settings = ["promotion_nhit=2", "sequential_policy=never"];
    scratch.run(&[&["set", "vol"], &settings[..]].concat()).expect(0);
    scratch.run(&["set", "vol", "promote_on_read=off", "promote_on_write=off"]).expect(0);
    scratch.run(&["set", "cache_write_budget=20G"]).expect(0);
    scratch.run(&["set", "vol", "promotion_nhit=16"]).expect(2).says("1 to 15");
    scratch.run(&["set", "vol", "sequential_policy=now"]).expect(2).says("always");
    scratch.run(&["set", "vol", "cache_write_budget=1G"]).expect(2).says("cache set");
    let check = |set: &serde_json::Value, volume: &serde_json::Value| {
        assert_eq!(set["cache_write_budget_bytes_per_day"], 20_u64 << 30);
        assert_eq!(volume["promotion_nhit"], 2);
        assert_eq!(volume["sequential_policy"], "never");
        assert_eq!(
            (&volume["promote_on_read"], &volume["promote_on_write"]),
            (&false.into(), &false.into())
        );
    };
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    check(&status["daemons"][0]["cache_set"], &scratch.volume());
    assert_eq!(server.terminate(), Some(0));
    let shown = scratch.run(&["show", "cache.img", "--json"]).expect(0).json();
    check(&shown, &shown["volumes"][0]);
}

#[test]
fn status_tells_what_other_sizes_would_find() {
    const BLOCKS: u64 = 2_048;
    const BLOCK_BYTES: u64 = 4_096;
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let sizes = || {
        let status = scratch.run(&["status", "--json"]).expect(0).json();
        status["daemons"][0]["cache_set"]["what_if"].as_array().expect("four sizes").clone()
    };
    assert!(sizes().iter().all(|size| size["hit_ratio_blocks"].is_null()));
    scratch.run(&["status", "--what-if"]).expect(0).says("not known yet");
    let mut client = server.client();
    for _ in 0..4 {
        let mut buffer = vec![0; 1 << 20];
        for offset in (0..BLOCKS * BLOCK_BYTES).step_by(buffer.len()) {
            client.read(offset, &mut buffer).unwrap();
        }
    }
    let sizes = sizes();
    let bytes: Vec<u64> =
        sizes.iter().map(|size| size["cache_size_bytes"].as_u64().expect("a size")).collect();
    assert!(bytes.windows(2).all(|pair| pair[1] == 2 * pair[0]), "{bytes:?}");
    assert!(bytes[0] > BLOCKS * BLOCK_BYTES, "a loop that fits: {bytes:?}");
    // Three rounds of four find everything.
    let ratio = sizes[0]["hit_ratio_blocks"].as_f64().expect("it has seen enough");
    assert!((ratio - 0.75).abs() < 0.02, "{ratio}");
    scratch.run(&["status", "--what-if"]).expect(0).says("of the blocks found");
}
