//! The device models against native figures that others have published, in virtual time.
//!
//! - strugglers.net, July 2017, "bcache and lvmcache": random reads of 4 KiB, Zipf 1.2, two jobs
//!   over 2 GiB each at depth 8, on a hard disk and on an SSD alone.
//! - dm-devel, April 2016: uniform random reads of 4 KiB over 50 GB, 1 to 3 jobs at depth 1, on a
//!   hard disk of 1.5 TB and an SSD of 128 GB alone.
//! - ADMIN magazine, October 2019, "dm-writecache": random writes of 4 KiB at depth 32, on a hard
//!   disk and on an NVMe SSD alone.
//! - Amazon EBS User Guide, "General Purpose SSD volumes": what a gp3 volume is sold with.
//!
//! The hard disk of dm-devel had no command queueing: two jobs were no faster than one.

use forebay_device_model::closed_loop::{Job, Outcome, Pattern, Ranks, run};
use forebay_device_model::{HardDisk, Model, ModelDevice, Placement, Remote, RequestKind, Ssd};

/// A measured figure differs from the published one by at most this part of it.
pub const TOLERANCE: f64 = 0.1;

/// Size of the files of dm-devel.
const DATA_SET_BYTES: u64 = 50_000_000_000;
/// Where the second file of strugglers.net lies on a hard disk: a quarter of it away. Chosen.
const SECOND_FILE_HARD_DISK_BYTES: u64 = 500 << 30;
/// Blocks of each of these files.
const FILE_BLOCKS: u64 = (2 << 30) / 4096;

/// A published figure and what the model makes of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Who published it, in short.
    pub source: &'static str,
    /// The preset and how it differs from it, if it does.
    pub device: &'static str,
    /// What was done.
    pub work: &'static str,
    /// Unit of both figures.
    pub unit: &'static str,
    /// As published.
    pub published: f64,
    /// As modelled.
    pub modelled: f64,
}

impl Figure {
    /// Modelled over published.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.modelled / self.published
    }

    /// Whether the model is near enough.
    #[must_use]
    pub fn is_near(&self) -> bool {
        (self.ratio() - 1.0).abs() <= TOLERANCE
    }
}

/// What several figures have in common.
struct Source {
    source: &'static str,
    device: &'static str,
    work: &'static str,
}

impl Source {
    fn figure(&self, unit: &'static str, published: f64, modelled: f64) -> Figure {
        let Source { source, device, work } = *self;
        Figure { source, device, work, unit, published, modelled }
    }
}

/// All figures, in the order of their sources.
#[must_use]
pub fn figures() -> Vec<Figure> {
    let mut figures = zipf_figures();
    figures.extend(uniform_figures());
    figures.extend(write_figures());
    figures.extend(remote_figures());
    figures
}

/// Two jobs, the second file from `second_start_bytes` on.
fn zipf_reads(model: Model, second_start_bytes: u64, seconds: u64) -> Outcome {
    let mut device = ModelDevice::new(&model, 1 << 40, 1);
    let mut jobs = [0, second_start_bytes].map(|start_bytes| {
        let weights = (1..=FILE_BLOCKS).map(|rank| (rank as f64).powf(-1.2));
        let pattern = Pattern::Ranked(Ranks::new(weights));
        let job = Job::new(RequestKind::Read, pattern, start_bytes, FILE_BLOCKS * 4096);
        Job { depth: 8, ..job }
    });
    run(&mut device, &mut jobs, seconds / 4, seconds)
}

fn zipf_figures() -> Vec<Figure> {
    let source = "strugglers.net 2017";
    let work = "random reads, Zipf 1.2, 2 jobs of depth 8";
    let placement = Placement::Band { start_bytes: 0 };
    let disk = HardDisk { placement, ..HardDisk::server_7200() };
    let hard_disk = zipf_reads(Model::HardDisk(disk), SECOND_FILE_HARD_DISK_BYTES, 240);
    let ssd = zipf_reads(Model::Ssd(Ssd::sata_2017()), FILE_BLOCKS * 4096, 4);
    let (disk, fast) = (
        Source { source, device: "hard disk server_7200, in one piece", work },
        Source { source, device: "SSD sata_2017", work },
    );
    vec![
        disk.figure("reads/s", 938.0, hard_disk.per_second()),
        disk.figure("p50 ms", 1.0, hard_disk.permille_ms(500)),
        disk.figure("p99 ms", 175.0, hard_disk.permille_ms(990)),
        fast.figure("reads/s", 104_848.0, ssd.per_second()),
        fast.figure("p50 ms", 0.135, ssd.permille_ms(500)),
        // 243 us and 322 us for the two jobs.
        fast.figure("p99 ms", (0.243 + 0.322) / 2.0, ssd.permille_ms(990)),
    ]
}

