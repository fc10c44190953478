//! How a command ends: exit codes, and the one place where errors of the libraries become them.
//!
//! A [`Failure`] is what the operator reads: one sentence that names the object and the remedy.

use std::fmt;
use std::io::ErrorKind;

use forebay_advisor::trace::TraceError;
use forebay_engine::event::CommandError;
use forebay_engine::format::superblock::{AddVolumeError, KeepsTooMuch};
use forebay_engine::units::BLOCK_BYTES;
use forebay_host::offline::OfflineError;
use forebay_host::probe::OpenError;
use forebay_host::set::{OriginError, SetError};
use forebay_host::state_file::StateFileError;
use forebay_host::{
    AdminError, DeviceSpecError, ListenError, NotServing, ShardError, UblkError, VhostUserError,
};

use crate::size;

/// Shown by `forebay --help`; the numbers are those of [`Exit`].
pub(crate) const EXIT_CODES_HELP: &str = "\
Exit codes:
  0  done
  1  the operation failed (I/O error, no permission, a device that does not fit)
  2  wrong usage
  3  refused, because data would be at risk or the object is in use
  4  not found: no such file, volume or running daemon
  5  the cache device is damaged, or is none
  6  cancelled by the operator";

/// Exit codes other than 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// The operation failed.
    Failed = 1,
    /// Wrong usage.
    Usage = 2,
    /// Data would be at risk, or the object is in use.
    Refused = 3,
    /// No such file, volume or daemon.
    NotFound = 4,
    /// The cache device is damaged, or is none.
    Damaged = 5,
    /// The operator gave up.
    Cancelled = 6,
}

impl Exit {
    const ALL: [Exit; 6] =
        [Exit::Failed, Exit::Usage, Exit::Refused, Exit::NotFound, Exit::Damaged, Exit::Cancelled];

    /// The code as a number.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The exit of a number that a daemon sent.
    pub(crate) fn from_code(code: u8) -> Exit {
        Exit::ALL.into_iter().find(|exit| exit.code() == code).unwrap_or(Exit::Failed)
    }
}

