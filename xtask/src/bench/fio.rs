//! fio: the client of all servers, and what its JSON says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};

use super::interrupt;

/// What fio does in one phase.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// As `--rw` has it.
    pub(super) pattern: &'static str,
    pub(super) block_bytes: u64,
    pub(super) depth: u32,
    /// Where the part of the device that is used begins.
    pub(super) start_bytes: u64,
    /// How long that part is.
    pub(super) span_bytes: u64,
    pub(super) end: End,
    /// Further options.
    pub(super) more: &'static [&'static str],
}

/// When a phase ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// After so many seconds.
    Time { seconds: u64 },
    /// After so many bytes, or seconds if they pass first.
    TimeOrBytes { seconds: u64, bytes: u64 },
    /// After so many bytes.
    Bytes(u64),
}

/// Flushes after each write.
pub(super) const FLUSH_EACH: &[&str] = &["--fsync=1"];
/// Blocks may be met again before all were met once.
pub(super) const REPEATS: &[&str] = &["--norandommap"];

/// What a phase came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Figures {
    /// Reads and writes, without flushes.
    pub(super) requests: u64,
    pub(super) seconds: f64,
    /// Reads and writes a second.
    pub(super) iops: f64,
    /// From submission to completion of reads and writes, in microseconds: the mean.
    pub(super) mean_us: f64,
    /// Likewise, some percentiles.
    pub(super) latency: Percentiles,
    /// Likewise of flushes, if there were any.
    pub(super) flush_latency: Option<Percentiles>,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

impl Timeline {
    /// The 99.9th percentile of latency, in milliseconds.
    pub(super) fn p999_ms(&self) -> f64 {
        self.figures.latency.p999_us / 1e3
    }
}

/// A phase, second by second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Timeline {
    pub(super) figures: Figures,
    /// Reads and writes that were completed in each whole second.
    pub(super) per_second: Vec<f64>,
}

#[cfg(test)]
impl Timeline {
    /// With so many requests in each second.
    pub(super) fn of(per_second: &[f64]) -> Timeline {
        let latency = Percentiles { p50_us: 1.0, p99_us: 2.0, p999_us: 3.0 };
        let (requests, seconds) = (per_second.iter().sum::<f64>(), per_second.len() as f64);
        let (iops, requests) = (requests / seconds, requests as u64);
        let (mean_us, flush_latency) = (1.0, None);
        let figures = Figures { requests, seconds, iops, mean_us, latency, flush_latency };
        Timeline { figures, per_second: per_second.to_vec() }
    }
}

/// Runs `job` on the export at `uri`; its files are in `folder`.
pub(super) fn run_over_nbd(job: &Job, uri: &str, folder: &Path) -> anyhow::Result<Figures> {
    run(command_over_nbd(job, uri), folder)
}

/// Runs `job` twice at once, each over a connection of its own.
pub(super) fn run_two_over_nbd(
    job: &Job,
    uri: &str,
    folder: &Path,
) -> anyhow::Result<[Figures; 2]> {
    let mut command = command_over_nbd(job, uri);
    command.args(["--numjobs=2", "--thread"]);
    let both = run_jobs(command, folder)?;
    both.try_into().map_err(|jobs: Vec<Figures>| anyhow!("fio ran {} jobs, not 2", jobs.len()))
}

/// Runs two jobs at once, each over a connection of its own.
pub(super) fn run_pair_over_nbd(
    jobs: &[Job; 2],
    uri: &str,
    folder: &Path,
) -> anyhow::Result<[Figures; 2]> {
    let both = run_jobs(pair_over_nbd(jobs, uri), folder)?;
    both.try_into().map_err(|jobs: Vec<Figures>| anyhow!("fio ran {} jobs, not 2", jobs.len()))
}

/// What follows the name of a job is its own.
fn pair_over_nbd([one, other]: &[Job; 2], uri: &str) -> Command {
    let mut both = command_over_nbd(one, uri);
    both.arg("--thread").args(command_over_nbd(other, uri).get_args()).arg("--thread");
    both
}

/// The same as [`run_over_nbd`], and what was completed in each second.
pub(super) fn run_with_timeline(job: &Job, uri: &str, folder: &Path) -> anyhow::Result<Timeline> {
    let mut command = command_over_nbd(job, uri);
    command.args(["--write_iops_log=timeline", "--log_avg_msec=1000"]);
    let figures = run(command, folder)?;
    let path = folder.join("timeline_iops.1.log");
    let log = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let mut per_second = per_second(&log, figures.seconds as usize)?;
    complete_last(&mut per_second, figures.requests);
    Ok(Timeline { figures, per_second })
}

/// fio may end before it writes the line of the last second: what the log leaves out of all
/// requests was completed then.
fn complete_last(per_second: &mut [f64], requests: u64) {
    let logged: f64 = per_second.iter().sum();
    if let Some(last) = per_second.last_mut().filter(|last| **last == 0.0) {
        *last = (requests as f64 - logged).max(0.0);
    }
}

