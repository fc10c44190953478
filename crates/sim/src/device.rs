//! A simulated device: operations that take time, end in any order, fail, and die with the process
//! or the power.
//!
//! # The fault model
//!
//! - **Volatile cache.** A write that completed is visible, but not durable. A flush makes durable
//!   what the engine knew to be complete when it submitted the flush, and perhaps more. Between
//!   flushes any write may be lost or overtake another, in units of a sector or of a block
//!   ([`AtomicUnit`]); a write of several units can survive in part. A device may also have no
//!   volatile cache.
//! - **Time.** Two runs of three: all operations run at once, and each lasts as long as chance and
//!   a [`Speed`] say. In the others a model of a hard disk, an SSD or a remote volume decides, with
//!   its queue, its seeks and its channels ([`forebay_device_model`]). In both about one in twenty
//!   takes some thirty times longer. A write lands in part on the way and wholly at its end; a
//!   read samples the device on the way or at its end. Overlapping writes land in any order.
//! - **Process death.** Unfinished writes land wholly, in part, or not, in any order; finished ones
//!   stay, still volatile. Nothing lands later: the successor starts afterwards.
//! - **Power cut.** The same, and then each unflushed unit keeps any one of its writes or none: by
//!   [`PowerStyle`] none survive, all survive, random, or random with rubbish in some units that
//!   were not flushed.
//! - **Failed writes** may have landed all the same, in part or wholly; what landed stays visible
//!   and is never counted as complete by a flush of the same life, unless the device was detached
//!   and attached again: who opens it cannot know, and a flush is all there is to be sure.
//! - **Failed reads** are transient and leave rubbish in the buffer. **Failed flushes** leave what
//!   they should have covered visible, but about half of it is never made durable by a later flush,
//!   nor by one that was under way at the same time; so it is with what had landed and was reported
//!   only afterwards.
//! - **Timeouts** are failures that take seconds. A write that timed out lands no later than the
//!   answer. **Stalls** end well, but seconds late.
//! - **Outages**: for a while, and again later, every operation ends well only when it is over, or
//!   fails at once in a way that passes; flushes with the others or not.
//! - **Bad ranges** fail as long as the life lasts: all reads until the block is written, all
//!   writes, or both.
//! - **Bursts**: several writes fail one after the other. **Decay**: a read finds one of its blocks
//!   gone bad, and all that follow do, until the block is written.
//! - **Gone**: from some operation on everything fails, for a while or for the rest of the life.
//!   The device then loses unflushed writes as in a power cut: at the end of the life, or when the
//!   host finds it back. It may go again, also while it is being recovered.
//! - **Discards** leave zeroes or the old content, by block. **Rot** flips bits in durable blocks
//!   or makes them unreadable, on the cache device only ([`crate::config::Rot`]).
//! - **Lost writes** are reported as done and flushed, and some of their blocks, or all, are never
//!   on the medium. **Misdirected writes** land somewhere else on the device, in whole blocks; the
//!   intended place keeps its old content. Both on the cache device only ([`crate::silent`]); a run
//!   has one of them and no other failures.
//! - Not modelled: writes that land after their failure was reported, data that changes back
//!   visibly after a failed flush, reads of the right place that return another's data once and not
//!   again, any silent fault of an origin, which carries nothing of ours.
//!
//! # What one silent fault of the cache device may do
//!
//! *Lost* stands for rot, a lost write, and the place that a misdirected write missed or hit.
//! "Survived": as if it had not been. "Reported": an I/O error for the block, or the start is
//! refused and nothing is written. Never does a read return what the sector may not hold.
//!
//! | lost | must be | found by |
//! | --- | --- | --- |
//! | one place of the superblock | survived | serial, checksum |
//! | a summary | survived: the headers say the same | checksum, generation |
//! | payload of a clean copy | survived: read from the origin | its checksum |
//! | payload of a dirty copy | reported: an error until it is written | its checksum |
//! | the newest checkpoint | survived, or reported | recovery epoch, missing numbers |
//! | the older checkpoint | survived | not needed |
//! | a header that the checkpoint counts | survived by the summary, else reported | the chain |
//! | a header behind it, vouched for | reported | a missing number |
//! | a header behind it, not vouched for | beyond: see below | nothing |
//! | payload behind it, vouched for | as payload of its copy | its checksum |
//! | payload behind it, not vouched for | beyond: see below | nothing |
//!
//! *Vouched for*: a record that recovery can see says that it was durable. The others are the same
//! bytes as a torn tail. What they and those behind them in the segment held may be lost, though it
//! was flushed; its blocks then have the values before, as after a power cut. A place that keeps an
//! older copy is no better: generation, epoch and number are old there. A record at a wrong place
//! is not believed, since it says where it belongs; a checkpoint is as good in either area.
//!
//! Beyond any promise, too, because they are two faults: one place of the superblock lost, and a
//! power cut that tears the other in the next update (the table then is older, or gone); the newest
//! checkpoint lost, and the next one torn (mostly refused by the missing numbers; but a log whose
//! segments were all closed and used again since has none to show).
//!
//! The oracle holds exactly that: it works out from the medium what recovery can see.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_engine::io::{Io, IoError, IoId, IoKind, IoResult, Slices};
use forebay_engine::payload::BufferRange;
use forebay_engine::units::{BLOCK_BYTES, SECTOR_BYTES};

