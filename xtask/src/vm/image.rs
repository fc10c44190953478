//! The first and only file system of a guest: an archive that the kernel unpacks into memory.
//!
//! It holds busybox, the modules, the programs under test and those that test them, each with the
//! libraries that `ldd` names, and the scripts of `xtask/vm`. All libraries lie in one folder that
//! the loader knows without a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::archive::Archive;
use super::supplies::Supplies;
use super::tools::Tools;

/// Programs of others. What is not downloaded is what tests outside of guests use, too.
const PROGRAMS: [&str; 10] = [
    // That of busybox writes no zeroes.
    "blkdiscard",
    "fio",
    "fsx",
    "mkfs.ext4",
    "e2fsck",
    "resize2fs",
    "mkfs.xfs",
    "xfs_repair",
    "nbd-client",
    "blktrace",
];
/// Where time goes by function; not every machine has it.
pub(crate) const PROFILER: &str = "perf";
/// Links to busybox that must be there before it makes all others.
const FIRST_LINKS: [(&str, &str); 2] = [("bin/sh", "busybox"), ("sbin/modprobe", "../bin/busybox")];
/// Folders beside those of files.
const FOLDERS: [&str; 9] = ["bin", "sbin", "dev", "etc", "mnt", "proc", "run", "sys", "tmp"];
/// Where the loader of Debian's programs looks for libraries.
const LIBRARY_FOLDER: &str = "lib/x86_64-linux-gnu";
/// Where scripts are.
const SCRIPT_FOLDER: &str = "vm";
/// The library whose functions give memory, and those that do.
const C_LIBRARY: &str = "libc.so.6";
const ALLOCATORS: [&str; 5] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"];

/// The first process of a guest.
const INIT: &str = include_str!("../../vm/init");
/// What it may be told to run.
const SCRIPTS: [(&str, &str); 17] = [
    ("boot.sh", include_str!("../../vm/boot.sh")),
    ("caches.sh", include_str!("../../vm/caches.sh")),
    ("commands", include_str!("../../vm/commands")),
    ("figures.sh", include_str!("../../vm/figures.sh")),
    ("fsx.sh", include_str!("../../vm/fsx.sh")),
    ("kernel-caches.toml", include_str!("../../../bench/plans/kernel-caches.toml")),
    ("lib.sh", include_str!("../../vm/lib.sh")),
    ("ledger.sh", include_str!("../../vm/ledger.sh")),
    ("nbd.sh", include_str!("../../vm/nbd.sh")),
    ("nbd-kill.sh", include_str!("../../vm/nbd-kill.sh")),
    ("pauses.sh", include_str!("../../vm/pauses.sh")),
    ("power-cut.sh", include_str!("../../vm/power-cut.sh")),
    ("record.sh", include_str!("../../vm/record.sh")),
    ("takeover.sh", include_str!("../../vm/takeover.sh")),
    ("ublk.sh", include_str!("../../vm/ublk.sh")),
    ("up.sh", include_str!("../../vm/up.sh")),
    ("vhost-user.sh", include_str!("../../vm/vhost-user.sh")),
];

/// Files of the project that an administrator works with, where they lie in its source.
const PROJECT: [(&str, &str); 3] = [
    ("README.md", include_str!("../../../README.md")),
    ("dist/systemd/forebay@.service", include_str!("../../../dist/systemd/forebay@.service")),
    ("dist/udev/60-forebay.rules", include_str!("../../../dist/udev/60-forebay.rules")),
];

/// What some guests have beside what all have.
#[derive(Clone, Copy)]
pub(crate) struct Extras<'a> {
    pub(crate) tools: Option<&'a Tools>,
    /// Whether they have perf, and names of functions in forebay.
    pub(crate) is_profiled: bool,
}

/// Writes the archive to `path`, with `forebay` as the program under test.
pub(crate) fn write(
    path: &Path,
    supplies: &Supplies,
    forebay: &Path,
    Extras { tools, is_profiled }: Extras<'_>,
) -> anyhow::Result<()> {
    let mut contents = BTreeMap::new();
    // With names for a profile, which are in the symbols.
    let what = if is_profiled { "--strip-debug" } else { "--strip-all" };
    let mut programs = vec![("forebay", stripped(forebay, what)?)];
    let mut add = |name: &'static str, program: &Path, places: &str| -> anyhow::Result<()> {
        programs.push((name, std::fs::read(program)?));
        for library in libraries(program, places)? {
            contents.insert(place_of(&library)?, std::fs::read(&library)?);
        }
        Ok(())
    };
    for name in PROGRAMS {
        add(name, &supplies.program(name)?, &supplies.library_path())?;
    }
    if let Some(tools) = tools {
        for (name, program) in tools.programs()? {
            add(name, &program, &tools.library_path())?;
        }
    }
    if is_profiled {
        add(PROFILER, &supplies.program(PROFILER)?, &supplies.library_path())?;
    }
    for library in libraries(forebay, "")? {
        let place = place_of(&library)?;
        if library.ends_with(C_LIBRARY) {
            let probes = allocators(&library, &place)?;
            contents.insert(format!("{SCRIPT_FOLDER}/allocators"), probes.into_bytes());
        }
        contents.insert(place, std::fs::read(&library)?);
    }
    contents.insert("bin/busybox".to_owned(), std::fs::read(supplies.program("busybox")?)?);
    for (name, content) in programs {
        contents.insert(format!("bin/{name}"), content);
    }
    contents.insert("init".to_owned(), INIT.into());
    for (name, text) in SCRIPTS {
        contents.insert(format!("{SCRIPT_FOLDER}/{name}"), text.into());
    }
    for (name, text) in PROJECT {
        contents.insert(format!("{SCRIPT_FOLDER}/project/{name}"), text.into());
    }
    let modules = format!("lib/modules/{}", supplies.kernel_version());
    add_tree(&mut contents, &supplies.modules(), &modules)?;
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    write_archive(BufWriter::new(file), &contents)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn write_archive(output: impl Write, contents: &BTreeMap<String, Vec<u8>>) -> std::io::Result<()> {
    let mut archive = Archive::new(output);
    for folder in folders(contents.keys().map(String::as_str)) {
        archive.folder(folder)?;
    }
    for (name, target) in FIRST_LINKS {
        archive.link(name, target)?;
    }
    for (name, content) in contents {
        archive.file(name, content)?;
    }
    archive.finish().map(drop)
}

