//! What stands in a sector: a stamp that says which write it belongs to, and where it should be.
//!
//! All 64 words of a sector follow from the first two, so a sector that holds parts of two writes,
//! a sector at a wrong place, and rubbish are each recognized from the bytes alone.

use forebay_engine::units::SECTOR_BYTES;

/// Identity of a written sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The write, as the oracle numbers it. Never zero.
    pub write: u32,
    /// Index of the volume in the run.
    pub volume: u8,
    /// Position in the volume, in sectors.
    pub sector: u32,
}

/// What a sector holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Zeroes.
    Zero,
    /// A whole stamp.
    Stamp(Stamp),
    /// Neither: rubbish, or a mixture.
    Other,
}

const TAG: u64 = 0xF0_5E_ED;
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

impl Stamp {
    fn head(&self) -> (u64, u64) {
        let first = TAG << 40 | u64::from(self.volume) << 32 | u64::from(self.write);
        (first, u64::from(self.sector) | u64::from(!self.sector) << 32)
    }

    /// Fills one sector.
    pub fn fill(&self, sector: &mut [u8]) {
        assert_eq!(sector.len(), SECTOR_BYTES);
        let (first, second) = self.head();
        let mut word = key(first, second);
        for place in sector.chunks_exact_mut(8) {
            place.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(STEP);
        }
        sector[..8].copy_from_slice(&first.to_le_bytes());
        sector[8..16].copy_from_slice(&second.to_le_bytes());
    }
}

fn key(first: u64, second: u64) -> u64 {
    (first ^ second.rotate_left(23)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ second
}

fn word_at(sector: &[u8], index: usize) -> u64 {
    let bytes = sector[index * 8..index * 8 + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(bytes)
}

/// Reads one sector.
#[must_use]
pub fn read(sector: &[u8]) -> Found {
    assert_eq!(sector.len(), SECTOR_BYTES);
    let (first, second) = (word_at(sector, 0), word_at(sector, 1));
    if first == 0 {
        let zero = sector.chunks_exact(8).all(|word| word == [0; 8]);
        return if zero { Found::Zero } else { Found::Other };
    }
    let stamp = Stamp { write: first as u32, volume: (first >> 32) as u8, sector: second as u32 };
    if (first, second) != stamp.head() {
        return Found::Other;
    }
    let mut word = key(first, second).wrapping_add(STEP.wrapping_mul(2));
    let mut difference = 0;
    for place in sector[16..].chunks_exact(8) {
        let bytes = place.try_into().expect("chunks of eight");
        difference |= u64::from_le_bytes(bytes) ^ word;
        word = word.wrapping_add(STEP);
    }
    if difference == 0 { Found::Stamp(stamp) } else { Found::Other }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Zero => write!(f, "zeroes"),
            Found::Stamp(stamp) => write!(
                f,
                "write {} of volume {} sector {}",
                stamp.write, stamp.volume, stamp.sector
            ),
            Found::Other => write!(f, "rubbish or a mixture"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_a_mixture_is_not() {
        let stamp = Stamp { write: 77, volume: 2, sector: 123_456 };
        let mut sector = [0u8; SECTOR_BYTES];
        assert_eq!(read(&sector), Found::Zero);
        stamp.fill(&mut sector);
        assert_eq!(read(&sector), Found::Stamp(stamp));
        let mut other = [0u8; SECTOR_BYTES];
        Stamp { write: 78, ..stamp }.fill(&mut other);
        for cut in [8, 16, 256, 504] {
            let mut mixed = sector;
            mixed[cut..].copy_from_slice(&other[cut..]);
            assert_eq!(read(&mixed), Found::Other);
            mixed[cut..].fill(0);
            assert_eq!(read(&mixed), Found::Other);
        }
        sector[511] ^= 1;
        assert_eq!(read(&sector), Found::Other);
    }
}
