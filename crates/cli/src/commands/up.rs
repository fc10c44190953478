//! `forebay up`: a daemon in the background, and a block device for every volume.
//!
//! Each step looks at what is there before it makes something, so that a second `up` completes what
//! a first one left: a daemon that died, a client that was disconnected, a volume that was attached
//! since.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde::Serialize;

use crate::admin::api::{Export, Status};
use crate::admin::client::{self, AdminClient};
use crate::admin::socket;
use crate::args::UpArguments;
use crate::block_devices::background::{self, Follows, Plan};
use crate::block_devices::record::{Device, Record, take_turn};
use crate::block_devices::set::Set;
use crate::block_devices::users::{Server, user_of};
use crate::block_devices::{self, FrontEndKind, link, machine};
use crate::commands::format::absolute;
use crate::exit::{Exit, Failure};
use crate::output;

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    set_id: &'a str,
    cache_device: &'a Path,
    daemon_pid: u32,
    /// Where the daemon's messages are; absent if something else started it.
    log: Option<&'a Path>,
    /// Whether a daemon served the set before.
    was_up: bool,
    volumes: Vec<VolumeReport<'a>>,
}

#[derive(Serialize)]
struct VolumeReport<'a> {
    name: &'a str,
    /// The stable name, if there is one.
    path: &'a Path,
    device: &'a Path,
    front_end: FrontEndKind,
    /// Of the device.
    size_bytes: u64,
}

/// A daemon that serves the set.
struct Served {
    status: Status,
    admin: PathBuf,
    front_end: FrontEndKind,
    log: Option<PathBuf>,
    was_up: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: UpArguments) -> Result<ExitCode, Failure> {
    if arguments.wait > 0 {
        Set::await_devices(&arguments.cache, Duration::from_secs(arguments.wait.into()))?;
    }
    let set = Set::identify(&arguments.cache)?;
    if set.volumes.is_empty() {
        let cache = set.cache.display();
        return Err(Failure::not_found(format!("no volume is attached to {cache}"))
            .or(format!("attach one with `forebay attach {cache} ORIGIN --name NAME`")));
    }
    if arguments.foreground {
        match become_daemon(&set, arguments)? {}
    }
    let _turn = take_turn(set.name())?;
    let before = Record::load(set.name())?;
    let served = serve(&set, &arguments, before.as_ref())?;
    let mut record = Record {
        set_id: set.set_id.clone(),
        cache_device: set.cache.clone(),
        front_end: served.front_end,
        daemon_pid: served.status.pid,
        admin: served.admin.clone(),
        log: served.log.clone(),
        state_dir: state_dir(&served.status, &arguments)?,
        devices: before.map(|before| before.devices).unwrap_or_default(),
    };
    let troubles = make_devices(&set, &served, &mut record)?;
    link::settle();
    let sizes = record.devices.iter().map(|device| block_devices::await_device(&device.device));
    let sizes_bytes = sizes.collect::<Result<Vec<u64>, Failure>>()?;
    show(&arguments, &served, &record, &sizes_bytes)?;
    for trouble in &troubles {
        output::say(&format!("forebay: {trouble}"));
    }
    Ok(match troubles.first() {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(Exit::Failed.code()),
    })
}

/// Where the daemon keeps what this machine knows of the set: who started it may have chosen
/// another folder than this command was given.
fn state_dir(status: &Status, arguments: &UpArguments) -> Result<PathBuf, Failure> {
    let file = status.cache_set.as_ref().and_then(|set| set.state_file.as_ref());
    match file.and_then(|file| Path::new(file).parent()) {
        Some(folder) => Ok(folder.to_owned()),
        None => absolute(&arguments.state.state_dir),
    }
}

