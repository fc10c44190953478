//! Policies on the log: the engine itself, on devices that keep no data, as clients read what was
//! recorded.
//!
//! A log gives up segments and not blocks, keeps some free, and spends blocks on headers. So that
//! policies are compared and not room, the log is made as large as it must be to hold about 10 %
//! or 20 % of the different blocks, and what it then held on an average, once full, is the size of
//! the caches of single blocks beside it.

use std::collections::{BTreeMap, HashMap};

use forebay_advisor::replay::{Case, Options, PolicyName};
use forebay_advisor::trace::{Operation, Request};
use forebay_engine::format::superblock::{Geometry, SEGMENT_BYTES_MIN, SEGMENTS_MIN};
use forebay_engine::options::{SequentialPolicy, SetSettings, VolumeSettings};
use forebay_engine::policy::PolicyKind;
use forebay_engine::request::RequestKind;
use forebay_engine::units::Time;

use crate::devices::{BLOCK, Devices, VOLUME};
use crate::points::{PERCENTS, replay, sizes};
use crate::traces::Trace;
use crate::{print_line, quoted};

/// Those of the means, by name.
pub(crate) const TRACES: [&str; 4] = ["P3", "OLTP", "P2", "cloudPhysicsIO"];
/// Blocks between the devices of a trace, which become parts of one volume.
const DEVICE_BLOCKS: u64 = 1 << 32;
/// Blocks of a request of a client; longer ones are several.
const REQUEST_BLOCKS_MAX: u64 = 1024;
/// Times that the size of the log is mended by what it held.
const FITTINGS: usize = 3;
/// Nanoseconds between requests: the time of an SSD.
const REQUEST_NS: u64 = 100_000;

/// What a log did.
struct Outcome {
    missed_blocks: u64,
    /// Blocks that it held on an average, once it was full.
    mean_cached_blocks: u64,
    promoted_bytes: u64,
    relocated_bytes: u64,
}

/// Prints a line for each policy in a log of each size.
pub(crate) fn print(trace: &Trace, requests: &[Request], block_bytes: u32) {
    let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
    // Blocks of the engine in one of the trace.
    let unit = (u64::from(block_bytes) / BLOCK).max(1);
    for (wanted, percent) in sizes(requests, &options).into_iter().zip(PERCENTS) {
        let wanted = u64::from(wanted) * unit;
        let runs = runs(requests, block_bytes);
        let references: u64 = runs.iter().map(|(_, blocks)| blocks).sum();
        let mut segments = wanted * BLOCK / SEGMENT_BYTES_MIN * 3 / 2;
        for _ in 0..FITTINGS {
            let held = through(&runs, PolicyKind::Clock2q, segments).mean_cached_blocks;
            segments = (segments * wanted).div_ceil(held);
        }
        for policy in PolicyKind::ALL {
            let outcome = through(&runs, policy, segments);
            let cache_blocks = outcome.mean_cached_blocks / unit;
            let cache_blocks = u32::try_from(cache_blocks).expect("a small trace");
            let cases = PolicyName::ALL.map(|policy| Case { policy, cache_blocks });
            let (_, tallies) = replay(&cases, requests, &options);
            let mut fields = vec![
                ("kind", quoted("log")),
                ("trace", quoted(&trace.name())),
                ("block_bytes", block_bytes.to_string()),
                ("percent", percent.to_string()),
                ("policy", quoted(policy.name())),
                ("segments", segments.max(SEGMENTS_MIN).to_string()),
                ("cache_blocks", cache_blocks.to_string()),
                ("miss_ratio", (outcome.missed_blocks as f64 / references as f64).to_string()),
                ("promoted_bytes", outcome.promoted_bytes.to_string()),
                ("relocated_bytes", outcome.relocated_bytes.to_string()),
            ];
            fields.extend(PolicyName::ALL.iter().zip(&tallies).map(|(alone, tally)| {
                (alone.name(), (1.0 - tally.hit_ratio_blocks()).to_string())
            }));
            print_line(&fields);
        }
    }
}

/// The requests as runs of blocks of a volume. Smaller blocks of a trace stand for 4 KiB.
fn runs(requests: &[Request], block_bytes: u32) -> Vec<(u64, u64)> {
    let size = u64::from(block_bytes);
    let unit = (size / BLOCK).max(1);
    let mut devices = BTreeMap::new();
    let mut runs = Vec::new();
    for request in requests.iter().filter(|request| request.operation != Operation::Discard) {
        let count = devices.len() as u64;
        let base = *devices.entry(request.device).or_insert(count) * DEVICE_BLOCKS;
        let start = request.offset_bytes / size * unit;
        let end = (request.offset_bytes + request.length_bytes).div_ceil(size) * unit;
        assert!(end <= DEVICE_BLOCKS);
        for from in (start..end).step_by(REQUEST_BLOCKS_MAX as usize) {
            runs.push((base + from, REQUEST_BLOCKS_MAX.min(end - from)));
        }
    }
    runs
}

/// Reads the runs, one after another, through an engine with so many segments.
fn through(runs: &[(u64, u64)], policy: PolicyKind, segments: u64) -> Outcome {
    let segments = segments.max(SEGMENTS_MIN);
    // Checkpoints and superblocks have room in as much again.
    let geometry = (segments * SEGMENT_BYTES_MIN..)
        .step_by(SEGMENT_BYTES_MIN as usize)
        .filter_map(|bytes| Geometry::new(bytes, Some(SEGMENT_BYTES_MIN)).ok())
        .find(|geometry| u64::from(geometry.segment_count) == segments)
        .expect("some size has as many");
    let volume = VolumeSettings {
        sequential_policy: SequentialPolicy::Never,
        read_ahead_bytes: 0,
        ..VolumeSettings::default()
    };
    let set = SetSettings { policy, ..SetSettings::default() };
    let origin_bytes = 256 * DEVICE_BLOCKS * BLOCK;
    let content_bytes = usize::try_from(REQUEST_BLOCKS_MAX * BLOCK).expect("4 MiB");
    let mut devices = Devices::serving(&geometry, origin_bytes, (set, volume), content_bytes);
    devices.metadata = Some(HashMap::new());
    let (mut cached_blocks, mut samples) = (0, 0);
    for (number, (start, block_count)) in runs.iter().enumerate() {
        devices.now += REQUEST_NS;
        let buffer = devices.content;
        devices.hand_in(*start, *block_count, RequestKind::Read { buffer });
        assert_eq!(devices.run().filter(|reply| reply.result.is_ok()).count(), 1);
        if number % 64 == 0 {
            let status = devices.engine.status(Time(devices.now));
            if status.counters.reclaimed_segments > 0 {
                cached_blocks += status.cached_blocks;
                samples += 1;
            }
        }
    }
    let of_set = devices.engine.status(Time(devices.now)).counters;
    let of_volume = devices.engine.volume_status(Time(devices.now), VOLUME).expect("it is served");
    Outcome {
        missed_blocks: of_volume.counters.read_miss_bytes / BLOCK,
        mean_cached_blocks: cached_blocks / samples.max(1),
        promoted_bytes: of_set.promoted_bytes,
        relocated_bytes: of_set.relocated_bytes,
    }
}
