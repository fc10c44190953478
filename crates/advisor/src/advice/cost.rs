//! What requests cost on given devices.
//!
//! A request takes a fixed time by its kind and device, and its bytes at the device's rate; one
//! that goes on where an earlier one ended takes no seek. Queues, and what writeback does to the
//! origin meanwhile, are left out.

use serde::Serialize;

use crate::curve::{MissCounts, Totals};
use crate::profile::Profile;

/// Seconds that dirty data rests by default, if nothing presses (`writeback_delay`); one of
/// [`crate::profile::DELAYS_S`].
const WRITEBACK_DELAY_S: u32 = 30;

/// How fast the devices are.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct DeviceFigures {
    /// A small random read of the cache device, in microseconds.
    pub ssd_read_us: f64,
    /// A small write to it.
    pub ssd_write_us: f64,
    /// Its rate of long transfers, in MB (10^6 bytes) a second; above 0.
    pub ssd_mb_s: f64,
    /// A small random read of the origin.
    pub origin_read_us: f64,
    /// A small random write to it, as it sustains them.
    pub origin_write_us: f64,
    /// A small request that goes on where an earlier one ended.
    pub origin_stream_us: f64,
    /// Its rate of long transfers, in MB a second; above 0.
    pub origin_mb_s: f64,
}

/// A hard disk of 7,200 revolutions a minute behind a SATA or NVMe SSD.
///
/// A seek over a third of the disk takes 8.5 ms and half a revolution 4.2 ms on the drive that
/// `hdd:` models; drives sort what waits, and volumes are not used from end to end, so 8 ms is
/// taken, and 6 ms for writes, of which more wait and are sorted. An SSD reads a page in some 80 us
/// and has a write in its buffer in some 30 us (`ssd:`).
impl Default for DeviceFigures {
    fn default() -> DeviceFigures {
        DeviceFigures {
            ssd_read_us: 100.0,
            ssd_write_us: 50.0,
            ssd_mb_s: 500.0,
            origin_read_us: 8_000.0,
            origin_write_us: 6_000.0,
            origin_stream_us: 100.0,
            origin_mb_s: 180.0,
        }
    }
}

/// Cache modes that advice compares. The others do not cache, or never gain on these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Writes are answered by the cache device and go to the origin later.
    Writeback,
    /// Writes are answered when both devices have them.
    Writethrough,
    /// As writeback; reads are not promoted.
    Writeonly,
}

impl Mode {
    /// The name that `forebay set` knows.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Writeback => "writeback",
            Mode::Writethrough => "writethrough",
            Mode::Writeonly => "writeonly",
        }
    }
}

/// Times of all reads and of all writes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    reads_us: f64,
    writes_us: f64,
}

impl Times {
    pub(super) fn total_us(&self) -> f64 {
        self.reads_us + self.writes_us
    }

    pub(super) fn mean_read_us(&self, profile: &Profile) -> f64 {
        self.reads_us / profile.reads.request_count.max(1) as f64
    }

    pub(super) fn mean_write_us(&self, profile: &Profile) -> f64 {
        self.writes_us / profile.writes.request_count.max(1) as f64
    }
}

/// Costs of one trace.
pub(super) struct Cost<'a> {
    pub(super) figures: &'a DeviceFigures,
    pub(super) totals: &'a Totals,
    pub(super) profile: &'a Profile,
}

