//! How long to wait before something that failed is tried again.
//!
//! Each failure in a row doubles the wait, up to a bound, and a part that nobody can foresee is
//! added: clients and volumes that an origin failed at one moment do not all come back at one
//! moment.

/// First wait, in milliseconds: longer than the reset of a link, too short for a person to notice.
pub(crate) const FIRST_MS: u64 = 250;
/// Longest wait before the jitter, in milliseconds: an origin that is back is in use soon, and one
/// that is not is bothered a few times a minute. Linux multipath looks after paths every 5 s.
pub(crate) const LONGEST_MS: u64 = 4_000;

/// The wait after so many failures in a row, the first counted as one.
pub(crate) fn after_failures_ms(failures: u32, seed: u64) -> u64 {
    let doublings = failures.saturating_sub(1).min(LONGEST_MS.ilog2());
    with_jitter_ms((FIRST_MS << doublings).min(LONGEST_MS), seed)
}

/// The wait and up to a quarter of it, as the seed says.
pub(crate) fn with_jitter_ms(milliseconds: u64, seed: u64) -> u64 {
    // The finalizer of SplitMix64: any bit of the seed decides about any bit of the jitter.
    let mut bits = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    milliseconds + milliseconds / 4 * ((bits ^ bits >> 31) % 256) / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound() {
        let shortest = |failures| (0..1000).map(|seed| after_failures_ms(failures, seed)).min();
        let longest = |failures| (0..1000).map(|seed| after_failures_ms(failures, seed)).max();
        for (failures, length_ms) in [(1, 250), (2, 500), (3, 1000), (5, 4000), (6, 4000)] {
            assert_eq!(shortest(failures), Some(length_ms));
            assert_eq!(longest(failures), Some(length_ms + length_ms / 4));
        }
        assert!(longest(u32::MAX) <= Some(LONGEST_MS + LONGEST_MS / 4));
    }
}
