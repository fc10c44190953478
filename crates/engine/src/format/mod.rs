//! The on-disk format, byte by byte. `docs/on-disk-format.md` is the normative text.
//!
//! Every structure begins with a CRC32C over the rest of itself, then a magic, and carries the
//! identity of its cache set, so that a stale or foreign block is never taken for ours. Reserved
//! bytes are zero and checked. Nothing here does I/O.

pub mod checkpoint;
pub mod record;
pub mod summary;
pub mod superblock;

use crate::units::Crc32c;

/// Version of the format. A device with another one is refused.
pub const FORMAT_VERSION: u32 = 2;

/// Largest number of those that only ever grow: sequence, generation, epoch, serial, id. At a
/// billion a second it is reached after 146 years. What is larger is damage; what is not can be
/// counted on.
pub const COUNTER_MAX: u64 = 1 << 62;

/// Largest version on a device: the index keeps 48 bits of it, and 2^40 of them, twelve days at a
/// million a second, are left to a life that begins there.
pub const VERSION_MAX: u64 = (1 << 48) - (1 << 40) - 1;

/// Identity of a cache set: random, given at format.
pub type SetId = [u8; 16];

/// CRC32C of metadata bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> Crc32c {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    Crc32c(u32::try_from(crc).expect("a CRC32 has 32 bits"))
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    /// A second implementation has the same opinion, at every length and alignment that matters.
    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(super::crc32c(b"123456789").0, 0xe306_9283);
        let bytes: Vec<u8> =
            (0..8192u32).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
        for from in [0, 1, 4, 7] {
            for length in [0, 1, 3, 8, 63, 64, 255, 1024, 4096, 8000] {
                let slice = &bytes[from..from + length];
                assert_eq!(super::crc32c(slice).0, crc32c::crc32c(slice));
            }
        }
    }
}
