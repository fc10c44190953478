//! An engine with devices that keep nothing, and what a hit costs it.
//!
//! Extents are written in random order, with a gap between any two. All blocks have the same
//! content. A read is answered at once without any transfer, into a buffer that holds that content
//! already, so that the engine finds its checksum good.

use forebay_engine::Engine;
use forebay_engine::event::{Event, SavedMark};
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::crc32c;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::io::{Device, Io, IoKind};
use forebay_engine::options::{
    CacheFacts, CacheMode, HostMark, OriginFacts, OriginOpening, VolumeSettings, WritebackOrder,
};
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Durability, Request, RequestId, RequestKind, Served};
use forebay_engine::units::{Crc32c, Time, VolumeSlot};

pub(crate) const BLOCK: u64 = 4096;
const VOLUME: VolumeSlot = VolumeSlot(0);
/// Hits of a round; some hundred milliseconds.
pub(crate) const HITS: u64 = 1 << 19;
/// Writes that are handed in at a time to fill the cache.
const FILL_DEPTH: u64 = 32;

/// Buffers of the host. Those of the engine's own metadata are made as it asks for them.
#[derive(Default)]
struct Buffers {
    slots: Vec<Vec<u8>>,
    references: Vec<u32>,
    free: Vec<u32>,
}

impl Buffers {
    fn range(&self, range: BufferRange) -> &[u8] {
        let from = range.offset as usize;
        &self.slots[range.buffer.0 as usize][from..from + range.length as usize]
    }

    fn range_mut(&mut self, range: BufferRange) -> &mut [u8] {
        let from = range.offset as usize;
        &mut self.slots[range.buffer.0 as usize][from..from + range.length as usize]
    }
}

impl Payload for Buffers {
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Vec::new());
            self.references.push(0);
            u32::try_from(self.slots.len() - 1).expect("few buffers")
        });
        self.slots[slot as usize].resize(bytes, 0);
        self.references[slot as usize] = 1;
        Some(BufferId(slot))
    }

    fn retain(&mut self, buffer: BufferId) {
        self.references[buffer.0 as usize] += 1;
    }

    fn release(&mut self, buffer: BufferId) {
        let references = &mut self.references[buffer.0 as usize];
        *references -= 1;
        if *references == 0 {
            self.free.push(buffer.0);
        }
    }

    fn checksum(&self, block: BufferRange) -> Crc32c {
        crc32c(self.range(block))
    }

    fn copy(&mut self, from: BufferRange, to: BufferRange) {
        let bytes = self.range(from).to_vec();
        self.range_mut(to).copy_from_slice(&bytes);
    }

    fn zero(&mut self, range: BufferRange) {
        self.range_mut(range).fill(0);
    }

    fn metadata(&self, range: BufferRange) -> &[u8] {
        self.range(range)
    }

    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8] {
        self.range_mut(range)
    }
}

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
    /// Of the bits of these segments, live and dirty.
    pub(crate) bits_bytes: u64,
}

