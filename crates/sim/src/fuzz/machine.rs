//! A machine around the engine that does one thing after the other: devices that complete at once
//! and in any order, one client, no failures, no clock but a counter.
//!
//! What the world of the simulator is for (time, failures, crashes in between) is not here: a
//! fuzzer needs many short lives. Every wait has a bound, and an operation that leaves its device
//! is an error.

use std::collections::BTreeMap;

use forebay_engine::Engine;
use forebay_engine::error::{Corrupt, Place};
use forebay_engine::event::{Command, CommandError, CommandId, Event, SavedMark};
use forebay_engine::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use forebay_engine::io::{Device, Io, IoKind};
use forebay_engine::options::{CacheFacts, HostMark, OriginFacts, OriginOpening};
use forebay_engine::payload::BufferRange;
use forebay_engine::request::{Reply, Request, RequestError, RequestId, RequestKind};
use forebay_engine::units::{BLOCK_BYTES, Time, VolumeSlot};

use crate::payload::{BufferPool, PoolLimits};
use crate::random::Random;

/// Rounds without time passing. A whole recovery of the devices used here takes some hundred.
const ROUNDS_MAX: u32 = 100_000;
/// Wake-ups that one thing may take.
const WAKEUPS_MAX: u32 = 20_000;
/// The engine's share of memory: a few of the largest segments that recovery reads at once.
const ENGINE_BYTES_MAX: u64 = 32 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of cache device and origins.
#[derive(Clone, Debug, Default)]
pub struct Media {
    /// The cache device.
    pub cache: Vec<u8>,
    /// The origin of volume `volume-N` at N.
    pub origins: Vec<Vec<u8>>,
    /// What machines have changed, and whoever says so: a copy from before need not be compared
    /// with all of it.
    pub written: Vec<Written>,
}

impl Media {
    /// Makes them equal again to `original`, of which they were a copy before what is `written`.
    pub fn restore(&mut self, original: &Media) {
        for Written { origin, bytes } in self.written.drain(..) {
            let (device, original) = match origin {
                None => (&mut self.cache, &original.cache),
                Some(index) => (&mut self.origins[index], &original.origins[index]),
            };
            device[bytes.clone()].copy_from_slice(&original[bytes]);
        }
    }
}

/// A stretch of a device that was written, zeroed, discarded or damaged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// Index of the origin; `None` for the cache device.
    pub origin: Option<usize>,
    /// Bytes of the device.
    pub bytes: std::ops::Range<usize>,
}

/// Why a machine did not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// The cache device was refused before anything was written.
    Refused(String),
    /// Nothing is under way, and what was waited for has not come.
    Stuck(String),
    /// The engine did what it must not do.
    Wrong(String),
}

type CommandResult = Result<Option<VolumeSlot>, CommandError>;

/// An engine, its devices and its buffers.
pub struct Machine {
    engine: Engine,
    pool: BufferPool,
    media: Media,
    /// Origin by slot of the volume table.
    origin_of_slot: BTreeMap<u16, usize>,
    now: u64,
    random: Random,
    pending: Vec<Io>,
    next_id: u64,
    replies: BTreeMap<u64, Reply>,
    commands: BTreeMap<u64, CommandResult>,
    recovered: Option<Result<(), String>>,
}

/// Reads the superblock as a host does: the copy lies where the first region says, else at the end.
///
/// # Errors
/// If neither is valid, or the device is smaller than it was.
pub fn read_superblock(cache: &[u8]) -> Result<Superblock, Corrupt> {
    let region = |offset: u64| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let found = cache.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        let length = found.len().min(SUPERBLOCK_BYTES);
        bytes[..length].copy_from_slice(&found[..length]);
        bytes
    };
    let start = region(0);
    let whole = cache.len() as u64 / BLOCK * BLOCK;
    let copy_offset = Superblock::decode(Place::Superblock, &start)
        .map_or(whole.saturating_sub(SUPERBLOCK_BYTES as u64), |first| first.geometry.copy_offset);
    let chosen = Superblock::choose(&start, &region(copy_offset))?;
    let (recorded, found) = (chosen.geometry.device_bytes, cache.len() as u64);
    if found < recorded {
        let (place, field) = (Place::Superblock, "size of the device");
        return Err(Corrupt { place, field, expected: recorded, found });
    }
    Ok(chosen)
}

