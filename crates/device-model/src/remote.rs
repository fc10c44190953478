//! A remote volume: a round trip with jitter, a link with a bandwidth, and a server with a bounded
//! number of requests at once.

use alloc::vec;
use alloc::vec::Vec;

use crate::random::Random;
use crate::request::{Request, RequestKind, Token};
use crate::schedule::Schedule;
use crate::{MICROSECOND_NS, transfer_ns};

/// Parameters of a remote volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Shortest round trip.
    pub round_trip_ns: u64,
    /// A round trip takes up to this much longer, each length equally likely.
    pub jitter_ns: u64,
    /// Bandwidth of the link, each way.
    pub bytes_per_second: u64,
    /// Requests that the server works on at once. Not zero.
    pub parallelism: usize,
    /// What the server takes for each request.
    pub service_ns: u64,
}

impl Remote {
    /// A network volume: round trips of `round_trip_ns` and up to a tenth more, 1 GB/s each way,
    /// 64 requests at once.
    #[must_use]
    pub fn with_round_trip(round_trip_ns: u64) -> Remote {
        Remote {
            round_trip_ns,
            jitter_ns: round_trip_ns / 10,
            bytes_per_second: 1_000_000_000,
            parallelism: 64,
            service_ns: 100 * MICROSECOND_NS,
        }
    }
}

/// State of the device.
#[derive(Clone, Debug)]
pub(crate) struct RemoteDevice {
    parameters: Remote,
    schedule: Schedule,
    random: Random,
    outbound_free_at_ns: u64,
    inbound_free_at_ns: u64,
    worker_free_at_ns: Vec<u64>,
}

impl RemoteDevice {
    pub(crate) fn new(parameters: Remote, seed: u64) -> RemoteDevice {
        assert!(parameters.parallelism > 0);
        RemoteDevice {
            parameters,
            schedule: Schedule::default(),
            random: Random::new(seed),
            outbound_free_at_ns: 0,
            inbound_free_at_ns: 0,
            worker_free_at_ns: vec![0; parameters.parallelism],
        }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        let _ = transfer_ns(request.length_bytes, self.parameters.bytes_per_second);
        let _ = (self.random.next_u64(), RequestKind::Read);
        self.schedule.insert(now_ns + self.parameters.round_trip_ns, token);
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }
}
