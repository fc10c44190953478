//! Samples beside full replays: how far off the advisor's curves are, and the live one of a cache
//! at work, with its cost.

use serde::{Deserialize, Serialize};

use super::document::{blocks, cache, left_out, ratio};
use super::{Figures, Size};
use crate::bench::bounds::{Bound, Limit};
use crate::bench::document::{cell, table};
use crate::bench::spread::{Spread, number};

const MIB: f64 = (1u64 << 20) as f64;
/// Largest error of a curve from whole miniatures, in thousandths: what `docs/advise.md` promises,
/// and what the live curve is made for.
const ERROR_THOUSANDTHS: f64 = 20.0;
/// Cost of the live curve, in percent of what a hit costs the engine.
const LIVE_PERCENT: f64 = 1.0;
const LIVE_MIB: f64 = 2.0;

/// Errors of a miss ratio that a simulator of another make found at 1/32 and 1/128, for a near
/// relative of clock2q (small queue of 5 %, memory of half the cache) in a cache of 10 %. It was
/// written to choose the policy. The largest of all its points were .014 and .018.
const FOUND_BEFORE: [(&str, u32, [f64; 2]); 3] = [
    ("OLTP", 512, [0.003, -0.0021]),
    ("P2", 4096, [0.0, 0.0111]),
    ("cloudPhysicsIO", 4096, [-0.0138, -0.0171]),
];
const FOUND_BEFORE_THOUSANDTHS: [f64; 2] = [14.0, 18.0];

/// Miss ratios of a trace in a cache of one size under one policy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Sampled {
    trace: String,
    block_bytes: u32,
    percent: u32,
    cache_blocks: u64,
    policy: String,
    full: f64,
    /// Of several samples, the first of the trace as it is.
    one_in_32: Vec<f64>,
    one_in_128: Vec<f64>,
    /// As `forebay advise` has it, and the part of the blocks that it then looks at.
    advised: f64,
    advised_rate: f64,
}

impl Sampled {
    /// Errors of all samples.
    fn errors(&self, samples: &[f64]) -> Option<Spread> {
        Spread::of(samples.iter().map(|sample| sample - self.full))
    }

    fn found_before(&self) -> Option<[f64; 2]> {
        let is_this = |(trace, block_bytes, _): &&(&str, u32, [f64; 2])| {
            (*trace, *block_bytes) == (self.trace.as_str(), self.block_bytes)
        };
        let is_known = self.policy == "clock2q" && self.percent == 10;
        FOUND_BEFORE.iter().find(is_this).filter(|_| is_known).map(|(_, _, errors)| *errors)
    }
}

/// What the live curve says of a size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Live {
    trace: String,
    block_bytes: u32,
    /// The cache beside which it is.
    at_work_blocks: u64,
    cache_blocks: u64,
    /// Part of the blocks that are simulated.
    rate: f64,
    full: f64,
    /// None if it does not know by the end of the trace.
    live: Option<f64>,
    /// The same where nine requests of ten are passed over, for the trace again and again.
    heavy_full: f64,
    heavy_live: Option<f64>,
}

/// What the live curve costs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LiveCost {
    /// A recorded trace, or `hits`.
    trace: String,
    block_bytes: u32,
    /// The cache beside which it is.
    cache_blocks: u64,
    /// Mean blocks of a request.
    request_blocks: f64,
    /// CPU time of a request under a light load, each time it was measured.
    request_ns: Vec<f64>,
    /// The same where hits come as fast as the engine answers them; none of recorded traces.
    busy_ns: Option<Vec<f64>>,
    memory_bytes: u64,
}

impl LiveCost {
    fn is_of_hits(&self) -> bool {
        self.trace == "hits"
    }

    fn request(&self) -> Option<Spread> {
        Spread::of(self.request_ns.iter().copied())
    }

    fn busy(&self) -> Option<Spread> {
        Spread::of(self.busy_ns.iter().flatten().copied())
    }

    /// The engine in an index of as many blocks, if there is one and it had the same requests.
    fn engine<'a>(&self, sizes: &'a [Size]) -> Option<&'a Size> {
        let is_this = |size: &&Size| size.extent_blocks == 1 && size.extents == self.cache_blocks;
        sizes.iter().find(is_this).filter(|_| self.is_of_hits())
    }

    /// The time in percent of that of the engine where it does nothing else, for each pair of
    /// measurements.
    fn percent(&self, sizes: &[Size]) -> Option<Spread> {
        let hits = &self.engine(sizes)?.hit_ns;
        let busy_ns = self.busy_ns.iter().flatten();
        let pairs =
            busy_ns.flat_map(|busy_ns| hits.iter().map(move |hit_ns| 100.0 * busy_ns / hit_ns));
        Spread::of(pairs)
    }
}

