//! Stable names of block devices: `/dev/forebay/NAME`.
//!
//! The link is made here, so that it is there without udev. Where udev runs, it has to know of the
//! name, too: systemd waits for devices that udev has told it of. So the name is left in a file for
//! the device, which the rule `60-forebay.rules` imports, and udev is made to look again.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::record::{Device, Record};
use super::{FrontEndKind, programs};
use crate::admin::socket;
use crate::exit::Failure;

/// Where names are, unless the run directory is another one.
const LINK_DIRECTORY: &str = "/dev/forebay";
/// Where the rule looks for names, below the run directory.
const UDEV_FOLDER: &str = "udev";
/// Whether udev runs.
const UDEV_CONTROL: &str = "/run/udev/control";
/// The longest that `udevadm settle` may wait, seconds.
const SETTLE_SECONDS: &str = "--timeout=30";

/// Where the names are. Daemons that have another run directory keep out of each other's way.
fn directory() -> PathBuf {
    match std::env::var_os("FOREBAY_RUN_DIR") {
        Some(directory) => Path::new(&directory).join("dev"),
        None => LINK_DIRECTORY.into(),
    }
}

/// Gives a device its name, and tells udev. Refused if a device of another set has it.
pub(crate) fn make(device: &mut Device) -> Result<(), Failure> {
    let link = directory().join(&device.name);
    if let Some(owner) = owners(&link).find(|other| other.device != device.device) {
        let (place, node) = (link.display(), owner.device.display());
        return Err(Failure::refused(format!("{place} is {node} of another cache set")));
    }
    let target = relative(&device.device);
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot make {} a link: {error}", link.display()))
    };
    if fs::read_link(&link).ok().as_ref() != Some(&target) {
        fs::create_dir_all(directory()).map_err(failed)?;
        // In one step: who opens the name finds a device in any case.
        let new = directory().join(format!(".{}", device.name));
        let _ = fs::remove_file(&new);
        symlink(&target, &new).and_then(|()| fs::rename(&new, &link)).map_err(failed)?;
    }
    device.link = Some(link);
    tell_udev(device).map_err(|error| {
        Failure::failed(format!("cannot write the name of `{}` for udev: {error}", device.name))
    })
}

/// Devices of all sets that are there and have this name. One that is gone has left it: its number
/// may be that of another one by now.
fn owners(link: &Path) -> impl Iterator<Item = Device> {
    let devices = Record::all().into_iter().flat_map(|record| record.devices);
    devices.filter(move |device| device.link.as_deref() == Some(link) && super::is_there(device))
}

/// As udev would write it, which leaves alone what is as it should be.
fn relative(device: &Path) -> PathBuf {
    match device.strip_prefix("/dev") {
        Ok(rest) if directory() == Path::new(LINK_DIRECTORY) => Path::new("..").join(rest),
        _ => device.to_owned(),
    }
}

/// Where the rule looks for the name of a device. The number of an nbd or ublk device may be
/// somebody else's by now, so what is the device's own belongs to the name of the file: the process
/// that connected it, or the kernel's number of the disk.
fn udev_file(device: &Device) -> PathBuf {
    let kernel_name = device.kernel_name();
    let own = match device.front_end {
        FrontEndKind::Nbd => device.client_pid.map(u64::from),
        FrontEndKind::Ublk => device.disk_sequence,
        FrontEndKind::Fuse => None,
    };
    let name = own.map_or_else(|| kernel_name.to_owned(), |own| format!("{kernel_name}-{own}"));
    socket::run_directory().join(UDEV_FOLDER).join(name)
}

fn tell_udev(device: &Device) -> io::Result<()> {
    let file = udev_file(device);
    fs::create_dir_all(file.parent().expect("it is in a folder"))?;
    let text = format!("FOREBAY_NAME={}\n", device.name);
    if fs::read_to_string(&file).is_ok_and(|known| known == text) {
        return Ok(());
    }
    fs::write(&file, text)?;
    look_again(device);
    Ok(())
}

/// Takes the name back, before the device is taken away or when it is gone.
pub(crate) fn forget(device: &Device) {
    // Nobody minds if one is gone already.
    let _ = fs::remove_file(udev_file(device));
    if let Some(link) = &device.link
        && fs::read_link(link).is_ok_and(|target| target == relative(&device.device))
        && !owners(link).any(|other| other != *device)
    {
        let _ = fs::remove_file(link);
        let _ = link.parent().map(fs::remove_dir);
    }
    look_again(device);
}

/// Has the kernel say that the device has changed. Without udev nobody listens.
fn look_again(device: &Device) {
    if Path::new(UDEV_CONTROL).exists() {
        let _ = fs::write(device.sysfs().join("uevent"), "change");
    }
}

/// Waits until udev has done what it has to do, if it runs.
pub(crate) fn settle() {
    if !Path::new(UDEV_CONTROL).exists() || programs::find("udevadm").is_none() {
        return;
    }
    if let Err(failure) = programs::run("udevadm", &["settle", SETTLE_SECONDS]) {
        tracing::warn!("{failure}");
    }
}
