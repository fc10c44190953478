//! A pass-through engine without a cache: the smallest thing that keeps the promises of writethrough.
//!
//! It shows that the world, the devices and the oracle let a right engine pass, and, with a [`Fault`],
//! that they catch a wrong one. It is not a model of the real engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_engine::error::RecoveryError;
use forebay_engine::event::{Command, CommandError, CommandId, Event};
use forebay_engine::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use forebay_engine::io::{Device, Io, IoId, IoKind, IoResult, Slices};
use forebay_engine::options::{CacheFacts, CacheMode, OriginOpening};
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Durability, Reply, Request, RequestError, RequestKind, Served};
use forebay_engine::status::{SetStatus, VolumeStatus};
use forebay_engine::units::{Time, VolumeSlot};

use crate::under_test::UnderTest;

const BLOCK: u64 = 4096;
/// Every so many requests a fault strikes that does not strike always.
const FAULT_PERIOD: u64 = 40;

/// What is wrong with a reference engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// Writes are answered when they are submitted.
    AnswersEarly,
    /// FLUSH is answered without a flush.
    SkipsFlush,
    /// FUA is taken for an ordinary write.
    IgnoresForced,
    /// A block once read is served from memory, whatever is written.
    ServesStale,
    /// A request is never answered.
    LosesReply,
    /// A request is answered twice.
    AnswersTwice,
    /// A client's buffer is never released.
    LeaksBuffer,
    /// Two writes to parts of one block may run at once.
    TakesNoLock,
    /// The last sector of a write that ends within a block is not written.
    DropsTail,
    /// A write that a device failed is answered with success.
    HidesErrors,
    /// A change of the volume table is answered before it is durable.
    ForgetsTable,
    /// The wake-up stays due for ever.
    SpinsAwake,
}

impl Fault {
    /// All but [`Fault::None`].
    pub const ALL: [Fault; 12] = [
        Fault::AnswersEarly,
        Fault::SkipsFlush,
        Fault::IgnoresForced,
        Fault::ServesStale,
        Fault::LosesReply,
        Fault::AnswersTwice,
        Fault::LeaksBuffer,
        Fault::TakesNoLock,
        Fault::DropsTail,
        Fault::HidesErrors,
        Fault::ForgetsTable,
        Fault::SpinsAwake,
    ];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    ReadOld,
    Transfer,
    Flush,
}

struct Task {
    request: Request,
    stage: Stage,
    scratch: Option<BufferId>,
}

/// A command that waits until something is durable: origins, the volume table.
struct Update {
    command: CommandId,
    slot: Option<VolumeSlot>,
    /// The volume of the command.
    volume: Option<VolumeSlot>,
    buffer: Option<BufferId>,
    /// Operations still to be done, one after the other.
    left: VecDeque<(Device, IoKind)>,
    /// The table to go back to if one fails.
    before: Superblock,
}

/// See the top of the file.
pub struct Reference {
    fault: Fault,
    superblock: Superblock,
    waiting: VecDeque<Request>,
    tasks: BTreeMap<u64, Task>,
    /// Operations under way, and the request each is for; `None` for the table.
    ios: BTreeMap<u64, Option<u64>>,
    commands: VecDeque<(CommandId, Command)>,
    update: Option<Update>,
    /// Slots whose origin is not open.
    missing: BTreeSet<u16>,
    is_stopping: bool,
    is_retry_due: bool,
    now: Time,
    /// Requests answered before their time.
    early: BTreeSet<u64>,
    outbox: VecDeque<Io>,
    replies: VecDeque<Reply>,
    events: VecDeque<Event>,
    request_count: u64,
    /// Flushes of recovery that have not ended.
    recovery_left: u64,
    last_io: u64,
    /// For [`Fault::ServesStale`]: a block and its content.
    remembered: Option<(VolumeSlot, u64, BufferId)>,
}

