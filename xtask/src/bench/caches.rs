//! `cargo xtask bench caches`: forebay over ublk beside the kernel's own caches, in guests.
//!
//! Each target of the plan `kernel-caches` has a guest of its own with fresh disks
//! (`xtask/vm/caches.sh`), in which `forebay bench run` measures it: with the same jobs of fio, and
//! into the same form of results. A boot that fails is tried again, a measurement never.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::bounds::{Bound, Limit};
use super::document::verdicts;
use super::interrupt;
use super::machine::Machine;
use super::spread::Spread;
use crate::Outcome;
use crate::vm::CacheGuests;
use crate::workspace::Workspace;

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/kernel-caches.md";
const PLAN: &str = include_str!("../../../bench/plans/kernel-caches.toml");
/// Of phases, for a quick look.
const QUICK_SECONDS: u64 = 10;
/// At the beginning and at the end of a phase, what has a figure of its own.
const SPELL_SECONDS: usize = 10;

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
    /// Folder for the results [default: kernel-caches in the build folder]. What it has is not
    /// measured again
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

/// Requests in each second of the measured phase, of each round of each target.
type Rounds = BTreeMap<String, Vec<Vec<f64>>>;

/// Measures, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    interrupt::watch()?;
    let workspace = Workspace::load()?;
    let targets = chosen(&options.only)?;
    let guests = CacheGuests::prepare(&workspace)?;
    let build = workspace.metadata.target_directory.as_std_path();
    let out = options.out.clone().unwrap_or_else(|| build.join("kernel-caches"));
    let raw = out.join("raw");
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
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
    let mut report = Command::new(guests.forebay());
    report.arg("bench").arg("report").arg(&out);
    let table = interrupt::capture(&mut report)?;
    println!("\n{table}");
    let bounds = judge(&rounds(&raw, options.rounds)?);
    super::print_bounds(&bounds);
    let usual = !options.quick && options.only.is_empty();
    let usual = usual.then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        let text = text(&Machine::examine(&workspace), &table, &bounds);
        super::write(&path, &(text.trim_end().to_owned() + "\n"))?;
    }
    Ok(if failed == 0 { Outcome::Passed } else { Outcome::Failed })
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

/// What all results say.
fn rounds(raw: &Path, count: u32) -> anyhow::Result<Rounds> {
    let mut rounds = Rounds::new();
    for target in chosen(&[])? {
        for round in 1..=count {
            let path = raw.join(format!("{target}-{round}.json"));
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let result: Value = serde_json::from_str(&text).context("a result")?;
            rounds.entry(target.clone()).or_default().push(per_second(&result));
        }
    }
    Ok(rounds)
}

/// Requests in each second of the last phase.
fn per_second(result: &Value) -> Vec<f64> {
    let phases = result["phases"].as_array();
    let samples = phases.and_then(|phases| phases.last()?["samples"].as_array());
    let requests = |sample: &Value| sample["requests"].as_f64();
    samples.map(|samples| samples.iter().filter_map(requests).collect()).unwrap_or_default()
}

/// A figure of the seconds of a phase.
type Figure = fn(&[f64]) -> f64;

fn mean(seconds: &[f64]) -> f64 {
    seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
}

fn first(seconds: &[f64]) -> f64 {
    mean(&seconds[..seconds.len().min(SPELL_SECONDS)])
}

fn last(seconds: &[f64]) -> f64 {
    mean(&seconds[seconds.len().saturating_sub(SPELL_SECONDS)..])
}

fn median(rounds: &Rounds, target: &str, figure: Figure) -> Option<f64> {
    let values = rounds.get(target)?.iter().map(|seconds| figure(seconds));
    Spread::of(values).map(|spread| spread.median)
}

