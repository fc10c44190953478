//! What is on a simulated device: for each block what is durable, and what was written since.
//!
//! Writes are never merged before a flush: each block keeps the list of its unflushed writes, and a
//! power cut chooses among them. Content is shared and immutable, so that landing, flushing and
//! losing a write move a pointer. See `device.rs` for the fault model that this serves.

use std::rc::Rc;

use forebay_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::random::Random;
use crate::stamp::Stamp;

/// Sectors of a block.
pub const BLOCK_SECTORS: u32 = (BLOCK_BYTES / SECTOR_BYTES) as u32;
/// A moment that never comes; moments are counted by the world.
pub const NEVER: u64 = u64::MAX;
/// Unflushed writes that a block remembers. Older ones become durable on their own, as in a device
/// that empties its cache when it likes.
const UNFLUSHED_MAX: usize = 8;

/// Content of a block, or of the sectors of one that a write covers.
#[derive(Clone, Debug)]
pub enum Content {
    /// As the device came.
    Fresh,
    /// Zeroes.
    Zero,
    /// These bytes: a whole block long.
    Bytes(Rc<[u8]>),
}

/// What was durable at some moment, block by block.
pub type Contents = Vec<Option<Rc<[u8]>>>;

/// What a device holds before anything is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fresh {
    /// Zeroes.
    Zeroes,
    /// Rubbish made of a seed.
    Noise(u64),
    /// Data of a volume that existed before the cache did.
    Stamps {
        /// Index of the volume.
        volume: u8,
        /// Number of the write.
        write: u32,
    },
}

/// What is written whole or not at all when the power goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicUnit {
    /// 512 bytes.
    Sector,
    /// 4096 bytes.
    Block,
}

/// Whether completed writes can be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteCache {
    /// Yes, until a flush.
    Volatile,
    /// No.
    Durable,
}

/// What a power cut leaves of unflushed writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PowerStyle {
    /// Nothing.
    NoneSurvive,
    /// Everything.
    AllSurvive,
    /// Of each atomic unit any one of its writes, or none.
    Random,
    /// The same, but some units hold rubbish.
    RandomWithRubbish,
}

/// A run of sectors within one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The block.
    pub block: u32,
    /// One bit for each of its sectors.
    pub sectors: u8,
}

struct Unflushed {
    content: Content,
    sectors: u8,
    /// When the engine learned that the write is complete; [`NEVER`] before and for failed ones.
    completed: u64,
    writer: u64,
    /// A flush failed over it: no later one of this life makes it durable.
    is_lost: bool,
}

#[derive(Default)]
struct Cell {
    durable: Option<Content>,
    is_unreadable: bool,
    unflushed: Vec<Unflushed>,
}

/// The blocks of a device.
pub struct Media {
    cells: Vec<Cell>,
    /// Blocks that have unflushed writes.
    touched: Vec<u32>,
    fresh: Fresh,
    atomic: AtomicUnit,
    is_volatile: bool,
}

impl Media {
    /// A device of `block_count` blocks; one that is not volatile makes completed writes durable at
    /// once.
    #[must_use]
    pub fn new(block_count: u32, fresh: Fresh, atomic: AtomicUnit, cache: WriteCache) -> Media {
        let is_volatile = cache == WriteCache::Volatile;
        let cells = (0..block_count).map(|_| Cell::default()).collect();
        Media { cells, touched: Vec::new(), fresh, atomic, is_volatile }
    }

