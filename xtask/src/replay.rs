//! `cargo xtask sim` and `cargo xtask fuzz`: the simulator's own program, built with optimization.
//!
//! What the commands can do is the business of `forebay-sim`; this only builds it and hands on the
//! arguments: `forebay-sim run [--seed N] [...]` and `forebay-sim fuzz NAME [SEED] [...]`.

use std::process::Command;

use anyhow::bail;
use clap::Args;

use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Package and program of the simulator.
const SIMULATOR: &str = "forebay-sim";

/// Arguments of `sim`.
#[derive(Args)]
pub(crate) struct SimOptions {
    /// Seed of the run; without it a run starts from a fresh one.
    #[arg(long)]
    seed: Option<u64>,
    /// Further arguments for the simulator.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Arguments of `fuzz`.
#[derive(Args)]
pub(crate) struct FuzzOptions {
    /// The fuzzer.
    name: String,
    /// Seed of the run; without it a run starts from a fresh one.
    seed: Option<u64>,
    /// Further arguments for the fuzzer.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the simulator.
pub(crate) fn sim(options: &SimOptions) -> anyhow::Result<Outcome> {
    let mut command = simulator()?;
    command.arg("run");
    if let Some(seed) = options.seed {
        command.arg("--seed").arg(seed.to_string());
    }
    process::run(command.args(&options.arguments))
}

/// Runs a fuzzer.
pub(crate) fn fuzz(options: &FuzzOptions) -> anyhow::Result<Outcome> {
    let mut command = simulator()?;
    command.args(["fuzz", &options.name]);
    command.args(options.seed.map(|seed| seed.to_string()));
    process::run(command.args(&options.arguments))
}

/// Builds the simulator and runs it with the arguments that are still to be added.
fn simulator() -> anyhow::Result<Command> {
    let workspace = Workspace::load()?;
    let is_program = |target: &cargo_metadata::Target| target.is_bin() && target.name == SIMULATOR;
    if !workspace.members().iter().any(|package| package.targets.iter().any(is_program)) {
        bail!(
            "package {SIMULATOR} has no program of that name; it needs a src/main.rs with the \
             subcommands `run [--seed N]` and `fuzz NAME [SEED]`"
        );
    }
    let mut command = process::cargo();
    command.args(["run", "--quiet", "--release", "--locked"]);
    command.args(["--package", SIMULATOR, "--bin", SIMULATOR, "--"]);
    command.current_dir(workspace.root());
    Ok(command)
}
