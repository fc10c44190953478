//! The models against native figures that others have published, all within 10 %.
//!
//! - strugglers.net, July 2017, "bcache and lvmcache": random reads of 4 KiB, Zipf 1.2, two jobs
//!   over 2 GiB each at depth 8. Hard disk 938/s, p50 about 1 ms, p99 175 ms; SSD 104,848/s, p50
//!   135 us, p99 243 us and 322 us for the two jobs.
//! - dm-devel, April 2016: uniform random reads of 4 KiB over 50 GB, 1 to 3 jobs at depth 1. Hard
//!   disk 350, 325, 338 KB/s; SSD 20,570, 38,510, 56,130 KB/s.
//! - ADMIN magazine, October 2019, "dm-writecache": random writes of 4 KiB at depth 32. Hard disk
//!   352/s; NVMe SSD 168,000/s.

use forebay_device_model::{HardDisk, Model, ModelDevice, Placement, RequestKind, Ssd};

use crate::closed_loop::{Job, Outcome, Pattern, Zipf, run};

const DATA_SET_BYTES: u64 = 50_000_000_000;

fn assert_near(what: &str, measured: f64, published: f64) {
    let ratio = measured / published;
    assert!((0.9..=1.1).contains(&ratio), "{what}: {measured:.3}, published {published:.3}");
}

/// Two jobs over 2 GiB each, the second file from `second_start_bytes` on.
fn zipf_reads(model: Model, second_start_bytes: u64, seconds: u64) -> Outcome {
    let mut device = ModelDevice::new(&model, 1 << 40, 1);
    let mut jobs = [0, second_start_bytes].map(|start_bytes| {
        let pattern = Pattern::Zipf(Zipf::new(512 << 10, 1.2));
        Job { depth: 8, ..Job::new(RequestKind::Read, pattern, start_bytes, 2 << 30) }
    });
    run(&mut device, &mut jobs, seconds / 4, seconds)
}

fn uniform_reads_kb_per_second(model: Model, job_count: usize, seconds: u64) -> f64 {
    let mut device = ModelDevice::new(&model, DATA_SET_BYTES, 1);
    let mut jobs: Vec<Job> = (0..job_count)
        .map(|_| Job::new(RequestKind::Read, Pattern::Uniform, 0, DATA_SET_BYTES))
        .collect();
    run(&mut device, &mut jobs, 1, seconds).per_second() * 4.0
}

fn uniform_writes(model: Model, warm_up_s: u64, duration_s: u64) -> Outcome {
    let mut device = ModelDevice::new(&model, DATA_SET_BYTES, 1);
    let job = Job::new(RequestKind::Write, Pattern::Uniform, 0, DATA_SET_BYTES);
    run(&mut device, &mut [Job { depth: 32, ..job }], warm_up_s, duration_s)
}

#[test]
fn hard_disk_under_zipf_reads() {
    let placement = Placement::Band { start_bytes: 0 };
    let disk = HardDisk { placement, ..HardDisk::server_7200() };
    // The files lie a quarter of the disk apart.
    let outcome = zipf_reads(Model::HardDisk(disk), 500 << 30, 240);
    println!("{}", outcome.describe());
    assert_near("reads a second", outcome.per_second(), 938.0);
    assert_near("p50 in ms", outcome.permille_ms(500), 1.0);
    assert_near("p99 in ms", outcome.permille_ms(990), 175.0);
}

/// Two in flight were no faster than one on that disk: no command queueing.
#[test]
fn hard_disk_under_uniform_reads() {
    let disk = HardDisk { queue_depth: 1, ..HardDisk::server_7200() };
    for (job_count, published) in [(1, 350.0), (2, 325.0), (3, 338.0)] {
        let measured = uniform_reads_kb_per_second(Model::HardDisk(disk), job_count, 200);
        println!("{job_count} jobs: {measured:.0} KB/s");
        assert_near("KB/s", measured, published);
    }
}

#[test]
fn hard_disk_under_random_writes() {
    let outcome = uniform_writes(Model::HardDisk(HardDisk::server_7200()), 30, 120);
    println!("{}", outcome.describe());
    assert_near("writes a second", outcome.per_second(), 352.0);
}

#[test]
fn ssd_under_zipf_reads() {
    let outcome = zipf_reads(Model::Ssd(Ssd::sata_2017()), 2 << 30, 4);
    println!("{}", outcome.describe());
    assert_near("reads a second", outcome.per_second(), 104_848.0);
    assert_near("p50 in ms", outcome.permille_ms(500), 0.135);
    assert_near("p99 in ms", outcome.permille_ms(990), (0.243 + 0.322) / 2.0);
}

#[test]
fn ssd_under_uniform_reads() {
    for (job_count, published) in [(1, 20_570.0), (2, 38_510.0), (3, 56_130.0)] {
        let measured = uniform_reads_kb_per_second(Model::Ssd(Ssd::sata_128gb()), job_count, 4);
        println!("{job_count} jobs: {measured:.0} KB/s");
        assert_near("KB/s", measured, published);
    }
}

#[test]
fn nvme_ssd_under_random_writes() {
    let outcome = uniform_writes(Model::Ssd(Ssd::nvme_2019()), 1, 2);
    println!("{}", outcome.describe());
    assert_near("writes a second", outcome.per_second(), 168_000.0);
}
