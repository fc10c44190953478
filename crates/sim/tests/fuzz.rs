//! The fuzzers of the simulator. `FOREBAY_TEST_LONG=1` makes twenty times as many cases.
//!
//! A failure prints the command that repeats its case.

use forebay_sim::fuzz::{TARGETS, find};
use peak_alloc::PeakAlloc;

/// The targets bound what a case allocates.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Cases of a long run for each case of an ordinary one.
const LONG_FACTOR: u64 = 20;

fn check(name: &str) {
    let target = find(name).expect("a target of this name");
    let is_long = std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1");
    let cases = target.test_cases * if is_long { LONG_FACTOR } else { 1 };
    match target.run(0, cases) {
        Ok(reached) => {
            let none: [&str; 0] = [];
            assert_eq!(target.not_reached(&reached), none, "{name} no longer comes across these");
        }
        Err(bad) => panic!("{bad}"),
    }
}

#[test]
fn superblock() {
    check("superblock");
}

#[test]
fn record() {
    check("record");
}

#[test]
fn summary() {
    check("summary");
}

#[test]
fn checkpoint() {
    check("checkpoint");
}

#[test]
fn device() {
    check("device");
}

#[test]
fn every_target_has_its_test() {
    let names = TARGETS.map(|target| target.name);
    assert_eq!(names, ["superblock", "record", "summary", "checkpoint", "device"]);
}
