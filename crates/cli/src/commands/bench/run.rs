//! `forebay bench run`: every repetition of every target, and the report.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_bench::folder::{Folder, Outcome};
use forebay_bench::plan::{Clock, Phase, Plan, Source, Target};
use forebay_bench::real_time::{Ground, Interrupt, RealError};
use forebay_bench::result::TargetResult;
use forebay_bench::summary::Summary;
use forebay_bench::{real_time, report, virtual_time};
use indicatif::HumanDuration;
use tempfile::TempDir;

use super::course::{Course, Left, Step};
use super::{built_in, machine};
use crate::args::{BenchReportArguments, BenchRunArguments};
use crate::exit::Failure;
use crate::output;
use crate::progress::{Progress, Unit};
use crate::signals::{self, HangUp, Signal};

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
    let create = if arguments.replace { Folder::create_or_replace } else { Folder::create };
    let devices = match plan.clock {
        Clock::Real => Some(devices_folder(arguments, &out)?),
        Clock::Virtual => None,
    };
    let machine = machine::examine(plan.clock, devices.as_deref())?;
    let folder = create(&out, &text, &files, &machine)?;
    let grounds = devices.map(|devices| Grounds::prepare(arguments, &devices)).transpose()?;
    let all = measurements(&plan, &arguments.only);
    let total = all.len();
    let pending = pending(&folder, all)?;
    let course = Course::new(pending.iter().map(|one| Step::all(&plan, one.target)));
    let (plan, started) = (&plan, Instant::now());
    let mut run = Run { plan, grounds: grounds.as_ref(), total, course, started };
    let mut failed = 0;
    let mut summary = None;
    for measurement in pending {
        let Measurement { target, repetition, .. } = measurement;
        match run.measure(measurement) {
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
        summary = Some(write_reports(&folder, plan)?);
    }
    let summary = match summary {
        Some(summary) => summary,
        None => write_reports(&folder, plan)?,
    };
    show(&summary, &folder, arguments.json)?;
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} measurements failed"))
            .or("run it again to try only these"));
    }
    Ok(())
}

/// A repetition of a target.
#[derive(Clone, Copy)]
struct Measurement<'a> {
    target: &'a Target,
    /// From 1.
    repetition: u32,
    /// Its place in the run, from 1.
    number: usize,
}

/// All of a run: each target once, then each a second time.
fn measurements<'a>(plan: &'a Plan, only: &[String]) -> Vec<Measurement<'a>> {
    let is_chosen = |target: &&Target| only.is_empty() || only.contains(&target.name);
    let once = |repetition| {
        let targets = plan.targets.iter().filter(is_chosen);
        targets.map(move |target| (target, repetition))
    };
    let all = (1..=plan.repetitions).flat_map(once).zip(1..);
    all.map(|((target, repetition), number)| Measurement { target, repetition, number }).collect()
}

/// Those that the folder has no result of.
fn pending<'a>(
    folder: &Folder,
    all: Vec<Measurement<'a>>,
) -> Result<Vec<Measurement<'a>>, Failure> {
    let mut pending = Vec::new();
    for measurement in all {
        match folder.outcome(measurement.target, measurement.repetition)? {
            Outcome::Measured(_) => {}
            Outcome::Failed(_) | Outcome::Missing => pending.push(measurement),
        }
    }
    Ok(pending)
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

/// Where files in place of devices go: in the folder for results, which is made, unless said.
fn devices_folder(arguments: &BenchRunArguments, out: &Path) -> Result<PathBuf, Failure> {
    let (folder, made) = match &arguments.dir {
        Some(dir) => (dir.as_path(), Ok(())),
        None => (out, std::fs::create_dir_all(out)),
    };
    // Servers are started elsewhere.
    made.and_then(|()| std::path::absolute(folder))
        .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", folder.display())))
}

/// A link in `folder` that leads to this very program for as long as it runs, also if another one
/// has taken the place of its file: a run has results of one build. The link is called as the
/// program is, for people who see it in messages and in lists of processes.
fn link_to_this_program(folder: &Path) -> std::io::Result<PathBuf> {
    let link = folder.join("forebay");
    std::os::unix::fs::symlink(format!("/proc/{}/exe", std::process::id()), &link)?;
    Ok(link)
}

/// What real time needs.
struct Grounds {
    /// This very program, in the folder of sockets.
    program: PathBuf,
    /// Files in place of devices; goes away with this.
    devices: TempDir,
    sockets: TempDir,
    may_overwrite: Vec<String>,
    interrupt: Interrupt,
}

impl Grounds {
    fn prepare(arguments: &BenchRunArguments, parent: &Path) -> Result<Grounds, Failure> {
        let failed = |what: &str, error| Failure::failed(format!("{what}: {error}"));
        let devices = tempfile::Builder::new().prefix("devices-").tempdir_in(parent);
        let devices = devices
            .map_err(|error| failed(&format!("cannot write to {}", parent.display()), error))?;
        let sockets = tempfile::Builder::new().prefix("forebay-bench-").tempdir();
        let sockets = sockets.map_err(|error| failed("cannot make a folder for sockets", error))?;
        let program = link_to_this_program(sockets.path())
            .map_err(|error| failed("cannot link to the program forebay", error))?;
        let interrupt = Interrupt::default();
        let flag = interrupt.flag();
        signals::watch(HangUp::Watch, move |signal| {
            // Who asks twice does not want to wait. A terminal that goes away may say so twice.
            if flag.swap(true, Ordering::Relaxed) && signal != Signal::HangUp {
                std::process::exit(EXIT_INTERRUPTED);
            }
        })?;
        let may_overwrite = arguments.overwrite.clone();
        Ok(Grounds { program, devices, sockets, may_overwrite, interrupt })
    }

