//! A recording: everything that a daemon wrote to its devices and said to its clients, in order.
//!
//! `forebay serve --record-writes FILE` makes one; [`RecordingReader`] reads it. It is a tool for
//! tests: whoever has the devices as they were before can build from any prefix of the entries what
//! a crash at that moment could have left, and knows what clients had been promised by then.
//!
//! One file holds one life of one daemon, all its devices, in one order: the order in which the
//! loop of the shard handed operations to devices, was told of their ends, took requests and gave
//! answers. An operation's begin is written before the device gets it; its end before whoever waits
//! for it is told; an answer before it goes to the socket. So no prefix lacks the cause of what it
//! holds. Reads are not recorded, and FUA writes do not occur: the engine asks devices for writes
//! and for flushes. What commands write without a daemon (format, attach) is not in it, nor is the
//! host state file.
//!
//! # Format, version 1
//!
//! Little-endian. A header of [`FILE_HEADER_BYTES`]:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0-7 | magic `FBYWRITE` |
//! | 8-11 | version |
//! | 12-15 | CRC32C of bytes 0-11 |
//!
//! Then entries without gaps, each a header of [`ENTRY_HEADER_BYTES`] and its payload:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0-3 | CRC32C of bytes 4-55 |
//! | 4 | kind, see below |
//! | 5 | detail: role, result, or flags, see below |
//! | 6-7 | zero |
//! | 8-11 | device or export, numbered from zero in the order of their entries |
//! | 12-15 | CRC32C of the payload |
//! | 16-23 | sequence number: of the first entry zero, then one more each |
//! | 24-31 | offset in bytes |
//! | 32-39 | length in bytes; of a device or export its size |
//! | 40-47 | of an end or answer the sequence number of what it ends, else zero |
//! | 48-51 | length of the payload, at most [`PAYLOAD_BYTES_MAX`] |
//! | 52-55 | zero |
//!
//! | kind | entry | payload |
//! | --- | --- | --- |
//! | 1 | [`Entry::Device`] | its spec |
//! | 2 | [`Entry::Export`] | its name |
//! | 3, 4, 5, 6 | [`Entry::Begin`]: write, write zeroes, discard, flush | data of a write |
//! | 7 | [`Entry::End`] | |
//! | 8, 9, 10, 11 | [`Entry::Request`]: write, write zeroes, discard, flush | data of a write |
//! | 12 | [`Entry::Answer`] | |
//!
//! The detail of a device is its role (0 cache, 1 origin, 2 bare). That of an end is its result: 0
//! done, or 1 media, 2 no space, 3 gone, 4 timed out; of an answer 0 done, or 1 I/O error, 2 no
//! space, 3 shutdown, 4 read-only. That of an operation or request is 1 if the range may be
//! deallocated, plus 2 for FUA.
//!
//! A recording ends where its daemon was killed. An entry that is not whole at the end of the file
//! is told of as [`Tail::Torn`] and is no error; everything else that is not as above is.

mod entry;
mod reader;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

use forebay_engine::io::IoResult;
use forebay_engine::request::{Durability, RequestError};
use thiserror::Error;

pub(crate) use entry::{Detail, Header, Kind, file_header};
pub use reader::RecordingReader;

/// Version of the format.
pub const RECORDING_VERSION: u32 = 1;
/// Length of the header of the file.
pub const FILE_HEADER_BYTES: usize = 16;
/// Length of the header of an entry.
pub const ENTRY_HEADER_BYTES: usize = 56;
/// Longest payload: twice what a client may write at once, which the engine writes in no more than
/// as many bytes and a header of its own.
pub const PAYLOAD_BYTES_MAX: u32 = 64 << 20;

/// What a device is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceRole {
    /// It holds the log of the cache.
    Cache,
    /// It holds a volume.
    Origin,
    /// It is served as it is.
    Bare,
}

/// What a device was asked to do, or a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// To store these bytes.
    Write {
        /// First byte.
        offset_bytes: u64,
        /// What to store.
        data: Vec<u8>,
    },
    /// To make a range zero.
    WriteZeroes {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        length_bytes: u64,
        /// Whether the range may be deallocated.
        may_unmap: bool,
    },
    /// To forget a range; its content is undefined from now on.
    Discard {
        /// First byte.
        offset_bytes: u64,
        /// Number of bytes.
        length_bytes: u64,
    },
    /// To make durable what has ended before this began.
    Flush,
}

impl Operation {
    /// The range: first byte and number of bytes. Nothing for a flush.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Operation::Write { offset_bytes, data } => (*offset_bytes, data.len() as u64),
            Operation::WriteZeroes { offset_bytes, length_bytes, .. }
            | Operation::Discard { offset_bytes, length_bytes } => (*offset_bytes, *length_bytes),
            Operation::Flush => (0, 0),
        }
    }
}

/// One entry. Its sequence number is its place in the recording, counted from zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A device was put to work. The first of a recording is number zero; a device that comes back
    /// after it was gone gets another number.
    Device {
        /// What for.
        role: DeviceRole,
        /// Its size.
        size_bytes: u64,
        /// As the operator named it.
        spec: String,
    },
    /// The first request to an export follows. Numbered as devices are, apart from them.
    Export {
        /// Its size.
        size_bytes: u64,
        /// Its name.
        name: String,
    },
    /// An operation is handed to a device.
    Begin {
        /// Number of the device.
        device: u32,
        /// The operation.
        operation: Operation,
    },
    /// The end of an operation is known.
    End {
        /// Sequence number of its begin.
        begin: u64,
        /// How it ended.
        result: IoResult,
    },
    /// A client's request is taken.
    Request {
        /// Number of the export.
        export: u32,
        /// What the client wants.
        operation: Operation,
        /// Whether it must be durable before it is answered.
        durability: Durability,
    },
    /// A client's request is answered.
    Answer {
        /// Sequence number of the request.
        request: u64,
        /// What the client is told.
        result: Result<(), RequestError>,
    },
}

/// How a recording ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// With a whole entry.
    Whole,
    /// In the middle of an entry.
    Torn {
        /// Where that entry begins in the file.
        offset_bytes: u64,
        /// What is there of it.
        found_bytes: u64,
    },
}

/// Why a recording cannot be read or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// A file operation failed.
    #[error("cannot {what} the recording {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// It is no recording, or damaged.
    #[error(
        "{} is no recording that can be read: {field} at byte {offset_bytes} is {found:#x}, \
         expected {expected:#x}", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        field: &'static str,
        /// Where the header or entry begins in the file.
        offset_bytes: u64,
        /// As it should be.
        expected: u64,
        /// As it is.
        found: u64,
    },
    /// Another version wrote it.
    #[error(
        "{} has version {found} of the recording's format; this program reads version \
         {RECORDING_VERSION}", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// As found.
        found: u32,
    },
}
