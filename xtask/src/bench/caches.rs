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
use super::experiment_bounds;
use super::interrupt;
use super::machine::{Machine, first_line};
use super::plan_report::PlanReport;
use super::progress::Identity;
use crate::Outcome;
use crate::build::Build;
use crate::vm::CacheGuests;
use crate::workspace::Workspace;

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/kernel-caches.md";
const PLAN: &str = include_str!("../../../bench/plans/kernel-caches.toml");
/// Of phases, for a quick look.
const QUICK_SECONDS: u64 = 10;
/// How targets that are written to end in the plan.
const WRITES: &str = "-writes";
/// How often these are measured in each round: in the first seconds, one run of bcache has up to
/// 1.7 times as many requests as another.
const WRITES_OF_ROUND: u32 = 3;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measure each target so often, and those that are written to three times as often
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
    /// build is not measured again; results of another build are removed. One that has others'
    /// files in `raw` is refused
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
    let (all, targets) = (chosen(&[])?, chosen(&options.only)?);
    // What guests are made of may have to be downloaded first, while sources change.
    let build = Build::begin(&workspace)?;
    let forebay = build.forebay(&workspace)?;
    let machine = Machine::examine(&workspace);
    let guests = CacheGuests::prepare(&workspace, &forebay)?;
    let target = workspace.metadata.target_directory.as_std_path();
    let out = options.out.clone().unwrap_or_else(|| target.join("kernel-caches"));
    let programs = [forebay.as_path(), Path::new(super::OWN_PROGRAM)];
    let qemu = first_line(&mut guests.ask_version());
    let what = format!("quick: {}; {qemu}", options.quick);
    drop_others(&out, &Identity::of(&machine, &programs, what)?, &all)?;
    let raw = out.join("raw");
    let seconds = if options.quick { QUICK_SECONDS } else { 0 };
    let mut failed = 0;
    let (usual, most) = (options.rounds, options.rounds * WRITES_OF_ROUND);
    for round in 1..=most {
        for target in &targets {
            let rounds = if target.ends_with(WRITES) { most } else { usual };
            if round > rounds {
                continue;
            }
            interrupt::check()?;
            if raw.join(format!("{target}-{round}.json")).exists() {
                continue;
            }
            println!("\n{target}, round {round} of {rounds}");
            if let Err(error) = measure(&guests, target, round, seconds, &out) {
                interrupt::check()?;
                eprintln!("{target}: {error:#}");
                let path = raw.join(format!("{target}-{round}.failed"));
                std::fs::write(path, format!("{error:#}\n")).context("cannot keep a failure")?;
                failed += 1;
            }
        }
    }
    let report = PlanReport::of(&forebay, &out)?;
    println!("\n{}", report.tables);
    super::print_bounds(&report.bounds);
    let usual = !options.quick && options.only.is_empty();
    let usual = usual.then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        let guest = guest_items(&qemu, &out)?;
        super::write(&path, &text(&machine, &guest, &report))?;
        if options.output.is_none() {
            experiment_bounds::renew(&workspace.root().join("docs"))?;
        }
    }
    Ok(if failed == 0 { Outcome::Passed } else { Outcome::Failed })
}

/// Makes the folder for results, and drops those of another build or machine, or with phases of
/// another length, of any of these targets. Nothing else is removed.
///
/// # Errors
///
/// If it has files and does not say that it is one of ours: who knows whose data that is.
fn drop_others(out: &Path, identity: &Identity, targets: &[String]) -> anyhow::Result<()> {
    let (raw, stamp) = (out.join("raw"), out.join("identity.json"));
    std::fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
    let known: Option<Identity> =
        std::fs::read(&stamp).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if known.as_ref() != Some(identity) {
        let files = files(&raw).with_context(|| format!("cannot read {}", raw.display()))?;
        ensure!(
            known.is_some() || files.is_empty(),
            "{} has files, and no identity.json beside it that says that they are results of \
             `cargo xtask bench caches`; --out names another folder, or remove what is in it",
            raw.display()
        );
        let ours: Vec<&PathBuf> = files.iter().filter(|path| is_of(path, targets)).collect();
        if !ours.is_empty() {
            let raw = raw.display();
            println!("results of another build, machine or length in {raw} are dropped");
        }
        for path in ours {
            std::fs::remove_file(path)
                .with_context(|| format!("cannot drop {}", path.display()))?;
        }
    }
    let text = serde_json::to_string_pretty(identity)? + "\n";
    std::fs::write(&stamp, text).with_context(|| format!("cannot write {}", stamp.display()))
}

