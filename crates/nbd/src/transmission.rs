//! Validation: everything that a request must satisfy before the engine sees it.
//!
//! This is the only place where requests are judged. A request that passes lies within the export,
//! is aligned, has a length that its command allows, and carries no flag that was not offered. One
//! that fails gets exactly one reason; reasons are looked for in the order in which they stand in
//! [`RefusalReason`]. Nothing here touches payload or keeps state.

use zerocopy::FromBytes;

use crate::error::{Field, ProtocolError, ReplyError};
use crate::protocol::{
    REQUEST_HEADER_BYTES, REQUEST_MAGIC, RequestHeader, SKIPPED_PAYLOAD_BYTES_MAX, command_code,
    command_flag,
};
use crate::request::{
    Command, Cookie, Durability, HolePolicy, ReadChunks, Request, StatusExtents, ZeroSpeed,
};
use crate::session::{ReplyStyle, Session};

/// Why a request was refused. A host logs each reason once and counts the rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum RefusalReason {
    /// The server stops.
    ShuttingDown,
    /// The command code is not one that we serve.
    UnknownCommand,
    /// A flag is unknown, was not offered, or does not belong to the command.
    UnknownFlags,
    /// A flush with an offset or a length.
    FlushWithRange,
    /// Block status without a selected context.
    NoContext,
    /// A write to a read-only export.
    ReadOnly,
    /// No bytes.
    ZeroLength,
    /// Longer than we advertise, with structured replies.
    ReadTooLong,
    /// Longer than we advertise, with simple replies.
    SimpleReadTooLong,
    /// Longer than we advertise.
    WriteTooLong,
    /// Offset or length is no multiple of the logical block.
    Misaligned,
    /// The range of a write or write zeroes ends behind the export, or behind 2^64.
    WriteBeyondEnd,
    /// Any other range ends behind the export, or behind 2^64.
    BeyondEnd,
}

impl RefusalReason {
    /// All of them, for counters.
    pub const ALL: [RefusalReason; 13] = [
        RefusalReason::ShuttingDown,
        RefusalReason::UnknownCommand,
        RefusalReason::UnknownFlags,
        RefusalReason::FlushWithRange,
        RefusalReason::NoContext,
        RefusalReason::ReadOnly,
        RefusalReason::ZeroLength,
        RefusalReason::ReadTooLong,
        RefusalReason::SimpleReadTooLong,
        RefusalReason::WriteTooLong,
        RefusalReason::Misaligned,
        RefusalReason::WriteBeyondEnd,
        RefusalReason::BeyondEnd,
    ];

    /// What the client hears.
    #[must_use]
    pub fn error(self) -> ReplyError {
        match self {
            RefusalReason::ShuttingDown => ReplyError::Shutdown,
            RefusalReason::UnknownCommand
            | RefusalReason::UnknownFlags
            | RefusalReason::FlushWithRange
            | RefusalReason::NoContext
            | RefusalReason::ZeroLength
            | RefusalReason::SimpleReadTooLong
            | RefusalReason::WriteTooLong
            | RefusalReason::Misaligned
            | RefusalReason::BeyondEnd => ReplyError::Invalid,
            RefusalReason::ReadOnly => ReplyError::NotPermitted,
            RefusalReason::ReadTooLong => ReplyError::Overflow,
            RefusalReason::WriteBeyondEnd => ReplyError::NoSpace,
        }
    }

    /// Short name for counters and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RefusalReason::ShuttingDown => "shutting_down",
            RefusalReason::UnknownCommand => "unknown_command",
            RefusalReason::UnknownFlags => "unknown_flags",
            RefusalReason::FlushWithRange => "flush_with_range",
            RefusalReason::NoContext => "no_context",
            RefusalReason::ReadOnly => "read_only",
            RefusalReason::ZeroLength => "zero_length",
            RefusalReason::ReadTooLong => "read_too_long",
            RefusalReason::SimpleReadTooLong => "simple_read_too_long",
            RefusalReason::WriteTooLong => "write_too_long",
            RefusalReason::Misaligned => "misaligned",
            RefusalReason::WriteBeyondEnd => "write_beyond_end",
            RefusalReason::BeyondEnd => "beyond_end",
        }
    }
}

/// A request that the engine must not see. The host answers it with
/// [`Session::encode_error_reply`]; its payload, if any, is skipped by the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Names the request in the reply.
    pub cookie: Cookie,
    /// What is wrong with it.
    pub reason: RefusalReason,
    /// Command code as it came.
    pub command: u16,
    /// Flags as they came.
    pub flags: u16,
    /// Offset as it came.
    pub offset_bytes: u64,
    /// Length as it came.
    pub length_bytes: u32,
}

impl Refusal {
    /// What the client hears.
    #[must_use]
    pub fn error(&self) -> ReplyError {
        self.reason.error()
    }

    /// Bytes of payload that follow the refused header.
    pub(crate) fn payload_bytes(&self) -> u32 {
        if self.command == command_code::WRITE { self.length_bytes } else { 0 }
    }
}

/// Whether new requests are taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Intake {
    Open,
    ShuttingDown,
}

/// A header that was understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Accepted(Request),
    Refused(Refusal),
    /// DISC: no reply, and nothing comes after it.
    Disconnect,
}

