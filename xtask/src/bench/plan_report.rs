//! The report of a run of `forebay bench`, for a document.
//!
//! Figures and verdicts are those of the report; nothing is judged here.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use super::bounds::{Bound, Limit, Verdict};
use super::interrupt;

/// What the part about bounds begins with in `report.md`: documents have all bounds in one place.
const BOUNDS: &str = "\n**Bounds**\n";

/// What a folder of results says.
pub(super) struct PlanReport {
    /// All figures, as `forebay bench report --json` prints them.
    pub(super) summary: Value,
    /// How the bounds of the plan stand.
    pub(super) bounds: Vec<Bound>,
    /// `report.md`, but for the bounds.
    pub(super) tables: String,
}

/// A bound in the summary.
#[derive(Deserialize)]
struct Judged {
    text: String,
    limit: Limit,
    value: Option<f64>,
    verdict: Verdict,
}

impl PlanReport {
    /// Lets `forebay` write the report of a folder anew, and reads it.
    pub(super) fn of(forebay: &Path, folder: &Path) -> anyhow::Result<PlanReport> {
        let mut command = Command::new(forebay);
        command.args(["bench", "report", "--json"]).arg(folder);
        let text = interrupt::capture(&mut command)?;
        let summary: Value = serde_json::from_str(&text).context("no summary")?;
        let report = std::fs::read_to_string(folder.join("report.md")).context("no report")?;
        Ok(PlanReport { bounds: bounds(&summary)?, tables: tables(&report).to_owned(), summary })
    }

    /// A phase of a target in a summary.
    pub(super) fn phase<'a>(summary: &'a Value, target: &str, phase: &str) -> Option<&'a Value> {
        let find = |list: &'a Value, name: &str| {
            list.as_array()?.iter().find(|entry| entry["name"] == name)
        };
        find(&find(&summary["targets"], target)?["phases"], phase)
    }
}

fn bounds(summary: &Value) -> anyhow::Result<Vec<Bound>> {
    let bounds = Vec::<Judged>::deserialize(&summary["bounds"]).context("bounds of the summary")?;
    let bound = |Judged { text, limit, value, verdict }| Bound::judged(text, limit, value, verdict);
    Ok(bounds.into_iter().map(bound).collect())
}

fn tables(report: &str) -> &str {
    report.split_once(BOUNDS).map_or(report, |(tables, _)| tables).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_of_the_summary() {
        let summary = serde_json::json!({"bounds": [
            {"text": "a", "limit": {"at_least": 1155.0}, "value": 321.6, "verdict": "missed"},
            {"text": "b", "limit": {"at_most": 1.0}, "value": null, "verdict": "not_measured"}]});
        let bounds = bounds(&summary).expect("bounds");
        let texts: Vec<_> = bounds
            .iter()
            .map(|bound| (bound.bound.as_str(), bound.measured.as_str(), bound.verdict))
            .collect();
        let missed = ("at least 1155", "321.60", Verdict::Missed);
        assert_eq!(texts, [missed, ("at most 1", "–", Verdict::NotMeasured)]);
        assert!(super::bounds(&serde_json::json!({})).is_err());
    }

    #[test]
    fn a_report_stands_without_its_bounds() {
        let report = "**About**\n\n| a |\n\n**Bounds**\n\n| b |\n";
        assert_eq!(tables(report), "**About**\n\n| a |");
        assert_eq!(tables("| a |\n"), "| a |");
    }
}
