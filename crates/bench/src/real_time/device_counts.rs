//! What daemons of ours count of their devices: of files and of slow devices the kernel counts
//! nothing.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Ground, RealError, daemon};
use crate::result::DeviceCounts;

/// A daemon, and what its devices are called in the plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Counter {
    /// Its admin socket.
    pub(super) admin: PathBuf,
    /// The device that it serves, or the origin of its volume.
    pub(super) origin: String,
    /// The device of its cache, if it has one.
    pub(super) cache: Option<String>,
}

/// The parts of a daemon's status that are used.
#[derive(Deserialize)]
struct Status {
    devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    is_cache: bool,
    read_count: u64,
    read_bytes: u64,
    write_count: u64,
    written_bytes: u64,
}

impl Counter {
    /// The daemon that serves a device without a cache.
    pub(super) fn of_bare(ground: &Ground<'_>, device: &str) -> Counter {
        let (admin, origin) = (admin_of_bare(ground, device), device.to_owned());
        Counter { admin, origin, cache: None }
    }

    /// What its devices were asked for since the daemon was started.
    pub(super) fn ask(&self, ground: &Ground<'_>) -> Result<Vec<DeviceCounts>, RealError> {
        Ok(self.named(daemon::status_of(ground, &self.admin)?))
    }

    fn named(&self, status: Status) -> Vec<DeviceCounts> {
        let counts = |device: Device| {
            let name = if device.is_cache { self.cache.as_ref()? } else { &self.origin };
            Some(DeviceCounts {
                name: name.clone(),
                reads: device.read_count,
                read_bytes: device.read_bytes,
                writes: device.write_count,
                written_bytes: device.written_bytes,
            })
        };
        status.devices.into_iter().filter_map(counts).collect()
    }
}

/// The admin socket of the daemon that serves a device without a cache.
pub(super) fn admin_of_bare(ground: &Ground<'_>, device: &str) -> PathBuf {
    ground.sockets.join(format!("bare-{device}.admin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_names_of_the_plan() {
        let counter = Counter {
            admin: "admin".into(),
            origin: "disk".to_owned(),
            cache: Some("ssd".to_owned()),
        };
        let device = |is_cache: bool, count: u64| {
            serde_json::json!({ "device": "hdd:/tmp/a", "is_cache": is_cache,
                "read_count": count, "read_bytes": count * 4096,
                "write_count": 1, "written_bytes": 512 })
        };
        let text = serde_json::json!({ "daemons": [
            { "devices": [device(true, 7), device(false, 3)] }
        ]});
        let counts = counter.named(daemon::parse_status(&text.to_string()).unwrap());
        let found: Vec<_> =
            counts.iter().map(|count| (&*count.name, count.reads, count.read_bytes)).collect();
        assert_eq!(found, [("ssd", 7, 7 * 4096), ("disk", 3, 3 * 4096)]);
        assert_eq!((counts[1].writes, counts[1].written_bytes), (1, 512));
        assert!(daemon::parse_status::<Status>("{\"daemons\": []}").is_err());
    }
}
