//! What each sector of each volume may hold, by what clients asked for and were told.
//!
//! The rule is the simulator's (`crates/sim/src/oracle.rs`): a value is allowed if its write was
//! taken, and no write that must be there came wholly after it, that is, was taken after the first
//! one was answered. What must be there depends on the crash: what was answered, or what was
//! answered and then covered by a flush or FUA. A discard allows zeroes and whatever the sector
//! held before.
//!
//! Values are compared byte by byte with what the recording has of each write, so clients need not
//! write anything special; but two writes of the same bytes cannot be told apart.

use forebay_engine::request::Durability;
use forebay_host::recording::{Entry, Operation};

pub(super) const SECTOR_BYTES: usize = 512;
const BLOCK_BYTES: u64 = 4096;
/// Bytes compared at once, as long as they are as expected.
const STRIDE_BYTES: usize = 4096;

/// What a crash leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Crash {
    /// The process died: what was answered is there.
    Death,
    /// The power went: what was flushed is there.
    PowerCut,
}

struct Volume {
    /// What the volume held at first.
    initial: Vec<u8>,
    /// What it would hold if everything taken so far had been done.
    newest: Vec<u8>,
    /// Of each sector the requests that wrote it, as they came.
    writes: Vec<Vec<u32>>,
    /// Answered, and covered by no flush.
    unflushed: Vec<u32>,
}

/// The requests of a prefix.
pub(super) struct Judge<'a> {
    entries: &'a [Entry],
    volumes: Vec<Volume>,
    /// By entry: when it was answered.
    answered: Vec<Option<u32>>,
    /// By entry: whether a flush covers it.
    is_flushed: Vec<bool>,
    /// Index of the volume of an export.
    exports: Vec<usize>,
}

