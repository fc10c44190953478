//! The disk of a guest that boots a distribution: systemd, udev, and what a file system needs.
//!
//! It is made of the release's own packages, unpacked and not installed, with the modules of the
//! guest's kernel and a few files that their installation would have written. A second run finds it
//! there. Programs under test and scripts are not on it: the first file system of the guest brings
//! them at each boot (`xtask/vm/init`).

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::apt::{Apt, Installed};
use super::modules;
use super::supplies::{Fetch, Supplies};
use crate::packages;

/// What a small system is made of; what they need comes with them. busybox has all else.
const PACKAGES: [&str; 13] = [
    "base-files",
    "base-passwd",
    "coreutils",
    "dash",
    "e2fsprogs",
    "kmod",
    "libc-bin",
    "mount",
    "nbd-client",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
];
/// What this machine must have to unpack them and to make a file system.
const PROGRAMS: [&str; 4] = ["apt-get", "dpkg-deb", "tar", "cp"];
/// What nobody reads there.
const LEFT_OUT: [&str; 5] = [
    "./usr/share/doc/*",
    "./usr/share/man/*",
    "./usr/share/locale/*",
    "./usr/share/info/*",
    // A database of all hardware there is, which the first boot would compile for minutes.
    "./lib/udev/hwdb.d/*",
];
/// Folders that are links into /usr, which the packages of the release do not know yet.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];
/// Size of the file system: the packages take a quarter of it.
const BYTES: u64 = 384 << 20;
/// Raised when what is made from the packages changes.
const LAYOUT: u32 = 1;

/// Groups that udev's rules name and the packages would have made.
const GROUPS: &str =
    "systemd-journal:x:101:\nrender:x:102:\ninput:x:103:\nkvm:x:104:\nsgx:x:105:\n";
/// Files that an installation writes. The identity tells systemd that this is no first boot, and
/// the empty `.updated` that nothing has to be built anew.
const FILES: &[(&str, &str)] = &[
    ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ("etc/hostname", "guest\n"),
    ("etc/hosts", "127.0.0.1 localhost guest\n"),
    ("etc/fstab", ""),
    ("etc/.updated", ""),
    ("var/.updated", ""),
    ("etc/systemd/system/commands.service", include_str!("../../vm/root/commands.service")),
];
/// Folders beside those of packages. With the last one the journal outlives a boot.
const FOLDERS: [&str; 5] = [
    "vm",
    "etc/systemd/system/sysinit.target.wants",
    "usr/lib/modules",
    "usr/local/bin",
    "var/log/journal",
];
/// Links: where they are, and to what they lead. Nobody logs in, and there is no message bus.
const LINKS: [(&str, &str); 8] = [
    ("etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target"),
    ("etc/systemd/system/sysinit.target.wants/commands.service", "../commands.service"),
    ("etc/systemd/system/systemd-logind.service", "/dev/null"),
    ("etc/systemd/system/proc-sys-fs-binfmt_misc.automount", "/dev/null"),
    ("etc/systemd/system/getty-static.service", "/dev/null"),
    ("var/run", "/run"),
    ("var/lock", "/run/lock"),
    ("etc/mtab", "../proc/self/mounts"),
];

/// Looks for the disk in `folder`, and makes it if it is not there.
pub(crate) fn prepare(folder: &Path, supplies: &Supplies, fetch: Fetch) -> anyhow::Result<PathBuf> {
    for program in PROGRAMS {
        ensure!(packages::has_program(program), "{program}");
    }
    let archives = folder.join("root-packages");
    if !archives.is_dir() {
        ensure!(fetch == Fetch::IfMissing, "packages in {}", archives.display());
        println!("downloading a small system with systemd (30 MB)");
        let apt = Apt::with_new_lists(folder, Installed::Nothing)?;
        apt.download(&PACKAGES, &[])?;
        apt.finish(&archives)?;
    }
    let image = folder.join("root.ext4");
    let stamp = folder.join("root.stamp");
    let wanted = stamp_text(supplies.kernel_version());
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        let tree = tempfile::tempdir_in(folder).context("cannot make a folder")?;
        let top = tree.path().join("root");
        unpack(&archives, &top)?;
        furnish(&top, supplies).context("files of the system")?;
        make_image(&image, &top, supplies)?;
        std::fs::write(&stamp, &wanted).context("cannot write the stamp")?;
    }
    Ok(image)
}

