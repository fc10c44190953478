//! Reading what the segments hold.
//!
//! A segment that the checkpoint counts on is believed up to its length there: a record that is
//! missing or damaged below it is corruption. What follows is believed record by record, as far as
//! each is whole, of this generation and recovery epoch, and follows the one before it.

use alloc::vec::Vec;

use super::{READS_MAX, RecoveryIo};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::error::{Corrupt, Place as CorruptPlace, RecoveryError};
use crate::format::checkpoint::{SegmentLine, SegmentUse};
use crate::format::record::{Entry, EntryKind, RecordHeader};
use crate::format::summary::{PlacedEntry, Summary};
use crate::payload::{BufferRange, Payload};
use crate::units::{BLOCK_BYTES, Crc32c, Generation, SequenceNumber, Version};

/// What was read of a segment.
pub(super) struct ScannedSegment {
    pub(super) segment: u32,
    pub(super) generation: Generation,
    pub(super) used_blocks: u32,
    /// Blocks of the summary, if it was read and is good.
    pub(super) summary_blocks: u32,
    pub(super) last_sequence: SequenceNumber,
    /// Entries of records that the checkpoint counts on.
    pub(super) old_entries: Vec<PlacedEntry>,
    /// All entries, to be kept while there is no summary.
    pub(super) entries: Vec<PlacedEntry>,
    pub(super) crcs: Vec<Crc32c>,
    /// Records behind the checkpoint that follow one another by their headers, and whether their
    /// payload is good.
    candidates: Vec<(RecordHeader, bool)>,
    /// What headers behind the last candidate say to be durable: they count for nothing else, since
    /// one before them is damaged or torn.
    vouched_through: SequenceNumber,
}

impl ScannedSegment {
    /// What the checkpoint says of a segment, and nothing of its content.
    fn counted_on(segment: u32, line: &SegmentLine) -> ScannedSegment {
        ScannedSegment {
            segment,
            generation: line.generation,
            used_blocks: line.used_blocks,
            summary_blocks: 0,
            last_sequence: line.last_sequence,
            old_entries: Vec::new(),
            entries: Vec::new(),
            crcs: Vec::new(),
            candidates: Vec::new(),
            vouched_through: SequenceNumber(0),
        }
    }
}

/// A record behind the checkpoint.
pub(super) struct NewRecord {
    pub(super) sequence: SequenceNumber,
    pub(super) replaces: Vec<SequenceNumber>,
    pub(super) segment: u32,
    pub(super) entries: Vec<PlacedEntry>,
}

/// How a walk through the headers of a segment goes on.
struct Walk {
    block: u32,
    previous: SequenceNumber,
}

impl Engine {
    pub(super) fn checkpoint_line(&mut self, segment: u32) -> &SegmentLine {
        let checkpoint = self.recovery().checkpoint.as_ref();
        &checkpoint.expect("chosen before segments are read").segments[segment as usize]
    }

    pub(super) fn read_segments(&mut self, payload: &mut dyn Payload) {
        while self.recovery().reads < READS_MAX {
            if let Some(segment) = self.recovery().whole.last().copied() {
                let length = self.superblock.geometry.segment_bytes;
                let at = self.cache_offset(self.log.position(segment, 0));
                let read = |range| RecoveryIo::Whole { segment, range };
                if !self.submit_recovery_read(at, length, read, payload) {
                    return;
                }
                self.recovery().whole.pop();
                continue;
            }
            if let Some(segment) = self.recovery().unchanged.last().copied() {
                if !self.read_what_is_counted_on(segment, payload) {
                    return;
                }
                self.recovery().unchanged.pop();
                continue;
            }
            let segment = self.recovery().next_segment;
            if segment == self.log.segments.len() {
                break;
            }
            if !self.read_segment(segment, payload) {
                return;
            }
            self.recovery().next_segment += 1;
        }
        let recovery = self.recovery();
        let is_done =
            recovery.reads == 0 && recovery.whole.is_empty() && recovery.unchanged.is_empty();
        if is_done && recovery.next_segment == self.log.segments.len() {
            self.build();
        }
    }

