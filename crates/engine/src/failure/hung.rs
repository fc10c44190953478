//! An origin that may never answer: who must not make others wait for it.
//!
//! Requests have their own limit (`ride`). This is for what holds *all* requests of a volume back
//! until those under way have ended: a command at its gate, or a hand-over to another engine. Both
//! would make hits wait for an origin that hits do not need, as long as it hangs. So they begin
//! only while no origin hangs that they would wait for, and let the requests go again if one does.

use crate::engine::Engine;
use crate::io::Device;
use crate::options::ORIGIN_TIMEOUT_S;
use crate::range_lock::LockOwner;
use crate::units::{Time, VolumeSlot};
use crate::wake::Waiter;

use super::ride::STALLED_MS;

/// Milliseconds after which an operation hangs though others of its origin end well. A long queue
/// at a slow disk comes to some seconds; so long is what a request waits by default.
const HUNG_MS: u64 = ORIGIN_TIMEOUT_S as u64 * 1000;

impl Engine {
    /// Whether operations of the volume's origin may never end.
    pub(crate) fn is_origin_hung(&self, slot: VolumeSlot) -> bool {
        self.origin_hangs_at(slot).is_some_and(|at| at <= self.now)
    }

    /// Whether writeback, one job for all volumes, waits for an origin that may never answer.
    pub(crate) fn is_writeback_hung(&self) -> bool {
        let is_used = |slot: VolumeSlot| {
            let volume = self.volume(slot);
            let is_run = |owner| matches!(owner, LockOwner::WritebackRun(_));
            volume.locks.holders(0, u64::MAX).any(is_run)
                || volume.flushes.waiters().any(|waiter| waiter == Waiter::Writeback)
        };
        self.slots().any(|slot| is_used(slot) && self.is_origin_hung(slot))
    }

    /// When the oldest operation began that is under way at the origin.
    pub(crate) fn oldest_origin_io(&self, slot: VolumeSlot) -> Option<Time> {
        let own = self.ios.iter().filter(|(_, io)| io.device == Device::Origin(slot));
        own.map(|(_, io)| io.started).min()
    }

    /// From when on the origin counts as hung, if nothing more of it ends: when a request was
    /// answered late, has been tried again for so long, or waits for an origin that is silent.
    pub(crate) fn origin_hangs_at(&self, slot: VolumeSlot) -> Option<Time> {
        let mut operations = self.operations.iter().map(|(_, operation)| operation);
        if operations.any(|operation| operation.is_answered && operation.request.volume == slot) {
            return Some(Time(0));
        }
        let ride = &self.volume(slot).ride;
        let oldest_io = self.oldest_origin_io(slot).map(|started| {
            let silent_since = started.max(ride.last_good());
            silent_since.after_ms(STALLED_MS).min(started.after_ms(HUNG_MS))
        });
        let retried = ride.first_failed().map(|first_failed| first_failed.after_ms(STALLED_MS));
        [oldest_io, retried].into_iter().flatten().min()
    }
}
