//! Replies as the client reads them.
//!
//! Every request that was sent stands in a table until its last reply. A reply that speaks of
//! another cookie, of bytes outside its request, or that claims success without having delivered
//! everything breaks the protocol. Data of a READ is not touched: an event says where it belongs
//! and how long it is, and the host moves it.
//!
//! Chunks of one READ that overlap are caught only by their total length.

use alloc::collections::BTreeMap;

use zerocopy::FromBytes;

use crate::client::ClientEvent;
use crate::client_session::ClientSession;
use crate::error::{Field, ProtocolError, ReplyError};
use crate::gather::Gather;
use crate::meta_context::{ContextSet, MetaContext};
use crate::protocol::{
    CHUNK_MAGIC, ChunkHeader, ErrorChunk, OffsetData, OffsetHole, SIMPLE_REPLY_MAGIC,
    STATUS_EXTENTS_MAX, STRING_BYTES_MAX, SimpleReply, StatusDescriptor, chunk_code, chunk_flag,
};
use crate::reply::StatusExtent;
use crate::request::{Command, Cookie, ReadChunks, Request, StatusExtents};
use crate::session::ReplyStyle;

/// Longest error chunk: a string and room for fields that we do not know.
const ERROR_CHUNK_BYTES_MAX: u32 = STRING_BYTES_MAX as u32 + 64;

#[derive(Clone, Debug)]
pub(crate) struct ReplyReader {
    gather: Gather,
    state: State,
    pending: BTreeMap<Cookie, Pending>,
}

/// A request that was sent and is not fully answered.
#[derive(Clone, Debug)]
struct Pending {
    request: Request,
    /// Of a READ.
    delivered_bytes: u64,
    /// Of a BLOCK_STATUS.
    delivered_contexts: ContextSet,
    /// The first that came.
    error: Option<ReplyError>,
}

/// A chunk whose header was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Chunk {
    cookie: Cookie,
    is_last: bool,
    /// Bytes of it that still stand on the stream.
    left_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A reply of either style.
    Header,
    /// What stands before the data of a READ.
    DataOffset(Chunk),
    /// Data of a READ, for the host to take. Never zero bytes.
    Data(Chunk),
    Hole(Chunk),
    Error(Chunk),
    /// What nobody needs of a chunk, then its end.
    Skip(Chunk),
    StatusContext(Chunk),
    StatusExtent(Chunk, MetaContext),
}

impl ReplyReader {
    pub(crate) fn new() -> ReplyReader {
        ReplyReader { gather: Gather::new(), state: State::Header, pending: BTreeMap::new() }
    }

    pub(crate) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn is_pending(&self, cookie: Cookie) -> bool {
        self.pending.contains_key(&cookie)
    }

    pub(crate) fn expect_reply(&mut self, request: Request) {
        let pending = Pending {
            request,
            delivered_bytes: 0,
            delivered_contexts: ContextSet::EMPTY,
            error: None,
        };
        let earlier = self.pending.insert(request.cookie, pending);
        assert!(earlier.is_none(), "{:?} names two requests", request.cookie);
    }

    pub(crate) fn payload_bytes_pending(&self) -> u32 {
        if let State::Data(chunk) = self.state { chunk.left_bytes } else { 0 }
    }

    /// The host took `count` bytes of data off the stream.
    pub(crate) fn payload_taken(&mut self, count: u32) -> Option<ClientEvent> {
        let State::Data(chunk) = self.state else {
            assert_eq!(count, 0, "no payload was pending");
            return None;
        };
        assert!(count <= chunk.left_bytes, "more payload taken than was pending");
        let left_bytes = chunk.left_bytes - count;
        if left_bytes > 0 {
            self.state = State::Data(Chunk { left_bytes, ..chunk });
            return None;
        }
        self.state = State::Header;
        // Whether everything was delivered was checked before the data was yielded.
        chunk.is_last.then(|| self.finish(chunk.cookie))
    }

    /// Consumes bytes up to the next event.
    pub(crate) fn handle_bytes(
        &mut self,
        session: &ClientSession,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        loop {
            let before = (self.state, rest.len());
            let event = match self.state {
                State::Header => self.on_header(session, rest)?,
                State::DataOffset(chunk) => self.on_data_offset(chunk, rest)?,
                State::Data(_) => None,
                State::Hole(chunk) => self.on_hole(chunk, rest)?,
                State::Error(chunk) => self.on_error(chunk, rest)?,
                State::Skip(chunk) => self.on_skip(chunk, rest),
                State::StatusContext(chunk) => self.on_status_context(session, chunk, rest)?,
                State::StatusExtent(chunk, context) => {
                    self.on_status_extent(chunk, context, rest)?
                }
            };
            if event.is_some() || before == (self.state, rest.len()) {
                return Ok(event);
            }
        }
    }

