//! Time in a trace, or the number of the request where a trace has no times.

use super::timeline::{Axis, Moment};

const SECOND_NS: f64 = 1e9;

/// Counts from the first request on, and never backwards: traces of several processors are not
/// quite in order.
#[derive(Default)]
pub(super) struct Clock {
    first_ns: Option<u64>,
    last_ns: u64,
    request_count: u64,
}

impl Clock {
    /// When the next request comes.
    pub(super) fn next(&mut self, time_ns: Option<u64>) -> Moment {
        if self.request_count == 0 {
            self.first_ns = time_ns;
        }
        self.request_count += 1;
        let Some(first_ns) = self.first_ns else {
            return Moment { position: self.request_count - 1, time_ns: None };
        };
        let since_ns = time_ns.unwrap_or(0).saturating_sub(first_ns);
        self.last_ns = self.last_ns.max(since_ns);
        Moment { position: self.last_ns, time_ns: Some(self.last_ns) }
    }

    pub(super) fn axis(&self) -> Axis {
        if self.first_ns.is_some() { Axis::Seconds } else { Axis::Requests }
    }

    /// None without times, and where all of them are the same.
    pub(super) fn duration_s(&self) -> Option<f64> {
        let has_times = self.first_ns.is_some() && self.last_ns > 0;
        has_times.then_some(self.last_ns as f64 / SECOND_NS)
    }
}
