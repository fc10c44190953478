//! A directory for a test, the binary, and servers that end with their test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_nbd as nbd;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{NbdClient, reply_error};

/// How long a command or a server may take: far more than any does.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Checks the exit code; shows everything if it is another one.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Checks that the message names something.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Ended {
        assert!(self.stderr.contains(text) || self.stdout.contains(text), "{text}: {self:#?}");
        self
    }

    /// The JSON on stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// A test's directory.
pub(crate) struct Scratch {
    directory: tempfile::TempDir,
    /// What is run.
    program: PathBuf,
}

fn pid_of(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive")
}

fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("it is our child") {
            return status.code();
        }
        thread::sleep(PAUSE);
    }
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    panic!("a command did not end in {PATIENCE:?}");
}

fn run_to_end(command: &mut Command, meanwhile: impl FnOnce(&Child)) -> Ended {
    let output = tempfile::tempdir().expect("a temporary directory");
    let (out, err) = (output.path().join("out"), output.path().join("err"));
    let mut child = command
        .stdout(File::create(&out).expect("a file"))
        .stderr(File::create(&err).expect("a file"))
        .spawn()
        .expect("the binary starts");
    meanwhile(&child);
    let code = wait(&mut child);
    let read = |path: &Path| fs::read_to_string(path).expect("text");
    Ended { code, stdout: read(&out), stderr: read(&err) }
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Scratch { directory, program: env!("CARGO_BIN_EXE_forebay").into() }
    }

    /// From now on runs another program.
    pub(crate) fn run_from(&mut self, program: PathBuf) {
        self.program = program;
    }

    /// Copies the binary into the directory, and runs the copy from now on. Another program copies:
    /// one that some other test starts at this moment would have a file of ours open for writing,
    /// and nobody could start that.
    pub(crate) fn run_from_copy(&mut self, name: &str) {
        let copy = self.path(name);
        let mut copying = Command::new("cp");
        copying.arg(&self.program).arg(&copy);
        assert!(copying.status().expect("cp is there").success());
        self.run_from(copy);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A file of zeroes.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        path
    }

    /// The file in the run directory with an ending, of which there is one.
    pub(crate) fn run_file(&self, ending: &str) -> PathBuf {
        let entries = std::fs::read_dir(self.path("run")).expect("a run directory");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        let found = paths.find(|path| path.extension().is_some_and(|of_path| of_path == ending));
        found.unwrap_or_else(|| panic!("no file with the ending `{ending}`"))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.directory.path())
            .env("FOREBAY_RUN_DIR", self.path("run"))
            .env_remove("FOREBAY_ADMIN")
            .env_remove("FOREBAY_LOG")
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null());
        command
    }

    /// Starts a command; `SIGINT` is sent to it when `is_time` says so.
    pub(crate) fn run_and_interrupt(
        &self,
        arguments: &[&str],
        is_time: &mut dyn FnMut() -> bool,
    ) -> Ended {
        self.run_among_and_interrupt(&[], arguments, is_time)
    }

    /// The same, with variables of the environment.
    pub(crate) fn run_among_and_interrupt(
        &self,
        environment: &[(&str, &Path)],
        arguments: &[&str],
        is_time: &mut dyn FnMut() -> bool,
    ) -> Ended {
        let mut command = self.command();
        run_to_end(command.envs(environment.iter().copied()).args(arguments), |child| {
            let deadline = Instant::now() + PATIENCE;
            while !is_time() && Instant::now() < deadline {
                thread::sleep(PAUSE);
            }
            kill_process(pid_of(child), Signal::INT).expect("it is our child");
        })
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        run_to_end(self.command().args(arguments), |_| {})
    }

    /// The same, with variables of the environment.
    pub(crate) fn run_among(&self, environment: &[(&str, &Path)], arguments: &[&str]) -> Ended {
        let mut command = self.command();
        run_to_end(command.envs(environment.iter().copied()).args(arguments), |_| {})
    }

    /// Runs a command that finds no other program.
    pub(crate) fn run_alone(&self, arguments: &[&str]) -> Ended {
        let mut command = self.command();
        run_to_end(command.env("PATH", self.path("no-programs")).args(arguments), |_| {})
    }

    /// Serves the cache, which is refused, and tells the socket of this name about it.
    pub(crate) fn serve_to_its_end(&self, notify_socket: &OsStr) -> Ended {
        let mut command = self.command();
        command.env("NOTIFY_SOCKET", notify_socket);
        let arguments = ["serve", "cache.img", "--state-dir", "state"];
        run_to_end(command.args(arguments), |_| {})
    }

    /// A formatted cache with one volume of 64 MiB, `vol`.
    pub(crate) fn cache_with_volume(&self, mode: &str) -> PathBuf {
        self.cache_with_volume_on("origin.img", mode)
    }

    /// The same; `origin` is the file `origin.img`, slow if it says so.
    pub(crate) fn cache_with_volume_on(&self, origin: &str, mode: &str) -> PathBuf {
        let cache = self.path("cache.img");
        self.run(&["format", "cache.img", "--size", "32M"]).expect(0);
        self.file("origin.img", 64 << 20);
        let attach = ["attach", "cache.img", origin, "--name", "vol", "--cache-mode", mode];
        self.run(&attach).expect(0);
        cache
    }

    /// Starts a server of the cache and waits until it serves.
    pub(crate) fn serve(&self) -> Server {
        self.serve_what(&["cache.img"])
    }

    pub(crate) fn serve_what(&self, what: &[&str]) -> Server {
        self.serve_with(what, &[])
    }

    /// The same with more in its environment.
    pub(crate) fn serve_with(&self, what: &[&str], environment: &[(&str, &Path)]) -> Server {
        self.start_and_wait("client.nbd", what, environment)
    }

    /// The same at a socket of this name.
    pub(crate) fn serve_at(&self, socket: &str, what: &[&str]) -> Server {
        self.start_and_wait(socket, what, &[])
    }

    /// Starts a server that takes over from the one that runs, and waits until it serves.
    pub(crate) fn take_over(&self) -> Server {
        self.take_over_at("client.nbd", &[])
    }

    /// The same with another socket and more options.
    pub(crate) fn take_over_at(&self, socket: &str, options: &[&str]) -> Server {
        let what = [&["cache.img", "--takeover"], options].concat();
        self.start_and_wait(socket, &what, &[])
    }

    /// Starts one, and waits for nothing.
    pub(crate) fn begin_takeover(&self) -> Server {
        self.begin(&["cache.img", "--takeover"])
    }

    /// Starts a server, and waits for nothing.
    pub(crate) fn begin(&self, what: &[&str]) -> Server {
        self.start("client.nbd", what, &[]).0
    }

    fn start_and_wait(&self, socket: &str, what: &[&str], environment: &[(&str, &Path)]) -> Server {
        let (mut server, lines) = self.start(socket, what, environment);
        match lines.recv_timeout(PATIENCE) {
            Ok(uri) => server.uri = uri,
            Err(error) => panic!("the server is not ready ({error}): {}", server.log()),
        }
        server
    }

    /// Also answers with what it will print.
    fn start(
        &self,
        socket: &str,
        what: &[&str],
        environment: &[(&str, &Path)],
    ) -> (Server, mpsc::Receiver<String>) {
        let socket = self.path(socket);
        let mut number = 0;
        let log = loop {
            let log = self.path(&format!("server-{number}.log"));
            if !log.exists() {
                break log;
            }
            number += 1;
        };
        let mut child = self
            .command()
            .envs(environment.iter().copied())
            .arg("serve")
            .args(what)
            .args(["--nbd", &format!("unix:{}", socket.display())])
            .args(["--state-dir", "state", "--exit-with-parent"])
            .stdout(Stdio::piped())
            .stderr(File::create(&log).expect("a file"))
            .spawn()
            .expect("the binary starts");
        let stdout = child.stdout.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        (Server { child, socket, log, uri: String::new() }, lines)
    }

    /// The only volume of the running daemon, from `status --json`.
    pub(crate) fn volume(&self) -> serde_json::Value {
        let status = self.run(&["status", "--json"]).expect(0).json();
        status["daemons"][0]["exports"][0]["volume"].clone()
    }
}