/// Changes with all that the disk is made from.
fn stamp_text(kernel_version: &str) -> String {
    let modules = modules::NAMES.join(" ");
    format!("{LAYOUT} {kernel_version} {modules}\n{PACKAGES:?}\n{GROUPS}{FILES:?}\n{LINKS:?}\n")
}

/// Unpacks all packages into a new folder `top`.
fn unpack(archives: &Path, top: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(top).context("cannot make the top folder")?;
    for name in MERGED {
        std::fs::create_dir_all(top.join("usr").join(name))?;
        symlink(format!("usr/{name}"), top.join(name))?;
    }
    let entries = archives.read_dir().context("cannot list the packages")?;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "deb") {
            unpack_one(&path, top)
                .with_context(|| format!("{} cannot be unpacked; remove it", path.display()))?;
        }
    }
    Ok(())
}

/// Unpacks one package. `dpkg -x` would put folders in the places of the links.
fn unpack_one(package: &Path, top: &Path) -> anyhow::Result<()> {
    let mut packer = Command::new("dpkg-deb");
    let mut packer = packer.arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn()?;
    let mut unpacker = Command::new("tar");
    unpacker.args([
        "-x",
        "--keep-directory-symlink",
        "--numeric-owner",
        "--no-wildcards-match-slash",
    ]);
    unpacker.args(["-C"]).arg(top);
    unpacker.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
    let status = unpacker.stdin(packer.stdout.take().context("the output is piped")?).status()?;
    ensure!(packer.wait()?.success(), "dpkg-deb failed");
    ensure!(status.success(), "tar failed");
    Ok(())
}

/// Adds what the installation of the packages would have written.
fn furnish(top: &Path, supplies: &Supplies) -> anyhow::Result<()> {
    for folder in FOLDERS {
        std::fs::create_dir_all(top.join(folder)).with_context(|| folder.to_owned())?;
    }
    for (name, content) in FILES {
        std::fs::write(top.join(name), content).with_context(|| (*name).to_owned())?;
    }
    for (name, target) in LINKS {
        // An empty folder of a package may be in its place.
        let _ = std::fs::remove_dir(top.join(name));
        symlink(target, top.join(name)).with_context(|| name.to_owned())?;
    }
    let masters = top.join("usr/share/base-passwd");
    std::fs::copy(masters.join("passwd.master"), top.join("etc/passwd")).context("passwd")?;
    let groups = std::fs::read_to_string(masters.join("group.master")).context("group")?;
    std::fs::write(top.join("etc/group"), groups + GROUPS)?;
    let modules = top.join("usr/lib/modules").join(supplies.kernel_version());
    let status = Command::new("cp").arg("-r").arg(supplies.modules()).arg(modules).status();
    ensure!(status.context("cannot run cp")?.success(), "modules cannot be copied");
    Ok(())
}

/// Makes a file system with all that is in `top`, and belongs to root in it.
fn make_image(image: &Path, top: &Path, supplies: &Supplies) -> anyhow::Result<()> {
    let new = tempfile::NamedTempFile::new_in(image.parent().context("the image's folder")?)?;
    new.as_file().set_len(BYTES).context("cannot make the image")?;
    let make = supplies.program("mkfs.ext4")?;
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|data| data.uid() == 0);
    // Whoever is not root is it in a world of its own, where its files belong to root.
    let mut command = if is_root { Command::new(make) } else { Command::new("unshare") };
    if !is_root {
        command.args(["--user", "--map-root-user", "--"]).arg(supplies.program("mkfs.ext4")?);
    }
    command.args(["-q", "-F", "-m", "0", "-d"]).arg(top).arg(new.path());
    let output = command.stdin(Stdio::null()).output().context("cannot run mkfs.ext4")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "no file system of the packages: {}", complaint.trim());
    new.persist(image).with_context(|| format!("cannot make {}", image.display()))?;
    Ok(())
}
