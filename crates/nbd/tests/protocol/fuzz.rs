//! A seeded fuzzer: dialogues that began well and were then damaged, for both sides.
//!
//! Each case is one seed. What must hold: no panic; a call without event has consumed everything or
//! waits for payload; what the server accepts lies within the export, by arithmetic of its own;
//! what the client is told lies within its requests; what it all means does not depend on where the
//! stream was cut. `FOREBAY_FUZZ_SEED` replays one case, `FOREBAY_FUZZ_CASES` sets how many are
//! run.

use std::collections::{BTreeMap, BTreeSet};

use forebay_nbd::{
    ClientEvent, Command, Cookie, Durability, Field, HolePolicy, MetaContext, ProtocolError,
    ReadChunks, RefusalReason, ReplyError, ReplyStyle, Request, ServerEvent, StatusExtents,
    ZeroSpeed,
};

use crate::harness::{Client, Server, VOLUME_BYTES, connect, exports};
use crate::host::MemoryServer;
use crate::random::Random;
use crate::wire::{RawRequest, context_data, go_data, option};

/// Runs in a few seconds.
const CASES: u64 = 20_000;
/// Longest stream, so that damage cannot make it grow without end.
const STREAM_BYTES_MAX: usize = 64 * 1024;
/// More than any reply to one option of the exports used here.
const OPTION_OUTPUT_BYTES_MAX: usize = 1024;

/// What the cases have reached.
#[derive(Default)]
struct Reached {
    events: BTreeSet<&'static str>,
    refusals: BTreeSet<RefusalReason>,
    fields: BTreeSet<Field>,
}

/// Says which case it was, however it ends.
struct Replay {
    test: &'static str,
    seed: u64,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Replay { test, seed } = self;
            eprintln!(
                "replay: FOREBAY_FUZZ_SEED={seed} cargo test -p forebay-nbd --test protocol {test}"
            );
            eprintln!("    or: cargo xtask fuzz {} {seed}", test.replace("fuzz::", "nbd-"));
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is not a number")))
}

/// Runs `case` for each seed, or for the one that is to be replayed. True if all were run.
fn run_cases(
    test: &'static str,
    reached: &mut Reached,
    case: fn(u64, &mut Reached) -> Result<(), String>,
) -> bool {
    let replayed = number_from("FOREBAY_FUZZ_SEED");
    let cases = number_from("FOREBAY_FUZZ_CASES").unwrap_or(CASES);
    let seeds = replayed.map_or(0..cases, |seed| seed..seed + 1);
    for seed in seeds {
        let replay = Replay { test, seed };
        if let Err(message) = case(seed, reached) {
            panic!("{message}");
        }
        drop(replay);
    }
    replayed.is_none() && cases >= CASES
}

/// Lengths and numbers that lie on edges.
const EDGES: [u64; 14] = [
    0,
    1,
    511,
    512,
    4096,
    VOLUME_BYTES - 512,
    VOLUME_BYTES,
    32 << 20,
    (32 << 20) + 512,
    (64 << 20) + 1,
    1 << 31,
    u32::MAX as u64,
    u64::MAX - 511,
    u64::MAX,
];

fn damage(stream: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(4) {
        if stream.is_empty() {
            return;
        }
        let place = random.below(stream.len());
        let length = (1 + random.below(40)).min(stream.len() - place);
        match random.below(8) {
            0 => stream[place] ^= 1 << random.below(8),
            1 => stream[place] = random.next() as u8,
            2 => overwrite(stream, place, &(random.pick(&EDGES) as u16).to_be_bytes()),
            3 => overwrite(stream, place, &(random.pick(&EDGES) as u32).to_be_bytes()),
            4 => overwrite(stream, place, &random.pick(&EDGES).to_be_bytes()),
            5 => drop(stream.drain(place..place + length)),
            6 => stream.truncate(place),
            _ => {
                let copy = stream[place..place + length].to_vec();
                let target = random.below(stream.len());
                stream.splice(target..target, copy);
            }
        }
    }
    stream.truncate(STREAM_BYTES_MAX);
}

fn overwrite(stream: &mut [u8], place: usize, bytes: &[u8]) {
    let length = bytes.len().min(stream.len() - place);
    stream[place..place + length].copy_from_slice(&bytes[..length]);
}

/// Pieces of `stream`, mostly short.
fn pieces<'a>(stream: &'a [u8], random: &mut Random) -> Vec<&'a [u8]> {
    let piece_max = random.pick(&[1, 7, 100, STREAM_BYTES_MAX]);
    let mut rest = stream;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at((1 + random.below(piece_max)).min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces
}

