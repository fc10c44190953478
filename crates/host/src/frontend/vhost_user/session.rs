//! What a front end says over its socket, and what becomes of it.
//!
//! A message is handled whole, in the order of arrival. The only one whose answer may have to wait
//! is the stop of a ring (`GET_VRING_BASE`), until its requests have ended; no message behind it is
//! looked at before.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::abi::{
    self, CONFIG_BYTES_MAX, ConfigPart, InFlightArea, NO_DESCRIPTOR, RING_INDEX_MASK,
    RingAddresses, RingState, TableHeader, TableRegion, feature, flag, protocol_feature, request,
};
use super::in_flight::{self, InFlight};
use super::memory::Memory;
use super::queue::{Queue, Shared};
use super::request::{Geometry, QUEUE_COUNT_MAX};
use super::ring::RING_SIZE_MAX;
use super::wire::{FILES_MAX, Message, Wire, send};

const PROTOCOL_FEATURES: u64 = protocol_feature::MULTIPLE_QUEUES
    | protocol_feature::REPLY_ACK
    | protocol_feature::BACKEND_REQUESTS
    | protocol_feature::CONFIG
    | protocol_feature::IN_FLIGHT;

/// What a message asks for, beside what was done about it.
enum Answer {
    /// Nothing, or whether it was done.
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    BytesAndFile(Vec<u8>, File),
    /// It comes when a ring has stopped.
    Later,
}

/// A front end that is connected.
pub(super) struct Session {
    pub(super) wire: Wire,
    /// A message has come.
    pub(super) has_spoken: bool,
    features: u64,
    protocol_features: u64,
    pub(super) memory: Option<Memory>,
    in_flight: Option<InFlight>,
    pub(super) queues: Vec<Queue>,
    /// The queue that is to stop before anything else is done.
    stopping: Option<u16>,
    /// Where messages to the front end go.
    backend: Option<OwnedFd>,
    /// The front end has asked for the configuration, or was told to.
    has_config: bool,
    /// The configuration has changed, and the front end could not be told.
    has_missed_change: bool,
    /// Nothing is taken from it any more; what is under way ends.
    pub(super) is_closing: bool,
}

impl Session {
    pub(super) fn new(socket: OwnedFd) -> Session {
        Session {
            wire: Wire::new(socket),
            has_spoken: false,
            features: 0,
            protocol_features: 0,
            memory: None,
            in_flight: None,
            queues: Vec::new(),
            stopping: None,
            backend: None,
            has_config: false,
            has_missed_change: false,
            is_closing: false,
        }
    }

    /// Whether messages may be looked at.
    pub(super) fn is_listening(&self) -> bool {
        !self.is_closing && self.stopping.is_none()
    }

    /// Requests that were taken and not given back.
    pub(super) fn in_flight(&self) -> u32 {
        self.queues.iter().map(|queue| queue.in_flight).sum()
    }

    /// Whether a request that is not given back is done again by the next server.
    pub(super) fn remembers_requests(&self) -> bool {
        self.in_flight.is_some()
    }

    /// A queue, and what it shares with the others. `None` without guest memory.
    pub(super) fn queue(&mut self, index: u16) -> Option<(&mut Queue, Shared<'_>)> {
        let memory = self.memory.as_ref()?;
        let queue = self.queues.get_mut(usize::from(index))?;
        let in_flight = self.in_flight.as_mut();
        Some((queue, Shared { memory, in_flight, features: self.features }))
    }

