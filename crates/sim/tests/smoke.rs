//! The engine under the simulator. `FOREBAY_TEST_LONG=1` makes 5,000 runs of 200.

use forebay_sim::RunOptions;
use forebay_sim::hunt::hunt;
use forebay_sim::sweep::{Effort, Sweep, sweep};
use forebay_sim::under_test::launch_engine;

fn is_long() -> bool {
    std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1")
}

fn check_runs(seed: u64, runs: u64, options: RunOptions) {
    let caught = hunt(seed..seed + runs, options, &launch_engine);
    for kind in caught.kinds.values() {
        println!("{} runs: {}", kind.count, kind.shortest);
    }
    assert_eq!(caught.bad_runs, 0, "of {runs} runs");
}

fn check_sweep(kind: Sweep) {
    let brief = Effort { stride: 5, choices_max: 3 };
    let (seeds, effort) = if is_long() { (1..=10, Effort::FULL) } else { (1..=2, brief) };
    for seed in seeds {
        match sweep(seed, kind, effort, &launch_engine, &mut |_| {}) {
            Ok(swept) => assert!(swept.runs > 10, "seed {seed}: {swept:?}"),
            Err(outcome) => panic!("{kind:?}: {outcome}"),
        }
    }
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

#[test]
fn engine_survives_a_failure_of_each_cache_operation() {
    check_sweep(Sweep::FailCacheIo);
}

#[test]
fn engine_survives_a_failure_of_each_origin_operation() {
    check_sweep(Sweep::FailOriginIo);
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
