//! The loop: completions in, work, replies out, sleep.
//!
//! One round takes all completions that have arrived, hands them to whom they concern, lets the
//! engine (or the bare exports) act on all of them together, sends what is due, and goes to sleep
//! in the same system call that submits. So records share device writes, flushes share flushes, and
//! replies share calls, the more the busier it is.
//!
//! Invariants: the ring goes before the memory that it may name; the loop ends only when the kernel
//! holds no memory of it. Nothing in a round waits, except saving the host state file (see there).

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use forebay_engine::event::{CommandId, Event};
use forebay_engine::request::{Request, RequestError, RequestId};
use forebay_engine::status::BlockState;
use forebay_engine::units::{BLOCK_BYTES, OriginBlock, OriginExtent, Time};

use super::bare::BareRequests;
use super::exports::{ExportFacts, ExportTable, Target};
use super::fetch::Fetches;
use super::handle::{Answer, CommandAnswer, Message, NotServing, ShardHandle};
use super::resize::PendingSize;
use super::served_set::{Company, ServedSet};
use super::takeover::{Arriving, Leaving};
use super::{BareExport, MemoryOptions, ReadyMemory, Shard, ShardError};
use crate::buffer_pool::BufferPool;
use crate::clock::Clock;
use crate::device::{Access, DeviceTable, Finished, IoOwner, OpenedDevice, Surroundings};
use crate::frontend::memory_turn::MemoryTurn;
use crate::frontend::nbd::NbdFrontEnd;
use crate::frontend::ublk::UblkFrontEnd;
use crate::frontend::vhost_user::VhostUserFrontEnd;
use crate::frontend::{
    ClientReply, ClientRequest, Demand, FrontContext, FrontEnd, FrontEnds, STATUS_BYTES_MAX, Served,
};
use crate::ring::{Completion, Ring, Token, WakeUp};

/// Rounds of engine and inline devices before the sockets are looked at again: a device in memory
/// completes at once, so background work could go on for ever.
const ROUNDS_MAX: u32 = 8;
/// How long clients may take to read their last replies when the shard stops.
pub(super) const STOP_NS_MAX: u64 = 5_000_000_000;

/// How far the end is.
pub(super) enum Lifecycle {
    Serving,
    /// The engine finishes; clients get what is due.
    Stopping {
        deadline: Time,
    },
    /// Connections are being closed.
    Closing,
}

/// A shard at work. Fields are dropped in order: the ring first.
pub(super) struct Running {
    pub(super) ring: Ring,
    pub(super) front: FrontEnds,
    pub(super) devices: DeviceTable,
    pub(super) pool: BufferPool,
    memory_turn: MemoryTurn,
    pub(super) exports: ExportTable,
    pub(super) set: Option<ServedSet>,
    pub(super) lifecycle: Lifecycle,
    pub(super) clock: Clock,
    pub(super) now: Time,
    bare: BareRequests,
    pub(super) fetches: Fetches,
    messages: Receiver<Message>,
    pub(super) handle: ShardHandle,
    /// Those who wait for all front ends to be ready.
    pub(super) ready_answers: Vec<Answer<(), NotServing>>,
    /// A stop that begins when no front end can bring requests any more.
    pub(super) pending_stop: Option<(CommandId, CommandAnswer)>,
    /// Answers about a new size that wait for front ends.
    pub(super) pending_sizes: Vec<PendingSize>,
    /// Another process takes over from this one.
    pub(super) leaving: Option<Leaving>,
    /// How many wanted to.
    pub(super) takeovers: u64,
    /// This process takes over from another one.
    pub(super) arriving: Option<Arriving>,
    /// Why the shard ends early, though in good order.
    pub(super) failure: Option<ShardError>,
    /// The engine may have something to do.
    is_restless: bool,
    /// For an engine that takes over.
    pub(super) cache_timeout_ms: u64,
    wake_up: Arc<WakeUp>,
    completions: Vec<Completion>,
    finished: Vec<Finished>,
    replies: Vec<ClientReply>,
}

