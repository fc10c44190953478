//! Who holds the lock of a device: a process that lives, or one that has ended while the kernel
//! still carries out its transfers.
//!
//! The lock of a killed daemon goes with its last transfer, which may take seconds on a busy disk.
//! That is no reason to refuse a device; a daemon that lives is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_host::probe::OpenError;
use forebay_host::processes::others_with;

use crate::exit::Failure;

/// How long transfers of an ended process are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// Whether every process that holds the lock of a file has ended, or there is none. A file that
/// cannot be looked at may have one that lives.
pub(crate) fn has_ended(path: &Path) -> bool {
    let (Ok(metadata), Ok(locks)) = (fs::metadata(path), fs::read_to_string("/proc/locks")) else {
        return false;
    };
    let device = metadata.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    locks.lines().all(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_of_path = fields.contains(&"FLOCK") && fields.contains(&place.as_str());
        !is_of_path || fields.get(4).is_some_and(|process| is_dead(process))
    }) && !is_handed_over(path)
}

/// Whether another process has the lock than the one that took it, and that `/proc/locks` names: a
/// lock goes along when an open file is handed over.
fn is_handed_over(path: &Path) -> bool {
    let Ok(path) = fs::canonicalize(path) else { return false };
    let has_lock = |link: &Path, target: &Path| {
        let place = link.parent().and_then(Path::parent).zip(link.file_name());
        let facts = place.map(|(process, number)| process.join("fdinfo").join(number));
        let facts = facts.filter(|_| target == path).and_then(|file| fs::read_to_string(file).ok());
        facts.is_some_and(|facts| facts.lines().any(|line| line.contains("FLOCK")))
    };
    others_with(has_lock).next().is_some()
}

/// A process that is gone, or that its parent has not taken notice of yet.
pub(crate) fn is_dead(process: &str) -> bool {
    // Number 0 is a process of another name space, of which nothing is known.
    if process == "0" {
        return false;
    }
    matches!(state_of(process), None | Some('Z' | 'X'))
}

/// A process that a signal or a debugger has stopped.
pub(crate) fn is_stopped(process: &str) -> bool {
    matches!(state_of(process), Some('T' | 't'))
}

/// What the kernel says a process does; see proc_pid_stat(5). `None` if there is none.
fn state_of(process: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Tries `open` again while it fails for a lock of a process that has ended. `locked` finds the
/// path in the result.
pub(crate) fn outwait<T>(mut open: impl FnMut() -> T, locked: impl Fn(&T) -> Option<&Path>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let opened = open();
        let Some(path) = locked(&opened) else { return opened };
        if Instant::now() >= deadline || !has_ended(path) {
            return opened;
        }
        tracing::info!(device = %path.display(), "waiting for transfers of an ended process");
        // What was opened beside it must be free for the next attempt.
        drop(opened);
        std::thread::sleep(PAUSE);
    }
}

/// The path of an error that says that it is locked.
pub(crate) fn locked_path(error: &OpenError) -> Option<&Path> {
    match error {
        OpenError::Locked { path } => Some(path),
        _ => None,
    }
}

/// A device for one of the offline commands.
pub(crate) fn open<T>(open: impl FnMut() -> Result<T, OpenError>) -> Result<T, Failure> {
    Ok(outwait(open, |result| result.as_ref().err().and_then(locked_path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_holder_is_told_from_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(has_ended(file.path()));
        rustix::fs::flock(file.as_file(), rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(!has_ended(file.path()));
        assert!(!is_dead("self"));
        assert!(is_dead("4194305"), "above the largest process id");
    }
}
