//! Why a block is in the cache or not, for people who ask. Nothing here changes anything.
//!
//! Most of it is in memory. Which record holds the copy is not: [`Command::Explain`] reads the
//! record's header from the cache device. Where that should be is told by the checksums, which are
//! zero for headers; whether it is one, and whose, by its own checksum and its entries.
//!
//! [`Command::Explain`]: crate::event::Command::Explain

use crate::admission::Decision;
use crate::engine::{Engine, IoPurpose};
use crate::event::{CommandError, CommandId, Event};
use crate::format::record::{RECORD_BLOCKS_MAX, RecordHeader};
use crate::index::{BlankKind, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::payload::{BufferId, BufferRange, Payload};
use crate::units::{BLOCK_BYTES, Crc32c, OriginBlock, SequenceNumber, Time, Version, VolumeSlot};

/// Questions that may wait for their turn.
const QUESTIONS_MAX: usize = 16;

/// A record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordPlace {
    /// Its number.
    pub sequence: SequenceNumber,
    /// Block of the segment in which its header is.
    pub block: u32,
}

/// What the cache has of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyKind {
    /// Nothing.
    Absent,
    /// Its content.
    Data,
    /// That it is all zeroes.
    Zeroes,
    /// That it was discarded; it reads as zeroes.
    Discarded,
    /// That its content was lost; reading it is an error.
    Poison,
}

/// Where a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPlace {
    /// Segment.
    pub segment: u32,
    /// Block in the segment; of its record's header, for a copy without payload.
    pub block: u32,
    /// Its record, if its header was read.
    pub record: Option<RecordPlace>,
    /// Its record is not later than this: the last one of the segment so far.
    pub sequence_max: SequenceNumber,
    /// Milliseconds since the oldest of what is in the segment was written, or the segment found at
    /// the start.
    pub age_ms_max: u64,
    /// It was there at the start, and may be older than the age says.
    pub is_recovered: bool,
}

/// Everything that is known of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// What the cache has of it.
    pub kind: CopyKind,
    /// Whether the origin may not have it.
    pub is_dirty: bool,
    /// Order among the copies of the block.
    pub version: Option<Version>,
    /// Where the copy is.
    pub place: Option<CopyPlace>,
    /// Whether it will be kept when its turn comes: it is dirty, pinned, or was used since it was
    /// placed. `None` if there is no copy, or the policy cannot tell beforehand.
    pub is_kept: Option<bool>,
    /// Whether a write of it is under way.
    pub is_write_pending: bool,
    /// Why its region of 64 KiB went to the cache or did not when that was last decided, and how
    /// many milliseconds ago; `None` if it never was, or that is not known any more.
    pub decision: Option<(Decision, u64)>,
}

/// A question that needs the header of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    id: CommandId,
    slot: VolumeSlot,
    block: OriginBlock,
}

/// A block that may be the header of the record that holds a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    question: Question,
    version: Version,
    segment: u32,
    /// Block of the copy in the segment, and of the header.
    block: u32,
    header: u32,
}

fn milliseconds(now: Time, since: Time) -> u64 {
    now.nanoseconds_since(since) / 1_000_000
}

impl Engine {
    /// What is known of a block without a look at the cache device, which leaves its record open;
    /// `None` if there is no such volume or block.
    #[must_use]
    pub fn explain(&self, now: Time, slot: VolumeSlot, block: OriginBlock) -> Option<Explanation> {
        let volume = self.find_volume(slot)?;
        let block = block.0;
        let is_pinned = self.superblock.pins(slot).has(block);
        if block >= volume.block_count() {
            return None;
        }
        let decision = self.admission.decision(volume.id, block);
        let mut explanation = Explanation {
            kind: CopyKind::Absent,
            is_dirty: false,
            version: None,
            place: None,
            is_kept: None,
            is_write_pending: volume.locks.has_client_write(block, block + 1),
            decision: decision.map(|(decision, at)| (decision, milliseconds(now, at))),
        };
        let Some(copy) = self.complete_piece(slot, block) else { return Some(explanation) };
        let (kind, position) = match copy.place {
            Place::Data(position) => (CopyKind::Data, position),
            Place::Blank { kind, header } => match kind {
                BlankKind::Zeroes { .. } => (CopyKind::Zeroes, header),
                BlankKind::Discard => (CopyKind::Discarded, header),
                BlankKind::Poison => (CopyKind::Poison, header),
            },
            Place::Absent => return Some(explanation),
        };
        explanation.kind = kind;
        explanation.is_dirty = kind == CopyKind::Poison || self.log.segments.is_dirty(position);
        explanation.version = Some(copy.version);
        let (segment, block) = self.log.segments.locate(position);
        let of_segment = self.log.segments.get(segment);
        explanation.place = Some(CopyPlace {
            segment,
            block,
            record: None,
            sequence_max: of_segment.last_sequence,
            age_ms_max: milliseconds(now, of_segment.oldest_at),
            is_recovered: of_segment.is_found,
        });
        explanation.is_kept = if explanation.is_dirty || kind == CopyKind::Data && is_pinned {
            Some(true)
        } else if kind == CopyKind::Data {
            Some(self.replacement.policy.would_keep(position, 1))
        } else {
            Some(false)
        };
        Some(explanation)
    }

