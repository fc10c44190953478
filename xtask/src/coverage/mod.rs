//! `cargo xtask coverage`: which branches of the engine the simulator reaches, and which not.
//!
//! The simulator is built with counters, makes random runs, sweeps and the fuzzers of what recovery
//! reads; what was not reached is listed by the text of its line. Where every branch must be
//! reached, what is not reached needs an exception with a reason, or the name of a
//! scripted test of the engine, which is run to see that it reaches the place.

mod exceptions;
mod places;
mod regions;
mod report;
mod runs;
mod scripted;
mod syntax;
mod tools;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;

use crate::Outcome;
use crate::workspace::Workspace;

use exceptions::Exceptions;
use report::{ListOf, Report};
use tools::{Compiler, Tools};

/// The sources that are reported on, from the root of the workspace on.
const SOURCES: &str = "crates/engine/src";

/// What to run.
#[derive(clap::Args)]
#[command(after_help = "\
The exit code is 0 if every branch that must be reached was, 1 if not, if an exception in
xtask/src/coverage/exceptions.toml was not needed or if a run found a violation, 2 if nothing could
be measured.")]
pub(crate) struct Options {
    /// Random runs; sweeps and fuzzers come on top
    #[arg(long, value_name = "N", default_value_t = 1000)]
    runs: u64,
    /// Seed of the first run
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// List everything that was not reached, in all files, and with the reasons of exceptions
    #[arg(long)]
    all: bool,
    /// Write the report here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the sources with counts as pages into this folder
    #[arg(long, value_name = "DIR")]
    html: Option<PathBuf>,
}

/// Builds, runs and reports.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let workspace = Workspace::load()?;
    let exceptions = Exceptions::read(workspace.root())?;
    let compiler = Compiler::examine()?;
    let tools = Tools::find(&compiler)?;
    let program = runs::build(&workspace, &compiler)?;
    let counters = tempfile::tempdir().context("cannot make a temporary folder")?;
    let plan = runs::plan(options.seed, options.runs);
    let outcome = runs::run_all(&program, &plan, counters.path())?;
    let profile = runs::merge(&tools, counters.path())?;
    let folder = workspace.root().join(SOURCES);
    let json = runs::export(&tools, &program, &profile, &folder)?;
    let regions = regions::parse(&json, &folder)?;
    let mut with_tests = regions.clone();
    for json in scripted::measure(&workspace, &compiler, &tools, &exceptions.tests())? {
        regions::add(&mut with_tests, &regions::parse(&json, &folder)?);
    }
    let measured = (&regions, &with_tests);
    let report = Report::new((options.seed, options.runs), &folder, measured, exceptions)?;
    report.print(if options.all { ListOf::Everything } else { ListOf::WhatIsMissing });
    if let Some(path) = &options.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    if let Some(pages) = &options.html {
        runs::write_pages(&tools, &program, &profile, &folder, pages)?;
    }
    let seconds = started.elapsed().as_secs();
    println!("finished after {} min {} s", seconds / 60, seconds % 60);
    Ok(if report.is_complete() { outcome } else { Outcome::Failed })
}
