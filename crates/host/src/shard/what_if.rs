//! What a smaller or larger cache would find of the requests that come in.
//!
//! Requests are noted as they arrive, on the thread that serves them; most blocks are in no sample
//! (`forebay_advisor::curve::WhatIf`). The miniatures know of modes what stands here, and nothing
//! of admission, pauses and errors: they are what the default policy would do if everything were
//! cached at once.

use forebay_advisor::curve::{ClientOperation, ClientRequest, Estimate, WhatIf};
use forebay_engine::format::superblock::{Geometry, Superblock};
use forebay_engine::options::CacheMode;
use forebay_engine::request::{Request, RequestKind};
use forebay_engine::units::BLOCK_BYTES;

/// A larger discard (256 MiB) is not looked at block by block: that would hold up everybody. What
/// it should take out of the sample ages, and goes.
const DISCARD_BLOCKS_MAX: u64 = 1 << 16;

/// The curve of a set.
pub(super) struct LiveCurve {
    what_if: WhatIf,
}

impl LiveCurve {
    /// Beside the log of a cache device, all of it.
    pub(super) fn new(geometry: &Geometry) -> LiveCurve {
        let segments = u64::from(geometry.segment_count);
        let blocks = segments * u64::from(geometry.segment_blocks());
        LiveCurve { what_if: WhatIf::new(blocks.max(1)) }
    }

    /// Notes what a client asks for.
    pub(super) fn note(&mut self, superblock: &Superblock, request: &Request) {
        let Some(volume) = superblock.volume(request.volume) else { return };
        let Some(operation) = operation(volume.mode, &request.kind) else { return };
        let (first_block, block_count) = match operation {
            ClientOperation::Use => touched(request),
            ClientOperation::Discard => covered(request),
        };
        if operation == ClientOperation::Discard && block_count > DISCARD_BLOCKS_MAX {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "ids count attaches")]
        let volume = volume.id.0 as u32;
        self.what_if.note(&ClientRequest {
            volume,
            first_block,
            block_count: u32::try_from(block_count).expect("32 MiB at most"),
            operation,
        });
    }

    /// The smallest size first.
    pub(super) fn estimates(&self) -> Vec<Estimate> {
        self.what_if.estimates().to_vec()
    }
}

/// What a request is to a cache that keeps what is used; `None` if nothing. Blocks of zeroes and
/// discarded ones take no room. What is written around a cache is not in it from then on.
fn operation(mode: CacheMode, kind: &RequestKind) -> Option<ClientOperation> {
    match (kind, mode) {
        (RequestKind::Flush | RequestKind::Prefetch, _) | (_, CacheMode::Passthrough) => None,
        (RequestKind::Read { .. }, CacheMode::Writeonly) => None,
        (RequestKind::Read { .. }, _) => Some(ClientOperation::Use),
        (RequestKind::Write { .. }, CacheMode::Writearound) => Some(ClientOperation::Discard),
        (RequestKind::Write { .. }, _) => Some(ClientOperation::Use),
        (RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. }, _) => {
            Some(ClientOperation::Discard)
        }
    }
}

/// Blocks that the request touches: the first, and how many.
fn touched(request: &Request) -> (u64, u64) {
    let block = BLOCK_BYTES as u64;
    let start = request.offset_bytes / block;
    (start, (request.offset_bytes + request.length_bytes).div_ceil(block) - start)
}

/// Blocks of which nothing is left.
fn covered(request: &Request) -> (u64, u64) {
    let block = BLOCK_BYTES as u64;
    let start = request.offset_bytes.div_ceil(block);
    let end = (request.offset_bytes + request.length_bytes) / block;
    (start, end.saturating_sub(start))
}

#[cfg(test)]
mod tests {
    use forebay_engine::payload::BufferId;
    use forebay_engine::request::{Durability, RequestId};
    use forebay_engine::units::VolumeSlot;

    use super::*;

    fn request(kind: RequestKind, offset_bytes: u64, length_bytes: u64) -> Request {
        Request { id: RequestId(1), volume: VolumeSlot(0), offset_bytes, length_bytes, kind }
    }

    #[test]
    fn modes_decide_what_enters_the_cache() {
        let read = RequestKind::Read { buffer: BufferId(0) };
        let write = RequestKind::Write { buffer: BufferId(0), durability: Durability::Completed };
        let (enters, leaves) = (Some(ClientOperation::Use), Some(ClientOperation::Discard));
        for (mode, of_read, of_write) in [
            (CacheMode::Writeback, enters, enters),
            (CacheMode::Writethrough, enters, enters),
            (CacheMode::Writearound, enters, leaves),
            (CacheMode::Writeonly, None, enters),
            (CacheMode::Passthrough, None, None),
        ] {
            assert_eq!(operation(mode, &read), of_read, "{mode:?}");
            assert_eq!(operation(mode, &write), of_write, "{mode:?}");
            assert_eq!(operation(mode, &RequestKind::Flush), None);
        }
    }

    #[test]
    fn a_block_is_used_by_any_of_its_bytes_and_gone_with_all_of_them() {
        let discard = RequestKind::Discard { durability: Durability::Completed };
        let request = request(discard, 4_096 - 512, 8_192);
        assert_eq!(touched(&request), (0, 3));
        assert_eq!(covered(&request), (1, 1));
        let small = Request { length_bytes: 512, ..request };
        assert_eq!(covered(&small).1, 0);
    }
}
