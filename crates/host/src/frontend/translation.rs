//! Between the protocol's terms and the engine's: requests one way, replies the other.
//!
//! Functions without state. Errors of backends become errors of the protocol here and nowhere else.

use forebay_engine::payload::{BufferId, BufferRange};
use forebay_engine::request::{Durability, RequestError, RequestKind};
use forebay_engine::status::BlockState;
use forebay_engine::units::{BLOCK_BYTES, Time};
use forebay_nbd::{
    CACHE_CLEAN, CACHE_DIRTY, CACHE_NONE, Command, HolePolicy, REPLY_HEADER_BYTES_MAX, ReplyError,
    Request, Session, StatusExtent,
};

use super::outbox::{Body, OutgoingReply};
use super::{ClientRequest, Demand, Served};
use crate::shard::exports::ExportNumber;
use crate::shard::latency::LatencyClass;

/// A request whose reply has not been formed.
pub(super) struct RequestRecord {
    pub(super) connection: u32,
    pub(super) request: Request,
    pub(super) buffer: Option<BufferId>,
    pub(super) buffer_bytes: u32,
    pub(super) arrived: Time,
}

pub(super) fn demand(
    number: u32,
    export: ExportNumber,
    request: &Request,
    buffer: Option<BufferId>,
) -> Demand {
    let (offset_bytes, length_bytes) = (request.offset_bytes, u64::from(request.length_bytes));
    let buffer = || buffer.expect("reads and writes have a buffer");
    let kind = match request.command {
        Command::Read { .. } => RequestKind::Read { buffer: buffer() },
        Command::Write { durability } => {
            RequestKind::Write { buffer: buffer(), durability: engine_durability(durability) }
        }
        Command::Flush => RequestKind::Flush,
        Command::Trim { durability } => {
            RequestKind::Discard { durability: engine_durability(durability) }
        }
        Command::Cache => RequestKind::Prefetch,
        Command::WriteZeroes { durability, hole, speed: _ } => RequestKind::WriteZeroes {
            durability: engine_durability(durability),
            may_unmap: hole == HolePolicy::MayPunch,
        },
        Command::BlockStatus { .. } => {
            return Demand::BlockStatus { number, export, offset_bytes, length_bytes };
        }
    };
    Demand::Request(ClientRequest { number, export, offset_bytes, length_bytes, kind })
}

fn engine_durability(durability: forebay_nbd::Durability) -> Durability {
    match durability {
        forebay_nbd::Durability::Completed => Durability::Completed,
        forebay_nbd::Durability::ForcedUnitAccess => Durability::ForcedUnitAccess,
    }
}

pub(super) fn latency_class(command: Command, served: Served) -> Option<LatencyClass> {
    match command {
        Command::Read { .. } => Some(match served {
            Served::Cache => LatencyClass::ReadHit,
            Served::Origin => LatencyClass::ReadMiss,
        }),
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } => {
            Some(LatencyClass::Write)
        }
        Command::Flush => Some(LatencyClass::Flush),
        Command::Cache | Command::BlockStatus { .. } => None,
    }
}

pub(super) fn form_reply(
    session: &Session,
    record: &RequestRecord,
    result: Result<(), RequestError>,
) -> OutgoingReply {
    let mut header = [0; REPLY_HEADER_BYTES_MAX];
    let request = &record.request;
    let cookie = request.cookie;
    let length = match result {
        Err(error) => session.encode_error_reply(cookie, reply_error(error), &mut header),
        Ok(()) => match (request.command, record.buffer) {
            (Command::Read { .. }, Some(buffer)) => {
                let (offset_bytes, length) = (request.offset_bytes, request.length_bytes);
                let header_bytes =
                    session.encode_read_reply_header(cookie, offset_bytes, length, &mut header);
                let offset = (offset_bytes % BLOCK_BYTES as u64) as u32;
                let body = Body::Data(BufferRange { buffer, offset, length });
                return OutgoingReply {
                    body,
                    buffer_bytes: record.buffer_bytes,
                    ..OutgoingReply::to_request(header, header_bytes)
                };
            }
            _ => session.encode_done_reply(cookie, &mut header),
        },
    };
    OutgoingReply::to_request(header, length)
}

/// The one place where an error of a backend becomes one of the protocol.
fn reply_error(error: RequestError) -> ReplyError {
    match error {
        RequestError::Io => ReplyError::Io,
        RequestError::NoSpace => ReplyError::NoSpace,
        RequestError::Shutdown => ReplyError::Shutdown,
        RequestError::ReadOnly => ReplyError::NotPermitted,
    }
}

/// Runs of blocks as extents of bytes from the start of the request on.
pub(super) fn cache_extents(
    request: &Request,
    runs: &[(u64, u64, BlockState)],
) -> Vec<StatusExtent> {
    let block = BLOCK_BYTES as u64;
    let start = request.offset_bytes;
    let extents = runs.iter().filter_map(|(first, count, state)| {
        let run_start = (first * block).max(start);
        let run_end = (first + count) * block;
        let length = run_end.saturating_sub(run_start).min(u64::from(u32::MAX) / block * block);
        let flags = match state {
            BlockState::NotCached => CACHE_NONE,
            BlockState::Clean => CACHE_CLEAN,
            BlockState::Dirty => CACHE_DIRTY,
        };
        (length > 0).then_some(StatusExtent { length_bytes: length as u32, flags })
    });
    let extents: Vec<StatusExtent> = extents.collect();
    if extents.is_empty() {
        return vec![StatusExtent { length_bytes: request.length_bytes, flags: CACHE_NONE }];
    }
    extents
}
