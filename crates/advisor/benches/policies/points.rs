//! Miss ratios of all policies in caches of 10 % and 20 % of the blocks of a trace.

use forebay_advisor::replay::{Case, Options, PolicyName, Replay, Summary, Tally};
use forebay_advisor::trace::Request;

use crate::traces::Trace;
use crate::{print_line, quoted};

/// Sizes of the cache, in percent of the different blocks.
pub(crate) const PERCENTS: [u64; 2] = [10, 20];

/// Blocks of caches of [`PERCENTS`] of the different blocks of a trace.
pub(crate) fn sizes(requests: &[Request], options: &Options) -> [u32; PERCENTS.len()] {
    let (summary, _) = replay(&[], requests, options);
    PERCENTS.map(|percent| {
        let blocks = summary.distinct_block_count * percent / 100;
        u32::try_from(blocks).expect("a small trace").max(1)
    })
}

pub(crate) fn replay<'a>(
    cases: &[Case],
    requests: impl IntoIterator<Item = &'a Request>,
    options: &Options,
) -> (Summary, Vec<Tally>) {
    let mut replay = Replay::new(cases, options);
    requests.into_iter().for_each(|request| replay.request(request));
    replay.finish()
}

/// Prints a line for each point.
pub(crate) fn print(trace: &Trace, requests: &[Request], block_bytes: u32) {
    let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
    let sizes = sizes(requests, &options);
    let cases =
        sizes.map(|cache_blocks| PolicyName::ALL.map(|policy| Case { policy, cache_blocks }));
    let (_, tallies) = replay(cases.as_flattened(), requests, &options);
    let per_size = tallies.chunks(PolicyName::ALL.len());
    for ((cache_blocks, percent), tallies) in sizes.into_iter().zip(PERCENTS).zip(per_size) {
        let mut fields = vec![
            ("kind", quoted("point")),
            ("trace", quoted(&trace.name())),
            ("format", quoted(trace.format.name())),
            ("block_bytes", block_bytes.to_string()),
            ("percent", percent.to_string()),
            ("cache_blocks", cache_blocks.to_string()),
            ("references", tallies[0].block_count.to_string()),
        ];
        fields.extend(
            PolicyName::ALL.iter().zip(tallies).map(|(policy, tally)| {
                (policy.name(), (1.0 - tally.hit_ratio_blocks()).to_string())
            }),
        );
        print_line(&fields);
    }
}