use crate::faults::{Access, Failures, Fate};
pub use crate::faults::{
    BadKind, BadRange, Burst, Decay, FaultRates, Gone, Misplaced, Outage, OutageKind,
};
pub use crate::media::{AtomicUnit, Fresh, PowerStyle, WriteCache};
use crate::media::{BLOCK_SECTORS, Content, Media, Part, mask};
use crate::pace::{Lasts, Paced, Pacer};
pub use crate::pace::{Pace, Speed};
use crate::payload::BufferPool;
use crate::random::Random;

/// A device as it is bought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceOptions {
    /// Size; a multiple of 512.
    pub size_bytes: u64,
    /// What a power cut cannot tear.
    pub atomic: AtomicUnit,
    /// Whether completed writes can be lost.
    pub write_cache: WriteCache,
    /// How fast it is.
    pub pace: Pace,
    /// What it holds at first.
    pub fresh: Fresh,
}

/// How a life ends for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The process died.
    Process,
    /// The power went.
    Power(PowerStyle),
}

/// When an operation takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// [`Device::advance`] is due.
    pub middle: u64,
    /// [`Device::finish`] is due; `None` if [`Device::take_turn`] will tell.
    pub end: Option<u64>,
}

/// Longest time until an operation of a model has its effect on the way: as long as a transfer of
/// a hard disk.
const MIDDLE_NS_MAX: u64 = 10_000_000;

enum Work {
    /// Samples the device on the way if `is_early`; `is_sampled` when it has.
    Read {
        first_sector: u32,
        slices: Slices,
        is_early: bool,
        is_sampled: bool,
    },
    Write {
        first_sector: u32,
        slices: Option<Slices>,
        pieces: Vec<Piece>,
    },
    Flush {
        before: u64,
    },
}

struct Piece {
    part: Part,
    /// The block where it lands; none if it is lost.
    target: Option<u32>,
    content: Content,
    has_landed: bool,
}

struct Operation {
    work: Work,
    failure: Option<IoError>,
    began: u64,
    late_ns: u64,
}

/// A simulated device.
pub struct Device {
    options: DeviceOptions,
    media: Media,
    failures: Failures,
    /// What becomes of the next write.
    misplaced: Option<Misplaced>,
    /// How much later the next operation ends.
    delay_ns: u64,
    pacer: Pacer,
    operations: BTreeMap<u64, Operation>,
    submitted_count: u64,
    random: Random,
}

impl Device {
    /// A new device.
    #[must_use]
    pub fn new(options: DeviceOptions, mut random: Random) -> Device {
        assert_eq!(options.size_bytes % SECTOR_BYTES as u64, 0);
        let blocks = options.size_bytes.div_ceil(BLOCK_BYTES as u64) as u32;
        let media = Media::new(blocks, options.fresh, options.atomic, options.write_cache);
        Device {
            options,
            media,
            failures: Failures::default(),
            misplaced: None,
            delay_ns: 0,
            pacer: Pacer::new(options.pace, options.size_bytes, random.fork()),
            operations: BTreeMap::new(),
            submitted_count: 0,
            random,
        }
    }

    /// Size and properties.
    #[must_use]
    pub fn options(&self) -> &DeviceOptions {
        &self.options
    }

    /// Sets the failures to come; what was counted before is forgotten.
    pub fn set_faults(&mut self, faults: FaultRates) {
        self.failures = Failures::new(faults);
        for block in self.failures.unreadable(self.media.block_count()) {
            self.media.make_unreadable(block);
        }
    }

