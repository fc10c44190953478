//! What the demo measured, and how it is shown.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::commands::latency_text;

/// The end of a run whose rate is taken for the final one.
const FINAL: Duration = Duration::from_secs(3);
/// Width of the window that looks for 90 % of the final rate.
const WINDOW: Duration = Duration::from_millis(500);

/// Requests answered, over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    points: Vec<(Duration, u64)>,
}

impl Series {
    pub(crate) fn push(&mut self, elapsed: Duration, done: u64) {
        self.points.push((elapsed, done));
    }

    fn last(&self) -> (Duration, u64) {
        self.points.last().copied().unwrap_or_default()
    }

    /// Requests answered by a time.
    fn at(&self, time: Duration) -> u64 {
        let place = self.points.partition_point(|(elapsed, _)| *elapsed <= time);
        if place == 0 { 0 } else { self.points[place - 1].1 }
    }

    /// Average rate, per second.
    pub(crate) fn average(&self) -> f64 {
        let (elapsed, done) = self.last();
        done as f64 / elapsed.as_secs_f64().max(1e-9)
    }

    /// Rate at the end.
    pub(crate) fn final_rate(&self) -> f64 {
        let (end, done) = self.last();
        let from = end.saturating_sub(FINAL);
        let start = self.points.iter().rev().find(|(elapsed, _)| *elapsed <= from);
        let (start, before) = start.copied().unwrap_or_default();
        (done - before) as f64 / (end - start).as_secs_f64().max(1e-9)
    }

    /// When the rate first reached 90 % of the final one.
    pub(crate) fn warm_after(&self) -> Duration {
        let wanted = 0.9 * self.final_rate() * WINDOW.as_secs_f64();
        for (elapsed, done) in &self.points {
            let from = elapsed.saturating_sub(WINDOW);
            if *elapsed >= WINDOW && (done - self.at(from)) as f64 >= wanted {
                return from;
            }
        }
        self.last().0
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// Requests a second (for write+fsync: pairs).
    pub(crate) iops: f64,
    pub(crate) iops_last_3_s: f64,
    /// Seconds until the rate was 90 % of that of the last three seconds.
    pub(crate) warm_after_s: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    /// Share of the reads served whole from the cache.
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) hit_ratio_last_3_s: Option<f64>,
    /// Of the last three seconds, against the bare devices.
    pub(crate) ratio_to_fast: Option<f64>,
    pub(crate) ratio_to_slow: Option<f64>,
}

impl Figures {
    pub(crate) fn new(name: &str, series: &Series, latency: &Histogram<u64>) -> Figures {
        Figures {
            name: name.to_owned(),
            seconds: series.last().0.as_secs_f64(),
            iops: series.average(),
            iops_last_3_s: series.final_rate(),
            warm_after_s: series.warm_after().as_secs_f64(),
            p50_ns: latency.value_at_quantile(0.5),
            p99_ns: latency.value_at_quantile(0.99),
            hit_ratio: None,
            hit_ratio_last_3_s: None,
            ratio_to_fast: None,
            ratio_to_slow: None,
        }
    }
}

/// How the server that was killed came back.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CrashFigures {
    /// Writes acknowledged before the kill.
    pub(crate) acknowledged_writes: u64,
    pub(crate) blocks_compared: u64,
    /// Of these, blocks that have a write that was under way at the kill.
    pub(crate) blocks_newer: u64,
    pub(crate) blocks_wrong: u64,
    /// From the start of the new process until it served.
    pub(crate) restart_ms: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) scale: String,
    pub(crate) directory: String,
    pub(crate) directory_is_memory: bool,
    pub(crate) reads: Vec<Figures>,
    pub(crate) write_flushes: Vec<Figures>,
    pub(crate) crash: CrashFigures,
}

/// Fills in the ratios to the slow and the fast device, the first two of the list.
pub(crate) fn compare(list: &mut [Figures]) {
    let [slow, fast, ..] = &*list else { return };
    let (slow, fast) = (slow.iops_last_3_s, fast.iops_last_3_s);
    for figures in list {
        let ratio = |base: f64| (base > 0.0).then(|| figures.iops_last_3_s / base);
        (figures.ratio_to_slow, figures.ratio_to_fast) = (ratio(slow), ratio(fast));
    }
}

impl Report {
    /// The table for people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n{}", self.scale)?;
        let medium = if self.directory_is_memory { "in memory" } else { "on a disk" };
        writeln!(text, "files in {} ({medium})\n", self.directory)?;
        write_table(text, "random reads", &self.reads)?;
        writeln!(text)?;
        write_table(text, "write + fsync", &self.write_flushes)?;
        let crash = &self.crash;
        writeln!(
            text,
            "\nkill -9 in the middle of writes: {} writes acknowledged, served again after {} ms,",
            crash.acknowledged_writes, crash.restart_ms
        )?;
        let verdict = match crash.blocks_wrong {
            0 => "none lost".to_owned(),
            wrong => format!("{wrong} LOST OR WRONG"),
        };
        writeln!(
            text,
            "{} blocks read back and compared ({} with a write that was under way): {verdict}",
            crash.blocks_compared, crash.blocks_newer
        )
    }
}

fn write_table(text: &mut String, title: &str, list: &[Figures]) -> std::fmt::Result {
    writeln!(
        text,
        "{title:<28} {:>8} {:>9} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>8}",
        "IOPS", "last 3 s", "of fast", "x slow", "hits", "last", "p50", "p99", "to 90 %"
    )?;
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let percent = |ratio: Option<f64>| or_dash(ratio.map(|r| format!("{:.1} %", r * 100.0)));
    for figures in list {
        writeln!(
            text,
            "{:<28} {:>8.0} {:>9.0} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>8}",
            figures.name,
            figures.iops,
            figures.iops_last_3_s,
            or_dash(figures.ratio_to_fast.map(|ratio| format!("{ratio:.3}"))),
            or_dash(figures.ratio_to_slow.map(|ratio| format!("{ratio:.1}"))),
            percent(figures.hit_ratio),
            percent(figures.hit_ratio_last_3_s),
            latency_text(figures.p50_ns),
            latency_text(figures.p99_ns),
            format!("{:.1} s", figures.warm_after_s)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rates: &[u64]) -> Series {
        let mut series = Series::default();
        let mut done = 0;
        for (index, rate) in (1..).zip(rates) {
            done += rate / 10;
            series.push(Duration::from_millis(100 * index), done);
        }
        series
    }

    #[test]
    fn the_final_rate_is_that_of_the_last_three_seconds() {
        let warm = series(&[[100; 50], [1000; 50]].concat());
        assert!((warm.final_rate() - 1000.0).abs() < 1.0);
        assert!((warm.average() - 550.0).abs() < 1.0);
        let warm_after = warm.warm_after().as_secs_f64();
        assert!((4.8..5.2).contains(&warm_after), "{warm_after}");
    }

    #[test]
    fn a_steady_run_is_warm_at_once() {
        let steady = series(&[500; 40]);
        assert_eq!(steady.warm_after(), Duration::ZERO);
        assert!((steady.final_rate() - 500.0).abs() < 1.0);
        assert_eq!(Series::default().warm_after(), Duration::ZERO);
    }
}
