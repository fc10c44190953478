//! The bounds of the design, each against what was measured. Nothing here is written by hand: a
//! verdict follows from the figures of the same run.

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::document::GIB;
use super::fairness;
use super::flushed;
use super::forebay::Order;
use super::full;
use super::ground::Medium;
use super::misses;
use super::nbd::{self, Work};
use super::recovery;
use super::report::Report;
use super::sequential;
use super::slow::Origin;
use super::spread::{Spread, number};
use super::takeover::Takeovers;

/// Blocks of a batch from which on the bound on SSD bytes holds.
const BATCH_BLOCKS_MIN: f64 = 8.0;
/// What a figure is worth at most.
const DECIMALS_MAX: usize = 9;

/// Whether a bound is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Met,
    Missed,
    NotMeasured,
}

impl Verdict {
    pub(super) fn text(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// On which side of a limit a figure has to be.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Limit {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Limit {
    fn holds(self, value: f64) -> bool {
        match self {
            Limit::AtLeast(limit) => value >= limit,
            Limit::AtMost(limit) => value <= limit,
            Limit::Below(limit) => value < limit,
        }
    }

    /// The usual number of decimals, or as many more as it takes to see on which side `value` is.
    fn decimals(self, value: f64, usual: usize) -> usize {
        let tells = |decimals: &usize| {
            let rounded = format!("{value:.decimals$}").parse();
            rounded.is_ok_and(|rounded| self.holds(rounded) == self.holds(value))
        };
        (usual..=DECIMALS_MAX).find(tells).unwrap_or(usual)
    }

    pub(super) fn text(self, unit: &str) -> String {
        match self {
            Limit::AtLeast(limit) => format!("at least {limit}{unit}"),
            Limit::AtMost(limit) => format!("at most {limit}{unit}"),
            Limit::Below(limit) => format!("below {limit}{unit}"),
        }
    }
}

/// A bound, and how it stands.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bound {
    /// What is done.
    pub(super) work: String,
    pub(super) bound: String,
    pub(super) measured: String,
    pub(super) verdict: Verdict,
}

impl Bound {
    pub(super) fn new(work: String, limit: Limit, unit: &str, measured: Option<Spread>) -> Bound {
        let verdict = match measured {
            None => Verdict::NotMeasured,
            Some(spread) if limit.holds(spread.median) => Verdict::Met,
            Some(_) => Verdict::Missed,
        };
        let decimals = measured.map_or(2, |spread| limit.decimals(spread.median, 2));
        Bound { work, bound: limit.text(unit), measured: text(measured, decimals, unit), verdict }
    }

    /// A bound that somebody else has judged.
    pub(super) fn judged(
        work: String,
        limit: Limit,
        value: Option<f64>,
        verdict: Verdict,
    ) -> Bound {
        let usual = if value.is_some_and(|value| value.abs() < 10.0) { 3 } else { 2 };
        let decimals = value.map_or(usual, |value| limit.decimals(value, usual));
        let measured = text(Spread::of(value), decimals, "");
        Bound { work, bound: limit.text(""), measured, verdict }
    }
}

fn text(measured: Option<Spread>, decimals: usize, unit: &str) -> String {
    measured.map_or_else(|| "–".to_owned(), |spread| spread.text(decimals) + unit)
}

