//! Bytes at an address that direct I/O accepts, for the few synchronous transfers outside the loop.

/// Alignment of memory and, at most, of offsets in direct I/O.
const ALIGNMENT: usize = 4096;

/// Zeroed bytes that start at a multiple of 4096.
pub(crate) struct AlignedBytes {
    storage: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    /// `length` zero bytes.
    pub(crate) fn zeroed(length: usize) -> AlignedBytes {
        let storage = vec![0u8; length + ALIGNMENT];
        let start = storage.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT);
        AlignedBytes { storage, start, length }
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.length]
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.length]
    }
}
