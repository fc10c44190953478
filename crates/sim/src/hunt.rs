//! Many runs: which kinds of violation there are, and the shortest example of each.

use std::collections::BTreeMap;

use crate::run::{Outcome, RunOptions, Stats, run_with};
use crate::under_test::Launch;

/// A kind of violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Runs that had it.
    pub count: u64,
    /// The one with the fewest events.
    pub shortest: Outcome,
}

/// What a hunt found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catch {
    /// Runs made.
    pub runs: u64,
    /// Runs with a violation.
    pub bad_runs: u64,
    /// By kind.
    pub kinds: BTreeMap<String, Kind>,
    /// Sums over all runs.
    pub totals: BTreeMap<&'static str, u64>,
}

/// Makes the runs of these seeds.
#[must_use]
pub fn hunt(seeds: impl IntoIterator<Item = u64>, options: RunOptions, launch: &Launch) -> Catch {
    let mut caught = Catch::default();
    for seed in seeds {
        caught.add(run_with(seed, options, launch));
    }
    caught
}

impl Catch {
    /// Takes note of a run.
    pub fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.add_stats(&outcome.stats);
        let Some(failure) = &outcome.failure else { return };
        self.bad_runs += 1;
        let name = failure.violation.kind.clone();
        match self.kinds.get_mut(&name) {
            None => {
                self.kinds.insert(name, Kind { count: 1, shortest: outcome });
            }
            Some(kind) => {
                kind.count += 1;
                // The seed decides between equals, so that the order of runs does not matter.
                let rank = |outcome: &Outcome| (outcome.events, outcome.seed);
                if rank(&outcome) < rank(&kind.shortest) {
                    kind.shortest = outcome;
                }
            }
        }
    }

    fn add_stats(&mut self, stats: &Stats) {
        for (name, number) in stats.named() {
            *self.totals.entry(name).or_default() += number;
        }
    }
}
