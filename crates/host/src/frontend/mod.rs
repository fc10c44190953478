//! Front ends: how clients reach exports.
//!
//! A front end turns bytes of clients into [`Demand`]s and [`ClientReply`]s into bytes. It knows
//! exports by number and nothing of what is behind them.

mod connection;
mod log_once;
pub(crate) mod nbd;
mod outbox;
mod translation;

use forebay_engine::io::IoError;
use forebay_engine::request::{RequestError, RequestKind};
use forebay_engine::units::Time;

use crate::buffer_pool::BufferPool;
use crate::ring::Ring;
use crate::shard::exports::{ExportNumber, ExportTable};

/// Where the blocks of a read came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// All from the cache.
    Cache,
    /// At least one from the origin, or from a bare device.
    Origin,
}

/// A client's request, validated, with a buffer if it moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientRequest {
    /// Names it in its reply.
    pub(crate) number: u32,
    pub(crate) export: ExportNumber,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) kind: RequestKind,
}

/// What a front end wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// A request, to be answered by a [`ClientReply`].
    Request(ClientRequest),
    /// The client of a request is gone: it need not wait any more. It is answered all the same.
    Forget { number: u32, export: ExportNumber },
    /// The state of a range, to be answered by runs of it.
    BlockStatus { number: u32, export: ExportNumber, offset_bytes: u64, length_bytes: u64 },
}

/// The answer to a request. Each request gets exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientReply {
    pub(crate) number: u32,
    pub(crate) result: Result<(), RequestError>,
    pub(crate) served: Served,
}

/// What a front end works with.
pub(crate) struct FrontContext<'a> {
    pub(crate) ring: &'a mut Ring,
    pub(crate) pool: &'a mut BufferPool,
    pub(crate) exports: &'a mut ExportTable,
    pub(crate) now: Time,
}

/// What a client is told when a device of a bare export fails.
pub(crate) fn request_error(error: IoError) -> RequestError {
    match error {
        IoError::NoSpace => RequestError::NoSpace,
        IoError::Media | IoError::Transient | IoError::Gone | IoError::TimedOut => RequestError::Io,
    }
}