    /// Number of blocks.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        self.cells.len() as u32
    }

    /// What a read of whole sectors sees.
    pub fn read(&self, first_sector: u32, out: &mut [u8]) {
        assert_eq!(out.len() % SECTOR_BYTES, 0);
        let mut sector = first_sector;
        let mut rest = out;
        while !rest.is_empty() {
            let within = sector % BLOCK_SECTORS;
            let count = (BLOCK_SECTORS - within).min((rest.len() / SECTOR_BYTES) as u32);
            let (now, later) = rest.split_at_mut(count as usize * SECTOR_BYTES);
            self.read_part(sector / BLOCK_SECTORS, within, now);
            rest = later;
            sector += count;
        }
    }

    fn read_part(&self, block: u32, within: u32, out: &mut [u8]) {
        let count = (out.len() / SECTOR_BYTES) as u32;
        let cell = &self.cells[block as usize];
        let mut missing = mask(within, count);
        for write in cell.unflushed.iter().rev() {
            let take = write.sectors & missing;
            if take != 0 {
                self.copy_sectors(&write.content, block, take, within, out);
                missing &= !take;
            }
        }
        if missing != 0 {
            let durable = cell.durable.as_ref().unwrap_or(&Content::Fresh);
            self.copy_sectors(durable, block, missing, within, out);
        }
    }

    /// Copies the sectors of `take` to `out`, which begins at sector `within`.
    fn copy_sectors(&self, content: &Content, block: u32, take: u8, within: u32, out: &mut [u8]) {
        if let (Content::Bytes(bytes), 0xFF) = (content, take) {
            out.copy_from_slice(bytes);
            return;
        }
        for sector in (0..BLOCK_SECTORS).filter(|sector| take >> sector & 1 == 1) {
            let start = (sector - within) as usize * SECTOR_BYTES;
            let out = &mut out[start..start + SECTOR_BYTES];
            match content {
                Content::Zero => out.fill(0),
                Content::Fresh => self.fresh_sector(block * BLOCK_SECTORS + sector, out),
                Content::Bytes(bytes) => {
                    let from = sector as usize * SECTOR_BYTES;
                    out.copy_from_slice(&bytes[from..from + SECTOR_BYTES]);
                }
            }
        }
    }

    fn fresh_sector(&self, sector: u32, out: &mut [u8]) {
        match self.fresh {
            Fresh::Zeroes => out.fill(0),
            Fresh::Noise(seed) => {
                fill_noise(&mut Random::new(seed ^ u64::from(sector)), out);
            }
            Fresh::Stamps { volume, write } => Stamp { write, volume, sector }.fill(out),
        }
    }

    /// Whether any of the blocks cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, first_block: u32, block_count: u32) -> bool {
        let range = first_block as usize..(first_block + block_count) as usize;
        self.cells[range].iter().any(|cell| cell.is_unreadable && cell.unflushed.is_empty())
    }

    /// A write reaches the device's cache.
    pub fn land(&mut self, writer: u64, part: Part, content: Content) {
        assert!(part.sectors != 0);
        let cell = &mut self.cells[part.block as usize];
        if cell.unflushed.is_empty() {
            self.touched.push(part.block);
        }
        let sectors = part.sectors;
        cell.unflushed.push(Unflushed {
            content,
            sectors,
            completed: NEVER,
            writer,
            is_lost: false,
        });
        if cell.unflushed.len() > UNFLUSHED_MAX && cell.unflushed[0].completed != NEVER {
            let oldest = cell.unflushed.remove(0);
            self.fold(part.block, oldest);
        }
    }

    /// The engine learns that a write is complete.
    pub fn complete(&mut self, writer: u64, blocks: impl Iterator<Item = u32>, now: u64) {
        for block in blocks {
            for write in &mut self.cells[block as usize].unflushed {
                if write.writer == writer && !write.is_lost {
                    write.completed = now;
                }
            }
            if !self.is_volatile {
                self.flush_block(block, NEVER);
            }
        }
        if !self.is_volatile {
            self.forget_untouched();
        }
    }

    /// Makes durable what completed before `before`.
    pub fn flush(&mut self, before: u64) {
        for index in 0..self.touched.len() {
            self.flush_block(self.touched[index], before);
        }
        self.forget_untouched();
    }

    fn flush_block(&mut self, block: u32, before: u64) {
        let writes = &mut self.cells[block as usize].unflushed;
        // What landed before a flushed write goes with it: it lies below.
        let Some(last) = writes.iter().rposition(|write| write.completed < before) else { return };
        let whole = writes[..=last].iter().rposition(|write| write.sectors == 0xFF).unwrap_or(0);
        let flushed: Vec<_> = writes.drain(..=last).skip(whole).collect();
        for write in flushed {
            self.fold(block, write);
        }
    }

    fn forget_untouched(&mut self) {
        let cells = &self.cells;
        self.touched.retain(|block| !cells[*block as usize].unflushed.is_empty());
    }

    /// A flush failed: of what it should have made durable, some never will be.
    pub fn fail_flush(&mut self, before: u64, random: &mut Random) {
        for block in &self.touched {
            let lose = random.percent(50);
            for write in &mut self.cells[*block as usize].unflushed {
                // What landed and is not reported yet was perhaps among it.
                if lose && (write.completed < before || write.completed == NEVER) {
                    (write.completed, write.is_lost) = (NEVER, true);
                }
            }
        }
    }

    /// The process died, or closed the device: what landed stays in the device's cache, and nothing
    /// more of it will land.
    pub fn kill(&mut self, now: u64) {
        for block in &self.touched {
            for write in &mut self.cells[*block as usize].unflushed {
                write.completed = write.completed.min(now);
            }
        }
    }

    /// The power went: chooses what is left of what was not flushed.
    pub fn cut_power(&mut self, style: PowerStyle, random: &mut Random) {
        let style = if self.is_volatile { style } else { PowerStyle::AllSurvive };
        for block in std::mem::take(&mut self.touched) {
            let writes = std::mem::take(&mut self.cells[block as usize].unflushed);
            match style {
                PowerStyle::NoneSurvive => {}
                PowerStyle::AllSurvive => {
                    writes.into_iter().for_each(|write| self.fold(block, write));
                }
                PowerStyle::Random => self.keep_some(block, &writes, random),
                PowerStyle::RandomWithRubbish => {
                    self.keep_some(block, &writes, random);
                    if random.percent(10) {
                        self.spoil(block, &writes, random);
                    }
                }
            }
        }
    }

    /// Blocks of unflushed writes, each with its writer; none if a power cut loses nothing.
    #[must_use]
    pub fn unflushed_units(&self) -> Vec<(u64, u32)> {
        let touched = self.touched.iter().filter(|_| self.is_volatile);
        let writers = |block: &u32| {
            let block = *block;
            let unflushed = self.cells[block as usize].unflushed.iter();
            unflushed.map(move |write| (write.writer, block))
        };
        touched.flat_map(writers).collect()
    }

    /// The power went, and of the unflushed writes those survive that are chosen.
    pub fn keep_units(&mut self, survives: &mut dyn FnMut(u64, u32) -> bool) {
        if !self.is_volatile {
            return;
        }
        for block in std::mem::take(&mut self.touched) {
            for write in std::mem::take(&mut self.cells[block as usize].unflushed) {
                if survives(write.writer, block) {
                    self.fold(block, write);
                }
            }
        }
    }

    fn keep_some(&mut self, block: u32, writes: &[Unflushed], random: &mut Random) {
        let units: &[u8] = match self.atomic {
            AtomicUnit::Block => &[0xFF],
            AtomicUnit::Sector => &[1, 2, 4, 8, 16, 32, 64, 128],
        };
        for unit in units {
            let covering: Vec<_> = writes.iter().filter(|w| w.sectors & unit != 0).collect();
            if covering.is_empty() {
                continue;
            }
            for write in &covering[..random.index(covering.len() + 1)] {
                let (content, sectors) = (write.content.clone(), write.sectors & unit);
                self.fold(
                    block,
                    Unflushed { content, sectors, completed: 0, writer: 0, is_lost: false },
                );
            }
        }
    }

    /// Rubbish in one of the sectors that were not flushed, or in the whole block.
    fn spoil(&mut self, block: u32, writes: &[Unflushed], random: &mut Random) {
        let written = writes.iter().fold(0, |sectors, write| sectors | write.sectors);
        let sectors = match self.atomic {
            AtomicUnit::Block => written,
            AtomicUnit::Sector => written & (1 << random.below(8)),
        };
        if sectors != 0 {
            let content = noise_block(random);
            self.fold(
                block,
                Unflushed { content, sectors, completed: 0, writer: 0, is_lost: false },
            );
        }
    }

    fn fold(&mut self, block: u32, write: Unflushed) {
        if write.sectors == 0xFF {
            let cell = &mut self.cells[block as usize];
            cell.durable = Some(write.content);
            cell.is_unreadable = false;
            return;
        }
        let mut bytes = [0u8; BLOCK_BYTES];
        let durable = self.cells[block as usize].durable.clone().unwrap_or(Content::Fresh);
        self.copy_sectors(&durable, block, 0xFF, 0, &mut bytes);
        // The mask is partial, so `copy_sectors` copies by sector.
        self.copy_sectors(&write.content, block, write.sectors, 0, &mut bytes);
        let cell = &mut self.cells[block as usize];
        cell.durable = Some(Content::Bytes(Rc::from(&bytes[..])));
    }

    /// Writes durably, outside of any operation: a format, or somebody else who uses the device.
    pub fn write_durable(&mut self, first_sector: u32, bytes: &[u8]) {
        for (sector, bytes) in (first_sector..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let (block, within) = (sector / BLOCK_SECTORS, sector % BLOCK_SECTORS);
            self.settle(block);
            let mut whole = [0u8; BLOCK_BYTES];
            whole[within as usize * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(bytes);
            let content = Content::Bytes(Rc::from(&whole[..]));
            self.fold(
                block,
                Unflushed {
                    content,
                    sectors: 1 << within,
                    completed: 0,
                    writer: 0,
                    is_lost: false,
                },
            );
        }
    }

    /// Makes durable whatever a block holds.
    fn settle(&mut self, block: u32) {
        if !self.cells[block as usize].unflushed.is_empty() {
            self.touched.retain(|touched| *touched != block);
            for write in std::mem::take(&mut self.cells[block as usize].unflushed) {
                self.fold(block, write);
            }
        }
    }

    /// Whether everything of a block is durable and was written.
    #[must_use]
    pub fn is_settled(&self, block: u32) -> bool {
        let cell = &self.cells[block as usize];
        cell.unflushed.is_empty() && matches!(cell.durable, Some(Content::Bytes(_)))
    }

    /// What is durable, to see later what has stayed.
    #[must_use]
    pub fn contents(&self) -> Contents {
        let block = |cell: &Cell| match &cell.durable {
            Some(Content::Bytes(bytes)) if cell.unflushed.is_empty() => Some(Rc::clone(bytes)),
            _ => None,
        };
        self.cells.iter().map(block).collect()
    }

    /// Whether everything of a block is durable, and was when `contents` was taken.
    #[must_use]
    pub fn is_unchanged(&self, block: u32, contents: &Contents) -> bool {
        let cell = &self.cells[block as usize];
        let before = contents.get(block as usize).and_then(Option::as_ref);
        match (&cell.durable, before) {
            (Some(Content::Bytes(now)), Some(before)) => {
                cell.unflushed.is_empty() && Rc::ptr_eq(now, before)
            }
            _ => false,
        }
    }

    /// Flips a bit of a durable block.
    pub fn flip_bit(&mut self, block: u32, random: &mut Random) {
        if let Some(Content::Bytes(bytes)) = &self.cells[block as usize].durable {
            let mut bytes = bytes.to_vec();
            bytes[random.index(BLOCK_BYTES)] ^= 1 << random.below(8);
            self.cells[block as usize].durable = Some(Content::Bytes(Rc::from(bytes)));
        }
    }

    /// Makes a durable block unreadable until it is written.
    pub fn make_unreadable(&mut self, block: u32) {
        self.cells[block as usize].is_unreadable = true;
    }

    /// Number of blocks that hold unflushed writes.
    #[must_use]
    pub fn unflushed_blocks(&self) -> usize {
        self.touched.len()
    }
}