/// What a client might send.
fn client_stream(random: &mut Random) -> Vec<u8> {
    let names = ["volume", "large", "full", "nothing", ""];
    let queries = ["base:allocation", "x-forebay:cache", "base:", "qemu:x", "none"];
    let flags = random.pick(&[3_u32, 3, 3, 3, 1, 0, 2]);
    let mut stream = flags.to_be_bytes().to_vec();
    let export = random.pick(&names);
    if !random.one_in(4) {
        stream.extend(option(8, &[]));
    }
    if random.one_in(500) {
        stream.extend(option(3, &[]).repeat(300));
    }
    for _ in 0..random.below(4) {
        let name = if random.one_in(3) { random.pick(&names) } else { export };
        let chosen = [random.pick(&queries), random.pick(&queries)];
        let bytes = match random.below(7) {
            0 => option(3, &[]),
            1 => option(6, &go_data(name, &[1, 2, 3])),
            2 => option(9, &context_data(name, &chosen)),
            3 | 4 => option(10, &context_data(name, &chosen)),
            5 => option(random.next() as u32 % 16, &[1; 12]),
            _ => option(2, &[]),
        };
        stream.extend(bytes);
    }
    let last = if random.one_in(6) {
        option(1, export.as_bytes())
    } else {
        option(7, &go_data(export, if random.one_in(3) { &[] } else { &[3] }))
    };
    stream.extend(last);
    for cookie in 0..random.below(20) as u64 {
        stream.extend(client_request(random, cookie));
    }
    stream
}

fn client_request(random: &mut Random, cookie: u64) -> Vec<u8> {
    let command = random.pick(&[0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 8]);
    let is_odd = random.one_in(3);
    let flags = if is_odd { random.next() as u16 & 0x1f } else { 0 };
    let (offset, length) = match (command, is_odd) {
        (2 | 3, false) => (0, 0),
        (_, false) => (4096 * random.below(1000) as u64, 4096),
        (_, true) => (random.pick(&EDGES), random.pick(&EDGES) as u32),
    };
    let mut bytes = RawRequest { flags, command, cookie, offset, length }.bytes();
    if command == 1 && length <= 8192 {
        bytes.extend(vec![cookie as u8; length as usize]);
    }
    bytes
}

/// Events and payload of a stream, and how it ended.
type ServerRun = (Vec<ServerEvent>, Vec<u8>, Vec<u8>, Option<ProtocolError>);

fn run_server(pieces: &[&[u8]], shutdown_at: usize) -> Result<ServerRun, String> {
    let mut server = Server::new();
    let mut events = Vec::new();
    let mut error = None;
    let mut fed = 0;
    'stream: for piece in pieces {
        let mut rest = *piece;
        loop {
            if fed >= shutdown_at {
                server.connection.begin_shutdown();
            }
            let pending = server.connection.payload_bytes_pending();
            let taken = rest.len().min(pending as usize);
            server.payload.extend_from_slice(&rest[..taken]);
            server.connection.payload_taken(taken as u32);
            rest = &rest[taken..];
            let before = rest.len();
            let result = server.connection.handle_bytes(rest, &server.exports, &mut server.output);
            let (consumed, event) = match result {
                Ok(result) => result,
                Err(found) => {
                    error = Some(found);
                    break 'stream;
                }
            };
            if consumed > before {
                return Err(format!("{consumed} bytes of {before} were consumed"));
            }
            rest = &rest[consumed..];
            fed += usize::from(event.is_some());
            events.extend(event);
            match event {
                None if rest.is_empty() => break,
                None => return Err(format!("no event, and {} bytes are left", rest.len())),
                Some(ServerEvent::Aborted | ServerEvent::Disconnect) => break 'stream,
                Some(_) => {}
            }
        }
    }
    let is_over = matches!(events.last(), Some(ServerEvent::Aborted | ServerEvent::Disconnect));
    if error.is_some() || is_over {
        let again = server.connection.handle_bytes(&[1], &server.exports, &mut Vec::new());
        if again != Err(ProtocolError::AfterEnd) {
            return Err(format!("{again:?} after the end"));
        }
    }
    Ok((events, server.output, server.payload, error))
}

