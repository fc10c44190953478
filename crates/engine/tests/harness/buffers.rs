//! Buffers of the host: plain vectors. An id is never given out twice, so that a use after the last
//! release is noticed.

use forebay_engine::format::crc32c;
use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::units::{BLOCK_BYTES, Crc32c};

#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    references: u32,
}

#[derive(Default)]
pub(crate) struct Buffers {
    slots: Vec<Slot>,
    /// The engine gets no buffers while this is set.
    pub(crate) refuses: bool,
}

impl Buffers {
    /// A buffer with one reference, full of rubbish.
    pub(crate) fn place(&mut self, bytes: usize) -> BufferId {
        let bytes = vec![0xA5; bytes.next_multiple_of(BLOCK_BYTES)];
        self.slots.push(Slot { bytes, references: 1 });
        BufferId(u32::try_from(self.slots.len() - 1).expect("a test is short"))
    }

    pub(crate) fn bytes(&self, range: BufferRange) -> &[u8] {
        let slot = &self.slots[range.buffer.0 as usize];
        assert!(slot.references > 0, "{range:?} is used after its release");
        &slot.bytes[range.offset as usize..(range.offset + range.length) as usize]
    }

    pub(crate) fn bytes_mut(&mut self, range: BufferRange) -> &mut [u8] {
        let slot = &mut self.slots[range.buffer.0 as usize];
        assert!(slot.references > 0, "{range:?} is used after its release");
        &mut slot.bytes[range.offset as usize..(range.offset + range.length) as usize]
    }

    /// Buffers that somebody still refers to.
    pub(crate) fn held_count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.references > 0).count()
    }

    /// The process died.
    pub(crate) fn clear(&mut self) {
        for slot in &mut self.slots {
            *slot = Slot::default();
        }
    }
}

impl Payload for Buffers {
    fn allocate(&mut self, bytes: usize) -> Option<BufferId> {
        assert!(bytes > 0);
        (!self.refuses).then(|| self.place(bytes))
    }

    fn retain(&mut self, buffer: BufferId) {
        let slot = &mut self.slots[buffer.0 as usize];
        assert!(slot.references > 0, "{buffer:?} is retained after its release");
        slot.references += 1;
    }

    fn release(&mut self, buffer: BufferId) {
        let slot = &mut self.slots[buffer.0 as usize];
        assert!(slot.references > 0, "{buffer:?} is released too often");
        slot.references -= 1;
        if slot.references == 0 {
            slot.bytes = Vec::new();
        }
    }

    fn checksum(&self, block: BufferRange) -> Crc32c {
        assert_eq!(block.length as usize, BLOCK_BYTES);
        crc32c(self.bytes(block))
    }

    fn copy(&mut self, from: BufferRange, to: BufferRange) {
        let bytes = self.bytes(from).to_vec();
        self.bytes_mut(to).copy_from_slice(&bytes);
    }

    fn zero(&mut self, range: BufferRange) {
        self.bytes_mut(range).fill(0);
    }

    fn metadata(&self, range: BufferRange) -> &[u8] {
        self.bytes(range)
    }

    fn metadata_mut(&mut self, range: BufferRange) -> &mut [u8] {
        self.bytes_mut(range)
    }
}
