//! Requests as both sides see them.

use zerocopy::IntoBytes;

use crate::protocol::{
    REQUEST_HEADER_BYTES, REQUEST_MAGIC, RequestHeader, command_code, command_flag,
};

/// Names a request from the client to its reply. Chosen by the client, opaque to the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Cookie(pub u64);

/// Whether a write must be durable before it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Durability {
    /// Answered when complete.
    Completed,
    /// Answered when it is on stable storage (FUA).
    ForcedUnitAccess,
}

/// Whether the data of a READ may come in several chunks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReadChunks {
    /// In any number.
    Any,
    /// In one (DF).
    One,
}

/// Whether zeroes may be stored as a hole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HolePolicy {
    /// The range may be deallocated.
    MayPunch,
    /// The range stays provisioned (NO_HOLE).
    KeepAllocated,
}

/// Whether zeroes must be cheaper than writing them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ZeroSpeed {
    /// As fast as it goes.
    Any,
    /// Faster than a WRITE, or [`crate::ReplyError::NotSupported`] at once (FAST_ZERO).
    FastOnly,
}

/// How many extents a block status shall have for each context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StatusExtents {
    /// As many as needed.
    Any,
    /// The first one (REQ_ONE).
    One,
}

/// What a client asks for. DISC has no reply and is not among them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// Send the range.
    Read {
        /// In how many pieces.
        chunks: ReadChunks,
    },
    /// Store the payload that follows.
    Write {
        /// FUA or not.
        durability: Durability,
    },
    /// Make durable what was answered before.
    Flush,
    /// The content of the range does not matter any more.
    Trim {
        /// FUA or not.
        durability: Durability,
    },
    /// The range will be read soon.
    Cache,
    /// The range shall read as zeroes.
    WriteZeroes {
        /// FUA or not.
        durability: Durability,
        /// Whether the range may be deallocated.
        hole: HolePolicy,
        /// Whether it must be fast.
        speed: ZeroSpeed,
    },
    /// Describe the range in every selected context.
    BlockStatus {
        /// How many extents.
        extents: StatusExtents,
    },
}

/// One request. On the server it was validated against its export: not beyond the end, aligned, of
/// a length that its command allows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Handed back with the reply.
    pub cookie: Cookie,
    /// What to do.
    pub command: Command,
    /// First byte of the range; zero for a flush.
    pub offset_bytes: u64,
    /// Length of the range; zero for a flush.
    pub length_bytes: u32,
}

impl Request {
    /// Bytes that follow the header on the stream.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Write { .. } => self.length_bytes,
            Command::Read { .. }
            | Command::Flush
            | Command::Trim { .. }
            | Command::Cache
            | Command::WriteZeroes { .. }
            | Command::BlockStatus { .. } => 0,
        }
    }

    /// The header as it stands on the wire.
    pub(crate) fn encode(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let (command, flags) = self.command.encode();
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.into(),
            cookie: self.cookie.0.into(),
            offset: self.offset_bytes.into(),
            length: self.length_bytes.into(),
        };
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }
}

impl Command {
    /// Code and flags on the wire.
    pub(crate) fn encode(self) -> (u16, u16) {
        match self {
            Command::Read { chunks } => {
                (command_code::READ, if chunks == ReadChunks::One { command_flag::DF } else { 0 })
            }
            Command::Write { durability } => (command_code::WRITE, durability.flag()),
            Command::Flush => (command_code::FLUSH, 0),
            Command::Trim { durability } => (command_code::TRIM, durability.flag()),
            Command::Cache => (command_code::CACHE, 0),
            Command::WriteZeroes { durability, hole, speed } => {
                let mut flags = durability.flag();
                if hole == HolePolicy::KeepAllocated {
                    flags |= command_flag::NO_HOLE;
                }
                if speed == ZeroSpeed::FastOnly {
                    flags |= command_flag::FAST_ZERO;
                }
                (command_code::WRITE_ZEROES, flags)
            }
            Command::BlockStatus { extents } => {
                let one = extents == StatusExtents::One;
                (command_code::BLOCK_STATUS, if one { command_flag::REQ_ONE } else { 0 })
            }
        }
    }
}

impl Durability {
    fn flag(self) -> u16 {
        match self {
            Durability::Completed => 0,
            Durability::ForcedUnitAccess => command_flag::FUA,
        }
    }
}
