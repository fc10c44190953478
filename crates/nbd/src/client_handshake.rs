//! The client's side of the fixed newstyle handshake.
//!
//! One option at a time: structured replies, metadata contexts, then GO, with EXPORT_NAME for
//! servers that do not know GO; or LIST. What the server cannot do is left out, except for the
//! export itself. Replies are bounded in length and number before anything is kept of them.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use crate::client_session::{
    ClientSession, HandshakeRefusal, HandshakeRefusalReason, ListedExport, Offers,
};
use crate::error::{Field, ProtocolError};
use crate::gather::Gather;
use crate::meta_context::{ContextSet, MetaContext};
use crate::protocol::{
    EXPORT_NAME_PADDING_BYTES, ExportNameReply, Greeting, InfoBlockSize, InfoExport, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader, PAYLOAD_BYTES_MAX, SERVER_MAGIC,
    STRING_BYTES_MAX, handshake_flag, info_code, option_code, reply_code, transmission_flag,
};
use crate::session::{ReplyStyle, Session};

/// Longest reply to an option: two strings and what describes them, with room to spare.
const OPTION_REPLY_BYTES_MAX: u32 = 16 * 1024;
/// Most replies in one handshake; nearly all are the exports of a list.
const OPTION_REPLY_COUNT_MAX: u32 = 16 * 1024;
/// The protocol's advice to a client that was not told.
const DEFAULT_BLOCK_BYTES: u32 = 512;
const DEFAULT_PREFERRED_BLOCK_BYTES: u32 = 4096;
/// The protocol's bound on the smallest block.
const BLOCK_MINIMUM_BYTES_MAX: u32 = 64 * 1024;

/// What a client is after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientGoal {
    /// Use an export.
    Connect {
        /// Its name; empty for the server's default.
        export_name: String,
        /// Contexts for block status. They need structured replies.
        contexts: ContextSet,
    },
    /// Learn which exports there are.
    List,
}

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// What for.
    pub goal: ClientGoal,
    /// Whether to ask for structured replies. A server that has none still serves.
    pub reply_style: ReplyStyle,
}

/// What a handshake leads to.
pub(crate) enum ClientOutcome {
    Listed(ListedExport),
    ListEnd,
    Refused(HandshakeRefusal),
    Ready(ClientSession),
}

#[derive(Clone, Debug)]
pub(crate) struct ClientHandshake {
    options: ClientOptions,
    state: State,
    gather: Gather,
    /// Data of the reply under way.
    data: Vec<u8>,
    reply_count: u32,
    no_zeroes: bool,
    reply_style: ReplyStyle,
    context_ids: [Option<u32>; MetaContext::ALL.len()],
    /// Size and transmission flags.
    export: Option<(u64, u16)>,
    block_bytes: u32,
    preferred_block_bytes: u32,
    payload_bytes_max: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Greeting,
    /// A reply to `option`, whose header comes next.
    ReplyHeader {
        option: u32,
    },
    /// Data of a reply to `option`, `length` bytes in all.
    ReplyData {
        option: u32,
        reply: u32,
        length: u32,
    },
    /// The reply to EXPORT_NAME.
    ExportName,
    /// Zeroes behind it.
    Padding {
        left: usize,
    },
}

