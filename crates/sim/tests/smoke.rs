//! The engine under the simulator: a corpus of fixed seeds, fresh seeds from the clock, and sweeps.
//! `FOREBAY_TEST_LONG=1` makes 5,000 runs of 200, four times as many fresh ones, and whole sweeps.
//!
//! A failure prints the command that repeats it; with fresh seeds that is the only way to see it
//! again.

use std::time::SystemTime;

use forebay_sim::RunOptions;
use forebay_sim::fuzz::flips::{self, Which};
use forebay_sim::fuzz::image::End;
use forebay_sim::hunt::hunt;
use forebay_sim::sweep::{Effort, Sweep, sweep};
use forebay_sim::under_test::launch_engine;

fn is_long() -> bool {
    std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1")
}

/// Fresh runs of each of the two tests, which share two cores: about a minute in a test build.
const FRESH_RUNS: u64 = 1_500;
/// Of the bytes that recovery goes by, every so many are flipped. It is prime: all offsets of
/// blocks come about.
const FLIP_STRIDE: u64 = 499;

fn check_runs(seed: u64, runs: u64, options: RunOptions) {
    let caught = hunt(seed..seed + runs, options, &launch_engine);
    for kind in caught.kinds.values() {
        println!("{} runs: {}", kind.count, kind.shortest);
    }
    assert_eq!(caught.bad_runs, 0, "of {runs} runs from seed {seed} on");
}

fn check_sweep(kind: Sweep) {
    let brief = Effort { stride: 13, choices_max: 3 };
    let effort = if is_long() { Effort::FULL } else { brief };
    let mut reclaimed = 0;
    for seed in 2..=3 {
        match sweep(seed, kind, effort, &launch_engine, &mut |_| {}) {
            Ok(swept) => reclaimed += swept.totals["reclaimed segments"],
            Err(outcome) => panic!("{kind:?}: {outcome}"),
        }
    }
    assert!(reclaimed > 0, "none of the seeds comes to reclaim");
}

#[test]
fn engine_survives_random_runs() {
    check_runs(1, if is_long() { 5_000 } else { 200 }, RunOptions::default());
}

#[test]
fn engine_survives_long_runs() {
    let options = RunOptions { long: true, ..RunOptions::default() };
    check_runs(1_000_000, if is_long() { 500 } else { 10 }, options);
}

/// Seeds that nobody has seen: microseconds since 1970, in a half of all seeds for each test.
fn check_fresh_runs(half: u64) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = since.as_micros() as u64 >> 1 | half << 63;
    check_runs(seed, FRESH_RUNS * if is_long() { 4 } else { 1 }, RunOptions::default());
}

#[test]
fn engine_survives_fresh_runs() {
    check_fresh_runs(0);
}

#[test]
fn engine_survives_other_fresh_runs() {
    check_fresh_runs(1);
}

fn check_flips(end: End) {
    let stride = if is_long() { 1 } else { FLIP_STRIDE };
    match flips::sweep(1, end, Which::Every(stride), &mut |_| {}) {
        Ok(flipped) => {
            let places = ["superblock", "superblock copy", "checkpoint A", "checkpoint B"];
            for place in places.into_iter().chain(["record header", "summary"]) {
                assert!(flipped.reached.count(place) > 0, "no byte of a {place} was flipped");
            }
        }
        Err(bad) => panic!("{bad}"),
    }
}

#[test]
fn no_flipped_byte_is_a_wrong_byte_after_a_stop() {
    check_flips(End::Stopped);
}

#[test]
fn no_flipped_byte_is_a_wrong_byte_after_a_kill_when_idle() {
    check_flips(End::Idle);
}

#[test]
fn no_flipped_byte_is_a_wrong_byte_after_a_kill() {
    check_flips(End::Killed);
}

#[test]
fn engine_survives_a_failure_of_each_cache_operation() {
    check_sweep(Sweep::FailCacheIo);
}

#[test]
fn engine_survives_a_failure_of_each_origin_operation() {
    check_sweep(Sweep::FailOriginIo);
}

#[test]
fn engine_survives_a_cache_device_that_breaks_at_any_operation() {
    check_sweep(Sweep::BreakCache);
}

#[test]
fn engine_survives_a_cache_device_that_goes_and_comes_back_at_any_operation() {
    check_sweep(Sweep::LoseCache);
}

#[test]
fn engine_survives_a_kill_at_each_operation() {
    check_sweep(Sweep::Kill);
}

#[test]
fn engine_survives_a_power_cut_at_each_operation() {
    check_sweep(Sweep::CutPower);
}

#[test]
fn engine_survives_a_kill_some_time_after_a_failure() {
    check_sweep(Sweep::FailThenKill);
}

#[test]
fn engine_survives_a_power_cut_some_time_after_a_failure() {
    check_sweep(Sweep::FailThenCutPower);
}
