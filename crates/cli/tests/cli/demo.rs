//! demo: ends well, says what it measured, and leaves nothing behind.

use std::fs;

use crate::support::Scratch;

#[test]
fn a_short_demo_measures_and_loses_nothing() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("place")).unwrap();
    let demo = ["demo", "--seconds", "1", "--dir", "place", "--json", "figures.json"];
    scratch.run(&demo).expect(0).says("none lost").says("to 90 %");
    let text = fs::read_to_string(scratch.path("figures.json")).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(figures["reads"].as_array().unwrap().len(), 4);
    assert_eq!(figures["write_flushes"].as_array().unwrap().len(), 3);
    assert!(figures["reads"][2]["hit_ratio"].as_f64().unwrap() > 0.0, "{figures:#}");
    assert!(figures["crash"]["blocks_compared"].as_u64().unwrap() > 0, "{figures:#}");
    assert_eq!(figures["crash"]["blocks_wrong"], 0);
    assert_eq!(fs::read_dir(scratch.path("place")).unwrap().count(), 0);
}

#[test]
fn a_demo_that_is_cancelled_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let place = scratch.path("place");
    fs::create_dir(&place).unwrap();
    // A server's socket is there: the runs have begun.
    let mut has_begun = || {
        let Ok(mut entries) = fs::read_dir(&place) else { return false };
        entries.any(|entry| entry.unwrap().path().join("server.nbd").exists())
    };
    let demo = ["demo", "--dir", "place"];
    scratch.run_and_interrupt(&demo, &mut has_begun).expect(6).says("cancelled");
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn a_demo_without_room_says_so() {
    let scratch = Scratch::new();
    scratch.run(&["demo", "--dir", "nowhere"]).expect(1).says("--dir");
    scratch.run(&["demo", "--json", "no/such/directory"]).expect(1).says("no/such/directory");
    scratch.run(&["demo", "--seconds", "0"]).expect(2);
}
