//! Workloads of which the right advice is known.

use super::*;

const REPLAY: ReplayOptions = ReplayOptions { block_bytes: 4096, sequential_cutoff_bytes: 1 << 20 };
const MIB: u64 = 1 << 20;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }
}

/// A request of one block, some time of the trace after the one before.
struct Workload {
    requests: Vec<Request>,
    step_ns: u64,
}

impl Workload {
    fn new(step_ns: u64) -> Workload {
        Workload { requests: Vec::new(), step_ns }
    }

    fn push(&mut self, operation: Operation, block: u64) {
        self.requests.push(Request {
            time_ns: Some(self.requests.len() as u64 * self.step_ns),
            device: 0,
            operation,
            offset_bytes: block * 4096,
            length_bytes: 4096,
        });
    }

    fn report(&self, cache_blocks: &[u32]) -> Report {
        let options = Options {
            replay: REPLAY,
            figures: DeviceFigures::default(),
            cache_blocks: cache_blocks.to_vec(),
        };
        let mut advisor = Advisor::new(&options);
        self.requests.iter().for_each(|request| advisor.request(request));
        advisor.finish()
    }
}

/// Blocks in a scattered order, so that none continues another.
fn scattered(block: u64, count: u64) -> u64 {
    block * 7_919 % count
}

#[test]
fn a_loop_needs_all_of_its_length() {
    // Ten times through 10,007 blocks (39 MiB), in two days.
    let mut loops = Workload::new(1_728_000_000);
    for n in 0..100_070 {
        loops.push(Operation::Read, scattered(n % 10_007, 10_007));
    }
    let report = loops.report(&[]);
    assert!((8..=17).contains(&report.sizes.len()), "{}", report.sizes.len());
    let last = report.sizes.last().expect("sizes");
    assert_eq!(last.cache_bytes, 48 * MIB, "the first size that holds it");
    assert!((last.hit_ratio - 0.9).abs() < 0.01);
    assert!((last.lru_hit_ratio - 0.9).abs() < 0.01);
    assert!(report.sizes[report.sizes.len() - 2].lru_hit_ratio < 0.01, "LRU finds nothing before");
    let recommendation = &report.recommendation;
    assert_eq!(recommendation.verdict, Verdict::WorthIt);
    assert_eq!(recommendation.choice.cache_bytes, 48 * MIB);
    assert_eq!(recommendation.choice.mode, Mode::Writethrough, "nothing is written");
    assert_eq!(recommendation.confidence, Confidence::High, "{:?}", recommendation.doubts);
    // 10,007 misses of 8 ms, and hits of .1 ms; transfers on top.
    let read_us = last.writethrough.read_us;
    assert!((read_us - (0.1 * 8_000.0 + 0.9 * 100.0)).abs() < 30.0, "{read_us}");
    // Promoted once: 39 MiB in two days, into 48 MiB.
    let wear = last.writethrough.drive_writes_per_day.expect("it has times");
    assert!((wear - 0.5 * 10_007.0 / 12_288.0).abs() < 0.01, "{wear}");
    assert_eq!(last.writeonly.cache_written_bytes, 0);
}

#[test]
fn what_is_never_used_again_is_not_worth_a_cache() {
    let mut once = Workload::new(1_000_000);
    for n in 0..200_003 {
        once.push(Operation::Read, scattered(n, 200_003));
    }
    let report = once.report(&[]);
    let recommendation = &report.recommendation;
    assert_eq!(recommendation.verdict, Verdict::NotWorthIt);
    assert!(recommendation.headline.contains("not worth it"), "{}", recommendation.headline);
    assert!(report.profile.first_touch_ratio > 0.97);
    assert!(recommendation.confidence < Confidence::High);
    assert!(recommendation.doubts.iter().any(|doubt| doubt.text.contains("first ones")));
    assert!(recommendation.doubts.iter().any(|doubt| doubt.text.contains("still growing")));
}

#[test]
fn busy_blocks_have_a_knee() {
    // Nine of ten reads go to 4,000 blocks, the others to a million.
    let mut random = Random(3);
    let mut reads = Workload::new(10_000_000);
    for _ in 0..400_000 {
        let block = match random.below(10) {
            0 => 10_000 + random.below(1 << 20) * 2,
            _ => random.below(4_000) * 2,
        };
        reads.push(Operation::Read, block);
    }
    let report = reads.report(&[]);
    let choice = report.recommendation.choice;
    assert!((16 * MIB..=48 * MIB).contains(&choice.cache_bytes), "{choice:?}");
    assert!(report.sizes.last().expect("sizes").cache_bytes > 128 * MIB);
    assert!((choice.hit_ratio - 0.89).abs() < 0.04, "{choice:?}");
    assert!((choice.speedup - 8.0).abs() < 2.0, "{choice:?}");
}

