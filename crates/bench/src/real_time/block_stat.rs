//! What the kernel counts of block devices: what a cache of anybody does to its SSD and its disk.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use forebay_device_model::DeviceSpec;

use super::RealError;
use crate::plan::{Plan, Target};
use crate::result::DeviceCounts;

/// Of the kernel's sectors, whatever the device has.
const SECTOR_BYTES: u64 = 512;

/// Block devices of a target.
pub(super) struct BlockStat {
    /// Names in the plan, and where the kernel counts.
    devices: Vec<(String, PathBuf)>,
}

impl BlockStat {
    /// Those that the target is made of; files and slow devices, which a server makes of them, are
    /// left out.
    pub(super) fn of(plan: &Plan, target: &Target) -> BlockStat {
        let (cache, origin) = target.parts();
        let devices = cache.into_iter().chain(origin).filter_map(|name| {
            let path = plan.device(name).path.as_ref()?;
            let spec = path.parse::<DeviceSpec>().ok().filter(|spec| spec.model.is_none())?;
            let found = std::fs::metadata(spec.path).ok()?;
            found.file_type().is_block_device().then(|| {
                let (major, minor) =
                    (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
                (name.to_owned(), format!("/sys/dev/block/{major}:{minor}/stat").into())
            })
        });
        BlockStat { devices: devices.collect() }
    }

    /// What they did since the machine was started.
    pub(super) fn counts(&self) -> Result<Vec<DeviceCounts>, RealError> {
        let read = |(name, path): &(String, PathBuf)| {
            let text = std::fs::read_to_string(path).map_err(|error| RealError::file(path, error));
            Ok(parse(name, &text?))
        };
        self.devices.iter().map(read).collect()
    }
}

/// Of a line as Documentation/block/stat.rst of the kernel has it.
fn parse(name: &str, line: &str) -> DeviceCounts {
    let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
    let number = |place: usize| numbers.get(place).copied().unwrap_or_default();
    DeviceCounts {
        name: name.to_owned(),
        reads: number(0),
        read_bytes: number(2) * SECTOR_BYTES,
        writes: number(4),
        written_bytes: number(6) * SECTOR_BYTES,
    }
}

/// What was done between two counts of the same devices.
pub(super) fn between(before: &[DeviceCounts], after: Vec<DeviceCounts>) -> Vec<DeviceCounts> {
    let since = |(before, after): (&DeviceCounts, DeviceCounts)| DeviceCounts {
        reads: after.reads.wrapping_sub(before.reads),
        read_bytes: after.read_bytes.wrapping_sub(before.read_bytes),
        writes: after.writes.wrapping_sub(before.writes),
        written_bytes: after.written_bytes.wrapping_sub(before.written_bytes),
        ..after
    };
    before.iter().zip(after).map(since).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_phase() {
        let before = parse("fast", "  100 1 800 9 10 2 160 7 0 5 16 0 0 0 0 0 0\n");
        let after = parse("fast", "  103 1 824 9 11 2 176 7 0 5 16 0 0 0 0 0 0\n");
        let counts = between(&[before], vec![after]);
        let expected = DeviceCounts {
            name: "fast".to_owned(),
            reads: 3,
            read_bytes: 24 * 512,
            writes: 1,
            written_bytes: 16 * 512,
        };
        assert_eq!(counts, [expected]);
    }
}
