//! Developer commands of forebay: `cargo xtask <command>`.
//!
//! Each command is a module with a `run` that returns how it ended. Commands print what they do; an
//! error is only returned where a command cannot do its work at all. No build logic lives
//! elsewhere.

mod check;
mod packages;
mod process;
mod replay;
mod test;
mod workspace;

use std::process::{ExitCode, ExitStatus};

use clap::{Parser, Subcommand};

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
    /// Run the simulator, or replay one of its runs.
    Sim(replay::SimOptions),
    /// Run a fuzzer, or replay one of its runs.
    Fuzz(replay::FuzzOptions),
}

fn main() -> anyhow::Result<ExitCode> {
    let outcome = match Arguments::parse().command {
        Command::Check => check::run()?,
        Command::Test(options) => test::run(&options)?,
        Command::Sim(options) => replay::sim(&options)?,
        Command::Fuzz(options) => replay::fuzz(&options)?,
    };
    Ok(match outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::FAILURE,
    })
}
