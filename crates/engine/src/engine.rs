//! The engine: its state, what comes in and what goes out.
//!
//! Everything that happens enters by a `handle_*` method, which changes state and puts what is to
//! be done into queues; `poll_*` methods take it out. Flows that wait (a write for its record,
//! reclaim for a flush) are small state machines in `path`, `background`, `log` and `recovery`;
//! when what they wait for ends they find their turn in the queue of wakes.
//!
//! What this deliberately does not do: read a clock, allocate payload on a hit, call its host.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::admission::Admission;
use crate::background::checkpoint::CheckpointJob;
use crate::background::idle_mark::IdleMark;
use crate::background::reclaim::ReclaimJob;
use crate::background::superblock::SuperblockWriter;
use crate::background::writeback::WritebackJob;
use crate::block_bits::BlockBits;
use crate::command::{EARLY_COMMANDS_MAX, StopStage};
use crate::event::{Command, CommandId, Event, SavedMark};
use crate::explain::{Candidate, Question};
use crate::failure::CacheFailure;
use crate::failure::degraded::ErrorLevel;
use crate::failure::hand_over::{HandOver, Inheritance};
use crate::failure::ride::Late;
use crate::failure::waiting::ReturnWait;
use crate::fingerprint::HeadReads;
use crate::format::superblock::Superblock;
use crate::index::Piece;
use crate::io::{Device, Io, IoId, IoKind, IoResult};
use crate::log::Log;
use crate::options::{CacheFacts, OriginOpening, SetSettings};
use crate::path::Operation;
use crate::path::miss::Miss;
use crate::path::pace::Pace;
use crate::path::room::RoomQueue;
use crate::path::write::Unit;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::range_lock::LockOwner;
use crate::recovery::Recovery;
use crate::replacement::Replacement;
use crate::request::{Reply, Request};
use crate::slab::{Key, Slab};
use crate::status::SetCounters;
use crate::takeover::TakeoverStage;
use crate::units::{CacheBlock, Generation, Time, VolumeSlot};
use crate::volume::Volume;
use crate::wake::{Ended, Waiter, Wake};

/// Milliseconds until the engine asks again for a buffer that its host did not have.
const MEMORY_RETRY_MS: u64 = 1;
/// Rounds of scheduling before the host gets its turn.
const PASSES_MAX: usize = 64;

/// What a device operation is for.
pub(crate) enum IoPurpose {
    /// Blocks of a read that hit.
    ReadHit { part: Key },
    /// An origin read of a miss or a repair.
    Miss { miss: Key },
    /// The old content of a block that is merged.
    UnitOld { unit: Key, position: Option<CacheBlock> },
    /// A client's write to the origin.
    UnitOrigin { unit: Key },
    /// A record of the log.
    Record(Key),
    /// A summary.
    Summary { segment: u32, generation: Generation, buffer: BufferId, blocks: u32 },
    /// A flush of the cache device.
    CacheFlush,
    /// A flush of an origin.
    OriginFlush(VolumeSlot),
    /// The summary of a segment, for reclaim or writeback.
    LoadSummary { segment: u32, buffer: BufferId, bytes: u32, user: SummaryUser },
    /// A header, for a question.
    ReadHeader { candidate: Candidate, buffer: BufferId },
    /// Blocks to be relocated.
    ReclaimRead { item: usize, buffer: BufferId },
    /// Blocks to be written back.
    WritebackRead { run: Key, piece: Piece },
    /// What an origin holds between blocks to be written back.
    WritebackGaps { run: Key },
    /// A write to the origin by writeback, of so many blocks of data.
    WritebackWrite { run: Key, blocks: u64 },
    /// Part of a checkpoint.
    Checkpoint { buffer: BufferId },
    /// A place of the superblock.
    Superblock { buffer: BufferId },
    /// A freed segment.
    DiscardSegment(u32),
    /// The first blocks of an origin, to be compared.
    OriginHead { slot: VolumeSlot, range: BufferRange },
    /// Anything of recovery.
    Recovery { step: crate::recovery::RecoveryIo, attempts: u32 },
}

/// A device operation under way.
pub(crate) struct PendingIo {
    pub(crate) purpose: IoPurpose,
    pub(crate) device: Device,
    pub(crate) started: Time,
}

/// Who reads a summary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SummaryUser {
    Reclaim,
    Writeback,
    /// The detach of a volume that gives its dirty data up.
    Discard(VolumeSlot),
}

/// Where the engine is in its life.
pub(crate) enum Phase {
    Recovering(Box<Recovery>),
    Serving,
    /// Nothing was written; nothing is served.
    Refused,
    /// Stopped by command.
    Stopped,
}

