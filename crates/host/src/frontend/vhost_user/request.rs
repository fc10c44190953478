//! Between the driver's terms and the engine's: requests one way, results the other.
//!
//! A request's header, data and status may be cut into segments in any way. Whatever the guest asks
//! is judged here, before anybody else sees it.

use forebay_engine::request::{Durability, RequestError};
use forebay_engine::units::BLOCK_BYTES;
use zerocopy::IntoBytes;

use super::abi::{
    self, BlockConfig, BlockHeader, BlockRange, ID_BYTES, RANGE_UNMAP, SECTOR_BYTES, feature, kind,
    status,
};
use super::memory::{Memory, Segment};
use super::ring::{Chain, RingFault};
use crate::frontend::block_request::{BlockRequest, Want};
use crate::shard::exports::ExportFacts;

/// Largest read or write: what other front ends take, too.
pub(super) const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Largest discard and write zeroes: bounds what one request may hold up.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// Segments of data in a request. What a ring of the usual size (128) has room for beside header
/// and status.
pub(super) const DATA_SEGMENTS_MAX: usize = 126;
/// Queues that a front end may use.
pub(super) const QUEUE_COUNT_MAX: u16 = 64;

/// What a device is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    pub(super) size_bytes: u64,
    pub(super) logical_block_bytes: u32,
    pub(super) optimal_io_bytes: u32,
    pub(super) is_read_only: bool,
    /// What the serial number is made of.
    pub(super) identity: u64,
}

impl Geometry {
    pub(super) fn of(facts: &ExportFacts) -> Geometry {
        let unit = u64::from(facts.logical_block_bytes);
        Geometry {
            // Bytes behind the last whole logical block cannot be addressed.
            size_bytes: facts.size_bytes / unit * unit,
            logical_block_bytes: facts.logical_block_bytes,
            optimal_io_bytes: facts.optimal_io_bytes,
            is_read_only: facts.is_read_only,
            identity: facts.identity,
        }
    }

    /// What is offered to drivers.
    pub(super) fn features(&self) -> u64 {
        let common = feature::SEGMENTS_MAX
            | feature::BLOCK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::MULTIPLE_QUEUES
            | feature::INDIRECT
            | feature::EVENT_INDEX
            | feature::PROTOCOL
            | feature::VERSION_1;
        let changing = feature::DISCARD | feature::WRITE_ZEROES;
        common | if self.is_read_only { feature::READ_ONLY } else { changing }
    }

    /// What drivers are shown.
    pub(super) fn config(&self) -> BlockConfig {
        let logical = self.logical_block_bytes;
        let block = BLOCK_BYTES as u32;
        let optimal = self.optimal_io_bytes.max(block).next_multiple_of(logical);
        let range_sectors = (RANGE_BYTES_MAX / SECTOR_BYTES) as u32;
        BlockConfig {
            capacity: (self.size_bytes / SECTOR_BYTES).into(),
            segments_max: (DATA_SEGMENTS_MAX as u32).into(),
            block_bytes: logical.into(),
            // Parts of a block are merged, which costs a read.
            physical_block_shift: (block / logical).trailing_zeros() as u8,
            least_io: ((block / logical) as u16).into(),
            optimal_io: (optimal / logical).into(),
            writeback: 1,
            queue_count: QUEUE_COUNT_MAX.into(),
            discard_sectors_max: range_sectors.into(),
            discard_segments_max: 1.into(),
            discard_alignment: (block / SECTOR_BYTES as u32).into(),
            write_zeroes_sectors_max: range_sectors.into(),
            write_zeroes_segments_max: 1.into(),
            write_zeroes_may_unmap: 1,
            ..BlockConfig::default()
        }
    }

    /// The serial number, which stays the same over restarts.
    pub(super) fn serial(&self) -> [u8; ID_BYTES] {
        let mut serial = [0; ID_BYTES];
        let text = format!("forebay-{:08x}", self.identity & u64::from(u32::MAX));
        serial[..text.len()].copy_from_slice(text.as_bytes());
        serial
    }
}