    fn ground(&self, plan: &Plan) -> Ground<'_> {
        Ground {
            program: &self.program,
            folder: self.devices.path(),
            sockets: self.sockets.path(),
            may_overwrite: &self.may_overwrite,
            interrupt: &self.interrupt,
            ends_daemons: plan.file_system.is_none(),
        }
    }
}

/// A run on its way.
struct Run<'a> {
    plan: &'a Plan,
    /// For real time.
    grounds: Option<&'a Grounds>,
    /// Measurements, with those of earlier runs.
    total: usize,
    course: Course,
    started: Instant,
}

impl Run<'_> {
    /// Measures a target once; in real time if there is a ground for it.
    fn measure(&mut self, measurement: Measurement<'_>) -> Result<TargetResult, Missing> {
        let Measurement { target, repetition, .. } = measurement;
        let Run { plan, grounds, total, course, started } = self;
        let label = label(measurement, *total, plan.repetitions);
        let phases = plan.phases.iter().filter(|phase| phase.is_for(target));
        let mut progress =
            Progress::start(&label, Unit::Seconds, phases.filter_map(Phase::lasts_s).sum());
        // Phases without an end in time do not count.
        let (mut current, mut before, mut last) = (0, 0, 0);
        let mut at_second = |now: forebay_bench::progress::Progress<'_>| {
            let time = started.elapsed();
            course.hear(now.place, now.second, time);
            progress.set_outlook(&outlook(course.left(time)));
            if current != now.place {
                before += std::mem::take(&mut last);
                current = now.place;
            }
            if now.seconds.is_some() {
                last = now.second;
                progress.set(before + last);
            } else {
                progress.set_stage(now.phase, now.second);
            }
        };
        let result = match grounds {
            None => in_virtual_time(plan, target, repetition, &mut at_second),
            Some(grounds) => {
                let ground = grounds.ground(plan);
                real_time::run(plan, target, repetition, &ground, &mut at_second).map_err(|error| {
                    match error {
                        RealError::Interrupted => Missing::Interrupted,
                        error => Missing::Failed(error.to_string()),
                    }
                })
            }
        };
        progress.finish();
        match result {
            Ok(_) => course.measured(started.elapsed()),
            Err(_) => course.failed(),
        }
        result
    }
}

/// A panic of the engine is a result that failed; the targets after it are measured all the same.
fn in_virtual_time(
    plan: &Plan,
    target: &Target,
    repetition: u32,
    at_second: &mut dyn FnMut(forebay_bench::progress::Progress<'_>),
) -> Result<TargetResult, Missing> {
    let run = AssertUnwindSafe(|| virtual_time::run(plan, target, repetition, at_second));
    // The hook has printed where it was.
    match catch_unwind(run) {
        Ok(result) => result.map_err(|error| Missing::Failed(error.to_string())),
        Err(_) => Err(Missing::Failed("the engine has panicked; see above".to_owned())),
    }
}

/// Where the run is.
fn label(measurement: Measurement<'_>, total: usize, repetitions: u32) -> String {
    let Measurement { target, repetition, number } = measurement;
    let again = match repetitions {
        1 => String::new(),
        _ => format!(", repetition {repetition}"),
    };
    format!("{number} of {total}: {}{again}", target.name)
}

/// How long the whole run still takes.
fn outlook(left: Left) -> String {
    if left.is_at_least && left.time.is_zero() {
        return "whole run: time left not known yet".to_owned();
    }
    let at_least = if left.is_at_least { "at least " } else { "" };
    format!("whole run: {at_least}{} left", HumanDuration(left.time))
}

fn write_reports(folder: &Folder, plan: &Plan) -> Result<Summary, Failure> {
    // Those of an earlier run, too.
    let plan = &folder.as_run(plan.clone())?;
    let summary = Summary::of(folder, plan)?;
    folder.write("figures.csv", report::csv(&summary).as_bytes())?;
    folder.write("report.md", report::table(&summary).as_bytes())?;
    let page = report::html(&summary, plan, &folder.machine()?);
    folder.write("report.html", page.as_bytes())?;
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PLAN: &str = "
about = 'x'
clock = 'virtual'
repetitions = 2
device = [{ name = 'disk', preset = 'hdd', size = '1M' }]
target = [{ name = 'a', device = 'disk' }, { name = 'b', device = 'disk' }]
phase = [{ name = 'pause', seconds = 1 }]
";

    #[test]
    fn a_run_has_each_target_as_often_as_it_is_repeated() {
        let plan = Plan::parse(PLAN).expect("a plan");
        let labels = |only: &[String]| -> Vec<String> {
            let all = measurements(&plan, only);
            all.iter().map(|one| label(*one, all.len(), plan.repetitions)).collect()
        };
        let all = [
            "1 of 4: a, repetition 1",
            "2 of 4: b, repetition 1",
            "3 of 4: a, repetition 2",
            "4 of 4: b, repetition 2",
        ];
        assert_eq!(labels(&[]), all);
        let one = ["1 of 2: b, repetition 1", "2 of 2: b, repetition 2"];
        assert_eq!(labels(&["b".to_owned()]), one);
        assert_eq!(label(measurements(&plan, &[])[0], 2, 1), "1 of 2: a");
    }

    #[test]
    fn what_is_not_known_is_said() {
        let left = Left { time: Duration::from_secs(300), is_at_least: false };
        assert_eq!(outlook(left), "whole run: 5 minutes left");
        let left = Left { is_at_least: true, ..left };
        assert_eq!(outlook(left), "whole run: at least 5 minutes left");
        let left = Left { time: Duration::ZERO, ..left };
        assert_eq!(outlook(left), "whole run: time left not known yet");
    }
}
