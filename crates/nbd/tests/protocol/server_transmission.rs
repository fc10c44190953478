//! Requests and replies byte by byte, and each reason to refuse a request.

use forebay_nbd::{
    Command, ContextExtents, Cookie, Durability, Field, HolePolicy, MetaContext, PAYLOAD_BYTES_MAX,
    ProtocolError, REPLY_HEADER_BYTES_MAX, ReadChunks, RefusalReason, ReplyError, ReplyStyle,
    Request, SKIPPED_PAYLOAD_BYTES_MAX, ServerEvent, Session, StatusExtent, StatusExtents,
    ZeroSpeed,
};

use crate::harness::{Server, VOLUME_BYTES};
use crate::wire::{RawChunk, RawRequest, Wire, simple_reply};

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

use ReplyStyle::{Simple, Structured};

/// The verdict on a request without its payload.
fn judge(export: &str, style: ReplyStyle, request: RawRequest) -> Result<Request, RefusalReason> {
    let (mut server, _) = Server::ready(export, style);
    verdict(&server.feed(&RawRequest { cookie: 7, ..request }.bytes()).unwrap())
}

fn verdict(events: &[ServerEvent]) -> Result<Request, RefusalReason> {
    match *events {
        [ServerEvent::Request(request)] => {
            assert_eq!(request.cookie, Cookie(7));
            Ok(request)
        }
        [ServerEvent::Refused(refusal)] => {
            assert_eq!(refusal.cookie, Cookie(7));
            assert_eq!(refusal.error(), refusal.reason.error());
            Err(refusal.reason)
        }
        _ => panic!("{events:?}"),
    }
}

fn raw(command: u16, flags: u16, offset: u64, length: u32) -> RawRequest {
    RawRequest { flags, command, cookie: 0, offset, length }
}

#[test]
fn commands_and_flags_are_understood() {
    let (completed, durable) = (Durability::Completed, Durability::ForcedUnitAccess);
    let zeroes = |durability, hole, speed| Command::WriteZeroes { durability, hole, speed };
    for (code, flags, expected) in [
        (READ, 0, Command::Read { chunks: ReadChunks::Any }),
        (READ, FUA, Command::Read { chunks: ReadChunks::Any }),
        (READ, DF, Command::Read { chunks: ReadChunks::One }),
        (WRITE, 0, Command::Write { durability: completed }),
        (WRITE, FUA, Command::Write { durability: durable }),
        (TRIM, 0, Command::Trim { durability: completed }),
        (TRIM, FUA, Command::Trim { durability: durable }),
        (CACHE, 0, Command::Cache),
        (WRITE_ZEROES, 0, zeroes(completed, HolePolicy::MayPunch, ZeroSpeed::Any)),
        (WRITE_ZEROES, NO_HOLE, zeroes(completed, HolePolicy::KeepAllocated, ZeroSpeed::Any)),
        (WRITE_ZEROES, FUA, zeroes(durable, HolePolicy::MayPunch, ZeroSpeed::Any)),
        (WRITE_ZEROES, FAST_ZERO, zeroes(completed, HolePolicy::MayPunch, ZeroSpeed::FastOnly)),
        (BLOCK_STATUS, 0, Command::BlockStatus { extents: StatusExtents::Any }),
        (BLOCK_STATUS, REQ_ONE, Command::BlockStatus { extents: StatusExtents::One }),
    ] {
        let request = judge("full", Structured, raw(code, flags, 512, 1024)).unwrap();
        assert_eq!(request.command, expected);
        assert_eq!((request.offset_bytes, request.length_bytes), (512, 1024));
        assert_eq!(request.payload_bytes(), if code == WRITE { 1024 } else { 0 });
    }
    let request = judge("full", Structured, raw(FLUSH, FUA, 0, 0)).unwrap();
    assert_eq!(request.command, Command::Flush);
}