/// What an accepted request must satisfy, said another way than in the crate.
fn check_request(event: &ServerEvent, size_bytes: u64) -> Result<(), String> {
    let ServerEvent::Request(request) = event else { return Ok(()) };
    let is_flush = request.command == Command::Flush;
    let end = u128::from(request.offset_bytes) + u128::from(request.length_bytes);
    let moves_data = matches!(request.command, Command::Read { .. } | Command::Write { .. });
    let is_good = end <= u128::from(size_bytes)
        && (request.length_bytes > 0) != is_flush
        && request.offset_bytes & 511 == 0
        && request.length_bytes & 511 == 0
        && (!moves_data || request.length_bytes <= 32 << 20);
    if is_good { Ok(()) } else { Err(format!("{request:?} was accepted")) }
}

fn server_case(seed: u64, reached: &mut Reached) -> Result<(), String> {
    server_case_of_size(seed, reached, VOLUME_BYTES)
}

fn server_case_of_size(seed: u64, reached: &mut Reached, size_bytes: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut stream = client_stream(&mut random);
    if !random.one_in(8) {
        damage(&mut stream, &mut random);
    }
    let shutdown_at = if random.one_in(10) { random.below(10) } else { usize::MAX };
    let whole = run_server(&[&stream], shutdown_at)?;
    let cut = run_server(&pieces(&stream, &mut random), shutdown_at)?;
    if cut != whole {
        return Err(format!("cut: {cut:?}\nwhole: {whole:?}"));
    }
    let (events, output, _, error) = whole;
    let options_max = 2 + stream.len() / 16;
    if output.len() > options_max * OPTION_OUTPUT_BYTES_MAX {
        return Err(format!("{} bytes of output for {} bytes", output.len(), stream.len()));
    }
    for event in &events {
        check_request(event, size_bytes)?;
        reached.events.insert(match event {
            ServerEvent::Ready(_) => "ready",
            ServerEvent::Request(request) => command_name(request.command),
            ServerEvent::Refused(refusal) => {
                reached.refusals.insert(refusal.reason);
                "refused"
            }
            ServerEvent::Aborted => "aborted",
            ServerEvent::Disconnect => "disconnect",
        });
    }
    reached.fields.extend(error.and_then(field_of));
    Ok(())
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Read { .. } => "read",
        Command::Write { .. } => "write",
        Command::Flush => "flush",
        Command::Trim { .. } => "trim",
        Command::Cache => "cache",
        Command::WriteZeroes { .. } => "write zeroes",
        Command::BlockStatus { .. } => "block status",
    }
}

fn field_of(error: ProtocolError) -> Option<Field> {
    match error {
        ProtocolError::Mismatch { field, .. }
        | ProtocolError::NotAllowed { field, .. }
        | ProtocolError::UnknownBits { field, .. }
        | ProtocolError::AboveLimit { field, .. }
        | ProtocolError::BelowLimit { field, .. }
        | ProtocolError::NotText { field, .. }
        | ProtocolError::Missing { field } => Some(field),
        ProtocolError::ExportUnknown
        | ProtocolError::BlockSizeRequired
        | ProtocolError::ShuttingDown
        | ProtocolError::AfterEnd => None,
    }
}

#[test]
fn server() {
    let mut reached = Reached::default();
    if !run_cases("fuzz::server", &mut reached, server_case) {
        return;
    }
    // A fuzzer that stops reaching things is of no use, and nobody would notice.
    assert_eq!(reached.events.len(), 11, "{:?}", reached.events);
    assert_eq!(reached.refusals, RefusalReason::ALL.into_iter().collect());
    let fields = [
        Field::ClientFlags,
        Field::OptionMagic,
        Field::Option,
        Field::OptionLength,
        Field::OptionCount,
        Field::ExportNameLength,
        Field::RequestMagic,
        Field::WriteLength,
    ];
    assert_eq!(reached.fields, fields.into_iter().collect());
}

/// The fuzzer finds a planted mistake: an export that is believed to be shorter than it is.
#[test]
fn canary() {
    let mut reached = Reached::default();
    let found =
        (0..CASES).any(|seed| server_case_of_size(seed, &mut reached, VOLUME_BYTES - 512).is_err());
    assert!(found);
}

/// Requests that leave room for every kind of reply.
fn requests(random: &mut Random) -> Vec<Request> {
    let (durability, hole) = (Durability::Completed, HolePolicy::MayPunch);
    let commands = [
        Command::Read { chunks: ReadChunks::Any },
        Command::Read { chunks: ReadChunks::One },
        Command::Write { durability },
        Command::Flush,
        Command::WriteZeroes { durability, hole, speed: ZeroSpeed::Any },
        Command::BlockStatus { extents: StatusExtents::Any },
        Command::BlockStatus { extents: StatusExtents::One },
    ];
    let request = |cookie| {
        let command = random.pick(&commands);
        let (offset_bytes, length_bytes) = match command {
            Command::Flush => (0, 0),
            _ => (512 * random.below(8) as u64, 512 * (1 + random.below(4)) as u32),
        };
        Request { cookie: Cookie(cookie), command, offset_bytes, length_bytes }
    };
    (0..8).map(request).collect()
}