#[test]
fn a_stream_gains_nothing() {
    let mut stream = Workload::new(1_000_000);
    for n in 0..100_000 {
        stream.push(Operation::Read, n);
    }
    let report = stream.report(&[1_000, 10_000]);
    assert_eq!(report.recommendation.verdict, Verdict::NotWorthIt);
    assert!(report.sizes.iter().all(|size| size.hit_ratio < 0.01));
    assert!(report.sizes[0].bypassed_ratio > 0.95);
    assert!(report.uncached.read_us < 200.0, "{}", report.uncached.read_us);
}

#[test]
fn writes_choose_the_mode() {
    // Scattered writes alone: nothing to gain from reads.
    let mut random = Random(5);
    let mut writes = Workload::new(40_000_000);
    for _ in 0..100_000 {
        writes.push(Operation::Write, random.below(20_000) * 2);
    }
    let report = writes.report(&[]);
    let recommendation = &report.recommendation;
    assert_eq!(recommendation.choice.mode, Mode::Writeonly);
    assert_eq!(recommendation.verdict, Verdict::WorthIt);
    assert!(recommendation.remarks.iter().any(|remark| remark.contains("Wear")));
    let dirty = report.profile.windows.iter().map(|window| window.written_set_bytes).max();
    assert!(recommendation.choice.cache_bytes >= dirty.expect("windows"), "room for what is dirty");
    // With as many reads of the same blocks it is writeback that gains most.
    let mut both = Workload::new(40_000_000);
    for n in 0..200_000 {
        let operation = if n % 2 == 0 { Operation::Read } else { Operation::Write };
        both.push(operation, random.below(20_000) * 2);
    }
    assert_eq!(both.report(&[]).recommendation.choice.mode, Mode::Writeback);
    // A few writes are no reason to risk them.
    let mut few = Workload::new(40_000_000);
    for n in 0..200_000 {
        let operation = if n % 50 == 0 { Operation::Write } else { Operation::Read };
        few.push(operation, random.below(400_000) * 2);
    }
    assert_eq!(few.report(&[]).recommendation.choice.mode, Mode::Writethrough);
}

#[test]
fn an_origin_that_cannot_keep_up_is_told_of() {
    // A hundred scattered writes a second, of blocks that are not written again soon: 6 ms each.
    let mut writes = Workload::new(10_000_000);
    for n in 0..50_021 {
        writes.push(Operation::Write, scattered(n, 50_021));
    }
    let report = writes.report(&[]);
    let outcome = report.sizes.last().expect("sizes").writeback;
    let busy = |ratio: Option<f64>| ratio.expect("it has times");
    assert!((busy(report.uncached.origin_busy_ratio) - 0.6).abs() < 0.02);
    assert!((busy(outcome.origin_busy_ratio) - 0.6).abs() < 0.02, "nothing is absorbed");
    // Twice as fast as the origin can take them; but the same blocks, each overwritten after 1 s.
    let mut same = Workload::new(3_000_000);
    for n in 0..100_000 {
        same.push(Operation::Write, n % 331 * 2);
    }
    let report = same.report(&[]);
    assert!(busy(report.uncached.origin_busy_ratio) > 1.9);
    let last = report.sizes.last().expect("sizes");
    assert!(busy(last.writeback.origin_busy_ratio) < 0.1);
    assert!(busy(last.writethrough.origin_busy_ratio) > 1.9);
    let remarks = report.recommendation.remarks.join("\n");
    assert!(remarks.contains("bottleneck no more"), "{remarks}");
}

#[test]
fn sizes_that_are_asked_for_are_those_that_are_given() {
    let mut reads = Workload::new(0);
    for n in 0..9_000 {
        reads.push(Operation::Read, n % 100 * 3);
    }
    let report = reads.report(&[10, 50, 200, 1_000_000]);
    let blocks: Vec<u64> = report.sizes.iter().map(|size| size.cache_bytes / 4096).collect();
    assert_eq!(blocks, [10, 50, 200, 1_000_000]);
    assert_eq!(report.recommendation.choice.cache_bytes, 200 * 4096);
    assert_eq!(report.profile.duration_s, None, "all at the same time");
    assert_eq!(report.sizes[0].writeback.drive_writes_per_day, None);
    assert_eq!(report.recommendation.confidence, Confidence::Low, "9,000 requests");
}

#[test]
fn nothing_but_discards_is_no_trouble() {
    let mut discards = Workload::new(1);
    discards.push(Operation::Discard, 7);
    let report = discards.report(&[]);
    assert_eq!(report.sizes.len(), 1);
    assert_eq!(report.recommendation.verdict, Verdict::NotWorthIt);
    assert_eq!(report.sizes[0].writeback.speedup, 1.0);
}
