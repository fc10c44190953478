//! Writes of the cache device that go wrong silently, and what of them may be noticed by whom.
//!
//! A run with such a fault has one of it and no other failures, so that its table of promises (at
//! the top of `device.rs`) can be held exactly. The ledger keeps every record that the engine
//! submitted. When a life has ended it looks at the medium with the words of the format document,
//! not with the engine's code for recovery, and decides:
//!
//! - a number up to a "durable through" mark that recovery can see is missing: recovery must
//!   refuse;
//! - records behind every such mark are missing because of the fault: nobody can know, so the
//!   oracle forgives what just these records held, and nothing else;
//! - the fault met a second one (a power cut that tore the only other place): beyond any promise,
//!   the run ends.
//!
//! Everything else must be as if the fault had not been, but for errors: a block whose only copy
//! is gone reads as one.

use std::collections::BTreeSet;

use forebay_engine::error::Place;
use forebay_engine::format::checkpoint::{Checkpoint, SegmentLine, SegmentUse};
use forebay_engine::format::crc32c;
use forebay_engine::format::record::{Entry, EntryKind, RecordHeader};
use forebay_engine::format::superblock::{Geometry, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::io::{Io, IoId, IoKind};
use forebay_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::crash::SET_ID;
use crate::faults::Misplaced;
use crate::media::{BLOCK_SECTORS, Media};
use crate::oracle::{self, Run};
use crate::random::Random;
use crate::stamp::{self, Found, Stamp};
use crate::world::{Halt, World};

/// What a write of the cache device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteClass {
    /// One of the two places of the superblock.
    Superblock,
    /// A part of a checkpoint.
    Checkpoint,
    /// A record of the log.
    Record,
    /// The summary of a segment.
    Summary,
}

/// How a write goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silent {
    /// It, or some of its blocks, is never on the medium.
    Lost,
    /// It lands at another place.
    Misdirected,
}

/// The silent fault of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SilentFault {
    /// The life that has it, counted from zero.
    pub life: u32,
    /// Which writes count.
    pub class: WriteClass,
    /// Which of them goes wrong, counted from zero over the life.
    pub nth: u64,
    /// How.
    pub how: Silent,
}

/// A record that was submitted.
struct Tracked {
    header: RecordHeader,
    moment: u64,
    /// What the sectors of its payload hold.
    sectors: Vec<Found>,
}

/// What a run with a silent fault knows of the cache device.
pub(crate) struct Ledger {
    fault: SilentFault,
    /// The life in which writes were counted, and their number.
    counted: (u32, u64),
    is_done: bool,
    records: Vec<Tracked>,
    /// Blocks that may not hold what they should.
    hits: BTreeSet<u32>,
    /// The write that goes wrong, once it was submitted.
    faulty_io: Option<IoId>,
    /// Serial of the superblock that is missing in one place.
    superblock_hit: Option<u64>,
    /// Number of the checkpoint that is missing.
    checkpoint_hit: Option<u64>,
    /// Why recovery may refuse.
    pub(crate) may_refuse: bool,
    /// Why it must.
    pub(crate) must_refuse: Option<String>,
}

/// What recovery can see of the log behind the newest checkpoint.
#[derive(Default)]
struct Visible {
    /// Numbers that recovery finds.
    found: BTreeSet<u64>,
    /// Highest "durable through" mark of any whole header of the life that the checkpoint began.
    durable_through: u64,
}

impl Ledger {
    pub(crate) fn new(fault: SilentFault) -> Ledger {
        Ledger {
            fault,
            counted: (0, 0),
            is_done: false,
            records: Vec::new(),
            hits: BTreeSet::new(),
            faulty_io: None,
            superblock_hit: None,
            checkpoint_hit: None,
            may_refuse: false,
            must_refuse: None,
        }
    }

