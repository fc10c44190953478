//! Administrators, and the host around the engine: commands, events, the host state file.

use std::collections::BTreeMap;

use forebay_engine::event::{
    Command, CommandError, CommandId, DirtyFate, Event, PinChange, SavedMark,
};
use forebay_engine::format::superblock::NewVolume;
use forebay_engine::options::{CacheMode, HostMark, OriginFacts, VolumeSettings, WritebackOrder};
use forebay_engine::units::{OriginExtent, SECTOR_BYTES, VolumeSlot};

use crate::behind::{Behind, Dirty};
use crate::config::Rot;
use crate::config::{set_settings, volume_settings};
use crate::device::WriteCache;
use crate::hang::age;
use crate::oracle::Observed;
use crate::world::{Due, Halt, TableEntry, World, violation};

const MODES: [CacheMode; 5] = [
    CacheMode::Writeback,
    CacheMode::Writethrough,
    CacheMode::Writearound,
    CacheMode::Writeonly,
    CacheMode::Passthrough,
];

/// Share of wishes before which somebody resets the counters.
const RESET_PERCENT: u64 = 10;

/// How a command ended.
pub(crate) type CommandResult = Result<Option<VolumeSlot>, CommandError>;

/// What the host state file is to say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Save {
    /// Dirty data may exist.
    Dirty,
    /// The volume is served without its cache.
    WithoutCache,
}

struct Pending {
    command: Command,
    volume: Option<usize>,
    since: u64,
    /// When the oracle was told.
    moment: u64,
    is_cancelled: bool,
    /// When it was given it would have kept too much in the cache.
    was_too_much: bool,
}

/// Commands that have not ended, and how others ended.
#[derive(Default)]
pub(crate) struct Administrator {
    pending: BTreeMap<u64, Pending>,
    results: BTreeMap<u64, CommandResult>,
    last_id: u64,
}

impl Administrator {
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len()
    }

    pub(crate) fn oldest(&self) -> Option<(String, u64)> {
        let (_, pending) = self.pending.first_key_value()?;
        Some((format!("{:?}", pending.command), pending.since))
    }

    /// Every command under way, a line each.
    pub(crate) fn describe_all(&self, now: u64) -> Vec<String> {
        let line = |(id, pending): (&u64, &Pending)| {
            let cancelled = if pending.is_cancelled { "cancelled, " } else { "" };
            format!("command {id}: {:?}, {cancelled}{}", pending.command, age(now, pending.since))
        };
        self.pending.iter().map(line).collect()
    }

    pub(crate) fn has_ended(&self, id: u64) -> bool {
        self.results.contains_key(&id)
    }

    /// The process died.
    pub(crate) fn disconnect(&mut self) {
        self.pending.clear();
        self.results.clear();
    }
}