/// Vectors that are used again, so that a request allocates nothing.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) winners: Vec<Piece>,
    pub(crate) lookup: Vec<Piece>,
    removed: Vec<Piece>,
    inserted: Vec<Piece>,
    granted: Vec<LockOwner>,
}

impl Scratch {
    pub(crate) fn take_pieces(&mut self) -> (Vec<Piece>, Vec<Piece>) {
        (core::mem::take(&mut self.removed), core::mem::take(&mut self.inserted))
    }

    pub(crate) fn put_pieces(&mut self, mut removed: Vec<Piece>, mut inserted: Vec<Piece>) {
        removed.clear();
        inserted.clear();
        self.removed = removed;
        self.inserted = inserted;
    }
}

/// A cache set in service.
pub struct Engine {
    pub(crate) now: Time,
    pub(crate) phase: Phase,
    pub(crate) superblock: Superblock,
    pub(crate) cache_facts: CacheFacts,
    pub(crate) settings: SetSettings,
    pub(crate) volumes: Vec<Option<Volume>>,
    pub(crate) log: Log,
    pub(crate) replacement: Replacement,
    pub(crate) admission: Admission,
    /// Which blocks of the cache device were fetched ahead and not read since.
    pub(crate) ahead: BlockBits,
    pub(crate) operations: Slab<Operation>,
    pub(crate) read_parts: Slab<crate::path::read::ReadPart>,
    pub(crate) units: Slab<Unit>,
    pub(crate) pace: Pace,
    pub(crate) room: RoomQueue,
    pub(crate) misses: Slab<Miss>,
    pub(crate) ios: Slab<PendingIo>,
    pub(crate) io_queue: VecDeque<Io>,
    pub(crate) replies: VecDeque<Reply>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) wakes: VecDeque<Wake>,
    /// Flows that wait for a buffer.
    pub(crate) memory_waiters: VecDeque<Waiter>,
    pub(crate) needs_memory_retry: Option<Time>,
    pub(crate) checkpoint: CheckpointJob,
    pub(crate) idle_mark: IdleMark,
    pub(crate) reclaim: ReclaimJob,
    pub(crate) writeback: WritebackJob,
    pub(crate) superblock_writer: SuperblockWriter,
    pub(crate) stopping: Option<CommandId>,
    pub(crate) set_commands: VecDeque<CommandId>,
    pub(crate) early_requests: VecDeque<Request>,
    pub(crate) early_commands: VecDeque<(CommandId, Command)>,
    pub(crate) questions: VecDeque<Question>,
    pub(crate) cache_failed: Option<CacheFailure>,
    pub(crate) error_level: ErrorLevel,
    pub(crate) return_wait: ReturnWait,
    pub(crate) late: Late,
    pub(crate) hand_over: HandOver,
    /// From an engine that lost the cache device, until recovery has compared.
    pub(crate) inheritance: Option<Inheritance>,
    /// What waits for the log has still to be told that the cache device failed.
    pub(crate) needs_failure_cleanup: bool,
    /// Volumes that go on without their cache: their requests may go.
    pub(crate) needs_ungating: Vec<VolumeSlot>,
    pub(crate) stop_stage: StopStage,
    pub(crate) takeover: TakeoverStage,
    pub(crate) heads: HeadReads,
    /// Another round of scheduling may find something to do.
    pub(crate) again: bool,
    pub(crate) set_counters: SetCounters,
    pub(crate) started_at: Time,
    pub(crate) recovery_ms: u64,
    pub(crate) recovered_records: u64,
    pub(crate) scratch: Scratch,
}

