//! From an export to a mounted file system: nbdfuse, loop device, ext4, mount.
//!
//! This kernel need not have a block driver for NBD: FUSE and loop devices are enough. Taking down
//! goes from the top: over a server that has ended unmounting would wait forever, or fail. So the
//! fields of [`Stack`] stand in this order, which is that of their drops; and whoever holds the
//! server of the export must outlive the stack.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::super::interrupt;
use super::super::server::{Ready, Server};

/// How long somebody may keep a mount busy after its end.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// Everything is written before it is measured, and nothing discarded: the same for all devices.
const MKFS_OPTIONS: [&str; 3] =
    ["-F", "-q", "-Elazy_itable_init=0,lazy_journal_init=0,nodiscard,assume_storage_prezeroed=1"];

/// A file system on an export.
pub(super) struct Stack {
    mount: Mount,
    /// Held until the mount is gone.
    _loop_device: LoopDevice,
    _fuse: FuseFolder,
    _nbdfuse: Server,
}

impl Stack {
    /// Makes a file system on the export at `uri` and mounts it below `folder`, which everybody may
    /// enter.
    pub(super) fn mount(uri: &str, folder: &Path) -> anyhow::Result<Stack> {
        let fuse = FuseFolder(make_folder(folder, "fuse")?);
        let file = fuse.0.join("nbd");
        let mut command = Command::new("nbdfuse");
        command.arg(&fuse.0).arg(uri);
        let log = folder.join("nbdfuse.log");
        let nbdfuse = Server::start(command, &file, &log, Ready::File)?;
        let mut losetup = Command::new("losetup");
        let device = interrupt::capture(losetup.args(["--find", "--show"]).arg(&file))?;
        let loop_device = LoopDevice(device.trim().to_owned());
        let mut mkfs = Command::new("mkfs.ext4");
        interrupt::capture(mkfs.args(MKFS_OPTIONS).arg(&loop_device.0))?;
        let target = make_folder(folder, "mount")?;
        let mut mount = Command::new("mount");
        interrupt::capture(mount.arg(&loop_device.0).arg(&target))?;
        let mount = Mount(target);
        Ok(Stack { mount, _loop_device: loop_device, _fuse: fuse, _nbdfuse: nbdfuse })
    }

    /// Where it is mounted.
    pub(super) fn folder(&self) -> &Path {
        &self.mount.0
    }

    /// Brings to the device what was written so far, so that it is not measured.
    pub(super) fn settle(&self) -> anyhow::Result<()> {
        let mut command = Command::new("sync");
        interrupt::capture(command.arg("--file-system").arg(&self.mount.0)).map(|_| ())
    }
}

fn make_folder(parent: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let folder = parent.join(name);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Runs `command` without output; whether it did what it should.
fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.process_group(0).status().is_ok_and(|status| status.success())
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
        // A database that was killed may need a moment to leave.
        if !insist(|| succeeds(Command::new("umount").arg(&self.0))) {
            succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}

/// A loop device of our own.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        succeeds(Command::new("losetup").args(["--detach", &self.0]));
    }
}

/// Where nbdfuse has mounted its file.
struct FuseFolder(PathBuf);

impl Drop for FuseFolder {
    fn drop(&mut self) {
        // The loop device may hold the file for a moment after it was detached.
        let is_free = || {
            succeeds(Command::new("umount").arg(&self.0))
                || !succeeds(Command::new("mountpoint").arg("-q").arg(&self.0))
        };
        if !insist(is_free) {
            succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
        }
    }
}
