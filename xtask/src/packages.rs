//! Foreign programs that tests and bench talk to, and the distribution packages they come in.
//!
//! A program that is missing is no error here: the tests that need it are skipped by name, the
//! figures that need it are left out.

use std::fmt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;

use crate::{Outcome, process};

/// Whether to install what is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Install {
    /// As root on Debian and its kin; elsewhere the command is printed.
    IfPossible,
    /// Only print the command.
    Never,
}

/// What the programs are wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Tests,
    Bench,
    /// Guests with a kernel of their own; the tests have some, too.
    Guests,
}

/// What the bench measures with, and against.
const BENCH_PROGRAMS: [&str; 10] = [
    "fio",
    "nbdkit",
    "qemu-nbd",
    "mount",
    "nbdfuse",
    "losetup",
    "mkfs.ext4",
    "sqlite3",
    "pgbench",
    "dpkg-deb",
];
/// Of these, what no test uses.
const BENCH_ONLY_PROGRAMS: [&str; 3] = ["sqlite3", "pgbench", "dpkg-deb"];

/// What guests are made with, or run themselves.
const GUEST_PROGRAMS: [&str; 7] =
    ["fio", "mkfs.ext4", "mkfs.xfs", "xz", "depmod", "nm", "blktrace"];

impl Purpose {
    fn uses(self, probe: Probe) -> bool {
        match (self, probe) {
            (Purpose::Tests, Probe::Program(name)) => !BENCH_ONLY_PROGRAMS.contains(&name),
            (Purpose::Tests, _) => true,
            (Purpose::Bench, Probe::Program(name)) => BENCH_PROGRAMS.contains(&name),
            (Purpose::Guests, Probe::Program(name)) => GUEST_PROGRAMS.contains(&name),
            (Purpose::Bench | Purpose::Guests, _) => false,
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Tests => write!(f, "some tests"),
            Purpose::Bench => write!(f, "some figures"),
            Purpose::Guests => write!(f, "guests"),
        }
    }
}

/// What the tests use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// A program in the search path, or where administrators keep theirs.
    Program(&'static str),
    /// A module of Python 3.
    PythonModule(&'static str),
    /// An archive of the kernel's source, of any version.
    KernelSource,
}

struct Tool {
    probe: Probe,
    /// Packages that may hold it; the first that the distribution has is taken.
    packages: &'static [&'static str],
}

/// Everything that tests or bench use and that is not part of every Debian system.
const TOOLS: &[Tool] = &[
    Tool { probe: Probe::Program("fio"), packages: &["fio"] },
    Tool { probe: Probe::Program("nbdkit"), packages: &["nbdkit"] },
    Tool { probe: Probe::Program("nbdcopy"), packages: &["libnbd-bin"] },
    Tool { probe: Probe::Program("nbdinfo"), packages: &["libnbd-bin"] },
    // Some releases have it in a package of its own, some with the other tools of libnbd.
    Tool { probe: Probe::Program("nbdfuse"), packages: &["nbdfuse", "libnbd-bin"] },
    Tool { probe: Probe::Program("python3"), packages: &["python3"] },
    Tool { probe: Probe::PythonModule("nbd"), packages: &["python3-libnbd"] },
    Tool { probe: Probe::Program("qemu-img"), packages: &["qemu-utils"] },
    Tool { probe: Probe::Program("qemu-io"), packages: &["qemu-utils"] },
    Tool { probe: Probe::Program("qemu-nbd"), packages: &["qemu-utils"] },
    Tool { probe: Probe::Program("mkfs.ext4"), packages: &["e2fsprogs"] },
    Tool { probe: Probe::Program("mkfs.xfs"), packages: &["xfsprogs"] },
    Tool { probe: Probe::Program("mkfs.btrfs"), packages: &["btrfs-progs"] },
    Tool { probe: Probe::Program("mkfs.vfat"), packages: &["dosfstools"] },
    Tool { probe: Probe::Program("cryptsetup"), packages: &["cryptsetup-bin"] },
    Tool { probe: Probe::Program("sfdisk"), packages: &["fdisk"] },
    Tool { probe: Probe::Program("fusermount3"), packages: &["fuse3"] },
    Tool { probe: Probe::Program("mount"), packages: &["mount"] },
    Tool { probe: Probe::Program("losetup"), packages: &["mount"] },
    Tool { probe: Probe::Program("curl"), packages: &["curl"] },
    Tool { probe: Probe::Program("git"), packages: &["git"] },
    Tool { probe: Probe::Program("xz"), packages: &["xz-utils"] },
    // The modules of a guest's kernel are packed with it.
    Tool { probe: Probe::Program("depmod"), packages: &["kmod"] },
    // Where the functions of the C library are that a guest probes.
    Tool { probe: Probe::Program("nm"), packages: &["binutils"] },
    Tool { probe: Probe::Program("blktrace"), packages: &["blktrace"] },
    Tool { probe: Probe::Program("sqlite3"), packages: &["sqlite3"] },
    // With the server, which is not in the search path.
    Tool { probe: Probe::Program("pgbench"), packages: &["postgresql"] },
    Tool { probe: Probe::Program("dpkg-deb"), packages: &["dpkg"] },
    // The version of Debian 12; other releases have one of their own behind the plain name.
    Tool { probe: Probe::KernelSource, packages: &["linux-source-6.1", "linux-source"] },
];

/// Folders of programs that are not in every user's search path.
const ADMINISTRATOR_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::Program(name) => write!(f, "{name}"),
            Probe::PythonModule(name) => write!(f, "python3 module {name}"),
            Probe::KernelSource => write!(f, "kernel source"),
        }
    }
}

