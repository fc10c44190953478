//! Complaints about clients: each kind once as a warning, the rest for debugging only.
//!
//! A client can send garbage faster than a disk takes logs; what matters is that it happens and one
//! example of it.

use std::collections::HashSet;

use forebay_nbd::{ProtocolError, RefusalReason};

/// What a complaint is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Named(&'static str),
    Refusal(RefusalReason),
    Protocol(std::mem::Discriminant<ProtocolError>),
}

/// Remembers what was logged.
#[derive(Default)]
pub(super) struct LogOnce {
    seen: HashSet<Kind>,
}

/// What can be complained about.
pub(super) trait Complaint {
    #[doc(hidden)]
    fn is_first(&self, log: &mut LogOnce) -> bool;
}

impl Complaint for RefusalReason {
    fn is_first(&self, log: &mut LogOnce) -> bool {
        log.seen.insert(Kind::Refusal(*self))
    }
}

impl Complaint for ProtocolError {
    fn is_first(&self, log: &mut LogOnce) -> bool {
        log.seen.insert(Kind::Protocol(std::mem::discriminant(self)))
    }
}

impl LogOnce {
    /// Logs a complaint of a named kind.
    pub(super) fn warn(&mut self, name: &'static str, message: impl FnOnce() -> String) {
        if self.seen.insert(Kind::Named(name)) {
            warn_first(message);
        } else {
            mention(message);
        }
    }

    /// Logs a complaint about something that a client sent.
    pub(super) fn warn_about(&mut self, what: impl Complaint, message: impl FnOnce() -> String) {
        if what.is_first(self) {
            warn_first(message);
        } else {
            mention(message);
        }
    }
}

fn warn_first(message: impl FnOnce() -> String) {
    tracing::warn!("{} (more of this kind are not shown)", message());
}

fn mention(message: impl FnOnce() -> String) {
    if tracing::enabled!(tracing::Level::DEBUG) {
        tracing::debug!("{}", message());
    }
}
