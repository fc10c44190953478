//! `cargo xtask check`: everything that can be said of the source without running it.
//!
//! All steps run, also after one has failed. The project's own rules come first, since they take no
//! time.

mod dependencies;
mod functions;
mod licences;
mod modules;
mod source;
mod tidy;
mod tokens;
mod tracked;
mod words;

use std::process::Command;

use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Runs all checks.
pub(crate) fn run() -> anyhow::Result<Outcome> {
    let workspace = Workspace::load()?;
    let mut failed = Vec::new();
    let findings = tidy::findings(&workspace)?;
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        eprintln!("tidy: {} findings", findings.len());
        failed.push("tidy");
    }
    for (name, mut command) in steps() {
        command.current_dir(workspace.root());
        if process::run(&mut command)? == Outcome::Failed {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("check passed");
        return Ok(Outcome::Passed);
    }
    println!("check failed: {}", failed.join(", "));
    Ok(Outcome::Failed)
}

fn steps() -> [(&'static str, Command); 4] {
    let mut format = process::cargo();
    format.args(["fmt", "--all", "--check"]);
    let mut lints = process::cargo();
    lints.args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets"]);
    lints.args(["--", "-D", "warnings"]);
    let mut defect_lints = process::cargo();
    defect_lints.args(["clippy", "--quiet", "--locked", "--package", "forebay-sim"]);
    defect_lints.args(["--all-targets", "--features", "planted-defects", "--", "-D", "warnings"]);
    let mut documentation = process::cargo();
    documentation.args(["doc", "--quiet", "--locked", "--workspace", "--no-deps"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    [
        ("fmt", format),
        ("clippy", lints),
        ("clippy with planted defects", defect_lints),
        ("doc", documentation),
    ]
}
