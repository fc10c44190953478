//! A small host on either side: a volume in memory behind the server, and the bytes a client wants.

use std::collections::BTreeMap;

use forebay_nbd::{
    ALLOCATION_HOLE, ALLOCATION_ZERO, CACHE_CLEAN, CACHE_DIRTY, Command, ContextExtents, Cookie,
    ExportInfo, MetaContext, ProtocolError, REPLY_HEADER_BYTES_MAX, Request, ServerConnection,
    ServerEvent, Session, StatusExtent,
};

/// A server with a volume in memory. It answers when it is told to.
pub(crate) struct MemoryServer {
    connection: ServerConnection,
    exports: Vec<ExportInfo>,
    pub(crate) volume: Vec<u8>,
    /// Bytes for the client.
    pub(crate) to_send: Vec<u8>,
    /// Requests whose payload is complete.
    pub(crate) waiting: Vec<(Request, Vec<u8>)>,
    receiving: Option<(Request, Vec<u8>)>,
    pub(crate) events: Vec<ServerEvent>,
    pub(crate) is_over: bool,
}

impl MemoryServer {
    pub(crate) fn new(exports: Vec<ExportInfo>) -> MemoryServer {
        let mut to_send = Vec::new();
        let connection = ServerConnection::new(&mut to_send);
        let size_bytes = exports[0].size_bytes as usize;
        MemoryServer {
            connection,
            exports,
            volume: vec![0; size_bytes],
            to_send,
            waiting: Vec::new(),
            receiving: None,
            events: Vec::new(),
            is_over: false,
        }
    }

    /// Takes all bytes.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let mut rest = bytes;
        while !self.is_over {
            if let Some((_, payload)) = &mut self.receiving {
                let pending = self.connection.payload_bytes_pending() as usize;
                let taken = pending.min(rest.len());
                payload.extend_from_slice(&rest[..taken]);
                rest = &rest[taken..];
                self.connection.payload_taken(taken as u32);
                if taken < pending {
                    return Ok(());
                }
                self.waiting.extend(self.receiving.take());
            }
            let (consumed, event) =
                self.connection.handle_bytes(rest, &self.exports, &mut self.to_send)?;
            rest = &rest[consumed..];
            self.events.extend(event);
            match event {
                None => return Ok(()),
                Some(ServerEvent::Ready(_)) => {}
                Some(ServerEvent::Request(request)) if request.payload_bytes() > 0 => {
                    self.receiving = Some((request, Vec::new()));
                }
                Some(ServerEvent::Request(request)) => self.waiting.push((request, Vec::new())),
                Some(ServerEvent::Refused(refusal)) => {
                    let (session, mut header) = (self.session(), [0; REPLY_HEADER_BYTES_MAX]);
                    let length =
                        session.encode_error_reply(refusal.cookie, refusal.error(), &mut header);
                    self.to_send.extend_from_slice(&header[..length]);
                }
                Some(ServerEvent::Aborted | ServerEvent::Disconnect) => self.is_over = true,
            }
        }
        Ok(())
    }

    /// Answers one waiting request.
    pub(crate) fn answer(&mut self, index: usize) {
        let (request, payload) = self.waiting.remove(index);
        let session = self.session();
        let start = request.offset_bytes as usize;
        let range = start..start + request.length_bytes as usize;
        let mut header = [0; REPLY_HEADER_BYTES_MAX];
        let length = match request.command {
            Command::Read { .. } => session.encode_read_reply_header(
                request.cookie,
                request.offset_bytes,
                request.length_bytes,
                &mut header,
            ),
            Command::BlockStatus { .. } => {
                return append_status(&session, &request, &self.volume[range], &mut self.to_send);
            }
            Command::Write { .. } => {
                self.volume[range.clone()].copy_from_slice(&payload);
                session.encode_done_reply(request.cookie, &mut header)
            }
            Command::WriteZeroes { .. } | Command::Trim { .. } => {
                self.volume[range.clone()].fill(0);
                session.encode_done_reply(request.cookie, &mut header)
            }
            Command::Flush | Command::Cache => {
                session.encode_done_reply(request.cookie, &mut header)
            }
        };
        self.to_send.extend_from_slice(&header[..length]);
        if let Command::Read { .. } = request.command {
            self.to_send.extend_from_slice(&self.volume[range]);
        }
    }

    fn session(&self) -> Session {
        *self.connection.session().expect("requests come in the transmission phase")
    }
}

/// Blocks of zeroes are holes that are clean; the others are dirty.
fn append_status(session: &Session, request: &Request, range: &[u8], out: &mut Vec<u8>) {
    let extents = |zero_flags, data_flags| {
        let extent = |block: &[u8]| {
            let is_zero = block.iter().all(|byte| *byte == 0);
            let flags = if is_zero { zero_flags } else { data_flags };
            StatusExtent { length_bytes: block.len() as u32, flags }
        };
        range.chunks(512).map(extent).collect::<Vec<_>>()
    };
    let allocation = extents(ALLOCATION_HOLE | ALLOCATION_ZERO, 0);
    let cache = extents(CACHE_CLEAN, CACHE_DIRTY);
    let replies: Vec<_> = session
        .contexts
        .iter()
        .map(|context| ContextExtents {
            context,
            extents: match context {
                MetaContext::Allocation => &allocation,
                MetaContext::Cache => &cache,
            },
        })
        .collect();
    session.append_block_status(request, &replies, out);
}

/// Where data of reads lands on the client.
#[derive(Default)]
pub(crate) struct ReadBuffers {
    buffers: BTreeMap<Cookie, Vec<u8>>,
    /// The read and place that payload on the stream belongs to.
    target: Option<(Cookie, usize)>,
}

impl ReadBuffers {
    pub(crate) fn begin(&mut self, request: &Request) {
        if let Command::Read { .. } = request.command {
            // Anything but what is read.
            self.buffers.insert(request.cookie, vec![0xdd; request.length_bytes as usize]);
        }
    }

    pub(crate) fn aim(&mut self, cookie: Cookie, offset_in_request: u32) {
        self.target = Some((cookie, offset_in_request as usize));
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let (cookie, place) = self.target.as_mut().expect("payload follows an event");
        let buffer = self.buffers.get_mut(cookie).expect("a read");
        buffer[*place..*place + bytes.len()].copy_from_slice(bytes);
        *place += bytes.len();
    }

    pub(crate) fn zero(&mut self, cookie: Cookie, offset_in_request: u32, length_bytes: u32) {
        let start = offset_in_request as usize;
        self.buffers.get_mut(&cookie).expect("a read")[start..start + length_bytes as usize]
            .fill(0);
    }

    pub(crate) fn end(&mut self, cookie: Cookie) -> Option<Vec<u8>> {
        self.buffers.remove(&cookie)
    }
}