    /// Reads the first block of what may have been used again since the checkpoint. That is what
    /// was free; and if the other area held a newer checkpoint, what was closed, too: that one may
    /// have had it free, and it may hold what was answered last.
    fn read_segment(&mut self, segment: u32, payload: &mut dyn Payload) -> bool {
        let segment_use = self.checkpoint_line(segment).segment_use;
        let may_be_reused = match segment_use {
            SegmentUse::Free => true,
            SegmentUse::Closed => self.recovery().lost_epochs > 0,
            SegmentUse::Open => false,
        };
        if !may_be_reused {
            return self.read_what_is_counted_on(segment, payload);
        }
        let offset = self.cache_offset(self.log.position(segment, 0));
        let read = |range| RecoveryIo::FirstBlock { segment, range };
        self.submit_recovery_read(offset, BLOCK_BYTES as u64, read, payload)
    }

    /// Reads what the checkpoint counts on, and what may follow it.
    fn read_what_is_counted_on(&mut self, segment: u32, payload: &mut dyn Payload) -> bool {
        let line = self.checkpoint_line(segment).clone();
        match line.segment_use {
            SegmentUse::Free => self.recovery().segments_done += 1,
            SegmentUse::Closed if line.has_nothing_alive() => {
                // It only has to become free again.
                self.scanned(ScannedSegment::counted_on(segment, &line));
            }
            SegmentUse::Closed if line.summary_blocks > 0 => {
                let offset = self.cache_offset(self.log.position(segment, line.used_blocks));
                let length = u64::from(line.summary_blocks) * BLOCK_BYTES as u64;
                let read = |range| RecoveryIo::Summary { segment, range };
                return self.submit_recovery_read(offset, length, read, payload);
            }
            SegmentUse::Open | SegmentUse::Closed => self.recovery().whole.push(segment),
        }
        true
    }

    /// A segment that ends where the checkpoint says. Its entries are many, and are not kept.
    fn scanned(&mut self, segment: ScannedSegment) {
        self.recovery().segments_done += 1;
        self.take_in(segment);
    }

    /// A segment that was free, or became free, may have been opened since the checkpoint.
    pub(super) fn on_first_block(
        &mut self,
        segment: u32,
        range: BufferRange,
        payload: &mut dyn Payload,
    ) {
        let block = payload.metadata(range);
        let header = RecordHeader::decode(&self.log.set_id, segment, 0, block).ok();
        let generation = self.checkpoint_line(segment).generation;
        // A life writes records only when a checkpoint with its epoch is durable. One of a later
        // life than the checkpoint's says that a newer checkpoint is lost, and with it what that
        // life was told to keep; the older one knows nothing of it and would cut it off silently
        // (rule 8).
        let epoch = self.recovery().checkpoint.as_ref().expect("chosen before").recovery_epoch;
        if let Some(found) = header.as_ref().map(|header| header.recovery_epoch)
            && found > epoch
        {
            let (place, field) = (CorruptPlace::Record { segment, block: 0 }, "recovery epoch");
            let corrupt = Corrupt { place, field, expected: epoch.0, found: found.0 };
            self.refuse(RecoveryError::Log(corrupt));
            return;
        }
        let is_new = header.is_some_and(|header| {
            // Exactly the next generation: a segment is used again only after a checkpoint (rule
            // 6).
            header.generation.0 == generation.0 + 1 && self.is_next(&header, SequenceNumber(0))
        });
        let recovery = self.recovery();
        if is_new {
            recovery.reused.insert(segment);
            recovery.whole.push(segment);
        } else {
            recovery.unchanged.push(segment);
        }
    }

    /// Whether a header behind the checkpoint belongs to the life that the checkpoint began and
    /// follows the record `previous` in its segment.
    fn is_next(&mut self, header: &RecordHeader, previous: SequenceNumber) -> bool {
        let checkpoint = self.recovery().checkpoint.as_ref().expect("chosen before");
        header.recovery_epoch == checkpoint.recovery_epoch
            && header.sequence > checkpoint.sequence
            && header.previous == previous
    }