fn plan(set: &Set, arguments: &UpArguments, front_end: FrontEndKind) -> Result<Plan, Failure> {
    let admin = arguments.admin.admin.clone();
    Ok(Plan {
        front_end,
        state_dir: absolute(&arguments.state.state_dir)?,
        admin: absolute(&admin.unwrap_or_else(|| socket::default_path(set.name())))?,
        more: arguments.serve_options.clone(),
    })
}

/// Goes on as the daemon, as the same process. Refused while another one serves the set: what its
/// clients hold is not stale.
fn become_daemon(set: &Set, arguments: UpArguments) -> Result<Infallible, Failure> {
    let front_end = {
        let _turn = take_turn(set.name())?;
        let before = Record::load(set.name())?;
        let admin = arguments.admin.admin.as_deref();
        if let Some(daemon) = background::find(set, admin, before.as_ref())? {
            let pid = client::block_on(daemon.status())??.pid;
            let cache = set.cache.display();
            return Err(Failure::refused(format!("daemon {pid} serves {cache}"))
                .or(format!("`forebay down {cache}` first")));
        }
        let front_end = choose(&arguments, before.as_ref())?;
        release_stale(set, before.as_ref(), None)?;
        front_end
    };
    let failed = |error| Failure::failed(format!("cannot become the daemon: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let plan = plan(set, &arguments, front_end)?;
    Err(failed(Command::new(program).args(background::serve_arguments(set, &plan)).exec()))
}

/// The daemon of the set, started if there is none.
fn serve(set: &Set, arguments: &UpArguments, before: Option<&Record>) -> Result<Served, Failure> {
    let admin = arguments.admin.admin.as_deref();
    match background::find(set, admin, before)? {
        Some(daemon) if arguments.takeover => return take_over(set, arguments, &daemon),
        Some(daemon) => return join(set, arguments, before, &daemon),
        None if arguments.takeover => {
            let cache = set.cache.display();
            return Err(Failure::not_found(format!("no daemon serves {cache}"))
                .or("start one without --takeover"));
        }
        None => {}
    }
    let front_end = choose(arguments, before)?;
    release_stale(set, before, None)?;
    let plan = plan(set, arguments, front_end)?;
    let status = background::start(set, &plan, Follows::Ended)?;
    let log = Some(background::log_of(set));
    Ok(Served { status, admin: plan.admin, front_end, log, was_up: false })
}

/// A new daemon in the place of one that runs. Only ublk devices survive that: the clients of the
/// other front ends do not come back by themselves. A volume that was attached since has neither a
/// device nor clients, and gets its device.
fn take_over(set: &Set, arguments: &UpArguments, daemon: &AdminClient) -> Result<Served, Failure> {
    let status = client::block_on(daemon.status())??;
    let is_ublk = |export: &Export| export.block_device.is_some() || export.unavailable.is_some();
    let is_by_ublk = has_ublk_device(&status);
    let has_clients = |export: &Export| {
        status.connections.iter().any(|client| client.export.as_ref() == Some(&export.name))
    };
    // A virtual machine that is not connected just now will be.
    let is_in_the_way = |export: &&Export| {
        let is_used = !is_by_ublk || has_clients(export) || export.vhost_user.is_some();
        !is_ublk(export) && is_used
    };
    if let Some(export) = status.exports.iter().find(is_in_the_way) {
        let text = format!("`{}` is no ublk device, and its clients would be cut", export.name);
        return Err(Failure::refused(text)
            .or("release it, then `forebay down` and `forebay up`; clients that reconnect by \
                 themselves can do with `forebay serve --takeover`"));
    }
    let front_end = FrontEndKind::Ublk;
    let mut plan = plan(set, arguments, front_end)?;
    plan.admin = absolute(daemon.socket())?;
    plan.more.push("--takeover".into());
    let status = background::start(set, &plan, Follows::Running)?;
    let log = Some(background::log_of(set));
    Ok(Served { status, admin: plan.admin, front_end, log, was_up: true })
}

fn has_ublk_device(status: &Status) -> bool {
    status.exports.iter().any(|export| export.block_device.is_some())
}

/// Whether an export cannot get a block device from a client.
fn has_no_device(export: &Export) -> bool {
    export.unavailable.is_some() || export.vhost_user.is_some()
}

/// A daemon that runs: which front end its volumes are to have.
fn join(
    set: &Set,
    arguments: &UpArguments,
    before: Option<&Record>,
    daemon: &AdminClient,
) -> Result<Served, Failure> {
    let status = background::await_serving(daemon, |status| match status {
        Some(_) => Ok(true),
        None => Err(Failure::failed("the daemon has ended, or does not answer")
            .or("try again to start another one")),
    })?;
    let wanted = arguments.front_end;
    let own = before.filter(|record| record.daemon_pid == status.pid);
    let (cache, pid) = (set.cache.display(), status.pid);
    // One that something else started, and that has no device, says nothing of front ends.
    let has_chosen = |record: &&Record| record.log.is_some() || !record.devices.is_empty();
    let front_end = match own.filter(has_chosen) {
        Some(record) => record.front_end,
        None if has_ublk_device(&status) => FrontEndKind::Ublk,
        // None can have a device, so none has to be chosen; the reason is told for each.
        None if status.exports.iter().all(has_no_device) => wanted.unwrap_or(FrontEndKind::Ublk),
        None if wanted == Some(FrontEndKind::Ublk) => {
            let text = format!("daemon {pid} serves {cache} over NBD, not as ublk devices");
            return Err(Failure::refused(text).or("stop it first with `forebay stop`"));
        }
        None => machine::choose_client(wanted)?,
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != front_end) {
        let text = format!("{cache} is up with front end {front_end}, not {wanted}");
        return Err(Failure::refused(text).or(format!("`forebay down {cache}` first")));
    }
    release_stale(set, before, Some(status.pid))?;
    let log = own.and_then(|record| record.log.clone());
    let admin = daemon.socket().to_owned();
    Ok(Served { status, admin, front_end, log, was_up: true })
}

/// The front end for a daemon that is to be started. Where ublk devices wait for one, there is no
/// choice.
fn choose(arguments: &UpArguments, before: Option<&Record>) -> Result<FrontEndKind, Failure> {
    let devices = before.into_iter().flat_map(|record| &record.devices);
    let mut waiting = devices.filter(|device| device.front_end == FrontEndKind::Ublk);
    let Some(waiting) = waiting.find(|device| block_devices::is_there(device)) else {
        return machine::choose(arguments.front_end);
    };
    match arguments.front_end {
        None | Some(FrontEndKind::Ublk) => machine::choose(Some(FrontEndKind::Ublk)),
        Some(_) => {
            let (cache, node) = (arguments.cache.display(), waiting.device.display());
            Err(Failure::refused(format!("{node} of `{}` waits for its daemon", waiting.name))
                .or(format!("leave --front-end away, or `forebay down {cache}` first")))
        }
    }
}

/// Takes away what clients of a daemon that has died still hold: they do not find to the next one.
fn release_stale(set: &Set, before: Option<&Record>, living: Option<u32>) -> Result<(), Failure> {
    let Some(before) = before.filter(|record| Some(record.daemon_pid) != living) else {
        return Ok(());
    };
    let is_client = |device: &&Device| device.front_end != FrontEndKind::Ublk;
    for device in before.devices.iter().filter(is_client) {
        if !block_devices::has_remains(device) {
            continue;
        }
        if block_devices::is_there(device)
            && let Some(user) = user_of(device, Server::IsDead)
        {
            let (node, name, cache) = (device.device.display(), &device.name, set.cache.display());
            return Err(Failure::refused(format!(
                "{node} of `{name}` is {user}, and its daemon has ended: a client of NBD does not \
                 come back to another daemon"
            ))
            .or(format!("release it (`umount`), then `forebay up {cache}` again")));
        }
        link::forget(device);
        block_devices::disconnect(device)?;
    }
    Ok(())
}

/// Makes what is missing, and writes down what there is after each step. Returns what could not be
/// had.
fn make_devices(set: &Set, served: &Served, record: &mut Record) -> Result<Vec<String>, Failure> {
    let mut troubles = Vec::new();
    for gone in record.devices.extract_if(.., |device| !block_devices::is_there(device)) {
        // Its number may be somebody else's by now, who shall not have its name.
        link::forget(&gone);
    }
    record.save(set.name())?;
    for export in &served.status.exports {
        let name = export.name.as_str();
        if let Some(reason) = &export.unavailable {
            troubles.push(format!("volume `{name}` has no block device: {reason}"));
            continue;
        }
        let known = record.devices.iter().position(|device| device.name == *name);
        let device = match make_device(set, served, known.map(|at| &record.devices[at]), export) {
            Ok(device) => device,
            Err(failure) => {
                troubles.push(format!("volume `{name}` has no block device: {failure}"));
                continue;
            }
        };
        if let Some(at) = known {
            record.devices.remove(at);
        }
        record.devices.push(device);
        record.save(set.name())?;
        let device = record.devices.last_mut().expect("pushed above");
        if let Err(failure) = link::make(device) {
            output::say(&format!("forebay: warning: `{name}` has no stable name: {failure}"));
        }
        record.save(set.name())?;
    }
    Ok(troubles)
}

fn make_device(
    set: &Set,
    served: &Served,
    known: Option<&Device>,
    export: &Export,
) -> Result<Device, Failure> {
    if let Some(path) = &export.block_device {
        return Ok(Device::of_ublk(export, path));
    }
    if let Some(known) = known {
        return Ok(known.clone());
    }
    if let Some(path) = &export.vhost_user {
        return Err(Failure::failed(format!("it is served to virtual machines at {path}"))
            .or("to have it on this machine, end that daemon and start one without --vhost-user"));
    }
    let (cache, pid) = (set.cache.display(), served.status.pid);
    if served.front_end == FrontEndKind::Ublk {
        return Err(Failure::failed(format!("daemon {pid} was started before it was attached"))
            .or(format!("`forebay stop`, then `forebay up {cache}`; what is mounted lives on")));
    }
    if !set.nbd_socket().exists() {
        let socket = set.nbd_socket();
        return Err(Failure::failed(format!(
            "daemon {pid} does not listen at {}",
            socket.display()
        ))
        .or("stop it first with `forebay stop`"));
    }
    block_devices::connect(set, served.front_end, export)
}

fn show(
    arguments: &UpArguments,
    served: &Served,
    record: &Record,
    sizes_bytes: &[u64],
) -> Result<(), Failure> {
    if served.was_up {
        let (cache, pid) = (record.cache_device.display(), served.status.pid);
        output::say(&format!("forebay: {cache} was up already, with daemon {pid}"));
    }
    // A device that waits for its volume is remembered, and of no use.
    let is_served = |device: &Device| {
        let mut exports = served.status.exports.iter();
        exports.any(|export| export.name == device.name && export.unavailable.is_none())
    };
    let sized = record.devices.iter().zip(sizes_bytes).filter(|(device, _)| is_served(device));
    if arguments.json {
        let volumes = sized.map(|(device, &size_bytes)| VolumeReport {
            name: &device.name,
            path: device.path(),
            device: &device.device,
            front_end: device.front_end,
            size_bytes,
        });
        return output::print_json(&Report {
            set_id: &record.set_id,
            cache_device: &record.cache_device,
            daemon_pid: record.daemon_pid,
            log: record.log.as_deref(),
            was_up: served.was_up,
            volumes: volumes.collect(),
        });
    }
    let lines = sized.map(|(device, _)| {
        format!("{} {} ({})\n", device.name, device.path().display(), device.front_end)
    });
    output::print(&lines.collect::<String>())
}
