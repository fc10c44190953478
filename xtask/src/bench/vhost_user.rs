//! The same closed loop on one volume over vhost-user and over NBD, side by side.
//!
//! The client is the example `front_end_load` of the product, which has both sides in one program:
//! a virtual machine in miniature, and the demo's NBD client. Its CPU time is counted apart from
//! the daemon's. Everything is a hit, on a RAM file system, so that what differs is the way there.
//! Within each repetition the two take turns, each with a daemon and a log of its own. What a hop
//! to another thread would cost is measured beside them.

pub(super) mod client;
pub(super) mod hand_over;

use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job};
use super::forebay::{Daemon, Order, Program, Set, VOLUME};
use super::ground::Ground;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::spread::Spread;
use client::{Client, Figures};

/// Of the volume: less than `writeback_percent` (10) of the cache, so that nothing is written back.
pub(super) const VOLUME_BYTES: u64 = 128 << 20;
pub(super) const CACHE_BYTES: u64 = 4 << 30;
const BLOCK_BYTES: u64 = 4096;
/// What all phases with writes may write to a log: half of it. A write that comes alone takes a
/// header as large as itself, but such are far from being as many.
const WRITTEN_BYTES_MAX: u64 = CACHE_BYTES / 2;
const WARM_BLOCK_BYTES: u64 = 64 << 10;
const WARM_DEPTH: u32 = 8;
/// What it takes to prepare a log and a daemon on an ordinary machine.
const DAEMON_SECONDS: u64 = 3;
const FILE_SECONDS: u64 = 15;

/// How requests come to the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    VhostUser,
    Nbd,
}

impl Way {
    const ALL: [Way; 2] = [Way::VhostUser, Way::Nbd];

    fn title(self) -> &'static str {
        match self {
            Way::VhostUser => "vhost-user",
            Way::Nbd => "NBD",
        }
    }
}

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    is_read: bool,
    /// Of each queue or connection.
    depth: u16,
    queues: u16,
}

impl Work {
    /// Reads come first: writes would change which records hold what is read.
    fn all() -> impl Iterator<Item = Work> {
        let queues = |is_read, depth| [1, 2].map(|queues| Work { is_read, depth, queues });
        let depths =
            move |is_read| [1, 32].into_iter().flat_map(move |depth| queues(is_read, depth));
        [true, false].into_iter().flat_map(depths)
    }

    fn write_phases() -> u64 {
        Work::all().filter(|work| !work.is_read).count() as u64
    }

    pub(super) fn title(self) -> String {
        let kind = if self.is_read { "read" } else { "write" };
        let queues = if self.queues == 1 { "one queue" } else { "two queues" };
        format!("{kind}, QD{}, {queues}", self.depth)
    }
}

/// One phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    figures: Figures,
    daemon_cpu_seconds: f64,
}

impl Sample {
    pub(super) fn iops(&self) -> f64 {
        self.figures.requests as f64 / self.figures.seconds
    }

    pub(super) fn p50_us(&self) -> f64 {
        self.figures.p50_us
    }

    pub(super) fn p99_us(&self) -> f64 {
        self.figures.p99_us
    }

    pub(super) fn daemon_cpu_us(&self) -> f64 {
        self.figures.per_request(self.daemon_cpu_seconds * 1e6)
    }

    pub(super) fn client_cpu_us(&self) -> f64 {
        self.figures.cpu_us()
    }

    pub(super) fn kicks(&self) -> f64 {
        self.figures.per_request(self.figures.kicks as f64)
    }

    pub(super) fn calls(&self) -> f64 {
        self.figures.per_request(self.figures.calls as f64)
    }
}

/// A kind of work, with its repetitions in order: over vhost-user and over NBD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) work: Work,
    pub(super) samples: Vec<[Sample; 2]>,
}

impl Row {
    /// Of one way: 0 is vhost-user, 1 is NBD.
    pub(super) fn spread(&self, way: usize, value: fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|both| value(&both[way])))
    }

    /// That of vhost-user over that of NBD.
    pub(super) fn ratio(&self, value: fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|both| value(&both[0]) / value(&both[1])))
    }
}

