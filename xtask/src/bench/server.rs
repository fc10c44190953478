//! A server under test: a child process, known by its id and ended by nothing else.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::time;
use nix::unistd::Pid;
use rustix::process::Signal;

use super::interrupt;
use crate::process;

/// How long a server may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one that is told to quit may take before it is killed.
const PATIENCE_TO_QUIT: Duration = Duration::from_secs(10);
/// How often a server that starts is looked at.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of its log that are shown when it fails.
const LOG_TAIL_BYTES: usize = 2000;

/// What tells that a server is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// It prints a line.
    Line,
    /// It accepts connections.
    Socket,
    /// The file appears that stands where others have their socket.
    File,
}

/// A running server.
pub(super) struct Server {
    child: Child,
    log: PathBuf,
    /// From its start until it was ready.
    pub(super) ready_after: Duration,
}

impl Server {
    /// Starts `command`, whose messages go to `log`, and waits until it is ready. Where a socket
    /// tells that, one that an earlier server left is removed.
    pub(super) fn start(
        mut command: Command,
        socket: &Path,
        log: &Path,
        ready: Ready,
    ) -> anyhow::Result<Server> {
        let name = process::describe(&command);
        if ready != Ready::Line {
            let _ = std::fs::remove_file(socket);
        }
        let messages = File::create(log).with_context(|| format!("cannot make {}", log.display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(messages?).process_group(0);
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let lines = lines_of(&mut child);
        let log = log.to_owned();
        let mut server = Server { child, log, ready_after: Duration::ZERO };
        while !server.is_ready(ready, socket, &lines) {
            if let Some(status) = server.child.try_wait().context("cannot wait for a server")? {
                bail!("{name} ended with {status}: {}", server.log_tail());
            }
            if started.elapsed() > PATIENCE {
                bail!("{name} is not ready after {PATIENCE:?}: {}", server.log_tail());
            }
            interrupt::check()?;
        }
        server.ready_after = started.elapsed();
        Ok(server)
    }

    /// Looks once, and waits a moment if it is not so.
    fn is_ready(&self, ready: Ready, socket: &Path, lines: &Receiver<String>) -> bool {
        match ready {
            Ready::Line => lines.recv_timeout(PAUSE).is_ok(),
            Ready::File => {
                let is_there = socket.exists();
                if !is_there {
                    std::thread::sleep(PAUSE);
                }
                is_there
            }
            Ready::Socket => {
                let is_listening = UnixStream::connect(socket).is_ok();
                if !is_listening {
                    // The end of its output, if that comes first, shows in `try_wait`.
                    let ended = lines.recv_timeout(PAUSE);
                    if ended == Err(RecvTimeoutError::Disconnected) {
                        std::thread::sleep(PAUSE);
                    }
                }
                is_listening
            }
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_TAIL_BYTES);
        log.get(start..).unwrap_or(&log).trim_end().to_owned()
    }

    /// Waits until it has ended by itself, in good order.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        let status = self.child.wait().context("cannot wait for a server")?;
        if !status.success() {
            bail!("a server ended with {status}: {}", self.log_tail());
        }
        Ok(())
    }

    /// The number that its log has last behind `NAME=`.
    pub(super) fn logged(&self, name: &str) -> anyhow::Result<f64> {
        let log = std::fs::read_to_string(&self.log)?;
        let (_, rest) = log
            .rsplit_once(&format!("{name}="))
            .with_context(|| format!("the log of a server has no {name}"))?;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].parse().with_context(|| format!("{name} of a server is no number"))
    }

    /// CPU time of all its threads since its start, those that ended included, in seconds. Not of
    /// `/proc/PID/stat`, which counts in hundredths: a start takes a few of them.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let process = Pid::from_raw(i32::try_from(self.child.id())?);
        let clock = time::clock_getcpuclockid(process).context("a server has no CPU clock")?;
        let time = clock.now().context("cannot read the CPU clock of a server")?;
        Ok(Duration::from(time).as_secs_f64())
    }

    /// Its memory that is in RAM and in no file, in bytes.
    pub(super) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let kib = proc_value(&self.proc_file("status")?, "RssAnon");
        Ok(kib.context("/proc/PID/status has no RssAnon")? * 1024)
    }

    /// Bytes that it had read from block devices.
    pub(super) fn read_bytes(&self) -> anyhow::Result<u64> {
        let bytes = proc_value(&self.proc_file("io")?, "read_bytes");
        bytes.context("/proc/PID/io has no read_bytes")
    }

    fn proc_file(&self, name: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{name}", self.child.id());
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    }

    /// Ends it with SIGKILL, as a crash would.
    pub(super) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill a server")?;
        self.child.wait().map(|_| ()).context("cannot wait for a server")
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        interrupt::signal(&self.child, Signal::TERM)?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().context("cannot wait for a server")?.is_none() {
            if Instant::now() > deadline {
                bail!("a server does not stop: {}", self.log_tail());
            }
            interrupt::pause()?;
        }
        Ok(())
    }

    /// Ends it and its children with SIGQUIT, also after an interruption; kills it if it does not
    /// heed that.
    pub(super) fn quit(mut self) {
        interrupt::end(&mut self.child, Signal::QUIT, PATIENCE_TO_QUIT);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing to a child that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `child` prints, read on a thread of its own until it ends.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Nobody listens any more once it is ready; it must be able to print all the same.
                let _ = sender.send(line);
            }
        });
    }
    receiver
}

/// The number in the line `name: number` of a file of `/proc`.
fn proc_value(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_whole_name() {
        let text = "rchar: 1\nread_bytes: 4096\nRssAnon:\t  12 kB\n";
        assert_eq!(proc_value(text, "read_bytes"), Some(4096));
        assert_eq!(proc_value(text, "RssAnon"), Some(12));
        assert_eq!(proc_value(text, "read"), None);
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_message() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such disk >&2; exit 3"]);
        let (socket, log) = (folder.path().join("s"), folder.path().join("log"));
        let error = Server::start(command, &socket, &log, Ready::Socket).err().expect("it ended");
        assert!(error.to_string().contains("no such disk"), "{error}");
    }

    #[test]
    fn a_server_is_ready_with_its_first_line() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; exec sleep 60"]);
        let (socket, log) = (folder.path().join("s"), folder.path().join("log"));
        let server = Server::start(command, &socket, &log, Ready::Line).expect("it starts");
        assert!(server.resident_bytes().expect("it runs") > 0);
        server.stop().expect("it stops");
    }
}
