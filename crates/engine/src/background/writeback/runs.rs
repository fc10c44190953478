//! Runs of a window: read from the cache device, written to the origin under the range lock, noted
//! as home.

use alloc::vec::Vec;

use super::bad::FAILED_RUNS_MAX;
use super::cost::{SHORT_BLOCKS_MAX, Transfers};
use super::pause::PauseCause;
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, IoPurpose};
use crate::index::{BlankKind, Piece, Place};
use crate::io::{Device, IoKind, IoResult, Slices};
use crate::path::read::blocks_of;
use crate::payload::{BufferId, BufferRange, Payload};
use crate::range_lock::{LockKind, LockOwner};
use crate::slab::Key;
use crate::units::{BLOCK_BYTES, CacheBlock, Time, VolumeSlot};
use crate::volume::Service;

/// What is written between the dirty blocks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gaps {
    /// Nothing: there are none, or they are left out.
    Left,
    /// Clean copies.
    FromCache,
    /// What the origin holds: all of the run is read first.
    FromOrigin,
}

/// Blocks that are close together on the origin and written home together.
pub(crate) struct Run {
    pub(super) slot: VolumeSlot,
    /// What is dirty, in order.
    pub(super) pieces: Vec<Piece>,
    start: u64,
    end: u64,
    gaps: Gaps,
    buffer: Option<BufferId>,
    /// Per block from the start on: whether the buffer holds what may be written.
    is_good: Vec<bool>,
    reads: usize,
    writes: usize,
    /// When it got its lock, and when the writes began.
    began_at: Time,
    written_at: Time,
    has_failed: bool,
    /// All of it was written.
    is_home: bool,
    has_unreadable: bool,
    /// Failed flushes of the origin when the writes began.
    failed_flushes: u64,
}

impl Run {
    pub(super) fn new(slot: VolumeSlot, piece: Piece) -> Run {
        let (start, end) = (piece.start, piece.end());
        Run::gathered(slot, alloc::vec![piece], (start, end), Gaps::Left)
    }

    /// One that writes `start..end`, with what lies between the pieces.
    pub(super) fn gathered(
        slot: VolumeSlot,
        pieces: Vec<Piece>,
        (start, end): (u64, u64),
        gaps: Gaps,
    ) -> Run {
        Run {
            slot,
            pieces,
            start,
            end,
            gaps,
            buffer: None,
            is_good: Vec::new(),
            reads: 0,
            writes: 0,
            began_at: Time(0),
            written_at: Time(0),
            has_failed: false,
            is_home: false,
            has_unreadable: false,
            failed_flushes: 0,
        }
    }

    /// Appends a piece that begins where the run ends.
    pub(super) fn push(&mut self, piece: Piece) {
        assert_eq!(piece.start, self.end);
        self.end = piece.end();
        self.pieces.push(piece);
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn has_data(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece.place, Place::Data(_)))
    }

    /// Blocks of the log that it stands for.
    pub(super) fn log_blocks(&self) -> u64 {
        self.pieces.iter().map(Piece::log_blocks).sum()
    }

    /// What it costs the origin. Zeroes and discards move no blocks.
    fn transfers(&self) -> Transfers {
        let blocks = if self.has_data() { self.end() - self.start() } else { 0 };
        match self.gaps {
            Gaps::FromOrigin => Transfers::read_and_written(blocks),
            Gaps::FromCache | Gaps::Left => Transfers { count: 1, blocks },
        }
    }

    /// What can be written, in order: zeroes and discards, and of data what was read and is good.
    fn good_parts(&self) -> Vec<Piece> {
        if !self.has_data() {
            return self.pieces.clone();
        }
        let mut parts: Vec<Piece> = Vec::new();
        let is_good =
            |block: u64| self.is_good[usize::try_from(block - self.start()).expect("1 MiB")];
        for piece in &self.pieces {
            let mut from = piece.start;
            while from < piece.end() {
                let to = (from..piece.end()).find(|block| !is_good(*block)).unwrap_or(piece.end());
                if from < to {
                    parts.push(piece.clip(from, to));
                }
                from = to + 1;
            }
        }
        parts
    }

    fn range(&self, from: u64, to: u64) -> BufferRange {
        let length =
            u32::try_from((self.end() - self.start()) * BLOCK_BYTES as u64).expect("1 MiB");
        let buffer = self.buffer.expect("allocated before it is used");
        blocks_of(BufferRange { buffer, offset: 0, length }, self.start(), from, to - from)
    }
}

