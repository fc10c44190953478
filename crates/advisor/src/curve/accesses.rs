//! Requests as accesses to single blocks, as caches and samples see them.

use std::collections::HashMap;

use forebay_engine::policy::BlockKey;
use forebay_engine::sequential::SequentialTracker;

use super::sample_hash;
use crate::replay::{Options, pieces};
use crate::trace::{Operation, Request};

/// Whether a request goes on where an earlier one of its kind ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// No: a disk has to seek.
    Jump,
    /// Yes, in a stream that is no longer than the cut-off so far.
    Continued,
    /// Yes, beyond the cut-off: a read is promoted only while the cache has free room.
    LongStream,
}

/// A block that a request reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The block.
    pub key: BlockKey,
    /// Its [`sample_hash`].
    pub hash: u64,
    /// Read or write.
    pub operation: Operation,
    /// What the request is to the streams of its device.
    pub step: Step,
    /// Part of the request that this block is: one divided by its blocks.
    pub request_part: f64,
}

/// A block that is given up.
#[derive(Clone, Copy, Debug)]
pub struct Discarded {
    /// The block.
    pub key: BlockKey,
    /// Its [`sample_hash`].
    pub hash: u64,
}

/// Follows the streams of each device, and takes requests apart.
pub struct Accesses {
    options: Options,
    read_streams: HashMap<u32, SequentialTracker>,
    write_streams: HashMap<u32, SequentialTracker>,
}

impl Accesses {
    /// For blocks and a cut-off as given.
    ///
    /// # Panics
    ///
    /// If blocks have no size.
    pub fn new(options: &Options) -> Accesses {
        assert!(options.block_bytes > 0);
        Accesses { options: *options, read_streams: HashMap::new(), write_streams: HashMap::new() }
    }

    /// What a request that reads or writes is to the streams. To be asked once for each.
    pub fn step(&mut self, request: &Request) -> Step {
        let streams = match request.operation {
            Operation::Write => &mut self.write_streams,
            Operation::Read | Operation::Discard => &mut self.read_streams,
        };
        let stream = streams.entry(request.device).or_default();
        let stream_bytes = stream.observe(request.offset_bytes, request.length_bytes);
        let cutoff = self.options.sequential_cutoff_bytes;
        match stream_bytes {
            bytes if cutoff > 0 && bytes > cutoff => Step::LongStream,
            bytes if bytes > request.length_bytes => Step::Continued,
            _ => Step::Jump,
        }
    }

    /// The blocks that a request reads or writes.
    pub fn of(&self, request: &Request, step: Step) -> impl Iterator<Item = Access> + use<> {
        let operation = request.operation;
        let block_bytes = u64::from(self.options.block_bytes);
        let first = request.offset_bytes / block_bytes;
        let end = (request.offset_bytes + request.length_bytes).div_ceil(block_bytes);
        let request_part = 1.0 / (end - first).max(1) as f64;
        pieces(request, self.options.block_bytes).map(move |piece| Access {
            key: piece.key,
            hash: sample_hash(piece.key),
            operation,
            step,
            request_part,
        })
    }

    /// The blocks that a discard gives up; parts of blocks stay.
    pub fn discarded(&self, request: &Request) -> impl Iterator<Item = Discarded> + use<> {
        let block_bytes = u64::from(self.options.block_bytes);
        let volume = request.device;
        let start = request.offset_bytes.div_ceil(block_bytes);
        let end = (request.offset_bytes + request.length_bytes) / block_bytes;
        (start..end).map(move |block| {
            let key = BlockKey { volume, block };
            Discarded { key, hash: sample_hash(key) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: Options = Options { block_bytes: 4096, sequential_cutoff_bytes: 64 << 10 };

    fn request(operation: Operation, offset_bytes: u64, length_bytes: u64) -> Request {
        Request { time_ns: None, device: 0, operation, offset_bytes, length_bytes }
    }

    #[test]
    fn streams_of_reads_and_of_writes_are_two() {
        let mut accesses = Accesses::new(&OPTIONS);
        let mut step =
            |operation, block: u64| accesses.step(&request(operation, block * 32_768, 32_768));
        assert_eq!(step(Operation::Read, 0), Step::Jump);
        assert_eq!(step(Operation::Write, 1), Step::Jump);
        assert_eq!(step(Operation::Read, 1), Step::Continued);
        assert_eq!(step(Operation::Read, 2), Step::LongStream);
        assert_eq!(step(Operation::Read, 9), Step::Jump);
    }

    #[test]
    fn a_request_is_divided_among_the_blocks_it_touches() {
        let accesses = Accesses::new(&OPTIONS);
        let read = request(Operation::Read, 4_000, 8_192);
        let found: Vec<Access> = accesses.of(&read, Step::Jump).collect();
        assert_eq!(found.iter().map(|access| access.key.block).collect::<Vec<_>>(), [0, 1, 2]);
        assert!((found.iter().map(|access| access.request_part).sum::<f64>() - 1.0).abs() < 1e-12);
        let discard = request(Operation::Discard, 4_000, 8_192);
        let given_up: Vec<u64> =
            accesses.discarded(&discard).map(|block| block.key.block).collect();
        assert_eq!(given_up, [1], "the other two are only touched");
    }
}
