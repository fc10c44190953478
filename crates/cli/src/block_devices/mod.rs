//! Block devices for the volumes of a cache set: what `forebay up` makes and `forebay down` takes
//! away.
//!
//! A daemon serves volumes over NBD or through the ublk driver; what is here finds out which way
//! this machine knows, starts the daemon in the background, has a client make block devices of NBD
//! exports, gives devices stable names, and remembers in the run directory what was made.
//!
//! Invariants: what is made is remembered before the next thing is made, so that an `up` that was
//! interrupted can be undone. Nothing is taken away that is in use, or that by now belongs to
//! somebody else: a device is known by more than its number.

pub(crate) mod background;
mod fuse;
pub(crate) mod link;
pub(crate) mod machine;
pub(crate) mod nbd_client;
mod programs;
pub(crate) mod record;
pub(crate) mod set;
pub(crate) mod users;

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::admin::api::Export;
use crate::exit::Failure;
use record::Device;
use set::Set;

/// How long the kernel and udev may take to show a device, or to let go of one.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// The block size of an NBD client that does not ask, by the protocol.
const BLOCK_BYTES_WITHOUT_ASKING: u32 = 512;

/// A way to make a block device of a volume, the best one first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FrontEndKind {
    /// The kernel's ublk driver. What is mounted outlives the daemon.
    Ublk,
    /// The kernel's own NBD client.
    Nbd,
    /// nbdfuse and a loop device.
    Fuse,
}

impl FrontEndKind {
    /// All of them, the best one first.
    pub(crate) const ALL: [FrontEndKind; 3] =
        [FrontEndKind::Ublk, FrontEndKind::Nbd, FrontEndKind::Fuse];

    /// Its name in commands and JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            FrontEndKind::Ublk => "ublk",
            FrontEndKind::Nbd => "nbd",
            FrontEndKind::Fuse => "fuse",
        }
    }

    /// The front end of a name.
    pub(crate) fn parse(name: &str) -> Result<FrontEndKind, String> {
        let found = FrontEndKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("`{name}` is no front end: choose ublk, nbd or fuse"))
    }
}

impl fmt::Display for FrontEndKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes a block device of an export that is served over NBD, by this client if that can have it.
///
/// `nbd-client` does not ask for block sizes, and an export whose blocks are larger than the 512
/// bytes that such a client may count on is refused to it. nbdfuse asks.
pub(crate) fn connect(set: &Set, kind: FrontEndKind, export: &Export) -> Result<Device, Failure> {
    let has_large_blocks = export.logical_block_bytes > BLOCK_BYTES_WITHOUT_ASKING;
    match kind {
        FrontEndKind::Nbd if has_large_blocks => {
            machine::choose(Some(FrontEndKind::Fuse)).map_err(|failure| {
                let (name, bytes) = (&export.name, export.logical_block_bytes);
                Failure::failed(format!(
                    "nbd-client cannot have `{name}`, whose logical blocks have {bytes} bytes, and \
                     {failure}"
                ))
            })?;
            fuse::connect(set, export)
        }
        FrontEndKind::Nbd => nbd_client::connect(&set.nbd_socket(), export),
        FrontEndKind::Fuse => fuse::connect(set, export),
        FrontEndKind::Ublk => unreachable!("the daemon itself makes these"),
    }
}

/// Takes a device away that nobody uses. One of ublk goes with its daemon.
pub(crate) fn disconnect(device: &Device) -> Result<(), Failure> {
    match device.front_end {
        FrontEndKind::Nbd => nbd_client::disconnect(device),
        FrontEndKind::Fuse => fuse::disconnect(device),
        FrontEndKind::Ublk => Ok(()),
    }
}

/// Whether a device is still the one that was made.
pub(crate) fn is_there(device: &Device) -> bool {
    match device.front_end {
        FrontEndKind::Nbd => nbd_client::is_there(device),
        FrontEndKind::Fuse => fuse::is_there(device),
        // Numbers are given again after `forebay stop`, to whatever server comes first.
        FrontEndKind::Ublk => match device.disk_sequence {
            Some(_) => device.current_disk_sequence() == device.disk_sequence,
            None => device.sysfs().exists(),
        },
    }
}

/// Whether anything is left of a device that `down` has to take away: of fuse more than the loop
/// device.
pub(crate) fn has_remains(device: &Device) -> bool {
    is_there(device) || fuse::has_remains(device)
}

/// Waits until a device can be opened and has a size, and returns that, in bytes. It may be less
/// than the volume has: only whole logical blocks are served, and a device may keep the size that
/// it was made with.
pub(crate) fn await_device(device: &Path) -> Result<u64, Failure> {
    let mut size_bytes = 0;
    let mut found = String::new();
    let is_ready = until(|| {
        match File::open(device).and_then(|mut file| file.seek(SeekFrom::End(0))) {
            Ok(0) => "it has no size".clone_into(&mut found),
            Ok(bytes) => size_bytes = bytes,
            Err(error) => found = error.to_string(),
        }
        size_bytes > 0
    });
    if is_ready {
        return Ok(size_bytes);
    }
    let (place, seconds) = (device.display(), PATIENCE.as_secs());
    Err(Failure::failed(format!("{place} cannot be used after {seconds} s: {found}")))
}

/// Waits for something to be so; returns whether it came to be in time.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_front_ends_are_inverse() {
        for kind in FrontEndKind::ALL {
            assert_eq!(FrontEndKind::parse(kind.name()), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!(FrontEndKind::parse("iscsi").unwrap_err().contains("ublk, nbd or fuse"));
    }
}