impl Reference {
    /// Starts on a cache device, of which it uses the volume table only.
    #[must_use]
    pub fn new(
        fault: Fault,
        now: Time,
        superblock: Superblock,
        origins: &[OriginOpening],
    ) -> Reference {
        let missing = origins.iter().filter(|origin| origin.facts.is_none());
        let open = origins.iter().filter(|origin| origin.facts.is_some());
        let devices = open.map(|origin| Device::Origin(origin.slot));
        // What the life before left in volatile caches must be durable before it is served.
        let recovery: VecDeque<_> = devices
            .chain([Device::Cache])
            .zip(1..)
            .map(|(device, id)| Io { id: IoId(id), device, kind: IoKind::Flush })
            .collect();
        Reference {
            recovery_left: recovery.len() as u64,
            last_io: recovery.len() as u64,
            outbox: recovery,
            missing: missing.map(|origin| origin.slot.0).collect(),
            fault,
            superblock,
            waiting: VecDeque::new(),
            tasks: BTreeMap::new(),
            ios: BTreeMap::new(),
            commands: VecDeque::new(),
            update: None,
            is_stopping: false,
            is_retry_due: false,
            now,
            early: BTreeSet::new(),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            request_count: 0,
            remembered: None,
        }
    }

    /// To be used as a [`crate::under_test::Launch`].
    pub fn launcher(
        fault: Fault,
    ) -> impl Fn(Time, Superblock, CacheFacts, &[OriginOpening]) -> Box<dyn UnderTest> {
        move |now, superblock, _, origins| Box::new(Reference::new(fault, now, superblock, origins))
    }

    fn on_recovery_flush(&mut self, id: IoId, result: IoResult, payload: &mut dyn Payload) {
        if result.is_err() {
            self.events.push_back(Event::RecoveryFailed(RecoveryError::CacheIo));
            return;
        }
        assert!(id.0 <= self.last_io);
        self.recovery_left -= 1;
        if self.recovery_left == 0 {
            self.events.push_back(Event::Serving);
            self.start_waiting(payload);
        }
    }

    fn strikes(&self, fault: Fault) -> bool {
        self.fault == fault && self.request_count.is_multiple_of(FAULT_PERIOD)
    }

    fn size_bytes(&self, slot: VolumeSlot) -> u64 {
        self.superblock.volume(slot).map_or(0, |volume| volume.size_bytes)
    }

    /// First byte and length of the whole blocks around a request, cut at the end of the volume.
    fn blocks(&self, request: &Request) -> (u64, u64) {
        let start = request.offset_bytes / BLOCK * BLOCK;
        let end = (request.offset_bytes + request.length_bytes).next_multiple_of(BLOCK);
        (start, end.min(self.size_bytes(request.volume)) - start)
    }

    fn is_whole(&self, request: &Request) -> bool {
        self.blocks(request) == (request.offset_bytes, request.length_bytes)
    }

    fn overlaps(&self, a: &Request, b: &Request) -> bool {
        let ((a_start, a_length), (b_start, b_length)) = (self.blocks(a), self.blocks(b));
        a.volume == b.volume && a_start < b_start + b_length && b_start < a_start + a_length
    }

    /// Starts what waits and has no other request of its blocks before it.
    fn start_waiting(&mut self, payload: &mut dyn Payload) {
        let mut blocked: Vec<Request> = self.tasks.values().map(|task| task.request).collect();
        for request in std::mem::take(&mut self.waiting) {
            let is_free = self.fault == Fault::TakesNoLock
                || !blocked.iter().any(|other| self.overlaps(other, &request));
            blocked.push(request);
            if !is_free || !self.start(request, payload) {
                self.waiting.push_back(request);
            }
        }
        // What ended at once wakes nobody.
        self.is_retry_due |= self.tasks.is_empty() && !self.waiting.is_empty();
    }

