//! The NBD front end: many clients on the shard's ring.
//!
//! Bytes of clients become demands, replies become bytes; the protocol itself is [`forebay_nbd`]'s.
//! One receive usually brings several requests, and all replies that are due leave in one call.
//!
//! Bounds: connections, requests and bytes under way per connection, also of requests that were
//! refused and of block status, until the reply has left; and the clients' share of the payload
//! memory. A connection at a bound is not read until it is below it again, which the client
//! feels as back-pressure; others go on. If the memory as a whole is short, clients that hold some
//! of it and take no bytes for [`STALL_NS_MAX`] are disconnected, so that a dead client cannot keep
//! it.
//!
//! Invariants: every accepted request gets exactly one reply, or its connection is closed; a
//! connection's slot is used again only when the kernel and the backends hold nothing of it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use forebay_engine::payload::Payload;
use forebay_engine::status::BlockState;
use forebay_engine::units::{BLOCK_BYTES, Time};
use forebay_nbd::{
    Command, ContextExtents, MetaContext, REPLY_HEADER_BYTES_MAX, Request, ServerEvent, Session,
    StatusExtent,
};
use io_uring::opcode;
use io_uring::types::Fd;

use super::accept_pause::{self, AcceptPause};
use super::connection::{Connection, Incoming, Phase, Stall};
use super::log_once::LogOnce;
use super::memory_turn::Claimant;
use super::outbox::{Body, OutgoingReply, SendStep, Sent};
use super::translation::{RequestRecord, cache_extents, demand, form_reply, latency_class};
use super::{
    ClientReply, ClientSize, Demand, FrontContext, FrontEnd, STATUS_BYTES_MAX, SizeReach,
    whole_blocks,
};
use crate::buffer_pool::BufferPool;
use crate::listen::Listener;
use crate::ring::{Completion, Ring, Token};
use crate::shard::exports::{ExportNumber, ExportTable};
use crate::shard::status::ConnectionReport;
use crate::slab::Slab;

/// Replies due to one connection that have not left. Chosen: twice what any client of today
/// keeps under way on one connection (128, the Linux kernel's default).
const REQUESTS_PER_CONNECTION_MAX: u32 = 256;
/// How long a client may take no bytes while it holds memory that others wait for.
const STALL_NS_MAX: u64 = 5_000_000_000;
/// Bytes of a descriptor of a block status: a length and flags.
const STATUS_DESCRIPTOR_BYTES: u64 = 8;
/// How long a client may take to choose an export.
const HANDSHAKE_NS_MAX: u64 = 30_000_000_000;

/// The front end.
pub(crate) struct NbdFrontEnd {
    listeners: Vec<Listener>,
    connections: Slab<Connection>,
    connections_max: u32,
    next_connection_id: u64,
    handshakes: u32,
    requests: Slab<RequestRecord>,
    demands: VecDeque<Demand>,
    touched: Vec<u32>,
    memory_waiters: VecDeque<u32>,
    /// Whether clients of another front end wait for memory, which those of this one may hold.
    pub(super) others_wait: bool,
    is_stopping: bool,
    /// Whether new clients are taken; else they wait in the queues of the listeners.
    accepts: bool,
    /// Which listeners have an accept at the ring.
    armed: Vec<bool>,
    accept_pause: AcceptPause,
    log: LogOnce,
}

impl NbdFrontEnd {
    /// A front end for `connections_max` clients.
    pub(crate) fn new(listeners: Vec<Listener>, connections_max: u32) -> NbdFrontEnd {
        NbdFrontEnd {
            accepts: false,
            armed: vec![false; listeners.len()],
            listeners,
            connections: Slab::new(),
            connections_max,
            next_connection_id: 1,
            handshakes: 0,
            requests: Slab::new(),
            demands: VecDeque::new(),
            touched: Vec::new(),
            memory_waiters: VecDeque::new(),
            others_wait: false,
            is_stopping: false,
            accept_pause: AcceptPause::default(),
            log: LogOnce::default(),
        }
    }

    /// Begins to accept clients, also again.
    pub(crate) fn start(&mut self, ring: &mut Ring) {
        self.accepts = true;
        self.accept_all(ring);
    }

