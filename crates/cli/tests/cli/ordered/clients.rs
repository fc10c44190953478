//! Clients that write numbered blocks and note what they are told.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_device_model::Random;
use forebay_nbd::{Command, Cookie, Durability, Request};

use super::history::{BLOCK_BYTES, FlushPoint, Forced, Log, content};
use crate::client::NbdClient;

/// Requests under way, at most.
const QUEUE_DEPTH: usize = 8;
/// One write in so many has FUA.
const FORCED_ONE_IN: u64 = 20;
/// One request in so many is a flush.
const FLUSH_ONE_IN: u64 = 100;
/// This part of the volume gets half of the writes: blocks that are dirty in several epochs.
const HOT_PART: u64 = 16;

/// Whether clients flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flushes {
    Never,
    Sometimes,
}

/// One client.
pub(super) struct Client<'a> {
    /// It has this block, and each so many blocks further, below that one.
    pub(super) blocks: (u32, u32, u32),
    pub(super) random: Random,
    pub(super) flushes: Flushes,
    /// The moments of all clients.
    pub(super) clock: &'a AtomicU64,
    pub(super) log: &'a mut Log,
}

/// A request that was sent.
enum UnderWay {
    Write { index: usize, block: u32 },
    Flush { sent: u64 },
}

impl Client<'_> {
    /// Works until the connection breaks. Counts answers.
    pub(super) fn run(mut self, mut connection: NbdClient, answers: &AtomicU64) {
        // The index is the cookie.
        let mut slots: [Option<UnderWay>; QUEUE_DEPTH] = [const { None }; QUEUE_DEPTH];
        loop {
            for slot in 0..QUEUE_DEPTH {
                if slots[slot].is_none() {
                    slots[slot] = Some(self.send(&mut connection, slot, &slots));
                }
            }
            let Ok((cookie, result)) = connection.next(&mut |_, _, _| {}) else { return };
            result.expect("no request fails while the server lives");
            let answered = self.moment();
            match slots[cookie.0 as usize].take().expect("it was sent") {
                UnderWay::Write { index, .. } => self.log.answer(index, answered),
                UnderWay::Flush { sent } => self.log.points.push(FlushPoint { sent, answered }),
            }
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn moment(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// A flush or a write of a block of which no write is under way.
    fn send(
        &mut self,
        connection: &mut NbdClient,
        slot: usize,
        slots: &[Option<UnderWay>],
    ) -> UnderWay {
        let cookie = Cookie(slot as u64);
        if self.flushes == Flushes::Sometimes && self.random.below(FLUSH_ONE_IN) == 0 {
            let sent = self.moment();
            let command = Command::Flush;
            let request = Request { cookie, command, offset_bytes: 0, length_bytes: 0 };
            connection.queue(&request, &[]).expect("the server offers it");
            return UnderWay::Flush { sent };
        }
        let block = loop {
            let block = self.any_block();
            let is_busy = slots.iter().flatten().any(
                |other| matches!(other, UnderWay::Write { block: busy, .. } if *busy == block),
            );
            if !is_busy {
                break block;
            }
        };
        let (durability, forced) = match self.random.below(FORCED_ONE_IN) {
            0 => (Durability::ForcedUnitAccess, Forced::Yes),
            _ => (Durability::Completed, Forced::No),
        };
        let sent = self.moment();
        let index = self.log.send(block, sent, forced);
        let (first, step, _) = self.blocks;
        let number = index as u64 * u64::from(step) + u64::from(first) + 1;
        let request = Request {
            cookie,
            command: Command::Write { durability },
            offset_bytes: u64::from(block) * BLOCK_BYTES as u64,
            length_bytes: BLOCK_BYTES as u32,
        };
        connection.queue(&request, &content(block, number)).expect("the server offers it");
        UnderWay::Write { index, block }
    }

    fn any_block(&mut self) -> u32 {
        let (first, step, blocks) = self.blocks;
        let all = u64::from(blocks / step);
        let part = if self.random.below(2) == 0 { all / HOT_PART } else { all };
        first + self.random.below(part) as u32 * step
    }
}
