//! Recorded requests to block devices.
//!
//! A [`TraceReader`] opens a file, plain or compressed with gzip or zstd, recognises its
//! [`Format`] or is told it, and yields [`Request`]s in the order of the file. Lines that cannot be
//! understood are counted and the first of them kept ([`BrokenLines`]); only a file that consists
//! mostly of such lines is an error.
//!
//! Invariants:
//! - A request has at least one byte, at most [`LENGTH_BYTES_MAX`], and ends within 2^63 bytes.
//! - Memory is bounded whatever the file holds: lines, samples and kept reasons have limits.
//!
//! Deliberately absent: requests without data (flushes, markers) are left out, and requests are
//! not put in order of their times.

mod device;
mod error;
mod format;
mod merged;
mod reader;
mod recognise;
mod source;

pub use error::{BrokenLine, BrokenLines, LineError, TraceError};
pub use format::Format;
pub use merged::MergedReader;
pub use reader::{Options, TraceReader};

/// Most bytes of one request; what is longer is taken for a broken line.
pub const LENGTH_BYTES_MAX: u64 = 4 << 30;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Reads data.
    Read,
    /// Writes data, or zeroes.
    Write,
    /// Gives blocks up.
    Discard,
}

/// A recorded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Nanoseconds on the clock of the trace, which may begin anywhere; `None` where the format
    /// has no times.
    pub time_ns: Option<u64>,
    /// Device, numbered from 0 in the order in which the trace names them.
    pub device: u32,
    /// What it does.
    pub operation: Operation,
    /// First byte.
    pub offset_bytes: u64,
    /// How many bytes.
    pub length_bytes: u64,
}
