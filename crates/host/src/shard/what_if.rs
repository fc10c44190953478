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
use forebay_engine::units::{BLOCK_BYTES, Time};

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
    pub(super) fn note(&mut self, now: Time, superblock: &Superblock, request: &Request) {
        let Some(volume) = superblock.volume(request.volume) else { return };
        let Some(operation) = operation(volume.mode, &request.kind) else { return };
        #[expect(clippy::cast_possible_truncation, reason = "ids count attaches")]
        let id = volume.id.0 as u32;
        let bytes = request.offset_bytes..request.offset_bytes + request.length_bytes;
        let noted = ClientRequest::of_bytes(id, operation, bytes, BLOCK_BYTES as u64);
        if operation == ClientOperation::Discard && noted.block_count > DISCARD_BLOCKS_MAX {
            return;
        }
        self.what_if.note(now, &noted);
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

#[cfg(test)]
mod tests {
    use forebay_engine::payload::BufferId;
    use forebay_engine::request::Durability;

    use super::*;

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
}
