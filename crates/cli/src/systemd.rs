//! What systemd is told, if it asked to be: that the daemon is ready, lives, needs more time,
//! stops.
//!
//! `sd-notify` has the messages and the watchdog's period; the socket is our own, because its knows
//! only paths, and systemd may listen at an abstract address.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::takeover::Supervisor;

/// Where to tell it.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// Longest wait for a listener that does not listen: the daemon has to go on.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Of a predecessor, whose environment this process does not have.
static INHERITED: OnceLock<Supervisor> = OnceLock::new();

/// This process goes on for another one, and tells whom that one told.
pub(crate) fn inherit(supervisor: Supervisor) {
    // A second time it would be the same.
    let _ = INHERITED.set(supervisor);
}

/// Who is told, for a successor.
pub(crate) fn supervisor() -> Option<Supervisor> {
    let socket = socket_name()?.into_string().ok()?;
    let watchdog_us = watchdog_period().and_then(|period| u64::try_from(period.as_micros()).ok());
    Some(Supervisor { socket, watchdog_us })
}

fn socket_name() -> Option<OsString> {
    let inherited = INHERITED.get().map(|supervisor| supervisor.socket.clone().into());
    inherited.or_else(|| std::env::var_os(SOCKET_VARIABLE))
}

/// Whether anybody asked.
pub(crate) fn is_listening() -> bool {
    socket_name().is_some()
}

/// How often the watchdog wants to hear of us at least; `None` if there is none.
pub(crate) fn watchdog_period() -> Option<Duration> {
    match INHERITED.get() {
        Some(supervisor) => supervisor.watchdog_us.map(Duration::from_micros),
        None => sd_notify::watchdog_enabled(),
    }
}

/// Tells systemd, if it listens.
pub(crate) fn tell(state: NotifyState<'_>) {
    let Some(socket) = socket_name() else { return };
    if let Err(error) = send(&socket, &format!("{state}\n")) {
        tracing::debug!(%error, "systemd cannot be told");
    }
}

fn send(name: &OsStr, message: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    socket.send_to_addr(message.as_bytes(), &address).map(|_| ())
}
