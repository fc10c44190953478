//! Two clients that do the same, each over a connection of its own: what each gets.
//!
//! Which request of several a hard disk takes next is as good as chance, so shares of misses differ
//! by chance: of N requests in all, less over more is about `1 - 1.6 / sqrt(N)` if each is either
//! client's with equal odds. `forebay-sim shares` shows that of the disk alone, of the engine, and
//! of a coin. So misses are measured for longer than the rest.

pub(super) mod disks;
pub(super) mod unequal;

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Figures, Job};
use super::forebay::{Daemon, Order, Program, VolumeCounters};
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes};
use super::spread::Spread;
use super::vhost_user::client::Client;

pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 2 << 30, fill: Fill::Holes, cache_bytes: 256 << 20 };
const BLOCK_BYTES: u64 = 4096;
/// What is read again and again; it fits the cache.
const HIT_BYTES: u64 = 128 << 20;
const FILL_BLOCK_BYTES: u64 = 64 << 10;
const FILL_DEPTH: u32 = 16;
/// What it takes to prepare a phase on an ordinary machine.
const PHASE_SECONDS: u64 = 3;
/// As in [`Work::Writes`], before that is measured: the cache is full of dirty data then.
const FULL_SECONDS: u64 = 6;
/// Of each phase but that of misses.
pub(super) const SECONDS: u64 = 4;
/// Of the phase of misses. In that time the disk does some 4,900 requests (`forebay-sim shares`),
/// and a fair coin would leave the one client more than a tenth behind once in 4,600 times; in
/// [`SECONDS`], once in five.
pub(super) const MISS_SECONDS: u64 = 36;

/// What both clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    Hits,
    HitsOverVhostUser,
    Misses,
    Writes,
}

impl Work {
    const ALL: [Work; 4] = [Work::Hits, Work::HitsOverVhostUser, Work::Misses, Work::Writes];

    pub(super) fn title(self) -> &'static str {
        match self {
            Work::Hits => "random reads that hit, QD32 each",
            Work::HitsOverVhostUser => "random reads that hit, QD32 each, over vhost-user",
            Work::Misses => "random reads that miss, QD4 each",
            Work::Writes => "random writes past a full cache, QD32 each",
        }
    }

    fn seconds(self) -> u64 {
        match self {
            Work::Hits | Work::HitsOverVhostUser | Work::Writes => SECONDS,
            Work::Misses => MISS_SECONDS,
        }
    }

    fn job(self, seconds: u64) -> Job {
        let (pattern, depth, span_bytes) = match self {
            Work::Hits => ("randread", 32, HIT_BYTES),
            Work::HitsOverVhostUser => ("randread", 32, disks::VOLUME_BYTES),
            Work::Misses => ("randread", 4, SIZES.origin_bytes),
            Work::Writes => ("randwrite", 32, SIZES.origin_bytes),
        };
        let end = End::Time { seconds };
        let (block_bytes, start_bytes, more) = (BLOCK_BYTES, 0, fio::REPEATS);
        Job { pattern, block_bytes, depth, start_bytes, span_bytes, end, more }
    }

    /// What comes before.
    fn preparation(self) -> Option<Job> {
        match self {
            Work::Hits | Work::HitsOverVhostUser => Some(self.fill()),
            Work::Misses => None,
            Work::Writes => Some(self.job(FULL_SECONDS)),
        }
    }

    /// Reads all that is read later, once.
    fn fill(self) -> Job {
        let job = self.job(0);
        Job {
            block_bytes: FILL_BLOCK_BYTES,
            depth: FILL_DEPTH,
            end: End::Bytes(job.span_bytes),
            more: &[],
            ..job
        }
    }
}

/// What the client with less gets, over what the other one gets.
pub(super) fn less_over_more([one, other]: [f64; 2]) -> f64 {
    one.min(other) / one.max(other)
}

/// Both clients at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) clients: [Figures; 2],
    /// Bytes of reads and writes that the cache answered, of all.
    pub(super) hit_ratio: f64,
}

impl Sample {
    pub(super) fn less_over_more(&self) -> f64 {
        less_over_more(self.clients.each_ref().map(|client| client.iops))
    }

