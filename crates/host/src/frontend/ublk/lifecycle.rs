//! How a device comes to life, survives its server, and ends. What is here may wait for the kernel,
//! so it runs on a thread of its own and tells the shard how far it is.
//!
//! A device is made with recovery on (`UBLK_F_USER_RECOVERY` and `_REISSUE`): when its server dies,
//! the kernel keeps it, holds new requests back and takes back those that were with the server. The
//! next server takes it over and gets them all, so each ends once for whoever sent it, though the
//! dead one may have carried it out before. That is harmless: a write of the same bytes, a discard
//! or a flush may be done twice, as long as nothing that was sent after its answer comes between.
//!
//! Which device is whose is kept by the driver itself, in the field that it leaves to servers: a
//! number made of what is served. A device that bears another one is never touched.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::abi::{DeviceInfo, Operation, Parameters, state};
use super::channel::{Channel, CharacterDevice, fetch_and_leave};
use super::control::{Control, needed_features};
use super::error::{UblkError, block_path, character_path};
use super::request::{Geometry, REQUEST_BYTES_MAX};
use super::write_out::write_out_apart;
use crate::probe::{OpenError, check_unused, with_partitions};
use crate::processes::{Process, others_with};

/// How long the kernel may take to let go of a server that has died. Its transfers must end first:
/// a minute is twice the limit of a SCSI disk. Measured: 10 to 100 ms when none hangs.
const TAKE_OVER_PATIENCE: Duration = Duration::from_secs(60);
/// How long the nodes in `/dev` may take to appear.
const NODE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a device may be in use when it is to be removed: udev looks into it when it appears,
/// and the kernel lets go of it a moment after `umount` has come back.
const USER_PATIENCE: Duration = Duration::from_millis(500);
/// How often a device may need [`revive`]: once, unless servers are killed all the time.
const REVIVALS_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_millis(10);
/// Where the driver lists its devices.
const DEVICES: &str = "/sys/class/ublk-char";

/// A device as it is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// `None`: the predecessor's, else the driver chooses.
    pub(super) number: Option<u32>,
    pub(super) queue_count: u16,
    pub(super) queue_depth: u16,
    pub(super) geometry: Geometry,
    /// Names what is served.
    pub(super) identity: u64,
}

/// How a device is had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    /// There is none: it is made.
    Make(Option<u32>),
    /// Remains of one that never was at work: removed, and made anew.
    Replace(u32),
    /// The predecessor left it: it is taken over.
    TakeOver(u32),
    /// The kernel has not let go of the predecessor yet.
    Wait { number: u32, process: i32 },
}

/// Who waits for a device that comes to life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Users {
    /// Nobody: it is made.
    None,
    /// Those of its predecessor.
    Predecessors,
}

/// What the kernel may have cached of a disk that is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageCache {
    /// Nothing that was written.
    IsClean,
    /// What its users have written.
    MayBeDirty,
}

/// A device that is open, before its requests are fetched.
pub(super) struct Opened {
    pub(super) number: u32,
    pub(super) queue_count: u16,
    pub(super) queue_depth: u16,
    pub(super) geometry: Geometry,
    pub(super) users: Users,
    pub(super) channel: Box<dyn Channel>,
}

/// What a thread is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Bring a device to life.
    Start,
    /// Tell the driver of another size.
    Resize,
    /// End a device.
    Remove,
}

/// How far a device is.
pub(super) enum Progress {
    /// The shard must fetch now: the driver waits for it.
    Opened(Opened),
    /// The device can be used.
    Live { was_taken_over: bool },
    /// It cannot be had. One that was at work has users that wait.
    Failed { error: UblkError, was_at_work: bool },
    /// There is no thread for what was to be done.
    NoThread { task: Task, source: io::Error },
    /// It shows so many sectors now, or keeps its size.
    Resized(Result<u64, UblkError>),
    /// It is in use, and was left alone.
    InUse(String),
    /// Its disk is gone, its requests are aborted. The shard must let go of it now.
    Stopped,
    /// It is removed; or could not be, which is only logged: nobody can use it any more.
    Removed,
}