/// Sums fio's log of averages over a second: time in ms, requests a second, direction, ... A second
/// without a line is one in which nothing was completed.
fn per_second(log: &str, seconds: usize) -> anyhow::Result<Vec<f64>> {
    let mut sums = vec![0.0; seconds];
    for line in log.lines() {
        let mut fields = line.split(',').map(str::trim);
        let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok());
        let (Some(time_ms), Some(value)) = (number(), number()) else {
            bail!("fio's log has a line that is not understood: {line}");
        };
        // The line of a second is written at its end, give or take some milliseconds.
        let end = ((time_ms + 500) / 1000) as usize;
        if let Some(sum) = end.checked_sub(1).and_then(|second| sums.get_mut(second)) {
            *sum += value as f64;
        }
    }
    Ok(sums)
}

/// A list of requests to do again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replay<'a> {
    /// In the format of fio, version 2.
    pub(super) list: &'a Path,
    pub(super) depth: u32,
    /// Ends it early.
    pub(super) seconds_max: Option<u64>,
}

/// Does what a list says, as fast as it goes, on the export at `uri`.
pub(super) fn replay(replay: Replay<'_>, uri: &str, folder: &Path) -> anyhow::Result<Figures> {
    let mut command = plain_command();
    command.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
    // The list says what is done; without this, fio asks for a size.
    command.arg("--rw=write");
    command.arg(format!("--read_iolog={}", replay.list.display()));
    command.arg(format!("--iodepth={}", replay.depth));
    if let Some(seconds) = replay.seconds_max {
        command.arg(format!("--runtime={seconds}"));
    }
    run(command, folder)
}

/// Bytes a second that `file` is read with in long pieces, with direct I/O.
pub(super) fn read_rate(file: &Path, seconds: u64) -> anyhow::Result<f64> {
    let bytes = file.metadata().with_context(|| format!("cannot find {}", file.display()))?.len();
    let block_bytes = 1 << 20;
    let job = Job {
        pattern: "read",
        block_bytes,
        depth: 8,
        start_bytes: 0,
        span_bytes: bytes / block_bytes * block_bytes,
        end: End::Time { seconds },
        more: &["--direct=1", "--ioengine=io_uring"],
    };
    let mut command = command(&job);
    command.arg(format!("--filename={}", file.display()));
    let folder = file.parent().context("a file is in a folder")?;
    Ok(run(command, folder)?.iops * block_bytes as f64)
}

fn command_over_nbd(job: &Job, uri: &str) -> Command {
    let mut command = command(job);
    command.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
    command
}

/// What all phases have in common.
fn plain_command() -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--output-format=json", "--randrepeat=1"]);
    // From submission on: over NBD much of a short request passes while it is submitted, which
    // fio's completion latency leaves out.
    command.args(["--lat_percentiles=1", "--clat_percentiles=0"]);
    command
}

fn command(job: &Job) -> Command {
    let mut command = plain_command();
    command.arg(format!("--rw={}", job.pattern));
    command.arg(format!("--bs={}", job.block_bytes));
    command.arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--offset={}", job.start_bytes));
    command.arg(format!("--size={}", job.span_bytes));
    match job.end {
        End::Time { seconds } => {
            command.arg("--time_based").arg(format!("--runtime={seconds}"));
        }
        End::TimeOrBytes { seconds, bytes } => {
            command.arg(format!("--io_size={bytes}")).arg(format!("--runtime={seconds}"));
        }
        End::Bytes(bytes) => {
            command.arg(format!("--io_size={bytes}"));
        }
    }
    command.args(job.more);
    command
}

fn run(command: Command, folder: &Path) -> anyhow::Result<Figures> {
    run_jobs(command, folder)?.into_iter().next().context("fio ran no job")
}

fn run_jobs(mut command: Command, folder: &Path) -> anyhow::Result<Vec<Figures>> {
    let output: PathBuf = folder.join("fio.json");
    command.arg(format!("--output={}", output.display()));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let status = interrupt::wait_for(&mut command)?;
    let text = std::fs::read_to_string(&output).unwrap_or_default();
    if !status.success() {
        bail!("{}: {status}\n{}", crate::process::describe(&command), text.trim_end());
    }
    figures(&text)
}

/// The parts of fio's JSON that are used.
#[derive(Deserialize)]
struct Document {
    jobs: Vec<JobResult>,
}

