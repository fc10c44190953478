//! A cache set in service: the engine, its devices, and the host state file that goes with it.
//!
//! The state file is saved in the loop, synchronously: the engine holds back what depends on it,
//! and other clients wait for the few milliseconds of two flushes. That happens when a volume
//! begins to be dirty, when the cache device fails and when the volume table changes, never per
//! request. If saving fails, it is tried again each [`SAVE_RETRY_MS`]; until then the engine's
//! writes wait, because their promise could not be kept.

use std::time::Duration;

use forebay_engine::Engine;
use forebay_engine::error::RecoveryError;
use forebay_engine::event::{CommandId, SavedMark};
use forebay_engine::format::SetId;
use forebay_engine::format::superblock::Volume;
use forebay_engine::io::Device;
use forebay_engine::options::HostMark;
use forebay_engine::units::{OriginBlock, Time, VolumeId, VolumeSlot};

use super::ShardError;
use super::comeback::Comeback;
use super::exports::{ExportFacts, ExportTable, Target, volume_identity};
use super::handle::{AdminError, Answer, BlockAnswer, CommandAnswer, CommandDone, NotServing};
use super::status::SetReport;
use super::what_if::LiveCurve;
use crate::buffer_pool::BufferPool;
use crate::clock::thread_cpu;
use crate::device::{DeviceId, DeviceTable, OpenedDevice};
use crate::device_spec::DeviceSpec;
use crate::ring::Ring;
use crate::set::OpenedSet;
use crate::state_file::{HostState, StateFile, VolumeMark};

/// When to try again to save the state file.
const SAVE_RETRY_MS: u64 = 1000;

/// How far a set is.
pub(super) enum SetPhase {
    /// Recovery is under way.
    Recovering,
    /// Requests are served.
    Serving,
    /// Recovery has failed.
    Failed(RecoveryError),
    /// The engine has finished.
    Stopped(Result<(), forebay_engine::event::CommandError>),
}

/// A command whose answer is due.
pub(super) struct PendingCommand {
    pub(super) id: CommandId,
    pub(super) kind: CommandKind,
    pub(super) answer: CommandAnswer,
}

/// What the host must do when a command has ended.
pub(super) enum CommandKind {
    /// Put the origin to work.
    Attach { device: DeviceId, facts: ExportFacts },
    /// Close the origin.
    Detach { slot: VolumeSlot, discarded_bytes: u64 },
    /// Tell how clients come to the new size.
    Resize { slot: VolumeSlot, old_bytes: u64, new_bytes: u64 },
    /// End the shard.
    Stop,
    /// Nothing.
    Other,
}

/// Somebody who wants to know why a block is cached or not.
pub(super) struct PendingQuestion {
    pub(super) id: CommandId,
    pub(super) slot: VolumeSlot,
    pub(super) block: OriginBlock,
    pub(super) answer: BlockAnswer,
}

/// What the engine waits for the state file to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// That the volume may have dirty data.
    Dirty(VolumeSlot),
    /// That the volume is written without its cache.
    WithoutCache(VolumeSlot),
}

/// A cache set in service.
pub(super) struct ServedSet {
    pub(super) engine: Engine,
    pub(super) live_curve: LiveCurve,
    pub(super) phase: SetPhase,
    /// Processor time of this thread when recovery began.
    pub(super) cpu_before_recovery: Duration,
    /// What recovery took of it.
    pub(super) recovery_cpu: Duration,
    pub(super) commands: Vec<PendingCommand>,
    pub(super) questions: Vec<PendingQuestion>,
    pub(super) serving_answers: Vec<Answer<(), NotServing>>,
    stop_answer: Option<CommandAnswer>,
    pub(super) comeback: Comeback,
    /// Recoveries of a device that came back which failed.
    pub(super) failed_comebacks: u32,
    /// None while it is gone.
    cache: Option<DeviceId>,
    cache_spec: DeviceSpec,
    /// Origins by slot.
    origins: Vec<Option<DeviceId>>,
    /// Origins of attaches that failed, at which operations are under way.
    pub(super) closing: Vec<DeviceId>,
    state: HostState,
    state_file: StateFile,
    /// Marks that are in `state` and not yet durable, for which the engine waits.
    unsaved: Vec<Mark>,
    is_state_changed: bool,
    save_at: Option<Time>,
    company: Company,
}

/// Whether another process may go on with the set any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Company {
    None,
    Predecessor,
}