impl Probe {
    fn is_present(self) -> bool {
        match self {
            Probe::Program(name) => has_program(name),
            Probe::PythonModule(name) => {
                // Modules of packages are for the second, which others in the search path may hide.
                ["python3", "/usr/bin/python3"].into_iter().any(|python| {
                    is_success(Command::new(python).args(["-c", &format!("import {name}")]))
                })
            }
            Probe::KernelSource => has_kernel_source(Path::new("/usr/src")),
        }
    }
}

/// Whether a program is in the search path, or where administrators keep theirs.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    let folders = folders.chain(ADMINISTRATOR_FOLDERS.iter().map(Into::into));
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    folders.into_iter().any(|folder| is_program(&folder.join(name)))
}

/// Whether there is such an archive as the tests unpack.
fn has_kernel_source(folder: &Path) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz") && entry.path().is_file()
    })
}

/// Runs `command` without any output.
pub(crate) fn is_success(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Says what is lacking for `purpose`, and installs it if that is wanted and possible.
pub(crate) fn prepare(purpose: Purpose, install: Install) -> anyhow::Result<()> {
    let missing = missing_tools(purpose);
    if missing.is_empty() {
        return Ok(());
    }
    println!("missing for {purpose}: {}", list(&missing));
    if !is_debian_like() {
        println!(
            "install them with the tools of this distribution; Debian has them in the packages"
        );
        println!("{}", package_names(&missing, |_| true).join(" "));
        return Ok(());
    }
    let is_root = Path::new("/proc/self").metadata().is_ok_and(|data| data.uid() == 0);
    if install == Install::Never || !is_root {
        let packages = package_names(&missing, is_known_to_apt).join(" ");
        println!("as root: apt-get update && apt-get install -y {packages}");
        return Ok(());
    }
    install_packages(&missing)?;
    let missing = missing_tools(purpose);
    if !missing.is_empty() {
        println!("still missing, {purpose} are left out: {}", list(&missing));
    }
    Ok(())
}

fn missing_tools(purpose: Purpose) -> Vec<&'static Tool> {
    let is_missing = |tool: &&Tool| purpose.uses(tool.probe) && !tool.probe.is_present();
    TOOLS.iter().filter(is_missing).collect()
}

fn list(tools: &[&Tool]) -> String {
    tools.iter().map(|tool| tool.probe.to_string()).collect::<Vec<_>>().join(", ")
}

/// The packages that hold `tools`, each once, in the order of the tools.
fn package_names(tools: &[&Tool], is_known: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut names = Vec::new();
    for tool in tools {
        let known = tool.packages.iter().find(|package| is_known(package));
        let name = *known.unwrap_or(&tool.packages[0]);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn is_known_to_apt(package: &str) -> bool {
    is_success(Command::new("apt-cache").args(["show", package]))
}

/// A failure to install is not ours to judge: the tests that need the package are skipped.
fn install_packages(missing: &[&Tool]) -> anyhow::Result<()> {
    process::run(apt_get().arg("update")).context("apt-get update")?;
    let packages = package_names(missing, is_known_to_apt);
    println!("installing: {}", packages.join(" "));
    let mut command = install_command();
    if process::run(command.args(&packages))? == Outcome::Passed {
        return Ok(());
    }
    // One package that cannot be had must not keep the others away.
    for package in packages {
        process::run(install_command().arg(package))?;
    }
    Ok(())
}

fn install_command() -> Command {
    let mut command = apt_get();
    command.args(["install", "-y", "--no-install-recommends"]);
    command
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).arg("-qq");
    command
}

fn is_debian_like() -> bool {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    has_program("apt-get") && names_debian(&text)
}

/// Whether `ID` or `ID_LIKE` of the text of `/etc/os-release` name Debian or Ubuntu.
fn names_debian(text: &str) -> bool {
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")));
    let mut words = values.flat_map(|value| value.trim_matches('"').split_whitespace());
    words.any(|word| word == "debian" || word == "ubuntu")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_its_kin_are_recognized() {
        assert!(names_debian("NAME=x\nID=debian\n"));
        assert!(names_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(names_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!names_debian("ID=fedora\nVARIANT_ID=debian\n"));
    }

    #[test]
    fn a_package_is_named_once_and_the_first_known_one_is_taken() {
        let tools: Vec<&Tool> = TOOLS.iter().filter(|tool| tool.packages.len() > 1).collect();
        assert_eq!(package_names(&tools, |_| true), ["nbdfuse", "linux-source-6.1"]);
        let is_known = |name: &str| ["libnbd-bin", "linux-source"].contains(&name);
        assert_eq!(package_names(&tools, is_known), ["libnbd-bin", "linux-source"]);
        assert_eq!(package_names(&tools, |_| false), ["nbdfuse", "linux-source-6.1"]);
        let all: Vec<&Tool> = TOOLS.iter().collect();
        let mut names = package_names(&all, |_| true);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_kernel_source_is_an_archive_that_the_tests_can_unpack() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("linux-source-9.9.tar.bz2"), "").unwrap();
        assert!(!has_kernel_source(folder.path()));
        std::fs::write(folder.path().join("linux-source-9.9.tar.xz"), "").unwrap();
        assert!(has_kernel_source(folder.path()));
        assert!(!has_kernel_source(&folder.path().join("nowhere")));
    }

    #[test]
    fn every_program_of_the_bench_and_of_guests_has_a_package() {
        let count = |purpose: Purpose| TOOLS.iter().filter(|tool| purpose.uses(tool.probe)).count();
        assert_eq!(count(Purpose::Bench), BENCH_PROGRAMS.len());
        assert_eq!(count(Purpose::Guests), GUEST_PROGRAMS.len());
    }

    #[test]
    fn programs_are_found_in_the_search_path() {
        assert!(has_program("sh"));
        assert!(!has_program("no-such-program"));
    }
}
