//! The same work over NBD against all servers, side by side.
//!
//! Within each repetition the servers take turns, so that noise of the machine meets all alike. For
//! hits they run all the time and are warmed up once; for writes each phase begins with a fresh
//! server, and the product's with an empty log. The room that a phase may use is bounded, so that
//! the log is never full of dirty data.

use serde::{Deserialize, Serialize};

use super::contender::{Contender, Running, Stage};
use super::fio::{self, End, Figures, Job};
use super::forebay::Program;
use super::ground::{Ground, Medium};
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::spread::Spread;

/// Size of the volume and of every other file. Less than the product's `writeback_percent` (10) of
/// the cache, so that it never has a reason to write back.
pub(super) const FILE_BYTES: u64 = 192 << 20;
pub(super) const CACHE_BYTES: u64 = 4 << 30;
/// What a phase may write at most: three quarters of the cache, which leaves room for headers.
const WRITE_BYTES_MAX: u64 = CACHE_BYTES / 4 * 3;
/// All files, the cache of nbdkit's filter, and as much again for what file systems need.
const GROUND_BYTES: u64 = CACHE_BYTES + 8 * FILE_BYTES;
const BLOCK_BYTES: u64 = 4096;
/// Length of reads that fill caches, and how many are under way.
const WARM_BYTES: u64 = 64 << 10;
const WARM_DEPTH: u32 = 8;
/// A second round for what the cache did not take in the first.
const WARM_ROUNDS: u32 = 2;

/// What it takes to prepare a medium and its phases on an ordinary machine.
const MEDIUM_SECONDS: u64 = 40;

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    HitsDepth1,
    HitsDepth32,
    WriteFlushDepth1,
    WritesDepth32,
}

impl Work {
    pub(super) const ALL: [Work; 4] =
        [Work::HitsDepth1, Work::HitsDepth32, Work::WriteFlushDepth1, Work::WritesDepth32];

    pub(super) fn title(self) -> &'static str {
        match self {
            Work::HitsDepth1 => "4 KiB random read, hits, QD1",
            Work::HitsDepth32 => "4 KiB random read, hits, QD32",
            Work::WriteFlushDepth1 => "4 KiB random write + fsync, QD1",
            Work::WritesDepth32 => "4 KiB random write, QD32",
        }
    }

    fn is_read(self) -> bool {
        matches!(self, Work::HitsDepth1 | Work::HitsDepth32)
    }

    fn job(self, seconds: u64) -> Job {
        let depth = match self {
            Work::HitsDepth1 | Work::WriteFlushDepth1 => 1,
            Work::HitsDepth32 | Work::WritesDepth32 => 32,
        };
        let more = if self == Work::WriteFlushDepth1 { WRITE_FLUSH } else { fio::REPEATS };
        let (pattern, end) = if self.is_read() {
            ("randread", End::Time { seconds })
        } else {
            ("randwrite", End::TimeOrBytes { seconds, bytes: WRITE_BYTES_MAX })
        };
        Job {
            pattern,
            block_bytes: BLOCK_BYTES,
            depth,
            start_bytes: 0,
            span_bytes: FILE_BYTES,
            end,
            more,
        }
    }
}

const WRITE_FLUSH: &[&str] = &[fio::REPEATS[0], fio::FLUSH_EACH[0]];

/// What the product's own counters say of a phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Witness {
    /// Reads served whole from the cache, of all.
    pub(super) hit_ratio: Option<f64>,
    /// Share of the log that was in use at the end.
    pub(super) occupancy: f64,
    pub(super) dirty_bytes: u64,
    /// Writes that waited for room in the log.
    pub(super) space_waits: u64,
    /// Blocks written to the origin.
    pub(super) written_back_blocks: u64,
}

/// One phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) figures: Figures,
    /// CPU time of the server.
    pub(super) cpu_seconds: f64,
    /// Only of the product with its cache.
    pub(super) witness: Option<Witness>,
}

impl Sample {
    pub(super) fn cpu_per_million(&self) -> f64 {
        self.cpu_seconds / self.figures.requests as f64 * 1e6
    }
}

/// A server at a kind of work, with its repetitions in order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) medium: Medium,
    pub(super) work: Work,
    pub(super) contender: Contender,
    /// How it did its I/O.
    pub(super) io: String,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// Bytes that a medium must have room for.
pub(super) fn ground_bytes() -> u64 {
    GROUND_BYTES
}

/// About what all media take.
pub(super) fn seconds(plan: Plan) -> u64 {
    let phases = (Medium::ALL.len() * Work::ALL.len() * Contender::COUNT) as u64;
    let medium = MEDIUM_SECONDS * Medium::ALL.len() as u64;
    medium + phases * u64::from(plan.repetitions) * plan.seconds
}

