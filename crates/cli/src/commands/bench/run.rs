//! `forebay bench run`: every repetition of every target, and the report.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use forebay_bench::folder::{Folder, Outcome};
use forebay_bench::plan::{Clock, Phase, Plan, Source, Target};
use forebay_bench::real_time::{Ground, Interrupt, RealError};
use forebay_bench::result::TargetResult;
use forebay_bench::summary::Summary;
use forebay_bench::{real_time, report, virtual_time};
use tempfile::TempDir;

use super::{built_in, machine};
use crate::args::{BenchReportArguments, BenchRunArguments};
use crate::exit::Failure;
use crate::progress::{Progress, Unit};
use crate::{output, signals};

/// As a shell has it after SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// Why there is no result.
enum Missing {
    /// For the report.
    Failed(String),
    /// The operator has stopped it.
    Interrupted,
}

pub(super) fn run(arguments: &BenchRunArguments) -> Result<(), Failure> {
    let (name, Source { mut plan, text, files }) = find(&arguments.plan)?;
    plan.clock = arguments.clock.map_or(plan.clock, Clock::from);
    plan.repetitions = arguments.repetitions.unwrap_or(plan.repetitions);
    for name in &arguments.only {
        if !plan.targets.iter().any(|target| target.name == *name) {
            let names: Vec<&str> = plan.targets.iter().map(|target| target.name.as_str()).collect();
            return Err(Failure::usage(format!("the plan has no target {name}"))
                .or(format!("it has {}", names.join(", "))));
        }
    }
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from(format!("bench-{name}")));
    let folder = Folder::create(&out, &text, &files, &machine::examine())?;
    let grounds = match plan.clock {
        Clock::Real => Some(Grounds::prepare(arguments, &out)?),
        Clock::Virtual => None,
    };
    let mut failed = 0;
    let mut summary = None;
    for repetition in 1..=plan.repetitions {
        let chosen =
            |target: &&Target| arguments.only.is_empty() || arguments.only.contains(&target.name);
        for target in plan.targets.iter().filter(chosen) {
            match folder.outcome(target, repetition)? {
                Outcome::Measured(result) if result.clock == plan.clock => continue,
                Outcome::Measured(result) => {
                    let (path, clock) = (folder.path().display(), result.clock.name());
                    let what = format!("{path} has results in {clock} time");
                    return Err(Failure::refused(what).or("--out names another folder"));
                }
                Outcome::Failed(_) | Outcome::Missing => {}
            }
            match measure(&plan, target, repetition, grounds.as_ref()) {
                Ok(result) => folder.save(&result)?,
                Err(Missing::Interrupted) => {
                    return Err(Failure::failed("interrupted")
                        .or("start it again with the same folder, and it goes on"));
                }
                Err(Missing::Failed(why)) => {
                    eprintln!("{}, repetition {repetition}: {why}", target.name);
                    folder.save_failure(target, repetition, &why)?;
                    failed += 1;
                }
            }
            // Also of a run that is interrupted something can be read.
            summary = Some(write_reports(&folder, &plan)?);
        }
    }
    let summary = match summary {
        Some(summary) => summary,
        None => write_reports(&folder, &plan)?,
    };
    show(&summary, &folder, arguments.json)?;
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} measurements failed"))
            .or("run it again to try only these"));
    }
    Ok(())
}

/// `forebay bench report`: of what is there.
pub(super) fn report(arguments: &BenchReportArguments) -> Result<(), Failure> {
    let (folder, plan, _) = Folder::open(&arguments.folder)?;
    show(&write_reports(&folder, &plan)?, &folder, arguments.json)
}

#[allow(clippy::fn_params_excessive_bools, reason = "it is the option")]
fn show(summary: &Summary, folder: &Folder, json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json(summary);
    }
    output::print(&report::table(summary))?;
    output::print(&format!("\nall figures are in {}\n", folder.path().display()))
}

