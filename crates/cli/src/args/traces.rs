//! The command lines of `forebay replay` and `forebay advise`.

use std::path::PathBuf;

use clap::Args;
use forebay_advisor::advice::DeviceFigures;
use forebay_advisor::replay::PolicyName;
use forebay_advisor::trace::Format;

use crate::{names, size};

/// Show what caches of several sizes and policies would make of recorded requests.
///
/// TRACE is a file in one of the formats below, plain or compressed with gzip or zstd. Its blocks
/// are looked up in caches that exist on paper only. It is the policy alone that is compared: an
/// empty cache at the start, single blocks, no cost of copies. Reads and writes count alike.
///
/// `min` is Belady's policy, which knows the future: none that caches every block misses less. The
/// rule of sequential streams, which bypasses some, is not for it.
#[derive(Args, Debug)]
#[command(after_help = "\
Formats:
  arc, biosnoop, blkparse, blktrace, cloudphysics, disksim, fio (iolog 2 and 3), lirs, msr,
  oracle-general

Examples:
  forebay replay sda.blktrace.0 --cache-size 4G,16G,64G
  forebay replay P3.txt.zst --cache-size 64M,128M --policy clock2q,lru,min --json
  forebay replay db.iolog --cache-size 1G --block-size 64K --no-sequential")]
pub(crate) struct ReplayArguments {
    /// Traces; each is replayed alone
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Sizes of the cache
    #[arg(long, value_name = "SIZE,...", required = true, value_delimiter = ',')]
    #[arg(value_parser = size::parse)]
    pub(crate) cache_size: Vec<u64>,
    /// Policies: clock2q, lru, fifo, min
    #[arg(long, value_name = "POLICY,...", default_value = "clock2q", value_delimiter = ',')]
    #[arg(value_parser = names::parse_policy)]
    pub(crate) policy: Vec<PolicyName>,
    #[command(flatten)]
    pub(crate) reading: TraceArguments,
    /// Print JSON: an array with an object for each trace, size and policy
    #[arg(long)]
    pub(crate) json: bool,
}

/// How traces are read, and what caches make of them.
#[derive(Args, Debug)]
pub(crate) struct TraceArguments {
    /// Size of a block, which is cached or not as a whole; also what a number stands for in
    /// formats that say no sizes
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_block_size)]
    pub(crate) block_size: u32,
    /// Format of the traces [default: recognised]
    #[arg(long, value_name = "FORMAT", value_parser = names::parse_trace_format)]
    pub(crate) format: Option<Format>,
    /// Promote long streams of reads, too; else those beyond 1M are left out once the cache is full
    #[arg(long)]
    pub(crate) no_sequential: bool,
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes.is_power_of_two() && (512..=16 << 20).contains(&bytes) => Ok(bytes),
        _ => Err(format!("`{text}` is no block size: write a power of two from 512 to 16M")),
    }
}

/// Advise on a cache for a recorded workload: is it worth it, how large, in which mode.
///
/// TRACE is a file as for `forebay replay`; several of them are taken for parts of one recording,
/// in the order of their times, such as the files that blktrace writes for each processor. With
/// --record the workload of a block device is recorded first; it takes root, blktrace, and a kernel
/// with CONFIG_BLK_DEV_IO_TRACE.
///
/// Hit ratios are those of the default policy in a cache that is empty at first, from a sample of
/// the blocks. Times are computed from device figures: the defaults are those of a hard disk behind
/// a SATA or NVMe SSD. Requests wait for nothing else in them.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay advise sda.blktrace.*
  forebay advise P3.txt.zst --html report.html
  forebay advise db.iolog --cache-size 16G,32G,64G --origin-read-us 900 --json
  forebay advise /dev/sdb --record 60s --keep /var/tmp/sdb --html report.html")]
