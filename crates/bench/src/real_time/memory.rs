//! Less memory for a program than the machine has, so that what it reads can be more than memory
//! holds: a control group, in which the page cache of its files counts.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::RealError;

/// Where control groups are, and the name that their limit has: of the second version, and of the
/// first.
const KINDS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
/// Who is in a group.
const PROCESSES: &str = "cgroup.procs";

/// A group whose processes share a limit. It goes away with this, once nobody is in it.
pub(super) struct MemoryLimit {
    folder: PathBuf,
}

impl MemoryLimit {
    /// Makes a group for `bytes`.
    pub(super) fn make(bytes: u64) -> Result<MemoryLimit, RealError> {
        let mut failed = None;
        for (root, limit) in KINDS {
            let folder = Path::new(root).join(format!("forebay-bench-{}", std::process::id()));
            match make(&folder, limit, bytes) {
                Ok(()) => return Ok(MemoryLimit { folder }),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.expect("there are two kinds"))
    }

    /// A command that joins the group and becomes the program.
    pub(super) fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(self.folder.join(PROCESSES)).args(words);
        command
    }
}

/// The file of the limit is there only if this kind of group counts memory.
fn make(folder: &Path, limit: &str, bytes: u64) -> Result<(), RealError> {
    std::fs::create_dir(folder).map_err(|error| RealError::file(folder, error))?;
    let path = folder.join(limit);
    let opened = OpenOptions::new().write(true).open(&path);
    let written = opened.and_then(|mut file| file.write_all(bytes.to_string().as_bytes()));
    written.map_err(|error| {
        let _ = std::fs::remove_dir(folder);
        RealError::file(&path, error)
    })
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}
