//! A remote volume: a round trip with jitter, a link with a bandwidth, and a server with a bounded
//! number of requests at once.

use alloc::vec;
use alloc::vec::Vec;

use crate::random::Random;
use crate::request::{Request, RequestKind, Token};
use crate::schedule::Schedule;
use crate::{MICROSECOND_NS, SECOND_NS, transfer_ns};

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
    /// A volume as clouds rent them. The rate is that of Amazon's general purpose volume gp3 as it
    /// is sold without extra: 3,000 transfers and 125 MiB a second, "single-digit millisecond
    /// latencies" (Amazon EBS User Guide, "General Purpose SSD volumes"). The round trip is chosen
    /// at the low end of that promise, which is given as no number.
    #[must_use]
    pub fn cloud_volume() -> Remote {
        Remote {
            round_trip_ns: 1000 * MICROSECOND_NS,
            jitter_ns: 500 * MICROSECOND_NS,
            bytes_per_second: 125 << 20,
            parallelism: 1,
            service_ns: SECOND_NS / 3000,
        }
    }

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
    /// When all requests so far are served.
    served_at_ns: u64,
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
            served_at_ns: 0,
        }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        let parameters = self.parameters;
        let (sent_bytes, received_bytes) = match request.kind {
            RequestKind::Read => (0, request.length_bytes),
            RequestKind::Write => (request.length_bytes, 0),
            RequestKind::WriteZeroes | RequestKind::Flush | RequestKind::Discard => (0, 0),
        };
        let sent_ns = self.outbound_free_at_ns.max(now_ns)
            + transfer_ns(sent_bytes, parameters.bytes_per_second);
        self.outbound_free_at_ns = sent_ns;
        let arrived_ns = sent_ns + parameters.round_trip_ns / 2;
        let served_ns = match request.kind {
            RequestKind::Flush => self.served_at_ns.max(arrived_ns) + parameters.service_ns,
            _ => self.serve(arrived_ns),
        };
        self.served_at_ns = self.served_at_ns.max(served_ns);
        // An answer without a payload waits for no other.
        let answered_ns = if received_bytes == 0 {
            served_ns
        } else {
            self.inbound_free_at_ns = self.inbound_free_at_ns.max(served_ns)
                + transfer_ns(received_bytes, parameters.bytes_per_second);
            self.inbound_free_at_ns
        };
        let jitter_ns = self.random.below(parameters.jitter_ns + 1);
        let back_ns = parameters.round_trip_ns - parameters.round_trip_ns / 2;
        self.schedule.insert(answered_ns + back_ns + jitter_ns, token);
    }

    /// When the worker that is free first has served a request that arrives at `arrived_ns`.
    fn serve(&mut self, arrived_ns: u64) -> u64 {
        let free_at_ns = self.worker_free_at_ns.iter_mut().min().expect("parallelism is not zero");
        *free_at_ns = (*free_at_ns).max(arrived_ns) + self.parameters.service_ns;
        *free_at_ns
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }
}
