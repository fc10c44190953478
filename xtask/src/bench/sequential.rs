//! Sequential writes of more than the cache holds.
//!
//! Within each repetition the bare origin and the cached one take turns.

use serde::{Deserialize, Serialize};

use super::fio::{self, End, Job, Timeline};
use super::forebay::Order;
use super::interrupt;
use super::plan::Plan;
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes, mean};
use super::spread::Spread;

pub(super) const BLOCK_BYTES: u64 = 1 << 20;
pub(super) const DEPTH: u32 = 4;
/// From the beginning of the volume on.
pub(super) const WRITTEN_BYTES: u64 = 2 << 30;
/// The volume is so large that what is written lies in one of the sixteen zones of the emulated
/// hard disk: if the disk became slower on the way, the second half would differ by that alone.
pub(super) const SIZES: Sizes =
    Sizes { origin_bytes: 32 << 30, fill: Fill::Written(WRITTEN_BYTES), cache_bytes: 768 << 20 };
/// What origins and caches are expected to do, to say what a run takes.
const EXPECTED_RATE: u64 = 180 << 20;
const PHASE_SECONDS: u64 = 1;

/// The bare origin and the cached one, one after the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) bare: Timeline,
    pub(super) cached: Timeline,
}

impl Sample {
    /// Rate of the whole over that of the bare origin.
    pub(super) fn over_bare(&self) -> f64 {
        self.cached.figures.iops / self.bare.figures.iops
    }

    /// The same of the second half of the time alone, when the cache has no more room.
    pub(super) fn second_half_over_bare(&self) -> f64 {
        let seconds = &self.cached.per_second;
        mean(&seconds[seconds.len() / 2..]) / self.bare.figures.iops
    }
}

/// An origin with its repetitions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) origin: Origin,
    pub(super) samples: Vec<Sample>,
}

impl Row {
    pub(super) fn spread(&self, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
        Spread::of(self.samples.iter().map(value))
    }
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let phase = WRITTEN_BYTES / EXPECTED_RATE + PHASE_SECONDS;
    Origin::ALL.len() as u64 * u64::from(plan.repetitions) * 2 * phase
}

/// All origins.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    let (written, cache) = (WRITTEN_BYTES >> 20, SIZES.cache_bytes >> 20);
    println!("sequential writes: {written} MiB with {cache} MiB of cache");
    let mut rows = Vec::new();
    for origin in Origin::ALL {
        let mut row = Row { origin, samples: Vec::new() };
        for repetition in 0..plan.repetitions {
            let name = format!("sequential/{origin:?}/{repetition}");
            row.samples.push(progress.sample(&name, || sample(bench, origin))?);
        }
        println!(
            "  {:<24} {}x, second half {}x",
            origin.title(),
            row.spread(Sample::over_bare).map(|s| s.text(2)).unwrap_or_default(),
            row.spread(Sample::second_half_over_bare).map(|s| s.text(2)).unwrap_or_default(),
        );
        rows.push(row);
    }
    Ok(rows)
}

fn sample(bench: Bench<'_>, origin: Origin) -> anyhow::Result<Sample> {
    interrupt::check()?;
    let job = Job {
        pattern: "write",
        block_bytes: BLOCK_BYTES,
        depth: DEPTH,
        start_bytes: 0,
        span_bytes: WRITTEN_BYTES,
        end: End::Bytes(WRITTEN_BYTES),
        more: &[],
    };
    let (server, uri) = bench.serve_bare(origin, SIZES)?;
    let bare = fio::run_with_timeline(&job, &uri, bench.ram.folder())?;
    server.stop()?;
    let daemon = bench.serve_cached(origin, Order::Coalescing, SIZES)?;
    let cached = fio::run_with_timeline(&job, &daemon.uri, bench.ram.folder())?;
    daemon.server.kill()?;
    Ok(Sample { bare, cached })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_told_from_the_whole() {
        let cached = Timeline::of(&[300.0, 300.0, 100.0, 50.0]);
        let sample = Sample { bare: Timeline::of(&[100.0, 100.0]), cached };
        assert_eq!((sample.over_bare(), sample.second_half_over_bare()), (1.875, 0.75));
    }
}
