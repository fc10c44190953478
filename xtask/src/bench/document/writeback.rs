//! The part of the document on writes that go home to slow origins.

use std::fmt::Write;

use super::super::fio::{Figures, Timeline};
use super::super::forebay::Order;
use super::super::report::Report;
use super::super::slow::mean;
use super::super::spread::number;
use super::super::{drain, fairness, flushed, full, misses, sequential};
use super::{cell, synced, table};

/// All of it, as far as it was measured.
pub(super) fn text(report: &Report) -> String {
    let parts = [
        report.full.as_deref().map(full_cache_tables),
        report.fsync.as_deref().map(|rows| flushed_table(rows, report)),
        report.misses.as_deref().map(|rows| misses_table(rows, report)),
        report.sync.as_deref().map(|phases| synced::text(phases, report)),
        report.sequential.as_deref().map(sequential_table),
        report.drain.as_deref().map(|rows| drain_table(rows, report)),
        report.fairness.as_ref().map(fairness_tables),
    ];
    let parts: String = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return parts;
    }
    "\
## Writeback to slow origins

The origin is a model of a slow device on a RAM file system, the cache a file on disk. The emulated
hard disk has 7200 revolutions a minute; the throttled origin does 250 transfers a second, whatever
their length. A bare device is served by the same front end.

"
    .to_owned()
        + &parts
}

