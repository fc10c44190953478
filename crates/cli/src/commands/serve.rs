//! `forebay serve`: opens what is to be served and hands it to the daemon.

use std::path::Path;
use std::time::Instant;

use forebay_host::offline::read_superblock;
use forebay_host::probe::OpenError;
use forebay_host::set::{OpenedSet, OriginError, SetError, SetOptions, open_without_cache};
use forebay_host::state_file::{list_states, set_id_text};
use forebay_host::{
    Access, BareExport, DeviceSpec, ListenAddress, ReadyMemory, ShardOptions, UblkOptions,
};

use crate::admin::socket;
use crate::args::ServeArguments;
use crate::block_devices::set::NAME_DIGITS;
use crate::commands::format::absolute;
use crate::daemon::Daemon;
use crate::exit::Failure;
use crate::huge_pages;
use crate::lock_holder;
use crate::open_files;
use crate::takeover::successor::{Handed, Predecessor, Succession};

/// Runs the command.
pub(crate) fn run(arguments: ServeArguments) -> Result<(), Failure> {
    huge_pages::start_again_with();
    open_files::raise_limit();
    if arguments.own_session {
        // It has one already if it was started again for huge pages.
        let _ = rustix::process::setsid();
    }
    if arguments.exit_with_parent {
        let signal = Some(rustix::process::Signal::TERM);
        rustix::process::set_parent_process_death_signal(signal)
            .map_err(|error| Failure::failed(format!("cannot follow the parent: {error}")))?;
    }
    let mut succession = None;
    let (set, bare, name) = match (&arguments.cache, &arguments.without_cache) {
        (Some(cache), _) if arguments.takeover => {
            let (found, name) = meet(cache, &arguments)?;
            succession = Some(found);
            (None, Vec::new(), name)
        }
        (Some(cache), _) => {
            let set = open_set(cache, &arguments.state.state_dir)?;
            let name = set_id_text(&set.superblock().set_id)[..NAME_DIGITS].to_owned();
            (Some(set), Vec::new(), name)
        }
        (None, Some(set)) => (None, open_origins(set, &arguments)?, bare_name()),
        (None, None) => (None, open_bare(&arguments)?, bare_name()),
    };
    let ublk = arguments.ublk.into_iter().map(|ublk| UblkOptions {
        name: ublk.name,
        number: ublk.number,
        queue_count: arguments.ublk_queues,
        queue_depth: arguments.ublk_depth,
    });
    let ublk: Vec<_> = ublk.collect();
    let mut listen = arguments.nbd;
    if listen.is_empty() && ublk.is_empty() && arguments.vhost_user.is_empty() {
        listen.push(default_listen(&name)?);
    }
    let admin = match arguments.admin {
        Some(path) => Some(path),
        None if set.is_some() || succession.is_some() => Some(socket::default_path(&name)),
        None => None,
    };
    let connections_max = arguments.connections_max;
    let cache_timeout_ms = u64::from(arguments.cache_timeout) * 1000;
    let io_timeout_ms = u64::from(arguments.io_timeout) * 1000;
    let options = ShardOptions {
        listen,
        ublk,
        vhost_user: arguments.vhost_user,
        connections_max,
        cache_timeout_ms,
        io_timeout_ms,
        record_writes: arguments.record_writes,
        ..ShardOptions::default()
    };
    let Some(succession) = succession else {
        return Daemon { options, set, bare, admin, predecessor: None }.run();
    };
    // All that takes long and needs no devices comes before requests are held back.
    let admin = admin.map(|path| absolute(&path)).transpose()?;
    let set_options = SetOptions { state_directory: absolute(&arguments.state.state_dir)? };
    let memory = ReadyMemory::allocate(options.memory)?;
    let began = Instant::now();
    let Handed { devices, listeners, admin: handed } = succession.begin()?;
    let set = OpenedSet::handed(devices, &set_options)?;
    let predecessor = Predecessor { succession, listeners, admin: handed, memory, began };
    Daemon { options, set: Some(set), bare, admin, predecessor: Some(predecessor) }.run()
}

