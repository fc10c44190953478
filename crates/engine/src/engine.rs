//! The engine.

use alloc::vec::Vec;

use crate::event::{Command, CommandId, Event};
use crate::format::superblock::Superblock;
use crate::io::{Io, IoId, IoResult};
use crate::options::{CacheFacts, OriginOpening};
use crate::payload::Payload;
use crate::request::{Reply, Request};
use crate::status::{BlockState, SetStatus, VolumeStatus};
use crate::units::{OriginBlock, OriginExtent, Time, VolumeSlot};

/// A cache set in service.
pub struct Engine {
    superblock: Superblock,
}

impl Engine {
    /// Takes over a cache device. Recovery runs through the same polls as everything else and ends in
    /// [`Event::Serving`] or [`Event::RecoveryFailed`]; requests may be handed in before that and wait.
    #[must_use]
    pub fn recover(
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
    ) -> Engine {
        let _ = (now, cache, origins);
        Engine { superblock }
    }

    /// A client request arrived.
    pub fn handle_request(&mut self, now: Time, request: Request, payload: &mut dyn Payload) {
        let _ = (now, request, payload);
    }

    /// A device operation ended.
    pub fn handle_io_complete(
        &mut self,
        now: Time,
        id: IoId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let _ = (now, id, result, payload);
    }

    /// Time passed; to be called when [`Engine::poll_wakeup`] is due.
    pub fn handle_time(&mut self, now: Time, payload: &mut dyn Payload) {
        let _ = (now, payload);
    }

    /// The operator asks for something.
    pub fn handle_command(&mut self, now: Time, id: CommandId, command: Command) {
        let _ = (now, id, command);
    }

    /// The host state file says durably what [`Event::DirtyBegins`] or [`Event::CacheFailed`] asked for.
    pub fn handle_host_state_saved(&mut self, now: Time, volume: VolumeSlot) {
        let _ = (now, volume);
    }

    /// Gives a command up. It ends with `Cancelled`, unless it ended before.
    pub fn cancel_command(&mut self, id: CommandId) {
        let _ = id;
    }

    /// Sets all counters to zero.
    pub fn reset_counters(&mut self) {}

    /// The next device operation to start.
    pub fn poll_io(&mut self, payload: &mut dyn Payload) -> Option<Io> {
        let _ = payload;
        None
    }

    /// The next reply to send.
    pub fn poll_reply(&mut self) -> Option<Reply> {
        None
    }

    /// The next event for the host.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// When [`Engine::handle_time`] is due, if nothing else happens before.
    #[must_use]
    pub fn poll_wakeup(&self) -> Option<Time> {
        None
    }

    /// The superblock in force.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// State of the set.
    #[must_use]
    pub fn status(&self, now: Time) -> Option<SetStatus> {
        let _ = now;
        None
    }

    /// State of a volume.
    #[must_use]
    pub fn volume_status(&self, now: Time, volume: VolumeSlot) -> Option<VolumeStatus> {
        let _ = (now, volume);
        None
    }

    /// Which blocks of an extent are cached and dirty: runs in order that cover it.
    #[must_use]
    pub fn map(&self, extent: OriginExtent) -> Vec<(OriginBlock, u64, BlockState)> {
        let _ = extent;
        Vec::new()
    }
}