/// What is to be held of samples.
pub(super) fn bounds(figures: &Figures) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let [at_32, at_128] = FOUND_BEFORE_THOUSANDTHS;
    let bound = |policy: &str, what: &str, limit: f64, found: fn(&Sampled) -> f64| {
        let of_policy = figures.sampled.iter().filter(|sampled| sampled.policy == policy);
        let count = of_policy.clone().count();
        let title = format!("curve of {policy} {what}: largest error of {count} points");
        errors_bound(title, limit, of_policy.map(|sampled| found(sampled) - sampled.full))
    };
    bounds.push(bound("clock2q", "as advised", ERROR_THOUSANDTHS, |sampled| sampled.advised));
    bounds.push(bound("lru", "as advised", ERROR_THOUSANDTHS, |sampled| sampled.advised));
    bounds.push(bound("clock2q", "from 1/32 of the blocks", at_32, |sampled| sampled.one_in_32[0]));
    bounds.push(bound("clock2q", "from 1/128 of the blocks", at_128, |sampled| {
        sampled.one_in_128[0]
    }));
    // Whatever is not known by the end is beyond every bound.
    let lives = figures.lives.iter();
    let errors = lives.map(|live| live.live.map_or(f64::INFINITY, |found| found - live.full));
    let title = format!("live curve: largest error of {} sizes", figures.lives.len());
    bounds.push(errors_bound(title, ERROR_THOUSANDTHS, errors));
    let lives = figures.lives.iter();
    let errors =
        lives.map(|live| live.heavy_live.map_or(f64::INFINITY, |found| found - live.heavy_full));
    let title = "the same under a load of which nine tenths are passed over".to_owned();
    bounds.push(errors_bound(title, ERROR_THOUSANDTHS, errors));
    let memory = figures.live_costs.iter().map(|cost| cost.memory_bytes as f64 / MIB);
    bounds.push(Bound::new(
        "live curve: memory, the most of all".to_owned(),
        Limit::Below(LIVE_MIB),
        " MiB",
        Spread::of(memory.reduce(f64::max)),
    ));
    let of_hits = figures.live_costs.iter().filter(|cost| cost.is_of_hits());
    bounds.extend(of_hits.map(|cost| {
        let size = cache_size(cost.cache_blocks);
        let title = format!("live curve beside a cache of {size}: CPU of a request over a hit's");
        Bound::new(title, Limit::AtMost(LIVE_PERCENT), " %", cost.percent(&figures.sizes))
    }));
    bounds
}

fn errors_bound(title: String, limit: f64, errors: impl Iterator<Item = f64>) -> Bound {
    let largest = errors.map(|error| error.abs() * 1e3).reduce(f64::max);
    Bound::new(title + ", in thousandths", Limit::AtMost(limit), "", Spread::of(largest))
}

/// A cache of blocks of 4 KiB.
fn cache_size(cache_blocks: u64) -> String {
    let mib = (cache_blocks * 4096) as f64 / MIB;
    if mib < 1024.0 { format!("{mib} MiB") } else { format!("{} GiB", mib / 1024.0) }
}

/// The part of the document.
pub(super) fn text(figures: &Figures) -> String {
    let samples = figures.sampled.first().map_or(0, |sampled| sampled.one_in_32.len());
    let smallest = figures.sampled.iter().map(|sampled| sampled.cache_blocks).min().unwrap_or(0);
    format!(
        "\
## Sampling

`forebay advise` does not replay the whole trace for each size of the cache: a sample of the blocks
goes through miniatures under clock2q, and through reuse distances for LRU (SHARDS). Here are miss
ratios by block from samples beside those of full replays, at the points above and under the same
rules. As advised, a miniature has 16,384 blocks, or all of the cache's, and LRU 32,768 sampled
blocks; a part of 1 is the whole trace, and no sample. At fixed rates miniatures are much smaller
here: that of the smallest cache has {} blocks at 1/32.

Which blocks are in a sample is decided by a hash of volume and block. The first error of a fixed
rate is that of the trace as it is; behind it stands the median of {samples} samples, with the
smallest and the largest: the same trace as if it were of other volumes. A median far from 0 is no
chance; chance is how far the ends lie apart.

",
        number(smallest as f64 / 32.0, 0),
    ) + "### Curve of clock2q\n\n"
        + &curve_table(&figures.sampled, "clock2q")
        + FOUND_BEFORE_TEXT
        + &before_table(&figures.sampled)
        + "### Curve of LRU\n\n"
        + &curve_table(&figures.sampled, "lru")
        + &left_out(&figures.skips)
        + LIVE_TEXT
        + &live_table(&figures.lives)
        + COST_TEXT
        + &cost_table(figures)
}

