//! Tables that can be pasted where Markdown is read.

use std::fmt::{Display, Write};

use super::columns::{self, HEADINGS, cell, count, ratio};
use crate::compare::{Change, Verdict};
use crate::plan::{Clock, Published};
use crate::summary::{Spread, Summary};

/// The main figures of all targets, a row for each phase, then what others published.
#[must_use]
pub fn table(summary: &Summary) -> String {
    let mut text = format!("**{}**\n\n", summary.about);
    if !summary.source.is_empty() {
        let _ = writeln!(text, "{}\n", summary.source);
    }
    let _ = writeln!(text, "| target | phase | clock | {} |", HEADINGS.join(" | "));
    let _ = writeln!(text, "|---|---|---{}|", "|--:".repeat(HEADINGS.len()));
    for target in &summary.targets {
        let title = in_cell(&target.title);
        for phase in &target.phases {
            let clock = target.clock.map_or("", Clock::name);
            let name = in_cell(&phase.name);
            row(&mut text, &title, &name, clock, &columns::cells(phase));
        }
        for why in &target.failures {
            let failed = format!("failed: {}", in_cell(why));
            row(&mut text, &title, &failed, "", &[""; HEADINGS.len()]);
        }
    }
    for published in &summary.published {
        published_row(&mut text, published);
    }
    if summary.repetitions > 1 {
        text.push_str(
            "\nMedians of the repetitions, and in parentheses the smallest and largest.\n",
        );
    }
    text
}

fn published_row(text: &mut String, published: &Published) {
    let cells = columns::published_cells(published);
    let remark = in_cell(&published.remark);
    let phase = format!("as published {remark}");
    row(text, &in_cell(&published.title), phase.trim_end(), Clock::Real.name(), &cells);
}

fn row(text: &mut String, target: &str, phase: &str, clock: &str, cells: &[impl Display]) {
    let _ = write!(text, "| {target} | {phase} | {clock} |");
    for cell in cells {
        let _ = write!(text, " {cell} |");
    }
    text.push('\n');
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
            Verdict::Unknown => "one repetition: noise unknown",
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
    let decimals = if spread.median.abs() < 10.0 { 3 } else { 0 };
    let text = |value: f64| {
        if decimals == 0 { count(value) } else { format!("{value:.decimals$}") }
    };
    cell(Some(spread), text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_as_many_cells_whatever_somebody_chose() {
        let published = Published {
            title: "a|b".to_owned(),
            iops: Some(1500.0),
            hit_ratio: None,
            remark: "one\nor | two".to_owned(),
        };
        let summary = Summary {
            about: "x".to_owned(),
            source: String::new(),
            repetitions: 1,
            published: vec![published],
            targets: Vec::new(),
        };
        let text = table(&summary);
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert!(rows.iter().all(|row| cells(row) == cells(rows[0])), "{text}");
        assert!(rows[2].starts_with("| a\\|b | as published one or \\| two | real |  | 1,500 |"));
    }
}
