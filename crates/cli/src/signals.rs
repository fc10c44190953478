//! SIGINT and SIGTERM as messages.

use std::thread;

use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Failure;

/// Which signal came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    Interrupt,
    Terminate,
}

/// Calls back for each signal, on a thread of its own, from when this returns until the process
/// ends.
pub(crate) fn watch(mut callback: impl FnMut(Signal) + Send + 'static) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::failed(format!("cannot watch signals: {error}"));
    let runtime = runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        (interrupt, signal(SignalKind::terminate()).map_err(failed)?)
    };
    let watcher = async move {
        loop {
            let signal = tokio::select! {
                Some(()) = interrupt.recv() => Signal::Interrupt,
                Some(()) = terminate.recv() => Signal::Terminate,
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
