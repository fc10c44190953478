//! How soon what is written is overwritten: what a cache need not write back if it waits so long.

use serde::Serialize;

/// Delays that are looked at, in seconds.
pub const DELAYS_S: [u32; 6] = [1, 10, 30, 60, 600, 3_600];
const SECOND_NS: u64 = 1_000_000_000;

/// Of all blocks written, the part that is overwritten or discarded within a delay.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Absorption {
    /// The delay.
    pub delay_s: u32,
    /// The part, at least: what comes after the end of the trace is not known. None if the trace is
    /// shorter than the delay.
    pub ratio: Option<f64>,
}

/// Counts sampled writes with what they stand for.
#[derive(Default)]
pub(super) struct Overwrites {
    written: f64,
    absorbed: [f64; DELAYS_S.len()],
}

impl Overwrites {
    /// A block is written that was written before at `last_ns`, if ever. Stands for `weight`
    /// blocks.
    pub(super) fn write(&mut self, last_ns: Option<u64>, now_ns: Option<u64>, weight: f64) {
        self.written += weight;
        self.discard(last_ns, now_ns, weight);
    }

    /// What was written to a block at `last_ns`, if anything was, is not needed any more.
    pub(super) fn discard(&mut self, last_ns: Option<u64>, now_ns: Option<u64>, weight: f64) {
        let (Some(last_ns), Some(now_ns)) = (last_ns, now_ns) else { return };
        let age_ns = now_ns - last_ns;
        for (delay_s, absorbed) in DELAYS_S.iter().zip(&mut self.absorbed) {
            if age_ns < u64::from(*delay_s) * SECOND_NS {
                *absorbed += weight;
            }
        }
    }

    /// The parts, of so many blocks written in a trace of this length. As with misses, what is
    /// *not* absorbed is what a sample tells best: busy blocks are few.
    pub(super) fn absorption(&self, write_blocks: u64, duration_s: f64) -> Vec<Absorption> {
        if write_blocks == 0 {
            return Vec::new();
        }
        let of = |(delay_s, absorbed): (&u32, &f64)| {
            let left = (self.written - absorbed) / write_blocks as f64;
            let is_known = duration_s >= f64::from(*delay_s);
            let ratio = is_known.then_some((1.0 - left).clamp(0.0, 1.0));
            Absorption { delay_s: *delay_s, ratio }
        };
        DELAYS_S.iter().zip(&self.absorbed).map(of).collect()
    }
}
