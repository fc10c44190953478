//! Programs that end in bounded time, and servers that end with their test.
//!
//! Output goes to files, never to pipes: a server that outlives the command which started it must
//! not keep anybody waiting.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine;

/// How long anything may take: far more than it does on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// How long it takes to notice that something has happened.
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until `is_done` returns something, or [`PATIENCE`] is over.
pub(crate) fn poll<T>(mut is_done: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = is_done() {
            return Some(result);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(PAUSE);
    }
}

/// How a program ended.
pub(crate) struct Ended {
    status: ExitStatus,
    pub(crate) stdout: String,
    description: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The output if it succeeded, everything that is known about it if not.
    pub(crate) fn success(self) -> Result<String, String> {
        if self.status.success() { Ok(self.stdout) } else { Err(self.description) }
    }
}

/// Runs a command to its end. `Err` if it does not start or does not end.
pub(crate) fn end(command: &mut Command) -> Result<Ended, String> {
    let text = format!("{command:?}");
    let file = || tempfile::tempfile().expect("a temporary file");
    let (mut out, mut err) = (file(), file());
    let share = |file: &File| file.try_clone().expect("a descriptor");
    command.stdin(Stdio::null()).stdout(share(&out)).stderr(share(&err));
    let mut child = command.spawn().map_err(|error| format!("{text}: {error}"))?;
    let status = poll(|| child.try_wait().expect("it is our child"));
    let Some(status) = status else {
        // A program that waits for a device may not even die; it is not waited for.
        let _ = child.kill();
        return Err(format!("{text}: not ended after {PATIENCE:?}: {}", content(&mut err)));
    };
    let stdout = content(&mut out);
    let description = format!("{text}: {status}\n{stdout}{}", content(&mut err));
    Ok(Ended { status, stdout, description })
}

fn content(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.read_to_end(&mut bytes).expect("a file");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a command that must succeed, and returns what it printed.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    match end(command).and_then(Ended::success) {
        Ok(stdout) => stdout,
        Err(description) => panic!("{description}"),
    }
}

/// Runs a program that must succeed, and returns what it printed.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    succeed(machine::program(program).args(arguments))
}

/// A process that is killed when it is dropped.
pub(crate) struct Server(pub(crate) Child);

impl Server {
    /// Whether it has ended already.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is our child").is_some()
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub(crate) fn wait(mut self) -> ExitStatus {
        let status = poll(|| self.0.try_wait().expect("it is our child"));
        status.expect("the process ends by itself")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = poll(|| self.0.try_wait().ok().flatten());
    }
}
