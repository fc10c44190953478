//! Looking at a cache device without a daemon and without writing to it.
//!
//! A device is opened for reading and locked shared, so that it cannot be served at the same time;
//! or, for a look that need not be consistent, without the lock. Superblocks and checkpoints are
//! read here, segments in [`segments`]. What is checked is what recovery relies on, by the same
//! decoders.

mod finding;
#[cfg(test)]
mod fuzz;
mod segments;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_engine::error::{Corrupt, Place};
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{Geometry, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::units::{BLOCK_BYTES, VolumeId};

use crate::exit::{Exit, Failure};
use crate::lock_holder;
pub(crate) use finding::{Finding, Findings, Severity};
pub(crate) use segments::{DirtyExtent, SegmentCheck, SegmentCounts};

/// Whether the device must not be in service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Locking {
    /// A device that is locked by somebody is refused.
    Required,
    /// It is looked at all the same.
    IfPossible,
}

/// A cache device that is open for reading.
#[derive(Debug)]
pub(crate) struct CacheDevice {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    /// Whether somebody else has it locked.
    pub(crate) is_in_service: bool,
}

/// The two superblocks of a device, and the one that counts.
pub(crate) struct Superblocks {
    pub(crate) chosen: Superblock,
    pub(crate) start: Result<Superblock, Corrupt>,
    pub(crate) copy: Result<Superblock, Corrupt>,
}

/// The two checkpoints of a device.
pub(crate) struct Checkpoints {
    pub(crate) areas: [Result<Checkpoint, Corrupt>; 2],
}

impl Checkpoints {
    /// Area of the valid one with the higher id.
    pub(crate) fn newest_area(&self) -> Option<usize> {
        match &self.areas {
            [Ok(a), Ok(b)] => Some(usize::from(b.id >= a.id)),
            [Ok(_), Err(_)] => Some(0),
            [Err(_), Ok(_)] => Some(1),
            [Err(_), Err(_)] => None,
        }
    }

    /// The valid one with the higher id.
    pub(crate) fn newest(&self) -> Option<&Checkpoint> {
        self.newest_area().and_then(|area| self.areas[area].as_ref().ok())
    }
}

impl CacheDevice {
    /// Opens a device for reading.
    pub(crate) fn open(path: &Path, locking: Locking) -> Result<CacheDevice, Failure> {
        let facts = forebay_host::probe::probe(path)?;
        let failed = |what: &str, error: std::io::Error| {
            Failure::failed(format!("cannot {what} {}: {error}", path.display()))
        };
        let file = File::open(path).map_err(|error| failed("open", error))?;
        let is_locked = match locking {
            Locking::Required => lock_holder::lock_shared(&file, path),
            Locking::IfPossible => lock_holder::try_lock_shared(&file),
        };
        let is_in_service = !is_locked.map_err(|error| failed("lock", error))?;
        if is_in_service && locking == Locking::Required {
            return Err(Failure::refused(format!("{} is in service", path.display()))
                .or("stop its daemon first: `forebay stop`"));
        }
        let size_bytes = facts.size_bytes;
        Ok(CacheDevice { file, path: path.to_owned(), size_bytes, is_in_service })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a range that lies within the device.
    pub(crate) fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, Failure> {
        let length = usize::try_from(length).expect("regions fit in memory");
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| {
            let place = self.path.display();
            Failure::failed(format!("cannot read {place} at byte {offset}: {error}"))
        })?;
        Ok(bytes)
    }

    fn read_superblock(&self, place: Place, offset: u64) -> Result<Superblock, Corrupt> {
        let missing =
            Corrupt { place, field: "length", expected: SUPERBLOCK_BYTES as u64, found: 0 };
        if offset + SUPERBLOCK_BYTES as u64 > self.size_bytes {
            return Err(missing);
        }
        let bytes = self.read(offset, SUPERBLOCK_BYTES as u64).map_err(|_| missing)?;
        Superblock::decode(place, &bytes)
    }

    /// Reads both superblocks. The copy lies where the first one says, else at the end of the
    /// device.
    pub(crate) fn superblocks(&self) -> Result<Superblocks, Failure> {
        let start = self.read_superblock(Place::Superblock, 0);
        let copy_offset = match &start {
            Ok(superblock) => superblock.geometry.copy_offset,
            Err(_) => {
                let whole = self.size_bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
                whole.saturating_sub(SUPERBLOCK_BYTES as u64)
            }
        };
        let copy = self.read_superblock(Place::SuperblockCopy, copy_offset);
        let chosen = match (&start, &copy) {
            (Ok(a), Ok(b)) if a.set_id == b.set_id && b.serial > a.serial => b.clone(),
            (Ok(a), _) => a.clone(),
            (Err(_), Ok(b)) => b.clone(),
            (Err(error), Err(_)) => {
                let place = self.path.display();
                let message = format!("{place} is no usable cache device: {error}");
                return Err(Failure::new(Exit::Damaged, message).or(
                    "name another device, or make a cache device of it with `forebay format`",
                ));
            }
        };
        let (found, recorded) = (self.size_bytes, chosen.geometry.device_bytes);
        if found < recorded {
            let place = self.path.display();
            let message =
                format!("{place} has {found} bytes, but was formatted with {recorded} bytes");
            return Err(Failure::new(Exit::Damaged, message)
                .or("it is truncated or another device; restore it to its former size"));
        }
        Ok(Superblocks { chosen, start, copy })
    }