impl Engine {
    /// Takes over a cache device. Recovery runs through the same polls as everything else and ends
    /// in [`Event::Serving`] or [`Event::RecoveryFailed`]; requests may be handed in before that
    /// and wait.
    #[must_use]
    pub fn recover(
        now: Time,
        superblock: Superblock,
        cache: CacheFacts,
        origins: &[OriginOpening],
    ) -> Engine {
        let geometry = superblock.geometry;
        let cache_blocks = u64::from(geometry.segment_count) * u64::from(geometry.segment_blocks());
        let log = Log::new(superblock.set_id, &geometry);
        let policy = superblock.settings.policy;
        let mut engine = Engine {
            now,
            phase: Phase::Recovering(Box::new(Recovery::new(&superblock, origins))),
            settings: superblock.settings,
            superblock,
            cache_facts: cache,
            volumes: Vec::new(),
            log,
            replacement: Replacement::new(policy, cache_blocks),
            admission: Admission::default(),
            ahead: BlockBits::new(cache_blocks),
            operations: Slab::default(),
            read_parts: Slab::default(),
            units: Slab::default(),
            pace: Pace::default(),
            room: RoomQueue::default(),
            misses: Slab::default(),
            ios: Slab::default(),
            io_queue: VecDeque::new(),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            wakes: VecDeque::new(),
            memory_waiters: VecDeque::new(),
            needs_memory_retry: None,
            checkpoint: CheckpointJob::default(),
            idle_mark: IdleMark::default(),
            reclaim: ReclaimJob::default(),
            writeback: WritebackJob::default(),
            superblock_writer: SuperblockWriter::default(),
            stopping: None,
            set_commands: VecDeque::new(),
            early_requests: VecDeque::new(),
            early_commands: VecDeque::new(),
            questions: VecDeque::new(),
            cache_failed: None,
            error_level: ErrorLevel::default(),
            return_wait: ReturnWait::default(),
            late: Late::default(),
            hand_over: HandOver::default(),
            inheritance: None,
            needs_failure_cleanup: false,
            needs_ungating: Vec::new(),
            stop_stage: StopStage::Ending,
            takeover: TakeoverStage::default(),
            heads: HeadReads::default(),
            again: false,
            set_counters: SetCounters::default(),
            started_at: now,
            recovery_ms: 0,
            recovered_records: 0,
            scratch: Scratch::default(),
        };
        engine.create_volumes(origins);
        engine
    }

    /// A client request arrived.
    pub fn handle_request(&mut self, now: Time, request: Request, payload: &mut dyn Payload) {
        self.now = now;
        match self.phase {
            Phase::Recovering(_) => self.early_requests.push_back(request),
            _ => self.start_request(request, payload),
        }
        self.run_wakes(payload);
    }

    /// A device operation ended.
    pub fn handle_io_complete(
        &mut self,
        now: Time,
        id: IoId,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        self.now = now;
        let io = self.ios.remove(Key::from_u64(id.0)).expect("the host knows its operations");
        let purpose = io.purpose;
        if let Err(error) = result {
            self.note_cache_error(&purpose, error);
        }
        self.note_origin_end(io.device, io.started, result);
        self.note_client_ends(&purpose);
        self.dispatch(purpose, result, payload);
        self.run_wakes(payload);
    }

    fn dispatch(&mut self, purpose: IoPurpose, result: IoResult, payload: &mut dyn Payload) {
        match purpose {
            IoPurpose::ReadHit { part } => self.on_read_hit_complete(part, result, payload),
            IoPurpose::Miss { miss } => self.on_miss_complete(miss, result, payload),
            IoPurpose::UnitOld { unit, position } => {
                self.on_old_block_read(unit, position, result, payload);
            }
            IoPurpose::UnitOrigin { unit } => self.on_unit_origin_written(unit, result, payload),
            IoPurpose::Record(key) => self.on_record_complete(key, result, payload),
            IoPurpose::Summary { segment, generation, buffer, blocks } => {
                self.on_summary_complete(segment, generation, (buffer, blocks), result, payload);
            }
            IoPurpose::CacheFlush => self.on_cache_flush_complete(result, payload),
            IoPurpose::OriginFlush(slot) => self.on_origin_flush_complete(slot, result),
            IoPurpose::LoadSummary { segment, buffer, bytes, user } => {
                self.on_summary_loaded(segment, (buffer, bytes), user, result, payload);
            }
            IoPurpose::ReadHeader { candidate, buffer } => {
                self.on_header_read(candidate, buffer, result, payload);
            }
            IoPurpose::ReclaimRead { item, buffer } => {
                self.on_reclaim_read(item, buffer, result, payload);
            }
            IoPurpose::WritebackRead { run, piece } => {
                self.on_writeback_read(run, piece, result, payload);
            }
            IoPurpose::WritebackGaps { run } => self.on_gaps_read(run, result, payload),
            IoPurpose::WritebackWrite { run, blocks } => {
                self.on_writeback_written(run, blocks, result, payload);
            }
            IoPurpose::Checkpoint { buffer } => {
                payload.release(buffer);
                self.on_checkpoint_written(result);
            }
            IoPurpose::Superblock { buffer } => {
                payload.release(buffer);
                self.on_superblock_written(result);
            }
            IoPurpose::OriginHead { slot, range } => {
                self.on_head_read(slot, range, result, payload);
            }
            IoPurpose::DiscardSegment(segment) => self.on_segment_discarded(segment),
            IoPurpose::Recovery { step, attempts } => {
                self.on_recovery_io(step, attempts, result, payload);
            }
        }
    }

