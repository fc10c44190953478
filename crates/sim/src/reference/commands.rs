//! Commands of the reference engine: one after the other, each answered when what it did is
//! durable.

use std::cmp::Ordering;
use std::collections::VecDeque;

use forebay_engine::event::{Command, CommandError, CommandId, DirtyFate, PinChange};
use forebay_engine::format::superblock::{Keeping, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::io::{Device, Io, IoId, IoKind, Slices};
use forebay_engine::options::CacheMode;
use forebay_engine::payload::{BufferId, Payload};
use forebay_engine::units::{OriginExtent, SECTOR_BYTES, VolumeSlot};

use super::{Fault, Reference, range};

/// A command that waits until something is durable: origins, the volume table.
pub(super) struct Update {
    command: CommandId,
    slot: Option<VolumeSlot>,
    /// The volume of the command.
    pub(super) volume: Option<VolumeSlot>,
    buffer: Option<BufferId>,
    /// Operations still to be done, one after the other.
    left: VecDeque<(Device, IoKind)>,
    /// The table to go back to if one fails.
    before: Superblock,
}

/// What a command does to the volume table.
enum TableChange {
    /// Nothing.
    None,
    /// It changes; the slot is that of a new volume.
    To(Option<VolumeSlot>),
}

impl Reference {
    pub(super) fn next_command(&mut self, payload: &mut dyn Payload) {
        if self.update.is_some() {
            return;
        }
        if !self.events.is_empty() {
            // The slot of a volume that was detached is free for another one when the host knows.
            self.is_retry_due |= !self.commands.is_empty();
            return;
        }
        let Some((id, command)) = self.commands.front().cloned() else { return };
        self.is_stopping |= command == Command::Stop;
        let must_wait = match command {
            Command::Stop => !self.tasks.is_empty() || !self.waiting.is_empty(),
            Command::Detach { volume, .. } | Command::Grow { volume, .. } => {
                let tasks = self.tasks.values().map(|task| &task.request);
                tasks.chain(&self.waiting).any(|request| request.volume == volume)
            }
            _ => false,
        };
        if must_wait {
            return;
        }
        self.commands.pop_front();
        self.is_retry_due |= !self.commands.is_empty();
        let before = self.superblock.clone();
        let mut left = self.flushes_for(&command);
        let mut buffer = None;
        let changed = self.change_table(&command);
        if let Ok(TableChange::To(Some(slot))) = changed {
            // Who attaches may rely on what the origin holds.
            left.push_back((Device::Origin(slot), IoKind::Flush));
        }
        if let Ok(TableChange::To(_)) = changed {
            buffer = payload.allocate(SUPERBLOCK_BYTES);
            let Some(buffer) = buffer else {
                self.superblock = before;
                return self.complete(id, Err(CommandError::Busy));
            };
            left.extend(self.table_writes(buffer, payload));
        }
        let slot = match changed {
            Err(error) => return self.complete(id, Err(error)),
            Ok(TableChange::None) => None,
            Ok(TableChange::To(slot)) => slot,
        };
        let volume = volume_of(&command);
        self.update = Some(Update { command: id, slot, volume, buffer, left, before });
        self.continue_update(payload);
    }

    /// Drain, detach and stop answer when what clients wrote is durable.
    fn flushes_for(&mut self, command: &Command) -> VecDeque<(Device, IoKind)> {
        match command {
            Command::Drain { volume }
            | Command::Detach { volume, dirty: DirtyFate::WrittenBack } => {
                let exists = self.superblock.volume(*volume).is_some();
                exists.then_some((Device::Origin(*volume), IoKind::Flush)).into_iter().collect()
            }
            Command::Stop => {
                let slots = self.superblock.slots().map(|(slot, _)| slot);
                let served = slots.filter(|slot| !self.missing.contains(&slot.0));
                served.map(|slot| (Device::Origin(slot), IoKind::Flush)).collect()
            }
            _ => VecDeque::new(),
        }
    }

    fn change_table(&mut self, command: &Command) -> Result<TableChange, CommandError> {
        let (slot, mode) = match command {
            Command::Attach { volume, .. } => {
                let added = self.superblock.add_volume(volume);
                let slot = added.map_err(|_| CommandError::NameTaken)?;
                return Ok(TableChange::To(Some(slot)));
            }
            Command::Detach { volume, .. } => {
                if self.superblock.volume(*volume).is_none() {
                    return Err(CommandError::NoSuchVolume);
                }
                self.superblock.volumes[usize::from(volume.0)] = None;
                return Ok(TableChange::To(None));
            }
            Command::SetMode { volume, mode } => (volume, *mode),
            Command::Drain { volume } => (volume, CacheMode::Writethrough),
            Command::SetOrder { volume, order } => {
                let entry = self.superblock.volumes.get_mut(usize::from(volume.0));
                let entry = entry.and_then(Option::as_mut).ok_or(CommandError::NoSuchVolume)?;
                entry.writeback_order = *order;
                return Ok(TableChange::To(None));
            }
            Command::Grow { volume, size_bytes } => return self.grow(*volume, *size_bytes),
            Command::Pin { extent, change } => {
                return self.change_pins(extent, *change);
            }
            _ => return Ok(TableChange::None),
        };
        let entry = self.superblock.volumes.get_mut(usize::from(slot.0));
        let entry = entry.and_then(Option::as_mut).ok_or(CommandError::NoSuchVolume)?;
        entry.mode = mode;
        Ok(TableChange::To(None))
    }

    fn grow(&mut self, slot: VolumeSlot, size_bytes: u64) -> Result<TableChange, CommandError> {
        let entry = self.superblock.volumes.get_mut(usize::from(slot.0));
        let entry = entry.and_then(Option::as_mut).ok_or(CommandError::NoSuchVolume)?;
        match size_bytes.cmp(&entry.size_bytes) {
            Ordering::Less => Err(CommandError::WouldShrink),
            Ordering::Equal => Ok(TableChange::None),
            Ordering::Greater if !size_bytes.is_multiple_of(SECTOR_BYTES as u64) => {
                Err(CommandError::Invalid)
            }
            Ordering::Greater => {
                entry.size_bytes = size_bytes;
                Ok(TableChange::To(None))
            }
        }
    }

    fn change_pins(
        &mut self,
        extent: &OriginExtent,
        change: PinChange,
    ) -> Result<TableChange, CommandError> {
        let slot = extent.volume;
        let entry = self.superblock.volume(slot).ok_or(CommandError::NoSuchVolume)?;
        let (start, end) = (extent.start.0, extent.start.0.saturating_add(extent.block_count));
        if start >= end || end > entry.block_count() {
            return Err(CommandError::Invalid);
        }
        let mut pins = entry.pins.clone();
        match change {
            PinChange::Pin => pins.insert(start, end),
            PinChange::Unpin => pins.remove(start, end),
        }
        let pinned_blocks = pins.block_count();
        let keeping = Keeping { pinned_blocks, ..self.superblock.keeping(slot) };
        self.superblock.check_keeping(slot, keeping).map_err(CommandError::KeepsTooMuch)?;
        let entry = self.superblock.volumes[usize::from(slot.0)].as_mut();
        entry.expect("looked up above").pins = pins;
        Ok(TableChange::To(None))
    }

    /// One place, a flush, the other place, a flush: at every moment one place is whole.
    fn table_writes(
        &mut self,
        buffer: BufferId,
        payload: &mut dyn Payload,
    ) -> VecDeque<(Device, IoKind)> {
        self.superblock.serial += 1;
        let range = range(buffer, 0, SUPERBLOCK_BYTES as u64);
        payload.metadata_mut(range).copy_from_slice(&self.superblock.encode());
        if self.fault == Fault::ForgetsTable {
            return VecDeque::new();
        }
        let write = |offset_bytes| IoKind::Write { offset_bytes, slices: Slices::One(range) };
        let mut places = [0, self.superblock.geometry.copy_offset];
        if self.is_copy_doubtful {
            places.reverse();
        }
        [write(places[0]), IoKind::Flush, write(places[1]), IoKind::Flush]
            .map(|kind| (Device::Cache, kind))
            .into()
    }

    pub(super) fn continue_update(&mut self, payload: &mut dyn Payload) {
        let Some(update) = &mut self.update else { return };
        if let Some((device, kind)) = update.left.pop_front() {
            self.last_io += 1;
            self.ios.insert(self.last_io, None);
            self.outbox.push_back(Io { id: IoId(self.last_io), device, kind });
            return;
        }
        self.end_update(Ok(()), payload);
    }

    pub(super) fn end_update(
        &mut self,
        result: Result<(), CommandError>,
        payload: &mut dyn Payload,
    ) {
        let update = self.update.take().expect("it was under way");
        if let Some(buffer) = update.buffer {
            payload.release(buffer);
        }
        if self.is_stopping
            && let Some((_, _, buffer)) = self.remembered.take()
        {
            payload.release(buffer);
        }
        if update.buffer.is_some() {
            // Of the four operations of the table, the last two are for the second place.
            let failed_in_second = result.is_err() && update.left.len() < 2;
            self.is_copy_doubtful = result.is_err() && (self.is_copy_doubtful != failed_in_second);
        }
        if result.is_err() {
            // The new table may have reached the device: the next one must win over it.
            self.superblock = Superblock { serial: self.superblock.serial, ..update.before };
        }
        self.is_retry_due |= !self.commands.is_empty();
        self.complete(update.command, result.map(|()| update.slot));
    }
}

pub(super) fn volume_of(command: &Command) -> Option<VolumeSlot> {
    match command {
        Command::Detach { volume, .. }
        | Command::SetMode { volume, .. }
        | Command::Drain { volume }
        | Command::Invalidate { volume }
        | Command::SetOrder { volume, .. }
        | Command::Grow { volume, .. }
        | Command::SetVolume { volume, .. } => Some(*volume),
        Command::Pin { extent, .. } => Some(extent.volume),
        Command::Attach { .. }
        | Command::SetCacheSet { .. }
        | Command::Explain { .. }
        | Command::Stop => None,
    }
}
