//! The vhost-user front end: exports as virtio block devices of virtual machines.
//!
//! A virtual machine monitor (QEMU, Cloud Hypervisor) connects to a socket, shares the guest's
//! memory and hands over descriptors for kicks and calls; from then on requests go through rings in
//! that memory. All of it is watched by the shard's ring: a kick is a completion there, and the
//! requests that it brings are at the engine in the same round. Payload is copied once each way:
//! checksums need bytes that nobody changes meanwhile.
//!
//! A front end that loses its server keeps the memory that says which requests were under way
//! ([`in_flight`]), and hands it to the next one, which does those again first.
//!
//! Bounds: one front end at a time for each socket, and for each head of its rings one request
//! under way; requests taken from a ring in one go. Requests for whose payload there is no memory
//! hold up their ring, in turn; those of a disk that holds its part of it hold up no others.
//!
//! Invariants: a request that was taken is given back once, or its front end is gone. At a stop the
//! engine may end without having done it: then it is left to the next server, which its front end
//! tells of it, and an error only where the front end remembers nothing. A new front end is served
//! when the last request of its predecessor has ended: what that wrote cannot come after what this
//! one writes. Bytes of front end or guest never cause a panic: the connection ends, or the ring
//! rests.
//!
//! Deliberately absent: migration (a log of written pages), and the memory of an I/O MMU.

mod abi;
mod device;
mod error;
mod in_flight;
mod memory;
mod options;
mod poll;
mod queue;
mod request;
mod ring;
mod session;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;

use forebay_engine::request::RequestError;
use forebay_engine::units::Time;

use self::device::{DEVICE_COUNT_MAX, Device, Place, RequestPlace};
use self::queue::{SlotState, Taken};
use self::request::{Geometry, status_of};
use self::ring::RingFault;
use self::wire::WireFault;
use super::accept_pause::{self, AcceptPause};
use super::block_request::rejoin_line;
use super::memory_turn::Claimant;
use super::{ClientReply, ClientSize, Demand, FrontContext, FrontEnd, NUMBER_BITS, SizeReach};
use crate::buffer_pool::BufferPool;
use crate::listen::Listener;
use crate::ring::{Completion, Ring};
use crate::shard::exports::{ExportNumber, ExportTable, NotClaimable};
use crate::shard::status::ConnectionReport;

pub use self::error::VhostUserError;
pub use self::options::VhostUserOptions;
pub(crate) use self::options::check_paths;

/// Why other front ends do not offer an export that has a socket.
const TAKEN: &str = "in use over vhost-user; a volume has one writable front end at a time";
/// Numbers of sockets among those of connections start here, above those of other front ends.
const CONNECTION_BASE: u64 = 2 << 32;
/// Requests that are taken from a ring before others have their turn.
const TURN_REQUESTS_MAX: u32 = 256;

/// What became of a request that was to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Began {
    /// It has begun, or ended: others of its queue may follow.
    OthersFollow,
    /// Its queue rests: the disk holds its part of the memory, or the ring has a fault.
    QueueRests,
    /// There is no memory for anybody, and it is the last in the line.
    NoMemory,
}

/// Where a request comes from that is to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Comes {
    FromRing,
    FromLine,
}

/// The front end.
pub(crate) struct VhostUserFrontEnd {
    devices: Vec<Device>,
    demands: VecDeque<Demand>,
    touched: Vec<usize>,
    /// Queues whose turn was over before they were empty.
    due: VecDeque<(usize, u16)>,
    memory_waiters: VecDeque<RequestPlace>,
    /// New front ends wait in the queues of the listeners.
    holds_back: bool,
    accept_pause: AcceptPause,
    is_stopping: bool,
}

impl VhostUserFrontEnd {
    /// A front end without sockets.
    pub(crate) fn new() -> VhostUserFrontEnd {
        VhostUserFrontEnd {
            devices: Vec::new(),
            demands: VecDeque::new(),
            touched: Vec::new(),
            due: VecDeque::new(),
            memory_waiters: VecDeque::new(),
            holds_back: false,
            accept_pause: AcceptPause::default(),
            is_stopping: false,
        }
    }

