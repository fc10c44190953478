//! `cargo xtask bench experiments`: the published experiments in virtual time, and their bounds.
//!
//! `forebay bench run` does the plans; figures here are its. Results stay in the build folder, so a
//! run that was interrupted goes on. The same commit gives the same figures on any machine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

use super::bounds::{Bound, Limit};
use super::document::verdicts;
use super::interrupt;
use super::machine::Machine;
use super::spread::Spread;
use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/experiments.md";
/// Below the build folder.
const FOLDER: &str = "experiments";
/// Plans in virtual time, in the order of the document, and what is asked of their figures.
const PLANS: [(&str, Judge); 8] = [
    ("zipf", zipf),
    ("sizes", sizes),
    ("uniform", uniform),
    ("writes", writes),
    ("machines", |_| Vec::new()),
    ("mixed", |_| Vec::new()),
    ("small-cache", |_| Vec::new()),
    ("terabyte", |_| Vec::new()),
];
/// Says how bounds stand.
type Judge = fn(&Figures) -> Vec<Bound>;

/// Index of the 90th and of the 99th percentile.
const P90: usize = 2;
const P99: usize = 4;
/// By then the misses that a hit ratio needs were read once: 4 GiB of blocks that are asked for by
/// Zipf's law, at the rate of the bare disk.
const ZIPF_WARM_SECONDS: usize = 1200;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only this plan; may be given more than once
    #[arg(long, value_name = "PLAN")]
    only: Vec<String>,
    /// Write the document here [default: docs/experiments.md; nowhere with --only]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What `forebay bench run --json` prints.
struct Figures(Value);

impl Figures {
    /// A phase of a target.
    fn phase(&self, target: &str, phase: &str) -> Option<&Value> {
        let find = |list: &'_ Value, name: &str| -> Option<usize> {
            list.as_array()?.iter().position(|entry| entry["name"] == name)
        };
        let targets = &self.0["targets"];
        let phases = &targets[find(targets, target)?]["phases"];
        Some(&phases[find(phases, phase)?])
    }

    fn iops(&self, target: &str, phase: &str) -> Option<f64> {
        self.phase(target, phase)?["iops"]["median"].as_f64()
    }

    fn read_us(&self, target: &str, phase: &str, percentile: usize) -> Option<f64> {
        self.phase(target, phase)?["read_us"][percentile]["median"].as_f64()
    }

    /// Requests in each second.
    fn seconds(&self, target: &str, phase: &str) -> Option<Vec<f64>> {
        let samples = self.phase(target, phase)?["samples"].as_array()?;
        Some(samples.iter().filter_map(|sample| sample["requests"].as_f64()).collect())
    }
}

/// Runs the plans, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    interrupt::watch()?;
    let workspace = Workspace::load()?;
    if let Some(name) = options.only.iter().find(|name| PLANS.iter().all(|(plan, _)| plan != name))
    {
        bail!(
            "{name} is no plan in virtual time; they are {}",
            PLANS.map(|(plan, _)| plan).join(", ")
        );
    }
    let forebay = workspace.build_forebay()?;
    let target = workspace.metadata.target_directory.as_std_path();
    let mut bounds = Vec::new();
    let mut tables = String::new();
    for (plan, judge) in PLANS {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == plan) {
            continue;
        }
        let out = target.join(FOLDER).join(plan);
        let command = |arguments: &[&str]| {
            let mut command = Command::new(&forebay);
            command.arg("bench").args(arguments);
            command
        };
        println!("\n{plan}");
        let mut run = command(&["run", plan, "--repetitions", "1", "--out"]);
        let status = interrupt::wait_for(run.arg(&out))?;
        if !status.success() {
            bail!("{}: {status}", process::describe(&run));
        }
        let text = interrupt::capture(command(&["report", "--json"]).arg(&out))?;
        let figures = Figures(serde_json::from_str(&text).context("no summary")?);
        bounds.extend(judge(&figures));
        tables += &format!("## `forebay bench run {plan}`\n\n");
        let table = std::fs::read_to_string(out.join("report.md")).context("no report")?;
        tables += &(table.trim_end().to_owned() + "\n\n");
    }
    super::print_bounds(&bounds);
    let usual = options.only.is_empty().then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        let text = text(&Machine::examine(&workspace), &bounds, &tables);
        super::write(&path, &(text.trim_end().to_owned() + "\n"))?;
    }
    Ok(Outcome::Passed)
}

fn bound(work: impl Into<String>, limit: Limit, value: Option<f64>) -> Bound {
    Bound::new(work.into(), limit, "", Spread::of(value))
}