    /// Does what a message asks for. Returns why not, if that is refused and the front end told.
    ///
    /// # Errors
    /// Why the front end cannot be served any more.
    pub(super) fn handle(
        &mut self,
        message: Message,
        geometry: &Geometry,
    ) -> Result<Option<String>, String> {
        self.has_spoken = true;
        let header = message.header;
        let result = self.perform(message, geometry);
        let wants_result = header.flags & flag::NEED_REPLY != 0
            && self.protocol_features & protocol_feature::REPLY_ACK != 0;
        let mut refusal = None;
        let (bytes, file) = match result {
            Ok(Answer::Later) => return Ok(None),
            Ok(Answer::Done) if !wants_result => return Ok(None),
            Ok(Answer::Done) => (0u64.as_bytes().to_vec(), None),
            Ok(Answer::Number(number)) => (number.as_bytes().to_vec(), None),
            Ok(Answer::Bytes(bytes)) => (bytes, None),
            Ok(Answer::BytesAndFile(bytes, file)) => (bytes, Some(file)),
            Err(error) if wants_result => {
                refusal = Some(error);
                (1u64.as_bytes().to_vec(), None)
            }
            Err(error) => return Err(error),
        };
        let file = file.as_ref().map(AsFd::as_fd);
        let sent = self.wire.reply(header.request, &bytes, file);
        sent.map(|()| refusal).map_err(|fault| fault.text())
    }

    fn perform(&mut self, message: Message, geometry: &Geometry) -> Result<Answer, String> {
        let Message { header, payload, mut files } = message;
        match header.request {
            request::GET_FEATURES => return Ok(Answer::Number(geometry.features())),
            request::GET_PROTOCOL_FEATURES => return Ok(Answer::Number(PROTOCOL_FEATURES)),
            request::GET_QUEUE_NUM => return Ok(Answer::Number(QUEUE_COUNT_MAX.into())),
            request::GET_CONFIG => {
                self.has_config = true;
                return config(&payload, geometry);
            }
            request::SET_CONFIG => return Err("the configuration cannot be changed".to_owned()),
            request::SET_FEATURES => self.set_features(number(&payload)?, geometry)?,
            request::SET_PROTOCOL_FEATURES => {
                self.protocol_features = offered(number(&payload)?, PROTOCOL_FEATURES)?;
            }
            request::SET_OWNER => {}
            // Deprecated; front ends that still send it mean nothing by it.
            request::RESET_OWNER => {}
            request::SET_MEM_TABLE => self.set_memory(&payload, files)?,
            request::SET_BACKEND_REQ_FD => self.backend = Some(one_file(&mut files)?),
            request::GET_INFLIGHT_FD => {
                let (area, _) = read_prefix::<InFlightArea>(&padded(&payload))?;
                let (file, area) = in_flight::create(area.queue_count, area.queue_size)?;
                return Ok(Answer::BytesAndFile(area.as_bytes().to_vec(), file));
            }
            request::SET_INFLIGHT_FD => {
                let (area, _) = read_prefix::<InFlightArea>(&padded(&payload))?;
                if self.queues.iter().any(Queue::is_started) {
                    return Err("memory for requests in flight came while rings work".to_owned());
                }
                let file = File::from(one_file(&mut files)?);
                self.in_flight = Some(InFlight::map(&area, file)?);
            }
            request::GET_VRING_BASE => {
                let state: RingState = read(&payload)?;
                self.queue_of(state.index)?.begin_stop();
                self.stopping = Some(state.index as u16);
                return Ok(Answer::Later);
            }
            other => self.set_ring(other, &payload, files)?,
        }
        Ok(Answer::Done)
    }

    fn set_features(&mut self, features: u64, geometry: &Geometry) -> Result<(), String> {
        self.features = offered(features, geometry.features())?;
        Ok(())
    }

    fn set_memory(&mut self, payload: &[u8], files: Vec<OwnedFd>) -> Result<(), String> {
        let (header, rest) = read_prefix::<TableHeader>(payload)?;
        let count = header.region_count as usize;
        if count > FILES_MAX {
            return Err(format!("{count} regions of memory are too many"));
        }
        let memory = Memory::map(&read_regions(rest, count)?, files)?;
        for queue in &mut self.queues {
            if let Err(fault) = queue.move_to(&memory) {
                queue.fail(fault);
            }
        }
        self.memory = Some(memory);
        Ok(())
    }

