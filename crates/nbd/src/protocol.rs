//! What stands on the wire: magic numbers, codes, flag bits and the fixed parts of every message.
//!
//! Values come from `doc/proto.md` of the NetworkBlockDevice project. All integers are big-endian.
//! This file only names things; what they mean is decided in the files that parse them.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most bytes of data in one READ or WRITE: what the protocol asks every server to bear, and what
/// we advertise.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// A refused WRITE of up to this many bytes is skipped and the connection goes on; a longer one
/// ends it. Twice the limit, so that a client that is off by a little hears the error.
pub const SKIPPED_PAYLOAD_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;
/// Bytes of a request before its payload.
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Longest string that the protocol allows: names, descriptions, queries, messages.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest data of an option that we look into: room for an export name and fourteen longest
/// queries.
pub const OPTION_BYTES_MAX: u32 = 64 * 1024;
/// Data of a refused option up to this length is skipped; longer data ends the connection.
pub const SKIPPED_OPTION_BYTES_MAX: u32 = 1024 * 1024;
/// Options in one handshake; a client that sends more is not getting anywhere.
pub const OPTION_COUNT_MAX: u32 = 256;
/// Descriptors in one block status chunk that a client accepts: the protocol's own advice.
pub const STATUS_EXTENTS_MAX: u32 = 1 << 20;

pub(crate) const SERVER_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(crate) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Zeroes behind the reply to EXPORT_NAME unless the client asked to leave them out.
pub(crate) const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Handshake flags of the server, and with the same values those of the client.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export offers.
pub(crate) mod transmission_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const ROTATIONAL: u16 = 1 << 4;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub(crate) mod option_code {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

pub(crate) mod reply_code {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub(crate) const ERROR_BIT: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR_BIT + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR_BIT + 2;
    pub(crate) const ERR_INVALID: u32 = ERROR_BIT + 3;
    pub(crate) const ERR_PLATFORM: u32 = ERROR_BIT + 4;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    pub(crate) const ERR_SHUTDOWN: u32 = ERROR_BIT + 7;
    pub(crate) const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT + 8;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
}

pub(crate) mod info_code {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

pub(crate) mod command_code {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

pub(crate) mod chunk_flag {
    pub(crate) const DONE: u16 = 1 << 0;
}

pub(crate) mod chunk_code {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    /// Set in every error chunk.
    pub(crate) const ERROR_BIT: u16 = 1 << 15;
    pub(crate) const ERROR: u16 = ERROR_BIT + 1;
}

macro_rules! wire {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type),*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

wire!(/// First message of the server.
Greeting, 18, { server_magic: U64, option_magic: U64, flags: U16 });
wire!(/// Before the data of an option.
OptionHeader, 16, { magic: U64, option: U32, length: U32 });
wire!(/// Before the data of a reply to an option.
OptionReplyHeader, 20, { magic: U64, option: U32, reply: U32, length: U32 });
wire!(/// Reply to EXPORT_NAME, before its padding.
ExportNameReply, 10, { size: U64, flags: U16 });
wire!(/// Information about an export.
InfoExport, 12, { info: U16, size: U64, flags: U16 });
wire!(/// Information about the sizes that an export takes.
InfoBlockSize, 14, { info: U16, minimum: U32, preferred: U32, payload_max: U32 });
wire!(/// Before the payload of a request.
RequestHeader, 28, {
    magic: U32, flags: U16, command: U16, cookie: U64, offset: U64, length: U32,
});
wire!(/// The whole of a reply that is not structured, but for the data of a READ.
SimpleReply, 16, { magic: U32, error: U32, cookie: U64 });
wire!(/// Before the payload of a chunk of a structured reply.
ChunkHeader, 20, { magic: U32, flags: U16, kind: U16, cookie: U64, length: U32 });
wire!(/// Before the data in an OFFSET_DATA chunk.
OffsetData, 8, { offset: U64 });
wire!(/// Payload of an OFFSET_HOLE chunk.
OffsetHole, 12, { offset: U64, length: U32 });
wire!(/// Before the message of an ERROR chunk.
ErrorChunk, 6, { error: U32, message_length: U16 });
wire!(/// One extent of a BLOCK_STATUS chunk.
StatusDescriptor, 8, { length: U32, flags: U32 });

const _: () = assert!(size_of::<RequestHeader>() == REQUEST_HEADER_BYTES);
