//! Checking segments against the newest checkpoint.
//!
//! Below the length that the checkpoint has for a segment, everything must be whole: headers decode
//! and chain, the summary says the same, live and dirty bits lie on blocks that hold something, and
//! the payload of live blocks has its checksum. Behind it, records are believed one by one as
//! recovery does; a record that is not whole ends its segment and is no damage, unless a later one
//! says that it was durable.

use std::collections::BTreeSet;

use forebay_engine::error::{Corrupt, Place};
use forebay_engine::format::checkpoint::{Bits, Checkpoint, SegmentLine, SegmentUse, bit};
use forebay_engine::format::crc32c;
use forebay_engine::format::record::{Entry, EntryKind, RecordHeader};
use forebay_engine::format::summary::{PlacedEntry, Summary};
use forebay_engine::format::superblock::Superblock;
use forebay_engine::units::{BLOCK_BYTES, Crc32c, Generation, SequenceNumber, VolumeId};
use serde::Serialize;

use super::finding::Mismatch;
use super::{CacheDevice, Finding, Findings, Severity, block_offset};
use crate::exit::Failure;

/// What was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct SegmentCounts {
    pub(crate) free_segment_count: u32,
    pub(crate) used_segment_count: u32,
    /// Closed segments without a live block, which nothing relies on any more.
    pub(crate) dead_segment_count: u32,
    pub(crate) record_count: u64,
    /// Records behind the checkpoint.
    pub(crate) new_record_count: u64,
    pub(crate) live_block_count: u64,
    pub(crate) dirty_block_count: u64,
    /// Blocks of records behind the checkpoint that the origin may not have.
    pub(crate) new_dirty_block_count: u64,
    pub(crate) verified_block_count: u64,
}

/// Blocks that the origin may not have. Several may cover the same block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirtyExtent {
    pub(crate) volume: VolumeId,
    pub(crate) start: u64,
    pub(crate) block_count: u64,
}

/// A walk through the segments of a device.
pub(crate) struct SegmentCheck<'a> {
    device: &'a CacheDevice,
    superblock: &'a Superblock,
    checkpoint: &'a Checkpoint,
    findings: &'a mut Findings,
    counts: SegmentCounts,
    dirty: Vec<DirtyExtent>,
    /// Numbers of records behind the checkpoint, and those that they replace.
    sequences: BTreeSet<u64>,
    durable_through: u64,
}

/// What the headers of a segment say.
struct Walk {
    generation: Generation,
    block: u32,
    previous: SequenceNumber,
    entries: Vec<PlacedEntry>,
    crcs: Vec<Crc32c>,
}

impl Walk {
    fn new(generation: Generation, blocks: u32) -> Walk {
        Walk {
            generation,
            block: 0,
            previous: SequenceNumber(0),
            entries: Vec::new(),
            crcs: vec![Crc32c(0); blocks as usize],
        }
    }

    fn take(&mut self, header: &RecordHeader) {
        let mut at = header.block + 1;
        for entry in &header.entries {
            let block = if entry.kind == EntryKind::Data { at } else { header.block };
            at += entry.payload_blocks();
            self.entries.push(PlacedEntry { entry: *entry, block });
        }
        for (index, crc) in (header.block as usize + 1..).zip(&header.crcs) {
            self.crcs[index] = *crc;
        }
        self.block = header.block + 1 + header.payload_blocks;
        self.previous = header.sequence;
    }
}