/// A plan by its name or path: its name, and what it is read from.
fn find(plan: &str) -> Result<(String, Source), Failure> {
    let path = Path::new(plan);
    let is_path =
        plan.contains('/') || path.extension().is_some_and(|extension| extension == "toml");
    if !is_path {
        let text = built_in(plan)?.to_owned();
        let source = Source { plan: Plan::parse(&text)?, text, files: Vec::new() };
        return Ok((plan.to_owned(), source));
    }
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    Ok((name.unwrap_or_else(|| "plan".to_owned()), Source::read(path)?))
}

/// What real time needs.
struct Grounds {
    program: PathBuf,
    /// Files in place of devices; goes away with this.
    devices: TempDir,
    sockets: TempDir,
    may_overwrite: Vec<String>,
    interrupt: Interrupt,
}

impl Grounds {
    fn prepare(arguments: &BenchRunArguments, out: &Path) -> Result<Grounds, Failure> {
        let failed = |what: &str, error| Failure::failed(format!("{what}: {error}"));
        let program = std::env::current_exe()
            .map_err(|error| failed("cannot find the program forebay", error))?;
        let parent = arguments.dir.as_deref().unwrap_or(out);
        let parent = std::path::absolute(parent)
            .map_err(|error| failed(&format!("cannot find {}", parent.display()), error))?;
        let devices = tempfile::Builder::new().prefix("devices-").tempdir_in(&parent);
        let devices = devices
            .map_err(|error| failed(&format!("cannot write to {}", parent.display()), error))?;
        let sockets = tempfile::Builder::new().prefix("forebay-bench-").tempdir();
        let sockets = sockets.map_err(|error| failed("cannot make a folder for sockets", error))?;
        let interrupt = Interrupt::default();
        let flag = interrupt.flag();
        signals::watch(move |_| {
            // Who asks twice does not want to wait.
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(EXIT_INTERRUPTED);
            }
        })?;
        let may_overwrite = arguments.overwrite.clone();
        Ok(Grounds { program, devices, sockets, may_overwrite, interrupt })
    }

    fn ground(&self) -> Ground<'_> {
        Ground {
            program: &self.program,
            folder: self.devices.path(),
            sockets: self.sockets.path(),
            may_overwrite: &self.may_overwrite,
            interrupt: &self.interrupt,
        }
    }
}

/// Measures a target once; in real time if there is a ground for it.
fn measure(
    plan: &Plan,
    target: &Target,
    repetition: u32,
    grounds: Option<&Grounds>,
) -> Result<TargetResult, Missing> {
    let phases: Vec<&Phase> = plan.phases.iter().filter(|phase| phase.is_for(target)).collect();
    let lasts = |phase: &&Phase| Some(phase.seconds? * u64::from(phase.times));
    let total = phases.iter().filter_map(lasts).sum();
    let label = format!("{} ({repetition} of {})", target.name, plan.repetitions);
    let mut progress = Progress::start(&label, Unit::Seconds, total);
    // Phases without an end in time do not count.
    let (mut current, mut before) = (String::new(), 0);
    let mut last = 0;
    let mut at_second = |now: forebay_bench::progress::Progress<'_>| {
        if current != now.phase {
            before += last;
            current = now.phase.to_owned();
        }
        last = if now.seconds.is_some() { now.second } else { 0 };
        progress.set(before + last);
    };
    let result = match grounds {
        None => virtual_time::run(plan, target, repetition, &mut at_second)
            .map_err(|error| Missing::Failed(error.to_string())),
        Some(grounds) => {
            let ground = grounds.ground();
            real_time::run(plan, target, repetition, &ground, &mut at_second).map_err(|error| {
                match error {
                    RealError::Interrupted => Missing::Interrupted,
                    error => Missing::Failed(error.to_string()),
                }
            })
        }
    };
    progress.finish();
    result
}

fn write_reports(folder: &Folder, plan: &Plan) -> Result<Summary, Failure> {
    let summary = Summary::of(folder, plan)?;
    folder.write("figures.csv", report::csv(&summary).as_bytes())?;
    folder.write("report.md", report::table(&summary).as_bytes())?;
    let page = report::html(&summary, plan, &folder.machine()?);
    folder.write("report.html", page.as_bytes())?;
    Ok(summary)
}