    fn on_header(
        &mut self,
        session: &ClientSession,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let Some(magic) = self.gather.peek(size_of::<u32>(), rest) else { return Ok(None) };
        let magic = u32::from_be_bytes(magic.try_into().expect("as many as asked for"));
        let style = session.common.reply_style;
        if magic == CHUNK_MAGIC && style == ReplyStyle::Structured {
            let Some(bytes) = self.gather.take(size_of::<ChunkHeader>(), rest) else {
                return Ok(None);
            };
            let header = ChunkHeader::read_from_bytes(bytes).expect("as many as asked for");
            return self.on_chunk(session, &header);
        }
        // Structured replies do not exclude simple ones for requests without data.
        ProtocolError::unless_equal(Field::ReplyMagic, SIMPLE_REPLY_MAGIC.into(), magic.into())?;
        let Some(bytes) = self.gather.take(size_of::<SimpleReply>(), rest) else {
            return Ok(None);
        };
        let reply = SimpleReply::read_from_bytes(bytes).expect("as many as asked for");
        self.on_simple_reply(session, &reply).map(Some)
    }

    fn on_simple_reply(
        &mut self,
        session: &ClientSession,
        reply: &SimpleReply,
    ) -> Result<ClientEvent, ProtocolError> {
        let cookie = Cookie(reply.cookie.get());
        let pending = self.pending_mut(cookie)?;
        let is_read = matches!(pending.request.command, Command::Read { .. });
        if is_read && session.common.reply_style == ReplyStyle::Structured {
            return Err(ProtocolError::Mismatch {
                field: Field::ReadReplyStyle,
                expected: CHUNK_MAGIC.into(),
                found: SIMPLE_REPLY_MAGIC.into(),
            });
        }
        match reply.error.get() {
            0 if is_read => {
                let length_bytes = pending.request.length_bytes;
                pending.delivered_bytes = length_bytes.into();
                self.state = State::Data(Chunk { cookie, is_last: true, left_bytes: length_bytes });
                Ok(ClientEvent::Data { cookie, offset_in_request: 0, length_bytes })
            }
            0 => {
                pending.check_success(session.common.contexts)?;
                Ok(self.finish(cookie))
            }
            code => {
                pending.error = Some(ReplyError::from_code(code));
                Ok(self.finish(cookie))
            }
        }
    }

    fn on_chunk(
        &mut self,
        session: &ClientSession,
        header: &ChunkHeader,
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let (cookie, kind) = (Cookie(header.cookie.get()), header.kind.get());
        let length = header.length.get();
        // Flags that we do not know must be ignored.
        let is_last = header.flags.get() & chunk_flag::DONE != 0;
        let chunk = Chunk { cookie, is_last, left_bytes: length };
        let pending = self.pending_mut(cookie)?;
        let command = pending.request.command;
        let field = Field::ChunkLength;
        self.state = match (kind, command) {
            (chunk_code::NONE, _) => {
                ProtocolError::unless_equal(field, 0, length.into())?;
                let done = chunk_flag::DONE.into();
                let flags = u64::from(header.flags.get());
                ProtocolError::unless_equal(Field::ChunkFlags, done, flags & done)?;
                pending.check_success(session.common.contexts)?;
                return Ok(Some(self.finish(cookie)));
            }
            (chunk_code::OFFSET_DATA, Command::Read { chunks }) => {
                pending.check_content(chunks)?;
                ProtocolError::unless_at_least(field, 9, length.into())?;
                State::DataOffset(chunk)
            }
            (chunk_code::OFFSET_HOLE, Command::Read { chunks }) => {
                pending.check_content(chunks)?;
                let expected = size_of::<OffsetHole>() as u64;
                ProtocolError::unless_equal(field, expected, length.into())?;
                State::Hole(chunk)
            }
            (chunk_code::BLOCK_STATUS, Command::BlockStatus { extents }) => {
                check_status_length(extents, length)?;
                State::StatusContext(chunk)
            }
            _ if kind & chunk_code::ERROR_BIT != 0 => {
                let least = size_of::<ErrorChunk>() as u64;
                ProtocolError::unless_at_least(field, least, length.into())?;
                let limit = ERROR_CHUNK_BYTES_MAX.into();
                ProtocolError::unless_at_most(field, limit, length.into())?;
                State::Error(chunk)
            }
            _ => {
                let field = Field::ChunkKind;
                return Err(ProtocolError::NotAllowed { field, found: kind.into() });
            }
        };
        Ok(None)
    }

