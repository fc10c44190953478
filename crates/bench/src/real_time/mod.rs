//! A plan on this machine: fio asks devices, forebay's daemon, or other servers over NBD, or
//! programs work on a file system that is mounted on them.
//!
//! Invariants:
//! - Everything that is started is ended again, whatever happens, and nothing else is.
//! - A device of the operator, or an export that is there already, is written to only if he has
//!   named it.
//! - Figures are fio's, of the daemon's status, or of `/proc`; or of a command that the plan names.
//!   What nobody counted is left out.
//!
//! Deliberately absent: quiet. Whoever wants figures sees to it that nothing else runs.

mod block_stat;
mod daemon;
mod device_counts;
mod fio;
mod hit_counts;
mod memory;
mod mount;
mod place;
mod server;
mod service;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::plan::{Act, Clock, Phase, Plan, Target};
use crate::progress::Progress;
use crate::result::{CacheCounts, DeviceCounts, PhaseResult, Sample, TargetResult, VERSION};
use block_stat::BlockStat;
use fio::Seen;
use memory::MemoryLimit;
use server::Server;
use service::Service;

const PAUSE: Duration = Duration::from_millis(20);
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Why a target cannot be measured in real time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealError {
    /// The operator has stopped it.
    #[error("interrupted")]
    Interrupted,
    /// A file cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A program cannot be started.
    #[error("cannot run {name}: {source}")]
    Start {
        /// With its arguments.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{name}: {what}: {messages}")]
    Program {
        /// With its arguments.
        name: String,
        /// What became of it.
        what: String,
        /// What it printed last.
        messages: String,
    },
    /// fio's output is not what is expected, or a job of it failed.
    #[error("{0}")]
    Fio(String),
    /// The daemon's status is not what is expected.
    #[error("status of forebay: {0}")]
    Status(String),
    /// A device cannot be used as the plan has it.
    #[error("device {name}: {what}")]
    Device {
        /// Which one.
        name: String,
        /// Why.
        what: String,
    },
    /// A device of the operator, or an export that is there already, that he has not named.
    #[error("{what}: what is on {place} would be lost; --overwrite {place} allows that")]
    Overwrite {
        /// What the plan calls it.
        what: String,
        /// Its path or URI.
        place: String,
    },
    /// The disk is too small.
    #[error(
        "{} has {} MiB free and {} are needed; --dir names another folder for devices",
        folder.display(), free_bytes >> 20, bytes >> 20
    )]
    Room {
        /// Where files were to be made.
        folder: PathBuf,
        /// What is free there.
        free_bytes: u64,
        /// What is needed.
        bytes: u64,
    },
}

impl RealError {
    fn file(path: &Path, source: std::io::Error) -> RealError {
        RealError::File { path: path.to_owned(), source }
    }
}

/// Says that somebody wants an end.
#[derive(Clone, Default, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// A flag that a handler of signals sets.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// An error once the flag is set.
    ///
    /// # Errors
    ///
    /// [`RealError::Interrupted`].
    pub fn check(&self) -> Result<(), RealError> {
        if self.0.load(Ordering::Relaxed) { Err(RealError::Interrupted) } else { Ok(()) }
    }
}

/// Where a plan is run.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The program `forebay`.
    pub program: &'a Path,
    /// For files in place of devices, and logs.
    pub folder: &'a Path,
    /// For sockets, whose names have to be short.
    pub sockets: &'a Path,
    /// Devices and exports, as the plan writes their paths and URIs, whose content may be lost.
    pub may_overwrite: &'a [String],
    /// Ends it early.
    pub interrupt: &'a Interrupt,
    /// Whether our daemons end with this process, however that ends. Not if a file system is on
    /// them, which is for the operator to unmount.
    pub ends_daemons: bool,
}

