//! Writeback: dirty data goes home.
//!
//! A window is the oldest stretch of the log that has dirty blocks. Its blocks are sorted by origin
//! position, merged into runs of up to 1 MiB, read from the cache device, written under the range
//! lock, and the origin is flushed; then they are clean. Rule 5 stands over it: a block is written
//! home only after its record is durable on the cache device, for otherwise a power cut could leave
//! on the origin what the volume never durably had, in an order that no flush allowed.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::background::pause::{PauseCause, Pauses};
use crate::background::segment_entries::SegmentRange;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose, Phase, SummaryUser};
use crate::index::{BlankKind, Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::log::segments::SegmentState;
use crate::path::read::blocks_of;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::range_lock::{LockKind, LockOwner};
use crate::slab::{Key, Slab};
use crate::units::{BLOCK_BYTES, CacheBlock, EXTENT_BLOCKS_MAX, Time, VolumeSlot};
use crate::volume::Service;
use crate::wake::{Ended, Waiter};

/// Segments of one window.
const WINDOW_SEGMENTS_MAX: usize = 16;
/// Runs under way at once.
const RUNS_IN_FLIGHT_MAX: usize = 4;
/// Milliseconds until another search, if one found nothing to write.
const REST_MS: u64 = 10;
/// Times that a dirty block is read before it counts as lost.
const READ_ATTEMPTS_MAX: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Idle,
    /// Finds out what the segments hold.
    Loading,
    /// Waits until the records are durable.
    Ahead,
    /// Writes runs.
    Writing,
    /// Waits for the origins' flushes.
    Flushing,
}

/// Blocks that are consecutive on the origin and written home together.
pub(crate) struct Run {
    slot: VolumeSlot,
    pieces: Vec<Piece>,
    buffer: Option<BufferId>,
    /// Per piece: whether its blocks were read and are good.
    is_good: Vec<bool>,
    reads: usize,
    writes: usize,
    has_failed: bool,
    has_unreadable: bool,
    /// Failed flushes of the origin when the writes began.
    failed_flushes: u64,
}

impl Run {
    fn start(&self) -> u64 {
        self.pieces.first().expect("a run is not empty").start
    }

    fn end(&self) -> u64 {
        self.pieces.last().expect("a run is not empty").end()
    }

    fn range(&self, from: u64, to: u64) -> BufferRange {
        let length =
            u32::try_from((self.end() - self.start()) * BLOCK_BYTES as u64).expect("1 MiB");
        let buffer = self.buffer.expect("allocated before it is used");
        blocks_of(BufferRange { buffer, offset: 0, length }, self.start(), from, to - from)
    }
}

#[derive(Default)]
pub(crate) struct WritebackJob {
    state: State,
    segments: Vec<u32>,
    next_segment: usize,
    loads: usize,
    pieces: Vec<(VolumeSlot, Piece)>,
    queue: VecDeque<Run>,
    runs: Slab<Run>,
    flushes: usize,
    touched: BTreeSet<VolumeSlot>,
    /// Reclaim needs clean segments.
    pub(crate) is_urgent: bool,
    /// Blank records that the origin durably has.
    pub(crate) clean_blanks: VecDeque<CacheBlock>,
    pub(crate) pauses: Pauses,
    /// Segments opened up to this one hold nothing that may be written home now.
    after_order: u64,
    /// After a vain search through all segments.
    rests_until: Time,
    /// Dirty blocks that had a wrong checksum, and how often.
    suspects: BTreeMap<CacheBlock, u8>,
}

impl core::fmt::Debug for WritebackJob {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (runs, queued) = (self.runs.len(), self.queue.len());
        write!(f, "{:?} ({runs} runs, {queued} queued, {} flushes", self.state, self.flushes)?;
        write!(f, ", urgent {})", self.is_urgent)
    }
}

impl WritebackJob {
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }
}

