//! What a client learns in the handshake: what the server offers, which exports it has, or why it
//! will not serve.

use alloc::string::String;

use thiserror::Error;

use crate::meta_context::MetaContext;
use crate::protocol::{reply_code, transmission_flag};
use crate::session::Session;

/// What the server offers beyond reading. Requests that use anything else are not sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offers {
    flags: u16,
}

impl Offers {
    /// FLUSH.
    #[must_use]
    pub fn flush(self) -> bool {
        self.has(transmission_flag::SEND_FLUSH)
    }

    /// Writes with FUA.
    #[must_use]
    pub fn forced_unit_access(self) -> bool {
        self.has(transmission_flag::SEND_FUA)
    }

    /// TRIM.
    #[must_use]
    pub fn trim(self) -> bool {
        self.has(transmission_flag::SEND_TRIM)
    }

    /// WRITE_ZEROES and NO_HOLE.
    #[must_use]
    pub fn write_zeroes(self) -> bool {
        self.has(transmission_flag::SEND_WRITE_ZEROES)
    }

    /// WRITE_ZEROES that is fast or fails.
    #[must_use]
    pub fn fast_zero(self) -> bool {
        self.has(transmission_flag::SEND_FAST_ZERO)
    }

    /// CACHE.
    #[must_use]
    pub fn cache(self) -> bool {
        self.has(transmission_flag::SEND_CACHE)
    }

    /// READ in one chunk.
    #[must_use]
    pub fn single_chunk(self) -> bool {
        self.has(transmission_flag::SEND_DF)
    }

    /// Several connections that share flushes.
    #[must_use]
    pub fn multi_conn(self) -> bool {
        self.has(transmission_flag::CAN_MULTI_CONN)
    }

    /// The medium rotates.
    #[must_use]
    pub fn rotational(self) -> bool {
        self.has(transmission_flag::ROTATIONAL)
    }

    pub(crate) fn new(flags: u16) -> Offers {
        Offers { flags }
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A connection in its transmission phase, as the client sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientSession {
    /// What holds for every request.
    pub common: Session,
    /// Unit that costs the server no merging.
    pub preferred_block_bytes: u32,
    /// What the server can do.
    pub offers: Offers,
    /// Numbers of the contexts in `MetaContext::ALL`, where they were selected.
    pub(crate) context_ids: [Option<u32>; MetaContext::ALL.len()],
}

impl ClientSession {
    pub(crate) fn context_by_id(&self, id: u32) -> Option<MetaContext> {
        let index = self.context_ids.iter().position(|known| *known == Some(id))?;
        Some(MetaContext::ALL[index])
    }
}

/// An export in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedExport {
    /// Name to connect with.
    pub name: String,
    /// For people.
    pub description: String,
}

/// The server said no, in order. The client leaves.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}{}{message}", reason.words(), if message.is_empty() { "" } else { ": " })]
pub struct HandshakeRefusal {
    /// Kind of the refusal.
    pub reason: HandshakeRefusalReason,
    /// What the server says about it.
    pub message: String,
}

/// Kind of a refusal in the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandshakeRefusalReason {
    /// The server does not know the option.
    Unsupported,
    /// The server may not.
    Policy,
    /// The server found the option malformed.
    Invalid,
    /// The server's platform cannot.
    Platform,
    /// TLS first.
    TlsRequired,
    /// No such export.
    UnknownExport,
    /// The server stops.
    ShuttingDown,
    /// Block sizes first.
    BlockSizeRequired,
    /// Too much asked for.
    TooBig,
    /// Some other error.
    Other(u32),
}

impl HandshakeRefusalReason {
    pub(crate) fn from_code(code: u32) -> HandshakeRefusalReason {
        match code {
            reply_code::ERR_UNSUP => HandshakeRefusalReason::Unsupported,
            reply_code::ERR_POLICY => HandshakeRefusalReason::Policy,
            reply_code::ERR_INVALID => HandshakeRefusalReason::Invalid,
            reply_code::ERR_PLATFORM => HandshakeRefusalReason::Platform,
            reply_code::ERR_TLS_REQD => HandshakeRefusalReason::TlsRequired,
            reply_code::ERR_UNKNOWN => HandshakeRefusalReason::UnknownExport,
            reply_code::ERR_SHUTDOWN => HandshakeRefusalReason::ShuttingDown,
            reply_code::ERR_BLOCK_SIZE_REQD => HandshakeRefusalReason::BlockSizeRequired,
            reply_code::ERR_TOO_BIG => HandshakeRefusalReason::TooBig,
            other => HandshakeRefusalReason::Other(other),
        }
    }

    fn words(self) -> &'static str {
        match self {
            HandshakeRefusalReason::Unsupported => "the server does not know the option",
            HandshakeRefusalReason::Policy => "the server's policy forbids it",
            HandshakeRefusalReason::Invalid => "the server found the option invalid",
            HandshakeRefusalReason::Platform => "the server's platform does not support it",
            HandshakeRefusalReason::TlsRequired => "the server requires TLS",
            HandshakeRefusalReason::UnknownExport => "the server has no such export",
            HandshakeRefusalReason::ShuttingDown => "the server is shutting down",
            HandshakeRefusalReason::BlockSizeRequired => "the server requires block sizes",
            HandshakeRefusalReason::TooBig => "the server found the option too big",
            HandshakeRefusalReason::Other(_) => "the server refused",
        }
    }
}
