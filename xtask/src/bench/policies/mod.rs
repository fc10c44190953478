//! `cargo xtask bench policies`: how good the replacement policy is, and what it costs.
//!
//! Programs of the crates measure (`crates/advisor/benches/policies`, `crates/engine/benches/hit`)
//! and print lines of JSON; here they are put into tables and held against the bounds.

mod bounds;
mod document;
mod published;

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::bounds::Bound;
use super::interrupt;
use super::machine::Machine;
use super::spread::Spread;
use crate::workspace::Workspace;
use crate::{Outcome, process};

/// Where the document is, from the root on.
const DOCUMENT: &str = "docs/policy-figures.md";
/// Names the folder of traces that are not in the repository.
const TRACES: &str = "FOREBAY_TRACES";
/// Seeds of the shift, for a median.
const SEEDS: u32 = 15;
const QUICK_SEEDS: u32 = 3;
/// Indexes that the processor's caches hold, and of a million extents: `LOG2xBLOCKS`.
const USUAL_SIZES: [&str; 4] = ["14x1", "12x16", "20x1", "20x16"];
/// Blocks of an extent: 4 KiB and 64 KiB.
const EXTENT_BLOCKS: [u64; 2] = [1, 16];
/// The largest indexes, as powers of two: 67 million extents.
const LARGEST_LOG2: u32 = 26;
/// Memory that a measurement needs at most, for an extent and for each block: the index or the
/// chain, whichever is there, with what vectors have to spare; checksums and bits.
const EXTENT_BYTES: u64 = 60;
const BLOCK_BYTES: u64 = 8;

/// How much to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer seeds, and no index larger than a million extents; only printed
    #[arg(long)]
    quick: bool,
    /// Write the document here [default: docs/policy-figures.md; nowhere with --quick]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all raw figures here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A line of the advisor's program.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Point(Point),
    Skip(Skip),
    Shift(Shift),
}

/// Miss ratios of a trace in a cache of one size.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Point {
    trace: String,
    format: String,
    block_bytes: u32,
    /// Size of the cache, in percent of the different blocks.
    percent: u32,
    cache_blocks: u64,
    references: u64,
    clock2q: f64,
    lru: f64,
    fifo: f64,
    min: f64,
}

impl Point {
    /// The part of the way from LRU to MIN that our policy goes; none if there is no way.
    fn gap(&self) -> Option<f64> {
        let way = self.lru - self.min;
        (way > 0.0).then(|| (self.lru - self.clock2q) / way)
    }

    fn published(&self) -> Option<&'static published::Published> {
        published::find(&self.trace, self.block_bytes, self.cache_blocks)
    }
}

/// A trace that was left out.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Skip {
    trace: String,
    reason: String,
}

/// How a policy turned to other blocks; in cache sizes.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Shift {
    policy: String,
    level_before: f64,
    level_after: f64,
    /// None if it never did.
    recovery_caches: Option<f64>,
    lost_caches: f64,
    lost_to_scan_caches: f64,
}

/// An index of one size.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Size {
    extents: u64,
    extent_blocks: u64,
    /// CPU time of a hit, each time it was measured.
    hit_ns: Vec<f64>,
    index_bytes: u64,
    checksum_bytes: u64,
    bits_bytes: u64,
    ghost_bytes: u64,
    /// A step of a pointer chase over as much memory.
    chase_ns: Vec<f64>,
}

impl Size {
    fn blocks(&self) -> u64 {
        self.extents * self.extent_blocks
    }

    fn hit(&self) -> Option<Spread> {
        Spread::of(self.hit_ns.iter().copied())
    }

    fn chase(&self) -> Option<Spread> {
        Spread::of(self.chase_ns.iter().copied())
    }

    fn index_and_ghost_per_extent(&self) -> f64 {
        (self.index_bytes + self.ghost_bytes) as f64 / self.extents as f64
    }

    fn checksums_per_block(&self) -> f64 {
        self.checksum_bytes as f64 / self.blocks() as f64
    }

    /// Dependent cache misses of a hit, as the pointer chase has them: what a hit takes beyond one
    /// in an index that the processor's caches hold, in steps of the chase.
    fn estimated_misses(&self, sizes: &[Size]) -> Option<f64> {
        let alike = sizes.iter().filter(|size| size.extent_blocks == self.extent_blocks);
        let smallest = alike.min_by_key(|size| size.extents)?;
        let beyond = self.hit()?.median - smallest.hit()?.median;
        (smallest.extents < self.extents).then_some(beyond / self.chase()?.median)
    }
}

