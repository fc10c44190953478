//! Sweeps: one small run again and again, with a failure or a crash at one operation after the
//! other.
//!
//! The run is the same until that operation, so a sweep visits every state that the run goes
//! through. A crash is made with every choice of what survives it ([`crate::survivors`]), a failure
//! that is followed by a crash with a sample of the operations behind it.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::run::{CrashKind, Outcome, Plan, PlannedCrash, RunOptions, run_with};
use crate::under_test::Launch;

/// An operation that no run of a sweep has.
const BEHIND_ALL: u64 = 1 << 40;
/// Crashes that are tried after one failure.
const CRASHES_AFTER_FAILURE: u64 = 4;
/// Such a crash comes at most so many operations later.
const CRASH_DISTANCE_MAX: u64 = 100;

/// What happens at the Nth operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sweep {
    /// It fails; operations of the cache device count.
    FailCacheIo,
    /// It fails; operations of the origin count.
    FailOriginIo,
    /// From it on so many writes fail that the cache device is given up; its operations count.
    BreakCache,
    /// The cache device goes, comes back and goes again; its operations count.
    LoseCache,
    /// The process dies, with every choice of what lands of unfinished writes.
    Kill,
    /// The power goes, with every choice of what survives of unflushed writes.
    CutPower,
    /// It fails, at the cache device or the origin, and a little later the process dies.
    FailThenKill,
    /// It fails, at the cache device or the origin, and a little later the power goes.
    FailThenCutPower,
}

/// How much of a sweep is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Every so many operations, beginning with the first.
    pub stride: u64,
    /// Most choices of survivors for each crash, spread over all of them.
    pub choices_max: u64,
}

impl Effort {
    /// Everything.
    pub const FULL: Effort = Effort { stride: 1, choices_max: u64::MAX };
}

/// What a sweep did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Swept {
    /// Operations that the undisturbed run has of the kind that counts.
    pub operations: u64,
    /// Operations at which something happened, so far.
    pub done: u64,
    /// Runs.
    pub runs: u64,
    /// What the runs did, by name, in sum.
    pub totals: BTreeMap<&'static str, u64>,
}

/// A sweep under way.
struct Sweeper<'a> {
    seed: u64,
    launch: &'a Launch<'a>,
    random: Random,
    swept: Swept,
}

impl Sweep {
    /// All kinds.
    pub const ALL: [Sweep; 8] = [
        Sweep::FailCacheIo,
        Sweep::FailOriginIo,
        Sweep::BreakCache,
        Sweep::LoseCache,
        Sweep::Kill,
        Sweep::CutPower,
        Sweep::FailThenKill,
        Sweep::FailThenCutPower,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Sweep::FailCacheIo => "fail-cache",
            Sweep::FailOriginIo => "fail-origin",
            Sweep::BreakCache => "break-cache",
            Sweep::LoseCache => "lose-cache",
            Sweep::Kill => "kill",
            Sweep::CutPower => "cut-power",
            Sweep::FailThenKill => "fail-then-kill",
            Sweep::FailThenCutPower => "fail-then-cut-power",
        }
    }

    /// A failure at N; whatever else happens is added to it.
    fn plan(self, n: u64) -> Plan {
        let crash = |kind| PlannedCrash { at_io: n, kind, choice: Some(0) };
        match self {
            Sweep::FailCacheIo => Plan { fail_cache_io: Some(n), ..Plan::default() },
            Sweep::FailOriginIo => Plan { fail_origin_io: Some(n), ..Plan::default() },
            Sweep::BreakCache => Plan { break_cache_io: Some(n), ..Plan::default() },
            Sweep::LoseCache => Plan { lose_cache_io: Some(n), ..Plan::default() },
            Sweep::Kill | Sweep::FailThenKill => {
                Plan { crash: Some(crash(CrashKind::Kill)), ..Plan::default() }
            }
            Sweep::CutPower | Sweep::FailThenCutPower => {
                Plan { crash: Some(crash(CrashKind::PowerCut)), ..Plan::default() }
            }
        }
    }
}

/// Makes the runs of a seed; `progress` is told after each operation.
///
/// # Errors
/// The first outcome with a violation.
pub fn sweep(
    seed: u64,
    sweep: Sweep,
    effort: Effort,
    launch: &Launch,
    progress: &mut dyn FnMut(&Swept),
) -> Result<Swept, Box<Outcome>> {
    assert!(effort.stride > 0 && effort.choices_max > 0);
    let random = Random::new(seed ^ sweep as u64);
    let mut sweeper = Sweeper { seed, launch, random, swept: Swept::default() };
    let undisturbed = sweeper.run(sweep.plan(BEHIND_ALL))?;
    let missed = undisturbed.plan_missed.expect("there is no such operation");
    sweeper.swept.operations = missed.operations;
    for n in (0..missed.operations).step_by(effort.stride as usize) {
        match sweep {
            Sweep::FailCacheIo | Sweep::FailOriginIo | Sweep::BreakCache | Sweep::LoseCache => {
                sweeper.run(sweep.plan(n))?;
            }
            Sweep::Kill | Sweep::CutPower => sweeper.crash(sweep.plan(n), effort)?,
            Sweep::FailThenKill | Sweep::FailThenCutPower => sweeper.fail_then_crash(sweep, n)?,
        }
        sweeper.swept.done += 1;
        progress(&sweeper.swept);
    }
    Ok(sweeper.swept)
}

impl Sweeper<'_> {
    fn run(&mut self, plan: Plan) -> Result<Outcome, Box<Outcome>> {
        self.swept.runs += 1;
        let options = RunOptions { plan, ..RunOptions::default() };
        let outcome = run_with(self.seed, options, self.launch);
        for (name, number) in outcome.stats.named() {
            *self.swept.totals.entry(name).or_default() += number;
        }
        if outcome.failure.is_some() { Err(Box::new(outcome)) } else { Ok(outcome) }
    }

    /// The crash with each of its choices.
    fn crash(&mut self, plan: Plan, effort: Effort) -> Result<(), Box<Outcome>> {
        let choices = self.run(plan)?.choices;
        assert!(choices > 0, "the crash came, so it had a choice");
        let taken = choices.min(effort.choices_max);
        for index in 1..taken {
            let choice = Some(index * choices / taken);
            let crash = plan.crash.map(|crash| PlannedCrash { choice, ..crash });
            self.run(Plan { crash, ..plan })?;
        }
        Ok(())
    }

    fn fail_then_crash(&mut self, sweep: Sweep, n: u64) -> Result<(), Box<Outcome>> {
        for _ in 0..CRASHES_AFTER_FAILURE {
            let at_io = n + self.random.between(1..=CRASH_DISTANCE_MAX);
            // Operations of one device are fewer than all of them.
            let failing = self.random.below(n + 1);
            let is_cache = self.random.percent(60);
            let choice = Some(self.random.below(u64::from(u32::MAX)));
            let crash = sweep.plan(at_io).crash.map(|crash| PlannedCrash { choice, ..crash });
            self.run(Plan {
                fail_cache_io: is_cache.then_some(failing),
                fail_origin_io: (!is_cache).then_some(failing),
                crash,
                ..Plan::default()
            })?;
        }
        Ok(())
    }
}
