//! `cargo xtask test`: all tests, with one count at the end.
//!
//! The tests of all members are built and run in one profile, the binary of the end-to-end tests
//! included: on two cores a second profile would cost more time than its faster code saves.
//! `--long` runs long enough to pay for optimized code; it keeps the overflow checks and debug
//! assertions.
//!
//! A test that lacks what it needs appends the line `SKIPPED <test name>: <what is missing>` to the
//! file that `FOREBAY_SKIP_LOG` names, and returns. To libtest it has passed; here it counts as
//! skipped. An ignored test counts as skipped, too.
//!
//! What guests with a kernel of their own show (`cargo xtask vm`) comes last, with the binary of
//! the end-to-end tests, and counts into the same sum.
//!
//! A long run that was interrupted can go on: `record.rs` tells with what.
//!
//! As root, tests have mounts of their own: what they mount ends with their last process, also if
//! they are killed. A file system that stays mounted on a file that nobody serves any more gets in
//! the way of others (`mkfs.btrfs` asks each mounted loop device for its file).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

mod record;

use anyhow::Context;
use record::{Earlier, Record};
use serde::{Deserialize, Serialize};

use crate::packages::{self, Install, Purpose};
use crate::vm::{self, Effort, Fetch};
use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Names the file that a test appends to when it is skipped.
const SKIP_LOG_VARIABLE: &str = "FOREBAY_SKIP_LOG";
/// Is `1` if tests shall run with their full counts.
const LONG_VARIABLE: &str = "FOREBAY_TEST_LONG";
/// What a line of the skip log begins with.
const SKIP_MARK: &str = "SKIPPED ";

/// Everything as it is released.
const ALL_PACKAGES: [&str; 1] = ["--workspace"];
/// The simulator with an engine that can have deliberate defects. By itself: a feature holds for
/// all that is built at a time, and the host refuses to be built with this one.
const PLANTED_DEFECTS: [&str; 8] = [
    "--package",
    "forebay-sim",
    "--features",
    "planted-defects",
    "--test",
    "defects",
    // Says how many runs it took to find each.
    "--",
    "--show-output",
];

/// How to run the tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run with full counts: long simulation, hundreds of kills. Takes two to three hours.
    #[arg(long)]
    long: bool,
    /// Go on with a long run of the same source that was interrupted: what passed of it counts, and
    /// is not run again. A run that failed cannot be resumed.
    #[arg(long, requires = "long")]
    resume: bool,
    /// Count a skipped test as a failure.
    #[arg(long)]
    no_skip: bool,
    /// Do not install missing packages.
    #[arg(long)]
    no_install: bool,
}

/// Runs all tests.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let workspace = Workspace::load()?;
    let install = if options.no_install { Install::Never } else { Install::IfPossible };
    packages::prepare(Purpose::Tests, install)?;
    let target_folder = workspace.metadata.target_directory.as_std_path();
    let mut record = open_record(options, workspace.root(), target_folder)?;
    let mut tally = Tally::default();
    for (name, packages) in [("all members", &ALL_PACKAGES[..]), ("defects", &PLANTED_DEFECTS)] {
        let mut command = test_command(options, packages, target_folder);
        command.current_dir(workspace.root());
        tally.add(record.part(name, || Tally::of_tests(&mut command, target_folder))?);
    }
    test_in_guests(options, target_folder, &mut record, &mut tally)?;
    record.remove()?;
    print_summary(&tally, started.elapsed().as_secs());
    Ok(tally.outcome(if options.no_skip { Skips::Failures } else { Skips::Allowed }))
}

fn open_record(options: &Options, root: &Path, target_folder: &Path) -> anyhow::Result<Record> {
    if !options.long {
        return Ok(Record::none());
    }
    let earlier = if options.resume { Earlier::Resumed } else { Earlier::Dropped };
    Record::open(target_folder.join("long/passed.json"), root, earlier)
}

/// An empty file of our own, so that two runs at a time do not meet.
fn create_skip_log(target_folder: &Path) -> anyhow::Result<PathBuf> {
    let path = target_folder.join(format!("skipped-tests-{}.log", std::process::id()));
    std::fs::create_dir_all(target_folder)
        .and_then(|()| std::fs::write(&path, ""))
        .with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// Runs `program` with mounts that nobody else sees, or as it is where that is not permitted.
fn with_own_mounts(program: &OsStr) -> Command {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--"]);
        command
    };
    if !packages::is_success(unshare().arg("true")) {
        return Command::new(program);
    }
    let mut command = unshare();
    command.arg(program);
    command
}

