//! What clients ask in virtual time: a bare device, or an engine on two of them.
//!
//! Invariants:
//! - Nothing fails, and operations last as the models say.
//! - What is due at one moment happens in the order: devices, the engine's own time, clients.

use std::collections::BTreeMap;

use forebay_device_model::{Request as Transfer, RequestKind as How};
use forebay_engine::Engine;
use forebay_engine::event::{Command, CommandId, Event, SavedMark};
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::io::Device as Which;
use forebay_engine::options::{CacheFacts, CacheMode, HostMark, OriginFacts, OriginOpening};
use forebay_engine::payload::{BufferId, ENGINE_BYTES_DEFAULT, Payload};
use forebay_engine::request::{Durability, Request, RequestId, RequestKind};
use forebay_engine::units::{BLOCK_BYTES, Time, VolumeSlot};

use super::device::{Device, EngineDevice, Role};
use super::payload::Buffers;
use super::settings;
use crate::plan::Act;
use crate::result::{CacheCounts, DeviceCounts};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SET_ID: [u8; 16] = *b"a virtual bench.";
const VOLUME: VolumeSlot = VolumeSlot(0);
/// What the engine may have in buffers: as much as a daemon gives it.
const ENGINE_BYTES_MAX: usize = ENGINE_BYTES_DEFAULT as usize;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Read { offset_bytes: u64, length_bytes: u64 },
    Write { offset_bytes: u64, length_bytes: u64 },
    Flush,
}

/// What is asked.
pub(super) enum System {
    Bare(Box<Device>),
    Cached(Box<Cached>),
}

impl System {
    /// Asks; `ticket` comes back when it was answered.
    pub(super) fn ask(&mut self, now_ns: u64, ticket: u64, wish: Wish) {
        match self {
            System::Bare(device) => {
                let (kind, offset_bytes, length_bytes) = match wish {
                    Wish::Read { offset_bytes, length_bytes } => {
                        (How::Read, offset_bytes, length_bytes)
                    }
                    Wish::Write { offset_bytes, length_bytes } => {
                        (How::Write, offset_bytes, length_bytes)
                    }
                    Wish::Flush => (How::Flush, 0, 0),
                };
                device.begin(now_ns, ticket, Transfer { kind, offset_bytes, length_bytes });
            }
            System::Cached(cached) => cached.ask(now_ns, ticket, wish),
        }
    }

    /// When something happens without anybody's doing.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        match self {
            System::Bare(device) => device.next_event_ns(),
            System::Cached(cached) => cached.next_event_ns(),
        }
    }

    /// Lets time pass until `now_ns`; tickets of what was answered go into `answered`.
    pub(super) fn advance(&mut self, now_ns: u64, answered: &mut Vec<u64>) {
        match self {
            System::Bare(device) => {
                while let Some(ticket) = device.end(now_ns) {
                    answered.push(ticket);
                }
            }
            System::Cached(cached) => cached.advance(now_ns, answered),
        }
    }

    /// What the cache did since this was asked last, and holds now.
    pub(super) fn take_cache_counts(&mut self, now_ns: u64) -> Option<CacheCounts> {
        match self {
            System::Bare(_) => None,
            System::Cached(cached) => Some(cached.take_counts(now_ns)),
        }
    }

    /// Bytes read so far from the cache and from the origin, and bytes that are dirty.
    pub(super) fn glance(&self, now_ns: u64) -> (u64, u64, u64) {
        match self {
            System::Bare(_) => (0, 0, 0),
            System::Cached(cached) => {
                let status = cached.engine.volume_status(Time(now_ns), VOLUME);
                let status = status.expect("it is served");
                let counters = status.counters;
                let dirty_bytes = status.dirty_blocks * BLOCK;
                (counters.read_hit_bytes, counters.read_miss_bytes, dirty_bytes)
            }
        }
    }

    /// Ends what serves as an act says, and serves again; returns when it does. A bare device has
    /// nothing to end.
    pub(super) fn again(&mut self, now_ns: u64, act: Act) -> u64 {
        match self {
            System::Bare(_) => now_ns,
            System::Cached(cached) => cached.again(now_ns, act),
        }
    }

    /// What the devices did since this was asked last.
    pub(super) fn take_device_counts(&mut self) -> Vec<DeviceCounts> {
        match self {
            System::Bare(device) => vec![device.take_counts()],
            System::Cached(cached) => [&mut cached.cache, &mut cached.origin]
                .map(|device| device.device_mut().take_counts())
                .to_vec(),
        }
    }
}