fn uniform_reads_kb_per_second(model: Model, job_count: usize, seconds: u64) -> f64 {
    let mut device = ModelDevice::new(&model, DATA_SET_BYTES, 1);
    let mut jobs: Vec<Job> = (0..job_count)
        .map(|_| Job::new(RequestKind::Read, Pattern::Uniform, 0, DATA_SET_BYTES))
        .collect();
    // A KB of fio is 1024 bytes.
    run(&mut device, &mut jobs, 1, seconds).per_second() * 4.0
}

fn uniform_figures() -> Vec<Figure> {
    const WORK: [&str; 3] = [
        "random reads, uniform, 1 job of depth 1",
        "random reads, uniform, 2 jobs of depth 1",
        "random reads, uniform, 3 jobs of depth 1",
    ];
    let disk = HardDisk { queue_depth: 1, ..HardDisk::server_7200() };
    let devices = [
        ("hard disk server_7200, queue depth 1", Model::HardDisk(disk), 200, [350.0, 325.0, 338.0]),
        ("SSD sata_128gb", Model::Ssd(Ssd::sata_128gb()), 4, [20_570.0, 38_510.0, 56_130.0]),
    ];
    let mut figures = Vec::new();
    for (device, model, seconds, published) in devices {
        for (index, published) in published.into_iter().enumerate() {
            let source = Source { source: "dm-devel 2016", device, work: WORK[index] };
            let modelled = uniform_reads_kb_per_second(model, index + 1, seconds);
            figures.push(source.figure("KB/s", published, modelled));
        }
    }
    figures
}

fn uniform(kind: RequestKind, model: Model, depth: u64, seconds: u64) -> Outcome {
    let mut device = ModelDevice::new(&model, DATA_SET_BYTES, 1);
    let job = Job::new(kind, Pattern::Uniform, 0, DATA_SET_BYTES);
    run(&mut device, &mut [Job { depth, ..job }], seconds / 4, seconds)
}

fn write_figures() -> Vec<Figure> {
    let (source, work) = ("ADMIN 2019", "random writes, uniform, depth 32");
    let devices = [
        ("hard disk server_7200", Model::HardDisk(HardDisk::server_7200()), 120, 352.0),
        ("SSD nvme_2019", Model::Ssd(Ssd::nvme_2019()), 2, 168_000.0),
    ];
    devices
        .into_iter()
        .map(|(device, model, seconds, published)| {
            let outcome = uniform(RequestKind::Write, model, 32, seconds);
            Source { source, device, work }.figure("writes/s", published, outcome.per_second())
        })
        .collect()
}

fn remote_figures() -> Vec<Figure> {
    let (source, device) = ("Amazon EBS", "remote volume cloud_volume");
    let model = Model::Remote(Remote::cloud_volume());
    let small = uniform(RequestKind::Read, model, 32, 20);
    let mut volume = ModelDevice::new(&model, DATA_SET_BYTES, 1);
    let job = Job::new(RequestKind::Read, Pattern::Sequential, 0, DATA_SET_BYTES);
    let long = run(&mut volume, &mut [Job { depth: 8, request_bytes: 1 << 20, ..job }], 1, 20);
    vec![
        Source { source, device, work: "random reads of 4 KiB, depth 32" }.figure(
            "reads/s",
            3000.0,
            small.per_second(),
        ),
        Source { source, device, work: "sequential reads of 1 MiB, depth 8" }.figure(
            "MiB/s",
            125.0,
            long.per_second(),
        ),
    ]
}
