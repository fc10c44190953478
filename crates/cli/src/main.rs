//! forebay: a block cache in user space. One binary with all its commands.
//!
//! `main` reads the command line, sets up logging and hands over to `commands`; how a command ended
//! becomes an exit code in `exit`. Nothing else in this crate ends the process, but for the commit
//! of a takeover.

mod admin;
mod args;
mod block_devices;
mod commands;
mod daemon;
mod demo;
mod exit;
mod huge_pages;
mod inspection;
mod lock_holder;
mod names;
mod open_files;
mod output;
mod progress;
mod signals;
mod systemd;
mod takeover;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use forebay_bench::size;
use tracing_subscriber::EnvFilter;

use args::{Arguments, Command};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    start_logging(&arguments.command);
    match commands::run(arguments.command) {
        Ok(code) => code,
        Err(failure) => {
            output::say(&format!("forebay: {failure}"));
            ExitCode::from(failure.exit.code())
        }
    }
}

fn start_logging(command: &Command) {
    let default = if matches!(command, Command::Serve(_)) { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
