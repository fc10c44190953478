//! A file of nbdfuse in the place of a device, so that the device can go, be held, or fail.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Scratch, foreign, has_tool};

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);
/// For so long and a bit less the kernel does not ask for the size of a file again (`attr_timeout`
/// of libfuse).
const ATTRIBUTES_KNOWN: Duration = Duration::from_millis(1_200);
const TOOLS: [&str; 3] = ["nbdfuse", "nbdkit", "fusermount3"];

/// Whether the machine has what such files need; says so if not.
pub(crate) fn has_fuse(test: &str) -> bool {
    TOOLS.iter().all(|tool| has_tool(test, tool))
}

/// It is gone when this is dropped.
pub(crate) struct FuseFile {
    child: Child,
    path: PathBuf,
}

impl FuseFile {
    /// Puts what nbdkit serves with these arguments in the place of `name`, a file that is there.
    pub(crate) fn new(scratch: &Scratch, (name, bytes): (&str, u64), nbdkit: &[&str]) -> FuseFile {
        let path = scratch.path(name);
        let child = Command::new("nbdfuse")
            .arg(&path)
            .args(["--command", "nbdkit", "-s"])
            .args(nbdkit)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(scratch.path("nbdfuse.log")).expect("a file"))
            .spawn()
            .expect("nbdfuse starts");
        let file = FuseFile { child, path };
        let is_there = |path| fs::metadata(path).is_ok_and(|file| file.len() == bytes);
        await_that(&format!("{name} is there"), || is_there(&file.path));
        file
    }

    /// Answers nothing from now on, also not what the kernel knows of the file by itself for a
    /// while.
    pub(crate) fn hold(&self) {
        stop_all_threads(self.child.id());
        thread::sleep(ATTRIBUTES_KNOWN);
    }

    /// Takes the path away from it. Who has it open goes on with it.
    pub(crate) fn lose_name(&self) {
        foreign("fusermount3", &["-u", "-z", self.path.to_str().expect("a path")]);
    }

    /// Goes on after [`FuseFile::hold`].
    pub(crate) fn let_go(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id is positive"), Signal::CONT)
            .expect("it is our child");
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.path).output();
    }
}

/// Sends SIGSTOP, and waits until it is obeyed: a thread in the middle of I/O goes on for a while,
/// and so do the others until it is there.
pub(crate) fn stop_all_threads(pid: u32) {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(process, Signal::STOP).expect("it runs");
    await_that("all its threads have stopped", || {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        threads.expect("it is there").all(|thread| {
            // pid (name) state ...; gone if the thread has ended since it was listed.
            let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
            stat.is_ok_and(|stat| stat.rsplit(") ").next().expect("one").starts_with('T'))
        })
    });
}

#[track_caller]
pub(crate) fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(PAUSE);
    }
}
