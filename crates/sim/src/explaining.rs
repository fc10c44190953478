//! Somebody asks why a block is cached or not, at any moment.
//!
//! What they draw comes from a copy of the run's source of chance, so that a run is the same with
//! and without the questions that the engine answers from memory. Some are commands, for which it
//! reads a header from the cache device.

use forebay_engine::Engine;
use forebay_engine::event::{Command, CommandId};
use forebay_engine::explain::{CopyKind, Explanation};
use forebay_engine::status::BlockState;
use forebay_engine::units::{OriginBlock, OriginExtent, Time, VolumeSlot};

use crate::world::{Halt, World, violation};

/// Questions for a thousand requests.
const QUESTIONS_PERMILLE: u64 = 100;
/// Questions of a hundred that are commands.
const COMMANDS_PERCENT: u64 = 5;

impl World<'_> {
    /// Asks about a block of some volume.
    pub(crate) fn maybe_explain(&mut self) -> Result<(), Halt> {
        let mut beside = self.random.clone().fork();
        if !beside.permille(QUESTIONS_PERMILLE) || self.is_taken_over() {
            return Ok(());
        }
        let volume = &self.volumes[beside.index(self.volumes.len())];
        let Some(slot) = volume.slot else { return Ok(()) };
        let blocks = volume.config.block_count();
        let block = OriginBlock(beside.below(blocks));
        let now = self.time();
        let Some(engine) = &self.engine else { return Ok(()) };
        if let Err(text) = engine.check_explanation(now, slot, block) {
            return violation("a block is explained otherwise than shown", text);
        }
        if beside.percent(COMMANDS_PERCENT) {
            self.command(Command::Explain { volume: slot, block }, None);
        }
        Ok(())
    }

    /// A record that is named must be one that can hold the copy. None may be named: its header was
    /// not read, or the copy was moved meanwhile.
    pub(crate) fn on_explained(
        &mut self,
        command: CommandId,
        explanation: &Explanation,
    ) -> Result<(), Halt> {
        let Some(place) = explanation.place else { return Ok(()) };
        let is_possible = match place.record {
            Some(record) => record.sequence <= place.sequence_max && record.block <= place.block,
            None => true,
        };
        if is_possible {
            return Ok(());
        }
        violation("a copy is said to be in another record", format!("{command:?} {explanation:?}"))
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
