//! How long a client of a ublk device waits for a takeover (`xtask/vm/pauses.sh`).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bench::document::{cell, table};
use crate::bench::spread::Spread;

/// To fill the log on a busy machine, and for a takeover.
const FILL_SECONDS_MAX: u64 = 600;
const ROUND_SECONDS_MAX: u64 = 240;

/// One takeover, as a line of the script has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pause {
    /// Longest latency of a request, and the same without a takeover, just before.
    longest_us: f64,
    quiet_us: f64,
    /// From the first word of the successor that makes the predecessor hold, until the commit.
    handed_ms: f64,
    /// From there until the successor served.
    start_ms: f64,
    /// Both together.
    pause_ms: f64,
    extents: f64,
    cached_bytes: f64,
}

/// How long the script has at most.
pub(super) fn time_max(rounds: u64) -> Duration {
    Duration::from_secs(FILL_SECONDS_MAX + rounds * ROUND_SECONDS_MAX)
}

/// A section of the document; empty if nothing was measured.
pub(super) fn text(pauses: &[Pause]) -> String {
    let Some(first) = pauses.first() else { return String::new() };
    let spread = |value: fn(&Pause) -> f64| Spread::of(pauses.iter().map(value));
    let row = |name: &str, value: fn(&Pause) -> f64| vec![name.to_owned(), cell(spread(value), 0)];
    let rows = [
        row("longest latency of a request", |pause| pause.longest_us / 1e3),
        row("the same without a takeover", |pause| pause.quiet_us / 1e3),
        row("hand-over: hold, checkpoint, and the successor reads everything", |p| p.handed_ms),
        row("start: from the commit until the successor serves", |p| p.start_ms),
        row("both, as the successor logs it", |p| p.pause_ms),
    ];
    format!(
        "\
## Takeover of a ublk device

A daemon with {} cached extents ({:.0} MiB) was replaced by another one (`forebay serve --takeover`,
`xtask/vm/pauses.sh`) while one request after another was under way at its device: reads of 4 KiB
that hit, and every eighth time a write. What takes long here is the reading of the log: work of an
emulated processor on an emulated disk, which `cargo xtask bench --only takeover` measures on a real
one, with about as many extents. What ublk adds to that is in the start: until the kernel has let go
of the old server, and the new one has claimed the device.

{}",
        first.extents,
        first.cached_bytes / f64::from(1 << 20),
        table(&["", "ms"], rows)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::guest::from_line;

    const LINE: &str = "round=1 longest_us=2500000 quiet_us=9000 handed_ms=2300 start_ms=120 \
                        pause_ms=2420 extents=262144 cached_bytes=1073741824";

    #[test]
    fn a_line_of_the_script_is_a_pause() {
        let text = text(&[from_line(LINE).expect("a whole line")]);
        assert!(text.contains("262144 cached extents (1024 MiB)"), "{text}");
        assert!(text.contains("| longest latency of a request | 2,500 |"), "{text}");
        assert!(text.contains("| start: from the commit until the successor serves | 120 |"));
        assert!(from_line::<Pause>(&LINE.replace("start_ms=120", "")).is_err());
        assert_eq!(super::text(&[]), "");
    }
}
