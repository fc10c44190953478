//! The moving mean that the engine keeps of durations and sizes.

/// Weight of a new sample in a mean: 1/16.
const MEAN_SHIFT: u32 = 4;

/// The mean after another sample.
pub(crate) fn moved(mean: u64, sample: u64) -> u64 {
    mean - (mean >> MEAN_SHIFT) + (sample >> MEAN_SHIFT)
}