    /// Notes which sockets there are, each with its listener, and takes their exports away from
    /// other front ends.
    pub(crate) fn claim(
        &mut self,
        options: &[VhostUserOptions],
        listeners: Vec<Listener>,
        exports: &mut ExportTable,
    ) -> Result<(), VhostUserError> {
        let (count, most) = (options.len(), DEVICE_COUNT_MAX);
        if count > most {
            return Err(VhostUserError::TooMany { count, most });
        }
        for (option, listener) in options.iter().zip(listeners) {
            let (name, path) = (option.name.clone(), option.path.clone());
            let number = match exports.claimable(&name) {
                Ok(number) => number,
                Err(NotClaimable::Unknown { known }) => {
                    return Err(VhostUserError::UnknownExport { name, path, known });
                }
                Err(NotClaimable::Taken) => return Err(VhostUserError::Twice { name, path }),
            };
            exports.claim(number, TAKEN);
            let geometry = Geometry::of(&exports[number].facts);
            let mut device = Device::new(self.devices.len(), number, &name, path, geometry);
            if exports[number].unavailable().is_none() {
                device.listen_on(listener);
            }
            self.devices.push(device);
        }
        Ok(())
    }

    /// Begins to accept front ends. To be called when requests can be served; again, it tells those
    /// that are connected if a size is another.
    pub(crate) fn begin(&mut self, context: &mut FrontContext<'_>) {
        for device in &mut self.devices {
            device.renew_geometry(context.exports);
        }
        self.accept(context.ring);
    }

    /// Leaves new front ends to the queues of the listeners, which stay open.
    pub(crate) fn hold_back(&mut self, ring: &mut Ring) {
        self.holds_back = true;
        for device in &self.devices {
            device.cancel_accept(ring);
        }
    }

    /// Accepts those again that were held back.
    pub(crate) fn let_in(&mut self, ring: &mut Ring) {
        self.holds_back = false;
        self.accept(ring);
    }

    fn accept(&mut self, ring: &mut Ring) {
        if !self.holds_back && !self.accept_pause.is_on() {
            self.devices.iter_mut().for_each(|device| device.accept(ring));
        }
    }

    /// The sockets that front ends connect to.
    pub(crate) fn listeners_mut(&mut self) -> impl Iterator<Item = &mut Listener> {
        self.devices.iter_mut().filter_map(Device::listener_mut)
    }

    /// Where an export is served, if it is.
    pub(crate) fn path_of(&self, export: ExportNumber) -> Option<PathBuf> {
        let device = self.devices.iter().find(|device| device.export == export)?;
        Some(device.path.clone())
    }

    /// Something that the ring watches has happened.
    pub(crate) fn handle_completion(
        &mut self,
        context: &mut FrontContext<'_>,
        token: u32,
        completion: Completion,
    ) {
        let (index, place) = Place::of_token(token);
        let device = &mut self.devices[index];
        match place {
            Place::Accept => {
                if !completion.has_more {
                    device.handle_accept_ended();
                    self.accept_pause.handle_ended(completion.result, context.now);
                    self.accept(context.ring);
                }
                self.handle_accept(context, index, completion.result);
            }
            Place::Socket => {
                if device.socket_poll.handle(completion) {
                    self.read_messages(context, index);
                }
            }
            Place::Kick(queue) => {
                if device.handle_kick(queue, completion) {
                    self.drain(context, index, queue);
                }
            }
        }
        if !completion.has_more {
            self.devices[index].watch(context.ring);
            self.touch(index);
        }
    }