const FOUND_BEFORE_TEXT: &str = "\
Errors that a simulator of another make found, with another hash, for a near relative of the policy
(small queue of 5 %, memory of half the cache) in a cache of 10 %. At most they were .014 at 1/32
and .018 at 1/128, other traces included; these are the limits above.

";

const LIVE_TEXT: &str = "\
### Live curve

Miniatures of half, once, twice and four times a cache at work (`WhatIf`), here a cache of 10 % of
the different blocks; miss ratios at the end of the trace, beside the full replay of the whole. The
live curve counts recent requests most: all its counts are halved once a day. The traces are shorter
or have no times, so that nothing fades here; one that changes from day to day would differ.

Under a heavy load the curve takes rests. For the columns that say so the trace comes again and
again, so fast that nine requests of ten are passed over, until there were 16 slices; beside them
the full replay of its 9th to 16th time. Slices lie where they happen to, and a trace that is
no even load has other misses in each.

";

const COST_TEXT: &str = "\
### Cost of the live curve

CPU time of a request that is noted, once the miniatures are full, and memory. Hits are random reads
of 4 KiB that all hit, as those of the engine's bench. Beside small caches most blocks are simulated
while the load is light; a request of several pays for each. All of that takes a ninth of a percent
of a processor at most: beyond it the curve takes rests. So there is a second figure for hits that
come as fast as the engine answers them; beside it stands what such a hit costs the engine itself in
an index of as many extents, measured in the same run, and the share by each pair of measurements.

";

fn curve_table(sampled: &[Sampled], policy: &str) -> String {
    let header = [
        "trace, blocks",
        "cache, blocks",
        "full",
        "as advised",
        "part",
        "error",
        "1/32",
        "error",
        "samples",
        "1/128",
        "error",
        "samples",
    ];
    let of_policy = sampled.iter().filter(|sampled| sampled.policy == policy);
    let rows = of_policy.map(|sampled| {
        let full = sampled.full;
        let fixed = |samples: &[f64]| {
            [ratio(samples[0]), error(samples[0] - full), cell(sampled.errors(samples), 3)]
        };
        let advised = [
            ratio(full),
            ratio(sampled.advised),
            number(sampled.advised_rate, 2),
            error(sampled.advised - full),
        ];
        [
            place(sampled).to_vec(),
            advised.to_vec(),
            fixed(&sampled.one_in_32).to_vec(),
            fixed(&sampled.one_in_128).to_vec(),
        ]
        .concat()
    });
    table(&header, rows)
}

fn place(sampled: &Sampled) -> [String; 2] {
    [
        blocks(&sampled.trace, sampled.block_bytes),
        format!("{} ({} %)", cache(sampled.cache_blocks), sampled.percent),
    ]
}

fn before_table(sampled: &[Sampled]) -> String {
    let header =
        ["trace, blocks", "cache, blocks", "1/32: here", "before", "1/128: here", "before"];
    let rows = sampled.iter().filter_map(|sampled| {
        let [at_32, at_128] = sampled.found_before()?;
        let here = |samples: &[f64]| error(samples[0] - sampled.full);
        let figures =
            [here(&sampled.one_in_32), error(at_32), here(&sampled.one_in_128), error(at_128)];
        Some([place(sampled).to_vec(), figures.to_vec()].concat())
    });
    table(&header, rows)
}

fn live_table(lives: &[Live]) -> String {
    let header = [
        "trace, blocks",
        "cache, blocks",
        "times",
        "part",
        "full",
        "live",
        "error",
        "heavy: full",
        "live",
        "error",
    ];
    let rows = lives.iter().map(|live| {
        let known = |found: Option<f64>, text: &dyn Fn(f64) -> String| {
            found.map_or_else(|| "–".to_owned(), text)
        };
        vec![
            blocks(&live.trace, live.block_bytes),
            cache(live.cache_blocks),
            number(live.cache_blocks as f64 / live.at_work_blocks as f64, 1),
            number(live.rate, 2),
            ratio(live.full),
            known(live.live, &ratio),
            known(live.live, &|found| error(found - live.full)),
            ratio(live.heavy_full),
            known(live.heavy_live, &ratio),
            known(live.heavy_live, &|found| error(found - live.heavy_full)),
        ]
    });
    table(&header, rows)
}

fn cost_table(figures: &Figures) -> String {
    let header = [
        "requests",
        "cache, blocks",
        "blocks a request",
        "memory, KiB",
        "ns of CPU a request, light load",
        "as fast as the engine",
        "ns of CPU per hit of the engine",
        "percent of it",
    ];
    let rows = figures.live_costs.iter().map(|cost| {
        vec![
            blocks(&cost.trace, cost.block_bytes),
            cache(cost.cache_blocks),
            number(cost.request_blocks, 1),
            number(cost.memory_bytes as f64 / 1024.0, 0),
            cell(cost.request(), 1),
            cell(cost.busy(), 1),
            cell(cost.engine(&figures.sizes).and_then(Size::hit), 0),
            cell(cost.percent(&figures.sizes), 2),
        ]
    });
    table(&header, rows)
}

