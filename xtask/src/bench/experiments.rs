//! `cargo xtask bench experiments`: the published experiments in virtual time, and their bounds;
//! with `--real` those that need a real machine.
//!
//! `forebay bench run` does the plans; figures here are its. Results stay in the build folder, so a
//! run that was interrupted goes on. In virtual time the same commit gives the same figures on any
//! machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;
use serde_json::Value;

use super::bounds::Bound;
use super::document::verdicts;
use super::experiment_bounds;
use super::first_runs;
use super::interrupt;
use super::machine::Machine;
use super::plan_report::PlanReport;
use super::warm_up;
use crate::build::Build;
use crate::workspace::Workspace;
use crate::{Outcome, charts, process};

/// Where the documents are, from the root on.
const DOCUMENT: &str = "docs/experiments.md";
const REAL_DOCUMENT: &str = "docs/real-experiments.md";
/// Below the build folder.
const FOLDER: &str = "experiments";
/// Plans in virtual time, in the order of the document.
pub(super) const PLANS: [&str; 10] = [
    ZIPF,
    "defaults",
    "sizes",
    UNIFORM,
    "writes",
    "write-defaults",
    "machines",
    "mixed",
    "small-cache",
    "terabyte",
];
/// Plans in real time that need no more than this machine, in the order of their document.
pub(super) const REAL_PLANS: [&str; 5] =
    ["git", "database", "peers", "machines-small", "published-small"];
/// The plan whose bounds are of a cache that has become warm.
const ZIPF: &str = "zipf";
/// The plan in which the same offsets are asked for again and again.
const UNIFORM: &str = "uniform";

/// What there is to say of the plans `writes` and `write-defaults`.
const OF_WRITES: &str = "\
Random writes, of the plan `writes`, are as fast as the SSD until dirty data comes to the soft
mark, not until the log is full. From there on writers are slowed down to the pace of writeback bit
by bit ([policies.md](policies.md#when-the-log-fills-up-with-dirty-data)), so that none of them
meets a wall at the hard mark. Both cannot be had, and the bounds on what is written beyond the soft
mark are missed: the plan `write-defaults` has the same with other soft marks. With a later one the
10 GiB are written much sooner and what comes after them is slower; with an earlier one it is the
other way round. The mean of all 10 GiB has the slow time in it, and those published of
dm-writecache have not: of the time after its cache was full nothing was published. How much is
written by the soft mark follows from what a block takes of the log: a record has a header of a
block, and on an SSD as fast as this one few of 32 requests share it (the amplification, below).

What is as fast as this SSD depends on the processor, which has 5.9 us for each of its 168,000
writes a second. The figure of this plan is of the fastest machine that `cargo xtask bench` was run
on so far. With the processor time that [performance.md](performance.md) has, of a slower one, the
daemon, of which one thread serves a cache set, takes longer for a write than the SSD, and the bound
on it in `write-defaults` is missed. The SSDs of the other plans leave more than these times for a
read.";

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this plan; may be given more than once
    #[arg(long, value_name = "PLAN")]
    only: Vec<String>,
    /// The plans that need a real machine, instead of those in virtual time: git and a database on
    /// a mounted file system, other caches in user space, smaller ones of those in virtual time.
    /// Needs root, and a machine that does nothing else
    #[arg(long)]
    real: bool,
    /// Write the document here [default: docs/experiments.md, or docs/real-experiments.md with
    /// --real; nowhere with --only]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Options {
    fn plans(&self) -> &'static [&'static str] {
        if self.real { &REAL_PLANS } else { &PLANS }
    }
}

/// What all plans have come to.
#[derive(Default)]
struct Results {
    bounds: Vec<Bound>,
    tables: String,
    /// When a cache has become warm, by the plan `zipf`.
    warm_up: String,
    /// The disk's rate in KB/s and first runs, by the plan `uniform`.
    first_runs: (String, String),
    /// Plans of which something could not be measured.
    failed: Vec<&'static str>,
}

/// Where the results of a plan are.
pub(crate) fn folder(workspace: &Workspace, plan: &str) -> PathBuf {
    workspace.metadata.target_directory.as_std_path().join(FOLDER).join(plan)
}

