//! The cache device was gone and is back: this engine hands over to one that recovers it anew.
//!
//! What is on the device decides, as after any crash. But a crash ends the clients too, and here
//! they live on and remember what they were told. So the successor is given the list of what was
//! answered and not yet flushed, and compares: what recovery did not find is named, counted and
//! made poison, and flushes of its volume fail from then on (promise 3).
//!
//! All requests of all volumes are held back from the beginning of a hand-over on, hits and those
//! to other origins too, until those under way have ended. So it begins only while no origin hangs,
//! and if one does before it is ready, the requests go on for a while.
//!
//! Only the device that was lost is taken back: the same set, in the same life. Had somebody else
//! recovered it meanwhile, its recovery epoch would be another one.

use alloc::vec::Vec;

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, Phase};
use crate::error::{Corrupt, Place, RecoveryError};
use crate::event::Event;
use crate::failure::CacheFailure;
use crate::flush_group::FlushNumber;
use crate::format::checkpoint::Checkpoint;
use crate::format::superblock::Superblock;
use crate::index::Piece;
use crate::options::{CacheFacts, OriginOpening};
use crate::payload::Payload;
use crate::request::Request;
use crate::units::{OriginBlock, Time, Version, VolumeId, VolumeSlot};
use crate::volume::{Service, Volume};

/// By how much a recovery raises the recovery epoch at most: one more if a checkpoint was lost.
const EPOCHS_OF_ATTEMPT: u64 = 2;

/// Most entries that are remembered until a flush: with so many the engine flushes of its own
/// accord. 3 MiB.
pub(crate) const UNFLUSHED_MAX: usize = 1 << 16;

/// A complete record's dirty entry that no flush has covered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unflushed {
    pub(crate) slot: VolumeSlot,
    pub(crate) start: u64,
    pub(crate) block_count: u64,
    pub(crate) version: Version,
    /// The flush of the cache device that makes it durable.
    pub(crate) needs: FlushNumber,
}

/// What a volume's clients were told.
#[derive(Clone, Debug)]
struct InheritedVolume {
    slot: VolumeSlot,
    id: VolumeId,
    has_lost_writes: bool,
    had_write_errors: bool,
    /// What failed writes left uncertain on the origin, which stays open: see [`Volume::unsure`].
    unsure: Vec<(u64, u64)>,
    /// Answered, perhaps, and not durable when the device went: start, count, version.
    unflushed: Vec<(u64, u64, Version)>,
}

/// What an engine knows that is not on its cache device, for its successor.
#[derive(Clone, Debug)]
pub struct Inheritance {
    /// Recovery epochs that the device may have: of the engine, and of recoveries that were tried.
    epochs: (u64, u64),
    next_version: Version,
    volumes: Vec<InheritedVolume>,
    /// Found by the comparison: slot, start, count, version.
    missing: Vec<(VolumeSlot, u64, u64, Version)>,
}

/// Milliseconds until it is tried again to begin a hand-over. Long enough that clients whose
/// requests were held back in vain get something done in between.
const TRY_AGAIN_MS: u64 = 5_000;
/// Milliseconds for which requests are held back at most though no origin hangs: until the host can
/// save its state file, perhaps. As long as a request waits for an origin by default.
const HOLD_MS: u64 = 30_000;

/// How far a hand-over is.
#[derive(Default)]
pub(crate) struct HandOver {
    /// The device is back.
    is_wanted: bool,
    /// New requests wait, so that none is under way.
    pub(crate) is_begun: bool,
    /// When it may begin; once it has, when it is put off.
    turns_at: Time,
    /// Recoveries that were tried in vain; each may have raised the epoch of the device.
    failed_attempts: u64,
}

impl Engine {
    /// Takes over a cache device that was gone from the engine that lost it. As
    /// [`Engine::recover`], but what that engine answered and the device does not have is told by
    /// [`Event::WritesLost`].
    #[must_use]
    pub fn recover_returned(
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
        inheritance: Inheritance,
    ) -> Engine {
        let mut engine = Engine::recover(now, superblock, cache, origins);
        engine.inheritance = Some(inheritance);
        engine
    }

    /// The lost device is back: holds all requests back, so that those under way can end, as soon
    /// as no origin hangs. Does nothing if the device was not gone but failed: what a failed flush
    /// lost does not come back.
    pub fn begin_hand_over(&mut self, now: Time) {
        self.now = now;
        self.hand_over.is_wanted = self.cache_failed == Some(CacheFailure::Gone);
        self.hand_over.turns_at = now;
        self.hold_requests_back();
    }

