//! Sequential streams: which reads belong to a long run and are not worth a copy.
//!
//! The idea is bcache's (`sequential_cutoff`, the last 128 streams tracked): a read that begins
//! where an earlier one ended continues its stream; a stream longer than the cut-off is bypassed.

use alloc::vec::Vec;

/// Streams tracked at once, as in bcache.
const STREAMS_MAX: usize = 128;

#[derive(Clone, Copy)]
struct ReadStream {
    next_offset: u64,
    bytes: u64,
    last_use: u64,
}

#[derive(Default)]
pub(crate) struct SequentialTracker {
    streams: Vec<ReadStream>,
    uses: u64,
}

impl SequentialTracker {
    /// Notes a read; tells how long its stream is now, in bytes, this read included.
    pub(crate) fn observe(&mut self, offset_bytes: u64, length_bytes: u64) -> u64 {
        self.uses += 1;
        let next_offset = offset_bytes + length_bytes;
        let found = self.streams.iter_mut().find(|stream| stream.next_offset == offset_bytes);
        if let Some(stream) = found {
            stream.next_offset = next_offset;
            stream.bytes += length_bytes;
            stream.last_use = self.uses;
            return stream.bytes;
        }
        let stream = ReadStream { next_offset, bytes: length_bytes, last_use: self.uses };
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(stream);
        } else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_use);
            *oldest.expect("STREAMS_MAX is not zero") = stream;
        }
        length_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_streams_grow_and_random_reads_do_not() {
        let mut tracker = SequentialTracker::default();
        for step in 0..16u64 {
            assert_eq!(tracker.observe(step * 65536, 65536), (step + 1) * 65536);
            assert_eq!(tracker.observe((1 << 30) + step * 4096, 4096), (step + 1) * 4096);
            assert_eq!(tracker.observe(step * 7_919_111_168 + (1 << 40), 4096), 4096);
        }
    }

    #[test]
    fn a_stream_is_forgotten_after_128_others() {
        let mut tracker = SequentialTracker::default();
        tracker.observe(0, 4096);
        for other in 1..=128u64 {
            tracker.observe(other << 30, 4096);
        }
        assert_eq!(tracker.observe(4096, 4096), 4096);
    }
}
