//! Clients: connections that send requests, and what becomes of the replies.

use std::collections::BTreeMap;

use forebay_engine::payload::{BufferId, BufferRange};
use forebay_engine::request::{Reply, Request, RequestError, RequestId, RequestKind};
use forebay_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::behind::Behind;
use crate::hang::age;
use crate::media::BLOCK_SECTORS;
use crate::oracle::{Observed, Run, WriteId, WriteKind};
use crate::random::Random;
use crate::stamp::Stamp;
use crate::trace::{Note, Span};
use crate::workload::{Operation, OperationKind, Pattern, Target};
use crate::world::{Due, Halt, TableEntry, World, violation};

/// Requests after which a client leaves.
const HANG_UP_PERMILLE: u64 = 1;
/// How often a client leaves when the cache device fails.
const HANG_UP_PERCENT: u64 = 40;
/// Longest time until it does.
const HANG_UP_NS_MAX: u64 = 3_000_000_000;

/// Who asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A connection, by index.
    Connection(usize),
    /// The check after recovery.
    Checker(Observed),
}

/// A request that was not answered yet.
struct Pending {
    operation: Operation,
    owner: Owner,
    since: u64,
    /// When the oracle was told of a read or flush.
    moment: u64,
    write: Option<WriteId>,
    buffer: Option<BufferId>,
    /// Its client has left.
    is_forgotten: bool,
}

struct Connection {
    pattern: Pattern,
    random: Random,
    depth: u64,
    in_flight: u64,
    is_waiting: bool,
}

/// All clients.
#[derive(Default)]
pub(crate) struct Clients {
    connections: Vec<Connection>,
    /// In order of ids, which is the order of submission.
    pending: BTreeMap<u64, Pending>,
    last_id: u64,
    /// Requests that connections may still send in this life.
    pub(crate) budget: u64,
}

impl Clients {
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Blocks that the requests under way touch, or one for each that touches none.
    pub(crate) fn blocks_in_flight(&self) -> usize {
        let blocks = |pending: &Pending| (buffer_bytes(pending.operation.run) / BLOCK_BYTES).max(1);
        self.pending.values().map(blocks).sum()
    }

    pub(crate) fn oldest(&self) -> Option<(u64, u64)> {
        self.pending.first_key_value().map(|(id, pending)| (*id, pending.since))
    }

    pub(crate) fn describe(&self, id: u64) -> String {
        format!("request {id}: {:?}", self.pending[&id].operation)
    }

    /// Every request that was not answered yet, a line each.
    pub(crate) fn describe_all(&self, now: u64) -> Vec<String> {
        let line = |(id, pending): (&u64, &Pending)| {
            let Pending { operation, owner, since, .. } = pending;
            let owner = match owner {
                Owner::Connection(index) => format!("connection {index}"),
                Owner::Checker(_) => "the check".to_owned(),
            };
            let (what, volume) = (operation.kind.name(), operation.run.volume);
            let (span, age) = (span_of(operation.run), age(now, *since));
            format!("request {id} of {owner}: {what} volume {volume} {span}, {age}")
        };
        self.pending.iter().map(line).collect()
    }

    /// A volume has another size.
    pub(crate) fn resize(&mut self, volume: usize, sectors: u32) {
        let connections = self.connections.iter_mut();
        let of_volume = connections.filter(|connection| connection.pattern.volume() == volume);
        of_volume.for_each(|connection| connection.pattern.resize(sectors));
    }

    /// The process died, and with it everything it was asked for.
    pub(crate) fn disconnect(&mut self) {
        self.pending.clear();
        self.connections.clear();
        self.budget = 0;
    }
}

