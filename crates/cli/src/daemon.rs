//! A running daemon: the shard on its thread, the admin server on another, signals on a third. The
//! main thread waits for what they tell, keeps systemd informed, and decides the exit code.
//!
//! The shard alone ends the daemon: on a stop command it finishes what is in flight and writes its
//! checkpoint; only when its thread has ended does the process end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_host::set::OpenedSet;
use forebay_host::{
    AdminCommand, AdminError, BareExport, ListenAddress, NotServing, Shard, ShardError,
    ShardHandle, ShardOptions,
};
use sd_notify::NotifyState;

use crate::admin::AdminServer;
use crate::admin::socket::{self, BoundSocket};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::{Progress, Unit};
use crate::signals::{self, HangUp, Signal};
use crate::systemd;
use crate::takeover::successor::{Predecessor, Succession};

/// How often the shard is looked at: bounds the age of what is shown of recovery.
const TICK: Duration = Duration::from_millis(500);

/// Microseconds that systemd is asked to wait on, at each look, while the set is recovered or
/// stopped: what has to be written to a slow origin then may take longer than its limit of 90 s.
/// Far more than lies between two looks, so that one that comes late does no harm.
const MORE_TIME_US: u32 = 60_000_000;

/// What a daemon is made of.
pub(crate) struct Daemon {
    pub(crate) options: ShardOptions,
    pub(crate) set: Option<OpenedSet>,
    pub(crate) bare: Vec<BareExport>,
    /// Where the admin socket shall be, if there shall be one.
    pub(crate) admin: Option<PathBuf>,
    /// The daemon that it takes over from, if there is one.
    pub(crate) predecessor: Option<Predecessor>,
}

enum Event {
    Signal(Signal),
    Serving(Result<(), NotServing>),
    Stopped(Result<(), AdminError>),
    Ended(Result<(), ShardError>),
}

/// The daemon at work, as the main thread sees it.
struct Watch {
    handle: ShardHandle,
    events: Receiver<Event>,
    sender: Sender<Event>,
    thread: JoinHandle<()>,
    addresses: Vec<ListenAddress>,
    recovery: Option<Progress>,
    is_serving: bool,
    is_stopping: bool,
    /// Why the stop that a signal asked for went wrong.
    stop_failure: Option<Failure>,
    took_over: Option<TookOver>,
}

/// How a takeover went.
struct TookOver {
    /// When requests began to be held back, and when the predecessor ended.
    began: Instant,
    committed: Instant,
}

/// The sockets for administrators.
struct AdminSockets {
    own: Option<BoundSocket>,
    /// That of the predecessor, if this daemon has another one.
    unclaimed: Option<BoundSocket>,
}

impl AdminSockets {
    /// Begins to serve: nobody else does any more.
    fn start(&mut self, handle: &ShardHandle) -> Result<Option<AdminServer>, Failure> {
        self.own.iter_mut().chain(&mut self.unclaimed).for_each(BoundSocket::own);
        self.unclaimed = None;
        self.own.take().map(|socket| AdminServer::start(socket, handle.clone())).transpose()
    }
}

/// All that comes before the first thread.
struct Prepared {
    shard: Shard,
    sockets: AdminSockets,
    /// What is to be said to a predecessor, and when that began to hold requests back.
    succession: Option<(Succession, Instant)>,
}

/// Makes the shard and its admin sockets, or takes them from a predecessor.
fn prepare(
    options: ShardOptions,
    set: Option<OpenedSet>,
    bare: Vec<BareExport>,
    (admin, predecessor): (Option<&Path>, Option<Predecessor>),
) -> Result<Prepared, Failure> {
    let bind = || admin.map(socket::bind).transpose();
    let Some(Predecessor { succession, listeners, admin: handed, memory, began }) = predecessor
    else {
        // First of all sockets: whoever finds a volume served can ask its daemon at once.
        let sockets = AdminSockets { own: bind()?, unclaimed: None };
        let shard = Shard::new(options, set, bare)?;
        return Ok(Prepared { shard, sockets, succession: None });
    };
    let set = set.expect("only cache sets are taken over");
    let shard = Shard::successor(options, set, listeners, memory)?;
    let sockets = if admin == Some(handed.path()) {
        AdminSockets { own: Some(handed), unclaimed: None }
    } else {
        AdminSockets { own: bind()?, unclaimed: Some(handed) }
    };
    Ok(Prepared { shard, sockets, succession: Some((succession, began)) })
}

