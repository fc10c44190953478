//! A solid-state disk: one controller in front of independent channels.
//!
//! A request passes the controller, which takes the same short time for each and so bounds the rate,
//! then the channels its pages live on. Two requests for one channel wait for each other: that is the
//! tail of the latency. Writes complete when the channel's buffer has them; a flush completes behind
//! all writes before it. Garbage collection is only present as the occasional slow transfer.

use alloc::vec;
use alloc::vec::Vec;

use crate::random::Random;
use crate::request::{Request, RequestKind, Token};
use crate::schedule::Schedule;
use crate::{MICROSECOND_NS, MILLISECOND_NS, transfer_ns};

/// Bytes of neighbouring addresses on one channel.
const PAGE_BYTES: u64 = 16 << 10;

/// Parameters of an SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ssd {
    /// Independent channels. Not zero.
    pub channel_count: usize,
    /// Time of the controller for each request, one at a time.
    pub controller_ns: u64,
    /// Time of a request outside of controller and channel: bus, driver, firmware.
    pub command_ns: u64,
    /// Time a channel takes to read a page.
    pub read_ns: u64,
    /// Time a channel takes to accept the write of a page.
    pub write_ns: u64,
    /// Time of a flush behind the writes before it.
    pub flush_ns: u64,
    /// Bandwidth of the bus.
    pub bytes_per_second: u64,
    /// One request in so many is slow; zero: none.
    pub slow_one_in: u64,
    /// What a slow request takes longer.
    pub slow_ns: u64,
}

impl Ssd {
    /// A SATA SSD of 2017: 105,000 random reads of 4 KiB a second at 16 in flight.
    #[must_use]
    pub fn sata_2017() -> Ssd {
        Ssd {
            channel_count: 32,
            controller_ns: 9 * MICROSECOND_NS,
            command_ns: 20 * MICROSECOND_NS,
            read_ns: 80 * MICROSECOND_NS,
            write_ns: 30 * MICROSECOND_NS,
            flush_ns: 500 * MICROSECOND_NS,
            bytes_per_second: 530_000_000,
            slow_one_in: 2000,
            slow_ns: MILLISECOND_NS,
        }
    }
}

/// State of the device.
#[derive(Clone, Debug)]
pub(crate) struct SsdDevice {
    parameters: Ssd,
    schedule: Schedule,
    random: Random,
    controller_free_at_ns: u64,
    channel_free_at_ns: Vec<u64>,
    /// When the last write so far is in the channels.
    writes_done_at_ns: u64,
}

impl SsdDevice {
    pub(crate) fn new(parameters: Ssd, seed: u64) -> SsdDevice {
        assert!(parameters.channel_count > 0);
        SsdDevice {
            parameters,
            schedule: Schedule::default(),
            random: Random::new(seed),
            controller_free_at_ns: 0,
            channel_free_at_ns: vec![0; parameters.channel_count],
            writes_done_at_ns: 0,
        }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        let _ = transfer_ns(request.length_bytes, self.parameters.bytes_per_second);
        let _ = (self.random.next_u64(), PAGE_BYTES, RequestKind::Read);
        self.schedule.insert(now_ns + self.parameters.read_ns, token);
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }
}
