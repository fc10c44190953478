//! The server's end of one connection.
//!
//! Bytes of the client go in through [`ServerConnection::handle_bytes`]; what is to be answered in
//! the handshake is appended to a vector; from then on replies are formed by [`Session`]. The
//! payload of a WRITE never passes through here: its event says how long it is, and the host moves
//! it from the stream to where it belongs.
//!
//! Invariants: at most one event leaves per call, and no byte behind the event's message is
//! consumed by it. A call that yields no event has consumed everything, unless payload is pending.
//! After an error, an abort or a disconnect every call fails with [`ProtocolError::AfterEnd`].

use alloc::vec::Vec;

use crate::error::ProtocolError;
use crate::export::ExportInfo;
use crate::gather::Gather;
use crate::handshake::{Handshake, Outcome};
use crate::protocol::REQUEST_HEADER_BYTES;
use crate::request::Request;
use crate::session::Session;
use crate::transmission::{Intake, Refusal, Verdict, judge};

/// What the client did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerEvent {
    /// The client chose an export; requests follow. Send the output first.
    Ready(Session),
    /// A request that passed validation. If [`Request::payload_bytes`] is not zero, that many bytes
    /// follow on the stream: see [`ServerConnection::payload_taken`].
    Request(Request),
    /// A request that did not pass: answer it, the connection goes on.
    Refused(Refusal),
    /// The client left the handshake in order: send the output, then close.
    Aborted,
    /// The client is done: answer what is under way, then close.
    Disconnect,
}

/// One connection of a client.
#[derive(Clone, Debug)]
pub struct ServerConnection {
    phase: Phase,
    intake: Intake,
}

#[derive(Clone, Debug)]
enum Phase {
    Handshake(Handshake),
    Transmission(Transmission),
    Ended,
}

#[derive(Clone, Debug)]
struct Transmission {
    session: Session,
    gather: Gather,
    payload: Payload,
}

/// What stands on the stream before the next request header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Payload {
    /// The next byte belongs to a header.
    None,
    /// The host takes so many bytes. Never zero.
    Host(u32),
    /// The connection skips so many bytes. Never zero.
    Skip(u32),
}

impl ServerConnection {
    /// A new connection. The greeting is appended to `output`.
    #[must_use]
    pub fn new(output: &mut Vec<u8>) -> ServerConnection {
        ServerConnection { phase: Phase::Handshake(Handshake::new(output)), intake: Intake::Open }
    }

    /// What was agreed on, once transmission has begun.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        match &self.phase {
            Phase::Transmission(transmission) => Some(&transmission.session),
            Phase::Handshake(_) | Phase::Ended => None,
        }
    }

    /// Bytes of payload that stand next on the stream and that the host must take.
    #[must_use]
    pub fn payload_bytes_pending(&self) -> u32 {
        match &self.phase {
            Phase::Transmission(Transmission { payload: Payload::Host(pending), .. }) => *pending,
            Phase::Transmission(_) | Phase::Handshake(_) | Phase::Ended => 0,
        }
    }

    /// Consumes bytes of the client up to the end of the first message that concerns the host.
    /// Returns how many, and what the message says. The host calls again with the rest until no
    /// event comes: then all bytes are consumed, or payload is pending.
    ///
    /// While payload is pending the host must take it first; this consumes nothing then.
    ///
    /// `exports` is looked at in the handshake only; `output` is appended to in the handshake only.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        exports: &[ExportInfo],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Option<ServerEvent>), ProtocolError> {
        let result = match &mut self.phase {
            Phase::Handshake(handshake) => handshake
                .handle_bytes(bytes, self.intake, exports, output)
                .map(|(consumed, outcome)| {
                    let event = outcome.map(|outcome| match outcome {
                        Outcome::Ready(session) => ServerEvent::Ready(session),
                        Outcome::Aborted => ServerEvent::Aborted,
                    });
                    (consumed, event)
                }),
            Phase::Transmission(transmission) => transmission.handle_bytes(bytes, self.intake),
            Phase::Ended => Err(ProtocolError::AfterEnd),
        };
        match &result {
            Ok((_, Some(ServerEvent::Ready(session)))) => {
                self.phase = Phase::Transmission(Transmission {
                    session: *session,
                    gather: Gather::new(),
                    payload: Payload::None,
                });
            }
            Ok((_, Some(ServerEvent::Aborted | ServerEvent::Disconnect))) | Err(_) => {
                self.phase = Phase::Ended;
            }
            Ok((_, Some(ServerEvent::Request(_) | ServerEvent::Refused(_)) | None)) => {}
        }
        result
    }

    /// The host took `count` bytes of pending payload off the stream.
    pub fn payload_taken(&mut self, count: u32) {
        let pending = self.payload_bytes_pending();
        assert!(count <= pending, "{count} bytes of payload taken, {pending} were pending");
        if let Phase::Transmission(transmission) = &mut self.phase
            && pending > 0
        {
            let rest = pending - count;
            transmission.payload = if rest == 0 { Payload::None } else { Payload::Host(rest) };
        }
    }

    /// The host does not want the rest of the pending payload: `handle_bytes` will skip it. For a
    /// request that the host itself answers with an error.
    pub fn skip_payload(&mut self) {
        if let Phase::Transmission(transmission) = &mut self.phase
            && let Payload::Host(pending) = transmission.payload
        {
            transmission.payload = Payload::Skip(pending);
        }
    }

    /// The export has another size: requests of this connection are judged by it from now on. The
    /// client is not told, for which the protocol has no message; one that asks beyond what it was
    /// told is served.
    pub fn resize(&mut self, size_bytes: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.session.size_bytes = size_bytes;
        }
    }

    /// From now on every request and every option is refused because the server stops. What was
    /// yielded before is not touched.
    pub fn begin_shutdown(&mut self) {
        self.intake = Intake::ShuttingDown;
    }
}

impl Transmission {
    fn handle_bytes(
        &mut self,
        bytes: &[u8],
        intake: Intake,
    ) -> Result<(usize, Option<ServerEvent>), ProtocolError> {
        let mut rest = bytes;
        match self.payload {
            Payload::None => {}
            Payload::Host(_) => return Ok((0, None)),
            Payload::Skip(pending) => {
                let skipped = bytes.len().min(pending as usize);
                rest = &bytes[skipped..];
                let left = pending - skipped as u32;
                self.payload = if left == 0 { Payload::None } else { Payload::Skip(left) };
            }
        }
        if rest.is_empty() {
            return Ok((bytes.len(), None));
        }
        let Some(header) = self.gather.take(REQUEST_HEADER_BYTES, &mut rest) else {
            return Ok((bytes.len() - rest.len(), None));
        };
        let header = header.try_into().expect("as many bytes as were asked for");
        let event = match judge(&self.session, intake, header)? {
            Verdict::Accepted(request) => {
                self.payload = match request.payload_bytes() {
                    0 => Payload::None,
                    pending => Payload::Host(pending),
                };
                ServerEvent::Request(request)
            }
            Verdict::Refused(refusal) => {
                self.payload = match refusal.payload_bytes() {
                    0 => Payload::None,
                    pending => Payload::Skip(pending),
                };
                ServerEvent::Refused(refusal)
            }
            Verdict::Disconnect => ServerEvent::Disconnect,
        };
        Ok((bytes.len() - rest.len(), Some(event)))
    }
}