pub(crate) struct AdviseArguments {
    /// Trace files; with --record the block device
    #[arg(value_name = "TRACE|DEVICE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Record the requests to DEVICE for so long: 90, 60s, 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = parse_recording_time)]
    pub(crate) record: Option<u64>,
    /// With --record: keep the recording in this folder, which is made [default: it is thrown away]
    #[arg(long, value_name = "DIR", requires = "record")]
    pub(crate) keep: Option<PathBuf>,
    /// Sizes of the cache to look at [default: from a 256th of the working set to all of it]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',', value_parser = size::parse)]
    pub(crate) cache_size: Vec<u64>,
    #[command(flatten)]
    pub(crate) reading: TraceArguments,
    /// Write a report with charts to this file: one page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) figures: FigureArguments,
}

/// How fast the devices are.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Device figures")]
pub(crate) struct FigureArguments {
    /// A small random read of the cache device, in microseconds
    #[arg(long, value_name = "US", default_value = "100", value_parser = parse_figure)]
    pub(crate) ssd_read_us: f64,
    /// A small write to the cache device
    #[arg(long, value_name = "US", default_value = "50", value_parser = parse_figure)]
    pub(crate) ssd_write_us: f64,
    /// Long transfers of the cache device, in MB (10^6 bytes) a second
    #[arg(long, value_name = "MB", default_value = "500", value_parser = parse_figure)]
    pub(crate) ssd_mb_s: f64,
    /// A small random read of the origin
    #[arg(long, value_name = "US", default_value = "8000", value_parser = parse_figure)]
    pub(crate) origin_read_us: f64,
    /// A small random write to the origin, as it sustains them
    #[arg(long, value_name = "US", default_value = "6000", value_parser = parse_figure)]
    pub(crate) origin_write_us: f64,
    /// A small request to the origin that goes on where an earlier one ended
    #[arg(long, value_name = "US", default_value = "100", value_parser = parse_figure)]
    pub(crate) origin_stream_us: f64,
    /// Long transfers of the origin, in MB a second
    #[arg(long, value_name = "MB", default_value = "180", value_parser = parse_figure)]
    pub(crate) origin_mb_s: f64,
}

impl FigureArguments {
    /// As the advisor takes them.
    pub(crate) fn figures(&self) -> DeviceFigures {
        DeviceFigures {
            ssd_read_us: self.ssd_read_us,
            ssd_write_us: self.ssd_write_us,
            ssd_mb_s: self.ssd_mb_s,
            origin_read_us: self.origin_read_us,
            origin_write_us: self.origin_write_us,
            origin_stream_us: self.origin_stream_us,
            origin_mb_s: self.origin_mb_s,
        }
    }
}

fn parse_figure(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(figure) if (0.001..=1e9).contains(&figure) => Ok(figure),
        _ => Err(format!("`{text}` is no figure: write a number from 0.001 to 1000000000")),
    }
}

/// Longest recording: a week of requests fills a disk.
const RECORDING_SECONDS_MAX: u64 = 7 * 86_400;

fn parse_recording_time(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('m') => (number, 60),
        Some(number) if text.ends_with('h') => (number, 3_600),
        Some(number) => (number, 1),
        None => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match seconds {
        Some(seconds) if (1..=RECORDING_SECONDS_MAX).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}` is no time to record: write 90, 60s, 10m or 1h, up to 168h")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn a_recording_takes_a_while() {
        assert_eq!(parse_recording_time("90"), Ok(90));
        assert_eq!(parse_recording_time("60s"), Ok(60));
        assert_eq!(parse_recording_time("10m"), Ok(600));
        assert_eq!(parse_recording_time("168h"), Ok(RECORDING_SECONDS_MAX));
        for bad in ["", "0", "s", "-1s", "1.5h", "169h", "10d", "99999999999999999999h"] {
            assert!(parse_recording_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_default_figures_are_the_advisors() {
        let command = ["forebay", "advise", "trace"];
        let Ok(Arguments { command: Command::Advise(advise) }) = Arguments::try_parse_from(command)
        else {
            panic!("it is a command");
        };
        assert_eq!(advise.figures.figures(), DeviceFigures::default());
        assert!(parse_figure("0").is_err() && parse_figure("nan").is_err());
    }
}
