//! `cargo xtask bench`: figures of this machine, side by side with other servers.
//!
//! Nothing here is asserted: a bound that is missed is printed as missed. All figures of a run come
//! from that run, and the document that it writes is generated whole. Servers are children that are
//! known by their process ids; files and mounts are in folders of our own and go away with them.

mod bounds;
mod caches;
mod contender;
mod document;
mod drain;
mod engine;
mod experiment_bounds;
pub(crate) mod experiments;
mod fairness;
mod fio;
mod first_runs;
mod flushed;
mod forebay;
mod full;
mod ground;
mod guest;
mod interrupt;
mod machine;
mod misses;
mod nbd;
mod plan;
mod plan_report;
mod policies;
mod progress;
mod recovery;
mod report;
mod sequential;
mod server;
mod slow;
mod spread;
mod ssd_bytes;
mod synced;
mod takeover;
mod vhost_user;
mod warm_up;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::Outcome;
use crate::build::Build;
use crate::packages::{self, Install, Purpose};
use crate::workspace::Workspace;

use bounds::Bound;
use forebay::Program;
use ground::{Ground, Medium};
use machine::Machine;
use plan::{Estimate, Pace, Plan};
use progress::{Identity, Progress, Start};
use report::Report;
use slow::Bench;
use vhost_user::client::Client;

/// Where samples are kept until the run is complete, in the build folder.
const STATE: &str = "bench-state.json";
/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/performance.md";
/// This program, also if its file has been replaced since.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What to measure.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  cargo xtask bench                                     everything; writes docs/performance.md
  cargo xtask bench --quick                             once each and shorter, only printed
  cargo xtask bench --quick --only full                 a quick look at a full cache
  cargo xtask bench policies                            the policy alone, index and its memory;
                                                        writes docs/policy-figures.md
  cargo xtask bench policies --only sampling            a part of that, only printed
  cargo xtask bench guest                               ublk and NBD by the kernel of a guest;
                                                        writes docs/guest-figures.md
  cargo xtask bench experiments                         published experiments in virtual time;
                                                        writes docs/experiments.md
  cargo xtask bench caches                              bcache, dm-cache and dm-writecache beside
                                                        forebay; writes docs/kernel-caches.md
  cargo xtask bench --resume                            goes on after an interruption
  cargo xtask bench --only engine --only recovery --json figures.json
  cargo xtask bench --dir /mnt/ssd --output ssd.md      files on another disk")]
pub(crate) struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Measure once instead of three times, with shorter phases and smaller amounts
    #[arg(long)]
    quick: bool,
    /// Seconds of each timed phase over NBD [default: 3; 1 with --quick]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Seconds of the longest phases past a full cache [default: 120; 20 with --quick]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(15..=3600))]
    full_seconds: Option<u64>,
    /// Measure only this part; may be given more than once
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Write the document here [default: docs/performance.md; nowhere with --only or
    /// --quick]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all raw figures here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder on the disk to measure, about 7 GiB [default: the build folder]; the RAM file
    /// system takes up to 5 GiB
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Go on where a run with the same options was interrupted
    #[arg(long)]
    resume: bool,
    /// Do not install missing packages
    #[arg(long)]
    no_install: bool,
}

/// A bench of its own.
#[derive(clap::Subcommand)]
enum Other {
    /// Miss ratios of the policies, and what index and policy cost; writes
    /// docs/policy-figures.md
    Policies(policies::Options),
    /// Hits over ublk, over the kernel's NBD client and on bare RAM disks, in a guest with a
    /// kernel of its own; writes docs/guest-figures.md
    Guest(guest::Options),
    /// The published experiments in virtual time, and their bounds; writes docs/experiments.md
    Experiments(experiments::Options),
    /// Caches of the kernel beside forebay over ublk, each in a guest; writes
    /// docs/kernel-caches.md
    Caches(caches::Options),
}

impl Options {
    fn plan(&self) -> Plan {
        let usual = Plan::of(if self.quick { Pace::Quick } else { Pace::Thorough });
        Plan {
            seconds: self.seconds.unwrap_or(usual.seconds),
            full_seconds: self.full_seconds.unwrap_or(usual.full_seconds),
            ..usual
        }
    }

    /// What to measure, in order.
    fn parts(&self) -> Vec<Part> {
        let is_wanted = |part: &Part| self.only.is_empty() || self.only.contains(part);
        Part::value_variants().iter().copied().filter(is_wanted).collect()
    }

    /// Where the document goes, if anywhere.
    fn document(&self, workspace: &Workspace) -> Option<PathBuf> {
        let is_whole = self.only.is_empty() && !self.quick;
        let usual = is_whole.then(|| workspace.root().join(DOCUMENT));
        self.output.clone().or(usual)
    }
}

