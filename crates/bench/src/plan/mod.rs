//! What is to be measured: devices, targets on them, and the work that they are given.
//!
//! A plan is a TOML file. Every target does the phases in their order, each time on fresh devices;
//! `only` keeps a phase to some targets. Sizes are written as `"4G"`, the letters being powers of
//! 1024. What a plan does not say is what its type says here; a word that is not known is an error,
//! not something to be ignored.

mod bound;
mod check;
mod fio_file;
mod models;

use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize};

pub use bound::{Bound, Figure, Limit, Measure};
pub use check::PlanError;
pub use models::{Preset, model};

/// A plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// One line for `bench list`.
    pub about: String,
    /// Whose experiment it repeats, and what was published; shown in the report.
    #[serde(default)]
    pub source: String,
    /// In which time it runs unless the operator says otherwise.
    pub clock: Clock,
    /// How often each target is measured.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Decides all that is random. Each repetition has its own.
    #[serde(default = "one")]
    pub seed: u32,
    /// Processor time of the daemon for a request, in nanoseconds: what virtual time adds to each,
    /// one request at a time, as a shard does. From a real run of the same work.
    #[serde(default)]
    pub cpu_ns_per_request: u64,
    /// Whether processor time is that of the whole machine, in real time: caches in the kernel have
    /// no process whose time would be theirs.
    #[serde(default)]
    pub is_cpu_of_machine: bool,
    /// A file system that is made on every target and mounted, for real time: programs work on it,
    /// and jobs on a file of it.
    #[serde(default)]
    pub file_system: Option<FileSystem>,
    /// Devices, by name.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
    /// What is measured.
    #[serde(rename = "target")]
    pub targets: Vec<Target>,
    /// What each target does, in this order.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
    /// Figures of others, to stand beside ours.
    #[serde(default, rename = "published")]
    pub published: Vec<Published>,
    /// What its figures have to be.
    #[serde(default, rename = "bound")]
    pub bounds: Vec<Bound>,
}

/// Which time passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// This machine's; fio asks a daemon.
    Real,
    /// That of models of devices.
    Virtual,
}

impl Clock {
    /// As the report has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Clock::Real => "real",
            Clock::Virtual => "virtual",
        }
    }
}

/// A file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of the file systems")]
pub enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// As `mount` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
        }
    }
}

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What targets call it.
    pub name: String,
    /// What it is like in virtual time, and how slow it is made in real time.
    #[serde(default)]
    pub preset: Option<Preset>,
    /// A file or block device of this machine, for real time. Without it a file is made.
    #[serde(default)]
    pub path: Option<String>,
    /// How large it is.
    #[serde(deserialize_with = "size")]
    pub size: u64,
    /// On a disk that turns: where the device begins, in one piece. Without it the device is spread
    /// over the whole disk, as a volume on a full disk is.
    #[serde(default, deserialize_with = "some_size")]
    pub at: Option<u64>,
    /// On a disk that turns: parts of equal size, each of which is spread over the whole disk, as
    /// files on a full one are. Without it there is one.
    #[serde(default)]
    pub files: Option<u32>,
    /// On a disk that turns: commands that it takes at once; 1 is a disk without command queueing.
    #[serde(default)]
    pub queue_depth: Option<usize>,
}

/// What is measured.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Short, for `only` and for names of files.
    pub name: String,
    /// For people; the name if there is none.
    #[serde(default)]
    pub title: Option<String>,
    /// A bare device.
    #[serde(default)]
    pub device: Option<String>,
    /// In real time such a device is reached over NBD, as a cache of ours is: what that costs is
    /// then on both sides of a comparison. Slow ones always are, and all that carry a file system.
    #[serde(default)]
    pub is_served: bool,
    /// Of a device that somebody has set up as a cache: the device that it caches on. The kernel
    /// counts what it does.
    #[serde(default)]
    pub cache: Option<String>,
    /// The same of the device that it caches.
    #[serde(default)]
    pub origin: Option<String>,
    /// The command, word by word, that prints how many reads that cache has served so far, and how
    /// many it could not: two numbers, of requests or bytes. It is asked before a phase and after.
    #[serde(default)]
    pub hit_counts: Vec<String>,
    /// forebay in front of a device.
    #[serde(default)]
    pub forebay: Option<Forebay>,
    /// The URI of an NBD export of somebody else, for real time.
    #[serde(default)]
    pub nbd: Option<String>,
    /// The command that serves it, word by word; without it, it is there already, and written to
    /// only if the operator has named its URI. In it and in the URI `{socket}` stands for a path
    /// for a Unix socket, and `{NAME}` for a device: its path, or the URI of a slow one.
    #[serde(default)]
    pub command: Vec<String>,
}