impl Shard {
    /// Serves until it is stopped, on the calling thread.
    ///
    /// # Errors
    /// If the ring fails, an export cannot be offered, or the cache device is damaged.
    pub fn run(self) -> Result<(), ShardError> {
        let mut running = Running::start(self)?;
        let result = running.serve();
        if result.is_err() {
            // Whoever waits for an answer gets it now: that the shard is gone.
            drop(running.set.take());
            drop(std::mem::replace(&mut running.messages, std::sync::mpsc::channel().1));
            // The kernel may still hold addresses of the rest, and nobody can wait for it.
            std::mem::forget(running);
            return result;
        }
        running.failure.take().map_or(Ok(()), Err)
    }
}

impl Running {
    fn start(shard: Shard) -> Result<Running, ShardError> {
        let Shard { options, set, bare, listeners, vhost_user_listeners, .. } = shard;
        let Shard { recorder, wake_up, messages, handle, memory, unclaimed, .. } = shard;
        let ReadyMemory { pool } = match memory {
            Some(ready) => ready,
            None => {
                let engine_bytes = if set.is_some() { options.memory.engine_bytes } else { 0 };
                ReadyMemory::allocate(MemoryOptions { engine_bytes, ..options.memory })?
            }
        };
        become_io_flusher();
        let arriving = unclaimed.map(Arriving::new);
        let company = if arriving.is_some() { Company::Predecessor } else { Company::None };
        let mut ring = Ring::new()?;
        let (start, bytes) = pool.memory();
        // SAFETY: the region is the pool's own mapping, and the pool is dropped after the ring.
        unsafe { ring.register_buffers(start, bytes) };
        let mut devices = DeviceTable::new(options.io_timeout_ms, recorder);
        let mut exports = ExportTable::new();
        let clock = Clock::start();
        let now = clock.now();
        let set = match set {
            Some(set) => {
                let around = (&mut ring, &mut devices, &mut exports);
                let mut set = ServedSet::start(set, around, company, now)?;
                set.engine.set_cache_timeout_ms(options.cache_timeout_ms);
                Some(set)
            }
            None => None,
        };
        for export in bare {
            add_bare(export, &mut ring, &mut devices, &mut exports)?;
        }
        let nbd = NbdFrontEnd::new(listeners, options.connections_max);
        let mut ublk = UblkFrontEnd::new(handle.clone());
        ublk.claim(&options.ublk, &mut exports)?;
        let mut vhost_user = VhostUserFrontEnd::new();
        vhost_user.claim(&options.vhost_user, vhost_user_listeners, &mut exports)?;
        Ok(Running {
            ring,
            front: FrontEnds { nbd, ublk, vhost_user },
            devices,
            pool,
            memory_turn: MemoryTurn::new(),
            exports,
            set,
            lifecycle: Lifecycle::Serving,
            clock,
            now,
            bare: BareRequests::new(),
            fetches: Fetches::default(),
            messages,
            handle,
            ready_answers: Vec::new(),
            pending_stop: None,
            pending_sizes: Vec::new(),
            leaving: None,
            takeovers: 0,
            arriving,
            failure: None,
            is_restless: false,
            cache_timeout_ms: options.cache_timeout_ms,
            wake_up,
            completions: Vec::new(),
            finished: Vec::new(),
            replies: Vec::new(),
        })
    }

    fn serve(&mut self) -> Result<(), ShardError> {
        self.ring.arm_wake_up(&self.wake_up);
        if self.arriving.is_none() {
            self.front.nbd.start(&mut self.ring);
        }
        if self.set.is_none() {
            self.begin_exclusive();
        }
        loop {
            self.work()?;
            if self.is_over() {
                // Answers of the last round to devices that stay are queued and no more.
                return Ok(self.ring.wait(Some(Duration::ZERO))?);
            }
            let timeout = self.timeout();
            self.ring.wait(timeout)?;
            self.now = self.clock.now();
            self.dispatch();
        }
    }

    /// Requests can be served: front ends begin that have waited for that.
    pub(super) fn begin_exclusive(&mut self) {
        self.front.ublk.begin(&self.exports);
        let (front, mut context) = self.front();
        front.vhost_user.begin(&mut context);
    }

