//! One engine, its devices and its clients in virtual time.
//!
//! Everything that happens is an entry of the agenda: operations of devices, clients that become
//! active, saved host state. A step takes what is due, in random order where times are close, hands
//! it to the engine, and polls until the engine wants nothing more. Other files add what clients
//! (`client.rs`) and administrators (`administrator.rs`) do, and how lives end and begin
//! (`crash.rs`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use forebay_engine::format::crc32c;
use forebay_engine::io::{Device as EngineDevice, Io, IoId, IoKind};
use forebay_engine::options::WritebackOrder;
use forebay_engine::options::{CacheMode, HostMark};
use forebay_engine::status::{VolumeState, VolumeStatus};
use forebay_engine::units::{SECTOR_BYTES, Time, VolumeSlot};

use crate::administrator::{Administrator, Save};
use crate::behind::Behind;
use crate::client::Clients;
use crate::comeback::Comeback;
use crate::config::{Config, VolumeConfig};
use crate::device::{Device, DeviceOptions, Fresh};
use crate::growing::Growth;
use crate::hang::IoUnderWay;
use crate::media::Contents;
use crate::oracle::{History, Mismatch, Oracle};
use crate::payload::BufferPool;
use crate::pins::KnownPins;
use crate::pursuit::Pursuit;
use crate::random::Random;
use crate::run::{Missed, Stats};
use crate::silent::Ledger;
use crate::strike::Strike;
use crate::takeover::{Takeover, Takeovers};
use crate::trace::{DeviceName, Note, SharedTrace, describe_io};
use crate::under_test::{Launch, UnderTest};
use crate::warm::Warm;

/// Rounds of polls after one input. An engine that always has one more thing to do never sleeps.
const POLL_ROUNDS_MAX: u32 = 10_000;
/// Wake-ups in a row at the same moment.
const WAKEUPS_MAX: u32 = 1_000;
/// Longest time from a request to its reply while no device fails.
const REQUEST_NS_MAX: u64 = 120_000_000_000;
/// Longest time a command or recovery may take while no device fails: a full cache is written back
/// within it even by the slowest origin.
const COMMAND_NS_MAX: u64 = 600_000_000_000;
/// Both are this much longer in a life with failures or stalls, where the engine waits and tries
/// again, and where somebody set a limit to writeback: a full log takes what that lets out of it.
const LONG_PATIENCE: u64 = 10;
/// Steps of a run. Of some hundred long runs the longest needed a twentieth of it.
const STEPS_MAX: u64 = 8_000_000;

/// How often everything that the engine counts is counted again, of a thousand steps.
const AUDIT_PERMILLE: u64 = 3;

/// Something that must not happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What, without numbers: equal for equal faults.
    pub kind: String,
    /// Where, what was expected and what was found.
    pub text: String,
}

/// Why the world stopped.
#[derive(Debug)]
pub(crate) enum Halt {
    /// As planned, or because nothing else can end the life.
    Crash,
    /// The engine refused the cache device, for a reason that the run gave it.
    Refused,
    /// Faults met of which nobody promises anything.
    Beyond,
    /// The engine is wrong.
    Violation(Violation),
}

pub(crate) fn violation<T>(kind: impl Into<String>, text: impl Into<String>) -> Result<T, Halt> {
    Err(Halt::Violation(Violation { kind: kind.into(), text: text.into() }))
}

/// What is due at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Due {
    IoMiddle(DeviceName, u64),
    IoEnd(DeviceName, u64),
    /// The model of a device comes a step further.
    Turn(DeviceName),
    Client(usize),
    HostSaved(usize, Save),
    Attach(usize),
    /// The host looks whether the cache device is back.
    Return,
    Cancel(u64),
    /// A client leaves, by the index of its connection.
    HangUp(usize),
    /// A takeover is looked at again.
    Takeover,
}

/// What is due, by time and, at the same time, in the order in which it was put in.
#[derive(Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u64, Due)>>,
    count: u64,
}

impl Agenda {
    pub(crate) fn push(&mut self, time: u64, due: Due) {
        self.count += 1;
        self.heap.push(Reverse((time, self.count, due)));
    }

    fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time, _, _))| *time)
    }

    fn pop(&mut self) -> Option<(u64, Due)> {
        self.heap.pop().map(|Reverse((time, _, due))| (time, due))
    }
}

