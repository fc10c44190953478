//! What the devices hold after a prefix of a recording, and what a crash could leave of it.
//!
//! After the death of the process: all that has ended, and of what was under way nothing, all, or
//! some units of each operation, in any order. After a power cut: all that a flush covers which
//! began after it had ended and has ended itself, and of the rest nothing, all, or some units. A
//! unit is a sector or a block, for all devices of an image.
//!
//! Images are not copied for each crash. There is one that follows what has ended and one that
//! follows what is durable; a crash is made on it, and taken back afterwards range by range.

use std::ops::Range;

use forebay_host::recording::{DeviceRole, Entry, Operation};
use forebay_sim::fuzz::machine::{Media, Written, read_superblock};
use forebay_sim::random::Random;

use super::judge::{Crash, SECTOR_BYTES};

const BLOCK_BYTES: usize = 4096;

/// What happens to operations that may or may not have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    None,
    All,
    Some,
}

/// An operation that is not durable.
#[derive(Clone, Copy, Debug)]
struct Volatile {
    begin: usize,
    end: Option<usize>,
}

/// A device: its place in [`Media`], and what is not durable on it.
struct Device {
    origin: Option<usize>,
    volatile: Vec<Volatile>,
}

/// The devices after a prefix.
pub(super) struct Images<'a> {
    entries: &'a [Entry],
    base: Media,
    devices: Vec<Device>,
    /// All that has ended.
    ended: Media,
    /// All that is durable.
    durable: Media,
    /// The same once more, for crashes to be made on.
    ended_scratch: Media,
    durable_scratch: Media,
}

/// Index of a volume of the tests, by name.
pub(super) fn volume_index(name: &str) -> Result<usize, String> {
    let number = name.strip_prefix("volume-").and_then(|number| number.parse().ok());
    number.ok_or(format!("`{name}` is none of the volumes of these tests"))
}

/// A device among others.
pub(super) fn device(media: &mut Media, origin: Option<usize>) -> &mut Vec<u8> {
    match origin {
        None => &mut media.cache,
        Some(index) => &mut media.origins[index],
    }
}

fn apply(media: &mut Media, origin: Option<usize>, operation: &Operation) -> Range<usize> {
    let (offset, length) = operation.range();
    let range = offset as usize..(offset + length) as usize;
    let place = &mut device(media, origin)[range.clone()];
    match operation {
        Operation::Write { data, .. } => place.copy_from_slice(data),
        // A discard on a file punches a hole; crashes also try what it does if it does nothing.
        Operation::WriteZeroes { .. } | Operation::Discard { .. } => place.fill(0),
        Operation::Flush => {}
    }
    range
}

/// Applies some units of an operation.
fn apply_some(
    media: &mut Media,
    origin: Option<usize>,
    operation: &Operation,
    unit: usize,
    random: &mut Random,
) {
    let (offset, length) = (operation.range().0 as usize, operation.range().1 as usize);
    let percent = *random.pick(&[10, 50, 90]);
    let place = &mut device(media, origin)[offset..offset + length];
    for start in (0..length).step_by(unit) {
        if !random.percent(percent) {
            continue;
        }
        let range = start..(start + unit).min(length);
        match operation {
            Operation::Write { data, .. } => place[range.clone()].copy_from_slice(&data[range]),
            _ => place[range].fill(0),
        }
    }
}

