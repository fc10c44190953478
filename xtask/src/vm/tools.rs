//! Tools of the kernel's caches, for guests that measure these: LVM, and bcache's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::apt::{Apt, Installed};
use super::supplies;

/// Packages that have them; what these need comes along.
const PACKAGES: [&str; 3] = ["lvm2", "dmsetup", "bcache-tools"];
/// What guests have of them.
const PROGRAMS: [&str; 3] = ["lvm", "dmsetup", "make-bcache"];

/// All of them, unpacked.
pub(crate) struct Tools {
    tree: PathBuf,
}

impl Tools {
    /// Looks for them in `folder`, and downloads what is not there.
    pub(crate) fn prepare(folder: &Path) -> anyhow::Result<Tools> {
        let archives = folder.join("cache-packages");
        if !archives.is_dir() {
            println!("downloading LVM and the tools of bcache");
            let apt = Apt::with_new_lists(folder, Installed::Nothing)?;
            apt.download(&PACKAGES, &[])?;
            apt.finish(&archives)?;
        }
        let tree = folder.join("cache-tools");
        if !tree.is_dir() {
            let new = folder.join("cache-tools.new");
            supplies::unpack(&archives, &new)?;
            std::fs::rename(&new, &tree).context("cannot rename what was unpacked")?;
        }
        Ok(Tools { tree })
    }

    /// Programs, by their names.
    pub(crate) fn programs(&self) -> anyhow::Result<Vec<(&'static str, PathBuf)>> {
        let find = |name: &'static str| {
            let mut places = ["sbin", "usr/sbin"].map(|folder| self.tree.join(folder)).into_iter();
            let found = places.find_map(|place| {
                let path = place.join(name);
                path.is_file().then_some(path)
            });
            Ok((name, found.with_context(|| format!("{name} in {PACKAGES:?}"))?))
        };
        PROGRAMS.into_iter().map(find).collect()
    }

    /// Value of `LD_LIBRARY_PATH` for them.
    pub(crate) fn library_path(&self) -> String {
        supplies::library_path(&self.tree)
    }
}

/// Unpacks the results that a guest left on a disk, into `folder`.
pub(crate) fn unpack_results(disk: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("tar");
    // Behind the archive the disk is empty, which ends it.
    command.arg("--extract").arg("--file").arg(disk).arg("--directory").arg(folder);
    let status = command.status().context("cannot run tar")?;
    ensure!(status.success(), "{} has no results: tar {status}", disk.display());
    Ok(())
}
