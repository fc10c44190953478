//! `cargo xtask bench policies`: how good the replacement policy is, and what it costs.
//!
//! Programs of the crates measure (`crates/advisor/benches/policies`, `crates/engine/benches/hit`)
//! and print lines of JSON; here they are put into tables and held against the bounds.

mod bounds;
mod document;
mod log;
mod published;
mod sampling;

use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
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
/// Huge pages for what is measured, as the daemon has them.
const TUNABLES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
/// Seeds of the shift, for a median.
const SEEDS: u32 = 15;
const QUICK_SEEDS: u32 = 3;
/// Indexes that the processor's caches hold, and of a million extents: how many extents, as a power
/// of two, and of how many blocks.
const USUAL_SIZES: [(u32, u64); 4] = [(14, 1), (12, 16), (20, 1), (20, 16)];
/// Blocks of an extent: 4 KiB and 64 KiB.
const EXTENT_BLOCKS: [u64; 2] = [1, 16];
/// The largest indexes, as powers of two: 134 million extents. Of 64 KiB the largest cache device,
/// of 4 TiB, has room for half as many, less headers.
const LARGEST_LOG2: u32 = 27;
/// Memory that a measurement needs at most, for an extent and for each block: the index or the
/// chain, whichever is there, with what vectors have to spare; checksums and bits.
const EXTENT_BYTES: u64 = 60;
const BLOCK_BYTES: u64 = 8;
/// A CRC-32C.
const CHECKSUM_BYTES: u64 = 4;

/// How much to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Fewer seeds, and no index larger than a million extents; only printed
    #[arg(long)]
    quick: bool,
    /// Measure only this part; may be given more than once
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Write the document here [default: docs/policy-figures.md; nowhere with --only or
    /// --quick]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write all raw figures here as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Options {
    fn has(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// The indexes to measure. Samples need the cost of a hit, in those of single blocks.
    fn sizes(&self) -> Vec<(u32, u64)> {
        let mut sizes: Vec<(u32, u64)> = USUAL_SIZES.into();
        if !self.quick {
            sizes.extend(EXTENT_BLOCKS.map(|blocks| (largest_log2(blocks), blocks)));
        }
        let is_needed = |blocks| self.has(Part::Index) || (self.has(Part::Sampling) && blocks == 1);
        sizes.retain(|(_, blocks)| is_needed(*blocks));
        sizes
    }
}

/// A part of the bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Part {
    /// Miss ratios on recorded traces
    Misses,
    /// Miss ratios of the engine itself on recorded traces
    Log,
    /// How soon a policy turns to other blocks
    Shift,
    /// Curves from samples beside full replays
    Sampling,
    /// Hits of the engine, and memory of the index
    Index,
}

/// A line of the advisor's program.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Point(Point),
    Log(log::OnLog),
    Skip(Skip),
    Shift(Shift),
    Sampled(sampling::Sampled),
    Live(sampling::Live),
    LiveCost(sampling::LiveCost),
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
    /// Of the index, each level's, the root's first.
    level_bytes: Vec<u64>,
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

    /// What index, ghost and checksums take beyond the checksums of cached blocks: those of headers
    /// in the log count here.
    fn beyond_checksums_per_extent(&self) -> f64 {
        let of_blocks = (self.blocks() * CHECKSUM_BYTES) as f64;
        self.index_and_ghost_per_extent()
            + (self.checksum_bytes as f64 - of_blocks) / self.extents as f64
    }

    fn memory_gib_per_tib(&self) -> f64 {
        let bytes = self.index_bytes + self.ghost_bytes + self.checksum_bytes + self.bits_bytes;
        let cached_bytes = self.blocks() * 4096;
        bytes as f64 / cached_bytes as f64 * 1024.0
    }

    /// Dependent cache misses of a hit at most: the places that it needs one after another and
    /// that are larger than a core's own cache. Those are the levels of the index, and what it
    /// needs behind them at one time, the checksum and the bits of the policy. `None` if the size
    /// of that cache is not known, which is 0 then.
    fn dependent_misses(&self, core_cache_bytes: u64) -> Option<usize> {
        let behind = self.checksum_bytes.max(self.bits_bytes);
        let places = self.level_bytes.iter().copied().chain([behind]);
        let count = places.filter(|bytes| *bytes > core_cache_bytes).count();
        (core_cache_bytes > 0).then_some(count)
    }

    /// How long a hit waits for memory, in steps of the pointer chase: what it takes beyond one in
    /// an index that the processor's caches hold.
    fn waiting_steps(&self, sizes: &[Size]) -> Option<f64> {
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
    /// What was measured.
    parts: Vec<Part>,
    points: Vec<Point>,
    on_log: Vec<log::OnLog>,
    skips: Vec<Skip>,
    shifts: Vec<Shift>,
    sampled: Vec<sampling::Sampled>,
    lives: Vec<sampling::Live>,
    live_costs: Vec<sampling::LiveCost>,
    sizes: Vec<Size>,
    bounds: Vec<Bound>,
}

