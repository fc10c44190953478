//! A device from outside: operations as the engine submits them, and the ends of its life.

use forebay_device_model::{HardDisk, Model, Remote, Ssd};
use forebay_engine::io::{Device as EngineDevice, Io, IoId, IoKind, IoResult, Slices};
use forebay_engine::payload::{BufferId, BufferRange};
use forebay_sim::device::{
    AtomicUnit, BadKind, BadRange, Burst, Decay, Device, DeviceOptions, FaultRates, Fresh, Gone,
    Loss, Misplaced, Pace, PowerStyle, Speed, WriteCache,
};
use forebay_sim::payload::{BufferPool, PoolLimits};
use forebay_sim::random::Random;

struct Bench {
    device: Device,
    pool: BufferPool,
    last_id: u64,
    moment: u64,
    now: u64,
}

impl Bench {
    fn new(seed: u64, write_cache: WriteCache) -> Bench {
        let pace = Pace::Random(Speed { base_ns: 1000, spread_ns: 1000, block_ns: 10 });
        Bench::with_pace(seed, write_cache, pace, 64)
    }

    fn with_pace(seed: u64, write_cache: WriteCache, pace: Pace, blocks: u64) -> Bench {
        let options = DeviceOptions {
            size_bytes: blocks * 4096 + 512,
            atomic: AtomicUnit::Block,
            write_cache,
            pace,
            fresh: Fresh::Zeroes,
        };
        let limits = PoolLimits { engine_bytes_max: 1 << 20, refusal_permille: 0 };
        let device = Device::new(options, Random::new(seed));
        let pool = BufferPool::new(limits, Random::new(seed));
        Bench { device, pool, last_id: 0, moment: 0, now: 0 }
    }

    fn buffer(&mut self, blocks: u32, byte: u8) -> BufferRange {
        let buffer = self.pool.host_allocate(blocks as usize * 4096);
        let range = BufferRange { buffer, offset: 0, length: blocks * 4096 };
        self.pool.bytes_mut(range).fill(byte);
        range
    }

    fn submit(&mut self, kind: IoKind) -> IoId {
        self.last_id += 1;
        self.moment += 1;
        let id = IoId(self.last_id);
        let io = Io { id, device: EngineDevice::Cache, kind };
        self.device.submit(self.now, self.moment, &io, &self.pool);
        id
    }

    fn finish(&mut self, id: IoId) -> IoResult {
        self.moment += 1;
        self.device.advance(id, &mut self.pool);
        self.device.finish(id, self.moment, &mut self.pool)
    }

    fn start_write(&mut self, offset_bytes: u64, range: BufferRange) -> IoId {
        self.submit(IoKind::Write { offset_bytes, slices: Slices::One(range) })
    }

    fn write(&mut self, block: u64, blocks: u32, byte: u8) -> IoResult {
        let range = self.buffer(blocks, byte);
        let id = self.start_write(block * 4096, range);
        self.finish(id)
    }

    fn flush(&mut self) -> IoResult {
        let id = self.submit(IoKind::Flush);
        self.finish(id)
    }

    fn bytes_at(&self, block: u32, blocks: u32) -> Vec<u8> {
        let mut bytes = vec![0; blocks as usize * 4096];
        self.device.media().read(block * 8, &mut bytes);
        bytes.chunks_exact(4096).map(|block| block[0]).collect()
    }
}

#[test]
fn slices_are_written_and_read_in_order_across_block_borders() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let a = bench.buffer(1, 1);
    let b = bench.buffer(1, 2);
    let slices = Slices::Many(vec![a.slice(0, 512), b.slice(0, 4096), a.slice(512, 1024)]);
    let id = bench.submit(IoKind::Write { offset_bytes: 4096 + 512, slices });
    bench.finish(id).expect("no faults");
    let into = bench.buffer(2, 9);
    let id = bench.submit(IoKind::Read { offset_bytes: 4096, slices: Slices::One(into) });
    bench.finish(id).expect("no faults");
    let sectors: Vec<u8> = bench.pool.bytes(into).chunks_exact(512).map(|s| s[0]).collect();
    assert_eq!(sectors, [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0]);
}