fn over(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(one? / other?)
}

fn mean(seconds: &[f64]) -> Option<f64> {
    (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
}

fn zipf(figures: &Figures) -> Vec<Bound> {
    let phase = "30 minutes";
    let ssd = figures.iops("ssd", "1 minute");
    let warm = |target: &str| {
        let seconds = figures.seconds(target, phase)?;
        over(mean(seconds.get(ZIPF_WARM_SECONDS..)?), ssd)
    };
    let fairness = |target: &str| figures.phase(target, phase)?["fairness"]["median"].as_f64();
    let from = |what: &str| format!("Zipf, 2 x 2 GiB, from a cache {what}: ");
    let after = "IOPS after 20 minutes, over those of the SSD";
    vec![
        bound(from("full of junk") + after, Limit::AtLeast(0.8), warm("junk")),
        bound(from("that is empty") + after, Limit::AtLeast(0.88), warm("empty")),
        bound(
            from("that is empty") + "the slower job over the faster",
            Limit::AtLeast(0.9),
            fairness("empty"),
        ),
        bound(
            from("full of junk") + "the slower job over the faster",
            Limit::AtLeast(0.9),
            fairness("junk"),
        ),
    ]
}

fn sizes(figures: &Figures) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for gib in [1, 2, 4, 8, 16, 32, 48] {
        let phase = format!("{gib} GiB");
        let work = format!("{gib} GiB by Zipf's law, cache of 4 GiB: ");
        let us = |target, percentile| figures.read_us(target, &phase, percentile);
        if gib <= 32 {
            // The daemon's own time is a part of it.
            let p90 = over(us("forebay", P90), us("ssd", P90));
            bounds.push(bound(work.clone() + "p90 over the SSD's", Limit::AtMost(1.5), p90));
        }
        let p99 = over(us("forebay", P99), us("hdd", P99));
        bounds.push(bound(work.clone() + "p99 over the hard disk's", Limit::AtMost(1.0), p99));
        // Once it is warm: of the second half.
        let dip = figures.seconds("forebay", &phase).and_then(|seconds| {
            let late = &seconds[seconds.len() / 2..];
            over(late.iter().copied().reduce(f64::min), mean(late))
        });
        bounds.push(bound(work + "the slowest second over the mean", Limit::AtLeast(0.5), dip));
    }
    bounds
}

/// As published, in KB/s: the test, and of the better of bcache and dm-cache the first of thirty
/// runs and the last.
const UNIFORM_PUBLISHED: [(&str, f64, f64); 9] = [
    ("A (data set 1, cache empty)", 1155.0, 8241.0),
    ("B (data set 1 again)", 6111.0, 15443.0),
    ("C (data set 2)", 395.0, 9009.0),
    ("D (data set 2 again)", 6652.0, 16899.0),
    ("E (data set 2, third time)", 11905.0, 23945.0),
    ("F (data set 3)", 390.0, 9236.0),
    ("G (set 1, cache emptied)", 390.0, 9343.0),
    ("H (set 1 after copying it)", 6995.0, 17663.0),
    ("I (set 2 after H)", 377.0, 9081.0),
];
/// Seconds of a run.
const UNIFORM_RUN_SECONDS: usize = 40;
/// Kilobytes of a request of 4 KiB, as the published figures have them.
const REQUEST_KB: f64 = 4.0;

fn uniform(figures: &Figures) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for (test, first, last) in UNIFORM_PUBLISHED {
        let run = |jobs: &str, is_first: fn(&[f64]) -> &[f64]| {
            let seconds = figures.seconds("forebay", &format!("{test}, {jobs}"))?;
            Some(mean(is_first(&seconds))? * REQUEST_KB)
        };
        let begin = run("1 job", |seconds| &seconds[..seconds.len().min(UNIFORM_RUN_SECONDS)]);
        let end =
            run("3 jobs", |seconds| &seconds[seconds.len().saturating_sub(UNIFORM_RUN_SECONDS)..]);
        let work = format!("uniform reads, test {test}: KB/s of the ");
        bounds.push(bound(work.clone() + "first run", Limit::AtLeast(first), begin));
        bounds.push(bound(work + "last run", Limit::AtLeast(last), end));
    }
    bounds
}

fn writes(figures: &Figures) -> Vec<Bound> {
    let phase = "8 GiB";
    let burst = over(figures.iops("forebay", phase), figures.iops("ssd", phase));
    let more = "10 minutes more";
    let full = over(figures.iops("forebay", more), figures.iops("hdd", more));
    vec![
        bound(
            "random writes, the first 8 GiB into a cache of 16 GiB: IOPS over the SSD's",
            Limit::AtLeast(0.95),
            burst,
        ),
        bound("random writes, 10 minutes more: IOPS over the disk's", Limit::AtLeast(1.0), full),
    ]
}

