//! Pinned ranges and shares: administrators who change them, and what must hold of them.
//!
//! The model of a volume is a set of blocks. The volume table must say the same after each start,
//! but for a change that was under way. What reclaim must not drop is not judged by what it meant
//! to keep: the engine counts what it forgot, and of that nothing may be pinned, or belong to a
//! smallest share, unless the run gave it a reason. What is drawn comes from a copy of the run's
//! source of chance, so that a world without pins stays as it is.

use std::collections::BTreeSet;
use std::ops::Range;

use forebay_engine::event::{Command, PinChange};
use forebay_engine::format::superblock::{PINNED_RANGES_MAX, PinnedRanges, Superblock};
use forebay_engine::options::CacheMode;
use forebay_engine::status::VolumeStatus;
use forebay_engine::units::{OriginBlock, OriginExtent};

use crate::administrator::CommandResult;
use crate::behind::Behind;
use crate::client::Owner;
use crate::config::Rot;
use crate::media::BLOCK_SECTORS;
use crate::oracle::{Observed, Run};
use crate::workload::{Operation, OperationKind};
use crate::world::{Halt, TableEntry, World, violation};

/// Longest range that is pinned, in blocks.
const PINNED_BLOCKS_MAX: u64 = 2048;
/// Share of changes that unpin.
const UNPIN_PERCENT: u64 = 35;
/// Share of pinned ranges that are fetched at once.
const FETCH_PERCENT: u64 = 60;
/// Blocks that the index may have beyond a largest share: copies that complete after a write around
/// the log has voided them, and before that is complete.
const VOIDED_BLOCKS_MAX: u64 = 64;
/// Requests of a thousand after which what is kept is looked at.
const CHECKS_PERMILLE: u64 = 50;
/// Share of ranges that do not lie in their volume.
const BEYOND_PERCENT: u64 = 2;

/// What is known of the pins of a volume.
#[derive(Clone, Default)]
pub(crate) struct KnownPins {
    blocks: BTreeSet<u64>,
    /// Changes under way, or of which nobody knows how they ended.
    maybe: Vec<(Range<u64>, PinChange)>,
    /// What else the table may say until recovery has flushed it.
    others: Vec<BTreeSet<u64>>,
    /// Blocks in the cache when nobody but reads could bring more there, since the last command.
    quiet_blocks: Option<u64>,
}

impl KnownPins {
    fn change(&mut self, blocks: &Range<u64>, change: PinChange) {
        self.blocks = changed(&self.blocks, blocks, change);
    }

    /// Nothing is pinned any more, or not yet.
    pub(crate) fn clear(&mut self) {
        *self = KnownPins::default();
    }

    /// Whether the table may say this. What was under way may still be lost with the device's
    /// cache.
    fn accept(&mut self, found: &PinnedRanges) -> bool {
        let blocks = set_of(found);
        let mut possible = vec![self.blocks.clone()];
        possible.append(&mut self.others);
        for state in possible.clone() {
            for (blocks, change) in &self.maybe {
                let state = changed(&state, blocks, *change);
                if !possible.contains(&state) {
                    possible.push(state);
                }
            }
        }
        let is_possible = possible.contains(&blocks);
        *self = KnownPins { blocks, others: possible, ..KnownPins::default() };
        is_possible
    }

    /// The table is durable as it was found.
    pub(crate) fn settle(&mut self) {
        self.others.clear();
    }
}

fn set_of(ranges: &PinnedRanges) -> BTreeSet<u64> {
    ranges.iter().flat_map(|(start, end)| start..end).collect()
}

fn changed(state: &BTreeSet<u64>, blocks: &Range<u64>, change: PinChange) -> BTreeSet<u64> {
    let mut state = state.clone();
    match change {
        PinChange::Pin => state.extend(blocks.clone()),
        PinChange::Unpin => state.retain(|block| !blocks.contains(block)),
    }
    state
}

fn blocks_of(extent: &OriginExtent) -> Range<u64> {
    extent.start.0..extent.start.0.saturating_add(extent.block_count)
}

