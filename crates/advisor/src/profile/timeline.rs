//! The trace in equal windows: requests, bytes and different blocks of each.
//!
//! How long a trace is, is known at its end only. So windows begin short, and when there are too
//! many each two become one. Which windows a block of the sample is used in is a bit for each.

use serde::Serialize;

use crate::trace::{Operation, Request};

/// Windows at most: the bits of a mask.
const WINDOWS_MAX: u64 = u128::BITS as u64;
/// Length of a window at first, in nanoseconds and in requests. Doubled, the former is a second.
const FIRST_WIDTH_NS: u64 = 62_500_000;
const FIRST_WIDTH_REQUESTS: u64 = 1;

/// What the timeline counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Seconds since the first request.
    Seconds,
    /// Requests, where the trace has no times.
    Requests,
}

/// When a request comes.
#[derive(Clone, Copy, Default)]
pub(super) struct Moment {
    /// Nanoseconds since the first request, or requests before this one.
    pub(super) position: u64,
    /// The former, if there are times.
    pub(super) time_ns: Option<u64>,
}

/// What is known of a sampled block.
#[derive(Default)]
pub(super) struct Seen {
    /// Windows in which it was read or written.
    pub(super) touched: u128,
    /// Windows in which it was written.
    pub(super) written: u128,
    /// When it was written last, if it was and has not been discarded since.
    pub(super) last_write_ns: Option<u64>,
}

impl Seen {
    /// Each two windows are one.
    pub(super) fn halve(&mut self) {
        self.touched = halved(self.touched);
        self.written = halved(self.written);
    }
}

/// Bit `n` of the result is set if bit `2n` or bit `2n + 1` was.
fn halved(mask: u128) -> u128 {
    (0..u128::BITS / 2)
        .fold(0, |packed, index| packed | u128::from(mask >> (2 * index) & 3 != 0) << index)
}

/// A part of the trace.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Window {
    /// Where it begins, in seconds or requests.
    pub start: f64,
    /// Reads.
    pub read_count: u64,
    /// Writes.
    pub write_count: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
    /// Bytes in different blocks that were read or written in it.
    pub working_set_bytes: u64,
    /// Bytes in different blocks that were written in it.
    pub written_set_bytes: u64,
    /// Bytes in different blocks that were read or written up to its end.
    pub cumulative_bytes: u64,
}

/// Windows under way.
#[derive(Default)]
pub(super) struct Timeline {
    /// 0 before the first request.
    width: u64,
    axis: Option<Axis>,
    windows: Vec<Window>,
}

impl Timeline {
    /// Makes room for a moment. Returns how often each two windows became one for that, and have to
    /// become one in masks.
    pub(super) fn fit(&mut self, now: Moment, axis: Axis) -> u32 {
        if self.width == 0 {
            self.axis = Some(axis);
            self.width = match axis {
                Axis::Seconds => FIRST_WIDTH_NS,
                Axis::Requests => FIRST_WIDTH_REQUESTS,
            };
        }
        let mut halvings = 0;
        while now.position / self.width >= WINDOWS_MAX {
            self.halve();
            halvings += 1;
        }
        halvings
    }

    fn halve(&mut self) {
        self.width *= 2;
        let merged = self.windows.chunks(2).map(|pair| {
            let mut sum = pair[0];
            for second in &pair[1..] {
                sum.read_count += second.read_count;
                sum.write_count += second.write_count;
                sum.read_bytes += second.read_bytes;
                sum.write_bytes += second.write_bytes;
            }
            sum
        });
        self.windows = merged.collect();
    }

    /// The window of a moment for which there is room.
    pub(super) fn window_of(&self, now: Moment) -> usize {
        usize::try_from(now.position / self.width).expect("below the bits of a mask")
    }

    pub(super) fn add(&mut self, now: Moment, request: &Request) {
        let index = self.window_of(now);
        if index >= self.windows.len() {
            self.windows.resize(index + 1, Window::default());
        }
        let window = &mut self.windows[index];
        match request.operation {
            Operation::Read => {
                window.read_count += 1;
                window.read_bytes += request.length_bytes;
            }
            Operation::Write => {
                window.write_count += 1;
                window.write_bytes += request.length_bytes;
            }
            Operation::Discard => {}
        }
    }

    /// The windows, with the different blocks that a sample tells of. Each sampled block stands for
    /// so many bytes.
    pub(super) fn windows<'a>(
        mut self,
        sample: impl Iterator<Item = &'a Seen>,
        bytes_each: f64,
    ) -> Vec<Window> {
        let mut touched = vec![0u32; self.windows.len()];
        let mut written = touched.clone();
        let mut first = touched.clone();
        for seen in sample {
            for index in 0..self.windows.len() {
                touched[index] += u32::from(seen.touched >> index & 1 == 1);
                written[index] += u32::from(seen.written >> index & 1 == 1);
            }
            first[seen.touched.trailing_zeros() as usize] += 1;
        }
        let unit = match self.axis {
            Some(Axis::Seconds) => 1e-9,
            _ => 1.0,
        };
        let bytes = |count: u32| (f64::from(count) * bytes_each) as u64;
        let mut cumulative = 0;
        for (index, window) in self.windows.iter_mut().enumerate() {
            cumulative += first[index];
            window.start = index as f64 * self.width as f64 * unit;
            window.working_set_bytes = bytes(touched[index]);
            window.written_set_bytes = bytes(written[index]);
            window.cumulative_bytes = bytes(cumulative);
        }
        self.windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_keeps_each_pair() {
        let mut state = 1u128;
        for _ in 0..200 {
            state = state.wrapping_mul(0x2545_f491_4f6c_dd1d_9e37_79b9_7f4a_7c15).wrapping_add(11);
            let mask = state & state >> 3;
            let found = halved(mask);
            for index in 0..64 {
                let either = mask >> (2 * index) & 3 != 0;
                assert_eq!(found >> index & 1 == 1, either, "{mask:#x} at {index}");
            }
            assert_eq!(found >> 64, 0);
        }
    }
}
