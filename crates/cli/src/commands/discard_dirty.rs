//! `forebay detach --discard-dirty`: takes a volume off its cache device and throws away what its
//! origin does not have.
//!
//! A daemon that serves the cache device does it. Where none does, the volume leaves the volume
//! table here: entries of the log whose volume is not in the table count for nothing, and the next
//! start gives their room back. One place of the superblock is durable before the other is written,
//! so a kill leaves the volume as it was or gone.

use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use forebay_engine::format::superblock::Superblock;
use forebay_engine::units::{VolumeId, VolumeSlot};
use forebay_host::state_file::StateFile;
use forebay_host::{DeviceSpec, OpenedDevice, offline};
use serde::Serialize;

use crate::admin::api::DetachRequest;
use crate::admin::client::{self, AdminClient};
use crate::args::DetachArguments;
use crate::commands::format::absolute;
use crate::commands::online;
use crate::exit::Failure;
use crate::inspection::{CacheDevice, Locking, inspect};
use crate::{lock_holder, output, size};

/// What `--json` prints.
#[derive(Serialize)]
struct Discarded<'a> {
    name: &'a str,
    discarded_bytes: u64,
}

/// Runs the command.
pub(crate) fn run(arguments: &DetachArguments) -> Result<(), Failure> {
    let admin = arguments.admin.admin.as_deref();
    let name = arguments.name.as_str();
    let discarded_bytes = match &arguments.cache {
        None => discard_online(&client::only(admin)?, arguments)?,
        Some(cache) => {
            let cache = absolute(cache)?;
            match client::block_on(client::serving(&cache, admin))?? {
                Some(daemon) => discard_online(&daemon, arguments)?,
                None => discard_offline(&cache, arguments)?,
            }
        }
    };
    if arguments.json {
        return output::print_json(&Discarded { name, discarded_bytes });
    }
    output::print(&format!(
        "volume `{name}` is detached; {} of dirty data were thrown away\n",
        size::text(discarded_bytes)
    ))
}

fn discard_online(daemon: &AdminClient, arguments: &DetachArguments) -> Result<u64, Failure> {
    let name = arguments.name.as_str();
    let Some(volume) = client::block_on(online::volume(daemon, name))? else {
        return Err(no_such_volume(name));
    };
    confirm(arguments, volume.dirty_bytes)?;
    let request = DetachRequest { volume: name.to_owned(), discard_dirty: true };
    Ok(client::block_on(daemon.detach(&request))??.discarded_bytes)
}

fn discard_offline(cache: &Path, arguments: &DetachArguments) -> Result<u64, Failure> {
    let name = arguments.name.as_str();
    let device = CacheDevice::open(cache, Locking::Required)?;
    let (_, id) = find(&device.superblocks()?.chosen, name)?;
    let discarded_bytes = inspect(&device, &mut |_, _| {})?.dirty_bytes(id);
    drop(device);
    confirm(arguments, discarded_bytes)?;
    let device = lock_holder::open(|| OpenedDevice::open_cache(&DeviceSpec::plain(cache)))?;
    let mut superblock = offline::read_superblock(cache)?;
    // Somebody may have served it while the question stood.
    let (slot, found) = find(&superblock, name)?;
    if found != id {
        return Err(Failure::refused(format!("volume `{name}` is another one by now"))
            .or("nothing was changed; run the command again"));
    }
    superblock.volumes[usize::from(slot.0)] = None;
    superblock.serial += 1;
    offline::write_superblock(&device, &superblock)?;
    // Only now: before, the mark was true.
    let file = StateFile::of_set(&arguments.state.state_dir, &superblock.set_id);
    if let Some(mut state) = file.load()? {
        state.volumes.retain(|volume| volume.id != id.0);
        file.save(&state)?;
    }
    Ok(discarded_bytes)
}

fn find(superblock: &Superblock, name: &str) -> Result<(VolumeSlot, VolumeId), Failure> {
    let found = superblock.slots().find(|(_, volume)| volume.name == name);
    found.map(|(slot, volume)| (slot, volume.id)).ok_or_else(|| no_such_volume(name))
}

fn no_such_volume(name: &str) -> Failure {
    Failure::not_found(format!("no volume is named `{name}`"))
        .or("`forebay status` and `forebay show` list the volumes")
}

/// The name must be given twice.
fn confirm(arguments: &DetachArguments, dirty_bytes: u64) -> Result<(), Failure> {
    let name = arguments.name.as_str();
    let loss = format!(
        "this throws away {} of dirty data of volume `{name}`, which its origin does not have",
        size::text(dirty_bytes)
    );
    let given = match &arguments.accept_loss {
        Some(given) => given.clone(),
        None if std::io::stdin().is_terminal() => ask(&loss)?,
        None => {
            return Err(Failure::refused(format!("{loss}; nothing was changed"))
                .or(format!("to do it, give --accept-loss {name}")));
        }
    };
    if given == name {
        return Ok(());
    }
    Err(Failure::refused(format!("`{given}` is not the name of volume `{name}`"))
        .or(format!("nothing was changed; to give its dirty data up, repeat its name: {name}")))
}

fn ask(loss: &str) -> Result<String, Failure> {
    let failed = |error| Failure::failed(format!("cannot ask for the name: {error}"));
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{loss}.\nType the name to confirm: ").map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(failed)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