impl Engine {
    pub(crate) fn advance_writeback(&mut self, payload: &mut dyn Payload) {
        if self.is_cache_failed() {
            return;
        }
        self.forget_clean_blanks();
        self.wake_blank_waiters();
        self.hurry_homed();
        match self.writeback.state {
            State::Idle => self.start_window(),
            State::Loading => self.load_window(payload),
            State::Writing => self.start_runs(payload),
            State::Ahead | State::Flushing => {}
        }
        if self.writeback.state == State::Loading {
            self.load_window(payload);
        }
    }

    /// When a volume whose origin failed is tried again.
    pub(crate) fn writeback_wakeup(&self) -> Option<Time> {
        let pauses = self.writeback.pauses.ends();
        pauses.chain([self.writeback.rests_until]).filter(|at| *at > self.now).min()
    }

    /// Whether dirty data of the volume can be written home now.
    fn is_writable(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        let is_paused = self.writeback.pauses.is_paused(slot, self.now);
        volume.facts.is_some() && volume.service == Service::Cached && !is_paused
    }

    /// Whether waiting for writeback may free a segment.
    pub(crate) fn can_writeback_help(&self) -> bool {
        !self.writeback.is_idle()
            || self.slots().any(|slot| {
                self.is_writable(slot)
                    && self.volume(slot).dirty_blocks > self.poisoned_blocks(slot)
            })
    }

    pub(crate) fn poisoned_blocks(&self, slot: VolumeSlot) -> u64 {
        let poisoned = self
            .log
            .blanks
            .values()
            .filter(|blank| blank.slot == slot && blank.kind == BlankKind::Poison);
        poisoned.map(|blank| blank.live_blocks).sum()
    }

    fn is_window_due(&self) -> bool {
        let is_allowed = match &self.phase {
            Phase::Serving => self.has_clients(),
            // Rule 8: nothing goes home before the flushes and the checkpoint of recovery.
            Phase::Recovering(recovery) => recovery.is_draining(),
            _ => false,
        };
        let rests = self.writeback.rests_until > self.now;
        if !is_allowed || rests || self.wants_rest() || self.log.segments.dirty_count() == 0 {
            return false;
        }
        let capacity =
            u64::from(self.log.segments.len()) * u64::from(self.log.segments.segment_blocks());
        let is_wanted = |slot: VolumeSlot| {
            let volume = self.volume(slot);
            let percent = u64::from(volume.settings.writeback_percent);
            let poisoned = self.poisoned_blocks(slot);
            let dirty = volume.dirty_blocks.saturating_sub(poisoned);
            let is_full = volume.dirty_blocks * 100 > capacity * percent;
            // What was written home and waits for a flush needs no second write.
            dirty > 0
                && volume.homed.is_empty()
                && self.is_writable(slot)
                && self.owes_writeback(slot)
                && (is_full
                    || self.writeback.is_urgent
                    || self.is_degraded()
                    || volume.is_leaving()
                    || volume.needs_writeback
                    || self.is_short_of_blanks())
        };
        self.slots().any(is_wanted)
    }

    /// Whether dirty blocks of the volume wait for writeback. In the other modes a dirty block is
    /// one that its own write is bringing home just now, unless that failed.
    fn owes_writeback(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        volume.mode.keeps_dirty() || volume.needs_writeback
    }

    /// Asks for the origin flushes that would make blocks clean that are home already.
    fn hurry_homed(&mut self) {
        let is_hurried = self.writeback.is_urgent || self.is_recovering() || self.is_degraded();
        for volume in self.volumes.iter_mut().flatten() {
            let waits = !volume.homed.is_empty() && !volume.flushes.is_under_way();
            if waits && (is_hurried || volume.is_leaving()) && !volume.flushes.is_due() {
                volume.flushes.join(Waiter::Nobody);
            }
            if volume.dirty_blocks == 0 {
                volume.needs_writeback = false;
            }
        }
    }