    fn accept_all(&mut self, ring: &mut Ring) {
        for index in 0..self.listeners.len() {
            self.accept(ring, index as u32);
        }
    }

    /// Leaves new clients to the queues of the listeners, which stay open.
    pub(crate) fn hold_clients_back(&mut self, ring: &mut Ring) {
        self.accepts = false;
        for index in (0u32..).zip(&self.armed).filter(|(_, armed)| **armed).map(|(index, _)| index)
        {
            ring.cancel_poll(Token::Accept(index));
        }
    }

    /// Where clients connect.
    pub(crate) fn listeners_mut(&mut self) -> &mut [Listener] {
        &mut self.listeners
    }

    fn accept(&mut self, ring: &mut Ring, index: u32) {
        let waits = !self.accepts || self.accept_pause.is_on();
        if waits || std::mem::replace(&mut self.armed[index as usize], true) {
            return;
        }
        let descriptor = Fd(self.listeners[index as usize].as_fd().as_raw_fd());
        let entry = opcode::AcceptMulti::new(descriptor).flags(libc::SOCK_CLOEXEC).build();
        // SAFETY: an accept without an address buffer names no memory.
        unsafe { ring.push(Token::Accept(index), entry) };
    }

    /// A client has connected, or accepting has failed.
    pub(crate) fn handle_accept(
        &mut self,
        context: &mut FrontContext<'_>,
        listener: u32,
        completion: Completion,
    ) {
        if !completion.has_more && !self.is_stopping {
            self.armed[listener as usize] = false;
            self.accept_pause.handle_ended(completion.result, context.now);
            self.accept(context.ring, listener);
        }
        if completion.result < 0 {
            if !self.is_stopping && completion.result != -libc::ECANCELED {
                let (kind, why) = accept_pause::complaint(completion.result);
                self.log.warn(kind, || format!("a client could not be accepted: {why}"));
            }
            return;
        }
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(completion.result) };
        if self.is_stopping || self.connections.count() >= self.connections_max as usize {
            let most = self.connections_max;
            self.log.warn("connections", || format!("a client was refused: {most} are connected"));
            return;
        }
        // Of no use to a Unix socket, which refuses both; TCP needs them but works without.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        let _ = rustix::net::sockopt::set_socket_keepalive(&socket, true);
        let connection = Connection::new(socket, self.next_connection_id, context.now);
        tracing::debug!(connection = connection.id, peer = connection.peer, "connected");
        self.next_connection_id += 1;
        self.handshakes += 1;
        let index = self.connections.insert(connection);
        self.touch(index);
    }

    /// Connections that use an export.
    fn clients_of(&self, export: ExportNumber) -> impl Iterator<Item = &Connection> {
        self.connections.iter().map(|(_, connection)| connection).filter(move |connection| {
            connection.export == Some(export) && connection.phase != Phase::Closing
        })
    }

    fn touch(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        if !connection.is_touched {
            connection.is_touched = true;
            self.touched.push(index);
        }
    }

    /// A receive has ended.
    pub(crate) fn handle_received(
        &mut self,
        context: &mut FrontContext<'_>,
        index: u32,
        result: i32,
    ) {
        self.touch(index);
        let connection = &mut self.connections[index];
        if result <= 0 {
            connection.handle_receive_failed();
            let again = matches!(-result, libc::EINTR | libc::EAGAIN);
            if connection.phase == Phase::Closing || !again {
                if result == 0 && connection.phase == Phase::Open {
                    let (id, peer) = (connection.id, &connection.peer);
                    tracing::debug!(connection = id, peer, "closed without a word");
                }
                self.close(context, index);
            }
            return;
        }
        connection.last_progress = context.now;
        let payload_is_complete = connection.handle_received(result as usize);
        if connection.phase != Phase::Open {
            self.close(context, index);
            return;
        }
        if payload_is_complete {
            self.finish_write(index);
        }
        self.parse(context, index);
    }

    /// Turns what was received into demands, until more must be received or a bound is reached.
    fn parse(&mut self, context: &mut FrontContext<'_>, index: u32) {
        loop {
            let connection = &mut self.connections[index];
            if connection.phase != Phase::Open || connection.unparsed().is_empty() {
                return;
            }
            if connection.incoming.is_some() {
                if !connection.copy_payload(context.pool) {
                    return;
                }
                self.finish_write(index);
                continue;
            }
            if connection.due_count() >= REQUESTS_PER_CONNECTION_MAX {
                connection.stall = Stall::OwnLimit;
                return;
            }
            let mut output = Vec::new();
            let event = connection.next_event(context.exports.offered(), &mut output);
            if !output.is_empty() {
                connection.outbox.push_text(output);
            }
            match event {
                Err(error) => {
                    let peer = connection.peer.clone();
                    self.log.warn_about(error, || format!("{peer} broke the protocol: {error}"));
                    self.end(index);
                    return;
                }
                Ok(None) => {}
                Ok(Some(ServerEvent::Ready(session))) => {
                    self.begin_session(context, index, session)
                }
                Ok(Some(ServerEvent::Aborted | ServerEvent::Disconnect)) => {
                    self.end(index);
                    return;
                }
                Ok(Some(ServerEvent::Refused(refusal))) => {
                    let session = connection.session.expect("requests come after the handshake");
                    let peer = &connection.peer;
                    self.log.warn_about(refusal.reason, || {
                        format!("{peer} sent a request that was refused: {refusal:?}")
                    });
                    let mut header = [0; REPLY_HEADER_BYTES_MAX];
                    let length =
                        session.encode_error_reply(refusal.cookie, refusal.error(), &mut header);
                    connection.outbox.push(OutgoingReply::refusal(header, length));
                }
                Ok(Some(ServerEvent::Request(request))) => {
                    if !self.start_request(context, index, request) {
                        return;
                    }
                }
            }
        }
    }

    fn begin_session(&mut self, context: &FrontContext<'_>, index: u32, session: Session) {
        let connection = &mut self.connections[index];
        let export = context.exports.number_at(session.export_index);
        connection.session = Some(session);
        connection.told_bytes = session.size_bytes;
        connection.export = Some(export);
        self.handshakes -= 1;
        let name = &context.exports[export].facts.name;
        tracing::info!(connection = connection.id, peer = connection.peer, export = name, "in use");
    }

    /// Starts a request, or notes that it must wait. Returns whether parsing may go on.
    fn start_request(
        &mut self,
        context: &mut FrontContext<'_>,
        index: u32,
        request: Request,
    ) -> bool {
        let connection = &mut self.connections[index];
        let export = connection.export.expect("requests come after the handshake");
        let needs_buffer = matches!(request.command, Command::Read { .. } | Command::Write { .. });
        let wanted = wanted_bytes(&request);
        if wanted > 0 && !context.pool.may_hold(connection.buffer_bytes, wanted) {
            connection.stall = Stall::OwnLimit;
            connection.stalled_request = Some(request);
            return false;
        }
        let mut buffer = None;
        let mut buffer_bytes = wanted as u32;
        if needs_buffer {
            // Who came before has the first claim to memory.
            let is_first = self.memory_waiters.is_empty();
            let allocated =
                if is_first { context.allocate(Claimant::Nbd, wanted as usize) } else { None };
            let Some(allocated) = allocated else {
                connection.stall = Stall::Memory;
                connection.stalled_request = Some(request);
                self.memory_waiters.push_back(index);
                return false;
            };
            buffer = Some(allocated);
            buffer_bytes = context.pool.capacity_bytes(allocated) as u32;
        }
        connection.in_flight += 1;
        connection.requests += 1;
        connection.buffer_bytes += u64::from(buffer_bytes);
        let arrived = context.now;
        let record = RequestRecord { connection: index, request, buffer, buffer_bytes, arrived };
        let number = self.requests.insert(record);
        match (request.command, buffer) {
            (Command::Write { .. }, Some(buffer)) => {
                let offset = (request.offset_bytes % BLOCK_BYTES as u64) as u32;
                let left = request.length_bytes;
                connection.incoming = Some(Incoming { number, buffer, offset, left });
            }
            _ => self.demands.push_back(demand(number, export, &request, buffer)),
        }
        true
    }

    /// The payload of a write is complete.
    fn finish_write(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        let incoming = connection.incoming.take().expect("a payload was arriving");
        let export = connection.export.expect("requests come after the handshake");
        let request = self.requests[incoming.number].request;
        self.demands.push_back(demand(incoming.number, export, &request, Some(incoming.buffer)));
    }

    fn flush_connection(&mut self, context: &mut FrontContext<'_>, index: u32) {
        self.send(context, index);
        while self.connections[index].stall == Stall::OwnLimit
            && self.is_below_limits(context.pool, index)
        {
            self.resume(context, index);
            self.send(context, index);
        }
        let connection = &mut self.connections[index];
        match connection.phase {
            Phase::Open => {
                if connection.stall == Stall::None && !connection.is_receiving() {
                    let entry = connection.receive_entry(context.pool);
                    // SAFETY: the receive buffer, the message and its pieces are on the heap of the
                    // connection, which stays in its slot until the completion; the pool buffer
                    // belongs to the request that the connection is receiving.
                    unsafe { context.ring.push(Token::Receive(index), entry) };
                }
            }
            Phase::Ending => {
                if connection.outbox.is_empty() && connection.in_flight == 0 {
                    self.close(context, index);
                }
            }
            Phase::Closing => self.remove_if_quiet(index),
        }
    }

    /// Sends as much as the socket takes; the ring waits for the rest.
    fn send(&mut self, context: &mut FrontContext<'_>, index: u32) {
        loop {
            let connection = &mut self.connections[index];
            if connection.phase == Phase::Closing || connection.outbox.is_in_ring() {
                return;
            }
            if !connection.outbox.prepare(context.pool) {
                return;
            }
            match connection.outbox.send_now(connection.socket.as_fd()) {
                SendStep::Complete => {
                    connection.last_progress = context.now;
                    let sent =
                        connection.outbox.take_sent(|range| context.pool.release(range.buffer));
                    self.settle(index, sent);
                }
                SendStep::Blocked => {
                    let entry = connection.outbox.entry(connection.socket.as_fd());
                    // SAFETY: the batch and its pieces stay in the outbox until the completion, and
                    // the outbox keeps its references of the buffers until then.
                    unsafe { context.ring.push(Token::Send(index), entry) };
                    return;
                }
                SendStep::Broken(_) => return self.close(context, index),
            }
        }
    }

    /// The ring has sent a batch, or failed to.
    pub(crate) fn handle_sent(&mut self, context: &mut FrontContext<'_>, index: u32, result: i32) {
        self.touch(index);
        let connection = &mut self.connections[index];
        let step = connection.outbox.handle_sent(result);
        if connection.phase == Phase::Closing {
            self.close(context, index);
            return;
        }
        if result > 0 {
            connection.last_progress = context.now;
        }
        match step {
            SendStep::Complete => {
                let sent = connection.outbox.take_sent(|range| context.pool.release(range.buffer));
                self.settle(index, sent);
            }
            // The next flush offers the rest again.
            SendStep::Blocked => {}
            SendStep::Broken(_) => self.close(context, index),
        }
    }

    fn settle(&mut self, index: u32, sent: Sent) {
        let connection = &mut self.connections[index];
        connection.in_flight -= sent.requests;
        connection.buffer_bytes -= sent.buffer_bytes;
    }

    /// Whether a connection that is stalled by its own limits may go on.
    fn is_below_limits(&self, pool: &BufferPool, index: u32) -> bool {
        let connection = &self.connections[index];
        let wanted = connection.stalled_request.map_or(0, |request| wanted_bytes(&request));
        connection.due_count() < REQUESTS_PER_CONNECTION_MAX
            && pool.may_hold(connection.buffer_bytes, wanted)
    }

    /// Goes on with a stalled connection. Returns whether the request that waited was started.
    fn resume(&mut self, context: &mut FrontContext<'_>, index: u32) -> bool {
        let connection = &mut self.connections[index];
        connection.stall = Stall::None;
        if let Some(request) = connection.stalled_request.take()
            && !self.start_request(context, index, request)
        {
            return false;
        }
        self.parse(context, index);
        true
    }

    /// The client is done: it gets what is due, and no more is taken from it.
    fn end(&mut self, index: u32) {
        let connection = &mut self.connections[index];
        if connection.phase == Phase::Open {
            connection.phase = Phase::Ending;
        }
        self.touch(index);
    }

    /// Shuts the socket down and drops what is due. The slot is freed when all is quiet.
    fn close(&mut self, context: &mut FrontContext<'_>, index: u32) {
        let connection = &mut self.connections[index];
        if connection.phase != Phase::Closing {
            connection.phase = Phase::Closing;
            connection.stall = Stall::None;
            connection.stalled_request = None;
            // It may be shut down from the other side already.
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
            if connection.session.is_none() {
                self.handshakes -= 1;
            }
            let (id, requests) = (connection.id, connection.requests);
            tracing::info!(connection = id, peer = connection.peer, requests, "disconnected");
            if let Some(export) = connection.export {
                let own = self.requests.iter().filter(|(_, record)| record.connection == index);
                let forget = own.map(|(number, _)| Demand::Forget { number, export });
                self.demands.extend(forget);
            }
        }
        let mut sent = Sent::default();
        if !connection.outbox.is_in_ring() {
            sent = connection.outbox.take_all(|range| context.pool.release(range.buffer));
        }
        if !connection.is_receiving()
            && let Some(incoming) = connection.incoming.take()
        {
            let record = self.requests.remove(incoming.number);
            context.pool.release(incoming.buffer);
            sent.requests += 1;
            sent.buffer_bytes += u64::from(record.buffer_bytes);
        }
        self.settle(index, sent);
        self.touch(index);
    }

    fn remove_if_quiet(&mut self, index: u32) {
        let connection = &self.connections[index];
        // If it was touched again, the next flush comes here.
        if connection.is_quiet() && connection.outbox.is_empty() && !connection.is_touched {
            assert!(connection.buffer_bytes == 0);
            self.memory_waiters.retain(|waiter| *waiter != index);
            self.connections.remove(index);
        }
    }

    /// When a connection has overstayed.
    fn deadline(&self, connection: &Connection) -> Option<Time> {
        if connection.session.is_none() {
            return Some(Time(connection.connected_at.0 + HANDSHAKE_NS_MAX));
        }
        let is_waited_for =
            connection.outbox.is_in_ring() || connection.incoming.is_some() || self.is_stopping;
        let holds_memory =
            connection.buffer_bytes > 0 && (self.others_wait || self.waits_for_memory());
        (is_waited_for && (holds_memory || self.is_stopping))
            .then(|| Time(connection.last_progress.0 + STALL_NS_MAX))
    }
}

