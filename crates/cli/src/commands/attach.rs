//! `forebay attach`: enters a volume in the volume table, through the daemon if one serves CACHE.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_engine::format::superblock::{AddVolumeError, NewVolume};
use forebay_engine::options::{CacheMode, VolumeSettings, WritebackOrder};
use forebay_host::{DeviceSpec, OpenedDevice, offline};

use crate::admin::api::AttachRequest;
use crate::admin::client::{self, AdminClient};
use crate::args::{AdminArguments, AttachArguments};
use crate::commands::format::absolute;
use crate::exit::{Exit, Failure, failure_of_keeping};
use crate::{lock_holder, names, output, size};

/// Runs the command.
pub(crate) fn run(arguments: &AttachArguments) -> Result<(), Failure> {
    if arguments.share_min > arguments.share_max {
        return Err(Failure::usage("--share-min is more than --share-max").or("lower it"));
    }
    let cache = absolute(&arguments.cache)?;
    let origin = arguments.origin.absolute().map_err(|error| {
        Failure::failed(format!("cannot make `{}` absolute: {error}", arguments.origin))
    })?;
    let daemon = client::block_on(client::serving(&cache, arguments.admin.admin.as_deref()))??;
    let size_bytes = match daemon {
        Some(daemon) => attach_online(&daemon, &cache, &origin, arguments)?,
        None => attach_device(&cache, &origin, arguments)?,
    };
    output::print(&format!(
        "volume `{}`: {origin}, {}, {} on {}\n",
        arguments.name,
        size::text(size_bytes),
        names::mode_name(arguments.cache_mode),
        cache.display()
    ))
}

fn attach_online(
    daemon: &AdminClient,
    cache: &Path,
    origin: &DeviceSpec,
    arguments: &AttachArguments,
) -> Result<u64, Failure> {
    let facts = forebay_host::probe::probe(origin.path())?;
    let status = client::block_on(daemon.status())??;
    let volumes =
        status.exports.iter().map(|export| (export.name.as_str(), export.device.as_str()));
    refuse_same_device(cache, origin, volumes)?;
    let request = AttachRequest {
        name: arguments.name.clone(),
        origin: origin.to_string(),
        cache_mode: names::mode_name(arguments.cache_mode).to_owned(),
        writeback_order: names::order_name(arguments.writeback_order).to_owned(),
        logical_block_bytes: logical_block(arguments, facts.logical_block_bytes)?,
        share_min_percent: arguments.share_min,
        share_max_percent: arguments.share_max,
    };
    client::block_on(daemon.attach(&request))??;
    Ok(facts.size_bytes)
}

/// Attaches an origin with its own logical block size; no daemon runs.
pub(crate) fn attach_offline(
    cache: &Path,
    origin: &DeviceSpec,
    name: &str,
    mode: CacheMode,
) -> Result<u64, Failure> {
    let arguments = AttachArguments {
        cache: cache.to_owned(),
        origin: origin.clone(),
        name: name.to_owned(),
        cache_mode: mode,
        writeback_order: WritebackOrder::Coalescing,
        logical_block: None,
        share_min: 0,
        share_max: 100,
        admin: AdminArguments { admin: None },
    };
    attach_device(cache, origin, &arguments)
}

fn attach_device(
    cache: &Path,
    origin: &DeviceSpec,
    arguments: &AttachArguments,
) -> Result<u64, Failure> {
    let spec = DeviceSpec::plain(cache);
    let device = lock_holder::open(|| OpenedDevice::open_cache(&spec)).map_err(|failure| {
        let is_locked = failure.exit == Exit::Refused;
        if is_locked {
            failure.or("if it is a daemon, name its socket with --admin")
        } else {
            failure
        }
    })?;
    let mut superblock = offline::read_superblock(cache)?;
    let volumes = superblock.slots().map(|(_, volume)| (&*volume.name, &*volume.origin_path));
    refuse_same_device(cache, origin, volumes)?;
    let opened = OpenedDevice::open_origin(origin)?;
    let facts = opened.facts();
    let new = NewVolume {
        name: arguments.name.clone(),
        origin_path: origin.to_string(),
        size_bytes: facts.size_bytes,
        logical_block_bytes: logical_block(arguments, facts.logical_block_bytes)?,
        mode: arguments.cache_mode,
        writeback_order: arguments.writeback_order,
        settings: VolumeSettings {
            share_min_percent: arguments.share_min,
            share_max_percent: arguments.share_max,
            ..VolumeSettings::default()
        },
    };
    superblock.add_volume(&new).map_err(|error| cannot_add(&new, error))?;
    superblock.serial += 1;
    offline::write_superblock(&device, &superblock)?;
    Ok(facts.size_bytes)
}

fn cannot_add(new: &NewVolume, error: AddVolumeError) -> Failure {
    let failure = Failure::usage(format!("cannot attach `{}`: {error}", new.name));
    match error {
        AddVolumeError::NameTaken => failure.or("choose another --name, or detach that volume"),
        AddVolumeError::TableFull => failure.or("detach a volume first"),
        AddVolumeError::BadName | AddVolumeError::PathTooLong | AddVolumeError::BadSize => failure,
        AddVolumeError::KeepsTooMuch(error) => failure_of_keeping(error),
    }
}

/// The unit that clients may address: as asked for, if the origin can do it.
fn logical_block(arguments: &AttachArguments, origin_bytes: u32) -> Result<u32, Failure> {
    let least = if origin_bytes <= 512 { 512 } else { 4096 };
    match arguments.logical_block {
        None => Ok(least),
        Some(asked) if asked >= least => Ok(asked),
        Some(asked) => Err(Failure::usage(format!(
            "{} has logical blocks of {origin_bytes} bytes, so {asked} cannot be offered",
            arguments.origin
        ))
        .or("give --logical-block 4096 or leave it out")),
    }
}

/// One device must not be two things at once. `volumes` are those attached, by name and origin.
fn refuse_same_device<'a>(
    cache: &Path,
    origin: &DeviceSpec,
    volumes: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<(), Failure> {
    let Ok(metadata) = std::fs::metadata(origin.path()) else { return Ok(()) };
    let is_same = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|other| identity(&other) == identity(&metadata))
    };
    if is_same(cache) {
        return Err(Failure::usage(format!("{origin} is the cache device itself"))
            .or("name the slow device as ORIGIN"));
    }
    for (name, attached) in volumes {
        let spec: Result<DeviceSpec, _> = attached.parse();
        if spec.is_ok_and(|spec| is_same(spec.path())) {
            return Err(Failure::refused(format!("{origin} is attached as `{name}` already"))
                .or("detach that volume first"));
        }
    }
    Ok(())
}

fn identity(metadata: &Metadata) -> (bool, u64, u64) {
    if metadata.file_type().is_block_device() {
        (true, metadata.rdev(), 0)
    } else {
        (false, metadata.dev(), metadata.ino())
    }
}
