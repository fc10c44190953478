//! SIGINT and SIGTERM as messages, and for some SIGHUP.

use std::thread;

use tokio::runtime;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::exit::Failure;

/// Which signal came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    Interrupt,
    Terminate,
    HangUp,
}

/// What becomes of SIGHUP, which comes when the terminal is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HangUp {
    /// It is left as it is: it ends the process, or is ignored.
    Leave,
    /// It is a message, too, unless the process was started to ignore it (`nohup`).
    Watch,
}

/// Calls back for each signal, on a thread of its own, from when this returns until the process
/// ends.
pub(crate) fn watch(
    hang_up: HangUp,
    mut callback: impl FnMut(Signal) + Send + 'static,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot watch signals: {error}"));
    let runtime = runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate, mut hang_up) = {
        let _guard = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let is_watched = hang_up == HangUp::Watch && !ignores_hang_up();
        let hang_up = is_watched.then(|| signal(SignalKind::hangup())).transpose();
        (interrupt, terminate, hang_up.map_err(failed)?)
    };
    let watcher = async move {
        loop {
            let signal = tokio::select! {
                Some(()) = interrupt.recv() => Signal::Interrupt,
                Some(()) = terminate.recv() => Signal::Terminate,
                Some(()) = received(&mut hang_up) => Signal::HangUp,
                else => return,
            };
            callback(signal);
        }
    };
    let spawned = thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(watcher);
    });
    spawned.map(|_| ()).map_err(failed)
}

/// The next one; never, if they are not watched.
async fn received(signals: &mut Option<unix::Signal>) -> Option<()> {
    match signals {
        Some(signals) => signals.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether this process was started to ignore SIGHUP, as the kernel tells it.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // The first bit is that of signal 1.
    ignored
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}
