//! One socket: the export behind it, the front end that is connected, and what the ring watches.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use forebay_engine::units::Time;
use io_uring::opcode;
use io_uring::types::Fd;

use super::poll::Poll;
use super::request::{Geometry, QUEUE_COUNT_MAX};
use super::session::Session;
use crate::buffer_pool::BufferPool;
use crate::frontend::block_request::Active;
use crate::frontend::log_once::LogOnce;
use crate::listen::Listener;
use crate::ring::{Completion, Ring, Token};
use crate::shard::exports::{ExportNumber, ExportTable};

/// Places of a socket's tokens: queues, then these.
const ACCEPT: u32 = QUEUE_COUNT_MAX as u32;
const SOCKET: u32 = ACCEPT + 1;
const PLACE_BITS: u32 = 8;
/// Bits of a head, and of a queue, in the number of a request.
const HEAD_BITS: u32 = 10;
const QUEUE_BITS: u32 = 6;
/// Sockets that there are numbers for.
pub(super) const DEVICE_COUNT_MAX: usize = 1 << 12;

const _: () = assert!(super::ring::RING_SIZE_MAX as usize <= 1 << HEAD_BITS);
const _: () = assert!(QUEUE_COUNT_MAX as usize <= 1 << QUEUE_BITS);
const _: () = assert!(DEVICE_COUNT_MAX << (HEAD_BITS + QUEUE_BITS) <= 1 << super::NUMBER_BITS);

/// What a completion of the ring is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Accept,
    Socket,
    Kick(u16),
}

impl Place {
    /// What the number of a [`Token::VhostUser`] says: which socket, and what of it.
    pub(super) fn of_token(number: u32) -> (usize, Place) {
        let place = match number & ((1 << PLACE_BITS) - 1) {
            ACCEPT => Place::Accept,
            SOCKET => Place::Socket,
            queue => Place::Kick(queue as u16),
        };
        ((number >> PLACE_BITS) as usize, place)
    }

    pub(super) fn token(self, device: usize) -> Token {
        let place = match self {
            Place::Accept => ACCEPT,
            Place::Socket => SOCKET,
            Place::Kick(queue) => queue.into(),
        };
        Token::VhostUser((device as u32) << PLACE_BITS | place)
    }
}

/// Which request is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestPlace {
    pub(super) device: usize,
    pub(super) queue: u16,
    pub(super) head: u16,
}

impl RequestPlace {
    pub(super) fn of_number(number: u32) -> RequestPlace {
        RequestPlace {
            device: (number >> (HEAD_BITS + QUEUE_BITS)) as usize,
            queue: (number >> HEAD_BITS & ((1 << QUEUE_BITS) - 1)) as u16,
            head: (number & ((1 << HEAD_BITS) - 1)) as u16,
        }
    }

    pub(super) fn number(self) -> u32 {
        let RequestPlace { device, queue, head } = self;
        (device as u32) << (HEAD_BITS + QUEUE_BITS)
            | u32::from(queue) << HEAD_BITS
            | u32::from(head)
    }
}

/// One socket.
pub(super) struct Device {
    index: usize,
    pub(super) export: ExportNumber,
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) geometry: Geometry,
    listener: Option<Listener>,
    accept_is_armed: bool,
    pub(super) socket_poll: Poll,
    kicks: Vec<Poll>,
    pub(super) session: Option<Session>,
    /// A front end that has connected before the last request of its predecessor has ended.
    pub(super) next: Option<OwnedFd>,
    /// What it serves is not there any more.
    pub(super) has_lost_export: bool,
    pub(super) is_touched: bool,
    /// Memory of requests under way.
    pub(super) buffer_bytes: u64,
    /// Requests that wait until the disk holds less memory, in turn.
    pub(super) waiters: VecDeque<RequestPlace>,
    /// Requests of the front end that is connected.
    pub(super) requests: u64,
    pub(super) connected_at: Time,
    /// Complaints about its front ends.
    pub(super) log: LogOnce,
}

impl Device {
    pub(super) fn new(
        index: usize,
        export: ExportNumber,
        name: &str,
        path: PathBuf,
        geometry: Geometry,
    ) -> Device {
        Device {
            index,
            export,
            name: name.to_owned(),
            path,
            geometry,
            listener: None,
            accept_is_armed: false,
            socket_poll: Poll::default(),
            kicks: vec![Poll::default(); QUEUE_COUNT_MAX.into()],
            session: None,
            next: None,
            has_lost_export: false,
            is_touched: false,
            buffer_bytes: 0,
            waiters: VecDeque::new(),
            requests: 0,
            connected_at: Time(0),
            log: LogOnce::default(),
        }
    }