/// A part of the bench, in the order in which they are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Part {
    /// CPU of the engine on a hit
    Engine,
    /// Hits and writes over NBD, against other servers
    Nbd,
    /// Hits over vhost-user, against NBD
    VhostUser,
    /// Recovery time and RAM per cached extent
    Recovery,
    /// How long clients wait while a daemon is replaced
    Takeover,
    /// SSD bytes per client byte
    SsdBytes,
    /// Writes past a full cache, on slow origins
    Full,
    /// Writes that are flushed one by one, during writeback
    Fsync,
    /// Reads that miss, without and with writeback beside them
    Misses,
    /// SQLite, PostgreSQL and dpkg on a mounted file system
    Sync,
    /// Sequential writes larger than the cache
    Sequential,
    /// Time and writes that a drain takes
    Drain,
    /// Two clients at once
    Fairness,
}

impl Part {
    fn estimate(self, plan: Plan) -> Estimate {
        let seconds = match self {
            Part::Engine => engine::SECONDS,
            Part::Nbd => nbd::seconds(plan),
            Part::VhostUser => vhost_user::seconds(plan),
            Part::Recovery => recovery::seconds(plan),
            Part::Takeover => takeover::seconds(plan),
            Part::SsdBytes => ssd_bytes::seconds(plan),
            Part::Full => full::seconds(plan),
            Part::Fsync => flushed::seconds(plan),
            Part::Misses => misses::seconds(plan),
            Part::Sync => synced::seconds(plan),
            Part::Sequential => sequential::seconds(plan),
            Part::Drain => drain::seconds(plan),
            Part::Fairness => fairness::seconds(plan),
        };
        let value = self.to_possible_value().expect("no part is skipped");
        Estimate { part: value.get_name().to_owned(), seconds }
    }
}

/// Measures, prints, and writes the document.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    match &options.other {
        Some(Other::Policies(options)) => return policies::run(options),
        Some(Other::Guest(options)) => return guest::run(options),
        Some(Other::Experiments(options)) => return experiments::run(options),
        Some(Other::Caches(options)) => return caches::run(options),
        None => {}
    }
    let started = Instant::now();
    let workspace = Workspace::load()?;
    let install = if options.no_install { Install::Never } else { Install::IfPossible };
    packages::prepare(Purpose::Bench, install)?;
    if !packages::has_program("fio") {
        bail!("fio is missing; install it, nothing can be measured without it");
    }
    interrupt::watch()?;
    let plan = options.plan();
    let estimates: Vec<Estimate> =
        options.parts().into_iter().map(|part| part.estimate(plan)).collect();
    println!("{}", plan::describe(&estimates));
    // Before anything is measured, and all at once: sources may change while the run lasts.
    let build = Build::begin(&workspace)?;
    let program = Program::build(&workspace, &build)?;
    let client = Client::build(&workspace, &build)?;
    let machine = Machine::examine_with(&workspace, &program);
    let scene = Scene { options, workspace: &workspace, program: &program, client: &client };
    let mut progress = scene.begin(&machine)?;
    let mut report = Report {
        machine: progress.machine().clone(),
        command: command_line(),
        file_systems: Vec::new(),
        plan,
        session_count: progress.session_count(),
        nbd: None,
        vhost_user: None,
        recovery: None,
        takeovers: None,
        ssd_bytes: None,
        full: None,
        fsync: None,
        misses: None,
        sync: None,
        sequential: None,
        drain: None,
        fairness: None,
        engine: None,
        bounds: Vec::new(),
    };
    if let Err(error) = scene.measure(&mut progress, &mut report) {
        println!("{}", progress.farewell());
        return Err(error);
    }
    report.bounds = bounds::judge(&report);
    print_bounds(&report.bounds);
    if let Some(path) = &options.json {
        write(path, &serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(path) = options.document(&workspace) {
        let experiments = experiment_bounds::section(&workspace.root().join("docs"));
        write(&path, &document::text(&report, &experiments))?;
    }
    progress.finish()?;
    let seconds = started.elapsed().as_secs();
    println!("finished after {} min {} s", seconds / 60, seconds % 60);
    Ok(Outcome::Passed)
}

/// What parts are measured with.
struct Scene<'a> {
    options: &'a Options,
    workspace: &'a Workspace,
    program: &'a Program,
    client: &'a Client,
}