/// Why a command did not do its work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub(crate) fn refused(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Refused, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Failure {
        Failure::new(Exit::NotFound, message)
    }

    /// The same with what the operator can do about it.
    pub(crate) fn or(mut self, remedy: impl fmt::Display) -> Failure {
        self.message = format!("{}; {remedy}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

fn exit_of_io(source: &std::io::Error) -> Exit {
    match source.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    }
}

fn exit_of_open(error: &OpenError) -> Exit {
    match error {
        OpenError::Open { source, .. } => exit_of_io(source),
        OpenError::Locked { .. } | OpenError::InUse { .. } | OpenError::Signature { .. } => {
            Exit::Refused
        }
        _ => Exit::Failed,
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::new(exit_of_open(&error), error.to_string())
    }
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Failure {
        let exit = match &error {
            TraceError::Read { source, .. } => exit_of_io(source),
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<OfflineError> for Failure {
    fn from(error: OfflineError) -> Failure {
        let text = error.to_string();
        match error {
            OfflineError::Open(open) => open.into(),
            OfflineError::Superblock { .. } => Failure::new(Exit::Damaged, text)
                .or("name another device, or make a cache device of it with `forebay format`"),
            OfflineError::Label { .. } => Failure::usage(text),
            OfflineError::Geometry { .. } => {
                Failure::failed(text).or("give it more room, or choose a smaller --segment-size")
            }
            OfflineError::Io { source, .. } if source.kind() == ErrorKind::StorageFull => {
                Failure::failed(text).or("make room there, or choose a smaller --size")
            }
            _ => Failure::failed(text),
        }
    }
}

impl From<OriginError> for Failure {
    fn from(error: OriginError) -> Failure {
        match error {
            OriginError::Open(open) => open.into(),
            OriginError::Spec(spec) => spec.into(),
            other => Failure::failed(other.to_string()),
        }
    }
}

impl From<SetError> for Failure {
    fn from(error: SetError) -> Failure {
        let text = error.to_string();
        match error {
            SetError::Cache(open) => open.into(),
            SetError::Superblock(offline) => offline.into(),
            SetError::Truncated { .. } => Failure::new(Exit::Damaged, text)
                .or("restore the device to its former size; nothing was written to it"),
            SetError::UnknownSet { .. } => Failure::not_found(text),
            SetError::DirtyPossible { .. } => Failure::refused(text),
            SetError::StateFile(state) => state.into(),
            _ => Failure::failed(text),
        }
    }
}

impl From<StateFileError> for Failure {
    fn from(error: StateFileError) -> Failure {
        Failure::failed(error.to_string()).or("--state-dir chooses another directory")
    }
}

impl From<ShardError> for Failure {
    fn from(error: ShardError) -> Failure {
        let text = error.to_string();
        match error {
            ShardError::Recovery(_) => Failure::new(Exit::Damaged, text)
                .or("nothing was written to it; `forebay check` lists what is wrong"),
            ShardError::Listen(listen) => listen.into(),
            ShardError::StateFile(state) => state.into(),
            ShardError::Ublk(ublk) => ublk.into(),
            ShardError::VhostUser(vhost_user) => vhost_user.into(),
            ShardError::Recording(_) => {
                Failure::failed(text).or("--record-writes names a new file")
            }
            _ => Failure::failed(text),
        }
    }
}

impl From<VhostUserError> for Failure {
    fn from(error: VhostUserError) -> Failure {
        let exit = match error {
            VhostUserError::UnknownExport { .. } => Exit::NotFound,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<UblkError> for Failure {
    fn from(error: UblkError) -> Failure {
        let exit = match error {
            UblkError::NoDriver | UblkError::UnknownExport { .. } => Exit::NotFound,
            UblkError::Twice { .. } | UblkError::SameNumber { .. } => Exit::Usage,
            UblkError::InUse { .. }
            | UblkError::Foreign { .. }
            | UblkError::Changed { .. }
            | UblkError::Left { .. } => Exit::Refused,
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<ListenError> for Failure {
    fn from(error: ListenError) -> Failure {
        let exit = match error {
            ListenError::InUse { .. } | ListenError::NotASocket { .. } => Exit::Refused,
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<NotServing> for Failure {
    fn from(error: NotServing) -> Failure {
        match error {
            NotServing::Recovery(recovery) => ShardError::Recovery(recovery).into(),
            NotServing::ShardGone(gone) => Failure::failed(gone.to_string()),
        }
    }
}

/// More would be kept than fits: says what there is, and what may be.
pub(crate) fn failure_of_keeping(error: KeepsTooMuch) -> Failure {
    let text = |blocks: u64| size::text(blocks * BLOCK_BYTES as u64);
    let KeepsTooMuch { pinned_blocks, share_blocks, allowed_blocks } = error;
    let excess_blocks = (pinned_blocks + share_blocks).saturating_sub(allowed_blocks);
    Failure::usage(format!(
        "with this, pinned ranges ({}) and share_min ({}) of all volumes come to {} more than the \
         {} that may be kept in this cache",
        text(pinned_blocks),
        text(share_blocks),
        text(excess_blocks),
        text(allowed_blocks)
    ))
    .or("ask for less, unpin other ranges, or lower share_min; `forebay status` shows both")
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Failure {
        let text = error.to_string();
        match error {
            AdminError::Engine(CommandError::KeepsTooMuch(error))
            | AdminError::BadVolume { reason: AddVolumeError::KeepsTooMuch(error), .. } => {
                failure_of_keeping(error)
            }
            AdminError::Engine(CommandError::TooManyRanges) => Failure::usage(text)
                .or("unpin some, or pin ranges that touch those that are pinned"),
            AdminError::NoSuchVolume { .. } => {
                Failure::not_found(text).or("`forebay status` lists the volumes")
            }
            AdminError::BehindEnd { .. } => {
                Failure::usage(text).or("give an offset within the volume")
            }
            AdminError::Engine(CommandError::NoSuchVolume) => Failure::not_found(text),
            AdminError::ClientsConnected { .. } | AdminError::OriginSmaller { .. } => {
                Failure::refused(text)
            }
            AdminError::Engine(
                CommandError::Dirty | CommandError::Busy | CommandError::WouldShrink,
            ) => Failure::refused(text),
            AdminError::Engine(CommandError::Cancelled) => Failure::new(Exit::Cancelled, text),
            AdminError::NoCacheSet | AdminError::BadVolume { .. } => Failure::usage(text),
            AdminError::Origin(open) => open.into(),
            AdminError::UnsuitableOrigin(origin) => origin.into(),
            _ => Failure::failed(text),
        }
    }
}

impl From<DeviceSpecError> for Failure {
    fn from(error: DeviceSpecError) -> Failure {
        Failure::usage(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_code() {
        for exit in Exit::ALL {
            assert!(EXIT_CODES_HELP.contains(&format!("\n  {}  ", exit.code())));
            assert_eq!(Exit::from_code(exit.code()), exit);
        }
        assert_eq!(Exit::from_code(77), Exit::Failed);
    }
}
