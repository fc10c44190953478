//! A run: a seed becomes a world, the world lives several times, and the last life is checked in
//! full.

use std::fmt;

use forebay_engine::event::Command;

use crate::caught::catch_panic;
use crate::config::Config;
use crate::crash::LifeFaults;
use crate::device::{FaultRates, Loss};
use crate::random::Random;
use crate::trace::{SharedTrace, Trace, TraceMode, milliseconds};
use crate::under_test::{Launch, launch_engine};
use crate::world::{Due, Halt, Life, Violation, World};

/// Lives that end early because the engine refused the device for a failure that the run made.
const REFUSALS_MAX: u32 = 10;

/// What a run is to do beside what its seed says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Plan {
    /// Nothing.
    #[default]
    Seeded,
    /// A small run in which one operation of the cache device fails, counted from zero.
    FailCacheIo(u64),
    /// The same for the origin.
    FailOriginIo(u64),
    /// A small run in which the process dies when it has submitted so many operations and one more.
    KillAtIo(u64),
    /// The same with a power cut.
    CutPowerAtIo(u64),
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
    pub refusals: u64,
    pub records: u64,
    pub idle_marks: u64,
    pub checkpoints: u64,
    pub reclaimed_segments: u64,
    pub promoted_blocks: u64,
    pub read_ahead_blocks: u64,
    pub writeback_blocks: u64,
    pub read_hits: u64,
    pub returns: u64,
    pub lost_extents: u64,
}

