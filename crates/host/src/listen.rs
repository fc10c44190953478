//! Where clients connect: addresses, and the sockets bound to them.
//!
//! A Unix socket is made for its owner alone and removed when the listener goes; a stale one is
//! removed before, but only after nobody answered on it. TCP has no authentication of its own, so
//! it binds to the loopback address unless another address is written out.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, ipproto, listen, socket_with,
    sockopt,
};
use thiserror::Error;

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// Where an NBD server listens: `unix:PATH`, a path with a slash, `tcp:PORT` or `tcp:ADDRESS:PORT`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ListenAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port. Port 0 lets the kernel choose.
    Tcp(SocketAddr),
}

/// An address that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "`{text}` is no address to listen on: expected unix:PATH, tcp:PORT (loopback only) \
     or tcp:ADDRESS:PORT"
)]
pub struct ListenAddressError {
    text: String,
}

impl FromStr for ListenAddress {
    type Err = ListenAddressError;

    fn from_str(text: &str) -> Result<ListenAddress, ListenAddressError> {
        let bad = || ListenAddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(ListenAddress::Unix(path.into())) };
        }
        if let Some(rest) = text.strip_prefix("tcp:") {
            if let Ok(port) = rest.parse::<u16>() {
                let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
                return Ok(ListenAddress::Tcp(SocketAddr::new(loopback, port)));
            }
            return rest.parse().map(ListenAddress::Tcp).map_err(|_| bad());
        }
        if text.contains('/') { Ok(ListenAddress::Unix(text.into())) } else { Err(bad()) }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// Why an address cannot be listened on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server answers there.
    #[error("another server listens on {address}; stop it or choose another address")]
    InUse {
        /// The address.
        address: ListenAddress,
    },
    /// Something else than a socket is there.
    #[error("{} exists and is no socket; choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refuses.
    #[error("cannot listen on {address}: {source}")]
    Socket {
        /// The address.
        address: ListenAddress,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A bound socket. A Unix socket's path is removed when it is dropped, unless another process has
/// the socket as well.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// As asked for.
    wanted: ListenAddress,
    address: ListenAddress,
    path: PathFate,
}

/// What becomes of the path of a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathFate {
    /// It is removed with the listener.
    Removed,
    /// It stays: a predecessor listens there, too.
    Kept,
}

impl Listener {
    /// Binds and listens.
    ///
    /// # Errors
    /// If the address is in use or the kernel refuses it.
    pub fn bind(address: &ListenAddress) -> Result<Listener, ListenError> {
        let wanted = address.clone();
        let failed = |source: io::Error| ListenError::Socket { address: address.clone(), source };
        let flags = SocketFlags::CLOEXEC;
        match address {
            ListenAddress::Unix(path) => {
                remove_stale(path, address)?;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                    .map_err(|errno| failed(errno.into()))?;
                let name = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
                bind(&socket, &name).map_err(|errno| failed(errno.into()))?;
                let listener =
                    Listener { socket, wanted, address: address.clone(), path: PathFate::Removed };
                // Between bind and listen nobody can connect, so the wider mode is never in force.
                rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)
                    .map_err(|errno| failed(errno.into()))?;
                listen(&listener.socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
                Ok(listener)
            }
            ListenAddress::Tcp(tcp) => {
                let family = if tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let protocol = Some(ipproto::TCP);
                let socket = socket_with(family, SocketType::STREAM, flags, protocol)
                    .map_err(|errno| failed(errno.into()))?;
                sockopt::set_socket_reuseaddr(&socket, true)
                    .map_err(|errno| failed(errno.into()))?;
                bind(&socket, tcp).map_err(|errno| match errno {
                    rustix::io::Errno::ADDRINUSE => ListenError::InUse { address: address.clone() },
                    other => failed(other.into()),
                })?;
                listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
                let bound = rustix::net::getsockname(&socket)
                    .map_err(|errno| failed(errno.into()))
                    .and_then(|name| {
                        SocketAddr::try_from(name).map_err(|errno| failed(errno.into()))
                    })?;
                let address = ListenAddress::Tcp(bound);
                Ok(Listener { socket, wanted, address, path: PathFate::Removed })
            }
        }
    }

    /// A socket that another process has bound, who still listens on it. Until that one listens no
    /// more, it leaves no trace when it is dropped.
    #[must_use]
    pub fn handed(socket: OwnedFd, wanted: ListenAddress, address: ListenAddress) -> Listener {
        Listener { socket, wanted, address, path: PathFate::Kept }
    }

    /// The other process listens no more.
    pub(crate) fn own_path(&mut self) {
        self.path = PathFate::Removed;
    }

    /// The same socket, for another process.
    pub(crate) fn duplicate(&self) -> io::Result<Listener> {
        let socket = self.socket.try_clone()?;
        Ok(Listener::handed(socket, self.wanted.clone(), self.address.clone()))
    }

    /// Whether somebody who asks for `address` means this socket: port 0 is any port.
    pub(crate) fn is_at(&self, address: &ListenAddress) -> bool {
        self.wanted == *address || self.address == *address
    }

    /// What was asked for.
    #[must_use]
    pub fn wanted(&self) -> &ListenAddress {
        &self.wanted
    }

    /// Where it listens, with the port that the kernel chose.
    #[must_use]
    pub fn address(&self) -> &ListenAddress {
        &self.address
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (ListenAddress::Unix(path), PathFate::Removed) = (&self.address, self.path) {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path, address: &ListenAddress) -> Result<(), ListenError> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
                .map_err(|source| ListenError::Socket { address: address.clone(), source })
        }
        // It answers, or it cannot be told: then it is not ours to remove.
        _ => Err(ListenError::InUse { address: address.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["unix:/run/a.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:1"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        let local: ListenAddress = "tcp:10809".parse().unwrap();
        assert_eq!(local.to_string(), "tcp:127.0.0.1:10809");
        assert_eq!("./a".parse::<ListenAddress>().unwrap().to_string(), "unix:./a");
        for text in ["", "unix:", "tcp:", "tcp:host:1", "socket", "tcp:99999"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = ListenAddress::Unix(path.clone());
        let stale = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // A process that another test forks meanwhile would go on listening after a mere close.
        rustix::net::shutdown(&stale, rustix::net::Shutdown::Both).unwrap();
        drop(stale);
        let live = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse { .. })));
        assert!(path.exists());
        drop(live);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn the_kernel_chooses_port_zero() {
        let listener = Listener::bind(&"tcp:0".parse().unwrap()).unwrap();
        let ListenAddress::Tcp(bound) = listener.address() else { panic!("not TCP") };
        assert!(bound.ip().is_loopback());
        assert_ne!(bound.port(), 0);
    }
}