impl World<'_> {
    /// Now and then somebody has a wish.
    pub(crate) fn maybe_administer(&mut self) {
        let administrator = self.config.administrator;
        let is_busy = self.life.is_stopping || self.is_taken_over();
        if !self.random.permille(administrator.permille) || is_busy {
            return;
        }
        if self.random.percent(RESET_PERCENT) {
            self.say("the counters are reset");
            self.note_lost_order();
            self.engine().0.reset_counters();
        }
        let index = self.random.index(self.volumes.len());
        if !self.volumes[index].is_served() {
            self.maybe_give_up(index);
            return;
        }
        let choice = self.random.weighted(&administrator.weights);
        let Some(command) = self.choose_command(index, choice) else { return };
        let id = self.command(command, Some(index));
        if self.random.percent(administrator.cancel_percent) {
            let time = self.now + self.random.below(200_000_000);
            self.agenda.push(time, Due::Cancel(id));
        }
    }

    fn choose_command(&mut self, index: usize, choice: usize) -> Option<Command> {
        let volume = self.volumes[index].slot?;
        match choice {
            0 if self.volumes[index].may_be_ordered() && self.random.percent(50) => {
                let orders = [WritebackOrder::Coalescing, WritebackOrder::Ordered];
                Some(Command::SetOrder { volume, order: *self.random.pick(&orders) })
            }
            0 => Some(Command::SetMode { volume, mode: *self.random.pick(&MODES) }),
            1 => Some(Command::Drain { volume }),
            2 => Some(Command::Invalidate { volume }),
            3 => Some(Command::Detach { volume, dirty: self.choose_fate() }),
            4 => Some(Command::SetVolume { volume, settings: volume_settings(&mut self.random) }),
            5 => Some(Command::SetCacheSet { settings: set_settings(&mut self.random) }),
            _ => None,
        }
    }

    /// Hands a command to the engine.
    pub(crate) fn command(&mut self, command: Command, volume: Option<usize>) -> u64 {
        self.administrator.last_id += 1;
        let id = self.administrator.last_id;
        self.stats.commands += 1;
        self.say(format!("command {id}: {command:?}"));
        if let Some(index) = volume {
            self.before_command(index, &command);
        }
        if let Command::SetCacheSet { settings } = &command {
            self.life.was_memory_bounded |= settings.memory_max_bytes != u64::MAX;
        }
        if command == Command::Stop {
            self.life.is_stopping = true;
        }
        let moment = self.oracle.submit_flush();
        let pending = Pending {
            command: command.clone(),
            volume,
            since: self.now,
            moment,
            is_cancelled: false,
            was_too_much: self.may_be_too_much(&command),
        };
        self.administrator.pending.insert(id, pending);
        let now = self.time();
        self.engine().0.handle_command(now, CommandId(id), command);
        id
    }

    fn before_command(&mut self, index: usize, command: &Command) {
        if let Command::Detach { dirty: DirtyFate::Discarded, .. } = command {
            self.before_giving_up(index);
        }
        self.note_pins_before(index, command);
        self.note_growth_before(index, command);
        let volume = &mut self.volumes[index];
        match command {
            Command::SetMode { mode, .. } => {
                volume.entry = TableEntry::Changing;
                volume.is_origin_whole &= !mode.keeps_dirty();
            }
            Command::Drain { .. }
            | Command::SetOrder { .. }
            | Command::Detach { .. }
            | Command::Attach { .. } => {
                volume.entry = TableEntry::Changing;
            }
            _ => {}
        }
    }

    /// Hands over a command and waits for its end.
    pub(crate) fn command_and_wait(
        &mut self,
        command: Command,
        volume: Option<usize>,
    ) -> Result<CommandResult, Halt> {
        self.run_until("the end of a takeover", |world| !world.is_taken_over())?;
        let id = self.command(command, volume);
        self.poll()?;
        self.run_until("a command", |world| world.administrator.has_ended(id))?;
        Ok(self.administrator.results.remove(&id).expect("it has ended"))
    }

    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some(pending) = self.administrator.pending.get_mut(&id) {
            pending.is_cancelled = true;
            self.say(format!("cancel command {id}"));
            self.engine().0.cancel_command(CommandId(id));
        }
    }

    /// Attaches a volume that was detached.
    pub(crate) fn attach(&mut self, index: usize) {
        if self.volumes[index].slot.is_some()
            || self.life.is_stopping
            || self.is_taken_over()
            || !self.is_origin_free(index)
        {
            return;
        }
        if self.random.percent(50) {
            self.volumes[index].config.mode = *self.random.pick(&MODES);
        }
        // Whatever a start made of it while it was not in the table: now it is open.
        self.volumes[index].is_missing = false;
        let moment = self.oracle.tick();
        self.volumes[index].origin.reopen(moment);
        let volume = &self.volumes[index];
        let command = Command::Attach {
            volume: NewVolume {
                name: volume.name.clone(),
                origin_path: format!("/dev/{}", volume.name),
                size_bytes: volume.config.size_bytes,
                logical_block_bytes: volume.config.logical_block_bytes,
                mode: volume.config.mode,
                writeback_order: volume.config.order,
                settings: VolumeSettings::default(),
            },
            facts: self.origin_facts(index),
        };
        self.command(command, Some(index));
    }

    pub(crate) fn origin_facts(&self, index: usize) -> OriginFacts {
        let config = &self.volumes[index].config;
        OriginFacts {
            optimal_io_bytes: config.optimal_io_bytes,
            is_rotational: config.is_rotational,
            has_volatile_cache: config.origin.write_cache == WriteCache::Volatile,
            supports_discard: self.config.supports_discard,
        }
    }

    /// Whether a detach of the volume in `slot` is under way.
    pub(crate) fn is_leaving(&self, slot: Option<VolumeSlot>) -> bool {
        self.administrator.pending.values().any(|pending| {
            matches!(&pending.command, Command::Detach { volume, .. } if Some(*volume) == slot)
        })
    }

    pub(crate) fn on_event(&mut self, event: Event) -> Result<(), Halt> {
        self.say(format!("event {event:?}"));
        match event {
            Event::Serving => self.on_serving(),
            Event::ReadyToTakeOver => self.on_ready_to_take_over(),
            Event::RecoveryFailed(error) => {
                if self.fail_return() || self.fail_takeover("it refuses the device") {
                    return Ok(());
                }
                if self.life.writes > 0 && !self.has_failures() {
                    let text = format!("{error}; {} writes", self.life.writes);
                    return violation("recovery refused, but something was written", text);
                }
                let ledger = self.ledger.as_ref();
                let is_damaged = ledger.is_some_and(|l| l.may_refuse || l.must_refuse.is_some());
                if self.has_failures() || self.config.rot == Rot::Anything || is_damaged {
                    self.say(format!("refused: {error}"));
                    return Err(Halt::Refused);
                }
                violation("recovery failed for no reason", error.to_string())
            }
            Event::CommandComplete { command, result } => {
                self.on_command_complete(command.0, result)
            }
            Event::DirtyBegins { volume } => {
                if let Some(index) = self.index_of(volume) {
                    let time = self.now + self.random.below(self.config.host_save_ns);
                    self.agenda.push(time, Due::HostSaved(index, Save::Dirty));
                }
                Ok(())
            }
            Event::DirtyEnded { volume } => {
                if let Some(index) = self.index_of(volume) {
                    self.volumes[index].is_marked_dirty = false;
                }
                Ok(())
            }
            // Nothing new of the device: its volumes are held back or marked already.
            Event::CacheFailed { .. } if self.is_coming_back() => Ok(()),
            Event::CacheFailed { clean_volumes } => {
                self.on_cache_failed(&clean_volumes);
                self.look_for_return();
                Ok(())
            }
            Event::WritesLost { volume, extents } => self.on_writes_lost(volume, &extents),
            Event::OriginChanged { volume, has_dirty } => {
                let dirty = if has_dirty { Dirty::Some } else { Dirty::None };
                self.on_origin_changed(volume, dirty)
            }
            Event::OriginReleased { volume } => self.on_origin_released(volume),
            Event::Explained { command, explanation } => self.on_explained(command, &explanation),
            Event::TableChanged | Event::CacheDegraded | Event::DirtyDiscarded { .. } => Ok(()),
        }
    }

    fn index_of(&self, slot: VolumeSlot) -> Option<usize> {
        self.volumes.iter().position(|volume| volume.slot == Some(slot))
    }

    fn on_serving(&mut self) -> Result<(), Halt> {
        if self.config.rot != Rot::None {
            self.seen_by_recovery = self.cache.media().contents();
        }
        if let Some(why) = self.ledger.as_ref().and_then(|ledger| ledger.must_refuse.clone()) {
            return violation("damage was not reported", why);
        }
        if self.life.is_serving {
            return violation("served twice", "a second Serving event");
        }
        self.check_warnings()?;
        self.life.is_serving = true;
        let engine = self.engine.as_ref().expect("it serves");
        self.life.was_memory_bounded |= engine.superblock().settings.memory_max_bytes != u64::MAX;
        self.stats.recoveries += u64::from(self.was_used);
        for index in 0..self.volumes.len() {
            let is_changing = self.is_changing(index);
            let volume = &mut self.volumes[index];
            volume.pins.settle();
            volume.growth.settle();
            if !is_changing {
                volume.entry = TableEntry::Known;
            }
            if volume.is_served() {
                // The higher generation is durable, so nothing needs the mark any more.
                volume.mark = HostMark::None;
                volume.is_origin_whole = !volume.mode.keeps_dirty();
            } else if volume.slot.is_none() {
                // The state file keeps its marks by volume id, and that id is never used again. Not
                // before: a table that recovery has not flushed may be lost with the next crash.
                (volume.mark, volume.is_marked_dirty) = (HostMark::None, false);
            }
        }
        self.check_warm()?;
        self.end_return();
        Ok(())
    }

    /// Volumes whose data is all on their origins go on, once the file says so.
    fn on_cache_failed(&mut self, clean_volumes: &[VolumeSlot]) {
        self.life.is_cache_failed = true;
        self.maybe_hang_up();
        for slot in clean_volumes {
            let Some(index) = self.index_of(*slot) else { continue };
            let time = self.now + self.random.below(self.config.host_save_ns);
            self.agenda.push(time, Due::HostSaved(index, Save::WithoutCache));
        }
    }

    pub(crate) fn on_host_saved(&mut self, index: usize, save: Save) {
        let volume = &mut self.volumes[index];
        let Some(slot) = volume.slot else { return };
        match save {
            Save::Dirty => volume.is_marked_dirty = true,
            Save::WithoutCache => {
                volume.mark = HostMark::ServedWithoutCache;
                volume.is_marked_dirty = false;
            }
        }
        self.say(format!("host state saved: volume {index} {save:?}"));
        let now = self.time();
        let mark = match save {
            Save::Dirty => SavedMark::DirtyPossible,
            Save::WithoutCache => SavedMark::ServedWithoutCache,
        };
        self.engine().0.handle_host_state_saved(now, slot, mark);
    }

    fn on_command_complete(&mut self, id: u64, result: CommandResult) -> Result<(), Halt> {
        let Some(pending) = self.administrator.pending.remove(&id) else {
            return violation(
                "a command that was not given, or a second end",
                format!("{id}: {result:?}"),
            );
        };
        self.check_command_error(&pending, &result)?;
        if matches!(result, Err(CommandError::OriginFailed | CommandError::CacheFailed)) {
            // Its flushes may have failed, and somebody was told.
            (0..self.volumes.len()).for_each(|index| self.oracle.fail_flush(index));
        }
        match pending.volume {
            Some(index) => self.after_command(index, &pending, result)?,
            None if pending.command == Command::Stop && result.is_ok() => {
                self.life.is_stopped = true;
                for index in 0..self.volumes.len() {
                    // One that the engine does not serve, since its origin failed, was not flushed.
                    if self.volumes[index].is_served() && !self.is_quiesced(index) {
                        self.oracle.acknowledge_flush(index, pending.moment);
                    }
                }
            }
            None => {}
        }
        self.administrator.results.insert(id, result);
        Ok(())
    }

    fn check_command_error(&self, pending: &Pending, result: &CommandResult) -> Result<(), Halt> {
        let Err(error) = result else { return Ok(()) };
        let is_conflict =
            pending.volume.is_some_and(|index| self.volumes[index].behind == Behind::Conflict);
        let is_explained = match error {
            // Given while recovery had not said it yet.
            CommandError::OriginFailed | CommandError::NoSuchVolume if is_conflict => true,
            CommandError::OriginFailed | CommandError::CacheFailed => {
                self.has_failures() || self.may_have_poison
            }
            CommandError::Poisoned | CommandError::Unreadable => {
                self.has_failures() || self.may_have_poison
            }
            CommandError::Cancelled => {
                let is_given_up =
                    pending.volume.is_some_and(|index| self.volumes[index].is_given_up);
                pending.is_cancelled || self.life.is_stopping || is_given_up
            }
            CommandError::Dirty => matches!(pending.command, Command::Invalidate { .. }),
            // Another command of this or any volume may be under way.
            CommandError::Busy => true,
            // An origin that could not be flushed at recovery is not served.
            CommandError::NoSuchVolume => {
                self.has_failures()
                    || matches!(pending.command, Command::Explain { .. })
                    || pending.volume.is_some_and(|index| self.volumes[index].slot.is_none())
            }
            CommandError::Invalid => {
                self.is_beyond_volume(pending) || self.is_bad_size(pending.volume, &pending.command)
            }
            CommandError::WouldShrink => self.would_shrink(pending.volume, &pending.command),
            CommandError::KeepsTooMuch(_) => {
                pending.was_too_much || self.may_be_too_much(&pending.command)
            }
            CommandError::TooManyRanges => self.are_ranges_many(),
            CommandError::TableFull | CommandError::NameTaken => false,
        };
        if is_explained {
            return Ok(());
        }
        violation(
            format!("a command failed for no reason: {error:?}"),
            format!("{:?}", pending.command),
        )
    }

    /// What is known of a volume when a command of it has ended.
    fn after_command(
        &mut self,
        index: usize,
        pending: &Pending,
        result: CommandResult,
    ) -> Result<(), Halt> {
        let is_ok = result.is_ok();
        self.note_pins_after(index, &pending.command, result)?;
        self.note_growth_after(index, &pending.command, result)?;
        match pending.command {
            Command::Detach { dirty: DirtyFate::Discarded, .. } if is_ok => {
                return self.on_given_up(index);
            }
            Command::Detach { .. } if is_ok => return self.on_detached(index, pending.moment),
            Command::Attach { .. } => {
                let is_certain = is_ok || !self.has_failures();
                let volume = &mut self.volumes[index];
                volume.entry = if is_certain { TableEntry::Known } else { TableEntry::Changing };
                volume.slot = result.unwrap_or(None);
                volume.mode = volume.config.mode;
                volume.is_origin_whole = !volume.mode.keeps_dirty();
                if is_ok {
                    self.on_attached_again(index);
                }
                return match (is_ok, self.volumes[index].slot) {
                    (true, None) => violation("an attach without a slot", format!("{index}")),
                    _ => Ok(()),
                };
            }
            Command::Drain { .. } if is_ok => {
                self.oracle.acknowledge_flush(index, pending.moment);
            }
            Command::SetMode { .. }
            | Command::SetOrder { .. }
            | Command::Drain { .. }
            | Command::Detach { .. } => {}
            _ => return Ok(()),
        }
        self.read_mode(index, &pending.command, result)
    }

    fn read_mode(
        &mut self,
        index: usize,
        command: &Command,
        result: CommandResult,
    ) -> Result<(), Halt> {
        let is_ok = result.is_ok();
        let engine = self.engine.as_ref().expect("the process lives");
        let volume = &self.volumes[index];
        if volume.slot.is_none() && !is_ok || self.is_leaving(volume.slot) {
            // It was or is being detached.
            return Ok(());
        }
        if !is_ok && self.has_failures() {
            // How far it came, neither the table in memory nor that on the device may tell.
            self.volumes[index].is_origin_whole = false;
            return Ok(());
        }
        let Some(entry) = volume.slot.and_then(|slot| engine.superblock().volume(slot)) else {
            return violation("a volume is gone from the table", format!("volume {index}"));
        };
        let mode = entry.mode;
        let is_as_told = match command {
            Command::SetMode { mode: wanted, .. } => mode == *wanted,
            Command::Drain { .. } => !mode.keeps_dirty(),
            Command::SetOrder { order, .. } => entry.writeback_order == *order,
            _ => true,
        };
        // Another command may have begun to change the table before this one's end was polled.
        if is_ok && !is_as_told && !self.is_changing(index) {
            return violation(
                "a command did not change the mode",
                format!("{command:?}: {mode:?}"),
            );
        }
        let volume = &mut self.volumes[index];
        // A failed command may have left dirty data, whatever the mode now is.
        volume.is_origin_whole &= !mode.keeps_dirty();
        volume.is_origin_whole |= is_ok && !mode.keeps_dirty();
        volume.mode = mode;
        if !self.is_changing(index) {
            self.volumes[index].entry = TableEntry::Known;
        }
        if self.volumes[index].is_origin_whole {
            return self.check_origin(index, "origin after a command");
        }
        Ok(())
    }

    /// Whether any command of the volume is under way.
    pub(crate) fn is_commanded(&self, index: usize) -> bool {
        self.administrator.pending.values().any(|pending| pending.volume == Some(index))
    }

    /// Whether a range was to be pinned that is none of its volume.
    fn is_beyond_volume(&self, pending: &Pending) -> bool {
        let (Command::Pin { extent, .. }, Some(index)) = (&pending.command, pending.volume) else {
            return false;
        };
        let end = extent.start.0.saturating_add(extent.block_count);
        let blocks = self.volumes[index].config.block_count();
        extent.block_count == 0 || end > blocks
    }

    /// Commands of a volume that have not ended.
    pub(crate) fn pending_commands(&self, index: usize) -> impl Iterator<Item = &Command> {
        let of_volume = self.administrator.pending.values();
        of_volume.filter(move |pending| pending.volume == Some(index)).map(|p| &p.command)
    }

    /// Changes of pins of a volume that were commanded and have not ended.
    pub(crate) fn pending_pins(&self, index: usize) -> Vec<(OriginExtent, PinChange)> {
        let pins = self.pending_commands(index).filter_map(|command| match command {
            Command::Pin { extent, change } => Some((*extent, *change)),
            _ => None,
        });
        pins.collect()
    }

    fn is_changing(&self, index: usize) -> bool {
        self.administrator.pending.values().any(|pending| {
            let changes = matches!(
                pending.command,
                Command::SetMode { .. }
                    | Command::SetOrder { .. }
                    | Command::Drain { .. }
                    | Command::Detach { .. }
                    | Command::Attach { .. }
            );
            changes && pending.volume == Some(index)
        })
    }

    /// The origin is on its own: it must hold everything, and others may use it.
    fn on_detached(&mut self, index: usize, moment: u64) -> Result<(), Halt> {
        self.oracle.acknowledge_flush(index, moment);
        let volume = &mut self.volumes[index];
        let slot = volume.slot.take();
        volume.pins.clear();
        volume.entry = TableEntry::Known;
        volume.is_origin_whole = true;
        volume.is_marked_dirty = false;
        (volume.is_given_up, volume.was_in_order) = (false, false);
        self.leave_origin(index, slot)?;
        self.check_origin(index, "origin after detach")?;
        self.plan_attach(index);
        Ok(())
    }

    /// Most volumes come back some time after they were detached.
    pub(crate) fn plan_attach(&mut self, index: usize) {
        if self.random.percent(80) {
            let time = self.now + self.random.below(1_000_000_000);
            self.agenda.push(time, Due::Attach(index));
        }
    }

    /// Checks what an origin alone holds now.
    pub(crate) fn check_origin(&mut self, index: usize, context: &str) -> Result<(), Halt> {
        let now = self.oracle.submit_flush();
        let mut bytes = Vec::new();
        for run in self.oracle.touched(index, 2048) {
            bytes.resize(run.count as usize * SECTOR_BYTES, 0);
            self.volumes[index].origin.media().read(run.first, &mut bytes);
            if let Err(mismatch) = self.oracle.check(run, &bytes, now, Observed::Once) {
                return self.wrong_content(context, index, mismatch);
            }
        }
        Ok(())
    }
}
