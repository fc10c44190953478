//! `forebay down`: takes away what `forebay up` has made.
//!
//! The order matters: a daemon that stops under a client takes the device away from whoever uses
//! it. So first nobody may use a device, then clients go, then the daemon. Clients that something
//! else has connected, such as a virtual machine, keep the daemon unless they are to go, too.

use std::time::{Duration, Instant};

use crate::admin::api::{Connection, Status};
use crate::admin::client::{self, AdminClient};
use crate::admin::socket;
use crate::args::DownArguments;
use crate::block_devices::background::{self, Follows, Plan};
use crate::block_devices::record::{Device, Record, take_turn};
use crate::block_devices::set::Set;
use crate::block_devices::users::{Server, user_of};
use crate::block_devices::{self, FrontEndKind, link, nbd_client};
use crate::commands::format::absolute;
use crate::exit::Failure;
use crate::output;

/// How long clients that were disconnected may be known to the daemon.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Runs the command.
pub(crate) fn run(arguments: &DownArguments) -> Result<(), Failure> {
    let set = Set::identify_or_remember(&arguments.cache)?;
    let cache = set.cache.display();
    let _turn = take_turn(set.name())?;
    let record = Record::load(set.name())?;
    let admin = arguments.admin.admin.as_deref();
    let daemon = background::find(&set, admin, record.as_ref())?;
    let status = daemon.as_ref().map(|daemon| client::block_on(daemon.status())?).transpose()?;
    let devices = devices(record.as_ref(), status.as_ref());
    if daemon.is_none() && devices.is_empty() {
        forget(&set, record.as_ref(), &devices)?;
        return Err(
            Failure::not_found(format!("{cache} is not up")).or("`forebay status` shows what runs")
        );
    }
    let server = if daemon.is_some() { Server::Lives } else { Server::IsDead };
    refuse_if_used(&set, &devices, server)?;
    if let Some(status) = status.as_ref().filter(|_| !arguments.with_clients) {
        refuse_if_served(status, &devices)?;
    }
    let mut text = String::new();
    for device in &devices {
        // Whoever came while others were disconnected would be cut off.
        if let Err(failure) = refuse_if_used(&set, std::slice::from_ref(device), server) {
            output::print(&text)?;
            return Err(failure);
        }
        link::forget(device);
        block_devices::disconnect(device)?;
        text.push_str(&format!("{} {} removed\n", device.name, device.path().display()));
    }
    let waits = |device: &&Device| {
        device.front_end == FrontEndKind::Ublk && block_devices::is_there(device)
    };
    let daemon = match daemon {
        None if devices.iter().any(|device| waits(&device)) => {
            Some(take_over(&set, arguments, record.as_ref())?)
        }
        daemon => daemon,
    };
    if let Some(daemon) = daemon {
        let pid = match await_no_clients(&daemon, arguments) {
            Ok(pid) => pid,
            Err(failure) => {
                output::print(&text)?;
                return Err(failure);
            }
        };
        background::stop(&daemon, pid)?;
        text.push_str(&format!("daemon {pid} has stopped\n"));
    }
    if let Some(kept) = devices.iter().find(waits) {
        output::print(&text)?;
        return Err(why_kept(&set, record.as_ref(), kept));
    }
    forget(&set, record.as_ref(), &devices)?;
    output::print(&text)
}

/// Why a ublk device is there though its daemon has stopped: somebody came meanwhile, or what had
/// been written to it could not be written out, as when its origin is missing.
fn why_kept(set: &Set, record: Option<&Record>, kept: &Device) -> Failure {
    let (node, name, cache) = (kept.device.display(), &kept.name, set.cache.display());
    if let Some(user) = user_of(kept, Server::IsDead) {
        return Failure::refused(format!("{node} of `{name}` is {user} meanwhile, and is kept"))
            .or(format!("`forebay up {cache}` serves it again"));
    }
    let log = record.and_then(|record| record.log.as_ref());
    let log = log.map_or_else(String::new, |log| format!(" ({} has the reason)", log.display()));
    let what = "is kept, since the daemon could not end it";
    Failure::refused(format!("{node} of `{name}` {what}{log}")).or(format!(
        "when its origin is there and takes writes, `forebay up {cache}` serves it again, and \
         `forebay down {cache}` ends it; `ublk del` of the ublksrv package gives up what was \
         written to it and is not in the cache"
    ))
}

/// Forgets what was set up, and names that are left of devices that had gone by themselves.
fn forget(set: &Set, record: Option<&Record>, taken: &[Device]) -> Result<(), Failure> {
    let remembered = record.into_iter().flat_map(|record| &record.devices);
    remembered.filter(|device| !taken.contains(device)).for_each(link::forget);
    Record::remove(set.name())
}