    fn start_window(&mut self) {
        if !self.is_window_due() {
            return;
        }
        let mut dirty: Vec<(u64, u32)> = self
            .log
            .segments
            .iter()
            .filter(|(_, segment)| {
                segment.dirty > 0
                    && segment.open_order > self.writeback.after_order
                    && matches!(
                        segment.state,
                        SegmentState::Open | SegmentState::Closed | SegmentState::Reclaiming
                    )
            })
            .map(|(id, segment)| (segment.open_order, id))
            .collect();
        if dirty.is_empty() {
            // Looked at everything and found nothing to write.
            self.writeback.after_order = 0;
            self.writeback.rests_until = self.now.after_ms(REST_MS);
            return;
        }
        dirty.sort_unstable();
        dirty.truncate(WINDOW_SEGMENTS_MAX);
        self.writeback.segments = dirty.into_iter().map(|(_, id)| id).collect();
        self.writeback.next_segment = 0;
        self.writeback.is_urgent = false;
        self.writeback.state = State::Loading;
        self.go_on();
    }

    fn load_window(&mut self, payload: &mut dyn Payload) {
        while self.writeback.next_segment < self.writeback.segments.len() {
            let segment = self.writeback.segments[self.writeback.next_segment];
            self.writeback.loads += 1;
            if !self.load_entries(segment, SummaryUser::Writeback, payload) {
                self.writeback.loads -= 1;
                return;
            }
            self.writeback.next_segment += 1;
        }
        if self.writeback.loads == 0 {
            self.plan_runs();
        }
    }

    pub(crate) fn on_writeback_entries(&mut self, segment: u32, ranges: &[SegmentRange]) {
        self.writeback.loads -= 1;
        for (slot, piece) in self.pieces_in_segment(segment, ranges) {
            if self.is_writable(slot) && self.owes_writeback(slot) {
                self.push_dirty_parts(slot, &piece);
            }
        }
    }

    /// The dirty parts of a piece.
    fn push_dirty_parts(&mut self, slot: VolumeSlot, piece: &Piece) {
        let Place::Data(position) = piece.place else {
            let is_poison = matches!(piece.place, Place::Blank { kind: BlankKind::Poison, .. });
            if !is_poison && self.is_piece_dirty(piece) {
                self.writeback.pieces.push((slot, *piece));
            }
            return;
        };
        let mut start = None;
        for offset in 0..=piece.block_count {
            let is_dirty = offset < piece.block_count && {
                let skipped = u32::try_from(offset).expect("data pieces are small");
                self.log.segments.is_dirty(CacheBlock(position.0 + skipped))
            };
            match (is_dirty, start) {
                (true, None) => start = Some(piece.start + offset),
                (false, Some(from)) => {
                    let part = piece.clip(from, piece.start + offset);
                    self.writeback.pieces.push((slot, part));
                    start = None;
                }
                _ => {}
            }
        }
    }

    /// One sweep in origin order: sorted, and merged up to 1 MiB.
    fn plan_runs(&mut self) {
        let mut pieces = core::mem::take(&mut self.writeback.pieces);
        pieces.sort_unstable_by_key(|(slot, piece)| (*slot, piece.start));
        let mut queue: VecDeque<Run> = VecDeque::new();
        let mut blank_headers = BTreeSet::new();
        for (slot, piece) in pieces {
            if let Place::Blank { header, .. } = piece.place {
                // All live pieces of a blank record go home together.
                if !blank_headers.insert(header) {
                    continue;
                }
                queue.push_back(new_run(slot, piece));
                continue;
            }
            match queue.back_mut() {
                Some(run)
                    if run.slot == slot
                        && run.end() == piece.start
                        && matches!(run.pieces[0].place, Place::Data(_))
                        && piece.end() - run.start() <= u64::from(EXTENT_BLOCKS_MAX) =>
                {
                    run.pieces.push(piece);
                    run.is_good.push(false);
                }
                _ => queue.push_back(new_run(slot, piece)),
            }
        }
        if queue.is_empty() {
            self.end_empty_window();
            return;
        }
        self.writeback.after_order = 0;
        self.writeback.queue = queue;
        let needed = self.writeback.segments.iter().map(|id| self.log.segment_flush(*id)).max();
        if self.log.flushes.is_finished(needed.unwrap_or(0))
            || has_defect(Defect::WriteAheadSkipped)
        {
            self.writeback.state = State::Writing;
            self.go_on();
        } else {
            self.writeback.state = State::Ahead;
            self.join_cache_flush(Waiter::Writeback);
        }
    }