    fn hold_requests_back(&mut self) {
        let hand_over = &self.hand_over;
        let is_due = hand_over.is_wanted && !hand_over.is_begun && hand_over.turns_at <= self.now;
        if !is_due {
            return;
        }
        let hangs = self.slots().any(|slot| self.is_origin_hung(slot));
        self.hand_over.is_begun = !hangs;
        self.hand_over.turns_at = self.now.after_ms(if hangs { TRY_AGAIN_MS } else { HOLD_MS });
    }

    /// Begins a hand-over that could not begin before, or puts one off that is held up.
    pub(crate) fn advance_hand_over(&mut self, payload: &mut dyn Payload) {
        if !self.hand_over.is_begun {
            self.hold_requests_back();
            return;
        }
        let is_held_up = self.hand_over.turns_at <= self.now
            || self.slots().any(|slot| self.is_origin_hung(slot));
        if is_held_up && !self.is_ready_to_hand_over() {
            self.hand_over.is_begun = false;
            self.hand_over.turns_at = self.now.after_ms(TRY_AGAIN_MS);
            self.release_held_back(payload);
        }
    }

    /// When [`Engine::advance_hand_over`] may have something to do.
    pub(crate) fn hand_over_wakeup(&self) -> Option<Time> {
        if !self.hand_over.is_wanted {
            return None;
        }
        let hangs_at = self.slots().filter_map(|slot| self.origin_hangs_at(slot)).min();
        let hangs_at = hangs_at.filter(|_| self.hand_over.is_begun);
        let times = [Some(self.hand_over.turns_at), hangs_at].into_iter().flatten();
        times.filter(|at| *at > self.now).min()
    }

    /// Whether [`Engine::hand_over`] may be called: a hand-over was begun, and nothing is under way
    /// or to be polled.
    #[must_use]
    pub fn is_ready_to_hand_over(&self) -> bool {
        let is_served = |slot: VolumeSlot| !self.volume(slot).waits_for_host();
        self.hand_over.is_begun
            && self.cache_failed == Some(CacheFailure::Gone)
            && !self.needs_failure_cleanup
            && matches!(self.phase, Phase::Serving)
            && self.stopping.is_none()
            && self.operations.len() == 0
            && self.units.len() == 0
            && self.misses.len() == 0
            && self.ios.len() == 0
            && self.wakes.is_empty()
            && self.replies.is_empty()
            && self.events.is_empty()
            && self.slots().all(is_served)
    }

    /// The requests that wait, in order, and what the successor must know. The engine stays as it
    /// is, in case the device goes again before the successor serves.
    pub fn hand_over(&mut self) -> (Vec<Request>, Inheritance) {
        assert!(self.is_ready_to_hand_over());
        let mut requests = Vec::new();
        let mut volumes = Vec::new();
        for slot in self.volume_slots() {
            requests.extend(core::mem::take(&mut self.volume_mut(slot).gated));
            let volume = self.volume(slot);
            // What is served without its cache has all of its answers on its origin.
            let has_dirty =
                volume.service == Service::Quiesced && !has_defect(Defect::LostWritesNotSought);
            let own = self.log.unflushed.iter().filter(|entry| has_dirty && entry.slot == slot);
            volumes.push(InheritedVolume {
                slot,
                id: volume.id,
                has_lost_writes: volume.has_lost_writes,
                had_write_errors: volume.had_write_errors,
                unsure: volume.unsure.clone(),
                unflushed: own.map(|e| (e.start, e.block_count, e.version)).collect(),
            });
        }
        let epoch = self.log.recovery_epoch.0;
        let inheritance = Inheritance {
            epochs: (epoch, epoch + EPOCHS_OF_ATTEMPT * self.hand_over.failed_attempts),
            next_version: self.log.next_version,
            volumes,
            missing: Vec::new(),
        };
        (requests, inheritance)
    }

    /// The successor could not recover the device: this engine goes on without it. The host hands
    /// the requests in again.
    pub fn handle_hand_over_failed(&mut self, now: Time) {
        self.now = now;
        (self.hand_over.is_wanted, self.hand_over.is_begun) = (false, false);
        self.hand_over.failed_attempts += 1;
    }

