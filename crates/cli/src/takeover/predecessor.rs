//! The daemon that is taken over from. See [`super`] for the order.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_host::state_file::set_id_text;
use forebay_host::takeover::{HandedDevice, HandedOver, TAKEOVER_MAX};
use forebay_host::{ListenAddress, Listener, SetReport, ShardHandle};
use sd_notify::NotifyState;

use super::wire::Wire;
use super::{Message, Role, TakeoverRequest, VERSION};
use crate::admin::socket::BoundSocket;
use crate::exit::Failure;
use crate::systemd;

/// How long a successor may take to open sockets and allocate memory. Nobody waits meanwhile.
const PREPARATION_MAX: Duration = Duration::from_secs(60);

/// Judges a request and begins to hand over, on a thread of its own.
pub(crate) fn begin(
    request: &TakeoverRequest,
    set: &SetReport,
    handle: ShardHandle,
    admin: Arc<BoundSocket>,
) -> Result<(), Failure> {
    if request.version != VERSION {
        let (theirs, ours) = (request.version, VERSION);
        return Err(Failure::refused(format!(
            "a successor with version {theirs} of the exchange cannot take over from this daemon, \
             which has version {ours}"
        ))
        .or("stop this daemon and start the other one"));
    }
    if set_id_text(&set.set_id) != request.set_id {
        return Err(Failure::refused(format!("this daemon does not serve {}", request.set_id))
            .or("name the cache device that it serves"));
    }
    refuse_other_state(request, &set.state_file)?;
    let failed = |error: io::Error| {
        Failure::failed(format!(
            "cannot meet the successor at {}: {error}",
            request.socket.display()
        ))
    };
    let wire = Wire::connect(&request.socket).map_err(failed)?;
    let (pid, user) = wire.peer().map_err(failed)?;
    if user != rustix::process::geteuid().as_raw() {
        return Err(Failure::refused("the successor runs as another user")
            .or("start it as the user of this daemon"));
    }
    let work = move || {
        if let Err(error) = hand_over(&wire, pid, &handle, &admin) {
            tracing::warn!("process {pid} does not take over: {error}");
            // If it is gone, it need not be told.
            let _ = wire.send(&Message::Refused { reason: error.to_string() }, None);
        }
    };
    thread::Builder::new().name("takeover".into()).spawn(work).map_err(failed)?;
    Ok(())
}

/// What the host knows of a set has to stay in one place: a file that nobody writes any more would
/// go on to say which volumes are clean.
fn refuse_other_state(request: &TakeoverRequest, state_file: &Path) -> Result<(), Failure> {
    let (Some(theirs), Some(ours)) = (&request.state_directory, state_file.parent()) else {
        return Ok(());
    };
    // The successor makes what is missing, so there may be nothing to resolve.
    let resolve = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if resolve(theirs) == resolve(ours) {
        return Ok(());
    }
    let (theirs, ours) = (theirs.display(), ours.display());
    Err(Failure::refused(format!(
        "this daemon keeps the state of the set in {ours}, and its successor would in {theirs}"
    ))
    .or(format!("add --state-dir {ours}")))
}

/// Until the commit, which ends the process.
fn hand_over(
    wire: &Wire,
    successor: u32,
    handle: &ShardHandle,
    admin: &BoundSocket,
) -> io::Result<()> {
    let status = handle.status_wait().map_err(io::Error::other)?;
    let devices = status.exports.iter().filter(|export| export.block_device.is_some());
    let offer = Message::Offer {
        pid: std::process::id(),
        ublk: devices.map(|export| export.name.clone()).collect(),
        supervisor: systemd::supervisor(),
    };
    wire.send(&offer, None)?;
    wire.set_patience(PREPARATION_MAX)?;
    expect(wire, &Message::Begin {})?;
    let began = Instant::now();
    let handed = handle.begin_takeover_wait().map_err(io::Error::other)?;
    let ticket = handed.ticket;
    let result = finish(wire, successor, handle, handed, admin, began);
    if result.is_err() {
        handle.cancel_takeover(ticket);
    }
    result
}

/// Gives everything to the successor and waits for its word.
fn finish(
    wire: &Wire,
    successor: u32,
    handle: &ShardHandle,
    handed: HandedOver,
    admin: &BoundSocket,
    began: Instant,
) -> io::Result<()> {
    send_all(wire, &handed, admin)?;
    let HandedOver { ticket, held_for, .. } = handed;
    let silent = Instant::now();
    let left = TAKEOVER_MAX.saturating_sub(began.elapsed());
    wire.set_patience(left.max(Duration::from_millis(1)))?;
    expect(wire, &Message::Ready {})?;
    let (held_ms, read_ms) = (held_for.as_millis(), silent.elapsed().as_millis());
    let told = wire.try_clone()?;
    let end = move || {
        if let Err(error) = told.send_at_once(&Message::Yours {}) {
            tracing::warn!("process {successor} is gone: {error}");
            return;
        }
        // From here on nothing of this process may reach a device. systemd hears of its new main
        // process from the old one, before that ends: it would take the end for the service's.
        systemd::tell(NotifyState::MainPid(successor));
        tracing::info!(successor, %held_ms, %read_ms, "taken over: this process ends");
        std::process::exit(0);
    };
    handle.commit_takeover(ticket, end);
    // The shard decides. If it goes on, either the successor was gone or it was too late.
    match wire.receive() {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other("it was ready too late"))
        }
        _ => Err(io::Error::other("it has ended")),
    }
}

/// The next message must be this one.
fn expect(wire: &Wire, wanted: &Message) -> io::Result<()> {
    match wire.receive() {
        Ok(received) if received.message == *wanted => Ok(()),
        Ok(received) => Err(io::Error::other(format!("it says {:?}", received.message))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(io::Error::other("it has ended"))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::other("it takes too long"))
        }
        Err(error) => Err(error),
    }
}

fn send_all(wire: &Wire, handed: &HandedOver, admin: &BoundSocket) -> io::Result<()> {
    let HandedDevice { descriptor, spec } = &handed.devices.cache;
    wire.send(&Message::Cache { device: spec.to_string() }, Some(descriptor.as_fd()))?;
    for (slot, HandedDevice { descriptor, spec }) in &handed.devices.origins {
        let message = Message::Origin { slot: slot.0, device: spec.to_string() };
        wire.send(&message, Some(descriptor.as_fd()))?;
    }
    let of_role = |role, listeners: &[Listener]| -> io::Result<()> {
        for listener in listeners {
            send_listener(wire, role, listener.as_fd(), listener.wanted(), listener.address())?;
        }
        Ok(())
    };
    of_role(Role::Nbd, &handed.listeners.nbd)?;
    of_role(Role::VhostUser, &handed.listeners.vhost_user)?;
    let socket = admin.listener();
    let address = ListenAddress::Unix(absolute(admin.path()));
    send_listener(wire, Role::Admin, socket.as_fd(), &address, &address)?;
    wire.send(&Message::Silent {}, None)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn send_listener(
    wire: &Wire,
    role: Role,
    socket: BorrowedFd<'_>,
    wanted: &ListenAddress,
    address: &ListenAddress,
) -> io::Result<()> {
    let (wanted, address) = (wanted.to_string(), address.to_string());
    wire.send(&Message::Listener { role, wanted, address }, Some(socket))
}
