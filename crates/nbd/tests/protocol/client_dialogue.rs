//! What the client says and understands, byte by byte, and every way in which a server can be
//! wrong.

use forebay_nbd::{
    ClientEvent, ClientGoal, ClientOptions, ClientSession, Command, ContextSet, Cookie, Durability,
    Field, HandshakeRefusalReason, HolePolicy, ListedExport, MetaContext, ProtocolError,
    REQUESTS_IN_FLIGHT_MAX, ReadChunks, RefusalReason, ReplyError, ReplyStyle, Request,
    RequestError, StatusExtent, StatusExtents, ZeroSpeed,
};

use crate::harness::{Client, VOLUME_BYTES, connect};
use crate::wire::{
    OptionReply, RawChunk, RawRequest, Wire, ack, context_data, go_data, greeting, option,
    simple_reply,
};

const UNSUP: u32 = (1 << 31) + 1;
const UNKNOWN: u32 = (1 << 31) + 6;
/// Everything but READ_ONLY and ROTATIONAL.
const ALL_FLAGS: u16 = 0b1101_1110_1101;

fn refused(option: u32, reply: u32, message: &str) -> Vec<u8> {
    OptionReply { option, reply }.with(message.as_bytes())
}

fn info_export(flags: u16) -> Vec<u8> {
    let data = Wire::new().u16(0).u64(VOLUME_BYTES).u16(flags).0;
    OptionReply { option: 7, reply: 3 }.with(&data)
}

fn info_blocks(minimum: u32, preferred: u32) -> Vec<u8> {
    let data = Wire::new().u16(3).u32(minimum).u32(preferred).u32(32 << 20).0;
    OptionReply { option: 7, reply: 3 }.with(&data)
}

fn client_flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

impl Client {
    /// Hands in bytes that lead to no event and returns the answer.
    fn says(&mut self, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(self.feed(bytes), Ok(vec![]));
        std::mem::take(&mut self.output)
    }

