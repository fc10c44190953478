//! Sequential streams: which reads belong to a long run and are not worth a copy.
//!
//! The idea is bcache's (`sequential_cutoff`, the last 128 streams tracked): a read that begins
//! where an earlier one ended continues its stream; a stream longer than the cut-off is bypassed.
//! Every read passes here, so both finding a stream and forgetting the least recently used one take
//! a few steps whatever the number of streams: a small hash table with chains, and a list in order
//! of use, both in arrays.

use alloc::boxed::Box;

/// Streams tracked at once, as in bcache.
const STREAMS_MAX: usize = 128;
/// Chains of the hash table: two for each stream.
const CHAINS: usize = 2 * STREAMS_MAX;
/// No stream: the end of a chain, and of the list.
const NONE: u8 = u8::MAX;
const _: () = assert!(STREAMS_MAX <= NONE as usize);

#[derive(Clone, Copy)]
struct ReadStream {
    next_offset: u64,
    bytes: u64,
    /// Next in the chain of the hash of `next_offset`.
    chain_next: u8,
    /// Used just before and just after this one.
    older: u8,
    newer: u8,
}

struct Streams {
    streams: [ReadStream; STREAMS_MAX],
    count: u8,
    chains: [u8; CHAINS],
    oldest: u8,
    newest: u8,
}

/// The streams of one volume.
pub struct SequentialTracker(Box<Streams>);

impl Default for SequentialTracker {
    fn default() -> Self {
        let stream =
            ReadStream { next_offset: 0, bytes: 0, chain_next: NONE, older: NONE, newer: NONE };
        SequentialTracker(Box::new(Streams {
            streams: [stream; STREAMS_MAX],
            count: 0,
            chains: [NONE; CHAINS],
            oldest: NONE,
            newest: NONE,
        }))
    }
}

impl SequentialTracker {
    /// Notes a read; tells how long its stream is now, in bytes, this read included.
    pub fn observe(&mut self, offset_bytes: u64, length_bytes: u64) -> u64 {
        let streams = &mut *self.0;
        let (at, before_bytes) = match streams.find(offset_bytes) {
            Some(at) => {
                streams.unlink(at);
                (at, streams.streams[usize::from(at)].bytes)
            }
            None => (streams.take_unused(), 0),
        };
        let bytes = before_bytes + length_bytes;
        streams.link_newest(at, offset_bytes + length_bytes, bytes);
        bytes
    }
}

/// Chain of an offset: the high bits of a multiplication by 2^64 / golden ratio.
fn chain_of(offset: u64) -> usize {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    (offset.wrapping_mul(MULTIPLIER) >> 56) as usize % CHAINS
}

impl Streams {
    fn find(&self, next_offset: u64) -> Option<u8> {
        let mut at = self.chains[chain_of(next_offset)];
        while at != NONE {
            let stream = &self.streams[usize::from(at)];
            if stream.next_offset == next_offset {
                return Some(at);
            }
            at = stream.chain_next;
        }
        None
    }

    /// A stream that is in no chain and not in the list: a fresh one, else the least recently used.
    fn take_unused(&mut self) -> u8 {
        if usize::from(self.count) < STREAMS_MAX {
            self.count += 1;
            return self.count - 1;
        }
        let oldest = self.oldest;
        self.unlink(oldest);
        oldest
    }

    /// Takes a stream out of its chain and of the list.
    fn unlink(&mut self, at: u8) {
        let ReadStream { next_offset, chain_next, older, newer, .. } =
            self.streams[usize::from(at)];
        let chain = chain_of(next_offset);
        if self.chains[chain] == at {
            self.chains[chain] = chain_next;
        } else {
            let mut before = self.chains[chain];
            while self.streams[usize::from(before)].chain_next != at {
                before = self.streams[usize::from(before)].chain_next;
            }
            self.streams[usize::from(before)].chain_next = chain_next;
        }
        match older {
            NONE => self.oldest = newer,
            older => self.streams[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.streams[usize::from(newer)].older = older,
        }
    }

    fn link_newest(&mut self, at: u8, next_offset: u64, bytes: u64) {
        let chain = chain_of(next_offset);
        let older = self.newest;
        self.streams[usize::from(at)] =
            ReadStream { next_offset, bytes, chain_next: self.chains[chain], older, newer: NONE };
        self.chains[chain] = at;
        self.newest = at;
        match older {
            NONE => self.oldest = at,
            older => self.streams[usize::from(older)].newer = at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn interleaved_streams_grow_and_random_reads_do_not() {
        let mut tracker = SequentialTracker::default();
        for step in 0..16u64 {
            assert_eq!(tracker.observe(step * 65536, 65536), (step + 1) * 65536);
            assert_eq!(tracker.observe((1 << 30) + step * 4096, 4096), (step + 1) * 4096);
            assert_eq!(tracker.observe(step * 7_919_111_168 + (1 << 40), 4096), 4096);
        }
    }

    proptest! {
        /// Against a plain list in order of use.
        #[test]
        fn behaves_like_a_list(reads in prop::collection::vec((0u64..400, 1u64..4), 1..2000)) {
            let mut tracker = SequentialTracker::default();
            // (next offset, bytes), the least recently used first.
            let mut model: Vec<(u64, u64)> = Vec::new();
            for (offset, length) in reads {
                // The newest of several that end at the same place.
                let found = model.iter().rposition(|(next, _)| *next == offset);
                let before = found.map_or(0, |index| model.remove(index).1);
                if found.is_none() && model.len() == STREAMS_MAX {
                    model.remove(0);
                }
                model.push((offset + length, before + length));
                prop_assert_eq!(tracker.observe(offset, length), before + length);
            }
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