impl Cost<'_> {
    /// Time of bytes at a rate: a byte takes a microsecond at 1 MB a second.
    fn transfer_us(bytes: f64, mb_s: f64) -> f64 {
        bytes / mb_s
    }

    fn origin_reads_us(&self, jumps: f64, others: f64, bytes: f64) -> f64 {
        jumps * self.figures.origin_read_us
            + others * self.figures.origin_stream_us
            + Self::transfer_us(bytes, self.figures.origin_mb_s)
    }

    fn uncached_writes_us(&self) -> f64 {
        let jumps = self.totals.jumping_write_requests as f64;
        let others = self.totals.write_requests as f64 - jumps;
        jumps * self.figures.origin_write_us
            + others * self.figures.origin_stream_us
            + Self::transfer_us(self.profile.writes.bytes as f64, self.figures.origin_mb_s)
    }

    pub(super) fn all_uncached(&self) -> Times {
        let jumps = self.totals.jumping_read_requests as f64;
        let others = self.totals.read_requests as f64 - jumps;
        Times {
            reads_us: self.origin_reads_us(jumps, others, self.profile.reads.bytes as f64),
            writes_us: self.uncached_writes_us(),
        }
    }

    pub(super) fn uncached(&self) -> super::Uncached {
        let times = self.all_uncached();
        super::Uncached {
            read_us: times.mean_read_us(self.profile),
            write_us: times.mean_write_us(self.profile),
            origin_busy_ratio: self.profile.duration_s.map(|s| times.total_us() / 1e6 / s),
        }
    }

    /// With a cache that misses so much. In `writeonly` all reads count as misses: what is read
    /// soon after it was written is found there, too, but mostly in the memory of the client.
    pub(super) fn cached(&self, mode: Mode, misses: &MissCounts) -> Times {
        let ssd_writes_us = self.totals.write_requests as f64 * self.figures.ssd_write_us
            + Self::transfer_us(self.profile.writes.bytes as f64, self.figures.ssd_mb_s);
        let uncached = self.all_uncached();
        match mode {
            Mode::Writeonly => Times { writes_us: ssd_writes_us, ..uncached },
            Mode::Writeback => {
                Times { reads_us: self.cached_reads_us(misses), writes_us: ssd_writes_us }
            }
            Mode::Writethrough => {
                let writes_us = uncached.writes_us.max(ssd_writes_us);
                Times { reads_us: self.cached_reads_us(misses), writes_us }
            }
        }
    }

    /// Bytes of reads that are not cached.
    fn missed_bytes(&self, misses: &MissCounts) -> f64 {
        let missed = match self.totals.read_blocks {
            0 => 0.0,
            blocks => misses.read_blocks / blocks as f64,
        };
        missed * self.profile.reads.bytes as f64
    }

    fn missed_reads_us(&self, misses: &MissCounts) -> f64 {
        let jumps = misses.jumping_read_requests.min(misses.read_requests);
        let others = misses.read_requests - jumps;
        self.origin_reads_us(jumps, others, self.missed_bytes(misses))
    }

    fn cached_reads_us(&self, misses: &MissCounts) -> f64 {
        let reads = &self.profile.reads;
        let hits = (reads.request_count as f64 - misses.read_requests).max(0.0);
        let hit_bytes = reads.bytes as f64 - self.missed_bytes(misses);
        self.missed_reads_us(misses)
            + hits * self.figures.ssd_read_us
            + Self::transfer_us(hit_bytes, self.figures.ssd_mb_s)
    }

    /// Part of the trace's time for which the origin works with a cache: reads that miss, and
    /// writes. In the modes that write back it is what is not overwritten within the default
    /// `writeback_delay`, as if it went home in the order of the requests; writeback sorts and
    /// merges, so this is an upper bound. None without times.
    pub(super) fn origin_busy_ratio(&self, mode: Mode, misses: &MissCounts) -> Option<f64> {
        let duration_s = self.profile.duration_s?;
        let uncached = self.all_uncached();
        let reads_us = match mode {
            Mode::Writeonly => uncached.reads_us,
            Mode::Writeback | Mode::Writethrough => self.missed_reads_us(misses),
        };
        let absorbed = match mode {
            Mode::Writethrough => 0.0,
            Mode::Writeback | Mode::Writeonly => self.absorbed_ratio(),
        };
        Some((reads_us + (1.0 - absorbed) * uncached.writes_us) / 1e6 / duration_s)
    }

    /// Part of what is written that rests in the cache until it is overwritten.
    fn absorbed_ratio(&self) -> f64 {
        let mut known = self.profile.absorption.iter();
        let found = known.find(|found| found.delay_s == WRITEBACK_DELAY_S);
        found.and_then(|found| found.ratio).unwrap_or(0.0)
    }

    /// Blocks written to the cache device: of writes, and of reads that are promoted. What reclaim
    /// appends again comes on top.
    pub(super) fn written_blocks(&self, mode: Mode, misses: &MissCounts) -> f64 {
        let promoted = match mode {
            Mode::Writeonly => 0.0,
            Mode::Writeback | Mode::Writethrough => {
                (misses.read_blocks - misses.bypassed_blocks).max(0.0)
            }
        };
        self.totals.write_blocks as f64 + promoted
    }
}
