//! Between the driver's terms and the engine's: requests one way, results the other.
//!
//! Functions without state. Whatever the kernel hands in is judged here, before anybody else sees
//! it. Errors of backends become errno here and nowhere else.

use forebay_engine::request::{Durability, RequestError};
use forebay_engine::units::BLOCK_BYTES;

use super::abi::{
    self, BasicParameters, DiscardParameters, IoDescriptor, PARAMETERS_BYTES, Parameters,
    SECTOR_BYTES, attribute, io_flag, op, parameter_type,
};
use crate::frontend::block_request::{BlockRequest, Want};
use crate::shard::exports::ExportFacts;

/// Largest read or write. Chosen: what Linux sends by default to disks that would take more
/// (1280 KiB), as a power of two; larger requests of clients come in pieces.
pub(super) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Largest discard and write zeroes: bounds what one request may hold up.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// What a device is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(super) sectors: u64,
    pub(super) logical_block_bytes: u32,
    pub(super) optimal_io_bytes: u32,
    pub(super) is_read_only: bool,
    pub(super) is_rotational: bool,
}

impl Geometry {
    /// The geometry of the device that offers an export.
    pub(super) fn of(facts: &ExportFacts) -> Geometry {
        let unit = u64::from(facts.logical_block_bytes);
        Geometry {
            // Bytes behind the last whole logical block cannot be addressed.
            sectors: facts.size_bytes / unit * unit / SECTOR_BYTES,
            logical_block_bytes: facts.logical_block_bytes,
            optimal_io_bytes: facts.optimal_io_bytes,
            is_read_only: facts.is_read_only,
            is_rotational: facts.is_rotational,
        }
    }

    /// What the driver is told of the device.
    pub(super) fn parameters(&self) -> Parameters {
        let block = BLOCK_BYTES as u32;
        let optimal = self.optimal_io_bytes.clamp(block, REQUEST_BYTES_MAX).next_power_of_two();
        let mut attributes = attribute::VOLATILE_CACHE | attribute::FUA;
        if self.is_read_only {
            attributes |= attribute::READ_ONLY;
        }
        if self.is_rotational {
            attributes |= attribute::ROTATIONAL;
        }
        let range_sectors = (RANGE_BYTES_MAX / SECTOR_BYTES) as u32;
        Parameters {
            length: PARAMETERS_BYTES,
            types: parameter_type::BASIC | parameter_type::DISCARD,
            basic: BasicParameters {
                attributes,
                logical_block_shift: self.logical_block_bytes.trailing_zeros() as u8,
                // Parts of a block are merged, which costs a read.
                physical_block_shift: block.trailing_zeros() as u8,
                optimal_io_shift: optimal.trailing_zeros() as u8,
                least_io_shift: block.trailing_zeros() as u8,
                sectors_max: REQUEST_BYTES_MAX / SECTOR_BYTES as u32,
                chunk_sectors: 0,
                device_sectors: self.sectors,
                boundary_mask: 0,
            },
            discard: DiscardParameters {
                alignment: 0,
                granularity: block,
                sectors_max: range_sectors,
                write_zeroes_sectors_max: range_sectors,
                segments_max: 1,
                reserved: 0,
            },
            unused: 0,
        }
    }
}

/// What the driver is told of the success of a request: bytes of payload.
pub(super) fn done(request: &BlockRequest) -> i32 {
    if request.moves_data() { request.length_bytes as i32 } else { 0 }
}

/// Judges a request of the driver.
///
/// # Errors
/// The errno to answer with.
pub(super) fn translate(
    geometry: &Geometry,
    descriptor: &IoDescriptor,
) -> Result<BlockRequest, i32> {
    let durability = if descriptor.op_flags & io_flag::FUA == 0 {
        Durability::Completed
    } else {
        Durability::ForcedUnitAccess
    };
    let may_unmap = descriptor.op_flags & io_flag::NO_UNMAP == 0;
    let want = match (descriptor.op_flags & 0xff) as u8 {
        op::READ => Want::Read,
        op::WRITE => Want::Write { durability },
        op::FLUSH => {
            return Ok(BlockRequest { want: Want::Flush, offset_bytes: 0, length_bytes: 0 });
        }
        op::DISCARD => Want::Discard { durability },
        op::WRITE_ZEROES => Want::WriteZeroes { durability, may_unmap },
        _ => return Err(libc::EOPNOTSUPP),
    };
    if want != Want::Read && geometry.is_read_only {
        return Err(libc::EPERM);
    }
    let sectors = u64::from(descriptor.sectors);
    let is_inside =
        descriptor.first_sector.checked_add(sectors).is_some_and(|end| end <= geometry.sectors);
    if sectors == 0 || !is_inside {
        return Err(libc::EINVAL);
    }
    // Neither overflows: both end within the device.
    let offset_bytes = descriptor.first_sector * abi::SECTOR_BYTES;
    let length_bytes = sectors * abi::SECTOR_BYTES;
    let unit = u64::from(geometry.logical_block_bytes);
    if !offset_bytes.is_multiple_of(unit) || !length_bytes.is_multiple_of(unit) {
        return Err(libc::EINVAL);
    }
    let request = BlockRequest { want, offset_bytes, length_bytes };
    let most_bytes =
        if request.moves_data() { u64::from(REQUEST_BYTES_MAX) } else { RANGE_BYTES_MAX };
    if length_bytes > most_bytes {
        return Err(libc::EINVAL);
    }
    Ok(request)
}

