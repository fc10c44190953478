//! Why a block is in the cache or not, for people who ask. Nothing here changes anything.

use crate::admission::Decision;
use crate::engine::Engine;
use crate::index::{BlankKind, Place};
use crate::units::{OriginBlock, SequenceNumber, Time, Version, VolumeSlot};

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

fn milliseconds(now: Time, since: Time) -> u64 {
    now.nanoseconds_since(since) / 1_000_000
}

impl Engine {
    /// What is known of a block; `None` if there is no such volume or block.
    #[must_use]
    pub fn explain(&self, now: Time, slot: VolumeSlot, block: OriginBlock) -> Option<Explanation> {
        let volume = self.volumes.get(usize::from(slot.0))?.as_ref()?;
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
            sequence_max: of_segment.last_sequence,
            age_ms_max: milliseconds(now, of_segment.opened_at),
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
}