/// All works on one medium.
pub(super) fn measure(
    program: &Program,
    ground: &Ground,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("NBD, {}: files of {} MiB", ground.medium.title(), FILE_BYTES >> 20);
    let stage = Stage { program, ground, file_bytes: FILE_BYTES, cache_bytes: CACHE_BYTES };
    let medium = ground.medium;
    let mut rows = progress.sample(&format!("nbd/{medium:?}/hits"), || hits(&stage, plan))?;
    for work in Work::ALL.into_iter().filter(|work| !work.is_read()) {
        let name = format!("nbd/{medium:?}/{work:?}");
        rows.extend(progress.sample(&name, || writes(&stage, work, plan))?);
    }
    Ok(rows)
}

fn writes(stage: &Stage<'_>, work: Work, plan: Plan) -> anyhow::Result<Vec<Row>> {
    stage.make_files()?;
    let mut table = Table::new(stage.ground.medium, work);
    for _ in 0..plan.repetitions {
        for contender in Contender::present() {
            let running = stage.start(contender)?;
            table.add(&running, sample(stage, &running, work, plan)?);
            running.stop()?;
        }
    }
    Ok(table.rows)
}

fn hits(stage: &Stage<'_>, plan: Plan) -> anyhow::Result<Vec<Row>> {
    stage.make_files()?;
    let mut servers = Vec::new();
    for contender in Contender::present() {
        let running = stage.start(contender)?;
        warm_up(stage, &running)?;
        servers.push(running);
    }
    let mut rows = Vec::new();
    for work in Work::ALL.into_iter().filter(|work| work.is_read()) {
        let mut table = Table::new(stage.ground.medium, work);
        for _ in 0..plan.repetitions {
            for running in &servers {
                table.add(running, sample(stage, running, work, plan)?);
            }
        }
        rows.extend(table.rows);
    }
    for running in servers {
        running.stop()?;
    }
    Ok(rows)
}

/// Reads everything, in pieces and in random order, so that no stream is seen that would bypass the
/// cache.
fn warm_up(stage: &Stage<'_>, running: &Running) -> anyhow::Result<()> {
    let job = Job {
        pattern: "randread",
        block_bytes: WARM_BYTES,
        depth: WARM_DEPTH,
        start_bytes: 0,
        span_bytes: FILE_BYTES,
        end: End::Bytes(FILE_BYTES),
        more: &[],
    };
    for _ in 0..WARM_ROUNDS {
        fio::run_over_nbd(&job, &running.uri, stage.ground.folder())?;
        if let Some(daemon) = running.daemon()
            && stage.program.status(daemon)?.cache_set.cached_bytes < FILE_BYTES
        {
            continue;
        }
        return Ok(());
    }
    // The hit ratio of the phases will tell.
    Ok(())
}

fn sample(stage: &Stage<'_>, running: &Running, work: Work, plan: Plan) -> anyhow::Result<Sample> {
    interrupt::check()?;
    if let Some(daemon) = running.daemon() {
        stage.program.reset_counters(daemon)?;
    }
    let before = running.server().cpu_seconds()?;
    let figures = fio::run_over_nbd(&work.job(plan.seconds), &running.uri, stage.ground.folder())?;
    let cpu_seconds = running.server().cpu_seconds()? - before;
    let witness = match running.daemon() {
        None => None,
        Some(daemon) => {
            let status = stage.program.status(daemon)?;
            let volume = status.volume()?;
            Some(Witness {
                hit_ratio: volume.hit_ratio_requests,
                occupancy: status.cache_set.occupancy,
                dirty_bytes: status.cache_set.dirty_bytes,
                space_waits: status.cache_set.counters.space_wait_count,
                written_back_blocks: volume.counters.writeback_block_count,
            })
        }
    };
    Ok(Sample { figures, cpu_seconds, witness })
}

/// The rows of one work on one medium, as they fill.
struct Table {
    rows: Vec<Row>,
    medium: Medium,
    work: Work,
}

impl Table {
    fn new(medium: Medium, work: Work) -> Table {
        Table { rows: Vec::new(), medium, work }
    }

    fn add(&mut self, running: &Running, sample: Sample) {
        let (work, contender) = (self.work, running.contender);
        println!(
            "  {:<32} {:<28} {:>9.0} IOPS  p50 {:>7.1} us  p99 {:>7.1} us  {:>6.2} CPU s/million",
            work.title(),
            contender.title().replace('`', ""),
            sample.figures.iops,
            sample.figures.latency.p50_us,
            sample.figures.latency.p99_us,
            sample.cpu_per_million(),
        );
        match self.rows.iter_mut().find(|row| row.contender == contender) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row {
                medium: self.medium,
                work,
                contender,
                io: running.io.to_owned(),
                samples: vec![sample],
            }),
        }
    }
}
