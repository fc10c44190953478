//! What was reached, as a table and a list, and as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use super::exceptions::Exceptions;
use super::places::{self, Place};
use super::regions::Regions;
use super::syntax::Syntax;

/// Folders and files in which every branch must be reached or be an exception: recovery, reclaim,
/// writeback and checkpoint, the paths of requests with their races, failures, the log and the
/// index. What is left are commands, parsers with fuzzers and tests of their own, text for people.
const COMPLETE: [&str; 8] = [
    "background/",
    "failure/",
    "flush_group.rs",
    "index/",
    "log/",
    "path/",
    "range_lock.rs",
    "recovery/",
];

/// A run of the command.
#[derive(Serialize)]
pub(super) struct Report {
    /// Seed of the first random run.
    seed: u64,
    /// Random runs.
    runs: u64,
    files: Vec<File>,
    /// Exceptions whose place was reached or is not there.
    not_needed: Vec<String>,
}

/// A file of the engine.
#[derive(Serialize)]
struct File {
    /// From the folder of the sources on.
    path: String,
    regions: usize,
    reached: usize,
    /// Whether every branch must be reached or be an exception.
    must_be_complete: bool,
    unreached: Vec<Unreached>,
}

#[derive(Serialize)]
struct Unreached {
    #[serde(flatten)]
    place: Place,
    /// Why it need not be reached.
    exception: Option<String>,
    /// The scripted test that reaches it.
    test: Option<String>,
}

impl Report {
    /// Of the `regions` of the files in `folder`.
    pub(super) fn new(
        (seed, runs): (u64, u64),
        folder: &Path,
        (simulated, with_tests): (&BTreeMap<String, Regions>, &BTreeMap<String, Regions>),
        mut exceptions: Exceptions,
    ) -> anyhow::Result<Report> {
        let mut files = Vec::new();
        for (path, regions) in simulated {
            let whole = folder.join(path);
            let text = std::fs::read_to_string(&whole)
                .with_context(|| format!("cannot read {}", whole.display()))?;
            let syntax = Syntax::parse(&whole, &text)?;
            let coverage = places::examine(&text, regions, &syntax);
            exceptions.note_lines(path, &text);
            let left = places::examine(&text, &with_tests[path], &syntax).places;
            let is_new = |place: &Place| !coverage.places.iter().any(|p| p.is_same(place));
            let parts: Vec<Place> = left.iter().filter(|p| is_new(p)).cloned().collect();
            let unreached = coverage.places.into_iter().chain(parts).map(|place| {
                let found = exceptions.find(path, &place);
                // A test that is named has to reach the place.
                let is_reached = !left.iter().any(|other| other.is_same(&place));
                let found = found.filter(|found| found.test.is_none() || is_reached);
                let (exception, test) = found.map_or((None, None), |f| (Some(f.why), f.test));
                Unreached { place, exception, test }
            });
            files.push(File {
                path: path.clone(),
                regions: coverage.regions,
                reached: coverage.reached,
                must_be_complete: must_be_complete(path),
                unreached: unreached.collect(),
            });
        }
        let not_needed = exceptions.not_needed();
        let not_needed = not_needed
            .map(|entry| format!("{}, {}: {}", entry.file, entry.function, entry.line))
            .collect();
        Ok(Report { seed, runs, files, not_needed })
    }

    /// Whether every branch that must be reached was, and every exception was needed.
    pub(super) fn is_complete(&self) -> bool {
        self.not_needed.is_empty() && self.files.iter().all(|file| file.missing() == 0)
    }

    /// The table, then the places.
    pub(super) fn print(&self, all: ListOf) {
        self.print_table();
        for file in &self.files {
            let is_listed = |unreached: &&Unreached| match all {
                ListOf::Everything => true,
                ListOf::WhatIsMissing => file.must_be_complete && unreached.exception.is_none(),
            };
            let listed: Vec<&Unreached> = file.unreached.iter().filter(is_listed).collect();
            if !listed.is_empty() {
                println!("\n{}", file.path);
            }
            for Unreached { place, exception, test } in listed {
                let (line, text, manner) = (place.line, &place.text, place.manner.text());
                println!("  {line:>5}  {manner}, in {}: {text}", place.function);
                if let Some(why) = exception {
                    println!("         exception: {why}");
                }
                if let Some(test) = test {
                    println!("         reached by {test}");
                }
            }
        }
        if !self.not_needed.is_empty() {
            println!("\nexceptions that are not needed, reached or not there:");
            self.not_needed.iter().for_each(|line| println!("  {line}"));
        }
    }

    fn print_table(&self) {
        println!(
            "\n{:<28} {:>8} {:>8} {:>8}  {:>7} {:>6} {:>10}",
            "file", "regions", "reached", "percent", "missing", "tests", "exceptions"
        );
        let row = |name: &str, files: &[&File]| {
            let sum = |number: fn(&File) -> usize| files.iter().map(|file| number(file)).sum();
            let (regions, reached): (usize, usize) = (sum(|f| f.regions), sum(|f| f.reached));
            let percent = reached as f64 * 100.0 / regions.max(1) as f64;
            let (missing, excepted): (usize, usize) = (sum(File::missing), sum(File::excepted));
            let tested: usize = sum(File::tested);
            let others = excepted - tested;
            println!(
                "{name:<28} {regions:>8} {reached:>8} {percent:>8.1}  {missing:>7} {tested:>6} \
                 {others:>10}"
            );
        };
        let (complete, other): (Vec<&File>, Vec<&File>) =
            self.files.iter().partition(|file| file.must_be_complete);
        complete.iter().for_each(|file| row(&file.path, &[file]));
        row("every branch of these", &complete);
        println!();
        other.iter().for_each(|file| row(&file.path, &[file]));
        row("others", &other);
    }
}

impl File {
    /// Places that must be reached and were not.
    fn missing(&self) -> usize {
        if self.must_be_complete { self.unreached.len() - self.excepted() } else { 0 }
    }

    fn excepted(&self) -> usize {
        self.unreached.iter().filter(|unreached| unreached.exception.is_some()).count()
    }

    /// Of these, places that a scripted test reaches.
    fn tested(&self) -> usize {
        self.unreached.iter().filter(|unreached| unreached.test.is_some()).count()
    }
}

/// Which places are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListOf {
    /// Those that must be reached and were not.
    WhatIsMissing,
    /// All that were not reached.
    Everything,
}

fn must_be_complete(path: &str) -> bool {
    COMPLETE
        .iter()
        .any(|name| if name.ends_with('/') { path.starts_with(name) } else { path == *name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_folders_and_single_files_must_be_complete() {
        assert!(must_be_complete("recovery/scan.rs"));
        assert!(must_be_complete("range_lock.rs"));
        assert!(!must_be_complete("command.rs"));
        assert!(!must_be_complete("index.rs"));
    }
}