type Case = (&'static str, ReplyStyle, RawRequest, RefusalReason, u32);

/// Requests that are refused, and the error number that the client gets.
fn refusals() -> Vec<Case> {
    use RefusalReason as R;
    let long = PAYLOAD_BYTES_MAX + 512;
    let end = VOLUME_BYTES;
    let wraps = 0_u64.wrapping_sub(512);
    vec![
        ("volume", Simple, raw(8, 0, 0, 512), R::UnknownCommand, 22),
        ("volume", Simple, raw(0xffff, 0, 0, 512), R::UnknownCommand, 22),
        ("volume", Simple, raw(READ, DF, 0, 512), R::UnknownFlags, 22),
        ("volume", Structured, raw(READ, NO_HOLE, 0, 512), R::UnknownFlags, 22),
        ("volume", Structured, raw(WRITE, DF, 0, 512), R::UnknownFlags, 22),
        ("volume", Structured, raw(WRITE, 0x8000, 0, 512), R::UnknownFlags, 22),
        ("volume", Simple, raw(WRITE_ZEROES, FAST_ZERO, 0, 512), R::UnknownFlags, 22),
        ("volume", Simple, raw(CACHE, 32, 0, 512), R::UnknownFlags, 22),
        ("volume", Simple, raw(FLUSH, 0, 512, 0), R::FlushWithRange, 22),
        ("volume", Simple, raw(FLUSH, 0, 0, 512), R::FlushWithRange, 22),
        ("volume", Simple, raw(BLOCK_STATUS, 0, 0, 512), R::NoContext, 22),
        ("large", Simple, raw(WRITE, 0, 0, 4096), R::ReadOnly, 1),
        ("large", Simple, raw(TRIM, 0, 0, 4096), R::ReadOnly, 1),
        ("large", Simple, raw(WRITE_ZEROES, 0, 0, 4096), R::ReadOnly, 1),
        ("volume", Simple, raw(READ, 0, 0, 0), R::ZeroLength, 22),
        ("volume", Simple, raw(WRITE, 0, 0, 0), R::ZeroLength, 22),
        ("volume", Simple, raw(TRIM, 0, 0, 0), R::ZeroLength, 22),
        ("volume", Structured, raw(READ, 0, 0, long), R::ReadTooLong, 75),
        ("volume", Simple, raw(READ, 0, 0, long), R::SimpleReadTooLong, 22),
        ("volume", Simple, raw(WRITE, 0, 0, PAYLOAD_BYTES_MAX + 1), R::WriteTooLong, 22),
        ("volume", Simple, raw(READ, 0, 1, 512), R::Misaligned, 22),
        ("volume", Simple, raw(WRITE, 0, 0, 513), R::Misaligned, 22),
        ("large", Simple, raw(READ, 0, 512, 4096), R::Misaligned, 22),
        ("large", Simple, raw(READ, 0, 0, 512), R::Misaligned, 22),
        ("volume", Simple, raw(WRITE, 0, end, 512), R::WriteBeyondEnd, 28),
        ("volume", Simple, raw(WRITE_ZEROES, 0, end - 512, 1024), R::WriteBeyondEnd, 28),
        ("volume", Simple, raw(WRITE, 0, wraps, 512), R::WriteBeyondEnd, 28),
        ("volume", Simple, raw(READ, 0, end - 512, 1024), R::BeyondEnd, 22),
        ("volume", Simple, raw(READ, 0, wraps, 1024), R::BeyondEnd, 22),
        ("volume", Simple, raw(TRIM, 0, end, 512), R::BeyondEnd, 22),
        ("volume", Simple, raw(CACHE, 0, end, 512), R::BeyondEnd, 22),
        ("volume", Structured, raw(BLOCK_STATUS, 0, end, 512), R::BeyondEnd, 22),
    ]
}

#[test]
fn requests_are_judged_by_the_size_that_an_export_has_now() {
    let request = |command| RawRequest { cookie: 7, ..raw(command, 0, VOLUME_BYTES, 512) };
    let (mut server, session) = Server::ready("volume", Simple);
    let read = server.feed(&request(READ).bytes()).unwrap();
    assert_eq!(verdict(&read), Err(RefusalReason::BeyondEnd));
    server.connection.resize(VOLUME_BYTES + 512);
    assert_eq!(server.connection.session().unwrap().size_bytes, session.size_bytes + 512);
    assert!(verdict(&server.feed(&request(READ).bytes()).unwrap()).is_ok());
    let behind = RawRequest { length: 1024, ..request(TRIM) };
    let trim = server.feed(&behind.bytes()).unwrap();
    assert_eq!(verdict(&trim), Err(RefusalReason::BeyondEnd));
    // In the handshake there is nothing to judge yet.
    let mut greeted = Server::greeted();
    greeted.connection.resize(0);
    assert!(greeted.connection.session().is_none());
}

#[test]
fn each_refusal() {
    for (export, style, request, reason, code) in refusals() {
        let found = judge(export, style, request);
        assert_eq!(found, Err(reason), "{export} {style:?} {}", request.command);
        assert_eq!(reason.error().code(), code);
    }
}

#[test]
fn reasons_have_names_of_their_own() {
    let mut names: Vec<_> = RefusalReason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RefusalReason::ALL.len());
}