    /// How long to sleep; `None`: until something happens.
    fn timeout(&self) -> Option<Duration> {
        if self.is_restless || self.front.has_work() || self.devices.has_finished() {
            return Some(Duration::ZERO);
        }
        let deadline = match self.lifecycle {
            // Before, there is nothing that it could end.
            Lifecycle::Stopping { deadline } if self.is_engine_done() => Some(deadline),
            Lifecycle::Serving | Lifecycle::Stopping { .. } | Lifecycle::Closing => None,
        };
        let wakeups = [
            self.set.as_ref().and_then(ServedSet::next_wakeup),
            self.devices.next_wakeup(),
            self.front.next_wakeup(),
            self.takeover_deadline(),
            deadline,
        ];
        let next = wakeups.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next.nanoseconds_since(self.now)))
    }

    /// Hands out what the kernel has completed.
    fn dispatch(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take_completions(&mut completions);
        for completion in completions.drain(..) {
            let result = completion.result;
            match completion.token {
                Token::Device(index) => {
                    let around =
                        &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now: self.now };
                    self.devices.handle_completion(around, index, result);
                }
                Token::Accept(index) => {
                    let (front, mut context) = self.front();
                    front.nbd.handle_accept(&mut context, index, completion);
                }
                Token::Receive(index) => {
                    let (front, mut context) = self.front();
                    front.nbd.handle_received(&mut context, index, result);
                }
                Token::Send(index) => {
                    let (front, mut context) = self.front();
                    front.nbd.handle_sent(&mut context, index, result);
                }
                Token::Ublk(slot) => {
                    let (front, mut context) = self.front();
                    front.ublk.handle_completion(&mut context, slot, result);
                }
                Token::VhostUser(number) => {
                    let (front, mut context) = self.front();
                    front.vhost_user.handle_completion(&mut context, number, completion);
                }
                Token::Cancelled => {}
                Token::WakeUp => {
                    self.wake_up.clear();
                    self.ring.arm_wake_up(&self.wake_up);
                    while let Ok(message) = self.messages.try_recv() {
                        self.handle_message(message);
                    }
                }
            }
        }
        self.completions = completions;
        self.devices.handle_time(self.now);
        if self.front.next_wakeup().is_some_and(|wakeup| wakeup <= self.now) {
            let (front, mut context) = self.front();
            front.handle_time(&mut context);
        }
    }

    pub(super) fn front(&mut self) -> (&mut FrontEnds, FrontContext<'_>) {
        let context = FrontContext {
            ring: &mut self.ring,
            pool: &mut self.pool,
            memory_turn: &mut self.memory_turn,
            exports: &mut self.exports,
            now: self.now,
        };
        (&mut self.front, context)
    }

    /// Everything that can be done without waiting, up to a bound.
    fn work(&mut self) -> Result<(), ShardError> {
        for _ in 0..ROUNDS_MAX {
            while let Some(demand) = self.front.poll_demand() {
                self.start_demand(demand);
            }
            self.take_finished();
            self.drive_set()?;
            self.close_idle_origins();
            if !self.replies.is_empty() {
                // What was answered at once, from memory, took its time since the round began.
                self.now = self.clock.now();
                self.deliver_replies();
            }
            let (front, mut context) = self.front();
            front.flush(&mut context);
            self.is_restless =
                self.advance_comeback() || self.advance_takeover() || self.begin_pending_stop();
            if !self.is_restless && !self.devices.has_finished() && !self.front.has_work() {
                break;
            }
        }
        self.advance_stop();
        Ok(())
    }

    fn start_demand(&mut self, demand: Demand) {
        match demand {
            Demand::Request(request) => self.start_request(&request),
            // Nothing waits at a bare device but what the kernel has.
            Demand::Forget { number, export } => {
                if let (Target::Volume(_), Some(set)) = (self.exports[export].target, &mut self.set)
                {
                    set.engine.handle_forget(self.now, RequestId(number.into()));
                }
            }
            Demand::BlockStatus { number, export, offset_bytes, length_bytes } => {
                let block = BLOCK_BYTES as u64;
                let start = offset_bytes / block;
                let length = length_bytes.min(STATUS_BYTES_MAX);
                let block_count = (offset_bytes + length).div_ceil(block) - start;
                let runs = self.block_states(self.exports[export].target, start, block_count);
                self.front.handle_block_status(number, &runs);
            }
        }
    }

    fn start_request(&mut self, request: &ClientRequest) {
        let export = &self.exports[request.export];
        if let Some(recorder) = self.devices.recorder() {
            recorder.request(&self.pool, request, &export.facts);
        }
        if export.is_removed() {
            let (result, served) = (Err(RequestError::Shutdown), Served::Origin);
            self.replies.push(ClientReply { number: request.number, result, served });
            return;
        }
        match export.target {
            Target::Bare(device) => {
                let around =
                    &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now: self.now };
                let reply = self.bare.start(&mut self.devices, around, device, request);
                self.replies.extend(reply);
            }
            Target::Volume(slot) => {
                let set = self.set.as_mut().expect("volumes belong to a set");
                let request = engine_request(request, slot);
                set.handle_request(self.now, request, &mut self.pool);
            }
        }
    }

    /// Runs of blocks and their states.
    pub(super) fn block_states(
        &self,
        target: Target,
        start: u64,
        block_count: u64,
    ) -> Vec<(u64, u64, BlockState)> {
        match (target, &self.set) {
            (Target::Volume(volume), Some(set)) => {
                let start = OriginBlock(start);
                let runs = set.engine.map(OriginExtent { volume, start, block_count });
                runs.into_iter().map(|(first, count, state)| (first.0, count, state)).collect()
            }
            _ => vec![(start, block_count, BlockState::NotCached)],
        }
    }

    /// Tells those who wait for device operations that these have ended.
    fn take_finished(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        self.devices.swap_finished(&mut finished);
        for Finished { owner, result } in finished.drain(..) {
            match owner {
                IoOwner::Engine(id) => {
                    let set = self.set.as_mut().expect("the engine belongs to a set");
                    set.engine.handle_io_complete(self.now, id, result, &mut self.pool);
                }
                IoOwner::Bare(index) => {
                    let around =
                        &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now: self.now };
                    let devices = &mut self.devices;
                    let reply = self.bare.handle_finished(devices, around, index, result);
                    self.replies.extend(reply);
                }
            }
        }
        self.finished = finished;
    }

    /// Lets the engine act and takes out what it wants.
    fn drive_set(&mut self) -> Result<(), ShardError> {
        if let Some(set) = &mut self.set {
            set.handle_time(self.now, &mut self.pool);
        }
        // What is done about an event may give the engine something to do.
        while let Some(event) = self.poll_engine() {
            self.handle_event(event)?;
        }
        Ok(())
    }

    /// Starts the engine's operations and collects its replies. Returns its next
    /// event.
    fn poll_engine(&mut self) -> Option<Event> {
        let set = self.set.as_mut()?;
        while let Some(io) = set.engine.poll_io(&mut self.pool) {
            let around =
                &mut Surroundings { ring: &mut self.ring, pool: &self.pool, now: self.now };
            match set.device(io.device) {
                Some(device) => {
                    self.devices.start(around, device, io.kind, IoOwner::Engine(io.id));
                }
                None => self.devices.refuse(IoOwner::Engine(io.id)),
            }
        }
        while let Some(reply) = set.engine.poll_reply() {
            self.replies.extend(self.fetches.take_reply(reply).map(|reply| client_reply(&reply)));
        }
        set.engine.poll_event()
    }

    fn deliver_replies(&mut self) {
        let mut replies = std::mem::take(&mut self.replies);
        for reply in replies.drain(..) {
            if let Some(recorder) = self.devices.recorder() {
                recorder.answer(&reply);
            }
            let (front, mut context) = self.front();
            front.handle_reply(&mut context, reply);
        }
        self.replies = replies;
    }

    /// Stops: no new clients, no new requests; what is under way ends. Returns whether this is the
    /// first time.
    pub(super) fn begin_stop(&mut self) -> bool {
        if !matches!(self.lifecycle, Lifecycle::Serving) {
            return false;
        }
        self.cancel_takeover();
        let deadline = Time(self.now.0.saturating_add(STOP_NS_MAX));
        self.lifecycle = Lifecycle::Stopping { deadline };
        self.front.begin_shutdown();
        true
    }

    /// Whether the engine has finished for good, if there is one.
    fn is_engine_done(&self) -> bool {
        self.pending_stop.is_none() && self.set.as_ref().is_none_or(ServedSet::is_stopped)
    }

    fn advance_stop(&mut self) {
        let Lifecycle::Stopping { deadline } = self.lifecycle else { return };
        if self.is_engine_done() && (!self.front.has_requests() || deadline <= self.now) {
            self.lifecycle = Lifecycle::Closing;
            let (front, mut context) = self.front();
            front.close_all(&mut context);
            front.flush(&mut context);
        }
    }

    /// Whether the end has come: nothing is left that the kernel could touch.
    fn is_over(&mut self) -> bool {
        let is_over = matches!(self.lifecycle, Lifecycle::Closing)
            && self.front.is_empty()
            && self.devices.is_idle();
        if is_over && let Some(set) = &mut self.set {
            set.answer_stop(self.now);
        }
        is_over
    }
}

