//! Recovery (rule 8): from the bytes of a cache device to an engine that serves.
//!
//! Read both checkpoints and take the newer valid one; read what each segment holds, from its
//! summary or its headers, and the records that came after the checkpoint; let the highest version
//! of each block win. Nothing is written until all of that is known to be good. Then: flush the
//! cache device, so that what was seen stays; flush the origins, because writes may have gone there
//! that nobody flushed; write a checkpoint with a higher recovery epoch, which voids whatever else
//! still lies about in the log; bring home what writethrough and writearound volumes left dirty.
//! Only then serve. Beside a predecessor that still has the devices the first write waits until
//! that one has given them up, see [`crate::takeover`].

mod build;
mod epochs;
mod scan;

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use crate::command::EARLY_COMMANDS_MAX;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose, Phase};
use crate::epochs::{Cut, Epochs};
use crate::error::{Corrupt, RecoveryError};
use crate::event::Event;
use crate::failure::hand_over::judge_returned;
use crate::failure::ride::OriginRide;
use crate::format::checkpoint::Checkpoint;
use crate::format::superblock::Superblock;
use crate::io::{Device, IoError, IoKind, IoResult, Slices};
use crate::options::{HostMark, OriginFacts, OriginOpening};
use crate::payload::{BufferRange, Payload};
use crate::takeover::Predecessor;
use crate::units::{FlushEpoch, SequenceNumber, VolumeSlot};
use crate::volume::{HostMarkState, Service, Volume};
use crate::wake::{Ended, Waiter};
use build::Building;
use scan::{NewRecord, ScannedSegment};

/// Bytes of one read of a checkpoint area.
const CHUNK_BYTES: u64 = 1 << 20;
/// Device reads of recovery that are under way at once. So few that a hiccup which fails all of
/// them, and all that are tried again, leaves the device below what makes it degraded.
const READS_MAX: usize = 8;
/// Times that a failing read is tried again.
const READ_ATTEMPTS_MAX: u32 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Checkpoints,
    Segments,
    /// Compares what the origins hold with what it should be.
    Origins,
    /// Waits for the flushes of cache device and origins.
    Flushing,
    /// Waits for the superblock, if generations were raised.
    Superblock,
    Checkpoint,
    /// Writes back what writethrough and writearound volumes have dirty.
    Draining,
}

/// A read of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryIo {
    CheckpointChunk { area: u8, offset: u64, range: BufferRange },
    FirstBlock { segment: u32, range: BufferRange },
    Summary { segment: u32, range: BufferRange },
    Whole { segment: u32, range: BufferRange },
}

impl RecoveryIo {
    fn range(&self) -> BufferRange {
        match self {
            RecoveryIo::CheckpointChunk { range, .. }
            | RecoveryIo::FirstBlock { range, .. }
            | RecoveryIo::Summary { range, .. }
            | RecoveryIo::Whole { range, .. } => *range,
        }
    }
}

pub(crate) struct Recovery {
    stage: Stage,
    areas: [Vec<u8>; 2],
    /// Next chunk to read, over both areas.
    next_chunk: u64,
    /// A part of a checkpoint area could not be read.
    has_unread_area: bool,
    checkpoint: Option<Checkpoint>,
    /// Recovery epochs above the checkpoint's that may be taken: one if the other area is not
    /// valid. It may have held the first checkpoint of a later life, whose records must stay
    /// unseen.
    lost_epochs: u64,
    /// Next segment to look at.
    next_segment: u32,
    /// Segments of which more has to be read: the whole of them.
    whole: Vec<u32>,
    /// Those that were used again since the checkpoint: what it says of them is void.
    reused: BTreeSet<u32>,
    /// Those that could have been, and were not.
    unchanged: Vec<u32>,
    reads: usize,
    /// Those that were read whole: of most it is not known before the end where they end.
    segments: Vec<ScannedSegment>,
    building: Building,
    records: Vec<NewRecord>,
    /// All records up to this one were durable, as any header says.
    durable_through: SequenceNumber,
    segments_done: u32,
    flushes: usize,
    /// Volumes that were served without their cache: what the log has of them is void.
    outdated: Vec<VolumeSlot>,
    /// The superblock has to be written before anything is served.
    is_table_changed: bool,
    first_error: Option<RecoveryError>,
    /// Whether somebody else may still write to the devices.
    pub(crate) predecessor: Predecessor,
}

