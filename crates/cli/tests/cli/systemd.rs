//! What the daemon tells systemd, on a socket of the test's own.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::support::{Scratch, Server};

/// Longest wait for a message; only a broken daemon takes it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Period of the watchdog, microseconds. Only short, so that the test need not wait.
const WATCHDOG_USEC: &str = "300000";

/// Where systemd would listen. A thread reads on and on, as systemd does: the kernel's queue is
/// short.
struct Listener {
    lines: Receiver<String>,
    /// As in `NOTIFY_SOCKET`.
    name: OsString,
}

impl Listener {
    fn at_path(scratch: &Scratch) -> Listener {
        let path = scratch.path("notify");
        Listener::new(UnixDatagram::bind(&path).unwrap(), path.into())
    }

    /// In the abstract namespace, as in containers.
    fn abstract_name(scratch: &Scratch) -> Listener {
        let name = scratch.path("notify").display().to_string();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Listener::new(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}").into())
    }

    fn new(socket: UnixDatagram, name: OsString) -> Listener {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                // One datagram may hold several lines. The test may have ended.
                if text.lines().any(|line| sender.send(line.to_owned()).is_err()) {
                    return;
                }
            }
        });
        Listener { lines, name }
    }

    fn serve(&self, scratch: &Scratch) -> Server {
        let watchdog = Path::new(WATCHDOG_USEC);
        let name = Path::new(&self.name);
        let environment = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", watchdog)];
        scratch.serve_with(&["cache.img"], &environment)
    }

    /// Messages up to the one that begins so.
    fn until(&self, wanted: &str) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        while seen.last().is_none_or(|line| !line.starts_with(wanted)) {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => seen.push(line),
                Err(error) => panic!("no {wanted} ({error}) after {seen:?}"),
            }
        }
        seen
    }

    /// What else has come.
    fn rest(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }
}

fn lives_and_says_so(listener: &Listener, scratch: &Scratch) {
    let server = listener.serve(scratch);
    let before = listener.until("READY=1");
    assert!(!before.iter().any(|line| line == "STOPPING=1"), "{before:?}");
    listener.until("WATCHDOG=1");
    // Not once, but on and on.
    listener.until("WATCHDOG=1");
    assert_eq!(server.terminate(), Some(0));
    let last = listener.until("STOPPING=1");
    let all: Vec<String> = last.into_iter().chain(listener.rest()).collect();
    assert!(!all.iter().any(|line| line == "READY=1"), "{all:?}");
}

#[test]
fn systemd_is_told_that_the_daemon_is_ready_lives_and_stops() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    lives_and_says_so(&Listener::at_path(&scratch), &scratch);
}

#[test]
fn an_abstract_socket_of_systemd_does_as_well() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    lives_and_says_so(&Listener::abstract_name(&scratch), &scratch);
}

/// Recovery reads the origin, which is longer away than the daemon waits between two looks.
#[test]
fn systemd_is_asked_for_more_time_while_a_slow_set_is_recovered() {
    let scratch = Scratch::new();
    scratch.run(&["format", "cache.img", "--size", "32M"]).expect(0);
    scratch.file("origin.img", 1 << 20);
    scratch.run(&["attach", "cache.img", "remote:400:origin.img", "--name", "vol"]).expect(0);
    let listener = Listener::at_path(&scratch);
    let server = listener.serve(&scratch);
    let before = listener.until("READY=1");
    let asks = before.iter().any(|line| line.starts_with("EXTEND_TIMEOUT_USEC="));
    assert!(asks, "{before:?}");
    assert_eq!(server.terminate(), Some(0));
}

/// A set that cannot be served is never called ready.
#[test]
fn a_refused_set_is_not_ready() {
    let scratch = Scratch::new();
    let cache = scratch.cache_with_volume("writeback");
    let listener = Listener::at_path(&scratch);
    let geometry = scratch.run(&["show", "cache.img", "--json"]).json()["geometry"].clone();
    let number = |name: &str| usize::try_from(geometry[name].as_u64().unwrap()).unwrap();
    let (offset, length) = (number("checkpoint_offset_bytes"), number("checkpoint_bytes"));
    let mut bytes = std::fs::read(&cache).unwrap();
    bytes[offset..offset + 2 * length].fill(0);
    std::fs::write(&cache, bytes).unwrap();
    let ended = scratch.serve_to_its_end(&listener.name);
    ended.expect(5).says("neither checkpoint");
    let seen = listener.until("STOPPING=1");
    assert!(!seen.iter().any(|line| line.contains("READY=1")), "{seen:?}");
}

#[test]
fn the_predecessor_names_the_new_main_process_before_it_ends() {
    let scratch = Scratch::new();
    scratch.cache_with_volume("writeback");
    let listener = Listener::at_path(&scratch);
    let predecessor = listener.serve(&scratch);
    listener.until("READY=1");
    let successor = scratch.take_over();
    assert_eq!(predecessor.ended(), Some(0));
    listener.until(&format!("MAINPID={}", successor.pid()));
    // It knows only from the other one where systemd listens, and how often it wants to hear.
    listener.until("READY=1");
    listener.until("WATCHDOG=1");
    assert_eq!(successor.terminate(), Some(0));
    listener.until("STOPPING=1");
}
