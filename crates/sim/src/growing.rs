//! Origins that are longer than their volumes, and volumes that grow up to them.
//!
//! Such an origin has its full length from the beginning, and stamps behind the end of its volume
//! as it has them before: to the engine that is an origin that was made longer at some moment. What
//! is judged: the size in the table is the one of the last growth that was answered or, while one
//! is under way, that one; a shorter size and one of no whole sectors are refused and change
//! nothing; no operation of the engine lies behind the end; and clients use what they were told of
//! at once, so that the oracle sees what the engine makes of the old end.

use forebay_engine::event::{Command, CommandError};
use forebay_engine::format::superblock::Superblock;
use forebay_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::administrator::CommandResult;
use crate::config::VolumeConfig;
use crate::random::Random;
use crate::world::{Halt, TableEntry, World, violation};

/// Of the numbers that are drawn for growth, so that they are none of those that other wishes draw.
const GROWTH: u64 = 0x6772_6F77;
/// Volumes with a longer origin, where there are any.
const LONGER_PERCENT: u64 = 70;
/// Most blocks that such an origin has more.
const LONGER_BLOCKS_MAX: u64 = 1024;
/// New sizes of whole blocks.
const WHOLE_PERCENT: u64 = 60;
/// Wishes for a size that is none: shorter, the same, or in the middle of a sector.
const BAD_SIZE_PERCENT: u64 = 20;

/// What the table may say of the size of a volume, beside what is known.
#[derive(Clone, Default)]
pub(crate) struct Growth {
    /// Of commands that are under way, or of which nobody knows how they ended.
    maybe: Vec<u64>,
    /// What else the table may say until recovery has flushed it.
    others: Vec<u64>,
}

impl Growth {
    /// The largest end that the engine may have come to, of a volume of a known size.
    pub(crate) fn end_max(&self, size_bytes: u64) -> u64 {
        self.maybe.iter().chain(&self.others).copied().fold(size_bytes, u64::max)
    }

    /// Whether the engine may take this for the end.
    pub(crate) fn is_end(&self, size_bytes: u64, end: u64) -> bool {
        end == size_bytes || self.maybe.contains(&end) || self.others.contains(&end)
    }

    /// The volume is gone, or another one comes.
    pub(crate) fn clear(&mut self) {
        *self = Growth::default();
    }

    /// The table is durable as it was found.
    pub(crate) fn settle(&mut self) {
        self.others.clear();
    }
}

/// Makes origins longer than their volumes.
pub(crate) fn lengthen(volumes: &mut [VolumeConfig], random: &mut Random) {
    for volume in volumes {
        if random.percent(LONGER_PERCENT) {
            let blocks = random.between(1..=LONGER_BLOCKS_MAX);
            let old_blocks = volume.block_count();
            volume.origin.size_bytes = (old_blocks + blocks) * BLOCK_BYTES as u64;
        }
    }
}

