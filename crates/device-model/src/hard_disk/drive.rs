//! State of a drive.

use super::HardDisk;
use crate::request::{Completion, Request, Token};
use crate::schedule::Schedule;

/// A drive at work.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    parameters: HardDisk,
    schedule: Schedule,
}

impl Drive {
    pub(crate) fn new(parameters: HardDisk, _length_bytes: u64) -> Drive {
        Drive { parameters, schedule: Schedule::default() }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, _request: Request) {
        self.schedule.insert(now_ns + self.parameters.seek_third_ns, token);
    }

    pub(crate) fn poll(&mut self, now_ns: u64) -> Option<Completion> {
        self.schedule.take_due(now_ns)
    }

    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        self.schedule.next_ns()
    }
}
