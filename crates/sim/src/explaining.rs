//! Somebody asks why a block is cached or not, at any moment.
//!
//! The engine only looks, so a run is the same with and without these questions. What they draw
//! comes from a copy of the run's source of chance, for the same reason.

use forebay_engine::Engine;
use forebay_engine::explain::CopyKind;
use forebay_engine::status::BlockState;
use forebay_engine::units::{BLOCK_BYTES, OriginBlock, OriginExtent, Time, VolumeSlot};

use crate::world::{Halt, World, violation};

/// Questions for a thousand requests.
const QUESTIONS_PERMILLE: u64 = 100;

impl World<'_> {
    /// Asks about a block of some volume.
    pub(crate) fn maybe_explain(&mut self) -> Result<(), Halt> {
        let mut beside = self.random.clone().fork();
        if !beside.permille(QUESTIONS_PERMILLE) {
            return Ok(());
        }
        let volume = &self.volumes[beside.index(self.volumes.len())];
        let Some(slot) = volume.slot else { return Ok(()) };
        let blocks = volume.config.size_bytes.div_ceil(BLOCK_BYTES as u64);
        let block = OriginBlock(beside.below(blocks));
        let now = self.time();
        let Some(engine) = &self.engine else { return Ok(()) };
        match engine.check_explanation(now, slot, block) {
            Ok(()) => Ok(()),
            Err(text) => violation("a block is explained otherwise than shown", text),
        }
    }
}

/// Whether what the engine says of a block is what its map of blocks shows.
pub(crate) fn check_explanation(
    engine: &Engine,
    now: Time,
    slot: VolumeSlot,
    block: OriginBlock,
) -> Result<(), String> {
    let Some(found) = engine.explain(now, slot, block) else {
        return match engine.volume_status(now, slot) {
            None => Ok(()),
            Some(_) => Err(format!("{slot:?} {block:?} is not known")),
        };
    };
    let runs = engine.map(OriginExtent { volume: slot, start: block, block_count: 1 });
    let state = match (found.kind, found.is_dirty) {
        (CopyKind::Absent, _) => BlockState::NotCached,
        (_, true) => BlockState::Dirty,
        (_, false) => BlockState::Clean,
    };
    let is_copy = found.kind != CopyKind::Absent;
    let is_as_shown = runs[..] == [(block, 1, state)]
        && found.place.is_some() == is_copy
        && found.version.is_some() == is_copy;
    if is_as_shown { Ok(()) } else { Err(format!("{found:?}, {runs:?}")) }
}