impl Recovery {
    pub(crate) fn new(superblock: &Superblock, origins: &[OriginOpening]) -> Recovery {
        let bytes = usize::try_from(superblock.geometry.checkpoint_bytes).expect("fits in memory");
        Recovery {
            stage: Stage::Checkpoints,
            areas: [vec![0; bytes], vec![0; bytes]],
            next_chunk: 0,
            has_unread_area: false,
            checkpoint: None,
            lost_epochs: 0,
            next_segment: 0,
            whole: Vec::new(),
            reused: BTreeSet::new(),
            unchanged: Vec::new(),
            reads: 0,
            segments: Vec::new(),
            building: Building::default(),
            records: Vec::new(),
            durable_through: SequenceNumber(0),
            segments_done: 0,
            flushes: 0,
            outdated: origins
                .iter()
                .filter(|origin| origin.mark == HostMark::ServedWithoutCache)
                .map(|origin| origin.slot)
                .collect(),
            is_table_changed: false,
            first_error: None,
            predecessor: Predecessor::Gone,
        }
    }

    /// Whether everything is read, flushed and checkpointed.
    pub(crate) fn is_draining(&self) -> bool {
        self.stage == Stage::Draining
    }

    /// Segments read so far.
    pub(crate) fn segments_done(&self) -> u32 {
        self.segments_done
    }
}

impl Engine {
    pub(crate) fn create_volumes(&mut self, origins: &[OriginOpening]) {
        let slots: Vec<VolumeSlot> = self.superblock.slots().map(|(slot, _)| slot).collect();
        for slot in slots {
            let opening = origins.iter().find(|origin| origin.slot == slot);
            self.create_volume(slot, opening.and_then(|origin| origin.facts));
        }
    }

    pub(crate) fn create_volume(&mut self, slot: VolumeSlot, facts: Option<OriginFacts>) {
        let stored = self.superblock.volume(slot).expect("the slot is in the table");
        let nothing_drained = Cut { epoch: FlushEpoch(0), last: self.log.last_version() };
        let volume = Volume {
            id: stored.id,
            generation: stored.generation,
            mode: stored.mode,
            settings: stored.settings,
            facts,
            // That of the table, also where the origin is larger: clients were promised this one,
            // and behind its end the origin belongs to somebody else.
            size_bytes: stored.size_bytes,
            service: if facts.is_some() { Service::Cached } else { Service::Quiesced },
            index: Default::default(),
            locks: Default::default(),
            misses: Vec::new(),
            sequential: Default::default(),
            read_ahead: Default::default(),
            origin_cost: Default::default(),
            origin_use: Default::default(),
            run_depth: Default::default(),
            rate_controller: Default::default(),
            next_run_at: Default::default(),
            ceiling_at: Default::default(),
            bad_extents: Default::default(),
            flushes: Default::default(),
            around: Default::default(),
            unsure: Default::default(),
            homed: Default::default(),
            homed_since: self.now,
            epoch_flush: None,
            has_lost_writes: false,
            had_write_errors: false,
            ride: OriginRide::default(),
            failed_flushes: 0,
            dirty_blocks: 0,
            dirty_since: Default::default(),
            needs_writeback: false,
            host_mark: HostMarkState::Clear,
            mark_waiters: Vec::new(),
            epochs: Epochs::new(stored.writeback_order, nothing_drained),
            is_gated: false,
            gated: Default::default(),
            operations: 0,
            command: None,
            counters: Default::default(),
        };
        let index = usize::from(slot.0);
        if self.volumes.len() <= index {
            self.volumes.resize_with(index + 1, || None);
        }
        assert!(self.volumes[index].is_none(), "a slot has one volume");
        self.volumes[index] = Some(volume);
    }

    pub(crate) fn recovery(&mut self) -> &mut Recovery {
        let Phase::Recovering(recovery) = &mut self.phase else {
            unreachable!("only called while recovering")
        };
        recovery
    }

