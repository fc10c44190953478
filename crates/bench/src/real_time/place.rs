//! Devices in real time: those of this machine that the operator gives, and files in their place.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_device_model::DeviceSpec;

use super::{Ground, RealError};
use crate::plan::{Forebay, Plan, Preset};

/// Bytes that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Where the devices of a plan are.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) plan: &'a Plan,
    pub(super) ground: &'a Ground<'a>,
}

/// A device that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// As `forebay attach` takes it.
    pub(super) spec: String,
    /// The file or block device, if it is as fast as it is.
    pub(super) plain: Option<PathBuf>,
}

/// What a cache is made on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CachePlace {
    pub(super) path: PathBuf,
    /// The file that is to be made; `None` if there is something already.
    pub(super) new_bytes: Option<u64>,
}

impl Places<'_> {
    /// A device by its name, as it is at the beginning. A file in place of a slow one is made anew,
    /// with holes: its speed is that of its model. Another one is written in full, once.
    pub(super) fn device(&self, name: &str) -> Result<Place, RealError> {
        let device = self.plan.device(name);
        if let Some(path) = &device.path {
            check_overwrite(self.ground, What::Device(name), path)?;
            let spec = path.parse::<DeviceSpec>().map_err(|error| RealError::Device {
                name: name.to_owned(),
                what: error.to_string(),
            })?;
            let plain = spec.model.is_none().then(|| PathBuf::from(&spec.path));
            return Ok(Place { spec: path.clone(), plain });
        }
        let file = self.ground.folder.join(format!("{name}.img"));
        let prefix = match device.preset {
            Some(Preset::Hdd) => "hdd:",
            // The preset's round trip, in whole milliseconds.
            Some(Preset::CloudVolume) => "remote:1:",
            Some(Preset::SataSsd | Preset::SmallSataSsd | Preset::NvmeSsd) | None => "",
        };
        if prefix.is_empty() {
            self.write_once(&file, device.size)?;
            return Ok(Place { spec: file.display().to_string(), plain: Some(file) });
        }
        let made = File::create(&file).and_then(|made| made.set_len(device.size));
        made.map_err(|error| RealError::file(&file, error))?;
        Ok(Place { spec: format!("{prefix}{}", file.display()), plain: None })
    }

    /// What the cache of a target is made on.
    pub(super) fn cache(&self, forebay: &Forebay) -> Result<CachePlace, RealError> {
        let device = self.plan.device(&forebay.cache);
        if let Some(path) = &device.path {
            check_overwrite(self.ground, What::Device(&device.name), path)?;
            if forebay.cache_size.is_some_and(|size| size != device.size) {
                let what = "a device with a path is a cache as a whole, without `cache_size`";
                return Err(RealError::Device { name: device.name.clone(), what: what.to_owned() });
            }
            return Ok(CachePlace { path: path.into(), new_bytes: None });
        }
        let bytes = forebay.cache_size.unwrap_or(device.size);
        let path = self.ground.folder.join(format!("{}-cache-{bytes}.img", device.name));
        let new_bytes = if path.exists() {
            None
        } else {
            self.require(bytes)?;
            Some(bytes)
        };
        Ok(CachePlace { path, new_bytes })
    }

    fn require(&self, bytes: u64) -> Result<(), RealError> {
        let folder = self.ground.folder;
        let failed = |error: rustix::io::Errno| RealError::file(folder, error.into());
        let facts = rustix::fs::statvfs(folder).map_err(failed)?;
        let free_bytes = facts.f_bavail * facts.f_frsize;
        let error = || RealError::Room { folder: folder.to_owned(), free_bytes, bytes };
        (free_bytes >= bytes).then_some(()).ok_or_else(error)
    }

    /// A file that is written in full, so that reading it costs what it costs and writing it again
    /// changes no metadata. No two of its blocks are equal.
    fn write_once(&self, path: &Path, bytes: u64) -> Result<(), RealError> {
        if path.metadata().is_ok_and(|metadata| metadata.len() == bytes) {
            return Ok(());
        }
        self.require(bytes)?;
        let write = || {
            // It gets its name when it is whole.
            let new = path.with_extension("new");
            let mut file = File::create(&new)?;
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut number = 0_u64;
            let mut left = bytes;
            while left > 0 {
                for word in chunk.chunks_exact_mut(size_of::<u64>()) {
                    // Spreads the bits; an odd factor meets no value twice.
                    number += 1;
                    word.copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
                }
                let length = left.min(CHUNK_BYTES as u64);
                file.write_all(&chunk[..length as usize])?;
                left -= length;
            }
            file.sync_all()?;
            std::fs::rename(&new, path)
        };
        write().map_err(|error| RealError::file(path, error))
    }
}

