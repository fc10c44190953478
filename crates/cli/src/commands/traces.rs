//! What the commands that read traces have in common.

use forebay_advisor::replay;
use forebay_advisor::trace::{self, BrokenLines};
use forebay_engine::options::VolumeSettings;

use crate::args::TraceArguments;
use crate::exit::Failure;
use crate::{output, size};

/// Requests between two looks at the progress.
pub(super) const REQUESTS_PER_PROGRESS: u64 = 16_384;

/// How to read the traces.
pub(super) fn reading(arguments: &TraceArguments) -> trace::Options {
    trace::Options { format: arguments.format, object_bytes: arguments.block_size }
}

/// What holds for all caches.
pub(super) fn options(arguments: &TraceArguments) -> replay::Options {
    let default_cutoff = VolumeSettings::default().sequential_cutoff_bytes;
    let cutoff = if arguments.no_sequential { 0 } else { default_cutoff };
    replay::Options { block_bytes: arguments.block_size, sequential_cutoff_bytes: cutoff }
}

/// Blocks of a cache of so many bytes.
pub(super) fn cache_blocks(arguments: &TraceArguments, bytes: u64) -> Result<u32, Failure> {
    let blocks = u32::try_from(bytes / u64::from(arguments.block_size));
    blocks.ok().filter(|blocks| *blocks > 0).ok_or_else(|| {
        let (cache, block) = (size::text(bytes), size::text(arguments.block_size.into()));
        Failure::usage(format!(
            "a cache of {cache} has no blocks of {block}, or more than 2^32 of them"
        ))
    })
}

/// Tells of the lines of a trace that were left out.
pub(super) fn report_broken(name: &str, broken: &BrokenLines) {
    for line in &broken.first {
        output::say(&format!("{name}: line {} {}; left out", line.line, line.error));
    }
    let more = broken.count - broken.first.len() as u64;
    if more > 0 {
        output::say(&format!("{name}: {more} more broken lines left out"));
    }
}