impl ServedSet {
    /// Puts the devices to work and begins recovery.
    pub(super) fn start(
        opened: OpenedSet,
        around: (&mut Ring, &mut DeviceTable, &mut ExportTable),
        company: Company,
        now: Time,
    ) -> Result<ServedSet, ShardError> {
        let (ring, devices, exports) = around;
        let OpenedSet { cache, superblock, origins, openings, unavailable, state, state_file } =
            opened;
        let too_many = |name: &str| ShardError::Export {
            name: name.to_owned(),
            reason: "too many devices are open".to_owned(),
        };
        let cache_spec = cache.spec().clone();
        let recover = match company {
            Company::None => Engine::recover,
            Company::Predecessor => Engine::recover_beside,
        };
        let cpu_before_recovery = thread_cpu();
        let engine = recover(now, superblock.clone(), cache.cache_facts(), &openings);
        let cache = devices.add(ring, cache).map_err(|_| too_many(&cache_spec.to_string()))?;
        let mut set = ServedSet {
            engine,
            live_curve: LiveCurve::new(&superblock.geometry),
            phase: SetPhase::Recovering,
            cpu_before_recovery,
            recovery_cpu: Duration::ZERO,
            commands: Vec::new(),
            questions: Vec::new(),
            serving_answers: Vec::new(),
            stop_answer: None,
            comeback: Comeback::None,
            failed_comebacks: 0,
            cache: Some(cache),
            cache_spec,
            origins: vec![None; superblock.volumes.len()],
            closing: Vec::new(),
            state,
            state_file,
            unsaved: Vec::new(),
            is_state_changed: true,
            save_at: None,
            company,
        };
        for (slot, origin) in origins {
            let volume = superblock.volume(slot).expect("origins belong to volumes");
            let facts = volume_facts(&superblock.set_id, volume, Some(&origin));
            warn_of_longer_origin(volume, &origin);
            let id = devices.add(ring, origin).map_err(|_| too_many(&volume.name))?;
            set.origins[usize::from(slot.0)] = Some(id);
            exports.add(facts, Target::Volume(slot), None)?;
        }
        for missing in unavailable {
            let volume = superblock.volume(missing.slot).expect("it is in the table");
            let reason = Some(missing.error.to_string());
            let facts = volume_facts(&superblock.set_id, volume, None);
            exports.add(facts, Target::Volume(missing.slot), reason)?;
        }
        Ok(set)
    }

    /// The device that the engine means. `None` if that origin is not open.
    pub(super) fn device(&self, device: Device) -> Option<DeviceId> {
        match device {
            Device::Cache => self.cache,
            Device::Origin(slot) => {
                let attached = self.origins.get(usize::from(slot.0)).copied().flatten();
                // The engine may use an origin before it says under which slot it was attached.
                attached.or_else(|| {
                    self.commands.iter().find_map(|command| match command.kind {
                        CommandKind::Attach { device, .. } => Some(device),
                        _ => None,
                    })
                })
            }
        }
    }

    pub(super) fn cache_device(&self) -> Option<DeviceId> {
        self.cache
    }

    pub(super) fn take_cache_device(&mut self) -> Option<DeviceId> {
        self.cache.take()
    }

    pub(super) fn set_cache_device(&mut self, id: DeviceId) {
        self.cache = Some(id);
    }

    pub(super) fn cache_spec(&self) -> &DeviceSpec {
        &self.cache_spec
    }

    /// What the state file says of a volume.
    pub(super) fn host_mark(&self, id: VolumeId) -> HostMark {
        self.state.host_mark(id)
    }

    pub(super) fn set_origin(&mut self, slot: VolumeSlot, device: Option<DeviceId>) {
        self.origins[usize::from(slot.0)] = device;
    }

    pub(super) fn origin(&self, slot: VolumeSlot) -> Option<DeviceId> {
        self.origins.get(usize::from(slot.0)).copied().flatten()
    }

    /// Slots whose origins are open and whose volumes the table does not name.
    pub(super) fn departed_origins(&self) -> Vec<VolumeSlot> {
        let slots = (0u16..).map(VolumeSlot).zip(&self.origins);
        let open = slots.filter(|(_, origin)| origin.is_some()).map(|(slot, _)| slot);
        open.filter(|slot| self.engine.superblock().volume(*slot).is_none()).collect()
    }

    /// The slot of a volume.
    pub(super) fn slot_named(&self, name: &str) -> Option<VolumeSlot> {
        self.engine.superblock().slots().find(|(_, volume)| volume.name == name).map(|(s, _)| s)
    }

    /// Whether an attach is under way.
    pub(super) fn is_attaching(&self) -> bool {
        self.commands.iter().any(|command| matches!(command.kind, CommandKind::Attach { .. }))
    }

    /// Whether a detach of the volume is under way.
    pub(super) fn is_detaching(&self, slot: VolumeSlot) -> bool {
        let mut kinds = self.commands.iter().map(|command| &command.kind);
        kinds.any(|kind| matches!(kind, CommandKind::Detach { slot: other, .. } if *other == slot))
    }

