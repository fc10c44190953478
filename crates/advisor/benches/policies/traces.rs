//! The recorded traces that there are.

use std::path::{Path, PathBuf};

use forebay_advisor::trace::{self, Format, Request, TraceReader};

use crate::{print_line, quoted};

/// Names the folder of further traces.
const FOLDER: &str = "FOREBAY_TRACES";

/// A trace, and how it is read.
pub(crate) struct Trace {
    path: PathBuf,
    pub(crate) format: Format,
}

impl Trace {
    pub(crate) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        name.split('.').next().unwrap_or_default().to_owned()
    }

    /// Sizes of blocks to look at. In OLTP a line is one page, whose number counts as it is.
    /// Requests of virtual disks are also looked at in larger blocks.
    pub(crate) fn block_sizes(&self) -> &'static [u32] {
        match (self.format, self.name().as_str()) {
            (Format::Arc, "OLTP") => &[512],
            (Format::Cloudphysics, _) => &[4096, 65_536],
            _ => &[4096],
        }
    }

    /// Everything in it.
    pub(crate) fn requests(&self) -> Result<Vec<Request>, String> {
        let options = trace::Options { format: Some(self.format), ..trace::Options::default() };
        let reader = TraceReader::open(&self.path, &options).map_err(|error| error.to_string())?;
        let requests: Result<Vec<Request>, _> = reader.collect();
        requests.map_err(|error| error.to_string())
    }
}

/// All traces. Prints a line for each that is left out.
pub(crate) fn find() -> Vec<Trace> {
    let arc = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arc");
    let mut traces: Vec<Trace> = ["P3", "OLTP"]
        .map(|name| Trace { path: arc.join(name).with_extension("txt.zst"), format: Format::Arc })
        .into();
    match std::env::var_os(FOLDER) {
        None => print_skip("all others", &format!("{FOLDER} names no folder")),
        Some(folder) => add_found(Path::new(&folder), &mut traces),
    }
    traces
}

pub(crate) fn print_skip(trace: &str, reason: &str) {
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
