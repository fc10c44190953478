//! What memory costs: a chain of cache lines in random order, each of which names the next.
//!
//! A step waits for one cache miss and, where the memory is large, for the page tables, as a step
//! of the index does.

use std::hint::black_box;

use crate::host::cpu_nanoseconds;

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Steps of a measurement.
const STEPS: u64 = 1 << 22;

/// A chain through all cache lines of a piece of memory.
pub(crate) struct Chase {
    words: Vec<u64>,
}

impl Chase {
    /// Through so many bytes, at least two lines of them.
    pub(crate) fn through(bytes: u64) -> Chase {
        let line_count = usize::try_from(bytes).expect("it is memory").div_ceil(LINE_WORDS * 8);
        let line_count = line_count.max(2);
        let mut words = vec![0; line_count * LINE_WORDS];
        for line in 0..line_count {
            words[line * LINE_WORDS] = line as u64;
        }
        // Sattolo's shuffle makes one cycle of all.
        let mut random = 1u64;
        for line in (1..line_count).rev() {
            // The factor and the summand of Knuth's MMIX; the high bits are good enough.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let other = usize::try_from((random >> 32) % line as u64).expect("a line");
            words.swap(line * LINE_WORDS, other * LINE_WORDS);
        }
        Chase { words }
    }

    /// Nanoseconds of CPU time of a step.
    pub(crate) fn time_step(&self) -> f64 {
        let mut line = 0;
        let before = cpu_nanoseconds();
        for _ in 0..STEPS {
            line = usize::try_from(self.words[line * LINE_WORDS]).expect("a line");
        }
        black_box(line);
        (cpu_nanoseconds() - before) as f64 / STEPS as f64
    }
}