/// All bounds that the parts of `report` say something of.
pub(super) fn judge(report: &Report) -> Vec<Bound> {
    let mut bounds = Vec::new();
    if let Some(rows) = &report.nbd {
        bounds.extend(front_end_bounds(rows));
    }
    if let Some(engine) = &report.engine {
        bounds.extend(engine.rows.iter().map(|row| {
            let work = format!(
                "CPU of the engine on a hit, no I/O; {} extents, {} at a time",
                row.extents, row.depth
            );
            Bound::new(work, Limit::Below(1.5), " us", row.hit_us())
        }));
    }
    if let Some(rows) = &report.ssd_bytes {
        let batches = rows.iter().filter_map(|row| {
            let batch = row.spread(|sample| sample.batch_blocks)?;
            (batch.median >= BATCH_BLOCKS_MIN).then_some((row, batch.median))
        });
        bounds.extend(batches.map(|(row, batch)| {
            let title = &row.title;
            let work = format!("SSD bytes per client byte; {title}, batches of {batch:.0} blocks");
            let measured = row.spread(|sample| sample.written_per_byte);
            Bound::new(work, Limit::AtMost(1.5), "", measured)
        }));
    }
    if let Some(recovery) = &report.recovery {
        bounds.extend(recovery_bounds(&recovery.rows));
    }
    if let Some(rows) = &report.full {
        let has_bounds = |row: &&full::Row| row.work != full::Work::FlushEach;
        bounds.extend(rows.iter().filter(has_bounds).flat_map(full_cache_bounds));
    }
    if let Some(rows) = &report.fsync {
        let rows = rows.iter().filter(|row| row.order == Order::Coalescing);
        bounds.extend(rows.map(|row| {
            let work = format!(
                "4 KiB random write + fsync, QD1, during writeback, {}: IOPS over those of \
                 the bare fast device",
                row.origin.title()
            );
            Bound::new(work, Limit::AtLeast(0.7), "", row.spread(flushed::Sample::over_bare))
        }));
    }
    if let Some(rows) = &report.misses {
        bounds.extend(rows.iter().map(miss_bound));
    }
    if let Some(rows) = &report.sequential {
        bounds.extend(rows.iter().flat_map(sequential_bounds));
    }
    if let Some(fairness) = &report.fairness {
        bounds.extend(fairness.equal.iter().map(|row| {
            let work = format!("two equal clients, {}: less over more", row.work.title());
            let measured = row.spread(fairness::Sample::less_over_more);
            Bound::new(work, Limit::AtLeast(0.9), "", measured)
        }));
    }
    bounds.extend(report.takeovers.as_ref().map(takeover_bound));
    bounds
}

/// Of clients while another daemon takes over.
fn takeover_bound(takeovers: &Takeovers) -> Bound {
    let cached = number(takeovers.cached_bytes as f64 / GIB, 1);
    let work = format!("takeover, {cached} GiB cached: longest time between two answers");
    Bound::new(work, Limit::Below(200.0), " ms", takeovers.spread(|sample| sample.gap_ms))
}

/// Of reads that miss while writeback is under way, below the soft mark: of the mean, for writeback
/// has a share of the origin's time, and who comes while a transfer is under way waits for it.
fn miss_bound(row: &misses::Row) -> Bound {
    let work = format!(
        "4 KiB random read, misses, QD{}, emulated hard disk: mean latency during writeback over \
         that without",
        row.depth
    );
    Bound::new(work, Limit::AtMost(1.5), "", row.spread(misses::Sample::mean_ratio))
}

/// Of a sequential writer: of all of it, and of the part that the cache cannot make faster.
fn sequential_bounds(row: &sequential::Row) -> [Bound; 2] {
    let bound = |what: &str, measured| {
        let origin = row.origin.title();
        let work = format!("sequential writes larger than the cache, {origin}: {what}");
        Bound::new(work, Limit::AtLeast(0.95), "", measured)
    };
    let whole = row.spread(sequential::Sample::over_bare);
    let second_half = row.spread(sequential::Sample::second_half_over_bare);
    [
        bound("rate over the bare origin", whole),
        bound("the same, second half of the time alone", second_half),
    ]
}

/// Of work that fills the cache with dirty data.
fn full_cache_bounds(row: &full::Row) -> Vec<Bound> {
    let title = |what: &str| {
        format!("past a full cache, {}, {}: {what}", row.work.title(), row.origin.title())
    };
    let slowest = Bound::new(
        title("slowest five seconds over the bare origin"),
        Limit::AtLeast(0.9),
        "",
        row.spread_of(Order::Coalescing, full::Sample::slowest_over_bare),
    );
    let limit = match row.origin {
        Origin::HardDisk => 2.0,
        Origin::Throttled => 4.0,
    };
    let steady = (row.work == full::Work::Uniform).then(|| {
        let measured = row.spread_of(Order::Coalescing, full::Sample::steady_over_bare);
        let title = title("IOPS in the last third over the bare origin");
        Bound::new(title, Limit::AtLeast(limit), "", measured)
    });
    steady.into_iter().chain([slowest]).collect()
}

