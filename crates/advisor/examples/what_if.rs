//! What it costs a cache at work to know other sizes: time for each request, and memory.
//!
//! `cargo run --release -p forebay-advisor --example what_if [TRACE [CACHE_BLOCKS]]` feeds the
//! requests of a trace, or made-up ones (4 KiB each, Zipf-like over 40 GiB), to a `WhatIf` beside a
//! cache of so many blocks of 4 KiB (2^20).

use std::path::Path;
use std::time::Instant;

use forebay_advisor::curve::{ClientOperation, ClientRequest, WhatIf};
use forebay_advisor::trace::{Operation, Options, TraceReader};

const BLOCK_BYTES: u64 = 4096;
/// Made-up requests.
const REQUESTS: u64 = 20_000_000;
/// Blocks that they spread over.
const BLOCKS: f64 = 1e7;

fn made_up() -> Vec<ClientRequest> {
    let mut state = 1u64;
    let mut request = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        // The logarithm of the rank is even, so the density falls with the rank as under Zipf.
        let rank = BLOCKS.powf((state >> 11) as f64 / (1u64 << 53) as f64) as u64;
        let first_block = rank.wrapping_mul(7_919) % BLOCKS as u64;
        ClientRequest { volume: 1, first_block, block_count: 1, operation: ClientOperation::Use }
    };
    (0..REQUESTS).map(|_| request()).collect()
}

fn recorded(path: &str) -> Vec<ClientRequest> {
    let reader = TraceReader::open(Path::new(path), &Options::default()).expect("a trace");
    let request = |request: Result<forebay_advisor::trace::Request, _>| {
        let request = request.unwrap_or_else(|error| panic!("{error}"));
        let first_block = request.offset_bytes / BLOCK_BYTES;
        let end = (request.offset_bytes + request.length_bytes).div_ceil(BLOCK_BYTES);
        let operation = match request.operation {
            Operation::Discard => ClientOperation::Discard,
            Operation::Read | Operation::Write => ClientOperation::Use,
        };
        let block_count = u32::try_from(end - first_block).expect("at most 4 GiB");
        ClientRequest { volume: request.device, first_block, block_count, operation }
    };
    reader.map(request).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let requests = arguments.first().map_or_else(made_up, |path| recorded(path));
    let cache_blocks = arguments.get(1).map_or(1 << 20, |text| text.parse().expect("a number"));
    let mut what_if = WhatIf::new(cache_blocks);
    let started = Instant::now();
    requests.iter().for_each(|request| what_if.note(request));
    let each_ns = started.elapsed().as_secs_f64() * 1e9 / requests.len() as f64;
    let block_count: u64 = requests.iter().map(|request| u64::from(request.block_count)).sum();
    println!("{} requests of {block_count} blocks: {each_ns:.1} ns each", requests.len());
    println!("{} bytes of memory", what_if.memory_bytes());
    for estimate in what_if.estimates() {
        println!("{:>12} blocks: {:.3?}", estimate.cache_blocks, estimate.hit_ratio);
    }
}
