//! The payload seam: the engine moves client data without looking at it.
//!
//! Data lives in buffers that the host owns (registered with the ring in production, tokens in a
//! simulator). The engine names them by [`BufferId`], counts references, and asks for checksums and
//! copies through [`Payload`]. Only its own metadata (headers, summaries, checkpoints) does it read
//! and write as bytes.

use crate::units::Crc32c;

/// The engine's share of a host's memory, in bytes, unless the operator says otherwise: a window of
/// writeback and some segments under reclaim. Whoever models a host gives the engine as much.
pub const ENGINE_BYTES_DEFAULT: u64 = 128 << 20;

/// A buffer of the host. Valid while at least one reference is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// Bytes of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferRange {
    /// The buffer.
    pub buffer: BufferId,
    /// First byte, from the start of the buffer.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
}

impl BufferRange {
    /// The part of this range that starts `offset` bytes into it and is `length` bytes long.
    #[must_use]
    pub fn slice(&self, offset: u32, length: u32) -> BufferRange {
        assert!(offset + length <= self.length);
        BufferRange { buffer: self.buffer, offset: self.offset + offset, length }
    }
}

/// What the host does with payload for the engine.
///
/// Buffers are aligned to 4096 bytes. All ranges that the engine passes lie within their buffer.
pub trait Payload {
    /// A buffer of at least `bytes` bytes with one reference and undefined content, or `None` if
    /// the engine's share of the host's memory is used up; the engine then tries again later.
    fn allocate(&mut self, bytes: usize) -> Option<BufferId>;
    /// The same for what nothing depends on (read-ahead, prefetch) and what may stay in a record
    /// that waits for memory itself: a host whose share is bounded also answers `None` if this
    /// would leave less than half of it.
    fn allocate_spare(&mut self, bytes: usize) -> Option<BufferId> {
        self.allocate(bytes)
    }
    /// Adds a reference.
    fn retain(&mut self, buffer: BufferId);
    /// Drops a reference; with the last one the buffer is free.
    fn release(&mut self, buffer: BufferId);
    /// CRC32C of one block. `block.length` is 4096.
    fn checksum(&self, block: BufferRange) -> Crc32c;
    /// Copies payload; lengths are equal and multiples of 512, ranges do not overlap.
    fn copy(&mut self, from: BufferRange, to: BufferRange);
    /// Fills payload with zeroes; offset and length are multiples of 512.
    fn zero(&mut self, range: BufferRange);
    /// Bytes of the engine's own metadata.
    fn metadata(&self, range: BufferRange) -> &[u8];
    /// Bytes of the engine's own metadata, to be written.
    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8];
}
