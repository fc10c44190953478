//! Work that waits for flushes on a mounted file system: SQLite, PostgreSQL, dpkg.
//!
//! The same work on ext4 on three devices behind the same front end: the emulated hard disk alone,
//! the fast device alone, and the hard disk with a cache on the fast device. Each file system is
//! made anew. What the cache did is told by its own counters. Only root may mount: for others the
//! part is left out, and so is work whose program is missing.

mod packages;
mod postgres;
mod sqlite;
mod stack;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::forebay::{Daemon, Order};
use super::interrupt;
use super::plan::{Pace, Plan};
use super::progress::Progress;
use super::server::Server;
use super::slow::{Bench, Fill, Origin, Sizes};
use crate::packages::has_program;
use stack::Stack;

pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 1 << 30, fill: Fill::Holes, cache_bytes: 1 << 30 };
/// What it takes to make packages and a database, and to prepare a device and its phases.
const SETUP_SECONDS: u64 = 8;
const DEVICE_SECONDS: u64 = 9;
/// Everything that a stack needs, whatever runs on it.
const PROGRAMS: [&str; 4] = ["nbdfuse", "losetup", "mkfs.ext4", "mount"];

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    SqliteRollback,
    SqliteWal,
    Postgres,
    Dpkg,
}

impl Work {
    pub(super) const ALL: [Work; 4] =
        [Work::SqliteRollback, Work::SqliteWal, Work::Postgres, Work::Dpkg];

    pub(super) fn title(self) -> &'static str {
        match self {
            Work::SqliteRollback => "SQLite, rollback journal",
            Work::SqliteWal => "SQLite, WAL",
            Work::Postgres => "PostgreSQL, pgbench, 4 clients",
            Work::Dpkg => "dpkg, unpacking packages",
        }
    }

    fn is_possible(self) -> bool {
        match self {
            Work::SqliteRollback | Work::SqliteWal => has_program("sqlite3"),
            Work::Postgres => postgres::programs().is_some(),
            Work::Dpkg => has_program("dpkg") && has_program("dpkg-deb"),
        }
    }
}

/// What the file system lies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Disk {
    Slow,
    Fast,
    Cached,
}

impl Disk {
    const ALL: [Disk; 3] = [Disk::Slow, Disk::Fast, Disk::Cached];

    pub(super) fn title(self) -> &'static str {
        match self {
            Disk::Slow => "emulated hard disk",
            Disk::Fast => "fast device",
            Disk::Cached => "hard disk with a cache",
        }
    }
}

/// What was done, one by one.
#[derive(Clone, Debug, Default)]
struct Count {
    latencies_ms: Vec<f64>,
    seconds: f64,
}

/// Flushes of a phase, as the cache counts them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Flushes {
    pub(super) of_clients: u64,
    pub(super) of_cache_device: u64,
}

/// Work on a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Phase {
    pub(super) work: Work,
    pub(super) disk: Disk,
    /// Transactions or packages.
    pub(super) done: u64,
    pub(super) seconds: f64,
    pub(super) p99_ms: f64,
    /// Only with a cache.
    pub(super) flushes: Option<Flushes>,
}

impl Phase {
    fn of(work: Work, disk: Disk, count: Count) -> Phase {
        let Count { mut latencies_ms, seconds } = count;
        latencies_ms.sort_by(f64::total_cmp);
        let p99_ms = percentile(&latencies_ms, 99);
        Phase { work, disk, done: latencies_ms.len() as u64, seconds, p99_ms, flushes: None }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds
    }
}

/// Of sorted values: the least that so many percent do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

/// The phase of a work on a device.
pub(super) fn find(phases: &[Phase], work: Work, disk: Disk) -> Option<&Phase> {
    phases.iter().find(|phase| phase.work == work && phase.disk == disk)
}

/// Of each work on each device.
pub(super) fn phase_seconds(plan: Plan) -> u64 {
    match plan.pace {
        Pace::Thorough => 8,
        Pace::Quick => 2,
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let device = DEVICE_SECONDS + Work::ALL.len() as u64 * phase_seconds(plan);
    SETUP_SECONDS + Disk::ALL.len() as u64 * device
}

/// Bytes that the disk must have room for: the cache and the bare fast device.
pub(super) fn disk_bytes() -> u64 {
    SIZES.disk_bytes() + SIZES.origin_bytes
}

/// Why nothing can be measured, if so.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount".to_owned());
    }
    let missing = PROGRAMS.iter().find(|name| !has_program(name));
    missing.map(|name| format!("{name} is missing"))
}

