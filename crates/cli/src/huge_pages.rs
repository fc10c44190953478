//! Huge pages for the memory of the daemon.
//!
//! The index of a large cache is gigabytes in small pieces, and each hit goes to a few of them
//! anywhere: with pages of 4 KiB most of such steps also wait for the page tables. The C library
//! asks the kernel for transparent huge pages (`madvise`) if a tunable says so when the program
//! starts, and at no other time. So the daemon sets it and starts again, as the same process.
//!
//! An administrator's own word in `GLIBC_TUNABLES` holds, as does the kernel's in
//! `/sys/kernel/mm/transparent_hugepage/enabled`. Other C libraries do not know the tunable.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tunables of glibc, separated by colons.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// Whether malloc asks for huge pages; since glibc 2.35, earlier ones pass over it.
const TUNABLE: &str = "glibc.malloc.hugetlb";
/// The program that runs, also if its file has been replaced since.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What the environment is to say, unless it says something of it already.
fn tunables(present: Option<&str>) -> Option<String> {
    let wanted = format!("{TUNABLE}=1");
    match present {
        None | Some("") => Some(wanted),
        Some(present) if present.contains(TUNABLE) => None,
        Some(present) => Some(format!("{present}:{wanted}")),
    }
}

/// The file of this very program: by its path, which gives the process its name, unless another one
/// has taken its place since.
fn this_program() -> PathBuf {
    let path = std::env::current_exe().ok().filter(|path| is_this_program(path));
    path.unwrap_or_else(|| THIS_PROGRAM.into())
}

fn is_this_program(path: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path)?;
        Ok::<_, std::io::Error>((metadata.dev(), metadata.ino()))
    };
    match (identity(path), identity(Path::new(THIS_PROGRAM))) {
        (Ok(there), Ok(this)) => there == this,
        _ => false,
    }
}

/// Starts the program again with huge pages, with the same arguments, as the same process. Returns
/// where that is not to be, or cannot be: pages of 4 KiB serve as well, only more slowly.
pub(crate) fn start_again_with() {
    if !cfg!(target_env = "gnu") {
        return;
    }
    let present = std::env::var_os(TUNABLES).map(OsString::into_string).transpose();
    let Ok(present) = present else { return };
    let Some(tunables) = tunables(present.as_deref()) else { return };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(this_program());
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).env(TUNABLES, tunables).exec();
    tracing::debug!("served without huge pages: {error}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_runs_is_this_program() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("forebay"), folder.path().join("link"));
        assert!(!is_this_program(&path));
        std::fs::write(&path, "another build").unwrap();
        assert!(!is_this_program(&path));
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
        assert!(is_this_program(&link));
        assert_eq!(this_program(), std::env::current_exe().unwrap());
    }

    #[test]
    fn what_an_administrator_says_holds() {
        assert_eq!(tunables(None).as_deref(), Some("glibc.malloc.hugetlb=1"));
        assert_eq!(tunables(Some("")).as_deref(), Some("glibc.malloc.hugetlb=1"));
        let other = Some("glibc.malloc.check=3");
        assert_eq!(tunables(other).as_deref(), Some("glibc.malloc.check=3:glibc.malloc.hugetlb=1"));
        assert_eq!(tunables(Some("glibc.malloc.hugetlb=0")), None);
        assert_eq!(tunables(Some("glibc.malloc.hugetlb=1")), None);
    }
}
