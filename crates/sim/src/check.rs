//! The full check: everything that was ever written is read, twice, with something in between that
//! makes the cache forget.
//!
//! What the first pass reads is from then on the only value allowed. A clean copy that differs from
//! its origin passes the first time and is found the second time.

use forebay_engine::ORIGIN_LATE_BYTES_MAX;
use forebay_engine::event::Command;

use crate::client::Owner;
use crate::oracle::{Observed, Run};
use crate::random::Random;
use crate::workload::{Operation, OperationKind};
use crate::world::{Halt, TableEntry, World, violation};

/// Reads that the check has under way.
const READS_MAX: usize = 12;
/// Longest read of the check, in sectors.
const READ_SECTORS_MAX: u32 = 1024;

/// Operations under way for the sake of the cache itself: windows, reclaim, checkpoints, records. A
/// transfer of writeback may take 256 by itself, one for each of its blocks, if these lie apart or
/// one of them cannot be read.
const IOS_OF_BACKGROUND_MAX: usize = 256 + 256;
/// How often the engine looks for requests that have waited too long, in milliseconds, at least.
const LOOK_MS: u64 = 1_000;

impl World<'_> {
    /// Operations of requests that were answered because their origin stalls.
    fn late_ios_max(&self) -> usize {
        let Some(engine) = self.engine.as_ref() else { return 0 };
        let slots = self.volumes.iter().filter_map(|volume| volume.slot);
        let origins: Vec<_> = slots
            .filter_map(|slot| engine.volume_status(self.time(), slot))
            .map(|status| status.origin)
            .collect();
        // The bytes are those of all volumes.
        let bytes = origins.iter().map(|origin| origin.late_bytes).max().unwrap_or(0);
        let requests: u64 = origins.iter().map(|origin| origin.requests_late).sum();
        usize::try_from(bytes.div_ceil(4096) + requests).expect("bounded")
    }

    /// The books of the engine, and what the host sees of its queues.
    pub(crate) fn audit(&mut self) -> Result<(), Halt> {
        let engine = self.engine.as_ref().expect("the process lives");
        if let Err(text) = engine.audit() {
            return violation("the books of the engine do not agree", text);
        }
        let requests = self.clients.in_flight();
        let blocks = self.clients.blocks_in_flight();
        let ios = self.ios_in_flight();
        // Each block of a request may lie at another place, and then takes an operation of its own.
        let most = IOS_OF_BACKGROUND_MAX + blocks;
        if ios > most && ios > most + self.late_ios_max() {
            let text =
                format!("{ios} operations under way for {requests} requests of {blocks} blocks");
            return violation("too much I/O is under way", text);
        }
        self.check_origin_waits()?;
        self.check_kept()
    }

    /// Nobody waits for an origin for much longer than its volume allows.
    fn check_origin_waits(&self) -> Result<(), Halt> {
        let Some(engine) = &self.engine else { return Ok(()) };
        let slots = self.volumes.iter().filter_map(|volume| volume.slot);
        for status in slots.filter_map(|slot| engine.volume_status(self.time(), slot)) {
            let limit_ms = u64::from(status.settings.origin_timeout_s) * 1_000;
            // Close to the bound a request waits on that would go beyond it.
            let is_bounded = status.origin.late_bytes > ORIGIN_LATE_BYTES_MAX / 2;
            let is_late = status.origin.oldest_wait_ms > limit_ms + LOOK_MS;
            if limit_ms > 0 && is_late && !is_bounded {
                let text = format!(
                    "{:?}, limit {limit_ms} ms; {}",
                    status.origin,
                    self.describe_waiting()
                );
                return violation("a request waits too long for its origin", text);
            }
        }
        Ok(())
    }

    /// Reads `percent` of everything twice.
    pub(crate) fn full_check(&mut self, percent: u64) -> Result<(), Halt> {
        self.run_until("requests before the check", |world| world.clients.in_flight() == 0)?;
        self.audit()?;
        self.check_pass(Observed::Settled, percent)?;
        for index in 0..self.volumes.len() {
            self.make_forget(index)?;
        }
        self.check_pass(Observed::Once, percent)
    }

    fn check_pass(&mut self, observed: Observed, percent: u64) -> Result<(), Halt> {
        let name = if observed == Observed::Settled { "first" } else { "second" };
        self.say(format!("{name} pass of the check after {}", self.last_end));
        let mut reads = Vec::new();
        let mut random = self.random.fork();
        for index in 0..self.volumes.len() {
            if self.volumes[index].is_served() {
                reads.extend(self.runs_to_read(index, percent, &mut random));
            }
        }
        random.shuffle(&mut reads);
        for run in reads {
            self.run_until("reads of the check", |world| world.clients.in_flight() < READS_MAX)?;
            // An administrator of the life may have had it detached in the meantime.
            if self.volumes[run.volume].is_served() {
                self.issue(Operation::plain(run, OperationKind::Read), Owner::Checker(observed));
            }
            if self.random.percent(30) {
                self.poll()?;
            }
        }
        self.poll()?;
        self.run_until("reads of the check", |world| world.clients.in_flight() == 0)
    }

    fn runs_to_read(&self, index: usize, percent: u64, random: &mut Random) -> Vec<Run> {
        let sectors_max = 8 * random.between(1..=u64::from(READ_SECTORS_MAX) / 8) as u32;
        let mut runs = self.oracle.touched(index, sectors_max);
        runs.retain(|_| random.percent(percent));
        let total = self.sectors(index);
        // The history is kept by blocks, up to the end of the origin.
        for run in &mut runs {
            run.count = run.count.min(total.saturating_sub(run.first));
        }
        runs.retain(|run| run.count > 0);
        // And a few places that nobody wrote to.
        for _ in 0..4 {
            let first = random.below(u64::from(total)) as u32 / 8 * 8;
            runs.push(Run { volume: index, first, count: 64.min(total - first) });
        }
        runs
    }

    /// Makes the cache drop what it may drop, in one of several ways.
    fn make_forget(&mut self, index: usize) -> Result<(), Halt> {
        let volume = &self.volumes[index];
        let Some(slot) = volume.slot else { return Ok(()) };
        if volume.is_missing || volume.entry == TableEntry::Changing {
            return Ok(());
        }
        let mode = volume.mode;
        match self.random.below(4) {
            0 => self.read_much(index),
            1 => {
                let _ = self.command_and_wait(Command::Invalidate { volume: slot }, Some(index))?;
                Ok(())
            }
            2 => {
                let drain = Command::Drain { volume: slot };
                if self.command_and_wait(drain, Some(index))?.is_ok() {
                    let invalidate = Command::Invalidate { volume: slot };
                    let _ = self.command_and_wait(invalidate, Some(index))?;
                }
                let back = Command::SetMode { volume: slot, mode };
                let _ = self.command_and_wait(back, Some(index))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reads and prefetches all over the volume, as much as the cache may hold.
    fn read_much(&mut self, index: usize) -> Result<(), Halt> {
        let total = self.sectors(index);
        let cache_sectors = (self.config.geometry.device_bytes / 512) as u32;
        let mut left = cache_sectors.min(2 * total);
        while left > 0 && self.volumes[index].is_served() {
            let first = self.random.below(u64::from(total)) as u32 / 8 * 8;
            let count = 512.min(total - first);
            let run = Run { volume: index, first, count };
            let kind = *self.random.pick(&[OperationKind::Read, OperationKind::Prefetch]);
            self.run_until("reads of the check", |world| world.clients.in_flight() < READS_MAX)?;
            if self.volumes[index].is_served() {
                self.issue(Operation::plain(run, kind), Owner::Checker(Observed::Once));
            }
            self.poll()?;
            left = left.saturating_sub(512);
        }
        self.run_until("reads of the check", |world| world.clients.in_flight() == 0)
    }
}