/// What has to go: what is remembered and still there, and what the daemon itself has.
fn devices(record: Option<&Record>, status: Option<&Status>) -> Vec<Device> {
    let remembered = record.into_iter().flat_map(|record| record.devices.iter().cloned());
    let mut devices: Vec<Device> = remembered.filter(block_devices::has_remains).collect();
    for export in status.into_iter().flat_map(|status| &status.exports) {
        let Some(path) = &export.block_device else { continue };
        if devices.iter().any(|device| device.device.as_os_str() == path.as_str()) {
            continue;
        }
        devices.push(Device::of_ublk(export, path));
    }
    devices
}

/// Names all users of all devices, so that they can be ended in one go.
fn refuse_if_used(set: &Set, devices: &[Device], server: Server) -> Result<(), Failure> {
    let there = devices.iter().filter(|device| block_devices::is_there(device));
    let used = there.filter_map(|device| {
        let user = user_of(device, server)?;
        Some(format!("{} of `{}` is {user}", device.path().display(), device.name))
    });
    let used: Vec<String> = used.collect();
    if used.is_empty() {
        return Ok(());
    }
    let cache = set.cache.display();
    let failure = Failure::refused(used.join(", "));
    Err(if server == Server::Lives {
        failure.or(format!("release it (`umount`), then `forebay down {cache}` again"))
    } else if devices.iter().any(|device| device.front_end == FrontEndKind::Ublk) {
        failure.or(format!(
            "its daemon has ended, and `forebay up {cache}` serves it again; then release it"
        ))
    } else {
        failure.or(format!(
            "its daemon has ended: end who uses it, unmount it, then `forebay down {cache}` again"
        ))
    })
}

/// Clients that are served a volume, other than those of `devices` and the devices that the daemon
/// itself has made.
fn foreign_clients<'a>(status: &'a Status, devices: &[Device]) -> Vec<&'a Connection> {
    let is_device = |client: &Connection| {
        status.exports.iter().any(|export| export.block_device.as_ref() == Some(&client.peer))
    };
    let served = status.connections.iter().filter(|client| client.export.is_some());
    let mut clients: Vec<&Connection> = served.filter(|client| !is_device(client)).collect();
    for device in devices {
        // Of nbdfuse there may be several, also when its loop device is gone already.
        let is_own = |client: &Connection| {
            let pid = client.peer_pid.filter(|_| client.export.as_ref() == Some(&device.name));
            pid.is_some() && pid == device.client_pid
        };
        let count = clients.len();
        clients.retain(|client| !is_own(client));
        if clients.len() == count
            && device.front_end == FrontEndKind::Nbd
            && block_devices::is_there(device)
        {
            remove_forked_client(&mut clients, &device.name);
        }
    }
    clients
}

/// An `nbd-client` without netlink connects, and then leaves the connection to another process,
/// which is the one that the kernel names.
fn remove_forked_client(clients: &mut Vec<&Connection>, volume: &str) {
    let is_of_volume = |client: &Connection| client.export.as_deref() == Some(volume);
    let is_program =
        |client: &Connection| client.peer.split(' ').next() == Some(nbd_client::PROGRAM);
    let own = clients.iter().filter(|client| is_of_volume(client) && is_program(client));
    if let Some(id) = own.map(|client| client.id).min() {
        clients.retain(|client| client.id != id);
    }
}

fn refuse_if_served(status: &Status, devices: &[Device]) -> Result<(), Failure> {
    let users = foreign_clients(status, devices).into_iter().map(|client| {
        format!("{} uses `{}`", client.peer, client.export.as_deref().unwrap_or_default())
    });
    let users: Vec<String> = users.collect();
    if users.is_empty() {
        return Ok(());
    }
    let text = format!("daemon {} is kept: {}", status.pid, users.join(", "));
    Err(Failure::refused(text).or(
        "end these clients, then again; or add --with-clients, which takes the volumes away from \
         them",
    ))
}

/// Waits a moment for the daemon to notice that clients have gone. Returns its process.
fn await_no_clients(daemon: &AdminClient, arguments: &DownArguments) -> Result<u32, Failure> {
    let deadline = Instant::now() + CLIENT_PATIENCE;
    loop {
        let status = client::block_on(daemon.status())??;
        match refuse_if_served(&status, &[]) {
            Ok(()) => return Ok(status.pid),
            Err(_) if arguments.with_clients => return Ok(status.pid),
            Err(failure) if Instant::now() >= deadline => return Err(failure),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Serves ublk devices whose daemon has died, so that what waits at them is carried out and they
/// can be removed.
fn take_over(
    set: &Set,
    arguments: &DownArguments,
    record: Option<&Record>,
) -> Result<AdminClient, Failure> {
    let record = record.expect("only a record knows of devices without a daemon");
    let admin = arguments.admin.admin.clone();
    let admin = absolute(&admin.unwrap_or_else(|| socket::default_path(set.name())))?;
    let state_dir = record.state_dir.clone();
    let plan = Plan { front_end: FrontEndKind::Ublk, state_dir, admin, more: Vec::new() };
    background::start(set, &plan, Follows::Ended)?;
    Ok(AdminClient::new(&plan.admin))
}