    pub(crate) fn refuse(&mut self, error: RecoveryError) {
        self.recovery().first_error.get_or_insert(error);
        self.go_on();
    }

    pub(crate) fn advance_recovery(&mut self, payload: &mut dyn Payload) {
        let recovery = self.recovery();
        if let Some(error) = recovery.first_error {
            if recovery.reads == 0 {
                self.end_refused(error);
            }
            return;
        }
        match recovery.stage {
            Stage::Checkpoints => self.read_checkpoints(payload),
            Stage::Segments => self.read_segments(payload),
            Stage::Origins => {
                if self.advance_heads(payload) && !self.waits_for_predecessor() {
                    let is_changed = self.check_fingerprints();
                    self.recovery().is_table_changed |= is_changed;
                    self.start_flushing();
                }
            }
            Stage::Draining => self.advance_recovery_drain(payload),
            Stage::Flushing | Stage::Superblock | Stage::Checkpoint => {
                if self.is_cache_failed() {
                    self.end_refused(RecoveryError::CacheIo);
                }
            }
        }
    }

    fn end_refused(&mut self, error: RecoveryError) {
        self.phase = Phase::Refused;
        self.events.push_back(Event::RecoveryFailed(error));
        for request in core::mem::take(&mut self.early_requests) {
            self.replies.push_back(crate::request::Reply {
                id: request.id,
                result: Err(crate::request::RequestError::Io),
                served: crate::request::Served::NoRead,
            });
        }
        for (id, _) in core::mem::take(&mut self.early_commands) {
            self.end_command(id, Err(crate::event::CommandError::CacheFailed));
        }
    }

    fn read_checkpoints(&mut self, payload: &mut dyn Payload) {
        let geometry = self.superblock.geometry;
        let chunks = geometry.checkpoint_bytes.div_ceil(CHUNK_BYTES);
        while self.recovery().next_chunk < 2 * chunks && self.recovery().reads < READS_MAX {
            let chunk = self.recovery().next_chunk;
            let (area, offset) = (chunk / chunks, chunk % chunks * CHUNK_BYTES);
            let length = CHUNK_BYTES.min(geometry.checkpoint_bytes - offset);
            let at = geometry.checkpoint_offset + area * geometry.checkpoint_bytes + offset;
            let area = u8::try_from(area).expect("0 or 1");
            let read = |range| RecoveryIo::CheckpointChunk { area, offset, range };
            if !self.submit_recovery_read(at, length, read, payload) {
                return;
            }
            self.recovery().next_chunk += 1;
        }
        if self.recovery().next_chunk == 2 * chunks && self.recovery().reads == 0 {
            self.choose_checkpoint();
        }
    }

    fn choose_checkpoint(&mut self) {
        let (set_id, geometry) = (self.log.set_id, self.superblock.geometry);
        let recovery = self.recovery();
        let decode = |area: u8, bytes: &[u8]| -> Result<Checkpoint, Corrupt> {
            Checkpoint::decode(&set_id, &geometry, area, bytes)
        };
        let a = decode(0, &recovery.areas[0]);
        let b = decode(1, &recovery.areas[1]);
        let is_one_lost = a.is_err() || b.is_err();
        let best = match (a, b) {
            (Ok(a), Ok(b)) => Ok(if a.id > b.id { (0, a) } else { (1, b) }),
            (Ok(a), Err(_)) => Ok((0, a)),
            (Err(_), Ok(b)) => Ok((1, b)),
            (Err(error), Err(_)) => Err(error),
        };
        let refusal = |(area, checkpoint): &(u8, Checkpoint)| {
            judge_returned(self.inheritance.as_ref(), checkpoint, *area)
        };
        if let Some(error) = best.as_ref().ok().and_then(refusal) {
            self.refuse(error);
            return;
        }
        let recovery = self.recovery();
        match best {
            Ok((area, checkpoint)) => {
                recovery.lost_epochs = u64::from(is_one_lost);
                recovery.areas = [Vec::new(), Vec::new()];
                recovery.building = Building::new(&checkpoint);
                recovery.checkpoint = Some(checkpoint);
                recovery.stage = Stage::Segments;
                self.checkpoint.last_area = area;
                self.raise_outdated();
                self.go_on();
            }
            Err(_) if recovery.has_unread_area => self.refuse(RecoveryError::CacheIo),
            Err(error) => self.refuse(RecoveryError::NoCheckpoint(error)),
        }
    }

