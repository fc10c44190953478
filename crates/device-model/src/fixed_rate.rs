//! A device that completes a fixed number of transfers a second, one after another.
//!
//! What a throttled cloud volume looks like at its limit: a transfer costs the same wherever it
//! goes and, without `bytes_per_second`, however long it is.

use crate::request::{Request, RequestKind, Token};
use crate::schedule::Schedule;
use crate::{SECOND_NS, transfer_ns};

/// Parameters of a device with a fixed I/O rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedRate {
    /// Transfers a second. Not zero.
    pub transfers_per_second: u64,
    /// Adds the time of its bytes to each transfer; `None` adds nothing.
    pub bytes_per_second: Option<u64>,
}

/// State of the device.
#[derive(Clone, Debug)]
pub(crate) struct FixedRateDevice {
    parameters: FixedRate,
    schedule: Schedule,
    free_at_ns: u64,
    /// What the divisions of 1 s by the rate have left over, below `transfers_per_second`. With it
    /// N transfers back to back take N / rate seconds exactly.
    remainder: u64,
}

impl FixedRateDevice {
    pub(crate) fn new(parameters: FixedRate) -> FixedRateDevice {
        assert!(parameters.transfers_per_second > 0);
        FixedRateDevice { parameters, schedule: Schedule::default(), free_at_ns: 0, remainder: 0 }
    }

    pub(crate) fn push(&mut self, now_ns: u64, token: Token, request: Request) {
        if self.free_at_ns < now_ns {
            self.free_at_ns = now_ns;
            self.remainder = 0;
        }
        match request.kind {
            RequestKind::Read | RequestKind::Write | RequestKind::WriteZeroes => {
                self.free_at_ns += self.cost_ns(request.length_bytes);
            }
            // No transfer, hence no cost; they complete behind what was pushed before.
            RequestKind::Flush | RequestKind::Discard => {}
        }
        self.schedule.insert(self.free_at_ns, token);
    }

    fn cost_ns(&mut self, length_bytes: u64) -> u64 {
        let numerator = SECOND_NS + self.remainder;
        self.remainder = numerator % self.parameters.transfers_per_second;
        let transfer = match self.parameters.bytes_per_second {
            Some(bytes_per_second) => transfer_ns(length_bytes, bytes_per_second),
            None => 0,
        };
        numerator / self.parameters.transfers_per_second + transfer
    }

    pub(crate) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    pub(crate) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }
}
