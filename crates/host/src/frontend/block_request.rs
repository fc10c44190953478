//! Requests of drivers of block devices, as far as it is the same which driver sends them.

use std::collections::VecDeque;

use forebay_engine::payload::{BufferId, BufferRange, Payload};
use forebay_engine::request::{Durability, RequestKind};
use forebay_engine::units::{BLOCK_BYTES, Time};

use super::memory_turn::Claimant;
use super::{ClientRequest, Demand, FrontContext, Served, whole_blocks};
use crate::buffer_pool::BufferPool;
use crate::shard::exports::ExportNumber;
use crate::shard::latency::LatencyClass;

/// What a request wants, without its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    Read,
    Write { durability: Durability },
    Flush,
    Discard { durability: Durability },
    WriteZeroes { durability: Durability, may_unmap: bool },
}

/// A request that was judged and may go to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockRequest {
    pub(super) want: Want,
    pub(super) offset_bytes: u64,
    pub(super) length_bytes: u64,
}

impl BlockRequest {
    /// Whether payload belongs to it.
    pub(super) fn moves_data(&self) -> bool {
        matches!(self.want, Want::Read | Want::Write { .. })
    }

    /// Memory for its payload.
    pub(super) fn memory_bytes(&self) -> u64 {
        whole_blocks(self.offset_bytes, self.length_bytes)
    }

    pub(super) fn latency_class(&self, served: Served) -> LatencyClass {
        match (self.want, served) {
            (Want::Read, Served::Cache) => LatencyClass::ReadHit,
            (Want::Read, Served::Origin) => LatencyClass::ReadMiss,
            (Want::Flush, _) => LatencyClass::Flush,
            (Want::Write { .. } | Want::Discard { .. } | Want::WriteZeroes { .. }, _) => {
                LatencyClass::Write
            }
        }
    }
}

/// Gives requests that wait until their disk holds less memory a place at the end of the line of
/// all disks, in turn, as far as the disk may hold what they want.
pub(super) fn rejoin_line<P>(
    line: &mut VecDeque<P>,
    waiters: &mut VecDeque<P>,
    mut held_bytes: u64,
    pool: &BufferPool,
    wanted_bytes: impl Fn(&P) -> u64,
) {
    while let Some(first) = waiters.front() {
        let wanted = wanted_bytes(first);
        if !pool.may_hold(held_bytes, wanted) {
            break;
        }
        held_bytes += wanted;
        line.extend(waiters.pop_front());
    }
}

/// A request that was taken, with memory for its payload once there was some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Active {
    pub(super) request: BlockRequest,
    pub(super) buffer: Option<BufferId>,
    pub(super) arrived: Time,
}

impl Active {
    /// Takes memory for the payload. Returns whether there was any.
    pub(super) fn allocate(&mut self, context: &mut FrontContext<'_>, claimant: Claimant) -> bool {
        self.buffer = context.allocate(claimant, self.request.memory_bytes() as usize);
        self.buffer.is_some()
    }

    /// Gives the memory back.
    pub(super) fn release(&self, pool: &mut BufferPool) {
        if let Some(buffer) = self.buffer {
            pool.release(buffer);
        }
    }

    pub(super) fn buffer_bytes(&self, pool: &BufferPool) -> u64 {
        self.buffer.map_or(0, |buffer| pool.capacity_bytes(buffer) as u64)
    }

    /// The payload in its buffer.
    pub(super) fn payload(&self) -> BufferRange {
        BufferRange {
            buffer: self.buffer.expect("reads and writes have a buffer"),
            offset: (self.request.offset_bytes % BLOCK_BYTES as u64) as u32,
            length: self.request.length_bytes as u32,
        }
    }

    pub(super) fn demand(&self, number: u32, export: ExportNumber) -> Demand {
        let BlockRequest { want, offset_bytes, length_bytes } = self.request;
        let buffer = || self.buffer.expect("reads and writes have a buffer");
        let kind = match want {
            Want::Read => RequestKind::Read { buffer: buffer() },
            Want::Write { durability } => RequestKind::Write { buffer: buffer(), durability },
            Want::Flush => RequestKind::Flush,
            Want::Discard { durability } => RequestKind::Discard { durability },
            Want::WriteZeroes { durability, may_unmap } => {
                RequestKind::WriteZeroes { durability, may_unmap }
            }
        };
        Demand::Request(ClientRequest { number, export, offset_bytes, length_bytes, kind })
    }
}
