//! `forebay bench run`: every repetition of every target, and the report.

use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use forebay_bench::folder::{self, Folder, Outcome};
use forebay_bench::plan::{Clock, Plan, Source};
use forebay_bench::progress::Progress;
use forebay_bench::real_time::{Ground, Interrupt, RealError};
use forebay_bench::result::TargetResult;
use forebay_bench::summary::Summary;
use forebay_bench::{real_time, report, virtual_time};
use tempfile::TempDir;

use super::measurement::{Measurement, measurements};
use super::watch::Watch;
use super::{built_in, machine};
use crate::args::{BenchReportArguments, BenchRunArguments};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::signals::{self, HangUp, Signal};

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
    let jobs = jobs(arguments, plan.clock)?;
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
    let pending = pending(&folder, &plan, all)?;
    let watch = Watch::new(&plan, total, &pending, jobs);
    let mut run = Run { plan: &plan, folder: &folder, watch, failed: 0, summary: None };
    match &grounds {
        None => run.in_virtual_time(pending, jobs)?,
        Some(grounds) => run.in_real_time(&pending, grounds)?,
    }
    let failed = run.failed;
    let summary = match run.summary {
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

/// How many targets are measured at once: models have nothing in common, where a machine is shared.
fn jobs(arguments: &BenchRunArguments, clock: Clock) -> Result<u32, Failure> {
    match (clock, arguments.jobs) {
        (Clock::Real, Some(2..)) => {
            Err(Failure::usage("in real time targets are measured one after another")
                .or("leave out --jobs"))
        }
        (Clock::Real, _) => Ok(1),
        (Clock::Virtual, Some(jobs)) => Ok(jobs),
        (Clock::Virtual, None) => {
            let processors = thread::available_parallelism().map_or(1, NonZero::get);
            Ok(u32::try_from(processors).unwrap_or(1))
        }
    }
}

/// Those that the folder has no result of.
fn pending(
    folder: &Folder,
    plan: &Plan,
    all: Vec<Measurement>,
) -> Result<Vec<Measurement>, Failure> {
    let mut pending = Vec::new();
    for measurement in all {
        match folder.outcome(measurement.target(plan), measurement.repetition)? {
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
                std::process::exit(Exit::Cancelled.code().into());
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

/// What has come out of a run so far.
struct Run<'a> {
    plan: &'a Plan,
    folder: &'a Folder,
    watch: Watch<'a>,
    /// Measurements of which there is no result.
    failed: usize,
    /// Of the last report.
    summary: Option<Summary>,
}

/// What is heard of measurements that go on beside each other.
enum Event {
    Begun(Measurement),
    /// The one with this number has come so far.
    Progress(usize, Progress),
    Ended(Measurement, Result<TargetResult, Missing>),
}

impl Run<'_> {
    fn in_real_time(&mut self, pending: &[Measurement], grounds: &Grounds) -> Result<(), Failure> {
        let plan = self.plan;
        for &measurement in pending {
            self.watch.begin(measurement);
            let Measurement { repetition, number, .. } = measurement;
            let mut at_second = |now| self.watch.hear(number, now);
            let (target, ground) = (measurement.target(plan), grounds.ground(plan));
            let result = real_time::run(plan, target, repetition, &ground, &mut at_second);
            let result = result.map_err(|error| match error {
                RealError::Interrupted => Missing::Interrupted,
                error => Missing::Failed(error.to_string()),
            });
            self.end(measurement, result)?;
        }
        Ok(())
    }

    /// So many measurements at once. If what comes out cannot be kept, no further ones begin.
    fn in_virtual_time(&mut self, pending: Vec<Measurement>, jobs: u32) -> Result<(), Failure> {
        let plan = self.plan;
        let threads = pending.len().min(jobs as usize);
        let queue = Queue(Mutex::new(VecDeque::from(pending)));
        let (sender, receiver) = mpsc::sync_channel(threads);
        let mut failure = None;
        thread::scope(|scope| {
            for _ in 0..threads {
                let (queue, sender) = (&queue, sender.clone());
                scope.spawn(move || {
                    while let Some(measurement) = queue.begin_next(&sender) {
                        let result = measure_in_virtual_time(plan, measurement, &sender);
                        tell(&sender, Event::Ended(measurement, result));
                    }
                });
            }
            // The last of them ends the loop.
            drop(sender);
            for event in receiver {
                match event {
                    Event::Begun(measurement) => self.watch.begin(measurement),
                    Event::Progress(number, now) => self.watch.hear(number, now),
                    Event::Ended(measurement, result) => {
                        if let Err(error) = self.end(measurement, result) {
                            queue.clear();
                            failure.get_or_insert(error);
                        }
                    }
                }
            }
        });
        failure.map_or(Ok(()), Err)
    }

    /// Keeps what has come out, also that there is nothing: the others are measured all the same.
    ///
    /// # Errors
    ///
    /// If the run is to end, for it was interrupted, or the folder cannot be written.
    fn end(
        &mut self,
        measurement: Measurement,
        result: Result<TargetResult, Missing>,
    ) -> Result<(), Failure> {
        let Measurement { repetition, number, .. } = measurement;
        let target = measurement.target(self.plan);
        match result {
            Ok(result) => {
                self.watch.measured(number);
                self.folder.save(&result)?;
            }
            Err(Missing::Interrupted) => {
                self.watch.failed(number);
                return Err(Failure::new(Exit::Cancelled, "interrupted")
                    .or("start it again with the same folder, and it goes on"));
            }
            Err(Missing::Failed(why)) => {
                self.watch.failed(number);
                self.watch.say(&format!("{}, repetition {repetition}: {why}", target.name));
                self.folder.save_failure(target, repetition, &why)?;
                self.failed += 1;
            }
        }
        // Also of a run that is interrupted something can be read.
        self.summary = Some(write_reports(self.folder, self.plan)?);
        Ok(())
    }
}

/// Measurements that have not begun.
struct Queue(Mutex<VecDeque<Measurement>>);

impl Queue {
    /// Takes the next one and says so, in the order in which they are taken.
    fn begin_next(&self, events: &mpsc::SyncSender<Event>) -> Option<Measurement> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queue.pop_front()?;
        tell(events, Event::Begun(next));
        Some(next)
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Sends an event. Without a receiver the run has ended, and nothing is to be said any more.
fn tell(events: &mpsc::SyncSender<Event>, event: Event) {
    let _ = events.send(event);
}

/// Measures a target once. A panic of the engine is a result that failed; the targets after it are
/// measured all the same.
fn measure_in_virtual_time(
    plan: &Plan,
    measurement: Measurement,
    events: &mpsc::SyncSender<Event>,
) -> Result<TargetResult, Missing> {
    let Measurement { repetition, number, .. } = measurement;
    let mut at_second = |now| tell(events, Event::Progress(number, now));
    let run = AssertUnwindSafe(|| {
        virtual_time::run(plan, measurement.target(plan), repetition, &mut at_second)
    });
    match catch_unwind(run) {
        Ok(result) => result.map_err(|error| Missing::Failed(error.to_string())),
        Err(payload) => {
            // Where it was, the hook has printed.
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let what = text.unwrap_or("it does not say why");
            Err(Missing::Failed(format!("the engine has panicked: {what}")))
        }
    }
}

fn write_reports(folder: &Folder, plan: &Plan) -> Result<Summary, Failure> {
    // Those of an earlier run, too.
    let plan = &folder.as_run(plan.clone())?;
    let summary = Summary::of(folder, plan)?;
    folder.write(folder::FIGURES, report::csv(&summary).as_bytes())?;
    folder.write(folder::TABLE, report::table(&summary).as_bytes())?;
    let page = report::html(&summary, plan, &folder.machine()?);
    folder.write(folder::PAGE, page.as_bytes())?;
    Ok(summary)
}
