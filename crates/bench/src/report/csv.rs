//! All figures as comma-separated values, a line for each phase of a target.

use std::fmt::Write;

use crate::plan::Clock;
use crate::result::PERCENTILES;
use crate::summary::{PhaseSummary, Spread, Summary};

/// A figure and what its column is called.
type Column = (&'static str, fn(&PhaseSummary) -> Option<Spread>);

const COLUMNS: [Column; 12] = [
    ("seconds", |phase| phase.seconds),
    ("run_s", |phase| phase.run_s),
    ("first_run_s", |phase| phase.first_run_s),
    ("iops", |phase| phase.iops),
    ("iops_first_30_s", |phase| phase.first_iops),
    ("iops_last_tenth", |phase| phase.last_iops),
    ("hit_ratio", |phase| phase.hit_ratio),
    ("fairness", |phase| phase.fairness),
    ("origin_bytes", |phase| phase.origin_bytes),
    ("cache_written_bytes", |phase| phase.cache_written_bytes),
    ("write_amplification", |phase| phase.write_amplification),
    ("cpu_us_per_request", |phase| phase.cpu_us),
];

/// Medians, smallest and largest values of all repetitions. What there is no value of is empty.
#[must_use]
pub fn csv(summary: &Summary) -> String {
    let mut text = String::from("target,phase,clock,repetitions");
    let mut columns = |name: &str| {
        let _ = write!(text, ",{name},{name}_min,{name}_max");
    };
    for (name, _) in COLUMNS {
        columns(name);
    }
    for work in ["read", "write"] {
        for percent in PERCENTILES {
            columns(&format!("{work}_p{percent}_us"));
        }
    }
    text.push('\n');
    for target in &summary.targets {
        for phase in &target.phases {
            let clock = target.clock.map_or("", Clock::name);
            // Names have no commas; those of phases may have.
            let phase_name = phase.name.replace('"', "\"\"");
            let _ = write!(text, "{},\"{phase_name}\",{clock},{}", target.name, target.measured);
            let of_columns = COLUMNS.iter().map(|(_, value)| value(phase));
            let latencies = phase.read_us.iter().chain(&phase.write_us).copied();
            for spread in of_columns.chain(latencies) {
                match spread {
                    Some(Spread { median, min, max }) => {
                        let _ = write!(text, ",{median},{min},{max}");
                    }
                    None => text.push_str(",,,"),
                }
            }
            text.push('\n');
        }
    }
    text
}
