//! Miss ratios from samples beside those of a full replay: the curves of `forebay advise`, and the
//! live one of a cache at work.

use forebay_advisor::curve::{ClientRequest, LruCurve, Miniature, MiniatureCurve, Rate, WhatIf};
use forebay_advisor::replay::{Case, Options, PolicyName};
use forebay_advisor::trace::Request;

use crate::cost;
use crate::points::{self, PERCENTS};
use crate::traces::Trace;
use crate::{print_line, quoted};

/// Traces that are large enough to sample.
pub(crate) const TRACES: [&str; 4] = ["P3", "OLTP", "P2", "cloudPhysicsIO"];

const SIZES: usize = PERCENTS.len();
/// Samples at each fixed rate, for chance has a part in one.
const SAMPLES: usize = 15;

/// A miss ratio for each sample.
type Samples = [f64; SAMPLES];

/// Miss ratios of the caches of a trace under one policy, by how blocks were chosen.
struct Curves {
    policy: PolicyName,
    full: [f64; SIZES],
    /// The first sample is that of the trace as it is.
    one_in_32: [Samples; SIZES],
    one_in_128: [Samples; SIZES],
    /// As `forebay advise` does it, and the parts of the blocks that it then looks at.
    advised: [f64; SIZES],
    advised_rate: [f64; SIZES],
}

/// A trace in blocks of one size.
struct Work<'a> {
    trace: &'a Trace,
    requests: &'a [Request],
    options: Options,
}

/// Prints a line for each point and policy, each size of the live curve, and for its cost.
pub(crate) fn print(trace: &Trace, requests: &[Request], block_bytes: u32) {
    let options = Options { block_bytes, sequential_cutoff_bytes: 0 };
    let work = Work { trace, requests, options };
    let sizes = points::sizes(requests, &options);
    for curves in [work.clock2q(sizes), work.lru(sizes)] {
        work.print_curves(sizes, &curves);
    }
    work.print_live(sizes[0]);
}

impl Work<'_> {
    /// Miss ratios of a full replay.
    fn full(&self, policy: PolicyName, sizes: &[u32]) -> Vec<f64> {
        let case = |size: &u32| Case { policy, cache_blocks: *size };
        let cases: Vec<Case> = sizes.iter().map(case).collect();
        let (_, tallies) = points::replay(&cases, self.requests, &self.options);
        tallies.iter().map(|tally| 1.0 - tally.hit_ratio_blocks()).collect()
    }

    /// The requests as those of another volume, of which other blocks are in a sample; the first is
    /// the trace as it is.
    fn sample(&self, sample: usize) -> impl Iterator<Item = Request> {
        let volumes = u32::try_from(sample).expect("a few");
        let device = move |device: u32| device.wrapping_add(volumes);
        self.requests
            .iter()
            .map(move |request| Request { device: device(request.device), ..*request })
    }

    fn clock2q(&self, sizes: [u32; SIZES]) -> Curves {
        let run = |sample: usize, miniatures: [Miniature; SIZES]| -> [f64; SIZES] {
            let mut curve = MiniatureCurve::new(&miniatures, &self.options);
            self.sample(sample).for_each(|request| curve.request(&request));
            let misses = curve.misses(curve.totals());
            std::array::from_fn(|at| 1.0 - misses[at].hit_ratio_blocks(curve.totals()))
        };
        let at = |rate: Rate| {
            let miniatures = sizes.map(|cache_blocks| Miniature { cache_blocks, rate });
            by_size(|sample| run(sample, miniatures))
        };
        Curves {
            policy: PolicyName::Clock2q,
            full: two(&self.full(PolicyName::Clock2q, &sizes)),
            one_in_32: at(Rate::one_in(32)),
            one_in_128: at(Rate::one_in(128)),
            advised: run(0, sizes.map(Miniature::of)),
            advised_rate: sizes.map(|cache_blocks| Miniature::of(cache_blocks).rate.value()),
        }
    }

    fn lru(&self, sizes: [u32; SIZES]) -> Curves {
        let run = |sample: usize, mut curve: LruCurve| {
            self.sample(sample).for_each(|request| curve.request(&request));
            (sizes.map(|size| 1.0 - curve.hit_ratio(size.into())), curve.rate())
        };
        let at = |rate: Rate| {
            by_size(|sample| {
                let (ratios, last) = run(sample, LruCurve::at_rate(&self.options, rate));
                assert!(rate.value() <= last, "the trace is too large for a fixed rate");
                ratios
            })
        };
        let (advised, rate) = run(0, LruCurve::new(&self.options));
        Curves {
            policy: PolicyName::Lru,
            full: two(&self.full(PolicyName::Lru, &sizes)),
            one_in_32: at(Rate::one_in(32)),
            one_in_128: at(Rate::one_in(128)),
            advised,
            advised_rate: [rate; SIZES],
        }
    }

    fn print_curves(&self, sizes: [u32; SIZES], curves: &Curves) {
        for (at, percent) in PERCENTS.into_iter().enumerate() {
            print_line(&[
                ("kind", quoted("sampled")),
                ("trace", quoted(&self.trace.name())),
                ("block_bytes", self.options.block_bytes.to_string()),
                ("percent", percent.to_string()),
                ("cache_blocks", sizes[at].to_string()),
                ("policy", quoted(curves.policy.name())),
                ("full", curves.full[at].to_string()),
                ("one_in_32", format!("{:?}", curves.one_in_32[at])),
                ("one_in_128", format!("{:?}", curves.one_in_128[at])),
                ("advised", curves.advised[at].to_string()),
                ("advised_rate", curves.advised_rate[at].to_string()),
            ]);
        }
    }

    /// The live curve beside a cache of so many blocks.
    fn print_live(&self, cache_blocks: u32) {
        let client_request = |request| ClientRequest::recorded(request, self.options.block_bytes);
        let requests: Vec<ClientRequest> = self.requests.iter().map(client_request).collect();
        let mut what_if = WhatIf::new(cache_blocks.into());
        requests.iter().for_each(|request| what_if.note(request));
        let estimates = what_if.estimates();
        let size = |blocks| u32::try_from(blocks).expect("a small trace");
        let sizes = estimates.map(|estimate| size(estimate.cache_blocks));
        let full = self.full(PolicyName::Clock2q, &sizes);
        for (estimate, full) in estimates.iter().zip(full) {
            let live = estimate.hit_ratio.map_or("null".to_owned(), |hit| (1.0 - hit).to_string());
            print_line(&[
                ("kind", quoted("live")),
                ("trace", quoted(&self.trace.name())),
                ("block_bytes", self.options.block_bytes.to_string()),
                ("at_work_blocks", cache_blocks.to_string()),
                ("cache_blocks", estimate.cache_blocks.to_string()),
                ("rate", estimate.sampling_rate.to_string()),
                ("full", full.to_string()),
                ("live", live),
            ]);
        }
        let place = [
            ("trace", quoted(&self.trace.name())),
            ("block_bytes", self.options.block_bytes.to_string()),
        ];
        let noted = requests.iter().copied();
        cost::print(&place, cache_blocks.into(), &mut what_if, noted);
    }
}

/// What each sample finds of the sizes, put together by size.
fn by_size(run: impl Fn(usize) -> [f64; SIZES]) -> [Samples; SIZES] {
    let samples: [[f64; SIZES]; SAMPLES] = std::array::from_fn(run);
    std::array::from_fn(|size| samples.map(|ratios| ratios[size]))
}

fn two(ratios: &[f64]) -> [f64; SIZES] {
    ratios.try_into().expect("a ratio for each size")
}
