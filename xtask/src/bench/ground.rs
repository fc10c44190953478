//! Where the files lie: a RAM file system or a disk, in a temporary folder that goes away again.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::interrupt;

/// A RAM file system that everybody may use.
const SHARED_MEMORY: &str = "/dev/shm";
/// Bytes that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What the files lie on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Medium {
    Ram,
    Disk,
}

impl Medium {
    pub(super) const ALL: [Medium; 2] = [Medium::Ram, Medium::Disk];

    pub(super) fn title(self) -> &'static str {
        match self {
            Medium::Ram => "RAM file system",
            Medium::Disk => "disk",
        }
    }
}

/// A folder of our own on a medium.
pub(super) struct Ground {
    pub(super) medium: Medium,
    /// Comes before the folder, which it is mounted on.
    mount: Option<Mount>,
    folder: TempDir,
}

/// A mount of our own, which goes away with this.
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        // Whatever was served from it has ended; if not, it goes when that ends.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

impl Ground {
    /// A folder with room for `bytes`; `disk` is where the disk's folder is made.
    pub(super) fn prepare(medium: Medium, disk: &Path, bytes: u64) -> anyhow::Result<Ground> {
        let is_root = geteuid().is_root();
        let parent = match medium {
            Medium::Disk => disk.to_owned(),
            Medium::Ram if is_root => std::env::temp_dir(),
            Medium::Ram => SHARED_MEMORY.into(),
        };
        std::fs::create_dir_all(&parent)
            .with_context(|| format!("cannot make {}", parent.display()))?;
        let folder = tempfile::Builder::new()
            .prefix("forebay-bench-")
            .tempdir_in(&parent)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        let mut ground = Ground { medium, mount: None, folder };
        if medium == Medium::Ram && is_root {
            let size = format!("size={bytes},mode=0700");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &size, "forebay-bench"]).arg(ground.folder());
            interrupt::capture(&mut mount)?;
            ground.mount = Some(Mount(ground.folder().to_owned()));
        }
        ground.require(bytes)?;
        Ok(ground)
    }

    fn require(&self, bytes: u64) -> anyhow::Result<()> {
        let folder = self.folder();
        let facts = rustix::fs::statvfs(folder)
            .with_context(|| format!("cannot examine {}", folder.display()))?;
        let free = facts.f_bavail * facts.f_frsize;
        if free < bytes {
            bail!(
                "{} has {} MiB free and {} are needed; --dir chooses another folder for the disk",
                folder.display(),
                free >> 20,
                bytes >> 20
            );
        }
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// The kind of file system and its device.
    pub(super) fn file_system(&self) -> anyhow::Result<String> {
        let mut command = Command::new("df");
        command.arg("--output=fstype,source").arg(self.folder());
        let text = interrupt::capture(&mut command)?;
        let line = text.lines().nth(1).context("df prints a header and a line")?;
        Ok(line.split_whitespace().collect::<Vec<_>>().join(" on "))
    }

    /// The file of that name, written at its first use.
    pub(super) fn file(&self, name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if path.exists() { Ok(path) } else { self.write_file(name, bytes) }
    }

    /// A file that is written in full, so that writing it again changes no metadata that a journal
    /// would have to carry. No two of its blocks are equal.
    pub(super) fn write_file(&self, name: &str, bytes: u64) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        let context = || format!("cannot write {}", path.display());
        let mut file = File::create(&path).with_context(context)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut number = 0u64;
        for _ in 0..bytes / CHUNK_BYTES as u64 {
            interrupt::check()?;
            for word in chunk.chunks_exact_mut(size_of::<u64>()) {
                // Spreads the bits; an odd factor meets no value twice.
                number += 1;
                word.copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            }
            file.write_all(&chunk).with_context(context)?;
        }
        file.sync_all().with_context(context)?;
        Ok(path)
    }
}

/// Brings to the medium what is still in the page cache, so that it disturbs nobody later.
pub(super) fn settle(file: &Path) -> anyhow::Result<()> {
    let context = || format!("cannot write {} out", file.display());
    File::open(file).and_then(|file| file.sync_all()).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_away_with_its_files() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let ground = Ground::prepare(Medium::Disk, parent.path(), 1).expect("there is room");
        let path = ground.write_file("a", 2 * CHUNK_BYTES as u64).expect("written");
        let content = std::fs::read(&path).expect("read");
        assert_eq!(content.len(), 2 * CHUNK_BYTES);
        assert_ne!(content[..4096], content[4096..8192]);
        drop(ground);
        assert!(!path.exists());
    }

    #[test]
    fn too_little_room_is_an_error_that_names_the_remedy() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let error = Ground::prepare(Medium::Disk, parent.path(), u64::MAX).err().expect("no room");
        assert!(error.to_string().contains("--dir"), "{error}");
    }
}
