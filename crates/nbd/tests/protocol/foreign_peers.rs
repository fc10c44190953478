//! Our server with other people's clients, and our client with other people's servers. A test that
//! finds its tool missing says so and passes.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use forebay_nbd::{
    ClientEvent, ClientGoal, ClientOptions, Command, ContextSet, Cookie, Durability, ExportInfo,
    HolePolicy, MetaContext, ReadChunks, ReplyError, ReplyStyle, Request, ServerEvent,
    StatusExtents, ZeroSpeed,
};

use crate::harness::{Client, connect, exports};
use crate::host::MemoryServer;

/// Nothing here takes longer; a peer that hangs is ended.
const TIME_LIMIT: Duration = Duration::from_secs(60);

fn has_tool(name: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(name).is_file()));
    if !found {
        eprintln!("skipped: {name} is not installed");
    }
    found
}

fn tool(name: &str) -> Process {
    let mut process = Process::new("timeout");
    process.arg(TIME_LIMIT.as_secs().to_string()).arg(name);
    process
}

/// A directory of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-nbd-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn serve(mut stream: UnixStream, exports: Vec<ExportInfo>) -> Vec<ServerEvent> {
    let mut server = MemoryServer::new(exports);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        while !server.waiting.is_empty() {
            // The last first, so that answers come out of order.
            server.answer(server.waiting.len() - 1);
        }
        // A client may leave without waiting for the answer to its farewell.
        if stream.write_all(&server.to_send).is_err() || server.is_over {
            return server.events;
        }
        server.to_send.clear();
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return server.events,
            Ok(count) => server.receive(&buffer[..count]).unwrap(),
        }
    }
}

/// Runs a client against our server and returns what it printed and what the server saw of each
/// connection.
fn run_client(
    exports: Vec<ExportInfo>,
    name: &str,
    configure: impl FnOnce(&mut Process, &str),
) -> (Output, Vec<ServerEvent>) {
    let folder = Folder::new();
    let socket = folder.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let mut events = Vec::new();
        for stream in listener.incoming() {
            let of_one = serve(stream.unwrap(), exports.clone());
            if of_one.is_empty() {
                // The end of the test: a connection without a word.
                return events;
            }
            events.extend(of_one);
        }
        events
    });
    let mut process = tool(name);
    configure(&mut process, socket.to_str().unwrap());
    let output = process.output().unwrap();
    drop(UnixStream::connect(&socket).unwrap());
    (output, server.join().unwrap())
}

fn text(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn nbdinfo_reads_everything() {
    if !has_tool("nbdinfo") {
        return;
    }
    let (output, _) = run_client(exports(), "nbdinfo", |process, socket| {
        process.arg(format!("nbd+unix:///full?socket={socket}"));
    });
    let shown = text(&output);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export=\"full\"",
        "description: a volume",
        "export-size: 67108864",
        "base:allocation",
        "x-forebay:cache",
        "is_rotational: true",
        "is_read_only: false",
        "can_block_status_payload: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 512",
        "block_size_preferred: 65536",
        "block_size_maximum: 33554432",
    ] {
        // Older versions do not know every line.
        let key = line.split(':').next().unwrap();
        assert!(!shown.contains(key) || shown.contains(line), "{line} is not in {shown}");
    }
    let (output, _) = run_client(exports(), "nbdinfo", |process, socket| {
        process.arg("--list").arg(format!("nbd+unix://?socket={socket}"));
    });
    let shown = text(&output);
    for name in ["volume", "large", "full"] {
        assert!(shown.contains(&format!("export=\"{name}\"")), "{name} is not in {shown}");
    }
    let (output, events) = run_client(exports(), "nbdinfo", |process, socket| {
        process.arg("--map=x-forebay:cache").arg(format!("nbd+unix:///volume?socket={socket}"));
    });
    assert!(text(&output).contains("67108864"));
    let asked = |event: &ServerEvent| {
        matches!(event, ServerEvent::Request(Request { command: Command::BlockStatus { .. }, .. }))
    };
    assert!(events.iter().any(asked));
}

