//! FLUSH, and the flushes of the devices (rules 2 and 5, promise 3).

use alloc::vec::Vec;

use crate::background::writeback::pause::PauseCause;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::failure::CacheFailure;
use crate::index::{BlankKind, Place};
use crate::io::{Device, IoError, IoKind, IoResult};
use crate::options::CacheMode;
use crate::payload::Payload;
use crate::request::RequestError;
use crate::slab::Key;
use crate::units::{CacheBlock, Time, VolumeSlot};
use crate::volume::{HOMED_MAX, Homed, Service};
use crate::wake::{Ended, Waiter};

/// Milliseconds after which blocks that were written home wait no longer for a client's flush.
const HOMED_AGE_MS: u64 = 1000;

impl Engine {
    /// In writeback, one flush of the cache device; the origin's only if a write went around the
    /// log since its last one. Elsewhere both.
    pub(crate) fn start_flush(&mut self, key: Key) {
        let slot = self.operations[key].request.volume;
        let mode = self.effective_mode(slot);
        let volume = self.volume(slot);
        let keeps_dirty = mode.keeps_dirty() && volume.service == Service::Cached;
        let needs_origin = (!keeps_dirty || !volume.around.is_empty() || volume.is_leaving())
            && !has_defect(Defect::FlushSkipsOrigin);
        let needs_cache = mode != CacheMode::Passthrough && !has_defect(Defect::FlushSkipsCache);
        if volume.has_lost_writes && !has_defect(Defect::FailedFlushForgotten) {
            // Promise 3: a failed flush is never retried as a success.
            self.operations[key].error = Some(RequestError::Io);
            return;
        }
        if needs_cache {
            self.wait_for_cache_flush(key);
        }
        if needs_origin {
            self.wait_for_origin_flush(key);
        }
    }

    /// Registers for the next flush of the cache device that begins.
    pub(crate) fn join_cache_flush(&mut self, waiter: Waiter) {
        if self.is_cache_failed() {
            self.wake(waiter, Ended::Failed);
        } else {
            self.log.flushes.join(waiter);
        }
    }

    pub(crate) fn start_cache_flush(&mut self) {
        if !self.log.flushes.is_due() {
            return;
        }
        self.log.flushes.begin();
        self.log.flush_covers = self.log.complete_through();
        if self.cache_facts.has_volatile_cache {
            self.set_counters.cache_flushes += 1;
            self.submit(Device::Cache, IoKind::Flush, IoPurpose::CacheFlush);
        } else {
            // Without a volatile cache, what is complete is durable.
            self.end_cache_flush();
        }
    }

    pub(crate) fn on_cache_flush_complete(&mut self, result: IoResult, payload: &mut dyn Payload) {
        let _ = payload;
        if result.is_err() && !has_defect(Defect::FailedFlushIgnored) {
            // What the flush was to make durable may be lost, and a later flush would not tell.
            self.fail_cache(CacheFailure::Flush);
            return;
        }
        if !self.is_cache_failed() {
            self.end_cache_flush();
        }
    }

    fn end_cache_flush(&mut self) {
        let number = self.log.flushes.end();
        while self.log.unflushed.front().is_some_and(|entry| entry.needs <= number) {
            self.log.unflushed.pop_front();
        }
        self.go_on();
        self.log.durable_through = self.log.durable_through.max(self.log.flush_covers);
        self.remove_tombstones();
        while let Some(waiter) = self.log.flushes.pop_finished() {
            self.wake(waiter, Ended::Well);
        }
    }

    pub(crate) fn start_origin_flushes(&mut self) {
        for index in 0..self.volumes.len() {
            let slot = VolumeSlot(u16::try_from(index).expect("VOLUMES_MAX"));
            let now = self.now;
            let Some(volume) = self.volumes[index].as_mut() else { continue };
            let is_old =
                !volume.homed.is_empty() && volume.homed_since.after_ms(HOMED_AGE_MS) <= now;
            let is_long = volume.homed.len() >= HOMED_MAX;
            if (is_old || is_long) && !volume.flushes.is_under_way() {
                volume.flushes.join(Waiter::Nobody);
            }
            if !volume.flushes.is_due() {
                continue;
            }
            volume.flushes.begin();
            if volume.service == Service::GivenUp {
                // Its origin may never answer; nothing of it counts as durable any more.
                self.on_origin_flush_complete(slot, Err(IoError::Gone));
                continue;
            }
            let volume = self.volume_mut(slot);
            volume.counters.origin_flushes += 1;
            let facts = volume.facts.expect("a missing origin is never written");
            let has_cache = facts.has_volatile_cache;
            if has_cache {
                self.submit(Device::Origin(slot), IoKind::Flush, IoPurpose::OriginFlush(slot));
            } else {
                self.on_origin_flush_complete(slot, Ok(()));
            }
        }
    }

    /// When blocks that were written home want an origin flush.
    pub(crate) fn homed_wakeup(&self) -> Option<Time> {
        self.volumes
            .iter()
            .flatten()
            .filter(|volume| !volume.homed.is_empty() && !volume.flushes.is_under_way())
            .map(|volume| volume.homed_since.after_ms(HOMED_AGE_MS))
            .min()
    }