impl<'a> Judge<'a> {
    /// Nothing was asked for yet.
    pub(super) fn new(entries: &'a [Entry], contents: Vec<Vec<u8>>) -> Judge<'a> {
        let volume = |initial: Vec<u8>| Volume {
            newest: initial.clone(),
            writes: vec![Vec::new(); initial.len() / SECTOR_BYTES],
            unflushed: Vec::new(),
            initial,
        };
        Judge {
            entries,
            volumes: contents.into_iter().map(volume).collect(),
            answered: vec![None; entries.len()],
            is_flushed: vec![false; entries.len()],
            exports: Vec::new(),
        }
    }

    /// A volume gets its first request.
    pub(super) fn add_export(&mut self, name: &str) -> Result<(), String> {
        self.exports.push(super::images::volume_index(name)?);
        Ok(())
    }

    /// A request was taken.
    pub(super) fn take(&mut self, index: usize, export: u32, operation: &Operation) {
        let volume = &mut self.volumes[self.exports[export as usize]];
        let (offset, length) = operation.range();
        let (start, end) = match operation {
            // Parts of a block at either end stay as they are.
            Operation::Discard { .. } => {
                let end = (offset + length) / BLOCK_BYTES * BLOCK_BYTES;
                (offset.next_multiple_of(BLOCK_BYTES).min(end) as usize, end as usize)
            }
            _ => (offset as usize, (offset + length) as usize),
        };
        match operation {
            Operation::Write { data, .. } => volume.newest[start..end].copy_from_slice(data),
            Operation::WriteZeroes { .. } => volume.newest[start..end].fill(0),
            Operation::Discard { .. } | Operation::Flush => {}
        }
        for sector in &mut volume.writes[start / SECTOR_BYTES..end / SECTOR_BYTES] {
            sector.push(index as u32);
        }
    }

    /// A request was answered with success.
    pub(super) fn answer(&mut self, index: usize, request: usize) {
        let Entry::Request { export, operation, durability } = &self.entries[request] else {
            panic!("the reader has checked that entry {request} is a request");
        };
        self.answered[request] = Some(index as u32);
        let volume = &mut self.volumes[self.exports[*export as usize]];
        match (operation, durability) {
            (Operation::Flush, _) => {
                let (answered, is_flushed) = (&self.answered, &mut self.is_flushed);
                volume.unflushed.retain(|write| {
                    let is_covered = answered[*write as usize] < Some(request as u32);
                    is_flushed[*write as usize] |= is_covered;
                    !is_covered
                });
            }
            (_, Durability::ForcedUnitAccess) => self.is_flushed[request] = true,
            (_, Durability::Completed) => volume.unflushed.push(request as u32),
        }
    }

    /// How many volumes there are.
    pub(super) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Length of a volume.
    pub(super) fn volume_bytes(&self, volume: usize) -> u64 {
        self.volumes[volume].initial.len() as u64
    }

    /// Judges what was found from `offset` on, in whole sectors.
    pub(super) fn check(
        &self,
        crash: Crash,
        volume: usize,
        offset: usize,
        found: &[u8],
    ) -> Result<(), String> {
        let newest = &self.volumes[volume].newest[offset..offset + found.len()];
        let strides = found.chunks(STRIDE_BYTES).zip(newest.chunks(STRIDE_BYTES));
        for (index, (stride, expected)) in strides.enumerate() {
            // What was taken last is always allowed.
            if stride == expected {
                continue;
            }
            let first = (offset + index * STRIDE_BYTES) / SECTOR_BYTES;
            for (sector, bytes) in (first..).zip(stride.chunks_exact(SECTOR_BYTES)) {
                if !self.is_allowed(crash, volume, sector, bytes) {
                    return Err(self.describe(crash, volume, sector, bytes));
                }
            }
        }
        Ok(())
    }

    fn must_be_there(&self, crash: Crash, write: u32) -> bool {
        match crash {
            Crash::Death => self.answered[write as usize].is_some(),
            Crash::PowerCut => self.is_flushed[write as usize],
        }
    }

    fn is_allowed(&self, crash: Crash, volume: usize, sector: usize, found: &[u8]) -> bool {
        let writes = &self.volumes[volume].writes[sector];
        // The last request that must be there; what was answered before it was taken is gone.
        let last = writes.iter().rev().find(|write| self.must_be_there(crash, **write));
        let Some(last) = last else {
            return self.held(volume, sector, writes.len(), found);
        };
        (0..writes.len()).any(|at| {
            let is_over = self.answered[writes[at] as usize].is_some_and(|when| when < *last);
            !is_over && self.is_value(volume, sector, at, found)
        })
    }

    /// Whether the sector may have held this before its write number `at`.
    fn held(&self, volume: usize, sector: usize, at: usize, found: &[u8]) -> bool {
        let start = sector * SECTOR_BYTES;
        self.volumes[volume].initial[start..start + SECTOR_BYTES] == *found
            || (0..at).any(|at| self.is_value(volume, sector, at, found))
    }

    /// Whether write number `at` of the sector may have left this.
    fn is_value(&self, volume: usize, sector: usize, at: usize, found: &[u8]) -> bool {
        let write = self.volumes[volume].writes[sector][at];
        let Entry::Request { operation, .. } = &self.entries[write as usize] else {
            panic!("only requests are noted");
        };
        let is_zero = || found.iter().all(|byte| *byte == 0);
        match operation {
            Operation::Write { offset_bytes, data } => {
                let start = sector * SECTOR_BYTES - *offset_bytes as usize;
                data[start..start + SECTOR_BYTES] == *found
            }
            Operation::WriteZeroes { .. } => is_zero(),
            Operation::Discard { .. } => is_zero() || self.held(volume, sector, at, found),
            Operation::Flush => false,
        }
    }

    fn describe(&self, crash: Crash, volume: usize, sector: usize, found: &[u8]) -> String {
        let writes = &self.volumes[volume].writes[sector];
        let of = (0..writes.len()).rev().find(|at| self.is_value(volume, sector, *at, found));
        let found_text = match of {
            Some(at) => format!("entry {}", writes[at]),
            None if self.held(volume, sector, 0, found) => "what was there at first".to_owned(),
            None => format!("bytes that nobody wrote there, {:02x?}...", &found[..16]),
        };
        let mut text = format!(
            "volume {volume}, sector {sector}: found {found_text}; after {crash:?} it may not have \
             that; its requests:"
        );
        for write in writes.iter().rev().take(8) {
            let (answered, flushed) =
                (self.answered[*write as usize], self.is_flushed[*write as usize]);
            let answered =
                answered.map_or("not answered".to_owned(), |at| format!("answered at {at}"));
            let flushed = if flushed { ", flushed" } else { "" };
            let kind = match &self.entries[*write as usize] {
                Entry::Request { operation: Operation::Discard { .. }, .. } => "discard",
                Entry::Request { operation: Operation::WriteZeroes { .. }, .. } => "write zeroes",
                _ => "write",
            };
            text.push_str(&format!("\n    {kind} of entry {write}, {answered}{flushed}"));
        }
        text
    }
}