/// Both ways side by side, and the hop that there is in neither.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct VhostUser {
    pub(super) rows: Vec<Row>,
    pub(super) hand_over: Vec<hand_over::Row>,
}

/// Bytes that the medium must have room for.
pub(super) fn ground_bytes() -> u64 {
    CACHE_BYTES / 8 * 9 + 2 * VOLUME_BYTES
}

pub(super) fn seconds(plan: Plan) -> u64 {
    let daemon = DAEMON_SECONDS + Work::all().count() as u64 * plan.seconds;
    let ways = Way::ALL.len() as u64 * u64::from(plan.repetitions) * daemon;
    FILE_SECONDS + ways + hand_over::seconds(plan)
}

/// All kinds of work.
pub(super) fn measure(
    program: &Program,
    client: &Client,
    ground: &Ground,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<VhostUser> {
    println!("vhost-user and NBD, {}: all hits", ground.medium.title());
    let mut rows: Vec<Row> = Work::all().map(|work| Row { work, samples: Vec::new() }).collect();
    for repetition in 0..plan.repetitions {
        let name = format!("vhost-user/{repetition}");
        let samples = progress.sample(&name, || {
            let stage = Stage { program, ground, client, plan };
            Ok([stage.samples(Way::VhostUser)?, stage.samples(Way::Nbd)?])
        })?;
        let [over_vhost_user, over_nbd] = samples;
        for ((row, one), other) in rows.iter_mut().zip(over_vhost_user).zip(over_nbd) {
            row.samples.push([one, other]);
        }
    }
    for row in &rows {
        let text = |spread: Option<Spread>| spread.map(|s| s.text(2)).unwrap_or_default();
        println!(
            "  {}, vhost-user over NBD: IOPS {}, CPU of a request {}",
            row.work.title(),
            text(row.ratio(Sample::iops)),
            text(row.ratio(Sample::daemon_cpu_us)),
        );
    }
    let hand_over = hand_over::measure(client, plan, progress)?;
    Ok(VhostUser { rows, hand_over })
}

/// What phases are measured with.
struct Stage<'a> {
    program: &'a Program,
    ground: &'a Ground,
    client: &'a Client,
    plan: Plan,
}

