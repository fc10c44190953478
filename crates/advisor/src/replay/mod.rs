//! What caches of several sizes and policies make of one trace.
//!
//! A [`Replay`] is given the requests one after another and holds a cache for each [`Case`]. The
//! policies are the engine's own; [`PolicyName::Min`] knows the future and shows what is possible.
//! Caches hold single blocks and copies cost nothing here: it is the policy alone that is compared.

mod min;
mod queues;
pub mod shift;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use forebay_engine::policy::{BlockKey, Clock2q, Fifo, Lru, Policy};
use forebay_engine::sequential::SequentialTracker;

use crate::curve::BlockHasher;
use crate::trace::{Operation, Request};
pub use min::min_hits;
pub use queues::{Key, Queues};

/// What decides which blocks stay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PolicyName {
    /// Three queues in the manner of Clock2Q+; the default.
    Clock2q,
    /// Least recently used.
    Lru,
    /// First in, first out.
    Fifo,
    /// Belady's MIN, which knows the future.
    Min,
}

impl PolicyName {
    /// All policies.
    pub const ALL: [PolicyName; 4] =
        [PolicyName::Clock2q, PolicyName::Lru, PolicyName::Fifo, PolicyName::Min];

    /// The name that users give.
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::Clock2q => "clock2q",
            PolicyName::Lru => "lru",
            PolicyName::Fifo => "fifo",
            PolicyName::Min => "min",
        }
    }

    /// The policy of this name.
    pub fn from_name(name: &str) -> Option<PolicyName> {
        PolicyName::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// The engine's policy for a cache of so many blocks; none for MIN.
    fn policy(self, cache_blocks: u32) -> Option<Box<dyn Policy>> {
        let blocks = u64::from(cache_blocks);
        match self {
            PolicyName::Clock2q => Some(Box::new(Clock2q::new(blocks))),
            PolicyName::Lru => Some(Box::new(Lru::new(blocks))),
            PolicyName::Fifo => Some(Box::new(Fifo)),
            PolicyName::Min => None,
        }
    }
}

/// A cache to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// What decides.
    pub policy: PolicyName,
    /// Size in blocks, at least 1.
    pub cache_blocks: u32,
}

/// What holds for all cases of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a block: what is cached or not as a whole.
    pub block_bytes: u32,
    /// Reads that belong to a longer stream are not promoted once the cache is full; 0: all are.
    /// MIN has no such rule.
    pub sequential_cutoff_bytes: u64,
}

/// What a case came to. Reads and writes count alike; discards only take blocks out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Requests.
    pub request_count: u64,
    /// Requests of which every block was cached.
    pub request_hit_count: u64,
    /// Blocks that requests touched.
    pub block_count: u64,
    /// Of these, the blocks that were cached.
    pub block_hit_count: u64,
    /// Bytes of requests.
    pub bytes: u64,
    /// Of these, the bytes that were cached.
    pub hit_bytes: u64,
    /// Bytes written to the cache: of requests that write, and of promoted reads.
    pub cache_written_bytes: u64,
    /// Requests of which some block was not promoted, being part of a long stream.
    pub bypassed_request_count: u64,
    /// Their bytes that were not cached.
    pub bypassed_bytes: u64,
}

impl Tally {
    /// Part of the requests that were cached as a whole; 0 of none.
    pub fn hit_ratio_requests(&self) -> f64 {
        ratio(self.request_hit_count, self.request_count)
    }

    /// Part of the blocks that were cached; 0 of none.
    pub fn hit_ratio_blocks(&self) -> f64 {
        ratio(self.block_hit_count, self.block_count)
    }

    /// Part of the bytes that were cached; 0 of none.
    pub fn hit_ratio_bytes(&self) -> f64 {
        ratio(self.hit_bytes, self.bytes)
    }

    fn add(&mut self, piece: &Piece, found: Found, operation: Operation, block_bytes: u32) {
        let bytes = u64::from(piece.bytes);
        self.block_count += 1;
        self.bytes += bytes;
        match found {
            Found::Hit => {
                self.block_hit_count += 1;
                self.hit_bytes += bytes;
            }
            Found::Miss => {}
            Found::Bypassed => self.bypassed_bytes += bytes,
        }
        if operation == Operation::Write || found == Found::Miss {
            self.cache_written_bytes += u64::from(block_bytes);
        }
    }

    /// All pieces of a request were added since it was `before`.
    fn end_request(&mut self, before: &Tally) {
        let missed = |tally: &Tally| tally.block_count - tally.block_hit_count;
        self.request_count += 1;
        self.request_hit_count += u64::from(missed(self) == missed(before));
        self.bypassed_request_count += u64::from(self.bypassed_bytes > before.bypassed_bytes);
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What all cases share.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Different blocks that requests touched.
    pub distinct_block_count: u64,
    /// Discards.
    pub discard_count: u64,
}

enum Cache {
    Queues(Box<Queues<BlockKey, dyn Policy>>),
    /// MIN: judged at the end.
    Later(u32),
}

struct Run {
    cache: Cache,
    tally: Tally,
}

/// Part of a request in one block.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) key: BlockKey,
    pub(crate) bytes: u32,
    /// Whether no other piece of the request follows.
    is_last: bool,
}

