//! Who uses a block device: file systems, swap, other devices, processes.
//!
//! The kernel says of some users only that there are any, and of a process only to whom looks; so
//! three questions are asked. Whoever begins to use a device after the answers is not seen: what
//! takes it away has to cope with that.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_host::probe::{OpenError, check_unused};
use forebay_host::processes::others_with;
use rustix::fs::OFlags;

use super::nbd_client;
use super::record::Device;

/// How long a device may be in use for passing reasons: udev looks into it when it appears, and the
/// kernel lets go of it a moment after `umount` has come back.
const PATIENCE: Duration = Duration::from_millis(1_000);
const PAUSE: Duration = Duration::from_millis(50);

/// Whether somebody answers the device's requests. If nobody does, opening it may wait forever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Server {
    Lives,
    IsDead,
}

/// What uses a device or one of its partitions, for people; `None` if nobody does.
pub(crate) fn user_of(device: &Device, server: Server) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let user = look(&device.device, server)?;
        if Instant::now() >= deadline {
            return Some(user);
        }
        std::thread::sleep(PAUSE);
    }
}

fn look(device: &Path, server: Server) -> Option<String> {
    if let Err(OpenError::InUse { user, .. }) = check_unused(device) {
        return Some(format!("in use ({user})"));
    }
    if let Some(process) = process_with(&nodes(device)) {
        return Some(format!("open in process {process}"));
    }
    if server == Server::IsDead {
        return None;
    }
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    let is_held = opened
        .is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()));
    is_held.then(|| "held by the kernel; perhaps it is mounted in a container".to_owned())
}

/// The device and its partitions.
fn nodes(device: &Path) -> Vec<PathBuf> {
    let mut nodes = vec![device.to_owned()];
    let Some(name) = device.file_name() else { return nodes };
    let entries = fs::read_dir(Path::new("/sys/block").join(name)).into_iter().flatten().flatten();
    let partitions = entries.filter(|entry| entry.path().join("partition").exists());
    nodes.extend(partitions.map(|entry| Path::new("/dev").join(entry.file_name())));
    nodes
}

/// Number and name of a process that has one of these open. What it has open is only read as text:
/// to look at the file itself could wait for whoever serves it. `nbd-client`, which has its device
/// open as long as it is connected, is no user.
fn process_with(nodes: &[PathBuf]) -> Option<String> {
    let mut processes = others_with(|_, target| nodes.iter().any(|node| node == target));
    Some(processes.find(|process| process.name() != nbd_client::PROGRAM)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_a_file_open_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().canonicalize().unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin(fs::File::open(&path).unwrap())
            .spawn()
            .unwrap();
        // What other tests start has all files of this process open for a moment, too.
        let deadline = Instant::now() + Duration::from_secs(60);
        let expected = format!("{} (", child.id());
        while !process_with(std::slice::from_ref(&path)).unwrap().starts_with(&expected) {
            assert!(Instant::now() < deadline, "{expected} is never found");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
