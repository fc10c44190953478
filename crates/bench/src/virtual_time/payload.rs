//! Buffers without content: in virtual time nobody looks at the data.
//!
//! Only the engine's own metadata is kept, since it reads that back. All blocks have the same
//! checksum, so what is read from the log is what was written there as far as the engine can tell;
//! that it *is* so is the simulator's to prove, not a benchmark's.

use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::units::{BLOCK_BYTES, Crc32c};

/// What every block of payload has.
const CHECKSUM: Crc32c = Crc32c(0x5EED);

#[derive(Default)]
struct Slot {
    references: u32,
    bytes: usize,
    /// Whether it counts against the engine's share.
    is_engines: bool,
    /// Metadata; `None` for payload.
    metadata: Option<Box<[u8]>>,
}

/// All buffers of a host.
pub(super) struct Buffers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    engine_bytes: usize,
    engine_bytes_max: usize,
    /// As long as the largest buffer: the metadata that a buffer has before any is written.
    zeroes: Vec<u8>,
}

impl Buffers {
    pub(super) fn new(engine_bytes_max: usize) -> Buffers {
        let (slots, free, zeroes) = (Vec::new(), Vec::new(), Vec::new());
        Buffers { slots, free, engine_bytes: 0, engine_bytes_max, zeroes }
    }

    /// A buffer for a request of a client.
    pub(super) fn for_client(&mut self, bytes: usize) -> BufferId {
        self.place(bytes)
    }

    fn place(&mut self, bytes: usize) -> BufferId {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("far fewer buffers")
        });
        if self.zeroes.len() < bytes {
            self.zeroes.resize(bytes, 0);
        }
        self.slots[index as usize] =
            Slot { references: 1, bytes, is_engines: false, metadata: None };
        BufferId(index)
    }

    /// A buffer that counts against the engine's share.
    fn place_for_engine(&mut self, bytes: usize) -> BufferId {
        let buffer = self.place(bytes);
        let slot = self.slot(buffer);
        slot.is_engines = true;
        self.engine_bytes += self.slots[buffer.0 as usize].bytes;
        buffer
    }

    fn slot(&mut self, buffer: BufferId) -> &mut Slot {
        let slot = &mut self.slots[buffer.0 as usize];
        assert!(slot.references > 0, "{buffer:?} is used after it was freed");
        slot
    }

    /// What a block of a buffer holds for the device: its metadata without the zeroes at its end,
    /// or `None` if it is payload, or all zero.
    pub(super) fn stored(&self, buffer: BufferId, offset: usize) -> Option<Box<[u8]>> {
        let metadata = self.slots[buffer.0 as usize].metadata.as_ref()?;
        let block = &metadata[offset..offset + BLOCK_BYTES];
        let end = block.iter().rposition(|byte| *byte != 0)? + 1;
        Some(block[..end].into())
    }

    /// The device has filled a block of a buffer with what it holds.
    pub(super) fn fill(&mut self, buffer: BufferId, offset: usize, stored: &[u8]) {
        let length = BLOCK_BYTES as u32;
        let offset = u32::try_from(offset).expect("buffers are small");
        let block = self.metadata_mut(BufferRange { buffer, offset, length });
        block[..stored.len()].copy_from_slice(stored);
        block[stored.len()..].fill(0);
    }
}

impl Payload for Buffers {
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        let is_room = self.engine_bytes + bytes <= self.engine_bytes_max;
        is_room.then(|| self.place_for_engine(bytes))
    }

    fn allocate_spare(&mut self, bytes: usize) -> Option<BufferId> {
        let is_room = self.engine_bytes + bytes <= self.engine_bytes_max / 2;
        is_room.then(|| self.place_for_engine(bytes))
    }

    fn retain(&mut self, buffer: BufferId) {
        self.slot(buffer).references += 1;
    }

    fn release(&mut self, buffer: BufferId) {
        let slot = self.slot(buffer);
        slot.references -= 1;
        if slot.references == 0 {
            slot.metadata = None;
            let (bytes, is_engines) = (slot.bytes, slot.is_engines);
            if is_engines {
                self.engine_bytes -= bytes;
            }
            self.free.push(buffer.0);
        }
    }

    fn checksum(&self, _: BufferRange) -> Crc32c {
        CHECKSUM
    }

    fn copy(&mut self, _: BufferRange, _: BufferRange) {}

    fn zero(&mut self, range: BufferRange) {
        if self.slots[range.buffer.0 as usize].metadata.is_some() {
            self.metadata_mut(range).fill(0);
        }
    }

    fn metadata(&self, range: BufferRange) -> &[u8] {
        let slot = &self.slots[range.buffer.0 as usize];
        let bytes = slot.metadata.as_deref().unwrap_or(&self.zeroes);
        &bytes[range.offset as usize..][..range.length as usize]
    }

    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8] {
        let slot = self.slot(range.buffer);
        let bytes = slot.bytes;
        let metadata = slot.metadata.get_or_insert_with(|| vec![0; bytes].into());
        &mut metadata[range.offset as usize..][..range.length as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_metadata_is_stored_and_comes_back() {
        let mut buffers = Buffers::new(1 << 20);
        let buffer = buffers.allocate(2 * BLOCK_BYTES).unwrap();
        assert_eq!(buffers.stored(buffer, 0), None);
        buffers.metadata_mut(BufferRange { buffer, offset: 8, length: 2 })[1] = 7;
        let stored = buffers.stored(buffer, 0).unwrap();
        assert_eq!((stored.len(), stored[9]), (10, 7));
        assert_eq!(buffers.stored(buffer, BLOCK_BYTES), None);
        let other = buffers.allocate(BLOCK_BYTES).unwrap();
        let whole = BufferRange { buffer: other, offset: 0, length: BLOCK_BYTES as u32 };
        assert!(buffers.metadata(whole).iter().all(|byte| *byte == 0));
        buffers.fill(other, 0, &stored);
        assert_eq!(buffers.metadata(whole)[9], 7);
    }

    #[test]
    fn the_engine_has_a_share_and_gets_back_what_it_releases() {
        let mut buffers = Buffers::new(4 * BLOCK_BYTES);
        let client = buffers.for_client(64 * BLOCK_BYTES);
        let buffer = buffers.allocate(3 * BLOCK_BYTES).unwrap();
        assert_eq!(buffers.allocate(2 * BLOCK_BYTES), None);
        assert_eq!(buffers.allocate_spare(1), None);
        buffers.retain(buffer);
        buffers.release(buffer);
        assert_eq!(buffers.allocate(2 * BLOCK_BYTES), None);
        buffers.release(buffer);
        buffers.release(client);
        assert!(buffers.allocate(4 * BLOCK_BYTES).is_some());
    }
}
