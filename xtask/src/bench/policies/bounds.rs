//! The bounds of the design on policy, index and memory, each against what was measured.

use super::published::PUBLISHED;
use super::{Figures, Part, Point, Shift, Size, log, sampling};
use crate::bench::bounds::{Bound, Limit};
use crate::bench::spread::Spread;

/// Half of the last digit that was published, in thousandths.
const PUBLISHED_THOUSANDTHS: f64 = 0.5;

/// All bounds that the measured parts say something of.
pub(super) fn judge(figures: &Figures) -> Vec<Bound> {
    let mut bounds = Vec::new();
    if figures.has(Part::Misses) {
        bounds.extend(point_bounds(&figures.points));
    }
    if figures.has(Part::Log) {
        bounds.extend(log::bounds(&figures.on_log));
    }
    if figures.has(Part::Shift) {
        bounds.push(shift_bound(&figures.shifts));
    }
    if figures.has(Part::Sampling) {
        bounds.extend(sampling::bounds(figures));
    }
    if figures.has(Part::Index) {
        bounds.extend(figures.sizes.iter().flat_map(|size| size_bounds(size, figures)));
    }
    bounds
}

fn shift_bound(shifts: &[Shift]) -> Bound {
    let ours = shifts.iter().filter(|shift| shift.policy == "clock2q");
    // Whoever never comes back is beyond every bound.
    let recovery = ours.map(|shift| shift.recovery_caches.unwrap_or(f64::INFINITY));
    Bound::new(
        "requests until clock2q is back after a shift, in cache sizes".to_owned(),
        Limit::AtMost(8.0),
        "",
        Spread::of(recovery),
    )
}

fn point_bounds(points: &[Point]) -> Vec<Bound> {
    let known: Vec<&Point> = points.iter().filter(|point| point.published().is_some()).collect();
    // A mean over some of the points would say something else.
    let is_whole = known.len() == PUBLISHED.len();
    let gaps = known.iter().filter_map(|point| point.gap());
    let mean = is_whole.then(|| gaps.clone().sum::<f64>() / known.len() as f64);
    let worst = gaps.clone().min_by(f64::total_cmp);
    let count = PUBLISHED.len();
    let thousandths = known.iter().filter_map(|point| {
        let published = point.published()?;
        let pairs =
            [(point.fifo, published.fifo), (point.lru, published.lru), (point.min, published.min)];
        pairs.map(|(found, published)| (found - published).abs() * 1e3).into_iter().reduce(f64::max)
    });
    let difference = thousandths.reduce(f64::max);
    vec![
        Bound::new(
            "fifo, lru and min against published figures: largest difference, in thousandths"
                .to_owned(),
            Limit::AtMost(PUBLISHED_THOUSANDTHS),
            "",
            Spread::of(difference),
        ),
        Bound::new(
            format!("gap from LRU to MIN that clock2q closes, mean of the {count} points"),
            Limit::AtLeast(0.29),
            "",
            Spread::of(mean),
        ),
        Bound::new(
            format!("the same, the worst of {} points", known.len()),
            Limit::AtLeast(0.0),
            "",
            Spread::of(worst),
        ),
        Bound::new(
            format!(
                "hit ratio of clock2q less that of lru, the worst of all {} points",
                points.len()
            ),
            Limit::AtLeast(0.0),
            "",
            Spread::of(points.iter().map(|point| point.lru - point.clock2q).reduce(f64::min)),
        ),
    ]
}

fn size_bounds(size: &Size, figures: &Figures) -> Vec<Bound> {
    // Of the smallest index nothing is known: it is what the others are compared with.
    let Some(steps) = size.waiting_steps(&figures.sizes) else { return Vec::new() };
    let misses = size.dependent_misses(figures.machine.core_cache_bytes);
    let misses = misses.map(|misses| misses as f64);
    let title = |what: &str| {
        let millions = size.extents as f64 / 1e6;
        format!("{millions:.0} M extents of {} KiB: {what}", size.extent_blocks * 4)
    };
    vec![
        Bound::new(
            title("index, ghost and checksums, bytes an extent beyond 4 for each cached block"),
            Limit::AtMost(20.0),
            "",
            Spread::of([size.beyond_checksums_per_extent()]),
        ),
        Bound::new(
            title("all of that and the bits, memory for 1 TiB of cached blocks"),
            Limit::AtMost(if size.extent_blocks == 1 { 6.0 } else { 1.4 }),
            " GiB",
            Spread::of([size.memory_gib_per_tib()]),
        ),
        Bound::new(
            title("dependent cache misses of a hit, at most"),
            Limit::AtMost(3.0),
            "",
            Spread::of(misses),
        ),
        Bound::new(
            title("the time that a hit waits for memory, in steps of the chase"),
            Limit::AtMost(3.0),
            "",
            Spread::of([steps]),
        ),
    ]
}