    /// The segments held nothing that may be written home now: dirty blocks of other volumes, or of
    /// records under way. The next window begins behind them.
    fn end_empty_window(&mut self) {
        let orders = self.writeback.segments.iter().map(|id| self.log.segments.get(*id).open_order);
        self.writeback.after_order = orders.max().unwrap_or(0);
        self.writeback.state = State::Idle;
        self.go_on();
    }

    pub(crate) fn on_writeback_woken(&mut self, ended: Ended) {
        match self.writeback.state {
            State::Ahead if ended == Ended::Well => self.writeback.state = State::Writing,
            State::Flushing => {
                self.writeback.flushes -= 1;
                if self.writeback.flushes == 0 {
                    self.writeback.state = State::Idle;
                }
            }
            _ => assert_eq!(ended, Ended::Failed),
        }
    }

    fn start_runs(&mut self, payload: &mut dyn Payload) {
        if self.wants_rest() {
            // What is left stays dirty.
            self.writeback.queue.clear();
        }
        while self.writeback.runs.len() < RUNS_IN_FLIGHT_MAX {
            let Some(run) = self.writeback.queue.pop_front() else { break };
            let is_data = matches!(run.pieces[0].place, Place::Data(_));
            let mut run = run;
            if is_data {
                let bytes = usize::try_from(run.end() - run.start()).expect("1 MiB") * BLOCK_BYTES;
                let Some(buffer) = payload.allocate(bytes) else {
                    self.writeback.queue.push_front(run);
                    self.wait_for_memory();
                    return;
                };
                run.buffer = Some(buffer);
            }
            let (slot, range) = (run.slot, self.lock_range(&run));
            let key = self.writeback.runs.insert(run);
            let owner = LockOwner::WritebackRun(key);
            let locks = &mut self.volume_mut(slot).locks;
            if locks.acquire(range.0, range.1, LockKind::Origin, owner) {
                self.on_run_locked(key, payload);
            }
        }
        if self.writeback.runs.len() == 0 && self.writeback.queue.is_empty() {
            self.flush_window();
        }
    }

    fn lock_range(&self, run: &Run) -> (u64, u64) {
        match run.pieces[0].place {
            Place::Blank { header, .. } => match self.log.blanks.get(&header.0) {
                Some(blank) => (blank.start, blank.start + blank.block_count),
                None => (run.start(), run.end()),
            },
            Place::Data(_) | Place::Absent => (run.start(), run.end()),
        }
    }

    pub(crate) fn on_run_locked(&mut self, key: Key, payload: &mut dyn Payload) {
        let slot = self.writeback.runs[key].slot;
        let pieces = self.writeback.runs[key].pieces.clone();
        if self.volume(slot).service != Service::Cached {
            self.end_run(key, payload);
            return;
        }
        if let Place::Blank { header, kind } = pieces[0].place {
            self.write_blank_run(key, header, kind, payload);
            return;
        }
        let mut reads = 0;
        for (part, piece) in pieces.iter().enumerate() {
            let Place::Data(position) = piece.place else { unreachable!("data runs have data") };
            // Superseded, relocated or written home meanwhile: skipped.
            if !self.is_whole_and_dirty(slot, piece, position) {
                continue;
            }
            reads += 1;
            self.pin(position);
            let target = self.writeback.runs[key].range(piece.start, piece.end());
            let offset_bytes = self.cache_offset(position);
            let kind = IoKind::Read { offset_bytes, slices: Slices::One(target) };
            self.submit(Device::Cache, kind, IoPurpose::WritebackRead { run: key, part });
        }
        self.writeback.runs[key].reads = reads;
        if reads == 0 {
            self.end_run(key, payload);
        }
    }

