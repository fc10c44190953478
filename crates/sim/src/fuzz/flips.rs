//! Flips of every byte of what recovery goes by: superblock and its copy, both checkpoints, each
//! record header, each summary. What may be promised of the device afterwards, and the judgement,
//! are those of the fuzzer `device`.
//!
//! Beyond that: a flip in one superblock is mended from the other, so the device is served; and on
//! a device that was stopped in order, or idle when its process was killed, no flip brings an older
//! value back, whatever it hits. A flip in a checkpoint may be a refusal: the older one knows less
//! than the log shows to be gone.
//!
//! All that the engine sees of a superblock is which one the host chose. So a flip that leaves that
//! choice as it is repeats a run that was made, and most flips of superblocks are judged by it.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use forebay_engine::format::superblock::SUPERBLOCK_BYTES;

use super::damage::{Damaged, Part, Stability, parts, promise_after, summary_range};
use super::image::{End, Image, ImageSize};
use super::machine::{Media, Written, read_superblock};
use super::{Reached, device};
use crate::caught::catch_panic;
use crate::cores::on_all_cores;
use crate::random::Random;

const BLOCK: usize = 4096;
/// What is done to a byte: all bits, and one.
const MASKS: [fn(usize) -> u8; 2] = [|_| 0xFF, |at| 1 << (at % 8)];
/// Every so many bytes of a superblock the whole recovery is made. It is prime: all offsets within
/// the slots of the volume table come about.
const SUPERBLOCK_STRIDE: usize = 17;
/// A device that is soon read, with records, summaries and restarts.
const SIZE: ImageSize = ImageSize { volumes: 1..=1, blocks: 80..=120, steps: 20..=30, end: None };

/// Bytes that recovery reads as one structure.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    name: &'static str,
    /// Where on the cache device.
    bytes: Range<usize>,
    part: Part,
}

/// A device of which every byte is to be flipped.
#[derive(Clone, Debug)]
struct Flips {
    seed: u64,
    image: Image,
    places: Vec<Place>,
    /// The superblock that a host takes of `image`, encoded.
    superblock: Vec<u8>,
    /// The devices once more, to put a flip into and to use. Between flips they are as in `image`.
    scratch: RefCell<Media>,
}

/// A flip after which the engine did what it must not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadFlip {
    /// Seed of the device.
    pub seed: u64,
    /// How its history ended.
    pub end: End,
    /// Structure that the byte is of.
    pub place: &'static str,
    /// The byte, counted on the cache device.
    pub at: usize,
    /// What was wrong.
    pub text: String,
}

impl fmt::Display for BadFlip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadFlip { seed, end, place, at, text } = self;
        let name = name(*end);
        write!(f, "seed {seed}, {place}: {text}\n  again: ")?;
        write!(f, "forebay-sim sweep {name} --seed {seed} --byte {at}")
    }
}

/// Of a sweep over all bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flipped {
    /// Bytes of all structures.
    pub bytes: u64,
    /// Bytes that were flipped, so far.
    pub done: u64,
    /// What these came across.
    pub reached: Reached,
}

/// Name of the sweep over a device whose history ended so.
#[must_use]
pub fn name(end: End) -> &'static str {
    match end {
        End::Stopped => "flip-stopped",
        End::Killed => "flip-killed",
        End::Idle => "flip-idle",
    }
}

/// Which bytes of a device are flipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Every so many of them.
    Every(u64),
    /// One, counted on the cache device.
    One(usize),
}

/// Flips each byte of the device of a seed by itself, as many at a time as there are cores;
/// `progress` is told after each.
///
/// # Errors
/// The first flip that was seen to go wrong, or a device that could not be made.
pub fn sweep(
    seed: u64,
    end: End,
    which: Which,
    progress: &mut dyn FnMut(&Flipped),
) -> Result<Flipped, Box<BadFlip>> {
    let bad = |text| Box::new(BadFlip { seed, end, place: "no damage", at: 0, text });
    let flips = Flips::new(seed, end).map_err(bad)?;
    let places = flips.places.iter();
    let bytes = places.flat_map(|place| place.bytes.clone().map(move |at| (place, at)));
    let is_wanted = |index: u64, at: usize| match which {
        Which::Every(stride) => index.is_multiple_of(stride),
        Which::One(wanted) => wanted == at,
    };
    let mut flipped = Flipped { bytes: bytes.clone().count() as u64, ..Flipped::default() };
    let wanted = (0..).zip(bytes).filter(|(index, (_, at))| is_wanted(*index, *at));
    let new_worker = || {
        let flips = flips.clone();
        move |(_, (place, at))| {
            let mut reached = Reached::default();
            flips.flip(place, at, &mut reached).map(|()| reached)
        }
    };
    let ended: Result<(), Box<BadFlip>> = on_all_cores(wanted, new_worker, |reached| {
        flipped.reached.add(&reached?);
        flipped.done += 1;
        progress(&flipped);
        Ok(())
    });
    ended.map(|()| flipped)
}

