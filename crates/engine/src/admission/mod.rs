//! Admission: what goes to the cache though it need not.
//!
//! Promotions, and in writethrough the writes of blocks that are not cached, take from a budget of
//! the set. While it has tokens everything is admitted; else only what was missed before. A volume
//! may ask for more misses than that, or for no promotion at all. A request of which at least half
//! of the missing blocks were missed before counts as known, so that large ones are not cut into
//! crumbs.
//!
//! Pinned blocks are admitted whatever these settings say, and beyond the volume's `share_max`.
//!
//! What became of each block is counted by reason, and the last decisions are remembered by region.
//!
//! What this deliberately does not do: decide about dirty data of writeback, which has no other
//! place than the log; or whether a copy is right, which are rules 4 and 9.

use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::index::{Piece, Place};
use crate::options::{CacheMode, SequentialPolicy};
use crate::path::write::UnitKind;
use crate::policy::BlockKey;
use crate::request::RequestKind;
use crate::slab::Key;
use crate::status::{AdmitReason, BypassReason};
use crate::units::{BLOCK_BYTES, Time, VolumeSlot};

mod budget;
mod decisions;
mod misses;

use budget::WriteBudget;
pub use decisions::{Access, Decision, Outcome};
use decisions::{DecisionTable, REGION_BLOCKS, REGIONS_OF_REQUEST_MAX};
use misses::MissMemory;

/// Why blocks go to the cache, or do not.
pub(crate) type Verdict = Result<AdmitReason, BypassReason>;

/// What admission knows of the set.
#[derive(Default)]
pub(crate) struct Admission {
    budget: WriteBudget,
    /// From the first time that a setting asks for it.
    misses: Option<MissMemory>,
    decisions: DecisionTable,
    /// The cache was full when it was last asked.
    was_full: bool,
}

impl Admission {
    pub(crate) fn memory_bytes(&self) -> usize {
        let misses = self.misses.as_ref().map_or(0, MissMemory::memory_bytes);
        misses + self.decisions.memory_bytes()
    }

    /// What it takes once a setting has asked for everything, for a cache of so many blocks.
    pub(crate) fn memory_bytes_max(&self, cache_blocks: u64) -> usize {
        MissMemory::bytes_for(cache_blocks) + self.decisions.memory_bytes()
    }

    /// The last decision about the region of a block and when it was taken, if it is known.
    pub(crate) fn decision(
        &self,
        volume: crate::units::VolumeId,
        block: u64,
    ) -> Option<(Decision, Time)> {
        self.decisions.find(volume, block)
    }
}

/// Missing blocks of a request.
#[derive(Default)]
struct Missing {
    blocks: u64,
    /// Missed before.
    seen: u64,
    /// Missed as often as the volume asks for, this time included.
    ripe: u64,
}

impl Missing {
    /// Whether that is at least half of them.
    fn is_most(&self, blocks: u64) -> bool {
        2 * blocks >= self.blocks
    }
}

impl Engine {
    /// Decides about what a read misses; `stream_bytes` is how long its stream is.
    pub(crate) fn admit_read(
        &mut self,
        slot: VolumeSlot,
        (start, block_count): (u64, u64),
        stream_bytes: u64,
    ) -> Verdict {
        let volume = self.volume(slot);
        let settings = volume.settings;
        let cutoff = settings.sequential_cutoff_bytes;
        if !volume.promotes() {
            Err(BypassReason::Mode)
        } else if self.is_degraded() {
            Err(BypassReason::CacheDegraded)
        } else if !settings.promote_on_read {
            Err(BypassReason::PromoteOnRead)
        } else if self.is_at_share_max(slot) {
            Err(BypassReason::ShareMax)
        } else if cutoff > 0 && stream_bytes > cutoff && self.cuts_streams(slot) {
            Err(BypassReason::Sequential)
        } else {
            self.admit(slot, (start, start + block_count), settings.promotion_nhit)
        }
    }

    /// Whether long streams are left out now.
    fn cuts_streams(&mut self, slot: VolumeSlot) -> bool {
        // A full cache stays full while segments are freed only to be filled again.
        let (free, target) = (self.log.segments.free_count(), self.reclaim_target());
        let margin = if self.admission.was_full { self.log.segments.len() / 4 } else { 0 };
        self.admission.was_full = free <= target + margin || self.is_memory_nearly_full();
        match self.volume(slot).settings.sequential_policy {
            SequentialPolicy::Full => self.admission.was_full,
            SequentialPolicy::Always => true,
            SequentialPolicy::Never => false,
        }
    }

    /// Decides by budget and number of misses about the blocks of a range that are not cached.
    fn admit(&mut self, slot: VolumeSlot, range: (u64, u64), nhit: u8) -> Verdict {
        let budget = self.settings.cache_write_budget_bytes_per_day;
        if budget == 0 && nhit == 1 {
            return Ok(AdmitReason::NoLimit);
        }
        let missing = self.note_misses(slot, range, nhit);
        if !missing.is_most(missing.ripe) {
            Err(BypassReason::PromotionNhit)
        } else if budget == 0 {
            Ok(AdmitReason::SeenBefore)
        } else if self.admission.budget.has_tokens(self.now, budget) {
            Ok(AdmitReason::WithinBudget)
        } else if missing.is_most(missing.seen) {
            Ok(AdmitReason::SeenBefore)
        } else {
            Err(BypassReason::CacheWriteBudget)
        }
    }

