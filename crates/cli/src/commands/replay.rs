//! `forebay replay`: recorded requests against caches on paper.

use std::path::Path;

use forebay_advisor::replay::{Case, Replay, Summary, Tally};
use forebay_advisor::trace::TraceReader;
use serde::Serialize;

use super::traces::{self, REQUESTS_PER_PROGRESS};
use crate::args::ReplayArguments;
use crate::exit::Failure;
use crate::progress::{Progress, Unit};
use crate::{output, size};

/// One trace, size and policy.
#[derive(Serialize)]
struct Row<'a> {
    trace: &'a str,
    format: &'static str,
    policy: &'static str,
    cache_size_bytes: u64,
    block_size_bytes: u32,
    request_count: u64,
    block_count: u64,
    bytes: u64,
    distinct_block_count: u64,
    discard_count: u64,
    miss_ratio_requests: f64,
    miss_ratio_blocks: f64,
    miss_ratio_bytes: f64,
    hit_ratio_requests: f64,
    hit_ratio_blocks: f64,
    hit_ratio_bytes: f64,
    cache_written_bytes: u64,
    bypassed_request_count: u64,
    bypassed_bytes: u64,
    broken_line_count: u64,
}

/// Runs the command.
pub(crate) fn run(arguments: &ReplayArguments) -> Result<(), Failure> {
    let cases = cases(arguments)?;
    let names: Vec<String> =
        arguments.traces.iter().map(|path| path.display().to_string()).collect();
    let mut rows = Vec::new();
    for (path, name) in arguments.traces.iter().zip(&names) {
        let first = rows.len();
        rows.extend(replay(path, name, &cases, arguments)?);
        if !arguments.json {
            output::print(&text(&rows[first..]))?;
        }
    }
    if arguments.json { output::print_json(&rows) } else { Ok(()) }
}

fn cases(arguments: &ReplayArguments) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    for bytes in &arguments.cache_size {
        let cache_blocks = traces::cache_blocks(&arguments.reading, *bytes)?;
        cases.extend(arguments.policy.iter().map(|policy| Case { policy: *policy, cache_blocks }));
    }
    Ok(cases)
}

fn replay<'a>(
    path: &Path,
    name: &'a str,
    cases: &[Case],
    arguments: &ReplayArguments,
) -> Result<Vec<Row<'a>>, Failure> {
    let mut reader = TraceReader::open(path, &traces::reading(&arguments.reading))?;
    let mut replay = Replay::new(cases, &traces::options(&arguments.reading));
    let mut progress = Progress::start(name, Unit::Bytes, reader.file_bytes());
    let mut count = 0u64;
    while let Some(request) = reader.next() {
        replay.request(&request?);
        count += 1;
        if count.is_multiple_of(REQUESTS_PER_PROGRESS) {
            progress.set(reader.read_bytes());
        }
    }
    progress.finish();
    traces::report_broken(name, reader.broken());
    let (summary, tallies) = replay.finish();
    let rows = cases.iter().zip(tallies);
    Ok(rows.map(|(case, tally)| row(name, &reader, case, (&summary, &tally), arguments)).collect())
}

fn row<'a>(
    trace: &'a str,
    reader: &TraceReader,
    case: &Case,
    (summary, tally): (&Summary, &Tally),
    arguments: &ReplayArguments,
) -> Row<'a> {
    let requests = tally.hit_ratio_requests();
    let blocks = tally.hit_ratio_blocks();
    let bytes = tally.hit_ratio_bytes();
    Row {
        trace,
        format: reader.format().name(),
        policy: case.policy.name(),
        cache_size_bytes: u64::from(case.cache_blocks) * u64::from(arguments.reading.block_size),
        block_size_bytes: arguments.reading.block_size,
        request_count: tally.request_count,
        block_count: tally.block_count,
        bytes: tally.bytes,
        distinct_block_count: summary.distinct_block_count,
        discard_count: summary.discard_count,
        miss_ratio_requests: 1.0 - requests,
        miss_ratio_blocks: 1.0 - blocks,
        miss_ratio_bytes: 1.0 - bytes,
        hit_ratio_requests: requests,
        hit_ratio_blocks: blocks,
        hit_ratio_bytes: bytes,
        cache_written_bytes: tally.cache_written_bytes,
        bypassed_request_count: tally.bypassed_request_count,
        bypassed_bytes: tally.bypassed_bytes,
        broken_line_count: reader.broken().count,
    }
}

fn text(rows: &[Row<'_>]) -> String {
    let first = &rows[0];
    let block_size = u64::from(first.block_size_bytes);
    let mut text = format!(
        "{} ({}): {} requests of {} in {} different blocks of {}; hits by\n\
         {:>10}  {:<8} {:>8} {:>8} {:>8}  {:>10}  {:>10}\n",
        first.trace,
        first.format,
        first.request_count,
        size::text(first.bytes),
        first.distinct_block_count,
        size::text(block_size),
        "cache",
        "policy",
        "requests",
        "blocks",
        "bytes",
        "written",
        "bypassed",
    );
    for row in rows {
        let percent = |ratio: f64| format!("{:.2} %", 100.0 * ratio);
        text.push_str(&format!(
            "{:>10}  {:<8} {:>8} {:>8} {:>8}  {:>10}  {:>10}\n",
            size::text(row.cache_size_bytes),
            row.policy,
            percent(row.hit_ratio_requests),
            percent(row.hit_ratio_blocks),
            percent(row.hit_ratio_bytes),
            size::text(row.cache_written_bytes),
            size::text(row.bypassed_bytes),
        ));
    }
    text
}