#[test]
fn qemu_io_writes_and_reads_back() {
    if !has_tool("qemu-io") {
        return;
    }
    let mut small = exports();
    small[0].size_bytes = 4 << 20;
    let (output, events) = run_client(small, "qemu-io", |process, socket| {
        process.args(["-f", "raw", "-t", "none", "-d", "unmap"]);
        for command in [
            "write -P 0x11 0 64k",
            "write -f -P 0x22 64k 1M",
            "aio_write -P 0x33 2M 128k",
            "aio_flush",
            "read -P 0x11 0 64k",
            "read -P 0x22 64k 1M",
            "read -P 0x33 2M 128k",
            "write -z -u 32k 64k",
            "read -P 0 32k 64k",
            "read -P 0x22 100k 4k",
            "discard 2M 64k",
            "flush",
            "map",
        ] {
            process.arg("-c").arg(command);
        }
        process.arg(format!("nbd+unix:///volume?socket={socket}"));
    });
    let shown = text(&output);
    assert!(!shown.contains("failed") && !shown.contains("error"), "{shown}");
    let refused = events.iter().filter(|event| matches!(event, ServerEvent::Refused(_))).count();
    assert_eq!(refused, 0);
    for wanted in [
        |command: Command| matches!(command, Command::Read { .. }),
        |command| matches!(command, Command::Write { durability: Durability::ForcedUnitAccess }),
        |command| command == Command::Flush,
        |command| matches!(command, Command::Trim { .. }),
        |command| matches!(command, Command::WriteZeroes { .. }),
        |command| matches!(command, Command::BlockStatus { .. }),
    ] {
        let is_wanted = |event: &ServerEvent| match event {
            ServerEvent::Request(request) => wanted(request.command),
            _ => false,
        };
        assert!(events.iter().any(is_wanted), "{shown}");
    }
}

/// The system's Python may have the module where another one, first in the path, has not.
fn python_with_libnbd() -> Option<&'static str> {
    let has_module = |python: &&str| {
        tool(python).args(["-c", "import nbd"]).output().is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_module);
    if found.is_none() {
        eprintln!("skipped: no python3 with the module nbd (python3-libnbd) is installed");
    }
    found
}

#[test]
fn libnbd_hears_each_error() {
    let Some(python) = python_with_libnbd() else { return };
    // Strict mode off: the client sends what it should not.
    let script = r#"
import errno
import nbd
h = nbd.NBD()
h.set_strict_mode(0)
h.set_export_name("volume")
h.connect_unix(SOCKET)
def fails(expected, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == expected, (error.errnum, expected)
        return
    raise AssertionError("nothing failed")
end = h.get_size()
fails(errno.EINVAL, lambda: h.pread(512, 1))
fails(errno.EINVAL, lambda: h.pread(512, end))
fails(errno.ENOSPC, lambda: h.pwrite(b"x" * 512, end))
fails(errno.EINVAL, lambda: h.pwrite(b"x" * 511, 0))
fails(errno.ENOSPC, lambda: h.zero(512, end))
fails(errno.EINVAL, lambda: h.trim(512, end))
fails(errno.EINVAL, lambda: h.cache(512, end))
fails(errno.EINVAL, lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO))
h.pwrite(b"y" * 512, 512)
assert h.pread(1024, 0, nbd.CMD_FLAG_DF) == bytearray(b"\0" * 512 + b"y" * 512)
h.shutdown()
"#;
    let (output, events) = run_client(exports(), python, |process, socket| {
        process.arg("-c").arg(script.replace("SOCKET", &format!("{socket:?}")));
    });
    text(&output);
    let refused = events.iter().filter(|event| matches!(event, ServerEvent::Refused(_))).count();
    assert_eq!(refused, 8);
}

/// Drives our client over a socket until `stop` says that this event was the last.
fn run_until(
    client: &mut Client,
    stream: &mut UnixStream,
    stop: impl Fn(&ClientEvent) -> bool,
) -> Vec<ClientEvent> {
    let mut events = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        stream.write_all(&std::mem::take(&mut client.output)).unwrap();
        if events.iter().any(&stop) {
            return events;
        }
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the server left after {events:?}");
        events.extend(client.feed(&buffer[..count]).unwrap());
    }
}

fn request(
    client: &mut Client,
    stream: &mut UnixStream,
    request: Request,
    payload: &[u8],
) -> (Vec<ClientEvent>, Result<(), ReplyError>) {
    let header = client.connection.encode_request(&request).unwrap();
    stream.write_all(&header).unwrap();
    stream.write_all(payload).unwrap();
    let is_done = |event: &ClientEvent| matches!(event, ClientEvent::Done { .. });
    let mut events = run_until(client, stream, is_done);
    let Some(ClientEvent::Done { cookie, result }) = events.pop() else { panic!("{events:?}") };
    assert_eq!(cookie, request.cookie);
    (events, result)
}