    fn on_data_offset(
        &mut self,
        chunk: Chunk,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let fixed_bytes = size_of::<OffsetData>();
        let Some(bytes) = self.gather.take(fixed_bytes, rest) else { return Ok(None) };
        let fixed = OffsetData::read_from_bytes(bytes).expect("as many as asked for");
        let length_bytes = chunk.left_bytes - fixed_bytes as u32;
        let offset_in_request = self.deliver(chunk, fixed.offset.get(), length_bytes)?;
        self.state = State::Data(Chunk { left_bytes: length_bytes, ..chunk });
        Ok(Some(ClientEvent::Data { cookie: chunk.cookie, offset_in_request, length_bytes }))
    }

    fn on_hole(
        &mut self,
        chunk: Chunk,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let Some(bytes) = self.gather.take(size_of::<OffsetHole>(), rest) else {
            return Ok(None);
        };
        let hole = OffsetHole::read_from_bytes(bytes).expect("as many as asked for");
        let length_bytes = hole.length.get();
        ProtocolError::unless_at_least(Field::ChunkDataLength, 1, length_bytes.into())?;
        let offset_in_request = self.deliver(chunk, hole.offset.get(), length_bytes)?;
        self.state = State::Skip(Chunk { left_bytes: 0, ..chunk });
        Ok(Some(ClientEvent::Hole { cookie: chunk.cookie, offset_in_request, length_bytes }))
    }

    fn on_error(
        &mut self,
        chunk: Chunk,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let fixed_bytes = size_of::<ErrorChunk>();
        let Some(bytes) = self.gather.take(fixed_bytes, rest) else { return Ok(None) };
        let fixed = ErrorChunk::read_from_bytes(bytes).expect("as many as asked for");
        let left_bytes = chunk.left_bytes - fixed_bytes as u32;
        let (message, limit) = (fixed.message_length.get().into(), left_bytes.into());
        ProtocolError::unless_at_most(Field::ChunkMessageLength, limit, message)?;
        let code = fixed.error.get();
        ProtocolError::unless_at_least(Field::ChunkError, 1, code.into())?;
        self.pending_mut(chunk.cookie)?.error.get_or_insert(ReplyError::from_code(code));
        self.state = State::Skip(Chunk { left_bytes, ..chunk });
        Ok(None)
    }

    fn on_skip(&mut self, chunk: Chunk, rest: &mut &[u8]) -> Option<ClientEvent> {
        let skipped = rest.len().min(chunk.left_bytes as usize);
        *rest = &rest[skipped..];
        let left_bytes = chunk.left_bytes - skipped as u32;
        if left_bytes > 0 {
            self.state = State::Skip(Chunk { left_bytes, ..chunk });
            return None;
        }
        self.state = State::Header;
        chunk.is_last.then(|| self.finish(chunk.cookie))
    }

    fn on_status_context(
        &mut self,
        session: &ClientSession,
        chunk: Chunk,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let Some(bytes) = self.gather.take(size_of::<u32>(), rest) else { return Ok(None) };
        let id = u32::from_be_bytes(bytes.try_into().expect("as many as asked for"));
        let pending = self.pending_mut(chunk.cookie)?;
        let context = match session.context_by_id(id) {
            Some(context) if !pending.delivered_contexts.contains(context) => context,
            Some(_) | None => {
                let field = Field::ChunkContext;
                return Err(ProtocolError::NotAllowed { field, found: id.into() });
            }
        };
        pending.delivered_contexts.insert(context);
        if chunk.is_last {
            pending.check_success(session.common.contexts)?;
        }
        let left_bytes = chunk.left_bytes - size_of::<u32>() as u32;
        self.state = State::StatusExtent(Chunk { left_bytes, ..chunk }, context);
        Ok(None)
    }