/// The whole document, in Markdown.
fn text(machine: &Machine, bounds: &[Bound], tables: &str) -> String {
    format!(
        "\
# Experiments

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`.

In virtual time (see [bench.md](bench.md)): the engine itself on models of devices, which are fitted
to the native figures of the same publications. Rows `as published` are those of other caches on
other people's machines.

## Bounds

What these figures have to be. The verdict follows from the figures of this run.

Of uniform reads, the first run on a data set is no faster than the disk: none of its blocks was
read before, and no rule tells which will be next. The model's disk reads 332 KB/s where that of
the publication read 350 and bcache, in first runs on it, 352 to 395; so a run of 40 seconds comes
less far here, and a first run that finds what earlier ones have read (tests B, D and E) sooner
meets what they have not. The 1,155 of test A are of dm-cache, which fetches 256 KiB at a time.

{}{tables}",
        super::command_line(),
        machine.date,
        machine.commit,
        verdicts(bounds),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(bounds: &[Bound], work: &str) -> &'static str {
        let bound = bounds.iter().find(|bound| bound.work.contains(work)).expect(work);
        bound.verdict.text()
    }

    #[test]
    fn bounds_follow_from_the_figures() {
        let seconds = |requests: f64, count: usize| {
            (0..count).map(|_| serde_json::json!({"requests": requests})).collect::<Vec<_>>()
        };
        let samples = [seconds(10.0, 1200), seconds(870.0, 600)].concat();
        let figures = Figures(serde_json::json!({"targets": [
            {"name": "ssd", "phases": [{"name": "1 minute", "iops": {"median": 1000.0}}]},
            {"name": "empty", "phases": [{"name": "30 minutes", "fairness": {"median": 0.95},
                "samples": samples}]},
            {"name": "junk", "phases": [{"name": "30 minutes", "fairness": {"median": 0.8},
                "samples": samples}]}]}));
        let bounds = zipf(&figures);
        assert_eq!(verdict(&bounds, "full of junk: IOPS"), "met");
        assert_eq!(verdict(&bounds, "that is empty: IOPS"), "**missed**");
        assert_eq!(verdict(&bounds, "that is empty: the slower"), "met");
        assert_eq!(verdict(&bounds, "full of junk: the slower"), "**missed**");
        assert_eq!(verdict(&writes(&figures), "8 GiB"), "not measured");
    }

    #[test]
    fn a_dip_is_of_the_second_half_and_p99_is_held_against_the_disk() {
        let requests = |value: f64| serde_json::json!({"requests": value});
        let us = |p90: f64, p99: f64| {
            let median = |value: f64| serde_json::json!({"median": value});
            serde_json::json!([null, null, median(p90), null, median(p99)])
        };
        let mut samples = vec![requests(1.0); 10];
        samples.extend(vec![requests(100.0); 9]);
        samples.push(requests(40.0));
        let figures = Figures(serde_json::json!({"targets": [
            {"name": "ssd", "phases": [{"name": "8 GiB", "read_us": us(100.0, 200.0)}]},
            {"name": "hdd", "phases": [{"name": "8 GiB", "read_us": us(9000.0, 10000.0)}]},
            {"name": "forebay", "phases": [
                {"name": "8 GiB", "read_us": us(140.0, 10100.0), "samples": samples}]}]}));
        let bounds = sizes(&figures);
        assert_eq!(verdict(&bounds, "8 GiB by Zipf's law, cache of 4 GiB: p90"), "met");
        assert_eq!(verdict(&bounds, "8 GiB by Zipf's law, cache of 4 GiB: p99"), "**missed**");
        let dip = "8 GiB by Zipf's law, cache of 4 GiB: the slowest";
        assert_eq!(verdict(&bounds, dip), "**missed**");
        assert_eq!(verdict(&bounds, "16 GiB by Zipf's law, cache of 4 GiB: p90"), "not measured");
    }

    #[test]
    fn tests_have_the_names_that_the_plan_gives_them() {
        let plan = include_str!("../../../bench/plans/uniform.toml");
        for (test, ..) in UNIFORM_PUBLISHED {
            for jobs in ["1 job", "3 jobs"] {
                assert!(plan.contains(&format!("name = \"{test}, {jobs}\"")), "{test}");
            }
        }
    }
}