#[test]
fn the_edges_are_inside() {
    let last = VOLUME_BYTES - 512;
    for request in [
        raw(READ, 0, last, 512),
        raw(WRITE, 0, last, 512),
        raw(READ, 0, 0, PAYLOAD_BYTES_MAX),
        raw(WRITE, 0, 0, PAYLOAD_BYTES_MAX),
        // What carries no data may be as long as the export.
        raw(TRIM, 0, 0, VOLUME_BYTES as u32),
        raw(WRITE_ZEROES, 0, 0, VOLUME_BYTES as u32),
        raw(CACHE, 0, 0, VOLUME_BYTES as u32),
    ] {
        judge("volume", Simple, request).unwrap();
    }
}

#[test]
fn shutdown_refuses_requests() {
    let (mut server, _) = Server::ready("volume", Simple);
    server.connection.begin_shutdown();
    let write = RawRequest { cookie: 7, ..raw(WRITE, 0, 0, 512) }.bytes();
    let events = server.feed(&[&write[..], &[1; 512]].concat()).unwrap();
    assert_eq!(verdict(&events), Err(RefusalReason::ShuttingDown));
    assert_eq!(RefusalReason::ShuttingDown.error().code(), 108);
    let events = server.feed(&raw(DISC, 0, 0, 0).bytes()).unwrap();
    assert_eq!(events, [ServerEvent::Disconnect]);
}

#[test]
fn payload_is_the_hosts() {
    let (mut server, _) = Server::ready("volume", Simple);
    let write = raw(WRITE, 0, 0, 1024).bytes();
    let mut output = Vec::new();
    let (consumed, event) =
        server.connection.handle_bytes(&write, &server.exports, &mut output).unwrap();
    assert_eq!(consumed, 28);
    assert!(matches!(event, Some(ServerEvent::Request(_))));
    for taken in [0, 1000, 24] {
        assert!(server.connection.payload_bytes_pending() > 0);
        let nothing = server.connection.handle_bytes(&[9; 9], &server.exports, &mut output);
        assert_eq!(nothing, Ok((0, None)));
        server.connection.payload_taken(taken);
    }
    assert_eq!(server.connection.payload_bytes_pending(), 0);
    assert_eq!(server.feed(&raw(READ, 0, 0, 512).bytes()).unwrap().len(), 1);
}

#[test]
#[should_panic(expected = "1025 bytes of payload taken, 1024 were pending")]
fn taking_too_much_payload_is_our_mistake() {
    let (mut server, _) = Server::ready("volume", Simple);
    server.feed(&raw(WRITE, 0, 0, 1024).bytes()).unwrap();
    server.connection.payload_taken(1025);
}