    /// A message that is about one ring.
    fn set_ring(
        &mut self,
        request: u32,
        payload: &[u8],
        mut files: Vec<OwnedFd>,
    ) -> Result<(), String> {
        match request {
            request::SET_VRING_NUM => {
                let RingState { index, value } = read(payload)?;
                let queue = self.queue_of(index)?;
                match u16::try_from(value) {
                    Ok(size) if size.is_power_of_two() && size <= RING_SIZE_MAX => {
                        not_started(queue)?.size = size;
                    }
                    _ => return Err(format!("a ring of {value} requests is not possible")),
                }
            }
            request::SET_VRING_ADDR => {
                let addresses: RingAddresses = read(payload)?;
                self.queue_of(addresses.index)?.addresses = Some(addresses);
                let index = addresses.index as u16;
                if let Some((queue, shared)) = self.queue(index)
                    && let Err(fault) = queue.move_to(shared.memory)
                {
                    queue.fail(fault);
                }
            }
            request::SET_VRING_BASE => {
                let RingState { index, value } = read(payload)?;
                not_started(self.queue_of(index)?)?.base = value as u16;
            }
            request::SET_VRING_ENABLE => {
                let RingState { index, value } = read(payload)?;
                self.queue_of(index)?.is_enabled = value != 0;
            }
            request::SET_VRING_KICK | request::SET_VRING_CALL | request::SET_VRING_ERR => {
                self.set_descriptor(request, number(payload)?, &mut files)?;
            }
            other => return Err(format!("request {other} is not known")),
        }
        Ok(())
    }

    fn set_descriptor(
        &mut self,
        request: u32,
        value: u64,
        files: &mut Vec<OwnedFd>,
    ) -> Result<(), String> {
        let index = (value & RING_INDEX_MASK) as u32;
        let has_none = value & NO_DESCRIPTOR != 0;
        let file = if has_none { None } else { Some(event(one_file(files)?)?) };
        let enables = self.features & feature::PROTOCOL == 0;
        let queue = self.queue_of(index)?;
        match request {
            request::SET_VRING_KICK if has_none => {
                return Err("a ring without kicks would have to be polled".to_owned());
            }
            request::SET_VRING_KICK => {
                not_started(queue)?.kick = file;
                queue.is_enabled |= enables;
            }
            request::SET_VRING_CALL => queue.set_call(file),
            _ => queue.error = file,
        }
        Ok(())
    }

    fn queue_of(&mut self, index: u32) -> Result<&mut Queue, String> {
        if index >= u32::from(QUEUE_COUNT_MAX) {
            return Err(format!("there is no queue {index}"));
        }
        while self.queues.len() <= index as usize {
            self.queues.push(Queue::new(self.queues.len() as u16));
        }
        Ok(&mut self.queues[index as usize])
    }

    /// Starts what can be started, one queue after the other.
    ///
    /// # Errors
    /// Why one cannot be, though it should.
    pub(super) fn start_next(&mut self) -> Result<Option<u16>, String> {
        if self.memory.is_none() || !self.is_listening() {
            return Ok(None);
        }
        let Some(index) = self.queues.iter().position(Queue::can_start) else { return Ok(None) };
        let index = index as u16;
        let (queue, mut shared) = self.queue(index).expect("there is memory and a queue");
        queue.start(&mut shared).map_err(|why| format!("queue {index} cannot start: {why}"))?;
        // One that does not ask knows what the server before this one told it, which may have grown
        // since, or before this session could hear of it.
        if self.backend.is_some() && !self.has_config {
            self.change_config();
        }
        Ok(Some(index))
    }

    /// Answers the stop of a ring, if its last request has ended. Returns whether it did.
    ///
    /// # Errors
    /// If the front end cannot be told.
    pub(super) fn advance_stop(&mut self) -> Result<bool, String> {
        let Some(index) = self.stopping else { return Ok(false) };
        let queue = &mut self.queues[usize::from(index)];
        if !queue.is_at_rest() {
            return Ok(false);
        }
        let state = RingState { index: index.into(), value: queue.stop().into() };
        self.stopping = None;
        let sent = self.wire.reply(request::GET_VRING_BASE, state.as_bytes(), None);
        sent.map_err(|fault| fault.text())?;
        Ok(true)
    }

    /// Whether the front end knows what the configuration is now.
    pub(super) fn knows_config(&self) -> bool {
        !self.has_missed_change
    }

