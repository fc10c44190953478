//! `serve --takeover`: a daemon goes on where another one was, and nobody loses anything, whoever
//! dies when.

use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device_model::Random;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, getsockname, listen, recvmsg, socket_with, sockopt,
};

use crate::client::NbdClient;
use crate::stamps::{BLOCK_BYTES, Stamps};
use crate::support::{Scratch, Server, rounds};

const CLIENT_BLOCKS: usize = 1500;
const CLIENTS: u64 = 2;
/// Answers between two takeovers, and how long they may take.
const ANSWERS: u64 = 300;
const ANSWERS_MAX: Duration = Duration::from_secs(20);

fn stamps() -> Vec<Stamps> {
    let of = |client| Stamps::new(client * CLIENT_BLOCKS as u64, CLIENT_BLOCKS, client);
    (0..CLIENTS).map(of).collect()
}

/// Where clients connect to.
#[derive(Clone, Copy)]
enum Address<'a> {
    Unix(&'a Path),
    /// As `HOST:PORT`.
    Tcp(&'a str),
}

impl Address<'_> {
    fn try_connect(self) -> io::Result<NbdClient> {
        match self {
            Address::Unix(socket) => NbdClient::connect(socket, "vol"),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(ANSWERS_MAX))?;
                NbdClient::greet(Box::new(stream), "vol")
            }
        }
    }
}

/// Connects; the address must not refuse, and who is cut while it is greeted comes again.
fn connect(address: Address<'_>) -> NbdClient {
    let began = Instant::now();
    loop {
        match address.try_connect() {
            Ok(client) => return client,
            Err(error) => {
                let refuses =
                    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound);
                assert!(!refuses, "the address refuses: {error}");
                assert!(began.elapsed() < ANSWERS_MAX, "no daemon answers: {error}");
            }
        }
    }
}

/// Writes until it is over, over as many connections as that takes, and compares at each beginning.
fn write_on(stamps: &mut Stamps, at: Address<'_>, is_over: &AtomicBool, answers: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let mut client = connect(at);
        match stamps.compare(&mut client) {
            Ok(comparison) => assert_eq!(comparison.wrong, [0u64; 0], "{comparison:?}"),
            // Cut while it compared: again with the next connection.
            Err(_) => continue,
        }
        let count = || {
            answers.fetch_add(1, Ordering::Relaxed);
        };
        // A request that fails is an error here; a connection that is cut is none.
        let written = stamps.write(&mut client, &|| is_over.load(Ordering::Relaxed), &count);
        if let Err(error) = written {
            assert_ne!(error.kind(), ErrorKind::Other, "a request failed: {error}");
        }
    }
}

fn compare_all(all: &mut [Stamps], server: &Server) {
    for stamps in all {
        let comparison = stamps.compare(&mut server.client()).unwrap();
        assert_eq!(comparison.wrong, [0u64; 0], "{comparison:?}");
        assert!(comparison.compared > 0);
    }
}

fn await_answers(answers: &AtomicU64, more: u64) {
    let wanted = answers.load(Ordering::Relaxed) + more;
    let began = Instant::now();
    while answers.load(Ordering::Relaxed) < wanted {
        assert!(began.elapsed() < ANSWERS_MAX, "clients get no answers");
        thread::yield_now();
    }
}

/// The process that the kernel names to who connects to the admin socket.
fn admin_process(scratch: &Scratch) -> u32 {
    let stream = UnixStream::connect(scratch.run_file("admin")).unwrap();
    let peer = sockopt::socket_peercred(&stream).unwrap();
    peer.pid.as_raw_nonzero().get().unsigned_abs()
}