    fn on_status_extent(
        &mut self,
        chunk: Chunk,
        context: MetaContext,
        rest: &mut &[u8],
    ) -> Result<Option<ClientEvent>, ProtocolError> {
        let fixed_bytes = size_of::<StatusDescriptor>();
        let Some(bytes) = self.gather.take(fixed_bytes, rest) else { return Ok(None) };
        let fixed = StatusDescriptor::read_from_bytes(bytes).expect("as many as asked for");
        let extent = StatusExtent { length_bytes: fixed.length.get(), flags: fixed.flags.get() };
        let (field, found) = (Field::ExtentLength, extent.length_bytes.into());
        ProtocolError::unless_at_least(field, 1, found)?;
        let request = self.pending_mut(chunk.cookie)?.request;
        if request.command == (Command::BlockStatus { extents: StatusExtents::One }) {
            ProtocolError::unless_at_most(field, request.length_bytes.into(), found)?;
        }
        let chunk = Chunk { left_bytes: chunk.left_bytes - fixed_bytes as u32, ..chunk };
        self.state = match chunk.left_bytes {
            0 => State::Skip(chunk),
            _ => State::StatusExtent(chunk, context),
        };
        Ok(Some(ClientEvent::Extent { cookie: chunk.cookie, context, extent }))
    }

    /// Counts content of a READ and returns where in the request it lies.
    fn deliver(
        &mut self,
        chunk: Chunk,
        offset_bytes: u64,
        length_bytes: u32,
    ) -> Result<u32, ProtocolError> {
        let pending = self.pending_mut(chunk.cookie)?;
        let request = pending.request;
        let Some(offset_in_request) = offset_bytes
            .checked_sub(request.offset_bytes)
            .and_then(|distance| u32::try_from(distance).ok())
            .filter(|distance| *distance < request.length_bytes)
        else {
            let field = Field::ChunkOffset;
            return Err(ProtocolError::NotAllowed { field, found: offset_bytes });
        };
        let limit = u64::from(request.length_bytes - offset_in_request);
        ProtocolError::unless_at_most(Field::ChunkDataLength, limit, length_bytes.into())?;
        pending.delivered_bytes += u64::from(length_bytes);
        let (limit, delivered) = (request.length_bytes.into(), pending.delivered_bytes);
        ProtocolError::unless_at_most(Field::ReadBytes, limit, delivered)?;
        if chunk.is_last {
            pending.check_success(ContextSet::EMPTY)?;
        }
        Ok(offset_in_request)
    }

    fn pending_mut(&mut self, cookie: Cookie) -> Result<&mut Pending, ProtocolError> {
        self.pending
            .get_mut(&cookie)
            .ok_or(ProtocolError::NotAllowed { field: Field::Cookie, found: cookie.0 })
    }

    fn finish(&mut self, cookie: Cookie) -> ClientEvent {
        let pending = self.pending.remove(&cookie).expect("it was looked up before");
        ClientEvent::Done { cookie, result: pending.error.map_or(Ok(()), Err) }
    }
}

impl Pending {
    /// The last reply claims success, unless an error came before: is everything there?
    fn check_success(&self, contexts: ContextSet) -> Result<(), ProtocolError> {
        if self.error.is_some() {
            return Ok(());
        }
        match self.request.command {
            Command::Read { .. } => {
                let wanted = self.request.length_bytes.into();
                ProtocolError::unless_at_least(Field::ReadBytes, wanted, self.delivered_bytes)
            }
            Command::BlockStatus { .. } => {
                let wanted = contexts.iter().count() as u64;
                let delivered = self.delivered_contexts.iter().count() as u64;
                ProtocolError::unless_equal(Field::StatusChunkCount, wanted, delivered)
            }
            Command::Write { .. }
            | Command::Flush
            | Command::Trim { .. }
            | Command::Cache
            | Command::WriteZeroes { .. } => Ok(()),
        }
    }

    /// A READ that must not be fragmented has one chunk of content.
    fn check_content(&self, chunks: ReadChunks) -> Result<(), ProtocolError> {
        match chunks {
            ReadChunks::One => {
                ProtocolError::unless_equal(Field::ReadBytes, 0, self.delivered_bytes)
            }
            ReadChunks::Any => Ok(()),
        }
    }
}

/// A context and whole extents, at least one.
fn check_status_length(extents: StatusExtents, length: u32) -> Result<(), ProtocolError> {
    let field = Field::ChunkLength;
    let (context_bytes, extent_bytes) = (size_of::<u32>(), size_of::<StatusDescriptor>());
    let most = match extents {
        StatusExtents::Any => STATUS_EXTENTS_MAX as usize,
        StatusExtents::One => 1,
    };
    let least = (context_bytes + extent_bytes) as u64;
    ProtocolError::unless_at_least(field, least, length.into())?;
    let limit = (context_bytes + most * extent_bytes) as u64;
    ProtocolError::unless_at_most(field, limit, length.into())?;
    if !(length as usize - context_bytes).is_multiple_of(extent_bytes) {
        return Err(ProtocolError::NotAllowed { field, found: length.into() });
    }
    Ok(())
}
