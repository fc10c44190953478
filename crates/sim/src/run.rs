//! A run: a seed becomes a world, the world lives several times, and the last life is checked in
//! full.

use std::fmt;

use forebay_engine::event::Command;

use crate::caught::catch_panic;
use crate::config::Config;
use crate::crash::LifeFaults;
use crate::device::{Burst, FaultRates, Gone, Loss};
use crate::event_hash::EventHash;
use crate::random::Random;
use crate::strike::Strike;
use crate::takeover::Takeovers;
use crate::trace::{SharedTrace, Trace, TraceMode, milliseconds};
use crate::under_test::{Launch, launch_engine};
use crate::world::{Due, Halt, Life, Violation, World};

/// Lives that end early because the engine refused the device for a failure that the run made.
const REFUSALS_MAX: u32 = 10;
/// Writes that fail where a plan breaks the cache device: more than the engine bears in a row.
const WRITES_OF_BREAK: u32 = 12;
/// How long the cache device is gone where a plan loses it; requests wait longer.
const LOSS_NS: u64 = 200_000_000;
/// It goes again after fewer operations than this: about as many as a recovery of a small device.
const OPERATIONS_OF_RETURN: u64 = 64;
/// By how much that number differs from one operation of a sweep to the next; odd, so that all
/// numbers come about.
const LOSS_STEP: u64 = 7;

/// Share of lives after a strike that have another one, in percent.
const AFTER_STRIKE_PERCENT: u64 = 60;

/// What a run is to do beside what its seed says. Anything makes it a small one, for sweeps:
/// without chance failures, and with what is named here in its first life. Operations are counted
/// from zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// This operation of the cache device fails.
    pub fail_cache_io: Option<u64>,
    /// This operation of the origin fails.
    pub fail_origin_io: Option<u64>,
    /// From this operation of the cache device on its writes fail, so many in a row that it is
    /// given up.
    pub break_cache_io: Option<u64>,
    /// The cache device goes at this operation, comes back, and goes again, perhaps while it is
    /// recovered.
    pub lose_cache_io: Option<u64>,
    /// The process dies when it submits this operation, or the power goes.
    pub crash: Option<PlannedCrash>,
}

/// A crash that a plan names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedCrash {
    /// At which operation of all devices.
    pub at_io: u64,
    /// What dies.
    pub kind: CrashKind,
    /// Which of the possible survivors, see [`crate::survivors`]; by chance if not given.
    pub choice: Option<u64>,
}

/// What dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CrashKind {
    /// The process.
    Kill,
    /// The power.
    PowerCut,
}

impl CrashKind {
    /// As on the command line.
    fn argument(self) -> &'static str {
        match self {
            CrashKind::Kill => "--kill-at-io",
            CrashKind::PowerCut => "--cut-power-at-io",
        }
    }
}

impl Plan {
    /// Whether the seed alone decides.
    #[must_use]
    pub fn is_seeded(&self) -> bool {
        *self == Plan::default()
    }

    fn cache_faults(&self) -> FaultRates {
        let failures = WRITES_OF_BREAK;
        FaultRates {
            fail_nth: self.fail_cache_io,
            burst: self.break_cache_io.map(|nth| Burst { from_operation: nth, failures }),
            gone: self.lose_cache_io.map(|nth| Gone {
                from_operation: nth,
                lasts_ns: Some(LOSS_NS),
                back_for: Some(nth * LOSS_STEP % OPERATIONS_OF_RETURN),
            }),
            ..FaultRates::default()
        }
    }

    /// As on the command line, with a space before each.
    fn arguments(&self) -> String {
        let Plan { fail_cache_io, fail_origin_io, break_cache_io, lose_cache_io, crash } = *self;
        let arguments = [
            ("--fail-cache-io", fail_cache_io),
            ("--fail-origin-io", fail_origin_io),
            ("--break-cache-io", break_cache_io),
            ("--lose-cache-io", lose_cache_io),
            (crash.map_or("", |crash| crash.kind.argument()), crash.map(|crash| crash.at_io)),
            ("--survivors", crash.and_then(|crash| crash.choice)),
        ];
        let given = arguments.iter().filter_map(|(name, value)| Some((name, (*value)?)));
        given.map(|(name, value)| format!(" {name} {value}")).collect()
    }
}

/// How to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunOptions {
    /// More lives, and more requests in each.
    pub long: bool,
    /// What to keep of the events.
    pub trace: TraceMode,
    /// See [`Plan`].
    pub plan: Plan,
}