impl World<'_> {
    /// Now and then somebody pins or unpins a range.
    pub(crate) fn maybe_pin(&mut self) -> Result<(), Halt> {
        if self.is_taken_over() {
            return Ok(());
        }
        let mut beside = self.random.clone().fork();
        if beside.permille(CHECKS_PERMILLE) {
            self.check_kept()?;
        }
        if !beside.permille(self.config.pins_permille) || self.life.is_stopping {
            return Ok(());
        }
        let index = beside.index(self.volumes.len());
        let volume = &self.volumes[index];
        let Some(slot) = volume.slot.filter(|_| volume.is_served()) else {
            return Ok(());
        };
        let total = volume.config.block_count();
        let most = *beside.pick(&[1, 8, 64, 512, PINNED_BLOCKS_MAX]);
        let start = beside.below(total);
        let mut block_count = beside.between(1..=most).min(total - start);
        if beside.percent(BEYOND_PERCENT) {
            block_count = *beside.pick(&[0, total - start + 1, u64::MAX]);
        }
        let extent = OriginExtent { volume: slot, start: OriginBlock(start), block_count };
        let is_unpinned = beside.percent(UNPIN_PERCENT);
        let change = if is_unpinned { PinChange::Unpin } else { PinChange::Pin };
        self.command(Command::Pin { extent, change }, Some(index));
        let is_within = block_count > 0 && block_count <= total - start;
        if change == PinChange::Pin && is_within && beside.percent(FETCH_PERCENT) {
            self.fetch(index, start..start + block_count);
        }
        Ok(())
    }

    /// What a host does next: it asks for the range in pieces.
    fn fetch(&mut self, volume: usize, blocks: Range<u64>) {
        let sectors = self.volumes[volume].config.size_bytes / 512;
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + 256);
            let first = at * u64::from(BLOCK_SECTORS);
            let behind = (end * u64::from(BLOCK_SECTORS)).min(sectors);
            let run = Run { volume, first: first as u32, count: (behind - first) as u32 };
            let operation = Operation::plain(run, OperationKind::Prefetch);
            self.issue(operation, Owner::Checker(Observed::Once));
            at = end;
        }
    }

    /// A command is given.
    pub(crate) fn note_pins_before(&mut self, index: usize, command: &Command) {
        let volume = &mut self.volumes[index];
        let total = volume.config.block_count();
        let pins = &mut volume.pins;
        pins.quiet_blocks = None;
        if let Command::Attach { .. } = command {
            pins.clear();
        }
        if let Command::Pin { extent, change } = command
            && blocks_of(extent).end <= total
        {
            pins.maybe.push((blocks_of(extent), *change));
        }
    }

    /// A command has ended.
    pub(crate) fn note_pins_after(
        &mut self,
        index: usize,
        command: &Command,
        result: CommandResult,
    ) -> Result<(), Halt> {
        let Command::Pin { extent, change } = command else { return Ok(()) };
        let blocks = blocks_of(extent);
        let pins = &mut self.volumes[index].pins;
        let is_it = |other: &(Range<u64>, PinChange)| *other == (blocks.clone(), *change);
        match result {
            // Whether the table has it is known after the next start.
            Err(forebay_engine::event::CommandError::CacheFailed) => return Ok(()),
            Ok(_) => pins.change(&blocks, *change),
            Err(_) => {}
        }
        if let Some(place) = pins.maybe.iter().position(is_it) {
            pins.maybe.remove(place);
        }
        let engine = self.engine.as_ref().expect("the process lives");
        let volume = &self.volumes[index];
        let entry = volume.slot.and_then(|slot| engine.superblock().volume(slot));
        let is_known = volume.pins.maybe.is_empty() && volume.entry == TableEntry::Known;
        let Some(entry) = entry.filter(|_| is_known) else { return Ok(()) };
        if volume.pins.blocks == set_of(&entry.pins) {
            return Ok(());
        }
        let known: Vec<u64> = volume.pins.blocks.iter().copied().collect();
        let text = format!("volume {index} after {command:?}: {:?} for {known:?}", entry.pins);
        violation("a command did not change what is pinned", text)
    }

    /// Whether a change may be refused since too much would be kept, or in too many ranges.
    pub(crate) fn may_be_too_much(&self, command: &Command) -> bool {
        let engine = self.engine.as_ref().expect("the process lives");
        let table = engine.superblock();
        let (blocks, share_percent) = match command {
            Command::Pin { extent, .. } => (extent.block_count, 0),
            Command::SetVolume { settings, .. } => (0, settings.share_min_percent),
            Command::Attach { volume, .. } => (0, volume.settings.share_min_percent),
            _ => return false,
        };
        kept_blocks(table, share_percent).saturating_add(blocks) > table.geometry.kept_blocks_max()
    }

    /// Whether the table of ranges is full.
    pub(crate) fn are_ranges_many(&self) -> bool {
        let engine = self.engine.as_ref().expect("the process lives");
        let ranges: usize = engine.superblock().slots().map(|(_, volume)| volume.pins.len()).sum();
        ranges + 1 >= PINNED_RANGES_MAX
    }

    /// What a start finds in the table.
    pub(crate) fn compare_pins(&mut self, superblock: &Superblock) -> Result<(), Halt> {
        for index in 0..self.volumes.len() {
            let volume = &mut self.volumes[index];
            let found = superblock.slots().find(|(_, entry)| entry.name == volume.name);
            let Some((_, entry)) = found else {
                volume.pins.clear();
                continue;
            };
            if !volume.pins.accept(&entry.pins) {
                let text = format!("volume {index}: {:?}", entry.pins);
                return violation("the volume table lost what is pinned", text);
            }
        }
        // A cache device that comes back finds commands that wait for it.
        for index in 0..self.volumes.len() {
            for (extent, change) in self.pending_pins(index) {
                self.volumes[index].pins.maybe.push((blocks_of(&extent), change));
            }
        }
        Ok(())
    }

    /// What left the cache, and what came there, against what is kept and allowed.
    pub(crate) fn check_kept(&mut self) -> Result<(), Halt> {
        let engine = self.engine.as_ref().expect("the process lives");
        let table = engine.superblock();
        let (kept, most) = (kept_blocks(table, 0), table.geometry.kept_blocks_max());
        if kept > most {
            let text = format!("{kept} of {most} blocks");
            return violation("more is kept than may be", text);
        }
        let has_reason = self.may_drop_kept();
        for index in 0..self.volumes.len() {
            let Some(slot) = self.volumes[index].slot else { continue };
            let engine = self.engine.as_ref().expect("the process lives");
            let Some(status) = engine.volume_status(self.time(), slot) else { continue };
            let counters = &status.counters;
            let dropped = (counters.pinned_dropped_blocks, counters.share_dropped_blocks);
            if dropped != (0, 0) && !has_reason {
                let text = format!("volume {index}: {dropped:?} of pins and shares");
                return violation("what is to be kept was dropped", text);
            }
            self.check_share_max(index, &status)?;
        }
        Ok(())
    }

    /// In a volume that only reads fill, more than its largest share comes from nowhere.
    fn check_share_max(&mut self, index: usize, status: &VolumeStatus) -> Result<(), Halt> {
        let engine = self.engine.as_ref().expect("the process lives");
        let geometry = &engine.superblock().geometry;
        let most = geometry.share_blocks(status.settings.share_max_percent.into());
        let is_bounded = status.settings.share_max_percent < 100
            && status.mode == CacheMode::Writearound
            && status.pinned.is_empty()
            && status.dirty_blocks == 0;
        let cached = status.cached_blocks;
        // While it recovers it has nothing yet, nor has a successor that may be given up.
        let is_empty = !self.life.is_serving || self.is_taken_over();
        let is_changing = self.is_commanded(index) || is_empty;
        let pins = &mut self.volumes[index].pins;
        if !is_bounded || is_changing {
            pins.quiet_blocks = None;
            return Ok(());
        }
        let before = pins.quiet_blocks.replace(cached).unwrap_or(u64::MAX);
        if cached > before.max(most).saturating_add(VOIDED_BLOCKS_MAX) {
            let text = format!("volume {index}: {cached} blocks after {before}, {most} allowed");
            return violation("a volume has more than its largest share", text);
        }
        Ok(())
    }

    /// Whether reclaim may have had no other way than to drop what is to be kept: space that
    /// failures, poison or missing origins hold, a bound on memory, a device that is to be spared.
    fn may_drop_kept(&self) -> bool {
        let engine = self.engine.as_ref().expect("the process lives");
        let status = engine.status(self.time());
        let is_bounded = status.is_none_or(|status| status.settings.memory_max_bytes != u64::MAX);
        is_bounded
            || self.has_failures()
            || self.may_have_poison
            || self.life.was_memory_bounded
            || self.config.rot != Rot::None
            || self.volumes.iter().any(|volume| {
                volume.is_missing || volume.is_given_up || volume.behind == Behind::Conflict
            })
    }
}

/// Blocks of pinned ranges and of smallest shares, with one more share: they are rounded together.
fn kept_blocks(table: &Superblock, more_percent: u8) -> u64 {
    let shares = table.slots().map(|(_, volume)| u64::from(volume.settings.share_min_percent));
    let pinned: u64 = table.slots().map(|(_, volume)| volume.pins.block_count()).sum();
    pinned + table.geometry.share_blocks(shares.sum::<u64>() + u64::from(more_percent))
}
