//! What crosses the border to the kernel's ublk driver: structures, numbers and flags.
//!
//! The source is the kernel's header `include/uapi/linux/ublk_cmd.h`. The driver runs on the same
//! machine, so integers are native; each structure is as large as the kernel's and has no padding
//! of the compiler's, which the assertions below check.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a sector, the unit of all ranges.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Most requests that a queue may have under way.
pub(super) const QUEUE_DEPTH_MAX: u16 = 4096;
/// Payload of a request of a queue lies at this place of the character device, by queue and tag.
const PAYLOAD_OFFSET: u64 = 0x8000_0000;
/// Bits of a payload's place: within the request, tag, queue.
const PAYLOAD_BITS: u32 = 25;
const TAG_BITS: u32 = 16;

/// A command by its number, with its direction and the size of its structure as ioctls have them.
/// Drivers without their legacy numbers know no others.
const fn encoded(direction: u32, number: u8, bytes: usize) -> u32 {
    (direction << 30) | ((bytes as u32) << 16) | ((b'u' as u32) << 8) | number as u32
}

const READ: u32 = 2;
const READ_WRITE: u32 = 3;

/// Commands to `/dev/ublk-control`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    GetDeviceInfo,
    AddDevice,
    DeleteDevice,
    StartDevice,
    StopDevice,
    SetParameters,
    GetParameters,
    StartUserRecovery,
    EndUserRecovery,
    GetFeatures,
    UpdateSize,
}

impl Operation {
    pub(super) const fn code(self) -> u32 {
        let (direction, number) = match self {
            Operation::GetDeviceInfo => (READ, 0x02),
            Operation::AddDevice => (READ_WRITE, 0x04),
            Operation::DeleteDevice => (READ_WRITE, 0x05),
            Operation::StartDevice => (READ_WRITE, 0x06),
            Operation::StopDevice => (READ_WRITE, 0x07),
            Operation::SetParameters => (READ_WRITE, 0x08),
            Operation::GetParameters => (READ, 0x09),
            Operation::StartUserRecovery => (READ_WRITE, 0x10),
            Operation::EndUserRecovery => (READ_WRITE, 0x11),
            Operation::GetFeatures => (READ, 0x13),
            Operation::UpdateSize => (READ_WRITE, 0x15),
        };
        encoded(direction, number, size_of::<ControlCommand>())
    }

    /// For messages.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Operation::GetDeviceInfo => "GET_DEV_INFO",
            Operation::AddDevice => "ADD_DEV",
            Operation::DeleteDevice => "DEL_DEV",
            Operation::StartDevice => "START_DEV",
            Operation::StopDevice => "STOP_DEV",
            Operation::SetParameters => "SET_PARAMS",
            Operation::GetParameters => "GET_PARAMS",
            Operation::StartUserRecovery => "START_USER_RECOVERY",
            Operation::EndUserRecovery => "END_USER_RECOVERY",
            Operation::GetFeatures => "GET_FEATURES",
            Operation::UpdateSize => "UPDATE_SIZE",
        }
    }
}

/// Asks for the next request of a tag, once per tag when a queue is put to work.
pub(super) const FETCH: u32 = encoded(READ_WRITE, 0x20, size_of::<IoCommand>());
/// Ends the request of a tag and asks for the next one.
pub(super) const COMMIT_AND_FETCH: u32 = encoded(READ_WRITE, 0x21, size_of::<IoCommand>());

/// Results of [`FETCH`] and [`COMMIT_AND_FETCH`]: a request has come; no more will come.
pub(super) const RESULT_OK: i32 = 0;
pub(super) const RESULT_ABORT: i32 = -libc::ENODEV;