/// What a run did, in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub steps: u64,
    pub requests: u64,
    pub failed_requests: u64,
    pub commands: u64,
    pub ios: u64,
    pub cache_ios: u64,
    pub origin_ios: u64,
    pub failed_ios: u64,
    pub crashes: u64,
    pub strikes: u64,
    pub pursuits: u64,
    pub refusals: u64,
    pub records: u64,
    pub idle_marks: u64,
    pub checkpoints: u64,
    pub reclaimed_segments: u64,
    pub throttled_writes: u64,
    pub space_waits: u64,
    pub promoted_blocks: u64,
    pub read_ahead_blocks: u64,
    pub writeback_blocks: u64,
    pub gap_blocks: u64,
    pub read_hits: u64,
    pub returns: u64,
    pub takeovers: u64,
    pub failed_takeovers: u64,
    pub recoveries: u64,
    pub warm_blocks: u64,
    pub lost_extents: u64,
    pub silent_faults: u64,
    pub forgiven_records: u64,
    pub damaged_starts: u64,
    pub beyond: u64,
    pub unannounced: u64,
    pub conflicts: u64,
    pub given_up: u64,
    pub grown: u64,
}

/// Numbers and their names.
impl Stats {
    /// All numbers with their names, in one order.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("steps", self.steps),
            ("requests", self.requests),
            ("failed requests", self.failed_requests),
            ("commands", self.commands),
            ("I/Os", self.ios),
            ("cache I/Os", self.cache_ios),
            ("origin I/Os", self.origin_ios),
            ("failed I/Os", self.failed_ios),
            ("crashes", self.crashes),
            ("strikes", self.strikes),
            ("requests in pursuit of drops", self.pursuits),
            ("recoveries", self.recoveries),
            ("blocks that had to stay cached", self.warm_blocks),
            ("refusals", self.refusals),
            ("records", self.records),
            ("idle marks", self.idle_marks),
            ("checkpoints", self.checkpoints),
            ("reclaimed segments", self.reclaimed_segments),
            ("writes that were slowed down", self.throttled_writes),
            ("waits for log space", self.space_waits),
            ("promoted blocks", self.promoted_blocks),
            ("read ahead blocks", self.read_ahead_blocks),
            ("written back blocks", self.writeback_blocks),
            ("blocks written between these", self.gap_blocks),
            ("read hits", self.read_hits),
            ("returns of the cache device", self.returns),
            ("takeovers", self.takeovers),
            ("takeovers that failed", self.failed_takeovers),
            ("lost extents", self.lost_extents),
            ("silent faults", self.silent_faults),
            ("records that may be missing", self.forgiven_records),
            ("starts that must be refused", self.damaged_starts),
            ("runs ended beyond any promise", self.beyond),
            ("origins written unannounced", self.unannounced),
            ("of these with dirty data", self.conflicts),
            ("volumes given up", self.given_up),
            ("volumes grown", self.grown),
        ]
    }
}

/// A violation, and where in the run it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What is wrong.
    pub violation: Violation,
    /// The life, counted from zero.
    pub life: u32,
    /// Virtual time.
    pub time_ns: u64,
}

/// Something that a plan named and that did not come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    /// Its argument on the command line.
    pub argument: &'static str,
    /// Operations that the life had of the kind that counts.
    pub operations: u64,
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// How it was run.
    pub options: RunOptions,
    /// `None` if all was well.
    pub failure: Option<Failure>,
    /// What it did.
    pub stats: Stats,
    /// Number of events.
    pub events: u64,
    /// Hash over all events: equal for equal runs.
    pub hash: EventHash,
    /// The events that were kept, as text; empty if all was well and nothing was asked for.
    pub trace: Vec<String>,
    /// What of the plan did not come, because the life had too few operations.
    pub plan_missed: Option<Missed>,
    /// How many choices of survivors the crash of the plan had, if it came.
    pub choices: u64,
}

impl Outcome {
    /// Arguments of `forebay-sim` that make the run again.
    #[must_use]
    pub fn replay_arguments(&self) -> String {
        let long = if self.options.long { " --long" } else { "" };
        format!("run --seed {}{long}{}", self.seed, self.options.plan.arguments())
    }

    /// The command that runs it again.
    #[must_use]
    pub fn replay_command(&self) -> String {
        format!("forebay-sim {} --trace", self.replay_arguments())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(failure) = &self.failure else {
            let Outcome { seed, events, hash, .. } = self;
            return write!(f, "seed {seed}: good, {events} events, hash {hash}");
        };
        let Failure { violation, life, time_ns } = failure;
        writeln!(f, "seed {}: {}", self.seed, violation.kind)?;
        writeln!(f, "  {}", violation.text)?;
        let time = milliseconds(*time_ns);
        let Outcome { events, hash, .. } = self;
        writeln!(f, "  in life {life} at {}, after {events} events, hash {hash}", time.trim())?;
        write!(f, "  again: {}", self.replay_command())
    }
}