/// What was made of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Judged {
    /// For the engine. Its data is in the segments that the chain still has.
    Request(BlockRequest),
    /// The serial number is wanted.
    Identify,
    /// To be answered with this status, because of this.
    Refused(u8, &'static str),
}

/// Takes the byte for the status off a chain.
///
/// # Errors
/// If there is none: nothing can be answered then.
pub(super) fn take_status(chain: &mut Chain) -> Result<u64, RingFault> {
    while let Some(last) = chain.writable.last_mut() {
        let address = last.address;
        let Some(rest) = last.bytes.checked_sub(1) else {
            chain.writable.pop();
            continue;
        };
        last.bytes = rest;
        // What is left is data, of which drivers may count the segments.
        if rest == 0 {
            chain.writable.pop();
        }
        return Ok(address + u64::from(rest));
    }
    Err(RingFault::NoStatus)
}

/// Judges a request whose status byte was taken off. Its header is taken off, too.
pub(super) fn judge(
    geometry: &Geometry,
    features: u64,
    memory: &Memory,
    chain: &mut Chain,
) -> Judged {
    let mut header = BlockHeader::default();
    if !take_front(memory, &mut chain.readable, header.as_mut_bytes()) {
        return Judged::Refused(status::FAILED, "it has no header");
    }
    // Without flushes in its terms a driver takes for durable what has ended.
    let durability = if features & feature::FLUSH == 0 {
        Durability::ForcedUnitAccess
    } else {
        Durability::Completed
    };
    let sector = header.sector.get();
    match header.kind.get() {
        kind::READ => judge_data(geometry, Want::Read, sector, &chain.writable),
        kind::WRITE => judge_data(geometry, Want::Write { durability }, sector, &chain.readable),
        kind::FLUSH => {
            let want = Want::Flush;
            Judged::Request(BlockRequest { want, offset_bytes: 0, length_bytes: 0 })
        }
        kind::GET_ID if total(&chain.writable) >= ID_BYTES as u64 => Judged::Identify,
        kind::GET_ID => Judged::Refused(status::FAILED, "it has no room for the serial number"),
        kind @ (kind::DISCARD | kind::WRITE_ZEROES) => {
            judge_range(geometry, memory, kind, durability, &mut chain.readable)
        }
        _ => Judged::Refused(status::UNSUPPORTED, "its kind is not known"),
    }
}

fn judge_data(geometry: &Geometry, want: Want, sector: u64, data: &[Segment]) -> Judged {
    if data.len() > DATA_SEGMENTS_MAX {
        return Judged::Refused(status::FAILED, "it has too many segments");
    }
    let length_bytes = total(data);
    if length_bytes > REQUEST_BYTES_MAX {
        return Judged::Refused(status::FAILED, "it is too long");
    }
    judge_extent(geometry, want, sector, length_bytes)
}

fn judge_range(
    geometry: &Geometry,
    memory: &Memory,
    kind: u32,
    durability: Durability,
    data: &mut Vec<Segment>,
) -> Judged {
    let mut range = BlockRange::default();
    if total(data) != size_of::<BlockRange>() as u64
        || !take_front(memory, data, range.as_mut_bytes())
    {
        return Judged::Refused(status::UNSUPPORTED, "it is not of one range");
    }
    let flags = range.flags.get();
    let want = match (kind, flags) {
        (kind::DISCARD, 0) => Want::Discard { durability },
        (kind::WRITE_ZEROES, 0) => Want::WriteZeroes { durability, may_unmap: false },
        (kind::WRITE_ZEROES, RANGE_UNMAP) => Want::WriteZeroes { durability, may_unmap: true },
        _ => return Judged::Refused(status::UNSUPPORTED, "a flag of its range is not known"),
    };
    let length_bytes = u64::from(range.sectors.get()) * SECTOR_BYTES;
    if length_bytes > RANGE_BYTES_MAX {
        return Judged::Refused(status::FAILED, "it is too long");
    }
    judge_extent(geometry, want, range.sector.get(), length_bytes)
}