/// Bytes that a request takes up until its reply has left: of payload memory, or of the text of a
/// block status, which is a descriptor for each run of blocks.
fn wanted_bytes(request: &Request) -> u64 {
    let length_bytes = u64::from(request.length_bytes);
    match request.command {
        Command::Read { .. } | Command::Write { .. } => {
            whole_blocks(request.offset_bytes, length_bytes)
        }
        Command::BlockStatus { .. } => {
            let bytes = whole_blocks(request.offset_bytes, length_bytes.min(STATUS_BYTES_MAX));
            bytes / BLOCK_BYTES as u64 * STATUS_DESCRIPTOR_BYTES
        }
        _ => 0,
    }
}

impl FrontEnd for NbdFrontEnd {
    fn poll_demand(&mut self) -> Option<Demand> {
        self.demands.pop_front()
    }

    fn handle_reply(&mut self, context: &mut FrontContext<'_>, reply: ClientReply) {
        let record = self.requests.remove(reply.number);
        let connection = &mut self.connections[record.connection];
        let nanoseconds = context.now.nanoseconds_since(record.arrived);
        if let (Some(class), Some(export)) =
            (latency_class(record.request.command, reply.served), connection.export)
        {
            context.exports[export].latencies.record(class, nanoseconds);
        }
        if connection.phase == Phase::Closing {
            let sent = Sent { requests: 1, buffer_bytes: record.buffer_bytes.into() };
            if let Some(buffer) = record.buffer {
                context.pool.release(buffer);
            }
            self.settle(record.connection, sent);
            self.touch(record.connection);
            return;
        }
        let session = connection.session.expect("requests come after the handshake");
        let outgoing = form_reply(&session, &record, reply.result);
        if let (Some(buffer), Body::None) = (record.buffer, &outgoing.body) {
            connection.buffer_bytes -= u64::from(record.buffer_bytes);
            context.pool.release(buffer);
        }
        connection.outbox.push(outgoing);
        self.touch(record.connection);
    }