fn test_command(options: &Options, packages: &[&str], target_folder: &Path) -> Command {
    let mut command = with_own_mounts(process::cargo().get_program());
    command.args(["test", "--locked", "--no-fail-fast"]);
    if options.long {
        // A folder of its own: nobody shall take a binary with assertions for the released one.
        command.arg("--release").arg("--target-dir").arg(target_folder.join("long"));
        command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
        command.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
        command.env(LONG_VARIABLE, "1");
    } else {
        command.env_remove(LONG_VARIABLE);
    }
    command.args(packages);
    command
}

/// With the binary that the end-to-end tests have left.
fn test_in_guests(
    options: &Options,
    target_folder: &Path,
    record: &mut Record,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    let (forebay, effort) = if options.long {
        (target_folder.join("long/release/forebay"), Effort::Long)
    } else {
        (target_folder.join("debug/forebay"), Effort::Short)
    };
    let fetch = if options.no_install { Fetch::Never } else { Fetch::IfMissing };
    let guests = vm::Tests::prepare(target_folder, &forebay, effort, fetch);
    for scenario in vm::SCENARIOS {
        let name = format!("vm {}", scenario.name);
        tally.add(record.part(&name, || Ok(Tally::of_guest(guests.run(scenario))))?);
    }
    Ok(())
}

/// What a skipped test is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Skips {
    Allowed,
    Failures,
}

/// Results of tests.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
struct Tally {
    /// Tests that libtest calls passed, the skipped ones among them.
    ok_count: usize,
    failed_count: usize,
    ignored_count: usize,
    /// Names of failed tests.
    failed: Vec<String>,
    /// Skipped tests, each with what it lacks.
    skipped: BTreeSet<String>,
    /// Ignored tests.
    ignored: Vec<String>,
}

impl Tally {
    /// Runs tests, and sees which of them were skipped.
    fn of_tests(command: &mut Command, target_folder: &Path) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        let skip_log = create_skip_log(target_folder)?;
        println!("$ {}", process::describe(command));
        tally.run(command.env(SKIP_LOG_VARIABLE, &skip_log), std::io::stdout().lock())?;
        let context = || format!("cannot read {}", skip_log.display());
        tally.add_skip_log(&std::fs::read_to_string(&skip_log).with_context(context)?);
        std::fs::remove_file(&skip_log)
            .with_context(|| format!("cannot remove {}", skip_log.display()))?;
        Ok(tally)
    }

    /// What a guest showed. A skipped scenario counts as passed at first, as in libtest.
    fn of_guest(report: vm::Report) -> Tally {
        Tally {
            ok_count: report.passed_count + report.skipped.len(),
            failed_count: report.failed.len(),
            failed: report.failed,
            skipped: report.skipped.into_iter().collect(),
            ..Tally::default()
        }
    }

    fn add(&mut self, other: Tally) {
        self.ok_count += other.ok_count;
        self.failed_count += other.failed_count;
        self.ignored_count += other.ignored_count;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.ignored.extend(other.ignored);
    }

    /// Runs `command`, passes its output on to `screen` line by line, and counts.
    fn run(&mut self, command: &mut Command, mut screen: impl Write) -> anyhow::Result<()> {
        let name = process::describe(command);
        let context = || format!("cannot run {name}");
        let failed_before = self.failed_count;
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(context)?;
        let mut output = BufReader::new(child.stdout.take().context("the output is piped")?);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).with_context(context)? > 0 {
            screen.write_all(&line).and_then(|()| screen.flush()).context("cannot print")?;
            self.add_line(String::from_utf8_lossy(&line).trim_end());
            line.clear();
        }
        let status = child.wait().with_context(context)?;
        if !status.success() && self.failed_count == failed_before {
            // The build failed, or a test took the whole process with it.
            self.failed_count += 1;
            self.failed.push(format!("{name}: {status}"));
        }
        Ok(())
    }

    /// Takes in a line of the output of libtest.
    fn add_line(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.ok_count += count_before(result, " passed");
            self.failed_count += count_before(result, " failed");
            self.ignored_count += count_before(result, " ignored");
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            if result == "FAILED" {
                self.failed.push(name.to_owned());
            } else if result.starts_with("ignored") {
                self.ignored.push(format!("{name}: {result}"));
            }
        }
    }

    fn add_skip_log(&mut self, text: &str) {
        let skipped = text.lines().filter_map(|line| line.strip_prefix(SKIP_MARK));
        self.skipped.extend(skipped.map(str::to_owned));
    }

    fn passed_count(&self) -> usize {
        self.ok_count.saturating_sub(self.skipped.len())
    }

    fn skipped_count(&self) -> usize {
        self.skipped.len() + self.ignored_count
    }

    fn outcome(&self, skips: Skips) -> Outcome {
        let failed_count = match skips {
            Skips::Allowed => self.failed_count,
            Skips::Failures => self.failed_count + self.skipped_count(),
        };
        if failed_count == 0 { Outcome::Passed } else { Outcome::Failed }
    }
}