/// Waits until the shard has read everything, and for the end of the predecessor.
fn take_over(
    handle: &ShardHandle,
    events: &Receiver<Event>,
    (succession, began): (Succession, Instant),
) -> Result<TookOver, Failure> {
    handle.read_wait().map_err(|error| {
        // If the shard has ended, it tells why.
        let failure = match events.recv_timeout(TICK) {
            Ok(Event::Ended(Err(reason))) => Failure::from(reason),
            _ => Failure::from(error),
        };
        // A predecessor that does not wait any longer writes, also where this one has read.
        if failure.exit == Exit::Damaged
            && let Some(refusal) = succession.last_word()
        {
            return refusal;
        }
        Failure::new(failure.exit, format!("nothing is taken over: {failure}"))
            .or("the daemon that runs goes on")
    })?;
    let supervisor = succession.finish()?;
    handle.take_over_wait().map_err(|error| Failure::failed(error.to_string()))?;
    supervisor.into_iter().for_each(systemd::inherit);
    Ok(TookOver { began, committed: Instant::now() })
}

impl Daemon {
    /// Serves until it is told to stop.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Daemon { options, set, bare, admin, predecessor } = self;
        let Prepared { shard, mut sockets, succession } =
            prepare(options, set, bare, (admin.as_deref(), predecessor))?;
        let handle = shard.handle();
        let addresses = shard.addresses();
        let (sender, events) = mpsc::channel();
        let signals = sender.clone();
        signals::watch(HangUp::Leave, move |signal| {
            // The receiver lives as long as the process serves.
            let _ = signals.send(Event::Signal(signal));
        })?;
        // Until this one serves, its predecessor answers.
        let mut server = match succession {
            None => sockets.start(&handle)?,
            Some(_) => None,
        };
        let ended = sender.clone();
        let thread = thread::Builder::new()
            .name("shard".into())
            .spawn(move || {
                let _ = ended.send(Event::Ended(shard.run()));
            })
            .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        let took_over = match succession {
            None => None,
            Some(succession) => {
                let took_over = take_over(&handle, &events, succession)?;
                server = sockets.start(&handle)?;
                Some(took_over)
            }
        };
        let serving = sender.clone();
        handle.serving(move |result| {
            let _ = serving.send(Event::Serving(result));
        });
        let watch = Watch {
            handle,
            events,
            sender,
            thread,
            addresses,
            recovery: None,
            is_serving: false,
            is_stopping: false,
            stop_failure: None,
            took_over,
        };
        let result = watch.run();
        // Whoever asked for the stop gets the answer before the process ends.
        drop(server);
        result
    }
}

