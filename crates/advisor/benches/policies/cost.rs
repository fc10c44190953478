//! What the live curve costs a cache at work: CPU time of a request, and memory.

use std::hint::black_box;

use forebay_advisor::curve::{ClientOperation, ClientRequest, WhatIf};
use forebay_engine::units::Time;

use crate::{print_line, quoted};

/// Times that each figure is measured.
const ROUNDS: usize = 3;
/// The least CPU time of a round: the kernel may count in ticks of some milliseconds.
const ROUND_NS: u64 = 300_000_000;
/// Made-up requests that are noted again and again. More than a processor remembers the branches
/// of, and few enough to lie in its caches.
const REQUESTS: usize = 1 << 20;
/// From one request to the next where the load is so light that the curve never takes a rest.
pub(crate) const LIGHT_NS: u64 = 1_000_000;

/// Prints the cost beside a cache of so many blocks that all requests hit: random ones of a block,
/// as those of the engine's bench (`crates/engine/benches/hit`). `hit_ns` is what it found.
pub(crate) fn print_hits(cache_blocks: u64, hit_ns: u64) {
    let mut random = 1u64;
    let mut next = || {
        // The factor and the summand of Knuth's MMIX; the high bits are good enough.
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((random >> 32) % cache_blocks).expect("32 bits")
    };
    let blocks: Vec<u32> = (0..REQUESTS).map(|_| next()).collect();
    let requests = blocks.iter().map(|block| ClientRequest {
        volume: 0,
        first_block: u64::from(*block),
        block_count: 1,
        operation: ClientOperation::Use,
    });
    let place = [("trace", quoted("hits")), ("block_bytes", "4096".to_owned())];
    print(&place, cache_blocks, requests, Some(hit_ns));
}

/// Prints what it costs to note these requests once more: under a light load, and under one of a
/// request in so many nanoseconds.
pub(crate) fn print(
    place: &[(&str, String)],
    cache_blocks: u64,
    requests: impl Iterator<Item = ClientRequest> + Clone,
    busy_ns: Option<u64>,
) {
    let request_count = requests.clone().count();
    let block_count: u64 = requests.clone().map(|request| request.block_count).sum();
    let rounds = |pace_ns: u64| -> [f64; ROUNDS] {
        let mut load = Load { what_if: WhatIf::new(cache_blocks), now: Time(0), pace_ns };
        requests.clone().for_each(|request| load.note(&request));
        std::array::from_fn(|_| load.time(&requests))
    };
    let memory_bytes = WhatIf::new(cache_blocks).memory_bytes();
    let mut fields = vec![("kind", quoted("live_cost"))];
    fields.extend_from_slice(place);
    fields.extend([
        ("cache_blocks", cache_blocks.to_string()),
        ("request_blocks", (block_count as f64 / request_count as f64).to_string()),
        ("request_ns", format!("{:?}", rounds(LIGHT_NS))),
        ("busy_ns", busy_ns.map_or("null".to_owned(), |busy| format!("{:?}", rounds(busy)))),
        ("memory_bytes", memory_bytes.to_string()),
    ]);
    print_line(&fields);
}

/// A curve and its clock.
struct Load {
    what_if: WhatIf,
    now: Time,
    /// From one request to the next.
    pace_ns: u64,
}

impl Load {
    fn note(&mut self, request: &ClientRequest) {
        self.now.0 += self.pace_ns;
        self.what_if.note(self.now, request);
    }

    /// Nanoseconds of CPU time of a request, for slices of the curve and the rests between them.
    fn time(&mut self, requests: &(impl Iterator<Item = ClientRequest> + Clone)) -> f64 {
        let requests_per_slice = WhatIf::SLICE_NS / self.pace_ns;
        let mut requests = requests.clone().cycle();
        let before = cpu_nanoseconds();
        let mut count = 0u64;
        loop {
            for request in requests.by_ref().take(requests_per_slice as usize) {
                self.note(black_box(&request));
            }
            count += requests_per_slice;
            let spent = cpu_nanoseconds() - before;
            if spent >= ROUND_NS {
                return spent as f64 / count as f64;
            }
        }
    }
}

/// CPU time of this thread; what others take of the processor meanwhile does not count.
fn cpu_nanoseconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat");
    let text = text.expect("the kernel counts the time of threads");
    let first = text.split_whitespace().next().and_then(|word| word.parse().ok());
    first.expect("the first number is the time on a processor")
}