/// Parses and judges a request header.
pub(crate) fn judge(
    session: &Session,
    intake: Intake,
    bytes: &[u8; REQUEST_HEADER_BYTES],
) -> Result<Verdict, ProtocolError> {
    let header = RequestHeader::ref_from_bytes(bytes).expect("sizes are asserted to be equal");
    ProtocolError::unless_equal(
        Field::RequestMagic,
        REQUEST_MAGIC.into(),
        header.magic.get().into(),
    )?;
    if header.command == command_code::DISC {
        return Ok(Verdict::Disconnect);
    }
    if header.command == command_code::WRITE {
        ProtocolError::unless_at_most(
            Field::WriteLength,
            SKIPPED_PAYLOAD_BYTES_MAX.into(),
            header.length.get().into(),
        )?;
    }
    let cookie = Cookie(header.cookie.get());
    let (offset_bytes, length_bytes) = (header.offset.get(), header.length.get());
    Ok(match accept(session, intake, header) {
        Ok(command) => Verdict::Accepted(Request { cookie, command, offset_bytes, length_bytes }),
        Err(reason) => Verdict::Refused(Refusal {
            cookie,
            reason,
            command: header.command.get(),
            flags: header.flags.get(),
            offset_bytes,
            length_bytes,
        }),
    })
}

fn accept(
    session: &Session,
    intake: Intake,
    header: &RequestHeader,
) -> Result<Command, RefusalReason> {
    if intake == Intake::ShuttingDown {
        return Err(RefusalReason::ShuttingDown);
    }
    let command = parse_command(session, header)?;
    check_range(session, command, header.offset.get(), header.length.get())?;
    Ok(command)
}

/// Judges everything about a request but its flags. The client asks the same before it sends.
pub(crate) fn check_range(
    session: &Session,
    command: Command,
    offset_bytes: u64,
    length_bytes: u32,
) -> Result<(), RefusalReason> {
    let writes = match command {
        Command::Flush => {
            let is_zero = offset_bytes == 0 && length_bytes == 0;
            return if is_zero { Ok(()) } else { Err(RefusalReason::FlushWithRange) };
        }
        Command::BlockStatus { .. } if session.contexts.is_empty() => {
            return Err(RefusalReason::NoContext);
        }
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } => true,
        Command::Read { .. } | Command::Cache | Command::BlockStatus { .. } => false,
    };
    if writes && session.is_read_only {
        return Err(RefusalReason::ReadOnly);
    }
    if length_bytes == 0 {
        return Err(RefusalReason::ZeroLength);
    }
    if length_bytes > session.payload_bytes_max {
        check_long(session, command)?;
    }
    let block_bytes = u64::from(session.logical_block_bytes);
    if !offset_bytes.is_multiple_of(block_bytes)
        || !u64::from(length_bytes).is_multiple_of(block_bytes)
    {
        return Err(RefusalReason::Misaligned);
    }
    match offset_bytes.checked_add(length_bytes.into()) {
        Some(end_bytes) if end_bytes <= session.size_bytes => Ok(()),
        // TRIM is a write, but the protocol wants EINVAL for it: it needs no space.
        _ if matches!(command, Command::Write { .. } | Command::WriteZeroes { .. }) => {
            Err(RefusalReason::WriteBeyondEnd)
        }
        _ => Err(RefusalReason::BeyondEnd),
    }
}

/// Only commands that carry data are bounded: the others cost the same whatever their length.
fn check_long(session: &Session, command: Command) -> Result<(), RefusalReason> {
    match command {
        // EOVERFLOW invites the client to ask in pieces; the protocol reserves it for clients that
        // may use DF, which needs structured replies.
        Command::Read { .. } if session.reply_style == ReplyStyle::Structured => {
            Err(RefusalReason::ReadTooLong)
        }
        Command::Read { .. } => Err(RefusalReason::SimpleReadTooLong),
        Command::Write { .. } => Err(RefusalReason::WriteTooLong),
        Command::Flush
        | Command::Trim { .. }
        | Command::Cache
        | Command::WriteZeroes { .. }
        | Command::BlockStatus { .. } => Ok(()),
    }
}

fn parse_command(session: &Session, header: &RequestHeader) -> Result<Command, RefusalReason> {
    let flags = header.flags.get();
    let has = |flag: u16| flags & flag != 0;
    let durability =
        if has(command_flag::FUA) { Durability::ForcedUnitAccess } else { Durability::Completed };
    let (command, own_flags) = match header.command.get() {
        command_code::READ => {
            let chunks = if has(command_flag::DF) { ReadChunks::One } else { ReadChunks::Any };
            let is_structured = session.reply_style == ReplyStyle::Structured;
            (Command::Read { chunks }, if is_structured { command_flag::DF } else { 0 })
        }
        command_code::WRITE => (Command::Write { durability }, 0),
        command_code::FLUSH => (Command::Flush, 0),
        command_code::TRIM => (Command::Trim { durability }, 0),
        command_code::CACHE => (Command::Cache, 0),
        command_code::WRITE_ZEROES => {
            let keep = has(command_flag::NO_HOLE);
            let hole = if keep { HolePolicy::KeepAllocated } else { HolePolicy::MayPunch };
            let fast = has(command_flag::FAST_ZERO);
            let speed = if fast { ZeroSpeed::FastOnly } else { ZeroSpeed::Any };
            let offered = if session.supports_fast_zero { command_flag::FAST_ZERO } else { 0 };
            let command = Command::WriteZeroes { durability, hole, speed };
            (command, command_flag::NO_HOLE | offered)
        }
        command_code::BLOCK_STATUS => {
            let one = has(command_flag::REQ_ONE);
            let extents = if one { StatusExtents::One } else { StatusExtents::Any };
            (Command::BlockStatus { extents }, command_flag::REQ_ONE)
        }
        _ => return Err(RefusalReason::UnknownCommand),
    };
    // FUA is valid with every command once it was offered, and means nothing to those that do not
    // write: clients exist that send it along.
    if flags & !(own_flags | command_flag::FUA) != 0 {
        return Err(RefusalReason::UnknownFlags);
    }
    Ok(command)
}
