//! The report for a terminal: a table with a curve, and what follows from it.

use std::fmt::Write;
use std::path::Path;

use forebay_advisor::advice::{Recommendation, Report, SizeOutcome};
use forebay_advisor::profile::{Kind, Profile};

use super::Document;
use crate::size;

/// Columns of the curve.
const CURVE_COLUMNS: usize = 20;
/// Columns of paragraphs.
const TEXT_COLUMNS: usize = 80;

/// The whole report.
pub(super) fn text(document: &Document, html: Option<&Path>) -> String {
    let Document { traces, report } = document;
    let mut text = String::new();
    for trace in traces {
        push(&mut text, format_args!("{} ({})", trace.path, trace.format));
    }
    workload(&mut text, &report.profile);
    table(&mut text, report);
    figures(&mut text, report);
    recommendation(&mut text, &report.recommendation);
    if let Some(html) = html {
        push(&mut text, format_args!("\nCharts are in {}", html.display()));
    }
    text
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes everything");
}

/// A part for people.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.1} %", 100.0 * ratio)
}

fn kind(text: &mut String, name: &str, kind: &Kind) {
    if kind.request_count == 0 {
        return;
    }
    let part = |bytes: u64| percent(bytes as f64 / kind.bytes.max(1) as f64);
    let mean = size::text(kind.bytes / kind.request_count);
    let mut line =
        format!("  {name:<9} {:>10} of {:>9}", kind.request_count, size::text(kind.bytes));
    if name != "discards" {
        write!(line, ", {mean} on average, {} sequential", part(kind.continued_bytes))
            .expect("a String takes everything");
    }
    push(text, format_args!("{line}"));
}

fn workload(text: &mut String, profile: &Profile) {
    kind(text, "reads", &profile.reads);
    kind(text, "writes", &profile.writes);
    kind(text, "discards", &profile.discards);
    let duration = match profile.duration_s {
        Some(seconds) => format!(" in {}", span(seconds)),
        None => String::new(),
    };
    let written = match profile.writes.request_count {
        0 => String::new(),
        _ => format!(", of these written {}", size::text(profile.written_set_bytes)),
    };
    push(
        text,
        format_args!(
            "  different blocks: {}{written}{duration}",
            size::text(profile.working_set_bytes),
        ),
    );
    push(text, format_args!("  first use of their block: {}", percent(profile.first_touch_ratio)));
    let known = profile.absorption.iter().filter_map(|found| Some((found.delay_s, found.ratio?)));
    let absorbed: Vec<String> =
        known.map(|(delay_s, ratio)| format!("{} {}", delay(delay_s), percent(ratio))).collect();
    if !absorbed.is_empty() {
        push(text, format_args!("  written blocks that are overwritten within"));
        push(text, format_args!("    {}", absorbed.join(", ")));
    }
}

fn delay(seconds: u32) -> String {
    match seconds {
        s if s < 60 => format!("{s} s"),
        s if s < 3_600 => format!("{} min", s / 60),
        s => format!("{} h", s / 3_600),
    }
}

fn table(text: &mut String, report: &Report) {
    let chosen = report.recommendation.choice;
    push(
        text,
        format_args!(
            "\n{:>10} {:>7} {:>7} {:>7} {:>9} {:>9}  hits, 0 to 100 %",
            "cache", "hits", "reads", "LRU", "speed-up", "wear/day"
        ),
    );
    for (index, size) in report.sizes.iter().enumerate() {
        let mode = size.mode(chosen.mode);
        let mark = if index == chosen.size_index { "<" } else { "" };
        let wear = mode.drive_writes_per_day.map_or_else(|| "-".to_owned(), wear_text);
        push(
            text,
            format_args!(
                "{:>10} {:>7} {:>7} {:>7} {:>8.2}x {wear:>9}  {}{mark}",
                size::text(size.cache_bytes),
                percent(size.hit_ratio),
                percent(size.read_hit_ratio),
                percent(size.lru_hit_ratio),
                mode.speedup,
                bar(size),
            ),
        );
    }
    push(
        text,
        format_args!(
            "hits: reads and writes, default policy; reads: of these; LRU: for comparison.\n\
             speed-up of all requests, and wear in drive writes a day, in {}.",
            chosen.mode.name()
        ),
    );
}

/// Drive writes a day for people.
pub(super) fn wear_text(per_day: f64) -> String {
    if per_day < 100.0 { format!("{per_day:.2}") } else { format!("{per_day:.0}") }
}

fn bar(size: &SizeOutcome) -> String {
    let filled = (size.hit_ratio * CURVE_COLUMNS as f64).round() as usize;
    let filled = filled.min(CURVE_COLUMNS);
    format!("{}{}", "#".repeat(filled), ".".repeat(CURVE_COLUMNS - filled))
}

fn figures(text: &mut String, report: &Report) {
    let figures = &report.figures;
    push(
        text,
        format_args!(
            "Computed with: SSD read {} us, write {} us, {} MB/s; origin read {} us,\n\
             write {} us, in a stream {} us, {} MB/s.\n\
             Without a cache a read takes {:.0} us on average, a write {:.0} us.",
            figures.ssd_read_us,
            figures.ssd_write_us,
            figures.ssd_mb_s,
            figures.origin_read_us,
            figures.origin_write_us,
            figures.origin_stream_us,
            figures.origin_mb_s,
            report.uncached.read_us,
            report.uncached.write_us,
        ),
    );
}

fn recommendation(text: &mut String, advice: &Recommendation) {
    let paragraph = |text: &mut String, words: &str| {
        text.push('\n');
        text.push_str(&wrapped(words));
    };
    paragraph(text, &advice.headline);
    paragraph(text, &format!("Size: {}", advice.size_reason));
    paragraph(text, &format!("Mode: {}", advice.mode_reason));
    advice.remarks.iter().for_each(|remark| paragraph(text, remark));
    paragraph(text, &format!("Confidence: {}.", advice.confidence.name()));
    for doubt in &advice.doubts {
        text.push_str(&wrapped(&doubt.text));
    }
}

/// Words in lines of at most [`TEXT_COLUMNS`], unless one is longer.
fn wrapped(words: &str) -> String {
    let mut text = String::new();
    let mut columns = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if columns > 0 && columns + 1 + length > TEXT_COLUMNS {
            text.push('\n');
            columns = 0;
        }
        if columns > 0 {
            text.push(' ');
            columns += 1;
        }
        text.push_str(word);
        columns += length;
    }
    text.push('\n');
    text
}

/// A time span for people.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_wrapped_at_words() {
        let words = "word ".repeat(40);
        assert!(wrapped(&words).lines().all(|line| line.len() <= TEXT_COLUMNS));
        assert_eq!(wrapped(&words).split_whitespace().count(), 40);
        let long = "x".repeat(100);
        assert_eq!(wrapped(&format!("a {long} b")), format!("a\n{long}\nb\n"));
    }

    #[test]
    fn spans_are_in_the_unit_that_suits() {
        assert_eq!(span(59.96), "60.0 s");
        assert_eq!(span(600.0), "10.0 min");
        assert_eq!(span(7_200.0), "2.0 h");
        assert_eq!(span(864_000.0), "10.0 days");
    }
}
