//! The server's side of the fixed newstyle handshake.
//!
//! The client's flags, then options, each answered before the next is looked at, until one of them
//! chooses an export or ends the connection. Data of an option is kept only if we know the option
//! and only as it arrives, up to `OPTION_BYTES_MAX`; anything else is skipped. Oldstyle and TLS are
//! deliberately absent.

use alloc::string::String;
use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Field, ProtocolError};
use crate::export::{ExportInfo, find};
use crate::gather::Gather;
use crate::meta_context::{ContextSet, MetaContext};
use crate::option::{
    OptionData, OptionRefusal, append_ack, append_block_size, append_infos, append_meta_context,
    append_refusal, append_server, check_text, parse_info,
};
use crate::protocol::{
    EXPORT_NAME_PADDING_BYTES, ExportNameReply, Greeting, OPTION_BYTES_MAX, OPTION_COUNT_MAX,
    OPTION_MAGIC, OptionHeader, SERVER_MAGIC, SKIPPED_OPTION_BYTES_MAX, STRING_BYTES_MAX,
    handshake_flag, option_code,
};
use crate::session::{ReplyStyle, Session};
use crate::transmission::Intake;

const OFFERED_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;

/// How a handshake ended.
pub(crate) enum Outcome {
    Ready(Session),
    Aborted,
}

#[derive(Clone, Debug)]
pub(crate) struct Handshake {
    state: State,
    gather: Gather,
    /// Data of the option under way.
    data: Vec<u8>,
    option_count: u32,
    /// Bits of `handshake_flag` that the client answered with.
    client_flags: u16,
    reply_style: ReplyStyle,
    /// Contexts of the last SET_META_CONTEXT and the export they were selected for.
    selection: Option<Selection>,
}

#[derive(Clone, Debug)]
struct Selection {
    export_name: String,
    contexts: ContextSet,
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    /// Data of `option` is being collected, `length` bytes in all.
    OptionData {
        option: u32,
        length: u32,
    },
    /// Data of `option` is being skipped, `left` bytes still; then comes the answer.
    OptionSkip {
        option: u32,
        left: u32,
        answer: SkipAnswer,
    },
}

#[derive(Clone, Copy, Debug)]
enum SkipAnswer {
    Refuse(OptionRefusal),
    /// ABORT may have data, which means nothing.
    Abort,
}

impl Handshake {
    pub(crate) fn new(output: &mut Vec<u8>) -> Handshake {
        let greeting = Greeting {
            server_magic: SERVER_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: OFFERED_FLAGS.into(),
        };
        output.extend_from_slice(greeting.as_bytes());
        Handshake {
            state: State::ClientFlags,
            gather: Gather::new(),
            data: Vec::new(),
            option_count: 0,
            client_flags: 0,
            reply_style: ReplyStyle::Simple,
            selection: None,
        }
    }

    /// Consumes bytes up to the end of the option that ends the handshake.
    pub(crate) fn handle_bytes(
        &mut self,
        bytes: &[u8],
        intake: Intake,
        exports: &[ExportInfo],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Option<Outcome>), ProtocolError> {
        let mut rest = bytes;
        loop {
            let host = HostSide { intake, exports, output };
            let outcome = self.step(&mut rest, host)?;
            if outcome.is_some() || rest.is_empty() {
                return Ok((bytes.len() - rest.len(), outcome));
            }
        }
    }

    /// Goes on to the end of one message, or of `rest`.
    fn step(
        &mut self,
        rest: &mut &[u8],
        mut host: HostSide<'_>,
    ) -> Result<Option<Outcome>, ProtocolError> {
        if let State::ClientFlags = self.state {
            if let Some(bytes) = self.gather.take(size_of::<u32>(), rest) {
                let flags = u32::from_be_bytes(bytes.try_into().expect("as many as asked for"));
                self.client_flags = parse_client_flags(flags)?;
                self.state = State::OptionHeader;
            }
            return Ok(None);
        }
        if let State::OptionHeader = self.state {
            let Some(bytes) = self.gather.take(size_of::<OptionHeader>(), rest) else {
                return Ok(None);
            };
            let header = OptionHeader::read_from_bytes(bytes).expect("as many as asked for");
            self.state = self.begin_option(&header)?;
        }
        // An option without data is complete with its header: nothing more may come before the
        // client has its answer.
        match self.state {
            State::ClientFlags | State::OptionHeader => unreachable!("both were left above"),
            State::OptionData { option, length } => {
                let missing = length as usize - self.data.len();
                self.data.extend_from_slice(take_front(rest, missing));
                if self.data.len() < length as usize {
                    return Ok(None);
                }
                let mut data = core::mem::take(&mut self.data);
                let outcome = self.answer(option, &data, &mut host)?;
                data.clear();
                self.data = data;
                self.state = State::OptionHeader;
                Ok(outcome)
            }
            State::OptionSkip { option, left, answer } => {
                let left = left - take_front(rest, left as usize).len() as u32;
                if left > 0 {
                    self.state = State::OptionSkip { option, left, answer };
                    return Ok(None);
                }
                self.state = State::OptionHeader;
                Ok(match answer {
                    SkipAnswer::Refuse(refusal) => {
                        append_refusal(option, host.refusal_or(refusal), host.output);
                        None
                    }
                    SkipAnswer::Abort => {
                        append_ack(option, host.output);
                        Some(Outcome::Aborted)
                    }
                })
            }
        }
    }

