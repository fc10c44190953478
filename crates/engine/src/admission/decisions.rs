//! What was decided of late, and why: by region of 64 KiB, for people who ask.
//!
//! A table of fixed size. A region has its place by a hash, and the newest decision that falls
//! there is kept. Nothing depends on what it says.

use alloc::vec;
use alloc::vec::Vec;

use crate::policy::BlockKey;
use crate::status::{AdmitReason, BypassReason};
use crate::units::{Time, VolumeId};

/// Regions that are remembered at most.
const ENTRIES: usize = 4096;
/// Blocks of a region: 64 KiB.
pub(crate) const REGION_BLOCKS: u64 = 16;
/// Regions of one request that are noted at most, so that a large one leaves others their places.
pub(crate) const REGIONS_OF_REQUEST_MAX: u8 = 16;

/// What a client did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It read, or prefetched.
    Read,
    /// It wrote, discarded or wrote zeroes.
    Write,
}

/// What became of blocks that were not cached, or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They went to the cache.
    Admitted(AdmitReason),
    /// They did not.
    Bypassed(BypassReason),
}

impl Outcome {
    /// Stable name of the reason.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Outcome::Admitted(reason) => reason.name(),
            Outcome::Bypassed(reason) => reason.name(),
        }
    }
}

/// A decision about an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What the client did.
    pub access: Access,
    /// What became of it.
    pub outcome: Outcome,
}

#[derive(Clone, Copy)]
struct Entry {
    volume: VolumeId,
    region: u64,
    at: Time,
    decision: Decision,
}

pub(crate) struct DecisionTable {
    entries: Vec<Option<Entry>>,
}

impl Default for DecisionTable {
    fn default() -> Self {
        DecisionTable { entries: vec![None; ENTRIES] }
    }
}

fn place(volume: VolumeId, region: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "a hash")]
    let volume = volume.0 as u32;
    let hash = BlockKey { volume, block: region }.hash();
    usize::try_from(hash % ENTRIES as u64).expect("an index")
}

impl DecisionTable {
    /// Notes a decision about a region.
    pub(crate) fn note(&mut self, now: Time, volume: VolumeId, region: u64, decision: Decision) {
        self.entries[place(volume, region)] = Some(Entry { volume, region, at: now, decision });
    }

    /// The last decision about the region of a block and when it was taken, if it is known.
    pub(crate) fn find(&self, volume: VolumeId, block: u64) -> Option<(Decision, Time)> {
        let region = block / REGION_BLOCKS;
        let entry = self.entries[place(volume, region)]?;
        (entry.volume == volume && entry.region == region).then_some((entry.decision, entry.at))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<Option<Entry>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Decision =
        Decision { access: Access::Read, outcome: Outcome::Admitted(AdmitReason::SeenBefore) };
    const WRITE: Decision =
        Decision { access: Access::Write, outcome: Outcome::Bypassed(BypassReason::Mode) };

    #[test]
    fn the_newest_decision_of_a_region_is_known() {
        let mut table = DecisionTable::default();
        table.note(Time(1), VolumeId(1), 5, READ);
        table.note(Time(2), VolumeId(1), 5, WRITE);
        assert_eq!(table.find(VolumeId(1), 5 * REGION_BLOCKS + 15), Some((WRITE, Time(2))));
        assert_eq!(table.find(VolumeId(1), 6 * REGION_BLOCKS), None);
        assert_eq!(table.find(VolumeId(2), 5 * REGION_BLOCKS), None);
    }

    #[test]
    fn old_decisions_give_way_and_are_not_taken_for_others() {
        let mut table = DecisionTable::default();
        let regions = 3 * ENTRIES as u64;
        (0..regions).for_each(|region| table.note(Time(region), VolumeId(1), region, READ));
        let known = (0..regions)
            .filter_map(|region| Some((region, table.find(VolumeId(1), region * REGION_BLOCKS)?)));
        let known: Vec<_> = known.collect();
        assert!(known.len() > ENTRIES / 2 && known.len() <= ENTRIES);
        assert!(known.iter().all(|(region, (_, at))| at.0 == *region));
    }
}
