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
    /// Of [`OTHERS`].
    pub(super) others: [f64; OTHERS.len()],
}

/// Policies of which we have none.
pub(super) const OTHERS: [&str; 9] = [
    "2Q",
    "ARC",
    "LIRS",
    "LeCaR",
    "Cacheus",
    "W-TinyLFU, window 1 %",
    "W-TinyLFU, window 10 %",
    "S3-FIFO, one bit",
    "SIEVE",
];

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
    others: [f64; OTHERS.len()],
) -> Published {
    Published { trace, block_bytes, cache_blocks, fifo, lru, s3_fifo, clock2q_plus, min, others }
}

/// The points of traces that we have.
pub(super) const PUBLISHED: [Published; 10] = [
    row(
        "cloudPhysicsIO",
        4096,
        26_921,
        [0.873, 0.874, 0.819, 0.817, 0.676],
        [0.844, 0.824, 0.814, 0.869, 0.845, 0.841, 0.842, 0.815, 0.833],
    ),
    row(
        "cloudPhysicsIO",
        4096,
        53_842,
        [0.811, 0.813, 0.730, 0.756, 0.547],
        [0.724, 0.781, 0.773, 0.814, 0.746, 0.754, 0.762, 0.729, 0.746],
    ),
    row(
        "cloudPhysicsIO",
        65_536,
        1_937,
        [0.405, 0.404, 0.376, 0.375, 0.294],
        [0.376, 0.403, 0.430, 0.407, 0.416, 0.372, 0.387, 0.408, 0.409],
    ),
    row(
        "cloudPhysicsIO",
        65_536,
        3_874,
        [0.345, 0.355, 0.321, 0.337, 0.232],
        [0.320, 0.366, 0.363, 0.358, 0.314, 0.323, 0.336, 0.362, 0.366],
    ),
    row(
        "OLTP",
        512,
        18_688,
        [0.367, 0.335, 0.323, 0.323, 0.238],
        [0.323, 0.327, 0.343, 0.328, 0.343, 0.362, 0.353, 0.323, 0.333],
    ),
    row(
        "OLTP",
        512,
        37_376,
        [0.307, 0.280, 0.275, 0.275, 0.209],
        [0.283, 0.275, 0.294, 0.276, 0.286, 0.308, 0.291, 0.275, 0.278],
    ),
    row(
        "P3",
        4096,
        10_234,
        [0.731, 0.735, 0.584, 0.590, 0.391],
        [0.610, 0.621, 0.579, 0.713, 0.600, 0.612, 0.613, 0.595, 0.672],
    ),
    row(
        "P3",
        4096,
        20_469,
        [0.483, 0.428, 0.403, 0.404, 0.257],
        [0.428, 0.411, 0.397, 0.417, 0.409, 0.459, 0.446, 0.406, 0.450],
    ),
    row(
        "P2",
        4096,
        12_030,
        [0.536, 0.507, 0.428, 0.438, 0.286],
        [0.440, 0.480, 0.480, 0.486, 0.488, 0.449, 0.425, 0.449, 0.456],
    ),
    row(
        "P2",
        4096,
        24_061,
        [0.371, 0.325, 0.272, 0.273, 0.170],
        [0.280, 0.294, 0.289, 0.293, 0.292, 0.264, 0.276, 0.283, 0.282],
    ),
];
