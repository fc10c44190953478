//! Writes out what the kernel has cached of a disk, before the disk is ended.
//!
//! That takes a process of its own. It waits for requests that only this server answers, and the
//! wait cannot be interrupted: if this process were killed meanwhile, a thread of it that waits
//! would stay, and with it all that the process has open. The next server would get neither the
//! disk nor the cache device, so nobody would ever answer. Another process has none of it open.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The command of a program that serves ublk devices which calls [`write_out_disk`], with the path
/// of the disk behind it.
pub const WRITE_OUT: &str = "write-out";
/// The running program, also when there is another one at its path.
const PROGRAM: &str = "/proc/self/exe";
/// How long a disk may end no request at all before it is given up. Requests wait without a limit
/// while there is no room in the log and the origin is away.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// Fields of `/sys/block/*/stat` that count what was ended: reads, writes, discards, flushes.
const ENDED: [usize; 4] = [0, 4, 11, 15];

/// Writes out what the kernel has cached of a disk, and has the disk flushed. Waits as long as that
/// takes.
///
/// # Errors
/// If the disk cannot be opened, or answers with an error.
pub fn write_out_disk(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The same in a process of its own. The caller has the disk open all the time.
///
/// # Errors
/// Why it was not done, for people. The process may live on, and has the disk open then.
pub(super) fn write_out_apart(path: &Path) -> Result<(), String> {
    let mut command = Command::new(PROGRAM);
    // A group of its own: a signal of the terminal is not for it.
    command.arg(WRITE_OUT).arg(path).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let name = path.file_name().unwrap_or_default();
    let counters = Path::new("/sys/block").join(name).join("stat");
    let ended = || ended(&std::fs::read_to_string(&counters).unwrap_or_default());
    match command.spawn() {
        Ok(child) => wait(child, PATIENCE, ended),
        Err(error) => Err(format!("the page cache, and no process can write it: {error}")),
    }
}

/// Waits for the process, as long as what it waits for moves.
fn wait(
    mut child: Child,
    patience: Duration,
    ended: impl Fn() -> [u64; ENDED.len()],
) -> Result<(), String> {
    let (mut last, mut since) = (ended(), Instant::now());
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(format!("the page cache, which cannot be written: {status}"));
            }
            Err(error) => return Err(format!("the page cache, and its writer is lost: {error}")),
            Ok(None) => {}
        }
        thread::sleep(PAUSE);
        let now = ended();
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > patience {
            // It is not killed: it does not die before its request ends, and is over then.
            let seconds = patience.as_secs();
            return Err(format!("the page cache; no request of it has ended for {seconds} s"));
        }
    }
}

/// How much of each kind was ended, by the counters of a disk.
fn ended(counters: &str) -> [u64; ENDED.len()] {
    let fields: Vec<u64> =
        counters.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect();
    ENDED.map(|field| fields.get(field).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().expect("there is a shell")
    }

    #[test]
    fn the_wait_lasts_as_long_as_requests_end() {
        let patience = Duration::from_millis(100);
        let count = Cell::new(0);
        let moving = || {
            count.set(count.get() + 1);
            [0, count.get(), 0, 0]
        };
        assert_eq!(wait(shell("sleep 0.5"), patience, moving), Ok(()));
        let refused = wait(shell("sleep 0.5"), patience, || [7; 4]).unwrap_err();
        assert!(refused.contains("no request"), "{refused}");
        let failed = wait(shell("exit 1"), patience, moving).unwrap_err();
        assert!(failed.contains("cannot be written"), "{failed}");
    }

    #[test]
    fn requests_that_ended_are_counted_and_not_those_under_way() {
        let line = "  1 0 8 2   3 0 24 9   5 77 78   4 0 32 1   6 2\n";
        assert_eq!(ended(line), [1, 3, 4, 6]);
        // Of a kernel that does not count flushes, and of a disk that is gone.
        assert_eq!(ended("1 0 8 2 3 0 24 9 5 77 78"), [1, 3, 0, 0]);
        assert_eq!(ended(""), [0; 4]);
    }
}