fn front_end_bounds(rows: &[nbd::Row]) -> Vec<Bound> {
    let iops = |sample: &nbd::Sample| sample.figures.iops;
    let cpu = nbd::Sample::cpu_per_million;
    let find = |medium, work, contender| {
        rows.iter()
            .find(|row| row.medium == medium && row.work == work && row.contender == contender)
    };
    let ratio = |medium, work, other, value: fn(&nbd::Sample) -> f64| {
        let ours = find(medium, work, Contender::Forebay)?;
        ratios(ours, find(medium, work, other)?, value)
    };
    let title = |medium: Medium, work: Work, what: &str| {
        format!("{}, {}: {what}", work.title(), medium.title())
    };
    let (ram, hits) = (Medium::Ram, Work::HitsDepth32);
    let mut bounds = vec![
        Bound::new(
            title(ram, hits, "IOPS over those of `nbdkit file`"),
            Limit::AtLeast(0.95),
            "",
            ratio(ram, hits, Contender::NbdkitFile, iops),
        ),
        Bound::new(
            title(ram, hits, "server CPU per request over that of `nbdkit file` (aim 0.7)"),
            Limit::AtMost(1.0),
            "",
            ratio(ram, hits, Contender::NbdkitFile, cpu),
        ),
    ];
    let what = "IOPS over those of the bare device through the same front end";
    let on_ram = "the same without any SSD, for which the bound was not made";
    for (work, limit) in [(Work::WritesDepth32, 0.9), (Work::WriteFlushDepth1, 0.7)] {
        for (medium, what) in [(Medium::Disk, what), (Medium::Ram, on_ram)] {
            let measured = ratio(medium, work, Contender::Bare, iops);
            let limit = Limit::AtLeast(limit);
            bounds.push(Bound::new(title(medium, work, what), limit, "", measured));
        }
    }
    bounds
}

/// `ours` over `theirs`, repetition by repetition.
pub(super) fn ratios(
    ours: &nbd::Row,
    theirs: &nbd::Row,
    value: impl Fn(&nbd::Sample) -> f64,
) -> Option<Spread> {
    let pairs = ours.samples.iter().zip(&theirs.samples);
    Spread::of(pairs.map(|(ours, theirs)| value(ours) / value(theirs)))
}

/// Of the largest log of each length of extents.
fn recovery_bounds(rows: &[recovery::Row]) -> Vec<Bound> {
    let limits = [(64 << 10, 10.0), (4 << 10, 90.0)];
    let largest = |extent_bytes: u64| {
        let rows = rows.iter().filter(move |row| row.extent_bytes == extent_bytes);
        rows.max_by_key(|row| row.cache_bytes)
    };
    let bound = |(extent_bytes, limit): (u64, f64)| {
        let work = format!(
            "recovery per TiB at 1 GB/s, extents of {} KiB (extrapolated)",
            extent_bytes >> 10
        );
        let measured =
            largest(extent_bytes).and_then(recovery::Row::seconds_per_tib_at_assumed_rate);
        Bound::new(work, Limit::AtMost(limit), " s", measured)
    };
    limits.into_iter().map(bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(limit: Limit, values: &[f64]) -> Verdict {
        Bound::new(String::new(), limit, "", Spread::of(values.iter().copied())).verdict
    }

    #[test]
    fn the_median_decides() {
        assert_eq!(verdict(Limit::AtLeast(0.9), &[0.95, 0.2, 0.9]), Verdict::Met);
        assert_eq!(verdict(Limit::AtLeast(0.9), &[0.95, 0.2, 0.89]), Verdict::Missed);
        assert_eq!(verdict(Limit::AtMost(1.0), &[1.0]), Verdict::Met);
        assert_eq!(verdict(Limit::Below(1.5), &[1.5]), Verdict::Missed);
        assert_eq!(verdict(Limit::Below(1.5), &[]), Verdict::NotMeasured);
    }

    #[test]
    fn a_figure_is_as_long_as_its_verdict_needs() {
        let measured =
            |limit, value| Bound::new(String::new(), limit, " s", Spread::of([value])).measured;
        assert_eq!(measured(Limit::AtLeast(0.95), 0.9496), "0.9496 s");
        assert_eq!(measured(Limit::AtLeast(0.95), 0.9543), "0.95 s");
        assert_eq!(measured(Limit::Below(1.5), 1.4999), "1.4999 s");
        let judged =
            Bound::judged(String::new(), Limit::AtLeast(1.0), Some(0.9996), Verdict::Missed);
        assert_eq!(judged.measured, "0.9996");
    }
}