    /// The answer comes as [`Event::Explained`], behind a read of the cache device if there is a
    /// copy.
    pub(crate) fn start_explaining(&mut self, id: CommandId, slot: VolumeSlot, block: OriginBlock) {
        let error = if self.explain(self.now, slot, block).is_none() {
            CommandError::NoSuchVolume
        } else if self.questions.len() >= QUESTIONS_MAX {
            CommandError::Busy
        } else {
            self.questions.push_back(Question { id, slot, block });
            self.go_on();
            return;
        };
        self.end_command(id, Err(error));
    }

    pub(crate) fn advance_questions(&mut self, payload: &mut dyn Payload) {
        while let Some(question) = self.questions.pop_front() {
            let copy = self.explain(self.now, question.slot, question.block);
            let Some((place, version)) = copy.and_then(|copy| copy.place.zip(copy.version)) else {
                self.end_question(question, None);
                continue;
            };
            let CopyPlace { segment, block, .. } = place;
            // That of a copy without payload is its header.
            let is_header = self.is_crc_zero(segment, block);
            let header = if is_header { block + 1 } else { block };
            let candidate = Candidate { question, version, segment, block, header };
            self.read_header(candidate, payload);
        }
    }

    fn is_crc_zero(&self, segment: u32, block: u32) -> bool {
        self.log.segments.crcs(segment)[block as usize] == Crc32c(0)
    }

    /// Reads the nearest block before `candidate.header` that may be a header.
    fn read_header(&mut self, candidate: Candidate, payload: &mut dyn Payload) {
        let Candidate { question, segment, block, .. } = candidate;
        let least = block.saturating_sub(RECORD_BLOCKS_MAX);
        let header = (least..candidate.header).rev().find(|at| self.is_crc_zero(segment, *at));
        let buffer = header.and_then(|_| payload.allocate(BLOCK_BYTES));
        let (Some(header), Some(buffer)) = (header, buffer) else {
            self.end_question(question, None);
            return;
        };
        // The segment is not used anew before the read has ended.
        self.log.segments.pin(segment);
        let length = u32::try_from(BLOCK_BYTES).expect("a block is small");
        let slices = Slices::One(BufferRange { buffer, offset: 0, length });
        let offset_bytes = self.cache_offset(self.log.position(segment, header));
        let candidate = Candidate { header, ..candidate };
        let purpose = IoPurpose::ReadHeader { candidate, buffer };
        self.submit(Device::Cache, IoKind::Read { offset_bytes, slices }, purpose);
    }

    pub(crate) fn on_header_read(
        &mut self,
        candidate: Candidate,
        buffer: BufferId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let Candidate { question, segment, block, header, .. } = candidate;
        self.log.segments.unpin(segment);
        let length = u32::try_from(BLOCK_BYTES).expect("a block is small");
        let range = BufferRange { buffer, offset: 0, length };
        let generation = self.log.segments.get(segment).generation;
        let record = result.ok().and_then(|()| {
            let bytes = payload.metadata(range);
            RecordHeader::decode(&self.log.set_id, segment, header, bytes).ok()
        });
        payload.release(buffer);
        let holds = |record: &RecordHeader| {
            record.generation == generation && block <= header + record.payload_blocks
        };
        match record.filter(holds) {
            Some(record) => {
                let place = RecordPlace { sequence: record.sequence, block: header };
                self.end_question(question, Some((candidate, place)));
            }
            // A payload block may have a checksum of zero.
            None if result.is_ok() => self.read_header(candidate, payload),
            None => self.end_question(question, None),
        }
    }

    /// Says what is known by now; the record only if the copy is the one that was looked for.
    fn end_question(&mut self, question: Question, found: Option<(Candidate, RecordPlace)>) {
        let Question { id, slot, block } = question;
        let Some(mut explanation) = self.explain(self.now, slot, block) else {
            // It was detached meanwhile.
            self.end_command(id, Err(CommandError::NoSuchVolume));
            return;
        };
        if let (Some(place), Some((candidate, record))) = (&mut explanation.place, found) {
            let is_same = (place.segment, place.block) == (candidate.segment, candidate.block)
                && explanation.version == Some(candidate.version);
            place.record = is_same.then_some(record);
        }
        self.events.push_back(Event::Explained { command: id, explanation });
        self.end_command(id, Ok(None));
    }
}