impl World<'_> {
    /// Lets new connections send `budget` requests.
    pub(crate) fn connect(&mut self, budget: u64) {
        self.clients.budget = budget;
        let count = self.config.connections as usize;
        for _ in 0..count {
            let index = self.random.index(self.volumes.len());
            let volume = &self.volumes[index];
            let target = Target {
                volume: index,
                sectors: self.sectors(index),
                unit_sectors: volume.config.logical_block_bytes / SECTOR_BYTES as u32,
            };
            let mut random = self.random.fork();
            let pattern = Pattern::new(&self.config.mixture, target, &mut random);
            let depth = random.between(1..=self.config.depth_max);
            let connection = Connection { pattern, random, depth, in_flight: 0, is_waiting: false };
            self.clients.connections.push(connection);
            self.agenda.push(self.now, Due::Client(self.clients.connections.len() - 1));
        }
    }

    /// A connection may send its next request.
    pub(crate) fn on_client_due(&mut self, index: usize) -> Result<(), Halt> {
        if self.clients.budget == 0 || self.life.is_stopped {
            return Ok(());
        }
        let connection = &mut self.clients.connections[index];
        if connection.in_flight >= connection.depth {
            connection.is_waiting = true;
            return Ok(());
        }
        self.clients.budget -= 1;
        let operation = connection.pattern.next(&mut connection.random);
        let pause = connection.random.below(self.config.think_ns + 1);
        if connection.random.permille(HANG_UP_PERMILLE) {
            let time = self.now + connection.random.below(HANG_UP_NS_MAX);
            self.agenda.push(time, Due::HangUp(index));
        }
        // Now and then everybody rests, so that background work gets its turn.
        let rest = if connection.random.permille(3) { 2_000_000_000 } else { 0 };
        self.agenda.push(self.now + pause + rest, Due::Client(index));
        let operation = self.pursue().unwrap_or(operation);
        if self.volumes[operation.run.volume].is_served() {
            self.clients.connections[index].in_flight += 1;
            self.issue(operation, Owner::Connection(index));
            self.maybe_explain()?;
            self.maybe_administer();
            self.maybe_pin()?;
            self.maybe_grow();
        }
        if let Some(requests) = &mut self.life.crash_after_requests {
            if *requests == 0 {
                self.life.crash_after_requests = None;
                self.life.crash_after_steps = Some(self.random.below(50));
            } else {
                *requests -= 1;
            }
        }
        Ok(())
    }

    /// Hands a request to the engine.
    pub(crate) fn issue(&mut self, operation: Operation, owner: Owner) {
        let Operation { run, kind, durability } = operation;
        self.stats.requests += 1;
        self.clients.last_id += 1;
        let id = self.clients.last_id;
        let buffer = matches!(kind, OperationKind::Read | OperationKind::Write)
            .then(|| self.pool.host_allocate(buffer_bytes(run)));
        let write = write_kind(kind).map(|kind| self.oracle.submit_write(run, kind, durability));
        let moment = match kind {
            OperationKind::Read => self.oracle.submit_read(),
            _ => self.oracle.submit_flush(),
        };
        if let (OperationKind::Write, Some(write), Some(buffer)) = (kind, write, buffer) {
            self.stamp(run, write, buffer);
        }
        let span = span_of(run);
        let (volume, what) = (run.volume, kind.name());
        let number = write.map_or(0, |write| write.0);
        self.note(Note::Request { id, volume, what, span, write: number });
        let since = self.now;
        let pending =
            Pending { operation, owner, since, moment, write, buffer, is_forgotten: false };
        self.clients.pending.insert(id, pending);
        let request = Request {
            id: RequestId(id),
            volume: self.volumes[volume].slot.expect("only attached volumes are asked"),
            offset_bytes: span.offset,
            length_bytes: span.length,
            kind: request_kind(operation, buffer),
        };
        let now = self.time();
        if let Some(request) = self.hold_back(request) {
            let (engine, pool) = self.engine();
            engine.handle_request(now, request, pool);
        }
    }

    fn stamp(&mut self, run: Run, write: WriteId, buffer: BufferId) {
        let bytes = self.pool.bytes_mut(data_range(run, buffer));
        for (sector, bytes) in (run.first..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            Stamp { write: write.0, volume: run.volume as u8, sector }.fill(bytes);
        }
    }

    /// The engine answers a request.
    pub(crate) fn on_reply(&mut self, reply: Reply) -> Result<(), Halt> {
        let Some(pending) = self.clients.pending.remove(&reply.id.0) else {
            return violation("a reply to no request, or a second one", format!("{reply:?}"));
        };
        let run = pending.operation.run;
        let is_ok = reply.result.is_ok();
        self.note(Note::Reply { id: reply.id.0, volume: run.volume, span: span_of(run), is_ok });
        if let Err(error) = reply.result {
            self.stats.failed_requests += 1;
            self.check_error(&pending, error)?;
        }
        match pending.operation.kind {
            OperationKind::Read => {
                self.oracle.end_read(pending.moment);
                if is_ok {
                    self.on_read(&pending)?;
                }
            }
            OperationKind::Flush if is_ok => {
                if self.volumes[run.volume].has_lost_writes {
                    let text = format!("volume {}", run.volume);
                    return violation("a flush succeeded though writes were lost", text);
                }
                self.oracle.acknowledge_flush(run.volume, pending.moment);
            }
            // It waited, and nothing was done for it.
            OperationKind::Flush if reply.result == Err(RequestError::Shutdown) => {}
            OperationKind::Flush => self.oracle.fail_flush(run.volume),
            OperationKind::Prefetch => {}
            _ => {
                let write = pending.write.expect("it changes its range");
                if is_ok {
                    self.oracle.acknowledge_write(write);
                    self.on_write_answered(run);
                    // A discard of less than a block does nothing, so it waits for nothing.
                    if pending.operation.kind != OperationKind::Discard {
                        self.check_dirty_mark(run.volume)?;
                    }
                } else {
                    self.oracle.fail_write(write);
                }
            }
        }
        if let Some(buffer) = pending.buffer {
            self.pool.host_release(buffer);
        }
        self.on_slot_free(pending.owner);
        Ok(())
    }

    fn on_read(&mut self, pending: &Pending) -> Result<(), Halt> {
        let run = pending.operation.run;
        let moment = pending.moment;
        let (observed, context) = match pending.owner {
            Owner::Connection(_) => (Observed::Once, "read".to_string()),
            Owner::Checker(Observed::Settled) => {
                (Observed::Settled, format!("read after {}", self.last_end))
            }
            Owner::Checker(Observed::Once) => {
                (Observed::Once, format!("second read after {}", self.last_end))
            }
        };
        let range = data_range(run, pending.buffer.expect("reads have one"));
        match self.oracle.check(run, self.pool.bytes(range), moment, observed) {
            Ok(()) => Ok(()),
            Err(mismatch) => self.wrong_content(&context, run.volume, mismatch),
        }
    }

    /// Errors need a cause.
    fn check_error(&self, pending: &Pending, error: RequestError) -> Result<(), Halt> {
        let volume = &self.volumes[pending.operation.run.volume];
        let is_explained = match error {
            RequestError::Io if self.has_waited_enough(pending) => true,
            // Sent while recovery had not said yet that the origin has changed.
            RequestError::Io if volume.behind == Behind::Conflict => true,
            // It needed an origin that is asked for nothing any more.
            RequestError::Io if volume.is_given_up => true,
            RequestError::Io | RequestError::NoSpace => self.has_failures() || self.may_have_poison,
            RequestError::Shutdown => {
                pending.is_forgotten
                    || self.life.is_stopping
                    || volume.slot.is_none()
                    || volume.is_given_up
                    || self.is_leaving(volume.slot)
            }
            RequestError::ReadOnly => false,
        };
        if is_explained {
            return Ok(());
        }
        let what = pending.operation.kind.name();
        violation(
            format!("a {what} failed for no reason: {error:?}"),
            format!("{:?}", pending.operation),
        )
    }

    /// Whether the request is as old as one must be that has waited too long for its origin.
    fn has_waited_enough(&self, pending: &Pending) -> bool {
        let volume = &self.volumes[pending.operation.run.volume];
        let (Some(slot), Some(engine)) = (volume.slot, &self.engine) else { return false };
        engine.volume_status(self.time(), slot).is_some_and(|status| {
            let limit_ns = u64::from(status.settings.origin_timeout_s) * 1_000_000_000;
            limit_ns > 0 && self.now - pending.since >= limit_ns
        })
    }

    /// A volume with dirty data is marked in the host state file before a write is answered.
    fn check_dirty_mark(&self, index: usize) -> Result<(), Halt> {
        let volume = &self.volumes[index];
        let (Some(slot), Some(engine)) = (volume.slot, &self.engine) else { return Ok(()) };
        // While it drains, the origin gets every write at once.
        let is_draining = volume.entry == TableEntry::Changing;
        if volume.is_marked_dirty || !volume.mode.keeps_dirty() || is_draining {
            return Ok(());
        }
        match engine.volume_status(self.time(), slot) {
            Some(status) if status.dirty_blocks > 0 => violation(
                "dirty data, but no mark in the host state file",
                format!("volume {index}: {} dirty blocks", status.dirty_blocks),
            ),
            _ => Ok(()),
        }
    }

    /// Clients that wait for a cache device may lose patience.
    pub(crate) fn maybe_hang_up(&mut self) {
        let count = self.clients.connections.len();
        if count > 0 && self.random.percent(HANG_UP_PERCENT) {
            let time = self.now + self.random.below(HANG_UP_NS_MAX);
            self.agenda.push(time, Due::HangUp(self.random.index(count)));
        }
    }

    /// A client leaves, and another takes its place: what it asked for need not be answered well.
    pub(crate) fn hang_up(&mut self, index: usize) {
        self.say(format!("connection {index} hangs up"));
        let now = self.time();
        let mut forgotten = Vec::new();
        for (id, pending) in &mut self.clients.pending {
            if pending.owner == Owner::Connection(index) {
                pending.is_forgotten = true;
                forgotten.push(RequestId(*id));
            }
        }
        for id in forgotten {
            self.engine().0.handle_forget(now, id);
        }
    }

    fn on_slot_free(&mut self, owner: Owner) {
        let Owner::Connection(index) = owner else { return };
        let connection = &mut self.clients.connections[index];
        connection.in_flight -= 1;
        if connection.is_waiting {
            connection.is_waiting = false;
            let pause = connection.random.below(self.config.think_ns + 1);
            self.agenda.push(self.now + pause, Due::Client(index));
        }
    }
}