    /// Time passed; to be called when [`Engine::poll_wakeup`] is due.
    pub fn handle_time(&mut self, now: Time, payload: &mut dyn Payload) {
        self.now = now;
        if self.needs_memory_retry.is_some_and(|at| at <= now) {
            self.needs_memory_retry = None;
        }
        self.run_wakes(payload);
    }

    /// The host state file says durably what [`Event::DirtyBegins`] or [`Event::CacheFailed`] asked
    /// for.
    pub fn handle_host_state_saved(&mut self, now: Time, volume: VolumeSlot, mark: SavedMark) {
        self.now = now;
        self.on_host_state_saved(volume, mark);
    }

    /// The operator asks for something.
    pub fn handle_command(&mut self, now: Time, id: CommandId, command: Command) {
        self.now = now;
        let has_place = self.early_commands.len() < EARLY_COMMANDS_MAX;
        match self.phase {
            Phase::Recovering(_) if has_place => self.early_commands.push_back((id, command)),
            _ => self.start_command(id, command),
        }
    }

    /// The next device operation to start.
    pub fn poll_io(&mut self, payload: &mut dyn Payload) -> Option<Io> {
        if self.io_queue.is_empty() {
            self.schedule(payload);
        }
        self.io_queue.pop_front()
    }

    /// The next reply to send.
    pub fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// The next event for the host.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Engine::handle_time`] is due, if nothing else happens before.
    #[must_use]
    pub fn poll_wakeup(&self) -> Option<Time> {
        if self.takeover.is_silent() {
            return None;
        }
        let times = [
            self.needs_memory_retry,
            self.writeback_wakeup(),
            self.reclaim_wakeup(),
            self.homed_wakeup(),
            self.idle_mark_wakeup(),
            self.return_wakeup(),
            self.origin_wakeup(),
            self.pace_wakeup(),
            self.discard_wakeup(),
            self.gate_wakeup(),
            self.hand_over_wakeup(),
        ];
        times.into_iter().flatten().min()
    }

    /// Decides what to do next, after everything that happened was handed in.
    fn schedule(&mut self, payload: &mut dyn Payload) {
        if self.needs_memory_retry.is_none() {
            for _ in 0..self.memory_waiters.len() {
                let waiter = self.memory_waiters.pop_front().expect("counted");
                self.wake(waiter, Ended::Well);
            }
        }
        for _ in 0..PASSES_MAX {
            self.again = false;
            self.schedule_once(payload);
            if !self.again {
                return;
            }
        }
        // Whatever is left goes on at the next input; make sure that there is one.
        self.needs_memory_retry.get_or_insert(self.now.after_ms(MEMORY_RETRY_MS));
    }

    fn schedule_once(&mut self, payload: &mut dyn Payload) {
        self.clean_up_after_failure(payload);
        self.end_return_wait();
        self.advance_origin_waits(payload);
        self.release_ungated(payload);
        self.advance_hand_over(payload);
        self.run_wakes(payload);
        if matches!(self.phase, Phase::Refused | Phase::Stopped) || self.takeover.is_silent() {
            return;
        }
        self.run_background(payload);
        self.advance_pace();
        self.run_wakes(payload);
        if !self.is_cache_failed() {
            self.submit_records(payload);
            self.write_summaries(payload);
            self.start_cache_flush();
        }
        self.start_origin_flushes();
        self.run_wakes(payload);
    }

    /// A job has moved to a state in which it can go on at once.
    pub(crate) fn go_on(&mut self) {
        self.again = true;
    }

    fn run_background(&mut self, payload: &mut dyn Payload) {
        if matches!(self.phase, Phase::Recovering(_)) {
            self.advance_recovery(payload);
        }
        self.advance_superblock(payload);
        self.advance_commands(payload);
        self.advance_takeover();
        self.advance_writeback(payload);
        self.advance_reclaim(payload);
        self.advance_checkpoint(payload);
        self.advance_idle_mark();
    }

    pub(crate) fn submit(&mut self, device: Device, kind: IoKind, purpose: IoPurpose) {
        self.note_client_begins(device, &purpose);
        let io = PendingIo { purpose, device, started: self.now };
        let id = IoId(self.ios.insert(io).to_u64());
        self.io_queue.push_back(Io { id, device, kind });
    }

    pub(crate) fn wake(&mut self, waiter: Waiter, ended: Ended) {
        if waiter != Waiter::Nobody {
            self.wakes.push_back(Wake { waiter, ended });
        }
    }

