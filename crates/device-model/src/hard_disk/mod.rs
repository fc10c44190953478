//! A hard disk: one head over rotating platters, a command queue, a small cache.
//!
//! A file that plays the disk is usually far smaller than a disk. [`Placement`] says what that
//! means. As a band, a file of 128 MiB is a hundred tracks side by side: seeks are short, and any
//! command is at most a revolution away. Spread, which the presets choose, it is cut into pieces at
//! equal distances over the whole disk: within a piece, distances and angles are physical, so that
//! sorted and dense transfers gain what they gain on a real disk; between pieces the head travels
//! as far as it does on a full disk; and a stream pays nothing at the border of two pieces. The
//! drive cache of a spread file is at most 1/64 of it.

mod drive;
mod extents;
mod geometry;

pub(crate) use drive::Drive;

use crate::{MICROSECOND_NS, MILLISECOND_NS};

/// A spread file has at most one of so many bytes in the drive cache. Chosen: the 16 MiB of the
/// preset in front of 1 GiB.
const CACHE_SHARE: u64 = 64;
/// Smallest drive cache of a spread file, so that bursts are absorbed and streams are read ahead.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Where the bytes of the file or volume lie on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In one piece, from this byte of the disk on.
    Band {
        /// First byte on the disk.
        start_bytes: u64,
    },
    /// In pieces of this size at equal distances over the whole disk: near addresses are near, far
    /// ones as far as on a full disk. A small file so behaves like a large volume.
    Spread {
        /// Bytes of a piece. Not zero.
        piece_bytes: u64,
        /// Parts of equal size, each of which is spread over the whole disk, one among the other:
        /// files that fill a disk. Not zero; 1: the whole is one.
        file_count: u32,
    },
}

/// Parameters of a hard disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HardDisk {
    /// Size of the whole disk; raised to the length of the file if that is larger.
    pub capacity_bytes: u64,
    /// Where on it the file lies.
    pub placement: Placement,
    /// Time of one revolution.
    pub revolution_ns: u64,
    /// Seek to the next track, with settling.
    pub seek_track_ns: u64,
    /// Seek over a third of the stroke, the mean of random seeks over the whole disk.
    pub seek_third_ns: u64,
    /// Seek over the full stroke.
    pub seek_full_ns: u64,
    /// What a seek takes longer before a write, which needs the head settled more exactly.
    pub write_settle_ns: u64,
    /// Sequential rate at the start of the disk, on the outermost tracks.
    pub outer_bytes_per_second: u64,
    /// Sequential rate at its end.
    pub inner_bytes_per_second: u64,
    /// Commands that the drive accepts and orders at once; 1: no command queueing.
    pub queue_depth: usize,
    /// A command that so many others have overtaken goes next.
    pub overtakes_max: u32,
    /// Time of the firmware for each command.
    pub command_ns: u64,
    /// What a command that the drive cache serves takes longer while others wait for the head.
    pub busy_hit_ns: u64,
    /// Bandwidth between drive cache and host.
    pub bus_bytes_per_second: u64,
    /// Drive cache for reads.
    pub read_cache_bytes: u64,
    /// Segments that this cache is divided into at most: a short read takes up a whole one.
    pub read_segment_count: usize,
    /// Longest read-ahead of an idle drive.
    pub read_ahead_bytes: u64,
    /// Drive cache for writes; 0: every write waits for the platter.
    pub write_cache_bytes: u64,
}

impl HardDisk {
    /// A server disk of 2 TB with 7,200 revolutions a minute; the file is spread over it.
    ///
    /// Seeks, rates and caches are those of the data sheets of such disks. `read_segment_count`,
    /// `overtakes_max` and `busy_hit_ns` are fitted to published measurements, which
    /// `forebay-sim models` repeats: 938 reads a second at 16 in flight under Zipf
    /// 1.2, half of them within 1 ms and 99 % within 175 ms; 85 at one in flight; 352 writes at 32.
    #[must_use]
    pub fn server_7200() -> HardDisk {
        HardDisk {
            capacity_bytes: 2_000_000_000_000,
            placement: Placement::Spread { piece_bytes: 1 << 20, file_count: 1 },
            revolution_ns: 8_333_333,
            seek_track_ns: MILLISECOND_NS,
            seek_third_ns: 8_000 * MICROSECOND_NS,
            seek_full_ns: 18 * MILLISECOND_NS,
            write_settle_ns: 500 * MICROSECOND_NS,
            outer_bytes_per_second: 180_000_000,
            inner_bytes_per_second: 85_000_000,
            queue_depth: 32,
            overtakes_max: 44,
            command_ns: 100 * MICROSECOND_NS,
            busy_hit_ns: 900 * MICROSECOND_NS,
            bus_bytes_per_second: 400_000_000,
            read_cache_bytes: 16 << 20,
            read_segment_count: 256,
            read_ahead_bytes: 2 << 20,
            write_cache_bytes: 4 << 20,
        }
    }

    /// These parameters for a file of `length_bytes`: a file that stands for a large volume must
    /// not fit into the drive cache if the volume would not.
    fn scaled_to(self, length_bytes: u64) -> HardDisk {
        match self.placement {
            Placement::Band { .. } => self,
            Placement::Spread { .. } => {
                let bytes_max = (length_bytes / CACHE_SHARE).max(CACHE_BYTES_MIN);
                HardDisk {
                    read_cache_bytes: self.read_cache_bytes.min(bytes_max),
                    write_cache_bytes: self.write_cache_bytes.min(bytes_max),
                    ..self
                }
            }
        }
    }
}
