//! A shard on a thread of its own, with devices in a temporary directory, and foreign clients.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;

use forebay_host::set::OpenedSet;
use forebay_host::{
    AdminCommand, BareExport, ListenAddress, MemoryOptions, Shard, ShardError, ShardHandle,
    ShardOptions,
};

/// A running shard that listens on a Unix socket.
pub(crate) struct Server {
    pub(crate) handle: ShardHandle,
    pub(crate) socket: PathBuf,
    pub(crate) addresses: Vec<ListenAddress>,
    thread: Option<JoinHandle<Result<(), ShardError>>>,
}

impl Server {
    pub(crate) fn start(directory: &Path, set: Option<OpenedSet>, bare: Vec<BareExport>) -> Server {
        let memory = MemoryOptions { engine_bytes: 32 << 20, client_bytes: 64 << 20 };
        Server::start_with(directory, ShardOptions { memory, ..ShardOptions::default() }, set, bare)
    }

    pub(crate) fn start_with(
        directory: &Path,
        mut options: ShardOptions,
        set: Option<OpenedSet>,
        bare: Vec<BareExport>,
    ) -> Server {
        let socket = directory.join("socket");
        options.listen.insert(0, ListenAddress::Unix(socket.clone()));
        let shard = Shard::new(options, set, bare).unwrap();
        let (handle, addresses) = (shard.handle(), shard.addresses());
        let thread = Some(std::thread::spawn(move || shard.run()));
        Server { handle, socket, addresses, thread }
    }

    /// For libnbd and QEMU.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) -> Result<(), ShardError> {
        self.handle.command_wait(AdminCommand::Stop).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.handle.command(AdminCommand::Stop, |_| {});
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap().unwrap();
            }
        }
    }
}

/// Makes a file of random-looking bytes.
pub(crate) fn filled_file(path: &Path, bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let content: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33).to_le_bytes()
    })
    .flatten()
    .take(bytes)
    .collect();
    std::fs::write(path, &content).unwrap();
    content
}

/// Runs a tool; `None` if it is not installed.
pub(crate) fn run_tool(tool: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("{tool}: {error}"),
    }
}

/// Runs a tool that must succeed and returns what it wrote; `None` if it is not installed.
pub(crate) fn run_well(tool: &str, arguments: &[&str]) -> Option<String> {
    let output = run_tool(tool, arguments)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?}: {text}{errors}");
    Some(text)
}

/// Runs commands of `qemu-io`; each must succeed.
pub(crate) fn qemu_io(uri: &str, commands: &[&str]) -> Option<String> {
    let mut arguments = vec!["-f", "raw", uri];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    let text = run_well("qemu-io", &arguments)?;
    // Some failures are only said, and leave the status at zero.
    assert!(!text.contains("failed") && !text.contains("error"), "{commands:?}: {text}");
    Some(text)
}

/// A client that speaks the oldest handshake by hand and does what no proper client does.
pub(crate) struct RawClient {
    pub(crate) stream: UnixStream,
    pub(crate) size_bytes: u64,
}

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;

impl RawClient {
    pub(crate) fn connect(socket: &Path, export: &str) -> RawClient {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&1u32.to_be_bytes());
        hello.extend_from_slice(&(export.len() as u32).to_be_bytes());
        hello.extend_from_slice(export.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        let size_bytes = u64::from_be_bytes(answer[..8].try_into().unwrap());
        RawClient { stream, size_bytes }
    }

    pub(crate) fn header(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut header = 0x2560_9513_u32.to_be_bytes().to_vec();
        header.extend_from_slice(&0u16.to_be_bytes());
        header.extend_from_slice(&command.to_be_bytes());
        header.extend_from_slice(&cookie.to_be_bytes());
        header.extend_from_slice(&offset.to_be_bytes());
        header.extend_from_slice(&length.to_be_bytes());
        header
    }

    pub(crate) fn send(&mut self, command: u16, cookie: u64, offset: u64, length: u32) {
        let header = RawClient::header(command, cookie, offset, length);
        self.stream.write_all(&header).unwrap();
    }

    /// The next simple reply: error and cookie.
    pub(crate) fn reply(&mut self) -> (u32, u64) {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(reply[8..].try_into().unwrap()))
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.send(READ, 77, offset, length);
        match self.reply() {
            (0, 77) => {
                let mut data = vec![0; length as usize];
                self.stream.read_exact(&mut data).unwrap();
                Ok(data)
            }
            (error, 77) => Err(error),
            (_, cookie) => panic!("a reply to {cookie}"),
        }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.send(WRITE, 78, offset, data.len() as u32);
        self.stream.write_all(data).unwrap();
        match self.reply() {
            (0, 78) => Ok(()),
            (error, 78) => Err(error),
            (_, cookie) => panic!("a reply to {cookie}"),
        }
    }

    /// Whether the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // A reset counts as closed, too: bytes of ours were still on the way.
        self.stream.read_to_end(&mut rest).is_err() || rest.is_empty()
    }
}