/// What is in a folder.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Whether a file is called as results of one of these targets are, or as the reason for which
/// there are none: `TARGET-N.json` or `TARGET-N.failed`.
fn is_of(path: &Path, targets: &[String]) -> bool {
    let is_name = |name: &str| {
        let stem = name.strip_suffix(".json").or_else(|| name.strip_suffix(".failed"));
        let parts = stem.and_then(|stem| stem.rsplit_once('-'));
        parts.is_some_and(|(target, round)| {
            targets.iter().any(|known| known == target) && round.parse::<u32>().is_ok()
        })
    };
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_name)
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

/// Items of a list in Markdown: what the guests were, by the last of them.
fn guest_items(qemu: &str, out: &Path) -> anyhow::Result<String> {
    let path = out.join("machine.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let guest: Value = serde_json::from_slice(&text).context("the guest's machine.json")?;
    let word = |key: &str| guest[key].as_str().unwrap_or("not known").to_owned();
    let (kernel, fio, processors) = (word("kernel"), word("fio"), word("processors"));
    Ok(format!("- guests: {kernel}, {fio}, {processors}\n- {qemu}\n"))
}

/// The whole document, in Markdown.
fn text(machine: &Machine, guest: &str, report: &PlanReport) -> String {
    let [slow, fast] = CacheGuests::requests_per_second();
    format!(
        "\
# Caches of the kernel

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`.

{}{guest}
Guests with Debian's kernel, whose processors and devices QEMU emulates; each target has one of its
own with fresh disks, of which the slow one does {slow} requests and the fast one {fast} a second
(`xtask/vm/caches.sh`). Only ratios within the tables mean anything. Targets that are written to
were measured {WRITES_OF_ROUND} times as often as the others; of several times, figures are medians.
LVM gives a cachevol the policy `mq`, which the kernel has had as another name of smq since 4.6.

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
        assert!(chosen(&[]).expect("a plan").iter().any(|name| name.ends_with(WRITES)));
        assert!(chosen(&["tape".to_owned()]).is_err());
        assert_eq!(chosen(&["slow-reads".to_owned()]).expect("it is there"), ["slow-reads"]);
    }

    fn identity(options: &str) -> Identity {
        Identity::of(&Machine::default(), &[], options.to_owned()).expect("no program is read")
    }

    /// Names in a folder, in order.
    fn names(folder: &Path) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut names: Vec<String> =
            files(folder).expect("a folder").into_iter().filter_map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn only_results_of_ours_are_dropped() {
        let out = tempfile::tempdir().expect("a folder");
        let (raw, targets) = (out.path().join("raw"), chosen(&[]).expect("a plan"));
        drop_others(out.path(), &identity("a"), &targets).expect("it is empty");
        let theirs = ["forebay-reads-1.json.bak", "forebay-reads-x.json", "tape-1.json"];
        let all = [&["forebay-reads-1.json", "slow-reads-12.failed"], &theirs[..]].concat();
        for name in &all {
            std::fs::write(raw.join(name), name).expect("written");
        }
        std::fs::create_dir(raw.join("holiday")).expect("made");
        drop_others(out.path(), &identity("a"), &targets).expect("it is the same run");
        assert_eq!(names(&raw).len(), all.len() + 1);
        drop_others(out.path(), &identity("b"), &targets).expect("it is of another one");
        assert_eq!(names(&raw), [&theirs[..2], &["holiday", "tape-1.json"]].concat());
    }

    #[test]
    fn a_folder_that_does_not_say_whose_it_is_is_refused_and_left_alone() {
        let out = tempfile::tempdir().expect("a folder");
        let (raw, targets) = (out.path().join("raw"), chosen(&[]).expect("a plan"));
        std::fs::create_dir(&raw).expect("made");
        std::fs::write(raw.join("forebay-reads-1.json"), "mine").expect("written");
        // None, and one of something else.
        for _ in 0..2 {
            let error = drop_others(out.path(), &identity("a"), &targets).expect_err("refused");
            let text = error.to_string();
            assert!(text.contains(&raw.display().to_string()) && text.contains("--out"), "{text}");
            assert_eq!(names(&raw), ["forebay-reads-1.json"]);
            assert!(names(out.path()).len() <= 2, "it is not made ours");
            std::fs::write(out.path().join("identity.json"), "{\"mine\": 1}").expect("written");
        }
    }
}
