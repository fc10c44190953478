//! What was written to each block, and what a block may hold.
//!
//! A block is filled with a stamp that names write, volume and block, so that the content of
//! another block, or a mixture of two writes, is never taken for a value of this one.

use forebay_engine::units::BLOCK_BYTES;

/// First word of a stamp, beside the number of the write.
const MARK: u64 = 0x5EED_F02E_0000_0000;
/// A block of zeroes.
pub(super) const ZEROES: u32 = 0;
/// What origins hold at first.
pub(super) const ORIGINAL: u32 = 1;

/// Content of a block.
pub(super) fn block_bytes(write: u32, volume: usize, block: u64) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    if write != ZEROES {
        let mut pair = [0; 16];
        pair[..8].copy_from_slice(&(MARK | u64::from(write)).to_le_bytes());
        pair[8..].copy_from_slice(&((volume as u64) << 48 | block).to_le_bytes());
        for place in bytes.chunks_exact_mut(pair.len()) {
            place.copy_from_slice(&pair);
        }
    }
    bytes
}

/// The write that a whole block comes from; `None` if it is no value of this block.
pub(super) fn write_of(bytes: &[u8], volume: usize, block: u64) -> Option<u32> {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let write = if word == 0 { ZEROES } else { word as u32 };
    (bytes == block_bytes(write, volume, block)).then_some(write)
}

/// Writes of one block in order.
#[derive(Clone, Debug)]
struct History {
    writes: Vec<u32>,
    /// Index of the last acknowledged one.
    acknowledged: usize,
}

/// All blocks of all volumes.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    volumes: Vec<Vec<History>>,
}

impl Ledger {
    pub(super) fn add_volume(&mut self, block_count: u64) {
        let history = History { writes: vec![ORIGINAL], acknowledged: 0 };
        self.volumes.push(vec![history; block_count as usize]);
    }

    pub(super) fn block_count(&self, volume: usize) -> u64 {
        self.volumes[volume].len() as u64
    }

    pub(super) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    fn history(&mut self, volume: usize, block: u64) -> &mut History {
        &mut self.volumes[volume][block as usize]
    }

    /// A write was handed in.
    pub(super) fn submit(&mut self, volume: usize, blocks: std::ops::Range<u64>, write: u32) {
        for block in blocks {
            self.history(volume, block).writes.push(write);
        }
    }

    /// The last write of the blocks was acknowledged.
    pub(super) fn acknowledge(&mut self, volume: usize, blocks: std::ops::Range<u64>) {
        for block in blocks {
            let history = self.history(volume, block);
            history.acknowledged = history.writes.len() - 1;
        }
    }

    /// Whether the block may have the value of this write by what was acknowledged.
    pub(super) fn is_current(&self, volume: usize, block: u64, write: u32) -> bool {
        let history = &self.volumes[volume][block as usize];
        history.writes[history.acknowledged..].contains(&write)
    }

    /// Whether the block ever had the value of this write.
    pub(super) fn is_former(&self, volume: usize, block: u64, write: u32) -> bool {
        self.volumes[volume][block as usize].writes.contains(&write)
    }
}