/// The engine, with devices that do nothing.
pub(crate) struct Host {
    engine: Engine,
    buffers: Buffers,
    /// The content of every block that is ever written or read; a whole extent of it.
    content: BufferId,
    /// Operations taken out and not completed.
    open: Vec<Io>,
    now: u64,
    next: u64,
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
        let origin_bytes = 2 * extents_bytes;
        let geometry = Geometry::new(cache_bytes, None).expect("large enough");
        let set_id = *b"a bench, no disk";
        let mut superblock = Superblock::new(set_id, geometry, "bench");
        let volume = NewVolume {
            name: "bench".to_owned(),
            origin_path: "/nowhere".to_owned(),
            size_bytes: origin_bytes,
            logical_block_bytes: 4096,
            mode: CacheMode::Writeback,
            writeback_order: WritebackOrder::Coalescing,
        };
        superblock.add_volume(&volume).expect("it fits");
        superblock.volumes[0].as_mut().expect("just added").settings =
            VolumeSettings { writeback_percent: 100, ..VolumeSettings::default() };
        let checkpoint = Checkpoint::empty(&geometry).encode(&set_id, &geometry);
        let cache = CacheFacts {
            size_bytes: geometry.device_bytes,
            has_volatile_cache: true,
            supports_discard: false,
        };
        let facts = OriginFacts {
            size_bytes: origin_bytes,
            optimal_io_bytes: 0,
            is_rotational: true,
            has_volatile_cache: true,
            supports_discard: false,
        };
        let opening = OriginOpening { slot: VOLUME, facts: Some(facts), mark: HostMark::None };
        let engine = Engine::recover(Time(0), superblock, cache, &[opening]);
        let mut buffers = Buffers::default();
        let length = u32::try_from(size.extent_blocks * BLOCK).expect("a short extent");
        let content = buffers.allocate(length as usize).expect("there is memory");
        let whole = BufferRange { buffer: content, offset: 0, length };
        buffers.range_mut(whole).fill(0x5A);
        let open = Vec::new();
        let mut host =
            Host { engine, buffers, content, open, now: 0, next: 0, size, empty_bytes: 0 };
        host.recover(&geometry, &checkpoint);
        host.empty_bytes = host.engine.status(Time(host.now)).memory_bytes;
        host.fill();
        host
    }

    /// Lets the engine find a device that was just formatted: nothing but an empty checkpoint.
    fn recover(&mut self, geometry: &Geometry, checkpoint: &[u8]) {
        loop {
            while let Some(io) = self.engine.poll_io(&mut self.buffers) {
                if let IoKind::Read { offset_bytes, slices } = &io.kind {
                    let mut at = *offset_bytes;
                    for range in slices.as_slice() {
                        let bytes = self.buffers.range_mut(*range);
                        bytes.fill(0);
                        let from = at.wrapping_sub(geometry.checkpoint_offset);
                        let stored = usize::try_from(from).ok().and_then(|at| checkpoint.get(at..));
                        if let Some(stored) = stored.filter(|_| io.device == Device::Cache) {
                            let length = stored.len().min(bytes.len());
                            bytes[..length].copy_from_slice(&stored[..length]);
                        }
                        at += u64::from(range.length);
                    }
                }
                self.complete(&io);
            }
            while let Some(event) = self.engine.poll_event() {
                match event {
                    Event::Serving => return,
                    Event::RecoveryFailed(error) => panic!("an empty device recovers: {error}"),
                    _ => {}
                }
            }
            self.pass_time();
        }
    }

    fn complete(&mut self, io: &Io) {
        self.engine.handle_io_complete(Time(self.now), io.id, Ok(()), &mut self.buffers);
    }

    fn pass_time(&mut self) {
        if let Some(Time(wakeup)) = self.engine.poll_wakeup() {
            self.now = self.now.max(wakeup) + 1;
            self.engine.handle_time(Time(self.now), &mut self.buffers);
        }
    }

    /// The block that the `index`th extent begins at. An odd factor meets each once, in no order;
    /// as much stays out between them, so that no two make one extent.
    fn block_of(&self, index: u64) -> u64 {
        let place = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.size.extents;
        2 * self.size.extent_blocks * place
    }

    fn hand_in(&mut self, block: u64, block_count: u64, kind: RequestKind) {
        self.next += 1;
        let request = Request {
            id: RequestId(self.next),
            volume: VOLUME,
            offset_bytes: block * BLOCK,
            length_bytes: block_count * BLOCK,
            kind,
        };
        self.engine.handle_request(Time(self.now), request, &mut self.buffers);
    }

    /// Takes out and completes operations until none is left; the number of replies.
    fn run(&mut self, served: Served) -> u64 {
        let mut replies = 0;
        loop {
            while let Some(io) = self.engine.poll_io(&mut self.buffers) {
                self.open.push(io);
            }
            while let Some(reply) = self.engine.poll_reply() {
                assert_eq!((reply.result, reply.served), (Ok(()), served));
                replies += 1;
            }
            while let Some(event) = self.engine.poll_event() {
                if let Event::DirtyBegins { volume } = event {
                    let mark = SavedMark::DirtyPossible;
                    self.engine.handle_host_state_saved(Time(self.now), volume, mark);
                }
            }
            if self.open.is_empty() {
                return replies;
            }
            while let Some(io) = self.open.pop() {
                self.complete(&io);
            }
        }
    }

    fn fill(&mut self) {
        let (buffer, durability) = (self.content, Durability::Completed);
        let Size { extents, extent_blocks } = self.size;
        for first in (0..extents).step_by(FILL_DEPTH as usize) {
            for index in first..first + FILL_DEPTH {
                let block = self.block_of(index);
                let kind = RequestKind::Write { buffer, durability };
                self.hand_in(block, extent_blocks, kind);
            }
            let mut replies = self.run(Served::NoRead);
            while replies < FILL_DEPTH {
                self.pass_time();
                replies += self.run(Served::NoRead);
            }
        }
        let status = self.engine.volume_status(Time(self.now), VOLUME).expect("it is served");
        assert_eq!(status.cached_extents, extents, "each write is an extent");
        assert_eq!(status.dirty_blocks, extents * extent_blocks, "nothing was written back");
    }

    /// What the cached extents take.
    pub(crate) fn memory(&self) -> Memory {
        let status = self.engine.status(Time(self.now));
        let used_segments = u64::from(status.segments - status.free_segments);
        let segment_blocks = u64::from(status.segment_blocks);
        // As `SegmentTable::bytes_per_segment` has it: a checksum of 4 bytes a block, and two bits.
        let checksum_bytes = used_segments * segment_blocks * 4;
        let bits_bytes = used_segments * 2 * segment_blocks.div_ceil(64) * 8;
        let grown = status.memory_bytes - self.empty_bytes;
        Memory { index_bytes: grown - checksum_bytes - bits_bytes, checksum_bytes, bits_bytes }
    }

    /// Nanoseconds of CPU time of a hit of one block, with so many at a time.
    pub(crate) fn time_hits(&mut self, depth: u64) -> f64 {
        let buffer = self.content;
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
                self.hand_in(block, 1, RequestKind::Read { buffer });
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