/// The bits of `count` sectors from `first`.
#[must_use]
pub fn mask(first: u32, count: u32) -> u8 {
    assert!(first + count <= BLOCK_SECTORS);
    (((1u32 << count) - 1) << first) as u8
}

/// A block of rubbish.
pub fn noise_block(random: &mut Random) -> Content {
    let mut bytes = [0u8; BLOCK_BYTES];
    fill_noise(random, &mut bytes);
    Content::Bytes(Rc::from(&bytes[..]))
}

fn fill_noise(random: &mut Random, out: &mut [u8]) {
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&random.bits().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_of(byte: u8) -> Content {
        Content::Bytes(Rc::from(&[byte; BLOCK_BYTES][..]))
    }

    fn first_byte(media: &Media, sector: u32) -> u8 {
        let mut out = [0u8; SECTOR_BYTES];
        media.read(sector, &mut out);
        out[0]
    }

    #[test]
    fn a_read_sees_the_last_landed_write_of_each_sector() {
        let mut media = Media::new(4, Fresh::Zeroes, AtomicUnit::Sector, WriteCache::Volatile);
        media.land(1, Part { block: 1, sectors: 0xFF }, block_of(1));
        media.land(2, Part { block: 1, sectors: 0b110 }, block_of(2));
        let bytes: Vec<_> = (8..16).map(|sector| first_byte(&media, sector)).collect();
        assert_eq!(bytes, [1, 2, 2, 1, 1, 1, 1, 1]);
        media.complete(1, 1..2, 5);
        media.complete(2, 1..2, 6);
        media.flush(6);
        media.cut_power(PowerStyle::NoneSurvive, &mut Random::new(1));
        assert_eq!(first_byte(&media, 9), 1, "the flush began before write 2 was complete");
    }

    #[test]
    fn without_a_volatile_cache_completed_writes_survive() {
        let mut media = Media::new(4, Fresh::Zeroes, AtomicUnit::Block, WriteCache::Durable);
        media.land(1, Part { block: 0, sectors: 0xFF }, block_of(1));
        media.complete(1, 0..1, 5);
        media.cut_power(PowerStyle::NoneSurvive, &mut Random::new(1));
        assert_eq!(first_byte(&media, 0), 1);
    }

    #[test]
    fn torn_sectors_are_whole_and_of_one_of_the_writes() {
        let mut seen = [0; 3];
        for seed in 0..200 {
            let mut media = Media::new(1, Fresh::Zeroes, AtomicUnit::Sector, WriteCache::Volatile);
            for write in 1..=2 {
                media.land(write, Part { block: 0, sectors: 0xFF }, block_of(write as u8));
                media.complete(write, 0..1, write);
            }
            media.cut_power(PowerStyle::Random, &mut Random::new(seed));
            for sector in 0..8 {
                seen[usize::from(first_byte(&media, sector))] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 200));
    }

    #[test]
    fn after_a_failed_flush_a_later_one_does_not_help() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut media = Media::new(1, Fresh::Zeroes, AtomicUnit::Block, WriteCache::Volatile);
            media.land(1, Part { block: 0, sectors: 0xFF }, block_of(1));
            media.complete(1, 0..1, 1);
            media.fail_flush(2, &mut random);
            media.flush(9);
            media.cut_power(PowerStyle::NoneSurvive, &mut random);
            lost += usize::from(first_byte(&media, 0) == 0);
        }
        assert!((20..80).contains(&lost));
    }
}