/// Meets the daemon that serves the cache. Also answers with the name of the set's files.
fn meet(cache: &Path, arguments: &ServeArguments) -> Result<(Succession, String), Failure> {
    let cache = absolute(cache)?;
    let set_id = set_id_text(&read_superblock(&cache)?.set_id);
    let ublk: Vec<String> = arguments.ublk.iter().map(|ublk| ublk.name.clone()).collect();
    let state_directory = absolute(&arguments.state.state_dir)?;
    let admin = arguments.admin.as_deref();
    let succession = Succession::meet(&cache, &set_id, state_directory, admin, &ublk)?;
    Ok((succession, set_id[..NAME_DIGITS].to_owned()))
}

fn open_set(cache: &Path, state_directory: &Path) -> Result<OpenedSet, Failure> {
    let cache = DeviceSpec::plain(absolute(cache)?);
    let options = SetOptions { state_directory: absolute(state_directory)? };
    lock_holder::outwait(|| OpenedSet::open(&cache, &options), errors_of_set).map_err(|error| {
        match error {
            // A service manager tries again, as it does not where the operator has to act.
            SetError::Cache(OpenError::Locked { path }) if lock_holder::has_ended(&path) => {
                let path = path.display();
                Failure::failed(format!("the transfers of an ended process to {path} do not end"))
                    .or("see whether the device answers (`dmesg`); then start again")
            }
            error => error.into(),
        }
    })
}

/// Why devices of a set could not be opened.
fn errors_of_set(opened: &Result<OpenedSet, SetError>) -> Vec<&OpenError> {
    match opened {
        Ok(set) => {
            let errors = set.unavailable().iter().map(|volume| &volume.error);
            errors.filter_map(error_of_origin).collect()
        }
        Err(SetError::Cache(error)) => vec![error],
        Err(_) => Vec::new(),
    }
}

fn error_of_origin(error: &OriginError) -> Option<&OpenError> {
    match error {
        OriginError::Open(error) => Some(error),
        _ => None,
    }
}

fn bare_name() -> String {
    format!("bare-{}", std::process::id())
}

/// Opens the volumes of a set that has lost its cache device. The state file remembers it, so that
/// the device's copies are not believed if it comes back.
fn open_origins(set: &str, arguments: &ServeArguments) -> Result<Vec<BareExport>, Failure> {
    let state_directory = absolute(&arguments.state.state_dir)?;
    let path = absolute(Path::new(set))?;
    let known = list_states(&state_directory)?;
    let state = known.iter().find(|state| {
        set_id_text(&state.set_id()) == set || Path::new(&state.cache_device) == path
    });
    let Some(state) = state else {
        let place = state_directory.display();
        return Err(Failure::not_found(format!("no cache set `{set}` is known from {place}"))
            .or("`forebay status` lists them; --state-dir chooses another directory"));
    };
    let options = SetOptions { state_directory };
    let open = || open_without_cache(&state.set_id(), &arguments.accept_loss, &options);
    let opened = lock_holder::outwait(open, |opened| match opened {
        Err(SetError::Origin { source, .. }) => error_of_origin(source).into_iter().collect(),
        _ => Vec::new(),
    });
    opened.map_err(|error| {
        let is_dirty = matches!(error, SetError::DirtyPossible { .. });
        let failure = Failure::from(error);
        if is_dirty { failure.or("that is --accept-loss NAME for each") } else { failure }
    })
}

fn open_bare(arguments: &ServeArguments) -> Result<Vec<BareExport>, Failure> {
    let open = |bare: &crate::args::BareArgument| {
        let device = bare.device.absolute().map_err(|error| {
            Failure::failed(format!("cannot make `{}` absolute: {error}", bare.device))
        })?;
        lock_holder::open(|| BareExport::open(&bare.name, &device, Access::ReadWrite))
    };
    arguments.bare.iter().map(open).collect()
}

fn default_listen(name: &str) -> Result<ListenAddress, Failure> {
    let directory = socket::run_directory();
    std::fs::create_dir_all(&directory).map_err(|error| {
        Failure::failed(format!("cannot make {}: {error}", directory.display()))
            .or("choose where to listen with --nbd, and an admin socket with --admin")
    })?;
    Ok(ListenAddress::Unix(directory.join(format!("{name}.nbd"))))
}
