//! The client's end of one connection.
//!
//! Bytes of the server go in through [`ClientConnection::handle_bytes`]; what the handshake has to
//! say is appended to a vector. Requests are formed once [`ClientEvent::Ready`] came; payload of a
//! WRITE is sent by the host right behind its header, and data of a READ is taken off the stream by
//! the host.
//!
//! Invariants: a request is sent only if the server offers it, its range passes the same checks as
//! on the server, and its cookie is not in use; each request gets exactly one
//! [`ClientEvent::Done`].

use alloc::vec::Vec;

use thiserror::Error;
use zerocopy::IntoBytes;

use crate::client_handshake::{ClientHandshake, ClientOptions, ClientOutcome};
use crate::client_reply::ReplyReader;
use crate::client_session::{ClientSession, HandshakeRefusal, ListedExport, Offers};
use crate::error::{ProtocolError, ReplyError};
use crate::meta_context::MetaContext;
use crate::protocol::{REQUEST_HEADER_BYTES, REQUEST_MAGIC, RequestHeader, command_code};
use crate::reply::StatusExtent;
use crate::request::{Command, Cookie, Durability, ReadChunks, Request, ZeroSpeed};
use crate::transmission::{RefusalReason, check_range};

/// Most requests without their last reply.
pub const REQUESTS_IN_FLIGHT_MAX: usize = 4096;

/// What the server did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientEvent {
    /// An export of the list that was asked for.
    Listed(ListedExport),
    /// The list is complete: send the output, then close.
    ListEnd,
    /// The handshake failed in order: send the output, then close.
    Refused(HandshakeRefusal),
    /// The export is open; requests may be sent.
    Ready(ClientSession),
    /// Data of a READ: `length_bytes` follow on the stream, for the buffer of the request from
    /// `offset_in_request` on. See [`ClientConnection::payload_taken`].
    Data {
        /// Which request.
        cookie: Cookie,
        /// Where in its range.
        offset_in_request: u32,
        /// How long.
        length_bytes: u32,
    },
    /// Part of a READ that is all zeroes.
    Hole {
        /// Which request.
        cookie: Cookie,
        /// Where in its range.
        offset_in_request: u32,
        /// How long.
        length_bytes: u32,
    },
    /// Part of a BLOCK_STATUS; the extents of one context follow each other from the offset of the
    /// request on.
    Extent {
        /// Which request.
        cookie: Cookie,
        /// In which context.
        context: MetaContext,
        /// Length and flags.
        extent: StatusExtent,
    },
    /// A request is answered. Data of a READ that failed is worthless.
    Done {
        /// Which request.
        cookie: Cookie,
        /// How it ended.
        result: Result<(), ReplyError>,
    },
}

/// A request that was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// The handshake is under way, or the connection ended.
    #[error("the connection takes no requests")]
    NotReady,
    /// Another request of that cookie has not been answered.
    #[error("the cookie is in use")]
    CookieInUse,
    /// The bound on requests under way is reached.
    #[error("{REQUESTS_IN_FLIGHT_MAX} requests are under way")]
    TooManyInFlight,
    /// The server does not offer the command or one of its flags.
    #[error("the server does not offer it")]
    NotOffered,
    /// The server would refuse it.
    #[error("the server would refuse it: {}", .0.name())]
    WouldBeRefused(RefusalReason),
}

/// One connection to a server.
#[derive(Clone, Debug)]
pub struct ClientConnection {
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Handshake(ClientHandshake),
    Transmission {
        session: ClientSession,
        replies: ReplyReader,
    },
    /// We left; what still comes does not matter.
    Left,
    /// The server broke the protocol.
    Broken,
}

impl ClientConnection {
    /// A new connection. It has nothing to say before the server's greeting.
    #[must_use]
    pub fn new(options: ClientOptions) -> ClientConnection {
        ClientConnection { phase: Phase::Handshake(ClientHandshake::new(options)) }
    }

    /// What was agreed on, once transmission has begun.
    #[must_use]
    pub fn session(&self) -> Option<&ClientSession> {
        match &self.phase {
            Phase::Transmission { session, .. } => Some(session),
            Phase::Handshake(_) | Phase::Left | Phase::Broken => None,
        }
    }

    /// Requests without their last reply.
    #[must_use]
    pub fn requests_in_flight(&self) -> usize {
        match &self.phase {
            Phase::Transmission { replies, .. } => replies.pending_count(),
            Phase::Handshake(_) | Phase::Left | Phase::Broken => 0,
        }
    }