    /// Takes over what its export is like now, and tells the front end if that is something else.
    pub(super) fn renew_geometry(&mut self, exports: &ExportTable) {
        let geometry = Geometry::of(&exports[self.export].facts);
        let is_other = geometry != self.geometry;
        self.geometry = geometry;
        if let Some(session) = self.open_session().filter(|_| is_other) {
            session.change_config();
        }
    }

    pub(super) fn listen_on(&mut self, listener: Listener) {
        self.listener = Some(listener);
    }

    pub(super) fn listener_mut(&mut self) -> Option<&mut Listener> {
        self.listener.as_mut()
    }

    /// Accepts front ends, unless it does already.
    pub(super) fn accept(&mut self, ring: &mut Ring) {
        let Some(listener) = self.listener.as_ref().filter(|_| !self.accept_is_armed) else {
            return;
        };
        self.accept_is_armed = true;
        let descriptor = Fd(listener.as_fd().as_raw_fd());
        let entry = opcode::AcceptMulti::new(descriptor).flags(libc::SOCK_CLOEXEC).build();
        // SAFETY: an accept without an address buffer names no memory.
        unsafe { ring.push(Place::Accept.token(self.index), entry) };
    }

    /// Has the ring end what [`Device::accept`] has begun; the last completion tells.
    pub(super) fn cancel_accept(&self, ring: &mut Ring) {
        if self.accept_is_armed {
            ring.cancel_poll(Place::Accept.token(self.index));
        }
    }

    pub(super) fn handle_accept_ended(&mut self) {
        self.accept_is_armed = false;
    }

    /// Accepts no more front ends.
    pub(super) fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            // Ends the accept that the ring holds.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
        self.next = None;
    }

    /// Begins with a front end that has connected.
    pub(super) fn connect(&mut self, ring: &mut Ring, socket: OwnedFd, now: Time) {
        assert!(self.session.is_none());
        self.session = Some(Session::new(socket));
        (self.requests, self.connected_at) = (0, now);
        tracing::info!(socket = %self.path.display(), export = self.name, "in use over vhost-user");
        self.watch(ring);
    }

    /// Sees to it that the ring watches what there is to watch, and nothing else.
    pub(super) fn watch(&mut self, ring: &mut Ring) {
        let session = self.session.as_ref().filter(|session| !session.is_closing);
        let socket = Place::Socket.token(self.index);
        match session {
            Some(session) => self.socket_poll.arm(ring, socket, session.wire.as_fd()),
            None => self.socket_poll.cancel(ring, socket),
        }
        for (number, poll) in (0u16..).zip(&mut self.kicks) {
            let queue = session.and_then(|session| session.queues.get(usize::from(number)));
            let kick = queue.filter(|queue| queue.is_running()).and_then(|q| q.kick.as_ref());
            let token = Place::Kick(number).token(self.index);
            match kick {
                Some(kick) => poll.arm(ring, token, kick.as_fd()),
                None => poll.cancel(ring, token),
            }
        }
    }

    /// A queue was kicked, or its kicks are not watched any more.
    pub(super) fn handle_kick(&mut self, queue: u16, completion: Completion) -> bool {
        self.kicks[usize::from(queue)].handle(completion)
    }

    /// Whether the ring watches nothing of a front end.
    pub(super) fn is_unwatched(&self) -> bool {
        let is_quiet = |poll: &Poll| *poll == Poll::Quiet;
        is_quiet(&self.socket_poll) && self.kicks.iter().all(is_quiet)
    }

    /// The front end, unless it is on its way out.
    pub(super) fn open_session(&mut self) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| !session.is_closing)
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::in_flight)
    }

    /// Memory of a request that is free again.
    pub(super) fn release(&mut self, active: &Active, pool: &mut BufferPool) {
        self.buffer_bytes -= active.buffer_bytes(pool);
        active.release(pool);
    }

    /// For people.
    pub(super) fn label(&self) -> String {
        format!("vhost-user:{}", self.path.display())
    }
}