/// Measures a target once. `at_second` hears of each phase that begins, and of each second that has
/// passed in it.
///
/// # Errors
///
/// If something cannot be served or asked, or the operator has stopped it.
pub fn run(
    plan: &Plan,
    target: &Target,
    repetition: u32,
    ground: &Ground<'_>,
    at_second: &mut dyn FnMut(Progress),
) -> Result<TargetResult, RealError> {
    let started = Instant::now();
    let seed = plan.seed_of(repetition);
    let mut service = Service::begin(plan, target, ground)?;
    let devices = BlockStat::of(plan, target);
    let mut phases = Vec::new();
    let mine = plan.phases.iter().enumerate().filter(|(_, phase)| phase.is_for(target));
    for (place, phase) in mine {
        if phase.begins_fresh {
            service.end()?;
            service = Service::begin(plan, target, ground)?;
        }
        for act in &phase.begins_with {
            match act {
                Act::DropPageCache => drop_page_cache()?,
                Act::Kill => service.again(ground, Server::kill)?,
                Act::Restart => service.again(ground, Server::stop)?,
            }
        }
        let (service, samples) = (&mut service, Vec::new());
        let devices = &devices;
        let mut work = Work { target, phase, place, seed, ground, devices, service, samples };
        phases.push(work.run(at_second)?);
    }
    service.end()?;
    Ok(TargetResult {
        version: VERSION,
        target: target.name.clone(),
        repetition,
        clock: Clock::Real,
        wall_s: started.elapsed().as_secs_f64(),
        phases,
    })
}

/// By so much fio may end before or after a second is over that it worked all of. Chosen: it is
/// some milliseconds.
const LATE_S: f64 = 0.05;

/// Seconds that have samples, of a phase that took so long: a part of a second, in the end, would
/// look like a slow one. The time that fio waits for the last answers when that of the phase is
/// over has none.
fn whole_seconds(phase: &Phase, seconds: f64) -> usize {
    let whole = (seconds + LATE_S) as usize;
    phase.seconds.map_or(whole, |most| whole.min(most as usize))
}

/// What is clean in the page cache is forgotten.
fn drop_page_cache() -> Result<(), RealError> {
    rustix::fs::sync();
    // See proc_sys_vm(5): 3 is for pages, and for names and inodes.
    let path = Path::new(DROP_CACHES);
    std::fs::write(path, "3").map_err(|error| RealError::file(path, error))
}

/// A phase at work.
struct Work<'a> {
    target: &'a Target,
    phase: &'a Phase,
    /// In the plan.
    place: usize,
    seed: u64,
    ground: &'a Ground<'a>,
    devices: &'a BlockStat,
    service: &'a mut Service,
    samples: Vec<Sample>,
}

