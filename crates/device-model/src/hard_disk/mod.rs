//! A hard disk: one head over rotating platters, a command queue, a small cache.

mod drive;

pub(crate) use drive::Drive;

use crate::{MICROSECOND_NS, MILLISECOND_NS};

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
    /// A command that has been in the drive for longer goes before all younger ones.
    pub wait_max_ns: u64,
    /// Time of the firmware for each command.
    pub command_ns: u64,
    /// What a command that the drive cache serves takes longer while the head is at work.
    pub busy_hit_ns: u64,
    /// Bandwidth between drive cache and host.
    pub bus_bytes_per_second: u64,
    /// Drive cache for reads.
    pub read_cache_bytes: u64,
    /// Longest read-ahead of an idle drive.
    pub read_ahead_bytes: u64,
    /// Drive cache for writes; 0: every write waits for the platter.
    pub write_cache_bytes: u64,
}

impl HardDisk {
    /// A server disk of 2 TB with 7,200 revolutions a minute.
    #[must_use]
    pub fn server_7200() -> HardDisk {
        HardDisk {
            capacity_bytes: 2_000_000_000_000,
            placement: Placement::Spread { piece_bytes: 16 << 20 },
            revolution_ns: 8_333_333,
            seek_track_ns: MILLISECOND_NS,
            seek_third_ns: 8_500 * MICROSECOND_NS,
            seek_full_ns: 18 * MILLISECOND_NS,
            write_settle_ns: 500 * MICROSECOND_NS,
            outer_bytes_per_second: 180_000_000,
            inner_bytes_per_second: 85_000_000,
            queue_depth: 32,
            wait_max_ns: 150 * MILLISECOND_NS,
            command_ns: 100 * MICROSECOND_NS,
            busy_hit_ns: 800 * MICROSECOND_NS,
            bus_bytes_per_second: 400_000_000,
            read_cache_bytes: 16 << 20,
            read_ahead_bytes: 1 << 20,
            write_cache_bytes: 4 << 20,
        }
    }
}
