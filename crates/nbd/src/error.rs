//! What can go wrong between two peers, and the one place where it becomes a number on the wire.
//!
//! [`ProtocolError`] ends a connection: the peer sent what no answer can mend. [`ReplyError`]
//! answers one request. Why a request was refused stands in [`crate::RefusalReason`].

use thiserror::Error;

/// The part of a message that was wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Field {
    /// First magic number of the server.
    ServerMagic,
    /// Magic number of options, also sent in the greeting.
    OptionMagic,
    /// Flags of the server's greeting.
    HandshakeFlags,
    /// Flags that the client answers with.
    ClientFlags,
    /// Code of an option.
    Option,
    /// Length of an option's data.
    OptionLength,
    /// How many options a handshake has.
    OptionCount,
    /// Length of the export name that is to be served without a further answer.
    ExportNameLength,
    /// Magic number of replies to options.
    OptionReplyMagic,
    /// The option that a reply names.
    OptionReplyOption,
    /// Kind of a reply to an option.
    OptionReplyKind,
    /// Length of a reply to an option.
    OptionReplyLength,
    /// How many replies a handshake has.
    OptionReplyCount,
    /// Length of a name within a reply to an option.
    NameLength,
    /// Bytes that should be a string.
    Text,
    /// Information about the export, without which transmission cannot begin.
    ExportInformation,
    /// Smallest block that the server takes.
    BlockMinimum,
    /// Magic number of requests.
    RequestMagic,
    /// Length of a WRITE.
    WriteLength,
    /// Magic number of replies.
    ReplyMagic,
    /// Kind of reply to a READ when structured replies were negotiated.
    ReadReplyStyle,
    /// Cookie of a reply.
    Cookie,
    /// Kind of a chunk.
    ChunkKind,
    /// Flags of a chunk.
    ChunkFlags,
    /// Length of a chunk.
    ChunkLength,
    /// Offset of the data in a chunk.
    ChunkOffset,
    /// Length of the data or hole in a chunk.
    ChunkDataLength,
    /// Length of the message in an error chunk.
    ChunkMessageLength,
    /// Error number of an error chunk.
    ChunkError,
    /// Metadata context of a chunk.
    ChunkContext,
    /// Length of an extent in a block status chunk.
    ExtentLength,
    /// Bytes of data that a successful READ delivered.
    ReadBytes,
    /// Chunks that a successful BLOCK_STATUS delivered.
    StatusChunkCount,
}

impl core::fmt::Display for Field {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Field::ServerMagic => "server magic",
            Field::OptionMagic => "option magic",
            Field::HandshakeFlags => "handshake flags",
            Field::ClientFlags => "client flags",
            Field::Option => "option",
            Field::OptionLength => "option length",
            Field::OptionCount => "number of options",
            Field::ExportNameLength => "length of the export name",
            Field::OptionReplyMagic => "option reply magic",
            Field::OptionReplyOption => "option of an option reply",
            Field::OptionReplyKind => "kind of an option reply",
            Field::OptionReplyLength => "length of an option reply",
            Field::OptionReplyCount => "number of option replies",
            Field::NameLength => "length of a name",
            Field::Text => "text",
            Field::ExportInformation => "export information",
            Field::BlockMinimum => "minimum block size",
            Field::RequestMagic => "request magic",
            Field::WriteLength => "length of a write",
            Field::ReplyMagic => "reply magic",
            Field::ReadReplyStyle => "magic of the reply to a read",
            Field::Cookie => "cookie",
            Field::ChunkKind => "kind of a chunk",
            Field::ChunkFlags => "flags of a chunk",
            Field::ChunkLength => "length of a chunk",
            Field::ChunkOffset => "offset of a chunk",
            Field::ChunkDataLength => "length of the data in a chunk",
            Field::ChunkMessageLength => "length of the message in a chunk",
            Field::ChunkError => "error of a chunk",
            Field::ChunkContext => "metadata context of a chunk",
            Field::ExtentLength => "length of an extent",
            Field::ReadBytes => "bytes delivered by a read",
            Field::StatusChunkCount => "chunks delivered by a block status",
        })
    }
}