/// Windows without gathered runs after one of these failed.
const PLAIN_WINDOWS: u32 = 8;
/// Times that a dirty block is read before it counts as lost.
const READ_ATTEMPTS_MAX: u8 = 3;

impl Engine {
    pub(super) fn start_runs(&mut self, payload: &mut dyn Payload) {
        if self.wants_rest() {
            // What is left stays dirty.
            if !self.writeback.queue.is_empty() {
                self.note_missed();
                self.writeback.has_taken_all = false;
            }
            self.writeback.queue.clear();
        }
        while self.may_start_run() {
            let Some(mut run) = self.next_run() else { break };
            let failed_runs = self.writeback.failed_runs.get(&run.slot);
            if failed_runs.is_some_and(|count| *count >= FAILED_RUNS_MAX) {
                // The origin may take nothing at all; other volumes wait.
                self.measure(run.log_blocks());
                self.note_missed();
                continue;
            }
            if run.has_data() {
                let bytes = usize::try_from(run.end() - run.start()).expect("1 MiB") * BLOCK_BYTES;
                let Some(buffer) = payload.allocate(bytes) else {
                    self.writeback.queue.push_front(run);
                    self.wait_for_memory();
                    return;
                };
                run.buffer = Some(buffer);
            }
            let (slot, range) = (run.slot, self.lock_range(&run));
            self.note_run_begins(slot, run.log_blocks());
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

    /// Rule 9: the gaps of a region as well, or a write there could be overwritten with what was
    /// before.
    fn lock_range(&self, run: &Run) -> (u64, u64) {
        if has_defect(Defect::GapsNotLocked) && run.gaps != Gaps::Left {
            return (run.pieces[0].start, run.pieces[0].end());
        }
        let blank = match run.pieces[0].place {
            Place::Blank { header, .. } if !self.is_ordered_window() => {
                self.log.blanks.get(&header.0)
            }
            _ => None,
        };
        blank.map_or((run.start(), run.end()), |blank| {
            (blank.start, blank.start + blank.block_count)
        })
    }

    pub(crate) fn on_run_locked(&mut self, key: Key, payload: &mut dyn Payload) {
        let slot = self.writeback.runs[key].slot;
        self.writeback.runs[key].began_at = self.now;
        if self.volume(slot).service != Service::Cached {
            self.end_run(key, payload);
            return;
        }
        if let Place::Blank { header, kind } = self.writeback.runs[key].pieces[0].place {
            if self.is_ordered_window() {
                self.write_planned_blank(key, kind, payload);
            } else {
                self.write_blank_run(key, header, kind, payload);
            }
            return;
        }
        let run = &mut self.writeback.runs[key];
        run.is_good = alloc::vec![false; usize::try_from(run.end() - run.start()).expect("1 MiB")];
        match run.gaps {
            Gaps::Left => self.read_dirty(key, payload),
            Gaps::FromCache => {
                self.read_gaps(key);
                self.read_dirty(key, payload);
            }
            Gaps::FromOrigin => self.read_whole(key),
        }
    }

    /// Reads what is dirty. What was superseded, relocated or written home since the run was
    /// planned is skipped: where it was something else may be now.
    fn read_dirty(&mut self, key: Key, payload: &mut dyn Payload) {
        let run = &self.writeback.runs[key];
        let (slot, planned, mut pieces) = (run.slot, run.log_blocks(), run.pieces.clone());
        if self.is_ordered_window() {
            // Of an epoch everything goes home, superseded or not.
            pieces.retain(|piece| self.is_still_there(piece));
        } else {
            pieces.retain(|piece| self.is_whole_and_dirty(slot, piece));
        }
        let left = pieces.iter().map(|piece| piece.block_count).sum::<u64>();
        self.measure(planned - left);
        if left < planned {
            self.note_missed();
        }
        self.writeback.runs[key].pieces.clone_from(&pieces);
        for piece in pieces {
            self.read_for_run(key, piece);
        }
        if self.writeback.runs[key].reads == 0 {
            self.end_run(key, payload);
        }
    }

    /// Reads the copies between the dirty pieces; leaves the gaps out if not all of them are there
    /// any more.
    fn read_gaps(&mut self, key: Key) {
        let run = &self.writeback.runs[key];
        let mut at = run.start();
        let mut copies = Some(Vec::new());
        let ends = run.pieces.iter().map(|piece| (piece.start, piece.end()));
        for (start, end) in ends.chain([(run.end(), run.end())]) {
            let between = self.clean_copies(run.slot, at, start);
            copies = copies.zip(between).map(|(copies, between)| [copies, between].concat());
            at = end;
        }
        for copy in copies.into_iter().flatten() {
            self.read_for_run(key, copy);
        }
    }

    /// Reads the origin, so that its content stands between the dirty pieces. They are read after
    /// it, into the same buffer.
    fn read_whole(&mut self, key: Key) {
        let run = &self.writeback.runs[key];
        let (slot, start, end) = (run.slot, run.start(), run.end());
        let (offset_bytes, length_bytes) = self.volume(slot).byte_range(start, end - start);
        let length = u32::try_from(length_bytes).expect("1 MiB");
        let target = self.writeback.runs[key].range(start, end).slice(0, length);
        let kind = IoKind::Read { offset_bytes, slices: Slices::One(target) };
        let counters = &mut self.volume_mut(slot).counters;
        counters.writeback_reads += 1;
        counters.writeback_read_blocks += end - start;
        self.submit(Device::Origin(slot), kind, IoPurpose::WritebackGaps { run: key });
    }

    pub(crate) fn on_gaps_read(&mut self, key: Key, result: IoResult, payload: &mut dyn Payload) {
        let slot = self.writeback.runs[key].slot;
        if self.volume(slot).service != Service::Cached {
            self.end_run(key, payload);
            return;
        }
        if result.is_ok() {
            let run = &mut self.writeback.runs[key];
            run.is_good.fill(true);
            let blocks = run.end() - run.start();
            self.volume_mut(slot).origin_cost.on_gaps_read(blocks);
        } else {
            // A bad block in a gap keeps nothing from going home.
            self.volume_mut(slot).counters.origin_errors += 1;
        }
        self.read_dirty(key, payload);
    }

    fn read_for_run(&mut self, key: Key, piece: Piece) {
        let Place::Data(position) = piece.place else { unreachable!("data runs have data") };
        let run = &mut self.writeback.runs[key];
        run.reads += 1;
        for block in piece.start..piece.end() {
            run.is_good[usize::try_from(block - run.start).expect("1 MiB")] = false;
        }
        self.pin(position);
        let target = self.writeback.runs[key].range(piece.start, piece.end());
        let offset_bytes = self.cache_offset(position);
        let kind = IoKind::Read { offset_bytes, slices: Slices::One(target) };
        self.submit(Device::Cache, kind, IoPurpose::WritebackRead { run: key, piece });
    }

    /// Whether all of a piece with data is still the newest copy and dirty.
    fn is_whole_and_dirty(&self, slot: VolumeSlot, piece: &Piece) -> bool {
        let mut now = Vec::new();
        self.volume(slot).index.complete.pieces(piece.start, piece.end(), &mut now);
        now == [*piece] && piece.positions().all(|at| self.log.segments.is_dirty(at))
    }

    /// Some blocks of a run were read. An error is of all of them, so they are read again one by
    /// one: a bad block keeps nothing but itself from going home.
    pub(crate) fn on_writeback_read(
        &mut self,
        key: Key,
        piece: Piece,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let Place::Data(position) = piece.place else { unreachable!("it was read") };
        self.unpin(position);
        self.writeback.runs[key].reads -= 1;
        if result.is_ok() {
            self.check_for_run(key, piece, payload);
        } else if piece.block_count > 1 && !self.is_cache_failed() {
            for block in piece.start..piece.end() {
                self.read_for_run(key, piece.clip(block, block + 1));
            }
        } else if self.log.segments.is_dirty(position) {
            self.writeback.runs[key].has_unreadable = true;
            let slot = self.writeback.runs[key].slot;
            if self.is_ordered_window() && self.is_lastingly_unreadable(slot) {
                self.give_up_block(slot, piece.start, position);
            }
        }
        if self.writeback.runs[key].reads == 0 {
            self.write_run(key, payload);
        }
    }

    fn check_for_run(&mut self, key: Key, piece: Piece, payload: &dyn Payload) {
        let Place::Data(position) = piece.place else { unreachable!("it was read") };
        let run = &self.writeback.runs[key];
        let (slot, start, data) = (run.slot, run.start(), run.range(piece.start, piece.end()));
        for (index, block) in (0..).zip(piece.start..piece.end()) {
            let is_good = self.is_block_good(position, data, index, payload);
            let run = &mut self.writeback.runs[key];
            run.is_good[usize::try_from(block - start).expect("1 MiB")] = is_good;
            // A bad clean copy is mended when a client reads it.
            if !is_good && self.log.segments.is_dirty(CacheBlock(position.0 + index)) {
                run.has_unreadable = true;
                self.suspect(slot, block, CacheBlock(position.0 + index));
            }
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
            self.give_up_block(slot, block, position);
        }
    }

    /// A dirty block is lost. If it is the newest copy it is an error from now on (rule 12). In
    /// order the epochs behind it go on either way, or one bad block would keep everything that is
    /// written from going home: the origin keeps what it has there.
    fn give_up_block(&mut self, slot: VolumeSlot, block: u64, position: CacheBlock) {
        if self.log.segments.is_retained(position) {
            self.log.segments.clear_dirty(position);
            self.volume_mut(slot).counters.order_lost_blocks += 1;
        } else if self.poison(slot, block, position) {
            self.writeback.pauses.on_fewer(slot);
        }
    }

    /// Writes what was read and is good, one transfer for each stretch without gaps.
    fn write_run(&mut self, key: Key, payload: &mut dyn Payload) {
        let run = &self.writeback.runs[key];
        let slot = run.slot;
        if self.volume(slot).service == Service::GivenUp {
            self.end_run(key, payload);
            return;
        }
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for (block, _) in (run.start()..).zip(&run.is_good).filter(|(_, is_good)| **is_good) {
            match stretches.last_mut() {
                Some(last) if last.1 == block => last.1 = block + 1,
                _ => stretches.push((block, block + 1)),
            }
        }
        let dirty: u64 = run.good_parts().iter().map(|part| part.block_count).sum();
        if dirty == 0 {
            stretches.clear();
        }
        let (now, failed_flushes) = (self.now, self.volume(slot).failed_flushes);
        let run = &mut self.writeback.runs[key];
        run.writes = stretches.len();
        (run.written_at, run.failed_flushes) = (now, failed_flushes);
        if stretches.is_empty() {
            self.end_run(key, payload);
            return;
        }
        let counters = &mut self.volume_mut(slot).counters;
        counters.writeback_blocks += dirty;
        counters.writeback_gap_blocks += stretches.iter().map(|(from, to)| to - from).sum::<u64>();
        counters.writeback_gap_blocks -= dirty;
        for (from, to) in stretches {
            let (offset_bytes, length_bytes) = self.volume(slot).byte_range(from, to - from);
            let length = u32::try_from(length_bytes).expect("1 MiB");
            let source = self.writeback.runs[key].range(from, to).slice(0, length);
            let kind = IoKind::Write { offset_bytes, slices: Slices::One(source) };
            self.volume_mut(slot).counters.writeback_ios += 1;
            let purpose = IoPurpose::WritebackWrite { run: key, blocks: to - from };
            self.submit(Device::Origin(slot), kind, purpose);
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
        let whole = blank.whole(header);
        if has_defect(Defect::BlankOverNewer) {
            winners = alloc::vec![whole];
        }
        self.writeback.runs[key].pieces = alloc::vec![whole];
        self.write_blanks(key, kind, &winners, payload);
    }

    /// In order: a part of zeroes or of a discard as it was at the end of its epoch.
    fn write_planned_blank(&mut self, key: Key, kind: BlankKind, payload: &mut dyn Payload) {
        let planned = self.writeback.runs[key].pieces.clone();
        if self.is_still_there(&planned[0]) {
            self.write_blanks(key, kind, &planned, payload);
        } else {
            self.end_run(key, payload);
        }
    }

    fn write_blanks(
        &mut self,
        key: Key,
        kind: BlankKind,
        pieces: &[Piece],
        payload: &mut dyn Payload,
    ) {
        let slot = self.writeback.runs[key].slot;
        let facts = self.volume(slot).facts.expect("only writable volumes are written");
        let mut ios = Vec::new();
        for piece in pieces {
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
        run.writes = ios.len().max(1);
        if ios.is_empty() {
            self.on_writeback_written(key, 0, Ok(()), payload);
            return;
        }
        for kind in ios {
            self.volume_mut(slot).counters.writeback_ios += 1;
            // What zeroes cost says nothing of writes.
            let purpose = IoPurpose::WritebackWrite { run: key, blocks: 0 };
            self.submit(Device::Origin(slot), kind, purpose);
        }
    }

    pub(crate) fn on_writeback_written(
        &mut self,
        key: Key,
        blocks: u64,
        result: IoResult,
        payload: &mut dyn Payload,
    ) {
        let run = &mut self.writeback.runs[key];
        let slot = run.slot;
        run.writes -= 1;
        run.has_failed |= result.is_err();
        let is_last = run.writes == 0;
        let written_at = run.written_at;
        if self.is_ordered_window() {
            let volume = self.volume_mut(slot);
            volume.epoch_flush = Some(volume.flushes.next_number());
        }
        if blocks > 0 && result.is_ok() {
            let (now, under_way) = (self.now, self.writeback.runs.len());
            let volume = self.volume_mut(slot);
            let took_ns = now.nanoseconds_since(written_at);
            volume.origin_cost.on_written(blocks, took_ns);
            if blocks <= SHORT_BLOCKS_MAX {
                let most = volume.settings.writeback_ios_max;
                volume.run_depth.on_written(took_ns, under_way, most);
            }
        }
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
            *self.writeback.failed_runs.entry(slot).or_default() += 1;
            let run = &self.writeback.runs[key];
            if run.gaps != Gaps::Left {
                self.writeback.plain.insert(slot, PLAIN_WINDOWS);
            } else {
                let (start, end) = (run.start(), run.end());
                self.volume_mut(slot).bad_extents.add(start, end);
            }
            self.pause_writeback(slot, PauseCause::Origin);
        } else {
            if !self.is_ordered_window() {
                self.writeback.pauses.on_fewer(slot);
            }
            let run = &mut self.writeback.runs[key];
            run.is_home = !run.has_unreadable;
            let failed_flushes = run.failed_flushes;
            for part in run.good_parts() {
                self.volume_mut(slot).bad_extents.remove(part.start, part.end());
                if !self.is_ordered_window() {
                    let homed = (part.start, part.block_count, part.version);
                    self.note_homed(slot, homed, failed_flushes);
                }
            }
            self.writeback.touched.insert(slot);
        }
        self.end_run(key, payload);
    }

    fn end_run(&mut self, key: Key, payload: &mut dyn Payload) {
        let run = self.writeback.runs.remove(key).expect("it is under way");
        self.measure(run.log_blocks());
        let took_ns = self.now.nanoseconds_since(run.began_at);
        self.note_run_ends(run.slot, run.transfers(), took_ns);
        if !run.is_home {
            self.note_missed();
        }
        if run.has_unreadable {
            // Tried again, but not in a tight loop.
            self.pause_writeback(run.slot, PauseCause::Unreadable);
        }
        self.unlock(run.slot, LockOwner::WritebackRun(key));
        if let Some(buffer) = run.buffer {
            payload.release(buffer);
        }
    }
}