    /// Starts a read; `false` if there is no buffer now.
    fn submit_recovery_read(
        &mut self,
        offset_bytes: u64,
        length: u64,
        step: impl FnOnce(BufferRange) -> RecoveryIo,
        payload: &mut dyn Payload,
    ) -> bool {
        let bytes = usize::try_from(length).expect("a segment at most");
        let Some(buffer) = payload.allocate(bytes) else {
            self.wait_for_memory();
            return false;
        };
        let length = u32::try_from(length).expect("a segment at most");
        let range = BufferRange { buffer, offset: 0, length };
        self.recovery().reads += 1;
        let kind = IoKind::Read { offset_bytes, slices: Slices::One(range) };
        self.submit(Device::Cache, kind, IoPurpose::Recovery { step: step(range), attempts: 1 });
        true
    }

    pub(crate) fn on_recovery_io(
        &mut self,
        step: RecoveryIo,
        attempts: u32,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let range = step.range();
        self.recovery().reads -= 1;
        if result.is_err() {
            if attempts < READ_ATTEMPTS_MAX {
                self.read_again_for_recovery(step, attempts + 1);
                return;
            }
            self.on_unreadable_for_recovery(step, result);
        } else {
            match step {
                RecoveryIo::CheckpointChunk { area, offset, .. } => {
                    let from = usize::try_from(offset).expect("fits in memory");
                    let to = from + range.length as usize;
                    let bytes = payload.metadata(range);
                    self.recovery().areas[usize::from(area)][from..to].copy_from_slice(bytes);
                }
                RecoveryIo::FirstBlock { segment, .. } => {
                    self.on_first_block(segment, range, payload);
                }
                RecoveryIo::Summary { segment, .. } => {
                    self.on_recovery_summary(segment, range, payload);
                }
                RecoveryIo::Whole { segment, .. } => {
                    self.on_whole_segment(segment, range, payload);
                }
            }
        }
        payload.release(range.buffer);
    }

    /// What the device reports as unreadable, again and again and whatever it calls it, counts as
    /// damaged: there may be another place that says the same. A device that is gone, or hangs,
    /// tells nothing about its content.
    fn on_unreadable_for_recovery(&mut self, step: RecoveryIo, result: IoResult) {
        match (step, result) {
            // The area stays zeroes where it could not be read, which its checksum finds out.
            (RecoveryIo::CheckpointChunk { .. }, Err(IoError::Media | IoError::Transient)) => {
                self.recovery().has_unread_area = true;
            }
            (RecoveryIo::Summary { segment, .. }, Err(IoError::Media | IoError::Transient)) => {
                self.recovery().whole.push(segment);
            }
            _ => self.refuse(RecoveryError::CacheIo),
        }
    }

    fn read_again_for_recovery(&mut self, step: RecoveryIo, attempts: u32) {
        let geometry = self.superblock.geometry;
        let offset_bytes = match step {
            RecoveryIo::CheckpointChunk { area, offset, .. } => {
                geometry.checkpoint_offset + u64::from(area) * geometry.checkpoint_bytes + offset
            }
            RecoveryIo::FirstBlock { segment, .. } | RecoveryIo::Whole { segment, .. } => {
                self.cache_offset(self.log.position(segment, 0))
            }
            RecoveryIo::Summary { segment, .. } => {
                let line = self.checkpoint_line(segment);
                let used = line.used_blocks;
                self.cache_offset(self.log.position(segment, used))
            }
        };
        self.recovery().reads += 1;
        let kind = IoKind::Read { offset_bytes, slices: Slices::One(step.range()) };
        self.submit(Device::Cache, kind, IoPurpose::Recovery { step, attempts });
    }

    pub(super) fn enter_origins_stage(&mut self) {
        self.recovery().stage = Stage::Origins;
        self.go_on();
    }