/// A volume with a cache.
pub(super) struct Cached {
    engine: Engine,
    buffers: Buffers,
    cache: EngineDevice,
    origin: EngineDevice,
    /// Buffers of requests that were not answered, by ticket.
    requests: Vec<Option<BufferId>>,
    counted: CacheCounts,
    facts: Facts,
    /// The engine has done what it was told to do at its end.
    has_stopped: bool,
}

/// What an engine has to know at its start beside the superblock.
#[derive(Clone, Copy)]
struct Facts {
    cache: CacheFacts,
    origin: OriginFacts,
}

impl Facts {
    fn recover(self, now_ns: u64, superblock: Superblock) -> Engine {
        let (facts, mark) = (Some(self.origin), HostMark::None);
        let opening = OriginOpening { slot: VOLUME, facts, mark };
        Engine::recover(Time(now_ns), superblock, self.cache, &[opening])
    }
}

/// What a cached volume is made of.
pub(super) struct Parts<'a> {
    pub(super) cache: Device,
    pub(super) cache_bytes: u64,
    pub(super) origin: Device,
    pub(super) origin_bytes: u64,
    pub(super) is_rotational: bool,
    pub(super) mode: CacheMode,
    /// Settings other than the defaults.
    pub(super) settings: &'a BTreeMap<String, String>,
}

impl Cached {
    /// Formats the cache device and lets the engine serve; all of that is before time zero.
    pub(super) fn serve(parts: Parts<'_>) -> Result<(Cached, u64), String> {
        let geometry = Geometry::new(parts.cache_bytes, None).map_err(|error| error.to_string())?;
        let mut superblock = Superblock::new(SET_ID, geometry, "bench");
        let settings = settings::parse(parts.settings, superblock.settings)?;
        superblock.settings = settings.set;
        let volume = NewVolume {
            name: "volume".to_owned(),
            origin_path: "/dev/modelled".to_owned(),
            size_bytes: parts.origin_bytes,
            logical_block_bytes: 512,
            mode: parts.mode,
            writeback_order: settings.writeback_order,
            settings: settings.volume,
        };
        superblock.add_volume(&volume).map_err(|error| error.to_string())?;
        let mut cache = EngineDevice::new(parts.cache, Role::Cache);
        let checkpoint = Checkpoint::empty(&geometry).encode(&SET_ID, &geometry);
        cache.store(geometry.checkpoint_offset, &checkpoint);
        let facts = Facts {
            cache: CacheFacts {
                size_bytes: geometry.device_bytes,
                has_volatile_cache: true,
                supports_discard: true,
            },
            origin: OriginFacts {
                optimal_io_bytes: 0,
                is_rotational: parts.is_rotational,
                has_volatile_cache: true,
                supports_discard: false,
            },
        };
        let mut cached = Cached {
            engine: facts.recover(0, superblock),
            buffers: Buffers::new(ENGINE_BYTES_MAX),
            cache,
            origin: EngineDevice::new(parts.origin, Role::Origin),
            requests: Vec::new(),
            counted: CacheCounts::default(),
            facts,
            has_stopped: false,
        };
        let now_ns = cached.recover(0);
        Ok((cached, now_ns))
    }

    /// Lets time pass until the engine serves. What that takes of the devices is not counted.
    fn recover(&mut self, mut now_ns: u64) -> u64 {
        let mut answered = Vec::new();
        self.poll(now_ns, &mut answered);
        while !self.engine.status(Time(now_ns)).is_serving {
            now_ns = self.next_event_ns().expect("recovery goes on by itself");
            self.advance(now_ns, &mut answered);
        }
        for device in [&mut self.cache, &mut self.origin] {
            device.device_mut().take_counts();
        }
        now_ns
    }

    /// No request is under way. What the devices have been given they finish: a process that dies
    /// takes nothing back from them.
    fn again(&mut self, mut now_ns: u64, act: Act) -> u64 {
        if act == Act::Restart {
            self.engine.handle_command(Time(now_ns), CommandId(0), Command::Stop);
            let mut answered = Vec::new();
            self.poll(now_ns, &mut answered);
            while !self.has_stopped {
                now_ns = self.next_event_ns().expect("it stops by itself");
                self.advance(now_ns, &mut answered);
            }
            self.has_stopped = false;
        }
        for device in [&mut self.cache, &mut self.origin] {
            while let Some(next_ns) = device.next_event_ns() {
                now_ns = now_ns.max(next_ns);
                while device.end(now_ns, &mut self.buffers).is_some() {}
            }
        }
        self.engine = self.facts.recover(now_ns, self.engine.superblock().clone());
        self.buffers = Buffers::new(ENGINE_BYTES_MAX);
        self.requests.clear();
        self.counted = CacheCounts::default();
        self.recover(now_ns)
    }

