//! Draining random dirty blocks, against writing the same blocks to the bare origin in random and
//! in sorted order.
//!
//! The blocks are the same each time and in all of it: fio replays lists of them. The client that
//! makes them dirty flushes now and then, as a file system does. A bare origin is only watched for
//! some seconds, which is enough for its rate.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::fio::{self, Figures};
use super::forebay::Order;
use super::interrupt;
use super::plan::{Pace, Plan};
use super::progress::Progress;
use super::slow::{Bench, Fill, Origin, Sizes};

const BLOCK_BYTES: u64 = 4096;
/// Blocks between two flushes of the client: 4 MiB, about what a journal commits. Without them a
/// bare disk would end with the last blocks in its own cache.
pub(super) const FLUSH_BLOCKS: usize = 1024;
pub(super) const DEPTH: u32 = 32;
/// A multiple of the dirty data that is below two fifths of the log, from where on writes would be
/// slowed down on purpose.
const CACHE_FACTOR: u64 = 4;
const CACHE_BYTES_MIN: u64 = 512 << 20;
/// What the origins are expected to do at least, to say what a run takes.
const EXPECTED_BLOCKS_PER_SECOND: u64 = 200;
const EXPECTED_DENSE_BLOCKS_PER_SECOND: u64 = 2000;

/// How much is dirty, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Amount {
    pub(super) dirty_bytes: u64,
    /// The blocks lie anywhere in so many.
    pub(super) volume_bytes: u64,
    /// Whether an ordered volume is drained, too.
    orders: Orders,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Orders {
    CoalescingOnly,
    Both,
}

/// Many dirty blocks side by side, and few far apart.
const THOROUGH: [Amount; 2] = [
    Amount { dirty_bytes: 1 << 30, volume_bytes: 4 << 30, orders: Orders::CoalescingOnly },
    Amount { dirty_bytes: 32 << 20, volume_bytes: 2 << 30, orders: Orders::Both },
];
const QUICK: [Amount; 2] = [
    Amount { dirty_bytes: 128 << 20, volume_bytes: 512 << 20, orders: Orders::CoalescingOnly },
    Amount { dirty_bytes: 8 << 20, volume_bytes: 1 << 30, orders: Orders::Both },
];

impl Amount {
    fn all(plan: Plan) -> [Amount; 2] {
        match plan.pace {
            Pace::Thorough => THOROUGH,
            Pace::Quick => QUICK,
        }
    }

    pub(super) fn block_count(self) -> u64 {
        self.dirty_bytes / BLOCK_BYTES
    }

    fn sizes(self) -> Sizes {
        Sizes {
            origin_bytes: self.volume_bytes,
            fill: Fill::Holes,
            cache_bytes: (self.dirty_bytes * CACHE_FACTOR).max(CACHE_BYTES_MIN),
        }
    }

    fn orders(self) -> &'static [Order] {
        match self.orders {
            Orders::CoalescingOnly => &[Order::Coalescing],
            Orders::Both => &Order::ALL,
        }
    }

    /// Byte offsets of the blocks, each once, in random order that is always the same.
    fn offsets(self) -> Vec<u64> {
        let block_count = self.volume_bytes / BLOCK_BYTES;
        assert!(self.block_count() <= block_count / 2, "a free block is found soon");
        let mut seen = HashSet::new();
        let mut offsets = Vec::new();
        let mut number = 0u64;
        while (offsets.len() as u64) < self.block_count() {
            number += 1;
            let block = mix(number) % block_count;
            if seen.insert(block) {
                offsets.push(block * BLOCK_BYTES);
            }
        }
        offsets
    }
}

/// Spreads the bits of a number: the finalizer of MurmurHash3.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let number = (number ^ (number >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    number ^ (number >> 33)
}

/// A drain.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Drained {
    pub(super) order: Order,
    /// Dirty when it began.
    pub(super) dirty_bytes: u64,
    pub(super) seconds: f64,
    /// Writes of the origin, by the product's counters.
    pub(super) writes: u64,
    /// Reads of the origin, for what lies between dirty blocks.
    pub(super) reads: u64,
}

/// An origin with an amount of dirty blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) origin: Origin,
    pub(super) amount: Amount,
    /// The first blocks, in random order, to the bare origin.
    pub(super) random: Figures,
    /// Likewise in sorted order.
    pub(super) sorted: Figures,
    pub(super) drains: Vec<Drained>,
}

impl Row {
    /// What all blocks would take at the rate of `bare`.
    pub(super) fn bare_seconds(&self, bare: &Figures) -> f64 {
        self.amount.block_count() as f64 / bare.iops
    }
}

/// How long a bare origin is watched.
pub(super) fn bare_seconds(plan: Plan) -> u64 {
    match plan.pace {
        Pace::Thorough => 20,
        Pace::Quick => 5,
    }
}

/// Bytes that the RAM file system must have room for.
pub(super) fn ram_bytes(plan: Plan) -> u64 {
    Amount::all(plan).iter().map(|amount| amount.sizes().ram_bytes()).max().unwrap_or(0)
}

/// Bytes that the disk must have room for.
pub(super) fn disk_bytes(plan: Plan) -> u64 {
    Amount::all(plan).iter().map(|amount| amount.sizes().disk_bytes()).sum()
}