fn send_all(client: &mut Client, requests: &[Request]) {
    for request in requests {
        // After damage the server may seem to offer less.
        if let Ok(header) = client.connection.encode_request(request) {
            client.output.extend_from_slice(&header);
            client.output.extend(vec![5; request.payload_bytes() as usize]);
        }
    }
}

/// What a server sends to a client with these requests: whole replies, or chunks made by hand.
fn server_stream(random: &mut Random, style: ReplyStyle, requests: &[Request]) -> Vec<u8> {
    let mut exports = exports();
    exports[0].size_bytes = 64 * 1024;
    let mut server = MemoryServer::new(exports);
    let mut client = Client::new(connect("volume", style));
    let mut stream = Vec::new();
    while client.connection.session().is_none() {
        stream.extend_from_slice(&server.to_send);
        client.feed(&std::mem::take(&mut server.to_send)).unwrap();
        server.receive(&std::mem::take(&mut client.output)).unwrap();
    }
    send_all(&mut client, requests);
    server.receive(&client.output).unwrap();
    while !server.waiting.is_empty() {
        let index = random.below(server.waiting.len());
        let (request, _) = server.waiting[index];
        if style == ReplyStyle::Structured && random.one_in(2) {
            server.waiting.remove(index);
            server.to_send.extend(odd_chunks(random, &request));
        } else {
            server.answer(index);
        }
    }
    stream.extend_from_slice(&server.to_send);
    stream
}

/// Chunks that our own server does not send, most of them rightly.
fn odd_chunks(random: &mut Random, request: &Request) -> Vec<u8> {
    use crate::wire::{RawChunk, Wire, simple_reply};
    let (cookie, offset, length) = (request.cookie.0, request.offset_bytes, request.length_bytes);
    let hole = Wire::new().u64(offset).u32(length).0;
    let error = Wire::new().u32(5).u16(3).bytes(b"bad").0;
    let none = RawChunk { flags: 1, kind: 0, cookie }.with(&[]);
    let chunk = |flags, kind, payload: &[u8]| RawChunk { flags, kind, cookie }.with(payload);
    match random.below(7) {
        0 => [chunk(0, 2, &hole), none].concat(),
        1 => chunk(1, 2, &hole),
        2 => [chunk(0, 0x8001, &error), none].concat(),
        3 => chunk(1, 0x8002, &[&error[..], &offset.to_be_bytes()].concat()),
        4 => {
            let half = length / 2;
            let first = Wire::new().u64(offset).bytes(&vec![1; half as usize]).0;
            let second = Wire::new().u64(offset + u64::from(half)).u32(length - half).0;
            [chunk(0, 1, &first), chunk(1, 2, &second)].concat()
        }
        5 => simple_reply(22, cookie),
        _ => none,
    }
}

type ClientRun = (Vec<ClientEvent>, Vec<u8>, Option<ProtocolError>);

fn run_client(
    pieces: &[&[u8]],
    style: ReplyStyle,
    requests: &[Request],
) -> Result<ClientRun, String> {
    let mut client = Client::new(connect("volume", style));
    let mut events = Vec::new();
    let mut error = None;
    'stream: for piece in pieces {
        let mut rest = *piece;
        loop {
            let pending = client.connection.payload_bytes_pending();
            let taken = rest.len().min(pending as usize);
            client.payload.extend_from_slice(&rest[..taken]);
            events.extend(client.connection.payload_taken(taken as u32));
            rest = &rest[taken..];
            let (consumed, event) = match client.connection.handle_bytes(rest, &mut client.output) {
                Ok(result) => result,
                Err(found) => {
                    error = Some(found);
                    break 'stream;
                }
            };
            rest = rest.get(consumed..).ok_or("more was consumed than there was")?;
            match event {
                None if rest.is_empty() => break,
                None => return Err(format!("no event, and {} bytes are left", rest.len())),
                Some(ClientEvent::Ready(session)) => {
                    send_all(&mut client, requests);
                    events.push(ClientEvent::Ready(session));
                }
                Some(event) => events.push(event),
            }
        }
    }
    if error.is_some() && client.feed(&[]) != Err(ProtocolError::AfterEnd) {
        return Err("it went on after an error".to_string());
    }
    Ok((events, client.payload, error))
}

