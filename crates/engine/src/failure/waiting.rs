//! A cache device that went away with dirty data on it may come back: until a limit has passed,
//! requests to its volumes wait, in the order in which they came to wait.
//!
//! The limit counts from the loss of the device, not from the request: afterwards everything that
//! waits fails, and what comes later fails at once, as with `no_path_retry` of Linux multipath.
//! Nobody waits if the device is still there and a flush or too many writes failed, for then
//! waiting mends nothing. The queue is bounded by what the host lets its clients have under way.

use crate::engine::Engine;
use crate::failure::CacheFailure;
use crate::request::{Request, RequestError, RequestId, Served};
use crate::units::{Time, VolumeSlot};
use crate::volume::Service;

/// Milliseconds for which requests wait for a cache device that is gone, unless the host sets
/// another limit: as long as Linux waits for a SCSI disk (`SD_TIMEOUT`).
pub const CACHE_TIMEOUT_MS: u64 = 30_000;

/// How long requests wait for a device that is gone.
pub(crate) struct ReturnWait {
    limit_ms: u64,
    /// When waiting ends; none if nobody waits or that time is over.
    until: Option<Time>,
}

impl Default for ReturnWait {
    fn default() -> ReturnWait {
        ReturnWait { limit_ms: CACHE_TIMEOUT_MS, until: None }
    }
}

impl ReturnWait {
    pub(crate) fn begin(&mut self, now: Time, failure: CacheFailure) {
        let may_return = failure == CacheFailure::Gone && self.limit_ms > 0;
        self.until = may_return.then(|| now.after_ms(self.limit_ms));
    }
}

impl Engine {
    /// Sets how many milliseconds requests wait for a cache device that is gone with dirty data;
    /// zero: they fail at once. Holds from the next loss on.
    pub fn set_cache_timeout_ms(&mut self, milliseconds: u64) {
        self.return_wait.limit_ms = milliseconds;
    }

    /// The client of a request is gone. If the request waits for a device or a command it is
    /// answered now; otherwise this changes nothing.
    pub fn handle_forget(&mut self, now: Time, id: RequestId) {
        self.now = now;
        for slot in self.volume_slots() {
            let gated = &mut self.volume_mut(slot).gated;
            let before = gated.len();
            gated.retain(|request| request.id != id);
            if gated.len() < before {
                self.reply(id, Err(RequestError::Shutdown), Served::NoRead);
            }
        }
    }

    /// Whether requests of the volume wait for its cache device.
    pub(crate) fn waits_for_return(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        self.return_wait.until.is_some()
            && self.stopping.is_none()
            && volume.service == Service::Quiesced
            && volume.facts.is_some()
            && !volume.is_gated
    }

    /// Whether a request that the loss of the device interrupted waits and is done again. Not where
    /// a flush of the origin failed: the request may be a flush that covered what was lost.
    pub(crate) fn may_do_again(&self, slot: VolumeSlot) -> bool {
        self.waits_for_return(slot) && !self.volume(slot).has_lost_writes
    }

    /// Milliseconds for which requests of the volume still wait, if they do.
    pub(crate) fn return_wait_ms(&self, slot: VolumeSlot, now: Time) -> Option<u64> {
        let until = self.return_wait.until.filter(|_| self.waits_for_return(slot))?;
        Some(until.nanoseconds_since(now) / 1_000_000)
    }

    /// When waiting ends.
    pub(crate) fn return_wakeup(&self) -> Option<Time> {
        self.return_wait.until
    }

    /// The limit has passed: who waits is told so.
    pub(crate) fn end_return_wait(&mut self) {
        if self.return_wait.until.is_none_or(|until| until > self.now) {
            return;
        }
        let mut late = self.volume_slots();
        late.retain(|slot| self.waits_for_return(*slot));
        self.return_wait.until = None;
        for slot in late {
            for request in core::mem::take(&mut self.volume_mut(slot).gated) {
                self.fail_quiesced(&request);
            }
        }
    }

    pub(crate) fn fail_quiesced(&mut self, request: &Request) {
        self.volume_mut(request.volume).counters.errors += 1;
        self.reply(request.id, Err(RequestError::Io), Served::NoRead);
    }
}