/// Runs the engine.
#[must_use]
pub fn run(seed: u64, options: RunOptions) -> Outcome {
    run_with(seed, options, &launch_engine)
}

/// Runs what `launch` starts.
#[must_use]
pub fn run_with(seed: u64, options: RunOptions, launch: &Launch) -> Outcome {
    let trace = Trace::new(options.trace);
    let mut stats = Stats::default();
    let (mut plan_missed, mut choices) = (None, 0);
    let result = catch_panic(|| {
        let mut random = Random::new(seed);
        let config = Config::new(&mut random, &options);
        let mut world = World::new(config, random, launch, trace.clone());
        if options.plan.is_seeded() {
            world.takeovers = Takeovers::of_run(seed);
        }
        let result = world.run(options.plan);
        stats = world.stats;
        (plan_missed, choices) = (world.plan_missed, world.choices);
        result
    });
    let result = result.unwrap_or_else(|panic| {
        Err(Violation { kind: format!("panic at {}", panic.place), text: panic.text })
    });
    Outcome { stats, plan_missed, choices, ..outcome(seed, options, result, &trace) }
}

fn outcome(
    seed: u64,
    options: RunOptions,
    result: Result<(), Violation>,
    trace: &SharedTrace,
) -> Outcome {
    let trace = trace.borrow();
    let wanted = result.is_err() || options.trace != TraceMode::Ring;
    let failure =
        result.err().map(|violation| Failure { violation, life: trace.life, time_ns: trace.now });
    Outcome {
        seed,
        options,
        failure,
        stats: Stats::default(),
        events: trace.count,
        hash: trace.hash,
        trace: if wanted { trace.lines() } else { Vec::new() },
        plan_missed: None,
        choices: 0,
    }
}

