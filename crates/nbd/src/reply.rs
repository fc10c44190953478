//! Replies of the server in the transmission phase.
//!
//! Each function forms what stands before the data, into a buffer of the caller; the host sends the
//! data of a READ right behind it. Nothing is allocated, except that
//! [`Session::append_block_status`] grows the caller's vector, which may be used again.
//!
//! A READ is answered in one chunk that is also the last: the host has all of its data before it
//! answers, so no error can come between.

use alloc::vec::Vec;

use zerocopy::IntoBytes;

use crate::error::ReplyError;
use crate::meta_context::MetaContext;
use crate::protocol::{
    CHUNK_MAGIC, ChunkHeader, ErrorChunk, OffsetData, SIMPLE_REPLY_MAGIC, STATUS_EXTENTS_MAX,
    SimpleReply, StatusDescriptor, chunk_code, chunk_flag,
};
use crate::request::{Command, Cookie, Request, StatusExtents};
use crate::session::{ReplyStyle, Session};

/// Room for any reply but the data of a READ and a block status.
pub const REPLY_HEADER_BYTES_MAX: usize = size_of::<ChunkHeader>() + size_of::<OffsetData>();
const _: () = assert!(REPLY_HEADER_BYTES_MAX >= size_of::<SimpleReply>());
const _: () = assert!(REPLY_HEADER_BYTES_MAX >= size_of::<ChunkHeader>() + size_of::<ErrorChunk>());

/// Part of a range, described in one context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Length, not zero.
    pub length_bytes: u32,
    /// Meaning depends on the context.
    pub flags: u32,
}

/// What a block status says in one context: neighbouring extents from the offset of the request on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextExtents<'a> {
    /// The context.
    pub context: MetaContext,
    /// At least one. They may end before or behind the range of the request.
    pub extents: &'a [StatusExtent],
}

impl Session {
    /// Forms what stands before the data of a successful READ, and returns its length. The host
    /// sends `length_bytes` of data behind it.
    pub fn encode_read_reply_header(
        &self,
        cookie: Cookie,
        offset_bytes: u64,
        length_bytes: u32,
        out: &mut [u8; REPLY_HEADER_BYTES_MAX],
    ) -> usize {
        match self.reply_style {
            ReplyStyle::Simple => put_simple(cookie, None, out),
            ReplyStyle::Structured => {
                let fixed = OffsetData { offset: offset_bytes.into() };
                let length = size_of::<OffsetData>() as u32 + length_bytes;
                put_last_chunk(cookie, chunk_code::OFFSET_DATA, length, fixed.as_bytes(), out)
            }
        }
    }

    /// Forms the whole reply to a successful request other than READ and BLOCK_STATUS, and returns
    /// its length.
    pub fn encode_done_reply(
        &self,
        cookie: Cookie,
        out: &mut [u8; REPLY_HEADER_BYTES_MAX],
    ) -> usize {
        match self.reply_style {
            ReplyStyle::Simple => put_simple(cookie, None, out),
            ReplyStyle::Structured => put_last_chunk(cookie, chunk_code::NONE, 0, &[], out),
        }
    }

    /// Forms the whole reply to a request that failed or was refused, and returns its length.
    pub fn encode_error_reply(
        &self,
        cookie: Cookie,
        error: ReplyError,
        out: &mut [u8; REPLY_HEADER_BYTES_MAX],
    ) -> usize {
        match self.reply_style {
            ReplyStyle::Simple => put_simple(cookie, Some(error), out),
            ReplyStyle::Structured => {
                let fixed = ErrorChunk { error: error.code().into(), message_length: 0.into() };
                let length = size_of::<ErrorChunk>() as u32;
                put_last_chunk(cookie, chunk_code::ERROR, length, fixed.as_bytes(), out)
            }
        }
    }

