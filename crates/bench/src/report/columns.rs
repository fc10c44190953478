//! The columns that the tables for people have, and figures as they stand in them.

use std::fmt;

use crate::plan::Published;
use crate::summary::{PhaseSummary, Spread, Summary, percentile};

/// Percentiles that the tables have; those of writes where nothing was read.
const SHOWN_PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

/// What the columns behind target, phase and clock are called, in the order of [`cells`].
pub(super) const HEADINGS: [&str; 15] = [
    "s",
    "first run s",
    "mean run s",
    "IOPS",
    "first 30 s",
    "last tenth",
    "hits",
    "p50 us",
    "p90 us",
    "p99 us",
    "fairness",
    "origin",
    "SSD written",
    "amplification",
    "CPU us",
];

/// Places in [`HEADINGS`] of what others publish.
const SECONDS: usize = 0;
const FIRST_RUN: usize = 1;
const MEAN_RUN: usize = 2;
const IOPS: usize = 3;
const FIRST_IOPS: usize = 4;
const LAST_IOPS: usize = 5;
const HITS: usize = 6;
const P50: usize = 7;
const P99: usize = 9;
const FAIRNESS: usize = 10;

/// A figure as people read it; empty if there is none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Cell {
    /// The median.
    pub(super) figure: String,
    /// The smallest and the largest, if they are told apart.
    pub(super) range: Option<String>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.figure)?;
        self.range.iter().try_for_each(|range| write!(f, " ({range})"))
    }
}

/// The figures of a phase.
pub(super) fn cells(phase: &PhaseSummary) -> [Cell; HEADINGS.len()] {
    let is_read = phase.read_us.iter().any(Option::is_some);
    let latencies = if is_read { &phase.read_us } else { &phase.write_us };
    let latency = |percent: f64| cell(percentile(latencies, percent), count);
    let [p50, p90, p99] = SHOWN_PERCENTILES.map(latency);
    [
        cell(phase.seconds, count),
        cell(phase.first_run_s, time),
        cell(phase.run_s, time),
        cell(phase.iops, count),
        cell(phase.first_iops, count),
        cell(phase.last_iops, count),
        cell(phase.hit_ratio, percent),
        p50,
        p90,
        p99,
        cell(phase.fairness, ratio),
        cell(phase.origin_bytes, bytes),
        cell(phase.cache_written_bytes, bytes),
        cell(phase.write_amplification, ratio),
        cell(phase.cpu_us, |us| format!("{us:.1}")),
    ]
}

/// What others published, in the same columns.
pub(super) fn published_cells(published: &Published) -> [Cell; HEADINGS.len()] {
    let single = |value| Spread::of(std::iter::once(value));
    let mut cells: [Cell; HEADINGS.len()] = Default::default();
    cells[SECONDS] = cell(published.seconds.and_then(single), count);
    cells[FIRST_RUN] = cell(published.first_run_s.and_then(single), time);
    cells[MEAN_RUN] = cell(published.run_s.and_then(single), time);
    cells[IOPS] = cell(published.iops.and_then(single), count);
    cells[FIRST_IOPS] = cell(published.first_iops.and_then(single), count);
    cells[LAST_IOPS] = cell(published.last_iops.and_then(single), count);
    cells[HITS] = cell(published.hit_ratio.and_then(single), percent);
    cells[P50] = cell(published.p50_us.and_then(single), count);
    cells[P99] = cell(published.p99_us.and_then(single), count);
    cells[FAIRNESS] = cell(published.fairness.and_then(single), ratio);
    cells
}

/// Places in [`HEADINGS`] of the columns in which something stands.
pub(super) fn shown(summary: &Summary) -> Vec<usize> {
    let phases = summary.targets.iter().flat_map(|target| &target.phases).map(cells);
    let rows: Vec<_> = phases.chain(summary.published.iter().map(published_cells)).collect();
    let is_shown = |place: &usize| rows.iter().any(|row| !row[*place].figure.is_empty());
    (0..HEADINGS.len()).filter(is_shown).collect()
}

/// What stands in the column of phases beside it.
pub(super) fn published_phase(published: &Published) -> String {
    let Published { phase, remark, .. } = published;
    let of = phase.as_ref().map(|phase| format!("{phase}, "));
    format!("{}as published {remark}", of.unwrap_or_default())
}

/// The values of all repetitions, each written in this way.
pub(super) fn cell(spread: Option<Spread>, text: impl Fn(f64) -> String) -> Cell {
    let Some(spread) = spread else { return Cell::default() };
    let (min, max) = (text(spread.min), text(spread.max));
    let range = (min != max).then(|| format!("{min}–{max}"));
    Cell { figure: text(spread.median), range }
}

/// A whole number, with commas between thousands.
pub(super) fn count(value: f64) -> String {
    // A half goes up, as on the page.
    let digits = format!("{:.0}", value.abs().round());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// A figure of any size: three decimals as long as they say something.
pub(super) fn number(value: f64) -> String {
    if value.abs() < 10.0 { ratio(value) } else { count(value) }
}

/// Seconds that are worth their hundredths.
fn time(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.2}") } else { format!("{seconds:.1}") }
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

pub(super) fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

fn bytes(value: f64) -> String {
    crate::size::text(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!(count(1_234_567.4), "1,234,567");
        assert_eq!((count(999.0), count(0.2)), ("999".to_owned(), "0".to_owned()));
        assert_eq!((count(130.5), count(131.5)), ("131".to_owned(), "132".to_owned()));
        let spread = Spread { median: 1000.0, min: 1000.2, max: 1000.3 };
        assert_eq!(cell(Some(spread), count).to_string(), "1,000");
        let spread = Spread { median: 1000.0, min: 900.0, max: 1100.0 };
        assert_eq!(cell(Some(spread), count).to_string(), "1,000 (900–1,100)");
        assert_eq!(cell(None, count).to_string(), "");
    }

    #[test]
    fn what_others_publish_has_its_columns() {
        let published = Published {
            seconds: Some(1298.0),
            first_run_s: Some(6.41),
            run_s: Some(3.35),
            iops: Some(1484.0),
            first_iops: Some(288.75),
            last_iops: Some(2060.0),
            hit_ratio: Some(0.736),
            p50_us: Some(135.0),
            p99_us: Some(175_000.0),
            fairness: Some(0.32),
            ..Published::default()
        };
        let cells = published_cells(&published);
        let texts = HEADINGS.iter().zip(&cells).map(|(heading, cell)| (*heading, &*cell.figure));
        let filled: Vec<_> = texts.filter(|(_, figure)| !figure.is_empty()).collect();
        let expected = [
            ("s", "1,298"),
            ("first run s", "6.41"),
            ("mean run s", "3.35"),
            ("IOPS", "1,484"),
            ("first 30 s", "289"),
            ("last tenth", "2,060"),
            ("hits", "73.60 %"),
            ("p50 us", "135"),
            ("p99 us", "175,000"),
            ("fairness", "0.320"),
        ];
        assert_eq!(filled, expected);
    }
}
