//! Detach of a volume whose dirty data is thrown away.
//!
//! What it may rely on is the cache device alone: the origin may answer with errors, or never. So
//! nothing new is asked of it, and the order is another one than that of a detach that drains:
//!
//! 1. The volume is given up in memory: no request of it is started and none of its dirty data goes
//!    home from now on. A command that waits for its origin ends with `Cancelled`.
//! 2. The volume table without it becomes durable. This alone decides: an entry of the log whose
//!    volume id is not in the table counts for nothing, and ids are never used again (rule 10). A
//!    crash before leaves the volume with all of its dirty data, since no bit of it has been
//!    touched and a checkpoint cut meanwhile still has them; a crash after it leaves none of it.
//! 3. What is under way ends. Then index and bits forget the volume; not before step 2, or a
//!    checkpoint could make durable that nothing is dirty of a volume that is still in the table.
//! 4. A checkpoint says so, and the slot is free.
//!
//! In order the origin stays at the flush point it had come to, with part of the next epoch at
//! most: a window that is under way begins no other epoch, and nobody writes behind it.
//!
//! An operation that an origin does not end keeps its buffer and its locks. The answer does not
//! wait for it longer than [`PATIENCE_MS`], but the slot does.

use crate::command::{Goal, Stage, VolumeCommand};
use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, SummaryUser};
use crate::event::{CommandError, CommandId, Event};
use crate::format::record::EntryKind;
use crate::format::summary::PlacedEntry;
use crate::payload::Payload;
use crate::units::{CacheBlock, Time, VolumeSlot};
use crate::volume::Service;
use crate::wake::{Ended, Waiter};

/// Milliseconds for which the answer waits for operations of the origin. Those that end at all
/// mostly have ended by then, and an operator does not wonder yet.
const PATIENCE_MS: u64 = 2000;

impl Engine {
    pub(super) fn start_discard(&mut self, id: CommandId, slot: VolumeSlot) {
        let Some(volume) = self.find_volume(slot) else {
            self.end_command(id, Err(CommandError::NoSuchVolume));
            return;
        };
        if let Some(command) = volume.command {
            // Any other stage needs the cache device only, and ends soon. What is left of an attach
            // whose flush hangs is a volume of which the table may know already.
            if !matches!(command.stage, Stage::Leaving | Stage::Gated | Stage::OriginFlush) {
                self.end_command(id, Err(CommandError::Busy));
                return;
            }
            self.abandon_command(slot, command.id, CommandError::Cancelled);
        }
        let now = self.now;
        let volume = self.volume_mut(slot);
        volume.service = Service::GivenUp;
        volume.ride.hurry(now);
        volume.is_gated = true;
        volume.command = Some(VolumeCommand {
            id,
            goal: Goal::Discard,
            stage: Stage::Superblock,
            enters_order: false,
            is_answered: false,
        });
        if has_defect(Defect::DiscardForgetsFirst) {
            self.clear_index(slot);
        }
        self.superblock.volumes[usize::from(slot.0)] = None;
        if has_defect(Defect::DiscardNotDurable) {
            self.on_discard_durable(slot);
        } else {
            self.write_superblock(Waiter::Discard(slot));
            self.go_on();
        }
    }

    /// The table is durable: nothing brings the data back.
    pub(super) fn on_discard_durable(&mut self, slot: VolumeSlot) {
        let block_count = self.volume(slot).dirty_blocks;
        self.events.push_back(Event::DirtyDiscarded { volume: slot, block_count });
        self.set_stage(slot, Stage::Resting { since: self.now });
    }

    /// Whether writeback and reclaim are all that a discard still waits for. Not after it was
    /// answered: what holds it up may hold it up for good, and others need both.
    pub(super) fn discard_wants_rest(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        let is_waiting = |c: &VolumeCommand| c.goal == Goal::Discard && !c.is_answered;
        let Some(command) = volume.command.filter(is_waiting) else { return false };
        match command.stage {
            Stage::Resting { .. } => {
                volume.operations == 0
                    && volume.locks.is_idle()
                    && volume.misses.is_empty()
                    && !volume.flushes.is_under_way()
            }
            Stage::Releasing { .. } | Stage::Checkpoint | Stage::Done => true,
            _ => false,
        }
    }

    /// Waits until nobody holds anything of the volume; then the index forgets it.
    pub(super) fn advance_resting(&mut self, slot: VolumeSlot, since: Time) {
        if self.is_cache_failed() {
            return;
        }
        self.fail_room_waiters_of(slot);
        let volume = self.volume(slot);
        if volume.operations > 0 || !volume.locks.is_idle() || !self.is_quiet(slot) {
            if since.after_ms(PATIENCE_MS) <= self.now {
                self.answer_early(slot);
            }
            return;
        }
        self.clear_index(slot);
        // Promotions may be on their way into the log: rule 10, for memory.
        self.volume_mut(slot).generation.0 += 1;
        self.set_stage(slot, Stage::Releasing { is_loading: false });
    }