fn add_bare(
    export: BareExport,
    ring: &mut Ring,
    devices: &mut DeviceTable,
    exports: &mut ExportTable,
) -> Result<(), ShardError> {
    let BareExport { name, device, access, identity } = export;
    let is_read_only = access == Access::ReadOnly;
    let facts = ExportFacts { name, is_read_only, identity, ..bare_facts(&device) };
    let Ok(id) = devices.add(ring, device) else {
        let reason = "too many devices are open".to_owned();
        return Err(ShardError::Export { name: facts.name, reason });
    };
    exports.add(facts, Target::Bare(id), None)?;
    Ok(())
}

fn bare_facts(device: &OpenedDevice) -> ExportFacts {
    let facts = device.facts();
    // NBD knows 512 and 4096; whatever lies between is served as 4096.
    let logical_block_bytes = if facts.logical_block_bytes <= 512 { 512 } else { 4096 };
    ExportFacts {
        name: String::new(),
        device: device.spec().to_string(),
        size_bytes: facts.size_bytes,
        logical_block_bytes,
        optimal_io_bytes: facts.optimal_io_bytes,
        is_read_only: false,
        is_rotational: device.origin_facts().is_rotational,
        identity: 0,
    }
}

fn engine_request(request: &ClientRequest, volume: forebay_engine::units::VolumeSlot) -> Request {
    Request {
        id: RequestId(request.number.into()),
        volume,
        offset_bytes: request.offset_bytes,
        length_bytes: request.length_bytes,
        kind: request.kind,
    }
}

