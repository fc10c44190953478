//! Indexes of many extents, and what a hit costs the engine.
//!
//! Extents are written in random order, with a gap between any two. A read is answered at once
//! without any transfer ([`Devices`]).

use forebay_engine::format::superblock::Geometry;
use forebay_engine::options::{SetSettings, VolumeSettings};
use forebay_engine::request::{Durability, RequestKind, Served};
use forebay_engine::units::Time;

use crate::devices::{BLOCK, Devices, VOLUME};

/// Hits of a round; some hundred milliseconds.
pub(crate) const HITS: u64 = 1 << 19;
/// Writes that are handed in at a time to fill the cache.
const FILL_DEPTH: u64 = 32;

/// What the index holds.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// A power of two.
    pub(crate) extents: u64,
    /// Blocks of each.
    pub(crate) extent_blocks: u64,
}

/// Bytes of memory by the engine's own count, beyond those of an empty cache.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// Of the index.
    pub(crate) index_bytes: u64,
    /// Of checksums, in segments with data; headers and what is not yet written have some, too.
    pub(crate) checksum_bytes: u64,
    /// Of the bits of each block in these segments.
    pub(crate) bits_bytes: u64,
}

/// An engine with so many extents.
pub(crate) struct Host {
    devices: Devices,
    size: Size,
    /// What an empty cache takes.
    empty_bytes: u64,
}

impl Host {
    /// An engine that serves, with an index of this size.
    pub(crate) fn with_extents(size: Size) -> Host {
        let extents_bytes = size.extents * size.extent_blocks * BLOCK;
        // A third more than the blocks, for headers and so that nothing is short of room.
        let cache_bytes = (extents_bytes / 3 * 4).max(64 << 20);
        let geometry = Geometry::new(cache_bytes, None).expect("large enough");
        let volume = VolumeSettings { writeback_percent: 100, ..VolumeSettings::default() };
        let settings = (SetSettings::default(), volume);
        let content_bytes = usize::try_from(size.extent_blocks * BLOCK).expect("a short extent");
        let devices = Devices::serving(&geometry, 2 * extents_bytes, settings, content_bytes);
        let empty_bytes = devices.engine.status(Time(devices.now)).memory_bytes;
        let mut host = Host { devices, size, empty_bytes };
        host.fill();
        host
    }

    /// The block that the `index`th extent begins at. An odd factor meets each once, in no order;
    /// as much stays out between them, so that no two make one extent.
    fn block_of(&self, index: u64) -> u64 {
        let place = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.size.extents;
        2 * self.size.extent_blocks * place
    }

    /// Lets the devices work; the number of replies.
    fn run(&mut self, served: Served) -> u64 {
        let mut replies = 0;
        for reply in self.devices.run() {
            assert_eq!((reply.result, reply.served), (Ok(()), served));
            replies += 1;
        }
        replies
    }

    fn fill(&mut self) {
        let (buffer, durability) = (self.devices.content, Durability::Completed);
        let Size { extents, extent_blocks } = self.size;
        for first in (0..extents).step_by(FILL_DEPTH as usize) {
            for index in first..first + FILL_DEPTH {
                let block = self.block_of(index);
                let kind = RequestKind::Write { buffer, durability };
                self.devices.hand_in(block, extent_blocks, kind);
            }
            let mut replies = self.run(Served::NoRead);
            while replies < FILL_DEPTH {
                self.devices.pass_time();
                replies += self.run(Served::NoRead);
            }
        }
        let status = self
            .devices
            .engine
            .volume_status(Time(self.devices.now), VOLUME)
            .expect("it is served");
        assert_eq!(status.cached_extents, extents, "each write is an extent");
        assert_eq!(status.dirty_blocks, extents * extent_blocks, "nothing was written back");
    }

    /// What the cached extents take.
    pub(crate) fn memory(&self) -> Memory {
        let status = self.devices.engine.status(Time(self.devices.now));
        let used_segments = u64::from(status.segments - status.free_segments);
        let segment_blocks = u64::from(status.segment_blocks);
        // As `SegmentTable::bytes_per_segment` has it: a checksum of 4 bytes a block, and two bits,
        // live and dirty.
        let checksum_bytes = used_segments * segment_blocks * 4;
        let bit_bytes = used_segments * segment_blocks.div_ceil(64) * 8;
        let grown = status.memory_bytes - self.empty_bytes;
        let index_bytes = grown - checksum_bytes - 2 * bit_bytes;
        // An empty cache has three more for each block of the device: two of the policy, and that
        // it was fetched ahead.
        Memory { index_bytes, checksum_bytes, bits_bytes: 5 * bit_bytes }
    }

    /// Bytes of each level of the index.
    pub(crate) fn level_bytes(&self) -> Vec<usize> {
        self.devices.engine.index_level_bytes(VOLUME).expect("there is one volume")
    }

    /// Nanoseconds of CPU time of a hit of one block, with so many at a time.
    pub(crate) fn time_hits(&mut self, depth: u64) -> f64 {
        let buffer = self.devices.content;
        let mut random = 1u64;
        let before = cpu_nanoseconds();
        for _ in 0..HITS / depth {
            for _ in 0..depth {
                // The factor and the summand of Knuth's MMIX; the high bits are good enough.
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let within = (random >> 24) % self.size.extent_blocks;
                let block = self.block_of(random >> 32) + within;
                self.devices.hand_in(block, 1, RequestKind::Read { buffer });
            }
            assert_eq!(self.run(Served::Cache), depth);
        }
        (cpu_nanoseconds() - before) as f64 / HITS as f64
    }
}

/// CPU time of this thread; what others take of the processor meanwhile does not count.
pub(crate) fn cpu_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat");
    let text = text.expect("the kernel counts the time of threads");
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.expect("the first number is the time on a processor")
}
