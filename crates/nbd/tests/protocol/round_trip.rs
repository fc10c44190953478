//! Client and server against each other: requests answered in any order, bytes cut anywhere.

use std::collections::BTreeMap;

use forebay_nbd::{
    ClientEvent, Command, Cookie, Durability, ExportInfo, HolePolicy, PAYLOAD_BYTES_MAX,
    ReadChunks, ReplyStyle, Request, ServerEvent, StatusExtents, ZeroSpeed,
};
use proptest::prelude::*;

use crate::harness::{Client, Server, connect, exports};
use crate::host::{MemoryServer, ReadBuffers};
use crate::random::Random;
use crate::wire::{context_data, go_data, option};

const SMALL_VOLUME_BYTES: u64 = 64 * 1024;

fn small_exports() -> Vec<ExportInfo> {
    let mut exports = exports();
    exports[0].size_bytes = SMALL_VOLUME_BYTES;
    exports[0].supports_fast_zero = true;
    exports
}

/// One piece of at most `piece_max` bytes from the front.
fn cut(stream: &mut Vec<u8>, random: &mut Random, piece_max: usize) -> Vec<u8> {
    let length = (1 + random.below(piece_max)).min(stream.len());
    stream.drain(..length).collect()
}

/// A client that remembers what its requests should bring.
struct Peer {
    client: Client,
    buffers: ReadBuffers,
    /// Range of every request under way.
    open: BTreeMap<Cookie, Request>,
    done_count: usize,
    extent_bytes: BTreeMap<Cookie, u64>,
}

impl Peer {
    fn receive(&mut self, bytes: &[u8], model: &[u8]) {
        let mut rest = bytes;
        loop {
            let pending = self.client.connection.payload_bytes_pending() as usize;
            let taken = pending.min(rest.len());
            if taken > 0 {
                self.buffers.put(&rest[..taken]);
            }
            rest = &rest[taken..];
            let mut event = self.client.connection.payload_taken(taken as u32);
            if event.is_none() {
                let connection = &mut self.client.connection;
                let (consumed, next) =
                    connection.handle_bytes(rest, &mut self.client.output).unwrap();
                rest = &rest[consumed..];
                event = next;
            }
            match event {
                None => break,
                Some(event) => self.on_event(event, model),
            }
        }
        assert!(rest.is_empty());
    }

    fn on_event(&mut self, event: ClientEvent, model: &[u8]) {
        match event {
            ClientEvent::Ready(_) => {}
            ClientEvent::Data { cookie, offset_in_request, .. } => {
                self.buffers.aim(cookie, offset_in_request);
            }
            ClientEvent::Hole { cookie, offset_in_request, length_bytes } => {
                self.buffers.zero(cookie, offset_in_request, length_bytes);
            }
            ClientEvent::Extent { cookie, extent, .. } => {
                *self.extent_bytes.entry(cookie).or_default() += u64::from(extent.length_bytes);
            }
            ClientEvent::Done { cookie, result } => {
                assert_eq!(result, Ok(()));
                let request = self.open.remove(&cookie).expect("one answer to each request");
                if let Some(buffer) = self.buffers.end(cookie) {
                    let start = request.offset_bytes as usize;
                    assert_eq!(buffer, model[start..start + buffer.len()]);
                }
                if request.command == (Command::BlockStatus { extents: StatusExtents::Any }) {
                    let told = self.extent_bytes.remove(&cookie);
                    assert_eq!(told, Some(2 * u64::from(request.length_bytes)));
                }
                self.done_count += 1;
            }
            event => panic!("{event:?}"),
        }
    }
}

