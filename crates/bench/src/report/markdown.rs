//! Tables that can be pasted where Markdown is read.

use std::fmt::Write;

use crate::compare::{Change, Verdict};
use crate::plan::Clock;
use crate::result::PERCENTILES;
use crate::summary::{PhaseSummary, Spread, Summary};

/// Percentiles that the table has; those of writes where nothing was read.
const SHOWN_PERCENTILES: [f64; 3] = [50.0, 90.0, 99.0];

/// The main figures of all targets, a row for each phase, then what others published.
#[must_use]
pub fn table(summary: &Summary) -> String {
    let mut text = format!("**{}**\n\n", summary.about);
    if !summary.source.is_empty() {
        let _ = writeln!(text, "{}\n", summary.source);
    }
    text.push_str(
        "| target | phase | clock | s | IOPS | first 30 s | last tenth | hits | p50 us | p90 us \
         | p99 us | fairness | origin | SSD written | CPU us |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for target in &summary.targets {
        for phase in &target.phases {
            let clock = target.clock.map_or("", Clock::name);
            let _ = writeln!(text, "| {} | {} | {clock} |{}", target.title, phase.name, row(phase));
        }
        for why in &target.failures {
            let why = why.replace('|', "\\|").replace('\n', " ");
            let _ = writeln!(text, "| {} | failed: {why} ||||||||||||||", target.title);
        }
    }
    for published in &summary.published {
        let iops = published.iops.map_or(String::new(), count);
        let hits = published.hit_ratio.map_or(String::new(), percent);
        let (title, remark) = (&published.title, &published.remark);
        let _ = writeln!(
            text,
            "| {title} | as published {remark} | real || {iops} ||| {hits} ||||||||"
        );
    }
    if summary.repetitions > 1 {
        text.push_str(
            "\nMedians of the repetitions, and in parentheses the smallest and largest.\n",
        );
    }
    text
}

fn row(phase: &PhaseSummary) -> String {
    let is_read = phase.read_us.iter().any(Option::is_some);
    let latencies = if is_read { &phase.read_us } else { &phase.write_us };
    let latency = |percent: f64| {
        let place = PERCENTILES.iter().position(|known| *known == percent);
        place.and_then(|place| *latencies.get(place)?)
    };
    let mut cells = vec![
        cell(phase.seconds, count),
        cell(phase.iops, count),
        cell(phase.first_iops, count),
        cell(phase.last_iops, count),
        cell(phase.hit_ratio, percent),
    ];
    cells.extend(SHOWN_PERCENTILES.map(|percent| cell(latency(percent), count)));
    cells.push(cell(phase.fairness, ratio));
    cells.push(cell(phase.origin_bytes, bytes));
    cells.push(cell(phase.cache_written_bytes, bytes));
    cells.push(cell(phase.cpu_us, |us| format!("{us:.1}")));
    cells.iter().fold(String::new(), |row, cell| row + " " + cell + " |")
}

/// What changed between two folders, a row for each figure.
#[must_use]
pub fn changes(changes: &[Change]) -> String {
    let mut text = String::from(
        "| target | phase | figure | before | after | ratio | |\n|---|---|---|--:|--:|--:|---|\n",
    );
    for change in changes {
        let verdict = match change.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "**worse**",
            Verdict::WithinNoise => "within noise",
            Verdict::Unknown => "one repetition: noise unknown",
        };
        let ratio = change.ratio.map_or(String::new(), ratio);
        let (before, after) = (figure(change.before), figure(change.after));
        let Change { target, phase, figure, .. } = change;
        let _ = writeln!(
            text,
            "| {target} | {phase} | {figure} | {before} | {after} | {ratio} | {verdict} |"
        );
    }
    text
}

/// A figure of any size.
fn figure(spread: Spread) -> String {
    let decimals = if spread.median.abs() < 10.0 { 3 } else { 0 };
    let text = |value: f64| {
        if decimals == 0 { count(value) } else { format!("{value:.decimals$}") }
    };
    cell(Some(spread), text)
}

fn cell(spread: Option<Spread>, text: impl Fn(f64) -> String) -> String {
    match spread {
        None => String::new(),
        Some(Spread { median, min, max }) if text(min) == text(max) => text(median),
        Some(Spread { median, min, max }) => {
            format!("{} ({}–{})", text(median), text(min), text(max))
        }
    }
}

/// A whole number, with commas between thousands.
fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

fn ratio(value: f64) -> String {
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
        let spread = Spread { median: 1000.0, min: 1000.2, max: 1000.3 };
        assert_eq!(cell(Some(spread), count), "1,000");
        let spread = Spread { median: 1000.0, min: 900.0, max: 1100.0 };
        assert_eq!(cell(Some(spread), count), "1,000 (900–1,100)");
        assert_eq!(cell(None, count), "");
    }
}