    fn handle_accept(&mut self, context: &mut FrontContext<'_>, index: usize, result: i32) {
        let device = &mut self.devices[index];
        if result < 0 {
            if !self.is_stopping && result != -libc::ECANCELED {
                let (kind, why) = accept_pause::complaint(result);
                let path = device.path.display();
                device
                    .log
                    .warn(kind, || format!("{path}: a front end could not be accepted: {why}"));
            }
            return;
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        // A detach is refused while a machine is connected, so none may come while it goes on.
        let is_away = context.exports[device.export].unavailable().is_some();
        if self.is_stopping || device.has_lost_export || is_away {
            return;
        }
        // What the predecessor said, or that it is gone, may not have been told yet.
        self.read_messages(context, index);
        let why = self.devices[index].open_session().and_then(|session| {
            if session.wire.is_hung_up() {
                Some("it has gone")
            } else {
                (!session.has_spoken).then_some("it says nothing, and another one is there")
            }
        });
        if let Some(why) = why {
            self.close(context, index, why);
        }
        let device = &mut self.devices[index];
        match &device.session {
            None => device.connect(context.ring, socket, context.now),
            Some(session) if session.is_closing && device.next.is_none() => {
                device.next = Some(socket);
            }
            Some(_) => {
                let path = device.path.display();
                device.log.warn("second", || {
                    format!("{path}: a second front end was refused; one has the volume")
                });
            }
        }
        self.touch(index);
    }

    fn touch(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if !device.is_touched {
            device.is_touched = true;
            self.touched.push(index);
        }
    }

    /// Does what the front end has asked for, as far as it can be done now.
    fn read_messages(&mut self, context: &mut FrontContext<'_>, index: usize) {
        loop {
            let device = &mut self.devices[index];
            let geometry = device.geometry;
            let Some(session) = device.session.as_mut().filter(|s| s.is_listening()) else {
                return;
            };
            let handled = match session.wire.receive() {
                Ok(Some(message)) => session.handle(message, &geometry),
                Ok(None) => return,
                Err(WireFault::Gone) => return self.close(context, index, "it has gone"),
                Err(fault) => Err(fault.text()),
            };
            if let Ok(Some(refusal)) = &handled {
                let path = device.path.display();
                device
                    .log
                    .warn("refusal", || format!("{path}: the front end is refused: {refusal}"));
            }
            match handled.and_then(|_| self.start_queues(context, index)) {
                Ok(()) => self.touch(index),
                Err(why) => {
                    let device = &mut self.devices[index];
                    let path = device.path.display();
                    device.log.warn("protocol", || format!("{path}: the front end is left: {why}"));
                    return self.close(context, index, &why);
                }
            }
        }
    }

    /// Starts the queues that can be, and takes what waits in them.
    fn start_queues(&mut self, context: &mut FrontContext<'_>, index: usize) -> Result<(), String> {
        loop {
            let device = &mut self.devices[index];
            let Some(session) = device.open_session() else { return Ok(()) };
            let started = session.start_next()?;
            if let Some(queue) = started {
                let again = session.queues[usize::from(queue)].again_count();
                if again > 0 {
                    let name = &device.name;
                    tracing::info!(export = name, queue, again, "requests are done again");
                }
            }
            device.watch(context.ring);
            let Some(queue) = started else { return Ok(()) };
            self.drain(context, index, queue);
        }
    }

    /// Takes requests from a queue, for one turn.
    fn drain(&mut self, context: &mut FrontContext<'_>, index: usize, queue: u16) {
        if self.is_stopping {
            return;
        }
        for _ in 0..TURN_REQUESTS_MAX {
            let device = &mut self.devices[index];
            let geometry = device.geometry;
            let Some((own, mut shared)) =
                device.session.as_mut().and_then(|session| session.queue(queue))
            else {
                return;
            };
            match own.take(&mut shared, &geometry, context.now) {
                Ok(Taken::Nothing) => return,
                Ok(Taken::Request(head)) => {
                    device.requests += 1;
                    let place = RequestPlace { device: index, queue, head };
                    if self.start(context, place, Comes::FromRing) != Began::OthersFollow {
                        return;
                    }
                }
                Ok(Taken::Answered(why)) => {
                    device.requests += 1;
                    if let Some(why) = why {
                        let path = device.path.display();
                        device.log.warn(why, || format!("{path}: a request was refused: {why}"));
                    }
                    self.touch(index);
                }
                Err(fault) => return self.fail_queue(context, index, queue, fault),
            }
        }
        self.due.push_back((index, queue));
    }

    /// Begins a request, or notes that it must wait.
    fn start(
        &mut self,
        context: &mut FrontContext<'_>,
        place: RequestPlace,
        comes: Comes,
    ) -> Began {
        let RequestPlace { device: index, queue, head } = place;
        // Who came before has the first claim to memory.
        let others_wait = !self.memory_waiters.is_empty();
        let device = &mut self.devices[index];
        let session = device.session.as_mut().expect("a request has a front end");
        let (own, mut shared) = session.queue(queue).expect("a request has a queue");
        let SlotState::Taken(mut active) = own.slots[usize::from(head)].state else {
            panic!("a request begins once");
        };
        if active.request.moves_data() {
            let is_behind = comes == Comes::FromRing && !device.waiters.is_empty();
            let wanted = active.request.memory_bytes();
            if is_behind || !context.pool.may_hold(device.buffer_bytes, wanted) {
                own.is_stalled = true;
                device.waiters.push_back(place);
                return Began::QueueRests;
            }
            if others_wait || !active.allocate(context, Claimant::VhostUser) {
                own.is_stalled = true;
                self.memory_waiters.push_back(place);
                return Began::NoMemory;
            }
            if own.take_payload(shared.memory, head, &active, context.pool).is_err() {
                active.release(context.pool);
                own.slots[usize::from(head)].state = SlotState::Idle;
                let status = abi::status::FAILED;
                let ended = own.end(&mut shared, head, &active, status, context.pool);
                self.touch(index);
                if let Err(fault) = ended {
                    self.fail_queue(context, index, queue, fault);
                    return Began::QueueRests;
                }
                return Began::OthersFollow;
            }
        }
        own.slots[usize::from(head)].state = SlotState::UnderWay(active);
        device.buffer_bytes += active.buffer_bytes(context.pool);
        self.demands.push_back(active.demand(place.number(), device.export));
        Began::OthersFollow
    }

    /// Goes on with what waits for memory.
    fn resume(&mut self, context: &mut FrontContext<'_>) {
        loop {
            self.serve_line(context);
            if !self.rejoin_line(context.pool) {
                break;
            }
        }
    }

    /// Begins what waits in the line of all disks, in turn, as far as there is memory.
    fn serve_line(&mut self, context: &mut FrontContext<'_>) {
        for _ in 0..self.memory_waiters.len() {
            let Some(place) = self.memory_waiters.pop_front() else { return };
            let session = self.devices[place.device].session.as_mut();
            let queue = session.and_then(|s| s.queues.get_mut(usize::from(place.queue)));
            queue.expect("who waits has a queue").is_stalled = false;
            // The others stay behind it.
            let mut behind = std::mem::take(&mut self.memory_waiters);
            match self.start(context, place, Comes::FromLine) {
                Began::NoMemory => {
                    self.memory_waiters.append(&mut behind);
                    return;
                }
                Began::QueueRests => {}
                Began::OthersFollow => self.drain(context, place.device, place.queue),
            }
            behind.append(&mut self.memory_waiters);
            self.memory_waiters = behind;
        }
    }

    /// Gives those a place in the line again whose disks hold little enough by now. Returns whether
    /// there were any.
    fn rejoin_line(&mut self, pool: &BufferPool) -> bool {
        let before = self.memory_waiters.len();
        for Device { waiters, buffer_bytes, session, .. } in &mut self.devices {
            let wanted = |place: &RequestPlace| {
                let session = session.as_ref().expect("who waits has a front end");
                let slots = &session.queues[usize::from(place.queue)].slots;
                match slots[usize::from(place.head)].state {
                    SlotState::Taken(active) => active.request.memory_bytes(),
                    _ => panic!("who waits was taken"),
                }
            };
            rejoin_line(&mut self.memory_waiters, waiters, *buffer_bytes, pool, wanted);
        }
        self.memory_waiters.len() > before
    }

    fn fail_queue(
        &mut self,
        context: &mut FrontContext<'_>,
        index: usize,
        queue: u16,
        fault: RingFault,
    ) {
        let device = &mut self.devices[index];
        let path = device.path.display();
        device.log.warn(fault.text(), || {
            let why = fault.text();
            format!("{path}: queue {queue} rests until its driver starts it anew: {why}")
        });
        if let Some(session) = device.open_session() {
            session.queues[usize::from(queue)].fail(fault);
        }
        device.watch(context.ring);
        self.touch(index);
    }

    /// Lets go of a front end. What it has under way ends without it.
    fn close(&mut self, context: &mut FrontContext<'_>, index: usize, why: &str) {
        let device = &mut self.devices[index];
        let Some(session) = device.session.as_mut().filter(|session| !session.is_closing) else {
            return;
        };
        let (path, requests) = (device.path.display(), device.requests);
        tracing::info!(socket = %path, requests, "disconnected: {why}");
        session.begin_close();
        for (queue, own) in (0u16..).zip(&session.queues) {
            for head in own.under_way() {
                let number = RequestPlace { device: index, queue, head }.number();
                self.demands.push_back(Demand::Forget { number, export: device.export });
            }
        }
        device.waiters.clear();
        self.memory_waiters.retain(|place| place.device != index);
        self.due.retain(|(device, _)| *device != index);
        device.watch(context.ring);
        self.touch(index);
    }

    /// Tells drivers, and goes on with what waited for the last request to end.
    fn settle(&mut self, context: &mut FrontContext<'_>, index: usize) {
        let device = &mut self.devices[index];
        let Some(session) = &mut device.session else { return };
        if session.is_closing {
            if session.in_flight() == 0 && device.is_unwatched() {
                device.session = None;
                if let Some(socket) = device.next.take() {
                    device.connect(context.ring, socket, context.now);
                }
            }
            return;
        }
        let mut fault = None;
        for queue in 0..session.queues.len() as u16 {
            let Some((own, shared)) = session.queue(queue) else { break };
            if let Err(found) = own.call(shared.memory) {
                fault = Some((queue, found));
            }
        }
        let stopped = session.advance_stop();
        if let Some((queue, fault)) = fault {
            self.fail_queue(context, index, queue, fault);
        }
        match stopped {
            Ok(false) => {}
            Ok(true) => self.read_messages(context, index),
            Err(why) => self.close(context, index, &why),
        }
    }
}

impl FrontEnd for VhostUserFrontEnd {
    fn poll_demand(&mut self) -> Option<Demand> {
        self.demands.pop_front()
    }