    /// Everything is read and built. From here on things are written.
    fn start_flushing(&mut self) {
        self.go_on();
        self.recovery().stage = Stage::Flushing;
        let mut flushes = 1;
        // What was read may still be in the device's volatile cache only.
        self.join_cache_flush(Waiter::Recovery);
        for slot in self.volume_slots() {
            let volume = self.volume_mut(slot);
            if volume.facts.is_some() && !has_defect(Defect::OriginNotFlushedAtRecovery) {
                // Writes may have gone around the log and never been flushed; nothing of the origin
                // is promoted, and nothing clean believed, before it is durable.
                volume.flushes.join(Waiter::Recovery);
                flushes += 1;
            }
        }
        self.recovery().flushes = flushes;
    }

    pub(crate) fn on_recovery_woken(&mut self, ended: Ended) {
        if !self.is_recovering() {
            return;
        }
        match (self.recovery().stage, ended) {
            (Stage::Flushing, _) => {
                // A failed origin flush shows in its volume, below.
                self.recovery().flushes -= 1;
                if self.recovery().flushes == 0 && !self.is_cache_failed() {
                    self.on_recovery_flushed();
                }
            }
            (Stage::Superblock, Ended::Well) => self.start_recovery_checkpoint(),
            (Stage::Checkpoint, Ended::Well) => self.recovery().stage = Stage::Draining,
            // A device that is given up ends recovery before it wakes anybody.
            _ => unreachable!("nothing is awaited"),
        }
    }

    fn on_recovery_flushed(&mut self) {
        for slot in self.volume_slots() {
            let volume = self.volume_mut(slot);
            if volume.has_lost_writes || volume.failed_flushes > 0 {
                // An origin that cannot even flush is not served; its data is kept.
                volume.service = Service::Quiesced;
            }
        }
        if !self.recovery().is_table_changed {
            self.start_recovery_checkpoint();
        } else {
            self.recovery().stage = Stage::Superblock;
            self.write_superblock(Waiter::Recovery);
        }
    }

    fn start_recovery_checkpoint(&mut self) {
        self.recovery().stage = Stage::Checkpoint;
        if has_defect(Defect::ServedBeforeCheckpoint) {
            self.wake(Waiter::Recovery, Ended::Well);
        } else {
            self.wait_for_checkpoint(Waiter::Recovery);
        }
    }

    /// Rule 8: a writethrough or writearound volume is drained before it is served: its clients
    /// were told that the origin has what they wrote.
    fn advance_recovery_drain(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            self.end_refused(RecoveryError::CacheIo);
            return;
        }
        let mut waits = false;
        for slot in self.volume_slots() {
            let poisoned = self.poisoned_blocks(slot);
            let volume = self.volume(slot);
            let owes = volume.service == Service::Cached
                && !volume.mode.keeps_dirty()
                && volume.dirty_blocks > poisoned
                && !has_defect(Defect::NotDrainedAtRecovery);
            if !owes {
                continue;
            }
            if self.has_origin_error(slot) {
                let volume = self.volume_mut(slot);
                volume.service = Service::Quiesced;
                continue;
            }
            self.volume_mut(slot).needs_writeback = true;
            // Blocks that cannot be read keep nothing else waiting: they are errors of their own.
            waits |= !self.is_lastingly_unreadable(slot);
        }
        if !waits && self.writeback.is_idle() {
            self.start_serving(payload);
        }
    }

    fn start_serving(&mut self, payload: &mut dyn Payload) {
        let Phase::Recovering(recovery) = core::mem::replace(&mut self.phase, Phase::Serving)
        else {
            unreachable!("called while recovering")
        };
        assert!(recovery.reads == 0);
        self.go_on();
        self.recovery_ms = self.now.nanoseconds_since(self.started_at) / 1_000_000;
        for slot in self.volume_slots() {
            self.volume_mut(slot).counters = Default::default();
        }
        self.poison_missing();
        self.events.push_back(Event::Serving);
        for slot in self.volume_slots() {
            if self.volume(slot).dirty_blocks > 0 {
                self.ask_for_dirty_mark(slot);
            }
        }
        assert!(self.early_commands.len() <= EARLY_COMMANDS_MAX);
        for request in core::mem::take(&mut self.early_requests) {
            self.start_request(request, payload);
        }
        for (id, command) in core::mem::take(&mut self.early_commands) {
            self.start_command(id, command);
        }
    }
}