/// About what it takes.
pub(super) fn seconds(plan: Plan) -> u64 {
    let [dense, sparse] = Amount::all(plan).map(Amount::block_count);
    let drains = dense / EXPECTED_DENSE_BLOCKS_PER_SECOND
        + sparse * Order::ALL.len() as u64 / EXPECTED_BLOCKS_PER_SECOND;
    let bare = 4 * bare_seconds(plan);
    let fills = dense / EXPECTED_DENSE_BLOCKS_PER_SECOND / 10;
    Origin::ALL.len() as u64 * (drains + bare + fills)
}

/// All origins and amounts.
pub(super) fn measure(
    bench: Bench<'_>,
    plan: Plan,
    progress: &mut Progress,
) -> anyhow::Result<Vec<Row>> {
    println!("drain of random dirty blocks");
    let mut rows = Vec::new();
    for origin in Origin::ALL {
        for amount in Amount::all(plan) {
            let name = format!("drain/{origin:?}/{}", amount.dirty_bytes);
            let row = progress.sample(&name, || measure_row(bench, (origin, amount), plan))?;
            print_row(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn print_row(row: &Row) {
    for drained in &row.drains {
        println!(
            "  {:<24} {:>4} MiB  {:<10}  {:.1} s, {} writes; bare random {:.0} s, sorted {:.0} s",
            row.origin.title(),
            row.amount.dirty_bytes >> 20,
            drained.order.name(),
            drained.seconds,
            drained.writes,
            row.bare_seconds(&row.random),
            row.bare_seconds(&row.sorted),
        );
    }
}

fn measure_row(
    bench: Bench<'_>,
    (origin, amount): (Origin, Amount),
    plan: Plan,
) -> anyhow::Result<Row> {
    let mut offsets = amount.offsets();
    let list = |name: &str, text: String| -> anyhow::Result<PathBuf> {
        let path = bench.disk.path(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let random = list("random.log", replay_list(&offsets, FLUSH_BLOCKS))?;
    offsets.sort_unstable();
    let sorted = list("sorted.log", replay_list(&offsets, FLUSH_BLOCKS))?;
    let write_bare = |list: &Path| {
        interrupt::check()?;
        let (server, uri) = bench.serve_bare(origin, amount.sizes())?;
        let replay = fio::Replay { list, depth: DEPTH, seconds_max: Some(bare_seconds(plan)) };
        let figures = fio::replay(replay, &uri, bench.ram.folder())?;
        server.stop()?;
        Ok::<Figures, anyhow::Error>(figures)
    };
    let bare = (write_bare(&random)?, write_bare(&sorted)?);
    let mut drains = Vec::new();
    for order in amount.orders() {
        interrupt::check()?;
        drains.push(drain(bench, (origin, *order), amount, &random)?);
    }
    Ok(Row { origin, amount, random: bare.0, sorted: bare.1, drains })
}

fn drain(
    bench: Bench<'_>,
    (origin, order): (Origin, Order),
    amount: Amount,
    fill: &Path,
) -> anyhow::Result<Drained> {
    let program = bench.program;
    let daemon = bench.serve_cached(origin, order, amount.sizes())?;
    // Nothing goes home before the drain.
    program.set(&daemon, "writeback_percent=100")?;
    let replay = fio::Replay { list: fill, depth: DEPTH, seconds_max: None };
    fio::replay(replay, &daemon.uri, bench.ram.folder())?;
    let before = program.status(&daemon)?;
    let started = Instant::now();
    program.drain(&daemon)?;
    let seconds = started.elapsed().as_secs_f64();
    let after = program.status(&daemon)?;
    daemon.server.kill()?;
    let (earlier, later) = (&before.volume()?.counters, &after.volume()?.counters);
    Ok(Drained {
        order,
        dirty_bytes: before.cache_set.dirty_bytes,
        seconds,
        writes: later.writeback_io_count - earlier.writeback_io_count,
        reads: later.writeback_read_io_count - earlier.writeback_read_io_count,
    })
}

/// What fio replays: writes of a block each, and a flush after each `flush_blocks` of them.
fn replay_list(offsets: &[u64], flush_blocks: usize) -> String {
    let mut text = "fio version 2 iolog\nnbd add\nnbd open\n".to_owned();
    for part in offsets.chunks(flush_blocks) {
        for offset in part {
            let _ = writeln!(text, "nbd write {offset} {BLOCK_BYTES}");
        }
        text.push_str("nbd sync 0 0\n");
    }
    text + "nbd close\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_within_the_volume_and_each_is_there_once() {
        let [_, amount] = QUICK;
        let offsets = amount.offsets();
        assert_eq!(offsets, amount.offsets());
        assert_eq!(offsets.len() as u64, amount.block_count());
        assert!(offsets.iter().all(|offset| offset % BLOCK_BYTES == 0));
        assert!(offsets.iter().all(|offset| *offset < amount.volume_bytes));
        assert_eq!(offsets.iter().collect::<HashSet<_>>().len(), offsets.len());
        assert!(!offsets.is_sorted());
    }

    #[test]
    fn a_list_flushes_after_each_part() {
        assert_eq!(
            replay_list(&[8192, 0], 1),
            "fio version 2 iolog\nnbd add\nnbd open\nnbd write 8192 4096\nnbd sync 0 0\n\
             nbd write 0 4096\nnbd sync 0 0\nnbd close\n"
        );
    }
}