    fn ready(style: ReplyStyle, flags: u16) -> (Client, ClientSession) {
        let mut client = Client::new(connect("volume", style));
        client.says(&greeting());
        if style == ReplyStyle::Structured {
            client.says(&ack(8));
            let entry = OptionReply { option: 10, reply: 4 };
            client.says(&entry.with(b"\0\0\0\x05base:allocation"));
            client.says(&entry.with(b"\0\0\0\x06x-forebay:cache"));
            client.says(&ack(10));
        }
        client.says(&info_export(flags));
        let events = client.feed(&ack(7)).unwrap();
        let [ClientEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
        (client, session)
    }

    fn send(&mut self, cookie: u64, command: Command) {
        let (offset_bytes, length_bytes) =
            if command == Command::Flush { (0, 0) } else { (8192, 1024) };
        let request = Request { cookie: Cookie(cookie), command, offset_bytes, length_bytes };
        self.connection.encode_request(&request).unwrap();
    }
}

const READ: Command = Command::Read { chunks: ReadChunks::Any };
const WRITE: Command = Command::Write { durability: Durability::Completed };
const STATUS: Command = Command::BlockStatus { extents: StatusExtents::Any };

fn done(cookie: u64, result: Result<(), ReplyError>) -> ClientEvent {
    ClientEvent::Done { cookie: Cookie(cookie), result }
}

#[test]
fn the_whole_handshake() {
    let mut client = Client::new(connect("volume", ReplyStyle::Structured));
    assert_eq!(client.says(&greeting()), [client_flags(3), option(8, &[])].concat());
    let contexts = context_data("volume", &["base:allocation", "x-forebay:cache"]);
    assert_eq!(client.says(&ack(8)), option(10, &contexts));
    let entry = OptionReply { option: 10, reply: 4 };
    assert_eq!(client.says(&entry.with(b"\0\0\0\x05x-forebay:cache")), []);
    assert_eq!(client.says(&entry.with(b"\0\0\0\x06x-other:thing")), []);
    assert_eq!(client.says(&ack(10)), option(7, &go_data("volume", &[3])));
    assert_eq!(client.says(&info_blocks(4096, 65536)), []);
    assert_eq!(client.says(&OptionReply { option: 7, reply: 3 }.with(b"\0\x09new")), []);
    assert_eq!(client.says(&info_export(ALL_FLAGS)), []);
    assert!(client.connection.session().is_none());
    let events = client.feed(&ack(7)).unwrap();
    let [ClientEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
    assert_eq!(client.connection.session(), Some(&session));
    assert_eq!(session.common.size_bytes, VOLUME_BYTES);
    assert_eq!(session.common.logical_block_bytes, 4096);
    assert_eq!(session.preferred_block_bytes, 65536);
    assert_eq!(session.common.reply_style, ReplyStyle::Structured);
    assert_eq!(session.common.contexts.iter().collect::<Vec<_>>(), [MetaContext::Cache]);
    assert!(!session.common.is_read_only);
    let offers = session.offers;
    assert!(offers.flush() && offers.forced_unit_access() && offers.trim() && offers.cache());
    assert!(offers.write_zeroes() && offers.fast_zero() && offers.single_chunk());
    assert!(offers.multi_conn() && !offers.rotational());
}

#[test]
fn an_old_server_is_served_by_export_name() {
    for (server_flags, padding) in [(1_u16, 124), (3, 0)] {
        let mut client = Client::new(connect("volume", ReplyStyle::Structured));
        let hello = Wire::new().bytes(b"NBDMAGICIHAVEOPT").u16(server_flags).0;
        client.says(&hello);
        let go = option(7, &go_data("volume", &[3]));
        assert_eq!(client.says(&refused(8, UNSUP, "no")), go);
        assert_eq!(client.says(&refused(7, UNSUP, "")), option(1, b"volume"));
        let reply = Wire::new().u64(VOLUME_BYTES).u16(3).bytes(&vec![0; padding]).0;
        let events = client.feed(&reply).unwrap();
        let [ClientEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
        assert_eq!(session.common.reply_style, ReplyStyle::Simple);
        assert_eq!(session.common.logical_block_bytes, 512);
        assert!(session.common.is_read_only);
    }
}

#[test]
fn contexts_are_given_up_when_refused() {
    let mut client = Client::new(connect("volume", ReplyStyle::Structured));
    client.says(&greeting());
    client.says(&ack(8));
    let entry = OptionReply { option: 10, reply: 4 };
    client.says(&entry.with(b"\0\0\0\x05x-forebay:cache"));
    client.says(&refused(10, UNSUP, "changed my mind"));
    client.says(&info_export(ALL_FLAGS));
    let events = client.feed(&ack(7)).unwrap();
    let [ClientEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
    assert!(session.common.contexts.is_empty());
    let status = Request { cookie: Cookie(1), command: STATUS, offset_bytes: 0, length_bytes: 512 };
    let error = RequestError::WouldBeRefused(RefusalReason::NoContext);
    assert_eq!(client.connection.encode_request(&status), Err(error));
}

#[test]
fn a_refused_export_is_left_in_order() {
    let mut client = Client::new(connect("volume", ReplyStyle::Simple));
    client.says(&greeting());
    let events = client.feed(&refused(7, UNKNOWN, "gone")).unwrap();
    let [ClientEvent::Refused(refusal)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(refusal.reason, HandshakeRefusalReason::UnknownExport);
    assert_eq!(refusal.to_string(), "the server has no such export: gone");
    assert_eq!(client.output, option(2, &[]));
    assert_eq!(client.feed(&ack(2)), Ok(vec![]));
}

#[test]
fn exports_are_listed() {
    let options = ClientOptions { goal: ClientGoal::List, reply_style: ReplyStyle::Simple };
    let mut client = Client::new(options);
    assert_eq!(client.says(&greeting()), [client_flags(3), option(3, &[])].concat());
    let entry = OptionReply { option: 3, reply: 2 };
    let replies = [entry.with(b"\0\0\0\x01afirst"), entry.with(b"\0\0\0\0"), ack(3)].concat();
    let listed = |name: &str, description: &str| {
        ClientEvent::Listed(ListedExport {
            name: name.to_string(),
            description: description.to_string(),
        })
    };
    let expected = vec![listed("a", "first"), listed("", ""), ClientEvent::ListEnd];
    assert_eq!(client.feed(&replies), Ok(expected));
    assert_eq!(client.output, option(2, &[]));
}

#[test]
fn a_wrong_server_is_named() {
    use Field as F;
    use ProtocolError as E;
    let info = OptionReply { option: 7, reply: 3 };
    let magic = |field, expected, found| E::Mismatch { field, expected, found };
    let (server, options) = (u64::from_be_bytes(*b"NBDMAGIC"), u64::from_be_bytes(*b"IHAVEOPT"));
    let wrong_magic = magic(F::ServerMagic, server, u64::from_be_bytes(*b"SSH-2.0-"));
    let oldstyle = Wire::new().bytes(b"NBDMAGIC").u64(0x0000_4202_8186_1253).u16(0).0;
    for (bytes, error) in [
        (b"SSH-2.0-OpenSSH_9.2p".to_vec(), wrong_magic),
        (oldstyle, magic(F::OptionMagic, options, 0x0000_4202_8186_1253)),
        (
            Wire::new().bytes(b"NBDMAGICIHAVEOPT").u16(0).0,
            E::NotAllowed { field: F::HandshakeFlags, found: 0 },
        ),
    ] {
        let mut client = Client::new(connect("volume", ReplyStyle::Simple));
        assert_eq!(client.feed(&bytes), Err(error));
        assert_eq!(client.feed(&bytes), Err(E::AfterEnd));
    }
    let no_magic = Wire::new().u64(7).u32(7).u32(1).u32(0).0;
    let long = Wire::new().u64(0x0003_e889_0455_65a9).u32(7).u32(3).u32(16385).0;
    for (bytes, error) in [
        (no_magic, magic(F::OptionReplyMagic, 0x0003_e889_0455_65a9, 7)),
        (ack(8), magic(F::OptionReplyOption, 7, 8)),
        (long, E::AboveLimit { field: F::OptionReplyLength, limit: 16384, found: 16385 }),
        (OptionReply { option: 7, reply: 1 }.with(b"x"), magic(F::OptionReplyLength, 0, 1)),
        (
            OptionReply { option: 7, reply: 2 }.with(b""),
            E::NotAllowed { field: F::OptionReplyKind, found: 2 },
        ),
        (ack(7), E::Missing { field: F::ExportInformation }),
        (info.with(b"\0"), E::BelowLimit { field: F::OptionReplyLength, limit: 2, found: 1 }),
        (info.with(b"\0\0abc"), magic(F::OptionReplyLength, 12, 5)),
        (info.with(b"\0\x03abc"), magic(F::OptionReplyLength, 14, 5)),
        (info_blocks(0, 4096), E::NotAllowed { field: F::BlockMinimum, found: 0 }),
        (info_blocks(513, 4096), E::NotAllowed { field: F::BlockMinimum, found: 513 }),
        (info_blocks(1 << 17, 1 << 17), E::NotAllowed { field: F::BlockMinimum, found: 1 << 17 }),
    ] {
        let mut client = Client::new(connect("volume", ReplyStyle::Simple));
        client.says(&greeting());
        assert_eq!(client.feed(&bytes), Err(error));
    }
}

#[test]
fn a_wrong_list_is_named() {
    let entry = OptionReply { option: 3, reply: 2 };
    for (bytes, error) in [
        (
            entry.with(b"\0\0\0\x05name"),
            ProtocolError::AboveLimit { field: Field::NameLength, limit: 4, found: 5 },
        ),
        (
            entry.with(b"\0\0\0\x02a\xff"),
            ProtocolError::NotText { field: Field::Text, valid_bytes: 1 },
        ),
        (
            entry.with(&[&b"\0\0\0\0"[..], &[b'd'; 4097]].concat()),
            ProtocolError::AboveLimit { field: Field::NameLength, limit: 4096, found: 4097 },
        ),
    ] {
        let options = ClientOptions { goal: ClientGoal::List, reply_style: ReplyStyle::Simple };
        let mut client = Client::new(options);
        client.says(&greeting());
        assert_eq!(client.feed(&bytes), Err(error));
    }
    let options = ClientOptions { goal: ClientGoal::List, reply_style: ReplyStyle::Simple };
    let mut client = Client::new(options);
    client.says(&greeting());
    let endless = entry.with(b"\0\0\0\0").repeat(16 * 1024 + 1);
    let limit = 16 * 1024;
    let error =
        ProtocolError::AboveLimit { field: Field::OptionReplyCount, limit, found: limit + 1 };
    assert_eq!(client.feed(&endless), Err(error));
}

#[test]
fn requests_on_the_wire() {
    let (mut client, _) = Client::ready(ReplyStyle::Structured, ALL_FLAGS);
    let durable = Durability::ForcedUnitAccess;
    let zeroes = Command::WriteZeroes {
        durability: durable,
        hole: HolePolicy::KeepAllocated,
        speed: ZeroSpeed::FastOnly,
    };
    for (cookie, (request, command, flags)) in [
        (READ, 0, 0),
        (Command::Read { chunks: ReadChunks::One }, 0, 4),
        (WRITE, 1, 0),
        (Command::Write { durability: durable }, 1, 1),
        (Command::Trim { durability: durable }, 4, 1),
        (Command::Cache, 5, 0),
        (zeroes, 6, 0b10011),
        (STATUS, 7, 0),
        (Command::BlockStatus { extents: StatusExtents::One }, 7, 8),
    ]
    .into_iter()
    .enumerate()
    {
        let cookie = cookie as u64;
        let expected = RawRequest { flags, command, cookie, offset: 4096, length: 512 };
        let request = Request {
            cookie: Cookie(cookie),
            command: request,
            offset_bytes: 4096,
            length_bytes: 512,
        };
        let bytes = client.connection.encode_request(&request).unwrap();
        assert_eq!(bytes[..], expected.bytes());
    }
    assert_eq!(client.connection.requests_in_flight(), 9);
    let expected = RawRequest { command: 2, ..RawRequest::default() };
    assert_eq!(client.connection.encode_disconnect().unwrap()[..], expected.bytes());
    assert_eq!(client.connection.encode_disconnect(), None);
    assert_eq!(client.feed(b"whatever"), Ok(vec![]));
}

#[test]
fn requests_that_are_not_sent() {
    let try_send = |flags: u16, command: Command| {
        let (mut client, _) = Client::ready(ReplyStyle::Simple, flags);
        let (offset_bytes, length_bytes) =
            if command == Command::Flush { (0, 0) } else { (0, 512) };
        let request = Request { cookie: Cookie(1), command, offset_bytes, length_bytes };
        client.connection.encode_request(&request).map(|_| ())
    };
    let fua = Durability::ForcedUnitAccess;
    let fast = Command::WriteZeroes {
        durability: Durability::Completed,
        hole: HolePolicy::MayPunch,
        speed: ZeroSpeed::FastOnly,
    };
    for (command, flag) in [
        (Command::Read { chunks: ReadChunks::One }, 7),
        (Command::Write { durability: fua }, 3),
        (Command::Flush, 2),
        (Command::Trim { durability: Durability::Completed }, 5),
        (Command::Cache, 10),
        (fast, 6),
        (fast, 11),
    ] {
        assert_eq!(try_send(ALL_FLAGS & !(1 << flag), command), Err(RequestError::NotOffered));
        assert_eq!(try_send(ALL_FLAGS, command), Ok(()));
        // Without HAS_FLAGS there is nothing.
        assert_eq!(try_send(ALL_FLAGS & !1, command), Err(RequestError::NotOffered));
    }
    let read_only = Err(RequestError::WouldBeRefused(RefusalReason::ReadOnly));
    assert_eq!(try_send(ALL_FLAGS | 2, WRITE), read_only);

    let mut client = Client::new(connect("volume", ReplyStyle::Simple));
    let mut request =
        Request { cookie: Cookie(0), command: READ, offset_bytes: 0, length_bytes: 512 };
    assert_eq!(client.connection.encode_request(&request), Err(RequestError::NotReady));
    let (mut client, _) = Client::ready(ReplyStyle::Simple, ALL_FLAGS);
    request.offset_bytes = 1;
    let misaligned = RequestError::WouldBeRefused(RefusalReason::Misaligned);
    assert_eq!(client.connection.encode_request(&request), Err(misaligned));
    request.offset_bytes = 0;
    client.connection.encode_request(&request).unwrap();
    assert_eq!(client.connection.encode_request(&request), Err(RequestError::CookieInUse));
    for cookie in 1..REQUESTS_IN_FLIGHT_MAX as u64 {
        request.cookie = Cookie(cookie);
        client.connection.encode_request(&request).unwrap();
    }
    request.cookie = Cookie(u64::MAX);
    assert_eq!(client.connection.encode_request(&request), Err(RequestError::TooManyInFlight));
}

#[test]
fn simple_replies_in_any_order() {
    let (mut client, _) = Client::ready(ReplyStyle::Simple, ALL_FLAGS);
    for (cookie, command) in [(1, READ), (2, WRITE), (3, READ), (4, Command::Flush)] {
        client.send(cookie, command);
    }
    let replies = [
        simple_reply(28, 2),
        simple_reply(0, 3),
        vec![3; 1024],
        simple_reply(0, 4),
        simple_reply(9999, 1),
    ];
    let data = ClientEvent::Data { cookie: Cookie(3), offset_in_request: 0, length_bytes: 1024 };
    let expected = vec![
        done(2, Err(ReplyError::NoSpace)),
        data,
        done(3, Ok(())),
        done(4, Ok(())),
        done(1, Err(ReplyError::Invalid)),
    ];
    assert_eq!(client.feed(&replies.concat()), Ok(expected));
    assert_eq!(client.payload, vec![3; 1024]);
    assert_eq!(client.connection.requests_in_flight(), 0);
}

fn chunk(kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    RawChunk { flags: 0, kind, cookie }.with(payload)
}

fn last_chunk(kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    RawChunk { flags: 1, kind, cookie }.with(payload)
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    Wire::new().u64(offset).bytes(bytes).0
}

fn hole(offset: u64, length: u32) -> Vec<u8> {
    Wire::new().u64(offset).u32(length).0
}

#[test]
fn chunks_of_several_reads_interleave() {
    let (mut client, _) = Client::ready(ReplyStyle::Structured, ALL_FLAGS);
    for (cookie, command) in [(1, READ), (2, READ), (3, WRITE), (4, READ)] {
        client.send(cookie, command);
    }
    let error = Wire::new().u32(5).u16(3).bytes(b"bad").0;
    let error_offset = [&error[..], &[0; 8]].concat();
    let replies = [
        chunk(1, 1, &data(8704, &[1; 512])),
        chunk(2, 2, &hole(8192, 512)),
        simple_reply(0, 3),
        last_chunk(1, 1, &data(8192, &[2; 512])),
        chunk(0x8002, 4, &error_offset),
        chunk(1, 2, &data(8704, &[3; 512])),
        last_chunk(0, 2, &[]),
        chunk(0x8077, 4, &Wire::new().u32(28).u16(0).0),
        last_chunk(0, 4, &[]),
    ];
    let piece = |cookie, offset_in_request| ClientEvent::Data {
        cookie: Cookie(cookie),
        offset_in_request,
        length_bytes: 512,
    };
    let expected = vec![
        piece(1, 512),
        ClientEvent::Hole { cookie: Cookie(2), offset_in_request: 0, length_bytes: 512 },
        done(3, Ok(())),
        piece(1, 0),
        done(1, Ok(())),
        piece(2, 512),
        done(2, Ok(())),
        done(4, Err(ReplyError::Io)),
    ];
    assert_eq!(client.feed(&replies.concat()), Ok(expected));
}

#[test]
fn block_status_is_told_extent_by_extent() {
    let (mut client, session) = Client::ready(ReplyStyle::Structured, ALL_FLAGS);
    assert_eq!(session.common.contexts.iter().collect::<Vec<_>>(), MetaContext::ALL);
    client.send(1, STATUS);
    let replies = [
        chunk(5, 1, &Wire::new().u32(6).u32(512).u32(2).u32(9000).u32(1).0),
        last_chunk(5, 1, &Wire::new().u32(5).u32(1024).u32(3).0),
    ];
    let extent = |context, length_bytes, flags| ClientEvent::Extent {
        cookie: Cookie(1),
        context,
        extent: StatusExtent { length_bytes, flags },
    };
    let expected = vec![
        extent(MetaContext::Cache, 512, 2),
        extent(MetaContext::Cache, 9000, 1),
        extent(MetaContext::Allocation, 1024, 3),
        done(1, Ok(())),
    ];
    assert_eq!(client.feed(&replies.concat()), Ok(expected));
}

#[test]
fn wrong_chunks_are_named() {
    use Field as F;
    use ProtocolError as E;
    let not = |field, found| E::NotAllowed { field, found };
    let above = |field, limit, found| E::AboveLimit { field, limit, found };
    let below = |field, limit, found| E::BelowLimit { field, limit, found };
    let equal = |field, expected, found| E::Mismatch { field, expected, found };
    let single = Command::Read { chunks: ReadChunks::One };
    let status_one = Command::BlockStatus { extents: StatusExtents::One };
    let extents = |context: u32, lengths: &[u32]| {
        let wire = Wire::new().u32(context);
        lengths.iter().fold(wire, |wire, length| wire.u32(*length).u32(0)).0
    };
    let half = data(8192, &[0; 512]);
    for (command, bytes, error) in [
        (READ, vec![0; 16], equal(F::ReplyMagic, 0x6744_6698, 0)),
        (READ, simple_reply(0, 1), equal(F::ReadReplyStyle, 0x668e_33ef, 0x6744_6698)),
        (WRITE, simple_reply(0, 2), not(F::Cookie, 2)),
        (READ, chunk(1, 9, &half), not(F::Cookie, 9)),
        (READ, last_chunk(0, 1, &[]), below(F::ReadBytes, 1024, 0)),
        (READ, last_chunk(1, 1, &half), below(F::ReadBytes, 1024, 512)),
        (WRITE, last_chunk(0, 1, b"x"), equal(F::ChunkLength, 0, 1)),
        (WRITE, chunk(0, 1, &[]), equal(F::ChunkFlags, 1, 0)),
        (WRITE, chunk(1, 1, &half), not(F::ChunkKind, 1)),
        (READ, chunk(3, 1, &half), not(F::ChunkKind, 3)),
        (READ, chunk(1, 1, &[0; 8]), below(F::ChunkLength, 9, 8)),
        (READ, chunk(1, 1, &data(8191, b"xx")), not(F::ChunkOffset, 8191)),
        (READ, chunk(1, 1, &data(9216, b"xx")), not(F::ChunkOffset, 9216)),
        (READ, chunk(1, 1, &data(u64::MAX, b"x")), not(F::ChunkOffset, u64::MAX)),
        (READ, chunk(1, 1, &data(9215, b"xx")), above(F::ChunkDataLength, 1, 2)),
        (READ, chunk(2, 1, &hole(8192, 1025)), above(F::ChunkDataLength, 1024, 1025)),
        (READ, chunk(2, 1, &hole(8192, 0)), below(F::ChunkDataLength, 1, 0)),
        (READ, chunk(2, 1, &[0; 13]), equal(F::ChunkLength, 12, 13)),
        (
            READ,
            [chunk(2, 1, &hole(8192, 1024)), chunk(2, 1, &hole(8192, 1))].concat(),
            above(F::ReadBytes, 1024, 1025),
        ),
        (single, [chunk(1, 1, &half), chunk(1, 1, &half)].concat(), equal(F::ReadBytes, 0, 512)),
        (WRITE, chunk(0x8001, 1, &[0; 5]), below(F::ChunkLength, 6, 5)),
        (WRITE, chunk(0x8001, 1, &[1; 4161]), above(F::ChunkLength, 4160, 4161)),
        (
            WRITE,
            chunk(0x8001, 1, &Wire::new().u32(5).u16(2).bytes(b"x").0),
            above(F::ChunkMessageLength, 1, 2),
        ),
        (WRITE, chunk(0x8001, 1, &[0; 6]), below(F::ChunkError, 1, 0)),
        (STATUS, simple_reply(0, 1), equal(F::StatusChunkCount, 2, 0)),
        (STATUS, last_chunk(5, 1, &extents(5, &[512])), equal(F::StatusChunkCount, 2, 1)),
        (STATUS, chunk(5, 1, &extents(7, &[512])), not(F::ChunkContext, 7)),
        (STATUS, chunk(5, 1, &extents(5, &[512])).repeat(2), not(F::ChunkContext, 5)),
        (STATUS, chunk(5, 1, &extents(5, &[0])), below(F::ExtentLength, 1, 0)),
        (STATUS, chunk(5, 1, &extents(5, &[])), below(F::ChunkLength, 12, 4)),
        (STATUS, chunk(5, 1, &[0; 13]), not(F::ChunkLength, 13)),
        (status_one, chunk(5, 1, &extents(5, &[1, 1])), above(F::ChunkLength, 12, 20)),
        (status_one, chunk(5, 1, &extents(5, &[1025])), above(F::ExtentLength, 1024, 1025)),
    ] {
        let (mut client, _) = Client::ready(ReplyStyle::Structured, ALL_FLAGS);
        client.send(1, command);
        assert_eq!(client.feed(&bytes), Err(error), "{command:?}");
        assert_eq!(client.feed(&[]), Err(E::AfterEnd));
    }
}

#[test]
fn chunks_need_structured_replies() {
    let (mut client, _) = Client::ready(ReplyStyle::Simple, ALL_FLAGS);
    client.send(1, WRITE);
    let (expected, found) = (0x6744_6698, 0x668e_33ef);
    let error = ProtocolError::Mismatch { field: Field::ReplyMagic, expected, found };
    assert_eq!(client.feed(&last_chunk(0, 1, &[])), Err(error));
}

#[test]
fn contexts_must_have_numbers_of_their_own() {
    let mut client = Client::new(connect("volume", ReplyStyle::Structured));
    client.says(&greeting());
    client.says(&ack(8));
    let entry = OptionReply { option: 10, reply: 4 };
    client.says(&entry.with(b"\0\0\0\x05x-forebay:cache"));
    let error = ProtocolError::NotAllowed { field: Field::ChunkContext, found: 5 };
    assert_eq!(client.feed(&entry.with(b"\0\0\0\x05base:allocation")), Err(error));
}

#[test]
fn no_contexts_are_asked_for_in_vain() {
    let goal =
        ClientGoal::Connect { export_name: "volume".to_string(), contexts: ContextSet::EMPTY };
    let options = ClientOptions { goal, reply_style: ReplyStyle::Structured };
    let mut client = Client::new(options);
    client.says(&greeting());
    assert_eq!(client.says(&ack(8)), option(7, &go_data("volume", &[3])));
}
