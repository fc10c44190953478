//! What is known of the files in a tree: the fingerprint of each one's content.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Of how many wrong files a failed comparison tells.
const REPORTED_MAX: usize = 20;

/// Length and hash of the content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint {
    length_bytes: u64,
    hash: u64,
}

impl Fingerprint {
    pub(crate) fn of(content: &[u8]) -> Fingerprint {
        // Without a key of its own: the same in every run.
        let mut hasher = DefaultHasher::new();
        hasher.write(content);
        Fingerprint { length_bytes: content.len() as u64, hash: hasher.finish() }
    }
}

/// Files by their path below the root of the tree. `None`: changed, and not synced since, so that
/// a crash may leave any content or no file at all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ledger(pub(crate) BTreeMap<PathBuf, Option<Fingerprint>>);

impl Ledger {
    /// Reads all files below `root`; of a symbolic link, its target.
    #[track_caller]
    pub(crate) fn read(root: &Path) -> Ledger {
        let mut ledger = Ledger::default();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let path = root.join(&folder);
            let failed = |error: io::Error| -> ! { panic!("{}: {error}", path.display()) };
            for entry in fs::read_dir(&path).unwrap_or_else(|error| failed(error)) {
                let entry = entry.unwrap_or_else(|error| failed(error));
                let name = folder.join(entry.file_name());
                if entry.file_type().unwrap_or_else(|error| failed(error)).is_dir() {
                    folders.push(name);
                } else {
                    let fingerprint = fingerprint(&root.join(&name))
                        .unwrap_or_else(|error| panic!("{}: {error}", name.display()));
                    ledger.0.insert(name, Some(fingerprint));
                }
            }
        }
        ledger
    }

    /// Files that are part of the work tree, not of git's own folder.
    pub(crate) fn work_tree(&self) -> Ledger {
        let files = self.0.iter().filter(|(path, _)| !path.starts_with(".git"));
        Ledger(files.map(|(path, known)| (path.clone(), *known)).collect())
    }

    /// How many files must have a certain content.
    pub(crate) fn known_count(&self) -> usize {
        self.0.values().flatten().count()
    }

    /// Compares the tree with what is known of it, and learns what the others have become.
    #[track_caller]
    pub(crate) fn compare(&mut self, root: &Path) {
        let mut wrong = Vec::new();
        self.0.retain(|path, known| match (fingerprint(&root.join(path)), &known) {
            (Ok(found), None) => {
                *known = Some(found);
                true
            }
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => false,
            (Ok(found), Some(expected)) if found == *expected => true,
            (found, expected) => {
                wrong.push(format!("{}: {found:?} instead of {expected:?}", path.display()));
                true
            }
        });
        let count = wrong.len();
        wrong.truncate(REPORTED_MAX);
        assert!(wrong.is_empty(), "{count} files are wrong:\n{}", wrong.join("\n"));
    }

    /// Checks that both are the same.
    #[track_caller]
    pub(crate) fn assert_equal(&self, other: &Ledger, what: &str) {
        let paths = self.0.keys().chain(other.0.keys());
        let differs = |path: &&PathBuf| self.0.get(*path) != other.0.get(*path);
        let mut different: Vec<_> = paths.filter(differs).collect();
        different.dedup();
        let count = different.len();
        different.truncate(REPORTED_MAX);
        assert!(different.is_empty(), "{what}: {count} files differ: {different:?}");
    }
}

fn fingerprint(path: &Path) -> io::Result<Fingerprint> {
    if path.symlink_metadata()?.is_symlink() {
        return Ok(Fingerprint::of(fs::read_link(path)?.as_os_str().as_bytes()));
    }
    Ok(Fingerprint::of(&fs::read(path)?))
}