fn ones(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

fn block_of(bytes: &[u8], block: u32) -> &[u8] {
    let start = block as usize * BLOCK_BYTES;
    &bytes[start..start + BLOCK_BYTES]
}

impl<'a> SegmentCheck<'a> {
    pub(crate) fn new(
        device: &'a CacheDevice,
        superblock: &'a Superblock,
        checkpoint: &'a Checkpoint,
        findings: &'a mut Findings,
    ) -> SegmentCheck<'a> {
        SegmentCheck {
            device,
            superblock,
            checkpoint,
            findings,
            counts: SegmentCounts::default(),
            dirty: Vec::new(),
            sequences: BTreeSet::new(),
            durable_through: 0,
        }
    }

    /// Checks one segment.
    pub(crate) fn segment(&mut self, id: u32) -> Result<(), Failure> {
        let line = &self.checkpoint.segments[id as usize];
        match line.segment_use {
            SegmentUse::Free => {
                self.counts.free_segment_count += 1;
                return self.free_segment(id, line);
            }
            SegmentUse::Closed if line.has_nothing_alive() => {
                self.counts.dead_segment_count += 1;
                return self.free_segment(id, line);
            }
            SegmentUse::Open | SegmentUse::Closed => {}
        }
        self.counts.used_segment_count += 1;
        let bytes = self.read_segment(id)?;
        let mut walk = Walk::new(line.generation, self.segment_blocks());
        let headers_are_whole = self.walk_old(id, line, &bytes, &mut walk);
        let summary = self.summary(id, line, &bytes);
        if let Some(summary) = summary {
            if !headers_are_whole {
                // The summary is a copy of the headers.
                walk.entries = summary.entries;
                walk.crcs.iter_mut().zip(&summary.crcs).for_each(|(to, from)| *to = *from);
            } else if summary.entries != walk.entries {
                self.damage(&Place::Summary { segment: id }, "entries", "those of the headers");
            }
        }
        self.entries(id, line, &walk.entries);
        if let Some(bits) = line.bits.as_deref() {
            self.bits(id, line, bits, &walk);
            self.payload(id, bits, &walk, &bytes);
        }
        if line.segment_use == SegmentUse::Open && headers_are_whole {
            self.walk_new(id, &bytes, &mut walk);
        }
        Ok(())
    }

    /// All segments are done: is any record missing that was durable?
    pub(crate) fn finish(self) -> (SegmentCounts, Vec<DirtyExtent>) {
        let first = self.checkpoint.sequence.0 + 1;
        let missing =
            (first..=self.durable_through).find(|number| !self.sequences.contains(number));
        if let Some(missing) = missing {
            self.findings.add(Finding {
                severity: Severity::Damage,
                place: "log".to_owned(),
                what: format!("record {missing}"),
                expected: format!("present: all up to {} were durable", self.durable_through),
                found: "missing".to_owned(),
            });
        }
        (self.counts, self.dirty)
    }

    fn segment_blocks(&self) -> u32 {
        self.superblock.geometry.segment_blocks()
    }

    fn read_segment(&self, id: u32) -> Result<Vec<u8>, Failure> {
        let geometry = &self.superblock.geometry;
        self.device.read(block_offset(geometry, id, 0), geometry.segment_bytes)
    }

    fn damage(&mut self, place: &Place, what: &str, expected: &str) {
        self.findings.add(Finding {
            severity: Severity::Damage,
            place: place.to_string(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            found: "something else".to_owned(),
        });
    }

    /// A segment that was free may have been opened since the checkpoint; so may one in which
    /// nothing was alive, if a newer checkpoint is lost.
    fn free_segment(&mut self, id: u32, line: &SegmentLine) -> Result<(), Failure> {
        let geometry = &self.superblock.geometry;
        let first = self.device.read(block_offset(geometry, id, 0), BLOCK_BYTES as u64)?;
        let mut walk = Walk::new(Generation(line.generation.0 + 1), self.segment_blocks());
        let header = RecordHeader::decode(&self.superblock.set_id, id, 0, &first);
        if let Ok(header) = &header
            && header.recovery_epoch > self.checkpoint.recovery_epoch
        {
            // A life writes records only behind a checkpoint of its own.
            let (expected, found) = (self.checkpoint.recovery_epoch.0, header.recovery_epoch.0);
            self.findings.add_corrupt(
                Severity::Damage,
                Corrupt {
                    place: Place::Record { segment: id, block: 0 },
                    field: "recovery epoch",
                    expected,
                    found,
                },
            );
            return Ok(());
        }
        if header.is_ok_and(|header| self.follows(&header, &walk)) {
            let bytes = self.read_segment(id)?;
            self.walk_new(id, &bytes, &mut walk);
        }
        Ok(())
    }

    /// Whether a header behind the checkpoint is the next one of this life of its segment.
    fn follows(&self, header: &RecordHeader, walk: &Walk) -> bool {
        self.is_of_this_life(header, walk) && header.previous == walk.previous
    }

    /// Whether a header was written by the life that the checkpoint began, in this use of the
    /// segment.
    fn is_of_this_life(&self, header: &RecordHeader, walk: &Walk) -> bool {
        header.generation == walk.generation
            && header.recovery_epoch == self.checkpoint.recovery_epoch
            && header.sequence > self.checkpoint.sequence
    }

    /// Records that the checkpoint counts on. Tells whether all of them are whole.
    fn walk_old(&mut self, id: u32, line: &SegmentLine, bytes: &[u8], walk: &mut Walk) -> bool {
        while walk.block < line.used_blocks {
            let (segment, block) = (id, walk.block);
            let place = Place::Record { segment, block };
            let set_id = &self.superblock.set_id;
            let decoded = RecordHeader::decode(set_id, segment, block, block_of(bytes, block));
            let header = match decoded {
                Ok(header) => header,
                Err(corrupt) => {
                    self.findings.add_corrupt(Severity::Damage, corrupt);
                    return false;
                }
            };
            let end = block + 1 + header.payload_blocks;
            let before = self.findings.damage_count;
            let text = place.to_string();
            let numbers = [
                ("generation", line.generation.0, header.generation.0),
                ("previous record", walk.previous.0, header.previous.0),
                ("end, which the checkpoint bounds", end.min(line.used_blocks).into(), end.into()),
            ];
            for (what, expected, found) in numbers {
                self.findings.add_unless_equal(&text, Mismatch { what, expected, found });
            }
            if self.findings.damage_count > before {
                return false;
            }
            self.counts.record_count += 1;
            walk.take(&header);
        }
        let (what, place) = ("last record", format!("segment {id}"));
        let (expected, found) = (line.last_sequence.0, walk.previous.0);
        self.findings.add_unless_equal(&place, Mismatch { what, expected, found });
        true
    }

    fn summary(&mut self, id: u32, line: &SegmentLine, bytes: &[u8]) -> Option<Summary> {
        if line.segment_use != SegmentUse::Closed || line.summary_blocks == 0 {
            return None;
        }
        let start = line.used_blocks as usize * BLOCK_BYTES;
        let end = start + line.summary_blocks as usize * BLOCK_BYTES;
        let set_id = &self.superblock.set_id;
        let used_blocks = line.used_blocks;
        match Summary::decode(set_id, id, line.generation, used_blocks, &bytes[start..end]) {
            Ok(summary) => Some(summary),
            Err(corrupt) => {
                self.findings.add_corrupt(Severity::Damage, corrupt);
                None
            }
        }
    }

    /// Entries that the checkpoint counts on are older than it, and what it names as pieces of a
    /// record lies within the record.
    fn entries(&mut self, id: u32, line: &SegmentLine, entries: &[PlacedEntry]) {
        let first = id * self.segment_blocks();
        for PlacedEntry { entry, block } in entries {
            let has_version =
                !matches!(entry.kind, EntryKind::Drop { .. } | EntryKind::Mark { .. });
            let place = Place::Record { segment: id, block: *block };
            if has_version && entry.version >= self.checkpoint.next_version {
                self.damage(&place, "entry version", "one that was given out");
            }
            let is_live = |bits: &Bits| bit(&bits.live, *block);
            if !entry.kind.is_blank() || !line.bits.as_deref().is_some_and(is_live) {
                continue;
            }
            let pieces = self.checkpoint.pieces.iter();
            let mut pieces = pieces.filter(|piece| piece.position == first + block);
            let end = entry.start + u64::from(entry.block_count);
            let is_outside = pieces.any(|piece| {
                piece.start < entry.start || piece.start + u64::from(piece.block_count) > end
            });
            if is_outside {
                self.damage(&place, "piece that the checkpoint names", "a part of the record");
            }
        }
    }

    /// Bits stand only on blocks that hold a copy of something.
    fn bits(&mut self, id: u32, line: &SegmentLine, bits: &Bits, walk: &Walk) {
        let mut holds = vec![false; self.segment_blocks() as usize];
        for placed in &walk.entries {
            let first = placed.block as usize;
            if placed.entry.kind == EntryKind::Data {
                holds[first..first + placed.entry.block_count as usize].fill(true);
            } else if placed.entry.kind.is_blank() {
                holds[first] = true;
            }
        }
        for (block, holds) in (0u32..).zip(holds) {
            let is_marked = bit(&bits.live, block) || bit(&bits.dirty, block);
            if is_marked && (!holds || block >= line.used_blocks) {
                let place = Place::Record { segment: id, block };
                self.damage(&place, "what a live or dirty bit stands on", "a copy of a block");
                return;
            }
        }
        self.counts.live_block_count += ones(&bits.live);
        for PlacedEntry { entry, block } in &walk.entries {
            for offset in 0..entry.payload_blocks().max(1) {
                if bit(&bits.dirty, block + offset) && self.is_current(entry) {
                    self.counts.dirty_block_count += 1;
                    self.note_dirty(entry, offset);
                }
            }
        }
    }

    /// Whether the entry counts: what a volume left behind that was detached does not.
    fn is_current(&self, entry: &Entry) -> bool {
        let mut volumes = self.superblock.slots().map(|(_, volume)| volume);
        volumes.any(|v| v.id == entry.volume && v.generation == entry.volume_generation)
    }

    /// Block `offset` of the entry's payload is dirty; of one without payload, all that it covers.
    fn note_dirty(&mut self, entry: &Entry, offset: u32) {
        let (start, block_count) = match entry.kind {
            EntryKind::Data => (entry.start + u64::from(offset), 1),
            _ => (entry.start, u64::from(entry.block_count)),
        };
        self.dirty.push(DirtyExtent { volume: entry.volume, start, block_count });
    }

    /// Payload of live blocks has the checksum of its record.
    fn payload(&mut self, id: u32, bits: &Bits, walk: &Walk, bytes: &[u8]) {
        for placed in walk.entries.iter().filter(|placed| placed.entry.kind == EntryKind::Data) {
            for block in placed.block..placed.block + placed.entry.block_count {
                if !bit(&bits.live, block) {
                    continue;
                }
                self.counts.verified_block_count += 1;
                let (expected, found) = (walk.crcs[block as usize], crc32c(block_of(bytes, block)));
                if expected != found {
                    self.findings.add(Finding {
                        severity: Severity::Damage,
                        place: format!("payload at segment {id} block {block}"),
                        what: "checksum".to_owned(),
                        expected: format!("{:#x}", expected.0),
                        found: format!("{:#x}", found.0),
                    });
                }
            }
        }
    }

    /// Records behind the checkpoint, as far as they are whole; of the headers behind them counts
    /// what they say to be durable.
    fn walk_new(&mut self, id: u32, bytes: &[u8], walk: &mut Walk) {
        self.walk_whole(id, bytes, walk);
        for block in walk.block..self.segment_blocks() {
            let set_id = &self.superblock.set_id;
            let header = RecordHeader::decode(set_id, id, block, block_of(bytes, block));
            if let Ok(header) = header
                && self.is_of_this_life(&header, walk)
            {
                self.durable_through = self.durable_through.max(header.durable_through.0);
            }
        }
    }

    fn walk_whole(&mut self, id: u32, bytes: &[u8], walk: &mut Walk) {
        let blocks = self.segment_blocks();
        while walk.block < blocks {
            let block = walk.block;
            let set_id = &self.superblock.set_id;
            let Ok(header) = RecordHeader::decode(set_id, id, block, block_of(bytes, block)) else {
                return;
            };
            let end = u64::from(block) + 1 + u64::from(header.payload_blocks);
            if !self.follows(&header, walk) || end > u64::from(blocks) {
                return;
            }
            let is_whole = (block + 1..)
                .zip(&header.crcs)
                .all(|(block, crc)| crc32c(block_of(bytes, block)) == *crc);
            if !is_whole {
                return;
            }
            self.counts.new_record_count += 1;
            self.counts.verified_block_count += u64::from(header.payload_blocks);
            let is_dirty = |entry: &&Entry| entry.is_dirty && self.is_current(entry);
            for entry in header.entries.iter().filter(is_dirty).copied().collect::<Vec<_>>() {
                self.counts.new_dirty_block_count += u64::from(entry.block_count);
                (0..entry.payload_blocks().max(1)).for_each(|at| self.note_dirty(&entry, at));
            }
            self.sequences.insert(header.sequence.0);
            self.sequences.extend(header.replaces.iter().map(|number| number.0));
            self.durable_through = self.durable_through.max(header.durable_through.0);
            walk.take(&header);
        }
    }
}
