//! Opening a device: checks, lock, facts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use forebay_device_model::Model;
use forebay_engine::options::{CacheFacts, OriginFacts};
use forebay_engine::units::SECTOR_BYTES;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::aligned::AlignedBytes;
use crate::device_spec::DeviceSpec;
use crate::probe::{
    DeviceFacts, DeviceKind, DeviceUser, Identity, OpenError, check_signatures, check_unused,
    known_size_of_file, take_facts,
};

/// How often a held lock is asked for, and the pause between: two seconds in all. Measured: the
/// kernel gives the lock of a process killed under load back after 35 to 45 ms, if no transfer
/// hangs.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What a device is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Holds the log. Its blocks must stay allocated.
    Cache,
    /// Holds a volume.
    Origin,
    /// Is served as it is.
    Bare,
    /// Is served as it is and never written.
    BareReadOnly,
}

/// A device that is open, checked and locked by this process.
#[derive(Debug)]
pub struct OpenedDevice {
    file: File,
    spec: DeviceSpec,
    facts: DeviceFacts,
    role: Role,
}

impl OpenedDevice {
    /// Opens an origin.
    ///
    /// # Errors
    /// If it is no device, in use, or locked.
    pub fn open_origin(spec: &DeviceSpec) -> Result<OpenedDevice, OpenError> {
        OpenedDevice::open(spec, Role::Origin)
    }

    /// Opens a cache device that was formatted before.
    ///
    /// # Errors
    /// If it is no device, in use, or locked.
    pub fn open_cache(spec: &DeviceSpec) -> Result<OpenedDevice, OpenError> {
        OpenedDevice::open(spec, Role::Cache)
    }

    /// Opens a device to serve as it is.
    ///
    /// # Errors
    /// If it is no device, in use, or locked.
    pub fn open_bare(spec: &DeviceSpec, access: Access) -> Result<OpenedDevice, OpenError> {
        let role = match access {
            Access::ReadWrite => Role::Bare,
            Access::ReadOnly => Role::BareReadOnly,
        };
        OpenedDevice::open(spec, role)
    }

    /// Opens a device to make a cache device of it. What carries a signature is refused, unless the
    /// operator insists; what is mounted or locked is refused in any case.
    ///
    /// # Errors
    /// If it is no device, in use, locked, or holds somebody's data.
    pub fn open_for_format(
        spec: &DeviceSpec,
        signatures: Signatures,
    ) -> Result<OpenedDevice, OpenError> {
        let device = OpenedDevice::open(spec, Role::Cache)?;
        // After the lock, so that nobody formats it between the check and our writes.
        if signatures == Signatures::Respect {
            check_signatures(spec.path())?;
        }
        Ok(device)
    }

    /// A device that another process has opened, checked and locked, and that it gives up later:
    /// the lock is one with the open file, so nobody comes between.
    ///
    /// # Errors
    /// If it is not what it should be.
    pub(crate) fn handed(
        file: File,
        spec: DeviceSpec,
        role: Role,
    ) -> Result<OpenedDevice, OpenError> {
        let block_bytes = direct_block_bytes(&file, spec.path())?;
        let facts = take_facts(&file, spec.path(), block_bytes)?;
        Ok(OpenedDevice { file, spec, facts, role })
    }

    fn open(spec: &DeviceSpec, role: Role) -> Result<OpenedDevice, OpenError> {
        let path = spec.path();
        check_unused(path)?;
        let file = open_direct(path, role)?;
        lock(&file, path, role)?;
        let block_bytes = direct_block_bytes(&file, path)?;
        let facts = take_facts(&file, path, block_bytes)?;
        if facts.odd_tail_bytes > 0 {
            tracing::warn!(
                device = %spec,
                bytes = facts.odd_tail_bytes,
                "the bytes behind the last whole sector of 512 are not served"
            );
        }
        Ok(OpenedDevice { file, spec: spec.clone(), facts, role })
    }

    /// How the operator named it.
    #[must_use]
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Its size now, if that can be told without waiting: up to the last whole sector.
    pub(crate) fn known_size_bytes(&self) -> Option<u64> {
        let bytes = known_size_of_file(&self.file, self.facts.kind)?;
        let sector = SECTOR_BYTES as u64;
        Some(bytes / sector * sector)
    }