impl ClientHandshake {
    pub(crate) fn new(options: ClientOptions) -> ClientHandshake {
        ClientHandshake {
            options,
            state: State::Greeting,
            gather: Gather::new(),
            data: Vec::new(),
            reply_count: 0,
            no_zeroes: false,
            reply_style: ReplyStyle::Simple,
            context_ids: [None; MetaContext::ALL.len()],
            export: None,
            block_bytes: DEFAULT_BLOCK_BYTES,
            preferred_block_bytes: DEFAULT_PREFERRED_BLOCK_BYTES,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }

    /// Goes on to the end of one message, or of `rest`.
    pub(crate) fn handle_bytes(
        &mut self,
        rest: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<ClientOutcome>, ProtocolError> {
        match self.state {
            State::Greeting => {
                if let Some(bytes) = self.gather.take(size_of::<Greeting>(), rest) {
                    let greeting = Greeting::read_from_bytes(bytes).expect("as many as asked for");
                    self.on_greeting(&greeting, output)?;
                }
                Ok(None)
            }
            State::ReplyHeader { option } => {
                let Some(bytes) = self.gather.take(size_of::<OptionReplyHeader>(), rest) else {
                    return Ok(None);
                };
                let header =
                    OptionReplyHeader::read_from_bytes(bytes).expect("as many as asked for");
                let (reply, length) = self.check_reply_header(option, &header)?;
                self.state = State::ReplyData { option, reply, length };
                // A reply without data is complete: nothing more may come.
                self.on_reply_data(rest, output)
            }
            State::ReplyData { .. } => self.on_reply_data(rest, output),
            State::ExportName => {
                let Some(bytes) = self.gather.take(size_of::<ExportNameReply>(), rest) else {
                    return Ok(None);
                };
                let reply = ExportNameReply::read_from_bytes(bytes).expect("as many as asked for");
                self.export = Some((reply.size.get(), reply.flags.get()));
                if self.no_zeroes {
                    return self.ready().map(Some);
                }
                self.state = State::Padding { left: EXPORT_NAME_PADDING_BYTES };
                Ok(None)
            }
            State::Padding { left } => {
                let skipped = left.min(rest.len());
                *rest = &rest[skipped..];
                if skipped < left {
                    self.state = State::Padding { left: left - skipped };
                    return Ok(None);
                }
                self.ready().map(Some)
            }
        }
    }

    fn on_greeting(
        &mut self,
        greeting: &Greeting,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolError> {
        let (server_magic, option_magic) =
            (greeting.server_magic.get(), greeting.option_magic.get());
        ProtocolError::unless_equal(Field::ServerMagic, SERVER_MAGIC, server_magic)?;
        ProtocolError::unless_equal(Field::OptionMagic, OPTION_MAGIC, option_magic)?;
        let offered = greeting.flags.get();
        if offered & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(ProtocolError::NotAllowed {
                field: Field::HandshakeFlags,
                found: offered.into(),
            });
        }
        self.no_zeroes = offered & handshake_flag::NO_ZEROES != 0;
        let flags = offered & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        output.extend_from_slice(&u32::from(flags).to_be_bytes());
        match self.options.goal {
            ClientGoal::List => self.send_option(option_code::LIST, &[], output),
            ClientGoal::Connect { .. } if self.options.reply_style == ReplyStyle::Structured => {
                self.send_option(option_code::STRUCTURED_REPLY, &[], output);
            }
            ClientGoal::Connect { .. } => self.send_go(output),
        }
        Ok(())
    }

    fn check_reply_header(
        &mut self,
        option: u32,
        header: &OptionReplyHeader,
    ) -> Result<(u32, u32), ProtocolError> {
        let magic = header.magic.get();
        ProtocolError::unless_equal(Field::OptionReplyMagic, OPTION_REPLY_MAGIC, magic)?;
        let named = u64::from(header.option.get());
        ProtocolError::unless_equal(Field::OptionReplyOption, option.into(), named)?;
        let length = header.length.get();
        let limit = OPTION_REPLY_BYTES_MAX.into();
        ProtocolError::unless_at_most(Field::OptionReplyLength, limit, length.into())?;
        self.reply_count += 1;
        let (count, limit) = (self.reply_count.into(), OPTION_REPLY_COUNT_MAX.into());
        ProtocolError::unless_at_most(Field::OptionReplyCount, limit, count)?;
        Ok((header.reply.get(), length))
    }

    fn on_reply_data(
        &mut self,
        rest: &mut &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<ClientOutcome>, ProtocolError> {
        let State::ReplyData { option, reply, length } = self.state else {
            unreachable!("called in this state only");
        };
        let missing = length as usize - self.data.len();
        let (head, tail) = rest.split_at(missing.min(rest.len()));
        *rest = tail;
        self.data.extend_from_slice(head);
        if self.data.len() < length as usize {
            return Ok(None);
        }
        self.state = State::ReplyHeader { option };
        let mut data = core::mem::take(&mut self.data);
        let outcome = self.on_reply(option, reply, &data, output)?;
        data.clear();
        self.data = data;
        Ok(outcome)
    }

    fn on_reply(
        &mut self,
        option: u32,
        reply: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<ClientOutcome>, ProtocolError> {
        if reply == reply_code::ACK {
            ProtocolError::unless_equal(Field::OptionReplyLength, 0, data.len() as u64)?;
        }
        let failed = reply & reply_code::ERROR_BIT != 0;
        match (option, reply) {
            (option_code::STRUCTURED_REPLY, reply_code::ACK) => {
                self.reply_style = ReplyStyle::Structured;
                self.send_contexts_or_go(output);
            }
            (option_code::STRUCTURED_REPLY, _) if failed => self.send_go(output),
            (option_code::SET_META_CONTEXT, reply_code::META_CONTEXT) => {
                self.note_context(data)?;
            }
            (option_code::SET_META_CONTEXT, reply_code::ACK) => self.send_go(output),
            (option_code::SET_META_CONTEXT, _) if failed => {
                self.context_ids = [None; MetaContext::ALL.len()];
                self.send_go(output);
            }
            (option_code::GO, reply_code::INFO) => self.note_info(data)?,
            (option_code::GO, reply_code::ACK) => return self.ready().map(Some),
            (option_code::GO, reply_code::ERR_UNSUP) => self.send_export_name(output),
            (option_code::LIST, reply_code::SERVER) => {
                return parse_listed(data).map(|listed| Some(ClientOutcome::Listed(listed)));
            }
            (option_code::LIST, reply_code::ACK) => {
                self.send_option(option_code::ABORT, &[], output);
                return Ok(Some(ClientOutcome::ListEnd));
            }
            _ if failed => {
                self.send_option(option_code::ABORT, &[], output);
                // A message that is no text is not worth a second error.
                let message = String::from_utf8_lossy(data).into_owned();
                let reason = HandshakeRefusalReason::from_code(reply);
                return Ok(Some(ClientOutcome::Refused(HandshakeRefusal { reason, message })));
            }
            _ => {
                return Err(ProtocolError::NotAllowed {
                    field: Field::OptionReplyKind,
                    found: reply.into(),
                });
            }
        }
        Ok(None)
    }

    fn note_context(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let (id, name) = split_number::<4>(data)?;
        let id = u32::from_be_bytes(id);
        let name = parse_text(name)?;
        let wanted = self.wanted_contexts();
        let place = MetaContext::ALL
            .iter()
            .position(|context| wanted.contains(*context) && context.name() == name);
        // One that was not asked for will be refused when a chunk speaks of it.
        let Some(index) = place else { return Ok(()) };
        if self.context_ids.contains(&Some(id)) || self.context_ids[index].is_some() {
            return Err(ProtocolError::NotAllowed { field: Field::ChunkContext, found: id.into() });
        }
        self.context_ids[index] = Some(id);
        Ok(())
    }

    fn note_info(&mut self, data: &[u8]) -> Result<(), ProtocolError> {
        let (kind, _) = split_number::<2>(data)?;
        let check_length = |expected: usize| {
            let (expected, found) = (expected as u64, data.len() as u64);
            ProtocolError::unless_equal(Field::OptionReplyLength, expected, found)
        };
        match u16::from_be_bytes(kind) {
            info_code::EXPORT => {
                check_length(size_of::<InfoExport>())?;
                let info = InfoExport::read_from_bytes(data).expect("length was checked");
                self.export = Some((info.size.get(), info.flags.get()));
            }
            info_code::BLOCK_SIZE => {
                check_length(size_of::<InfoBlockSize>())?;
                let info = InfoBlockSize::read_from_bytes(data).expect("length was checked");
                let minimum = info.minimum.get();
                if !minimum.is_power_of_two() || minimum > BLOCK_MINIMUM_BYTES_MAX {
                    return Err(ProtocolError::NotAllowed {
                        field: Field::BlockMinimum,
                        found: minimum.into(),
                    });
                }
                self.block_bytes = minimum;
                self.preferred_block_bytes = info.preferred.get().max(minimum);
                self.payload_bytes_max = info.payload_max.get().clamp(minimum, PAYLOAD_BYTES_MAX);
            }
            // The rest is for people.
            _ => {}
        }
        Ok(())
    }

    fn ready(&self) -> Result<ClientOutcome, ProtocolError> {
        let Some((size_bytes, flags)) = self.export else {
            return Err(ProtocolError::Missing { field: Field::ExportInformation });
        };
        let mut contexts = ContextSet::EMPTY;
        for (context, id) in MetaContext::ALL.into_iter().zip(self.context_ids) {
            if id.is_some() {
                contexts.insert(context);
            }
        }
        // Without this bit the others mean nothing.
        let flags = if flags & transmission_flag::HAS_FLAGS == 0 { 0 } else { flags };
        let offers = Offers::new(flags);
        let common = Session {
            export_index: 0,
            size_bytes,
            logical_block_bytes: self.block_bytes,
            payload_bytes_max: self.payload_bytes_max,
            is_read_only: flags & transmission_flag::READ_ONLY != 0,
            supports_fast_zero: offers.fast_zero(),
            reply_style: self.reply_style,
            contexts,
        };
        Ok(ClientOutcome::Ready(ClientSession {
            common,
            preferred_block_bytes: self.preferred_block_bytes,
            offers,
            context_ids: self.context_ids,
        }))
    }

    fn export_name(&self) -> String {
        match &self.options.goal {
            ClientGoal::Connect { export_name, .. } => export_name.clone(),
            ClientGoal::List => String::new(),
        }
    }

    fn wanted_contexts(&self) -> ContextSet {
        match self.options.goal {
            ClientGoal::Connect { contexts, .. } => contexts,
            ClientGoal::List => ContextSet::EMPTY,
        }
    }

    fn send_contexts_or_go(&mut self, output: &mut Vec<u8>) {
        let contexts = self.wanted_contexts();
        if contexts.is_empty() {
            return self.send_go(output);
        }
        let name = self.export_name();
        let mut data = Vec::new();
        append_text(&name, &mut data);
        data.extend_from_slice(&(contexts.iter().count() as u32).to_be_bytes());
        for context in contexts.iter() {
            append_text(context.name(), &mut data);
        }
        self.send_option(option_code::SET_META_CONTEXT, &data, output);
    }

    fn send_go(&mut self, output: &mut Vec<u8>) {
        let name = self.export_name();
        let mut data = Vec::new();
        append_text(&name, &mut data);
        data.extend_from_slice(&1_u16.to_be_bytes());
        data.extend_from_slice(&info_code::BLOCK_SIZE.to_be_bytes());
        self.send_option(option_code::GO, &data, output);
    }

    fn send_export_name(&mut self, output: &mut Vec<u8>) {
        let name = self.export_name();
        self.send_option(option_code::EXPORT_NAME, name.as_bytes(), output);
        self.state = State::ExportName;
    }

    fn send_option(&mut self, option: u32, data: &[u8], output: &mut Vec<u8>) {
        let header = OptionHeader {
            magic: OPTION_MAGIC.into(),
            option: option.into(),
            length: u32::try_from(data.len()).expect("names are bounded").into(),
        };
        output.extend_from_slice(header.as_bytes());
        output.extend_from_slice(data);
        self.state = State::ReplyHeader { option };
    }
}

fn append_text(text: &str, data: &mut Vec<u8>) {
    data.extend_from_slice(&(text.len() as u32).to_be_bytes());
    data.extend_from_slice(text.as_bytes());
}

fn split_number<const N: usize>(data: &[u8]) -> Result<([u8; N], &[u8]), ProtocolError> {
    data.split_first_chunk::<N>().map(|(number, rest)| (*number, rest)).ok_or(
        ProtocolError::BelowLimit {
            field: Field::OptionReplyLength,
            limit: N as u64,
            found: data.len() as u64,
        },
    )
}

fn parse_text(bytes: &[u8]) -> Result<&str, ProtocolError> {
    let limit = STRING_BYTES_MAX as u64;
    ProtocolError::unless_at_most(Field::NameLength, limit, bytes.len() as u64)?;
    core::str::from_utf8(bytes).map_err(|error| ProtocolError::NotText {
        field: Field::Text,
        valid_bytes: error.valid_up_to(),
    })
}

fn parse_listed(data: &[u8]) -> Result<ListedExport, ProtocolError> {
    let (length, rest) = split_number::<4>(data)?;
    let length = u32::from_be_bytes(length);
    let Some((name, description)) = rest.split_at_checked(length as usize) else {
        return Err(ProtocolError::AboveLimit {
            field: Field::NameLength,
            limit: rest.len() as u64,
            found: length.into(),
        });
    };
    Ok(ListedExport {
        name: parse_text(name)?.to_string(),
        description: parse_text(description)?.to_string(),
    })
}