fn judge_extent(geometry: &Geometry, want: Want, sector: u64, length_bytes: u64) -> Judged {
    if want != Want::Read && geometry.is_read_only {
        return Judged::Refused(status::FAILED, "the volume is read-only");
    }
    let unit = u64::from(geometry.logical_block_bytes);
    let Some(offset_bytes) = sector.checked_mul(SECTOR_BYTES) else {
        return Judged::Refused(status::FAILED, "it is outside of the volume");
    };
    if length_bytes == 0 || !(offset_bytes | length_bytes).is_multiple_of(unit) {
        return Judged::Refused(status::FAILED, "it is not of whole logical blocks");
    }
    let end = offset_bytes.checked_add(length_bytes);
    if end.is_none_or(|end| end > geometry.size_bytes) {
        return Judged::Refused(status::FAILED, "it is outside of the volume");
    }
    Judged::Request(BlockRequest { want, offset_bytes, length_bytes })
}

/// The one place where an error of a backend becomes one of the driver's.
pub(super) fn status_of(error: RequestError) -> u8 {
    match error {
        RequestError::Io
        | RequestError::NoSpace
        | RequestError::Shutdown
        | RequestError::ReadOnly => abi::status::FAILED,
    }
}

/// Bytes in all segments.
pub(super) fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// Copies the first bytes of some segments and takes them off. Returns whether there are as many.
fn take_front(memory: &Memory, segments: &mut Vec<Segment>, mut into: &mut [u8]) -> bool {
    let mut used_up = 0;
    for segment in segments.iter_mut() {
        if into.is_empty() {
            break;
        }
        let count = into.len().min(segment.bytes as usize);
        let (part, rest) = into.split_at_mut(count);
        if memory.read(segment.address, part).is_err() {
            return false;
        }
        into = rest;
        segment.address += count as u64;
        segment.bytes -= count as u32;
        used_up += usize::from(segment.bytes == 0);
    }
    segments.drain(..used_up);
    into.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        size_bytes: 1 << 30,
        logical_block_bytes: 512,
        optimal_io_bytes: 96 << 10,
        is_read_only: false,
        identity: 0x6672_6279_0000_beef,
    };

    #[test]
    fn a_disk_is_described_in_its_own_blocks() {
        let config = GEOMETRY.config();
        assert_eq!((config.capacity.get(), config.physical_block_shift), (1 << 21, 3));
        assert_eq!((config.least_io.get(), config.optimal_io.get()), (8, 192));
        let coarse = Geometry { logical_block_bytes: 4096, ..GEOMETRY };
        let config = coarse.config();
        assert_eq!((config.block_bytes.get(), config.physical_block_shift), (4096, 0));
        assert_eq!((config.least_io.get(), config.optimal_io.get()), (1, 24));
        assert_eq!(&GEOMETRY.serial()[..], b"forebay-0000beef\0\0\0\0");
    }

    #[test]
    fn ranges_must_lie_within_the_disk_and_on_its_blocks() {
        let judge = |geometry: &Geometry, sector, bytes| {
            matches!(judge_extent(geometry, Want::Read, sector, bytes), Judged::Request(_))
        };
        let end = (1 << 21) - 1;
        assert!(judge(&GEOMETRY, end, 512));
        for (sector, bytes) in [(end, 1024), (end + 1, 512), (0, 0), (0, 511), (u64::MAX, 512)] {
            assert!(!judge(&GEOMETRY, sector, bytes), "{sector} {bytes}");
        }
        let coarse = Geometry { logical_block_bytes: 4096, ..GEOMETRY };
        assert!(judge(&coarse, 8, 4096) && !judge(&coarse, 1, 4096) && !judge(&coarse, 8, 512));
    }

    #[test]
    fn a_read_only_disk_takes_reads_only() {
        let fixed = Geometry { is_read_only: true, ..GEOMETRY };
        let changing = feature::DISCARD | feature::WRITE_ZEROES;
        assert_eq!(fixed.features() & (feature::READ_ONLY | changing), feature::READ_ONLY);
        let durability = Durability::Completed;
        let write = judge_extent(&fixed, Want::Write { durability }, 0, 512);
        assert!(matches!(write, Judged::Refused(status::FAILED, _)));
        assert!(matches!(judge_extent(&fixed, Want::Read, 0, 512), Judged::Request(_)));
    }
}
