//! The kernel's modules that a guest has: those named here, and those that they need.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

/// Modules that scenarios load, and that the kernel asks for by itself.
pub(crate) const NAMES: &[&str] = &[
    "virtio_blk",
    "nbd",
    "ublk_drv",
    "loop",
    "brd",
    "null_blk",
    "ext4",
    "xfs",
    // Checksums of both file systems; asked for by another name, which `depmod` knows.
    "crc32c_generic",
    "crc32c-intel",
    "9p",
    "9pnet_virtio",
    "dm-delay",
    "dm-flakey",
    "dm-cache",
    "dm-cache-smq",
    "dm-writecache",
    "bcache",
];
/// What `depmod` wants to know of the kernel beside its modules.
const BUILT_IN: [&str; 3] = ["modules.builtin", "modules.builtin.modinfo", "modules.order"];

/// Where the guest's modules are, decompressed and with their tables.
pub(crate) fn folder(tree: &Path, version: &str) -> PathBuf {
    guest_root(tree).join("lib/modules").join(version)
}

fn guest_root(tree: &Path) -> PathBuf {
    tree.join("guest")
}

/// Copies the modules of the guest out of the unpacked package, and makes their tables.
pub(crate) fn prepare(tree: &Path, version: &str) -> anyhow::Result<()> {
    let all = tree.join("lib/modules").join(version);
    make_tables(tree, version)?;
    let table = std::fs::read_to_string(all.join("modules.dep")).context("no modules.dep")?;
    let target = folder(tree, version);
    std::fs::create_dir_all(&target).context("cannot make the folder of modules")?;
    for file in BUILT_IN {
        std::fs::copy(all.join(file), target.join(file)).with_context(|| file.to_owned())?;
    }
    for path in with_dependencies(&table, NAMES)? {
        let file = target.join(path.trim_end_matches(".xz"));
        std::fs::create_dir_all(file.parent().context("a path of the table")?)?;
        std::fs::write(&file, content(&all.join(path))?)?;
    }
    make_tables(&guest_root(tree), version)
}

/// busybox can read compressed modules, but not as fast as `xz` does here, once.
fn content(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    let mut command = Command::new("xz");
    let output = command.arg("-dc").arg(path).output().context("cannot run xz")?;
    ensure!(output.status.success(), "xz cannot decompress {}", path.display());
    Ok(output.stdout)
}

fn make_tables(root: &Path, version: &str) -> anyhow::Result<()> {
    // Administrators' programs are not in every search path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("depmod");
    command.env("PATH", path).arg("-b").arg(root).arg(version).stdin(Stdio::null());
    let status = command.status().context("cannot run depmod")?;
    ensure!(status.success(), "depmod: {status}");
    Ok(())
}

/// Paths of `names` and of all that they need, of a `modules.dep`, whose lines are complete.
fn with_dependencies<'a>(table: &'a str, names: &[&str]) -> anyhow::Result<BTreeSet<&'a str>> {
    let mut paths = BTreeSet::new();
    for name in names {
        let is_meant = |line: &&str| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next() == Some(name)
        };
        let line = table.lines().find(is_meant);
        let line = line.with_context(|| format!("the kernel has no module {name}"))?;
        paths.extend(line.split([':', ' ']).filter(|path| !path.is_empty()));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/jbd2.ko.xz\n\
        kernel/fs/freevxfs/freevxfs.ko.xz:\n\
        kernel/fs/xfs/xfs.ko.xz: kernel/lib/crc16.ko.xz\n";

    #[test]
    fn a_module_comes_with_all_that_it_needs_and_once() {
        let paths = with_dependencies(TABLE, &["ext4", "xfs"]).unwrap();
        let expected = [
            "kernel/fs/ext4/ext4.ko.xz",
            "kernel/fs/jbd2.ko.xz",
            "kernel/fs/xfs/xfs.ko.xz",
            "kernel/lib/crc16.ko.xz",
        ];
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_module_that_the_kernel_lacks_is_named() {
        let error = with_dependencies(TABLE, &["vxfs"]).unwrap_err().to_string();
        assert_eq!(error, "the kernel has no module vxfs");
    }
}