    fn start(&mut self, request: Request, payload: &mut dyn Payload) -> bool {
        let (start, length) = self.blocks(&request);
        let changes =
            matches!(request.kind, RequestKind::Write { .. } | RequestKind::WriteZeroes { .. });
        let needs_old = changes && !self.is_whole(&request);
        let mut task = Task { request, stage: Stage::Transfer, scratch: None };
        if needs_old {
            let Some(buffer) = payload.allocate(length as usize) else {
                self.is_retry_due = true;
                return false;
            };
            task.scratch = Some(buffer);
            task.stage = Stage::ReadOld;
        }
        self.request_count += 1;
        match request.kind {
            RequestKind::Read { buffer } | RequestKind::Write { buffer, .. } => {
                payload.retain(buffer);
                if self.strikes(Fault::LeaksBuffer) {
                    payload.retain(buffer);
                }
            }
            _ => {}
        }
        self.tasks.insert(request.id.0, task);
        if changes && self.strikes(Fault::AnswersEarly) {
            self.early.insert(request.id.0);
            self.replies.push_back(Reply {
                id: request.id,
                result: Ok(()),
                served: Served::NoRead,
            });
        }
        if needs_old {
            let slices = whole(self.tasks[&request.id.0].scratch, length);
            self.submit(&request, IoKind::Read { offset_bytes: start, slices });
        } else {
            self.transfer(request, payload);
        }
        true
    }

    /// The operation that does what the request wants.
    fn transfer(&mut self, request: Request, payload: &mut dyn Payload) {
        let (start, length) = self.blocks(&request);
        let kind = match request.kind {
            RequestKind::Read { buffer } => {
                if self.serve_remembered(&request, buffer, payload) {
                    return self.finish(request, Ok(()), payload);
                }
                IoKind::Read { offset_bytes: start, slices: whole(Some(buffer), length) }
            }
            RequestKind::Write { buffer, .. } => {
                let from = self.tasks[&request.id.0].scratch.unwrap_or(buffer);
                IoKind::Write { offset_bytes: start, slices: whole(Some(from), length) }
            }
            RequestKind::WriteZeroes { may_unmap, .. } => match self.tasks[&request.id.0].scratch {
                Some(from) => {
                    IoKind::Write { offset_bytes: start, slices: whole(Some(from), length) }
                }
                None => {
                    IoKind::WriteZeroes { offset_bytes: start, length_bytes: length, may_unmap }
                }
            },
            RequestKind::Discard { .. } if self.is_whole(&request) => {
                IoKind::Discard { offset_bytes: start, length_bytes: length }
            }
            RequestKind::Flush if self.fault != Fault::SkipsFlush => IoKind::Flush,
            RequestKind::Flush | RequestKind::Discard { .. } | RequestKind::Prefetch => {
                return self.finish(request, Ok(()), payload);
            }
        };
        self.submit(&request, kind);
    }

    fn submit(&mut self, request: &Request, kind: IoKind) {
        self.last_io += 1;
        self.ios.insert(self.last_io, Some(request.id.0));
        let device = Device::Origin(request.volume);
        self.outbox.push_back(Io { id: IoId(self.last_io), device, kind });
    }

    fn serve_remembered(
        &mut self,
        request: &Request,
        buffer: BufferId,
        payload: &mut dyn Payload,
    ) -> bool {
        let (start, length) = self.blocks(request);
        match self.remembered {
            Some((volume, offset, from)) if (volume, offset) == (request.volume, start) => {
                if length == BLOCK {
                    payload.copy(range(from, 0, BLOCK), range(buffer, 0, BLOCK));
                }
                length == BLOCK
            }
            _ => false,
        }
    }

    fn remember(&mut self, request: &Request, buffer: BufferId, payload: &mut dyn Payload) {
        let (start, length) = self.blocks(request);
        if self.fault == Fault::ServesStale && self.remembered.is_none() && length == BLOCK {
            let Some(copy) = payload.allocate(BLOCK as usize) else { return };
            payload.copy(range(buffer, 0, BLOCK), range(copy, 0, BLOCK));
            self.remembered = Some((request.volume, start, copy));
        }
    }

