//! From what was read to index, bits and segment table: the highest version of each block wins.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::epochs::FoundEpochs;
use super::scan::{NewRecord, ScannedSegment};
use crate::bit_runs::{runs, set_run};
use crate::defects::{Defect, has_defect};
use crate::engine::Engine;
use crate::error::{Corrupt, Place as CorruptPlace, RecoveryError};
use crate::format::checkpoint::{Bits, Checkpoint, bit};
use crate::format::record::{Entry, EntryKind};
use crate::format::summary::PlacedEntry;
use crate::index::{Batch, BlankKind, BlockMap, Extent, Piece, Place};
use crate::log::BlankRecord;
use crate::log::segments::SegmentState;
use crate::units::{CacheBlock, RecoveryEpoch, SequenceNumber, Version, VolumeSlot};

/// Fewest pieces that are sorted together: 16 MiB.
const BATCH_PIECES_MIN: usize = 1024 * 1024;
/// What they are of those that are in the index, if that is more: so that a leaf takes several of a
/// batch, however many leaves there are.
const BATCH_DIVISOR: usize = 16;

/// What is being built beside the index.
#[derive(Default)]
pub(super) struct Building {
    /// Dirty bits by segment; none for a free one.
    pub(super) dirty: Vec<Option<Vec<u64>>>,
    /// Pieces that the checkpoint counts on, on their way into the index, by volume.
    batches: BTreeMap<VolumeSlot, Batch>,
    /// How many they are.
    gathered: usize,
    /// What the checkpoint counts on, by volume. Nobody sees it before all is known to be good.
    indexes: BTreeMap<VolumeSlot, BlockMap>,
    /// Blank records by position of their header.
    blanks: BTreeMap<u32, BlankRecord>,
    /// Dropped segments with their generation.
    drops: Vec<(u32, u64)>,
    highest_version: u64,
    pub(super) epochs: FoundEpochs,
    /// Something that the checkpoint says and its records do not bear out.
    corrupt: Option<Corrupt>,
}

impl Building {
    pub(super) fn new(checkpoint: &Checkpoint) -> Building {
        Building {
            highest_version: checkpoint.next_version.0,
            dirty: alloc::vec![None; checkpoint.segments.len()],
            ..Building::default()
        }
    }

    fn gather(&mut self, slot: VolumeSlot, extent: Extent) {
        self.batches.entry(slot).or_default().push(extent);
        self.gathered += 1;
        let indexed = || self.indexes.values().map(BlockMap::extent_count).sum::<usize>();
        if self.gathered >= BATCH_PIECES_MIN && self.gathered >= indexed() / BATCH_DIVISOR {
            self.put_batches();
        }
    }

    /// Puts pieces of many segments into the index. Their live bits say that no two of them have a
    /// block in common, so their order among themselves does not matter.
    fn put_batches(&mut self) {
        self.gathered = 0;
        for (slot, batch) in core::mem::take(&mut self.batches) {
            self.indexes.entry(slot).or_default().put_batch(batch);
        }
    }
}

impl Engine {
    /// Everything is read.
    pub(super) fn build(&mut self) {
        let recovery = self.recovery();
        let mut segments = core::mem::take(&mut recovery.segments);
        self.accept_candidates(&mut segments);
        for segment in segments {
            self.take_in(segment);
        }
        let recovery = self.recovery();
        let checkpoint = recovery.checkpoint.take().expect("chosen before");
        let mut building = core::mem::take(&mut recovery.building);
        let durable_through = self.recovery().durable_through;
        let mut records = core::mem::take(&mut self.recovery().records);
        records.sort_unstable_by_key(|record| record.sequence);
        if let Err(error) = assert_none_missing(&checkpoint, &records, durable_through) {
            self.recovery().checkpoint = Some(checkpoint);
            self.refuse(error);
            return;
        }
        building.put_batches();
        self.log.segments.collect_free();
        if let Some(corrupt) = building.corrupt {
            self.refuse(RecoveryError::Log(corrupt));
            return;
        }
        for (line, id) in checkpoint.segments.iter().zip(0u32..) {
            if self.log.segments.get(id).state == SegmentState::Free {
                self.log.segments.get_mut(id).generation = line.generation;
            }
        }
        for (slot, index) in core::mem::take(&mut building.indexes) {
            self.volume_mut(slot).index.complete = index;
        }
        self.recovered_records = records.len() as u64;
        for record in &records {
            self.apply_record(record, &mut building);
        }
        let last = records.last().map_or(SequenceNumber(0), |record| record.sequence);
        self.log.last_sequence = checkpoint.sequence.max(last);
        self.log.next_version = Version(building.highest_version + 1);
        // Rule 8: what this life writes is told from what the last one left behind.
        let lost_epochs = self.recovery().lost_epochs;
        self.log.recovery_epoch = RecoveryEpoch(checkpoint.recovery_epoch.0 + lost_epochs + 1);
        self.checkpoint.last_id = checkpoint.id;
        self.recover_epochs(&checkpoint, &mut building);
        self.apply_drops(&building);
        self.set_bits(&building);
        self.retain_owed(building.epochs);
        self.log.next_open_order = self.log.last_sequence.0 + 1;
        self.compare_inherited();
        self.enter_origins_stage();
    }

