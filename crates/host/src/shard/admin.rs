//! The admin side of the loop: messages of handles, events of the engine.

use std::ops::Range;

use forebay_engine::event::{Command, CommandError, CommandId, DirtyFate, Event};
use forebay_engine::explain::Explanation;
use forebay_engine::format::superblock::NewVolume;
use forebay_engine::units::{BLOCK_BYTES, OriginBlock, OriginExtent, VolumeSlot};

use super::ShardError;
use super::exports::{ExportFacts, ExportNumber, Target, volume_identity};
use super::handle::{
    AdminCommand, AdminError, BlockAnswer, BlockReport, BlockRun, CommandAnswer, CommandDone,
    Message, ShardCommand,
};
use super::run::Running;
use super::served_set::{CommandKind, Mark, PendingCommand, PendingQuestion, ServedSet, SetPhase};
use super::status::{ExportReport, ShardStatus};
use crate::clock::thread_cpu;
use crate::device::{DeviceId, OpenedDevice};
use crate::frontend::FrontEnd;
use crate::set::OriginError;

/// Most blocks of one block map: an index walk of some milliseconds.
const MAP_BLOCKS_MAX: u64 = 1 << 20;

impl Running {
    /// Somebody asks for something.
    pub(super) fn handle_message(&mut self, message: Message) {
        match message {
            Message::Status(answer) => answer.send(Ok(self.status())),
            Message::Serving(answer) => match &mut self.set {
                Some(set) if matches!(set.phase, SetPhase::Recovering) => {
                    set.serving_answers.push(answer);
                }
                Some(ServedSet { phase: SetPhase::Failed(error), .. }) => {
                    answer.send(Err((*error).into()));
                }
                _ => self.answer_when_ready(answer),
            },
            Message::BeginTakeover(answer) => self.begin_takeover(answer),
            Message::CommitTakeover(ticket, commit) => self.commit_takeover(ticket, commit),
            Message::CancelTakeover(ticket) => self.cancel_takeover_of(ticket),
            Message::WhenRead(answer) => self.answer_when_read(answer),
            Message::TakeOver(answer) => self.take_over(answer),
            Message::Ublk(report) => self.handle_ublk(*report),
            Message::Command { id, command, answer } => self.handle_command(id, *command, answer),
            Message::Cancel(id) => {
                if let Some(set) = &mut self.set {
                    set.engine.cancel_command(id);
                }
            }
            Message::Measured(measured) => self.handle_measured(*measured),
            Message::Returned(returned) => self.handle_returned(returned),
            Message::ResetCounters(answer) => {
                self.exports.reset_counters();
                self.pool.reset_counters();
                if let Some(set) = &mut self.set {
                    set.engine.reset_counters();
                }
                answer.send(Ok(()));
            }
            Message::BlockMap { volume, blocks, answer } => {
                answer.send(self.block_map(&volume, &blocks));
            }
            Message::Fetch { volume, blocks, answer } => self.fetch(&volume, &blocks, answer),
            Message::Explain { id, volume, offset_bytes, answer } => {
                self.explain(id, volume, offset_bytes, answer);
            }
        }
    }

    fn status(&self) -> ShardStatus {
        let exports = self.exports.iter().map(|(number, export)| {
            let volume = match (export.target, &self.set) {
                (Target::Volume(slot), Some(set)) => set.engine.volume_status(self.now, slot),
                _ => None,
            };
            ExportReport {
                name: export.facts.name.clone(),
                device: export.facts.device.clone(),
                size_bytes: export.facts.size_bytes,
                origin_size_bytes: self.origin_size(export.target),
                logical_block_bytes: export.facts.logical_block_bytes,
                is_read_only: export.facts.is_read_only,
                unavailable: export.unavailable(),
                block_device: self.front.ublk.path_of(number),
                vhost_user: self.front.vhost_user.path_of(number),
                volume,
                latency: export.latencies.report(),
            }
        });
        ShardStatus {
            uptime_ms: self.now.0 / 1_000_000,
            is_ready: self.front.ublk.is_ready(),
            set: self.set.as_ref().map(|set| set.report(self.now)),
            exports: exports.collect(),
            connections: self.front.report(&self.exports, self.now),
            devices: self.devices.report(self.now),
            memory: self.pool.report(),
        }
    }

