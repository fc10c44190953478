//! The engine alone: what `benches/hit` of its crate measures.

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::interrupt;
use super::spread::Spread;
use crate::process;
use crate::workspace::Workspace;

/// About what it takes, with its build.
pub(super) const SECONDS: u64 = 90;

/// What the program prints.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Engine {
    pub(super) rows: Vec<Row>,
    /// Nanoseconds of the checksum of one block; part of each hit.
    checksum_ns: Vec<f64>,
}

/// One size of index and one depth.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Row {
    /// In the index.
    pub(super) extents: u64,
    /// Requests that are handed in at a time.
    pub(super) depth: u64,
    /// Nanoseconds of CPU time of a hit.
    hit_ns: Vec<f64>,
}

impl Row {
    /// Microseconds of CPU time of a hit.
    pub(super) fn hit_us(&self) -> Option<Spread> {
        Spread::of(self.hit_ns.iter().map(|nanoseconds| nanoseconds / 1e3))
    }
}

impl Engine {
    /// Microseconds of the checksum of one block.
    pub(super) fn checksum_us(&self) -> Option<Spread> {
        Spread::of(self.checksum_ns.iter().map(|nanoseconds| nanoseconds / 1e3))
    }
}

/// Builds and runs the program.
pub(super) fn measure(workspace: &Workspace) -> anyhow::Result<Engine> {
    println!("CPU of the engine on a hit");
    let mut command = process::cargo();
    command.args(["bench", "--quiet", "--locked", "--package=forebay-engine", "--bench=hit"]);
    command.args(["--", "--json"]).current_dir(workspace.root());
    let text = interrupt::capture(&mut command)?;
    let engine: Engine = serde_json::from_str(&text).context("benches/hit prints no JSON")?;
    for row in &engine.rows {
        let text = row.hit_us().map(|spread| spread.text(2)).unwrap_or_default();
        println!("  {:>8} extents, {:>2} at a time: {text} us", row.extents, row.depth);
    }
    Ok(engine)
}
