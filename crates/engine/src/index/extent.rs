//! A packed extent: 16 bytes for a run of up to 256 blocks that lie together on the cache device.

use crate::units::{CacheBlock, EXTENT_BLOCKS_MAX, Version};

/// Origin blocks that fit into a key: 2^40, 4 PiB of volume.
pub(crate) const ORIGIN_BLOCK_LIMIT: u64 = 1 << 40;
/// Versions that fit: 2^48. At a million writes a second they last nine years.
pub(crate) const VERSION_LIMIT: u64 = 1 << 48;

/// A run of blocks that is consecutive on the origin and on the cache device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) block_count: u32,
    pub(crate) version: Version,
    pub(crate) position: CacheBlock,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.block_count)
    }

    /// The part from `start` to `end`, which lie within the extent.
    pub(crate) fn clip(&self, start: u64, end: u64) -> Extent {
        let from = start.max(self.start);
        let to = end.min(self.end());
        assert!(from < to);
        let skipped = u32::try_from(from - self.start).expect("within the extent");
        Extent {
            start: from,
            block_count: u32::try_from(to - from).expect("within the extent"),
            version: self.version,
            position: CacheBlock(self.position.0 + skipped),
        }
    }
}

/// The extent as it is kept: start 40 bits, version 48, length 8, position 32.
#[derive(Clone, Copy)]
pub(crate) struct PackedExtent {
    start_version_count: u64,
    version_position: u64,
}

const _: () = assert!(size_of::<PackedExtent>() == 16);

impl PackedExtent {
    pub(crate) fn pack(extent: Extent) -> PackedExtent {
        assert!(extent.end() <= ORIGIN_BLOCK_LIMIT);
        assert!(extent.version.0 < VERSION_LIMIT);
        assert!(extent.block_count >= 1);
        assert!(extent.block_count <= EXTENT_BLOCKS_MAX);
        let version_high = extent.version.0 >> 32;
        PackedExtent {
            start_version_count: extent.start << 24
                | version_high << 8
                | u64::from(extent.block_count - 1),
            version_position: extent.version.0 << 32 | u64::from(extent.position.0),
        }
    }

    pub(crate) fn start(self) -> u64 {
        self.start_version_count >> 24
    }

    pub(crate) fn end(self) -> u64 {
        self.start() + (self.start_version_count & 0xff) + 1
    }

    pub(crate) fn unpack(self) -> Extent {
        let version_high = self.start_version_count >> 8 & 0xffff;
        #[expect(clippy::cast_possible_truncation, reason = "the fields are cut out bit by bit")]
        Extent {
            start: self.start(),
            block_count: (self.start_version_count & 0xff) as u32 + 1,
            version: Version(version_high << 32 | self.version_position >> 32),
            position: CacheBlock(self.version_position as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_every_field_at_its_limits() {
        for (start, count, version, position) in [
            (0, 1, 0, 0),
            (ORIGIN_BLOCK_LIMIT - 256, 256, VERSION_LIMIT - 1, u32::MAX),
            (12_345_678_901, 17, 0x1234_5678_9abc, 0xdead_beef),
        ] {
            let extent = Extent {
                start,
                block_count: count,
                version: Version(version),
                position: CacheBlock(position),
            };
            let packed = PackedExtent::pack(extent);
            assert_eq!(packed.unpack(), extent);
            assert_eq!(packed.start(), extent.start);
            assert_eq!(packed.end(), extent.end());
        }
    }
}
