//! What systemd is told, if it asked to be: that the daemon is ready, lives, needs more time,
//! stops.
//!
//! `sd-notify` has the messages and the watchdog's period; the socket is our own, because its knows
//! only paths, and systemd may listen at an abstract address.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

/// Where to tell it.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// Longest wait for a listener that does not listen: the daemon has to go on.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether anybody asked.
pub(crate) fn is_listening() -> bool {
    std::env::var_os(SOCKET_VARIABLE).is_some()
}

/// How often the watchdog wants to hear of us at least; `None` if there is none.
pub(crate) fn watchdog_period() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Tells systemd, if it listens.
pub(crate) fn tell(state: NotifyState<'_>) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
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
