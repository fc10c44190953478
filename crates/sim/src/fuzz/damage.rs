//! Damage to a whole cache device, and what may still be promised of what is on it.

use forebay_engine::format::record::RecordHeader;
use forebay_engine::format::summary::summary_blocks;
use forebay_engine::format::superblock::{Geometry, SUPERBLOCK_BYTES};

use super::bytes;
use super::image::{End, Image};
use super::machine::{Media, read_superblock};
use crate::random::Random;

const BLOCK: usize = 4096;
/// Bytes that say most about a record, a summary or a slot: fields and first entries.
const TELLING_BYTES: usize = 400;

/// What reads of a damaged set may return, beside errors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Promise {
    /// The last acknowledged value of each block, or that of a write under way at the end.
    Current,
    /// A value that the block once had.
    Former,
    /// Anything: somebody computed checksums.
    Nothing,
}

/// Whether a block that was read may change without a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stability {
    /// It may not.
    Stays,
    /// An older checkpoint stands in the place of a newer one, and is as whole as that. Records of
    /// lives that it does not know of lie about, and may seem to be of a life that comes after it.
    MayChange,
}

/// What a block of the device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Superblock,
    Checkpoint,
    Header,
    Summary,
    /// Payload, or nothing.
    Rest,
}

/// A damaged device.
pub struct Damaged {
    /// The devices.
    pub media: Media,
    /// What may be promised.
    pub promise: Promise,
    /// Whether what was read once stays.
    pub stability: Stability,
    /// What was done, for messages.
    pub done: Vec<String>,
    /// Names of what was done, to be counted.
    pub kinds: Vec<&'static str>,
}

/// A device on its way to be damaged.
struct Work<'a> {
    image: &'a Image,
    other: &'a [u8],
    random: &'a mut Random,
    parts: Vec<Part>,
    damaged: Damaged,
}

/// Damages a copy of the devices; `other` is the cache device of another set.
#[must_use]
pub fn damage(image: &Image, other: &[u8], random: &mut Random) -> Damaged {
    let damaged = Damaged {
        media: image.media.clone(),
        promise: Promise::Current,
        stability: Stability::Stays,
        done: Vec::new(),
        kinds: Vec::new(),
    };
    let parts = parts(image);
    let mut work = Work { image, other, random, parts, damaged };
    match work.random.below(20) {
        0 => work.note("nothing", String::new()),
        1 => work.truncate(),
        2..=10 => {
            for _ in 0..work.random.between(1..=3) {
                work.forge();
            }
        }
        _ => {
            for _ in 0..work.random.between(1..=4) {
                work.spoil();
            }
        }
    }
    work.damaged
}

/// What each block of the cache device is.
pub(super) fn parts(image: &Image) -> Vec<Part> {
    let geometry = &image.geometry;
    let blocks = image.media.cache.chunks_exact(BLOCK);
    let part = |(index, bytes): (usize, &[u8])| {
        let offset = (index * BLOCK) as u64;
        if offset < SUPERBLOCK_BYTES as u64 || offset >= geometry.copy_offset {
            Part::Superblock
        } else if offset < geometry.segments_offset {
            Part::Checkpoint
        } else if &bytes[4..8] == b"fbr1" {
            Part::Header
        } else if &bytes[4..8] == b"fbs1" {
            Part::Summary
        } else {
            Part::Rest
        }
    };
    blocks.enumerate().map(part).collect()
}

/// What is promised of a device on which a block of such a part has changed, by whatever no
/// checksum vouches for.
///
/// After a clean stop all that recovery goes by is what the newest checkpoint covers, and the
/// checkpoint covers everything: records that are damaged are found out. What lies behind a
/// checkpoint ends where it is not whole, and the older checkpoint knows less; so without a clean
/// stop, or with another checkpoint or superblock than the newest, older values may come back.
pub(super) fn promise_after(part: Part, end: End) -> Promise {
    let is_base = matches!(part, Part::Superblock | Part::Checkpoint);
    if is_base || end != End::Stopped { Promise::Former } else { Promise::Current }
}

/// The bytes of the summary that begins at `start`, as far as its header can be believed.
pub(super) fn summary_range(cache: &[u8], start: usize) -> std::ops::Range<usize> {
    let number = |at: usize| {
        u32::from_le_bytes(cache[start + at..start + at + 4].try_into().expect("4 bytes"))
    };
    let (used, entries) = (number(36).min(4096), number(40).min(10_000));
    let length = summary_blocks(entries as usize, used) as usize * BLOCK;
    start..(start + length).min(cache.len())
}