    /// Appends the whole reply to a BLOCK_STATUS: one chunk for each selected context.
    ///
    /// `replies` holds exactly the contexts of [`Session::contexts`], in any order. Extents behind
    /// the range of the request are left out, equal neighbours are joined, and with REQ_ONE only
    /// the first one is sent, cut to the range.
    pub fn append_block_status(
        &self,
        request: &Request,
        replies: &[ContextExtents<'_>],
        out: &mut Vec<u8>,
    ) {
        let Command::BlockStatus { extents: wanted } = request.command else {
            panic!("{request:?} is answered like a block status");
        };
        assert_eq!(replies.len(), self.contexts.iter().count());
        assert!(!replies.is_empty(), "a block status without contexts was refused");
        for (index, reply) in replies.iter().enumerate() {
            assert!(self.contexts.contains(reply.context));
            assert!(replies[..index].iter().all(|earlier| earlier.context != reply.context));
            let flags = if index + 1 == replies.len() { chunk_flag::DONE } else { 0 };
            append_status_chunk(request, wanted, *reply, flags, out);
        }
    }
}

fn append_status_chunk(
    request: &Request,
    wanted: StatusExtents,
    reply: ContextExtents<'_>,
    flags: u16,
    out: &mut Vec<u8>,
) {
    assert!(!reply.extents.is_empty(), "every context says at least one thing");
    let header_start = out.len();
    out.resize(header_start + size_of::<ChunkHeader>(), 0);
    out.extend_from_slice(&reply.context.id().to_be_bytes());
    let length_max = match wanted {
        StatusExtents::One => 1,
        StatusExtents::Any => STATUS_EXTENTS_MAX,
    };
    let mut count = 0;
    let mut covered_bytes = 0_u64;
    let mut pending: Option<StatusExtent> = None;
    for extent in reply.extents {
        assert!(extent.length_bytes > 0);
        if covered_bytes >= u64::from(request.length_bytes) {
            break;
        }
        covered_bytes += u64::from(extent.length_bytes);
        pending = Some(match pending {
            None => *extent,
            Some(before) => match join(before, *extent) {
                Some(joined) => joined,
                // The one that is pending will be the last: nothing more may be told.
                None if count + 1 == length_max => break,
                None => {
                    append_extent(before, out);
                    count += 1;
                    *extent
                }
            },
        });
    }
    let mut last = pending.expect("there is at least one extent");
    if wanted == StatusExtents::One {
        last.length_bytes = last.length_bytes.min(request.length_bytes);
    }
    append_extent(last, out);
    let payload_bytes = out.len() - header_start - size_of::<ChunkHeader>();
    let header = ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: flags.into(),
        kind: chunk_code::BLOCK_STATUS.into(),
        cookie: request.cookie.0.into(),
        length: u32::try_from(payload_bytes).expect("bounded by STATUS_EXTENTS_MAX").into(),
    };
    out[header_start..header_start + size_of::<ChunkHeader>()].copy_from_slice(header.as_bytes());
}

fn join(before: StatusExtent, after: StatusExtent) -> Option<StatusExtent> {
    if before.flags != after.flags {
        return None;
    }
    let length_bytes = before.length_bytes.checked_add(after.length_bytes)?;
    Some(StatusExtent { length_bytes, flags: before.flags })
}

fn append_extent(extent: StatusExtent, out: &mut Vec<u8>) {
    let descriptor =
        StatusDescriptor { length: extent.length_bytes.into(), flags: extent.flags.into() };
    out.extend_from_slice(descriptor.as_bytes());
}

fn put_simple(
    cookie: Cookie,
    error: Option<ReplyError>,
    out: &mut [u8; REPLY_HEADER_BYTES_MAX],
) -> usize {
    let reply = SimpleReply {
        magic: SIMPLE_REPLY_MAGIC.into(),
        error: error.map_or(0, ReplyError::code).into(),
        cookie: cookie.0.into(),
    };
    out[..size_of::<SimpleReply>()].copy_from_slice(reply.as_bytes());
    size_of::<SimpleReply>()
}

/// A chunk with the DONE flag; `fixed` is the part of its payload that is known here.
fn put_last_chunk(
    cookie: Cookie,
    kind: u16,
    payload_bytes: u32,
    fixed: &[u8],
    out: &mut [u8; REPLY_HEADER_BYTES_MAX],
) -> usize {
    let header = ChunkHeader {
        magic: CHUNK_MAGIC.into(),
        flags: chunk_flag::DONE.into(),
        kind: kind.into(),
        cookie: cookie.0.into(),
        length: payload_bytes.into(),
    };
    let header_bytes = size_of::<ChunkHeader>();
    let total_bytes = header_bytes + fixed.len();
    out[..header_bytes].copy_from_slice(header.as_bytes());
    out[header_bytes..total_bytes].copy_from_slice(fixed);
    total_bytes
}
