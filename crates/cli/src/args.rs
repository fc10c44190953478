//! The command line: each flag is declared once, here, with its help.
//!
//! A doc comment is what `--help` shows. Examples stand behind the options of each command.

mod bench;
mod block_devices;
mod serve;
mod traces;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_host::{DeviceSpec, WRITE_OUT};

use crate::exit::EXIT_CODES_HELP;
use crate::{names, size};
pub(crate) use bench::{
    BenchArguments, BenchCommand, BenchCompareArguments, BenchListArguments, BenchReportArguments,
    BenchRunArguments,
};
pub(crate) use block_devices::{DownArguments, UpArguments};
pub(crate) use serve::{BareArgument, ServeArguments};
pub(crate) use traces::{AdviseArguments, ReplayArguments, TraceArguments};

/// Where `serve` keeps the host state files unless told otherwise.
pub(crate) const STATE_DIRECTORY: &str = "/var/lib/forebay";

/// A user-space block cache: a fast device in front of a slow one, served over NBD, as a block
/// device, or to virtual machines.
///
/// CACHE is the fast device and ORIGIN the slow one; each is a block device or a file. ORIGIN may
/// also be made slow for trying out: `hdd:PATH` behaves like a hard disk, `iops:250:PATH` completes
/// 250 transfers a second. SIZE takes K, M, G, T (powers of 1024); a plain number is bytes.
#[derive(Parser, Debug)]
#[command(name = "forebay", version, after_help = EXIT_CODES_HELP, after_long_help = LONG_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const LONG_HELP: &str = "\
Examples:
  forebay demo
  forebay format /dev/nvme0n1p4
  forebay attach /dev/nvme0n1p4 /dev/sdb --name home --cache-mode writeback
  forebay up /dev/nvme0n1p4
  mount /dev/forebay/home /mnt

Environment:
  FOREBAY_ADMIN    admin socket of the daemon, as --admin
  FOREBAY_RUN_DIR  where sockets of daemons are looked for, instead of /run/forebay; names of block
                   devices are then in its folder dev, not in /dev/forebay
  FOREBAY_LOG      what is logged to stderr: error, warn, info, debug, or filters by module

Exit codes:
  0  done
  1  the operation failed (I/O error, no permission, a device that does not fit)
  2  wrong usage
  3  refused, because data would be at risk or the object is in use
  4  not found: no such file, volume or running daemon
  5  the cache device is damaged, or is none
  6  cancelled by the operator";

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Format(FormatArguments),
    Attach(AttachArguments),
    Serve(ServeArguments),
    Up(UpArguments),
    Down(DownArguments),
    Status(StatusArguments),
    Explain(ExplainArguments),
    Set(SetArguments),
    Pin(PinArguments),
    Unpin(UnpinArguments),
    Drain(DrainArguments),
    Detach(DetachArguments),
    Resize(ResizeArguments),
    Invalidate(InvalidateArguments),
    Stop(StopArguments),
    Show(ShowArguments),
    Check(CheckArguments),
    Wipe(WipeArguments),
    Replay(ReplayArguments),
    Advise(AdviseArguments),
    Bench(BenchArguments),
    Demo(DemoArguments),
    #[command(name = WRITE_OUT, hide = true)]
    WriteOut(WriteOutArguments),
}

/// Write out what the kernel has cached of a disk: what a daemon starts for its ublk devices.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay write-out /dev/ublkb0")]
pub(crate) struct WriteOutArguments {
    /// The disk
    pub(crate) device: PathBuf,
}

/// Which daemon to speak to.
#[derive(Args, Clone, Debug)]
pub(crate) struct AdminArguments {
    /// Admin socket of the daemon; by default the only running daemon's under /run/forebay
    #[arg(long, value_name = "PATH", env = "FOREBAY_ADMIN", hide_env_values = true)]
    pub(crate) admin: Option<PathBuf>,
}

/// Where host state files are.
#[derive(Args, Clone, Debug)]
pub(crate) struct StateArguments {
    /// Directory of the host state files, which outlive the loss of a cache device
    #[arg(long, value_name = "DIR", default_value = STATE_DIRECTORY)]
    pub(crate) state_dir: PathBuf,
}