#[test]
fn payload_of_a_refused_write_is_skipped() {
    let (mut server, _) = Server::ready("volume", Simple);
    let refused = RawRequest { cookie: 7, ..raw(WRITE, 0, 1, 4096) }.bytes();
    let read = RawRequest { cookie: 7, ..raw(READ, 0, 0, 512) }.bytes();
    let events = server.feed(&[&refused[..], &[0x25; 4096], &read].concat()).unwrap();
    assert_eq!(verdict(&events[..1]), Err(RefusalReason::Misaligned));
    assert!(verdict(&events[1..]).is_ok());
    assert_eq!(server.payload, []);
}

#[test]
fn payload_that_the_host_refuses_is_skipped() {
    let (mut server, _) = Server::ready("volume", Simple);
    let mut output = Vec::new();
    let write = raw(WRITE, 0, 0, 1024).bytes();
    server.connection.handle_bytes(&write, &server.exports, &mut output).unwrap();
    server.connection.payload_taken(24);
    server.connection.skip_payload();
    assert_eq!(server.connection.payload_bytes_pending(), 0);
    let read = RawRequest { cookie: 7, ..raw(READ, 0, 0, 512) }.bytes();
    let events = server.feed(&[&[1; 1000], &read[..]].concat()).unwrap();
    assert!(verdict(&events).is_ok());
}

#[test]
fn a_long_write_is_skipped_and_a_longer_one_ends_the_connection() {
    let (mut server, _) = Server::ready("volume", Structured);
    let longest = raw(WRITE, 0, 0, SKIPPED_PAYLOAD_BYTES_MAX);
    let events = server.feed(&RawRequest { cookie: 7, ..longest }.bytes()).unwrap();
    assert_eq!(verdict(&events), Err(RefusalReason::WriteTooLong));
    let piece = vec![0; 1 << 20];
    for _ in 0..SKIPPED_PAYLOAD_BYTES_MAX >> 20 {
        assert_eq!(server.feed(&piece), Ok(vec![]));
    }
    let longer = raw(WRITE, 0, 0, SKIPPED_PAYLOAD_BYTES_MAX + 1).bytes();
    let limit = SKIPPED_PAYLOAD_BYTES_MAX.into();
    let error = ProtocolError::AboveLimit { field: Field::WriteLength, limit, found: limit + 1 };
    assert_eq!(server.feed(&longer), Err(error));
    assert_eq!(server.feed(&longer), Err(ProtocolError::AfterEnd));
}

#[test]
fn garbage_is_named() {
    let (mut server, _) = Server::ready("volume", Simple);
    let error = ProtocolError::Mismatch {
        field: Field::RequestMagic,
        expected: 0x2560_9513,
        found: 0x4745_5420,
    };
    assert_eq!(server.feed(b"GET /index.html HTTP/1.1\r\n\r\n"), Err(error));
    assert_eq!(error.to_string(), "request magic: found 0x47455420, expected 0x25609513");
}

#[test]
fn disconnect_ends_everything() {
    let (mut server, _) = Server::ready("volume", Simple);
    let bytes = [raw(DISC, 0, 0, 0).bytes(), vec![1, 2, 3]].concat();
    let mut output = Vec::new();
    let result = server.connection.handle_bytes(&bytes, &server.exports, &mut output);
    assert_eq!(result, Ok((28, Some(ServerEvent::Disconnect))));
    let result = server.connection.handle_bytes(&bytes[28..], &server.exports, &mut output);
    assert_eq!(result, Err(ProtocolError::AfterEnd));
}

/// Bytes of a reply.
fn reply(encode: impl FnOnce(&mut [u8; REPLY_HEADER_BYTES_MAX]) -> usize) -> Vec<u8> {
    let mut buffer = [0xaa; REPLY_HEADER_BYTES_MAX];
    let length = encode(&mut buffer);
    buffer[..length].to_vec()
}

#[test]
fn simple_replies() {
    let (_, session) = Server::ready("volume", Simple);
    let cookie = Cookie(0x0102_0304_0506_0708);
    let read = reply(|out| session.encode_read_reply_header(cookie, 4096, 512, out));
    assert_eq!(read, simple_reply(0, cookie.0));
    assert_eq!(reply(|out| session.encode_done_reply(cookie, out)), simple_reply(0, cookie.0));
    let error = reply(|out| session.encode_error_reply(cookie, ReplyError::NoSpace, out));
    assert_eq!(error, simple_reply(28, cookie.0));
}

