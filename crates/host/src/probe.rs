//! What a device is, and whether it is free to be used.
//!
//! Facts come from the device itself, from sysfs and from a trial read; they are taken once, when
//! the device is opened. A device that somebody else uses is refused: the checks here look for
//! mounts, swap, loop devices and holders, and for signatures of other owners; the lock that keeps
//! a second process out is taken in [`crate::device`] on the descriptor that does the I/O.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};
use thiserror::Error;

use crate::signature::{FoundSignature, find_signature};

/// What is behind a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// A block device.
    BlockDevice,
    /// A regular file on a disk.
    File,
    /// A regular file in memory (tmpfs, ramfs).
    MemoryFile,
}

/// A device as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// What it is.
    pub kind: DeviceKind,
    /// Usable size: a multiple of 512.
    pub size_bytes: u64,
    /// Bytes behind the last whole sector, which cannot be used.
    pub odd_tail_bytes: u32,
    /// Smallest unit of direct I/O: 512 to 4096.
    pub logical_block_bytes: u32,
    /// Unit that the device writes without reading first.
    pub physical_block_bytes: u32,
    /// Preferred transfer size, zero if it states none.
    pub optimal_io_bytes: u32,
    /// Whether distance costs time.
    pub is_rotational: bool,
    /// Whether completed writes can be lost in a power cut. Always true for files.
    pub has_volatile_cache: bool,
    /// Whether discards reach something that profits.
    pub supports_discard: bool,
    /// Whether the kernel is known to take its operations without waiting for it. On other file
    /// systems handing one in may last as long as the device does not answer.
    pub is_taken_at_once: bool,
}

/// Why a device cannot be used. Each message names the device and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is a directory, a terminal, or the like.
    #[error("{} is neither a block device nor a regular file", path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
    },
    /// Another process has locked it.
    #[error(
        "{} is locked: another process uses it, or this one does under another name; stop that \
         process, or name another device",
        path.display()
    )]
    Locked {
        /// The device.
        path: PathBuf,
    },
    /// The kernel uses it.
    #[error("{} is in use ({user}); release it first", path.display())]
    InUse {
        /// The device.
        path: PathBuf,
        /// By what.
        user: DeviceUser,
    },
    /// It holds somebody's data.
    #[error(
        "{} holds a signature of {} at byte {}; \
         choose another device, wipe it with wipefs, or force the format",
        path.display(), found.owner, found.offset_bytes
    )]
    Signature {
        /// The device.
        path: PathBuf,
        /// What was found.
        found: FoundSignature,
    },
    /// It has no room for anything.
    #[error("{} is empty; give it a size first", path.display())]
    Empty {
        /// The device.
        path: PathBuf,
    },
    /// Its sectors are larger than our blocks.
    #[error(
        "{} has logical blocks of {logical_block_bytes} bytes; at most 4096 are supported",
        path.display()
    )]
    LogicalBlock {
        /// The device.
        path: PathBuf,
        /// As found.
        logical_block_bytes: u32,
    },
    /// A question to the kernel about it failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Probe {
        /// The device.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Who uses a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceUser {
    /// A mounted file system.
    Mount {
        /// Where.
        mount_point: String,
    },
    /// Swap space.
    Swap,
    /// Another block device: RAID, LVM, dm-crypt, ...
    Holder {
        /// Its name.
        name: String,
    },
    /// A loop device.
    Loop {
        /// Its name.
        name: String,
    },
    /// Something that the kernel does not name.
    Unknown,
}

impl std::fmt::Display for DeviceUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceUser::Mount { mount_point } => write!(f, "mounted at {mount_point}"),
            DeviceUser::Swap => write!(f, "as swap space"),
            DeviceUser::Holder { name } => write!(f, "by block device {name}"),
            DeviceUser::Loop { name } => write!(f, "by loop device {name}"),
            DeviceUser::Unknown => write!(f, "by the kernel or another process, exclusively"),
        }
    }
}

/// Identity of what is behind a path, whatever the path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Identity {
    /// Device number.
    BlockDevice(u64),
    /// File system and inode.
    File(u64, u64),
}

impl Identity {
    /// Of an open file or a path's metadata; `None` if it is neither block device nor regular file.
    pub(crate) fn of(metadata: &fs::Metadata) -> Option<Identity> {
        let kind = metadata.file_type();
        if kind.is_block_device() {
            Some(Identity::BlockDevice(metadata.rdev()))
        } else if kind.is_file() {
            Some(Identity::File(metadata.dev(), metadata.ino()))
        } else {
            None
        }
    }
}

/// Whether a device carries a known signature.
///
/// # Errors
/// [`OpenError::Signature`] if it does; others if it cannot be read.
pub fn check_signatures(path: &Path) -> Result<(), OpenError> {
    let file =
        File::open(path).map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    let size_bytes = size_of(&file, path)?;
    let found = find_signature(&file, size_bytes).map_err(|source| OpenError::Probe {
        path: path.to_owned(),
        what: "read",
        source,
    })?;
    match found {
        Some(found) => Err(OpenError::Signature { path: path.to_owned(), found }),
        None => Ok(()),
    }
}

