//! A pass-through engine without a cache: the smallest thing that keeps the promises of
//! writethrough.
//!
//! It shows that the world, the devices and the oracle let a right engine pass, and, with a
//! [`Fault`], that they catch a wrong one. It is not a model of the real engine.

mod commands;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_engine::error::RecoveryError;
use forebay_engine::event::{Command, CommandError, CommandId, Event, SavedMark};
use forebay_engine::format::superblock::Superblock;
use forebay_engine::io::{Device, Io, IoId, IoKind, IoResult, Slices};
use forebay_engine::options::{CacheFacts, OriginOpening};
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Durability, Reply, Request, RequestError, RequestKind, Served};
use forebay_engine::status::{SetStatus, VolumeStatus};
use forebay_engine::units::{Time, VolumeSlot};

use self::commands::{Update, volume_of};
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
    /// From some request on nothing is answered, and the next wake-up is always near.
    Dawdles,
}

impl Fault {
    /// All but [`Fault::None`] and [`Fault::Dawdles`], which is found only at the end of all steps.
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
    /// Flushes that had failed when it began.
    failed_flushes: u64,
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
    /// Whether the copy of the superblock may be torn: then it is written first, not the good one.
    is_copy_doubtful: bool,
    is_retry_due: bool,
    now: Time,
    /// A flush that fails takes with it what completed before, also from under flushes of others,
    /// and what was being written meanwhile.
    failed_flushes: u64,
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
            is_copy_doubtful: false,
            is_retry_due: false,
            failed_flushes: 0,
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
        let failed_flushes = self.failed_flushes;
        let mut task = Task { request, stage: Stage::Transfer, scratch: None, failed_flushes };
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
        let is_flush = task.stage == Stage::Flush || request.kind == RequestKind::Flush;
        let is_read = matches!(request.kind, RequestKind::Read { .. });
        let was_overtaken = !is_read && task.failed_flushes < self.failed_flushes;
        self.failed_flushes += u64::from(is_flush && result.is_err());
        if (result.is_err() || was_overtaken) && self.fault != Fault::HidesErrors {
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
        let dawdles = self.fault == Fault::Dawdles && self.request_count > FAULT_PERIOD;
        if dawdles || is_lost || self.early.remove(&request.id.0) {
            return;
        }
        if self.strikes(Fault::AnswersTwice) {
            self.replies.push_back(Reply { id: request.id, result, served: Served::Origin });
        }
        self.replies.push_back(Reply { id: request.id, result, served: Served::Origin });
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
            None => {
                self.failed_flushes += 1;
                self.end_update(Err(CommandError::CacheFailed), payload);
            }
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

    fn handle_host_state_saved(&mut self, _: Time, _: VolumeSlot, _: SavedMark) {}

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
        if self.fault == Fault::Dawdles && self.request_count > FAULT_PERIOD {
            return Some(Time(self.now.0 + 1));
        }
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

    fn describe_waiting(&self) -> String {
        let tasks = self.tasks.iter().map(|(id, task)| format!("request {id}: {:?}", task.stage));
        let waiting = self.waiting.iter();
        let waiting = waiting.map(|request| format!("request {}: has not begun", request.id.0));
        tasks.chain(waiting).collect::<Vec<_>>().join("\n")
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