impl Figures {
    /// Of these parts, of which nothing is measured yet.
    fn new(machine: Machine, command: String, parts: Vec<Part>) -> Figures {
        Figures {
            machine,
            command,
            parts,
            points: Vec::new(),
            on_log: Vec::new(),
            skips: Vec::new(),
            shifts: Vec::new(),
            sampled: Vec::new(),
            lives: Vec::new(),
            live_costs: Vec::new(),
            sizes: Vec::new(),
            bounds: Vec::new(),
        }
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    fn is_whole(&self) -> bool {
        Part::value_variants().iter().all(|part| self.has(*part))
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Point(point) => self.points.push(point),
            Line::Log(row) => self.on_log.push(row),
            Line::Skip(skip) => self.skips.push(skip),
            Line::Shift(shift) => self.shifts.push(shift),
            Line::Sampled(sampled) => self.sampled.push(sampled),
            Line::Live(live) => self.lives.push(live),
            Line::LiveCost(cost) => self.live_costs.push(cost),
        }
    }
}

/// Measures, prints, and writes the document.
pub(super) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let workspace = Workspace::load()?;
    interrupt::watch()?;
    let parts = Part::value_variants().iter().copied().filter(|part| options.has(*part)).collect();
    let mut figures = Figures::new(Machine::examine(&workspace), command_line(), parts);
    let sizes = options.sizes();
    if !sizes.is_empty() {
        let sizes = sizes.iter().map(|(log2, blocks)| format!("{log2}x{blocks}"));
        let sizes: Vec<String> = sizes.collect();
        println!("hits and memory of the engine, by size of the index: {}", sizes.join(", "));
        let sizes = sizes.join(",");
        figures.sizes = bench(&workspace, "forebay-engine", "hit", &["--sizes", &sizes])?;
    }
    let arguments = paper_arguments(options, &figures.sizes);
    if let Some(arguments) = &arguments {
        println!("policies on paper: {}", arguments.join(" "));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for line in bench(&workspace, "forebay-advisor", "policies", &arguments)? {
            figures.add(line);
        }
    }
    figures.bounds = bounds::judge(&figures);
    super::print_bounds(&figures.bounds);
    if let Some(path) = &options.json {
        super::write(path, &serde_json::to_string_pretty(&figures)?)?;
    }
    let is_usual = figures.is_whole() && !options.quick;
    let usual = is_usual.then(|| workspace.root().join(DOCUMENT));
    if let Some(path) = options.output.clone().or(usual) {
        super::write(&path, &document::text(&figures))?;
    }
    Ok(Outcome::Passed)
}

