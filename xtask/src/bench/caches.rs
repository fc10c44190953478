//! `cargo xtask bench caches`: forebay over ublk beside the kernel's own caches, in guests.
//!
//! Each target of the plan `kernel-caches` has a guest of its own with fresh disks
//! (`xtask/vm/caches.sh`), in which `forebay bench run` measures it: with the same jobs of fio, and
//! into the same form of results. A boot that fails is tried again, a measurement never.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::document::verdicts;
use super::interrupt;
use super::machine::Machine;
use super::plan_report::PlanReport;
use super::progress::Identity;
use crate::Outcome;
use crate::vm::CacheGuests;
use crate::workspace::Workspace;

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/kernel-caches.md";
const PLAN: &str = include_str!("../../../bench/plans/kernel-caches.toml");
/// Of phases, for a quick look.
const QUICK_SECONDS: u64 = 10;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure each target so often
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Only this target of the plan `kernel-caches`; may be given more than once
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
    /// Phases of 10 s; only printed
    #[arg(long)]
    quick: bool,
    /// Folder for the results [default: kernel-caches in the build folder]. What it has of the same
    /// build is not measured again
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write the document here [default: docs/kernel-caches.md; nowhere with --quick or --only]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The part of the plan that is used here.
#[derive(Deserialize)]
struct Plan {
    target: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Measures, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    interrupt::watch()?;
    let workspace = Workspace::load()?;
    let targets = chosen(&options.only)?;
    let guests = CacheGuests::prepare(&workspace)?;
    let build = workspace.metadata.target_directory.as_std_path();
    let out = options.out.clone().unwrap_or_else(|| build.join("kernel-caches"));
    let machine = Machine::examine(&workspace);
    let what = format!("quick: {}", options.quick);
    let own = std::env::current_exe().context("cannot find our own program")?;
    drop_others(&out, &Identity::of(&machine, &[guests.forebay(), &own], what)?)?;
    let raw = out.join("raw");
    let seconds = if options.quick { QUICK_SECONDS } else { 0 };
    let mut failed = 0;
    for round in 1..=options.rounds {
        for target in &targets {
            interrupt::check()?;
            if raw.join(format!("{target}-{round}.json")).exists() {
                continue;
            }
            println!("\n{target}, round {round} of {}", options.rounds);
            if let Err(error) = measure(&guests, target, round, seconds, &out) {
                interrupt::check()?;
                eprintln!("{target}: {error:#}");
                let path = raw.join(format!("{target}-{round}.failed"));
                std::fs::write(path, format!("{error:#}\n")).context("cannot keep a failure")?;
                failed += 1;
            }
        }
    }
    let report = PlanReport::of(guests.forebay(), &out)?;
    println!("\n{}", report.tables);
    super::print_bounds(&report.bounds);
    let usual = !options.quick && options.only.is_empty();
    let usual = usual.then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        let text = text(&machine, &report);
        super::write(&path, &(text.trim_end().to_owned() + "\n"))?;
    }
    Ok(if failed == 0 { Outcome::Passed } else { Outcome::Failed })
}

/// Makes the folder for results, and drops those of another build or machine, or with phases of
/// another length.
fn drop_others(out: &Path, identity: &Identity) -> anyhow::Result<()> {
    let (raw, stamp) = (out.join("raw"), out.join("identity.json"));
    let known = std::fs::read(&stamp).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if known.as_ref() != Some(identity) && raw.exists() {
        println!("results of another build, machine or length in {} are dropped", raw.display());
        std::fs::remove_dir_all(&raw).with_context(|| format!("cannot drop {}", raw.display()))?;
    }
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
    let text = serde_json::to_string_pretty(identity)? + "\n";
    std::fs::write(&stamp, text).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Names of the targets to measure.
fn chosen(only: &[String]) -> anyhow::Result<Vec<String>> {
    let plan: Plan = toml::from_str(PLAN).context("the plan kernel-caches")?;
    let names: Vec<String> = plan.target.into_iter().map(|target| target.name).collect();
    for name in only {
        ensure!(names.contains(name), "no target {name}; the plan has {}", names.join(", "));
    }
    Ok(if only.is_empty() { names } else { only.to_vec() })
}

/// Measures a target once; its results join those of others in `out`.
fn measure(
    guests: &CacheGuests,
    target: &str,
    round: u32,
    seconds: u64,
    out: &Path,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    guests.measure(target, seconds, folder.path())?;
    let results = folder.path().join("results");
    for name in ["plan.toml", "machine.json"] {
        std::fs::copy(results.join(name), out.join(name)).with_context(|| name.to_owned())?;
    }
    let text = std::fs::read_to_string(results.join("raw").join(format!("{target}-1.json")))
        .context("the guest has no result")?;
    let mut result: Value = serde_json::from_str(&text).context("the guest's result")?;
    // Each guest has only ever measured once.
    result["repetition"] = round.into();
    let path = out.join("raw").join(format!("{target}-{round}.json"));
    std::fs::write(&path, serde_json::to_string_pretty(&result)? + "\n")
        .with_context(|| format!("cannot write {}", path.display()))?;
    let _ = std::fs::remove_file(path.with_extension("failed"));
    Ok(())
}

/// The whole document, in Markdown.
fn text(machine: &Machine, report: &PlanReport) -> String {
    format!(
        "\
# Caches of the kernel

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`.

{}
Guests with Debian's kernel, whose processors and devices QEMU emulates; each target has one of its
own with fresh disks, of which the slow one does 120 requests and the fast one 3,000 a second
(`xtask/vm/caches.sh`). Only ratios within the tables mean anything.

## Bounds

{}## Figures

{}",
        super::command_line(),
        machine.date,
        machine.commit,
        machine.items(),
        verdicts(&report.bounds),
        report.tables,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_of_the_plan() {
        assert!(chosen(&[]).expect("a plan").contains(&"forebay-reads".to_owned()));
        assert!(chosen(&["tape".to_owned()]).is_err());
        assert_eq!(chosen(&["slow-reads".to_owned()]).expect("it is there"), ["slow-reads"]);
    }
}