    fn next_event_ns(&self) -> Option<u64> {
        let wakeup = self.engine.poll_wakeup().map(|time| time.0);
        let devices = [self.cache.next_event_ns(), self.origin.next_event_ns()];
        devices.into_iter().chain([wakeup]).flatten().min()
    }

    fn ask(&mut self, now_ns: u64, ticket: u64, wish: Wish) {
        let (offset_bytes, length_bytes) = match wish {
            Wish::Read { offset_bytes, length_bytes }
            | Wish::Write { offset_bytes, length_bytes } => (offset_bytes, length_bytes),
            Wish::Flush => (0, 0),
        };
        // A buffer covers the whole blocks around the range.
        let first = offset_bytes / BLOCK * BLOCK;
        let buffer_bytes = (offset_bytes + length_bytes).next_multiple_of(BLOCK) - first;
        let buffer = self.buffers.for_client(buffer_bytes as usize);
        let kind = match wish {
            Wish::Read { .. } => RequestKind::Read { buffer },
            Wish::Write { .. } => RequestKind::Write { buffer, durability: Durability::Completed },
            Wish::Flush => RequestKind::Flush,
        };
        let index = ticket as usize;
        if self.requests.len() <= index {
            self.requests.resize(index + 1, None);
        }
        self.requests[index] = Some(buffer);
        let id = RequestId(ticket);
        let request = Request { id, volume: VOLUME, offset_bytes, length_bytes, kind };
        self.engine.handle_request(Time(now_ns), request, &mut self.buffers);
    }

    fn advance(&mut self, now_ns: u64, answered: &mut Vec<u64>) {
        let now = Time(now_ns);
        for device in [&mut self.cache, &mut self.origin] {
            while let Some(id) = device.end(now_ns, &mut self.buffers) {
                self.engine.handle_io_complete(now, id, Ok(()), &mut self.buffers);
            }
        }
        if self.engine.poll_wakeup().is_some_and(|wakeup| wakeup <= now) {
            self.engine.handle_time(now, &mut self.buffers);
        }
        self.poll(now_ns, answered);
    }

    /// Does what the engine wants until it wants nothing more.
    fn poll(&mut self, now_ns: u64, answered: &mut Vec<u64>) {
        loop {
            let mut is_quiet = true;
            while let Some(io) = self.engine.poll_io(&mut self.buffers) {
                is_quiet = false;
                match io.device {
                    Which::Cache => self.cache.begin(now_ns, io),
                    Which::Origin(_) => self.origin.begin(now_ns, io),
                }
            }
            while let Some(reply) = self.engine.poll_reply() {
                is_quiet = false;
                assert_eq!(reply.result, Ok(()), "no device fails");
                let buffer = self.requests[reply.id.0 as usize].take().expect("it was asked");
                self.buffers.release(buffer);
                answered.push(reply.id.0);
            }
            while let Some(event) = self.engine.poll_event() {
                is_quiet = false;
                match event {
                    Event::DirtyBegins { volume } => {
                        let mark = SavedMark::DirtyPossible;
                        self.engine.handle_host_state_saved(Time(now_ns), volume, mark);
                    }
                    Event::CommandComplete { .. } => self.has_stopped = true,
                    _ => {}
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn take_counts(&mut self, now_ns: u64) -> CacheCounts {
        let set = self.engine.status(Time(now_ns));
        let volume = self.engine.volume_status(Time(now_ns), VOLUME).expect("it is served");
        let all = CacheCounts {
            read_hit_bytes: volume.counters.read_hit_bytes,
            read_miss_bytes: volume.counters.read_miss_bytes,
            write_bytes: volume.counters.write_bytes,
            promoted_bytes: set.counters.promoted_bytes,
            relocated_bytes: set.counters.relocated_bytes,
            cache_written_bytes: set.counters.cache_written_bytes(),
            cached_bytes: set.cached_blocks * BLOCK,
            dirty_bytes: set.dirty_blocks * BLOCK,
        };
        let before = std::mem::replace(&mut self.counted, all);
        all.since(&before)
    }
}
