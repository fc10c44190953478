//! A solid-state disk: one controller in front of independent channels.
//!
//! A request passes the controller, which takes the same short time for each and so bounds the
//! rate, then the channels its pages live on. Two requests for one channel wait for each other:
//! that is the tail of the latency. Writes complete when the channel's buffer has them; a flush
//! completes behind all writes before it. Garbage collection is only present as the occasional slow
//! transfer.

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
    /// A SATA SSD of 2017. Fitted to 104,848 random reads a second at 16 in flight under Zipf 1.2,
    /// half of them within 135 us and 99 % within 243-322 us.
    #[must_use]
    pub fn sata_2017() -> Ssd {
        Ssd {
            channel_count: 24,
            controller_ns: 9 * MICROSECOND_NS,
            command_ns: 8 * MICROSECOND_NS,
            read_ns: 74 * MICROSECOND_NS,
            write_ns: 30 * MICROSECOND_NS,
            flush_ns: 500 * MICROSECOND_NS,
            bytes_per_second: 530_000_000,
            slow_one_in: 2000,
            slow_ns: MILLISECOND_NS,
        }
    }

    /// An older SATA SSD of 128 GB. Fitted to uniform random reads of 4 KiB: 20,570, 38,510 and
    /// 56,130 KB/s at 1, 2 and 3 in flight.
    #[must_use]
    pub fn sata_128gb() -> Ssd {
        Ssd {
            channel_count: 10,
            command_ns: 27 * MICROSECOND_NS,
            read_ns: 150 * MICROSECOND_NS,
            ..Ssd::sata_2017()
        }
    }

    /// An NVMe SSD of 2019. Fitted to 168,000 random writes of 4 KiB a second at 32 in flight.
    #[must_use]
    pub fn nvme_2019() -> Ssd {
        Ssd {
            channel_count: 16,
            controller_ns: 5_900,
            command_ns: 10 * MICROSECOND_NS,
            read_ns: 75 * MICROSECOND_NS,
            write_ns: 20 * MICROSECOND_NS,
            flush_ns: 300 * MICROSECOND_NS,
            bytes_per_second: 3_000_000_000,
            ..Ssd::sata_2017()
        }
    }
}

/// One of the channels.
#[derive(Clone, Debug, Default)]
struct Channel {
    free_at_ns: u64,
    /// The page it transferred last.
    register: Option<u64>,
}

/// State of the device.
#[derive(Clone, Debug)]
pub(crate) struct SsdDevice {
    parameters: Ssd,
    schedule: Schedule,
    random: Random,
    controller_free_at_ns: u64,
    bus_free_at_ns: u64,
    channels: Vec<Channel>,
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
            bus_free_at_ns: 0,
            channels: vec![Channel::default(); parameters.channel_count],
            writes_done_at_ns: 0,
        }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        let parameters = self.parameters;
        self.controller_free_at_ns =
            self.controller_free_at_ns.max(now_ns) + parameters.controller_ns;
        let channels_done_ns = match request.kind {
            RequestKind::Flush => {
                self.writes_done_at_ns.max(self.controller_free_at_ns) + parameters.flush_ns
            }
            RequestKind::Discard => 0,
            RequestKind::Read => self.through_channels(request, parameters.read_ns),
            RequestKind::Write | RequestKind::WriteZeroes => {
                let done_ns = self.through_channels(request, parameters.write_ns);
                self.writes_done_at_ns = self.writes_done_at_ns.max(done_ns);
                done_ns
            }
        };
        let bus_ns = match request.kind {
            RequestKind::Read | RequestKind::Write => {
                transfer_ns(request.length_bytes, parameters.bytes_per_second)
            }
            RequestKind::WriteZeroes | RequestKind::Flush | RequestKind::Discard => 0,
        };
        // The bus is one for all, from the controller's time on and not from the end of the
        // channels: a slow channel does not keep the others from it.
        self.bus_free_at_ns = self.bus_free_at_ns.max(self.controller_free_at_ns) + bus_ns;
        let slow_ns = match parameters.slow_one_in {
            0 => 0,
            one_in if self.random.below(one_in) == 0 => parameters.slow_ns,
            _ => 0,
        };
        let done_ns = self.bus_free_at_ns.max(channels_done_ns + bus_ns);
        self.schedule.insert(done_ns + parameters.command_ns + slow_ns, token);
    }

    /// When the last channel is done with its part of `request`, at `page_ns` a page.
    fn through_channels(&mut self, request: Request, page_ns: u64) -> u64 {
        let first_page = request.offset_bytes / PAGE_BYTES;
        let end_page = (request.offset_bytes + request.length_bytes).div_ceil(PAGE_BYTES);
        let mut done_ns = self.controller_free_at_ns;
        for page in first_page..end_page {
            // Spread by a hash: a stride of the caller's must not meet one channel alone.
            let hash = (page ^ (page >> 17)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let channel = usize::try_from(hash).expect("32 bits") % self.channels.len();
            let channel = &mut self.channels[channel];
            // A page that is still in the register need not be read from the cells again.
            let is_in_register =
                request.kind == RequestKind::Read && channel.register == Some(page);
            let busy_ns = if is_in_register { 0 } else { page_ns };
            channel.register = Some(page);
            channel.free_at_ns = channel.free_at_ns.max(self.controller_free_at_ns) + busy_ns;
            done_ns = done_ns.max(channel.free_at_ns);
        }
        done_ns
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }
}
