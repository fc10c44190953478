//! A device in virtual time: as slow as its model, counted, and without content but metadata.

use std::collections::HashMap;

use forebay_device_model::{Model, ModelDevice, Request, RequestKind, Token};
use forebay_engine::io::{Io, IoId, IoKind};
use forebay_engine::payload::BufferRange;
use forebay_engine::units::BLOCK_BYTES;

use super::payload::Buffers;
use crate::result::DeviceCounts;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A device at work.
pub(super) struct Device {
    model: ModelDevice,
    counts: DeviceCounts,
}

impl Device {
    pub(super) fn new(name: &str, model: &Model, size_bytes: u64, seed: u64) -> Device {
        let counts = DeviceCounts { name: name.to_owned(), ..DeviceCounts::default() };
        Device { model: ModelDevice::new(model, size_bytes, seed), counts }
    }

    /// What it did since this was asked last.
    pub(super) fn take_counts(&mut self) -> DeviceCounts {
        let name = self.counts.name.clone();
        std::mem::replace(&mut self.counts, DeviceCounts { name, ..DeviceCounts::default() })
    }

    pub(super) fn begin(&mut self, now_ns: u64, token: u64, request: Request) {
        match request.kind {
            RequestKind::Read => {
                self.counts.reads += 1;
                self.counts.read_bytes += request.length_bytes;
            }
            RequestKind::Write | RequestKind::WriteZeroes => {
                self.counts.writes += 1;
                self.counts.written_bytes += request.length_bytes;
            }
            RequestKind::Flush | RequestKind::Discard => {}
        }
        self.model.push(now_ns, Token(token), request);
    }

    /// The next request that has ended.
    pub(super) fn end(&mut self, now_ns: u64) -> Option<u64> {
        self.model.poll(now_ns).map(|completion| completion.token.0)
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.model.next_event_ns()
    }
}

/// What a device is to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Holds metadata, which the engine reads back.
    Cache,
    /// Nothing that is read from it is looked at.
    Origin,
}

/// A device of the engine.
pub(super) struct EngineDevice {
    device: Device,
    under_way: HashMap<u64, Io>,
    /// Metadata, by block, without the zeroes at its end.
    stored: HashMap<u64, Box<[u8]>>,
    role: Role,
}

impl EngineDevice {
    pub(super) fn new(device: Device, role: Role) -> EngineDevice {
        EngineDevice { device, under_way: HashMap::new(), stored: HashMap::new(), role }
    }

    pub(super) fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.device.next_event_ns()
    }

    /// Puts bytes there that were there before anything began.
    pub(super) fn store(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for (block, content) in (offset_bytes / BLOCK..).zip(bytes.chunks(BLOCK_BYTES)) {
            self.stored.insert(block, content.into());
        }
    }

    pub(super) fn begin(&mut self, now_ns: u64, io: Io) {
        let (offset_bytes, length_bytes) = io.kind.extent_bytes();
        let kind = match io.kind {
            IoKind::Read { .. } => RequestKind::Read,
            IoKind::Write { .. } => RequestKind::Write,
            IoKind::Flush => RequestKind::Flush,
            IoKind::Discard { .. } => RequestKind::Discard,
            IoKind::WriteZeroes { .. } => RequestKind::WriteZeroes,
        };
        let request = Request { kind, offset_bytes, length_bytes };
        self.device.begin(now_ns, io.id.0, request);
        self.under_way.insert(io.id.0, io);
    }

    /// The next operation that has ended, with its effect.
    pub(super) fn end(&mut self, now_ns: u64, buffers: &mut Buffers) -> Option<IoId> {
        let id = self.device.end(now_ns)?;
        let io = self.under_way.remove(&id).expect("it is under way");
        if self.role == Role::Origin {
            return Some(io.id);
        }
        match &io.kind {
            IoKind::Read { offset_bytes, slices } => {
                for (block, range) in blocks(*offset_bytes, slices.as_slice()) {
                    if let Some(stored) = self.stored.get(&block) {
                        buffers.fill(range.buffer, range.offset as usize, stored);
                    }
                }
            }
            IoKind::Write { offset_bytes, slices } => {
                for (block, range) in blocks(*offset_bytes, slices.as_slice()) {
                    match buffers.stored(range.buffer, range.offset as usize) {
                        Some(content) => self.stored.insert(block, content),
                        None => self.stored.remove(&block),
                    };
                }
            }
            IoKind::Discard { offset_bytes, length_bytes }
            | IoKind::WriteZeroes { offset_bytes, length_bytes, .. } => {
                let first = offset_bytes / BLOCK;
                for block in first..first + length_bytes / BLOCK {
                    self.stored.remove(&block);
                }
            }
            IoKind::Flush => {}
        }
        Some(io.id)
    }
}

/// Blocks of a transfer, each with its place in a buffer.
fn blocks(offset_bytes: u64, ranges: &[BufferRange]) -> impl Iterator<Item = (u64, BufferRange)> {
    let length = BLOCK_BYTES as u32;
    let of_range = move |range: &BufferRange| {
        let range = *range;
        (0..range.length / length).map(move |index| range.slice(index * length, length))
    };
    (offset_bytes / BLOCK..).zip(ranges.iter().flat_map(of_range))
}