    fn begin_option(&mut self, header: &OptionHeader) -> Result<State, ProtocolError> {
        ProtocolError::unless_equal(Field::OptionMagic, OPTION_MAGIC, header.magic.get())?;
        self.option_count += 1;
        let (count, limit) = (u64::from(self.option_count), u64::from(OPTION_COUNT_MAX));
        ProtocolError::unless_at_most(Field::OptionCount, limit, count)?;
        let (option, length) = (header.option.get(), header.length.get());
        if self.client_flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            // Without it the client cannot parse replies to options.
            let only = u64::from(option_code::EXPORT_NAME);
            ProtocolError::unless_equal(Field::Option, only, option.into())?;
        }
        if option == option_code::EXPORT_NAME {
            let limit = STRING_BYTES_MAX as u64;
            ProtocolError::unless_at_most(Field::ExportNameLength, limit, length.into())?;
            return Ok(State::OptionData { option, length });
        }
        let limit = SKIPPED_OPTION_BYTES_MAX.into();
        ProtocolError::unless_at_most(Field::OptionLength, limit, length.into())?;
        let skip = |answer| State::OptionSkip { option, left: length, answer };
        Ok(match option {
            option_code::ABORT => skip(SkipAnswer::Abort),
            option_code::STARTTLS => skip(SkipAnswer::Refuse(OptionRefusal::TLS)),
            option_code::LIST
            | option_code::INFO
            | option_code::GO
            | option_code::STRUCTURED_REPLY
            | option_code::LIST_META_CONTEXT
            | option_code::SET_META_CONTEXT => {
                if length <= OPTION_BYTES_MAX {
                    State::OptionData { option, length }
                } else {
                    skip(SkipAnswer::Refuse(OptionRefusal::too_big("option too long")))
                }
            }
            _ => skip(SkipAnswer::Refuse(OptionRefusal::UNKNOWN_OPTION)),
        })
    }

    /// Answers an option whose data is complete.
    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Option<Outcome>, ProtocolError> {
        if option == option_code::EXPORT_NAME {
            return self.answer_export_name(data, host).map(Some);
        }
        let result = match host.intake {
            Intake::ShuttingDown => Err(OptionRefusal::SHUTTING_DOWN),
            Intake::Open => match option {
                option_code::LIST => answer_list(data, host),
                option_code::INFO | option_code::GO => self.answer_info(option, data, host),
                option_code::STRUCTURED_REPLY => self.answer_structured_reply(data, host),
                option_code::LIST_META_CONTEXT => self.answer_list_meta_context(data, host),
                option_code::SET_META_CONTEXT => self.answer_set_meta_context(data, host),
                _ => unreachable!("data of other options is skipped"),
            },
        };
        match result {
            Ok(outcome) => Ok(outcome),
            Err(refusal) => {
                append_refusal(option, refusal, host.output);
                Ok(None)
            }
        }
    }

    /// This option has no error reply: what cannot be served ends the connection.
    fn answer_export_name(
        &self,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Outcome, ProtocolError> {
        if host.intake == Intake::ShuttingDown {
            return Err(ProtocolError::ShuttingDown);
        }
        let name = check_text(data).map_err(|_| ProtocolError::ExportUnknown)?;
        let (index, export) =
            offered(host.exports, name).map_err(|_| ProtocolError::ExportUnknown)?;
        if !export.serves_default_blocks() {
            return Err(ProtocolError::BlockSizeRequired);
        }
        let reply = ExportNameReply {
            size: export.size_bytes.into(),
            flags: export.transmission_flags(self.reply_style).into(),
        };
        host.output.extend_from_slice(reply.as_bytes());
        if self.client_flags & handshake_flag::NO_ZEROES == 0 {
            host.output.extend_from_slice(&[0; EXPORT_NAME_PADDING_BYTES]);
        }
        Ok(Outcome::Ready(self.session(index, export)))
    }

    fn answer_info(
        &self,
        option: u32,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Option<Outcome>, OptionRefusal> {
        let (name, wanted) = parse_info(data)?;
        let (index, export) = offered(host.exports, name)?;
        if !wanted.block_size && !export.serves_default_blocks() {
            // Telling the sizes all the same saves the client a round trip.
            append_block_size(option, export, host.output);
            return Err(OptionRefusal::BLOCK_SIZE_REQUIRED);
        }
        let flags = export.transmission_flags(self.reply_style);
        append_infos(option, export, flags, wanted, host.output);
        append_ack(option, host.output);
        let chooses = option == option_code::GO;
        Ok(chooses.then(|| Outcome::Ready(self.session(index, export))))
    }

    fn answer_structured_reply(
        &mut self,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Option<Outcome>, OptionRefusal> {
        OptionData::new(data).finish()?;
        self.reply_style = ReplyStyle::Structured;
        append_ack(option_code::STRUCTURED_REPLY, host.output);
        Ok(None)
    }

    fn answer_list_meta_context(
        &self,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Option<Outcome>, OptionRefusal> {
        let queries = self.parse_queries(data, host.exports, MetaContext::is_listed_by)?;
        for context in MetaContext::ALL {
            if queries.count == 0 || queries.matches.contains(context) {
                append_meta_context(option_code::LIST_META_CONTEXT, 0, context, host.output);
            }
        }
        append_ack(option_code::LIST_META_CONTEXT, host.output);
        Ok(None)
    }

    fn answer_set_meta_context(
        &mut self,
        data: &[u8],
        host: &mut HostSide<'_>,
    ) -> Result<Option<Outcome>, OptionRefusal> {
        // A selection that fails voids the earlier one too.
        self.selection = None;
        let queries = self.parse_queries(data, host.exports, MetaContext::is_selected_by)?;
        let option = option_code::SET_META_CONTEXT;
        for context in queries.matches.iter() {
            append_meta_context(option, context.id(), context, host.output);
        }
        append_ack(option, host.output);
        self.selection =
            Some(Selection { export_name: queries.export.name.clone(), contexts: queries.matches });
        Ok(None)
    }

    /// Data of both metadata context options. Queries of namespaces that we do not know match
    /// nothing, which is not an error.
    fn parse_queries<'a>(
        &self,
        data: &[u8],
        exports: &'a [ExportInfo],
        is_match: fn(MetaContext, &str) -> bool,
    ) -> Result<Queries<'a>, OptionRefusal> {
        if self.reply_style != ReplyStyle::Structured {
            return Err(OptionRefusal::invalid("metadata contexts need structured replies"));
        }
        let mut data = OptionData::new(data);
        let name = data.read_text()?;
        let count = data.read_u32()?;
        let mut matches = ContextSet::EMPTY;
        for _ in 0..count {
            let query = data.read_text()?;
            if !query.contains(':') {
                return Err(OptionRefusal::invalid("a query without a namespace"));
            }
            for context in MetaContext::ALL {
                if is_match(context, query) {
                    matches.insert(context);
                }
            }
        }
        data.finish()?;
        let (_, export) = offered(exports, name)?;
        Ok(Queries { export, count, matches })
    }

    fn session(&self, index: usize, export: &ExportInfo) -> Session {
        let contexts = match &self.selection {
            Some(selection) if selection.export_name == export.name => selection.contexts,
            Some(_) | None => ContextSet::EMPTY,
        };
        Session::new(index, export, self.reply_style, contexts)
    }
}

/// What the host hands in with the bytes.
struct HostSide<'a> {
    intake: Intake,
    exports: &'a [ExportInfo],
    output: &'a mut Vec<u8>,
}

