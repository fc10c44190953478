//! Progress of long work: a bar on a terminal, a line now and then elsewhere. Always on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::{output, size};

/// Between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// What the numbers of a progress mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Bytes,
    Segments,
    Seconds,
}

/// One piece of long work.
pub(crate) struct Progress {
    label: String,
    unit: Unit,
    total: u64,
    started: Instant,
    next_line: Instant,
    /// A stage of unknown length was told last.
    is_in_stage: bool,
    /// Said behind all else, of more than this piece.
    outlook: String,
    bar: Option<ProgressBar>,
    /// Between two lines where there is no terminal.
    line_interval: Duration,
}

/// Pieces of long work that go on beside each other.
pub(crate) struct Board {
    bars: MultiProgress,
    /// How many there may be at once.
    count: u32,
}

impl Board {
    /// For so many at once.
    pub(crate) fn new(count: u32) -> Board {
        Board { bars: MultiProgress::new(), count }
    }

    /// One of them begins: as [`Progress::start`]. Where there is no terminal, all together print
    /// as many lines as one alone.
    pub(crate) fn start(&self, label: &str, unit: Unit, total: u64) -> Progress {
        let mut progress = Progress::start(label, unit, total);
        progress.bar = progress.bar.map(|bar| self.bars.add(bar));
        progress.line_interval *= self.count;
        progress
    }

    /// Prints something that stays.
    pub(crate) fn say(&self, text: &str) {
        self.bars.suspend(|| output::say(text));
    }
}

impl Progress {
    /// A `total` of 0 is not known.
    pub(crate) fn start(label: &str, unit: Unit, total: u64) -> Progress {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let counts = match unit {
                Unit::Bytes => "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
                Unit::Segments => "{pos}/{len} segments",
                Unit::Seconds => "{pos}/{len} s",
            };
            let template = match total {
                0 => "{msg}{prefix}".to_owned(),
                _ => format!("{{msg}} [{{bar:30}}] {counts} eta {{eta}}{{prefix}}"),
            };
            let style = ProgressStyle::with_template(&template).expect("a valid template");
            let bar = ProgressBar::new(total).with_style(style.progress_chars("=> "));
            bar.with_message(label.to_owned())
        });
        Progress {
            label: label.to_owned(),
            unit,
            total,
            started: now,
            next_line: now + LINE_INTERVAL,
            is_in_stage: false,
            outlook: String::new(),
            bar,
            line_interval: LINE_INTERVAL,
        }
    }

    /// What the caller knows of more work than this piece, from now on.
    pub(crate) fn set_outlook(&mut self, outlook: &str) {
        self.outlook = format!("; {outlook}");
        if let Some(bar) = &self.bar {
            bar.set_prefix(self.outlook.clone());
        }
    }

    /// How much is done by now.
    pub(crate) fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            if std::mem::take(&mut self.is_in_stage) {
                bar.set_message(self.label.clone());
            }
            bar.set_position(done);
            return;
        }
        self.print(|progress, now| progress.line(done, now));
    }

    /// The work is in a stage that lasts nobody knows how long, for so many seconds by now.
    pub(crate) fn set_stage(&mut self, stage: &str, seconds: u64) {
        if let Some(bar) = &self.bar {
            self.is_in_stage = true;
            bar.set_message(format!("{}, {stage}: {seconds} s", self.label));
            return;
        }
        self.print(|_, _| format!("{stage}, {seconds} s"));
    }

    fn print(&mut self, text: impl FnOnce(&Progress, Instant) -> String) {
        let now = Instant::now();
        if now < self.next_line {
            return;
        }
        self.next_line = now + self.line_interval;
        output::say(&format!("{}: {}{}", self.label, text(self, now), self.outlook));
    }

    fn line(&self, done: u64, now: Instant) -> String {
        let (done_text, unit) = match self.unit {
            Unit::Bytes => (size::text(done), ""),
            Unit::Segments => (done.to_string(), " segments"),
            Unit::Seconds => (done.to_string(), " s"),
        };
        let total = match (self.total, self.unit) {
            (0, _) => return done_text + unit,
            (total, Unit::Bytes) => size::text(total),
            (total, Unit::Segments | Unit::Seconds) => total.to_string(),
        };
        let seconds = now.duration_since(self.started).as_secs_f64();
        let left = match (done, self.unit) {
            (0, _) | (_, Unit::Seconds) => String::new(),
            (done, Unit::Bytes | Unit::Segments) => {
                let left = seconds * self.total.saturating_sub(done) as f64 / done as f64;
                format!(", {left:.0} s left")
            }
        };
        format!("{done_text} of {total}{unit}{left}")
    }

    /// The work is done, or given up.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
