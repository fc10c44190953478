//! `cargo xtask vm`: forebay in a guest with a kernel of its own.
//!
//! A guest has what test machines may not have, such as the kernel's NBD client, and can be
//! switched off. QEMU emulates all of it, so this needs neither hardware support nor root, and says
//! nothing of speed.
//!
//! `supplies` gets QEMU and a kernel, `tools` what works on caches of the kernel, `image` packs
//! what a guest runs, `root` makes the disk of one that boots a distribution, `guest` boots it and
//! talks to it, `stage` is what a scenario works with, and `scenarios` are what is tried.

mod apt;
mod archive;
mod disk;
mod exerciser;
mod guest;
mod image;
mod modules;
mod report;
mod root;
mod scenarios;
mod sources;
mod stage;
mod supplies;
mod tools;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;

use disk::{Disk, Speed};
pub(crate) use report::Report;
pub(crate) use scenarios::ALL as SCENARIOS;
use scenarios::{Scenario, System};
use stage::{Stage, Theatre};
pub(crate) use supplies::Fetch;
use supplies::Supplies;
use tools::Tools;

use crate::Outcome;
use crate::packages::{self, Install, Purpose};
use crate::workspace::Workspace;

/// Folder of everything here, below the target folder.
const FOLDER: &str = "vm";

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// A few minutes for all scenarios.
    Short,
    /// Twenty rounds of everything that is repeated.
    Long,
}

/// What to try in guests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Scenarios to run; all of them if none is named.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only list the scenarios.
    #[arg(long)]
    list: bool,
    /// Run twenty rounds of everything that is repeated.
    #[arg(long)]
    long: bool,
}

/// Runs scenarios; the last line is `N passed, N failed`.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    if options.list {
        for scenario in scenarios::ALL {
            println!("{:12}{}", scenario.name, scenario.about);
        }
        return Ok(Outcome::Passed);
    }
    let chosen = choose(&options.names)?;
    let workspace = Workspace::load()?;
    let effort = if options.long { Effort::Long } else { Effort::Short };
    let started = Instant::now();
    let theatre = build(&workspace, &workspace.build_forebay()?, &chosen, effort)?;
    let mut report = Report::default();
    play(&theatre, &chosen, &mut report);
    let seconds = started.elapsed().as_secs();
    println!("\nfinished after {} min {} s", seconds / 60, seconds % 60);
    for failure in &report.failed {
        println!("FAILED {failure}");
    }
    println!("{} passed, {} failed", report.passed_count, report.failed.len());
    Ok(if report.failed.is_empty() { Outcome::Passed } else { Outcome::Failed })
}

/// Disks of a guest for figures: of a set with far more to cache than the guest has memory for.
const FIGURES_DISKS: &[Disk] = &[
    Disk { name: "cache", bytes: 1408 << 20, speed: Speed::Memory },
    Disk { name: "origin", bytes: 22 << 30, speed: Speed::Memory },
];

/// Boots a guest with `forebay` for figures, and has it run `scripts`, each with the time it has at
/// most, and with perf if this machine has it. Lines go to `at_line`; a finding that is not as it
/// should be is an error.
pub(crate) fn measure(
    workspace: &Workspace,
    forebay: &Path,
    scripts: &[(String, Duration)],
    at_line: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let is_profiled = packages::has_program(image::PROFILER);
    let system = if is_profiled { System::Profiled } else { System::Busybox };
    let figures =
        Scenario { name: "figures", about: "", system, disks: FIGURES_DISKS, run: |_| Ok(()) };
    let theatre = build(workspace, forebay, &[&figures], Effort::Short)?;
    let mut report = Report::default();
    let mut stage = Stage::new(&theatre, &figures, &mut report)?;
    let mut guest = stage.boot()?;
    for (script, time_max) in scripts {
        stage.script_with(&mut guest, script, *time_max, at_line)?;
    }
    guest.power_off()
}

/// Disks of a guest that measures caches. Both are throttled, since what is emulated is no faster
/// than a few thousand requests a second: one to the other as a hard disk to an SSD of today.
const CACHE_DISKS: &[Disk] = &[
    Disk {
        name: "origin",
        bytes: 4 << 30,
        speed: Speed::Throttled { requests_per_second: 120, bytes_per_second: 150_000_000 },
    },
    Disk {
        name: "cache",
        bytes: 768 << 20,
        speed: Speed::Throttled { requests_per_second: 3000, bytes_per_second: 1_000_000_000 },
    },
    Disk { name: RESULTS, bytes: 64 << 20, speed: Speed::Memory },
];
const RESULTS: &str = "results";
/// Beside what is measured: set-up, fio's start, and other data read until it fills a dm-cache,
/// which takes from four to eight minutes here and longer on a busy machine.
const CACHE_SECONDS_MORE: u64 = 1800;

/// Guests in which caches of the kernel, and forebay, are measured.
pub(crate) struct CacheGuests(Theatre);

impl CacheGuests {
    const SCENARIO: Scenario = Scenario {
        name: "caches",
        about: "",
        system: System::KernelCaches,
        disks: CACHE_DISKS,
        run: |_| Ok(()),
    };

    /// Gets all that the guests are made of, with `forebay` in them.
    pub(crate) fn prepare(workspace: &Workspace, forebay: &Path) -> anyhow::Result<CacheGuests> {
        build(workspace, forebay, &[&CacheGuests::SCENARIO], Effort::Short).map(CacheGuests)
    }

