//! A takeover, as the two shards see it; see [`crate::takeover`].
//!
//! The predecessor: requests are held back by the engine, new clients by the queues of the
//! listeners, until the engine is silent. Then descriptors go out, and either the commit comes or
//! the shard goes on. Both are decided here, in the loop, so that they exclude each other: the
//! commit tells the successor and ends the process within one step, and does so only as long as the
//! engine is silent and the limit has not passed. If the successor cannot be told, nothing has
//! happened, and the shard goes on.
//!
//! The successor: the engine reads and writes nothing, the state file is not saved, no client is
//! accepted and no ublk device touched until [`Message::TakeOver`].

use std::fs::File;
use std::time::Duration;

use forebay_engine::units::Time;

use super::handle::{Answer, Message, NotServing, ShardGone, ShardHandle, wait};
use super::run::{Lifecycle, Running};
use super::served_set::SetPhase;
use crate::device::{DeviceId, DeviceTable, OpenedDevice};
use crate::frontend::FrontEnds;
use crate::listen::Listener;
use crate::takeover::{
    HandedDevice, HandedDevices, HandedListeners, HandedOver, TAKEOVER_MAX, TakeoverError,
    TakeoverTicket,
};

/// Tells the successor that it is its turn and ends the process. Returns if the successor cannot be
/// told.
pub(crate) type Commit = Box<dyn FnOnce() + Send>;

/// A shard that is being taken over from.
pub(super) struct Leaving {
    ticket: TakeoverTicket,
    began: Time,
    deadline: Time,
    /// Who waits for the descriptors.
    answer: Option<Answer<HandedOver, TakeoverError>>,
}

/// A shard that takes over.
pub(super) struct Arriving {
    /// Everything is read.
    is_read: bool,
    answer: Option<Answer<(), NotServing>>,
    /// Sockets of the predecessor that nobody asked for: closed when it is gone.
    unclaimed: Vec<Listener>,
}

impl Arriving {
    pub(super) fn new(unclaimed: Vec<Listener>) -> Arriving {
        Arriving { is_read: false, answer: None, unclaimed }
    }
}

impl ShardHandle {
    /// Holds all requests back and ends what is under way, to hand over to another process. Answers
    /// when nothing is under way any more; [`ShardHandle::commit_takeover`] or
    /// [`ShardHandle::cancel_takeover`] must follow, or the shard goes on after
    /// [`TAKEOVER_MAX`].
    ///
    /// # Errors
    /// If it cannot hand over now; it goes on.
    pub fn begin_takeover_wait(&self) -> Result<HandedOver, TakeoverError> {
        wait(|answer| self.send(Message::BeginTakeover(Answer::new(answer))))
    }

    /// Goes on as if nobody had wanted to take over.
    pub fn cancel_takeover(&self, ticket: TakeoverTicket) {
        self.send(Message::CancelTakeover(ticket));
    }

    /// Gives everything up: `commit` tells the successor that it is its turn and ends the process.
    /// If it returns, or is not called since it is too late, the shard goes on.
    pub fn commit_takeover(&self, ticket: TakeoverTicket, commit: impl FnOnce() + Send + 'static) {
        self.send(Message::CommitTakeover(ticket, Box::new(commit)));
    }

    /// Waits until a shard that takes over has read everything.
    ///
    /// # Errors
    /// If the cache device cannot be used, or the shard has ended.
    pub fn read_wait(&self) -> Result<(), NotServing> {
        wait(|answer| self.send(Message::WhenRead(Answer::new(answer))))
    }

    /// The predecessor has given everything up: the shard serves.
    ///
    /// # Errors
    /// If the shard has ended.
    pub fn take_over_wait(&self) -> Result<(), ShardGone> {
        wait(|answer| self.send(Message::TakeOver(Answer::new(answer))))
    }
}

impl Running {
    pub(super) fn begin_takeover(&mut self, answer: Answer<HandedOver, TakeoverError>) {
        if let Err(error) = self.try_begin_takeover() {
            answer.send(Err(error));
            return;
        }
        let limit = u64::try_from(TAKEOVER_MAX.as_nanos()).expect("seconds");
        let deadline = Time(self.now.0.saturating_add(limit));
        self.front.nbd.hold_clients_back(&mut self.ring);
        self.front.vhost_user.hold_back(&mut self.ring);
        self.takeovers += 1;
        let ticket = TakeoverTicket(self.takeovers);
        let (began, answer) = (self.now, Some(answer));
        self.leaving = Some(Leaving { ticket, began, deadline, answer });
        tracing::info!("another process takes over: requests are held back");
    }

    fn try_begin_takeover(&mut self) -> Result<(), TakeoverError> {
        if self.leaving.is_some() || self.arriving.is_some() {
            return Err(TakeoverError::Another);
        }
        if !matches!(self.lifecycle, Lifecycle::Serving) || self.failure.is_some() {
            return Err(TakeoverError::Stopping);
        }
        if !self.front.ublk.is_ready() {
            return Err(TakeoverError::Ublk);
        }
        let set = self.set.as_mut().ok_or(TakeoverError::NoCacheSet)?;
        if !set.is_saved() {
            return Err(TakeoverError::StateFile);
        }
        Ok(set.engine.begin_takeover(self.now)?)
    }

