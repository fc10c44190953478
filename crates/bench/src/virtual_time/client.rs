//! A job at work: which request is next, and what was seen of those before.

use forebay_device_model::Random;
use forebay_device_model::closed_loop::Ranks;
use hdrhistogram::Histogram;

use super::system::Wish;
use crate::plan::{Job, Pattern, Work};
use crate::result::{JobResult, Latency};

/// Latencies are kept to three digits.
const DIGITS: u8 = 3;

/// A job and what became of it.
pub(super) struct Client<'a> {
    job: &'a Job,
    random: Random,
    ranks: Option<&'a Ranks>,
    /// Blocks of the range.
    count: u64,
    next_index: u64,
    /// Bytes asked for so far.
    asked_bytes: u64,
    /// Writes since the last flush.
    unflushed: u32,
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    bytes: u64,
}

impl<'a> Client<'a> {
    /// `ranks` is there for Zipf's law.
    pub(super) fn new(job: &'a Job, ranks: Option<&'a Ranks>, seed: u64) -> Client<'a> {
        let histogram = || Histogram::new(DIGITS).expect("three digits are allowed");
        Client {
            job,
            random: Random::new(seed),
            ranks,
            count: job.size / job.block,
            next_index: 0,
            asked_bytes: 0,
            unflushed: 0,
            reads: histogram(),
            writes: histogram(),
            bytes: 0,
        }
    }

    /// What it asks for next; `None` once it has done its amount.
    pub(super) fn next(&mut self) -> Option<Wish> {
        if self.job.flush_every > 0 && self.unflushed >= self.job.flush_every {
            self.unflushed = 0;
            return Some(Wish::Flush);
        }
        // As fio, it leaves what is less than a block.
        let after = self.asked_bytes + self.job.block;
        if self.job.amount.is_some_and(|amount| after > amount) {
            return None;
        }
        let index = match self.job.pattern {
            Pattern::Uniform => self.random.below(self.count),
            Pattern::Zipf => {
                let ranks = self.ranks.expect("worked out for the job");
                ranks.scattered(&mut self.random, self.count)
            }
            Pattern::Sequential => {
                let index = self.next_index;
                self.next_index = (index + 1) % self.count;
                index
            }
        };
        let length_bytes = self.job.block;
        self.asked_bytes += length_bytes;
        let offset_bytes = self.job.offset + index * length_bytes;
        let reads = match self.job.work {
            Work::Read => true,
            Work::Write => false,
            Work::Mix => {
                self.random.below(100) < u64::from(self.job.read_percent.unwrap_or_default())
            }
        };
        Some(if reads {
            Wish::Read { offset_bytes, length_bytes }
        } else {
            self.unflushed += 1;
            Wish::Write { offset_bytes, length_bytes }
        })
    }

    /// How long it thinks about an answer before it asks again. A flush answers nothing.
    pub(super) fn think_ns_after(&self, wish: Wish) -> u64 {
        if wish == Wish::Flush { 0 } else { self.job.think_us * 1000 }
    }

    /// A request has ended.
    pub(super) fn record(&mut self, wish: Wish, latency_ns: u64) {
        let (histogram, length_bytes) = match wish {
            Wish::Read { length_bytes, .. } => (&mut self.reads, length_bytes),
            Wish::Write { length_bytes, .. } => (&mut self.writes, length_bytes),
            Wish::Flush => return,
        };
        self.bytes += length_bytes;
        histogram.record(latency_ns).expect("the histogram grows by itself");
    }

    /// Begins to ask for the same again, unless its random numbers are to be others.
    pub(super) fn begin_anew(&mut self, seed: u64) {
        self.random = Random::new(seed);
        (self.next_index, self.asked_bytes, self.unflushed) = (0, 0, 0);
    }

    /// What it saw; `group` as in [`JobResult::group`].
    pub(super) fn result(&self, group: Option<u32>) -> JobResult {
        JobResult {
            group,
            name: self.job.name.clone(),
            reads: self.reads.len(),
            writes: self.writes.len(),
            bytes: self.bytes,
            read_latency: Latency::of(&self.reads),
            write_latency: Latency::of(&self.writes),
        }
    }
}

/// Zipf's law for a job; `None` for another pattern.
pub(super) fn ranks(job: &Job) -> Option<Ranks> {
    let theta = job.theta?;
    let weights = (1..=job.size / job.block).map(|rank| (rank as f64).powf(-theta));
    Some(Ranks::new(weights))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(pattern: Pattern) -> Job {
        Job {
            name: "a".to_owned(),
            work: Work::Read,
            pattern,
            theta: (pattern == Pattern::Zipf).then_some(1.2),
            offset: 8192,
            size: 16 * 4096,
            block: 4096,
            depth: 1,
            count: 1,
            is_apart: false,
            read_percent: None,
            amount: None,
            flush_every: 0,
            think_us: 0,
            repeats_offsets: true,
        }
    }

    fn offsets(job: &Job, count: usize) -> Vec<u64> {
        let ranks = ranks(job);
        let mut client = Client::new(job, ranks.as_ref(), 1);
        let offset = |wish| match wish {
            Some(Wish::Read { offset_bytes, .. } | Wish::Write { offset_bytes, .. }) => {
                offset_bytes
            }
            other => panic!("{other:?}"),
        };
        (0..count).map(|_| offset(client.next())).collect()
    }

    #[test]
    fn every_request_is_within_the_range_of_the_job() {
        for pattern in [Pattern::Uniform, Pattern::Zipf, Pattern::Sequential] {
            let offsets = offsets(&job(pattern), 1000);
            assert!(offsets.iter().all(|offset| (8192..8192 + 16 * 4096).contains(offset)));
            assert!(offsets.iter().all(|offset| offset % 4096 == 0));
        }
    }

    #[test]
    fn a_sequential_job_begins_anew_at_its_end() {
        let offsets = offsets(&job(Pattern::Sequential), 18);
        assert_eq!((offsets[0], offsets[1], offsets[15]), (8192, 12_288, 8192 + 15 * 4096));
        assert_eq!((offsets[16], offsets[17]), (8192, 12_288));
    }

    #[test]
    fn zipf_prefers_few_blocks() {
        let offsets = offsets(&job(Pattern::Zipf), 1000);
        let mut counts: Vec<usize> = (0..16)
            .map(|index| offsets.iter().filter(|offset| **offset == 8192 + index * 4096).count())
            .collect();
        counts.sort_unstable();
        // Of the law: 1 / sum of k^-1.2 for 16 ranks is .41.
        assert!((350..470).contains(counts.last().unwrap()), "{counts:?}");
    }

    #[test]
    fn a_job_ends_after_its_amount_and_flushes_in_between() {
        let mut job = job(Pattern::Uniform);
        (job.work, job.amount, job.flush_every) = (Work::Write, Some(4 * 4096 + 512), 2);
        let mut client = Client::new(&job, None, 1);
        let kinds: Vec<bool> =
            std::iter::from_fn(|| client.next()).map(|wish| wish == Wish::Flush).collect();
        assert_eq!(kinds, [false, false, true, false, false, true]);
    }

    #[test]
    fn a_mix_reads_as_often_as_it_says() {
        let mut job = job(Pattern::Uniform);
        (job.work, job.read_percent) = (Work::Mix, Some(70));
        let mut client = Client::new(&job, None, 1);
        let is_read = |_| matches!(client.next(), Some(Wish::Read { .. }));
        let reads = (0..1000).map(is_read).filter(|read| *read).count();
        assert!((650..750).contains(&reads), "{reads}");
    }
}
