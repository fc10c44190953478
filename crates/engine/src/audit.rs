//! The books of the engine, recomputed: counters that are kept step by step against what they
//! count. For simulators and tests; it looks at everything and changes nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::engine::{Engine, Phase};
use crate::format::checkpoint::bit;
use crate::index::{Piece, Place};
use crate::log::MOSTLY_DEAD_DIVISOR;
use crate::log::segments::SegmentState;
use crate::units::{CacheBlock, VolumeSlot};

/// What the winning and the complete copies amount to.
struct Count {
    /// Positions that must have a live bit, and no others.
    live: BTreeSet<u32>,
    /// By position of the header: blocks that it stands for, as the winner.
    blank_live: BTreeMap<u32, u64>,
    /// The same in the complete index.
    blank_mapped: BTreeMap<u32, u64>,
    /// By segment: data blocks and blank headers that the complete index points at.
    mapped: Vec<u32>,
    /// By volume: dirty blocks.
    dirty: Vec<(VolumeSlot, u64)>,
}

fn unless_equal<T: PartialEq + core::fmt::Debug>(
    what: impl FnOnce() -> String,
    kept: T,
    counted: T,
) -> Result<(), String> {
    if kept == counted {
        return Ok(());
    }
    Err(format!("{}: {kept:?} is kept, {counted:?} is counted", what()))
}

impl Engine {
    /// Compares what is counted along the way (live and dirty bits, mapped blocks, dirty blocks of
    /// volumes, segments by state) with the index, and looks for what nobody will take up again.
    /// Without a verdict (`Ok`) before recovery has ended and after the cache device was given up.
    ///
    /// # Errors
    /// The first account that does not agree, with both numbers.
    pub fn audit(&self) -> Result<(), String> {
        if !matches!(self.phase, Phase::Serving) || self.is_cache_failed() {
            return Ok(());
        }
        let count = self.count()?;
        self.audit_segments(&count)?;
        self.audit_blanks(&count)?;
        for (slot, dirty) in &count.dirty {
            let kept = self.volume(*slot).dirty_blocks;
            unless_equal(|| format!("dirty blocks of {slot:?}"), kept, *dirty)?;
        }
        self.audit_flows()
    }

    fn count(&self) -> Result<Count, String> {
        let mut count = Count {
            live: BTreeSet::new(),
            blank_live: BTreeMap::new(),
            blank_mapped: BTreeMap::new(),
            mapped: vec![0; self.log.segments.len() as usize],
            dirty: Vec::new(),
        };
        for slot in self.slots() {
            let volume = self.volume(slot);
            let mut winners = Vec::new();
            self.winners(slot, 0, volume.block_count(), &mut winners);
            let mut dirty = 0;
            for piece in &winners {
                dirty += self.count_winner(piece, &mut count)?;
            }
            count.dirty.push((slot, dirty));
            for piece in volume.index.complete.all_pieces() {
                self.count_mapped(&piece, &mut count);
            }
        }
        for header in count.blank_mapped.keys() {
            let (segment, _) = self.log.segments.locate(CacheBlock(*header));
            count.mapped[segment as usize] += 1;
        }
        Ok(count)
    }

    /// Counts a copy that wins; answers how many of its blocks are dirty.
    fn count_winner(&self, piece: &Piece, count: &mut Count) -> Result<u64, String> {
        match piece.place {
            Place::Data(CacheBlock(first)) => {
                let length = u32::try_from(piece.block_count).expect("data pieces are small");
                let mut dirty = 0;
                for at in first..first + length {
                    if !count.live.insert(at) {
                        return Err(format!("two blocks win with one copy, at {at}: {piece:?}"));
                    }
                    dirty += u64::from(self.log.segments.is_dirty(CacheBlock(at)));
                }
                Ok(dirty)
            }
            Place::Blank { header, .. } => {
                *count.blank_live.entry(header.0).or_default() += piece.block_count;
                count.live.insert(header.0);
                Ok(if self.log.segments.is_dirty(header) { piece.block_count } else { 0 })
            }
            Place::Absent => Ok(0),
        }
    }

    fn count_mapped(&self, piece: &Piece, count: &mut Count) {
        match piece.place {
            Place::Data(position) => {
                let (segment, _) = self.log.segments.locate(position);
                let length = u32::try_from(piece.block_count).expect("data pieces are small");
                count.mapped[segment as usize] += length;
            }
            Place::Blank { header, .. } => {
                *count.blank_mapped.entry(header.0).or_default() += piece.block_count;
            }
            Place::Absent => {}
        }
    }

