//! An engine whose devices answer at once and keep no data.
//!
//! Every block of a client has the same content, which is in the client's buffer already, so that
//! the engine finds its checksum good. What the engine reads for itself is that content, too, or
//! its own metadata, if that is kept.

use std::collections::{HashMap, VecDeque};

use forebay_engine::Engine;
use forebay_engine::event::{Event, SavedMark};
use forebay_engine::format::SetId;
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::crc32c;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::io::{Device, Io, IoKind};
use forebay_engine::options::{
    CacheFacts, CacheMode, HostMark, OriginFacts, OriginOpening, SetSettings, VolumeSettings,
    WritebackOrder,
};
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Reply, Request, RequestId, RequestKind};
use forebay_engine::units::{Crc32c, Time, VolumeSlot};

pub(crate) const BLOCK: u64 = 4096;
/// Of every byte.
const CONTENT: u8 = 0x5A;
pub(crate) const VOLUME: VolumeSlot = VolumeSlot(0);
const SET_ID: SetId = *b"a bench, no disk";

/// Buffers of the host. Those of the engine's own metadata are made as it asks for them.
#[derive(Default)]
pub(crate) struct Buffers {
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

/// The engine, with one volume, and devices that do nothing.
pub(crate) struct Devices {
    pub(crate) engine: Engine,
    pub(crate) buffers: Buffers,
    /// The content of every block that is ever written or read.
    pub(crate) content: BufferId,
    /// Operations taken out and not completed.
    open: Vec<Io>,
    replies: VecDeque<Reply>,
    /// Blocks of metadata on the cache device by their offset, if they are kept: an engine that
    /// reclaims reads them.
    pub(crate) metadata: Option<HashMap<u64, Vec<u8>>>,
    pub(crate) now: u64,
    next: u64,
}

impl Devices {
    /// An engine that serves an empty cache. Requests are of `content_bytes` at most.
    pub(crate) fn serving(
        geometry: &Geometry,
        origin_bytes: u64,
        (set_settings, settings): (SetSettings, VolumeSettings),
        content_bytes: usize,
    ) -> Devices {
        let mut superblock = Superblock::new(SET_ID, *geometry, "bench");
        superblock.settings = set_settings;
        let volume = NewVolume {
            name: "bench".to_owned(),
            origin_path: "/nowhere".to_owned(),
            size_bytes: origin_bytes,
            logical_block_bytes: 4096,
            mode: CacheMode::Writeback,
            writeback_order: WritebackOrder::Coalescing,
            settings,
        };
        superblock.add_volume(&volume).expect("it fits");
        let cache = CacheFacts {
            size_bytes: geometry.device_bytes,
            has_volatile_cache: true,
            supports_discard: false,
        };
        let facts = OriginFacts {
            optimal_io_bytes: 0,
            is_rotational: true,
            has_volatile_cache: true,
            supports_discard: false,
        };
        let opening = OriginOpening { slot: VOLUME, facts: Some(facts), mark: HostMark::None };
        let mut buffers = Buffers::default();
        let content = buffers.allocate(content_bytes).expect("there is memory");
        buffers.slots[content.0 as usize].fill(CONTENT);
        let engine = Engine::recover(Time(0), superblock, cache, &[opening]);
        let mut devices = Devices {
            engine,
            buffers,
            content,
            open: Vec::new(),
            replies: VecDeque::new(),
            metadata: None,
            now: 0,
            next: 0,
        };
        devices.recover(geometry);
        devices
    }

    /// Lets the engine find a device that was just formatted: nothing but an empty checkpoint.
    fn recover(&mut self, geometry: &Geometry) {
        let checkpoint = Checkpoint::empty(geometry).encode(&SET_ID, geometry);
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

    /// Goes on to the moment that the engine waits for.
    pub(crate) fn pass_time(&mut self) {
        if let Some(Time(wakeup)) = self.engine.poll_wakeup() {
            self.now = self.now.max(wakeup) + 1;
            self.engine.handle_time(Time(self.now), &mut self.buffers);
        }
    }

    pub(crate) fn hand_in(&mut self, block: u64, block_count: u64, kind: RequestKind) {
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

    /// Takes out and completes operations until none is left; the replies that came.
    pub(crate) fn run(&mut self) -> impl Iterator<Item = Reply> {
        loop {
            while let Some(io) = self.engine.poll_io(&mut self.buffers) {
                self.open.push(io);
            }
            while let Some(reply) = self.engine.poll_reply() {
                self.replies.push_back(reply);
            }
            while let Some(event) = self.engine.poll_event() {
                if let Event::DirtyBegins { volume } = event {
                    let mark = SavedMark::DirtyPossible;
                    self.engine.handle_host_state_saved(Time(self.now), volume, mark);
                }
            }
            if self.open.is_empty() {
                return self.replies.drain(..);
            }
            while let Some(io) = self.open.pop() {
                self.transfer(&io);
                self.complete(&io);
            }
        }
    }

    /// What the engine reads and writes for itself.
    fn transfer(&mut self, io: &Io) {
        let Some(metadata) = self.metadata.as_mut().filter(|_| io.device == Device::Cache) else {
            return;
        };
        let (offset_bytes, slices, is_read) = match &io.kind {
            IoKind::Read { offset_bytes, slices } => (*offset_bytes, slices, true),
            IoKind::Write { offset_bytes, slices } => (*offset_bytes, slices, false),
            _ => return,
        };
        let mut at = offset_bytes;
        for range in slices.as_slice() {
            let is_content = range.buffer == self.content;
            for start in (0..range.length).step_by(BLOCK as usize) {
                let block = range.slice(start, BLOCK as u32);
                match (is_read, is_content) {
                    (true, true) => {}
                    (true, false) => match metadata.get(&at) {
                        Some(kept) => self.buffers.range_mut(block).copy_from_slice(kept),
                        None => self.buffers.range_mut(block).fill(CONTENT),
                    },
                    (false, true) => _ = metadata.remove(&at),
                    (false, false) => {
                        _ = metadata.insert(at, self.buffers.range(block).to_vec());
                    }
                }
                at += BLOCK;
            }
        }
    }
}
