//! Both connections with what surrounds them in a test.

use forebay_nbd::{
    ClientConnection, ClientEvent, ClientGoal, ClientOptions, ContextSet, ExportInfo, MetaContext,
    ProtocolError, ReplyStyle, ServerConnection, ServerEvent, Session,
};

use crate::wire::{ack, context_data, go_data, greeting, option};

pub(crate) const VOLUME_BYTES: u64 = 64 * 1024 * 1024;

/// A volume, one with large blocks that may not be written, and one with every feature.
pub(crate) fn exports() -> Vec<ExportInfo> {
    let volume = ExportInfo {
        name: "volume".to_string(),
        description: "a volume".to_string(),
        size_bytes: VOLUME_BYTES,
        logical_block_bytes: 512,
        preferred_block_bytes: 4096,
        is_read_only: false,
        is_rotational: false,
        supports_multi_conn: true,
        supports_fast_zero: false,
        refusal: None,
    };
    let large = ExportInfo {
        name: "large".to_string(),
        description: String::new(),
        logical_block_bytes: 4096,
        is_read_only: true,
        supports_multi_conn: false,
        ..volume.clone()
    };
    let full = ExportInfo {
        name: "full".to_string(),
        preferred_block_bytes: 65536,
        is_rotational: true,
        supports_fast_zero: true,
        ..volume.clone()
    };
    vec![volume, large, full]
}

pub(crate) fn all_contexts() -> ContextSet {
    let mut contexts = ContextSet::EMPTY;
    for context in MetaContext::ALL {
        contexts.insert(context);
    }
    contexts
}

pub(crate) struct Server {
    pub(crate) connection: ServerConnection,
    pub(crate) exports: Vec<ExportInfo>,
    /// What the handshake said since it was last looked at.
    pub(crate) output: Vec<u8>,
    /// Payload of all writes, one behind the other.
    pub(crate) payload: Vec<u8>,
}

impl Server {
    pub(crate) fn new() -> Server {
        let mut output = Vec::new();
        let connection = ServerConnection::new(&mut output);
        assert_eq!(output, greeting());
        output.clear();
        Server { connection, exports: exports(), output, payload: Vec::new() }
    }

    /// After the flags of a client that knows everything.
    pub(crate) fn greeted() -> Server {
        let mut server = Server::new();
        assert_eq!(server.feed(&3_u32.to_be_bytes()), Ok(vec![]));
        assert_eq!(server.output, []);
        server
    }

    /// In the transmission phase.
    pub(crate) fn ready(export: &str, style: ReplyStyle) -> (Server, Session) {
        let mut server = Server::greeted();
        if style == ReplyStyle::Structured {
            assert_eq!(server.ask(8, &[]), ack(8));
            let queries = ["base:allocation", "x-forebay:cache"];
            server.ask(10, &context_data(export, &queries));
        }
        let events = server.feed(&option(7, &go_data(export, &[3]))).unwrap();
        let [ServerEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
        server.output.clear();
        (server, session)
    }

    /// Hands in bytes and takes payload, until everything is used up.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<ServerEvent>, ProtocolError> {
        let mut rest = bytes;
        let mut events = Vec::new();
        loop {
            let pending = self.connection.payload_bytes_pending();
            let taken = rest.len().min(pending as usize);
            self.payload.extend_from_slice(&rest[..taken]);
            self.connection.payload_taken(taken as u32);
            rest = &rest[taken..];
            let (consumed, event) =
                self.connection.handle_bytes(rest, &self.exports, &mut self.output)?;
            rest = &rest[consumed..];
            match event {
                Some(event) => {
                    events.push(event);
                    if matches!(event, ServerEvent::Aborted | ServerEvent::Disconnect) {
                        return Ok(events);
                    }
                }
                None => {
                    assert!(rest.is_empty(), "no event, and {} bytes are left", rest.len());
                    return Ok(events);
                }
            }
        }
    }

    /// Sends an option that does not end the handshake and returns the replies.
    pub(crate) fn ask(&mut self, code: u32, data: &[u8]) -> Vec<u8> {
        self.output.clear();
        assert_eq!(self.feed(&option(code, data)), Ok(vec![]));
        std::mem::take(&mut self.output)
    }
}

pub(crate) struct Client {
    pub(crate) connection: ClientConnection,
    pub(crate) output: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Client {
    pub(crate) fn new(options: ClientOptions) -> Client {
        let connection = ClientConnection::new(options);
        Client { connection, output: Vec::new(), payload: Vec::new() }
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<ClientEvent>, ProtocolError> {
        let mut rest = bytes;
        let mut events = Vec::new();
        loop {
            let pending = self.connection.payload_bytes_pending();
            let taken = rest.len().min(pending as usize);
            self.payload.extend_from_slice(&rest[..taken]);
            events.extend(self.connection.payload_taken(taken as u32));
            rest = &rest[taken..];
            let (consumed, event) = self.connection.handle_bytes(rest, &mut self.output)?;
            rest = &rest[consumed..];
            match event {
                Some(event) => events.push(event),
                None => {
                    assert!(rest.is_empty(), "no event, and {} bytes are left", rest.len());
                    return Ok(events);
                }
            }
        }
    }
}

pub(crate) fn connect(export: &str, style: ReplyStyle) -> ClientOptions {
    let contexts = if style == ReplyStyle::Structured { all_contexts() } else { ContextSet::EMPTY };
    let goal = ClientGoal::Connect { export_name: export.to_string(), contexts };
    ClientOptions { goal, reply_style: style }
}