fn client_reply(reply: &forebay_engine::request::Reply) -> ClientReply {
    ClientReply {
        number: u32::try_from(reply.id.0).expect("request ids are numbers of requests"),
        result: reply.result,
        served: match reply.served {
            forebay_engine::request::Served::Cache => Served::Cache,
            forebay_engine::request::Served::Origin => Served::Origin,
            forebay_engine::request::Served::NoRead => Served::Origin,
        },
    }
}

/// Tells the kernel that memory which this thread allocates must not wait for a disk: short of
/// memory, it would write out pages of a file system that only this thread can serve. Whoever may
/// not say so has no block device on this machine either, unless somebody else makes one of it.
fn become_io_flusher() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the server may wait for itself when memory is short");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use io_uring::opcode;
    use io_uring::types::Fd;

    use super::*;
    use crate::shard::ShardOptions;

    #[test]
    fn what_the_last_round_has_queued_is_submitted() {
        let memory = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
        let options = ShardOptions { memory, ..ShardOptions::default() };
        let shard = Shard::new(options, None, Vec::new()).unwrap();
        let mut running = Running::start(shard).unwrap();
        running.lifecycle = Lifecycle::Closing;
        // In the place of an answer to a block device, which takes a driver.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let word: &'static [u8] = b"done";
        let send = opcode::Send::new(Fd(ours.as_raw_fd()), word.as_ptr(), word.len() as u32);
        // SAFETY: the word is never freed.
        unsafe { running.ring.push(Token::Cancelled, send.build()) };
        running.serve().unwrap();
        drop((running, ours));
        let mut told = Vec::new();
        theirs.read_to_end(&mut told).unwrap();
        assert_eq!(told, word);
    }
}