impl World<'_> {
    /// Sectors of a volume, as clients know it.
    pub(crate) fn sectors(&self, index: usize) -> u32 {
        (self.volumes[index].config.size_bytes / SECTOR_BYTES as u64) as u32
    }

    /// Now and then somebody grows a volume.
    pub(crate) fn maybe_grow(&mut self) {
        let mut beside = Random::new(self.random.clone().bits() ^ GROWTH);
        let is_busy = self.life.is_stopping || self.is_taken_over();
        if !beside.permille(self.config.growth_permille) || is_busy {
            return;
        }
        let index = beside.index(self.volumes.len());
        let volume = &self.volumes[index];
        let Some(slot) = volume.slot.filter(|_| volume.is_served()) else { return };
        let (old, most) = (volume.config.size_bytes, volume.config.origin.size_bytes);
        let sector = SECTOR_BYTES as u64;
        let is_whole = volume.config.logical_block_bytes > SECTOR_BYTES as u32;
        let is_whole = beside.percent(WHOLE_PERCENT) || is_whole;
        let unit = if is_whole { BLOCK_BYTES as u64 } else { sector };
        let mut size_bytes = most;
        if most > old && beside.percent(75) {
            let (first, last) = (old / unit + 1, most / unit);
            // Several times in a run: mostly by a little.
            let last = if beside.percent(60) { last.min(first + 16) } else { last };
            size_bytes = beside.between(first..=last.max(first)) * unit;
        }
        if size_bytes > most || beside.percent(BAD_SIZE_PERCENT) {
            size_bytes = *beside.pick(&[0, old - sector, old, old + 1, old + sector + 1]);
        }
        self.command(Command::Grow { volume: slot, size_bytes }, Some(index));
    }

    /// A command is given.
    pub(crate) fn note_growth_before(&mut self, index: usize, command: &Command) {
        let volume = &mut self.volumes[index];
        match command {
            Command::Attach { .. } => volume.growth.clear(),
            Command::Grow { size_bytes, .. }
                if is_growth(*size_bytes, volume.config.size_bytes) =>
            {
                volume.growth.maybe.push(*size_bytes);
            }
            _ => {}
        }
    }

    /// A command has ended.
    pub(crate) fn note_growth_after(
        &mut self,
        index: usize,
        command: &Command,
        result: CommandResult,
    ) -> Result<(), Halt> {
        let Command::Grow { size_bytes, .. } = *command else { return Ok(()) };
        let volume = &mut self.volumes[index];
        let old_bytes = volume.config.size_bytes;
        match result {
            // Whether the table has it is known after the next start.
            Err(CommandError::CacheFailed) => return Ok(()),
            Ok(_) if size_bytes < old_bytes => {
                return violation("a volume was made smaller", format!("{index}: {command:?}"));
            }
            Ok(_) => volume.config.size_bytes = size_bytes,
            Err(_) => {}
        }
        if let Some(place) = volume.growth.maybe.iter().position(|size| *size == size_bytes) {
            volume.growth.maybe.remove(place);
        }
        let is_known = volume.growth.maybe.is_empty() && volume.entry == TableEntry::Known;
        let (slot, known) = (volume.slot.filter(|_| is_known), volume.config.size_bytes);
        self.stats.grown += u64::from(known > old_bytes);
        let sectors = self.sectors(index);
        self.clients.resize(index, sectors);
        let engine = self.engine.as_ref().expect("the process lives");
        let entry = slot.and_then(|slot| engine.superblock().volume(slot));
        match entry {
            Some(entry) if entry.size_bytes != known => violation(
                "a command did not leave the size that it told of",
                format!("volume {index} after {command:?}: {} for {known}", entry.size_bytes),
            ),
            _ => Ok(()),
        }
    }

    /// Whether the size that a command asks for is none.
    pub(crate) fn is_bad_size(&self, index: Option<usize>, command: &Command) -> bool {
        let (Command::Grow { size_bytes, .. }, Some(_)) = (command, index) else { return false };
        !size_bytes.is_multiple_of(SECTOR_BYTES as u64)
    }

    /// Whether a command asks for less than its volume has, or may have.
    pub(crate) fn would_shrink(&self, index: Option<usize>, command: &Command) -> bool {
        let (Command::Grow { size_bytes, .. }, Some(index)) = (command, index) else {
            return false;
        };
        let volume = &self.volumes[index];
        *size_bytes < volume.growth.end_max(volume.config.size_bytes)
    }

    /// What a start finds in the table.
    pub(crate) fn compare_sizes(&mut self, superblock: &Superblock) -> Result<(), Halt> {
        for index in 0..self.volumes.len() {
            let pending = self.pending_growth(index);
            let volume = &mut self.volumes[index];
            let found = superblock.slots().find(|(_, entry)| entry.name == volume.name);
            let Some((_, entry)) = found else {
                volume.growth.clear();
                continue;
            };
            let known = volume.config.size_bytes;
            if !volume.growth.is_end(known, entry.size_bytes) {
                let text = format!("volume {index}: {known} bytes became {}", entry.size_bytes);
                return violation("the volume table lost a size", text);
            }
            let growth = &mut volume.growth;
            growth.others.append(&mut growth.maybe);
            growth.others.push(known);
            // A cache device that comes back finds commands that wait for it.
            growth.maybe = pending;
            volume.config.size_bytes = entry.size_bytes;
        }
        Ok(())
    }

    /// The engine goes on that was there before a start which found a table and came to nothing:
    /// the sizes in force are those of that engine again, and the table may have what was found.
    pub(crate) fn take_sizes_back(&mut self, sizes_bytes: &[u64]) {
        for (volume, &size_bytes) in self.volumes.iter_mut().zip(sizes_bytes) {
            let found = std::mem::replace(&mut volume.config.size_bytes, size_bytes);
            if found != size_bytes {
                volume.growth.maybe.push(found);
            }
        }
    }

    fn pending_growth(&self, index: usize) -> Vec<u64> {
        let old_bytes = self.volumes[index].config.size_bytes;
        let sizes = self.pending_commands(index).filter_map(|command| match command {
            Command::Grow { size_bytes, .. } => Some(*size_bytes),
            _ => None,
        });
        sizes.filter(|size| is_growth(*size, old_bytes)).collect()
    }
}

fn is_growth(size_bytes: u64, old_bytes: u64) -> bool {
    size_bytes > old_bytes && size_bytes.is_multiple_of(SECTOR_BYTES as u64)
}