    fn audit_segments(&self, count: &Count) -> Result<(), String> {
        let blocks = self.log.segments.segment_blocks();
        let mut free = 0;
        let (mut dirty_of_all, mut held_of_all) = (0, 0);
        // Only writeback in order keeps what is superseded.
        let has_order = self.slots().any(|slot| self.volume(slot).is_ordered());
        for (id, segment) in self.log.segments.iter() {
            let name = |what| move || format!("{what} of segment {id}");
            free += u32::from(segment.state == SegmentState::Free);
            let (mut dirty, mut retained) = (0, 0);
            // Segments that are free have no bits.
            for block in 0..if segment.bits.live.is_empty() { 0 } else { blocks } {
                let is_live = bit(&segment.bits.live, block);
                let should = count.live.contains(&(id * blocks + block));
                unless_equal(|| format!("segment {id} block {block} is live"), is_live, should)?;
                dirty += u32::from(bit(&segment.bits.dirty, block));
                retained += u32::from(bit(&segment.bits.dirty, block) && !is_live);
            }
            let live = count.live.range(id * blocks..(id + 1) * blocks).count();
            unless_equal(name("live blocks"), segment.live as usize, live)?;
            unless_equal(name("dirty blocks"), segment.dirty, dirty)?;
            unless_equal(name("retained blocks"), segment.retained, retained)?;
            if retained > 0 && !has_order {
                return Err(format!("segment {id} has dirty blocks that are not live"));
            }
            unless_equal(name("mapped blocks"), segment.mapped, count.mapped[id as usize])?;
            dirty_of_all += u64::from(dirty);
            let held = if retained > 0 { blocks } else { dirty * MOSTLY_DEAD_DIVISOR };
            held_of_all += u64::from(held.min(blocks));
        }
        unless_equal(
            || "dirty blocks of all segments".into(),
            self.log.segments.dirty_count(),
            dirty_of_all,
        )?;
        let held = self.log.segments.held_blocks();
        unless_equal(|| "blocks that only writeback gives back".into(), held, held_of_all)?;
        unless_equal(|| "free segments".into(), self.log.segments.free_count(), free)
    }

    fn audit_blanks(&self, count: &Count) -> Result<(), String> {
        for (header, blank) in &self.log.blanks {
            let live = count.blank_live.get(header).copied().unwrap_or(0);
            let mapped = count.blank_mapped.get(header).copied().unwrap_or(0);
            unless_equal(|| format!("live blocks of {blank:?}"), blank.live_blocks, live)?;
            unless_equal(|| format!("mapped blocks of {blank:?}"), blank.mapped_blocks, mapped)?;
        }
        let known = |header: &&u32| !self.log.blanks.contains_key(header);
        match count.blank_live.keys().chain(count.blank_mapped.keys()).find(known) {
            Some(header) => Err(format!("the index points at an unknown blank record at {header}")),
            None => Ok(()),
        }
    }

    /// With no request, no operation at a device and nothing due, nothing may be held.
    fn audit_flows(&self) -> Result<(), String> {
        let records = self.log.records.len();
        let in_flight: usize = self.log.segments.iter().map(|(_, s)| s.in_flight.len()).sum();
        unless_equal(|| "records under way".into(), records, in_flight)?;
        unless_equal(|| "records without completion".into(), records, {
            let building = self.log.records.iter().filter(|(_, r)| r.sequence.0 == 0).count();
            self.log.incomplete.len() + building
        })?;
        let requests: usize = self.volumes.iter().flatten().map(|volume| volume.operations).sum();
        unless_equal(|| "requests of all volumes".into(), requests, self.operations.len())?;
        if requests == 0 {
            unless_equal(|| "units without a request".into(), self.units.len(), 0)?;
            unless_equal(|| "parts of reads without a request".into(), self.read_parts.len(), 0)?;
        }
        let is_quiet = requests == 0
            && self.ios.len() == 0
            && self.wakes.is_empty()
            && self.io_queue.is_empty()
            && self.poll_wakeup().is_none();
        if is_quiet {
            unless_equal(|| "records with nothing to come".into(), records, 0)?;
            unless_equal(|| "misses with nothing to come".into(), self.misses.len(), 0)?;
            let segments = &self.log.segments;
            let pins: u32 = (0..segments.len()).map(|id| segments.pins(id)).sum();
            unless_equal(|| "pins with nothing to come".into(), pins, 0)?;
            for slot in self.slots() {
                let is_idle = self.volume(slot).locks.is_idle();
                unless_equal(|| format!("no range lock is held on {slot:?}"), is_idle, true)?;
            }
        }
        Ok(())
    }
}
