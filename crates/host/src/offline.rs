//! What is done to a cache device while no shard runs on it: format, read and write its superblock,
//! make the file for it.
//!
//! These functions block, and hold the device's lock for as long as their [`OpenedDevice`] lives. A
//! superblock goes to its two places with a flush between, so that one of them is whole at every
//! moment.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_engine::error::Corrupt;
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{
    Geometry, GeometryError, LABEL_BYTES_MAX, SUPERBLOCK_BYTES, Superblock,
};
use forebay_engine::units::BLOCK_BYTES;
use thiserror::Error;

use crate::aligned::AlignedBytes;
use crate::device::{OpenedDevice, Signatures};
use crate::device_spec::DeviceSpec;
use crate::probe::OpenError;

/// Bytes written at once to a new cache file: long enough to cost few calls, short enough to report
/// progress several times a second on a slow disk.
const FILL_BYTES: usize = 4 << 20;

/// Why a cache device cannot be read, formatted or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OfflineError {
    /// It cannot be opened or is not free.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is no cache device, or damaged.
    #[error("{} is no usable cache device: {source}", path.display())]
    Superblock {
        /// The device.
        path: PathBuf,
        /// What is wrong.
        source: Corrupt,
    },
    /// It cannot hold a cache.
    #[error("{} cannot be formatted: {source}", path.display())]
    Geometry {
        /// The device.
        path: PathBuf,
        /// Why.
        source: GeometryError,
    },
    /// The label is too long.
    #[error("a label of {bytes} bytes is too long; at most {LABEL_BYTES_MAX} fit")]
    Label {
        /// Its length.
        bytes: usize,
    },
    /// A transfer failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The device.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Reads the superblock of a cache device without locking it: it may be in service.
///
/// # Errors
/// If the device cannot be read or is no cache device.
pub fn read_superblock(path: &Path) -> Result<Superblock, OfflineError> {
    let file =
        File::open(path).map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    read_superblock_from(&file, path)
}

/// Reads the superblock through an open file. The copy lies where the first region says, or, if
/// that one is unreadable, at the end of the device.
pub(crate) fn read_superblock_from(file: &File, path: &Path) -> Result<Superblock, OfflineError> {
    let failed = |what, source| OfflineError::Io { path: path.to_owned(), what, source };
    let device_bytes = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))
        .map_err(|errno| failed("find the size of", errno.into()))?;
    let mut start = AlignedBytes::zeroed(SUPERBLOCK_BYTES);
    // A region that cannot be read is as good as a damaged one: its checksum will be wrong.
    let is_start_read = read_up_to(file, &mut start, 0);
    let first = Superblock::decode(forebay_engine::error::Place::Superblock, &start);
    let copy_offset = match &first {
        Ok(superblock) => superblock.geometry.copy_offset,
        Err(_) => {
            let whole = device_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
            whole.saturating_sub(SUPERBLOCK_BYTES as u64)
        }
    };
    let mut copy = AlignedBytes::zeroed(SUPERBLOCK_BYTES);
    let is_copy_read = read_up_to(file, &mut copy, copy_offset);
    Superblock::choose(&start, &copy).or_else(|source| {
        is_start_read.and(is_copy_read).map_err(|source| failed("read", source))?;
        Err(OfflineError::Superblock { path: path.to_owned(), source })
    })
}

/// Reads until the end of the file or the buffer.
fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => return Ok(()),
            Ok(length) => done += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes a superblock to its two places. When this returns, it survives a power cut.
///
/// # Errors
/// If a transfer or a flush fails; at least one place then is what it was, or the new one.
pub fn write_superblock(
    device: &OpenedDevice,
    superblock: &Superblock,
) -> Result<(), OfflineError> {
    let path = device.spec().path();
    let failed = |what, source| OfflineError::Io { path: path.to_owned(), what, source };
    let encoded = superblock.encode();
    let mut bytes = AlignedBytes::zeroed(encoded.len());
    bytes.copy_from_slice(&encoded);
    let flush = || device.file().sync_data().map_err(|source| failed("flush", source));
    // A place is written only when the other one is durable, or a power cut could tear both.
    flush()?;
    for offset in superblock.write_order() {
        device.file().write_all_at(&bytes, offset).map_err(|source| failed("write", source))?;
        flush()?;
    }
    Ok(())
}

