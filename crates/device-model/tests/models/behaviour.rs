//! Properties that every model has, and those that make a hard disk a hard disk.

use forebay_device_model::{
    Completion, FixedRate, HardDisk, Model, ModelDevice, Random, Remote, Request, RequestKind, Ssd,
    Token,
};
use proptest::prelude::*;

use forebay_device_model::closed_loop::{BLOCK_BYTES, Job, Pattern, run};

const LENGTH_BYTES: u64 = 128 << 20;
const SECOND_NS: u64 = 1_000_000_000;
const FAR_FUTURE_NS: u64 = u64::MAX / 4;

fn models() -> [Model; 5] {
    [
        Model::HardDisk(HardDisk::server_7200()),
        Model::HardDisk(HardDisk { write_cache_bytes: 0, ..HardDisk::server_7200() }),
        Model::FixedRate(FixedRate {
            transfers_per_second: 250,
            bytes_per_second: Some(150_000_000),
        }),
        Model::Ssd(Ssd::sata_2017()),
        Model::Remote(Remote::with_round_trip(5_000_000)),
    ]
}

fn hard_disk() -> ModelDevice {
    ModelDevice::new(&Model::HardDisk(HardDisk::server_7200()), LENGTH_BYTES, 1)
}

fn block_request(kind: RequestKind, block: u64) -> Request {
    Request { kind, offset_bytes: block * BLOCK_BYTES, length_bytes: BLOCK_BYTES }
}

/// Follows the device from event to event until it is idle.
fn drain(device: &mut ModelDevice) -> Vec<Completion> {
    let mut completions = Vec::new();
    while let Some(event_ns) = device.next_event_ns() {
        completions.extend(core::iter::from_fn(|| device.poll(event_ns)));
    }
    completions
}

/// Runs one request on a device that is idle at `now_ns`; returns when it completed.
fn complete_one(device: &mut ModelDevice, now_ns: u64, request: Request) -> u64 {
    device.push(now_ns, Token(0), request);
    let completions = drain(device);
    assert_eq!(completions.len(), 1);
    completions[0].at_ns
}

#[derive(Clone, Copy, Debug)]
struct Step {
    gap_ns: u64,
    request: Request,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(RequestKind::Read),
        4 => Just(RequestKind::Write),
        1 => Just(RequestKind::WriteZeroes),
        1 => Just(RequestKind::Flush),
        1 => Just(RequestKind::Discard),
    ];
    let gap_ns = prop_oneof![2 => Just(0), 2 => 0..1_000_000_u64, 1 => 0..50_000_000_u64];
    let length_blocks = prop_oneof![4 => 1..4_u64, 1 => 1..1024_u64];
    let block_count = LENGTH_BYTES / BLOCK_BYTES;
    let block = prop_oneof![1 => 0..64_u64, 1 => 0..block_count];
    (gap_ns, kind, block, length_blocks).prop_map(|(gap_ns, kind, block, length_blocks)| {
        let (offset_bytes, length_bytes) = (block * BLOCK_BYTES, length_blocks * BLOCK_BYTES);
        Step { gap_ns, request: Request { kind, offset_bytes, length_bytes } }
    })
}

