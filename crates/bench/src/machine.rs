//! What results of one folder have in common: where they were made, and by which programs.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::folder::FolderError;
use crate::plan::Clock;

/// Where results were made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Version of forebay, and which build of it.
    pub version: String,
    /// When the run began, or went on last: seconds since 1970 in Greenwich.
    pub unix_time_s: u64,
    /// Model of the processors, and how many.
    pub processors: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's name and version.
    pub kernel: String,
    /// Which time passes there.
    #[serde(default)]
    pub clock: Option<Clock>,
    /// Where files in place of devices lie, in real time. Earlier versions did not say.
    #[serde(default)]
    pub devices: Option<DevicesFolder>,
    /// What fio says of its version, in real time. Earlier versions did not say.
    #[serde(default)]
    pub fio: Option<String>,
}

/// The folder that files in place of devices lie in. They are as fast as its disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevicesFolder {
    /// Absolute, without links.
    pub path: PathBuf,
    /// The number of the file system's device, as `major:minor`: another disk may be mounted there
    /// the next time.
    pub device: String,
}

impl DevicesFolder {
    /// Finds out where a folder is, which has to be there.
    ///
    /// # Errors
    ///
    /// If it is not there, or cannot be looked at.
    pub fn examine(path: &Path) -> Result<DevicesFolder, FolderError> {
        let look = || {
            let path = std::fs::canonicalize(path)?;
            let device = rustix::fs::stat(&path)?.st_dev;
            let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
            Ok(DevicesFolder { path, device })
        };
        look().map_err(|source| FolderError::File { path: path.to_owned(), source })
    }
}

impl std::fmt::Display for DevicesFolder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} on device {}", self.path.display(), self.device)
    }
}

/// Whose results are held against each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Those of one folder: nothing may differ, and what is not known may.
    OneFolder,
    /// Those of two: devices may be in folders of their own, as long as the disk is the same.
    TwoFolders,
}

impl Machine {
    /// What results must have in common and is not the same in `now`, each as
    /// `what: there this, now that`.
    #[must_use]
    pub fn differences(&self, now: &Machine, scope: Scope) -> Vec<String> {
        // Kernels tell a little more or less of the same memory.
        let memory = |machine: &Machine| {
            let gib = 1_u64 << 30;
            format!("{} GiB", (machine.memory_bytes + gib / 2) / gib)
        };
        let clock = |machine: &Machine| machine.clock.map_or("none", Clock::name).to_owned();
        let or_unknown = |what: Option<String>| what.unwrap_or_else(|| "not known".to_owned());
        let devices =
            |machine: &Machine| or_unknown(machine.devices.as_ref().map(DevicesFolder::to_string));
        let mut pairs = vec![
            ("forebay", self.version.clone(), now.version.clone()),
            ("processors", self.processors.clone(), now.processors.clone()),
            ("memory", memory(self), memory(now)),
            ("kernel", self.kernel.clone(), now.kernel.clone()),
            ("clock", clock(self), clock(now)),
        ];
        // Virtual time has none.
        let is_fio_known = self.fio.is_some() && now.fio.is_some();
        if self.clock == now.clock && (is_fio_known || scope == Scope::OneFolder) {
            pairs.push(("fio", or_unknown(self.fio.clone()), or_unknown(now.fio.clone())));
        }
        if self.are_devices_elsewhere(now, scope) {
            pairs.push(("devices", devices(self), devices(now)));
        }
        let different = pairs.into_iter().filter(|(_, there, now)| there != now);
        different.map(|(what, there, now)| format!("{what}: there {there}, now {now}")).collect()
    }

    /// Whether files in place of devices lie elsewhere in `now`. Virtual time has none.
    pub(crate) fn are_devices_elsewhere(&self, now: &Machine, scope: Scope) -> bool {
        if self.clock != now.clock {
            return false;
        }
        match (scope, &self.devices, &now.devices) {
            (Scope::OneFolder, there, now) => there != now,
            (Scope::TwoFolders, Some(there), Some(now)) => there.device != now.device,
            (Scope::TwoFolders, ..) => false,
        }
    }
}