    /// The next write goes wrong without anybody being told.
    pub fn misplace_next(&mut self, misplaced: Misplaced) {
        self.misplaced = Some(misplaced);
    }

    /// The next operation ends so much later than otherwise.
    pub fn delay_next(&mut self, delay_ns: u64) {
        self.delay_ns = delay_ns;
    }

    /// Operations submitted since the device was made.
    #[must_use]
    pub fn submitted_count(&self) -> u64 {
        self.submitted_count
    }

    /// Operations under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Failures since [`Device::set_faults`].
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures.count
    }

    /// Operations that were seconds late and ended well, since [`Device::set_faults`].
    #[must_use]
    pub fn stalls(&self) -> u32 {
        self.failures.stalls
    }

    /// Whether the device was gone at some time since [`Device::set_faults`].
    #[must_use]
    pub fn was_gone(&self) -> bool {
        self.failures.was_gone
    }

    /// Whether the device went and does not come back in this life.
    #[must_use]
    pub fn is_gone_for_good(&self) -> bool {
        self.failures.is_gone_for_good()
    }

    /// Whether the device went and is not back at this time.
    #[must_use]
    pub fn is_still_gone(&self, now: u64) -> bool {
        self.failures.is_still_gone(now)
    }

    /// The device comes back without what it had not flushed. Nothing is under way.
    pub fn lose_unflushed(&mut self, style: PowerStyle) {
        assert!(self.operations.is_empty());
        self.media.cut_power(style, &mut self.random);
    }

    /// What is on the device.
    #[must_use]
    pub fn media(&self) -> &Media {
        &self.media
    }

    /// What is on the device, to be changed behind the engine's back.
    pub fn media_mut(&mut self) -> &mut Media {
        &mut self.media
    }

    /// Starts an operation; `moment` orders it among completions and flushes.
    pub fn submit(&mut self, now: u64, moment: u64, io: &Io, pool: &BufferPool) -> Times {
        let work = self.work(moment, io, pool);
        let (access, blocks) = match &work {
            Work::Read { first_sector, slices, .. } => {
                let (first, count) = block_range(*first_sector, slices.total_bytes());
                (Access::Read, first..first + count)
            }
            Work::Write { pieces, .. } => match (pieces.first(), pieces.last()) {
                (Some(first), Some(last)) => (Access::Write, first.part.block..last.part.block + 1),
                _ => (Access::Write, 0..0),
            },
            Work::Flush { .. } => (Access::Flush, 0..0),
        };
        let count = self.media.block_count();
        let at = (now, self.submitted_count);
        let fate = self.failures.choose(at, access, &blocks, count, &mut self.random);
        let late_ns = fate.late_ns + std::mem::take(&mut self.delay_ns);
        let fate = Fate { late_ns, ..fate };
        if access == Access::Read
            && let Some(block) = self.failures.decayed(at.1, &blocks, &mut self.random)
        {
            self.media.make_unreadable(block);
        }
        let blocks = match &work {
            Work::Read { slices, .. } => slices.total_bytes() / BLOCK_BYTES as u64,
            Work::Write { pieces, .. } => pieces.len() as u64,
            Work::Flush { .. } => 0,
        };
        let times = self.times(now, io, blocks, fate);
        self.submitted_count += 1;
        let Fate { failure, late_ns } = fate;
        let operation = Operation { work, failure, began: now, late_ns };
        let earlier = self.operations.insert(io.id.0, operation);
        assert!(earlier.is_none(), "{:?} names two operations", io.id);
        times
    }

    fn work(&mut self, moment: u64, io: &Io, pool: &BufferPool) -> Work {
        match &io.kind {
            IoKind::Read { offset_bytes, slices } => {
                let first_sector = self.first_sector(*offset_bytes, slices.total_bytes());
                let is_early = self.random.percent(50);
                check_slices(slices, pool);
                Work::Read { first_sector, slices: slices.clone(), is_early, is_sampled: false }
            }
            IoKind::Write { offset_bytes, slices } => {
                let first_sector = self.first_sector(*offset_bytes, slices.total_bytes());
                check_slices(slices, pool);
                let mut pieces = capture(first_sector, slices, pool);
                if let Some(misplaced) = self.misplaced.take() {
                    misplace(&mut pieces, misplaced);
                }
                Work::Write { first_sector, slices: Some(slices.clone()), pieces }
            }
            IoKind::Flush => Work::Flush { before: moment },
            IoKind::Discard { offset_bytes, length_bytes } => {
                let first_sector = self.first_sector(*offset_bytes, *length_bytes);
                let mut pieces = zero_pieces(first_sector, *length_bytes);
                pieces.retain(|_| self.random.percent(70));
                Work::Write { first_sector, slices: None, pieces }
            }
            IoKind::WriteZeroes { offset_bytes, length_bytes, .. } => {
                let first_sector = self.first_sector(*offset_bytes, *length_bytes);
                let pieces = zero_pieces(first_sector, *length_bytes);
                Work::Write { first_sector, slices: None, pieces }
            }
        }
    }

    fn first_sector(&self, offset_bytes: u64, length_bytes: u64) -> u32 {
        let sector = SECTOR_BYTES as u64;
        assert!(length_bytes > 0, "an operation without length");
        assert!(offset_bytes.is_multiple_of(sector) && length_bytes.is_multiple_of(sector));
        let end = offset_bytes.checked_add(length_bytes).expect("no overflow");
        let size = self.options.size_bytes;
        assert!(end <= size, "operation at {offset_bytes} ends at {end}, behind {size}");
        (offset_bytes / sector) as u32
    }

    fn times(&mut self, now: u64, io: &Io, blocks: u64, fate: Fate) -> Times {
        match self.pacer.begin(now, io.id.0, &io.kind, blocks) {
            Lasts::For(lasts) => {
                let lasts = lasts + fate.late_ns;
                Times { middle: now + self.random.below(lasts + 1), end: Some(now + lasts) }
            }
            // An effect on the way that is due after the end counts as coming at the end.
            Lasts::Open => Times { middle: now + self.random.below(MIDDLE_NS_MAX), end: None },
        }
    }

    /// When [`Device::take_turn`] is due, if that is news.
    pub fn next_turn(&mut self) -> Option<u64> {
        self.pacer.next_turn()
    }

    /// Lets the model of the device come further: operations and when each of them ends, for whom
    /// [`Device::submit`] could not tell.
    pub fn take_turn(&mut self, now: u64) -> Vec<(IoId, u64)> {
        let Device { pacer, operations, .. } = self;
        let ended = pacer.take_turn(now, |id| operations[&id].began);
        ended
            .into_iter()
            .map(|Paced { id, at }| (IoId(id), now.max(at + operations[&id].late_ns)))
            .collect()
    }

    /// Part of the operation takes effect.
    pub fn advance(&mut self, id: IoId, pool: &mut BufferPool) {
        let Some(operation) = self.operations.get_mut(&id.0) else { return };
        match &mut operation.work {
            Work::Read { first_sector, slices, is_early, is_sampled } if *is_early => {
                *is_sampled = true;
                fill(&self.media, *first_sector, slices, pool);
            }
            Work::Write { pieces, .. } => {
                let stops_early = operation.failure.is_some() && self.random.percent(50);
                for piece in pieces.iter_mut() {
                    if !stops_early && self.random.percent(50) {
                        land(&mut self.media, id.0, piece);
                    }
                }
            }
            _ => {}
        }
    }

    /// The operation ends; `moment` is when the engine learns of it.
    pub fn finish(&mut self, id: IoId, moment: u64, pool: &mut BufferPool) -> IoResult {
        let operation = self.operations.remove(&id.0).expect("it is under way");
        match operation.work {
            Work::Read { first_sector, slices, is_sampled, .. } => {
                let failure = operation.failure.or_else(|| {
                    let blocks = block_range(first_sector, slices.total_bytes());
                    let bad = self.media.is_unreadable(blocks.0, blocks.1);
                    self.failures.count += u32::from(bad);
                    bad.then_some(IoError::Media)
                });
                match failure {
                    Some(error) => {
                        spoil(&slices, pool);
                        return Err(error);
                    }
                    None if !is_sampled => fill(&self.media, first_sector, &slices, pool),
                    None => {}
                }
            }
            Work::Write { first_sector, slices, mut pieces } => {
                if let Some(slices) = &slices {
                    assert_unchanged(first_sector, slices, &pieces, pool);
                }
                if let Some(error) = operation.failure {
                    let percent = *self.random.pick(&[0, 0, 50, 100]);
                    for piece in &mut pieces {
                        if self.random.percent(percent) {
                            land(&mut self.media, id.0, piece);
                        }
                    }
                    return Err(error);
                }
                pieces.iter_mut().for_each(|piece| land(&mut self.media, id.0, piece));
                let landed = pieces.iter().filter_map(|piece| piece.target);
                self.media.complete(id.0, landed, moment);
            }
            Work::Flush { before } => match operation.failure {
                None => self.media.flush(before),
                Some(error) => {
                    self.media.fail_flush(before, &mut self.random);
                    return Err(error);
                }
            },
        }
        Ok(())
    }

    /// The process or the power went: what was under way lands or not, and volatile writes stay or
    /// go.
    pub fn lose(&mut self, loss: Loss, moment: u64) {
        self.pacer.restart();
        let mut operations: Vec<_> = std::mem::take(&mut self.operations).into_iter().collect();
        self.random.shuffle(&mut operations);
        for (id, operation) in operations {
            match operation.work {
                Work::Read { .. } => {}
                Work::Flush { before } => {
                    if operation.failure.is_none() && self.random.percent(50) {
                        self.media.flush(before);
                    }
                }
                Work::Write { mut pieces, .. } => {
                    let percent = *self.random.pick(&[0, 50, 100]);
                    self.random.shuffle(&mut pieces);
                    for piece in &mut pieces {
                        self.land_torn(id, piece, percent);
                    }
                }
            }
        }
        match loss {
            Loss::Process if !self.failures.was_gone => self.media.kill(moment),
            Loss::Process => self.media.cut_power(PowerStyle::Random, &mut self.random),
            Loss::Power(style) => self.media.cut_power(style, &mut self.random),
        }
    }

    /// Somebody opens the device who does not know what became of earlier writes: what he sees is
    /// durable when he has flushed it.
    pub fn reopen(&mut self, moment: u64) {
        self.media.kill(moment);
    }

    /// The blocks of writes that a crash may lose or keep, each with the number of its operation.
    #[must_use]
    pub fn loose_units(&self, loss: Loss) -> Vec<(u64, u32)> {
        let mut units = match loss {
            Loss::Process => Vec::new(),
            Loss::Power(_) => self.media.unflushed_units(),
        };
        for (id, operation) in &self.operations {
            if let Work::Write { pieces, .. } = &operation.work {
                let missing = pieces.iter().filter(|piece| !piece.has_landed);
                units.extend(missing.map(|piece| (*id, piece.part.block)));
            }
        }
        units.sort_unstable();
        units
    }

    /// A crash begins: decides for each of [`Device::loose_units`] whether it survives, so that
    /// nothing is left to chance in [`Device::lose`].
    pub fn settle(&mut self, loss: Loss, survives: &mut dyn FnMut(u64, u32) -> bool) {
        for (id, operation) in std::mem::take(&mut self.operations) {
            if let Work::Write { mut pieces, .. } = operation.work {
                for piece in &mut pieces {
                    if !piece.has_landed && survives(id, piece.part.block) {
                        land(&mut self.media, id, piece);
                    }
                }
            }
        }
        if matches!(loss, Loss::Power(_)) {
            self.media.keep_units(survives);
        }
    }

    fn land_torn(&mut self, id: u64, piece: &mut Piece, percent: u64) {
        if percent == 50 && self.options.atomic == AtomicUnit::Sector && !piece.has_landed {
            let sectors = piece.part.sectors & self.random.bits() as u8;
            if let (Some(block), true) = (piece.target, sectors != 0) {
                self.media.land(id, Part { block, sectors }, piece.content.clone());
            }
        } else if self.random.percent(percent) {
            land(&mut self.media, id, piece);
        }
    }
}

