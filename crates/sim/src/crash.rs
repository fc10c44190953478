//! The end of a life and the beginning of the next: crashes, clean stops, what happens while nobody
//! serves, and the start.

use forebay_engine::event::Command;
use forebay_engine::format::checkpoint::Checkpoint;
use forebay_engine::format::superblock::{AddVolumeError, NewVolume, SUPERBLOCK_BYTES, Superblock};
use forebay_engine::options::{CacheFacts, OriginOpening, VolumeSettings, WritebackOrder};
use forebay_engine::units::VolumeSlot;

use crate::behind::Behind;
use crate::config::Rot;
use crate::device::{FaultRates, Loss, PowerStyle, WriteCache};
use crate::media::BLOCK_SECTORS;
use crate::oracle::Survives;
use crate::stamp::{self, Found};
use crate::survivors::{self, Unit};
use crate::trace::DeviceName;
use crate::world::{Agenda, Halt, Life, TableEntry, World, violation};

/// Identity of the cache set.
pub(crate) const SET_ID: [u8; 16] = *b"simulated set #1";

/// Which failures a life has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LifeFaults {
    None,
    AsConfigured,
}

impl World<'_> {
    /// Makes the cache device what `format` and `attach` would: a superblock in both places, and an
    /// empty checkpoint in area A.
    pub(crate) fn format(&mut self) {
        let mut superblock = Superblock::new(SET_ID, self.config.geometry, "sim");
        superblock.settings = self.config.settings;
        for volume in &self.volumes {
            let new = NewVolume {
                name: volume.name.clone(),
                origin_path: format!("/dev/{}", volume.name),
                size_bytes: volume.config.size_bytes,
                logical_block_bytes: volume.config.logical_block_bytes,
                mode: volume.config.mode,
                writeback_order: volume.config.order,
                settings: volume.config.settings,
            };
            let mut added = superblock.add_volume(&new);
            if let Err(AddVolumeError::KeepsTooMuch(_)) = added {
                let settings = VolumeSettings { share_min_percent: 0, ..new.settings };
                added = superblock.add_volume(&NewVolume { settings, ..new });
            }
            added.expect("the table has room");
        }
        for (slot, volume) in (0..).zip(&mut self.volumes) {
            volume.slot = Some(VolumeSlot(slot));
        }
        self.write_format(&superblock);
    }

    fn write_format(&mut self, superblock: &Superblock) {
        let bytes = superblock.encode();
        let copy_sector = (self.config.geometry.copy_offset / 512) as u32;
        let geometry = &self.config.geometry;
        let checkpoint = Checkpoint::empty(geometry).encode(&SET_ID, geometry);
        let media = self.cache.media_mut();
        media.write_durable((geometry.checkpoint_offset / 512) as u32, &checkpoint);
        media.write_durable(0, &bytes);
        media.write_durable(copy_sector, &bytes);
    }

    /// Starts the engine on what the devices hold.
    pub(crate) fn start_life(&mut self, life: Life, faults: LifeFaults) -> Result<(), Halt> {
        self.trace.borrow_mut().life = life.number;
        self.say(format!("=== life {} begins after {}", life.number, self.last_end));
        self.life = Life { began: self.now, ..life };
        self.set_faults(faults);
        let superblock = self.read_superblock()?;
        self.compare_table(&superblock)?;
        let openings = self.openings();
        self.expect_warnings();
        let cache = self.cache_facts();
        let mut engine = (self.launch)(self.time(), superblock, cache, &openings);
        engine.set_cache_timeout_ms(self.config.cache_timeout_ms);
        self.engine = Some(engine);
        self.read_quarry();
        self.poll()
    }

    pub(crate) fn cache_facts(&self) -> CacheFacts {
        CacheFacts {
            size_bytes: self.config.cache.size_bytes,
            has_volatile_cache: self.config.cache.write_cache == WriteCache::Volatile,
            supports_discard: self.config.supports_discard,
        }
    }

    fn set_faults(&mut self, faults: LifeFaults) {
        let config = self.config.faults;
        let has_them =
            faults == LifeFaults::AsConfigured && self.random.percent(config.lives_percent);
        let names = (0..self.volumes.len()).map(DeviceName::Origin);
        for name in std::iter::once(DeviceName::Cache).chain(names) {
            let rates = match name {
                DeviceName::Cache => config.cache,
                // What cannot be read cannot be found changed.
                DeviceName::Origin(index) if self.volumes[index].behind != Behind::Untouched => {
                    FaultRates::default()
                }
                DeviceName::Origin(_) => config.origin,
            };
            let device = self.device(name);
            let rates = rates.after(device.submitted_count());
            device.set_faults(if has_them { rates } else { FaultRates::default() });
        }
    }

    pub(crate) fn read_superblock(&self) -> Result<Superblock, Halt> {
        let mut start = vec![0; SUPERBLOCK_BYTES];
        let mut copy = vec![0; SUPERBLOCK_BYTES];
        self.cache.media().read(0, &mut start);
        self.cache.media().read((self.config.geometry.copy_offset / 512) as u32, &mut copy);
        match Superblock::choose(&start, &copy) {
            Ok(superblock) if superblock.geometry == self.config.geometry => Ok(superblock),
            Ok(superblock) => {
                violation("the geometry changed", format!("{:?}", superblock.geometry))
            }
            Err(error) => violation("neither superblock is valid", error.to_string()),
        }
    }

    /// The volume table must be as the last command that ended left it.
    pub(crate) fn compare_table(&mut self, superblock: &Superblock) -> Result<(), Halt> {
        for (_, entry) in superblock.slots() {
            if !self.volumes.iter().any(|volume| volume.name == entry.name) {
                return violation("an unknown volume in the table", entry.name.clone());
            }
        }
        self.compare_pins(superblock)?;
        self.compare_sizes(superblock)?;
        for index in 0..self.volumes.len() {
            let volume = &mut self.volumes[index];
            let found = superblock.slots().find(|(_, entry)| entry.name == volume.name);
            let slot = found.map(|(slot, _)| slot);
            let mode = found.map_or(volume.mode, |(_, entry)| entry.mode);
            if volume.entry == TableEntry::Known && (slot, mode) != (volume.slot, volume.mode) {
                let text = format!(
                    "volume {index}: slot {:?} and {:?} became {slot:?} and {mode:?}",
                    volume.slot, volume.mode
                );
                return violation("the volume table lost a change", text);
            }
            // A change that was under way may still be lost with the device's cache: what the table
            // says is certain once recovery has flushed it.
            (volume.slot, volume.mode) = (slot, mode);
            // One that comes from a mode with dirty data is whole when recovery has drained it.
            volume.is_origin_whole &= !mode.keeps_dirty();
            volume.is_origin_whole |= slot.is_none();
            volume.writes_sectors = false;
            volume.has_lost_writes = false;
            volume.lingers_in = None;
            volume.is_given_up &= slot.is_none();
            volume.was_in_order &= volume.is_given_up;
            if volume.is_given_up {
                self.accept_origin(index)?;
            } else if slot.is_none() {
                self.check_origin(index, "origin of a detached volume")?;
            }
        }
        Ok(())
    }

    fn openings(&mut self) -> Vec<OriginOpening> {
        let mut openings = Vec::new();
        for index in 0..self.volumes.len() {
            let is_missing =
                self.life.number > 0 && self.random.percent(self.config.missing_percent);
            let is_last = self.life.number >= self.config.lives;
            let facts = self.origin_facts(index);
            let volume = &mut self.volumes[index];
            volume.is_missing = is_missing && !is_last;
            if let Some(slot) = volume.slot {
                let facts = (!volume.is_missing).then_some(facts);
                openings.push(OriginOpening { slot, facts, mark: volume.mark });
            }
        }
        openings
    }

    /// The process dies, or the power goes.
    pub(crate) fn crash(&mut self) -> Result<(), Halt> {
        let is_power = self.random.percent(self.config.power_percent);
        let loss = if is_power { Loss::Power(self.config.power) } else { Loss::Process };
        let what = if is_power { "a power cut" } else { "a kill" };
        self.stats.crashes += 1;
        self.end_life(loss, what)
    }

    /// The same, with the survivors of a choice: see [`crate::survivors`].
    pub(crate) fn crash_with(&mut self, choice: u64) -> Result<(), Halt> {
        let is_power = self.config.power_percent > 0;
        let loss = if is_power { Loss::Power(self.config.power) } else { Loss::Process };
        let origins = (0..self.volumes.len()).map(DeviceName::Origin);
        let names: Vec<_> = std::iter::once(DeviceName::Cache).chain(origins).collect();
        let mut units = Vec::new();
        for device in &names {
            let loose = self.device(*device).loose_units(loss).into_iter();
            units.extend(loose.map(|(writer, block)| Unit { device: *device, writer, block }));
        }
        self.choices = survivors::choices(&units);
        let choice = choice % self.choices;
        let survivors = survivors::choose(&units, choice);
        let (count, choices) = (units.len(), self.choices);
        self.say(format!("choice {choice} of {choices}: {} of {count} stay", survivors.len()));
        for device in names {
            let mut survives = |writer, block| survivors.contains(&Unit { device, writer, block });
            self.device(device).settle(loss, &mut survives);
        }
        self.crash()
    }

    /// The life is over, however it ended.
    pub(crate) fn end_life(&mut self, loss: Loss, what: &'static str) -> Result<(), Halt> {
        self.say(format!(
            "=== {what}: {loss:?}, {} operations and {} requests under way",
            self.ios_in_flight(),
            self.clients.in_flight()
        ));
        self.was_used = true;
        self.warm.clear();
        if loss == Loss::Process {
            self.note_warm();
        }
        self.gather_counters();
        self.note_lost_order();
        self.may_have_poison |= self.has_failures();
        self.engine = None;
        self.pool.reset();
        self.agenda = Agenda::default();
        self.clients.disconnect();
        self.administrator.disconnect();
        self.forget_ios();
        let moment = self.oracle.tick();
        self.cache.lose(loss, moment);
        // A device that was gone comes back without what it had not flushed.
        let mut lost_cache = self.cache.was_gone();
        for volume in &mut self.volumes {
            volume.origin.lose(without_rubbish(loss), moment);
            lost_cache |= volume.origin.was_gone();
        }
        let survives = if loss == Loss::Process && !lost_cache {
            Survives::Acknowledged
        } else {
            Survives::Flushed
        };
        self.oracle.crash(survives);
        self.last_end = what;
        self.judge_medium()?;
        self.check_origins_alone()?;
        self.now += self.random.below(1_000_000_000);
        Ok(())
    }

    fn check_origins_alone(&mut self) -> Result<(), Halt> {
        for index in 0..self.volumes.len() {
            let volume = &self.volumes[index];
            if volume.is_origin_whole {
                let context = format!("origin alone after {}", self.last_end);
                self.check_origin(index, &context)?;
            } else if self.is_in_order(index) {
                let context = format!("ordered origin alone after {}", self.last_end);
                self.check_order(index, &context)?;
            }
        }
        Ok(())
    }

    /// Checks that an origin alone is a crash state of its volume.
    pub(crate) fn check_order(&self, index: usize, context: &str) -> Result<(), Halt> {
        let media = self.volumes[index].origin.media();
        let checked =
            self.oracle.check_crash_state(index, &mut |run, bytes| media.read(run.first, bytes));
        match checked {
            Ok(()) => Ok(()),
            Err(mismatch) => self.wrong_content(context, index, mismatch),
        }
    }

    /// Whether the table on the device says that the volume is written home in order, and nothing
    /// that is known has broken it.
    pub(crate) fn is_in_order(&self, index: usize) -> bool {
        let volume = &self.volumes[index];
        // What a write lost silently took along, nobody knows.
        let has_silent = self.config.silent.is_some();
        if !volume.may_be_ordered() || volume.is_order_lost || has_silent {
            return false;
        }
        let Ok(superblock) = self.read_superblock() else { return false };
        let stored = volume.slot.and_then(|slot| superblock.volume(slot));
        stored.is_some_and(|stored| {
            stored.writeback_order == WritebackOrder::Ordered && stored.mode.keeps_dirty()
        })
    }

    /// What happens while nobody serves.
    pub(crate) fn between_lives(&mut self) {
        self.decay();
        self.write_behind_all();
    }

    fn decay(&mut self) {
        if self.config.rot == Rot::None {
            return;
        }
        // What was written since the last "durable through" mark cannot be told from a torn tail,
        // so only blocks rot that the last recovery has seen and covered by its checkpoint.
        let seen = std::mem::take(&mut self.seen_by_recovery);
        let geometry = self.config.geometry;
        let first = (geometry.checkpoint_offset / 4096) as u32;
        let end = (geometry.copy_offset / 4096) as u32;
        for _ in 0..self.random.between(1..=200) {
            let block = first + self.random.below(u64::from(end - first)) as u32;
            if !self.cache.media().is_unchanged(block, &seen) {
                continue;
            }
            let mut sector = [0; 512];
            self.cache.media().read(block * BLOCK_SECTORS, &mut sector);
            let is_payload = matches!(stamp::read(&sector), Found::Stamp(_));
            if self.config.rot == Rot::Payload && !is_payload {
                continue;
            }
            self.may_have_poison = true;
            self.say(format!("cache block {block} rots"));
            let mut random = self.random.fork();
            let media = self.cache.media_mut();
            if random.percent(50) {
                media.flip_bit(block, &mut random);
            } else {
                media.make_unreadable(block);
            }
        }
    }

    /// A clean stop, after which nothing may be left.
    pub(crate) fn stop(&mut self) -> Result<(), Halt> {
        if let Err(error) = self.command_and_wait(Command::Stop, None)? {
            self.say(format!("the stop failed: {error:?}"));
            return self.end_life(Loss::Process, "a stop that failed");
        }
        self.poll()?;
        let left = self.ios_in_flight();
        if left > 0 {
            return violation("I/O is under way after the clean stop", format!("{left}"));
        }
        if let Some((id, _)) = self.clients.oldest() {
            let text = self.clients.describe(id);
            return violation("a clean stop left a request unanswered", text);
        }
        let held = self.pool.held_by_engine();
        if !held.is_empty() {
            return violation(
                "buffers are held after the clean stop",
                format!("{} buffers, the first {:?}", held.len(), held[0]),
            );
        }
        let loss =
            if self.random.percent(40) { Loss::Power(self.config.power) } else { Loss::Process };
        self.end_life(loss, "a clean stop")
    }

    /// Only faults of the cache device may take from an origin in order what it still needs.
    pub(crate) fn note_lost_order(&mut self) {
        let Some(engine) = &self.engine else { return };
        let now = self.time();
        let may_lose = self.config.faults.cache != FaultRates::default()
            || self.config.rot != Rot::None
            || self.config.silent.is_some();
        for volume in &mut self.volumes {
            let status = volume.slot.and_then(|slot| engine.volume_status(now, slot));
            let counters = status.map(|status| status.counters);
            let is_lost = counters.is_some_and(|counters| {
                counters.order_lost_blocks + counters.poisoned_blocks + counters.lost_blocks > 0
            });
            assert!(!is_lost || may_lose, "order was lost on a cache device without faults");
            volume.is_order_lost |= is_lost;
        }
    }

    fn gather_counters(&mut self) {
        let Some(engine) = &self.engine else { return };
        let now = self.time();
        if let Some(status) = engine.status(now) {
            let counters = status.counters;
            self.stats.checkpoints += counters.checkpoints;
            self.stats.reclaimed_segments += counters.reclaimed_segments;
            self.stats.throttled_writes += counters.throttled_writes;
            self.stats.space_waits += counters.space_waits;
            self.stats.records += counters.records;
            self.stats.idle_marks += counters.idle_marks;
        }
        for volume in &self.volumes {
            let Some(slot) = volume.slot else { continue };
            if let Some(status) = engine.volume_status(now, slot) {
                self.stats.promoted_blocks += status.counters.promoted_blocks;
                self.stats.read_ahead_blocks += status.counters.read_ahead_blocks;
                self.stats.writeback_blocks += status.counters.writeback_blocks;
                self.stats.gap_blocks += status.counters.writeback_gap_blocks;
                self.stats.read_hits += status.counters.read_hits;
            }
        }
    }
}

/// Clients bring their own checksums for a torn unit of an origin, if any: it is old or new here.
fn without_rubbish(loss: Loss) -> Loss {
    match loss {
        Loss::Power(PowerStyle::RandomWithRubbish) => Loss::Power(PowerStyle::Random),
        other => other,
    }
}
