//! Block devices by the kernel's NBD client, which the program `nbd-client` connects.
//!
//! The kernel does not find back to a daemon that died: a connection is for the life of one daemon.

use std::fs;
use std::path::{Path, PathBuf};

use super::record::Device;
use super::{FrontEndKind, programs, until};
use crate::admin::api::Export;
use crate::exit::Failure;

/// The program, and how its process is called.
pub(crate) const PROGRAM: &str = "nbd-client";
/// How many devices are tried that seem to be free: another client may be faster.
const TRIES_MAX: usize = 4;
/// Block size, which the program does not find out by itself.
const BLOCK_BYTES: &str = "512";

/// Connects a free device to an export.
pub(super) fn connect(socket: &Path, export: &Export) -> Result<Device, Failure> {
    let name = export.name.as_str();
    let socket = socket.display().to_string();
    let mut failure = None;
    for number in free_numbers().into_iter().take(TRIES_MAX) {
        let device = format!("/dev/nbd{number}");
        let arguments = ["-N", name, "-unix", &socket, &device, "-b", BLOCK_BYTES];
        if let Err(error) = programs::run(PROGRAM, &arguments) {
            failure = Some(error);
            continue;
        }
        let device = PathBuf::from(device);
        let has_size = || attribute(&device, "size").is_some_and(|sectors| sectors > 0);
        if !until(|| has_size() && client_of(&device).is_some()) {
            let place = device.display();
            return Err(Failure::failed(format!("{place} of `{name}` has no size after a while"))
                .or(format!("disconnect it with `nbd-client -d {place}`, then try again")));
        }
        return Ok(Device {
            name: export.name.clone(),
            client_pid: client_of(&device),
            device,
            link: None,
            front_end: FrontEndKind::Nbd,
            fuse_folder: None,
            disk_sequence: None,
        });
    }
    Err(failure.unwrap_or_else(|| {
        Failure::failed(format!("no nbd device is free for `{name}`"))
            .or("disconnect one, or load the module with more: `modprobe nbd nbds_max=64`")
    }))
}

/// Disconnects a device that nobody uses; whether a daemon is at its other end or not.
pub(super) fn disconnect(device: &Device) -> Result<(), Failure> {
    if !is_there(device) {
        return Ok(());
    }
    let place = device.device.display().to_string();
    programs::run(PROGRAM, &["-d", &place])?;
    if until(|| !is_there(device)) {
        return Ok(());
    }
    Err(Failure::failed(format!("{place} is still connected after it was disconnected"))
        .or("somebody has it open; end that process"))
}

/// Whether a device is connected by the same client.
pub(super) fn is_there(device: &Device) -> bool {
    let client = client_of(&device.device);
    client.is_some() && client == device.client_pid
}

/// Numbers of devices without a connection, the lowest first.
fn free_numbers() -> Vec<u32> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten();
    let numbers = entries.filter_map(|entry| {
        entry.ok()?.file_name().to_str()?.strip_prefix("nbd")?.parse::<u32>().ok()
    });
    let mut numbers: Vec<u32> = numbers
        .filter(|number| {
            let device = PathBuf::from(format!("/dev/nbd{number}"));
            client_of(&device).is_none() && attribute(&device, "size") == Some(0)
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

/// The process that connected a device; the kernel tells as long as it is connected.
fn client_of(device: &Path) -> Option<u32> {
    attribute(device, "pid").and_then(|pid| u32::try_from(pid).ok())
}

fn attribute(device: &Path, name: &str) -> Option<u64> {
    let place = Path::new("/sys/block").join(device.file_name()?).join(name);
    fs::read_to_string(place).ok()?.trim_end().parse().ok()
}