/// Each daemon has these options; where the first address is TCP, clients come by that.
fn taken_over_under_load(mode: &str, options: &[&str]) {
    let scratch = Scratch::new();
    scratch.cache_with_volume(mode);
    let mut server = scratch.serve_what(&[&["cache.img"], options].concat());
    let mut all = stamps();
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let (socket, uri) = (server.socket.clone(), server.uri.clone());
    let tcp = uri.strip_prefix("nbd://").and_then(|rest| rest.strip_suffix("/vol"));
    let address = tcp.map_or(Address::Unix(&socket), Address::Tcp);
    thread::scope(|scope| {
        for stamps in &mut all {
            let (is_over, answers) = (&is_over, &answers);
            scope.spawn(move || write_on(stamps, address, is_over, answers));
        }
        for _ in 0..rounds(4, 40) {
            await_answers(&answers, ANSWERS);
            let successor = scratch.take_over_at("client.nbd", options);
            let predecessor = std::mem::replace(&mut server, successor);
            assert_eq!(predecessor.ended(), Some(0), "the predecessor is done");
            assert_eq!(server.uri, uri, "the same address");
            assert_eq!(admin_process(&scratch), server.pid(), "who listens");
        }
        await_answers(&answers, ANSWERS);
        is_over.store(true, Ordering::Relaxed);
    });
    compare_all(&mut all, &server);
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    assert_eq!(status["daemons"].as_array().map(Vec::len), Some(1), "{status}");
    scratch.run(&["stop"]).expect(0);
    assert_eq!(server.ended(), Some(0));
    assert!(!socket.exists(), "the last one removes the socket");
    scratch.run(&["check", "cache.img"]).expect(0);
}

#[test]
fn writeback_loses_nothing_when_taken_over() {
    taken_over_under_load("writeback", &[]);
}

#[test]
fn writearound_loses_nothing_when_taken_over() {
    taken_over_under_load("writearound", &[]);
}

/// A port that the kernel chose stays, and never refuses.
#[test]
fn clients_over_tcp_lose_nothing_when_taken_over() {
    taken_over_under_load("writeback", &["--nbd", "tcp:0"]);
}

/// Whoever is killed, at most one has written, and an ordinary start works.
#[test]
fn either_may_be_killed_at_any_moment() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let mut all = stamps();
    let mut random = Random::new(1);
    for round in 0..rounds(6, 100) {
        let server = scratch.serve();
        thread::scope(|scope| {
            let writers: Vec<_> = all
                .iter_mut()
                .map(|stamps| {
                    let mut client = server.client();
                    scope.spawn(move || stamps.write(&mut client, &|| false, &|| {}))
                })
                .collect();
            let successor = scratch.begin_takeover();
            thread::sleep(Duration::from_micros(random.below(300_000)));
            // The one that is left alone goes on or ends.
            let (first, second) =
                if random.below(2) == 0 { (server, successor) } else { (successor, server) };
            first.kill();
            thread::sleep(Duration::from_micros(random.below(50_000)));
            second.kill();
            for writer in writers {
                writer.join().unwrap().unwrap();
            }
        });
        scratch.run(&["check", "cache.img"]).expect(0);
        let server = scratch.serve();
        for stamps in &mut all {
            let comparison = stamps.compare(&mut server.client()).unwrap();
            assert_eq!(comparison.wrong, [0u64; 0], "round {round}: {comparison:?}");
        }
        assert_eq!(server.terminate(), Some(0), "round {round}");
    }
}

/// A successor of the test's own: it says what it is told to.
struct Puppet {
    socket: OwnedFd,
    descriptors: Vec<OwnedFd>,
}

/// Asks the daemon to hand over; answers with its status line and body.
fn ask(scratch: &Scratch, request: &serde_json::Value) -> String {
    let mut stream = UnixStream::connect(scratch.run_file("admin")).unwrap();
    let body = request.to_string();
    let head = "POST /v1/takeover HTTP/1.1\r\nHost: forebay\r\nConnection: close\r\n\
                Content-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn set_id(scratch: &Scratch) -> String {
    let status = scratch.run(&["status", "--json"]).expect(0).json();
    status["daemons"][0]["cache_set"]["set_id"].as_str().unwrap().to_owned()
}