/// Make a cache device of a block device or a file. What was on it is lost.
///
/// A device that is mounted or locked is refused. So is one that carries a known signature or a
/// cache set, unless --force is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay format /dev/nvme0n1p4 --label fast
  forebay format /var/cache/volume.cache --size 20G     a file, created and written in full")]
pub(crate) struct FormatArguments {
    /// Block device or file to hold the cache
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// Create CACHE as a file of this size, written in full
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Unit of allocation: a power of two from 256K to 16M [default: about 1/1000 of the device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) segment_size: Option<u64>,
    /// Free text to tell cache sets apart, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) label: String,
    /// Overwrite a device that carries a signature or a cache set
    #[arg(long)]
    pub(crate) force: bool,
}

/// Attach an existing volume to a cache device. Nothing is written to ORIGIN.
///
/// If a daemon serves CACHE, it attaches the volume and serves it at once; otherwise the volume is
/// entered in the device's volume table. The paths are stored absolute.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay attach /dev/nvme0n1p4 /dev/sdb --name home --cache-mode writeback
  forebay attach /dev/nvme0n1p4 /dev/sdb --name home --cache-mode writeback \
          --writeback-order ordered
  forebay attach /dev/nvme0n1p4 /dev/sdc --name backup --share-max 10
  forebay attach cache.img hdd:slow.img --name trial")]
pub(crate) struct AttachArguments {
    /// Cache device, formatted before
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// The volume: a block device, a file, or hdd:PATH, ssd:PATH, iops:N:PATH, remote:MS:PATH
    #[arg(value_name = "ORIGIN")]
    pub(crate) origin: DeviceSpec,
    /// Name of the volume and of its NBD export
    #[arg(long)]
    pub(crate) name: String,
    /// writeback, writethrough, writearound, writeonly or passthrough
    #[arg(long, value_name = "MODE", default_value = "writethrough")]
    #[arg(value_parser = names::parse_mode)]
    pub(crate) cache_mode: CacheMode,
    /// coalescing, or ordered: the origin alone is always a state that a crash could have left
    #[arg(long, value_name = "ORDER", default_value = "coalescing")]
    #[arg(value_parser = names::parse_order)]
    pub(crate) writeback_order: WritebackOrder,
    /// Smallest unit that clients may address: 512 or 4096 [default: what ORIGIN has]
    #[arg(long, value_name = "BYTES", value_parser = parse_logical_block)]
    pub(crate) logical_block: Option<u32>,
    /// Percent of the cache that other volumes cannot take from it
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) share_min: u8,
    /// Percent of the cache beyond which nothing more of it is copied there
    #[arg(long, value_name = "PERCENT", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) share_max: u8,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

fn parse_logical_block(text: &str) -> Result<u32, String> {
    match text {
        "512" => Ok(512),
        "4096" | "4K" | "4k" => Ok(4096),
        other => Err(format!("`{other}` is no logical block size: choose 512 or 4096")),
    }
}

/// Show what a daemon does: hit ratio, dirty data, latency, memory.
///
/// Without a running daemon, the cache sets known from the host state files are listed, with what
/// may be dirty. Write amplification is bytes written to the cache device per byte of clients'
/// writes and promotions; what was moved at reclaim is given apart.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay status
  forebay status /dev/nvme0n1p4 --json
  forebay status --reset                     counters and latencies start again from zero
  forebay status --what-if                   would a larger cache find more?")]
