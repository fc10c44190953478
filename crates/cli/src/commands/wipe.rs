//! `forebay wipe`: makes a cache device plain again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_engine::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use forebay_host::state_file::{StateFile, set_id_text};
use forebay_host::{DeviceSpec, OpenedDevice, offline};

use crate::args::WipeArguments;
use crate::commands::format::absolute;
use crate::exit::Failure;
use crate::inspection::{CacheDevice, Locking, inspect};
use crate::{lock_holder, output};

/// Bytes written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Runs the command.
pub(crate) fn run(arguments: &WipeArguments) -> Result<(), Failure> {
    let path = absolute(&arguments.cache)?;
    if !arguments.force {
        let device = CacheDevice::open(&path, Locking::Required)?;
        let superblock = device.superblocks()?.chosen;
        refuse_unless_clean(&device, &superblock, &arguments.state.state_dir)?;
    }
    // Held to the end: nobody may begin to serve it now.
    let lock = lock_holder::open(|| OpenedDevice::open_cache(&DeviceSpec::plain(&path)))?;
    let superblock = offline::read_superblock(&path)?;
    zero(&path, &superblock).map_err(|error| {
        Failure::failed(format!("cannot wipe {}: {error}", path.display()))
            .or("run the command again")
    })?;
    StateFile::of_set(&arguments.state.state_dir, &superblock.set_id).remove()?;
    drop(lock);
    output::print(&format!(
        "{}: cache set {} is wiped\n",
        path.display(),
        set_id_text(&superblock.set_id)
    ))
}

/// Only what is proved clean is wiped: the state file must not speak against it, and nothing on the
/// device may be dirty or damaged.
fn refuse_unless_clean(
    device: &CacheDevice,
    superblock: &Superblock,
    state_directory: &Path,
) -> Result<(), Failure> {
    let names: Vec<&str> = superblock.slots().map(|(_, volume)| volume.name.as_str()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let refusal = |why: &str| {
        let (place, names) = (device.path().display(), names.join(", "));
        Failure::refused(format!("{place} may hold the only copy of data of {names}: {why}"))
            .or("serve it and detach the volumes first, or give --force to lose that data")
    };
    let state = StateFile::of_set(state_directory, &superblock.set_id).load()?;
    if state.is_some_and(|state| state.volumes.iter().any(|volume| volume.dirty_possible)) {
        return Err(refusal("the host state file says that dirty data may exist"));
    }
    let inspection = inspect(device, &mut |_, _| {})?;
    if inspection.findings.damage_count > 0 {
        return Err(refusal("it is damaged, so that nothing proves it clean"));
    }
    let counts = &inspection.counts;
    if counts.dirty_block_count + counts.new_dirty_block_count > 0 {
        return Err(refusal("it has dirty blocks"));
    }
    Ok(())
}

/// Checkpoints first: while a superblock stands, the device is still known as what it was.
fn zero(path: &Path, superblock: &Superblock) -> io::Result<()> {
    let geometry = &superblock.geometry;
    let file = OpenOptions::new().write(true).open(path)?;
    zero_range(&file, geometry.checkpoint_offset, geometry.segments_offset)?;
    file.sync_all()?;
    let region = SUPERBLOCK_BYTES as u64;
    zero_range(&file, geometry.copy_offset, geometry.copy_offset + region)?;
    zero_range(&file, 0, region)?;
    file.sync_all()
}

fn zero_range(file: &File, start: u64, end: u64) -> io::Result<()> {
    let zeroes = vec![0; CHUNK_BYTES];
    let mut offset = start;
    while offset < end {
        let length = usize::try_from(end - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.write_all_at(&zeroes[..length], offset)?;
        offset += length as u64;
    }
    Ok(())
}