/// What of the operator's may be written over, by its name in the plan.
#[derive(Clone, Copy)]
pub(super) enum What<'a> {
    Device(&'a str),
    /// A server that runs already.
    Target(&'a str),
}

/// Nothing of the operator's is written over unless he has said so, with the path or URI `place` as
/// the plan writes it.
pub(super) fn check_overwrite(
    ground: &Ground<'_>,
    what: What<'_>,
    place: &str,
) -> Result<(), RealError> {
    if ground.may_overwrite.iter().any(|allowed| allowed == place) {
        return Ok(());
    }
    let what = match what {
        What::Device(name) => format!("device {name}"),
        What::Target(name) => format!("target {name}"),
    };
    Err(RealError::Overwrite { what, place: place.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real_time::Interrupt;

    const PLAN: &str = r#"
        about = "a test"
        clock = "real"
        [[device]]
        name = "disk"
        preset = "hdd"
        size = "1T"
        [[device]]
        name = "ssd"
        preset = "nvme_ssd"
        size = "2M"
        [[device]]
        name = "mine"
        path = "hdd:/dev/mine"
        size = "2M"
        [[target]]
        name = "cached"
        forebay = { cache = "ssd", cache_size = "1M", origin = "disk", mode = "writeback" }
        [[target]]
        name = "mine"
        forebay = { cache = "mine", cache_size = "1M", origin = "disk", mode = "writeback" }
        [[phase]]
        name = "pause"
        seconds = 1
        [[phase]]
        name = "reads"
        seconds = 1
        [[phase.job]]
        name = "reads"
        work = "read"
        pattern = "uniform"
        size = "1M"
    "#;

    #[test]
    fn devices_without_a_path_are_files() {
        let (folder, plan) = (tempfile::tempdir().unwrap(), Plan::parse(PLAN).unwrap());
        let interrupt = Interrupt::default();
        let ground = Ground::of_test(folder.path(), &interrupt);
        let places = Places { plan: &plan, ground: &ground };
        let disk = places.device("disk").unwrap();
        let file = folder.path().join("disk.img");
        assert_eq!((disk.spec, disk.plain), (format!("hdd:{}", file.display()), None));
        assert_eq!(file.metadata().unwrap().len(), 1 << 40);
        let ssd = places.device("ssd").unwrap();
        let content = std::fs::read(ssd.plain.unwrap()).unwrap();
        assert_eq!(content.len(), 2 << 20);
        assert_ne!(content[..4096], content[1 << 20..(1 << 20) + 4096]);
        let cache = places.cache(plan.targets[0].forebay.as_ref().unwrap()).unwrap();
        assert_eq!(cache.new_bytes, Some(1 << 20));
        std::fs::write(&cache.path, "it is there").unwrap();
        let again = places.cache(plan.targets[0].forebay.as_ref().unwrap()).unwrap();
        assert_eq!(again, CachePlace { new_bytes: None, ..cache });
    }

    #[test]
    fn a_device_of_the_operator_is_written_over_only_if_he_says_so() {
        let (folder, plan) = (tempfile::tempdir().unwrap(), Plan::parse(PLAN).unwrap());
        let interrupt = Interrupt::default();
        let ground = Ground::of_test(folder.path(), &interrupt);
        let error = Places { plan: &plan, ground: &ground }.device("mine").unwrap_err();
        assert!(error.to_string().contains("--overwrite hdd:/dev/mine"), "{error}");
        let allowed = ["hdd:/dev/mine".to_owned()];
        let ground = Ground { may_overwrite: &allowed, ..ground };
        let places = Places { plan: &plan, ground: &ground };
        let place = places.device("mine").unwrap();
        assert_eq!(place, Place { spec: "hdd:/dev/mine".to_owned(), plain: None });
        let error = places.cache(plan.targets[1].forebay.as_ref().unwrap()).unwrap_err();
        assert!(error.to_string().contains("cache_size"), "{error}");
    }

    #[test]
    fn too_little_room_is_an_error() {
        let (folder, plan) = (tempfile::tempdir().unwrap(), Plan::parse(PLAN).unwrap());
        let interrupt = Interrupt::default();
        let ground = Ground::of_test(folder.path(), &interrupt);
        let places = Places { plan: &plan, ground: &ground };
        let error = places.write_once(&folder.path().join("a"), 1 << 60).unwrap_err();
        assert!(error.to_string().contains("--dir"), "{error}");
    }
}