/// What the advisor's program is to do; none if nothing. The live curve is timed beside caches of
/// single blocks, under the load that the engine was found to bear.
fn paper_arguments(options: &Options, sizes: &[Size]) -> Option<Vec<String>> {
    let parts = [
        (Part::Misses, "misses"),
        (Part::Log, "log"),
        (Part::Shift, "shift"),
        (Part::Sampling, "sampling"),
    ];
    let names = parts.into_iter().filter(|(part, _)| options.has(*part)).map(|(_, name)| name);
    let names: Vec<&str> = names.collect();
    let caches = sizes.iter().filter(|size| size.extent_blocks == 1);
    let cache = |size: &Size| Some(format!("{}:{:.0}", size.extents, size.hit()?.median));
    let caches: Vec<String> = caches.filter_map(cache).collect();
    let seeds = if options.quick { QUICK_SEEDS } else { SEEDS };
    let mut arguments = vec!["--parts".to_owned(), names.join(",")];
    if options.has(Part::Shift) {
        arguments.extend(["--seeds".to_owned(), seeds.to_string()]);
    }
    if options.has(Part::Sampling) {
        arguments.extend(["--sizes".to_owned(), caches.join(",")]);
    }
    (!names.is_empty()).then_some(arguments)
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
    command.args(arguments).current_dir(workspace.root()).env(TUNABLES.0, TUNABLES.1);
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

    /// Figures of all parts, as `fill` makes them.
    pub(super) fn figures(fill: impl FnOnce(&mut Figures)) -> Figures {
        let parts = Part::value_variants().to_vec();
        let mut figures = Figures::new(Machine::default(), String::new(), parts);
        fill(&mut figures);
        figures
    }

    pub(super) fn size(extents: u64, hit_ns: f64, chase_ns: f64) -> Size {
        Size {
            extents,
            extent_blocks: 1,
            hit_ns: vec![hit_ns],
            index_bytes: 18 * extents,
            level_bytes: vec![64, extents / 4, 17 * extents],
            checksum_bytes: 4 * extents,
            bits_bytes: extents / 4,
            ghost_bytes: extents,
            chase_ns: vec![chase_ns],
        }
    }

    fn options(only: &[Part]) -> Options {
        Options { quick: true, only: only.to_vec(), output: None, json: None }
    }

    #[test]
    fn a_part_measures_what_it_needs() {
        let sizes = |only| options(only).sizes();
        assert_eq!(sizes(&[]), USUAL_SIZES);
        assert_eq!(sizes(&[Part::Sampling]), [(14, 1), (20, 1)]);
        assert_eq!(sizes(&[Part::Misses]), []);
        let of_runs = Size { extent_blocks: 16, ..size(32, 9.0, 1.0) };
        let sizes = [size(16, 300.4, 1.0), of_runs, size(64, 700.0, 1.0)];
        let arguments = |only| paper_arguments(&options(only), &sizes);
        let text = |only| arguments(only).expect("something to do").join(" ");
        assert_eq!(text(&[Part::Sampling]), "--parts sampling --sizes 16:300,64:700");
        assert_eq!(text(&[]), "--parts misses,log,shift,sampling --seeds 3 --sizes 16:300,64:700");
        assert_eq!(arguments(&[Part::Index]), None);
    }

    #[test]
    fn the_document_has_the_parts_that_were_measured() {
        let text = |parts: &[Part]| {
            document::text(&figures(|figures| {
                figures.parts = parts.to_vec();
                figures.bounds = bounds::judge(figures);
            }))
        };
        let (whole, part) = (text(Part::value_variants()), text(&[Part::Sampling]));
        assert!(whole.contains("Generated as a whole") && part.contains("Generated in parts"));
        for title in [
            "## Misses",
            "## On the log",
            "## After a shift",
            "## Sampling",
            "## Hits",
            "## Memory",
        ] {
            assert!(whole.contains(title), "{title}");
            assert_eq!(part.contains(title), title == "## Sampling", "{title}");
        }
        assert!(whole.contains("back after a shift,") && !part.contains("back after a shift,"));
    }

    #[test]
    fn the_gap_is_a_part_of_the_way_if_there_is_one() {
        assert_eq!(point(0.5, 0.75, 0.25).gap(), Some(0.5));
        assert_eq!(point(1.0, 0.75, 0.25).gap(), Some(-0.5));
        assert_eq!(point(0.5, 0.75, 0.75).gap(), None);
        assert!(point(0.5, 0.75, 0.25).published().is_some());
    }

    #[test]
    fn what_is_larger_than_a_cores_cache_is_missed() {
        let size = size(1 << 20, 700.0, 100.0);
        // Leaves, and checksums with bits; with a smaller cache also the level above the leaves.
        assert_eq!(size.dependent_misses(1 << 20), Some(2));
        assert_eq!(size.dependent_misses(1 << 17), Some(3));
        assert_eq!(size.dependent_misses(1 << 30), Some(0));
        assert_eq!(size.dependent_misses(0), None);
    }

    #[test]
    fn waits_are_what_a_hit_takes_beyond_one_in_a_small_index() {
        let sizes = [size(1 << 14, 300.0, 4.0), size(1 << 20, 700.0, 100.0)];
        assert_eq!(sizes[1].waiting_steps(&sizes), Some(4.0));
        assert_eq!(sizes[0].waiting_steps(&sizes), None);
    }
}
