//! Workloads of which the answers are known.

use super::*;
use crate::curve::Accesses;

const OPTIONS: Options = Options { block_bytes: 4096, sequential_cutoff_bytes: 1 << 20 };
const MIB: u64 = 1 << 20;

fn request(time_ns: Option<u64>, operation: Operation, block: u64, block_count: u64) -> Request {
    let (offset_bytes, length_bytes) = (block * 4096, block_count * 4096);
    Request { time_ns, device: 0, operation, offset_bytes, length_bytes }
}

fn at(time_s: f64, operation: Operation, block: u64) -> Request {
    request(Some(7_000 + (time_s * 1e9) as u64), operation, block, 1)
}

fn profile(requests: impl IntoIterator<Item = Request>) -> Profile {
    let mut profiler = Profiler::new(&OPTIONS);
    let mut accesses = Accesses::new(&OPTIONS);
    for request in requests {
        if request.operation == Operation::Discard {
            profiler.request(&request, Step::Jump);
            accesses.discarded(&request).for_each(|block| profiler.discard(&block));
        } else {
            let step = accesses.step(&request);
            profiler.request(&request, step);
            accesses.of(&request, step).for_each(|access| profiler.access(&access));
        }
    }
    profiler.finish()
}

fn near(found: u64, expected: u64) -> bool {
    (found as f64 / expected as f64 - 1.0).abs() < 0.03
}

#[test]
fn the_mix_sizes_and_streams_are_counted() {
    let stream = (0..64).map(|n| request(None, Operation::Read, n * 16, 16));
    let jumps = (0..100).map(|n| request(None, Operation::Write, 1_000_000 - n * 3, 1));
    let odd = Request { length_bytes: 513, ..request(None, Operation::Write, 0, 1) };
    let profile = profile(stream.chain(jumps).chain([odd]));
    assert_eq!((profile.reads.request_count, profile.reads.bytes), (64, 4 * MIB));
    assert_eq!(profile.reads.continued_bytes, 4 * MIB - 65_536);
    assert_eq!(profile.reads.long_stream_bytes, 3 * MIB);
    assert_eq!(profile.reads.size_classes[7], 64, "64 KiB");
    assert_eq!(profile.writes.request_count, 101);
    assert_eq!(profile.writes.continued_bytes, 0);
    assert_eq!((profile.writes.size_classes[1], profile.writes.size_classes[3]), (1, 100));
    assert_eq!((profile.duration_s, profile.axis), (None, Axis::Requests));
    assert!(profile.absorption.is_empty(), "there are no times");
}

#[test]
fn overwriting_after_five_seconds_is_absorbed_by_a_delay_of_ten_and_not_of_one() {
    // A hundred blocks, each written every 5 s, for 200 s.
    let writes = (0..4_000).map(|n| at(f64::from(n) * 0.05, Operation::Write, n as u64 % 100));
    let profile = profile(writes);
    let ratios: Vec<Option<f64>> = profile.absorption.iter().map(|found| found.ratio).collect();
    assert_eq!(ratios, [Some(0.0), Some(0.975), Some(0.975), Some(0.975), None, None]);
    assert_eq!(profile.absorption.iter().map(|a| a.delay_s).collect::<Vec<_>>(), DELAYS_S);
}

#[test]
fn a_discard_absorbs_what_was_written_and_nothing_twice() {
    let requests = (0..100u32).flat_map(|n| {
        let (time, block) = (f64::from(n), u64::from(n));
        [
            at(time, Operation::Write, block),
            at(time + 0.5, Operation::Discard, block),
            at(time + 0.6, Operation::Discard, block),
        ]
    });
    assert_eq!(profile(requests).absorption[0].ratio, Some(1.0));
}

#[test]
fn absorption_is_found_from_a_sample() {
    // Beyond the sample: half of the blocks are written twice, 20 s apart.
    let blocks = 200_000u32;
    let first = (0..blocks).map(|n| at(f64::from(n) * 1e-4, Operation::Write, n.into()));
    let half = (0..blocks / 2).map(|n| at(20.0 + f64::from(n) * 1e-4, Operation::Write, n.into()));
    let last = at(40.0, Operation::Read, 0);
    let profile = profile(first.chain(half).chain([last]));
    let ratio = |index: usize| profile.absorption[index].ratio.expect("long enough");
    assert!(ratio(1) < 0.01);
    assert!((ratio(2) - 1.0 / 3.0).abs() < 0.02, "{}", ratio(2));
}

#[test]
fn the_working_set_is_counted_by_window_and_in_all() {
    // 1,000 blocks in the first half of the hour, 50,000 others in the second half.
    let early = (0..60_000u32).map(|n| at(f64::from(n) * 0.03, Operation::Read, n as u64 % 1_000));
    let late = (0..100_000u32).map(|n| {
        at(1_800.0 + f64::from(n) * 0.018, Operation::Write, 100_000 + u64::from(n) % 50_000)
    });
    let profile = profile(early.chain(late));
    let duration_s = profile.duration_s.expect("it has times");
    assert!((duration_s - 3_600.0).abs() < 1.0);
    assert!(near(profile.working_set_bytes, 51_000 * 4096));
    assert!(near(profile.written_set_bytes, 50_000 * 4096));
    assert!((profile.first_touch_ratio - 51.0 / 160.0).abs() < 0.01);
    let windows = &profile.windows;
    assert!((64..=128).contains(&windows.len()), "{}", windows.len());
    let width = windows[1].start;
    let middle = windows.iter().position(|window| window.start + width > 1_800.0).expect("a half");
    // A sample of a part of them tells of a thousand blocks to within a few per cent.
    let early = windows[1].working_set_bytes as f64 / (1_000.0 * 4096.0);
    assert!((early - 1.0).abs() < 0.1, "{early}");
    assert_eq!(windows[1].written_set_bytes, 0);
    assert_eq!(windows[1].cumulative_bytes, windows[middle - 1].cumulative_bytes);
    let last = windows.last().expect("there are some");
    assert_eq!(last.cumulative_bytes, profile.working_set_bytes);
    let sum: u64 = windows.iter().map(|window| window.read_count + window.write_count).sum();
    assert_eq!(sum, 160_000);
}

#[test]
fn times_may_go_backwards_or_jump_far_ahead() {
    let times = [5.0, 4.0, 4.5, 5.5, 9e9, 3.0];
    let profile = profile(times.map(|time| at(time, Operation::Write, 1)));
    assert!(profile.windows.len() <= 128);
    assert_eq!(profile.windows.iter().map(|window| window.write_count).sum::<u64>(), 6);
    assert!(profile.duration_s.expect("it has times") > 8e9);
}