    /// The file that does the I/O.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// What the engine is told about a cache device.
    #[must_use]
    pub fn cache_facts(&self) -> CacheFacts {
        CacheFacts {
            size_bytes: self.facts.size_bytes,
            has_volatile_cache: self.facts.has_volatile_cache,
            // A hole in a cache file would have to be allocated again by a later write, which fails
            // if others have filled the file system in the meantime.
            supports_discard: self.facts.supports_discard
                && self.facts.kind == DeviceKind::BlockDevice,
        }
    }

    /// What the engine is told about an origin.
    #[must_use]
    pub fn origin_facts(&self) -> OriginFacts {
        // A fixed rate and a round trip make each transfer cost the same whatever its length, so
        // they profit from long transfers as a disk with heads does.
        let is_rotational = match self.spec.model() {
            Some(Model::HardDisk(_) | Model::FixedRate(_) | Model::Remote(_)) => true,
            Some(Model::Ssd(_)) => false,
            None => self.facts.is_rotational,
        };
        OriginFacts {
            optimal_io_bytes: self.facts.optimal_io_bytes,
            is_rotational,
            has_volatile_cache: self.facts.has_volatile_cache,
            supports_discard: self.facts.supports_discard,
        }
    }
}

impl AsFd for OpenedDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Whether clients may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// They may.
    ReadWrite,
    /// They may not.
    ReadOnly,
}

/// What a format does about data of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signatures {
    /// Refuse a device that carries a known signature.
    Respect,
    /// Overwrite it; the operator said so.
    Overwrite,
}

/// Opens with `O_DIRECT`, or without where the file system refuses it.
fn open_direct(path: &Path, role: Role) -> Result<File, OpenError> {
    let failed = |source: io::Error| match source.raw_os_error() {
        Some(libc::EBUSY) => OpenError::InUse { path: path.to_owned(), user: DeviceUser::Unknown },
        _ => OpenError::Open { path: path.to_owned(), source },
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let exclusive = match Identity::of(&metadata) {
        // On a block device O_EXCL keeps the kernel's own users out: mounts, RAID, LVM.
        Some(Identity::BlockDevice(_)) => libc::O_EXCL,
        Some(Identity::File(..)) => 0,
        None => return Err(OpenError::NotADevice { path: path.to_owned() }),
    };
    let open = |direct: i32| {
        let mut options = OpenOptions::new();
        options.read(true).write(role != Role::BareReadOnly).custom_flags(exclusive | direct);
        // For the same reason as a lock, an exclusive block device is asked for again; see `lock`.
        for _ in 1..LOCK_ATTEMPTS {
            match options.open(path) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                other => return other,
            }
        }
        options.open(path)
    };
    match open(libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::warn!(
                device = %path.display(),
                "the file system refuses direct I/O; data goes through the page cache, which costs \
                 memory and hides the device's speed"
            );
            open(0).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

/// Locks the file for as long as it is open.
///
/// A process that was killed holds its lock until the kernel has ended its transfers. That is what
/// the lock is for: we must not start while they can still land. So a held lock is asked for again
/// for a while, before somebody alive is assumed behind it.
fn lock(file: &File, path: &Path, role: Role) -> Result<(), OpenError> {
    let operation = match role {
        Role::BareReadOnly => FlockOperation::NonBlockingLockShared,
        Role::Cache | Role::Origin | Role::Bare => FlockOperation::NonBlockingLockExclusive,
    };
    for _ in 0..LOCK_ATTEMPTS {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(errno) => {
                let source = errno.into();
                return Err(OpenError::Probe { path: path.to_owned(), what: "lock", source });
            }
        }
    }
    Err(OpenError::Locked { path: path.to_owned() })
}

/// The unit in which direct I/O works on this file: found by trying, since file systems on disks
/// with 4 KiB sectors refuse less and older kernels have no call that tells.
fn direct_block_bytes(file: &File, path: &Path) -> Result<u32, OpenError> {
    let mut bytes = AlignedBytes::zeroed(4096);
    // The memory is aligned to the same 512 bytes that requests within a block have.
    match file.read_at(&mut bytes[512..1024], 0) {
        Ok(_) => return Ok(512),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(source) => {
            return Err(OpenError::Probe { path: path.to_owned(), what: "read", source });
        }
    }
    match file.read_at(&mut bytes, 0) {
        Ok(_) => Ok(4096),
        Err(source) => Err(OpenError::Probe { path: path.to_owned(), what: "read", source }),
    }
}
