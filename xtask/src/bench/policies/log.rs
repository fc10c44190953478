//! Policies on the log: figures of the engine itself.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::document::{blocks, cache, ratio};
use super::published::PUBLISHED;
use crate::bench::bounds::{Bound, Limit};
use crate::bench::document::table;
use crate::bench::spread::{Spread, number};

/// Of a trace, in a log of one size, under one policy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct OnLog {
    trace: String,
    block_bytes: u32,
    /// Size of the log, in percent of the different blocks.
    percent: u32,
    policy: String,
    segments: u64,
    /// Blocks of the trace that it held on an average, once full.
    cache_blocks: u64,
    miss_ratio: f64,
    promoted_bytes: u64,
    relocated_bytes: u64,
    /// Policies alone, in caches of as many blocks.
    clock2q: f64,
    lru: f64,
    min: f64,
}

impl OnLog {
    /// What the policy on the log closes of the way from LRU to MIN, both alone.
    fn gap(&self) -> f64 {
        (self.lru - self.miss_ratio) / (self.lru - self.min)
    }

    /// What the policy on the log does worse than it does alone, as far as that was looked at.
    fn alone(&self) -> Option<f64> {
        match self.policy.as_str() {
            "clock2q" => Some(self.clock2q),
            "lru" => Some(self.lru),
            _ => None,
        }
    }

    /// Times that what was promoted is written.
    fn copies(&self) -> f64 {
        let fills = self.promoted_bytes as f64;
        (fills + self.relocated_bytes as f64) / fills
    }
}

/// The bounds of the design.
pub(super) fn bounds(rows: &[OnLog]) -> Vec<Bound> {
    let ours: Vec<&OnLog> = rows.iter().filter(|row| row.policy == "clock2q").collect();
    let is_whole = ours.len() == PUBLISHED.len();
    let gaps = ours.iter().map(|row| row.gap());
    let mean = is_whole.then(|| gaps.clone().sum::<f64>() / ours.len() as f64);
    let most = rows.iter().map(OnLog::copies).reduce(f64::max);
    vec![
        Bound::new(
            format!("on the log: gap from LRU to MIN that clock2q closes, mean of {}", ours.len()),
            Limit::AtLeast(0.25),
            "",
            Spread::of(mean),
        ),
        Bound::new(
            format!("on the log: the same, the worst of {}", ours.len()),
            Limit::AtLeast(0.0),
            "",
            Spread::of(gaps.reduce(f64::min)),
        ),
        Bound::new(
            "on the log: times that a promoted block is written, the most of all policies"
                .to_owned(),
            Limit::AtMost(1.5),
            "",
            Spread::of(most),
        ),
    ]
}

/// The section of the document.
pub(super) fn text(rows: &[OnLog]) -> String {
    let header = [
        "trace, blocks",
        "log, segments",
        "policy",
        "blocks held",
        "on the log",
        "alone",
        "lru",
        "min",
        "gap closed",
        "written",
    ];
    let mut seen = BTreeSet::new();
    let lines = rows.iter().map(|row| {
        let is_first = seen.insert((&row.trace, row.block_bytes, row.percent));
        let place =
            [blocks(&row.trace, row.block_bytes), format!("{} ({} %)", row.segments, row.percent)];
        let place = if is_first { place } else { Default::default() };
        let alone = row.alone().map_or_else(|| "–".to_owned(), ratio);
        let ratios = [row.lru, row.min].map(ratio);
        [
            place.to_vec(),
            vec![row.policy.clone(), cache(row.cache_blocks), ratio(row.miss_ratio), alone],
            ratios.to_vec(),
            vec![number(row.gap(), 3), number(row.copies(), 2)],
        ]
        .concat()
    });
    "\
## On the log

The engine itself (`crates/advisor/benches/policies/log.rs`), with devices that keep no data:
clients read what was recorded, one request at a time, reads and writes alike, without the rule for
sequential streams. Extents of 64 KiB are requests of 16 blocks. A log gives up segments (here of
256 KiB), keeps some free, and spends blocks on headers; so it is made as large as it must be to
hold about 10 % or 20 % of the different blocks under clock2q, and compared with caches of single
blocks of the size that it held on an average, once full. The gap is that from LRU to MIN in such
caches. Written is how many times the cache device gets what is promoted, with the copies that
keeping costs, without headers; it is bounded to 1.5.

"
    .to_owned()
        + &table(&header, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, miss_ratio: f64) -> OnLog {
        OnLog {
            trace: "P2".to_owned(),
            block_bytes: 4096,
            percent: 10,
            policy: policy.to_owned(),
            segments: 100,
            cache_blocks: 4000,
            miss_ratio,
            promoted_bytes: 100,
            relocated_bytes: 40,
            clock2q: 0.4,
            lru: 0.5,
            min: 0.3,
        }
    }

    #[test]
    fn the_gap_is_that_of_caches_of_the_same_size_and_copies_count_on_top() {
        let row = row("clock2q", 0.45);
        assert!((row.gap() - 0.25).abs() < 1e-9);
        assert!((row.copies() - 1.4).abs() < 1e-9);
    }

    #[test]
    fn a_mean_of_some_points_is_none() {
        let some = [row("clock2q", 0.45), row("lru", 0.5)];
        assert_eq!(bounds(&some)[0].measured, "–");
        let all = vec![row("clock2q", 0.45); PUBLISHED.len()];
        assert_eq!(bounds(&all)[0].measured, "0.25");
    }
}
