//! The document: tables, and how to read them. All of it is generated.

use super::published::OTHERS;
use super::{Figures, Part, Point, Shift, Size, Skip, log, sampling};
use crate::bench::document::{cell, table, verdicts};
use crate::bench::spread::{Spread, number};

/// The whole text, in Markdown; of the parts that were measured.
pub(super) fn text(figures: &Figures) -> String {
    let part = |part: Part, text: &dyn Fn() -> String| {
        if figures.has(part) { text() } else { String::new() }
    };
    preamble(figures)
        + "## Bounds\n\nWhat the design asks for, and what this run came to.\n\n"
        + &verdicts(&figures.bounds)
        + &part(Part::Misses, &|| published_table(&figures.points) + &other_table(figures))
        + &part(Part::Log, &|| log::text(&figures.on_log))
        + &part(Part::Shift, &|| shift_table(&figures.shifts))
        + &part(Part::Sampling, &|| sampling::text(figures))
        + &part(Part::Index, &|| {
            let core_cache_bytes = figures.machine.core_cache_bytes;
            speed_table(&figures.sizes, core_cache_bytes) + &memory_table(&figures.sizes)
        })
}

fn preamble(figures: &Figures) -> String {
    let machine = &figures.machine;
    let extent = if figures.is_whole() { "as a whole" } else { "in parts" };
    format!(
        "\
# Figures of the policy

Generated {extent} by a run of

```
{}
```

on {}, at commit `{}`.

{}
Miss ratios, gaps and the shift are the same on every machine. So is memory. Times are of this one:
if it is a virtual machine, with neighbours, figures of two runs can differ by half. Of a figure
that was measured several times tables have the median, and in parentheses the smallest and the
largest.

",
        figures.command,
        machine.date,
        machine.commit,
        machine.items(),
    )
}

pub(super) fn ratio(value: f64) -> String {
    number(value, 3)
}

fn gap(point: &Point) -> String {
    point.gap().map_or_else(|| "–".to_owned(), |gap| number(gap, 3))
}

/// The cells that say which point it is.
fn place(point: &Point) -> [String; 2] {
    let size = format!("{} ({} %)", cache(point.cache_blocks), point.percent);
    [blocks(&point.trace, point.block_bytes), size]
}

/// A trace and the size of its blocks.
pub(super) fn blocks(trace: &str, block_bytes: u32) -> String {
    let bytes = f64::from(block_bytes);
    let block =
        if bytes < 1024.0 { format!("{bytes} B") } else { format!("{} KiB", bytes / 1024.0) };
    format!("{trace}, {block}")
}

/// Blocks of a cache.
pub(super) fn cache(cache_blocks: u64) -> String {
    number(cache_blocks as f64, 0)
}

fn published_table(points: &[Point]) -> String {
    let header = [
        "trace, blocks",
        "cache, blocks",
        "clock2q",
        "lru",
        "fifo",
        "min",
        "gap closed",
        "published: lru",
        "fifo",
        "min",
        "S3-FIFO",
        "Clock2Q+",
    ];
    let rows = points.iter().filter_map(|point| {
        let published = point.published()?;
        let ours = [point.clock2q, point.lru, point.fifo, point.min].map(ratio);
        let theirs = [
            published.lru,
            published.fifo,
            published.min,
            published.s3_fifo,
            published.clock2q_plus,
        ];
        let cells = [place(point).to_vec(), ours.to_vec(), vec![gap(point)]];
        Some([cells.concat(), theirs.map(ratio).to_vec()].concat())
    });
    "\
## Misses on recorded traces

Miss ratios by block of the policies alone, as `forebay replay` has them: caches of single blocks,
empty at first, 10 % and 20 % of the different blocks of the trace; reads and writes alike; no rule
for sequential streams. The gap is what clock2q closes of the way from LRU to Belady's MIN. The
published figures are those of libCacheSim 0.3.5 with its default parameters, for the same work.

"
    .to_owned()
        + &table(&header, rows)
        + &published_others(points)
}

/// What other policies came to elsewhere.
fn published_others(points: &[Point]) -> String {
    let names = OTHERS.iter().copied();
    let header: Vec<&str> =
        ["trace, blocks", "cache, blocks", "clock2q, here"].into_iter().chain(names).collect();
    let rows = points.iter().filter_map(|point| {
        let published = point.published()?;
        let theirs = published.others.map(ratio).to_vec();
        Some([place(point).to_vec(), vec![ratio(point.clock2q)], theirs].concat())
    });
    "\
Other policies in the same caches, as published:

"
    .to_owned()
        + &table(&header, rows)
}

fn other_table(figures: &Figures) -> String {
    let header = ["trace, blocks", "cache, blocks", "clock2q", "lru", "fifo", "min", "gap closed"];
    let others: Vec<&Point> =
        figures.points.iter().filter(|point| point.published().is_none()).collect();
    let mut text = String::new();
    if !others.is_empty() {
        let rows = others.iter().map(|point| {
            let ours = [point.clock2q, point.lru, point.fifo, point.min].map(ratio);
            [place(point).to_vec(), ours.to_vec(), vec![gap(point)]].concat()
        });
        text += "\
### Small traces

Loops, scans and programs in caches of some hundred blocks, and samples of which hardly a block is
used twice. They are not part of the mean. Where LRU is as good as MIN there is no gap to close.

";
        text += &table(&header, rows);
        text += &worse_than_lru(&others);
    }
    text + &left_out(&figures.skips)
}

