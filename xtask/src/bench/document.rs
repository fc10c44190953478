//! The document that a run leaves: tables, and how to read them. All of it is generated.

mod synced;
mod vhost_user;
mod writeback;

use std::fmt::Write;

use super::bounds::{self, Bound};
use super::contender::Contender;
use super::engine::Engine;
use super::ground::Medium;
use super::nbd::{self, Work};
use super::recovery::{self, Recovery};
use super::report::Report;
use super::spread::{Spread, number};
use super::ssd_bytes;
use super::takeover::{self, Takeovers};

pub(super) const GIB: f64 = (1u64 << 30) as f64;

/// The whole text, in Markdown. `experiments` are the bounds of runs of their own.
pub(super) fn text(report: &Report, experiments: &str) -> String {
    let mut text = preamble(report);
    text.push_str(&bounds_table(&report.bounds));
    text.push_str(experiments);
    text.push('\n');
    if let Some(rows) = &report.nbd {
        text.push_str(&nbd_tables(rows, report));
    }
    if let Some(measured) = &report.vhost_user {
        text.push_str(&vhost_user::text(measured, report));
    }
    if let Some(engine) = &report.engine {
        text.push_str(&engine_table(engine));
    }
    if let Some(recovery) = &report.recovery {
        text.push_str(&recovery_table(recovery));
        text.push_str(&memory_table(&recovery.rows));
    }
    if let Some(takeovers) = &report.takeovers {
        text.push_str(&takeover_table(takeovers));
    }
    if let Some(rows) = &report.ssd_bytes {
        text.push_str(&ssd_bytes_table(rows));
    }
    text.push_str(&writeback::text(report));
    text
}

fn preamble(report: &Report) -> String {
    let machine = &report.machine;
    let versions: Vec<String> =
        machine.versions.iter().map(|version| format!("- {version}\n")).collect();
    format!(
        "\
# Performance

Generated as a whole by a run of

```
{}
```

on {}, at commit `{}`. Run it again on your own machine rather than believe these figures;
`cargo xtask bench --help` tells how to run a part.

{}- file systems: {}
{}{}
## How to read this

Every figure comes from this one run. {}

Where servers are compared they took turns within each repetition, so that noise of the machine
meets all alike, and a ratio is the median of the ratios of the repetitions.

Trust ratios more than figures. Client and server share the same cores here, and if the machine is a
virtual one, with neighbours as well: figures of two runs can differ by half. Where smallest and
largest lie far apart, the median says little. The client tops out, too: over NBD, fio itself spends
about as much on a request as the fastest server, so CPU time of the server per request tells more
about a server than requests per second. Servers that use the page cache read and write RAM, even if
their file lies on a disk; those with O_DIRECT read and write the disk. Compare like with like.

",
        report.command,
        machine.date,
        machine.commit,
        machine.items(),
        report.file_systems.join(", "),
        versions.concat(),
        sessions(report.session_count),
        repetitions(report.plan.repetitions),
    )
}

/// Whether the figures come from one go.
fn sessions(count: u32) -> String {
    match count.saturating_sub(1) {
        0 => String::new(),
        1 => "- interrupted once and resumed; what is compared was measured in one go\n".to_owned(),
        count => format!(
            "- interrupted {count} times and resumed; what is compared was measured in one go\n"
        ),
    }
}

/// How often phases were measured, and what tables show therefore.
fn repetitions(count: u32) -> String {
    if count == 1 {
        return "Each phase was measured once, so nothing tells noise from a change.".to_owned();
    }
    format!(
        "Each phase was repeated {count} times, if nothing else is said; tables show the median, \
         and\nin parentheses the smallest and the largest."
    )
}

/// A table with a header; the first column is text, the others are numbers.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let mut rule = vec!["---".to_owned()];
    rule.resize(header.len(), "---:".to_owned());
    let mut text = line(&header) + &line(&rule);
    for row in rows {
        text.push_str(&line(&row));
    }
    text + "\n"
}