    pub(super) fn on_recovery_summary(
        &mut self,
        segment: u32,
        range: BufferRange,
        payload: &mut dyn Payload,
    ) {
        let line = self.checkpoint_line(segment).clone();
        let bytes = payload.metadata(range);
        let next = self.recovery().checkpoint.as_ref().expect("chosen before").next_version;
        let set_id = &self.log.set_id;
        match Summary::decode(set_id, segment, line.generation, line.used_blocks, bytes) {
            Ok(summary)
                if summary.entries.iter().all(|placed| is_given_out(&placed.entry, next)) =>
            {
                self.scanned(ScannedSegment {
                    summary_blocks: line.summary_blocks,
                    old_entries: summary.entries,
                    crcs: summary.crcs,
                    ..ScannedSegment::counted_on(segment, &line)
                });
            }
            // A damaged summary is no loss: the headers say the same.
            Ok(_) | Err(_) => self.recovery().whole.push(segment),
        }
    }

    pub(super) fn on_whole_segment(
        &mut self,
        segment: u32,
        range: BufferRange,
        payload: &mut dyn Payload,
    ) {
        let line = self.checkpoint_line(segment).clone();
        let is_reused = self.recovery().reused.contains(&segment);
        let mut found = ScannedSegment {
            generation: Generation(line.generation.0 + u64::from(is_reused)),
            ..ScannedSegment::counted_on(segment, &line)
        };
        found.crcs.resize(self.log.segments.segment_blocks() as usize, Crc32c(0));
        let mut walk = Walk { block: 0, previous: SequenceNumber(0) };
        let counted = if is_reused { 0 } else { line.used_blocks };
        while walk.block < counted {
            match self.old_record(&found, &walk, range, payload) {
                Ok(header) => {
                    let first = found.entries.len();
                    take_record(&mut found, &mut walk, &header);
                    found.old_entries.extend_from_slice(&found.entries[first..]);
                }
                Err(corrupt) => {
                    self.refuse(RecoveryError::Log(corrupt));
                    return;
                }
            }
        }
        if is_reused || line.segment_use == SegmentUse::Open {
            let mut ahead = Walk { ..walk };
            while let Some(candidate) = self.new_record(&found, &ahead, range, payload) {
                ahead.block = candidate.0.block + 1 + candidate.0.payload_blocks;
                ahead.previous = candidate.0.sequence;
                found.candidates.push(candidate);
            }
            found.vouched_through = self.vouched_behind(&found, ahead.block, range, payload);
        }
        found.used_blocks = walk.block;
        found.last_sequence = walk.previous;
        let recovery = self.recovery();
        recovery.segments_done += 1;
        recovery.segments.push(found);
    }

    /// Everything is read: decides where each segment ends. A record with bad payload that was
    /// durable according to a later header has rotted; it counts, and its bad blocks are found out
    /// when they are read. One that nobody vouches for is a torn tail, and ends its segment (rule
    /// 8).
    pub(super) fn accept_candidates(&mut self, segments: &mut [ScannedSegment]) {
        let all = segments.iter().flat_map(|segment| &segment.candidates);
        let followed = all.map(|(header, _)| header.durable_through);
        let hidden = segments.iter().map(|segment| segment.vouched_through);
        let durable = followed.chain(hidden).max().unwrap_or(SequenceNumber(0));
        self.recovery().durable_through = durable;
        for found in segments {
            let mut walk = Walk { block: found.used_blocks, previous: found.last_sequence };
            for (header, is_whole) in core::mem::take(&mut found.candidates) {
                if !is_whole && header.sequence > durable {
                    break;
                }
                let first = found.entries.len();
                take_record(found, &mut walk, &header);
                let record = NewRecord {
                    sequence: header.sequence,
                    replaces: header.replaces,
                    segment: found.segment,
                    entries: found.entries[first..].to_vec(),
                };
                self.recovery().records.push(record);
            }
            found.used_blocks = walk.block;
            found.last_sequence = walk.previous;
        }
    }

