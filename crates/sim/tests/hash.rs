//! A run is a function of its seed and options, whoever compiled it and whenever it runs.
//!
//! The program is built a second time in the other profile, so that nothing hangs on overflow
//! checks, debug assertions or optimization. Two processes have different addresses and different
//! seeds of `std`'s hash maps, and run at different times.

use std::path::Path;
use std::process::{Command, Stdio};

/// The program of this test run.
const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-sim");
/// Arguments of the runs that are compared: crashes, failures and administrators occur in the
/// seeded ones.
const RUNS: [&[&str]; 5] = [
    &["--seed", "1"],
    &["--seed", "0x419"],
    &["--seed", "1000001", "--long"],
    &["--seed", "3", "--cut-power-at-io", "30"],
    &["--seed", "4", "--fail-cache-io", "25"],
];
/// Seeds that are compared by one hash over all.
const SEEDS: &[&str] = &["--seed", "100", "--runs", "25"];

fn last_line_with_hash(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).arg("run").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().rfind(|line| line.contains(", hash "));
    let stderr = String::from_utf8_lossy(&output.stderr);
    line.unwrap_or_else(|| panic!("{arguments:?} printed no hash: {text}{stderr}")).to_owned()
}

/// The same program in the other profile.
fn other_program() -> std::path::PathBuf {
    let target = Path::new(PROGRAM).parent().and_then(Path::parent).expect("TARGET/PROFILE/NAME");
    let is_release = Path::new(PROGRAM).parent().is_some_and(|folder| folder.ends_with("release"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "forebay-sim"]);
    cargo.args(["--bin", "forebay-sim", "--target-dir"]).arg(target);
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    // A long run of the tests asks for them; the other profile is to be as it is used.
    cargo.env_remove("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS");
    cargo.env_remove("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS");
    if !is_release {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "cannot build the other profile");
    target.join(if is_release { "debug" } else { "release" }).join("forebay-sim")
}

#[test]
fn the_hash_is_the_same_in_another_process_and_another_profile() {
    let other = other_program();
    for arguments in RUNS.iter().chain([&SEEDS]) {
        let first = last_line_with_hash(Path::new(PROGRAM), arguments);
        let second = last_line_with_hash(Path::new(PROGRAM), arguments);
        assert_eq!(first, second, "{arguments:?} twice");
        assert_eq!(first, last_line_with_hash(&other, arguments), "{arguments:?} in {other:?}");
    }
}

#[test]
fn the_hash_tells_runs_apart() {
    let hash = |arguments: &[&str]| {
        let line = last_line_with_hash(Path::new(PROGRAM), arguments);
        line.rsplit(' ').next().map(str::to_owned)
    };
    let mut hashes: Vec<_> = RUNS.iter().map(|arguments| hash(arguments)).collect();
    hashes.push(hash(&["--seed", "3", "--cut-power-at-io", "31"]));
    hashes.push(hash(&["--seed", "4", "--fail-cache-io", "26"]));
    let count = hashes.len();
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), count, "runs that differ have equal hashes");
}
