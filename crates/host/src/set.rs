//! Opening a cache set: cache device, origins, host state file, and what to do when one is missing.

use std::path::PathBuf;

use forebay_engine::format::SetId;
use forebay_engine::format::superblock::Superblock;
use forebay_engine::options::OriginOpening;
use forebay_engine::units::VolumeSlot;
use thiserror::Error;

use crate::device::{Access, OpenedDevice, Role};
use crate::device_spec::{DeviceSpec, DeviceSpecError};
use crate::offline::{OfflineError, read_superblock_from};
use crate::probe::OpenError;
use crate::shard::BareExport;
use crate::shard::exports::volume_identity;
use crate::state_file::{HostState, StateFile, StateFileError, VolumeMark, set_id_text};
use crate::takeover::{HandedDevice, HandedDevices};

/// Why an origin is not served.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OriginError {
    /// Its spec in the volume table cannot be read.
    #[error(transparent)]
    Spec(#[from] DeviceSpecError),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is smaller than it was.
    #[error(
        "{device} has {found_bytes} bytes, but its volume {recorded_bytes}; make it as long as \
         that again"
    )]
    Shrunk {
        /// The origin.
        device: String,
        /// As found.
        found_bytes: u64,
        /// As recorded.
        recorded_bytes: u64,
    },
    /// Its sectors are larger than the unit that clients were promised.
    #[error(
        "{device} has logical blocks of {found_bytes} bytes, but its volume promises \
         {promised_bytes}"
    )]
    LogicalBlock {
        /// The origin.
        device: String,
        /// As found.
        found_bytes: u32,
        /// As promised.
        promised_bytes: u32,
    },
}

/// A volume that is not served, and why.
#[derive(Debug)]
pub struct UnavailableVolume {
    /// Slot in the volume table.
    pub slot: VolumeSlot,
    /// Name.
    pub name: String,
    /// Why.
    pub error: OriginError,
}

/// Why a cache set cannot be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetError {
    /// The cache device cannot be opened or is not free.
    #[error(transparent)]
    Cache(#[from] OpenError),
    /// Its superblock cannot be read.
    #[error(transparent)]
    Superblock(#[from] OfflineError),
    /// The cache device is smaller than it was.
    #[error(
        "cache device {device} has {found_bytes} bytes, but was formatted with {recorded_bytes}; \
         it is truncated or another device"
    )]
    Truncated {
        /// The cache device.
        device: String,
        /// As found.
        found_bytes: u64,
        /// As recorded.
        recorded_bytes: u64,
    },
    /// The cache device's sectors are larger than 4096 bytes or the like.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// There is no state file for this set.
    #[error("nothing is known of cache set {set_id}; it was never served on this host")]
    UnknownSet {
        /// The set.
        set_id: String,
    },
    /// Dirty data may exist on the missing cache device.
    #[error(
        "the cache device may hold the only copy of data of {}; bring it back, or name these \
         volumes to accept the loss", volumes.join(", ")
    )]
    DirtyPossible {
        /// The volumes.
        volumes: Vec<String>,
    },
    /// An origin cannot be opened.
    #[error("volume `{volume}`: {source}")]
    Origin {
        /// The volume.
        volume: String,
        /// Why.
        source: OriginError,
    },
}

/// What opening a set is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetOptions {
    /// Where host state files are kept.
    pub state_directory: PathBuf,
}

/// A cache set that is open and locked, and not yet served.
#[derive(Debug)]
pub struct OpenedSet {
    pub(crate) cache: OpenedDevice,
    pub(crate) superblock: Superblock,
    pub(crate) origins: Vec<(VolumeSlot, OpenedDevice)>,
    pub(crate) openings: Vec<OriginOpening>,
    pub(crate) unavailable: Vec<UnavailableVolume>,
    pub(crate) state: HostState,
    pub(crate) state_file: StateFile,
}

impl OpenedSet {
    /// Opens a cache device and the origins of its volumes. A volume whose origin cannot be opened
    /// stays out of service, see [`OpenedSet::unavailable`]; its data is kept.
    ///
    /// # Errors
    /// If the cache device cannot be opened, is damaged or truncated, or the state file cannot be
    /// read.
    pub fn open(cache: &DeviceSpec, options: &SetOptions) -> Result<OpenedSet, SetError> {
        OpenedSet::of(OpenedDevice::open_cache(cache)?, Vec::new(), options)
    }

    /// The same with devices that a predecessor has open, see [`crate::takeover`]. An origin that
    /// it could not open is looked for as at any start.
    ///
    /// # Errors
    /// As [`OpenedSet::open`].
    pub fn handed(devices: HandedDevices, options: &SetOptions) -> Result<OpenedSet, SetError> {
        let HandedDevices { cache, origins } = devices;
        let HandedDevice { descriptor, spec } = cache;
        let cache = OpenedDevice::handed(descriptor.into(), spec, Role::Cache)?;
        let mut opened = Vec::new();
        for (slot, HandedDevice { descriptor, spec }) in origins {
            let origin = OpenedDevice::handed(descriptor.into(), spec, Role::Origin)?;
            opened.push((slot, origin));
        }
        OpenedSet::of(cache, opened, options)
    }

