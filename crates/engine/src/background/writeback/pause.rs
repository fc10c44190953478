//! Pauses of writeback: after an error of an origin, and after dirty data that cannot be read.
//!
//! Neither makes a block clean or lost. An error of the origin ends commands that wait for dirty
//! data to go home. Dirty data that the cache device does not return is an error of these blocks,
//! not of the volume (promise 6): with a wrong checksum it becomes poison after a few tries; with
//! an error of the device it stays, since the device may yet return it, and commands end once a few
//! tries brought nothing.

use alloc::vec::Vec;

use crate::engine::Engine;
use crate::event::CommandError;
use crate::failure::back_off::{self, FIRST_MS, LONGEST_MS};
use crate::units::{Time, VolumeSlot};

/// Tries in a row without a block brought home or given up, after which nobody waits any longer.
const VAIN_TRIES_MAX: u8 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PauseCause {
    /// A write to the origin failed.
    Origin,
    /// Dirty blocks could not be read from the cache device.
    Unreadable,
}

struct Pause {
    slot: VolumeSlot,
    until: Time,
    length_ms: u64,
    cause: PauseCause,
    vain_tries: u8,
}

/// Volumes that writeback leaves alone for a while.
#[derive(Default)]
pub(crate) struct Pauses(Vec<Pause>);

impl Pauses {
    pub(crate) fn is_paused(&self, slot: VolumeSlot, now: Time) -> bool {
        self.0.iter().any(|pause| pause.slot == slot && pause.until > now)
    }

    pub(crate) fn ends(&self) -> impl Iterator<Item = Time> {
        self.0.iter().map(|pause| pause.until)
    }

    /// The origin was flushed: it is well again, though not before a pause is over, since other
    /// requests may flush it while what writeback writes fails.
    pub(crate) fn on_origin_flushed(&mut self, slot: VolumeSlot, now: Time) {
        self.0.retain(|pause| {
            pause.slot != slot || pause.cause != PauseCause::Origin || pause.until > now
        });
    }

    /// Fewer blocks wait that could not be read: the next pause for them is a short one.
    pub(crate) fn on_fewer(&mut self, slot: VolumeSlot) {
        let is_for_them = |pause: &Pause| pause.slot == slot && pause.cause != PauseCause::Origin;
        if let Some(pause) = self.0.iter_mut().find(|pause| is_for_them(pause)) {
            pause.vain_tries = 0;
            pause.length_ms = FIRST_MS / 2;
        }
    }

    /// The volume is gone; another one may come under its slot.
    pub(crate) fn forget(&mut self, slot: VolumeSlot) {
        self.0.retain(|pause| pause.slot != slot);
    }

    fn find(&self, slot: VolumeSlot) -> Option<&Pause> {
        self.0.iter().find(|pause| pause.slot == slot)
    }

    /// Several runs of one window fail together: one step.
    fn extend(&mut self, slot: VolumeSlot, cause: PauseCause, now: Time) {
        let seed = now.0 ^ u64::from(slot.0);
        let Some(pause) = self.0.iter_mut().find(|pause| pause.slot == slot) else {
            let until = now.after_ms(back_off::with_jitter_ms(FIRST_MS, seed));
            self.0.push(Pause { slot, until, length_ms: FIRST_MS, cause, vain_tries: 1 });
            return;
        };
        if pause.until > now {
            if cause == PauseCause::Origin {
                pause.cause = cause;
            }
            return;
        }
        if pause.cause != cause {
            pause.vain_tries = 0;
        }
        pause.cause = cause;
        pause.length_ms = (pause.length_ms * 2).min(LONGEST_MS);
        pause.until = now.after_ms(back_off::with_jitter_ms(pause.length_ms, seed));
        pause.vain_tries = pause.vain_tries.saturating_add(1);
    }
}

impl Engine {
    /// Writeback of a volume failed; it is tried again after a pause, never given up.
    pub(crate) fn pause_writeback(&mut self, slot: VolumeSlot, cause: PauseCause) {
        self.writeback.pauses.extend(slot, cause, self.now);
        if cause == PauseCause::Origin {
            self.on_drain_failed(slot, CommandError::OriginFailed);
        } else if self.is_lastingly_unreadable(slot) {
            self.on_drain_failed(slot, CommandError::Unreadable);
        }
    }

    /// When what failed at the origin is written home again.
    pub(crate) fn writeback_retry_at(&self, slot: VolumeSlot) -> Option<Time> {
        let pause = self.writeback.pauses.find(slot)?;
        (pause.cause == PauseCause::Origin).then_some(pause.until)
    }

    /// Whether the last attempt to write the volume home failed at the origin.
    pub(crate) fn has_origin_error(&self, slot: VolumeSlot) -> bool {
        self.writeback.pauses.find(slot).is_some_and(|pause| pause.cause == PauseCause::Origin)
    }

    /// Whether what is left of the volume's dirty data was tried a few times and cannot be read.
    pub(crate) fn is_lastingly_unreadable(&self, slot: VolumeSlot) -> bool {
        self.writeback.pauses.find(slot).is_some_and(|pause| {
            pause.cause == PauseCause::Unreadable && pause.vain_tries >= VAIN_TRIES_MAX
        })
    }
}
