//! Checkpoints (rule 6).
//!
//! A checkpoint is cut in one step: everything appended so far gets its sequence number, and the
//! segment table with its bits (shared until they change) describes exactly the records up to S,
//! all of them counted as complete. Then, in this order: the records up to S complete; the cache
//! device is flushed, so that nothing the checkpoint counts on can be lost; the body goes into the
//! older area; the device is flushed again. Only then may segments that the cut no longer counts on
//! be used again.

use alloc::vec::Vec;

use crate::command::StopStage;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::format::checkpoint::{BlankPiece, Checkpoint, SegmentLine, SegmentUse, VolumeLine};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::segments::SegmentState;
use crate::payload::{BufferRange, Payload};
use crate::units::{BLOCK_BYTES, CacheBlock};
use crate::wake::{Ended, Waiter};

/// Bytes of one write of a checkpoint body.
const CHUNK_BYTES: usize = 1 << 20;
/// A checkpoint is due after so many times its own size of log (DESIGN: "about every 64 times").
const LOG_PER_CHECKPOINT: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Waits for the records up to the cut.
    Completing,
    /// Waits for the first flush.
    FlushingLog,
    /// Writes the body.
    Writing,
    /// Waits for the second flush.
    FlushingBody,
}

#[derive(Default)]
pub(crate) struct CheckpointJob {
    state: State,
    /// Id of the last durable checkpoint.
    pub(crate) last_id: u64,
    /// The area that holds it: 0 or 1.
    pub(crate) last_area: u8,
    cut: Option<Checkpoint>,
    body: Vec<u8>,
    written: usize,
    writes_in_flight: usize,
    /// A record up to the cut failed and was moved: the cut is taken again (rule 2).
    pub(crate) cut_is_void: bool,
    /// Waiters for the checkpoint under way, and for one that is cut later.
    current: Vec<Waiter>,
    next: Vec<Waiter>,
    /// Bytes in the log when the last one was cut.
    log_bytes_at_cut: u64,
}

impl core::fmt::Debug for CheckpointJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} ({} + {} wait)", self.state, self.current.len(), self.next.len())
    }
}

impl CheckpointJob {
    pub(crate) fn on_counters_reset(&mut self) {
        self.log_bytes_at_cut = 0;
    }
}

impl Engine {
    /// Wakes `waiter` when a checkpoint that is cut from now on is durable.
    pub(crate) fn wait_for_checkpoint(&mut self, waiter: Waiter) {
        self.checkpoint.next.push(waiter);
    }

    /// `waiter` waits for no checkpoint any more. One that is under way goes on for the others.
    pub(crate) fn forget_checkpoint_waiter(&mut self, waiter: Waiter) {
        self.checkpoint.current.retain(|other| *other != waiter);
        self.checkpoint.next.retain(|other| *other != waiter);
    }

    fn log_bytes(&self) -> u64 {
        let counters = &self.set_counters;
        counters.client_bytes
            + counters.promoted_bytes
            + counters.relocated_bytes
            + counters.records * BLOCK_BYTES as u64
    }

    fn is_checkpoint_due(&self) -> bool {
        if !self.checkpoint.next.is_empty() {
            return true;
        }
        if self.is_recovering() {
            return false;
        }
        let since = self.log_bytes().saturating_sub(self.checkpoint.log_bytes_at_cut);
        let size = self.superblock.geometry.checkpoint_bytes;
        since >= size * LOG_PER_CHECKPOINT || self.wants_segments_back()
    }

    /// Whether reclaimed segments wait for a checkpoint while few are free or memory is short.
    fn wants_segments_back(&self) -> bool {
        (self.is_short_of_segments() || self.excess_memory_bytes() > 0)
            && self.log.segments.iter().any(|(_, segment)| {
                matches!(segment.state, SegmentState::Dropped(_)) && !segment.is_reusable
            })
    }

