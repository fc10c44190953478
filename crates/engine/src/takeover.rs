//! A takeover: another engine, in another process, goes on with devices that are in order.
//!
//! There are never two that write. The predecessor holds new requests back, ends those under way,
//! brings writeback and reclaim to rest, flushes the origins where something was written that no
//! flush covered, and writes a checkpoint. From then on it is *silent*: it submits nothing,
//! whatever time it is. The successor reads what a start reads and then waits. Only when the host
//! of the predecessor has given its engine up for good does [`Engine::take_over`] let it write.
//! Until that moment the predecessor can go on by [`Engine::cancel_takeover`]: nothing on the
//! devices has changed since it became silent, so nothing that it knows is outdated.
//!
//! If either dies, the devices are as after a crash of one that was at rest: the checkpoint is
//! durable, and an ordinary start reads it. What was answered is in it, flushed or not.
//!
//! Deliberately absent: what the predecessor knows and the devices do not. Where there is such a
//! thing (a failed flush that later ones must still report, a lost device), it refuses.

use alloc::vec::Vec;

use thiserror::Error;

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, Phase};
use crate::event::Event;
use crate::format::superblock::Superblock;
use crate::options::{CacheFacts, OriginOpening};
use crate::payload::Payload;
use crate::request::Request;
use crate::units::Time;
use crate::volume::{HostMarkState, Service, Volume};
use crate::wake::{Ended, Waiter};

/// Why an engine cannot be taken over from now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TakeoverRefusal {
    /// It is being recovered, refused its device, or stops.
    #[error("it does not serve yet, or serves no more")]
    NotServing,
    /// The cache device is gone, failed, or fails too often.
    #[error("its cache device is not in order")]
    CacheFailed,
    /// A command may take long, and its client waits for it.
    #[error("a command is under way; wait for its end or cancel it")]
    Command,
    /// A flush of an origin failed, and later ones have to say so.
    #[error("a flush of an origin failed, and the clients of its volume have to be told")]
    LostWrites,
    /// Another one is under way.
    #[error("another takeover is under way")]
    UnderWay,
    /// A volume is held back for a reason that a start would not know.
    #[error("a volume is not served though its origin is there")]
    Quiesced,
}

/// How far an engine is that another one takes over from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TakeoverStage {
    /// Nobody takes over.
    #[default]
    None,
    /// Requests are held back; what is under way ends.
    Ending,
    /// The last checkpoint is being written.
    Checkpointing,
    /// It is durable. Nothing is submitted any more.
    Silent,
}

impl TakeoverStage {
    pub(crate) fn is_begun(self) -> bool {
        self != TakeoverStage::None
    }

    pub(crate) fn is_checkpointing(self) -> bool {
        self == TakeoverStage::Checkpointing
    }

    pub(crate) fn is_silent(self) -> bool {
        self == TakeoverStage::Silent
    }
}

/// Whom an engine that recovers has to wait for before it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Predecessor {
    /// Nobody: it is gone, or there was none.
    #[default]
    Gone,
    /// It may go on any time.
    Alive,
    /// The same, and the host was told that everything is read.
    AliveAndTold,
}

impl Engine {
    /// Why no takeover from this engine can begin now, if it cannot.
    #[must_use]
    pub fn takeover_refusal(&self) -> Option<TakeoverRefusal> {
        if !matches!(self.phase, Phase::Serving) || self.stopping.is_some() {
            return Some(TakeoverRefusal::NotServing);
        }
        if self.is_cache_failed() || self.is_degraded() {
            return Some(TakeoverRefusal::CacheFailed);
        }
        let has_command = |volume: &Volume| volume.command.is_some();
        let is_held = |volume: &Volume| volume.service != Service::Cached && volume.facts.is_some();
        let any = |is_it: &dyn Fn(&Volume) -> bool| self.volumes.iter().flatten().any(is_it);
        if any(&has_command) || !self.set_commands.is_empty() {
            return Some(TakeoverRefusal::Command);
        }
        if any(&|volume| volume.has_lost_writes) {
            return Some(TakeoverRefusal::LostWrites);
        }
        any(&is_held).then_some(TakeoverRefusal::Quiesced)
    }

    /// Holds all new requests back and ends what is under way, until
    /// [`Engine::is_ready_for_takeover`]. The host sets the limit: while an origin hangs, this does
    /// not end.
    ///
    /// # Errors
    /// If it cannot begin. Nothing has changed then.
    pub fn begin_takeover(&mut self, now: Time) -> Result<(), TakeoverRefusal> {
        self.now = now;
        let under_way = self.takeover.is_begun().then_some(TakeoverRefusal::UnderWay);
        match under_way.or_else(|| self.takeover_refusal()) {
            Some(refusal) => Err(refusal),
            None => {
                self.takeover = TakeoverStage::Ending;
                Ok(())
            }
        }
    }

