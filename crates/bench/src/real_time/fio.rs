//! fio: the client in real time. A phase becomes a job file; figures come from fio's histograms and
//! its log of requests a second.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use serde::Deserialize;

use super::{LATE_S, RealError, whole_seconds};
use crate::plan::{Job, Pattern, Phase, Work};
use crate::result::{JobResult, Latency};

/// Where requests go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    /// A file or block device, past the page cache.
    Device(PathBuf),
    /// An NBD export.
    Nbd(String),
}

/// Name of the job file.
pub(super) const JOBS: &str = "jobs.fio";
/// Name of fio's JSON.
pub(super) const OUTPUT: &str = "fio.json";
/// Beginning of the names of its logs.
const LOG: &str = "bench";
/// Latencies are kept to three digits; fio's own histograms have two and a half.
const DIGITS: u8 = 3;

/// The text of a job file. `seed` is for requests that are to be repeated.
pub(super) fn jobs(phase: &Phase, endpoint: &Endpoint, seed: u64) -> Result<String, RealError> {
    let mut text = String::from("[global]\nthread=1\n");
    match endpoint {
        Endpoint::Device(path) => {
            // A colon is between several names, unless there is a backslash before it.
            let name = as_value(&path.display().to_string())?.replace(':', "\\:");
            let _ = writeln!(text, "ioengine=io_uring\ndirect=1\nfilename={name}");
        }
        Endpoint::Nbd(uri) => {
            let _ = writeln!(text, "ioengine=nbd\nuri={}", as_value(uri)?);
        }
    }
    // Latency from submission on: over NBD much of a short request passes while it is submitted,
    // which fio's completion latency leaves out.
    let _ = writeln!(text, "lat_percentiles=1\nclat_percentiles=0");
    let _ = writeln!(text, "write_iops_log={LOG}\nlog_avg_msec=1000");
    for job in phase.jobs.iter().flat_map(Job::clients) {
        let _ = writeln!(text, "\n[{}]", job.name);
        let _ = writeln!(text, "rw={}", pattern(&job));
        if let Some(percent) = job.read_percent {
            let _ = writeln!(text, "rwmixread={percent}");
        }
        if job.pattern != Pattern::Sequential {
            text.push_str("norandommap=1\n");
        }
        if let Some(theta) = job.theta {
            // Left to itself, fio chooses the most wanted block anew for each job and seed.
            let _ = writeln!(text, "random_distribution=zipf:{theta}:0");
        }
        let Job { offset, size, block, depth, flush_every, .. } = job;
        let _ = writeln!(text, "offset={offset}\nsize={size}\nbs={block}\niodepth={depth}");
        if flush_every > 0 {
            let _ = writeln!(text, "fsync={flush_every}");
        }
        if job.think_us > 0 {
            let _ = writeln!(text, "thinktime={}", job.think_us);
        }
        if job.repeats_offsets {
            let _ = writeln!(text, "randrepeat=1\nrandseed={seed}");
        } else {
            text.push_str("randrepeat=0\n");
        }
        if let Some(amount) = job.amount {
            let _ = writeln!(text, "io_size={amount}");
        }
        if let Some(seconds) = phase.seconds {
            let _ = writeln!(text, "runtime={seconds}");
            if job.amount.is_none() {
                text.push_str("time_based=1\n");
            }
        }
    }
    Ok(text)
}

/// A value of a job file. What fio would cut, or put something else for, is refused: the rest may
/// be the name of another file, which would be written to.
fn as_value(value: &str) -> Result<&str, RealError> {
    if value.trim() == value && !value.contains([';', '#', '\n', '\\']) && !value.contains("${") {
        return Ok(value);
    }
    let what = "has a character that fio does not take: `;`, `#`, `\\`, `${` or a space at an end";
    Err(RealError::Fio(format!("{value} {what}; give the device or folder another name")))
}

fn pattern(job: &Job) -> &'static str {
    match (job.pattern, job.work) {
        (Pattern::Sequential, Work::Read) => "read",
        (Pattern::Sequential, Work::Write) => "write",
        (Pattern::Sequential, Work::Mix) => "rw",
        (Pattern::Uniform | Pattern::Zipf, Work::Read) => "randread",
        (Pattern::Uniform | Pattern::Zipf, Work::Write) => "randwrite",
        (Pattern::Uniform | Pattern::Zipf, Work::Mix) => "randrw",
    }
}