/// A replay under way.
pub struct Replay {
    options: Options,
    runs: Vec<Run>,
    /// Everything, if a case has to know the future.
    recorded: Option<Vec<(Piece, Operation)>>,
    streams: HashMap<u32, SequentialTracker>,
    distinct: HashSet<BlockKey, BuildHasherDefault<BlockHasher>>,
    summary: Summary,
}

impl Replay {
    /// Caches for `cases`, all empty.
    ///
    /// # Panics
    ///
    /// If blocks or a cache have no size.
    pub fn new(cases: &[Case], options: &Options) -> Replay {
        assert!(options.block_bytes > 0);
        let run = |case: &Case| {
            assert!(case.cache_blocks > 0);
            let cache = match case.policy.policy(case.cache_blocks) {
                Some(policy) => Cache::Queues(Box::new(Queues::new(policy, case.cache_blocks))),
                None => Cache::Later(case.cache_blocks),
            };
            Run { cache, tally: Tally::default() }
        };
        let runs: Vec<Run> = cases.iter().map(run).collect();
        let has_min = cases.iter().any(|case| case.policy == PolicyName::Min);
        Replay {
            options: *options,
            runs,
            recorded: has_min.then(Vec::new),
            streams: HashMap::new(),
            distinct: HashSet::default(),
            summary: Summary::default(),
        }
    }

    /// The next request of the trace.
    pub fn request(&mut self, request: &Request) {
        if request.operation == Operation::Discard {
            self.summary.discard_count += 1;
            self.discard(request);
            return;
        }
        let pieces = pieces(request, self.options.block_bytes);
        let stream_bytes = if request.operation == Operation::Write {
            0
        } else {
            let streams = self.streams.entry(request.device).or_default();
            streams.observe(request.offset_bytes, request.length_bytes)
        };
        let cutoff = self.options.sequential_cutoff_bytes;
        let is_long = cutoff > 0 && stream_bytes > cutoff;
        for piece in pieces.clone() {
            self.distinct.insert(piece.key);
            if let Some(recorded) = &mut self.recorded {
                recorded.push((piece, request.operation));
            }
        }
        for run in &mut self.runs {
            let Cache::Queues(queues) = &mut run.cache else { continue };
            let before = run.tally;
            for piece in pieces.clone() {
                let is_bypassed = is_long && queues.is_full() && !queues.contains(piece.key);
                let found = match is_bypassed {
                    true => Found::Bypassed,
                    false if queues.access(piece.key) => Found::Hit,
                    false => Found::Miss,
                };
                run.tally.add(&piece, found, request.operation, self.options.block_bytes);
            }
            run.tally.end_request(&before);
        }
    }

    /// The results, in the order of the cases.
    pub fn finish(mut self) -> (Summary, Vec<Tally>) {
        if let Some(recorded) = self.recorded.take() {
            let keys: Vec<BlockKey> = recorded.iter().map(|(piece, _)| piece.key).collect();
            for run in &mut self.runs {
                let Cache::Later(cache_blocks) = run.cache else { continue };
                let hits = min_hits(&keys, cache_blocks);
                let mut before = run.tally;
                for ((piece, operation), is_hit) in recorded.iter().zip(hits) {
                    let found = if is_hit { Found::Hit } else { Found::Miss };
                    run.tally.add(piece, found, *operation, self.options.block_bytes);
                    if piece.is_last {
                        run.tally.end_request(&before);
                        before = run.tally;
                    }
                }
            }
        }
        self.summary.distinct_block_count = self.distinct.len() as u64;
        (self.summary, self.runs.into_iter().map(|run| run.tally).collect())
    }

    /// Only whole blocks are given up.
    fn discard(&mut self, request: &Request) {
        let block_bytes = u64::from(self.options.block_bytes);
        let start = request.offset_bytes.div_ceil(block_bytes);
        let end = (request.offset_bytes + request.length_bytes) / block_bytes;
        for run in &mut self.runs {
            let Cache::Queues(queues) = &mut run.cache else { continue };
            for block in start..end {
                queues.invalidate(BlockKey { volume: request.device, block });
            }
        }
    }
}

/// The blocks of a request.
pub(crate) fn pieces(
    request: &Request,
    block_bytes: u32,
) -> impl Iterator<Item = Piece> + Clone + use<> {
    let (start, end) = (request.offset_bytes, request.offset_bytes + request.length_bytes);
    let (volume, size) = (request.device, u64::from(block_bytes));
    (start / size..end.div_ceil(size)).map(move |block| {
        let bytes = end.min((block + 1) * size) - start.max(block * size);
        Piece {
            key: BlockKey { volume, block },
            bytes: u32::try_from(bytes).expect("within a block"),
            is_last: (block + 1) * size >= end,
        }
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Hit,
    Miss,
    Bypassed,
}