    /// Whether all of `piece`, which lies at `position`, is still the newest copy and dirty.
    fn is_whole_and_dirty(&self, slot: VolumeSlot, piece: &Piece, position: CacheBlock) -> bool {
        let mut now = Vec::new();
        self.volume(slot).index.complete.pieces(piece.start, piece.end(), &mut now);
        let count = u32::try_from(piece.block_count).expect("data pieces are small");
        now.len() == 1
            && now[0] == *piece
            && (0..count).all(|offset| self.log.segments.is_dirty(CacheBlock(position.0 + offset)))
    }

    pub(crate) fn on_writeback_read(
        &mut self,
        key: Key,
        part: usize,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let run = &self.writeback.runs[key];
        let (slot, piece) = (run.slot, run.pieces[part]);
        let data = run.range(piece.start, piece.end());
        let Place::Data(position) = piece.place else { unreachable!("it was read") };
        self.unpin(position);
        let count = u32::try_from(piece.block_count).expect("data pieces are small");
        let mut is_good = result.is_ok();
        for index in 0..count {
            if result.is_ok() && !self.is_block_good(position, data, index, payload) {
                is_good = false;
                let block = piece.start + u64::from(index);
                self.suspect(slot, block, CacheBlock(position.0 + index));
            }
        }
        let run = &mut self.writeback.runs[key];
        run.is_good[part] = is_good;
        run.has_unreadable |= !is_good;
        run.reads -= 1;
        if run.reads == 0 {
            self.write_run(key, payload);
        }
    }

    /// A dirty block had a wrong checksum. It stays dirty and is read again by the next window;
    /// after a few times it counts as lost (rule 12).
    fn suspect(&mut self, slot: VolumeSlot, block: u64, position: CacheBlock) {
        let suspects = &mut self.writeback.suspects;
        let attempts = suspects.entry(position).or_insert(0);
        *attempts += 1;
        if *attempts >= READ_ATTEMPTS_MAX {
            suspects.remove(&position);
            if self.poison(slot, block, position) {
                self.writeback.pauses.on_fewer(slot);
            }
        }
    }

    /// Writes what was read and is good, one transfer for each stretch without gaps.
    fn write_run(&mut self, key: Key, payload: &mut dyn Payload) {
        let run = &self.writeback.runs[key];
        let slot = run.slot;
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for (piece, is_good) in run.pieces.iter().zip(&run.is_good) {
            if !is_good {
                continue;
            }
            match stretches.last_mut() {
                Some(last) if last.1 == piece.start => last.1 = piece.end(),
                _ => stretches.push((piece.start, piece.end())),
            }
        }
        self.writeback.runs[key].writes = stretches.len();
        self.writeback.runs[key].failed_flushes = self.volume(slot).failed_flushes;
        if stretches.is_empty() {
            self.end_run(key, payload);
            return;
        }
        for (from, to) in stretches {
            let (offset_bytes, length_bytes) = self.volume(slot).byte_range(from, to - from);
            let length = u32::try_from(length_bytes).expect("1 MiB");
            let source = self.writeback.runs[key].range(from, to).slice(0, length);
            let kind = IoKind::Write { offset_bytes, slices: Slices::One(source) };
            let counters = &mut self.volume_mut(slot).counters;
            counters.writeback_ios += 1;
            counters.writeback_blocks += to - from;
            self.submit(Device::Origin(slot), kind, IoPurpose::WritebackWrite { run: key });
        }
    }