impl Puppet {
    /// Meets the daemon, up to its offer.
    fn meet(scratch: &Scratch) -> Puppet {
        let path = scratch.path("puppet");
        let flags = SocketFlags::CLOEXEC;
        let waiting = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&waiting, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&waiting, 1).unwrap();
        let request =
            serde_json::json!({ "version": 1, "set_id": set_id(scratch), "socket": &path });
        let answer = ask(scratch, &request);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let socket = accept(&waiting).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut puppet = Puppet { socket, descriptors: Vec::new() };
        assert_eq!(puppet.hear().unwrap()["message"], "offer");
        puppet
    }

    fn say(&self, text: &str) {
        rustix::net::send(&self.socket, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }

    /// The next message, or that the daemon has ended.
    fn hear(&mut self) -> io::Result<serde_json::Value> {
        let mut text = vec![0; 1 << 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut text)];
        let got = recvmsg(&self.socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.descriptors.extend(rights);
            }
        }
        Ok(serde_json::from_slice(&text[..got.bytes])?)
    }

    /// Lets the daemon become silent.
    fn begin(&mut self) {
        self.say(r#"{"message":"begin"}"#);
        while self.hear().unwrap()["message"] != "silent" {}
        assert!(self.descriptors.len() >= 4, "two devices, two sockets");
    }
}

#[test]
fn when_the_successor_dies_the_daemon_goes_on_with_what_waited() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let mut client = server.client();
    client.write(0, &[1; BLOCK_BYTES]).unwrap();
    let mut puppet = Puppet::meet(&scratch);
    client.write(0, &[2; BLOCK_BYTES]).expect("nothing waits before it begins");
    puppet.begin();
    let is_answered = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            client.write(4096, &[3; BLOCK_BYTES]).unwrap();
            is_answered.store(true, Ordering::SeqCst);
        });
        // New clients wait in the queue of the socket.
        let late = scope.spawn(|| server.client());
        let again = scratch.run(&["serve", "cache.img", "--state-dir", "state", "--takeover"]);
        again.expect(3).says("another takeover is under way");
        assert!(!is_answered.load(Ordering::SeqCst), "it is silent");
        drop(puppet);
        writer.join().unwrap();
        late.join().unwrap();
    });
    let mut block = [0; BLOCK_BYTES];
    client.read(4096, &mut block).unwrap();
    assert_eq!(block, [3; BLOCK_BYTES]);
    // And another one may come, whose locks were taken by a process that is no more.
    let successor = scratch.take_over();
    assert_eq!(server.ended(), Some(0));
    let second = ["serve", "cache.img", "--state-dir", "state", "--admin", "second.admin"];
    scratch.run(&second).expect(3).says("locked");
    let mut client = successor.client();
    for (offset, value) in [(0, 2), (4096, 3)] {
        client.read(offset, &mut block).unwrap();
        assert_eq!(block, [value; BLOCK_BYTES]);
    }
    assert_eq!(successor.terminate(), Some(0));
}

/// The first message of a front end of virtual machines.
const GET_FEATURES: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// A virtual machine that starts while a daemon hands over is neither cut off nor forgotten.
#[test]
fn a_front_end_that_connects_meanwhile_waits_for_who_serves_then() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve_what(&["cache.img", "--vhost-user", "vol=disk.sock"]);
    let socket = scratch.path("disk.sock");
    let connect = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&GET_FEATURES).unwrap();
        stream
    };

    // The daemon goes on.
    let mut puppet = Puppet::meet(&scratch);
    puppet.begin();
    let mut early = connect();
    drop(puppet);
    let mut reply = [0; 20];
    early.read_exact(&mut reply).expect("it is served");
    assert_eq!(reply[..4], GET_FEATURES[..4]);
    drop(early);

    // The daemon ends.
    let mut puppet = Puppet::meet(&scratch);
    puppet.begin();
    let _late = connect();
    puppet.say(r#"{"message":"ready"}"#);
    assert_eq!(puppet.hear().unwrap()["message"], "yours");
    assert_eq!(server.ended(), Some(0));
    // Devices have no address.
    let is_meant = |descriptor: &&OwnedFd| {
        let address = getsockname(descriptor).ok();
        let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
        let path = address.as_ref().and_then(SocketAddrUnix::path_bytes);
        path.is_some_and(|path| path.ends_with(b"disk.sock"))
    };
    let listener = puppet.descriptors.iter().find(is_meant).expect("the socket of front ends");
    let patience = Some(Duration::from_secs(10));
    sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, patience).unwrap();
    let mut accepted = UnixStream::from(accept(listener).expect("it has waited"));
    let mut asked = [0; GET_FEATURES.len()];
    accepted.read_exact(&mut asked).unwrap();
    assert_eq!(asked, GET_FEATURES);
}

