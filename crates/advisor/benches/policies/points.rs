//! Miss ratios of all policies in caches of 10 % and 20 % of the blocks of a trace.

use std::path::{Path, PathBuf};

use forebay_advisor::replay::{Case, Options, PolicyName, Replay};
use forebay_advisor::trace::{self, Format, Request, TraceReader};

use crate::{print_line, quoted};

/// Names the folder of further traces.
const FOLDER: &str = "FOREBAY_TRACES";
/// Sizes of the cache, in percent of the different blocks.
const PERCENTS: [u64; 2] = [10, 20];

/// A trace, and how it is read.
struct Trace {
    path: PathBuf,
    format: Format,
}

impl Trace {
    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    /// Sizes of blocks to look at. In OLTP a line is one page, whose number counts as it is.
    /// Requests of virtual disks are also looked at in larger blocks.
    fn block_sizes(&self) -> &'static [u32] {
        match (self.format, self.name().as_str()) {
            (Format::Arc, "OLTP") => &[512],
            (Format::Cloudphysics, _) => &[4096, 65_536],
            _ => &[4096],
        }
    }
}

/// Prints a line for each point and each trace that is left out.
pub(crate) fn print() {
    let arc = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arc");
    let mut traces: Vec<Trace> = ["P3", "OLTP"]
        .map(|name| Trace { path: arc.join(name).with_extension("txt.zst"), format: Format::Arc })
        .into();
    match std::env::var_os(FOLDER) {
        None => print_skip("all others", &format!("{FOLDER} names no folder")),
        Some(folder) => add_found(Path::new(&folder), &mut traces),
    }
    for trace in &traces {
        if let Err(error) = measure(trace) {
            print_skip(&trace.name(), &error);
        }
    }
}

fn print_skip(trace: &str, reason: &str) {
    let fields = [("kind", quoted("skip")), ("trace", quoted(trace)), ("reason", quoted(reason))];
    print_line(&fields);
}

/// Adds what lies in the folders named after formats, in the order of names.
fn add_found(folder: &Path, traces: &mut Vec<Trace>) {
    for path in entries(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !path.is_dir() {
            continue;
        }
        let Some(format) = Format::from_name(&name) else {
            print_skip(&name, "the folder has no format's name");
            continue;
        };
        for path in entries(&path) {
            let trace = Trace { path, format };
            if traces.iter().all(|known| known.name() != trace.name()) {
                traces.push(trace);
            }
        }
    }
}

/// What is in a folder, in order; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    if paths.is_empty() {
        print_skip(&folder.display().to_string(), "the folder is empty or not there");
    }
    paths
}

fn measure(trace: &Trace) -> Result<(), String> {
    let options = trace::Options { format: Some(trace.format), ..trace::Options::default() };
    let reader = TraceReader::open(&trace.path, &options).map_err(|error| error.to_string())?;
    let requests: Result<Vec<Request>, _> = reader.collect();
    let requests = requests.map_err(|error| error.to_string())?;
    for block_bytes in trace.block_sizes() {
        print_points(trace, &requests, *block_bytes);
    }
    Ok(())
}

fn print_points(trace: &Trace, requests: &[Request], block_bytes: u32) {
    let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
    let replay = |cases: &[Case]| {
        let mut replay = Replay::new(cases, &options);
        requests.iter().for_each(|request| replay.request(request));
        replay.finish()
    };
    let (summary, _) = replay(&[]);
    let size = |percent: u64| {
        u32::try_from(summary.distinct_block_count * percent / 100).expect("a small trace")
    };
    let sizes = PERCENTS.map(size).map(|blocks| blocks.max(1));
    let cases =
        sizes.map(|cache_blocks| PolicyName::ALL.map(|policy| Case { policy, cache_blocks }));
    let (_, tallies) = replay(cases.as_flattened());
    let per_size = tallies.chunks(PolicyName::ALL.len());
    for ((cache_blocks, percent), tallies) in sizes.into_iter().zip(PERCENTS).zip(per_size) {
        let mut fields = vec![
            ("kind", quoted("point")),
            ("trace", quoted(&trace.name())),
            ("format", quoted(trace.format.name())),
            ("block_bytes", block_bytes.to_string()),
            ("percent", percent.to_string()),
            ("cache_blocks", cache_blocks.to_string()),
            ("references", tallies[0].block_count.to_string()),
        ];
        fields.extend(
            PolicyName::ALL.iter().zip(tallies).map(|(policy, tally)| {
                (policy.name(), (1.0 - tally.hit_ratio_blocks()).to_string())
            }),
        );
        print_line(&fields);
    }
}