impl<'a> Images<'a> {
    /// The devices before the recording began.
    pub(super) fn new(entries: &'a [Entry], base: Media) -> Images<'a> {
        Images {
            entries,
            devices: Vec::new(),
            ended: base.clone(),
            durable: base.clone(),
            ended_scratch: base.clone(),
            durable_scratch: base.clone(),
            base,
        }
    }

    /// A device is put to work.
    pub(super) fn add_device(&mut self, role: DeviceRole, spec: &str) -> Result<(), String> {
        let origin = match role {
            DeviceRole::Cache => None,
            DeviceRole::Origin => {
                let superblock =
                    read_superblock(&self.base.cache).map_err(|corrupt| corrupt.to_string())?;
                let mut volumes = superblock.volumes.iter().flatten();
                let volume = volumes.find(|volume| volume.origin_path == spec);
                let volume = volume.ok_or(format!("{spec} is no origin of the base"))?;
                Some(volume_index(&volume.name)?)
            }
            DeviceRole::Bare => return Err(format!("{spec} is a bare device")),
        };
        self.devices.push(Device { origin, volatile: Vec::new() });
        Ok(())
    }

    /// The operation of an entry begins.
    pub(super) fn begin(&mut self, index: usize, device: u32, operation: &Operation) {
        if *operation != Operation::Flush {
            let begun = Volatile { begin: index, end: None };
            self.devices[device as usize].volatile.push(begun);
        }
    }

    /// An operation has ended well.
    pub(super) fn end(&mut self, index: usize, begin: usize) {
        let Entry::Begin { device: number, operation } = &self.entries[begin] else {
            panic!("the reader has checked that entry {begin} is a begin");
        };
        let Device { origin, volatile } = &mut self.devices[*number as usize];
        if *operation != Operation::Flush {
            let ended = volatile.iter_mut().find(|other| other.begin == begin);
            ended.expect("it has begun").end = Some(index);
            apply(&mut self.ended, *origin, operation);
            apply(&mut self.ended_scratch, *origin, operation);
            return;
        }
        let is_covered = |other: &Volatile| other.end.is_some_and(|end| end < begin);
        let mut covered: Vec<Volatile> = volatile.iter().copied().filter(is_covered).collect();
        volatile.retain(|other| !is_covered(other));
        covered.sort_by_key(|other| other.end);
        for Volatile { begin, .. } in covered {
            let operation = operation_of(self.entries, begin);
            apply(&mut self.durable, *origin, operation);
            apply(&mut self.durable_scratch, *origin, operation);
        }
    }

    /// Whether anything is in doubt: it decides which fates differ.
    pub(super) fn is_in_doubt(&self, crash: Crash) -> bool {
        self.devices.iter().any(|device| device.volatile.iter().any(|one| is_doubtful(crash, one)))
    }

    /// Takes the devices as a crash leaves them. They come back by [`Images::take_back`].
    pub(super) fn crash(&mut self, crash: Crash, fate: Fate, random: &mut Random) -> Media {
        let mut media = match crash {
            Crash::Death => std::mem::take(&mut self.ended_scratch),
            Crash::PowerCut => std::mem::take(&mut self.durable_scratch),
        };
        let unit = *random.pick(&[SECTOR_BYTES, BLOCK_BYTES]);
        for device in &self.devices {
            let doubtful = device.volatile.iter().filter(|one| is_doubtful(crash, one));
            let mut doubtful: Vec<usize> = doubtful.map(|one| one.begin).collect();
            if fate == Fate::Some {
                random.shuffle(&mut doubtful);
            }
            for begin in doubtful {
                let operation = operation_of(self.entries, begin);
                match fate {
                    Fate::None => {}
                    Fate::All => {
                        apply(&mut media, device.origin, operation);
                    }
                    Fate::Some => apply_some(&mut media, device.origin, operation, unit, random),
                }
            }
        }
        media
    }

    /// Takes devices back that the crash and machines have changed.
    pub(super) fn take_back(&mut self, crash: Crash, mut media: Media) {
        let source = match crash {
            Crash::Death => &self.ended,
            Crash::PowerCut => &self.durable,
        };
        for one in &self.devices {
            for volatile in one.volatile.iter().filter(|other| is_doubtful(crash, other)) {
                let (offset, length) = operation_of(self.entries, volatile.begin).range();
                let bytes = offset as usize..(offset + length) as usize;
                media.written.push(Written { origin: one.origin, bytes });
            }
        }
        media.restore(source);
        match crash {
            Crash::Death => self.ended_scratch = media,
            Crash::PowerCut => self.durable_scratch = media,
        }
    }

    /// Compares real devices with what the recording says of them, after its last entry: each
    /// sector holds what has ended, or what was under way.
    pub(super) fn compare(&self, found: &Media) -> Result<(), String> {
        let origins = found.origins.iter().enumerate();
        let all = std::iter::once((None, &found.cache))
            .chain(origins.map(|(index, bytes)| (Some(index), bytes)));
        for (origin, bytes) in all {
            let expected = match origin {
                None => &self.ended.cache,
                Some(index) => &self.ended.origins[index],
            };
            let sectors = bytes.chunks(SECTOR_BYTES).zip(expected.chunks(SECTOR_BYTES));
            for (index, (sector, expected)) in sectors.enumerate() {
                if sector != expected && !self.may_hold(origin, index * SECTOR_BYTES, sector) {
                    let device = origin.map_or("the cache device".to_owned(), |index| {
                        format!("the origin of volume {index}")
                    });
                    return Err(format!("sector {index} of {device} is not as recorded"));
                }
            }
        }
        Ok(())
    }

    fn may_hold(&self, origin: Option<usize>, offset: usize, found: &[u8]) -> bool {
        let devices = self.devices.iter().filter(|device| device.origin == origin);
        let mut under_way = devices
            .flat_map(|device| &device.volatile)
            .filter(|one| one.end.is_none())
            .map(|one| operation_of(self.entries, one.begin));
        under_way.any(|operation| {
            let (start, length) = (operation.range().0 as usize, operation.range().1 as usize);
            let is_inside = start <= offset && offset + found.len() <= start + length;
            is_inside
                && match operation {
                    Operation::Write { data, .. } => {
                        data[offset - start..offset - start + found.len()] == *found
                    }
                    _ => found.iter().all(|byte| *byte == 0),
                }
        })
    }
}

fn is_doubtful(crash: Crash, one: &Volatile) -> bool {
    crash == Crash::PowerCut || one.end.is_none()
}

fn operation_of(entries: &[Entry], begin: usize) -> &Operation {
    match &entries[begin] {
        Entry::Begin { operation, .. } => operation,
        other => panic!("{other:?} is no begin"),
    }
}
