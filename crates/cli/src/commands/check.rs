//! `forebay check`: whether everything that recovery relies on is whole.

use std::process::ExitCode;

use forebay_host::state_file::set_id_text;
use serde::Serialize;

use crate::args::CheckArguments;
use crate::commands::format::absolute;
use crate::exit::{Exit, Failure};
use crate::inspection::{
    CacheDevice, Finding, Inspection, Locking, SegmentCounts, Severity, inspect,
};
use crate::output;
use crate::progress::{Progress, Unit};

#[derive(Serialize)]
struct Report<'a> {
    cache_device: String,
    set_id: String,
    is_clean: bool,
    damage_count: u64,
    note_count: u64,
    /// At most the first thousand.
    findings: &'a [Finding],
    #[serde(flatten)]
    counts: SegmentCounts,
}

/// Runs the command.
pub(crate) fn run(arguments: &CheckArguments) -> Result<ExitCode, Failure> {
    let device = CacheDevice::open(&absolute(&arguments.cache)?, Locking::Required)?;
    let mut progress: Option<Progress> = None;
    let inspection = inspect(&device, &mut |done, total| {
        progress
            .get_or_insert_with(|| Progress::start("checking", Unit::Segments, total.into()))
            .set(done.into());
    })?;
    if let Some(progress) = progress {
        progress.finish();
    }
    let findings = &inspection.findings;
    let report = Report {
        cache_device: device.path().display().to_string(),
        set_id: set_id_text(&inspection.superblocks.chosen.set_id),
        is_clean: findings.damage_count == 0,
        damage_count: findings.damage_count,
        note_count: findings.note_count,
        findings: &findings.list,
        counts: inspection.counts,
    };
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print(&text(&report, &inspection))?;
    }
    Ok(if report.is_clean { ExitCode::SUCCESS } else { Exit::Damaged.code().into() })
}

fn text(report: &Report<'_>, inspection: &Inspection) -> String {
    let mut text = String::new();
    for finding in report.findings {
        text.push_str(&format!("{finding}\n"));
    }
    let counts = &report.counts;
    text.push_str(&format!(
        "{}: {} records and {} behind the checkpoint, {} blocks verified, {} live, {} dirty\n",
        report.cache_device,
        counts.record_count,
        counts.new_record_count,
        counts.verified_block_count,
        counts.live_block_count,
        counts.dirty_block_count + counts.new_dirty_block_count
    ));
    if report.is_clean {
        text.push_str("no damage found\n");
        return text;
    }
    text.push_str(&format!("{} findings of damage\n", report.damage_count));
    let superblock_only = inspection
        .findings
        .list
        .iter()
        .filter(|finding| finding.severity == Severity::Damage)
        .all(|finding| finding.place.starts_with("superblock"));
    text.push_str(if superblock_only {
        "one superblock is whole and the set can be served; attaching a volume rewrites both\n"
    } else {
        "keep the device as it is; clean data can be read from the origins, dirty data only here\n"
    });
    text
}