    /// Lets the requests go that a hand-over held back which does not take place.
    pub fn cancel_hand_over(&mut self, now: Time, payload: &mut dyn Payload) {
        self.now = now;
        (self.hand_over.is_wanted, self.hand_over.is_begun) = (false, false);
        self.release_held_back(payload);
    }

    fn release_held_back(&mut self, payload: &mut dyn Payload) {
        for slot in self.volume_slots() {
            if !self.volume(slot).is_gated {
                self.release_gated(slot, payload);
            }
        }
    }

    /// What was found is in the index, and nothing was done with it yet: notes what is missing.
    pub(crate) fn compare_inherited(&mut self) {
        let Some(mut inheritance) = self.inheritance.take() else { return };
        // A version once given out is not given out again.
        self.log.next_version = self.log.next_version.max(inheritance.next_version);
        let mut pieces = Vec::new();
        for inherited in &inheritance.volumes {
            let Some(volume) = self.inherited_volume(inherited) else { continue };
            for (start, block_count, version) in &inherited.unflushed {
                let (mut at, end) = (*start, start + block_count);
                pieces.clear();
                volume.index.complete.pieces(*start, end, &mut pieces);
                pieces.retain(|piece: &Piece| piece.version >= *version);
                pieces.sort_unstable_by_key(|piece| piece.start);
                let ends = pieces.iter().map(|piece| (piece.start, piece.end()));
                for (from, to) in ends.chain([(end, end)]) {
                    if at < from {
                        inheritance.missing.push((inherited.slot, at, from - at, *version));
                    }
                    at = at.max(to);
                }
            }
        }
        // Older versions first: nothing is appended below a version of its block.
        inheritance
            .missing
            .sort_unstable_by_key(|(slot, start, _, version)| (*slot, *version, *start));
        self.inheritance = Some(inheritance);
    }

    fn inherited_volume(&self, inherited: &InheritedVolume) -> Option<&Volume> {
        let volume = self.find_volume(inherited.slot)?;
        (volume.id == inherited.id).then_some(volume)
    }

    /// Recovery is done: what is missing becomes poison (rule 12), so that nobody reads what was
    /// there before, and no flush of the volume hides that it is lost. Nothing was promoted yet,
    /// and what the origin has of a failed write must not be.
    pub(crate) fn poison_missing(&mut self) {
        let Some(inheritance) = self.inheritance.take() else { return };
        for inherited in &inheritance.volumes {
            if self.inherited_volume(inherited).is_some() {
                let volume = self.volume_mut(inherited.slot);
                volume.has_lost_writes |= inherited.has_lost_writes;
                volume.had_write_errors |= inherited.had_write_errors;
                for (start, block_count) in &inherited.unsure {
                    volume.note_unsure(*start, *block_count);
                }
            }
        }
        for of_volume in inheritance.missing.chunk_by(|a, b| a.0 == b.0) {
            let slot = of_volume[0].0;
            let mut extents = Vec::new();
            for (_, start, block_count, version) in of_volume.iter().copied() {
                extents.push((OriginBlock(start), block_count));
                self.poison_run(slot, start, block_count, version);
            }
            let volume = self.volume_mut(slot);
            volume.has_lost_writes = true;
            volume.counters.lost_blocks += extents.iter().map(|(_, count)| count).sum::<u64>();
            self.events.push_back(Event::WritesLost { volume: slot, extents });
        }
    }

    fn poison_run(&mut self, slot: VolumeSlot, start: u64, block_count: u64, version: Version) {
        if !self.has_room_beside_drops(0) {
            // Without a record of the loss older data would be served.
            self.volume_mut(slot).service = Service::Quiesced;
            return;
        }
        let block_count = u32::try_from(block_count).expect("part of an entry");
        self.append_poison(slot, start, block_count, version);
    }
}

/// Refuses a device that had another life since it was lost.
pub(crate) fn judge_returned(
    inheritance: Option<&Inheritance>,
    checkpoint: &Checkpoint,
    area: u8,
) -> Option<RecoveryError> {
    let (least, most) = inheritance?.epochs;
    let (place, field) = (Place::Checkpoint { area }, "recovery epoch");
    let found = checkpoint.recovery_epoch.0;
    Corrupt::unless_at_least(place, field, least, found)
        .and_then(|()| Corrupt::unless_at_most(place, field, most, found))
        .err()
        .map(RecoveryError::Returned)
}
