//! What crosses the socket and the rings: numbers and structures of vhost-user and virtio-blk.
//!
//! Messages of vhost-user are in the byte order of the machine, since both ends are on it; what a
//! virtio device shows to its driver is little-endian.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Requests of a front end.
pub(super) mod request {
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const RESET_OWNER: u32 = 4;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const GET_QUEUE_NUM: u32 = 17;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
}

/// The only request to a front end: that the configuration is another.
pub(super) const BACKEND_CONFIG_CHANGED: u32 = 2;

/// Bits of a message's flags.
pub(super) mod flag {
    /// The version of the protocol, which there is one of.
    pub(crate) const VERSION: u32 = 1;
    pub(crate) const VERSION_MASK: u32 = 3;
    pub(crate) const REPLY: u32 = 1 << 2;
    pub(crate) const NEED_REPLY: u32 = 1 << 3;
}

/// Numbers of features, as bits.
pub(super) mod feature {
    pub(crate) const SEGMENTS_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const MULTIPLE_QUEUES: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_INDEX: u64 = 1 << 29;
    /// That there are features of the protocol, and that rings begin disabled.
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Features of the protocol, as bits.
pub(super) mod protocol_feature {
    pub(crate) const MULTIPLE_QUEUES: u64 = 1 << 0;
    pub(crate) const REPLY_ACK: u64 = 1 << 3;
    pub(crate) const BACKEND_REQUESTS: u64 = 1 << 5;
    pub(crate) const CONFIG: u64 = 1 << 9;
    pub(crate) const IN_FLIGHT: u64 = 1 << 12;
}

/// What begins every message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    pub(super) request: u32,
    pub(super) flags: u32,
    pub(super) payload_bytes: u32,
}

/// Something about a ring.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RingState {
    pub(super) index: u32,
    pub(super) value: u32,
}

/// Where a ring is, in addresses of the front end's process.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RingAddresses {
    pub(super) index: u32,
    pub(super) flags: u32,
    pub(super) descriptors: u64,
    pub(super) used: u64,
    pub(super) available: u64,
    pub(super) log: u64,
}

/// A descriptor of a ring comes as the index of the ring; with this bit there is none.
pub(super) const NO_DESCRIPTOR: u64 = 1 << 8;
/// The ring's index in the same number.
pub(super) const RING_INDEX_MASK: u64 = 0xff;

/// What begins a memory table.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct TableHeader {
    pub(super) region_count: u32,
    pub(super) padding: u32,
}

/// A region of guest memory. Its file comes beside the message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct TableRegion {
    pub(super) guest_address: u64,
    pub(super) bytes: u64,
    /// In the process of the front end.
    pub(super) user_address: u64,
    pub(super) file_offset: u64,
}

/// A part of the configuration; its bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ConfigPart {
    pub(super) offset: u32,
    pub(super) bytes: u32,
    pub(super) flags: u32,
}

/// The region that remembers which requests are under way.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InFlightArea {
    pub(super) bytes: u64,
    pub(super) file_offset: u64,
    pub(super) queue_count: u16,
    pub(super) queue_size: u16,
    pub(super) padding: u32,
}

/// The configuration of a block device as its driver sees it. What is behind it reads as zeroes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct BlockConfig {
    /// In sectors, like all that is not said to be something else.
    pub(super) capacity: U64,
    pub(super) segment_bytes_max: U32,
    pub(super) segments_max: U32,
    pub(super) geometry: [u8; 4],
    pub(super) block_bytes: U32,
    /// Of a physical block, in logical ones.
    pub(super) physical_block_shift: u8,
    pub(super) alignment_offset: u8,
    /// In logical blocks.
    pub(super) least_io: U16,
    /// In logical blocks.
    pub(super) optimal_io: U32,
    pub(super) writeback: u8,
    pub(super) unused: u8,
    pub(super) queue_count: U16,
    pub(super) discard_sectors_max: U32,
    pub(super) discard_segments_max: U32,
    pub(super) discard_alignment: U32,
    pub(super) write_zeroes_sectors_max: U32,
    pub(super) write_zeroes_segments_max: U32,
    pub(super) write_zeroes_may_unmap: u8,
    pub(super) unused_too: [u8; 3],
}

/// Largest configuration that a front end may ask for.
pub(super) const CONFIG_BYTES_MAX: u32 = 256;

/// What begins a request in a ring.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct BlockHeader {
    pub(super) kind: U32,
    pub(super) reserved: U32,
    pub(super) sector: U64,
}

/// Kinds of requests in a ring.
pub(super) mod kind {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// A range of a discard or of write zeroes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct BlockRange {
    pub(super) sector: U64,
    pub(super) sectors: U32,
    pub(super) flags: U32,
}

/// The one flag of a range: it may be discarded.
pub(super) const RANGE_UNMAP: u32 = 1;

/// How a request ended.
pub(super) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const FAILED: u8 = 1;
    pub(crate) const UNSUPPORTED: u8 = 2;
}

pub(super) const SECTOR_BYTES: u64 = 512;
/// Length of a serial number.
pub(super) const ID_BYTES: usize = 20;

/// An entry of a descriptor table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) address: U64,
    pub(super) bytes: U32,
    pub(super) flags: U16,
    pub(super) next: U16,
}

/// Bits of a descriptor's flags.
pub(super) mod descriptor_flag {
    pub(crate) const NEXT: u16 = 1;
    pub(crate) const WRITABLE: u16 = 2;
    pub(crate) const INDIRECT: u16 = 4;
}

/// In the flags of the available ring: the driver wants no interrupts.
pub(super) const NO_INTERRUPT: u16 = 1;
/// In the flags of the used ring: the device needs no kicks.
pub(super) const NO_NOTIFY: u16 = 1;

const _: () = assert!(size_of::<Header>() == 12);
const _: () = assert!(size_of::<RingAddresses>() == 40);
const _: () = assert!(size_of::<TableRegion>() == 32);
const _: () = assert!(size_of::<InFlightArea>() == 24);
const _: () = assert!(size_of::<BlockConfig>() == 60);
const _: () = assert!(size_of::<BlockHeader>() == 16);
const _: () = assert!(size_of::<BlockRange>() == 16);
const _: () = assert!(size_of::<Descriptor>() == 16);