/// Judges what is known of a device that has the wanted number or identity.
pub(super) fn judge(
    wanted: &Wanted,
    info: &DeviceInfo,
    parameters: &Parameters,
    server: Option<String>,
) -> Result<Plan, UblkError> {
    let number = info.device;
    let name = || wanted.name.clone();
    if info.identity != wanted.identity {
        if let Some(process) = server {
            return Err(UblkError::InUse { number, name: name(), process });
        }
        let owner = if info.identity >> 32 == wanted.identity >> 32 {
            "forebay made it for something else"
        } else {
            "another program made it"
        };
        return Err(UblkError::Foreign { number, name: name(), owner });
    }
    if info.state == state::DEAD {
        return Ok(Plan::Replace(number));
    }
    let shape = |sectors: u64, block_bytes: u32| {
        format!("{sectors} sectors in blocks of {block_bytes} bytes")
    };
    let block_bytes = 1u32.checked_shl(parameters.basic.logical_block_shift.into()).unwrap_or(0);
    let sectors = parameters.basic.device_sectors;
    // A volume that has grown meanwhile has room for it; the device is told of that later.
    if sectors > wanted.geometry.sectors || block_bytes != wanted.geometry.logical_block_bytes {
        return Err(UblkError::Changed {
            number,
            name: name(),
            found: shape(sectors, block_bytes),
            expected: shape(wanted.geometry.sectors, wanted.geometry.logical_block_bytes),
        });
    }
    // What is served is locked by this process, so whoever served it has ended; the kernel notices
    // somewhat later.
    if info.state == state::QUIESCED {
        Ok(Plan::TakeOver(number))
    } else {
        Ok(Plan::Wait { number, process: info.process })
    }
}

/// Finds out how the device can be had.
pub(super) fn plan(control: &mut Control, wanted: &Wanted) -> Result<Plan, UblkError> {
    let failed = |command: Operation| {
        let name = wanted.name.clone();
        move |source| UblkError::Command { command: command.name(), name, source }
    };
    let mut left = devices(control);
    left.retain(|info| info.identity == wanted.identity);
    let chosen = choose(&left, wanted.number);
    let number = chosen.map_err(|number| UblkError::Left { number, name: wanted.name.clone() })?;
    let Some(number) = number else { return Ok(Plan::Make(None)) };
    let info = control.info(number).map_err(failed(Operation::GetDeviceInfo))?;
    let Some(info) = info else { return Ok(Plan::Make(Some(number))) };
    let parameters = match info.state {
        // It may have none yet.
        state::DEAD => Parameters::default(),
        _ => control.parameters(number).map_err(failed(Operation::GetParameters))?,
    };
    judge(wanted, &info, &parameters, living_process(info.process))
}

/// What is known of all devices, in the order of their numbers. One that cannot be asked is not
/// ours.
fn devices(control: &mut Control) -> Vec<DeviceInfo> {
    numbers().into_iter().filter_map(|number| control.info(number).ok().flatten()).collect()
}