    /// Bytes of data that stand next on the stream and that the host must take.
    #[must_use]
    pub fn payload_bytes_pending(&self) -> u32 {
        match &self.phase {
            Phase::Transmission { replies, .. } => replies.payload_bytes_pending(),
            Phase::Handshake(_) | Phase::Left | Phase::Broken => 0,
        }
    }

    /// Consumes bytes of the server up to the first event. Returns how many, and the event. The
    /// host calls again with the rest until no event comes: then all bytes are consumed, or payload
    /// is pending.
    ///
    /// While payload is pending the host must take it first; this consumes nothing then. `output`
    /// is appended to in the handshake only.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Option<ClientEvent>), ProtocolError> {
        let mut rest = bytes;
        let result = match &mut self.phase {
            Phase::Handshake(handshake) => loop {
                match handshake.handle_bytes(&mut rest, output) {
                    Ok(None) if !rest.is_empty() => {}
                    Ok(outcome) => break Ok(outcome.map(event_of)),
                    Err(error) => break Err(error),
                }
            },
            Phase::Transmission { session, replies } => replies.handle_bytes(session, &mut rest),
            Phase::Left => return Ok((bytes.len(), None)),
            Phase::Broken => Err(ProtocolError::AfterEnd),
        };
        match &result {
            Ok(Some(ClientEvent::Ready(session))) => {
                self.phase = Phase::Transmission { session: *session, replies: ReplyReader::new() };
            }
            Ok(Some(ClientEvent::ListEnd | ClientEvent::Refused(_))) => self.phase = Phase::Left,
            Ok(_) => {}
            Err(_) => self.phase = Phase::Broken,
        }
        result.map(|event| (bytes.len() - rest.len(), event))
    }

    /// The host took `count` bytes of pending data off the stream. If that ended the request, this
    /// is its [`ClientEvent::Done`].
    #[must_use]
    pub fn payload_taken(&mut self, count: u32) -> Option<ClientEvent> {
        match &mut self.phase {
            Phase::Transmission { replies, .. } => replies.payload_taken(count),
            Phase::Handshake(_) | Phase::Left | Phase::Broken => {
                assert_eq!(count, 0, "no payload was pending");
                None
            }
        }
    }

    /// Forms the header of a request. The host sends it, and behind it the payload of a WRITE.
    pub fn encode_request(
        &mut self,
        request: &Request,
    ) -> Result<[u8; REQUEST_HEADER_BYTES], RequestError> {
        let Phase::Transmission { session, replies } = &mut self.phase else {
            return Err(RequestError::NotReady);
        };
        if !is_offered(session.offers, request.command) {
            return Err(RequestError::NotOffered);
        }
        check_range(&session.common, request.command, request.offset_bytes, request.length_bytes)
            .map_err(RequestError::WouldBeRefused)?;
        if replies.is_pending(request.cookie) {
            return Err(RequestError::CookieInUse);
        }
        if replies.pending_count() == REQUESTS_IN_FLIGHT_MAX {
            return Err(RequestError::TooManyInFlight);
        }
        replies.expect_reply(*request);
        Ok(request.encode())
    }

    /// Forms the message that ends the connection, if it is in its transmission phase. The host
    /// sends it and closes.
    pub fn encode_disconnect(&mut self) -> Option<[u8; REQUEST_HEADER_BYTES]> {
        let Phase::Transmission { .. } = &self.phase else { return None };
        self.phase = Phase::Left;
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            command: command_code::DISC.into(),
            cookie: 0.into(),
            offset: 0.into(),
            length: 0.into(),
        };
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        Some(bytes)
    }
}

fn event_of(outcome: ClientOutcome) -> ClientEvent {
    match outcome {
        ClientOutcome::Listed(listed) => ClientEvent::Listed(listed),
        ClientOutcome::ListEnd => ClientEvent::ListEnd,
        ClientOutcome::Refused(refusal) => ClientEvent::Refused(refusal),
        ClientOutcome::Ready(session) => ClientEvent::Ready(session),
    }
}

fn is_offered(offers: Offers, command: Command) -> bool {
    let durability_offered =
        |durability| durability == Durability::Completed || offers.forced_unit_access();
    match command {
        Command::Read { chunks } => chunks == ReadChunks::Any || offers.single_chunk(),
        Command::Write { durability } => durability_offered(durability),
        Command::Flush => offers.flush(),
        Command::Trim { durability } => offers.trim() && durability_offered(durability),
        Command::Cache => offers.cache(),
        Command::WriteZeroes { durability, hole: _, speed } => {
            offers.write_zeroes()
                && durability_offered(durability)
                && (speed == ZeroSpeed::Any || offers.fast_zero())
        }
        // Whether a context was selected is checked with the range.
        Command::BlockStatus { .. } => true,
    }
}
