//! Sweeps: one small run again and again, with a failure or a crash at one operation after the
//! other.
//!
//! The run is the same until that operation, so a sweep visits every state that the run goes
//! through.

use crate::run::{Outcome, Plan, RunOptions, run_with};
use crate::under_test::Launch;

/// What happens at the Nth operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sweep {
    /// It fails; operations of the cache device count.
    FailCacheIo,
    /// It fails; operations of the origin count.
    FailOriginIo,
    /// The process dies.
    Kill,
    /// The power goes.
    CutPower,
}

impl Sweep {
    /// All kinds.
    pub const ALL: [Sweep; 4] =
        [Sweep::FailCacheIo, Sweep::FailOriginIo, Sweep::Kill, Sweep::CutPower];

    fn plan(self, n: u64) -> Plan {
        match self {
            Sweep::FailCacheIo => Plan::FailCacheIo(n),
            Sweep::FailOriginIo => Plan::FailOriginIo(n),
            Sweep::Kill => Plan::KillAtIo(n),
            Sweep::CutPower => Plan::CutPowerAtIo(n),
        }
    }
}

/// Runs with N = 0, `stride`, twice `stride`, ... until the run of `seed` has no Nth operation.
/// Answers the number of runs, or the first that went wrong.
///
/// # Errors
/// The first outcome with a violation.
pub fn sweep(seed: u64, sweep: Sweep, stride: u64, launch: &Launch) -> Result<u64, Box<Outcome>> {
    assert!(stride > 0);
    for runs in 0.. {
        let options = RunOptions { plan: sweep.plan(runs * stride), ..RunOptions::default() };
        let outcome = run_with(seed, options, launch);
        if outcome.failure.is_some() {
            return Err(Box::new(outcome));
        }
        if outcome.plan_missed.is_some() {
            return Ok(runs);
        }
    }
    unreachable!("a run has an end")
}