#[test]
fn when_the_daemon_dies_before_the_commit_its_devices_are_free_once_the_successor_ends() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    server.client().write(0, &[7; BLOCK_BYTES]).unwrap();
    let mut puppet = Puppet::meet(&scratch);
    puppet.begin();
    server.kill();
    assert!(puppet.hear().is_err(), "the daemon is gone, and has not said that it is our turn");
    for device in ["cache.img", "origin.img"] {
        let file = std::fs::File::open(scratch.path(device)).unwrap();
        let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Err(Errno::WOULDBLOCK), "the successor has the lock of {device}");
    }
    drop(puppet);
    let server = scratch.serve();
    let mut block = [0; BLOCK_BYTES];
    server.client().read(0, &mut block).unwrap();
    assert_eq!(block, [7; BLOCK_BYTES]);
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn what_cannot_be_taken_over_is_refused_and_the_daemon_goes_on() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let take_over = ["serve", "cache.img", "--state-dir", "state", "--takeover"];
    scratch.run(&take_over).expect(4).says("no daemon that serves");
    scratch.run(&["serve", "--bare", "a=origin.img", "--takeover"]).expect(2);
    let server = scratch.serve();
    let id = set_id(&scratch);
    let other = serde_json::json!({ "version": 2, "set_id": id, "socket": "/nowhere" });
    let answer = ask(&scratch, &other);
    assert!(answer.contains("409") && answer.contains("version 2"), "{answer}");
    let other = serde_json::json!({ "version": 1, "set_id": "0", "socket": "/nowhere" });
    let answer = ask(&scratch, &other);
    assert!(answer.contains("409") && answer.contains("does not serve 0"), "{answer}");
    // The state file that this one keeps would not be written any more.
    let elsewhere = ["serve", "cache.img", "--state-dir", "elsewhere", "--takeover"];
    let refused = scratch.run(&elsewhere).expect(3);
    refused.says("keeps the state of the set in").says("--state-dir");
    assert!(!scratch.path("elsewhere").exists());
    let mut puppet = Puppet::meet(&scratch);
    puppet.say(r#"{"message":"begin","and":"more"}"#);
    assert_eq!(puppet.hear().unwrap()["message"], "refused");
    server.client().write(0, &[1; BLOCK_BYTES]).unwrap();
    assert_eq!(server.terminate(), Some(0));
}

#[test]
fn a_successor_may_listen_elsewhere() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let server = scratch.serve();
    let old = server.socket.clone();
    server.client().write(0, &[9; BLOCK_BYTES]).unwrap();
    let successor = scratch.take_over_at("other.nbd", &["--admin", "other.admin"]);
    assert_eq!(server.ended(), Some(0));
    assert!(!old.exists(), "nobody claims it");
    let mut block = [0; BLOCK_BYTES];
    successor.client().read(0, &mut block).unwrap();
    assert_eq!(block, [9; BLOCK_BYTES]);
    scratch.run(&["stop", "--admin", "other.admin"]).expect(0);
    assert_eq!(successor.ended(), Some(0));
}