/// Runs the plans, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    interrupt::watch()?;
    let workspace = Workspace::load()?;
    let plans = options.plans();
    if let Some(name) = options.only.iter().find(|name| !plans.contains(&name.as_str())) {
        bail!("{name} is none of these plans; they are {}", plans.join(", "));
    }
    // One build for all plans: sources may change while the run lasts.
    let build = Build::begin(&workspace)?;
    let forebay = build.forebay(&workspace)?;
    let machine = Machine::examine(&workspace);
    let is_chosen =
        |plan: &&str| options.only.is_empty() || options.only.iter().any(|name| name == plan);
    let (warm_up, first_runs) = (warm_up::text(&Value::Null), first_runs::text(&Value::Null));
    let mut results = Results { warm_up, first_runs, ..Results::default() };
    for plan in plans.iter().copied().filter(is_chosen) {
        println!("\n{plan}");
        results.measure(&forebay, plan, &folder(&workspace, plan))?;
    }
    super::print_bounds(&results.bounds);
    let document = if options.real { REAL_DOCUMENT } else { DOCUMENT };
    let usual = options.only.is_empty().then(|| workspace.root().join(document));
    if let Some(path) = options.output.clone().or(usual) {
        let text =
            if options.real { real_text(&machine, &results) } else { text(&machine, &results) };
        super::write(&path, &text)?;
        if options.output.is_none() {
            experiment_bounds::renew(&workspace.root().join("docs"))?;
        }
    }
    if options.only.is_empty() && !options.real {
        // Those of the same results, which README shows.
        charts::draw(&["zipf", "writes"], &forebay)?;
    }
    if results.failed.is_empty() {
        return Ok(Outcome::Passed);
    }
    eprintln!("not all was measured of {}", results.failed.join(", "));
    Ok(Outcome::Failed)
}

impl Results {
    /// Runs a plan and adds what came out. Only an interrupt is an error: of a plan that fails,
    /// there is what could be measured, or the reason, and the others are run.
    fn measure(&mut self, forebay: &Path, plan: &'static str, out: &Path) -> anyhow::Result<()> {
        let mut run = Command::new(forebay);
        run.args(["bench", "run", plan, "--replace", "--out"]).arg(out);
        if PLANS.contains(&plan) {
            // Another one would have other random numbers, and nothing else.
            run.args(["--repetitions", "1"]);
        }
        let status = interrupt::wait_for(&mut run)?;
        interrupt::check()?;
        if !status.success() {
            eprintln!("{}: {status}", process::describe(&run));
            self.failed.push(plan);
        }
        let tables = match PlanReport::of(forebay, out) {
            Ok(report) => {
                self.bounds.extend(report.bounds);
                match plan {
                    ZIPF => self.warm_up = warm_up::text(&report.summary),
                    UNIFORM => self.first_runs = first_runs::text(&report.summary),
                    _ => {}
                }
                report.tables
            }
            Err(error) => {
                interrupt::check()?;
                eprintln!("{plan}: {error:#}");
                if status.success() {
                    self.failed.push(plan);
                }
                format!("There is no report: {error:#}")
            }
        };
        self.tables += &format!("## `forebay bench run {plan}`\n\n{tables}\n\n");
        Ok(())
    }
}