#[test]
fn a_flush_covers_what_was_complete_when_it_was_submitted() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    bench.write(0, 1, 1).expect("no faults");
    let range = bench.buffer(1, 2);
    let late = bench.start_write(4096, range);
    let flush = bench.submit(IoKind::Flush);
    bench.finish(late).expect("no faults");
    bench.finish(flush).expect("no faults");
    assert_eq!(bench.bytes_at(0, 2), [1, 2]);
    bench.device.lose(Loss::Power(PowerStyle::NoneSurvive), 100);
    assert_eq!(bench.bytes_at(0, 2), [1, 0]);
}

#[test]
fn a_kill_keeps_finished_writes_and_tears_unfinished_ones() {
    let mut seen = [false; 3];
    for seed in 0..60 {
        let mut bench = Bench::new(seed, WriteCache::Volatile);
        bench.write(0, 2, 1).expect("no faults");
        let range = bench.buffer(8, 2);
        bench.start_write(8 * 4096, range);
        bench.device.lose(Loss::Process, 100);
        assert_eq!(bench.bytes_at(0, 2), [1, 1]);
        let landed = bench.bytes_at(8, 8).iter().filter(|byte| **byte == 2).count();
        seen[match landed {
            0 => 0,
            8 => 2,
            _ => 1,
        }] = true;
        assert_eq!(bench.device.in_flight(), 0);
        // Still volatile, and now covered by the successor's flush.
        bench.moment = 200;
        bench.flush().expect("no faults");
        let before = bench.bytes_at(0, 16);
        bench.device.lose(Loss::Power(PowerStyle::NoneSurvive), 300);
        assert_eq!(bench.bytes_at(0, 16), before);
    }
    assert_eq!(seen, [true; 3], "none, some, all");
}

#[test]
fn a_power_cut_may_keep_a_later_write_and_lose_an_earlier_one() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let mut bench = Bench::new(seed, WriteCache::Volatile);
        bench.write(0, 1, 1).expect("no faults");
        bench.write(1, 1, 1).expect("no faults");
        bench.device.lose(Loss::Power(PowerStyle::Random), 100);
        seen.insert(bench.bytes_at(0, 2));
    }
    assert_eq!(seen.len(), 4);
    assert!(seen.contains(&vec![0, 1]));
}

#[test]
fn failed_writes_land_or_not_and_are_not_covered_by_a_flush() {
    let mut seen = [0; 2];
    for seed in 0..100 {
        let mut bench = Bench::new(seed, WriteCache::Volatile);
        bench.device.set_faults(FaultRates { fail_nth: Some(0), ..FaultRates::default() });
        bench.write(0, 1, 1).expect_err("the first operation fails");
        seen[usize::from(bench.bytes_at(0, 1)[0])] += 1;
        bench.flush().expect("no more faults");
        bench.device.lose(Loss::Power(PowerStyle::NoneSurvive), 100);
        assert_eq!(bench.bytes_at(0, 1), [0]);
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn a_device_that_goes_fails_everything_until_it_is_back() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let gone = Some(Gone { from_operation: 2, lasts_ns: None, back_for: None });
    bench.device.set_faults(FaultRates { gone, ..FaultRates::default() });
    bench.write(0, 1, 1).expect("still there");
    bench.flush().expect("still there");
    bench.write(1, 1, 1).expect_err("gone");
    bench.flush().expect_err("gone");
    assert!(bench.device.was_gone());
    bench.device.lose(Loss::Process, 100);
    bench.device.set_faults(FaultRates::default());
    bench.write(1, 1, 3).expect("back");
    assert_eq!(bench.bytes_at(0, 2), [1, 3]);
}

#[test]
fn a_device_that_came_back_may_go_again() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let gone = Some(Gone { from_operation: 1, lasts_ns: Some(10), back_for: Some(2) });
    bench.device.set_faults(FaultRates { gone, ..FaultRates::default() });
    let mut is_there = |now| {
        bench.now = now;
        bench.write(0, 1, 1).is_ok()
    };
    assert_eq!([is_there(0), is_there(1), is_there(10)], [true, false, false]);
    assert_eq!([is_there(11), is_there(12), is_there(13)], [true, true, false]);
    assert_eq!([is_there(22), is_there(23)], [false, true]);
}