pub(super) fn cell(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(|| "–".to_owned(), |spread| spread.text(decimals))
}

fn bounds_table(bounds: &[Bound]) -> String {
    "## Bounds\n\nWhat the design asks for, and what this run came to. The verdict follows from \
     the\nmedian. What is called extrapolated was measured on smaller logs.\n\n"
        .to_owned()
        + &verdicts(bounds)
}

/// A line for each bound.
pub(super) fn verdicts(bounds: &[Bound]) -> String {
    let rows = bounds.iter().map(|bound| {
        let Bound { work, bound, measured, verdict } = bound;
        vec![work.clone(), bound.clone(), measured.clone(), verdict.text().to_owned()]
    });
    table(&["work", "bound", "measured", "verdict"], rows)
}

fn nbd_tables(rows: &[nbd::Row], report: &Report) -> String {
    let mut text = format!(
        "\
## Over NBD

One connection of fio (`--ioengine=nbd`) over a Unix socket, phases of {} s, files of {} MiB that
were written in full before. forebay runs in writeback mode with a cache file of {} GiB, written
in full, on the same file system as its origin; that the two share a journal does not matter here,
for the origin is not written in any phase (see below each table). For hits everything was read once
before, in random pieces of 64 KiB. For writes, each phase begins with a fresh server and an empty
log, and ends early if it has written three quarters of the log, so that there is room all the time.
`nbdkit --filter=cache` runs with `cache-on-read=true`, its cache file on the same file system. For
write + fsync, IOPS counts pairs of a write and a flush, and CPU time is that of a pair; latencies
are those of the write and, behind the slash, of the flush.

",
        report.plan.seconds,
        nbd::FILE_BYTES >> 20,
        nbd::CACHE_BYTES >> 30,
    );
    for medium in Medium::ALL {
        for work in Work::ALL {
            let is_of = |row: &&nbd::Row| row.medium == medium && row.work == work;
            let rows: Vec<&nbd::Row> = rows.iter().filter(is_of).collect();
            if !rows.is_empty() {
                let _ = write!(text, "### {}, {}\n\n", work.title(), medium.title());
                text.push_str(&nbd_table(&rows));
                text.push_str(&witness_line(&rows));
            }
        }
    }
    text
}

fn nbd_table(rows: &[&nbd::Row]) -> String {
    let find = |contender| rows.iter().find(|row| row.contender == contender);
    let (bare, nbdkit) = (find(Contender::Bare), find(Contender::NbdkitFile));
    let header = [
        "server",
        "I/O",
        "IOPS",
        "IOPS over bare",
        "IOPS over `nbdkit file`",
        "p50, us",
        "p99, us",
        "CPU s per million",
        "CPU over `nbdkit file`",
    ];
    let iops = |sample: &nbd::Sample| sample.figures.iops;
    let over = |row: &nbd::Row, other: Option<&&nbd::Row>, value: fn(&nbd::Sample) -> f64| {
        let spread = other.and_then(|other| bounds::ratios(row, other, value));
        spread.map_or_else(|| "–".to_owned(), |spread| number(spread.median, 2))
    };
    let cells = rows.iter().map(|row| {
        vec![
            row.contender.title().to_owned(),
            row.io.clone(),
            cell(row.spread(iops), 0),
            over(row, bare, iops),
            over(row, nbdkit, iops),
            latency(row, |percentiles| percentiles.p50_us),
            latency(row, |percentiles| percentiles.p99_us),
            cell(row.spread(nbd::Sample::cpu_per_million), 2),
            over(row, nbdkit, nbd::Sample::cpu_per_million),
        ]
    });
    table(&header, cells)
}

