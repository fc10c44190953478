//! Devices as the engine leaves them: a seed becomes a short history of writes, reads, restarts and
//! commands, and what was written is remembered.

use std::ops::RangeInclusive;

use forebay_engine::event::Command;
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{Geometry, NewVolume, Superblock};
use forebay_engine::options::{CacheMode, DIRTY_SECONDS_MAX, VolumeSettings, WritebackOrder};
use forebay_engine::request::{Durability, RequestKind};
use forebay_engine::units::VolumeSlot;

use super::ledger::{Ledger, ORIGINAL, ZEROES, block_bytes};
use super::machine::{Halt, Machine, Media};
use crate::random::Random;

const SEGMENT_BYTES: u64 = 256 * 1024;
/// Far more than writeback of a small device and the mark take.
const WAKEUPS_UNTIL_IDLE: u32 = 100;
const MODES: [CacheMode; 5] = [
    CacheMode::Writeback,
    CacheMode::Writethrough,
    CacheMode::Writearound,
    CacheMode::Writeonly,
    CacheMode::Passthrough,
];

/// How the history ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// By a clean stop: the newest checkpoint covers every record.
    Stopped,
    /// By a kill.
    Killed,
    /// By a kill when nothing had been asked for a while: a mark vouches for every record.
    Idle,
}

/// How large a history is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageSize {
    /// Number of volumes.
    pub volumes: RangeInclusive<u64>,
    /// Blocks of a volume.
    pub blocks: RangeInclusive<u64>,
    /// Steps of the history.
    pub steps: RangeInclusive<u64>,
    /// How it ends; by chance if not given.
    pub end: Option<End>,
}

/// For the fuzzers.
const SIZE: ImageSize =
    ImageSize { volumes: 1..=3, blocks: 100..=1500, steps: 10..=250, end: None };

/// Devices and what is known of them.
#[derive(Clone, Debug)]
pub struct Image {
    /// The devices.
    pub media: Media,
    /// The cache device at some earlier moment.
    pub earlier: Vec<u8>,
    /// What was written.
    pub ledger: Ledger,
    /// How it ended.
    pub end: End,
    /// Layout of the cache device.
    pub geometry: Geometry,
}

/// A history under way.
struct Writer {
    machine: Machine,
    random: Random,
    ledger: Ledger,
    next_write: u32,
    earlier: Option<Vec<u8>>,
}

impl Image {
    /// The devices of this seed.
    ///
    /// # Errors
    /// If the engine does what it must not do on devices that nobody damaged.
    pub fn new(random: &mut Random) -> Result<Image, String> {
        Image::sized(&SIZE, random)
    }

    /// The same with a history of a chosen size.
    ///
    /// # Errors
    /// As [`Image::new`].
    pub fn sized(size: &ImageSize, random: &mut Random) -> Result<Image, String> {
        let mut ledger = Ledger::default();
        let (media, geometry) = format(size, &mut ledger, random);
        let machine = Machine::start(media, random.fork()).map_err(describe)?;
        let mut writer =
            Writer { machine, random: random.fork(), ledger, next_write: 2, earlier: None };
        let steps = writer.random.between(size.steps.clone());
        let snapshot_at = writer.random.below(steps);
        for step in 0..steps {
            if step == snapshot_at {
                writer.earlier = Some(writer.machine.media().cache.clone());
            }
            writer = writer.step().map_err(describe)?;
        }
        writer.finish(geometry, size.end).map_err(describe)
    }
}

fn describe(halt: Halt) -> String {
    match halt {
        Halt::Refused(text) => format!("a whole device is refused: {text}"),
        Halt::Stuck(text) | Halt::Wrong(text) => format!("on a whole device: {text}"),
    }
}

