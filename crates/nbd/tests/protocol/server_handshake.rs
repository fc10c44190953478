//! Recorded dialogues of the handshake, byte by byte, with each way to be refused.

use forebay_nbd::{
    ExportError, Field, MetaContext, OPTION_BYTES_MAX, OPTION_COUNT_MAX, ProtocolError, ReplyStyle,
    SKIPPED_OPTION_BYTES_MAX, ServerEvent,
};

use crate::harness::{Server, VOLUME_BYTES, exports};
use crate::wire::{OptionReply, Wire, ack, context_data, go_data, option};

const ERROR: u32 = 1 << 31;
const UNSUP: u32 = ERROR + 1;
const POLICY: u32 = ERROR + 2;
const INVALID: u32 = ERROR + 3;
const UNKNOWN: u32 = ERROR + 6;
const SHUTDOWN: u32 = ERROR + 7;
const BLOCK_SIZE_REQD: u32 = ERROR + 8;
const TOO_BIG: u32 = ERROR + 9;

/// HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE.
const VOLUME_FLAGS: u16 = 0b101_0110_1101;
const DF: u16 = 1 << 7;

fn info_export(flags: u16) -> Vec<u8> {
    Wire::new().u16(0).u64(VOLUME_BYTES).u16(flags).0
}

fn info_blocks(minimum: u32, preferred: u32) -> Vec<u8> {
    Wire::new().u16(3).u32(minimum).u32(preferred).u32(32 << 20).0
}

/// Kind and message of the only reply.
fn refusal(option: u32, bytes: &[u8]) -> u32 {
    let reply = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
    let message = &bytes[20..];
    assert_eq!(bytes, OptionReply { option, reply }.with(message));
    assert!(!message.is_empty() && std::str::from_utf8(message).is_ok());
    reply
}