    /// Reads both checkpoints.
    pub(crate) fn checkpoints(&self, superblock: &Superblock) -> Result<Checkpoints, Failure> {
        let geometry = &superblock.geometry;
        let read = |area: u8| -> Result<Result<Checkpoint, Corrupt>, Failure> {
            let offset = geometry.checkpoint_offset + u64::from(area) * geometry.checkpoint_bytes;
            let bytes = self.read(offset, geometry.checkpoint_bytes)?;
            Ok(Checkpoint::decode(&superblock.set_id, geometry, area, &bytes))
        };
        Ok(Checkpoints { areas: [read(0)?, read(1)?] })
    }
}

/// Byte offset of a block of a segment.
pub(crate) fn block_offset(geometry: &Geometry, segment: u32, block: u32) -> u64 {
    let segment = geometry.segments_offset + u64::from(segment) * geometry.segment_bytes;
    segment + u64::from(block) * BLOCK_BYTES as u64
}

/// A whole inspection.
pub(crate) struct Inspection {
    pub(crate) superblocks: Superblocks,
    pub(crate) findings: Findings,
    pub(crate) counts: SegmentCounts,
    dirty: Vec<DirtyExtent>,
}

impl Inspection {
    /// Bytes of a volume that its origin may not have; what was written twice counts once.
    pub(crate) fn dirty_bytes(&self, volume: VolumeId) -> u64 {
        let of_it = self.dirty.iter().filter(|extent| extent.volume == volume);
        let mut extents: Vec<(u64, u64)> =
            of_it.map(|extent| (extent.start, extent.start + extent.block_count)).collect();
        extents.sort_unstable();
        let (mut blocks, mut through) = (0, 0);
        for (start, end) in extents {
            blocks += end.saturating_sub(start.max(through));
            through = through.max(end);
        }
        blocks * BLOCK_BYTES as u64
    }
}

/// Looks at everything that recovery relies on. `progress` is told how many segments are done.
pub(crate) fn inspect(
    device: &CacheDevice,
    progress: &mut dyn FnMut(u32, u32),
) -> Result<Inspection, Failure> {
    let superblocks = device.superblocks()?;
    let mut findings = Findings::default();
    note_superblocks(&superblocks, &mut findings);
    let superblock = &superblocks.chosen;
    let checkpoints = device.checkpoints(superblock)?;
    let newest = checkpoints.newest();
    for area in &checkpoints.areas {
        if let Err(corrupt) = area {
            let both = newest.is_none();
            findings.add_corrupt(if both { Severity::Damage } else { Severity::Note }, *corrupt);
        }
    }
    let (mut counts, mut dirty) = (SegmentCounts::default(), Vec::new());
    if let Some(checkpoint) = newest {
        let mut check = SegmentCheck::new(device, superblock, checkpoint, &mut findings);
        for segment in 0..superblock.geometry.segment_count {
            check.segment(segment)?;
            progress(segment + 1, superblock.geometry.segment_count);
        }
        (counts, dirty) = check.finish();
    }
    Ok(Inspection { superblocks, findings, counts, dirty })
}

fn note_superblocks(superblocks: &Superblocks, findings: &mut Findings) {
    for region in [&superblocks.start, &superblocks.copy] {
        if let Err(corrupt) = region {
            findings.add_corrupt(Severity::Damage, *corrupt);
        }
    }
    let (Ok(start), Ok(copy)) = (&superblocks.start, &superblocks.copy) else { return };
    if start.set_id != copy.set_id {
        findings.add(Finding {
            severity: Severity::Damage,
            place: Place::SuperblockCopy.to_string(),
            what: "set identity".to_owned(),
            expected: forebay_host::state_file::set_id_text(&start.set_id),
            found: forebay_host::state_file::set_id_text(&copy.set_id),
        });
    } else if start.serial != copy.serial {
        findings.add(Finding {
            severity: Severity::Note,
            place: Place::SuperblockCopy.to_string(),
            what: "serial number".to_owned(),
            expected: start.serial.to_string(),
            found: copy.serial.to_string(),
        });
    }
}