impl Work<'_> {
    fn run(&mut self, at_second: &mut dyn FnMut(Progress)) -> Result<PhaseResult, RealError> {
        at_second(self.progress());
        let hits_before = hit_counts::ask(self.hit_counts())?;
        let before = self.service.counts(self.ground)?;
        let cpu_before_s = self.service.cpu_s()?;
        let devices_before = self.device_counts()?;
        let limit = self.phase.memory_max.map(MemoryLimit::make).transpose()?;
        let (mut seen, mut lasted_s, mut runs_s) = (Seen::new(self.phase), 0.0, Vec::new());
        for time in 0..self.phase.times {
            if time > 0 && self.phase.begins_with.contains(&Act::DropPageCache) {
                drop_page_cache()?;
            }
            let first = self.samples.len();
            let seconds = if !self.phase.program.is_empty() {
                let seconds = self.run_program(limit.as_ref(), at_second)?;
                runs_s.push(seconds);
                seconds
            } else if self.phase.jobs.is_empty() {
                self.pause(at_second)?
            } else {
                self.ask(&mut seen, at_second)?
            };
            self.samples.truncate(first + whole_seconds(self.phase, seconds));
            lasted_s += seconds;
        }
        let mut requests = seen.per_second.iter();
        for sample in &mut self.samples {
            sample.requests = requests.next().copied().unwrap_or_default();
        }
        let cache = match (before, self.service.counts(self.ground)?) {
            (Some(before), Some(after)) => Some(after.since(&before)),
            _ => None,
        };
        let devices = block_stat::between(&devices_before, self.device_counts()?);
        let cpu_s = self.service.cpu_s()? - cpu_before_s;
        // The last: who is asked may take a while, in which others do something.
        let hits_after = hit_counts::ask(self.hit_counts())?;
        Ok(PhaseResult {
            name: self.phase.name.clone(),
            is_preparation: self.phase.is_preparation,
            seconds: lasted_s,
            jobs: seen.jobs(),
            runs_s,
            samples: std::mem::take(&mut self.samples),
            cache,
            hit_counts: hits_after.zip(hits_before).map(|(after, before)| after.since(before)),
            devices,
            cpu_s,
        })
    }

    /// What devices of the target did so far: block devices as the kernel has it, the others as our
    /// daemons have it.
    fn device_counts(&self) -> Result<Vec<DeviceCounts>, RealError> {
        let mut counts = self.devices.counts()?;
        let others = self.service.device_counts(self.ground)?;
        let is_new = |other: &DeviceCounts| counts.iter().all(|known| known.name != other.name);
        let others: Vec<DeviceCounts> = others.into_iter().filter(is_new).collect();
        counts.extend(others);
        Ok(counts)
    }

    /// Who is to be asked what the cache of somebody else has counted: nobody, if it is not for the
    /// report.
    fn hit_counts(&self) -> &[String] {
        if self.phase.is_measured() { &self.target.hit_counts } else { &[] }
    }

    /// Does nothing for the time of the phase.
    fn pause(&mut self, at_second: &mut dyn FnMut(Progress)) -> Result<f64, RealError> {
        let mut watch = Watch::begin(self.service, self.ground)?;
        let seconds = self.phase.seconds.unwrap_or_default() as f64;
        while watch.began.elapsed().as_secs_f64() < seconds {
            self.ground.interrupt.check()?;
            std::thread::sleep(PAUSE);
            self.look(&mut watch, at_second)?;
        }
        Ok(seconds)
    }

    /// Lets fio do the jobs of the phase once, and returns how long that took, in seconds.
    fn ask(
        &mut self,
        seen: &mut Seen,
        at_second: &mut dyn FnMut(Progress),
    ) -> Result<f64, RealError> {
        let folder = self.ground.folder;
        let jobs = folder.join(fio::JOBS);
        let text = fio::jobs(self.phase, &self.service.endpoint(), self.seed)?;
        std::fs::write(&jobs, text).map_err(|error| RealError::file(&jobs, error))?;
        let mut command = Command::new("fio");
        command.args(["--output-format=json+", &format!("--output={}", fio::OUTPUT), fio::JOBS]);
        let mut watch = Watch::begin(self.service, self.ground)?;
        let ended = self.await_end(&mut command, &mut watch, at_second)?;
        if !ended.status.success() {
            let output = std::fs::read_to_string(folder.join(fio::OUTPUT)).unwrap_or_default();
            return Err(ended.failed(output.split('{').next().unwrap_or_default()));
        }
        let seconds = seen.add(folder, self.phase)?;
        self.complete(&mut watch, seconds)?;
        Ok(seconds)
    }

    /// Runs the program of the phase once, and returns how long that took, in seconds.
    fn run_program(
        &mut self,
        limit: Option<&MemoryLimit>,
        at_second: &mut dyn FnMut(Progress),
    ) -> Result<f64, RealError> {
        let mount = self.service.folder().expect("a plan that was checked").display().to_string();
        let folder = self.ground.folder.display().to_string();
        let fill_in = |word: &String| word.replace("{mount}", &mount).replace("{folder}", &folder);
        let words: Vec<String> = self.phase.program.iter().map(fill_in).collect();
        let mut command = match limit {
            Some(limit) => limit.command(&words),
            None => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
        };
        let mut watch = Watch::begin(self.service, self.ground)?;
        let ended = self.await_end(&mut command, &mut watch, at_second)?;
        let seconds = watch.began.elapsed().as_secs_f64();
        if !ended.status.success() {
            return Err(ended.failed(""));
        }
        self.complete(&mut watch, seconds)?;
        Ok(seconds)
    }

    /// Lets a command do its work, whose messages go to a log in the folder of the devices.
    fn await_end(
        &mut self,
        command: &mut Command,
        watch: &mut Watch,
        at_second: &mut dyn FnMut(Progress),
    ) -> Result<Ended, RealError> {
        let folder = self.ground.folder;
        let name = server::describe(command);
        let messages = folder.join("client.log");
        let log =
            std::fs::File::create(&messages).map_err(|error| RealError::file(&messages, error))?;
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut client = server::Client::start(command)?;
        loop {
            if let Some(status) = client.ended()? {
                return Ok(Ended { name, status, messages });
            }
            self.ground.interrupt.check()?;
            self.service.check()?;
            std::thread::sleep(PAUSE);
            self.look(watch, at_second)?;
        }
    }

    /// The last second may have ended with the client.
    fn complete(&mut self, watch: &mut Watch, seconds: f64) -> Result<(), RealError> {
        while watch.samples < whole_seconds(self.phase, seconds) as u64 {
            self.sample(watch)?;
        }
        Ok(())
    }

    /// Takes a sample if a second has passed.
    fn look(
        &mut self,
        watch: &mut Watch,
        at_second: &mut dyn FnMut(Progress),
    ) -> Result<(), RealError> {
        if watch.began.elapsed().as_secs() > watch.samples {
            self.sample(watch)?;
            at_second(self.progress());
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        // fio needs a moment to begin and to end.
        let most = self.phase.lasts_s().unwrap_or(u64::MAX);
        Progress { place: self.place, second: (self.samples.len() as u64).min(most) }
    }

    fn sample(&mut self, watch: &mut Watch) -> Result<(), RealError> {
        watch.samples += 1;
        let now = self.service.counts(self.ground)?;
        let second = self.samples.len() as u64 + 1;
        self.samples.push(match (watch.last, now) {
            (Some(before), Some(now)) => Sample {
                second,
                requests: 0,
                hit_ratio: now.since(&before).hit_ratio(),
                dirty_bytes: now.dirty_bytes,
            },
            _ => Sample { second, ..Sample::default() },
        });
        watch.last = now;
        Ok(())
    }
}