    /// What the kernel says of the size of a volume's origin without asking anybody.
    fn origin_size(&self, target: Target) -> Option<u64> {
        let Target::Volume(slot) = target else { return None };
        let device = self.set.as_ref()?.origin(slot)?;
        self.devices.opened(device).known_size_bytes()
    }

    fn block_map(&self, volume: &str, blocks: &Range<u64>) -> Result<Vec<BlockRun>, AdminError> {
        let Some(number) = self.exports.named(volume) else {
            return Err(AdminError::NoSuchVolume { name: volume.to_owned() });
        };
        let export = &self.exports[number];
        let end = export.facts.size_bytes.div_ceil(BLOCK_BYTES as u64).min(blocks.end);
        let count = end.saturating_sub(blocks.start).min(MAP_BLOCKS_MAX);
        if count == 0 {
            return Ok(Vec::new());
        }
        Ok(self.block_states(export.target, blocks.start, count))
    }

    fn explain(&mut self, id: CommandId, volume: String, offset_bytes: u64, answer: BlockAnswer) {
        match self.find_block(&volume, offset_bytes) {
            Err(error) => answer.send(Err(error)),
            Ok((slot, block)) => {
                let set = self.set.as_mut().expect("it has the volume");
                set.questions.push(PendingQuestion { id, slot, block, answer });
                set.engine.handle_command(self.now, id, Command::Explain { volume: slot, block });
            }
        }
    }

    /// The block in which a byte of a volume is.
    fn find_block(
        &self,
        volume: &str,
        offset_bytes: u64,
    ) -> Result<(VolumeSlot, OriginBlock), AdminError> {
        let set = self.set.as_ref().ok_or(AdminError::NoCacheSet)?;
        let unknown = || AdminError::NoSuchVolume { name: volume.to_owned() };
        let slot = set.slot_named(volume).ok_or_else(unknown)?;
        let size_bytes = set.engine.volume_size_bytes(slot).ok_or_else(unknown)?;
        if offset_bytes >= size_bytes {
            let volume = volume.to_owned();
            return Err(AdminError::BehindEnd { volume, size_bytes, offset_bytes });
        }
        Ok((slot, OriginBlock(offset_bytes / BLOCK_BYTES as u64)))
    }

    /// Answers who asked for a block; a set that serves nobody is asked for what it knows at once.
    fn explained(&mut self, id: CommandId, explanation: Option<Explanation>) {
        let set = self.set.as_mut().expect("events come from the engine");
        let Some(place) = set.questions.iter().position(|question| question.id == id) else {
            return;
        };
        let PendingQuestion { slot, block, answer, .. } = set.questions.swap_remove(place);
        let explanation = explanation.or_else(|| set.engine.explain(self.now, slot, block));
        let geometry = &set.engine.superblock().geometry;
        let report = explanation.map(|explanation| BlockReport {
            explanation,
            segment_offset_bytes: explanation.place.map_or(0, |place| {
                geometry.segments_offset + u64::from(place.segment) * geometry.segment_bytes
            }),
        });
        answer.send(report.ok_or(AdminError::Engine(CommandError::NoSuchVolume)));
    }

    fn handle_command(&mut self, id: CommandId, command: ShardCommand, answer: CommandAnswer) {
        if matches!(command, ShardCommand::Plain(AdminCommand::Stop)) {
            if self.begin_stop() {
                self.pending_stop = Some((id, answer));
            } else {
                answer.send(Err(AdminError::Engine(CommandError::Busy)));
            }
            return;
        }
        if self.set.is_none() {
            answer.send(Err(AdminError::NoCacheSet));
            return;
        }
        if let ShardCommand::Plain(AdminCommand::Resize { volume }) = &command {
            self.resize(id, volume, answer);
            return;
        }
        self.start_command(id, command, answer);
    }

