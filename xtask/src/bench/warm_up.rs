//! How long a cache may take to become warm, by the figures of a run of the plan `zipf`.
//!
//! A cache that fetches what was asked for, one block at a time, comes to a hit ratio when the
//! chance that a request is for a block never asked for before is as small as that. By then as many
//! misses were read as there are blocks that were asked for; the disk alone takes its time for
//! them, and a cache is given a fifth more.

use std::ops::Range;

use serde_json::Value;

use super::document::table;
use super::plan_report::PlanReport;
use super::spread::number;

/// Blocks of each of the two jobs of the plan, 2 GiB in blocks of 4 KiB, and how unequal they are.
const JOBS: u32 = 2;
const BLOCKS: u32 = 1 << 19;
const THETA: f64 = 1.2;
/// What a cache is given, over the time that the misses take on the bare disk.
const ALLOWANCE: f64 = 1.2;
/// Requests to each block, as logarithms, between which the number sought lies: from none worth
/// speaking of to more than any run has.
const REQUESTS_LOG: Range<f64> = 0.0..40.0;
/// Halvings of that range: it comes out to a millionth.
const HALVINGS: usize = 26;

/// Targets of the plan, what they begin with, and which share of the SSD's requests they have to
/// come to.
const TARGETS: [(&str, &str, f64); 2] = [("junk", "full of junk", 0.8), ("empty", "empty", 0.88)];

/// Of a target.
#[derive(Clone, Copy, PartialEq, Debug)]
struct WarmUp {
    /// The first second with the share of requests, from 1.
    second: usize,
    /// Its hit ratio.
    hit_ratio: f64,
    /// Requests until its end that missed.
    misses: f64,
}

/// A table for the document, with an empty line behind it.
pub(super) fn text(summary: &Value) -> String {
    let iops = |target: &str, phase: &str| {
        PlanReport::phase(summary, target, phase)?["iops"]["median"].as_f64()
    };
    let (ssd, disk) = (iops("ssd", "1 minute"), iops("hdd", "30 minutes"));
    let (Some(ssd), Some(disk)) = (ssd, disk) else { return "Not measured.\n\n".to_owned() };
    let rows = TARGETS.iter().filter_map(|(target, title, share)| {
        let samples = &PlanReport::phase(summary, target, "30 minutes")?["samples"];
        let WarmUp { second, hit_ratio, misses } = warm_up(samples, share * ssd)?;
        let blocks = f64::from(JOBS) * blocks_asked_for(BLOCKS, THETA, hit_ratio);
        let seconds = blocks / disk;
        Some(vec![
            (*title).to_owned(),
            share.to_string(),
            format!("{} %", number(hit_ratio * 100.0, 2)),
            format!("{} of {}", number(blocks, 0), number(f64::from(JOBS * BLOCKS), 0)),
            format!("{} s", number(seconds, 0)),
            format!("{} min", number(seconds * ALLOWANCE / 60.0, 1)),
            format!("{second} s, {} misses", number(misses, 0)),
        ])
    });
    let rate = format!("these, at {} reads/s", number(disk, 0));
    let allowed = format!("times {ALLOWANCE}");
    let headings = [
        "cache at the beginning",
        "of the SSD's IOPS",
        "hit ratio that this takes",
        "blocks asked for by then",
        &rate,
        &allowed,
        "forebay took",
    ];
    table(&headings, rows)
}

/// When a target came to so many requests a second.
fn warm_up(samples: &Value, iops: f64) -> Option<WarmUp> {
    let mut misses = 0.0;
    for (second, sample) in (1..).zip(samples.as_array()?) {
        let requests = sample["requests"].as_f64()?;
        let hit_ratio = sample["hit_ratio"].as_f64()?;
        misses += requests * (1.0 - hit_ratio);
        if requests >= iops {
            return Some(WarmUp { second, hit_ratio, misses });
        }
    }
    None
}

/// How many of `blocks` were asked for when, by Zipf's law, requests are for one of these as often
/// as `hit_ratio` says.
fn blocks_asked_for(blocks: u32, theta: f64, hit_ratio: f64) -> f64 {
    let weights: Vec<f64> = (1..=blocks).map(|rank| f64::from(rank).powf(-theta)).collect();
    let sum: f64 = weights.iter().sum();
    let never = |requests: f64, of: fn(f64) -> f64| -> f64 {
        weights.iter().map(|weight| of(weight / sum) * (-weight / sum * requests).exp()).sum()
    };
    let Range { start: mut low, end: mut high } = REQUESTS_LOG;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        let is_later = never(middle.exp(), |chance| chance) > 1.0 - hit_ratio;
        *(if is_later { &mut low } else { &mut high }) = middle;
    }
    f64::from(blocks) - never(high.exp(), |_| 1.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_asked_for_are_as_a_count_has_them() {
        // Equal chances: half of the blocks were asked for when every second request is for one
        // of them.
        let half = blocks_asked_for(1000, 0.0, 0.5);
        assert!((half - 500.0).abs() < 0.01, "{half}");
        // Two blocks with chances of 4/5 and 1/5 (theta 2), after ten requests, by hand.
        let two = blocks_asked_for(2, 2.0, 1.0 - 0.027_335_4);
        assert!((two - 1.864_329).abs() < 1e-4, "{two}");
    }

    #[test]
    fn a_target_is_warm_in_the_first_second_with_its_share() {
        let sample =
            |requests: f64, hit_ratio: f64| json!({"requests": requests, "hit_ratio": hit_ratio});
        let samples = Value::Array(vec![sample(10.0, 0.0), sample(80.0, 0.75), sample(90.0, 1.0)]);
        let warm = WarmUp { second: 2, hit_ratio: 0.75, misses: 30.0 };
        assert_eq!(warm_up(&samples, 80.0), Some(warm));
        assert_eq!(warm_up(&samples, 91.0), None);
        let phase = |name: &str, iops: f64| {
            let iops = json!({"median": iops});
            json!([{"name": name, "iops": iops, "samples": samples}])
        };
        let summary = json!({"targets": [
            {"name": "ssd", "phases": phase("1 minute", 100.0)},
            {"name": "hdd", "phases": phase("30 minutes", 1000.0)},
            {"name": "junk", "phases": phase("30 minutes", 57.0)}]});
        let text = text(&summary);
        assert!(text.contains("| full of junk | 0.8 | 75.00 % |"), "{text}");
        assert!(text.contains("| 2 s, 30 misses |"), "{text}");
        assert_eq!(super::text(&Value::Null), "Not measured.\n\n");
    }
}
