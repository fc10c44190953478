//! The seam between the world and what it judges.
//!
//! The engine is one implementation; [`crate::reference`] is another, with faults on request, which
//! shows that the judge finds them.

use forebay_engine::Engine;
use forebay_engine::event::{Command, CommandId, Event, SavedMark};
use forebay_engine::format::superblock::Superblock;
use forebay_engine::io::{Io, IoId, IoResult};
use forebay_engine::options::{CacheFacts, OriginOpening};
use forebay_engine::payload::Payload;
use forebay_engine::request::{Reply, Request, RequestId};
use forebay_engine::status::{BlockState, SetStatus, VolumeStatus};
use forebay_engine::units::{OriginBlock, OriginExtent, Time, VolumeSlot};

/// What a host needs of an engine; see [`Engine`] for each method.
#[allow(missing_docs)]
pub trait UnderTest {
    fn handle_request(&mut self, now: Time, request: Request, payload: &mut dyn Payload);
    fn handle_io_complete(
        &mut self,
        now: Time,
        id: IoId,
        result: IoResult,
        payload: &mut dyn Payload,
    );
    fn handle_time(&mut self, now: Time, payload: &mut dyn Payload);
    fn handle_command(&mut self, now: Time, id: CommandId, command: Command);
    fn handle_host_state_saved(&mut self, now: Time, volume: VolumeSlot, mark: SavedMark);
    fn cancel_command(&mut self, id: CommandId);
    fn poll_io(&mut self, payload: &mut dyn Payload) -> Option<Io>;
    fn poll_reply(&mut self) -> Option<Reply>;
    fn poll_event(&mut self) -> Option<Event>;
    fn poll_wakeup(&self) -> Option<Time>;
    fn superblock(&self) -> &Superblock;
    fn status(&self, now: Time) -> Option<SetStatus>;
    fn volume_status(&self, now: Time, volume: VolumeSlot) -> Option<VolumeStatus>;
    /// Begins to hand over to an engine that recovers the cache device that was gone.
    fn begin_hand_over(&mut self, _now: Time) {}
    fn is_ready_to_hand_over(&self) -> bool {
        false
    }
    fn handle_hand_over_failed(&mut self, _now: Time) {}
    fn cancel_hand_over(&mut self, _now: Time, _payload: &mut dyn Payload) {}
    /// Whether a takeover from this engine has begun.
    fn begin_takeover(&mut self, _now: Time) -> bool {
        false
    }
    fn is_ready_for_takeover(&self) -> bool {
        false
    }
    fn cancel_takeover(&mut self, _now: Time, _payload: &mut dyn Payload) {}
    /// An engine beside this one, which reads and waits.
    fn recover_beside(
        &self,
        _now: Time,
        _superblock: Superblock,
        _cache: CacheFacts,
        _origins: &[OriginOpening],
    ) -> Option<Box<dyn UnderTest>> {
        None
    }
    fn take_held_back(&mut self) -> Vec<Request> {
        Vec::new()
    }
    fn take_over(&mut self, _now: Time) {}
    /// How long requests wait for a cache device that is gone.
    fn set_cache_timeout_ms(&mut self, _milliseconds: u64) {}
    /// The client of a request has left.
    fn handle_forget(&mut self, _now: Time, _id: RequestId) {}
    fn reset_counters(&mut self) {}
    /// The successor, and the requests that wait.
    fn replace(
        &mut self,
        _now: Time,
        _superblock: Superblock,
        _cache: CacheFacts,
        _origins: &[OriginOpening],
    ) -> Option<(Box<dyn UnderTest>, Vec<Request>)> {
        None
    }
    /// Which blocks are cached; see [`Engine::map`].
    fn map(&self, _: OriginExtent) -> Vec<(OriginBlock, u64, BlockState)> {
        Vec::new()
    }
    /// Whether what is cached of a block may be about to go; see [`Engine::is_changing`].
    fn is_changing(&self, _: VolumeSlot, _: OriginBlock) -> bool {
        false
    }
    /// What is kept against what it counts; see [`Engine::audit`].
    fn audit(&self) -> Result<(), String> {
        Ok(())
    }
    /// Whether what is said of a block agrees with what else is known of it.
    fn check_explanation(&self, _: Time, _: VolumeSlot, _: OriginBlock) -> Result<(), String> {
        Ok(())
    }
    /// What waits for what, for the report of a stall.
    fn describe_waiting(&self) -> String {
        String::new()
    }
}

/// Starts an engine on a cache device, as [`Engine::recover`] does.
pub type Launch<'a> =
    dyn Fn(Time, Superblock, CacheFacts, &[OriginOpening]) -> Box<dyn UnderTest> + 'a;