/// A client that has ended.
struct Ended {
    name: String,
    status: std::process::ExitStatus,
    messages: PathBuf,
}

impl Ended {
    /// Why it failed; `notes` stand beside its messages.
    fn failed(self, notes: &str) -> RealError {
        let messages = std::fs::read_to_string(&self.messages).unwrap_or_default();
        let messages = format!("{} {}", messages.trim(), notes.trim()).trim().to_owned();
        RealError::Program {
            name: self.name,
            what: format!("ended with {}", self.status),
            messages,
        }
    }
}

/// Samples of one run of a client, or of a pause.
struct Watch {
    began: Instant,
    /// Seconds that were looked at.
    samples: u64,
    last: Option<CacheCounts>,
}

impl Watch {
    fn begin(service: &Service, ground: &Ground<'_>) -> Result<Watch, RealError> {
        let last = service.counts(ground)?;
        Ok(Watch { began: Instant::now(), samples: 0, last })
    }
}

#[cfg(test)]
impl<'a> Ground<'a> {
    /// With no program to run.
    fn of_test(folder: &'a Path, interrupt: &'a Interrupt) -> Ground<'a> {
        let program = Path::new("/nonexistent/forebay");
        let ends_daemons = true;
        Ground { program, folder, sockets: folder, may_overwrite: &[], interrupt, ends_daemons }
    }
}
