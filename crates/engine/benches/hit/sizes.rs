//! Hits and memory by size of the index, beside a pointer chase over as much memory.

use forebay_engine::policy::{BlockKey, Clock2q, Policy, Queue};

use crate::chase::Chase;
use crate::host::{Host, Size};
use crate::rounds;

/// Measures a size that is given as `LOG2xBLOCKS`: 2^LOG2 extents of BLOCKS blocks. A line of JSON.
pub(crate) fn measure(text: &str) -> String {
    let parts = text
        .split_once('x')
        .and_then(|(log2, blocks)| Some((log2.parse::<u32>().ok()?, blocks.parse::<u64>().ok()?)));
    let (log2, extent_blocks) = parts.expect("a size is LOG2xBLOCKS");
    let size = Size { extents: 1 << log2, extent_blocks };
    let mut host = Host::with_extents(size);
    let memory = host.memory();
    let level_bytes = host.level_bytes();
    let hit_ns = rounds(|| host.time_hits(1));
    drop(host);
    let chase_bytes = memory.index_bytes + memory.checksum_bytes + memory.bits_bytes;
    let chase = Chase::through(chase_bytes);
    let chase_ns = rounds(|| chase.time_step());
    drop(chase);
    let fields = [
        ("extents", size.extents.to_string()),
        ("extent_blocks", extent_blocks.to_string()),
        ("hit_ns", format!("{hit_ns:?}")),
        ("index_bytes", memory.index_bytes.to_string()),
        ("level_bytes", format!("{level_bytes:?}")),
        ("checksum_bytes", memory.checksum_bytes.to_string()),
        ("bits_bytes", memory.bits_bytes.to_string()),
        ("ghost_bytes", ghost_bytes(size).to_string()),
        ("chase_ns", format!("{chase_ns:?}")),
    ];
    let fields = fields.map(|(name, value)| format!(r#""{name}":{value}"#));
    format!("{{{}}}", fields.join(","))
}

/// What the ghost of a cache of so many extents takes when it remembers all that it can.
fn ghost_bytes(size: Size) -> u64 {
    let cache_blocks = size.extents * size.extent_blocks;
    let mut policy = Clock2q::new(cache_blocks);
    let block_count = u32::try_from(size.extent_blocks).expect("a short extent");
    for block in (0..cache_blocks).step_by(block_count as usize) {
        policy.on_demoted(BlockKey { volume: 0, block }, block_count, Queue::Small);
    }
    // The two bits of each block are not of the ghost.
    policy.memory_bytes() as u64 - 2 * cache_blocks.div_ceil(64) * 8
}