impl Stage<'_> {
    /// All kinds of work over one way, on a log that is made anew and holds the whole volume.
    fn samples(&self, way: Way) -> anyhow::Result<Vec<Sample>> {
        let cache = self.ground.path("cache.img");
        let origin = self.ground.file("origin.img", VOLUME_BYTES)?;
        let (bytes, order) = (CACHE_BYTES, Order::Coalescing);
        self.program.make_set(Set { cache: &cache, origin: &origin, bytes, order })?;
        let daemon = self.program.serve(&cache, self.ground)?;
        self.warm_up(&daemon)?;
        if way == Way::Nbd {
            let samples = self.run_all(&daemon, way, &daemon.socket)?;
            daemon.server.stop()?;
            return Ok(samples);
        }
        daemon.server.stop()?;
        let socket = self.ground.path("disk.sock");
        let disks = [(VOLUME, &*socket)];
        let daemon = self.program.serve_vhost_user(&cache, self.ground, &disks)?;
        let samples = self.run_all(&daemon, way, &socket)?;
        daemon.server.stop()?;
        Ok(samples)
    }

    /// Reads everything, in pieces and in random order, so that no stream is seen that would bypass
    /// the cache.
    fn warm_up(&self, daemon: &Daemon) -> anyhow::Result<()> {
        let job = Job {
            pattern: "randread",
            block_bytes: WARM_BLOCK_BYTES,
            depth: WARM_DEPTH,
            start_bytes: 0,
            span_bytes: VOLUME_BYTES,
            end: End::Bytes(VOLUME_BYTES),
            more: &[],
        };
        fio::run_over_nbd(&job, &daemon.uri, self.ground.folder())?;
        let cached_bytes = self.program.status(daemon)?.cache_set.cached_bytes;
        if cached_bytes < VOLUME_BYTES {
            bail!("{} of {} MiB are cached", cached_bytes >> 20, VOLUME_BYTES >> 20);
        }
        Ok(())
    }

    fn run_all(&self, daemon: &Daemon, way: Way, socket: &Path) -> anyhow::Result<Vec<Sample>> {
        self.program.reset_counters(daemon)?;
        let mut samples = Vec::new();
        for work in Work::all() {
            interrupt::check()?;
            let before = daemon.server.cpu_seconds()?;
            let figures = self.run(work, way, socket)?;
            let daemon_cpu_seconds = daemon.server.cpu_seconds()? - before;
            let sample = Sample { figures, daemon_cpu_seconds };
            println!(
                "  {:<24} {:<10} {:>9.0} IOPS  p50 {:>7.1} us  p99 {:>7.1} us  CPU {:>5.2} us, \
                 of the client {:>5.2} us",
                work.title(),
                way.title(),
                sample.iops(),
                sample.p50_us(),
                sample.p99_us(),
                sample.daemon_cpu_us(),
                sample.client_cpu_us(),
            );
            samples.push(sample);
        }
        let status = self.program.status(daemon)?;
        let volume = status.volume()?;
        // These would be faults of the measurement.
        if volume.counters.read_miss_bytes > 0 {
            bail!("{} bytes were no hits", volume.counters.read_miss_bytes);
        }
        if status.cache_set.counters.space_wait_count > 0 {
            bail!("writes waited for room in the log");
        }
        Ok(samples)
    }

    fn run(&self, work: Work, way: Way, socket: &Path) -> anyhow::Result<Figures> {
        let (depth, seconds) = (work.depth.into(), self.plan.seconds);
        let mut command = match way {
            Way::VhostUser => self.client.over_vhost_user(socket, depth, seconds),
            Way::Nbd => {
                let mut command = self.client.command(depth, seconds);
                command.arg("--nbd").arg(socket).args(["--export", VOLUME]);
                command
            }
        };
        let (kind, requests) = if work.is_read {
            ("read", u64::MAX)
        } else {
            let bytes = WRITTEN_BYTES_MAX / Work::write_phases() / u64::from(work.queues);
            ("write", bytes / BLOCK_BYTES)
        };
        command.args(["--work", kind]).arg("--queues").arg(work.queues.to_string());
        command.arg("--requests").arg(requests.to_string());
        client::run(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(requests: u64, daemon_cpu_seconds: f64) -> Sample {
        let figures = Figures::of(requests);
        Sample { figures, daemon_cpu_seconds }
    }

    #[test]
    fn vhost_user_is_held_against_nbd_within_each_repetition() {
        let work = Work { is_read: true, depth: 1, queues: 1 };
        let samples =
            vec![[sample(400, 1.0), sample(200, 1.0)], [sample(100, 1.0), sample(100, 4.0)]];
        let row = Row { work, samples };
        let ratio = |value| row.ratio(value).expect("two samples");
        assert_eq!(ratio(Sample::iops), Spread { median: 1.5, min: 1.0, max: 2.0 });
        assert_eq!(ratio(Sample::daemon_cpu_us), Spread { median: 0.375, min: 0.25, max: 0.5 });
        assert_eq!(row.spread(1, Sample::iops).map(|spread| spread.max), Some(100.0));
        assert_eq!((sample(400, 1.0).kicks(), sample(400, 1.0).calls()), (0.5, 0.25));
    }

    #[test]
    fn every_depth_comes_with_every_number_of_queues() {
        let titles: Vec<String> = Work::all().map(Work::title).collect();
        assert_eq!(titles.len(), 8);
        assert_eq!(titles[0], "read, QD1, one queue");
        assert_eq!(titles[7], "write, QD32, two queues");
        assert_eq!(Work::write_phases(), 4);
    }
}
