//! Requests to bare exports: the device as it is, behind the same front end and the same device
//! layer as a cache set, so that both can be compared fairly.
//!
//! A write with FUA is a write and then a flush, in that order.

use forebay_engine::io::{IoKind, IoResult, Slices};
use forebay_engine::payload::{BufferId, BufferRange};
use forebay_engine::request::{Durability, RequestKind};
use forebay_engine::units::BLOCK_BYTES;

use crate::device::{DeviceId, DeviceTable, IoOwner, Surroundings};
use crate::frontend::{ClientReply, ClientRequest, Served, request_error};
use crate::slab::Slab;

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct BareRequest {
    number: u32,
    device: DeviceId,
    flush_follows: bool,
}

/// Requests to bare exports.
pub(crate) struct BareRequests {
    requests: Slab<BareRequest>,
}

impl BareRequests {
    pub(crate) fn new() -> BareRequests {
        BareRequests { requests: Slab::new() }
    }

    /// Starts a request. Answers at once what needs no device.
    pub(crate) fn start(
        &mut self,
        devices: &mut DeviceTable,
        around: &mut Surroundings<'_>,
        device: DeviceId,
        request: &ClientRequest,
    ) -> Option<ClientReply> {
        let (offset_bytes, length_bytes) = (request.offset_bytes, request.length_bytes);
        let slices = |buffer: BufferId| {
            let offset = (offset_bytes % BLOCK_BYTES as u64) as u32;
            Slices::One(BufferRange { buffer, offset, length: length_bytes as u32 })
        };
        let (kind, durability) = match request.kind {
            RequestKind::Read { buffer } => {
                let slices = slices(buffer);
                (IoKind::Read { offset_bytes, slices }, Durability::Completed)
            }
            RequestKind::Write { buffer, durability } => {
                let slices = slices(buffer);
                (IoKind::Write { offset_bytes, slices }, durability)
            }
            RequestKind::Flush => (IoKind::Flush, Durability::Completed),
            RequestKind::Discard { durability } => {
                (IoKind::Discard { offset_bytes, length_bytes }, durability)
            }
            RequestKind::WriteZeroes { durability, may_unmap } => {
                (IoKind::WriteZeroes { offset_bytes, length_bytes, may_unmap }, durability)
            }
            // There is no cache to bring the range into.
            RequestKind::Prefetch => return Some(reply(request.number, Ok(()))),
        };
        let flush_follows = durability == Durability::ForcedUnitAccess;
        let number = request.number;
        let index = self.requests.insert(BareRequest { number, device, flush_follows });
        devices.start(around, device, kind, IoOwner::Bare(index));
        None
    }

    /// A device operation has ended. Returns the reply, if it was the last one of its request.
    pub(crate) fn handle_finished(
        &mut self,
        devices: &mut DeviceTable,
        around: &mut Surroundings<'_>,
        index: u32,
        result: IoResult,
    ) -> Option<ClientReply> {
        let request = &mut self.requests[index];
        if request.flush_follows && result.is_ok() {
            request.flush_follows = false;
            devices.start(around, request.device, IoKind::Flush, IoOwner::Bare(index));
            return None;
        }
        let request = self.requests.remove(index);
        Some(reply(request.number, result))
    }
}

fn reply(number: u32, result: IoResult) -> ClientReply {
    ClientReply { number, result: result.map_err(request_error), served: Served::Origin }
}
