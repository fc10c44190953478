//! What a guest is made of and this machine does not have: QEMU, a kernel, and three programs.
//!
//! They are downloaded as packages of the distribution and unpacked below the target folder;
//! nothing is installed, no file of the system changes, and a second run finds everything there.
//! QEMU is taken from the backports: 7.2, which Debian 12 has, crashes in the early boot of this
//! kernel in two of three tries. The kernel is the newest of its series, in whatever suite it is;
//! the one of Debian 12 has no `ublk_drv`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::apt::{Apt, Installed};
use super::{exerciser, modules, sources};
use crate::packages;

/// What is downloaded with everything that it needs and this machine lacks.
const PACKAGES: [&str; 6] = [
    "qemu-system-x86",
    "qemu-system-common",
    "qemu-system-data",
    "seabios",
    // A guest has no distribution: one program is its shell and all of its tools.
    "busybox-static",
    "nbd-client",
];
/// The kernel that the tests were written for; which package of this series is looked up.
const KERNEL_SERIES: &str = "linux-image-6.12.";
/// What this machine must have to unpack and pack.
const PROGRAMS: [&str; 7] = ["apt-get", "dpkg", "depmod", "xz", "setpriv", "ldd", "nm"];
/// Raised when what is made from the packages changes.
const LAYOUT: u32 = 1;

/// What may be fetched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fetch {
    IfMissing,
    /// Nothing: what is not there is missing.
    Never,
}

/// Everything unpacked.
pub(crate) struct Supplies {
    tree: PathBuf,
    kernel_version: String,
    /// Folder of the exerciser of file systems.
    exerciser: PathBuf,
}

impl Supplies {
    /// Looks for everything in `folder`, and gets what is not there.
    pub(crate) fn prepare(folder: &Path, fetch: Fetch) -> anyhow::Result<Supplies> {
        ensure!(cfg!(target_arch = "x86_64"), "an x86-64 machine: the guest is one");
        for program in PROGRAMS {
            ensure!(packages::has_program(program), "{program}");
        }
        let archives = folder.join("packages");
        if !archives.is_dir() {
            ensure!(fetch == Fetch::IfMissing, "packages in {}", archives.display());
            download(folder, &archives)?;
        }
        let tree = folder.join("unpacked");
        let stamp = folder.join("unpacked.stamp");
        let wanted = format!("{LAYOUT} {}", modules::NAMES.join(" "));
        if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
            unpack(&archives, &tree)?;
            modules::prepare(&tree, &kernel_version(&tree)?)?;
            std::fs::write(&stamp, &wanted).context("cannot write the stamp")?;
        }
        let kernel_version = kernel_version(&tree)?;
        let exerciser = exerciser::prepare(folder, fetch)?;
        Ok(Supplies { tree, kernel_version, exerciser })
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.tree.join("boot").join(format!("vmlinuz-{}", self.kernel_version))
    }

    pub(crate) fn kernel_version(&self) -> &str {
        &self.kernel_version
    }

    /// QEMU, with the libraries that came with it.
    pub(crate) fn qemu(&self) -> PathBuf {
        self.tree.join("usr/bin/qemu-system-x86_64")
    }

    /// The modules of the guest, as they lie there, below `lib/modules`.
    pub(crate) fn modules(&self) -> PathBuf {
        modules::folder(&self.tree, &self.kernel_version)
    }

    /// A program: one that was downloaded, or else the machine's own.
    pub(crate) fn program(&self, name: &str) -> anyhow::Result<PathBuf> {
        let own = ["bin", "sbin", "usr/bin", "usr/sbin"].map(|folder| self.tree.join(folder));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let machine = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
        let made = std::iter::once(self.exerciser.clone());
        let paths = own.into_iter().chain(made).chain(machine).map(|folder| folder.join(name));
        paths.into_iter().find(|path| path.is_file()).with_context(|| name.to_owned())
    }

    /// Where QEMU is to look for firmware; by itself it looks where it would be installed.
    pub(crate) fn firmware(&self) -> [PathBuf; 3] {
        ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"]
            .map(|folder| self.tree.join(folder))
    }

    /// Value of `LD_LIBRARY_PATH` for programs that were downloaded.
    pub(crate) fn library_path(&self) -> String {
        library_path(&self.tree)
    }
}

