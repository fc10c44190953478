//! Every prefix of a recording through recovery.
//!
//! At each place of a recording the devices are made as a crash there could have left them, the
//! engine recovers them, everything is read, the process dies or stops, the engine recovers again,
//! and everything is read once more: it must be allowed, and the same both times. Of a volume that
//! stayed in writethrough, the origin alone must be allowed as well.
//!
//! Places are taken only where the next entry is about a device, or at the end: the devices do not
//! change between such places, and the last one before a change knows most answers, so it is the
//! strictest.

use forebay_engine::event::Command;
use forebay_engine::units::VolumeSlot;
use forebay_host::recording::Entry;
use forebay_sim::fuzz::machine::{Halt, Machine, Media};
use forebay_sim::random::Random;

use super::images::{Fate, Images};
use super::judge::{Crash, Judge};

const BLOCK_BYTES: u64 = 4096;
/// Blocks read at once.
const READ_BLOCKS: u64 = 128;
/// Wake-ups between the two passes, for writeback and reclaim to go on.
const IDLE_WAKEUPS: u32 = 20;

/// What is replayed.
pub(super) struct Recording {
    /// The devices before.
    pub(super) base: Media,
    pub(super) entries: Vec<Entry>,
    /// Volumes that were in writethrough from begin to end.
    pub(super) writethrough: Vec<usize>,
}

/// Which places are replayed, and what is done there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Every how many places.
    pub(super) stride: usize,
    /// What chance begins with.
    pub(super) seed: u64,
}

/// What a replay did.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    pub(super) places: usize,
    pub(super) deaths: usize,
    pub(super) power_cuts: usize,
}

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    /// Entries of the prefix.
    pub(super) entries: usize,
    pub(super) crash: Crash,
    pub(super) fate: Fate,
    pub(super) text: String,
}

/// A replay under way.
struct Replay<'a> {
    recording: &'a Recording,
    images: Images<'a>,
    judge: Judge<'a>,
    tally: Tally,
    seed: u64,
}

/// Whether the devices may change with this entry.
fn is_about_a_device(entry: &Entry) -> bool {
    matches!(entry, Entry::Begin { .. } | Entry::End { .. })
}

impl Recording {
    /// Replays the recording. The outer error is one of the recording itself.
    pub(super) fn replay(&self, extent: Extent) -> Result<Result<Tally, Box<Violation>>, String> {
        let contents = contents_of(self.base.clone())?;
        let mut replay = Replay {
            recording: self,
            images: Images::new(&self.entries, self.base.clone()),
            judge: Judge::new(&self.entries, contents),
            tally: Tally::default(),
            seed: extent.seed,
        };
        let mut place = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            if is_about_a_device(entry) {
                if place % extent.stride == 0
                    && let Err(violation) = replay.crash_in_all_ways(index)
                {
                    return Ok(Err(violation));
                }
                place += 1;
            }
            replay.advance(index, entry)?;
        }
        Ok(replay.crash_in_all_ways(self.entries.len()).map(|()| replay.tally))
    }

    /// The devices after the last entry, compared with the real ones.
    pub(super) fn compare(&self, found: &Media) -> Result<(), String> {
        let mut images = Images::new(&self.entries, self.base.clone());
        for (index, entry) in self.entries.iter().enumerate() {
            advance_images(&mut images, index, entry)?;
        }
        images.compare(found)
    }

    /// How many places there are.
    pub(super) fn place_count(&self) -> usize {
        self.entries.iter().filter(|entry| is_about_a_device(entry)).count() + 1
    }
}

/// What the volumes hold at first, as the engine reads it.
fn contents_of(base: Media) -> Result<Vec<Vec<u8>>, String> {
    let lengths: Vec<u64> = base.origins.iter().map(|origin| origin.len() as u64).collect();
    let describe = |halt: Halt| format!("the devices before the recording: {halt:?}");
    let mut machine = Machine::start(base, Random::new(0)).map_err(describe)?;
    let mut contents = Vec::new();
    for (volume, length) in lengths.iter().enumerate() {
        let mut content = Vec::new();
        read_volume(&mut machine, volume, *length, &mut |_, bytes| {
            content.extend_from_slice(bytes);
            Ok(())
        })?;
        contents.push(content);
    }
    Ok(contents)
}

/// Takes a piece of a volume: from which byte on, and what was found.
type Take<'a> = &'a mut dyn FnMut(usize, &[u8]) -> Result<(), String>;

/// Hands on what a volume holds, piece by piece.
fn read_volume(
    machine: &mut Machine,
    volume: usize,
    length: u64,
    take: Take<'_>,
) -> Result<(), String> {
    let blocks = length / BLOCK_BYTES;
    for start in (0..blocks).step_by(READ_BLOCKS as usize) {
        let count = READ_BLOCKS.min(blocks - start);
        let found = machine.read(VolumeSlot(volume as u16), start, count);
        let bytes = found
            .map_err(|halt| format!("{halt:?}"))?
            .map_err(|error| format!("volume {volume}, blocks {start}+{count}: {error:?}"))?;
        take((start * BLOCK_BYTES) as usize, &bytes)?;
    }
    Ok(())
}

