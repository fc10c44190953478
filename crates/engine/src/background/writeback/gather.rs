//! Dense regions go home whole.
//!
//! Where many dirty blocks lie within 1 MiB of an origin, two long transfers take less time than
//! many short ones: the region is read and written back with the dirty blocks in it. Where all that
//! lies between them is cached and clean, it need not even be read from the origin. What is written
//! between dirty blocks is what the origin holds already, and nobody else writes there meanwhile,
//! since the run holds the range lock (rule 9) over all of it. So whatever becomes of the write,
//! also in a power cut, no block in a gap has another content afterwards than before.
//!
//! A region whose write failed may have a bad block between its dirty ones, so for some windows the
//! runs of its volume are not gathered.

use alloc::vec::Vec;

use super::cost::Transfers;
use super::runs::{Gaps, Run};
use crate::engine::Engine;
use crate::index::{Piece, Place};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS_MAX, VolumeSlot};

/// Blocks of a region; regions lie at multiples of it.
const REGION_BLOCKS: u64 = EXTENT_BLOCKS_MAX as u64;

impl Engine {
    /// Where a run may be part of a region: not if it reaches beyond, has no data, or the origin
    /// did not take it.
    fn region_of(&self, run: &Run) -> Option<(VolumeSlot, u64)> {
        let region = run.start() / REGION_BLOCKS;
        let is_within = run.has_data() && (run.end() - 1) / REGION_BLOCKS == region;
        let is_bad = self.volume(run.slot).bad_extents.contains(run.start());
        (is_within && !is_bad).then_some((run.slot, region))
    }

    /// Takes the next run from the queue, which is in the order of origins: all runs of a region
    /// as one where that pays. Decided only now, since what the writes before it cost decides.
    pub(super) fn next_run(&mut self) -> Option<Run> {
        let first = self.writeback.queue.pop_front()?;
        let region = self.region_of(&first);
        if region.is_none() || region == self.writeback.plain_region {
            return Some(first);
        }
        let queue = &self.writeback.queue;
        // Those that come last, since the origin refused them, are in no order.
        let mut end = first.end();
        let is_next = |run: &&Run| {
            let is_next = self.region_of(run) == region && run.start() >= end;
            end = run.end();
            is_next
        };
        let others = queue.iter().take_while(is_next).count();
        let mut runs = alloc::vec![first];
        runs.extend(self.writeback.queue.drain(..others));
        match self.choose_gaps(&runs) {
            Gaps::Left => {
                self.writeback.plain_region = region;
                for run in runs.drain(1..).rev() {
                    self.writeback.queue.push_front(run);
                }
                runs.pop()
            }
            gaps => Some(self.gathered(runs, gaps)),
        }
    }

    fn gathered(&self, runs: Vec<Run>, gaps: Gaps) -> Run {
        let slot = runs[0].slot;
        let (start, end) = (runs[0].start(), runs[runs.len() - 1].end());
        let (start, end) = match gaps {
            Gaps::FromOrigin => self.widen_to_stripes(slot, start, end),
            Gaps::FromCache | Gaps::Left => (start, end),
        };
        let pieces = runs.into_iter().flat_map(|run| run.pieces).collect();
        Run::gathered(slot, pieces, (start, end), gaps)
    }

    fn choose_gaps(&mut self, runs: &[Run]) -> Gaps {
        let [first, .., last] = runs else { return Gaps::Left };
        let (slot, start, end) = (first.slot, first.start(), last.end());
        if self.writeback.plain.contains_key(&slot) {
            return Gaps::Left;
        }
        let dirty = runs.iter().map(|run| run.end() - run.start()).sum();
        let many = Transfers { count: runs.len() as u64, blocks: dirty };
        let span = end - start;
        let way_ns = self.least_way_ns(slot);
        let cost = &mut self.volume_mut(slot).origin_cost;
        if cost.pays(Transfers { count: 1, blocks: span }, many, span, way_ns)
            && self.is_clean_between(slot, runs)
        {
            return Gaps::FromCache;
        }
        let (from, to) = self.widen_to_stripes(slot, start, end);
        let whole = Transfers::read_and_written(to - from);
        let cost = &mut self.volume_mut(slot).origin_cost;
        if cost.pays(whole, many, span, way_ns) { Gaps::FromOrigin } else { Gaps::Left }
    }

    /// Whether all that lies between the runs is cached and clean.
    fn is_clean_between(&self, slot: VolumeSlot, runs: &[Run]) -> bool {
        let mut pairs = runs.windows(2);
        pairs.all(|pair| self.clean_copies(slot, pair[0].end(), pair[1].start()).is_some())
    }

    /// The copies of `start..end`, if all of it is cached and clean.
    pub(super) fn clean_copies(
        &self,
        slot: VolumeSlot,
        start: u64,
        end: u64,
    ) -> Option<Vec<Piece>> {
        let mut copies = Vec::new();
        if start == end {
            return Some(copies);
        }
        self.volume(slot).index.complete.pieces(start, end, &mut copies);
        let is_clean = |piece: &Piece| {
            let has_data = matches!(piece.place, Place::Data(_));
            has_data && piece.positions().all(|at| self.log.segments.is_clean(at))
        };
        let covered: u64 = copies.iter().map(|piece| piece.block_count).sum();
        (covered == end - start && copies.iter().all(is_clean)).then_some(copies)
    }

    /// A device that states an optimal size is a RAID in most cases, and has to read what is left
    /// out of a stripe.
    fn widen_to_stripes(&self, slot: VolumeSlot, start: u64, end: u64) -> (u64, u64) {
        let volume = self.volume(slot);
        let bytes = volume.facts.map_or(0, |facts| facts.optimal_io_bytes) as usize;
        let stripe = (bytes / BLOCK_BYTES) as u64;
        if stripe == 0
            || !bytes.is_multiple_of(BLOCK_BYTES)
            || !REGION_BLOCKS.is_multiple_of(stripe)
        {
            return (start, end);
        }
        let size_blocks = volume.size_bytes.div_ceil(BLOCK_BYTES as u64);
        (start / stripe * stripe, (end.div_ceil(stripe) * stripe).min(size_blocks))
    }
}