fn land(media: &mut Media, id: u64, piece: &mut Piece) {
    if let (Some(block), false) = (piece.target, piece.has_landed) {
        media.land(id, Part { block, ..piece.part }, piece.content.clone());
        piece.has_landed = true;
    }
}

/// Loses pieces of a write, or sends all of them elsewhere.
fn misplace(pieces: &mut [Piece], misplaced: Misplaced) {
    for (index, piece) in (0u32..).zip(pieces) {
        match misplaced {
            Misplaced::Lost { first, count } => {
                if (first..first + count).contains(&index) {
                    piece.target = None;
                }
            }
            Misplaced::Misdirected { to_block } => piece.target = Some(to_block + index),
        }
    }
}

fn block_range(first_sector: u32, bytes: u64) -> (u32, u32) {
    let end = first_sector + (bytes / SECTOR_BYTES as u64) as u32;
    let first = first_sector / BLOCK_SECTORS;
    (first, end.div_ceil(BLOCK_SECTORS) - first)
}

/// The parts of the blocks that a run of sectors covers.
fn parts(first_sector: u32, bytes: u64) -> impl Iterator<Item = Part> {
    let end = first_sector + (bytes / SECTOR_BYTES as u64) as u32;
    let (first_block, block_count) = block_range(first_sector, bytes);
    (first_block..first_block + block_count).map(move |block| {
        let start = first_sector.max(block * BLOCK_SECTORS);
        let count = end.min((block + 1) * BLOCK_SECTORS) - start;
        Part { block, sectors: mask(start % BLOCK_SECTORS, count) }
    })
}

