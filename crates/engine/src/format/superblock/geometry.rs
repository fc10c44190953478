//! Where things are on a cache device: a function of its size and of the segment size.

use super::super::checkpoint::area_bytes;
use super::SUPERBLOCK_BYTES;
use crate::units::BLOCK_BYTES;

/// Smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
/// Largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Fewest segments that leave room for clients beside open segments, spares and reserve.
pub const SEGMENTS_MIN: u64 = 24;
/// Blocks live in `u32` positions, which bounds the segments' total size (16 TiB).
pub const CACHE_BLOCKS_MAX: u64 = u32::MAX as u64;

/// Where things are on the cache device. All in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Size of the device at format.
    pub device_bytes: u64,
    /// Start of the first segment.
    pub segments_offset: u64,
    /// Size of a segment.
    pub segment_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Start of checkpoint area A.
    pub checkpoint_offset: u64,
    /// Size of one checkpoint area.
    pub checkpoint_bytes: u64,
    /// Start of the superblock copy.
    pub copy_offset: u64,
}

/// A device too small or too large, or a segment size that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// Too small.
    #[error(
        "{device_bytes} bytes are too few: segments of {segment_bytes} bytes need {needed_bytes}"
    )]
    TooSmall {
        /// Given.
        device_bytes: u64,
        /// Needed.
        needed_bytes: u64,
        /// Segment size.
        segment_bytes: u64,
    },
    /// Larger than positions can address.
    #[error("{device_bytes} bytes are too many: positions address 16 TiB of cache")]
    TooLarge {
        /// Given.
        device_bytes: u64,
    },
    /// Not a power of two in range.
    #[error("a segment of {segment_bytes} bytes is not a power of two between 256 KiB and 16 MiB")]
    SegmentSize {
        /// Given.
        segment_bytes: u64,
    },
}

impl Geometry {
    /// Lays out a device of `device_bytes`; the segment size is about a thousandth of it unless
    /// given.
    ///
    /// # Errors
    /// If fewer than [`SEGMENTS_MIN`] segments fit or the segment size is out of range.
    pub fn new(device_bytes: u64, segment_bytes: Option<u64>) -> Result<Geometry, GeometryError> {
        let block = BLOCK_BYTES as u64;
        let device_bytes = device_bytes / block * block;
        let segment_bytes = segment_bytes.unwrap_or_else(|| {
            (device_bytes / 1000).next_power_of_two().clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        });
        if !segment_bytes.is_power_of_two()
            || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
        {
            return Err(GeometryError::SegmentSize { segment_bytes });
        }
        let superblock = SUPERBLOCK_BYTES as u64;
        let mut segment_count = device_bytes / segment_bytes;
        if segment_count > CACHE_BLOCKS_MAX {
            return Err(GeometryError::TooLarge { device_bytes });
        }
        loop {
            let checkpoint_bytes = area_bytes(segment_count, segment_bytes / block);
            let segments_offset = superblock + 2 * checkpoint_bytes;
            let needed = segments_offset + segment_count * segment_bytes + superblock;
            if segment_count < SEGMENTS_MIN {
                let needed_bytes = 2 * superblock
                    + 2 * area_bytes(SEGMENTS_MIN, segment_bytes / block)
                    + SEGMENTS_MIN * segment_bytes;
                return Err(GeometryError::TooSmall { device_bytes, needed_bytes, segment_bytes });
            }
            if needed > device_bytes {
                segment_count -= 1;
                continue;
            }
            if segment_count * (segment_bytes / block) > CACHE_BLOCKS_MAX {
                return Err(GeometryError::TooLarge { device_bytes });
            }
            return Ok(Geometry {
                device_bytes,
                segments_offset,
                segment_bytes,
                segment_count: u32::try_from(segment_count).expect("bounded by CACHE_BLOCKS_MAX"),
                checkpoint_offset: superblock,
                checkpoint_bytes,
                copy_offset: device_bytes - superblock,
            });
        }
    }

    /// Blocks of a segment.
    #[must_use]
    pub fn segment_blocks(&self) -> u32 {
        u32::try_from(self.segment_bytes / BLOCK_BYTES as u64).expect("segments are small")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_too_large_to_be_refused() {
        for device_bytes in [17 << 40, 1 << 60, u64::MAX] {
            for segment_bytes in [None, Some(SEGMENT_BYTES_MIN), Some(SEGMENT_BYTES_MAX)] {
                let layout = Geometry::new(device_bytes, segment_bytes);
                assert!(matches!(layout, Err(GeometryError::TooLarge { .. })), "{layout:?}");
            }
        }
    }
}