    fn of(
        device: OpenedDevice,
        mut handed: Vec<(VolumeSlot, OpenedDevice)>,
        options: &SetOptions,
    ) -> Result<OpenedSet, SetError> {
        let cache = device.spec().clone();
        let superblock = read_superblock_from(device.file(), cache.path())?;
        let recorded_bytes = superblock.geometry.device_bytes;
        let found_bytes = device.facts().size_bytes;
        if found_bytes < recorded_bytes {
            let device = cache.to_string();
            return Err(SetError::Truncated { device, found_bytes, recorded_bytes });
        }
        let state_file = StateFile::of_set(&options.state_directory, &superblock.set_id);
        let state = match state_file.load()? {
            Some(state) => state,
            None => HostState::new(&superblock.set_id),
        };
        let mut set = OpenedSet {
            cache: device,
            origins: Vec::new(),
            openings: Vec::new(),
            unavailable: Vec::new(),
            state,
            state_file,
            superblock: superblock.clone(),
        };
        for (slot, volume) in superblock.slots() {
            let mark = set.state.host_mark(volume.id);
            let promised = (volume.size_bytes, volume.logical_block_bytes);
            let opened = match handed.iter().position(|(other, _)| *other == slot) {
                Some(place) => check_origin(handed.swap_remove(place).1, promised),
                None => open_origin(&volume.origin_path, promised),
            };
            let facts = match opened {
                Ok(origin) => {
                    let facts = origin.origin_facts();
                    set.origins.push((slot, origin));
                    Some(facts)
                }
                Err(error) => {
                    set.unavailable.push(UnavailableVolume {
                        slot,
                        name: volume.name.clone(),
                        error,
                    });
                    None
                }
            };
            set.openings.push(OriginOpening { slot, facts, mark });
        }
        set.state.cache_device = cache.to_string();
        set.state.label.clone_from(&superblock.label);
        Ok(set)
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Volumes that will not be served, and why.
    #[must_use]
    pub fn unavailable(&self) -> &[UnavailableVolume] {
        &self.unavailable
    }

    /// What the host state file says of a volume.
    #[must_use]
    pub fn mark(&self, slot: VolumeSlot) -> Option<&VolumeMark> {
        self.superblock.volume(slot).and_then(|volume| self.state.volume(volume.id))
    }
}

/// Opens the volumes of a set whose cache device is missing, to be served from their origins alone.
///
/// The state file says so, durably, before this returns: the copies on the cache device will be
/// outdated with the first write, and a later start with the device must know it.
///
/// # Errors
/// If the set is unknown, or a volume may have dirty data and is not named in `accepted_losses`.
pub fn open_without_cache(
    set_id: &SetId,
    accepted_losses: &[String],
    options: &SetOptions,
) -> Result<Vec<BareExport>, SetError> {
    let state_file = StateFile::of_set(&options.state_directory, set_id);
    let load = || -> Result<HostState, SetError> {
        let Some(state) = state_file.load()? else {
            return Err(SetError::UnknownSet { set_id: set_id_text(set_id) });
        };
        let is_lost =
            |volume: &&VolumeMark| volume.dirty_possible && !accepted_losses.contains(&volume.name);
        let volumes: Vec<String> =
            state.volumes.iter().filter(is_lost).map(|volume| volume.name.clone()).collect();
        if volumes.is_empty() { Ok(state) } else { Err(SetError::DirtyPossible { volumes }) }
    };
    let mut exports = Vec::new();
    let mut opened = Vec::new();
    for volume in load()?.volumes {
        let device = open_origin(&volume.origin, (0, volume.logical_block_bytes))
            .map_err(|source| SetError::Origin { volume: volume.name.clone(), source })?;
        exports.push(BareExport {
            name: volume.name.clone(),
            device,
            access: Access::ReadWrite,
            identity: volume_identity(set_id, volume.id),
        });
        opened.push(volume.id);
    }
    // Nobody else has these origins from now on. What a daemon that had them has said of them,
    // until it ended, counts.
    let lock = state_file.lock()?;
    let mut state = load()?;
    for volume in state.volumes.iter_mut().filter(|volume| opened.contains(&volume.id)) {
        volume.served_without_cache = true;
        volume.dirty_possible = false;
    }
    state_file.replace(&lock, &state)?;
    Ok(exports)
}

fn open_origin(spec: &str, promised: (u64, u32)) -> Result<OpenedDevice, OriginError> {
    let spec: DeviceSpec = spec.parse()?;
    check_origin(OpenedDevice::open_origin(&spec)?, promised)
}

/// Compares an origin with its recorded size and with the promised logical block, in bytes.
fn check_origin(
    origin: OpenedDevice,
    (recorded_bytes, promised_bytes): (u64, u32),
) -> Result<OpenedDevice, OriginError> {
    let spec = origin.spec();
    let facts = origin.facts();
    if facts.size_bytes < recorded_bytes {
        return Err(OriginError::Shrunk {
            device: spec.to_string(),
            found_bytes: facts.size_bytes,
            recorded_bytes,
        });
    }
    if facts.logical_block_bytes > promised_bytes {
        return Err(OriginError::LogicalBlock {
            device: spec.to_string(),
            found_bytes: facts.logical_block_bytes,
            promised_bytes,
        });
    }
    Ok(origin)
}
