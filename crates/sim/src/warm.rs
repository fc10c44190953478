//! A process that dies loses nothing that was cached: what was read once need not be read again.
//!
//! Only after the end of a process that had no trouble with its devices: what a device loses with
//! its power, or cannot read, need not be there, and neither need what reclaim or a write was at
//! work on, or what was cached of a volume that was made void. Reads of the next life would come
//! out right all the same, so nobody else notices.

use std::collections::BTreeSet;

use forebay_engine::options::HostMark;
use forebay_engine::status::BlockState;
use forebay_engine::units::{Generation, OriginBlock, OriginExtent, VolumeSlot};

use crate::behind::Behind;
use crate::comeback::Comeback;
use crate::config::Rot;
use crate::under_test::UnderTest;
use crate::world::{Halt, SimVolume, TableEntry, World, violation};

/// What the cache had of a volume when the process ended.
pub(crate) struct Warm {
    index: usize,
    slot: VolumeSlot,
    generation: Generation,
    cached: BTreeSet<u64>,
}

impl World<'_> {
    /// The process ends now, and devices keep what they have.
    pub(crate) fn note_warm(&mut self) {
        if !self.life.is_serving || self.may_lose_copies() {
            return;
        }
        let Some(engine) = self.engine.as_deref() else { return };
        for (index, volume) in self.volumes.iter().enumerate() {
            let Some(slot) = volume.slot.filter(|_| volume.is_served()) else { continue };
            let Some(entry) = engine.superblock().volume(slot) else { continue };
            let is_known = volume.entry == TableEntry::Known && volume.mark == HostMark::None;
            if is_known && volume.behind == Behind::Untouched {
                let mut cached = cached(engine, volume, slot);
                cached.retain(|block| !engine.is_changing(slot, OriginBlock(*block)));
                self.warm.push(Warm { index, slot, generation: entry.generation, cached });
            }
        }
    }

    /// The next process serves.
    pub(crate) fn check_warm(&mut self) -> Result<(), Halt> {
        let warm = std::mem::take(&mut self.warm);
        if self.may_lose_copies() {
            return Ok(());
        }
        let engine = self.engine.as_deref().expect("it serves");
        // Recovery brings home what is dirty without its mode, and may need room for that.
        let status = engine.status(self.time());
        if status.is_none_or(|status| status.counters.dropped_blocks > 0) {
            return Ok(());
        }
        for Warm { index, slot, generation, cached: before } in warm {
            let volume = &self.volumes[index];
            let found = engine.superblock().volume(slot).map(|entry| entry.generation);
            let is_same = volume.slot == Some(slot) && found == Some(generation);
            if !is_same || !volume.is_served() || volume.behind != Behind::Untouched {
                continue;
            }
            self.stats.warm_blocks += before.len() as u64;
            let now = cached(engine, volume, slot);
            if let Some(block) = before.difference(&now).next() {
                let text = format!("block {block} of volume {index}");
                return violation("what was cached is not after the end of a process", text);
            }
        }
        Ok(())
    }

    /// Whether devices had trouble in this life, or nobody can say what they hold.
    fn may_lose_copies(&self) -> bool {
        self.has_failures()
            || self.is_taken_over()
            || self.life.is_cache_failed
            || self.life.was_memory_bounded
            || !matches!(self.life.comeback, Comeback::None)
            || self.config.rot != Rot::None
            || self.config.silent.is_some()
    }
}

fn cached(engine: &dyn UnderTest, volume: &SimVolume, slot: VolumeSlot) -> BTreeSet<u64> {
    let block_count = volume.config.block_count();
    let extent = OriginExtent { volume: slot, start: OriginBlock(0), block_count };
    let is_cached = |run: &(OriginBlock, u64, BlockState)| run.2 != BlockState::NotCached;
    let runs = engine.map(extent).into_iter().filter(is_cached);
    runs.flat_map(|(start, count, _)| start.0..start.0 + count).collect()
}
