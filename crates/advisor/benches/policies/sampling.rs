//! Miss ratios from samples beside those of a full replay: the curves of `forebay advise`, and the
//! live one of a cache at work.

use forebay_advisor::curve::{
    ClientRequest, Estimate, LruCurve, Miniature, MiniatureCurve, Rate, WhatIf,
};
use forebay_advisor::replay::{Case, Options, PolicyName};
use forebay_advisor::trace::Request;
use forebay_engine::units::Time;

use crate::cost;
use crate::points::{self, PERCENTS};
use crate::traces::Trace;
use crate::{print_line, quoted};

/// Traces that are large enough to sample.
pub(crate) const TRACES: [&str; 4] = ["P3", "OLTP", "P2", "cloudPhysicsIO"];

const SIZES: usize = PERCENTS.len();
/// Samples at each fixed rate, for chance has a part in one.
const SAMPLES: usize = 15;

/// Of a heavy load, one request of so many is looked at ...
const HEAVY_SHARE: f64 = 10.0;
/// ... of a trace that is replayed until there were so many slices.
const HEAVY_SLICES: f64 = 16.0;
/// It is held against what a full replay of more times misses beyond that of fewer.
const HEAVY_FULL: [usize; 2] = [8, 16];

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
    /// Miss ratios of a full replay, of the trace so many times in a row.
    fn full(&self, policy: PolicyName, sizes: &[u32], times: usize) -> Vec<f64> {
        let case = |size: &u32| Case { policy, cache_blocks: *size };
        let cases: Vec<Case> = sizes.iter().map(case).collect();
        let requests = std::iter::repeat_n(self.requests, times).flatten();
        let (_, tallies) = points::replay(&cases, requests, &self.options);
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
            full: two(&self.full(PolicyName::Clock2q, &sizes, 1)),
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
            full: two(&self.full(PolicyName::Lru, &sizes, 1)),
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

    /// The live curve beside a cache of so many blocks, under a light and under a heavy load.
    fn print_live(&self, cache_blocks: u32) {
        let client_request = |request| ClientRequest::recorded(request, self.options.block_bytes);
        let requests: Vec<ClientRequest> = self.requests.iter().map(client_request).collect();
        let light = live(cache_blocks, requests.iter(), cost::LIGHT_NS);
        let size = |blocks| u32::try_from(blocks).expect("a small trace");
        let sizes = light.map(|estimate| size(estimate.cache_blocks));
        let full = self.full(PolicyName::Clock2q, &sizes, 1);
        let again = HEAVY_FULL.map(|times| self.full(PolicyName::Clock2q, &sizes, times));
        // What the last of the times missed alone, when the caches know the trace.
        let steady = |at: usize| {
            let [first, last] = HEAVY_FULL.map(|times| times as f64);
            (last * again[1][at] - first * again[0][at]) / (last - first)
        };
        let heavy = heavy(cache_blocks, &light, &requests);
        let missed = |estimate: &Estimate| {
            estimate.hit_ratio.map_or("null".to_owned(), |hit| (1.0 - hit).to_string())
        };
        for at in 0..sizes.len() {
            print_line(&[
                ("kind", quoted("live")),
                ("trace", quoted(&self.trace.name())),
                ("block_bytes", self.options.block_bytes.to_string()),
                ("at_work_blocks", cache_blocks.to_string()),
                ("cache_blocks", sizes[at].to_string()),
                ("rate", light[at].sampling_rate.to_string()),
                ("full", full[at].to_string()),
                ("live", missed(&light[at])),
                ("heavy_full", steady(at).to_string()),
                ("heavy_live", missed(&heavy[at])),
            ]);
        }
        let place = [
            ("trace", quoted(&self.trace.name())),
            ("block_bytes", self.options.block_bytes.to_string()),
        ];
        cost::print(&place, cache_blocks.into(), requests.iter().copied(), None);
    }
}

/// What the live curve says in the end of requests that come at this pace.
fn live<'a>(
    cache_blocks: u32,
    requests: impl Iterator<Item = &'a ClientRequest>,
    pace_ns: u64,
) -> [Estimate; 4] {
    let mut what_if = WhatIf::new(cache_blocks.into());
    for (request, number) in requests.zip(1..) {
        what_if.note(Time(number * pace_ns), request);
    }
    what_if.estimates()
}

/// What it says where it takes rests: of the trace again and again, at the pace at which one
/// request of [`HEAVY_SHARE`] is looked at. `sizes` are those of the curve.
fn heavy(cache_blocks: u32, sizes: &[Estimate], requests: &[ClientRequest]) -> [Estimate; 4] {
    let blocks: u64 = requests.iter().map(|request| request.block_count).sum();
    let rates: f64 = sizes.iter().map(|size| size.sampling_rate).sum();
    let slices = blocks as f64 * rates / WhatIf::SLICE_BLOCKS as f64 / HEAVY_SHARE;
    let pace_ns = slices * WhatIf::SLICE_NS as f64 / requests.len() as f64;
    let times = (HEAVY_SLICES / slices).ceil() as usize;
    live(cache_blocks, std::iter::repeat_n(requests, times).flatten(), pace_ns as u64)
}

/// What each sample finds of the sizes, put together by size.
fn by_size(run: impl Fn(usize) -> [f64; SIZES]) -> [Samples; SIZES] {
    let samples: [[f64; SIZES]; SAMPLES] = std::array::from_fn(run);
    std::array::from_fn(|size| samples.map(|ratios| ratios[size]))
}

fn two(ratios: &[f64]) -> [f64; SIZES] {
    ratios.try_into().expect("a ratio for each size")
}
