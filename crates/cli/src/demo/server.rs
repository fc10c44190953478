//! The demo's own servers: children of the same binary, ended by their process id and by no other
//! name.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::admin::client::AdminClient;
use crate::exit::Failure;

/// How long a server may take to be ready, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of its log that are shown when it fails.
const LOG_TAIL_BYTES: usize = 2000;

/// A server process.
pub(crate) struct Server {
    child: Child,
    /// Socket for clients.
    pub(crate) socket: PathBuf,
    /// Its admin side.
    pub(crate) admin: AdminClient,
    log: PathBuf,
}

impl Server {
    /// Starts `forebay serve` with these arguments and waits until it is ready.
    pub(crate) fn start(directory: &Path, name: &str, what: &[&str]) -> Result<Server, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
        let socket = directory.join(format!("{name}.nbd"));
        let admin = directory.join(format!("{name}.admin"));
        let log = directory.join(format!("{name}.log"));
        let failed = |error: std::io::Error| {
            Failure::failed(format!("cannot start a server in {}: {error}", directory.display()))
        };
        let mut child = Command::new(program)
            .arg("serve")
            .args(what)
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()))
            .arg("--admin")
            .arg(&admin)
            .arg("--state-dir")
            .arg(directory.join("state"))
            .arg("--exit-with-parent")
            .env_remove("FOREBAY_ADMIN")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut server = Server { child, socket, admin: AdminClient::new(&admin), log };
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            // The first line says that it is ready; the end of the pipe, that it has ended.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        if receiver.recv_timeout(PATIENCE).is_err() {
            let _ = server.child.kill();
            let status = server.child.wait().map_err(failed)?;
            return Err(server.failure(&format!("was not ready ({status})")));
        }
        Ok(server)
    }

    fn failure(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_TAIL_BYTES);
        let tail = log.get(start..).unwrap_or(&log);
        Failure::failed(format!("the demo's server {what}: {}", tail.trim_end()))
    }

    /// Ends it with SIGKILL, as a crash would.
    pub(crate) fn kill(mut self) -> Result<(), Failure> {
        let result = self.child.kill().and_then(|()| self.child.wait());
        result.map(|_| ()).map_err(|error| self.failure(&format!("cannot be killed: {error}")))
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a process id is a positive number");
        // It was not waited for, so the number is still its own.
        kill_process(pid, Signal::TERM)
            .map_err(|error| self.failure(&format!("cannot be told to stop: {error}")))?;
        match self.wait()? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failure(&format!("ended with {status}"))),
            None => Err(self.failure("does not stop")),
        }
    }

    fn wait(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let status = self.child.try_wait();
            let status =
                status.map_err(|error| self.failure(&format!("cannot be waited for: {error}")))?;
            if status.is_some() {
                return Ok(status);
            }
            thread::sleep(PAUSE);
        }
        Ok(None)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing to a child that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