/// The one place where an error of a backend becomes one of the driver's.
pub(super) fn errno_of(error: RequestError) -> i32 {
    match error {
        RequestError::Io => libc::EIO,
        RequestError::NoSpace => libc::ENOSPC,
        RequestError::Shutdown => libc::ESHUTDOWN,
        RequestError::ReadOnly => libc::EPERM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        sectors: 1000,
        logical_block_bytes: 512,
        optimal_io_bytes: 96 << 10,
        is_read_only: false,
        is_rotational: true,
    };

    fn descriptor(op_flags: u32, first_sector: u64, sectors: u32) -> IoDescriptor {
        IoDescriptor { op_flags, sectors, first_sector, address: 0 }
    }

    fn want(op_flags: u32) -> Want {
        translate(&GEOMETRY, &descriptor(op_flags, 8, 16)).unwrap().want
    }

    #[test]
    fn requests_keep_their_range_and_their_flags() {
        let read = translate(&GEOMETRY, &descriptor(0, 9, 3)).unwrap();
        let expected =
            BlockRequest { want: Want::Read, offset_bytes: 9 * 512, length_bytes: 3 * 512 };
        assert_eq!(read, expected);
        assert_eq!(done(&read), 1536);
        let forced = Durability::ForcedUnitAccess;
        let completed = Durability::Completed;
        assert_eq!(want(1), Want::Write { durability: completed });
        assert_eq!(want(1 | 1 << 13), Want::Write { durability: forced });
        // Flags that say how urgent a request is or where it comes from change nothing.
        assert_eq!(want(1 | 1 << 8 | 1 << 11 | 1 << 16), Want::Write { durability: completed });
        assert_eq!(want(3), Want::Discard { durability: completed });
        assert_eq!(want(5), Want::WriteZeroes { durability: completed, may_unmap: true });
        assert_eq!(
            want(5 | 1 << 13 | 1 << 15),
            Want::WriteZeroes { durability: forced, may_unmap: false }
        );
        let flush = translate(&GEOMETRY, &descriptor(2, u64::MAX, 0)).unwrap();
        assert_eq!((flush.want, done(&flush)), (Want::Flush, 0));
    }

    #[test]
    fn unknown_operations_are_not_supported() {
        for code in [4, 6, 10, 18, 255] {
            assert_eq!(translate(&GEOMETRY, &descriptor(code, 0, 8)), Err(libc::EOPNOTSUPP));
        }
    }

    #[test]
    fn ranges_must_lie_within_the_device_and_on_its_blocks() {
        let result = |first, count| translate(&GEOMETRY, &descriptor(0, first, count)).err();
        assert_eq!(result(992, 8), None);
        assert_eq!(result(993, 8), Some(libc::EINVAL));
        assert_eq!(result(0, 0), Some(libc::EINVAL));
        assert_eq!(result(u64::MAX, 1), Some(libc::EINVAL));
        assert_eq!(result(u64::MAX / 512, 8), Some(libc::EINVAL));
        let large = Geometry { sectors: 1 << 40, ..GEOMETRY };
        let result = |first, count| translate(&large, &descriptor(0, first, count)).err();
        assert_eq!(result(0, 2048), None);
        assert_eq!(result(0, 2049), Some(libc::EINVAL));
        let coarse = Geometry { logical_block_bytes: 4096, ..large };
        let result = |first, count| translate(&coarse, &descriptor(1, first, count)).err();
        assert_eq!(result(8, 8), None);
        assert_eq!(result(9, 8), Some(libc::EINVAL));
        assert_eq!(result(8, 7), Some(libc::EINVAL));
        let discard = |count| translate(&large, &descriptor(3, 0, count)).err();
        assert_eq!(discard(1 << 21), None);
        assert_eq!(discard((1 << 21) + 1), Some(libc::EINVAL));
    }

    #[test]
    fn a_read_only_device_takes_reads_and_flushes() {
        let geometry = Geometry { is_read_only: true, ..GEOMETRY };
        for (code, expected) in
            [(0, None), (2, None), (1, Some(libc::EPERM)), (3, Some(libc::EPERM))]
        {
            assert_eq!(translate(&geometry, &descriptor(code, 0, 8)).err(), expected);
        }
        assert_eq!(geometry.parameters().basic.attributes, 0b1111);
    }

    #[test]
    fn parameters_tell_blocks_sizes_and_limits() {
        let parameters = GEOMETRY.parameters();
        assert_eq!((parameters.length, parameters.types), (60, 3));
        let basic = parameters.basic;
        assert_eq!(basic.attributes, 0b1110);
        assert_eq!((basic.logical_block_shift, basic.physical_block_shift), (9, 12));
        assert_eq!((basic.optimal_io_shift, basic.least_io_shift), (17, 12));
        assert_eq!((basic.sectors_max, basic.device_sectors), (2048, 1000));
        let coarse = Geometry { logical_block_bytes: 4096, optimal_io_bytes: 0, ..GEOMETRY };
        assert_eq!(coarse.parameters().basic.logical_block_shift, 12);
        assert_eq!(coarse.parameters().basic.optimal_io_shift, 12);
        let striped = Geometry { optimal_io_bytes: 3 << 20, ..GEOMETRY };
        assert_eq!(striped.parameters().basic.optimal_io_shift, 20);
    }
}
