//! The write-heavy phase: threads that change, append to, rewrite and copy files, and sync most.
//!
//! Each writer has files of its own. Before it touches one, the ledger forgets its content; after a
//! sync the ledger knows the new one, which was made in memory and never read back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::ledger::{Fingerprint, Ledger};
use crate::process::{PATIENCE, poll};

/// Writers at a time.
const WRITER_COUNT: usize = 3;
/// Most bytes that one change writes into a file.
const CHANGE_BYTES_MAX: usize = 64 << 10;
/// One change in so many is not synced.
const UNSYNCED_ONE_IN: u64 = 4;
/// Files copied into one folder.
const FOLDER_COPIES: u64 = 100;

/// What the writers and the test tell each other.
#[derive(Default)]
struct Shared {
    synced_count: AtomicU64,
    /// The daemon may be gone: from now on errors end a writer and are no failures.
    may_fail: AtomicBool,
    /// It is gone; whoever has not noticed ends now.
    shall_end: AtomicBool,
}

/// Running writers.
pub(crate) struct Writers {
    shared: Arc<Shared>,
    results: Receiver<(Ledger, io::Result<()>)>,
    /// Files that no writer has.
    rest: Ledger,
}

/// Starts the writers on the tree at `root`.
pub(crate) fn start(root: &Path, ledger: Ledger, seed: u64) -> Writers {
    let shared = Arc::new(Shared::default());
    let mut rest = Ledger::default();
    let mut parts: Vec<Ledger> = (0..WRITER_COUNT).map(|_| Ledger::default()).collect();
    for (index, (path, known)) in ledger.0.into_iter().enumerate() {
        let is_file = root.join(&path).symlink_metadata().is_ok_and(|data| data.is_file());
        let part = if is_file && !path.starts_with(".git") {
            &mut parts[index % WRITER_COUNT]
        } else {
            &mut rest
        };
        part.0.insert(path, known);
    }
    let (sender, results) = mpsc::channel();
    for (index, ledger) in parts.into_iter().enumerate() {
        let (sender, shared) = (sender.clone(), Arc::clone(&shared));
        let folder = PathBuf::from(format!("copies-{seed}-{index}"));
        let files = ledger.0.keys().cloned().collect();
        let random = Random(seed * WRITER_COUNT as u64 + index as u64 + 1);
        let root = root.to_owned();
        let mut writer = Writer { root, folder, ledger, files, random, copy_count: 0, shared };
        // Not joined: a thread that waits for a device forever must not keep the test.
        thread::spawn(move || {
            let result = writer.write();
            let _ = sender.send((writer.ledger, result));
        });
    }
    Writers { shared, results, rest }
}

impl Writers {
    /// Waits until so many files were synced.
    #[track_caller]
    pub(crate) fn wait_for(&self, synced_count: u64) {
        let is_enough = || self.shared.synced_count.load(Ordering::Relaxed) >= synced_count;
        let enough = poll(|| is_enough().then_some(()));
        let synced = self.shared.synced_count.load(Ordering::Relaxed);
        assert!(enough.is_some(), "only {synced} files were synced in {PATIENCE:?}");
    }

    /// From now on errors are no failures. The writers go on until they meet one.
    pub(crate) fn expect_errors(&self) {
        self.shared.may_fail.store(true, Ordering::SeqCst);
    }

    /// Ends the writers; the daemon is gone. Returns what is known then.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Ledger {
        self.shared.shall_end.store(true, Ordering::SeqCst);
        for _ in 0..WRITER_COUNT {
            let (ledger, result) = self.results.recv_timeout(PATIENCE).expect("a writer ends");
            result.unwrap_or_else(|error| panic!("a writer failed before the kill: {error}"));
            self.rest.0.extend(ledger.0);
        }
        self.rest
    }
}

struct Writer {
    root: PathBuf,
    /// For copies.
    folder: PathBuf,
    ledger: Ledger,
    files: Vec<PathBuf>,
    random: Random,
    copy_count: u64,
    shared: Arc<Shared>,
}

/// What happens to a file.
enum Change {
    Overwrite,
    Append,
    Rewrite,
    Copy,
}

impl Writer {
    fn write(&mut self) -> io::Result<()> {
        while !self.shared.shall_end.load(Ordering::SeqCst) {
            if let Err(error) = self.change_one() {
                // Errors that come before the flag are none that the kill has caused.
                let may_fail = self.shared.may_fail.load(Ordering::SeqCst);
                return if may_fail { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    fn change_one(&mut self) -> io::Result<()> {
        let index = self.random.below(self.files.len() as u64) as usize;
        let path = self.files[index].clone();
        let mut content = fs::read(self.root.join(&path))?;
        if let Some(Some(known)) = self.ledger.0.get(&path)
            && *known != Fingerprint::of(&content)
        {
            return Err(io::Error::other(format!("{} has other content", path.display())));
        }
        let change = match self.random.below(4) {
            0 => Change::Overwrite,
            1 => Change::Append,
            2 => Change::Rewrite,
            _ => Change::Copy,
        };
        let path = match change {
            Change::Copy => self.new_path(&path)?,
            _ => path,
        };
        self.ledger.0.insert(path.clone(), None);
        let file = self.change(&path, &change, &mut content)?;
        if self.random.below(UNSYNCED_ONE_IN) > 0 {
            file.sync_all()?;
            if matches!(change, Change::Copy) {
                File::open(self.root.join(&self.folder))?.sync_all()?;
            }
            self.ledger.0.insert(path, Some(Fingerprint::of(&content)));
            self.shared.synced_count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn new_path(&mut self, of: &Path) -> io::Result<PathBuf> {
        if self.copy_count.is_multiple_of(FOLDER_COPIES) {
            self.folder.set_extension((self.copy_count / FOLDER_COPIES).to_string());
            fs::create_dir(self.root.join(&self.folder))?;
            File::open(&self.root)?.sync_all()?;
        }
        let name = of.file_name().and_then(|name| name.to_str()).unwrap_or("file");
        let path = self.folder.join(format!("{}-{name}", self.copy_count));
        self.copy_count += 1;
        self.files.push(path.clone());
        Ok(path)
    }

    /// Changes `content` and the file alike.
    fn change(&mut self, path: &Path, change: &Change, content: &mut Vec<u8>) -> io::Result<File> {
        let path = self.root.join(path);
        match change {
            Change::Copy => {
                let mut file = File::create_new(&path)?;
                file.write_all(content)?;
                Ok(file)
            }
            Change::Rewrite => {
                *content = self.random.bytes(CHANGE_BYTES_MAX);
                let mut file = File::create(&path)?;
                file.write_all(content)?;
                Ok(file)
            }
            Change::Append => {
                let added = self.random.bytes(CHANGE_BYTES_MAX);
                content.extend_from_slice(&added);
                let mut file = File::options().append(true).open(&path)?;
                file.write_all(&added)?;
                Ok(file)
            }
            Change::Overwrite => {
                let start = self.random.below(content.len() as u64 + 1) as usize;
                let length_max = (content.len() - start).min(CHANGE_BYTES_MAX);
                let bytes = self.random.bytes(length_max);
                content[start..start + bytes.len()].copy_from_slice(&bytes);
                let file = File::options().write(true).open(&path)?;
                file.write_all_at(&bytes, start as u64)?;
                Ok(file)
            }
        }
    }
}

/// Numbers that are the same in every run (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        assert!(self.0 != 0, "zero stays zero");
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Some bytes, at most `length_max`.
    fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        let length = self.below(length_max as u64 + 1) as usize;
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}