/// Whether the superblock may differ from what the world last knew of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TableEntry {
    /// As the last command left it.
    Known,
    /// A command that changes it is under way, or was when the process died.
    Changing,
}

/// A volume and its origin.
pub(crate) struct SimVolume {
    pub(crate) config: VolumeConfig,
    pub(crate) name: String,
    pub(crate) origin: Device,
    /// `None` while it is not attached.
    pub(crate) slot: Option<VolumeSlot>,
    pub(crate) entry: TableEntry,
    pub(crate) mode: CacheMode,
    /// Whether the origin alone must hold what clients were promised.
    pub(crate) is_origin_whole: bool,
    /// Whether an origin in order is no crash state any more: somebody else wrote to it, or the
    /// cache device lost what it still needed.
    pub(crate) is_order_lost: bool,
    /// Whether the origin could not be opened in this life.
    pub(crate) is_missing: bool,
    /// Whether the engine may write single sectors in this life.
    pub(crate) writes_sectors: bool,
    /// Host state file: dirty data may exist.
    pub(crate) is_marked_dirty: bool,
    /// Host state file: see [`HostMark`].
    pub(crate) mark: HostMark,
    /// Whether somebody wrote to the origin unannounced.
    pub(crate) behind: Behind,
    /// Whether the engine has to say so before it serves.
    pub(crate) awaits_warning: bool,
    /// The engine has said in this life that answered writes are lost.
    pub(crate) has_lost_writes: bool,
    /// It was detached, or is to be, without its dirty data, and is not back yet.
    pub(crate) is_given_up: bool,
    /// The origin must be a crash state when it is.
    pub(crate) was_in_order: bool,
    /// Where the engine still has it, though it answered that it is detached.
    pub(crate) lingers_in: Option<VolumeSlot>,
    /// What is pinned.
    pub(crate) pins: KnownPins,
    /// Sizes that it may have beside that of its configuration, which follows the table.
    pub(crate) growth: Growth,
}

impl SimVolume {
    pub(crate) fn is_served(&self) -> bool {
        self.slot.is_some() && !self.is_missing
    }

    /// Whether its history is kept as a whole, so that its origin alone can be judged.
    pub(crate) fn may_be_ordered(&self) -> bool {
        self.config.order == WritebackOrder::Ordered
    }
}

/// What belongs to one life of the process.
#[derive(Default)]
pub(crate) struct Life {
    pub(crate) number: u32,
    pub(crate) began: u64,
    pub(crate) is_serving: bool,
    pub(crate) is_stopping: bool,
    pub(crate) is_stopped: bool,
    pub(crate) is_cache_failed: bool,
    /// The engine had a bound on its memory.
    pub(crate) was_memory_bounded: bool,
    pub(crate) crash_after_requests: Option<u64>,
    pub(crate) crash_after_steps: Option<u64>,
    pub(crate) crash_after_ios: Option<u64>,
    pub(crate) strike: Option<Strike>,
    /// The write came that the strike waits for.
    pub(crate) is_struck: bool,
    pub(crate) ios: u64,
    /// Of these, what changes a device.
    pub(crate) writes: u64,
    pub(crate) wakeups_in_a_row: u32,
    pub(crate) comeback: Comeback,
    pub(crate) takeover: Takeover,
}

/// Whether anything happened in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Some,
    /// Nothing is due, now or ever.
    Idle,
}

