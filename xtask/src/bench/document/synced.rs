//! The part of the document on work that waits for flushes, on a mounted file system.

use super::super::report::Report;
use super::super::spread::number;
use super::super::synced::{self, Disk, Phase, Work};
use super::table;

/// What stands where nothing was measured.
const NOTHING: &str = "–";

/// The table, with how to read it.
pub(super) fn text(phases: &[Phase], report: &Report) -> String {
    let header = [
        "work",
        "hard disk, a second",
        "fast device, a second",
        "cached, a second",
        "cached over hard disk",
        "cached over fast device",
        "p99 hard disk, ms",
        "p99 fast device, ms",
        "p99 cached, ms",
        "client flushes a second",
        "cache device flushes a second",
        "of them per client flush",
    ];
    let lines = Work::ALL.into_iter().filter_map(|work| line(phases, work));
    format!(
        "\
### Work that waits for flushes

On ext4, made anew on each device and mounted through nbdfuse and a loop device, for {} s each,
once: the emulated hard disk alone, the fast device alone (a file on the disk), and the hard disk
with a cache of {} MiB on the fast device. SQLite (`synchronous=FULL`) inserts and updates a row in
each transaction; pgbench does its TPC-B on PostgreSQL as it comes, on a Unix socket; dpkg unpacks a
package of twelve small files with each call, and p99 is that of the call. Flushes are those of the
cached device, by forebay's counters, FUA among those of clients.

",
        synced::phase_seconds(report.plan),
        synced::SIZES.cache_bytes >> 20,
    ) + &table(&header, lines)
}

fn line(phases: &[Phase], work: Work) -> Option<Vec<String>> {
    let [slow, fast, cached] =
        [Disk::Slow, Disk::Fast, Disk::Cached].map(|disk| synced::find(phases, work, disk));
    let rate = |phase: Option<&Phase>| phase.map(Phase::per_second);
    let over = |other: Option<&Phase>| Some(rate(cached)? / rate(other)?);
    let p99 = |phase: Option<&Phase>| phase.map(|phase| phase.p99_ms);
    let flushes = cached.and_then(|phase| Some((phase.flushes?, phase.seconds)));
    let of_clients = flushes.map(|(flushes, seconds)| flushes.of_clients as f64 / seconds);
    let of_device = flushes.map(|(flushes, seconds)| flushes.of_cache_device as f64 / seconds);
    let per_flush = of_device.zip(of_clients).map(|(device, clients)| device / clients);
    let cells = [
        (rate(slow), 1),
        (rate(fast), 1),
        (rate(cached), 1),
        (over(slow), 2),
        (over(fast), 2),
        (p99(slow), 1),
        (p99(fast), 1),
        (p99(cached), 1),
        (of_clients, 0),
        (of_device, 0),
        (per_flush.filter(|ratio| ratio.is_finite()), 2),
    ];
    slow.or(fast).or(cached)?;
    let cells = cells.into_iter().map(|(value, decimals)| {
        value.map_or_else(|| NOTHING.to_owned(), |value| number(value, decimals))
    });
    Some(std::iter::once(work.title().to_owned()).chain(cells).collect())
}

#[cfg(test)]
mod tests {
    use super::super::super::synced::Flushes;
    use super::*;

    #[test]
    fn ratios_are_those_of_the_cached_device() {
        let phase = |disk, done, flushes| Phase {
            work: Work::Dpkg,
            disk,
            done,
            seconds: 2.0,
            p99_ms: 7.0,
            flushes,
        };
        let flushes = Some(Flushes { of_clients: 100, of_cache_device: 80 });
        let phases = [phase(Disk::Slow, 10, None), phase(Disk::Cached, 40, flushes)];
        let line = line(&phases, Work::Dpkg).expect("it was measured");
        let expected = ["5.0", "–", "20.0", "4.00", "–", "7.0", "–", "7.0", "50", "40", "0.80"];
        assert_eq!(line[1..], expected);
        assert!(super::line(&phases, Work::Postgres).is_none());
    }
}
