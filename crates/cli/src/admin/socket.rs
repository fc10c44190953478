//! Admin sockets: where they are, how one is made, which daemons answer.
//!
//! A socket belongs to its owner alone. One that is in the way is replaced only if nobody answers
//! on it, and removed when the daemon ends.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Where daemons have their sockets unless told otherwise.
const RUN_DIRECTORY: &str = "/run/forebay";
/// Connections that may wait to be accepted: as many as the kernel lets, as for a new socket.
const BACKLOG: i32 = -1;
/// Ending of admin sockets there.
const ENDING: &str = "admin";

/// The directory of the sockets.
pub(crate) fn run_directory() -> PathBuf {
    std::env::var_os("FOREBAY_RUN_DIR").map_or_else(|| RUN_DIRECTORY.into(), PathBuf::from)
}

/// The default admin socket of a daemon. `name` tells daemons apart.
pub(crate) fn default_path(name: &str) -> PathBuf {
    run_directory().join(format!("{name}.{ENDING}"))
}

/// Admin sockets in the run directory on which somebody answers, sorted.
pub(crate) fn running() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(run_directory()) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == ENDING))
        .filter(|path| UnixStream::connect(path).is_ok())
        .collect();
    paths.sort();
    paths
}

/// A listening socket. Its path is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    listener: Option<UnixListener>,
    path: PathBuf,
    /// Whether another process listens there, too, whose path it is.
    is_shared: bool,
}

impl BoundSocket {
    /// A socket of another daemon that is to end. Its path stays until [`BoundSocket::own`].
    pub(crate) fn handed(listener: UnixListener, path: PathBuf) -> BoundSocket {
        BoundSocket { listener: Some(listener), path, is_shared: true }
    }

    /// The other daemon has ended. Who connects from now on is told by the kernel that this process
    /// listens, not the one that bound the socket.
    pub(crate) fn own(&mut self) {
        self.is_shared = false;
        let listener = self.listener.as_ref().expect("it lives as long as this");
        if let Err(error) = rustix::net::listen(listener, BACKLOG) {
            tracing::warn!("clients of {} see another process: {error}", self.path.display());
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The listener, once.
    pub(crate) fn listener(&self) -> UnixListener {
        let listener = self.listener.as_ref().expect("it lives as long as this");
        listener.try_clone().expect("a descriptor can be duplicated")
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if !self.is_shared {
            // If it is gone already, so much the better.
            let _ = std::fs::remove_file(&self.path);
        }
        self.listener = None;
    }
}

/// Makes a socket.
pub(crate) fn bind(path: &Path) -> Result<BoundSocket, Failure> {
    let place = path.display();
    let failed = |what: &str, error: std::io::Error| {
        Failure::failed(format!("cannot {what} admin socket {place}: {error}"))
            .or("--admin chooses another path")
    };
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| failed("make a directory for", error))?;
    }
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(Failure::refused(format!("{place} exists and is no socket"))
                .or("--admin chooses another path"));
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| failed("replace", error))?;
            }
            _ => {
                return Err(Failure::refused(format!("another daemon answers on {place}"))
                    .or("stop it, or choose another path with --admin"));
            }
        }
    }
    let listener = UnixListener::bind(path).map_err(|error| failed("make", error))?;
    let bound = BoundSocket { listener: Some(listener), path: path.to_owned(), is_shared: false };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| failed("protect", error))?;
    let listener = bound.listener.as_ref().expect("made above");
    listener.set_nonblocking(true).map_err(|error| failed("prepare", error))?;
    Ok(bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("not/yet/there.admin");
        let live = bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().exit, Exit::Refused);
        drop(live);
        assert!(!path.exists());
        let stale = UnixListener::bind(&path).unwrap();
        // A process that another test forks meanwhile would go on listening after a mere close.
        rustix::net::shutdown(&stale, rustix::net::Shutdown::Both).unwrap();
        drop(stale);
        assert!(path.exists());
        let again = bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(again);
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(bind(&path).unwrap_err().exit, Exit::Refused);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