    fn on_task_io_complete(&mut self, id: u64, result: IoResult, payload: &mut dyn Payload) {
        let task = self.tasks.get_mut(&id).expect("its operation was under way");
        let request = task.request;
        if result.is_err() && self.fault != Fault::HidesErrors {
            return self.finish(request, Err(RequestError::Io), payload);
        }
        match task.stage {
            Stage::ReadOld => {
                task.stage = Stage::Transfer;
                self.overlay(&request, payload);
                self.transfer(request, payload);
            }
            Stage::Transfer if is_forced(&request) && self.fault != Fault::IgnoresForced => {
                task.stage = Stage::Flush;
                self.submit(&request, IoKind::Flush);
            }
            Stage::Transfer | Stage::Flush => {
                if let RequestKind::Read { buffer } = request.kind {
                    self.remember(&request, buffer, payload);
                }
                self.finish(request, Ok(()), payload);
            }
        }
    }

    /// Puts what is written over what was there.
    fn overlay(&mut self, request: &Request, payload: &mut dyn Payload) {
        let scratch = self.tasks[&request.id.0].scratch.expect("the old data was read into it");
        let within = request.offset_bytes % BLOCK;
        let mut length = request.length_bytes;
        if self.fault == Fault::DropsTail && length > 512 {
            length -= 512;
        }
        match request.kind {
            RequestKind::Write { buffer, .. } => {
                payload.copy(range(buffer, within, length), range(scratch, within, length));
            }
            _ => payload.zero(range(scratch, within, length)),
        }
    }

    fn finish(
        &mut self,
        request: Request,
        result: Result<(), RequestError>,
        payload: &mut dyn Payload,
    ) {
        let task = self.tasks.remove(&request.id.0).expect("it was under way");
        if let Some(scratch) = task.scratch {
            payload.release(scratch);
        }
        match request.kind {
            RequestKind::Read { buffer } | RequestKind::Write { buffer, .. } => {
                payload.release(buffer);
            }
            _ => {}
        }
        let is_lost = self.fault == Fault::LosesReply && request.id.0.is_multiple_of(FAULT_PERIOD);
        if is_lost || self.early.remove(&request.id.0) {
            return;
        }
        if self.strikes(Fault::AnswersTwice) {
            self.replies.push_back(Reply { id: request.id, result, served: Served::Origin });
        }
        self.replies.push_back(Reply { id: request.id, result, served: Served::Origin });
    }

    fn next_command(&mut self, payload: &mut dyn Payload) {
        if self.update.is_some() {
            return;
        }
        let Some((id, command)) = self.commands.front().cloned() else { return };
        self.is_stopping |= command == Command::Stop;
        let must_wait = match command {
            Command::Stop => !self.tasks.is_empty() || !self.waiting.is_empty(),
            Command::Detach { volume } => {
                let tasks = self.tasks.values().map(|task| &task.request);
                tasks.chain(&self.waiting).any(|request| request.volume == volume)
            }
            _ => false,
        };
        if must_wait {
            return;
        }
        self.commands.pop_front();
        self.is_retry_due |= !self.commands.is_empty();
        let before = self.superblock.clone();
        let mut left = self.flushes_for(&command);
        let mut buffer = None;
        let changed = self.change_table(&command);
        if let Ok(TableChange::To(_)) = changed {
            buffer = payload.allocate(SUPERBLOCK_BYTES);
            let Some(buffer) = buffer else {
                self.superblock = before;
                return self.complete(id, Err(CommandError::Busy));
            };
            left.extend(self.table_writes(buffer, payload));
        }
        let slot = match changed {
            Err(error) => return self.complete(id, Err(error)),
            Ok(TableChange::None) => None,
            Ok(TableChange::To(slot)) => slot,
        };
        let volume = volume_of(&command);
        self.update = Some(Update { command: id, slot, volume, buffer, left, before });
        self.continue_update(payload);
    }

