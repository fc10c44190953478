//! An engine with one volume, whose origin and cache device are models of devices, in virtual time.
//!
//! Invariants:
//! - Nothing fails and nothing lingers: operations last as the models say.
//! - What is due at one moment happens in the order: devices, the engine's own time, clients.

use std::collections::BTreeMap;

use forebay_device_model::{Model, ModelDevice, Request as Transfer, RequestKind as How};
use forebay_device_model::{Ssd, Token};
use forebay_engine::Engine;
use forebay_engine::event::{Event, SavedMark};
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::io::{Device, Io, IoId, IoKind, Slices};
use forebay_engine::options::{
    CacheFacts, CacheMode, HostMark, OriginFacts, OriginOpening, VolumeSettings, WritebackOrder,
};
use forebay_engine::payload::{BufferId, BufferRange, ENGINE_BYTES_DEFAULT};
use forebay_engine::request::{Durability, Request, RequestId, RequestKind};
use forebay_engine::status::{VolumeStatus, WritebackPace};
use forebay_engine::units::{BLOCK_BYTES, Time, VolumeSlot};

use crate::media::{AtomicUnit, BLOCK_SECTORS, Content, Fresh, Media, Part, WriteCache};
use crate::payload::{BufferPool, PoolLimits};
use crate::random::Random;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SET_ID: [u8; 16] = *b"in virtual time.";
const VOLUME: VolumeSlot = VolumeSlot(0);
/// All sectors of a block.
const WHOLE: u8 = 0xFF;
/// What the engine may have in buffers: as much as a daemon gives it.
const ENGINE_BYTES_MAX: u64 = ENGINE_BYTES_DEFAULT;

/// What the devices and the volume are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setup {
    pub(crate) cache_bytes: u64,
    pub(crate) origin_bytes: u64,
    pub(crate) origin: Model,
    pub(crate) writeback_percent: u8,
}

/// A device that keeps what is written, and lasts as its model says.
struct Modelled {
    model: ModelDevice,
    media: Media,
    under_way: BTreeMap<u64, Io>,
}

impl Modelled {
    fn new(model: &Model, size_bytes: u64, seed: u64) -> Modelled {
        let blocks = u32::try_from(size_bytes / BLOCK).expect("a small device");
        let media = Media::new(blocks, Fresh::Zeroes, AtomicUnit::Block, WriteCache::Durable);
        let model = ModelDevice::new(model, size_bytes, seed);
        Modelled { model, media, under_way: BTreeMap::new() }
    }

    fn begin(&mut self, now: u64, io: Io) {
        let (offset_bytes, length_bytes) = io.kind.extent_bytes();
        let kind = match io.kind {
            IoKind::Read { .. } => How::Read,
            IoKind::Write { .. } => How::Write,
            IoKind::Flush => How::Flush,
            IoKind::Discard { .. } => How::Discard,
            IoKind::WriteZeroes { .. } => How::WriteZeroes,
        };
        self.model.push(now, Token(io.id.0), Transfer { kind, offset_bytes, length_bytes });
        self.under_way.insert(io.id.0, io);
    }

    /// The next operation that is over, with its effect.
    fn end(&mut self, now: u64, pool: &mut BufferPool) -> Option<IoId> {
        let id = self.model.poll(now)?.token.0;
        let io = self.under_way.remove(&id).expect("it is under way");
        match &io.kind {
            IoKind::Read { offset_bytes, slices } => {
                let mut sector = (offset_bytes / 512) as u32;
                for range in slices.as_slice() {
                    self.media.read(sector, pool.bytes_mut(*range));
                    sector += range.length / 512;
                }
            }
            IoKind::Write { offset_bytes, slices } => {
                self.write(id, (offset_bytes / BLOCK) as u32, slices, pool);
            }
            IoKind::WriteZeroes { offset_bytes, length_bytes, .. } => {
                let first = offset_bytes / BLOCK;
                for block in first..first + length_bytes / BLOCK {
                    self.land(id, block as u32, Content::Zero);
                }
            }
            // What is discarded may keep what it holds.
            IoKind::Flush | IoKind::Discard { .. } => {}
        }
        Some(io.id)
    }

    fn write(&mut self, id: u64, first: u32, slices: &Slices, pool: &BufferPool) {
        let ranges = slices.as_slice().iter();
        let blocks = ranges.flat_map(|range| pool.bytes(*range).chunks_exact(BLOCK_BYTES));
        for (block, bytes) in (first..).zip(blocks) {
            self.land(id, block, Content::Bytes(bytes.into()));
        }
    }

    fn land(&mut self, id: u64, block: u32, content: Content) {
        self.media.land(id, Part { block, sectors: WHOLE }, content);
        self.media.complete(id, std::iter::once(block), 0);
    }
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Of a client, by number.
    Read { client: usize, block: u64, block_count: u64 },
    /// One block.
    Write(u64),
}

/// The engine with its devices.
pub(crate) struct Host {
    engine: Engine,
    pool: BufferPool,
    cache: Modelled,
    origin: Modelled,
    now: u64,
    requests: BTreeMap<u64, (Wish, BufferId)>,
    request_count: u64,
}