proptest! {
    /// Nobody is lost or answered twice, and the caller's polls decide nothing.
    #[test]
    fn completions_depend_on_the_pushes_alone(
        steps in prop::collection::vec(any_step(), 1..200),
        seed: u64,
    ) {
        for model in models() {
            let mut late = ModelDevice::new(&model, LENGTH_BYTES, seed);
            let mut prompt = ModelDevice::new(&model, LENGTH_BYTES, seed);
            let mut from_prompt = Vec::new();
            let mut now_ns = 0;
            for (index, step) in steps.iter().enumerate() {
                now_ns += step.gap_ns;
                while let Some(event_ns) = prompt.next_event_ns().filter(|at_ns| *at_ns <= now_ns) {
                    from_prompt.extend(prompt.poll(event_ns));
                }
                late.push(now_ns, Token(index as u64), step.request);
                prompt.push(now_ns, Token(index as u64), step.request);
            }
            from_prompt.extend(drain(&mut prompt));
            let from_late: Vec<Completion> =
                core::iter::from_fn(|| late.poll(FAR_FUTURE_NS)).collect();
            prop_assert_eq!(&from_prompt, &from_late);
            prop_assert_eq!(late.outstanding_count(), 0);
            prop_assert_eq!(late.next_event_ns(), None);
            let mut tokens: Vec<u64> = from_late.iter().map(|done| done.token.0).collect();
            tokens.sort_unstable();
            prop_assert!(tokens.into_iter().eq(0..steps.len() as u64));
            prop_assert!(from_late.is_sorted_by_key(|done| done.at_ns));
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for model in [Model::Ssd(Ssd::sata_2017()), Model::Remote(Remote::with_round_trip(1_000_000))] {
        let latencies = |seed| {
            let mut device = ModelDevice::new(&model, LENGTH_BYTES, seed);
            let job = Job::new(RequestKind::Read, Pattern::Uniform, 0, LENGTH_BYTES);
            run(&mut device, &mut [Job { depth: 4, ..job }], 0, 1).latencies_ns
        };
        assert_eq!(latencies(1), latencies(1));
        assert_ne!(latencies(1), latencies(2));
    }
}

#[test]
fn a_request_behind_the_end_counts_as_empty_at_the_end() {
    for model in models() {
        let mut device = ModelDevice::new(&model, LENGTH_BYTES, 1);
        let request = Request {
            kind: RequestKind::Read,
            offset_bytes: u64::MAX - 4096,
            length_bytes: u64::MAX,
        };
        assert!(complete_one(&mut device, 0, request) < SECOND_NS);
    }
}

#[test]
fn a_fixed_rate_is_kept_exactly() {
    for transfers_per_second in [1, 3, 7, 250, 999_999] {
        let parameters = FixedRate { transfers_per_second, bytes_per_second: None };
        let mut device = ModelDevice::new(&Model::FixedRate(parameters), LENGTH_BYTES, 1);
        let count = transfers_per_second.min(10_000);
        for index in 0..count {
            device.push(0, Token(index), block_request(RequestKind::Read, index));
        }
        let completions = drain(&mut device);
        for (index, completion) in completions.iter().enumerate() {
            let expected_ns = (index as u64 + 1) * SECOND_NS / transfers_per_second;
            assert_eq!(completion.at_ns, expected_ns);
        }
    }
}

#[test]
fn a_fixed_rate_is_never_exceeded_by_a_caller_that_pauses() {
    let parameters = FixedRate { transfers_per_second: 250, bytes_per_second: None };
    let mut device = ModelDevice::new(&Model::FixedRate(parameters), LENGTH_BYTES, 1);
    let mut random = Random::new(3);
    let mut now_ns = 0;
    let mut completed_ns = Vec::new();
    for _ in 0..500 {
        now_ns += random.below(10_000_000);
        device.push(now_ns, Token(0), block_request(RequestKind::Write, 0));
        completed_ns.extend(core::iter::from_fn(|| device.poll(now_ns)).map(|done| done.at_ns));
    }
    completed_ns.extend(drain(&mut device).iter().map(|done| done.at_ns));
    assert_eq!(completed_ns.len(), 500);
    assert!(completed_ns.windows(2).all(|pair| pair[1] - pair[0] >= SECOND_NS / 250));
}

#[test]
fn bytes_add_to_a_fixed_rate() {
    let parameters = FixedRate { transfers_per_second: 100, bytes_per_second: Some(100_000_000) };
    let mut device = ModelDevice::new(&Model::FixedRate(parameters), LENGTH_BYTES, 1);
    let request = Request { kind: RequestKind::Read, offset_bytes: 0, length_bytes: 1_000_000 };
    assert_eq!(complete_one(&mut device, 0, request), 20_000_000);
}

#[test]
fn a_flush_of_a_hard_disk_empties_its_write_cache() {
    let mut device = hard_disk();
    let mut random = Random::new(5);
    let mut now_ns = 0;
    for round in 0..3 {
        let started_ns = now_ns;
        for _ in 0..200 {
            let block = random.below(LENGTH_BYTES / BLOCK_BYTES);
            now_ns = complete_one(&mut device, now_ns, block_request(RequestKind::Write, block));
        }
        assert!(now_ns - started_ns < SECOND_NS / 20, "round {round}: the cache absorbs a burst");
        let flushed_ns = complete_one(&mut device, now_ns, block_request(RequestKind::Flush, 0));
        assert!(flushed_ns - now_ns > SECOND_NS / 10, "round {round}: the flush has work to do");
        now_ns = complete_one(&mut device, flushed_ns, block_request(RequestKind::Flush, 0));
        assert!(now_ns - flushed_ns < SECOND_NS / 1000, "round {round}: nothing is left");
    }
}

#[test]
fn nothing_overtakes_a_flush_of_a_hard_disk() {
    let mut device = hard_disk();
    for block in 0..20 {
        device.push(0, Token(block), block_request(RequestKind::Write, block * 1000));
    }
    device.push(0, Token(20), block_request(RequestKind::Flush, 0));
    device.push(0, Token(21), block_request(RequestKind::Read, 5));
    device.push(0, Token(22), block_request(RequestKind::Write, 6));
    let order: Vec<u64> = drain(&mut device).iter().map(|done| done.token.0).collect();
    assert!(order[..20].iter().all(|token| *token < 20));
    assert_eq!(order[20], 20);
}

#[test]
fn a_hard_disk_with_a_full_write_cache_slows_down() {
    let mut device = hard_disk();
    let job = Job::new(RequestKind::Write, Pattern::Uniform, 0, LENGTH_BYTES);
    let latencies_ns = run(&mut device, &mut [Job { depth: 32, ..job }], 0, 10).latencies_ns;
    assert!(latencies_ns[500] < SECOND_NS / 1000, "the first writes are absorbed");
    assert!(latencies_ns[latencies_ns.len() / 2] > SECOND_NS / 100, "the rest wait for the head");
}

#[test]
fn a_far_read_is_not_starved_by_near_ones() {
    let mut device = hard_disk();
    let parameters = HardDisk::server_7200();
    let mut random = Random::new(9);
    let near_blocks = (1 << 20) / BLOCK_BYTES;
    let far_block = LENGTH_BYTES / BLOCK_BYTES - 1;
    for token in 1..31 {
        let block = random.below(near_blocks);
        device.push(0, Token(token), block_request(RequestKind::Read, block));
    }
    device.push(1_000_000, Token(0), block_request(RequestKind::Read, far_block));
    let mut overtakes_count = 0;
    // Blocks that have not been read yet, so that the cache serves none.
    let mut next_block = near_blocks;
    loop {
        let event_ns = device.next_event_ns().expect("reads are outstanding");
        let Some(completion) = device.poll(event_ns) else { continue };
        if completion.token == Token(0) {
            break;
        }
        overtakes_count += 1;
        next_block += 16;
        let request = block_request(RequestKind::Read, next_block);
        device.push(completion.at_ns, completion.token, request);
    }
    let bound = parameters.overtakes_max as usize + parameters.queue_depth;
    assert!(overtakes_count > parameters.queue_depth, "near reads go first: {overtakes_count}");
    assert!(overtakes_count <= bound, "overtaken by {overtakes_count}");
}

#[test]
fn a_hard_disk_reads_and_writes_streams_at_the_rate_of_its_zones() {
    let length_bytes = 16 << 30;
    for kind in [RequestKind::Read, RequestKind::Write] {
        for (request_bytes, depth) in [(64 << 10, 4), (1 << 20, 1), (8 << 20, 1)] {
            let model = Model::HardDisk(HardDisk::server_7200());
            let mut device = ModelDevice::new(&model, length_bytes, 1);
            let job = Job::new(kind, Pattern::Sequential, 0, length_bytes / ZONES);
            let outcome = run(&mut device, &mut [Job { request_bytes, depth, ..job }], 1, 4);
            let rate = outcome.per_second() * request_bytes as f64;
            let nominal = HardDisk::server_7200().outer_bytes_per_second as f64;
            let what = format!("{kind:?} of {request_bytes} at depth {depth}: {rate:.0} B/s");
            assert!((0.85..1.05).contains(&(rate / nominal)), "{what}");
        }
    }
}

/// Zones of a hard disk; the first has the nominal rate.
const ZONES: u64 = 16;

#[test]
fn command_queueing_helps_random_reads() {
    let rate = |depth| {
        let mut device = hard_disk();
        let job = Job::new(RequestKind::Read, Pattern::Uniform, 0, LENGTH_BYTES);
        run(&mut device, &mut [Job { depth, ..job }], 5, 60).per_second()
    };
    let (one, eight, many) = (rate(1), rate(8), rate(32));
    assert!((70.0..95.0).contains(&one), "{one}");
    assert!(eight > 1.3 * one && many > 1.2 * eight, "{one}, {eight}, {many}");
}

#[test]
fn a_hard_disk_reads_back_from_its_cache_what_was_written_or_read() {
    let mut device = hard_disk();
    let mut now_ns = complete_one(&mut device, 0, block_request(RequestKind::Write, 700));
    let read_ns = complete_one(&mut device, now_ns, block_request(RequestKind::Read, 700));
    assert!(read_ns - now_ns < SECOND_NS / 1000);
    now_ns = complete_one(&mut device, read_ns, block_request(RequestKind::Read, 20_000));
    assert!(now_ns - read_ns > SECOND_NS / 1000);
    let again_ns = complete_one(&mut device, now_ns, block_request(RequestKind::Read, 20_000));
    assert!(again_ns - now_ns < SECOND_NS / 1000);
}

#[test]
fn a_remote_volume_is_a_round_trip_away_and_works_on_many_requests_at_once() {
    let remote = Remote::with_round_trip(5_000_000);
    let mut device = ModelDevice::new(&Model::Remote(remote), LENGTH_BYTES, 1);
    let alone_ns = complete_one(&mut device, 0, block_request(RequestKind::Read, 0));
    assert!((5_100_000..5_700_000).contains(&alone_ns), "{alone_ns}");
    let job = Job::new(RequestKind::Read, Pattern::Uniform, 0, LENGTH_BYTES);
    let outcome = run(&mut device, &mut [Job { depth: 64, ..job }], 1, 5);
    assert!(outcome.per_second() > 10_000.0, "{}", outcome.per_second());
}

#[test]
fn a_flush_of_an_ssd_waits_for_the_writes_before_it() {
    let mut device = ModelDevice::new(&Model::Ssd(Ssd::sata_2017()), LENGTH_BYTES, 1);
    let request = Request { kind: RequestKind::Write, offset_bytes: 0, length_bytes: 8 << 20 };
    device.push(0, Token(0), request);
    device.push(0, Token(1), block_request(RequestKind::Flush, 0));
    let completions = drain(&mut device);
    let flush = completions.iter().find(|done| done.token == Token(1)).expect("completed");
    assert!(flush.at_ns > Ssd::sata_2017().flush_ns + Ssd::sata_2017().write_ns);
}
