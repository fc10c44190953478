//! The state of a world that does not go on: every request, operation and command, and what the
//! engine says about what waits for what.

use std::fmt::Write;

use crate::trace::{DeviceName, Span, milliseconds};
use crate::world::World;

/// Lines of the engine's own account that go into a report. It names each segment in use, and the
/// largest simulated device has fewer; the rest is operations and units.
const ENGINE_LINES_MAX: usize = 400;

/// A device operation under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IoUnderWay {
    pub(crate) device: DeviceName,
    pub(crate) what: &'static str,
    pub(crate) span: Span,
    pub(crate) since: u64,
}

/// How long something has taken, for people.
pub(crate) fn age(now: u64, since: u64) -> String {
    let time = milliseconds(since);
    format!("since {} (for {})", time.trim(), milliseconds(now - since).trim())
}

impl World<'_> {
    /// Who waits, since when in virtual time, and for what.
    pub(crate) fn describe_waiting(&self) -> String {
        let requests = self.clients.describe_all(self.now);
        let commands = self.administrator.describe_all(self.now);
        let mut text = format!(
            "step {} at {}: {} requests, {} commands and {} operations are under way",
            self.stats.steps,
            milliseconds(self.now).trim(),
            requests.len(),
            commands.len(),
            self.ios.len()
        );
        let operations = self.ios.iter().map(|(id, io)| {
            let IoUnderWay { device, what, span, since } = io;
            format!("operation {id}: {what} {device} {span}, {}", age(self.now, *since))
        });
        for line in requests.into_iter().chain(commands).chain(operations) {
            let _ = write!(text, "\n  {line}");
        }
        let Some(engine) = &self.engine else { return text };
        if let Some(status) = engine.status(self.time()) {
            let _ = write!(text, "\n  engine: {status:?}");
        }
        let account = engine.describe_waiting();
        for line in account.lines().take(ENGINE_LINES_MAX) {
            let _ = write!(text, "\n  engine: {line}");
        }
        let left = account.lines().count().saturating_sub(ENGINE_LINES_MAX);
        if left > 0 {
            let _ = write!(text, "\n  engine: and {left} lines more");
        }
        text
    }
}