#[test]
fn structured_replies() {
    let (_, session) = Server::ready("volume", Structured);
    let cookie = Cookie(9);
    let read = reply(|out| session.encode_read_reply_header(cookie, 4096, 2, out));
    let chunk = |kind, payload: &[u8]| RawChunk { flags: 1, kind, cookie: 9 }.with(payload);
    let expected = chunk(1, &Wire::new().u64(4096).bytes(b"ab").0);
    assert_eq!([&read[..], b"ab"].concat(), expected);
    assert_eq!(reply(|out| session.encode_done_reply(cookie, out)), chunk(0, &[]));
    let error = reply(|out| session.encode_error_reply(cookie, ReplyError::Io, out));
    assert_eq!(error, chunk(0x8001, &Wire::new().u32(5).u16(0).0));
}

fn status_request(extents: StatusExtents) -> Request {
    let command = Command::BlockStatus { extents };
    Request { cookie: Cookie(9), command, offset_bytes: 0, length_bytes: 4096 }
}

fn status_reply(session: &Session, extents: StatusExtents, given: &[(u32, u32)]) -> Vec<u8> {
    let given: Vec<_> = given
        .iter()
        .map(|(length_bytes, flags)| StatusExtent { length_bytes: *length_bytes, flags: *flags })
        .collect();
    let replies = MetaContext::ALL.map(|context| ContextExtents { context, extents: &given });
    let mut out = vec![0xee];
    session.append_block_status(&status_request(extents), &replies, &mut out);
    assert_eq!(out.remove(0), 0xee);
    out
}

/// Both chunks of a reply that says the same in both contexts.
fn status_chunks(extents: &[(u32, u32)]) -> Vec<u8> {
    let payload = |context: u32| {
        let wire = Wire::new().u32(context);
        extents.iter().fold(wire, |wire, (length, flags)| wire.u32(*length).u32(*flags)).0
    };
    let chunk = RawChunk { flags: 0, kind: 5, cookie: 9 };
    [chunk.with(&payload(1)), RawChunk { flags: 1, ..chunk }.with(&payload(2))].concat()
}

#[test]
fn block_status_replies() {
    let (_, session) = Server::ready("volume", Structured);
    let any = StatusExtents::Any;
    for (given, told) in [
        (&[(4096, 1)][..], &[(4096, 1)][..]),
        (&[(512, 1), (3584, 2)], &[(512, 1), (3584, 2)]),
        // Equal neighbours are joined, unless their length does not fit.
        (&[(512, 1), (512, 1), (512, 0)], &[(1024, 1), (512, 0)]),
        (&[(512, 1), (u32::MAX, 1)], &[(512, 1), (u32::MAX, 1)]),
        // The last one may reach behind the range; nothing may begin there.
        (&[(512, 1), (8192, 2), (512, 0)], &[(512, 1), (8192, 2)]),
        (&[(4096, 1), (512, 2)], &[(4096, 1)]),
    ] {
        assert_eq!(status_reply(&session, any, given), status_chunks(told));
    }
    for (given, told) in [
        (&[(512, 1), (512, 1), (512, 0)][..], (1024, 1)),
        (&[(8192, 2)], (4096, 2)),
        (&[(2048, 2), (8192, 2)], (4096, 2)),
    ] {
        assert_eq!(status_reply(&session, StatusExtents::One, given), status_chunks(&[told]));
    }
}

#[test]
#[should_panic(expected = "assertion")]
fn a_context_that_is_left_out_is_our_mistake() {
    let (_, session) = Server::ready("volume", Structured);
    let extents = &[StatusExtent { length_bytes: 512, flags: 0 }];
    let replies = [ContextExtents { context: MetaContext::Cache, extents }];
    session.append_block_status(&status_request(StatusExtents::Any), &replies, &mut Vec::new());
}
