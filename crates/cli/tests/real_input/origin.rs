//! File systems: how they are made and checked, on the volume and on the origin alone.

use std::path::Path;

use crate::process::run;
use crate::stack::{LoopDevice, Mount};

/// Which file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
}

impl FileSystem {
    /// Programs that make and check it.
    pub(crate) fn programs(self) -> &'static [&'static str] {
        match self {
            FileSystem::Ext4 => &["mkfs.ext4", "e2fsck"],
            FileSystem::Xfs => &["mkfs.xfs", "xfs_repair"],
        }
    }

    #[track_caller]
    pub(crate) fn make(self, device: &str) {
        match self {
            FileSystem::Ext4 => run("mkfs.ext4", &["-q", device]),
            FileSystem::Xfs => run("mkfs.xfs", &["-q", device]),
        };
    }

    /// Checks the unmounted file system without changing it. Its journal was replayed by a mount.
    #[track_caller]
    pub(crate) fn check(self, device: &str) {
        match self {
            FileSystem::Ext4 => run("e2fsck", &["-f", "-n", device]),
            FileSystem::Xfs => run("xfs_repair", &["-n", device]),
        };
    }

    /// Mounts the file `image` alone, shows what is mounted to `look`, unmounts and checks it.
    #[track_caller]
    pub(crate) fn look_at(self, image: &Path, folder: &Path, look: impl FnOnce(&Path)) {
        let device = LoopDevice::new(image);
        let mount = Mount::new(&device.0, folder);
        look(folder);
        mount.unmount();
        self.check(&device.0);
    }
}
