//! Device operations that wait for the test to complete them.

use forebay_engine::format::record::{EntryKind, RecordHeader};
use forebay_engine::io::{Device, IoId, Slices};
use forebay_engine::units::VolumeSlot;

/// What an operation is, as far as its bytes tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Read,
    /// A write to an origin.
    Write,
    Flush,
    Discard,
    WriteZeroes,
    Record(RecordHeader),
    Summary,
    Checkpoint,
    Superblock,
}

pub(crate) struct Held {
    pub(crate) id: IoId,
    pub(crate) device: Device,
    pub(crate) what: What,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// What a write carries.
    pub(crate) bytes: Vec<u8>,
    pub(crate) slices: Option<Slices>,
    /// What a flush has to cover.
    pub(crate) flush_mark: u64,
}

impl Held {
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self.what, What::Read | What::Flush)
    }

    pub(crate) fn overlaps(&self, offset: u64, length: u64) -> bool {
        self.offset < offset + length && offset < self.offset + self.length
    }

    /// The header, if this is a record of the log.
    pub(crate) fn record(&self) -> Option<&RecordHeader> {
        match &self.what {
            What::Record(header) if self.device == Device::Cache => Some(header),
            _ => None,
        }
    }
}

/// Which operations of the cache device a test means.
pub(crate) mod cache {
    use super::{Device, EntryKind, Held, What};

    pub(crate) fn any(held: &Held) -> bool {
        held.device == Device::Cache
    }

    pub(crate) fn read(held: &Held) -> bool {
        any(held) && held.what == What::Read
    }

    pub(crate) fn flush(held: &Held) -> bool {
        any(held) && held.what == What::Flush
    }

    pub(crate) fn discard(held: &Held) -> bool {
        any(held) && held.what == What::Discard
    }

    pub(crate) fn record(held: &Held) -> bool {
        held.record().is_some()
    }

    pub(crate) fn checkpoint(held: &Held) -> bool {
        held.what == What::Checkpoint
    }

    pub(crate) fn superblock(held: &Held) -> bool {
        held.what == What::Superblock
    }

    pub(crate) fn summary(held: &Held) -> bool {
        held.what == What::Summary
    }

    fn has_entry(held: &Held, is_it: impl Fn(EntryKind) -> bool) -> bool {
        held.record().is_some_and(|header| header.entries.iter().any(|entry| is_it(entry.kind)))
    }

    pub(crate) fn drop_record(held: &Held) -> bool {
        has_entry(held, |kind| matches!(kind, EntryKind::Drop { .. }))
    }

    pub(crate) fn invalidation(held: &Held) -> bool {
        has_entry(held, |kind| kind == EntryKind::Invalidate)
    }

    pub(crate) fn poison(held: &Held) -> bool {
        has_entry(held, |kind| kind == EntryKind::Poison)
    }

    /// A record with a copy of this block.
    pub(crate) fn record_of(block: u64) -> impl Fn(&Held) -> bool {
        move |held| {
            held.record().is_some_and(|header| {
                let mut entries = header.entries.iter();
                entries.any(|entry| {
                    let end = entry.start + u64::from(entry.block_count);
                    (entry.start..end).contains(&block)
                        && !matches!(entry.kind, EntryKind::Drop { .. } | EntryKind::Invalidate)
                })
            })
        }
    }
}

/// Which operations of an origin a test means.
pub(crate) mod origin {
    use super::{Device, Held, VolumeSlot, What};

    pub(crate) fn any(slot: u16) -> impl Fn(&Held) -> bool {
        move |held| held.device == Device::Origin(VolumeSlot(slot))
    }

    pub(crate) fn read(slot: u16) -> impl Fn(&Held) -> bool {
        move |held| any(slot)(held) && held.what == What::Read
    }

    /// Anything that changes the origin.
    pub(crate) fn write(slot: u16) -> impl Fn(&Held) -> bool {
        move |held| any(slot)(held) && held.is_write()
    }

    pub(crate) fn flush(slot: u16) -> impl Fn(&Held) -> bool {
        move |held| any(slot)(held) && held.what == What::Flush
    }
}