/// Names the traces that are left out, and why.
pub(super) fn left_out(skips: &[Skip]) -> String {
    if skips.is_empty() {
        return String::new();
    }
    let line = |skip: &Skip| format!("- {}: {}\n", skip.trace, skip.reason);
    format!("Left out:\n\n{}\n", skips.iter().map(line).collect::<String>())
}

/// Names the points at which clock2q does worse than LRU.
fn worse_than_lru(points: &[&Point]) -> String {
    let worse: Vec<String> = points
        .iter()
        .filter(|point| point.clock2q > point.lru)
        .map(|point| place(point).join(" at "))
        .collect();
    match worse.as_slice() {
        [] => String::new(),
        worse => format!("clock2q misses more than LRU on {}.\n\n", worse.join("; ")),
    }
}

fn shift_table(shifts: &[Shift]) -> String {
    let header = [
        "policy",
        "hit ratio before",
        "hit ratio after",
        "back after",
        "lost on the way",
        "lost to the scan",
    ];
    let mut policies: Vec<&str> = shifts.iter().map(|shift| shift.policy.as_str()).collect();
    policies.dedup();
    let rows = policies.iter().map(|policy| {
        let of = |value: fn(&Shift) -> f64| {
            let shifts = shifts.iter().filter(|shift| shift.policy == *policy);
            Spread::of(shifts.map(value))
        };
        vec![
            (*policy).to_owned(),
            cell(of(|shift| shift.level_before), 3),
            cell(of(|shift| shift.level_after), 3),
            cell(of(|shift| shift.recovery_caches.unwrap_or(f64::INFINITY)), 2),
            cell(of(|shift| shift.lost_caches), 2),
            cell(of(|shift| shift.lost_to_scan_caches), 2),
        ]
    });
    format!(
        "\
## After a shift

A cache of 10,000 blocks sees requests by Zipf's law (exponent 1) for 40,000 blocks, 50 cache sizes
of them; then as many for 40,000 others; then a scan of 5 cache sizes; then the others again. A
policy is back when it has reached .95 of its later hit ratio in a window of half a cache size. All
but hit ratios are in cache sizes; {} seeds.

",
        shifts.len() / policies.len().max(1)
    ) + &table(&header, rows)
}

/// Which index.
fn index(size: &Size) -> [String; 2] {
    [format!("{} KiB", size.extent_blocks * 4), number(size.extents as f64, 0)]
}

fn speed_table(sizes: &[Size], core_cache_bytes: u64) -> String {
    let header = [
        "extents",
        "in the index",
        "ns of CPU per hit",
        "hits a second",
        "ns per step of the chase",
        "dependent misses",
        "waits, steps",
    ];
    let rows = sizes.iter().map(|size| {
        let rate = Spread::of(size.hit_ns.iter().map(|nanoseconds| 1e9 / nanoseconds));
        let single = |value: Option<f64>, decimals| {
            value.map_or_else(|| "–".to_owned(), |value| number(value, decimals))
        };
        let misses = size.dependent_misses(core_cache_bytes).map(|misses| misses as f64);
        let (misses, steps) = (single(misses, 0), single(size.waiting_steps(sizes), 1));
        let figures = [cell(size.hit(), 0), cell(rate, 0), cell(size.chase(), 0), misses, steps];
        [index(size).to_vec(), figures.to_vec()].concat()
    });
    format!(
        "\
## Hits of the engine

The engine alone (`crates/engine/benches/hit`): random reads of 4 KiB that hit, one at a time, with
a device that answers at once and copies nothing. A request, its operation, its completion and its
reply are part of it, and the checksum of the block. The policy is
clock2q. Beside it a pointer chase: a chain of cache lines in random order, through as much
memory as index, checksums and bits take. The memory of both has huge pages, as the daemon's has
(`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`).

Dependent cache misses are counted from the sizes of what a hit needs one after another: a node of
each level of the index, and then the checksum and the policy's bits, both at one time. Each place
that is larger than a core's own cache ({} KiB) counts as a miss, though the cache that cores share
has some of it. How long a hit waits for them is what it takes beyond one in the smallest index, in
steps of the chase. That may be more than a step a miss: a node has several lines, of which the
slowest counts, and the page tables of a virtual machine are in memory, too.

",
        core_cache_bytes / 1024
    ) + &table(&header, rows)
}

fn memory_table(sizes: &[Size]) -> String {
    let header = [
        "extents",
        "in the index",
        "index",
        "ghost",
        "index and ghost",
        "checksums, a block",
        "bits, a block",
        "GiB for 1 TiB",
    ];
    let rows = sizes.iter().map(|size| {
        let per_extent = |bytes: u64| number(bytes as f64 / size.extents as f64, 2);
        let per_block = |bytes: u64| number(bytes as f64 / size.blocks() as f64, 2);
        let figures = [
            per_extent(size.index_bytes),
            per_extent(size.ghost_bytes),
            number(size.index_and_ghost_per_extent(), 2),
            per_block(size.checksum_bytes),
            per_block(size.bits_bytes),
            number(size.memory_gib_per_tib(), 2),
        ];
        [index(size).to_vec(), figures.to_vec()].concat()
    });
    "\
## Memory

Bytes an extent by the engine's own count, beyond what an empty cache takes, bytes a cached block,
and all of it for 1 TiB of cached blocks. A block has five bits: live and dirty, and, in an empty
cache already, fetched ahead and two of clock2q. Headers in the log have a checksum, too, which is
why there is a little more than one a block; the bound above counts what they take with the index.
The ghost is that of clock2q when it remembers as much as it can of such extents: 64 KiB are one
entry. Before the cache demotes anything it has a sixteenth of what single blocks take.

"
    .to_owned()
        + &table(&header, rows)
}