impl Target {
    /// What people call it.
    #[must_use]
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(&self.name)
    }

    /// Devices that it is made of: the one that it caches on, and the one that it caches, or that
    /// it is. Nothing is known of servers of others.
    #[must_use]
    pub fn parts(&self) -> (Option<&str>, Option<&str>) {
        match &self.forebay {
            Some(forebay) => (Some(&forebay.cache), Some(&forebay.origin)),
            None => (self.cache.as_deref(), self.origin.as_deref().or(self.device.as_deref())),
        }
    }
}

/// A volume with a cache.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forebay {
    /// The device of the cache.
    pub cache: String,
    /// How much of it is the cache; all of it unless said.
    #[serde(default, deserialize_with = "some_size")]
    pub cache_size: Option<u64>,
    /// The device behind it.
    pub origin: String,
    /// Cache mode.
    pub mode: Mode,
    /// Settings other than the defaults, as `forebay set` has them.
    #[serde(default)]
    pub set: std::collections::BTreeMap<String, String>,
    /// Processor time for a request, other than the plan has it: of a slower processor, say.
    #[serde(default)]
    pub cpu_ns_per_request: Option<u64>,
}

/// A cache mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names are those of the modes")]
pub enum Mode {
    Writeback,
    Writethrough,
    Writearound,
    Writeonly,
    Passthrough,
}

impl Mode {
    /// As `forebay attach` has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Writearound => "writearound",
            Mode::Writeonly => "writeonly",
            Mode::Passthrough => "passthrough",
        }
    }
}

/// Something that a target does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// What the report calls it.
    pub name: String,
    /// Targets that do it; all of them unless said.
    #[serde(default)]
    pub only: Vec<String>,
    /// How long it lasts. Without it, until every job has done what `amount` says.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// How often its jobs do all that they do, each time from the start, as fio that is run again;
    /// or how often its program is run.
    #[serde(default = "one")]
    pub times: u32,
    /// Whether it begins on fresh devices, with an empty cache.
    #[serde(default)]
    pub begins_fresh: bool,
    /// What is done to what serves before its jobs begin, in this order. Of several times, only the
    /// page cache is dropped before each.
    #[serde(default)]
    pub begins_with: Vec<Act>,
    /// It only makes ready what is measured after it.
    #[serde(default)]
    pub is_preparation: bool,
    /// Clients that work at the same time. None, and no program: the phase is a pause.
    #[serde(default, rename = "job")]
    pub jobs: Vec<Job>,
    /// A job file of fio beside the plan, which says what the jobs are and how long they last.
    #[serde(default)]
    pub fio: Option<String>,
    /// A program that works on the mounted file system instead of jobs, word by word. In it
    /// `{mount}` stands for where that is, and `{folder}` for a folder elsewhere on the disk of
    /// this machine, which all targets of a run have in common.
    #[serde(default)]
    pub program: Vec<String>,
    /// How much memory the program may have, with the page cache of what it reads and writes.
    #[serde(default, deserialize_with = "some_size")]
    pub memory_max: Option<u64>,
}

impl Plan {
    /// Whether measuring a target changes what is on it: by a new file system, or by writes.
    #[must_use]
    pub fn writes_to(&self, target: &Target) -> bool {
        let writes = |phase: &Phase| phase.jobs.iter().any(|job| job.work != Work::Read);
        let mut phases = self.phases.iter().filter(|phase| phase.is_for(target));
        self.file_system.is_some() || phases.any(writes)
    }
}

