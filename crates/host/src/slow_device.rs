//! Makes a fast file behave like a hard disk or a throttled volume.
//!
//! The real transfer runs at once; its completion is held back until the model says that the
//! modelled device would be done. So the data path is the real one, and only the clock differs. A
//! transfer that is slower than its model completes when it is done.

use forebay_device_model::{Model, ModelDevice, Request, RequestKind, Token};
use forebay_engine::io::{IoKind, IoResult};
use forebay_engine::units::Time;

use crate::device::{Finished, IoOwner};
use crate::slab::Slab;

/// Seed of the model's jitter. Fixed, so that two runs of a trial meet the same device.
const MODEL_SEED: u64 = 0x0666_6f72_6562_6179;

/// An operation that is not complete in both worlds yet.
#[derive(Debug)]
struct Held {
    owner: IoOwner,
    result: Option<IoResult>,
    is_due: bool,
}

/// The timing of one device.
#[derive(Debug)]
pub(crate) struct SlowDevice {
    model: ModelDevice,
    held: Slab<Held>,
}

impl SlowDevice {
    /// An idle device.
    pub(crate) fn new(model: &Model, size_bytes: u64) -> SlowDevice {
        let model = ModelDevice::new(model, size_bytes, MODEL_SEED);
        SlowDevice { model, held: Slab::new() }
    }

    /// An operation starts. The number names it in [`SlowDevice::handle_finished`].
    pub(crate) fn start(&mut self, now: Time, kind: &IoKind, owner: IoOwner) -> u32 {
        let index = self.held.insert(Held { owner, result: None, is_due: false });
        self.model.push(now.0, Token(index.into()), model_request(kind));
        index
    }

    /// The real operation is done.
    pub(crate) fn handle_finished(
        &mut self,
        index: u32,
        result: IoResult,
        finished: &mut Vec<Finished>,
    ) {
        let held = &mut self.held[index];
        assert!(held.result.is_none());
        held.result = Some(result);
        self.complete_if_both(index, finished);
    }

    /// Lets go what the modelled device has completed by now.
    pub(crate) fn handle_time(&mut self, now: Time, finished: &mut Vec<Finished>) {
        while let Some(completion) = self.model.poll(now.0) {
            let index = u32::try_from(completion.token.0).expect("tokens are slab numbers");
            self.held[index].is_due = true;
            self.complete_if_both(index, finished);
        }
    }

    /// Operations that have not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        self.held.count() as u32
    }

    /// When to call [`SlowDevice::handle_time`] next.
    pub(crate) fn next_wakeup(&self) -> Option<Time> {
        self.model.next_event_ns().map(Time)
    }

    fn complete_if_both(&mut self, index: u32, finished: &mut Vec<Finished>) {
        if let Held { owner, result: Some(result), is_due: true } = self.held[index] {
            self.held.remove(index);
            finished.push(Finished { owner, result });
        }
    }
}

fn model_request(io: &IoKind) -> Request {
    let (offset_bytes, length_bytes) = io.extent_bytes();
    let kind = match io {
        IoKind::Read { .. } => RequestKind::Read,
        IoKind::Write { .. } => RequestKind::Write,
        IoKind::Flush => RequestKind::Flush,
        IoKind::Discard { .. } => RequestKind::Discard,
        IoKind::WriteZeroes { .. } => RequestKind::WriteZeroes,
    };
    Request { kind, offset_bytes, length_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_device_model::FixedRate;
    use forebay_engine::io::IoId;

    const FLUSH: IoKind = IoKind::Discard { offset_bytes: 0, length_bytes: 4096 };

    fn rate(transfers_per_second: u64) -> SlowDevice {
        let model = Model::FixedRate(FixedRate { transfers_per_second, bytes_per_second: None });
        SlowDevice::new(&model, 1 << 30)
    }

    fn read() -> IoKind {
        use forebay_engine::io::Slices;
        use forebay_engine::payload::{BufferId, BufferRange};
        let range = BufferRange { buffer: BufferId(0), offset: 0, length: 4096 };
        IoKind::Read { offset_bytes: 0, slices: Slices::One(range) }
    }

    #[test]
    fn a_completion_waits_for_the_model_and_the_model_for_the_completion() {
        let mut device = rate(1000);
        let mut finished = Vec::new();
        let start = Time(5_000_000);
        let first = device.start(start, &read(), IoOwner::Engine(IoId(1)));
        let second = device.start(start, &read(), IoOwner::Engine(IoId(2)));
        device.handle_finished(first, Ok(()), &mut finished);
        assert!(finished.is_empty());
        let mut due = start;
        while let Some(next) = device.next_wakeup() {
            due = next;
            device.handle_time(due, &mut finished);
        }
        assert!(due.nanoseconds_since(start) >= 1_000_000);
        let first_only = Finished { owner: IoOwner::Engine(IoId(1)), result: Ok(()) };
        assert_eq!(finished, [first_only]);
        device.handle_finished(second, Ok(()), &mut finished);
        assert_eq!(finished.len(), 2);
        assert_eq!(device.held.count(), 0);
    }

    #[test]
    fn every_kind_of_operation_completes() {
        let mut device = rate(1_000_000);
        let mut finished = Vec::new();
        let index = device.start(Time(1), &FLUSH, IoOwner::Engine(IoId(9)));
        device.handle_finished(index, Ok(()), &mut finished);
        device.handle_time(Time(1 << 40), &mut finished);
        assert_eq!(finished.len(), 1);
        assert_eq!(device.next_wakeup(), None);
    }
}
