//! The real input: a part of the kernel's source, as a git repository on the local disk.
//!
//! It is made once and kept in the folder that cargo has for the files of tests; making it takes
//! longer than any test. Its name tells the package it is from, so a newer package makes a new one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::machine::program;
use crate::process::{run, succeed};

/// Folders of the source tree that are taken: some ten thousand files.
const FOLDERS: [&str; 6] = ["arch/x86", "fs", "include", "kernel", "lib", "net"];

/// One test makes the repository, the others wait for it.
static MAKING: Mutex<()> = Mutex::new(());

/// The archive of the newest source package that is installed.
pub(crate) fn package() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/src").ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz") && path.is_file()
    };
    paths.filter(is_archive).max()
}

/// A git command that heeds no settings of this machine.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = program("git");
    command.arg("-C").arg(folder).args(["-c", "gc.auto=0", "-c", "core.autocrlf=false"]);
    command.args(["-c", "user.name=forebay", "-c", "user.email=forebay@localhost"]);
    command.args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// The repository, with all files checked out and committed.
#[track_caller]
pub(crate) fn repository() -> PathBuf {
    let _making = MAKING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let archive = package().expect("the test was skipped without it");
    let metadata = archive.metadata().expect("it is there");
    let name = archive.file_stem().and_then(|name| name.to_str()).expect("checked above");
    let tree = name.trim_end_matches(".tar");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let repository = home.join(format!("{tree}-{}-{}", metadata.size(), metadata.mtime()));
    if !repository.is_dir() {
        // Whoever sees the repository under its name sees all of it.
        let making = tempfile::tempdir_in(home).expect("a temporary directory");
        let made = make(&archive, tree, making.path());
        if let Err(error) = fs::rename(&made, &repository) {
            assert!(repository.is_dir(), "cannot make {}: {error}", repository.display());
        }
    }
    repository
}

#[track_caller]
fn make(archive: &Path, tree: &str, folder: &Path) -> PathBuf {
    let (archive, to) = (archive.to_str().expect("text"), folder.to_str().expect("text"));
    let folders = FOLDERS.map(|folder| format!("{tree}/{folder}"));
    let mut arguments = vec!["-x", "-f", archive, "-C", to];
    arguments.extend(folders.iter().map(String::as_str));
    run("tar", &arguments);
    let repository = folder.join(tree);
    succeed(&mut git(&repository, &["init", "--quiet"]));
    succeed(&mut git(&repository, &["add", "--force", "--all"]));
    succeed(&mut git(&repository, &["commit", "--quiet", "--message", "a part of the source"]));
    repository
}