/// What a device is to be able to do, and what the driver can do.
pub(super) mod feature {
    pub(in super::super) const USER_RECOVERY: u64 = 1 << 3;
    pub(in super::super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(in super::super) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(in super::super) const USER_COPY: u64 = 1 << 7;
    pub(in super::super) const UPDATE_SIZE: u64 = 1 << 10;
}

/// States of a device: without a disk; at work; without a server, requests wait.
pub(super) mod state {
    pub(in super::super) const DEAD: u16 = 0;
    #[cfg(test)]
    pub(in super::super) const LIVE: u16 = 1;
    pub(in super::super) const QUIESCED: u16 = 2;
}

/// What a request wants: the lowest byte of [`IoDescriptor::op_flags`].
pub(super) mod op {
    pub(in super::super) const READ: u8 = 0;
    pub(in super::super) const WRITE: u8 = 1;
    pub(in super::super) const FLUSH: u8 = 2;
    pub(in super::super) const DISCARD: u8 = 3;
    pub(in super::super) const WRITE_ZEROES: u8 = 5;
}

/// Flags of a request, in place in [`IoDescriptor::op_flags`].
pub(super) mod io_flag {
    pub(in super::super) const FUA: u32 = 1 << 13;
    pub(in super::super) const NO_UNMAP: u32 = 1 << 15;
}

/// [`BasicParameters::attributes`].
pub(super) mod attribute {
    pub(in super::super) const READ_ONLY: u32 = 1 << 0;
    pub(in super::super) const ROTATIONAL: u32 = 1 << 1;
    pub(in super::super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(in super::super) const FUA: u32 = 1 << 3;
}

/// [`Parameters::types`].
pub(super) mod parameter_type {
    pub(in super::super) const BASIC: u32 = 1 << 0;
    pub(in super::super) const DISCARD: u32 = 1 << 1;
}

/// A structure of the kernel's with its size there.
macro_rules! kernel_struct {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, {
        $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[repr(C)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub(super) $field: $type),*
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

kernel_struct! {
    /// `struct ublksrv_ctrl_cmd`, in the 80 bytes of a large submission entry.
    ControlCommand, 32, {
        device: u32,
        /// All ones: no command that is used here is for one queue.
        queue: u16,
        /// Bytes at `address`.
        length: u16,
        address: u64,
        /// Of `START_DEV` and `END_USER_RECOVERY`: the process that serves. Of `UPDATE_SIZE`: how
        /// many sectors there are.
        data: u64,
        path_length: u16,
        padding: u16,
        reserved: u32,
    }
}

kernel_struct! {
    /// `struct ublksrv_ctrl_dev_info`.
    DeviceInfo, 64, {
        queue_count: u16,
        queue_depth: u16,
        state: u16,
        padding: u16,
        request_bytes_max: u32,
        device: u32,
        process: i32,
        padding_again: u32,
        flags: u64,
        /// `ublksrv_flags`: the driver keeps it and does not look at it. Here it says what is
        /// served, so that a server knows a device of its predecessor.
        identity: u64,
        owner_user: u32,
        owner_group: u32,
        reserved: [u64; 2],
    }
}

kernel_struct! {
    /// `struct ublk_param_basic`.
    BasicParameters, 32, {
        attributes: u32,
        logical_block_shift: u8,
        physical_block_shift: u8,
        optimal_io_shift: u8,
        least_io_shift: u8,
        sectors_max: u32,
        chunk_sectors: u32,
        device_sectors: u64,
        boundary_mask: u64,
    }
}

kernel_struct! {
    /// `struct ublk_param_discard`.
    DiscardParameters, 20, {
        alignment: u32,
        granularity: u32,
        sectors_max: u32,
        write_zeroes_sectors_max: u32,
        segments_max: u16,
        reserved: u16,
    }
}

kernel_struct! {
    /// The head of `struct ublk_params`; drivers take and give as much as `length` says.
    Parameters, 64, {
        length: u32,
        types: u32,
        basic: BasicParameters,
        discard: DiscardParameters,
        /// Not the kernel's: behind what `length` covers.
        unused: u32,
    }
}

/// What [`Parameters::length`] says: up to the end of `discard`.
pub(super) const PARAMETERS_BYTES: u32 = std::mem::offset_of!(Parameters, unused) as u32;

kernel_struct! {
    /// `struct ublksrv_io_desc`: a request, in memory that the driver writes and the server reads.
    IoDescriptor, 24, {
        op_flags: u32,
        sectors: u32,
        first_sector: u64,
        address: u64,
    }
}

kernel_struct! {
    /// `struct ublksrv_io_cmd`, in the 16 bytes of an ordinary submission entry.
    IoCommand, 16, {
        queue: u16,
        tag: u16,
        /// Bytes, or the negated errno.
        result: i32,
        /// Of a buffer: none, since payload is copied by calls of our own.
        address: u64,
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(ControlCommand, address) == 8);
    assert!(offset_of!(ControlCommand, data) == 16);
    assert!(offset_of!(DeviceInfo, request_bytes_max) == 8);
    assert!(offset_of!(DeviceInfo, process) == 16);
    assert!(offset_of!(DeviceInfo, flags) == 24);
    assert!(offset_of!(DeviceInfo, identity) == 32);
    assert!(offset_of!(BasicParameters, logical_block_shift) == 4);
    assert!(offset_of!(BasicParameters, device_sectors) == 16);
    assert!(offset_of!(Parameters, basic) == 8);
    assert!(offset_of!(Parameters, discard) == 40);
    assert!(PARAMETERS_BYTES == 60);
    assert!(offset_of!(IoDescriptor, first_sector) == 8);
    assert!(offset_of!(IoCommand, result) == 4);
    assert!(offset_of!(IoCommand, address) == 8);
};

/// Where the payload of a request begins in the character device.
pub(super) fn payload_offset(queue: u16, tag: u16) -> u64 {
    PAYLOAD_OFFSET
        + (u64::from(queue) << (PAYLOAD_BITS + TAG_BITS))
        + (u64::from(tag) << PAYLOAD_BITS)
}

/// Where the descriptors of a queue begin in the character device, and how many bytes of them can
/// be mapped: for its own depth, in whole pages.
pub(super) fn descriptors(queue: u16, depth: u16, page_bytes: usize) -> (u64, usize) {
    let bytes =
        |depth: u16| (usize::from(depth) * size_of::<IoDescriptor>()).next_multiple_of(page_bytes);
    (u64::from(queue) * bytes(QUEUE_DEPTH_MAX) as u64, bytes(depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as the preprocessor makes them of the kernel's header.
    #[test]
    fn commands_are_encoded_as_the_kernel_does() {
        assert_eq!(Operation::GetDeviceInfo.code(), 0x8020_7502);
        assert_eq!(Operation::AddDevice.code(), 0xc020_7504);
        assert_eq!(Operation::GetParameters.code(), 0x8020_7509);
        assert_eq!(Operation::EndUserRecovery.code(), 0xc020_7511);
        assert_eq!(Operation::GetFeatures.code(), 0x8020_7513);
        assert_eq!(Operation::UpdateSize.code(), 0xc020_7515);
        assert_eq!(FETCH, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn places_of_payload_and_descriptors_are_those_of_the_driver() {
        assert_eq!(payload_offset(0, 0), 0x8000_0000);
        assert_eq!(payload_offset(0, 1), 0x8200_0000);
        assert_eq!(payload_offset(1, 0), 0x8000_0000 + (1 << 41));
        assert_eq!(descriptors(0, 128, 4096), (0, 4096));
        assert_eq!(descriptors(2, 1024, 4096), (2 * 98_304, 24_576));
    }
}
