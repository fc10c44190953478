//! Policies on paper: misses on recorded traces, and how fast they turn to other blocks.
//!
//! `cargo bench -p forebay-advisor --bench policies` prints a line of JSON for each point (a trace,
//! a size of blocks, a size of the cache), each trace that is left out, and each seed of the shift.
//! `cargo xtask bench policies` reads them. The traces are those of `tests/data/arc`, and those in
//! the folder that the environment variable `FOREBAY_TRACES` names: `FOLDER/FORMAT/NAME.*`.
//! `-- --seeds N` is the number of seeds.

mod points;

use forebay_advisor::replay::PolicyName;
use forebay_advisor::replay::shift::{self, Shift};

/// Seeds unless told.
const SEEDS: u64 = 15;
/// Policies that meet the shift.
const SHIFTED: [PolicyName; 3] = [PolicyName::Clock2q, PolicyName::Lru, PolicyName::Fifo];

fn main() {
    points::print();
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == "--seeds");
    let seeds = at.map_or(SEEDS, |at| arguments[at + 1].parse().expect("--seeds needs a number"));
    for policy in SHIFTED {
        for seed in 1..=seeds {
            print_shift(policy, &shift::measure(policy, seed).expect("it is no MIN"));
        }
    }
}

fn print_shift(policy: PolicyName, shift: &Shift) {
    let recovery =
        shift.recovery_caches.map_or_else(|| "null".to_owned(), |caches| caches.to_string());
    print_line(&[
        ("kind", quoted("shift")),
        ("policy", quoted(policy.name())),
        ("level_before", shift.level_before.to_string()),
        ("level_after", shift.level_after.to_string()),
        ("recovery_caches", recovery),
        ("lost_caches", shift.lost_caches.to_string()),
        ("lost_to_scan_caches", shift.lost_to_scan_caches.to_string()),
    ]);
}

/// Prints a JSON object of names and values.
fn print_line(fields: &[(&str, String)]) {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!(r#""{name}":{value}"#)).collect();
    println!("{{{}}}", fields.join(","));
}

/// A JSON string of a text without control characters.
fn quoted(text: &str) -> String {
    format!(r#""{}""#, text.replace('\\', r"\\").replace('"', r#"\""#))
}
