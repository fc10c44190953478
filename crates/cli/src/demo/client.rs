//! A blocking NBD client with many requests under way, on a socket.
//!
//! Requests are queued and go out together before the client waits for the next answer; so a burst
//! of answers costs one read and one write. One thread, one connection, no locks.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_nbd::{
    ClientConnection, ClientEvent, ClientGoal, ClientOptions, Command, ContextSet, Cookie,
    Durability, ReplyError, ReplyStyle, Request,
};

/// Bytes read from the socket at once.
const RECEIVE_BYTES: usize = 256 * 1024;
/// What a part of a read that is a hole is delivered as, piece by piece.
const ZEROES: [u8; 4096] = [0; 4096];
/// A server that says nothing for so long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How a request ended.
pub(crate) type Outcome = (Cookie, Result<(), ReplyError>);

/// Takes a piece of a read: of which request, from which offset in it.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Cookie, usize, &[u8]);

/// What the client speaks over.
pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// One connection.
pub(crate) struct NbdClient {
    stream: Box<dyn Stream>,
    connection: ClientConnection,
    received: Vec<u8>,
    /// What of `received` is filled and not used up.
    filled: std::ops::Range<usize>,
    outgoing: Vec<u8>,
    /// The read that takes data now, and how far it is.
    taking: Option<(Cookie, usize)>,
    size_bytes: u64,
}

impl NbdClient {
    /// Connects to an export on a Unix socket.
    pub(crate) fn connect(socket: &Path, export: &str) -> io::Result<NbdClient> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        NbdClient::greet(Box::new(stream), export)
    }

    /// Asks for an export over a connection that nothing was said on.
    pub(crate) fn greet(stream: Box<dyn Stream>, export: &str) -> io::Result<NbdClient> {
        let goal =
            ClientGoal::Connect { export_name: export.to_owned(), contexts: ContextSet::EMPTY };
        let options = ClientOptions { goal, reply_style: ReplyStyle::Structured };
        let mut client = NbdClient {
            stream,
            connection: ClientConnection::new(options),
            received: vec![0; RECEIVE_BYTES],
            filled: 0..0,
            outgoing: Vec::new(),
            taking: None,
            size_bytes: 0,
        };
        loop {
            match client.poll()? {
                Some(ClientEvent::Ready(session)) => {
                    client.size_bytes = session.common.size_bytes;
                    return Ok(client);
                }
                Some(ClientEvent::Refused(refusal)) => {
                    return Err(io::Error::other(refusal.to_string()));
                }
                Some(other) => return Err(io::Error::other(format!("unexpected: {other:?}"))),
                None => client.fill()?,
            }
        }
    }

    /// Size of the export.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Queues a request. `payload` is what a write stores.
    pub(crate) fn queue(&mut self, request: &Request, payload: &[u8]) -> io::Result<()> {
        assert_eq!(request.payload_bytes() as usize, payload.len());
        let header = self.connection.encode_request(request).map_err(io::Error::other)?;
        self.outgoing.extend_from_slice(&header);
        self.outgoing.extend_from_slice(payload);
        Ok(())
    }

    /// Sends what is queued and waits for the next request to end.
    pub(crate) fn next(&mut self, sink: Sink<'_>) -> io::Result<Outcome> {
        loop {
            let pending = self.connection.payload_bytes_pending() as usize;
            let event = if pending > 0 {
                if self.filled.is_empty() {
                    self.fill()?;
                    continue;
                }
                self.take_payload(pending, sink)
            } else {
                self.poll()?
            };
            match event {
                Some(ClientEvent::Done { cookie, result }) => return Ok((cookie, result)),
                Some(ClientEvent::Data { cookie, offset_in_request, .. }) => {
                    self.taking = Some((cookie, offset_in_request as usize));
                }
                Some(ClientEvent::Hole { cookie, offset_in_request, length_bytes }) => {
                    let (mut at, end) =
                        (offset_in_request as usize, (offset_in_request + length_bytes) as usize);
                    while at < end {
                        let length = ZEROES.len().min(end - at);
                        sink(cookie, at, &ZEROES[..length]);
                        at += length;
                    }
                }
                Some(other) => return Err(io::Error::other(format!("unexpected: {other:?}"))),
                None if self.connection.payload_bytes_pending() > 0 => {}
                None => self.fill()?,
            }
        }
    }

    /// Hands what has arrived of a read on.
    fn take_payload(&mut self, pending: usize, sink: Sink<'_>) -> Option<ClientEvent> {
        let length = pending.min(self.filled.len());
        let (cookie, offset) = self.taking.as_mut().expect("data was announced");
        let bytes = &self.received[self.filled.start..self.filled.start + length];
        sink(*cookie, *offset, bytes);
        *offset += length;
        self.filled.start += length;
        self.connection.payload_taken(length as u32)
    }

    /// Uses up what has arrived, to the next event.
    fn poll(&mut self) -> io::Result<Option<ClientEvent>> {
        let bytes = &self.received[self.filled.clone()];
        let (used, event) = self
            .connection
            .handle_bytes(bytes, &mut self.outgoing)
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.filled.start += used;
        Ok(event)
    }

    /// Sends what is queued, then waits for bytes of the server.
    fn fill(&mut self) -> io::Result<()> {
        if !self.outgoing.is_empty() {
            self.stream.write_all(&self.outgoing)?;
            self.outgoing.clear();
        }
        self.received.copy_within(self.filled.clone(), 0);
        let start = self.filled.len();
        let length = loop {
            match self.stream.read(&mut self.received[start..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => break length,
                // A wait with a limit ends so if the process was stopped and goes on, as when its
                // machine was frozen (signal(7)).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        self.filled = 0..start + length;
        Ok(())
    }

    /// Writes a range and waits for it. No other request may be under way.
    pub(crate) fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let command = Command::Write { durability: Durability::Completed };
        let length_bytes = bytes.len() as u32;
        let request = Request { cookie: Cookie(0), command, offset_bytes, length_bytes };
        self.queue(&request, bytes)?;
        self.next(&mut |_, _, _| {})?.1.map_err(reply_error)
    }

    /// Flushes and waits for it. No other request may be under way.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let (command, cookie) = (Command::Flush, Cookie(0));
        self.queue(&Request { cookie, command, offset_bytes: 0, length_bytes: 0 }, &[])?;
        self.next(&mut |_, _, _| {})?.1.map_err(reply_error)
    }
}

impl Drop for NbdClient {
    fn drop(&mut self) {
        if let Some(message) = self.connection.encode_disconnect() {
            // The server may be gone; then it needs no goodbye.
            let _ = self.stream.write_all(&message);
        }
    }
}

/// What the server said of a request, as an error of this process.
pub(crate) fn reply_error(error: ReplyError) -> io::Error {
    io::Error::other(format!("the server answered {error:?}"))
}