/// A difference of miss ratios, with its sign.
fn error(value: f64) -> String {
    let text = number(value, 3);
    match text.as_str() {
        "-0.000" => "0.000".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::bounds::Verdict;
    use crate::bench::policies::tests::{figures, size};

    fn sampled(trace: &str, percent: u32, full: f64) -> Sampled {
        Sampled {
            trace: trace.to_owned(),
            block_bytes: 4096,
            percent,
            cache_blocks: 12_030,
            policy: "clock2q".to_owned(),
            full,
            one_in_32: vec![full - 0.0125, full + 0.5],
            one_in_128: vec![full + 0.0185, full],
            advised: full,
            advised_rate: 1.0,
        }
    }

    fn live(live: Option<f64>) -> Live {
        Live {
            trace: "P2".to_owned(),
            block_bytes: 4096,
            at_work_blocks: 10,
            cache_blocks: 20,
            rate: 1.0,
            full: 0.5,
            live,
            heavy_full: 0.5,
            heavy_live: Some(0.5),
        }
    }

    fn cost(trace: &str, request_ns: f64) -> LiveCost {
        LiveCost {
            trace: trace.to_owned(),
            block_bytes: 4096,
            cache_blocks: 1 << 20,
            request_blocks: 1.0,
            request_ns: vec![20.0 * request_ns],
            busy_ns: (trace == "hits").then(|| vec![request_ns]),
            memory_bytes: 2 << 20,
        }
    }

    fn verdict(bounds: &[Bound], start: &str) -> Verdict {
        bounds.iter().find(|bound| bound.work.starts_with(start)).expect("it is judged").verdict
    }

    #[test]
    fn errors_count_whatever_their_sign() {
        let figures = figures(|figures| {
            figures.sampled = vec![sampled("P2", 10, 0.5)];
            figures.lives = vec![live(Some(0.475)), live(Some(0.51))];
        });
        let bounds = bounds(&figures);
        assert_eq!(verdict(&bounds, "curve of clock2q as advised"), Verdict::Met);
        assert_eq!(verdict(&bounds, "curve of clock2q from 1/32"), Verdict::Met);
        assert_eq!(verdict(&bounds, "curve of clock2q from 1/128"), Verdict::Missed);
        assert_eq!(verdict(&bounds, "curve of lru"), Verdict::NotMeasured);
        assert_eq!(verdict(&bounds, "live curve: largest"), Verdict::Missed);
    }

    #[test]
    fn what_the_live_curve_does_not_know_is_an_error() {
        let figures = figures(|figures| figures.lives = vec![live(Some(0.5)), live(None)]);
        assert_eq!(verdict(&bounds(&figures), "live curve: largest"), Verdict::Missed);
        assert!(live_table(&figures.lives).contains("| – | – |"));
        assert_eq!(verdict(&bounds(&figures), "the same under a load"), Verdict::Met);
    }

    #[test]
    fn cost_is_held_against_a_hit_in_an_index_of_the_same_size() {
        let sizes = [size(1 << 14, 5.0, 1.0), size(1 << 20, 500.0, 1.0)];
        assert_eq!(cost("hits", 5.5).percent(&sizes).map(|spread| spread.median), Some(1.1));
        assert_eq!(cost("P2", 5.5).percent(&sizes), None);
        let figures = figures(|figures| {
            figures.sizes = sizes.to_vec();
            figures.live_costs = vec![cost("P2", 900.0), cost("hits", 5.0)];
        });
        let bounds = bounds(&figures);
        assert_eq!(verdict(&bounds, "live curve beside a cache of 4 GiB"), Verdict::Met);
        assert_eq!(verdict(&bounds, "live curve: memory"), Verdict::Missed);
    }

    #[test]
    fn what_was_found_before_stands_beside_its_point_alone() {
        assert_eq!(sampled("P2", 10, 0.5).found_before(), Some([0.0, 0.0111]));
        assert_eq!(sampled("P2", 20, 0.5).found_before(), None);
        assert_eq!(sampled("P3", 10, 0.5).found_before(), None);
        let lru = Sampled { policy: "lru".to_owned(), ..sampled("P2", 10, 0.5) };
        assert_eq!(lru.found_before(), None);
    }

    #[test]
    fn an_error_of_nothing_has_no_sign() {
        assert_eq!([error(-0.0004), error(-0.0006), error(0.0)], ["0.000", "-0.001", "0.000"]);
    }
}