/// The peer broke the protocol. The connection is of no further use and must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum ProtocolError {
    /// A field has one right value, and it is another.
    #[error("{field}: found {found:#x}, expected {expected:#x}")]
    Mismatch {
        /// Which.
        field: Field,
        /// The right value.
        expected: u64,
        /// What came.
        found: u64,
    },
    /// A field has several right values, and it is none of them.
    #[error("{field}: found {found:#x}, which is not allowed here")]
    NotAllowed {
        /// Which.
        field: Field,
        /// What came.
        found: u64,
    },
    /// Bits are set that nobody defined or offered.
    #[error("{field}: found {found:#x}, expected bits of {allowed:#x} only")]
    UnknownBits {
        /// Which.
        field: Field,
        /// Those that may be set.
        allowed: u64,
        /// What came.
        found: u64,
    },
    /// A number is beyond its bound.
    #[error("{field}: found {found}, expected at most {limit}")]
    AboveLimit {
        /// Which.
        field: Field,
        /// The largest that is allowed.
        limit: u64,
        /// What came.
        found: u64,
    },
    /// A number is below its bound.
    #[error("{field}: found {found}, expected at least {limit}")]
    BelowLimit {
        /// Which.
        field: Field,
        /// The smallest that is allowed.
        limit: u64,
        /// What came.
        found: u64,
    },
    /// A string is not UTF-8.
    #[error("{field}: not UTF-8 from byte {valid_bytes} on")]
    NotText {
        /// Which.
        field: Field,
        /// How many bytes are right.
        valid_bytes: usize,
    },
    /// The handshake ended without it.
    #[error("{field}: found none, expected one")]
    Missing {
        /// What.
        field: Field,
    },
    /// EXPORT_NAME chose an export that does not exist, and that option has no error reply.
    #[error("export name: found one that is not served, expected one that is")]
    ExportUnknown,
    /// EXPORT_NAME chose an export whose logical block the client cannot know.
    #[error("export name: found option EXPORT_NAME, expected GO with a request for block sizes")]
    BlockSizeRequired,
    /// EXPORT_NAME came while the server stops.
    #[error("export name: the server is shutting down")]
    ShuttingDown,
    /// Bytes came after the end of the connection.
    #[error("found bytes after the end of the connection, expected none")]
    AfterEnd,
}

impl ProtocolError {
    pub(crate) fn unless_equal(field: Field, expected: u64, found: u64) -> Result<(), Self> {
        if expected == found { Ok(()) } else { Err(Self::Mismatch { field, expected, found }) }
    }

    pub(crate) fn unless_at_most(field: Field, limit: u64, found: u64) -> Result<(), Self> {
        if found <= limit { Ok(()) } else { Err(Self::AboveLimit { field, limit, found }) }
    }

    pub(crate) fn unless_at_least(field: Field, limit: u64, found: u64) -> Result<(), Self> {
        if found >= limit { Ok(()) } else { Err(Self::BelowLimit { field, limit, found }) }
    }
}

/// Why a request failed, as the protocol can say it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Error)]
pub enum ReplyError {
    /// EPERM.
    #[error("operation not permitted")]
    NotPermitted,
    /// EIO.
    #[error("input/output error")]
    Io,
    /// ENOMEM.
    #[error("out of memory")]
    NoMemory,
    /// EINVAL.
    #[error("invalid argument")]
    Invalid,
    /// ENOSPC.
    #[error("no space left on device")]
    NoSpace,
    /// EOVERFLOW.
    #[error("value too large")]
    Overflow,
    /// ENOTSUP: a fast write zeroes would not be fast.
    #[error("operation not supported")]
    NotSupported,
    /// ESHUTDOWN: the server stops.
    #[error("server is shutting down")]
    Shutdown,
}

impl ReplyError {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            ReplyError::NotPermitted => 1,
            ReplyError::Io => 5,
            ReplyError::NoMemory => 12,
            ReplyError::Invalid => 22,
            ReplyError::NoSpace => 28,
            ReplyError::Overflow => 75,
            ReplyError::NotSupported => 95,
            ReplyError::Shutdown => 108,
        }
    }

    /// The error of a number that is not zero. A number that the protocol does not define counts as
    /// [`ReplyError::Invalid`], as the protocol says.
    #[must_use]
    pub fn from_code(code: u32) -> ReplyError {
        match code {
            1 => ReplyError::NotPermitted,
            5 => ReplyError::Io,
            12 => ReplyError::NoMemory,
            28 => ReplyError::NoSpace,
            75 => ReplyError::Overflow,
            95 => ReplyError::NotSupported,
            108 => ReplyError::Shutdown,
            _ => ReplyError::Invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back() {
        for error in [
            ReplyError::NotPermitted,
            ReplyError::Io,
            ReplyError::NoMemory,
            ReplyError::Invalid,
            ReplyError::NoSpace,
            ReplyError::Overflow,
            ReplyError::NotSupported,
            ReplyError::Shutdown,
        ] {
            assert_eq!(ReplyError::from_code(error.code()), error);
        }
        assert_eq!(ReplyError::from_code(4095), ReplyError::Invalid);
    }
}
