//! Was an origin written behind our back while nobody served it?
//!
//! At a clean stop the checksum of the origin's first 64 KiB, where file systems and partition
//! tables keep what they touch at every mount, goes into the volume table. At the next start it is
//! compared, and removed durably before anything is written. After a crash there is none; then the
//! clean copies of these blocks are compared. It is best effort: what was changed elsewhere is not
//! noticed, nor anything while the origin cannot be read there. With a difference the clean copies
//! are dropped; if dirty data exists the volume is not served.

use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::event::Event;
use crate::format::crc32c;
use crate::index::Place;
use crate::io::IoResult;
use crate::path::read::Span;
use crate::payload::{BufferRange, Payload};
use crate::units::{BLOCK_BYTES, CacheBlock, Crc32c, VolumeSlot};
use crate::volume::Service;

/// Blocks that are compared: 64 KiB.
const HEAD_BLOCKS: u64 = 16;

/// The first blocks of the origins, being read.
#[derive(Default)]
pub(crate) struct HeadReads {
    waiting: Vec<VolumeSlot>,
    in_flight: usize,
    is_begun: bool,
    /// Checksums by volume; none if the origin could not be read.
    found: Vec<(VolumeSlot, Option<Vec<Crc32c>>)>,
}

impl Engine {
    /// Reads the heads of all served origins; `true` once that is done.
    pub(crate) fn advance_heads(&mut self, payload: &mut dyn Payload) -> bool {
        if !self.heads.is_begun {
            let mut slots = self.volume_slots();
            slots.retain(|slot| self.volume(*slot).service == Service::Cached);
            self.heads = HeadReads { waiting: slots, is_begun: true, ..HeadReads::default() };
        }
        while let Some(slot) = self.heads.waiting.last().copied() {
            let block_count = self.volume(slot).block_count().min(HEAD_BLOCKS);
            let bytes = usize::try_from(block_count).expect("HEAD_BLOCKS") * BLOCK_BYTES;
            let Some(buffer) = payload.allocate(bytes) else {
                self.wait_for_memory();
                return false;
            };
            self.heads.waiting.pop();
            self.heads.in_flight += 1;
            let length = u32::try_from(bytes).expect("64 KiB");
            let target = BufferRange { buffer, offset: 0, length };
            let span = Span { start: 0, block_count, target };
            let purpose = IoPurpose::OriginHead { slot, range: target };
            self.submit_origin_read(slot, span, purpose, payload);
        }
        self.heads.in_flight == 0
    }

    pub(crate) fn on_head_read(
        &mut self,
        slot: VolumeSlot,
        range: BufferRange,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        self.heads.in_flight -= 1;
        let block = BLOCK_BYTES as u32;
        let blocks = 0..range.length / block;
        let checksum = |index| payload.checksum(range.slice(index * block, block));
        let crcs = result.is_ok().then(|| blocks.map(checksum).collect());
        self.heads.found.push((slot, crcs));
        payload.release(range.buffer);
    }

    /// At a clean stop: puts the fingerprints into the volume table.
    pub(crate) fn store_fingerprints(&mut self) {
        for (slot, crcs) in core::mem::take(&mut self.heads).found {
            let volume = self.volume(slot);
            let is_sure = !volume.has_lost_writes && !volume.had_write_errors;
            if let Some(stored) = self.superblock.volumes[usize::from(slot.0)].as_mut() {
                stored.fingerprint = crcs.filter(|_| is_sure).map(|crcs| combine(&crcs));
            }
        }
    }

    /// At recovery: compares, and decides for each volume. Tells whether the volume table changed.
    pub(crate) fn check_fingerprints(&mut self) -> bool {
        let mut is_changed = false;
        for (slot, crcs) in core::mem::take(&mut self.heads).found {
            let stored = self.superblock.volume(slot).and_then(|volume| volume.fingerprint);
            let is_same = match (stored, crcs) {
                (Some(fingerprint), Some(crcs)) => fingerprint == combine(&crcs),
                (None, Some(crcs)) => self.agrees_with_clean_copies(slot, &crcs),
                // The volume is served and will be written: later its fingerprint would mislead.
                (_, None) => true,
            };
            let is_same = is_same || has_defect(Defect::FingerprintsIgnored);
            if is_same {
                is_changed |= stored.is_some();
            } else {
                let has_dirty = self.volume(slot).dirty_blocks > 0;
                self.events.push_back(Event::OriginChanged { volume: slot, has_dirty });
                if has_dirty {
                    // Kept as it is, with its fingerprint: the operator decides.
                    self.volume_mut(slot).service = Service::Quiesced;
                    continue;
                }
                self.void_volume(slot);
                is_changed = true;
            }
            if let Some(stored) = self.superblock.volumes[usize::from(slot.0)].as_mut() {
                stored.fingerprint = None;
            }
        }
        is_changed
    }

    fn agrees_with_clean_copies(&self, slot: VolumeSlot, crcs: &[Crc32c]) -> bool {
        let mut pieces = Vec::new();
        self.volume(slot).index.complete.pieces(0, crcs.len() as u64, &mut pieces);
        pieces.iter().all(|piece| {
            let Place::Data(position) = piece.place else { return true };
            (piece.start..piece.end()).all(|block| {
                let offset = u32::try_from(block - piece.start).expect("data pieces are small");
                let at = CacheBlock(position.0 + offset);
                let found = usize::try_from(block).ok().and_then(|index| crcs.get(index));
                !self.log.segments.is_clean(at) || found == Some(&self.log.segments.crc(at))
            })
        })
    }
}

/// One checksum over those of the blocks.
fn combine(crcs: &[Crc32c]) -> u32 {
    let bytes: Vec<u8> = crcs.iter().flat_map(|crc| crc.0.to_le_bytes()).collect();
    crc32c(&bytes).0
}
