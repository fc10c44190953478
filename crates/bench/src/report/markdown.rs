//! Tables that can be pasted where Markdown is read.

use std::fmt::Write;

use super::columns::{self, Cell, HEADINGS, cell, count, ratio};
use super::verdicts;
use crate::bounds::{self, Judged};
use crate::compare::{Change, Verdict};
use crate::plan::Clock;
use crate::summary::{Spread, Summary};

/// The main figures of all targets, a row for each phase, then what others published; then how the
/// bounds of the plan stand.
#[must_use]
pub fn table(summary: &Summary) -> String {
    let mut text = format!("**{}**\n\n", summary.about);
    if !summary.source.is_empty() {
        let _ = writeln!(text, "{}\n", summary.source);
    }
    let shown = columns::shown(summary);
    let headings = shown.iter().map(|place| HEADINGS[*place]);
    let headings: Vec<&str> = ["target", "phase", "clock"].into_iter().chain(headings).collect();
    let _ = writeln!(text, "| {} |", headings.join(" | "));
    let _ = writeln!(text, "|---|---|---{}|", "|--:".repeat(shown.len()));
    let mut row = |target: &str, phase: &str, clock: &str, cells: &[Cell]| {
        let _ = write!(text, "| {target} | {phase} | {clock} |");
        for place in &shown {
            let _ = write!(text, " {} |", cells[*place]);
        }
        text.push('\n');
    };
    for target in &summary.targets {
        let title = in_cell(&target.title);
        for phase in &target.phases {
            let clock = target.clock.map_or("", Clock::name);
            let name = in_cell(&phase.name);
            row(&title, &name, clock, &columns::cells(phase));
        }
        for why in &target.failures {
            let failed = format!("failed: {}", in_cell(why));
            row(&title, &failed, "", &<[Cell; HEADINGS.len()]>::default());
        }
    }
    for published in &summary.published {
        let cells = columns::published_cells(published);
        let phase = in_cell(&columns::published_phase(published));
        row(&in_cell(&published.title), phase.trim_end(), Clock::Real.name(), &cells);
    }
    if summary.is_repeated() {
        text.push_str(
            "\nMedians of the repetitions, and in parentheses the smallest and largest.\n",
        );
    }
    text + &bounds_table(&summary.bounds)
}

/// How bounds stand, a row for each; empty if there are none.
fn bounds_table(judged: &[Judged]) -> String {
    if judged.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n**Bounds**\n\n| what is measured | bound | measured | verdict |\n|---|--:|--:|---|\n",
    );
    for bound in judged {
        let (what, limit) = (in_cell(&bound.text), verdicts::limit(bound.limit));
        let value = verdicts::value(bound);
        let verdict = match bound.verdict {
            bounds::Verdict::Missed => format!("**{}**", verdicts::word(bound.verdict)),
            verdict => verdicts::word(verdict).to_owned(),
        };
        let _ = writeln!(text, "| {what} | {limit} | {value} | {verdict} |");
    }
    let _ = writeln!(text, "\n{}", verdicts::sentence(judged));
    text
}

/// What somebody chose, so that it stays in its cell.
fn in_cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
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
            Verdict::Unknown => "too few repetitions: noise unknown",
        };
        let ratio = change.ratio.map_or(String::new(), ratio);
        let (before, after) = (figure(change.before), figure(change.after));
        let (target, phase) = (in_cell(&change.target), in_cell(&change.phase));
        let figure = change.figure;
        let _ = writeln!(
            text,
            "| {target} | {phase} | {figure} | {before} | {after} | {ratio} | {verdict} |"
        );
    }
    text
}

/// A figure of any size.
fn figure(spread: Spread) -> String {
    let text = if spread.median.abs() < 10.0 { ratio } else { count };
    cell(Some(spread), text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Limit, Published};

    fn judged(text: &str, value: Option<f64>, verdict: bounds::Verdict) -> Judged {
        Judged { text: text.to_owned(), limit: Limit::AtLeast(1200.0), value, verdict }
    }

    #[test]
    fn rows_have_as_many_cells_whatever_somebody_chose() {
        let published = Published {
            title: "a|b".to_owned(),
            iops: Some(1500.0),
            remark: "one\nor | two".to_owned(),
            ..Published::default()
        };
        let summary = Summary {
            about: "x".to_owned(),
            source: String::new(),
            repetitions: 1,
            published: vec![published],
            targets: Vec::new(),
            bounds: vec![judged("c|d\ne", Some(1155.0), bounds::Verdict::Missed)],
        };
        let text = table(&summary);
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        let (rows, bounds) = rows.split_at(3);
        assert!(rows.iter().all(|row| cells(row) == cells(rows[0])), "{text}");
        assert!(bounds.iter().all(|row| cells(row) == cells(bounds[0])), "{text}");
        assert_eq!(bounds[2..], ["| c\\|d e | at least 1,200 | 1,155 | **missed** |"]);
        assert!(text.ends_with("\n1 of 1 bounds missed, 0 met.\n"), "{text}");
        assert!(rows[2].starts_with("| a\\|b | as published one or \\| two | real | 1,500 |"));
    }
}