/// All figures of a run.
#[derive(Serialize)]
struct Figures {
    machine: Machine,
    /// What was typed.
    command: String,
    points: Vec<Point>,
    skips: Vec<Skip>,
    shifts: Vec<Shift>,
    sizes: Vec<Size>,
    bounds: Vec<Bound>,
}

/// Measures, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let workspace = Workspace::load()?;
    interrupt::watch()?;
    let mut figures = Figures {
        machine: Machine::examine(&workspace),
        command: command_line(),
        points: Vec::new(),
        skips: Vec::new(),
        shifts: Vec::new(),
        sizes: Vec::new(),
        bounds: Vec::new(),
    };
    println!("policies on recorded traces, and on a shift");
    let seeds = if options.quick { QUICK_SEEDS } else { SEEDS };
    for line in bench(&workspace, "forebay-advisor", "policies", &["--seeds", &seeds.to_string()])?
    {
        match line {
            Line::Point(point) => figures.points.push(point),
            Line::Skip(skip) => figures.skips.push(skip),
            Line::Shift(shift) => figures.shifts.push(shift),
        }
    }
    let mut sizes: Vec<String> = USUAL_SIZES.map(str::to_owned).into();
    if !options.quick {
        let largest = EXTENT_BLOCKS.map(|blocks| (largest_log2(blocks), blocks));
        sizes.extend(largest.map(|(log2, blocks)| format!("{log2}x{blocks}")));
    }
    println!("hits and memory of the engine, by size of the index: {}", sizes.join(", "));
    figures.sizes = bench(&workspace, "forebay-engine", "hit", &["--sizes", &sizes.join(",")])?;
    figures.bounds = bounds::judge(&figures);
    super::print_bounds(&figures.bounds);
    if let Some(path) = &options.json {
        super::write(path, &(serde_json::to_string_pretty(&figures)? + "\n"))?;
    }
    let usual = (!options.quick).then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        super::write(&path, &(document::text(&figures).trim_end().to_owned() + "\n"))?;
    }
    Ok(Outcome::Passed)
}

/// Builds and runs a program of a crate, and reads its lines.
fn bench<T: for<'a> Deserialize<'a>>(
    workspace: &Workspace,
    package: &str,
    name: &str,
    arguments: &[&str],
) -> anyhow::Result<Vec<T>> {
    let mut command = process::cargo();
    command.args(["bench", "--quiet", "--locked", "--package", package, "--bench", name, "--"]);
    command.args(arguments).current_dir(workspace.root());
    let text = interrupt::capture(&mut command)?;
    let read = |line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}"));
    text.lines().map(read).collect()
}

/// What was typed, with the folder of traces by its name alone.
fn command_line() -> String {
    let line = super::command_line();
    match std::env::var_os(TRACES) {
        Some(_) => format!("{TRACES}=... {line}"),
        None => line,
    }
}

/// The most extents of so many blocks that half of the free memory has room for, as a power of two.
fn largest_log2(extent_blocks: u64) -> u32 {
    let room = Machine::available_bytes() / 2;
    let needed = EXTENT_BYTES + extent_blocks * BLOCK_BYTES;
    (room / needed).max(1).ilog2().clamp(20, LARGEST_LOG2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(clock2q: f64, lru: f64, min: f64) -> Point {
        let (trace, format) = ("P2".to_owned(), "arc".to_owned());
        let (block_bytes, percent, cache_blocks, references) = (4096, 10, 12_030, 1);
        let fifo = lru;
        Point {
            trace,
            format,
            block_bytes,
            percent,
            cache_blocks,
            references,
            clock2q,
            lru,
            fifo,
            min,
        }
    }

    fn size(extents: u64, hit_ns: f64, chase_ns: f64) -> Size {
        Size {
            extents,
            extent_blocks: 1,
            hit_ns: vec![hit_ns],
            index_bytes: 18 * extents,
            checksum_bytes: 4 * extents,
            bits_bytes: extents / 4,
            ghost_bytes: extents,
            chase_ns: vec![chase_ns],
        }
    }

    #[test]
    fn the_gap_is_a_part_of_the_way_if_there_is_one() {
        assert_eq!(point(0.5, 0.75, 0.25).gap(), Some(0.5));
        assert_eq!(point(1.0, 0.75, 0.25).gap(), Some(-0.5));
        assert_eq!(point(0.5, 0.75, 0.75).gap(), None);
        assert!(point(0.5, 0.75, 0.25).published().is_some());
    }

    #[test]
    fn misses_are_what_a_hit_takes_beyond_one_in_a_small_index() {
        let sizes = [size(1 << 14, 300.0, 4.0), size(1 << 20, 700.0, 100.0)];
        assert_eq!(sizes[1].estimated_misses(&sizes), Some(4.0));
        assert_eq!(sizes[0].estimated_misses(&sizes), None);
    }
}
