//! Clients that keep a fixed number of requests in flight, in virtual time: what fio measures.

use alloc::vec::Vec;

use crate::{ModelDevice, Random, Request, RequestKind, SECOND_NS, Token};

/// Size of a request unless a job says otherwise, and unit of what jobs address.
pub const BLOCK_BYTES: u64 = 4096;

/// Which block a job asks for next.
pub enum Pattern {
    /// Every block equally likely.
    Uniform,
    /// Some blocks more likely than others, scattered over the range.
    Ranked(Ranks),
    /// One after another.
    Sequential,
}

/// The first prime from 2^64 over the golden ratio on (Knuth, TAOCP 3, 6.4: multiplicative hashing)
/// with its last 40 bits.
const SCATTER: u128 = 0x9e37_7cb9_7f4a_7c15;

/// A permutation of the numbers below `count`: the factor is a prime and more than any count, so it
/// has no factor in common with one, and nothing of the product is cut off.
fn scatter(rank: u64, count: u64) -> u64 {
    (u128::from(rank) * SCATTER % u128::from(count)) as u64
}

/// How likely each of many blocks is.
pub struct Ranks {
    cumulative: Vec<f64>,
}

impl Ranks {
    /// Blocks with these weights. There is at least one, and the first is above zero.
    #[must_use]
    pub fn new(weights: impl Iterator<Item = f64>) -> Ranks {
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = weights
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        assert!(sum > 0.0);
        for entry in &mut cumulative {
            *entry /= sum;
        }
        Ranks { cumulative }
    }

    /// An index below `count`, which is not zero: each rank below it has one of its own.
    #[must_use]
    pub fn scattered(&self, random: &mut Random, count: u64) -> u64 {
        scatter(self.sample(random), count)
    }

    /// A rank from zero.
    fn sample(&self, random: &mut Random) -> u64 {
        let point = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = self.cumulative.partition_point(|entry| *entry < point);
        rank.min(self.cumulative.len() - 1) as u64
    }
}

/// One client.
pub struct Job {
    /// What it asks for.
    pub kind: RequestKind,
    /// Where.
    pub pattern: Pattern,
    /// First byte of its range.
    pub start_bytes: u64,
    /// Length of its range.
    pub range_bytes: u64,
    /// Bytes of each request.
    pub request_bytes: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Where a sequential job is.
    pub next_index: u64,
}

impl Job {
    /// Requests of 4 KiB over `range_bytes` from `start_bytes` on.
    #[must_use]
    pub fn new(kind: RequestKind, pattern: Pattern, start_bytes: u64, range_bytes: u64) -> Job {
        let request_bytes = BLOCK_BYTES;
        Job { kind, pattern, start_bytes, range_bytes, request_bytes, depth: 1, next_index: 0 }
    }

    fn next_request(&mut self, random: &mut Random) -> Request {
        let count = self.range_bytes / self.request_bytes;
        let index = match &self.pattern {
            Pattern::Uniform => random.below(count),
            Pattern::Ranked(ranks) => ranks.scattered(random, count),
            Pattern::Sequential => {
                let index = self.next_index;
                self.next_index = (index + 1) % count;
                index
            }
        };
        let offset_bytes = self.start_bytes + index * self.request_bytes;
        Request { kind: self.kind, offset_bytes, length_bytes: self.request_bytes }
    }
}

/// What the clients saw.
pub struct Outcome {
    /// Of each request that ended in time, ascending.
    pub latencies_ns: Vec<u64>,
    /// How long was measured.
    pub duration_ns: u64,
}

impl Outcome {
    /// Requests a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.latencies_ns.len() as f64 * SECOND_NS as f64 / self.duration_ns as f64
    }

    /// The latency that so many of a thousand requests do not exceed. At least one has ended.
    #[must_use]
    pub fn permille_ms(&self, permille: usize) -> f64 {
        let index = (self.latencies_ns.len() - 1) * permille / 1000;
        self.latencies_ns[index] as f64 / 1e6
    }
}

/// Runs `jobs` for `duration_s` after `warm_up_s` that do not count.
pub fn run(device: &mut ModelDevice, jobs: &mut [Job], warm_up_s: u64, duration_s: u64) -> Outcome {
    let mut random = Random::new(1);
    let mut started: Vec<(usize, u64)> = Vec::new();
    for (job_index, job) in jobs.iter_mut().enumerate() {
        for _ in 0..job.depth {
            let token = Token(started.len() as u64);
            started.push((job_index, 0));
            device.push(0, token, job.next_request(&mut random));
        }
    }
    let begin_ns = warm_up_s * SECOND_NS;
    let end_ns = begin_ns + duration_s * SECOND_NS;
    let mut latencies_ns = Vec::new();
    while let Some(event_ns) = device.next_event_ns() {
        if event_ns >= end_ns {
            break;
        }
        while let Some(completion) = device.poll(event_ns) {
            let (job_index, started_ns) = &mut started[completion.token.0 as usize];
            if completion.at_ns >= begin_ns {
                latencies_ns.push(completion.at_ns - *started_ns);
            }
            *started_ns = completion.at_ns;
            let request = jobs[*job_index].next_request(&mut random);
            device.push(completion.at_ns, completion.token, request);
        }
    }
    latencies_ns.sort_unstable();
    Outcome { latencies_ns, duration_ns: end_ns - begin_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_ranks_are_the_same_block() {
        for count in [1, 10, 2560, 4096, 3 << 12, 51 << 8, 100_003] {
            let mut is_met = alloc::vec![false; count as usize];
            for rank in 0..count {
                assert!(!core::mem::replace(&mut is_met[scatter(rank, count) as usize], true));
            }
        }
    }
}
