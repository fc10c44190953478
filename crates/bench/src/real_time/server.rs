//! Programs that serve while something is measured: each is a child, known by its id and ended by
//! nothing else.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{Interrupt, RealError};

/// How long a server may take to be ready: one that recovers a large cache reads all of it.
const PATIENCE_TO_START: Duration = Duration::from_secs(300);
/// How long one that was told to end may take, before it is killed.
const PATIENCE_TO_END: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of its log that are shown when it fails.
const LOG_TAIL_BYTES: usize = 2000;

/// How a server shows that it is ready.
#[derive(Clone, Copy)]
pub(super) enum Ready<'a> {
    /// It takes connections on a Unix socket. One that an earlier server left is removed.
    Socket(&'a Path),
    /// A file is there.
    File(&'a Path),
}

impl Ready<'_> {
    fn is_so(self) -> bool {
        match self {
            Ready::Socket(path) => UnixStream::connect(path).is_ok(),
            Ready::File(path) => path.exists(),
        }
    }
}

/// A running server.
pub(super) struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command`, whose messages go to `log`, and waits until it is ready.
    pub(super) fn start(
        mut command: Command,
        ready: Ready<'_>,
        log: &Path,
        interrupt: &Interrupt,
    ) -> Result<Server, RealError> {
        let name = describe(&command);
        if let Ready::Socket(socket) = ready {
            match std::fs::remove_file(socket) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(RealError::file(socket, error));
                }
                _ => {}
            }
        }
        let failed = |error| RealError::file(log, error);
        let messages = File::create(log).map_err(failed)?;
        command.stdout(messages.try_clone().map_err(failed)?).stderr(messages);
        // A group of its own: a signal of the terminal is not for it.
        command.stdin(Stdio::null()).process_group(0);
        let spawned = command.spawn();
        let child = spawned.map_err(|source| RealError::Start { name: name.clone(), source })?;
        let mut server = Server { child, name, log: log.to_owned() };
        let deadline = Instant::now() + PATIENCE_TO_START;
        while !ready.is_so() {
            server.check()?;
            if Instant::now() > deadline {
                return Err(server.failed("is not ready"));
            }
            std::thread::sleep(PAUSE);
            interrupt.check()?;
        }
        Ok(server)
    }

    /// An error if it has ended.
    pub(super) fn check(&mut self) -> Result<(), RealError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.failed(&format!("ended with {status}"))),
            Err(source) => Err(RealError::Start { name: self.name.clone(), source }),
        }
    }

    fn failed(&self, what: &str) -> RealError {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let start = log.len().saturating_sub(LOG_TAIL_BYTES);
        let messages = log.get(start..).unwrap_or(&log).trim_end().to_owned();
        RealError::Program { name: self.name.clone(), what: what.to_owned(), messages }
    }

    /// Processor time of all its threads since its start, in seconds.
    pub(super) fn cpu_s(&self) -> Result<f64, RealError> {
        let path = PathBuf::from(format!("/proc/{}/stat", self.child.id()));
        let text = std::fs::read_to_string(&path).map_err(|error| RealError::file(&path, error))?;
        Ok(seconds(cpu_ticks(&text).unwrap_or_default()))
    }

    /// Ends it as a crash would.
    pub(super) fn kill(mut self) -> Result<(), RealError> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(|_| ()).map_err(|source| RealError::Start { name: self.name.clone(), source })
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) -> Result<(), RealError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It was not waited for, so the number is still its own.
        let told = pid.map(|pid| kill_process(pid, Signal::TERM));
        let deadline = Instant::now() + PATIENCE_TO_END;
        while told.is_some_and(|told| told.is_ok()) && matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                return Err(self.failed("does not stop"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// A program that runs to its end, and is killed if it is not waited for, with what it has started.
pub(super) struct Client {
    child: Child,
    name: String,
}

impl Client {
    /// Starts `command`.
    pub(super) fn start(command: &mut Command) -> Result<Client, RealError> {
        let name = describe(command);
        match command.process_group(0).spawn() {
            Ok(child) => Ok(Client { child, name }),
            Err(source) => Err(RealError::Start { name, source }),
        }
    }

    /// How it has ended; `None` while it runs.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, RealError> {
        let status = self.child.try_wait();
        status.map_err(|source| RealError::Start { name: self.name.clone(), source })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // Its number is its own, and that of its group, as long as it was not waited for.
        if let (Some(pid), Ok(None)) = (pid, self.child.try_wait()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing to a child that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command as a person would type it, more or less.
pub(super) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a short `command`, and returns what it prints.
pub(super) fn output(command: &mut Command) -> Result<String, RealError> {
    let name = describe(command);
    let result = command.stdin(Stdio::null()).process_group(0).output();
    let output = result.map_err(|source| RealError::Start { name: name.clone(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let messages = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(RealError::Program { name, what: format!("ended with {}", output.status), messages })
}

/// Processor time of the whole machine since its start, in seconds.
pub(super) fn machine_cpu_s() -> Result<f64, RealError> {
    let path = Path::new("/proc/stat");
    let text = std::fs::read_to_string(path).map_err(|error| RealError::file(path, error))?;
    Ok(seconds(machine_cpu_ticks(&text).unwrap_or_default()))
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Ticks in which the processors were busy in the text of `/proc/stat`, whose first line is of all
/// of them.
fn machine_cpu_ticks(stat: &str) -> Option<u64> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = times.flat_map(str::parse).collect();
    // See proc_stat(5): user, nice, system, idle, iowait, irq, softirq; guests count as user.
    let [user, nice, system, _, _, irq, softirq, ..] = times[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

/// Ticks in user and in kernel mode in the text of `/proc/PID/stat`. The name of the program, which
/// may hold anything, ends at the last parenthesis.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    // See proc_pid_stat(5): the state is field 3, utime 14, stime 15.
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_a_name_with_parentheses() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 100 0 0 0 7 35 1 2 20 0 1 0 99\n";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("42 (a"), None);
    }

    #[test]
    fn processor_time_of_the_machine_is_that_in_which_it_was_busy() {
        let stat = "cpu  70 1 20 1000 100 3 6 9 5 0\ncpu0 70 1 20 1000 100 3 6 9 5 0\n";
        assert_eq!(machine_cpu_ticks(stat), Some(100));
        assert_eq!(machine_cpu_ticks("cpu  70 1\n"), None);
        assert!(machine_cpu_s().unwrap() > 0.0);
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_message() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such disk >&2; exit 3"]);
        let (socket, log) = (folder.path().join("s"), folder.path().join("log"));
        let interrupt = Interrupt::default();
        let ready = Ready::Socket(&socket);
        let error = Server::start(command, ready, &log, &interrupt).err().expect("it ended");
        assert!(error.to_string().contains("no such disk"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = output(&mut Command::new("no-such-program")).unwrap_err().to_string();
        assert!(error.contains("no-such-program"), "{error}");
    }
}
