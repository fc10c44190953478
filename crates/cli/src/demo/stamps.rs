//! Blocks that tell who wrote them: to see after a crash that no acknowledged write is lost.
//!
//! Each write of a block has a higher version, and its 4096 bytes follow from block and version. At
//! most one write of a block is under way. After a crash a block must be the last version that was
//! acknowledged, or the one that was under way; whole, and never older.

use std::io;

use forebay_device_model::Random;
use forebay_nbd::{Command, Cookie, Durability, ReadChunks, Request};

use super::client::{NbdClient, reply_error};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Requests under way.
const QUEUE_DEPTH: u64 = 8;

/// What is known of a block. Version zero: never written.
#[derive(Clone, Copy, Default)]
struct Stamp {
    acknowledged: u64,
    /// More than `acknowledged` while a write is under way.
    submitted: u64,
    /// The last version given out. None is used again, so that a late write would be noticed.
    highest: u64,
}

/// A run of blocks that one client writes.
pub(crate) struct Stamps {
    first_block: u64,
    stamps: Vec<Stamp>,
    random: Random,
}

/// How a comparison ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comparison {
    /// Blocks with an acknowledged write.
    pub(crate) compared: u64,
    /// Of these, blocks that have a write that was under way at the crash.
    pub(crate) newer: u64,
    /// Blocks that are neither.
    pub(crate) wrong: Vec<u64>,
}

fn fill(block: u64, version: u64, bytes: &mut [u8]) {
    let mut random = Random::new(block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
}

fn is_version(block: u64, version: u64, bytes: &[u8]) -> bool {
    let mut expected = [0; BLOCK_BYTES];
    fill(block, version, &mut expected);
    bytes == expected
}

impl Stamps {
    pub(crate) fn new(first_block: u64, count: usize, seed: u64) -> Stamps {
        Stamps { first_block, stamps: vec![Stamp::default(); count], random: Random::new(seed) }
    }

    /// Writes random blocks until `is_over`, or until the connection breaks, which is no error
    /// here. `acknowledged` is told of each answer. Returns the number of answers.
    pub(crate) fn write(
        &mut self,
        client: &mut NbdClient,
        is_over: &dyn Fn() -> bool,
        acknowledged: &dyn Fn(),
    ) -> io::Result<u64> {
        let mut answers = 0;
        let mut in_flight = 0;
        loop {
            while in_flight < QUEUE_DEPTH && !is_over() {
                self.submit(client)?;
                in_flight += 1;
            }
            if in_flight == 0 {
                return Ok(answers);
            }
            let Ok((cookie, result)) = client.next(&mut |_, _, _| {}) else {
                return Ok(answers);
            };
            result.map_err(reply_error)?;
            let index = (cookie.0 - self.first_block) as usize;
            self.stamps[index].acknowledged = self.stamps[index].submitted;
            in_flight -= 1;
            answers += 1;
            acknowledged();
        }
    }

    fn submit(&mut self, client: &mut NbdClient) -> io::Result<()> {
        let index = loop {
            let index = self.random.below(self.stamps.len() as u64) as usize;
            if self.stamps[index].acknowledged == self.stamps[index].submitted {
                break index;
            }
        };
        self.stamps[index].highest += 1;
        self.stamps[index].submitted = self.stamps[index].highest;
        let block = self.first_block + index as u64;
        let mut bytes = [0; BLOCK_BYTES];
        fill(block, self.stamps[index].submitted, &mut bytes);
        let request = Request {
            cookie: Cookie(block),
            command: Command::Write { durability: Durability::Completed },
            offset_bytes: block * BLOCK_BYTES as u64,
            length_bytes: BLOCK_BYTES as u32,
        };
        client.queue(&request, &bytes)
    }

    /// Reads every block with an acknowledged write and compares it. What is found is what counts
    /// from then on.
    pub(crate) fn compare(&mut self, client: &mut NbdClient) -> io::Result<Comparison> {
        let mut comparison = Comparison::default();
        let wanted: Vec<usize> =
            (0..self.stamps.len()).filter(|index| self.stamps[*index].submitted > 0).collect();
        let mut blocks = vec![[0; BLOCK_BYTES]; QUEUE_DEPTH as usize];
        for run in wanted.chunks(QUEUE_DEPTH as usize) {
            for (slot, index) in (0..).zip(run) {
                let request = Request {
                    cookie: Cookie(slot),
                    command: Command::Read { chunks: ReadChunks::Any },
                    offset_bytes: (self.first_block + *index as u64) * BLOCK_BYTES as u64,
                    length_bytes: BLOCK_BYTES as u32,
                };
                client.queue(&request, &[])?;
            }
            for _ in run {
                let (_, result) = client.next(&mut |cookie, offset, piece| {
                    let block = &mut blocks[cookie.0 as usize];
                    block[offset..offset + piece.len()].copy_from_slice(piece);
                })?;
                result.map_err(reply_error)?;
            }
            for (bytes, index) in blocks.iter().zip(run) {
                self.judge(*index, bytes, &mut comparison);
            }
        }
        Ok(comparison)
    }

    fn judge(&mut self, index: usize, bytes: &[u8], comparison: &mut Comparison) {
        let block = self.first_block + index as u64;
        let stamp = &mut self.stamps[index];
        let Stamp { acknowledged, submitted, .. } = *stamp;
        // Before its first acknowledged write a block may hold anything.
        comparison.compared += u64::from(acknowledged > 0);
        if is_version(block, submitted, bytes) {
            comparison.newer += u64::from(acknowledged > 0 && submitted > acknowledged);
            stamp.acknowledged = submitted;
        } else if acknowledged == 0 || is_version(block, acknowledged, bytes) {
            stamp.submitted = acknowledged;
        } else {
            comparison.wrong.push(block);
        }
    }
}
