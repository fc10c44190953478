//! Requests of the admin side: ranges that are to be brought into the cache.
//!
//! They are prefetches like those of clients, so they wait behind nothing and nobody waits for
//! them. Their ids lie beyond those of clients' requests.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_engine::event::CommandError;
use forebay_engine::request::{Reply, Request, RequestId, RequestKind};
use forebay_engine::units::BLOCK_BYTES;

use super::handle::{AdminError, Answer};
use super::run::Running;

/// The first id that no request of a client has.
const FIRST_ID: u64 = 1 << 32;
/// Most ranges under way; each is some transfers of the origin.
const FETCHES_MAX: usize = 16;
/// Largest range of one request: four transfers.
const FETCH_BLOCKS_MAX: u64 = 1024;

/// Ranges under way, by id.
#[derive(Default)]
pub(super) struct Fetches {
    answers: BTreeMap<u64, Answer<(), AdminError>>,
    count: u64,
}

impl Fetches {
    /// Takes the reply to one of them, or gives it back.
    pub(super) fn take_reply(&mut self, reply: Reply) -> Option<Reply> {
        if reply.id.0 < FIRST_ID {
            return Some(reply);
        }
        if let Some(answer) = self.answers.remove(&reply.id.0) {
            answer.send(reply.result.map_err(|error| AdminError::Fetch { error }));
        }
        None
    }
}

impl Running {
    /// Brings blocks of a volume into the cache: at most [`FETCH_BLOCKS_MAX`] from the first on.
    pub(super) fn fetch(
        &mut self,
        volume: &str,
        blocks: &Range<u64>,
        answer: Answer<(), AdminError>,
    ) {
        let Some(set) = self.set.as_mut() else {
            answer.send(Err(AdminError::NoCacheSet));
            return;
        };
        let table = set.engine.superblock();
        let found = table.slots().find(|(_, entry)| entry.name == volume);
        let Some((slot, entry)) = found else {
            answer.send(Err(AdminError::NoSuchVolume { name: volume.to_owned() }));
            return;
        };
        if self.fetches.answers.len() >= FETCHES_MAX {
            answer.send(Err(AdminError::Engine(CommandError::Busy)));
            return;
        }
        let block = BLOCK_BYTES as u64;
        let end = blocks.end.min(blocks.start.saturating_add(FETCH_BLOCKS_MAX));
        let end_bytes = end.saturating_mul(block).min(entry.size_bytes);
        let offset_bytes = blocks.start.saturating_mul(block);
        if end_bytes <= offset_bytes {
            answer.send(Ok(()));
            return;
        }
        let id = FIRST_ID + self.fetches.count;
        self.fetches.count += 1;
        self.fetches.answers.insert(id, answer);
        let request = Request {
            id: RequestId(id),
            volume: slot,
            offset_bytes,
            length_bytes: end_bytes - offset_bytes,
            kind: RequestKind::Prefetch,
        };
        set.engine.handle_request(self.now, request, &mut self.pool);
    }
}