    /// Hands a command to the engine.
    pub(super) fn start_command(
        &mut self,
        id: CommandId,
        command: ShardCommand,
        answer: CommandAnswer,
    ) {
        match self.engine_command(command) {
            Ok((command, kind)) => {
                let set = self.set.as_mut().expect("looked at above");
                set.commands.push(PendingCommand { id, kind, answer });
                set.engine.handle_command(self.now, id, command);
            }
            Err(error) => answer.send(Err(error)),
        }
    }

    /// Checks a command and puts it into the engine's terms.
    fn engine_command(
        &mut self,
        command: ShardCommand,
    ) -> Result<(Command, CommandKind), AdminError> {
        let set = self.set.as_ref().expect("the caller has looked");
        let slot = |name: &str| {
            set.slot_named(name).ok_or_else(|| AdminError::NoSuchVolume { name: name.to_owned() })
        };
        let other = |command| Ok((command, CommandKind::Other));
        let command = match command {
            ShardCommand::Attach { name, device, mode, order, logical_block_bytes, settings } => {
                let volume = NewVolume {
                    name,
                    origin_path: device.spec().to_string(),
                    size_bytes: device.facts().size_bytes,
                    logical_block_bytes,
                    mode,
                    writeback_order: order,
                    settings: *settings,
                };
                return self.attach(volume, *device);
            }
            ShardCommand::Plain(command) => command,
        };
        match command {
            AdminCommand::Attach { .. } => panic!("the handle opens the origin first"),
            AdminCommand::Resize { .. } => panic!("the origin is looked at first"),
            AdminCommand::Detach { volume, dirty } => self.detach(volume, dirty),
            AdminCommand::SetMode { volume, mode } => {
                other(Command::SetMode { volume: slot(&volume)?, mode })
            }
            AdminCommand::SetOrder { volume, order } => {
                other(Command::SetOrder { volume: slot(&volume)?, order })
            }
            AdminCommand::Drain { volume } => other(Command::Drain { volume: slot(&volume)? }),
            AdminCommand::Invalidate { volume } => {
                other(Command::Invalidate { volume: slot(&volume)? })
            }
            AdminCommand::SetVolume { volume, settings } => {
                other(Command::SetVolume { volume: slot(&volume)?, settings })
            }
            AdminCommand::Pin { volume, blocks, change } => {
                let extent = OriginExtent {
                    volume: slot(&volume)?,
                    start: OriginBlock(blocks.start),
                    block_count: blocks.end.saturating_sub(blocks.start),
                };
                other(Command::Pin { extent, change })
            }
            AdminCommand::SetCacheSet { settings } => other(Command::SetCacheSet { settings }),
            AdminCommand::Stop => Ok((Command::Stop, CommandKind::Stop)),
        }
    }

    fn attach(
        &mut self,
        volume: NewVolume,
        device: OpenedDevice,
    ) -> Result<(Command, CommandKind), AdminError> {
        let set = self.set.as_ref().expect("the caller has looked");
        // The engine names the slot only when it is done, so one at a time.
        if set.is_attaching() {
            return Err(AdminError::Engine(CommandError::Busy));
        }
        let found_bytes = device.facts().logical_block_bytes;
        let promised_bytes = volume.logical_block_bytes;
        if found_bytes > promised_bytes {
            let device = device.spec().to_string();
            let error = OriginError::LogicalBlock { device, found_bytes, promised_bytes };
            return Err(AdminError::UnsuitableOrigin(error));
        }
        let facts = device.origin_facts();
        let name = volume.name.clone();
        let mut table = set.engine.superblock().clone();
        let slot = match table.add_volume(&volume) {
            Ok(slot) => slot,
            Err(reason) => return Err(AdminError::BadVolume { name, reason }),
        };
        let id = table.volume(slot).expect("it was just added").id;
        if self.exports.named(&name).is_some() {
            // Of a volume that has left the table; it is offered until its detach has ended.
            return Err(AdminError::Engine(CommandError::Busy));
        }
        let export = ExportFacts {
            name,
            device: volume.origin_path.clone(),
            size_bytes: volume.size_bytes,
            logical_block_bytes: volume.logical_block_bytes,
            optimal_io_bytes: facts.optimal_io_bytes,
            is_read_only: false,
            is_rotational: false,
            identity: volume_identity(&table.set_id, id.0),
        };
        let Ok(device) = self.devices.add(&mut self.ring, device) else {
            return Err(AdminError::Engine(CommandError::TableFull));
        };
        Ok((Command::Attach { volume, facts }, CommandKind::Attach { device, facts: export }))
    }

