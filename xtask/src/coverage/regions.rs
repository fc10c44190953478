//! Regions of source and how often they were reached, as `llvm-cov export` tells them.
//!
//! A region is a piece of code that runs as a whole: the body of a match arm, an operand that may
//! be left out, the way past an `if` whose condition is false. A generic function is there once for
//! each type it is compiled for; a region is reached if it is in any of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// A place in a file: line and column, both counted from 1.
pub(super) type Position = (usize, usize);

/// From the first character to the one behind the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Span {
    pub(super) start: Position,
    pub(super) end: Position,
}

impl Span {
    /// Whether `inner` lies within.
    pub(super) fn holds(&self, inner: &Span) -> bool {
        self.start <= inner.start && inner.end <= self.end
    }
}

/// The regions of a file, and how often each was reached.
pub(super) type Regions = BTreeMap<Span, u64>;

/// What is read of the output of `llvm-cov export`.
#[derive(Deserialize)]
struct Export {
    data: Vec<Data>,
}

#[derive(Deserialize)]
struct Data {
    functions: Vec<Function>,
}

#[derive(Deserialize)]
struct Function {
    filenames: Vec<String>,
    /// Lines and columns of start and end, the count, the index of the file, that of the file an
    /// expansion leads to, and the kind.
    regions: Vec<[u64; 8]>,
}

/// The kind of a region that is code; others are gaps between code and expansions of macros.
const KIND_CODE: u64 = 0;

/// The regions of all files below `folder`, by their paths from there on.
pub(super) fn parse(json: &str, folder: &Path) -> anyhow::Result<BTreeMap<String, Regions>> {
    let export: Export = serde_json::from_str(json).context("the output of llvm-cov export")?;
    let mut files: BTreeMap<String, Regions> = BTreeMap::new();
    for function in export.data.iter().flat_map(|data| &data.functions) {
        for &[line, column, end_line, end_column, count, file, _, kind] in &function.regions {
            let path = function.filenames.get(file as usize).context("a region without a file")?;
            let Ok(path) = Path::new(path).strip_prefix(folder) else { continue };
            if kind != KIND_CODE {
                continue;
            }
            let position = |line: u64, column: u64| (line as usize, column as usize);
            let span = Span { start: position(line, column), end: position(end_line, end_column) };
            let regions = files.entry(path.display().to_string()).or_default();
            *regions.entry(span).or_default() += count;
        }
    }
    Ok(files)
}

/// Adds counts of the same sources.
pub(super) fn add(to: &mut BTreeMap<String, Regions>, from: &BTreeMap<String, Regions>) {
    for (path, regions) in from {
        // What only the other program has is no code of this one.
        let Some(known) = to.get_mut(path) else { continue };
        for (span, count) in known {
            *count += regions.get(span).copied().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_a_function_are_added_and_other_files_left_out() {
        let json = r#"{"data":[{"functions":[
            {"filenames":["/a/src/x.rs","/other/y.rs"],
             "regions":[[1,1,1,9,0,0,0,0],[2,1,2,9,0,0,0,0],[3,1,3,9,4,1,0,0],[4,1,4,2,0,0,0,3]]},
            {"filenames":["/a/src/x.rs"], "regions":[[1,1,1,9,7,0,0,0]]}
        ]}], "type":"llvm.coverage.json.export","version":"3.1.0"}"#;
        let files = parse(json, Path::new("/a/src")).expect("parses");
        assert_eq!(files.keys().collect::<Vec<_>>(), ["x.rs"]);
        let counts: Vec<u64> = files["x.rs"].values().copied().collect();
        assert_eq!(counts, [7, 0]);
    }

    #[test]
    fn counts_of_another_program_are_added_where_both_have_code() {
        let span = |line| Span { start: (line, 1), end: (line, 2) };
        let files = |lines: &[usize]| {
            let regions = lines.iter().map(|line| (span(*line), 2)).collect();
            BTreeMap::from([("x.rs".to_owned(), regions)])
        };
        let mut both = files(&[1, 2]);
        add(&mut both, &files(&[2, 3]));
        let counts: Vec<u64> = both["x.rs"].values().copied().collect();
        assert_eq!(counts, [2, 4]);
    }

    #[test]
    fn what_is_no_export_is_an_error() {
        assert!(parse("{}", Path::new("/")).is_err());
    }
}
