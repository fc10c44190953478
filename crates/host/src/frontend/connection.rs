//! One client connection: its socket, what has been received of it and what is to be sent.
//!
//! Received bytes lie in a buffer of the connection until they are parsed. The payload of a small
//! write is copied from there into an aligned buffer of the pool; of a large one only what has come
//! along is copied, and the rest is received straight into the pool buffer, in the same call that
//! receives what follows it.
//!
//! Invariants: at most one receive is under way, and then nothing is left to parse; the memory that
//! a receive names (receive buffer, pool buffer, message) stays where it is until its completion.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use forebay_engine::payload::{BufferId, BufferRange};
use forebay_engine::units::Time;
use forebay_nbd::{Request, ServerConnection, Session};
use io_uring::types::Fd;
use io_uring::{opcode, squeue};

use super::outbox::{Outbox, empty_message};
use crate::buffer_pool::BufferPool;
use crate::shard::exports::ExportNumber;

/// Bytes received at once: a queue of 32 writes of 4 KiB with their headers.
pub(super) const RECEIVE_BYTES: usize = 136 << 10;
/// A payload of which at least so much is missing is received into its place. Below it, a copy
/// costs less than the longer way through the kernel.
const DIRECT_BYTES_MIN: u32 = 16 << 10;
/// Bytes received behind a payload that goes straight to its place: the headers that usually
/// follow. More would be payload of the next request, received into the wrong place.
const BEHIND_PAYLOAD_BYTES: usize = 4096;

/// The payload of a write that is arriving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Incoming {
    /// The request.
    pub(super) number: u32,
    pub(super) buffer: BufferId,
    /// Where the next byte goes.
    pub(super) offset: u32,
    /// Bytes that are missing.
    pub(super) left: u32,
}

impl Incoming {
    fn rest(&self) -> BufferRange {
        BufferRange { buffer: self.buffer, offset: self.offset, length: self.left }
    }
}

/// Why no more requests are taken from a connection for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stall {
    /// It is not stalled.
    None,
    /// It has as much under way as one connection may.
    OwnLimit,
    /// The payload memory is used up.
    Memory,
}

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Requests are taken.
    Open,
    /// The client is done; it gets the replies that are due.
    Ending,
    /// The socket is shut down; what is under way ends unheard.
    Closing,
}