    /// Drain, detach and stop answer when what clients wrote is durable.
    fn flushes_for(&mut self, command: &Command) -> VecDeque<(Device, IoKind)> {
        match command {
            Command::Drain { volume } | Command::Detach { volume } => {
                let exists = self.superblock.volume(*volume).is_some();
                exists.then_some((Device::Origin(*volume), IoKind::Flush)).into_iter().collect()
            }
            Command::Stop => {
                let slots = self.superblock.slots().map(|(slot, _)| slot);
                let served = slots.filter(|slot| !self.missing.contains(&slot.0));
                served.map(|slot| (Device::Origin(slot), IoKind::Flush)).collect()
            }
            _ => VecDeque::new(),
        }
    }

    fn change_table(&mut self, command: &Command) -> Result<TableChange, CommandError> {
        let (slot, mode) = match command {
            Command::Attach { volume, .. } => {
                let added = self.superblock.add_volume(volume);
                let slot = added.map_err(|_| CommandError::NameTaken)?;
                return Ok(TableChange::To(Some(slot)));
            }
            Command::Detach { volume } => {
                if self.superblock.volume(*volume).is_none() {
                    return Err(CommandError::NoSuchVolume);
                }
                self.superblock.volumes[usize::from(volume.0)] = None;
                return Ok(TableChange::To(None));
            }
            Command::SetMode { volume, mode } => (volume, *mode),
            Command::Drain { volume } => (volume, CacheMode::Writethrough),
            _ => return Ok(TableChange::None),
        };
        let entry = self.superblock.volumes.get_mut(usize::from(slot.0));
        let entry = entry.and_then(Option::as_mut).ok_or(CommandError::NoSuchVolume)?;
        entry.mode = mode;
        Ok(TableChange::To(None))
    }

    /// One place, a flush, the other place, a flush: at every moment one place is whole.
    fn table_writes(
        &mut self,
        buffer: BufferId,
        payload: &mut dyn Payload,
    ) -> VecDeque<(Device, IoKind)> {
        self.superblock.serial += 1;
        let range = range(buffer, 0, SUPERBLOCK_BYTES as u64);
        payload.metadata_mut(range).copy_from_slice(&self.superblock.encode());
        if self.fault == Fault::ForgetsTable {
            return VecDeque::new();
        }
        let write = |offset_bytes| IoKind::Write { offset_bytes, slices: Slices::One(range) };
        let copy_offset = self.superblock.geometry.copy_offset;
        [write(0), IoKind::Flush, write(copy_offset), IoKind::Flush]
            .map(|kind| (Device::Cache, kind))
            .into()
    }

    fn continue_update(&mut self, payload: &mut dyn Payload) {
        let Some(update) = &mut self.update else { return };
        if let Some((device, kind)) = update.left.pop_front() {
            self.last_io += 1;
            self.ios.insert(self.last_io, None);
            self.outbox.push_back(Io { id: IoId(self.last_io), device, kind });
            return;
        }
        self.end_update(Ok(()), payload);
    }

    fn end_update(&mut self, result: Result<(), CommandError>, payload: &mut dyn Payload) {
        let update = self.update.take().expect("it was under way");
        if let Some(buffer) = update.buffer {
            payload.release(buffer);
        }
        if self.is_stopping
            && let Some((_, _, buffer)) = self.remembered.take()
        {
            payload.release(buffer);
        }
        if result.is_err() {
            // The new table may have reached the device: the next one must win over it.
            self.superblock = Superblock { serial: self.superblock.serial, ..update.before };
        }
        self.is_retry_due |= !self.commands.is_empty();
        self.complete(update.command, result.map(|()| update.slot));
    }

