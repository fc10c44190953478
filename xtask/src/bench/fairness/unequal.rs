//! Two clients of one volume that want different things: what each gets of what it would get alone.
//!
//! A request is taken when it comes, whosever it is, so shares follow demand: who has more requests
//! under way, or longer ones, gets more. What counts is how much of its own pace the smaller client
//! keeps.

use serde::{Deserialize, Serialize};

use super::super::fio::{self, End, Figures, Job};
use super::super::forebay::{Daemon, Order};
use super::super::interrupt;
use super::super::progress::Progress;
use super::super::slow::{Bench, Origin};
use super::super::spread::Spread;
use super::{BLOCK_BYTES, HIT_BYTES, SIZES, Work, fill_cache};

/// Blocks of the client with long requests.
const LONG_BYTES: u64 = 256 << 10;
/// Of each phase: both clients alone, and together.
const HIT_SECONDS: u64 = 4;
const MISS_SECONDS: u64 = 16;
const PREPARATION_SECONDS: u64 = 3;

/// In what the clients differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Difference {
    Depth,
    Length,
}

impl Difference {
    const ALL: [Difference; 2] = [Difference::Depth, Difference::Length];

    pub(in super::super) fn title(self) -> &'static str {
        match self {
            Difference::Depth => "QD1 against QD32",
            Difference::Length => "4 KiB against 256 KiB, QD4 each",
        }
    }

    fn jobs(self, answers: Answers) -> [Job; 2] {
        let (span_bytes, seconds) = match answers {
            Answers::Hits => (HIT_BYTES, HIT_SECONDS),
            Answers::Misses => (SIZES.origin_bytes, MISS_SECONDS),
        };
        let job = |depth, block_bytes| Job {
            pattern: "randread",
            block_bytes,
            depth,
            start_bytes: 0,
            span_bytes,
            end: End::Time { seconds },
            more: fio::REPEATS,
        };
        match self {
            Difference::Depth => [job(1, BLOCK_BYTES), job(32, BLOCK_BYTES)],
            Difference::Length => [job(4, BLOCK_BYTES), job(4, LONG_BYTES)],
        }
    }
}

/// Where reads are answered from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Answers {
    Hits,
    Misses,
}

impl Answers {
    const ALL: [Answers; 2] = [Answers::Hits, Answers::Misses];

    pub(in super::super) fn title(self) -> &'static str {
        match self {
            Answers::Hits => "random reads that hit",
            Answers::Misses => "random reads that miss",
        }
    }
}

/// Both clients, each alone and then both at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct Sample {
    alone: [Figures; 2],
    together: [Figures; 2],
}

impl Sample {
    fn over_alone(&self, client: usize) -> f64 {
        self.together[client].iops / self.alone[client].iops
    }
}

/// A difference, with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in super::super) struct Row {
    pub(in super::super) difference: Difference,
    pub(in super::super) answers: Answers,
    samples: Vec<Sample>,
}

impl Row {
    /// Requests a second of a client beside the other one.
    pub(in super::super) fn iops(&self, client: usize) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|sample| sample.together[client].iops))
    }

    /// The same over what it gets alone.
    pub(in super::super) fn over_alone(&self, client: usize) -> Option<Spread> {
        Spread::of(self.samples.iter().map(|sample| sample.over_alone(client)))
    }
}

/// About what one repetition takes.
pub(super) fn seconds() -> u64 {
    let phases = 3 * (HIT_SECONDS + MISS_SECONDS) * Difference::ALL.len() as u64;
    phases + Answers::ALL.len() as u64 * PREPARATION_SECONDS
}

/// All differences, hits and misses.
pub(super) fn measure(
    bench: Bench<'_>,
    repetitions: u32,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("two clients that differ");
    let mut rows = Vec::new();
    for answers in Answers::ALL {
        for difference in Difference::ALL {
            rows.push(Row { difference, answers, samples: Vec::new() });
        }
    }
    for repetition in 0..repetitions {
        for row in &mut rows {
            let (answers, difference) = (row.answers, row.difference);
            let name = format!("fairness/{answers:?}/{difference:?}/{repetition}");
            row.samples.push(progress.sample(&name, || sample(bench, difference, answers))?);
        }
    }
    for row in &rows {
        let text = |client| row.over_alone(client).map(|spread| spread.text(2)).unwrap_or_default();
        println!(
            "  {}, {}: over alone {} and {}",
            row.answers.title(),
            row.difference.title(),
            text(0),
            text(1)
        );
    }
    Ok(rows)
}

/// All phases, on a set that is made anew.
fn sample(bench: Bench<'_>, difference: Difference, answers: Answers) -> anyhow::Result<Sample> {
    interrupt::check()?;
    let daemon = bench.serve_cached(Origin::HardDisk, Order::Coalescing, SIZES)?;
    match answers {
        Answers::Hits => fill_cache(bench, &daemon, Work::Hits)?,
        Answers::Misses => bench.program.set(&daemon, "cache_mode=writeonly")?,
    }
    let jobs = difference.jobs(answers);
    let alone = |job| run_alone(bench, &daemon, job);
    let alone = [alone(&jobs[0])?, alone(&jobs[1])?];
    let together = fio::run_pair_over_nbd(&jobs, &daemon.uri, bench.ram.folder())?;
    daemon.server.kill()?;
    Ok(Sample { alone, together })
}

fn run_alone(bench: Bench<'_>, daemon: &Daemon, job: &Job) -> anyhow::Result<Figures> {
    fio::run_over_nbd(job, &daemon.uri, bench.ram.folder())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fio::Timeline;

    #[test]
    fn a_client_is_held_against_itself() {
        let figures = |iops: f64| Timeline::of(&[iops, iops]).figures;
        let sample = Sample {
            alone: [figures(100.0), figures(300.0)],
            together: [figures(25.0), figures(240.0)],
        };
        let (difference, answers) = (Difference::Depth, Answers::Misses);
        let row = Row { difference, answers, samples: vec![sample] };
        assert_eq!(row.over_alone(0).map(|spread| spread.median), Some(0.25));
        assert_eq!(row.over_alone(1).map(|spread| spread.median), Some(0.8));
        assert_eq!(row.iops(1).map(|spread| spread.median), Some(240.0));
    }
}