    /// The 99th percentiles of latency, the higher one over the lower one.
    pub(super) fn p99_ratio(&self) -> f64 {
        let [one, other] = self.clients.each_ref().map(|client| client.latency.p99_us);
        one.max(other) / one.min(other)
    }

    pub(super) fn iops(&self) -> f64 {
        self.clients.iter().map(|client| client.iops).sum()
    }
}

/// A kind of work with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) work: Work,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let phases: u64 = Work::ALL.iter().map(|work| work.seconds() + PHASE_SECONDS).sum();
    u64::from(plan.repetitions) * (phases + FULL_SECONDS) + unequal::seconds()
}

/// Clients that do the same, and clients that differ.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fairness {
    pub(super) equal: Vec<Row>,
    pub(super) unequal: Vec<unequal::Row>,
}

/// All kinds of work. Clients that differ are measured once.
pub(super) fn measure(
    bench: Bench<'_>,
    client: &Client,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Fairness> {
    let equal = equal(bench, client, plan, progress)?;
    let unequal = unequal::measure(bench, 1, progress)?;
    Ok(Fairness { equal, unequal })
}

fn equal(
    bench: Bench<'_>,
    client: &Client,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("two equal clients at once");
    let mut rows = Work::ALL.map(|work| Row { work, samples: Vec::new() });
    for repetition in 0..plan.repetitions {
        for row in &mut rows {
            interrupt::check()?;
            let name = format!("fairness/{:?}/{repetition}", row.work);
            let sample = || match row.work {
                Work::HitsOverVhostUser => disks::sample(bench, client),
                work => sample(bench, work),
            };
            row.samples.push(progress.sample(&name, sample)?);
        }
    }
    for row in &rows {
        println!(
            "  {}: less over more {}",
            row.work.title(),
            row.spread(Sample::less_over_more).map(|s| s.text(2)).unwrap_or_default(),
        );
    }
    Ok(rows.into())
}

/// One kind of work over NBD, on a set that is made anew.
fn sample(bench: Bench<'_>, work: Work) -> anyhow::Result<Sample> {
    let program = bench.program;
    let daemon = bench.serve_cached(Origin::HardDisk, Order::Coalescing, SIZES)?;
    if work == Work::Misses {
        program.set(&daemon, "cache_mode=writeonly")?;
    }
    fill_cache(bench, &daemon, work)?;
    let before = answered(program, &daemon)?;
    let job = work.job(work.seconds());
    let clients = fio::run_two_over_nbd(&job, &daemon.uri, bench.ram.folder())?;
    let after = answered(program, &daemon)?;
    daemon.server.kill()?;
    let [hits, all] = [after[0] - before[0], after[1] - before[1]];
    Ok(Sample { clients, hit_ratio: hits as f64 / all.max(1) as f64 })
}

/// Does what comes before.
fn fill_cache(bench: Bench<'_>, daemon: &Daemon, work: Work) -> anyhow::Result<()> {
    let Some(job) = work.preparation() else { return Ok(()) };
    let folder = bench.ram.folder();
    if work == Work::Writes {
        // By both, since fio repeats its offsets: what is written over takes no more room, and a
        // client that finds its blocks there gets more than one that does not.
        fio::run_two_over_nbd(&job, &daemon.uri, folder)?;
    } else {
        fio::run_over_nbd(&job, &daemon.uri, folder)?;
    }
    Ok(())
}

/// Bytes that were read from the cache, and all that were read, of all volumes.
fn answered(program: &Program, daemon: &Daemon) -> anyhow::Result<[u64; 2]> {
    let status = program.status(daemon)?;
    let sum = |value: fn(&VolumeCounters) -> u64| {
        status.volumes().map(|volume| value(&volume.counters)).sum::<u64>()
    };
    let hits = sum(|counters| counters.read_hit_bytes);
    Ok([hits, hits + sum(|counters| counters.read_miss_bytes)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fio::Timeline;

    #[test]
    fn the_client_with_less_is_held_against_the_other() {
        let figures = |iops: f64| Timeline::of(&[iops, iops]).figures;
        let sample = Sample { clients: [figures(300.0), figures(200.0)], hit_ratio: 1.0 };
        assert!((sample.less_over_more() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((sample.iops(), sample.p99_ratio()), (500.0, 1.0));
    }
}