/// The whole document, in Markdown.
fn text(machine: &Machine, results: &Results) -> String {
    format!(
        "\
# Experiments

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`.

In virtual time (see [bench.md](bench.md)): the engine itself on models of devices, which are fitted
to the native figures of the same publications. Rows `as published` are those of devices and caches
on other people's machines.

## Bounds

What these figures have to be, as the plans have it. The verdict follows from the figures of this
run.

Of the plan `zipf`, bounds are of what comes after 20 minutes. A cache has 1.2 times as long as the
misses that it needs take on the bare disk. IOPS as high as the bounds ask for take a hit ratio:
that of the first second of this run with so many. By Zipf's law, requests come to it when so many
different blocks were asked for, and a cache that fetches what was asked for misses each of them
once. At the 938 reads/s of the published disk 938,000 misses take 1,000 s, and 1.2 times that are
20 minutes; by this run's figures it would be as long as the table says. The last column is what
forebay took, which fetches more than was asked for.

{}Of uniform reads, the first run on a data set is no faster than the disk: none of its blocks was
read before, and no rule tells which will be next. The model's disk reads {} KB/s where that of
the publication read 350 and bcache, in first runs on it, 352 to 390; so a run of 40 seconds comes
less far here, and a first run that finds what earlier ones have read (tests B, D and E) sooner
meets what they have not. So does a hit that goes over NBD, which takes the plan's processor time
beside the SSD's. Reading ahead takes its part of the disk's time, too, and none of what it fetches
is asked for soon: the table has the same without it. The 1,155 of test A are of dm-cache, and of a
cache that cannot have been empty: with 256 KiB for each read, 350 KB/s fetch less than 2 % of 50 GB
in 40 s; and of the same run on a cache that was emptied before, test G, dm-cache has 329.

{}Tests I and C are the same reads of the same data, none of which is cached when they begin; only
what else the cache holds differs. Their last runs come to the same rate but for some
ten-thousandths, by which the ratio may lie on either side of 1.

Of the plan `defaults`, the setting that is ahead of the others after half an hour at 2 x 6 GiB is
`policy lru`. It gives up what the work before had left in the order in which that was last read,
where the default policy keeps the part of it that was read again, until the new work has shown the
same; and it has come to all that it will reach: two hours later the defaults are ahead by far.

{OF_WRITES}

{}{}",
        super::command_line(),
        machine.date,
        machine.commit,
        results.warm_up,
        results.first_runs.0,
        results.first_runs.1,
        verdicts(&results.bounds),
        results.tables,
    )
}

/// The same of plans in real time.
fn real_text(machine: &Machine, results: &Results) -> String {
    format!(
        "\
# Experiments on a real machine

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`.

{}
In real time (see [bench.md](bench.md#real-time)): real requests, programs and file systems. The
hard disk is emulated by `forebay serve`, the SSD is files on the disk of this machine. So only
ratios between rows of one table mean anything, and rows `as published` are of other machines.
Figures are medians of the repetitions where there are several, and in parentheses the smallest and
the largest.

Of the plan `git`, a clone lasts some seconds here, where it took minutes in the publication, and
runs on the same target differ by more than the hundredth that its bound over the SSD leaves. Most
of that time git computes. The daemon with a cache takes twice the processor time of the one that
serves the bare SSD (`cpu_s` in `raw/`), some hundredths of the clone: for the log with its
checksums, and for writeback, which begins beside the clone when a tenth of the cache is dirty. Nor
is the disk ten times slower in a search, as in the publication: a fresh clone lies in one piece,
and nbdfuse and the loop driver take their part of each time.

Of the plan `published-small`, reads by Zipf's law are held to the SSD through the same front end
and to the SSD without one. What misses the second bound and meets the first is lost in the front
end, and `SSD, served` loses it, too: a request and its answer pass a socket, and at depth 8 there
are not enough others under way to make up for that.

## Bounds

What these figures have to be, as the plans have it, by the medians of this run.

{}{}",
        super::command_line(),
        machine.date,
        machine.commit,
        machine.items(),
        verdicts(&results.bounds),
        results.tables,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_fails_does_not_end_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = Results::default();
        for plan in ["sizes", "writes"] {
            results.measure(Path::new("false"), plan, folder.path()).expect("no interrupt");
        }
        assert_eq!(results.failed, ["sizes", "writes"]);
        assert!(results.tables.contains("## `forebay bench run writes`\n\nThere is no report"));
        let mut without_results = Results::default();
        without_results.measure(Path::new("true"), "sizes", folder.path()).expect("no interrupt");
        assert_eq!(without_results.failed, ["sizes"]);
    }

    #[test]
    fn plans_are_those_of_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/plans");
        let of_clock = |plans: &[&str], clock: &str| {
            for plan in plans {
                let text = std::fs::read_to_string(format!("{folder}/{plan}.toml")).expect(plan);
                assert!(text.contains(&format!("clock = \"{clock}\"")), "{plan}");
            }
        };
        of_clock(&PLANS, "virtual");
        of_clock(&REAL_PLANS, "real");
    }
}