    /// Dirty data of a volume is gone, as its operator wished.
    pub(super) fn note_discarded(&mut self, slot: VolumeSlot, bytes: u64) {
        for command in &mut self.commands {
            if let CommandKind::Detach { slot: other, discarded_bytes } = &mut command.kind
                && *other == slot
            {
                *discarded_bytes = bytes;
            }
        }
        tracing::warn!(slot = slot.0, bytes, "the dirty data of a volume was thrown away");
    }

    /// Lets the engine see the time, and saves the state file if that is due.
    pub(super) fn handle_time(&mut self, now: Time, pool: &mut BufferPool) {
        if self.engine.poll_wakeup().is_some_and(|wakeup| wakeup <= now) {
            self.engine.handle_time(now, pool);
        }
        if self.company == Company::Predecessor {
            // The file is the predecessor's.
            return;
        }
        let is_due = self.save_at.is_some_and(|at| at <= now);
        if is_due || (self.is_state_changed && self.save_at.is_none()) {
            self.save_state(now);
        }
    }

    /// The predecessor is gone.
    pub(super) fn end_reading(&mut self) {
        self.company = Company::None;
    }

    /// Whether the state file says all that it should.
    pub(super) fn is_saved(&self) -> bool {
        !self.is_state_changed && self.save_at.is_none() && self.unsaved.is_empty()
    }

