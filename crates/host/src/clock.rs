//! The only place of this crate that reads time.
//!
//! Everything else gets [`Time`] as an argument. The clock is monotonic and stands still while the
//! machine sleeps; it starts at one, so that zero can mean "never".

use std::time::{Duration, Instant};

use forebay_engine::units::Time;

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now(&self) -> Time {
        let nanoseconds = self.start.elapsed().as_nanos();
        // 64 bits of nanoseconds last for 584 years.
        Time(u64::try_from(nanoseconds).unwrap_or(u64::MAX - 1) + 1)
    }
}

/// Processor time that the calling thread has used so far.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a thread has not used less than none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_zero_and_never_backwards() {
        let clock = Clock::start();
        let first = clock.now();
        assert!(first.0 > 0);
        assert!(clock.now() >= first);
    }
}