impl Machine {
    /// Starts the engine on what the devices hold, and waits until it serves.
    ///
    /// # Errors
    /// If it refuses or does what it must not do.
    pub fn start(media: Media, random: Random) -> Result<Machine, Halt> {
        Machine::start_or_return(media, random).map_err(|(halt, _)| halt)
    }

    /// The same; beside an error stands what is on the devices.
    ///
    /// # Errors
    /// As [`Machine::start`].
    pub fn start_or_return(media: Media, mut random: Random) -> Result<Machine, (Halt, Media)> {
        let written_before = media.written.len();
        let superblock = match read_superblock(&media.cache) {
            Ok(superblock) => superblock,
            Err(corrupt) => return Err((Halt::Refused(corrupt.to_string()), media)),
        };
        let cache = CacheFacts {
            size_bytes: media.cache.len() as u64,
            has_volatile_cache: true,
            supports_discard: random.percent(70),
        };
        let mut origin_of_slot = BTreeMap::new();
        let mut openings = Vec::new();
        for (slot, volume) in superblock.slots() {
            let index = volume.name.strip_prefix("volume-").and_then(|n| n.parse::<usize>().ok());
            let origin = index.and_then(|index| Some((index, media.origins.get(index)?)));
            // A host does not open an origin that is smaller than the volume.
            let origin = origin.filter(|(_, bytes)| bytes.len() as u64 >= volume.size_bytes);
            if let Some((index, _)) = origin {
                origin_of_slot.insert(slot.0, index);
            }
            let facts = origin.map(|_| OriginFacts {
                optimal_io_bytes: 0,
                is_rotational: true,
                has_volatile_cache: true,
                supports_discard: true,
            });
            openings.push(OriginOpening { slot, facts, mark: HostMark::None });
        }
        let limits = PoolLimits { engine_bytes_max: ENGINE_BYTES_MAX, refusal_permille: 0 };
        let mut machine = Machine {
            engine: Engine::recover(Time(0), superblock, cache, &openings),
            pool: BufferPool::new(limits, random.fork()),
            media,
            origin_of_slot,
            now: 0,
            random,
            pending: Vec::new(),
            next_id: 1,
            replies: BTreeMap::new(),
            commands: BTreeMap::new(),
            recovered: None,
        };
        let halt = match machine.wait("recovery", |machine| machine.recovered.is_some()) {
            Err(halt) => halt,
            Ok(()) => match machine.recovered.clone().expect("just waited for") {
                Ok(()) => return Ok(machine),
                Err(text) if machine.media.written.len() == written_before => Halt::Refused(text),
                Err(text) => Halt::Wrong(format!("it wrote to a device and then refused: {text}")),
            },
        };
        Err((halt, machine.media))
    }

    /// The process dies; operations that were handed over and not done never happen.
    #[must_use]
    pub fn kill(self) -> Media {
        self.media
    }

    /// The devices, between operations.
    #[must_use]
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// Writes blocks and waits for the answer.
    ///
    /// # Errors
    /// See [`Halt`]; inside, what the client was told.
    pub fn write(
        &mut self,
        slot: VolumeSlot,
        start: u64,
        bytes: &[u8],
    ) -> Result<Result<(), RequestError>, Halt> {
        let id = self.submit_write(slot, start, bytes);
        self.answer(id).map(|reply| reply.result)
    }

