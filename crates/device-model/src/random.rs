//! The generator behind jitter and slow transfers: xoshiro256++, seeded through splitmix64.
//!
//! It is our own so that a seed replays the same run in years to come; libraries reserve the right
//! to change their streams. Its output for seed 0 is fixed by a test.

/// A seeded generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose stream `seed` decides.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut splitmix = seed;
        let state = core::array::from_fn(|_| {
            splitmix = splitmix.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = splitmix;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        });
        Random { state }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// A number below `bound`, which is not zero. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        let product = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(product >> 64).expect("a product shifted by 64 bits fits into 64 bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_zero_is_fixed() {
        let mut random = Random::new(0);
        let words: [u64; 3] = core::array::from_fn(|_| random.next_u64());
        assert_eq!(words, [0x5317_5d61_490b_23df, 0x61da_6f3d_c380_d507, 0x5c0f_df91_ec9a_7bfc]);
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut random = Random::new(1);
        let mut seen = [false; 7];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(7)).expect("below 7")] = true;
        }
        assert_eq!(seen, [true; 7]);
    }
}