    /// The configuration is another: the front end is told, if it listens to that.
    pub(super) fn change_config(&mut self) {
        let Some(backend) = &self.backend else {
            self.has_missed_change = true;
            return;
        };
        let (request, flags) = (abi::BACKEND_CONFIG_CHANGED, flag::VERSION);
        let told = send(backend.as_fd(), request, flags, &[], None);
        self.has_missed_change = told.is_err();
        self.has_config = true;
        if let Err(fault) = told {
            tracing::warn!("a front end cannot be told of a new size: {}", fault.text());
        }
    }

    /// Takes nothing more from the front end, and writes nothing more to its memory.
    pub(super) fn begin_close(&mut self) {
        self.is_closing = true;
        self.stopping = None;
        self.wire.shut_down();
        self.queues.iter_mut().for_each(Queue::abandon);
        self.memory = None;
        self.in_flight = None;
        self.backend = None;
    }
}

/// Features that a front end takes, if all of them are on offer.
fn offered(features: u64, offer: u64) -> Result<u64, String> {
    match features & !offer {
        0 => Ok(features),
        unknown => Err(format!("features {unknown:#x} were not offered")),
    }
}

fn not_started(queue: &mut Queue) -> Result<&mut Queue, String> {
    if queue.is_started() {
        return Err("a ring was changed while it works".to_owned());
    }
    Ok(queue)
}

/// An event counter that never lets anybody wait. What is always readable, as a file is, would keep
/// the loop busy.
fn event(file: OwnedFd) -> Result<OwnedFd, String> {
    let failed = |errno| format!("a descriptor cannot be used: {errno}");
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // Without /proc there is no telling.
    if link.is_ok_and(|link| !link.as_os_str().as_bytes().ends_with(b"[eventfd]")) {
        return Err("a descriptor of a ring is no eventfd".to_owned());
    }
    let flags = fcntl_getfl(&file).map_err(failed)?;
    if !flags.contains(OFlags::NONBLOCK) {
        fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(failed)?;
    }
    Ok(file)
}

fn one_file(files: &mut Vec<OwnedFd>) -> Result<OwnedFd, String> {
    match files.pop() {
        Some(file) if files.is_empty() => Ok(file),
        _ => Err("a message came with too many descriptors, or with none".to_owned()),
    }
}

fn config(payload: &[u8], geometry: &Geometry) -> Result<Answer, String> {
    let (part, _) = read_prefix::<ConfigPart>(payload)?;
    let end = part.offset.checked_add(part.bytes);
    let Some(end) = end.filter(|end| *end <= CONFIG_BYTES_MAX) else {
        return Err(format!("{} bytes of configuration are too many", part.bytes));
    };
    let mut all = [0; CONFIG_BYTES_MAX as usize];
    let config = geometry.config();
    all[..size_of_val(&config)].copy_from_slice(config.as_bytes());
    let mut bytes = part.as_bytes().to_vec();
    bytes.extend_from_slice(&all[part.offset as usize..end as usize]);
    Ok(Answer::Bytes(bytes))
}

fn number(payload: &[u8]) -> Result<u64, String> {
    read(payload)
}

fn read<T: FromBytes + KnownLayout + Immutable>(payload: &[u8]) -> Result<T, String> {
    read_prefix(payload).map(|(value, _)| value)
}

fn read_prefix<T>(payload: &[u8]) -> Result<(T, &[u8]), String>
where
    T: FromBytes + KnownLayout + Immutable,
{
    T::read_from_prefix(payload)
        .map_err(|_| format!("a message of {} bytes is too short", payload.len()))
}

/// Some front ends leave the padding behind the structure away.
fn padded(payload: &[u8]) -> Vec<u8> {
    let mut padded = payload.to_vec();
    padded.resize(payload.len().next_multiple_of(8), 0);
    padded
}

fn read_regions(bytes: &[u8], count: usize) -> Result<Vec<TableRegion>, String> {
    let mut regions = Vec::with_capacity(count);
    let mut rest = bytes;
    for _ in 0..count {
        let (region, behind) = read_prefix(rest)?;
        regions.push(region);
        rest = behind;
    }
    Ok(regions)
}
