//! The daemon of a cache set in the background: how it is started, awaited and ended.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::record::Record;
use super::set::Set;
use super::{FrontEndKind, PAUSE};
use crate::admin::api::Status;
use crate::admin::client::{self, AdminClient};
use crate::admin::socket;
use crate::exit::{Exit, Failure};
use crate::lock_holder::is_dead;
use crate::progress::{Progress, Unit};

/// How long a daemon may take to end after it has written its checkpoint.
const END_PATIENCE: Duration = Duration::from_secs(60);

/// How a daemon is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) front_end: FrontEndKind,
    pub(crate) state_dir: PathBuf,
    pub(crate) admin: PathBuf,
    /// More options of `serve`.
    pub(crate) more: Vec<OsString>,
}

/// What a new daemon comes after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Follows {
    /// One that has ended, or none.
    Ended,
    /// One that runs, and goes on if the new one fails.
    Running,
}

/// Arguments with which this program serves all volumes of a set.
pub(crate) fn serve_arguments(set: &Set, plan: &Plan) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["serve".into(), set.cache.clone().into()];
    arguments.extend(["--admin".into(), plan.admin.clone().into()]);
    arguments.extend(["--state-dir".into(), plan.state_dir.clone().into()]);
    if plan.front_end == FrontEndKind::Ublk {
        for volume in &set.volumes {
            arguments.extend(["--ublk".into(), volume.name.clone().into()]);
        }
    } else {
        let mut address = OsString::from("unix:");
        address.push(set.nbd_socket());
        arguments.extend(["--nbd".into(), address]);
    }
    arguments.extend(plan.more.iter().cloned());
    arguments
}

/// The daemon of a set, if it runs: at the socket that is given, else where the last one had its
/// own, else at any of the run directory.
pub(crate) fn find(
    set: &Set,
    given: Option<&Path>,
    last: Option<&Record>,
) -> Result<Option<AdminClient>, Failure> {
    let work = async {
        if let (None, Some(record)) = (given, last)
            && let Some(daemon) = client::serving(&set.cache, Some(&record.admin)).await?
        {
            return Ok(Some(daemon));
        }
        client::serving(&set.cache, given).await
    };
    client::block_on(work)?
}

/// Where a daemon that was started here writes its log.
pub(crate) fn log_of(set: &Set) -> PathBuf {
    set.file("log")
}

/// Starts a daemon that outlives this process and its terminal, and waits until it serves.
pub(crate) fn start(set: &Set, plan: &Plan, follows: Follows) -> Result<Status, Failure> {
    let log = log_of(set);
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot start a daemon with its log in {}: {error}", log.display()))
    };
    fs::create_dir_all(socket::run_directory()).map_err(failed)?;
    // What the one before had to say may be why another one is needed. One that runs has the file
    // open, and would write on in it wherever it is: what is named so would be another daemon's.
    if follows == Follows::Ended {
        let _ = fs::rename(&log, set.file("log.old"));
    }
    let output = File::options().create(true).append(true).open(&log).map_err(failed)?;
    let said_before = output.metadata().map_err(failed)?.len();
    let errors = output.try_clone().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(serve_arguments(set, plan))
        .arg("--own-session")
        .current_dir("/")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(failed)?;
    await_serving(&AdminClient::new(&plan.admin), |status| {
        if let Ok(Some(ended)) = child.try_wait() {
            let exit = ended.code().and_then(|code| u8::try_from(code).ok());
            return Err(died(&log, said_before, exit.map_or(Exit::Failed, Exit::from_code)));
        }
        // Another daemon may have the socket, whose turn it is not.
        Ok(status.is_some_and(|status| is_child(&child, status)))
    })
}

fn is_child(child: &Child, status: &Status) -> bool {
    child.id() == status.pid
}

/// Why a daemon has ended, from what it said last, behind what others have said before.
fn died(log: &Path, said_before: u64, exit: Exit) -> Failure {
    let read = || {
        let mut file = File::open(log)?;
        file.seek(SeekFrom::Start(said_before))?;
        io::read_to_string(file)
    };
    let text = read().unwrap_or_default();
    let said = text.lines().rev().find_map(|line| line.strip_prefix("forebay: "));
    let said = said.or_else(|| text.lines().next_back()).unwrap_or("it said nothing");
    Failure::new(exit, format!("the daemon has ended: {said}"))
        .or(format!("its log is {}", log.display()))
}

/// Waits until a daemon serves, with progress while it recovers. `is_meant` sees each status, or
/// that there was none, and says whether it is the daemon's; its error ends the wait.
pub(crate) fn await_serving(
    daemon: &AdminClient,
    mut is_meant: impl FnMut(Option<&Status>) -> Result<bool, Failure>,
) -> Result<Status, Failure> {
    let mut recovery: Option<Progress> = None;
    let status = loop {
        let status = client::block_on(daemon.status())?.ok();
        if is_meant(status.as_ref())?
            && let Some(status) = status
        {
            if is_ready(&status)? {
                break status;
            }
            if let Some(set) = &status.cache_set {
                let total = set.recovery_segments_total.into();
                recovery
                    .get_or_insert_with(|| Progress::start("recovering", Unit::Segments, total))
                    .set(set.recovery_segments_done.into());
            }
        }
        std::thread::sleep(PAUSE);
    };
    if let Some(progress) = recovery {
        progress.finish();
    }
    Ok(status)
}

/// Whether all that is to come from a daemon has come: also the block devices that it makes itself,
/// which follow the recovery.
fn is_ready(status: &Status) -> Result<bool, Failure> {
    if let Some(error) = status.cache_set.as_ref().and_then(|set| set.recovery_error.as_ref()) {
        return Err(Failure::new(
            Exit::Damaged,
            format!("the cache set cannot be served: {error}"),
        ));
    }
    Ok(status.state == "serving")
}

/// Stops a daemon, which finishes and writes its checkpoint, and waits for the end of its process.
pub(crate) fn stop(daemon: &AdminClient, pid: u32) -> Result<(), Failure> {
    client::block_on(daemon.stop())??;
    let deadline = Instant::now() + END_PATIENCE;
    while !is_dead(&pid.to_string()) {
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!("daemon {pid} has stopped, but does not end"))
                .or("the kernel still carries out its transfers; look at the devices"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
