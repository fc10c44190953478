//! What goes wrong at a device: failures that it reports, stalls, and writes that it gets wrong
//! without saying so. The model that this serves is written at the top of `device.rs`.

use forebay_engine::io::IoError;

use crate::random::Random;

const SECOND_NS: u64 = 1_000_000_000;
/// Most outages of a device in a life.
const OUTAGES_MAX: u32 = 4;
/// Longest time that a stalled operation takes once the outage is over.
const AFTER_STALL_NS: u64 = 20_000_000;
/// Most times that a device comes back only to go again.
const RETURNS_MAX: u32 = 3;

/// Failures to come, for one life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultRates {
    /// Reads that fail, of a thousand.
    pub read_permille: u64,
    /// Writes, discards and write zeroes that fail, of a thousand.
    pub write_permille: u64,
    /// Flushes that fail, of a thousand.
    pub flush_permille: u64,
    /// Most failures.
    pub failures_max: u32,
    /// One operation that fails, counted from zero over the device's life.
    pub fail_nth: Option<u64>,
    /// When the device goes.
    pub gone: Option<Gone>,
    /// Operations that end well, but seconds late, of a thousand.
    pub stall_permille: u64,
    /// Times in which nothing goes on, or everything fails in a way that passes.
    pub outage: Option<Outage>,
    /// A part of the device that fails as long as the life lasts.
    pub bad_range: Option<BadRange>,
    /// Writes that fail one after the other.
    pub burst: Option<Burst>,
    /// Blocks that become unreadable one by one.
    pub decay: Option<Decay>,
}

impl FaultRates {
    /// The same, after so many operations of the device's life.
    pub(crate) fn after(self, operations: u64) -> FaultRates {
        FaultRates {
            fail_nth: self.fail_nth.map(|nth| nth + operations),
            gone: self
                .gone
                .map(|gone| Gone { from_operation: gone.from_operation + operations, ..gone }),
            burst: self
                .burst
                .map(|burst| Burst { from_operation: burst.from_operation + operations, ..burst }),
            outage: self.outage.map(|outage| Outage {
                from_operation: outage.from_operation + operations,
                ..outage
            }),
            decay: self
                .decay
                .map(|decay| Decay { from_operation: decay.from_operation + operations, ..decay }),
            ..self
        }
    }
}

/// A device that goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone {
    /// First operation that finds it gone, counted from zero over the device's life.
    pub from_operation: u64,
    /// How long; `None` until the end of the life.
    pub lasts_ns: Option<u64>,
    /// Operations for which it is back until it goes again, a few times; `None`: it stays.
    pub back_for: Option<u64>,
}

/// A device that stands still, or cannot be reached, for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// First operation that meets it, counted from zero over the device's life.
    pub from_operation: u64,
    /// How long it lasts.
    pub lasts_ns: u64,
    /// Operations from the end of one outage to the next.
    pub again_after: u64,
    /// What becomes of operations meanwhile.
    pub how: OutageKind,
}

/// What becomes of operations during an outage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutageKind {
    /// They end well when it is over.
    Stalls,
    /// They fail at once with this error.
    Fails(IoError),
    /// The same, but flushes end well.
    FailsTransfers(IoError),
}

/// Writes that fail one after the other: more in a row than chance brings together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst {
    /// The first operation that may be one of them, counted from zero over the device's life.
    pub from_operation: u64,
    /// How many writes.
    pub failures: u32,
}

/// Blocks that become unreadable when they are read, and stay so until they are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decay {
    /// The first operation that may find one, counted from zero over the device's life.
    pub from_operation: u64,
    /// Reads that find one, of a thousand.
    pub permille: u64,
    /// Most blocks.
    pub blocks_max: u32,
}

/// Blocks on which operations fail, each time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadRange {
    /// Where it begins, in thousandths of the device.
    pub from_permille: u64,
    /// Its length in blocks.
    pub block_count: u32,
    /// What fails.
    pub fails: BadKind,
}

/// Which operations a bad range fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadKind {
    /// Reads, of a block until it is written.
    ReadsUntilWritten,
    /// Writes.
    Writes,
    /// Reads and writes.
    All,
}

/// What an operation is to its failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, discards or writes zeroes.
    Write,
    /// It flushes.
    Flush,
}

/// What becomes of a write that the device reports as done, and of which it has done something
/// else. Chosen before the write is submitted; see [`crate::device::Device::misplace_next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misplaced {
    /// Some of its blocks, or all, never reach the device.
    Lost {
        /// First of them, counted from the start of the write.
        first: u32,
        /// How many.
        count: u32,
    },
    /// All of it lands at another place.
    Misdirected {
        /// Block of the device where it begins.
        to_block: u32,
    },
}

/// Failures of a device in one life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    rates: FaultRates,
    pub(crate) count: u32,
    pub(crate) stalls: u32,
    gone_until: Option<u64>,
    pub(crate) was_gone: bool,
    /// Outages that have begun, when the last one ends, and the operation that meets the next.
    outages: u32,
    outage_until: u64,
    next_outage: u64,
    /// Times that it came back to go again, and the operation that then finds it gone.
    returns: (u32, u64),
    /// Writes of the burst that have failed.
    burst_failures: u32,
    decayed_blocks: u32,
}

/// How an operation ends, as far as failures decide it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fate {
    pub(crate) failure: Option<IoError>,
    /// How much later than otherwise.
    pub(crate) late_ns: u64,
}

impl Failures {
    pub(crate) fn new(rates: FaultRates) -> Failures {
        Failures { rates, ..Failures::default() }
    }