/// Numbers and their names.
impl Stats {
    /// All numbers with their names, in one order.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 20] {
        [
            ("steps", self.steps),
            ("requests", self.requests),
            ("failed requests", self.failed_requests),
            ("commands", self.commands),
            ("I/Os", self.ios),
            ("cache I/Os", self.cache_ios),
            ("origin I/Os", self.origin_ios),
            ("failed I/Os", self.failed_ios),
            ("crashes", self.crashes),
            ("refusals", self.refusals),
            ("records", self.records),
            ("idle marks", self.idle_marks),
            ("checkpoints", self.checkpoints),
            ("reclaimed segments", self.reclaimed_segments),
            ("promoted blocks", self.promoted_blocks),
            ("read ahead blocks", self.read_ahead_blocks),
            ("written back blocks", self.writeback_blocks),
            ("read hits", self.read_hits),
            ("returns of the cache device", self.returns),
            ("lost extents", self.lost_extents),
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
    /// The events that were kept, as text; empty if all was well and nothing was asked for.
    pub trace: Vec<String>,
    /// Operations that the planned life had of the kind that the plan counts, if the one that the
    /// plan names was not among them.
    pub plan_missed: Option<u64>,
}

impl Outcome {
    /// The command that runs it again.
    #[must_use]
    pub fn replay_command(&self) -> String {
        let long = if self.options.long { " --long" } else { "" };
        let plan = match self.options.plan {
            Plan::Seeded => String::new(),
            Plan::FailCacheIo(n) => format!(" --fail-cache-io {n}"),
            Plan::FailOriginIo(n) => format!(" --fail-origin-io {n}"),
            Plan::KillAtIo(n) => format!(" --kill-at-io {n}"),
            Plan::CutPowerAtIo(n) => format!(" --cut-power-at-io {n}"),
        };
        format!("forebay-sim run --seed {}{long}{plan} --trace", self.seed)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(failure) = &self.failure else {
            return write!(f, "seed {}: good, {} events", self.seed, self.events);
        };
        let Failure { violation, life, time_ns } = failure;
        writeln!(f, "seed {}: {}", self.seed, violation.kind)?;
        writeln!(f, "  {}", violation.text)?;
        let time = milliseconds(*time_ns);
        writeln!(f, "  in life {life} at {}, after {} events", time.trim(), self.events)?;
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
    let mut plan_missed = None;
    let result = catch_panic(|| {
        let mut random = Random::new(seed);
        let config = Config::new(&mut random, &options);
        let mut world = World::new(config, random, launch, trace.clone());
        let result = world.run(options.plan);
        stats = world.stats;
        plan_missed = world.plan_missed;
        result
    });
    let result = result.unwrap_or_else(|panic| {
        Err(Violation { kind: format!("panic at {}", panic.place), text: panic.text })
    });
    Outcome { stats, plan_missed, ..outcome(seed, options, result, &trace) }
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
    let (events, lines) = (trace.count, if wanted { trace.lines() } else { Vec::new() });
    let (stats, plan_missed) = (Stats::default(), None);
    Outcome { seed, options, failure, stats, events, trace: lines, plan_missed }
}

impl World<'_> {
    /// Everything, from format to the last stop.
    fn run(&mut self, plan: Plan) -> Result<(), Violation> {
        self.say(format!("{:#?}", self.config));
        self.format();
        let result = match plan {
            Plan::Seeded => self.run_lives(),
            _ => self.run_planned(plan),
        };
        match result.and_then(|()| self.last_life()) {
            Ok(()) => Ok(()),
            // Rot may make a device unusable at any time.
            Err(Halt::Refused) => {
                self.stats.refusals += 1;
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

    /// When a life ends: by a crash in recovery, among requests, or anywhere, or by a clean stop.
    fn choose_life(&mut self, number: u32) -> Life {
        let mut life = Life { number, ..Life::default() };
        let requests = self.config.requests;
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

    /// A small life with one failure or crash, for sweeps.
    fn run_planned(&mut self, plan: Plan) -> Result<(), Halt> {
        let mut life = Life::default();
        let faults = &mut self.config.faults;
        faults.lives_percent = 100;
        match plan {
            Plan::Seeded => {}
            Plan::FailCacheIo(n) => {
                faults.cache = FaultRates { fail_nth: Some(n), ..FaultRates::default() };
            }
            Plan::FailOriginIo(n) => {
                faults.origin = FaultRates { fail_nth: Some(n), ..FaultRates::default() };
            }
            Plan::KillAtIo(n) => life.crash_after_ios = Some(n),
            Plan::CutPowerAtIo(n) => {
                life.crash_after_ios = Some(n);
                self.config.power_percent = 100;
            }
        }
        let result = self.live_planned(life);
        self.plan_missed = self.operations_without_plan(plan);
        match result {
            Err(Halt::Crash) => self.crash(),
            Err(Halt::Refused) => self.end_life(Loss::Process, "a refusal"),
            other => other,
        }
    }

    /// Operations of the planned life that the plan counts, if it was to strike a later one.
    fn operations_without_plan(&self, plan: Plan) -> Option<u64> {
        let (operation_count, n) = match plan {
            Plan::Seeded => return None,
            Plan::FailCacheIo(n) => (self.stats.cache_ios, n),
            Plan::FailOriginIo(n) => (self.stats.origin_ios, n),
            Plan::KillAtIo(n) | Plan::CutPowerAtIo(n) => (self.life.ios, n),
        };
        (operation_count <= n).then_some(operation_count)
    }

    fn live_planned(&mut self, life: Life) -> Result<(), Halt> {
        self.start_life(life, LifeFaults::AsConfigured)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.connect(self.config.requests);
        self.run_until("requests", |world| world.clients.budget == 0)?;
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
        self.connect(self.config.requests / 4);
        self.run_until("requests", |world| world.clients.budget == 0)?;
        self.run_until("the last requests", |world| {
            world.clients.in_flight() == 0 && world.administrator.in_flight() == 0
        })?;
        self.full_check(100)?;
        if self.random.percent(70) {
            self.drain_all()?;
        }
        self.stop()?;
        self.start_life(Life { number: number + 1, ..Life::default() }, LifeFaults::None)?;
        self.run_until("recovery", |world| world.life.is_serving)?;
        self.full_check(100)?;
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