impl World<'_> {
    /// Everything, from format to the last stop.
    fn run(&mut self, plan: Plan) -> Result<(), Violation> {
        self.say(format!("{:#?}", self.config));
        self.format();
        let result = if plan.is_seeded() { self.run_lives() } else { self.run_planned(plan) };
        match result.and_then(|()| self.last_life()) {
            Ok(()) => Ok(()),
            // Rot may make a device unusable at any time.
            Err(Halt::Refused) => {
                self.stats.refusals += 1;
                Ok(())
            }
            Err(Halt::Beyond) => {
                self.stats.beyond += 1;
                Ok(())
            }
            Err(Halt::Crash) => unreachable!("the last life has no crash"),
            Err(Halt::Violation(violation)) => Err(violation),
        }
    }

    fn run_lives(&mut self) -> Result<(), Halt> {
        let mut number = 0;
        let mut refusals = 0;
        while number < self.config.lives {
            let life = self.choose_life(number);
            match self.live(life) {
                Ok(()) => number += 1,
                Err(Halt::Crash) => {
                    self.crash()?;
                    number += 1;
                }
                Err(Halt::Refused) if self.has_failures() && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    self.stats.refusals += 1;
                    self.end_life(Loss::Process, "a refusal")?;
                }
                Err(halt) => return Err(halt),
            }
            self.between_lives();
        }
        Ok(())
    }

    /// When a life ends: by a crash in recovery, among requests, soon after a write that orders
    /// others, or anywhere, or by a clean stop.
    fn choose_life(&mut self, number: u32) -> Life {
        let mut life = Life { number, ..Life::default() };
        let requests = self.config.requests;
        let percent = if self.life.is_struck { AFTER_STRIKE_PERCENT } else { 0 };
        if self.random.percent(self.config.strikes_percent.max(percent)) {
            let before = self.life.strike.filter(|_| self.life.is_struck);
            let random = &mut self.random;
            let is_pursuit = self.config.pursuit_percent > 0 && random.percent(80);
            life.strike = Some(if is_pursuit {
                Strike::of_pursuit(random)
            } else {
                Strike::new(random, before)
            });
            return life;
        }
        match self.random.below(20) {
            0..=2 => life.crash_after_ios = Some(self.random.below(60)),
            3..=4 => life.crash_after_steps = Some(self.random.below(400)),
            5..=16 => life.crash_after_requests = Some(self.random.below(requests)),
            _ => {}
        }
        life
    }

    fn live(&mut self, life: Life) -> Result<(), Halt> {
        let is_first = life.number == 0;
        self.start_life(life, LifeFaults::AsConfigured)?;
        if self.random.percent(20) {
            // Requests that come while recovery is under way wait for its end.
            self.connect(self.config.requests);
        }
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.attach_detached();
        if !is_first && self.random.percent(75) {
            let percent = *self.random.pick(&[100, 100, 30]);
            self.full_check(percent)?;
        }
        if self.clients.budget == 0 {
            self.connect(self.config.requests);
        }
        self.run_until("requests", |world| world.clients.budget == 0)?;
        if self.life.crash_after_steps.is_some() || self.random.percent(30) {
            return Err(Halt::Crash);
        }
        self.stop()
    }

    fn attach_detached(&mut self) {
        for index in 0..self.volumes.len() {
            if self.volumes[index].slot.is_none() && self.random.percent(70) {
                let time = self.now + self.random.below(1_000_000_000);
                self.agenda.push(time, Due::Attach(index));
            }
        }
    }

    /// A small life with the failures and the crash of the plan, perhaps after one without.
    fn run_planned(&mut self, plan: Plan) -> Result<(), Halt> {
        if self.config.history_requests > 0 {
            self.live_before()?;
        }
        let mut life = Life { number: self.config.lives - 1, ..Life::default() };
        let faults = &mut self.config.faults;
        faults.lives_percent = 100;
        faults.cache = plan.cache_faults();
        faults.origin = FaultRates { fail_nth: plan.fail_origin_io, ..FaultRates::default() };
        if let Some(crash) = plan.crash {
            life.crash_after_ios = Some(crash.at_io);
            let is_power = crash.kind == CrashKind::PowerCut;
            self.config.power_percent = if is_power { 100 } else { 0 };
        }
        let before = self.stats;
        let result = self.live_planned(life);
        self.plan_missed = self.missed(plan, &before);
        match result {
            Err(Halt::Crash) => match plan.crash.and_then(|crash| crash.choice) {
                Some(choice) => self.crash_with(choice),
                None => self.crash(),
            },
            Err(Halt::Refused) => self.end_life(Loss::Process, "a refusal"),
            other => other,
        }
    }

    /// A life that nothing disturbs, and a kill, so that the planned one begins with a recovery.
    fn live_before(&mut self) -> Result<(), Halt> {
        self.start_life(Life::default(), LifeFaults::None)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.connect(self.config.history_requests);
        self.run_until("requests", |world| world.clients.budget == 0)?;
        self.crash()
    }

    /// What of the plan has not come, by what there was before the life.
    fn missed(&self, plan: Plan, before: &Stats) -> Option<Missed> {
        let crash_argument = plan.crash.map_or("", |crash| crash.kind.argument());
        let cache_ios = self.stats.cache_ios - before.cache_ios;
        let origin_ios = self.stats.origin_ios - before.origin_ios;
        let planned = [
            ("--fail-cache-io", plan.fail_cache_io, cache_ios),
            ("--fail-origin-io", plan.fail_origin_io, origin_ios),
            ("--break-cache-io", plan.break_cache_io, cache_ios),
            ("--lose-cache-io", plan.lose_cache_io, cache_ios),
            (crash_argument, plan.crash.map(|crash| crash.at_io), self.life.ios),
        ];
        let missed = planned.iter().find(|(_, n, operations)| n.is_some_and(|n| *operations <= n));
        missed.map(|(argument, _, operations)| Missed { argument, operations: *operations })
    }

    fn live_planned(&mut self, life: Life) -> Result<(), Halt> {
        self.start_life(life, LifeFaults::AsConfigured)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.connect(self.config.requests);
        self.run_until("requests", |world| world.clients.budget == 0)?;
        // Nothing but a plan takes the device away here, and then only for a while.
        self.run_until("the return of the cache device", |world| !world.is_cache_gone())?;
        self.full_check(100)?;
        self.stop()
    }

    /// No failures and no crash: everything must be there, before and after a clean stop, and at
    /// the end on the origins alone.
    fn last_life(&mut self) -> Result<(), Halt> {
        let number = self.config.lives;
        self.start_life(Life { number, ..Life::default() }, LifeFaults::None)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.full_check(100)?;
        match self.last_requests() {
            // Nobody attends to a volume that holds the log; its dirty data is to be there still.
            Err(Halt::Crash) => self.crash()?,
            other => other?,
        }
        self.start_life(Life { number: number + 1, ..Life::default() }, LifeFaults::None)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.full_check(100)?;
        self.stop()
    }

    fn last_requests(&mut self) -> Result<(), Halt> {
        self.connect(self.config.requests / 4);
        self.run_until("requests", |world| world.clients.budget == 0)?;
        self.run_until("the last requests", |world| {
            world.clients.in_flight() == 0 && world.administrator.in_flight() == 0
        })?;
        self.full_check(100)?;
        if self.random.percent(70) {
            self.drain_all()?;
        }
        self.stop()
    }

    fn drain_all(&mut self) -> Result<(), Halt> {
        for index in 0..self.volumes.len() {
            if !self.volumes[index].is_served() {
                continue;
            }
            if let Some(volume) = self.volumes[index].slot {
                let _ = self.command_and_wait(Command::Drain { volume }, Some(index))?;
            }
        }
        Ok(())
    }
}
