//! How long requests took, by class.

use hdrhistogram::Histogram;

use super::status::{LatencyReport, Percentiles};

/// Range of what is told apart. Shorter and longer latencies count as these.
const LATENCY_NS_MIN: u64 = 1_000;
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
/// Digits that a percentile is right in: 1 % is far below the noise of any device.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Classes of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LatencyClass {
    ReadHit,
    ReadMiss,
    Write,
    Flush,
}

/// Histograms of one export.
pub(crate) struct Latencies {
    classes: [Histogram<u64>; 4],
}

impl Latencies {
    pub(crate) fn new() -> Latencies {
        let empty = || {
            Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
                .expect("the bounds are valid")
        };
        Latencies { classes: std::array::from_fn(|_| empty()) }
    }

    /// Counts one request.
    pub(crate) fn record(&mut self, class: LatencyClass, nanoseconds: u64) {
        self.classes[class as usize].saturating_record(nanoseconds);
    }

    /// Forgets all.
    pub(crate) fn reset(&mut self) {
        for histogram in &mut self.classes {
            histogram.reset();
        }
    }

    /// The figures.
    pub(crate) fn report(&self) -> LatencyReport {
        let percentiles = |class: LatencyClass| {
            let histogram = &self.classes[class as usize];
            if histogram.is_empty() {
                return Percentiles::default();
            }
            Percentiles {
                count: histogram.len(),
                mean_ns: histogram.mean() as u64,
                p50_ns: histogram.value_at_quantile(0.5),
                p99_ns: histogram.value_at_quantile(0.99),
                p999_ns: histogram.value_at_quantile(0.999),
                max_ns: histogram.max(),
            }
        };
        LatencyReport {
            read_hit: percentiles(LatencyClass::ReadHit),
            read_miss: percentiles(LatencyClass::ReadMiss),
            write: percentiles(LatencyClass::Write),
            flush: percentiles(LatencyClass::Flush),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_percent() {
        let mut latencies = Latencies::new();
        for microseconds in 1..=1000 {
            latencies.record(LatencyClass::Write, microseconds * 1000);
        }
        let report = latencies.report();
        assert_eq!(report.write.count, 1000);
        assert!(report.write.p50_ns.abs_diff(500_000) <= 5_000, "{report:?}");
        assert!(report.write.p99_ns.abs_diff(990_000) <= 10_000, "{report:?}");
        assert_eq!(report.read_hit, Percentiles::default());
        latencies.reset();
        assert_eq!(latencies.report(), LatencyReport::default());
    }
}