    /// Rule 10: a volume that was served without its cache gets a higher generation; nothing in the
    /// log counts for it any more.
    pub(super) fn raise_outdated(&mut self) {
        if has_defect(Defect::OutdatedCopiesBelieved) {
            return;
        }
        for slot in self.recovery().outdated.clone() {
            if let Some(stored) = self.superblock.volumes[usize::from(slot.0)].as_mut() {
                stored.generation.0 += 1;
                stored.fingerprint = None;
                let generation = stored.generation;
                self.volume_mut(slot).generation = generation;
                self.recovery().is_table_changed = true;
            }
        }
    }

    /// Takes a segment up to where it ends into the table and into what is being built. The table
    /// is of use to nobody before that is done: jobs and clients wait until the engine serves.
    pub(super) fn take_in(&mut self, found: ScannedSegment) {
        let recovery = self.recovery();
        let checkpoint = recovery.checkpoint.take().expect("chosen before segments are read");
        let mut building = core::mem::take(&mut recovery.building);
        self.adopt(found, &checkpoint, &mut building);
        let recovery = self.recovery();
        recovery.checkpoint = Some(checkpoint);
        recovery.building = building;
    }

    fn adopt(&mut self, found: ScannedSegment, checkpoint: &Checkpoint, building: &mut Building) {
        let id = found.segment;
        let now = self.now;
        self.log.segments.adopt(id, found.generation, now);
        let blocks = self.log.segments.segment_blocks();
        let segment = self.log.segments.get_mut(id);
        segment.used_blocks = found.used_blocks;
        segment.summary_blocks = found.summary_blocks;
        segment.last_sequence = found.last_sequence;
        segment.open_order = found.last_sequence.0;
        segment.queue_order = segment.open_order;
        segment.entries = found.entries;
        self.log.segments.set_crcs(id, &found.crcs);
        // Of what was used again the checkpoint's bits are void. What was alive was superseded, or
        // clean and dropped: it is found elsewhere, or on the origin.
        let empty = Bits::new(blocks);
        let line = &checkpoint.segments[id as usize];
        let is_same = line.generation == found.generation;
        let bits = line.bits.as_deref().filter(|_| is_same).unwrap_or(&empty);
        building.dirty[id as usize] = Some(bits.dirty.clone());
        self.restore_use(id, line);
        for placed in &found.old_entries {
            self.apply_old_entry(id, placed, bits, checkpoint, building);
        }
    }

    /// An entry that the checkpoint counts on: its bits say which blocks of it are the newest.
    fn apply_old_entry(
        &mut self,
        segment: u32,
        placed: &PlacedEntry,
        bits: &Bits,
        checkpoint: &Checkpoint,
        building: &mut Building,
    ) {
        let entry = &placed.entry;
        let Some(slot) = self.current_slot(entry) else { return };
        let position = self.log.position(segment, placed.block);
        let is_dirty = |offset: u32| bit(&bits.dirty, placed.block + offset);
        self.note_owed(slot, (entry, position), is_dirty, &mut building.epochs);
        if entry.kind != EntryKind::Data {
            if entry.kind.is_blank() && bit(&bits.live, placed.block) {
                self.apply_old_blank(slot, position, entry, checkpoint, building);
            }
            return;
        }
        for (block, block_count) in runs(&bits.live, placed.block, entry.block_count) {
            let extent = Extent {
                start: entry.start + u64::from(block - placed.block),
                block_count,
                version: entry.version,
                position: self.log.position(segment, block),
            };
            building.gather(slot, extent);
        }
    }