    /// Requests a second that the slow disk and the fast one do.
    pub(crate) fn requests_per_second() -> [u32; 2] {
        ["origin", "cache"].map(|name| {
            let mut disks = CACHE_DISKS.iter().filter(|disk| disk.name == name);
            match disks.next().expect("it is one of them").speed {
                Speed::Throttled { requests_per_second, .. } => requests_per_second,
                Speed::Memory => unreachable!("both are throttled"),
            }
        })
    }

    /// Asks the emulator of the guests for its version.
    pub(crate) fn ask_version(&self) -> Command {
        let supplies = &self.0.supplies;
        let mut command = Command::new(supplies.qemu());
        command.env("LD_LIBRARY_PATH", supplies.library_path()).arg("--version");
        command
    }

    /// Boots a guest with fresh disks, and has it measure a target of the plan `kernel-caches`,
    /// with phases of so many `seconds` if that is not zero. Results go into `folder`.
    pub(crate) fn measure(&self, target: &str, seconds: u64, folder: &Path) -> anyhow::Result<()> {
        let mut report = Report::default();
        let mut stage = Stage::new(&self.0, &CacheGuests::SCENARIO, &mut report)?;
        let mut guest = stage.boot()?;
        let time_max = Duration::from_secs(seconds.max(300) + CACHE_SECONDS_MORE);
        stage.script(&mut guest, &format!("caches.sh {target} {seconds}"), time_max)?;
        guest.power_off()?;
        tools::unpack_results(&stage.path_of(RESULTS), folder)
    }
}

/// Gets all that guests are made of, with `forebay` in them.
fn build(
    workspace: &Workspace,
    forebay: &Path,
    chosen: &[&Scenario],
    effort: Effort,
) -> anyhow::Result<Theatre> {
    packages::prepare(Purpose::Guests, Install::IfPossible)?;
    let target = workspace.metadata.target_directory.as_std_path();
    prepare(target, forebay, chosen, effort, Fetch::IfMissing)
        .context("a guest cannot be had on this machine; missing")
}

/// All scenarios, as a part of the tests.
pub(crate) struct Tests {
    /// The error names what is missing to all of them.
    theatre: anyhow::Result<Theatre>,
}

impl Tests {
    /// Gets all that guests are made of, with the binary that the tests use.
    pub(crate) fn prepare(target: &Path, forebay: &Path, effort: Effort, fetch: Fetch) -> Tests {
        let all: Vec<_> = scenarios::ALL.iter().collect();
        Tests { theatre: prepare(target, forebay, &all, effort, fetch) }
    }

    /// Runs a scenario. What is missing is a reason to skip it, not an error.
    pub(crate) fn run(&self, scenario: &Scenario) -> Report {
        let mut report = Report::default();
        match &self.theatre {
            Ok(theatre) => match theatre.lack_of(scenario) {
                None => play(theatre, &[scenario], &mut report),
                Some(lack) => report.skip(scenario.name, lack),
            },
            Err(missing) => report.skip(scenario.name, &format!("{missing:#}")),
        }
        report
    }
}

/// Scenarios by their names.
fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Scenario>> {
    let find = |name: &String| {
        let scenario = scenarios::ALL.iter().find(|scenario| scenario.name == name);
        scenario.with_context(|| format!("no scenario {name}; --list shows all"))
    };
    if names.is_empty() {
        Ok(scenarios::ALL.iter().collect())
    } else {
        names.iter().map(find).collect()
    }
}

/// Gets all that guests of the `chosen` scenarios are made of; an error names what is missing to
/// all of them.
fn prepare(
    target: &Path,
    forebay: &Path,
    chosen: &[&Scenario],
    effort: Effort,
    fetch: Fetch,
) -> anyhow::Result<Theatre> {
    let folder = target.join(FOLDER);
    let consoles = folder.join("consoles");
    std::fs::create_dir_all(&consoles)
        .with_context(|| format!("cannot make {}", consoles.display()))?;
    let supplies = Supplies::prepare(&folder, fetch)?;
    let image = tempfile::Builder::new().prefix("image-").tempfile_in(&folder);
    let image = image.context("cannot make the image")?.into_temp_path();
    let has = |system| chosen.iter().any(|scenario| scenario.system == system);
    let tools = has(System::KernelCaches).then(|| Tools::prepare(&folder)).transpose()?;
    let extras = image::Extras { tools: tools.as_ref(), is_profiled: has(System::Profiled) };
    image::write(&image, &supplies, forebay, extras)?;
    let root = if has(System::Systemd) {
        root::prepare(&folder, &supplies, fetch).map_err(|missing| format!("{missing:#}"))
    } else {
        Err("a system with systemd, which no scenario asked for".to_owned())
    };
    Ok(Theatre { supplies, image, root, forebay: forebay.to_owned(), consoles, effort })
}

fn play(theatre: &Theatre, chosen: &[&Scenario], report: &mut Report) {
    for scenario in chosen {
        println!("\nvm {}: {}", scenario.name, scenario.about);
        let result = Stage::new(theatre, scenario, report).and_then(|mut s| (scenario.run)(&mut s));
        if let Err(error) = result {
            println!("  FAILED {error:#}");
            report.fail(scenario.name, &format!("{error:#}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_are_chosen_by_name_and_all_without_one() {
        let names = |chosen: Vec<&Scenario>| chosen.iter().map(|s| s.name).collect::<Vec<_>>();
        let all = names(choose(&[]).unwrap());
        assert_eq!(all.len(), scenarios::ALL.len());
        assert_eq!(names(choose(&["power-cut".to_owned()]).unwrap()), ["power-cut"]);
        assert!(choose(&["no-such".to_owned()]).is_err());
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
    }
}