    pub(crate) fn advance_checkpoint(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            let job = &mut self.checkpoint;
            let waiters: Vec<Waiter> = job.current.drain(..).chain(job.next.drain(..)).collect();
            for waiter in waiters {
                self.wake(waiter, Ended::Failed);
            }
            return;
        }
        match self.checkpoint.state {
            State::Idle if self.is_checkpoint_due() => {
                self.checkpoint.current = core::mem::take(&mut self.checkpoint.next);
                self.checkpoint.log_bytes_at_cut = self.log_bytes();
                self.cut();
            }
            State::Writing => self.write_body(payload),
            _ => {}
        }
    }

    /// Rule 6: one step. Everything appended gets its number; bits are shared, not copied.
    fn cut(&mut self) {
        self.close_all_records();
        self.checkpoint.cut_is_void = false;
        let checkpoint = self.describe();
        let sequence = checkpoint.sequence;
        self.checkpoint.cut = Some(checkpoint);
        self.checkpoint.state = State::Completing;
        if self.log.complete_through() >= sequence || has_defect(Defect::CutBeforeRecords) {
            self.wake(Waiter::Checkpoint, Ended::Well);
        } else {
            self.log.frontier_waiters.push((sequence.0, Waiter::Checkpoint));
        }
    }

    fn is_dropping(&self, segment: u32) -> bool {
        self.reclaim.is_dropping(segment) && !has_defect(Defect::CutForgetsDrops)
    }

    fn describe(&self) -> Checkpoint {
        // What was used since changes all the time; a crash may forget it.
        let is_last =
            self.stop_stage == StopStage::Checkpointing || self.takeover.is_checkpointing();
        let segments = self.log.segments.iter().map(|(id, segment)| {
            let segment_use = match segment.state {
                // Its drop has a number up to that of the cut: recovery will not look at it again.
                SegmentState::Reclaiming if self.is_dropping(id) => SegmentUse::Free,
                SegmentState::Open => SegmentUse::Open,
                SegmentState::Closed | SegmentState::Reclaiming => SegmentUse::Closed,
                SegmentState::Free | SegmentState::Dropped(_) | SegmentState::Discarding => {
                    SegmentUse::Free
                }
            };
            SegmentLine {
                generation: segment.generation,
                last_sequence: segment.last_sequence,
                used_blocks: segment.used_blocks,
                summary_blocks: segment.summary_blocks,
                segment_use,
                bits: (segment_use != SegmentUse::Free).then(|| segment.bits.clone()),
                queue: self.log.segments.stretch(id).queue,
                references: (is_last && segment_use != SegmentUse::Free)
                    .then(|| self.references_of(id)),
            }
        });
        let volumes = self.volume_slots().into_iter().map(|slot| {
            let volume = self.volume(slot);
            VolumeLine {
                id: volume.id,
                epoch: volume.epochs.current(),
                drained_through: volume.epochs.drained().epoch,
            }
        });
        Checkpoint {
            id: self.checkpoint.last_id + 1,
            sequence: self.log.last_sequence,
            next_version: self.log.next_version,
            recovery_epoch: self.log.recovery_epoch,
            volumes: volumes.collect(),
            segments: segments.collect(),
            pieces: self.partial_blank_pieces(),
        }
    }

    /// Live pieces of blank records of which part was superseded.
    fn partial_blank_pieces(&self) -> Vec<BlankPiece> {
        let mut pieces = Vec::new();
        for (header, blank) in &self.log.blanks {
            let (segment, _) = self.log.segments.locate(CacheBlock(*header));
            if !blank.is_in_pieces() || self.is_dropping(segment) {
                continue;
            }
            let end = blank.start + blank.block_count;
            for piece in self.live_pieces(blank.slot, blank.start, end, CacheBlock(*header)) {
                pieces.push(BlankPiece {
                    position: *header,
                    start: piece.start,
                    block_count: u32::try_from(piece.block_count).expect("BLANK_BLOCKS_MAX"),
                });
            }
        }
        pieces
    }

    pub(crate) fn on_checkpoint_woken(&mut self, ended: Ended) {
        if ended == Ended::Failed {
            return;
        }
        match self.checkpoint.state {
            State::Completing if self.checkpoint.cut_is_void => self.cut(),
            State::Completing => {
                self.checkpoint.state = State::FlushingLog;
                let defect = Defect::CheckpointWithoutFirstFlush;
                self.join_cache_flush_unless(defect, Waiter::Checkpoint);
            }
            State::FlushingLog => {
                self.delay_bits();
                // A failed write since the cut is no harm: its record was complete by then.
                let cut = self.checkpoint.cut.as_ref().expect("it was cut");
                let hurries = [
                    Defect::CutBeforeRecords,
                    Defect::CheckpointWithoutFirstFlush,
                    Defect::FlushUnderWayCounts,
                ];
                let is_hurried = hurries.into_iter().any(has_defect);
                assert!(self.log.durable_through >= cut.sequence || is_hurried);
                let set_id = self.log.set_id;
                self.checkpoint.body = cut.encode(&set_id, &self.superblock.geometry);
                self.checkpoint.written = 0;
                self.checkpoint.state = State::Writing;
            }
            State::FlushingBody => self.end_checkpoint(),
            State::Idle | State::Writing => unreachable!("nothing is waited for"),
        }
    }

    /// Only if that defect is planted.
    fn delay_bits(&mut self) {
        if has_defect(Defect::BitsOfLaterMoment) {
            let late = self.describe().segments;
            let cut = self.checkpoint.cut.as_mut().expect("it was cut");
            for (line, late) in cut.segments.iter_mut().zip(late) {
                line.bits = late.bits.filter(|_| line.bits.is_some());
            }
        }
    }

    /// The older area: the one that does not hold the last durable checkpoint.
    fn write_body(&mut self, payload: &mut dyn Payload) {
        let geometry = self.superblock.geometry;
        let older = 1 - u64::from(self.checkpoint.last_area);
        let older = if has_defect(Defect::CheckpointOverNewest) { 1 - older } else { older };
        let area = geometry.checkpoint_offset + older * geometry.checkpoint_bytes;
        while self.checkpoint.written < self.checkpoint.body.len() {
            let from = self.checkpoint.written;
            let to = (from + CHUNK_BYTES).min(self.checkpoint.body.len());
            let Some(buffer) = payload.allocate(to - from) else {
                self.wait_for_memory();
                return;
            };
            let length = u32::try_from(to - from).expect("CHUNK_BYTES");
            let range = BufferRange { buffer, offset: 0, length };
            payload.metadata_mut(range).copy_from_slice(&self.checkpoint.body[from..to]);
            self.checkpoint.written = to;
            self.checkpoint.writes_in_flight += 1;
            self.set_counters.metadata_bytes += u64::from(length);
            let offset_bytes = area + from as u64;
            let kind = IoKind::Write { offset_bytes, slices: Slices::One(range) };
            self.submit(Device::Cache, kind, IoPurpose::Checkpoint { buffer });
        }
    }

    pub(crate) fn on_checkpoint_written(&mut self, result: IoResult) {
        self.checkpoint.writes_in_flight -= 1;
        if result.is_err() {
            self.count_write_failure();
            // Written again from the start: the other area still holds the one before.
            self.checkpoint.written = 0;
            return;
        }
        let is_whole = self.checkpoint.written == self.checkpoint.body.len();
        if self.checkpoint.writes_in_flight == 0 && is_whole {
            self.checkpoint.state = State::FlushingBody;
            let defect = Defect::CheckpointWithoutLastFlush;
            self.join_cache_flush_unless(defect, Waiter::Checkpoint);
        }
    }

    fn end_checkpoint(&mut self) {
        let cut = self.checkpoint.cut.take().expect("it was cut");
        self.checkpoint.state = State::Idle;
        self.checkpoint.body = Vec::new();
        self.checkpoint.last_id = cut.id;
        self.idle_mark.on_vouched(cut.sequence);
        self.checkpoint.last_area ^= u8::from(!has_defect(Defect::CheckpointOverNewest));
        self.set_counters.checkpoints += 1;
        for (id, line) in (0u32..).zip(&cut.segments) {
            let segment = self.log.segments.get_mut(id);
            let is_dropped_before = match segment.state {
                SegmentState::Dropped(sequence) => sequence <= cut.sequence,
                _ => false,
            };
            // Rule 6: reused only when a checkpoint cut after its drop is durable.
            let is_dropped = matches!(segment.state, SegmentState::Dropped(_));
            if (is_dropped_before && line.segment_use == SegmentUse::Free)
                || is_dropped && has_defect(Defect::ReuseByEarlierCheckpoint)
            {
                segment.is_reusable = true;
            }
        }
        for waiter in core::mem::take(&mut self.checkpoint.current) {
            self.wake(waiter, Ended::Well);
        }
        self.free_segments();
    }

    /// Segments that nothing counts on any more and nobody reads become free, after their discard.
    pub(crate) fn free_segments(&mut self) {
        for id in 0..self.log.segments.len() {
            let segment = self.log.segments.get(id);
            let is_dropped = matches!(segment.state, SegmentState::Dropped(_));
            let is_reusable = segment.is_reusable || has_defect(Defect::ReuseBeforeCheckpoint);
            let has_readers =
                self.log.segments.pins(id) > 0 && !has_defect(Defect::ReuseUnderReaders);
            if !is_dropped || !is_reusable || has_readers {
                continue;
            }
            if segment.is_summary_under_way {
                continue;
            }
            self.log.segments.get_mut(id).state = SegmentState::Discarding;
            self.set_counters.reclaimed_segments += 1;
            if self.settings.discard_freed_segments && self.cache_facts.supports_discard {
                let length_bytes = self.superblock.geometry.segment_bytes;
                let offset_bytes = self.cache_offset(self.log.position(id, 0));
                let kind = IoKind::Discard { offset_bytes, length_bytes };
                self.submit(Device::Cache, kind, IoPurpose::DiscardSegment(id));
                if !has_defect(Defect::ReuseBeforeDiscard) {
                    continue;
                }
            }
            self.on_segment_discarded(id);
        }
    }

    /// Rule 6: a segment is written again only when its discard has ended; a discard that came late
    /// would take new data with it.
    pub(crate) fn on_segment_discarded(&mut self, segment: u32) {
        let is_late = self.log.segments.get(segment).state != SegmentState::Discarding;
        if is_late && has_defect(Defect::ReuseBeforeDiscard) {
            return;
        }
        assert!(!is_late);
        self.log.segments.release(segment);
        self.on_segment_free();
    }
}
