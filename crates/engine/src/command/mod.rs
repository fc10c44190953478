//! Commands of the operator.
//!
//! A change of mode goes through stages: write back what the new mode may not leave dirty, while
//! clients go on (their writes go through); hold new requests back and wait for the old mode's (not
//! while their origin hangs: then clients go on, and the command waits);
//! void what the new mode cannot vouch for; make the change durable; let the requests go. An answer
//! comes when the state it tells of is durable, never before.

use crate::defects::{Defect, has_defect};
use crate::engine::{Engine, Phase};
use crate::event::{Command, CommandError, CommandId, DirtyFate, Event, SavedMark};
use crate::format::superblock::{AddVolumeError, Keeping, NewVolume};
use crate::index::{Piece, Place};
use crate::options::{CacheMode, OriginFacts, SetSettings, VolumeSettings, WritebackOrder};
use crate::payload::Payload;
use crate::units::{Time, VolumeSlot};
use crate::volume::{HostMarkState, Service, Volume};
use crate::wake::{Ended, Waiter};

mod discard;
mod grow;
mod pins;
mod stop;

use grow::OldTail;
pub(crate) use stop::StopStage;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    Mode(CacheMode),
    Drain,
    Detach,
    /// The volume leaves the table with its dirty data.
    Discard,
    Invalidate,
    Settings,
    Pins,
    /// The volume gets more blocks at its end.
    Grow {
        size_bytes: u64,
        old_tail: OldTail,
    },
    Order(WritebackOrder),
    Attach,
    /// The volume leaves the table again, as if it had not come.
    AbandonAttach,
}

