//! Why an export cannot be served over vhost-user: what it is about, and what to do.

use std::path::PathBuf;

use thiserror::Error;

/// Why an export cannot be served over vhost-user.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VhostUserError {
    /// No export has this name.
    #[error(
        "there is no `{name}` to serve at {}; names are: {}", path.display(), known.join(", ")
    )]
    UnknownExport {
        /// As given.
        name: String,
        /// Where it was to be served.
        path: PathBuf,
        /// What there is.
        known: Vec<String>,
    },
    /// An export has one front end that may write.
    #[error(
        "`{name}` is to be served twice: at {} over vhost-user, and elsewhere; a volume is served \
         through one writable front end at a time", path.display()
    )]
    Twice {
        /// The export.
        name: String,
        /// Where it was to be served.
        path: PathBuf,
    },
    /// Each socket is that of one export.
    #[error("`{one}` and `{other}` cannot both be served at {}", path.display())]
    SamePath {
        /// Where both were to be served.
        path: PathBuf,
        /// One export.
        one: String,
        /// And another one.
        other: String,
    },
    /// More sockets than there are numbers for.
    #[error("{count} vhost-user sockets are too many; {most} are possible")]
    TooMany {
        /// As given.
        count: usize,
        /// As possible.
        most: usize,
    },
}
