//! Origins that somebody writes to behind the cache's back, and whether the engine notices.
//!
//! - **Announced**: the host state file says that the volume was served without its cache, or the
//!   volume is detached. Everything in the cache is void; the oracle demands what was written.
//! - **Unannounced**, after a clean stop: nobody said anything, and the origin's first 64 KiB are
//!   among what was written (what is written elsewhere alone cannot be noticed: nobody promises
//!   anything of it). Their fingerprint is in the volume table, so the engine must say so. Without
//!   dirty data it drops what it has and serves what was written, there and elsewhere; with dirty
//!   data it serves nothing of the volume and writes nothing to its origin, in this life and in
//!   each that follows. (The origin does not fail meanwhile: one that cannot be read is not
//!   compared.)
//!
//! A warning without such a write is a violation, too.

use forebay_engine::options::HostMark;
use forebay_engine::request::Durability;
use forebay_engine::units::{SECTOR_BYTES, VolumeSlot};

use crate::oracle::{Run, WriteKind};
use crate::stamp::Stamp;
use crate::world::{Halt, World, violation};

/// Sectors whose fingerprint is kept: 64 KiB.
const HEAD_SECTORS: u32 = 128;
/// Share of volumes that are written to behind the back of a daemon that stopped in order.
const UNANNOUNCED_PERCENT: u64 = 10;

/// What the engine has to say of an origin that was written to unannounced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Behind {
    /// Nothing: nobody wrote to it.
    #[default]
    Untouched,
    /// Somebody wrote to it.
    Written,
    /// The engine said so, and that it serves nothing of it since there is dirty data.
    Conflict,
}

/// Whether the cache has what the origin has not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dirty {
    None,
    Some,
}

impl World<'_> {
    /// What others do to origins while nobody serves.
    pub(crate) fn write_behind_all(&mut self) {
        for index in 0..self.volumes.len() {
            let volume = &mut self.volumes[index];
            let is_free = volume.slot.is_none() && volume.entry == crate::world::TableEntry::Known;
            if volume.slot.is_none() && !is_free || volume.behind != Behind::Untouched {
                continue;
            }
            // A host that may have dirty data in the cache refuses to serve without it.
            if !volume.is_marked_dirty && self.random.percent(if is_free { 30 } else { 6 }) {
                if !is_free {
                    volume.mark = HostMark::ServedWithoutCache;
                }
                self.write_behind(index);
            }
        }
        self.write_unannounced();
    }

    fn write_unannounced(&mut self) {
        // A superblock that goes wrong silently has a ledger of its own.
        if self.last_end != "a clean stop" || self.ledger.is_some() {
            return;
        }
        let Ok(superblock) = self.read_superblock() else { return };
        for index in 0..self.volumes.len() {
            let volume = &self.volumes[index];
            let stored = volume.slot.and_then(|slot| superblock.volume(slot));
            let is_known = stored.is_some_and(|stored| stored.fingerprint.is_some());
            let is_quiet = volume.mark == HostMark::None && volume.behind == Behind::Untouched;
            if is_known && is_quiet && self.random.percent(UNANNOUNCED_PERCENT) {
                let sectors = self.sectors(index).min(HEAD_SECTORS);
                let first = self.random.below(u64::from(sectors)) as u32 / 8 * 8;
                let count = 8.min(sectors - first);
                self.write_run_behind(Run { volume: index, first, count });
                if self.random.percent(50) {
                    self.write_behind(index);
                }
                self.stats.unannounced += 1;
                self.volumes[index].behind = Behind::Written;
            }
        }
    }

    /// Somebody writes to an origin without the cache, with the power on until it is durable.
    pub(crate) fn write_behind(&mut self, index: usize) {
        let total = self.sectors(index);
        for _ in 0..self.random.between(1..=20) {
            let first = self.random.below(u64::from(total)) as u32 / 8 * 8;
            let count = (8 * self.random.between(1..=32) as u32).min(total - first);
            self.write_run_behind(Run { volume: index, first, count });
        }
    }

    fn write_run_behind(&mut self, run: Run) {
        let Run { volume, first, count } = run;
        let write = self.oracle.submit_write(run, WriteKind::Data, Durability::ForcedUnitAccess);
        self.say(format!(
            "write behind the cache: volume {volume} sector {first}+{count} is write {}",
            write.0
        ));
        let mut bytes = vec![0; count as usize * SECTOR_BYTES];
        for (sector, bytes) in (first..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
            Stamp { write: write.0, volume: volume as u8, sector }.fill(bytes);
        }
        self.volumes[volume].origin.media_mut().write_durable(first, &bytes);
        self.oracle.acknowledge_write(write);
        self.volumes[volume].is_order_lost = true;
    }

    /// Notes what the engine must say at this start.
    pub(crate) fn expect_warnings(&mut self) {
        let Ok(superblock) = self.read_superblock() else { return };
        for volume in &mut self.volumes {
            let stored = volume.slot.and_then(|slot| superblock.volume(slot));
            // Without a fingerprint the copies are void already, by a start that did not come far.
            volume.awaits_warning = volume.behind != Behind::Untouched
                && !volume.is_missing
                && stored.is_some_and(|stored| stored.fingerprint.is_some());
        }
    }

    /// The engine says that an origin is not what it was.
    pub(crate) fn on_origin_changed(&mut self, slot: VolumeSlot, dirty: Dirty) -> Result<(), Halt> {
        let Some(index) = self.volumes.iter().position(|v| v.slot == Some(slot)) else {
            return violation("an unknown origin has changed", format!("{slot:?}"));
        };
        let is_excused = self.has_failures() || self.may_have_poison;
        let volume = &mut self.volumes[index];
        if volume.behind == Behind::Untouched && !is_excused {
            return violation("an origin has changed that nobody wrote to", format!("{index}"));
        }
        volume.awaits_warning = false;
        if dirty == Dirty::Some {
            self.stats.conflicts += u64::from(volume.behind == Behind::Written);
            (volume.behind, volume.is_missing) = (Behind::Conflict, true);
        }
        Ok(())
    }

    /// The engine serves: it must have said what it had to.
    pub(crate) fn check_warnings(&mut self) -> Result<(), Halt> {
        for (index, volume) in self.volumes.iter_mut().enumerate() {
            if volume.awaits_warning {
                return violation("a changed origin was not noticed", format!("volume {index}"));
            }
            if volume.behind == Behind::Written && !volume.is_missing {
                // What the cache had of it is void, durably.
                volume.behind = Behind::Untouched;
            }
        }
        Ok(())
    }
}
