//! Why a ublk device cannot be had: what it is about, and what to do.

use std::io;

use thiserror::Error;

/// Why an export cannot be served as a ublk device.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UblkError {
    /// The driver is not there.
    #[error(
        "{CONTROL_PATH} is not there, or nothing is behind it: the kernel's ublk driver is not \
         loaded; load it with `modprobe ublk_drv` (Linux 6.5 or later, built with \
         CONFIG_BLK_DEV_UBLK)"
    )]
    NoDriver,
    /// Only root may.
    #[error("{CONTROL_PATH}: no permission; a ublk device needs root (CAP_SYS_ADMIN)")]
    NoPermission,
    /// The control device or a device's own cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The device.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The ring for control commands cannot be made.
    #[error("cannot make an io_uring for the ublk driver: {source}")]
    Ring {
        /// What the kernel said.
        source: io::Error,
    },
    /// An old driver.
    #[error(
        "the ublk driver of this kernel cannot do what is needed (it lacks {missing}); \
         use Linux 6.5 or later, or NBD"
    )]
    Feature {
        /// By its name in the kernel's header.
        missing: &'static str,
    },
    /// No export has this name.
    #[error("there is no `{name}` to serve as a ublk device; names are: {}", known.join(", "))]
    UnknownExport {
        /// As given.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// An export has one front end that may write.
    #[error(
        "`{name}` is to be served as a ublk device twice; a volume is served through one writable \
         front end at a time"
    )]
    Twice {
        /// The export.
        name: String,
    },
    /// Two exports cannot be one device.
    #[error("ublk device {number} is given to two exports; choose another number for one of them")]
    SameNumber {
        /// The number.
        number: u32,
    },
    /// A living server has the number.
    #[error(
        "{} is in use: process {process} serves it; choose another number for `{name}`, or stop \
         that server first", block_path(*.number)
    )]
    InUse {
        /// The number.
        number: u32,
        /// The export that was to have it.
        name: String,
        /// Who serves it.
        process: String,
    },
    /// Somebody else's device without its server.
    #[error(
        "{} exists without a server and is not of `{name}`: {owner}; start the server that it \
         belongs to, or remove it (`ublk del -n {number}` of the ublksrv package), or choose \
         another number", block_path(*.number)
    )]
    Foreign {
        /// The number.
        number: u32,
        /// The export that was to have it.
        name: String,
        /// What is known of its owner.
        owner: &'static str,
    },
    /// A device of ours that the export cannot fill.
    #[error(
        "{} was made for `{name}` with {found}, and the volume has {expected}; undo that change, \
         or give up what waits at the device: remove it (`ublk del -n {number}` of the ublksrv \
         package)", block_path(*.number)
    )]
    Changed {
        /// The number.
        number: u32,
        /// The export.
        name: String,
        /// What the device has.
        found: String,
        /// What the volume has.
        expected: String,
    },
    /// The volume has a device already, whose server has ended.
    #[error(
        "{} is `{name}`, too, and waits for its server with what its users have written: that \
         would go over whatever is written through anything else; serve it with \
         --ublk {name}={number}, or give up what waits at the device: remove it \
         (`ublk del -n {number}` of the ublksrv package)",
        block_path(*.number)
    )]
    Left {
        /// The number.
        number: u32,
        /// The export.
        name: String,
    },
    /// The kernel does not let go of the predecessor.
    #[error(
        "{} cannot be taken over yet: the kernel still has it with process {process}, which served \
         it before; try again when that process has ended", block_path(*.number)
    )]
    Stuck {
        /// The number.
        number: u32,
        /// Who served it.
        process: i32,
    },
    /// A thread for a device cannot be made.
    #[error("cannot start a thread for a ublk device: {source}")]
    Thread {
        /// What the kernel said.
        source: io::Error,
    },
    /// A control command failed.
    #[error("the ublk driver refused {command} for `{name}`: {source}")]
    Command {
        /// By its name in the kernel's header.
        command: &'static str,
        /// The export.
        name: String,
        /// What it said.
        source: io::Error,
    },
}

/// Where control commands go.
pub(super) const CONTROL_PATH: &str = "/dev/ublk-control";

/// The device that clients use.
pub(crate) fn block_path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// The device that its server uses.
pub(super) fn character_path(number: u32) -> String {
    format!("/dev/ublkc{number}")
}