    /// Hands a write in and waits for nothing.
    pub fn submit_write(&mut self, slot: VolumeSlot, start: u64, bytes: &[u8]) -> RequestId {
        let buffer = self.pool.host_allocate(bytes.len());
        let range = BufferRange { buffer, offset: 0, length: bytes.len() as u32 };
        self.pool.bytes_mut(range).copy_from_slice(bytes);
        let durability = forebay_engine::request::Durability::Completed;
        let kind = RequestKind::Write { buffer, durability };
        self.submit(slot, (start * BLOCK, bytes.len() as u64), kind)
    }

    /// Reads blocks and waits for the answer.
    ///
    /// # Errors
    /// See [`Halt`]; inside, what the client was told.
    pub fn read(
        &mut self,
        slot: VolumeSlot,
        start: u64,
        block_count: u64,
    ) -> Result<Result<Vec<u8>, RequestError>, Halt> {
        let length = block_count * BLOCK;
        let buffer = self.pool.host_allocate(length as usize);
        let id = self.submit(slot, (start * BLOCK, length), RequestKind::Read { buffer });
        let reply = self.answer(id)?;
        let range = BufferRange { buffer, offset: 0, length: length as u32 };
        let bytes = self.pool.bytes(range).to_vec();
        self.pool.host_release(buffer);
        Ok(reply.result.map(|()| bytes))
    }

    /// A request without payload; waits for the answer.
    ///
    /// # Errors
    /// See [`Halt`]; inside, what the client was told.
    pub fn request(
        &mut self,
        slot: VolumeSlot,
        blocks: std::ops::Range<u64>,
        kind: RequestKind,
    ) -> Result<Result<(), RequestError>, Halt> {
        let range = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        let id = self.submit(slot, range, kind);
        self.answer(id).map(|reply| reply.result)
    }

