//! The command line: each flag is declared once, here, with its help.
//!
//! A doc comment is what `--help` shows. Examples stand behind the options of each command.

mod bench;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use forebay_advisor::advice::DeviceFigures;
use forebay_advisor::replay::PolicyName;
use forebay_advisor::trace::Format;
use forebay_engine::options::{CacheMode, WritebackOrder};
use forebay_host::{DeviceSpec, ListenAddress, UblkOptions, VhostUserOptions};

use crate::block_devices::FrontEndKind;
use crate::exit::EXIT_CODES_HELP;
use crate::{names, size};
pub(crate) use bench::{
    BenchArguments, BenchCommand, BenchCompareArguments, BenchListArguments, BenchReportArguments,
    BenchRunArguments,
};

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

/// Serve the volumes of a cache device over NBD, as block devices or to virtual machines, in the
/// foreground.
///
/// Prints one line per export with its URI when it is ready, and tells systemd if NOTIFY_SOCKET is
/// set. On SIGTERM or SIGINT it finishes what is in flight, writes a checkpoint, and exits 0. Dirty
/// data stays on the cache device.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay serve /dev/nvme0n1p4
  forebay serve /dev/nvme0n1p4 --nbd unix:/run/home.nbd --nbd tcp:10809
  forebay serve /dev/nvme0n1p4 --ublk home=0                       as /dev/ublkb0
  forebay serve /dev/nvme0n1p4 --vhost-user home=/run/home.sock    for QEMU or Cloud Hypervisor
  forebay serve /dev/nvme0n1p4 --nbd tcp:10809 --takeover          after an upgrade
  forebay serve --bare disk=/dev/sdb --nbd unix:/tmp/disk.nbd      no cache, to compare with
  forebay serve --without-cache /dev/nvme0n1p4                     the SSD died")]
pub(crate) struct ServeArguments {
    /// Cache device, formatted before
    #[arg(value_name = "CACHE", required_unless_present_any = ["bare", "without_cache"])]
    pub(crate) cache: Option<PathBuf>,
    /// Serve a plain device without a cache; may be given more than once
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_bare, conflicts_with = "cache")]
    pub(crate) bare: Vec<BareArgument>,
    /// Serve the volumes of a cache set from their origins alone, because its cache device is gone;
    /// SET is the identity or the path that `forebay status` shows
    #[arg(long, value_name = "SET", conflicts_with_all = ["cache", "bare"])]
    pub(crate) without_cache: Option<String>,
    /// With --without-cache: give up what only the cache device had of this volume; may be given
    /// more than once
    #[arg(long, value_name = "NAME", requires = "without_cache")]
    pub(crate) accept_loss: Vec<String>,
    /// Where to listen: unix:PATH, tcp:PORT (loopback) or tcp:ADDRESS:PORT; may be given more than
    /// once [default: a socket under /run/forebay; none with --ublk or --vhost-user]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) nbd: Vec<ListenAddress>,
    /// Serve a volume as the block device /dev/ublkbN of this machine, and not over NBD; may be
    /// given more than once. Without =N the number is that of an earlier run that did not end, else
    /// the kernel chooses. A device that a killed server left behind is taken over
    #[arg(long, value_name = "NAME[=N]", value_parser = parse_ublk)]
    pub(crate) ublk: Vec<UblkArgument>,
    /// Queues of each ublk device
    #[arg(
        long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(UblkOptions::QUEUE_COUNT_MAX))
    )]
    pub(crate) ublk_queues: u16,
    /// Requests under way in each queue of a ublk device
    #[arg(
        long, value_name = "COUNT", default_value_t = UblkOptions::QUEUE_DEPTH,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(UblkOptions::QUEUE_DEPTH_MAX))
    )]
    pub(crate) ublk_depth: u16,
    /// Serve a volume as a virtio disk of a virtual machine, through a vhost-user-blk socket at
    /// PATH, and not over NBD; may be given more than once. The virtual machine's memory must be
    /// shared
    #[arg(long, value_name = "NAME=PATH", value_parser = parse_vhost_user)]
    pub(crate) vhost_user: Vec<VhostUserOptions>,
    /// Admin socket to make [default: one under /run/forebay; none with --bare]
    #[arg(long, value_name = "PATH", env = "FOREBAY_ADMIN", hide_env_values = true)]
    pub(crate) admin: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) state: StateArguments,
    /// Go on with what the running daemon of CACHE serves, and let it end: its sockets, its devices
    /// and their locks are handed over, so nobody sees an address that refuses or a device that is
    /// gone. NBD clients and virtual machines are disconnected and come back to the same sockets;
    /// ublk devices wait. Give the options of the running daemon again, or other ones. If this
    /// fails, the running daemon goes on
    #[arg(long, requires = "cache", conflicts_with_all = ["bare", "without_cache"])]
    pub(crate) takeover: bool,
    /// Most clients at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) connections_max: u32,
    /// Seconds for which requests wait for a cache device that is gone with dirty data; then they
    /// fail
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) cache_timeout: u32,
    /// Seconds after which a device operation that has not ended is logged and counted
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) io_timeout: u32,
    /// For developers: write down in a new FILE all that is written to the devices and what clients
    /// are told, to be replayed by tests. Slow, and as large as all that is written
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) record_writes: Option<PathBuf>,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) exit_with_parent: bool,
    /// Go on when the terminal is closed or interrupted
    #[arg(long, hide = true)]
    pub(crate) own_session: bool,
}

