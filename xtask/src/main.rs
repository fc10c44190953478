//! Developer commands of forebay: `cargo xtask <command>`.
//!
//! Each command is a module with a `run` that returns how it ended. Commands print what they do; an
//! error is only returned where a command cannot do its work at all. No build logic lives
//! elsewhere.

mod bench;
mod build;
mod charts;
mod check;
mod coverage;
mod packages;
mod process;
mod replay;
mod test;
mod vm;
mod workspace;

use std::process::{ExitCode, ExitStatus};

use clap::{Parser, Subcommand};

/// Exit code of a command that could not do its work, as clap has it for wrong arguments.
const EXIT_UNABLE: u8 = 2;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    /// What is wrong has been printed.
    Failed,
}

impl From<ExitStatus> for Outcome {
    fn from(status: ExitStatus) -> Outcome {
        if status.success() { Outcome::Passed } else { Outcome::Failed }
    }
}

/// Developer commands of forebay.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check formatting, lints, documentation and the project's own rules.
    Check,
    /// Run all tests; the last line is `N passed, N failed, N skipped`.
    Test(test::Options),
    /// Measure on this machine, and write docs/performance.md.
    Bench(bench::Options),
    /// Draw the charts of the documents whose data is computed in virtual time.
    Charts(charts::Options),
    /// Report which branches of the engine the simulator reaches.
    Coverage(coverage::Options),
    /// Run the simulator on fresh seeds, or replay one of its runs.
    Sim(replay::SimOptions),
    /// Run a fuzzer, or replay one of its runs.
    Fuzz(replay::FuzzOptions),
    /// Run scenarios in guests with a kernel of their own; the last line is `N passed, N failed`.
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Check => check::run(),
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Charts(options) => charts::run(&options),
        Command::Coverage(options) => coverage::run(&options),
        Command::Sim(options) => replay::sim(&options),
        Command::Fuzz(options) => replay::fuzz(&options),
        Command::Vm(options) => vm::run(&options),
    };
    match result {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(EXIT_UNABLE)
        }
    }
}