    fn submit(&mut self, volume: VolumeSlot, range: (u64, u64), kind: RequestKind) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let request = Request { id, volume, offset_bytes: range.0, length_bytes: range.1, kind };
        self.engine.handle_request(Time(self.now), request, &mut self.pool);
        id
    }

    fn answer(&mut self, id: RequestId) -> Result<Reply, Halt> {
        self.wait("a request", |machine| machine.replies.contains_key(&id.0))?;
        Ok(self.replies.remove(&id.0).expect("just waited for"))
    }

    /// Carries a command out.
    ///
    /// # Errors
    /// See [`Halt`]; inside, what the operator was told.
    pub fn command(&mut self, command: Command) -> Result<CommandResult, Halt> {
        let id = self.next_id;
        self.next_id += 1;
        self.engine.handle_command(Time(self.now), CommandId(id), command);
        self.wait("a command", |machine| machine.commands.contains_key(&id))?;
        Ok(self.commands.remove(&id).expect("just waited for"))
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// See [`Halt`].
    pub fn idle(&mut self, wakeups: u32) -> Result<(), Halt> {
        self.settle(u32::MAX)?;
        for _ in 0..wakeups {
            if !self.wake()? {
                break;
            }
        }
        Ok(())
    }

    /// Does at most so many of the operations that are to be done.
    ///
    /// # Errors
    /// See [`Halt`].
    pub fn settle(&mut self, mut operations: u32) -> Result<(), Halt> {
        for _ in 0..ROUNDS_MAX {
            let was_quiet = self.take_out();
            if self.pending.is_empty() && was_quiet || operations == 0 {
                return Ok(());
            }
            if !self.pending.is_empty() {
                let io = self.pending.swap_remove(self.random.index(self.pending.len()));
                self.complete(&io)?;
                operations -= 1;
            }
        }
        Err(Halt::Wrong(format!("no end of work; {}", self.describe())))
    }

    fn wait(&mut self, what: &str, is_done: impl Fn(&Machine) -> bool) -> Result<(), Halt> {
        self.settle(u32::MAX)?;
        for _ in 0..WAKEUPS_MAX {
            if is_done(self) {
                return Ok(());
            }
            if !self.wake()? && !is_done(self) {
                return Err(Halt::Stuck(format!("waits for {what}; {}", self.describe())));
            }
        }
        Err(Halt::Stuck(format!("{what} takes {WAKEUPS_MAX} wake-ups; {}", self.describe())))
    }

    /// Goes to the next wake-up; `false` if there is none.
    fn wake(&mut self) -> Result<bool, Halt> {
        let Some(Time(next)) = self.engine.poll_wakeup() else { return Ok(false) };
        self.now = self.now.max(next) + 1;
        self.engine.handle_time(Time(self.now), &mut self.pool);
        self.settle(u32::MAX)?;
        Ok(true)
    }

    fn describe(&self) -> String {
        let waiting = self.engine.describe_waiting();
        waiting.lines().take(12).collect::<Vec<_>>().join("\n")
    }

    /// Takes out what the engine has for its host; tells whether that was nothing.
    fn take_out(&mut self) -> bool {
        let mut is_quiet = true;
        while let Some(io) = self.engine.poll_io(&mut self.pool) {
            self.pending.push(io);
            is_quiet = false;
        }
        while let Some(reply) = self.engine.poll_reply() {
            self.replies.insert(reply.id.0, reply);
            is_quiet = false;
        }
        while let Some(event) = self.engine.poll_event() {
            self.on_event(event);
            is_quiet = false;
        }
        is_quiet
    }

    fn on_event(&mut self, event: Event) {
        let now = Time(self.now);
        match event {
            Event::Serving => self.recovered = Some(Ok(())),
            Event::RecoveryFailed(error) => self.recovered = Some(Err(error.to_string())),
            Event::CommandComplete { command, result } => {
                self.commands.insert(command.0, result);
            }
            Event::DirtyBegins { volume } => {
                self.engine.handle_host_state_saved(now, volume, SavedMark::DirtyPossible);
            }
            Event::ReadyToTakeOver
            | Event::DirtyEnded { .. }
            | Event::OriginChanged { .. }
            | Event::CacheFailed { .. }
            | Event::CacheDegraded
            | Event::Explained { .. }
            | Event::WritesLost { .. }
            | Event::DirtyDiscarded { .. }
            | Event::OriginReleased { .. }
            | Event::TableChanged => {}
        }
    }

    fn complete(&mut self, io: &Io) -> Result<(), Halt> {
        let origin = match io.device {
            Device::Cache => None,
            Device::Origin(slot) => match self.origin_of_slot.get(&slot.0) {
                Some(index) => Some(*index),
                None => return Err(Halt::Wrong(format!("{io:?} is for an origin not open"))),
            },
        };
        let device = match origin {
            None => &mut self.media.cache,
            Some(index) => &mut self.media.origins[index],
        };
        let (offset, length) = io.kind.extent_bytes();
        if offset.checked_add(length).is_none_or(|end| end > device.len() as u64) {
            return Err(Halt::Wrong(format!("{io:?} leaves its device")));
        }
        let bytes = offset as usize..(offset + length) as usize;
        let place = &mut device[bytes.clone()];
        match &io.kind {
            IoKind::Read { slices, .. } => {
                let mut rest = &*place;
                for range in slices.as_slice() {
                    let (bytes, behind) = rest.split_at(range.length as usize);
                    self.pool.bytes_mut(*range).copy_from_slice(bytes);
                    rest = behind;
                }
            }
            IoKind::Write { slices, .. } => {
                let mut rest = place;
                for range in slices.as_slice() {
                    let (bytes, behind) = rest.split_at_mut(range.length as usize);
                    bytes.copy_from_slice(self.pool.bytes(*range));
                    rest = behind;
                }
                self.media.written.push(Written { origin, bytes });
            }
            IoKind::Discard { .. } | IoKind::WriteZeroes { .. } => {
                place.fill(0);
                self.media.written.push(Written { origin, bytes });
            }
            IoKind::Flush => {}
        }
        self.engine.handle_io_complete(Time(self.now), io.id, Ok(()), &mut self.pool);
        Ok(())
    }
}