    fn complete(&mut self, command: CommandId, result: Result<Option<VolumeSlot>, CommandError>) {
        self.events.push_back(Event::CommandComplete { command, result });
    }
}

impl UnderTest for Reference {
    fn handle_request(&mut self, now: Time, request: Request, payload: &mut dyn Payload) {
        self.now = now;
        if self.is_stopping || self.superblock.volume(request.volume).is_none() {
            let result = Err(RequestError::Shutdown);
            self.replies.push_back(Reply { id: request.id, result, served: Served::Origin });
            return;
        }
        self.waiting.push_back(request);
        if self.recovery_left == 0 {
            self.start_waiting(payload);
        }
    }

    fn handle_io_complete(
        &mut self,
        now: Time,
        id: IoId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        self.now = now;
        if self.recovery_left > 0 {
            return self.on_recovery_flush(id, result, payload);
        }
        match self.ios.remove(&id.0).expect("it was under way") {
            Some(request) => self.on_task_io_complete(request, result, payload),
            None if result.is_ok() => self.continue_update(payload),
            None => self.end_update(Err(CommandError::CacheFailed), payload),
        }
        self.start_waiting(payload);
        self.next_command(payload);
    }

    fn handle_time(&mut self, now: Time, payload: &mut dyn Payload) {
        self.now = now;
        self.is_retry_due = false;
        if self.recovery_left > 0 {
            return;
        }
        self.start_waiting(payload);
        self.next_command(payload);
    }

    fn handle_command(&mut self, now: Time, id: CommandId, command: Command) {
        self.now = now;
        let volume = volume_of(&command);
        let queued = self.commands.iter().map(|(_, command)| volume_of(command));
        let running = self.update.iter().map(|update| update.volume);
        if volume.is_some() && queued.chain(running).any(|other| other == volume) {
            // Its slot may be another volume's when its turn comes.
            return self.complete(id, Err(CommandError::Busy));
        }
        self.commands.push_back((id, command));
        self.is_retry_due = true;
    }

    fn handle_host_state_saved(&mut self, _: Time, _: VolumeSlot) {}

    fn cancel_command(&mut self, _: CommandId) {}

    fn poll_io(&mut self, _: &mut dyn Payload) -> Option<Io> {
        self.outbox.pop_front()
    }

    fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn poll_wakeup(&self) -> Option<Time> {
        let spins = self.fault == Fault::SpinsAwake && self.request_count > FAULT_PERIOD;
        (self.is_retry_due || spins).then(|| self.now.after_ms(u64::from(!spins)))
    }

    fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    fn status(&self, _: Time) -> Option<SetStatus> {
        None
    }

    fn volume_status(&self, _: Time, _: VolumeSlot) -> Option<VolumeStatus> {
        None
    }
}

/// What a command does to the volume table.
enum TableChange {
    /// Nothing.
    None,
    /// It changes; the slot is that of a new volume.
    To(Option<VolumeSlot>),
}

fn volume_of(command: &Command) -> Option<VolumeSlot> {
    match command {
        Command::Detach { volume }
        | Command::SetMode { volume, .. }
        | Command::Drain { volume }
        | Command::Invalidate { volume }
        | Command::SetVolume { volume, .. } => Some(*volume),
        Command::Attach { .. } | Command::SetCacheSet { .. } | Command::Stop => None,
    }
}

fn is_forced(request: &Request) -> bool {
    match request.kind {
        RequestKind::Write { durability, .. }
        | RequestKind::Discard { durability }
        | RequestKind::WriteZeroes { durability, .. } => durability == Durability::ForcedUnitAccess,
        _ => false,
    }
}

fn range(buffer: BufferId, offset: u64, length: u64) -> BufferRange {
    BufferRange { buffer, offset: offset as u32, length: length as u32 }
}

fn whole(buffer: Option<BufferId>, length: u64) -> Slices {
    Slices::One(range(buffer.expect("there is one"), 0, length))
}