#[test]
fn a_burst_fails_writes_one_after_the_other_and_then_none() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let burst = Some(Burst { from_operation: 2, failures: 3 });
    bench.device.set_faults(FaultRates { burst, ..FaultRates::default() });
    let failed = |bench: &mut Bench| bench.write(0, 1, 1).is_err();
    assert_eq!([failed(&mut bench), failed(&mut bench)], [false, false]);
    assert_eq!([failed(&mut bench), failed(&mut bench)], [true, true]);
    bench.flush().expect("only writes fail");
    assert_eq!([failed(&mut bench), failed(&mut bench)], [true, false]);
    assert_eq!(bench.device.failures(), 3);
}

#[test]
fn a_decayed_block_cannot_be_read_until_it_is_written() {
    let mut bench = Bench::new(1, WriteCache::Durable);
    bench.write(3, 1, 1).expect("no writes fail");
    let decay = Some(Decay { from_operation: 0, permille: 1000, blocks_max: 1 });
    bench.device.set_faults(FaultRates { decay, ..FaultRates::default() });
    let into = bench.buffer(1, 9);
    let read = |bench: &mut Bench| {
        let offset_bytes = 3 * 4096;
        let id = bench.submit(IoKind::Read { offset_bytes, slices: Slices::One(into) });
        bench.finish(id)
    };
    read(&mut bench).expect_err("this read finds it");
    read(&mut bench).expect_err("it stays so");
    bench.write(3, 1, 2).expect("no writes fail");
    read(&mut bench).expect("it was written, and no other block decays");
    assert_eq!(bench.pool.bytes(into)[0], 2);
}

#[test]
fn rot_is_read_back_until_it_is_overwritten() {
    let mut bench = Bench::new(1, WriteCache::Durable);
    bench.write(0, 1, 1).expect("no faults");
    assert!(bench.device.media().is_settled(0));
    bench.device.media_mut().make_unreadable(0);
    let into = bench.buffer(1, 9);
    let read = |bench: &mut Bench| {
        let id = bench.submit(IoKind::Read { offset_bytes: 0, slices: Slices::One(into) });
        bench.finish(id)
    };
    read(&mut bench).expect_err("unreadable");
    bench.write(0, 1, 2).expect("no faults");
    read(&mut bench).expect("readable again");
    bench.device.media_mut().flip_bit(0, &mut Random::new(5));
    read(&mut bench).expect("readable");
    let flipped: u32 = bench.pool.bytes(into).iter().map(|byte| (byte ^ 2).count_ones()).sum();
    assert_eq!(flipped, 1);
}

#[test]
#[should_panic(expected = "behind")]
fn an_operation_behind_the_end_panics() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let range = bench.buffer(1, 1);
    bench.start_write(64 * 4096, range);
}

#[test]
#[should_panic(expected = "changed while it was written")]
fn a_buffer_that_changes_under_a_write_panics() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let range = bench.buffer(1, 1);
    let id = bench.start_write(0, range);
    bench.pool.bytes_mut(range)[4000] = 7;
    let _ = bench.finish(id);
}

#[test]
#[should_panic(expected = "after it was freed")]
fn a_buffer_that_is_freed_under_a_read_panics() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    let range = bench.buffer(1, 1);
    let id = bench.submit(IoKind::Read { offset_bytes: 0, slices: Slices::One(range) });
    let freed: BufferId = range.buffer;
    bench.pool.host_release(freed);
    let _ = bench.finish(id);
}

#[test]
fn a_lost_write_is_reported_as_done_and_is_nowhere() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    bench.write(4, 4, 1).expect("written");
    bench.flush().expect("flushed");
    bench.device.misplace_next(Misplaced::Lost { first: 1, count: 2 });
    bench.write(4, 4, 2).expect("it says so");
    bench.flush().expect("it says so");
    assert_eq!(bench.bytes_at(4, 4), [2, 1, 1, 2]);
    bench.write(4, 4, 3).expect("only one write is lost");
    assert_eq!(bench.bytes_at(4, 4), [3, 3, 3, 3]);
}