    /// The cache device failed when the table without the volume was durable. No engine that takes
    /// the device back has the volume, and another one may take its slot: so the command ends well,
    /// and the host offers the volume no more. Called again whenever something ends that was under
    /// way at the device.
    pub(crate) fn end_left_after_failure(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        // What was held back for it is refused.
        self.release_gated(slot, payload);
        let command = self.volume(slot).command;
        if command.is_some_and(|command| command.stage != Stage::Left) {
            self.events.push_back(Event::DirtyEnded { volume: slot });
            self.set_stage(slot, Stage::Left);
            self.answer_early(slot);
        }
    }

    /// The origin is released when nothing is under way at it. The volume stays: jobs that stand
    /// still without the device may hold pieces of it.
    pub(super) fn advance_left(&mut self, slot: VolumeSlot) {
        let volume = self.volume(slot);
        let is_origin_idle = self.oldest_origin_io(slot).is_none();
        if volume.operations == 0 && volume.locks.is_idle() && is_origin_idle {
            self.volume_mut(slot).command = None;
            self.events.push_back(Event::OriginReleased { volume: slot });
        }
    }

    fn answer_early(&mut self, slot: VolumeSlot) {
        let command = self.volume_mut(slot).command.as_mut().expect("it is being detached");
        if !core::mem::replace(&mut command.is_answered, true) {
            let id = command.id;
            self.events.push_back(Event::TableChanged);
            self.end_command(id, Ok(Some(slot)));
            self.go_on();
        }
    }

    /// When a discard is answered that waits for operations of its origin.
    pub(crate) fn discard_wakeup(&self) -> Option<Time> {
        let commands = self.volumes.iter().flatten().filter_map(|volume| volume.command);
        let waits = commands.filter(|command| !command.is_answered);
        let times = waits.filter_map(|command| match command.stage {
            Stage::Resting { since } => Some(since.after_ms(PATIENCE_MS)),
            _ => None,
        });
        times.min()
    }

    /// Gives back what was kept for writeback in order: copies that the index does not know any
    /// more. Only the entries of their segments tell whose they are.
    pub(super) fn advance_releasing(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        let next = self.log.segments.iter().find_map(|(id, segment)| {
            let is_owner = segment.lowest.iter().any(|(owner, _)| *owner == slot);
            (segment.retained > 0 && is_owner).then_some(id)
        });
        let Some(segment) = next else {
            self.set_stage(slot, Stage::Checkpoint);
            self.wait_for_checkpoint(Waiter::Command(slot));
            return;
        };
        self.set_stage(slot, Stage::Releasing { is_loading: true });
        if !self.load_entries(segment, SummaryUser::Discard(slot), payload)
            && let Some(command) = &mut self.volume_mut(slot).command
        {
            // Goes on when there is a buffer.
            command.stage = Stage::Releasing { is_loading: false };
        }
    }

    /// What a segment holds; `None` if nobody can tell: then what others own as well stays until
    /// writeback of theirs, or a restart, has sorted it out.
    pub(crate) fn on_discarded_entries(
        &mut self,
        segment: u32,
        slot: VolumeSlot,
        entries: Option<&[PlacedEntry]>,
    ) {
        let Some(volume) = self.volumes[usize::from(slot.0)].as_ref() else { return };
        let id = volume.id;
        let is_shared = self.log.segments.get(segment).lowest.iter().any(|(o, _)| *o != slot);
        let first = self.log.position(segment, 0).0;
        match entries {
            Some(entries) => {
                let is_copy = |kind: EntryKind| kind == EntryKind::Data || kind.is_blank();
                for PlacedEntry { entry, block } in entries {
                    if entry.volume == id && is_copy(entry.kind) {
                        let from = first + block;
                        self.release_retained(from..from + entry.payload_blocks().max(1));
                    }
                }
            }
            None if is_shared => {}
            None => self.release_retained(first..first + self.log.segments.segment_blocks()),
        }
        self.log.segments.get_mut(segment).lowest.retain(|(owner, _)| *owner != slot);
        let command = self.volume(slot).command;
        if command.is_some_and(|c| matches!(c.stage, Stage::Releasing { .. })) {
            self.set_stage(slot, Stage::Releasing { is_loading: false });
        }
    }

    fn release_retained(&mut self, positions: core::ops::Range<u32>) {
        for position in positions.map(CacheBlock) {
            if self.log.segments.is_retained(position) {
                self.log.segments.clear_dirty(position);
            }
        }
    }

    pub(crate) fn on_discard_woken(&mut self, slot: VolumeSlot, ended: Ended) {
        if ended == Ended::Well {
            self.on_discard_durable(slot);
        }
    }
}