/// Give every volume of a cache device a block device, with a daemon in the background.
///
/// Starts a daemon unless one serves CACHE, and prints one line per volume: its name, the path of
/// its block device, and the front end. That is the best one that this machine has: the kernel's
/// ublk driver, whose devices outlive a daemon that dies; else the kernel's NBD client
/// (`nbd-client`); else nbdfuse with a loop device. Again does no harm: what is missing is made,
/// also after the daemon has died. `forebay down` takes it all away.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  forebay up /dev/nvme0n1p4
  forebay up /dev/nvme0n1p4 --front-end nbd --json
  forebay up /dev/nvme0n1p4 --takeover               by a new daemon, after an upgrade
  forebay up /dev/nvme0n1p4 -- --ublk-queues 4       with options of `forebay serve`")]
pub(crate) struct UpArguments {
    /// Cache device, formatted before
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// ublk, nbd or fuse [default: the first of them that this machine has]
    #[arg(long, value_name = "FRONT_END", value_parser = FrontEndKind::parse)]
    pub(crate) front_end: Option<FrontEndKind>,
    /// Wait so long for CACHE and the origins of its volumes to appear
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait: u32,
    /// Become the daemon instead of starting one, as systemd wants it; `forebay up` without this
    /// option makes the block devices afterwards, as far as the daemon does not
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Replace the daemon that serves CACHE by a new one, as after an upgrade, while its ublk
    /// devices are in use. If that fails, the old one goes on
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) takeover: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) json: bool,
    /// Further options of `forebay serve`
    #[arg(last = true, value_name = "SERVE_OPTION")]
    pub(crate) serve_options: Vec<OsString>,
    #[command(flatten)]
    pub(crate) state: StateArguments,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// Take away what `forebay up` has made: block devices, their clients, the daemon.
///
/// Refused while a device is mounted, open, or part of another one, and while the daemon serves
/// clients that something else has connected, such as a virtual machine. The daemon finishes what
/// is in flight and writes a checkpoint; dirty data stays on the cache device. A ublk device whose
/// daemon has died is taken over first, so that nothing that waits at it is lost.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  umount /mnt && forebay down /dev/nvme0n1p4")]
pub(crate) struct DownArguments {
    /// Cache device
    #[arg(value_name = "CACHE")]
    pub(crate) cache: PathBuf,
    /// Take the volumes away from clients that something else has connected, too
    #[arg(long)]
    pub(crate) with_clients: bool,
    #[command(flatten)]
    pub(crate) admin: AdminArguments,
}

/// `NAME` or `NAME=N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UblkArgument {
    pub(crate) name: String,
    pub(crate) number: Option<u32>,
}

/// Largest number of a ublk device: the driver has as many minors.
const UBLK_NUMBER_MAX: u32 = (1 << 20) - 1;

fn parse_ublk(text: &str) -> Result<UblkArgument, String> {
    // Names of bare devices may hold the character, numbers may not.
    let (name, number) = match text.rsplit_once('=') {
        None => (text, None),
        Some((name, number)) => match number.parse() {
            Ok(number) if number <= UBLK_NUMBER_MAX => (name, Some(number)),
            _ => return Err(format!("`{number}` is no number from 0 to {UBLK_NUMBER_MAX}")),
        },
    };
    if name.is_empty() {
        return Err("the name is empty; write NAME or NAME=N".to_owned());
    }
    Ok(UblkArgument { name: name.to_owned(), number })
}

fn parse_vhost_user(text: &str) -> Result<VhostUserOptions, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(VhostUserOptions { name: name.to_owned(), path: path.into() })
        }
        _ => Err("write NAME=PATH".to_owned()),
    }
}

/// `NAME=PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BareArgument {
    pub(crate) name: String,
    pub(crate) device: DeviceSpec,
}

fn parse_bare(text: &str) -> Result<BareArgument, String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    if name.is_empty() {
        return Err("the name is empty; write NAME=PATH".to_owned());
    }
    let device: DeviceSpec = path.parse().map_err(|error| format!("{error}"))?;
    Ok(BareArgument { name: name.to_owned(), device })
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

    #[test]
    fn a_block_device_has_a_name_and_perhaps_a_number() {
        let argument = |name: &str, number| UblkArgument { name: name.into(), number };
        assert_eq!(parse_ublk("home"), Ok(argument("home", None)));
        assert_eq!(parse_ublk("home=0"), Ok(argument("home", Some(0))));
        assert_eq!(parse_ublk("home=1048575"), Ok(argument("home", Some(1_048_575))));
        assert_eq!(parse_ublk("a=b=3"), Ok(argument("a=b", Some(3))));
        for bad in ["", "=3", "home=", "home=-1", "home=x", "home=1048576", "home=/dev/ublkb0"] {
            assert!(parse_ublk(bad).is_err(), "{bad}");
        }
    }

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

    #[test]
    fn a_bare_device_has_a_name() {
        assert!(parse_bare("/dev/sdb").is_err());
        assert!(parse_bare("=/dev/sdb").is_err());
        assert_eq!(parse_bare("a=hdd:x").unwrap().device.to_string(), "hdd:x");
    }
}

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
