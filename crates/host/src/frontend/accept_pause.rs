//! When a front end accepts again that has no descriptor left for a client.
//!
//! An accept that is submitted again at once would fail at once, whether or not a client is there,
//! and keep a processor busy. Clients wait in the queue of the listener meanwhile.

use forebay_engine::units::Time;

/// How long. Clients end, and then there are descriptors: who waits shall not notice, and a try
/// each second costs nothing.
const PAUSE_NS: u64 = 1_000_000_000;

/// The pause, if there is one.
#[derive(Default)]
pub(super) struct AcceptPause {
    until: Option<Time>,
}

impl AcceptPause {
    /// Accepting has ended with this result: begins a pause, if it would end the same way again.
    pub(super) fn handle_ended(&mut self, result: i32, now: Time) {
        if is_shortage(result) {
            self.until = Some(Time(now.0.saturating_add(PAUSE_NS)));
        }
    }

    /// Whether nothing is to be accepted now.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// When it is over.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.until
    }

    /// Ends it, if it is time. Returns whether it did.
    pub(super) fn end_if_due(&mut self, now: Time) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

/// Whether the process or the machine lacks something that it will have again.
fn is_shortage(result: i32) -> bool {
    matches!(-result, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
}

/// Why nobody was accepted: the kind of complaint, and what it says.
pub(super) fn complaint(result: i32) -> (&'static str, String) {
    let error = std::io::Error::from_raw_os_error(-result);
    match is_shortage(result) {
        true => ("accept: shortage", format!("{error}; tried again each second")),
        false => ("accept", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_fail_again_is_waited_for() {
        let mut pause = AcceptPause::default();
        for errno in [libc::ECONNABORTED, libc::EINTR, libc::ECANCELED] {
            pause.handle_ended(-errno, Time(5));
            assert!(!pause.is_on());
        }
        pause.handle_ended(-libc::EMFILE, Time(5));
        assert_eq!(pause.deadline(), Some(Time(5 + PAUSE_NS)));
        assert!(!pause.end_if_due(Time(4 + PAUSE_NS)) && pause.is_on());
        assert!(pause.end_if_due(Time(5 + PAUSE_NS)) && !pause.is_on());
    }
}