/// What a format is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Free text.
    pub label: String,
    /// Segment size; chosen by the device's size if not given.
    pub segment_bytes: Option<u64>,
    /// Whether data of others may be overwritten.
    pub signatures: Signatures,
    /// Identity of the new set: random bytes.
    pub set_id: [u8; 16],
}

/// Makes an empty cache set of a device.
///
/// # Errors
/// If the device is not free, holds data of others, is too small, or fails.
pub fn format(spec: &DeviceSpec, options: &FormatOptions) -> Result<Superblock, OfflineError> {
    if options.label.len() > LABEL_BYTES_MAX {
        return Err(OfflineError::Label { bytes: options.label.len() });
    }
    let device = OpenedDevice::open_for_format(spec, options.signatures)?;
    let path = spec.path();
    let geometry = Geometry::new(device.facts().size_bytes, options.segment_bytes)
        .map_err(|source| OfflineError::Geometry { path: path.to_owned(), source })?;
    let superblock = Superblock::new(options.set_id, geometry, &options.label);
    write_first_checkpoint(&device, &superblock)?;
    // Last, so that a format that was cut short leaves nothing that looks like a finished one.
    write_superblock(&device, &superblock)?;
    Ok(superblock)
}

/// Writes the checkpoint of an empty log to area A, zeroes to area B, and flushes.
fn write_first_checkpoint(
    device: &OpenedDevice,
    superblock: &Superblock,
) -> Result<(), OfflineError> {
    let failed = |source| OfflineError::Io {
        path: device.spec().path().to_owned(),
        what: "write a checkpoint to",
        source,
    };
    let geometry = &superblock.geometry;
    // What an earlier set left in the areas carries another identity and is void; zeroes say so
    // more plainly to whoever looks at the device.
    let areas = geometry.checkpoint_offset..geometry.segments_offset;
    fill(device.file(), areas.start, areas.end, &mut |_| {}).map_err(failed)?;
    let encoded = Checkpoint::empty(geometry).encode(&superblock.set_id, geometry);
    let mut bytes = AlignedBytes::zeroed(encoded.len().next_multiple_of(BLOCK_BYTES));
    bytes[..encoded.len()].copy_from_slice(&encoded);
    device.file().write_all_at(&bytes, geometry.checkpoint_offset).map_err(failed)?;
    device.file().sync_data().map_err(failed)
}

/// How far a cache file has been written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FillProgress {
    /// Bytes written.
    pub done_bytes: u64,
    /// Bytes to write in all.
    pub total_bytes: u64,
}

/// Makes a new file for a cache and writes it in full, so that no later write can fail for lack of
/// space or wait for the file system to allocate. A file that exists is refused.
///
/// # Errors
/// If the file exists or cannot be written in full; what was written of it is removed.
pub fn create_cache_file(
    path: &Path,
    total_bytes: u64,
    progress: &mut dyn FnMut(FillProgress),
) -> Result<(), OfflineError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|source| OpenError::Open { path: path.to_owned(), source })?;
    let result = fill_new_file(&file, total_bytes, progress);
    result.map_err(|(what, source)| {
        // Half a cache file is of no use to anybody.
        let _ = std::fs::remove_file(path);
        OfflineError::Io { path: path.to_owned(), what, source }
    })
}

fn fill_new_file(
    file: &File,
    total_bytes: u64,
    progress: &mut dyn FnMut(FillProgress),
) -> Result<(), (&'static str, io::Error)> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    // One allocation for all keeps the file in few pieces, and a full disk shows at once.
    match fallocate(file, FallocateFlags::empty(), 0, total_bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(("allocate", errno.into())),
    }
    // Allocated is not written: the first write to an allocated block still costs a journal entry.
    fill(file, 0, total_bytes, &mut |done_bytes| {
        progress(FillProgress { done_bytes, total_bytes });
    })
    .map_err(|source| ("write", source))?;
    file.sync_all().map_err(|source| ("sync", source))
}

/// Writes zeroes to a range; its ends are multiples of 512.
fn fill(file: &File, start: u64, end: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let zeroes = AlignedBytes::zeroed(FILL_BYTES);
    let mut offset = start;
    while offset < end {
        let length = FILL_BYTES.min(usize::try_from(end - offset).unwrap_or(FILL_BYTES));
        file.write_all_at(&zeroes[..length], offset)?;
        offset += length as u64;
        progress(offset - start);
    }
    Ok(())
}
