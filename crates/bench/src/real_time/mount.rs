//! A file system on what is measured, mounted in a folder of this machine.
//!
//! An NBD export becomes a file by nbdfuse, and a file a block device by the loop driver: no other
//! driver of the kernel is needed. Taking down goes from the top, because over a server that has
//! ended an unmount would wait forever, or fail. So the fields of [`Mounted`] stand in this order,
//! which is that of their drops; and whoever holds what serves must outlive it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::server::{Ready, Server, output};
use super::{Ground, RealError};
use crate::plan::FileSystem;

/// How long somebody may keep a mount busy after his end.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// A mounted file system.
pub(super) struct Mounted {
    mount: Mount,
    _loop_device: LoopDevice,
    _fuse: FuseFolder,
    _nbdfuse: Server,
}

impl Mounted {
    /// Mounts what is on an export; `make` names the file system that is made there before.
    pub(super) fn begin(
        ground: &Ground<'_>,
        uri: &str,
        make: Option<FileSystem>,
    ) -> Result<Mounted, RealError> {
        let fuse = FuseFolder(folder(ground, "fuse")?);
        let file = fuse.0.join("nbd");
        let mut command = Command::new("nbdfuse");
        command.arg(&fuse.0).arg(uri);
        let log = ground.folder.join("nbdfuse.log");
        let nbdfuse = Server::start(command, Ready::File(&file), &log, ground.interrupt)?;
        let loop_device = LoopDevice::set_up(&file)?;
        if let Some(file_system) = make {
            output(mkfs(file_system).arg(&loop_device.0))?;
        }
        let folder = folder(ground, "mount")?;
        output(Command::new("mount").arg(&loop_device.0).arg(&folder))?;
        let mount = Mount(folder);
        Ok(Mounted { mount, _loop_device: loop_device, _fuse: fuse, _nbdfuse: nbdfuse })
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.mount.0
    }
}

/// The command that makes a file system, without the device. Everything is written at once, so that
/// nothing of it is left to be done while something is measured; nothing is discarded, which is the
/// same for all devices.
fn mkfs(file_system: FileSystem) -> Command {
    let mut command = Command::new(format!("mkfs.{}", file_system.name()));
    match file_system {
        FileSystem::Ext4 => {
            let options = "-Elazy_itable_init=0,lazy_journal_init=0,nodiscard";
            command.args(["-F", "-q", options])
        }
        FileSystem::Xfs => command.args(["-f", "-q", "-K"]),
    };
    command
}

fn folder(ground: &Ground<'_>, name: &str) -> Result<PathBuf, RealError> {
    let folder = ground.folder.join(name);
    std::fs::create_dir_all(&folder).map_err(|error| RealError::file(&folder, error))?;
    Ok(folder)
}

/// Tries `command` until it succeeds or the patience is over.
fn insist(mut command: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !command() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// A mount of our own.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        // A program that was killed may need a moment to leave.
        if !insist(|| output(Command::new("umount").arg(&self.0)).is_ok()) {
            let _ = output(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}

/// A loop device of our own.
struct LoopDevice(String);

impl LoopDevice {
    /// Past the page cache of the file where that is possible: what is cached is to be cached once.
    fn set_up(file: &Path) -> Result<LoopDevice, RealError> {
        let set_up = |direct: &str| {
            output(Command::new("losetup").args(["--find", "--show", direct]).arg(file))
        };
        let device = set_up("--direct-io=on").or_else(|_| set_up("--direct-io=off"))?;
        Ok(LoopDevice(device.trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = output(Command::new("losetup").args(["--detach", &self.0]));
    }
}

/// Where nbdfuse has mounted its file.
struct FuseFolder(PathBuf);

impl Drop for FuseFolder {
    fn drop(&mut self) {
        // The loop device may hold the file for a moment after it was detached.
        let is_free = || {
            output(Command::new("umount").arg(&self.0)).is_ok()
                || output(Command::new("mountpoint").arg("-q").arg(&self.0)).is_err()
        };
        if !insist(is_free) {
            let _ = output(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}