/// Numbers of all devices that the driver has.
fn numbers() -> Vec<u32> {
    let entries = std::fs::read_dir(DEVICES).into_iter().flatten();
    let numbers = entries.filter_map(|entry| {
        entry.ok()?.file_name().to_str()?.strip_prefix("ublkc")?.parse::<u32>().ok()
    });
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// The number that a device is to have, beside those that predecessors left of the same.
///
/// # Errors
/// That of another one that was at work: its users wait, and what they have not written yet would
/// go over what is written through the new one, whenever it is served again.
fn choose(left: &[DeviceInfo], wanted: Option<u32>) -> Result<Option<u32>, u32> {
    let mut at_work = left.iter().filter(|info| info.state != state::DEAD);
    let number = |info: &DeviceInfo| info.device;
    let remains = || left.first().map(number);
    let chosen = wanted.or_else(|| at_work.clone().next().map(number)).or_else(remains);
    match at_work.find(|info| Some(info.device) != chosen) {
        Some(other) => Err(other.device),
        None => Ok(chosen),
    }
}

/// Finds a device that a predecessor made of what has one of these identities, and that was at
/// work. Returns its number, and the place of the identity.
pub(super) fn find_left(identities: &[u64]) -> Option<(u32, usize)> {
    if numbers().is_empty() {
        return None;
    }
    // Where this process may not ask the driver, nothing can be known.
    let mut control = Control::open().ok()?;
    devices(&mut control).iter().filter(|info| info.state != state::DEAD).find_map(|info| {
        let place = identities.iter().position(|identity| *identity == info.identity)?;
        Some((info.device, place))
    })
}

/// Number and name of a process, if it lives.
fn living_process(process: i32) -> Option<String> {
    let number = u32::try_from(process).ok()?;
    Some(Process::living(number)?.to_string())
}

/// Brings the device to life. Every step that the shard must know of is told to `tell`.
pub(super) fn start(wanted: &Wanted, tell: &dyn Fn(Progress)) {
    let mut was_at_work = false;
    match try_start(wanted, tell, &mut was_at_work) {
        Ok(()) => tell(Progress::Live { was_taken_over: was_at_work }),
        Err(error) => tell(Progress::Failed { error, was_at_work }),
    }
}

/// Notes in `was_at_work` whether a predecessor has left the device.
fn try_start(
    wanted: &Wanted,
    tell: &dyn Fn(Progress),
    was_at_work: &mut bool,
) -> Result<(), UblkError> {
    let control = &mut Control::open()?;
    let deadline = Instant::now() + TAKE_OVER_PATIENCE;
    loop {
        let plan = plan(control, wanted)?;
        *was_at_work = matches!(plan, Plan::Wait { .. } | Plan::TakeOver(_));
        match plan {
            Plan::Wait { number, process } if Instant::now() >= deadline => {
                return Err(UblkError::Stuck { number, process });
            }
            Plan::Wait { .. } => thread::sleep(PAUSE),
            Plan::Replace(number) => {
                run(control, Operation::DeleteDevice, number, wanted)?;
                return make(control, Some(number), wanted, tell);
            }
            Plan::Make(number) => return make(control, number, wanted, tell),
            Plan::TakeOver(number) => return take_over(control, number, wanted, deadline, tell),
        }
    }
}

fn run(
    control: &mut Control,
    operation: Operation,
    number: u32,
    wanted: &Wanted,
) -> Result<(), UblkError> {
    control.plain(operation, number).map_err(|source| command_failed(operation, wanted, source))
}

fn command_failed(operation: Operation, wanted: &Wanted, source: io::Error) -> UblkError {
    UblkError::Command { command: operation.name(), name: wanted.name.clone(), source }
}

fn make(
    control: &mut Control,
    number: Option<u32>,
    wanted: &Wanted,
    tell: &dyn Fn(Progress),
) -> Result<(), UblkError> {
    let info = DeviceInfo {
        queue_count: wanted.queue_count,
        queue_depth: wanted.queue_depth,
        request_bytes_max: REQUEST_BYTES_MAX,
        flags: needed_features(),
        identity: wanted.identity,
        ..DeviceInfo::default()
    };
    // The driver may give fewer queues: no more than there are processors.
    let info = control
        .add(number, info)
        .map_err(|source| command_failed(Operation::AddDevice, wanted, source))?;
    let number = info.device;
    let result = put_to_work(control, &info, wanted, tell);
    if result.is_err() {
        // It would stand in the way of the next attempt, and nobody can have used it. The shard has
        // to let go of it before it can be deleted, and gets its commands back by the stop.
        let stopped = control.plain(Operation::StopDevice, number);
        tell(Progress::Stopped);
        let deleted = stopped.and_then(|()| control.plain(Operation::DeleteDevice, number));
        if let Err(error) = deleted {
            tracing::warn!(%error, number, "a ublk device that could not be started is left over");
        }
    }
    result
}

fn put_to_work(
    control: &mut Control,
    info: &DeviceInfo,
    wanted: &Wanted,
    tell: &dyn Fn(Progress),
) -> Result<(), UblkError> {
    control
        .set_parameters(info.device, wanted.geometry.parameters())
        .map_err(|source| command_failed(Operation::SetParameters, wanted, source))?;
    open(info, wanted.geometry, Users::None, tell)?;
    // Ends when the shard has fetched from all queues, and the kernel has looked for partitions.
    run(control, Operation::StartDevice, info.device, wanted)
}

fn take_over(
    control: &mut Control,
    number: u32,
    wanted: &Wanted,
    deadline: Instant,
    tell: &dyn Fn(Progress),
) -> Result<(), UblkError> {
    let failed = |operation| move |source| command_failed(operation, wanted, source);
    let info = |control: &mut Control| {
        let info = control.info(number).map_err(failed(Operation::GetDeviceInfo))?;
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        info.ok_or_else(|| failed(Operation::GetDeviceInfo)(gone()))
    };
    let mut revivals = 0;
    loop {
        match control.plain(Operation::StartUserRecovery, number) {
            Ok(()) => break,
            // The predecessor's ring still has the device open.
            Err(error) if is_busy(&error) && Instant::now() < deadline => thread::sleep(PAUSE),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && revivals < REVIVALS_MAX => {
                revivals += 1;
                revive(&info(control)?);
            }
            Err(source) => {
                return Err(command_failed(Operation::StartUserRecovery, wanted, source));
            }
        }
    }
    let info = info(control)?;
    let parameters = control.parameters(number).map_err(failed(Operation::GetParameters))?;
    let geometry = Geometry { sectors: parameters.basic.device_sectors, ..wanted.geometry };
    open(&info, geometry, Users::Predecessors, tell)?;
    run(control, Operation::EndUserRecovery, number, wanted)
}

/// Helps a device on whose last server was killed while it took it over. The driver begins a
/// recovery only of a device that some server has fetched from since the one before; and where that
/// server got as far as mapping descriptors, no other may, until a recovery begins. So a thread
/// fetches, which needs no mapping, and dies, as a server does.
fn revive(info: &DeviceInfo) {
    tracing::info!(
        device = block_path(info.device),
        "its last server was killed while it took it over; made ready once more"
    );
    let result = thread::scope(|scope| scope.spawn(|| fetch_and_leave(info)).join());
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a ublk device cannot be fetched from"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Opens the character device and hands it to the shard.
fn open(
    info: &DeviceInfo,
    geometry: Geometry,
    users: Users,
    tell: &dyn Fn(Progress),
) -> Result<(), UblkError> {
    let deadline = Instant::now() + NODE_PATIENCE;
    let channel = loop {
        match CharacterDevice::open(info) {
            Ok(channel) => break channel,
            Err(error)
                if (error.kind() == io::ErrorKind::NotFound || is_busy(&error))
                    && Instant::now() < deadline =>
            {
                thread::sleep(PAUSE);
            }
            Err(source) => {
                return Err(UblkError::Open { path: character_path(info.device), source });
            }
        }
    };
    tell(Progress::Opened(Opened {
        number: info.device,
        queue_count: info.queue_count,
        queue_depth: info.queue_depth,
        geometry,
        users,
        channel: Box::new(channel),
    }));
    Ok(())
}

/// Ends a device that nobody uses, and leaves one alone that somebody does.
pub(super) fn remove(number: u32, page_cache: PageCache, tell: &dyn Fn(Progress)) {
    let path = block_path(number);
    // Held until the disk is gone, so that nobody can begin to use it.
    let deadline = Instant::now() + USER_PATIENCE;
    let disk = loop {
        match hold(Path::new(&path)) {
            Ok(disk) => break disk,
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(user) => return tell(Progress::InUse(user)),
        }
    };
    // Before the disk is let go of: who closes a disk last waits until it is written, too.
    if page_cache == PageCache::MayBeDirty
        && let Err(user) = write_out_apart(Path::new(&path))
    {
        drop(disk);
        return tell(Progress::InUse(user));
    }
    let result = Control::open().and_then(|mut control| {
        let operation = Operation::StopDevice;
        control.plain(operation, number).map_err(|source| UblkError::Command {
            command: operation.name(),
            name: path.clone(),
            source,
        })?;
        Ok(control)
    });
    drop(disk);
    let mut control = match result {
        Ok(control) => control,
        Err(error) => {
            tracing::error!(%error, "a ublk device cannot be removed");
            return tell(Progress::InUse("the kernel".to_owned()));
        }
    };
    tell(Progress::Stopped);
    // Ends when the shard has closed the character device.
    if let Err(error) = control.plain(Operation::DeleteDevice, number) {
        tracing::error!(%error, device = path, "a ublk device cannot be removed");
    }
    tell(Progress::Removed);
}

/// Opens a disk that nobody uses, so that nobody else can mount it.
fn hold(path: &Path) -> Result<File, String> {
    let disk = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    // One that can be opened all the same may be under a loop device, which need not have asked for
    // it alone.
    if let Err(OpenError::InUse { user, .. }) = check_unused(path) {
        return Err(user.to_string());
    }
    let disk = disk.map_err(|error| match is_busy(&error) {
        true => "somebody".to_owned(),
        false => error.to_string(),
    })?;
    // Nor others who have opened it: virtual machines, or a copy under way.
    if let Some(user) = opener(&disk) {
        return Err(user);
    }
    Ok(disk)
}

/// Another process that has the disk or a partition of it open.
fn opener(disk: &File) -> Option<String> {
    let numbers = with_partitions(disk.metadata().ok()?.rdev());
    let is_it = |link: &Path, target: &Path| {
        // Nothing is asked of files elsewhere: a lost file server might never answer.
        let metadata = if target.starts_with("/dev") { std::fs::metadata(link).ok() } else { None };
        metadata.is_some_and(|m| m.file_type().is_block_device() && numbers.contains(&m.rdev()))
    };
    others_with(is_it).next().map(|process| format!("process {process}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: u64 = 0x6672_6279_0000_0001;

    fn wanted() -> Wanted {
        Wanted {
            name: "home".into(),
            number: Some(3),
            queue_count: 1,
            queue_depth: 128,
            geometry: Geometry {
                sectors: 1000,
                logical_block_bytes: 512,
                optimal_io_bytes: 0,
                is_read_only: false,
                is_rotational: false,
            },
            identity: IDENTITY,
        }
    }

    fn info(state: u16, identity: u64) -> DeviceInfo {
        DeviceInfo { device: 3, state, identity, process: 77, ..DeviceInfo::default() }
    }

    fn judged(info: DeviceInfo, server: Option<&str>) -> Result<Plan, String> {
        let parameters = wanted().geometry.parameters();
        judge(&wanted(), &info, &parameters, server.map(str::to_owned)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_device_of_the_predecessor_is_taken_over_when_the_kernel_is_ready() {
        assert_eq!(judged(info(state::QUIESCED, IDENTITY), None), Ok(Plan::TakeOver(3)));
        let waiting = Ok(Plan::Wait { number: 3, process: 77 });
        assert_eq!(judged(info(state::LIVE, IDENTITY), None), waiting);
        assert_eq!(judged(info(state::LIVE, IDENTITY), Some("77 (x)")), waiting);
        assert_eq!(judged(info(state::DEAD, IDENTITY), None), Ok(Plan::Replace(3)));
    }

    #[test]
    fn what_belongs_to_others_is_refused_with_what_to_do() {
        let used = judged(info(state::LIVE, 0), Some("77 (other)")).unwrap_err();
        assert!(used.contains("/dev/ublkb3 is in use: process 77 (other)"), "{used}");
        assert!(used.contains("choose another number"), "{used}");
        for state in [state::DEAD, state::LIVE, state::QUIESCED] {
            let foreign = judged(info(state, 0), None).unwrap_err();
            assert!(foreign.contains("another program made it"), "{foreign}");
            assert!(foreign.contains("ublk del -n 3"), "{foreign}");
        }
        let other = judged(info(state::QUIESCED, IDENTITY + 1), None).unwrap_err();
        assert!(other.contains("forebay made it for something else"), "{other}");
    }

    #[test]
    fn a_device_keeps_its_size_and_must_fit_into_the_volume() {
        let with = |sectors: u64, block: u32| {
            let geometry = Geometry { sectors, logical_block_bytes: block, ..wanted().geometry };
            let info = info(state::QUIESCED, IDENTITY);
            judge(&wanted(), &info, &geometry.parameters(), None)
        };
        assert_eq!(with(999, 512).unwrap(), Plan::TakeOver(3));
        let larger = with(1001, 512).unwrap_err().to_string();
        assert!(larger.contains("1001 sectors"), "{larger}");
        assert!(with(1000, 4096).unwrap_err().to_string().contains("blocks of 4096"));
    }

    #[test]
    fn a_device_that_was_at_work_is_the_only_choice() {
        let device = |device, state| DeviceInfo { device, state, ..DeviceInfo::default() };
        let (remains, waiting) = (device(3, state::DEAD), device(5, state::QUIESCED));
        assert_eq!(choose(&[], None), Ok(None));
        assert_eq!(choose(&[], Some(7)), Ok(Some(7)));
        assert_eq!(choose(&[remains], None), Ok(Some(3)));
        assert_eq!(choose(&[remains], Some(7)), Ok(Some(7)));
        assert_eq!(choose(&[remains, waiting], None), Ok(Some(5)));
        assert_eq!(choose(&[remains, waiting], Some(5)), Ok(Some(5)));
        assert_eq!(choose(&[remains, waiting], Some(7)), Err(5));
        let live = device(6, state::LIVE);
        assert_eq!(choose(&[waiting, live], None), Err(6));
        assert_eq!(choose(&[waiting, live], Some(6)), Err(5));
    }

    #[test]
    fn processes_that_live_are_named() {
        let own = std::process::id();
        assert!(living_process(own as i32).unwrap().starts_with(&format!("{own} (")));
        assert_eq!(living_process(0), None);
        assert_eq!(living_process(-1), None);
        assert_eq!(living_process(4_194_305), None);
    }
}