    fn handle_block_status(&mut self, number: u32, runs: &[(u64, u64, BlockState)]) {
        let record = self.requests.remove(number);
        let connection = &mut self.connections[record.connection];
        if connection.phase == Phase::Closing {
            let buffer_bytes = record.buffer_bytes.into();
            self.settle(record.connection, Sent { requests: 1, buffer_bytes });
            self.touch(record.connection);
            return;
        }
        let session = connection.session.expect("requests come after the handshake");
        let request = record.request;
        let cache = cache_extents(&request, runs);
        // Whether the origin has holes is not known here; all of it counts as allocated.
        let allocation = [StatusExtent { length_bytes: request.length_bytes, flags: 0 }];
        let replies: Vec<ContextExtents<'_>> = session
            .contexts
            .iter()
            .map(|context| match context {
                MetaContext::Allocation => ContextExtents { context, extents: &allocation },
                MetaContext::Cache => ContextExtents { context, extents: &cache },
            })
            .collect();
        let mut text = Vec::new();
        session.append_block_status(&request, &replies, &mut text);
        let header = [0; REPLY_HEADER_BYTES_MAX];
        let (body, buffer_bytes) = (Body::Text(text), record.buffer_bytes);
        let reply = OutgoingReply::to_request(header, 0);
        connection.outbox.push(OutgoingReply { body, buffer_bytes, ..reply });
        self.touch(record.connection);
    }