/// Writes, zeroes, flushes, asks and reads.
fn exercise(mut stream: UnixStream, options: ClientOptions) {
    let mut client = Client::new(options);
    let is_ready = |event: &ClientEvent| matches!(event, ClientEvent::Ready(_));
    run_until(&mut client, &mut stream, is_ready);
    let session = *client.connection.session().unwrap();
    assert_eq!(session.common.size_bytes, 1 << 20);
    let ask = |cookie, command, length_bytes| {
        let offset_bytes = if command == Command::Flush { 0 } else { 4096 };
        Request { cookie: Cookie(cookie), command, offset_bytes, length_bytes }
    };
    let (durable, completed) = (Durability::ForcedUnitAccess, Durability::Completed);
    let write = ask(1, Command::Write { durability: durable }, 65536);
    let (_, result) = request(&mut client, &mut stream, write, &[7; 65536]);
    assert_eq!(result, Ok(()));
    let zeroes = Command::WriteZeroes {
        durability: completed,
        hole: HolePolicy::MayPunch,
        speed: ZeroSpeed::Any,
    };
    let (_, result) = request(&mut client, &mut stream, ask(2, zeroes, 4096), &[]);
    assert_eq!(result, Ok(()));
    let (_, result) = request(&mut client, &mut stream, ask(3, Command::Flush, 0), &[]);
    assert_eq!(result, Ok(()));
    client.payload.clear();
    let read = ask(4, Command::Read { chunks: ReadChunks::Any }, 65536);
    let (events, result) = request(&mut client, &mut stream, read, &[]);
    assert_eq!(result, Ok(()));
    let mut expected = vec![7; 65536];
    expected[..4096].fill(0);
    let mut found = vec![0xdd; 65536];
    let mut data = &client.payload[..];
    for event in events {
        match event {
            ClientEvent::Data { offset_in_request, length_bytes, .. } => {
                let (start, length) = (offset_in_request as usize, length_bytes as usize);
                found[start..start + length].copy_from_slice(&data[..length]);
                data = &data[length..];
            }
            ClientEvent::Hole { offset_in_request, length_bytes, .. } => {
                let start = offset_in_request as usize;
                found[start..start + length_bytes as usize].fill(0);
            }
            event => panic!("{event:?}"),
        }
    }
    assert!(found == expected);
    if session.common.contexts.contains(MetaContext::Allocation) {
        let status = ask(5, Command::BlockStatus { extents: StatusExtents::Any }, 65536);
        let (events, result) = request(&mut client, &mut stream, status, &[]);
        assert_eq!(result, Ok(()));
        assert!(!events.is_empty());
    }
    stream.write_all(&client.connection.encode_disconnect().unwrap()).unwrap();
}

fn allocation_only(export: &str, style: ReplyStyle) -> ClientOptions {
    let mut contexts = ContextSet::EMPTY;
    contexts.insert(MetaContext::Allocation);
    let goal = ClientGoal::Connect { export_name: export.to_string(), contexts };
    ClientOptions { goal, reply_style: style }
}

#[test]
fn nbdkit_serves_our_client() {
    if !has_tool("nbdkit") {
        return;
    }
    for options in [
        connect("", ReplyStyle::Simple),
        connect("", ReplyStyle::Structured),
        allocation_only("any", ReplyStyle::Structured),
    ] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let input = OwnedFd::from(theirs.try_clone().unwrap());
        let mut server = tool("nbdkit")
            .args(["--single", "memory", "1M"])
            .stdin(Stdio::from(input))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        exercise(ours, options);
        server.wait().unwrap();
    }
}

#[test]
fn qemu_nbd_serves_our_client() {
    if !has_tool("qemu-nbd") {
        return;
    }
    let folder = Folder::new();
    let image = folder.join("image");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    let server = QemuNbd::start(&folder, &image);
    let options = ClientOptions { goal: ClientGoal::List, reply_style: ReplyStyle::Simple };
    let is_end = |event: &ClientEvent| *event == ClientEvent::ListEnd;
    let events = run_until(&mut Client::new(options), &mut server.connect(), is_end);
    let named =
        |event: &ClientEvent| matches!(event, ClientEvent::Listed(listed) if listed.name == "disk");
    assert!(events.iter().any(named), "{events:?}");
    for style in [ReplyStyle::Simple, ReplyStyle::Structured] {
        exercise(server.connect(), allocation_only("disk", style));
    }
}

/// A server on a socket that we opened, so that nobody waits for it to appear. It is ended when it
/// goes out of scope.
struct QemuNbd {
    socket: PathBuf,
    process: Child,
}

impl QemuNbd {
    fn start(folder: &Folder, image: &Path) -> QemuNbd {
        let socket = folder.join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        // Socket activation: the socket is descriptor 3, for the process that is named.
        let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \
                      qemu-nbd --persistent -f raw -x disk \"$1\"";
        let process = Process::new("sh")
            .args(["-c", script, "sh"])
            .arg(image)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .spawn()
            .unwrap();
        QemuNbd { socket, process }
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream
    }
}

impl Drop for QemuNbd {
    fn drop(&mut self) {
        // If it is gone already, so much the better.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
