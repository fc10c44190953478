//! Curves from samples against full replays of real traces.

use std::path::Path;

use forebay_advisor::curve::{ClientRequest, LruCurve, Miniature, MiniatureCurve, Rate, WhatIf};
use forebay_advisor::replay::{Case, Options, PolicyName, Replay};
use forebay_advisor::trace::{self, Request, TraceReader};
use forebay_engine::units::Time;

/// Largest error of a hit ratio.
const ERROR_MAX: f64 = 0.02;

/// The same at a fixed rate, for miniatures of so many blocks and up. Of smaller ones what the
/// sample happens to hold decides.
const FIXED_RATE_ERROR_MAX: f64 = 0.03;
const FIXED_RATE_BLOCKS_MIN: u32 = 512;

/// A trace, the bytes of its blocks, and how many different ones it has.
const TRACES: [(&str, u32, u32); 2] = [("P3", 4096, 102_345), ("OLTP", 512, 186_880)];

/// Sizes as parts of the working set.
const PARTS: [f64; 6] = [0.02, 0.05, 0.1, 0.2, 0.5, 0.9];

fn requests(name: &str) -> Vec<Request> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arc");
    let path = data.join(name).with_extension("txt.zst");
    let reader = TraceReader::open(&path, &trace::Options::default()).expect("it is there");
    reader.map(|request| request.expect("whole")).collect()
}

fn sizes(distinct_blocks: u32) -> [u32; PARTS.len()] {
    PARTS.map(|part| (part * f64::from(distinct_blocks)) as u32)
}

/// Hit ratios of a full replay.
fn replayed(
    policy: PolicyName,
    sizes: &[u32],
    requests: &[Request],
    options: &Options,
) -> Vec<f64> {
    let case = |size: &u32| Case { policy, cache_blocks: *size };
    let mut replay = Replay::new(&sizes.iter().map(case).collect::<Vec<_>>(), options);
    requests.iter().for_each(|request| replay.request(request));
    replay.finish().1.iter().map(|tally| tally.hit_ratio_blocks()).collect()
}

/// Largest difference of two curves, with what it is about.
fn error(about: &str, found: &[f64], expected: &[f64]) -> f64 {
    let differences = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
    let error = differences.fold(0.0, f64::max);
    println!("{about}: largest error {error:.4}: {found:.3?} where {expected:.3?}");
    error
}

#[test]
fn miniatures_find_what_a_full_replay_finds() {
    for (name, block_bytes, distinct_blocks) in TRACES {
        let options = Options { block_bytes, sequential_cutoff_bytes: 1 << 20 };
        let requests = requests(name);
        let sizes = sizes(distinct_blocks);
        let expected = replayed(PolicyName::Clock2q, &sizes, &requests, &options);
        let at = |rate: fn(u32) -> Rate| {
            let size = |size: &u32| Miniature { cache_blocks: *size, rate: rate(*size) };
            let miniatures: Vec<Miniature> = sizes.iter().map(size).collect();
            let mut curve = MiniatureCurve::new(&miniatures, &options);
            requests.iter().for_each(|request| curve.request(request));
            let misses = curve.misses(curve.totals());
            misses.iter().map(|size| size.hit_ratio_blocks(curve.totals())).collect::<Vec<f64>>()
        };
        let found = at(|size| Miniature::of(size).rate);
        let about = format!("{name} at the rates of its sizes");
        assert!(error(&about, &found, &expected) <= ERROR_MAX);
        for (found, one_in) in [(at(|_| Rate::one_in(32)), 32), (at(|_| Rate::one_in(128)), 128)] {
            let is_tiny = |size: &&u32| **size / one_in < FIXED_RATE_BLOCKS_MIN;
            let first = sizes.iter().take_while(is_tiny).count();
            assert!(first < sizes.len());
            let about = format!("{name} at 1/{one_in}");
            assert!(error(&about, &found[first..], &expected[first..]) <= FIXED_RATE_ERROR_MAX);
        }
    }
}

#[test]
fn reuse_distances_find_what_a_full_replay_of_lru_finds() {
    for (name, block_bytes, distinct_blocks) in TRACES {
        let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
        let requests = requests(name);
        let sizes = sizes(distinct_blocks);
        let expected = replayed(PolicyName::Lru, &sizes, &requests, &options);
        for sampled_blocks in [32_768, 8_192] {
            let mut curve = LruCurve::with_sample(&options, sampled_blocks);
            requests.iter().for_each(|request| curve.request(request));
            let found = sizes.map(|size| curve.hit_ratio(size.into()));
            let about = format!("{name} with {sampled_blocks} blocks");
            assert!(error(&about, &found, &expected) <= ERROR_MAX);
        }
    }
}

#[test]
fn beside_a_cache_at_work_other_sizes_are_known() {
    for (name, block_bytes, distinct_blocks) in TRACES {
        let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
        let requests = requests(name);
        let cache_blocks = distinct_blocks / 5;
        let mut what_if = WhatIf::new(cache_blocks.into());
        for (request, now_ms) in requests.iter().zip(0..) {
            what_if.note(Time(0).after_ms(now_ms), &ClientRequest::recorded(request, block_bytes));
        }
        let sizes = what_if.estimates().map(|estimate| estimate.cache_blocks as u32);
        let expected = replayed(PolicyName::Clock2q, &sizes, &requests, &options);
        let found = what_if.estimates().map(|estimate| estimate.hit_ratio.expect("evidence"));
        let about = format!("{name} beside {cache_blocks} blocks");
        assert!(error(&about, &found, &expected) <= ERROR_MAX);
    }
}