/// All folders that must be there, outer ones first.
fn folders<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut folders = BTreeSet::from(FOLDERS);
    for mut name in names {
        while let Some((folder, _)) = name.rsplit_once('/') {
            folders.insert(folder);
            name = folder;
        }
    }
    folders
}

/// Where a library lies in the guest. The loader is named in every program by its full path.
fn place_of(library: &Path) -> anyhow::Result<String> {
    let name = library.file_name().and_then(|name| name.to_str()).context("a library's name")?;
    let folder = if library.starts_with("/lib64") { "lib64" } else { LIBRARY_FOLDER };
    Ok(format!("{folder}/{name}"))
}

/// Libraries of `program`, the loader included; `places` are folders to look in first.
fn libraries(program: &Path, places: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut command = Command::new("ldd");
    let output = command.arg(program).env("LD_LIBRARY_PATH", places).output();
    let output = output.context("cannot run ldd")?;
    ensure!(output.status.success(), "ldd cannot read {}", program.display());
    parse_libraries(&String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("libraries of {}", program.display()))
}

fn parse_libraries(text: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        ensure!(!line.contains("not found"), "{}", line.trim());
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        paths.extend(path.map(PathBuf::from));
    }
    Ok(paths)
}

/// The kernel's probes for what a program allocates, a line for each function of the C library that
/// gives memory; `place` is the library in the guest. Linkers lay out code so that offsets in the
/// file are addresses.
fn allocators(library: &Path, place: &str) -> anyhow::Result<String> {
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library).output();
    let output = output.context("cannot run nm")?;
    ensure!(output.status.success(), "nm cannot read {}", library.display());
    let probes = parse_allocators(&String::from_utf8_lossy(&output.stdout), place);
    ensure!(probes.lines().count() == ALLOCATORS.len(), "{} lacks a function", library.display());
    Ok(probes)
}

fn parse_allocators(text: &str, place: &str) -> String {
    let probe = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let (_, symbol) = rest.split_once(' ')?;
        let (name, _) = symbol.split_once("@@")?;
        let offset = address.trim_start_matches('0');
        ALLOCATORS.contains(&name).then(|| format!("p:allocators/{name} /{place}:0x{offset}\n"))
    };
    text.lines().filter_map(probe).collect()
}

/// A program without what only a debugger reads, which is four fifths of it, as an option of
/// `strip` says.
fn stripped(program: &Path, what: &str) -> anyhow::Result<Vec<u8>> {
    let target = tempfile::NamedTempFile::new().context("cannot make a file")?;
    let status = Command::new("strip").arg(what).arg("-o").arg(target.path()).arg(program).status();
    // Without binutils it is only larger.
    let source = if status.is_ok_and(|status| status.success()) { target.path() } else { program };
    std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))
}

/// Adds all files below `folder` as if it were at `place`.
fn add_tree(
    contents: &mut BTreeMap<String, Vec<u8>>,
    folder: &Path,
    place: &str,
) -> anyhow::Result<()> {
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a module's name")?;
        let place = format!("{place}/{name}");
        if path.is_dir() {
            add_tree(contents, &path, &place)?;
        } else {
            contents.insert(place, std::fs::read(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them() {
        let folders = folders(["lib/modules/6/x.ko", "init", "vm/lib.sh"].into_iter());
        let places: Vec<_> = folders.iter().copied().collect();
        let place = |name| places.iter().position(|place| *place == name).unwrap();
        assert!(
            place("lib") < place("lib/modules") && place("lib/modules") < place("lib/modules/6")
        );
        assert!(places.contains(&"vm") && places.contains(&"proc"));
        assert!(!places.contains(&"init"));
    }

    #[test]
    fn libraries_are_those_with_a_path_and_all_must_be_there() {
        let text = "\tlinux-vdso.so.1 (0x00007f0f33bc2000)\n\
            \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f0f33320000)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f0f33bc4000)\n";
        let paths = parse_libraries(text).unwrap();
        let places: Vec<_> = paths.iter().map(|path| place_of(path).unwrap()).collect();
        assert_eq!(places, ["lib/x86_64-linux-gnu/libm.so.6", "lib64/ld-linux-x86-64.so.2"]);
        let missing = parse_libraries("\tlibnl-3.so.200 => not found\n").unwrap_err();
        assert_eq!(missing.to_string(), "libnl-3.so.200 => not found");
        assert!(parse_libraries("\tstatically linked\n").unwrap().is_empty());
    }

    #[test]
    fn allocators_are_probed_where_they_begin() {
        let text = "0000000000098930 T malloc@@GLIBC_2.2.5\n\
            00000000000a0c10 T malloc_info@@GLIBC_2.10\n\
            0000000000098930 T malloc@GLIBC_2.0\n\
            00000000000996e0 W calloc@@GLIBC_2.2.5\n";
        let probes = parse_allocators(text, "lib/libc.so.6");
        let calloc = "p:allocators/calloc /lib/libc.so.6:0x996e0\n";
        assert_eq!(probes, format!("p:allocators/malloc /lib/libc.so.6:0x98930\n{calloc}"));
    }
}