    fn is_due(&mut self, class: WriteClass, life: u32) -> bool {
        if self.is_done || class != self.fault.class || life != self.fault.life {
            return false;
        }
        if self.counted.0 != life {
            self.counted = (life, 0);
        }
        self.is_done = self.counted.1 == self.fault.nth;
        self.counted.1 += 1;
        self.is_done
    }

    /// Whether block `at` is one of a record, or of a checkpoint, that recovery cannot do without.
    fn is_vital(&self, geometry: &Geometry, at: u32) -> bool {
        if at < first_log_block(geometry) {
            return true;
        }
        let (segment, block) = locate(geometry, at);
        self.records.iter().any(|r| (r.header.segment, r.header.block) == (segment, block))
    }

    /// Whether the fault can be why a record is missing: it hit its segment before its end.
    fn is_affected(&self, geometry: &Geometry, record: &RecordHeader) -> bool {
        let first = first_block_of(geometry, record.segment);
        let end = first + record.block + 1 + record.payload_blocks;
        self.hits.range(first..end).next().is_some()
    }
}

fn first_log_block(geometry: &Geometry) -> u32 {
    (geometry.segments_offset / BLOCK_BYTES as u64) as u32
}

/// Where a segment begins, in blocks of the cache device.
pub(crate) fn first_block_of(geometry: &Geometry, segment: u32) -> u32 {
    first_log_block(geometry) + segment * geometry.segment_blocks()
}

fn copy_block(geometry: &Geometry) -> u32 {
    (geometry.copy_offset / BLOCK_BYTES as u64) as u32
}

fn locate(geometry: &Geometry, at: u32) -> (u32, u32) {
    let within = at - first_log_block(geometry);
    (within / geometry.segment_blocks(), within % geometry.segment_blocks())
}

/// The area that a block in front of the log belongs to, if it is one of a checkpoint.
fn checkpoint_area(geometry: &Geometry, at: u32) -> Option<u8> {
    let offset = u64::from(at) * BLOCK_BYTES as u64;
    let within = offset.checked_sub(geometry.checkpoint_offset)?;
    let area = within / geometry.checkpoint_bytes;
    (area < 2).then_some(area as u8)
}

fn read_bytes(media: &Media, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    media.read((offset / SECTOR_BYTES as u64) as u32, &mut bytes);
    bytes
}

fn checkpoint_on(media: &Media, geometry: &Geometry, area: u8) -> Option<Checkpoint> {
    let offset = geometry.checkpoint_offset + u64::from(area) * geometry.checkpoint_bytes;
    let bytes = read_bytes(media, offset, geometry.checkpoint_bytes as usize);
    Checkpoint::decode(&SET_ID, geometry, area, &bytes).ok()
}

fn header_on(media: &Media, geometry: &Geometry, segment: u32, block: u32) -> Option<RecordHeader> {
    let at = first_block_of(geometry, segment) + block;
    let bytes = read_bytes(media, u64::from(at) * BLOCK_BYTES as u64, BLOCK_BYTES);
    RecordHeader::decode(&SET_ID, segment, block, &bytes).ok()
}

fn is_whole_on(media: &Media, geometry: &Geometry, header: &RecordHeader) -> bool {
    let first = first_block_of(geometry, header.segment);
    (first + header.block + 1..).zip(&header.crcs).all(|(at, crc)| {
        crc32c(&read_bytes(media, u64::from(at) * BLOCK_BYTES as u64, BLOCK_BYTES)) == *crc
    })
}

/// Records that follow the checkpoint in one segment.
fn chain_on(
    media: &Media,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    segment: u32,
) -> Vec<(RecordHeader, bool)> {
    let line: &SegmentLine = &checkpoint.segments[segment as usize];
    let (generation, mut block, mut previous) = match line.segment_use {
        SegmentUse::Closed => return Vec::new(),
        SegmentUse::Free => (line.generation.0 + 1, 0, 0),
        SegmentUse::Open => (line.generation.0, line.used_blocks, line.last_sequence.0),
    };
    let mut chain = Vec::new();
    while block < geometry.segment_blocks() {
        let Some(header) = header_on(media, geometry, segment, block) else { break };
        let end = block + 1 + header.payload_blocks;
        let follows = header.generation.0 == generation
            && header.recovery_epoch == checkpoint.recovery_epoch
            && header.sequence > checkpoint.sequence
            && header.previous.0 == previous
            && end <= geometry.segment_blocks();
        if !follows {
            break;
        }
        (block, previous) = (end, header.sequence.0);
        let is_whole = is_whole_on(media, geometry, &header);
        chain.push((header, is_whole));
    }
    chain
}