    fn flush(&mut self, context: &mut FrontContext<'_>) {
        let mut touched = std::mem::take(&mut self.touched);
        for index in touched.drain(..) {
            self.connections[index].is_touched = false;
            self.flush_connection(context, index);
        }
        // Keeps the memory, unless a connection was touched meanwhile.
        if self.touched.is_empty() {
            self.touched = touched;
        }
        for _ in 0..self.memory_waiters.len() {
            let Some(index) = self.memory_waiters.pop_front() else { return };
            if self.connections[index].stall != Stall::Memory {
                continue;
            }
            // The others stay behind it.
            let mut behind = std::mem::take(&mut self.memory_waiters);
            let has_begun = self.resume(context, index);
            if !has_begun && self.connections[index].stall == Stall::Memory {
                self.memory_waiters.append(&mut behind);
                return;
            }
            behind.append(&mut self.memory_waiters);
            self.memory_waiters = behind;
            self.touch(index);
        }
    }

    fn handle_time(&mut self, context: &mut FrontContext<'_>) {
        if self.accept_pause.end_if_due(context.now) {
            self.accept_all(context.ring);
        }
        for index in 0..self.connections.bound() {
            let Some(connection) = self.connections.get(index) else { continue };
            let is_due = self.deadline(connection).is_some_and(|deadline| deadline <= context.now);
            if is_due && connection.phase != Phase::Closing {
                let peer = connection.peer.clone();
                self.log.warn("stalled", || format!("{peer} takes no bytes; it is disconnected"));
                self.close(context, index);
            }
        }
    }

