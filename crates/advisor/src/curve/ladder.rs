//! Sizes to look at: a power of two and one and a half of it in turn.

/// Doublings below the working set that are of interest: a cache of 1/256 of it.
const DOUBLINGS: u32 = 8;
/// Smallest size in blocks: below it a policy has no queues worth the name.
const BLOCKS_MIN: u32 = 16;

/// A range of sizes in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeLadder {
    /// The smallest.
    pub first_blocks: u32,
    /// The largest.
    pub last_blocks: u32,
}

impl SizeLadder {
    /// All sizes that can be simulated.
    pub const ALL: SizeLadder = SizeLadder { first_blocks: BLOCKS_MIN, last_blocks: 3 << 30 };

    /// The sizes that are of interest for so many different blocks: up to the first that holds them
    /// all, and down to a 256th of it; 16 or 17 of them, or fewer for very few blocks.
    pub fn for_blocks(distinct_blocks: f64) -> SizeLadder {
        let holds_all = |size: &u32| f64::from(*size) >= distinct_blocks;
        let all = SizeLadder::ALL;
        let last_blocks = all.sizes().find(holds_all).unwrap_or(all.last_blocks);
        SizeLadder { first_blocks: (last_blocks >> DOUBLINGS).max(BLOCKS_MIN), last_blocks }
    }

    /// The sizes, the smallest first.
    pub fn sizes(self) -> impl Iterator<Item = u32> {
        let all = (BLOCKS_MIN.ilog2()..u32::BITS)
            .flat_map(|bits| [1u64 << bits, 3u64 << bits >> 1])
            .filter_map(|size| u32::try_from(size).ok());
        all.filter(move |size| (self.first_blocks..=self.last_blocks).contains(size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_span_what_is_of_interest() {
        let sizes = |blocks| SizeLadder::for_blocks(blocks).sizes().collect::<Vec<u32>>();
        assert_eq!(sizes(0.0), [16]);
        assert_eq!(sizes(40.0), [16, 24, 32, 48]);
        let found = sizes(1e6);
        assert_eq!(found.first(), Some(&4_096));
        assert_eq!(found.last(), Some(&(1 << 20)));
        assert_eq!(found.len(), 17);
        assert!(found.is_sorted());
        assert_eq!(sizes(1e30).last(), Some(&(3 << 30)));
        assert_eq!(SizeLadder::ALL.sizes().last(), Some(3 << 30));
    }
}