fn advance_images(images: &mut Images<'_>, index: usize, entry: &Entry) -> Result<(), String> {
    match entry {
        Entry::Device { role, spec, .. } => images.add_device(*role, spec)?,
        Entry::Begin { device, operation } => images.begin(index, *device, operation),
        Entry::End { begin, result: Ok(()) } => images.end(index, *begin as usize),
        Entry::End { begin, result: Err(error) } => {
            // What a failed operation leaves is not modelled here; the simulator does that.
            return Err(format!("the operation of entry {begin} failed: {error:?}"));
        }
        Entry::Export { .. } | Entry::Request { .. } | Entry::Answer { .. } => {}
    }
    Ok(())
}

impl Replay<'_> {
    fn advance(&mut self, index: usize, entry: &Entry) -> Result<(), String> {
        advance_images(&mut self.images, index, entry)?;
        match entry {
            Entry::Export { name, .. } => self.judge.add_export(name)?,
            Entry::Request { export, operation, .. } => self.judge.take(index, *export, operation),
            Entry::Answer { request, result: Ok(()) } => {
                self.judge.answer(index, *request as usize);
            }
            Entry::Answer { request, result: Err(error) } => {
                return Err(format!("the request of entry {request} failed: {error:?}"));
            }
            Entry::Device { .. } | Entry::Begin { .. } | Entry::End { .. } => {}
        }
        Ok(())
    }

    /// All crashes after so many entries that may differ.
    fn crash_in_all_ways(&mut self, entries: usize) -> Result<(), Box<Violation>> {
        self.tally.places += 1;
        for crash in [Crash::Death, Crash::PowerCut] {
            // A power cut that takes nothing leaves the devices as a death does that lets
            // everything land, and more is promised after a death.
            let fates: &[Fate] = match (crash, self.images.is_in_doubt(crash)) {
                (Crash::Death, true) => &[Fate::None, Fate::Some, Fate::All],
                (Crash::Death, false) => &[Fate::None],
                (Crash::PowerCut, true) => &[Fate::None, Fate::Some],
                (Crash::PowerCut, false) => &[],
            };
            for fate in fates {
                self.crash(entries, crash, *fate)
                    .map_err(|text| Box::new(Violation { entries, crash, fate: *fate, text }))?;
            }
        }
        Ok(())
    }

    fn crash(&mut self, entries: usize, crash: Crash, fate: Fate) -> Result<(), String> {
        match crash {
            Crash::Death => self.tally.deaths += 1,
            Crash::PowerCut => self.tally.power_cuts += 1,
        }
        let mut random = Random::new(self.seed ^ (entries as u64) << 8 ^ (fate as u64));
        let media = self.images.crash(crash, fate, &mut random);
        for volume in &self.recording.writethrough {
            let origin = &media.origins[*volume];
            self.judge
                .check(crash, *volume, 0, origin)
                .map_err(|text| format!("the origin alone: {text}"))?;
        }
        let media = self.recover_twice(crash, media, &mut random)?;
        self.images.take_back(crash, media);
        Ok(())
    }

    fn recover_twice(
        &self,
        crash: Crash,
        media: Media,
        random: &mut Random,
    ) -> Result<Media, String> {
        let start = |media, random| {
            Machine::start(media, random).map_err(|halt| format!("recovery: {halt:?}"))
        };
        let mut machine = start(media, random.fork())?;
        let mut first: Vec<Vec<u8>> = Vec::new();
        for volume in 0..self.judge.volume_count() {
            let length = self.judge.volume_bytes(volume);
            let mut content = Vec::with_capacity(length as usize);
            read_volume(&mut machine, volume, length, &mut |offset, bytes| {
                content.extend_from_slice(bytes);
                self.judge.check(crash, volume, offset, bytes)
            })?;
            first.push(content);
        }
        machine.idle(IDLE_WAKEUPS).map_err(|halt| format!("after recovery: {halt:?}"))?;
        if random.percent(50) {
            let stopped = machine.command(Command::Stop);
            let stopped = stopped.map_err(|halt| format!("stop: {halt:?}"))?;
            stopped.map_err(|error| format!("stop: {error:?}"))?;
        }
        let mut machine = start(machine.kill(), random.fork())?;
        for (volume, content) in first.iter().enumerate() {
            let length = content.len() as u64;
            read_volume(&mut machine, volume, length, &mut |offset, bytes| {
                let before = &content[offset..offset + bytes.len()];
                if before == bytes {
                    return Ok(());
                }
                let differs = before.iter().zip(bytes).position(|(before, now)| before != now);
                let at = offset + differs.expect("they differ");
                Err(format!("volume {volume}: byte {at} changed without a write"))
            })?;
        }
        Ok(machine.kill())
    }
}