fn write_kind(kind: OperationKind) -> Option<WriteKind> {
    match kind {
        OperationKind::Write => Some(WriteKind::Data),
        OperationKind::WriteZeroes | OperationKind::WriteZeroesAllocated => Some(WriteKind::Zeroes),
        OperationKind::Discard => Some(WriteKind::Discard),
        OperationKind::Read | OperationKind::Flush | OperationKind::Prefetch => None,
    }
}

fn request_kind(operation: Operation, buffer: Option<BufferId>) -> RequestKind {
    let durability = operation.durability;
    match (operation.kind, buffer) {
        (OperationKind::Read, Some(buffer)) => RequestKind::Read { buffer },
        (OperationKind::Write, Some(buffer)) => RequestKind::Write { buffer, durability },
        (OperationKind::Flush, _) => RequestKind::Flush,
        (OperationKind::Discard, _) => RequestKind::Discard { durability },
        (OperationKind::WriteZeroes, _) => RequestKind::WriteZeroes { durability, may_unmap: true },
        (OperationKind::WriteZeroesAllocated, _) => {
            RequestKind::WriteZeroes { durability, may_unmap: false }
        }
        (OperationKind::Prefetch, _) => RequestKind::Prefetch,
        (OperationKind::Read | OperationKind::Write, None) => unreachable!("these have a buffer"),
    }
}

pub(crate) fn span_of(run: Run) -> Span {
    let sector = SECTOR_BYTES as u64;
    Span { offset: u64::from(run.first) * sector, length: u64::from(run.count) * sector }
}

/// Size of the buffer of a request: the whole blocks around its range.
fn buffer_bytes(run: Run) -> usize {
    let first = run.first / BLOCK_SECTORS;
    let end = (run.first + run.count).div_ceil(BLOCK_SECTORS);
    (end - first) as usize * BLOCK_BYTES
}

/// Where in its buffer the range of a request is.
fn data_range(run: Run, buffer: BufferId) -> BufferRange {
    let sector = SECTOR_BYTES as u32;
    let offset = run.first % BLOCK_SECTORS * sector;
    BufferRange { buffer, offset, length: run.count * sector }
}