/// All work on all devices; nothing if it is not possible.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Option<Vec<Phase>>> {
    println!("work that waits for flushes, on ext4: {} s each", phase_seconds(plan));
    if let Some(obstacle) = obstacle() {
        println!("  left out: {obstacle}");
        return Ok(None);
    }
    let works: Vec<Work> = Work::ALL.into_iter().filter(|work| work.is_possible()).collect();
    for work in Work::ALL.iter().filter(|work| !works.contains(work)) {
        println!("  left out: {}, its programs are missing", work.title());
    }
    let phases = progress.sample("sync", || {
        let site = Site::prepare(&works)?;
        let mut phases = Vec::new();
        for disk in Disk::ALL {
            interrupt::check()?;
            phases.extend(site.measure_on(disk, bench, &works, phase_seconds(plan))?);
        }
        Ok(phases)
    })?;
    for phase in &phases {
        println!(
            "  {:<32} {:<24} {:>8.1} a second  p99 {:>7.1} ms",
            phase.work.title(),
            phase.disk.title(),
            phase.per_second(),
            phase.p99_ms,
        );
    }
    Ok(Some(phases))
}

/// What all devices have in common, in a folder that everybody may enter: a database does not run
/// as root.
struct Site {
    cluster: Option<postgres::Cluster>,
    packages: Vec<PathBuf>,
    folder: TempDir,
}

/// Whoever serves the export.
enum Export {
    Bare(Server),
    Cached(Daemon),
}

impl Site {
    fn prepare(works: &[Work]) -> anyhow::Result<Site> {
        let folder = tempfile::Builder::new()
            .prefix("forebay-bench-")
            .permissions(std::fs::Permissions::from_mode(0o711))
            .tempdir()
            .context("cannot make a folder")?;
        let has = |work| works.contains(&work);
        let programs = postgres::programs().filter(|_| has(Work::Postgres));
        let cluster = programs
            .map(|programs| postgres::Cluster::make(programs, folder.path()))
            .transpose()?;
        let packages = if has(Work::Dpkg) { packages::make(folder.path())? } else { Vec::new() };
        Ok(Site { cluster, packages, folder })
    }

    fn measure_on(
        &self,
        disk: Disk,
        bench: Bench<'_>,
        works: &[Work],
        seconds: u64,
    ) -> anyhow::Result<Vec<Phase>> {
        let (export, uri) = match disk {
            Disk::Slow => bench.serve_bare(Origin::HardDisk, SIZES).map(bare)?,
            Disk::Fast => {
                let file = bench.disk.file("bare.img", SIZES.origin_bytes)?;
                bench.serve_file(&file.display().to_string()).map(bare)?
            }
            Disk::Cached => {
                let daemon = bench.serve_cached(Origin::HardDisk, Order::Coalescing, SIZES)?;
                let uri = daemon.uri.clone();
                (Export::Cached(daemon), uri)
            }
        };
        // Dropped before the export, however this ends.
        let stack = Stack::mount(&uri, self.folder.path())?;
        let mut phases = Vec::new();
        for work in works {
            let run = self.prepare_work(*work, stack.folder())?;
            stack.settle()?;
            if let Export::Cached(daemon) = &export {
                bench.program.reset_counters(daemon)?;
            }
            let mut phase = Phase::of(*work, disk, run(seconds)?);
            if let Export::Cached(daemon) = &export {
                let set = bench.program.status(daemon)?.cache_set;
                phase.flushes = Some(Flushes {
                    of_clients: set.client_flush_count,
                    of_cache_device: set.counters.cache_flush_count,
                });
            }
            phases.push(phase);
        }
        drop(stack);
        match export {
            Export::Bare(server) => server.stop()?,
            // What is still dirty would only be written home.
            Export::Cached(daemon) => daemon.server.kill()?,
        }
        Ok(phases)
    }

    /// What is to be measured, when everything is there that it needs.
    #[allow(clippy::type_complexity)]
    fn prepare_work<'a>(
        &'a self,
        work: Work,
        folder: &'a Path,
    ) -> anyhow::Result<Box<dyn FnOnce(u64) -> anyhow::Result<Count> + 'a>> {
        Ok(match work {
            Work::SqliteRollback => {
                Box::new(|seconds| sqlite::transactions(folder, "delete", seconds))
            }
            Work::SqliteWal => Box::new(|seconds| sqlite::transactions(folder, "wal", seconds)),
            Work::Postgres => {
                let cluster = self.cluster.as_ref().context("its programs are there")?;
                let data = cluster.copy(folder)?;
                Box::new(move |seconds| cluster.transactions(&data, seconds))
            }
            Work::Dpkg => Box::new(|seconds| packages::unpack(folder, &self.packages, seconds)),
        })
    }
}

fn bare((server, uri): (Server, String)) -> (Export, String) {
    (Export::Bare(server), uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&[5.0], 99), 5.0);
        assert_eq!(percentile(&[], 99), 0.0);
    }

    #[test]
    fn it_keeps_within_its_time() {
        assert!(seconds(Plan::of(Pace::Thorough)) <= 180);
        assert!(seconds(Plan::of(Pace::Quick)) <= 60);
    }
}