fn random_request(random: &mut Random, cookie: u64, style: ReplyStyle) -> Request {
    let durability =
        random.pick(&[Durability::Completed, Durability::ForcedUnitAccess, Durability::Completed]);
    let hole = random.pick(&[HolePolicy::MayPunch, HolePolicy::KeepAllocated]);
    let speed = random.pick(&[ZeroSpeed::Any, ZeroSpeed::FastOnly]);
    let commands = [
        Command::Read { chunks: ReadChunks::Any },
        Command::Write { durability },
        Command::Flush,
        Command::Trim { durability },
        Command::Cache,
        Command::WriteZeroes { durability, hole, speed },
        Command::Read { chunks: ReadChunks::One },
        Command::BlockStatus { extents: StatusExtents::Any },
        Command::BlockStatus { extents: StatusExtents::One },
    ];
    let usable = if style == ReplyStyle::Structured { commands.len() } else { 6 };
    let command = random.pick(&commands[..usable]);
    let cookie = Cookie(cookie);
    if command == Command::Flush {
        return Request { cookie, command, offset_bytes: 0, length_bytes: 0 };
    }
    let blocks = (SMALL_VOLUME_BYTES / 512) as usize;
    let first = random.below(blocks);
    let count = 1 + random.below((blocks - first).min(20));
    let (offset_bytes, length_bytes) = (first as u64 * 512, count as u32 * 512);
    Request { cookie, command, offset_bytes, length_bytes }
}

/// Requests that do not touch each other, so that any order of answers has one outcome.
fn overlaps(open: &BTreeMap<Cookie, Request>, request: &Request) -> bool {
    let end = |request: &Request| request.offset_bytes + u64::from(request.length_bytes);
    open.values()
        .any(|other| request.offset_bytes < end(other) && other.offset_bytes < end(request))
}

fn apply(model: &mut [u8], request: &Request, fill: u8) {
    let start = request.offset_bytes as usize;
    let range = &mut model[start..start + request.length_bytes as usize];
    match request.command {
        Command::Write { .. } => range.fill(fill),
        Command::Trim { .. } | Command::WriteZeroes { .. } => range.fill(0),
        Command::Read { .. } | Command::Flush | Command::Cache | Command::BlockStatus { .. } => {}
    }
}

fn run(seed: u64, style: ReplyStyle, piece_max: usize, request_count: usize) {
    let mut random = Random::new(seed);
    let mut server = MemoryServer::new(small_exports());
    let mut peer = Peer {
        client: Client::new(connect("volume", style)),
        buffers: ReadBuffers::default(),
        open: BTreeMap::new(),
        done_count: 0,
        extent_bytes: BTreeMap::new(),
    };
    let mut model = vec![0; SMALL_VOLUME_BYTES as usize];
    let mut sent = 0;
    let steps_max = 1_000_000;
    for _ in 0..steps_max {
        match random.below(4) {
            0 if !server.to_send.is_empty() => {
                let piece = cut(&mut server.to_send, &mut random, piece_max);
                peer.receive(&piece, &model);
            }
            1 if !peer.client.output.is_empty() => {
                let piece = cut(&mut peer.client.output, &mut random, piece_max);
                server.receive(&piece).unwrap();
            }
            2 if !server.waiting.is_empty() => {
                let index = random.below(server.waiting.len());
                server.answer(index);
            }
            3 if sent < request_count && peer.client.connection.session().is_some() => {
                let request = random_request(&mut random, sent as u64, style);
                if !overlaps(&peer.open, &request) {
                    let header = peer.client.connection.encode_request(&request).unwrap();
                    peer.client.output.extend_from_slice(&header);
                    let payload = vec![sent as u8; request.payload_bytes() as usize];
                    peer.client.output.extend_from_slice(&payload);
                    peer.buffers.begin(&request);
                    apply(&mut model, &request, sent as u8);
                    peer.open.insert(request.cookie, request);
                    sent += 1;
                }
            }
            _ => {}
        }
        if peer.done_count == request_count {
            break;
        }
    }
    assert_eq!(peer.done_count, request_count, "everything is answered");
    assert!(peer.open.is_empty());
    assert_eq!(server.volume, model);
    assert!(!server.events.iter().any(|event| matches!(event, ServerEvent::Refused(_))));
    let farewell = peer.client.connection.encode_disconnect().unwrap();
    server.receive(&farewell).unwrap();
    assert_eq!(server.events.last(), Some(&ServerEvent::Disconnect));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn every_request_is_answered_rightly(
        seed: u64,
        is_structured: bool,
        piece_max in prop_oneof![Just(1_usize), 2..100_usize, Just(100_000)],
    ) {
        let style = if is_structured { ReplyStyle::Structured } else { ReplyStyle::Simple };
        run(seed, style, piece_max, 60);
    }

    /// What a server makes of a stream does not depend on where it was cut.
    #[test]
    fn cuts_do_not_matter(cuts in proptest::collection::vec(1..80_usize, 1..200)) {
        let stream = dialogue();
        let whole = events_of(&stream, &[stream.len()]);
        prop_assert_eq!(events_of(&stream, &cuts), whole);
    }
}