pub(crate) struct StatusArguments {
    /// Only the daemon or the state of this cache device
    #[arg(value_name = "CACHE")]
    pub(crate) cache: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Set all counters and latencies to zero after showing them
    #[arg(long)]
    pub(crate) reset: bool,
    /// Show what smaller and larger caches would find of the present load
    #[arg(long)]
    pub(crate) what_if: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Change settings of a volume, or of the cache set if no NAME is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys of a volume:
  cache_mode          writeback, writethrough, writearound, writeonly, passthrough
  sequential_cutoff   SIZE; longer read streams are not promoted; 0 = off
  sequential_policy   full, always or never; full: only once the cache is full
  promote_on_read     on or off; whether what reads miss is copied to the cache
  promote_on_write    on or off; off: writethrough writes only what is cached to the cache, too
  promotion_nhit      1 to 15; a block is copied to the cache at this miss of it
  read_ahead          SIZE up to 1M; a small miss on a slow origin may fetch so much; 0 = off
  writeback_order     coalescing or ordered; writes all dirty data back first
  writeback_percent   0 to 100; share of the cache that may be dirty before writeback starts
  writeback_delay     seconds that dirty data rests before it goes home while the origin is idle
  writeback_rate_min  SIZE a second; goes home at least while clients use the origin
  writeback_rate_max  SIZE a second; goes home at most; 0 = no bound
  writeback_ios_max   0 to 256; transfers of writeback at once; 0 = as the latency allows
  writeback_idle_only on or off; for disks that sleep: dirty data waits until the disk is used
  dirty_age_max       seconds after which it goes home all the same
  origin_timeout      seconds up to a day; so long a request waits for an origin that stalls or
                      fails in a way that may pass; 0 = errors are answered as they come
  share_min           0 to 100; percent of the cache that others cannot take from the volume
  share_max           1 to 100; percent of the cache beyond which it copies nothing there; 100 = all
Keys of the cache set:
  memory_max          SIZE or `none`; bound on the memory of the index
  discard             on or off; TRIM of freed segments
  cache_write_budget  SIZE a day for promotions and writethrough; beyond it only what was missed
                      before is cached; 0 = no bound
  policy              clock2q, lru or fifo; which clean blocks stay in a full cache
  dirty_soft_percent  1 to 94; share of the log with dirty data from which on writers are slowed
  dirty_hard_percent  2 to 95; share that dirty data should not exceed; more than the soft one

Examples:
  forebay set home cache_mode=writeback sequential_cutoff=4M
  forebay set home origin_timeout=120s
  forebay set backup share_max=10
  forebay set memory_max=2G discard=off")]
pub(crate) struct SetArguments {
    /// Name of the volume, then settings
    #[arg(value_name = "[NAME] KEY=VALUE", required = true)]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// A range of a volume.
#[derive(Args, Debug)]
pub(crate) struct RangeArguments {
    /// Volume
    pub(crate) name: String,
    /// SIZE from the start of the volume
    #[arg(value_name = "OFFSET", value_parser = size::parse)]
    pub(crate) offset: u64,
    /// SIZE of the range; it is widened to whole blocks of 4K
    #[arg(value_name = "LENGTH", value_parser = size::parse)]
    pub(crate) length: u64,
}

/// Pin a range of a volume: what of it is cached stays, and the rest is fetched.
///
/// Pins last until they are taken back or the volume is detached, and all pins and share_min
/// together leave a fifth of the cache to others. Ctrl-C ends the fetching; the range stays pinned.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay pin home 0 1G
  forebay pin home 512M 64K --no-fetch       stays once somebody reads it
  forebay status                             shows what is pinned, and how much of it is cached")]
pub(crate) struct PinArguments {
    #[command(flatten)]
    pub(crate) range: RangeArguments,
    /// Only mark the range: what is not cached comes when it is read
    #[arg(long)]
    pub(crate) no_fetch: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Unpin a range of a volume: its blocks are as all others. It may be part of pinned ranges.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  forebay unpin home 0 1G\n  forebay unpin home 512M 64K")]
pub(crate) struct UnpinArguments {
    #[command(flatten)]
    pub(crate) range: RangeArguments,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Write all dirty data of a volume to its origin. It goes on in writethrough.
///
/// Ends when the clean state is durable. Ctrl-C cancels: what was written back stays clean.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  forebay drain home\n  forebay drain home --status")]
pub(crate) struct DrainArguments {
    /// Volume
    pub(crate) name: String,
    /// Drain nothing; print how far a drain, detach or change of mode is that is under way
    #[arg(long)]
    pub(crate) status: bool,
    /// Print JSON
    #[arg(long, requires = "status")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Drain a volume and take it off the cache device. The origin then holds all of it.
///
/// With --discard-dirty nothing is written to the origin: for one that is broken for good. What
/// only the cache device had of the volume is lost.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay detach home
  forebay detach home --discard-dirty                      asks for the name again
  forebay detach home --discard-dirty --accept-loss home   in scripts
  forebay detach home --discard-dirty --cache /dev/nvme0n1p4")]
pub(crate) struct DetachArguments {
    /// Volume
    pub(crate) name: String,
    /// Throw dirty data away instead of writing it to the origin, which is asked for nothing
    #[arg(long)]
    pub(crate) discard_dirty: bool,
    /// With --discard-dirty: give up what only the cache device has of this volume; its name again,
    /// where no terminal is there to ask for it
    #[arg(long, value_name = "NAME", requires = "discard_dirty")]
    pub(crate) accept_loss: Option<String>,
    /// With --discard-dirty: the cache device, which no daemon needs to serve
    #[arg(long, value_name = "CACHE", requires = "discard_dirty")]
    pub(crate) cache: Option<PathBuf>,
    /// With --discard-dirty: print JSON
    #[arg(long, requires = "discard_dirty")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) state: StateArguments,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Make a volume as long as its origin is now, while it is in use. A volume never becomes smaller.
///
/// Extend the origin first (for example with lvextend), then resize, then grow the file system on
/// the volume. The answer says of each client whether it sees the new size at once, after it has
/// connected again, or after a restart. Nothing is written to the origin.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay resize home
  lvextend -L +100G /dev/vg/home && forebay resize home --json")]
pub(crate) struct ResizeArguments {
    /// Volume
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Forget all clean copies of a volume. Refused while it has dirty data.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  forebay invalidate home")]
pub(crate) struct InvalidateArguments {
    /// Volume
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Tell why a block of a volume is in the cache or not. A daemon must serve the volume.
///
/// Shows what the cache has of the block, where, whether it will be kept, and what was decided when
/// its 64 KiB were last missed or written. Only the newest few thousand decisions are known.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  forebay explain home 0\n  forebay explain home 512M --json")]
pub(crate) struct ExplainArguments {
    /// Volume
    pub(crate) name: String,
    /// SIZE from the start of the volume; any byte of the block
    #[arg(value_name = "OFFSET", value_parser = size::parse)]
    pub(crate) offset: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Stop a daemon. Dirty data stays on the cache device unless --drain is given.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  forebay stop\n  forebay stop --drain")]
pub(crate) struct StopArguments {
    /// Drain all volumes first; they stay in writethrough
    #[arg(long)]
    pub(crate) drain: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Show what is on a cache device, without a daemon and without changing it.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  forebay show /dev/nvme0n1p4")]
pub(crate) struct ShowArguments {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check everything on a cache device that recovery relies on. Read-only; no daemon may serve it.
///
/// Exits 0 if all is well and 5 if anything is damaged. Notes, such as a checkpoint that a crash
/// cut short while the other one is whole, do not count as damage.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  forebay check /dev/nvme0n1p4")]
pub(crate) struct CheckArguments {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a cache device plain again: its superblocks and checkpoints are zeroed.
///
/// Refused while attached volumes have, or may have, dirty data.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  forebay wipe /dev/nvme0n1p4")]
pub(crate) struct WipeArguments {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// Wipe it even if dirty data is lost
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) state: StateArguments,
}

/// Show on this machine what a cache does. Needs nothing but this binary, and leaves nothing
/// behind.
///
/// Makes an origin that behaves like a hard disk, a fast file and a cache file, and measures random
/// reads (Zipf 1.2, 4 KiB, two jobs of 64 MiB at queue depth 8) and write+fsync on each. Then it
/// kills its own server in the middle of writes, starts it again and compares every acknowledged
/// write.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay demo
  forebay demo --seconds 60 --json figures.json --dir /mnt/ssd")]
pub(crate) struct DemoArguments {
    /// Seconds of each cached read run; the others are scaled with it
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Directory for the files, about 800 MiB [default: /dev/shm if it has room, else TMPDIR]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_declaration_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("forebay {}", command.get_name());
            assert!(help.contains(&example), "{}", command.get_name());
        }
    }

    #[test]
    fn the_long_help_repeats_the_exit_codes() {
        assert!(LONG_HELP.ends_with(EXIT_CODES_HELP));
    }
}