impl Host {
    /// Formats the cache device and lets the engine serve.
    pub(crate) fn serve(setup: Setup, seed: u64) -> Host {
        let mut random = Random::new(seed);
        let geometry = Geometry::new(setup.cache_bytes, None).expect("large enough");
        let mut superblock = Superblock::new(SET_ID, geometry, "virtual time");
        let volume = NewVolume {
            name: "volume".to_owned(),
            origin_path: "/dev/modelled".to_owned(),
            size_bytes: setup.origin_bytes,
            logical_block_bytes: BLOCK as u32,
            // Reads are there to use the origin. What they brought into the cache would have to be
            // reclaimed, which is another story.
            mode: CacheMode::Writeonly,
            writeback_order: WritebackOrder::Coalescing,
            settings: VolumeSettings {
                writeback_percent: setup.writeback_percent,
                ..VolumeSettings::default()
            },
        };
        superblock.add_volume(&volume).expect("the table has room");
        let ssd = Model::Ssd(Ssd::nvme_2019());
        let mut cache = Modelled::new(&ssd, geometry.device_bytes, random.bits());
        let checkpoint = Checkpoint::empty(&geometry).encode(&SET_ID, &geometry);
        cache.media.write_durable((geometry.checkpoint_offset / 512) as u32, &checkpoint);
        let origin = Modelled::new(&setup.origin, setup.origin_bytes, random.bits());
        let cache_facts = CacheFacts {
            size_bytes: geometry.device_bytes,
            has_volatile_cache: true,
            supports_discard: false,
        };
        let facts = OriginFacts {
            optimal_io_bytes: 0,
            is_rotational: matches!(setup.origin, Model::HardDisk(_)),
            has_volatile_cache: true,
            supports_discard: false,
        };
        let opening = OriginOpening { slot: VOLUME, facts: Some(facts), mark: HostMark::None };
        let limits = PoolLimits { engine_bytes_max: ENGINE_BYTES_MAX, refusal_permille: 0 };
        let mut host = Host {
            engine: Engine::recover(Time(0), superblock, cache_facts, &[opening]),
            pool: BufferPool::new(limits, random.fork()),
            cache,
            origin,
            now: 0,
            requests: BTreeMap::new(),
            request_count: 0,
        };
        host.poll();
        while !host.engine.status(Time(host.now)).is_serving {
            let next = host.next_event().expect("recovery goes on by itself");
            host.advance(next, &[]);
        }
        host
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn status(&self) -> (VolumeStatus, WritebackPace) {
        let status = self.engine.volume_status(Time(self.now), VOLUME);
        let pace = self.engine.writeback_pace(VOLUME);
        (status.expect("it is served"), pace.expect("it is served"))
    }

    /// When something happens without anybody's doing.
    pub(crate) fn next_event(&self) -> Option<u64> {
        let wakeup = self.engine.poll_wakeup().map(|time| time.0);
        let devices = [&self.cache, &self.origin].map(|device| device.model.next_event_ns());
        devices.into_iter().chain([wakeup]).flatten().min()
    }

    fn ask(&mut self, wish: Wish) {
        let (block, block_count) = match wish {
            Wish::Read { block, block_count, .. } => (block, block_count),
            Wish::Write(block) => (block, 1),
        };
        let length_bytes = block_count * BLOCK;
        let length = u32::try_from(length_bytes).expect("a short request");
        let buffer = self.pool.host_allocate(length as usize);
        let kind = match wish {
            Wish::Read { .. } => RequestKind::Read { buffer },
            Wish::Write(block) => {
                let bytes = self.pool.bytes_mut(BufferRange { buffer, offset: 0, length });
                bytes.fill(mark(block));
                RequestKind::Write { buffer, durability: Durability::Completed }
            }
        };
        self.request_count += 1;
        self.requests.insert(self.request_count, (wish, buffer));
        let request = Request {
            id: RequestId(self.request_count),
            volume: VOLUME,
            offset_bytes: block * BLOCK,
            length_bytes,
            kind,
        };
        self.engine.handle_request(Time(self.now), request, &mut self.pool);
    }

    /// Lets time pass until `then`, when a client has these wishes; which were answered.
    pub(crate) fn advance(&mut self, then: u64, wishes: &[Wish]) -> Vec<Wish> {
        self.now = self.now.max(then);
        let now = Time(self.now);
        for device in [&mut self.cache, &mut self.origin] {
            while let Some(id) = device.end(self.now, &mut self.pool) {
                self.engine.handle_io_complete(now, id, Ok(()), &mut self.pool);
            }
        }
        if self.engine.poll_wakeup().is_some_and(|wakeup| wakeup <= now) {
            self.engine.handle_time(now, &mut self.pool);
        }
        for wish in wishes {
            self.ask(*wish);
        }
        self.poll()
    }

    /// Does what the engine wants until it wants nothing more; what was answered.
    fn poll(&mut self) -> Vec<Wish> {
        let mut answered = Vec::new();
        loop {
            let mut is_quiet = true;
            while let Some(io) = self.engine.poll_io(&mut self.pool) {
                is_quiet = false;
                match io.device {
                    Device::Cache => self.cache.begin(self.now, io),
                    Device::Origin(_) => self.origin.begin(self.now, io),
                }
            }
            while let Some(reply) = self.engine.poll_reply() {
                is_quiet = false;
                assert_eq!(reply.result, Ok(()), "no device fails");
                let (wish, buffer) = self.requests.remove(&reply.id.0).expect("it was asked");
                self.pool.host_release(buffer);
                answered.push(wish);
            }
            while let Some(event) = self.engine.poll_event() {
                is_quiet = false;
                if let Event::DirtyBegins { volume } = event {
                    let mark = SavedMark::DirtyPossible;
                    self.engine.handle_host_state_saved(Time(self.now), volume, mark);
                }
            }
            if is_quiet {
                return answered;
            }
        }
    }

    /// Whether the origin alone has what was written to a block.
    pub(crate) fn is_home(&self, block: u64) -> bool {
        let mut bytes = [0; BLOCK_BYTES];
        self.origin.media.read(block as u32 * BLOCK_SECTORS, &mut bytes);
        bytes.iter().all(|byte| *byte == mark(block))
    }
}

/// What is written to a block: never zero, which is what an origin holds at first.
fn mark(block: u64) -> u8 {
    block as u8 | 1
}