/// The number before `unit` in a line such as `ok. 3 passed; 0 failed; ...`; 0 if there is none.
fn count_before(line: &str, unit: &str) -> usize {
    let count = |part: &str| {
        let number = part.trim().strip_suffix(unit)?;
        number.rsplit(' ').next()?.parse().ok()
    };
    line.split(';').find_map(count).unwrap_or(0)
}

fn print_summary(tally: &Tally, seconds: u64) {
    println!("\nfinished after {} min {} s", seconds / 60, seconds % 60);
    for name in &tally.failed {
        println!("FAILED {name}");
    }
    for name in tally.skipped.iter().chain(&tally.ignored) {
        println!("SKIPPED {name}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        tally.passed_count(),
        tally.failed_count,
        tally.skipped_count()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test a::fits ... ok
test a::breaks ... FAILED
test a::slow ... ignored, takes a day
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s
test src/lib.rs - (line 6) ... ok
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn tally(output: &str, skip_log: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.add_line(line));
        tally.add_skip_log(skip_log);
        tally
    }

    #[test]
    fn results_of_all_binaries_are_summed_up() {
        let tally = tally(OUTPUT, "");
        assert_eq!((tally.passed_count(), tally.failed_count, tally.skipped_count()), (13, 1, 1));
        assert_eq!(tally.failed, ["a::breaks"]);
        assert_eq!(tally.ignored, ["a::slow: ignored, takes a day"]);
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let log = "SKIPPED mounts_xfs: mkfs.xfs\nSKIPPED mounts_xfs: mkfs.xfs\nnoise\n";
        let tally = tally("test result: ok. 5 passed; 0 failed; 0 ignored;", log);
        assert_eq!((tally.passed_count(), tally.failed_count, tally.skipped_count()), (4, 0, 1));
        assert_eq!(tally.skipped.iter().collect::<Vec<_>>(), ["mounts_xfs: mkfs.xfs"]);
        assert_eq!(tally.outcome(Skips::Allowed), Outcome::Passed);
        assert_eq!(tally.outcome(Skips::Failures), Outcome::Failed);
    }

    #[test]
    fn what_guests_showed_counts_into_the_sum() {
        let mut tally = tally("test result: ok. 5 passed; 0 failed; 0 ignored;", "");
        let failed = vec!["vm nbd: fio".to_owned()];
        let skipped = vec!["vm power-cut: xz".to_owned()];
        tally.add(Tally::of_guest(vm::Report { passed_count: 2, failed, skipped }));
        assert_eq!((tally.passed_count(), tally.failed_count, tally.skipped_count()), (7, 1, 1));
        assert_eq!(tally.outcome(Skips::Allowed), Outcome::Failed);
    }

    #[test]
    fn what_tests_mount_is_theirs_where_that_is_permitted() {
        let mounts = |command: &mut Command| {
            command.arg("/proc/self/ns/mnt").output().expect("readlink runs").stdout
        };
        let is_permitted = packages::is_success(Command::new("unshare").args(["-m", "true"]));
        let ours = mounts(&mut Command::new("readlink"));
        let theirs = mounts(&mut with_own_mounts("readlink".as_ref()));
        assert!(!theirs.is_empty());
        assert_eq!(theirs != ours, is_permitted);
    }

    #[test]
    fn a_process_that_dies_without_a_result_is_a_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored;'; exit 101"]);
        let mut tally = tally(OUTPUT, "");
        tally.run(&mut command, std::io::sink()).expect("sh runs");
        assert_eq!((tally.passed_count(), tally.failed_count), (15, 2));
        assert_eq!(tally.outcome(Skips::Allowed), Outcome::Failed);
    }
}
