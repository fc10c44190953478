//! Content that says of every sector where it belongs and which write put it there.

const MARK: u64 = 0xF02E_BA70_0000_0000;
const SECTOR: usize = 512;
/// The tag of what the origin holds before anybody writes.
pub(crate) const ORIGINAL: u64 = 1_000_000;

/// What a stretch of a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// All of it was written by the write with this tag, at this place.
    Tag(u64),
    Zeroes,
    /// A mixture, or something from elsewhere.
    Garbage,
}

pub(crate) fn sector_bytes(tag: u64, slot: u16, sector: u64) -> Vec<u8> {
    let place = u64::from(slot) << 48 | sector;
    let pair = [(MARK ^ tag).to_le_bytes(), place.to_le_bytes()].concat();
    pair.repeat(SECTOR / pair.len())
}

/// `block_count` blocks from `block` on, or the part of them before `end_bytes`.
pub(crate) fn block_bytes(tag: u64, slot: u16, block: u64, block_count: u64) -> Vec<u8> {
    (block * 8..(block + block_count) * 8).flat_map(|at| sector_bytes(tag, slot, at)).collect()
}

/// Reads whole sectors, the first of which is `sector` of the volume.
pub(crate) fn content_of(bytes: &[u8], slot: u16, sector: u64) -> Content {
    if bytes.iter().all(|byte| *byte == 0) {
        return Content::Zeroes;
    }
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("a sector is longer"));
    let tag = word ^ MARK;
    let sectors = (sector..).zip(bytes.chunks_exact(SECTOR));
    let is_whole = sectors.into_iter().all(|(at, bytes)| bytes == sector_bytes(tag, slot, at));
    if is_whole { Content::Tag(tag) } else { Content::Garbage }
}
