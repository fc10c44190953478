//! The command line of `forebay serve`.

use std::path::PathBuf;

use clap::Args;
use forebay_host::{DeviceSpec, ListenAddress, UblkOptions, VhostUserOptions};

use super::StateArguments;

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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_bare_device_has_a_name() {
        assert!(parse_bare("/dev/sdb").is_err());
        assert!(parse_bare("=/dev/sdb").is_err());
        assert_eq!(parse_bare("a=hdd:x").unwrap().device.to_string(), "hdd:x");
    }
}
