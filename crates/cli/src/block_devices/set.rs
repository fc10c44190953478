//! Which cache set is meant, and where its daemon and its clients meet.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_host::DeviceSpec;
use forebay_host::state_file::set_id_text;

use super::PAUSE;
use super::record::Record;
use crate::admin::socket;
use crate::commands::format::absolute;
use crate::exit::{Exit, Failure};
use crate::inspection::{CacheDevice, Locking};
use crate::output;

/// Digits of the set's identity that name its files in the run directory.
pub(crate) const NAME_DIGITS: usize = 8;

/// A cache set.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    /// The cache device, as it was named, made absolute.
    pub(crate) cache: PathBuf,
    pub(crate) set_id: String,
    pub(crate) volumes: Vec<Volume>,
}

/// A volume as the cache device has it.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) name: String,
    origin: String,
}

impl Set {
    /// Reads which set is on a cache device, whether it is in service or not.
    pub(crate) fn identify(cache: &Path) -> Result<Set, Failure> {
        let cache = absolute(cache)?;
        let superblock = CacheDevice::open(&cache, Locking::IfPossible)?.superblocks()?.chosen;
        let volumes = superblock.slots().map(|(_, volume)| Volume {
            name: volume.name.clone(),
            origin: volume.origin_path.clone(),
        });
        let volumes = volumes.collect();
        Ok(Set { cache, set_id: set_id_text(&superblock.set_id), volumes })
    }

    /// The same; a device that is gone or damaged is known from what was set up for it.
    pub(crate) fn identify_or_remember(cache: &Path) -> Result<Set, Failure> {
        let failure = match Set::identify(cache) {
            Ok(set) => return Ok(set),
            Err(failure) => failure,
        };
        let cache = absolute(cache)?;
        let mut records = Record::all().into_iter();
        let record = records.find(|record| record.cache_device == cache).ok_or(failure)?;
        Ok(Set { cache, set_id: record.set_id, volumes: Vec::new() })
    }

    /// Waits until the cache device and the origins of its volumes are there.
    pub(crate) fn await_devices(cache: &Path, patience: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + patience;
        loop {
            let missing = match Set::identify(cache) {
                Ok(set) => set.missing_origin(),
                Err(failure) if failure.exit == Exit::NotFound => Some(cache.to_owned()),
                Err(failure) => return Err(failure),
            };
            let Some(missing) = missing else { return Ok(()) };
            if Instant::now() >= deadline {
                // Volumes whose origin is there are served all the same.
                let (place, seconds) = (missing.display(), patience.as_secs());
                output::say(&format!("forebay: {place} has not appeared in {seconds} s"));
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn missing_origin(&self) -> Option<PathBuf> {
        let specs = self.volumes.iter().filter_map(|volume| volume.origin.parse().ok());
        let mut paths = specs.map(|spec: DeviceSpec| spec.path().to_owned());
        paths.find(|path| !path.exists())
    }

    /// What its files in the run directory are called.
    pub(crate) fn name(&self) -> &str {
        &self.set_id[..NAME_DIGITS]
    }

    /// A file or folder of it in the run directory.
    pub(crate) fn file(&self, ending: &str) -> PathBuf {
        socket::run_directory().join(format!("{}.{ending}", self.name()))
    }

    /// Where its daemon listens for NBD clients of this machine.
    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.file("nbd")
    }
}
