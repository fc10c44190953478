//! Runs of bits in words, a word at a time.

const WORD_BITS: u64 = u64::BITS as u64;

/// The words that hold a run of bits, and which of their bits are the run's.
pub(crate) fn masks(start: u32, count: u32) -> impl Iterator<Item = (usize, u64)> {
    assert!(count > 0);
    let start = u64::from(start);
    let end = start + u64::from(count);
    (start / WORD_BITS..end.div_ceil(WORD_BITS)).map(move |word| {
        let first = word * WORD_BITS;
        let (from, to) = (start.max(first) - first, end.min(first + WORD_BITS) - first);
        let mask = u64::MAX >> (WORD_BITS - (to - from)) << from;
        (usize::try_from(word).expect("bounded by CACHE_BLOCKS_MAX"), mask)
    })
}

/// Sets a run of bits; tells how many of them were clear before.
pub(crate) fn set_run(words: &mut [u64], start: u32, count: u32) -> u32 {
    let mut set = 0;
    for (word, mask) in masks(start, count) {
        set += (mask & !words[word]).count_ones();
        words[word] |= mask;
    }
    set
}

/// Whether all bits of a run are set.
pub(crate) fn has_run(words: &[u64], start: u32, count: u32) -> bool {
    masks(start, count).all(|(word, mask)| words[word] & mask == mask)
}

/// The runs of set bits within a run, each with its first bit and its length.
pub(crate) fn runs(words: &[u64], start: u32, count: u32) -> impl Iterator<Item = (u32, u32)> {
    let end = start + count;
    let mut at = start;
    core::iter::from_fn(move || {
        let from = find(words, at..end, 0);
        at = find(words, from..end, u64::MAX);
        (from < at).then_some((from, at - from))
    })
}

/// The first bit of the range that is set, or clear if `flip` is all ones; its end if none is.
fn find(words: &[u64], range: core::ops::Range<u32>, flip: u64) -> u32 {
    let mut at = range.start;
    while at < range.end {
        let rest = (words[(at / u64::BITS) as usize] ^ flip) >> (at % u64::BITS);
        if rest != 0 {
            return range.end.min(at + rest.trailing_zeros());
        }
        at = (at / u64::BITS + 1) * u64::BITS;
    }
    range.end
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::format::checkpoint::{bit, set_bit};

    const BITS: u32 = 320;

    /// Bits in stretches of all lengths up to a word and more, by a rule that has no period in it.
    fn some_bits() -> [u64; 5] {
        let mut words = [0; 5];
        for at in 0..BITS {
            if at * at / 97 % 3 != 1 {
                set_bit(&mut words, at);
            }
        }
        words
    }

    #[test]
    fn runs_are_what_the_bits_are_one_by_one() {
        let words = some_bits();
        for start in 0..130 {
            for count in 0..=BITS - 130 {
                let found: Vec<u32> =
                    runs(&words, start, count).flat_map(|(at, count)| at..at + count).collect();
                let set = (start..start + count).filter(|at| bit(&words, *at));
                assert!(set.eq(found.iter().copied()), "{start}+{count}: {found:?}");
            }
        }
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        assert_eq!(runs(&[u64::MAX; 5], 3, 250).collect::<Vec<_>>(), [(3, 250)]);
        assert_eq!(runs(&[0, u64::MAX << 63, 1], 0, 192).collect::<Vec<_>>(), [(127, 2)]);
        assert_eq!(runs(&[0; 5], 0, BITS).count(), 0);
    }

    #[test]
    fn a_run_that_was_set_is_set_and_only_what_was_clear_is_counted() {
        for start in 0..130 {
            for count in 1..=BITS - 130 {
                let mut words = some_bits();
                let clear = (start..start + count).filter(|at| !bit(&words, *at)).count();
                assert_eq!(has_run(&words, start, count), clear == 0);
                assert_eq!(set_run(&mut words, start, count) as usize, clear);
                assert!(has_run(&words, start, count));
                let others = |words: &[u64]| -> Vec<bool> {
                    let outside = (0..BITS).filter(|at| !(start..start + count).contains(at));
                    outside.map(|at| bit(words, at)).collect()
                };
                assert_eq!(others(&words), others(&some_bits()));
            }
        }
    }
}