    fn apply_old_blank(
        &mut self,
        slot: VolumeSlot,
        header: CacheBlock,
        entry: &Entry,
        checkpoint: &Checkpoint,
        building: &mut Building,
    ) {
        let place = note_blank(slot, header, entry, building);
        let named: Vec<(u64, u64)> = checkpoint
            .pieces
            .iter()
            .filter(|piece| piece.position == header.0)
            .map(|piece| (piece.start, u64::from(piece.block_count)))
            .collect();
        let end = entry.start + u64::from(entry.block_count);
        let is_inside =
            |(start, count): &&(u64, u64)| *start >= entry.start && start + count <= end;
        if let Some((start, _)) = named.iter().find(|piece| !is_inside(piece)) {
            let (segment, block) = self.log.segments.locate(header);
            building.corrupt.get_or_insert(Corrupt {
                place: CorruptPlace::Record { segment, block },
                field: "piece that the checkpoint names",
                expected: entry.start,
                found: *start,
            });
            return;
        }
        let whole = alloc::vec![(entry.start, u64::from(entry.block_count))];
        let index = building.indexes.entry(slot).or_default();
        let (mut removed, mut inserted) = self.scratch.take_pieces();
        for (start, block_count) in if named.is_empty() { whole } else { named } {
            let piece = Piece { start, block_count, version: entry.version, place };
            index.replace(piece, &mut removed, &mut inserted);
        }
        self.scratch.put_pieces(removed, inserted);
    }

    /// A record behind the checkpoint. They come in the order of their sequence numbers, so that of
    /// equal copies the last one wins.
    fn apply_record(&mut self, record: &NewRecord, building: &mut Building) {
        let is_lossy = has_defect(Defect::EntryLostAtRecovery) && record.entries.len() > 1;
        for placed in record.entries.iter().skip(usize::from(is_lossy)) {
            let entry = &placed.entry;
            let position = self.log.position(record.segment, placed.block);
            if let EntryKind::Drop { segment, generation } = entry.kind {
                building.drops.push((segment, generation.0));
                continue;
            }
            if let EntryKind::Mark { drained_through } = entry.kind {
                building.epochs.on_mark(entry.volume, drained_through);
                continue;
            }
            building.highest_version = building.highest_version.max(entry.version.0);
            let Some(slot) = self.current_slot(entry) else { continue };
            let place = match entry.kind {
                EntryKind::Invalidate if has_defect(Defect::InvalidationLostAtRecovery) => continue,
                EntryKind::Data if has_defect(Defect::CleanLostAtRecovery) && !entry.is_dirty => {
                    continue;
                }
                EntryKind::Data => Place::Data(position),
                EntryKind::Invalidate => Place::Absent,
                _ => note_blank(slot, position, entry, building),
            };
            if entry.is_dirty {
                self.note_owed(slot, (entry, position), |_| true, &mut building.epochs);
                let blocks = entry.payload_blocks().max(1);
                if let Some(bits) = &mut building.dirty[record.segment as usize] {
                    set_run(bits, placed.block, blocks);
                }
            }
            self.put(
                slot,
                Piece {
                    start: entry.start,
                    block_count: u64::from(entry.block_count),
                    version: entry.version,
                    place,
                },
            );
        }
    }

    fn put(&mut self, slot: VolumeSlot, piece: Piece) {
        let (mut removed, mut inserted) = self.scratch.take_pieces();
        let index = &mut self.volume_mut(slot).index;
        if has_defect(Defect::LaterRecordWins) {
            index.complete.remove(piece.start, piece.end());
        }
        index.complete.replace(piece, &mut removed, &mut inserted);
        self.scratch.put_pieces(removed, inserted);
    }

    /// The volume of an entry, if the entry is of its generation.
    fn current_slot(&self, entry: &Entry) -> Option<VolumeSlot> {
        (0u16..).zip(&self.volumes).find_map(|(slot, volume)| {
            let volume = volume.as_ref()?;
            let is_current = volume.id == entry.volume
                && volume.generation == entry.volume_generation
                && entry.start + u64::from(entry.block_count) <= volume.block_count();
            is_current.then_some(VolumeSlot(slot))
        })
    }

