//! The program `forebay-sim`, as its users see it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-sim"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    for arguments in [&["run", "--seed", "1", "--trace"][..], &["hunt", "--runs", "3"]] {
        let mut child = program(arguments).spawn().unwrap();
        let mut line = String::new();
        // The pipe holds less than the trace of a run.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        let ended = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), stderr.as_ref()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn without_a_command_options_are_those_of_a_run() {
    let short = program(&["--seed", "7"]).output().unwrap();
    let whole = program(&["run", "--seed", "7"]).output().unwrap();
    assert_eq!(short.status.code(), Some(0));
    assert_eq!(short.stdout, whole.stdout);
    let version = program(&["--version"]).output().unwrap();
    assert!(version.stdout.starts_with(b"forebay-sim"));
}

#[test]
fn a_fuzzer_runs_by_name_and_seed_and_without_a_name_all_are_listed() {
    let one = program(&["fuzz", "record", "--seed", "7"]).output().unwrap();
    assert_eq!(one.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&one.stdout).starts_with("record: 1 cases"));
    for arguments in [&["fuzz"][..], &["fuzz", "nothing"]] {
        let none = program(arguments).output().unwrap();
        assert_eq!(none.status.code(), Some(2));
        let text = String::from_utf8_lossy(&none.stderr).into_owned();
        for target in forebay_sim::fuzz::TARGETS {
            assert!(text.contains(target.name) && text.contains(target.about), "{text}");
        }
    }
}

/// Arguments, and words that the message must have.
const WRONG_ARGUMENTS: &[(&[&str], &[&str])] = &[
    (&["run", "--seed", "12x"], &["12x", "decimal", "hexadecimal"]),
    (&["run", "--seed", "-1"], &["-1"]),
    (&["run"], &["--seed"]),
    (&["run", "--seed", "1", "--runs", "0"], &["--runs", "1.."]),
    (&["run", "--seed", "0xffffffffffffffff", "--runs", "2"], &["beyond the last seed"]),
    (&["run", "--seed", "1", "--watch", "3"], &["VOLUME:BLOCK"]),
    (&["run", "--seed", "1", "--watch", "9:0"], &["--watch 9:0", "volumes"]),
    (&["run", "--seed", "1", "--watch", "0:999999"], &["--watch 0:999999", "blocks"]),
    (&["run", "--seed", "1", "--kill-at-io", "9999999"], &["has only", "such operations"]),
    (&["run", "--seed", "1", "--fail-cache-io", "9999999"], &["has only", "such operations"]),
    (&["run", "--seed", "1", "--kill-at-io", "1", "--cut-power-at-io", "1"], &["cannot be used"]),
    (&["run", "--seed", "1", "--survivors", "1"], &["--kill-at-io", "--cut-power-at-io"]),
    (&["run", "--seed", "1", "--trace-file", "/nowhere/file"], &["/nowhere/file"]),
    (&["run", "--seed", "1", "--runs", "2", "--trace-file", "x"], &["one run"]),
    (&["replay", "/nowhere/file"], &["/nowhere/file"]),
    (&["replay", env!("CARGO_BIN_EXE_forebay-sim")], &["is no trace"]),
    (&["run", "--seed", "1", "--kill-at-io", "1", "--long"], &["cannot be used"]),
    (&["hunt", "--runs", "0"], &["--runs", "1.."]),
    (&["step-response", "--stream-kib", "9999", "--stream-seconds", "999"], &["less", "MiB"]),
    (&["hunt"], &["--runs"]),
    (&["hunt", "--minutes", "0"], &["--minutes", "above 0"]),
    (&["hunt", "--runs", "1", "--jobs", "0"], &["--jobs"]),
    (&["sweep", "--stride", "0"], &["--stride", "1.."]),
    (&["sweep", "nothing"], &["nothing"]),
    (&["sweep", "kill", "--byte", "3"], &["--byte", "flip-stopped"]),
    (&["sweep", "flip-killed", "--byte", "99999999"], &["--byte 99999999", "is none of"]),
    (&["nothing"], &["nothing"]),
];

#[test]
fn arguments_that_make_no_sense_are_named() {
    for (arguments, words) in WRONG_ARGUMENTS {
        let output = program(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        for word in *words {
            assert!(text.contains(word), "{arguments:?} must say `{word}`: {text}");
        }
    }
}

#[cfg(not(feature = "planted-defects"))]
#[test]
fn without_defects_the_program_says_how_to_build_it_with_them() {
    let output = program(&["defects"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("--features planted-defects"), "{text}");
}

#[test]
fn a_hexadecimal_seed_is_the_same_seed() {
    let run = |seed| program(&["run", "--seed", seed]).output().unwrap();
    let (decimal, hexadecimal) = (run("1049"), run("0x419"));
    assert_eq!(decimal.status.code(), Some(0));
    assert_eq!(decimal.stdout, hexadecimal.stdout);
}

#[test]
fn a_recorded_run_is_replayed_and_a_difference_is_named() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("run-{}.trace", std::process::id()));
    let file = path.to_str().unwrap();
    let arguments = ["run", "--seed", "3", "--cut-power-at-io", "20", "--survivors", "1"];
    let recorded = program(&arguments).args(["--trace-file", file]).output().unwrap();
    assert_eq!(recorded.status.code(), Some(0));
    let replayed = program(&["replay", file]).output().unwrap();
    let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert_eq!((replayed.status.code(), text.contains("the same")), (Some(0), true), "{text}");

    let mut lines: Vec<String> =
        std::fs::read_to_string(&path).unwrap().lines().map(str::to_owned).collect();
    let middle = lines.len() / 2;
    lines[middle].push_str(" changed");
    std::fs::write(&path, lines.join("\n")).unwrap();
    let replayed = program(&["replay", file]).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = String::from_utf8_lossy(&replayed.stdout).into_owned();
    assert_eq!(replayed.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("line {} differs", middle + 1)), "{text}");
}

#[test]
fn a_hunt_finds_the_same_with_any_number_of_jobs() {
    let sums = |jobs: &str| {
        let output = program(&["hunt", "--runs", "12", "--jobs", jobs]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("recoveries in"), "{text}");
        // Indented lines are what the runs did; the others tell the time.
        text.lines().filter(|line| line.starts_with("   ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let alone = sums("1");
    assert!(alone.len() > 10);
    assert_eq!(alone, sums("3"));
}

#[test]
fn a_hunt_by_the_clock_says_where_it_began() {
    let output = program(&["hunt", "--minutes", "0.01", "--jobs", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = text.lines().next().unwrap();
    let seed = first.strip_prefix("seeds from ").and_then(|rest| rest.split(' ').next());
    assert!(seed.and_then(|seed| seed.parse::<u64>().ok()).is_some_and(|seed| seed > 1), "{first}");
}

#[test]
fn a_sweep_says_how_much_it_did() {
    let arguments = ["sweep", "kill", "--seed", "2", "--stride", "40", "--choices", "2"];
    let output = program(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("seed 2 kill: ") && text.contains(" runs, all good"), "{text}");
}
