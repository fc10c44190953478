//! The first runs of the plan `uniform`: how near to the bare disk they are, and what reading ahead
//! takes of that.

use serde_json::Value;

use super::document::table;
use super::plan_report::PlanReport;
use super::spread::number;

/// A run of the plan, in seconds: one of the ten times that a phase is done.
const RUN_S: usize = 40;
/// Reads are of so many KB of 1,024 bytes.
const READ_KB: f64 = 4.0;
/// The disk alone, and caches with the default settings and without reading ahead.
const DISK: &str = "hdd";
const TARGETS: [&str; 2] = ["forebay", "no-read-ahead"];
/// What the disk does alone.
const NATIVE: &str = "native, 1 job";

/// For the document: the disk's rate, and a table with an empty line behind it.
pub(super) fn text(summary: &Value) -> (String, String) {
    let unknown = || ("an unknown number of".to_owned(), "Not measured.\n\n".to_owned());
    let native = PlanReport::phase(summary, DISK, NATIVE);
    let Some(disk) = native.and_then(|phase| first_run_kb(&phase["samples"])) else {
        return unknown();
    };
    let phases = summary["targets"].as_array().into_iter().flatten();
    let own = phases.filter(|target| target["name"] == TARGETS[0]);
    let names = own.flat_map(|target| target["phases"].as_array().into_iter().flatten());
    // Each test begins with one job.
    let names = names.filter_map(|phase| phase["name"].as_str()?.strip_suffix(", 1 job"));
    let rows = names.filter_map(|name| {
        let kb = |target: &str| {
            let phase = PlanReport::phase(summary, target, &format!("{name}, 1 job"))?;
            first_run_kb(&phase["samples"])
        };
        let [default, alone] = TARGETS.map(kb);
        let (default, alone) = (default?, alone?);
        let ratio = number(default / alone, 2);
        Some(vec![name.to_owned(), number(default, 1), number(alone, 1), ratio])
    });
    let headings = ["first run of test", "default settings, KB/s", "`read_ahead=0`, KB/s", "ratio"];
    (number(disk, 0), table(&headings, rows))
}

/// KB a second of the first run of a phase.
fn first_run_kb(samples: &Value) -> Option<f64> {
    let first = samples.as_array()?.get(..RUN_S)?;
    let requests: Option<f64> = first.iter().map(|sample| sample["requests"].as_f64()).sum();
    Some(requests? * READ_KB / RUN_S as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_runs_stand_beside_each_other() {
        let phase = |name: &str, requests: u64| {
            let mut samples = vec![json!({ "requests": requests }); RUN_S];
            samples.push(json!({ "requests": 1_000_000 }));
            json!({ "name": name, "samples": samples })
        };
        let target = |name: &str, phase: Value| json!({ "name": name, "phases": [phase] });
        let summary = json!({ "targets": [
            target(DISK, phase(NATIVE, 80)),
            target(TARGETS[0], phase("A, 1 job", 75)),
            target(TARGETS[1], phase("A, 1 job", 100)),
        ]});
        let (disk, table) = text(&summary);
        assert_eq!(disk, "320");
        assert!(table.contains("| A | 300.0 | 400.0 | 0.75 |"), "{table}");
        assert_eq!(text(&Value::Null).1, "Not measured.\n\n");
    }
}
