//! Ctrl-C ends a bench in order: servers are killed, mounts and folders go away.
//!
//! A signal only sets a flag. Whoever waits asks for it, returns an error, and what was set up is
//! taken down on the way out. Children are in process groups of their own, so that the terminal's
//! signal does not end them before.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::process;

/// How often a child is looked at.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a child may take to end in order: unmounting waits for what is to be written.
const END_PATIENCE: Duration = Duration::from_secs(60);

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal is an error of the next [`check`].
pub(super) fn watch() -> anyhow::Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot watch signals")?;
    }
    Ok(())
}

/// An error after a signal.
pub(super) fn check() -> anyhow::Result<()> {
    if FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}

/// Waits a moment for something that has no event.
pub(super) fn pause() -> anyhow::Result<()> {
    std::thread::sleep(PAUSE);
    check()
}

/// Runs `command` to its end, or until a signal comes.
pub(super) fn wait_for(command: &mut Command) -> anyhow::Result<ExitStatus> {
    let name = process::describe(command);
    let mut child =
        command.process_group(0).spawn().with_context(|| format!("cannot run {name}"))?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            return Ok(status);
        }
        if let Err(interrupted) = pause() {
            end(&mut child, Signal::TERM, END_PATIENCE);
            return Err(interrupted);
        }
    }
}

/// Has a child end by a signal, also after an interruption; kills it if it does not heed that.
pub(super) fn end(child: &mut Child, by: Signal, patience: Duration) {
    let deadline = Instant::now() + patience;
    let is_told = signal(child, by).is_ok();
    while is_told && matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
    // Does nothing to a child that was waited for.
    let _ = child.kill();
    let _ = child.wait();
}

/// Sends a signal to a child that was not waited for, so that its number is still its own.
pub(super) fn signal(child: &Child, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.context("a process id is a positive number")?, signal)
        .context("cannot send a signal to a child")
}

/// What a short `command` prints; an error with its messages if it fails.
pub(super) fn capture(command: &mut Command) -> anyhow::Result<String> {
    check()?;
    let Output { status, stdout, stderr } = command
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {}", process::describe(command)))?;
    if !status.success() {
        let messages = String::from_utf8_lossy(&stderr);
        bail!("{}: {status}: {}", process::describe(command), messages.trim_end());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
