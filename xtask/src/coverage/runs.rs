//! The instrumented simulator, and the runs that it makes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};

use super::tools::{Compiler, Tools};
use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Package and program of the simulator.
const SIMULATOR: &str = "forebay-sim";
/// Random runs that one process makes; so many at least make use of all processors.
const RUNS_OF_PROCESS: u64 = 50;
/// Of so many random runs there is a long one.
const RUNS_TO_LONG_RUN: u64 = 25;
/// Sweeps over operations: every fourth fails, in several worlds.
const FAILURES: [&str; 4] = ["fail-cache", "fail-origin", "break-cache", "lose-cache"];
const FAILURE_EFFORT: [&str; 4] = ["--runs", "6", "--stride", "4"];
/// Sweeps over operations, as in the tests: every fifth, with a few choices of what survives.
const CRASHES: [&str; 4] = ["kill", "cut-power", "fail-then-kill", "fail-then-cut-power"];
const CRASH_EFFORT: [&str; 4] = ["--stride", "5", "--choices", "3"];
/// Sweeps over bytes.
const FLIPS: [&str; 3] = ["flip-stopped", "flip-idle", "flip-killed"];
const FLIP_EFFORT: [&str; 2] = ["--stride", "499"];
/// Fuzzers of what recovery reads.
const FUZZERS: [&str; 5] = ["device", "superblock", "checkpoint", "record", "summary"];

/// Builds the simulator with counters in it, and with assertions, in a folder of its own.
pub(super) fn build(workspace: &Workspace, compiler: &Compiler) -> anyhow::Result<PathBuf> {
    let mut command = process::cargo();
    command.args(["build", "--release", "--locked", "--package", SIMULATOR]);
    let target = instrument(&mut command, workspace, compiler);
    if process::run(&mut command)? == Outcome::Failed {
        bail!("the simulator does not build");
    }
    Ok(target.join(&compiler.host).join("release").join(SIMULATOR))
}

/// Lets a command of cargo build with counters; returns the folder that it builds into.
pub(super) fn instrument(
    command: &mut Command,
    workspace: &Workspace,
    compiler: &Compiler,
) -> PathBuf {
    let target = workspace.metadata.target_directory.as_std_path().join("coverage");
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" -C instrument-coverage");
    // With a target named, programs that only serve the build are not instrumented.
    command.args(["--target", &compiler.host, "--target-dir"]).arg(&target);
    command.env("RUSTFLAGS", flags.trim()).env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    command.current_dir(workspace.root());
    target
}

/// The arguments of each process.
pub(super) fn plan(seed: u64, runs: u64) -> Vec<Vec<String>> {
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    // What takes longest comes first, so that no processor waits for it at the end.
    let mut plan: Vec<Vec<String>> = FUZZERS.map(|name| words(format!("fuzz {name}"))).into();
    let sweep =
        |kind, effort: &[&str]| words(format!("sweep {kind} --seed {seed} {}", effort.join(" ")));
    plan.extend(FAILURES.map(|kind| sweep(kind, &FAILURE_EFFORT)));
    plan.extend(CRASHES.map(|kind| sweep(kind, &CRASH_EFFORT)));
    plan.extend(FLIPS.map(|kind| sweep(kind, &FLIP_EFFORT)));
    let long_runs = runs / RUNS_TO_LONG_RUN;
    if long_runs > 0 {
        plan.push(words(format!("hunt --seed {seed} --runs {long_runs} --jobs 1 --long")));
    }
    let mut made = 0;
    while made < runs {
        let count = RUNS_OF_PROCESS.min(runs - made);
        let seed = seed.wrapping_add(made);
        plan.push(words(format!("hunt --seed {seed} --runs {count} --jobs 1")));
        made += count;
    }
    plan
}

/// Runs everything, as many processes at once as there are processors. Counters go to `folder`.
pub(super) fn run_all(
    program: &Path,
    plan: &[Vec<String>],
    folder: &Path,
) -> anyhow::Result<Outcome> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let outcome = Mutex::new(Ok(Outcome::Passed));
    std::thread::scope(|scope| {
        for _ in 0..processors.min(plan.len()) {
            scope.spawn(|| {
                while let Some(arguments) = plan.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match run_one(program, arguments, folder) {
                        Ok(Outcome::Passed) => {}
                        other => *outcome.lock().expect("no panic holds it") = other,
                    }
                }
            });
        }
    });
    outcome.into_inner().expect("no panic holds it")
}

/// What a process says is only printed if it fails: several speak at once.
fn run_one(program: &Path, arguments: &[String], folder: &Path) -> anyhow::Result<Outcome> {
    let mut command = Command::new(program);
    // Processes of one program add to one file.
    command.args(arguments).env("LLVM_PROFILE_FILE", folder.join("%m.profraw"));
    let what = process::describe(&command);
    let started = Instant::now();
    let output = command.output().with_context(|| format!("cannot run {what}"))?;
    println!("$ {what} ({:.1} s)", started.elapsed().as_secs_f64());
    let outcome = Outcome::from(output.status);
    if outcome == Outcome::Failed {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        print!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(outcome)
}

/// The counters of all processes in one file.
pub(super) fn merge(tools: &Tools, folder: &Path) -> anyhow::Result<PathBuf> {
    let merged = folder.join("merged.profdata");
    let mut command = Command::new(&tools.profdata);
    command.args(["merge", "--sparse", "--output"]).arg(&merged);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "profraw") {
            command.arg(path);
        }
    }
    output(&mut command)?;
    Ok(merged)
}

/// What the program says of the sources below `folder`, as JSON.
pub(super) fn export(
    tools: &Tools,
    program: &Path,
    profile: &Path,
    folder: &Path,
) -> anyhow::Result<String> {
    let mut command = Command::new(&tools.cov);
    command.arg("export").arg(program).arg("--instr-profile").arg(profile);
    output(command.arg("--format=text").arg("--sources").arg(folder))
}

/// Writes the sources below `folder` with counts into the folder `pages`.
pub(super) fn write_pages(
    tools: &Tools,
    program: &Path,
    profile: &Path,
    folder: &Path,
    pages: &Path,
) -> anyhow::Result<()> {
    let mut command = Command::new(&tools.cov);
    command.arg("show").arg(program).arg("--instr-profile").arg(profile);
    command.args(["--format=html", "--show-regions", "--output-dir"]).arg(pages);
    output(command.arg("--sources").arg(folder))?;
    println!("wrote {}", pages.join("index.html").display());
    Ok(())
}

fn output(command: &mut Command) -> anyhow::Result<String> {
    let what = process::describe(command);
    let output = command.output().with_context(|| format!("cannot run {what}"))?;
    if !output.status.success() {
        bail!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_random_run_is_made_once() {
        let plan = plan(7, RUNS_OF_PROCESS * 2 + 1);
        let text: Vec<String> = plan.iter().map(|arguments| arguments.join(" ")).collect();
        let is_random = |line: &&String| line.starts_with("hunt") && !line.ends_with("--long");
        let random: Vec<&String> = text.iter().filter(is_random).collect();
        let seed = |made: u64| 7 + made;
        let expected = [
            format!("hunt --seed {} --runs {RUNS_OF_PROCESS} --jobs 1", seed(0)),
            format!("hunt --seed {} --runs {RUNS_OF_PROCESS} --jobs 1", seed(RUNS_OF_PROCESS)),
            format!("hunt --seed {} --runs 1 --jobs 1", seed(RUNS_OF_PROCESS * 2)),
        ];
        assert_eq!(random, expected.iter().collect::<Vec<_>>());
    }
}