impl Scene<'_> {
    /// Begins to keep samples, or finds those of an interrupted run.
    fn begin(&self, machine: &Machine) -> anyhow::Result<Progress> {
        let Scene { options, workspace, program, client } = self;
        let dir = options.dir.as_deref().map(|dir| dir.display().to_string());
        let Plan { pace, seconds, full_seconds, repetitions } = options.plan();
        let text = format!(
            "{pace:?}, {seconds} s and {full_seconds} s, {repetitions} times, in {}",
            dir.as_deref().unwrap_or("the build folder")
        );
        let programs = [program.path(), client.path(), Path::new(OWN_PROGRAM)];
        let identity = Identity::of(machine, &programs, text)?;
        let target = workspace.metadata.target_directory.as_std_path();
        let start = if options.resume { Start::Resume } else { Start::Anew };
        Progress::begin(&target.join(STATE), start, identity, machine)
    }

    fn measure(&self, progress: &mut Progress, report: &mut Report) -> anyhow::Result<()> {
        let program = self.program;
        let plan = report.plan;
        for part in self.options.parts() {
            match part {
                Part::Engine => {
                    let measure = || engine::measure(self.workspace);
                    report.engine = Some(progress.sample("engine", measure)?);
                }
                Part::Nbd => {
                    let mut rows = Vec::new();
                    for medium in Medium::ALL {
                        let ground = self.ground(medium, nbd::ground_bytes(), report)?;
                        rows.extend(nbd::measure(program, &ground, plan, progress)?);
                    }
                    report.nbd = Some(rows);
                }
                Part::VhostUser => {
                    let ground = self.ground(Medium::Ram, vhost_user::ground_bytes(), report)?;
                    let measured =
                        vhost_user::measure(program, self.client, &ground, plan, progress)?;
                    report.vhost_user = Some(measured);
                }
                Part::Recovery => {
                    let ground = self.ground(Medium::Disk, recovery::ground_bytes(), report)?;
                    let recovery = recovery::measure(program, &ground, plan, progress)?;
                    report.recovery = Some(recovery);
                }
                Part::Takeover => {
                    let ground = self.ground(Medium::Disk, takeover::ground_bytes(), report)?;
                    let takeovers = takeover::measure(program, &ground, plan, progress)?;
                    report.takeovers = Some(takeovers);
                }
                Part::SsdBytes => {
                    let ground = self.ground(Medium::Disk, ssd_bytes::ground_bytes(), report)?;
                    let rows = ssd_bytes::measure(program, &ground, plan, progress)?;
                    report.ssd_bytes = Some(rows);
                }
                Part::Full
                | Part::Fsync
                | Part::Misses
                | Part::Sync
                | Part::Sequential
                | Part::Drain
                | Part::Fairness => {
                    self.measure_on_slow_origins(part, progress, report)?;
                }
            }
        }
        Ok(())
    }

    fn measure_on_slow_origins(
        &self,
        part: Part,
        progress: &mut Progress,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let plan = report.plan;
        let (ram_bytes, disk_bytes) = match part {
            Part::Fsync => (flushed::SIZES.ram_bytes(), flushed::disk_bytes()),
            Part::Misses => (misses::SIZES.ram_bytes(), misses::SIZES.disk_bytes()),
            Part::Sync => (synced::SIZES.ram_bytes(), synced::disk_bytes()),
            Part::Sequential => (sequential::SIZES.ram_bytes(), sequential::SIZES.disk_bytes()),
            Part::Drain => (drain::ram_bytes(plan), drain::disk_bytes(plan)),
            Part::Fairness => (fairness::disks::ram_bytes(), fairness::SIZES.disk_bytes()),
            _ => (full::SIZES.ram_bytes(), full::SIZES.disk_bytes()),
        };
        let ram = self.ground(Medium::Ram, ram_bytes, report)?;
        let disk = self.ground(Medium::Disk, disk_bytes, report)?;
        let bench = Bench { program: self.program, ram: &ram, disk: &disk };
        match part {
            Part::Fsync => report.fsync = Some(flushed::measure(bench, plan, progress)?),
            Part::Misses => report.misses = Some(misses::measure(bench, plan, progress)?),
            Part::Sync => report.sync = synced::measure(bench, plan, progress)?,
            Part::Sequential => {
                report.sequential = Some(sequential::measure(bench, plan, progress)?);
            }
            Part::Drain => report.drain = Some(drain::measure(bench, plan, progress)?),
            Part::Fairness => {
                let measured = fairness::measure(bench, self.client, plan, progress)?;
                report.fairness = Some(measured);
            }
            _ => report.full = Some(full::measure(bench, plan, progress)?),
        }
        Ok(())
    }

    /// A folder on `medium`, of which the report takes note.
    fn ground(&self, medium: Medium, bytes: u64, report: &mut Report) -> anyhow::Result<Ground> {
        let target = self.workspace.metadata.target_directory.as_std_path();
        let disk = self.options.dir.as_deref().unwrap_or(target);
        let ground = Ground::prepare(medium, disk, bytes)?;
        report.note_file_system(&ground)?;
        Ok(ground)
    }
}

/// What was typed, as far as we know it.
fn command_line() -> String {
    let words = ["cargo".to_owned(), "xtask".to_owned()];
    words.into_iter().chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}

fn print_bounds(bounds: &[Bound]) {
    if bounds.is_empty() {
        return;
    }
    println!("bounds:");
    for bound in bounds {
        let verdict = bound.verdict.text().replace('*', "");
        let (work, measured) = (bound.work.replace('`', ""), &bound.measured);
        println!("  {verdict:<12}  {work}: {measured}; {}", bound.bound);
    }
}

/// Writes a document or figures, with one end of line behind them.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let text = text.trim_end().to_owned() + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimated_seconds(pace: Pace) -> u64 {
        Part::value_variants().iter().map(|part| part.estimate(Plan::of(pace)).seconds).sum()
    }

    #[test]
    fn a_whole_run_takes_an_hour_and_a_quarter_at_most() {
        let (thorough, quick) = (estimated_seconds(Pace::Thorough), estimated_seconds(Pace::Quick));
        assert!(thorough <= 4500, "{thorough} s");
        assert!(quick <= 1500, "{quick} s");
    }
}