    fn handle_reply(&mut self, context: &mut FrontContext<'_>, reply: ClientReply) {
        let RequestPlace { device: index, queue, head } = RequestPlace::of_number(reply.number);
        let device = &mut self.devices[index];
        let session = device.session.as_mut().expect("a front end stays until its requests end");
        let slot = &mut session.queues[usize::from(queue)].slots[usize::from(head)];
        let SlotState::UnderWay(active) = std::mem::take(&mut slot.state) else {
            panic!("a reply to no request");
        };
        // The engine ends without having done it. An error would be the guest's file system's.
        let is_refused = self.is_stopping && reply.result == Err(RequestError::Shutdown);
        let is_left = is_refused && session.remembers_requests();
        let status = reply.result.map_or_else(status_of, |()| abi::status::OK);
        let ended = match session.queue(queue) {
            Some((own, _)) if is_left => {
                own.leave(head);
                Ok(())
            }
            Some((own, mut shared)) => own.end(&mut shared, head, &active, status, context.pool),
            None => {
                session.queues[usize::from(queue)].in_flight -= 1;
                Ok(())
            }
        };
        device.release(&active, context.pool);
        let nanoseconds = context.now.nanoseconds_since(active.arrived);
        let class = active.request.latency_class(reply.served);
        context.exports[device.export].latencies.record(class, nanoseconds);
        self.touch(index);
        if let Err(fault) = ended {
            self.fail_queue(context, index, queue, fault);
        }
    }