/// What headers behind the chain of a segment say, though their records do not count. Of a segment
/// that was free recovery reads no more than the first block, if that is no record.
fn vouched_behind_on(
    media: &Media,
    geometry: &Geometry,
    checkpoint: &Checkpoint,
    segment: u32,
    chain: &[(RecordHeader, bool)],
) -> Option<u64> {
    let line = &checkpoint.segments[segment as usize];
    let (generation, first) = match (line.segment_use, chain.last()) {
        (SegmentUse::Closed, _) | (SegmentUse::Free, None) => return None,
        (_, Some((last, _))) => (last.generation, last.block + 1 + last.payload_blocks),
        (SegmentUse::Open, None) => (line.generation, line.used_blocks),
    };
    (first..geometry.segment_blocks())
        .filter_map(|block| header_on(media, geometry, segment, block))
        .filter(|header| {
            header.generation == generation
                && header.recovery_epoch == checkpoint.recovery_epoch
                && header.sequence > checkpoint.sequence
        })
        .map(|header| header.durable_through.0)
        .max()
}

/// A free segment that begins with a record of a later life than the checkpoint's.
fn later_life_on(media: &Media, geometry: &Geometry, checkpoint: &Checkpoint) -> Option<u32> {
    (0u32..).zip(&checkpoint.segments).find_map(|(segment, line)| {
        let is_free = line.segment_use == SegmentUse::Free;
        let header = is_free.then(|| header_on(media, geometry, segment, 0)).flatten()?;
        (header.recovery_epoch > checkpoint.recovery_epoch).then_some(segment)
    })
}

impl Visible {
    fn on(media: &Media, geometry: &Geometry, checkpoint: &Checkpoint) -> Visible {
        let segments = 0..geometry.segment_count;
        let chains: Vec<_> =
            segments.map(|segment| chain_on(media, geometry, checkpoint, segment)).collect();
        let followed = chains.iter().flatten().map(|(header, _)| header.durable_through.0);
        let hidden = (0u32..).zip(&chains).filter_map(|(segment, chain)| {
            vouched_behind_on(media, geometry, checkpoint, segment, chain)
        });
        let durable_through = followed.chain(hidden).max().unwrap_or(0);
        let mut visible = Visible { durable_through, ..Visible::default() };
        for chain in &chains {
            for (header, is_whole) in chain {
                if !is_whole && header.sequence.0 > durable_through {
                    break;
                }
                visible.found.insert(header.sequence.0);
                visible.found.extend(header.replaces.iter().map(|sequence| sequence.0));
            }
        }
        visible
    }
}

/// What a write that begins with this block is, and the header of a record.
pub(crate) fn classify(
    geometry: &Geometry,
    first: u32,
    bytes: &[u8],
) -> (WriteClass, Option<RecordHeader>) {
    if checkpoint_area(geometry, first).is_some() {
        return (WriteClass::Checkpoint, None);
    }
    if first < first_log_block(geometry) || first >= copy_block(geometry) {
        return (WriteClass::Superblock, None);
    }
    let (segment, block) = locate(geometry, first);
    match RecordHeader::decode(&SET_ID, segment, block, bytes) {
        Ok(header) => (WriteClass::Record, Some(header)),
        Err(_) => (WriteClass::Summary, None),
    }
}