fn fairness_tables(fairness: &fairness::Fairness) -> String {
    let header = [
        "both do",
        "IOPS of both",
        "less over more",
        "p99 of one over that of the other",
        "reads that hit",
    ];
    let lines = fairness.equal.iter().map(|row| {
        vec![
            row.work.title().to_owned(),
            cell(row.spread(fairness::Sample::iops), 0),
            cell(row.spread(fairness::Sample::less_over_more), 2),
            cell(row.spread(fairness::Sample::p99_ratio), 2),
            cell(row.spread(|sample| sample.hit_ratio), 2),
        ]
    });
    format!(
        "\
### Two clients at once

Two clients do the same on one volume, each over a connection of its own, over NBD if nothing else
is said, with random blocks of 4 KiB of the emulated hard disk for {} s: what the one with less gets
over what the other one gets. The cache has {} MiB, and is full of dirty data before writes are
measured. Misses are measured for {} s: whose of several requests a disk takes next is as good as
chance, and what chance leaves between two clients shrinks with the number of requests, see
[testing.md](testing.md#shares-of-two-clients). Over vhost-user each client
(`crates/cli/examples/front_end_load`) has a volume of its own, {} MiB of one set that lies on the
RAM file system as a whole, since a volume has one writable front end. What over ublk becomes of two
clients is in [guest-figures.md](guest-figures.md).

{}\
Two clients that differ, measured once: what each gets beside the other one, and that over what it
gets alone. A request is taken when it comes, so shares follow demand.

{}",
        fairness::SECONDS,
        fairness::SIZES.cache_bytes >> 20,
        fairness::MISS_SECONDS,
        fairness::disks::VOLUME_BYTES >> 20,
        table(&header, lines),
        unequal_table(&fairness.unequal),
    )
}

fn unequal_table(rows: &[fairness::unequal::Row]) -> String {
    let header = ["clients", "work", "first, IOPS", "over alone", "second, IOPS", "over alone"];
    let lines = rows.iter().map(|row| {
        let mut line = vec![row.difference.title().to_owned(), row.answers.title().to_owned()];
        for client in [0, 1] {
            line.extend([cell(row.iops(client), 0), cell(row.over_alone(client), 2)]);
        }
        line
    });
    table(&header, lines)
}

/// How many seconds a column of a chart, and a figure of a course stand for.
const COLUMN_SECONDS: usize = 2;
const COURSE_SECONDS: usize = 10;

fn full_cache_tables(rows: &[full::Row]) -> String {
    let header = [
        "work",
        "origin",
        "order",
        "repetitions",
        "seconds",
        "bare, IOPS",
        "cached, last third, over bare",
        "slowest five seconds over bare",
        "p99.9 bare, ms",
        "p99.9 cached, ms",
    ];
    let lines = rows.iter().flat_map(|row| {
        Order::ALL.into_iter().filter_map(move |order| {
            let count = row.samples.iter().filter(|sample| sample.cached(order).is_some()).count();
            let line = || {
                vec![
                    row.work.title().to_owned(),
                    row.origin.title().to_owned(),
                    order.name().to_owned(),
                    count.to_string(),
                    cell(row.spread_of(order, |_, cached| cached.figures.seconds), 0),
                    cell(row.spread_of(order, |sample, _| sample.bare.figures.iops), 0),
                    cell(row.spread_of(order, full::Sample::steady_over_bare), 2),
                    cell(row.spread_of(order, full::Sample::slowest_over_bare), 2),
                    cell(row.spread_of(order, |sample, _| sample.bare.p999_ms()), 0),
                    cell(row.spread_of(order, |_, cached| cached.p999_ms()), 0),
                ]
            };
            (count > 0).then(line)
        })
    });
    let mut text = format!(
        "\
### Past a full cache

4 KiB requests, 32 at a time if nothing else is said, over a volume of {} MiB with a cache of {} MiB
({} MiB for write + fsync), which begins empty and is soon full of dirty data. Within a repetition
the bare origin, the cached one, and the one with `writeback_order=ordered` took turns.

",
        full::SIZES.origin_bytes >> 20,
        full::SIZES.cache_bytes >> 20,
        full::FLUSHED_CACHE_BYTES >> 20,
    ) + &table(&header, lines);
    text.push_str(
        "IOPS of the first repetition, second by second. A column of a chart is the mean of two \
         seconds,\nits height logarithmic from half of the bare origin up to the most; below it \
         stand means of ten\nseconds.\n\n",
    );
    for row in rows {
        let Some(sample) = row.samples.first() else { continue };
        for order in Order::ALL {
            let Some(cached) = sample.cached(order) else { continue };
            let (work, origin) = (row.work.title(), row.origin.title());
            let _ = writeln!(text, "{work}, {origin}, {}:\n\n```text", order.name());
            text.push_str(&chart(&cached.per_second, sample.bare.figures.iops));
            let _ = writeln!(text, "```\n");
        }
    }
    text
}

/// Levels of a chart.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Requests a second as columns, and below them as figures.
fn chart(per_second: &[f64], bare: f64) -> String {
    let columns: Vec<f64> = per_second.chunks(COLUMN_SECONDS).map(mean).collect();
    let most = columns.iter().copied().fold(bare, f64::max);
    let least = bare / 2.0;
    let level = |value: f64| {
        let height = (value / least).max(1.0).ln() / (most / least).ln();
        LEVELS[((height * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
    };
    let columns: String = columns.iter().map(|value| level(*value)).collect();
    let course: Vec<String> =
        per_second.chunks(COURSE_SECONDS).map(|seconds| number(mean(seconds), 0)).collect();
    let (bare, most) = (number(bare, 0), number(most, 0));
    format!("{columns}  most {most}, bare {bare}\n{}\n", course.join(" "))
}

fn flushed_table(rows: &[flushed::Row], report: &Report) -> String {
    let header = [
        "origin",
        "order",
        "bare fast device, IOPS",
        "cached, IOPS",
        "over bare",
        "p99.9 of a flush, bare, ms",
        "p99.9 of a flush, cached, ms",
        "dirty before and after, MiB",
        "written home meanwhile, MiB",
    ];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let flush_ms =
        |figures: &Figures| figures.flush_latency.map_or(0.0, |flush| flush.p999_us / 1e3);
    let lines = rows.iter().map(|row| {
        let before = cell(row.spread(|sample| mib(sample.busy.dirty_before_bytes)), 0);
        let after = cell(row.spread(|sample| mib(sample.busy.dirty_after_bytes)), 0);
        vec![
            row.origin.title().to_owned(),
            row.order.name().to_owned(),
            cell(row.spread(|sample| sample.bare.iops), 0),
            cell(row.spread(|sample| sample.busy.figures.iops), 0),
            cell(row.spread(flushed::Sample::over_bare), 2),
            cell(row.spread(|sample| flush_ms(&sample.bare)), 1),
            cell(row.spread(|sample| flush_ms(&sample.busy.figures)), 1),
            format!("{before} / {after}"),
            cell(row.spread(|sample| mib(sample.busy.written_back_bytes)), 0),
        ]
    });
    format!(
        "\
### Write + fsync during writeback

4 KiB random writes, one at a time, with a flush after each, for {} s, while random dirty blocks of
another part of the volume go home. The fast device is a file on the disk of the cache file. Ordered
writeback was measured {} per origin.

",
        flushed::phase_seconds(report.plan),
        times(flushed::ORDERED_REPETITIONS),
    ) + &table(&header, lines)
}

fn misses_table(rows: &[misses::Row], report: &Report) -> String {
    let header = [
        "at a time",
        "mean without, ms",
        "mean with, ms",
        "with over without",
        "p99 without, ms",
        "p99 with, ms",
        "with over without",
        "written home meanwhile, without / with, MiB",
    ];
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let lines = rows.iter().map(|row| {
        let mean = |figures: &Figures| figures.mean_us / 1e3;
        let p99 = |figures: &Figures| figures.latency.p99_us / 1e3;
        let without = cell(row.spread(|sample| mib(sample.without.written_back_bytes)), 1);
        let with = cell(row.spread(|sample| mib(sample.with.written_back_bytes)), 1);
        vec![
            row.depth.to_string(),
            cell(row.spread(|sample| mean(&sample.without.figures)), 1),
            cell(row.spread(|sample| mean(&sample.with.figures)), 1),
            cell(row.spread(misses::Sample::mean_ratio), 2),
            cell(row.spread(|sample| p99(&sample.without.figures)), 1),
            cell(row.spread(|sample| p99(&sample.with.figures)), 1),
            cell(row.spread(misses::Sample::p99_ratio), 2),
            format!("{without} / {with}"),
        ]
    });
    format!(
        "\
### Reads that miss, beside writeback

4 KiB random reads of what is not cached, for {} s each, on the emulated hard disk, first without
writeback and then with it. The mode is `writeonly`, so that nothing is promoted or read ahead; {}
MiB of random blocks of the other half of the volume are dirty, below the soft mark.

",
        misses::phase_seconds(report.plan),
        misses::DIRTY_BYTES >> 20,
    ) + &table(&header, lines)
}

fn sequential_table(rows: &[sequential::Row]) -> String {
    let header = [
        "origin",
        "bare, MiB/s",
        "cached, MiB/s",
        "over bare",
        "second half of the time, over bare",
        "p99.9 bare, ms",
        "p99.9 cached, ms",
    ];
    let mib = |timeline: &Timeline| {
        timeline.figures.iops * (sequential::BLOCK_BYTES as f64 / f64::from(1 << 20))
    };
    let lines = rows.iter().map(|row| {
        vec![
            row.origin.title().to_owned(),
            cell(row.spread(|sample| mib(&sample.bare)), 0),
            cell(row.spread(|sample| mib(&sample.cached)), 0),
            cell(row.spread(sequential::Sample::over_bare), 2),
            cell(row.spread(sequential::Sample::second_half_over_bare), 2),
            cell(row.spread(|sample| sample.bare.p999_ms()), 0),
            cell(row.spread(|sample| sample.cached.p999_ms()), 0),
        ]
    });
    format!(
        "\
### Sequential writes larger than the cache

{} MiB in requests of 1 MiB, {} at a time, through a cache of {} MiB that begins empty, to the
beginning of a volume of {} GiB: in one zone of the emulated hard disk, which is equally fast there.
Part of the data is still dirty in the cache when the last write is answered; the second half of the
time shows what is left when the cache has no more room.

",
        sequential::WRITTEN_BYTES >> 20,
        sequential::DEPTH,
        sequential::SIZES.cache_bytes >> 20,
        sequential::SIZES.origin_bytes >> 30,
    ) + &table(&header, lines)
}

fn drain_table(rows: &[drain::Row], report: &Report) -> String {
    let header = [
        "origin, dirty blocks",
        "how",
        "time, s",
        "over that of sorted order",
        "writes of the origin",
        "reads of the origin",
        "measured",
    ];
    let mut lines = Vec::new();
    for row in rows {
        let what = format!(
            "{}, {} MiB in {} MiB",
            row.origin.title(),
            number((row.amount.dirty_bytes >> 20) as f64, 0),
            number((row.amount.volume_bytes >> 20) as f64, 0)
        );
        let sorted_seconds = row.bare_seconds(&row.sorted);
        let line = |how: String, seconds: f64, more: [String; 3]| {
            let ratio = number(seconds / sorted_seconds, 2);
            let cells = vec![what.clone(), how, number(seconds, 1), ratio];
            cells.into_iter().chain(more).collect::<Vec<_>>()
        };
        let block_count = row.amount.block_count();
        for (how, bare) in [("random", &row.random), ("sorted", &row.sorted)] {
            let measured = if bare.requests == block_count {
                "all of it".to_owned()
            } else {
                format!("{} blocks, scaled", number(bare.requests as f64, 0))
            };
            let more = [number(block_count as f64, 0), "0".to_owned(), measured];
            lines.push(line(format!("bare, {how} order"), row.bare_seconds(bare), more));
        }
        for drained in &row.drains {
            let more = [
                number(drained.writes as f64, 0),
                number(drained.reads as f64, 0),
                format!("all of it, {} MiB", number((drained.dirty_bytes >> 20) as f64, 0)),
            ];
            lines.push(line(format!("drain, {}", drained.order.name()), drained.seconds, more));
        }
    }
    format!(
        "\
### Draining random dirty blocks

`forebay drain` of random blocks of 4 KiB, and writing the same blocks to the bare origin. The
client writes each block once, {} at a time, and flushes after each {}. The bare origin was
watched for {} s; if it did not come to the end of the list, time and writes of the whole list are
in proportion to the blocks that it did (last column). A block is a write there. Everything was
measured once.

",
        drain::DEPTH,
        number(drain::FLUSH_BLOCKS as f64, 0),
        drain::bare_seconds(report.plan),
    ) + &table(&header, lines)
}

/// A number of repetitions in words.
fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_logarithmic_from_half_of_the_bare_origin() {
        let text = chart(&[12_800.0, 12_800.0, 1600.0, 1600.0, 100.0, 100.0, 0.0, 0.0], 100.0);
        assert_eq!(text, "█▆▂▁  most 12,800, bare 100\n3,625\n");
    }
}
