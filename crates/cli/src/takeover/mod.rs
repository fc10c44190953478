//! `forebay serve --takeover`: a new daemon goes on with what a running one serves.
//!
//! The two meet on a socket that the successor makes beside the admin socket of the predecessor,
//! and that it names in a request on that admin socket. On it they exchange whole [`Message`]s:
//!
//! ```text
//! successor                                predecessor
//!    | ------- admin: version, set, socket --> | refuses, or connects
//!    | <------------------------------ Offer - | serves as ever
//!    | opens sockets, allocates memory         |
//!    | - Begin ------------------------------> | holds requests back, ends what is under way,
//!    |                                         | writes a checkpoint, is silent
//!    | <- Cache, Origin..., Listener..., Silent|
//!    | reads: superblock, log, origins         |
//!    | - Ready ------------------------------> |
//!    | <------------------------------ Yours - | ends: this is the commit
//!    | writes: checkpoint; serves              |
//! ```
//!
//! There are never two that write. Before `Yours` has been sent the predecessor is the owner, and
//! goes on if the successor fails, closes the socket, or needs longer than
//! [`forebay_host::takeover::TAKEOVER_MAX`]. It ends in the step in which it sends `Yours`, and if
//! that cannot be sent it goes on. A successor that does not get `Yours` ends, whatever the reason:
//! that the socket is closed does not tell it whether the predecessor is dead.

pub(crate) mod predecessor;
pub(crate) mod successor;
mod wire;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Of the exchange. A daemon refuses a successor with another one, and goes on.
pub(crate) const VERSION: u32 = 1;

/// What the admin socket is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TakeoverRequest {
    /// See [`VERSION`].
    pub(crate) version: u32,
    /// Identity of the cache set.
    pub(crate) set_id: String,
    /// Where the successor waits.
    pub(crate) socket: PathBuf,
    /// Where the successor keeps what this host knows of the set. Older
    /// programs do not say.
    #[serde(default)]
    pub(crate) state_directory: Option<PathBuf>,
}

/// What the two say to each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    /// What there is to take over.
    Offer {
        /// Process id of the predecessor.
        pid: u32,
        /// Names of the volumes that are ublk devices.
        ublk: Vec<String>,
        /// systemd, if it watches the predecessor.
        supervisor: Option<Supervisor>,
    },
    /// Requests are to be held back now.
    Begin {},
    /// The cache device; comes with its descriptor.
    Cache {
        /// As in a volume table.
        device: String,
    },
    /// An origin; comes with its descriptor.
    Origin {
        /// Slot in the volume table.
        slot: u16,
        /// As in a volume table.
        device: String,
    },
    /// A socket that listens; comes with its descriptor.
    Listener {
        /// For whom.
        role: Role,
        /// As it was asked for.
        wanted: String,
        /// With the port that the kernel chose.
        address: String,
    },
    /// All has come, and nothing is written any more.
    Silent {},
    /// The successor has read everything.
    Ready {},
    /// The predecessor writes no more, for good.
    Yours {},
    /// The predecessor goes on.
    Refused {
        /// Why.
        reason: String,
    },
}

/// For whom a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Nbd,
    VhostUser,
    Admin,
}

/// How systemd is told of the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Supervisor {
    /// Where it listens: a path, or an abstract address behind `@`.
    pub(crate) socket: String,
    /// How often it wants to hear that the daemon lives.
    pub(crate) watchdog_us: Option<u64>,
}