    /// A record below the length that the checkpoint has for the segment.
    fn old_record(
        &mut self,
        found: &ScannedSegment,
        walk: &Walk,
        range: BufferRange,
        payload: &dyn Payload,
    ) -> Result<RecordHeader, Corrupt> {
        let (segment, block) = (found.segment, walk.block);
        let place = CorruptPlace::Record { segment, block };
        let header = RecordHeader::decode(
            &self.log.set_id,
            segment,
            block,
            header_at(range, block, payload),
        )?;
        let (expected, seen) = (found.generation.0, header.generation.0);
        Corrupt::unless_equal(place, "generation", expected, seen)?;
        Corrupt::unless_equal(place, "previous", walk.previous.0, header.previous.0)?;
        let end = u64::from(block) + 1 + u64::from(header.payload_blocks);
        let limit = u64::from(self.checkpoint_line(segment).used_blocks);
        Corrupt::unless_at_most(place, "end of the record", limit, end)?;
        let checkpoint = self.recovery().checkpoint.as_ref().expect("chosen before");
        let last = checkpoint.sequence.0;
        Corrupt::unless_at_most(place, "sequence", last, header.sequence.0)?;
        let next = checkpoint.next_version;
        if let Some(entry) = header.entries.iter().find(|entry| !is_given_out(entry, next)) {
            let (limit, found) = (next.0.saturating_sub(1), entry.version.0);
            return Err(Corrupt { place, field: "entry version", expected: limit, found });
        }
        Ok(header)
    }

    /// The most that whole headers from `first` on say to be durable. No walk reaches them, so
    /// their entries do not count; but each was written by the life that the checkpoint began, into
    /// this use of the segment, and what it says of the log was true then. Without them a rotten
    /// header would silently take the flushed records behind it along.
    fn vouched_behind(
        &mut self,
        found: &ScannedSegment,
        first: u32,
        range: BufferRange,
        payload: &dyn Payload,
    ) -> SequenceNumber {
        let segment = found.segment;
        let checkpoint = self.recovery().checkpoint.as_ref().expect("chosen before");
        let (epoch, sequence) = (checkpoint.recovery_epoch, checkpoint.sequence);
        (first..self.log.segments.segment_blocks())
            .filter_map(|block| {
                let bytes = header_at(range, block, payload);
                RecordHeader::decode(&self.log.set_id, segment, block, bytes).ok()
            })
            .filter(|header| header.generation == found.generation)
            .filter(|header| header.recovery_epoch == epoch && header.sequence > sequence)
            .map(|header| header.durable_through)
            .max()
            .unwrap_or(SequenceNumber(0))
    }

    /// A record behind the checkpoint, and whether its payload is good; `None` ends the segment.
    fn new_record(
        &mut self,
        found: &ScannedSegment,
        walk: &Walk,
        range: BufferRange,
        payload: &dyn Payload,
    ) -> Option<(RecordHeader, bool)> {
        let (segment, block) = (found.segment, walk.block);
        let blocks = self.log.segments.segment_blocks();
        if block >= blocks {
            return None;
        }
        let bytes = header_at(range, block, payload);
        let header = RecordHeader::decode(&self.log.set_id, segment, block, bytes).ok()?;
        let follows = header.generation == found.generation
            && self.is_next(&header, walk.previous)
            && block + 1 + header.payload_blocks <= blocks;
        if !follows {
            return None;
        }
        let is_whole = (0u32..).zip(&header.crcs).all(|(index, crc)| {
            let offset = (block + 1 + index) * BLOCK_BYTES as u32;
            payload.checksum(range.slice(offset, BLOCK_BYTES as u32)) == *crc
        });
        Some((header, is_whole || has_defect(Defect::TornRecordTaken)))
    }
}

/// Whether the version of an entry that a checkpoint counts on lies below the next one to be given
/// out, or the entry has none.
fn is_given_out(entry: &Entry, next: Version) -> bool {
    let has_none = matches!(entry.kind, EntryKind::Drop { .. } | EntryKind::Mark { .. });
    has_none || entry.version < next
}

fn header_at(range: BufferRange, block: u32, payload: &dyn Payload) -> &[u8] {
    payload.metadata(range.slice(block * BLOCK_BYTES as u32, BLOCK_BYTES as u32))
}

fn take_record(found: &mut ScannedSegment, walk: &mut Walk, header: &RecordHeader) {
    let mut at = header.block + 1;
    for entry in &header.entries {
        let block = if entry.kind == EntryKind::Data { at } else { header.block };
        at += entry.payload_blocks();
        found.entries.push(PlacedEntry { entry: *entry, block });
    }
    for (index, crc) in (header.block as usize + 1..).zip(&header.crcs) {
        found.crcs[index] = *crc;
    }
    walk.block = header.block + 1 + header.payload_blocks;
    walk.previous = header.sequence;
}