/// Where programs that were unpacked into `tree` find their libraries.
pub(crate) fn library_path(tree: &Path) -> String {
    let folders = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    folders.map(|folder| tree.join(folder).display().to_string()).join(":")
}

/// The one kernel in `tree`.
fn kernel_version(tree: &Path) -> anyhow::Result<String> {
    let folder = tree.join("boot");
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
    let version =
        |name: std::ffi::OsString| Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned());
    names.into_iter().find_map(version).context("the kernel's package has no kernel")
}

/// Downloads all packages into `archives`, which is there when all have come.
fn download(folder: &Path, archives: &Path) -> anyhow::Result<()> {
    let codename = sources::codename()?;
    let suite = sources::backports(&codename);
    println!("downloading QEMU and a kernel from {suite} (130 MB)");
    let apt = Apt::with_new_lists(folder, Installed::AsIs)?;
    let names = Apt::run(apt.command("apt-cache").args(["pkgnames", KERNEL_SERIES]))?;
    let kernel = newest_kernel(&names)
        .with_context(|| format!("package {KERNEL_SERIES}*-amd64, also in {suite}"))?;
    // What is installed already must come as well: everything has to lie in one tree.
    apt.download(&PACKAGES, &["--reinstall", "-t", &suite])?;
    // The kernel alone: what it needs to be installed is not needed to unpack it.
    apt.download_alone(kernel)?;
    apt.finish(archives)
}

/// The newest plain kernel in a list of package names.
fn newest_kernel(names: &str) -> Option<&str> {
    let version = |name: &str| {
        let version = name.strip_prefix(KERNEL_SERIES)?.strip_suffix("-amd64")?;
        // Other kinds, such as `-cloud-amd64`, lack drivers.
        let is_plain = !version.contains('-');
        let words = version.split(|character: char| !character.is_ascii_digit());
        is_plain.then(|| words.filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
    };
    let kernels = names.lines().filter_map(|name| Some((version(name)?, name)));
    kernels.max().map(|(_, name)| name)
}

/// Unpacks all packages into a fresh `tree`.
pub(crate) fn unpack(archives: &Path, tree: &Path) -> anyhow::Result<()> {
    if tree.exists() {
        std::fs::remove_dir_all(tree).context("cannot remove what was unpacked before")?;
    }
    std::fs::create_dir_all(tree).with_context(|| format!("cannot make {}", tree.display()))?;
    let entries = archives.read_dir().context("cannot list the packages")?;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "deb") {
            let status = Command::new("dpkg").arg("-x").arg(&path).arg(tree).status();
            let is_unpacked = status.context("cannot run dpkg")?.success();
            ensure!(is_unpacked, "{} cannot be unpacked; remove it", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_is_taken() {
        let names = "linux-image-6.12.9+deb12-amd64\n\
            linux-image-6.12.95+deb12-cloud-amd64\n\
            linux-image-6.12.95+deb12-amd64-unsigned\n\
            linux-image-6.12.90+deb12.1-amd64\n\
            linux-image-6.12.90+deb12-amd64\n\
            linux-image-6.12.95+deb12-rt-amd64\n\
            linux-image-6.12.95+deb12-amd64-dbg\n";
        assert_eq!(newest_kernel(names), Some("linux-image-6.12.90+deb12.1-amd64"));
        assert_eq!(newest_kernel("linux-image-6.12.95+deb12-cloud-amd64"), None);
        assert_eq!(newest_kernel(""), None);
    }
}