    fn flush(&mut self, context: &mut FrontContext<'_>) {
        self.resume(context);
        for _ in 0..self.due.len() {
            let Some((index, queue)) = self.due.pop_front() else { break };
            self.drain(context, index, queue);
        }
        let mut touched = std::mem::take(&mut self.touched);
        for index in touched.drain(..) {
            self.devices[index].is_touched = false;
            self.settle(context, index);
        }
        // Keeps the memory, unless a device was touched meanwhile.
        if self.touched.is_empty() {
            self.touched = touched;
        }
    }

    fn handle_time(&mut self, context: &mut FrontContext<'_>) {
        if self.accept_pause.end_if_due(context.now) {
            self.accept(context.ring);
        }
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.accept_pause.deadline()
    }

    fn waits_for_memory(&self) -> bool {
        !self.memory_waiters.is_empty()
    }

    fn has_work(&self) -> bool {
        !self.demands.is_empty() || !self.touched.is_empty() || !self.due.is_empty()
    }

    /// What is in the rings stays there, and what was taken from them and waits for memory is as if
    /// it were there: the next server takes it.
    fn begin_shutdown(&mut self) {
        self.is_stopping = true;
        self.accept_pause = AcceptPause::default();
        self.due.clear();
        let own_waiters = self.devices.iter_mut().flat_map(|device| device.waiters.drain(..));
        self.memory_waiters.extend(own_waiters);
        let devices = &mut self.devices;
        self.memory_waiters.retain(|place| {
            let session = devices[place.device].session.as_mut();
            let session = session.expect("who waits has a front end");
            let is_left = session.remembers_requests();
            if is_left {
                session.queues[usize::from(place.queue)].leave(place.head);
            }
            !is_left
        });
        self.devices.iter_mut().for_each(Device::stop_listening);
    }

