//! What this machine has to make block devices with. Modules of the kernel that are missing are
//! loaded: to look for a front end is to want it.

use std::path::Path;

use super::{FrontEndKind, nbd_client, programs, until};
use crate::exit::Failure;

/// Where the ublk driver takes its commands.
const UBLK_CONTROL: &str = "/dev/ublk-control";
/// The kernel's NBD client, once its module is loaded.
const NBD_MODULE: &str = "/sys/block/nbd0";
/// What nbdfuse and a loop device need.
const FUSE_DEVICES: [(&str, &str); 2] = [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")];
/// The programs for it, with their packages.
const FUSE_PROGRAMS: [(&str, &str); 3] = [
    ("nbdfuse", "package nbdfuse or libnbd-bin"),
    ("fusermount3", "package fuse3"),
    ("losetup", "package mount or util-linux"),
];

/// The front end that is wanted, else the best one. The error names what each of them lacks.
pub(crate) fn choose(wanted: Option<FrontEndKind>) -> Result<FrontEndKind, Failure> {
    choose_among(&FrontEndKind::ALL, wanted)
}

/// The same for a daemon that serves over NBD already.
pub(crate) fn choose_client(wanted: Option<FrontEndKind>) -> Result<FrontEndKind, Failure> {
    choose_among(&[FrontEndKind::Nbd, FrontEndKind::Fuse], wanted)
}

fn choose_among(
    kinds: &[FrontEndKind],
    wanted: Option<FrontEndKind>,
) -> Result<FrontEndKind, Failure> {
    if let Some(kind) = wanted {
        return match missing(kind) {
            None => Ok(kind),
            Some(why) => Err(Failure::failed(format!("front end {kind} cannot be had: {why}"))
                .or("or choose another one")),
        };
    }
    let mut lacks = Vec::new();
    for kind in kinds {
        match missing(*kind) {
            None => return Ok(*kind),
            Some(why) => lacks.push(format!("{kind}: {why}")),
        }
    }
    Err(Failure::failed(format!("this machine has no front end; {}", lacks.join("; "))))
}

/// What a front end lacks here, with the remedy.
fn missing(kind: FrontEndKind) -> Option<String> {
    match kind {
        FrontEndKind::Ublk => missing_ublk(),
        FrontEndKind::Nbd => missing_nbd(),
        FrontEndKind::Fuse => missing_fuse(),
    }
}

fn missing_ublk() -> Option<String> {
    load("ublk_drv", UBLK_CONTROL);
    forebay_host::ublk_driver().err().map(|error| error.to_string())
}

fn missing_nbd() -> Option<String> {
    if programs::find(nbd_client::PROGRAM).is_none() {
        return Some("install nbd-client (package nbd-client)".to_owned());
    }
    load("nbd", NBD_MODULE);
    (!Path::new(NBD_MODULE).exists())
        .then(|| "the kernel has no module nbd; `modprobe nbd` says why".to_owned())
}

fn missing_fuse() -> Option<String> {
    for (program, package) in FUSE_PROGRAMS {
        if programs::find(program).is_none() {
            return Some(format!("install {program} ({package})"));
        }
    }
    for (device, module) in FUSE_DEVICES {
        load(module, device);
        if !Path::new(device).exists() {
            return Some(format!("{device} is missing; `modprobe {module}` says why"));
        }
    }
    None
}

/// Loads a module unless what it makes is there. Failing is no error here: the kernel may have
/// built it in, and whoever asked looks again.
fn load(module: &str, sign: &str) {
    let sign = Path::new(sign);
    if !sign.exists() && programs::run("modprobe", &["-q", module]).is_ok() {
        until(|| sign.exists());
    }
}