/// What the clients of a phase saw, of one run of fio or several.
pub(super) struct Seen {
    clients: Vec<Client>,
    /// Requests that ended in each second, of all.
    pub(super) per_second: Vec<u64>,
}

struct Client {
    name: String,
    group: Option<u32>,
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    bytes: u64,
}

impl Client {
    /// That have ended.
    fn requests(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }
}

/// The parts of fio's JSON that are used.
#[derive(Deserialize)]
struct Document {
    jobs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    /// Milliseconds.
    runtime: u64,
    lat_ns: Latencies,
}

#[derive(Deserialize)]
struct Latencies {
    /// How many requests took how many nanoseconds.
    #[serde(default)]
    bins: std::collections::BTreeMap<String, u64>,
}

impl Seen {
    /// Nothing yet.
    pub(super) fn new(phase: &Phase) -> Seen {
        let histogram = || Histogram::new(DIGITS).expect("three digits are allowed");
        let client = |(job, group): (Job, Option<u32>)| {
            let (reads, writes) = (histogram(), histogram());
            Client { name: job.name, group, reads, writes, bytes: 0 }
        };
        let jobs = phase.jobs.iter().flat_map(Job::clients);
        let clients = jobs.zip(phase.groups()).map(client).collect();
        Seen { clients, per_second: Vec::new() }
    }

    /// Adds what a run left in `folder`, removes its logs, and returns how long the run took, in
    /// seconds.
    pub(super) fn add(&mut self, folder: &Path, phase: &Phase) -> Result<f64, RealError> {
        let path = folder.join(OUTPUT);
        let text = std::fs::read_to_string(&path).map_err(|error| RealError::file(&path, error))?;
        let before: Vec<u64> = self.clients.iter().map(Client::requests).collect();
        let lasted_s = self.add_document(&text)?;
        let seconds = lasted_s.iter().copied().fold(0.0, f64::max);
        let mut per_second = vec![0; whole_seconds(phase, seconds)];
        for (index, client) in self.clients.iter().enumerate() {
            let path = folder.join(format!("{LOG}_iops.{}.log", index + 1));
            let log =
                std::fs::read_to_string(&path).map_err(|error| RealError::file(&path, error))?;
            let mut own = vec![0; per_second.len()];
            add_log(&log, &mut own)?;
            complete_last(&mut own, client.requests() - before[index], lasted_s[index]);
            per_second.iter_mut().zip(own).for_each(|(sum, requests)| *sum += requests);
            std::fs::remove_file(&path).map_err(|error| RealError::file(&path, error))?;
        }
        self.per_second.extend(per_second);
        Ok(seconds)
    }

    /// Adds the figures of a document of fio, and returns how long each client took, in seconds.
    fn add_document(&mut self, text: &str) -> Result<Vec<f64>, RealError> {
        let unknown = |what: &str| RealError::Fio(what.to_owned());
        // Notes may stand before the document.
        let start = text.find('{').ok_or_else(|| unknown("fio printed no JSON"))?;
        let document: Document = serde_json::from_str(&text[start..])
            .map_err(|error| RealError::Fio(format!("fio's JSON is not understood: {error}")))?;
        if document.jobs.len() != self.clients.len() {
            return Err(unknown("fio did not run all jobs"));
        }
        let mut lasted_s = Vec::new();
        for (client, entry) in self.clients.iter_mut().zip(&document.jobs) {
            if entry.error != 0 {
                let error = std::io::Error::from_raw_os_error(entry.error as i32);
                return Err(RealError::Fio(format!("job {}: {error}", client.name)));
            }
            let longest_ms = entry.read.runtime.max(entry.write.runtime);
            lasted_s.push(longest_ms as f64 / 1e3);
            for (direction, histogram) in
                [(&entry.read, &mut client.reads), (&entry.write, &mut client.writes)]
            {
                client.bytes += direction.io_bytes;
                for (key, count) in &direction.lat_ns.bins {
                    let nanoseconds = key
                        .parse()
                        .map_err(|_| unknown("fio's JSON has a bin that is no number"))?;
                    let recorded = histogram.record_n(nanoseconds, *count);
                    recorded.expect("the histogram grows by itself");
                }
            }
        }
        Ok(lasted_s)
    }

