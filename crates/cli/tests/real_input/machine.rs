//! What the machine must have for these tests, and how a test says that it is skipped.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::source;

/// Where administrators keep programs, beside the search path.
const ADMINISTRATOR_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];
/// What every stack of volume, loop device and mount needs.
const STACK_PROGRAMS: [&str; 6] = ["nbdfuse", "nbdinfo", "fusermount3", "losetup", "mount", "cp"];

/// Whether `test` can run: root, the devices, the programs of the stack and `programs` are there.
pub(crate) fn can_mount(test: &str, programs: &[&str]) -> bool {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root");
    }
    for device in ["/dev/loop-control", "/dev/fuse"] {
        if File::options().read(true).write(true).open(device).is_err() {
            missing.push(device);
        }
    }
    let programs = STACK_PROGRAMS.iter().chain(programs);
    missing.extend(programs.copied().filter(|program| !has_program(program)));
    skip_if_missing(test, &missing)
}

/// As [`can_mount`], and there is a source tree to clone.
pub(crate) fn can_clone(test: &str, programs: &[&str]) -> bool {
    let mut all = vec!["git", "tar", "xz"];
    all.extend(programs);
    if !can_mount(test, &all) {
        return false;
    }
    let missing =
        if source::package().is_none() { vec!["package linux-source-6.1"] } else { vec![] };
    skip_if_missing(test, &missing)
}

/// The folders of programs; not every root's search path has those of administrators.
pub(crate) fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    folders.chain(ADMINISTRATOR_FOLDERS.iter().map(PathBuf::from)).collect()
}

/// A command of a foreign program.
pub(crate) fn program(name: &str) -> Command {
    let paths = folders().into_iter().map(|folder| folder.join(name));
    // One that is missing fails at its start, by name.
    Command::new(paths.into_iter().find(|path| path.is_file()).unwrap_or_else(|| name.into()))
}

fn has_program(name: &str) -> bool {
    folders().iter().any(|folder| folder.join(name).is_file())
}

/// Says what is missing, on the screen and in the skip log; true if nothing is.
fn skip_if_missing(test: &str, missing: &[&str]) -> bool {
    if missing.is_empty() {
        return true;
    }
    let line = format!("SKIPPED {test}: {}", missing.join(", "));
    println!("{line}");
    if let Some(log) = std::env::var_os("FOREBAY_SKIP_LOG") {
        let log = Path::new(&log);
        let mut log = File::options().create(true).append(true).open(log).expect("the skip log");
        // In one piece: other tests write to it at the same time.
        log.write_all(format!("{line}\n").as_bytes()).expect("the skip log");
    }
    false
}

/// Whether the tests run with their full counts.
pub(crate) fn is_long() -> bool {
    std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1")
}
