//! The command line of the simulator: each command is a module of `commands`.
//!
//! A doc comment is what `--help` shows. Examples stand behind the options of each command.

mod commands;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use peak_alloc::PeakAlloc;

/// Counts what is allocated: the fuzzers bound it.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Exit code for arguments that make no sense, as clap has it.
const EXIT_WRONG_ARGUMENTS: u8 = 2;

const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  all was well
  1  a violation was found, or a replayed run differs from its record
  2  the arguments are wrong";

const LONG_HELP: &str = "\
Examples:
  forebay-sim run --seed 7
  forebay-sim --seed 7 --trace
  forebay-sim hunt --runs 1000
  forebay-sim sweep --seed 1
  forebay-sim fuzz device
  forebay-sim step-response --every 60
  forebay-sim shares

Exit codes:
  0  all was well
  1  a violation was found, or a replayed run differs from its record
  2  the arguments are wrong";

/// The simulator that judges the forebay engine.
///
/// A seed becomes a world of devices, clients, failures and crashes in virtual time; a run is a
/// function of its seed and options. SEED is a number below 2^64, decimal or hexadecimal with 0x.
/// With options and no command it is `run`.
#[derive(Parser, Debug)]
#[command(name = "forebay-sim", version, after_help = EXIT_CODES_HELP, after_long_help = LONG_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
enum Command {
    Run(commands::run::Options),
    Replay(commands::replay::Options),
    Hunt(commands::hunt::Options),
    Sweep(commands::sweep::Options),
    Fuzz(commands::fuzz::Options),
    Defects(commands::defects::Options),
    Models(commands::models::Options),
    StepResponse(commands::step_response::Options),
    Shares(commands::shares::Options),
}

/// The arguments, with the command that is meant if the first is an option of `run`.
fn words() -> Vec<OsString> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let is_of_run = |word: &OsString| {
        let word = word.to_string_lossy();
        word.starts_with("--") && !["--help", "--version"].contains(&word.as_ref())
    };
    if words.get(1).is_some_and(is_of_run) {
        words.insert(1, "run".into());
    }
    words
}

fn main() -> ExitCode {
    let result = match Arguments::parse_from(words()).command {
        Command::Run(options) => commands::run::run(&options),
        Command::Replay(options) => commands::replay::run(&options),
        Command::Hunt(options) => commands::hunt::run(&options),
        Command::Sweep(options) => commands::sweep::run(&options),
        Command::Fuzz(options) => commands::fuzz::run(&options),
        Command::Defects(options) => commands::defects::run(&options),
        Command::Models(commands::models::Options {}) => commands::models::run(),
        Command::StepResponse(options) => commands::step_response::run(&options),
        Command::Shares(options) => commands::shares::run(&options),
    };
    match result {
        Ok(verdict) => verdict.into(),
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(EXIT_WRONG_ARGUMENTS)
        }
    }
}