    fn note_misses(&mut self, slot: VolumeSlot, (start, end): (u64, u64), nhit: u8) -> Missing {
        let mut pieces = core::mem::take(&mut self.scratch.lookup);
        pieces.clear();
        self.volume(slot).index.complete.pieces(start, end, &mut pieces);
        let mut missing = Missing::default();
        let copies = pieces.iter().filter(|piece| piece.place != Place::Absent);
        let mut at = start;
        for (from, to) in copies.map(|piece| (piece.start, piece.end())).chain([(end, end)]) {
            for block in at..from {
                let before = self.note_miss(slot, block);
                missing.blocks += 1;
                missing.seen += u64::from(before > 0);
                missing.ripe += u64::from(before + 1 >= nhit);
            }
            at = to;
        }
        self.scratch.lookup = pieces;
        missing
    }

    /// Notes a miss; tells how many of the block are remembered.
    fn note_miss(&mut self, slot: VolumeSlot, block: u64) -> u8 {
        #[expect(clippy::cast_possible_truncation, reason = "goes into a hash")]
        let volume = self.volume(slot).id.0 as u32;
        let cache_blocks = self.log.segments.block_count();
        let misses = self.admission.misses.get_or_insert_with(|| MissMemory::new(cache_blocks));
        misses.note(BlockKey { volume, block })
    }

    /// Whether a miss may fetch blocks that nobody asked for: they were not missed.
    pub(crate) fn admits_read_ahead(&mut self, slot: VolumeSlot) -> bool {
        let budget = self.settings.cache_write_budget_bytes_per_day;
        self.volume(slot).settings.promotion_nhit == 1
            && !self.is_at_share_max(slot)
            && self.admission.budget.has_tokens(self.now, budget)
    }

    /// Decides whether a write that goes to the origin in any case goes to the log as well. Under
    /// its lock; where a copy exists, as `pieces` of its blocks tell, it does, so that the copy
    /// stays and has the new content.
    pub(crate) fn admit_through(&mut self, key: Key, pieces: &[Piece]) -> Verdict {
        let unit = self.units[key];
        let (slot, start, end) = (unit.slot, unit.start, unit.start + unit.block_count);
        if self.effective_mode(slot) != CacheMode::Writethrough {
            // On its way out of writeback.
            return Ok(AdmitReason::Dirty);
        }
        let has_copies = if has_defect(Defect::UnpromotedLeavesCopy) {
            self.has_dirty_copy(slot, start, end)
        } else {
            pieces.iter().any(|piece| piece.place != Place::Absent)
        };
        if has_copies {
            return Ok(AdmitReason::Cached);
        }
        // Once: a write that waited for room has not missed again.
        let verdict = if let Some(verdict) = unit.admission {
            verdict
        } else if !self.volume(slot).settings.promote_on_write {
            Err(BypassReason::PromoteOnWrite)
        } else if !matches!(unit.kind, UnitKind::Data { .. }) {
            Ok(AdmitReason::NoLimit)
        } else if self.is_at_share_max(slot) {
            Err(BypassReason::ShareMax)
        } else {
            self.admit(slot, (start, end), 1)
        };
        let is_pinned = self.superblock.pins(slot).overlaps(start, end);
        let verdict = match verdict {
            Err(reason) if is_pinned && reason.yields_to_pins() => Ok(AdmitReason::Pinned),
            verdict => verdict,
        };
        self.units[key].admission = Some(verdict);
        verdict
    }

    /// Blocks are appended that need not be, in one entry. The header of their record is theirs
    /// alone at worst.
    pub(crate) fn take_from_budget(&mut self, blocks: u64) {
        let budget = self.settings.cache_write_budget_bytes_per_day;
        if budget > 0 {
            self.admission.budget.take(self.now, budget, (blocks + 1) * BLOCK_BYTES as u64);
        }
    }

    /// Counts what became of blocks of a request, and remembers it.
    pub(crate) fn note_outcome(
        &mut self,
        operation: Key,
        (start, block_count): (u64, u64),
        outcome: Outcome,
    ) {
        let request = self.operations[operation].request;
        let counters = &mut self.volume_mut(request.volume).counters;
        match outcome {
            Outcome::Admitted(reason) => counters.admissions[reason.index()] += block_count,
            Outcome::Bypassed(reason) => counters.bypasses[reason.index()] += block_count,
        }
        let access = match request.kind {
            RequestKind::Read { .. } | RequestKind::Prefetch => Access::Read,
            _ => Access::Write,
        };
        let volume = self.volume(request.volume).id;
        let regions = start / REGION_BLOCKS..(start + block_count).div_ceil(REGION_BLOCKS);
        for region in regions {
            let noted = &mut self.operations[operation].regions_noted;
            if *noted == REGIONS_OF_REQUEST_MAX {
                return;
            }
            *noted += 1;
            let decision = Decision { access, outcome };
            self.admission.decisions.note(self.now, volume, region, decision);
        }
    }
}