    /// Blocks that cannot be read until they are written, of a device of `block_count`.
    pub(crate) fn unreadable(&self, block_count: u32) -> std::ops::Range<u32> {
        match self.rates.bad_range {
            Some(range) if range.fails == BadKind::ReadsUntilWritten => range.blocks(block_count),
            _ => 0..0,
        }
    }

    pub(crate) fn is_gone_for_good(&self) -> bool {
        self.was_gone && self.rates.gone.is_some_and(|gone| gone.lasts_ns.is_none())
    }

    pub(crate) fn is_still_gone(&self, now: u64) -> bool {
        self.was_gone && self.gone_until.is_some_and(|until| now < until)
    }

    /// What happens to operation `nth` of the device's life, which touches `blocks` of
    /// `block_count`.
    pub(crate) fn choose(
        &mut self,
        (now, nth): (u64, u64),
        access: Access,
        blocks: &std::ops::Range<u32>,
        block_count: u32,
        random: &mut Random,
    ) -> Fate {
        if self.is_gone(now, nth) {
            return self.fail(IoError::Gone, 0);
        }
        if let Some(fate) = self.meet_outage((now, nth), access, random) {
            return fate;
        }
        if self.rates.fail_nth == Some(nth) || self.is_bad(access, blocks, block_count) {
            return self.fail(IoError::Media, 0);
        }
        if access == Access::Write && self.is_in_burst(nth) {
            self.burst_failures += 1;
            return self.fail(IoError::Media, 0);
        }
        let rates = self.rates;
        if random.permille(rates.stall_permille) {
            self.stalls += 1;
            let late_ns = random.between(SECOND_NS..=20 * SECOND_NS);
            return Fate { failure: None, late_ns };
        }
        let permille = match access {
            Access::Read => rates.read_permille,
            Access::Write => rates.write_permille,
            Access::Flush => rates.flush_permille,
        };
        if self.count >= rates.failures_max || !random.permille(permille) {
            return Fate::default();
        }
        match (access, random.below(8)) {
            (_, 0) => {
                let late_ns = random.between(SECOND_NS..=20 * SECOND_NS);
                self.fail(IoError::TimedOut, late_ns)
            }
            (Access::Write, 1 | 2) => self.fail(IoError::NoSpace, 0),
            _ => self.fail(IoError::Media, 0),
        }
    }

    fn meet_outage(
        &mut self,
        (now, nth): (u64, u64),
        access: Access,
        random: &mut Random,
    ) -> Option<Fate> {
        let outage = self.rates.outage?;
        if now >= self.outage_until {
            let next = self.next_outage.max(outage.from_operation);
            if nth < next || self.outages >= OUTAGES_MAX {
                return None;
            }
            self.outages += 1;
            self.outage_until = now + outage.lasts_ns;
        }
        self.next_outage = nth + outage.again_after;
        match (outage.how, access) {
            (OutageKind::FailsTransfers(_), Access::Flush) => None,
            (OutageKind::Fails(error) | OutageKind::FailsTransfers(error), _) => {
                Some(self.fail(error, 0))
            }
            (OutageKind::Stalls, _) => {
                self.stalls += 1;
                let late_ns = self.outage_until - now + random.below(AFTER_STALL_NS);
                Some(Fate { failure: None, late_ns })
            }
        }
    }

    fn fail(&mut self, error: IoError, late_ns: u64) -> Fate {
        self.count += 1;
        Fate { failure: Some(error), late_ns }
    }

    fn is_bad(&self, access: Access, blocks: &std::ops::Range<u32>, block_count: u32) -> bool {
        let Some(range) = self.rates.bad_range else { return false };
        let applies = match (range.fails, access) {
            // The medium knows which of its blocks were written since.
            (BadKind::ReadsUntilWritten, _) | (_, Access::Flush) => false,
            (BadKind::Writes, access) => access == Access::Write,
            (BadKind::All, _) => true,
        };
        let bad = range.blocks(block_count);
        applies && blocks.start < bad.end && bad.start < blocks.end
    }

    fn is_in_burst(&self, nth: u64) -> bool {
        let burst = self.rates.burst;
        burst.is_some_and(|b| nth >= b.from_operation && self.burst_failures < b.failures)
    }

    /// Which of `blocks`, that operation `nth` of the device's life reads, is found unreadable.
    pub(crate) fn decayed(
        &mut self,
        nth: u64,
        blocks: &std::ops::Range<u32>,
        random: &mut Random,
    ) -> Option<u32> {
        let decay = self.rates.decay.filter(|decay| nth >= decay.from_operation)?;
        if self.decayed_blocks >= decay.blocks_max || !random.permille(decay.permille) {
            return None;
        }
        self.decayed_blocks += 1;
        Some(blocks.start + random.below(u64::from(blocks.end - blocks.start)) as u32)
    }

    fn is_gone(&mut self, now: u64, nth: u64) -> bool {
        let Some(gone) = self.rates.gone else { return false };
        if let (Some(until), Some(operations)) = (self.gone_until, gone.back_for)
            && now >= until
            && self.returns.0 < RETURNS_MAX
        {
            self.returns = (self.returns.0 + 1, nth + operations);
            self.gone_until = None;
        }
        if nth < gone.from_operation.max(self.returns.1) {
            return false;
        }
        let until = *self
            .gone_until
            .get_or_insert_with(|| gone.lasts_ns.map_or(u64::MAX, |lasts| now + lasts));
        self.was_gone = true;
        now < until
    }
}

impl BadRange {
    fn blocks(&self, block_count: u32) -> std::ops::Range<u32> {
        let from = (u64::from(block_count) * self.from_permille / 1000) as u32;
        from..block_count.min(from + self.block_count)
    }
}
