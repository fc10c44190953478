//! A client that does everything that writes, at random, until its server is gone.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_device_model::Random;
use forebay_nbd::{Command, Cookie, Durability, HolePolicy, ReadChunks, Request, ZeroSpeed};

use crate::client::NbdClient;

const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES: u64 = 4096;
/// Requests under way, at most.
const QUEUE_DEPTH: u64 = 8;
/// Blocks of the longest request.
const BLOCKS_MAX: u64 = 24;
/// Sectors of the longest request that keeps to no block.
const SECTORS_MAX: u64 = 20;
/// This part of the volume gets half of the requests.
const HOT_PART: u64 = 8;

/// One client.
pub(super) struct Load {
    client: NbdClient,
    random: Random,
    seed: u64,
    next_cookie: u64,
}

impl Load {
    /// Of this seed, whose content no other seed writes.
    pub(super) fn new(client: NbdClient, seed: u64) -> Load {
        Load { client, random: Random::new(seed), seed, next_cookie: 0 }
    }

    /// Works until the connection breaks. Tells of each answer.
    pub(super) fn run(mut self, answered: &AtomicU64) {
        let mut in_flight = 0;
        loop {
            let wanted = 1 + self.random.below(QUEUE_DEPTH);
            while in_flight < wanted {
                self.submit();
                in_flight += 1;
            }
            let Ok((_, result)) = self.client.next(&mut |_, _, _| {}) else { return };
            result.expect("no request fails while the server lives");
            in_flight -= 1;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn submit(&mut self) {
        let cookie = Cookie(self.next_cookie);
        self.next_cookie += 1;
        let (mut offset_bytes, mut length_bytes) = self.range();
        let durability = match self.random.below(6) {
            0 => Durability::ForcedUnitAccess,
            _ => Durability::Completed,
        };
        let hole = match self.random.below(2) {
            0 => HolePolicy::MayPunch,
            _ => HolePolicy::KeepAllocated,
        };
        let command = match self.random.below(100) {
            0..=64 => Command::Write { durability },
            65..=69 => {
                (offset_bytes, length_bytes) = (0, 0);
                Command::Flush
            }
            70..=76 => Command::Trim { durability },
            77..=84 => Command::WriteZeroes { durability, hole, speed: ZeroSpeed::Any },
            _ => Command::Read { chunks: ReadChunks::Any },
        };
        let request = Request { cookie, command, offset_bytes, length_bytes };
        let mut payload = vec![0; request.payload_bytes() as usize];
        let mut content = Random::new(self.seed << 40 ^ cookie.0);
        for word in payload.chunks_exact_mut(8) {
            word.copy_from_slice(&content.next_u64().to_le_bytes());
        }
        self.client.queue(&request, &payload).expect("the server offers it");
    }

    fn range(&mut self) -> (u64, u32) {
        let size = self.client.size_bytes();
        let part = if self.random.below(2) == 0 { size / HOT_PART } else { size };
        let (unit, longest) = match self.random.below(3) {
            0 => (SECTOR_BYTES, SECTORS_MAX),
            _ => (BLOCK_BYTES, BLOCKS_MAX),
        };
        let offset = self.random.below(part / unit) * unit;
        let length = (1 + self.random.below(longest)) * unit;
        (offset, length.min(size - offset) as u32)
    }
}