    fn next_wakeup(&self) -> Option<Time> {
        let accept = self.accept_pause.deadline();
        if self.handshakes == 0
            && !self.waits_for_memory()
            && !self.others_wait
            && !self.is_stopping
        {
            return accept;
        }
        self.connections
            .iter()
            .filter(|(_, connection)| connection.phase != Phase::Closing)
            .filter_map(|(_, connection)| self.deadline(connection))
            .chain(accept)
            .min()
    }

    fn waits_for_memory(&self) -> bool {
        !self.memory_waiters.is_empty()
    }

    fn has_work(&self) -> bool {
        !self.demands.is_empty() || !self.touched.is_empty()
    }

    fn begin_shutdown(&mut self) {
        self.is_stopping = true;
        self.accept_pause = AcceptPause::default();
        for listener in self.listeners.drain(..) {
            // Ends the accept that the ring holds.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
        for index in 0..self.connections.bound() {
            if let Some(connection) = self.connections.get_mut(index) {
                connection.server.begin_shutdown();
            }
        }
    }

    fn has_requests(&self) -> bool {
        self.connections
            .iter()
            .any(|(_, connection)| connection.in_flight > 0 && connection.phase != Phase::Closing)
    }

    fn close_all(&mut self, context: &mut FrontContext<'_>) {
        for index in 0..self.connections.bound() {
            if self.connections.get(index).is_some() {
                self.close(context, index);
            }
        }
    }

    fn close_clients_of(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        for index in 0..self.connections.bound() {
            let connection = self.connections.get(index);
            if connection.is_some_and(|connection| connection.export == Some(export)) {
                self.close(context, index);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.connections.count() == 0
    }

    /// The protocol has no message for it. Who asks for more than it was told gets it.
    fn resize(&mut self, context: &mut FrontContext<'_>, export: ExportNumber) {
        let size_bytes = context.exports.shown_size_bytes(export);
        for index in 0..self.connections.bound() {
            let connection = self.connections.get_mut(index);
            if let Some(connection) = connection.filter(|c| c.export == Some(export)) {
                connection.resize(size_bytes);
            }
        }
    }

    fn size_reach(&self, export: ExportNumber) -> Vec<ClientSize> {
        let reach_of = |connection: &Connection| ClientSize {
            client: connection.peer.clone(),
            reach: if connection.knows_size() { SizeReach::Live } else { SizeReach::Reconnect },
        };
        self.clients_of(export).map(reach_of).collect()
    }

    fn peers_of(&self, export: ExportNumber) -> Vec<String> {
        self.clients_of(export).map(|connection| connection.peer.clone()).collect()
    }

    fn report(&self, exports: &ExportTable, now: Time) -> Vec<ConnectionReport> {
        let report = |connection: &Connection| ConnectionReport {
            id: connection.id,
            peer: connection.peer.clone(),
            peer_pid: connection.peer_pid,
            export: connection.export.map(|number| exports[number].facts.name.clone()),
            requests_in_flight: connection.in_flight,
            buffer_bytes: connection.buffer_bytes,
            requests: connection.requests,
            age_ms: now.nanoseconds_since(connection.connected_at) / 1_000_000,
        };
        self.connections
            .iter()
            .filter(|(_, connection)| connection.phase != Phase::Closing)
            .map(|(_, connection)| report(connection))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::frontend::memory_turn::MemoryTurn;
    use crate::shard::MemoryOptions;

    const EMFILE: Completion =
        Completion { token: Token::Accept(0), result: -libc::EMFILE, has_more: false };

    #[test]
    fn without_descriptors_clients_are_accepted_after_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let address = folder.path().join("nbd").to_string_lossy().parse().unwrap();
        let mut front = NbdFrontEnd::new(vec![Listener::bind(&address).unwrap()], 1);
        let (mut ring, mut exports) = (Ring::new().unwrap(), ExportTable::new());
        let memory = MemoryOptions { engine_bytes: 0, client_bytes: 64 << 20 };
        let mut pool = BufferPool::new(memory).unwrap();
        let mut context = FrontContext {
            ring: &mut ring,
            pool: &mut pool,
            memory_turn: &mut MemoryTurn::new(),
            exports: &mut exports,
            now: Time(1),
        };
        front.start(context.ring);
        assert_eq!((front.armed[0], front.next_wakeup()), (true, None));
        front.handle_accept(&mut context, 0, EMFILE);
        let wakeup = front.next_wakeup().expect("it is tried again");
        assert!(wakeup.0 > Duration::from_millis(100).as_nanos() as u64, "but not at once");
        // Others that would begin to accept wait, too.
        front.start(context.ring);
        assert!(!front.armed[0]);
        context.now = wakeup;
        front.handle_time(&mut context);
        assert_eq!((front.armed[0], front.next_wakeup()), (true, None));
        front.handle_accept(&mut context, 0, EMFILE);
        front.begin_shutdown();
        assert_eq!(front.next_wakeup(), None);
        front.handle_time(&mut context);
    }
}
