//! Miss ratios that were measured elsewhere, to check ours against.
//!
//! All are of libCacheSim 0.3.5 with its default parameters, for blocks of one size, misses of
//! blocks that were never seen included, in caches of 10 % and 20 % of the different blocks.

/// Miss ratios of a trace in a cache of so many blocks.
pub(super) struct Published {
    pub(super) trace: &'static str,
    pub(super) block_bytes: u32,
    pub(super) cache_blocks: u64,
    pub(super) fifo: f64,
    pub(super) lru: f64,
    pub(super) s3_fifo: f64,
    pub(super) clock2q_plus: f64,
    pub(super) min: f64,
}

/// What was published of this point, if anything.
pub(super) fn find(trace: &str, block_bytes: u32, cache_blocks: u64) -> Option<&'static Published> {
    PUBLISHED.iter().find(|row| {
        (row.trace, row.block_bytes, row.cache_blocks) == (trace, block_bytes, cache_blocks)
    })
}

const fn row(
    trace: &'static str,
    block_bytes: u32,
    cache_blocks: u64,
    [fifo, lru, s3_fifo, clock2q_plus, min]: [f64; 5],
) -> Published {
    Published { trace, block_bytes, cache_blocks, fifo, lru, s3_fifo, clock2q_plus, min }
}

/// The points of traces that we have.
pub(super) const PUBLISHED: [Published; 10] = [
    row("cloudPhysicsIO", 4096, 26_921, [0.873, 0.874, 0.819, 0.817, 0.676]),
    row("cloudPhysicsIO", 4096, 53_842, [0.811, 0.813, 0.730, 0.756, 0.547]),
    row("cloudPhysicsIO", 65_536, 1_937, [0.405, 0.404, 0.376, 0.375, 0.294]),
    row("cloudPhysicsIO", 65_536, 3_874, [0.345, 0.355, 0.321, 0.337, 0.232]),
    row("OLTP", 512, 18_688, [0.367, 0.335, 0.323, 0.323, 0.238]),
    row("OLTP", 512, 37_376, [0.307, 0.280, 0.275, 0.275, 0.209]),
    row("P3", 4096, 10_234, [0.731, 0.735, 0.584, 0.590, 0.391]),
    row("P3", 4096, 20_469, [0.483, 0.428, 0.403, 0.404, 0.257]),
    row("P2", 4096, 12_030, [0.536, 0.507, 0.428, 0.438, 0.286]),
    row("P2", 4096, 24_061, [0.371, 0.325, 0.272, 0.273, 0.170]),
];