impl Watch {
    fn run(mut self) -> Result<(), Failure> {
        let watchdog = systemd::watchdog_period();
        let tick = watchdog.map_or(TICK, |period| TICK.min(period / 3));
        loop {
            match self.events.recv_timeout(tick) {
                Ok(Event::Signal(signal)) => self.stop(signal),
                Ok(Event::Serving(Ok(()))) => {
                    self.is_serving = true;
                    self.log_takeover();
                    self.end_progress();
                    self.announce()?;
                    systemd::tell(NotifyState::Ready);
                }
                // The shard ends with the same error.
                Ok(Event::Serving(Err(_))) => self.end_progress(),
                Ok(Event::Stopped(Ok(()))) => {}
                Ok(Event::Stopped(Err(error))) => self.stop_failure = Some(error.into()),
                Ok(Event::Ended(result)) => {
                    self.end_progress();
                    return self.end(result);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.thread.is_finished() {
                        return Err(Failure::failed("the server's thread has died; see above"));
                    }
                    if !self.is_serving {
                        self.show_recovery();
                    }
                    self.show_life();
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("a sender is kept here"),
            }
        }
    }

    /// How long the clients waited, and for what.
    fn log_takeover(&self) {
        let Some(took_over) = &self.took_over else { return };
        let handed_ms = (took_over.committed - took_over.began).as_millis();
        let (start_ms, pause_ms) =
            (took_over.committed.elapsed().as_millis(), took_over.began.elapsed().as_millis());
        tracing::info!(%handed_ms, %start_ms, %pause_ms, "taken over");
    }

    /// Tells systemd that the shard lives, if it answers.
    fn show_life(&self) {
        if !systemd::is_listening() || self.handle.status_wait().is_err() {
            return;
        }
        if !self.is_serving || self.is_stopping {
            systemd::tell(NotifyState::ExtendTimeoutUsec(MORE_TIME_US));
        }
        if systemd::watchdog_period().is_some() {
            systemd::tell(NotifyState::Watchdog);
        }
    }

    fn stop(&mut self, signal: Signal) {
        if self.is_stopping {
            tracing::info!("still finishing what is in flight");
            return;
        }
        self.is_stopping = true;
        tracing::info!(?signal, "stopping");
        systemd::tell(NotifyState::Stopping);
        let sender = self.sender.clone();
        self.handle.command(AdminCommand::Stop, move |outcome| {
            let _ = sender.send(Event::Stopped(outcome.map(|_| ())));
        });
    }

    fn end(mut self, result: Result<(), ShardError>) -> Result<(), Failure> {
        systemd::tell(NotifyState::Stopping);
        // What the stop had to say was sent before the shard ended.
        while let Ok(event) = self.events.try_recv() {
            if let Event::Stopped(Err(error)) = event {
                self.stop_failure = Some(error.into());
            }
        }
        let thread = self.thread.join();
        assert!(thread.is_ok(), "the thread has told that the shard ended");
        result?;
        match self.stop_failure.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// One line per export and address on stdout: the URI that clients connect to, or the path of a
    /// block device or of a vhost-user socket.
    fn announce(&self) -> Result<(), Failure> {
        let Ok(status) = self.handle.status_wait() else { return Ok(()) };
        let mut text = String::new();
        for export in &status.exports {
            if let Some(reason) = &export.unavailable {
                output::say(&format!("forebay: volume `{}` is not served: {reason}", export.name));
                continue;
            }
            if let Some(path) = &export.block_device {
                text.push_str(path);
                text.push('\n');
                continue;
            }
            if let Some(path) = &export.vhost_user {
                text.push_str(&format!("vhost-user:{}\n", absolute_text(path)));
                continue;
            }
            for address in &self.addresses {
                text.push_str(&uri(address, &export.name));
                text.push('\n');
            }
        }
        output::print(&text)
    }

    fn show_recovery(&mut self) {
        let Ok(status) = self.handle.status_wait() else { return };
        let Some(set) = status.set.map(|set| set.status) else { return };
        let (done, total) = set.recovery_segments;
        let progress = self
            .recovery
            .get_or_insert_with(|| Progress::start("recovering", Unit::Segments, total.into()));
        progress.set(done.into());
    }

    fn end_progress(&mut self) {
        if let Some(progress) = self.recovery.take() {
            progress.finish();
        }
    }
}

/// Where a client finds an export, as `nbdinfo` and its kin take it.
pub(crate) fn uri(address: &ListenAddress, export: &str) -> String {
    let name = percent_encode(export);
    match address {
        ListenAddress::Unix(path) => {
            let path = percent_encode(&absolute_text(path));
            format!("nbd+unix:///{name}?socket={path}")
        }
        ListenAddress::Tcp(SocketAddr::V4(address)) => format!("nbd://{address}/{name}"),
        ListenAddress::Tcp(SocketAddr::V6(address)) => format!("nbd://{address}/{name}"),
    }
}

fn absolute_text(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.to_string_lossy().into_owned()
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_those_of_the_nbd_specification() {
        let unix = ListenAddress::Unix("/run/a b.sock".into());
        assert_eq!(uri(&unix, "home"), "nbd+unix:///home?socket=/run/a%20b.sock");
        let tcp: ListenAddress = "tcp:127.0.0.1:10809".parse().unwrap();
        assert_eq!(uri(&tcp, "home"), "nbd://127.0.0.1:10809/home");
        let tcp: ListenAddress = "tcp:[::1]:1".parse().unwrap();
        assert_eq!(uri(&tcp, "ä"), "nbd://[::1]:1/%C3%A4");
    }
}
