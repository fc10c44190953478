//! `forebay advise`: what a recorded workload says about a cache.

mod html;
mod record;
mod text;

use std::path::PathBuf;

use forebay_advisor::advice::{Advisor, Options, Report};
use forebay_advisor::trace::{MergedReader, TraceReader};
use serde::Serialize;

use self::record::GivenUp;
use super::traces::{self, REQUESTS_PER_PROGRESS};
use crate::args::AdviseArguments;
use crate::exit::Failure;
use crate::output;
use crate::progress::{Progress, Unit};

/// A file that was read.
#[derive(Clone, Serialize)]
struct Source {
    path: String,
    format: &'static str,
    broken_line_count: u64,
}

/// What is printed as JSON, and drawn in the report.
#[derive(Serialize)]
struct Document {
    traces: Vec<Source>,
    #[serde(flatten)]
    report: Report,
}

/// Runs the command.
pub(crate) fn run(arguments: &AdviseArguments) -> Result<(), Failure> {
    let options = options(arguments)?;
    // Before the work: a file that cannot be written is known at once.
    let page = arguments.html.as_deref().map(html::Page::create).transpose()?;
    let document = match arguments.record {
        Some(seconds) => {
            let [device] = &arguments.traces[..] else {
                return Err(Failure::usage("--record takes one device"));
            };
            let given_up = GivenUp::watch()?;
            let keep = arguments.keep.as_deref();
            let recording = record::record(device, seconds, keep, &given_up)?;
            advise(recording.files(), &options, arguments, &given_up)?
        }
        // Nothing is left behind: a signal may end it at once.
        None => advise(&arguments.traces, &options, arguments, &GivenUp::default())?,
    };
    if let Some(page) = page {
        page.write(&document)?;
    }
    if arguments.json {
        output::print_json(&document)
    } else {
        output::print(&text::text(&document, arguments.html.as_deref()))
    }
}

fn options(arguments: &AdviseArguments) -> Result<Options, Failure> {
    let blocks = |bytes: &u64| {
        let blocks = traces::cache_blocks(&arguments.reading, *bytes);
        blocks.map_err(|error| error.or("--block-size chooses another size of blocks"))
    };
    let mut cache_blocks =
        arguments.cache_size.iter().map(blocks).collect::<Result<Vec<u32>, Failure>>()?;
    cache_blocks.sort_unstable();
    cache_blocks.dedup();
    let replay = traces::options(&arguments.reading);
    Ok(Options { replay, figures: arguments.figures.figures(), cache_blocks })
}

fn advise(
    paths: &[PathBuf],
    options: &Options,
    arguments: &AdviseArguments,
    given_up: &GivenUp,
) -> Result<Document, Failure> {
    refuse_devices(paths)?;
    let mut reader = MergedReader::open(paths, &traces::reading(&arguments.reading))?;
    let label = match paths {
        [path] => path.display().to_string(),
        _ => format!("{} files", paths.len()),
    };
    let mut progress = Progress::start(&label, Unit::Bytes, reader.file_bytes());
    let mut advisor = Advisor::new(options);
    let mut count = 0u64;
    while let Some(request) = reader.next() {
        advisor.request(&request?);
        count += 1;
        if count.is_multiple_of(REQUESTS_PER_PROGRESS) {
            progress.set(reader.read_bytes());
            given_up.check()?;
        }
    }
    progress.finish();
    given_up.check()?;
    let source = |reader: &TraceReader| {
        let path = reader.path().display().to_string();
        traces::report_broken(&path, reader.broken());
        let broken_line_count = reader.broken().count;
        Source { path, format: reader.format().name(), broken_line_count }
    };
    let traces = reader.readers().map(source).collect();
    Ok(Document { traces, report: advisor.finish() })
}

/// A device is no trace; reading it as one would say so only after a while, or never.
fn refuse_devices(paths: &[PathBuf]) -> Result<(), Failure> {
    let device = paths.iter().find(|path| record::is_block_device(path));
    let Some(path) = device.map(|path| path.display()) else { return Ok(()) };
    Err(Failure::usage(format!(
        "{path} is a block device and no trace; record its requests with --record 60s"
    )))
}
