//! Who holds the lock of a device: a process that lives, or one that has ended while the kernel
//! still carries out its transfers.
//!
//! The lock of a killed daemon goes with its last transfer, which may take seconds on a busy disk,
//! and so does its exclusive claim on a block device. That is no reason to refuse a device; a
//! daemon that lives is, and so is a claim of somebody who has no lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_host::probe::{DeviceUser, OpenError};
use forebay_host::processes::others_with;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::Failure;

/// How long transfers of an ended process are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the lock of a process that lives is waited for by who only looks: it may be about to
/// end.
const PATIENCE_WITH_LIVING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Whose the lock of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    /// It is free, as far as `/proc/locks` shows: outside the first process name space that leaves
    /// out the lock of a process that is gone.
    Nobody,
    /// One that has ended, or several.
    Ended,
    /// One that lives, or of which nothing is known.
    Living,
}

/// Looks who has the lock of a file. A device node is one as well: the lock of a block device is
/// that of the node that was opened.
fn holder_of(path: &Path) -> Holder {
    let (Ok(metadata), Ok(locks)) = (fs::metadata(path), fs::read_to_string("/proc/locks")) else {
        return Holder::Living;
    };
    let device = metadata.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let mut holder = Holder::Nobody;
    for line in locks.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if !fields.contains(&"FLOCK") || !fields.contains(&place.as_str()) {
            continue;
        }
        if !fields.get(4).is_some_and(|process| is_dead(process)) {
            return Holder::Living;
        }
        holder = Holder::Ended;
    }
    if is_handed_over(path) { Holder::Living } else { holder }
}

/// Whether every process that holds the lock of a file has ended, or there is none. A file that
/// cannot be looked at may have one that lives.
pub(crate) fn has_ended(path: &Path) -> bool {
    holder_of(path) != Holder::Living
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

/// Tries `open` again while a device in it is kept from us by a process that has ended, for a
/// minute at most. `errors` tells which devices could not be opened, and why.
pub(crate) fn outwait<T>(mut open: impl FnMut() -> T, errors: impl Fn(&T) -> Vec<&OpenError>) -> T {
    let deadline = Instant::now() + PATIENCE;
    let mut last: Option<PathBuf> = None;
    loop {
        let opened = open();
        let mut kept = errors(&opened).into_iter();
        let Some((path, holder)) = kept.find_map(|error| kept_by_ended(error, last.as_deref()))
        else {
            return opened;
        };
        if Instant::now() >= deadline {
            return opened;
        }
        tracing::info!(device = %path.display(), "waiting for transfers of an ended process");
        last = (holder == Holder::Ended).then(|| path.to_owned());
        // What was opened beside it must be free for the next attempt.
        drop(opened);
        std::thread::sleep(PAUSE);
    }
}

/// The device of an error, and who has its lock, if a process that has ended is what keeps it from
/// us. `last` is the device for which one was seen at the last look.
fn kept_by_ended<'a>(error: &'a OpenError, last: Option<&Path>) -> Option<(&'a Path, Holder)> {
    let (path, is_kept_by_nobody) = match error {
        // It has become free in the meantime.
        OpenError::Locked { path } => (path, true),
        // Nobody's lock means that the claim is not of a daemon, unless that has just ended: the
        // kernel gives back the lock first.
        OpenError::InUse { path, user: DeviceUser::Unknown } => {
            (path, last == Some(path.as_path()))
        }
        _ => return None,
    };
    let holder = holder_of(path);
    let is_kept = match holder {
        Holder::Ended => true,
        Holder::Nobody => is_kept_by_nobody,
        Holder::Living => false,
    };
    is_kept.then_some((path, holder))
}

/// A device for one of the offline commands.
pub(crate) fn open<T>(open: impl FnMut() -> Result<T, OpenError>) -> Result<T, Failure> {
    Ok(outwait(open, |result| result.as_ref().err().into_iter().collect())?)
}

/// Locks a device that is open for reading, so that nobody can serve it. `false` if somebody has it
/// in service.
pub(crate) fn try_lock_shared(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// The same, but waits for transfers of a process that has ended, as [`outwait`] does.
pub(crate) fn lock_shared(file: &File, path: &Path) -> io::Result<bool> {
    let began = Instant::now();
    while !try_lock_shared(file)? {
        let patience = if has_ended(path) { PATIENCE } else { PATIENCE_WITH_LIVING };
        if began.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_holder_is_told_from_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(has_ended(file.path()));
        flock(file.as_file(), FlockOperation::LockExclusive).unwrap();
        assert!(!has_ended(file.path()));
        assert!(!is_dead("self"));
        assert!(is_dead("4194305"), "above the largest process id");
    }

    #[test]
    fn who_looks_waits_for_the_lock_of_a_process_that_has_ended() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = file.reopen().unwrap();
        // The lock is of the file that both have open, and named after the process that took it.
        let mut take = std::process::Command::new("flock");
        let taken = take.args(["--exclusive", "0"]).stdin(held.try_clone().unwrap()).status();
        assert!(taken.unwrap().success());
        drop(take);
        assert_eq!(holder_of(file.path()), Holder::Ended);
        let seen = File::open(file.path()).unwrap();
        assert!(!try_lock_shared(&seen).unwrap());
        let end = std::thread::spawn(move || {
            std::thread::sleep(PAUSE * 5);
            drop(held);
        });
        assert!(lock_shared(&seen, file.path()).unwrap());
        end.join().unwrap();
    }

    #[test]
    fn an_exclusive_claim_without_a_lock_is_not_waited_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let locked = OpenError::Locked { path: path.clone() };
        let claimed = OpenError::InUse { path: path.clone(), user: DeviceUser::Unknown };
        let swap = OpenError::InUse { path: path.clone(), user: DeviceUser::Swap };
        let free = Some((path.as_path(), Holder::Nobody));
        assert_eq!(kept_by_ended(&claimed, None), None);
        assert_eq!(kept_by_ended(&claimed, Some(&path)), free, "its holder was just seen");
        assert_eq!(kept_by_ended(&swap, Some(&path)), None);
        assert_eq!(kept_by_ended(&locked, None), free);
        flock(file.as_file(), FlockOperation::LockExclusive).unwrap();
        assert_eq!(kept_by_ended(&claimed, Some(&path)), None);
        assert_eq!(kept_by_ended(&locked, None), None);
    }
}