    /// When to call [`ServedSet::handle_time`] next.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        [self.engine.poll_wakeup(), self.save_at].into_iter().flatten().min()
    }

    /// Notes a mark, saves it and tells the engine.
    pub(super) fn mark(&mut self, mark: Mark, now: Time) {
        let (Mark::Dirty(slot) | Mark::WithoutCache(slot)) = mark;
        self.refresh_state();
        if let Some(volume) = self.id_of(slot).and_then(|id| self.state.volume_mut(id)) {
            match mark {
                Mark::Dirty(_) => volume.dirty_possible = true,
                Mark::WithoutCache(_) => {
                    volume.served_without_cache = true;
                    volume.dirty_possible = false;
                }
            }
        }
        self.unsaved.push(mark);
        self.save_state(now);
    }

    /// No dirty data exists any more. The next save says so; until then the file errs on the safe
    /// side.
    pub(super) fn unmark_dirty(&mut self, slot: VolumeSlot) {
        if let Some(volume) = self.id_of(slot).and_then(|id| self.state.volume_mut(id)) {
            volume.dirty_possible = false;
            self.is_state_changed = true;
        }
    }

    /// Recovery is done: what was written without the cache is void on the cache device by now.
    pub(super) fn unmark_without_cache(&mut self) {
        let open: Vec<_> = self
            .engine
            .superblock()
            .slots()
            .filter(|(slot, _)| self.origin(*slot).is_some())
            .map(|(_, volume)| volume.id)
            .collect();
        for id in open {
            if let Some(volume) = self.state.volume_mut(id) {
                volume.served_without_cache = false;
            }
        }
        self.is_state_changed = true;
    }

    /// An origin was written behind our back; nothing was lost by it.
    pub(super) fn warn_of_change(&self, slot: VolumeSlot) {
        let (name, origin) = self.name_and_origin(slot);
        tracing::warn!(
            "volume `{name}`: its origin {origin} was written while forebay did not serve it; \
             its cached copies were dropped"
        );
    }

    /// An origin was written behind our back, and the cache has newer data for it.
    pub(super) fn warn_of_conflict(&self, slot: VolumeSlot) {
        let (name, origin) = self.name_and_origin(slot);
        tracing::error!(
            "volume `{name}`: its origin {origin} was written while forebay did not serve it, and \
             dirty data for it is in the cache; the volume is not served. Undo the change on the \
             origin and restart, or give the dirty data up with `forebay detach {name} \
             --discard-dirty`"
        );
    }

    fn name_and_origin(&self, slot: VolumeSlot) -> (String, String) {
        let volume = self.engine.superblock().volume(slot);
        volume.map(|volume| (volume.name.clone(), volume.origin_path.clone())).unwrap_or_default()
    }

    /// The volume table has changed.
    pub(super) fn handle_table_changed(&mut self) {
        self.is_state_changed = true;
    }

    /// Brings names, modes and volumes of the state up to date; keeps the marks. A volume that is
    /// being detached keeps its mark until that has ended: the volume table of the engine need not
    /// be durable before. So does one that the table did not name when it was read: after a crash
    /// it may name it again, as long as recovery has not flushed it.
    fn refresh_state(&mut self) {
        let superblock = self.engine.superblock();
        self.state.cache_device = self.cache_spec.to_string();
        self.state.label.clone_from(&superblock.label);
        let table = superblock.slots().map(|(_, volume)| VolumeMark {
            id: volume.id.0,
            name: volume.name.clone(),
            origin: volume.origin_path.clone(),
            logical_block_bytes: volume.logical_block_bytes,
            mode: volume.mode,
            dirty_possible: false,
            served_without_cache: false,
        });
        let is_recovering = matches!(self.phase, SetPhase::Recovering);
        let engine = &self.engine;
        self.state.update(table.collect(), |id| {
            is_recovering || engine.volume_ids().any(|(_, known)| known == id)
        });
    }

    fn id_of(&self, slot: VolumeSlot) -> Option<VolumeId> {
        self.engine.volume_ids().find(|(other, _)| *other == slot).map(|(_, id)| id)
    }

    /// Takes over what the file says of volumes whose origins are not open here: another process
    /// may have served them without their cache (rule 10), and what is remembered here is older.
    fn adopt_marks(&mut self) {
        let slots = self.engine.superblock().slots();
        let is_away = |(slot, volume): (VolumeSlot, &Volume)| {
            self.origin(slot).is_none().then_some(volume.id)
        };
        let away: Vec<VolumeId> = slots.filter_map(is_away).collect();
        if away.is_empty() {
            return;
        }
        let Ok(Some(found)) = self.state_file.load() else { return };
        for id in away {
            let mark = found.volume(id).filter(|mark| mark.served_without_cache);
            if let (Some(mark), Some(own)) = (mark, self.state.volume_mut(id)) {
                own.served_without_cache = true;
                own.dirty_possible = mark.dirty_possible;
            }
        }
    }

    fn save_state(&mut self, now: Time) {
        self.refresh_state();
        let saved = self.state_file.lock().and_then(|lock| {
            self.adopt_marks();
            self.state_file.replace(&lock, &self.state)
        });
        match saved {
            Ok(()) => {
                self.save_at = None;
                self.is_state_changed = false;
                for mark in std::mem::take(&mut self.unsaved) {
                    let (slot, mark) = match mark {
                        Mark::Dirty(slot) => (slot, SavedMark::DirtyPossible),
                        Mark::WithoutCache(slot) => (slot, SavedMark::ServedWithoutCache),
                    };
                    self.engine.handle_host_state_saved(now, slot, mark);
                }
            }
            Err(error) => {
                tracing::error!(%error, "writes wait until the host state file can be saved");
                self.save_at = Some(now.after_ms(SAVE_RETRY_MS));
            }
        }
    }

    /// The engine has finished for good.
    pub(super) fn handle_stopped(
        &mut self,
        result: Result<(), forebay_engine::event::CommandError>,
        answer: CommandAnswer,
    ) {
        self.phase = SetPhase::Stopped(result);
        self.stop_answer = Some(answer);
    }

    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.phase, SetPhase::Stopped(_) | SetPhase::Failed(_))
    }

    /// Everything has ended: tells whoever asked for it.
    pub(super) fn answer_stop(&mut self, now: Time) {
        if self.is_state_changed {
            self.save_state(now);
        }
        if let (SetPhase::Stopped(result), Some(answer)) = (&self.phase, self.stop_answer.take()) {
            answer.send(result.map(|()| CommandDone::default()).map_err(AdminError::Engine));
        }
    }

    /// For the status.
    pub(super) fn report(&self, now: Time) -> SetReport {
        let superblock = self.engine.superblock();
        SetReport {
            set_id: superblock.set_id,
            label: superblock.label.clone(),
            cache_device: self.cache_spec.to_string(),
            state_file: self.state_file.path().to_owned(),
            recovery_error: match self.phase {
                SetPhase::Failed(error) => Some(error),
                SetPhase::Recovering | SetPhase::Serving | SetPhase::Stopped(_) => None,
            },
            status: self.engine.status(now),
            recovery_cpu: self.recovery_cpu,
            what_if: self.live_curve.estimates(),
        }
    }
}

/// A start does not grow anything by itself.
fn warn_of_longer_origin(volume: &Volume, origin: &OpenedDevice) {
    let (found_bytes, size_bytes) = (origin.facts().size_bytes, volume.size_bytes);
    if found_bytes > size_bytes {
        let name = &volume.name;
        tracing::warn!(
            "volume `{name}`: its origin {} has {found_bytes} bytes and the volume {size_bytes}; \
             it is served with its own size. `forebay resize {name}` makes it as long as its \
             origin",
            origin.spec()
        );
    }
}

/// What the export of a volume is made of.
pub(super) fn volume_facts(
    set_id: &SetId,
    volume: &Volume,
    origin: Option<&OpenedDevice>,
) -> ExportFacts {
    ExportFacts {
        name: volume.name.clone(),
        device: volume.origin_path.clone(),
        size_bytes: volume.size_bytes,
        logical_block_bytes: volume.logical_block_bytes,
        optimal_io_bytes: origin.map_or(0, |origin| origin.facts().optimal_io_bytes),
        is_read_only: false,
        // The cache hides the distances of the disk behind it.
        is_rotational: false,
        identity: volume_identity(set_id, volume.id.0),
    }
}
