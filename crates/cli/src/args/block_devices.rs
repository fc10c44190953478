//! The command lines of `forebay up` and `forebay down`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{AdminArguments, StateArguments};
use crate::block_devices::FrontEndKind;

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
/// clients that something else has connected, such as a virtual machine, unless --with-clients says
/// that they are to go. The daemon finishes what is in flight and writes a checkpoint; dirty data
/// stays on the cache device. A ublk device whose daemon has died is taken over first, so that
/// nothing that waits at it is lost.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  umount /mnt && forebay down /dev/nvme0n1p4
  forebay down /dev/nvme0n1p4 --with-clients         a virtual machine loses its disk")]
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
