//! What was set up for a cache set, as a file in the run directory: `SET.up`.
//!
//! The run directory is empty after a boot, and so are the kernel's tables of devices. The file is
//! replaced as a whole, so that a reader finds one state or the next.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::FrontEndKind;
use crate::admin::api::Export;
use crate::admin::socket;
use crate::exit::Failure;

/// Ending of these files.
const ENDING: &str = "up";

/// What there is of a cache set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) set_id: String,
    pub(crate) cache_device: PathBuf,
    /// What its daemon was started for.
    pub(crate) front_end: FrontEndKind,
    /// The daemon whose volumes these are.
    pub(crate) daemon_pid: u32,
    /// Its admin socket.
    pub(crate) admin: PathBuf,
    /// Where that daemon writes what it has to say. `None`: not to a file of ours.
    pub(crate) log: Option<PathBuf>,
    pub(crate) state_dir: PathBuf,
    pub(crate) devices: Vec<Device>,
}

/// A block device of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Device {
    /// The volume.
    pub(crate) name: String,
    /// The device node.
    pub(crate) device: PathBuf,
    /// Its stable name, if it could be given one.
    pub(crate) link: Option<PathBuf>,
    pub(crate) front_end: FrontEndKind,
    /// The process that connected an nbd device, by which the kernel tells connections apart; or
    /// the one of nbdfuse.
    pub(crate) client_pid: Option<u32>,
    /// Where nbdfuse has its file.
    pub(crate) fuse_folder: Option<PathBuf>,
    /// The kernel's number of a ublk device, which no other disk has until the next boot.
    #[serde(default)]
    pub(crate) disk_sequence: Option<u64>,
}

impl Device {
    /// One that the daemon itself has made of an export.
    pub(crate) fn of_ublk(export: &Export, device: &str) -> Device {
        let mut device = Device {
            name: export.name.clone(),
            device: device.into(),
            link: None,
            front_end: FrontEndKind::Ublk,
            client_pid: None,
            fuse_folder: None,
            disk_sequence: None,
        };
        device.disk_sequence = device.current_disk_sequence();
        device
    }

    /// The kernel's number of the disk that has the name now, if one has.
    pub(crate) fn current_disk_sequence(&self) -> Option<u64> {
        // Since Linux 5.15, see Documentation/ABI/stable/sysfs-block; ublk is younger.
        let number = fs::read_to_string(self.sysfs().join("diskseq")).ok()?;
        number.trim_end().parse().ok()
    }

    /// What to call it: its stable name if it has one.
    pub(crate) fn path(&self) -> &Path {
        self.link.as_deref().unwrap_or(&self.device)
    }

    /// The kernel's name.
    pub(crate) fn kernel_name(&self) -> &str {
        self.device.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Where the kernel tells of it.
    pub(crate) fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.kernel_name())
    }
}

/// Where the record of a set is.
fn path_of(name: &str) -> PathBuf {
    socket::run_directory().join(format!("{name}.{ENDING}"))
}

impl Record {
    /// The record of a set, by the digits that name it.
    pub(crate) fn load(name: &str) -> Result<Option<Record>, Failure> {
        read(&path_of(name))
    }

    /// All records, sorted by their paths. One that cannot be read is left out: each command looks
    /// at its own, and tells.
    pub(crate) fn all() -> Vec<Record> {
        let Ok(entries) = fs::read_dir(socket::run_directory()) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == ENDING))
            .collect();
        paths.sort();
        paths.iter().filter_map(|path| read(path).ok().flatten()).collect()
    }

    /// Writes it down.
    pub(crate) fn save(&self, name: &str) -> Result<(), Failure> {
        let path = path_of(name);
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        };
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(&error))?;
        let folder = path.parent().expect("it is in the run directory");
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
        file.write_all(&text).map_err(|error| failed(&error))?;
        file.persist(&path).map_err(|error| failed(&error))?;
        Ok(())
    }

    /// Forgets it.
    pub(crate) fn remove(name: &str) -> Result<(), Failure> {
        let path = path_of(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Failure::failed(format!("cannot remove {}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<Option<Record>, Failure> {
    let place = path.display();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::failed(format!("cannot read {place}: {error}"))),
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        Failure::failed(format!("cannot understand {place}: {error}"))
            .or("another version of forebay may have written it; use that one, or remove the file")
    })
}

/// Keeps a second `up` or `down` of the same set out until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held for its lock")] File);

/// Waits for its turn.
pub(crate) fn take_turn(name: &str) -> Result<Turn, Failure> {
    let folder = socket::run_directory();
    let path = folder.join(format!("{name}.lock"));
    let failed =
        |error: std::io::Error| Failure::failed(format!("cannot lock {}: {error}", path.display()));
    fs::create_dir_all(&folder).map_err(failed)?;
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|errno| failed(errno.into()))?;
    Ok(Turn(file))
}