impl Work<'_> {
    fn note(&mut self, kind: &'static str, text: String) {
        self.damaged.kinds.push(kind);
        self.damaged.done.push(format!("{kind} {text}"));
    }

    /// A block of a part that is chosen first, so that rare parts are hit often.
    fn pick_block(&mut self) -> usize {
        let choice = [
            Part::Superblock,
            Part::Checkpoint,
            Part::Header,
            Part::Header,
            Part::Summary,
            Part::Rest,
            Part::Rest,
        ];
        let part = *self.random.pick(&choice);
        let of_part = |index: &usize| self.parts[*index] == part;
        let blocks: Vec<usize> = (0..self.parts.len()).filter(of_part).collect();
        if blocks.is_empty() {
            return self.random.index(self.parts.len());
        }
        *self.random.pick(&blocks)
    }

    /// Lowers the promise as the block demands that has changed.
    fn touch(&mut self, block: usize) {
        let promise = promise_after(self.parts[block], self.image.end);
        self.damaged.promise = self.damaged.promise.max(promise);
    }

    /// The block has got the content of another block or another time.
    fn replace(&mut self, block: usize) {
        self.touch(block);
        if self.parts[block] == Part::Checkpoint {
            self.damaged.stability = Stability::MayChange;
        }
    }

    fn block(&mut self, index: usize) -> &mut [u8] {
        &mut self.damaged.media.cache[index * BLOCK..(index + 1) * BLOCK]
    }

    /// What a disk, a cable or an operator may do.
    fn spoil(&mut self) {
        match self.random.below(9) {
            0 | 1 => self.flip(),
            2 => self.zero(),
            3 => self.swap(),
            4 => self.put_elsewhere(),
            5 => self.bring_back_block(),
            6 => self.bring_back_region(),
            _ => self.splice(),
        }
    }

    fn flip(&mut self) {
        let index = self.pick_block();
        let length = if self.random.percent(70) { TELLING_BYTES } else { BLOCK };
        for _ in 0..self.random.between(1..=3) {
            let (at, bit) = (self.random.index(length), self.random.below(8));
            self.block(index)[at] ^= 1 << bit;
        }
        self.touch(index);
        self.note("flipped", format!("bits of block {index}, {:?}", self.parts[index]));
    }

    fn zero(&mut self) {
        let index = self.pick_block();
        let count = self.random.between(1..=70) as usize;
        let end = (index + count).min(self.parts.len());
        for at in index..end {
            self.block(at).fill(0);
            self.touch(at);
        }
        self.note("zeroed", format!("blocks {index} to {end}"));
    }

    fn swap(&mut self) {
        let (a, b) = (self.pick_block(), self.pick_block());
        let first = self.block(a).to_vec();
        let second = self.block(b).to_vec();
        self.block(a).copy_from_slice(&second);
        self.block(b).copy_from_slice(&first);
        self.replace(a);
        self.replace(b);
        self.note("swapped", format!("blocks {a} and {b}"));
    }

    /// A block or a stretch of blocks stands somewhere else as well.
    fn put_elsewhere(&mut self) {
        let (from, to) = (self.pick_block(), self.pick_block());
        let most = self.parts.len() - from.max(to);
        let count = (*self.random.pick(&[1, 2, 17, 64])).min(most);
        let moved = self.damaged.media.cache[from * BLOCK..(from + count) * BLOCK].to_vec();
        for (offset, bytes) in moved.chunks_exact(BLOCK).enumerate() {
            self.block(to + offset).copy_from_slice(bytes);
            self.replace(to + offset);
        }
        self.note("duplicated", format!("{count} blocks at {from} to {to}"));
    }

    /// A write that was lost.
    fn bring_back_block(&mut self) {
        let index = self.pick_block();
        let earlier = self.image.earlier[index * BLOCK..(index + 1) * BLOCK].to_vec();
        self.block(index).copy_from_slice(&earlier);
        self.replace(index);
        self.note("brought back", format!("block {index}, {:?}", self.parts[index]));
    }

    /// Everything of a kind that was written since then is lost.
    fn bring_back_region(&mut self) {
        let geometry = &self.image.geometry;
        let segment = u64::from(self.random.below(geometry.segment_count.into()) as u32);
        let (from, length) = match self.random.below(4) {
            0 => (0, SUPERBLOCK_BYTES as u64),
            1 => (geometry.checkpoint_offset, geometry.checkpoint_bytes),
            2 => (geometry.checkpoint_offset, 2 * geometry.checkpoint_bytes),
            _ => {
                let offset = geometry.segments_offset + segment * geometry.segment_bytes;
                (offset, geometry.segment_bytes)
            }
        };
        let place = from as usize..(from + length) as usize;
        self.damaged.media.cache[place.clone()].copy_from_slice(&self.image.earlier[place.clone()]);
        self.replace(place.start / BLOCK);
        self.note("brought back", format!("bytes {place:?}"));
    }

    /// Blocks of another set, from the same place.
    fn splice(&mut self) {
        let index = self.pick_block();
        let most = self.parts.len() - index;
        let count = (*self.random.pick(&[1, 1, 16, 64])).min(most);
        let place = index * BLOCK..(index + count) * BLOCK;
        let Some(foreign) = self.other.get(place.clone()) else { return };
        self.damaged.media.cache[place].copy_from_slice(foreign);
        for at in index..index + count {
            self.replace(at);
        }
        self.note("spliced", format!("{count} blocks of another set at {index}"));
    }

    fn truncate(&mut self) {
        let length = self.random.index(self.damaged.media.cache.len());
        self.damaged.media.cache.truncate(length);
        self.damaged.promise = Promise::Former;
        self.note("truncated", format!("to {length} bytes"));
    }

    /// Changes a structure and makes its checksum good.
    fn forge(&mut self) {
        self.damaged.promise = Promise::Nothing;
        self.damaged.stability = Stability::MayChange;
        let index = self.pick_block();
        let geometry = self.image.geometry;
        let (kind, place) = match self.parts[index] {
            Part::Superblock => ("forged superblock", superblock_place(index, &geometry)),
            Part::Checkpoint => ("forged checkpoint", self.checkpoint_place(index)),
            Part::Header => ("forged record", index * BLOCK..(index + 1) * BLOCK),
            Part::Summary => {
                ("forged summary", summary_range(&self.damaged.media.cache, index * BLOCK))
            }
            Part::Rest => return self.forge_payload(index),
        };
        let bytes = &mut self.damaged.media.cache[place.clone()];
        let telling = match self.random.below(3) {
            0 => 184,
            1 => TELLING_BYTES,
            _ => bytes.len(),
        };
        for _ in 0..self.random.between(1..=2) {
            bytes::damage(bytes, telling.min(place.len()), self.random);
        }
        bytes::seal(bytes);
        if kind == "forged superblock" {
            self.copy_superblock(&place);
        }
        self.note(kind, format!("at bytes {place:?}"));
    }

    /// The other place may get the same, or the forged one has to win by itself.
    fn copy_superblock(&mut self, place: &std::ops::Range<usize>) {
        let copy = self.image.geometry.copy_offset as usize;
        let other = if place.start == 0 { copy } else { 0 };
        if self.random.percent(80) {
            let bytes = self.damaged.media.cache[place.clone()].to_vec();
            self.damaged.media.cache[other..other + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn checkpoint_place(&mut self, index: usize) -> std::ops::Range<usize> {
        let geometry = &self.image.geometry;
        let area =
            (index as u64 * BLOCK as u64 - geometry.checkpoint_offset) / geometry.checkpoint_bytes;
        let start = (geometry.checkpoint_offset + area * geometry.checkpoint_bytes) as usize;
        let cache = &self.damaged.media.cache;
        let length = u64::from_le_bytes(cache[start + 32..start + 40].try_into().expect("8 bytes"));
        start..start + length.clamp(80, geometry.checkpoint_bytes) as usize
    }

    /// Other content in a payload block, with a checksum in its header that fits.
    fn forge_payload(&mut self, index: usize) {
        let Ok(superblock) = read_superblock(&self.image.media.cache) else { return };
        let Some(header_index) = (0..index).rev().find(|at| self.parts[*at] == Part::Header) else {
            return;
        };
        let geometry = &self.image.geometry;
        let first = geometry.segments_offset as usize / BLOCK;
        let blocks = geometry.segment_blocks() as usize;
        let (segment, block) = ((header_index - first) / blocks, (header_index - first) % blocks);
        let bytes = self.block(header_index).to_vec();
        let header = RecordHeader::decode(&superblock.set_id, segment as u32, block as u32, &bytes);
        let Ok(mut header) = header else { return };
        let offset = index - header_index - 1;
        if offset >= header.crcs.len() {
            return;
        }
        let fill = self.random.bits() as u8;
        self.block(index).fill(fill);
        header.crcs[offset] = forebay_engine::format::crc32c(self.block(index));
        let target = self.block(header_index);
        header.encode(&superblock.set_id, target);
        self.note("forged payload", format!("at block {index}"));
    }
}

fn superblock_place(index: usize, geometry: &Geometry) -> std::ops::Range<usize> {
    let is_start = index < SUPERBLOCK_BYTES / BLOCK;
    let start = if is_start { 0 } else { geometry.copy_offset as usize };
    start..start + SUPERBLOCK_BYTES
}
