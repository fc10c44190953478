//! Devices that fail. This file: the cache device fails for good, who goes on without it, and who
//! cannot. For its origins see `ride`.

pub(crate) mod back_off;
pub(crate) mod degraded;
pub(crate) mod hand_over;
pub(crate) mod hung;
pub(crate) mod ride;
pub(crate) mod waiting;

use alloc::vec::Vec;

use crate::command::VolumeCommand;
use crate::engine::Engine;
use crate::event::CommandError;
use crate::event::Event;
use crate::log::WRITE_FAILURES_MAX;
use crate::payload::Payload;
pub(crate) use crate::status::CacheFailure;
use crate::status::CacheHealth;
use crate::volume::Service;
use crate::wake::Ended;

impl Engine {
    /// A write of a record, checkpoint or superblock failed. Too many in a row are final.
    pub(crate) fn count_write_failure(&mut self) {
        self.log.write_failures += 1;
        if self.log.write_failures >= WRITE_FAILURES_MAX {
            self.fail_cache(CacheFailure::Writes);
        }
    }

    pub(crate) fn cache_health(&self) -> CacheHealth {
        match (self.cache_failed, self.degraded_by()) {
            (Some(failure), _) => CacheHealth::Failed(failure),
            (None, Some(errors)) => CacheHealth::Degraded(errors),
            (None, None) => CacheHealth::Good,
        }
    }

    /// Gives the cache device up. A volume without dirty data is held back until the host state
    /// file says that it was served without its cache (rule 10), then served from its origin; one
    /// with dirty data keeps everything as it is, and its requests wait for the device or fail. One
    /// whose attach is under way, or that is given up, is not served by anybody: its command fails,
    /// and nobody waits. One that the durable table does not name any more is gone whatever becomes
    /// of the device: its command ends well.
    pub(crate) fn fail_cache(&mut self, failure: CacheFailure) {
        if self.is_cache_failed() {
            return;
        }
        self.cache_failed = Some(failure);
        self.return_wait.begin(self.now, failure);
        self.needs_failure_cleanup = true;
        let mut clean_volumes = Vec::new();
        for slot in self.volume_slots() {
            // In a mode that keeps none, dirty blocks are on the origin but not flushed there; but
            // not those that recovery could not bring home.
            let is_stuck = self.volume(slot).needs_writeback || self.poisoned_blocks(slot) > 0;
            let volume = self.volume_mut(slot);
            if volume.command.as_ref().is_some_and(VolumeCommand::has_left_table) {
                volume.service = Service::GivenUp;
                volume.is_gated = true;
                continue;
            }
            let has_dirty = volume.dirty_blocks > 0 && (volume.mode.keeps_dirty() || is_stuck);
            // Not served for a reason of its own: its origin is missing, or could not be flushed
            // when this life began, and may lose what clients would be shown.
            let was_quiesced = volume.service == Service::Quiesced;
            volume.service = Service::Quiesced;
            let is_unserved = volume.command.as_ref().is_some_and(VolumeCommand::is_unserved);
            volume.is_gated = !has_dirty && !is_unserved && !was_quiesced && volume.facts.is_some();
            if volume.is_gated {
                clean_volumes.push(slot);
            }
        }
        self.events.push_back(Event::CacheFailed { clean_volumes });
    }

    /// Ends what waits for the log. Separate from `fail_cache`, which may be called in the middle
    /// of anything.
    pub(crate) fn clean_up_after_failure(&mut self, payload: &mut dyn Payload) {
        if !core::mem::take(&mut self.needs_failure_cleanup) {
            return;
        }
        self.fail_records(payload);
        if self.log.flushes.is_under_way() {
            self.log.flushes.end();
        }
        if self.log.flushes.is_due() {
            self.log.flushes.begin();
            self.log.flushes.end();
        }
        while let Some(waiter) = self.log.flushes.pop_finished() {
            self.wake(waiter, Ended::Failed);
        }
        self.fail_room_waiters();
        for (_, waiter) in core::mem::take(&mut self.log.frontier_waiters) {
            self.wake(waiter, Ended::Failed);
        }
        for slot in self.volume_slots() {
            for waiter in core::mem::take(&mut self.volume_mut(slot).mark_waiters) {
                self.wake(waiter, Ended::Failed);
            }
            if self.volume(slot).service == Service::GivenUp {
                self.end_left_after_failure(slot, payload);
                continue;
            }
            if self.volume(slot).is_gated {
                // The origin has everything that was answered; what the log knew no longer counts.
                self.clear_index(slot);
                self.volume_mut(slot).generation.0 += 1;
            } else {
                self.release_gated(slot, payload);
            }
            if let Some(command) = self.volume_mut(slot).command.take()
                && !command.is_answered()
            {
                self.end_command(command.id(), Err(CommandError::CacheFailed));
            }
        }
        while let Some(id) = self.set_commands.pop_front() {
            self.end_command(id, Err(CommandError::CacheFailed));
        }
    }

    /// Lets the requests go that waited for the host state file.
    pub(crate) fn release_ungated(&mut self, payload: &mut dyn Payload) {
        for slot in core::mem::take(&mut self.needs_ungating) {
            self.release_gated(slot, payload);
        }
    }
}
