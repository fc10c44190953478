//! Miss ratios on real traces, against published ones.
//!
//! The figures are those of libCacheSim 0.3.5 for unit-size blocks, cold misses included, in caches
//! of 10 % and 20 % of the different blocks. FIFO, LRU and MIN have one meaning, so they agree to
//! three digits.

use std::path::Path;

use forebay_advisor::replay::{Case, Options, PolicyName, Replay};
use forebay_advisor::trace::{self, TraceReader};

/// A trace in a cache of so many blocks, and what was published.
struct Row {
    trace: &'static str,
    block_bytes: u32,
    cache_blocks: u32,
    fifo: f64,
    lru: f64,
    min: f64,
}

const ROWS: [Row; 4] = [
    Row {
        trace: "P3",
        block_bytes: 4096,
        cache_blocks: 10_234,
        fifo: 0.731,
        lru: 0.735,
        min: 0.391,
    },
    Row {
        trace: "P3",
        block_bytes: 4096,
        cache_blocks: 20_469,
        fifo: 0.483,
        lru: 0.428,
        min: 0.257,
    },
    Row {
        trace: "OLTP",
        block_bytes: 512,
        cache_blocks: 18_688,
        fifo: 0.367,
        lru: 0.335,
        min: 0.238,
    },
    Row {
        trace: "OLTP",
        block_bytes: 512,
        cache_blocks: 37_376,
        fifo: 0.307,
        lru: 0.280,
        min: 0.209,
    },
];

/// Miss ratios by block of all policies, in the order of [`PolicyName::ALL`].
fn miss_ratios(row: &Row) -> [f64; 4] {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arc");
    let path = data.join(row.trace).with_extension("txt.zst");
    let cases = PolicyName::ALL.map(|policy| Case { policy, cache_blocks: row.cache_blocks });
    let options = Options { block_bytes: row.block_bytes, sequential_cutoff_bytes: 0 };
    let mut replay = Replay::new(&cases, &options);
    for request in TraceReader::open(&path, &trace::Options::default()).expect("it is there") {
        replay.request(&request.expect("whole"));
    }
    let (_, tallies) = replay.finish();
    std::array::from_fn(|index| 1.0 - tallies[index].hit_ratio_blocks())
}

#[test]
fn policies_miss_as_much_as_was_published_and_ours_less() {
    let mut gaps = Vec::new();
    for row in ROWS {
        let [clock2q, lru, fifo, min] = miss_ratios(&row);
        for (name, found, published) in
            [("fifo", fifo, row.fifo), ("lru", lru, row.lru), ("min", min, row.min)]
        {
            let at = format!("{name}, {} at {}", row.trace, row.cache_blocks);
            assert!((found - published).abs() < 0.0005, "{at}: {found} where {published}");
        }
        let gap = (lru - clock2q) / (lru - min);
        assert!(gap > 0.0, "{} at {}: worse than LRU", row.trace, row.cache_blocks);
        gaps.push(gap);
    }
    // A regression would show here before the mean over all traces is measured.
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    assert!(mean > 0.2, "closes {gaps:.3?} of the gap from LRU to MIN");
}