/// For how long a loop device may hold a file. The kernel lets go of it a moment after `umount` has
/// come back.
const LOOP_PATIENCE: Duration = Duration::from_millis(500);

/// Whether anything that the kernel tells of uses a device: a mount, swap, a loop device, a holder.
///
/// # Errors
/// [`OpenError::InUse`] if so; others if the path is no device.
pub fn check_unused(path: &Path) -> Result<(), OpenError> {
    let metadata =
        fs::metadata(path).map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    let identity =
        Identity::of(&metadata).ok_or_else(|| OpenError::NotADevice { path: path.to_owned() })?;
    let begin = Instant::now();
    loop {
        match find_user(identity) {
            None => return Ok(()),
            Some(DeviceUser::Loop { .. }) if begin.elapsed() < LOOP_PATIENCE => {
                thread::sleep(LOOP_PATIENCE / 10);
            }
            Some(user) => return Err(OpenError::InUse { path: path.to_owned(), user }),
        }
    }
}

/// What uses this device or one of its partitions.
fn find_user(identity: Identity) -> Option<DeviceUser> {
    let numbers = match identity {
        Identity::BlockDevice(number) => with_partitions(number),
        Identity::File(..) => Vec::new(),
    };
    let is_same = |path: &str| {
        let found = fs::metadata(path).ok().and_then(|metadata| Identity::of(&metadata));
        found == Some(identity)
            || matches!(found, Some(Identity::BlockDevice(number)) if numbers.contains(&number))
    };
    // A /proc or /sys that cannot be read tells nothing; the exclusive open and the lock still
    // hold.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let names: Vec<String> = numbers.iter().map(|number| major_minor(*number)).collect();
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(2);
        let (Some(number), Some(_), Some(mount_point)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let source = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').nth(1));
        if names.iter().any(|name| name == number)
            || source.is_some_and(|source| source.starts_with('/') && is_same(source))
        {
            return Some(DeviceUser::Mount { mount_point: mount_point.to_owned() });
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(is_same) {
        return Some(DeviceUser::Swap);
    }
    for number in &numbers {
        if let Some(name) = entries(&sysfs(*number).join("holders")).into_iter().next() {
            return Some(DeviceUser::Holder { name });
        }
    }
    find_loop(is_same)
}

fn find_loop(is_same: impl Fn(&str) -> bool) -> Option<DeviceUser> {
    let loops = entries(Path::new("/sys/block")).into_iter().filter(|n| n.starts_with("loop"));
    for name in loops {
        let file = Path::new("/sys/block").join(&name).join("loop/backing_file");
        if fs::read_to_string(file).is_ok_and(|backing| is_same(backing.trim_end())) {
            return Some(DeviceUser::Loop { name });
        }
    }
    None
}

/// Names in a directory, sorted; none if it cannot be read.
fn entries(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// A disk and its partitions, or a partition alone.
pub(crate) fn with_partitions(number: u64) -> Vec<u64> {
    let directory = sysfs(number);
    let partitions = entries(&directory).into_iter().filter_map(|name| {
        let partition = directory.join(name);
        if !partition.join("partition").exists() {
            return None;
        }
        let text = fs::read_to_string(partition.join("dev")).ok()?;
        let (major, minor) = text.trim_end().split_once(':')?;
        Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
    });
    std::iter::once(number).chain(partitions).collect()
}

fn major_minor(number: u64) -> String {
    format!("{}:{}", libc::major(number), libc::minor(number))
}

fn sysfs(number: u64) -> PathBuf {
    Path::new("/sys/dev/block").join(major_minor(number))
}

/// An attribute of a disk's request queue; for a partition, of its disk's.
fn queue_attribute(number: u64, name: &str) -> Option<String> {
    let directory = sysfs(number);
    // The links in /sys/dev/block lead to the partition's directory inside its disk's.
    ["queue", "../queue"].iter().find_map(|queue| {
        let text = fs::read_to_string(directory.join(queue).join(name)).ok()?;
        Some(text.trim_end().to_owned())
    })
}

fn queue_number(number: u64, name: &str) -> Option<u64> {
    queue_attribute(number, name)?.parse().ok()
}

fn size_of(file: &File, path: &Path) -> Result<u64, OpenError> {
    let what = "find the size of";
    size_of_file(file).map_err(|source| OpenError::Probe { path: path.to_owned(), what, source })
}

/// Size in bytes, also of a block device, whose metadata says zero. May wait for a file server.
pub(crate) fn size_of_file(file: &File) -> io::Result<u64> {
    // Nothing here reads or writes at the file's own position.
    Ok(rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?)
}

/// The same as far as this kernel knows it: asks no file server, so it never waits.
pub(crate) fn known_size_of_file(file: &File, kind: DeviceKind) -> Option<u64> {
    match kind {
        DeviceKind::BlockDevice => size_of_file(file).ok(),
        DeviceKind::File | DeviceKind::MemoryFile => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let found = rustix::fs::statx(file, "", flags, StatxFlags::SIZE).ok()?;
            Some(found.stx_size)
        }
    }
}

/// Takes the facts of an open device. `file_block_bytes` is the unit in which direct I/O was found
/// to work, if it is a file.
pub(crate) fn take_facts(
    file: &File,
    path: &Path,
    file_block_bytes: u32,
) -> Result<DeviceFacts, OpenError> {
    let probe_error = |what, source| OpenError::Probe { path: path.to_owned(), what, source };
    let metadata = file.metadata().map_err(|source| probe_error("examine", source))?;
    let identity =
        Identity::of(&metadata).ok_or_else(|| OpenError::NotADevice { path: path.to_owned() })?;
    let bytes = size_of(file, path)?;
    let facts = match identity {
        Identity::BlockDevice(number) => block_device_facts(number, bytes),
        Identity::File(file_system, _) => {
            let stat = rustix::fs::fstatfs(file)
                .map_err(|errno| probe_error("examine the file system of", errno.into()))?;
            file_facts((file_system, stat.f_type), bytes, file_block_bytes)
        }
    };
    if facts.size_bytes == 0 {
        return Err(OpenError::Empty { path: path.to_owned() });
    }
    if facts.logical_block_bytes > 4096 {
        let logical_block_bytes = facts.logical_block_bytes;
        return Err(OpenError::LogicalBlock { path: path.to_owned(), logical_block_bytes });
    }
    Ok(facts)
}

fn block_device_facts(number: u64, bytes: u64) -> DeviceFacts {
    let attribute = |name| queue_number(number, name);
    let size = |name, default| {
        attribute(name).and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
    };
    let logical_block_bytes = size("logical_block_size", 512).max(512);
    DeviceFacts {
        kind: DeviceKind::BlockDevice,
        size_bytes: bytes / 512 * 512,
        odd_tail_bytes: (bytes % 512) as u32,
        logical_block_bytes,
        physical_block_bytes: size("physical_block_size", logical_block_bytes),
        optimal_io_bytes: size("optimal_io_size", 0),
        is_rotational: attribute("rotational") == Some(1),
        // Only a device that says so is trusted to keep what it has completed.
        has_volatile_cache: queue_attribute(number, "write_cache").as_deref()
            != Some("write through"),
        supports_discard: attribute("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        is_taken_at_once: true,
    }
}

/// The file system is named by its device number and the type that `statfs` tells.
fn file_facts(
    (file_system, file_system_type): (u64, impl Into<i64>),
    bytes: u64,
    block_bytes: u32,
) -> DeviceFacts {
    let file_system_type = file_system_type.into();
    let kind = match is_in_memory(file_system_type) {
        true => DeviceKind::MemoryFile,
        false => DeviceKind::File,
    };
    let is_on_disk = kind == DeviceKind::File;
    DeviceFacts {
        kind,
        size_bytes: bytes / 512 * 512,
        odd_tail_bytes: (bytes % 512) as u32,
        logical_block_bytes: block_bytes,
        physical_block_bytes: 4096,
        optimal_io_bytes: 0,
        is_rotational: is_on_disk && queue_number(file_system, "rotational") == Some(1),
        has_volatile_cache: true,
        supports_discard: true,
        is_taken_at_once: takes_at_once(file_system_type),
    }
}

/// Whether files of such a file system are read and written without waiting for the device where
/// the caller asks for that (`IOCB_NOWAIT`). FUSE is not among them: Linux 6.18 asks its server for
/// the size of a file first, and waits for the answer (`fuse_file_read_iter`, seen in the stack of
/// a thread that hung there).
fn takes_at_once(file_system_type: i64) -> bool {
    const XFS_MAGIC: i64 = 0x5846_5342;
    const F2FS_MAGIC: i64 = 0xf2f5_2010;
    let on_disk = [libc::EXT4_SUPER_MAGIC, XFS_MAGIC, libc::BTRFS_SUPER_MAGIC, F2FS_MAGIC];
    on_disk.contains(&file_system_type)
        || file_system_type == libc::OVERLAYFS_SUPER_MAGIC
        || is_in_memory(file_system_type)
}

fn is_in_memory(file_system_type: i64) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    file_system_type == libc::TMPFS_MAGIC || file_system_type == RAMFS_MAGIC
}

/// Looks at a device without locking or changing it.
///
/// # Errors
/// If it cannot be opened for reading or is no device.
pub fn probe(path: &Path) -> Result<DeviceFacts, OpenError> {
    let file =
        File::open(path).map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    take_facts(&file, path, 512)
}