fn latency(row: &nbd::Row, value: impl Fn(&super::fio::Percentiles) -> f64) -> String {
    let request = cell(row.spread(|sample| value(&sample.figures.latency)), 0);
    let flushes = row.samples.iter().filter_map(|sample| sample.figures.flush_latency.as_ref());
    match Spread::of(flushes.map(&value)) {
        Some(flush) => format!("{request} / {}", flush.text(0)),
        None => request,
    }
}

/// What forebay's counters say about the phases of a table.
fn witness_line(rows: &[&nbd::Row]) -> String {
    let witnesses: Vec<&nbd::Witness> = rows
        .iter()
        .flat_map(|row| &row.samples)
        .filter_map(|sample| sample.witness.as_ref())
        .collect();
    let ratios = witnesses.iter().filter_map(|witness| witness.hit_ratio);
    if let Some(ratio) = Spread::of(ratios) {
        let percent = ratio.min * 100.0;
        let remark = if ratio.min < 1.0 { ": **not all were hits**" } else { "" };
        return format!("By its counters, {percent} % of forebay's reads were hits{remark}.\n\n");
    }
    let largest = |value: fn(&nbd::Witness) -> f64| {
        Spread::of(witnesses.iter().map(|witness| value(witness))).map_or(0.0, |spread| spread.max)
    };
    format!(
        "By its counters, forebay's log was at most {} % in use with {} MiB of dirty data; {} \
         writes waited for room, {} blocks were written to the origin.\n\n",
        number(largest(|witness| witness.occupancy) * 100.0, 0),
        number(largest(|witness| witness.dirty_bytes as f64) / f64::from(1 << 20), 0),
        number(largest(|witness| witness.space_waits as f64), 0),
        number(largest(|witness| witness.written_back_blocks as f64), 0),
    )
}

fn engine_table(engine: &Engine) -> String {
    let rows = engine.rows.iter().map(|row| {
        vec![number(row.extents as f64, 0), row.depth.to_string(), cell(row.hit_us(), 2)]
    });
    format!(
        "\
## CPU of the engine on a hit

The engine alone (`crates/engine/benches/hit`): requests, completions and replies of random reads
of 4 KiB, with a device that answers at once and copies nothing. The checksum of the block is part
of it and takes {} us. All extents are one block long and in random order: with a large index nearly
every step of the search waits for memory.

",
        cell(engine.checksum_us(), 2)
    ) + &table(&["extents in the index", "requests at a time", "us of CPU per hit"], rows)
}

fn recovery_table(recovery: &Recovery) -> String {
    let header = [
        "log",
        "extents",
        "in use",
        "recovery, s",
        "CPU of it, s",
        "until it serves, s",
        "read, MiB",
        "s per TiB, as here",
        "s per TiB at 1 GB/s",
    ];
    let mib = f64::from(1 << 20);
    let rows = recovery.rows.iter().map(|row| {
        vec![
            format!("{} MiB", number(row.cache_bytes as f64 / mib, 0)),
            format!("{} KiB", row.extent_bytes >> 10),
            format!("{} %", number(row.occupancy * 100.0, 0)),
            cell(row.spread(|sample| sample.recovery_seconds), 3),
            cell(row.spread(|sample| sample.cpu_seconds), 3),
            cell(row.spread(|sample| sample.ready_seconds), 3),
            cell(row.spread(|sample| sample.read_bytes as f64 / mib), 0),
            cell(row.seconds_per_tib(), 0),
            cell(row.seconds_per_tib_at_assumed_rate(), 0),
        ]
    });
    format!(
        "\
## Recovery

The daemon was killed with SIGKILL after the log was filled by random reads of one length, which
were promoted, and started again. The cache file lies on the disk, which reads it with {} GB/s in
pieces of 1 MiB (O_DIRECT). A TiB was not measured: the last two columns are proportions, the first
of the time measured here, the second of the bytes read at {} GB/s and of the CPU time of recovery,
as if reading and computing took turns. A start reads the summary of each segment, and as a whole
the segments that were begun since the last checkpoint, which is written after each 64 times its own
size: how many they are depends on when the daemon was killed. The CPU time has in it what the
system takes to hand out the memory of the index; in a virtual machine whose host has to find that
memory first, it can be more than all the rest.

",
        number(recovery.read_rate / 1e9, 2),
        number(recovery::ASSUMED_RATE / 1e9, 0),
    ) + &table(&header, rows)
}

