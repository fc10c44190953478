//! The only source of chance: xoshiro256++, seeded by splitmix64.
//!
//! A run is a function of its seed. Nothing here reads a clock or an address, and each part of the
//! world draws from a generator of its own ([`Random::fork`]), so that a change in one part
//! disturbs the others as little as possible.

use std::ops::RangeInclusive;

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut z = seed;
        let mut split_mix = || {
            z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut x = z;
            x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            x ^ (x >> 31)
        };
        Random { state: [split_mix(), split_mix(), split_mix(), split_mix()] }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number from 0 to `bound - 1`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in the range, ends included.
    pub fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// An index of a list of `length` items.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True in `percent` of all cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in `permille` of a thousand cases.
    pub fn permille(&mut self, permille: u64) -> bool {
        permille > 0 && self.below(1000) < permille
    }

    /// One of the items.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// An index, with probability in proportion to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut at = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            let weight = u64::from(*weight);
            if at < weight {
                return index;
            }
            at -= weight;
        }
        unreachable!("`at` is below the sum of the weights")
    }

    /// Puts the items into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// A stream of its own for another part of the world.
    #[must_use]
    pub fn fork(&mut self) -> Random {
        Random::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..100 {
            assert_eq!(a.bits(), b.bits());
        }
        assert_ne!(Random::new(8).bits(), Random::new(7).bits());
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[random.between(3..=7) as usize - 3] += 1;
        }
        assert!(seen.iter().all(|count| *count > 100));
    }

    #[test]
    fn weights_of_zero_are_never_chosen() {
        let mut random = Random::new(2);
        for _ in 0..1000 {
            assert_ne!(random.weighted(&[3, 0, 1]), 1);
        }
    }
}