    /// What each client saw.
    pub(super) fn jobs(&self) -> Vec<JobResult> {
        let job = |client: &Client| JobResult {
            name: client.name.clone(),
            reads: client.reads.len(),
            writes: client.writes.len(),
            bytes: client.bytes,
            read_latency: Latency::of(&client.reads),
            write_latency: Latency::of(&client.writes),
            group: client.group,
        };
        self.clients.iter().map(job).collect()
    }
}

/// Adds a log of averages over a second: time in ms, requests a second, direction, and more. A
/// second without a line is one in which nothing ended.
fn add_log(log: &str, per_second: &mut [u64]) -> Result<(), RealError> {
    for line in log.lines() {
        let mut fields = line.split(',').map(str::trim);
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let (Some(time_ms), Some(value)) = (number(), number()) else {
            return Err(RealError::Fio(format!("fio's log has a line that is no figure: {line}")));
        };
        // The line of a second is written at its end, give or take some milliseconds.
        let end = ((time_ms + 500) / 1000) as usize;
        if let Some(sum) = end.checked_sub(1).and_then(|second| per_second.get_mut(second)) {
            *sum += value;
        }
    }
    Ok(())
}

/// fio writes no line of the second in which a client ends, and none of the one before if it ends a
/// moment after: what the log of a client that took so many seconds leaves out of its requests
/// ended then.
fn complete_last(per_second: &mut [u64], requests: u64, seconds: f64) {
    let logged: u64 = per_second.iter().sum();
    let last = ((seconds - LATE_S).ceil() as usize).min(per_second.len());
    let last = last.checked_sub(1).and_then(|last| per_second.get_mut(last));
    if let Some(last) = last.filter(|last| **last == 0) {
        *last = requests.saturating_sub(logged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    const PLAN: &str = r#"
        about = "a test"
        clock = "real"
        [[device]]
        name = "ssd"
        size = "1G"
        [[target]]
        name = "ssd"
        device = "ssd"
        [[phase]]
        name = "all"
        seconds = 10
        [[phase.job]]
        name = "reads"
        work = "read"
        pattern = "zipf"
        theta = 1.2
        size = "256M"
        depth = 8
        count = 2
        is_apart = true
        [[phase.job]]
        name = "mixed"
        work = "mix"
        read_percent = 70
        pattern = "sequential"
        offset = "512M"
        size = "64M"
        amount = "32M"
        flush_every = 16
        repeats_offsets = false
    "#;

    fn phase() -> Phase {
        Plan::parse(PLAN).unwrap().phases.remove(0)
    }

    #[test]
    fn a_phase_becomes_a_job_for_each_client() {
        let uri = Endpoint::Nbd("nbd+unix:///a?socket=/s".to_owned());
        let text = jobs(&phase(), &uri, 7).unwrap();
        let parts: Vec<&str> = text.split("\n[").collect();
        assert_eq!(parts.len(), 4, "{text}");
        assert!(parts[0].contains("ioengine=nbd\nuri=nbd+unix:///a?socket=/s\n"), "{text}");
        assert!(parts[1].starts_with("reads 1]\nrw=randread\nnorandommap=1\n"), "{text}");
        assert!(parts[1].contains("random_distribution=zipf:1.2:0\noffset=0\nsize=268435456\n"));
        assert!(parts[1].contains("randseed=7\nruntime=10\ntime_based=1"), "{text}");
        assert!(parts[2].contains("offset=268435456\n"), "{text}");
        assert!(parts[3].contains("rw=rw\nrwmixread=70\n"), "{text}");
        assert!(parts[3].contains("fsync=16\nrandrepeat=0\nio_size=33554432\nruntime=10\n"));
        assert!(!parts[3].contains("time_based"), "{text}");
        let text = jobs(&phase(), &Endpoint::Device("/dev/x".into()), 7).unwrap();
        assert!(text.contains("ioengine=io_uring\ndirect=1\nfilename=/dev/x\n"), "{text}");
        let text = jobs(&phase(), &Endpoint::Device("/dev/pci-0:1f.2".into()), 7).unwrap();
        assert!(text.contains("io_uring\ndirect=1\nfilename=/dev/pci-0\\:1f.2\n"), "{text}");
    }

    #[test]
    fn a_name_that_fio_would_cut_is_refused() {
        for name in ["/a;b", "/a#b", "/a${HOME}", "/a\nfilename=/b", "/a ", "/a\\:b"] {
            let error = jobs(&phase(), &Endpoint::Device(name.into()), 7).unwrap_err();
            assert!(error.to_string().contains("does not take"), "{name}: {error}");
            assert!(jobs(&phase(), &Endpoint::Nbd(name.to_owned()), 7).is_err(), "{name}");
        }
    }

    const OUTPUT: &str = r#"fio: a note
{"fio version": "fio-3.33", "jobs": [
 {"error": 0, "read": {"io_bytes": 8192, "runtime": 2600,
    "lat_ns": {"min": 0, "bins": {"1000": 1, "3000": 1}}},
  "write": {"io_bytes": 0, "runtime": 0, "lat_ns": {"min": 0}}},
 {"error": 0, "read": {"io_bytes": 4096, "runtime": 2000, "lat_ns": {"bins": {"2000": 1}}},
  "write": {"io_bytes": 0, "runtime": 0, "lat_ns": {}}},
 {"error": 0, "read": {"io_bytes": 0, "runtime": 0, "lat_ns": {}},
  "write": {"io_bytes": 4096, "runtime": 1000, "lat_ns": {"bins": {"50000": 1}}}}]}
"#;

    #[test]
    fn figures_of_several_runs_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let (mut seen, mut seconds) = (Seen::new(&phase()), 0.0);
        for _ in 0..2 {
            std::fs::write(folder.path().join(super::OUTPUT), OUTPUT).unwrap();
            for number in 1..=3 {
                let log = folder.path().join(format!("{LOG}_iops.{number}.log"));
                std::fs::write(log, "1000, 5, 0, 4096, 0\n2003, 7, 1, 4096, 0\n").unwrap();
            }
            seconds += seen.add(folder.path(), &phase()).unwrap();
        }
        assert_eq!((seconds, &seen.per_second[..]), (5.2, &[15, 21, 15, 21][..]));
        // Neither answers that come after the time of the phase have a second of their own, nor
        // what is left of one.
        let short = Phase { seconds: Some(2), ..phase() };
        let whole = [3.4, 1.98, 1.6, 0.5].map(|seconds| whole_seconds(&short, seconds));
        assert_eq!(whole, [2, 2, 1, 0]);
        let jobs = seen.jobs();
        assert_eq!((jobs[0].name.as_str(), jobs[0].reads, jobs[0].bytes), ("reads 1", 4, 16384));
        let mean_us = jobs[0].read_latency.as_ref().unwrap().mean_us;
        assert!((1.99..2.01).contains(&mean_us), "{mean_us}");
        assert_eq!((jobs[2].writes, &jobs[2].read_latency), (2, &None));
    }

    #[test]
    fn the_last_second_has_what_the_log_leaves_out() {
        for (logged, requests, seconds, expected) in [
            ([40, 38, 0], 119, 3.0, [40, 38, 41]),
            ([40, 38, 0], 119, 3.02, [40, 38, 41]),
            ([40, 38, 0], 119, 2.98, [40, 38, 41]),
            ([40, 38, 7], 119, 3.0, [40, 38, 7]),
            // The last answers come when the time of the phase is over.
            ([40, 38, 0], 119, 5.1, [40, 38, 41]),
            // It has nothing more to do, and others have.
            ([40, 0, 0], 60, 1.5, [40, 20, 0]),
            // A part of a second that is not shown.
            ([40, 38, 7], 90, 3.6, [40, 38, 7]),
            ([40, 38, 0], 78, 3.0, [40, 38, 0]),
        ] {
            let mut per_second = logged;
            complete_last(&mut per_second, requests, seconds);
            assert_eq!(per_second, expected, "{seconds} s");
        }
        complete_last(&mut [], 0, 0.3);
    }

    #[test]
    fn what_failed_or_is_no_figure_is_an_error() {
        let mut seen = Seen::new(&phase());
        let failed = OUTPUT.replacen("\"error\": 0", "\"error\": 5", 1);
        for text in [&failed, "fio: engine nbd not loadable", "{\"jobs\": []}"] {
            assert!(seen.add_document(text).is_err(), "{text}");
        }
        assert!(add_log("1000, x", &mut [0]).is_err());
    }
}