/// A running server. Killed when it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) socket: PathBuf,
    log: PathBuf,
    /// URI of its first export.
    pub(crate) uri: String,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What its environment was when it last started, variables in the form NAME=VALUE.
    pub(crate) fn environment(&self) -> Vec<String> {
        let bytes = fs::read(format!("/proc/{}/environ", self.child.id())).expect("it runs");
        String::from_utf8_lossy(&bytes).split('\0').map(str::to_owned).collect()
    }

    /// Connects to the volume.
    #[track_caller]
    pub(crate) fn client(&self) -> NbdClient {
        NbdClient::connect(&self.socket, "vol")
            .unwrap_or_else(|error| panic!("cannot connect: {error}: {}", self.log()))
    }

    /// Sends SIGTERM and returns the exit code.
    pub(crate) fn terminate(mut self) -> Option<i32> {
        kill_process(pid_of(&self.child), Signal::TERM).expect("it is our child");
        wait(&mut self.child)
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ended(mut self) -> Option<i32> {
        wait(&mut self.child)
    }

    /// Sends SIGKILL. Its end waits for transfers that are under way.
    pub(crate) fn begin_to_kill(&self) {
        kill_process(pid_of(&self.child), Signal::KILL).expect("it is our child");
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl NbdClient {
    /// Reads a range and waits for it. No other request may be under way.
    pub(crate) fn read(&mut self, offset_bytes: u64, bytes: &mut [u8]) -> io::Result<()> {
        let command = nbd::Command::Read { chunks: nbd::ReadChunks::Any };
        let length_bytes = bytes.len() as u32;
        let request = nbd::Request { cookie: nbd::Cookie(0), command, offset_bytes, length_bytes };
        self.queue(&request, &[])?;
        let (_, result) = self.next(&mut |_, offset, piece| {
            bytes[offset..offset + piece.len()].copy_from_slice(piece);
        })?;
        result.map_err(reply_error)
    }
}

/// How often a test with random moments is repeated.
pub(crate) fn rounds(short: u32, long: u32) -> u32 {
    if std::env::var_os("FOREBAY_TEST_LONG").is_some_and(|value| value == "1") {
        long
    } else {
        short
    }
}

/// Whether a foreign program is there; if not, says that the test is skipped.
pub(crate) fn has_tool(test: &str, tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()) {
        return true;
    }
    skip(test, &format!("{tool} is missing"));
    false
}

/// Whether block devices can be made of exports by nbdfuse and loop devices; if not, says that the
/// test is skipped.
pub(crate) fn has_block_devices(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(test, "root is missing");
        return false;
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if File::options().read(true).write(true).open(device).is_err() {
            skip(test, &format!("{device} is missing"));
            return false;
        }
    }
    ["nbdfuse", "fusermount3", "losetup"].iter().all(|tool| has_tool(test, tool))
}

/// Says that a test is skipped, and why.
pub(crate) fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}");
    println!("{line}");
    if let Some(log) = std::env::var_os("FOREBAY_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log).expect("the skip log");
        // One write: tests run at the same time, and a line must stay a line.
        log.write_all(format!("{line}\n").as_bytes()).expect("the skip log");
    }
}

/// Runs a foreign program and returns what it printed; it must succeed.
#[track_caller]
pub(crate) fn foreign(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:#?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