impl Phase {
    /// Whether there is something to be measured in it, and not only a pause.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.jobs.is_empty() || !self.program.is_empty()
    }

    /// Whether it ends when all of its work is done, if not before: of every job it is known how
    /// much that is.
    #[must_use]
    pub fn ends_with_its_work(&self) -> bool {
        self.has_work() && self.jobs.iter().all(|job| job.amount.is_some())
    }

    /// Whether it has figures: there is work in it, and not only to make ready.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        !self.is_preparation && self.has_work()
    }

    /// Seconds of the clock that it lasts with all its times; `None` if it ends with its work.
    #[must_use]
    pub fn lasts_s(&self) -> Option<u64> {
        Some(self.seconds?.saturating_mul(self.times.into()))
    }

    /// Of each client the group of those that do alike work for the same time, by a number: these
    /// can be held against each other. `None` for one that ends with its work.
    #[must_use]
    pub fn groups(&self) -> Vec<Option<u32>> {
        let mut known: Vec<Job> = Vec::new();
        let group = |client: Job| {
            let alike = Job { name: String::new(), offset: 0, ..client };
            let place = known.iter().position(|other| *other == alike).unwrap_or_else(|| {
                known.push(alike.clone());
                known.len() - 1
            });
            alike.amount.is_none().then_some(place as u32)
        };
        self.jobs.iter().flat_map(Job::clients).map(group).collect()
    }

    /// Whether a target does it.
    #[must_use]
    pub fn is_for(&self, target: &Target) -> bool {
        self.only.is_empty() || self.only.contains(&target.name)
    }
}

/// Something that is done to what serves. Bare devices, and servers of others, are left alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// The page cache of this machine is emptied. Virtual time has none.
    DropPageCache,
    /// The daemon is killed as a crash would, and serves again.
    Kill,
    /// The daemon ends in order, and serves again.
    Restart,
}

/// A client that keeps a number of requests in flight.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What the report calls it.
    pub name: String,
    /// What it asks for.
    pub work: Work,
    /// Where.
    pub pattern: Pattern,
    /// Exponent of Zipf's law, for that pattern.
    #[serde(default)]
    pub theta: Option<f64>,
    /// First byte of its range.
    #[serde(default, deserialize_with = "size")]
    pub offset: u64,
    /// Length of its range.
    #[serde(deserialize_with = "size")]
    pub size: u64,
    /// Bytes of a request.
    #[serde(default = "block", deserialize_with = "size")]
    pub block: u64,
    /// Requests in flight.
    #[serde(default = "one")]
    pub depth: u32,
    /// How many such clients there are, each with random numbers of its own.
    #[serde(default = "one")]
    pub count: u32,
    /// Whether each of them has a range of its own, one behind the other.
    #[serde(default)]
    pub is_apart: bool,
    /// Of a mix, how many of a hundred requests read.
    #[serde(default)]
    pub read_percent: Option<u8>,
    /// Bytes after which it ends.
    #[serde(default, deserialize_with = "some_size")]
    pub amount: Option<u64>,
    /// A flush after so many writes; zero: none.
    #[serde(default)]
    pub flush_every: u32,
    /// Microseconds from each answer to the next request: of a client that does something with what
    /// it got.
    #[serde(default)]
    pub think_us: u64,
    /// Whether a phase with the same job asks for the same offsets again, as fio does unless it is
    /// told `randrepeat=0`.
    #[serde(default = "yes")]
    pub repeats_offsets: bool,
}

impl Job {
    /// The clients that it stands for, each as a job of its own.
    pub fn clients(&self) -> impl Iterator<Item = Job> + '_ {
        (0..self.count).map(|index| {
            let number = if self.count > 1 { format!(" {}", index + 1) } else { String::new() };
            let distance = if self.is_apart { self.size * u64::from(index) } else { 0 };
            let name = format!("{}{number}", self.name);
            Job { name, offset: self.offset + distance, count: 1, ..self.clone() }
        })
    }

    /// End of all ranges.
    fn end(&self) -> Option<u64> {
        let ranges = if self.is_apart { u64::from(self.count) } else { 1 };
        self.size.checked_mul(ranges)?.checked_add(self.offset)
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both, by `read_percent`.
    Mix,
}

/// Where the next request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Everywhere equally likely.
    Uniform,
    /// By Zipf's law with `theta`, ranks scattered over the range.
    Zipf,
    /// One after another, from the start again at the end.
    Sequential,
}