    /// Goes on with a takeover from this shard, if it can. Returns whether it did: the engine has
    /// something to do.
    pub(super) fn advance_takeover(&mut self) -> bool {
        let Some(leaving) = &self.leaving else { return false };
        if leaving.deadline <= self.now {
            self.end_takeover(TakeoverError::Late);
            return true;
        }
        let set = self.set.as_ref().expect("it has begun");
        // Who waits for the state file is told of it when it is late.
        let is_quiet = set.engine.is_ready_for_takeover() && set.is_saved();
        if leaving.answer.is_none() || !is_quiet || !self.devices.is_idle() {
            return false;
        }
        let held_for = Duration::from_nanos(self.now.nanoseconds_since(leaving.began));
        match self.handed_over(leaving.ticket, held_for) {
            Err(error) => {
                self.end_takeover(error);
                true
            }
            Ok(handed) => {
                let answer = self.leaving.as_mut().and_then(|leaving| leaving.answer.take());
                answer.expect("it is waited for").send(Ok(handed));
                false
            }
        }
    }

    fn handed_over(
        &mut self,
        ticket: TakeoverTicket,
        held_for: Duration,
    ) -> Result<HandedOver, TakeoverError> {
        let set = self.set.as_ref().expect("it has begun");
        let cache = set.cache_device().expect("the engine has not lost it");
        let cache = handed(&self.devices, cache)?;
        let mut origins = Vec::new();
        for (slot, _) in set.engine.superblock().slots() {
            if let Some(id) = set.origin(slot) {
                origins.push((slot, handed(&self.devices, id)?));
            }
        }
        let FrontEnds { nbd, vhost_user, .. } = &mut self.front;
        let nbd = nbd.listeners_mut().iter().map(Listener::duplicate);
        let vhost_user = vhost_user.listeners_mut().map(|listener| listener.duplicate());
        let listeners = HandedListeners {
            nbd: nbd.collect::<Result<_, _>>()?,
            vhost_user: vhost_user.collect::<Result<_, _>>()?,
        };
        let devices = HandedDevices { cache, origins };
        Ok(HandedOver { devices, listeners, ticket, held_for })
    }

    /// When a takeover from this shard is too late.
    pub(super) fn takeover_deadline(&self) -> Option<Time> {
        self.leaving.as_ref().map(|leaving| leaving.deadline)
    }

    /// The successor is ready. The engine is silent, so no write is under way, and as long as this
    /// process does not go on, it will make none; whether it goes on is decided here and nowhere
    /// else.
    pub(super) fn commit_takeover(&mut self, ticket: TakeoverTicket, commit: Commit) {
        let Some(leaving) = self.leaving.as_ref().filter(|leaving| leaving.ticket == ticket) else {
            return;
        };
        let set = self.set.as_ref().expect("it has begun");
        if leaving.answer.is_none()
            && leaving.deadline > self.now
            && set.engine.is_ready_for_takeover()
            && self.devices.is_idle()
        {
            commit();
        }
        self.cancel_takeover();
    }

    /// The successor has failed.
    pub(super) fn cancel_takeover_of(&mut self, ticket: TakeoverTicket) {
        if self.leaving.as_ref().is_some_and(|leaving| leaving.ticket == ticket) {
            self.cancel_takeover();
        }
    }

    /// Nobody is to take over, or this shard is to stop.
    pub(super) fn cancel_takeover(&mut self) {
        if self.leaving.is_some() {
            self.end_takeover(TakeoverError::Stopping);
        }
    }

    /// Goes on as if nothing had happened.
    fn end_takeover(&mut self, error: TakeoverError) {
        let Some(leaving) = self.leaving.take() else { return };
        let held_ms = self.now.nanoseconds_since(leaving.began) / 1_000_000;
        tracing::warn!(held_ms, "nobody has taken over: requests go on");
        let set = self.set.as_mut().expect("it has begun");
        set.engine.cancel_takeover(self.now, &mut self.pool);
        if matches!(self.lifecycle, Lifecycle::Serving) {
            self.front.nbd.start(&mut self.ring);
            self.front.vhost_user.let_in(&mut self.ring);
        }
        if let Some(answer) = leaving.answer {
            answer.send(Err(error));
        }
    }

    /// Somebody wants to know when everything is read.
    pub(super) fn answer_when_read(&mut self, answer: Answer<(), NotServing>) {
        let phase = self.set.as_ref().map(|set| &set.phase);
        match (&mut self.arriving, phase) {
            (_, Some(SetPhase::Failed(error))) => answer.send(Err((*error).into())),
            (Some(arriving), _) if !arriving.is_read => arriving.answer = Some(answer),
            _ => answer.send(Ok(())),
        }
    }

    /// The engine has read everything.
    pub(super) fn handle_read(&mut self) {
        let arriving = self.arriving.as_mut().expect("the engine waits for a predecessor");
        arriving.is_read = true;
        if let Some(answer) = arriving.answer.take() {
            answer.send(Ok(()));
        }
    }

    /// The predecessor has ended. From here on this process writes.
    pub(super) fn take_over(&mut self, answer: Answer<(), ShardGone>) {
        let Some(arriving) = self.arriving.take() else { return };
        let set = self.set.as_mut().expect("only sets are taken over");
        set.engine.take_over(self.now);
        set.end_reading();
        let FrontEnds { nbd, vhost_user, .. } = &mut self.front;
        nbd.listeners_mut().iter_mut().for_each(Listener::own_path);
        vhost_user.listeners_mut().for_each(Listener::own_path);
        nbd.start(&mut self.ring);
        for mut listener in arriving.unclaimed {
            listener.own_path();
            tracing::info!(address = %listener.address(), "nobody listens there any more");
        }
        answer.send(Ok(()));
    }
}

fn handed(devices: &DeviceTable, id: DeviceId) -> Result<HandedDevice, TakeoverError> {
    let device: &OpenedDevice = devices.opened(id);
    let file: File = device.file().try_clone()?;
    Ok(HandedDevice { descriptor: file.into(), spec: device.spec().clone() })
}