#[test]
fn a_misdirected_write_lands_elsewhere_and_is_as_durable_there() {
    let mut bench = Bench::new(1, WriteCache::Volatile);
    bench.device.misplace_next(Misplaced::Misdirected { to_block: 20 });
    bench.write(4, 2, 7).expect("it says so");
    bench.flush().expect("flushed");
    bench.device.lose(Loss::Power(PowerStyle::NoneSurvive), 99);
    assert_eq!(bench.bytes_at(4, 2), [0, 0]);
    assert_eq!(bench.bytes_at(20, 2), [7, 7]);
}

#[test]
fn a_bad_range_fails_each_time_and_reads_work_again_after_a_write() {
    for fails in [BadKind::ReadsUntilWritten, BadKind::Writes, BadKind::All] {
        let mut bench = Bench::new(1, WriteCache::Durable);
        let bad_range = Some(BadRange { from_permille: 0, block_count: 2, fails });
        bench.device.set_faults(FaultRates { bad_range, ..FaultRates::default() });
        let read = |bench: &mut Bench| {
            let range = bench.buffer(1, 9);
            let kind = IoKind::Read { offset_bytes: 4096, slices: Slices::One(range) };
            let id = bench.submit(kind);
            bench.finish(id).is_ok()
        };
        for _ in 0..2 {
            assert_eq!(read(&mut bench), fails == BadKind::Writes);
        }
        for _ in 0..2 {
            assert_eq!(bench.write(1, 1, 5).is_ok(), fails == BadKind::ReadsUntilWritten);
        }
        assert_eq!(read(&mut bench), fails != BadKind::All);
        bench.write(2, 1, 6).expect("behind the range all is well");
    }
}

#[test]
fn a_stall_ends_well_and_late() {
    let mut bench = Bench::new(1, WriteCache::Durable);
    bench.device.set_faults(FaultRates { stall_permille: 1000, ..FaultRates::default() });
    let range = bench.buffer(1, 3);
    let io = Io {
        id: IoId(1),
        device: EngineDevice::Cache,
        kind: IoKind::Write { offset_bytes: 0, slices: Slices::One(range) },
    };
    let times = bench.device.submit(0, 1, &io, &bench.pool);
    assert!(times.end.is_some_and(|end| end >= 1_000_000_000));
    bench.finish(IoId(1)).expect("it ends well");
    assert_eq!((bench.device.failures(), bench.device.stalls()), (0, 1));
    assert_eq!(bench.bytes_at(0, 1), [3]);
}

/// What a model completes, in the order in which the operations end.
fn ends(seed: u64, model: Model) -> Vec<(u64, IoId)> {
    let mut bench = Bench::with_pace(seed, WriteCache::Volatile, Pace::Model(model), 4096);
    let mut places = Random::new(seed);
    for _ in 0..16 {
        let offset_bytes = places.below(4096) * 4096;
        let range = bench.buffer(1, 0);
        bench.submit(IoKind::Read { offset_bytes, slices: Slices::One(range) });
    }
    bench.submit(IoKind::Flush);
    let mut ends = Vec::new();
    while let Some(turn) = bench.device.next_turn() {
        for (id, end) in bench.device.take_turn(turn) {
            assert!(end >= turn, "{id:?} ends before the model was asked");
            ends.push((end, id));
        }
    }
    ends.sort_unstable();
    for (_, id) in &ends {
        bench.finish(*id).expect("nothing fails");
    }
    assert_eq!(bench.device.in_flight(), 0);
    ends
}

#[test]
fn a_model_completes_each_operation_once_and_the_same_in_each_run() {
    let models = [
        Model::HardDisk(HardDisk::server_7200()),
        Model::Ssd(Ssd::sata_2017()),
        Model::Remote(Remote::cloud_volume()),
    ];
    for model in models {
        let first = ends(3, model);
        assert_eq!(first.len(), 17, "16 reads and a flush");
        assert_eq!(first, ends(3, model));
        let is_reordered = first.windows(2).any(|pair| pair[0].1 > pair[1].1);
        assert!(is_reordered || matches!(model, Model::Remote(_)), "{model:?}: {first:?}");
    }
}
