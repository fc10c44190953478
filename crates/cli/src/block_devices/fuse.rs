//! Block devices by nbdfuse, which makes a file of an export, and a loop device on that file: the
//! way that needs no other module of the kernel than most machines have loaded.
//!
//! The file dies with the connection of nbdfuse, and so with the daemon.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use super::record::Device;
use super::set::Set;
use super::{FrontEndKind, programs, until};
use crate::admin::api::Export;
use crate::daemon;
use crate::exit::Failure;
use crate::lock_holder::is_dead;
use forebay_host::ListenAddress;

/// The file in the folder of nbdfuse.
const FILE: &str = "nbd";
/// What a loop device has unless it is told otherwise.
const LOOP_SECTOR_BYTES: u32 = 512;

/// Makes a device of an export.
pub(super) fn connect(set: &Set, export: &Export) -> Result<Device, Failure> {
    let folder = set.file("fuse").join(&export.name);
    let log = set.file("fuse.log");
    // Remains of a daemon that died, unless somebody holds them.
    unmount(&folder)?;
    fs::create_dir_all(&folder)
        .map_err(|error| Failure::failed(format!("cannot make {}: {error}", folder.display())))?;
    let mut child = start(set, &export.name, &folder, &log)?;
    let file = folder.join(FILE);
    let is_ready = || fs::metadata(&file).is_ok_and(|found| found.len() > 0);
    let is_over = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
    until(|| is_ready() || is_over(&mut child));
    let made = match is_ready() {
        true => set_loop_up(&file, export.logical_block_bytes),
        false => Err(Failure::failed(format!("nbdfuse does not serve `{}`", export.name))
            .or(format!("its messages are in {}", log.display()))),
    };
    match made {
        Ok(device) => Ok(Device {
            name: export.name.clone(),
            device,
            link: None,
            front_end: FrontEndKind::Fuse,
            client_pid: Some(child.id()),
            fuse_folder: Some(folder),
            disk_sequence: None,
        }),
        Err(failure) => {
            let _ = unmount(&folder);
            let _ = child.kill();
            let _ = child.wait();
            Err(failure)
        }
    }
}

fn start(set: &Set, name: &str, folder: &Path, log: &Path) -> Result<Child, Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot start nbdfuse: {error}"));
    let output = File::options().create(true).append(true).open(log).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let mut command = programs::command("nbdfuse");
    command.arg(folder).arg(daemon::uri(&ListenAddress::Unix(set.nbd_socket()), name));
    // Not among those whom the terminal interrupts together with this command.
    command.stdout(output).stderr(errors).process_group(0).current_dir("/");
    command.spawn().map_err(failed)
}

fn set_loop_up(file: &Path, sector_bytes: u32) -> Result<PathBuf, Failure> {
    let file = file.display().to_string();
    let size = sector_bytes.to_string();
    let mut arguments = vec!["--find", "--show"];
    if sector_bytes != LOOP_SECTOR_BYTES {
        arguments.extend(["--sector-size", &size]);
    }
    arguments.push(&file);
    let device = programs::run("losetup", &arguments)?;
    if device.starts_with("/dev/") {
        return Ok(device.into());
    }
    Err(Failure::failed(format!("losetup names no device for {file}: {device}")))
}

/// Takes a device away that nobody uses.
pub(super) fn disconnect(device: &Device) -> Result<(), Failure> {
    if is_there(device) {
        let place = device.device.display().to_string();
        programs::run("losetup", &["--detach", &place])?;
        if !until(|| !is_there(device)) {
            return Err(Failure::failed(format!("{place} is still set up after it was detached"))
                .or("somebody has it open; end that process"));
        }
    }
    let Some(folder) = &device.fuse_folder else { return Ok(()) };
    unmount(folder)?;
    // It ends by itself once its file is gone.
    let is_over = || device.client_pid.is_none_or(|pid| is_dead(&pid.to_string()));
    if !until(is_over) {
        tracing::warn!(pid = device.client_pid, "nbdfuse has not ended");
    }
    // One that is not empty is none of ours any more.
    let _ = fs::remove_dir(folder);
    let _ = folder.parent().map(fs::remove_dir);
    Ok(())
}

/// Whether the loop device is still on the file that it was made for.
pub(super) fn is_there(device: &Device) -> bool {
    let Some(folder) = &device.fuse_folder else { return false };
    let backing = fs::read_to_string(device.sysfs().join("loop/backing_file"));
    backing.is_ok_and(|backing| Path::new(backing.trim_end()) == folder.join(FILE))
}

/// Whether nbdfuse still has its folder.
pub(super) fn has_remains(device: &Device) -> bool {
    device.fuse_folder.as_deref().is_some_and(is_mounted)
}

/// Ends the file system in a folder, if there is one. The kernel may let go of the loop device a
/// moment later than it says.
fn unmount(folder: &Path) -> Result<(), Failure> {
    let place = folder.display().to_string();
    let mut failure = None;
    let is_over = until(|| {
        if !is_mounted(folder) {
            return true;
        }
        failure = programs::run("fusermount3", &["-u", &place]).err();
        !is_mounted(folder)
    });
    match failure {
        Some(failure) if !is_over => Err(failure.or("end who uses it, then try again")),
        _ => Ok(()),
    }
}

/// Whether something is mounted at a folder. It is not looked into: who serves it may be dead.
fn is_mounted(folder: &Path) -> bool {
    let folder = folder.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| unescape(place) == folder))
}

/// The kernel writes blanks and backslashes of paths as octal numbers.
fn unescape(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (escape, sign)| text.replace(escape, sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_mount_points_are_read() {
        assert_eq!(unescape("/run/a\\040b"), "/run/a b");
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/nowhere")));
    }
}