/// Everything.
pub(crate) struct World<'a> {
    pub(crate) config: Config,
    pub(crate) random: Random,
    pub(crate) takeovers: Takeovers,
    pub(crate) now: u64,
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) engine: Option<Box<dyn UnderTest>>,
    pub(crate) pool: BufferPool,
    pub(crate) cache: Device,
    pub(crate) volumes: Vec<SimVolume>,
    pub(crate) oracle: Oracle,
    pub(crate) trace: SharedTrace,
    pub(crate) agenda: Agenda,
    pub(crate) life: Life,
    pub(crate) clients: Clients,
    pub(crate) administrator: Administrator,
    pub(crate) pursuit: Pursuit,
    /// Whether earlier failures or rot may have left blocks that are errors until written.
    pub(crate) may_have_poison: bool,
    /// Durable blocks of the cache device when recovery last ended well.
    pub(crate) seen_by_recovery: Contents,
    /// What a run with a silent fault knows of the cache device.
    pub(crate) ledger: Option<Ledger>,
    /// How the last life ended, for messages.
    pub(crate) last_end: &'static str,
    pub(crate) stats: Stats,
    /// See [`crate::run::Outcome::plan_missed`].
    pub(crate) plan_missed: Option<Missed>,
    /// See [`crate::run::Outcome::choices`].
    pub(crate) choices: u64,
    /// Whether an engine has used the cache device before: the next start is a recovery.
    pub(crate) was_used: bool,
    /// What the cache had when the last process died, if the next one must have it.
    pub(crate) warm: Vec<Warm>,
    /// Operations under way, for trace and reports.
    pub(crate) ios: BTreeMap<u64, IoUnderWay>,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        config: Config,
        mut random: Random,
        launch: &'a Launch<'a>,
        trace: SharedTrace,
    ) -> World<'a> {
        let mut oracle = Oracle::new();
        let mut volumes = Vec::new();
        // What a silent fault takes may bring back what a pruned history has forgotten.
        let has_silent = config.silent.is_some();
        for (index, config) in config.volumes.iter().enumerate() {
            let is_whole = has_silent || config.order == WritebackOrder::Ordered;
            let history = if is_whole { History::Whole } else { History::Pruned };
            volumes.push(new_volume(index, config, history, &mut oracle, &mut random));
        }
        let cache = Device::new(config.cache, random.fork());
        let beside = Random::new(random.clone().bits());
        World {
            pool: BufferPool::new(config.pool, random.fork()),
            // The clock of a host counts from its start: hours are nothing special.
            now: random.below(1 << 43),
            random,
            launch,
            engine: None,
            cache,
            volumes,
            oracle,
            trace,
            agenda: Agenda::default(),
            life: Life::default(),
            clients: Clients::default(),
            administrator: Administrator::default(),
            pursuit: Pursuit::new(beside),
            may_have_poison: false,
            seen_by_recovery: Contents::new(),
            ledger: config.silent.map(Ledger::new),
            last_end: "format",
            stats: Stats::default(),
            takeovers: Takeovers::none(),
            plan_missed: None,
            choices: 0,
            was_used: false,
            warm: Vec::new(),
            ios: BTreeMap::new(),
            config,
        }
    }

    pub(crate) fn note(&self, note: Note) {
        let mut trace = self.trace.borrow_mut();
        trace.now = self.now;
        trace.push(note);
    }

    pub(crate) fn say(&self, text: impl Into<String>) {
        self.note(Note::Text(text.into()));
    }

    /// The engine and the buffers, to be used together.
    pub(crate) fn engine(&mut self) -> (&mut dyn UnderTest, &mut BufferPool) {
        let engine = self.engine.as_mut().expect("the process lives");
        (engine.as_mut(), &mut self.pool)
    }

    pub(crate) fn time(&self) -> Time {
        Time(self.now)
    }

    pub(crate) fn device(&mut self, name: DeviceName) -> &mut Device {
        match name {
            DeviceName::Cache => &mut self.cache,
            DeviceName::Origin(volume) => &mut self.volumes[volume].origin,
        }
    }

    /// Whether a device failed in this life.
    pub(crate) fn has_failures(&self) -> bool {
        self.cache.failures() > 0 || self.volumes.iter().any(|volume| volume.origin.failures() > 0)
    }

    /// Operations under way, on the cache device and on all origins.
    pub(crate) fn ios_in_flight(&self) -> usize {
        self.ios.len()
    }

    pub(crate) fn forget_ios(&mut self) {
        self.ios.clear();
    }

    /// Steps until `is_done`; `awaited` says for what, if it never comes.
    pub(crate) fn run_until(
        &mut self,
        awaited: &str,
        is_done: impl Fn(&World) -> bool,
    ) -> Result<(), Halt> {
        self.poll()?;
        while !is_done(self) {
            if self.step()? == Progress::Idle && !is_done(self) {
                if self.is_log_held() {
                    return Err(Halt::Crash);
                }
                return violation(
                    format!("stuck: waits for {awaited}, and nothing is under way"),
                    self.describe_waiting(),
                );
            }
        }
        Ok(())
    }

    /// Lets the next things happen.
    pub(crate) fn step(&mut self) -> Result<Progress, Halt> {
        self.stats.steps += 1;
        if self.stats.steps > STEPS_MAX {
            return violation("hang: the run does not end", self.describe_waiting());
        }
        self.check_patience()?;
        if let Some(steps) = &mut self.life.crash_after_steps {
            if *steps == 0 {
                return Err(Halt::Crash);
            }
            *steps -= 1;
        }
        let engine = self.engine.as_ref().expect("the process lives");
        let wakeup = engine.poll_wakeup().map(|time| time.0).filter(|_| !self.is_successor_dead());
        let next = [wakeup, self.agenda.next_time()].into_iter().flatten().min();
        let Some(next) = next else { return Ok(Progress::Idle) };
        let before = self.now;
        self.now = self.now.max(next);
        let batch = self.take_batch();
        let is_wakeup_due = wakeup.is_some_and(|time| time <= self.now);
        if self.now > before || !batch.is_empty() {
            self.life.wakeups_in_a_row = 0;
        }
        self.check_wakeups()?;
        if is_wakeup_due || self.random.permille(5) {
            let now = self.time();
            let (engine, pool) = self.engine();
            engine.handle_time(now, pool);
        }
        let polls_often = self.random.percent(50);
        for due in batch {
            self.happen(due)?;
            if polls_often {
                self.poll()?;
            }
        }
        self.poll()?;
        self.advance_return()?;
        self.advance_takeover()?;
        if self.random.permille(AUDIT_PERMILLE) {
            self.audit()?;
        }
        Ok(Progress::Some)
    }

    /// What is due now or so soon that a host might see it in the same round.
    fn take_batch(&mut self) -> Vec<Due> {
        let span = self.config.batch_ns;
        let horizon = self.now + if span == 0 { 0 } else { self.random.below(span) };
        let mut batch = Vec::new();
        while self.agenda.next_time().is_some_and(|time| time <= horizon) {
            let (time, due) = self.agenda.pop().expect("there is one");
            self.now = self.now.max(time);
            batch.push(due);
            if span == 0 {
                break;
            }
        }
        self.random.shuffle(&mut batch);
        batch
    }

    fn check_wakeups(&mut self) -> Result<(), Halt> {
        self.life.wakeups_in_a_row += 1;
        if self.life.wakeups_in_a_row > WAKEUPS_MAX {
            return violation("endless: the wake-up stays due", self.describe_waiting());
        }
        Ok(())
    }

    /// Whether something is under way for longer than it may be.
    fn is_late(&self, since: u64, most_ns: u64) -> bool {
        let waited = self.now - since;
        if waited <= most_ns {
            return false;
        }
        let has_stalls =
            self.cache.stalls() > 0 || self.volumes.iter().any(|volume| volume.origin.stalls() > 0);
        let table = self.engine.as_ref().map(|engine| engine.superblock());
        let mut volumes = table.into_iter().flat_map(|table| table.slots());
        let is_limited = volumes.any(|(_, volume)| volume.settings.writeback_rate_max_bytes > 0);
        let is_slow = self.has_failures() || has_stalls || is_limited;
        !is_slow || waited > most_ns * LONG_PATIENCE
    }

    fn is_origin_gone(&self) -> bool {
        self.volumes.iter().any(|volume| volume.origin.is_gone_for_good())
    }

    fn check_patience(&self) -> Result<(), Halt> {
        if let Some((id, since)) = self.clients.oldest()
            && self.is_late(since, REQUEST_NS_MAX)
        {
            // A write may wait for room as long as nothing can be written back.
            if self.is_origin_gone() || self.is_log_held() {
                return Err(Halt::Crash);
            }
            let text = format!("{}; {}", self.clients.describe(id), self.describe_waiting());
            return violation("stuck: a request is not answered", text);
        }
        if let Some((text, since)) = self.administrator.oldest()
            && self.is_late(since, COMMAND_NS_MAX)
        {
            // So may a drain for a flush.
            if self.is_origin_gone() {
                return Err(Halt::Crash);
            }
            let text = format!("{text}; {}", self.describe_waiting());
            return violation("stuck: a command does not end", text);
        }
        if !self.life.is_serving && self.is_late(self.life.began, COMMAND_NS_MAX) {
            return violation("stuck: recovery does not end", self.describe_waiting());
        }
        Ok(())
    }

    /// What the engine says of a volume that is in one of these states.
    fn status_in(&self, index: usize, states: &[VolumeState]) -> Option<VolumeStatus> {
        let engine = self.engine.as_ref()?;
        let status = engine.volume_status(self.time(), self.volumes[index].slot?)?;
        states.contains(&status.state).then_some(status)
    }

    pub(crate) fn is_quiesced(&self, index: usize) -> bool {
        self.status_in(index, &[VolumeState::Quiesced]).is_some()
    }

    /// Whether volumes that are not served have so much dirty data in the log that writes of others
    /// may wait for room until somebody acts.
    fn is_log_held(&self) -> bool {
        let Some(engine) = self.engine.as_ref() else { return false };
        let now = self.time();
        let states = [VolumeState::Quiesced, VolumeState::OriginMissing, VolumeState::Discarding];
        let held = (0..self.volumes.len()).filter_map(|index| self.status_in(index, &states));
        let held_blocks: u64 = held.map(|volume| volume.dirty_blocks).sum();
        let log_blocks = engine.status(now).map_or(u64::MAX, |status| {
            u64::from(status.segments) * u64::from(status.segment_blocks)
        });
        held_blocks * 3 > log_blocks
            || (0..self.volumes.len()).any(|index| self.is_order_held(index))
    }

    /// Whether a volume in order can bring nothing home: the older copies that it needs may fill
    /// the log, too. It goes no further than to a block that its origin refuses.
    fn is_order_held(&self, index: usize) -> bool {
        let states = [VolumeState::Quiesced, VolumeState::OriginMissing];
        let all = [VolumeState::Serving, VolumeState::Draining];
        let is_refused =
            self.status_in(index, &all).is_some_and(|status| !status.failed_extents.is_empty());
        self.volumes[index].may_be_ordered()
            && (is_refused || self.status_in(index, &states).is_some())
    }

    fn happen(&mut self, due: Due) -> Result<(), Halt> {
        match due {
            Due::IoMiddle(name, id) => {
                let World { cache, volumes, pool, .. } = self;
                let device = match name {
                    DeviceName::Cache => cache,
                    DeviceName::Origin(volume) => &mut volumes[volume].origin,
                };
                device.advance(IoId(id), pool);
                Ok(())
            }
            Due::IoEnd(name, id) => {
                self.finish_io(name, IoId(id));
                Ok(())
            }
            Due::Turn(name) => {
                self.take_turn(name);
                Ok(())
            }
            Due::Client(connection) => self.on_client_due(connection),
            Due::HostSaved(volume, save) => {
                self.on_host_saved(volume, save);
                Ok(())
            }
            Due::Attach(volume) => {
                self.attach(volume);
                Ok(())
            }
            Due::Return => {
                self.on_return_due();
                Ok(())
            }
            Due::Cancel(command) => {
                self.cancel(command);
                Ok(())
            }
            Due::HangUp(connection) => {
                self.hang_up(connection);
                Ok(())
            }
            // Each step looks at it.
            Due::Takeover => Ok(()),
        }
    }

    /// Polls until the engine wants nothing more: operations first, which is where it decides, then
    /// replies and events in random order.
    pub(crate) fn poll(&mut self) -> Result<(), Halt> {
        if self.is_successor_dead() {
            return Ok(());
        }
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order[1..]);
        for _ in 0..POLL_ROUNDS_MAX {
            let mut is_quiet = true;
            for what in order {
                while self.poll_one(what)? {
                    is_quiet = false;
                }
            }
            if is_quiet {
                return Ok(());
            }
        }
        violation("endless: polls never answer None", self.describe_waiting())
    }

    fn poll_one(&mut self, what: u32) -> Result<bool, Halt> {
        let (engine, pool) = self.engine();
        match what {
            0 => {
                let Some(io) = engine.poll_io(pool) else { return Ok(false) };
                self.start_io(&io)?;
            }
            1 => {
                let Some(reply) = engine.poll_reply() else { return Ok(false) };
                self.on_reply(reply)?;
            }
            _ => {
                let Some(event) = engine.poll_event() else { return Ok(false) };
                self.on_event(event)?;
            }
        }
        Ok(true)
    }

    fn start_io(&mut self, io: &Io) -> Result<(), Halt> {
        let (what, span) = describe_io(io);
        let name = self.name_of(io)?;
        let crc = self.written_crc(io);
        self.note(Note::Io { id: io.id.0, device: name, what, span, crc });
        if self.life.is_stopped {
            return violation("I/O after the clean stop", format!("{io:?}"));
        }
        match name {
            DeviceName::Cache => self.check_cache_io(io)?,
            DeviceName::Origin(volume) => self.check_origin_io(volume, io)?,
        }
        let moment = self.oracle.tick();
        if name == DeviceName::Cache {
            self.watch_cache_io(io, moment);
            self.watch_for_strike(io);
            self.watch_for_quarry(io);
        }
        let World { cache, volumes, pool, .. } = self;
        let device = match name {
            DeviceName::Cache => cache,
            DeviceName::Origin(volume) => &mut volumes[volume].origin,
        };
        let times = device.submit(self.now, moment, io, pool);
        self.agenda.push(times.middle, Due::IoMiddle(name, io.id.0));
        if let Some(end) = times.end {
            self.agenda.push(end, Due::IoEnd(name, io.id.0));
        }
        self.plan_turn(name);
        let since = self.now;
        self.ios.insert(io.id.0, IoUnderWay { device: name, what, span, since });
        self.stats.ios += 1;
        self.life.ios += 1;
        self.life.writes += u64::from(!matches!(io.kind, IoKind::Read { .. } | IoKind::Flush));
        match name {
            DeviceName::Cache => self.stats.cache_ios += 1,
            DeviceName::Origin(_) => self.stats.origin_ios += 1,
        }
        if self.life.crash_after_ios.is_some_and(|ios| self.life.ios > ios) {
            return Err(Halt::Crash);
        }
        Ok(())
    }

    /// CRC-32C of what an operation writes, for the hash of the run; 0 if it writes no content.
    fn written_crc(&self, io: &Io) -> u32 {
        let IoKind::Write { slices, .. } = &io.kind else { return 0 };
        let ranges = slices.as_slice().iter();
        ranges.fold(0, |crc: u32, range| crc.rotate_left(1) ^ crc32c(self.pool.bytes(*range)).0)
    }

    fn name_of(&self, io: &Io) -> Result<DeviceName, Halt> {
        match io.device {
            EngineDevice::Cache => Ok(DeviceName::Cache),
            EngineDevice::Origin(slot) => {
                let found = self.index_at(slot);
                match found {
                    Some(volume) if !self.volumes[volume].is_missing => {
                        Ok(DeviceName::Origin(volume))
                    }
                    // What is quiesced for a conflict is open, and nothing of it changes.
                    Some(volume)
                        if self.volumes[volume].behind == Behind::Conflict
                            && matches!(io.kind, IoKind::Read { .. } | IoKind::Flush) =>
                    {
                        Ok(DeviceName::Origin(volume))
                    }
                    _ => violation("I/O to an origin that is not there", format!("{io:?}")),
                }
            }
        }
    }

    /// The volume in a slot, also if the end of its attach was not polled yet.
    fn index_at(&self, slot: VolumeSlot) -> Option<usize> {
        let is_there = |volume: &SimVolume| volume.slot.or(volume.lingers_in) == Some(slot);
        let known = self.volumes.iter().position(is_there);
        known.or_else(|| {
            let engine = self.engine.as_ref()?;
            let name = &engine.superblock().volume(slot)?.name;
            self.volumes.iter().position(|v| v.slot.is_none() && v.name == *name)
        })
    }

    fn check_cache_io(&self, io: &Io) -> Result<(), Halt> {
        let (_, span) = describe_io(io);
        if span.offset % 4096 != 0 || span.length % 4096 != 0 {
            return violation("cache I/O is not of whole blocks", format!("{io:?}"));
        }
        Ok(())
    }

    /// Origins see whole blocks, but for their tail, and nothing but what clients wrote.
    fn check_origin_io(&mut self, index: usize, io: &Io) -> Result<(), Halt> {
        let (_, span) = describe_io(io);
        let volume = &mut self.volumes[index];
        let (size, end) = (volume.config.size_bytes, span.offset + span.length);
        if end > volume.growth.end_max(size) {
            let text = format!("volume {index} of {size} bytes: {io:?}");
            return violation("origin I/O behind the end of its volume", text);
        }
        let is_tail = volume.growth.is_end(size, end);
        let is_whole = span.offset % 4096 == 0 && (span.length % 4096 == 0 || is_tail);
        volume.writes_sectors |= volume.mode == CacheMode::Passthrough
            || volume.entry == TableEntry::Changing
            || self.life.is_cache_failed;
        let may_be_part =
            volume.writes_sectors && volume.config.logical_block_bytes == SECTOR_BYTES as u32;
        if !is_whole && !may_be_part {
            return violation("origin I/O is not of whole blocks", format!("{io:?}"));
        }
        let IoKind::Write { offset_bytes, slices } = &io.kind else { return Ok(()) };
        let mut sector = (*offset_bytes / SECTOR_BYTES as u64) as u32;
        for range in slices.as_slice() {
            for bytes in self.pool.bytes(*range).chunks_exact(SECTOR_BYTES) {
                if !self.oracle.is_of_clients(index, sector, bytes) {
                    let found = crate::stamp::read(bytes);
                    return violation(
                        "an origin is written with what no client wrote there",
                        format!("volume {index} sector {sector}: {found}, by {io:?}"),
                    );
                }
                sector += 1;
            }
        }
        Ok(())
    }

    fn plan_turn(&mut self, name: DeviceName) {
        if let Some(time) = self.device(name).next_turn() {
            self.agenda.push(time, Due::Turn(name));
        }
    }

    fn take_turn(&mut self, name: DeviceName) {
        let now = self.now;
        for (id, end) in self.device(name).take_turn(now) {
            self.agenda.push(end, Due::IoEnd(name, id.0));
        }
        self.plan_turn(name);
    }

    fn finish_io(&mut self, name: DeviceName, id: IoId) {
        let moment = self.oracle.tick();
        let World { cache, volumes, pool, .. } = self;
        let device = match name {
            DeviceName::Cache => cache,
            DeviceName::Origin(volume) => &mut volumes[volume].origin,
        };
        let result = device.finish(id, moment, pool);
        let span = self.ios.remove(&id.0).map(|io| io.span);
        if name == DeviceName::Cache {
            self.on_drop_end(id.0);
        }
        self.stats.failed_ios += u64::from(result.is_err());
        self.note(Note::IoEnd { id: id.0, device: name, span, error: result.err() });
        let now = self.time();
        let (engine, pool) = self.engine();
        engine.handle_io_complete(now, id, result, pool);
    }

    /// A violation for content that is wrong.
    pub(crate) fn wrong_content<T>(
        &self,
        context: &str,
        volume: usize,
        mismatch: Mismatch,
    ) -> Result<T, Halt> {
        let Mismatch { kind, sector, text } = mismatch;
        let mode = self.volumes[volume].mode;
        violation(
            format!("{context}: {kind}"),
            format!("volume {volume} ({mode:?}) sector {sector} (block {}): {text}", sector / 8),
        )
    }
}

fn new_volume(
    index: usize,
    config: &VolumeConfig,
    history: History,
    oracle: &mut Oracle,
    random: &mut Random,
) -> SimVolume {
    let sectors = (config.origin.size_bytes / SECTOR_BYTES as u64) as u32;
    let initial = oracle.add_volume(sectors, history);
    let fresh = Fresh::Stamps { volume: index as u8, write: initial.0 };
    let origin = Device::new(DeviceOptions { fresh, ..config.origin }, random.fork());
    SimVolume {
        config: config.clone(),
        name: format!("volume-{index}"),
        origin,
        slot: None,
        entry: TableEntry::Known,
        mode: config.mode,
        is_origin_whole: false,
        is_order_lost: false,
        is_missing: false,
        writes_sectors: false,
        is_marked_dirty: false,
        mark: HostMark::None,
        behind: Behind::Untouched,
        awaits_warning: false,
        has_lost_writes: false,
        is_given_up: false,
        was_in_order: false,
        lingers_in: None,
        pins: KnownPins::default(),
        growth: Growth::default(),
    }
}