    pub(crate) fn on_origin_flush_complete(&mut self, slot: VolumeSlot, result: IoResult) {
        let now = self.now;
        let volume = self.volume_mut(slot);
        let number = volume.flushes.end();
        self.go_on();
        let volume = self.volume_mut(slot);
        if result.is_err() {
            volume.counters.origin_errors += 1;
            volume.had_write_errors = true;
            volume.failed_flushes += 1;
            // What was written home stays dirty and is written again; what went around the log has
            // no other copy, so its loss must stay visible.
            if !has_defect(Defect::FailedFlushMakesClean) {
                volume.homed.clear();
            }
            volume.needs_writeback |= volume.dirty_blocks > 0;
            volume.has_lost_writes |= !volume.around.is_empty() || !volume.mode.keeps_dirty();
        } else {
            volume.around.retain(|(_, _, needs)| *needs > number);
        }
        let mut clean: Vec<Homed> = Vec::new();
        while let Some(homed) = volume.homed.front().copied() {
            if homed.needs > number {
                break;
            }
            volume.homed.pop_front();
            clean.push(homed);
        }
        if result.is_err() || volume.epoch_flush.is_some_and(|needs| needs <= number) {
            volume.epoch_flush = None;
        }
        volume.homed_since = now;
        let is_dirty = volume.dirty_blocks > 0;
        if result.is_ok() {
            self.writeback.pauses.on_origin_flushed(slot, now);
        } else if is_dirty {
            // Or it would write and flush in a loop as long as the flush fails.
            self.pause_writeback(slot, PauseCause::Origin);
        }
        let ended = if result.is_ok() { Ended::Well } else { Ended::Failed };
        // Promise 3: what a failed flush may have lost was perhaps written for a request that waits
        // for this one.
        let is_forgotten = [Defect::WaitAcrossFailedFlush, Defect::FailedFlushForgotten]
            .into_iter()
            .any(has_defect);
        let has_lost_writes = self.volume(slot).has_lost_writes && !is_forgotten;
        while let Some(waiter) = self.volume_mut(slot).flushes.pop_finished() {
            let is_in_vain = has_lost_writes && matches!(waiter, Waiter::Operation(_));
            self.wake(waiter, if is_in_vain { Ended::Failed } else { ended });
        }
        // Rule 5: clean only after an origin flush that began after the origin write completed.
        for homed in clean {
            self.mark_clean(slot, &homed);
        }
    }

    /// Notes that the origin has these blocks (start, count, version); they are clean after its
    /// next flush. Not if a flush failed since their writes began, when `failed_flushes` had: it
    /// may have lost what was complete by then, and the next one would not tell. They stay dirty
    /// and are written again.
    pub(crate) fn note_homed(
        &mut self,
        slot: VolumeSlot,
        (start, block_count, version): (u64, u64, crate::units::Version),
        failed_flushes: u64,
    ) {
        let now = self.now;
        let volume = self.volume_mut(slot);
        let is_unsure = volume.failed_flushes != failed_flushes;
        if is_unsure && !has_defect(Defect::HomedAcrossFailedFlush) {
            volume.needs_writeback = true;
            return;
        }
        if volume.homed.is_empty() {
            volume.homed_since = now;
        }
        let needs = volume.flushes.next_number_unless(Defect::HomedFlushUnderWayCounts);
        let homed = Homed { start, block_count, version, needs };
        volume.homed.push_back(homed);
        if has_defect(Defect::CleanWhenWritten) {
            self.mark_clean(slot, &homed);
        }
    }

    /// The origin durably has this version: its copies, wherever they are now, are clean.
    pub(crate) fn mark_clean(&mut self, slot: VolumeSlot, homed: &Homed) {
        let end = homed.start + homed.block_count;
        let mut pieces = Vec::new();
        let index = &self.volume(slot).index;
        index.complete.pieces(homed.start, end, &mut pieces);
        index.pending.pieces(homed.start, end, &mut pieces);
        pieces.retain(|piece| piece.version == homed.version);
        let mut cleared = 0;
        for piece in pieces {
            match piece.place {
                Place::Data(_) => {
                    for position in piece.positions() {
                        cleared += u64::from(self.log.segments.clear_dirty(position));
                    }
                }
                Place::Blank { header, .. } => {
                    cleared += self.mark_blank_clean(slot, header, homed);
                }
                Place::Absent => {}
            }
        }
        self.subtract_dirty(slot, cleared);
    }

    /// A blank record is clean as a whole, once all that was live of it was written. Not so another
    /// record of the same version: reclaim moves a record in pieces, and when a crash or want of
    /// room comes between them, or a crash takes what was to supersede some, they are where they
    /// were. Each record goes home by itself, so the run must stand for this very one. Poison never
    /// is clean (rule 12): a block that rotted after it was written home stays an error until it is
    /// overwritten, and counts as one of the dirty blocks that nothing can bring home.
    fn mark_blank_clean(&mut self, slot: VolumeSlot, header: CacheBlock, homed: &Homed) -> u64 {
        let Some(blank) = self.log.blanks.get(&header.0).copied() else { return 0 };
        if blank.kind == BlankKind::Poison || !self.log.segments.is_dirty(header) {
            return 0;
        }
        if (blank.start, blank.block_count) != (homed.start, homed.block_count) {
            // In the modes that keep nothing dirty nobody else would bring it home.
            self.volume_mut(slot).needs_writeback = true;
            return 0;
        }
        let live = blank.live_blocks;
        self.log.segments.clear_dirty(header);
        self.writeback.clean_blanks.push_back(header);
        live
    }
}