/// What somebody published of the same experiment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What was measured.
    pub title: String,
    /// The phase that it stands beside; all of them unless said.
    #[serde(default)]
    pub phase: Option<String>,
    /// How long the phase lasted, in seconds.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Requests a second.
    #[serde(default)]
    pub iops: Option<f64>,
    /// The same at the beginning of the phase.
    #[serde(default)]
    pub first_iops: Option<f64>,
    /// The same at its end.
    #[serde(default)]
    pub last_iops: Option<f64>,
    /// Mean time of a run of the program, in seconds.
    #[serde(default)]
    pub run_s: Option<f64>,
    /// The same of the first run.
    #[serde(default)]
    pub first_run_s: Option<f64>,
    /// Hit ratio, 0 to 1.
    #[serde(default)]
    pub hit_ratio: Option<f64>,
    /// Median latency in microseconds, of the job that fared worst.
    #[serde(default)]
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in microseconds, of the job that fared worst.
    #[serde(default)]
    pub p99_us: Option<f64>,
    /// Requests of the slowest of several equal jobs over those of the fastest.
    #[serde(default)]
    pub fairness: Option<f64>,
    /// Anything else.
    #[serde(default)]
    pub remark: String,
}

/// A plan, and the texts that it was read from.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// The plan.
    pub plan: Plan,
    /// Its text.
    pub text: String,
    /// The files beside it that it names, with their texts.
    pub files: Vec<(String, String)>,
}

impl Source {
    /// Reads a plan, and what it needs beside it.
    ///
    /// # Errors
    ///
    /// As [`Plan::read`].
    pub fn read(path: &Path) -> Result<Source, PlanError> {
        let text = read(path)?;
        let mut files = Vec::new();
        let mut beside = |name: &str| {
            let text = read(&path.with_file_name(name))?;
            files.push((name.to_owned(), text.clone()));
            Ok(text)
        };
        let plan = Plan::parse_with(&text, &mut beside).map_err(|error| error.in_file(path))?;
        Ok(Source { plan, text, files })
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is no TOML, has words that are not known, or does not make sense; the
    /// error says where.
    pub fn read(path: &Path) -> Result<Plan, PlanError> {
        Source::read(path).map(|source| source.plan)
    }

    /// Reads the text of a plan.
    ///
    /// # Errors
    ///
    /// As [`Plan::read`].
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        Plan::parse_with(text, &mut |name| Err(PlanError::NoFolder(name.to_owned())))
    }

    /// Reads the text of a plan; `beside` reads files that lie beside it.
    fn parse_with(
        text: &str,
        beside: &mut dyn FnMut(&str) -> Result<String, PlanError>,
    ) -> Result<Plan, PlanError> {
        let mut plan: Plan = toml::from_str(text)?;
        for phase in &mut plan.phases {
            if let Some(name) = &phase.fio {
                let name = check::plain_name(name)?;
                let file = fio_file::read(&beside(name)?)
                    .map_err(|what| PlanError::Sense { place: name.to_owned(), what })?;
                if !phase.jobs.is_empty() {
                    let what = "jobs are of the plan or of a job file".to_owned();
                    return Err(PlanError::Sense { place: format!("phase {}", phase.name), what });
                }
                phase.jobs = file.jobs;
                phase.seconds = phase.seconds.or(file.seconds);
            }
        }
        plan.check()?;
        Ok(plan)
    }

    /// What decides all that is random in a repetition.
    pub(crate) fn seed_of(&self, repetition: u32) -> u64 {
        u64::from(self.seed) << 32 | u64::from(repetition)
    }

    /// A device by its name; plans are checked for that.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn device(&self, name: &str) -> &Device {
        let mut devices = self.devices.iter();
        devices.find(|device| device.name == name).expect("a plan that was checked")
    }
}

fn read(path: &Path) -> Result<String, PlanError> {
    let failed = |source| PlanError::Read { path: path.to_owned(), source };
    std::fs::read_to_string(path).map_err(failed)
}

fn one() -> u32 {
    1
}

fn block() -> u64 {
    4096
}

fn yes() -> bool {
    true
}

fn size<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    some_size(input)?.ok_or_else(|| serde::de::Error::custom("a size"))
}

/// A size as text, or a number of bytes.
fn some_size<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Option::<Size>::deserialize(input)? {
        None => Ok(None),
        Some(Size::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Size::Text(text)) => {
            crate::size::parse(&text).map(Some).map_err(serde::de::Error::custom)
        }
    }
}