/// Every event speaks of a request that is not answered yet, and stays within it.
fn check_client_events(events: &[ClientEvent], requests: &[Request]) -> Result<(), String> {
    let mut open: BTreeMap<Cookie, (Request, u64)> =
        requests.iter().map(|request| (request.cookie, (*request, 0))).collect();
    for event in events {
        match event {
            ClientEvent::Data { cookie, offset_in_request, length_bytes }
            | ClientEvent::Hole { cookie, offset_in_request, length_bytes } => {
                let (request, delivered) =
                    open.get_mut(cookie).ok_or(format!("{event:?} of no request"))?;
                let end = u64::from(*offset_in_request) + u64::from(*length_bytes);
                *delivered += u64::from(*length_bytes);
                let is_read = matches!(request.command, Command::Read { .. });
                if !is_read || *length_bytes == 0 || end > u64::from(request.length_bytes) {
                    return Err(format!("{event:?} of {request:?}"));
                }
            }
            ClientEvent::Extent { cookie, extent, .. } => {
                let (request, _) = open.get(cookie).ok_or(format!("{event:?} of no request"))?;
                let is_status = matches!(request.command, Command::BlockStatus { .. });
                if !is_status || extent.length_bytes == 0 {
                    return Err(format!("{event:?} of {request:?}"));
                }
            }
            ClientEvent::Done { cookie, result } => {
                let (request, delivered) =
                    open.remove(cookie).ok_or(format!("{event:?} of no request"))?;
                let is_read = matches!(request.command, Command::Read { .. });
                let is_short = delivered < u64::from(request.length_bytes);
                if is_read && *result == Ok(()) && is_short {
                    return Err(format!("{event:?} of {request:?} after {delivered} bytes"));
                }
            }
            ClientEvent::Ready(_)
            | ClientEvent::Refused(_)
            | ClientEvent::Listed(_)
            | ClientEvent::ListEnd => {}
        }
    }
    Ok(())
}

fn client_case(seed: u64, reached: &mut Reached) -> Result<(), String> {
    let mut random = Random::new(seed);
    let style = random.pick(&[ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Structured]);
    let requests = requests(&mut random);
    let mut stream = server_stream(&mut random, style, &requests);
    if !random.one_in(8) {
        damage(&mut stream, &mut random);
    }
    let whole = run_client(&[&stream], style, &requests)?;
    let cut = run_client(&pieces(&stream, &mut random), style, &requests)?;
    if cut != whole {
        return Err(format!("cut: {cut:?}\nwhole: {whole:?}"));
    }
    let (events, _, error) = whole;
    check_client_events(&events, &requests)?;
    reached.events.extend(events.iter().map(|event| match event {
        ClientEvent::Listed(_) => "listed",
        ClientEvent::ListEnd => "list end",
        ClientEvent::Refused(_) => "refused",
        ClientEvent::Ready(_) => "ready",
        ClientEvent::Data { .. } => "data",
        ClientEvent::Hole { .. } => "hole",
        ClientEvent::Extent { context: MetaContext::Allocation, .. } => "extent of allocation",
        ClientEvent::Extent { context: MetaContext::Cache, .. } => "extent of cache",
        ClientEvent::Done { result: Ok(()), .. } => "done",
        ClientEvent::Done { result: Err(ReplyError::Io), .. } => "input/output error",
        ClientEvent::Done { result: Err(_), .. } => "other error",
    }));
    reached.fields.extend(error.and_then(field_of));
    Ok(())
}

#[test]
fn client() {
    let mut reached = Reached::default();
    if !run_cases("fuzz::client", &mut reached, client_case) {
        return;
    }
    assert_eq!(reached.events.len(), 9, "{:?}", reached.events);
    for field in [
        Field::ServerMagic,
        Field::OptionMagic,
        Field::HandshakeFlags,
        Field::OptionReplyMagic,
        Field::OptionReplyOption,
        Field::OptionReplyKind,
        Field::OptionReplyLength,
        Field::ExportInformation,
        Field::BlockMinimum,
        Field::ReplyMagic,
        Field::ReadReplyStyle,
        Field::Cookie,
        Field::ChunkKind,
        Field::ChunkFlags,
        Field::ChunkLength,
        Field::ChunkOffset,
        Field::ChunkDataLength,
        Field::ChunkMessageLength,
        Field::ChunkError,
        Field::ChunkContext,
        Field::ExtentLength,
        Field::ReadBytes,
        Field::StatusChunkCount,
    ] {
        assert!(reached.fields.contains(&field), "{field} was never wrong");
    }
}
