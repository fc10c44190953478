//! Progress of long work: a bar on a terminal, a line now and then elsewhere. Always on stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::size;

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
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(crate) fn start(label: &str, unit: Unit, total: u64) -> Progress {
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let counts = match unit {
                Unit::Bytes => "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
                Unit::Segments => "{pos}/{len} segments",
                Unit::Seconds => "{pos}/{len} s",
            };
            let template = format!("{{msg}} [{{bar:30}}] {counts} eta {{eta}}");
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
            bar,
        }
    }

    /// How much is done by now.
    pub(crate) fn set(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        let now = Instant::now();
        if now < self.next_line {
            return;
        }
        self.next_line = now + LINE_INTERVAL;
        eprintln!("{}: {}", self.label, self.line(done, now));
    }

    fn line(&self, done: u64, now: Instant) -> String {
        let seconds = now.duration_since(self.started).as_secs_f64();
        let left = match done {
            0 => String::new(),
            done => {
                let left = seconds * self.total.saturating_sub(done) as f64 / done as f64;
                format!(", {left:.0} s left")
            }
        };
        match self.unit {
            Unit::Bytes => {
                format!("{} of {}{left}", size::text(done), size::text(self.total))
            }
            Unit::Segments => format!("{done} of {} segments{left}", self.total),
            Unit::Seconds => format!("{done} of {} s", self.total),
        }
    }

    /// The work is done, or given up.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