impl World<'_> {
    /// Takes note of what the engine does to the cache device, and lets the fault happen if it is
    /// its turn.
    pub(crate) fn watch_cache_io(&mut self, io: &Io, moment: u64) {
        let Some(mut ledger) = self.ledger.take() else { return };
        match &io.kind {
            IoKind::Write { offset_bytes, slices } => {
                let mut bytes = Vec::new();
                for range in slices.as_slice() {
                    bytes.extend_from_slice(self.pool.bytes(*range));
                }
                let first = (*offset_bytes / BLOCK_BYTES as u64) as u32;
                let count = (bytes.len() / BLOCK_BYTES) as u32;
                // What is submitted beside the fault may land before it.
                if !self.is_fault_under_way(&ledger) {
                    (first..first + count).for_each(|block| {
                        ledger.hits.remove(&block);
                    });
                }
                let class = self.note_write(&mut ledger, first, &bytes, moment);
                if ledger.is_due(class, self.life.number) {
                    ledger.faulty_io = Some(io.id);
                    self.misplace(&mut ledger, (first, count), &bytes);
                }
            }
            IoKind::Discard { offset_bytes, length_bytes } => {
                let first = (*offset_bytes / BLOCK_BYTES as u64) as u32;
                let end = first + (*length_bytes / BLOCK_BYTES as u64) as u32;
                if !self.is_fault_under_way(&ledger) {
                    ledger.hits.retain(|block| !(first..end).contains(block));
                }
            }
            _ => {}
        }
        self.ledger = Some(ledger);
    }

    fn is_fault_under_way(&self, ledger: &Ledger) -> bool {
        let is_its_life = self.life.number == ledger.fault.life;
        is_its_life && ledger.faulty_io.is_some_and(|id| self.ios.contains_key(&id.0))
    }

    fn note_write(&self, ledger: &mut Ledger, first: u32, bytes: &[u8], moment: u64) -> WriteClass {
        let (class, header) = classify(&self.config.geometry, first, &bytes[..BLOCK_BYTES]);
        let Some(header) = header else { return class };
        let sectors = bytes[BLOCK_BYTES..].chunks_exact(SECTOR_BYTES).map(stamp::read).collect();
        ledger.records.push(Tracked { header, moment, sectors });
        class
    }

    fn misplace(&mut self, ledger: &mut Ledger, (first, count): (u32, u32), bytes: &[u8]) {
        let geometry = self.config.geometry;
        let mut random = self.random.fork();
        let misplaced = match ledger.fault.how {
            Silent::Lost => choose_lost(count, &mut random),
            Silent::Misdirected => Misplaced::Misdirected {
                to_block: choose_place(&geometry, first, count, &mut random),
            },
        };
        let mut hits: Vec<u32> = match misplaced {
            Misplaced::Lost { first: from, count } => {
                (first + from..first + from + count).collect()
            }
            Misplaced::Misdirected { to_block } => {
                // What was to be there and is not, and what was there and is no more.
                let there = to_block..to_block + count;
                (first..first + count).chain(there).collect()
            }
        };
        hits.sort_unstable();
        self.say(format!("block {first}+{count} of the cache device goes wrong: {misplaced:?}"));
        self.stats.silent_faults += 1;
        for &block in &hits {
            self.note_hit(ledger, block, (first, bytes));
        }
        ledger.hits.extend(hits);
        self.cache.misplace_next(misplaced);
    }

    /// What a block that is hit is worth.
    fn note_hit(&mut self, ledger: &mut Ledger, block: u32, (first, bytes): (u32, &[u8])) {
        let geometry = self.config.geometry;
        let media = self.cache.media();
        let area = checkpoint_area(&geometry, block);
        if block < first_log_block(&geometry) && area.is_none() || block >= copy_block(&geometry) {
            let written = Superblock::decode(Place::Superblock, bytes).ok();
            let serial = written.map(|superblock| superblock.serial);
            let before = self.read_superblock().ok().map(|superblock| superblock.serial);
            ledger.superblock_hit = ledger.superblock_hit.max(serial).max(before);
            return;
        }
        if let Some(area) = area {
            let is_lost = checkpoint_area(&geometry, first) == Some(area);
            let newest = [0, 1].map(|area| checkpoint_on(media, &geometry, area).map(|c| c.id));
            let there = checkpoint_on(media, &geometry, area).map(|c| c.id);
            let newest = newest.into_iter().flatten().max().map(|id| id + 1);
            ledger.checkpoint_hit = ledger.checkpoint_hit.max(if is_lost { newest } else { there });
        }
        ledger.may_refuse |= ledger.is_vital(&geometry, block);
        self.may_have_poison = true;
    }

    /// A life has ended: what does the next recovery find?
    pub(crate) fn judge_medium(&mut self) -> Result<(), Halt> {
        let Some(mut ledger) = self.ledger.take() else { return Ok(()) };
        let judged = if ledger.is_done { self.judge(&mut ledger) } else { Ok(()) };
        self.stats.damaged_starts += u64::from(ledger.must_refuse.is_some());
        self.ledger = Some(ledger);
        judged
    }

    fn judge(&mut self, ledger: &mut Ledger) -> Result<(), Halt> {
        let geometry = self.config.geometry;
        let media = self.cache.media();
        ledger.must_refuse = None;
        if let Some(serial) = ledger.superblock_hit {
            let start = read_bytes(media, 0, SUPERBLOCK_BYTES);
            let copy = read_bytes(media, geometry.copy_offset, SUPERBLOCK_BYTES);
            let found = Superblock::choose(&start, &copy).map(|superblock| superblock.serial);
            if found.is_err() || found.is_ok_and(|found| found < serial) {
                return self.beyond("the other place of the superblock is torn");
            }
        }
        let areas = [0, 1].map(|area| checkpoint_on(media, &geometry, area));
        let newest = areas.into_iter().flatten().max_by_key(|checkpoint| checkpoint.id);
        let Some(checkpoint) = newest else {
            ledger.must_refuse = Some("neither checkpoint is valid".into());
            return Ok(());
        };
        let hit = ledger.checkpoint_hit.unwrap_or(0);
        if checkpoint.id + 1 < hit {
            return self.beyond("the other checkpoint is torn");
        }
        let is_older = checkpoint.id < hit;
        let visible = Visible::on(media, &geometry, &checkpoint);
        let missing: Vec<&Tracked> = ledger
            .records
            .iter()
            .filter(|record| {
                let header = &record.header;
                header.recovery_epoch >= checkpoint.recovery_epoch
                    && header.sequence > checkpoint.sequence
                    && !(header.recovery_epoch == checkpoint.recovery_epoch
                        && visible.found.contains(&header.sequence.0))
            })
            .collect();
        let is_vouched_for = |record: &&&Tracked| {
            record.header.recovery_epoch == checkpoint.recovery_epoch
                && record.header.sequence.0 <= visible.durable_through
        };
        if let Some(record) = missing.iter().find(is_vouched_for) {
            ledger.must_refuse = Some(format!(
                "record {:?} of segment {} is missing, and all up to {} were durable",
                record.header.sequence, record.header.segment, visible.durable_through
            ));
            return Ok(());
        }
        if let Some(segment) = later_life_on(media, &geometry, &checkpoint) {
            ledger.must_refuse = Some(format!("segment {segment} is of a later life"));
            return Ok(());
        }
        let records: Vec<usize> = (0..ledger.records.len())
            .filter(|index| {
                let record = &ledger.records[*index];
                missing.iter().any(|other| std::ptr::eq(*other, record))
                    && (is_older || ledger.is_affected(&geometry, &record.header))
            })
            .collect();
        for index in records {
            self.forgive(ledger, index);
        }
        Ok(())
    }

    fn beyond(&mut self, why: &str) -> Result<(), Halt> {
        self.say(format!("beyond any promise: {why}"));
        Err(Halt::Beyond)
    }

    /// A record is missing and nobody can know: what it held need not be there.
    fn forgive(&mut self, ledger: &Ledger, index: usize) {
        let Tracked { header, moment, sectors } = &ledger.records[index];
        self.stats.forgiven_records += 1;
        self.say(format!("record {:?} is taken for a torn tail", header.sequence));
        let mut payload = sectors.iter();
        for entry in &header.entries {
            match entry.kind {
                EntryKind::Data => self.forgive_payload(entry, &mut payload, *moment),
                EntryKind::Mark { .. } => {}
                EntryKind::Drop { segment, generation } => {
                    // What it dropped comes back, though the origin may have outrun it.
                    for dropped in &ledger.records {
                        let dropped = &dropped.header;
                        if (dropped.segment, dropped.generation) == (segment, generation) {
                            for entry in &dropped.entries {
                                self.forgive_entry(entry, *moment);
                            }
                        }
                    }
                }
                _ => self.forgive_entry(entry, *moment),
            }
        }
    }

    /// Just the values that the payload of an entry has; zeroes do not say whose they are.
    fn forgive_payload(
        &mut self,
        entry: &Entry,
        payload: &mut std::slice::Iter<Found>,
        moment: u64,
    ) {
        let volume = self.volume_of(entry);
        let first = entry.start as u32 * BLOCK_SECTORS;
        let sectors = first..first + entry.payload_blocks() * BLOCK_SECTORS;
        for (sector, found) in sectors.zip(payload) {
            match (found, volume) {
                (Found::Stamp(Stamp { volume, sector, write }), _) => {
                    self.oracle.forgive(usize::from(*volume), *sector, Some(*write), moment);
                }
                // The last block of a volume may end behind it.
                (Found::Zero, Some(volume)) if sector < self.oracle.sectors(volume) => {
                    self.oracle.forgive(volume, sector, Some(oracle::ZERO), moment);
                }
                (Found::Zero | Found::Other, _) => {}
            }
        }
    }

    fn volume_of(&self, entry: &Entry) -> Option<usize> {
        let superblock = self.read_superblock().ok()?;
        let (_, stored) = superblock.slots().find(|(_, volume)| volume.id == entry.volume)?;
        self.volumes.iter().position(|volume| volume.name == stored.name)
    }

    fn forgive_entry(&mut self, entry: &Entry, moment: u64) {
        let Some(volume) = self.volume_of(entry) else { return };
        let sectors = self.oracle.sectors(volume);
        let first = (entry.start as u32 * BLOCK_SECTORS).min(sectors);
        let count = (entry.block_count.saturating_mul(BLOCK_SECTORS)).min(sectors - first);
        let run = Run { volume, first, count };
        for sector in run.first..run.first + run.count {
            self.oracle.forgive(volume, sector, None, moment);
        }
    }
}

fn choose_lost(count: u32, random: &mut Random) -> Misplaced {
    match random.below(10) {
        0..=5 => Misplaced::Lost { first: 0, count },
        6 => Misplaced::Lost { first: 0, count: 1 },
        _ => {
            let first = random.below(u64::from(count)) as u32;
            let count = random.between(1..=u64::from(count - first)) as u32;
            Misplaced::Lost { first, count }
        }
    }
}

/// Where a misdirected write lands: anywhere, near, in another segment, or where metadata is.
fn choose_place(geometry: &Geometry, first: u32, count: u32, random: &mut Random) -> u32 {
    let end = (geometry.device_bytes / BLOCK_BYTES as u64) as u32;
    let last = u64::from(end - count);
    let segment = u64::from(geometry.segment_blocks());
    let place = match random.below(10) {
        0..=3 => random.below(last + 1),
        4..=6 => (u64::from(first) + random.below(64)).saturating_sub(32),
        7 => (u64::from(first) + segment * random.between(1..=3)).saturating_sub(2 * segment),
        8 => random.below(u64::from(first_log_block(geometry))),
        _ => u64::from(copy_block(geometry)),
    };
    place.min(last) as u32
}