impl HostSide<'_> {
    fn refusal_or(&self, refusal: OptionRefusal) -> OptionRefusal {
        match self.intake {
            Intake::Open => refusal,
            Intake::ShuttingDown => OptionRefusal::SHUTTING_DOWN,
        }
    }
}

struct Queries<'a> {
    export: &'a ExportInfo,
    count: u32,
    matches: ContextSet,
}

/// The export of a name, if clients may have it.
fn offered<'a>(
    exports: &'a [ExportInfo],
    name: &str,
) -> Result<(usize, &'a ExportInfo), OptionRefusal> {
    let (index, export) = find(exports, name).ok_or(OptionRefusal::UNKNOWN_EXPORT)?;
    match export.refusal {
        None => Ok((index, export)),
        Some(message) => Err(OptionRefusal::policy(message)),
    }
}

fn answer_list(data: &[u8], host: &mut HostSide<'_>) -> Result<Option<Outcome>, OptionRefusal> {
    OptionData::new(data).finish()?;
    for export in host.exports.iter().filter(|export| export.refusal.is_none()) {
        append_server(option_code::LIST, export, host.output);
    }
    append_ack(option_code::LIST, host.output);
    Ok(None)
}

fn parse_client_flags(flags: u32) -> Result<u16, ProtocolError> {
    match u16::try_from(flags) {
        Ok(flags) if flags & !OFFERED_FLAGS == 0 => Ok(flags),
        _ => Err(ProtocolError::UnknownBits {
            field: Field::ClientFlags,
            allowed: OFFERED_FLAGS.into(),
            found: flags.into(),
        }),
    }
}

/// Moves at most `count` bytes from the front of `rest`.
fn take_front<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(count.min(rest.len()));
    *rest = tail;
    head
}
