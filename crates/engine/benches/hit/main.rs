//! What a hit costs the engine itself: no device, no socket, no system call.
//!
//! What is timed is a round of a host ([`host`]): requests in, operations out, completions in,
//! replies out. The checksum is part of it and is also timed alone.
//!
//! `cargo bench -p forebay-engine --bench hit` prints a table, with `-- --json` what
//! `cargo xtask bench` reads. With `-- --sizes 20x1,16x16` it measures indexes of 2^20 extents of a
//! block and of 2^16 extents of 16, and prints a line of JSON for each ([`sizes`]), which
//! `cargo xtask bench policies` reads.

mod chase;
mod devices;
mod host;
mod sizes;

use std::hint::black_box;

use forebay_engine::format::crc32c;

use devices::BLOCK;
use host::{HITS, Host, Size, cpu_nanoseconds};

/// Extents in the index, as powers of two: one that the processor's caches hold, and one that they
/// do not.
const EXTENTS_LOG2: [u32; 2] = [14, 20];
/// Requests that are handed in before the engine is asked what to do.
const DEPTHS: [u64; 2] = [1, 32];
/// Times that each figure is measured.
const ROUNDS: usize = 3;

/// Nanoseconds of the checksum of one block.
fn time_checksum() -> f64 {
    let block = [0x5Au8; BLOCK as usize];
    let before = cpu_nanoseconds();
    for _ in 0..HITS {
        black_box(crc32c(black_box(&block)));
    }
    (cpu_nanoseconds() - before) as f64 / HITS as f64
}

fn rounds(mut measure: impl FnMut() -> f64) -> [f64; ROUNDS] {
    std::array::from_fn(|_| measure())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--sizes") {
        let list = arguments.get(at + 1).expect("--sizes needs a list");
        list.split(',').for_each(|size| println!("{}", sizes::measure(size)));
        return;
    }
    let mut lines = Vec::new();
    for log2 in EXTENTS_LOG2 {
        let size = Size { extents: 1 << log2, extent_blocks: 1 };
        let mut host = Host::with_extents(size);
        for depth in DEPTHS {
            let hit_ns = rounds(|| host.time_hits(depth));
            lines.push((size.extents, depth, hit_ns));
        }
    }
    let checksum_ns = rounds(time_checksum);
    if arguments.iter().any(|argument| argument == "--json") {
        let rows: Vec<String> = lines
            .iter()
            .map(|(extents, depth, hit_ns)| {
                format!(r#"{{"extents":{extents},"depth":{depth},"hit_ns":{hit_ns:?}}}"#)
            })
            .collect();
        println!(r#"{{"rows":[{}],"checksum_ns":{checksum_ns:?}}}"#, rows.join(","));
        return;
    }
    for (extents, depth, hit_ns) in lines {
        println!("{extents:>8} extents, {depth:>2} at a time: {hit_ns:.0?} ns a hit");
    }
    println!("of which the checksum: {checksum_ns:.0?} ns");
}