#[test]
fn go_tells_size_flags_and_blocks() {
    let mut server = Server::greeted();
    let events = server.feed(&option(7, &go_data("volume", &[3]))).unwrap();
    let [ServerEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
    assert_eq!((session.export_index, session.reply_style), (0, ReplyStyle::Simple));
    assert!(session.contexts.is_empty());
    let info = OptionReply { option: 7, reply: 3 };
    let expected =
        [info.with(&info_export(VOLUME_FLAGS)), info.with(&info_blocks(512, 4096)), ack(7)];
    assert_eq!(server.output, expected.concat());
}

#[test]
fn go_without_block_size_works_with_512_byte_blocks() {
    let mut server = Server::greeted();
    let events = server.feed(&option(7, &go_data("volume", &[]))).unwrap();
    assert!(matches!(events[..], [ServerEvent::Ready(_)]));
}

#[test]
fn info_tells_names_and_stays_in_the_handshake() {
    let mut server = Server::greeted();
    server.ask(8, &[]);
    let reply = server.ask(6, &go_data("full", &[1, 2, 3, 77]));
    let info = OptionReply { option: 6, reply: 3 };
    let flags = VOLUME_FLAGS | DF | 1 << 4 | 1 << 11;
    let expected = [
        info.with(&info_export(flags)),
        info.with(b"\0\x01full"),
        info.with(b"\0\x02a volume"),
        info.with(&info_blocks(512, 65536)),
        ack(6),
    ];
    assert_eq!(reply, expected.concat());
    assert!(server.connection.session().is_none());
}

#[test]
fn read_only_exports_offer_no_writes() {
    let mut server = Server::greeted();
    let reply = server.ask(6, &go_data("large", &[3]));
    // HAS_FLAGS, READ_ONLY, FLUSH, FUA, CACHE.
    let expected = OptionReply { option: 6, reply: 3 }.with(&info_export(0b100_0000_1111));
    assert_eq!(reply[..expected.len()], expected);
}

#[test]
fn large_blocks_must_be_asked_for() {
    for option in [6, 7] {
        let mut server = Server::greeted();
        let reply = server.ask(option, &go_data("large", &[0]));
        let told = OptionReply { option, reply: 3 }.with(&info_blocks(4096, 4096));
        let (head, tail) = reply.split_at(told.len());
        assert_eq!(head, told);
        assert_eq!(refusal(option, tail), BLOCK_SIZE_REQD);
    }
    let mut server = Server::greeted();
    assert_eq!(server.feed(&option(1, b"large")), Err(ProtocolError::BlockSizeRequired));
    assert_eq!(server.feed(&[0]), Err(ProtocolError::AfterEnd));
}

#[test]
fn export_name_with_and_without_padding() {
    for (client_flags, padding) in [(3_u32, 0), (1, 124), (2, 0), (0, 124)] {
        let mut server = Server::new();
        assert_eq!(server.feed(&client_flags.to_be_bytes()), Ok(vec![]));
        let events = server.feed(&option(1, b"volume")).unwrap();
        assert!(matches!(events[..], [ServerEvent::Ready(_)]));
        let expected = Wire::new().u64(VOLUME_BYTES).u16(VOLUME_FLAGS).bytes(&vec![0; padding]).0;
        assert_eq!(server.output, expected);
    }
}

#[test]
fn export_name_has_no_error_reply() {
    for name in [&b"nothing"[..], b"", b"volume\0", b"\xff"] {
        let mut server = Server::greeted();
        assert_eq!(server.feed(&option(1, name)), Err(ProtocolError::ExportUnknown));
        assert_eq!(server.output, []);
    }
    let mut server = Server::greeted();
    let error =
        ProtocolError::AboveLimit { field: Field::ExportNameLength, limit: 4096, found: 4097 };
    assert_eq!(server.feed(&option(1, &[b'a'; 4097])), Err(error));
}

#[test]
fn the_empty_name_is_the_only_export_or_none() {
    let mut server = Server::greeted();
    assert_eq!(refusal(7, &server.ask(7, &go_data("", &[3]))), UNKNOWN);
    server.exports.truncate(1);
    let events = server.feed(&option(7, &go_data("", &[3]))).unwrap();
    assert!(matches!(events[..], [ServerEvent::Ready(_)]));

    let mut server = Server::greeted();
    server.exports[2].name.clear();
    let events = server.feed(&option(7, &go_data("", &[3]))).unwrap();
    let [ServerEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
    assert_eq!(session.export_index, 2);
}

#[test]
fn list_names_and_describes() {
    let mut server = Server::greeted();
    let entry = OptionReply { option: 3, reply: 2 };
    let expected = [
        entry.with(b"\0\0\0\x06volumea volume"),
        entry.with(b"\0\0\0\x05large"),
        entry.with(b"\0\0\0\x04fulla volume"),
        ack(3),
    ];
    assert_eq!(server.ask(3, &[]), expected.concat());
    assert_eq!(refusal(3, &server.ask(3, b"x")), INVALID);
    server.exports.clear();
    assert_eq!(server.ask(3, &[]), ack(3));
}

#[test]
fn what_is_not_to_be_had_is_refused_with_words_and_not_listed() {
    let mut server = Server::greeted();
    server.exports.truncate(1);
    server.exports[0].refusal = Some("somebody else has it");
    for name in ["volume", ""] {
        let reply = server.ask(7, &go_data(name, &[3]));
        assert_eq!(refusal(7, &reply), POLICY);
        assert!(reply.ends_with(b"somebody else has it"));
    }
    assert_eq!(server.ask(3, &[]), ack(3));
    assert_eq!(server.feed(&option(1, b"volume")), Err(ProtocolError::ExportUnknown));
}

#[test]
fn abort_is_acknowledged() {
    for data in [&b""[..], b"ignored"] {
        let mut server = Server::greeted();
        assert_eq!(server.feed(&option(2, data)), Ok(vec![ServerEvent::Aborted]));
        assert_eq!(server.output, ack(2));
        assert_eq!(server.feed(&[]), Err(ProtocolError::AfterEnd));
    }
}

#[test]
fn unknown_options_and_tls_are_unsupported() {
    let mut server = Server::greeted();
    for code in [0, 4, 5, 11, 77, u32::MAX] {
        assert_eq!(refusal(code, &server.ask(code, b"")), UNSUP);
        assert_eq!(refusal(code, &server.ask(code, &[7; 1000])), UNSUP);
    }
    assert_eq!(server.ask(8, &[]), ack(8));
}

#[test]
fn malformed_info_is_invalid() {
    let mut server = Server::greeted();
    let good = go_data("volume", &[3]);
    for cut in 0..good.len() {
        assert_eq!(refusal(7, &server.ask(7, &good[..cut])), INVALID, "cut at {cut}");
    }
    let longer = [&good[..], &[0]].concat();
    assert_eq!(refusal(7, &server.ask(7, &longer)), INVALID);
    let huge_name = Wire::new().u32(u32::MAX).bytes(b"volume").u16(0).0;
    assert_eq!(refusal(7, &server.ask(7, &huge_name)), INVALID);
    assert_eq!(refusal(7, &server.ask(7, &go_data("vol\0ume", &[]))), INVALID);
    let not_text = Wire::new().u32(1).bytes(b"\xff").u16(0).0;
    assert_eq!(refusal(7, &server.ask(7, &not_text)), INVALID);
    assert_eq!(refusal(7, &server.ask(7, &go_data(&"n".repeat(4097), &[]))), TOO_BIG);
    assert_eq!(refusal(7, &server.ask(7, &go_data("nothing", &[]))), UNKNOWN);
}

#[test]
fn structured_replies_take_no_data() {
    let mut server = Server::greeted();
    assert_eq!(refusal(8, &server.ask(8, b"x")), INVALID);
    let contexts = context_data("volume", &["base:allocation"]);
    assert_eq!(refusal(10, &server.ask(10, &contexts)), INVALID);
    assert_eq!(server.ask(8, &[]), ack(8));
    assert_eq!(server.ask(8, &[]), ack(8));
}

#[test]
fn contexts_are_listed() {
    let mut server = Server::greeted();
    assert_eq!(refusal(9, &server.ask(9, &context_data("volume", &[]))), INVALID);
    server.ask(8, &[]);
    let entry = OptionReply { option: 9, reply: 4 };
    let allocation = entry.with(b"\0\0\0\0base:allocation");
    let cache = entry.with(b"\0\0\0\0x-forebay:cache");
    let both = [allocation.clone(), cache.clone(), ack(9)].concat();
    assert_eq!(server.ask(9, &context_data("volume", &[])), both);
    assert_eq!(server.ask(9, &context_data("volume", &["x-forebay:", "base:"])), both);
    let one = [allocation, ack(9)].concat();
    assert_eq!(server.ask(9, &context_data("volume", &["base:", "qemu:x", "base:zz"])), one);
    assert_eq!(server.ask(9, &context_data("volume", &["x-other:"])), ack(9));
    assert_eq!(refusal(9, &server.ask(9, &context_data("volume", &["base"]))), INVALID);
    assert_eq!(refusal(9, &server.ask(9, &context_data("nothing", &[]))), UNKNOWN);
}

#[test]
fn contexts_are_selected_for_one_export() {
    let both = ["base:allocation", "x-forebay:cache", "base:allocation"];
    let contexts_after = |asks: &[Vec<u8>], export: &str| {
        let mut server = Server::greeted();
        server.ask(8, &[]);
        for ask in asks {
            server.ask(10, ask);
        }
        let events = server.feed(&option(7, &go_data(export, &[3]))).unwrap();
        let [ServerEvent::Ready(session)] = events[..] else { panic!("{events:?}") };
        session.contexts.iter().collect::<Vec<_>>()
    };
    let select = context_data("volume", &both);
    assert_eq!(contexts_after(std::slice::from_ref(&select), "volume"), MetaContext::ALL);
    assert_eq!(contexts_after(std::slice::from_ref(&select), "full"), []);
    let wildcard = context_data("volume", &["base:"]);
    assert_eq!(contexts_after(&[select.clone(), wildcard], "volume"), []);
    // A selection that fails leaves none.
    let unknown = context_data("nothing", &both);
    assert_eq!(contexts_after(&[select, unknown], "volume"), []);

    let mut server = Server::greeted();
    server.ask(8, &[]);
    let entry = OptionReply { option: 10, reply: 4 };
    let expected = [entry.with(b"\0\0\0\x02x-forebay:cache"), ack(10)].concat();
    assert_eq!(server.ask(10, &context_data("volume", &["x-forebay:cache"])), expected);
}

#[test]
fn malformed_contexts_are_invalid() {
    let mut server = Server::greeted();
    server.ask(8, &[]);
    let good = context_data("volume", &["base:allocation", "x-forebay:cache"]);
    for code in [9, 10] {
        for cut in 0..good.len() {
            assert_eq!(refusal(code, &server.ask(code, &good[..cut])), INVALID, "cut at {cut}");
        }
        let longer = [&good[..], &[0]].concat();
        assert_eq!(refusal(code, &server.ask(code, &longer)), INVALID);
        let endless = Wire::new().text("volume").u32(u32::MAX).text("base:allocation").0;
        assert_eq!(refusal(code, &server.ask(code, &endless)), INVALID);
    }
}

#[test]
fn long_options_are_skipped_up_to_a_bound() {
    let mut server = Server::greeted();
    let long = vec![0; OPTION_BYTES_MAX as usize + 1];
    assert_eq!(refusal(7, &server.ask(7, &long)), TOO_BIG);
    let longest = vec![0; SKIPPED_OPTION_BYTES_MAX as usize];
    assert_eq!(refusal(99, &server.ask(99, &longest)), UNSUP);
    let header = Wire::new().bytes(b"IHAVEOPT").u32(99).u32(SKIPPED_OPTION_BYTES_MAX + 1).0;
    let limit = SKIPPED_OPTION_BYTES_MAX.into();
    let error = ProtocolError::AboveLimit { field: Field::OptionLength, limit, found: limit + 1 };
    assert_eq!(server.feed(&header), Err(error));
}

#[test]
fn options_are_counted() {
    let mut server = Server::greeted();
    for _ in 0..OPTION_COUNT_MAX {
        server.ask(8, &[]);
    }
    let limit = OPTION_COUNT_MAX.into();
    let error = ProtocolError::AboveLimit { field: Field::OptionCount, limit, found: limit + 1 };
    assert_eq!(server.feed(&option(8, &[])), Err(error));
}

#[test]
fn garbage_is_named() {
    let mut server = Server::new();
    let error =
        ProtocolError::UnknownBits { field: Field::ClientFlags, allowed: 3, found: 0x10003 };
    assert_eq!(server.feed(&0x10003_u32.to_be_bytes()), Err(error));
    assert_eq!(error.to_string(), "client flags: found 0x10003, expected bits of 0x3 only");

    let mut server = Server::greeted();
    let error = ProtocolError::Mismatch {
        field: Field::OptionMagic,
        expected: 0x4948_4156_454f_5054,
        found: u64::from_be_bytes(*b"GET / HT"),
    };
    assert_eq!(server.feed(b"GET / HTTP/1.1\r\n"), Err(error));

    // Without fixed newstyle there is but one option.
    let mut server = Server::new();
    server.feed(&0_u32.to_be_bytes()).unwrap();
    let error = ProtocolError::Mismatch { field: Field::Option, expected: 1, found: 7 };
    assert_eq!(server.feed(&option(7, &go_data("volume", &[]))), Err(error));
}

#[test]
fn shutdown_refuses_options() {
    let mut server = Server::greeted();
    server.connection.begin_shutdown();
    for code in [3, 6, 7, 8, 9, 10, 77] {
        assert_eq!(refusal(code, &server.ask(code, &[])), SHUTDOWN);
    }
    assert_eq!(server.feed(&option(2, &[])), Ok(vec![ServerEvent::Aborted]));

    let mut server = Server::greeted();
    server.connection.begin_shutdown();
    assert_eq!(server.feed(&option(1, b"volume")), Err(ProtocolError::ShuttingDown));
}

#[test]
fn exports_are_checked() {
    let good = exports().remove(0);
    assert_eq!(good.validate(), Ok(()));
    let mut export = good.clone();
    export.name = "n".repeat(4097);
    assert_eq!(export.validate(), Err(ExportError::TextTooLong { bytes: 4097 }));
    let mut export = good.clone();
    export.description = "\0".to_string();
    assert_eq!(export.validate(), Err(ExportError::TextHoldsNul));
    for found_bytes in [0, 1, 1024, 8192] {
        let mut export = good.clone();
        export.logical_block_bytes = found_bytes;
        assert_eq!(export.validate(), Err(ExportError::LogicalBlock { found_bytes }));
    }
    for found_bytes in [0, 256, 4097, 64 << 20] {
        let mut export = good.clone();
        export.preferred_block_bytes = found_bytes;
        assert_eq!(export.validate(), Err(ExportError::PreferredBlock { found_bytes }));
    }
    let mut export = good;
    export.size_bytes = 1000;
    assert_eq!(export.validate(), Err(ExportError::Size { size_bytes: 1000 }));
}