fn takeover_table(takeovers: &Takeovers) -> String {
    let header = ["", "ms"];
    let row = |name: &str, value: fn(&takeover::Sample) -> f64| {
        vec![name.to_owned(), cell(takeovers.spread(value), 1)]
    };
    let rows = [
        row("longest time between two answers", |sample| sample.gap_ms),
        row("the same without a takeover", |sample| sample.quiet_gap_ms),
        row("hold: until nothing is under way and the checkpoint is durable", |s| s.held_ms),
        row("read: until the successor has read everything", |sample| sample.read_ms),
        row("start: from the commit until the successor serves", |sample| sample.start_ms),
    ];
    format!(
        "\
## Takeover

A daemon with {} cached extents ({} MiB) was replaced by another one (`forebay serve --takeover`)
while a client on one connection sent one request after another: reads of 4 KiB that hit, and every
eighth time a write. It was cut and came back at once. The phases are as the two daemons log them.

",
        takeovers.extents,
        takeovers.cached_bytes >> 20
    ) + &table(&header, rows)
}

fn memory_table(rows: &[recovery::Row]) -> String {
    let header = [
        "log",
        "extents",
        "cached",
        "extents in the index",
        "counted, bytes per extent",
        "of which grows with extents",
        "counted, MiB per GiB cached",
        "resident memory grew, bytes per extent",
    ];
    let mib = f64::from(1 << 20);
    let rows = rows.iter().map(|row| {
        let growth = row.spread(|sample| {
            (sample.resident_bytes as f64 - row.empty_resident_bytes as f64) / row.extents as f64
        });
        let cached_gib = row.cached_bytes as f64 / GIB;
        vec![
            format!("{} MiB", number(row.cache_bytes as f64 / mib, 0)),
            format!("{} KiB", row.extent_bytes >> 10),
            format!("{} MiB", number(row.cached_bytes as f64 / mib, 0)),
            number(row.extents as f64, 0),
            number(row.whole_memory_per_extent(), 1),
            number(row.memory_per_extent(), 1),
            number(row.memory_bytes as f64 / mib / cached_gib, 2),
            cell(growth, 0),
        ]
    });
    "\
## RAM per cached extent

Of the same logs. \"Counted\" is `memory_bytes` of `forebay status --json`: index, checksums and
bits. \"Grows with extents\" leaves out the tables that an empty log of that size has. Resident
memory is that of the process after recovery, less that of a process with an empty log; buffers that
recovery read into are part of it, so it means something for large indexes only.

"
    .to_owned()
        + &table(&header, rows)
}

fn ssd_bytes_table(rows: &[ssd_bytes::Row]) -> String {
    let header = ["writes", "blocks per batch", "written per byte", "relocated per byte"];
    let rows = rows.iter().map(|row| {
        vec![
            row.title.clone(),
            cell(row.spread(|sample| sample.batch_blocks), 1),
            cell(row.spread(|sample| sample.written_per_byte), 2),
            cell(row.spread(|sample| sample.relocated_per_byte), 2),
        ]
    });
    "\
## SSD bytes per client byte

By forebay's own counters, on disk: bytes written to the cache device for each byte that
clients wrote and that was promoted, headers, summaries and checkpoints included. What reclaim moves
is given apart. A batch is what shares one record of the log and one device write.

"
    .to_owned()
        + &table(&header, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_rule_of_as_many_columns() {
        let text = table(&["a", "b"], [vec!["1".to_owned(), "2".to_owned()]]);
        assert_eq!(text, "| a | b |\n| --- | ---: |\n| 1 | 2 |\n\n");
    }
}