/// One connection.
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) id: u64,
    pub(super) peer: String,
    pub(super) peer_pid: Option<u32>,
    pub(super) connected_at: Time,
    /// When the client last took or gave bytes.
    pub(super) last_progress: Time,
    pub(super) server: ServerConnection,
    pub(super) session: Option<Session>,
    /// The size that its client was told of in the handshake.
    pub(super) told_bytes: u64,
    pub(super) export: Option<ExportNumber>,
    pub(super) outbox: Outbox,
    pub(super) incoming: Option<Incoming>,
    pub(super) stall: Stall,
    /// A request that was parsed and waits for memory.
    pub(super) stalled_request: Option<Request>,
    pub(super) phase: Phase,
    /// Requests received whose reply has not left.
    pub(super) in_flight: u32,
    pub(super) buffer_bytes: u64,
    /// Requests received in all.
    pub(super) requests: u64,
    pub(super) is_touched: bool,
    receive_buffer: Box<[u8]>,
    parsed: usize,
    received: usize,
    is_receiving: bool,
    message: Box<libc::msghdr>,
    pieces: Box<[libc::iovec; 2]>,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, id: u64, now: Time) -> Connection {
        let (peer, peer_pid) = peer_of(socket.as_fd());
        let mut greeting = Vec::new();
        let server = ServerConnection::new(&mut greeting);
        let mut outbox = Outbox::new();
        outbox.push_text(greeting);
        let piece = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Connection {
            socket,
            id,
            peer,
            peer_pid,
            connected_at: now,
            last_progress: now,
            server,
            session: None,
            told_bytes: 0,
            export: None,
            outbox,
            incoming: None,
            stall: Stall::None,
            stalled_request: None,
            phase: Phase::Open,
            in_flight: 0,
            buffer_bytes: 0,
            requests: 0,
            is_touched: false,
            receive_buffer: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            parsed: 0,
            received: 0,
            is_receiving: false,
            message: Box::new(empty_message()),
            pieces: Box::new([piece; 2]),
        }
    }

    /// Whether the size that its client was told of is the one of its export.
    pub(super) fn knows_size(&self) -> bool {
        self.session.is_some_and(|session| session.size_bytes == self.told_bytes)
    }

    /// Its export has another size.
    pub(super) fn resize(&mut self, size_bytes: u64) {
        self.server.resize(size_bytes);
        self.session = self.server.session().copied().or(self.session);
    }

    /// Whether a receive is under way.
    pub(super) fn is_receiving(&self) -> bool {
        self.is_receiving
    }

    /// Bytes that were received and not yet parsed.
    pub(super) fn unparsed(&self) -> &[u8] {
        &self.receive_buffer[self.parsed..self.received]
    }

    /// Takes the next message of what was received.
    pub(super) fn next_event(
        &mut self,
        exports: &[forebay_nbd::ExportInfo],
        output: &mut Vec<u8>,
    ) -> Result<Option<forebay_nbd::ServerEvent>, forebay_nbd::ProtocolError> {
        let bytes = &self.receive_buffer[self.parsed..self.received];
        let (consumed, event) = self.server.handle_bytes(bytes, exports, output)?;
        self.parsed += consumed;
        Ok(event)
    }

    /// Moves what has come of a payload into its buffer. Returns whether it is complete.
    pub(super) fn copy_payload(&mut self, pool: &mut BufferPool) -> bool {
        let incoming = self.incoming.as_mut().expect("a payload is arriving");
        let available = self.received - self.parsed;
        let length = available.min(incoming.left as usize);
        let target = incoming.rest().slice(0, length as u32);
        let source = &self.receive_buffer[self.parsed..self.parsed + length];
        pool.slice_mut(target).copy_from_slice(source);
        self.parsed += length;
        self.payload_arrived(length as u32)
    }

    fn payload_arrived(&mut self, length: u32) -> bool {
        let incoming = self.incoming.as_mut().expect("a payload is arriving");
        incoming.offset += length;
        incoming.left -= length;
        let is_complete = incoming.left == 0;
        self.server.payload_taken(length);
        is_complete
    }

    /// Begins a receive: the entry for the ring, which then holds the buffers.
    pub(super) fn receive_entry(&mut self, pool: &BufferPool) -> squeue::Entry {
        assert!(!self.is_receiving);
        assert!(self.parsed == self.received);
        self.parsed = 0;
        self.received = 0;
        self.is_receiving = true;
        let descriptor = Fd(self.socket.as_raw_fd());
        let buffer = self.receive_buffer.as_mut_ptr();
        match self.direct_payload() {
            Some(range) => {
                let (start, length) = (pool.pointer(range), range.length as usize);
                self.pieces[0] = libc::iovec { iov_base: start.cast(), iov_len: length };
                let behind = BEHIND_PAYLOAD_BYTES;
                self.pieces[1] = libc::iovec { iov_base: buffer.cast(), iov_len: behind };
                self.message.msg_iov = self.pieces.as_mut_ptr();
                self.message.msg_iovlen = self.pieces.len();
                opcode::RecvMsg::new(descriptor, &raw mut *self.message).build()
            }
            None => opcode::Recv::new(descriptor, buffer, RECEIVE_BYTES as u32).build(),
        }
    }

    /// The part of a payload that is received straight into its place.
    fn direct_payload(&self) -> Option<BufferRange> {
        self.incoming.filter(|incoming| incoming.left >= DIRECT_BYTES_MIN).map(|i| i.rest())
    }

    /// A receive has brought `bytes` bytes. Returns whether they complete a payload.
    pub(super) fn handle_received(&mut self, bytes: usize) -> bool {
        assert!(self.is_receiving);
        // The same question as at the start of the receive, so the same answer: nothing has
        // changed.
        let direct_bytes = self.direct_payload().map_or(0, |range| range.length as usize);
        self.is_receiving = false;
        let into_place = bytes.min(direct_bytes);
        self.received = bytes - into_place;
        assert!(self.received <= RECEIVE_BYTES);
        into_place > 0 && self.payload_arrived(into_place as u32)
    }

    /// A receive has ended without bytes.
    pub(super) fn handle_receive_failed(&mut self) {
        assert!(self.is_receiving);
        self.is_receiving = false;
    }

    /// Replies that have not left, also to requests that are under way, and to what was refused:
    /// else who sends nothing else and reads no replies would never come to a bound.
    pub(super) fn due_count(&self) -> u32 {
        self.in_flight + self.outbox.other_count()
    }

    /// Whether nothing that the kernel or the backends hold refers to this connection.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_receiving && !self.outbox.is_in_ring() && self.in_flight == 0
    }
}

/// Who is at the other end, for people; and its process, where the kernel tells.
fn peer_of(socket: BorrowedFd<'_>) -> (String, Option<u32>) {
    if let Ok(name) = rustix::net::getpeername(socket)
        && let Some(address) = name.and_then(|name| SocketAddr::try_from(name).ok())
    {
        return (address.to_string(), None);
    }
    let Ok(credentials) = rustix::net::sockopt::socket_peercred(socket) else {
        return ("unknown peer".to_owned(), None);
    };
    let pid = credentials.pid.as_raw_nonzero();
    let uid = credentials.uid.as_raw();
    // The process may be gone or hidden; its number says enough then.
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let name = match command {
        Ok(command) => format!("{} (pid {pid}, uid {uid})", command.trim_end()),
        Err(_) => format!("pid {pid}, uid {uid}"),
    };
    (name, u32::try_from(pid.get()).ok())
}
