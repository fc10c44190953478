//! Policies on paper: misses on recorded traces, how fast they turn to other blocks, and how near
//! samples come to that.
//!
//! `cargo bench -p forebay-advisor --bench policies` prints a line of JSON for each point (a trace,
//! a size of blocks, a size of the cache), each trace that is left out, each seed of the shift, and
//! each figure of a sample. `cargo xtask bench policies` reads them. The traces are those of
//! `tests/data/arc`, and those in the folder that the environment variable `FOREBAY_TRACES` names:
//! `FOLDER/FORMAT/NAME.*`. `-- --parts misses,log,shift,sampling` chooses parts, `--seeds N` is the
//! number of seeds, `--sizes N:NS,N:NS` are the caches in blocks beside which the live curve is
//! timed, each with the nanoseconds of a hit of the engine.

mod cost;
#[path = "../../../engine/benches/hit/devices.rs"]
mod devices;
mod log;
mod points;
mod sampling;
mod traces;

use forebay_advisor::replay::PolicyName;
use forebay_advisor::replay::shift::{self, Shift};
use traces::Trace;

/// Seeds unless told.
const SEEDS: &str = "15";
/// Caches unless told, and hits as they were measured once.
const SIZES: &str = "16384:300,1048576:700,67108864:3000";
/// Policies that meet the shift.
const SHIFTED: [PolicyName; 3] = [PolicyName::Clock2q, PolicyName::Lru, PolicyName::Fifo];

fn main() {
    let parts = option("--parts", "misses,log,shift,sampling");
    let is_wanted = |name: &str| parts.split(',').any(|part| part == name);
    let traces = match ["misses", "log", "sampling"].into_iter().any(is_wanted) {
        true => traces::find(),
        false => Vec::new(),
    };
    for trace in &traces {
        let is_sampled = sampling::TRACES.contains(&trace.name().as_str());
        let has_part = is_wanted("misses") || is_wanted("log") || is_sampled;
        if let Err(error) = if has_part { measure(trace, is_wanted) } else { Ok(()) } {
            traces::print_skip(&trace.name(), &error);
        }
    }
    if is_wanted("sampling") {
        let sizes = option("--sizes", SIZES);
        for size in sizes.split(',').filter(|size| !size.is_empty()) {
            let (blocks, hit_ns) = size.split_once(':').expect("--sizes needs BLOCKS:NS");
            let number = |text: &str| text.parse().expect("--sizes needs numbers");
            cost::print_hits(number(blocks), number(hit_ns));
        }
    }
    if is_wanted("shift") {
        let seeds: u64 = option("--seeds", SEEDS).parse().expect("--seeds needs a number");
        for policy in SHIFTED {
            for seed in 1..=seeds {
                print_shift(policy, &shift::measure(policy, seed).expect("it is no MIN"));
            }
        }
    }
}

/// What follows `name` on the command line, or else `usual`.
fn option(name: &str, usual: &str) -> String {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    match arguments.next() {
        Some(_) => arguments.next().unwrap_or_else(|| panic!("{name} needs a value")),
        None => usual.to_owned(),
    }
}

/// Prints the lines of a trace.
fn measure(trace: &Trace, is_wanted: impl Fn(&str) -> bool) -> Result<(), String> {
    let requests = trace.requests()?;
    for block_bytes in trace.block_sizes() {
        if is_wanted("misses") {
            points::print(trace, &requests, *block_bytes);
        }
        if is_wanted("log") && log::TRACES.contains(&trace.name().as_str()) {
            log::print(trace, &requests, *block_bytes);
        }
        if is_wanted("sampling") && sampling::TRACES.contains(&trace.name().as_str()) {
            sampling::print(trace, &requests, *block_bytes);
        }
    }
    Ok(())
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
