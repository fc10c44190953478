//! Damage to a string of bytes.

use forebay_engine::format::crc32c;

use crate::random::Random;

/// Numbers on the edges of what fields may hold: block and record limits, 32 bits, 2^40 blocks, 48
/// bits of a version, 64 bits.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    3,
    7,
    255,
    256,
    257,
    4096,
    0xFFFF,
    1 << 31,
    0xFFFF_FFFF,
    1 << 32,
    1 << 40,
    (1 << 48) - 1,
    1 << 48,
    1 << 62,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];
/// Longest stretch that is changed as a whole.
const STRETCH_BYTES_MAX: usize = 64;

/// Whether the checksum at the start of a structure is made good again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// It is left alone, as by a disk.
    Kept,
    /// It fits the changed bytes.
    Forged,
}

/// Changes something in the first `length` bytes, which are not none.
pub fn damage(bytes: &mut [u8], length: usize, random: &mut Random) {
    let bytes = &mut bytes[..length];
    match random.below(10) {
        0..=5 => set_number(bytes, random),
        6 => bytes[random.index(length)] ^= 1 << random.below(8),
        7 => bytes[random.index(length)] = random.bits() as u8,
        8 => {
            let fill = *random.pick(&[0, 0xFF]);
            stretch(bytes, random).fill(fill);
        }
        _ => {
            let from = stretch(bytes, random).to_vec();
            let to = random.index(length - from.len() + 1);
            bytes[to..to + from.len()].copy_from_slice(&from);
        }
    }
}

/// Puts a number of 1, 2, 4 or 8 bytes where one may stand: at a multiple of its size.
fn set_number(bytes: &mut [u8], random: &mut Random) {
    let size = *random.pick(&[1, 2, 4, 4, 8, 8, 8]);
    if bytes.len() < size {
        return;
    }
    let at = random.index(bytes.len() / size) * size;
    let field = &mut bytes[at..at + size];
    let mut old = [0; 8];
    old[..size].copy_from_slice(field);
    let old = u64::from_le_bytes(old);
    let new = match random.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        _ => *random.pick(&EDGES),
    };
    field.copy_from_slice(&new.to_le_bytes()[..size]);
}

fn stretch<'a>(bytes: &'a mut [u8], random: &mut Random) -> &'a mut [u8] {
    let length = 1 + random.index(bytes.len().min(STRETCH_BYTES_MAX));
    let start = random.index(bytes.len() - length + 1);
    &mut bytes[start..start + length]
}

/// Makes the checksum good that stands at the start of every structure.
pub fn seal(bytes: &mut [u8]) {
    let crc = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.0.to_le_bytes());
}

/// Damages a structure of which the first `length` bytes tell most, or leaves it as it is.
pub(super) fn damage_structure(bytes: &mut [u8], length: usize, random: &mut Random) {
    if random.percent(10) {
        return;
    }
    let whole = bytes.len();
    for _ in 0..random.between(1..=3) {
        damage(bytes, if random.percent(90) { length } else { whole }, random);
    }
    if random.percent(85) {
        seal(bytes);
    }
}