/// Launches the engine.
#[must_use]
pub fn launch_engine(
    now: Time,
    superblock: Superblock,
    cache: CacheFacts,
    origins: &[OriginOpening],
) -> Box<dyn UnderTest> {
    Box::new(Engine::recover(now, superblock, cache, origins))
}

impl UnderTest for Engine {
    fn handle_request(&mut self, now: Time, request: Request, payload: &mut dyn Payload) {
        Engine::handle_request(self, now, request, payload);
    }

    fn handle_io_complete(
        &mut self,
        now: Time,
        id: IoId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        Engine::handle_io_complete(self, now, id, result, payload);
    }

    fn handle_time(&mut self, now: Time, payload: &mut dyn Payload) {
        Engine::handle_time(self, now, payload);
    }

    fn handle_command(&mut self, now: Time, id: CommandId, command: Command) {
        Engine::handle_command(self, now, id, command);
    }

    fn handle_host_state_saved(&mut self, now: Time, volume: VolumeSlot, mark: SavedMark) {
        Engine::handle_host_state_saved(self, now, volume, mark);
    }

    fn cancel_command(&mut self, id: CommandId) {
        Engine::cancel_command(self, id);
    }

    fn poll_io(&mut self, payload: &mut dyn Payload) -> Option<Io> {
        Engine::poll_io(self, payload)
    }

    fn poll_reply(&mut self) -> Option<Reply> {
        Engine::poll_reply(self)
    }

    fn poll_event(&mut self) -> Option<Event> {
        Engine::poll_event(self)
    }

    fn poll_wakeup(&self) -> Option<Time> {
        Engine::poll_wakeup(self)
    }

    fn superblock(&self) -> &Superblock {
        Engine::superblock(self)
    }

    fn status(&self, now: Time) -> Option<SetStatus> {
        Some(Engine::status(self, now))
    }

    fn volume_status(&self, now: Time, volume: VolumeSlot) -> Option<VolumeStatus> {
        Engine::volume_status(self, now, volume)
    }

    fn begin_hand_over(&mut self, now: Time) {
        Engine::begin_hand_over(self, now);
    }

    fn is_ready_to_hand_over(&self) -> bool {
        Engine::is_ready_to_hand_over(self)
    }

    fn handle_hand_over_failed(&mut self, now: Time) {
        Engine::handle_hand_over_failed(self, now);
    }

    fn cancel_hand_over(&mut self, now: Time, payload: &mut dyn Payload) {
        Engine::cancel_hand_over(self, now, payload);
    }

    fn begin_takeover(&mut self, now: Time) -> bool {
        Engine::begin_takeover(self, now).is_ok()
    }

    fn is_ready_for_takeover(&self) -> bool {
        Engine::is_ready_for_takeover(self)
    }

    fn cancel_takeover(&mut self, now: Time, payload: &mut dyn Payload) {
        Engine::cancel_takeover(self, now, payload);
    }

    fn recover_beside(
        &self,
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
    ) -> Option<Box<dyn UnderTest>> {
        Some(Box::new(Engine::recover_beside(now, superblock, cache, origins)))
    }

    fn take_held_back(&mut self) -> Vec<Request> {
        Engine::take_held_back(self)
    }

    fn take_over(&mut self, now: Time) {
        Engine::take_over(self, now);
    }

    fn set_cache_timeout_ms(&mut self, milliseconds: u64) {
        Engine::set_cache_timeout_ms(self, milliseconds);
    }

    fn handle_forget(&mut self, now: Time, id: RequestId) {
        Engine::handle_forget(self, now, id);
    }

    fn reset_counters(&mut self) {
        Engine::reset_counters(self);
    }

    fn replace(
        &mut self,
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
    ) -> Option<(Box<dyn UnderTest>, Vec<Request>)> {
        let (requests, inherited) = self.hand_over();
        let successor = Engine::recover_returned(now, superblock, cache, origins, inherited);
        Some((Box::new(successor), requests))
    }

    fn map(&self, extent: OriginExtent) -> Vec<(OriginBlock, u64, BlockState)> {
        Engine::map(self, extent)
    }

    fn is_changing(&self, volume: VolumeSlot, block: OriginBlock) -> bool {
        Engine::is_changing(self, volume, block)
    }

    fn audit(&self) -> Result<(), String> {
        Engine::audit(self)
    }

    fn check_explanation(
        &self,
        now: Time,
        volume: VolumeSlot,
        block: OriginBlock,
    ) -> Result<(), String> {
        crate::explaining::check_explanation(self, now, volume, block)
    }

    fn describe_waiting(&self) -> String {
        Engine::describe_waiting(self)
    }
}
