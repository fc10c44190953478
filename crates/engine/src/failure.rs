//! The cache device fails for good: who goes on without it, and who cannot.

use crate::engine::Engine;
use crate::event::CommandError;
use crate::event::Event;
use crate::payload::Payload;
use crate::volume::Service;
use crate::wake::Ended;

impl Engine {
    /// Gives the cache device up. A volume without dirty data is held back until the host state
    /// file says that it was served without its cache (rule 10), then served from its origin; one
    /// with dirty data answers errors and keeps everything as it is.
    pub(crate) fn fail_cache(&mut self) {
        if self.cache_failed {
            return;
        }
        self.cache_failed = true;
        self.needs_failure_cleanup = true;
        self.events.push_back(Event::CacheFailed);
        for slot in self.volume_slots() {
            let volume = self.volume_mut(slot);
            let has_dirty = volume.mode.keeps_dirty() && volume.dirty_blocks > 0;
            volume.service = Service::Quiesced;
            volume.is_gated = !has_dirty && volume.facts.is_some();
        }
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
        self.fail_space_waiters();
        for (_, waiter) in core::mem::take(&mut self.log.frontier_waiters) {
            self.wake(waiter, Ended::Failed);
        }
        for slot in self.volume_slots() {
            for waiter in core::mem::take(&mut self.volume_mut(slot).mark_waiters) {
                self.wake(waiter, Ended::Failed);
            }
            if self.volume(slot).is_gated {
                // The origin has everything that was answered; what the log knew no longer counts.
                self.clear_index(slot);
                self.volume_mut(slot).generation.0 += 1;
            } else {
                self.release_gated(slot, payload);
            }
            if let Some(command) = self.volume_mut(slot).command.take() {
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
