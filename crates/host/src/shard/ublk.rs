//! Block devices among the shard's front ends: when they begin, when they end.
//!
//! They begin when requests can be served, and whoever waits for the shard waits for them. When the
//! shard stops they end first: what uses a device may send requests until it is removed, or is left
//! to the kernel, and those must not meet an engine that refuses them. Those that came before from
//! a device that is left may be ones that never end by themselves, such as writes that wait for
//! room while the origin is away: the engine's stop ends them, and the next server does them. A
//! device that is just being made holds up nothing: nobody uses it yet, and what the kernel reads
//! of it before it can be used fails.

use forebay_engine::units::Time;

use super::handle::{AdminCommand, Answer, CommandDone, NotServing, ShardCommand};
use super::run::{Lifecycle, Running, STOP_NS_MAX};
use crate::frontend::ublk::UblkReport;

impl Running {
    /// A thread tells how far a device is.
    pub(super) fn handle_ublk(&mut self, report: UblkReport) {
        let (front, mut context) = self.front();
        if let Err(error) = front.ublk.handle_report(&mut context, report) {
            tracing::error!("{error}");
            self.failure.get_or_insert(error.into());
            // What was served until now ends as it would at the operator's wish.
            self.handle.command(AdminCommand::Stop, |_| {});
        } else if self.front.ublk.is_ready() && self.failure.is_none() {
            for answer in self.ready_answers.drain(..) {
                answer.send(Ok(()));
            }
        }
        self.answer_sizes();
    }

    /// Tells somebody that all front ends are ready, as soon as they are.
    pub(super) fn answer_when_ready(&mut self, answer: Answer<(), NotServing>) {
        if self.front.ublk.is_ready() && self.failure.is_none() {
            answer.send(Ok(()));
        } else {
            self.ready_answers.push(answer);
        }
    }

    /// Begins the stop that waits for devices to end, if they have. Returns whether it did: the
    /// engine has something to do.
    pub(super) fn begin_pending_stop(&mut self) -> bool {
        let Some((id, answer)) = self.pending_stop.take_if(|_| self.front.ublk.may_stop()) else {
            return false;
        };
        let deadline = Time(self.now.0.saturating_add(STOP_NS_MAX));
        self.lifecycle = Lifecycle::Stopping { deadline };
        if self.set.is_some() {
            self.start_command(id, ShardCommand::Plain(AdminCommand::Stop), answer);
        } else {
            // A shard of bare devices has nothing else to finish.
            answer.send(Ok(CommandDone::default()));
        }
        true
    }
}