    pub(crate) fn advance_takeover(&mut self) {
        if self.takeover != TakeoverStage::Ending {
            return;
        }
        let mut volumes = self.volumes.iter().flatten();
        let any_asked = volumes.any(|volume| volume.host_mark == HostMarkState::Asked);
        let is_busy = self.has_work_under_way()
            || !self.superblock_writer.is_idle()
            || !self.questions.is_empty()
            // What the state file is about to say, it says for this engine.
            || any_asked;
        if is_busy || self.takeover_refusal().is_some() {
            return;
        }
        // What went to an origin and failed there has to be known to the clients of this engine: of
        // its successor they would never hear of it.
        if !self.needs_origin_flushes() {
            self.takeover = TakeoverStage::Checkpointing;
            self.wait_for_checkpoint(Waiter::Takeover);
        }
    }

    pub(crate) fn on_takeover_durable(&mut self, ended: Ended) {
        // Without one it stays as it is until the host cancels: the device has failed.
        if ended == Ended::Well && self.takeover == TakeoverStage::Checkpointing {
            self.takeover = TakeoverStage::Silent;
        }
    }

    /// Whether another engine may read the devices now: everything answered is durable or at least
    /// on them, nothing is at a device, and nothing will be until [`Engine::cancel_takeover`].
    #[must_use]
    pub fn is_ready_for_takeover(&self) -> bool {
        self.takeover.is_silent()
            && self.ios.len() == 0
            && self.io_queue.is_empty()
            && self.wakes.is_empty()
            && self.replies.is_empty()
            && self.events.is_empty()
            && self.takeover_refusal().is_none()
    }

    /// Goes on as if nobody had wanted to take over: requests that were held back begin. Nothing
    /// happens if no takeover was begun.
    pub fn cancel_takeover(&mut self, now: Time, payload: &mut dyn Payload) {
        self.now = now;
        if !self.takeover.is_begun() {
            return;
        }
        self.takeover = TakeoverStage::None;
        // Its checkpoint may still be under way, and says nothing of what comes after this. Another
        // takeover that begins before that is durable has to wait for one of its own.
        self.forget_checkpoint_waiter(Waiter::Takeover);
        for slot in self.volume_slots() {
            if !self.volume(slot).is_gated {
                self.release_gated(slot, payload);
            }
        }
    }

    /// The requests that are held back, in order, for a host that hands them to the successor
    /// itself. To be called when this engine has been given up.
    pub fn take_held_back(&mut self) -> Vec<Request> {
        assert!(self.is_ready_for_takeover());
        let slots = self.volume_slots().into_iter();
        slots.flat_map(|slot| core::mem::take(&mut self.volume_mut(slot).gated)).collect()
    }

    /// As [`Engine::recover`], beside a predecessor that is silent and may go on any time: reads
    /// everything, says [`Event::ReadyToTakeOver`], and writes nothing before
    /// [`Engine::take_over`]. Dropped before that, it leaves no trace.
    #[must_use]
    pub fn recover_beside(
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
    ) -> Engine {
        let mut engine = Engine::recover(now, superblock, cache, origins);
        engine.recovery().predecessor = Predecessor::Alive;
        engine
    }

    /// The predecessor is silent for good: from now on this engine writes. To be called after
    /// [`Event::ReadyToTakeOver`].
    pub fn take_over(&mut self, now: Time) {
        self.now = now;
        assert!(self.is_recovering());
        assert!(self.recovery().predecessor == Predecessor::AliveAndTold);
        self.recovery().predecessor = Predecessor::Gone;
        self.go_on();
    }

    /// Whether recovery, which has read everything, must not go on to its first write yet. A second
    /// writer would raise the recovery epoch, and with that void whatever the predecessor appends
    /// if it goes on after all.
    pub(crate) fn waits_for_predecessor(&mut self) -> bool {
        match self.recovery().predecessor {
            Predecessor::Gone => return false,
            Predecessor::Alive => {
                self.recovery().predecessor = Predecessor::AliveAndTold;
                self.events.push_back(Event::ReadyToTakeOver);
            }
            Predecessor::AliveAndTold => {}
        }
        !has_defect(Defect::SuccessorDoesNotWait)
    }
}
