//! The stop of a set: requests end, what is home is flushed, a last checkpoint and the fingerprints
//! of the origins are made durable (promise 5).

use crate::engine::{Engine, Phase};
use crate::event::{CommandError, CommandId, Event};
use crate::payload::Payload;
use crate::volume::HostMarkState;
use crate::wake::Waiter;

/// How far a stop is, once no request is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum StopStage {
    #[default]
    Ending,
    /// The last checkpoint is being written.
    Checkpointing,
    /// All is durable; the origins' fingerprints are taken.
    Durable,
    /// The fingerprints are being written.
    Saving,
    /// They are durable; operations of no consequence may be at the devices.
    Saved,
}

impl Engine {
    /// A stop does not wait for dirty data to go home: what waits for that is given up.
    pub(super) fn start_stop(&mut self, id: CommandId) {
        self.stopping = Some(id);
        let now = self.now;
        for slot in self.volume_slots() {
            self.volume_mut(slot).ride.hurry(now);
            let Some(command) = self.volume(slot).command else { continue };
            if command.is_leaving() {
                self.abandon_command(slot, command.id, CommandError::Cancelled);
            }
        }
    }

    /// Stop: no new requests; those under way end; what is home is flushed; a last checkpoint.
    pub(super) fn advance_stop(&mut self, payload: &mut dyn Payload) {
        let Some(id) = self.stopping else { return };
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        for slot in self.volume_slots() {
            self.release_gated(slot, payload);
        }
        if self.is_cache_failed() {
            if self.operations.len() == 0 {
                self.phase = Phase::Stopped;
                self.end_command(id, Err(CommandError::CacheFailed));
            }
            return;
        }
        if self.operations.len() > 0 && self.is_full_for_good() {
            // Promise 5: a stop always finishes. Who waits for room would wait for ever.
            self.fail_room_waiters();
        }
        let is_busy = self.has_work_under_way()
            || self.stop_stage == StopStage::Ending && !self.superblock_writer.is_idle()
            || self.volumes.iter().flatten().any(|volume| volume.command.is_some());
        if is_busy {
            return;
        }
        if self.needs_origin_flushes() {
            return;
        }
        match self.stop_stage {
            StopStage::Ending => {
                self.stop_stage = StopStage::Checkpointing;
                self.wait_for_checkpoint(Waiter::Stop);
            }
            StopStage::Checkpointing => {}
            StopStage::Durable => {
                if self.advance_heads(payload) {
                    self.store_fingerprints();
                    self.stop_stage = StopStage::Saving;
                    self.write_superblock(Waiter::Stop);
                    self.go_on();
                }
            }
            // The host closes the devices next: nothing may be at them any more.
            StopStage::Saved if self.ios.len() == 0 => self.end_stop(id),
            StopStage::Saving | StopStage::Saved => {}
        }
    }

    /// Whether requests may still need log space: until a stop, or a takeover that holds the others
    /// back, has ended the last of them.
    pub(crate) fn has_clients(&self) -> bool {
        (self.stopping.is_none() && !self.takeover.is_begun())
            || self.operations.len() > 0
            || self.volumes.iter().flatten().any(|volume| volume.command.is_some())
    }

    pub(crate) fn on_stop_durable(&mut self) {
        self.stop_stage = match self.stop_stage {
            StopStage::Ending | StopStage::Checkpointing => StopStage::Durable,
            StopStage::Durable | StopStage::Saving | StopStage::Saved => StopStage::Saved,
        };
    }

    fn end_stop(&mut self, id: CommandId) {
        for slot in self.volume_slots() {
            let volume = self.volume_mut(slot);
            if volume.dirty_blocks == 0 && volume.host_mark == HostMarkState::Set {
                volume.host_mark = HostMarkState::Clear;
                self.events.push_back(Event::DirtyEnded { volume: slot });
            }
        }
        self.phase = Phase::Stopped;
        let has_lost_writes = self.volumes.iter().flatten().any(|volume| volume.has_lost_writes);
        let result = if has_lost_writes { Err(CommandError::OriginFailed) } else { Ok(None) };
        self.end_command(id, result);
    }

    /// Whether requests, or what the engine does by itself, are on their way. Commands and the
    /// superblock are not looked at.
    pub(crate) fn has_work_under_way(&self) -> bool {
        self.operations.len() > 0
            || self.misses.len() > 0
            || !self.writeback.is_idle()
            || !self.reclaim.is_idle()
    }

    /// Whether an origin has to be flushed before the end. Asks for all flushes that are needed.
    pub(crate) fn needs_origin_flushes(&mut self) -> bool {
        let mut is_any_needed = false;
        for slot in self.volume_slots() {
            is_any_needed |= self.needs_origin_flush(slot);
        }
        is_any_needed
    }
}