    fn detach(
        &mut self,
        volume: String,
        dirty: DirtyFate,
    ) -> Result<(Command, CommandKind), AdminError> {
        let set = self.set.as_ref().expect("the caller has looked");
        let Some(slot) = set.slot_named(&volume) else {
            return Err(AdminError::NoSuchVolume { name: volume });
        };
        if let Some(export) = self.exports.of_volume(slot) {
            let peers = self.front.peers_of(export);
            if !peers.is_empty() {
                return Err(AdminError::ClientsConnected { volume, peers });
            }
            self.exports.begin_detach(export);
        }
        let kind = CommandKind::Detach { slot, discarded_bytes: 0 };
        Ok((Command::Detach { volume: slot, dirty }, kind))
    }

    /// The engine tells something.
    pub(super) fn handle_event(&mut self, event: Event) -> Result<(), ShardError> {
        let now = self.now;
        let set = self.set.as_mut().expect("events come from the engine");
        match event {
            Event::Serving => {
                set.phase = SetPhase::Serving;
                set.recovery_cpu = thread_cpu() - set.cpu_before_recovery;
                set.unmark_without_cache();
                let answers = std::mem::take(&mut set.serving_answers);
                tracing::info!("the cache set is served");
                self.end_comeback();
                self.refresh_sizes();
                self.begin_exclusive();
                answers.into_iter().for_each(|answer| self.answer_when_ready(answer));
            }
            Event::ReadyToTakeOver => self.handle_read(),
            Event::WritesLost { volume, extents } => self.log_lost_writes(volume, &extents),
            Event::RecoveryFailed(error) => {
                if self.fail_comeback() {
                    tracing::error!("the cache device cannot be used again yet: {error}");
                    return Ok(());
                }
                let set = self.set.as_mut().expect("events come from the engine");
                set.phase = SetPhase::Failed(error);
                for answer in set.serving_answers.drain(..) {
                    answer.send(Err(error.into()));
                }
                return Err(error.into());
            }
            Event::CommandComplete { command, result } => {
                // One that was refused, if it is still open.
                self.explained(command, None);
                self.complete(command, result);
            }
            Event::Explained { command, explanation } => {
                self.explained(command, Some(explanation));
            }
            Event::DirtyBegins { volume } => set.mark(Mark::Dirty(volume), now),
            Event::DirtyEnded { volume } => set.unmark_dirty(volume),
            Event::OriginChanged { volume, has_dirty: false } => set.warn_of_change(volume),
            Event::OriginChanged { volume, has_dirty: true } => set.warn_of_conflict(volume),
            Event::DirtyDiscarded { volume, block_count } => {
                set.note_discarded(volume, block_count * BLOCK_BYTES as u64);
            }
            Event::OriginReleased { volume } => self.close_origin(volume),
            Event::CacheDegraded => tracing::error!(
                "the cache device fails again and again: nothing new is cached, dirty data is \
                 written back; check or replace the device, then restart"
            ),
            Event::CacheFailed { clean_volumes } => self.handle_cache_failed(&clean_volumes),
            Event::TableChanged => {
                set.handle_table_changed();
                self.refresh_sizes();
            }
        }
        Ok(())
    }

