//! `cargo xtask sim` and `cargo xtask fuzz`: the simulator's own program, built with optimization.
//!
//! What the commands can do is the business of `forebay-sim`; this only builds it and hands on the
//! arguments: `forebay-sim hunt --minutes M [...]`, `forebay-sim run --seed N [...]` and
//! `forebay-sim fuzz NAME [--seed N] [...]`.
//! Fuzzers that need what the simulator must not know live in the tests of their crates; they run
//! by name, too, and are told the seed by `FOREBAY_FUZZ_SEED`.

use std::process::Command;

use anyhow::bail;
use clap::Args;

use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Package and program of the simulator.
const SIMULATOR: &str = "forebay-sim";

/// A fuzzer that is a test of its crate.
struct FuzzTest {
    name: &'static str,
    package: &'static str,
    /// Where cargo finds the test.
    target: [&'static str; 2],
    test: &'static str,
}

const FUZZ_TESTS: [FuzzTest; 3] = [
    FuzzTest {
        name: "check",
        package: "forebay-cli",
        target: ["--bin", "forebay"],
        test: "inspection::fuzz::check",
    },
    FuzzTest {
        name: "nbd-server",
        package: "forebay-nbd",
        target: ["--test", "protocol"],
        test: "fuzz::server",
    },
    FuzzTest {
        name: "nbd-client",
        package: "forebay-nbd",
        target: ["--test", "protocol"],
        test: "fuzz::client",
    },
];

/// Arguments of `sim`.
///
/// Without --seed, or with --minutes, fresh runs are made on all cores until the time is over; they
/// begin at --seed or, without it, at a seed from the clock. With --seed alone its one run is made.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo xtask sim                           fresh runs for three minutes
  cargo xtask sim --minutes 60 --jobs 2
  cargo xtask sim --seed 42 --trace         one run, with all its events")]
pub(crate) struct SimOptions {
    /// Minutes to make runs for [default: 3]
    #[arg(long, value_name = "M")]
    minutes: Option<String>,
    /// The one run to make, or with --minutes the first; decimal, or hexadecimal with 0x
    #[arg(long, value_name = "S")]
    seed: Option<String>,
    /// Runs at a time [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<String>,
    /// Further arguments for the simulator.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Minutes of a hunt if none are given.
const MINUTES_DEFAULT: &str = "3";

impl SimOptions {
    /// What `forebay-sim` is told.
    fn simulator_arguments(&self) -> Vec<&str> {
        let is_hunt = self.seed.is_none() || self.minutes.is_some();
        let minutes = self.minutes.as_deref().unwrap_or(MINUTES_DEFAULT);
        let mut arguments = if is_hunt { vec!["hunt", "--minutes", minutes] } else { vec!["run"] };
        for (name, value) in [("--seed", &self.seed), ("--jobs", &self.jobs)] {
            if let Some(value) = value {
                arguments.extend([name, value]);
            }
        }
        arguments.extend(self.arguments.iter().map(String::as_str));
        arguments
    }
}

/// Arguments of `fuzz`.
#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// The fuzzer: `check`, `nbd-server`, `nbd-client`, or one of those that `forebay-sim fuzz`
    /// lists; without it all are listed.
    name: Option<String>,
    /// Seed of the one case to run; without it the cases of the tests are run.
    seed: Option<u64>,
    /// Further arguments for the fuzzer.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the simulator.
pub(crate) fn sim(options: &SimOptions) -> anyhow::Result<Outcome> {
    let mut command = simulator()?;
    process::run(command.args(options.simulator_arguments()))
}

/// Runs a fuzzer.
pub(crate) fn fuzz(options: &FuzzOptions) -> anyhow::Result<Outcome> {
    let name = options.name.as_deref();
    if let Some(test) = FUZZ_TESTS.iter().find(|test| Some(test.name) == name) {
        return fuzz_test(test, options);
    }
    if name.is_none() {
        for test in &FUZZ_TESTS {
            println!("  {:<12} {} of {}", test.name, test.test, test.package);
        }
    }
    let mut command = simulator()?;
    command.arg("fuzz").args(name);
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    process::run(command.args(&options.arguments))
}

fn fuzz_test(test: &FuzzTest, options: &FuzzOptions) -> anyhow::Result<Outcome> {
    let mut command = process::cargo();
    command.args(["test", "--quiet", "--release", "--locked", "--package", test.package]);
    command.args(test.target).args(["--", "--exact", test.test]);
    command.args(&options.arguments).current_dir(Workspace::load()?.root());
    if let Some(seed) = options.seed {
        command.env("FOREBAY_FUZZ_SEED", seed.to_string());
    }
    process::run(&mut command)
}

/// Builds the simulator and runs it with the arguments that are still to be added.
pub(crate) fn simulator() -> anyhow::Result<Command> {
    let workspace = Workspace::load()?;
    let is_program = |target: &cargo_metadata::Target| target.is_bin() && target.name == SIMULATOR;
    if !workspace.members().iter().any(|package| package.targets.iter().any(is_program)) {
        bail!(
            "package {SIMULATOR} has no program of that name; it needs a src/main.rs with the \
             subcommands `run [--seed N]` and `fuzz NAME [--seed N]`"
        );
    }
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--release", "--locked"]);
    command.args(["--package", SIMULATOR, "--bin", SIMULATOR, "--"]);
    command.current_dir(workspace.root());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Sim {
        #[command(flatten)]
        options: SimOptions,
    }

    fn told(line: &str) -> String {
        let words = std::iter::once("sim").chain(line.split_whitespace());
        Sim::parse_from(words).options.simulator_arguments().join(" ")
    }

    #[test]
    fn a_seed_alone_is_replayed_and_all_else_is_a_hunt() {
        assert_eq!(told(""), "hunt --minutes 3");
        assert_eq!(told("--minutes 0.5 --jobs 2"), "hunt --minutes 0.5 --jobs 2");
        assert_eq!(told("--minutes 9 --seed 0x7"), "hunt --minutes 9 --seed 0x7");
        assert_eq!(told("--seed 7"), "run --seed 7");
        assert_eq!(
            told("--seed 7 --fail-cache-io 3 --trace"),
            "run --seed 7 --fail-cache-io 3 --trace"
        );
    }
}
