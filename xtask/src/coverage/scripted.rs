//! The scripted tests of the engine that exceptions name: what they reach.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::runs;
use super::tools::{Compiler, Tools};
use crate::process;
use crate::workspace::Workspace;

/// The package whose tests they are.
const PACKAGE: &str = "forebay-engine";

/// A line of what cargo says of a build, as far as it tells where a program is.
#[derive(Deserialize)]
struct Built {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Runs the named tests, built with counters; returns what each program says of the sources.
pub(super) fn measure(
    workspace: &Workspace,
    compiler: &Compiler,
    tools: &Tools,
    tests: &BTreeSet<&str>,
) -> anyhow::Result<Vec<String>> {
    let folder = workspace.root().join(super::SOURCES);
    let mut exports = Vec::new();
    for (program, names) in by_program(tests)? {
        let path = build(workspace, compiler, program)?;
        let counters = tempfile::tempdir().context("cannot make a temporary folder")?;
        let mut command = Command::new(&path);
        command.arg("--exact").args(&names).current_dir(workspace.root());
        command.env("LLVM_PROFILE_FILE", counters.path().join("%m.profraw"));
        let what = format!("{} tests of {program}", names.len());
        let output = command.output().with_context(|| format!("cannot run {what}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        println!("$ {what}");
        if !output.status.success() || !text.contains(&format!(" {} passed", names.len())) {
            bail!("{what} fail, or are not all there: {names:?}\n{text}");
        }
        let profile = runs::merge(tools, counters.path())?;
        exports.push(runs::export(tools, &path, &profile, &folder)?);
    }
    Ok(exports)
}

/// `program::module::name` as the names of each program.
fn by_program<'a>(tests: &BTreeSet<&'a str>) -> anyhow::Result<BTreeMap<&'a str, Vec<&'a str>>> {
    let mut programs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for test in tests {
        let (program, name) =
            test.split_once("::").with_context(|| format!("{test} names no program of tests"))?;
        programs.entry(program).or_default().push(name);
    }
    Ok(programs)
}

fn build(workspace: &Workspace, compiler: &Compiler, program: &str) -> anyhow::Result<PathBuf> {
    let mut command = process::cargo();
    command.args(["test", "--no-run", "--locked", "--package", PACKAGE, "--test", program]);
    command.args(["--message-format", "json"]);
    runs::instrument(&mut command, workspace, compiler);
    let output = command.output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("{program} does not build: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    executable(&String::from_utf8_lossy(&output.stdout), program)
        .with_context(|| format!("cargo names no program {program}"))
}

fn executable(messages: &str, program: &str) -> Option<PathBuf> {
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Built>(line).ok());
    let is_meant = |built: &Built| built.target.as_ref().is_some_and(|t| t.name == program);
    built.filter(is_meant).find_map(|built| built.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_grouped_by_their_programs() {
        let tests = BTreeSet::from(["paths::a::b", "rules::c::d", "rules::c::e"]);
        let programs = by_program(&tests).expect("all have one");
        assert_eq!(programs["paths"], ["a::b"]);
        assert_eq!(programs["rules"], ["c::d", "c::e"]);
        assert!(by_program(&BTreeSet::from(["name"])).is_err());
    }

    #[test]
    fn the_program_is_found_among_what_cargo_says() {
        let line = |name: &str, executable: &str| {
            format!("{{\"target\":{{\"name\":\"{name}\"}},\"executable\":{executable}}}\n")
        };
        let messages = line("rules", "null") + &line("paths", "\"/p\"") + &line("rules", "\"/r\"");
        assert_eq!(executable(&messages, "rules"), Some(PathBuf::from("/r")));
        assert_eq!(executable(&messages, "others"), None);
    }
}