/// No row below the best cache of the kernel, nor below the slow disk; what a full cache takes.
fn judge(rounds: &Rounds) -> Vec<Bound> {
    let kernel: [(&str, &[&str]); 3] = [
        ("forebay-reads", &["bcache-reads", "bcache-0-reads", "dm-cache-reads"]),
        ("forebay-junk", &["dm-cache-junk"]),
        ("forebay-writes", &["bcache-writes", "dm-cache-writes", "dm-writecache-writes"]),
    ];
    let spells: [(&str, Figure); 3] = [("all", mean), ("first 10 s", first), ("last 10 s", last)];
    let mut bounds = Vec::new();
    for (ours, theirs) in kernel {
        let slow = if ours.ends_with("writes") { "slow-writes" } else { "slow-reads" };
        for (spell, figure) in spells {
            let value = |target: &str| median(rounds, target, figure);
            let over = |other: Option<f64>| Spread::of(Some(value(ours)? / other?));
            let best = theirs.iter().filter_map(|target| value(target)).reduce(f64::max);
            let work = format!("{ours}, {spell}: IOPS, over those of the best cache of the kernel");
            bounds.push(Bound::new(work, Limit::AtLeast(1.0), "", over(best)));
            let work = format!("{ours}, {spell}: IOPS, over those of the slow disk");
            let is_full = ours == "forebay-writes" && spell == "last 10 s";
            let limit = Limit::AtLeast(if is_full { 4.0 } else { 1.0 });
            bounds.push(Bound::new(work, limit, "", over(value(slow))));
        }
    }
    bounds
}

/// The whole document, in Markdown.
fn text(machine: &Machine, table: &str, bounds: &[Bound]) -> String {
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
        verdicts(bounds),
        table,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rounds: &[(&str, [f64; 2])]) -> Rounds {
        let entry = |(target, [first, last]): &(&str, [f64; 2])| {
            let seconds = [vec![*first; SPELL_SECONDS], vec![*last; SPELL_SECONDS]].concat();
            ((*target).to_owned(), vec![seconds])
        };
        rounds.iter().map(entry).collect()
    }

    fn verdict<'a>(bounds: &'a [Bound], work: &str) -> &'a str {
        let bound = bounds.iter().find(|bound| bound.work.starts_with(work)).expect(work);
        bound.verdict.text()
    }

    #[test]
    fn each_row_is_held_against_the_best_of_the_others() {
        let rounds = of(&[
            ("slow-writes", [100.0, 100.0]),
            ("forebay-writes", [900.0, 399.0]),
            ("bcache-writes", [800.0, 50.0]),
            ("dm-writecache-writes", [1000.0, 300.0]),
        ]);
        let bounds = judge(&rounds);
        let best = "over those of the best";
        assert_eq!(
            verdict(&bounds, &format!("forebay-writes, first 10 s: IOPS, {best}")),
            "**missed**"
        );
        assert_eq!(verdict(&bounds, &format!("forebay-writes, last 10 s: IOPS, {best}")), "met");
        let slow = "over those of the slow";
        assert_eq!(
            verdict(&bounds, &format!("forebay-writes, last 10 s: IOPS, {slow}")),
            "**missed**"
        );
        assert_eq!(verdict(&bounds, &format!("forebay-writes, first 10 s: IOPS, {slow}")), "met");
        assert_eq!(verdict(&bounds, "forebay-reads, all"), "not measured");
    }

    #[test]
    fn targets_are_those_of_the_plan() {
        let all = chosen(&[]).expect("a plan");
        for bound in judge(&Rounds::new()) {
            let target = bound.work.split(',').next().expect("a target").to_owned();
            assert!(all.contains(&target), "{target}");
        }
        assert!(chosen(&["tape".to_owned()]).is_err());
        assert_eq!(chosen(&["slow-reads".to_owned()]).expect("it is there"), ["slow-reads"]);
    }

    #[test]
    fn seconds_are_those_of_the_last_phase() {
        let result = serde_json::json!({"phases": [
            {"samples": [{"requests": 9}]}, {"samples": [{"requests": 1}, {"requests": 2}]}]});
        assert_eq!(per_second(&result), [1.0, 2.0]);
        assert!(per_second(&Value::Null).is_empty());
    }
}
