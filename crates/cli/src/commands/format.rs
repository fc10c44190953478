//! `forebay format`: makes a cache device.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::Superblock;
use forebay_host::offline::{self, FormatOptions};
use forebay_host::state_file::set_id_text;
use forebay_host::{DeviceSpec, Signatures};

use crate::args::FormatArguments;
use crate::exit::Failure;
use crate::progress::{Progress, Unit};
use crate::{output, size};

/// Runs the command.
pub(crate) fn run(arguments: &FormatArguments) -> Result<(), Failure> {
    let path = absolute(&arguments.cache)?;
    let options = FormatOptions {
        label: arguments.label.clone(),
        segment_bytes: arguments.segment_size,
        signatures: if arguments.force { Signatures::Overwrite } else { Signatures::Respect },
        set_id: random_set_id()?,
    };
    let exists = path.symlink_metadata().is_ok();
    let created = match arguments.size {
        Some(bytes) if !exists => create(&path, bytes).map(|()| true)?,
        Some(bytes) => refuse_other_size(&path, bytes).map(|()| false)?,
        None => false,
    };
    if exists && !arguments.force {
        refuse_set_with_volumes(&path)?;
    }
    let superblock = match format_device(&path, &options) {
        Ok(superblock) => superblock,
        Err(failure) => {
            if created {
                // Nobody has seen the file yet, and it is of no use.
                let _ = std::fs::remove_file(&path);
            }
            return Err(failure);
        }
    };
    let geometry = &superblock.geometry;
    output::print(&format!(
        "{}: cache set {} with {} segments of {}\n",
        path.display(),
        set_id_text(&superblock.set_id),
        geometry.segment_count,
        size::text(geometry.segment_bytes)
    ))
}

/// Formats a device that is there.
pub(crate) fn format_device(path: &Path, options: &FormatOptions) -> Result<Superblock, Failure> {
    let superblock = offline::format(&DeviceSpec::plain(path), options)?;
    write_empty_checkpoints(path, &superblock).map_err(|error| {
        Failure::failed(format!("cannot write the checkpoints of {}: {error}", path.display()))
    })?;
    Ok(superblock)
}

/// Both areas say that the log is empty, so that whichever is overwritten first, the other one is
/// whole. Records of an earlier set carry another random identity and are never taken for new ones.
fn write_empty_checkpoints(path: &Path, superblock: &Superblock) -> io::Result<()> {
    let geometry = &superblock.geometry;
    let bytes = Checkpoint::empty(geometry).encode(&superblock.set_id, geometry);
    let file = OpenOptions::new().write(true).open(path)?;
    for area in 0..2 {
        let offset = geometry.checkpoint_offset + area * geometry.checkpoint_bytes;
        file.write_all_at(&bytes, offset)?;
    }
    file.sync_all()
}

/// A new file, written in full so that no later write can fail for lack of space.
pub(crate) fn create(path: &Path, bytes: u64) -> Result<(), Failure> {
    let mut progress = Progress::start(&format!("writing {}", path.display()), Unit::Bytes, bytes);
    let result = offline::create_cache_file(path, bytes, &mut |fill| progress.set(fill.done_bytes));
    progress.finish();
    Ok(result?)
}

fn refuse_other_size(path: &Path, bytes: u64) -> Result<(), Failure> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Failure::failed(format!("cannot examine {}: {error}", path.display())))?;
    if metadata.is_file() && metadata.len() == bytes {
        return Ok(());
    }
    Err(Failure::usage(format!("{} exists, and --size is for a new file", path.display()))
        .or("leave --size out to use it as it is, or remove it first"))
}

/// A set with volumes is somebody's, however stale its superblock looks.
fn refuse_set_with_volumes(path: &Path) -> Result<(), Failure> {
    let Ok(superblock) = offline::read_superblock(path) else { return Ok(()) };
    let names: Vec<&str> = superblock.slots().map(|(_, volume)| volume.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let place = path.display();
    Err(Failure::refused(format!("{place} is a cache device of volumes {}", names.join(", ")))
        .or("detach them first, or give --force to lose what only the cache device has"))
}

/// A random identity.
pub(crate) fn random_set_id() -> Result<[u8; 16], Failure> {
    let mut id = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut id))
        .map_err(|error| Failure::failed(format!("cannot read /dev/urandom: {error}")))?;
    Ok(id)
}

/// A path that means the same from every working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::usage(format!("`{}` is no usable path: {error}", path.display())))
}