    fn write_blank_run(
        &mut self,
        key: Key,
        header: CacheBlock,
        kind: BlankKind,
        payload: &mut dyn Payload,
    ) {
        let slot = self.writeback.runs[key].slot;
        let planned = self.writeback.runs[key].pieces[0].version;
        // Since the window was planned the record may have been moved, its segment freed and used
        // again: another record may have its header at the same place.
        let blank = self.log.blanks.get(&header.0).copied().filter(|b| b.version == planned);
        let Some(blank) = blank else {
            self.end_run(key, payload);
            return;
        };
        let end = blank.start + blank.block_count;
        let mut winners = self.live_pieces(slot, blank.start, end, header);
        if winners.is_empty() || !self.log.segments.is_dirty(header) {
            self.end_run(key, payload);
            return;
        }
        // One piece stands for the whole record when it is noted as written home.
        let whole = Piece {
            start: blank.start,
            block_count: blank.block_count,
            version: blank.version,
            place: Place::Blank { kind, header },
        };
        if has_defect(Defect::BlankOverNewer) {
            winners = alloc::vec![whole];
        }
        let facts = self.volume(slot).facts.expect("only writable volumes are written");
        let mut ios = Vec::new();
        for piece in &winners {
            let (offset_bytes, length_bytes) =
                self.volume(slot).byte_range(piece.start, piece.block_count);
            match kind {
                BlankKind::Zeroes { may_unmap } => {
                    ios.push(IoKind::WriteZeroes { offset_bytes, length_bytes, may_unmap });
                }
                BlankKind::Discard if facts.supports_discard => {
                    ios.push(IoKind::Discard { offset_bytes, length_bytes });
                }
                BlankKind::Discard | BlankKind::Poison => {}
            }
        }
        let failed_flushes = self.volume(slot).failed_flushes;
        let run = &mut self.writeback.runs[key];
        run.failed_flushes = failed_flushes;
        run.pieces = alloc::vec![whole];
        run.is_good = alloc::vec![true];
        run.writes = ios.len().max(1);
        if ios.is_empty() {
            self.on_writeback_written(key, Ok(()), payload);
            return;
        }
        for kind in ios {
            self.volume_mut(slot).counters.writeback_ios += 1;
            self.submit(Device::Origin(slot), kind, IoPurpose::WritebackWrite { run: key });
        }
    }

    pub(crate) fn on_writeback_written(
        &mut self,
        key: Key,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let run = &mut self.writeback.runs[key];
        let slot = run.slot;
        run.writes -= 1;
        run.has_failed |= result.is_err();
        let is_last = run.writes == 0;
        if result.is_err() {
            self.volume_mut(slot).had_write_errors = true;
            self.volume_mut(slot).counters.origin_errors += 1;
        }
        if !is_last {
            return;
        }
        let run = &self.writeback.runs[key];
        if run.has_failed {
            // Stays dirty, is written again later; never dropped.
            self.pause_writeback(slot, PauseCause::Origin);
        } else {
            self.writeback.pauses.on_progress(slot);
            let run = &self.writeback.runs[key];
            let failed_flushes = run.failed_flushes;
            let pieces: Vec<Piece> = run
                .pieces
                .iter()
                .zip(&run.is_good)
                .filter(|(_, is_good)| **is_good)
                .map(|(piece, _)| *piece)
                .collect();
            for piece in pieces {
                let whole = (piece.start, piece.block_count, piece.version);
                self.note_homed(slot, whole, failed_flushes);
            }
            self.writeback.touched.insert(slot);
        }
        self.end_run(key, payload);
    }

    fn end_run(&mut self, key: Key, payload: &mut dyn Payload) {
        let run = self.writeback.runs.remove(key).expect("it is under way");
        if run.has_unreadable {
            // Tried again, but not in a tight loop.
            self.pause_writeback(run.slot, PauseCause::Unreadable);
        }
        self.unlock(run.slot, LockOwner::WritebackRun(key));
        if let Some(buffer) = run.buffer {
            payload.release(buffer);
        }
    }

    fn flush_window(&mut self) {
        let touched = core::mem::take(&mut self.writeback.touched);
        self.writeback.flushes = touched.len();
        self.go_on();
        if touched.is_empty() {
            self.writeback.state = State::Idle;
            return;
        }
        self.writeback.state = State::Flushing;
        for slot in touched {
            self.join_origin_flush(slot, Waiter::Writeback);
        }
    }
}

fn new_run(slot: VolumeSlot, piece: Piece) -> Run {
    Run {
        slot,
        pieces: alloc::vec![piece],
        buffer: None,
        is_good: alloc::vec![false],
        reads: 0,
        writes: 0,
        has_failed: false,
        has_unreadable: false,
        failed_flushes: 0,
    }
}