fn format(size: &ImageSize, ledger: &mut Ledger, random: &mut Random) -> (Media, Geometry) {
    let bytes = random.between(26..=30) * SEGMENT_BYTES;
    let geometry = Geometry::new(bytes, Some(SEGMENT_BYTES)).expect("large enough");
    let set_id = std::array::from_fn(|_| random.bits() as u8);
    let mut superblock = Superblock::new(set_id, geometry, "fuzzed");
    let mut media = Media { cache: vec![0; bytes as usize], ..Media::default() };
    for index in 0..random.between(size.volumes.clone()) as usize {
        let block_count = random.between(size.blocks.clone());
        let new = NewVolume {
            name: format!("volume-{index}"),
            origin_path: format!("/dev/origin-{index}"),
            size_bytes: block_count * 4096,
            logical_block_bytes: 512,
            mode: if random.percent(60) { MODES[0] } else { *random.pick(&MODES) },
            writeback_order: if index % 2 == 1 {
                WritebackOrder::Ordered
            } else {
                WritebackOrder::Coalescing
            },
            settings: VolumeSettings::default(),
        };
        superblock.add_volume(&new).expect("the table has room");
        let volume = superblock.volumes[index].as_mut().expect("just added");
        volume.settings.writeback_percent = *random.pick(&[0, 10, 60, 100]);
        // Some is to be dirty at the end.
        volume.settings.writeback_delay_s = DIRTY_SECONDS_MAX;
        volume.settings.sequential_cutoff_bytes = 0;
        ledger.add_volume(block_count);
        let blocks = (0..block_count).flat_map(|block| block_bytes(ORIGINAL, index, block));
        media.origins.push(blocks.collect());
    }
    let mut put = |offset: u64, bytes: &[u8]| {
        media.cache[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &superblock.encode());
    put(geometry.copy_offset, &superblock.encode());
    let checkpoint = Checkpoint::empty(&geometry).encode(&set_id, &geometry);
    put(geometry.checkpoint_offset, &checkpoint);
    put(geometry.checkpoint_offset + geometry.checkpoint_bytes, &checkpoint);
    (media, geometry)
}

impl Writer {
    fn step(mut self) -> Result<Writer, Halt> {
        let volume = self.random.index(self.ledger.volume_count());
        let slot = VolumeSlot(volume as u16);
        match self.random.below(100) {
            0..=54 => self.write(volume)?,
            55..=79 => {
                let blocks = self.blocks(volume, 64);
                let _ = self.machine.read(slot, blocks.start, blocks.end - blocks.start)?;
            }
            80..=85 => self.write_zeroes(volume)?,
            86..=89 => {
                let _ = self.machine.request(slot, 0..0, RequestKind::Flush)?;
            }
            90..=92 => self.machine.idle(20)?,
            93 => {
                let mode = *self.random.pick(&MODES);
                let _ = self.machine.command(Command::SetMode { volume: slot, mode })?;
            }
            94 => {
                let _ = self.machine.command(Command::Invalidate { volume: slot })?;
            }
            95..=97 => {
                let media = self.machine.kill();
                self.machine = Machine::start(media, self.random.fork())?;
            }
            _ => {
                let _ = self.machine.command(Command::Stop)?;
                let media = self.machine.kill();
                self.machine = Machine::start(media, self.random.fork())?;
            }
        }
        Ok(self)
    }

    /// Some blocks, those at the start more often.
    fn blocks(&mut self, volume: usize, most: u64) -> std::ops::Range<u64> {
        let all = self.ledger.block_count(volume);
        let near = if self.random.percent(50) { all / 8 } else { all };
        let start = self.random.below(near.max(1));
        let count = if self.random.percent(40) { 1 } else { self.random.between(1..=most) };
        start..(start + count).min(all)
    }

    /// Hands a write of new content in; `None` if the volume is served no more.
    fn content(&mut self, volume: usize, blocks: &std::ops::Range<u64>) -> Vec<u8> {
        let write = self.next_write;
        self.next_write += 1;
        self.ledger.submit(volume, blocks.clone(), write);
        blocks.clone().flat_map(|block| block_bytes(write, volume, block)).collect()
    }

    fn write(&mut self, volume: usize) -> Result<(), Halt> {
        let blocks = self.blocks(volume, 64);
        let bytes = self.content(volume, &blocks);
        let answer = self.machine.write(VolumeSlot(volume as u16), blocks.start, &bytes)?;
        if answer.is_ok() {
            self.ledger.acknowledge(volume, blocks);
        }
        Ok(())
    }

    fn write_zeroes(&mut self, volume: usize) -> Result<(), Halt> {
        let blocks = self.blocks(volume, 500);
        self.ledger.submit(volume, blocks.clone(), ZEROES);
        let kind = RequestKind::WriteZeroes { durability: Durability::Completed, may_unmap: true };
        let slot = VolumeSlot(volume as u16);
        if self.machine.request(slot, blocks.clone(), kind)?.is_ok() {
            self.ledger.acknowledge(volume, blocks);
        }
        Ok(())
    }

    fn finish(mut self, geometry: Geometry, end: Option<End>) -> Result<Image, Halt> {
        let by_chance = *self.random.pick(&[End::Stopped, End::Killed, End::Idle]);
        let end = end.unwrap_or(by_chance);
        match end {
            End::Stopped => {
                let _ = self.machine.command(Command::Stop)?;
            }
            End::Killed => {
                // In the middle of a write.
                let volume = self.random.index(self.ledger.volume_count());
                let blocks = self.blocks(volume, 64);
                let bytes = self.content(volume, &blocks);
                self.machine.submit_write(VolumeSlot(volume as u16), blocks.start, &bytes);
                let operations = self.random.below(6) as u32;
                self.machine.settle(operations)?;
            }
            End::Idle => self.machine.idle(WAKEUPS_UNTIL_IDLE)?,
        }
        let media = Media { written: Vec::new(), ..self.machine.kill() };
        let earlier = self.earlier.expect("taken in one of the steps");
        Ok(Image { media, earlier, ledger: self.ledger, end, geometry })
    }
}
