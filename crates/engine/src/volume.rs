//! A volume in service.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::background::writeback::bad::BadExtents;
use crate::background::writeback::controller::RateController;
use crate::background::writeback::cost::OriginCost;
use crate::background::writeback::depth::RunDepth;
use crate::background::writeback::pacing::OriginUse;
use crate::command::VolumeCommand;
use crate::epochs::Epochs;
use crate::failure::ride::OriginRide;
use crate::flush_group::{FlushGroup, FlushNumber};
use crate::index::VolumeIndex;
use crate::options::{CacheMode, OriginFacts, VolumeSettings, WritebackOrder};
use crate::range_lock::RangeLocks;
use crate::read_ahead::ReadAhead;
use crate::request::Request;
use crate::sequential::SequentialTracker;
use crate::slab::Key;
use crate::status::VolumeCounters;
use crate::units::{BLOCK_BYTES, Generation, Time, Version, VolumeId};
use crate::wake::Waiter;

/// A run of blocks of which the origin write is complete and the origin flush outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Homed {
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) version: Version,
    /// The origin flush that makes it clean.
    pub(crate) needs: FlushNumber,
}

/// Whether the host state file says that dirty data may exist (rule 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostMarkState {
    Clear,
    Asked,
    Set,
}

/// How the volume gets at its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// As its mode says.
    Cached,
    /// From the origin alone: the cache device failed, and the host state file says so.
    WithoutCache,
    /// Not at all: dirty data is on a cache device that failed, or the origin is missing.
    Quiesced,
    /// Not at all, and never again: it is detached, and its dirty data thrown away.
    GivenUp,
}

/// Ranges written around the log that are remembered one by one until the origin is flushed; beyond
/// that the whole volume counts as written around.
pub(crate) const AROUND_RANGES_MAX: usize = 256;
/// Written-home runs that wait for an origin flush before the engine asks for one itself.
pub(crate) const HOMED_MAX: usize = 256;

pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) generation: Generation,
    pub(crate) mode: CacheMode,
    pub(crate) settings: VolumeSettings,
    /// `None` if the origin is missing.
    pub(crate) facts: Option<OriginFacts>,
    /// As the durable volume table says.
    pub(crate) size_bytes: u64,
    pub(crate) service: Service,
    pub(crate) index: VolumeIndex,
    pub(crate) locks: RangeLocks,
    pub(crate) misses: Vec<Key>,
    pub(crate) sequential: SequentialTracker,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) origin_cost: OriginCost,
    pub(crate) bad_extents: BadExtents,
    pub(crate) origin_use: OriginUse,
    pub(crate) run_depth: RunDepth,
    pub(crate) rate_controller: RateController,
    /// When writeback may begin its next transfer while clients use the origin, and at all.
    pub(crate) next_run_at: Time,
    pub(crate) ceiling_at: Time,
    /// Flushes of the origin.
    pub(crate) flushes: FlushGroup,
    /// Written around the log: start, count, and the origin flush that covers it. Not promoted
    /// before that (rule 4). A write under way has `FlushNumber::MAX`.
    pub(crate) around: VecDeque<(u64, u64, FlushNumber)>,
    /// A write to the origin failed: what it left there may come and go, so it is not promoted.
    pub(crate) unsure: Vec<(u64, u64)>,
    pub(crate) homed: VecDeque<Homed>,
    pub(crate) homed_since: Time,
    /// The origin flush that covers what was written home in order.
    pub(crate) epoch_flush: Option<FlushNumber>,
    /// An origin flush failed: what it was to cover may be lost, and no later flush may hide that.
    pub(crate) has_lost_writes: bool,
    /// Flushes of the origin that failed in this life.
    pub(crate) failed_flushes: u64,
    /// A write or flush of the origin failed in this life: what it holds may change in a power cut.
    pub(crate) had_write_errors: bool,
    /// How the origin does, and what waits for it.
    pub(crate) ride: OriginRide,
    pub(crate) dirty_blocks: u64,
    /// No dirty block is older, by its write or by the last window that took all of them.
    pub(crate) dirty_since: Time,
    /// Dirty blocks exist that no client write is bringing home, in whatever mode.
    pub(crate) needs_writeback: bool,
    pub(crate) host_mark: HostMarkState,
    pub(crate) mark_waiters: Vec<Waiter>,
    pub(crate) epochs: Epochs,
    /// Requests wait while the mode changes.
    pub(crate) is_gated: bool,
    pub(crate) gated: VecDeque<Request>,
    pub(crate) operations: usize,
    pub(crate) command: Option<VolumeCommand>,
    pub(crate) counters: VolumeCounters,
}

impl Volume {
    /// Blocks of the volume; the last one may be partial.
    pub(crate) fn block_count(&self) -> u64 {
        self.size_bytes.div_ceil(BLOCK_BYTES as u64)
    }

    /// Byte range of a run of blocks on the origin, cut at its end.
    pub(crate) fn byte_range(&self, start: u64, block_count: u64) -> (u64, u64) {
        let offset = start * BLOCK_BYTES as u64;
        let length = (block_count * BLOCK_BYTES as u64).min(self.size_bytes - offset);
        (offset, length)
    }

    /// Whether part of the range was written around the log since the origin's last flush, or by a
    /// write that failed.
    pub(crate) fn is_around(&self, start: u64, end: u64) -> bool {
        let mut ranges = self.around.iter().map(|(at, count, _)| (*at, *count));
        let mut unsure = self.unsure.iter().copied();
        let overlaps = |(at, count): (u64, u64)| at < end && start < at + count;
        ranges.any(overlaps) || unsure.any(overlaps)
    }

    /// Writes around the log that have not ended.
    pub(crate) fn around_under_way_count(&self) -> u64 {
        self.around.iter().filter(|(_, _, number)| *number == FlushNumber::MAX).count() as u64
    }

    /// Remembers a range that a failed write left uncertain; of too many, everything is.
    pub(crate) fn note_unsure(&mut self, start: u64, block_count: u64) {
        if self.unsure.len() < AROUND_RANGES_MAX {
            self.unsure.push((start, block_count));
        } else {
            self.unsure = alloc::vec![(0, u64::MAX / 2)];
        }
    }

    /// Whether nothing of the volume is dirty, and its origin owes it nothing.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.dirty_blocks == 0
            && self.locks.is_idle()
            && self.homed.is_empty()
            && self.epoch_flush.is_none()
            && self.around.is_empty()
            && !self.flushes.is_under_way()
            && !self.flushes.is_due()
    }

    /// Whether dirty data goes home by flush epochs.
    pub(crate) fn is_ordered(&self) -> bool {
        self.epochs.order == WritebackOrder::Ordered && self.mode.keeps_dirty()
    }

    /// Whether the volume is on its way out of a mode that keeps dirty data: writes go through.
    pub(crate) fn is_leaving(&self) -> bool {
        self.command.as_ref().is_some_and(VolumeCommand::is_leaving)
    }

    /// Whether the cache device failed and the volume goes on from its origin as soon as the host
    /// state file says so.
    pub(crate) fn waits_for_host(&self) -> bool {
        self.service == Service::Quiesced && self.facts.is_some() && self.is_gated
    }

    /// Whether reads that miss are promoted.
    pub(crate) fn promotes(&self) -> bool {
        // What a failed flush lost may come and go on the origin: nothing is copied from it any
        // more.
        self.service == Service::Cached
            && !self.has_lost_writes
            && matches!(
                self.mode,
                CacheMode::Writeback | CacheMode::Writethrough | CacheMode::Writearound
            )
    }
}