    fn handle_cache_failed(&mut self, clean_volumes: &[VolumeSlot]) {
        if self.is_coming_back() {
            // Nothing new of the device: its volumes are held back or marked already.
            return;
        }
        let set = self.set.as_mut().expect("events come from the engine");
        tracing::error!("the cache device has failed; volumes without dirty data go on without it");
        let slots: Vec<_> = set.engine.volume_ids().map(|(slot, _)| slot).collect();
        for slot in slots {
            if clean_volumes.contains(&slot) {
                set.mark(Mark::WithoutCache(slot), self.now);
                continue;
            }
            let status = set.engine.volume_status(self.now, slot);
            let dirty_blocks = status.map_or(0, |status| status.dirty_blocks);
            if dirty_blocks > 0 {
                tracing::error!(
                    slot = slot.0,
                    dirty_blocks,
                    "a volume has dirty data on the failed cache device and is not served"
                );
            }
        }
        self.begin_comeback();
    }

    fn complete(&mut self, id: CommandId, result: Result<Option<VolumeSlot>, CommandError>) {
        let set = self.set.as_mut().expect("events come from the engine");
        let Some(place) = set.commands.iter().position(|command| command.id == id) else {
            return;
        };
        let PendingCommand { kind, answer, .. } = set.commands.swap_remove(place);
        let mut done = CommandDone::default();
        match kind {
            CommandKind::Other => {}
            CommandKind::Resize { slot, old_bytes, new_bytes } => {
                if result.is_ok() {
                    return self.end_resize(slot, (old_bytes, new_bytes), answer);
                }
            }
            CommandKind::Stop => {
                set.handle_stopped(result.map(|_| ()), answer);
                return;
            }
            CommandKind::Attach { device, facts } => match result {
                Ok(Some(slot)) => {
                    set.set_origin(slot, Some(device));
                    let added = self.exports.add(facts, Target::Volume(slot), None);
                    if let Err(error) = added {
                        tracing::error!(%error, "an attached volume cannot be offered to clients");
                    }
                }
                Ok(None) | Err(_) => {
                    // A discard or the loss of the cache device does not wait for its flush.
                    set.closing.push(device);
                    self.close_idle_origins();
                }
            },
            CommandKind::Detach { slot, discarded_bytes } => {
                done.discarded_bytes = discarded_bytes;
                // Another detach, that throws dirty data away, may have ended this one.
                let goes_on = set.is_detaching(slot);
                let is_released = set.engine.volume_ids().all(|(other, _)| other != slot);
                if let Some(export) = self.exports.of_volume(slot) {
                    if result.is_ok() {
                        self.remove_export(export);
                    } else if !goes_on {
                        self.exports.cancel_detach(export);
                    }
                }
                // Else operations of the origin are under way, and the engine says when they end.
                if result.is_ok() && is_released {
                    self.close_origin(slot);
                }
            }
        }
        answer.send(result.map(|_| done).map_err(AdminError::Engine));
    }

    /// Takes away what is offered of a volume that is gone, and who has it, or could connect to it
    /// still. The next attach may take the volume's slot, and none of these may come to that one.
    pub(super) fn remove_export(&mut self, export: ExportNumber) {
        self.exports.remove(export);
        let (front, mut context) = self.front();
        front.close_clients_of(&mut context, export);
    }

    /// Closes origins of attaches that failed, as soon as nothing is under way at them.
    pub(super) fn close_idle_origins(&mut self) {
        let Some(set) = &mut self.set else { return };
        let is_idle = |device: &mut DeviceId| self.devices.in_flight(*device) == 0;
        let idle: Vec<_> = set.closing.extract_if(.., is_idle).collect();
        for device in idle {
            self.devices.remove(&mut self.ring, device);
        }
    }

    /// Nobody uses the origin of a volume any more.
    pub(super) fn close_origin(&mut self, slot: VolumeSlot) {
        let set = self.set.as_mut().expect("it is of a volume");
        if let Some(device) = set.origin(slot) {
            set.set_origin(slot, None);
            self.devices.remove(&mut self.ring, device);
        }
    }
}