    fn has_requests(&self) -> bool {
        self.devices.iter().any(|device| device.in_flight() > 0)
    }

    fn close_all(&mut self, context: &mut FrontContext<'_>) {
        for index in 0..self.devices.len() {
            self.close(context, index, "the server stops");
        }
    }

    fn close_clients_of(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        for index in 0..self.devices.len() {
            if self.devices[index].export == export {
                self.devices[index].has_lost_export = true;
                self.devices[index].stop_listening();
                self.close(context, index, "the volume is gone");
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.devices.iter().all(|device| device.session.is_none())
    }

    fn resize(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        for device in self.devices.iter_mut().filter(|device| device.export == export) {
            device.renew_geometry(context.exports);
        }
    }

    fn size_reach(&self, export: ExportNumber) -> Vec<ClientSize> {
        let own = self.devices.iter().filter(|device| device.export == export);
        let client = |device: &Device| {
            let session = device.session.as_ref().filter(|session| !session.is_closing)?;
            let reach = if session.knows_config() { SizeReach::Live } else { SizeReach::Reconnect };
            Some(ClientSize { client: device.label(), reach })
        };
        own.filter_map(client).collect()
    }

    fn peers_of(&self, export: ExportNumber) -> Vec<String> {
        let own = self.devices.iter().filter(|device| device.export == export);
        own.filter(|device| device.session.is_some()).map(Device::label).collect()
    }

    fn report(&self, exports: &ExportTable, now: Time) -> Vec<ConnectionReport> {
        let connected = self.devices.iter().enumerate().filter(|(_, d)| d.session.is_some());
        let report = |(index, device): (usize, &Device)| ConnectionReport {
            id: CONNECTION_BASE + index as u64,
            peer: device.label(),
            peer_pid: None,
            export: Some(exports[device.export].facts.name.clone()),
            requests_in_flight: device.in_flight(),
            buffer_bytes: device.buffer_bytes,
            requests: device.requests,
            age_ms: now.nanoseconds_since(device.connected_at) / 1_000_000,
        };
        connected.map(report).collect()
    }
}