impl Goal {
    /// Whether all dirty data of the volume goes home for it.
    fn makes_clean(self) -> bool {
        match self {
            Goal::Mode(mode) => !mode.keeps_dirty(),
            Goal::Drain | Goal::Detach | Goal::Order(_) => true,
            Goal::Grow { old_tail, .. } => old_tail == OldTail::Partial,
            Goal::Discard
            | Goal::Invalidate
            | Goal::Settings
            | Goal::Pins
            | Goal::Attach
            | Goal::AbandonAttach => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Dirty data goes home, and an origin that hangs is waited for; clients go on.
    Leaving,
    /// New requests wait; those under way end, and what they left dirty goes home.
    Gated,
    /// The origin of a new volume is being flushed.
    OriginFlush,
    /// It becomes durable that the origin has everything, before order depends on that.
    OrderBegins,
    /// The superblock is being written.
    Superblock,
    /// The volume is out of the table; what is under way of it ends.
    Resting { since: Time },
    /// The cache device failed after that. The operator was told; the origin is still in use.
    Left,
    /// The segments give back what they kept for it; one of them may be being looked up.
    Releasing { is_loading: bool },
    /// A checkpoint with the clean state is being written.
    Checkpoint,
    /// All is durable.
    Done,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeCommand {
    id: CommandId,
    goal: Goal,
    stage: Stage,
    /// Dirty data is to be written home in order from its end on, and was not before.
    enters_order: bool,
    /// The operator was told already.
    is_answered: bool,
}

/// Dirty blocks of an ordered volume that go home quickly, however slow the origin is.
const NEARLY_CLEAN_BLOCKS: u64 = 64;
/// Commands that may wait for the end of recovery.
pub(crate) const EARLY_COMMANDS_MAX: usize = 64;

impl VolumeCommand {
    pub(crate) fn id(&self) -> CommandId {
        self.id
    }

    /// Whether all dirty data of the volume goes home for it.
    fn makes_clean(&self) -> bool {
        self.goal.makes_clean() || self.enters_order
    }

    /// Whether the volume is not in service yet, or never will be again.
    pub(crate) fn is_unserved(&self) -> bool {
        matches!(self.goal, Goal::Attach | Goal::AbandonAttach | Goal::Discard)
    }

    /// Whether the volume table without the volume is durable.
    pub(crate) fn has_left_table(&self) -> bool {
        let is_durable = match self.stage {
            Stage::Resting { .. }
            | Stage::Left
            | Stage::Releasing { .. }
            | Stage::Checkpoint
            | Stage::Done => true,
            Stage::Leaving
            | Stage::Gated
            | Stage::OriginFlush
            | Stage::OrderBegins
            | Stage::Superblock => false,
        };
        is_durable && matches!(self.goal, Goal::Detach | Goal::Discard)
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.makes_clean() && matches!(self.stage, Stage::Leaving | Stage::Gated)
    }
}

impl Engine {
    pub(crate) fn start_command(&mut self, id: CommandId, command: Command) {
        let is_ending = self.stopping.is_some() || self.takeover.is_begun();
        if is_ending || !matches!(self.phase, Phase::Serving) {
            self.end_command(id, Err(CommandError::Busy));
            return;
        }
        if self.is_cache_failed() && command != Command::Stop {
            self.end_command(id, Err(CommandError::CacheFailed));
            return;
        }
        match command {
            Command::Attach { volume, facts } => self.attach(id, &volume, facts),
            Command::Detach { volume, dirty: DirtyFate::WrittenBack } => {
                self.start_volume_command(id, volume, Goal::Detach);
            }
            Command::Detach { volume, dirty: DirtyFate::Discarded } => {
                self.start_discard(id, volume);
            }
            Command::SetMode { volume, mode } => {
                self.start_volume_command(id, volume, Goal::Mode(mode));
            }
            Command::Drain { volume } => self.start_volume_command(id, volume, Goal::Drain),
            Command::Invalidate { volume } => {
                let has_dirty = self
                    .volumes
                    .get(usize::from(volume.0))
                    .and_then(Option::as_ref)
                    .is_some_and(|volume| volume.dirty_blocks > 0 && volume.mode.keeps_dirty());
                if has_dirty {
                    self.end_command(id, Err(CommandError::Dirty));
                } else {
                    self.start_volume_command(id, volume, Goal::Invalidate);
                }
            }
            Command::SetOrder { volume, order } => {
                self.start_volume_command(id, volume, Goal::Order(order));
            }
            Command::SetVolume { volume, settings } => self.set_volume(id, volume, settings),
            Command::Pin { extent, change } => self.change_pins(id, extent, change),
            Command::Grow { volume, size_bytes } => self.grow(id, volume, size_bytes),
            Command::SetCacheSet { settings } => self.set_cache_set(id, settings),
            Command::Explain { volume, block } => self.start_explaining(id, volume, block),
            Command::Stop => self.start_stop(id),
        }
    }

    pub(crate) fn end_command(
        &mut self,
        command: CommandId,
        result: Result<Option<VolumeSlot>, CommandError>,
    ) {
        self.events.push_back(Event::CommandComplete { command, result });
    }

    fn start_volume_command(&mut self, id: CommandId, slot: VolumeSlot, goal: Goal) {
        let volume = self.volumes.get_mut(usize::from(slot.0)).and_then(Option::as_mut);
        let is_served =
            |volume: &&mut Volume| volume.facts.is_some() && volume.service != Service::Quiesced;
        let Some(volume) = volume.filter(is_served) else {
            self.end_command(id, Err(CommandError::NoSuchVolume));
            return;
        };
        if volume.command.is_some() {
            self.end_command(id, Err(CommandError::Busy));
            return;
        }
        let will_be_ordered = match goal {
            Goal::Mode(mode) => {
                mode.keeps_dirty() && volume.epochs.order == WritebackOrder::Ordered
            }
            Goal::Order(order) => volume.mode.keeps_dirty() && order == WritebackOrder::Ordered,
            _ => false,
        };
        let enters_order = will_be_ordered && !volume.is_ordered();
        let stage = Stage::Leaving;
        volume.command = Some(VolumeCommand { id, goal, stage, enters_order, is_answered: false });
    }

    fn set_volume(&mut self, id: CommandId, slot: VolumeSlot, settings: VolumeSettings) {
        if !settings.are_valid() {
            self.end_command(id, Err(CommandError::Invalid));
            return;
        }
        let keeping = Keeping::of(&settings, self.superblock.pins(slot).block_count());
        if let Err(error) = self.superblock.check_keeping(slot, keeping) {
            self.end_command(id, Err(error.into()));
            return;
        }
        self.start_volume_command(id, slot, Goal::Settings);
        if self.is_command_of(id, slot) {
            let now = self.now;
            let volume = self.volume_mut(slot);
            volume.settings = settings;
            volume.ride.look_now(now);
            self.stored_volume(slot).settings = settings;
            self.enter_superblock_stage(slot);
        }
    }

    /// Whether a command has begun for the volume, and was not refused.
    fn is_command_of(&self, id: CommandId, slot: VolumeSlot) -> bool {
        let command = self.find_volume(slot).and_then(|volume| volume.command);
        command.is_some_and(|command| command.id == id)
    }

    fn set_cache_set(&mut self, id: CommandId, settings: SetSettings) {
        if !settings.are_valid() {
            self.end_command(id, Err(CommandError::Invalid));
            return;
        }
        if settings.policy != self.settings.policy {
            self.replacement.change_policy(settings.policy);
        }
        self.settings = settings;
        self.superblock.settings = settings;
        self.set_commands.push_back(id);
        self.write_superblock(Waiter::SetCommand);
    }

    pub(crate) fn on_set_command_durable(&mut self) {
        if let Some(id) = self.set_commands.pop_front() {
            self.events.push_back(Event::TableChanged);
            self.end_command(id, Ok(None));
        }
    }

    fn stored_volume(&mut self, slot: VolumeSlot) -> &mut crate::format::superblock::Volume {
        let stored = self.superblock.volumes[usize::from(slot.0)].as_mut();
        stored.expect("a volume in service is in the table")
    }

    fn attach(&mut self, id: CommandId, new: &NewVolume, facts: OriginFacts) {
        // A detach frees its line of the table some steps before it ends, and that of a discard may
        // wait for an origin that never answers: the slot is not free yet.
        let volumes = &self.volumes;
        let is_free =
            |slot: VolumeSlot| volumes.get(usize::from(slot.0)).is_none_or(Option::is_none);
        let has_line = self.superblock.free_slots().next().is_some();
        let slot = match self.superblock.add_volume_where(new, is_free) {
            Ok(slot) => slot,
            Err(error) => {
                let error = match error {
                    AddVolumeError::TableFull if has_line => CommandError::Busy,
                    AddVolumeError::TableFull => CommandError::TableFull,
                    AddVolumeError::NameTaken => CommandError::NameTaken,
                    AddVolumeError::BadName
                    | AddVolumeError::PathTooLong
                    | AddVolumeError::BadSize => CommandError::Invalid,
                    AddVolumeError::KeepsTooMuch(error) => error.into(),
                };
                self.end_command(id, Err(error));
                return;
            }
        };
        self.create_volume(slot, Some(facts));
        let volume = self.volume_mut(slot);
        volume.is_gated = true;
        let (goal, stage) = (Goal::Attach, Stage::OriginFlush);
        volume.command =
            Some(VolumeCommand { id, goal, stage, enters_order: false, is_answered: false });
        // Rule 8: what others wrote to the origin and did not flush could be promoted, and then be
        // lost by the origin alone.
        volume.flushes.join(Waiter::Command(slot));
        self.go_on();
    }

    fn on_new_origin_flushed(&mut self, slot: VolumeSlot, ended: Ended) {
        if ended == Ended::Failed {
            // The table may have been written for somebody else meanwhile, with the volume.
            self.superblock.volumes[usize::from(slot.0)] = None;
            let command = self.volume_mut(slot).command.as_mut();
            command.expect("it is being attached").goal = Goal::AbandonAttach;
        }
        // Rule 10: the id is durable before it is used.
        self.enter_superblock_stage(slot);
    }

    fn enter_superblock_stage(&mut self, slot: VolumeSlot) {
        self.set_stage(slot, Stage::Superblock);
        self.write_superblock(Waiter::Command(slot));
    }

    fn set_stage(&mut self, slot: VolumeSlot, stage: Stage) {
        let command = self.volume_mut(slot).command.as_mut();
        command.expect("a command is under way").stage = stage;
        self.go_on();
    }

    /// Moves every command on that can go on.
    pub(crate) fn advance_commands(&mut self, payload: &mut dyn Payload) {
        self.advance_questions(payload);
        for index in 0..self.volumes.len() {
            let slot = VolumeSlot(u16::try_from(index).expect("VOLUMES_MAX"));
            let Some(command) = self.volumes[index].as_ref().and_then(|volume| volume.command)
            else {
                continue;
            };
            match command.stage {
                Stage::Leaving => self.advance_leaving(slot, command),
                Stage::Gated => self.advance_gated(slot, command),
                Stage::Done => self.finish_command(slot, command, payload),
                Stage::Resting { since } => self.advance_resting(slot, since),
                Stage::Left => self.advance_left(slot),
                Stage::Releasing { is_loading: false } => self.advance_releasing(slot, payload),
                Stage::Releasing { is_loading: true }
                | Stage::OriginFlush
                | Stage::OrderBegins
                | Stage::Superblock
                | Stage::Checkpoint => {}
            }
        }
        self.advance_stop(payload);
    }

    /// Whether all that is dirty is lost: then nothing can bring it home.
    fn is_only_poison_left(&self, slot: VolumeSlot) -> bool {
        let dirty = self.volume(slot).dirty_blocks;
        dirty > 0 && dirty == self.poisoned_blocks(slot)
    }

    /// A command that cannot be done ends, and the volume goes on as before.
    fn abandon_command(&mut self, slot: VolumeSlot, id: CommandId, error: CommandError) {
        let volume = self.volume_mut(slot);
        volume.command = None;
        volume.is_gated = false;
        self.needs_ungating.push(slot);
        self.end_command(id, Err(error));
        self.go_on();
    }

    fn advance_leaving(&mut self, slot: VolumeSlot, command: VolumeCommand) {
        if command.is_leaving() && self.is_only_poison_left(slot) {
            self.abandon_command(slot, command.id, CommandError::Poisoned);
            return;
        }
        let is_dirty =
            self.volume(slot).dirty_blocks > 0 && !has_defect(Defect::LeavingWithoutDrain);
        // A mode that keeps nothing dirty has only what is under way, which ends at the gate.
        let ends_at_gate = command.enters_order && !self.volume(slot).mode.keeps_dirty();
        if command.is_leaving() && is_dirty && !ends_at_gate && !self.is_nearly_clean(slot) {
            return;
        }
        if self.is_gate_hung(slot, command) {
            return;
        }
        self.volume_mut(slot).is_gated = true;
        self.set_stage(slot, Stage::Gated);
        self.advance_gated(slot, command);
    }

    /// Whether what the gate waits for may never end. Clients would wait as long for hits as well,
    /// and the operator could not give the command up.
    fn is_gate_hung(&self, slot: VolumeSlot, command: VolumeCommand) -> bool {
        let needs_writeback = command.goal == Goal::Detach || self.volume(slot).dirty_blocks > 0;
        self.is_origin_hung(slot) || needs_writeback && self.is_writeback_hung()
    }

    /// When [`Engine::advance_gated`] may find that its gate hangs.
    pub(crate) fn gate_wakeup(&self) -> Option<Time> {
        let is_gated = |slot: &VolumeSlot| {
            self.volume(*slot).command.is_some_and(|command| command.stage == Stage::Gated)
        };
        if !self.slots().any(|slot| is_gated(&slot)) {
            return None;
        }
        // Writeback may hang at the origin of any.
        let times = self.slots().filter_map(|slot| self.origin_hangs_at(slot));
        times.filter(|at| *at > self.now).min()
    }

    /// In order clients' writes go into the log until the end, so the last bit goes home while they
    /// wait: no more than takes a second.
    fn is_nearly_clean(&self, slot: VolumeSlot) -> bool {
        let blocks = self.writeback_rate().unwrap_or(0).max(NEARLY_CLEAN_BLOCKS);
        self.volume(slot).is_ordered() && self.volume(slot).dirty_blocks <= blocks
    }

    /// Rule 10: a mode switch waits for the operations of the old mode. If these hang the requests
    /// go on in the old mode, and the gate is tried again later.
    fn advance_gated(&mut self, slot: VolumeSlot, command: VolumeCommand) {
        if self.is_gate_hung(slot, command) {
            self.volume_mut(slot).is_gated = false;
            self.needs_ungating.push(slot);
            self.set_stage(slot, Stage::Leaving);
            return;
        }
        let volume = self.volume(slot);
        let is_busy = volume.operations > 0 || !volume.locks.is_idle();
        if is_busy && !has_defect(Defect::SwitchDoesNotWait) {
            return;
        }
        let leaves = command.is_leaving() || command.goal == Goal::Invalidate;
        if leaves && self.is_only_poison_left(slot) {
            self.abandon_command(slot, command.id, CommandError::Poisoned);
            return;
        }
        let volume = self.volume(slot);
        if command.goal == Goal::Invalidate && volume.mode.keeps_dirty() && volume.dirty_blocks > 0
        {
            self.abandon_command(slot, command.id, CommandError::Dirty);
            return;
        }
        let is_dirty =
            self.volume(slot).dirty_blocks > 0 && !has_defect(Defect::LeavingWithoutDrain);
        if leaves && is_dirty {
            self.volume_mut(slot).needs_writeback = true;
            return;
        }
        if leaves && self.volume(slot).has_lost_writes {
            // Promise 3: nobody may take these writes for durable.
            self.abandon_command(slot, command.id, CommandError::OriginFailed);
            return;
        }
        if command.goal != Goal::Settings && self.needs_origin_flush(slot) {
            return;
        }
        if command.enters_order {
            self.begin_order(slot);
        } else {
            self.change_table(slot, command);
        }
    }

    /// In order the epoch of a copy says whether the origin has it. So before the table says that
    /// the volume is in order, it is durable that the origin has all that was written before.
    fn begin_order(&mut self, slot: VolumeSlot) {
        let last = self.log.last_version();
        self.volume_mut(slot).epochs.begin(last);
        self.set_stage(slot, Stage::OrderBegins);
        self.wait_for_checkpoint(Waiter::Command(slot));
    }

    fn change_table(&mut self, slot: VolumeSlot, command: VolumeCommand) {
        match command.goal {
            Goal::Mode(mode) => {
                if mode == CacheMode::Passthrough {
                    self.void_volume(slot);
                }
                self.stored_volume(slot).mode = mode;
            }
            Goal::Drain => {
                if self.volume(slot).mode.keeps_dirty() {
                    self.stored_volume(slot).mode = CacheMode::Writethrough;
                }
            }
            Goal::Order(order) => self.stored_volume(slot).writeback_order = order,
            Goal::Invalidate => self.void_volume(slot),
            Goal::Detach => {
                // Other jobs may still hold pieces of the volume: not before they are between
                // rounds.
                if !self.is_quiet(slot) {
                    return;
                }
                self.void_volume(slot);
                self.superblock.volumes[usize::from(slot.0)] = None;
            }
            Goal::Grow { size_bytes, .. } => self.store_grown(slot, size_bytes),
            Goal::Settings | Goal::Pins => {}
            Goal::Attach | Goal::AbandonAttach => unreachable!("nobody uses it yet"),
            Goal::Discard => unreachable!("it has left the table"),
        }
        self.enter_superblock_stage(slot);
    }

    /// Whether writeback and reclaim are to come to rest soon, in the middle of a window if need
    /// be: for a stop that nobody else keeps waiting, or a detach that has nothing else to wait
    /// for. Otherwise a long window on a slow origin, or other volumes that keep both busy in turn,
    /// would hold it up for minutes or for good.
    pub(crate) fn wants_rest(&self) -> bool {
        let is_last_step = |volume: &Volume| match volume.command {
            Some(VolumeCommand { goal: Goal::Detach, stage, .. }) => match stage {
                Stage::Gated => volume.operations == 0 && volume.is_at_rest(),
                Stage::OrderBegins | Stage::Superblock | Stage::Checkpoint | Stage::Done => true,
                _ => false,
            },
            _ => false,
        };
        let is_serving = matches!(self.phase, Phase::Serving);
        is_serving
            && (!self.has_clients()
                || self.volumes.iter().flatten().any(is_last_step)
                || self.slots().any(|slot| self.discard_wants_rest(slot)))
    }

    /// Whether no job of the engine has anything to do with the volume.
    fn is_quiet(&self, slot: VolumeSlot) -> bool {
        let volume = self.volume(slot);
        self.writeback.is_idle()
            && self.reclaim.is_idle()
            && volume.misses.is_empty()
            && !volume.flushes.is_under_way()
            && !volume.flushes.is_due()
    }

    pub(crate) fn on_command_woken(&mut self, slot: VolumeSlot, ended: Ended) {
        let Some(volume) = self.volumes[usize::from(slot.0)].as_ref() else { return };
        let Some(command) = volume.command else { return };
        match command.stage {
            Stage::OriginFlush => self.on_new_origin_flushed(slot, ended),
            Stage::OrderBegins if ended == Ended::Well => self.change_table(slot, command),
            Stage::Superblock if command.goal != Goal::Discard => {
                if command.makes_clean() {
                    // Promise 5: answers only when the clean state is durable.
                    self.set_stage(slot, Stage::Checkpoint);
                    self.wait_for_checkpoint(Waiter::Command(slot));
                } else {
                    self.set_stage(slot, Stage::Done);
                }
            }
            Stage::Checkpoint => self.set_stage(slot, Stage::Done),
            Stage::Leaving
            | Stage::Gated
            | Stage::OrderBegins
            | Stage::Superblock
            | Stage::Resting { .. }
            | Stage::Left
            | Stage::Releasing { .. }
            | Stage::Done => {}
        }
    }

    fn finish_command(
        &mut self,
        slot: VolumeSlot,
        command: VolumeCommand,
        payload: &mut dyn Payload,
    ) {
        let mut result = Ok(Some(slot));
        if command.goal == Goal::Pins && self.is_round_unaware_of_pins() {
            return;
        }
        if command.goal == Goal::AbandonAttach {
            self.remove_volume(slot, payload);
            result = Err(CommandError::OriginFailed);
        } else if matches!(command.goal, Goal::Detach | Goal::Discard) {
            if !self.is_quiet(slot) {
                return;
            }
            self.events.push_back(Event::DirtyEnded { volume: slot });
            self.remove_volume(slot, payload);
        } else {
            let (stored, order) = {
                let stored = self.stored_volume(slot);
                (stored.mode, stored.writeback_order)
            };
            let volume = self.volume_mut(slot);
            volume.mode = stored;
            volume.epochs.set_order(order);
            if let Goal::Grow { size_bytes, .. } = command.goal {
                volume.size_bytes = size_bytes;
            }
            volume.command = None;
            volume.is_gated = false;
            let is_clean = !stored.keeps_dirty() && volume.dirty_blocks == 0;
            if is_clean && volume.host_mark != HostMarkState::Clear {
                volume.host_mark = HostMarkState::Clear;
                self.events.push_back(Event::DirtyEnded { volume: slot });
            }
            self.release_gated(slot, payload);
        }
        if command.is_answered {
            self.events.push_back(Event::OriginReleased { volume: slot });
            return;
        }
        self.events.push_back(Event::TableChanged);
        self.end_command(command.id, result);
    }

    pub(crate) fn release_gated(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        let gated = core::mem::take(&mut self.volume_mut(slot).gated);
        for request in gated {
            self.start_request(request, payload);
        }
    }

    fn remove_volume(&mut self, slot: VolumeSlot, payload: &mut dyn Payload) {
        let volume = self.volumes[usize::from(slot.0)].take().expect("it is detached now");
        assert_eq!(volume.operations, 0);
        assert_eq!(volume.dirty_blocks, 0);
        if volume.service == Service::GivenUp {
            // What its origin did says nothing of the next one in this slot.
            self.writeback.pauses.forget(slot);
        }
        for request in volume.gated {
            self.start_request(request, payload);
        }
    }

    /// Dirty data cannot go home while a command waits for that: it ends, the data stays dirty, and
    /// the volume goes on in its old mode.
    pub(crate) fn on_drain_failed(&mut self, slot: VolumeSlot, error: CommandError) {
        let Some(command) = self.volume(slot).command else { return };
        let waits = command.goal == Goal::Invalidate && command.stage == Stage::Gated;
        if command.is_leaving() || waits {
            self.abandon_command(slot, command.id, error);
        }
    }

    /// Gives a command up. It ends with `Cancelled`, unless it is beyond writing back, when it ends
    /// by itself soon.
    pub fn cancel_command(&mut self, id: CommandId) {
        for slot in self.volume_slots() {
            let volume = self.volume_mut(slot);
            let is_it = volume
                .command
                .is_some_and(|command| command.id == id && command.stage == Stage::Leaving);
            if is_it {
                volume.command = None;
                if has_defect(Defect::CancelForgets) {
                    self.forget_what_is_dirty(slot);
                }
                self.end_command(id, Err(CommandError::Cancelled));
            }
        }
    }

    /// Promise 5: what went to the origin is durable there before a drain, detach or stop answers.
    /// Asks for the flush if one is needed.
    fn needs_origin_flush(&mut self, slot: VolumeSlot) -> bool {
        let volume = self.volume_mut(slot);
        // Not again if one failed: it says no more of what that lost, and two origins that fail in
        // turn would keep a stop waiting for ever.
        let is_unflushed =
            !volume.homed.is_empty() || !volume.around.is_empty() || volume.epoch_flush.is_some();
        let is_needed =
            is_unflushed && !volume.has_lost_writes && !has_defect(Defect::EndWithoutOriginFlush);
        if is_needed && !volume.flushes.is_under_way() && !volume.flushes.is_due() {
            volume.flushes.join(Waiter::Nobody);
        }
        is_needed
    }

    /// Rule 10: a higher generation, durable before it matters, voids every record of the volume.
    /// Nothing dirty is left and no operation is under way.
    pub(crate) fn void_volume(&mut self, slot: VolumeSlot) {
        let is_clean = self.volume(slot).dirty_blocks == 0;
        assert!(is_clean || has_defect(Defect::LeavingWithoutDrain));
        self.cancel_all_misses(slot);
        self.stored_volume(slot).generation.0 +=
            u64::from(!has_defect(Defect::GenerationNotRaised));
        self.clear_index(slot);
        let generation = self.stored_volume(slot).generation;
        self.volume_mut(slot).generation = generation;
    }

    /// Forgets all copies of a volume.
    pub(crate) fn clear_index(&mut self, slot: VolumeSlot) {
        let pending: alloc::vec::Vec<_> = self.volume(slot).index.pending.all_pieces().collect();
        let complete: alloc::vec::Vec<_> = self.volume(slot).index.complete.all_pieces().collect();
        self.volume_mut(slot).index.pending.clear();
        self.volume_mut(slot).index.complete.clear();
        for piece in pending.iter().chain(&complete) {
            self.retire_void(piece);
        }
        for piece in &complete {
            self.unmap(piece);
        }
        self.volume_mut(slot).dirty_blocks = 0;
    }

    /// The bits of a copy go, whether or not it was the newest.
    fn retire_void(&mut self, piece: &Piece) {
        if let Place::Blank { header, .. } = piece.place
            && let Some(blank) = self.log.blanks.get_mut(&header.0)
        {
            blank.live_blocks = 0;
        }
        for position in piece.positions() {
            self.log.segments.clear_live(position);
        }
    }

    /// Asks the host to note that dirty data may exist, once.
    pub(crate) fn ask_for_dirty_mark(&mut self, slot: VolumeSlot) {
        let volume = self.volume_mut(slot);
        if volume.host_mark == HostMarkState::Clear {
            volume.host_mark = HostMarkState::Asked;
            self.events.push_back(Event::DirtyBegins { volume: slot });
        }
    }

    pub(crate) fn on_host_state_saved(&mut self, slot: VolumeSlot, mark: SavedMark) {
        let is_cache_failed = self.is_cache_failed();
        let Some(volume) = self.volumes.get_mut(usize::from(slot.0)).and_then(Option::as_mut)
        else {
            return;
        };
        if mark == SavedMark::ServedWithoutCache {
            if is_cache_failed && volume.waits_for_host() {
                volume.service = Service::WithoutCache;
                volume.is_gated = false;
                self.needs_ungating.push(slot);
                let volume = self.volume_mut(slot);
                for waiter in core::mem::take(&mut volume.mark_waiters) {
                    self.wake(waiter, Ended::Well);
                }
            }
            return;
        }
        if volume.host_mark == HostMarkState::Asked {
            volume.host_mark = HostMarkState::Set;
            for waiter in core::mem::take(&mut volume.mark_waiters) {
                self.wake(waiter, Ended::Well);
            }
        }
    }
}