/// Every option, then requests of which some are refused.
fn dialogue() -> Vec<u8> {
    let mut random = Random::new(1);
    let mut stream = 3_u32.to_be_bytes().to_vec();
    stream.extend(option(77, &[1; 100]));
    stream.extend(option(3, &[]));
    stream.extend(option(8, &[]));
    stream.extend(option(9, &context_data("volume", &[])));
    stream.extend(option(10, &context_data("volume", &["base:allocation", "x-forebay:cache"])));
    stream.extend(option(6, &go_data("volume", &[1, 2, 3])));
    stream.extend(option(7, &go_data("volume", &[3])));
    let mut client = Client::new(connect("volume", ReplyStyle::Structured));
    let mut server = MemoryServer::new(exports());
    while client.connection.session().is_none() {
        let output = std::mem::take(&mut server.to_send);
        client.feed(&output).unwrap();
        server.receive(&std::mem::take(&mut client.output)).unwrap();
    }
    for cookie in 0..60 {
        let request = random_request(&mut random, cookie, ReplyStyle::Structured);
        let request = Request { offset_bytes: request.offset_bytes * 2, ..request };
        let Ok(mut header) = client.connection.encode_request(&request) else { continue };
        if random.one_in(4) {
            // A length that is not aligned, and a payload to match.
            header[27] = 1;
        }
        stream.extend_from_slice(&header);
        if request.payload_bytes() > 0 {
            let length = u32::from_be_bytes(header[24..28].try_into().unwrap());
            stream.extend(vec![cookie as u8; length as usize]);
        }
    }
    stream.extend(client.connection.encode_disconnect().unwrap());
    stream
}

fn events_of(stream: &[u8], cuts: &[usize]) -> (Vec<ServerEvent>, Vec<u8>, Vec<u8>) {
    let mut server = Server::new();
    let mut events = Vec::new();
    let mut rest = stream;
    for length in cuts.iter().cycle() {
        let (piece, tail) = rest.split_at((*length).min(rest.len()));
        events.extend(server.feed(piece).unwrap());
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(events.last(), Some(&ServerEvent::Disconnect));
    (events, server.output, server.payload)
}

#[test]
fn the_largest_payload_passes_both_ways() {
    let mut server = MemoryServer::new(exports());
    let mut client = Client::new(connect("volume", ReplyStyle::Structured));
    while client.connection.session().is_none() {
        let output = std::mem::take(&mut server.to_send);
        client.feed(&output).unwrap();
        server.receive(&std::mem::take(&mut client.output)).unwrap();
    }
    let whole = |cookie, command| Request {
        cookie: Cookie(cookie),
        command,
        offset_bytes: 512,
        length_bytes: PAYLOAD_BYTES_MAX,
    };
    let payload: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|byte| (byte % 251) as u8).collect();
    let write = Command::Write { durability: Durability::Completed };
    let header = client.connection.encode_request(&whole(1, write)).unwrap();
    server.receive(&header).unwrap();
    server.receive(&payload).unwrap();
    server.answer(0);
    let read = Command::Read { chunks: ReadChunks::One };
    let header = client.connection.encode_request(&whole(2, read)).unwrap();
    server.receive(&header).unwrap();
    server.answer(0);
    let events = client.feed(&std::mem::take(&mut server.to_send)).unwrap();
    assert_eq!(events.len(), 3);
    assert!(client.payload == payload);
}