    /// Rule 3: where the newest copy of a block lies in a dropped segment, the block is absent; an
    /// older copy, which lost to it above, does not come back.
    fn apply_drops(&mut self, building: &Building) {
        let mut dropped = BTreeSet::new();
        let last = self.log.last_sequence;
        for (segment, generation) in &building.drops {
            if *segment >= self.log.segments.len() || has_defect(Defect::DropsNotBelieved) {
                continue;
            }
            let state = self.log.segments.get_mut(*segment);
            if state.generation.0 == *generation && state.state == SegmentState::Closed {
                state.state = SegmentState::Dropped(last);
                dropped.insert(*segment);
            }
        }
        // Most starts have neither drops nor invalidations behind the checkpoint.
        let has_absent = |piece: &Piece| piece.place == Place::Absent;
        let mut volumes = self.volumes.iter().flatten();
        if dropped.is_empty()
            && !volumes.any(|v| v.index.complete.blank_pieces().any(|p| has_absent(&p)))
        {
            return;
        }
        for slot in self.volume_slots() {
            let gone: Vec<Piece> = self
                .volume(slot)
                .index
                .complete
                .all_pieces()
                .filter(|piece| match self.piece_segment(piece) {
                    Some(segment) => dropped.contains(&segment),
                    None => true,
                })
                .collect();
            for piece in gone {
                self.volume_mut(slot).index.complete.remove(piece.start, piece.end());
            }
        }
    }

    fn set_bits(&mut self, building: &Building) {
        for slot in self.volume_slots() {
            // Taken out and put back, so that the pieces, which may be very many, are not copied.
            let index = core::mem::take(&mut self.volume_mut(slot).index);
            for piece in index.complete.all_pieces() {
                self.set_bits_of(slot, &piece, building);
                self.map_piece(slot, &piece);
            }
            self.volume_mut(slot).index = index;
        }
    }

    fn set_bits_of(&mut self, slot: VolumeSlot, piece: &Piece, building: &Building) {
        let dirty_bits =
            |segment: u32| building.dirty[segment as usize].as_deref().expect("it has data");
        match piece.place {
            Place::Data(position) => {
                let (segment, block) = self.log.segments.locate(position);
                let bits = dirty_bits(segment);
                let count = u32::try_from(piece.block_count).expect("data is small");
                self.log.segments.set_live(position, count);
                for (first, dirty_blocks) in runs(bits, block, count) {
                    self.log.segments.set_dirty(self.log.position(segment, first), dirty_blocks);
                    self.add_dirty(slot, dirty_blocks.into());
                }
            }
            Place::Blank { header, .. } => {
                let (segment, block) = self.log.segments.locate(header);
                let record = building.blanks[&header.0];
                let blank = self.log.blanks.entry(header.0).or_insert(record);
                blank.live_blocks += piece.block_count;
                self.log.segments.set_live(header, 1);
                if bit(dirty_bits(segment), block) {
                    self.log.segments.set_dirty(header, 1);
                    self.add_dirty(slot, piece.block_count);
                } else {
                    self.writeback.clean_blanks.push_back(header);
                }
            }
            Place::Absent => unreachable!("removed with the drops"),
        }
    }
}

fn note_blank(
    slot: VolumeSlot,
    header: CacheBlock,
    entry: &Entry,
    building: &mut Building,
) -> Place {
    let kind = BlankKind::of(entry.kind).expect("a blank entry");
    building.blanks.insert(
        header.0,
        BlankRecord {
            slot,
            kind,
            start: entry.start,
            block_count: u64::from(entry.block_count),
            version: entry.version,
            live_blocks: 0,
            mapped_blocks: 0,
        },
    );
    Place::Blank { kind, header }
}

/// Rule 8: every record up to the last "durable through" was on stable storage. If one is missing,
/// that is corruption, and is reported.
fn assert_none_missing(
    checkpoint: &Checkpoint,
    records: &[NewRecord],
    durable_through: SequenceNumber,
) -> Result<(), RecoveryError> {
    let mut seen = BTreeSet::new();
    for record in records {
        seen.insert(record.sequence.0);
        seen.extend(record.replaces.iter().map(|sequence| sequence.0));
    }
    for sequence in checkpoint.sequence.0 + 1..=durable_through.0 {
        if !seen.contains(&sequence) && !has_defect(Defect::MissingRecordsAccepted) {
            let missing = SequenceNumber(sequence);
            return Err(RecoveryError::RecordMissing { missing, durable_through });
        }
    }
    Ok(())
}