    fn run_wakes(&mut self, payload: &mut dyn Payload) {
        while let Some(Wake { waiter, ended }) = self.wakes.pop_front() {
            self.again = true;
            match waiter {
                Waiter::Nobody => {}
                Waiter::Unit(key) => self.on_unit_woken(key, ended, payload),
                Waiter::Operation(key) => self.on_operation_flushed(key, ended),
                Waiter::WritebackRun(key) => self.on_run_locked(key, payload),
                Waiter::Writeback => self.on_writeback_woken(ended),
                Waiter::Repair(key) => self.on_repair_locked(key, payload),
                Waiter::Reclaim => self.on_reclaim_woken(ended),
                Waiter::Checkpoint => self.on_checkpoint_woken(ended),
                Waiter::IdleMark => self.on_idle_mark_flushed(ended),
                Waiter::Superblock => self.on_superblock_flushed(ended),
                Waiter::Recovery => self.on_recovery_woken(ended),
                Waiter::Command(slot) => self.on_command_woken(slot, ended),
                Waiter::Discard(slot) => self.on_discard_woken(slot, ended),
                Waiter::SetCommand => self.on_set_command_durable(),
                Waiter::Stop => self.on_stop_durable(),
                Waiter::Takeover => self.on_takeover_durable(ended),
            }
        }
    }

    pub(crate) fn wait_for_memory(&mut self) {
        if self.needs_memory_retry.is_none() {
            self.needs_memory_retry = Some(self.now.after_ms(MEMORY_RETRY_MS));
        }
    }

    /// Releases a range lock and wakes those whose turn it is.
    pub(crate) fn unlock(&mut self, slot: VolumeSlot, owner: LockOwner) {
        let mut granted = core::mem::take(&mut self.scratch.granted);
        self.volume_mut(slot).locks.release(owner, &mut granted);
        for owner in granted.drain(..) {
            let waiter = match owner {
                LockOwner::Unit(key) => Waiter::Unit(key),
                LockOwner::WritebackRun(key) => Waiter::WritebackRun(key),
                LockOwner::Repair(key) => Waiter::Repair(key),
            };
            self.wake(waiter, Ended::Well);
        }
        self.scratch.granted = granted;
    }

    /// The volume in a slot that somebody named; `None` if there is none.
    pub(crate) fn find_volume(&self, slot: VolumeSlot) -> Option<&Volume> {
        self.volumes.get(usize::from(slot.0))?.as_ref()
    }

    pub(crate) fn volume(&self, slot: VolumeSlot) -> &Volume {
        self.volumes[usize::from(slot.0)].as_ref().expect("the slot is in use")
    }

    pub(crate) fn volume_mut(&mut self, slot: VolumeSlot) -> &mut Volume {
        self.volumes[usize::from(slot.0)].as_mut().expect("the slot is in use")
    }

    /// Slots in use, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = VolumeSlot> + '_ {
        (0u16..)
            .zip(&self.volumes)
            .filter(|(_, volume)| volume.is_some())
            .map(|(slot, _)| VolumeSlot(slot))
    }

    /// Slots in use, for work that changes volumes; not for the way of a hit, since it allocates.
    pub(crate) fn volume_slots(&self) -> Vec<VolumeSlot> {
        self.slots().collect()
    }

    pub(crate) fn add_dirty(&mut self, slot: VolumeSlot, blocks: u64) {
        let now = self.now;
        let volume = self.volume_mut(slot);
        if volume.dirty_blocks == 0 {
            volume.dirty_since = now;
        }
        volume.dirty_blocks += blocks;
    }

    pub(crate) fn subtract_dirty(&mut self, slot: VolumeSlot, blocks: u64) {
        let volume = self.volume_mut(slot);
        assert!(volume.dirty_blocks >= blocks);
        volume.dirty_blocks -= blocks;
    }

    pub(crate) fn is_cache_failed(&self) -> bool {
        self.cache_failed.is_some()
    }

    pub(crate) fn is_recovering(&self) -> bool {
        matches!(self.phase, Phase::Recovering(_))
    }

    /// Rule 8: a life writes no record before its own checkpoint is durable. A record of a later
    /// life than the checkpoint's says to the next start that a newer checkpoint is lost.
    pub(crate) fn may_append(&self) -> bool {
        match &self.phase {
            Phase::Serving => true,
            Phase::Recovering(recovery) => recovery.is_draining(),
            Phase::Refused | Phase::Stopped => false,
        }
    }
}
