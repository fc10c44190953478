//! What the engine tells about itself. Nothing here changes anything but counters.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::engine::{Engine, Phase};
use crate::format::superblock::Superblock;
use crate::index::{BlankKind, Place};
use crate::log::STREAMS;
use crate::log::segments::SegmentState;
use crate::status::{BlockState, SetCounters, SetStatus, VolumeState, VolumeStatus};
use crate::units::{OriginBlock, OriginExtent, Time, VolumeId, VolumeSlot};
use crate::volume::Service;

/// Of a bound on memory, the part one of so many that counts as little.
const MEMORY_MARGIN_DIVISOR: u64 = 8;

impl Engine {
    /// The superblock in force.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Volumes by slot, also those that the volume table does not name any more and of which the
    /// detach has not ended: until it has, a crash may bring them back.
    pub fn volume_ids(&self) -> impl Iterator<Item = (VolumeSlot, VolumeId)> + '_ {
        self.slots().map(|slot| (slot, self.volume(slot).id))
    }

    /// Size of a volume in service: what clients may be told and requests may reach. The table in
    /// memory may have a larger one that is not durable yet.
    #[must_use]
    pub fn volume_size_bytes(&self, slot: VolumeSlot) -> Option<u64> {
        self.find_volume(slot).map(|volume| volume.size_bytes)
    }

    /// Bytes that each level of a volume's index takes, the root's first. A lookup touches one node
    /// of each level, one after another. Looks at all nodes, which takes milliseconds for a million
    /// extents.
    #[must_use]
    pub fn index_level_bytes(&self, slot: VolumeSlot) -> Option<Vec<usize>> {
        self.find_volume(slot).map(|volume| volume.index.complete.level_bytes())
    }

    /// Sets all counters to zero.
    pub fn reset_counters(&mut self) {
        self.set_counters = SetCounters::default();
        self.checkpoint.on_counters_reset();
        for volume in self.volumes.iter_mut().flatten() {
            volume.counters = Default::default();
        }
    }

    /// State of the set.
    #[must_use]
    pub fn status(&self, now: Time) -> SetStatus {
        let _ = now;
        let segments = self.log.segments.len();
        let segments_done = match &self.phase {
            Phase::Recovering(recovery) => recovery.segments_done(),
            _ => segments,
        };
        let volumes = || self.volumes.iter().flatten();
        SetStatus {
            is_serving: matches!(self.phase, Phase::Serving),
            cache_health: self.cache_health(),
            segments,
            free_segments: self.log.segments.free_count(),
            segment_blocks: self.log.segments.segment_blocks(),
            kept_blocks_max: self.superblock.geometry.kept_blocks_max(),
            cached_blocks: volumes().map(|v| v.index.complete.data_block_count()).sum(),
            dirty_blocks: volumes().map(|v| v.dirty_blocks).sum(),
            writeback_blocks_per_second: self.writeback_rate(),
            memory_bytes: self.memory_bytes(),
            memory_floor_bytes: self.memory_floor_bytes(),
            settings: self.settings,
            recovery_ms: self.recovery_ms,
            recovered_records: self.recovered_records,
            recovery_segments: (segments_done, segments),
            counters: self.set_counters,
        }
    }

    /// State of a volume.
    #[must_use]
    pub fn volume_status(&self, now: Time, slot: VolumeSlot) -> Option<VolumeStatus> {
        let volume = self.find_volume(slot)?;
        let state = match volume.service {
            Service::GivenUp => VolumeState::Discarding,
            _ if volume.facts.is_none() => VolumeState::OriginMissing,
            Service::Quiesced => VolumeState::Quiesced,
            Service::WithoutCache => VolumeState::WithoutCache,
            Service::Cached if volume.is_leaving() => VolumeState::Draining,
            Service::Cached => VolumeState::Serving,
        };
        Some(VolumeStatus {
            slot,
            state,
            mode: volume.mode,
            order: volume.epochs.order,
            epochs_waiting: volume.epochs.ended().len() as u64,
            settings: volume.settings,
            cached_blocks: volume.index.complete.data_block_count(),
            cached_extents: volume.index.complete.extent_count() as u64,
            pinned: self.pinned_extents(slot),
            dirty_blocks: volume.dirty_blocks,
            dirty_age_ms: if volume.dirty_blocks > 0 { self.oldest_dirty_ms(now) } else { 0 },
            failed_extents: volume.bad_extents.extents(slot),
            requests_in_flight: volume.operations as u64 + volume.gated.len() as u64,
            requests_waiting: volume.gated.len() as u64,
            return_wait_ms: self.return_wait_ms(slot, now),
            origin: self.origin_status(slot, now),
            counters: volume.counters,
        })
    }

    /// Age of the oldest segment with dirty blocks: no dirty block is older.
    fn oldest_dirty_ms(&self, now: Time) -> u64 {
        let oldest = self
            .log
            .segments
            .iter()
            .filter(|(_, segment)| segment.dirty > 0)
            .map(|(_, segment)| segment.opened_at)
            .min();
        oldest.map_or(0, |at| now.nanoseconds_since(at) / 1_000_000)
    }

    /// Bytes of memory of index, checksums and bits.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let index: usize = self
            .volumes
            .iter()
            .flatten()
            .map(|v| {
                let index = v.index.complete.memory_bytes() + v.index.pending.memory_bytes();
                index + v.epochs.memory_bytes()
            })
            .sum();
        let blanks = self.log.blanks.len() * 96;
        let policy = self.replacement.memory_bytes() + self.ahead.memory_bytes();
        let admission = self.admission.memory_bytes();
        (index + blanks + policy + admission + self.log.segments.memory_bytes()) as u64
    }

    /// Whether nothing more may be promoted. Without a bound the memory is not counted.
    pub(crate) fn is_memory_full(&self) -> bool {
        let bound = self.settings.memory_max_bytes;
        bound != u64::MAX && self.memory_bytes() >= bound
    }

    /// Whether little is left to the bound, so that little more can be cached.
    pub(crate) fn is_memory_nearly_full(&self) -> bool {
        let bound = self.settings.memory_max_bytes;
        bound != u64::MAX && self.memory_bytes() >= bound - bound / MEMORY_MARGIN_DIVISOR
    }

    /// Memory beyond the bound. The engine promotes nothing while it is at the bound, and reclaims
    /// clean segments while it is over it, so that only dirty data can hold it there, and that is
    /// written back.
    pub(crate) fn excess_memory_bytes(&self) -> u64 {
        if self.settings.memory_max_bytes == u64::MAX {
            return 0;
        }
        self.memory_bytes().saturating_sub(self.settings.memory_max_bytes)
    }

    /// Segments to be freed for the memory bound, by what they take for checksums and bits.
    pub(crate) fn excess_segments(&self) -> u32 {
        let excess = self.excess_memory_bytes();
        let each = self.log.segments.bytes_per_segment() as u64;
        u32::try_from(excess.div_ceil(each)).unwrap_or(u32::MAX)
    }

    /// Memory that the set needs with nothing cached.
    fn memory_floor_bytes(&self) -> u64 {
        let open = STREAMS.len() * self.log.segments.bytes_per_segment();
        let bits = self.replacement.memory_bytes() + self.ahead.memory_bytes();
        // No later setting may take it beyond a bound that was accepted.
        let fixed = bits + self.admission.memory_bytes_max(self.log.segments.block_count());
        (fixed + open + self.log.segments.table_bytes()) as u64
    }

    /// Whether no operation is at a device.
    #[must_use]
    pub fn is_idle_at_devices(&self) -> bool {
        self.ios.len() == 0
    }

    /// What waits for what, for people who look into a stall.
    #[must_use]
    pub fn describe_waiting(&self) -> String {
        let mut text = format!(
            "checkpoint {:?}, reclaim {:?}, writeback {:?}, {} operations at devices\n",
            self.checkpoint,
            self.reclaim,
            self.writeback,
            self.ios.len()
        );
        for (id, s) in self.log.segments.iter().filter(|(_, s)| s.state != SegmentState::Free) {
            text += &format!(
                "segment {id}: {:?}, used {}, live {}, dirty {}, mapped {}, pins {}, {} records\n",
                s.state,
                s.used_blocks,
                s.live,
                s.dirty,
                s.mapped,
                self.log.segments.pins(id),
                s.in_flight.len()
            );
        }
        for (_, operation) in self.operations.iter() {
            text += &format!("{operation:?}\n");
        }
        for (_, unit) in self.units.iter() {
            text += &format!("{unit:?}\n");
        }
        for slot in self.volume_slots() {
            let volume = self.volume(slot);
            text += &format!(
                "{slot:?} {:?} {:?}, {} dirty, {} homed, {} around, {:?} {:?}\n",
                volume.mode,
                volume.service,
                volume.dirty_blocks,
                volume.homed.len(),
                volume.around.len(),
                volume.command,
                volume.locks
            );
        }
        for unit in self.room.units() {
            text += &format!("waits for room: {unit:?}\n");
        }
        for waiter in &self.memory_waiters {
            text += &format!("waits for memory: {waiter:?}\n");
        }
        text
    }

    /// Whether the copy of a block may be void on the cache device already, for a crash to tell: a
    /// write of it is under way, it lies in a segment that is being reclaimed, or it has no
    /// payload, so that it is forgotten as soon as it is home.
    #[must_use]
    pub fn is_changing(&self, slot: VolumeSlot, block: OriginBlock) -> bool {
        let Some(volume) = self.find_volume(slot) else { return false };
        if volume.locks.has_client_write(block.0, block.0 + 1) {
            return true;
        }
        let place = self.complete_piece(slot, block.0).map(|piece| piece.place);
        let position = match place {
            Some(Place::Data(position)) => position,
            Some(Place::Blank { .. }) => return true,
            Some(Place::Absent) | None => return false,
        };
        let (segment, _) = self.log.segments.locate(position);
        self.log.segments.get(segment).state == SegmentState::Reclaiming
    }

    /// Which blocks of an extent are cached and dirty: runs in order that cover it.
    #[must_use]
    pub fn map(&self, extent: OriginExtent) -> Vec<(OriginBlock, u64, BlockState)> {
        let mut runs: Vec<(OriginBlock, u64, BlockState)> = Vec::new();
        let mut push = |start: u64, end: u64, state: BlockState| {
            if start == end {
                return;
            }
            match runs.last_mut() {
                Some(last) if last.2 == state => last.1 += end - start,
                _ => runs.push((OriginBlock(start), end - start, state)),
            }
        };
        let mut pieces = Vec::new();
        if let Some(volume) = self.find_volume(extent.volume) {
            volume.index.complete.pieces(extent.start.0, extent.end().0, &mut pieces);
        }
        let mut at = extent.start.0;
        for piece in &pieces {
            push(at, piece.start, BlockState::NotCached);
            match piece.place {
                Place::Data(position) => {
                    for offset in 0..piece.block_count {
                        let skipped = u32::try_from(offset).expect("data pieces are small");
                        let position = crate::units::CacheBlock(position.0 + skipped);
                        let is_dirty = self.log.segments.is_dirty(position);
                        let state = if is_dirty { BlockState::Dirty } else { BlockState::Clean };
                        push(piece.start + offset, piece.start + offset + 1, state);
                    }
                }
                Place::Blank { kind: BlankKind::Poison, .. } => {
                    push(piece.start, piece.end(), BlockState::Dirty);
                }
                Place::Blank { header, .. } => {
                    let is_dirty = self.log.segments.is_dirty(header);
                    let state = if is_dirty { BlockState::Dirty } else { BlockState::Clean };
                    push(piece.start, piece.end(), state);
                }
                Place::Absent => push(piece.start, piece.end(), BlockState::NotCached),
            }
            at = piece.end();
        }
        push(at, extent.end().0, BlockState::NotCached);
        runs
    }
}
