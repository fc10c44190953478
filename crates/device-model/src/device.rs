//! The device that callers see, over the model that is behind it.

use alloc::boxed::Box;

use crate::fixed_rate::{FixedRate, FixedRateDevice};
use crate::hard_disk::{Drive, HardDisk};
use crate::remote::{Remote, RemoteDevice};
use crate::request::{Completion, Request, Token};
use crate::ssd::{Ssd, SsdDevice};

/// Most requests that a device may hold at once. Chosen: far beyond the 32 of any real drive, and
/// enough for a host that queues without a limit of its own.
pub const REQUESTS_MAX: usize = 65_536;

/// What a device is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// Seeks and rotates.
    HardDisk(HardDisk),
    /// Completes a fixed number of transfers a second.
    FixedRate(FixedRate),
    /// Has channels.
    Ssd(Ssd),
    /// Is a round trip away.
    Remote(Remote),
}

/// A device at work: requests in, completions out, in the order in which the device completes them.
#[derive(Clone, Debug)]
pub struct ModelDevice {
    state: State,
    length_bytes: u64,
    now_ns: u64,
    outstanding_count: usize,
}

#[derive(Clone, Debug)]
enum State {
    HardDisk(Box<Drive>),
    FixedRate(FixedRateDevice),
    Ssd(SsdDevice),
    Remote(RemoteDevice),
}

impl ModelDevice {
    /// An idle device of `length_bytes` at time zero. `seed` decides about jitter and slow
    /// transfers.
    #[must_use]
    pub fn new(model: &Model, length_bytes: u64, seed: u64) -> ModelDevice {
        let state = match *model {
            Model::HardDisk(parameters) => {
                State::HardDisk(Box::new(Drive::new(parameters, length_bytes)))
            }
            Model::FixedRate(parameters) => State::FixedRate(FixedRateDevice::new(parameters)),
            Model::Ssd(parameters) => State::Ssd(SsdDevice::new(parameters, seed)),
            Model::Remote(parameters) => State::Remote(RemoteDevice::new(parameters, seed)),
        };
        ModelDevice { state, length_bytes, now_ns: 0, outstanding_count: 0 }
    }

    /// Requests that have been pushed and not been returned by [`ModelDevice::poll`].
    #[must_use]
    pub fn outstanding_count(&self) -> usize {
        self.outstanding_count
    }

    /// Submits `request` at `now_ns`. Time never goes back: an earlier time than one seen before
    /// counts as that one.
    ///
    /// # Panics
    ///
    /// If [`REQUESTS_MAX`] requests are outstanding.
    pub fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        assert!(self.outstanding_count < REQUESTS_MAX);
        self.now_ns = self.now_ns.max(now_ns);
        self.outstanding_count += 1;
        let offset_bytes = request.offset_bytes.min(self.length_bytes);
        let length_bytes = request.length_bytes.min(self.length_bytes - offset_bytes);
        let request = Request { offset_bytes, length_bytes, ..request };
        match &mut self.state {
            State::HardDisk(drive) => drive.push(self.now_ns, token, request),
            State::FixedRate(device) => device.push(self.now_ns, token, request),
            State::Ssd(device) => device.push(self.now_ns, token, request),
            State::Remote(device) => device.push(self.now_ns, token, request),
        }
    }

    /// The next request that is complete at `now_ns`. To be called until it returns `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<Completion> {
        self.now_ns = self.now_ns.max(now_ns);
        let completion = match &mut self.state {
            State::HardDisk(drive) => drive.poll(self.now_ns),
            State::FixedRate(device) => device.schedule_mut().take_due(self.now_ns),
            State::Ssd(device) => device.schedule_mut().take_due(self.now_ns),
            State::Remote(device) => device.schedule_mut().take_due(self.now_ns),
        }?;
        self.outstanding_count -= 1;
        Some(completion)
    }

    /// When to poll next; `None` if no request is outstanding. A poll at that time may return
    /// nothing (the device then has come a step further): ask again. Ask again after every push,
    /// too.
    #[must_use]
    pub fn next_event_ns(&self) -> Option<u64> {
        match &self.state {
            State::HardDisk(drive) => drive.next_event_ns(),
            State::FixedRate(device) => device.schedule().next_ns(),
            State::Ssd(device) => device.schedule().next_ns(),
            State::Remote(device) => device.schedule().next_ns(),
        }
    }
}