#[derive(Deserialize)]
struct JobResult {
    error: i64,
    read: Direction,
    write: Direction,
    sync: Flushes,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    /// Milliseconds.
    runtime: u64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Flushes {
    total_ios: u64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    percentile: std::collections::BTreeMap<String, f64>,
}

impl Latency {
    fn percentiles(&self) -> Option<Percentiles> {
        let us = |key: &str| self.percentile.get(key).map(|nanoseconds| nanoseconds / 1e3);
        let (p50_us, p99_us) = (us("50.000000")?, us("99.000000")?);
        Some(Percentiles { p50_us, p99_us, p999_us: us("99.900000")? })
    }
}

/// Of each job.
fn figures(text: &str) -> anyhow::Result<Vec<Figures>> {
    // Notes may stand before the document.
    let start = text.find('{').context("fio printed no JSON")?;
    let document: Document =
        serde_json::from_str(&text[start..]).context("fio printed JSON that is not understood")?;
    document.jobs.iter().map(figures_of).collect()
}

fn figures_of(job: &JobResult) -> anyhow::Result<Figures> {
    if job.error != 0 {
        bail!("a job of fio ended with error {}", job.error);
    }
    let requests = job.read.total_ios + job.write.total_ios;
    let seconds = job.read.runtime.max(job.write.runtime) as f64 / 1e3;
    let busier = if job.read.total_ios > job.write.total_ios { &job.read } else { &job.write };
    let latency = busier.lat_ns.percentiles().context("fio measured no latencies")?;
    let mean_us = busier.lat_ns.mean / 1e3;
    let flush_latency = job.sync.lat_ns.percentiles().filter(|_| job.sync.total_ios > 0);
    if requests == 0 || seconds == 0.0 {
        bail!("a job of fio did nothing");
    }
    let iops = requests as f64 / seconds;
    Ok(Figures { requests, seconds, iops, mean_us, latency, flush_latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"fio: a note
{"fio version": "fio-3.33", "jobs": [{"error": 0,
 "read": {"total_ios": 0, "runtime": 0, "lat_ns": {"min": 0}},
 "write": {"total_ios": 5000, "runtime": 2000,
   "lat_ns": {"mean": 12500,
     "percentile": {"50.000000": 11000, "99.000000": 45500, "99.900000": 60000}}},
 "sync": {"total_ios": 4999,
   "lat_ns": {"percentile": {"50.000000": 7000, "99.000000": 9000, "99.900000": 9500}}}}]}
"#;

    #[test]
    fn figures_are_read_from_the_document() {
        let all = figures(OUTPUT).expect("it is whole");
        let [figures] = &all[..] else { panic!("one job: {all:?}") };
        assert_eq!((figures.requests, figures.seconds, figures.iops), (5000, 2.0, 2500.0));
        assert_eq!(figures.mean_us, 12.5);
        assert_eq!((figures.latency.p50_us, figures.latency.p99_us), (11.0, 45.5));
        assert_eq!(figures.flush_latency.expect("it flushed").p99_us, 9.0);
    }

    #[test]
    fn a_second_without_a_line_is_one_without_requests() {
        let log = "1000, 50, 0, 4096, 0, 0\n1000, 20, 1, 4096, 0, 0\n3000, 7, 1, 4096, 0, 0\n";
        assert_eq!(per_second(log, 4).expect("it is whole"), [70.0, 0.0, 7.0, 0.0]);
        assert!(per_second("1000, x", 4).is_err());
    }

    #[test]
    fn the_last_second_has_what_the_log_leaves_out() {
        for (logged, requests, last) in [
            ([40.0, 0.0, 0.0], 81, 41.0),
            ([40.0, 38.0, 7.0], 119, 7.0),
            ([40.0, 1.0, 0.0], 40, 0.0),
        ] {
            let mut per_second = logged;
            complete_last(&mut per_second, requests);
            assert_eq!(per_second[2], last, "{logged:?}");
        }
    }

    #[test]
    fn a_line_that_is_late_counts_for_the_second_that_it_ends() {
        let log = "1000, 50, 1, 4096, 0, 0\n2003, 60, 1, 4096, 0, 0\n2998, 70, 1, 4096, 0, 0\n";
        assert_eq!(per_second(log, 3).expect("it is whole"), [50.0, 60.0, 70.0]);
    }

    #[test]
    fn a_job_that_failed_is_an_error() {
        assert!(figures(&OUTPUT.replace("\"error\": 0", "\"error\": 5")).is_err());
        assert!(figures("fio: engine nbd not loadable").is_err());
    }

    #[test]
    fn an_end_by_bytes_is_not_stretched_over_the_time() {
        let end = End::TimeOrBytes { seconds: 3, bytes: 4096 };
        let job = Job {
            pattern: "write",
            block_bytes: 1,
            depth: 1,
            start_bytes: 0,
            span_bytes: 1,
            end,
            more: REPEATS,
        };
        let text = crate::process::describe(&command(&job));
        assert!(text.contains("--io_size=4096 --runtime=3"), "{text}");
        assert!(!text.contains("--time_based"), "{text}");
        let other = Job { depth: 7, ..job.clone() };
        let text = crate::process::describe(&pair_over_nbd(&[job, other], "nbd://h/"));
        let jobs: Vec<&str> = text.split("--name=").skip(1).collect();
        assert_eq!(jobs.len(), 2, "{text}");
        assert!(jobs[0].contains("--iodepth=1 ") && jobs[1].contains("--iodepth=7 "), "{text}");
        assert!(jobs.iter().all(|job| job.contains("--uri=nbd://h/")), "{text}");
    }
}