impl Flips {
    fn new(seed: u64, end: End) -> Result<Flips, String> {
        let size = ImageSize { end: Some(end), ..SIZE };
        let image = Image::sized(&size, &mut Random::new(seed))?;
        let places = places(&image);
        let superblock = read_superblock(&image.media.cache).map_err(|corrupt| corrupt.to_string());
        let superblock = superblock?.encode();
        let scratch = RefCell::new(image.media.clone());
        Ok(Flips { seed, image, places, superblock, scratch })
    }

    /// Flips a byte in each of two ways, and judges what recovery makes of it.
    fn flip(&self, place: &Place, at: usize, reached: &mut Reached) -> Result<(), Box<BadFlip>> {
        reached.note(place.name);
        for mask in MASKS {
            if place.part == Part::Superblock && !at.is_multiple_of(SUPERBLOCK_STRIDE) {
                reached.note("superblocks chosen alike");
                if self.is_chosen_alike(at, mask(at)) {
                    continue;
                }
            }
            let result = catch_panic(|| self.flip_with(place, (at, mask(at)), reached));
            let text = match result {
                Ok(Ok(())) => continue,
                Ok(Err(text)) => text,
                Err(panic) => format!("panic at {}: {}", panic.place, panic.text),
            };
            let (seed, end, place) = (self.seed, self.image.end, place.name);
            return Err(Box::new(BadFlip { seed, end, place, at, text }));
        }
        Ok(())
    }

    /// Whether the host takes the same superblock as from the device without the flip.
    fn is_chosen_alike(&self, at: usize, mask: u8) -> bool {
        let cache = &mut self.scratch.borrow_mut().cache;
        cache[at] ^= mask;
        let flipped = read_superblock(cache);
        cache[at] ^= mask;
        flipped.is_ok_and(|flipped| flipped.encode() == self.superblock)
    }

    fn flip_with(
        &self,
        place: &Place,
        (at, mask): (usize, u8),
        reached: &mut Reached,
    ) -> Result<(), String> {
        let mut media = self.scratch.take();
        media.cache[at] ^= mask;
        media.written.push(Written { origin: None, bytes: at..at + 1 });
        let promise = promise_after(place.part, self.image.end);
        let damaged = Damaged {
            media,
            promise,
            stability: Stability::Stays,
            done: vec![format!("byte {at} of {} xor {mask:#04x}", place.name)],
            kinds: vec!["flipped"],
        };
        let mut here = Reached::default();
        let mut random = Random::new(self.seed ^ at as u64);
        let used = device::judge(damaged, &self.image, &mut random, &mut here)?;
        self.give_back(used);
        if place.part == Part::Superblock && here.count("served") == 0 {
            return Err("refused, though the other superblock is whole".to_owned());
        }
        let older = here.count("older values");
        if older > 0 && self.image.end != End::Killed {
            return Err(format!("{older} blocks have older values"));
        }
        reached.add(&here);
        Ok(())
    }

    /// Takes the devices back after a flip, without what was done to them. To copy them whole for
    /// each flip takes as long as all the rest.
    fn give_back(&self, used: Option<Media>) {
        let mut media = used.unwrap_or_else(|| self.image.media.clone());
        media.restore(&self.image.media);
        self.scratch.replace(media);
    }
}

/// What recovery reads as structures.
fn places(image: &Image) -> Vec<Place> {
    let geometry = &image.geometry;
    let superblock = |name, start: u64| {
        let start = start as usize;
        Place { name, bytes: start..start + SUPERBLOCK_BYTES, part: Part::Superblock }
    };
    let checkpoint = |name, area: u64| {
        let start = (geometry.checkpoint_offset + area * geometry.checkpoint_bytes) as usize;
        let cache = &image.media.cache;
        let length = u64::from_le_bytes(cache[start + 32..start + 40].try_into().expect("8 bytes"));
        let bytes = start..start + length.min(geometry.checkpoint_bytes) as usize;
        Place { name, bytes, part: Part::Checkpoint }
    };
    let mut places = vec![
        superblock("superblock", 0),
        superblock("superblock copy", geometry.copy_offset),
        checkpoint("checkpoint A", 0),
        checkpoint("checkpoint B", 1),
    ];
    for (index, part) in parts(image).into_iter().enumerate() {
        let start = index * BLOCK;
        match part {
            Part::Header => {
                places.push(Place { name: "record header", bytes: start..start + BLOCK, part });
            }
            Part::Summary => {
                let bytes = summary_range(&image.media.cache, start);
                places.push(Place { name: "summary", bytes, part });
            }
            Part::Superblock | Part::Checkpoint | Part::Rest => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flip_is_made_on_the_same_devices() {
        for end in [End::Stopped, End::Killed, End::Idle] {
            let flips = Flips::new(1, end).expect("a whole device");
            let mut reached = Reached::default();
            for place in &flips.places {
                flips.flip(place, place.bytes.start + 8, &mut reached).expect("a good flip");
                let scratch = flips.scratch.borrow();
                assert!(scratch.cache == flips.image.media.cache, "{}", place.name);
                assert!(scratch.origins == flips.image.media.origins, "{}", place.name);
            }
            assert!(reached.count("served") > 0 && reached.count("refused") > 0, "{end:?}");
        }
    }
}