fn new_piece(part: Part, content: Content) -> Piece {
    Piece { part, target: Some(part.block), content, has_landed: false }
}

fn zero_pieces(first_sector: u32, bytes: u64) -> Vec<Piece> {
    parts(first_sector, bytes).map(|part| new_piece(part, Content::Zero)).collect()
}

fn check_slices(slices: &Slices, pool: &BufferPool) {
    for range in slices.as_slice() {
        assert!(range.length > 0, "an empty slice");
        assert_eq!(range.offset as usize % SECTOR_BYTES, 0);
        assert_eq!(range.length as usize % SECTOR_BYTES, 0);
        let _ = pool.bytes(*range);
    }
}

/// A copy of what is to be written, by block.
fn capture(first_sector: u32, slices: &Slices, pool: &BufferPool) -> Vec<Piece> {
    let mut source = slices.as_slice().iter().map(|range| pool.bytes(*range));
    let mut rest: &[u8] = &[];
    let mut pieces = Vec::new();
    for part in parts(first_sector, slices.total_bytes()) {
        if rest.is_empty() {
            rest = source.next().unwrap_or(&[]);
        }
        let content = if part.sectors == 0xFF && rest.len() >= BLOCK_BYTES {
            let (now, later) = rest.split_at(BLOCK_BYTES);
            rest = later;
            Rc::from(now)
        } else {
            let mut block = [0u8; BLOCK_BYTES];
            for sector in (0..8).filter(|sector| part.sectors >> sector & 1 == 1) {
                if rest.is_empty() {
                    rest = source.next().unwrap_or(&[]);
                }
                let (now, later) = rest.split_at(SECTOR_BYTES);
                block[sector * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(now);
                rest = later;
            }
            Rc::from(&block[..])
        };
        pieces.push(new_piece(part, Content::Bytes(content)));
    }
    pieces
}

/// The buffers of a write must be left alone until the write ends.
fn assert_unchanged(first_sector: u32, slices: &Slices, pieces: &[Piece], pool: &BufferPool) {
    let first_block = first_sector / BLOCK_SECTORS;
    let mut sector = first_sector;
    for range in slices.as_slice() {
        let mut rest = pool.bytes(*range);
        while !rest.is_empty() {
            let piece = &pieces[(sector / BLOCK_SECTORS - first_block) as usize];
            let Content::Bytes(bytes) = &piece.content else { unreachable!("captured") };
            let within = (sector % BLOCK_SECTORS) as usize * SECTOR_BYTES;
            let count = rest.len().min(BLOCK_BYTES - within);
            let (now, later) = rest.split_at(count);
            assert!(
                now == &bytes[within..within + count],
                "{range:?} changed while it was written to sector {first_sector}"
            );
            rest = later;
            sector += (count / SECTOR_BYTES) as u32;
        }
    }
}

fn fill(media: &Media, first_sector: u32, slices: &Slices, pool: &mut BufferPool) {
    let mut sector = first_sector;
    for range in slices.as_slice() {
        media.read(sector, pool.bytes_mut(*range));
        sector += range.length / SECTOR_BYTES as u32;
    }
}

fn spoil(slices: &Slices, pool: &mut BufferPool) {
    for range in slices.as_slice() {
        let range: BufferRange = *range;
        for sector in pool.bytes_mut(range).chunks_exact_mut(SECTOR_BYTES) {
            sector[..8].fill(0xEE);
        }
    }
}
